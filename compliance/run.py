"""Run the official MCP conformance suites against the fixture server and the client: `make compliance`.

Installs what it needs into .cache/compliance. Exits with 1 when a check fails, or when a WARNING or SKIPPED
is not in compliance/allowed.toml; with 2 when the suites could not be run.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from harness.fixture import Fixture, ServerError, serve
from harness.install import InstallError, Tool, install
from harness.suites import (
    SUITES,
    Result,
    Select,
    Side,
    Suite,
    SuiteError,
    run_client_scenario,
    run_requirements,
    run_scenario,
    scenarios,
)
from harness.verdict import AllowListError, judge, read_allow_list, summary, table

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "compliance"

Plan = Sequence[tuple[Suite, list[str]]]
"""The suites to run, and which scenarios of each."""


def main() -> int:
    """Run what the command line asks for, and return the exit code."""
    options = _options()
    chosen = [suite for suite in SUITES if not options.suite or suite.name in options.suite]
    try:
        allow_list = read_allow_list(options.allow)
        tools = {version: install(CACHE, version, _say) for version in {suite.version for suite in chosen}}
        plan = [(suite, _names(tools[suite.version], suite, options.scenario)) for suite in chosen]
        if options.list:
            _print_plan(plan)
            return 0
        if not any(names for _, names in plan):
            _say(f"no suite has the scenario {', '.join(options.scenario)}")
            return 2
        for suite in chosen:
            shutil.rmtree(CACHE / "results" / suite.name, ignore_errors=True)
        results = _run_servers(
            [(suite, names) for suite, names in plan if suite.side is Side.SERVER and names], tools, options
        )
        results += _run_clients(
            [(suite, names) for suite, names in plan if suite.side is Side.CLIENT], tools, options.client
        )
    except (AllowListError, InstallError, ServerError, SuiteError) as error:
        _say(str(error))
        return 2
    verdict = judge(results, allow_list)
    print(table(results))
    print(summary(results, verdict, complete=not options.suite and not options.scenario))
    return 0 if verdict.passed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [suite.name for suite in SUITES]
    parser.add_argument(
        "--suite", action="append", choices=names, metavar="NAME", help=f"only this suite: {', '.join(names)}"
    )
    parser.add_argument("--scenario", action="append", metavar="NAME", help="only this scenario")
    parser.add_argument("--url", help="test this running server, http://127.0.0.1:PORT/mcp, and start none")
    parser.add_argument(
        "--server", type=Path, default=HERE / "server.py", help="the script to start (default: %(default)s)"
    )
    parser.add_argument(
        "--client", type=Path, default=HERE / "client.py", help="the client to test (default: %(default)s)"
    )
    parser.add_argument(
        "--allow", type=Path, default=HERE / "allowed.toml", help="the allow list (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="list suites and scenarios, and run nothing")
    return parser.parse_args()


def _names(tool: Tool, suite: Suite, wanted: list[str] | None) -> list[str]:
    return [name for name in scenarios(tool, suite) if not wanted or name in wanted]


def _fixture(url: str | None, script: Path) -> AbstractContextManager[Fixture]:
    return nullcontext(Fixture(url)) if url else serve(script, CACHE / "server.log")


def _run_servers(plan: Plan, tools: dict[str, Tool], options: argparse.Namespace) -> list[Result]:
    results: list[Result] = []
    if not plan:
        return results
    with _fixture(options.url, options.server) as fixture:
        for suite, names in plan:
            tool, folder = tools[suite.version], CACHE / "results" / suite.name
            if suite.select is Select.REQUIREMENTS and not options.scenario:
                report = partial(_progress, suite, names)
                results += run_requirements(tool, suite, names, fixture.url, folder, report)
                fixture.check()
                continue
            for name in names:
                _progress(suite, names, name)
                results.append(run_scenario(tool, suite, name, fixture.url, folder))
                fixture.check()
    return results


def _run_clients(plan: Plan, tools: dict[str, Tool], script: Path) -> list[Result]:
    results: list[Result] = []
    for suite, names in plan:
        folder = CACHE / "results" / suite.name
        for name in names:
            _progress(suite, names, name)
            command = [sys.executable, str(script)]
            results.append(run_client_scenario(tools[suite.version], suite, name, command, folder))
    return results


def _progress(suite: Suite, names: list[str], name: str) -> None:
    number = names.index(name) + 1 if name in names else "?"
    _say(f"{suite.name} {number}/{len(names)} {name}")


def _print_plan(plan: Plan) -> None:
    for suite, names in plan:
        print(f"{suite.name}: {len(names)} scenarios of conformance {suite.version}")
        print("".join(f"  {name}\n" for name in names), end="")


def _say(text: str) -> None:
    print(f"compliance: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Run coding agents as clients of a midcall server: `make compliance`.

Claude Code and Codex, as published on npm, over stdio and HTTP. A model on loopback tells each what to do: it
lists the tools, calls one, confirms or declines when it is asked, fills in a form of three questions, and
answers a question that brings context along. Nothing of it needs a network, or a key.
Installs what it needs into .cache/compliance. Exits with 1 when a check fails, with 2 when none could be run.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests" / "support"))

from harness.agents import AGENTS, Agent, AgentError, Answer, Turn, program_of, running  # noqa: E402
from harness.fixture import ServerError, serve  # noqa: E402
from harness.install import InstallError  # noqa: E402
from loopback_model import LoopbackModel, Say, Script, Use, loopback_model  # noqa: E402

APP = HERE / "agents" / "app.py"
CACHE = HERE.parent / ".cache" / "compliance"
LOGS = CACHE / "agents"
TRANSPORTS = ("stdio", "http")
TOOLS = ["add", "remove", "order", "flights_book_flight"]
"""What the agents make of the names: they do not take a dot."""


@dataclass(frozen=True)
class Check:
    """A prompt, what the model does then, what the person answers, and what must be seen."""

    prompt: str
    use: Use
    answer: Answer
    result: str
    asked: Callable[[list[dict[str, Any]]], bool]


def _nothing(asked: list[dict[str, Any]]) -> bool:
    return asked == []


def _confirm(asked: list[dict[str, Any]]) -> bool:
    match asked:
        case [{"message": "Remove the shed?", "schema": {"properties": {"confirmed": {"type": "boolean"}}}}]:
            return True
    return False


def _form(asked: list[dict[str, Any]]) -> bool:
    match asked:
        case [{"message": "Which pizza do you want?", "schema": {"properties": fields, "required": needed}}]:
            kinds = {name: field["type"] for name, field in fields.items()}
            return kinds == {"name": "string", "size": "string", "cheese": "boolean"} and (
                fields["size"]["enum"] == ["small", "large"] and sorted(needed) == ["name", "size"]
            )
    return False


def _flights(asked: list[dict[str, Any]]) -> bool:
    return len(asked) == 1 and "1. " in asked[0]["message"] and "flightId" in asked[0]["schema"]["properties"]


CHECKS = {
    "call": Check("add them", Use("add", {"a": 2, "b": 3}), None, "5", _nothing),
    "accept": Check(
        "remove it", Use("remove", {"name": "the shed"}), {"confirmed": True}, "the shed is gone", _confirm
    ),
    "decline": Check(
        "do not", Use("remove", {"name": "the shed"}), None, "the shed is still there", _confirm
    ),
    "form": Check(
        "order it",
        Use("order"),
        {"name": "Ada", "size": "large", "cheese": True},
        "A large pizza for Ada with more cheese",
        _form,
    ),
    "context": Check(
        "fly me",
        Use("flights_book_flight", {"origin": "LHR", "destination": "JFK"}),
        None,
        "The question was declined",
        _flights,
    ),
}
SCRIPT: Script = {check.prompt: [[check.use], [Say(f"Done: {name}")]] for name, check in CHECKS.items()}


@dataclass(frozen=True)
class Outcome:
    """One check of one run, and what was wrong."""

    check: str
    fault: str


def main() -> int:
    """Run what the command line asks for, and return the exit code."""
    options = _options()
    rows: list[tuple[str, str, list[Outcome]]] = []
    try:
        LOGS.mkdir(parents=True, exist_ok=True)
        with serve(APP, LOGS / "server.log") as fixture:
            servers = {"stdio": [sys.executable, str(APP), "--stdio"], "http": [fixture.url]}
            for kind in AGENTS:
                if options.agent and kind.name not in options.agent:
                    continue
                program = program_of(kind, CACHE, _say)
                for transport in options.transport:
                    _say(f"{kind.name} {kind.version} {transport}")
                    log = LOGS / f"{kind.name}-{transport}.log"
                    outcomes = list(_run(kind, program, servers[transport], log))
                    rows.append((f"{kind.name} {kind.version}", transport, outcomes))
            fixture.check()
    except (InstallError, ServerError) as error:
        _say(str(error))
        return 2
    print(_report(rows))
    return int(any(outcome.fault for *_, outcomes in rows for outcome in outcomes))


def _run(kind: type[Agent], program: Path, server: list[str], log: Path) -> Iterator[Outcome]:
    with loopback_model(SCRIPT) as model:
        played = list[str]()
        try:
            with running(kind, program, server, model.url, log) as agent:
                for name, check in CHECKS.items():
                    turn = agent.play(check.prompt, check.answer)
                    if not played:
                        yield Outcome("list", _list_fault(kind, model))
                    played.append(name)
                    yield Outcome(name, _fault(check, f"Done: {name}", turn, model))
        except AgentError as error:
            missing = [name for name in ("list", *CHECKS) if name not in played]
            yield from (Outcome(name, str(error)) for name in missing)


def _list_fault(kind: type[Agent], model: LoopbackModel) -> str:
    tools = [name.removeprefix(kind.prefix) for name in model.tools() if name.startswith(kind.prefix)]
    return "" if sorted(tools) == sorted(TOOLS) else f"has the tools {tools}, not {TOOLS}"


def _fault(check: Check, said: str, turn: Turn, model: LoopbackModel) -> str:
    if not check.asked(turn.asked):
        return f"was asked {turn.asked}"
    if not model.results or check.result not in model.results[-1]:
        return f"the model was told {model.results}, not {check.result!r}"
    return "" if turn.said == said else f"ended with {turn.said!r}"


def _report(rows: list[tuple[str, str, list[Outcome]]]) -> str:
    checks = ["list", *CHECKS]
    width = max(len(name) for name, *_ in rows)
    lines = [f"{'agent':<{width}}  {'over':<5}" + "".join(f"{check:>9}" for check in checks)]
    faults = list[str]()
    for name, transport, outcomes in rows:
        found = {outcome.check: outcome.fault for outcome in outcomes}
        cells = ["FAILED" if found[check] else "ok" for check in checks]
        lines.append(f"{name:<{width}}  {transport:<5}" + "".join(f"{cell:>9}" for cell in cells))
        faults += [f"  {name} {transport}: {check}\n    {fault}" for check, fault in found.items() if fault]
    if faults:
        lines += ["", "Failed:", *faults]
    passed = sum(not outcome.fault for *_, outcomes in rows for outcome in outcomes)
    return "\n".join([*lines, "", f"{len(rows)} runs, {passed} passed, {len(faults)} failed"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agent", action="append", choices=[kind.name for kind in AGENTS])
    parser.add_argument("--transport", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"compliance: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

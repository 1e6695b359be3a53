"""Which suites there are, which scenarios they have, and one run of them.

A suite is a version of the conformance package with a selection of its scenarios for servers or for clients.
The package's own totals leave out WARNING and SKIPPED, so what counts here is the `checks.json` that it
writes for each scenario. For clients it would also overlook exit codes and time-outs if it ran several
scenarios: here it runs them one by one.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from harness.install import Tool

OLD = "0.1.16"
NEW = "0.2.0-alpha.12"
REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
SCENARIO_SECONDS = 90  # the newer package gives up on its own after 30 s, the older one never
NOT_PLAYED = 77
"""The exit code by which a client says that a scenario is about something that it does not have."""
TIMED = ("sse-retry",)
"""Scenarios in which the package measures milliseconds: on a busy machine, one failure tells nothing."""

_LISTED = re.compile(r"^\s+- (?P<name>\S+)(?: \[(?P<note>[^\]]*)\])?$")
_EXIT_CODE = re.compile(r"^Client exited with code (?P<code>-?\d+)$", re.MULTILINE)
_TIMED_OUT = re.compile(r"^Client timed out after \d+ms$", re.MULTILINE)
_RESULT_FOLDER = re.compile(r"^server-(?P<name>.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")
_RUNNING = re.compile(r"^=== Running scenario: (?P<name>\S+) ===$")


class SuiteError(Exception):
    """The conformance package did not do what its command line says."""


class Select(Enum):
    """How a suite chooses its scenarios."""

    REVISION = "every scenario of a protocol revision"
    REQUIREMENTS = "the frozen requirement set of a revision, and what it runs without scoring"
    EXTENSIONS = "the scenarios of protocol extensions"
    OTHERS = "the scenarios of extensions, drafts and other revisions"


class Side(Enum):
    """What is tested."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True)
class Suite:
    """A version of the conformance package and a selection of its scenarios."""

    name: str
    version: str
    select: Select
    revision: str
    side: Side = Side.SERVER


SUITES = (
    Suite("2025-06-18@0.1.16", OLD, Select.REVISION, "2025-06-18"),
    Suite("2025-11-25@0.1.16", OLD, Select.REVISION, "2025-11-25"),
    Suite("2025-06-18", NEW, Select.REVISION, "2025-06-18"),
    Suite("2025-11-25", NEW, Select.REVISION, "2025-11-25"),
    Suite("2026-07-28", NEW, Select.REVISION, "2026-07-28"),
    Suite("extensions", NEW, Select.EXTENSIONS, "2026-07-28"),
    Suite("requirements-2025-11-25", NEW, Select.REQUIREMENTS, "2025-11-25"),
    Suite("requirements-2026-07-28", NEW, Select.REQUIREMENTS, "2026-07-28"),
    Suite("client-2025-06-18@0.1.16", OLD, Select.REVISION, "2025-06-18", Side.CLIENT),
    Suite("client-2025-11-25@0.1.16", OLD, Select.REVISION, "2025-11-25", Side.CLIENT),
    Suite("client-others@0.1.16", OLD, Select.OTHERS, "", Side.CLIENT),
    Suite("client-2025-06-18", NEW, Select.REVISION, "2025-06-18", Side.CLIENT),
    Suite("client-2025-11-25", NEW, Select.REVISION, "2025-11-25", Side.CLIENT),
    Suite("client-2026-07-28", NEW, Select.REVISION, "2026-07-28", Side.CLIENT),
    Suite("client-others", NEW, Select.OTHERS, "", Side.CLIENT),
    Suite("client-requirements-2025-11-25", NEW, Select.REQUIREMENTS, "2025-11-25", Side.CLIENT),
    Suite("client-requirements-2026-07-28", NEW, Select.REQUIREMENTS, "2026-07-28", Side.CLIENT),
)


@dataclass(frozen=True)
class Check:
    """One check of one scenario."""

    id: str
    status: str
    text: str


@dataclass(frozen=True)
class Result:
    """What one scenario said."""

    suite: str
    scenario: str
    checks: tuple[Check, ...]

    def count(self, status: str) -> int:
        """How many checks ended so."""
        return sum(check.status == status for check in self.checks)


def scenarios(tool: Tool, suite: Suite) -> list[str]:
    """The names of the scenarios of a suite, as the package lists them."""
    match suite.select:
        case Select.REVISION:
            listed = _list(tool, suite.side, "--spec-version", suite.revision)
            names = [name for name, _ in listed]
        case Select.REQUIREMENTS:
            listed = _list(tool, suite.side, "--requirements", suite.revision)
            names = _part(listed, suite.side)
        case Select.EXTENSIONS:
            names = [name for name, note in _list(tool, suite.side) if note == "extension"]
        case Select.OTHERS:
            listed = _list(tool, suite.side)
            names = [name for name, note in listed if not any(one in note for one in REVISIONS)]
    names = [name for name in names if name]
    if not names:
        raise SuiteError(f"conformance {tool.version} lists no scenario for {suite.name}")
    return names


def run_scenario(tool: Tool, suite: Suite, scenario: str, url: str, folder: Path) -> Result:
    """Run one scenario for servers in a process of its own."""
    arguments = _arguments(suite, scenario, folder)
    command = tool.command("server", "--url", url, *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SCENARIO_SECONDS)
    except subprocess.TimeoutExpired:
        return _broken(suite, scenario, f"no end within {SCENARIO_SECONDS} s")
    found = _read(suite, folder)
    if scenario in found:
        return found[scenario]
    said = (done.stderr or done.stdout).strip()[-500:]
    return _broken(suite, scenario, f"no checks; exit code {done.returncode}; {said}")


def run_client_scenario(tool: Tool, suite: Suite, scenario: str, client: list[str], folder: Path) -> Result:
    """Run one scenario for clients; `client` is the command that plays it."""
    result = _run_client(tool, suite, scenario, client, folder / scenario)
    if scenario in TIMED and result.count("SUCCESS") < len(result.checks) - result.count("INFO"):
        result = _run_client(tool, suite, scenario, client, folder / f"{scenario}-again")
    return result


def _run_client(tool: Tool, suite: Suite, scenario: str, client: list[str], folder: Path) -> Result:
    # The package splits the command at spaces and hands it to a shell, which puts it together again.
    command = tool.command("client", "--command", shlex.join(client), *_arguments(suite, scenario, folder))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SCENARIO_SECONDS)
    except subprocess.TimeoutExpired:
        return _broken(suite, scenario, f"no end within {SCENARIO_SECONDS} s")
    said = done.stderr.strip()
    checks = [_check(raw) for path in folder.rglob("checks.json") for raw in json.loads(path.read_text())]
    if ended := _EXIT_CODE.search(said):
        if int(ended["code"]) == NOT_PLAYED:
            skipped = Check("(client)", "SKIPPED", "the client does not play this scenario")
            return Result(suite.name, scenario, (skipped,))
        errors = "".join(path.read_text() for path in folder.rglob("stderr.txt")).strip()
        text = f"exit code {ended['code']}: {errors.rpartition(chr(10))[2]}"
        checks.append(Check("(client)", "FAILURE", text))
    if _TIMED_OUT.search(said):
        checks.append(Check("(client)", "FAILURE", "it did not end in time"))
    if not any(check.status != "INFO" for check in checks):
        return _broken(suite, scenario, f"no checks; exit code {done.returncode}; {said[-500:]}")
    if done.returncode != 0 and not any(check.status in ("FAILURE", "WARNING") for check in checks):
        checks.append(Check("(harness)", "FAILURE", f"exit code {done.returncode} without a failed check"))
    return Result(suite.name, scenario, tuple(checks))


def _arguments(suite: Suite, scenario: str, folder: Path) -> list[str]:
    arguments = ["--scenario", scenario, "--output-dir", str(folder)]
    if suite.revision and suite.select is not Select.EXTENSIONS:  # others have none; the package knows them
        arguments += ["--spec-version", suite.revision]
    if suite.select is Select.REQUIREMENTS:  # a set also names scenarios outside the revision's own list
        arguments += ["--force"]
    return arguments


def run_requirements(
    tool: Tool, suite: Suite, names: list[str], url: str, folder: Path, progress: Callable[[str], None]
) -> list[Result]:
    """Run a whole requirement set for servers by the package's own means, and miss none of the names."""
    command = tool.command(
        "server", "--url", url, "--requirements", suite.revision, "--output-dir", str(folder)
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            if running := _RUNNING.match(line.rstrip()):
                progress(running["name"])
    found = _read(suite, folder)
    missing = [_broken(suite, name, "in the set, but not run") for name in names if name not in found]
    results = [*found.values(), *missing]
    if process.returncode != 0 and not any(result.count("FAILURE") for result in results):
        results.append(_broken(suite, "(the set)", f"exit code {process.returncode} without a failed check"))
    return results


def _list(tool: Tool, side: Side, *arguments: str) -> list[tuple[str, str]]:
    command = tool.command("list", f"--{side.value}", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SCENARIO_SECONDS)
    if done.returncode != 0:
        raise SuiteError(f"conformance {tool.version} list failed:\n{done.stderr.strip()}")
    listed = []
    for line in done.stdout.splitlines():
        if line.startswith("Server scenarios"):
            listed.append(("", Side.SERVER.value))
        elif line.startswith("Client scenarios"):
            listed.append(("", Side.CLIENT.value))
        elif line.startswith("Run and reported"):
            listed.append(("", "not scored"))
        elif entry := _LISTED.match(line):
            listed.append((entry["name"], entry["note"] or ""))
    return listed


def _part(listed: list[tuple[str, str]], side: Side) -> list[str]:
    """Of a requirement set: the scenarios of one side, then those that it runs but does not score."""
    names, part = [], ""
    for name, note in listed:
        if not name:
            part = note
        elif part == side.value or (part == "not scored" and note == side.value):
            names.append(name)
    return names


def _read(suite: Suite, folder: Path) -> dict[str, Result]:
    results = {}
    for path in sorted(folder.glob("server-*/checks.json"), key=lambda path: path.stat().st_mtime_ns):
        if named := _RESULT_FOLDER.match(path.parent.name):
            checks = tuple(_check(raw) for raw in json.loads(path.read_text()))
            if checks:
                results[named["name"]] = Result(suite.name, named["name"], checks)
    return results


def _check(raw: dict[str, object]) -> Check:
    text = raw.get("errorMessage") or raw.get("description") or ""
    details = raw.get("details")
    if not raw.get("errorMessage") and isinstance(details, dict):
        text = details.get("message") or details.get("note") or text
    return Check(str(raw.get("id")), str(raw.get("status")), str(text))


def _broken(suite: Suite, scenario: str, why: str) -> Result:
    return Result(suite.name, scenario, (Check("(harness)", "FAILURE", why),))

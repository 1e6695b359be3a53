"""Which suites there are, which scenarios they have, and one run of them.

A suite is a version of the conformance package with a selection of its scenarios. The package's own totals
leave out WARNING and SKIPPED, so what counts here is the `checks.json` that it writes for each scenario.
"""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from harness.install import Tool

OLD = "0.1.16"
NEW = "0.2.0-alpha.12"
SCENARIO_SECONDS = 90  # the newer package gives up on its own after 30 s, the older one never

_LISTED = re.compile(r"^\s+- (?P<name>\S+)(?: \[(?P<note>[^\]]*)\])?$")
_RESULT_FOLDER = re.compile(r"^server-(?P<name>.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")
_RUNNING = re.compile(r"^=== Running scenario: (?P<name>\S+) ===$")


class SuiteError(Exception):
    """The conformance package did not do what its command line says."""


class Select(Enum):
    """How a suite chooses its scenarios."""

    REVISION = "every scenario of a protocol revision"
    REQUIREMENTS = "the frozen requirement set of a revision, and what it runs without scoring"
    EXTENSIONS = "the scenarios of protocol extensions"


@dataclass(frozen=True)
class Suite:
    """A version of the conformance package and a selection of its scenarios."""

    name: str
    version: str
    select: Select
    revision: str


SUITES = (
    Suite("2025-06-18@0.1.16", OLD, Select.REVISION, "2025-06-18"),
    Suite("2025-11-25@0.1.16", OLD, Select.REVISION, "2025-11-25"),
    Suite("2025-06-18", NEW, Select.REVISION, "2025-06-18"),
    Suite("2025-11-25", NEW, Select.REVISION, "2025-11-25"),
    Suite("2026-07-28", NEW, Select.REVISION, "2026-07-28"),
    Suite("extensions", NEW, Select.EXTENSIONS, "2026-07-28"),
    Suite("requirements-2025-11-25", NEW, Select.REQUIREMENTS, "2025-11-25"),
    Suite("requirements-2026-07-28", NEW, Select.REQUIREMENTS, "2026-07-28"),
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
    """The names of the server scenarios of a suite, as the package lists them."""
    match suite.select:
        case Select.REVISION:
            listed = _list(tool, "--spec-version", suite.revision)
            names = [name for name, _ in listed]
        case Select.REQUIREMENTS:
            listed = _list(tool, "--requirements", suite.revision)
            names = _server_part(listed)
        case Select.EXTENSIONS:
            names = [name for name, note in _list(tool) if note == "extension"]
    if not names:
        raise SuiteError(f"conformance {tool.version} lists no scenario for {suite.name}")
    return names


def run_scenario(tool: Tool, suite: Suite, scenario: str, url: str, folder: Path) -> Result:
    """Run one scenario in a process of its own."""
    arguments = ["--scenario", scenario]
    if suite.select is not Select.EXTENSIONS:  # these have no revision; the package knows their wire
        arguments += ["--spec-version", suite.revision]
    if suite.select is Select.REQUIREMENTS:  # a set also names scenarios outside the revision's own list
        arguments += ["--force"]
    command = tool.command("server", "--url", url, *arguments, "--output-dir", str(folder))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SCENARIO_SECONDS)
    except subprocess.TimeoutExpired:
        return _broken(suite, scenario, f"no end within {SCENARIO_SECONDS} s")
    found = _read(suite, folder)
    if scenario in found:
        return found[scenario]
    said = (done.stderr or done.stdout).strip()[-500:]
    return _broken(suite, scenario, f"no checks; exit code {done.returncode}; {said}")


def run_requirements(
    tool: Tool, suite: Suite, names: list[str], url: str, folder: Path, progress: Callable[[str], None]
) -> list[Result]:
    """Run a whole requirement set by the package's own `--requirements`, and miss none of the names."""
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


def _list(tool: Tool, *arguments: str) -> list[tuple[str, str]]:
    command = tool.command("list", "--server", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SCENARIO_SECONDS)
    if done.returncode != 0:
        raise SuiteError(f"conformance {tool.version} list failed:\n{done.stderr.strip()}")
    listed = []
    for line in done.stdout.splitlines():
        if line.startswith("Client scenarios"):
            listed.append(("", "client part"))
        elif line.startswith("Run and reported"):
            listed.append(("", "not scored"))
        elif entry := _LISTED.match(line):
            listed.append((entry["name"], entry["note"] or ""))
    return listed


def _server_part(listed: list[tuple[str, str]]) -> list[str]:
    """Of a requirement set: its server scenarios, then those that it runs but does not score."""
    names, part = [], "server"
    for name, note in listed:
        if not name:
            part = note
        elif part == "server" or (part == "not scored" and note == "server"):
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

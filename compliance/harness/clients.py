"""Which official clients there are, one run of one of them, and what it must see.

The scripts in `compliance/clients` report what their client saw, a JSON line for each check; what is right is
said here, once for all of them.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from harness.booking import SAMPLED, Booking, fault
from harness.install import node, npm_package, python_package

TRANSPORTS = ("stdio", "http", "sse")
MODES = ("legacy", "modern", "auto")
CHECKS = (
    "connect",
    "list",
    "call",
    "progress",
    "accept",
    "decline",
    "cancel",
    "sample",
    "book",
    "machine",
    "values",
    "asks",
)
RUN_SECONDS = 120

TWENTY = json.loads((Path(__file__).parents[2] / "examples" / "twenty.json").read_text())
"""A call of each tool of `examples/twenty.py`, and what it gives."""

TOOLS = ["add", "count", "order", "summarize", "flights.book_flight", "machines.greeting"]
RESPOND_TOOL = "_plexus_respond"
SEEN: dict[str, Any] = {
    "call": {"total": 5},
    "progress": [25, 50, 75, 100],
    "accept": {
        "asked": ["confirmed", "text", "choice"],
        "text": "A large pizza for Ada",
        "failed": False,
    },
    "decline": {"asked": ["confirmed", "text"], "text": "The question was declined", "failed": True},
    "cancel": {"asked": ["confirmed", "text"], "text": "The question was cancelled", "failed": True},
    "sample": f"In short: {SAMPLED}",
    "values": {one["tool"]: one["gives"] for one in TWENTY if "answers" not in one},
    "asks": {one["tool"]: one["gives"] for one in TWENTY if "answers" in one},
    "machine": {
        "asked": ["confirmed", "text"],
        "event": {"greeting": "Hello, Ada", "id": ["greet", "end"]},
    },
}


class Verdict(Enum):
    """What a check came to."""

    PASSED = "passed"
    CANNOT = "cannot"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """One check of one run, and the reason if it did not pass."""

    check: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Client:
    """A published client, and the script that drives it."""

    name: str
    package: str
    version: str
    script: str
    overrides: tuple[str, ...] = ()
    transports: tuple[str, ...] = ("stdio", "http")
    cannot: Mapping[str, str] = field(default_factory=dict)
    """The modes that it does not have, and why."""
    hidden: str = ""
    """Where its handler of questions does not see their context: inSchema or inMessage."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def command(self, scripts: Path, folder: Path, say: Callable[[str], None]) -> list[str]:
        """Install it if it is not there yet, and return the command line that runs the script."""
        if self.script.endswith(".py"):
            python = python_package(folder, self.package, self.version, self.overrides, say)
            return [str(python), str(scripts / self.script)]
        prefix = npm_package(folder, self.package, self.version, say)
        for module in scripts.glob("*.mjs"):  # Node looks for packages beside the script
            shutil.copy(module, prefix)
        return [str(node(folder, say)), str(prefix / self.script)]


_LEGACY_ONLY = "knows 2025-11-25 and older: no modern era, and nothing to choose from"

CLIENTS = (
    Client("mcp", "mcp", "2.3.0", "python_mcp.py", transports=TRANSPORTS),
    # It wants a certifi that is newer than what some indexes have. Not over HTTP+SSE, where it takes auto
    # for legacy without a look at the server.
    Client("fastmcp", "fastmcp", "4.1.4", "python_fastmcp.py", overrides=("certifi",)),
    Client(
        "ts-client", "@modelcontextprotocol/client", "2.4.0", "typescript_client.mjs", transports=TRANSPORTS
    ),
    Client(
        "ts-sdk",
        "@modelcontextprotocol/sdk",
        "1.32.2",
        "typescript_sdk.mjs",
        transports=TRANSPORTS,
        cannot={"modern": _LEGACY_ONLY, "auto": _LEGACY_ONLY},
        hidden="inSchema",  # it takes from a schema whatever it does not know
    ),
    Client("inspector", "@modelcontextprotocol/inspector", "2.12.0", "inspector.mjs"),
    Client("mcpdo", "@modelcontextprotocol/inspector", "2.12.0", "mcpdo.mjs"),
)


def run_client(
    command: Sequence[str],
    mode: str,
    server: Sequence[str],
    log: Path,
    chat: Booking,
    checks: Sequence[str] = CHECKS,
) -> list[Outcome]:
    """Run a script in a mode against a server; what it says beside its checks goes to the log.

    `chat` is the booking that this server's chat has shown.
    """
    late = ""
    with log.open("w") as errors:
        try:
            done = subprocess.run(
                [*command, mode, *server],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "MIDCALL_CHECKS": " ".join(checks), "MIDCALL_TWENTY": json.dumps(TWENTY)},
                timeout=RUN_SECONDS,
                check=False,
            )
            written, code = done.stdout, done.returncode
            late = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired as expired:
            written, late = expired.stdout or b"", f"no end within {RUN_SECONDS} s"
    log.with_suffix(".jsonl").write_bytes(written)
    outcomes = judge(written.decode(), mode, chat, checks)
    if late:
        said = log.read_text(errors="replace").strip()[-500:]
        outcomes = [_with_reason(outcome, f"{late}; {said}") for outcome in outcomes]
        if all(outcome.verdict is not Verdict.FAILED for outcome in outcomes):
            outcomes[-1] = Outcome(outcomes[-1].check, Verdict.FAILED, f"after all checks: {late}; {said}")
    return outcomes


def judge(written: str, mode: str, chat: Booking, checks: Sequence[str] = CHECKS) -> list[Outcome]:
    """What came of each check, from the lines that a script has written."""
    lines = {line["check"]: line for line in map(json.loads, written.splitlines())}

    def wrong(check: str, saw: Any) -> str:
        if check == "book":  # a client without a model gets no tip
            return fault(saw, chat, "" if "cannot" in lines.get("sample", {}) else SAMPLED)
        expected = _expected(check, mode, lines)
        if check == "list":
            saw, expected = sorted(saw), sorted(expected)
        return "" if saw == expected else f"saw {saw!r}, not {expected!r}"

    return [_outcome(check, lines.get(check, {}), wrong) for check in checks]


def _outcome(check: str, line: Mapping[str, Any], wrong: Callable[[str, Any], str]) -> Outcome:
    if "cannot" in line:
        return Outcome(check, Verdict.CANNOT, line["cannot"])
    if "failed" in line:
        return Outcome(check, Verdict.FAILED, line["failed"])
    if "saw" not in line:
        return Outcome(check, Verdict.FAILED, _UNREPORTED)
    reason = wrong(check, line["saw"])
    return Outcome(check, Verdict.FAILED, reason) if reason else Outcome(check, Verdict.PASSED)


_UNREPORTED = "not reported"


def _with_reason(outcome: Outcome, reason: str) -> Outcome:
    if outcome.reason != _UNREPORTED:
        return outcome
    return Outcome(outcome.check, outcome.verdict, f"{_UNREPORTED}: {reason}")


def _expected(check: str, mode: str, lines: Mapping[str, Mapping[str, Any]]) -> Any:
    if check == "connect":
        return "2025-11-25" if mode == "legacy" else "2026-07-28"
    if check == "list":  # a legacy client that cannot be asked can answer by a tool
        known = sorted([*TOOLS, *(f"twenty.{one['tool']}" for one in TWENTY)])
        unasked = mode == "legacy" and "cannot" in lines.get("accept", {})
        return [*known, RESPOND_TOOL] if unasked else known
    return SEEN[check]

"""What is measured: how each server is installed and started, and what it can do."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compliance.harness.install import node, npm_package, python_package

from bench.stdio import FLOOR, HERE

SERVERS = Path(__file__).parent / "servers"
CACHE = HERE.parent / ".cache" / "bench"
MIDCALL = [sys.executable, "-m", "midcall", "serve", f"{HERE / 'app.py'}:hub", "--log-level", "error"]
NODE_ADAPTER = "@modelcontextprotocol/node@2.1.2"
"""What server 2.4.0 needs to answer requests of Node's own HTTP server."""


@dataclass(frozen=True)
class Contender:
    """A server, and the names of its tools."""

    name: str
    stdio: Sequence[str]
    http: Sequence[str]
    """The command, to which the port is added."""
    once: str = "once"
    ask: str = "ask"
    """What asks in the middle of a legacy call."""
    ask_modern: str | None = "ask_modern"
    """What asks by an input-required result; nothing if the server has no modern era."""
    is_floor: bool = False

    def on_port(self, port: int) -> list[str]:
        return [*self.http, str(port)]

    @property
    def era(self) -> str:
        return "legacy session" if self.ask_modern is None else "modern"


def contenders(say: Callable[[str], None], postgres: str | None = None) -> list[Contender]:
    """All of them, ready to be started; `postgres` is the URL of a PostgreSQL to keep calls in."""
    runtime = str(node(CACHE, say))
    sdk1 = npm_package(CACHE, "@modelcontextprotocol/sdk", "1.32.2", say)
    sdk2 = npm_package(CACHE, "@modelcontextprotocol/server", "2.4.0", say)
    _add_adapter(sdk2, say)
    python_sdk = [
        str(python_package(CACHE, "mcp", "2.3.0", (), say)),
        "-E",  # nothing of our own environment
        str(SERVERS / "python_mcp.py"),
    ]
    fastmcp = [  # it wants a certifi that is newer than what some indexes have
        str(python_package(CACHE, "fastmcp", "4.1.4", ("certifi",), say)),
        "-E",
        str(SERVERS / "python_fastmcp.py"),
    ]
    typescript1 = [runtime, _beside(sdk1, "typescript_sdk1.mjs")]
    typescript2 = [runtime, _beside(sdk2, "typescript_sdk2.mjs")]
    constant = [sys.executable, str(SERVERS / "constant.py")]
    return [
        Contender("floor", FLOOR, constant, is_floor=True),
        _midcall("midcall", "memory"),
        _midcall("midcall on SQLite", str(Path(tempfile.mkdtemp(prefix="midcall-bench-")) / "journal.db")),
        *([_midcall("midcall on PostgreSQL", postgres)] if postgres else []),
        Contender("mcp 2.3.0", python_sdk, python_sdk),
        Contender("fastmcp 4.1.4", fastmcp, fastmcp),
        Contender("TypeScript sdk 1.32.2", typescript1, typescript1, ask_modern=None),
        Contender("TypeScript server 2.4.0", typescript2, typescript2),
    ]


def _midcall(name: str, journal: str) -> Contender:
    """midcall with a journal: only the one in memory is lost with the process, as all that the peers have."""
    command = [*MIDCALL, "--journal", journal]
    return Contender(
        name,
        [*command, "--stdio", "--mcp-only"],
        [*command, "--port"],
        once="bench.once",
        ask="bench.ask",
        ask_modern="bench.ask",
    )


def _beside(prefix: Path, script: str) -> str:
    """The script, where Node finds the packages that it imports."""
    return shutil.copy(SERVERS / script, prefix / script)


def _add_adapter(prefix: Path, say: Callable[[str], None]) -> None:
    if (prefix / "node_modules" / "@modelcontextprotocol" / "node").exists():
        return
    say(f"installing {NODE_ADAPTER}")
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(["npm", "install", "--prefix", str(prefix), *quiet, NODE_ADAPTER], check=True)

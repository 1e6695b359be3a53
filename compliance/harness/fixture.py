"""Starts a server on a free port, and ends it."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60
PORT = "{port}"
"""Where the port stands in a command."""
LOG_LINES = 20


class ServerError(Exception):
    """The server did not start, or ended while it was tested."""


@dataclass(frozen=True)
class Fixture:
    """A server under test: one that we started, or a running one that somebody else looks after."""

    url: str
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    def check(self) -> None:
        """Raise when the server that we started is no longer there."""
        if self.process is not None and self.process.poll() is not None:
            raise ServerError(f"the server ended with {self.process.returncode}:\n{self._tail()}")

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log else []
        return "\n".join(f"  {line}" for line in lines[-LOG_LINES:])


def serve(script: Path, log: Path) -> AbstractContextManager[Fixture]:
    """Run `python SCRIPT --port N` and wait until it listens; its output goes to the log."""
    return started([sys.executable, str(script), "--port", PORT], log)


@contextmanager
def started(command: Sequence[str], log: Path, path: str = "/mcp") -> Iterator[Fixture]:
    """Run a command, in which `PORT` stands for a free port, and wait until it listens."""
    port = _free_port()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [word.replace(PORT, str(port)) for word in command], stdout=output, stderr=subprocess.STDOUT
        )
        fixture = Fixture(f"http://127.0.0.1:{port}{path}", process, log)
        try:
            _wait_until_it_listens(fixture, port)
            yield fixture
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_it_listens(fixture: Fixture, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        fixture.check()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise ServerError(f"the server did not listen on port {port} within {START_SECONDS} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

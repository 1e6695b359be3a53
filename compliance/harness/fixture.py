"""Starts the fixture server on a free port, and ends it."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 20
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


@contextmanager
def serve(script: Path, log: Path) -> Iterator[Fixture]:
    """Run `python SCRIPT --port N` and wait until it listens; its output goes to the log."""
    port = _free_port()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(script), "--port", str(port)], stdout=output, stderr=subprocess.STDOUT
        )
        fixture = Fixture(f"http://127.0.0.1:{port}/mcp", process, log)
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

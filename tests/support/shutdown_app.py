"""A hub with calls that take a while, `shutdown_app:hub`, and a server of it that is told to stop.

What is not told how long it takes ends when there is the file that `ENOUGH` names.
"""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from driving import LIMIT
from mcp_peers import HttpClient
from midcall import Ask, Hub, method, prompt
from midcall.transports import connection_limits
from peers import close_pipes, command, environment, free_port, wait_for

LATER = 5 * LIMIT
"""Seconds that nothing here waits for: whoever does fails."""


if "ENOUGH" in os.environ:  # it is served
    connection_limits.DEFAULTS = connection_limits.Limits(head_time=LATER)


def is_over(began: float, seconds: float | None) -> bool:
    if seconds is None:
        return Path(os.environ["ENOUGH"]).exists()
    return time.monotonic() >= began + seconds


async def a_while(seconds: float | None) -> None:
    began = time.monotonic()
    while not is_over(began, seconds):
        await asyncio.sleep(0.01)


class Work:
    """What may be running."""

    @method
    async def slow(self, seconds: float | None = None) -> str:
        """Take a while."""
        await a_while(seconds)
        return "done"

    @method
    def blocking(self, seconds: float | None = None) -> str:
        """Take a while in a worker thread, which nothing can stop."""
        began = time.monotonic()
        while not is_over(began, seconds):
            time.sleep(0.01)
        return "done"

    @method
    async def telling(self, ask: Ask, seconds: float | None = None) -> str:
        """Say something, and take a while."""
        ask.progress("on it", 1)
        await a_while(seconds)
        return "done"

    @method
    async def streaming(self, seconds: float | None = None) -> AsyncIterator[str]:
        """Give something, and take a while."""
        yield "first"
        await a_while(seconds)
        yield "second"

    @method
    async def asking(self, ask: Ask) -> str:
        """Wait for a person."""
        return await ask.prompt("Who?", timeout=LATER)

    @method
    async def thinking(self, ask: Ask) -> str:
        """Ask, and take a while to think about it."""
        who = await ask.prompt("Who?", timeout=LATER)
        ask.progress("thinking", 50)
        await a_while(None)
        return f"It is {who}"

    @method
    async def large(self) -> str:
        """Give more than the buffers of a connection hold."""
        return "x" * 12_000_000

    @prompt
    async def letter(self) -> str:
        """Take a while to fill in."""
        await a_while(None)
        return "Dear all"


hub = Hub().register(Work())


class Server:
    """A server in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, enough: Path) -> None:
        self._process = process
        self.port = port
        self.enough = enough
        """The file at which what takes a while ends."""
        self.log = ""

    def client(self, revision: str, capabilities: Any = None) -> HttpClient:
        return HttpClient(self.port, revision, capabilities)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    async def ends(self) -> None:
        """It ends by itself, with code 0, and has nothing to complain of."""
        _, errors = await asyncio.wait_for(self._process.communicate(), LIMIT)
        self.log = errors.decode()
        assert self._process.returncode == 0, self.log
        assert "Traceback" not in self.log, self.log
        assert "ERROR" not in self.log, self.log

    async def turns_away(self) -> None:
        """Wait until nobody new is let in: it has heard that it is to stop."""
        async with asyncio.timeout(LIMIT):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    return
                writer.close()
                await asyncio.sleep(0.01)

    async def busy(self, count: int = 1) -> None:
        """Wait until so many calls run."""
        async with asyncio.timeout(LIMIT):
            while True:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                body = (await reader.read()).partition(b"\r\n\r\n")[2]
                writer.close()
                await writer.wait_closed()
                if json.loads(body)["calls"] == count:
                    return
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(*options: str) -> AsyncIterator[Server]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        enough = Path(folder, "enough")
        process = await asyncio.create_subprocess_exec(
            *command("serve", "shutdown_app:hub", "--port", str(port), *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment(), "ENOUGH": str(enough)},
        )
        try:
            await asyncio.to_thread(wait_for, f"http://127.0.0.1:{port}/health")
            yield Server(process, port, enough)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
            close_pipes(process)

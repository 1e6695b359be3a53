"""Real peers for the tests: a server in a process of its own, and a raw line to it."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, AnyStr, Generic, Protocol

from websockets.asyncio.client import ClientConnection, connect

from driving import LIMIT
from ports import free_port

HERE = Path(__file__).parent
LARGE = 128 * 1024 * 1024


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "midcall", *arguments]


def environment() -> dict[str, str]:
    """For servers: the applications of this folder are found, and what the tests themselves are run with."""
    places = (str(HERE), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


class Wire(Protocol):
    """Whole messages, either way."""

    async def send(self, data: bytes) -> None: ...
    async def receive(self) -> bytes: ...


class Peer:
    """A client that speaks JSON-RPC by hand, over any wire."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._ids = itertools.count(1)
        self._others: list[Any] = []  # what came while something else was awaited

    async def send(self, data: bytes) -> None:
        await self.wire.send(data)

    async def receive(self) -> Any:
        """The next message that nobody has waited for yet."""
        if self._others:
            return self._others.pop(0)
        async with asyncio.timeout(LIMIT):
            return json.loads(await self.wire.receive())

    async def request(self, method: str, params: Any = None) -> Any:
        """Send a request; give its response."""
        id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        await self.send(json.dumps(message | ({} if params is None else {"params": params})).encode())
        return await self.response(id)

    async def response(self, id: Any) -> Any:
        return await self._next(
            lambda message: isinstance(message, dict) and "method" not in message and message.get("id") == id
        )

    async def _next(self, wanted: Callable[[Any], bool]) -> Any:
        """The next message of a kind, which may have come while something else was awaited."""
        for place, message in enumerate(self._others):
            if wanted(message):
                return self._others.pop(place)
        while True:
            async with asyncio.timeout(LIMIT):
                message = json.loads(await self.wire.receive())
            if wanted(message):
                return message
            self._others.append(message)

    async def result(self, method: str, params: Any = None) -> Any:
        response = await self.request(method, params)
        assert "error" not in response, response
        return response["result"]

    async def item(self, subscription: str, type: str) -> Any:
        """The next item of this type of a subscription."""
        return (await self._next(lambda message: _is_item(message, subscription, type)))["params"]["result"]

    async def items(self, subscription: str) -> list[Any]:
        """All items of a subscription from now to its end."""
        found = []
        while True:
            message = await self.receive()
            if (
                message.get("method") == "plexus_subscription"
                and message["params"]["subscription"] == subscription
            ):
                found.append(message["params"]["result"])
                if found[-1]["type"] == "done":
                    return found

    async def settled(self) -> Any:
        """The server's state, once nothing is left running; fails after a while."""
        end = time.monotonic() + LIMIT
        while True:
            state = await self.result("probe.state")
            if (state["calls"], state["questions"], state["tasks"]) == (0, 0, 0):
                return state
            assert time.monotonic() < end, state
            await asyncio.sleep(0.02)


def _is_item(message: Any, subscription: str, type: str) -> bool:
    return (
        isinstance(message, dict)
        and message.get("method") == "plexus_subscription"
        and message["params"]["subscription"] == subscription
        and message["params"]["result"]["type"] == type
    )


class StdioWire:
    """The pipes of a server process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data + b"\n")
        await self.process.stdin.drain()

    async def receive(self) -> bytes:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, "the server closed its output"
        return line


class SocketWire:
    """A WebSocket; bytes that are no UTF-8 go in a binary frame, as a text frame cannot carry them."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, data: bytes) -> None:
        try:
            await self.socket.send(data.decode())
        except UnicodeDecodeError:
            await self.socket.send(data)

    async def receive(self) -> bytes:
        message = await self.socket.recv()
        return message.encode() if isinstance(message, str) else message


@asynccontextmanager
async def stdio_peer(target: str = "lines_app:hub", *flags: str) -> AsyncIterator[Peer]:
    """A server on stdio, in a process of its own; it must end cleanly when its input does."""
    process = await asyncio.create_subprocess_exec(
        *command("serve", target, "--stdio", *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        limit=LARGE,
    )
    try:
        yield Peer(StdioWire(process))
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(LIMIT):
            await process.wait()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        close_pipes(process)


@asynccontextmanager
async def http_server(
    target: str = "lines_app:hub", port: int = 0, options: Sequence[str] = ()
) -> AsyncIterator[str]:
    """A server over HTTP in a process of its own; gives the URL of its WebSocket."""
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        *command("serve", target, "--port", str(port), "--log-level", "warning", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        await asyncio.to_thread(wait_for, f"http://127.0.0.1:{port}/health")
        yield f"ws://127.0.0.1:{port}/ws"
    finally:
        if process.returncode is None:
            process.terminate()
        output, errors = await process.communicate()
        close_pipes(process)
    assert process.returncode == 0, errors.decode()
    assert output == b"", "standard output is not for logs"


@asynccontextmanager
async def websocket_peer(target: str = "lines_app:hub") -> AsyncIterator[Peer]:
    """A raw WebSocket to a server in a process of its own."""
    async with http_server(target) as url, socket_peer(url) as peer:
        yield peer


@asynccontextmanager
async def socket_peer(url: str) -> AsyncIterator[Peer]:
    """A raw WebSocket to a server that is there."""
    async with connect(url, max_size=None) as socket:
        yield Peer(SocketWire(socket))


class Said(Generic[AnyStr]):
    """What a process says while it runs: from a pipe that nobody reads, it would stop when that is full."""

    def __init__(self, process: "subprocess.Popen[AnyStr]") -> None:
        self._process = process
        self._said: tuple[AnyStr, AnyStr] | None = None
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def all(self) -> tuple[AnyStr, AnyStr]:
        """Its output and its errors, when it and all that it has started have ended."""
        self._reading.join(LIMIT)
        assert self._said is not None, "it has not ended"
        return self._said

    def _read(self) -> None:
        self._said = self._process.communicate()


def wait_for(url: str) -> None:
    end = time.monotonic() + LIMIT
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                response.read()
                return
        except OSError:
            assert time.monotonic() < end, f"{url} does not answer"
            time.sleep(0.05)


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes, which asyncio leaves to the garbage collector."""
    process._transport.close()  # type: ignore[attr-defined]


def ask(url: str, path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, Any, str]:
    """Status, headers and body of a request to the server behind a WebSocket's URL."""
    http = url.replace("ws://", "http://").removesuffix("/ws") + path
    request = urllib.request.Request(http, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()

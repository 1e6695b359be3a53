"""What the tests of the MCP client talk to: scripted servers on stdio and over HTTP, and how tests are run."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from driving import drive, until
from http_peers import read_request
from mcp_peers import mcp_environment
from midcall import Client, connect
from peers import HERE, command, free_port

MODERN = "2026-07-28"
LATEST = "2025-11-25"


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end: no error may be lost, and no task left."""

    async def checked() -> Any:
        result = await main
        for _ in range(4000):
            if len(asyncio.all_tasks()) == 2:
                break
            await asyncio.sleep(0.005)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(left) <= 1, left  # the one that waits for this one
        return result

    async def main_task() -> Any:
        return await asyncio.create_task(checked())

    return drive(main_task())


def scripted(name: str, *words: str, **options: Any) -> Client:
    """A client of a server in `scripted_server.py`."""
    options.setdefault("era", "auto")
    return connect([sys.executable, "-S", str(HERE / "scripted_server.py"), name, *words], **options)


def midcall_server(target: str = "mcp_app:hub", **options: Any) -> Client:
    """A client of a midcall server on stdio."""
    return connect(command("serve", target, "--stdio", "--mcp-only"), env=mcp_environment(), **options)


def calls(count: int, name: str = "echo", **arguments: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"c{n}", "name": name, "arguments": {"say": f"word {n}", **arguments}} for n in range(count)
    ]


def said(results: list[dict[str, Any]]) -> list[str]:
    """The texts of results, which must all be successes."""
    assert all(one["success"] for one in results), results
    return [one["result"]["content"][0]["text"] for one in results]


async def seen(client: Client) -> list[Any]:
    """What a scripted server has received so far."""
    return list((await client.call("seen")).structured["messages"])


def methods(messages: list[Any]) -> list[str]:
    return [one["method"] for one in messages if isinstance(one, dict) and "method" in one]


async def nothing_waits(client: Client) -> None:
    """No request is left; the last may just tell the server that nobody comes back for a call."""
    session = await client.session()
    await until(lambda: not session.waiting and not client._farewells)


def children() -> set[int]:
    """The processes that this one has started and that are not gone, be they only zombies."""
    threads = Path("/proc/self/task")
    if not threads.exists():
        pytest.skip("needs /proc")
    found: set[int] = set()
    for thread in threads.iterdir():
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            found |= {int(pid) for pid in (thread / "children").read_text().split()}
    return found


# --- HTTP -----------------------------------------------------------------------------------


@dataclass
class Exchange:
    """One HTTP request, and the way back."""

    verb: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    closing: bool = False

    @property
    def message(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def method(self) -> str:
        message = self.message
        return message.get("method", "") if isinstance(message, dict) else ""

    async def send(
        self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str
    ) -> None:
        lines = {"content-type": kind, "content-length": str(len(body)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body)
        await self.writer.drain()

    async def json(self, value: Any, status: int = 200, **headers: str) -> None:
        await self.send(status, json.dumps(value).encode(), **headers)

    async def answer(self, result: Any, **headers: str) -> None:
        await self.json({"jsonrpc": "2.0", "id": self.message["id"], "result": result}, **headers)

    async def refuse(self, status: int, code: int, message: str, data: Any = None) -> None:
        error = {"code": code, "message": message, "data": data}
        await self.json({"jsonrpc": "2.0", "id": (self.message or {}).get("id"), "error": error}, status)

    async def stream(self, **headers: str) -> None:
        """Begin a stream of events, which ends with the connection."""
        lines = {"content-type": "text/event-stream", "connection": "close", **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode())
        await self.writer.drain()
        self.closing = True

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def event(self, message: Any = None, **fields: Any) -> None:
        lines = [f"{name}: {value}" for name, value in fields.items()]
        lines.append(f"data: {json.dumps(message) if message is not None else ''}")
        await self.raw("\n".join(lines).encode() + b"\n\n")

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        reader = self.writer._reader  # type: ignore[attr-defined]
        await reader.read()


Handler = Callable[[Exchange], Awaitable[None]]


@dataclass
class HttpPeer:
    """A server over HTTP that does as it is told, in this event loop."""

    handler: Handler
    port: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _open: bool = False
    _tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def seen(self) -> list[str]:
        """The methods of all messages that have come, or the verbs of requests without one."""
        return [one.method or one.verb for one in self.exchanges]

    async def start(self) -> None:
        self._open = True
        self.port = self.port or free_port()  # nobody else has it when it is started again
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=2**24)

    async def stop(self) -> None:
        """Close all connections, wherever they are."""
        assert self._server is not None
        self._open = False
        loop = asyncio.get_running_loop()
        for listener in self._server.sockets:
            loop.remove_reader(listener.fileno())
        for _ in range(3):
            await asyncio.sleep(0)  # a connection that asyncio accepts just now would never be closed
        self._server.close()
        tasks = dict(self._tasks)
        for task, writer in tasks.items():
            task.cancel()
            writer.close()
        if tasks:
            await asyncio.wait(tasks)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:  # it was in the queue when the server stopped
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer._reader = reader  # type: ignore[attr-defined]
        try:
            while data := await read_request(reader):
                head, _, body = data.partition(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                verb, path, _ = first.split(" ")
                headers = {
                    name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
                }
                exchange = Exchange(verb, path, headers, body, writer)
                self.exchanges.append(exchange)
                await self.handler(exchange)
                if exchange.closing:
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


@asynccontextmanager
async def http_peer(handler: Handler) -> AsyncIterator[HttpPeer]:
    peer = HttpPeer(handler)
    await peer.start()
    try:
        yield peer
    finally:
        await peer.stop()


def speaking(
    call: Handler,
    *,
    modern: bool = False,
    revision: str = LATEST,
    session: str | None = None,
    other: Callable[[Exchange], Awaitable[bool]] | None = None,
    **capabilities: Any,
) -> Handler:
    """A handler that greets as an MCP server does; `call` gets calls of tools, `other` whatever it takes."""
    can = {"tools": {}, **capabilities}

    async def handle(exchange: Exchange) -> None:
        if other is not None and await other(exchange):
            return
        match exchange.verb, exchange.method:
            case "POST", "initialize" if not modern:
                named = {} if session is None else {"mcp_session_id": session}
                info = {"name": "scripted", "version": "1"}
                greeting = {"protocolVersion": revision, "capabilities": can, "serverInfo": info}
                await exchange.answer(greeting, **named)
            case "POST", "server/discover" if modern:
                await exchange.answer({"supportedVersions": [MODERN], "capabilities": can, "ttlMs": 0})
            case "POST", "ping":
                await exchange.answer({})
            case "POST", "tools/list":
                await exchange.answer({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
            case "POST", "tools/call":
                await call(exchange)
            case "POST", method if method.startswith("notifications/"):
                await exchange.send(202)
            case "POST", "":
                await exchange.send(202)  # a response
            case "POST", _:
                await exchange.refuse(400 if modern else 200, -32601, "Method not found")
            case "DELETE", _:
                await exchange.send(200)
            case _:
                await exchange.send(405)

    return handle


async def echo(exchange: Exchange) -> None:
    await exchange.answer(text(str(exchange.message["params"]["arguments"].get("say", ""))))


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "resultType": "complete", **more}

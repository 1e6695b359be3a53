"""Clients of HTTP+SSE by hand: a stream of events, and a POST for each message."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from driving import LIMIT, until
from mcp_peers import LATEST, Client, Response, hang_up
from peers import LARGE


async def http(
    port: int, verb: str, path: str, body: bytes = b"", token: str | None = None, **headers: str
) -> Response:
    """Send a request on a connection of its own; give the response once its head is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LARGE)
    lines = {
        "host": f"127.0.0.1:{port}",
        "content-length": str(len(body)),
        "content-type": "application/json",
    }
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        lines["authorization"] = f"Bearer {token}"
    head = f"{verb} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    try:
        writer.write(head.encode() + b"\r\n" + body)
        status = int((await reader.readline()).split()[1])
        found = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            found[name.lower()] = value.strip()
    except BaseException:
        await hang_up(writer)
        raise
    return Response(status, found, reader, writer)


async def status(port: int, verb: str, path: str, body: bytes = b"", **more: Any) -> int:
    response = await http(port, verb, path, body, **more)
    await response.drop()
    return response.status


async def refusal(port: int, path: str, body: bytes, **more: Any) -> tuple[int, int]:
    """The status of a POST that is refused, and the code of the error in its body."""
    response = await http(port, "POST", path, body, **more)
    return response.status, json.loads(await response.body())["error"]["code"]


class SseClient(Client):
    """A client with one stream, and a connection for each message."""

    def __init__(self, port: int, revision: str, capabilities: Any, token: str | None) -> None:
        super().__init__(revision, capabilities)
        self.port = port
        self.endpoint = ""
        self._token = token
        self._stream: Response | None = None
        self._reading: asyncio.Future[None] | None = None

    async def open(self, path: str = "/sse") -> None:
        self._stream = await http(self.port, "GET", path, token=self._token, accept="text/event-stream")
        assert (self._stream.status, self._stream.kind) == (200, "text/event-stream")
        events = self._stream.events()
        first = await anext(events)
        assert first["event"] == "endpoint"
        self.endpoint = first["data"]
        self._reading = asyncio.ensure_future(self._read(events))

    async def _read(self, events: AsyncIterator[dict[str, str]]) -> None:
        async for event in events:
            assert event.keys() == {"event", "data"}
            assert event["event"] == "message"
            await self.arrive(json.loads(event["data"]))

    async def post(self, message: Any) -> None:
        body = json.dumps(message).encode()
        response = await http(self.port, "POST", self.endpoint, body, token=self._token)
        assert (response.status, await response.body()) == (202, b"")

    async def until_ended(self) -> None:
        """Wait until the server ends the stream."""
        assert self._reading is not None
        await self._reading

    async def close(self) -> None:
        """Close the stream; what the oracle found wrong is raised here."""
        if self._reading is not None and self._stream is not None:
            if self._reading.done():
                self._reading.result()
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            await self._stream.drop()


@asynccontextmanager
async def client(
    port: int,
    revision: str = LATEST,
    capabilities: Any = None,
    *,
    token: str | None = None,
    path: str = "/sse",
    handshake: bool = True,
) -> AsyncIterator[SseClient]:
    made = SseClient(port, revision, capabilities, token)
    try:
        await made.open(path)
        if handshake:
            await made.initialize()
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def running(http: uvicorn.Server) -> AsyncIterator[int]:
    """A server in this process; it must end at once when it is told to, whoever listens."""
    task = asyncio.ensure_future(http.serve())
    try:
        await until(lambda: http.started or task.done())
        yield http.config.port
    finally:
        http.should_exit = True
        async with asyncio.timeout(LIMIT):
            await task

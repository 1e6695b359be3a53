"""What stays open ends with the token that opened it: WebSockets and streams, whatever they carry."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvicorn
import uvloop
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed

from driving import LIMIT, with_patience
from midcall import Ask, Hub, method
from midcall.chat import ChatEngine
from midcall.models.base import ModelEvent, ModelRequest
from midcall.principal import Principal
from midcall.transports import http_server
from midcall.transports.auth import StaticKeys, Unauthorized
from midcall.transports.http import asgi_app
from peers import free_port

LEGACY = "2025-11-25"
WAYS = pytest.mark.parametrize("own", [True, False], ids=["midcall's own", "uvicorn alone"])


class Expiring:
    """Lets everybody in, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def authenticate(self, authorization: str | None) -> Principal:
        return Principal("ada", expires=time.time() + self._seconds)

    def refusal(self, needed: Sequence[str]) -> Unauthorized:
        return StaticKeys("a=0123456789abcdef").refusal(needed)

    def metadata(self) -> None:
        return None


class Silent:
    """A model that never comes to an end."""

    name = "silent"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        await asyncio.Event().wait()
        raise AssertionError
        yield

    async def close(self) -> None:
        """Nothing to let go of."""


class Desk:
    """Waits."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    @method
    async def wait(self, ask: Ask) -> str:
        """Say something, and wait for ever."""
        ask.progress("on it", 1)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return ""


class Peer:
    def __init__(self, port: int, desk: Desk) -> None:
        self.port = port
        self.desk = desk
        self._writers: list[asyncio.StreamWriter] = []

    def leave(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def send(
        self, verb: str, path: str, body: Any = None, *head: str
    ) -> tuple[int, dict[str, str], asyncio.StreamReader]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        data = b"" if body is None else json.dumps(body).encode()
        lines = (
            f"{verb} {path} HTTP/1.1",
            "host: localhost",
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            f"content-length: {len(data)}",
            *head,
        )
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        status, *found = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in found)}
        return int(status.split()[1]), headers, reader

    async def session(self) -> tuple[str, str]:
        params = {
            "protocolVersion": LEGACY,
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        _, headers, _ = await self.send("POST", "/mcp", message)
        return f"mcp-session-id: {headers['mcp-session-id']}", f"mcp-protocol-version: {LEGACY}"


async def ends(reader: asyncio.StreamReader) -> bytes:
    """All of a chunked body; it comes to its proper end."""
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    assert await reader.readline() == b"\r\n"
    return body


def run(own: bool, main: Callable[[Peer], Awaitable[bool | None]]) -> None:
    """`main` gives false if the time of a token was not enough for what is to come before its end."""

    async def serving(seconds: float) -> bool:
        desk = Desk()
        hub = Hub().register(desk)
        port = free_port()
        options: dict[str, Any] = {
            "auth": Expiring(seconds),
            "sse": True,
            "parts": [ChatEngine(hub, Silent()).part()],
        }
        if own:
            http = http_server.server(hub, port=port, log_level="error", own_log=False, grace=0, **options)
        else:
            app = asgi_app(hub, **options)
            http = uvicorn.Server(
                uvicorn.Config(
                    app,
                    port=port,
                    ws="websockets-sansio",
                    log_config=None,
                    log_level="error",
                    timeout_graceful_shutdown=1,
                )
            )
        running = asyncio.ensure_future(http.serve())
        while not http.started:
            await asyncio.sleep(0.01)
        peer = Peer(port, desk)
        try:
            async with asyncio.timeout(LIMIT):
                return await main(peer) is not False
        finally:
            peer.leave()
            http.should_exit = True
            await running

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if own else None) as runner:
        runner.run(with_patience(serving))


@WAYS
def test_a_websocket_is_closed_and_its_calls_end(own: bool) -> None:
    async def main(peer: Peer) -> None:
        async with open_socket(f"ws://127.0.0.1:{peer.port}/ws") as socket:
            call = {"jsonrpc": "2.0", "id": 1, "method": "desk.wait", "params": {}}
            with contextlib.suppress(ConnectionClosed):
                await socket.send(json.dumps(call))
                while True:
                    await socket.recv()
            assert socket.close_code == 1008
            assert socket.close_reason == "The token has expired"

    run(own, main)


@WAYS
def test_the_stream_of_a_session_ends_and_the_session_stays(own: bool) -> None:
    async def main(peer: Peer) -> None:
        session = await peer.session()
        for _ in range(2):
            status, _, reader = await peer.send("GET", "/mcp", None, *session)
            assert status == 200
            await ends(reader)

    run(own, main)


@WAYS
def test_the_stream_of_a_legacy_call_ends_and_the_call_goes_on(own: bool) -> None:
    async def main(peer: Peer) -> bool:
        session = await peer.session()
        params = {"name": "desk.wait", "arguments": {}, "_meta": {"progressToken": 1}}
        message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        status, _, reader = await peer.send("POST", "/mcp", message, *session)
        assert status == 200
        told = await ends(reader)
        assert b"result" not in told
        assert not peer.desk.ended.is_set()
        return b"notifications/progress" in told

    run(own, main)


@WAYS
def test_the_stream_of_a_modern_call_ends_and_so_does_the_call(own: bool) -> None:
    async def main(peer: Peer) -> bool:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "progressToken": 1,
        }
        params = {"name": "desk.wait", "arguments": {}, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        heads = ("mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: desk.wait")
        status, _, reader = await peer.send("POST", "/mcp", message, *heads)
        assert status == 200
        told = await ends(reader)
        if b"notifications/progress" not in told:
            return False
        await peer.desk.ended.wait()
        return True

    run(own, main)


@WAYS
@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("GET", "/sse", None),
        ("POST", "/chat", {"message": "hello"}),
        ("POST", "/agui", {"threadId": "t", "messages": [{"role": "user", "content": "hello"}]}),
    ],
    ids=["sse", "chat", "agui"],
)
def test_other_streams_end_properly(own: bool, verb: str, path: str, body: Any) -> None:
    async def main(peer: Peer) -> bool:
        status, _, reader = await peer.send(verb, path, body)
        assert status == 200
        return bool(await ends(reader))

    run(own, main)

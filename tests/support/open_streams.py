"""Servers of each kind, and a visitor who reads streams of events from them piece by piece."""

import asyncio
import gc
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest
import uvicorn
import uvloop

from driving import LIMIT, assert_no_errors, until
from mcp_peers import FORMS, LATEST, META, MODERN
from midcall import Ask, Hub, method
from midcall.transports import http_server
from midcall.transports.http import asgi_app
from midcall.transports.http_server import server
from peers import free_port

OWN, OWN_ON_ASYNCIO, PLAIN = "midcall's own", "midcall's own on asyncio", "plain uvicorn"
UNTESTED = "midcall's own on a uvicorn that it was not tested with"
WAYS = pytest.mark.parametrize("way", [OWN, OWN_ON_ASYNCIO, UNTESTED, PLAIN])


class Desk:
    """What a stream may be open for."""

    def __init__(self) -> None:
        self.trail: list[str] = []
        self.told = 0

    @method
    async def who(self, ask: Ask) -> str:
        """Wait for a person."""
        return f"It is {await ask.prompt('Who?', timeout=None)}"

    @method
    async def work(self, ask: Ask) -> str:
        """Say something, and go on until somebody stops it."""
        ask.progress("on it", 1)
        try:
            await asyncio.sleep(LIMIT)
        except asyncio.CancelledError:
            self.trail.append("stopped")
            raise
        return "done"

    @method
    async def chatter(self, ask: Ask, lines: int, size: int) -> str:
        """Say more than anybody wants to read."""
        for number in range(lines):
            ask.log(f"{number} {'x' * size}")
            self.told = number + 1
            await asyncio.sleep(0)
        return "said it all"

    @method
    async def echo(self, text: str) -> str:
        """Say it back."""
        return text


class Reply:
    """A response, as far as it was read."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.body = b""

    @property
    def messages(self) -> list[Any]:
        if self.headers.get("content-type") == "text/event-stream":
            lines = self.body.decode().split("\n")
            return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return [json.loads(self.body)] if self.body else []

    @property
    def event_ids(self) -> list[str]:
        return [line[4:] for line in self.body.decode().split("\n") if line.startswith("id: ")]

    @property
    def text(self) -> str:
        """What the tool gave."""
        return str(self.messages[-1]["result"]["content"][0]["text"])


class Line:
    """A connection, which is kept for more than one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def head(self) -> Reply:
        status = int((await self._reader.readline()).split()[1])
        headers = {}
        while line := (await self._reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return Reply(status, headers)

    async def more(self, reply: Reply) -> bool:
        """Read the next piece of a body; false at its end."""
        if "content-length" in reply.headers:
            reply.body = await self._reader.readexactly(int(reply.headers["content-length"]))
            return False
        size = int(await self._reader.readline(), 16)
        reply.body += (await self._reader.readexactly(size + 2))[:-2]
        return size > 0

    async def until(self, reply: Reply, wanted: Callable[[Reply], bool]) -> None:
        while not wanted(reply):
            assert await self.more(reply), reply.body

    async def rest(self, reply: Reply) -> Reply:
        while await self.more(reply):
            pass
        return reply

    async def whole(self) -> Reply:
        return await self.rest(await self.head())

    async def question(self) -> tuple[Reply, int]:
        """Read up to a question: the response that it stands in, and its id."""
        reply = await self.head()
        await self.until(reply, lambda r: any(m.get("method") == "elicitation/create" for m in r.messages))
        return reply, reply.messages[-1]["id"]

    async def at_end(self) -> bool:
        return await self._reader.read(1) == b""

    def hang_up(self) -> None:
        self._writer.transport.abort()


class Visitor:
    """A client with a legacy session, and as many connections as it wants."""

    def __init__(self, desk: Desk, port: int, http: uvicorn.Server) -> None:
        self.desk = desk
        self.http = http
        self.port = port
        self._ids = itertools.count(1)
        self._session = ""
        self._lines: list[Line] = []

    async def line(self) -> Line:
        line = Line(*await asyncio.open_connection("127.0.0.1", self.port))
        self._lines.append(line)
        return line

    async def begin(self) -> None:
        line = await self.line()
        asked = {
            "protocolVersion": LATEST,
            "capabilities": FORMS,
            "clientInfo": {"name": "t", "version": "1"},
        }
        line.send(self.request("initialize", asked))
        self._session = (await line.whole()).headers["mcp-session-id"]

    def leave(self) -> None:
        for line in self._lines:
            line.hang_up()

    def request(self, method: str, params: Any, *head: str) -> bytes:
        return self.post({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}, *head)

    def call(self, name: str, *head: str, **arguments: Any) -> bytes:
        return self.request("tools/call", {"name": f"desk.{name}", "arguments": arguments}, *head)

    def modern_call(self, name: str) -> bytes:
        meta = {
            f"{META}protocolVersion": MODERN,
            f"{META}clientCapabilities": {},
            f"{META}clientInfo": {"name": "t", "version": "1"},
            "progressToken": 1,
        }
        params = {"name": f"desk.{name}", "arguments": {}, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": "tools/call", "params": params}
        heads = (f"mcp-protocol-version: {MODERN}", "mcp-method: tools/call", f"mcp-name: desk.{name}")
        return self._framed("POST", json.dumps(message).encode(), heads)

    def post(self, message: Any, *head: str) -> bytes:
        return self._framed("POST", json.dumps(message).encode(), (*self._legacy(), *head))

    def get(self, *head: str) -> bytes:
        return self._framed("GET", b"", (*self._legacy(), *head))

    def _legacy(self) -> tuple[str, ...]:
        if not self._session:
            return ()
        return f"mcp-session-id: {self._session}", f"mcp-protocol-version: {LATEST}"

    def _framed(self, verb: str, body: bytes, head: tuple[str, ...]) -> bytes:
        lines = (
            f"{verb} /mcp HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            f"content-length: {len(body)}",
            *head,
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def answer(self, id: int, word: str) -> None:
        """Answer a question, on a connection of its own."""
        line = await self.line()
        result = {"action": "accept", "content": {"text": word}}
        line.send(self.post({"jsonrpc": "2.0", "id": id, "result": result}))
        assert (await line.whole()).status == 202
        line.hang_up()


@asynccontextmanager
async def visiting(way: str) -> AsyncIterator[Visitor]:
    desk = Desk()
    hub = Hub().register(desk)
    port = free_port()
    if way == PLAIN:
        config = uvicorn.Config(
            asgi_app(hub), port=port, ws="websockets-sansio", log_config=None, log_level="error"
        )
        http = uvicorn.Server(config)
    elif way == UNTESTED:
        with mock.patch.object(http_server, "TESTED", ((0, 1), (0, 2))):
            http = server(hub, port=port, log_level="error", own_log=False)
    else:
        http = server(hub, port=port, log_level="error", own_log=False)
    http.config.timeout_keep_alive = 2 * LIMIT  # no connection is closed in a test because nothing comes
    serving = asyncio.ensure_future(http.serve())
    await until(lambda: http.started or serving.done())
    visitor = Visitor(desk, port, http)
    try:
        await visitor.begin()
        yield visitor
    finally:
        visitor.leave()
        http.should_exit = True
        await serving


def drive(way: str, main: Callable[[Visitor], Any]) -> None:
    """Run it with a server in this process; no error may be lost, not even one that only the loop hears of."""
    unseen: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        async with asyncio.timeout(LIMIT), visiting(way) as visitor:
            await main(visitor)

    factory = uvloop.new_event_loop if way in (OWN, UNTESTED) else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(watched())
    gc.collect()
    assert_no_errors(unseen)

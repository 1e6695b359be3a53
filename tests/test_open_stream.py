"""Streams of events that stay open: what they hold, what comes behind them on a connection, how they end.

On midcall's own server, which hands such a stream over to a `StreamProtocol`, with both event loops; and on
uvicorn as it comes, where the same application writes it by plain ASGI, with midcall's own server around it and
without.
"""

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
import websockets
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from driving import LIMIT, until
from mcp_peers import FORMS, LATEST, META, MODERN
from midcall import Ask, Hub, method
from midcall.transports import http_server, responses, uvicorn_protocol
from midcall.transports.http import asgi_app
from midcall.transports.http_server import server
from midcall.transports.uvicorn_protocol import StreamProtocol
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
    assert unseen == []


def alive(*kinds: type) -> list[Any]:
    return [one for one in gc.get_objects() if isinstance(one, kinds)]


# --- what it holds ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", [OWN, OWN_ON_ASYNCIO])
def test_nothing_of_a_request_is_kept_while_its_stream_waits(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        lines = [await visitor.line() for _ in range(20)]
        gc.collect()
        gc.disable()  # it goes by itself, without a collector
        try:
            for line in lines:
                line.send(visitor.call("who"))
            asked = [await line.question() for line in lines]
            await until(lambda: not visitor.http.server_state.tasks)
            assert len(alive(StreamProtocol)) == len(lines)
            used = [one.cycle for one in visitor.http.server_state.connections if hasattr(one, "cycle")]
            assert len(alive(RequestResponseCycle)) == len([cycle for cycle in used if cycle is not None])
            assert len(alive(HttpToolsProtocol)) == len(used)
            for line, (reply, id) in zip(lines, asked, strict=True):
                await visitor.answer(id, "me")
                assert (await line.rest(reply)).text == "It is me"
            assert alive(StreamProtocol) == []
        finally:
            gc.enable()

    drive(way, run)


# --- what comes behind it --------------------------------------------------------------------


@WAYS
def test_after_a_stream_its_connection_is_for_the_next_request_and_the_next_stream(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        for word in ("one", "two", "three"):
            line.send(visitor.call("who"))
            reply, id = await line.question()
            await visitor.answer(id, word)
            assert (await line.rest(reply)).text == f"It is {word}"
            line.send(visitor.call("echo", text=word))
            assert (await line.whole()).text == word

    drive(way, run)


@WAYS
def test_requests_behind_an_open_stream_are_answered_after_its_end(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        line.send(visitor.call("who"))
        reply, id = await line.question()
        for part in (first := visitor.call("echo", text="next"))[:40], first[40:]:
            line.send(part)
            await asyncio.sleep(0.02)
        line.send(visitor.call("echo", text="last"))
        await visitor.answer(id, "me")
        assert (await line.rest(reply)).text == "It is me"
        assert (await line.whole()).text == "next"
        assert (await line.whole()).text == "last"

    drive(way, run)


@WAYS
@pytest.mark.parametrize("part", ["head", "body"])
def test_of_what_comes_behind_an_open_stream_only_so_much_is_read_before_its_end(way: str, part: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        line.send(visitor.call("who"))
        reply, id = await line.question()
        much = "x" * 3 * uvicorn_protocol.READ_AHEAD
        if part == "head":
            note = "x" * (uvicorn_protocol.READ_AHEAD // 2)
            line.send(b"".join(visitor.call("echo", f"x-note: {note}", text="") for _ in range(6)))
        else:
            line.send(visitor.call("echo", text=much))
        await until(lambda: not any(one.transport.is_reading() for one in alive(StreamProtocol)))
        await visitor.answer(id, "me")
        assert (await line.rest(reply)).text == "It is me"
        assert (await line.whole()).text == ("" if part == "head" else much)

    drive(way, run)


@WAYS
@pytest.mark.parametrize("sent", [20, 10_000], ids=["in part", "whole"])
def test_a_request_in_the_same_packet_as_the_one_before_is_answered_after_it(way: str, sent: int) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        second = visitor.call("echo", text="next")
        line.send(visitor.call("who") + second[:sent])
        reply, id = await line.question()
        line.send(second[sent:])
        await visitor.answer(id, "me")
        assert (await line.rest(reply)).text == "It is me"
        assert (await line.whole()).text == "next"

    drive(way, run)


@WAYS
def test_a_client_that_wants_no_second_request_is_hung_up_on_after_the_stream(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        line.send(visitor.call("who", "connection: close"))
        reply, id = await line.question()
        assert reply.headers["connection"] == "close"
        await visitor.answer(id, "me")
        assert (await line.rest(reply)).text == "It is me"
        assert await line.at_end()

    drive(way, run)


@WAYS
def test_a_connection_on_which_nothing_follows_a_stream_is_closed_after_a_while(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        visitor.http.config.timeout_keep_alive = 0.05
        line = await visitor.line()
        line.send(visitor.call("who"))
        reply, id = await line.question()
        await asyncio.sleep(0.2)  # while the stream is open, that does not count
        await visitor.answer(id, "me")
        assert (await line.rest(reply)).text == "It is me"
        assert await line.at_end()

    drive(way, run)


# --- who reads it ----------------------------------------------------------------------------


@WAYS
def test_a_call_ends_when_the_modern_client_that_reads_its_stream_leaves(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        line.send(visitor.modern_call("work"))
        reply = await line.head()
        await line.until(reply, lambda r: bool(r.messages))
        assert visitor.desk.trail == []
        line.hang_up()
        await until(lambda: visitor.desk.trail == ["stopped"])
        await until(lambda: not alive(StreamProtocol))

    drive(way, run)


@WAYS
def test_a_stream_that_is_resumed_elsewhere_ends_here_and_leaves_the_connection_free(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        first, second = await visitor.line(), await visitor.line()
        first.send(visitor.call("who"))
        reply, id = await first.question()
        second.send(visitor.get(f"last-event-id: {reply.event_ids[0]}"))
        again, same = await second.question()
        assert same == id
        assert not any("result" in message for message in (await first.rest(reply)).messages)
        first.send(visitor.call("echo", text="free"))
        assert (await first.whole()).text == "free"
        await visitor.answer(id, "me")
        assert (await second.rest(again)).text == "It is me"

    drive(way, run)


@WAYS
def test_a_client_that_reads_slowly_is_not_written_to_without_bound_and_gets_the_result(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        lines, size = 2_000, 40_000
        line = await visitor.line()
        line.send(visitor.call("chatter", lines=lines, size=size))
        reply = await line.head()
        await until(lambda: visitor.desk.told == lines)  # nobody has read anything of it
        await line.rest(reply)
        assert responses.KEPT_BYTES // size < len(reply.messages) < lines, "what does not fit is left out"
        assert reply.text == "said it all"

    drive(way, run)


@WAYS
def test_a_comment_is_sent_from_time_to_time_while_nothing_happens(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (responses, uvicorn_protocol):
        monkeypatch.setattr(module, "KEEP_ALIVE", 0.02)

    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        line.send(visitor.call("who"))
        reply, id = await line.question()
        await line.until(reply, lambda r: r.body.endswith(b":\n\n" * 3))
        await visitor.answer(id, "me")
        assert (await line.rest(reply)).text == "It is me"

    drive(way, run)


@WAYS
def test_a_server_that_stops_ends_the_streams_that_wait_and_hangs_up(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        waiting, listening = await visitor.line(), await visitor.line()
        waiting.send(visitor.call("who"))
        reply, id = await waiting.question()
        listening.send(visitor.get())
        heard = await listening.head()
        visitor.http.should_exit = True
        if way == PLAIN:  # it knows of no calls, and waits for them
            await visitor.answer(id, "me")
            assert (await waiting.rest(reply)).text == "It is me"
            listening.hang_up()
        else:
            assert "closed" in (await waiting.rest(reply)).text
            await listening.rest(heard)
            assert await listening.at_end()
        assert await waiting.at_end()

    drive(way, run)


@pytest.mark.parametrize("way", [OWN, UNTESTED])
def test_on_whichever_uvicorn_a_websocket_is_served(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        async with websockets.connect(f"ws://127.0.0.1:{visitor.port}/ws") as peer:
            call = {"jsonrpc": "2.0", "id": 1, "method": "desk.echo", "params": {"text": "hello"}}
            await peer.send(json.dumps(call))
            assert json.loads(await peer.recv())["result"] == "hello"

    drive(way, run)


@pytest.mark.parametrize("version", ["0.52.1", "0.55.0", "1.0", "0.dev3"])
def test_a_uvicorn_that_was_not_tested_is_used_as_it_comes_and_that_is_logged(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uvicorn, "__version__", version)
    config = server(Hub(), own_log=False).config
    config.load()
    assert config.http_protocol_class is HttpToolsProtocol
    assert f"midcall was not tested with uvicorn {version}" in caplog.text

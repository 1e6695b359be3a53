"""Streams of events that stay open: what they hold, what comes behind them on a connection, how they end.

On midcall's own server, which hands such a stream over to a `StreamProtocol`, with both event loops; and on
uvicorn as it comes, where the same application writes it by plain ASGI, with midcall's own server around it and
without.
"""

import asyncio
import contextlib
import gc
import json
from typing import Any
from unittest import mock

import pytest
import uvicorn
import websockets
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from driving import LIMIT, until
from midcall import Hub
from midcall.transports import http_server, responses, uvicorn_protocol
from midcall.transports.connection_limits import Limits
from midcall.transports.http_server import server
from midcall.transports.uvicorn_protocol import HttpProtocol, StreamProtocol
from open_streams import OWN, OWN_ON_ASYNCIO, PLAIN, UNTESTED, WAYS, Visitor, drive
from ports import free_port


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


def test_on_a_uvicorn_that_was_not_tested_connections_that_are_too_many_or_silent_are_closed() -> None:
    async def run() -> None:
        port = free_port()
        limits = Limits(connections=2, head_time=1.0)
        with mock.patch.object(http_server, "TESTED", ((0, 1), (0, 2))):
            http = server(Hub(), port=port, log_level="error", own_log=False, limits=limits)
        serving = asyncio.ensure_future(http.serve())
        await until(lambda: http.started or serving.done())
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        speaking, silent, late = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _ in range(2):
            speaking[1].write(get)
            assert b"200 OK" in await speaking[0].readuntil(b"}"), "it was there first"
            with contextlib.suppress(ConnectionError):
                assert await late[0].read() == b"", "there is no room"
            with contextlib.suppress(ConnectionError):
                assert await silent[0].read() == b"", "it has said nothing"
        for _, writer in (speaking, silent, late):
            writer.close()
        http.should_exit = True
        await serving

    async def in_time() -> None:
        async with asyncio.timeout(LIMIT):
            await run()

    asyncio.run(in_time())


def test_on_a_uvicorn_that_was_not_tested_nobody_is_taken_in_by_a_server_that_ends() -> None:
    async def run(visitor: Visitor) -> None:
        visitor.http._grace = 2 * LIMIT  # type: ignore[attr-defined]
        working = await visitor.line()
        working.send(visitor.call("work"))
        await until(lambda: len(visitor.http._calls) == 1)  # type: ignore[attr-defined]
        visitor.http.should_exit = True
        with pytest.raises(ConnectionRefusedError):
            while True:
                with contextlib.suppress(ConnectionResetError):  # it came just as the listener was closed
                    (await visitor.line()).hang_up()
                await asyncio.sleep(0.01)
        assert visitor.desk.trail == [], "what runs goes on"
        visitor.http.force_exit = True

    drive(UNTESTED, run)


@pytest.mark.parametrize("version", ["0.52.1", "0.55.0", "1.0", "0.dev3"])
def test_a_uvicorn_that_was_not_tested_is_used_as_it_comes_and_that_is_logged(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uvicorn, "__version__", version)
    config = server(Hub(), own_log=False).config
    config.load()
    assert issubclass(config.http_protocol_class, HttpToolsProtocol)
    assert not issubclass(config.http_protocol_class, HttpProtocol)
    assert f"midcall was not tested with uvicorn {version}" in caplog.text

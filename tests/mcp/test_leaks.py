"""What clients leave behind does not pile up: sessions, questions, streams, outcomes.

In one process, against the ASGI endpoint, so that there can be many of them and objects can be counted.
"""

import asyncio
import gc
import json
import sys
import tracemalloc
from typing import Any

import pytest

from driving import LIMIT, drive, until
from mcp_app import make_hub
from mcp_peers import FORMS, LATEST, META, MODERN
from mcp_visitor import KEYS, Visitor
from midcall.journal import memory
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.mcp import McpExtension, mcp_of
from midcall.mcp.request import Session
from midcall.transports import http_sessions, responses

MANY = 10_000


def kilobytes() -> float:
    gc.collect()
    return tracemalloc.get_traced_memory()[0] / 1024


def blocks() -> int:
    """How many pieces of memory are in use."""
    gc.collect()
    return sys.getallocatedblocks()


def sessions_in_memory() -> list[Session]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is Session]


def test_ten_thousand_abandoned_sessions_leave_memory_flat() -> None:
    async def run() -> None:
        visitor = Visitor(make_hub())
        sessions = mcp_of(visitor.hub).sessions

        async def abandon() -> None:
            for _ in range(MANY):
                await visitor.initialize()

        await visitor.initialize()
        empty = blocks()
        await abandon()
        full = blocks()
        assert len(sessions) <= http_sessions.LIMIT
        await abandon()
        assert blocks() < full * 1.01
        assert len(sessions) <= http_sessions.LIMIT
        assert (full - empty) / MANY < 40, "pieces of an abandoned session"

    drive(run())


def test_abandoned_questions_leave_memory_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for fewer than there is by default, so that it need not take so long to be full."""
    many, parked = 2_000, 400
    monkeypatch.setattr(memory, "CALLS", many)

    async def run() -> None:
        hub = make_hub(keys=KEYS)
        hub.durable = DurableCalls(hub, MemoryJournal(), parked_calls=parked)
        visitor = Visitor(hub)
        call = {"name": "seek.prompt", "arguments": {"name": "n", "timeout": 10 * LIMIT}}

        async def abandon(count: int) -> Any:
            first = None
            for _ in range(count):
                asked = (await visitor.modern("tools/call", call))["result"]
                assert asked["resultType"] == "input_required"
                first = first or asked
            return first

        await abandon(1)
        empty = blocks()
        lost = await abandon(many)
        assert hub.calls.open_questions == parked
        assert (blocks() - empty) / many < 130, "pieces of an abandoned question, its journal included"
        await abandon(many // 2)
        full = blocks()
        assert hub.calls.open_questions == len(hub.calls) == parked
        kept = await abandon(many // 2)
        assert blocks() < full * 1.05  # asyncio clears cancelled timers away only now and then
        assert hub.calls.open_questions == len(hub.calls) == parked

        answers = {"question-1": {"action": "accept", "content": {"text": "w"}}}
        again = {**call, "inputResponses": answers, "requestState": lost["requestState"]}
        assert "Invalid or expired" in json.dumps(await visitor.modern("tools/call", again))
        again["requestState"] = kept["requestState"]
        assert (await visitor.modern("tools/call", again))["result"]["content"][0]["text"] == "n: w"
        await hub.close()
        assert len(hub.calls) == hub.calls.open_questions == 0

    drive(run())


def test_whoever_parks_most_calls_is_the_one_to_lose_some(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(memory, "CALLS", 100)
        visitor = Visitor(make_hub(keys=KEYS))
        call: dict[str, Any] = {"name": "seek.prompt", "arguments": {"name": "n"}}
        mine = (await visitor.modern("tools/call", call, principal="ann"))["result"]
        for _ in range(500):
            await visitor.modern("tools/call", call, principal="bob")
        answers = {"question-1": {"action": "accept", "content": {"text": "w"}}}
        again = {**call, "inputResponses": answers, "requestState": mine["requestState"]}
        result = (await visitor.modern("tools/call", again, principal="ann"))["result"]
        assert result["content"][0]["text"] == "n: w"
        await visitor.hub.close()

    drive(run())


def test_a_session_in_use_is_the_last_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(http_sessions, "LIMIT", 50)
        visitor = Visitor(make_hub())
        listening, gone = await visitor.initialize(), asyncio.Event()
        stream = asyncio.ensure_future(
            visitor.visit("GET", {"mcp_session_id": listening, "accept": "text/event-stream"}, gone=gone)
        )
        idle = await visitor.initialize()
        await asyncio.sleep(0)
        for _ in range(200):
            await visitor.initialize()
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await visitor.post(ping, mcp_session_id=listening))[0] == 200
        assert (await visitor.post(ping, mcp_session_id=idle))[0] == 404
        monkeypatch.setattr(http_sessions, "IDLE", 0.0)
        await visitor.initialize()
        assert (await visitor.post(ping, mcp_session_id=listening))[0] == 200, "it still listens"
        gone.set()
        await stream
        for _ in range(http_sessions.SWEEP):
            await visitor.initialize()
        assert (await visitor.post(ping, mcp_session_id=listening))[0] == 404

    drive(run())


def test_requests_leave_nothing_in_their_session() -> None:
    async def run() -> None:
        visitor = Visitor(make_hub())
        session_id = await visitor.initialize(protocolVersion="2025-03-26")
        (session,) = mcp_of(visitor.hub).sessions
        sizes = []
        for _ in range(3):
            for _ in range(300):
                await visitor.request("ping", {}, mcp_session_id=session_id)
                called = {"name": "give.narrate", "arguments": {}, "_meta": {"progressToken": 1}}
                await visitor.request("tools/call", called, mcp_session_id=session_id)
                one = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "give.word"}}
                await visitor.post([{**one, "id": 1}, {**one, "id": 2}], mcp_session_id=session_id)
                assert session.running == {}
            await asyncio.sleep(0.1)  # `narrate` sets a timer
            sizes.append(blocks())
        assert sizes[2] - sizes[1] < 300, sizes
        assert len(session.requests) == 0
        assert len(visitor.hub.calls) == 0

    drive(run())


def test_questions_that_end_in_any_way_leave_nothing_in_their_session() -> None:
    async def run() -> None:
        visitor = Visitor(make_hub())
        session_id = await visitor.initialize(capabilities=FORMS)
        (session,) = mcp_of(visitor.hub).sessions
        for timeout in (0.01, 30):
            for number in range(50):
                gone = asyncio.Event()
                call = {"name": "seek.prompt", "arguments": {"timeout": timeout}}
                message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
                posting = asyncio.ensure_future(visitor.post(message, gone=gone, mcp_session_id=session_id))
                if timeout == 30:
                    await until(lambda: len(session.requests) == 1)
                    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
                    await visitor.post(cancel | {"params": {"requestId": number}}, mcp_session_id=session_id)
                await posting
        await until(lambda: len(visitor.hub.calls) == 0)
        assert (session.running, len(session.requests), visitor.hub.calls.open_questions) == ({}, 0, 0)

    drive(run())


def test_a_stream_that_is_read_for_days_keeps_only_its_last_events() -> None:
    async def run() -> None:
        stream = responses.EventStream("0")
        woken: list[int] = []
        turn = stream.attach(0, lambda: woken.append(stream.end))
        place = 0
        for number in range(20 * responses.KEPT_EVENTS):
            stream.put(b'{"n":%d}' % number)
            if number % 7 == 0:
                assert f'"n":{place}}}'.encode() in stream.since(place).split(b"\n\n")[0]
                place = stream.end
                stream.written(place)
        assert woken == list(range(1, 20 * responses.KEPT_EVENTS + 1))
        assert stream.since(0).count(b"\n\n") <= responses.KEPT_EVENTS + 7
        assert stream.since(5) == stream.since(stream.first), "an old place goes on with what is kept"
        assert stream.since(5).count(b"\n\n") == stream.end - stream.first
        stream.left(turn)
        for _ in range(100):
            stream.put(b"x" * 100_000)
        assert len(stream.since(0)) < 2 * responses.KEPT_BYTES
        assert woken[-1] == 20 * responses.KEPT_EVENTS, "who has left is not woken"
        stream.put(b"y" * 2 * responses.KEPT_BYTES)
        assert stream.since(0).count(b"\n\n") == 1, "the last one is kept in any case"

    drive(run())


def test_outcomes_that_nobody_comes_for_are_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(memory, "BYTES", 1_000_000)
        visitor = Visitor(make_hub(keys=KEYS))
        tracemalloc.start()
        try:
            for number in range(300):
                meta = {"dev.midcall/idempotencyKey": f"k{number}"}
                call = {"name": "give.large", "arguments": {"size": 50_000}}
                assert "result" in await visitor.modern("tools/call", call, meta=meta)
            assert kilobytes() < 4_000
        finally:
            tracemalloc.stop()

    drive(run())


def test_plain_calls_are_not_kept_for_anybody() -> None:
    async def run() -> None:
        visitor = Visitor(make_hub(keys=KEYS))
        extension = mcp_of(visitor.hub)
        for name in ("give.narrate", "give.word"):
            for _ in range(50):
                await visitor.modern("tools/call", {"name": name, "arguments": {}})
        asked = await visitor.modern("tools/call", {"name": "seek.prompt", "arguments": {}}, {})
        assert asked["result"]["isError"] is True
        assert list(extension.resumption.durable.live) == []
        await visitor.hub.open()
        assert await extension.resumption.durable.journal.count() == {}
        await visitor.hub.close()

    drive(run())


def test_listeners_that_are_gone_are_forgotten() -> None:
    async def run() -> None:
        visitor = Visitor(make_hub(keys=KEYS))
        extension = mcp_of(visitor.hub)
        for _ in range(100):
            gone = asyncio.Event()
            params = {"notifications": {"toolsListChanged": True}}
            listening = asyncio.ensure_future(visitor.modern("subscriptions/listen", params, gone=gone))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gone.set()
            await listening
        assert extension._listeners._open == {}

    drive(run())


def test_a_line_that_closes_takes_its_calls_and_listeners_with_it() -> None:
    async def run() -> None:
        from midcall.plexus.protocol import Connection

        others = sessions_in_memory()  # of other tests
        hub = make_hub(keys=KEYS)
        (extension,) = (one for one in hub.protocols if isinstance(one, McpExtension))
        for _ in range(20):
            sent: list[bytes] = []
            connection = Connection(hub, sent.append)
            meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": FORMS}

            def send(id: int, method: str, connection: Connection = connection, **params: Any) -> None:
                message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
                connection.receive(json.dumps(message).encode())

            send(1, "subscriptions/listen", notifications={"toolsListChanged": True}, _meta=meta)
            send(2, "tools/call", name="give.slow", arguments={"seconds": 60}, _meta=meta)
            send(3, "initialize", protocolVersion=LATEST, capabilities=FORMS, clientInfo={})
            send(4, "tools/call", name="seek.prompt", arguments={"timeout": 60})
            send(4, "ping")  # the same id again
            await until(lambda sent=sent: any(b"elicitation/create" in one for one in sent))
            await connection.close()
        await until(lambda: len(hub.calls) == 0)
        assert extension._listeners._open == {}
        connection = speaker = send = None  # noqa: F841
        assert [one for one in sessions_in_memory() if all(one is not other for other in others)] == []

    drive(run())


def test_an_endpoint_that_closes_ends_its_streams_and_questions() -> None:
    async def run() -> None:
        visitor = Visitor(make_hub(keys=KEYS))
        session_id = await visitor.initialize(capabilities=FORMS)
        call = {"name": "seek.prompt", "arguments": {}}
        wanted = {"notifications": {"toolsListChanged": True}}
        open_ones = [
            asyncio.ensure_future(one)
            for one in (
                visitor.visit("GET", {"mcp_session_id": session_id}),
                visitor.request("tools/call", call, mcp_session_id=session_id),
                visitor.modern("subscriptions/listen", wanted),
            )
        ]
        await until(lambda: visitor.hub.calls.open_questions == 1)
        visitor.endpoint.close()
        async with asyncio.timeout(LIMIT):
            _, called, listened = await asyncio.gather(*open_ones)
        assert called["result"]["isError"] is True
        assert listened["result"]["resultType"] == "complete"
        assert len(visitor.hub.calls) == 0

    drive(run())

"""A server over HTTP that misbehaves, goes away or moves: calls end right, or with a clear error."""

import asyncio
import gc
import json
import logging
import tracemalloc
from typing import Any

import pytest

from client_peers import (
    LATEST,
    Exchange,
    Handler,
    calls,
    connect,
    echo,
    http_peer,
    midcall_server,
    nothing_waits,
    run,
    said,
    speaking,
    text,
)
from driving import LIMIT, until, with_patience
from midcall import Client, RemoteError, TimedOut, TransportLost, Unreachable
from midcall.client import http_post, legacy_sse, streamable
from midcall.items import Log, Progress


def response(exchange: Exchange, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": exchange.message["id"], "result": result}


async def fails(call: Handler, kind: type[Exception], why: str, **options: Any) -> None:
    """Each call of this server fails so, in either era, and nothing stays behind."""
    for modern in (False, True):
        async with http_peer(speaking(call, modern=modern)) as peer, connect(peer.url, **options) as client:
            assert client.modern == modern
            with pytest.raises(kind, match=why):
                await client.call("echo", {"say": "x"}, timeout=LIMIT)
            await nothing_waits(client)
            assert await client.ping()


# --- answers that are none ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "body", "why"),
    [
        (200, "text/html", b"<html>Hello</html>", "gave no response, but HTTP 200 and text/html"),
        (200, "text/plain", b"ok", "gave no response, but HTTP 200 and text/plain"),
        (200, "application/json", b"", "gave no response, but HTTP 200 and nothing"),
        (200, "application/json", b"{}", "gave no response, but HTTP 200 and application/json"),
        (200, "application/json", b'{"jsonrpc": "2.0", "id": 4, "resu', "gave no response"),
        (200, "application/json", b"\xff\xfe", "gave no response"),
        (200, "application/json", b"[1, 2]", "gave no response"),
        (202, "application/json", b"", "gave no response, but HTTP 202 and nothing"),
        (204, "application/json", b"", "gave no response, but HTTP 204 and nothing"),
        (500, "text/html", b"<h1>Internal Server Error</h1>", "HTTP 500: <h1>Internal Server Error"),
        (403, "text/plain", b"no", "HTTP 403: no"),
        (302, "text/plain", b"", "HTTP 302"),
        (400, "application/json", b'{"error": "bad"}', "HTTP 400"),
    ],
)
def test_an_answer_that_is_none_fails_its_call_at_once(status: int, kind: str, body: bytes, why: str) -> None:
    run(fails(lambda exchange: exchange.send(status, body, kind), RemoteError, why))


def test_an_answer_to_another_call_does_not_count() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.json({"jsonrpc": "2.0", "id": 999, "result": text("other")})

    run(fails(call, RemoteError, "gave no response"))


def test_an_error_without_an_id_is_the_error_of_its_request() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.json(
            {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}
        )

    run(fails(call, RemoteError, "Parse error"))


def test_an_error_in_the_body_of_a_refusal_is_given_on() -> None:
    async def main() -> None:
        async def call(exchange: Exchange) -> None:
            await exchange.refuse(400, -32021, "Missing capability", {"requiredCapabilities": {}})

        async with http_peer(speaking(call, modern=True)) as peer, connect(peer.url) as client:
            with pytest.raises(RemoteError, match="Missing capability") as caught:
                await client.call("echo")
            assert caught.value.rpc_code == -32021
            assert caught.value.rpc_data == {"requiredCapabilities": {}}

    run(main())


def test_a_body_that_is_too_large_fails_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_post, "MAX_MESSAGE", 100_000)

    async def large(exchange: Exchange) -> None:
        await exchange.answer(text("x" * 200_000))

    async def event(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(response(exchange, text("x" * 200_000)))

    run(fails(large, TransportLost, "more than 100000 bytes"))
    run(fails(event, TransportLost, "more than 100000 bytes"))


def test_a_connection_that_is_closed_in_the_middle_fails_its_call() -> None:
    async def nothing(exchange: Exchange) -> None:
        exchange.closing = True

    async def half(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
        exchange.closing = True

    run(fails(nothing, TransportLost, "the connection was"))
    run(fails(half, TransportLost, "the connection was"))


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def main() -> None:
        async def call(exchange: Exchange) -> None:
            await exchange.gone()

        async with http_peer(speaking(call)) as peer, connect(peer.url) as client:
            with pytest.raises(TimedOut, match="no sign of life"):
                await client.call("echo", timeout=0.2)
            await nothing_waits(client)

    run(main())


# --- streams ---------------------------------------------------------------------------------------


def test_a_stream_is_read_whatever_pieces_and_noise_it_comes_in() -> None:
    async def main() -> None:
        async def call(exchange: Exchange) -> None:
            await exchange.stream(content_type="Text/Event-Stream; charset=utf-8")
            good = json.dumps(response(exchange, text("good"))).encode()
            data = (
                b": hello\r\n\r\nevent: other\ndata: {}\n\ndata\n\ndata: not json\n\nretry: x\nid: \xff\n\n"
            )
            data += b"event: message\r\ndata: " + good[:19] + b"\r\ndata: " + good[19:] + b"\r\n\r\n"
            for place in range(0, len(data), 5):
                await exchange.raw(data[place : place + 5])
                await asyncio.sleep(0)

        for modern in (False, True):
            async with http_peer(speaking(call, modern=modern)) as peer, connect(peer.url) as client:
                assert (await client.call("echo")).text == "good"
                await nothing_waits(client)

    run(main())


def test_a_stream_that_ends_before_the_response_fails_its_call() -> None:
    async def empty(exchange: Exchange) -> None:
        await exchange.stream()

    async def half(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.raw(b'data: {"jsonrpc": "2.0", "id": 1, "res')

    async def other(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}})

    for call in (empty, half, other):
        run(fails(call, TransportLost, "before the response came"))


def test_what_comes_on_the_stream_of_a_call_belongs_to_that_call() -> None:
    async def main() -> None:
        both = asyncio.Barrier(2)

        async def call(exchange: Exchange) -> None:
            word = exchange.message["params"]["arguments"]["say"]
            token = exchange.message["params"]["_meta"]["progressToken"]
            await both.wait()
            await exchange.stream()
            await exchange.event(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/progress",
                    "params": {"progressToken": token, "progress": 1, "total": 2, "message": word},
                }
            )
            await exchange.event(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/message",
                    "params": {"level": "info", "data": word},
                }
            )
            await both.wait()
            await exchange.event(response(exchange, text(word)))

        async def collect(client: Client, word: str) -> list[Any]:
            return [item async for item in client.call("echo", {"say": word})]

        async with http_peer(speaking(call)) as peer, connect(peer.url) as client:
            for word, items in zip(
                "ab", await asyncio.gather(collect(client, "a"), collect(client, "b")), strict=True
            ):
                progress, log, data, _ = items
                assert (progress.message, progress.percentage) == (word, 50.0)
                assert log.message == word
                assert data.content.text == word

    run(main())


def test_a_stream_that_stays_open_after_the_response_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_post, "LINGER", 0.05)

    async def main() -> None:
        gone = asyncio.Event()

        async def call(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.event(response(exchange, text("done")))
            await exchange.gone()
            gone.set()

        async with http_peer(speaking(call)) as peer, connect(peer.url) as client:
            assert (await client.call("echo")).text == "done"
            await asyncio.wait_for(gone.wait(), LIMIT)

    run(main())


# --- resumption ------------------------------------------------------------------------------------


def test_a_legacy_stream_is_taken_up_after_its_last_event() -> None:
    async def main() -> None:
        resumed: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()
        closed: list[float] = []
        waiting: list[Exchange] = []

        async def call(exchange: Exchange) -> None:
            waiting.append(exchange)
            await exchange.stream()
            await exchange.event(id="e1", retry=300)  # to prime the client, and then the connection goes
            closed.append(loop.time())

        async def other(exchange: Exchange) -> bool:
            last = exchange.headers.get("last-event-id")
            if exchange.verb != "GET" or last is None:
                return False
            resumed.append((last, loop.time() - closed[-1]))
            assert exchange.headers["mcp-session-id"] == "s1"
            assert exchange.headers["mcp-protocol-version"] == LATEST
            await exchange.stream()
            if last == "e1":
                params = {"progressToken": waiting[0].message["id"], "progress": 1, "message": "half"}
                await exchange.event(
                    {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}, id="e2"
                )
                closed.append(loop.time())
            else:
                await exchange.event(response(waiting[0], text("resumed")), id="e3")
            return True

        handler = speaking(call, other=other, session="s1")
        async with http_peer(handler) as peer, connect(peer.url) as client:
            items = [item async for item in client.call("echo")]
            assert [type(item).__name__ for item in items] == ["Progress", "Data", "Done"]
            assert items[1].content.text == "resumed"
            assert [last for last, _ in resumed] == ["e1", "e2"]
            assert resumed[0][1] >= 0.29
            assert peer.seen.count("tools/call") == 1
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize(("status", "expected"), [(None, 3), (503, 3), (405, 1)])
def test_a_stream_that_cannot_be_taken_up_fails_its_call(
    status: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_post, "MAX_RETRIES", 2)

    async def main() -> None:
        tries = []

        async def call(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.event(id="e1", retry=1)

        async def other(exchange: Exchange) -> bool:
            if exchange.verb != "GET" or "last-event-id" not in exchange.headers:
                return False
            tries.append(exchange)
            if status is None:
                await exchange.stream()
            else:
                await exchange.send(status)
            return True

        async with http_peer(speaking(call, other=other)) as peer, connect(peer.url) as client:
            with pytest.raises(TransportLost):
                await client.call("echo")
            assert len(tries) == expected
            await nothing_waits(client)

    run(main())


def test_a_call_that_is_given_up_is_not_taken_up_again() -> None:
    async def attempt(seconds: float) -> bool:
        came, gone = asyncio.Event(), asyncio.Event()

        async def call(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.event(id="e1", retry=1)

        async def other(exchange: Exchange) -> bool:
            if exchange.verb == "GET" and "last-event-id" in exchange.headers:
                await exchange.stream()
                came.set()
                await exchange.gone()
                gone.set()
                return True
            return False

        async with http_peer(speaking(call, other=other)) as peer, connect(peer.url) as client:
            (result,) = await client.call_tools(calls(1), timeout=seconds)
            assert result["error"] == "timeout"
            if not came.is_set():
                return False
            await asyncio.wait_for(gone.wait(), LIMIT)
            return True

    run(with_patience(attempt))


def test_a_modern_stream_is_not_taken_up() -> None:
    async def main() -> None:
        async def call(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.event(id="e1", retry=1)

        async with http_peer(speaking(call, modern=True)) as peer, connect(peer.url) as client:
            with pytest.raises(TransportLost, match="before the response came"):
                await client.call("echo")
            assert "GET" not in peer.seen

    run(main())


# --- the stream for everything else ----------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_a_stream_of_its_own_is_used_without(status: int) -> None:
    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if exchange.verb == "GET":
                await exchange.send(status)
            return exchange.verb == "GET"

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url) as client:
            assert said(await client.call_tools(calls(3))) == ["word 0", "word 1", "word 2"]
            await until(lambda: "GET" in peer.seen)

    run(main())


def test_the_stream_of_the_server_is_kept_open_and_its_requests_are_answered() -> None:
    async def main() -> None:
        answered: list[Any] = []
        streams = []

        async def other(exchange: Exchange) -> bool:
            if exchange.verb == "GET":
                streams.append(exchange.headers.get("last-event-id"))
                await exchange.stream()
                number = len(streams)
                await exchange.event(
                    {"jsonrpc": "2.0", "id": f"s{number}", "method": "ping"}, id=f"g{number}", retry=10
                )
                if number == 3:
                    await exchange.gone()
                return True
            if isinstance(exchange.message, dict) and "method" not in exchange.message:
                answered.append(exchange.message)
            return False

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url):
            await until(lambda: len(answered) == 3)
            assert [one["id"] for one in answered] == ["s1", "s2", "s3"]
            assert all(one["result"] == {} for one in answered)
            assert streams == [None, "g1", "g2"]

    run(main())


@pytest.mark.parametrize("method", ["ping", "elicitation/create"])
def test_a_flood_on_a_stream_is_bounded(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable, "MAX_UNSENT", 50)

    async def main() -> None:
        most = 0

        async def call(exchange: Exchange) -> None:
            await exchange.stream()
            for number in range(3000):
                await exchange.event({"jsonrpc": "2.0", "id": f"s{number}", "method": method, "params": {}})
            await exchange.event(response(exchange, text("flooded")))

        async def answer(request: Any) -> Any:
            nonlocal most
            most = max(most, len(asyncio.all_tasks()))
            await asyncio.sleep(0.01)
            return {}

        async with http_peer(speaking(call)) as peer, connect(peer.url, answer=answer) as client:
            assert (await client.call("echo", timeout=None)).text == "flooded"
            assert most < 400
            assert await client.ping()

    logging.getLogger("midcall.client").setLevel(logging.CRITICAL)
    try:
        run(main())
    finally:
        logging.getLogger("midcall.client").setLevel(logging.NOTSET)


# --- sessions ---------------------------------------------------------------------------------------


async def refuse_404(exchange: Exchange) -> None:
    await exchange.send(404, b"Session not found", "text/plain")


async def refuse_404_with_error(exchange: Exchange) -> None:
    await exchange.refuse(404, -32001, "Session not found")


async def refuse_400_with_error(exchange: Exchange) -> None:
    await exchange.refuse(400, -32000, "Bad Request: No valid session ID provided")


@pytest.mark.parametrize("refuse", [refuse_404, refuse_404_with_error, refuse_400_with_error])
def test_a_session_that_has_expired_is_begun_anew_and_the_requests_are_sent_again(refuse: Handler) -> None:
    async def main() -> None:
        known = {"s1"}
        begun = 1

        async def other(exchange: Exchange) -> bool:
            nonlocal begun
            session = exchange.headers.get("mcp-session-id")
            if exchange.method == "initialize" and not known:
                begun += 1
                known.add(f"s{begun}")
                info = {"protocolVersion": LATEST, "capabilities": {"tools": {}}, "serverInfo": {}}
                await exchange.answer(info, mcp_session_id=f"s{begun}")
                return True
            if exchange.verb == "POST" and session is not None and session not in known:
                await refuse(exchange)
                return True
            return False

        handler = speaking(echo, other=other, session="s1")
        async with http_peer(handler) as peer, connect(peer.url) as client:
            assert (await client.call("echo", {"say": "one"})).text == "one"
            known.clear()
            assert (await client.call("echo", {"say": "two"})).text == "two"
            assert peer.seen.count("initialize") == 2
            known.clear()
            # All of a batch are refused, each for itself: none is lost.
            assert said(await client.call_tools(calls(20), parallel=True)) == [f"word {n}" for n in range(20)]
            assert peer.seen.count("initialize") == 3
            assert client.connected
            await nothing_waits(client)

    run(main())


def test_a_session_is_ended_when_the_client_leaves() -> None:
    async def main() -> None:
        async with http_peer(speaking(echo, session="s1")) as peer:
            async with connect(peer.url) as client:
                await client.call("echo")
            (left,) = [one for one in peer.exchanges if one.verb == "DELETE"]
            assert left.headers["mcp-session-id"] == "s1"

    run(main())


def test_no_request_overtakes_the_end_of_the_greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        order: list[str] = []

        async def other(exchange: Exchange) -> bool:
            if exchange.method == "notifications/initialized":
                await asyncio.sleep(0.2)
            if exchange.method:
                order.append(exchange.method)
            return False

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url) as client:
            await client.call_tools(calls(3), parallel=True)
            assert order == [
                "server/discover",
                "initialize",
                "notifications/initialized",
                *["tools/call"] * 3,
            ]

    run(main())


def test_a_server_that_never_takes_the_end_of_the_greeting_is_used_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamable, "HANDSHAKE", 0.1)

    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if exchange.method == "notifications/initialized":
                await exchange.gone()
                return True
            return False

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url) as client:
            assert (await client.call("echo", {"say": "x"})).text == "x"

    run(main())


# --- redirects ---------------------------------------------------------------------------------------


def test_a_redirect_on_the_same_server_is_followed() -> None:
    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if exchange.path == "/mcp":
                await exchange.send(307, location="/mcp/")
                return True
            return False

        for modern in (False, True):
            handler = speaking(echo, other=other, modern=modern)
            async with http_peer(handler) as peer, connect(peer.url) as client:
                assert said(await client.call_tools(calls(3))) == ["word 0", "word 1", "word 2"]
                assert [one.path for one in peer.exchanges].count("/mcp") == 1

    run(main())


def test_a_redirect_to_another_server_or_in_a_circle_is_not_followed() -> None:
    async def main() -> None:
        async with http_peer(speaking(echo)) as elsewhere:

            async def away(exchange: Exchange) -> None:
                await exchange.send(307, location=elsewhere.url)

            async def circle(exchange: Exchange) -> None:
                await exchange.send(308, location="/b" if exchange.path == "/a" else "/a")

            for call in (away, circle):
                async with http_peer(speaking(call)) as peer, connect(peer.url) as client:
                    with pytest.raises(RemoteError, match=r"HTTP 30[78], see "):
                        await client.call("echo")
            assert elsewhere.exchanges == []

    run(main())


# --- a server that goes away ---------------------------------------------------------------------------


def test_a_request_that_was_not_sent_is_sent_once_the_server_is_there_again() -> None:
    async def main() -> None:
        for modern in (False, True):
            async with (
                http_peer(speaking(echo, modern=modern, tools={})) as peer,
                connect(peer.url) as client,
            ):
                assert (await client.call("echo", {"say": "before"})).text == "before"
                await peer.stop()
                await asyncio.sleep(0.2)  # until the client knows that its idle connections are closed
                call = asyncio.ensure_future(client.call("echo", {"say": "during"})._collect())
                batch = asyncio.ensure_future(client.call_tools(calls(5), parallel=True))
                listing = asyncio.ensure_future(
                    client.request("ping") if not modern else client.request("server/discover")
                )
                await asyncio.sleep(0.5)
                assert not call.done() and not batch.done() and not listing.done()
                await peer.start()
                assert (await call).text == "during"
                assert said(await batch) == [f"word {n}" for n in range(5)]
                await listing
                await nothing_waits(client)

    run(main())


@pytest.mark.parametrize("modern", [False, True])
def test_a_request_that_may_have_been_sent_is_not_sent_twice(modern: bool) -> None:
    async def main() -> None:
        arrived = asyncio.Event()

        async def call(exchange: Exchange) -> None:
            arrived.set()
            await exchange.gone()

        async with http_peer(speaking(call, modern=modern)) as peer, connect(peer.url) as client:
            waiting = asyncio.ensure_future(client.call("echo")._collect())
            await arrived.wait()
            await peer.stop()
            with pytest.raises(TransportLost):
                await waiting
            await peer.start()
            assert await client.ping(timeout=LIMIT)
            assert peer.seen.count("tools/call") == 1

    run(main())


@pytest.mark.parametrize("modern", [False, True])
def test_a_ping_on_a_connection_that_is_just_being_closed_is_sent_again(modern: bool) -> None:
    async def main() -> None:
        asked = "server/discover" if modern else "ping"
        cut = 0

        async def other(exchange: Exchange) -> bool:
            nonlocal cut
            if not cut or exchange.method != asked:
                return False
            cut -= 1
            exchange.closing = True
            return True

        async with http_peer(speaking(echo, modern=modern, other=other)) as peer, connect(peer.url) as client:
            assert await client.ping()
            cut = 1
            assert await client.ping(timeout=LIMIT)
            cut = 2
            assert not await client.ping(timeout=LIMIT)
            assert await client.ping(timeout=LIMIT)

    run(main())


def test_a_server_that_stays_away_is_given_up() -> None:
    async def main() -> None:
        async with http_peer(speaking(echo)) as peer, connect(peer.url, give_up_after=0.5) as client:
            await peer.stop()
            await asyncio.sleep(0.2)
            with pytest.raises(Unreachable, match="cannot be reached"):
                await client.call("echo")
            (result,) = await client.call_tools(calls(1))
            assert "cannot be reached" in result["error"]
            (result,) = await client.call_tools(calls(1), timeout=0.1)
            assert result["error"] == "timeout"
            await peer.start()
            await until(lambda: client.connected)
            assert (await client.call("echo", {"say": "back"})).text == "back"

    run(main())


def test_a_busy_server_is_asked_again() -> None:
    async def main() -> None:
        for refusal in ({"status": 429}, {"status": 503, "retry_after": "0"}):
            tries = 0

            async def call(exchange: Exchange) -> None:
                nonlocal tries
                tries += 1
                if tries < 3:
                    await exchange.send(**refusal)  # noqa: B023
                else:
                    await echo(exchange)

            async with http_peer(speaking(call)) as peer, connect(peer.url) as client:
                assert (await client.call("echo", {"say": "x"})).text == "x"
                assert tries == 3

    run(main())


# --- HTTP+SSE --------------------------------------------------------------------------------------------


class OldServer:
    """The transport of 2024-11-05."""

    def __init__(self, endpoint: str = "/messages?id=1", refusal: int = 405) -> None:
        self.endpoint = endpoint
        self.refusal = refusal
        self.streams: list[Exchange] = []

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.verb == "GET":
            self.streams.append(exchange)
            await exchange.stream()
            if self.endpoint:
                await exchange.raw(f"event: endpoint\ndata: {self.endpoint}\n\n".encode())
            await exchange.gone()
        elif not exchange.path.startswith("/messages"):
            await exchange.send(self.refusal)
        else:
            await exchange.send(202)
            message = exchange.message
            match exchange.method:
                case "initialize":
                    info = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {}}
                    await self.say({"jsonrpc": "2.0", "id": message["id"], "result": info})
                case "tools/call":
                    await self.say(
                        {
                            "jsonrpc": "2.0",
                            "id": message["id"],
                            "result": text(message["params"]["arguments"]["say"]),
                        }
                    )
                case _ if "id" in message:
                    await self.say({"jsonrpc": "2.0", "id": message["id"], "result": {}})

    async def say(self, message: Any) -> None:
        await self.streams[-1].event(message)


@pytest.mark.parametrize("refusal", [400, 404, 405])
def test_a_server_of_the_old_transport_is_found_out(refusal: int) -> None:
    async def main() -> None:
        async with http_peer(OldServer(refusal=refusal)) as peer, connect(peer.url) as client:
            assert client.revision == "2024-11-05"
            assert said(await client.call_tools(calls(20), parallel=True)) == [f"word {n}" for n in range(20)]
            assert await client.ping()
            await nothing_waits(client)

    run(main())


def test_the_old_transport_can_be_named_in_settings() -> None:
    async def main() -> None:
        async with http_peer(OldServer()) as peer:
            settings = {"mcpServers": {"x": {"type": "sse", "url": peer.url}}}
            async with connect(settings) as client:
                assert said(await client.call_tools(calls(2))) == ["word 0", "word 1"]

    run(main())


def test_an_old_server_whose_stream_ends_fails_its_calls_and_is_connected_again() -> None:
    async def main() -> None:
        server = OldServer()
        silent = asyncio.Event()

        async def handle(exchange: Exchange) -> None:
            if exchange.method == "tools/call" and not silent.is_set():
                await exchange.send(202)
                silent.set()
            else:
                await server(exchange)

        async with http_peer(handle) as peer, connect(peer.url) as client:
            waiting = asyncio.ensure_future(client.call("echo", {"say": "lost"})._collect())
            await silent.wait()
            server.streams[-1].writer.close()
            with pytest.raises(TransportLost):
                await waiting
            assert (await client.call("echo", {"say": "again"})).text == "again"
            assert len(server.streams) == 2

    run(main())


def test_an_old_server_that_does_not_take_a_message_fails_that_call() -> None:
    async def main() -> None:
        server = OldServer()

        async def handle(exchange: Exchange) -> None:
            if exchange.method == "tools/call" and "refused" in str(exchange.message):
                await exchange.send(500)
            elif exchange.method == "tools/call" and "dropped" in str(exchange.message):
                exchange.closing = True
            else:
                await server(exchange)

        async with http_peer(handle) as peer, connect(peer.url) as client:
            with pytest.raises(TransportLost, match="did not take a message: HTTP 500"):
                await client.call("echo", {"say": "refused"})
            with pytest.raises(TransportLost, match="the connection was"):
                await client.call("echo", {"say": "dropped"})
            (late,) = await client.call_tools(
                [{"id": "a", "name": "silent", "arguments": {"say": 1}}], timeout=LIMIT
            )
            assert late["success"]
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize("endpoint", ["http://elsewhere.test/messages", "http://[bad", ""])
def test_an_old_server_that_names_no_good_address_is_unreachable(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(legacy_sse, "PATIENCE", 0.3)

    async def main() -> None:
        async with http_peer(OldServer(endpoint)) as peer:
            with pytest.raises(Unreachable):
                async with connect(peer.url):
                    pass
            with pytest.raises(Unreachable):
                async with connect({"url": peer.url, "type": "sse"}):
                    pass

    run(main())


# --- greeting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "text/html", b"<html>"),
        (404, "text/plain", b"not here"),
        (500, "text/html", b"<h1>broken</h1>"),
        (200, "application/json", b"null"),
        (401, "application/json", b'{"error": "unauthorized"}'),
    ],
)
def test_a_web_server_that_is_no_mcp_server_is_unreachable(status: int, kind: str, body: bytes) -> None:
    async def main() -> None:
        async with http_peer(lambda exchange: exchange.send(status, body, kind)) as peer:
            with pytest.raises(Unreachable, match="cannot be used"):
                async with connect(peer.url):
                    pass

    run(main())


def test_headers_that_are_given_go_with_every_request() -> None:
    async def main() -> None:
        async with http_peer(speaking(echo, session="s")) as peer:
            async with connect(peer.url, headers={"X-Key": "k"}) as client:
                await client.call("echo")
                await until(lambda: "GET" in peer.seen)
            assert {one.headers.get("x-key") for one in peer.exchanges} == {"k"}
            assert {one.verb for one in peer.exchanges} == {"POST", "GET", "DELETE"}

    run(main())


@pytest.mark.parametrize("headers", [{"X Key": "k"}, {"X-Key": "a\r\nb: c"}, {"X-Key": "\u2603"}])
def test_headers_that_cannot_be_sent_are_refused_at_once(headers: dict[str, str]) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="header"):
            connect("http://127.0.0.1:1/mcp", headers=headers)

    run(main())


def test_memory_is_flat_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_post, "LINGER", 0.05)

    async def main() -> None:
        count = 0

        async def call(exchange: Exchange) -> None:
            nonlocal count
            count += 1
            match count % 4:
                case 0:
                    await exchange.stream()
                case 1:
                    await exchange.send(500, b"<h1>no</h1>", "text/html")
                case 2:
                    await exchange.stream()
                    await exchange.event({"jsonrpc": "2.0", "id": 1, "method": "ping"})
                    await exchange.event(response(exchange, text("x")))
                case _:
                    await echo(exchange)

        async with http_peer(speaking(call)) as peer, connect(peer.url) as client:
            sizes = []
            for _ in range(4):
                for _ in range(10):
                    await client.call_tools(calls(20), parallel=True)
                peer.exchanges.clear()
                await asyncio.sleep(0.3)  # streams that linger
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            await nothing_waits(client)
            assert sizes[3] - sizes[1] < 300_000, sizes

    tracemalloc.start()
    try:
        run(main())
    finally:
        tracemalloc.stop()


def test_progress_and_log_come_as_items() -> None:
    async def main() -> None:
        async def call(exchange: Exchange) -> None:
            token = exchange.message["params"]["_meta"]["progressToken"]
            await exchange.stream()
            for params in (
                {"progress": 1, "total": 4, "message": "a"},
                {"progress": 2},
                {"progress": "x", "total": 0},
                {"message": 5},
                {},
            ):
                params = {"progressToken": token, **params}
                await exchange.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            await exchange.event(response(exchange, text("done")))

        async with http_peer(speaking(call, modern=True)) as peer, connect(peer.url) as client:
            items = [item async for item in client.call("echo")]
            progress = [(one.message, one.percentage) for one in items if isinstance(one, Progress)]
            assert progress == [("a", 25.0), ("", None), ("", None), ("", None), ("", None)]

    run(main())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_progress_and_log_of_a_midcall_server_come_as_items(era: str) -> None:
    async def main() -> None:
        async with midcall_server(era=era, log_level="warning") as client:
            items = [item async for item in client.call("give.narrate")]
            progress = [one.percentage for one in items if isinstance(one, Progress)]
            assert progress == [10.0, 60.0, 100.0]
            logs = [(one.level, one.message) for one in items if isinstance(one, Log)]
            levels = ("warning", "error", "critical", "alert", "emergency")
            assert logs == [(level, f"a line of {level}") for level in levels]
            assert items[-2].content.text == "told"

    run(main())


def test_log_that_belongs_to_no_call_goes_to_its_handler() -> None:
    async def main() -> None:
        logs: list[Any] = []

        async def other(exchange: Exchange) -> bool:
            if exchange.verb == "GET":
                await exchange.stream()
                for level in ("info", "error"):
                    params = {"level": level, "data": "x"}
                    await exchange.event(
                        {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
                    )
                await exchange.gone()
            return exchange.verb == "GET"

        def on_log(params: Any) -> None:
            logs.append(params)
            raise ValueError("what a handler does wrong harms nobody")

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url, on_log=on_log) as client:
            await until(lambda: len(logs) == 2)
            assert logs == [{"level": "info", "data": "x"}, {"level": "error", "data": "x"}]
            assert await client.ping()

    run(main())


@pytest.mark.parametrize(
    "result", [{}, {"contents": 5}, {"contents": [1]}, {"completion": 5}, {"completion": {"values": 5}}]
)
def test_other_results_that_cannot_be_read_are_empty(result: dict[str, Any]) -> None:
    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if exchange.method in ("resources/read", "completion/complete"):
                await exchange.answer(result)
                return True
            return False

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url) as client:
            assert await client.read("x://y") == []
            assert await client.complete({"type": "ref/prompt", "name": "x"}, "a", "b") == []

    run(main())

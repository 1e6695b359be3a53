"""Responses that are all there, on midcall's own server and on uvicorn as it comes: the same to a client."""

import asyncio

import pytest

from driving import with_patience
from midcall.transports import uvicorn_protocol
from open_streams import OWN, WAYS, Visitor, drive


def plain(visitor: Visitor, text: str, *head: str) -> bytes:
    return visitor.call("echo", *head, text=text)


@WAYS
def test_a_response_has_its_length_its_kind_and_its_date(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        for text in ("a", "ü" * 70_000, ""):
            line.send(plain(visitor, text))
            reply = await line.whole()
            assert (reply.status, reply.text) == (200, text)
            assert reply.headers["content-type"] == "application/json"
            assert {"date", "server", "content-length"} <= set(reply.headers)
            assert "transfer-encoding" not in reply.headers

    drive(way, run)


@WAYS
def test_requests_in_one_packet_are_answered_in_order(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        line.send(b"".join(plain(visitor, f"{n}") for n in range(5)))
        assert [(await line.whole()).text for _ in range(5)] == [f"{n}" for n in range(5)]

    drive(way, run)


@WAYS
def test_a_client_that_wants_no_second_request_is_hung_up_on(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        line.send(plain(visitor, "last", "connection: close"))
        reply = await line.whole()
        assert (reply.text, reply.headers["connection"]) == ("last", "close")
        assert await line.at_end()

    drive(way, run)


@WAYS
def test_a_client_that_asks_before_it_sends_its_body_is_told_to_go_on(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        head, _, body = plain(visitor, "wait for it", "expect: 100-continue").partition(b"\r\n\r\n")
        line.send(head + b"\r\n\r\n")
        assert (await line.head()).status == 100
        line.send(body)
        assert (await line.whole()).text == "wait for it"

    drive(way, run)


@WAYS
def test_a_body_that_comes_in_parts_is_read_whole(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        request = plain(visitor, "x" * 1000)
        for place in range(0, len(request), 200):
            line.send(request[place : place + 200])
            await asyncio.sleep(0.01)
        assert (await line.whole()).text == "x" * 1000

    drive(way, run)


@WAYS
def test_a_connection_is_closed_when_nothing_has_come_for_a_while_and_not_before(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        async def attempt(seconds: float) -> bool:
            visitor.http.config.timeout_keep_alive = seconds
            line, loop = await visitor.line(), asyncio.get_running_loop()
            for _ in range(6):
                line.send(plain(visitor, "again"))
                try:
                    assert (await line.whole()).text == "again"
                except (IndexError, OSError):  # it is closed
                    return False
                await asyncio.sleep(seconds / 4)
            begun = loop.time()
            assert await line.at_end()
            return loop.time() - begun > seconds / 10

        await with_patience(attempt)

    drive(way, run)


@WAYS
def test_a_page_may_read_what_it_is_let_in_for(way: str) -> None:
    async def run(visitor: Visitor) -> None:
        line = await visitor.line()
        origin = f"http://127.0.0.1:{visitor.port}"
        line.send(plain(visitor, "page", f"origin: {origin}"))
        reply = await line.whole()
        assert reply.status == 200, reply.body
        assert reply.headers["access-control-allow-origin"] == origin
        assert reply.text == "page"

    drive(way, run)


def test_midcalls_own_server_does_send_them_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the others here would all go one way."""
    sent: list[bool] = []
    respond = uvicorn_protocol.HttpProtocol._respond

    def noted(self: uvicorn_protocol.HttpProtocol, *args: object) -> bool:
        sent.append(respond(self, *args))  # type: ignore[arg-type]
        return sent[-1]

    monkeypatch.setattr(uvicorn_protocol.HttpProtocol, "_respond", noted)

    async def run(visitor: Visitor) -> None:
        sent.clear()
        line = await visitor.line()
        line.send(plain(visitor, "whole"))
        await line.whole()
        line.send(plain(visitor, "not whole", "connection: close"))
        await line.whole()

    drive(OWN, run)
    assert sent == [True, False]

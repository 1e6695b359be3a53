"""The line ends in the middle: pipes closed, sockets dropped, readers that stop reading."""

import asyncio
import fcntl
import os
import signal
import sys
import termios
from typing import Any

import pytest
from websockets.asyncio.client import connect as raw_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from driving import LIMIT, until
from midcall import Data, Done, Request, TransportLost, UnknownQuestion, connect_hub
from midcall.client.websocket import Remote
from peers import Peer, SocketWire, command, environment, http_server, stdio_peer


async def ask_in(peer: Peer, name: str) -> str:
    subscription = await peer.result("plexus_subscribe", ["probe.ask", {"name": name}])
    await peer.item(subscription, "request")
    return str(subscription)


def test_closing_the_input_in_the_middle_of_a_wait_ends_call_and_process() -> None:
    async def run() -> None:
        async with stdio_peer() as peer:
            subscription = await ask_in(peer, "n")
            process = peer.wire.process  # type: ignore[attr-defined]
            process.stdin.close()
            items = await peer.items(subscription)
            assert [item["type"] for item in items] == ["error", "done"]
            assert items[0]["code"] == "transport_lost"
            async with asyncio.timeout(LIMIT):
                assert await process.wait() == 0

    asyncio.run(run())


def test_what_runs_at_the_end_of_the_input_still_gets_its_response() -> None:
    async def run() -> None:
        async with stdio_peer() as peer:
            await peer.send(b'{"jsonrpc":"2.0","id":1,"method":"probe.sleep","params":{"seconds":0.3}}')
            peer.wire.process.stdin.close()  # type: ignore[attr-defined]
            assert (await peer.response(1))["result"] == "slept"

    asyncio.run(run())


def test_a_reader_that_goes_away_ends_the_process() -> None:
    async def run() -> None:
        async with stdio_peer() as peer:
            await ask_in(peer, "n")
            process = peer.wire.process  # type: ignore[attr-defined]
            process._transport.get_pipe_transport(1).close()
            await peer.send(b'{"jsonrpc":"2.0","id":1,"method":"echo.ping"}')
            async with asyncio.timeout(LIMIT):
                assert await process.wait() == 0

    asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_waiting_server_cleanly(number: signal.Signals) -> None:
    async def run() -> None:
        async with stdio_peer() as peer:
            await ask_in(peer, "n")
            process = peer.wire.process  # type: ignore[attr-defined]
            process.send_signal(number)
            async with asyncio.timeout(LIMIT):
                assert await process.wait() == 0
            errors = await process.stderr.read()
            assert b"Traceback" not in errors, errors.decode()

    asyncio.run(run())


def test_a_slow_reader_slows_the_tool_on_stdio() -> None:
    async def run() -> None:
        to_server, from_server = os.pipe(), os.pipe()
        process = await asyncio.create_subprocess_exec(
            *command("serve", "lines_app:hub", "--stdio"),
            stdin=to_server[0],
            stdout=from_server[1],
            env=environment(),
        )
        os.close(to_server[0])
        os.close(from_server[1])
        try:
            flood = b'{"jsonrpc":"2.0","id":1,"method":"plexus_subscribe","params":["probe.flood",{"count":100000}]}'
            os.write(to_server[1], flood + b"\n")
            await until(lambda: _waiting(from_server[0]) > 60_000)  # nobody reads
            os.write(to_server[1], b'{"jsonrpc":"2.0","id":2,"method":"probe.state"}\n')
            lines = await asyncio.to_thread(_lines_until, from_server[0], b'"id":2')
            sent_ahead = sum(b'"type":"data"' in line for line in lines)
            # A buffer of 1 MiB, the pipe, and what was taken while the response was on its way.
            assert 0 < sent_ahead < 10_000
        finally:
            os.close(to_server[1])
            async with asyncio.timeout(LIMIT):
                await process.wait()
            process._transport.close()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_a_slow_reader_slows_the_tool_on_a_websocket_and_nobody_else() -> None:
    async def run() -> None:
        async with http_server() as url, raw_connect(url, max_size=None, max_queue=1) as slow:
            flood = b'{"jsonrpc":"2.0","id":1,"method":"plexus_subscribe","params":["probe.flood",{"count":100000,"size":10000}]}'
            await slow.send(flood.decode())
            async with raw_connect(url) as socket, asyncio.timeout(LIMIT):
                peer = Peer(SocketWire(socket))
                before, sent = -1, 0
                while not 0 < before == sent:  # until it waits, as nobody reads
                    await asyncio.sleep(0.3)
                    trail = (await peer.result("probe.state"))["trail"]
                    before, sent = sent, int(trail[0]) if trail else 0
                assert sent < 20_000
            slow.transport.abort()

    asyncio.run(run())


def test_a_dropped_websocket_aborts_its_calls_and_no_others() -> None:
    async def run() -> None:
        async with http_server() as url, raw_connect(url) as staying:
            peer = Peer(SocketWire(staying))
            kept = await ask_in(peer, "kept")
            async with raw_connect(url) as socket:
                await ask_in(Peer(SocketWire(socket)), "closed")
            async with raw_connect(url) as socket:
                await ask_in(Peer(SocketWire(socket)), "dropped")
                socket.transport.abort()
            async with asyncio.timeout(LIMIT):
                while True:
                    state = await peer.result("probe.state")
                    if (state["calls"], state["questions"], state["tasks"]) == (1, 1, 1):
                        break
                    await asyncio.sleep(0.02)
            assert {"closed was cancelled", "dropped was cancelled"} <= set(state["trail"])
            assert "kept was cancelled" not in state["trail"]
            await peer.result("plexus_unsubscribe", [kept])
            await peer.settled()

    asyncio.run(run())


def test_nobody_answers_another_connections_question() -> None:
    async def run() -> None:
        async with http_server() as url, raw_connect(url) as one, raw_connect(url) as two:
            owner, thief = Peer(SocketWire(one)), Peer(SocketWire(two))
            subscription = await owner.result("plexus_subscribe", ["probe.ask", {"name": "n"}])
            id = (await owner.item(subscription, "request"))["request_id"]
            for method, params in (
                ("plexus_respond", [subscription, id, "stolen"]),
                ("plexus.respond", {"request_id": id, "response_data": "stolen"}),
            ):
                error = (await thief.request(method, params))["error"]
                assert error["message"].startswith(f"Unknown request ID: {id}.")
            assert await thief.result("plexus_unsubscribe", [subscription]) is False
            await owner.result("plexus_respond", [subscription, id, "mine"])
            assert (await owner.item(subscription, "data"))["content"]["word"] == "mine"

    asyncio.run(run())


def test_a_web_page_of_another_origin_is_turned_away() -> None:
    async def run() -> None:
        async with http_server() as url:
            own = url.replace("ws://", "http://").removesuffix("/ws")
            async with raw_connect(url, origin=Origin(own)) as socket:
                assert (await Peer(SocketWire(socket)).result("echo.ping"))["type"] == "pong"
            for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
                with pytest.raises(InvalidStatus) as refused:
                    await raw_connect(url, origin=Origin(origin))
                assert refused.value.response.status_code == 403

    asyncio.run(run())


def test_a_text_frame_that_is_no_utf_8_ends_its_connection_and_no_other() -> None:
    """RFC 6455 demands it, so it never reaches the protocol; a binary frame gets a JSON-RPC error."""

    async def run() -> None:
        async with http_server() as url, raw_connect(url) as staying:
            async with raw_connect(url) as socket:
                await socket.send(
                    b'{"jsonrpc":"2.0","id":1,"method":"echo.ping","params":{"x":"\xff"}}', text=True
                )
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1007
            assert (await Peer(SocketWire(staying)).result("echo.ping"))["type"] == "pong"
            async with raw_connect(url) as socket:
                assert (await Peer(SocketWire(socket)).result("echo.ping"))["type"] == "pong"

    asyncio.run(run())


# --- the Python client ----------------------------------------------------------------------


async def first_question(remote: Remote, name: str) -> tuple[Any, Any, Request]:
    invocation = remote.call("probe.ask", {"name": name}, supports={"prompt"})
    items = aiter(invocation)
    question = await anext(items)
    assert isinstance(question, Request)
    return invocation, items, question


def test_the_client_answers_by_hand_and_cannot_answer_twice() -> None:
    async def run() -> None:
        async with http_server() as url, connect_hub(url) as remote:
            invocation, items, question = await first_question(remote, "n")
            await invocation.answer(question.request_id, "word")
            with pytest.raises(UnknownQuestion, match="may have timed out or been cancelled"):
                await invocation.answer(question.request_id, "word")
            rest = [item async for item in items]
            assert [type(item) for item in rest] == [Data, Done]
            assert (await remote.schema("probe.ask"))["interactive"] is True

    asyncio.run(run())


def test_the_client_comes_back_after_the_server_was_restarted() -> None:
    async def run() -> None:
        async with http_server() as url:
            port = int(url.rsplit(":", 1)[1].partition("/")[0])
            remote = connect_hub(url, give_up_after=LIMIT)
            await remote.__aenter__()
            _, items, _ = await first_question(remote, "lost")
        # The server is gone: what was running is lost, and told so.
        ended = [item async for item in items]
        assert (ended[0].code, type(ended[-1])) == ("transport_lost", Done)
        waiting = asyncio.create_task(_result(remote))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "a call waits for the connection"
        async with http_server(port=port):
            assert await waiting == {"type": "pong", "message": "pong"}
            await remote.close()
        with pytest.raises(TransportLost):
            await remote.call("echo.ping")

    asyncio.run(run())


def test_a_client_gives_up_with_a_clear_error_when_nobody_listens() -> None:
    async def run() -> None:
        with pytest.raises(TransportLost, match=r"Cannot connect to ws://127\.0\.0\.1:9/ws"):
            async with connect_hub("ws://127.0.0.1:9/ws", give_up_after=0.3):
                pass

    asyncio.run(run())


def test_leaving_a_remote_stream_early_cancels_the_call() -> None:
    async def run() -> None:
        async with http_server() as url, connect_hub(url) as remote:
            items = aiter(remote.call("probe.flood", {"count": 1_000_000}))
            async for _ in items:
                break
            await items.aclose()  # type: ignore[attr-defined]
            while (await remote.request("probe.state"))["calls"]:
                await asyncio.sleep(0.02)

    asyncio.run(run())


async def _result(remote: Remote) -> Any:
    return await remote.call("echo.ping")


def _waiting(pipe: int) -> int:
    """How many bytes nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _lines_until(fd: int, end: bytes) -> list[bytes]:
    with os.fdopen(fd, "rb") as file:
        return list(iter(lambda: _unless(file.readline(), end), b""))


def _unless(line: bytes, end: bytes) -> bytes:
    return b"" if end in line else line

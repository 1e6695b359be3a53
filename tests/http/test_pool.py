"""The HTTP client's connections: kept, shared, limited, given up, and closed."""

import asyncio
import gc
import socket
import threading
import time
import tracemalloc
from functools import partial

import pytest

from http_peers import (
    OK,
    STAY,
    Played,
    Run,
    get,
    loops,
    playing,
    post,
    read_request,
    run_in,
    serving,
    until,
    uvicorn_server,
)
from midcall.http.client import HttpClient
from midcall.http.message import HttpError, HttpUrl

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture(params=loops(), ids=lambda factory: factory.__module__)
def drive(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine, on each kind of event loop."""
    return partial(run_in, request.param)


# --- kept connections ----------------------------------------------------------------------------


def test_one_request_after_another_uses_one_connection(drive: Run) -> None:
    async def main() -> None:
        async with playing([OK] * 20) as server, HttpClient() as client:
            for _ in range(20):
                assert await post(client, server.url).text() == b"ok"
            assert server.connections == 1

    drive(main())


@pytest.mark.parametrize(
    "answer", [CLOSING, b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"], ids=["close", "HTTP/1.0"]
)
def test_a_connection_that_the_server_will_close_is_not_used_again(drive: Run, answer: bytes) -> None:
    async def main() -> None:
        async with playing([answer, STAY]) as server, HttpClient() as client:
            for _ in range(3):
                assert await post(client, server.url).text() == b"ok"
            assert server.connections == 3
            await until(lambda: server.open == 0)

    drive(main())


def test_a_connection_that_was_closed_between_two_requests_is_replaced(drive: Run) -> None:
    async def main() -> None:
        async with playing([OK]) as server, HttpClient() as client:
            for number in range(1, 4):
                assert await post(client, server.url).text() == b"ok"
                await until(lambda: server.open == 0)
                await asyncio.sleep(0.01)
                assert server.connections == number

    drive(main())


def test_a_request_that_met_a_closing_is_not_sent_again_since_it_may_have_been_heard(drive: Run) -> None:
    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (OK, b""):
            played.requests.append(await read_request(reader))
            writer.write(answer)

    async def main() -> None:
        async with serving(handler) as server, HttpClient() as client:
            assert await post(client, server.url).text() == b"ok"
            record = await post(client, server.url).whole()
            assert str(record.error) == f"{server.url} gave no answer: the connection was closed"
            assert record.error is not None
            assert record.error.sent is True
            assert (server.connections, len(server.requests)) == (1, 2)

    drive(main())


def test_a_closing_that_the_event_loop_has_not_seen_yet_is_noticed(drive: Run) -> None:
    """The loop is held up while the server closes: a request that is sent then must not be lost."""
    closed = threading.Event()
    connections = 0

    def serve(listener: socket.socket) -> None:
        nonlocal connections
        for _ in range(2):
            accepted, _ = listener.accept()
            with accepted:
                connections += 1
                accepted.recv(65536)
                accepted.sendall(OK)
                time.sleep(0.2)
            closed.set()

    async def main(url: HttpUrl) -> None:
        async with HttpClient() as client:
            assert await post(client, url).text() == b"ok"
            closed.wait(30)
            assert await post(client, url).text() == b"ok"
        assert connections == 2

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=[listener], daemon=True)
        server.start()
        drive(main(HttpUrl(f"http://127.0.0.1:{listener.getsockname()[1]}/")))
        server.join(30)


def test_a_connection_that_was_idle_for_too_long_is_closed(drive: Run) -> None:
    async def main() -> None:
        async with playing([OK, OK, STAY]) as server, HttpClient(idle_timeout=0.05) as client:
            assert await post(client, server.url).text() == b"ok"
            await until(lambda: server.open == 0)
            assert await post(client, server.url).text() == b"ok"
            assert server.connections == 2
        async with playing([OK, OK, STAY]) as server, HttpClient(idle_timeout=0.05) as client:
            assert await post(client, server.url).text() == b"ok"
            time.sleep(0.1)  # the loop gets no chance to close it
            assert await post(client, server.url).text() == b"ok"
            assert server.connections == 2

    drive(main())


@pytest.mark.parametrize("excess", [OK, b"HTTP/1.1 200 OK\r\n", b"garbage", b"\0", OK[:5]])
def test_what_comes_beyond_a_response_is_not_taken_for_the_next(drive: Run, excess: bytes) -> None:
    async def main() -> None:
        evil = OK + excess
        async with playing([evil, STAY], [OK, STAY]) as server, HttpClient(max_connections=1) as client:
            first, second = post(client, server.url, b"1"), post(client, server.url, b"2")
            await first.whole()
            assert first.content == b"ok" or "sent an invalid response" in str(first.error)
            assert await second.text() == b"ok"
            assert server.connections == 2
            assert [request[-1:] for request in server.requests] == [b"1", b"2"]

    drive(main())


def test_what_comes_unasked_on_an_idle_connection_is_not_taken_for_a_response(drive: Run) -> None:
    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        if played.connections == 1:
            await told.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    async def main() -> None:
        nonlocal told
        told = asyncio.Event()
        async with serving(handler) as server, HttpClient(idle_timeout=1000) as client:
            assert await post(client, server.url).text() == b"ok"
            told.set()
            await until(lambda: server.open == 0)
            record = await post(client, server.url).whole()
            assert (record.status, record.content) == (200, b"ok")

    told: asyncio.Event
    drive(main())


def test_a_response_before_the_request_is_all_sent_ends_the_connection(drive: Run) -> None:
    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")
        await done.wait()

    async def main() -> None:
        nonlocal done
        done = asyncio.Event()
        async with serving(handler) as server, HttpClient() as client:
            for number in (1, 2):
                record = await post(client, server.url, bytes(64 * 1024 * 1024)).whole()
                assert (record.error, record.status) == (None, 413)
                assert server.connections == number
            done.set()

    done: asyncio.Event
    drive(main())


# --- many at once --------------------------------------------------------------------------------


def test_a_thousand_requests_at_once_share_fifty_connections(drive: Run) -> None:
    async def main() -> None:
        most = 0
        async with uvicorn_server() as server, HttpClient(max_connections=50) as client:
            records = [post(client, server.at("/slow"), b"%d" % number) for number in range(1000)]
            for number, record in enumerate(records):
                assert await record.text() == b"%d" % number
                most = max(most, server.connections)
            assert most <= 50
            assert server.connections > 25  # they are used, and kept

    drive(main())


def test_requests_that_wait_are_sent_in_their_order(drive: Run) -> None:
    async def main() -> None:
        async with playing([OK] * 100) as server, HttpClient(max_connections=1) as client:
            records = [post(client, server.url, b"%03d" % number) for number in range(100)]
            records[50].task.cancel()
            for record in records[:50] + records[51:]:
                assert await record.text() == b"ok"
            sent = [int(request[-3:]) for request in server.requests]
            assert sent == [number for number in range(100) if number != 50]

    drive(main())


def test_streams_of_events_do_not_hold_up_other_requests(drive: Run) -> None:
    async def main() -> None:
        async with uvicorn_server() as server, HttpClient(max_connections=2) as client:
            streams = [get(client, server.at("/events")) for _ in range(20)]
            for stream in streams:
                await stream.grew.wait()
            short = [post(client, server.url, b"%d" % number) for number in range(20)]
            assert [await record.text() for record in short] == [b"%d" % number for number in range(20)]
            assert 20 < server.connections <= 22
            assert not any(stream.ended.is_set() for stream in streams)
            for stream in streams:
                stream.task.cancel()
            await until(lambda: server.connections <= 2)

    drive(main())


def test_streams_have_a_limit_too(drive: Run) -> None:
    async def main() -> None:
        async with uvicorn_server() as server, HttpClient(max_connections=2, max_streams=3) as client:
            streams = [get(client, server.at("/events")) for _ in range(6)]
            await until(lambda: sum(stream.grew.is_set() for stream in streams) == 5)
            await asyncio.sleep(0.05)
            assert server.connections == 5
            assert not streams[5].began.is_set()
            streams[0].task.cancel()
            await streams[5].grew.wait()
            for stream in streams:
                stream.task.cancel()

    drive(main())


def test_a_stream_that_ends_gives_its_connection_back(drive: Run) -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\ndata: 1\n\n"

    async def main() -> None:
        async with playing([whole] * 10) as server, HttpClient(max_connections=1, max_streams=1) as client:
            for _ in range(10):
                assert await get(client, server.url).text() == b"data: 1\n\n"
            assert server.connections == 1

    drive(main())


def test_when_streams_end_their_connections_are_not_kept_for_long(drive: Run) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\n"

    async def handler(played: Played, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head)
        await go_on.wait()
        writer.write(b"data: 1\n\n")
        await reader.read()

    async def main() -> None:
        nonlocal go_on
        go_on = asyncio.Event()
        async with (
            serving(handler) as server,
            HttpClient(max_connections=2, max_streams=8, idle_timeout=0.1) as client,
        ):
            streams = [get(client, server.url) for _ in range(10)]
            for stream in streams:
                await stream.began.wait()
            assert server.open == 10
            go_on.set()
            for stream in streams:
                assert await stream.text() == b"data: 1\n\n"
            await until(lambda: server.open == 0)

    go_on: asyncio.Event
    drive(main())


# --- giving up -----------------------------------------------------------------------------------


def test_a_request_can_be_cancelled_at_any_time(drive: Run) -> None:
    async def main() -> None:
        async with playing([EVENTS, STAY]) as server, HttpClient(max_connections=1, max_streams=0) as client:
            connecting, waiting = get(client, server.url), get(client, server.url)
            await asyncio.sleep(0)
            connecting.task.cancel()
            waiting.task.cancel()
            streaming, waiting = get(client, server.url), get(client, server.url)
            await streaming.grew.wait()
            waiting.task.cancel()
            streaming.task.cancel()
            await until(lambda: server.open == 0)
            last = get(client, server.url)
            await last.grew.wait()
            assert not any(record.ended.is_set() for record in (connecting, waiting, streaming, last))
            assert len(server.requests) == 2

    drive(main())


def test_a_cancelled_task_gives_its_request_up(drive: Run) -> None:
    async def main() -> None:
        async with playing([STAY]) as silent, playing([EVENTS, STAY]) as server, HttpClient() as client:
            task = asyncio.create_task(client.request("GET", silent.url))
            await until(lambda: silent.open == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: silent.open == 0)
            response = await client.request("GET", server.url)
            task = asyncio.create_task(response.read())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: server.open == 0)

    drive(main())


# --- the end -------------------------------------------------------------------------------------


def test_closing_the_client_ends_everything_once(drive: Run) -> None:
    async def main() -> None:
        async with uvicorn_server() as server:
            client = HttpClient(max_connections=3, max_streams=0)
            for record in [post(client, server.at("/slow"), b"kept") for _ in range(3)]:
                assert await record.text() == b"kept"
            busy = get(client, server.at("/events"))
            await busy.grew.wait()
            others = [get(client, server.at("/events")) for _ in range(10)]
            await asyncio.sleep(0)
            await client.close()
            await client.close()
            for record in (busy, *others):
                await record.whole()
            assert (
                str(busy.error)
                == f"{server.at('/events')} sent an incomplete response: the client was closed"
            )
            assert busy.error is not None
            assert busy.error.sent is True
            assert others[-1].error is not None
            assert others[-1].error.sent is False
            assert str(others[-1].error) == f"{server.at('/events')} was not called: the client was closed"
            await until(lambda: server.connections == 0)
            with pytest.raises(HttpError, match="this client is closed") as caught:
                await client.request("GET", server.url)
            assert caught.value.sent is False

    drive(main())


def test_closing_the_client_stops_what_is_being_connected(drive: Run) -> None:
    async def main() -> None:
        async with playing([STAY]) as server:
            client = HttpClient()
            record = get(client, HttpUrl(str(server.url).replace("http:", "https:")))  # it never says hello
            await until(lambda: server.open == 1)
            await client.close()
            assert "the client was closed" in str((await record.whole()).error)
            await until(lambda: server.open == 0)

    drive(main())


def test_memory_stays_flat_over_thousands_of_requests(drive: Run) -> None:
    async def main() -> None:
        async def turn(number: int) -> None:
            for _ in range(number):
                records = [post(client, server.url, bytes(1000)) for _ in range(20)]
                await asyncio.sleep(0)
                for place, record in enumerate(records):
                    if place % 10 == 9:
                        record.task.cancel()
                for place, record in enumerate(records):
                    if place % 10 != 9:
                        await record.text()

        def held() -> int:
            """Bytes of the client: the server is in this process too."""
            gc.collect()
            ours = [tracemalloc.Filter(True, f"*/{name}/*") for name in ("aiohttp", "midcall")]
            found = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
            return sum(one.size for one in found)

        async with uvicorn_server() as server, HttpClient(max_connections=10) as client:
            await turn(20)
            tracemalloc.start()
            try:
                await turn(5)
                before = held()
                await turn(100)
                grown = held() - before
            finally:
                tracemalloc.stop()
            assert grown < 200_000, grown  # 2,000 requests: 100 bytes for each would be as much

    drive(main())

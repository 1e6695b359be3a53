"""What a peer may take of a server before it has said who it is, and beside its calls: bytes, time, connections."""

import asyncio
import contextlib
import gc
import json
import socket
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvloop
from websockets.asyncio.client import connect as open_socket

from driving import LIMIT, assert_no_errors, until, with_patience
from midcall import Hub, method
from midcall.transports import http_server, mcp_http, responses
from midcall.transports.auth import StaticKeys
from midcall.transports.connection_limits import DEFAULTS, Limits
from midcall.transports.http_sessions import HttpSession
from midcall.transports.responses import HttpLine
from peers import environment, free_port

KEY = "ada-0123456789abcdef"
LOOPS = pytest.mark.parametrize("loop", [uvloop.new_event_loop, None], ids=["uvloop", "asyncio"])


class Work:
    """What is called here."""

    def __init__(self) -> None:
        self.done = 0

    @method
    async def large(self, size: int) -> dict[str, str]:
        """Give much."""
        self.done += 1
        return {"text": "x" * size}

    @method
    async def echo(self, text: str) -> str:
        """Say it back."""
        return text

    @method
    async def slow_echo(self, text: str) -> str:
        """Say it back, after a while in which it is watched whether the caller leaves."""
        await asyncio.sleep(3 * mcp_http.WATCH_AFTER)
        return text


class Place:
    """A server in this process."""

    def __init__(self, work: Work, http: Any, port: int) -> None:
        self.work = work
        self.http = http
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def connections(self) -> int:
        return len(self.http.server_state.connections)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**26)
        self._writers.append(writer)
        return reader, writer

    async def said(self, *parts: bytes) -> bytes:
        """All that the server says on one connection, after this was sent to it, until it hangs up."""
        reader, writer = await self.connect()
        with contextlib.suppress(OSError):
            for part in parts:
                writer.write(part)
                await writer.drain()
        return await everything(reader)

    def post(self, name: str, *head: str, path: str = "/mcp", **arguments: Any) -> bytes:
        params = {
            "name": f"work.{name}",
            "arguments": arguments,
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        }
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        lines = (
            f"POST {path} HTTP/1.1",
            "host: localhost",
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            "mcp-protocol-version: 2026-07-28",
            "mcp-method: tools/call",
            f"mcp-name: work.{name}",
            f"content-length: {len(body)}",
            *head,
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def leave(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def everything(reader: asyncio.StreamReader) -> bytes:
    """What is said before the connection ends, however it does."""
    said = b""
    with contextlib.suppress(OSError):
        while more := await reader.read(2**16):
            said += more
    return said


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """One response that tells its length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
    )
    return int(head.split()[1]), await reader.readexactly(length)


def status(said: bytes) -> int:
    return int(said.split()[1]) if said else 0


@asynccontextmanager
async def serving(limits: Limits, **options: Any) -> AsyncIterator[Place]:
    work = Work()
    port = free_port()
    http = http_server.server(
        Hub().register(work), port=port, log_level="error", own_log=False, grace=0, limits=limits, **options
    )
    running = asyncio.ensure_future(http.serve())
    await until(lambda: http.started or running.done())
    place = Place(work, http, port)
    try:
        yield place
    finally:
        place.leave()
        http.should_exit = True
        await running


def run(
    loop: Any, main: Callable[[Place], Awaitable[None]], limits: Limits = DEFAULTS, **options: Any
) -> None:
    """With a server; no error may be lost, not even one that only the loop hears of."""

    async def serve() -> None:
        async with serving(limits, **options) as place:
            await main(place)

    watch(loop, serve())


def run_with_patience(
    loop: Any, attempt: Callable[[Place, float], Awaitable[bool]], limits: Limits, **options: Any
) -> None:
    """As `run`, but the times of the limits are tried with more and more seconds: see `with_patience`."""

    async def serve(seconds: float) -> bool:
        timed = msgspec.structs.replace(limits, head_time=seconds, pace_time=seconds)
        async with serving(timed, **options) as place:
            return await attempt(place, seconds)

    watch(loop, with_patience(serve))


def watch(loop: Any, main: Coroutine[Any, Any, None]) -> None:
    unseen: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        async with asyncio.timeout(LIMIT):
            await main

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(watched())
    gc.collect()
    assert_no_errors(unseen)


# --- heads -----------------------------------------------------------------------------------


HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@LOOPS
@pytest.mark.parametrize(
    "head",
    [
        (HEAD + b"x-note: " + b"x" * 70_000 + b"\r\n\r\n",),
        (HEAD, b"x-note: ", b"x" * 2**24),
        (HEAD, *[b"x-%d: y\r\n" % n for n in range(20_000)]),
        (b"GET /", b"x" * 2**24),
        (HEAD, b"x-note: ", *[b"x" * 1000] * 100, b"\r\n\r\n"),
    ],
    ids=["at once", "one header", "many headers", "address", "bit by bit"],
)
def test_a_head_of_more_than_64_kb_is_refused_and_not_kept(loop: Any, head: tuple[bytes, ...]) -> None:
    async def main(place: Place) -> None:
        said = await place.said(*head)
        assert status(said) in (431, 0), said  # or it was hung up on while it still sent
        if len(b"".join(head)) < 200_000:
            assert status(said) == 431, said
            assert b"connection: close" in said
        await until(lambda: place.connections == 0)

    run(loop, main)


@LOOPS
def test_a_head_of_more_than_64_kb_is_refused_though_only_its_end_comes_later(loop: Any) -> None:
    async def main(place: Place) -> None:
        reader, writer = await place.connect()
        writer.write(HEAD + b"x-note: " + b"x" * 100_000)
        await until(lambda: any(one._chunk for one in place.http.server_state.connections))
        writer.write(b"\r\n\r\n")
        assert status(await everything(reader)) == 431

    run(loop, main)


@LOOPS
def test_a_head_of_nearly_64_kb_is_read_also_in_front_of_a_large_body_and_of_another_request(
    loop: Any,
) -> None:
    async def main(place: Place) -> None:
        reader, writer = await place.connect()
        note = f"x-note: {'x' * 60_000}"
        large = place.post("echo", note, text="y" * 300_000)
        small = place.post("echo", note, text="z")
        writer.write(large + small[:30_000])
        assert (await response(reader))[0] == 200
        writer.write(small[30_000:])
        assert (await response(reader))[0] == 200

    run(loop, main)


@LOOPS
def test_a_websocket_handshake_has_the_same_limit(loop: Any) -> None:
    async def main(place: Place) -> None:
        said = await place.said(
            b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"x-note: " + b"x" * 70_000 + b"\r\n\r\n"
        )
        assert status(said) == 431

    run(loop, main)


@LOOPS
@pytest.mark.parametrize("more", [b"x" * 9_000, b"y\r\nx-n: " * 200], ids=["long header", "many headers"])
def test_a_websocket_handshake_that_is_not_understood_is_refused_without_a_stack_trace(
    loop: Any, more: bytes
) -> None:
    async def main(place: Place) -> None:
        said = await place.said(
            b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"x-note: " + more + b"\r\n\r\n"
        )
        assert status(said) == 431
        await until(lambda: place.connections == 0)

    run(loop, main)


@LOOPS
def test_what_comes_after_a_body_is_no_header(loop: Any) -> None:
    async def main(place: Place) -> None:
        request = place.post("echo", "transfer-encoding: chunked", text="hi")
        head, _, body = request.partition(b"\r\n\r\n")
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"content-length"))
        chunk = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
        reader, writer = await place.connect()
        writer.write(head + b"\r\n\r\n" + chunk + b"authorization: Bearer " + KEY.encode() + b"\r\n\r\n")
        assert (await response(reader))[0] == 401

    run(loop, main, auth=StaticKeys(f"ada={KEY}"))


@LOOPS
def test_headers_after_a_body_are_limited_too(loop: Any) -> None:
    async def main(place: Place) -> None:
        head = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        said = await place.said(head, b"1\r\n{\r\n0\r\n", *[b"x-%d: y\r\n" % n for n in range(100_000)])
        assert status(said) in (431, 0)
        await until(lambda: place.connections == 0)

    run(loop, main)


# --- time ------------------------------------------------------------------------------------


JSON = b"\r\ncontent-type: application/json\r\n"
SHORT = Limits(head_time=0.2, pace_time=0.2)


@LOOPS
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", 0),
        (b"\r\n\r\n", 0),
        (b"GET /health HTTP/1.1\r\nhost: loc", 408),
        (b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n", 408),
        (b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{", 408),
        (b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n", 408),
        (b"POST /calls/x/abort HTTP/1.1\r\nhost: localhost" + JSON + b"content-length: 9\r\n\r\n{", 408),
        (
            b"POST /admin/calls/x/abort HTTP/1.1\r\nhost: localhost" + JSON + b"content-length: 9\r\n\r\n{",
            408,
        ),
        (b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n", 408),
    ],
    ids=["nothing", "empty lines", "a line", "a head", "a body", "chunks", "calls", "admin", "a handshake"],
)
def test_who_does_not_send_a_whole_request_is_hung_up_on(
    loop: Any, sent: bytes, answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def attempt(place: Place, seconds: float) -> bool:
        peers = [asyncio.ensure_future(place.said(sent)) for _ in range(5)]
        answers = [status(await peer) for peer in peers]
        assert place.connections == 0
        return answers == [answer] * 5

    run_with_patience(loop, attempt, DEFAULTS, admin=True)
    assert "Traceback" not in caplog.text


@LOOPS
def test_a_head_or_a_body_that_comes_too_slowly_is_not_waited_for(loop: Any) -> None:
    async def main(place: Place) -> None:
        for begun in (
            HEAD + b"x-note: ",
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n",
        ):
            reader, writer = await place.connect()
            writer.write(begun)
            ended = asyncio.ensure_future(everything(reader))
            while not ended.done():
                writer.write(b"x")
                await asyncio.sleep(0.02)
            assert status(await ended) in (408, 0)

    run(loop, main, SHORT)


@LOOPS
def test_a_large_body_has_as_much_time_as_it_needs_at_the_least_pace(loop: Any) -> None:
    async def attempt(place: Place, seconds: float) -> bool:
        reader, writer = await place.connect()
        request = place.post("echo", text="x" * 40_000)
        for begin in range(0, len(request), 1000):
            writer.write(request[begin : begin + 1000])
            await asyncio.sleep(seconds / 20)  # all of it takes twice as long as the limit
        with contextlib.suppress(OSError):
            return status(await reader.readline()) == 200
        return False

    run_with_patience(loop, attempt, Limits(pace=1))


@LOOPS
def test_a_body_that_never_ends_is_not_read_for_ever_after_it_was_refused(loop: Any) -> None:
    async def main(place: Place) -> None:
        reader, writer = await place.connect()
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        ended = asyncio.ensure_future(everything(reader))
        while not ended.done():
            writer.write(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            with contextlib.suppress(OSError):
                await writer.drain()
            await asyncio.sleep(0)
        assert status(await ended) == 401

    run(loop, main, Limits(pace_time=0.3), auth=StaticKeys(f"ada={KEY}"))


@LOOPS
def test_a_call_may_take_longer_than_any_of_these_limits(loop: Any) -> None:
    class Slow:
        """Slow work."""

        @method
        async def sleep(self) -> str:
            """Take a while."""
            await asyncio.sleep(3 * SHORT.pace_time)
            return "done"

    async def main(place: Place) -> None:
        place.http._hub.register(Slow())
        reader, writer = await place.connect()
        writer.write(place.post("sleep").replace(b"work.sleep", b"slow.sleep"))
        code, body = await response(reader)
        assert code == 200, body
        assert b"done" in body

    run(loop, main, SHORT)


# --- connections -----------------------------------------------------------------------------


@LOOPS
def test_one_connection_too_many_is_told_so_and_there_is_room_again_when_others_leave(loop: Any) -> None:
    async def main(place: Place) -> None:
        peers = [await place.connect() for _ in range(3)]
        await until(lambda: place.connections == 3)
        said = await place.said()
        assert status(said) == 503
        assert b"connection: close" in said
        peers[0][1].close()
        await until(lambda: place.connections == 2)
        reader, writer = await place.connect()
        writer.write(place.post("echo", text="hi"))
        assert (await response(reader))[0] == 200

    run(loop, main, Limits(connections=3))


def test_there_are_never_more_connections_than_files_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server.resource, "getrlimit", lambda _: (1024, 4096))
    assert http_server._most_connections(10_000) == 1024 - http_server.OWN_FILES
    assert http_server._most_connections(10) == 10


# --- who does not read -----------------------------------------------------------------------


async def reluctant(place: Place, request: bytes, buffer: int = 4096) -> socket.socket:
    """A peer that sends a request and does not read by itself."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, ("127.0.0.1", place.port))
    await loop.sock_sendall(peer, request)
    return peer


@LOOPS
@pytest.mark.parametrize("head", [(), ("connection: close",)], ids=["kept alive", "last"])
def test_who_does_not_read_a_response_is_hung_up_on_and_nothing_of_it_is_kept(
    loop: Any, head: tuple[str, ...]
) -> None:
    async def main(place: Place) -> None:
        peers = [await reluctant(place, place.post("large", *head, size=8_000_000)) for _ in range(3)]
        await until(lambda: place.work.done == 3)
        await until(lambda: place.connections == 0)
        for peer in peers:
            peer.close()

    run(loop, main, Limits(pace_time=0.3))


@LOOPS
def test_if_too_much_waits_to_be_read_those_who_wait_longest_are_hung_up_on(loop: Any) -> None:
    async def main(place: Place) -> None:
        peers = []
        for n in range(6):
            peers.append(await reluctant(place, place.post("large", size=8_000_000)))
            await until(lambda n=n: place.work.done == n + 1)
        await until(lambda: place.connections <= 3)
        reader, writer = await place.connect()
        writer.write(place.post("large", size=8_000_000))
        assert (await response(reader))[0] == 200, "who reads gets all of it"
        for peer in peers:
            peer.close()

    run(loop, main, Limits(unread=40_000_000))


@LOOPS
def test_who_reads_a_large_response_slowly_gets_all_of_it(loop: Any) -> None:
    async def attempt(place: Place, seconds: float) -> bool:
        peer = await reluctant(place, place.post("large", "connection: close", size=4_000_000), 2**18)
        read = 0
        with contextlib.closing(peer), contextlib.suppress(ConnectionError):
            while part := await asyncio.get_running_loop().sock_recv(peer, 2**16):
                read += len(part)
                await asyncio.sleep(seconds / 60)  # all of it takes twice as long as the limit
        return read > 8_000_000

    run_with_patience(loop, attempt, Limits(pace=1))


@LOOPS
def test_a_websocket_that_does_not_read_is_hung_up_on(loop: Any) -> None:
    async def main(place: Place) -> None:
        async with open_socket(f"ws://127.0.0.1:{place.port}/ws", max_queue=1, max_size=None) as peer:
            peer.transport.pause_reading()
            call = {"jsonrpc": "2.0", "id": 1, "method": "work.large", "params": {"size": 8_000_000}}
            await peer.send(json.dumps(call))
            await until(lambda: place.work.done == 1)
            await until(lambda: place.connections == 0)
            peer.transport.abort()

    run(loop, main, Limits(pace_time=0.3))


@LOOPS
def test_pings_of_a_peer_that_does_not_read_are_not_answered_without_end(loop: Any) -> None:
    ping = struct.pack("!BB4s", 0x89, 0x80 | 125, b"\0\0\0\0") + b"x" * 125

    async def main(place: Place) -> None:
        handshake = (
            b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        peer = await reluctant(place, handshake)
        await until(lambda: any(hasattr(one, "conn") for one in place.http.server_state.connections))
        (one,) = place.http.server_state.connections
        loop = asyncio.get_running_loop()
        with peer:
            for _ in range(100):
                await loop.sock_sendall(peer, ping * 1000)
                assert one.transport.get_write_buffer_size() < 1_000_000

    run(loop, main)


# --- what is left of a result ----------------------------------------------------------------


@LOOPS
def test_nothing_of_a_legacy_result_is_left_for_the_garbage_collector(loop: Any) -> None:
    """It comes seldom, and the results may be large."""

    async def main(place: Place) -> None:
        reader, writer = await place.connect()
        begin = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        writer.write(legacy("initialize", begin))
        head = await reader.readuntil(b"\r\n\r\n")
        session = next(line for line in head.split(b"\r\n") if line.startswith(b"mcp-session-id"))
        await reader.readuntil(b"}}")
        gc.collect()
        gc.disable()
        try:
            call = {"name": "work.slow_echo", "arguments": {"text": "hello"}}
            writer.write(legacy("tools/call", call, session.decode(), "mcp-protocol-version: 2025-11-25"))
            assert b"hello" in (await response(reader))[1]
            await until(lambda: not any(isinstance(one, HttpLine) for one in gc.get_objects()))
        finally:
            gc.enable()

    run(loop, main)


def legacy(method: str, params: Any, *head: str) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    lines = (
        "POST /mcp HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"content-length: {len(body)}",
        *head,
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@LOOPS
def test_a_websocket_that_has_got_a_large_result_leaves_nothing_of_it(loop: Any) -> None:
    async def main(place: Place) -> None:
        async with open_socket(f"ws://127.0.0.1:{place.port}/ws", max_size=None, compression=None) as peer:
            call = {"jsonrpc": "2.0", "id": 1, "method": "work.large", "params": {"size": 8_000_000}}
            tracemalloc.start()
            try:
                await peer.send(json.dumps(call))
                assert len(await peer.recv()) > 8_000_000
                await (await peer.ping())  # of the client itself: it keeps the last frame
                assert tracemalloc.get_traced_memory()[0] < 4_000_000
            finally:
                tracemalloc.stop()

    run(loop, main)


def test_the_large_end_of_a_stream_is_kept_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        session = HttpSession(None)
        stream = session.new_stream()
        stream.put(b"x" * 2 * responses.KEPT_BYTES)
        stream.close()
        assert session.resume(f"{stream.id}-0") == (stream, 1)
        await until(lambda: not stream.since(0))
        assert session.resume(f"{stream.id}-0") == (None, 0)

    monkeypatch.setattr(responses, "KEPT_TIME", 0.05)
    asyncio.run(main())


def test_a_call_waits_for_a_reader_that_is_behind_by_few_but_large_events() -> None:
    stream = responses.EventStream(None)
    stream.attach(0, lambda: None)
    stream.put(b"x" * 2 * responses.KEPT_BYTES)
    assert stream.full
    stream.written(stream.end)
    assert not stream.full


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_server_gives_the_memory_of_large_results_back() -> None:
    script = """
import sys
from midcall.cli.serve import _give_back_large_blocks

def resident():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS")) // 1024

_give_back_large_blocks()
bytes(b"x") * 16_000_000  # from now on, glibc would take such blocks from its heap
before, small = resident(), []
large = [b"x" * 16_000_000 for _ in range(10) if small.append(bytearray(200_000)) is None]
assert resident() - before > 150
del large
assert resident() - before < 50, resident() - before
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=environment(), timeout=LIMIT)

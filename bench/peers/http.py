"""The load on sockets: keep-alive connections, driven by wrk, which is quicker than any of the servers.

Calls that ask in the middle of a legacy session need two connections each, and are driven by epoll from here.
"""

import itertools
import math
import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from bench.peers import wire
from bench.peers.meter import Meter, Pace
from bench.stdio import memory_of

CONNECTIONS = 64
MESSAGE = {"message": "hello"}
START_SECONDS = 30
SCRIPT = Path(__file__).parent / "calls.lua"
NUMBERS = 10_000_000
"""Requests of one run of wrk are fewer than that, and their numbers have the same length."""
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: *(\d+)")
_SESSION = re.compile(rb"\r\nmcp-session-id: *([^\r]+)", re.IGNORECASE)
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"


class HttpLoad:
    """A server process that listens on a port, and the connections to it."""

    def __init__(self, command: Callable[[int], list[str]], once: str, ask: str, *, modern: bool) -> None:
        self._port = _free_port()
        self._process = subprocess.Popen(command(self._port), stdin=subprocess.DEVNULL)
        self._number = itertools.count(100_000_000)
        self._modern = modern
        self._once = once
        self._ask = ask
        self._idle: list[socket.socket] = []

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        self._idle.append(self._connect_when_ready())
        if not self._modern:
            self._open_session()
        first = wire.call(self._once, MESSAGE, modern=self._modern) % next(self._number)
        said = self._exchange(self._idle[0], self._head(self._once), first)
        if b"hello" not in said:
            raise wire.Broken(f"once does not say it back: {said!r}")

    def __exit__(self, *_: object) -> None:
        for connection in self._idle:
            connection.close()
        self._process.kill()
        self._process.wait()

    # --- loads -------------------------------------------------------------------------------

    def plain_for(self, seconds: float) -> Pace:
        """Plain calls, for so many whole seconds."""
        return self._wrk(seconds, self._once, wire.call(self._once, MESSAGE, modern=self._modern))

    def ask_for(self, seconds: float) -> Pace:
        """Round trips: a call, its question, the answer, the result."""
        if not self._modern:
            return self._ask_legacy(seconds)
        again = wire.retry(self._ask, {}).replace(b"%b", b"%s")
        return self._wrk(seconds, self._ask, wire.call(self._ask, {}, modern=True), again)

    def _wrk(self, seconds: float, tool: str, first: bytes, *again: bytes) -> Pace:
        """Let wrk send the first request over and over, or with a retry after each question."""
        for connection in self._idle:
            connection.close()
        self._idle = []
        number = next(self._number)
        self._number = itertools.count(number + NUMBERS)
        command = [
            *(wrk(), "--threads", "1", "--connections", str(CONNECTIONS)),
            *("--duration", f"{math.ceil(seconds)}s", "--timeout", "20s", "--script", str(SCRIPT)),
            *(f"http://127.0.0.1:{self._port}/mcp", "--", self._head(tool), str(number), first, *again),
        ]
        meter = Meter(self._process.pid, seconds)
        ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
        figures, _, fault = ran.stderr.partition(b"\n")
        microseconds, requests, refused, lost, asked, finished = map(int, figures.split())
        if refused or lost or fault:
            raise wire.Broken(f"{refused} refused, {lost} lost; {fault.decode(errors='replace')[-600:]}")
        done = (asked + finished) / 2 if again else requests  # some have their question and no result yet
        return meter.pace(done, microseconds / 1e6)

    def _ask_legacy(self, seconds: float) -> Pace:
        """As `ask_for`, in a session: the question comes on the stream, the answer goes beside it."""
        poll = select.epoll()
        connections = self._connections(2 * CONNECTIONS)
        slots = [_Slot(*pair) for pair in zip(connections[::2], connections[1::2], strict=True)]
        by_number = {}
        for slot in slots:
            for connection in (slot.stream, slot.beside):
                by_number[connection.fileno()] = (slot, connection)
                poll.register(connection.fileno(), select.EPOLLIN)
        head, first = self._head(self._ask), wire.call(self._ask, {})
        meter = Meter(self._process.pid, seconds)
        for slot in slots:
            slot.stream.send(self._post(head, first % next(self._number)))
        done, waiting, going = 0, len(slots), True
        while waiting:
            ready = poll.poll(20)
            if not ready:
                raise wire.Broken("no answer for 20 seconds")
            going = going and meter.going()
            for number, _ in ready:
                slot, connection = by_number[number]
                if connection is slot.beside:
                    slot.take_beside()
                else:
                    answer = slot.take_stream()
                    if answer is not None:
                        slot.beside.send(self._post(self._head(None), answer))
                if slot.ended:
                    done += 1
                    if going:
                        slot.begin(self._post(head, first % next(self._number)))
                    else:
                        slot.ended = False
                        waiting -= 1
        poll.close()
        return meter.pace(done)

    def waiting_memory(self, count: int) -> float:
        """Bytes that each of so many waiting legacy calls costs the server, its connection included."""
        opened = [self._waiting_call() for _ in range(count // 4)]  # what is allocated once
        time.sleep(0.3)
        before = memory_of(self._process.pid)
        opened += [self._waiting_call() for _ in range(count)]
        time.sleep(0.3)
        used = memory_of(self._process.pid) - before
        for connection in opened:
            connection.close()
        return used / count

    def _waiting_call(self) -> socket.socket:
        connection = self._connect()
        call = wire.call(self._ask, {}) % next(self._number)
        connection.send(self._post(self._head(self._ask), call))
        said = b""
        while wire.QUESTION not in said:
            part = connection.recv(65536)
            if not part:
                raise wire.Broken(f"the server closed a connection after {said!r}")
            said += part
        return connection

    # --- requests ----------------------------------------------------------------------------

    def _open_session(self) -> None:
        self._session = b""
        connection = self._idle[0]
        said = self._exchange(connection, self._head(None), wire.initialize())
        session = _SESSION.search(said)
        if session is None:
            raise wire.Broken(f"no session: {said!r}")
        self._session = session[1]
        self._exchange(connection, self._head(None), wire.INITIALIZED)

    def _head(self, tool: str | None) -> bytes:
        lines = [
            b"POST /mcp HTTP/1.1",
            b"host: 127.0.0.1:%d" % self._port,
            b"content-type: application/json",
            b"accept: application/json, text/event-stream",
        ]
        if self._modern:
            assert tool is not None
            lines += [b"mcp-protocol-version: " + wire.MODERN.encode(), b"mcp-method: tools/call"]
            lines += [b"mcp-name: " + tool.encode()]
        elif self._session:
            lines += [b"mcp-protocol-version: " + wire.LEGACY.encode(), b"mcp-session-id: " + self._session]
        return b"\r\n".join(lines) + b"\r\ncontent-length: "

    @staticmethod
    def _post(head: bytes, body: bytes) -> bytes:
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def _exchange(self, connection: socket.socket, head: bytes, body: bytes) -> bytes:
        connection.sendall(self._post(head, body))
        return self._receive(connection)

    @staticmethod
    def _receive(connection: socket.socket) -> bytes:
        connection.settimeout(20)
        data = b""
        while not _is_whole(data):
            part = connection.recv(65536)
            if not part:
                raise wire.Broken(f"the server closed a connection after {data!r}")
            data += part
        wire.check(data)
        return data

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=START_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _connect_when_ready(self) -> socket.socket:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                return self._connect()
            except OSError:
                time.sleep(0.05)
        self._process.kill()
        raise wire.Broken("the server does not listen")

    def _connections(self, count: int) -> list[socket.socket]:
        """So many connections anew: servers close those that were idle for long."""
        for connection in self._idle:
            connection.close()
        self._idle = [self._connect() for _ in range(count)]
        return self._idle


class _Slot:
    """Two connections: one for a call and its stream, one for the answers."""

    def __init__(self, stream: socket.socket, beside: socket.socket) -> None:
        self.stream = stream
        self.beside = beside
        self.ended = False
        self._said = b""
        self._said_beside = b""
        self._asked = self._answered = self._over = False

    def begin(self, request: bytes) -> None:
        self.ended = self._asked = self._answered = self._over = False
        self._said = b""
        self.stream.send(request)

    def take_stream(self) -> bytes | None:
        """Read; the answer if there is a question."""
        self._said += self.stream.recv(65536)
        if _is_whole(self._said):
            wire.check(self._said)
            self._over = True
            self.ended = self._answered
            return None
        place = self._said.find(wire.QUESTION)
        if self._asked or place < 0 or b"\n" not in self._said[place:]:
            return None
        self._asked = True
        line = next(line for line in self._said.split(b"\n") if wire.QUESTION in line)
        return wire.ANSWER % wire.question_id(line.removeprefix(b"data:"))

    def take_beside(self) -> None:
        self._said_beside += self.beside.recv(65536)
        if _is_whole(self._said_beside):
            wire.check(self._said_beside)
            self._said_beside = b""
            self._answered = True
            self.ended = self._over


def _is_whole(data: bytes) -> bool:
    """Whether this is a whole response."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return False
    length = _LENGTH.search(data, 0, head)
    if length is not None:
        return len(data) >= head + 4 + int(length[1])
    return data.endswith(_END_OF_CHUNKS) or data.startswith((b"HTTP/1.1 202", b"HTTP/1.1 204"))


def wrk() -> str:
    """The command. Exits if it is not there."""
    found = shutil.which("wrk")
    if found is None:
        raise SystemExit("The load over HTTP is made by wrk: install it, with `apt install wrk` on Debian")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

"""Sending responses: whole ones, and streams of events. Plain ASGI, unless the server can do better.

A response that is all there is sent at once: two messages through a server's general `send` cost as much as a
plain call does here, so a server that offers it takes the whole (`RESPOND`, see `uvicorn_protocol`).

A stream of events may be silent for as long as a person thinks, and there may be many of them: a server
that offers it takes the stream over (`DETACH`, see there). With any other, the request's own task
waits for the client to leave, and a short task writes whenever there is something to write. An
`EventStream` keeps its events, within bounds, so that a legacy client which lost the connection can go on
after the last one that it got. Streams of modern requests have no ids and cannot be resumed.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from midcall.mcp.calls import PlainCall
from midcall.principal import time_left

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]

RESPOND = "midcall.respond"
"""An extension of ASGI: a function `(scope, status, headers, body)` that sends a whole response.

It gives false if that cannot be done now. Whoever changes responses on their way out takes it from the scope.
"""

Respond: TypeAlias = Callable[[Scope, int, Fields, bytes], bool]


async def send_whole(scope: Scope, send: Send, status: int, headers: Fields, body: bytes) -> None:
    """Send a response; the length of its body is added to the headers."""
    fields = (*headers, (b"content-length", b"%d" % len(body)))
    respond: Respond | None = scope.get("extensions", {}).get(RESPOND)
    if respond is not None and respond(scope, status, fields, body):
        return
    await send({"type": "http.response.start", "status": status, "headers": list(fields)})
    await send({"type": "http.response.body", "body": body})


def without_respond(scope: Scope) -> Scope:
    """The scope of a request whose response is changed on its way out."""
    extensions = scope.get("extensions", {})
    if RESPOND not in extensions:
        return scope
    return {**scope, "extensions": {name: value for name, value in extensions.items() if name != RESPOND}}


KEPT_EVENTS = 1000
"""How many events a stream keeps for a client that comes back."""

KEPT_BYTES = 1024 * 1024
"""How large they may be, all together; the last one is kept in any case, if only for a while."""

KEPT_TIME = 60.0
"""Seconds after the end of a stream for which more than that is kept."""

LIMIT = 256
"""How many events may wait for a slow reader before the call is slowed down; or as many as `KEPT_BYTES`."""

RETRY_MS = 1000


class EventStream:
    """Events in order; the first one that is kept has the number `first`. One reader at a time."""

    __slots__ = (
        "_events",
        "_place",
        "_size",
        "_turn",
        "_wake_reader",
        "_writers",
        "ended",
        "first",
        "id",
    )

    def __init__(self, id: str | None) -> None:
        self.id = id
        self.first = 0
        self.ended = False
        self._events: list[bytes] = []
        self._size = 0
        self._wake_reader: Callable[[], None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._place = 0
        self._turn = 0

    @property
    def end(self) -> int:
        return self.first + len(self._events)

    @property
    def full(self) -> bool:
        waiting = self.end - self._place
        return self.read and (waiting >= LIMIT or (waiting > 0 and self._size > KEPT_BYTES))

    @property
    def read(self) -> bool:
        """Whether it has a reader now."""
        return self._wake_reader is not None

    @property
    def begun(self) -> bool:
        """Whether it has ever had a reader."""
        return self._turn > 0

    def prime(self) -> None:
        """The first event of a stream that can be resumed: it says from where."""
        if self.id is not None and not self.end:
            self._add(f"id: {self.id}-0\nretry: {RETRY_MS}\ndata: \n\n".encode())

    def put(self, message: bytes) -> None:
        head = b"" if self.id is None else f"id: {self.id}-{self.end}\n".encode()
        self._add(b"%bevent: message\ndata: %b\n\n" % (head, message))

    def close(self) -> None:
        """Nothing follows."""
        self.ended = True
        self._tell_reader()
        self._let_writers_go()
        self._forget_later()

    def _forget_later(self) -> None:
        if self._size > KEPT_BYTES:
            asyncio.get_running_loop().call_later(KEPT_TIME, self._forget)

    def _forget(self) -> None:
        """Let go of what was kept for a client that did not come back."""
        if self.read:
            self._forget_later()
        else:
            self._pop(len(self._events))

    def since(self, place: int) -> bytes:
        """The events from a place on, as far as they are kept."""
        return b"".join(self._events[max(0, place - self.first) :])

    def attach(self, place: int, wake: Callable[[], None]) -> int:
        """A reader comes, in place of the one before; the number is its turn.

        It is woken for new events, at the end, and when another one comes.
        """
        self._turn += 1
        self._tell_reader()
        self._place = place
        self._wake_reader = wake
        return self._turn

    def has_turn(self, turn: int) -> bool:
        """Whether no other reader has come since."""
        return self._turn == turn

    def written(self, place: int) -> None:
        """The reader has got so far."""
        self._place = place
        if self.id is None:
            self._pop(min(place - self.first, len(self._events)))  # cannot be asked for again
        self._let_writers_go()

    def left(self, turn: int) -> None:
        """The reader is gone: nobody is slowed down for it."""
        if self._turn == turn:
            self._wake_reader = None
            self._let_writers_go()

    async def drain(self) -> None:
        """Wait while the reader is behind."""
        while self.full and not self.ended:
            waiter = asyncio.get_running_loop().create_future()
            self._writers.append(waiter)
            await waiter

    def _add(self, event: bytes) -> None:
        self._events.append(event)
        self._size += len(event)
        while (len(self._events) > KEPT_EVENTS or self._size > KEPT_BYTES) and self._is_over():
            self._pop(1)
        self._tell_reader()

    def _is_over(self) -> bool:
        """Whether the first event can go: it was read, or nobody reads, or the reader is far behind."""
        if len(self._events) < 2:
            return False
        return not self.read or self.first < self._place or len(self._events) > 2 * KEPT_EVENTS

    def _pop(self, count: int) -> None:
        if count > 0:
            self._size -= sum(map(len, self._events[:count]))
            del self._events[:count]
            self.first += count

    def _tell_reader(self) -> None:
        if self._wake_reader is not None:
            self._wake_reader()

    def _let_writers_go(self) -> None:
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)
        self._writers.clear()


class HttpLine:
    """The line of one POST: JSON if the response is all there is, else events."""

    __slots__ = ("_deciding", "plain", "response", "status", "stream")

    def __init__(self) -> None:
        self.plain: PlainCall | None = None
        """A call that the request's own task is to run."""
        self.response: bytes | None = None
        self.status = 200
        self.stream: EventStream | None = None
        """What was said before the response; a stream without events if there is none."""
        self._deciding: asyncio.Future[None] | None = None

    @property
    def decided(self) -> bool:
        """Whether it is known how to answer."""
        return self.stream is not None or self.response is not None

    @property
    def full(self) -> bool:
        return self.stream is not None and self.stream.full

    def send(self, message: bytes) -> None:
        if self.stream is None:
            self.stream = self.new_stream()
        self.stream.put(message)
        self._decide()

    def respond(self, message: bytes, *, status: int = 200) -> None:
        self.response = message
        self.status = status
        if self.stream is not None:
            self.stream.put(message)
            self.stream.close()
        self._decide()

    def close(self) -> None:
        if self.stream is None:
            self.stream = EventStream(None)
        self.stream.close()
        self._decide()

    async def drain(self) -> None:
        if self.stream is not None:
            await self.stream.drain()

    def run(self, call: PlainCall) -> None:
        self.plain = call

    def new_stream(self) -> EventStream:
        """A stream for what comes before the response."""
        return EventStream(None)

    async def wait(self) -> None:
        """Wait until it is known how to answer, or nobody waits for that."""
        if not self.decided:
            self._deciding = asyncio.get_running_loop().create_future()
            await self._deciding

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        self._decide()

    def _decide(self) -> None:
        if self._deciding is not None and not self._deciding.done():
            self._deciding.set_result(None)


EVENTS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

KEEP_ALIVE = 15.0
"""Seconds between two comments on a stream on which nothing happens."""

COMMENT = b":\n\n"

DETACH = "midcall.detach"
"""An extension of ASGI: a function `(stream, place, left, seconds)` that takes over a response whose head was
sent, for so many seconds at most.

It gives false if that cannot be done now.
"""


async def write_events(
    stream: EventStream,
    place: int,
    extra: tuple[tuple[bytes, bytes], ...],
    left: Callable[[], None] | None,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Write the events of a stream from a place on; `left` is called if the client leaves before its end.

    The response ends with the caller's token, as if the client had left. A client that resumes a stream ends
    the response that carried it before. The stream may go on after this has returned.
    """
    await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS, *extra]})
    detach = scope.get("extensions", {}).get(DETACH)
    seconds = time_left(scope.get("midcall.principal"))
    if detach is not None and not stream.ended and detach(stream, place, left, seconds):
        return
    writer = _Writer(stream, place, send)
    try:
        async with asyncio.timeout(seconds) as limit:
            await writer.write()
            while not writer.finished and (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        if not limit.expired():
            raise
    finally:
        await writer.close()
    if limit.expired():
        await send({"type": "http.response.body", "body": b""})
    if left is not None and not writer.finished:
        left()


class _Writer:
    """Writes what there is, and sleeps while there is nothing."""

    __slots__ = ("_busy", "_place", "_send", "_stream", "_timer", "_turn", "_writing", "finished")

    def __init__(self, stream: EventStream, place: int, send: Send) -> None:
        self._stream = stream
        self._place = place
        self._send = send
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self.finished = False
        self._turn = stream.attach(place, self._wake)

    def _wake(self, comment: bytes = b"") -> None:
        """There is something to write, or somebody else reads from now on."""
        if not (self._busy or self.finished):
            self._busy = True
            self._writing = asyncio.get_running_loop().create_task(self.write(comment))

    async def write(self, comment: bytes = b"") -> None:
        """Write all events that there are; the last of all ends the response."""
        stream = self._stream
        self._busy = True
        try:
            while True:
                mine = stream.has_turn(self._turn)
                events = stream.since(self._place) if mine else b""
                self._place = max(self._place, stream.end) if mine else self._place
                self.finished = not mine or stream.ended
                if events or comment or self.finished:
                    body = {"type": "http.response.body", "body": comment + events}
                    await self._send(body if self.finished else {**body, "more_body": True})
                if stream.has_turn(self._turn):
                    stream.written(self._place)
                if self.finished or (not stream.ended and stream.end <= self._place):
                    break
                comment = b""
        except OSError:
            pass  # the client has left: the request's task hears of it
        finally:
            self._busy = False
            self._writing = None
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if self.finished else loop.call_later(KEEP_ALIVE, self._wake, COMMENT)

    async def close(self) -> None:
        """Nobody reads any more."""
        writing = self._writing
        if writing is not None:
            writing.cancel()
            await asyncio.wait((writing,))
        if self._timer is not None:
            self._timer.cancel()
        self._stream.left(self._turn)

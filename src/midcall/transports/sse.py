"""Server-sent events: the messages of one response, which may be read again from any place.

An `EventStream` keeps its events, within bounds, so that a legacy client which lost the connection
can go on after the last one that it got. Streams of modern requests have no ids and cannot be resumed.
"""

import asyncio
from collections.abc import Callable

from midcall.inline import Pause
from midcall.mcp.calls import PlainCall

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
        self._deciding: Pause | None = None

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

    async def wait(self, *, inline: bool) -> None:
        """Wait until it is known how to answer, or nobody waits for that; `inline` is as for `Pause`."""
        if not self.decided:
            self._deciding = Pause(inline=inline)
            await self._deciding

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        self._decide()

    def _decide(self) -> None:
        if self._deciding is not None:
            self._deciding.end()

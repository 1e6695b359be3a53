"""Server-sent events: the messages of one response, which may be read again from any place.

An `EventStream` keeps its events, within bounds, so that a legacy client which lost the connection
can go on after the last one that it got. Streams of modern requests have no ids and cannot be resumed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

KEPT_EVENTS = 1000
"""How many events a stream keeps for a client that comes back."""

KEPT_BYTES = 1024 * 1024
"""How large they may be, all together; the last one is kept in any case."""

LIMIT = 256
"""How many events may wait for a slow reader before the call is slowed down."""

RETRY_MS = 1000


class EventStream:
    """Events in order; the first one that is kept has the number `first`. One reader at a time."""

    __slots__ = (
        "_events",
        "_place",
        "_read",
        "_readers",
        "_size",
        "_turn",
        "_writers",
        "ended",
        "first",
        "id",
    )

    def __init__(self, id: str | None) -> None:
        self.id = id
        self.first = 0
        self.ended = False
        self._events: deque[bytes] = deque()
        self._size = 0
        self._readers: list[asyncio.Future[None]] = []
        self._writers: list[asyncio.Future[None]] = []
        self._place = 0
        self._read = False
        self._turn = 0

    @property
    def end(self) -> int:
        return self.first + len(self._events)

    @property
    def full(self) -> bool:
        return self._read and self.end - self._place >= LIMIT

    @property
    def read(self) -> bool:
        """Whether it has a reader now."""
        return self._read

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
        self._wake(self._readers)
        self._wake(self._writers)

    def since(self, place: int) -> Iterator[tuple[int, bytes]]:
        """The events from a place on that are kept, each with the place after it."""
        skip = max(0, place - self.first)
        return iter(list(enumerate(self._events, self.first + 1))[skip:])

    def attach(self, place: int) -> int:
        """A reader comes, in place of the one before; the number is its turn."""
        self._turn += 1
        self._place = place
        self._read = True
        self._wake(self._readers)
        return self._turn

    def has_turn(self, turn: int) -> bool:
        """Whether no other reader has come since."""
        return self._turn == turn

    def written(self, place: int) -> None:
        """The reader has got so far."""
        self._place = place
        if self.id is None:
            while self.first < place and self._events:  # cannot be asked for again
                self._pop()
        self._wake(self._writers)

    def left(self, turn: int) -> None:
        """The reader is gone: nobody is slowed down for it."""
        if self._turn == turn:
            self._read = False
            self._wake(self._writers)

    async def more(self, place: int, turn: int) -> None:
        """Wait until there are events after this place, or the end, or another reader."""
        while self.end <= place and not self.ended and self._turn == turn:
            waiter = asyncio.get_running_loop().create_future()
            self._readers.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._readers:
                    self._readers.remove(waiter)

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
            self._pop()
        self._wake(self._readers)

    def _is_over(self) -> bool:
        """Whether the first event can go: it was read, or nobody reads, or the reader is far behind."""
        if len(self._events) < 2:
            return False
        return not self._read or self.first < self._place or len(self._events) > 2 * KEPT_EVENTS

    def _pop(self) -> None:
        self._size -= len(self._events.popleft())
        self.first += 1

    @staticmethod
    def _wake(waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        waiters.clear()


class HttpLine:
    """The line of one POST: JSON if the response is all there is, else events."""

    def __init__(
        self,
        stream: EventStream,
        on_stream: Callable[[EventStream], object] | None = None,
        on_response: Callable[["HttpLine"], object] | None = None,
    ) -> None:
        self.stream = stream
        self.streaming = False
        self.response: bytes | None = None
        self.status = 200
        self._on_stream = on_stream
        self._on_response = on_response
        self._deciding: asyncio.Future[None] | None = None

    @property
    def decided(self) -> bool:
        """Whether it is known how to answer."""
        return self.streaming or self.response is not None

    @property
    def full(self) -> bool:
        return self.stream.full

    def send(self, message: bytes) -> None:
        if not self.streaming:
            self.streaming = True
            self.stream.prime()
            if self._on_stream is not None:
                self._on_stream(self.stream)
        self.stream.put(message)
        self._decide()

    def respond(self, message: bytes, *, status: int = 200) -> None:
        self.response = message
        self.status = status
        if self.streaming:
            self.stream.put(message)
        self.stream.close()
        if self._on_response is not None:
            self._on_response(self)
        self._decide()

    def close(self) -> None:
        self.streaming = True  # a stream without events: there is no response
        self.stream.close()
        self._decide()

    async def drain(self) -> None:
        await self.stream.drain()

    async def wait(self) -> None:
        """Wait until it is known how to answer."""
        if not self.decided:
            self._deciding = asyncio.get_running_loop().create_future()
            await self._deciding

    def _decide(self) -> None:
        if self._deciding is not None and not self._deciding.done():
            self._deciding.set_result(None)

"""Server-sent events: the messages of one response, which may be read again from any place.

An `EventStream` keeps its events, within bounds, so that a legacy client which lost the connection
can go on after the last one that it got. Streams of modern requests have no ids and cannot be resumed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

KEPT_EVENTS = 1000
"""How many events a stream keeps for a client that comes back."""

LIMIT = 256
"""How many events may wait for a slow reader before the call is slowed down."""

RETRY_MS = 1000


class EventStream:
    """Events in order; the first one that is kept has the number `first`."""

    def __init__(self, id: str | None) -> None:
        self.id = id
        self.first = 0
        self.ended = False
        self._events: deque[bytes] = deque()
        self._readers: list[asyncio.Future[None]] = []
        self._writers: list[asyncio.Future[None]] = []
        self._place = 0
        self._read = False

    @property
    def end(self) -> int:
        return self.first + len(self._events)

    @property
    def full(self) -> bool:
        return self._read and self.end - self._place >= LIMIT

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

    def since(self, place: int) -> Iterator[bytes]:
        """The events from a place on."""
        skip = max(0, place - self.first)
        return iter(list(self._events)[skip:])

    def written(self, place: int) -> None:
        """The reader has got so far."""
        self._place = place
        self._read = True
        if self.id is None:
            while self.first < place and self._events:  # cannot be asked for again
                self._events.popleft()
                self.first += 1
        self._wake(self._writers)

    def left(self) -> None:
        """The reader is gone: nobody is slowed down for it."""
        self._read = False
        self._wake(self._writers)

    async def more(self, place: int) -> None:
        """Wait until there are events after this place, or the end."""
        while self.end <= place and not self.ended:
            waiter = asyncio.get_running_loop().create_future()
            self._readers.append(waiter)
            await waiter

    async def drain(self) -> None:
        """Wait while the reader is behind."""
        while self.full and not self.ended:
            waiter = asyncio.get_running_loop().create_future()
            self._writers.append(waiter)
            await waiter

    def _add(self, event: bytes) -> None:
        self._events.append(event)
        if len(self._events) > KEPT_EVENTS and not self._read:
            self._events.popleft()
            self.first += 1
        self._wake(self._readers)

    @staticmethod
    def _wake(waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        waiters.clear()


class HttpLine:
    """The line of one POST: JSON if the response is all there is, else events."""

    def __init__(self, stream: EventStream, on_response: Callable[[], object] | None = None) -> None:
        self.stream = stream
        self.streaming = False
        self.response: bytes | None = None
        self.status = 200
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
        self.stream.put(message)
        self._decide()

    def respond(self, message: bytes, *, status: int = 200) -> None:
        self.response = message
        self.status = status
        if self.streaming:
            self.stream.put(message)
        self.stream.close()
        if self._on_response is not None:
            self._on_response()
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

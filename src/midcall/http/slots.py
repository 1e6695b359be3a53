"""The requests to one origin: how many there are at once, and who waits.

What is a stream of events does not count among them, as `HttpClient` explains. No I/O here.
"""

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from midcall.http.proxies import Proxy

if TYPE_CHECKING:
    from midcall.http.client import HttpResponse


class Origin:
    """The requests to one origin: how many there are, and who waits, first come first served."""

    def __init__(self, proxy: Proxy | None, max_connections: int, max_streams: int) -> None:
        self.proxy = proxy
        self.max_connections = max_connections
        self.max_streams = max_streams
        self.busy = 0
        self.streams = 0
        self.more_streams: set[Slot] = set()
        """Streams for which there is no room: they count as requests."""
        self.reached = 0
        """How many of the requests have got a connection."""
        self.waiting: deque[asyncio.Future[None]] = deque()

    def free(self) -> None:
        """One request less: let the next one go."""
        self.busy -= 1
        while self.waiting and self.busy < self.max_connections:
            slot = self.waiting.popleft()
            if not slot.done():
                self.busy += 1
                slot.set_result(None)

    def give_up(self, why: str) -> None:
        """Nobody who waits has a better chance."""
        for slot in self.waiting:
            if not slot.done():
                slot.set_exception(NoSlot(why))
        self.waiting.clear()


class Slot:
    """The place of one request among those, until its response is complete or given up."""

    __slots__ = ("_busy", "_interrupted", "_origin", "_slots", "_stream", "_task", "response", "sent")

    def __init__(self, origin: Origin, slots: "set[Slot]") -> None:
        self._origin = origin
        self._slots = slots
        """Those of the client that are not over."""
        self._busy = False
        self._stream = False
        self.sent = False
        """Whether the request may have reached the server."""
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False
        self.response: HttpResponse | None = None

    async def begin(self) -> None:
        """Wait for it. Raises `NoSlot`."""
        origin = self._origin
        self._slots.add(self)
        self._task = asyncio.current_task()
        current_slot.set(self)
        if origin.busy < origin.max_connections:
            origin.busy += 1
        else:
            waiting = asyncio.get_running_loop().create_future()
            origin.waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if not waiting.cancelled() and waiting.exception() is None:
                    origin.free()  # it came at the same moment
                raise
        self._busy = True

    def sends(self) -> None:
        if not self.sent:
            self.sent = True
            self._origin.reached += 1

    def begin_stream(self) -> None:
        """The response is a stream: it counts among those, if there is room."""
        origin = self._origin
        if origin.streams < origin.max_streams:
            origin.streams += 1
            self._stream, self._busy = True, False
            origin.free()
        else:
            origin.more_streams.add(self)

    def interrupt(self) -> None:
        """The client is closed."""
        if self.response is not None:
            self.response.close()
        elif self._task is not None:
            self._interrupted = True
            self._task.cancel()

    def resumed(self) -> bool:
        """Whether its task was cancelled by `interrupt`; then it goes on."""
        if self._interrupted and self._task is not None:
            self._task.uncancel()
        return self._interrupted

    def end(self) -> None:
        if self not in self._slots:
            return
        self._slots.remove(self)
        self.response = None
        if self.sent:
            self._origin.reached -= 1
        if self._busy:
            self._origin.more_streams.discard(self)
            self._origin.free()
        elif self._stream:
            self._origin.streams -= 1
            if self._origin.more_streams:
                self._origin.more_streams.pop().begin_stream()


class NoSlot(Exception):
    """A request that waited will not be sent; the text says why."""


current_slot: ContextVar[Slot] = ContextVar("current_slot")
"""That of the request which the running task is about to send."""

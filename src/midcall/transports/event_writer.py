"""Writing a stream of events as an HTTP response. Plain ASGI, unless the server can do better.

A stream may be silent for as long as a person thinks, and there may be many of them: a server that offers it
takes the stream over (see `open_stream`). With any other, the request's own task waits for the client to
leave, and a short task writes whenever there is something to write.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from midcall.principal import time_left
from midcall.transports.sse import EventStream

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

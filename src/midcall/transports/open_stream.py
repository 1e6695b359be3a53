"""The connection of a stream of events that stays open, with as little behind it as can be.

A stream may wait for a person for hours, and there may be thousands of them. What uvicorn holds for a
request (a parser, the headers, the task of the application) has nothing to do meanwhile, and is most of what
a waiting call would cost. So once the head of the response is written, an `OpenStream` takes the place of
uvicorn's protocol, as a WebSocket does, and makes way for a new one when the stream ends.

It is told of by `event_writer.DETACH`; on a server that has no such thing, `event_writer` does it all.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from midcall.transports.connection_limits import SlowReaders
from midcall.transports.responses import COMMENT, KEEP_ALIVE, EventStream

READ_AHEAD = 64 * 1024
"""How many bytes of the requests that follow are taken before the stream has ended."""

_LAST_CHUNK = b"0\r\n\r\n"


class OpenStream(asyncio.Protocol):
    """One connection, from the first event of a stream to the last."""

    __slots__ = (
        "_app_state",
        "_config",
        "_expiry",
        "_following",
        "_left",
        "_loop",
        "_over",
        "_paused",
        "_place",
        "_server_state",
        "_slow_readers",
        "_stream",
        "_timer",
        "_turn",
        "_woken",
        "keep_alive",
        "transport",
    )

    def __init__(
        self,
        before: HttpToolsProtocol,
        transport: asyncio.Transport,
        stream: EventStream,
        place: int,
        left: Callable[[], None] | None,
        slow_readers: SlowReaders,
    ) -> None:
        self.transport = transport
        self._slow_readers = slow_readers
        self.keep_alive: bool = before.cycle.keep_alive
        self._config = before.config
        self._server_state = before.server_state
        self._app_state = before.app_state
        self._loop = before.loop
        self._stream = stream
        self._place = place
        self._left = left
        self._following = b""  # what the client has sent since
        self._paused = False
        self._woken = False
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._turn = 0

    def begin(self, head: bytes, seconds: float | None) -> None:
        """Take over the connection, for so many seconds at most; the head is yet to be written."""
        if seconds is not None:
            self._expiry = self._loop.call_later(seconds, self._expire)
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        self.transport.set_protocol(self)
        self._turn = self._stream.attach(self._place, self._wake)
        self._write(head)

    # --- writing -----------------------------------------------------------------------------

    def _wake(self) -> None:
        """There is something to write, or somebody else reads from now on."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._write)  # what is said in one turn is written together

    def _write(self, before: bytes = b"") -> None:
        """Write all events that there are; the last of all ends the response."""
        self._woken = False
        if self._paused or self._over:
            return
        stream = self._stream
        mine = stream.has_turn(self._turn)
        over = not mine or stream.ended
        events = stream.since(self._place) if mine else b""
        data = b"".join((before, _chunk(events), _LAST_CHUNK if over else b""))
        if data:
            self.transport.write(data)
        if mine:
            self._place = stream.end
            stream.written(self._place)
        if over:
            self._end()
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(KEEP_ALIVE, self._write, _chunk(COMMENT))

    def pause_writing(self) -> None:
        """The client is behind."""
        self._paused = True
        self._slow_readers.add(self.transport)

    def resume_writing(self) -> None:
        self._paused = False
        self._slow_readers.discard(self.transport)
        self._write()

    # --- reading -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """A client may send its next request before it has the response; uvicorn reads it later."""
        self._following += data
        if len(self._following) > READ_AHEAD:
            self.transport.pause_reading()

    # --- the end -----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The server ends: with the stream, so does the connection."""
        self.keep_alive = False

    def _expire(self) -> None:
        """The client's token is good no longer: the stream ends, as if the client had left."""
        self.transport.write(_LAST_CHUNK)
        self._end()
        if self._left is not None:
            self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._slow_readers.discard(self.transport)
        if not self._over:
            self._let_go()
            if self._left is not None:
                self._left()

    def _end(self) -> None:
        """The response is complete: the connection is for the next request."""
        self._let_go()
        if not self.keep_alive:
            self.transport.close()
            if self.transport.get_write_buffer_size():  # it stays until that is read
                self._slow_readers.add(self.transport)
            return
        self._server_state.connections.discard(self)
        protocol_class: Any = self._config.http_protocol_class
        protocol: HttpToolsProtocol = protocol_class(
            config=self._config,
            server_state=self._server_state,
            app_state=self._app_state,
            _loop=self._loop,
        )
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if self._paused:
            protocol.pause_writing()
        protocol.on_response_complete()
        if self._following:
            self.transport.resume_reading()
            protocol.data_received(self._following)

    def _let_go(self) -> None:
        self._over = True
        self._stream.left(self._turn)
        for timer in (self._timer, self._expiry):
            if timer is not None:
                timer.cancel()
        self._timer = self._expiry = None


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""

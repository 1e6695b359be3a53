"""uvicorn's HTTP, with one system call where it makes two, and with nothing behind a stream that waits.

uvicorn writes the head of a response and its body apart, and each is a system call, which costs more than
all that a plain call does here. This gathers what is written in one turn of the event loop, and takes a
response that is all there at once. A stream of events that stays open is handed to an `OpenStream`. And where
uvicorn sets a timer after each response, for connections that stay idle, there is one that goes on.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from midcall.transports.event_writer import DETACH
from midcall.transports.open_stream import OpenStream
from midcall.transports.sse import EventStream
from midcall.transports.together import INLINE, Together
from midcall.transports.whole_response import RESPOND, Fields


class OneWrite(HttpToolsProtocol):
    """One connection."""

    __slots__ = ("_extensions", "_gathering", "_idle_since", "_timer", "_together")

    def __init__(self, *args: Any, together: Together, **options: Any) -> None:
        super().__init__(*args, **options)
        self._together = together

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._idle_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gathering = Gathering(cast("asyncio.Transport", transport), self._together, self.loop)
        self._extensions = {DETACH: self._detach, RESPOND: self._respond, INLINE: True}
        super().connection_made(self._gathering)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._release()

    def _release(self) -> None:
        """Let go of all that leads back here: without this, only the collector frees it."""
        self._extensions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = self._extensions

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._together.requests.put(cycle.run_asgi(app), self.loop)

    def _respond(self, scope: Scope, status: int, headers: Fields, body: bytes) -> bool:
        """Send the response to the latest request, unless something is special about it."""
        cycle = self.cycle
        if (
            cast("Any", cycle.scope) is not scope  # the next request has begun
            or cycle.response_started
            or cycle.disconnected
            or cycle.more_body
            or not cycle.keep_alive
            or cycle.access_log
            or self.flow.write_paused
            or scope["method"] == "HEAD"
        ):
            return False
        parts = [STATUS_LINE[status], _default_head(cycle.default_headers)]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", body)
        cycle.response_started = cycle.response_complete = True
        self._gathering.write(b"".join(parts))
        cycle.message_event.set()
        cycle.on_response()
        return True

    def _detach(self, stream: EventStream, place: int, left: Callable[[], None] | None) -> bool:
        """Leave the connection to a stream, unless there is more on it than the request of this stream."""
        cycle = self.cycle
        if (
            self.pipeline
            or self.scope is not cycle.scope  # the next request has begun
            or cycle.more_body
            or cycle.disconnected
            or not cycle.chunked_encoding
            or self.flow.write_paused
            or self._gathering.is_closing()
        ):
            return False
        cycle.response_complete = True  # as far as uvicorn is concerned
        self.connections.discard(self)
        self.flow.resume_reading()
        transport, head = self._gathering.let_go()
        OpenStream(self, transport, stream, place, left).begin(head)
        self.parser = None  # type: ignore[assignment]  # it leads back here too
        self._release()
        return True

    # --- connections that stay idle ----------------------------------------------------------

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.timeout_keep_alive, self._look_if_idle)

    def _look_if_idle(self) -> None:
        self._timer = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.timeout_keep_alive_handler()
        else:
            self._timer = self.loop.call_later(left, self._look_if_idle)


_known: tuple[object, bytes] = ((), b"")


def _default_head(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The headers that all responses have; there are new ones each second."""
    global _known  # noqa: PLW0603  a cache of one
    if headers is not _known[0]:
        _known = headers, b"".join(b"%b: %b\r\n" % header for header in headers)
    return _known[1]


class Gathering(asyncio.Transport):
    """A transport that writes all of one turn together."""

    __slots__ = ("_loop", "_parts", "_together", "_transport")

    def __init__(
        self, transport: asyncio.Transport, together: Together, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._together = together
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: Any) -> None:
        if not self._parts:
            self._together.write_soon(self._flush, self._loop)
        self._parts.append(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def let_go(self) -> tuple[asyncio.Transport, bytes]:
        """The transport itself, and what is yet to be written to it."""
        data = b"".join(self._parts)
        self._parts.clear()
        return self._transport, data

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._parts)) + self._transport.get_write_buffer_size()

    # The rest is the transport's.

    def abort(self) -> None:
        self._transport.abort()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

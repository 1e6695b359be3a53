"""uvicorn's HTTP, with one system call where it makes two, and with nothing behind a stream that waits.

uvicorn writes the head of a response and its body apart, and each is a system call, which costs more than
all that a plain call does here. This gathers what is written in one turn of the event loop, and takes a
response that is all there at once. Most requests are answered without waiting for anything: they are run one
after the other by one task (see `Inline`), and what they are answered with is written when all of them have
run (`Together`). A stream of events that stays open is handed to an `OpenStream`. And where uvicorn sets a
timer after each response, for connections that stay idle, there is one that goes on, and that also ends
connections whose client sends no request, or not all of it (see `connection_limits`).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from midcall.calls import Body, Inline
from midcall.transports.connection_limits import Limits, SlowReaders
from midcall.transports.open_stream import OpenStream
from midcall.transports.responses import DETACH, INLINE, RESPOND, EventStream, Fields


class Together:
    """Runs the requests of a server, and writes its responses."""

    __slots__ = ("_writing", "leaving", "limits", "requests", "slow_readers")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.slow_readers = SlowReaders(limits)
        self.leaving = False
        """Whether the server is to end: each response is the last one on its connection."""
        self.requests = Inline[Body](lambda request, _: request, left=lambda request: request.close())
        self._writing: list[Callable[[], None]] = []

    def write_soon(self, write: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Call this after all that is ready to run now."""
        if not self._writing:
            loop.call_soon(self._write)
        self._writing.append(write)

    def _write(self) -> None:
        writing, self._writing = self._writing, []
        for write in writing:
            write()


TOO_LARGE = "The head of the request is too large"


class HeadTooLarge(Exception):
    """The head of a request is larger than the limit."""


class OneWrite(HttpToolsProtocol):
    """One connection."""

    __slots__ = (
        "_body",
        "_chunk",
        "_coming",
        "_due",
        "_extensions",
        "_gathering",
        "_timer",
        "_together",
        "_unused",
    )

    def __init__(self, *args: Any, together: Together, **options: Any) -> None:
        super().__init__(*args, **options)
        self._together = together
        self._coming: Literal["head", "body"] | None = None
        """What the client has begun to send, and not ended."""
        self._due: float | None = None
        """When the connection is closed, unless the client has done its part by then."""
        self._timer: asyncio.TimerHandle | None = None
        self._chunk = 0  # the size of what is read just now
        self._unused = 0  # bytes that have come in pieces, and are neither a whole head nor part of a body
        self._body = 0  # bytes of the body that have come since it was last looked how fast they come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gathering = Gathering(cast("asyncio.Transport", transport), self._together, self.loop)
        self._extensions = {DETACH: self._detach, RESPOND: self._respond, INLINE: True}
        super().connection_made(self._gathering)
        if len(self.connections) > self._together.limits.connections:
            self._refuse(503, "Too many connections")
        else:
            self._wait(self._together.limits.head_time)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gathering.caught_up()
        super().connection_lost(exc)
        self._release()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        self._release()

    def _release(self) -> None:
        """Let go of all that leads back here: without this, only the collector frees it."""
        self._extensions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        self._gathering.fell_behind()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._gathering.caught_up()
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._together.leaving:
            cycle.keep_alive = False
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

    def _detach(
        self, stream: EventStream, place: int, left: Callable[[], None] | None, seconds: float | None
    ) -> bool:
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
        OpenStream(self, transport, stream, place, left, self._together.slow_readers).begin(head, seconds)
        self.parser = None  # type: ignore[assignment]  # it leads back here too
        self._release()
        return True

    # --- what the client has to do -----------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        body = self._body
        if self._coming == "head":
            self._unused += len(data)
        self._chunk = len(data)
        super().data_received(data)
        if self._coming is None:
            return
        limits = self._together.limits
        if self._coming == "body" and self._body == body:
            self._unused += len(data)
        if self._unused > limits.head:
            self._refuse(431, TOO_LARGE)
        elif self._due is None:
            self._wait(limits.head_time if self._coming == "head" else limits.pace_time)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = self._extensions
        self._coming = "head"
        self._due = None
        self._unused = 0

    def on_headers_complete(self) -> None:
        if self._unused + self._chunk > self._together.limits.head and self._is_too_large():
            raise HeadTooLarge
        self._coming = "body"
        self._due = None
        self._unused = self._body = 0
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.headers = []  # what comes after the body is no header of the request

    def _is_too_large(self) -> bool:
        """Whether the head that has come is, without what came in one piece with it."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        return size > self._together.limits.head

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._coming = None
        self._due = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._coming is None:
            self._wait(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        """There is no other timer than the one here."""

    def _wait(self, seconds: float) -> None:
        """The client has so much time for what it has to do next."""
        self._due = self.loop.time() + seconds
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._look)
        elif self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = self.loop.call_at(self._due, self._look)

    def _look(self) -> None:
        """Close the connection if the client is late."""
        self._timer = None
        if self._due is None or self.transport.is_closing():
            return
        if self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
        elif self._comes_on():
            self._body = 0
            self._wait(self._together.limits.pace_time)
        elif self._coming is None or (self.cycle is not None and self.cycle.response_started):
            self.transport.close()
        else:
            self._refuse(408, "The request did not come in time")

    def _comes_on(self) -> bool:
        """Whether it is not the client that keeps us waiting."""
        answered = self.cycle is None or self.cycle.response_complete
        if self._coming == "head":
            return not answered  # it is sent ahead, while another request is served
        return self._coming == "body" and (
            self.flow.read_paused or (not answered and self._body >= self._together.limits.least)
        )

    def send_400_response(self, msg: str) -> None:
        """What came is no request; or its head is too large, as then it is not looked at either."""
        if self._coming == "head" and self._is_too_large():
            self._refuse(431, TOO_LARGE)
        else:
            self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answer without a look at the request, and hang up."""
        body = message.encode()
        self._gathering.write(
            b"%bcontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[status] + _default_head(self.server_state.default_headers), len(body), body)
        )
        self._gathering.close()

    # --- a server that ends -------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Whether a request may come, or its response has not begun."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or not cycle.response_started

    def leave(self) -> None:
        """The server is to end: what is answered from now on is the last response here."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False


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

    def fell_behind(self) -> None:
        """The client has not read all that was written."""
        self._together.slow_readers.add(self._transport)

    def caught_up(self) -> None:
        """It has; or it is gone."""
        self._together.slow_readers.discard(self._transport)

    def let_go(self) -> tuple[asyncio.Transport, bytes]:
        """The transport itself, and what is yet to be written to it."""
        data = b"".join(self._parts)
        self._parts.clear()
        return self._transport, data

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            if not self._transport.is_closing():  # the client may have left in this very turn
                self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()
        if self._transport.get_write_buffer_size():  # it stays until that is read
            self.fell_behind()

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

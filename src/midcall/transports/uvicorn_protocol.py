"""All that leans on the inside of uvicorn: its HTTP and WebSocket protocols, changed for calls that wait.

It is imported only with a version that it was tested with (`http_server.TESTED`). With others uvicorn serves
as it comes, and what midcall does is the same, but for most limits of what a peer may take, and for those who
have connected just before it ends. What is changed:

- uvicorn writes the head of a response and its body apart, and each is a system call. A `BufferedTransport`
  gathers what is written in one turn of the event loop. Without it, a plain call takes 47 µs of CPU where it
  takes 40, beside 36 of uvicorn with a constant answer (`bench/peers`: wrk, 64 connections).
- A response that is all there is taken at once (`responses.RESPOND`). Without that, 43.5 µs.
- A stream of events that stays open is handed to a `StreamProtocol`, with as little behind it as can be
  (`responses.DETACH`). Without that, a waiting legacy call takes 20 kB where it takes 9.
- Where uvicorn sets a timer after each response, for connections that stay idle, there is one that goes on.
  It also ends connections whose client sends no request, or not all of it; and those of clients that do not
  read are ended too (`connection_limits`).
- A server that ends answers those who have connected already.
"""

import asyncio
import functools
import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

import uvicorn
from starlette.types import Scope
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from midcall.transports.connection_limits import Limits, SlowReaders
from midcall.transports.responses import COMMENT, DETACH, KEEP_ALIVE, RESPOND, EventStream, Fields


class Connections:
    """What all connections of a server share, and what is done with all of them."""

    __slots__ = ("leaving", "limits", "slow_readers")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.slow_readers = SlowReaders(limits)
        self.leaving = False
        """Whether the server is to end: each response is the last one on its connection."""

    @property
    def options(self) -> dict[str, Any]:
        """What the configuration of the server has to say."""
        return {"http": functools.partial(HttpProtocol, connections=self), "ws": WebSocketProtocol}

    async def end_startup(self, server: uvicorn.Server) -> None:
        """End what a server has begun that was told to stop just before it listens for that itself."""
        if isinstance(server.lifespan, LifespanOn):
            await server.lifespan.startup_event.wait()
            await server.lifespan.shutdown()

    async def leave(self, server: uvicorn.Server, sockets: Sequence[socket.socket]) -> None:
        """Close the listeners. Who has connected already, perhaps with a request, is taken in before."""
        self.leaving = True
        for connection in list(server.server_state.connections):
            if isinstance(connection, HttpProtocol):
                connection.leave()
        listeners = [one for started in server.servers for one in started.sockets]
        waiting = [socket.socket(fileno=os.dup(one.fileno())) for one in listeners]
        for started in server.servers:
            started.close()
        for one in sockets:
            one.close()
        for _ in range(2):
            await asyncio.sleep(0)  # uvloop closes them in the next turn
        accepted: list[socket.socket] = []
        for listener in waiting:
            with listener, suppress(OSError):
                listener.setblocking(False)
                while True:
                    accepted.append(listener.accept()[0])
        protocol: Any = server.config.http_protocol_class
        for one in accepted:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol(  # as uvicorn makes it
                    config=server.config, server_state=server.server_state, app_state=server.lifespan.state
                ),
                one,
            )

    def in_use(self, server: uvicorn.Server) -> bool:
        """Whether there are connections on which a request may come. Who has pressed Ctrl-C does not wait."""
        return signal.SIGINT not in server._captured_signals and any(
            isinstance(one, HttpProtocol) and one.in_use for one in server.server_state.connections
        )

    def hang_up(self, server: uvicorn.Server) -> None:
        """Whoever has not read its response by now never will."""
        for connection in list(server.server_state.connections):
            connection.transport.abort()


# --- HTTP ------------------------------------------------------------------------------------


TOO_LARGE = "The head of the request is too large"


class HeadTooLarge(Exception):
    """The head of a request is larger than the limit."""


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    __slots__ = (
        "_body",
        "_buffered",
        "_chunk",
        "_coming",
        "_connections",
        "_due",
        "_extensions",
        "_first",
        "_timer",
        "_unused",
    )

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._coming: Literal["head", "body"] | None = None
        """What the client has begun to send, and not ended."""
        self._due: float | None = None
        """When the connection is closed, unless the client has done its part by then."""
        self._timer: asyncio.TimerHandle | None = None
        self._chunk = 0  # the size of what is read just now
        self._first = 0  # the size of what was read when the request began
        self._unused = 0  # bytes that have come in pieces, and are neither a whole head nor part of a body
        self._body = 0  # bytes of the body that have come since it was last looked how fast they come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._buffered = BufferedTransport(
            cast("asyncio.Transport", transport), self._connections.slow_readers, self.loop
        )
        self._extensions = {DETACH: self._detach, RESPOND: self._respond}
        super().connection_made(self._buffered)
        if len(self.connections) > self._connections.limits.connections:
            self._refuse(503, "Too many connections")
        else:
            self._wait(self._connections.limits.head_time)

    def connection_lost(self, exc: Exception | None) -> None:
        self._buffered.caught_up()
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
        self._buffered.fell_behind()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._buffered.caught_up()
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._connections.leaving:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

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
        self._buffered.write(b"".join(parts))
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
            or self._buffered.is_closing()
        ):
            return False
        cycle.response_complete = True  # as far as uvicorn is concerned
        self.connections.discard(self)
        self.flow.resume_reading()
        transport, head = self._buffered.let_go()
        StreamProtocol(self, transport, stream, place, left, self._connections.slow_readers).begin(
            head, seconds
        )
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
        limits = self._connections.limits
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
        self._first = self._chunk
        self._unused = 0

    def on_headers_complete(self) -> None:
        if self._first + self._unused + self._chunk > self._connections.limits.head and self._is_too_large():
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
        return size > self._connections.limits.head

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
            self._wait(self._connections.limits.pace_time)
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
            self.flow.read_paused or (not answered and self._body >= self._connections.limits.least)
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
        self._buffered.write(
            b"%bcontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[status] + _default_head(self.server_state.default_headers), len(body), body)
        )
        self._buffered.close()

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


class BufferedTransport(asyncio.Transport):
    """A transport that writes all of one turn together."""

    __slots__ = ("_loop", "_parts", "_slow_readers", "_transport")

    def __init__(
        self, transport: asyncio.Transport, slow_readers: SlowReaders, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._slow_readers = slow_readers
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: Any) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def fell_behind(self) -> None:
        """The client has not read all that was written."""
        self._slow_readers.add(self._transport)

    def caught_up(self) -> None:
        """It has; or it is gone."""
        self._slow_readers.discard(self._transport)

    def let_go(self) -> tuple[asyncio.Transport, bytes]:
        """The transport itself, and what is yet to be written to it."""
        data = b"".join(self._parts)
        self._parts.clear()
        return self._transport, data

    def flush(self) -> None:
        """Write what there is now, and not at the end of the turn."""
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            if not self._transport.is_closing():  # the client may have left in this very turn
                self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()
        if self._transport.get_write_buffer_size():  # it stays until that is read
            self.fell_behind()

    def write_eof(self) -> None:
        self.flush()
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


# --- streams that stay open ------------------------------------------------------------------


READ_AHEAD = 64 * 1024
"""How many bytes of the requests that follow are taken before the stream has ended."""

_LAST_CHUNK = b"0\r\n\r\n"


class StreamProtocol(asyncio.Protocol):
    """One connection, from the first event of a stream to the last.

    A stream may wait for a person for hours, and there may be thousands of them. What uvicorn holds for a
    request (a parser, the headers, the task of the application) has nothing to do meanwhile. So once the head
    of the response is written, this takes the place of uvicorn's protocol, as a WebSocket does, and makes way
    for a new one when the stream ends.
    """

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


# --- WebSocket -------------------------------------------------------------------------------


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, taken over from an `HttpProtocol`.

    What waits for a peer that does not read is bounded, in size and in time; and one whose handshake cannot
    be read is told so and hung up on, where uvicorn waits for more.
    """

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # More may be read in this very turn: it is to be known by then whether the peer reads, too.
        cast("BufferedTransport", self.transport).flush()
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def pause_writing(self) -> None:
        cast("BufferedTransport", self.transport).fell_behind()
        super().pause_writing()

    def resume_writing(self) -> None:
        cast("BufferedTransport", self.transport).caught_up()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        cast("BufferedTransport", self.transport).caught_up()
        super().connection_lost(exc)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # a peer that reads nothing needs no answer; the next ping gets one

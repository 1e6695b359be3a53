"""One connection of the client: one request at a time, and the parser of its response.

A response ends in `data_received`, never inside the parser: by then it is known whether the server sent
more than it was asked for, in which case the connection is not used again. What came too early would
otherwise be taken for the response to the next request.
"""

import asyncio
import select
import ssl
import time
import zlib
from typing import NoReturn, Protocol, cast

import httptools

from midcall.client.http1.coding import Decoder, decoder
from midcall.client.http1.message import Headers, HttpError, Url

MAX_HEAD = 64 * 1024
"""The largest head of a response, together with the interim ones before it; the same for trailers."""

TOO_LARGE = f"gave no valid answer: its head is larger than {MAX_HEAD} bytes"

FRESH = 0.1
"""Seconds for which an idle connection is taken to be as the event loop last saw it."""


class Sink(Protocol):
    """Who takes a response: called by the event loop, never before `send` has returned; must not block.

    Nothing comes after `end`, which comes exactly once, nor after `Sending.cancel`.
    """

    def head(self, status: int, headers: Headers) -> None:
        """The response has begun. Interim ones (1xx) are skipped."""

    def body(self, data: bytes) -> None:
        """A piece of the body, decoded."""

    def end(self, error: HttpError | None) -> None:
        """The response is complete, or will never be. Another request may be sent from here."""


class Owner(Protocol):
    """Who has the connections: the pool."""

    def forget(self, sending: "Sending") -> None:
        """Do not send it."""

    def streams(self, connection: "Connection") -> None:
        """The response on this connection is a stream."""

    def free(self, connection: "Connection") -> None:
        """It may carry the next request."""

    def lost(self, connection: "Connection") -> None:
        """It is closed."""


class Sending:
    """A request on its way."""

    __slots__ = ("connection", "data", "owner", "paused", "sent", "sink", "url", "without_body")

    def __init__(self, owner: Owner, url: Url, data: bytes, sink: Sink, without_body: bool) -> None:
        self.owner = owner
        self.url = url
        self.data = data
        self.sink = sink
        self.without_body = without_body
        """Whether the response has no body whatever its head says: HEAD."""
        self.sent = False
        """Whether the request may have reached the server."""
        self.connection: Connection | None = None
        self.paused = False

    def cancel(self) -> None:
        """Give the request up; its connection, if it has one, is closed. The sink hears nothing more."""
        self.sink = NOBODY
        if self.connection is not None:
            self.connection.drop()
        else:
            self.owner.forget(self)

    def pause(self) -> None:
        """Read no more of the response; what has been read already (at most 256 kB) still comes."""
        self.paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read on."""
        self.paused = False
        if self.connection is not None:
            self.connection.resume()

    def end(self, error: HttpError | None) -> None:
        """Tell the sink, and let an error of its own harm nobody else."""
        try:
            self.sink.end(error)
        except Exception as fault:  # noqa: BLE001
            report(fault)


class _Nobody:
    """The sink of a request that was cancelled."""

    def head(self, status: int, headers: Headers) -> None:
        pass

    def body(self, data: bytes) -> None:
        pass

    def end(self, error: HttpError | None) -> None:
        pass


NOBODY = _Nobody()


class Connection(asyncio.Protocol):
    """A connection that is open, from the moment that it is made."""

    __slots__ = (
        "_complete",
        "_decoder",
        "_excess",
        "_fault",
        "_headers",
        "_keep",
        "_owner",
        "_pairs",
        "_parser",
        "_sending",
        "_sink",
        "_transport",
        "_unframed",
        "idle_since",
        "streaming",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._sending: Sending | None = None
        self._sink: Sink | None = None
        self._pairs: list[tuple[bytes, bytes]] = []
        self._headers: Headers | None = None
        self._decoder: Decoder | None = None
        self._unframed = 0
        """Bytes since the last that were part of a body: of a head, of trailers, of the sizes of chunks."""
        self._keep = False
        self._complete = False
        self._excess = False
        self._fault = ""
        self.idle_since = 0.0
        self.streaming = False

    # --- what the pool does ------------------------------------------------------------------

    def start(self, sending: Sending) -> None:
        """Send a request."""
        self._sending = sending
        self._sink = sending.sink
        sending.connection = self
        sending.sent = True
        self._transport.write(sending.data)
        sending.data = b""
        if sending.paused:
            self.pause()

    def usable(self, idle_timeout: float) -> bool:
        """Whether an idle connection can be trusted with a request."""
        idle = time.monotonic() - self.idle_since
        if idle > idle_timeout or self._transport.is_closing():
            return False
        # The event loop may have been held up, with the news of the server's closing still unread.
        return idle < FRESH or not _readable(self._transport.get_extra_info("socket").fileno())

    @property
    def closed(self) -> bool:
        return self._transport.is_closing()

    def shut(self, why: str) -> None:
        """Close it: properly if it is idle, otherwise at once, and what is on it fails."""
        if self._sending is None:
            self._transport.close()
        else:
            self._fail(why)

    # --- what a `Sending` does ---------------------------------------------------------------

    def drop(self) -> None:
        """Close it at once; what is on it is not wanted any more."""
        self._let_go()
        self._transport.abort()

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # --- what asyncio does -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        sending = self._sending
        if sending is None:
            self._transport.abort()  # nothing was asked: a server's farewell, as a rule
            return
        self._unframed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fault = "gave no valid answer: it changed to another protocol, unasked"
        except httptools.HttpParserError as error:
            if self._complete:
                self._excess = True
            else:
                self._broken(error)
        if self._sending is not sending:
            return  # its sink has cancelled it
        if self._complete:
            self._finish()
        elif self._fault or self._unframed > MAX_HEAD:
            self._fail(self._fault or TOO_LARGE)

    def eof_received(self) -> None:
        if self._sending is not None and self._headers is not None and not _framed(self._headers):
            if _cut(self._transport.get_extra_info("ssl_object")):
                return  # `connection_lost` follows
            self._keep = False
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if self._sending is not None:
            what = "no answer" if self._headers is None else "no whole answer"
            how = "closed" if error is None else f"lost ({getattr(error, 'strerror', None) or error})"
            self._fail(f"gave {what}: the connection was {how}")
        del self._parser  # a cycle
        self._owner.lost(self)

    # --- what the parser does ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._excess = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        pairs, self._pairs = self._pairs, []
        sending = self._sending
        if self._complete or sending is None:
            return
        parser = self._parser
        status = parser.get_status_code()
        if status < 200:
            return
        if self._unframed > MAX_HEAD and sum(len(name) + len(value) + 4 for name, value in pairs) > MAX_HEAD:
            self._refuse(TOO_LARGE)
        self._unframed = 0
        self._keep = parser.should_keep_alive()
        self._headers = headers = Headers(pairs)
        for name, value in pairs:
            match len(name):
                case 12:
                    if value.startswith(b"text/event-stream") and name.lower() == b"content-type":
                        self._owner.streams(self)
                case 16:
                    if name.lower() == b"content-encoding":
                        self._set_decoder(headers)
        sending.sink.head(status, headers)
        if sending.without_body:
            self._keep = False  # the parser cannot be told that no body follows
            self._complete = True

    def on_body(self, data: bytes) -> None:
        self._unframed = 0
        if self._complete:
            return
        if self._decoder is not None:
            self._decode(self._decoder, data)
        elif self._sink is not None:
            self._sink.body(data)

    def on_message_complete(self) -> None:
        if self._headers is not None:
            self._complete = True

    # --- how a request ends ------------------------------------------------------------------

    def _finish(self) -> None:
        """The response is complete. The connection goes first, so that the sink finds it free."""
        sending = cast("Sending", self._sending)
        if self._decoder is not None and not self._decoder.complete():
            self._fail("gave no whole answer: its compressed body breaks off")
            return
        clean = not self._excess and self._transport.get_write_buffer_size() == 0
        keep = self._keep and clean and not self._transport.is_closing()
        if sending.paused:
            self.resume()
        self._let_go()
        if keep:
            self._owner.free(self)
        elif clean:
            self._transport.close()
        else:
            self._transport.abort()
        sending.end(None)

    def _fail(self, why: str) -> None:
        """There is no whole response, and the connection is of no use any more."""
        sending = cast("Sending", self._sending)
        self._let_go()
        self._transport.abort()
        sending.end(HttpError(f"{sending.url} {why}", sent=sending.sent))

    def _let_go(self) -> None:
        """Be as before the request."""
        if self._sending is not None:
            self._sending.connection = None
        self._sending = self._sink = self._headers = self._decoder = None
        self._complete = self._excess = False
        self._unframed = 0
        if self._pairs:
            self._pairs = []  # trailers

    # --- what goes wrong in the parser -------------------------------------------------------

    def _set_decoder(self, headers: Headers) -> None:
        try:
            self._decoder = decoder(headers)
        except ValueError as error:
            self._refuse(f"gave no valid answer: its body is encoded as {error}")

    def _decode(self, decoder: Decoder, data: bytes) -> None:
        try:
            for piece in decoder.pieces(data):
                if self._sink is None:
                    return  # cancelled: a few bytes may unfold to very many
                self._sink.body(piece)
        except zlib.error as error:
            self._refuse(f"gave no valid answer: its body cannot be decoded ({error})")

    def _refuse(self, why: str) -> NoReturn:
        """Stop the parser."""
        self._fault = why
        raise ValueError(why)

    def _broken(self, error: httptools.HttpParserError) -> None:
        """The parser stopped: by what the server sent, by `_refuse`, or by an error in a sink."""
        if self._fault:
            return
        if error.__context__ is None:
            self._fault = f"gave no valid answer: {error}"
        else:
            self._fault = "gave an answer that could not be taken"
            report(error.__context__)


def report(fault: BaseException) -> None:
    """A sink failed: an error of this program, not of the server's."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": "A sink of an HTTP response failed", "exception": fault}
    )


def _framed(headers: Headers) -> bool:
    """Whether a body with these headers has an end of its own; otherwise it ends with the connection."""
    if headers.get("transfer-encoding") is not None:
        return headers.get_all("transfer-encoding")[-1].lower().endswith("chunked")
    return headers.get("content-length") is not None


def _cut(tls: ssl.SSLObject | None) -> bool:
    """Whether TLS ended without the server's word for it: by anybody on the way. asyncio does not say."""
    try:
        return tls is not None and tls.read(1) != b""
    except ssl.SSLError:
        return True


def _readable(descriptor: int) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))

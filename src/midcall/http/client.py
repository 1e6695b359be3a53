"""The HTTP client: kept connections, limits, and responses that are read as they come.

aiohttp does the protocol, the sockets and the proxies. Here is what it leaves to its users: how many requests
an origin gets at once, that a connection which the server has closed is not used again, how much a server
may send, and errors that say whether the request was sent.
"""

import asyncio
import io
import os
import select
import ssl
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict
from yarl import URL

from midcall.http.coding import Decoder, decoder
from midcall.http.message import Headers, HttpError, Url, checked_headers
from midcall.http.proxies import Proxies, Proxy

MAX_BODY = 16 * 1024 * 1024
MAX_HEAD = 64 * 1024
"""The largest head of a response, together with the interim ones before it; the same for trailers."""

MAX_HEADERS = 1000

MAX_REDIRECTS = 5
FRESH = 0.1
"""Seconds for which a connection is taken to be as the event loop last saw it."""

LARGE = 1024 * 1024
"""Bytes from which on a body is sent in pieces."""

TOO_LARGE = ("Got more than", "Too many")
"""What aiohttp says of a head beyond these limits."""

CLOSED = "the client was closed"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
CREDENTIALS = frozenset({"authorization", "cookie"})
AUTOMATIC = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add."""

Prepared = CIMultiDict[str]
"""Headers that were checked, by `prepare`."""


def prepare(pairs: Sequence[tuple[str, str]]) -> Prepared:
    """Check headers, once for many requests. Raises `HttpError` for what cannot be one."""
    return CIMultiDict(checked_headers(pairs))


class HttpClient:
    """HTTP/1.1 over kept connections. Belongs to the event loop in which it is first used.

    At most `max_connections` to an origin carry requests; what comes on top waits its turn. A response that
    is a stream of events has no end that anybody knows, so its connection leaves that number and counts
    toward `max_streams` instead: listening to many streams does not hold up calls. Streams beyond
    `max_streams` count like everything else, so that the two together bound the open files.

    A connection that was idle for `idle_timeout` seconds is not used again: most servers close after five,
    and a request that meets the closing is one of which nobody knows whether it was heard.
    """

    def __init__(
        self,
        *,
        max_connections: int = 100,
        max_streams: int = 400,
        connect_timeout: float = 10.0,
        idle_timeout: float = 4.0,
        tls: ssl.SSLContext | None = None,
        use_environment: bool = True,
    ) -> None:
        """`tls` is for https, and the system's trust store if it is not given; `use_environment` takes
        proxies from `HTTP_PROXY` and its kin."""
        self._max_connections = max_connections
        self._max_streams = max_streams
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._tls = tls
        self._proxies = Proxies.of_environment() if use_environment else Proxies({}, "")
        self._origins: dict[str, _Origin] = {}
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        """One for each SOCKS proxy, and one for all else."""
        self._turns: set[_Turn] = set()
        """The requests that are under way."""
        self.closed = False

    async def request(
        self,
        verb: str,
        url: Url,
        headers: Prepared | Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        timeout: float | None = 30.0,
        follow: bool = False,
    ) -> "Response":
        """Send a request and wait for the head of its response; raises `HttpError` if there is none.

        `timeout` is how many seconds that and `Response.read` may take together. `follow` goes after
        redirects of a GET, to the same scheme only, and takes credentials to no other origin.

        `Host`, `Content-Length` and `Accept-Encoding` are added. The latter asks for a body as it is:
        messages are small and wanted soon, and what compresses a stream tends to hold it back. If a server
        compresses anyway, the body is decoded. A POST is never sent twice; what is safe to repeat (GET, HEAD,
        OPTIONS, DELETE) is sent once more if its connection is lost before a response.
        """
        if not (verb.isascii() and verb.isalpha()):
            raise HttpError(f"{verb!r} is no verb of HTTP", sent=False)
        prepared = headers if isinstance(headers, CIMultiDict) else prepare(headers)
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        for _ in range(MAX_REDIRECTS):
            response = await self._exchange(verb, url, prepared, body, deadline)
            if not (follow and verb == "GET" and response.status in REDIRECTS):
                return response
            target = response.headers.get("location")
            if not target:
                return response
            response.close()
            there = url.join(target)
            if there.scheme != url.scheme:
                raise HttpError(f"{url} leads to {there}, which is not followed", sent=True)
            if there.origin != url.origin:
                kept = [pair for pair in prepared.items() if pair[0].lower() not in CREDENTIALS]
                prepared = CIMultiDict(kept)
            url = there
        raise HttpError(f"{url} leads on and on", sent=True)

    async def close(self) -> None:
        """Close all connections; what is under way fails."""
        self.closed = True
        for origin in self._origins.values():
            origin.give_up(f"was not called: {CLOSED}")
        for turn in list(self._turns):
            turn.interrupt()
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _exchange(
        self, verb: str, url: Url, headers: Prepared, body: bytes, deadline: float | None
    ) -> "Response":
        """Send a request, and wait for the head of its response."""
        if self.closed:
            raise HttpError(f"{url} was not called: this client is closed", sent=False)
        origin = self._origins.get(url.origin)
        if origin is None:
            origin = _Origin(self._proxies.find(url), self._max_connections, self._max_streams)
            self._origins[url.origin] = origin
        turn = _Turn(origin, self._turns)
        try:
            if deadline is None:
                reply = await self._begin(turn, verb, url, origin.proxy, headers, body)
            else:
                async with asyncio.timeout_at(deadline):
                    reply = await self._begin(turn, verb, url, origin.proxy, headers, body)
            return Response(self, url, deadline, turn, reply)
        except asyncio.CancelledError:
            turn.end()
            if not turn.resumed():
                raise
            why = f"gave no answer: {CLOSED}" if turn.sent else f"was not called: {CLOSED}"
            raise HttpError(f"{url} {why}", sent=turn.sent) from None
        except _NoTurn as error:
            turn.end()
            raise HttpError(f"{url} {error}", sent=False) from None
        except _FAILURES as error:
            why = self._why(error, turn, origin.proxy)
            turn.end()
            own = isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)
            if not (own or turn.sent or origin.reached):
                origin.give_up(why)
            raise HttpError(f"{url} {why}", sent=turn.sent) from error
        except BaseException:
            turn.end()
            raise

    async def _begin(
        self, turn: "_Turn", verb: str, url: Url, proxy: Proxy | None, headers: Prepared, body: bytes
    ) -> aiohttp.ClientResponse:
        """Wait for a turn, and send a request by aiohttp."""
        await turn.begin()
        options: dict[str, Any] = {}
        if proxy is not None and not proxy.socks:
            options["proxy"] = URL(proxy.url)
        if url.scheme == "https" or (proxy is not None and proxy.scheme == "https"):
            options["ssl"] = await self._context()
        if url.credentials and "authorization" not in headers:
            headers = CIMultiDict(headers)
            headers["Authorization"] = url.credentials
        session, there = self._session(proxy), _address(url.full)
        while True:
            data = (io.BytesIO(body) if len(body) > LARGE else body) if body else None
            try:
                return await session.request(
                    verb, there, data=data, headers=headers, allow_redirects=False, **options
                )
            except _Stale:
                continue  # on another connection

    def _session(self, proxy: Proxy | None) -> aiohttp.ClientSession:
        key = proxy.url if proxy is not None and proxy.socks else ""
        found = self._sessions.get(key)
        if found is None:
            # Connections are counted here, not by aiohttp: it knows nothing of streams.
            options: dict[str, Any] = {"limit": 0, "keepalive_timeout": self._idle_timeout}
            found = self._sessions[key] = aiohttp.ClientSession(
                connector=_socks_connector(proxy, options)
                if proxy is not None and key
                else _connector(options),
                request_class=_Request,
                headers={"Accept-Encoding": "identity"},
                skip_auto_headers=AUTOMATIC,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(connect=self._connect_timeout),
                auto_decompress=False,
                max_line_size=MAX_HEAD,
                max_field_size=MAX_HEAD,
                max_headers=MAX_HEADERS,
            )
        return found

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await asyncio.to_thread(_system_trust)
        return self._tls

    def _why(self, error: Exception, turn: "_Turn", proxy: Proxy | None) -> str:
        """What went wrong before there was a response, in words that fit after the URL."""
        match error:
            case aiohttp.ConnectionTimeoutError():
                return f"cannot be reached: no connection within {self._connect_timeout:g} seconds"
            case TimeoutError():
                return "did not answer in time"
            case _ if turn.sent:
                return _lost(error, "no answer")
            case _:
                return f"cannot be reached: {_unreached(error, proxy)}"


@lru_cache(256)
def _address(url: str) -> URL:
    return URL(url, encoded=True)


class Response:
    """A response whose head has come. Read it, iterate over its body, or close it: until then it has
    a connection for itself. `async with` closes it in any case."""

    def __init__(
        self,
        client: HttpClient,
        url: Url,
        deadline: float | None,
        turn: "_Turn",
        reply: aiohttp.ClientResponse,
    ) -> None:
        """Raises `HttpError` for a response that cannot be read."""
        self.url = url
        """Where it came from, after redirects."""
        self.status = reply.status
        self.headers = Headers(reply.raw_headers)
        self._client = client
        self._deadline = deadline
        self._turn = turn
        self._reply = reply
        self._pieces: Iterator[bytes] = iter(())
        """Of what has been read, decoded as they are asked for."""
        self._decoder: Decoder | None = None
        turn.response = self
        if reply.connection is None:
            turn.end()  # all of it has come
        elif reply.content_type == "text/event-stream":
            turn.begin_stream()
        if self.status == 101:
            raise self._invalid("it changed to another protocol, unasked")
        if "content-encoding" in reply.headers:
            try:
                self._decoder = decoder(self.headers)
            except ValueError as error:
                raise self._invalid(f"its body is encoded as {error}") from None

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """The whole body, or what is left of it. Raises `HttpError` if it is larger than the limit."""
        if self._deadline is None:
            return await self._read(limit)
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._read(limit)
        except TimeoutError:
            raise HttpError(f"{self.url} did not answer in time", sent=True) from None

    async def _read(self, limit: int) -> bytes:
        pieces, size = [], 0
        try:
            while (piece := await self._next()) and size <= limit:
                size += len(piece)
                pieces.append(piece)
        except BaseException:
            self.close()
            raise
        if size > limit:
            self.close()
            raise HttpError(f"{self.url} sent more than {limit} bytes", sent=True)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece of the body, whenever it comes. Raises `HttpError` if the body breaks off."""
        piece = await self._next()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def _next(self) -> bytes:
        """The next piece of the body; nothing after the last."""
        try:
            while True:
                for piece in self._pieces:
                    return piece
                data = await self._reply.content.readany()
                if not data:
                    self._finish()
                    return b""
                if self._decoder is None:
                    return data
                self._pieces = self._decoder.pieces(data)
        except zlib.error as error:
            raise self._invalid(f"its body cannot be decoded ({error})") from None
        except _FAILURES as error:
            why = (
                f"gave no whole answer: {CLOSED}" if self._client.closed else _lost(error, "no whole answer")
            )
            self.close()
            raise HttpError(f"{self.url} {why}", sent=True) from error

    def _finish(self) -> None:
        """The body is over."""
        self._turn.end()
        if self._decoder is not None and not self._decoder.complete():
            raise HttpError(f"{self.url} gave no whole answer: its compressed body breaks off", sent=True)

    def close(self) -> None:
        """Do not read on. Does nothing if the response is complete."""
        self._reply.close()
        self._turn.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _invalid(self, why: str) -> HttpError:
        self.close()
        return HttpError(f"{self.url} gave no valid answer: {why}", sent=True)


# --- turns -----------------------------------------------------------------------------------------


class _Origin:
    """The requests to one origin: how many there are, and who waits, first come first served."""

    def __init__(self, proxy: Proxy | None, max_connections: int, max_streams: int) -> None:
        self.proxy = proxy
        self.max_connections = max_connections
        self.max_streams = max_streams
        self.busy = 0
        self.streams = 0
        self.more_streams: set[_Turn] = set()
        """Streams for which there is no room: they count as requests."""
        self.reached = 0
        """How many of the requests have got a connection."""
        self.waiting: deque[asyncio.Future[None]] = deque()

    def free(self) -> None:
        """One request less: let the next one go."""
        self.busy -= 1
        while self.waiting and self.busy < self.max_connections:
            turn = self.waiting.popleft()
            if not turn.done():
                self.busy += 1
                turn.set_result(None)

    def give_up(self, why: str) -> None:
        """Nobody who waits has a better chance."""
        for turn in self.waiting:
            if not turn.done():
                turn.set_exception(_NoTurn(why))
        self.waiting.clear()


class _Turn:
    """The turn of one request, until its response is complete or given up."""

    __slots__ = ("_busy", "_interrupted", "_origin", "_stream", "_task", "_turns", "response", "sent")

    def __init__(self, origin: _Origin, turns: "set[_Turn]") -> None:
        self._origin = origin
        self._turns = turns
        """Those of the client that are not over."""
        self._busy = False
        self._stream = False
        self.sent = False
        """Whether the request may have reached the server."""
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False
        self.response: Response | None = None

    async def begin(self) -> None:
        """Wait for it. Raises `_NoTurn`."""
        origin = self._origin
        self._turns.add(self)
        self._task = asyncio.current_task()
        _current_turn.set(self)
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
        if self not in self._turns:
            return
        self._turns.remove(self)
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


class _NoTurn(Exception):
    """A request that waited will not be sent; the text says why."""


# --- what is changed of aiohttp ----------------------------------------------------------------------

_current_turn: ContextVar[_Turn] = ContextVar("_current_turn")


class _Stale(aiohttp.ClientError):
    """The server has closed a kept connection, or said something on it unasked. Nothing was sent."""


class _SocksFailed(aiohttp.ClientError):
    """A SOCKS proxy has made no connection."""


class _Request(aiohttp.ClientRequest):
    """A request that looks at its connection before it is sent, and notes that it is."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        protocol = conn.protocol
        if isinstance(protocol, _Protocol):
            if protocol.used and (protocol.should_close or protocol.has_news()):
                raise _Stale
            protocol.used = True
        _current_turn.get().sends()
        return await super().send(conn)


class _Protocol(ResponseHandler):
    """One connection. Whatever ends it is told to who reads a body from it."""

    used = False
    """Whether it has carried a request."""

    _awaits_head = False
    _body_size = 0
    _unframed = 0
    """Bytes since the last that were part of a body: of a head, of trailers, of the sizes of chunks."""
    _heard = 0.0
    _ended = False
    """Whether the server has ended it properly."""
    _before: Any = None

    @classmethod
    def instead_of(cls, before: ResponseHandler, transport: asyncio.Transport) -> Self:
        """Take over a connection that somebody else has made."""
        self = cls(asyncio.get_running_loop())
        self._before = before  # it would close the connection when it goes
        transport.set_protocol(self)
        self.connection_made(transport)
        return self

    def set_response_params(self, **options: Any) -> None:
        if self.used and self._parser is not None:
            # What came beyond the last response, if only its beginning, would be missing from the next.
            try:
                begun = self._parser.feed_eof()
            except Exception:  # noqa: BLE001
                begun = True
            if begun is not None:
                self.force_close()
        self._awaits_head = True
        self._body_size = self._unframed = 0
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        body = self._payload
        if data and not self._awaits_head and body is not None and body.is_eof():
            self.abort()  # nothing was asked: a server's farewell, as a rule
            return
        super().data_received(data)
        self._heard = time.monotonic()
        body = self._payload
        size = 0 if self._awaits_head or body is None else body.total_bytes
        if size > self._body_size:
            self._body_size, self._unframed = size, 0
            return
        self._unframed += len(data)
        if self._unframed > MAX_HEAD and self.transport is not None:
            self.set_exception(HttpProcessingError(message=TOO_LARGE[0]))
            self.transport.abort()

    def has_news(self) -> bool:
        """Whether the server has closed it, or sent something: a busy loop may not have seen it."""
        if self.transport is None or time.monotonic() - self._heard < FRESH or not hasattr(select, "poll"):
            return self.transport is None
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """A head has come."""
        self._awaits_head = data[0].code < 200
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        self._break(exc)

    def eof_received(self) -> None:
        tls = self.transport.get_extra_info("ssl_object") if self.transport is not None else None
        self._ended = tls is None or not _cut(tls)
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        if exc is not None or not self._ended:
            self._break(exc or aiohttp.ServerDisconnectedError())
        super().connection_lost(exc)

    def _break(self, error: BaseException) -> None:
        """A body that has not come to its end never will."""
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(error)


def _connector(options: dict[str, Any]) -> aiohttp.TCPConnector:
    connector = aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver(), **options)
    connector._factory = partial(_Protocol, connector._loop)  # type: ignore[assignment]
    return connector


def _socks_connector(proxy: Proxy, options: dict[str, Any]) -> aiohttp.TCPConnector:
    try:
        from aiohttp_socks import (  # noqa: PLC0415  an extra
            ProxyConnectionError,
            ProxyConnector,
            ProxyError,
            ProxyTimeoutError,
            ProxyType,
        )
    except ImportError:
        raise HttpError(
            f"The proxy {proxy} needs the extra for SOCKS: pip install 'midcall[socks]'", sent=False
        ) from None

    class Connector(ProxyConnector):
        async def _wrap_create_connection(
            self, *args: Any, **options: Any
        ) -> tuple[asyncio.Transport, ResponseHandler]:
            try:
                transport, before = await super()._wrap_create_connection(*args, **options)
            except (ProxyConnectionError, ProxyError, ProxyTimeoutError) as error:
                raise _SocksFailed(str(error)) from error
            return transport, _Protocol.instead_of(before, transport)

    kind = ProxyType.SOCKS4 if proxy.scheme.startswith("socks4") else ProxyType.SOCKS5
    remote = proxy.scheme in ("socks4a", "socks5h")
    who = proxy.user or None, proxy.password or None
    return Connector(proxy.host, proxy.port, kind, *who, rdns=remote, **options)


def _system_trust() -> ssl.SSLContext:
    """Trust whom this machine trusts, or whom the environment names."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        context = ssl.create_default_context()
    else:
        import truststore  # noqa: PLC0415  seldom needed

        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    return context


# --- what goes wrong ---------------------------------------------------------------------------------

_FAILURES = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)


def _unreached(error: Exception, proxy: Proxy | None) -> str:
    """Why there is no connection, in words that fit after "cannot be reached"."""
    match error:
        case aiohttp.ClientHttpProxyError():
            return f"the proxy {proxy} refused: {error.status} {error.message}"
        case _SocksFailed():
            return f"the proxy {proxy} made no connection ({error})"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host} is not known ({error.os_error.strerror or error.os_error})"
        case aiohttp.ClientConnectorCertificateError():
            said = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
            return f"its certificate is not trusted ({said})"
        case aiohttp.ClientConnectorSSLError():
            return f"TLS failed ({getattr(error.os_error, 'reason', None) or error.os_error})"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy {proxy}: {_system_error(error.os_error)}"
        case aiohttp.ClientConnectorError():
            return _system_error(error.os_error) + (
                "" if proxy is None else f" by or behind the proxy {proxy}"
            )
        case UnicodeError():
            return f"its name is not valid ({error})"
        case _ if proxy is not None:
            return f"the proxy {proxy} gave no valid answer"
        case OSError():
            return _system_error(error)
        case _:
            return _first_line(error)


def _system_error(error: OSError) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return "the connection was closed at once"
        case _ if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno).lower()
        case _:
            return str(error) or type(error).__name__


def _lost(error: Exception, what: str) -> str:
    """Why there is no (whole) response, in words that fit after the URL."""
    cause: BaseException | None = error
    while cause is not None:
        if any(words in str(cause) for words in TOO_LARGE):
            return "gave no valid answer: its head is too large"
        cause = cause.__cause__
    match error:
        case aiohttp.ServerDisconnectedError():
            return f"gave {what}: the connection was closed"
        case aiohttp.ClientOSError() | OSError():
            return f"gave {what}: the connection was lost ({error.strerror or error})"
        case aiohttp.ClientPayloadError() | aiohttp.ClientConnectionError():
            return f"gave {what}: the connection was closed"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return f"gave no valid answer: {_first_line(error.message)}"
        case _:
            return f"gave {what}: {_first_line(error)}"


def _first_line(said: object) -> str:
    return str(said).strip().partition("\n")[0].rstrip(":") or type(said).__name__


def _cut(tls: ssl.SSLObject) -> bool:
    """Whether TLS ended without the server's word for it: by anybody on the way. asyncio does not say."""
    try:
        return tls.read(1) != b""
    except ssl.SSLError:
        return True

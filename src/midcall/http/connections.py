"""Connections: proxies, how many there are to an origin, what is changed of aiohttp, and its errors in words.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` are read in small or capital letters, as curl and Go
read them. What is on this machine is never reached through a proxy, as in Go: a proxy could not find it.

aiohttp uses a kept connection without a look at it, does not tell who reads a body of every way in which a
connection can end, and has no bound for some parts of a response. `ClientConnection` and `CheckedRequest`
mend that. They lean on names inside aiohttp (`_factory`, `_payload`, `_parser`), so
`pyproject.toml` allows only the versions that this was tested with: 3.14.
"""

import asyncio
import ipaddress
import os
import select
import ssl
import time
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader

from midcall.http.message import HttpError, HttpUrl

if TYPE_CHECKING:
    from midcall.http.client import HttpResponse

KINDS = frozenset({"http", "https", "socks4", "socks4a", "socks5", "socks5h"})


class Proxy:
    """A proxy. What goes through it to https is encrypted end to end."""

    __slots__ = ("host", "password", "port", "scheme", "url", "user")

    def __init__(self, text: str) -> None:
        """Raises `HttpError` for what is no proxy."""
        text = text if "://" in text else f"http://{text}"
        parts = urlsplit(text)
        if parts.scheme not in KINDS:
            raise HttpError(
                f"Proxies of the kind {parts.scheme}:// are not supported: use http, https, socks4 or socks5",
                sent=False,
            )
        self.scheme = parts.scheme
        self.host = HttpUrl(f"http://{parts.netloc.rpartition('@')[2]}").host  # which checks it, and the port
        self.port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 1080)
        self.user = unquote(parts.username or "")
        self.password = unquote(parts.password or "")
        self.url = text

    @property
    def socks(self) -> bool:
        return self.scheme.startswith("socks")

    def __str__(self) -> str:
        """Fit to be shown: without credentials."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Proxies:
    """The proxies by scheme (`http`, `https`, `all`), and a list of hosts that need none."""

    def __init__(self, proxies: Mapping[str, str], exceptions: str) -> None:
        self._proxies = dict(proxies)
        self._exceptions = [word.strip().lower() for word in exceptions.split(",") if word.strip()]

    @classmethod
    def of_environment(cls) -> "Proxies":
        """Those that the environment of this process names."""
        found = getproxies_environment()
        return cls(found, found.get("no", ""))

    def find(self, url: HttpUrl) -> Proxy | None:
        """The proxy that leads there, if any. Raises `HttpError` if it cannot be used."""
        text = self._proxies.get(url.scheme) or self._proxies.get("all")
        if not text or self._excepted(url):
            return None
        return Proxy(text)

    def _excepted(self, url: HttpUrl) -> bool:
        host = url.host.lower().rstrip(".")
        address = _address(host)
        local = address.is_loopback if address is not None else f".{host}".endswith(".localhost")
        return local or any(_matches(exception, host, url.port, address) for exception in self._exceptions)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _matches(exception: str, host: str, port: int, address: Address | None) -> bool:
    """Whether an entry of `NO_PROXY` means this host: `*`, a domain, an address or a network; a port too."""
    if exception == "*":
        return True
    name, colon, wanted = exception.rpartition(":")
    if colon and wanted.isdigit() and (":" not in name or name.endswith("]")):
        if int(wanted) != port:
            return False
        exception = name
    exception = exception.strip("[]")
    if address is not None:
        try:
            return address in ipaddress.ip_network(exception, strict=False)
        except ValueError:
            return False
    name = exception.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# --- slots: how many requests an origin has at once, and who waits ------------------------------------


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


# --- what is changed of aiohttp ---------------------------------------------------------------------

MAX_HEAD = 64 * 1024
"""The largest head of a response, together with the interim ones before it; the same for trailers."""

FRESH = 0.1
"""Seconds for which a connection is taken to be as the event loop last saw it."""

TOO_LARGE = ("Got more than", "Too many")
"""What aiohttp says of a head beyond its limits."""


class Stale(aiohttp.ClientError):
    """The server has closed a kept connection, or said something on it unasked. Nothing was sent."""


class SocksFailed(aiohttp.ClientError):
    """A SOCKS proxy has made no connection."""


REPEATED = frozenset({"GET", "HEAD", "OPTIONS"})
"""Verbs that change nothing: such a request may be sent once more if its connection is lost."""


class CheckedRequest(aiohttp.ClientRequest):
    """A request that looks at its connection before it is sent, and notes that it is."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        protocol = conn.protocol
        if isinstance(protocol, ClientConnection):
            if protocol.used and (protocol.should_close or protocol.has_news()):
                raise Stale
            protocol.used = True
        slot = current_slot.get()
        if slot.sent and self.method not in REPEATED:
            raise aiohttp.ServerDisconnectedError  # aiohttp would also send PUT and DELETE once more
        slot.sends()
        return await super().send(conn)


class ClientConnection(ResponseHandler):
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


def direct_connector(options: dict[str, Any]) -> aiohttp.TCPConnector:
    connector = aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver(), **options)
    connector._factory = partial(ClientConnection, connector._loop)  # type: ignore[assignment]
    return connector


def socks_connector(proxy: Proxy, options: dict[str, Any]) -> aiohttp.TCPConnector:
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
                raise SocksFailed(str(error)) from error
            return transport, ClientConnection.instead_of(before, transport)

    kind = ProxyType.SOCKS4 if proxy.scheme.startswith("socks4") else ProxyType.SOCKS5
    remote = proxy.scheme in ("socks4a", "socks5h")
    who = proxy.user or None, proxy.password or None
    return Connector(proxy.host, proxy.port, kind, *who, rdns=remote, **options)


def system_trust() -> ssl.SSLContext:
    """Trust whom this machine trusts, or whom the environment names."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        context = ssl.create_default_context()
    else:
        import truststore  # noqa: PLC0415  seldom needed

        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    return context


# --- what goes wrong ---------------------------------------------------------------------------------

FAILURES = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)


def why_unreached(error: Exception, proxy: Proxy | None) -> str:
    """Why there is no connection, in words that fit after "cannot be reached"."""
    match error:
        case aiohttp.ClientHttpProxyError():
            return f"the proxy {proxy} refused: {error.status} {error.message}"
        case SocksFailed():
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


def why_lost(error: Exception, what: str) -> str:
    """Why there is no (whole) response, in words that fit after the URL."""
    cause: BaseException | None = error
    while cause is not None:
        if any(words in str(cause) for words in TOO_LARGE):
            return "sent an invalid response: its head is too large"
        cause = cause.__cause__
    match error:
        case aiohttp.ServerDisconnectedError():
            return f"gave {what}: the connection was closed"
        case aiohttp.ClientOSError() | OSError():
            return f"gave {what}: the connection was lost ({error.strerror or error})"
        case aiohttp.ClientPayloadError() | aiohttp.ClientConnectionError():
            return f"gave {what}: the connection was closed"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return f"sent an invalid response: {_first_line(error.message)}"
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

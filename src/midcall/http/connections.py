"""What is changed of aiohttp, and its errors in our words.

aiohttp uses a kept connection without a look at it, does not tell who reads a body of every way in which a
connection can end, and has no bound for some parts of a response. `ClientConnection` and `CheckedRequest`
mend that. They lean on names inside aiohttp (`_factory`, `_payload`, `_parser`), so
`pyproject.toml` allows only the versions that this was tested with: 3.14.
"""

import asyncio
import os
import select
import ssl
import time
from functools import partial
from typing import Any, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader

from midcall.http.message import HttpError
from midcall.http.proxies import Proxy
from midcall.http.slots import current_slot

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


class CheckedRequest(aiohttp.ClientRequest):
    """A request that looks at its connection before it is sent, and notes that it is."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        protocol = conn.protocol
        if isinstance(protocol, ClientConnection):
            if protocol.used and (protocol.should_close or protocol.has_news()):
                raise Stale
            protocol.used = True
        current_slot.get().sends()
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

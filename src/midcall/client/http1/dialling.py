"""From a URL to an open connection: names, sockets, the tunnel through a proxy, TLS.

Nothing of a request is sent here, so whatever fails here may be tried again. Errors are `Unreached`, with a
reason that fits after "cannot be reached".
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from midcall.client.http1.connection import Connection
from midcall.client.http1.message import Url
from midcall.client.http1.proxies import Proxies, Proxy

MAX_TUNNEL_HEAD = 16 * 1024
TLS_CLOSING = 2.0
"""Seconds that a server has to agree to the end of TLS."""


class Unreached(Exception):
    """There is no connection; the text says why."""


class Dialler:
    """Opens connections."""

    def __init__(self, proxies: Proxies, tls: ssl.SSLContext | None, timeout: float) -> None:
        self._proxies = proxies
        self._tls = tls
        self._timeout = timeout

    def proxy(self, url: Url) -> Proxy | None:
        """The proxy that leads to a URL, if any."""
        return self._proxies.find(url)

    async def dial(self, url: Url, proxy: Proxy | None, protocol: Callable[[], Connection]) -> Connection:
        """Open a connection to the URL's origin, within the time for that."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._dial(url, proxy, protocol)
        except TimeoutError:
            raise Unreached(f"no connection within {self._timeout:g} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise Unreached(f"its certificate is not trusted ({error.verify_message})") from error
        except ssl.SSLError as error:
            raise Unreached(f"TLS failed ({error.reason or error})") from error
        except OSError as error:
            raise Unreached(_reason(error)) from error

    async def _dial(self, url: Url, proxy: Proxy | None, protocol: Callable[[], Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        opened = await self._connect(url if proxy is None else proxy.url)
        try:
            options: dict[str, Any] = {}
            if url.scheme == "https":
                if proxy is not None:
                    await _tunnel(opened, url, proxy)
                options = {
                    "ssl": self._context(),
                    "server_hostname": url.host,
                    "ssl_shutdown_timeout": TLS_CLOSING,
                }
            _, connection = await loop.create_connection(protocol, sock=opened, **options)
        except BaseException:
            opened.close()
            raise
        return connection

    async def _connect(self, url: Url) -> socket.socket:
        """A socket to the first of the host's addresses that takes it."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                url.host, url.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
            )
        except socket.gaierror as error:
            raise Unreached(f"the name {url.host} is not known ({error.strerror})") from error
        except UnicodeError as error:  # of the codec that getaddrinfo puts names through
            raise Unreached(f"the name {url.host} is not valid ({error})") from error
        failure: OSError | None = None
        for place, (family, kind, number, _, address) in enumerate(found):
            opened = socket.socket(family, kind, number)
            try:
                opened.setblocking(False)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # One address that swallows packets must not take the time of all others.
                async with asyncio.timeout(self._timeout / 2 if place + 1 < len(found) else None):
                    await loop.sock_connect(opened, address)
            except OSError as error:  # a TimeoutError is one
                opened.close()
                failure = failure or error
            except BaseException:
                opened.close()
                raise
            else:
                return opened
        raise failure or Unreached(f"the name {url.host} has no address")

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


async def _tunnel(opened: socket.socket, url: Url, proxy: Proxy) -> None:
    """Have a proxy connect a socket to the URL's origin."""
    loop = asyncio.get_running_loop()
    host = f"[{url.host}]" if ":" in url.host else url.host
    place = f"{host}:{url.port}".encode()
    await loop.sock_sendall(
        opened, b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (place, place, proxy.credentials)
    )
    head = b""
    while b"\r\n\r\n" not in head:
        data = await loop.sock_recv(opened, 4096)
        head += data
        if not data or len(head) > MAX_TUNNEL_HEAD:
            raise Unreached(f"the proxy {proxy.url.authority} did not answer")
    line = head.split(b"\r\n", 1)[0].decode("latin-1")
    version, _, status = line.partition(" ")
    if not version.startswith("HTTP/1.") or not status.startswith("2"):
        raise Unreached(f"the proxy {proxy.url.authority} refused: {status or line}")
    if not head.endswith(b"\r\n\r\n"):
        raise Unreached(f"the proxy {proxy.url.authority} sent more than its answer")


def _reason(error: OSError) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return "the connection was closed at once"
        case TimeoutError():
            return "no answer"
        case _ if error.errno is not None:
            return os.strerror(error.errno).lower()
        case _:
            return str(error) or type(error).__name__

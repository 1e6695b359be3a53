"""Which proxy leads to a URL, as the environment says. Pure: no sockets.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in small or capital letters, as curl and Go read
them. What is on this machine is never reached through a proxy, as in Go: a proxy could not find it.
"""

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from midcall.http.message import HttpError, Url

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
        self.host = Url(f"http://{parts.netloc.rpartition('@')[2]}").host  # which checks it, and the port
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
        found = {scheme: _variable(f"{scheme}_proxy") for scheme in ("http", "https", "all")}
        if "REQUEST_METHOD" in os.environ:
            # In a CGI script this variable is a client's `Proxy` header.
            found["http"] = os.environ.get("http_proxy", "")
        return cls({scheme: text for scheme, text in found.items() if text}, _variable("no_proxy"))

    def find(self, url: Url) -> Proxy | None:
        """The proxy that leads there, if any. Raises `HttpError` if it cannot be used."""
        text = self._proxies.get(url.scheme) or self._proxies.get("all")
        if not text or self._excepted(url):
            return None
        return Proxy(text)

    def _excepted(self, url: Url) -> bool:
        host = url.host.lower().rstrip(".")
        address = _address(host)
        if (
            host == "localhost"
            or host.endswith(".localhost")
            or (address is not None and address.is_loopback)
        ):
            return True
        return any(_matches(exception, host, url.port, address) for exception in self._exceptions)


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


def _variable(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.upper()) or ""

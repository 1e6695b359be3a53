"""HTTP, as far as logins need it: where a request may go, JSON documents, and what a failure is called.

What an MCP server says of itself is a stranger's word: it may name the address of a machine that only this
one can reach. So it may lead to the outside, or to where it is itself. Nothing here knows OAuth's own words.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec

from midcall.errors import LoginFailed, MidcallError
from midcall.http.client import HttpClient
from midcall.http.message import Headers, HttpUrl
from midcall.mcp import revisions
from midcall.transports.security import is_loopback

TIME_LIMIT = 30.0
"""Seconds that an authorization server has for one response."""

LARGEST = 1024 * 1024
"""The largest document that is read, in bytes."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class JsonReply(msgspec.Struct, frozen=True):
    """A response that was read: its status, its JSON object if it has one, and its headers."""

    status: int
    document: dict[str, Any]
    """Empty if there is none."""
    headers: Headers

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def text(self, name: str) -> str:
        """A text of the document, fit to be shown."""
        value = self.document.get(name)
        return words(value) if isinstance(value, str) else ""


class Fetch:
    """Sends requests for the logins at one MCP server, but not further into this network than that server is.

    `trusted` are origins that the caller has named; `None` trusts all. Redirects are not followed.
    """

    def __init__(self, http: HttpClient, server: str, trusted: Collection[str] | None) -> None:
        self._http = http
        self.server = server
        self._trusted = None if trusted is None else {origin_of(server), *trusted}

    def check(self, url: str, what: str) -> str:
        """The URL, if secrets may be sent there: https, or http on this machine if the MCP server is too.

        A server somewhere else could otherwise have us knock at the doors of this machine, or have a browser
        open something that is no web page at all. Raises `LoginFailed`.
        """
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018  raises ValueError if it is none
        except ValueError:
            raise LoginFailed(f"{what} is not a URL: {url!r}") from None
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise LoginFailed(f"{what} is not a URL: {url!r}")
        if parts.username is not None or any(character <= " " for character in url):
            raise LoginFailed(f"{what} is not a URL that can be used: {url!r}")
        if parts.scheme == "http":
            if not is_local(url):
                raise LoginFailed(f"{what} must be https, not {url}")
            if not is_local(self.server):
                raise LoginFailed(f"{what} is on this machine ({url}), but {self.server} is not: refused")
        return url

    async def get(self, url: str) -> dict[str, Any]:
        """The JSON object at a URL, empty if there is none. Raises `LoginFailed` if that cannot be told."""
        reply = await self.send("GET", url, {"mcp-protocol-version": revisions.LATEST_LEGACY})
        if reply.status >= 500:
            raise LoginFailed(f"{url} answers {reply.status}", recoverable=True)
        return reply.document if reply.ok else {}

    async def send(self, verb: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> JsonReply:
        """Send one request and read its response. Raises `LoginFailed` if there is none."""
        sent = (("accept", "application/json"), *headers.items())
        try:
            target = HttpUrl(url)
            await self._check_network(target)
            response = await self._http.request(verb, target, headers=sent, body=body, timeout=TIME_LIMIT)
            data = await response.read(LARGEST)
        except LoginFailed:
            raise
        except (MidcallError, OSError) as error:
            raise LoginFailed(f"{url} cannot be reached: {error}", recoverable=True) from error
        try:
            document = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            document = None
        return JsonReply(response.status, document if isinstance(document, dict) else {}, response.headers)

    async def _check_network(self, url: HttpUrl) -> None:
        if self._trusted is None or url.origin in self._trusted:
            return
        there = max(await _networks(url.host), default=Network.INTERNET)
        if there and there > min(await _networks(HttpUrl(self.server).host), default=there):
            raise LoginFailed(
                f"{url} is in a private network where {self.server} is not: refused "
                "(allow_private=True allows it)"
            )


def server_of(url: str) -> str:
    """The MCP server that a request goes to, as tokens are filed: its endpoint without query and fragment."""
    return f"{origin_of(url)}{urlsplit(url).path}"


def origin_of(url: str) -> str:
    """Scheme, host and port, in the form in which they compare as text. Raises `LoginFailed`."""
    try:
        parts = urlsplit(url)
        host, number = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise LoginFailed(f"{words(url)} is not an address: refused") from None
    host = f"[{host}]" if ":" in host else host
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    port = "" if number in (None, usual) else f":{number}"
    return f"{parts.scheme}://{host}{port}"


def is_local(url: str) -> bool:
    """Whether a URL leads to this machine."""
    return is_loopback(urlsplit(url).hostname or "")


def words(text: object, limit: int = 300) -> str:
    """Text of a server, fit to stand in an error: one line, no control characters, not too long."""
    plain = "".join(character if character.isprintable() else " " for character in str(text))
    return plain if len(plain) <= limit else plain[:limit] + "..."


class Network(IntEnum):
    """From where an address can be reached, the inner ones last."""

    INTERNET = 0
    PRIVATE = 1
    LINK = 2
    MACHINE = 3


async def _networks(host: str) -> list[Network]:
    """From where the addresses of a host can be reached. A name that is not known leads nowhere."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return [Network.INTERNET]
    return [_network(str(address[0])) for *_, address in found]


def _network(text: str) -> Network:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):  # it may stand for an address of version 4
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = inner or address
    if address.is_loopback or address.is_unspecified:
        return Network.MACHINE
    if address.is_link_local:
        return Network.LINK
    return Network.INTERNET if address.is_global and not address.is_multicast else Network.PRIVATE

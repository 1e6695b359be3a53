"""HTTP, as far as OAuth needs it: whom a request may go to, JSON documents, and what a failure is called.

It knows nothing of OAuth's own words. The client that sends the requests comes from outside, as a `Fetch`.
"""

from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from midcall.errors import LoginFailed, MidcallError
from midcall.http.message import Url
from midcall.mcp import revisions
from midcall.transports.security import is_loopback

TIME_LIMIT = 30.0
"""Seconds that an authorization server has for one response."""

LARGEST = 1024 * 1024
"""The largest document that is read, in bytes."""


class Names(Protocol):
    """The headers of a response."""

    def get(self, name: str) -> str | None:
        """The first value of this name."""


class Reply(Protocol):
    """A response."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Names: ...

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises `MidcallError` if it is larger than the limit, or breaks off."""


class Fetch(Protocol):
    """Sends requests. `HttpClient` is one."""

    async def request(
        self, verb: str, url: Url, *, headers: Sequence[tuple[str, str]], body: bytes, timeout: float
    ) -> Reply:
        """The response to a request; redirects are not followed. Raises `MidcallError` if there is none."""


class Answered(msgspec.Struct, frozen=True):
    """A response that was read: its status, its JSON object if it has one, and its headers."""

    status: int
    document: dict[str, Any] | None
    headers: Names

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def server_of(url: str) -> str:
    """The MCP server that a request goes to, as tokens are filed: its endpoint without query and fragment."""
    parts = urlsplit(url)
    return f"{origin_of(url)}{parts.path}"


def origin_of(url: str) -> str:
    """Scheme, host and port, in the form in which they compare as text."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def is_local(url: str) -> bool:
    """Whether a URL leads to this machine."""
    return is_loopback(urlsplit(url).hostname or "")


def check_url(url: str, what: str, *, server: str) -> str:
    """The URL, if secrets may be sent there: https, or http on this machine if the MCP server is there too.

    A server somewhere else could otherwise have us knock at the doors of this machine, or have a browser
    open something that is no web page at all. Raises `LoginFailed`.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  raises ValueError if it is none
    except ValueError:
        raise LoginFailed(f"{what} is not a URL: {url!r}", server=server) from None
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise LoginFailed(f"{what} is not a URL: {url!r}", server=server)
    if parts.username is not None or any(character <= " " for character in url):
        raise LoginFailed(f"{what} is not a URL that can be used: {url!r}", server=server)
    if parts.scheme == "http":
        if not is_local(url):
            raise LoginFailed(f"{what} must be https, not {url}", server=server)
        if not is_local(server):
            raise LoginFailed(
                f"{what} is on this machine ({url}), but {server} is not: refused", server=server
            )
    return url


async def get_document(fetch: Fetch, url: str, *, server: str) -> dict[str, Any] | None:
    """The JSON object at a URL, or `None` if there is none. Raises `LoginFailed` if that cannot be told."""
    headers = (("accept", "application/json"), ("mcp-protocol-version", revisions.LATEST_LEGACY))
    answered = await send(fetch, "GET", url, headers, b"", server=server)
    if answered.status >= 500:
        raise LoginFailed(f"{url} answers {answered.status}", server=server, recoverable=True)
    return answered.document if answered.ok else None


async def send(
    fetch: Fetch, verb: str, url: str, headers: Sequence[tuple[str, str]], body: bytes, *, server: str
) -> Answered:
    """Send one request and read its response. Raises `LoginFailed` if there is none."""
    try:
        reply = await fetch.request(verb, Url(url), headers=headers, body=body, timeout=TIME_LIMIT)
        data = await reply.read(LARGEST)
    except LoginFailed:
        raise
    except (MidcallError, OSError) as error:
        raise LoginFailed(f"{url} cannot be reached: {error}", server=server, recoverable=True) from error
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = None
    return Answered(reply.status, document if isinstance(document, dict) else None, reply.headers)


def words(text: object, limit: int = 300) -> str:
    """Text of a server, fit to stand in an error: one line, no control characters, not too long."""
    plain = "".join(character if character.isprintable() else " " for character in str(text))
    return plain if len(plain) <= limit else plain[:limit] + "..."

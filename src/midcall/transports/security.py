"""Who may connect: checks that come before anything is read.

A web page may send requests to any server, also to one on the reader's own machine. What tells such
a page from a program is in two headers that a page cannot forge:

- `Origin` is where the page comes from. Programs other than browsers send none.
- `Host` is the name that was looked up. A page that has its own name point at 127.0.0.1 (DNS
  rebinding) gets past the check of the origin, as it talks to its own name, but not past this one.

Plain functions over headers; no framework, and nothing of midcall. What is refused is told in a
sentence for a person. What is let in of pages of another origin is told to their browser (CORS), which then
lets them call the server and read its responses; programs send no `Origin`, and get none of that.
"""

import functools
import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.types import Message, Send

Headers = Sequence[tuple[bytes, bytes]]
Server = Sequence[str | int | None] | None
"""The address at which the request arrived, as ASGI tells it: a host and a port."""

ANY_HOST = "*"

JSON = "application/json"

NOSNIFF = (b"x-content-type-options", b"nosniff")
"""A header that keeps a browser from taking data for a page or a script."""

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Address(NamedTuple):
    """A host in small letters, without brackets, and a port if one was named."""

    host: str
    port: int | None


class Gate:
    """Lets requests in by their `Host` and `Origin`.

    Always let in are loopback names and the address at which the request arrived. More are named in
    `hosts`: a name (`tools.example.com`) or a name with a port for `Host`, an origin
    (`https://app.example.com`) for pages of another site, and `*` for any host at all.
    """

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        given = list(hosts)
        self._any_host = ANY_HOST in given
        self._origins = {_read_origin(entry) for entry in given if "://" in entry}
        self._hosts = {_read_host(entry) for entry in given if "://" not in entry and entry != ANY_HOST}
        if None in self._origins or None in self._hosts:
            wrong = next(e for e in given if (_read_origin(e) if "://" in e else _read_host(e)) is None)
            raise ValueError(
                f"{wrong!r} is neither a host, as tools.example.com, nor an origin, as https://a.com"
            )
        # The same few hosts come again and again, and this is on the way of each request.
        self._judge = functools.lru_cache(maxsize=256)(self._judge_anew)

    def check(self, headers: Headers, server: Server = None) -> tuple[str | None, bytes | None]:
        """What is wrong with a request, or `None`; and the `Origin` of the page that sends it, if one does.

        Header names are in small letters, as in ASGI.
        """
        given = dict(headers)
        if len(given) != len(headers):
            names = [name for name, _ in headers]
            if names.count(b"host") > 1:
                return "More than one Host header", None
            if names.count(b"origin") > 1:
                return "More than one Origin header", None
        origin = given.get(b"origin")
        return self._judge(given.get(b"host"), origin, None if server is None else tuple(server)), origin

    def _judge_anew(
        self, host: bytes | None, origin: bytes | None, server: tuple[str | int | None, ...] | None
    ) -> str | None:
        arrived = _arrived(server)
        named = None if host is None else _read_host(host.decode("latin-1"))
        if not self._lets_host(named, arrived):
            return f"Host {_quoted(host)} is not one of this server's names"
        if origin is not None and not self._lets_origin(origin.decode("latin-1"), named, arrived):
            return f"Origin {_quoted(origin)} is not let in"
        return None

    def _lets_host(self, named: Address | None, arrived: Address | None) -> bool:
        if self._any_host:
            return True
        if named is None:
            return False
        return (
            is_loopback(named.host)
            or (arrived is not None and named.host == arrived.host)
            or named in self._hosts
            or Address(named.host, None) in self._hosts
        )

    def _lets_origin(self, text: str, named: Address | None, arrived: Address | None) -> bool:
        origin = _read_origin(text)
        if origin is None:
            return False
        if origin in self._origins:
            return True
        scheme, place = origin
        if named is not None:
            port = _DEFAULT_PORTS.get(scheme) if named.port is None else named.port
            if place == Address(named.host, port):
                return True  # a page of this server's own
        return (
            arrived is not None
            and is_loopback(arrived.host)
            and is_loopback(place.host)
            and place.port == arrived.port
        )


def is_media_type(content_type: bytes | str | None, wanted: str) -> bool:
    """Whether a `Content-Type` is this one, whatever its parameters are. None at all is not."""
    if isinstance(content_type, bytes):
        content_type = content_type.decode("latin-1")
    return content_type is not None and content_type.partition(";")[0].strip().lower() == wanted


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, seen from itself."""
    host = host.strip("[]").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def refuse_public_bind(host: str, has_auth: bool, told_twice: bool) -> str | None:
    """Why a server may not listen on this address, or `None`.

    On an address that others can reach, everybody could call every tool. Without authentication it
    takes two words to do so all the same, as one is easily copied from somewhere.
    """
    if is_loopback(host) or has_auth or told_twice:
        return None
    return (
        f"Refused to listen on {host or 'all addresses'} without authentication: others could call every "
        "tool. Give --auth-tokens FILE or --oauth-issuer, or say both --no-auth and --allow-public"
    )


def _read_host(text: str) -> Address | None:
    """A `Host` header; nothing if it is not one."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.netloc != text or "@" in text:
        return None
    return Address(_plain(parts.hostname), port)


def _read_origin(text: str) -> tuple[str, Address] | None:
    """An `Origin` header, its port always named; nothing for `null` and what is no origin."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in text:
        return None
    return parts.scheme, Address(_plain(parts.hostname), port or _DEFAULT_PORTS.get(parts.scheme))


def _arrived(server: tuple[str | int | None, ...] | None) -> Address | None:
    """Where a request arrived, if that is an IP address: no page has one for its name."""
    if server is None or len(server) != 2:
        return None
    host, port = server
    try:
        address = ipaddress.ip_address(str(host))
    except ValueError:
        return None
    return Address(_plain(str(address)), port if isinstance(port, int) else None)


def _plain(host: str) -> str:
    """One way to write a host: IP addresses in their short form, names without the last dot."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".")
    return str(getattr(address, "ipv4_mapped", None) or address)


def _quoted(value: bytes | None) -> str:
    return "(none)" if value is None else repr(value.decode("latin-1")[:100])


# --- CORS ------------------------------------------------------------------------------------

ANYBODY = b"*"

PAGE_HEADERS = (
    "accept",
    "authorization",
    "content-type",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
)
"""What a page may send. `mcp-param-*` comes on top, by whatever names it asks for."""

EXPOSED = b"mcp-session-id, www-authenticate"
"""What a page may read beside the body."""

MAX_AGE = 7200
"""Seconds for which a browser may remember the answer; more than this most of them do not take."""

_PARAMETER = re.compile(r"mcp-param-[a-z0-9-]{1,100}")
_MOST_PARAMETERS = 100


def is_preflight(method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a browser asks beforehand what a page may send."""
    return method == "OPTIONS" and any(name == b"access-control-request-method" for name, _ in headers)


async def answer_preflight(send: Send, headers: Iterable[tuple[bytes, bytes]], origin: bytes) -> None:
    """Tell a browser what pages of this origin may send. It needs no token: a browser sends none here."""
    asked = ",".join(v.decode("latin-1") for name, v in headers if name == b"access-control-request-headers")
    wanted = dict.fromkeys(name.strip().lower() for name in asked.split(","))
    parameters = [name for name in wanted if _PARAMETER.fullmatch(name)][:_MOST_PARAMETERS]
    said = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"POST, GET, DELETE, OPTIONS"),
        (b"access-control-allow-headers", ", ".join((*PAGE_HEADERS, *parameters)).encode()),
        (b"access-control-max-age", b"%d" % MAX_AGE),
        (b"vary", b"Origin, Access-Control-Request-Headers"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": said})
    await send({"type": "http.response.body", "body": b""})


def readable_by(origin: bytes, send: Send) -> Send:
    """A `send` whose response pages of this origin may read."""
    readable = (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"Origin"),
    )

    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *readable]}
        await send(message)

    return send_readable

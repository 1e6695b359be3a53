"""What an HTTP message is made of: URLs, headers, compressed bodies, and the error for a missing response.

Whatever goes into the head of a request is checked here, once, so that no text of a caller or a server can
put a header or a request of its own into it. This module knows no sockets.
"""

import re
import time
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Self
from urllib.parse import quote, unquote, urljoin, urlsplit

from midcall.errors import MidcallError

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_OWN = frozenset({"host", "content-length", "transfer-encoding"})
_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LATIN = re.compile(r"[\x00-\xff]*")
_BAD_URL = re.compile(r"[\x00-\x1f\x7f]")
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]\\/?#@<>^`{|}\"]+)(:[0-9]*)?")
"""A host and a port. Stricter than the standard library, which takes `[::1]evil` for `::1`."""

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

_PORTS = {"http": 80, "https": 443}
_KEPT = "%/:=&?~+!$,;'@()*[]|"
"""What is left as it is in a path or a query. `%` too: what is escaped already is not escaped again."""


class HttpError(MidcallError):
    """A request got no (whole) response. A response with a bad status is a response, not an error.

    `sent` is false if the request is known not to have reached the server, and may be tried again. `status`
    is that of a response that cannot be read.
    """

    code = "http_error"

    def __init__(self, message: str, *, sent: bool, status: int | None = None) -> None:
        super().__init__(message)
        self.sent = sent
        self.status = status
        self.recoverable = not sent


class Headers:
    """The headers of a response, in the order in which they came. Names have no case."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs

    def get(self, name: str) -> str | None:
        """The first value of this name."""
        wanted = name.lower().encode()
        for found, value in self._pairs:
            if found.lower() == wanted:
                return _text(value)
        return None

    def get_all(self, name: str) -> list[str]:
        """The values of this name, in order."""
        wanted = name.lower().encode()
        return [_text(value) for found, value in self._pairs if found.lower() == wanted]

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Pairs of a name in lower case and a value."""
        for name, value in self._pairs:
            yield name.decode("latin-1").lower(), _text(value)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"Headers({list(self)})"


def _text(value: bytes) -> str:
    try:
        return value.decode().strip(" \t")
    except UnicodeDecodeError:
        return value.decode("latin-1").strip(" \t")


def retry_after(headers: Headers) -> float | None:
    """After how many seconds a server wants to be asked again, where it says so in a way that can be read."""
    given = headers.get("retry-after") or ""
    if _SECONDS.fullmatch(given):
        return float(given)
    try:
        moment = parsedate_to_datetime(given)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())


def checked_headers(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers that can be sent. Raises `HttpError` for those that cannot, or would change the request."""
    checked = []
    for name, value in pairs:
        if not _NAME.fullmatch(name):
            raise HttpError(f"{name!r} cannot be the name of a header", sent=False)
        if name.lower() in _OWN:
            raise HttpError(f"The header {name} cannot be given: the client sets it", sent=False)
        if _BAD_VALUE.search(value):
            raise HttpError(f"The header {name} cannot have a value with control characters", sent=False)
        if not _LATIN.fullmatch(value):
            raise HttpError(
                f"The header {name} cannot have a value with characters beyond Latin-1", sent=False
            )
        checked.append((name, value.strip(" \t")))
    return checked


class HttpUrl:
    """An http or https URL, taken apart once for many requests. `str` of it is fit to be shown.

    That is: without the credentials and the query, which may hold a key.
    """

    __slots__ = (
        "authority",
        "credentials",
        "full",
        "host",
        "origin",
        "port",
        "scheme",
        "shown",
    )

    def __init__(self, text: str) -> None:
        """Take a URL apart. Raises `HttpError` if it is none."""
        if _BAD_URL.search(text):
            raise _no_url(text, "it has control characters")
        try:
            parts = urlsplit(text.strip())
            port, host, user, password = parts.port, parts.hostname or "", parts.username, parts.password
        except ValueError:  # whose words may quote a password
            raise _no_url(text, "its host or its port is not valid") from None
        if parts.scheme not in _PORTS or not host:
            raise _no_url(text, "it has to begin with http:// or https:// and a host")
        try:
            host = host if host.isascii() else host.encode("idna").decode()
        except UnicodeError as error:
            raise _no_url(text, str(error)) from None
        bracketed = f"[{host}]" if ":" in host else host
        if not _PLACE.fullmatch(parts.netloc.rpartition("@")[2]):
            raise _no_url(text, "its host is not valid")
        path = quote(parts.path or "/", safe=_KEPT)
        query = "?" + quote(parts.query, safe=_KEPT) if parts.query else ""
        self.scheme: str = parts.scheme
        self.host: str = host
        """Without the brackets of an IPv6 address."""
        self.port: int = port if port is not None else _PORTS[parts.scheme]
        self.authority: str = bracketed if self.port == _PORTS[parts.scheme] else f"{bracketed}:{self.port}"
        """What the `Host` header says."""
        self.origin: str = f"{self.scheme}://{self.authority}"
        self.full: str = self.origin + path + query
        """The whole URL, but for credentials and fragment."""
        self.shown: str = self.origin + path
        self.credentials: str = "" if user is None else _basic(user, password or "")
        """The `Authorization` that the credentials in the URL stand for."""

    def join(self, reference: str) -> Self:
        """The URL that a reference in a response from this one means."""
        there = type(self)(urljoin(self.full, reference))
        if there.origin == self.origin and not there.credentials:
            there.credentials = self.credentials
        return there

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"HttpUrl({self.shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HttpUrl) and (self.full, self.credentials) == (other.full, other.credentials)

    def __hash__(self) -> int:
        return hash(self.full)


def _no_url(text: str, why: str) -> HttpError:
    scheme, slashes, rest = text.partition("?")[0].partition("//")
    public = scheme + slashes + rest.rpartition("@")[2]
    return HttpError(f"{public[:200]!r} is not a URL: {why}", sent=False)


def _basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


PIECE = 256 * 1024
"""The largest piece that is given on at once, however much a few bytes unfold to."""


MAX_EMPTY = 100
"""How many gzip files without a content may follow each other."""


class Decoder:
    """Undoes `gzip` or `deflate`. Raises `zlib.error` for what is neither."""

    def __init__(self, coding: str) -> None:
        self._gzip = coding != "deflate"
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16) if self._gzip else None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these bytes bring, as it is asked for."""
        if self._stream is None:
            # "deflate" should be zlib's format, but some servers send the bare one, which has no header.
            zlib_format = data[0] & 0x0F == 8
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if zlib_format else -zlib.MAX_WBITS)
        empty = 0
        while True:
            piece = self._stream.decompress(data, PIECE)
            if piece:
                empty = 0
                yield piece
            if self._stream.eof:
                data = self._stream.unused_data
                if not self._gzip or not data.strip(b"\0"):
                    return  # the rest is padding
                empty += 1
                if empty > MAX_EMPTY:
                    raise zlib.error("nothing but empty parts")
                self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)  # one gzip file may follow another
            else:
                data = self._stream.unconsumed_tail
                if not data and len(piece) < PIECE:
                    return

    def complete(self) -> bool:
        """Whether what was compressed has come to its end."""
        return self._stream is None or self._stream.eof


def decoder(headers: Headers) -> Decoder | None:
    """What a body with these headers needs. Raises `ValueError` for a coding that is not known."""
    codings = [
        word.strip().lower() for value in headers.get_all("content-encoding") for word in value.split(",")
    ]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(", ".join(codings))
    return Decoder(codings[0])

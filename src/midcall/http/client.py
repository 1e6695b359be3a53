"""The HTTP client: kept connections, limits, and responses that are read as they come.

aiohttp does the protocol, the sockets and the proxies. Here is what it leaves to its users: how many requests
an origin gets at once, that a connection which the server has closed is not used again, how much a server
may send, and errors that say whether the request was sent.
"""

import asyncio
import io
import ssl
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from midcall.http.connections import (
    FAILURES,
    MAX_HEAD,
    CheckedRequest,
    NoSlot,
    Origin,
    Proxies,
    Proxy,
    Slot,
    Stale,
    direct_connector,
    socks_connector,
    system_trust,
    why_lost,
    why_unreached,
)
from midcall.http.message import Decoder, Headers, HttpError, HttpUrl, checked_headers, decoder

MAX_BODY = 16 * 1024 * 1024
MAX_HEADERS = 1000

MAX_REDIRECTS = 5
LARGE = 1024 * 1024
"""Bytes from which on a body is sent in pieces."""

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

    At most `max_connections` to an origin carry requests; what comes on top waits its slot. A response that
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
        self._origins: dict[str, Origin] = {}
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        """One for each SOCKS proxy, and one for all else."""
        self._slots: set[Slot] = set()
        """The requests that are under way."""
        self.closed = False

    async def request(
        self,
        verb: str,
        url: HttpUrl,
        headers: Prepared | Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        timeout: float | None = 30.0,
        follow: bool = False,
    ) -> "HttpResponse":
        """Send a request and wait for the head of its response; raises `HttpError` if there is none.

        `timeout` is how many seconds that and `HttpResponse.read` may take together. `follow` goes after
        redirects of a GET, to the same scheme only, and takes credentials to no other origin.

        `Host`, `Content-Length` and `Accept-Encoding` are added. The latter asks for a body as it is:
        messages are small and wanted soon, and what compresses a stream tends to hold it back. If a server
        compresses anyway, the body is decoded. What changes nothing (GET, HEAD, OPTIONS) is sent once more if
        its connection is lost before a response; all else is never sent twice.
        """
        if not (verb.isascii() and verb.isalpha()):
            raise HttpError(f"{verb!r} is not an HTTP verb", sent=False)
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
        raise HttpError(f"{url} redirects too often", sent=True)

    async def close(self) -> None:
        """Close all connections; what is under way fails."""
        self.closed = True
        for origin in self._origins.values():
            origin.give_up(f"was not called: {CLOSED}")
        for slot in list(self._slots):
            slot.interrupt()
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _exchange(
        self, verb: str, url: HttpUrl, headers: Prepared, body: bytes, deadline: float | None
    ) -> "HttpResponse":
        """Send a request, and wait for the head of its response."""
        if self.closed:
            raise HttpError(f"{url} was not called: this client is closed", sent=False)
        origin = self._origins.get(url.origin)
        if origin is None:
            origin = Origin(self._proxies.find(url), self._max_connections, self._max_streams)
            self._origins[url.origin] = origin
        slot = Slot(origin, self._slots)
        try:
            if deadline is None:
                reply = await self._begin(slot, verb, url, origin.proxy, headers, body)
            else:
                async with asyncio.timeout_at(deadline):
                    reply = await self._begin(slot, verb, url, origin.proxy, headers, body)
            return HttpResponse(self, url, deadline, slot, reply)
        except asyncio.CancelledError:
            slot.end()
            if not slot.resumed():
                raise
            why = f"gave no answer: {CLOSED}" if slot.sent else f"was not called: {CLOSED}"
            raise HttpError(f"{url} {why}", sent=slot.sent) from None
        except NoSlot as error:
            slot.end()
            raise HttpError(f"{url} {error}", sent=False) from None
        except FAILURES as error:
            why = self._why(error, slot, origin.proxy)
            slot.end()
            own = isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)
            if not (own or slot.sent or origin.reached):
                origin.give_up(why)
            raise HttpError(f"{url} {why}", sent=slot.sent) from error
        except BaseException:
            slot.end()
            raise

    async def _begin(
        self, slot: "Slot", verb: str, url: HttpUrl, proxy: Proxy | None, headers: Prepared, body: bytes
    ) -> aiohttp.ClientResponse:
        """Wait for a slot, and send a request by aiohttp."""
        await slot.begin()
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
            except Stale:
                continue  # on another connection

    def _session(self, proxy: Proxy | None) -> aiohttp.ClientSession:
        key = proxy.url if proxy is not None and proxy.socks else ""
        found = self._sessions.get(key)
        if found is None:
            # Connections are counted here, not by aiohttp: it knows nothing of streams.
            options: dict[str, Any] = {"limit": 0, "keepalive_timeout": self._idle_timeout}
            found = self._sessions[key] = aiohttp.ClientSession(
                connector=socks_connector(proxy, options)
                if proxy is not None and key
                else direct_connector(options),
                request_class=CheckedRequest,
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
            self._tls = await asyncio.to_thread(system_trust)
        return self._tls

    def _why(self, error: Exception, slot: "Slot", proxy: Proxy | None) -> str:
        """What went wrong before there was a response, in words that fit after the URL."""
        match error:
            case aiohttp.ConnectionTimeoutError():
                return f"cannot be reached: no connection within {self._connect_timeout:g} seconds"
            case TimeoutError():
                return "did not answer in time"
            case _ if slot.sent:
                return why_lost(error, "no answer")
            case _:
                return f"cannot be reached: {why_unreached(error, proxy)}"


@lru_cache(256)
def _address(url: str) -> URL:
    return URL(url, encoded=True)


class HttpResponse:
    """A response whose head has come. Read it, iterate over its body, or close it: until then it has
    a connection for itself. `async with` closes it in any case."""

    def __init__(
        self,
        client: HttpClient,
        url: HttpUrl,
        deadline: float | None,
        slot: "Slot",
        reply: aiohttp.ClientResponse,
    ) -> None:
        """Raises `HttpError` for a response that cannot be read."""
        self.url = url
        """Where it came from, after redirects."""
        self.status = reply.status
        self.headers = Headers(reply.raw_headers)
        self._client = client
        self._deadline = deadline
        self._slot = slot
        self._reply = reply
        self._pieces: Iterator[bytes] = iter(())
        """Of what has been read, decoded as they are asked for."""
        self._decoder: Decoder | None = None
        slot.response = self
        if reply.connection is None:
            slot.end()  # all of it has come
        elif reply.content_type == "text/event-stream":
            slot.begin_stream()
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
                    await asyncio.sleep(0)  # a few bytes may unfold to very many: others have their turn
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
        except FAILURES as error:
            why = (
                f"sent an incomplete response: {CLOSED}"
                if self._client.closed
                else why_lost(error, "an incomplete response")
            )
            self.close()
            raise HttpError(f"{self.url} {why}", sent=True) from error

    def _finish(self) -> None:
        """The body is over."""
        self._slot.end()
        if self._decoder is not None and not self._decoder.complete():
            raise HttpError(
                f"{self.url} sent an incomplete response: its compressed body breaks off", sent=True
            )

    def close(self) -> None:
        """Do not read on. Does nothing if the response is complete."""
        self._reply.close()
        self._slot.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _invalid(self, why: str) -> HttpError:
        self.close()
        return HttpError(f"{self.url} sent an invalid response: {why}", sent=True, status=self.status)

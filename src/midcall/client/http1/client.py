"""The HTTP client: pools of connections, and the response as an object for those who are in no hurry."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from midcall.client.http1.connection import Sending, Sink
from midcall.client.http1.dialling import Dialler
from midcall.client.http1.message import HeaderBlock, Headers, HttpError, Url, encode_headers
from midcall.client.http1.pool import Limits, Pool
from midcall.client.http1.proxies import Proxies

MAX_BODY = 16 * 1024 * 1024
MAX_REDIRECTS = 5
HIGH_WATER = 256 * 1024
"""How many bytes of a body wait for their reader before no more are read from the connection."""

WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
CREDENTIALS = frozenset({"authorization", "cookie"})


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
        """`tls` is for https; `use_environment` takes proxies from `HTTP_PROXY` and its kin."""
        self._limits = Limits(max_connections, max_streams, idle_timeout)
        proxies = Proxies.of_environment() if use_environment else Proxies({}, "")
        self._dialler = Dialler(proxies, tls, connect_timeout)
        self._pools: dict[str, Pool] = {}
        self._closed = False

    def send(
        self,
        verb: str,
        url: Url,
        headers: HeaderBlock | Sequence[tuple[str, str]],
        body: bytes,
        sink: Sink,
    ) -> Sending:
        """Send a request, now or as soon as a connection is free; the response goes to the sink.

        `Host`, `Content-Length` and `Accept-Encoding` are added. The latter asks for a body as it is:
        messages are small and wanted soon, and what compresses a stream tends to hold it back. If a server
        compresses anyway, the body is decoded.

        Raises `HttpError` if this cannot be a request, or the client is closed: then the sink hears nothing.
        """
        if self._closed:
            raise HttpError(f"{url} was not called: this client is closed", sent=False)
        pool = self._pools.get(url.origin)
        if pool is None:
            pool = self._pools[url.origin] = Pool(self._dialler, url, self._limits)
        if not (verb.isascii() and verb.isalpha()):
            raise HttpError(f"{verb!r} is no verb of HTTP", sent=False)
        if not isinstance(headers, bytes):
            headers = encode_headers(headers)
        if url.credentials and b"authorization:" not in headers.lower():
            headers = HeaderBlock(url.credentials + headers)
        if body or verb not in WITHOUT_BODY:
            headers = HeaderBlock(b"%bcontent-length: %d\r\n" % (headers, len(body)))
        data = b"%b %b%b HTTP/1.1\r\n%b%b%b\r\n%b" % (
            verb.encode(),
            pool.prefix,
            url.target,
            url.host_line,
            pool.extra,
            headers,
            body,
        )
        sending = Sending(pool, url, data, sink, verb == "HEAD")
        pool.submit(sending)
        return sending

    async def request(
        self,
        verb: str,
        url: Url,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        timeout: float | None = 30.0,
        follow: bool = False,
    ) -> "Response":
        """Send a request and wait for the head of its response; raises `HttpError` if there is none.

        `timeout` is how many seconds that and `Response.read` may take together. `follow` goes after
        redirects of a GET, to the same scheme only, and takes credentials to no other origin.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        for _ in range(MAX_REDIRECTS):
            taker = _Taker()
            taker.sending = self.send(verb, url, headers, body, taker)
            response = Response(url, taker, deadline)
            await response.begin()
            target = response.headers.get("location")
            if not (follow and verb == "GET" and response.status in REDIRECTS and target):
                return response
            response.close()
            there = url.join(target)
            if there.scheme != url.scheme:
                raise HttpError(f"{url} leads to {there}, which is not followed", sent=True)
            if there.origin != url.origin:
                headers = [(name, value) for name, value in headers if name.lower() not in CREDENTIALS]
            url = there
        raise HttpError(f"{url} leads on and on", sent=True)

    async def close(self) -> None:
        """Close all connections; what is under way fails."""
        self._closed = True
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Response:
    """A response whose head has come. Read it, iterate over its body, or close it: until then it has
    a connection for itself. `async with` closes it in any case."""

    def __init__(self, url: Url, taker: "_Taker", deadline: float | None) -> None:
        self.url = url
        """Where it came from, after redirects."""
        self.status = 0
        self.headers = Headers([])
        self._taker = taker
        self._deadline = deadline

    async def begin(self) -> None:
        """Wait for the head."""
        async with self._bounded():
            self.status, self.headers = await self._taker.begun()

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """The whole body, or what is left of it. Raises `HttpError` if it is larger than the limit."""
        pieces, size = [], 0
        async with self._bounded():
            while (piece := await self._taker.next()) is not None:
                size += len(piece)
                if size > limit:
                    raise HttpError(f"{self.url} sent more than {limit} bytes", sent=True)
                pieces.append(piece)
        return b"".join(pieces)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece of the body, whenever it comes. Raises `HttpError` if the body breaks off."""
        piece = await self._taker.next()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def close(self) -> None:
        """Do not read on. Does nothing if the response is complete."""
        self._taker.sending.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Within the time; whatever goes wrong, the connection is let go."""
        try:
            async with asyncio.timeout_at(self._deadline):
                yield
        except TimeoutError:
            self.close()
            sent = self._taker.sending.sent
            raise HttpError(f"{self.url} did not answer in time", sent=sent) from None
        except BaseException:
            self.close()
            raise


class _Taker:
    """The sink of a `Response`: keeps what has come until it is asked for, and not much more than that."""

    def __init__(self) -> None:
        self.sending: Sending
        self._began: tuple[int, Headers] | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._over = False
        self._error: HttpError | None = None
        self._news = asyncio.Event()

    def head(self, status: int, headers: Headers) -> None:
        self._began = status, headers
        self._news.set()

    def body(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER and not self.sending.paused:
            self.sending.pause()
        if self._size > MAX_BODY:
            # All that from one read: it was compressed, although that was not wanted.
            self.sending.cancel()
            self.end(HttpError(f"{self.sending.url} sent more than {MAX_BODY} bytes at once", sent=True))
        self._news.set()

    def end(self, error: HttpError | None) -> None:
        self._over = True
        self._error = error
        self._news.set()

    async def begun(self) -> tuple[int, Headers]:
        while self._began is None:
            await self._wait()
        return self._began

    async def next(self) -> bytes | None:
        """The next piece of the body; None after the last."""
        while not self._pieces:
            if self._over and self._error is None:
                return None
            await self._wait()
        piece = self._pieces.popleft()
        self._size -= len(piece)
        if self._size < HIGH_WATER and self.sending.paused:
            self.sending.resume()
        return piece

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._news.clear()
        await self._news.wait()

"""The connections to one origin, and the requests that wait for one, first come first served."""

import asyncio
import logging
import time
from collections import OrderedDict

from msgspec import Struct

from midcall.client.http1.connection import Connection, Sending
from midcall.client.http1.dialling import Dialler, Unreached
from midcall.client.http1.message import HttpError, Url

log = logging.getLogger("midcall.client")


class Limits(Struct, frozen=True):
    """As `HttpClient` explains them."""

    connections: int
    streams: int
    idle_timeout: float


class Pool:
    """The connections to the origin of a URL. It owns them, and the tasks that open them."""

    def __init__(self, dialler: Dialler, url: Url, limits: Limits) -> None:
        """Raises `HttpError` if the way there is a proxy that cannot be used."""
        self._dialler = dialler
        self._url = url
        self._limits = limits
        self._proxy = dialler.proxy(url)
        asked = self._proxy if url.scheme == "http" else None  # a tunnel's proxy sees no request
        self.prefix = b"" if asked is None else url.origin.encode()
        """What stands before the target in a request: a proxy wants the whole URL."""
        self.extra = b"accept-encoding: identity\r\n" + (b"" if asked is None else asked.credentials)
        """Headers of every request."""
        self._waiting: OrderedDict[Sending, int] = OrderedDict()
        self._number = 0
        """Of the last request that had to wait."""
        self._dialling: set[asyncio.Task[None]] = set()
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._streams = 0
        self._sweeping: asyncio.TimerHandle | None = None
        self._closing = False
        self._emptied = asyncio.Event()

    def submit(self, sending: Sending) -> None:
        """Send a request on a kept connection, or as soon as there is one to send it on."""
        while self._idle:
            connection = self._idle.pop()  # the one used last is the least likely to be stale
            if connection.usable(self._limits.idle_timeout):
                connection.start(sending)
                return
            connection.shut("")
        self._number += 1
        self._waiting[sending] = self._number
        self._grow()

    async def close(self) -> None:
        """Close all connections. What is on one, or waits for one, fails."""
        self._closing = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in self._dialling:
            task.cancel()
        if self._dialling:
            await asyncio.wait(self._dialling)
        self._fail(list(self._waiting), "was not called: the client was closed")
        for connection in list(self._open):
            connection.shut("gave no whole answer: the client was closed")
        while self._open:
            self._emptied.clear()
            await self._emptied.wait()

    # --- what connections and requests do ----------------------------------------------------

    def forget(self, sending: Sending) -> None:
        self._waiting.pop(sending, None)

    def streams(self, connection: Connection) -> None:
        self._streams += 1
        connection.streaming = True
        self._grow()

    def free(self, connection: Connection) -> None:
        if connection.streaming:
            self._end_stream(connection)
            if self._counted() > self._limits.connections:
                connection.shut("")
                return
        if self._waiting:
            connection.start(self._waiting.popitem(last=False)[0])
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._limits.idle_timeout, self._sweep)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if connection.streaming:
            self._end_stream(connection)
        self._grow()
        if not self._open:
            self._emptied.set()

    def _end_stream(self, connection: Connection) -> None:
        connection.streaming = False
        self._streams -= 1

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        self._sweeping = None
        eldest = time.monotonic() - self._limits.idle_timeout
        for connection in self._idle:
            if connection.idle_since <= eldest:
                connection.shut("")
        self._idle = [connection for connection in self._idle if connection.idle_since > eldest]
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(self._limits.idle_timeout, self._sweep)

    # --- new connections ---------------------------------------------------------------------

    def _counted(self) -> int:
        """How many connections there are, or soon will be, without the streams that do not count."""
        return len(self._open) + len(self._dialling) - min(self._streams, self._limits.streams)

    def _grow(self) -> None:
        """Open as many connections as are wanted and allowed."""
        while len(self._dialling) < len(self._waiting) and self._counted() < self._limits.connections:
            if self._closing:
                return
            task = asyncio.get_running_loop().create_task(self._dial(self._number))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)

    async def _dial(self, number: int) -> None:
        """Open a connection; if that fails, requests up to this number fail."""
        reason = ""
        try:
            connection = await self._dialler.dial(self._url, self._proxy, lambda: Connection(self))
        except Unreached as error:
            reason = str(error)
        except Exception as error:
            log.exception("Cannot connect to %s", self._url.origin)
            reason = f"{type(error).__name__}: {error}"
        else:
            if connection.closed:
                reason = "the connection was closed at once"
        self._dialling.discard(asyncio.current_task())
        if reason:
            self._unreached(number, reason)
        else:
            self._open.add(connection)
            self.free(connection)

    def _unreached(self, number: int, reason: str) -> None:
        """No connection could be opened. If there is none at all, nobody who waits has a better chance."""
        failed = [sending for sending, waiting in self._waiting.items() if waiting <= number]
        self._fail(failed[:1] if self._open else failed, f"cannot be reached: {reason}")
        self._grow()

    def _fail(self, failed: list[Sending], why: str) -> None:
        for sending in failed:
            del self._waiting[sending]
        for sending in failed:
            sending.end(HttpError(f"{sending.url} {why}", sent=False))

"""Posts: messages on their way over Streamable HTTP, and the streams by which their answers come.

A `Post` is one message and the response of its HTTP request; a `Stream` takes up what broke off, and listens
to what a legacy server says by itself. What they need of the connection is the `HttpWire`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from midcall import jsonrpc
from midcall.client.events import EventReader, EventTooLarge
from midcall.client.http1 import HeaderBlock, Headers, HttpError, Sending, encode_headers
from midcall.client.responses import Unusable
from midcall.client.wire import MAX_MESSAGE, About
from midcall.errors import MidcallError, RemoteError, TransportLost, Unreachable

if TYPE_CHECKING:
    from midcall.client.streamable import HttpWire

log = logging.getLogger("midcall.client")

RETRY = 1.0
LONGEST_RETRY = 300.0
"""Seconds before a lost stream is taken up again: if the server does not say, and at most."""

MAX_RETRIES = 5
"""How often a stream is taken up again without anything new on it."""

LINGER = 1.0
"""Seconds that a server has to close a stream after its response."""

FALL_BACK = frozenset((400, 404, 405))
"""What a server answers that knows only the transport of before."""

MOVED = frozenset((307, 308))
MAX_MOVES = 3
"""What a server answers that wants a message to be sent elsewhere, and how often it may."""

NO_SESSION = frozenset((-32000, -32001, jsonrpc.INVALID_REQUEST))
"""Errors with which servers refuse a session that they do not know, beside HTTP 404."""

MAX_CHALLENGES = 3
"""How often one request is sent again with better access."""


class Post:
    """One message on its way, and what comes back on its response. The sink of its HTTP request."""

    __slots__ = (
        "_access",
        "_body",
        "_challenges",
        "_events",
        "_headers",
        "_lingering",
        "_moves",
        "_resuming",
        "_sending",
        "_size",
        "_status",
        "_wire",
        "about",
        "cancelled",
        "ids",
        "message",
    )

    def __init__(self, wire: "HttpWire", ids: Sequence[int], message: bytes, about: About | None) -> None:
        self._wire = wire
        self.ids = ids
        self.message = message
        self.about = about
        self._access: list[tuple[str, str]] = []
        """The headers that gave it access."""
        self._challenges = 0
        self._moves = 0
        self._sending: Sending | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._lingering = False
        self.cancelled = False
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._headers: Headers | None = None
        self._events: EventReader | None = None
        self._body: list[bytes] = []
        self._size = 0

    def send(self) -> None:
        """Send it, at once if no access is to be asked for."""
        if self._wire.old is not None:
            self._wire.settled(self)
            self._wire.forget(self.ids)
            self._wire.old.post(self.ids, self.message)
        elif self._wire.needs_access:
            self._wire.spawn(self._send_with_access())
        else:
            self._post()

    async def _send_with_access(self) -> None:
        try:
            self._access = await self._wire.access("POST")
        except MidcallError as error:
            self._fail(error)
        else:
            self._post()

    def _post(self) -> None:
        if self.cancelled:
            return
        try:
            block = self._wire.block(self.about)
            if self._access:
                block = HeaderBlock(block + encode_headers(self._access))
            self._sending = self._wire.http.send("POST", self._wire.url, block, self.message, self)
        except HttpError as error:
            self._fail(_lost(error))

    def cancel(self) -> None:
        """Nobody waits for it."""
        self.cancelled = True
        self._wire.forget(self.ids)
        if self._sending is not None:
            self._sending.cancel()
        if self._resuming is not None:
            self._resuming.cancel()

    # --- as a sink ---------------------------------------------------------------------------

    def head(self, status: int, headers: Headers) -> None:
        self._status, self._headers = status, headers
        if self.about is not None and self.about.method == "initialize" and status == 200:
            self._wire.named(headers)
        if 200 <= status < 300 and _is_stream(headers):
            self._events = EventReader(MAX_MESSAGE)

    def body(self, data: bytes) -> None:
        if self._events is not None:
            self._take_events(self._events, data)
            return
        self._size += len(data)
        if self._size > MAX_MESSAGE:
            self._fail(TransportLost(f"{self._wire.url} sent more than {MAX_MESSAGE} bytes at once"))
            self.cancel()
        else:
            self._body.append(data)

    def _take_events(self, events: EventReader, data: bytes) -> None:
        try:
            found = events.feed(data)
        except EventTooLarge as error:
            self._fail(TransportLost(f"{self._wire.url}: {error}"))
            self.cancel()
            return
        for event in found:
            if event.data and event.event == "message":
                self._wire.reader.receive(event.data, self.ids[0] if self.ids else None)
        if self.ids and not self._lingering and not self._waited_for():
            self._lingering = True
            asyncio.get_running_loop().call_later(LINGER, self._linger)

    def _waited_for(self) -> bool:
        return any(self._wire.reader.waits(id) for id in self.ids)

    def _linger(self) -> None:
        if self._sending is not None and not self._waited_for():
            self.cancel()

    def end(self, error: HttpError | None) -> None:
        self._sending = None
        self._wire.settled(self)
        if self._events is not None:
            self._stream_ended(self._events, error)
        elif error is not None:
            self._fail(_lost(error))
        elif 200 <= self._status < 300:
            self._complete()
        else:
            self._refused()

    def _complete(self) -> None:
        if not self.ids:
            self._wire.accepted()
            return
        body = b"".join(self._body).strip()
        if body[:1] in (b"{", b"["):
            self._wire.reader.receive(body, self.ids[0])
        if self._waited_for():
            kind = (self._headers.get("content-type") if self._headers is not None else None) or "nothing"
            said = f"HTTP {self._status} and {kind if body else 'nothing'}"
            text = f"{self._wire.url} gave no response, but {said}"
            self._fail(self._error() or Unusable(text, rpc_code=jsonrpc.INTERNAL_ERROR))
        else:
            self._wire.forget(self.ids)

    def _stream_ended(self, events: EventReader, error: HttpError | None) -> None:
        if not self.ids:
            self._wire.accepted()
        elif not self._waited_for():
            self._wire.forget(self.ids)
        elif events.id and self._wire.resumes:
            self._resuming = self._wire.spawn(self._resume(events.id, events.retry))
        else:
            why = str(error) if error is not None else f"{self._wire.url} ended the stream"
            self._fail(TransportLost(f"{why}, before the response came"))

    async def _resume(self, last: str, retry: int | None) -> None:
        try:
            await Stream(self._wire, self, retry).follow(last)
        except MidcallError as error:
            self._fail(error)

    def _refused(self) -> None:
        status, headers = self._status, self._headers
        allowed = self._wire.needs_access and self._challenges < MAX_CHALLENGES
        if status in (401, 403) and headers is not None and allowed:
            self._challenges += 1
            self._wire.spawn(self._challenged(status, headers))
            return
        if not self.ids:
            log.warning("%s did not take a message: HTTP %d", self._wire.url, status)
            self._wire.release()
            return
        error = self._error()
        if self._wire.in_session and _knows_no_session(status, error):
            self._fail(Unreachable(f"{self._wire.url} has ended the session"))
            self._wire.expired()
        elif status in FALL_BACK and error is None and self._greets:
            self._wire.spawn(self._wire.fall_back(self))
        elif (
            status in MOVED and headers is not None and self._moves < MAX_MOVES and self._wire.moved(headers)
        ):
            self._moves += 1
            self._reset()
            self.send()
        else:
            self.refuse()

    @property
    def _greets(self) -> bool:
        return self.about is not None and self.about.method == "initialize"

    async def _challenged(self, status: int, headers: Headers) -> None:
        try:
            again = await self._wire.challenged(status, headers, self._access)
        except MidcallError as error:
            self._fail(error)
            return
        if again:
            self._reset()
            await self._send_with_access()
        else:
            self.refuse()

    def refuse(self) -> None:
        """The server has refused it: in its own words, if it has said any."""
        error = self._error()
        if error is not None:
            self._fail(error)
        elif self._status == 429 or (self._status == 503 and "retry-after" in (self._headers or ())):
            self._fail(Unreachable(f"{self._wire.url} is busy: HTTP {self._status}"))
        else:
            there = self._headers.get("location") if self._headers is not None else None
            text = b"".join(self._body)[:200].decode(errors="replace").strip()
            said = f"{self._wire.url} answered HTTP {self._status}" + (f", see {there}" if there else "")
            said += f": {text}" if text else ""
            self._fail(Unusable(said, rpc_code=jsonrpc.INTERNAL_ERROR, rpc_data={"status": self._status}))

    def _error(self) -> RemoteError | None:
        """The JSON-RPC error in the body of a refusal."""
        try:
            found = jsonrpc.decode(b"".join(self._body))
        except jsonrpc.Fault:
            return None
        if not isinstance(found, jsonrpc.Envelope) or found.error is msgspec.UNSET:
            return None
        return RemoteError(found.error.message, rpc_code=found.error.code, rpc_data=found.error.data)

    def _fail(self, error: MidcallError) -> None:
        """Whoever still waits for it gets this."""
        self._wire.settled(self)
        self._wire.forget(self.ids)
        if self.ids:
            self._wire.reader.failed(self.ids, error)
        else:
            log.info("a message was not sent: %s", error)
            self._wire.release()


class Stream:
    """A stream of events that is taken up again: of a request whose own broke off, or for everything else."""

    def __init__(self, wire: "HttpWire", post: Post | None = None, retry: int | None = None) -> None:
        self._wire = wire
        self._post = post
        self._retry = retry
        """After how many milliseconds the server wants it to be taken up, if it has said so."""

    async def follow(self, last: str = "") -> None:
        """Take up the stream after the last event, again and again;

        raises when that makes no sense any more.
        """
        tries = 0
        pause = self._pause(tries) if last else 0.0
        while True:
            if pause:
                await asyncio.sleep(pause)
            if self._post is not None and not self._waited_for():
                return
            access = await self._wire.access("GET")
            pairs = [*self._wire.pairs(), ("Accept", "text/event-stream")]
            if last:
                pairs.append(("Last-Event-ID", last.encode().decode("latin-1")))  # it goes out as UTF-8
            events = EventReader(MAX_MESSAGE)
            try:
                new = await self._read(access, pairs, events)
            except HttpError as error:
                new = False
                log.debug("a stream was lost: %s", error)
            tries = 0 if new else tries + 1
            if self._post is not None and not self._waited_for():
                return
            if tries > MAX_RETRIES and self._post is not None:
                raise TransportLost(f"{self._wire.url}: the stream of the response cannot be taken up again")
            last = events.id or last
            if events.retry is not None:
                self._retry = events.retry
            pause = self._pause(tries)

    def _pause(self, tries: int) -> float:
        """Seconds before it is taken up again: as the server wants it, and longer if that is no use."""
        wanted = RETRY if self._retry is None else self._retry / 1000
        if tries:
            wanted = max(wanted, 0.1) * 2 ** min(tries, MAX_RETRIES)
        return min(wanted, LONGEST_RETRY)

    async def _read(
        self, access: Sequence[tuple[str, str]], pairs: Sequence[tuple[str, str]], events: EventReader
    ) -> bool:
        """Read it to its end. True if anything came."""
        response = await self._wire.http.request("GET", self._wire.url, [*access, *pairs], timeout=None)
        try:
            if response.status == 404 and self._wire.in_session:
                self._wire.expired()
            if response.status == 401 and await self._wire.challenged(401, response.headers, access):
                return False
            if response.status == 429 or response.status >= 500:
                return False  # it may be better soon
            if not _is_stream(response.headers):
                raise TransportLost(f"{self._wire.url} has no such stream: HTTP {response.status}")
            came = False
            async for data in response:
                for event in events.feed(data):
                    came = True
                    if event.data and event.event == "message":
                        self._wire.reader.receive(event.data, self._related())
                if self._post is not None and not self._waited_for():
                    break
            return came
        finally:
            response.close()

    def _related(self) -> int | None:
        return self._post.ids[0] if self._post is not None else None

    def _waited_for(self) -> bool:
        return self._post is not None and any(self._wire.reader.waits(id) for id in self._post.ids)


def _is_stream(headers: Headers) -> bool:
    return (headers.get("content-type") or "").lower().startswith("text/event-stream")


def _knows_no_session(status: int, error: RemoteError | None) -> bool:
    """Whether a server has refused a message for its session: by HTTP 404, as it should, or in words."""
    if status == 404:
        return error is None or error.rpc_code != jsonrpc.METHOD_NOT_FOUND
    return (
        status == 400
        and error is not None
        and error.rpc_code in NO_SESSION
        and "session" in str(error).lower()
    )


def _lost(error: HttpError) -> MidcallError:
    return TransportLost(str(error)) if error.sent else Unreachable(str(error))

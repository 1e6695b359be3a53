"""Messages on their way over Streamable HTTP, and the streams by which their answers come.

An `HttpPost` is one message and the response of its HTTP request; a `ResumedStream` takes up what broke off,
and listens to what a legacy server says by itself. What they need of the connection is the `HttpWire`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from midcall import jsonrpc
from midcall.client.wire import MAX_MESSAGE, About, Unusable
from midcall.errors import MidcallError, RemoteError, TransportLost, Unreachable
from midcall.http.client import HttpResponse, Prepared, prepare
from midcall.http.message import Headers, HttpError
from midcall.http.sse import EventReader, EventTooLarge

if TYPE_CHECKING:
    from midcall.client.streamable import HttpWire

log = logging.getLogger("midcall.client")

RETRY = 1.0
SHORTEST_RETRY = 0.1
LONGEST_RETRY = 300.0
"""Seconds before a lost stream is taken up again: if the server does not say, and at most."""

MAX_RETRIES = 5
"""How often a stream is taken up again without anything new on it."""

TAKING = 60.0
"""Seconds that a server has to take an answer or a notification; a call has its own limit."""

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


class HttpPost:
    """One message on its way, and what comes back on its response."""

    __slots__ = (
        "_challenges",
        "_lingering",
        "_moves",
        "_task",
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
        self._challenges = 0
        self._moves = 0
        self._lingering = False
        self._task: asyncio.Task[Any] | None = None
        self.cancelled = False

    def send(self) -> None:
        """Send it."""
        if self._wire.legacy is not None:
            self._wire.settled(self)
            self._wire.forget(self.ids)
            self._wire.legacy.post(self.ids, self.message)
        else:
            self._wire.queue(self)

    def cancel(self) -> None:
        """Nobody waits for it."""
        self.cancelled = True
        self._wire.forget(self.ids)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def run(self) -> None:
        """Send it, and take what comes back."""
        self._task = asyncio.current_task()
        try:
            while await self._sent_for_nothing():
                pass
        except HttpError as error:
            self._fail(_lost(error))
        except MidcallError as error:
            self._fail(error)
        except Exception:
            log.exception("the answer of %s could not be taken", self._wire.url)
            self._fail(TransportLost(f"{self._wire.url} gave an answer that could not be taken"))
        finally:
            self._task = None
            self._wire.settled(self)

    async def _sent_for_nothing(self) -> bool:
        """Send it and take what comes back. True if it has to be sent again."""
        wire = self._wire
        headers, access = wire.headers(self.about), []
        if wire.needs_access:
            access = await wire.access("POST")
            headers = headers.copy()
            headers.extend(prepare(access))
        http, timeout = (wire.http, None) if self.ids else (wire.back, TAKING)
        response = await http.request("POST", wire.url, headers, self.message, timeout=timeout)
        try:
            status = response.status
            if status == 200 and self._initializes:
                wire.named(response.headers)
            if not 200 <= status < 300:
                return await self._refused(status, response.headers, await response.read(MAX_MESSAGE), access)
            if _is_stream(response.headers):
                with wire.listening():
                    await self._take_events(response)
            else:
                self._complete(status, response.headers, await response.read(MAX_MESSAGE))
            return False
        finally:
            response.close()

    # --- what comes back ---------------------------------------------------------------------

    async def _take_events(self, response: HttpResponse) -> None:
        events, why = EventReader(MAX_MESSAGE), f"{self._wire.url} ended the stream"
        try:
            async for data in response:
                for event in events.feed(data):
                    if event.data and event.event == "message":
                        self._wire.session.receive(event.data, self.ids[0] if self.ids else None)
                if self.cancelled:
                    return
                if self.ids and not self._lingering and not self._waited_for():
                    self._lingering = True
                    asyncio.get_running_loop().call_later(LINGER, self._linger)
        except HttpError as error:
            why = str(error)
        except EventTooLarge as error:
            raise TransportLost(f"{self._wire.url}: {error}") from None
        if not self.ids:
            self._wire.accepted()
        elif not self._waited_for():
            self._wire.forget(self.ids)
        elif events.id and self._wire.resumes:
            await ResumedStream(self._wire, self, events.retry).follow(events.id)
        else:
            raise TransportLost(f"{why}, before the response came")

    def _waited_for(self) -> bool:
        return any(self._wire.session.waits(id) for id in self.ids)

    def _linger(self) -> None:
        if self._task is not None and not self._waited_for():
            self.cancel()

    def _complete(self, status: int, headers: Headers, body: bytes) -> None:
        if not self.ids:
            self._wire.accepted()
            return
        body = body.strip()
        if body[:1] in (b"{", b"["):
            self._wire.session.receive(body, self.ids[0])
        if self._waited_for():
            kind = headers.get("content-type") or "nothing"
            text = f"{self._wire.url} gave no response, but HTTP {status} and {kind if body else 'nothing'}"
            raise _error_in(body) or Unusable(text, rpc_code=jsonrpc.INTERNAL_ERROR)
        self._wire.forget(self.ids)

    async def _refused(
        self, status: int, headers: Headers, body: bytes, access: Sequence[tuple[str, str]]
    ) -> bool:
        """The server has refused it. True if it is to be sent again."""
        allowed = self._wire.needs_access and self._challenges < MAX_CHALLENGES
        if status in (401, 403) and allowed:
            self._challenges += 1
            if await self._wire.challenged(status, headers, access):
                return True
        elif not self.ids:
            log.warning("%s did not take a message: HTTP %d", self._wire.url, status)
            self._wire.release()
            return False
        error = _error_in(body)
        if self._wire.in_session and _knows_no_session(status, error):
            self._fail(Unreachable(f"{self._wire.url} has ended the session"))
            self._wire.expired()
            return False
        if status in FALL_BACK and error is None and self._initializes and await self._wire.fall_back(self):
            return False
        if status in MOVED and self._moves < MAX_MOVES and self._wire.moved(headers):
            self._moves += 1
            return True
        raise error or self._refusal(status, headers, body)

    @property
    def _initializes(self) -> bool:
        return self.about is not None and self.about.method == "initialize"

    def _refusal(self, status: int, headers: Headers, body: bytes) -> MidcallError:
        if status == 429 or (status == 503 and "retry-after" in headers):
            return Unreachable(f"{self._wire.url} is busy: HTTP {status}")
        there = headers.get("location")
        text = body[:200].decode(errors="replace").strip()
        said = f"{self._wire.url} answered HTTP {status}" + (f", see {there}" if there else "")
        said += f": {text}" if text else ""
        return Unusable(said, rpc_code=jsonrpc.INTERNAL_ERROR, rpc_data={"status": status})

    def _fail(self, error: MidcallError) -> None:
        """Whoever still waits for it gets this."""
        self._wire.forget(self.ids)
        if self.ids:
            self._wire.session.failed(self.ids, error)
        else:
            log.info("a message was not sent: %s", error)
            self._wire.release()


class ResumedStream:
    """A stream of events that is taken up again: of a request whose own broke off, or for everything else."""

    def __init__(self, wire: "HttpWire", post: HttpPost | None = None, retry: int | None = None) -> None:
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
            headers = prepare([*access, *self._wire.pairs(), ("Accept", "text/event-stream")])
            if last:
                headers["Last-Event-ID"] = last  # it goes out as UTF-8
            events = EventReader(MAX_MESSAGE)
            try:
                new = await self._read(access, headers, events)
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
        wanted = RETRY if self._retry is None else max(self._retry / 1000, SHORTEST_RETRY)
        return min(wanted * float(2 ** min(tries, MAX_RETRIES)), LONGEST_RETRY)

    async def _read(self, access: Sequence[tuple[str, str]], headers: Prepared, events: EventReader) -> bool:
        """Read it to its end. True if anything came."""
        response = await self._wire.http.request("GET", self._wire.url, headers, timeout=None)
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
                        self._wire.session.receive(event.data, self._related())
                if self._post is not None and not self._waited_for():
                    break
            return came
        finally:
            response.close()

    def _related(self) -> int | None:
        return self._post.ids[0] if self._post is not None else None

    def _waited_for(self) -> bool:
        return self._post is not None and any(self._wire.session.waits(id) for id in self._post.ids)


def _error_in(body: bytes) -> RemoteError | None:
    """The JSON-RPC error in the body of a response."""
    try:
        found = jsonrpc.decode(body)
    except jsonrpc.Fault:
        return None
    if not isinstance(found, jsonrpc.Envelope) or found.error is msgspec.UNSET:
        return None
    return RemoteError(found.error.message, rpc_code=found.error.code, rpc_data=found.error.data)


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

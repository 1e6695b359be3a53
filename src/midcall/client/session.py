"""Session: one client's conversation with one server, in the era that the server knows. No I/O.

It correlates responses with requests by id, has the server's own requests answered by its client, and
hands notifications to whom they concern. What is lost with the line is failed here; getting a new line is the
business of the `Reconnect` above.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct

from midcall import jsonrpc
from midcall.client.handshake import Era, Handshake, shake_hands
from midcall.client.server_requests import ServerRequests
from midcall.client.wire import About, Unusable, Wire
from midcall.errors import MidcallError, RemoteError, TimedOut, TransportLost, Unreachable
from midcall.items import to_json
from midcall.jsonrpc import INTERNAL_ERROR, Batch, Envelope, Fault, PendingRequests
from midcall.mcp.messages import META

if TYPE_CHECKING:
    from midcall.client.client import Client

log = logging.getLogger("midcall.client")

MAX_CANCELLED = 1000
MAX_DIGITS = 18
"""The longest id that is taken for a number, if a server gives it back as text."""


class Waiter:
    """Who waits for the response to a request."""

    __slots__ = ()

    def answered(self, response: Envelope) -> None:
        """The response is here."""

    def failed(self, error: MidcallError) -> None:
        """There will be none."""

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        """A notification that belongs to the request: progress, or a line of log."""


class Loose(Struct):
    """A response that is not quite what JSON-RPC wants: another version, an error of another shape."""

    method: Raw = Raw()
    result: Raw = Raw()
    error: Any = None

    @classmethod
    def read(cls, data: bytes) -> "Loose | None":
        try:
            found = msgspec.json.decode(data, type=cls)
        except (ValueError, RecursionError):
            return None
        return None if bytes(found.method) else found

    @property
    def error_text(self) -> str:
        message = self.error.get("message") if isinstance(self.error, dict) else self.error
        return message if isinstance(message, str) else f"The server's error cannot be read: {self.error!r}"


class ResponseFuture(Waiter):
    """Waits in a coroutine."""

    __slots__ = ("future",)

    def __init__(self, future: "asyncio.Future[dict[str, Any]]") -> None:
        self.future = future

    def answered(self, response: Envelope) -> None:
        try:
            result = result_of(response)
        except RemoteError as error:
            self.failed(error)
        else:
            if not self.future.done():
                self.future.set_result(result)

    def failed(self, error: MidcallError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def result_of(response: Envelope) -> dict[str, Any]:
    """The result in a response. Raises `RemoteError` if there is none."""
    error = response.error
    if error is not UNSET:
        raise RemoteError(error.message, rpc_code=error.code, rpc_data=error.data)
    try:
        result = msgspec.json.decode(response.result)
    except (ValueError, RecursionError) as fault:
        why = str(fault) if bytes(response.result) else "it has neither a result nor an error"
    else:
        if isinstance(result, dict):
            return result
        why = "its result is not an object"
    raise Unusable(f"The server's response cannot be read: {why}", rpc_code=INTERNAL_ERROR)


class ClientSession:
    """A conversation with a server."""

    def __init__(self, wire: Wire, host: "Client", *, log_level: str | None = None) -> None:
        self._wire = wire
        self._host = host
        self._log_level = log_level
        self._pending: PendingRequests[Waiter] = PendingRequests()
        self._serving = ServerRequests(self._respond)
        self._cancelled: deque[int] = deque(maxlen=MAX_CANCELLED)
        """Requests whose response may have crossed their cancellation."""
        self._meta = b""
        """The start of `_meta` of each request: without its last brace, or nothing."""
        self._spoken = ""
        self.handshake = Handshake()
        self.ended: MidcallError | None = None
        """Why the line is gone, once it is."""

    # --- the beginning and the end -----------------------------------------------------------

    async def open(self, era: Era, revision: str | None = None) -> None:
        """Open the wire and find out what the server speaks. Raises `Unreachable` or `RemoteError`.

        `revision` is the legacy revision to ask for; the server may choose an older one.
        """
        await self._wire.open(self)
        self.handshake = await shake_hands(self, era, revision)
        if not self.modern:
            self.notify("notifications/initialized")
            if self._log_level is not None and "logging" in self.handshake.capabilities:
                self.start(Waiter(), About("logging/setLevel"), to_json({"level": self._log_level})[1:-1])

    async def close(self) -> None:
        """Fail what waits, and let go of the server."""
        self._end(TransportLost("The client was closed"))
        try:
            await self._serving.close()
        finally:
            await self._wire.close()

    @property
    def revision(self) -> str:
        """The revision of MCP that is spoken."""
        return self.handshake.revision

    @property
    def modern(self) -> bool:
        """Whether that is the stateless one."""
        return self.handshake.modern

    @property
    def client_info(self) -> dict[str, Any]:
        """The name and version of the client."""
        return self._host.info

    def offers(self, *, modern: bool) -> dict[str, Any]:
        """What is declared to the server."""
        return self._host.capabilities_for(modern=modern)

    def speak(self, revision: str, *, modern: bool) -> None:
        """From here on requests are of this revision."""
        self._wire.agreed(revision, modern=modern)
        self._spoken = revision
        self._meta = self.head(self.offers(modern=True), self._log_level) if modern else b""

    def head(self, capabilities: dict[str, Any], log_level: str | None) -> bytes:
        """The start of `_meta` of a request for somebody with these capabilities, on a modern server."""
        meta = {
            f"{META}protocolVersion": self._spoken,
            f"{META}clientInfo": self.client_info,
            f"{META}clientCapabilities": capabilities,
        }
        if log_level is not None:
            meta[f"{META}logLevel"] = log_level
        return to_json(meta)[:-1]

    # --- requests ----------------------------------------------------------------------------

    def start(
        self,
        waiter: Waiter,
        about: About,
        params: bytes = b"",
        *,
        progress: bool = False,
        meta: bytes = b"",
        head: bytes | None = None,
    ) -> int:
        """Send a request; gives its id. `params` and `meta` are the inside of a JSON object each.

        `head` is the start of `_meta`, if it is not the client's own (see `head`).
        """
        if self.ended is not None:
            waiter.failed(_not_sent(self.ended))
            return 0
        id = self._pending.add(waiter)
        said = self._params(self._meta if head is None else head, id, params, meta, progress=progress)
        message = jsonrpc.request(id, about.method, said)
        self._wire.request((id,), message, about)
        return id

    def start_batch(self, requests: Sequence[tuple[Waiter, bytes]], about: About) -> list[int]:
        """Send requests as one JSON-RPC array; gives their ids."""
        if self.ended is not None:
            for waiter, _ in requests:
                waiter.failed(_not_sent(self.ended))
            return []
        ids = [self._pending.add(waiter) for waiter, _ in requests]
        messages = [
            jsonrpc.request(id, about.method, self._params(self._meta, id, params, b"", progress=False))
            for id, (_, params) in zip(ids, requests, strict=True)
        ]
        self._wire.request(ids, b"[%b]" % b",".join(messages), about)
        return ids

    async def request(self, method: str, params: bytes = b"", about: About | None = None) -> dict[str, Any]:
        """Send a request and wait for its result. Raises `RemoteError`, or what the line failed with."""
        waiter = ResponseFuture(asyncio.get_running_loop().create_future())
        id = self.start(waiter, about or About(method), params)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if method == "initialize":  # the one request that a client may not cancel
                self._pending.take(id)
            else:
                self.cancel(id, "The caller gave up")
            raise

    def cancel(self, id: int, reason: str) -> None:
        """Stop waiting for a response, and tell the server."""
        if self._pending.take(id) is not None and not self._wire.cancel(id):
            self._cancelled.append(id)
            self.notify("notifications/cancelled", {"requestId": id, "reason": reason})

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification."""
        if self.ended is None:
            self._wire.send(jsonrpc.notification(method, to_json(params or {})))

    @property
    def waiting(self) -> Sequence[Waiter]:
        """Who waits for a response, the newest last."""
        return self._pending.all()

    def waits(self, id: int) -> bool:
        """Whether somebody still waits for the response to this request."""
        return self._pending.get(id) is not None

    def _params(self, head: bytes, id: int, params: bytes, meta: bytes, *, progress: bool) -> bytes:
        parts = [head] if head else []
        if progress:
            parts.append(b'"progressToken":%d' % id if parts else b'{"progressToken":%d' % id)
        if meta:
            parts.append(meta if parts else b"{" + meta)
        if not parts:
            return b"{%b}" % params
        return b'{"_meta":%b}%b%b}' % (b",".join(parts), b"," if params else b"", params)

    # --- what comes --------------------------------------------------------------------------

    def receive(self, data: bytes, related: int | None = None) -> None:
        """Take one message of the server. Never raises: whatever it is, the next one is read."""
        if self.ended is not None:
            return  # nobody waits any more
        try:
            message = jsonrpc.decode(data)
        except Fault as fault:
            self._unreadable(fault, data)
            return
        for member in message.members if isinstance(message, Batch) else (message,):
            try:
                if isinstance(member, Fault):
                    self._unreadable(member, data)
                else:
                    self._take(member, related)
            except Exception:
                log.exception("a message of the server could not be taken: %.200r", data)

    def _take(self, message: Envelope, related: int | None) -> None:
        if message.method is UNSET:
            waiter = self._pending.take(_number(message.id))
            if waiter is not None:
                _hand_over(waiter, message)
            elif self.modern and _number(message.id) in self._cancelled:
                self._cancel_task(message)
            else:
                log.debug("dropped a response that nobody waits for: %.100r", message.id)
        elif message.id is UNSET:
            self._notification(str(message.method), message.params, related)
        elif self.modern and message.method != "ping":
            log.warning("skipped a request, which a modern server does not send: %s", message.method)
        else:
            cause = self._pending.get(related) or self._host.cause()
            self._serving.start(message, lambda method, params: self._host.asked(method, params, cause))

    def _cancel_task(self, message: Envelope) -> None:
        """A request was cancelled while it became a task: that ends too."""
        self._cancelled.remove(_number(message.id))
        try:
            result = result_of(message)
        except RemoteError:
            return
        task = result.get("taskId")
        if result.get("resultType") == "task" and isinstance(task, str):
            self.start(Waiter(), About("tasks/cancel", task), to_json({"taskId": task})[1:-1])

    def _unreadable(self, fault: Fault, data: bytes) -> None:
        """What is no message may still tell which request it answers, and how."""
        loose = Loose.read(data)
        waiter = self._pending.take(_number(fault.id)) if loose is not None else None
        if loose is None or waiter is None:
            log.warning("skipped something that is not a message: %s: %.200r", fault, data)
        elif loose.error is None:
            _hand_over(waiter, Envelope(result=loose.result))
        else:
            waiter.failed(RemoteError(loose.error_text, rpc_code=INTERNAL_ERROR))

    def _notification(self, method: str, raw: Raw, related: int | None) -> None:
        try:
            params = msgspec.json.decode(raw) if bytes(raw) else {}
        except (ValueError, RecursionError):
            return
        if not isinstance(params, dict):
            return
        waiter: Waiter | None = None
        match method:
            case "notifications/progress":
                waiter = self._pending.get(params.get("progressToken"))
                if waiter is None:
                    return  # it is late
            case "notifications/message" if related is not None:
                waiter = self._pending.get(related)
            case "notifications/message" if len(self._pending) == 1 and not self._host.shared:
                (waiter,) = self._pending.all()
            case "notifications/subscriptions/acknowledged":
                waiter = self._pending.get(_subscription(params))
            case "notifications/cancelled":
                self._serving.withdraw(params.get("requestId"))
                waiter = self._pending.get(params.get("requestId")) if self.modern else None
        if waiter is not None:
            waiter.noticed(method, params)
        else:
            self._host.noticed(method, params)

    def _respond(self, message: bytes) -> None:
        if self.ended is None:
            self._wire.send(message)

    # --- what goes wrong ---------------------------------------------------------------------

    def failed(self, ids: Sequence[int], error: MidcallError) -> None:
        """These requests get no response."""
        for id in ids:
            waiter = self._pending.take(id)
            if waiter is not None:
                waiter.failed(error)

    def lost(self, error: MidcallError) -> None:
        """The line is gone."""
        if self.ended is None:
            self._end(error)
            self._host.lost(self, error)

    def _end(self, error: MidcallError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        for waiter in self._pending.take_all():
            waiter.failed(error)


async def in_time(work: Coroutine[Any, Any, Any], seconds: float | None, what: str) -> Any:
    """What the work gives, or `TimedOut`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise TimedOut(f"{what}: no answer within {seconds:g} seconds") from None


def _hand_over(waiter: Waiter, response: Envelope) -> None:
    """Hand over a response. Nobody waits for ever, whatever is wrong with it."""
    try:
        waiter.answered(response)
    except Exception as error:
        log.exception("a response could not be taken")
        waiter.failed(RemoteError(f"The response could not be taken: {error}", rpc_code=INTERNAL_ERROR))


def _number(id: Any) -> Any:
    """An id as it was sent: some servers give back text for a number."""
    return int(id) if isinstance(id, str) and len(id) <= MAX_DIGITS and id.isdecimal() else id


def _subscription(params: dict[str, Any]) -> Any:
    meta = params.get("_meta")
    return _number(meta.get(f"{META}subscriptionId")) if isinstance(meta, dict) else None


def _not_sent(error: MidcallError) -> Unreachable:
    return Unreachable(f"Not sent: {error}")

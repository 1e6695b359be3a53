"""Session: one client's conversation with one server, in the era that the server knows. No I/O.

It finds out the era, correlates responses with requests by id, answers the server's own requests through a
`Host`, and hands notifications to whom they concern. What is lost with the line is failed here; getting a new
line is the business of the `Client` above.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from midcall import jsonrpc
from midcall.client.wire import About, Wire
from midcall.errors import MidcallError, RemoteError, TimedOut, TransportLost, Unreachable
from midcall.items import to_json
from midcall.jsonrpc import Batch, Envelope, Fault, Pending
from midcall.mcp import revisions
from midcall.mcp.messages import META

log = logging.getLogger("midcall.client")

Era: TypeAlias = Literal["auto", "legacy", "modern"]

PROBE = 5.0
"""Seconds that a server has to answer the modern greeting before the legacy one is tried beside it."""

_MODERN_ERRORS = frozenset((-32020, -32021, -32022))
"""What only a modern server answers."""

UNSUPPORTED_REVISION = -32022


class Waiter:
    """Who waits for the response to a request."""

    __slots__ = ()

    def answered(self, response: Envelope) -> None:
        """The response is here."""

    def failed(self, error: MidcallError) -> None:
        """There will be none."""

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        """A notification that belongs to the request: progress, or a line of log."""


class Host(Protocol):
    """The client's side of what a server may want."""

    @property
    def info(self) -> dict[str, Any]:
        """The name and version of the client."""

    def capabilities_for(self, *, modern: bool) -> dict[str, Any]:
        """What the client can do for the server."""

    async def asked(self, method: str, params: dict[str, Any], related: Waiter | None) -> dict[str, Any]:
        """Answer a request of the server; `related` is the request that caused it, if that is known."""

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        """A notification that belongs to no request."""

    def lost(self, error: MidcallError) -> None:
        """The line is gone; all requests have failed already."""


class Greeting(Struct):
    """What a server says of itself."""

    capabilities: dict[str, Any] = {}
    server_info: dict[str, Any] = msgspec.field(default={}, name="serverInfo")
    instructions: str | None = None
    revision: str = msgspec.field(default="", name="protocolVersion")
    revisions: list[str] = msgspec.field(default=[], name="supportedVersions")
    meta: dict[str, Any] = msgspec.field(default={}, name="_meta")


class Session:
    """A conversation with a server."""

    def __init__(self, wire: Wire, host: Host, *, log_level: str | None = None) -> None:
        self._wire = wire
        self._host = host
        self._log_level = log_level
        self._pending: Pending[Waiter] = Pending()
        self._serving: dict[Any, asyncio.Task[None]] = {}
        self._meta = b""
        """The start of `_meta` of each request, without its last brace."""
        self.greeting = Greeting()
        self.revision = ""
        self.modern = False
        self.ended: MidcallError | None = None
        """Why the line is gone, once it is."""

    # --- the beginning and the end -----------------------------------------------------------

    async def open(self, era: Era, revision: str | None = None) -> None:
        """Open the wire and find out what the server speaks. Raises `Unreachable` or `RemoteError`.

        `revision` is the legacy revision to ask for; the server may choose an older one.
        """
        await self._wire.open(self)
        if era == "legacy":
            await self._initialize(revision)
        elif era == "modern":
            await self._discover(revisions.MODERN[-1])
        else:
            await self._find_out(revision)

    async def close(self) -> None:
        """Fail what waits, and let go of the server."""
        self._end(TransportLost("The client was closed"))
        await self._wire.close()

    async def _find_out(self, revision: str | None) -> None:
        """Greet in the modern way; any error that a modern server would not give means a legacy one.

        A server that says nothing may be slow to start, or may ignore what it does not know: after a while
        it is greeted in the legacy way too, and whichever answer comes first tells.
        """
        probe = asyncio.ensure_future(self._discover(revisions.MODERN[-1]))
        try:
            await asyncio.wait((probe,), timeout=PROBE)
            if not probe.done():
                legacy = asyncio.ensure_future(self._initialize(revision))
                try:
                    await asyncio.wait((probe, legacy), return_when=asyncio.FIRST_COMPLETED)
                    if legacy.done():
                        legacy.result()
                        return
                finally:
                    await _end_task(legacy)
            probe.result()
        except RemoteError as error:
            if error.rpc_code in _MODERN_ERRORS and not _knows_legacy(error):
                raise
            await self._initialize(revision)
        finally:
            await _end_task(probe)

    async def _discover(self, revision: str) -> None:
        self._speak(revision, modern=True)
        try:
            found = await self.request("server/discover", b"")
        except RemoteError as error:
            other = _other_modern(error, revision)
            if other is None:
                raise
            await self._discover(other)
            return
        greeting = _greeting(found)
        if revision not in greeting.revisions:
            known = [one for one in revisions.MODERN if one in greeting.revisions]
            if not known:
                raise RemoteError(
                    f"The server speaks {', '.join(greeting.revisions) or 'no revision'}, "
                    f"and none of them is known here",
                    rpc_code=UNSUPPORTED_REVISION,
                    rpc_data={"supported": greeting.revisions},
                )
            self._speak(known[-1], modern=True)
        self.greeting = greeting
        self.greeting.server_info = greeting.server_info or greeting.meta.get(f"{META}serverInfo", {})

    async def _initialize(self, revision: str | None) -> None:
        self._speak("", modern=False)
        asked = {
            "protocolVersion": revision or revisions.LATEST_LEGACY,
            "capabilities": self._host.capabilities_for(modern=False),
            "clientInfo": self._host.info,
        }
        self.greeting = _greeting(await self.request("initialize", to_json(asked)[1:-1]))
        if self.greeting.revision not in revisions.LEGACY:
            raise RemoteError(
                f"The server wants to speak revision {self.greeting.revision or '(none)'}, unknown here",
                rpc_code=jsonrpc.INVALID_PARAMS,
            )
        self._speak(self.greeting.revision, modern=False)
        self.notify("notifications/initialized")
        if self._log_level is not None and "logging" in self.greeting.capabilities:
            self.start(Waiter(), About("logging/setLevel"), to_json({"level": self._log_level})[1:-1])

    def _speak(self, revision: str, *, modern: bool) -> None:
        self.revision, self.modern = revision, modern
        self._wire.agreed(revision, modern=modern)
        meta: dict[str, Any] = {}
        if modern:
            meta = {
                f"{META}protocolVersion": revision,
                f"{META}clientInfo": self._host.info,
                f"{META}clientCapabilities": self._host.capabilities_for(modern=True),
            }
            if self._log_level is not None:
                meta[f"{META}logLevel"] = self._log_level
        self._meta = to_json(meta)[:-1]

    # --- requests ----------------------------------------------------------------------------

    def start(
        self,
        waiter: Waiter,
        about: About,
        params: bytes = b"",
        *,
        progress: bool = False,
        meta: bytes = b"",
    ) -> int:
        """Send a request; gives its id. `params` and `meta` are the inside of a JSON object each."""
        if self.ended is not None:
            waiter.failed(self.ended)
            return 0
        id = self._pending.add(waiter)
        message = jsonrpc.request(id, about.method, self._params(id, params, meta, progress=progress))
        self._wire.request((id,), message, about)
        return id

    def start_batch(self, requests: Sequence[tuple[Waiter, bytes]], about: About) -> list[int]:
        """Send requests as one JSON-RPC array; gives their ids."""
        if self.ended is not None:
            for waiter, _ in requests:
                waiter.failed(self.ended)
            return []
        ids = [self._pending.add(waiter) for waiter, _ in requests]
        messages = [
            jsonrpc.request(id, about.method, self._params(id, params, b"", progress=False))
            for id, (_, params) in zip(ids, requests, strict=True)
        ]
        self._wire.request(ids, b"[%b]" % b",".join(messages), about)
        return ids

    async def request(self, method: str, params: bytes = b"", about: About | None = None) -> Raw:
        """Send a request and wait for its result. Raises `RemoteError`, or what the line failed with."""
        waiter = _Future(asyncio.get_running_loop().create_future())
        id = self.start(waiter, about or About(method), params)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self.cancel(id, "The caller gave up")
            raise

    def cancel(self, id: int, reason: str) -> None:
        """Stop waiting for a response, and tell the server."""
        if self._pending.take(id) is not None and not self._wire.cancel(id):
            self.notify("notifications/cancelled", {"requestId": id, "reason": reason})

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification."""
        if self.ended is None:
            self._wire.send(jsonrpc.notification(method, to_json(params or {})))

    @property
    def waiting(self) -> Sequence[Waiter]:
        """Who waits for a response, the newest last."""
        return self._pending.all()

    def _params(self, id: int, params: bytes, meta: bytes, *, progress: bool) -> bytes:
        parts = [self._meta] if len(self._meta) > 1 else []
        if progress:
            parts.append(b'"progressToken":%d' % id if parts else b'{"progressToken":%d' % id)
        if meta:
            parts.append(meta if parts else b"{" + meta)
        if not parts:
            return b"{%b}" % params
        return b'{"_meta":%b}%b%b}' % (b",".join(parts), b"," if params else b"", params)

    # --- what comes --------------------------------------------------------------------------

    def receive(self, data: bytes, related: int | None = None) -> None:
        """Take one message of the server."""
        try:
            message = jsonrpc.decode(data)
        except Fault as fault:
            log.warning("skipped what is no message: %s: %.200r", fault, data)
            return
        for member in message.members if isinstance(message, Batch) else (message,):
            if isinstance(member, Fault):
                log.warning("skipped what is no message: %s", member)
            else:
                self._take(member, related)

    def _take(self, message: Envelope, related: int | None) -> None:
        if message.method is UNSET:
            self._response(message)
        elif message.id is UNSET:
            self._notification(str(message.method), message.params, related)
        else:
            self._serve(message, related)

    def _response(self, message: Envelope) -> None:
        id = message.id
        if isinstance(id, str) and id.isdecimal():
            id = int(id)  # as some servers give back a number
        waiter = self._pending.take(id)
        if waiter is None:
            log.debug("dropped a response that nobody waits for: %r", message.id)
            return
        waiter.answered(message)

    def _notification(self, method: str, raw: Raw, related: int | None) -> None:
        try:
            params = msgspec.json.decode(raw) if bytes(raw) else {}
        except (msgspec.DecodeError, RecursionError):
            return
        if not isinstance(params, dict):
            return
        waiter: Waiter | None = None
        match method:
            case "notifications/progress":
                waiter = self._pending.get(params.get("progressToken"))
            case "notifications/message" if related is not None:
                waiter = self._pending.get(related)
            case "notifications/message" if len(self._pending) == 1:
                (waiter,) = self._pending.all()
            case "notifications/cancelled":
                task = self._serving.get(params.get("requestId"))
                if task is not None:
                    task.cancel()
                return
        if waiter is not None:
            waiter.noticed(method, params)
        else:
            self._host.noticed(method, params)

    def _serve(self, message: Envelope, related: int | None) -> None:
        if message.method == "ping":
            self._respond(jsonrpc.response(None if message.id is UNSET else message.id, b"{}"))
            return
        waiter = self._pending.get(related)
        task = asyncio.get_running_loop().create_task(self._answer(message, waiter))
        self._serving[message.id] = task
        task.add_done_callback(lambda _: self._serving.pop(message.id, None))

    async def _answer(self, message: Envelope, related: Waiter | None) -> None:
        id: Any = message.id
        try:
            params = msgspec.json.decode(message.params) if bytes(message.params) else {}
            result = await self._host.asked(str(message.method), params, related)
            self._respond(jsonrpc.response(id, to_json(result)))
        except RemoteError as error:
            self._respond(jsonrpc.error_response(id, error.rpc_code, str(error), error.rpc_data))
        except MidcallError as error:
            self._respond(jsonrpc.error_for(id, error))
        except Exception as error:
            log.exception("%s of the server could not be answered", message.method)
            self._respond(jsonrpc.error_response(id, jsonrpc.INTERNAL_ERROR, str(error) or "Internal error"))

    def _respond(self, message: bytes) -> None:
        if self.ended is None:
            self._wire.send(message)

    def waits(self, id: int) -> bool:
        """Whether somebody still waits for the response to this request."""
        return self._pending.get(id) is not None

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
            self._host.lost(error)

    def _end(self, error: MidcallError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        for task in list(self._serving.values()):
            task.cancel()
        for waiter in self._pending.take_all():
            waiter.failed(error)


class _Future(Waiter):
    """Waits in a coroutine."""

    __slots__ = ("future",)

    def __init__(self, future: "asyncio.Future[Raw]") -> None:
        self.future = future

    def answered(self, response: Envelope) -> None:
        if self.future.done():
            return
        if response.error is not UNSET:
            self.future.set_exception(error_of(response))
        else:
            self.future.set_result(response.result)

    def failed(self, error: MidcallError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def error_of(response: Envelope) -> RemoteError:
    """The exception that the server's error stands for."""
    error = response.error
    if error is UNSET:
        raise ValueError("This response is no error")
    return RemoteError(error.message, rpc_code=error.code, rpc_data=error.data)


async def in_time(work: Coroutine[Any, Any, Any], seconds: float | None, what: str) -> Any:
    """What the work gives, or `TimedOut`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise TimedOut(f"{what}: no answer within {seconds:g} seconds") from None


def _greeting(raw: Raw) -> Greeting:
    try:
        return msgspec.json.decode(raw, type=Greeting)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreachable(f"This is no MCP server: {error}") from None


def _supported(error: RemoteError) -> Sequence[Any]:
    data = error.rpc_data if isinstance(error.rpc_data, dict) else {}
    found = data.get("supported")
    return found if isinstance(found, list) else ()


def _other_modern(error: RemoteError, tried: str) -> str | None:
    """Another modern revision that the server has named instead."""
    if error.rpc_code != UNSUPPORTED_REVISION:
        return None
    named = [one for one in revisions.MODERN if one in _supported(error) and one != tried]
    return named[-1] if named else None


def _knows_legacy(error: RemoteError) -> bool:
    return any(one in revisions.LEGACY for one in _supported(error))


async def _end_task(task: "asyncio.Future[None]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # looked at: whoever it concerns knows

"""What a server offers, as it was last listed, and what is heard of changes.

A list is fetched when it is first asked for, and again when the server says that it has changed, when the
time is up for which it said that it holds, or after a new connection.

A legacy server sends list changes by itself, and updates of resources to whoever has subscribed. A modern one
sends nothing that is not asked for: there one `subscriptions/listen` request is kept open, and sent anew when
what is to be heard has changed or its stream has ended.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from midcall.client.header_params import HeaderParams
from midcall.client.session import ClientSession, Waiter, result_of
from midcall.client.wire import About
from midcall.errors import MidcallError, RemoteError, TransportLost, Unreachable
from midcall.items import to_json
from midcall.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Envelope
from midcall.mcp.results import objects_in

if TYPE_CHECKING:
    from midcall.client.client import Client

Part: TypeAlias = Literal["tools", "prompts", "resources", "templates"]

PARTS: dict[Part, tuple[str, str, str]] = {
    # part: the method that lists it, the key of the list, the capability behind it
    "tools": ("tools/list", "tools", "tools"),
    "prompts": ("prompts/list", "prompts", "prompts"),
    "resources": ("resources/list", "resources", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates", "resources"),
}

MAX_PAGES = 1000

Fetch: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class _CachedList:
    """One list."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] | None = None
        self.fresh_until = 0.0
        self.version = 0
        """Counts what has made it stale: a change during a fetch is not missed."""
        self.lock = asyncio.Lock()


class Cache:
    """All lists of one server."""

    def __init__(self, fetch: Fetch, header_params: HeaderParams | None = None) -> None:
        self._fetch = fetch
        self._header_params = header_params
        self._parts: dict[Part, _CachedList] = {part: _CachedList() for part in PARTS}

    async def get(self, part: Part) -> list[dict[str, Any]]:
        """A list, from here if it still holds."""
        listed = self._parts[part]
        async with listed.lock:
            if listed.items is None or time.monotonic() >= listed.fresh_until:
                version = listed.version
                items, holds = await self._all_pages(part)
                if part == "tools" and self._header_params is not None:
                    items = self._header_params.read(items)
                listed.items = items
                listed.fresh_until = time.monotonic() + holds if listed.version == version else 0.0
            return listed.items

    def stale(self, capability: str | None = None) -> None:
        """What the server has of this capability has changed; without one, all of it may have."""
        for part, listed in self._parts.items():
            if capability in (None, PARTS[part][2]):
                listed.fresh_until = 0.0
                listed.version += 1

    async def _all_pages(self, part: Part) -> tuple[list[dict[str, Any]], float]:
        method, key, _ = PARTS[part]
        items: list[dict[str, Any]] = []
        holds = math.inf
        params: dict[str, Any] = {}
        seen: set[str] = set()
        while len(seen) < MAX_PAGES:
            page = await self._fetch(method, params)
            items += objects_in(page.get(key))
            if isinstance(page.get("ttlMs"), int | float):
                holds = min(holds, page["ttlMs"] / 1000)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
            params = {"cursor": cursor}
        return items, holds


log = logging.getLogger("midcall.client")

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds before a stream that has ended is opened again: at first, and at most."""

ACKNOWLEDGING = 5.0
"""Seconds that a server has to say that it will tell."""

NEVER = frozenset((METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST))
"""Errors of a server that has no subscriptions."""

Updated = Callable[[str], Any]
"""Gets the URI of a resource that has changed."""


class ServerChanges:
    """What one client listens to."""

    def __init__(self, owner: "Client", cache: Cache) -> None:
        self._owner = owner
        self._cache = cache
        self._handlers: dict[str, list[Updated]] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Called with `tools`, `prompts` or `resources` when such a list has changed."""
        self._task: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._stream: _ListenStream | None = None
        """What is listened to now, on a modern server."""
        self._waiting: list[asyncio.Future[None]] = []
        """Who wants to know when the next stream is heard, or cannot be."""

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        """Take a notification of the server."""
        match method.split("/"):
            case ["notifications", part, "list_changed"]:
                self._cache.stale(part)
                for watcher in self.on_change:
                    _call(watcher, part)
            case ["notifications", "resources", "updated"]:
                uri = str(params.get("uri"))
                for handler in tuple(self._handlers.get(uri, ())):
                    _call(handler, uri)

    async def add(self, uri: str, handler: Updated) -> None:
        """Call this whenever a resource changes. Raises `RemoteError` if the server cannot tell."""
        session = await self._owner.session()
        handlers = self._handlers.setdefault(uri, [])
        handlers.append(handler)
        try:
            if session.modern:
                await self._listen_for_sure()
            elif len(handlers) == 1:
                await session.request("resources/subscribe", _about(uri))
        except BaseException:
            handlers.remove(handler)
            if not handlers:
                self._handlers.pop(uri, None)
            raise

    async def remove(self, uri: str) -> None:
        """Hear of this resource no more."""
        if self._handlers.pop(uri, None) is None:
            return
        session = await self._owner.session()
        if session.modern:
            self._again.set()
        else:
            await session.request("resources/unsubscribe", _about(uri))

    async def reopened(self, session: ClientSession) -> None:
        """There is a new session: it knows nothing of what was subscribed."""
        if session.modern:
            self._again.set()
            return
        for uri in list(self._handlers):
            try:
                await session.request("resources/subscribe", _about(uri))
            except MidcallError as error:
                log.warning("cannot subscribe to %s again: %s", uri, error)

    async def listen(self) -> None:
        """Hear of changes on a modern server, from when this returns; or never, if it does not tell."""
        if self._task is None:
            await self._listen_anew()

    async def _listen_for_sure(self) -> None:
        await self._listen_anew()
        if self._stream is None or self._stream.ended.is_set():
            raise RemoteError("The server does not support subscriptions", rpc_code=METHOD_NOT_FOUND)

    async def _listen_anew(self) -> None:
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(heard)
        self._again.set()
        if self._task is None:
            self._task = self._owner.spawn(self._keep_listening())
            self._task.add_done_callback(self._stopped)
        await asyncio.wait((heard,), timeout=ACKNOWLEDGING)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._task = self._stream = None
        self._settle()

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def _keep_listening(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._again.clear()
            opened = time.monotonic()
            try:
                await self._listen_once(await self._owner.session())
            except MidcallError as error:
                log.debug("nothing is heard of changes: %s", error)
            if self._again.is_set():
                pause = FIRST_PAUSE
                continue
            self._stream = None
            if time.monotonic() - opened > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await _either(self._again.wait(), asyncio.sleep(pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen_once(self, session: ClientSession) -> None:
        """Have one stream, until it ends or something else is to be heard."""
        before, self._stream = self._stream, None
        wanted = self._filter(session)
        if wanted:
            opening = self._stream = _ListenStream(session, wanted)
            await _either(opening.acknowledged.wait(), opening.ended.wait(), asyncio.sleep(ACKNOWLEDGING))
            if before is None or before.ended.is_set():
                self._cache.stale()  # what has changed meanwhile was not heard
        if before is not None:
            before.close()  # not sooner, so that nothing is missed
        stream = self._stream
        if stream is not None and stream.never:
            stream = self._stream = None
        if stream is None or not stream.lost:
            self._settle()
        if stream is None:
            await self._again.wait()
        else:
            await _either(stream.ended.wait(), self._again.wait())
            if stream.ended.is_set():
                self._cache.stale()  # from now on changes are not heard

    def _filter(self, session: ClientSession) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        if not session.modern:
            return wanted
        for part in ("tools", "prompts", "resources"):
            capability = session.handshake.capabilities.get(part)
            if isinstance(capability, dict) and capability.get("listChanged"):
                wanted[f"{part}ListChanged"] = True
        if self._handlers:
            wanted["resourceSubscriptions"] = sorted(self._handlers)
        return wanted


class _ListenStream(Waiter):
    """One `subscriptions/listen`, until its end."""

    __slots__ = ("_id", "_session", "_uris", "acknowledged", "ended", "failure")

    def __init__(self, session: ClientSession, wanted: dict[str, Any]) -> None:
        self.acknowledged = asyncio.Event()
        self.ended = asyncio.Event()
        self.failure: MidcallError | None = None
        self._session = session
        self._uris: list[str] = wanted.get("resourceSubscriptions", [])
        params = to_json({"notifications": wanted})[1:-1]
        self._id = session.start(self, About("subscriptions/listen"), params)

    def close(self) -> None:
        self._session.cancel(self._id, "Something else is listened to")

    @property
    def never(self) -> bool:
        """Whether the server has no such thing."""
        return isinstance(self.failure, RemoteError) and self.failure.rpc_code in NEVER

    @property
    def lost(self) -> bool:
        """Whether it has ended with the line, and there may soon be another one."""
        return self.ended.is_set() and isinstance(self.failure, TransportLost | Unreachable)

    def answered(self, response: Envelope) -> None:
        try:
            result_of(response)
        except RemoteError as error:
            self.failed(error)
        else:
            self.ended.set()

    def failed(self, error: MidcallError) -> None:
        self.failure = error
        log.info("nothing is heard of changes: %s", error)
        self.ended.set()

    def _check(self, agreed: Any) -> None:
        """A server may agree to less than was asked for."""
        told = agreed.get("resourceSubscriptions") if isinstance(agreed, dict) else self._uris
        missing = [uri for uri in self._uris if not isinstance(told, list) or uri not in told]
        if missing:
            log.warning("the server does not tell of changes of %s", ", ".join(missing))

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        if method == "notifications/subscriptions/acknowledged":
            self._check(params.get("notifications"))
            self.acknowledged.set()
        elif method == "notifications/cancelled":
            self.close()
            self.ended.set()


def _about(uri: str) -> bytes:
    return to_json({"uri": uri})[1:-1]


def _call(handler: Callable[[str], Any], what: str) -> None:
    try:
        handler(what)
    except Exception:
        log.exception("a handler of changes failed")


async def _either(*waits: Any) -> None:
    """Wait for the first of these."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

"""Subscriptions: what a client hears of changes on a server.

A legacy server sends list changes by itself, and updates of resources to whoever has subscribed. A modern one
sends nothing that is not asked for: there one `subscriptions/listen` request is kept open, and sent anew when
what is to be heard has changed or its stream has ended.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import UNSET

from midcall.client.cache import Cache
from midcall.client.session import Session, Waiter
from midcall.client.wire import About
from midcall.errors import MidcallError
from midcall.items import to_json
from midcall.jsonrpc import Envelope

log = logging.getLogger("midcall.client")

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

Updated = Callable[[str], Any]
"""Gets the URI of a resource that has changed."""


class Owner(Protocol):
    """The client, as far as it is known here."""

    async def session(self) -> Session: ...
    def spawn(self, work: Any) -> asyncio.Task[None]: ...


class Subscriptions:
    """What one client listens to."""

    def __init__(self, owner: Owner, cache: Cache) -> None:
        self._owner = owner
        self._cache = cache
        self._handlers: dict[str, list[Updated]] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Called with `tools`, `prompts` or `resources` when such a list has changed."""
        self._listening: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._listens = False
        """Whether list changes are wanted of a modern server."""

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        """Take a notification of the server."""
        match method.split("/"):
            case ["notifications", part, "list_changed"]:
                self._cache.stale(part)
                for watcher in self.on_change:
                    watcher(part)
            case ["notifications", "resources", "updated"]:
                uri = params.get("uri")
                for handler in self._handlers.get(str(uri), ()):
                    handler(str(uri))

    async def add(self, uri: str, handler: Updated) -> None:
        """Call this whenever a resource changes."""
        handlers = self._handlers.setdefault(uri, [])
        handlers.append(handler)
        if len(handlers) > 1:
            return
        session = await self._owner.session()
        if session.modern:
            self.listen()
            self._again.set()
            return
        try:
            await session.request("resources/subscribe", to_json({"uri": uri})[1:-1])
        except MidcallError:
            del self._handlers[uri]
            raise

    async def remove(self, uri: str) -> None:
        """Hear of this resource no more."""
        if self._handlers.pop(uri, None) is None:
            return
        session = await self._owner.session()
        if session.modern:
            self._again.set()
        else:
            await session.request("resources/unsubscribe", to_json({"uri": uri})[1:-1])

    async def reopened(self, session: Session) -> None:
        """There is a new session: it knows nothing of what was subscribed."""
        if session.modern:
            self._again.set()
            return
        for uri in list(self._handlers):
            try:
                await session.request("resources/subscribe", to_json({"uri": uri})[1:-1])
            except MidcallError as error:
                log.warning("cannot subscribe to %s again: %s", uri, error)

    def listen(self) -> None:
        """Hear of changes, once there is anything to hear on a modern server."""
        if self._listening is None:
            self._listening = self._owner.spawn(self._keep_listening())

    async def _keep_listening(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._again.clear()
            try:
                session = await self._owner.session()
            except MidcallError:
                await asyncio.sleep(LONGEST_PAUSE)
                continue
            if not session.modern:
                self._listening = None
                return
            wanted = self._filter(session)
            if wanted:
                waiter = _Listening()
                id = session.start(
                    waiter, About("subscriptions/listen"), to_json({"notifications": wanted})[1:-1]
                )
                changed = asyncio.create_task(self._again.wait())
                try:
                    await asyncio.wait((changed, waiter.ended), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                    session.cancel(id, "What is listened to has changed")
                if waiter.refused:
                    self._listening = None
                    return
            else:
                await self._again.wait()
            if self._again.is_set():
                pause = FIRST_PAUSE
                continue
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            self._cache.stale()  # what has changed meanwhile was not heard

    def _filter(self, session: Session) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        for part in ("tools", "prompts", "resources"):
            capability = session.greeting.capabilities.get(part)
            if isinstance(capability, dict) and capability.get("listChanged"):
                wanted[f"{part}ListChanged"] = True
        if self._handlers:
            wanted["resourceSubscriptions"] = sorted(self._handlers)
        return wanted


class _Listening(Waiter):
    """Waits for the end of a subscription."""

    __slots__ = ("ended", "refused")

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refused = False

    def answered(self, response: Envelope) -> None:
        if response.error is not UNSET:
            self.refused = True
            log.info("the server has no subscriptions: %s", response.error.message)
        self._end()

    def failed(self, error: MidcallError) -> None:
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

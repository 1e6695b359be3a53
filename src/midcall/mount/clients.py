"""The clients of a mount: one for each principal, so that nobody is asked what another one's call asks.

A legacy server on stdio does not say which call a question belongs to; and whatever it remembers of a session
is for one caller only. A modern server does say, and remembers nothing: there one client is for all.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from midcall.client.client import Client, Options
from midcall.client.reconnect import STARTING
from midcall.client.rounds import Exchange
from midcall.client.server_requests import Answering
from midcall.client.session import ClientSession, Waiter
from midcall.client.targets import Target
from midcall.client.tool_call import ClientCall
from midcall.errors import MidcallError, TooManyCalls, Unreachable
from midcall.mcp.elicitation import ROOTS, SAMPLE
from midcall.mcp.request import TASKS
from midcall.questions import KINDS

MOST = 32
"""How many principals have a client of their own at once."""

IDLE = 300.0
"""Seconds after which a client is closed that nobody uses."""

_FORM = frozenset(("confirm", "prompt", "select", "form", "custom"))


class PassingOn(Answering):
    """Who answers a mounted server: whoever has made the call; a model or folders only if they are given."""

    def capabilities(self, *, modern: bool) -> dict[str, Any]:
        return self.capabilities_of(KINDS, modern=modern)

    def capabilities_of(self, kinds: frozenset[str], *, modern: bool) -> dict[str, Any]:
        """What is declared for a caller who can answer these kinds of question."""
        declared: dict[str, Any] = {}
        modes = [mode for mode, can in (("form", kinds & _FORM), ("url", "url" in kinds)) if can]
        if modes:
            declared["elicitation"] = {mode: {} for mode in modes}
        if "sample" in kinds or self._sample is not None:
            declared["sampling"] = {"tools": {}, "context": {}}
        if "roots" in kinds or self._roots is not None:
            declared["roots"] = {}
        if modern:
            declared["extensions"] = {TASKS: {}}
        return declared

    def answers(self, method: str) -> bool:
        """Whether this is answered here."""
        return (method == SAMPLE and self._sample is not None) or (
            method == ROOTS and self._roots is not None
        )


class MountClient(Client):
    """A client whose server's questions go to its calls."""

    def __init__(
        self,
        target: Target,
        answering: PassingOn,
        options: Options,
        opened: "Callable[[MountClient], None]",
    ) -> None:
        """`opened` is told when there is a new session."""
        super().__init__(target, answering, options)
        self._passing_on = answering
        self._tell_opened = opened
        self._heads: dict[tuple[frozenset[str], str | None], bytes] = {}
        self._down_since = self._began = time.monotonic()
        self._was_open = False
        self.used = self._began
        """When it was last used."""
        self._users: set[str | None] = set()

    def used_by(self, principal: str | None) -> None:
        """A call of somebody goes this way. Once they are two, nothing is guessed of whose something is."""
        if not self.shared:
            self._users.add(principal)
            self.shared = len(self._users) > 1

    def keep_open(self) -> None:
        self._began = time.monotonic()
        super().keep_open()

    @property
    def live(self) -> ClientSession | None:
        """The session, if there is one now."""
        session = self._reconnect.current
        return session if session is not None and session.ended is None else None

    @property
    def starting(self) -> bool:
        """Whether it is on its way to its first session."""
        return self.failure is None and not self._was_open

    @property
    def idle(self) -> bool:
        """Whether nobody waits for it, nor for what is under way."""
        return not self.starting and not any(self.exchanges)

    @property
    def has_headers(self) -> bool:
        return self._header_params is not None

    def headers_of(self, tool: str, arguments: Any) -> tuple[tuple[str, str], ...]:
        """The arguments of a tool that go into headers."""
        return self._headers(tool, arguments)

    @property
    def exchanges(self) -> Iterator[Exchange]:
        """What is under way of calls that are passed on, the newest last."""
        session = self.live
        for one in session.waiting if session is not None else ():
            if isinstance(one, Exchange) and not isinstance(one.owner, ClientCall):
                yield one

    async def reach(self, patience: float) -> ClientSession:
        """The session, for which it waits while the server is not away for longer than this, or starts.

        Raises `Unreachable`.
        """
        session = self.live
        if session is not None:
            return session
        if self.starting:
            left = max(patience, self._began + STARTING - time.monotonic())
        else:
            left = self._down_since + patience - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.0)):
                return await self.session()
        except TimeoutError:
            raise Unreachable(str(self.failure or "it has not answered yet")) from None

    def head(self, session: ClientSession, kinds: frozenset[str], log_level: str | None) -> bytes | None:
        """The start of `_meta` for a caller who can answer these kinds; a legacy server needs none."""
        if not session.modern:
            return None
        head = self._heads.get((kinds, log_level))
        if head is None:
            declared = self._passing_on.capabilities_of(kinds, modern=True)
            head = session.head(declared, self._options.log_level or log_level)
            self._heads[kinds, log_level] = head
        return head

    # --- as a client -------------------------------------------------------------------------

    async def _opened(self, session: ClientSession) -> None:
        self._heads.clear()
        self._was_open = True
        await super()._opened(session)
        self._tell_opened(self)

    def lost(self, session: ClientSession, error: MidcallError) -> None:
        if session is self._reconnect.current:
            self._down_since = time.monotonic()
        super().lost(session, error)

    async def asked(self, method: str, params: dict[str, Any], related: Waiter | None) -> dict[str, Any]:
        exchange = related if isinstance(related, Exchange) else self._newest()
        if exchange is None or self._passing_on.answers(method) or isinstance(exchange.owner, ClientCall):
            return await self._passing_on.asked(method, params)
        with exchange.asking(method, params) as question:
            return await question.answer

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        guessed = method == "notifications/message" and not self.shared
        exchange = self._newest() if guessed else None
        if exchange is not None:
            exchange.noticed(method, params)
        else:
            super().noticed(method, params)

    def _newest(self) -> Exchange | None:
        """The call that something belongs to, where the server does not say: all are of one principal."""
        return next(reversed(list(self.exchanges)), None)


class Clients:
    """All clients of a mount."""

    def __init__(self, make: Callable[[], MountClient]) -> None:
        self._make = make
        self.base = make()
        """Of callers without a name; it also has the lists."""
        self._named: dict[str, MountClient] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[MountClient]:
        yield self.base
        yield from list(self._named.values())

    def live(self, principal: str | None) -> MountClient | None:
        """The client of a principal, if it has a session now."""
        client = self.base
        session = client.live
        if principal is not None and (session is None or not session.modern):
            found = self._named.get(principal)
            if found is None:
                return None
            found.used = time.monotonic()
            client, session = found, found.live
        if session is None:
            return None
        client.used_by(principal)
        return client

    async def reach(self, principal: str | None, patience: float) -> MountClient:
        """The client of a principal, connected. Raises `Unreachable` or `TooManyCalls`."""
        client = self.live(principal)
        if client is not None:
            return client
        await self.base.reach(patience)
        client = self.base
        if principal is not None and not client.modern:
            client = self._named.get(principal) or self._add(principal)
            client.used = time.monotonic()
            await client.reach(patience)
            client.used = time.monotonic()
        client.used_by(principal)
        return client

    def _add(self, principal: str) -> MountClient:
        if len(self._named) >= MOST:
            self._make_room()
        client = self._named[principal] = self._make()
        client.keep_open()
        return client

    def _make_room(self) -> None:
        idle = [(client.used, name) for name, client in self._named.items() if client.idle]
        if not idle:
            raise TooManyCalls(f"More than {MOST} callers use {self.base.label} at once; try again later")
        self._close(min(idle)[1])

    def close_idle(self) -> None:
        """Close those that nobody has used for a while."""
        now = time.monotonic()
        for name, client in list(self._named.items()):
            if now - client.used > IDLE and client.idle:
                self._close(name)

    def _close(self, principal: str) -> None:
        task = asyncio.get_running_loop().create_task(self._named.pop(principal).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Let go of the server."""
        named, self._named = self._named, {}
        await asyncio.gather(self.base.close(), *(client.close() for client in named.values()))
        if self._closing:
            await asyncio.wait(self._closing)

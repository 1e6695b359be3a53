"""A session that stays open: a lost one is opened again, with growing pauses.

What a server was found to speak is remembered: it is asked again only if it does not answer that any more.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from midcall.client.handshake import Era
from midcall.client.session import ClientSession
from midcall.client.targets import Target
from midcall.client.wire import Unusable, Wire
from midcall.errors import LoginFailed, MidcallError, RemoteError, TimedOut, TransportLost, Unreachable

if TYPE_CHECKING:
    from midcall.client.client import Client, Options

log = logging.getLogger("midcall.client")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
"""Seconds between two tries to connect: at first, and at most."""

STABLE = 10.0
"""Seconds after which a session that is lost is not taken for one of a server that ends again and again."""

STARTING = 60.0
"""Seconds that a server has to start and to say what it speaks; some are installed when first started."""


class Reconnect:
    """Has the session of one client."""

    def __init__(
        self,
        target: Target,
        host: "Client",
        opened: Callable[[ClientSession], Awaitable[None]],
        options: "Options",
    ) -> None:
        """`opened` is awaited after each opening."""
        self._target = target
        self._host = host
        self._after_opening = opened
        self._options = options
        self._era = options.era
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Set when a session is opened, or no more will be."""
        self._lost = asyncio.Event()
        self.current: ClientSession | None = None
        self.failure: MidcallError | None = None
        """Why there is no session, or why there was none last time."""

    @property
    def connected(self) -> bool:
        """Whether there is a session now."""
        return self.current is not None and self.current.ended is None

    async def session(self) -> ClientSession:
        """The session that is open now, or soon. Raises `Unreachable`."""
        if self.current is not None and self.current.ended is None:
            return self.current
        try:
            async with asyncio.timeout(self._options.give_up_after):
                while self._task is not None:
                    if self.current is not None and self.current.ended is None:
                        return self.current
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            why = f": {self.failure}" if self.failure is not None else ""
            raise Unreachable(f"{self._target.label} cannot be reached{why}") from None
        raise Unreachable("This client is closed")

    async def open(self) -> None:
        """Connect, and stay connected until `close`.

        Raises what the first try fails with: `Unreachable`, `LoginFailed`, or the server's `RemoteError`.
        """
        try:
            await self._connect()
        except BaseException:
            await self.close()
            raise
        self.keep_open()

    def keep_open(self) -> None:
        """Connect, as often as it takes, and stay connected until `close`."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_open())

    async def close(self) -> None:
        """Let go of the server, even if nobody waits for that."""
        task, self._task = self._task, None
        session, self.current = self.current, None
        self._changed.set()
        try:
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        finally:
            if session is not None:
                await session.close()

    def lost(self, session: ClientSession, error: MidcallError) -> None:
        """The line of a session is gone."""
        if session is self.current:
            self.failure = error
            self._lost.set()

    async def _keep_open(self) -> None:
        pause = FIRST_PAUSE
        while True:
            if self.current is None:
                try:
                    await self._connect()
                except MidcallError as error:
                    if isinstance(error, LoginFailed) and not error.recoverable:
                        await asyncio.Event().wait()  # nobody is asked to log in again and again
                    log.info("%s; trying again in %.1f s at most", error, pause)
                    pause = await _pause(pause)
                    continue
            opened = time.monotonic()
            await self._lost.wait()
            if time.monotonic() - opened > STABLE:
                pause = FIRST_PAUSE
            session, self.current = self.current, None
            if session is not None:
                await session.close()
            pause = await _pause(pause)

    async def _connect(self) -> None:
        """Try once to have a session."""
        try:
            session = await self._try_eras()
        except MidcallError as error:
            self._era = self._options.era  # it may have become another server
            self.failure = error
            refused = isinstance(error, RemoteError) and not isinstance(error, Unusable)
            if refused or isinstance(error, Unreachable | LoginFailed):
                raise
            raise Unreachable(f"{self._target.label} cannot be used: {error}") from None
        self._era = "modern" if session.modern else "legacy"
        self._lost.clear()
        self.current = session
        if session.ended is not None:
            self._lost.set()
        self._changed.set()
        await self._after_opening(session)

    async def _try_eras(self) -> ClientSession:
        try:
            return await self._new_session(self._era)
        except TransportLost:
            if self._era != "auto":
                raise
            # Some servers end at a handshake that they do not know.
            return await self._new_session("legacy")

    async def _new_session(self, era: Era) -> ClientSession:
        wire = self._target.wire()
        session = ClientSession(wire, self._host, log_level=self._options.log_level)
        opening = asyncio.get_running_loop().create_task(session.open(era, self._options.revision))
        try:
            await self._in_time(opening, wire)
        except BaseException:
            opening.cancel()
            try:
                await asyncio.wait((opening,))
            finally:
                await session.close()
            raise
        return session

    async def _in_time(self, opening: asyncio.Task[None], wire: Wire) -> None:
        """Wait for the opening; the time in which a person logs in does not count."""
        left = STARTING
        while left > 0:
            await asyncio.wait((opening,), timeout=min(left, 1.0))
            if opening.done():
                opening.result()
                return
            left = STARTING if wire.waits_for_person else left - 1.0
        raise TimedOut(f"{self._target.label}: no answer within {STARTING:g} seconds")


async def _pause(seconds: float) -> float:
    """Wait, never quite as long as others do; gives how long to wait next time."""
    await asyncio.sleep(seconds * random.uniform(0.5, 1.0))  # noqa: S311  no secret
    return min(seconds * 2, LONGEST_PAUSE)

"""The one session that a worker keeps for itself: its sign of life, and where it hears of outcomes.

The session holds an advisory lock under the worker's number, which PostgreSQL lets go of when the session
ends, however it ends. So others can tell at once that a worker is gone. While the worker runs something, it
also writes the time now and then: one that stands still keeps its lock, but not its lease. `NOTIFY` says
which calls have an outcome that somebody waits for.

If the session breaks, it is made again, under the same number; unless others have cleared the worker away
meanwhile, who then goes on under a new name.
"""

import asyncio
import contextlib
import logging
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import asyncpg

from midcall.errors import JournalError
from midcall.journal.postgres.reach import BROKEN, CLOSING, CONNECTING, explain
from midcall.journal.postgres.sql import Statements
from midcall.logs import Trouble

if TYPE_CHECKING:
    Session = asyncpg.Connection[asyncpg.Record]

log = logging.getLogger("midcall.journal")

_NOT_PREPARED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)

POOLED = (
    "This PostgreSQL is behind a pooler that deals out transactions (as PgBouncer's pool_mode=transaction):"
    " no session of its own is left to a worker, for its sign of life and for NOTIFY. Give the journal the"
    " address of the server itself, or both: `direct=` for the one session that must be its own"
)


class Line:
    """The session of a worker, and what is known of the worker by it."""

    def __init__(
        self,
        name: str,
        dsn: str,
        sql: Statements,
        lease: float,
        *,
        prepare: "Callable[[Session], Awaitable[None]]",
        busy: Callable[[], bool],
        heard: Callable[[str | None], None],
        posted: Callable[[], None],
        renamed: Callable[[str], None],
    ) -> None:
        self.name = name
        self.number = 0
        """The worker's number, under which it owns calls."""
        self._dsn = dsn
        self._sql = sql
        self._lease = lease
        self._prepare = prepare
        """Makes the tables."""
        self._busy = busy
        """Whether this worker runs anything."""
        self._heard = heard
        """Told which call has an outcome; or nothing, when it may have been any."""
        self._posted = posted
        """Told that something is posted to this worker, or may be."""
        self._renamed = renamed
        self._session: Session | None = None
        self._broken = asyncio.Event()
        self._locked = False
        self._since: float | None = None
        self._trouble = Trouble(log, "reach PostgreSQL")

    @property
    def trusted(self) -> bool:
        """Whether a worker without a lock is gone: not while others may still be about to get theirs back."""
        if self._session is None or self._broken.is_set():
            return False
        return self._since is None or asyncio.get_running_loop().time() - self._since > self._lease

    async def open(self, patience: float) -> None:
        """Get the session, for the first time, and wait for the database a while. Raises `JournalError`."""
        until = asyncio.get_running_loop().time() + patience
        while True:
            try:
                await self._connect()
            except BROKEN as error:
                away = isinstance(error, OSError | asyncpg.CannotConnectNowError)
                if not away or asyncio.get_running_loop().time() > until:
                    raise explain(error) from error
            else:
                return
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Be gone."""
        session, self._session = self._session, None
        if session is None:
            return
        session.remove_termination_listener(self._on_end)
        with contextlib.suppress(*BROKEN):
            async with asyncio.timeout(CLOSING):
                await session.execute(self._sql.leave, self.number)
                await session.close()
        session.terminate()

    async def keep(self) -> None:
        """Look after the session, until this is cancelled."""
        pause = 0.02
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease / 3):
                    await self._broken.wait()
            try:
                async with asyncio.timeout(max(self._lease / 3, CONNECTING)):
                    if self._broken.is_set():
                        await self._connect()
                        self._since = asyncio.get_running_loop().time()
                        self._heard(None)
                        self._posted()
                    else:
                        await self._beat()
                pause = 0.02
                self._trouble.ends()
            except (*BROKEN, JournalError) as error:
                self._trouble.begins(error if isinstance(error, JournalError) else explain(error))
                self._on_end()
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)

    # --- inside ------------------------------------------------------------------------------

    async def _connect(self) -> None:
        if self._session is not None:
            self._session.terminate()
        settings = {"application_name": "midcall"}
        session = await asyncpg.connect(
            self._dsn, timeout=CONNECTING, statement_cache_size=0, server_settings=settings
        )
        try:
            await self._check_own(session)
            await self._prepare(session)
            self._locked = False
            await self._sign(session)
            await session.add_listener(self._sql.channel, self._on_outcome)
            await session.add_listener(f"{self._sql.posts}{self.number}", self._on_post)
            session.add_termination_listener(self._on_end)
        except BaseException:
            session.terminate()
            raise
        self._session = session
        self._broken.clear()

    async def _sign(self, session: "Session") -> None:
        """Take the worker's lock. One that broke may hold it a little longer, and is our sign meanwhile."""
        if self.number:
            self._locked = await session.fetchval(self._sql.lock, self.number)
            if await session.fetchval(self._sql.beat, self.number):
                return
        name = worker_name() if self.number else self.name
        number = await session.fetchval(self._sql.register, name)
        again, self.name, self.number = self.number != 0, name, number
        if again:
            self._renamed(name)
        self._locked = await session.fetchval(self._sql.lock, self.number)

    async def _beat(self) -> None:
        session = self._session
        if session is None or session.is_closed():
            self._on_end()
        elif not self._locked:
            number = self.number
            await self._sign(session)
            if self.number != number:
                self._on_end()  # a new session listens under the new number
        elif self._busy():
            self._locked = await session.fetchval(self._sql.beat, self.number) is not None
        else:
            await session.execute("SELECT")

    async def _check_own(self, session: "Session") -> None:
        if await self._is_pooled(session):
            error = JournalError(POOLED)
            error.recoverable = False
            raise error

    async def _is_pooled(self, session: "Session") -> bool:
        """Whether what is said on one session may reach another one on the server."""
        ask = "SELECT pg_backend_pid()"
        try:
            pid = await session.fetchval(ask)
            if pid == session.get_server_pid():
                return False
            for _ in range(3):  # there is something in between; does it keep sessions apart?
                other = await asyncpg.connect(self._dsn, timeout=CONNECTING, statement_cache_size=0)
                try:
                    if await other.fetchval(ask) == pid or await session.fetchval(ask) != pid:
                        return True
                finally:
                    other.terminate()
        except _NOT_PREPARED:
            return True
        return False

    def _on_outcome(self, _session: Any, _pid: int, _channel: str, call_id: object) -> None:
        self._heard(str(call_id))

    def _on_post(self, _session: Any, _pid: int, _channel: str, _payload: object) -> None:
        self._posted()

    def _on_end(self, _session: Any = None) -> None:
        self._broken.set()


def worker_name() -> str:
    """Unlike that of any other worker that ever was (see `contract.is_worker_name`)."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())[:60]
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"

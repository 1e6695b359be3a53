"""The workers that share a journal in PostgreSQL: who is there, what has come to an outcome, and messages.

A worker keeps one session for itself (`WorkerSession`). The session holds an advisory lock under the worker's
number, which PostgreSQL lets go of when the session ends, however it ends. So others can tell at once that
a worker is gone. While the worker runs something, it also writes the time now and then: one that stands
still keeps its lock, but not its lease. `NOTIFY` says which calls have an outcome that somebody waits for.

If the session breaks, it is made again, under the same number; unless others have cleared the worker away
meanwhile, who then goes on under a new name.

What workers post to each other (`Posts`) are rows that stay until they are read, and a `NOTIFY` for each
reader. A sender counts what it posts, and the rows of one sender are read in that order. So a row that is
written or read twice, because the line broke in between, is delivered once.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
from msgspec import Struct

from midcall.errors import JournalError
from midcall.journal.postgres.reach import BROKEN, CLOSING, CONNECTING, Reach, explain
from midcall.journal.postgres.sql import Statements
from midcall.journal.seal import Values
from midcall.logs import Trouble

if TYPE_CHECKING:
    from midcall.journal.postgres.reach import Connection

    Session = asyncpg.Connection[asyncpg.Record]

log = logging.getLogger("midcall.journal")

_NOT_PREPARED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)

POOLED = (
    "This PostgreSQL is behind a pooler that deals out transactions (as PgBouncer's pool_mode=transaction):"
    " no session of its own is left to a worker, for its sign of life and for NOTIFY. Give the journal the"
    " address of the server itself, or both: `direct=` for the one session that must be its own"
)


class WorkerSession:
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


class Post(Struct, frozen=True):
    worker: str
    serial: int
    message: bytes


class Posts:
    """What this worker posts, and what is posted to it."""

    def __init__(self, reach: Reach, sql: Statements, values: Values, line: WorkerSession) -> None:
        self._reach = reach
        self._sql = sql
        self._values = values
        self._line = line
        self._serials = itertools.count(1)
        self._arrived = asyncio.Event()
        self._read: dict[int, int] = {}
        """The last that was delivered, of each sender."""

    async def post(self, worker: str, message: bytes) -> bool:
        """Whether the reader is there."""
        letter = Post(worker, next(self._serials), self._values.close(message, "post", worker))
        there: bool = await self._reach.together(
            self._send, letter, key=f"{letter.serial:020}", size=len(message)
        )
        return there

    async def _send(
        self, connection: "Connection", letters: Sequence[Post], again: bool
    ) -> list[bool | JournalError]:
        columns = zip(*((one.worker, one.serial, one.message) for one in letters), strict=True)
        rows = await connection.fetch(self._sql.post, *columns, self._line.number, self._line.trusted)
        there = {name for name, _ in rows}
        return [letter.worker in there for letter in letters]

    def arrived(self) -> None:
        """There is something to read, or may be."""
        self._arrived.set()

    async def deliver(self, take: Callable[[bytes], None]) -> None:
        """Give what is posted to this worker to `take`, until this is cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                while await self._deliver(take):
                    pass
            except JournalError:
                await asyncio.sleep(0.5)
                self._arrived.set()

    async def _deliver(self, take: Callable[[bytes], None]) -> bool:
        """Whether there was anything."""
        number, name, read = self._line.number, self._line.name, dict(self._read)
        rows = await self._reach.run(
            lambda connection, _: connection.fetch(
                self._sql.read_posts, number, list(read), list(read.values())
            )
        )
        fresh = False
        for sender, serial, closed in rows:
            if serial > self._read.get(sender, 0):
                self._read[sender] = serial
                fresh = True
                take(self._values.open(closed, "post", name))
        return fresh


def worker_name() -> str:
    """Unlike that of any other worker that ever was (see `contract.is_worker_name`)."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())[:60]
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"

"""Conversations in an SQLite file, beside the journal of the same kind.

One thread owns the connection; what it does is short. What is to be written while it writes is written
together next, in one transaction: a disk takes as long for one as for a hundred. A second process on the same
file works: SQLite's own locks order them, and the version of a conversation tells who was second.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from midcall.chat.conversation import Conversation
from midcall.chat.store import KEEP_RUNS, MAX_LISTED, Conflict, Listed, RunState
from midcall.errors import JournalError
from midcall.journal.private_files import warn_if_exposed
from midcall.journal.trouble import trouble

T = TypeVar("T")

BUSY = 10.0
"""Seconds that another process may hold the file."""

VERSION = 1
"""Of the tables. In the first one an id was one person's alone."""

_CONVERSATIONS = """
CREATE TABLE conversations (
    id TEXT NOT NULL, principal TEXT, title TEXT NOT NULL, updated REAL NOT NULL,
    version INTEGER NOT NULL, waiting INTEGER NOT NULL, run TEXT, body BLOB NOT NULL
)
"""
_SCHEMA = """
CREATE UNIQUE INDEX IF NOT EXISTS by_id ON conversations (id, ifnull(principal, 0));
CREATE INDEX IF NOT EXISTS by_person ON conversations (principal, updated DESC);
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, conversation TEXT NOT NULL, principal TEXT, ended INTEGER NOT NULL,
    seen REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lines (
    run TEXT NOT NULL, lsn INTEGER NOT NULL, line BLOB NOT NULL, PRIMARY KEY (run, lsn)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS to_stop (run TEXT PRIMARY KEY) WITHOUT ROWID;
"""

_decode = msgspec.json.Decoder(Conversation).decode


class _Work(NamedTuple):
    """Something that is to be done with the connection."""

    do: Callable[[sqlite3.Connection], Any]
    writes: bool
    result: "asyncio.Future[Any]"


class SqliteStore:
    """Keeps conversations in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._waiting: list[_Work] = []
        self._working: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Make it ready. What fails may be tried again."""
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "midcall-chat")
        if self._connection is None:
            self._connection = await self._in_thread(self._opened)

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):  # nobody else may read it; SQLite's files beside it follow
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        warn_if_exposed(self._path)
        connection = sqlite3.connect(self._path, timeout=BUSY, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _bring_up_to_date(connection)
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        while self._working is not None:
            await asyncio.wait((self._working,))
        thread, self._thread = self._thread, None
        connection, self._connection = self._connection, None
        if thread is not None:
            if connection is not None:
                await asyncio.get_running_loop().run_in_executor(thread, connection.close)
            thread.shutdown()

    async def load(self, id: str, principal: str | None) -> Conversation | None:
        def read(connection: sqlite3.Connection) -> Conversation | None:
            row = connection.execute(
                "SELECT body FROM conversations WHERE id = ? AND principal IS ?", (id, principal)
            ).fetchone()
            return None if row is None else _decode(row[0])

        return await self._read(read)

    async def save(self, conversation: Conversation) -> None:
        known, conversation.version = conversation.version, conversation.version + 1
        body = msgspec.json.encode(conversation)
        values = (
            conversation.title,
            conversation.updated,
            conversation.version,
            bool(conversation.pending),
            conversation.run,
            body,
        )

        def write(connection: sqlite3.Connection) -> int:
            if known:
                return connection.execute(
                    "UPDATE conversations SET title = ?, updated = ?, version = ?, waiting = ?, run = ?, "
                    "body = ? WHERE id = ? AND version = ? AND principal IS ?",
                    (*values, conversation.id, known, conversation.principal),
                ).rowcount
            return connection.execute(
                "INSERT INTO conversations (title, updated, version, waiting, run, body, id, principal) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (*values, conversation.id, conversation.principal),
            ).rowcount

        try:
            written = await self._write(write)
        except JournalError:
            conversation.version = known
            raise
        if not written:
            conversation.version = known
            raise Conflict("The conversation was changed meanwhile")

    async def delete(self, id: str, principal: str | None) -> bool:
        def remove(connection: sqlite3.Connection) -> bool:
            found = connection.execute(
                "DELETE FROM conversations WHERE id = ? AND principal IS ?", (id, principal)
            )
            return found.rowcount > 0

        return await self._write(remove)

    async def list(self, principal: str | None) -> Sequence[Listed]:
        def read(connection: sqlite3.Connection) -> list[Listed]:
            rows = connection.execute(
                "SELECT id, title, updated, waiting, run FROM conversations WHERE principal IS ? "
                "ORDER BY updated DESC LIMIT ?",
                (principal, MAX_LISTED),
            )
            return [Listed(id, title, at, bool(waits), run is not None) for id, title, at, waits, run in rows]

        return await self._read(read)

    async def held(self, principal: str) -> tuple[int, int]:
        def read(connection: sqlite3.Connection) -> tuple[int, int]:
            found = "SELECT count(*), coalesce(sum(length(body)), 0) FROM conversations WHERE principal = ?"
            count, size = connection.execute(found, (principal,)).fetchone()
            return count, size

        return await self._read(read)

    # --- runs --------------------------------------------------------------------------------

    async def begin_run(self, run: str, conversation_id: str, principal: str | None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO runs VALUES (?, ?, ?, 0, ?)", (run, conversation_id, principal, time.time())
            )

        await self._write(write)

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        def write(connection: sqlite3.Connection) -> bool:
            connection.executemany(
                "INSERT INTO lines SELECT ?, ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM lines WHERE run = ? AND lsn = ? AND line = ?)",
                [2 * (run, number, line) for number, line in enumerate(lines, first)],
            )
            connection.execute(
                "UPDATE runs SET ended = max(ended, ?), seen = ? WHERE id = ?", (ended, time.time(), run)
            )
            return connection.execute("SELECT 1 FROM to_stop WHERE run = ?", (run,)).fetchone() is not None

        try:
            return await self._write(write)
        except JournalError as error:
            if isinstance(error.__cause__, sqlite3.IntegrityError):
                raise Conflict("The run has other lines") from None
            raise

    async def stop_run(self, run: str) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO to_stop VALUES (?) ON CONFLICT DO NOTHING", (run,))

        await self._write(write)

    async def run(self, run: str) -> RunState | None:
        def read(connection: sqlite3.Connection) -> RunState | None:
            row = connection.execute(
                "SELECT conversation, principal, ended, seen, "
                "(SELECT coalesce(max(lsn), 0) FROM lines WHERE run = runs.id) FROM runs WHERE id = ?",
                (run,),
            ).fetchone()
            if row is None:
                return None
            conversation, principal, ended, seen, lines = row
            return RunState(run, conversation, principal, lines, bool(ended), seen, time.time())

        return await self._read(read)

    async def lines(self, run: str, after: int) -> Sequence[bytes]:
        def read(connection: sqlite3.Connection) -> list[bytes]:
            rows = connection.execute(
                "SELECT line FROM lines WHERE run = ? AND lsn > ? ORDER BY lsn", (run, after)
            )
            return [line for (line,) in rows]

        return await self._read(read)

    async def sweep(self) -> None:
        def remove(connection: sqlite3.Connection) -> None:
            before = time.time() - KEEP_RUNS
            connection.execute(
                "DELETE FROM lines WHERE run IN (SELECT id FROM runs WHERE seen < ? LIMIT 1000)", (before,)
            )
            connection.execute(
                "DELETE FROM runs WHERE seen < ? AND NOT EXISTS (SELECT 1 FROM lines WHERE run = runs.id)",
                (before,),
            )
            connection.execute("DELETE FROM to_stop WHERE run NOT IN (SELECT id FROM runs)")

        await self._write(remove)

    # --- the connection ----------------------------------------------------------------------

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._do(work, writes=False)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._do(work, writes=True)

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        """Do something with the connection. Raises `JournalError` for whatever the file has against it."""
        if self._connection is None:
            raise JournalError("The conversations are not open")
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Work(work, writes, result))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        try:
            return await result
        except sqlite3.IntegrityError as error:
            raise JournalError("There is something else already") from error
        except (sqlite3.Error, OSError) as error:
            raise trouble("The conversations cannot be used", self._path, error) from error

    async def _work(self) -> None:
        """Do what there is to do, and meanwhile let more of it come together."""
        connection = self._connection
        try:
            while self._waiting and connection is not None:
                together, self._waiting = self._waiting, []
                try:
                    outcomes = await self._in_thread(functools.partial(_done, connection, together))
                except Exception as error:  # noqa: BLE001  whatever it is, who waits must be told
                    outcomes = [error] * len(together)
                for work, outcome in zip(together, outcomes, strict=True):
                    if work.result.done():
                        continue  # nobody waits for it any more
                    if isinstance(outcome, Exception):
                        work.result.set_exception(outcome)
                    else:
                        work.result.set_result(outcome)
        finally:
            self._working = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as error:
            raise trouble("The conversations cannot be used", self._path, error) from error


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make the table of conversations, or make it anew with what is in it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version < VERSION:
            old = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'conversations'").fetchone()
            if old:
                connection.execute("ALTER TABLE conversations RENAME TO before")
            connection.execute(_CONVERSATIONS)
            if old:
                connection.execute("INSERT INTO conversations SELECT * FROM before")
                connection.execute("DROP TABLE before")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _done(connection: sqlite3.Connection, together: Sequence[_Work]) -> list[Any]:
    """What came of each. Those that write do so in one transaction, in which each stands or falls alone."""
    writes = any(work.writes for work in together)
    if not writes:
        return [_attempted(connection, work) for work in together]
    connection.execute("BEGIN IMMEDIATE")
    try:
        outcomes = []
        for work in together:
            connection.execute("SAVEPOINT one")
            outcome = _attempted(connection, work)
            if isinstance(outcome, Exception):
                connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
            outcomes.append(outcome)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise
    return outcomes


def _attempted(connection: sqlite3.Connection, work: _Work) -> Any:
    try:
        return work.do(connection)
    except Exception as error:  # noqa: BLE001  it is raised where it was asked for
        return error

"""The file of an SQLite journal: to open it, bring it up to date, and say clearly what is wrong with it.

Nothing here knows what a call is, beyond the tables. What goes wrong is a `JournalError` that says what to
do, and not where the file is (see `trouble`); a file that is damaged, or is something else, is never replaced
or written to.
"""

import asyncio
import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from midcall.errors import JournalError, MidcallError
from midcall.journal.commit import CommitThread, StoreAway
from midcall.journal.files import PAUSE, WriteTurn, keep_private
from midcall.journal.trouble import trouble

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="OnDatabase")
Work: TypeAlias = Callable[[sqlite3.Connection], Any]

APPLICATION = 0x6D696463
"""`midc`: tells a journal from other SQLite files."""

CHECKED = 64 * 1024 * 1024
"""Files up to this size are checked whenever they are opened; it takes a few milliseconds a megabyte."""

CHAT_FILE = "chat file"
"""The secret that says how far the journal is with the file that conversations once had (see `takeover`)."""

SYNC_AFTER = 0.05
"""Seconds after which what was written at once is brought to the disk, if nothing else has done so."""

NEW, FROM_BEFORE = b"new", b"old"
"""It was there when the journal was made, or brought to the format that has conversations."""

MIGRATIONS = (
    # `calls` is what changes often, and small; `parts` is written once. The numbers `n` keep what is new
    # together, however random the ids are, so that the pages that a commit touches are few. Every index is
    # as small as the question that it answers, since each transition must keep it up.
    """
    CREATE TABLE calls (
        n INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        principal TEXT,
        idempotency_key TEXT,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        expires REAL NOT NULL,
        status TEXT NOT NULL,
        segment INTEGER NOT NULL,
        wake REAL,
        questions BLOB NOT NULL,
        fence INTEGER NOT NULL,
        owner TEXT,
        claims INTEGER NOT NULL
    );
    CREATE INDEX calls_by_status ON calls (status, created);
    CREATE INDEX calls_by_expiry ON calls (expires);
    CREATE INDEX calls_to_wake ON calls (wake) WHERE status = 'waiting' AND wake IS NOT NULL;
    CREATE INDEX calls_by_key ON calls (idempotency_key, principal) WHERE idempotency_key IS NOT NULL;
    CREATE INDEX calls_by_principal ON calls (principal, created) WHERE principal IS NOT NULL;
    CREATE TABLE parts (
        call INTEGER NOT NULL,
        kind INTEGER NOT NULL,    -- 0 arguments and context, 1 entries, 2 the outcome of a segment
        number INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (call, kind, number)
    ) WITHOUT ROWID;
    CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    """,
    # The lines of a run are kept as they are written, several in a row of the table; `first` is the number of
    # the first of them. When a run was last heard of changes often, and has no index.
    """
    CREATE TABLE conversations (
        id TEXT NOT NULL,
        principal TEXT,
        version INTEGER NOT NULL,
        updated REAL NOT NULL,
        waiting INTEGER NOT NULL,
        run TEXT,
        title BLOB NOT NULL,
        body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX conversations_by_id ON conversations (id, ifnull(principal, 0));
    CREATE INDEX conversations_by_principal ON conversations (principal, updated);
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        conversation TEXT NOT NULL,
        principal TEXT,
        lines INTEGER NOT NULL,
        ended INTEGER NOT NULL,
        stop INTEGER NOT NULL,
        begun REAL NOT NULL,
        seen REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX runs_by_age ON runs (begun);
    CREATE TABLE lines (
        run TEXT NOT NULL,
        first INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (run, first)
    ) WITHOUT ROWID;
    """,
    # `number` counts the nodes of a tree from 0, the root, without gaps; a parent has a smaller one than its
    # children. So a path goes down in it, and whatever is read in its order has parents first.
    """
    CREATE TABLE trees (
        n INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        principal TEXT,
        kind TEXT NOT NULL,
        name TEXT,
        root TEXT NOT NULL,
        state TEXT NOT NULL,      -- 'purged' while its nodes are being deleted: nobody finds it any more
        due REAL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        version INTEGER NOT NULL,
        nodes INTEGER NOT NULL,
        size INTEGER NOT NULL,
        metadata BLOB NOT NULL,
        note BLOB NOT NULL
    );
    CREATE UNIQUE INDEX trees_by_name ON trees (kind, name, ifnull(principal, 0)) WHERE name IS NOT NULL;
    CREATE INDEX trees_by_principal ON trees (principal);
    CREATE INDEX trees_due ON trees (due) WHERE due IS NOT NULL;
    CREATE TABLE tree_owners (
        tree INTEGER NOT NULL,
        owner TEXT NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (tree, owner)
    ) WITHOUT ROWID;
    CREATE TABLE nodes (
        tree INTEGER NOT NULL,
        number INTEGER NOT NULL,
        parent INTEGER,
        external INTEGER NOT NULL,
        created REAL NOT NULL,
        id TEXT NOT NULL,
        body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX nodes_by_number ON nodes (tree, number);
    CREATE UNIQUE INDEX nodes_by_id ON nodes (tree, id);
    CREATE INDEX nodes_by_parent ON nodes (tree, parent, number, id);
    """,
    # Few calls wait for somebody else than their caller, so there is an index of just those.
    """
    ALTER TABLE calls ADD COLUMN addressed INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX calls_addressed ON calls (created) WHERE addressed = 1;
    CREATE TABLE notices (
        id TEXT PRIMARY KEY,
        call TEXT NOT NULL,
        due REAL,                 -- nothing if it is told
        tries INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX notices_due ON notices (due) WHERE due IS NOT NULL;
    CREATE INDEX notices_by_call ON notices (call);
    """,
)


class JournalFile:
    """A connection to the file, for one thread; opened again when the file was put back."""

    def __init__(self, path: Path, busy: float, *, writes: bool) -> None:
        self._path = path
        self._at = str(path)
        self.busy = busy
        """Seconds to wait while others write."""
        self._writes = writes
        self.connection: sqlite3.Connection | None = None
        """As it is now, for whoever only compares it."""
        self._inode: tuple[int, int] | None = None

    def create(self) -> None:
        """Make the file if there is none; nobody else may read it. If they may, that is logged."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
                _sync_directory(self._path.parent)
            keep_private(self._path)
        except OSError as error:
            raise explain(error, self._path) from None

    def use(self) -> sqlite3.Connection:
        """The connection. Raises `JournalError` if the file is not there any more, or is not sound."""
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.must_be_there()
                return self.connection
            self.close()
        connection: sqlite3.Connection | None = None
        try:
            self._inode = _inode(self._at)
            connection = self._connect()
            if self._writes:
                self._prepare(connection)
        except (OSError, sqlite3.Error, JournalError) as error:
            if connection is not None:
                connection.close()
            raise explain(error, self._path) from error
        self.connection = connection
        return connection

    def must_be_there(self) -> None:
        """Raise if the open file is not the one at its path: what is written to a deleted file is lost."""
        if _inode(self._at) != self._inode:
            raise FileNotFoundError(self._path)

    def connect_beside(self) -> sqlite3.Connection | None:
        """Another connection to the open file, which waits neither for the disk nor for whoever writes."""
        if self.connection is None:
            return None
        self.must_be_there()
        connection = self._connect()
        for pragma in (
            "busy_timeout = 0",
            "synchronous = NORMAL",
            "wal_autocheckpoint = 0",
            "cache_size = -500",
        ):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def sync(self) -> None:
        """Bring the log to the disk, whoever has written to it."""
        with contextlib.suppress(FileNotFoundError):  # then all of it is in the file, on the disk
            fd = os.open(f"{self._at}-wal", os.O_RDWR)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def explain(self, error: Exception) -> JournalError:
        """What went wrong, in words for callers."""
        return explain(error, self._path)

    def close(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self.connection.close()
            self.connection = None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=rw",  # never makes a new file
            uri=True,
            timeout=self.busy,
            isolation_level=None,
            check_same_thread=False,
        )
        if not self._writes:
            connection.execute("PRAGMA query_only = ON")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        tables = connection.execute(
            "SELECT 1 FROM sqlite_master"
        ).fetchone()  # which another may make just now
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if tables and application != APPLICATION:
            said = "This is an SQLite file, but not a journal of midcall: give another path"
            raise trouble(said, self._path, "not a journal of midcall", final=True)
        if version > len(MIGRATIONS):
            said = (
                f"The journal was written by a newer midcall (its format is {version}, this one knows"
                f" {len(MIGRATIONS)}): use that version, or another file"
            )
            raise trouble(said, self._path, f"format {version}", final=True)
        if self._path.stat().st_size <= CHECKED:
            check(connection, self._path, "quick_check")
        self._write_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 1000")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.execute("PRAGMA cache_size = -8000")
        connection.execute("BEGIN IMMEDIATE")  # of processes that start together, one migrates
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for script in MIGRATIONS[version:]:
                for statement in script.split(";"):
                    connection.execute(statement)
            if version < len(MIGRATIONS):
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            if version < 2 and os.path.lexists(f"{self._path}.chat"):
                mark = FROM_BEFORE if version else NEW
                connection.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?)", (CHAT_FILE, mark))
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        connection.execute("PRAGMA busy_timeout = 0")  # from now on it waits for its turn

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Readers and the writer do not wait for each other. (SQLite does not wait for the lock for this.)"""
        patience = time.monotonic() + self.busy
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                    raise
                time.sleep(0.01)
            else:
                return


class OnDatabase(Protocol):
    """What has methods that are work on a connection (`reading`, `writing`)."""

    @property
    def database(self) -> "Database": ...


class Database:
    """The file, with one thread that writes and one that reads: as much as comes together in one transaction.

    Who raises a `MidcallError` in a transaction must not have written anything: the others go on.
    """

    def __init__(self, path: Path, busy: float, turn: WriteTurn) -> None:
        self.writes = JournalFile(path, busy, writes=True)
        self.reads = JournalFile(path, busy, writes=False)
        self._turn = turn
        self.writer: CommitThread[Work] | None = None
        self._reader: CommitThread[Work] | None = None
        self._at_once: sqlite3.Connection | None = None
        """For the event loop, beside the connection that writes: see `write_at_once`."""
        self._beside: sqlite3.Connection | None = None
        self._sync_at = math.inf

    def start(self, idle: Callable[[], float | None]) -> None:
        """Start the threads; `idle` is called between writes, in the thread that writes."""
        self.writer = CommitThread("midcall-journal-writer", partial(self._run, self.writes), idle)
        self._reader = CommitThread("midcall-journal-reader", partial(self._run, self.reads))

    async def stop(self) -> None:
        """Do what was asked for, and end the threads."""
        self._close_at_once()
        writer, reader = self.writer, self._reader
        self.writer = self._reader = None
        if writer is not None and reader is not None:
            await reader.stop()
            await writer.stop()

    def close(self) -> None:
        self.reads.close()
        self.writes.close()

    async def write(
        self,
        work: Callable[[sqlite3.Connection], T],
        told: Callable[[T], None] | None = None,
        undo: Callable[[T], Awaitable[object] | None] | None = None,
    ) -> T:
        """Have it done and committed (see `CommitQueue.do`)."""
        if self.writer is None:
            raise _not_open()
        done: T = await self.writer.do(work, told=told, undo=undo)
        return done

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._reader is None:
            raise _not_open()
        done: T = await self._reader.do(work)
        return done

    def write_at_once(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Have something small done by the event loop itself: it waits neither for the disk nor for others.

        Nothing, if that cannot be, or `work` gives nothing. Whoever reads the file sees it, also if this
        process is killed now; it is on the disk with the next write, or after `SYNC_AFTER`.
        """
        if self.writer is None or self.writer.busy:
            return None
        try:
            if self._beside is not self.writes.connection:
                self._close_at_once()
                self._at_once, self._beside = self.writes.connect_beside(), self.writes.connection
            if self._at_once is None:
                return None
            self.writes.must_be_there()
            self._at_once.execute("BEGIN IMMEDIATE")
            done = work(self._at_once)
            self._at_once.execute("COMMIT")
        except (
            OSError,
            sqlite3.Error,
            MidcallError,
        ) as error:  # the thread meets it too, and says what it is
            if _code(error) != sqlite3.SQLITE_BUSY or (self._at_once and self._at_once.in_transaction):
                self._close_at_once()
            return None
        if done is not None and self._sync_at == math.inf:
            self._sync_at = time.monotonic() + SYNC_AFTER
            asyncio.get_running_loop().call_later(SYNC_AFTER, self.writer.nudge)
        return done

    def _close_at_once(self) -> None:
        connection, self._at_once, self._beside = self._at_once, None, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def sync(self) -> None:
        """In the thread that writes: bring to the disk what was written at once."""
        if time.monotonic() >= self._sync_at:
            self._sync_at = math.inf
            with contextlib.suppress(OSError):  # the next commit meets it, and says so
                self.writes.sync()

    def _run(self, file: JournalFile, asked: Sequence[Work]) -> list[Any]:
        """Do all of it: what came of each, or the error that it raised. Raises `JournalError`."""
        connection: sqlite3.Connection | None = None
        answers: list[Any] = []
        try:
            connection = file.use()
            if file is self.writes:
                self._begin(connection)
            else:
                connection.execute("BEGIN")
            for work in asked:
                try:
                    answers.append(work(connection))
                except MidcallError as error:
                    answers.append(error)
            connection.execute("COMMIT")
            file.must_be_there()
        except Exception as error:
            told = file.explain(error)
            if connection is None or _code(error) == sqlite3.SQLITE_BUSY:  # no fault of one of them
                away = StoreAway(str(told))
                away.__dict__.update(told.__dict__)
                told = away
            if connection is not None:
                _undo(file, connection, error)
            raise told from error
        return answers

    def _begin(self, connection: sqlite3.Connection) -> None:
        taken = self._turn.take()
        try:
            patience = time.monotonic() + self.writes.busy
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                        raise
                    time.sleep(PAUSE)
                else:
                    return
        finally:
            if taken:
                self._turn.pass_on()


def writing(
    work: Callable[Concatenate[S, sqlite3.Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Makes a coroutine of a method that is work on the connection which writes."""

    async def written(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.database.write(lambda connection: work(self, connection, *args, **kwargs))

    return written


def reading(
    work: Callable[Concatenate[S, sqlite3.Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Makes a coroutine of a method that is work on the connection which reads."""

    async def read(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.database.read(lambda connection: work(self, connection, *args, **kwargs))

    return read


def _undo(file: JournalFile, connection: sqlite3.Connection, error: Exception) -> None:
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR):
        file.close()  # what it remembers of the file may be wrong; it is looked at anew


def _not_open() -> JournalError:
    return JournalError("The journal is not open")


def check(connection: sqlite3.Connection, path: Path, how: str) -> None:
    """Look for damage: `quick_check`, or `integrity_check`, which compares the indices too."""
    found = [str(row[0]) for row in connection.execute(f"PRAGMA {how}(5)")]
    if found != ["ok"]:
        raise _damaged(path, "; ".join(found))


def explain(error: Exception, path: Path) -> JournalError:
    """What went wrong with the file, in words for callers; whoever runs it finds the rest in the log."""
    if isinstance(error, JournalError):
        return error
    match _code(error):
        case _ if isinstance(error, FileNotFoundError):
            said = "The journal is gone: put it back, or start midcall again to begin a new one"
        case _ if isinstance(error, PermissionError):
            said = "The journal cannot be opened: this user may not read and write there"
        case sqlite3.SQLITE_FULL:
            said = "The disk is full: nothing was written to the journal. It goes on once there is space"
        case sqlite3.SQLITE_READONLY:
            said = "The journal cannot be written: the file or its directory is read-only for this user"
        case sqlite3.SQLITE_IOERR:
            done = "read" if "READ" in getattr(error, "sqlite_errorname", "") else "written"
            said = f"The journal cannot be {done}: the disk refuses it. It goes on once it can"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            said = "Another process has kept the journal locked for too long"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _damaged(path, error)
        case sqlite3.SQLITE_CANTOPEN:
            said = "The journal cannot be opened: its directory may be missing, or read-only for this user"
        case _:
            said = "The journal cannot be used"
    return trouble(said, path, error)


def _code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _damaged(path: Path, why: object) -> JournalError:
    return trouble(
        "The journal is damaged. Stop midcall and restore the file from a backup, without the old -wal and"
        " -shm files beside it; or move all three away to begin a new one",
        path,
        why,
        final=True,
    )


def _inode(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat, and asked for each commit
    return found.st_dev, found.st_ino


def _sync_directory(path: Path) -> None:
    """A new file is only there after a crash if its directory is written too."""
    if os.name == "posix":
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

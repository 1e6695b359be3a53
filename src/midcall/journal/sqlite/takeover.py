"""Conversations from when they had a file of their own, `<journal>.chat`: it is taken into the journal, and
removed.

All of it is one transaction of the journal. If the process ends before that is committed, the file is as it
was; if it ends before the file is removed, the journal remembers that it has it.
"""

import contextlib
import logging
import sqlite3
from pathlib import Path

from midcall.journal.contract import ConversationRecord, RunRecord
from midcall.journal.sqlite.conversations import SqliteConversations
from midcall.journal.trouble import trouble

log = logging.getLogger("midcall.journal")

BUSY = 10.0
"""Seconds to wait for others who use the file, or write to the journal."""

_MARK = "chat file"
"""The secret under which the journal remembers which file it has taken over."""


# The oldest files do not have these.
_MISSING = (
    "CREATE TABLE IF NOT EXISTS runs (id, conversation, principal, ended, seen)",
    "CREATE TABLE IF NOT EXISTS lines (run, lsn, line)",
    "CREATE TABLE IF NOT EXISTS to_stop (run)",
)


def take_over(db: sqlite3.Connection, path: Path, into: SqliteConversations) -> None:
    """Take over the conversations of a file, if there is one.

    Raises `JournalError`; then nothing is changed.
    """
    if not path.exists():
        return
    try:
        db.execute(f"PRAGMA busy_timeout = {BUSY * 1000:.0f}")
        db.execute("BEGIN IMMEDIATE")  # of processes that start together, one takes it over
        taken = None
        if path.exists():
            taken = _take(db, path, into)
        db.execute("COMMIT")
        for one in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            one.unlink(missing_ok=True)
    except (sqlite3.Error, OSError) as error:
        said = "The conversations of an older midcall cannot be taken into the journal"
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise trouble(f"{said}: a process still uses them. Stop it first", path, error) from None
        raise trouble(f"{said}: restore their file, or move it away", path, error, final=True) from None
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.execute("PRAGMA busy_timeout = 0")
    if taken is not None:
        log.info("%d conversations of %s are in the journal now; the file is removed", taken, path)


def _take(db: sqlite3.Connection, path: Path, into: SqliteConversations) -> int | None:
    """How many conversations there were; nothing if they are in the journal already."""
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY, isolation_level=None)
    ) as old:
        old.execute("PRAGMA journal_mode = DELETE")  # all of it is in the one file, and nobody else uses it
        old.execute("BEGIN EXCLUSIVE")
        found = path.stat()
        mark = f"{found.st_ino} {found.st_size} {found.st_mtime_ns}".encode()
        if db.execute("SELECT value FROM secrets WHERE name = ?", (_MARK,)).fetchone() == (mark,):
            return None
        if old.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("the file is damaged")
        if old.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            return 0  # it was made, and the process ended
        for statement in _MISSING:
            old.execute(statement)  # which is not committed
        count = _take_conversations(db, old, into)
        _take_runs(db, old, into)
        db.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?)", (_MARK, mark))
        return count


def _take_conversations(db: sqlite3.Connection, old: sqlite3.Connection, into: SqliteConversations) -> int:
    count = 0
    for id, principal, version, updated, waiting, run, title, body in old.execute(
        "SELECT id, principal, version, updated, waiting, run, title, body FROM conversations"
    ):
        record = ConversationRecord(
            id=id,
            principal=principal,
            version=version,
            updated=updated,
            waiting=bool(waiting),
            run=run,
            title=title,
            body=body,
        )
        into.insert(db, record)
        count += 1
    return count


def _take_runs(db: sqlite3.Connection, old: sqlite3.Connection, into: SqliteConversations) -> None:
    for run, conversation, principal, ended, seen, stop in old.execute(
        "SELECT id, conversation, principal, ended, seen, id IN (SELECT run FROM to_stop) FROM runs"
    ):
        lines = [line for (line,) in old.execute("SELECT line FROM lines WHERE run = ? ORDER BY lsn", (run,))]
        record = RunRecord(run, conversation, principal, len(lines), bool(ended), seen, seen)
        into.insert_run(db, record, lines, bool(stop))

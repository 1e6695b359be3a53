"""Conversations from when they had a file of their own, `<journal>.chat`: it is taken into the journal, once,
and removed.

That is done when the journal comes from the format of that time, or is new and not sealed (`file` notes that
there is something to take over). At any other time a file of that name is left alone: whoever can write to
the directory must not be able to put words into conversations.

All of it is one transaction of the journal. If the process ends before that is committed, the file is as it
was; if it ends before the file is removed, the journal remembers that it has it.
"""

import contextlib
import logging
import os
import sqlite3
import stat
from pathlib import Path

from midcall.errors import JournalError
from midcall.journal.contract import ConversationRecord, RunRecord
from midcall.journal.sqlite.conversations import SqliteConversations
from midcall.journal.sqlite.file import CHAT_FILE, FROM_BEFORE, NEW
from midcall.journal.trouble import trouble

log = logging.getLogger("midcall.journal")

BUSY = 10.0
"""Seconds to wait for others who use the file, or write to the journal."""

_REMOVE, _RENAME, _DONE = b"remove", b"rename", b"done"
"""What is left to do with the file that was taken over; the first two are followed by which one it is."""

_SAID = "The conversations of an older midcall cannot be taken into the journal"

# The oldest files have only the first of the tables.
_MISSING = (
    "CREATE TABLE IF NOT EXISTS runs (id, conversation, principal, ended, seen)",
    "CREATE TABLE IF NOT EXISTS lines (run, lsn, line)",
    "CREATE TABLE IF NOT EXISTS to_stop (run)",
)

# SQLite takes any value in any column, so each row is looked at.
_FITS = {
    "conversations": (
        "typeof(id) = 'text' AND typeof(principal) IN ('text', 'null')"
        " AND typeof(version) = 'integer' AND version BETWEEN 1 AND 1000000000"
        " AND typeof(updated) IN ('real', 'integer') AND updated BETWEEN 0 AND 1e11"
        " AND typeof(waiting) = 'integer' AND typeof(run) IN ('text', 'null')"
        " AND typeof(title) = 'text' AND typeof(body) = 'blob'"
    ),
    "runs": (
        "typeof(id) = 'text' AND typeof(conversation) = 'text' AND typeof(principal) IN ('text', 'null')"
        " AND typeof(ended) = 'integer' AND typeof(seen) IN ('real', 'integer') AND seen BETWEEN 0 AND 1e11"
    ),
    "lines": "typeof(run) = 'text' AND typeof(lsn) = 'integer' AND typeof(line) = 'blob'",
    "to_stop": "typeof(run) = 'text'",
}


def take_over(db: sqlite3.Connection, path: Path, into: SqliteConversations, *, plain: bool) -> None:
    """Take over the conversations of a file, if there is one and its time is now.

    `plain` says whether the journal takes what is not encrypted. Raises `JournalError`; then nothing is
    changed.
    """
    if not os.path.lexists(path) and _mark(db) not in (NEW, FROM_BEFORE):
        return
    told = None
    try:
        db.execute(f"PRAGMA busy_timeout = {BUSY * 1000:.0f}")
        db.execute("BEGIN IMMEDIATE")  # of processes that start together, one takes it over
        mark = _mark(db)
        if mark in (NEW, FROM_BEFORE):
            mark, told = _take(db, path, into) if mark == FROM_BEFORE or plain else (_DONE, None)
            db.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?)", (CHAT_FILE, mark))
        db.execute("COMMIT")
        told = _put_away(path, mark, told)
    except (sqlite3.Error, OSError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise trouble(f"{_SAID}: a process still uses them. Stop it first", path, error) from None
        raise _unfit("", path, error) from None
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.execute("PRAGMA busy_timeout = 0")
    if told is not None:
        log.info("%s", told)


def _mark(db: sqlite3.Connection) -> bytes:
    """How far the journal is with the file."""
    row = db.execute("SELECT value FROM secrets WHERE name = ?", (CHAT_FILE,)).fetchone()
    return _DONE if row is None else row[0]


def _put_away(path: Path, mark: bytes, told: str | None) -> str | None:
    """Remove or rename the file if it has been taken over; what is to be told of that."""
    todo, _, taken = mark.partition(b" ")
    try:
        if todo not in (_REMOVE, _RENAME) or _identity(path) != taken:
            if os.path.lexists(path):
                log.warning(
                    "%s is left alone: an older midcall kept conversations there, but this journal"
                    " takes none over (any more). Move it away, or beside a new one that is not encrypted",
                    path,
                )
            return told
        if todo == _RENAME:
            kept = _free_name(path)
            path.rename(kept)
            log.warning(
                "Some conversations or runs of %s were in the journal already. Of each the newer version is"
                " kept; the file is now %s",
                path,
                kept,
            )
            return told
        for one in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            one.unlink(missing_ok=True)
    except FileNotFoundError:
        return told  # another process has done it
    return None if told is None else f"{told}; the file is removed"


def _identity(path: Path) -> bytes:
    found = path.lstat()
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}".encode()


def _free_name(path: Path) -> Path:
    kept, number = path.with_name(f"{path.name}.taken"), 1
    while os.path.lexists(kept):
        number += 1
        kept = path.with_name(f"{path.name}.taken{number}")
    return kept


def _take(db: sqlite3.Connection, path: Path, into: SqliteConversations) -> tuple[bytes, str | None]:
    """What is left to do with the file, and what is to be told."""
    db.execute("SAVEPOINT before")
    try:
        return _take_file(db, path, into)
    except (sqlite3.Error, OSError):
        if os.path.lexists(path):
            raise
        db.execute("ROLLBACK TO before")  # another process has taken it away
        return _DONE, None


def _take_file(db: sqlite3.Connection, path: Path, into: SqliteConversations) -> tuple[bytes, str | None]:
    _must_be_a_file(path)
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY, isolation_level=None)
    ) as old:
        old.execute("PRAGMA trusted_schema = OFF")
        old.execute("PRAGMA journal_mode = DELETE")  # all of it is in the one file, and nobody else uses it
        old.execute("BEGIN EXCLUSIVE")
        _must_be_a_file(path)
        identity = _identity(path)
        if old.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("the file is damaged")
        if old.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            return b"%b %b" % (_REMOVE, identity), None  # it was made, and the process ended
        _check(old, path)
        count, known = _take_conversations(db, old, into)
        known += _take_runs(db, old, into)
        mark = b"%b %b" % (_RENAME if known else _REMOVE, identity)
        return mark, f"{count} conversations of {path} are in the journal now"


def _must_be_a_file(path: Path) -> None:
    """What a link leads to would be left as it is, readable, though the journal may be sealed."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise _unfit(": their file is a link. Put the file itself in its place", path, "a link")
    if not stat.S_ISREG(mode):
        raise _unfit(": this is not a file", path, "not a file")


def _check(old: sqlite3.Connection, path: Path) -> None:
    """Raise `JournalError` unless the tables are tables, with rows as an older midcall has written them."""
    for statement in _MISSING:
        old.execute(statement)  # which is not committed
    for table, fits in _FITS.items():
        kind = old.execute("SELECT type, rootpage > 0 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        if kind != ("table", 1):  # a view may have no end, and a virtual table has no page
            raise _unfit(f": their file has no table {table}", path, f"no table {table}")
        wrong = old.execute(f"SELECT count(*) FROM {table} WHERE ({fits}) IS NOT TRUE").fetchone()[0]  # noqa: S608
        if wrong:
            raise _unfit(f": values of the table {table} are not of their type", path, f"{wrong} in {table}")


def _unfit(why: str, path: Path, error: object) -> JournalError:
    return trouble(f"{_SAID}{why}: restore their file, or move it away", path, error, final=True)


def _take_conversations(
    db: sqlite3.Connection, old: sqlite3.Connection, into: SqliteConversations
) -> tuple[int, int]:
    """How many there are, and how many of them the journal had already."""
    count = known = 0
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
        if not into.insert(db, record):
            into.replace_older(db, record)
            known += 1
        count += 1
    return count, known


def _take_runs(db: sqlite3.Connection, old: sqlite3.Connection, into: SqliteConversations) -> int:
    """How many of them the journal had already."""
    known = 0
    for run, conversation, principal, ended, seen, stop in old.execute(
        "SELECT id, conversation, principal, ended, seen, id IN (SELECT run FROM to_stop) FROM runs"
    ):
        lines = [line for (line,) in old.execute("SELECT line FROM lines WHERE run = ? ORDER BY lsn", (run,))]
        record = RunRecord(run, conversation, principal, len(lines), bool(ended), seen, seen)
        known += not into.insert_run(db, record, lines, bool(stop))
    return known

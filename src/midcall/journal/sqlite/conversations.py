"""Conversations and runs in the file of an SQLite journal."""

import time
from collections.abc import Sequence
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any, TypeVar

from midcall.journal.contract import (
    KEEP_RUNS,
    LISTED,
    CallWrite,
    Conflict,
    ConversationPage,
    ConversationRecord,
    JournalError,
    RunEnd,
    RunRecord,
    Saved,
    Settlement,
    new_lines,
)
from midcall.journal.seal import ConversationValues, Values
from midcall.journal.sqlite.file import Database, reading, writing

if TYPE_CHECKING:
    from midcall.journal.sqlite.journal import SqliteJournal

T = TypeVar("T")

_INSERT = (
    "INSERT INTO conversations (version, updated, waiting, run, title, body, id, principal)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_UPDATE = (
    "UPDATE conversations SET version = ?, updated = ?, waiting = ?, run = ?, title = ?, body = ?"
    " WHERE id = ? AND ifnull(principal, 0) = ifnull(?, 0) AND version = ?"
)
_REPLACE_OLDER = (
    "UPDATE conversations SET version = ?, updated = ?, waiting = ?, run = ?, title = ?, body = ?"
    " WHERE id = ? AND ifnull(principal, 0) = ifnull(?, 0) AND version < ?"
)
_LISTED = (
    "SELECT id, version, updated, waiting, run, title FROM conversations"
    " WHERE principal IS ? ORDER BY updated DESC LIMIT ?"
)
_EVERY = (
    "SELECT rowid, id, principal, version, updated, waiting, run, title, body FROM conversations"
    " WHERE rowid > ? ORDER BY rowid LIMIT ?"
)
_LINES = (
    "SELECT first, data FROM lines WHERE run = ? AND first >="
    " coalesce((SELECT max(first) FROM lines WHERE run = ? AND first <= ?), 0) ORDER BY first"
)


class SqliteConversations:
    """The conversations of one file, for one worker."""

    def __init__(self, database: Database, values: Values, journal: "SqliteJournal") -> None:
        self.database = database
        self._journal = journal
        self._values = ConversationValues(values)

    @reading
    def load(self, db: Connection, id: str, principal: str | None) -> ConversationRecord | None:
        row = db.execute(
            "SELECT version, updated, waiting, run, title, body FROM conversations"
            " WHERE id = ? AND ifnull(principal, 0) = ifnull(?, 0)",
            (id, principal),
        ).fetchone()
        return None if row is None else self._values.record(id, principal, *row)

    async def save(
        self,
        record: ConversationRecord,
        end: RunEnd | None = None,
        begins: str | None = None,
        call: CallWrite[T] | None = None,
    ) -> Saved[T]:
        saved = await self.database.write(lambda db: self._save(db, record, end, begins, call))
        if isinstance(call, Settlement) and saved.call is None:
            self._journal.tell(call.call_id, call.segment, call.outcome)
        return saved

    def _save(
        self,
        db: Connection,
        record: ConversationRecord,
        end: RunEnd | None,
        begins: str | None,
        call: CallWrite[T] | None,
    ) -> Saved[T]:
        values = self._row(record)
        if record.version == 1:
            done = db.execute(_INSERT, values)
        else:
            done = db.execute(_UPDATE, (*values, record.version - 1))
        if not done.rowcount:
            raise Conflict("The conversation has changed in the meantime")
        if begins is not None:
            self._begin_run(db, begins, record.id, record.principal)
        came = None if call is None else self._journal.write_call(db, call)
        try:
            if end is not None:
                self._append(db, end.run, end.first, end.lines, ended=True)
        except (Conflict, JournalError):  # if it were raised, the rest would be kept all the same
            return Saved(ended=False, call=came)
        return Saved(ended=True, call=came)

    @writing
    def delete(self, db: Connection, id: str, principal: str | None) -> bool:
        found = db.execute(
            "DELETE FROM conversations WHERE id = ? AND ifnull(principal, 0) = ifnull(?, 0)", (id, principal)
        )
        # Without an index, which every turn would have to keep up: there are the runs of an hour.
        runs = db.execute("SELECT id FROM runs WHERE conversation = ? AND principal IS ?", (id, principal))
        self._forget_runs(db, runs.fetchall())
        return found.rowcount > 0

    @reading
    def list(
        self, db: Connection, principal: str | None, limit: int = LISTED
    ) -> Sequence[ConversationRecord]:
        rows = db.execute(_LISTED, (principal, limit))
        return [self._values.record(id, principal, *rest) for id, *rest in rows]

    @reading
    def held(self, db: Connection, principal: str) -> tuple[int, int]:
        found = "SELECT count(*), coalesce(sum(length(body)), 0) FROM conversations WHERE principal = ?"
        count, size = db.execute(found, (principal,)).fetchone()
        return count, size

    @reading
    def every(self, db: Connection, after: str | None = None, limit: int = 100) -> ConversationPage:
        rows = db.execute(_EVERY, (int(after or 0), limit + 1)).fetchall()
        some = [self._values.record(*row) for _, *row in rows[:limit]]
        return ConversationPage(some, str(rows[limit - 1][0]) if len(rows) > limit else None)

    @writing
    def restore(self, db: Connection, record: ConversationRecord) -> bool:
        return self.insert(db, record)

    # runs

    @writing
    def begin_run(self, db: Connection, run: str, conversation_id: str, principal: str | None) -> None:
        self._begin_run(db, run, conversation_id, principal)

    def _begin_run(self, db: Connection, run: str, conversation_id: str, principal: str | None) -> None:
        now = time.time()
        db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, 0, 0, 0, ?, ?) ON CONFLICT DO NOTHING",
            (run, conversation_id, principal, now, now),
        )

    @writing
    def append(self, db: Connection, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        return self._append(db, run, first, lines, ended=ended)

    def _append(self, db: Connection, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        row = db.execute("SELECT lines, stop FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            return False
        count, stop = row
        if lines and count < first - 1:
            raise Conflict("The run has fewer lines")
        if lines and count >= first:
            lines = new_lines(self._lines(db, run, first - 1), lines)
        if lines:
            self._add_lines(db, run, count + 1, lines)
        db.execute(
            "UPDATE runs SET lines = lines + ?, ended = max(ended, ?), seen = ? WHERE id = ?",
            (len(lines), ended, time.time(), run),
        )
        return bool(stop)

    @writing
    def stop_run(self, db: Connection, run: str) -> None:
        db.execute("UPDATE runs SET stop = 1 WHERE id = ?", (run,))

    @reading
    def run(self, db: Connection, run: str) -> RunRecord | None:
        row = db.execute(
            "SELECT conversation, principal, lines, ended, seen FROM runs WHERE id = ?", (run,)
        ).fetchone()
        if row is None:
            return None
        conversation_id, principal, lines, ended, seen = row
        return RunRecord(run, conversation_id, principal, lines, bool(ended), seen, time.time())

    @reading
    def lines(self, db: Connection, run: str, after: int) -> Sequence[bytes]:
        return self._lines(db, run, after)

    # inside

    def insert(self, db: Connection, record: ConversationRecord) -> bool:
        """Write a conversation down; false if it is known."""
        return db.execute(_INSERT, self._row(record)).rowcount > 0

    def replace_older(self, db: Connection, record: ConversationRecord) -> None:
        """Put a conversation in the place of an older version of it."""
        db.execute(_REPLACE_OLDER, (*self._row(record), record.version))

    def insert_run(self, db: Connection, run: RunRecord, lines: Sequence[bytes], stop: bool) -> bool:
        """Write a whole run down; false if it is known."""
        seen = run.seen
        row = (run.id, run.conversation_id, run.principal, run.lines, run.ended, stop, seen, seen)
        added = db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
        if added.rowcount and lines:
            self._add_lines(db, run.id, 1, lines)
        return added.rowcount > 0

    def sweep(self, db: Connection, limit: int) -> int:
        """Forget runs of which nothing was heard for long; how many."""
        before = time.time() - KEEP_RUNS
        gone = db.execute(
            "SELECT id FROM runs WHERE begun < ? AND seen < ? ORDER BY begun LIMIT ?", (before, before, limit)
        ).fetchall()
        self._forget_runs(db, gone)
        return len(gone)

    def check_sealed(self, db: Connection) -> None:
        """Raise `JournalError` if the journal is to be sealed, and what was said first is not."""
        for found, name in (
            (
                "SELECT body FROM conversations LIMIT 1",
                "A conversation of the journal",
            ),
            ("SELECT data FROM lines LIMIT 1", "A run of the journal"),
        ):
            row = db.execute(found).fetchone()
            if row is not None:
                self._values.check(row[0], name)

    def _row(self, record: ConversationRecord) -> tuple[Any, ...]:
        closed, whose = self._values.close(record), (record.id, record.principal)
        return (record.version, record.updated, record.waiting, record.run, *closed, *whose)

    def _forget_runs(self, db: Connection, runs: Sequence[tuple[str]]) -> None:
        db.executemany("DELETE FROM lines WHERE run = ?", runs)
        db.executemany("DELETE FROM runs WHERE id = ?", runs)

    def _add_lines(self, db: Connection, run: str, first: int, lines: Sequence[bytes]) -> None:
        closed = self._values.close_lines(run, first, lines)
        db.execute("INSERT INTO lines VALUES (?, ?, ?)", (run, first, closed))

    def _lines(self, db: Connection, run: str, after: int) -> Sequence[bytes]:
        return self._values.open_lines(run, db.execute(_LINES, (run, run, after + 1)), after)

"""What a journal does to its calls, as SQL. Runs in a transaction that others open and commit.

The functions of `Calls` are those of `Journal`, without the waiting. One rule makes it possible to commit
many of them together: **who raises, raises before it writes**.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

from msgspec import msgpack
from msgspec.structs import replace

from midcall.errors import BadPage
from midcall.journal.contract import (
    CALL_SIZE,
    ENDED,
    KEEP,
    MOST_CLAIMS,
    Busy,
    CallRecord,
    Claim,
    Claimed,
    Entry,
    Fenced,
    Gone,
    JournalError,
    Page,
    Parking,
    Settled,
    Status,
    page_start,
)
from midcall.journal.values import NOTHING, Values

_BODY, _ENTRIES, _OUTCOME = range(3)
_STATUSES: tuple[Status, ...] = get_args(Status)

_encode = msgpack.Encoder().encode
_decode_entries = msgpack.Decoder(list[Entry]).decode
_decode_body = msgpack.Decoder(tuple[bytes, bytes]).decode

_COLUMNS = (
    "id, name, principal, idempotency_key, created, updated, expires, status, segment, wake, questions,"
    " fence, owner, claims"
)
_SELECT = f"SELECT n, {_COLUMNS} FROM calls"  # noqa: S608 - all SQL is of this file
_BY_ID = f"{_SELECT} WHERE id = ?"
_BY_N = f"{_SELECT} WHERE n = ?"
_BY_KEY = f"{_SELECT} WHERE idempotency_key = ? AND principal IS ?"
# SQLite knows nothing of how many calls there are of a kind, so it is told which index is the small one.
_TO_WAKE = (
    f"{_SELECT} INDEXED BY calls_to_wake"
    " WHERE status = 'waiting' AND wake IS NOT NULL AND wake <= ? ORDER BY wake LIMIT ?"
)
_INSERT = f"INSERT INTO calls ({_COLUMNS}) VALUES ({', '.join('?' * 14)}) ON CONFLICT (id) DO NOTHING"  # noqa: S608
_ADD_PART = "INSERT INTO parts VALUES (?, ?, ?, ?)"
_ADD_ENTRIES = (
    "INSERT INTO parts SELECT ?, 1, coalesce(max(number) + 1, 0), ? FROM parts WHERE call = ? AND kind = 1"
)
_PART = "SELECT data FROM parts WHERE call = ? AND kind = ? AND number = ?"
_BODY_AND_ENTRIES = "SELECT data FROM parts WHERE call = ? AND kind < 2 ORDER BY kind, number"
_OUTCOME_OF = (
    "SELECT data FROM parts WHERE call = (SELECT n FROM calls WHERE id = ?) AND kind = 2 AND number = ?"
)
_TAKE = (
    "UPDATE calls SET updated = ?, status = 'running', owner = ?, fence = fence + 1, claims = claims + 1"
    " WHERE n = ?"
)
_PARK = (
    "UPDATE calls SET updated = ?, status = ?, segment = segment + 1, wake = ?, questions = ?,"
    " expires = coalesce(?, expires), owner = NULL, claims = 0 WHERE n = ?"
)
_WAIT_FOR = (
    "UPDATE calls SET updated = ?, wake = ?, questions = ?, expires = coalesce(?, expires) WHERE n = ?"
)
_LET_GO = "UPDATE calls SET updated = ?, status = ?, owner = NULL, claims = claims - 1 WHERE n = ?"
_END = (
    "UPDATE calls SET updated = ?, status = ?, expires = ?, segment = segment + ?, fence = fence + 1,"
    " owner = NULL, wake = NULL, questions = ? WHERE n = ?"
)

_HELD = (
    "SELECT created, n, (SELECT sum(length(data)) FROM parts WHERE call = n) FROM calls"
    " WHERE principal = ? AND (created, n) > (?, ?) ORDER BY created, n LIMIT ?"
)

Row = tuple[Any, ...]
Rows = list[Any]
Entries = list[Entry]
_N, _ID, _CREATED, _EXPIRES, _STATUS, _SEGMENT, _FENCE, _OWNER, _CLAIMS = 0, 1, 5, 7, 8, 9, 12, 13, 14


class Calls:
    """The calls of one connection, for one worker."""

    def __init__(
        self, connection: sqlite3.Connection, worker: str, alive: Callable[[str], bool], values: Values
    ) -> None:
        self._sql = connection.execute
        self._sql_many = connection.executemany
        self._worker = worker
        self._alive = alive
        self._values = values

    def check_sealed(self) -> None:
        """Raise `JournalError` if the journal is to be sealed, and its oldest call is not."""
        row = self._sql("SELECT data FROM parts ORDER BY call, kind LIMIT 1").fetchone()
        if row is not None:
            self._values.check(row[0], "The oldest call of the journal")

    # writing

    def create(self, call: CallRecord, entries: Sequence[Entry], outcome: bytes | None) -> CallRecord | None:
        if taken := self.find(call.principal, call.idempotency_key):
            return taken
        now = time.time()
        if outcome is None:
            call = replace(call, status="running", owner=self._worker, claims=1, updated=now)
        else:
            call = replace(call, owner=None, claims=0, updated=now)
        if not self._add(call, [entries] if entries else [], {} if outcome is None else {0: outcome}):
            raise JournalError(f"There is a call {call.id} already")
        return None

    def uncreate(self, call_id: str) -> None:
        """Take back a creation that nobody waits for any more."""
        row = self._sql(
            "SELECT n FROM calls WHERE id = ? AND status = 'running' AND owner = ?", (call_id, self._worker)
        ).fetchone()
        if row is not None:
            self._forget([row])

    def claim(
        self, call_id: str, segment: int, answers: Sequence[Entry], fence: int | None
    ) -> tuple[Claim, Status | None]:
        """What `Journal.claim` gives; and how the call stood before, if it was claimed."""
        row = self._sql(_BY_ID, (call_id,)).fetchone()
        if row is None:
            return Gone(), None
        n, status = row[_N], row[_STATUS]
        if segment < row[_SEGMENT]:
            outcome = self._outcome(call_id, n, segment)
            return (Gone(status) if outcome is None else Settled(outcome)), None
        if segment > row[_SEGMENT] or status in ENDED:
            return Gone(status), None
        if status == "running" and row[_OWNER] is not None and self._alive(row[_OWNER]):
            return Busy(self._record(row)), None
        if fence not in (None, row[_FENCE]):
            return Busy(self._record(row)), None
        now = time.time()
        given_up: Status | None = (
            "expired" if row[_EXPIRES] <= now else "poisoned" if row[_CLAIMS] >= MOST_CLAIMS else None
        )
        if given_up is not None:
            self._sql(_END, (now, given_up, now + KEEP, 0, NOTHING, n))
            return Gone(given_up), None
        record, entries = self._whole(row)
        self._sql(_TAKE, (now, self._worker, n))
        self._add_entries(n, answers, call_id)
        record = replace(
            record,
            status="running",
            owner=self._worker,
            fence=record.fence + 1,
            claims=record.claims + 1,
            updated=now,
        )
        return Claimed(record, [*entries, *answers]), status

    def unclaim(self, call_id: str, fence: int, before: Status) -> None:
        """Take back a claim that nobody waits for any more."""
        with contextlib.suppress(Fenced):
            self._sql(_LET_GO, (time.time(), before, self._mine(call_id, fence, None)))

    def append(self, call_id: str, fence: int, entries: Sequence[Entry], parking: Parking | None) -> None:
        row = self._sql(
            "SELECT n FROM calls WHERE id = ? AND fence = ?"
            " AND (status = 'running' AND owner = ? OR status = 'waiting')",
            (call_id, fence, None if parking is not None else self._worker),
        ).fetchone()
        if row is None:
            raise _fenced(call_id)
        self._add_entries(row[0], entries, call_id)
        if parking is not None:
            questions = self._values.close(parking.questions, "questions", call_id)
            self._sql(_WAIT_FOR, (time.time(), parking.wake, questions, parking.expires, row[0]))

    def settle(
        self,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Sequence[Entry],
    ) -> None:
        n = self._mine(call_id, fence, segment)
        self._add_entries(n, entries, call_id)
        self._sql(_ADD_PART, (n, _OUTCOME, segment, self._values.close(outcome, "outcome", call_id)))
        questions = self._values.close(parking.questions, "questions", call_id)
        self._sql(_PARK, (time.time(), parking.status, parking.wake, questions, parking.expires, n))

    def release(self, call_id: str, fence: int, diverged: bool) -> None:
        n = self._mine(call_id, fence, None)
        self._sql(_LET_GO, (time.time(), "diverged" if diverged else "running", n))

    def end(self, call_id: str, status: Status, outcome: bytes, expires: float) -> int | None:
        """The segment that it was the end of."""
        row = self._sql("SELECT n, status, segment FROM calls WHERE id = ?", (call_id,)).fetchone()
        if row is None or row[1] in ENDED:
            return None
        n, _, segment = row
        self._sql(_ADD_PART, (n, _OUTCOME, segment, self._values.close(outcome, "outcome", call_id)))
        self._sql(_END, (time.time(), status, expires, 1, NOTHING, n))
        return int(segment)

    def sweep(self, limit: int) -> int:
        now = time.time()
        rows = self._sql(
            "SELECT n, status FROM calls WHERE expires <= ? AND status != 'running' ORDER BY expires LIMIT ?",
            (now, limit),
        ).fetchall()
        over = [(now, "expired", now + KEEP, 0, NOTHING, n) for n, status in rows if status not in ENDED]
        self._sql_many(_END, over)
        self._forget([(n,) for n, status in rows if status in ENDED])
        return len(rows)

    def probe(self) -> None:
        self._sql("INSERT OR REPLACE INTO secrets VALUES ('probe', randomblob(4096))")  # a page, or more

    def secret(self, name: str, made: bytes) -> bytes:
        row = self._sql("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return self._values.open(row[0], "secret", name)
        self._sql("INSERT INTO secrets VALUES (?, ?)", (name, self._values.close(made, "secret", name)))
        return made

    def restore(self, call: CallRecord, entries: Sequence[Entry], outcomes: dict[int, bytes]) -> bool:
        if self.find(call.principal, call.idempotency_key):
            return False
        return self._add(call, [entries] if entries else [], outcomes)

    # reading

    def outcome(self, call_id: str, segment: int) -> bytes | None:
        row = self._sql(_OUTCOME_OF, (call_id, segment)).fetchone()
        return None if row is None else self._values.open(row[0], "outcome", call_id)

    def load(self, call_id: str) -> tuple[CallRecord, Sequence[Entry]] | None:
        row = self._sql(_BY_ID, (call_id,)).fetchone()
        return None if row is None else self._whole(row)

    def outcomes(self, call_id: str) -> dict[int, bytes]:
        rows = self._sql(
            "SELECT number, data FROM parts WHERE call = (SELECT n FROM calls WHERE id = ?) AND kind = 2",
            (call_id,),
        )
        return {segment: self._values.open(data, "outcome", call_id) for segment, data in rows}

    def find(self, principal: str | None, idempotency_key: str | None) -> CallRecord | None:
        if idempotency_key is None:
            return None
        row = self._sql(_BY_KEY, (idempotency_key, principal)).fetchone()
        return None if row is None else self._record(row)

    def due(self, limit: int) -> Sequence[CallRecord]:
        owners = self._sql("SELECT DISTINCT owner FROM calls WHERE status = 'running' AND owner NOT NULL")
        gone = [owner for (owner,) in owners.fetchall() if not self._alive(owner)]
        marks = ", ".join("?" * len(gone))
        left = self._sql(
            f"{_SELECT} WHERE status = 'running' AND (owner IS NULL OR owner IN ({marks})) LIMIT ?",
            (*gone, limit),
        ).fetchall()
        woken = self._sql(_TO_WAKE, (time.time(), limit - len(left))).fetchall()
        return [self._record(row) for row in left + woken]

    def list(
        self, status: Sequence[Status], principal: str | None, name: str | None, after: str | None, limit: int
    ) -> Page:
        """A page is found by an index: that of a principal, or that of each status."""
        where = ""
        given: Rows = []
        if name is not None:
            where += " AND name = ?"
            given.append(name)
        if after is not None:
            created, n = _page_start(after)
            where += " AND created <= ? AND (created < ? OR n < ?)"
            given += [created, created, n]
        newest = "ORDER BY created DESC, n DESC LIMIT ?"
        statuses: Sequence[Status] = status or _STATUSES
        if principal is not None:
            marks = ", ".join("?" * len(statuses))
            found = f"SELECT n FROM calls WHERE principal = ? AND status IN ({marks}) {where} {newest}"  # noqa: S608
            rows = self._sql(found, (principal, *statuses, *given, limit + 1)).fetchall()
        else:
            one = f"SELECT * FROM (SELECT n, created FROM calls WHERE status = ? {where} {newest})"  # noqa: S608
            found = f"SELECT n FROM ({' UNION ALL '.join([one] * len(statuses))}) {newest}"  # noqa: S608
            each = [value for status in statuses for value in (status, *given, limit + 1)]
            rows = self._sql(found, (*each, limit + 1)).fetchall()
        chosen = [self._sql(_BY_N, row).fetchone() for row in rows[:limit]]
        last = f"{chosen[-1][_CREATED]!r} {chosen[-1][_N]}" if len(rows) > limit else None
        return Page([self._record(row) for row in chosen], last)

    def count(self) -> dict[str, int]:
        return dict(self._sql("SELECT status, count(*) FROM calls GROUP BY status").fetchall())

    def held(
        self, principal: str, after: tuple[float, int], limit: int
    ) -> tuple[int, tuple[float, int] | None]:
        """What some calls of a principal take, and after which one the next begin, if there may be any."""
        rows = self._sql(_HELD, (principal, *after, limit)).fetchall()
        last = rows[-1][:2] if len(rows) == limit else None
        return sum(CALL_SIZE + size for _, _, size in rows), last

    # inside

    def _add(self, call: CallRecord, entries: Iterable[Sequence[Entry]], outcomes: dict[int, bytes]) -> bool:
        """Write a whole call; false if its id is known."""
        added = self._sql(
            _INSERT,
            (
                call.id,
                call.name,
                call.principal,
                call.idempotency_key,
                call.created,
                call.updated,
                call.expires,
                call.status,
                call.segment,
                call.wake,
                self._values.close(call.questions, "questions", call.id),
                call.fence,
                call.owner,
                call.claims,
            ),
        )
        if not added.rowcount:
            return False
        n = added.lastrowid
        parts = [(n, _BODY, 0, self._values.close(_encode((call.arguments, call.context)), "body", call.id))]
        for number, some in enumerate(entries):
            parts.append((n, _ENTRIES, number, self._values.close(_encode(some), "entries", call.id)))
        for segment, outcome in outcomes.items():
            parts.append((n, _OUTCOME, segment, self._values.close(outcome, "outcome", call.id)))
        self._sql_many(_ADD_PART, parts)
        return True

    def _add_entries(self, n: int, entries: Sequence[Entry], call_id: str) -> None:
        if entries:
            self._sql(_ADD_ENTRIES, (n, self._values.close(_encode(entries), "entries", call_id), n))

    def _forget(self, rows: Rows) -> None:
        self._sql_many("DELETE FROM parts WHERE call = ?", rows)
        self._sql_many("DELETE FROM calls WHERE n = ?", rows)

    def _mine(self, call_id: str, fence: int, segment: int | None) -> int:
        row = self._sql(
            "SELECT n FROM calls WHERE id = ? AND fence = ? AND status = 'running' AND owner = ?"
            " AND segment = coalesce(?, segment)",
            (call_id, fence, self._worker, segment),
        ).fetchone()
        if row is None:
            raise _fenced(call_id)
        return int(row[0])

    def _whole(self, row: Row) -> tuple[CallRecord, Entries]:
        (body,), *some = self._sql(_BODY_AND_ENTRIES, row[:1]).fetchall()
        entries: Entries = []
        for (data,) in some:
            entries += _decode_entries(self._values.open(data, "entries", row[_ID]))
        return self._record(row, body), entries

    def _record(self, row: Row, body: bytes | None = None) -> CallRecord:
        (n, call_id, name, principal, key, created, updated, expires, status, segment, wake, *rest) = row
        questions, fence, owner, claims = rest
        if body is None:
            (body,) = self._sql(_PART, (n, _BODY, 0)).fetchone()
        arguments, context = _decode_body(self._values.open(body, "body", call_id))
        return CallRecord(
            id=call_id,
            name=name,
            arguments=arguments,
            context=context,
            principal=principal,
            idempotency_key=key,
            created=created,
            updated=updated,
            expires=expires,
            status=status,
            segment=segment,
            wake=wake,
            questions=self._values.open(questions, "questions", call_id),
            fence=fence,
            owner=owner,
            claims=claims,
        )

    def _outcome(self, call_id: str, n: int, segment: int) -> bytes | None:
        row = self._sql(_PART, (n, _OUTCOME, segment)).fetchone()
        return None if row is None else self._values.open(row[0], "outcome", call_id)


def _fenced(call_id: str) -> Fenced:
    return Fenced(f"This worker does not run the call {call_id} any more")


def _page_start(after: str) -> tuple[float, int]:
    created, n = page_start(after)
    if not (n.isascii() and n.isdecimal() and len(n) < 19):
        raise BadPage(after)
    return created, int(n)

"""The journal in an SQLite file: the one that needs nothing installed and nothing run beside.

One thread writes, and commits what came together in one transaction; another one reads. Each write is on
the disk when it returns (WAL, `synchronous = FULL`), but for a claim without `sync`: that comes to the disk
with the next write, of which its caller is told. Several processes may use one file: SQLite's own lock keeps
their writes apart, `LifeSign` tells which of them are there, and who waits for another one's outcome looks
whether the file has changed, a few dozen times a second, while somebody waits.

The file must be on a disk of this machine: SQLite's locks do not work over a network.
"""

import asyncio
import contextlib
import logging
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from sqlite3 import Connection, Error
from typing import Any, get_args

from msgspec import msgpack
from msgspec.structs import replace

from midcall.errors import BadPage
from midcall.journal.contract import (
    CALL_SIZE,
    ENDED,
    KEEP,
    MOST_CLAIMS,
    Addition,
    Busy,
    CallRecord,
    CallWrite,
    Claim,
    Claimed,
    Creation,
    Entry,
    Fenced,
    Gone,
    JournalError,
    Notice,
    Page,
    Parking,
    Settled,
    Settlement,
    Status,
    Taking,
    from_export,
    page_start,
    to_export,
)
from midcall.journal.files import WriteTurn
from midcall.journal.seal import NOTHING, KeyRing, Values
from midcall.journal.sqlite.conversations import SqliteConversations
from midcall.journal.sqlite.file import Database, check, reading, writing
from midcall.journal.sqlite.takeover import take_over
from midcall.journal.sqlite.trees import SqliteTrees
from midcall.journal.sqlite.workers import LifeSign, WorkerSockets
from midcall.journal.trouble import trouble

log = logging.getLogger("midcall.journal")

LEASE = 15.0
"""A worker that has not stirred for so many seconds counts as gone."""

PATIENCE = 10.0
"""Seconds to wait while another process writes. Less than the lease: who waits is not dead."""

POLL = 0.025
"""Seconds between two looks at what other processes have written, while somebody waits for it."""

SWEPT_AT_ONCE = 100
"""How many calls are swept in one transaction, so that others need not wait long."""

SMALL = 16 * 1024
"""How many bytes of answers may be written by the event loop itself."""

LOOKED_AT_ONCE = 1000
"""How many calls are looked at in one reading, so that other readings need not wait long."""

_Waiters = dict[tuple[str, int], set["asyncio.Future[bytes | None]"]]


_BODY, _ENTRIES, _OUTCOME = range(3)
_STATUSES: tuple[Status, ...] = get_args(Status)

_encode = msgpack.Encoder().encode
_decode_entries = msgpack.Decoder(list[Entry]).decode
_decode_body = msgpack.Decoder(tuple[bytes, bytes]).decode

_COLUMNS = (
    "id, name, principal, idempotency_key, created, updated, expires, status, segment, wake, questions,"
    " fence, owner, claims, addressed"
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
_INSERT = f"INSERT INTO calls ({_COLUMNS}) VALUES ({', '.join('?' * 15)}) ON CONFLICT (id) DO NOTHING"  # noqa: S608
_ADD_PART = "INSERT INTO parts VALUES (?, ?, ?, ?)"
_ADD_OUTCOME = "INSERT INTO parts SELECT n, 2, ?, ? FROM calls WHERE id = ?"
_ADD_ENTRIES = (
    "INSERT INTO parts SELECT n, 1,"
    " (SELECT coalesce(max(number) + 1, 0) FROM parts WHERE call = n AND kind = 1), ? FROM calls WHERE id = ?"
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
_TAKE_PARKED = (
    "UPDATE calls SET updated = ?, status = 'running', owner = ?, fence = fence + 1, claims = 1"
    " WHERE id = ? AND segment = ? AND fence = ? AND status = 'waiting' AND expires > ?"
)
_MINE = "WHERE id = ? AND fence = ? AND status = 'running' AND owner = ?"
_PARK = (
    f"UPDATE calls SET updated = ?, status = ?, segment = segment + 1, wake = ?, questions = ?,"  # noqa: S608
    f" expires = coalesce(?, expires), owner = ?, addressed = ?, claims = 0 {_MINE} AND segment = ?"
)
_WAIT_FOR = (
    "UPDATE calls SET updated = ?, wake = ?, questions = ?, expires = coalesce(?, expires), owner = ?,"
    " addressed = ? WHERE n = ?"
)
_LET_GO = f"UPDATE calls SET updated = ?, status = ?, owner = NULL, claims = claims - 1 {_MINE}"  # noqa: S608
_END = (
    "UPDATE calls SET updated = ?, status = ?, expires = ?, segment = segment + ?, fence = fence + 1,"
    " owner = NULL, wake = NULL, questions = ?, addressed = 0 WHERE n = ?"
)
_ADD_NOTICE = "INSERT INTO notices VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"

_HELD = (
    "SELECT created, n, (SELECT sum(length(data)) FROM parts WHERE call = n) FROM calls"
    " WHERE principal = ? AND (created, n) > (?, ?) ORDER BY created, n LIMIT ?"
)

Row = tuple[Any, ...]
Rows = list[Any]
Entries = list[Entry]
_N, _ID, _CREATED, _EXPIRES, _STATUS, _SEGMENT, _FENCE, _OWNER, _CLAIMS = 0, 1, 5, 7, 8, 9, 12, 13, 14


class SqliteJournal:
    """A worker on a file. With `seal`, what callers and tools have said is encrypted under the newest key.

    What is not encrypted is refused then, unless `plain_too` (see `seal`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        seal: KeyRing | None = None,
        plain_too: bool = False,
        lease: float = LEASE,
    ) -> None:
        self.worker = f"{os.getpid()}-{secrets.token_hex(6)}"
        self.path = Path(path)
        self.at_once = False
        self._values = Values(seal, plain_too=plain_too)
        self._lease = lease
        workers = self.path.with_name(f"{self.path.name}.workers")
        self._sign = LifeSign(workers, self.worker, lease)
        self._turn = WriteTurn(workers / ".turn")
        self.database = Database(self.path, min(PATIENCE, lease * 2 / 3), self._turn)
        self.conversations = SqliteConversations(self.database, self._values, self)
        self.trees = SqliteTrees(self.database, self._values)
        self._sockets: WorkerSockets | None = None
        self.on_post: Callable[[bytes], None] | None = None
        self._waiters: _Waiters = {}
        self._next_beat = 0.0
        self._next_look = 0.0
        self._seen: tuple[Connection, int] | None = None
        """The state of the file when waiters were last looked for: it changes with others' writes alone."""

    # life

    async def open(self) -> None:
        if self.database.writer is None:
            await asyncio.to_thread(self._start)
            await self._open_sockets()
            self.database.start(self._between_batches)

    async def close(self) -> None:
        if self.database.writer is None:
            return
        for key in list(self._waiters):
            self.tell(*key, None)
        if self._sockets is not None:
            await self._sockets.close()
        await self.database.stop()
        await asyncio.to_thread(self._stop)

    async def _open_sockets(self) -> None:
        """Where there are no sockets of the file system, workers do without: each has its own sessions."""
        if hasattr(asyncio, "start_unix_server"):
            self._sockets = WorkerSockets(self.path, self.worker)
            try:
                await self._sockets.open(self._take, self._sign.known)
            except OSError as error:
                log.warning("Other workers cannot reach this one: %s", error)
                self._sockets = None

    async def post(self, worker: str, message: bytes) -> bool:
        if self._sockets is None or not self._sign.alive(worker):  # a line to it may not know yet
            return False
        return await self._sockets.post(worker, message)

    def _take(self, message: bytes) -> None:
        if self.on_post is not None:
            self.on_post(message)

    async def check(self) -> None:
        """Look through all of the file for damage, however large it is. Raises `JournalError`."""
        await self.database.read(lambda db: check(db, self.path, "integrity_check"))

    def _start(self) -> None:
        try:
            self.database.writes.create()
            db = self.database.writes.use()
            self._check_sealed(db)
            chat = self.path.with_name(f"{self.path.name}.chat")
            take_over(db, chat, self.conversations, plain=self._values.plain_too)
            self._sign.start()
            self._sign.clear_away()
            self._turn.open()
        except OSError as error:
            self._stop()
            said = f"The directory of the journal cannot be written: {(error.strerror or '').lower()}"
            raise trouble(said, self.path, error) from None
        except JournalError:
            self._stop()
            raise

    def _stop(self) -> None:
        self.database.close()
        self._turn.close()
        self._sign.stop()

    # writing

    async def create(
        self,
        call: CallRecord,
        entries: Sequence[Entry] = (),
        outcome: bytes | None = None,
        notices: Sequence[Notice] = (),
    ) -> CallRecord | None:
        def undo(taken: CallRecord | None) -> Awaitable[None] | None:
            return self._uncreate(call.id) if taken is None else None

        return await self.database.write(
            lambda db: self._create(db, call, entries, outcome, notices),
            undo=undo if outcome is None else None,
        )

    def _create(
        self,
        db: Connection,
        call: CallRecord,
        entries: Sequence[Entry],
        outcome: bytes | None,
        notices: Sequence[Notice],
    ) -> CallRecord | None:
        if taken := self._find(db, call.principal, call.idempotency_key):
            return taken
        now = time.time()
        if outcome is None:
            call = replace(call, status="running", owner=self.worker, claims=1, updated=now)
        else:
            call = replace(call, claims=0, updated=now)
        if not self._add(db, call, [entries] if entries else [], {} if outcome is None else {0: outcome}):
            raise JournalError(f"The call {call.id} already exists")
        _add_notices(db, notices)
        return None

    @writing
    def _uncreate(self, db: Connection, call_id: str) -> None:
        """Take back a creation that nobody waits for any more."""
        row = db.execute(
            "SELECT n FROM calls WHERE id = ? AND status = 'running' AND owner = ?", (call_id, self.worker)
        ).fetchone()
        if row is not None:
            self._forget(db, [row])

    async def claim(
        self,
        call_id: str,
        segment: int,
        answers: Sequence[Entry] = (),
        fence: int | None = None,
        parked: CallRecord | None = None,
        sync: bool = True,
    ) -> Claim:
        if not sync and parked is not None and sum(len(one.value) for one in answers) <= SMALL:
            done = self.database.write_at_once(
                lambda db: self._claim_parked(db, parked, segment, answers, fence)
            )
            if done is not None:
                return done[0]

        def undo(claimed: tuple[Claim, Status | None]) -> Awaitable[None] | None:
            claim, before = claimed
            if not isinstance(claim, Claimed) or before is None:
                return None
            return self._unclaim(call_id, claim.call.fence, before)

        claim, _ = await self.database.write(
            lambda db: self._claim_one(db, call_id, segment, answers, fence, parked), undo=undo
        )
        return claim

    def _claim_one(
        self,
        db: Connection,
        call_id: str,
        segment: int,
        answers: Sequence[Entry],
        fence: int | None,
        parked: CallRecord | None,
    ) -> tuple[Claim, Status | None]:
        return self._claim_parked(db, parked, segment, answers, fence) or self._claim(
            db, call_id, segment, answers, fence
        )

    def _claim_parked(
        self,
        db: Connection,
        parked: CallRecord | None,
        segment: int,
        answers: Sequence[Entry],
        fence: int | None,
    ) -> tuple[Claim, Status] | None:
        """As `_claim`, if nobody has claimed the call since it was parked here."""
        if parked is None or parked.segment != segment or fence not in (None, parked.fence):
            return None
        now = time.time()
        given = (now, self.worker, parked.id, segment, parked.fence, now)
        if not db.execute(_TAKE_PARKED, given).rowcount:
            return None
        self._add_entries(db, answers, parked.id)
        return Claimed(self._taken(parked, now), None), "waiting"

    def _taken(self, call: CallRecord, now: float) -> CallRecord:
        return replace(
            call,
            status="running",
            owner=self.worker,
            fence=call.fence + 1,
            claims=call.claims + 1,
            updated=now,
        )

    def _claim(
        self, db: Connection, call_id: str, segment: int, answers: Sequence[Entry], fence: int | None
    ) -> tuple[Claim, Status | None]:
        """What `claim` gives; and how the call stood before, if it was claimed."""
        row = db.execute(_BY_ID, (call_id,)).fetchone()
        if row is None:
            return Gone(), None
        n, status = row[_N], row[_STATUS]
        if segment < row[_SEGMENT]:
            outcome = self._outcome(db, call_id, n, segment)
            return (Gone(status) if outcome is None else Settled(outcome)), None
        if segment > row[_SEGMENT] or status in ENDED:
            return Gone(status), None
        may_be_busy = row[_OWNER] is not None and (status == "running" or row[_OWNER] != self.worker)
        if may_be_busy and self._sign.alive(row[_OWNER]):
            return Busy(self._record(db, row)), None
        if fence not in (None, row[_FENCE]):
            return Busy(self._record(db, row)), None
        now = time.time()
        given_up: Status | None = (
            "expired" if row[_EXPIRES] <= now else "poisoned" if row[_CLAIMS] >= MOST_CLAIMS else None
        )
        if given_up is not None:
            db.execute(_END, (now, given_up, now + KEEP, 0, NOTHING, n))
            return Gone(given_up), None
        record, entries = self._whole(db, row)
        db.execute(_TAKE, (now, self.worker, n))
        self._add_entries(db, answers, call_id)
        return Claimed(self._taken(record, now), [*entries, *answers]), status

    @writing
    def _unclaim(self, db: Connection, call_id: str, fence: int, before: Status) -> None:
        """Take back a claim that nobody waits for any more."""
        db.execute(_LET_GO, (time.time(), before, call_id, fence, self.worker))

    async def append(
        self, call_id: str, fence: int, entries: Sequence[Entry], parking: Parking | None = None
    ) -> None:
        await self.database.write(lambda db: self._append(db, call_id, fence, entries, parking))

    def _append(
        self, db: Connection, call_id: str, fence: int, entries: Sequence[Entry], parking: Parking | None
    ) -> None:
        row = db.execute(
            "SELECT n FROM calls WHERE id = ? AND fence = ?"
            " AND (status = 'running' AND owner = ? OR status = 'waiting')",
            (call_id, fence, None if parking is not None else self.worker),
        ).fetchone()
        if row is None:
            raise _fenced(call_id)
        self._add_entries(db, entries, call_id)
        if parking is not None:
            questions = self._values.close(parking.questions, "questions", call_id)
            owner = self.worker if parking.held else None
            waits = (time.time(), parking.wake, questions, parking.expires, owner, parking.addressed)
            db.execute(_WAIT_FOR, (*waits, row[0]))
            _add_notices(db, parking.notices)

    async def settle(
        self,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Sequence[Entry] = (),
    ) -> None:
        await self.database.write(
            lambda db: self._settle(db, call_id, fence, segment, outcome, parking, entries),
            told=lambda _: self.tell(call_id, segment, outcome),
        )

    def _settle(
        self,
        db: Connection,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Sequence[Entry],
    ) -> None:
        questions = self._values.close(parking.questions, "questions", call_id)
        owner = self.worker if parking.held else None
        parks = (time.time(), parking.status, parking.wake, questions, parking.expires, owner)
        where = (call_id, fence, self.worker, segment)
        if not db.execute(_PARK, (*parks, parking.addressed, *where)).rowcount:
            raise _fenced(call_id)
        _add_notices(db, parking.notices)
        self._add_entries(db, entries, call_id)
        db.execute(_ADD_OUTCOME, (segment, self._values.close(outcome, "outcome", call_id), call_id))

    def write_call(self, db: Connection, write: CallWrite[Any]) -> Any:
        """Write something of a call, in a transaction that is about more than that."""
        came: Any = None
        try:
            match write:
                case Creation(call, entries, outcome, notices):
                    came = self._create(db, call, entries, outcome, notices)
                case Taking(call_id, segment, answers, fence, parked):
                    came, _ = self._claim_one(db, call_id, segment, answers, fence, parked)
                case Addition(call_id, fence, entries, parking):
                    self._append(db, call_id, fence, entries, parking)
                case Settlement(call_id, fence, segment, outcome, parking, entries):
                    self._settle(db, call_id, fence, segment, outcome, parking, entries)
        except JournalError as error:
            return error
        return came

    @writing
    def release(self, db: Connection, call_id: str, fence: int, *, diverged: bool = False) -> None:
        lets_go = (time.time(), "diverged" if diverged else "running")
        if not db.execute(_LET_GO, (*lets_go, call_id, fence, self.worker)).rowcount:
            raise _fenced(call_id)

    async def end(self, call_id: str, status: Status, outcome: bytes, expires: float) -> bool:
        def told(segment: int | None) -> None:
            if segment is not None:
                self.tell(call_id, segment, outcome)

        work = partial(self._end, call_id=call_id, status=status, outcome=outcome, expires=expires)
        return await self.database.write(work, told=told) is not None

    def _end(
        self, db: Connection, call_id: str, status: Status, outcome: bytes, expires: float
    ) -> int | None:
        """The segment that it was the end of."""
        row = db.execute("SELECT n, status, segment FROM calls WHERE id = ?", (call_id,)).fetchone()
        if row is None or row[1] in ENDED:
            return None
        n, _, segment = row
        db.execute(_ADD_PART, (n, _OUTCOME, segment, self._values.close(outcome, "outcome", call_id)))
        db.execute(_END, (time.time(), status, expires, 1, NOTHING, n))
        return int(segment)

    async def sweep(self, limit: int = 1000) -> int:
        swept = 0
        for sweep in (self._sweep, self.conversations.sweep, self.trees.sweep):
            found = some = 1
            while found == some and swept < limit:
                some = min(SWEPT_AT_ONCE, limit - swept)
                found = await self.database.write(partial(sweep, limit=some))
                swept += found
        return swept

    def _sweep(self, db: Connection, limit: int) -> int:
        now = time.time()
        rows = db.execute(
            "SELECT n, status FROM calls WHERE expires <= ? AND status != 'running' ORDER BY expires LIMIT ?",
            (now, limit),
        ).fetchall()
        over = [(now, "expired", now + KEEP, 0, NOTHING, n) for n, status in rows if status not in ENDED]
        db.executemany(_END, over)
        self._forget(db, [(n,) for n, status in rows if status in ENDED])
        return len(rows)

    @writing
    def probe(self, db: Connection) -> None:
        db.execute("INSERT OR REPLACE INTO secrets VALUES ('probe', randomblob(4096))")  # a page, or more

    @writing
    def secret(self, db: Connection, name: str, made: bytes) -> bytes:
        row = db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return self._values.open(row[0], "secret", name)
        db.execute("INSERT INTO secrets VALUES (?, ?)", (name, self._values.close(made, "secret", name)))
        return made

    async def restore(self, exported: dict[str, Any]) -> bool:
        call, entries, outcomes = from_export(exported)
        return await self.database.write(lambda db: self._restore(db, call, entries, outcomes))

    def _restore(
        self, db: Connection, call: CallRecord, entries: Sequence[Entry], outcomes: dict[int, bytes]
    ) -> bool:
        if self._find(db, call.principal, call.idempotency_key):
            return False
        return self._add(db, call, [entries] if entries else [], outcomes)

    # reading

    @reading
    def load(self, db: Connection, call_id: str) -> tuple[CallRecord, Sequence[Entry]] | None:
        row = db.execute(_BY_ID, (call_id,)).fetchone()
        return None if row is None else self._whole(db, row)

    async def find(self, principal: str | None, idempotency_key: str) -> CallRecord | None:
        return await self.database.read(lambda db: self._find(db, principal, idempotency_key))

    def _find(self, db: Connection, principal: str | None, idempotency_key: str | None) -> CallRecord | None:
        if idempotency_key is None:
            return None
        row = db.execute(_BY_KEY, (idempotency_key, principal)).fetchone()
        return None if row is None else self._record(db, row)

    @reading
    def due(self, db: Connection, limit: int = 100) -> Sequence[CallRecord]:
        owners = db.execute("SELECT DISTINCT owner FROM calls WHERE status = 'running' AND owner NOT NULL")
        gone = [owner for (owner,) in owners.fetchall() if not self._sign.alive(owner)]
        marks = ", ".join("?" * len(gone))
        left = db.execute(
            f"{_SELECT} WHERE status = 'running' AND (owner IS NULL OR owner IN ({marks})) LIMIT ?",
            (*gone, limit),
        ).fetchall()
        woken = db.execute(_TO_WAKE, (time.time(), limit - len(left))).fetchall()
        return [self._record(db, row) for row in left + woken]

    @reading
    def list(
        self,
        db: Connection,
        *,
        status: Sequence[Status] = (),
        principal: str | None = None,
        name: str | None = None,
        addressed: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """A page is found by an index: that of a principal, that of what is addressed, or of each status."""
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
        if principal is not None or addressed:
            marks = ", ".join("?" * len(statuses))
            where = f"WHERE status IN ({marks}) {where}"
            if addressed:
                where = f"INDEXED BY calls_addressed {where} AND addressed = 1"
            if principal is not None:
                where += " AND principal = ?"
                given.append(principal)
            rows = db.execute(
                f"SELECT n FROM calls {where} {newest}",  # noqa: S608
                (*statuses, *given, limit + 1),
            ).fetchall()
        else:
            one = f"SELECT * FROM (SELECT n, created FROM calls WHERE status = ? {where} {newest})"  # noqa: S608
            found = f"SELECT n FROM ({' UNION ALL '.join([one] * len(statuses))}) {newest}"  # noqa: S608
            each = [value for status in statuses for value in (status, *given, limit + 1)]
            rows = db.execute(found, (*each, limit + 1)).fetchall()
        chosen = [db.execute(_BY_N, row).fetchone() for row in rows[:limit]]
        last = f"{chosen[-1][_CREATED]!r} {chosen[-1][_N]}" if len(rows) > limit else None
        return Page([self._record(db, row) for row in chosen], last)

    @writing
    def take_notices(self, db: Connection, channel: str, limit: int, seconds: float) -> Sequence[Notice]:
        now = time.time()
        rows = db.execute(
            "SELECT id, call, tries FROM notices WHERE due <= ? AND instr(id, ?) = 1 ORDER BY due LIMIT ?",
            (now, f"{channel}:", limit),
        ).fetchall()
        taken = [Notice(id, call_id, now + seconds, tries + 1) for id, call_id, tries in rows]
        db.executemany(
            "UPDATE notices SET due = ?, tries = ? WHERE id = ?",
            [(one.due, one.tries, one.id) for one in taken],
        )
        return taken

    @writing
    def notice_told(self, db: Connection, id: str) -> None:
        db.execute("UPDATE notices SET due = NULL WHERE id = ?", (id,))

    @writing
    def postpone_notice(self, db: Connection, id: str, seconds: float) -> None:
        db.execute("UPDATE notices SET due = ? WHERE id = ? AND due IS NOT NULL", (time.time() + seconds, id))

    @reading
    def count(self, db: Connection) -> dict[str, int]:
        return dict(db.execute("SELECT status, count(*) FROM calls GROUP BY status").fetchall())

    async def held(self, principal: str) -> int:
        held = 0
        after: tuple[float, int] | None = (-math.inf, 0)
        while after is not None:
            some, after = await self.database.read(partial(self._held, principal=principal, after=after))
            held += some
        return held

    def _held(
        self, db: Connection, principal: str, after: tuple[float, int]
    ) -> tuple[int, tuple[float, int] | None]:
        """What some calls of a principal take, and after which one the next begin, if there may be any."""
        rows = db.execute(_HELD, (principal, *after, LOOKED_AT_ONCE)).fetchall()
        last = rows[-1][:2] if len(rows) == LOOKED_AT_ONCE else None
        return sum(CALL_SIZE + size for _, _, size in rows), last

    @reading
    def export(self, db: Connection, call_id: str) -> dict[str, Any] | None:
        row = db.execute(_BY_ID, (call_id,)).fetchone()
        if row is None:
            return None
        outcomes = db.execute("SELECT number, data FROM parts WHERE call = ? AND kind = 2", row[:1])
        opened = {segment: self._values.open(data, "outcome", call_id) for segment, data in outcomes}
        return to_export(*self._whole(db, row), opened)

    # waiting

    async def wait(self, call_id: str, segment: int, seconds: float) -> bytes | None:
        waiter: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        key = (call_id, segment)
        first = not self._waiters
        waiters = self._waiters.setdefault(key, set())
        waiters.add(waiter)
        if first and self.database.writer is not None:
            self.database.writer.nudge()  # it looks at the file from now on
        try:
            outcome = await self.database.read(lambda db: self._outcome_of(db, call_id, segment))
            if outcome is not None or seconds <= 0:
                return outcome
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            return None
        finally:
            waiters.discard(waiter)
            if not waiters and self._waiters.get(key) is waiters:
                del self._waiters[key]

    def tell(self, call_id: str, segment: int, outcome: bytes | None) -> None:
        for waiter in self._waiters.pop((call_id, segment), ()):
            if not waiter.done():
                waiter.set_result(outcome)

    def _between_batches(self) -> float:
        """In the thread that writes: say that it lives, and look for what others have settled."""
        now = time.monotonic()
        self.database.sync()
        if now >= self._next_beat:
            with contextlib.suppress(OSError):
                self._sign.beat()
            self._next_beat = now + self._lease / 3
        if not self._waiters:
            return min(self._next_beat - now, self._lease / 3)
        if now >= self._next_look:
            self._look()
            taken = time.monotonic() - now
            self._next_look = now + max(POLL, 10 * taken)  # however many wait, others come first
        return POLL

    def _look(self) -> None:
        try:
            db = self.database.writes.use()
            (version,) = db.execute("PRAGMA data_version").fetchone()
            if self._seen == (db, version):
                return
            self._seen = (db, version)
            looked = [(key, self._outcome_of(db, *key)) for key in list(self._waiters)]
        except (JournalError, Error):
            return  # who writes or reads is told; who waits goes on waiting
        for key, outcome in looked:
            if outcome is not None and self.database.writer is not None:
                self.database.writer.call_soon(self.tell, *key, outcome)

    # inside

    def _check_sealed(self, db: Connection) -> None:
        """Raise `JournalError` if the journal is to be sealed, and its oldest call is not."""
        row = db.execute("SELECT data FROM parts ORDER BY call, kind LIMIT 1").fetchone()
        if row is not None:
            self._values.check(row[0], "The oldest call of the journal")
        self.conversations.check_sealed(db)
        self.trees.check_sealed(db)

    def _outcome_of(self, db: Connection, call_id: str, segment: int) -> bytes | None:
        row = db.execute(_OUTCOME_OF, (call_id, segment)).fetchone()
        return None if row is None else self._values.open(row[0], "outcome", call_id)

    def _add(
        self, db: Connection, call: CallRecord, entries: Iterable[Sequence[Entry]], outcomes: dict[int, bytes]
    ) -> bool:
        """Write a whole call; false if its id is known."""
        added = db.execute(
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
                call.addressed,
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
        db.executemany(_ADD_PART, parts)
        return True

    def _add_entries(self, db: Connection, entries: Sequence[Entry], call_id: str) -> None:
        if entries:
            db.execute(_ADD_ENTRIES, (self._values.close(_encode(entries), "entries", call_id), call_id))

    def _forget(self, db: Connection, rows: Rows) -> None:
        db.executemany("DELETE FROM notices WHERE call = (SELECT id FROM calls WHERE n = ?)", rows)
        db.executemany("DELETE FROM parts WHERE call = ?", rows)
        db.executemany("DELETE FROM calls WHERE n = ?", rows)

    def _whole(self, db: Connection, row: Row) -> tuple[CallRecord, Entries]:
        (body,), *some = db.execute(_BODY_AND_ENTRIES, row[:1]).fetchall()
        entries: Entries = []
        for (data,) in some:
            entries += _decode_entries(self._values.open(data, "entries", row[_ID]))
        return self._record(db, row, body), entries

    def _record(self, db: Connection, row: Row, body: bytes | None = None) -> CallRecord:
        (n, call_id, name, principal, key, created, updated, expires, status, segment, wake, *rest) = row
        questions, fence, owner, claims, addressed = rest
        if body is None:
            (body,) = db.execute(_PART, (n, _BODY, 0)).fetchone()
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
            addressed=bool(addressed),
        )

    def _outcome(self, db: Connection, call_id: str, n: int, segment: int) -> bytes | None:
        row = db.execute(_PART, (n, _OUTCOME, segment)).fetchone()
        return None if row is None else self._values.open(row[0], "outcome", call_id)


def _add_notices(db: Connection, notices: Sequence[Notice]) -> None:
    if notices:
        db.executemany(_ADD_NOTICE, [(one.id, one.call_id, one.due, one.tries) for one in notices])


def _fenced(call_id: str) -> Fenced:
    return Fenced(f"This worker does not run the call {call_id} any more")


def _page_start(after: str) -> tuple[float, int]:
    created, n = page_start(after)
    if not (n.isascii() and n.isdecimal() and len(n) < 19):
        raise BadPage(after)
    return created, int(n)

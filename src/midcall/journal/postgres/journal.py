"""The journal in PostgreSQL: for many workers, on one machine or on several.

PostgreSQL does the coordination. Claims are compare-and-set on a row; an advisory lock says that a worker
lives, and `NOTIFY` that a segment has come to its outcome (`workers`); what many calls ask for at the
same time is one statement (`commit`), so that they share a round trip and a commit. If the database
goes away, everything waits for it for a while, and fails clearly after that (`reach`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from midcall.journal.commit import StoreAway
from midcall.journal.contract import (
    ENDED,
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
    is_worker_name,
    page_mark,
    page_start,
    to_export,
)
from midcall.journal.postgres.conversations import PostgresConversations
from midcall.journal.postgres.reach import Reach, on_connection, transaction
from midcall.journal.postgres.rows import (
    ALIVE,
    APPENDS,
    ENTRIES,
    FENCE,
    LOADED,
    OUTCOME,
    OWNER,
    SEGMENT,
    STATUS,
    Rows,
    digest,
    notice_columns,
)
from midcall.journal.postgres.schema import check_name, migrate
from midcall.journal.postgres.sql import Statements
from midcall.journal.postgres.trees import PostgresTrees
from midcall.journal.postgres.workers import Posts, WorkerSession, worker_name
from midcall.journal.seal import KeyRing, Values

if TYPE_CHECKING:
    from midcall.journal.postgres.reach import Connection

_STATUSES: tuple[Status, ...] = get_args(Status)

LEASE = 15.0
"""A worker that runs something and has not stirred for so many seconds counts as gone."""

PATIENCE = 5.0
"""Seconds that everything waits for a database that is away."""

LOOK = 2.0
"""Who waits for an outcome looks for it so often, should a notice be lost."""


class PostgresJournal:
    """A worker on a schema of a PostgreSQL database.

    Behind a pooler that deals out transactions, `direct` is the address of the server itself, for the one
    session that must be the worker's own; all else goes through `dsn`. With `seal`, what is not encrypted is
    refused, unless `plain_too` (see `seal`).
    """

    def __init__(
        self,
        dsn: str,
        *,
        direct: str | None = None,
        schema: str = "midcall",
        seal: KeyRing | None = None,
        plain_too: bool = False,
        lease: float = LEASE,
        patience: float = PATIENCE,
        connections: int = 8,
    ) -> None:
        check_name(schema)
        self.worker = worker_name()
        self.at_once = False
        self.on_post: Callable[[bytes], None] | None = None
        self._sql = sql = Statements(schema, lease)
        self._values = values = Values(seal, plain_too=plain_too)
        self._rows = Rows(values)
        self._running: dict[str, int] = {}
        """What this worker runs, with the fence."""
        self.reach = Reach(dsn, connections=connections, patience=patience, pooled=direct is not None)
        self._line = WorkerSession(
            self.worker,
            direct or dsn,
            sql,
            lease,
            prepare=lambda session: migrate(session, schema, self.conversations),
            busy=lambda: bool(self._running),
            heard=self._on_heard,
            posted=self._on_posted,
            renamed=self._on_renamed,
        )
        self._patience = patience
        self.conversations = PostgresConversations(self.reach, sql, values, self)
        self.trees = PostgresTrees(self.reach, sql, values)
        self._posts = Posts(self.reach, sql, values, self._line)
        self._waiters: dict[str, set[_OutcomeWaiter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    # --- life --------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._is_open:
            return
        await self.reach.open()
        try:
            await self._line.open(self._patience)
            await self._check_sealed()
        except BaseException:
            await self._line.close()
            await self.reach.close()
            raise
        self._spawn(self._posts.deliver(self._on_post))
        self._spawn(self._line.keep())
        self._is_open = True

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._on_heard(None)  # who waits need not wait any longer
        await self.reach.close()
        await self._line.close()

    # --- writing, many at once -------------------------------------------------------------

    async def create(
        self,
        call: CallRecord,
        entries: Sequence[Entry] = (),
        outcome: bytes | None = None,
        notices: Sequence[Notice] = (),
    ) -> CallRecord | None:
        async def undo(taken: CallRecord | None) -> None:
            if taken is None:
                await self._uncreate(call)

        size = len(call.arguments) + len(call.context) + _size(entries) + len(outcome or b"")
        creation = Creation(call, entries, outcome, notices)
        try:
            taken: CallRecord | None = await self.reach.together(
                self._create, creation, key=call.id, size=size, undo=undo if outcome is None else None
            )
        except StoreAway as error:
            self.in_doubt(creation, error)
            raise
        return taken

    async def _create(
        self, connection: "Connection", asked: Sequence[Creation], again: bool
    ) -> list[CallRecord | JournalError | None]:
        """Nothing if it is written; otherwise the call that has its key."""
        begun = {c.call.id for c in asked if c.outcome is None} - self._running.keys()
        # Before anybody can claim it.
        self._running.update((c.call.id, c.call.fence) for c in asked if c.call.id in begun)
        columns = zip(*map(self._new_row, asked), strict=True)
        told = notice_columns(notice for creation in asked for notice in creation.notices)
        made = {row[0] for row in await connection.fetch(self._sql.create, *columns, *told)}
        answers: list[CallRecord | JournalError | None] = []
        for creation in asked:
            call_id = creation.call.id
            answer = None if call_id in made else await self._why_not(connection, creation, again)
            if answer is not None and call_id in begun:
                self._running.pop(call_id, None)
            answers.append(answer)
        return answers

    async def claim(
        self,
        call_id: str,
        segment: int,
        answers: Sequence[Entry] = (),
        fence: int | None = None,
        parked: CallRecord | None = None,
        sync: bool = True,
    ) -> Claim:
        async def undo(claim: Claim) -> None:
            if isinstance(claim, Claimed):
                await self._unclaim(call_id, segment, claim.call.fence)

        taking = Taking(call_id, segment, answers, fence)
        try:
            claim: Claim = await self.reach.together(
                self._claim, taking, key=call_id, size=_size(answers), undo=undo
            )
        except StoreAway as error:
            self.in_doubt(taking, error)
            raise
        return claim

    async def _claim(
        self, connection: "Connection", asked: Sequence[Taking], again: bool
    ) -> list[Claim | JournalError]:
        answers: dict[str, Claim | JournalError] = {}
        left = list(asked)
        for _ in range(5):
            ids, segments = [taking.call_id for taking in left], [taking.segment for taking in left]
            lost = [call_id not in self._running for call_id in ids]
            given = (ids, segments, lost, self._line.number, self._line.trusted)
            closed = [self._rows.close_entries(taking.answers, taking.call_id) for taking in left]
            fences = [taking.fence for taking in left]
            rows = {row[0]: row for row in await connection.fetch(self._sql.claim, *given, closed, fences)}
            for taking in left:
                row = rows.get(taking.call_id)
                claim = Gone() if row is None else await self._judge(connection, row, taking)
                if claim is not None:
                    answers[taking.call_id] = claim
            left = [taking for taking in left if taking.call_id not in answers]
            if not left:
                break
            # It is to be given up, or has changed while the statement ran: look again.
            await connection.fetch(self._sql.give_up, *given)
        for taking in left:
            call_id = taking.call_id
            answers[call_id] = JournalError(f"The call {call_id} changes too often to be claimed")
        return [answers[taking.call_id] for taking in asked]

    async def append(
        self, call_id: str, fence: int, entries: Sequence[Entry], parking: Parking | None = None
    ) -> None:
        addition = Addition(call_id, fence, entries, parking)
        await self.reach.together(self._append, addition, key=call_id, size=_size(entries))

    async def _append(
        self, connection: "Connection", asked: Sequence[Addition], again: bool
    ) -> list[JournalError | None]:
        done = {a.call_id for a in asked if again and await self._was_appended(connection, a)}
        left = [a for a in asked if a.call_id not in done]
        if left:
            columns = zip(*map(self._rows.addition, left), strict=True)
            told = notice_columns(n for a in left if a.parking is not None for n in a.parking.notices)
            rows = await connection.fetch(self._sql.append, *columns, self._line.number, *told)
            done |= {row[0] for row in rows}
        return [None if a.call_id in done else self._fenced(a.call_id, a.fence) for a in asked]

    async def settle(
        self,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Sequence[Entry] = (),
    ) -> None:
        settlement = Settlement(call_id, fence, segment, outcome, parking, entries)
        size = len(outcome) + _size(entries)
        await self.reach.together(self._settle, settlement, key=call_id, size=size)
        self.tell(call_id, segment, outcome)

    async def _settle(
        self, connection: "Connection", asked: Sequence[Settlement], again: bool
    ) -> list[JournalError | None]:
        columns = zip(*map(self._rows.settlement, asked), strict=True)
        told = notice_columns(notice for settlement in asked for notice in settlement.parking.notices)
        rows = await connection.fetch(self._sql.settle, *columns, self._line.number, *told)
        done = {row[0] for row in rows}
        answers: list[JournalError | None] = []
        for settlement in asked:
            if settlement.call_id in done or (again and await self._was_settled(connection, settlement)):
                self._forget(settlement.call_id, settlement.fence)
                answers.append(None)
            else:
                answers.append(self._fenced(settlement.call_id, settlement.fence))
        return answers

    async def write_call(self, connection: "Connection", write: CallWrite[Any], again: bool) -> Any:
        """Write something of a call, in a transaction that is about more than that."""
        came: list[Any] = []
        match write:
            case Creation():
                came += await self._create(connection, [write], again)
            case Taking():
                came += await self._claim(connection, [write], again)
            case Addition():
                came += await self._append(connection, [write], again)
            case Settlement():
                came += await self._settle(connection, [write], again)
        return came[0]

    def undone(self, write: CallWrite[Any] | None, came: Any) -> None:
        """The transaction in which that came of it has failed."""
        if isinstance(came, Claimed):
            self._forget(came.call.id, came.call.fence)
        elif isinstance(write, Settlement) and came is None:
            self._running[write.call_id] = write.fence

    def in_doubt(self, write: CallWrite[Any] | None, error: StoreAway) -> None:
        """The database has gone away, and it may have been written that this worker runs a call."""
        match write:
            case Creation(call, _, None) if error.maybe:
                self._spawn(self._until_done(lambda: self._uncreate(call)))
            case Taking(call_id, segment) if error.maybe:
                self._spawn(self._until_done(lambda: self._unclaim(call_id, segment, None)))

    # --- writing -----------------------------------------------------------------------------

    async def release(self, call_id: str, fence: int, *, diverged: bool = False) -> None:
        await self.reach.run(
            lambda connection, again: self._release(connection, call_id, fence, diverged, again)
        )

    async def _release(
        self, connection: "Connection", call_id: str, fence: int, diverged: bool, again: bool
    ) -> None:
        status = "diverged" if diverged else "running"
        if not await connection.fetchval(self._sql.release, call_id, fence, self._line.number, status):
            row = await connection.fetchrow(self._sql.load, call_id) if again else None
            if row is None or (row[FENCE], row[STATUS], row[OWNER]) != (fence, status, None):
                raise self._fenced(call_id, fence)
        self._forget(call_id, fence)

    async def end(self, call_id: str, status: Status, outcome: bytes, expires: float) -> bool:
        segment = await self.reach.run(
            lambda connection, _: self._end(connection, call_id, status, outcome, expires)
        )
        if segment is not None:
            self.tell(call_id, segment, outcome)
        return segment is not None

    async def _end(
        self, connection: "Connection", call_id: str, status: Status, outcome: bytes, expires: float
    ) -> int | None:
        """The segment that it was the end of."""
        closed = self._rows.close_outcome(outcome, call_id)
        segment: int | None = await connection.fetchval(self._sql.end, call_id, status, closed, expires)
        if segment is not None:
            self._running.pop(call_id, None)
        return segment

    @on_connection
    async def sweep(self, connection: "Connection", limit: int = 1000) -> int:
        over: int = await connection.fetchval(self._sql.sweep, limit)
        over += await self.conversations.sweep(connection, limit - over)
        over += await self.trees.sweep(connection, limit - over)
        await connection.fetch(self._sql.sweep_workers, self._line.number, self._line.trusted)
        return over

    @on_connection
    async def probe(self, connection: "Connection") -> None:
        await connection.fetch(self._sql.beat, self._line.number)

    async def secret(self, name: str, made: bytes) -> bytes:
        while True:
            kept = await self._secret(name, made)
            if kept is not None:
                return kept

    @on_connection
    async def _secret(self, connection: "Connection", name: str, made: bytes) -> bytes | None:
        """Nothing if another worker has made it just now."""
        closed = self._values.close(made, "secret", name)
        kept: bytes | None = await connection.fetchval(self._sql.secret, name, closed)
        return None if kept is None else self._values.open(kept, "secret", name)

    async def post(self, worker: str, message: bytes) -> bool:
        return is_worker_name(worker) and await self._posts.post(worker, message)

    async def restore(self, exported: dict[str, Any]) -> bool:
        return await self._restore(*from_export(exported))

    @on_connection
    async def _restore(
        self,
        connection: "Connection",
        call: CallRecord,
        entries: Sequence[Entry],
        outcomes: dict[int, bytes],
    ) -> bool:
        closed = [self._rows.close_outcome(outcome, call.id) for outcome in outcomes.values()]
        async with transaction(connection):
            columns = ((value,) for value in self._rows.call(call, None, entries, None, call.updated))
            if not await connection.fetch(self._sql.create, *columns, *notice_columns(())):
                return False
            await connection.fetch(self._sql.restore_parts, call.id, list(outcomes), closed)
        return True

    # --- reading -----------------------------------------------------------------------------

    async def _load(
        self, connection: "Connection", call_id: str
    ) -> tuple[CallRecord, Sequence[Entry]] | None:
        row = await connection.fetchrow(self._sql.load, call_id)
        if row is None:
            return None
        return self._rows.record(row), self._rows.open_entries(row[LOADED], call_id)

    load = on_connection(_load)

    async def _find(
        self, connection: "Connection", principal: str | None, idempotency_key: str
    ) -> CallRecord | None:
        row = await connection.fetchrow(self._sql.find, digest(principal, idempotency_key))
        return None if row is None else self._rows.record(row)

    find = on_connection(_find)

    @on_connection
    async def due(self, connection: "Connection", limit: int = 100) -> list[CallRecord]:
        rows = await connection.fetch(self._sql.due, self._line.number, self._line.trusted, limit)
        return [self._rows.record(row) for row in rows]

    @on_connection
    async def living(self, connection: "Connection", workers: Sequence[str]) -> set[str]:
        """Which of these workers have not gone, as far as can be told."""
        rows = await connection.fetch(self._sql.living, workers, self._line.trusted)
        return {row[0] for row in rows}

    @on_connection
    async def list(
        self,
        connection: "Connection",
        *,
        status: Sequence[Status] = (),
        principal: str | None = None,
        name: str | None = None,
        addressed: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        kinds, given = ["c.addressed" if addressed else "true"], list[Any]()

        def all_of(condition: str, *values: Any) -> None:
            given.extend(values)
            numbers = (f"${number}" for number in range(len(given) - len(values) + 1, len(given) + 1))
            filled = condition.format(*numbers)
            kinds[:] = [f"{kind} AND {filled}" for kind in kinds]

        if principal is None and not addressed:
            given.extend(status or _STATUSES)
            kinds = [f"c.status = ${number}" for number in range(1, len(given) + 1)]
        elif status:
            all_of("c.status = ANY ({}::text[])", list(status))
        if principal is not None:
            all_of("left(c.principal, 64) = left({0}, 64) AND c.principal = {0}", principal)
        if name is not None:
            all_of("c.name = {}", name)
        if after is not None:
            all_of("(c.created, c.id) < ({}::float8, {}::text)", *page_start(after))
        rows = await connection.fetch(self._sql.list(kinds, limit + 1), *given)
        calls = [self._rows.record(row) for row in rows[:limit]]
        return Page(calls, page_mark(calls[-1]) if len(rows) > limit else None)

    @on_connection
    async def take_notices(
        self, connection: "Connection", channel: str, limit: int, seconds: float
    ) -> Sequence[Notice]:
        rows = await connection.fetch(self._sql.take_notices, limit, seconds, f"{channel}:")
        return [Notice(*row) for row in rows]

    @on_connection
    async def notice_told(self, connection: "Connection", id: str) -> None:
        await connection.fetch(self._sql.notice_told, id)

    @on_connection
    async def postpone_notice(self, connection: "Connection", id: str, seconds: float) -> None:
        await connection.fetch(self._sql.postpone_notice, id, seconds)

    @on_connection
    async def count(self, connection: "Connection") -> dict[str, int]:
        return {row[0]: row[1] for row in await connection.fetch(self._sql.count)}

    @on_connection
    async def held(self, connection: "Connection", principal: str) -> int:
        return int(await connection.fetchval(self._sql.held, principal))

    @on_connection
    async def export(self, connection: "Connection", call_id: str) -> dict[str, Any] | None:
        loaded = await self._load(connection, call_id)
        return None if loaded is None else to_export(*loaded, await self._outcomes(connection, call_id))

    async def _outcomes(self, connection: "Connection", call_id: str) -> dict[int, bytes]:
        rows = await connection.fetch(self._sql.outcomes, call_id)
        return {segment: self._rows.open_outcome(closed, call_id) for segment, closed in rows}

    # --- waiting -----------------------------------------------------------------------------

    async def wait(self, call_id: str, segment: int, seconds: float) -> bytes | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        waiter = _OutcomeWaiter(segment)
        self._waiters.setdefault(call_id, set()).add(waiter)
        try:
            while True:
                waiter.heard.clear()
                outcome, told = await self._outcome(call_id, segment)
                if outcome is not None:
                    return outcome
                left = until - loop.time()
                if left <= 0:
                    return None
                if not told:
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK)):
                        await waiter.heard.wait()
                if waiter.outcome is not None or loop.time() >= until or not self._is_open:
                    return waiter.outcome
        finally:
            waiters = self._waiters[call_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[call_id]

    @on_connection
    async def _outcome(
        self, connection: "Connection", call_id: str, segment: int
    ) -> tuple[bytes | None, bool]:
        """The outcome of a segment, and whether it will be told when there is one."""
        row = await connection.fetchrow(self._sql.wait, call_id, segment)
        if row is None:
            return None, True
        closed, told = row
        return None if closed is None else self._rows.open_outcome(closed, call_id), told

    def tell(self, call_id: str, segment: int, outcome: bytes) -> None:
        for waiter in self._waiters.get(call_id, ()):
            if waiter.segment == segment:
                waiter.outcome = outcome
                waiter.heard.set()

    def _on_heard(self, call_id: str | None) -> None:
        for heard in self._waiters if call_id is None else (call_id,):
            for waiter in self._waiters.get(heard, ()):
                waiter.heard.set()

    # --- inside ------------------------------------------------------------------------------

    def _on_posted(self) -> None:
        self._posts.arrived()

    def _on_post(self, message: bytes) -> None:
        if self.on_post is not None:
            self.on_post(message)

    def _on_renamed(self, name: str) -> None:
        """Others have cleared this worker away: what it ran is not its own any more."""
        self.worker = name
        self._running.clear()

    async def _uncreate(self, call: CallRecord) -> None:
        """Take back a creation that nobody waits for."""
        self._forget(call.id, call.fence)
        await self.reach.run(
            lambda connection, _: connection.fetch(self._sql.uncreate, call.id, self._line.number)
        )

    async def _unclaim(self, call_id: str, segment: int, fence: int | None) -> None:
        """Take back a claim that nobody waits for; its fence was never used."""
        if fence is not None:
            self._forget(call_id, fence)
        elif call_id in self._running:
            return  # it has been claimed again since
        await self.reach.run(
            lambda connection, _: connection.fetch(
                self._sql.unclaim, call_id, segment, self._line.number, fence
            )
        )

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        """Put right what was left in doubt when the database went away, once it is back."""
        while True:
            with contextlib.suppress(JournalError):
                return await work()
            await asyncio.sleep(1)

    @on_connection
    async def _check_sealed(self, connection: "Connection") -> None:
        """Raise `JournalError` if the journal is to be sealed, and its oldest call is not."""
        oldest = await connection.fetchval(self._sql.oldest)
        if oldest is not None:
            self._values.check(oldest, "The oldest call of the journal")
        await self.conversations.check_sealed(connection)
        await self.trees.check_sealed(connection)

    def _forget(self, call_id: str, fence: int) -> None:
        """This worker does not run it any more, unless it has claimed it again since."""
        if self._running.get(call_id) == fence:
            del self._running[call_id]

    async def _why_not(
        self, connection: "Connection", creation: Creation, again: bool
    ) -> CallRecord | JournalError | None:
        """Why a call was not created."""
        call = creation.call
        for _ in range(5):
            if call.idempotency_key is not None:
                taken = await self._find(connection, call.principal, call.idempotency_key)
                if taken is not None and not (again and _same(taken, call)):
                    return taken
            known = await self._load(connection, call.id)
            if known is not None:
                mine = again and _same(known[0], call)
                return None if mine else JournalError(f"The call {call.id} already exists")
            columns = ((value,) for value in self._new_row(creation))  # what was in its way is forgotten
            if await connection.fetch(self._sql.create, *columns, *notice_columns(creation.notices)):
                return None
        return JournalError(f"The call {call.id} cannot be written: its key changes hands too often")

    async def _judge(self, connection: "Connection", row: Any, taking: Taking) -> Claim | None:
        """What a claim came to; nothing if it is to be made again."""
        call_id, status = row[0], row[STATUS]
        if row[APPENDS] is not None:
            entries = row[ENTRIES]
            seen = len(entries) + bool(taking.answers)  # what the statement writes itself, it does not see
            if seen != row[APPENDS]:  # some were written while it was claimed
                entries = (await connection.fetchrow(self._sql.load, call_id))[LOADED]  # type: ignore[index]
            self._running[call_id] = row[FENCE]
            opened = self._rows.open_entries(entries, call_id)
            if seen == row[APPENDS]:
                opened += tuple(taking.answers)
            return Claimed(self._rows.record(row), opened)
        if row[OUTCOME] is not None:
            return Settled(self._rows.open_outcome(row[OUTCOME], call_id))
        if taking.segment != row[SEGMENT] or status in ENDED:
            return Gone(status)
        mine = row[OWNER] == self._line.name
        running = status == "running" and (row[ALIVE] or (mine and call_id in self._running))
        if running or (status == "waiting" and row[ALIVE] and not mine):
            return Busy(self._rows.record(row))
        if taking.fence not in (None, row[FENCE]):
            return Busy(self._rows.record(row))
        return None

    async def _was_appended(self, connection: "Connection", addition: Addition) -> bool:
        loaded = await self._load(connection, addition.call_id)
        if loaded is None or loaded[0].fence != addition.fence or not addition.entries:
            return False
        return tuple(loaded[1][-len(addition.entries) :]) == tuple(addition.entries)

    async def _was_settled(self, connection: "Connection", settlement: Settlement) -> bool:
        row = await connection.fetchrow(self._sql.load, settlement.call_id)
        if row is None or row[FENCE] != settlement.fence:
            return False
        outcomes = await self._outcomes(connection, settlement.call_id)
        return outcomes.get(settlement.segment) == settlement.outcome

    def _fenced(self, call_id: str, fence: int) -> Fenced:
        self._forget(call_id, fence)
        return Fenced(f"This worker does not run the call {call_id} any more")

    def _new_row(self, creation: Creation) -> tuple[Any, ...]:
        call, entries, outcome = creation.call, creation.entries, creation.outcome
        if outcome is None:
            running = replace(call, status="running", claims=1)
            return self._rows.call(running, self._line.number, entries, None)
        owner = None if call.owner is None else self._line.number
        return self._rows.call(replace(call, claims=0), owner, entries, outcome)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _OutcomeWaiter:
    __slots__ = ("heard", "outcome", "segment")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.heard = asyncio.Event()
        self.outcome: bytes | None = None


def _size(entries: Sequence[Entry]) -> int:
    return sum(len(entry.value) for entry in entries)


def _same(one: CallRecord, other: CallRecord) -> bool:
    """Whether a call is the one that was to be created, and no other one with its id."""
    return (one.id, one.created, one.arguments) == (other.id, other.created, other.arguments)

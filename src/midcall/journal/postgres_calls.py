"""What a journal does to its calls, on a connection to PostgreSQL.

The functions of `Calls` are those of `Journal`, without the waiting; those that come in numbers take many
at once and give an answer for each. What is done `again`, because the line broke the last time, comes to
what it would have come to: a call that is there already is ours, a segment that is settled was settled by
us.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from midcall.journal.contract import (
    ENDED,
    Busy,
    CallRecord,
    Claim,
    Claimed,
    Entry,
    Fenced,
    Gone,
    JournalError,
    Page,
    Settled,
    Status,
    page_mark,
    page_start,
)
from midcall.journal.postgres_line import Line
from midcall.journal.postgres_reach import transaction
from midcall.journal.postgres_rows import (
    ALIVE,
    APPENDS,
    ENTRIES,
    FENCE,
    LOADED,
    OUTCOME,
    OWNER,
    SEGMENT,
    STATUS,
    Addition,
    Creation,
    Rows,
    Settlement,
    Taking,
    digest,
)
from midcall.journal.postgres_sql import Statements
from midcall.journal.values import Values

if TYPE_CHECKING:
    from midcall.journal.postgres_reach import Connection

_STATUSES: tuple[Status, ...] = get_args(Status)


class Calls:
    """The calls, as one worker sees them."""

    def __init__(self, sql: Statements, values: Values, line: Line) -> None:
        self._sql = sql
        self._values = values
        self._rows = Rows(values)
        self._line = line
        self.running: dict[str, int] = {}
        """What this worker runs, with the fence."""

    async def check_sealed(self, connection: "Connection") -> None:
        """Raise `JournalError` if the journal is to be sealed, and its oldest call is not."""
        oldest = await connection.fetchval(self._sql.oldest)
        if oldest is not None:
            self._values.check(oldest, "The oldest call of the journal")

    # --- many at once ------------------------------------------------------------------------

    async def create(
        self, connection: "Connection", asked: Sequence[Creation], again: bool
    ) -> list[CallRecord | JournalError | None]:
        """Nothing if it is written; otherwise the call that has its key."""
        begun = {c.call.id for c in asked if c.outcome is None} - self.running.keys()
        # Before anybody can claim it.
        self.running.update((c.call.id, c.call.fence) for c in asked if c.call.id in begun)
        columns = zip(*map(self._new_row, asked), strict=True)
        made = {row[0] for row in await connection.fetch(self._sql.create, *columns)}
        answers: list[CallRecord | JournalError | None] = []
        for creation in asked:
            call_id = creation.call.id
            answer = None if call_id in made else await self._why_not(connection, creation, again)
            if answer is not None and call_id in begun:
                self.running.pop(call_id, None)
            answers.append(answer)
        return answers

    async def claim(
        self, connection: "Connection", asked: Sequence[Taking], again: bool
    ) -> list[Claim | JournalError]:
        answers: dict[str, Claim | JournalError] = {}
        left = list(asked)
        for _ in range(5):
            ids, segments = [taking.call_id for taking in left], [taking.segment for taking in left]
            lost = [call_id not in self.running for call_id in ids]
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
        self, connection: "Connection", asked: Sequence[Addition], again: bool
    ) -> list[JournalError | None]:
        done = {a.call_id for a in asked if again and await self._was_appended(connection, a)}
        left = [a for a in asked if a.call_id not in done]
        if left:
            columns = zip(*map(self._rows.addition, left), strict=True)
            done |= {row[0] for row in await connection.fetch(self._sql.append, *columns, self._line.number)}
        return [None if a.call_id in done else self._fenced(a.call_id, a.fence) for a in asked]

    async def settle(
        self, connection: "Connection", asked: Sequence[Settlement], again: bool
    ) -> list[JournalError | None]:
        columns = zip(*map(self._rows.settlement, asked), strict=True)
        done = {row[0] for row in await connection.fetch(self._sql.settle, *columns, self._line.number)}
        answers: list[JournalError | None] = []
        for settlement in asked:
            if settlement.call_id in done or (again and await self._was_settled(connection, settlement)):
                self.forget(settlement.call_id, settlement.fence)
                answers.append(None)
            else:
                answers.append(self._fenced(settlement.call_id, settlement.fence))
        return answers

    # --- one at a time -----------------------------------------------------------------------

    async def uncreate(self, connection: "Connection", call_id: str) -> None:
        """Take back a creation that nobody waits for."""
        await connection.fetch(self._sql.uncreate, call_id, self._line.number)

    async def unclaim(self, connection: "Connection", call_id: str, segment: int, fence: int | None) -> None:
        """Take back a claim that nobody waits for; its fence was never used."""
        await connection.fetch(self._sql.unclaim, call_id, segment, self._line.number, fence)

    async def release(
        self, connection: "Connection", call_id: str, fence: int, diverged: bool, again: bool
    ) -> None:
        status = "diverged" if diverged else "running"
        if not await connection.fetchval(self._sql.release, call_id, fence, self._line.number, status):
            row = await connection.fetchrow(self._sql.load, call_id) if again else None
            if row is None or (row[FENCE], row[STATUS], row[OWNER]) != (fence, status, None):
                raise self._fenced(call_id, fence)
        self.forget(call_id, fence)

    async def end(
        self, connection: "Connection", call_id: str, status: Status, outcome: bytes, expires: float
    ) -> int | None:
        """The segment that it was the end of."""
        closed = self._rows.close_outcome(outcome, call_id)
        segment: int | None = await connection.fetchval(self._sql.end, call_id, status, closed, expires)
        if segment is not None:
            self.running.pop(call_id, None)
        return segment

    async def outcome(
        self, connection: "Connection", call_id: str, segment: int
    ) -> tuple[bytes | None, bool]:
        """The outcome of a segment, and whether it will be told when there is one."""
        row = await connection.fetchrow(self._sql.wait, call_id, segment)
        if row is None:
            return None, True
        closed, told = row
        return None if closed is None else self._rows.open_outcome(closed, call_id), told

    async def load(self, connection: "Connection", call_id: str) -> tuple[CallRecord, Sequence[Entry]] | None:
        row = await connection.fetchrow(self._sql.load, call_id)
        if row is None:
            return None
        return self._rows.record(row), self._rows.open_entries(row[LOADED], call_id)

    async def outcomes(self, connection: "Connection", call_id: str) -> dict[int, bytes]:
        rows = await connection.fetch(self._sql.outcomes, call_id)
        return {segment: self._rows.open_outcome(closed, call_id) for segment, closed in rows}

    async def find(
        self, connection: "Connection", principal: str | None, idempotency_key: str
    ) -> CallRecord | None:
        row = await connection.fetchrow(self._sql.find, digest(principal, idempotency_key))
        return None if row is None else self._rows.record(row)

    async def due(self, connection: "Connection", limit: int) -> list[CallRecord]:
        rows = await connection.fetch(self._sql.due, self._line.number, self._line.trusted, limit)
        return [self._rows.record(row) for row in rows]

    async def living(self, connection: "Connection", workers: Sequence[str]) -> set[str]:
        rows = await connection.fetch(self._sql.living, workers, self._line.trusted)
        return {row[0] for row in rows}

    async def sweep(self, connection: "Connection", limit: int) -> int:
        over: int = await connection.fetchval(self._sql.sweep, limit)
        await connection.fetch(self._sql.sweep_workers, self._line.number, self._line.trusted)
        return over

    async def list(
        self,
        connection: "Connection",
        status: Sequence[Status],
        principal: str | None,
        name: str | None,
        after: str | None,
        limit: int,
    ) -> Page:
        kinds, given = ["true"], list[Any]()

        def all_of(condition: str, *values: Any) -> None:
            given.extend(values)
            numbers = (f"${number}" for number in range(len(given) - len(values) + 1, len(given) + 1))
            filled = condition.format(*numbers)
            kinds[:] = [f"{kind} AND {filled}" for kind in kinds]

        if principal is None:
            given.extend(status or _STATUSES)
            kinds = [f"c.status = ${number}" for number in range(1, len(given) + 1)]
        else:
            all_of("left(c.principal, 64) = left({0}, 64) AND c.principal = {0}", principal)
            if status:
                all_of("c.status = ANY ({}::text[])", list(status))
        if name is not None:
            all_of("c.name = {}", name)
        if after is not None:
            all_of("(c.created, c.id) < ({}::float8, {}::text)", *page_start(after))
        rows = await connection.fetch(self._sql.list(kinds, limit + 1), *given)
        calls = [self._rows.record(row) for row in rows[:limit]]
        return Page(calls, page_mark(calls[-1]) if len(rows) > limit else None)

    async def count(self, connection: "Connection") -> dict[str, int]:
        return {row[0]: row[1] for row in await connection.fetch(self._sql.count)}

    async def probe(self, connection: "Connection") -> None:
        await connection.fetch(self._sql.beat, self._line.number)

    async def held(self, connection: "Connection", principal: str) -> int:
        return int(await connection.fetchval(self._sql.held, principal))

    async def secret(self, connection: "Connection", name: str, made: bytes) -> bytes | None:
        """Nothing if another worker has made it just now."""
        closed = self._values.close(made, "secret", name)
        kept: bytes | None = await connection.fetchval(self._sql.secret, name, closed)
        return None if kept is None else self._values.open(kept, "secret", name)

    async def restore(
        self,
        connection: "Connection",
        call: CallRecord,
        entries: Sequence[Entry],
        outcomes: dict[int, bytes],
    ) -> bool:
        closed = [self._rows.close_outcome(outcome, call.id) for outcome in outcomes.values()]
        async with transaction(connection):
            columns = ((value,) for value in self._rows.call(call, None, entries, None, call.updated))
            if not await connection.fetch(self._sql.create, *columns):
                return False
            await connection.fetch(self._sql.restore_parts, call.id, list(outcomes), closed)
        return True

    def forget(self, call_id: str, fence: int) -> None:
        """This worker does not run it any more, unless it has claimed it again since."""
        if self.running.get(call_id) == fence:
            del self.running[call_id]

    # --- inside ------------------------------------------------------------------------------

    async def _why_not(
        self, connection: "Connection", creation: Creation, again: bool
    ) -> CallRecord | JournalError | None:
        """Why a call was not created."""
        call = creation.call
        for _ in range(5):
            if call.idempotency_key is not None:
                taken = await self.find(connection, call.principal, call.idempotency_key)
                if taken is not None and not (again and _same(taken, call)):
                    return taken
            known = await self.load(connection, call.id)
            if known is not None:
                mine = again and _same(known[0], call)
                return None if mine else JournalError(f"There is a call {call.id} already")
            columns = ((value,) for value in self._new_row(creation))  # what was in its way is forgotten
            if await connection.fetch(self._sql.create, *columns):
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
            self.running[call_id] = row[FENCE]
            opened = self._rows.open_entries(entries, call_id)
            if seen == row[APPENDS]:
                opened += tuple(taking.answers)
            return Claimed(self._rows.record(row), opened)
        if row[OUTCOME] is not None:
            return Settled(self._rows.open_outcome(row[OUTCOME], call_id))
        if taking.segment != row[SEGMENT] or status in ENDED:
            return Gone(status)
        mine = row[OWNER] == self._line.name and call_id in self.running
        if status == "running" and (mine or row[ALIVE]):
            return Busy(self._rows.record(row))
        if taking.fence not in (None, row[FENCE]):
            return Busy(self._rows.record(row))
        return None

    async def _was_appended(self, connection: "Connection", addition: Addition) -> bool:
        loaded = await self.load(connection, addition.call_id)
        if loaded is None or loaded[0].fence != addition.fence or not addition.entries:
            return False
        return tuple(loaded[1][-len(addition.entries) :]) == tuple(addition.entries)

    async def _was_settled(self, connection: "Connection", settlement: Settlement) -> bool:
        row = await connection.fetchrow(self._sql.load, settlement.call_id)
        if row is None or row[FENCE] != settlement.fence:
            return False
        outcomes = await self.outcomes(connection, settlement.call_id)
        return outcomes.get(settlement.segment) == settlement.outcome

    def _fenced(self, call_id: str, fence: int) -> Fenced:
        self.forget(call_id, fence)
        return Fenced(f"This worker does not run the call {call_id} any more")

    def _new_row(self, creation: Creation) -> tuple[Any, ...]:
        call, entries, outcome = creation.call, creation.entries, creation.outcome
        if outcome is None:
            running = replace(call, status="running", claims=1)
            return self._rows.call(running, self._line.number, entries, None)
        return self._rows.call(replace(call, claims=0), None, entries, outcome)


def _same(one: CallRecord, other: CallRecord) -> bool:
    """Whether a call is the one that was to be created, and no other one with its id."""
    return (one.id, one.created, one.arguments) == (other.id, other.created, other.arguments)

"""Conversations and runs in the database of a journal. The clock of the database is the one that counts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from midcall.errors import MidcallError
from midcall.journal.commit import StoreAway
from midcall.journal.contract import (
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
from midcall.journal.postgres.reach import Reach, on_connection, transaction
from midcall.journal.postgres.rows import digest
from midcall.journal.postgres.sql import Statements
from midcall.journal.seal import ConversationValues, Values

if TYPE_CHECKING:
    from midcall.journal.postgres.journal import PostgresJournal
    from midcall.journal.postgres.reach import Connection

T = TypeVar("T")


class _Lines(NamedTuple):
    """Lines of a run that are to be written."""

    run: str
    first: int
    lines: Sequence[bytes]
    ended: bool


class PostgresConversations:
    """The conversations of one schema."""

    def __init__(self, reach: Reach, sql: Statements, values: Values, journal: "PostgresJournal") -> None:
        self.reach = reach
        self._journal = journal
        self._sql = sql
        self._values = ConversationValues(values)

    @on_connection
    async def load(
        self, connection: "Connection", id: str, principal: str | None
    ) -> ConversationRecord | None:
        row = await connection.fetchrow(self._sql.load_conversation, digest(principal, id))
        return None if row is None else self._values.record(id, principal, *row)

    async def save(
        self,
        record: ConversationRecord,
        end: RunEnd | None = None,
        begins: str | None = None,
        call: CallWrite[T] | None = None,
    ) -> Saved[T]:
        values = self._row(record)

        async def write(connection: "Connection", again: bool) -> bool:
            if record.version == 1:
                done = await connection.fetch(self._sql.insert_conversation, *values)
            else:
                done = await connection.fetch(self._sql.update_conversation, *values[:7])
            if not done and again:  # the line broke, and it may have been done
                key, version, body = values[0], values[1], values[6]
                return bool(await connection.fetchval(self._sql.has_conversation, key, version, body))
            return bool(done)

        async def write_all(connection: "Connection", again: bool) -> Saved[T] | None:
            """Nothing if the conversation could not be written."""
            if end is None and begins is None and call is None:
                return Saved(ended=True) if await write(connection, again) else None
            came, ended = None, True
            try:
                async with transaction(connection):
                    if not await write(connection, again):
                        return None
                    if begins is not None:
                        await connection.fetch(self._sql.begin_run, begins, record.id, record.principal)
                    if end is not None:
                        last = _Lines(end.run, end.first, end.lines, ended=True)
                        (stop,) = await self._append(connection, [last], again)
                        ended = not isinstance(stop, MidcallError)
                    if call is not None:
                        came = await self._journal.write_call(connection, call, again)
            except BaseException:
                self._journal.undone(call, came)
                raise
            return Saved(ended, came)

        try:
            saved = await self.reach.run(write_all)
        except StoreAway as error:
            self._journal.in_doubt(call, error)
            raise
        if saved is None:
            raise Conflict("The conversation has changed in the meantime")
        if isinstance(call, Settlement) and saved.call is None:
            self._journal.tell(call.call_id, call.segment, call.outcome)
        return saved

    async def delete(self, id: str, principal: str | None) -> bool:
        async def remove(connection: "Connection", again: bool) -> bool:
            async with transaction(connection):
                done = await connection.fetch(self._sql.delete_conversation, digest(principal, id))
                runs = await connection.fetch(self._sql.delete_runs, id, principal)
                await connection.fetch(self._sql.delete_lines, [row[0] for row in runs])
            return again or bool(done)

        return await self.reach.run(remove)

    @on_connection
    async def list(
        self, connection: "Connection", principal: str | None, limit: int = LISTED
    ) -> Sequence[ConversationRecord]:
        rows = await connection.fetch(self._sql.list_conversations, principal, limit)
        return [self._values.record(id, principal, *rest) for id, *rest in rows]

    @on_connection
    async def held(self, connection: "Connection", principal: str) -> tuple[int, int]:
        ((count, size),) = await connection.fetch(self._sql.held_conversations, principal)
        return count, size

    @on_connection
    async def every(
        self, connection: "Connection", after: str | None = None, limit: int = 100
    ) -> ConversationPage:
        rows = await connection.fetch(self._sql.every_conversation, bytes.fromhex(after or ""), limit + 1)
        some = [self._values.record(*row) for _, *row in rows[:limit]]
        return ConversationPage(some, rows[limit - 1][0].hex() if len(rows) > limit else None)

    # --- runs --------------------------------------------------------------------------------

    @on_connection
    async def begin_run(
        self, connection: "Connection", run: str, conversation_id: str, principal: str | None
    ) -> None:
        await connection.fetch(self._sql.begin_run, run, conversation_id, principal)

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        stop: bool = await self.reach.together(
            self._append, _Lines(run, first, lines, ended), key=run, size=sum(map(len, lines))
        )
        return stop

    async def _append(
        self, connection: "Connection", asked: Sequence[_Lines], again: bool
    ) -> Sequence[bool | MidcallError]:
        """Whether each of the runs is to stop."""
        grown = await self._grow(connection, asked)
        return [
            grown[one.run] if one.run in grown else await self._append_one(connection, one) for one in asked
        ]

    async def _grow(self, connection: "Connection", asked: Sequence[_Lines]) -> dict[str, bool]:
        """Write lines to the runs that end just before them: whether each of these is to stop."""
        rows = [(one.run, one.first, len(one.lines), one.ended, self._close(one)) for one in asked]
        columns = zip(*rows, strict=True)
        return {row[0]: row[1] for row in await connection.fetch(self._sql.append_lines, *columns)}

    async def _append_one(self, connection: "Connection", one: _Lines) -> bool | MidcallError:
        """Write those lines to a run that it does not have yet."""
        for _ in range(5):
            row = await connection.fetchrow(self._sql.load_run, one.run)
            if row is None:
                return False
            count: int = row[2]
            if count < one.first - 1:
                return Conflict("The run has fewer lines")
            try:
                new = new_lines(await self._lines(connection, one.run, one.first - 1), one.lines)
            except Conflict as error:
                return error
            grown = await self._grow(connection, [_Lines(one.run, count + 1, new, one.ended)])
            if one.run in grown:
                return grown[one.run]
        return JournalError(f"The run {one.run} changes too often to be written")

    @on_connection
    async def stop_run(self, connection: "Connection", run: str) -> None:
        await connection.fetch(self._sql.stop_run, run)

    @on_connection
    async def run(self, connection: "Connection", run: str) -> RunRecord | None:
        row = await connection.fetchrow(self._sql.load_run, run)
        return None if row is None else RunRecord(run, *row)

    # --- inside ------------------------------------------------------------------------------

    async def insert(self, connection: "Connection", record: ConversationRecord) -> bool:
        """Write a conversation down; false if it is known."""
        return bool(await connection.fetch(self._sql.insert_conversation, *self._row(record)))

    restore = on_connection(insert)

    async def insert_run(
        self, connection: "Connection", run: RunRecord, lines: Sequence[bytes], stop: bool
    ) -> None:
        """Write a whole run down, unless it is known."""
        closed = self._close(_Lines(run.id, 1, lines, run.ended))
        row = (run.id, run.conversation_id, run.principal, run.lines, run.ended, stop, run.seen, closed)
        await connection.execute(self._sql.insert_run, *row)

    async def sweep(self, connection: "Connection", limit: int) -> int:
        """Forget runs of which nothing was heard for long; how many."""
        gone: int = await connection.fetchval(self._sql.sweep_runs, limit)
        return gone

    async def check_sealed(self, connection: "Connection") -> None:
        """Raise `JournalError` if the journal is to be sealed, and what was said is not."""
        for found, name in (
            (self._sql.oldest_conversation, "A conversation of the journal"),
            (self._sql.oldest_lines, "A run of the journal"),
        ):
            value = await connection.fetchval(found)
            if value is not None:
                self._values.check(value, name)

    async def _lines(self, connection: "Connection", run: str, after: int) -> Sequence[bytes]:
        rows = await connection.fetch(self._sql.lines, run, after + 1)
        return self._values.open_lines(run, ((first, data) for first, data in rows), after)

    lines = on_connection(_lines)

    def _row(self, record: ConversationRecord) -> tuple[Any, ...]:
        key, closed = digest(record.principal, record.id), self._values.close(record)
        values = (key, record.version, record.updated, record.waiting, record.run, *closed)
        return (*values, record.id, record.principal)

    def _close(self, one: _Lines) -> bytes | None:
        return self._values.close_lines(one.run, one.first, one.lines) if one.lines else None

"""Conversations in PostgreSQL, beside the journal of the same kind, for several workers.

The clock of the database is the one that counts. It is reached as by the journal (`postgres_reach`): what is
asked for waits a while for a database that is away, and may be done once more if the line broke. Lines of
many runs are written together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import asyncpg
import msgspec

from midcall.chat.conversation import Conversation
from midcall.chat.store import KEEP_RUNS, MAX_LISTED, Conflict, Listed, RunState
from midcall.errors import JournalError
from midcall.journal.postgres import PATIENCE
from midcall.journal.postgres_queue import Queue
from midcall.journal.postgres_reach import Reach, transaction

if TYPE_CHECKING:
    from midcall.journal.postgres_reach import Connection

T = TypeVar("T")

_TABLES = """
CREATE SCHEMA IF NOT EXISTS midcall_chat;
CREATE TABLE IF NOT EXISTS midcall_chat.conversations (
    id text NOT NULL, principal text, title text NOT NULL, updated double precision NOT NULL,
    version bigint NOT NULL, waiting boolean NOT NULL, run text, body bytea NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS conversations_by_id ON midcall_chat.conversations (id, principal);
CREATE UNIQUE INDEX IF NOT EXISTS conversations_of_nobody ON midcall_chat.conversations (id)
    WHERE principal IS NULL;
DO $$ BEGIN
    -- From when an id was one person's alone.
    IF EXISTS (SELECT FROM pg_constraint WHERE conname = 'conversations_pkey'
            AND conrelid = 'midcall_chat.conversations'::regclass) THEN
        ALTER TABLE midcall_chat.conversations DROP CONSTRAINT conversations_pkey;
    END IF;
END $$;
CREATE INDEX IF NOT EXISTS conversations_by_person ON midcall_chat.conversations (principal, updated DESC);
CREATE TABLE IF NOT EXISTS midcall_chat.runs (
    id text PRIMARY KEY, conversation text NOT NULL, principal text, ended boolean NOT NULL,
    seen timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS midcall_chat.lines (
    run text NOT NULL, lsn bigint NOT NULL, line bytea NOT NULL, PRIMARY KEY (run, lsn)
);
CREATE TABLE IF NOT EXISTS midcall_chat.to_stop (run text PRIMARY KEY);
"""

_LOCK = 0x6D69_6463_6861_74
"""Held by whoever makes the tables: two that do so at once get in each other's way."""

_decode = msgspec.json.Decoder(Conversation).decode


_APPEND = """
    WITH given AS (
        SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS given (run, lsn, line)
    ), written AS (
        INSERT INTO midcall_chat.lines SELECT * FROM given WHERE NOT EXISTS (
            SELECT FROM midcall_chat.lines AS kept
            WHERE kept.run = given.run AND kept.lsn = given.lsn AND kept.line = given.line
        )
    )
    UPDATE midcall_chat.runs SET ended = runs.ended OR of.ended, seen = now()
    FROM unnest($4::text[], $5::boolean[]) AS of (id, ended) WHERE runs.id = of.id
    RETURNING runs.id, EXISTS (SELECT FROM midcall_chat.to_stop WHERE run = runs.id)
"""


class _Lines(NamedTuple):
    """Lines of a run that are to be written."""

    run: str
    first: int
    lines: Sequence[bytes]
    ended: bool


class PostgresStore:
    """Keeps conversations in a database."""

    def __init__(
        self, url: str, *, connections: int = 4, pooled: bool = True, patience: float = PATIENCE
    ) -> None:
        """Unless `pooled` is false, there may be a pooler in between that deals out transactions.

        `patience` is for how many seconds everything waits for a database that is away.
        """
        self._reach = Reach(url, connections=connections, patience=patience, pooled=pooled)
        self._lines: Queue[_Lines, bool] = Queue(self._append)
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Make it ready. What fails may be tried again."""
        if self._writing is not None:
            return
        await self._reach.open()
        try:
            await self._reach.run(_make_tables)
        except BaseException:
            await self._reach.close()
            raise
        self._lines = Queue(self._append)
        self._writing = asyncio.create_task(self._lines.run())

    async def close(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            await asyncio.wait((writing,))
            await self._reach.close()

    async def load(self, id: str, principal: str | None) -> Conversation | None:
        body = await self._run(
            lambda connection, _: connection.fetchval(
                "SELECT body FROM midcall_chat.conversations "
                "WHERE id = $1 AND principal IS NOT DISTINCT FROM $2",
                id,
                principal,
            )
        )
        return None if body is None else _decode(body)

    async def save(self, conversation: Conversation) -> None:
        known, conversation.version = conversation.version, conversation.version + 1
        body = msgspec.json.encode(conversation)

        async def write(connection: "Connection", again: bool) -> bool:
            done = await connection.execute(
                "UPDATE midcall_chat.conversations SET title = $3, updated = $4, version = $5, "
                "waiting = $6, run = $7, body = $8 "
                "WHERE id = $1 AND version = $9 AND principal IS NOT DISTINCT FROM $2"
                if known
                else "INSERT INTO midcall_chat.conversations VALUES ($1, $2, $3, $4, $5, $6, $7, $8) "
                "ON CONFLICT DO NOTHING",
                conversation.id,
                conversation.principal,
                conversation.title,
                conversation.updated,
                conversation.version,
                bool(conversation.pending),
                conversation.run,
                body,
                *((known,) if known else ()),
            )
            return _count(done) > 0 or (again and await self._has(connection, conversation, body))

        try:
            written = await self._run(write)
        except JournalError:
            conversation.version = known
            raise
        if not written:
            conversation.version = known
            raise Conflict("The conversation was changed meanwhile")

    async def _has(self, connection: "Connection", conversation: Conversation, body: bytes) -> bool:
        """Whether this is what is written: the line broke, and it may have been done."""
        return bool(
            await connection.fetchval(
                "SELECT true FROM midcall_chat.conversations "
                "WHERE id = $1 AND principal IS NOT DISTINCT FROM $2 AND body = $3",
                conversation.id,
                conversation.principal,
                body,
            )
        )

    async def delete(self, id: str, principal: str | None) -> bool:
        async def remove(connection: "Connection", again: bool) -> bool:
            done = await connection.execute(
                "DELETE FROM midcall_chat.conversations WHERE id = $1 AND principal IS NOT DISTINCT FROM $2",
                id,
                principal,
            )
            return again or _count(done) > 0

        return await self._run(remove)

    async def list(self, principal: str | None) -> Sequence[Listed]:
        rows = await self._run(
            lambda connection, _: connection.fetch(
                "SELECT id, title, updated, waiting, run IS NOT NULL FROM midcall_chat.conversations "
                "WHERE principal IS NOT DISTINCT FROM $1 ORDER BY updated DESC LIMIT $2",
                principal,
                MAX_LISTED,
            )
        )
        return [Listed(*row) for row in rows]

    async def held(self, principal: str) -> tuple[int, int]:
        rows = await self._run(
            lambda connection, _: connection.fetch(
                "SELECT octet_length(body) FROM midcall_chat.conversations WHERE principal = $1", principal
            )
        )
        return len(rows), sum(row[0] for row in rows)

    # --- runs --------------------------------------------------------------------------------

    async def begin_run(self, run: str, conversation_id: str, principal: str | None) -> None:
        await self._run(
            lambda connection, _: connection.execute(
                "INSERT INTO midcall_chat.runs VALUES ($1, $2, $3, false) ON CONFLICT DO NOTHING",
                run,
                conversation_id,
                principal,
            )
        )

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        self._check()
        try:
            return await self._lines.ask(run, _Lines(run, first, lines, ended), sum(map(len, lines)))
        except JournalError as error:
            if isinstance(error.__cause__, asyncpg.UniqueViolationError):
                raise Conflict("The run has other lines") from None
            raise

    async def _append(self, together: Sequence[_Lines]) -> Sequence[bool | JournalError]:
        """Write lines of many runs: all or none. Gives which of the runs are to stop."""
        rows = [
            (one.run, number, line) for one in together for number, line in enumerate(one.lines, one.first)
        ]
        told = await self._reach.run(
            lambda connection, _: connection.fetch(
                _APPEND,
                [run for run, _, _ in rows],
                [number for _, number, _ in rows],
                [line for _, _, line in rows],
                [one.run for one in together],
                [one.ended for one in together],
            )
        )
        to_stop = {run for run, stops in told if stops}
        return [one.run in to_stop for one in together]

    async def stop_run(self, run: str) -> None:
        await self._run(
            lambda connection, _: connection.execute(
                "INSERT INTO midcall_chat.to_stop VALUES ($1) ON CONFLICT DO NOTHING", run
            )
        )

    async def run(self, run: str) -> RunState | None:
        row = await self._run(
            lambda connection, _: connection.fetchrow(
                "SELECT conversation, principal, ended, extract(epoch FROM seen)::float8, "
                "extract(epoch FROM now())::float8, "
                "(SELECT coalesce(max(lsn), 0) FROM midcall_chat.lines WHERE run = runs.id) "
                "FROM midcall_chat.runs WHERE id = $1",
                run,
            )
        )
        if row is None:
            return None
        conversation, principal, ended, seen, now, lines = row
        return RunState(run, conversation, principal, lines, ended, seen, now)

    async def lines(self, run: str, after: int) -> Sequence[bytes]:
        rows = await self._run(
            lambda connection, _: connection.fetch(
                "SELECT line FROM midcall_chat.lines WHERE run = $1 AND lsn > $2 ORDER BY lsn", run, after
            )
        )
        return [row[0] for row in rows]

    async def sweep(self) -> None:
        await self._run(_sweep)

    async def _run(self, work: "Callable[[Connection, bool], Awaitable[T]]") -> T:
        self._check()
        return await self._reach.run(work)

    def _check(self) -> None:
        if self._writing is None:
            raise JournalError("The conversations are not open")


async def _make_tables(connection: "Connection", again: bool) -> None:
    async with transaction(connection):
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(_TABLES)


async def _sweep(connection: "Connection", again: bool) -> None:
    async with transaction(connection):
        gone = await connection.fetch(
            "DELETE FROM midcall_chat.runs WHERE seen < now() - make_interval(secs => $1) RETURNING id",
            KEEP_RUNS,
        )
        await connection.execute(
            "DELETE FROM midcall_chat.lines WHERE run = ANY($1)", [row[0] for row in gone]
        )
        await connection.execute(
            "DELETE FROM midcall_chat.to_stop WHERE run NOT IN (SELECT id FROM midcall_chat.runs)"
        )


def _count(done: str) -> int:
    """How many rows a statement has changed."""
    return int(done.rpartition(" ")[2])

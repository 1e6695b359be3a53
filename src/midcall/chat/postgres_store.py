"""Conversations in PostgreSQL, beside the journal of the same kind, for several workers.

The clock of the database is the one that counts. What the database has against a statement is a
`JournalError`, and may be tried again. Lines of many runs are written together, on one connection: the others
are for conversations, which somebody waits for.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg
import msgspec

from midcall.chat.conversation import Conversation
from midcall.chat.store import KEEP_RUNS, MAX_LISTED, Conflict, Listed, RunState
from midcall.errors import JournalError

_TABLES = """
CREATE SCHEMA IF NOT EXISTS midcall_chat;
CREATE TABLE IF NOT EXISTS midcall_chat.conversations (
    id text PRIMARY KEY, principal text, title text NOT NULL, updated double precision NOT NULL,
    version bigint NOT NULL, waiting boolean NOT NULL, run text, body bytea NOT NULL
);
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


class _Lines(NamedTuple):
    """Lines of a run that are to be written."""

    run: str
    first: int
    lines: Sequence[bytes]
    ended: bool
    written: "asyncio.Future[bool]"
    """Whether the run is to stop."""


class PostgresStore:
    """Keeps conversations in a database."""

    def __init__(self, url: str, *, connections: int = 4) -> None:
        self._url = url
        self._connections = connections
        self._pool: asyncpg.Pool | None = None
        self._waiting: list[_Lines] = []
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Make it ready. What fails may be tried again."""
        if self._pool is not None:
            return
        try:
            pool = await asyncpg.create_pool(
                self._url,
                min_size=1,
                max_size=self._connections,
                statement_cache_size=0,  # behind a pooler, the next statement may meet another connection
                timeout=10,
                command_timeout=30,
            )
        except (OSError, asyncpg.PostgresError, TimeoutError) as error:
            raise JournalError(f"The conversations cannot be opened: {error}") from error
        self._pool = pool
        try:
            async with self._connection() as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                await connection.execute(_TABLES)
        except BaseException:
            self._pool = None  # so that it is tried again
            pool.terminate()
            raise

    async def close(self) -> None:
        while self._writing is not None:
            await asyncio.wait((self._writing,))
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def load(self, id: str, principal: str | None) -> Conversation | None:
        async with self._connection() as connection:
            body = await connection.fetchval(
                "SELECT body FROM midcall_chat.conversations "
                "WHERE id = $1 AND principal IS NOT DISTINCT FROM $2",
                id,
                principal,
            )
        return None if body is None else _decode(body)

    async def save(self, conversation: Conversation) -> None:
        known, conversation.version = conversation.version, conversation.version + 1
        try:
            async with self._connection() as connection:
                written = await connection.execute(
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
                    msgspec.json.encode(conversation),
                    *((known,) if known else ()),
                )
        except JournalError:
            conversation.version = known
            raise
        if written.rpartition(" ")[2] == "0":
            conversation.version = known
            raise Conflict("The conversation was changed meanwhile")

    async def delete(self, id: str, principal: str | None) -> bool:
        async with self._connection() as connection:
            done = await connection.execute(
                "DELETE FROM midcall_chat.conversations WHERE id = $1 AND principal IS NOT DISTINCT FROM $2",
                id,
                principal,
            )
        return done.rpartition(" ")[2] != "0"

    async def list(self, principal: str | None) -> Sequence[Listed]:
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT id, title, updated, waiting, run IS NOT NULL FROM midcall_chat.conversations "
                "WHERE principal IS NOT DISTINCT FROM $1 ORDER BY updated DESC LIMIT $2",
                principal,
                MAX_LISTED,
            )
        return [Listed(*row) for row in rows]

    async def held(self, principal: str) -> tuple[int, int]:
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT octet_length(body) FROM midcall_chat.conversations WHERE principal = $1", principal
            )
        return len(rows), sum(row[0] for row in rows)

    # --- runs --------------------------------------------------------------------------------

    async def begin_run(self, run: str, conversation_id: str, principal: str | None) -> None:
        async with self._connection() as connection:
            await connection.execute(
                "INSERT INTO midcall_chat.runs VALUES ($1, $2, $3, false)", run, conversation_id, principal
            )

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Lines(run, first, lines, ended, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return await written

    async def stop_run(self, run: str) -> None:
        async with self._connection() as connection:
            await connection.execute(
                "INSERT INTO midcall_chat.to_stop VALUES ($1) ON CONFLICT DO NOTHING", run
            )

    async def _write(self) -> None:
        """Write what there is to write, and meanwhile let more of it come together."""
        try:
            while self._waiting:
                together, self._waiting = self._waiting, []
                try:
                    to_stop = await self._write_together(together)
                except Conflict:  # of one of them
                    for one in together:
                        await self._write_alone(one)
                except JournalError as error:
                    _tell(together, error)
                else:
                    _tell(together, to_stop)
        finally:
            self._writing = None

    async def _write_alone(self, one: _Lines) -> None:
        try:
            to_stop = await self._write_together((one,))
        except (JournalError, Conflict) as error:
            _tell((one,), error)
        else:
            _tell((one,), to_stop)

    async def _write_together(self, together: Sequence[_Lines]) -> set[str]:
        """Write lines; gives the runs that are to stop."""
        rows = [
            (one.run, number, line) for one in together for number, line in enumerate(one.lines, one.first)
        ]
        runs = [(one.run, one.ended) for one in together]
        try:
            async with self._connection() as connection, connection.transaction():
                await connection.executemany("INSERT INTO midcall_chat.lines VALUES ($1, $2, $3)", rows)
                await connection.executemany(
                    "UPDATE midcall_chat.runs SET ended = $2, seen = now() WHERE id = $1", runs
                )
                to_stop = await connection.fetch(
                    "SELECT run FROM midcall_chat.to_stop WHERE run = ANY($1)", [one.run for one in together]
                )
                return {row[0] for row in to_stop}
        except JournalError as error:
            if isinstance(error.__cause__, asyncpg.UniqueViolationError):
                raise Conflict("The run has other lines") from None
            raise

    async def run(self, run: str) -> RunState | None:
        async with self._connection() as connection:
            row = await connection.fetchrow(
                "SELECT conversation, principal, ended, extract(epoch FROM seen)::float8, "
                "extract(epoch FROM now())::float8, "
                "(SELECT coalesce(max(lsn), 0) FROM midcall_chat.lines WHERE run = runs.id) "
                "FROM midcall_chat.runs WHERE id = $1",
                run,
            )
        if row is None:
            return None
        conversation, principal, ended, seen, now, lines = row
        return RunState(run, conversation, principal, lines, ended, seen, now)

    async def lines(self, run: str, after: int) -> Sequence[bytes]:
        async with self._connection() as connection:
            rows = await connection.fetch(
                "SELECT line FROM midcall_chat.lines WHERE run = $1 AND lsn > $2 ORDER BY lsn", run, after
            )
        return [row[0] for row in rows]

    async def sweep(self) -> None:
        async with self._connection() as connection, connection.transaction():
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

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        if self._pool is None:
            raise JournalError("The conversations are not open")
        try:
            async with self._pool.acquire(timeout=10) as connection:
                yield connection
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise JournalError(f"The conversations cannot be reached: {error}") from error


def _tell(together: Sequence[_Lines], outcome: set[str] | Exception) -> None:
    for one in together:
        if one.written.done():
            continue  # nobody waits for it any more
        if isinstance(outcome, Exception):
            one.written.set_exception(outcome)
        else:
            one.written.set_result(one.run in outcome)

"""The tables of a journal in PostgreSQL: to make them, and to bring them up to date.

Everything is in one schema, `midcall` unless another one is given. Whoever owns the schema, or may make
one, has rights enough. Of workers that start together one migrates, and the others wait for it.
"""

import logging
import re
import zlib
from typing import TYPE_CHECKING

import asyncpg

from midcall.errors import JournalError
from midcall.journal.contract import ConversationRecord, RunRecord
from midcall.journal.postgres.reach import transaction

if TYPE_CHECKING:
    from midcall.journal.postgres.conversations import PostgresConversations
    from midcall.journal.postgres.reach import Connection

log = logging.getLogger("midcall.journal")

MIGRATIONS = (
    # `calls` is what changes often, and small; `parts` is written once. The numbers `n` keep what is new
    # together, however random the ids are. Every index is as small as the question that it answers, since
    # most transitions must keep it up; only `append` changes nothing that is indexed, and stays on its page.
    """
    CREATE TABLE midcall.workers (
        number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL,
        seen float8 NOT NULL
    ) WITH (fillfactor = 50);
    CREATE TABLE midcall.calls (
        n bigint GENERATED ALWAYS AS IDENTITY,
        created float8 NOT NULL,
        expires float8 NOT NULL,
        wake float8,
        updated float8 NOT NULL,
        segment int NOT NULL,
        fence int NOT NULL,
        claims int NOT NULL,
        owner int,                      -- a number of `workers`
        appends int NOT NULL,           -- how many parts of kind 1 it has
        waited int NOT NULL DEFAULT -1, -- the last segment that somebody elsewhere waits for
        id text COLLATE "C" PRIMARY KEY,
        status text COLLATE "C" NOT NULL,
        before text COLLATE "C",        -- the status before the claim
        name text COLLATE "C" NOT NULL,
        principal text COLLATE "C",
        idempotency_key text,
        key bytea,                      -- a digest of the key and the principal: neither has a largest size
        questions bytea NOT NULL
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
    CREATE UNIQUE INDEX calls_by_key ON midcall.calls (key) WHERE key IS NOT NULL;
    CREATE INDEX calls_by_status ON midcall.calls (status, created, id);
    CREATE INDEX calls_by_principal ON midcall.calls (left(principal, 64), created, id)
        WHERE principal IS NOT NULL;
    CREATE INDEX calls_by_expiry ON midcall.calls (expires) WHERE status <> 'running';
    CREATE INDEX calls_to_wake ON midcall.calls (wake) WHERE status = 'waiting' AND wake IS NOT NULL;
    CREATE INDEX calls_by_owner ON midcall.calls (owner) WHERE status = 'running';
    CREATE TABLE midcall.parts (
        call bigint NOT NULL,
        number int NOT NULL,
        kind smallint NOT NULL,         -- 0 arguments and context, 1 entries, 2 the outcome of a segment
        data bytea NOT NULL,
        PRIMARY KEY (call, kind, number)
    );
    CREATE TABLE midcall.posts (
        worker int NOT NULL,
        sender int NOT NULL,
        serial bigint NOT NULL,         -- counts what the sender has posted
        message bytea NOT NULL,
        PRIMARY KEY (worker, sender, serial)
    );
    CREATE TABLE midcall.secrets (name text PRIMARY KEY, value bytea NOT NULL);
    """,
    # The lines of a run are kept as they are written, several in a row of the table; `first` is the number of
    # the first of them. When a run was last heard of changes often, and has no index.
    """
    CREATE TABLE midcall.conversations (
        key bytea PRIMARY KEY,          -- a digest of the principal and the id: neither has a largest size
        version bigint NOT NULL,
        updated float8 NOT NULL,
        waiting boolean NOT NULL,
        id text NOT NULL,
        principal text COLLATE "C",
        run text,
        title bytea NOT NULL,
        body bytea NOT NULL
    );
    CREATE INDEX conversations_by_principal
        ON midcall.conversations (coalesce(left(principal, 64), ''), updated);
    CREATE TABLE midcall.runs (
        id text COLLATE "C" PRIMARY KEY,
        conversation text NOT NULL,
        principal text,
        lines int NOT NULL DEFAULT 0,
        ended boolean NOT NULL DEFAULT false,
        stop boolean NOT NULL DEFAULT false,
        begun float8 NOT NULL,
        seen float8 NOT NULL
    ) WITH (fillfactor = 70);
    CREATE INDEX runs_by_age ON midcall.runs (begun);
    CREATE TABLE midcall.lines (
        run text COLLATE "C" NOT NULL,
        first int NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (run, first)
    );
    """,
    # `number` counts the nodes of a tree from 0, the root, without gaps; a parent has a smaller one than its
    # children. So a path goes down in it, and whatever is read in its order has parents first.
    """
    CREATE TABLE midcall.trees (
        n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text COLLATE "C" NOT NULL UNIQUE,
        principal text COLLATE "C",
        kind text NOT NULL,
        name text,
        key bytea,                      -- a digest of principal, kind and name: they have no largest size
        root text COLLATE "C" NOT NULL,
        state text COLLATE "C" NOT NULL,  -- 'purged' while its nodes are being deleted: nobody finds it
        due float8,
        created float8 NOT NULL,
        updated float8 NOT NULL,
        version bigint NOT NULL,
        nodes int NOT NULL,
        size bigint NOT NULL,
        metadata bytea NOT NULL,
        note bytea NOT NULL
    ) WITH (fillfactor = 70);
    CREATE UNIQUE INDEX trees_by_name ON midcall.trees (key) WHERE key IS NOT NULL;
    CREATE INDEX trees_by_principal ON midcall.trees (coalesce(left(principal, 64), ''), n);
    CREATE INDEX trees_due ON midcall.trees (due) WHERE due IS NOT NULL;
    CREATE TABLE midcall.tree_owners (
        tree bigint NOT NULL,
        owner text COLLATE "C" NOT NULL,
        count bigint NOT NULL,          -- 0 for a while, after all were released
        stamp bytea,                    -- of the last claim or release, to know it again
        PRIMARY KEY (tree, owner)
    );
    CREATE TABLE midcall.nodes (
        tree bigint NOT NULL,
        number int NOT NULL,
        parent int,
        external boolean NOT NULL,
        created float8 NOT NULL,
        id text COLLATE "C" NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (tree, number)
    );
    CREATE UNIQUE INDEX nodes_by_id ON midcall.nodes (tree, id);
    CREATE INDEX nodes_by_parent ON midcall.nodes (tree, parent, number) INCLUDE (id);
    """,
    # Few calls wait for somebody else than their caller, so there is an index of just those.
    """
    ALTER TABLE midcall.calls ADD COLUMN addressed boolean NOT NULL DEFAULT false;
    CREATE INDEX calls_addressed ON midcall.calls (created, id) WHERE addressed;
    CREATE TABLE midcall.notices (
        id text COLLATE "C" PRIMARY KEY,
        call text COLLATE "C" NOT NULL,
        due float8,                     -- nothing if it is told
        tries int NOT NULL
    ) WITH (fillfactor = 70);
    CREATE INDEX notices_due ON midcall.notices (due) WHERE due IS NOT NULL;
    CREATE INDEX notices_by_call ON midcall.notices (call);
    """,
)

# Not by `to_regclass`, which may answer as it was before the lock was waited for.
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)"
_HAS_META = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'midcall_meta')"
_META = "SELECT version FROM midcall.midcall_meta"
_META_MADE = """
    CREATE TABLE midcall.midcall_meta (version int NOT NULL);
    INSERT INTO midcall.midcall_meta VALUES (0)"""
_META_DONE = "UPDATE midcall.midcall_meta SET version = $1"

# --- conversations from when they had a schema of their own, `midcall_chat`, one for all journals ---

# What its comment says. What is another user's, or something else, is left alone.
_CHAT = """
    SELECT coalesce(obj_description(n.oid, 'pg_namespace'), '') FROM pg_namespace n
    WHERE n.nspname = 'midcall_chat' AND pg_has_role(n.nspowner, 'USAGE') AND EXISTS (
        SELECT FROM pg_tables WHERE schemaname = 'midcall_chat' AND tablename = 'conversations')"""
# Other journals of that time: they may be ones that cannot be read, but what tables they have can be seen.
_OTHERS = """
    SELECT EXISTS (
        SELECT FROM pg_tables m WHERE m.tablename = 'midcall_meta' AND m.schemaname <> $1 AND NOT EXISTS (
            SELECT FROM pg_tables c WHERE c.schemaname = m.schemaname AND c.tablename = 'conversations'))"""
_COMMENT = "COMMENT ON SCHEMA midcall_chat IS '{}'"
_TAKE = "midcall: take into "
"""A comment by which whoever runs the database says which journal the conversations belong to."""
_TAKEN = "midcall: taken into "
_UNCLEAR = "midcall: several journals may have used it"
# The oldest ones do not have all of the tables.
_LOCK_CHAT = """
    CREATE TABLE IF NOT EXISTS midcall_chat.runs (
        id text, conversation text, principal text, ended boolean, seen timestamptz);
    CREATE TABLE IF NOT EXISTS midcall_chat.lines (run text, lsn bigint, line bytea);
    CREATE TABLE IF NOT EXISTS midcall_chat.to_stop (run text);
    LOCK TABLE midcall_chat.conversations, midcall_chat.runs, midcall_chat.lines, midcall_chat.to_stop"""
_OLD_CONVERSATIONS = """
    SELECT id, principal, version, updated, waiting, run, title, body FROM midcall_chat.conversations"""
_OLD_RUNS = """
    SELECT id, conversation, principal, ended, EXISTS (SELECT FROM midcall_chat.to_stop WHERE run = r.id),
        extract(epoch FROM seen)::float8,
        ARRAY(SELECT line FROM midcall_chat.lines l WHERE l.run = r.id ORDER BY l.lsn)
    FROM midcall_chat.runs r"""
_DROP_TABLES = """
    DROP TABLE midcall_chat.conversations, midcall_chat.runs, midcall_chat.lines, midcall_chat.to_stop
    RESTRICT"""


def check_name(schema: str) -> None:
    """The schema's name goes into every statement, unquoted."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,47}", schema) or schema.startswith("pg_"):
        raise ValueError(f"{schema!r} cannot be the schema of a journal: use small letters, digits and _")


def lock_class(schema: str) -> int:
    """The first key of the journal's advisory locks. The second one is the number of a worker, or 0."""
    return zlib.crc32(f"midcall {schema}".encode()) - 2**31


async def migrate(connection: "Connection", schema: str, conversations: "PostgresConversations") -> None:
    """Make the tables, or bring them up to date. Raises `JournalError` if they are newer than this code."""
    version = await _version(connection, schema)
    if version == len(MIGRATIONS) and await connection.fetchval(_CHAT) != _TAKE + schema:
        return
    async with transaction(connection):
        await connection.execute(f"SELECT pg_advisory_xact_lock({lock_class(schema)}, 0)")
        version = await _version(connection, schema)
        if version > len(MIGRATIONS):
            error = JournalError(
                f"The schema {schema} was written by a newer midcall (its format is {version}, this one knows"
                f" {len(MIGRATIONS)}): use that version, or another schema"
            )
            error.recoverable = False
            raise error
        if version == 0:
            if not await connection.fetchval(_HAS_SCHEMA, schema):
                await connection.execute(f"CREATE SCHEMA {schema}")
            await connection.execute(_META_MADE.replace("midcall.", f"{schema}."))
        for script in MIGRATIONS[version:]:
            await connection.execute(script.replace("midcall.", f"{schema}."))
        await connection.execute(_META_DONE.replace("midcall.", f"{schema}."), len(MIGRATIONS))
        told = await _take_over(connection, schema, version, conversations)
    if told is not None:
        log.log(*told)


async def _take_over(
    connection: "Connection", schema: str, version: int, into: "PostgresConversations"
) -> tuple[int, str] | None:
    """Take over the conversations of `midcall_chat` if they belong to this journal; what is to be logged.

    They do if the journal is of that time, and either the only one or the default one. Of any other journal
    whoever runs the database must say so: to take them would show them to other people, and lose them to
    theirs.
    """
    await connection.execute(f"SELECT pg_advisory_xact_lock({lock_class('midcall_chat')}, 0)")
    comment = await connection.fetchval(_CHAT)
    if comment is None:
        return None
    if version >= 2 and comment != _TAKE + schema:
        return None
    if not await _belongs(connection, schema, version, comment):
        return logging.WARNING, (
            "The conversations of the schema midcall_chat may be another journal's, and are left there."
            f" If they belong to the schema {schema}, say so in SQL, and start again:"
            f" {_COMMENT.format(_TAKE + schema)}"
        )
    count, known = await _take(connection, into)
    told = f"{count} conversations of the schema midcall_chat are in the schema {schema} now"
    kept = f"{known} more were there already" if known else await _drop_chat(connection)
    if kept is None:
        return logging.INFO, told
    await connection.execute(_COMMENT.format(_TAKEN + schema))
    return logging.WARNING, f"{told}. midcall_chat is not removed: {kept}. Look into it, and drop it"


async def _belongs(connection: "Connection", schema: str, version: int, comment: str) -> bool:
    if comment.startswith((_TAKE, _TAKEN)):
        return comment == _TAKE + schema
    if version == 0:
        return False
    if schema == "midcall":
        return True
    if comment != _UNCLEAR and not await connection.fetchval(_OTHERS, schema):
        return True
    await connection.execute(_COMMENT.format(_UNCLEAR))  # the next one might seem to be the only one
    return False


async def _take(connection: "Connection", into: "PostgresConversations") -> tuple[int, int]:
    """How many conversations were taken over, and how many not, since there are ones of the same id."""
    await connection.execute(_LOCK_CHAT)
    count = known = 0
    async for row in connection.cursor(_OLD_CONVERSATIONS):
        if await into.insert(connection, ConversationRecord(**row)):
            count += 1
        else:
            known += 1
    async for id, conversation, principal, ended, stop, seen, lines in connection.cursor(_OLD_RUNS):
        run = RunRecord(id, conversation, principal, len(lines), ended, seen, seen)
        await into.insert_run(connection, run, lines, stop)
    return count, known


async def _drop_chat(connection: "Connection") -> str | None:
    """Drop what midcall has made, and nothing else; what is in the way, if something is."""
    for statement, kept in (
        (_DROP_TABLES, "something else depends on its tables"),
        ("DROP SCHEMA midcall_chat RESTRICT", "something else is in it"),
    ):
        try:
            async with connection.transaction():
                await connection.execute(statement)
        except asyncpg.DependentObjectsStillExistError:
            return kept
    return None


async def _version(connection: "Connection", schema: str) -> int:
    """0 if there are no tables yet."""
    if not await connection.fetchval(_HAS_META, schema):
        return 0
    version: int = await connection.fetchval(_META.replace("midcall.", f"{schema}."))
    return version

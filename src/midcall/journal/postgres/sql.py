"""What a journal does to its calls, as SQL for PostgreSQL: one statement for each thing that it does.

What many calls do at once (`create`, `claim`, `append`, `settle`) takes arrays, with one element for each
call: a statement is a transaction, so one round trip and one wait for the disk serve them all. No call may
be in the arrays twice, and they are sorted by id, so that two workers lock their rows in the same order.

PostgreSQL finds rows as they were when the statement began, but changes a row as it is once others have let
go of it (`READ COMMITTED`). So a statement that changes a row may not trust what it reads elsewhere:
`appends` tells whether all entries of a claimed call were seen, and a claim that took nothing is judged by
what was seen, and made again if that could have been taken.

Only the database's clock counts. A worker is alive while its session holds its advisory lock, as long as it
or its call was written to within the lease. After a break of the line to the database the lack of a lock
means nothing for a while (`$5`, `$2`): the others may not be back yet.
"""

from collections.abc import Iterable
from typing import Any

from midcall.journal.contract import CALL_SIZE, ENDED, KEEP, KEEP_RUNS, MOST_CLAIMS
from midcall.journal.postgres.schema import lock_class

_NOW = "extract(epoch FROM now())::float8"

# The columns of a call, as `Calls._record` reads them.
_RECORD = """
    c.id, c.name, c.principal, c.idempotency_key, c.created, c.expires, c.status, c.segment, c.wake,
    c.questions, c.fence,
    coalesce((SELECT w.name FROM {s}.workers w WHERE w.number = c.owner), 'worker ' || c.owner), c.claims,
    (SELECT p.data FROM {s}.parts p WHERE p.call = c.n AND p.kind = 0), c.updated"""

_ENTRIES = "ARRAY(SELECT p.data FROM {s}.parts p WHERE p.call = c.n AND p.kind = 1 ORDER BY p.number)"

_ALIVE = """EXISTS (
        SELECT FROM {s}.workers w
        WHERE w.number = c.owner AND greatest(w.seen, c.updated) > {now} - {lease}
        AND NOT ($5 AND pg_try_advisory_xact_lock_shared({locks}, w.number)))"""

# What this worker runs. `+ 0` and `|| ''` leave the planner one way to the rows: by their ids. It would
# rather go through all that is running, when it believes that this is little.
_MINE = "(c.status || '') = 'running' AND c.owner + 0 = {me}"

# Nobody runs the segment that is asked for. `lost` is what this worker has no knowledge of having claimed:
# the answer to the claim has not come through.
_FREE = """c.id = a.id AND c.segment = a.segment AND (
        (c.status || '') IN ('waiting', 'diverged') OR (c.status || '') = 'running' AND (
            c.owner IS NULL OR c.owner + 0 = $4 AND a.lost OR c.owner + 0 <> $4 AND NOT {alive}))"""

_GIVEN_UP = "fence = c.fence + 1, owner = NULL, wake = NULL, questions = '\\x00', updated = {now}"

# The newest of each kind, by its index, and of these the newest.
_LIST = """
SELECT {record} FROM ({kinds}) c ORDER BY c.created DESC, c.id DESC LIMIT {limit}"""

_KIND = """
    (SELECT c.* FROM {s}.calls c WHERE {where} ORDER BY c.created DESC, c.id DESC LIMIT {limit})"""


class Statements:
    """The statements for one schema. In the class they are templates, which each object has filled."""

    create = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::float8[],
        $7::float8[], $8::text[], $9::int[], $10::float8[], $11::bytea[], $12::int[], $13::int[], $14::int[],
        $15::float8[], $16::bytea[], $17::bytea[], $18::bytea[])
    AS a(id, name, principal, idempotency_key, key, created, expires, status, segment, wake, questions,
        fence, owner, claims, updated, body, entries, outcome)
), made AS (
    INSERT INTO {s}.calls (id, name, principal, idempotency_key, key, created, expires, status, segment, wake,
        questions, fence, owner, claims, updated, appends)
    SELECT id, name, principal, idempotency_key, key, created, expires, status, segment, wake,
        questions, fence, owner, claims, coalesce(updated, {now}), (entries IS NOT NULL)::int
    FROM asked
    ON CONFLICT DO NOTHING
    RETURNING n, id
), kept AS (
    INSERT INTO {s}.parts (call, kind, number, data)
    SELECT m.n, p.kind, 0, p.data
    FROM made m JOIN asked a ON a.id = m.id
    CROSS JOIN LATERAL (VALUES (0, a.body), (1, a.entries), (2, a.outcome)) AS p(kind, data)
    WHERE p.data IS NOT NULL
)
SELECT id FROM made"""

    oldest = """
SELECT p.data FROM {s}.parts p ORDER BY p.call, p.kind LIMIT 1"""

    uncreate = """
WITH gone AS (DELETE FROM {s}.calls c WHERE c.id = $1 AND {mine[2]} RETURNING c.n)
DELETE FROM {s}.parts p USING gone WHERE p.call = gone.n"""

    claim = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::bool[], $6::bytea[], $7::int[])
    AS a(id, segment, lost, answers, fence)
), taken AS (
    UPDATE {s}.calls c
    SET status = 'running', before = c.status, owner = $4, fence = c.fence + 1, claims = c.claims + 1,
        updated = {now}, appends = c.appends + (a.answers IS NOT NULL)::int
    FROM asked a
    WHERE c.expires > {now} AND c.claims < {most} AND {free}
        AND (a.fence IS NULL OR c.fence = a.fence OR c.owner + 0 = $4)
    RETURNING c.*, a.answers
), kept AS (
    INSERT INTO {s}.parts (call, kind, number, data)
    SELECT n, 1, appends, answers FROM taken WHERE answers IS NOT NULL
)
SELECT {record}, c.appends, {entries}, NULL::bool, NULL::bytea
FROM taken c
UNION ALL
SELECT {record}, NULL, NULL, {alive},
    (SELECT p.data FROM {s}.parts p WHERE p.call = c.n AND p.kind = 2 AND p.number = a.segment)
FROM asked a JOIN {s}.calls c ON c.id = a.id
WHERE NOT EXISTS (SELECT FROM taken t WHERE t.id = a.id)"""

    give_up = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::bool[]) AS a(id, segment, lost)
)
UPDATE {s}.calls c
SET status = CASE WHEN c.expires <= {now} THEN 'expired' ELSE 'poisoned' END, expires = {now} + {keep},
    {given_up}
FROM asked a
WHERE (c.expires <= {now} OR c.claims >= {most}) AND {free}"""

    unclaim = """
UPDATE {s}.calls c SET status = c.before, owner = NULL, claims = c.claims - 1, fence = c.fence - 1
WHERE c.id = $1 AND c.segment = $2 AND c.fence = coalesce($4, c.fence) AND {mine[3]}"""

    append = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::bytea[], $4::bool[], $5::float8[], $6::bytea[],
        $7::float8[])
    AS a(id, fence, entries, parks, wake, questions, expires)
), grown AS (
    UPDATE {s}.calls c
    SET appends = c.appends + (a.entries IS NOT NULL)::int,
        wake = CASE WHEN a.parks THEN a.wake ELSE c.wake END,
        questions = coalesce(a.questions, c.questions), expires = coalesce(a.expires, c.expires),
        updated = CASE WHEN a.parks THEN {now} ELSE c.updated END
    FROM asked a
    WHERE c.id = a.id AND c.fence = a.fence
    AND ((c.status || '') = 'waiting' OR NOT a.parks AND {mine[8]})
    RETURNING c.id, c.n, c.appends, a.entries
), kept AS (
    INSERT INTO {s}.parts (call, kind, number, data)
    SELECT n, 1, appends, entries FROM grown WHERE entries IS NOT NULL
)
SELECT id FROM grown"""

    settle = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::text[], $5::float8[], $6::bytea[],
        $7::float8[], $8::bytea[], $9::bytea[])
    AS a(id, fence, segment, status, wake, questions, expires, outcome, entries)
), parked AS (
    UPDATE {s}.calls c
    SET status = a.status, segment = c.segment + 1, wake = a.wake, questions = a.questions,
        expires = coalesce(a.expires, c.expires), owner = NULL, claims = 0, updated = {now},
        appends = c.appends + (a.entries IS NOT NULL)::int
    FROM asked a
    WHERE c.id = a.id AND c.fence = a.fence AND c.segment = a.segment AND {mine[10]}
    RETURNING c.id, c.n, c.appends, c.waited, a.segment, a.outcome, a.entries
), kept AS (
    INSERT INTO {s}.parts (call, kind, number, data)
    SELECT k.n, p.kind, p.number, p.data
    FROM parked k
    CROSS JOIN LATERAL (VALUES (1, k.appends, k.entries), (2, k.segment, k.outcome)) AS p(kind, number, data)
    WHERE p.data IS NOT NULL
)
SELECT id, CASE WHEN waited >= segment THEN pg_notify({channel}, id) END FROM parked"""

    release = """
UPDATE {s}.calls c SET status = $4, owner = NULL, claims = c.claims - 1, updated = {now}
WHERE c.id = $1 AND c.fence = $2 AND {mine[3]}
RETURNING c.id"""

    end = """
WITH ended AS (
    UPDATE {s}.calls c SET status = $2, expires = $4, segment = c.segment + 1, {given_up}
    WHERE c.id = $1 AND c.status NOT IN {ended}
    RETURNING c.id, c.n, c.segment - 1 AS segment, c.waited
), kept AS (
    INSERT INTO {s}.parts (call, kind, number, data) SELECT n, 2, segment, $3 FROM ended
)
SELECT segment, CASE WHEN waited >= segment THEN pg_notify({channel}, id) END FROM ended"""

    # Gives the outcome, and whether who settles the segment will tell: if it was settled while this looked,
    # neither is sure.
    wait = """
WITH marked AS (
    UPDATE {s}.calls SET waited = $2
    WHERE id = $1 AND segment <= $2 AND waited < $2 AND status NOT IN {ended}
    RETURNING id
)
SELECT (SELECT p.data FROM {s}.parts p WHERE p.call = c.n AND p.kind = 2 AND p.number = $2),
    c.waited >= $2 OR c.segment > $2 OR c.status IN {ended} OR EXISTS (SELECT FROM marked)
FROM {s}.calls c WHERE c.id = $1"""

    load = """
SELECT {record}, {entries} FROM {s}.calls c WHERE c.id = $1"""

    outcomes = """
SELECT p.number, p.data FROM {s}.calls c JOIN {s}.parts p ON p.call = c.n AND p.kind = 2
WHERE c.id = $1 ORDER BY p.number"""

    find = """
SELECT {record} FROM {s}.calls c WHERE c.key = $1"""

    due = """
WITH living AS MATERIALIZED (
    SELECT number, seen FROM {s}.workers WHERE NOT ($2 AND pg_try_advisory_xact_lock_shared({locks}, number))
), abandoned AS (
    SELECT c.* FROM {s}.calls c
    WHERE c.status = 'running' AND c.owner IS DISTINCT FROM $1 AND NOT EXISTS (
        SELECT FROM living l WHERE l.number = c.owner AND greatest(l.seen, c.updated) > {now} - {lease})
    LIMIT $3
), woken AS (
    SELECT c.* FROM {s}.calls c WHERE c.status = 'waiting' AND c.wake <= {now} ORDER BY c.wake LIMIT $3
)
SELECT {record} FROM (SELECT * FROM abandoned UNION ALL SELECT * FROM woken) c LIMIT $3"""

    sweep = """
WITH over AS (
    SELECT n, id, status FROM {s}.calls
    WHERE status <> 'running' AND expires <= {now} ORDER BY expires LIMIT $1 FOR UPDATE SKIP LOCKED
), expired AS (
    UPDATE {s}.calls c SET status = 'expired', expires = {now} + {keep}, {given_up}
    FROM over WHERE c.id = over.id AND over.status NOT IN {ended}
), forgotten AS (
    DELETE FROM {s}.calls c USING over WHERE c.id = over.id AND over.status IN {ended} RETURNING c.n
), emptied AS (
    DELETE FROM {s}.parts p USING forgotten WHERE p.call = forgotten.n
)
SELECT count(*) FROM over"""

    sweep_workers = """
WITH gone AS (
    DELETE FROM {s}.workers w
    WHERE w.number <> $1 AND $2 AND w.seen < {now} - 4 * {lease}
    AND NOT EXISTS (SELECT FROM {s}.calls c WHERE c.owner = w.number AND c.status = 'running')
    AND pg_try_advisory_xact_lock_shared({locks}, w.number)
    RETURNING w.number
)
DELETE FROM {s}.posts p USING gone WHERE p.worker = gone.number"""

    count = """
SELECT status, count(*) FROM {s}.calls GROUP BY status"""

    held = """
SELECT coalesce(sum({call_size} + p.size), 0)::bigint
FROM {s}.calls c
CROSS JOIN LATERAL (SELECT sum(octet_length(data)) AS size FROM {s}.parts WHERE call = c.n) p
WHERE left(c.principal, 64) = left($1, 64) AND c.principal = $1"""

    secret = """
WITH made AS (INSERT INTO {s}.secrets VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING value)
SELECT value FROM made UNION ALL SELECT value FROM {s}.secrets WHERE name = $1"""  # noqa: S105  a statement

    restore_parts = """
INSERT INTO {s}.parts (call, kind, number, data)
SELECT c.n, 2, o.segment, o.data
FROM {s}.calls c CROSS JOIN unnest($2::int[], $3::bytea[]) AS o(segment, data)
WHERE c.id = $1"""

    # --- conversations and runs ------------------------------------------------------------------
    oldest_conversation = """
SELECT body FROM {s}.conversations ORDER BY key LIMIT 1"""

    oldest_lines = """
SELECT data FROM {s}.lines ORDER BY run, first LIMIT 1"""

    load_conversation = """
SELECT version, updated, waiting, run, title, body FROM {s}.conversations WHERE key = $1"""

    insert_conversation = """
INSERT INTO {s}.conversations (key, version, updated, waiting, run, title, body, id, principal)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING RETURNING key"""

    update_conversation = """
UPDATE {s}.conversations SET version = $2, updated = $3, waiting = $4, run = $5, title = $6, body = $7
WHERE key = $1 AND version = $2 - 1 RETURNING key"""

    has_conversation = """
SELECT EXISTS (SELECT FROM {s}.conversations WHERE key = $1 AND version = $2 AND body = $3)"""

    delete_conversation = """
DELETE FROM {s}.conversations WHERE key = $1 RETURNING key"""

    # Without an index, which every turn would have to keep up: there are the runs of an hour. Their lines are
    # deleted by a statement that comes after, and so sees those that were just being written.
    delete_runs = """
DELETE FROM {s}.runs WHERE id IN (
    SELECT id FROM {s}.runs WHERE conversation = $1 AND principal IS NOT DISTINCT FROM $2
    ORDER BY id FOR UPDATE)
RETURNING id"""

    delete_lines = """
DELETE FROM {s}.lines WHERE run = ANY($1::text[])"""

    list_conversations = """
SELECT id, version, updated, waiting, run, title FROM {s}.conversations
WHERE coalesce(left(principal, 64), '') = coalesce(left($1, 64), '') AND principal IS NOT DISTINCT FROM $1
ORDER BY updated DESC LIMIT $2"""

    held_conversations = """
SELECT count(*), coalesce(sum(octet_length(body)), 0)::bigint FROM {s}.conversations
WHERE coalesce(left(principal, 64), '') = left($1, 64) AND principal = $1"""

    every_conversation = """
SELECT key, id, principal, version, updated, waiting, run, title, body FROM {s}.conversations
WHERE key > $1 ORDER BY key LIMIT $2"""

    insert_run = """
WITH made AS (
    INSERT INTO {s}.runs (id, conversation, principal, lines, ended, stop, begun, seen)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING RETURNING id
)
INSERT INTO {s}.lines (run, first, data) SELECT id, 1, $8::bytea FROM made WHERE $8::bytea IS NOT NULL"""

    begin_run = """
INSERT INTO {s}.runs (id, conversation, principal, begun, seen) VALUES ($1, $2, $3, {now}, {now})
ON CONFLICT DO NOTHING"""

    # Grows the runs that have as many lines as are said to come before; the others are looked at one by one.
    append_lines = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::bool[], $5::bytea[])
    AS a(run, first, count, ended, data)
), grown AS (
    UPDATE {s}.runs r SET lines = r.lines + a.count, ended = r.ended OR a.ended, seen = {now}
    FROM asked a WHERE r.id = a.run AND (r.lines = a.first - 1 OR a.count = 0)
    RETURNING r.id, r.stop, a.first, a.data
), kept AS (
    INSERT INTO {s}.lines (run, first, data) SELECT id, first, data FROM grown WHERE data IS NOT NULL
)
SELECT id, stop FROM grown"""

    stop_run = """
UPDATE {s}.runs SET stop = true WHERE id = $1"""

    load_run = """
SELECT conversation, principal, lines, ended, seen, {now} FROM {s}.runs WHERE id = $1"""

    lines = """
SELECT first, data FROM {s}.lines WHERE run = $1 AND first >=
    coalesce((SELECT max(first) FROM {s}.lines WHERE run = $1 AND first <= $2), 0)
ORDER BY first"""

    sweep_runs = """
WITH gone AS (
    DELETE FROM {s}.runs WHERE id IN (
        SELECT id FROM {s}.runs WHERE begun < {now} - {keep_runs} AND seen < {now} - {keep_runs}
        ORDER BY begun LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING id
), emptied AS (
    DELETE FROM {s}.lines l USING gone WHERE l.run = gone.id
)
SELECT count(*) FROM gone"""

    # --- workers ---------------------------------------------------------------------------------
    post = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS a(worker, serial, message)
), there AS MATERIALIZED (
    SELECT w.number, w.name FROM {s}.workers w
    WHERE w.name = ANY ($1) AND NOT ($5 AND pg_try_advisory_xact_lock_shared({locks}, w.number))
), put AS (
    INSERT INTO {s}.posts (worker, sender, serial, message)
    SELECT t.number, $4, a.serial, a.message FROM asked a JOIN there t ON t.name = a.worker
    ON CONFLICT DO NOTHING
)
SELECT t.name, pg_notify({posts} || t.number, '') FROM there t"""

    # Takes away what was read before, and reads what is there; until it is taken away, it is read again.
    read_posts = """
WITH taken AS (
    DELETE FROM {s}.posts p USING unnest($2::int[], $3::bigint[]) AS t(sender, serial)
    WHERE p.worker = $1 AND p.sender = t.sender AND p.serial <= t.serial
)
SELECT p.sender, p.serial, p.message FROM {s}.posts p
WHERE p.worker = $1 ORDER BY p.sender, p.serial LIMIT 1000"""

    living = """
SELECT w.name FROM {s}.workers w
WHERE w.name = ANY ($1) AND NOT ($2 AND pg_try_advisory_xact_lock_shared({locks}, w.number))"""

    register = """
INSERT INTO {s}.workers (name, seen) VALUES ($1, {now}) RETURNING number"""

    lock = """
SELECT pg_try_advisory_lock({locks}, $1)"""

    beat = """
UPDATE {s}.workers SET seen = {now} WHERE number = $1 RETURNING number"""

    leave = """
WITH gone AS (
    DELETE FROM {s}.workers w WHERE w.number = $1
    AND NOT EXISTS (SELECT FROM {s}.calls c WHERE c.owner = w.number AND c.status = 'running')
)
DELETE FROM {s}.posts p WHERE p.worker = $1"""

    def __init__(self, schema: str, lease: float) -> None:
        self.channel = f"{schema}_settled"
        """Where it is told which call has an outcome that somebody waits for."""
        self.posts = f"{schema}_posts_"
        """Where a worker is told that there is something for it, with its number."""
        pieces: dict[str, Any] = {
            "s": schema,
            "mine": {number: _MINE.format(me=f"${number}") for number in (2, 3, 8, 10)},
            "lease": repr(float(lease)),
            "locks": str(lock_class(schema)),
            "channel": f"'{self.channel}'",
            "posts": f"'{self.posts}'",
            "keep": repr(KEEP),
            "keep_runs": repr(KEEP_RUNS),
            "call_size": str(CALL_SIZE),
            "most": str(MOST_CLAIMS),
            "now": _NOW,
            "ended": "({})".format(", ".join(f"'{status}'" for status in sorted(ENDED))),
            "given_up": _GIVEN_UP.replace("{now}", _NOW),
        }
        for name, piece in (("record", _RECORD), ("entries", _ENTRIES), ("alive", _ALIVE), ("free", _FREE)):
            pieces[name] = piece.format_map(pieces)
        self._pieces = pieces
        for name, template in vars(Statements).items():
            if isinstance(template, str) and not name.startswith("__"):
                setattr(self, name, template.format_map(pieces))

    def list(self, kinds: Iterable[str], limit: int) -> str:
        """A list of the calls that meet one of the conditions."""
        pieces = self._pieces | {"limit": str(limit)}
        union = " UNION ALL ".join(_KIND.format_map(pieces | {"where": where}) for where in kinds)
        return _LIST.format_map(pieces | {"kinds": union})

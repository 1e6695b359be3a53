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
from midcall.journal.trees import ARCHIVED, LISTED_CHILDREN

_NOW = "extract(epoch FROM now())::float8"

# The columns of a call, as `Calls._record` reads them.
_RECORD = """
    c.id, c.name, c.principal, c.idempotency_key, c.created, c.expires, c.status, c.segment, c.wake,
    c.questions, c.fence,
    coalesce((SELECT w.name FROM {s}.workers w WHERE w.number = c.owner), 'worker ' || c.owner), c.claims,
    (SELECT p.data FROM {s}.parts p WHERE p.call = c.n AND p.kind = 0), c.updated, c.addressed"""

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
        (c.status || '') IN ('waiting', 'diverged') AND (
            c.owner IS NULL OR c.owner + 0 = $4 OR NOT {alive})
        OR (c.status || '') = 'running' AND (
            c.owner IS NULL OR c.owner + 0 = $4 AND a.lost OR c.owner + 0 <> $4 AND NOT {alive}))"""

_GIVEN_UP = (
    "fence = c.fence + 1, owner = NULL, wake = NULL, questions = '\\x00', addressed = false, updated = {now}"
)

# What is to be told of the calls that a statement writes: their ids are those of `{0}`.
_NOTICES = """noticed AS (
    INSERT INTO {{s}}.notices (id, call, due, tries)
    SELECT t.id, t.call, t.due, t.tries
    FROM unnest(${1}::text[], ${2}::text[], ${3}::float8[], ${4}::int[]) AS t(id, call, due, tries)
    JOIN {0} w ON w.id = t.call
    ON CONFLICT DO NOTHING
)"""

# The newest of each kind, by its index, and of these the newest.
_LIST = """
SELECT {record} FROM ({kinds}) c ORDER BY c.created DESC, c.id DESC LIMIT {limit}"""

_KIND = """
    (SELECT c.* FROM {s}.calls c WHERE {where} ORDER BY c.created DESC, c.id DESC LIMIT {limit})"""


# A tree and a node, as `TreeValues` takes them.
_TREE = """
    t.n, t.id, t.principal, t.kind, t.name, t.root, t.state, t.due, t.created, t.updated, t.version, t.nodes,
    t.size, t.metadata, t.note"""

_ONLY_OF_A_KIND = """
    CASE WHEN $4::text IS NULL THEN '\\x00' ELSE t.metadata END,
    CASE WHEN $4::text IS NULL THEN '\\x00' ELSE t.note END"""

_NODE = """
    ARRAY(SELECT k.id FROM {s}.nodes k WHERE k.tree = c.tree AND k.parent = c.number
        ORDER BY k.number LIMIT {children} + 1),
    c.id, (SELECT p.id FROM {s}.nodes p WHERE p.tree = c.tree AND p.number = c.parent), c.external,
    c.created"""


class Statements:
    """The statements for one schema. In the class they are templates, which each object has filled."""

    create = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::float8[],
        $7::float8[], $8::text[], $9::int[], $10::float8[], $11::bytea[], $12::int[], $13::int[], $14::int[],
        $15::bool[], $16::float8[], $17::bytea[], $18::bytea[], $19::bytea[])
    AS a(id, name, principal, idempotency_key, key, created, expires, status, segment, wake, questions,
        fence, owner, claims, addressed, updated, body, entries, outcome)
), made AS (
    INSERT INTO {s}.calls (id, name, principal, idempotency_key, key, created, expires, status, segment, wake,
        questions, fence, owner, claims, addressed, updated, appends)
    SELECT id, name, principal, idempotency_key, key, created, expires, status, segment, wake,
        questions, fence, owner, claims, addressed, coalesce(updated, {now}), (entries IS NOT NULL)::int
    FROM asked
    ON CONFLICT DO NOTHING
    RETURNING n, id
), kept AS (
    INSERT INTO {s}.parts (call, kind, number, data)
    SELECT m.n, p.kind, 0, p.data
    FROM made m JOIN asked a ON a.id = m.id
    CROSS JOIN LATERAL (VALUES (0, a.body), (1, a.entries), (2, a.outcome)) AS p(kind, data)
    WHERE p.data IS NOT NULL
), {notices[made]}
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
        AND (a.fence IS NULL OR c.fence = a.fence OR (c.status || '') = 'running' AND c.owner + 0 = $4)
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
        $7::float8[], $8::bool[], $9::bool[])
    AS a(id, fence, entries, parks, wake, questions, expires, held, addressed)
), grown AS (
    UPDATE {s}.calls c
    SET appends = c.appends + (a.entries IS NOT NULL)::int,
        wake = CASE WHEN a.parks THEN a.wake ELSE c.wake END,
        questions = coalesce(a.questions, c.questions), expires = coalesce(a.expires, c.expires),
        owner = CASE WHEN NOT a.parks THEN c.owner WHEN a.held THEN $10::int END,
        addressed = CASE WHEN a.parks THEN a.addressed ELSE c.addressed END,
        updated = CASE WHEN a.parks THEN {now} ELSE c.updated END
    FROM asked a
    WHERE c.id = a.id AND c.fence = a.fence
    AND ((c.status || '') = 'waiting' OR NOT a.parks AND {mine[10]})
    RETURNING c.id, c.n, c.appends, a.entries
), kept AS (
    INSERT INTO {s}.parts (call, kind, number, data)
    SELECT n, 1, appends, entries FROM grown WHERE entries IS NOT NULL
), {notices[grown]}
SELECT id FROM grown"""

    settle = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::text[], $5::float8[], $6::bytea[],
        $7::float8[], $8::bytea[], $9::bytea[], $10::bool[], $11::bool[])
    AS a(id, fence, segment, status, wake, questions, expires, outcome, entries, held, addressed)
), parked AS (
    UPDATE {s}.calls c
    SET status = a.status, segment = c.segment + 1, wake = a.wake, questions = a.questions,
        expires = coalesce(a.expires, c.expires), owner = CASE WHEN a.held THEN $12::int END, claims = 0,
        addressed = a.addressed, updated = {now},
        appends = c.appends + (a.entries IS NOT NULL)::int
    FROM asked a
    WHERE c.id = a.id AND c.fence = a.fence AND c.segment = a.segment AND {mine[12]}
    RETURNING c.id, c.n, c.appends, c.waited, a.segment, a.outcome, a.entries
), kept AS (
    INSERT INTO {s}.parts (call, kind, number, data)
    SELECT k.n, p.kind, p.number, p.data
    FROM parked k
    CROSS JOIN LATERAL (VALUES (1, k.appends, k.entries), (2, k.segment, k.outcome)) AS p(kind, number, data)
    WHERE p.data IS NOT NULL
), {notices[parked]}
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
    DELETE FROM {s}.calls c USING over WHERE c.id = over.id AND over.status IN {ended} RETURNING c.n, c.id
), emptied AS (
    DELETE FROM {s}.parts p USING forgotten WHERE p.call = forgotten.n
), told AS (
    DELETE FROM {s}.notices t USING forgotten WHERE t.call = forgotten.id
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

    take_notices = """
WITH due AS (
    SELECT id FROM {s}.notices WHERE due <= {now} AND starts_with(id, $3)
    ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE {s}.notices n SET due = {now} + $2::float8, tries = n.tries + 1
FROM due WHERE n.id = due.id RETURNING n.id, n.call, n.due, n.tries"""

    notice_told = """
UPDATE {s}.notices SET due = NULL WHERE id = $1"""

    postpone_notice = """
UPDATE {s}.notices SET due = {now} + $2::float8 WHERE id = $1 AND due IS NOT NULL"""

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

    # --- trees -----------------------------------------------------------------------------------
    find_tree = """
SELECT {tree} FROM {s}.trees t
WHERE t.id = $1 AND t.principal IS NOT DISTINCT FROM $2 AND t.state <> 'purged'"""

    lock_tree = """
SELECT {tree} FROM {s}.trees t
WHERE t.id = $1 AND t.principal IS NOT DISTINCT FROM $2 AND t.state <> 'purged' FOR UPDATE"""

    tree_by_name = """
SELECT {tree} FROM {s}.trees t WHERE t.key = $1"""

    list_trees = """
SELECT {bare_tree} FROM {s}.trees t
WHERE coalesce(left(t.principal, 64), '') = coalesce(left($1, 64), '')
    AND t.principal IS NOT DISTINCT FROM $1 AND t.n < $2
    AND t.state = ANY ($3::text[]) AND ($4::text IS NULL OR t.kind = $4)
ORDER BY t.n DESC LIMIT $5"""

    every_tree = """
SELECT {tree} FROM {s}.trees t WHERE t.n > $1 AND t.state <> 'purged' ORDER BY t.n LIMIT $2"""

    insert_tree = """
INSERT INTO {s}.trees (id, principal, kind, name, key, root, state, due, created, updated, version, nodes,
    size, metadata, note)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9, {now}), coalesce($10, {now}), $11, 0, $12, $13, $14)
ON CONFLICT DO NOTHING RETURNING n"""

    tree_exists = """
SELECT EXISTS (SELECT FROM {s}.trees WHERE id = $1)"""

    change_tree = """
UPDATE {s}.trees SET updated = {now}, metadata = $2, note = $3, version = $4, kind = $5, name = $6, key = $7,
    size = $8
WHERE n = $1"""

    move_tree = """
UPDATE {s}.trees SET updated = {now}, state = $2,
    due = CASE WHEN $3::float8 IS NULL THEN due ELSE nullif({now} + $3, {now}) END
WHERE n = $1"""

    tree_owners = """
SELECT owner, count FROM {s}.tree_owners WHERE tree = $1 AND count > 0"""

    # Claims of others that have come to nothing are cleared away meanwhile.
    set_tree_owner = """
WITH cleared AS (DELETE FROM {s}.tree_owners WHERE tree = $1 AND owner <> $2 AND count = 0)
INSERT INTO {s}.tree_owners (tree, owner, count, stamp) VALUES ($1, $2, $3, $4)
ON CONFLICT (tree, owner) DO UPDATE SET count = excluded.count, stamp = excluded.stamp"""

    tree_stamp = """
SELECT count FROM {s}.tree_owners WHERE tree = $1 AND owner = $2 AND stamp = $3"""

    held_trees = """
SELECT coalesce(sum(size), 0)::bigint FROM {s}.trees
WHERE coalesce(left(principal, 64), '') = left($1, 64) AND principal = $1 AND state <> 'purged'"""

    updated_trees = """
SELECT id, updated FROM {s}.trees WHERE id = ANY ($1::text[]) AND state <> 'purged'"""

    node_numbers = """
SELECT id, number FROM {s}.nodes WHERE tree = $1 AND id = ANY ($2::text[])"""

    add_nodes = """
WITH grown AS (
    UPDATE {s}.trees SET nodes = nodes + $8, size = size + $9, updated = coalesce($10, {now}) WHERE n = $1
)
INSERT INTO {s}.nodes (tree, number, parent, external, created, id, body)
SELECT $1, a.number, a.parent, a.external, coalesce(a.created, {now}), a.id, a.body
FROM unnest($2::int[], $3::int[], $4::bool[], $5::float8[], $6::text[], $7::bytea[])
AS a(number, parent, external, created, id, body)"""

    load_node = """
SELECT {node}, c.body FROM {s}.nodes c WHERE c.tree = $1 AND c.number = $2"""

    # As many as have bodies of about this size, which whoever reads them looks at more closely.
    load_nodes = """
SELECT {node}, CASE WHEN $4::bigint = 0 THEN '\\x00' ELSE c.body END FROM (
    SELECT *, sum({body_size}) OVER (ORDER BY number) - {body_size} AS before FROM (
        SELECT * FROM {s}.nodes WHERE tree = $1 AND number > $2 ORDER BY number LIMIT $3) c) c
WHERE coalesce($4, 0) = 0 OR c.before <= $4 ORDER BY c.number"""

    path = """
WITH RECURSIVE path(number, parent, depth) AS (
    SELECT number, parent, 0 FROM {s}.nodes WHERE tree = $1 AND number = $2
    UNION ALL
    SELECT n.number, n.parent, p.depth + 1 FROM path p
    JOIN {s}.nodes n ON n.tree = $1 AND n.number = p.parent AND n.number < p.number
)
SELECT {node}, CASE WHEN $4::bigint = 0 THEN '\\x00' ELSE c.body END FROM (
    SELECT c.*, sum({body_size}) OVER (ORDER BY c.number DESC) - {body_size} AS before
    FROM (SELECT * FROM path LIMIT $3) p JOIN {s}.nodes c ON c.tree = $1 AND c.number = p.number) c
WHERE coalesce($4, 0) = 0 OR c.before <= $4 ORDER BY c.number DESC"""

    branch = """
WITH RECURSIVE branch(number, depth) AS (
    SELECT $2::int, 0
    UNION ALL
    SELECT k.number, b.depth + 1 FROM branch b CROSS JOIN LATERAL (
        SELECT number FROM {s}.nodes WHERE tree = $1 AND parent = b.number ORDER BY number LIMIT {children}) k
    WHERE b.depth < $3
)
SELECT {node}, c.body FROM (
    SELECT c.*, b.depth, sum({body_size}) OVER (ORDER BY b.depth, b.number) - {body_size} AS before
    FROM (SELECT * FROM branch LIMIT $4) b JOIN {s}.nodes c ON c.tree = $1 AND c.number = b.number) c
WHERE $5::bigint IS NULL OR c.before <= $5 ORDER BY c.depth, c.number"""

    children_of = """
SELECT number, id FROM {s}.nodes WHERE tree = $1 AND parent = $2 AND number > $3 ORDER BY number LIMIT $4"""

    leaves = """
SELECT number, id FROM {s}.nodes c WHERE tree = $1 AND number > $2
    AND NOT EXISTS (SELECT FROM {s}.nodes k WHERE k.tree = c.tree AND k.parent = c.number)
ORDER BY number LIMIT $3"""

    oldest_node = """
SELECT body FROM {s}.nodes ORDER BY tree, number LIMIT 1"""

    sweep_trees = """
WITH due AS (
    SELECT n FROM {s}.trees WHERE due <= {now} AND state <> 'purged' ORDER BY due LIMIT $1
    FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE {s}.trees t SET
        state = CASE t.state WHEN 'scheduled_delete' THEN 'archived' ELSE 'purged' END,
        due = CASE t.state WHEN 'scheduled_delete' THEN {now} + {archived} ELSE {now} END,
        name = CASE t.state WHEN 'scheduled_delete' THEN t.name END,
        key = CASE t.state WHEN 'scheduled_delete' THEN t.key END,
        updated = {now}
    FROM due WHERE t.n = due.n RETURNING t.n
)
SELECT count(*) FROM moved"""

    purged_tree = """
SELECT n FROM {s}.trees WHERE due <= {now} AND state = 'purged' ORDER BY due LIMIT 1 FOR UPDATE SKIP LOCKED"""

    purge_nodes = """
WITH gone AS (
    DELETE FROM {s}.nodes d USING (
        SELECT number FROM {s}.nodes WHERE tree = $1 ORDER BY number DESC LIMIT $2) x
    WHERE d.tree = $1 AND d.number = x.number RETURNING d.number
)
SELECT count(*) FROM gone"""

    purge_tree = """
WITH owners AS (DELETE FROM {s}.tree_owners WHERE tree = $1)
DELETE FROM {s}.trees WHERE n = $1"""

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
            "mine": {number: _MINE.format(me=f"${number}") for number in (2, 3, 10, 12)},
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
            "tree": _TREE,
            "bare_tree": _TREE.replace("t.metadata, t.note", _ONLY_OF_A_KIND),
            "archived": repr(ARCHIVED),
            "children": str(LISTED_CHILDREN),
            "body_size": "greatest(octet_length(c.body) - 64, 0)",  # some of it may be a seal
        }
        for name, piece in (
            ("record", _RECORD),
            ("entries", _ENTRIES),
            ("alive", _ALIVE),
            ("free", _FREE),
            ("node", _NODE),
        ):
            pieces[name] = piece.format_map(pieces)
        pieces["notices"] = {
            written: _NOTICES.format(written, *range(first, first + 4)).format_map(pieces)
            for written, first in (("made", 20), ("grown", 11), ("parked", 13))
        }
        self._pieces = pieces
        for name, template in vars(Statements).items():
            if isinstance(template, str) and not name.startswith("__"):
                setattr(self, name, template.format_map(pieces))

    def list(self, kinds: Iterable[str], limit: int) -> str:
        """A list of the calls that meet one of the conditions."""
        pieces = self._pieces | {"limit": str(limit)}
        union = " UNION ALL ".join(_KIND.format_map(pieces | {"where": where}) for where in kinds)
        return _LIST.format_map(pieces | {"kinds": union})

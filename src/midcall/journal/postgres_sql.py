"""What a journal does to its calls, as SQL for PostgreSQL: one statement for each thing that it does.

What many calls do at once (`CREATE`, `CLAIM`, `APPEND`, `SETTLE`) takes arrays, with one element for each call: a
statement is a transaction, so that one round trip and one wait for the disk serve them all. No call may be in the
arrays twice, and they are sorted by id, so that two workers lock their rows in the same order.

PostgreSQL finds rows as they were when the statement began, but changes a row as it is once others have let
go of it (`READ COMMITTED`). So a statement that changes a row may not trust what it read elsewhere: `appends` tells
whether all entries of a claimed call were seen, and what a claim finds untaken is judged again if it is at odds.

Only the database's clock counts. A worker is alive while its session holds its advisory lock, and as long as it
or its call was written to within the lease; `$trust` says whether the lack of a lock means anything.
"""

from midcall.journal.base import ENDED, KEEP, MOST_CLAIMS
from midcall.journal.postgres_schema import lock_class

_PIECES = {
    "NOW": "extract(epoch FROM now())::float8",
    "ENDED": "({})".format(", ".join(f"'{status}'" for status in sorted(ENDED))),
    "RECORD": """c.id, c.name, c.principal, c.idempotency_key, c.created, c.expires, c.status, c.segment, c.wake,
        c.questions, c.fence, coalesce((SELECT w.name FROM midcall.workers w WHERE w.number = c.owner),
        'worker ' || c.owner) AS owner, c.claims,
        (SELECT p.data FROM midcall.parts p WHERE p.call = c.n AND p.kind = 0) AS body""",
    "ENTRIES": """ARRAY(SELECT p.data FROM midcall.parts p WHERE p.call = c.n AND p.kind = 1 ORDER BY p.number)""",
    "ALIVE": """EXISTS (SELECT FROM midcall.workers w WHERE w.number = c.owner
        AND greatest(w.seen, c.since) > NOW - LEASE
        AND NOT ($trust AND pg_try_advisory_xact_lock_shared(CLASS, w.number)))""",
    "GIVEN_UP": "expires = NOW + KEEP, fence = c.fence + 1, owner = NULL, wake = NULL, questions = '\\x00'",
}


class Statements:
    """The statements for one schema."""

    def __init__(self, schema: str, lease: float) -> None:
        self.channel = f"{schema}_settled"
        """Says which call has an outcome that somebody waits for."""
        words = {
            "LEASE": repr(float(lease)),
            "CLASS": str(lock_class(schema)),
            "CHANNEL": f"'{self.channel}'",
            "KEEP": repr(KEEP),
            "MOST": str(MOST_CLAIMS),
        }

        def ready(text: str) -> str:
            for name, piece in (_PIECES | words).items():
                text = text.replace(name, piece)
            return text.replace("midcall.", f"{schema}.")

        for name, text in _TEXTS.items():
            setattr(self, name, ready(text))

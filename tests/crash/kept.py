"""The journal of a worker: the store under test, with a tick before and after each operation."""

import inspect
from collections.abc import Callable
from typing import Any

from crash.ticks import tick
from midcall import Hub
from midcall.journal.contract import Journal
from midcall.journal.durable import DurableCalls

POLLS = frozenset(("due", "sweep"))
"""What is asked again and again, however long a run takes: these would make the count of ticks meaningless."""


class Ticking:
    """Everything that a store is and does, with ticks around what it does."""

    def __init__(self, journal: Journal) -> None:
        object.__setattr__(self, "_journal", journal)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._journal, name)
        return _ticking(found) if inspect.iscoroutinefunction(found) and name not in POLLS else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._journal, name, value)


def _ticking(operation: Callable[..., Any]) -> Callable[..., Any]:
    async def operate(*args: Any, **kwargs: Any) -> Any:
        tick()
        result = await operation(*args, **kwargs)
        tick()
        return result

    return operate


def make_durable(hub: Hub, backend: str, place: str, *, forgetful: bool) -> DurableCalls:
    """The durable calls of a worker. The place is a file, or else the address of a database and perhaps a schema."""
    if backend == "sqlite":
        from midcall.journal.sqlite import SqliteJournal

        return DurableCalls(hub, Ticking(SqliteJournal(place)), replay_check=forgetful)
    from midcall.journal.postgres import PostgresJournal

    url, _, schema = place.partition(" ")
    schema = schema or "midcall"
    journal = PostgresJournal(url, schema=schema, connections=2)
    engine = None
    if backend == "dbos":
        from midcall.journal.dbos import DbosEngine

        engine = DbosEngine(journal, url, schema=f"{schema}_dbos")
    return DurableCalls(hub, Ticking(journal), replay_check=forgetful, engine=engine)

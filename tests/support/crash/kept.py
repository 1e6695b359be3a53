"""The journal of a worker: the store under test, with a tick before and after each operation."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crash.ticks import tick
from midcall import Hub
from midcall.journal.contract import Conversations, Journal
from midcall.journal.durable import DurableCalls

POLLS = frozenset(("due", "sweep", "run", "lines"))
"""What is asked again and again, however long a run takes: these would make the count of ticks meaningless."""


class Ticking:
    """Everything that a store is and does, with ticks around what it does."""

    def __init__(self, journal: Journal | Conversations) -> None:
        object.__setattr__(self, "_journal", journal)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._journal, name)
        if name == "conversations":
            return Ticking(found)
        return _ticking(found) if inspect.iscoroutinefunction(found) and name not in POLLS else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._journal, name, value)


def _ticking(operation: Callable[..., Any]) -> Callable[..., Any]:
    async def operate(*args: Any, **kwargs: Any) -> Any:
        if _is_sign_of_life(args, kwargs):
            return await operation(*args, **kwargs)
        tick()
        result = await operation(*args, **kwargs)
        tick()
        return result

    return operate


def _is_sign_of_life(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether it is a run that says only that it is still there: that, too, depends on how long it takes."""
    return kwargs.get("ended") is False and not args[2]


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

"""The journal of a worker: the store under test, with a tick before and after each operation."""

from collections.abc import Callable
from typing import Any

from crash.ticks import tick
from midcall.journal.base import Journal
from midcall.journal.engine import Engine

POLLS = frozenset(("due", "sweep"))
"""What is asked again and again, however long a run takes: these would make the count of ticks meaningless."""


class Ticking:
    """Everything that the store does, with ticks around it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.worker = journal.worker

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._journal, name)
        return operation if name in POLLS else _ticking(operation)


def _ticking(operation: Callable[..., Any]) -> Callable[..., Any]:
    async def operate(*args: Any, **kwargs: Any) -> Any:
        tick()
        result = await operation(*args, **kwargs)
        tick()
        return result

    return operate


def open_store(backend: str, place: str) -> Journal:
    """The store of a run: for SQLite a file, else the URL of a database."""
    match backend:
        case "sqlite":
            from midcall.journal.sqlite import SqliteJournal

            return SqliteJournal(place)
        case "postgres" | "dbos":
            from midcall.journal.postgres import PostgresJournal

            return PostgresJournal(place)
    raise ValueError(f"There is no backend {backend!r}")


def open_engine(backend: str, journal: Any, place: str) -> Engine | None:
    """What runs segments, if it is not the keeper itself."""
    if backend != "dbos":
        return None
    from midcall.journal.dbos import DbosEngine

    return DbosEngine(journal, place)

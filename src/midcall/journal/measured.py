"""Measured: how long the operations of a journal take, and how often they fail, for `metrics`."""

import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from midcall.errors import Fenced, JournalError
from midcall.journal.base import Journal
from midcall.metrics import WRITING, Histogram, counts

OPERATIONS = (
    "create", "claim", "append", "settle", "release", "load", "find", "end", "due", "sweep", "list", "count",
)  # fmt: skip
"""Those whose time says something. `wait` takes as long as the one who works."""


def measure(journal: Journal) -> None:
    """From now on measure what is done with this journal."""
    if hasattr(journal.load, "__wrapped__"):
        return  # it is measured already
    for name in OPERATIONS:
        setattr(journal, name, _measured(name, getattr(journal, name)))


def _measured(name: str, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    times = counts.journal.setdefault(name, Histogram.empty(WRITING))

    @functools.wraps(operation)
    async def measured(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return await operation(*args, **kwargs)
        except Fenced:
            raise  # the journal works
        except JournalError:
            counts.journal_errors[name] += 1
            raise
        finally:
            times.observe(time.perf_counter() - start)

    return measured

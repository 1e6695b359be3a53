"""Measured: how long the operations of a journal and of its parts take, and how often they fail."""

import functools
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from midcall.errors import Fenced, JournalError
from midcall.journal.contract import Journal
from midcall.metrics import keep

OPERATIONS = (
    "create", "claim", "append", "settle", "release", "load", "find", "end", "due", "sweep", "list", "count",
)  # fmt: skip
"""Those whose time says something. `wait` takes as long as the one who works."""

OF_CONVERSATIONS = (
    "load", "save", "delete", "list", "held", "begin_run", "append", "stop_run", "run", "lines",
)  # fmt: skip

OF_TREES = (
    "create", "load", "find", "list", "write", "claim", "release", "node", "nodes", "path", "branch",
    "children", "leaves", "held",
)  # fmt: skip

_WRITING = frozenset(
    ("create", "claim", "append", "settle", "end", "save", "delete", "begin_run", "stop_run", "write")
)

_refused: WeakKeyDictionary[Journal, float] = WeakKeyDictionary()
"""When a journal has refused to write something, if it has not written anything since."""


_measuring: WeakSet[Journal] = WeakSet()


def refused_lately(journal: Journal, seconds: float) -> bool:
    """Whether the last thing that was to be written was refused, not longer ago than that."""
    return time.monotonic() - _refused.get(journal, -math.inf) < seconds


def measure(journal: Journal) -> None:
    """From now on measure what is done with this journal."""
    if journal in _measuring:
        return
    _measuring.add(journal)
    for part, names, prefix in (
        (journal, OPERATIONS, ""),
        (journal.conversations, OF_CONVERSATIONS, "conversations."),
        (journal.trees, OF_TREES, "trees."),
    ):
        for name in names:
            setattr(part, name, _measured(journal, prefix + name, getattr(part, name), name in _WRITING))


def _measured(
    journal: Journal, name: str, operation: Callable[..., Awaitable[Any]], writes: bool
) -> Callable[..., Awaitable[Any]]:
    metrics = keep()
    times, errors = metrics.journal.labels(name), metrics.journal_errors.labels(name)
    of = ref(journal)  # which holds this

    @functools.wraps(operation)
    async def measured(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            done = await operation(*args, **kwargs)
        except Fenced:
            raise  # the journal works
        except JournalError:
            errors.inc()
            if writes and (refusing := of()) is not None:
                _refused[refusing] = time.monotonic()
            raise
        else:
            if _refused and writes and (written := of()) is not None:
                _refused.pop(written, None)
            return done
        finally:
            times.observe(time.perf_counter() - start)

    return measured

"""The durable calls whose coroutine is in this process: those that run, and those that wait.

A coroutine that waits is *parked*, a cache of what is in the journal. There are not more of them than may
be: the coldest are dropped, and such a call is run again when it is answered. One that is at work is not
dropped for that: in the middle of a step, that would count as interrupted. Knows no journal.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator

from midcall.journal.contract import CallRecord
from midcall.journal.dialect import Detached

PARKED_CALLS = 2_000
"""How many coroutines wait in memory; beyond that the coldest are dropped, and run again when answered."""


class LiveCalls:
    """The calls of one process."""

    def __init__(self, parked_calls: int) -> None:
        self._most = parked_calls
        self._calls: dict[str, Detached] = {}
        self._parked: OrderedDict[str, Detached] = OrderedDict()
        """The coldest first."""

    def __iter__(self) -> Iterator[Detached]:
        return iter(list(self._calls.values()))

    @property
    def parked(self) -> int:
        """How many coroutines wait."""
        return len(self._parked)

    def get(self, call_id: str) -> Detached | None:
        return self._calls.get(call_id)

    def add(self, dialect: Detached) -> None:
        """A call begins, or is to be run again."""
        self._calls[dialect.record.id] = dialect

    def park(self, dialect: Detached) -> None:
        """A call waits, and anybody may go on with it."""
        dialect.parked = True
        dialect.end_work()
        self._parked[dialect.record.id] = dialect
        self.make_room()

    def unpark(self, dialect: Detached, record: CallRecord) -> None:
        """This worker runs the next segment, with the coroutine that is here."""
        self._parked.pop(record.id, None)
        dialect.parked = False
        dialect.record = record
        if dialect.call is not None and dialect.call.trace is not None:
            dialect.call.trace.segment = record.segment

    def forget(self, dialect: Detached) -> None:
        """A call is not to be found here any more."""
        for calls in (self._calls, self._parked):
            if calls.get(dialect.record.id) is dialect:
                del calls[dialect.record.id]
        dialect.end_work()

    def yield_to(self, call_id: str, fence: int) -> bool:
        """Another worker has gone on with a call, by the claim of this fence: let go of what is parked here.

        False if this worker has gone on with it since.
        """
        dialect = self._calls.get(call_id)
        if dialect is None:
            return True
        if not dialect.parked or dialect.record.fence >= fence:
            return False
        dialect.discard()
        return True

    def is_free(self, record: CallRecord) -> bool:
        """Whether to go on with a call that nobody looks after.

        If it is parked here and its time is up, its own timer has not noticed: that stands still while the
        machine sleeps. Run again from the journal, it does.
        """
        dialect = self._calls.get(record.id)
        if dialect is None or dialect.record.fence != record.fence:
            return True
        if not dialect.parked or dialect.at_work:
            return False
        dialect.discard()
        return True

    def let_go(self) -> None:
        """From now on nothing waits here."""
        self._most = 0
        self.make_room()

    @property
    def busy(self) -> bool:
        """Whether any call runs, or is in the middle of a step while it waits."""
        return any(not dialect.parked or dialect.at_work for dialect in self._calls.values())

    def make_room(self) -> None:
        """Drop the coldest, if there are too many."""
        over = max(len(self._parked) - self._most, 0)
        for coldest in list(itertools.islice(self._parked.values(), over)):
            if coldest.at_work:
                self._parked.move_to_end(coldest.record.id)
            else:
                coldest.discard()

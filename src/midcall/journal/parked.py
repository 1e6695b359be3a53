"""Here: the kept calls whose coroutine is in this process, those that run and those that wait.

A coroutine that waits is **parked**, a cache of what is in the journal. There are not more of them than may
be: the coldest are dropped, and such a call is run again when it is answered. One that is at work is not
dropped for that: in the middle of a step, that would count as interrupted. Knows no journal.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator

from midcall.journal.contract import CallRecord
from midcall.journal.kept import Kept

PARKED_CALLS = 2_000
"""How many coroutines wait in memory; beyond that the coldest are dropped, and run again when answered."""


class Here:
    """The calls of one process."""

    def __init__(self, parked_calls: int) -> None:
        self._most = parked_calls
        self._live: dict[str, Kept] = {}
        self._parked: OrderedDict[str, Kept] = OrderedDict()
        """The coldest first."""

    def __iter__(self) -> Iterator[Kept]:
        return iter(list(self._live.values()))

    @property
    def parked(self) -> int:
        """How many coroutines wait."""
        return len(self._parked)

    def get(self, call_id: str) -> Kept | None:
        return self._live.get(call_id)

    def add(self, kept: Kept) -> None:
        """A call begins, or is to be run again."""
        self._live[kept.id] = kept

    def park(self, kept: Kept) -> None:
        """A call waits, and anybody may go on with it."""
        kept.parked = True
        kept.end_work()
        self._parked[kept.id] = kept
        self.make_room()

    def unpark(self, kept: Kept, record: CallRecord) -> None:
        """This worker runs the next segment, with the coroutine that is here."""
        self._parked.pop(kept.id, None)
        kept.parked = False
        kept.record = record
        call = kept.front.call
        if call is not None and call.trace is not None:
            call.trace.segment = record.segment

    def drop(self, kept: Kept, *, over: bool = False) -> None:
        """Give a call up in this process; the journal has it. It is `over` if somebody has ended it."""
        self.forget(kept)
        if kept.front.call is not None:
            kept.front.call.drop(over=over)
        if kept.parked:
            kept.front.dropped()

    def forget(self, kept: Kept) -> None:
        """A call is not to be found here any more."""
        for calls in (self._live, self._parked):
            if calls.get(kept.id) is kept:
                del calls[kept.id]
        kept.end_work()

    def yield_to(self, call_id: str, fence: int) -> bool:
        """Another worker has gone on with a call, by the claim of this fence: let go of what is parked here.

        False if this worker has gone on with it since.
        """
        kept = self._live.get(call_id)
        if kept is None:
            return True
        if not kept.parked or kept.record.fence >= fence:
            return False
        self.drop(kept)
        return True

    def is_free(self, record: CallRecord) -> bool:
        """Whether to go on with a call that nobody looks after.

        If it is parked here and its time is up, its own timer has not noticed: that stands still while the
        machine sleeps. Run again from the journal, it does.
        """
        kept = self._live.get(record.id)
        if kept is None or kept.record.fence != record.fence:
            return True
        if not kept.parked or kept.at_work:
            return False
        self.drop(kept)
        return True

    def let_go(self) -> None:
        """From now on nothing waits here."""
        self._most = 0
        self.make_room()

    @property
    def busy(self) -> bool:
        """Whether any call runs, or is in the middle of a step while it waits."""
        return any(not kept.parked or kept.at_work for kept in self._live.values())

    def make_room(self) -> None:
        """Drop the coldest, if there are too many."""
        over = max(len(self._parked) - self._most, 0)
        for coldest in list(itertools.islice(self._parked.values(), over)):
            if coldest.at_work:
                self._parked.move_to_end(coldest.id)
            else:
                self.drop(coldest)

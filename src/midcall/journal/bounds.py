"""Bounds: what a journal in memory gives up when it has too much.

Of calls that wait, the principal who has the most of them loses the one that it has not come back to for
longest: nobody can push out what others wait for. Of what has ended, the oldest goes first.
"""

from collections import OrderedDict
from collections.abc import Mapping

from midcall.journal.base import ENDED, CallRecord

CALLS = 10_000
"""How many calls may wait, and how many ended ones are kept."""

BYTES = 64 * 1024 * 1024
"""How large the outcomes of ended calls may be, all together."""


class Bounds:
    """Which calls there are, in the order in which they were last used."""

    __slots__ = ("_active", "_bytes", "_count", "_ended")

    def __init__(self) -> None:
        self._active: dict[str | None, dict[str, None]] = {}
        self._count = 0
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def used(self, call: CallRecord, outcomes: Mapping[int, bytes]) -> list[str]:
        """A call has changed. Gives the ids of calls to be forgotten."""
        if call.status in ENDED:
            self.forgotten(call)
            self._ended[call.id] = size = sum(map(len, outcomes.values()))
            self._bytes += size
        else:
            mine = self._active.setdefault(call.principal, {})
            if call.id in mine:
                del mine[call.id]  # it comes last
            else:
                self._count += 1
            mine[call.id] = None
        over = []
        if self._count > CALLS:
            most: dict[str, None] = max(self._active.values(), key=len)
            over.append(next(iter(most)))
        if len(self._ended) > CALLS or self._bytes > BYTES:
            over.append(next(iter(self._ended)))
        return over

    def forgotten(self, call: CallRecord) -> None:
        """A call is not kept any more."""
        mine = self._active.get(call.principal, {})
        if call.id in mine:
            del mine[call.id]
            self._count -= 1
            if not mine:
                del self._active[call.principal]
        self._bytes -= self._ended.pop(call.id, 0)

"""Parked: the coroutines of calls that wait, a cache of what is in the journal.

There are not more of them than may be: the coldest are dropped, and such a call is run again when it is
answered. One that is in the middle of a step is not dropped, since that step would count as interrupted.
"""

import asyncio
import itertools
from collections import OrderedDict

from midcall.journal.kept import Kept

PARKED_CALLS = 4_000
"""How many coroutines wait in memory; beyond that the coldest are dropped, and run again when answered."""


class Parked:
    """Those of one process, the coldest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        """How many there may be."""
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, kept: Kept) -> None:
        self._kept[kept.id] = kept

    def discard(self, kept: Kept) -> None:
        self._kept.pop(kept.id, None)

    def coldest(self) -> list[Kept]:
        """Those that are to be dropped now. What is in a step is looked at again later."""
        over = max(len(self._kept) - self.most, 0)
        found = list(itertools.islice(self._kept.values(), over))
        for kept in found:
            if kept.in_a_step:
                self._kept.move_to_end(kept.id)
        return [kept for kept in found if not kept.in_a_step]

    async def steps_end(self) -> None:
        """Wait until none is in the middle of a step."""
        while any(kept.in_a_step for kept in self._kept.values()):  # noqa: ASYNC110  when the process ends
            await asyncio.sleep(0.01)

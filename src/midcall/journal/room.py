"""Room: how much each caller has in the journal, so that none of them fills it.

What a caller has is asked of the journal now and then, and counted here meanwhile: with several workers, it
may get more than its share for a while. Callers without a name cannot be told apart, and have all the room
there is.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from midcall.errors import JournalFull
from midcall.journal.contract import CALL_SIZE, CallRecord, Journal
from midcall.metrics import counts

SHARE = 1024 * 1024 * 1024
"""How many bytes the calls of a caller with a name may take, those included that have ended."""

LOOK = 60.0
"""Seconds between two times that the journal is asked."""

CALLERS = 10_000
"""For how many callers it is remembered."""


class Room:
    """What this worker knows of the room in a journal."""

    def __init__(
        self, journal: Journal, share: int = SHARE, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._journal = journal
        self._share = share
        self._clock = clock
        self._taken: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """How much each caller has, and when to ask again."""
        self._looking = asyncio.Lock()

    async def check(self, call: CallRecord) -> None:
        """Raise `JournalFull` if a call is too much for its caller; else it counts from now on."""
        principal = call.principal
        if principal is None:
            return
        if not self._is_known(principal):
            async with self._looking:
                if not self._is_known(principal):
                    begun = self._clock()
                    taken = await self._journal.held(principal)
                    pause = max(LOOK, 100 * (self._clock() - begun))  # of many calls it takes long
                    self._taken[principal] = (taken, self._clock() + pause)
                    if len(self._taken) > CALLERS:
                        self._taken.popitem(last=False)
        size = CALL_SIZE + len(call.arguments) + len(call.context)
        if self._taken[principal][0] + size > self._share:
            counts.refused[JournalFull.code] += 1
            raise JournalFull(
                "The journal has no more room for this caller; answer what waits, or try again later"
            )
        self.add(principal, size)

    def add(self, principal: str | None, size: int) -> None:
        """So much more of a caller is written down."""
        if principal is not None and principal in self._taken:
            taken, until = self._taken[principal]
            self._taken[principal] = (taken + size, until)

    def _is_known(self, principal: str) -> bool:
        return principal in self._taken and self._clock() < self._taken[principal][1]

"""Sweeper: looks after the calls that nobody comes back to.

Their time is up, or the worker that ran them is gone. It looks into the journal now and then, has the keeper
go on with such calls, and has what is past its time expire or be forgotten. Knows no front and no protocol.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midcall.errors import JournalError, TooManyCalls
from midcall.journal.base import Busy, CallRecord, Gone, Settled
from midcall.journal.kept import kind_of
from midcall.logs import Trouble

if TYPE_CHECKING:
    from midcall.journal.keeper import Keeper

log = logging.getLogger("midcall.journal")

SWEEP = 5.0
"""Seconds between two looks at calls that nobody comes back to."""


class Sweeper:
    """One task of a keeper."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper
        self._task: asyncio.Task[None] | None = None
        self._trouble = Trouble(log, "sweep the journal")

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sweep())

    async def stop(self, patience: float) -> None:
        """Stop; what it has claimed is given back, unless the journal takes too long for that."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=patience)

    async def look(self) -> None:
        """Look once. Raises `JournalError`."""
        keeper = self._keeper
        due: Sequence[CallRecord] = await keeper.journal.due() if keeper.looks_after else ()
        if keeper.engine is not None:
            due = await keeper.engine.look_after(due)
        for record in due:
            if kind_of(record) not in keeper.fronts or not keeper.here.is_free(record):
                continue  # somebody else's, who shares the journal; or it is looked after here
            front = await keeper.claim(record.id, record.segment)
            if not isinstance(front, Settled | Busy | Gone):
                with contextlib.suppress(TooManyCalls):
                    keeper.resume(front)
                await keeper.subscriptions.gone_on(record)
        await keeper.journal.sweep()
        await keeper.renew_keys()

    async def _sweep(self) -> None:
        while True:
            try:
                await self.look()
            except JournalError as error:
                self._trouble.begins(error)
            else:
                self._trouble.ends()
            await asyncio.sleep(SWEEP)

"""Sweeper: looks after the calls that nobody comes back to.

Their time is up, or the worker that ran them is gone. It looks into the journal now and then, has
`DurableCalls` go on with such calls, and has what is past its time expire or be forgotten. Knows no
protocol.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midcall.errors import JournalError, TooManyCalls
from midcall.journal.contract import CallRecord
from midcall.journal.dialect import Detached
from midcall.journal.state import kind_of
from midcall.logs import Trouble

if TYPE_CHECKING:
    from midcall.journal.durable import DurableCalls

log = logging.getLogger("midcall.journal")

SWEEP = 5.0
"""Seconds between two looks at calls that nobody comes back to."""


class Sweeper:
    """One task of `DurableCalls`."""

    def __init__(self, durable: "DurableCalls") -> None:
        self._durable = durable
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
        durable = self._durable
        due: Sequence[CallRecord] = await durable.journal.due() if durable.looks_after else ()
        if durable.engine is not None:
            due = await durable.engine.look_after(due)
        for record in due:
            if kind_of(record) not in durable.kinds or not durable.live.is_free(record):
                continue  # somebody else's, who shares the journal; or it is looked after here
            claimed = await durable.claim(record.id, record.segment)
            if isinstance(claimed, Detached):
                with contextlib.suppress(TooManyCalls):
                    durable.resume(claimed)
                claimed.taken_over()
        await durable.journal.sweep()
        await durable.renew_keys()
        if durable.notices is not None:
            durable.notices.wake()

    async def _sweep(self) -> None:
        while True:
            try:
                await self.look()
            except JournalError as error:
                self._trouble.begins(error)
            except Exception:
                log.exception("the sweeper failed inside midcall, and goes on")
            else:
                self._trouble.ends()
            await asyncio.sleep(SWEEP)

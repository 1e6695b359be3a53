"""Calls: the registry of all that run or wait in a hub."""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Sequence

from midcall.call import PROCESS, Call, CallInfo
from midcall.errors import TooManyCalls, UnknownQuestion

log = logging.getLogger("midcall.call")

GRACE = 10.0
"""How many seconds an aborted call may clean up before whoever stopped it goes on."""


class Calls:
    """All calls of a hub that run or wait: start, find, answer, abort, list."""

    def __init__(self, limit: int = 100_000) -> None:
        self.limit = limit
        self._active: dict[int, Call] = {}
        self._asking: dict[str, Call] = {}
        self._numbers = itertools.count(1)

    def start(self, call: Call) -> Call:
        """Give the call an id and a task. Raises `TooManyCalls` at the limit."""
        if len(self._active) >= self.limit:
            raise TooManyCalls(f"More than {self.limit} calls at once; try again later")
        number = call.number = next(self._numbers)
        call.started = time.monotonic()
        call.asking = self._asking
        self._active[number] = call
        call.task = asyncio.get_running_loop().create_task(call.run(self._ended))
        return call

    def _ended(self, call: Call) -> None:
        del self._active[call.number]

    def answer(self, request_id: str, payload: object, *, owner: object = None) -> None:
        """Answer an open question of this owner's calls; to anybody else it does not exist."""
        call = self._asking.get(request_id)
        if call is None or (owner is not None and call.owner is not owner):
            raise UnknownQuestion(request_id)
        call.answer(request_id, payload)

    def get(self, call_id: str) -> Call | None:
        """A call by its id, while it runs."""
        process, _, number = call_id.rpartition("-")
        return self._active.get(int(number)) if process == PROCESS and number.isdecimal() else None

    def abort(self, call_id: str, reason: str = "The call was aborted") -> bool:
        """Stop a call by its id; false if it does not run."""
        call = self.get(call_id)
        return call is not None and call.abort(reason)

    def list(self) -> "list[CallInfo]":
        """The active calls, the oldest first, with their open questions."""
        return [call.info() for call in self._active.values()]

    def __len__(self) -> int:
        return len(self._active)

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._active.values()))

    @property
    def open_questions(self) -> int:
        """How many questions wait, of all calls."""
        return len(self._asking)

    async def close(self, reason: str = "The server is closing") -> None:
        """Abort everything and wait until it has ended."""
        await end_all(tuple(self._active.values()), reason)


async def end_all(calls: Sequence[Call], reason: str) -> None:
    """Abort these calls and wait until their tasks are over, up to `GRACE` seconds."""
    for call in calls:
        call.abort(reason)
    tasks = [call.task for call in calls if call.task is not None]
    if tasks:
        _, stubborn = await asyncio.wait(tasks, timeout=GRACE)
        if stubborn:
            log.warning("%d calls go on after they were cancelled", len(stubborn))

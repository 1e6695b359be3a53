"""Calls: the registry of all that run or wait in a hub."""

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Awaitable, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from midcall.call import PROCESS, Call, CallInfo
from midcall.errors import TooManyCalls, UnknownQuestion
from midcall.inline import ENDED, Inline, rest_of
from midcall.metrics import counts
from midcall.shares import RateLimit, Shares, share_of

log = logging.getLogger("midcall.call")

GRACE = 10.0
"""How many seconds an aborted call may clean up before whoever stopped it goes on."""

ARGUMENTS = 1024 * 1024 * 1024
"""How many bytes the arguments of all calls at once may have; those of a caller with a name, a tenth."""


class Calls:
    """All calls of a hub that run or wait: start, find, answer, abort, list."""

    def __init__(self, limit: int = 100_000) -> None:
        self.limit = limit
        """How many there may be at once; of a caller with a name, a tenth."""
        self.rate: RateLimit | None = None
        """How many a caller from outside may start in a second."""
        self._calls_of = Shares()
        self._arguments_of = Shares()
        self._active: dict[int, Call] = {}
        self._asking: dict[str, Call] = {}
        self._numbers = itertools.count(1)
        self._inline = Inline[Call](self._begin, waits=self.add)

    def admit(self, principal: str | None) -> None:
        """A caller from outside is about to start a call. Raises `RateLimited` if that is too soon."""
        if self.rate is not None:
            self.rate.take(principal)

    def start(
        self,
        call: Call,
        *,
        at_once: bool = False,
        checked: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Call:
        """Give the call an id and a task. Raises `TooManyCalls` at the limit, unless that was `checked`.

        `at_once` runs it up to the first thing that it waits for before this returns, where Python can
        (3.12 and later): whoever starts it must be ready for its items, also for the last one. Who
        knows the running loop gives it, as finding it out is a system call in Python 3.11.
        """
        if not checked:
            self.check_room(call)
        self.add(call)
        loop = loop or asyncio.get_running_loop()
        if at_once and sys.version_info >= (3, 12):
            call.task = asyncio.Task(call.run(self.ended), loop=loop, eager_start=True)
        else:
            call.task = loop.create_task(call.run(self.ended))
        return call

    def run_soon(self, call: Call, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Run a call in the next turn of the loop, in a task of its own if it waits; most do not.

        It is listed from then on. Whoever starts it has seen that there is room (`check_room`).
        """
        self._inline.put(call, loop or asyncio.get_running_loop())

    def _begin(self, call: Call, task: asyncio.Task[None]) -> Coroutine[Any, Any, None]:
        call.task = task
        return call.run(self.ended)

    def run_here(self, call: Call, waiting: AbstractContextManager[object]) -> Awaitable[None]:
        """Run a call in the present task: nothing is known of it unless it waits, and most do not.

        If it does, it is listed and can be aborted, and `waiting` is entered until it ends. Whoever
        starts it has seen that there is room (`check_room`).
        """
        return _Here(self, call, waiting)

    def check_room(self, call: Call) -> None:
        """Raise `TooManyCalls` if one more call of this caller is too many, or its arguments are too much."""
        if self._calls_of.is_full(call.principal, self.limit):
            if self._calls_of.total < self.limit:
                why = f"More than {share_of(self.limit)} calls at once for one caller; try again later"
            else:
                why = f"More than {self.limit} calls at once; try again later"
        elif self._arguments_of.is_full(call.principal, ARGUMENTS, call.size):
            why = "The arguments of the calls that run are too large together; try again later"
        else:
            return
        counts.refused[TooManyCalls.code] += 1
        raise TooManyCalls(why)

    def add(self, call: Call) -> None:
        """List a call that runs."""
        number = call.number = next(self._numbers)
        call.started = time.monotonic()
        call.asking = self._asking
        self._active[number] = call
        self._calls_of.take(call.principal)
        self._arguments_of.take(call.principal, call.size)

    def ended(self, call: Call) -> None:
        """A call runs no longer."""
        if self._active.pop(call.number, None) is not None:
            self._calls_of.give_back(call.principal)
            self._arguments_of.give_back(call.principal, call.size)

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
        for call in self._inline:
            call.abort(reason)
        await end_all(tuple(self._active.values()), reason)


class _Here:
    """Runs a call in the task that awaits this (see `Calls.run_here`)."""

    __slots__ = ("_call", "_calls", "_waiting")

    def __init__(self, calls: Calls, call: Call, waiting: AbstractContextManager[object]) -> None:
        self._calls = calls
        self._call = call
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, None]:
        body = self._call.run(self._calls.ended)
        waits_for = next(body.__await__(), ENDED)
        if waits_for is ENDED:
            return
        self._call.task = asyncio.current_task()
        self._calls.add(self._call)
        with self._waiting:
            yield from rest_of(body, waits_for)


async def end_all(calls: Sequence[Call], reason: str) -> None:
    """Abort these calls and wait until their tasks are over, up to `GRACE` seconds."""
    for call in calls:
        call.abort(reason)
    tasks = [call.task for call in calls if call.task is not None]
    if tasks:
        _, stubborn = await asyncio.wait(tasks, timeout=GRACE)
        if stubborn:
            log.warning("%d calls go on after they were cancelled", len(stubborn))

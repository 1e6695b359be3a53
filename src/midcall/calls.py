"""Calls: the registry of all that run or wait in a hub, how many each caller may have, and how they are run.

A limit is for all callers of a server together. A caller with a name may take a tenth of it (`Shares`), so
that no caller takes what the others need. Callers without one cannot be told apart: they count as one, and
may take all of it.

A task for each plain call costs 1.5 of the 9 µs that such a call costs on stdio (`bench/peers/stdio.py`, with
64 in flight). So one task, the **leader**, takes what is to be run from a queue and runs each up to the first
thing that it waits for (`RunQueue`). Most end before that, and the leader takes the next one. One that waits
keeps the task, and another leader goes on with the queue: whatever asks for the current task (a time limit, a
task group) finds the same one from beginning to end. Each has a context of its own, as in a task. A leader
begins in the next turn of the event loop. So that many that wait need not wait for each other, there are as
many leaders as were of use lately: one while nothing waits, and up to one for each if all do.
"""

import asyncio
import itertools
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from midcall.call import PROCESS, AskElsewhere, Call, CallInfo
from midcall.errors import RateLimited, TooManyCalls, UnknownQuestion
from midcall.metrics import refused

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
        self.ask_elsewhere: AskElsewhere | None = None
        """Asks others than the caller, for calls that are not kept; without it, the caller is asked."""
        self._calls_of = Shares()
        self._arguments_of = Shares()
        self._active: dict[int, Call] = {}
        self._asking: dict[str, Call] = {}
        self._numbers = itertools.count(1)
        self._queue = RunQueue[Call](self._begin, waits=self.add)

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

        One that is listed already keeps its id.
        `at_once` runs it up to the first thing that it waits for before this returns, where Python can
        (3.12 and later): whoever starts it must be ready for its items, also for the last one. Who
        knows the running loop gives it, as finding it out is a system call in Python 3.11.
        """
        if not call.number:
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
        self._queue.put(call, loop or asyncio.get_running_loop())

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
        refused(TooManyCalls.code)
        raise TooManyCalls(why)

    def add(self, call: Call) -> None:
        """List a call that runs."""
        number = call.number = next(self._numbers)
        call.started = time.monotonic()
        call.asking = self._asking
        call.ask_elsewhere = self.ask_elsewhere
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
        for call in self._queue:
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
            yield from Rest(body, waits_for).__await__()


async def end_all(calls: Sequence[Call], reason: str) -> None:
    """Abort these calls and wait until their tasks are over, up to `GRACE` seconds."""
    for call in calls:
        call.abort(reason)
    tasks = [call.task for call in calls if call.task is not None]
    if tasks:
        _, stubborn = await asyncio.wait(tasks, timeout=GRACE)
        if stubborn:
            log.warning("%d calls go on after they were cancelled", len(stubborn))


T = TypeVar("T")

RATE = 1_000.0
"""Calls a second that a caller with a name may start."""

UNNAMED_RATE = 50_000.0
"""Calls a second that all callers without a name may start together."""

AT_ONCE = 10.0
"""How many seconds' worth of calls may come at once."""


def share_of(limit: int) -> int:
    """What a caller with a name may take of a limit."""
    return limit // 10 or 1


class Shares:
    """How much of something is taken, by all callers and by each that has a name."""

    __slots__ = ("_named", "total")

    def __init__(self) -> None:
        self.total = 0
        self._named: dict[str, int] = {}

    def is_full(self, principal: str | None, limit: int, more: int = 1) -> bool:
        """Whether a caller may not take so much more."""
        if self.total + more > limit:
            return True
        return principal is not None and self._named.get(principal, 0) + more > share_of(limit)

    def take(self, principal: str | None, amount: int = 1) -> None:
        self.total += amount
        if principal is not None:
            self._named[principal] = self._named.get(principal, 0) + amount

    def give_back(self, principal: str | None, amount: int = 1) -> None:
        self.total -= amount
        if principal is not None:
            left = self._named.get(principal, 0) - amount
            if left:
                self._named[principal] = left
            else:
                self._named.pop(principal, None)


class Owned(Generic[T]):
    """Things by owner and id, each owner's in the order in which they were last used."""

    __slots__ = ("_by_owner", "_count")

    def __init__(self) -> None:
        self._by_owner: dict[str | None, dict[str, T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (thing for own in self._by_owner.values() for thing in own.values())

    def get(self, owner: str | None, id: str) -> T | None:
        return self._by_owner.get(owner, {}).get(id)

    def of(self, owner: str | None) -> Collection[T]:
        """What an owner has, the longest unused first."""
        return self._by_owner.get(owner, {}).values()

    def use(self, owner: str | None, id: str, thing: T) -> None:
        """Add a thing, or note that it was used."""
        self.remove(owner, id)
        self._by_owner.setdefault(owner, {})[id] = thing
        self._count += 1

    def remove(self, owner: str | None, id: str) -> None:
        """Forget a thing, if it is there."""
        own = self._by_owner.get(owner, {})
        if id in own:
            del own[id]
            self._count -= 1
            if not own:
                del self._by_owner[owner]

    def make_room(
        self, owner: str | None, limit: int, is_busy: Callable[[T], bool] = lambda _: False
    ) -> list[T]:
        """Forget what is in the way of one more thing of this owner, and give it back.

        That is what was unused for longest: of the owner itself if it has its share, else of whoever has
        most. What is busy is the last to go.
        """
        gone: list[T] = []
        while True:
            if owner is not None and len(self._by_owner.get(owner, ())) >= share_of(limit):
                loser: str | None = owner
            elif self._count >= limit:
                loser = max(self._by_owner, key=lambda one: len(self._by_owner[one]))
            else:
                return gone
            things = self._by_owner[loser]
            id = next((id for id, thing in things.items() if not is_busy(thing)), next(iter(things)))
            gone.append(things[id])
            self.remove(loser, id)


class RateLimit:
    """How many calls a second each caller may start; `AT_ONCE` seconds' worth of them may come together.

    Without a rate, a caller with a name may start `RATE`, and all others together `UNNAMED_RATE`. A rate of 0
    is no limit. `at_once` is another number of seconds, and `told` what the error says that is allowed. (A
    bucket of tokens for each caller, of which only the moment is kept at which it is full.)
    """

    __slots__ = ("_clock", "_full_at", "_named", "_swept", "_told", "_unnamed")

    def __init__(
        self,
        rate: float | None = None,
        *,
        at_once: float = AT_ONCE,
        told: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._told = told
        self._named = _Rate.of(RATE if rate is None else rate, at_once)
        self._unnamed = _Rate.of(UNNAMED_RATE if rate is None else rate, at_once)
        self._clock = clock
        self._full_at: dict[str | None, float] = {}
        self._swept = 1_000
        """At how many callers those are forgotten that have not called lately."""

    def take(self, principal: str | None) -> None:
        """A caller starts a call. Raises `RateLimited`."""
        pause, room = self._unnamed if principal is None else self._named
        now = self._clock()
        full_at = self._full_at.get(principal, now)
        if full_at < now:
            full_at = now
        elif full_at - now > room:
            refused(RateLimited.code)
            seconds = max(math.ceil(full_at - now - room), 1)
            told = self._told or f"{1 / pause:g} calls per second"
            raise RateLimited(f"More than {told}; try again in {seconds} s", seconds)
        self._full_at[principal] = full_at + pause
        if len(self._full_at) > self._swept:
            self._full_at = {who: at for who, at in self._full_at.items() if at > now}
            self._swept = max(2 * len(self._full_at), 1_000)


class _Rate(NamedTuple):
    """The time that a call takes from its caller, and how much of it may be missing before the next one."""

    pause: float
    room: float

    @classmethod
    def of(cls, rate: float, at_once: float) -> "_Rate":
        pause = 1 / rate if rate else 0.0
        return cls(pause, max(at_once - pause, 0.0) + pause / 1000)  # sums of floats are not exact


Body: TypeAlias = Coroutine[Any, Any, None]
Task: TypeAlias = asyncio.Task[None]
Run: TypeAlias = Callable[..., Any]
"""Calls a function with what else it is given, in the right context."""

ENDED = object()
"""What `next(body.__await__(), ENDED)` gives if the coroutine ends without waiting.

To `send`, and to catch the exception with which it ends, takes twice as long.
"""

TURN = 64
"""After how many a leader lets others run; and how many leaders there are at most."""


class RunQueue(Generic[T]):
    """What is about to run, most of it in a task that it shares."""

    __slots__ = ("_begin", "_leaders", "_left", "_loop", "_queue", "_waits", "_wanted", "waiting")

    def __init__(
        self,
        begin: Callable[[T, Task], Body],
        *,
        waits: Callable[[T], None] = lambda _: None,
        left: Callable[[T], None] = lambda _: None,
    ) -> None:
        """`begin` gives the coroutine of one, told which task runs it.

        `waits` is told of those that wait, `left` of those that are not run, as the event loop ends before.
        """
        self._begin = begin
        self._waits = waits
        self._left = left
        self.waiting: set[Task] = set()
        """The tasks of those that wait."""
        self._queue: deque[T] = deque()
        self._leaders: set[Task] = set()
        self._wanted = 1
        self._loop: asyncio.AbstractEventLoop | None = None

    def __iter__(self) -> Iterator[T]:
        """Those that have not begun."""
        return iter(list(self._queue))

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, one: T, loop: asyncio.AbstractEventLoop) -> None:
        """Run one in the next turn of the loop."""
        self._queue.append(one)
        if loop is not self._loop:  # those of a loop that is gone lead nothing any more
            self._loop = loop
            self._leaders.clear()
        if len(self._leaders) < self._wanted:
            self._appoint(loop)

    def _appoint(self, loop: asyncio.AbstractEventLoop) -> None:
        leader = loop.create_task(self._lead())
        self._leaders.add(leader)
        leader.add_done_callback(self._over)

    async def _lead(self) -> None:
        leader = cast("Task", asyncio.current_task())
        done = 0
        leader.remove_done_callback(self._over)
        if not self._queue:
            self._wanted = max(1, self._wanted - 1)  # the others have done it all
        try:
            while self._queue and leader in self._leaders:
                one = self._queue.popleft()
                body, run = self._begin(one, leader), copy_context().run
                waits_for = run(next, body.__await__(), ENDED)
                if waits_for is not ENDED:
                    self._step_down(leader)
                    self.waiting.add(leader)
                    self._waits(one)
                    await Rest(body, waits_for, run)
                    return
                done += 1
                if leader.cancelling():
                    return  # it has stopped itself: what is meant for it must not hit another one
                if done % TURN == 0:
                    await asyncio.sleep(0)
        finally:
            self._step_down(leader)
            self.waiting.discard(leader)

    def _step_down(self, leader: Task) -> None:
        """This task leads no more. If it was the last one, others are needed for the rest."""
        if leader not in self._leaders:
            return
        self._leaders.remove(leader)
        if self._queue and not self._leaders:
            self._wanted = min(2 * self._wanted, TURN)
            for _ in range(min(self._wanted, len(self._queue))):
                self._appoint(leader.get_loop())

    def _over(self, leader: Task) -> None:
        """A leader that was cancelled before it began: the loop is about to end."""
        self._leaders.discard(leader)
        while self._queue and not self._leaders:
            self._left(self._queue.popleft())


def _here(step: Callable[..., Any], *given: Any) -> Any:
    return step(*given)


class Rest(Generic[T]):
    """What is left of a coroutine that waits already, to be awaited; `run` takes each of its steps."""

    __slots__ = ("_body", "_run", "_waits_for")

    def __init__(self, body: Coroutine[Any, Any, T], waits_for: Any, run: Run = _here) -> None:
        self._body = body
        self._waits_for = waits_for
        self._run = run

    def __await__(self) -> Generator[Any, Any, T]:
        body, waits_for, run = self._body, self._waits_for, self._run
        while True:
            try:
                try:
                    given = yield waits_for
                except GeneratorExit:
                    body.close()
                    raise
                except BaseException as error:  # noqa: BLE001  the coroutine's to handle
                    waits_for = run(body.throw, error)
                else:
                    waits_for = run(body.send, given)
            except StopIteration as ended:
                return cast("T", ended.value)

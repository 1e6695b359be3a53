"""Inline: what mostly ends without waiting, run one after the other by one task.

A task for each plain call costs a third of what such a call costs. Here one task, the **leader**, takes what
is to be run from a queue and runs each up to the first thing that it waits for. Most end before that, and the
leader takes the next one. One that waits keeps the task, and another leader goes on with the queue: whatever
asks for the current task (a time limit, a task group) finds the same one from beginning to end. Only at a
`Pause` one is put aside, and may go on in another task: who waits there knows that nobody asks for it. Each
has a context of its own, as in a task.

A leader begins in the next turn of the event loop. So that many that wait need not wait for each other, there
are as many leaders as were of use lately: one while nothing waits, and up to one for each if all do.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

T = TypeVar("T")
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


class Inline(Generic[T]):
    """What is about to run in this way."""

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
        self._queue: deque[T | _Begun] = deque()
        self._leaders: set[Task] = set()
        self._wanted = 1
        self._loop: asyncio.AbstractEventLoop | None = None

    def __iter__(self) -> Iterator[T]:
        """Those that have not begun."""
        return iter([one for one in self._queue if not isinstance(one, _Begun)])

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, one: "T | _Begun", loop: asyncio.AbstractEventLoop) -> None:
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
                if type(one) is _Begun:
                    body, run = one
                else:
                    body, run = self._begin(one, leader), copy_context().run  # type: ignore[arg-type]
                waits_for = run(next, body.__await__(), ENDED)
                if type(waits_for) is Pause:
                    waits_for.go_on = partial(self.put, _Begun(body, run), leader.get_loop())
                elif waits_for is not ENDED:
                    self._step_down(leader)
                    self.waiting.add(leader)
                    if type(one) is not _Begun:
                        self._waits(one)  # type: ignore[arg-type]
                    await _Rest(body, waits_for, run)
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
            one = self._queue.popleft()
            if isinstance(one, _Begun):
                one.body.close()
            else:
                self._left(one)


class _Begun(NamedTuple):
    """One that is to go on after a pause."""

    body: Body
    run: Run


class Pause:
    """Something to wait for that this process does itself, once.

    What runs inline is put aside meanwhile, and takes no task. What is not must say so, and waits as usual.
    """

    __slots__ = ("_inline", "go_on", "over")

    def __init__(self, *, inline: bool) -> None:
        self._inline = inline
        self.over = False
        self.go_on: Callable[[], object] | None = None
        """What has the coroutine go on."""

    def __await__(self) -> Generator[Any, Any, None]:
        if not self.over:
            if self._inline:
                yield self
            else:
                yield from self.as_future().__await__()

    def as_future(self) -> asyncio.Future[None]:
        """The same, for a task to wait for."""
        future = asyncio.get_running_loop().create_future()
        self.go_on = partial(_wake, future)
        return future

    def end(self) -> None:
        """It is done: whoever waits goes on."""
        self.over = True
        go_on, self.go_on = self.go_on, None
        if go_on is not None:
            go_on()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Rest:
    """What is left of a coroutine that waits already, in its context; to be awaited."""

    __slots__ = ("_body", "_run", "_waits_for")

    def __init__(self, body: Body, waits_for: Any, run: Run) -> None:
        self._body = body
        self._waits_for = waits_for
        self._run = run

    def __await__(self) -> Generator[Any, Any, None]:
        return rest_of(self._body, self._waits_for, self._run)


def _here(step: Callable[..., Any], *given: Any) -> Any:
    return step(*given)


def rest_of(body: Body, waits_for: Any, run: Run = _here) -> Generator[Any, Any, None]:
    """Await what is left of a coroutine that waits already; `run` takes each of its steps."""
    while True:
        try:
            try:
                given = None
                if isinstance(waits_for, Pause):
                    yield from waits_for.as_future().__await__()
                else:
                    given = yield waits_for
            except GeneratorExit:
                body.close()
                raise
            except BaseException as error:  # noqa: BLE001  the coroutine's to handle
                waits_for = run(body.throw, error)
            else:
                waits_for = run(body.send, given)
        except StopIteration:
            return

"""Inline: what mostly ends without waiting, run one after the other by one task.

A task for each plain call costs a third of what such a call costs. Here one task, the **leader**, takes what
is to be run from a queue and runs each up to the first thing that it waits for. Most end before that, and the
leader takes the next one. One that waits keeps the task, and a new leader goes on with the queue: whatever
asks for the current task (a time limit, a task group) finds the same one from beginning to end. Each has a
context of its own, as in a task.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeAlias, TypeVar, cast

T = TypeVar("T")
Body: TypeAlias = Coroutine[Any, Any, None]
Task: TypeAlias = asyncio.Task[None]

ENDED = object()
"""What `next(body.__await__(), ENDED)` gives if the coroutine ends without waiting.

To `send`, and to catch the exception with which it ends, takes twice as long.
"""

TURN = 64
"""After how many the leader lets others run."""


class Inline(Generic[T]):
    """What is about to run in this way."""

    __slots__ = ("_begin", "_leader", "_left", "_queue", "_waits")

    def __init__(
        self,
        begin: Callable[[T, Task], Body],
        waits: Callable[[T, Task], None],
        left: Callable[[T], None] = lambda _: None,
    ) -> None:
        """`begin` gives the coroutine of one, told which task runs it; `waits` is told when it waits.

        `left` is told of those that are not run, as the event loop ends before.
        """
        self._begin = begin
        self._waits = waits
        self._left = left
        self._queue: deque[T] = deque()
        self._leader: Task | None = None

    def __iter__(self) -> Iterator[T]:
        """Those that have not begun."""
        return iter(tuple(self._queue))

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, one: T, loop: asyncio.AbstractEventLoop) -> None:
        """Run one in the next turn of the loop."""
        self._queue.append(one)
        leader = self._leader
        if leader is None or leader.get_loop() is not loop:
            self._appoint(loop)

    def _appoint(self, loop: asyncio.AbstractEventLoop) -> None:
        self._leader = loop.create_task(self._lead())
        self._leader.add_done_callback(self._over)

    async def _lead(self) -> None:
        leader = cast("Task", asyncio.current_task())
        done = 0
        try:
            while self._queue and self._leader is leader:
                one = self._queue.popleft()
                body, context = self._begin(one, leader), copy_context()
                waits_for = context.run(next, body.__await__(), ENDED)
                if waits_for is not ENDED:
                    self._hand_over(leader)
                    self._waits(one, leader)
                    await _Rest(body, waits_for, context)
                    return
                done += 1
                if leader.cancelling():
                    return  # it has stopped itself: what is meant for it must not hit another one
                if done % TURN == 0:
                    await asyncio.sleep(0)
        finally:
            self._hand_over(leader)

    def _hand_over(self, leader: Task) -> None:
        """This task leads no more."""
        if self._leader is leader:
            self._leader = None
            if self._queue:
                self._appoint(leader.get_loop())

    def _over(self, leader: Task) -> None:
        """A leader that was cancelled before it began: the loop is about to end."""
        if self._leader is leader:
            self._leader = None
            while self._queue:
                self._left(self._queue.popleft())


class _Rest:
    """What is left of a coroutine that waits already, in its context; to be awaited."""

    __slots__ = ("_body", "_context", "_waits_for")

    def __init__(self, body: Body, waits_for: Any, context: Context) -> None:
        self._body = body
        self._waits_for = waits_for
        self._context = context

    def __await__(self) -> Generator[Any, Any, None]:
        return rest_of(self._body, self._waits_for, self._context.run)


def rest_of(
    body: Body,
    waits_for: Any,
    run: Callable[[Callable[[Any], Any], Any], Any] = lambda step, value: step(value),
) -> Generator[Any, Any, None]:
    """Await what is left of a coroutine that waits already; `run` takes each of its steps."""
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
        except StopIteration:
            return

"""What is run from a queue is run as in a task of its own: its task, its context, its errors and its end."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from driving import LIMIT, drive, turns, until
from midcall.calls import TURN, RunQueue

Body = Coroutine[Any, Any, None]
word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="nothing")


class Trail:
    """Runs coroutines from a queue, and notes what happens."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.waited: list[str] = []
        self._queue = RunQueue[tuple[str, Callable[[], Body]]](self._begin, waits=self._waits)

    def put(self, name: str, body: Callable[[], Body]) -> None:
        self._queue.put((name, body), asyncio.get_running_loop())

    def __len__(self) -> int:
        return len(self._queue)

    def _begin(self, one: tuple[str, Callable[[], Body]], task: asyncio.Task[None]) -> Body:
        self.tasks[one[0]] = task
        return one[1]()

    def _waits(self, one: tuple[str, Callable[[], Body]]) -> None:
        assert self.tasks[one[0]] is asyncio.current_task()
        assert self.tasks[one[0]] in self._queue.waiting
        self.waited.append(one[0])


def test_what_does_not_wait_shares_a_task_and_comes_in_order() -> None:
    async def main() -> None:
        trail = Trail()

        async def body(number: int) -> None:
            trail.notes.append(number)

        for number in range(5):
            trail.put(f"{number}", lambda number=number: body(number))
        assert trail.notes == [], "not before the next turn"
        await turns()
        assert trail.notes == list(range(5))
        assert len(set(trail.tasks.values())) == 1
        assert trail.waited == []
        trail.put("later", lambda: body(5))
        await turns()
        assert trail.notes[-1] == 5
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left"

    drive(main())


def test_what_waits_keeps_its_task_and_the_others_go_on() -> None:
    async def main() -> None:
        trail = Trail()
        gate = asyncio.Event()

        async def waits(name: str) -> None:
            before = asyncio.current_task()
            async with asyncio.timeout(LIMIT):  # needs to find the same task at its end
                await gate.wait()
            assert asyncio.current_task() is before is trail.tasks[name]
            trail.notes.append(name)

        async def ends(name: str) -> None:
            trail.notes.append(name)

        for name, body in (("a", waits), ("b", ends), ("c", waits), ("d", ends)):
            trail.put(name, lambda name=name, body=body: body(name))
        await turns()
        assert (trail.notes, trail.waited) == (["b", "d"], ["a", "c"])
        gate.set()
        await turns()
        assert sorted(trail.notes) == ["a", "b", "c", "d"]
        assert trail.tasks["a"] is not trail.tasks["c"]

    drive(main())


def test_each_has_a_context_of_its_own_also_after_it_has_waited() -> None:
    async def main() -> None:
        trail = Trail()

        async def body(own: str, *, wait: bool) -> None:
            found = word.get()
            word.set(own)
            if wait:
                await asyncio.sleep(0)
                await asyncio.sleep(0.001)
            trail.notes.append((found, word.get()))

        word.set("outside")
        for name, wait in (("a", False), ("b", True), ("c", False), ("d", True)):
            trail.put(name, lambda name=name, wait=wait: body(name, wait=wait))
        await until(lambda: len(trail.notes) == 4)
        assert sorted(trail.notes) == [("outside", name) for name in "abcd"]
        assert word.get() == "outside"

    drive(main())


def test_a_limit_of_time_stops_the_one_that_it_is_for() -> None:
    async def main() -> None:
        trail = Trail()

        async def slow() -> None:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(LIMIT)
            except TimeoutError:
                trail.notes.append("too slow")

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(0))
            trail.notes.append("group")

        trail.put("slow", slow)
        trail.put("group", group)
        await until(lambda: len(trail.notes) == 2)
        assert sorted(trail.notes) == ["group", "too slow"]

    drive(main())


def test_one_that_stops_itself_stops_no_other() -> None:
    async def main() -> None:
        trail = Trail()

        async def stops_itself() -> None:
            trail.tasks["a"].cancel()
            trail.notes.append("a")

        async def waits() -> None:
            await asyncio.sleep(0.001)
            trail.notes.append("b")

        trail.put("a", stops_itself)
        trail.put("b", waits)
        await until(lambda: len(trail.notes) == 2)
        assert trail.notes == ["a", "b"]

    drive(main())


def test_one_that_waits_can_be_cancelled() -> None:
    async def main() -> None:
        trail = Trail()

        async def waits() -> None:
            try:
                await asyncio.sleep(LIMIT)
            except asyncio.CancelledError:
                trail.notes.append("cancelled")
                raise

        trail.put("a", waits)
        await turns()
        trail.tasks["a"].cancel()
        await asyncio.wait([trail.tasks["a"]])
        assert trail.tasks["a"].cancelled()
        assert trail.notes == ["cancelled"]

    drive(main())


@pytest.mark.parametrize("wait", [False, True])
def test_an_error_ends_one_and_the_next_is_run(wait: bool) -> None:
    async def main() -> None:
        trail = Trail()

        async def fails() -> None:
            if wait:
                await asyncio.sleep(0)
            raise ValueError("a fault")

        async def ends() -> None:
            trail.notes.append("b")

        trail.put("a", fails)
        trail.put("b", ends)
        await turns()
        assert trail.notes == ["b"]
        with pytest.raises(ValueError, match="a fault"):
            trail.tasks["a"].result()

    drive(main())


def test_many_that_wait_do_not_wait_for_each_other_to_begin() -> None:
    async def main() -> None:
        trail = Trail()
        gate = asyncio.Event()

        async def waits(number: int) -> None:
            trail.notes.append(number)
            await gate.wait()

        async def turns_to_begin(count: int) -> int:
            begun = len(trail.notes)
            for number in range(begun, begun + count):
                trail.put(f"{number}", lambda number=number: waits(number))
            turns = 0
            while len(trail.notes) < begun + count:
                await asyncio.sleep(0)
                turns += 1
            return turns

        assert await turns_to_begin(40) < 10
        assert await turns_to_begin(30) <= 2, "it is known by now that they wait"
        assert trail.notes == list(range(70))
        gate.set()
        await turns()
        assert len(asyncio.all_tasks()) == 1

        async def ends() -> None:
            pass

        for number in range(300):
            trail.put(f"{number}", ends)
            await asyncio.sleep(0)
        tasks = trail.tasks
        tasks.clear()
        for number in range(30):
            trail.put(f"{number}", ends)
        await turns()
        assert len(set(tasks.values())) == 1, "and that they do not"

    drive(main())


def test_many_let_others_run() -> None:
    async def main() -> None:
        trail = Trail()

        async def body() -> None:
            trail.notes.append(None)

        for number in range(3 * TURN):
            trail.put(f"{number}", body)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert TURN <= len(trail.notes) < 3 * TURN
        assert len(trail) == 3 * TURN - len(trail.notes)
        await turns()
        assert len(trail.notes) == 3 * TURN

    drive(main())


def test_what_is_not_run_before_the_loop_ends_is_told_of_and_the_next_loop_runs_what_it_is_given() -> None:
    left: list[str] = []
    ran: list[str] = []

    async def body(name: str) -> None:
        ran.append(name)

    queue = RunQueue[str](lambda name, _: body(name), left=left.append)

    async def end_at_once() -> None:
        loop = asyncio.get_running_loop()
        queue.put("a", loop)
        queue.put("b", loop)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await turns()

    async def go_on() -> None:
        queue.put("c", asyncio.get_running_loop())
        await turns()

    drive(end_at_once())
    assert (ran, left) == ([], ["a", "b"])
    drive(go_on())
    assert (ran, left) == (["c"], ["a", "b"])

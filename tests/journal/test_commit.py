"""Group commit: in a thread, and in a task."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from driving import drive, turns, until
from midcall.journal.commit import MOST, CommitTask, CommitThread
from midcall.journal.contract import JournalError


class Work:
    """Does jobs when it may, and remembers them."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.begun = threading.Event()
        self.batches: list[int] = []
        self.done: list[str] = []

    def run(self, asked: Sequence[Callable[[list[str]], str]]) -> list[str]:
        self.begun.set()
        self.may.wait()
        self.batches.append(len(asked))
        return [work(self.done) for work in asked]


def note(name: str) -> Callable[[list[str]], str]:
    def work(done: list[str]) -> str:
        done.append(name)
        return name

    return work


def test_what_comes_while_it_works_is_the_next_batch() -> None:
    async def main() -> None:
        work = Work()
        batches = CommitThread("test", work.run)
        work.may.clear()
        first = asyncio.create_task(batches.do(note("first")))
        await until(work.begun.is_set)
        others = [asyncio.create_task(batches.do(note(str(n)))) for n in range(MOST + 10)]
        await turns()
        work.may.set()
        assert await first == "first"
        assert await asyncio.gather(*others) == [str(n) for n in range(MOST + 10)]
        assert work.batches == [1, MOST, 10]
        await batches.stop()

    drive(main())


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    async def main() -> None:
        work = Work()
        batches = CommitThread("test", work.run)
        work.may.clear()
        first = asyncio.create_task(batches.do(note("first")))
        await until(work.begun.is_set)
        second = asyncio.create_task(batches.do(note("second")))
        await turns()
        second.cancel()
        await asyncio.wait([second])
        work.may.set()
        await first
        await batches.stop()
        assert work.done == ["first"]

    drive(main())


def test_what_was_begun_is_undone_however_often_it_is_cancelled() -> None:
    async def main() -> None:
        work = Work()
        batches = CommitThread("test", work.run)
        work.may.clear()
        doing = asyncio.create_task(
            batches.do(note("done"), undo=lambda result: batches.do(note(f"not {result}")))
        )
        await until(work.begun.is_set)
        for _ in range(3):
            doing.cancel()
            await turns()
        assert not doing.done()
        work.may.set()
        with pytest.raises(asyncio.CancelledError):
            await doing
        assert work.done == ["done", "not done"]
        await batches.stop()

    drive(main())


def test_what_comes_too_late_is_refused_and_hangs_nobody() -> None:
    async def main() -> None:
        work = Work()
        batches = CommitThread("test", work.run)
        work.may.clear()
        doing = asyncio.create_task(
            batches.do(note("done"), undo=lambda result: batches.do(note(f"not {result}")))
        )
        await until(work.begun.is_set)
        stopping = asyncio.create_task(batches.stop())
        await turns()
        late = asyncio.create_task(batches.do(note("late")))
        doing.cancel()  # it is to be undone, but the thread has been told to end
        await turns()
        work.may.set()
        await stopping
        for task in (doing, late):
            with pytest.raises((asyncio.CancelledError, JournalError)):
                await task
        with pytest.raises(JournalError):
            await batches.do(note("later"))
        assert work.done == ["done"]

    drive(main())


def test_whatever_a_queue_fails_with_nobody_waits_for_ever_and_it_goes_on() -> None:
    async def main() -> None:
        async def send(asked: Sequence[int]) -> Sequence[int]:
            if 0 in asked:
                raise ArithmeticError
            return asked

        queue = CommitTask(send)
        running = asyncio.create_task(queue.run())
        told = await asyncio.gather(*(queue.do(n, key=str(n)) for n in range(3)), return_exceptions=True)
        assert [type(one) for one in told] == [JournalError] * 3
        assert await queue.do(1, key="1") == 1
        running.cancel()
        await asyncio.wait((running,))
        with pytest.raises(JournalError, match="closed"):
            await queue.do(1, key="1")

    drive(main())


def test_of_those_with_one_key_each_has_a_batch_of_its_own_and_their_order_stays() -> None:
    async def main() -> None:
        batches: list[list[str]] = []

        async def send(asked: Sequence[str]) -> Sequence[str]:
            batches.append(list(asked))
            await asyncio.sleep(0)
            return asked

        queue = CommitTask(send)
        running = asyncio.create_task(queue.run())
        asked = ["b1", "a1", "b2", "a2", "b3", "c1"]
        assert await asyncio.gather(*(queue.do(one, key=one[0]) for one in asked)) == asked
        assert batches == [["a1", "b1", "c1"], ["a2", "b2"], ["b3"]]
        running.cancel()
        await asyncio.wait((running,))

    drive(main())


def test_one_that_cannot_be_done_does_not_take_the_others_with_it() -> None:
    def run(asked: Sequence[int]) -> Sequence[int]:
        if 7 in asked:
            raise JournalError("not this one")
        return asked

    async def main() -> None:
        batches = CommitThread("test", run)
        told = await asyncio.gather(*(batches.do(n) for n in range(20)), return_exceptions=True)
        assert [n for n, one in enumerate(told) if isinstance(one, JournalError)] == [7]
        assert [one for n, one in enumerate(told) if n != 7] == [n for n in range(20) if n != 7]
        await batches.stop()

    drive(main())

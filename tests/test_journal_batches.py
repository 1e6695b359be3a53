"""The thread that works for a journal, in batches."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from driving import drive
from midcall.journal.batches import LARGEST, Batches, Job
from midcall.journal.contract import JournalError


class Work:
    """Does jobs when it may, and remembers them."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.batches: list[int] = []
        self.done: list[str] = []

    def run(self, jobs: Sequence[Job[list[str]]]) -> None:
        self.may.wait()
        self.batches.append(len(jobs))
        for job in jobs:
            try:
                job.result = job.work(self.done)
            except JournalError as error:
                job.error = error


def note(name: str) -> Callable[[list[str]], str]:
    def work(done: list[str]) -> str:
        done.append(name)
        return name

    return work


def test_what_comes_while_it_works_is_the_next_batch() -> None:
    async def main() -> None:
        work = Work()
        batches = Batches("test", work.run)
        work.may.clear()
        first = asyncio.create_task(batches.do(note("first")))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(batches.do(note(str(n)))) for n in range(LARGEST + 10)]
        await asyncio.sleep(0.05)
        work.may.set()
        assert await first == "first"
        assert await asyncio.gather(*others) == [str(n) for n in range(LARGEST + 10)]
        assert work.batches == [1, LARGEST, 10]
        await batches.stop()

    drive(main())


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    async def main() -> None:
        work = Work()
        batches = Batches("test", work.run)
        work.may.clear()
        first = asyncio.create_task(batches.do(note("first")))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(batches.do(note("second")))
        await asyncio.sleep(0)
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
        batches = Batches("test", work.run)
        work.may.clear()
        doing = asyncio.create_task(batches.do(note("done"), undo=lambda result: note(f"not {result}")))
        await asyncio.sleep(0.05)
        for _ in range(3):
            doing.cancel()
            await asyncio.sleep(0.01)
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
        batches = Batches("test", work.run)
        work.may.clear()
        doing = asyncio.create_task(batches.do(note("done"), undo=lambda result: note(f"not {result}")))
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(batches.stop())
        await asyncio.sleep(0.01)
        late = asyncio.create_task(batches.do(note("late")))
        doing.cancel()  # it is to be undone, but the thread has been told to end
        await asyncio.sleep(0.01)
        work.may.set()
        await stopping
        for task in (doing, late):
            with pytest.raises((asyncio.CancelledError, JournalError)):
                await task
        with pytest.raises(JournalError):
            await batches.do(note("later"))
        assert work.done == ["done"]

    drive(main())

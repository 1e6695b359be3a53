"""Group commit: in a thread, and in a task."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from driving import drive
from midcall.journal import commit
from midcall.journal.commit import MOST, CommitTask, CommitThread, Unreachable
from midcall.journal.contract import JournalError


class Work:
    """Does jobs when it may, and remembers them."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.batches: list[int] = []
        self.done: list[str] = []

    def run(self, asked: Sequence[Callable[[list[str]], str]]) -> list[str]:
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
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(batches.do(note(str(n)))) for n in range(MOST + 10)]
        await asyncio.sleep(0.05)
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
        batches = CommitThread("test", work.run)
        work.may.clear()
        doing = asyncio.create_task(
            batches.do(note("done"), undo=lambda result: batches.do(note(f"not {result}")))
        )
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
        batches = CommitThread("test", work.run)
        work.may.clear()
        doing = asyncio.create_task(
            batches.do(note("done"), undo=lambda result: batches.do(note(f"not {result}")))
        )
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


class Both:
    """Tells in which thread each batch is done."""

    def __init__(self) -> None:
        self.away = False
        self.batches: list[tuple[str, int]] = []

    def in_thread(self, asked: Sequence[str]) -> list[str]:
        assert threading.current_thread() is not threading.main_thread()
        self.batches.append(("thread", len(asked)))
        return list(asked)

    def at_once(self, asked: Sequence[str]) -> list[str]:
        assert threading.current_thread() is threading.main_thread()
        if self.away:
            raise Unreachable("others write")
        self.batches.append(("loop", len(asked)))
        if asked == ["wrong"]:
            raise JournalError("The disk is full")
        return list(asked)


def test_what_comes_alone_is_committed_at_once() -> None:
    async def main() -> None:
        both = Both()
        batches = CommitThread[str]("test", both.in_thread, at_once=both.at_once)
        told: list[str] = []
        for name in ("a", "b"):
            assert await batches.do(name, told=told.append) == name
            await asyncio.sleep(0)
        assert (told, both.batches) == (["a", "b"], [("loop", 1)] * 2)
        with pytest.raises(JournalError, match="full"):
            await batches.do("wrong")
        await asyncio.sleep(0)
        both.away = True
        assert await batches.do("c", told=told.append) == "c"
        assert (told, both.batches[-1]) == (["a", "b", "c"], ("thread", 1))
        await batches.stop()
        with pytest.raises(JournalError, match="closed"):
            await batches.do("d")

    drive(main())


def test_what_comes_together_is_committed_together() -> None:
    async def main() -> None:
        both = Both()
        batches = CommitThread[str]("test", both.in_thread, at_once=both.at_once)
        assert await asyncio.gather(*(batches.do(str(n)) for n in range(20))) == [str(n) for n in range(20)]
        assert both.batches[0] == ("loop", 1)
        assert {where for where, _ in both.batches[1:]} == {"thread"}
        await batches.stop()

    drive(main())


def test_a_slow_disk_is_waited_for_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SLOW", -1.0)
    monkeypatch.setattr(commit, "RESPITE", 3600.0)

    async def main() -> None:
        both = Both()
        batches = CommitThread[str]("test", both.in_thread, at_once=both.at_once)
        for name in ("a", "b", "c"):
            assert await batches.do(name) == name
            await asyncio.sleep(0)
        assert [where for where, _ in both.batches] == ["loop", "thread", "thread"]
        await batches.stop()

    drive(main())


def test_nothing_is_committed_before_what_was_asked_for_earlier() -> None:
    """Though some of it is committed in the event loop, and some in the thread."""

    async def main() -> None:
        order: list[int] = []
        threads: set[str] = set()

        def commit(asked: Sequence[int]) -> list[None]:
            threads.add(threading.current_thread().name)
            order.extend(asked)
            return [None] * len(asked)

        class Hesitant(CommitThread[int]):
            def _take(self) -> Any:
                time.sleep(0.001)  # it has a job already, and has not begun it
                return super()._take()

        batches = Hesitant("test", commit, at_once=commit)
        draw = random.Random(1)
        asked = 0
        for _ in range(500):
            some = [batches.do(asked + n) for n in range(draw.choice((1, 1, 1, 2, 5)))]
            asked += len(some)
            waiting = [asyncio.ensure_future(one) for one in some]
            for _ in range(draw.choice((0, 1, 2, 3))):
                await asyncio.sleep(0)
            if draw.random() < 0.3:
                await asyncio.gather(*waiting)
        await batches.stop()
        await asyncio.sleep(0)
        assert order == list(range(asked))
        assert len(threads) == 2

    drive(main())

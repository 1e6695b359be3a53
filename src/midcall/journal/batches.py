"""A thread that works for an event loop, in batches.

What is asked for while a batch is under way makes up the next one. So one commit, with its wait for the
disk, serves everything that came meanwhile, and the loop is woken once for all of it. Knows no database.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from midcall.errors import JournalError

Tool = TypeVar("Tool")
T = TypeVar("T")

LARGEST = 256
"""How much is done in one batch: what comes first should not wait for all that comes after."""


class Job(Generic[Tool]):
    """One thing to do, and what came of it."""

    __slots__ = ("answered", "begun", "done", "error", "result", "told", "unwanted", "work")

    def __init__(
        self, work: Callable[[Tool], Any], done: "asyncio.Future[None]", told: Callable[[Any], None] | None
    ) -> None:
        self.work = work
        self.done = done
        self.told = told
        """Called in the event loop with the result, also if nobody waits for it any more."""
        self.result: Any = None
        self.error: Exception | None = None
        self.unwanted = False
        """Nobody waits for it: it need not be begun."""
        self.begun = False
        self.answered = False


class Batches(Generic[Tool]):
    """A thread, and the way to it."""

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Job[Tool]]], None],
        idle: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._run = run
        """Does a batch: sets the result or the error of each job. Must not raise."""
        self._idle = idle
        """Called between batches, and after as many seconds as it gives."""
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job[Tool] | None] = SimpleQueue()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def do(
        self,
        work: Callable[[Tool], T],
        *,
        told: Callable[[T], None] | None = None,
        undo: Callable[[T], Callable[[Tool], Any] | None] | None = None,
    ) -> T:
        """Have it done. Raises what it raises.

        With `undo`, a job that is cancelled when it was begun already is waited for, and undone.
        """
        job = self._ask(work, told)
        try:
            await job.done
        except asyncio.CancelledError:
            job.unwanted = True
            if undo is not None:
                await self._undo(job, undo)
            raise
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def _ask(self, work: Callable[[Tool], Any], told: Callable[[Any], None] | None) -> Job[Tool]:
        job = Job(work, self._loop.create_future(), told)
        self._jobs.put(job)
        if self._ended.done():
            self._refuse()
        return job

    async def _undo(self, job: Job[Tool], undo: Callable[[T], Callable[[Tool], Any] | None]) -> None:
        await self._patiently(job)
        if job.begun and job.error is None and (work := undo(job.result)) is not None:
            await self._patiently(self._ask(work, None))

    async def _patiently(self, job: Job[Tool]) -> None:
        """Wait for a job, however often this is cancelled: who asks is about to be cancelled anyway."""
        while not job.answered:
            if job.done.done():
                job.done = self._loop.create_future()
            with contextlib.suppress(asyncio.CancelledError):
                await job.done

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """For the thread: have something done in the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(function, *args)

    def nudge(self) -> None:
        """Have `idle` called now."""
        nothing: Job[Tool] = Job(lambda _: None, self._loop.create_future(), None)
        nothing.unwanted = True
        self._jobs.put(nothing)

    async def stop(self) -> None:
        """Do what was asked for, and end."""
        self._jobs.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _work(self) -> None:
        going = True
        while going:
            try:
                job = self._jobs.get(timeout=self._idle())
            except Empty:
                continue
            batch: list[Job[Tool]] = []
            with contextlib.suppress(Empty):
                while job is not None:
                    batch.append(job)
                    if len(batch) == LARGEST:
                        break
                    job = self._jobs.get_nowait()
                else:
                    going = False
            if wanted := [job for job in batch if not job.unwanted]:
                for job in wanted:
                    job.begun = True
                self._run(wanted)
            if batch:
                self.call_soon(_answer, batch)
        self.call_soon(self._end)

    def _end(self) -> None:
        """In the event loop: the thread does no more."""
        if not self._ended.done():
            self._ended.set_result(None)
        self._refuse()

    def _refuse(self) -> None:
        """What was asked for too late is not done."""
        with contextlib.suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job.error = JournalError("The journal is closed")
                    _answer([job])


def _answer(batch: Sequence[Job[Any]]) -> None:
    for job in batch:
        job.answered = True
        if job.told is not None and job.begun and job.error is None:
            job.told(job.result)
        if not job.done.done():
            job.done.set_result(None)

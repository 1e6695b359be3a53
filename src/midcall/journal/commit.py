"""Group commit: what is asked for while a batch is under way makes up the next one.

So one transaction, with its wait for the disk, serves everything that came meanwhile: the busier it gets,
the more. SQLite commits in a thread (`CommitThread`), PostgreSQL in a task (`CommitTask`). Knows no database.
"""

import asyncio
import contextlib
import copy
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from midcall.errors import JournalError, MidcallError

Ask = TypeVar("Ask")

log = logging.getLogger("midcall.journal")

MOST = 256
"""How much is done in one batch: what comes first should not wait for all that comes after."""

MOST_BYTES = 4 * 1024 * 1024


class StoreAway(JournalError):
    """The store did not answer in time. `maybe` if what was asked for may have been done."""

    def __init__(self, message: str, *, maybe: bool = False) -> None:
        super().__init__(message)
        self.maybe = maybe


class Job(Generic[Ask]):
    """One thing that is asked for, and what came of it."""

    __slots__ = ("_undecided", "answered", "ask", "done", "error", "key", "result", "size", "told")

    def __init__(
        self,
        ask: Ask,
        key: str,
        size: int,
        told: Callable[[Any], None] | None,
        done: "asyncio.Future[None]",
    ) -> None:
        self.ask = ask
        self.key = key
        self.size = size
        self.told = told
        self.done = done
        self.result: Any = None
        self.error: MidcallError | None = None
        self.answered = False
        self._undecided = [True]

    def decide(self) -> bool:
        """True for the first who comes, in whichever thread: it is begun by that one, or never."""
        try:
            return self._undecided.pop()
        except IndexError:
            return False


class CommitQueue(Generic[Ask]):
    """What waits to be done. Who commits gives an answer or an error for each of a batch, or raises.

    If it raises, each of the batch is tried alone, as one of them may keep the others from it; unless it is
    `StoreAway`. An error among the answers says that this one has changed nothing.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job[Ask] | None] = SimpleQueue()
        self._later: deque[Job[Ask]] = deque()
        """What comes before `_jobs`. Only who commits looks here."""
        self._closed = False
        self._asked = 0

    @property
    def busy(self) -> bool:
        """Whether somebody waits for something."""
        return self._asked > 0

    async def do(
        self,
        ask: Ask,
        *,
        key: str = "",
        size: int = 0,
        told: Callable[[Any], None] | None = None,
        undo: Callable[[Any], Awaitable[object] | None] | None = None,
    ) -> Any:
        """Have it done; of those with the same key, one in a batch, in their order.

        `told` is called with the result, in the event loop, also if nobody waits for it any more. With
        `undo`, what is cancelled when it was begun already is waited for, and undone.
        """
        if self._closed:
            raise _closed()
        job = Job(ask, key, size, told, self._loop.create_future())
        self._put(job)
        self._asked += 1
        try:
            await job.done
        except asyncio.CancelledError:
            if not job.decide() and undo is not None:
                await _patiently(self._undo(job, undo))
            raise
        finally:
            self._asked -= 1
        if job.error is not None:
            raise job.error
        return job.result

    def _put(self, job: Job[Ask] | None) -> None:
        self._jobs.put(job)

    async def _undo(self, job: Job[Ask], undo: Callable[[Any], Awaitable[object] | None]) -> None:
        if not job.answered:
            job.done = self._loop.create_future()
            await job.done
        if job.error is None and (work := undo(job.result)) is not None:
            with contextlib.suppress(JournalError):
                await work

    def _take(self) -> list[Job[Ask]]:
        """The next batch, in the order of the keys, so that two batches do not wait for each other's rows."""
        batch: list[Job[Ask]] = []
        keys: set[str] = set()
        later: list[Job[Ask]] = []
        size = 0
        while len(batch) < MOST and size < MOST_BYTES and (job := self._next()) is not None:
            if job.key in keys:
                later.append(job)
            elif job.decide():
                batch.append(job)
                size += job.size
                if job.key:
                    keys.add(job.key)
        self._later.extendleft(reversed(later))
        if keys:
            batch.sort(key=lambda job: job.key)
        return batch

    def _next(self) -> Job[Ask] | None:
        if self._later:
            return self._later.popleft()
        try:
            return self._jobs.get_nowait()
        except Empty:
            return None

    def _fails(self, batch: Sequence[Job[Ask]], error: Exception) -> bool:
        """Note what went wrong with a batch. True if each of it is to be tried alone."""
        if not isinstance(error, JournalError):
            log.error("what was asked of the journal failed inside midcall", exc_info=error)
            error = JournalError("Internal error")
        elif len(batch) > 1 and not isinstance(error, StoreAway):
            return True
        for job in batch:
            job.error = copy.copy(error)
        return False


class CommitThread(CommitQueue[Ask]):
    """A queue whose batches are done in a thread of its own, which works while the event loop does."""

    def __init__(
        self,
        name: str,
        commit: Callable[[Sequence[Ask]], Sequence[Any]],
        idle: Callable[[], float | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._commit = commit
        self._idle = idle
        """Called in the thread between batches, and after as many seconds as it gives."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Have `idle` called now."""
        self._put(None)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """For the thread: have something done in the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(function, *args)

    async def stop(self) -> None:
        """Do what was asked for, and end."""
        self._closed = True
        self._put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _work(self) -> None:
        while not (self._closed and self._jobs.empty() and not self._later):
            if not self._later:
                try:
                    job = self._jobs.get(timeout=self._idle())
                except Empty:
                    continue
                if job is None:
                    continue
                self._later.append(job)
            if batch := self._take():
                self._run(batch)
                self.call_soon(_answer, batch)
        self.call_soon(self._end)

    def _run(self, batch: Sequence[Job[Ask]]) -> None:
        try:
            _note(batch, self._commit([job.ask for job in batch]))
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must be told
            if self._fails(batch, error):
                for job in batch:
                    self._run([job])

    def _end(self) -> None:
        """In the event loop: the thread does no more."""
        if not self._ended.done():
            self._ended.set_result(None)


class CommitTask(CommitQueue[Ask]):
    """A queue whose batches are done in a task: whoever owns it has `run` run until it is cancelled."""

    def __init__(self, commit: Callable[[Sequence[Ask]], Awaitable[Sequence[Any]]]) -> None:
        super().__init__()
        self._commit = commit
        self._filled = asyncio.Event()

    def _put(self, job: Job[Ask] | None) -> None:
        super()._put(job)
        self._filled.set()

    async def run(self) -> None:
        """Do what is asked for, until this is cancelled."""
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while batch := self._take():
                    await self._run(batch)
                    _answer(batch)
        finally:
            self._closed = True
            while batch := self._take():
                _refuse(batch)

    async def _run(self, batch: Sequence[Job[Ask]]) -> None:
        try:
            _note(batch, await self._commit([job.ask for job in batch]))
        except asyncio.CancelledError:
            _refuse(batch)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must be told
            if self._fails(batch, error):
                await asyncio.gather(*(self._run([job]) for job in batch))


def _note(batch: Sequence[Job[Any]], answers: Sequence[Any]) -> None:
    for job, answer in zip(batch, answers, strict=True):
        if isinstance(answer, MidcallError):
            job.error = answer
        else:
            job.result = answer


def _answer(batch: Sequence[Job[Any]]) -> None:
    for job in batch:
        job.answered = True
        if job.told is not None and job.error is None:
            job.told(job.result)
        if not job.done.done():
            job.done.set_result(None)


def _refuse(batch: Sequence[Job[Any]]) -> None:
    for job in batch:
        job.error = _closed()
    _answer(batch)


def _closed() -> JournalError:
    return JournalError("The journal is closed")


async def _patiently(work: Awaitable[None]) -> None:
    """Wait for it, however often this is cancelled: who asks is about to be cancelled anyway."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)

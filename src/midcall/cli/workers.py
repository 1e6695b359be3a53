"""`midcall serve --workers N`: one process that listens, and N that serve.

The parent binds the sockets, starts the workers as processes of their own (each runs `midcall serve` with
the sockets it inherits), and starts another one when one ends. It never loads the hub, so that an author's
code runs in workers only, and a new one has the new code.

What parent and worker tell each other goes over two pipes: the worker writes a byte to the one when it is
ready to serve, and ends when the other one is closed, however its parent has ended.

It is not built on uvicorn's supervisor (`uvicorn.supervisors.Multiprocess`, 0.54), which cannot do what is
asked of it here: close the sockets first when it stops, so that nobody waits for workers that take nobody in;
hear a second Ctrl-C while it waits for them, and a signal while it replaces them; stop waiting after a time;
start one worker before the others, so that what is wrong with all is said once, and end with its exit code;
wait longer each time before a worker that keeps dying is started again; leave a worker alone that is busy for
more than five seconds; and have workers end with a parent that was killed.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from midcall.cli.command import Exit, UsageError
from midcall.cli.listening import listen

log = logging.getLogger("midcall.workers")

STARTING = 60.0
"""Seconds that a worker has to become ready."""

CLOSING = 10.0
"""Seconds that a worker has, beside its grace, to write its last responses and end."""

PAUSES = (0.1, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a worker that has ended is started again; the last one is repeated."""

HEALTHY = 30.0
"""A worker that has lived for so many seconds is started again without a pause."""


# --- in a worker -----------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerPlace:
    """What a worker has of its parent: its number, and open files."""

    number: int
    sockets: tuple[int, ...]
    ready: int
    alive: int

    @classmethod
    def taken(cls, option: str) -> "WorkerPlace":
        """The one that an option of the command line tells of; its files go to no other process."""
        number, sockets, ready, alive = option.split(":")
        place = cls(int(number), tuple(int(fd) for fd in sockets.split(",")), int(ready), int(alive))
        for fd in (*place.sockets, place.ready, place.alive):
            os.set_inheritable(fd, False)
        return place

    @property
    def option(self) -> str:
        return f"{self.number}:{','.join(map(str, self.sockets))}:{self.ready}:{self.alive}"

    def __str__(self) -> str:
        return f"worker {self.number}"

    def listeners(self) -> list[socket.socket]:
        """The sockets to serve on."""
        return [socket.socket(fileno=fd) for fd in self.sockets]

    def is_ready(self) -> None:
        """Tell the parent that calls are served; from now on, end when the parent does."""
        with contextlib.suppress(OSError):  # it has ended meanwhile: the other pipe says so
            os.write(self.ready, b"+")
        os.close(self.ready)
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(self.alive)
            log.warning("The parent is gone: this worker stops")
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(self.alive, gone)


# --- in the parent ---------------------------------------------------------------------------


def refuse_workers(*, stdio: bool, journal: str | None) -> None:
    """Say why there cannot be several workers. Raises `UsageError`."""
    from midcall.journal.choose import VARIABLE

    if sys.platform == "win32":
        raise UsageError("--workers: Windows cannot share a socket this way; start several servers instead")
    if stdio:
        raise UsageError(
            "--workers is for HTTP: on standard input and output there is one caller, and one worker"
        )
    if (journal or os.environ.get(VARIABLE)) == "memory":
        raise UsageError(
            "--workers needs a journal that all workers share: a file or postgresql://..., not memory"
        )


def run_workers(
    count: int,
    host: str,
    port: int,
    *,
    grace: float,
    argv: Sequence[str],
    folder: str,
    listening: Callable[[int], None] = lambda port: None,
    ended: Callable[[int], None] = lambda pid: None,
) -> int:
    """Serve with so many workers until a signal; gives the exit code.

    `argv` is the command line that each of them gets, as `serve ...`; `folder` is where it is run.
    `listening` is called with the port when that is open, `ended` with the process id of one that has ended.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(one) for one in listen(host, port)]
        for one in sockets:
            log.info("Listening on %s, with %d workers", _address(one), count)
        listening(sockets[0].getsockname()[1])
        workers = Workers(sockets, grace, argv, folder, ended)
        return asyncio.run(workers.run(count))


class _Worker:
    """One process that serves, or is about to."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def stop(self, limit: float) -> None:
        """Tell it to stop, and see to it."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # one that is frozen would not hear it
        try:
            async with asyncio.timeout(limit):
                await self.process.wait()
        except TimeoutError:
            log.warning("Worker %d (process %d) does not stop, and is killed", self.number, self.pid)
            self.signal(signal.SIGKILL)
            await self.process.wait()


class _WorkerSlot:
    """A place that has a worker, and gets another one when it ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: _Worker | None = None
        self.changing = asyncio.Lock()
        """Held while a worker is started in the place of another."""


class Workers:
    """All workers of a parent."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        grace: float,
        argv: Sequence[str],
        folder: str,
        ended: Callable[[int], None],
    ) -> None:
        self._sockets = sockets
        self.limit = grace + CLOSING
        self._argv = argv
        self._folder = folder
        self._ended = ended
        self.places: list[_WorkerSlot] = []
        self.running: set[_Worker] = set()
        self._told = 0
        """How often it was told to stop."""
        self._stopping = asyncio.Event()
        self.renewing = asyncio.Event()
        self._alive: tuple[int, int] = (-1, -1)

    async def run(self, count: int) -> int:
        self._alive = os.pipe()
        try:
            with self._signals():
                return await self._serve(count)
        finally:
            for worker in self.running:
                worker.signal(signal.SIGKILL)
            for fd in self._alive:
                os.close(fd)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        heard: dict[int, Callable[[], Any]] = {
            signal.SIGTERM: lambda: self._stop(signal.SIGTERM),
            signal.SIGINT: lambda: self._stop(signal.SIGINT),
            signal.SIGHUP: self.renewing.set,
        }
        for number, handler in heard.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    def _stop(self, number: int) -> None:
        self._told += 1
        self._stopping.set()
        if self._told > 1 and number == signal.SIGINT:  # pressed again: somebody will not wait
            for worker in self.running:
                worker.signal(signal.SIGKILL)

    async def _serve(self, count: int) -> int:
        code = 0
        self.places = [_WorkerSlot(number) for number in range(1, count + 1)]
        stopping = asyncio.ensure_future(self._stopping.wait())
        working = asyncio.ensure_future(self.work())
        try:
            await asyncio.wait((stopping, working), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                code = working.result()
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.wait((working, stopping))
        for one in self._sockets:
            one.close()  # who comes now is turned away, and does not wait for workers that take nobody in
        count = len(self.running)
        log.info("Stopping %d %s", count, "worker" if count == 1 else "workers")
        await asyncio.gather(*(worker.stop(self.limit) for worker in list(self.running)))
        return code

    async def work(self) -> int:
        """Start all workers, and keep them; gives an exit code if they cannot be started."""
        first, *others = self.places  # what is wrong with all of them is said once
        code = await self._begin(first)
        if code:
            log.error("Nothing is served: no worker could be started; see the error above")
            return code
        await asyncio.gather(*(self._begin(place) for place in others))
        log.info("%d workers are ready", sum(place.worker is not None for place in self.places))
        async with asyncio.TaskGroup() as group:
            for place in self.places:
                group.create_task(self._keep(place))
            group.create_task(self._renew_when_told())
        return 0

    async def _begin(self, place: _WorkerSlot) -> int:
        """Start the first worker of a place; gives its exit code if it ends before it is ready."""
        async with place.changing:
            worker, code = await self.start_worker(place.number)
            place.worker = worker
            return code

    async def _keep(self, place: _WorkerSlot) -> None:
        """Start a worker again whenever it has ended."""
        pauses = 0
        while True:
            worker = place.worker
            if worker is not None:
                code = await worker.process.wait()
                self.running.discard(worker)
                self._ended(worker.pid)
            async with place.changing:
                if place.worker is not worker:
                    continue  # it ended because another one has its place
                if worker is not None:
                    if time.monotonic() - worker.began > HEALTHY:
                        pauses = 0
                    log.warning(
                        "Worker %d (process %d) has ended %s, and is started again",
                        place.number,
                        worker.pid,
                        _ending(code),
                    )
                await asyncio.sleep(PAUSES[min(pauses, len(PAUSES) - 1)])
                pauses += 1
                place.worker, _ = await self.start_worker(place.number)

    async def _renew_when_told(self) -> None:
        """Put a new worker in the place of each, one after the other, whenever there is a SIGHUP."""
        while True:
            await self.renewing.wait()
            self.renewing.clear()
            log.info("Starting %d new workers, one at a time", len(self.places))
            for place in self.places:
                async with place.changing:
                    old = place.worker
                    new, _ = await self.start_worker(place.number)
                    if new is None:
                        log.error("The new worker %d cannot be started: the old ones stay", place.number)
                        break
                    place.worker = new
                if old is not None:
                    await old.stop(self.limit)
                    self.running.discard(old)
            else:
                log.info("%d new workers are ready", len(self.places))

    async def start_worker(self, number: int) -> tuple[_Worker | None, int]:
        """Start a worker and wait until it is ready; or nothing, and the exit code that it ended with."""
        ready, says_ready = os.pipe()
        command, *arguments = self._argv
        place = WorkerPlace(number, tuple(one.fileno() for one in self._sockets), says_ready, self._alive[0])
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "midcall", command, "--as-worker", place.option, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                cwd=self._folder,
                pass_fds=(*place.sockets, place.ready, place.alive),
                process_group=0,  # Ctrl-C is for the parent, which tells them
            )
        except OSError as error:
            log.error("Worker %d cannot be started: %s", number, error)  # noqa: TRY400
            os.close(ready)
            return None, Exit.FAILED
        finally:
            os.close(says_ready)
        worker = _Worker(number, process)
        self.running.add(worker)
        try:
            async with asyncio.timeout(STARTING):
                if await _byte(ready):
                    return worker, 0
                code = await process.wait()
        except TimeoutError:
            log.error("Worker %d is not ready after %.0f seconds", number, STARTING)  # noqa: TRY400
            await worker.stop(0)
            code = Exit.FAILED
        self.running.discard(worker)
        log.error("Worker %d ended %s before it was ready", number, _ending(code))
        return None, code if code > 0 else Exit.FAILED


async def _byte(fd: int) -> bytes:
    """The next byte of a pipe, or nothing at its end; closes it."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(fd)
        if not came.done():
            came.set_result(os.read(fd, 1))

    loop.add_reader(fd, read)
    try:
        return await came
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _ending(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _address(one: socket.socket) -> str:
    host, port, *_ = one.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

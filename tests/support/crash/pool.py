"""Pool: several stages, on which runs are played at the same time."""

import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from crash.calls import call_schedule
from crash.chats import chat_schedule
from crash.stage import Backend, Report, Schedule, Stage, Wrong

STAGES = 3
"""One more than two cores: a client waits most of the time."""


_schemas = itertools.count()


class Pool:
    """Plays many runs. A database is shared by all, and each stage has a schema of its own in it."""

    def __init__(self, backend: Backend, folder: Path, url: str = "", stages: int = STAGES) -> None:
        self._stages: SimpleQueue[Stage] = SimpleQueue()
        self._all: list[Stage] = []
        for number in range(stages):
            own = folder / f"stage-{number}"
            own.mkdir()
            place = f"{url} crash_{os.getpid()}_{next(_schemas)}" if url else ""
            self._all.append(Stage(backend, own, place))
            self._stages.put(self._all[-1])
        self._threads = ThreadPoolExecutor(stages)

    def play(self, schedules: Iterable[Schedule]) -> Iterator[tuple[Schedule, Report | Wrong]]:
        """What each of them came to, in the order given; no more are begun than are asked for, and a few."""
        playing: deque[tuple[Schedule, Future[Report | Wrong]]] = deque()
        try:
            for schedule in schedules:
                playing.append((schedule, self._threads.submit(self._play, schedule)))
                if len(playing) > len(self._all):
                    begun, report = playing.popleft()
                    yield begun, report.result()
            while playing:
                begun, report = playing.popleft()
                yield begun, report.result()
        finally:
            for _, report in playing:
                report.cancel()

    def every_point(self, schedule: Schedule, step: int = 1) -> Iterator[Report]:
        """The reports of runs in which the first worker dies at its first tick, at its second, to the last; or
        at every so many of them.

        Raises what went wrong.
        """
        for _, report in self.play(replace(schedule, deaths=(n,)) for n in range(1, 1000, step)):
            if isinstance(report, Wrong):
                raise report
            if not report.crashes:
                return
            yield report

    def _play(self, schedule: Schedule) -> Report | Wrong:
        stage = self._stages.get()
        try:
            return stage.play(schedule)
        except Wrong as wrong:
            return wrong
        finally:
            self._stages.put(stage)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        for stage in self._all:
            stage.close()


def schedule_of(seed: int) -> Schedule:
    """Any schedule, always the same for the same seed: of a call, or of a chat."""
    return chat_schedule(seed) if seed % 3 == 0 else call_schedule(seed)

"""How fast a server is, and what each call costs it."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.stdio import cpu_of


@dataclass(frozen=True)
class Pace:
    """What was measured."""

    rate: float
    """Calls a second."""
    cpu: float
    """Microseconds of the server's CPU for each call: less at the mercy of what else the machine does."""


class Paces:
    """What was measured in many short rounds, in which all servers take turns."""

    def __init__(self, rounds: Sequence[Pace]) -> None:
        self.rounds = rounds

    @property
    def rate(self) -> float:
        return statistics.median(pace.rate for pace in self.rounds)

    @property
    def cpu(self) -> float:
        return statistics.median(pace.cpu for pace in self.rounds)

    def rate_beside(self, other: "Paces") -> float:
        """How many times as fast as another one: in the middle of all rounds, each compared by itself.

        The machine may be twice as fast in one second as in the next. Within a round that falls on both.
        """
        return statistics.median(a.rate / b.rate for a, b in zip(self.rounds, other.rounds, strict=True))

    def cpu_beside(self, other: "Paces") -> float:
        """How many times as much the other one uses of the CPU, in the same way."""
        return statistics.median(b.cpu / a.cpu for a, b in zip(self.rounds, other.rounds, strict=True))


class Meter:
    """A clock that runs while a load does."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid = pid
        self._cpu = cpu_of(pid)
        self._start = time.perf_counter()
        self._end = self._start + seconds

    def going(self) -> bool:
        """Whether more calls are to be sent."""
        return time.perf_counter() < self._end

    def pace(self, done: float, seconds: float | None = None) -> Pace:
        """What so many calls have taken; in so many seconds if another clock than this has measured that."""
        elapsed = seconds or time.perf_counter() - self._start
        return Pace(done / elapsed, (cpu_of(self._pid) - self._cpu) / done * 1e6)

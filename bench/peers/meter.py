"""How fast a server is, and what each call costs it."""

import time
from dataclasses import dataclass

from bench.stdio import cpu_of


@dataclass(frozen=True)
class Pace:
    """What was measured."""

    rate: float
    """Calls a second."""
    cpu: float
    """Microseconds of the server's CPU for each call: less at the mercy of what else the machine does."""


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

    def pace(self, done: int) -> Pace:
        """What so many calls have taken."""
        elapsed = time.perf_counter() - self._start
        return Pace(done / elapsed, (cpu_of(self._pid) - self._cpu) / done * 1e6)

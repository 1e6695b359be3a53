"""Ticks: the points at which a worker may die. It dies at one of them, chosen before it starts."""

import os
import signal
import threading


class Clock:
    """Counts the ticks of this process."""

    def __init__(self) -> None:
        self.count = 0
        self.deadly: int | None = None
        self._lock = threading.Lock()

    def start(self, deadly: int | None) -> None:
        """Count from here on, and die at this tick."""
        self.count, self.deadly = 0, deadly

    def calm(self) -> int:
        """Die no more. Gives the ticks so far."""
        self.deadly = None
        return self.count

    def tick(self) -> None:
        with self._lock:  # effects tick in threads
            self.count += 1
            if self.count == self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)


clock = Clock()
tick = clock.tick

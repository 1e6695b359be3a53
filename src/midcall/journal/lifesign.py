"""Signs of life: which of the processes that share a journal file are still there, and not frozen.

Each worker holds the lock of a file of its own, for as long as its process lives: the system lets go of it
however the process ends. Into the same file it writes the time now and then, so that a process that stands
still counts as gone too, after a while. A worker that counts as gone may be alive all the same: the fence of
the journal keeps it from acting.

The time is that of the machine's steady clock, which all processes share and nobody sets; a machine that
was asleep finds its workers as they were. (A file of an earlier boot is not locked, so its time is not read.)
"""

import contextlib
import os
import struct
import time
from pathlib import Path

from midcall.journal import locks

_TIME = struct.Struct("<d")


class LifeSign:
    """The sign of this worker, and a look at those of the others. Raises `OSError`."""

    def __init__(self, directory: Path, worker: str, lease: float) -> None:
        self._directory = directory
        self._worker = worker
        self._lease = lease
        self._fd: int | None = None

    def start(self) -> None:
        """Be there. The signs of workers that are gone are cleared away."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / self._worker
        while self._fd is None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            # Before it is locked, another process may take it for a dead one's, and clear it away.
            if locks.take(fd) and _is_at(path, fd):
                self._fd = fd
            else:
                os.close(fd)
        self.beat()
        for other in self._directory.iterdir():
            if not other.name.startswith("."):
                self.alive(other.name)

    def beat(self) -> None:
        """Say that this process does not stand still."""
        if self._fd is not None:
            os.lseek(self._fd, 0, os.SEEK_SET)
            os.write(self._fd, _TIME.pack(time.monotonic()))

    def stop(self) -> None:
        """Be gone."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            (self._directory / self._worker).unlink()
        os.close(self._fd)
        self._fd = None

    def alive(self, worker: str) -> bool:
        """Whether a worker is there, and not frozen."""
        if worker == self._worker:
            return self._fd is not None
        path = self._directory / worker
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if locks.take(fd, shared=True):
                with contextlib.suppress(OSError):
                    path.unlink()
                return False
            beat = os.read(fd, _TIME.size)
        finally:
            os.close(fd)
        return len(beat) < _TIME.size or time.monotonic() - _TIME.unpack(beat)[0] <= self._lease


def _is_at(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False

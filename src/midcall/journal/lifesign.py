"""Signs of life: which of the processes that share a journal file are still there, and not frozen.

Each worker holds the lock of a file of its own, for as long as its process lives: the system lets go of it
however the process ends. Into the same file it writes the time now and then, so that a process that stands
still counts as gone too, after a while. A worker that counts as gone may be alive all the same: the fence of
the journal keeps it from acting.

The time is that of the machine's steady clock, which all processes share and nobody sets; a machine that
was asleep finds its workers as they were. (A file of an earlier boot is not locked, so its time is not read.)
"""

import contextlib
import errno
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from midcall.journal import locks
from midcall.journal.contract import is_worker_name

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_TIME = struct.Struct("<d")


class LifeSign:
    """The sign of this worker, and a look at those of the others. Raises `OSError`."""

    def __init__(self, directory: Path, worker: str, lease: float) -> None:
        self._directory = directory
        self._worker = worker
        self._lease = lease
        self._fd: int | None = None

    def start(self) -> None:
        """Be there."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / self._worker
        while self._fd is None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
            # Before it is locked, another process may take it for a dead one's, and clear it away.
            if locks.take(fd) and _is_at(path, fd):
                self._fd = fd
            else:
                os.close(fd)
        self.beat()

    def clear_away(self) -> None:
        """Remove the signs of workers whose processes have ended, as far as that can be."""
        for worker in self.known() - {self._worker}:
            with contextlib.suppress(OSError), self._opened(worker) as fd:
                if fd is not None and locks.take(fd, shared=True):
                    (self._directory / worker).unlink(missing_ok=True)

    def known(self) -> set[str]:
        """The workers that have a sign, alive or not."""
        return {path.name for path in self._directory.iterdir() if is_worker_name(path.name)}

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
        """Whether a worker is there, and not frozen. To ask changes nothing."""
        if worker == self._worker:
            return self._fd is not None
        with self._opened(worker) as fd:
            if fd is None or locks.take(fd, shared=True):
                return False
            beat = os.read(fd, _TIME.size)
        return len(beat) < _TIME.size or time.monotonic() - _TIME.unpack(beat)[0] <= self._lease

    @contextlib.contextmanager
    def _opened(self, worker: str) -> Iterator[int | None]:
        """The sign of another worker, if there is one: whatever it is called, a file of this folder."""
        if not is_worker_name(worker):
            yield None
            return
        try:
            fd = os.open(self._directory / worker, os.O_RDWR | _NO_LINK)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False

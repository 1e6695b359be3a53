"""Files that processes of one user share: locks, turns to write, and whether others may read them.

The system lets go of a lock when a process ends, however it ends.

SQLite lets in whoever asks in the right moment. A process that writes all the time hardly ever leaves such
a moment to others, who look again after a while, and the longer they have waited the more seldom. So who
wants to write takes the turn first (`WriteTurn`), and passes it on as soon as SQLite has let it in: then
the one who has just written finds the turn taken, and lets the other go first. This is a courtesy: who does
not get the turn in time tries its luck without it.
"""

import contextlib
import logging
import os
import stat
import sys
import time
from pathlib import Path

log = logging.getLogger("midcall.files")

PAUSE = 0.0005
"""Seconds between two tries."""

COURTESY = 0.1
"""Seconds to wait for the turn: one who stands still with it must not hold up the others."""

if sys.platform == "win32":
    import msvcrt

    _AT = 1 << 20  # beyond what is written there, as nobody can read what is locked

    def lock(fd: int, *, shared: bool = False) -> bool:
        """Lock an open file, alone or with others, without waiting; false if somebody else has."""
        os.lseek(fd, _AT, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # never with others: two that only look see each other
        except OSError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Let go of it."""
        os.lseek(fd, _AT, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def lock(fd: int, *, shared: bool = False) -> bool:
        """Lock an open file, alone or with others, without waiting; false if somebody else has."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Let go of it."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def private_folder(path: Path) -> None:
    """Make a folder for this user alone, if there is none. Raises `OSError` if it is anybody else's too."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    own = os.name != "posix" or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
    if not stat.S_ISDIR(found.st_mode) or not own:
        raise OSError(f"{path} is not a folder of this user alone: remove it")


PRIVATE: set[str] = set()
"""Where this process has calls, keys and tokens: no command that it runs for others may reach these files."""


def keep_private(path: Path) -> None:
    """Have a file among `PRIVATE`. Logs if others may read it, or may turn it elsewhere, as it is a link."""
    PRIVATE.add(os.path.realpath(path))
    if path.is_symlink():
        log.warning("%s is a link to %s: give that path itself", path, path.resolve())
    if os.name == "posix" and path.stat().st_mode & 0o077:
        log.warning("Others on this machine may read %s: chmod 600 it", path)


class WriteTurn:
    """The turn of all who share a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def open(self) -> None:
        """Be ready. Raises `OSError`."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def take(self) -> bool:
        """Have the turn, if it can be had; then it is to be passed on."""
        patience = 0.0
        while self._fd is not None and not lock(self._fd):
            patience = patience or time.monotonic() + COURTESY
            if time.monotonic() > patience:
                return False
            time.sleep(PAUSE)
        return self._fd is not None

    def pass_on(self) -> None:
        """Let others have it."""
        if self._fd is not None:
            unlock(self._fd)

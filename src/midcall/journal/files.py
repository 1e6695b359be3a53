"""Files that processes of one user share: locks, and whether others may read them.

The system lets go of a lock when a process ends, however it ends.
"""

import logging
import os
import sys
from pathlib import Path

log = logging.getLogger("midcall.files")

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


def warn_if_exposed(path: Path) -> None:
    """Log that others may read a file, or that it is a link, which whoever can change it turns elsewhere."""
    if path.is_symlink():
        log.warning("%s is a link to %s: give that path itself", path, path.resolve())
    if os.name == "posix" and path.stat().st_mode & 0o077:
        log.warning("Others on this machine may read %s: chmod 600 it", path)

"""Locks of files, which the system lets go of when a process ends, however it ends."""

import os
import sys

if sys.platform == "win32":
    import msvcrt

    _AT = 1 << 20  # beyond what is written there, as nobody can read what is locked

    def take(fd: int, *, shared: bool = False) -> bool:
        """Lock an open file, alone or with others, without waiting; false if somebody else has."""
        os.lseek(fd, _AT, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # never with others: two that only look see each other
        except OSError:
            return False
        return True

    def give(fd: int) -> None:
        """Let go of it."""
        os.lseek(fd, _AT, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def take(fd: int, *, shared: bool = False) -> bool:
        """Lock an open file, alone or with others, without waiting; false if somebody else has."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give(fd: int) -> None:
        """Let go of it."""
        fcntl.flock(fd, fcntl.LOCK_UN)

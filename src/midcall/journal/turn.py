"""Turns: processes that write to one file do so one after the other, and none waits for ever.

SQLite lets in whoever asks in the right moment. A process that writes all the time hardly ever leaves such a
moment to others, who look again after a while, and the longer they have waited the more seldom. So who
wants to write takes the turn first, and passes it on as soon as SQLite has let it in: then the one who has
just written finds the turn taken, and lets the other go first.

This is a courtesy: who does not get the turn in time tries its luck without it.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from midcall.journal import locks

PAUSE = 0.0005
"""Seconds between two tries."""

COURTESY = 0.1
"""Seconds to wait for the turn: one who stands still with it must not hold up the others."""


class Turn:
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

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Have the turn, if it can be had."""
        fd, patience = self._fd, 0.0
        while fd is not None and not locks.take(fd):
            patience = patience or time.monotonic() + COURTESY
            if time.monotonic() > patience:
                fd = None
            else:
                time.sleep(PAUSE)
        try:
            yield
        finally:
            if fd is not None:
                locks.give(fd)

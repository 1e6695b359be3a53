"""An SQLite file that several workers share, for the contract of journals."""

import os
import struct
import time
from pathlib import Path

from midcall.journal.contract import Journal
from midcall.journal.seal import KeyRing
from midcall.journal.sqlite import SqliteJournal


class SqliteStore:
    """A file that several workers share, here in one process."""

    def __init__(self, path: Path, seal: KeyRing | None = None) -> None:
        self.path = path
        self.seal = seal
        self.opened: list[SqliteJournal] = []

    async def worker(self) -> SqliteJournal:
        journal = SqliteJournal(self.path, seal=self.seal)
        await journal.open()
        self.opened.append(journal)
        return journal

    async def die(self, worker: Journal) -> None:
        """The system lets go of the locks of a dead process."""
        assert isinstance(worker, SqliteJournal)
        sign = worker._sign
        if sign._fd is not None:  # else it has never been there
            os.close(sign._fd)
            sign._fd = None

    async def freeze(self, worker: Journal) -> None:
        """It still holds its lock, but has not stirred for long."""
        assert isinstance(worker, SqliteJournal)
        worker._next_beat = float("inf")
        assert worker._sign._fd is not None
        os.pwrite(worker._sign._fd, struct.pack("<d", time.monotonic() - 1000), 0)

    async def close(self) -> None:
        for journal in self.opened:
            await journal.close()

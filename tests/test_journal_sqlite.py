"""The journal in an SQLite file: the contract, and what only a file can do or suffer."""

import os
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conversations_contract import ConversationsContract
from journal_contract import JournalContract, Store
from journal_model import JournalModel
from midcall.journal.contract import Journal
from midcall.journal.seal import KeyRing
from midcall.journal.sqlite import SqliteJournal

RING = KeyRing([b"k" * 32])


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


class TestSqliteJournal(JournalContract, ConversationsContract):
    seal: KeyRing | None = None

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.stores = 0

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        self.stores += 1
        store = SqliteStore(self.directory / f"journal-{self.stores}.db", self.seal)
        try:
            yield store
        finally:
            await store.close()

    async def age_run(self, journal: Any, run: str, seconds: float) -> None:
        await journal.database.write(
            lambda db: db.execute(
                "UPDATE runs SET seen = seen - ?, begun = begun - ? WHERE id = ?", (seconds, seconds, run)
            )
        )


class TestSealedSqliteJournal(TestSqliteJournal):
    seal = RING


class TestSqliteAgainstTheModel(JournalModel):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.stores = 0

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        self.stores += 1
        store = SqliteStore(self.directory / f"journal-{self.stores}.db")
        try:
            yield store
        finally:
            await store.close()

"""The journal in an SQLite file: the contract, and what only a file can do or suffer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conversations_contract import ConversationsContract
from journal_contract import JournalContract, Store
from journal_model import JournalModel
from midcall.journal.seal import KeyRing
from sqlite_store import SqliteStore
from trees_contract import TreesContract

RING = KeyRing([b"k" * 32])


class TestSqliteJournal(JournalContract, ConversationsContract, TreesContract):
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

    async def age_tree(self, journal: Any, tree_id: str, seconds: float) -> None:
        await journal.database.write(
            lambda db: db.execute("UPDATE trees SET due = due - ? WHERE id = ?", (seconds, tree_id))
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

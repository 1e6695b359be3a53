"""The journal in PostgreSQL: the contract, and what only many workers on a database can do or suffer."""

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

import postgres_server
from journal_contract import JournalContract, Store
from journal_model import JournalModel
from midcall.journal.base import Journal
from midcall.journal.postgres import PostgresJournal
from midcall.journal.seal import KeyRing

RING = KeyRing([b"k" * 32])
_numbers = itertools.count(1)


class PostgresStore:
    """A schema of its own, which several workers share, here in one process."""

    def __init__(self, seal: KeyRing | None = None) -> None:
        self.dsn = postgres_server.shared()
        self.schema = f"test_{os.getpid()}_{next(_numbers)}"
        self.seal = seal
        self.opened: list[PostgresJournal] = []

    async def worker(self) -> PostgresJournal:
        journal = PostgresJournal(self.dsn, schema=self.schema, seal=self.seal)
        await journal.open()
        self.opened.append(journal)
        return journal

    async def die(self, worker: Journal) -> None:
        """PostgreSQL lets go of the lock of a session that has ended."""
        await self.freeze(worker)

    async def freeze(self, worker: Journal) -> None:
        assert isinstance(worker, PostgresJournal)
        session = worker._line._session
        assert session is not None
        session.remove_termination_listener(worker._line._on_end)
        await session.close()

    async def close(self) -> None:
        for journal in self.opened:
            await journal.close()
        connection = await asyncpg.connect(self.dsn)
        await connection.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
        await connection.close()


@asynccontextmanager
async def postgres_store(seal: KeyRing | None = None) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(seal)
    try:
        yield store
    finally:
        await store.close()


class TestPostgresJournal(JournalContract):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with postgres_store() as store:
            yield store


class TestSealedPostgresJournal(JournalContract):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with postgres_store(RING) as store:
            yield store


class TestPostgresAgainstTheModel(JournalModel):
    examples = 20

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with postgres_store() as store:
            yield store

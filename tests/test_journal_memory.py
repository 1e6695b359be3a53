"""The journal in memory, against the contract of every journal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from journal_contract import JournalContract, Store
from journal_model import JournalModel, MemoryStore


class TestMemoryJournal(JournalContract):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        yield MemoryStore()


class TestMemoryAsItsOwnModel(JournalModel):
    """The model test itself: that its operations run, and that what it compares is the same every time."""

    examples = 40

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        yield MemoryStore()

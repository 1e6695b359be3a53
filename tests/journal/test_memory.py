"""The journal in memory, against the contract of every journal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from conversations_contract import ConversationsContract, talk
from driving import drive
from journal_contract import JournalContract, Store, new_call, waiting_call
from journal_model import JournalModel, MemoryStore
from midcall.journal import memory
from trees_contract import TreesContract


class TestMemoryJournal(JournalContract, ConversationsContract, TreesContract):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        yield MemoryStore()

    async def age_run(self, journal: Any, run: str, seconds: float) -> None:
        journal._memory.runs[run].seen -= seconds

    async def age_tree(self, journal: Any, tree_id: str, seconds: float) -> None:
        kept = journal._memory.trees.by_id[tree_id]
        due = kept.record.due
        kept.record = replace(kept.record, due=None if due is None else due - seconds)


class TestMemoryAsItsOwnModel(JournalModel):
    """The model test itself: that its operations run, and that what it compares is the same every time."""

    examples = 40

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        yield MemoryStore()


def test_whoever_has_most_in_memory_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(memory, "WAITING_BYTES", 50_000)
        journal = await MemoryStore().worker()
        of_ann = waiting_call(principal="ann", arguments=b"x" * 5_000)
        await journal.create(of_ann, (), b"asked")
        of_bob = [waiting_call(principal="bob", arguments=b"x" * 10_000) for _ in range(20)]
        for call in of_bob:
            await journal.create(call, (), b"asked")
        assert await journal.load(of_ann.id) is not None
        kept = [call for call in of_bob if await journal.load(call.id) is not None]
        assert 2 <= len(kept) <= 4
        assert kept == of_bob[-len(kept) :]

    drive(run())


def test_nobody_pushes_out_the_results_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(memory, "CALLS", 5)
        journal = await MemoryStore().worker()

        async def ended(principal: str) -> str:
            call = new_call(principal=principal, status="completed", segment=1)
            await journal.create(call, (), b"done")
            return call.id

        of_ann = await ended("ann")
        of_bob = [await ended("bob") for _ in range(20)]
        assert await journal.load(of_ann) is not None
        assert [await journal.load(call) is not None for call in of_bob[-4:]] == [True] * 4
        assert await journal.load(of_bob[0]) is None

    drive(run())


def test_whoever_has_most_conversations_and_runs_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(memory, "CONVERSATIONS", 30)
        store = (await MemoryStore().worker()).conversations
        first = talk("ann")
        await store.save(first)
        await store.begin_run("run of ann", first.id, "ann")
        others = [talk("bob") for _ in range(40)]
        for number, conversation in enumerate(others):
            await store.save(conversation)
            await store.begin_run(f"run {number}", conversation.id, "bob")
        assert await store.load(first.id, "ann") is not None
        assert await store.run("run of ann") is not None
        assert await store.load(others[-1].id, "bob") is not None
        assert await store.run("run 39") is not None
        assert await store.load(others[0].id, "bob") is None
        assert await store.run("run 0") is None

    drive(run())


def test_to_append_a_line_costs_the_same_however_many_there_are() -> None:
    async def run() -> None:
        store = (await MemoryStore().worker()).conversations
        await store.begin_run("r", "c", None)
        kept = None
        for number in range(1, 2_000):
            await store.append("r", number, [b"line"], ended=False)
            lines = store._use().runs["r"].lines
            assert kept is None or kept is lines  # nothing is copied
            kept = lines

    drive(run())

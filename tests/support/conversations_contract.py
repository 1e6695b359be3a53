"""What every journal must do with conversations and runs: plugs in beside `journal_contract.JournalContract`."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from driving import LIMIT
from journal_contract import Store, in_store, new_call, now, parked, step
from midcall.journal.contract import (
    KEEP_RUNS,
    LISTED,
    Addition,
    Busy,
    CallRecord,
    Claimed,
    Conflict,
    ConversationPage,
    ConversationRecord,
    Conversations,
    Creation,
    JournalError,
    Parking,
    RunEnd,
    Saved,
    Settlement,
    Taking,
    conversation_from_export,
    conversation_to_export,
)

_numbers = itertools.count(1)


def talk(principal: str | None = "ada", **given: Any) -> ConversationRecord:
    """A conversation that is to be written for the first time."""
    record: dict[str, Any] = {
        "id": f"talk-{next(_numbers)}",
        "principal": principal,
        "version": 1,
        "updated": time.time(),
        "title": "Book a flight",
        "body": b'{"messages":["Book a flight, please"]}',
    }
    return ConversationRecord(**record | given)


def changed(record: ConversationRecord, **given: Any) -> ConversationRecord:
    """The same one, to be written once more."""
    return replace(record, version=record.version + 1, **given)


@contextmanager
def conflict() -> Iterator[None]:
    with pytest.raises(Conflict):
        yield


async def begun(store: Conversations, principal: str | None = "ada") -> str:
    """A new run."""
    run = f"run-{next(_numbers)}"
    await store.begin_run(run, "c", principal)
    return run


class ConversationsContract:
    """The contract. A subclass says what the store is."""

    def store(self) -> AbstractAsyncContextManager[Store]:
        raise NotImplementedError

    @in_store
    async def test_a_conversation_comes_back_as_it_was_also_to_another_worker(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        for record in (
            talk(waiting=True, run="r"),
            talk(None, body=b"\0\xff" * 50_000, title="one\0two \u2028 \U0001f600"),
            talk("", title="", body=b""),
        ):
            await journal.conversations.save(record)
            assert await other.conversations.load(record.id, record.principal) == record
            second = changed(record, body=b"more", title="other", waiting=False, run=None, updated=1.5)
            await other.conversations.save(second)
            assert await journal.conversations.load(record.id, record.principal) == second

    @in_store
    async def test_of_two_who_change_a_conversation_the_second_is_told(self, store: Store) -> None:
        conversations = (await store.worker()).conversations
        first = talk()
        await conversations.save(first)
        await conversations.save(changed(first, body=b"one"))
        for late in (changed(first, body=b"other"), first, replace(first, version=4)):
            with conflict():
                await conversations.save(late)
        with conflict():
            await conversations.save(talk(version=2))
        found = await conversations.load(first.id, "ada")
        assert found is not None
        assert (found.version, found.body) == (2, b"one")

    @in_store
    async def test_of_many_who_change_a_conversation_at_once_one_does(self, store: Store) -> None:
        workers = [await store.worker() for _ in range(3)]
        first = talk()
        new = [replace(first, body=b"%d" % n) for n in range(12)]
        for records in (new, [changed(record) for record in new]):
            told = await asyncio.gather(
                *(workers[n % 3].conversations.save(record) for n, record in enumerate(records)),
                return_exceptions=True,
            )
            assert sorted(type(one).__name__ for one in told) == ["Conflict"] * 11 + ["Saved"]
            assert (
                await workers[0].conversations.load(first.id, "ada") == records[told.index(Saved(ended=True))]
            )

    @in_store
    async def test_nobody_gets_or_forgets_what_belongs_to_another(self, store: Store) -> None:
        conversations = (await store.worker()).conversations
        own, public = talk("bob"), talk(None)
        await conversations.save(own)
        await conversations.save(public)
        for stranger in ("eve", None, ""):
            assert await conversations.load(own.id, stranger) is None
            assert not await conversations.delete(own.id, stranger)
            assert own.id not in [one.id for one in await conversations.list(stranger)]
        assert await conversations.load(public.id, "bob") is None
        assert list(await conversations.list("bob")) == [replace(own, body=b"")]
        assert await conversations.delete(own.id, "bob")
        assert await conversations.load(own.id, "bob") is None
        assert not await conversations.delete(own.id, "bob")
        await conversations.save(own)  # what is forgotten begins anew

    @in_store
    async def test_people_may_choose_the_same_id_and_have_a_conversation_each(self, store: Store) -> None:
        conversations = (await store.worker()).conversations
        people = ("ada", "eve", None, "", "0", "x" * 5000, "x" * 5000 + "y")
        talks = [talk(person, id="same", body=repr(person).encode()) for person in people]
        for one in talks:
            await conversations.save(one)
        for one in talks:
            with conflict():
                await conversations.save(one)
            assert await conversations.load("same", one.principal) == one
            assert [found.principal for found in await conversations.list(one.principal)] == [one.principal]
        assert await conversations.delete("same", "ada")
        found = [await conversations.load("same", one.principal) for one in talks]
        assert found == [None, *talks[1:]]

    @in_store
    async def test_the_newest_conversation_is_listed_first(self, store: Store) -> None:
        conversations = (await store.worker()).conversations
        made = [talk(updated=1000.0 + n, run="r" if n == 1 else None, waiting=n == 2) for n in range(3)]
        for one in made:
            await conversations.save(one)
        await conversations.save(changed(made[0], updated=2000.0))
        listed = await conversations.list("ada")
        assert [one.id for one in listed] == [made[0].id, made[2].id, made[1].id]
        assert [(one.run, one.waiting) for one in listed] == [(None, False), (None, True), ("r", False)]
        await asyncio.gather(*(conversations.save(talk(updated=n)) for n in range(LISTED)))
        assert len(await conversations.list("ada")) == LISTED

    @in_store
    async def test_what_a_person_has_is_counted(self, store: Store) -> None:
        conversations = (await store.worker()).conversations
        assert await conversations.held("ada") == (0, 0)
        records = [talk(body=b"x" * length) for length in (50_000, 20_000)]
        for record in [*records, talk("eve"), talk(None)]:
            await conversations.save(record)
        count, size = await conversations.held("ada")
        assert count == 2
        assert 70_000 <= size < 71_000
        await conversations.delete(records[0].id, "ada")
        assert (await conversations.held("ada"))[0] == 1

    @in_store
    async def test_the_conversations_of_everybody_move_to_another_store(self, store: Store) -> None:
        conversations = (await store.worker()).conversations
        assert await conversations.every() == ConversationPage([])
        people = ("ada", None, "", "eve")
        records = [talk(person, id=f"id {n}", version=n + 1) for n in range(3) for person in people]
        for record in records:
            assert await conversations.restore(record)
            assert not await conversations.restore(replace(record, body=b"other"))
        found, after = list[ConversationRecord](), None
        while not found or after is not None:
            page = await conversations.every(after, limit=5)
            found += page.conversations
            after = page.next
        assert sorted(map(repr, found)) == sorted(map(repr, records))
        for record in records:
            moved = conversation_from_export(json.loads(json.dumps(conversation_to_export(record))))
            assert moved == record
            await conversations.save(changed(record))

    # runs

    @in_store
    async def test_lines_of_a_run_are_read_from_any_number_and_never_written_twice(
        self, store: Store
    ) -> None:
        journal, other = await store.worker(), await store.worker()
        here, there = journal.conversations, other.conversations
        assert await there.run("unknown") is None
        assert list(await there.lines("unknown", 0)) == []
        run = await begun(here)
        await here.append(run, 1, [b"1", b"2"], ended=False)
        await here.append(run, 3, [b"3"], ended=False)
        await here.begin_run(run, "other", "eve")  # it has begun
        state = await there.run(run)
        assert state is not None
        assert (state.conversation_id, state.principal) == ("c", "ada")
        assert (state.lines, state.ended) == (3, False)
        assert 0 <= state.now - state.seen < 60
        every = [b"1", b"2", b"3"]
        for after in range(5):
            assert list(await there.lines(run, after)) == every[after:]
        with conflict():
            await here.append(run, 3, [b"other"], ended=False)
        with conflict():
            await here.append(run, 5, [b"5"], ended=False)
        await here.append(run, 4, [], ended=True)
        state = await there.run(run)
        assert state is not None
        assert (state.lines, state.ended) == (3, True)
        assert list(await there.lines(run, 2)) == [b"3"]
        assert await here.append("unknown", 1, [b"1"], ended=True) is False
        assert await there.run("unknown") is None
        await journal.sweep()
        assert list(await there.lines(run, 0)) == every  # it is not old

    @in_store
    async def test_lines_may_be_written_again_by_whoever_does_not_know_whether_they_were(
        self, store: Store
    ) -> None:
        conversations = (await store.worker()).conversations
        run = await begun(conversations)
        await conversations.append(run, 1, [b"1", b"2"], ended=False)
        await conversations.append(run, 1, [b"1", b"2", b"3"], ended=False)
        await conversations.append(run, 2, [b"2"], ended=True)
        assert list(await conversations.lines(run, 0)) == [b"1", b"2", b"3"]
        for first, lines in ((3, [b"other", b"4"]), (2, [b"2", b"other", b"4"]), (1, [b"2"])):
            with conflict():
                await conversations.append(run, first, lines, ended=False)
        await conversations.append(
            run, 4, [], ended=False
        )  # by one who does not know that it was taken for dead
        state = await conversations.run(run)
        assert state is not None
        assert (state.lines, state.ended) == (3, True)

    @in_store
    async def test_a_run_begins_together_with_what_is_saved_of_its_conversation(self, store: Store) -> None:
        here, there = (await store.worker()).conversations, (await store.worker()).conversations
        record = talk()
        assert (await here.save(record, begins="first")).ended
        state = await there.run("first")
        assert state is not None
        assert (state.conversation_id, state.principal, state.lines) == (record.id, record.principal, 0)
        with conflict():
            await here.save(record, begins="second")
        assert await there.run("second") is None
        assert (await here.save(changed(record), RunEnd("third", 1, [b"1"]), begins="third")).ended
        state = await there.run("third")
        assert state is not None
        assert (state.lines, state.ended) == (1, True)

    @in_store
    async def test_a_run_ends_together_with_what_is_saved_of_its_conversation(self, store: Store) -> None:
        here, there = (await store.worker()).conversations, (await store.worker()).conversations
        run, record = await begun(here), talk()
        assert (await here.save(record)).ended
        await here.append(run, 1, [b"1"], ended=False)
        with conflict():
            await here.save(record, RunEnd(run, 2, [b"2"]))
        assert list(await there.lines(run, 0)) == [b"1"]
        assert (await here.save(changed(record), RunEnd(run, 1, [b"1", b"2"]))).ended
        state = await there.run(run)
        assert state is not None
        assert (state.lines, state.ended) == (2, True)
        assert list(await there.lines(run, 0)) == [b"1", b"2"]
        assert await there.load(record.id, "ada") == changed(record)

    @in_store
    async def test_a_conversation_is_saved_also_if_others_have_ended_its_run(self, store: Store) -> None:
        conversations = (await store.worker()).conversations
        run, record = await begun(conversations), talk()
        await conversations.append(run, 1, [b"the end"], ended=True)
        assert not (await conversations.save(record, RunEnd(run, 1, [b"1"]))).ended
        assert not (await conversations.save(changed(record), RunEnd(run, 3, [b"3"]))).ended
        assert list(await conversations.lines(run, 0)) == [b"the end"]
        assert await conversations.load(record.id, "ada") == changed(record)
        assert (await conversations.save(changed(changed(record)), RunEnd("unknown", 1, [b"1"]))).ended

    @in_store
    async def test_a_call_is_created_parked_and_claimed_in_one_with_its_conversation(
        self, store: Store
    ) -> None:
        here, there = await store.worker(), await store.worker()
        record, call = talk(), new_call(idempotency_key="key")
        saved = await here.conversations.save(record, begins="r", call=Creation(call, [step("a")]))
        assert saved == Saved(ended=True)
        found = await there.load(call.id)
        assert found is not None
        assert (found[0].status, found[0].owner, *found[1]) == ("running", here.worker, step("a"))
        taken = await here.conversations.save(
            record := changed(record), call=Creation(new_call(idempotency_key="key"))
        )
        assert isinstance(taken.call, CallRecord)
        assert taken.call.id == call.id

        told = asyncio.create_task(there.wait(call.id, 0, 5 * LIMIT))
        heard = asyncio.create_task(here.wait(call.id, 0, 5 * LIMIT))
        await asyncio.sleep(0.05)
        settlement = Settlement(call.id, 0, 0, b"asked", Parking(status="waiting", questions=b"?"))
        end = RunEnd("r", 1, [b"1"])
        saved = await here.conversations.save(record := changed(record), end, call=settlement)
        assert saved == Saved(ended=True)
        assert [await told, await heard] == [b"asked", b"asked"]
        waits = await now(there, call.id)
        assert (waits.status, waits.segment, waits.questions) == ("waiting", 1, b"?")

        taking = Taking(call.id, 1, [step("b")], waits.fence, waits)
        claim = (await here.conversations.save(record := changed(record), call=taking)).call
        assert isinstance(claim, Claimed)
        assert (claim.call.status, claim.call.fence, claim.call.owner) == ("running", 1, here.worker)
        again = (await there.conversations.save(record := changed(record), call=taking)).call
        assert isinstance(again, Busy)
        addition = Addition(call.id, claim.call.fence, [step("c")])
        saved = await here.conversations.save(record := changed(record), call=addition)
        assert saved.call is None
        found = await there.load(call.id)
        assert found is not None
        assert list(found[1]) == [step("a"), step("b"), step("c")]
        assert await there.conversations.load(record.id, "ada") == record

    @in_store
    async def test_nothing_of_a_call_is_written_if_its_conversation_was_changed(self, store: Store) -> None:
        journal = await store.worker()
        record, call = talk(), new_call()
        await journal.conversations.save(record)
        waits = await parked(journal)
        for write in (Creation(call), Taking(waits, 1, [step("late")])):
            with conflict():
                await journal.conversations.save(record, call=write)
        assert await journal.load(call.id) is None
        found = await journal.load(waits)
        assert found is not None
        assert (found[0].status, *found[1]) == ("waiting", step("1"))

    @in_store
    async def test_a_conversation_is_saved_also_if_others_have_taken_its_call_over(
        self, store: Store
    ) -> None:
        journal = await store.worker()
        record, waits = talk(), await parked(journal)
        for write in (
            Settlement(waits, 5, 1, b"late", Parking(status="completed")),
            Addition(waits, 5, [step("late")]),
            Creation(new_call(id=waits)),
        ):
            saved = await journal.conversations.save(record, call=write)
            assert isinstance(saved.call, JournalError)
            assert await journal.conversations.load(record.id, "ada") == record
            record = changed(record)
        found = await journal.load(waits)
        assert found is not None
        assert (found[0].status, found[0].segment, *found[1]) == ("waiting", 1, step("1"))

    @in_store
    async def test_what_is_written_together_stands_or_falls_alone(self, store: Store) -> None:
        conversations = (await store.worker()).conversations
        runs = [await begun(conversations) for _ in range(20)]
        talks = [talk() for _ in range(20)]
        await conversations.append(runs[7], 1, [b"first"], ended=False)
        await conversations.save(talks[3])
        outcomes = await asyncio.gather(
            *(conversations.append(run, 1, [b"1", b"2"], ended=True) for run in runs),
            *(conversations.save(one) for one in talks),
            return_exceptions=True,
        )
        assert [at for at, outcome in enumerate(outcomes) if isinstance(outcome, Exception)] == [7, 23]
        assert isinstance(outcomes[7], Conflict)
        for run in runs:
            assert list(await conversations.lines(run, 0)) == ([b"first"] if run == runs[7] else [b"1", b"2"])
        assert [await conversations.load(one.id, "ada") for one in talks] == talks

    @in_store
    async def test_a_run_is_told_that_it_is_to_stop_and_no_other_is(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        here, there = journal.conversations, other.conversations
        one, another = await begun(here), await begun(here)
        for run in (one, another):
            assert not await here.append(run, 1, (b"1",), ended=False)
        await there.stop_run(one)
        await there.stop_run(one)
        await there.stop_run("unknown")
        told = await asyncio.gather(*(here.append(run, 2, (), ended=False) for run in (one, another)))
        assert told == [True, False]
        await journal.sweep()
        assert await here.append(one, 2, (b"2",), ended=True)

    @in_store
    async def test_two_workers_write_at_the_same_time(self, store: Store) -> None:
        workers = [(await store.worker()).conversations for _ in range(2)]

        async def write(conversations: Conversations) -> str:
            run = await begun(conversations)
            for number in range(1, 11):
                await conversations.append(run, number, [b"%d" % number], ended=number == 10)
            return run

        runs = await asyncio.gather(*(write(workers[n % 2]) for n in range(8)))
        for run in runs:
            assert list(await workers[0].lines(run, 0)) == [b"%d" % number for number in range(1, 11)]

    @in_store
    async def test_of_two_who_write_the_same_line_one_is_told(self, store: Store) -> None:
        workers = [(await store.worker()).conversations for _ in range(2)]
        for _ in range(10):
            run = await begun(workers[0])
            told = await asyncio.gather(
                *(one.append(run, 1, [b"%d" % n], ended=True) for n, one in enumerate(workers)),
                return_exceptions=True,
            )
            assert sorted(type(one).__name__ for one in told) == ["Conflict", "bool"]
            assert list(await workers[0].lines(run, 0)) == [b"%d" % told.index(False)]

    @in_store
    async def test_runs_of_which_nothing_was_heard_for_long_are_forgotten(self, store: Store) -> None:
        journal = await store.worker()
        conversations = journal.conversations
        old, new = await begun(conversations), await begun(conversations)
        for run in (old, new):
            await conversations.append(run, 1, [b"1"], ended=run == old)
        await self.age_run(journal, old, KEEP_RUNS + 1)
        assert await journal.sweep() == 1
        assert await journal.sweep() == 0
        assert await conversations.run(old) is None
        assert list(await conversations.lines(old, 0)) == []
        assert list(await conversations.lines(new, 0)) == [b"1"]

    @in_store
    async def test_the_runs_of_a_conversation_are_forgotten_with_it_and_no_others(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        here, there = journal.conversations, other.conversations
        people = ("ada", "eve", None, "")
        for person in people:
            await here.save(talk(person, id="same"))
        runs = {}
        for person in people:
            for conversation, number in (("same", 1), ("same", 2), ("other", 1)):
                run = runs[person, conversation, number] = f"run-{next(_numbers)}"
                await here.begin_run(run, conversation, person)
                await here.append(run, 1, [b"a secret"], ended=number == 1)
                await here.append(run, 2, [b"another"], ended=number == 1)
        for gone, person in enumerate(people, 1):
            assert await here.delete("same", person)
            for (owner, conversation, _), run in runs.items():
                if conversation == "same" and owner in people[:gone]:
                    assert await there.run(run) is None
                    assert list(await there.lines(run, 0)) == []
                    assert not await here.append(run, 3, [b"too late"], ended=True)
                    assert list(await there.lines(run, 0)) == []
                else:
                    assert list(await there.lines(run, 0)) == [b"a secret", b"another"]

    @in_store
    async def test_nothing_stays_of_a_run_that_is_written_while_its_conversation_is_deleted(
        self, store: Store
    ) -> None:
        here, there = [(await store.worker()).conversations for _ in range(2)]
        for _ in range(20):
            record = talk()
            await here.save(record)
            run = f"run-{next(_numbers)}"
            await here.begin_run(run, record.id, "ada")
            await asyncio.gather(
                *(here.append(run, number, [b"%d" % number], ended=False) for number in (1, 2, 3)),
                there.delete(record.id, "ada"),
                return_exceptions=True,
            )
            assert await here.run(run) is None
            assert list(await here.lines(run, 0)) == []

    @in_store
    async def test_a_journal_that_is_not_open_says_so(self, store: Store) -> None:
        journal = await store.worker()
        run = await begun(journal.conversations)
        await journal.close()
        conversations = journal.conversations
        for asking in (
            conversations.load("x", None),
            conversations.save(talk()),
            conversations.list("ada"),
            conversations.append(run, 1, [b"1"], ended=False),
            conversations.lines(run, 0),
        ):
            with pytest.raises(JournalError, match="not open"):
                await asking

    async def age_run(self, journal: Any, run: str, seconds: float) -> None:
        """As if nothing had been heard of a run for so long."""
        raise NotImplementedError

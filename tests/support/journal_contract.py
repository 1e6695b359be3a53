"""What every journal must do: each sentence of `midcall.journal.contract` as a test.

A backend plugs in by a class of its own in a `test_journal_*.py`:

    class TestMemoryJournal(JournalContract):
        @asynccontextmanager
        async def store(self) -> AsyncIterator[Store]:
            ...  # a fresh, empty store; what was opened on it is closed in the end

The test against the model is in `journal_model.py`, and plugs in the same way.
"""

import asyncio
import functools
import inspect
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from driving import LIMIT, drive, until
from midcall.journal.contract import (
    KEEP,
    MOST_CLAIMS,
    Busy,
    CallRecord,
    Claimed,
    Entry,
    Fenced,
    Gone,
    Journal,
    JournalError,
    Notice,
    Page,
    Parking,
    Settled,
)

WAITING = Parking(status="waiting", questions=b'["Sure?"]')
COMPLETED = Parking(status="completed")
_numbers = itertools.count(1)


class Store(Protocol):
    """A store that several workers share."""

    async def worker(self) -> Journal:
        """A new worker on this store, opened."""

    async def die(self, worker: Journal) -> None:
        """As if its process had been killed: it is not closed, but counts as gone. It is not used again."""

    async def freeze(self, worker: Journal) -> None:
        """As if its process had stood still for so long that it counts as gone. It tries to go on after that."""


def in_store(test: Callable[[Any, Store], Awaitable[None]]) -> Callable[[Any], None]:
    """Run a test with a fresh store."""

    @functools.wraps(test)
    def run(self: Any) -> None:
        async def main() -> None:
            async with self.store() as store:
                await test(self, store)

        drive(main())

    # What pytest sees is a plain function that takes nothing.
    run.__signature__ = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    )  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def new_call(**given: Any) -> CallRecord:
    """A call that runs for the first time."""
    call: dict[str, Any] = {
        "id": f"call-{next(_numbers)}",
        "name": "shop.buy",
        "arguments": b'{"item": 1}',
        "created": time.time(),
        "expires": time.time() + 3600,
    }
    return CallRecord(**call | given)


def waiting_call(**given: Any) -> CallRecord:
    """A call that has asked, and waits."""
    return new_call(**{"status": "waiting", "segment": 1, "questions": b'["Sure?"]'} | given)


def step(key: str, value: bytes = b"1") -> Entry:
    return Entry(key, "step:pay", "done", value)


async def parked(journal: Journal, **given: Any) -> str:
    """The id of a new call that waits for segment 1."""
    call = waiting_call(**given)
    assert await journal.create(call, [step("1")], b"asked") is None
    return call.id


async def claimed(journal: Journal, call_id: str, segment: int) -> CallRecord:
    """The call as it is after a claim that must succeed."""
    claim = await journal.claim(call_id, segment)
    assert isinstance(claim, Claimed), claim
    return claim.call


async def now(journal: Journal, call_id: str) -> CallRecord:
    """The call as it stands."""
    loaded = await journal.load(call_id)
    assert loaded is not None
    return loaded[0]


def timeless(call: CallRecord | None) -> CallRecord:
    """The call without the time of its last change, which the store has set."""
    assert call is not None
    return replace(call, updated=0.0)


async def written(journal: Journal, call_id: str) -> Any:
    """All of a call, to see whether it has changed."""
    exported = await journal.export(call_id)
    assert exported is not None
    return exported


class JournalContract:
    """The contract. A subclass says what the store is."""

    def store(self) -> AbstractAsyncContextManager[Store]:
        raise NotImplementedError

    # create

    @in_store
    async def test_a_call_created_with_an_outcome_waits(self, store: Store) -> None:
        journal = await store.worker()
        call = waiting_call(context=b"c", principal="ann", wake=1.5, questions=b"q")
        assert await journal.create(call, [step("1"), step("2")], b"asked") is None
        loaded = await journal.load(call.id)
        assert loaded is not None
        assert timeless(loaded[0]) == call
        assert list(loaded[1]) == [step("1"), step("2")]
        assert await journal.claim(call.id, 0) == Settled(b"asked")

    @in_store
    async def test_a_call_may_have_ended_with_its_first_segment(self, store: Store) -> None:
        journal = await store.worker()
        call = waiting_call(status="completed", questions=b"")
        await journal.create(call, (), b"result")
        assert await journal.claim(call.id, 0) == Settled(b"result")
        assert await journal.claim(call.id, 1) == Gone("completed")

    @in_store
    async def test_a_call_created_without_an_outcome_runs_here(self, store: Store) -> None:
        journal = await store.worker()
        call = new_call()
        assert await journal.create(call, [step("1")]) is None
        kept = await now(journal, call.id)
        assert timeless(kept) == replace(call, owner=journal.worker, claims=1)
        await journal.append(call.id, call.fence, [step("2")])
        await journal.settle(call.id, call.fence, 0, b"asked", WAITING, [step("3")])
        loaded = await journal.load(call.id)
        assert loaded is not None
        assert [entry.key for entry in loaded[1]] == ["1", "2", "3"]

    @in_store
    async def test_an_id_is_used_once(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        before = await written(journal, call_id)
        with pytest.raises(JournalError):
            await journal.create(waiting_call(id=call_id, name="other"), [step("9")], b"other")
        assert await written(journal, call_id) == before

    @in_store
    async def test_a_taken_idempotency_key_gives_the_call_that_has_it(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        first = waiting_call(principal="ann", idempotency_key="k")
        assert await journal.create(first, (), b"asked") is None
        second = waiting_call(principal="ann", idempotency_key="k")
        assert timeless(await other.create(second, (), b"asked")) == first
        assert await other.load(second.id) is None
        assert timeless(await journal.find("ann", "k")) == first

    @in_store
    async def test_the_key_of_a_running_or_ended_call_is_taken_too(self, store: Store) -> None:
        journal = await store.worker()
        first = new_call(idempotency_key="k")
        await journal.create(first)
        taken = await journal.create(new_call(idempotency_key="k"))
        assert taken is not None
        assert (taken.id, taken.status) == (first.id, "running")
        await journal.settle(first.id, 0, 0, b"result", COMPLETED)
        taken = await journal.create(waiting_call(idempotency_key="k"), (), b"asked")
        assert taken is not None
        assert (taken.id, taken.status) == (first.id, "completed")

    @in_store
    async def test_keys_of_other_principals_and_of_nobody_are_other_keys(self, store: Store) -> None:
        journal = await store.worker()
        for principal in ("ann", "bob", None, ""):
            call = waiting_call(principal=principal, idempotency_key="k")
            assert await journal.create(call, (), b"asked") is None
            assert timeless(await journal.find(principal, "k")) == call
        again = await journal.create(waiting_call(principal=None, idempotency_key="k"), (), b"asked")
        assert again is not None
        assert again.principal is None
        assert await journal.find("ann", "other") is None
        assert await journal.find("eve", "k") is None

    @in_store
    async def test_calls_without_a_key_do_not_collide(self, store: Store) -> None:
        journal = await store.worker()
        assert await journal.create(waiting_call(), (), b"asked") is None
        assert await journal.create(waiting_call(), (), b"asked") is None

    @in_store
    async def test_of_simultaneous_creations_with_one_key_one_is_written(self, store: Store) -> None:
        workers = [await store.worker() for _ in range(3)]
        calls = [waiting_call(principal="ann", idempotency_key="k") for _ in range(30)]
        given = await asyncio.gather(
            *(workers[n % 3].create(call, (), b"asked") for n, call in enumerate(calls))
        )
        assert given.count(None) == 1
        winner = calls[given.index(None)]
        assert {call.id for call in given if call is not None} == {winner.id}
        assert [timeless(call) for call in (await workers[0].list()).calls] == [winner]

    # claim

    @in_store
    async def test_of_fifty_claims_on_two_workers_one_gets_the_segment(self, store: Store) -> None:
        workers = [await store.worker(), await store.worker()]
        call_id = await parked(workers[0])
        claims = await asyncio.gather(*(workers[n % 2].claim(call_id, 1) for n in range(50)))
        won = [claim for claim in claims if isinstance(claim, Claimed)]
        busy = [claim for claim in claims if isinstance(claim, Busy)]
        assert (len(won), len(busy)) == (1, 49)
        assert {claim.call.owner for claim in busy} == {won[0].call.owner}
        assert won[0].call.owner in {worker.worker for worker in workers}

    @in_store
    async def test_a_claim_gives_the_call_and_its_entries(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call = waiting_call(context=b"c", wake=time.time() + 60)
        await journal.create(call, [step("1"), step("2")], b"asked")
        claim = await other.claim(call.id, 1)
        assert isinstance(claim, Claimed)
        assert list(claim.entries) == [step("1"), step("2")]
        assert timeless(claim.call) == replace(
            call, status="running", owner=other.worker, fence=call.fence + 1, claims=1
        )
        assert await now(journal, call.id) == claim.call

    @in_store
    async def test_a_claim_of_a_call_that_was_parked_here_is_granted_unless_others_had_it(
        self, store: Store
    ) -> None:
        await self._claims_what_was_parked(store, sync=True)

    @in_store
    async def test_a_claim_that_need_not_be_on_the_disk_is_seen_by_others_all_the_same(
        self, store: Store
    ) -> None:
        await self._claims_what_was_parked(store, sync=False)

    async def _claims_what_was_parked(self, store: Store, *, sync: bool) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal)
        here = await now(journal, call_id)
        assert await journal.claim(call_id, 1, [step("2")], here.fence + 1, here, sync) == Busy(here)
        claim = await journal.claim(call_id, 1, [step("2")], here.fence, here, sync)
        assert isinstance(claim, Claimed)
        loaded = await journal.load(call_id)
        assert loaded is not None
        assert loaded == (claim.call, loaded[1] if claim.entries is None else claim.entries)
        assert list(loaded[1]) == [step("1"), step("2")]
        assert await other.load(call_id) == loaded
        assert await other.claim(call_id, 1) == Busy(claim.call)
        assert await journal.claim(call_id, 1, [step("3")], None, here, sync) == Busy(claim.call)
        await journal.settle(call_id, claim.call.fence, 1, b"asked", WAITING)
        assert await journal.claim(call_id, 1, [step("3")], None, here, sync) == Settled(b"asked")
        here = await now(journal, call_id)
        taken = await claimed(other, call_id, 2)
        await other.release(call_id, taken.fence)
        again = await journal.claim(call_id, 2, [step("3")], here.fence, here, sync)
        assert isinstance(again, Busy), "another one has had it: it may have begun something"
        loaded = await journal.load(call_id)
        assert loaded is not None
        assert list(loaded[1]) == [step("1"), step("2")]

    @in_store
    async def test_a_call_that_was_parked_here_and_is_past_its_time_is_expired(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal, expires=time.time() - 1)
        here = await now(journal, call_id)
        assert await journal.claim(call_id, 1, [], here.fence, here) == Gone("expired")

    @in_store
    async def test_every_claim_raises_the_fence(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        fences = []
        for segment in range(1, 5):
            call = await claimed(journal, call_id, segment)
            fences.append(call.fence)
            await journal.settle(call_id, call.fence, segment, b"asked", WAITING)
        assert fences == sorted(set(fences))

    @in_store
    async def test_what_is_settled_gives_its_outcome_to_everyone(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal)
        call = await claimed(journal, call_id, 1)
        await journal.settle(call_id, call.fence, 1, b"second", WAITING)
        for worker in (journal, other):
            assert await worker.claim(call_id, 0) == Settled(b"asked")
            assert await worker.claim(call_id, 1) == Settled(b"second")

    @in_store
    async def test_what_is_not_there_is_gone(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        assert await journal.claim("unknown", 0) == Gone()
        assert await journal.claim(call_id, 2) == Gone("waiting")
        assert await journal.claim(call_id, -1) == Gone("waiting")
        call = await claimed(journal, call_id, 1)
        assert await journal.claim(call_id, 2) == Gone("running")
        await journal.settle(call_id, call.fence, 1, b"result", COMPLETED)
        assert await journal.claim(call_id, 2) == Gone("completed")
        assert await journal.claim(call_id, 1) == Settled(b"result")

    @in_store
    async def test_a_segment_that_runs_is_busy_also_for_its_own_worker(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal)
        call = await claimed(journal, call_id, 1)
        assert await journal.claim(call_id, 1) == Busy(call)
        assert await other.claim(call_id, 1) == Busy(call)
        created = new_call()
        await journal.create(created)
        assert isinstance(await other.claim(created.id, 0), Busy)

    @in_store
    async def test_a_cancelled_claim_leaves_the_segment_to_others(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        for pause in range(40):
            call_id = await parked(journal)
            claiming = asyncio.create_task(journal.claim(call_id, 1))
            for _ in range(pause // 2):
                await asyncio.sleep(0.0002 * (pause % 2))
            claiming.cancel()
            try:
                claim = await claiming
            except asyncio.CancelledError:
                call = await claimed(other, call_id, 1)
                assert call.claims == 1
            else:
                assert isinstance(claim, Claimed)

    @in_store
    async def test_a_cancelled_creation_leaves_nothing_running(self, store: Store) -> None:
        journal = await store.worker()
        for pause in range(40):
            call = new_call()
            creating = asyncio.create_task(journal.create(call))
            for _ in range(pause // 2):
                await asyncio.sleep(0.0002 * (pause % 2))
            creating.cancel()
            try:
                await creating
            except asyncio.CancelledError:
                assert await journal.load(call.id) is None
            else:
                assert (await now(journal, call.id)).status == "running"

    # takeover

    @in_store
    async def test_the_segment_of_a_dead_worker_is_claimed_by_another(self, store: Store) -> None:
        dead, journal = await store.worker(), await store.worker()
        call_id = await parked(dead)
        before = await claimed(dead, call_id, 1)
        await dead.append(call_id, before.fence, [step("2")])
        assert isinstance(await journal.claim(call_id, 1), Busy)
        await store.die(dead)
        claim = await journal.claim(call_id, 1)
        assert isinstance(claim, Claimed)
        assert [entry.key for entry in claim.entries] == ["1", "2"]
        assert claim.call.owner == journal.worker
        assert claim.call.fence > before.fence
        assert claim.call.claims == 2
        await journal.settle(call_id, claim.call.fence, 1, b"result", COMPLETED)
        assert (await now(journal, call_id)).claims == 0

    @in_store
    async def test_the_first_segment_of_a_dead_worker_is_claimed_by_another(self, store: Store) -> None:
        dead, journal = await store.worker(), await store.worker()
        call = new_call()
        await dead.create(call, [step("1")])
        await store.die(dead)
        assert (await claimed(journal, call.id, 0)).fence > call.fence

    @in_store
    async def test_a_closed_worker_counts_as_gone(self, store: Store) -> None:
        leaving, journal = await store.worker(), await store.worker()
        call_id = await parked(leaving)
        await claimed(leaving, call_id, 1)
        await leaving.close()
        await claimed(journal, call_id, 1)

    @in_store
    async def test_of_many_takeovers_at_once_one_succeeds(self, store: Store) -> None:
        dead, *workers = [await store.worker() for _ in range(4)]
        call_id = await parked(dead)
        await claimed(dead, call_id, 1)
        await store.die(dead)
        claims = await asyncio.gather(*(workers[n % 3].claim(call_id, 1) for n in range(30)))
        assert sorted(type(claim).__name__ for claim in claims) == ["Busy"] * 29 + ["Claimed"]

    @in_store
    async def test_a_frozen_worker_that_was_taken_over_cannot_act(self, store: Store) -> None:
        frozen, journal = await store.worker(), await store.worker()
        call_id = await parked(frozen)
        old = await claimed(frozen, call_id, 1)
        await store.freeze(frozen)
        new = await claimed(journal, call_id, 1)
        before = await written(journal, call_id)
        for fence in (old.fence, new.fence):
            with pytest.raises(Fenced):
                await frozen.append(call_id, fence, [step("late")])
            with pytest.raises(Fenced):
                await frozen.settle(call_id, fence, 1, b"late", COMPLETED, [step("late")])
            with pytest.raises(Fenced):
                await frozen.release(call_id, fence)
        assert await written(journal, call_id) == before
        await journal.settle(call_id, new.fence, 1, b"result", COMPLETED)
        assert await frozen.claim(call_id, 1) == Settled(b"result")

    @in_store
    async def test_a_call_whose_workers_all_die_is_poisoned(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        for claims in range(1, MOST_CLAIMS + 1):
            victim = await store.worker()
            assert (await claimed(victim, call_id, 1)).claims == claims
            await store.die(victim)
        assert await journal.claim(call_id, 1) == Gone("poisoned")
        assert await journal.claim(call_id, 1) == Gone("poisoned")
        call = await now(journal, call_id)
        assert (call.status, call.owner) == ("poisoned", None)
        assert abs(call.expires - time.time() - KEEP) < 60
        assert not await journal.end(call_id, "aborted", b"", 0)

    @in_store
    async def test_claims_are_counted_anew_for_each_segment(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        for segment in range(1, MOST_CLAIMS + 2):
            victim = await store.worker()
            await claimed(victim, call_id, segment)
            await store.die(victim)
            call = await claimed(journal, call_id, segment)
            assert call.claims == 2
            await journal.settle(call_id, call.fence, segment, b"asked", WAITING)

    # expiry

    @in_store
    async def test_a_waiting_call_past_its_time_is_expired_by_a_claim(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal, expires=time.time() - 1, wake=1.0)
        assert await journal.claim(call_id, 1) == Gone("expired")
        call = await now(journal, call_id)
        assert (call.status, call.questions, call.wake, call.owner) == ("expired", b"", None, None)
        assert abs(call.expires - time.time() - KEEP) < 60
        assert await journal.claim(call_id, 0) == Settled(b"asked")
        assert await journal.claim(call_id, 1) == Gone("expired")

    @in_store
    async def test_a_running_call_past_its_time_is_its_workers_business(self, store: Store) -> None:
        runner, journal = await store.worker(), await store.worker()
        call = new_call(expires=time.time() - 1)
        await runner.create(call)
        assert isinstance(await journal.claim(call.id, 0), Busy)
        assert await journal.sweep() == 0
        await store.freeze(runner)
        assert await journal.claim(call.id, 0) == Gone("expired")
        with pytest.raises(Fenced):
            await runner.settle(call.id, call.fence, 0, b"late", COMPLETED)

    # append, settle

    @in_store
    async def test_entries_keep_their_order_and_later_ones_are_left_to_the_reader(self, store: Store) -> None:
        journal = await store.worker()
        call = new_call()
        await journal.create(call, [Entry("1", "f", "begun")])
        written_down = [Entry("1", "f", "begun")]
        for n in range(20):
            entries = [Entry("1", "f", "done", b"%d" % n), Entry(f"{n}/é", "", "failed", b"\0\xff")]
            await journal.append(call.id, call.fence, entries)
            written_down += entries
        await journal.append(call.id, call.fence, [])
        loaded = await journal.load(call.id)
        assert loaded is not None
        assert list(loaded[1]) == written_down

    @in_store
    async def test_entries_of_appends_at_once_are_all_there(self, store: Store) -> None:
        journal = await store.worker()
        call = new_call()
        await journal.create(call)
        await asyncio.gather(
            *(journal.append(call.id, call.fence, [step(f"{n}a"), step(f"{n}b")]) for n in range(50))
        )
        loaded = await journal.load(call.id)
        assert loaded is not None
        keys = [entry.key for entry in loaded[1]]
        assert sorted(keys) == sorted(f"{n}{part}" for n in range(50) for part in "ab")
        assert all(keys[at + 1] == keys[at][:-1] + "b" for at in range(0, 100, 2))

    @in_store
    async def test_only_the_one_who_runs_a_call_writes_to_it(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal)
        call = await claimed(journal, call_id, 1)
        before = await written(journal, call_id)
        for worker, given, fence in (
            (other, call_id, call.fence),
            (journal, call_id, call.fence + 1),
            (journal, call_id, call.fence - 1),
            (journal, "unknown", call.fence),
        ):
            with pytest.raises(Fenced):
                await worker.append(given, fence, [step("x")])
            with pytest.raises(Fenced):
                await worker.append(given, fence, [])
            with pytest.raises(Fenced):
                await worker.settle(given, fence, 1, b"x", COMPLETED, [step("x")])
            with pytest.raises(Fenced):
                await worker.release(given, fence, diverged=True)
        for segment in (0, 2):
            with pytest.raises(Fenced):
                await journal.settle(call_id, call.fence, segment, b"x", COMPLETED, [step("x")])
        assert await written(journal, call_id) == before

    @in_store
    async def test_one_write_that_is_refused_does_not_undo_those_beside_it(self, store: Store) -> None:
        journal = await store.worker()
        calls = [new_call() for _ in range(20)]
        for call in calls:
            await journal.create(call)
        done = await asyncio.gather(
            *(journal.append(call.id, call.fence + n % 2, [step("2")]) for n, call in enumerate(calls)),
            *(journal.create(new_call(id=call.id)) for call in calls[:10]),
            return_exceptions=True,
        )
        for n, call in enumerate(calls):
            assert isinstance(done[n], Fenced) if n % 2 else done[n] is None
            loaded = await journal.load(call.id)
            assert loaded is not None
            assert len(loaded[1]) == 1 - n % 2
        assert all(isinstance(error, JournalError) for error in done[20:])

    @in_store
    async def test_a_settled_segment_leaves_the_call_waiting_for_the_next(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        call = await claimed(journal, call_id, 1)
        parking = Parking(status="waiting", wake=12.5, questions=b"more", expires=call.expires + 5)
        await journal.settle(call_id, call.fence, 1, b"second", parking, [step("2")])
        assert timeless(await now(journal, call_id)) == replace(
            timeless(call),
            status="waiting",
            segment=2,
            wake=12.5,
            questions=b"more",
            expires=call.expires + 5,
            owner=None,
            claims=0,
        )
        with pytest.raises(Fenced):
            await journal.settle(call_id, call.fence, 1, b"again", parking)

    @in_store
    async def test_a_branch_may_still_append_while_the_call_waits(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal)
        await journal.append(call_id, 0, [step("2")])
        call = await claimed(journal, call_id, 1)
        with pytest.raises(Fenced):
            await journal.append(call_id, 0, [step("late")])
        await journal.settle(call_id, call.fence, 1, b"second", WAITING, [step("3")])
        await journal.append(call_id, call.fence, [step("4")])
        with pytest.raises(Fenced):
            await journal.append(call_id, call.fence + 1, [step("x")])
        claim = await other.claim(call_id, 2)
        assert isinstance(claim, Claimed)
        assert [entry.key for entry in claim.entries] == ["1", "2", "3", "4"]
        for fence in (call.fence, claim.call.fence):
            with pytest.raises(Fenced):
                await journal.append(call_id, fence, [step("late")])
        await other.settle(call_id, claim.call.fence, 2, b"result", COMPLETED)
        with pytest.raises(Fenced):
            await other.append(call_id, claim.call.fence, [step("late")])

    @in_store
    async def test_a_call_that_is_held_while_it_waits_is_claimed_by_its_worker_only(
        self, store: Store
    ) -> None:
        holder, other = await store.worker(), await store.worker()
        call_id = await parked(holder, owner=holder.worker)
        assert isinstance(busy := await other.claim(call_id, 1), Busy)
        assert (busy.call.status, busy.call.owner) == ("waiting", holder.worker)
        fence = (await claimed(holder, call_id, 1)).fence
        held = Parking(status="waiting", questions=b'["Sure?"]', held=True)
        await holder.settle(call_id, fence, 1, b"asked", held)
        assert isinstance(await other.claim(call_id, 2), Busy)
        await holder.append(call_id, fence, [step("2")])
        assert isinstance(await other.claim(call_id, 2), Busy)
        await holder.append(call_id, fence, [], WAITING)
        fence = (await claimed(other, call_id, 2)).fence
        await other.settle(call_id, fence, 2, b"asked", WAITING)
        await other.append(call_id, fence, [step("3")], held)
        assert isinstance(await holder.claim(call_id, 3), Busy)
        assert await holder.end(call_id, "aborted", b"over", time.time() + 60)

    @in_store
    async def test_a_call_that_a_dead_worker_held_can_be_claimed(self, store: Store) -> None:
        dead, other = await store.worker(), await store.worker()
        call_id = await parked(dead, owner=dead.worker)
        assert isinstance(await other.claim(call_id, 1), Busy)
        await store.die(dead)
        assert (await claimed(other, call_id, 1)).owner == other.worker

    @in_store
    async def test_a_claim_with_a_fence_is_granted_only_if_nobody_has_claimed_since(
        self, store: Store
    ) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal)
        before = (await now(journal, call_id)).fence
        taken = await claimed(other, call_id, 1)
        await other.release(call_id, taken.fence)  # as if it had died: nobody runs it
        late = await journal.claim(call_id, 1, [step("late")], before)
        assert isinstance(late, Busy)
        assert late.call.fence == taken.fence
        granted = await journal.claim(call_id, 1, [step("2")], taken.fence)
        assert isinstance(granted, Claimed)
        assert [entry.key for entry in granted.entries] == ["1", "2"]

    @in_store
    async def test_the_answers_that_start_a_segment_are_written_with_its_claim(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal)
        claims = await asyncio.gather(
            *(
                worker.claim(call_id, 1, [Entry("2", "prompt", "given", b"%d" % n)])
                for n, worker in enumerate((journal, other, journal, other))
            )
        )
        (taken,) = [claim for claim in claims if isinstance(claim, Claimed)]
        answer = Entry("2", "prompt", "given", b"%d" % claims.index(taken))
        assert list(taken.entries) == [step("1"), answer]
        loaded = await journal.load(call_id)
        assert loaded is not None
        assert list(loaded[1]) == [step("1"), answer]
        for segment in (0, 1, 2):
            assert not isinstance(await other.claim(call_id, segment, [step("late")]), Claimed)
        assert await other.load(call_id) == loaded

    @in_store
    async def test_what_a_waiting_call_waits_for_can_change(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal, wake=5.0)
        before = await now(journal, call_id)
        more = Parking(status="waiting", wake=None, questions=b"more", expires=before.expires + 5)
        await journal.append(call_id, 0, [step("2")], more)
        assert timeless(await now(other, call_id)) == replace(
            timeless(before), wake=None, questions=b"more", expires=before.expires + 5
        )
        await journal.append(call_id, 0, [], Parking(status="waiting", wake=7.0, questions=b"less"))
        kept = await now(other, call_id)
        assert (kept.wake, kept.questions, kept.expires) == (7.0, b"less", before.expires + 5)
        with pytest.raises(Fenced):
            await journal.append(call_id, 1, [step("x")], more)
        claim = await other.claim(call_id, 1)
        assert isinstance(claim, Claimed)
        assert [entry.key for entry in claim.entries] == ["1", "2"]
        for worker, fence in ((journal, 0), (other, claim.call.fence)):
            with pytest.raises(Fenced):
                await worker.append(call_id, fence, [step("x")], more)
        assert timeless(await now(journal, call_id)) == timeless(claim.call)

    @in_store
    async def test_settling_clears_what_the_parking_does_not_say_but_not_the_expiry(
        self, store: Store
    ) -> None:
        journal = await store.worker()
        call_id = await parked(journal, wake=5.0)
        call = await claimed(journal, call_id, 1)
        assert (call.wake, call.questions) == (5.0, b'["Sure?"]')
        await journal.settle(call_id, call.fence, 1, b"result", COMPLETED)
        kept = await now(journal, call_id)
        assert (kept.status, kept.wake, kept.questions, kept.expires) == (
            "completed",
            None,
            b"",
            call.expires,
        )

    # release

    @in_store
    async def test_a_released_segment_can_be_claimed_at_once_and_is_due(self, store: Store) -> None:
        leaving, journal = await store.worker(), await store.worker()
        call_id = await parked(leaving)
        call = await claimed(leaving, call_id, 1)
        await leaving.append(call_id, call.fence, [step("2")])
        await leaving.release(call_id, call.fence)
        assert timeless(await now(journal, call_id)) == replace(timeless(call), owner=None, claims=0)
        assert [due.id for due in await journal.due()] == [call_id]
        with pytest.raises(Fenced):
            await leaving.append(call_id, call.fence, [step("3")])
        with pytest.raises(Fenced):
            await leaving.release(call_id, call.fence)
        again = await claimed(leaving, call_id, 1)
        assert again.fence > call.fence
        assert again.claims == 1

    @in_store
    async def test_releases_do_not_poison_a_call(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        for _ in range(2 * MOST_CLAIMS):
            call = await claimed(journal, call_id, 1)
            await journal.release(call_id, call.fence)
        assert (await claimed(journal, call_id, 1)).claims == 1

    @in_store
    async def test_a_diverged_call_stands_still_until_it_is_claimed(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal, wake=1.0)
        call = await claimed(journal, call_id, 1)
        await journal.release(call_id, call.fence, diverged=True)
        kept = await now(journal, call_id)
        assert (kept.status, kept.owner, kept.segment) == ("diverged", None, 1)
        assert list(await journal.due()) == []
        assert await journal.claim(call_id, 2) == Gone("diverged")
        again = await claimed(other, call_id, 1)
        assert (again.status, again.claims) == ("running", 1)
        assert again.fence > call.fence

    @in_store
    async def test_a_diverged_call_expires_and_can_be_ended(self, store: Store) -> None:
        journal = await store.worker()
        calls = [new_call(expires=time.time() - 1), new_call()]
        for call in calls:
            await journal.create(call)
            await journal.release(call.id, call.fence, diverged=True)
        assert await journal.sweep() == 1
        assert (await now(journal, calls[0].id)).status == "expired"
        assert await journal.end(calls[1].id, "aborted", b"stopped", time.time() + 60)
        assert await journal.claim(calls[1].id, 0) == Settled(b"stopped")

    # wait

    @in_store
    async def test_settling_wakes_who_waits_here_and_elsewhere(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call_id = await parked(journal)
        call = await claimed(journal, call_id, 1)
        waiters = [
            asyncio.create_task(worker.wait(call_id, 1, 5 * LIMIT))
            for worker in (journal, other)
            for _ in range(5)
        ]
        ahead = asyncio.create_task(other.wait(call_id, 2, 0.3))
        await asyncio.sleep(0.1)
        assert not any(waiter.done() for waiter in waiters)
        await journal.settle(call_id, call.fence, 1, b"second", WAITING)
        assert await asyncio.gather(*waiters) == [b"second"] * 10
        assert await ahead is None

    @in_store
    async def test_waiting_for_what_is_settled_does_not_wait(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        assert await journal.wait(call_id, 0, 10) == b"asked"
        assert await journal.wait(call_id, 0, 0) == b"asked"

    @in_store
    async def test_waiting_in_vain_gives_nothing(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        assert (
            await asyncio.gather(
                journal.wait(call_id, 1, 0.1), journal.wait(call_id, 1, 0), journal.wait("unknown", 0, 0.05)
            )
            == [None] * 3
        )

    @in_store
    async def test_a_cancelled_wait_does_not_disturb_the_others(self, store: Store) -> None:
        journal = await store.worker()
        call = new_call()
        await journal.create(call)
        leaving = asyncio.create_task(journal.wait(call.id, 0, 5 * LIMIT))
        staying = asyncio.create_task(journal.wait(call.id, 0, 5 * LIMIT))
        await asyncio.sleep(0.05)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await journal.settle(call.id, call.fence, 0, b"result", COMPLETED)
        assert await staying == b"result"

    @in_store
    async def test_an_outcome_that_comes_while_the_wait_begins_is_not_missed(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        for n in range(20):
            call = new_call()
            await journal.create(call)
            worker = (journal, other)[n % 2]
            waiter = asyncio.create_task(worker.wait(call.id, 0, 5 * LIMIT))
            await asyncio.sleep(0.0005 * (n // 2))
            await journal.settle(call.id, call.fence, 0, b"result", COMPLETED)
            async with asyncio.timeout(LIMIT):
                assert await waiter == b"result"

    # end

    @in_store
    async def test_ending_a_call_from_outside_stops_who_runs_it(self, store: Store) -> None:
        runner, journal = await store.worker(), await store.worker()
        call_id = await parked(runner)
        call = await claimed(runner, call_id, 1)
        waiters = [asyncio.create_task(worker.wait(call_id, 1, 5 * LIMIT)) for worker in (runner, journal)]
        await asyncio.sleep(0.05)
        expires = time.time() + 99
        assert await journal.end(call_id, "aborted", b"stopped", expires)
        assert await asyncio.gather(*waiters) == [b"stopped"] * 2
        before = await written(journal, call_id)
        with pytest.raises(Fenced):
            await runner.append(call_id, call.fence, [step("x")])
        with pytest.raises(Fenced):
            await runner.settle(call_id, call.fence, 1, b"late", COMPLETED)
        assert await written(journal, call_id) == before
        kept = await now(journal, call_id)
        assert kept.fence > call.fence
        assert (kept.status, kept.owner, kept.questions) == ("aborted", None, b"")
        assert kept.expires == expires
        assert await runner.claim(call_id, 1) == Settled(b"stopped")
        assert await runner.claim(call_id, 2) == Gone("aborted")

    @in_store
    async def test_ending_a_waiting_call_is_the_outcome_of_its_next_segment(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal, wake=1.0)
        assert await journal.end(call_id, "aborted", b"stopped", time.time() + 99)
        assert await journal.claim(call_id, 1) == Settled(b"stopped")
        assert list(await journal.due()) == []

    @in_store
    async def test_what_has_ended_or_is_unknown_cannot_be_ended(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        assert not await journal.end("unknown", "aborted", b"", 0)
        assert await journal.end(call_id, "aborted", b"first", time.time() + 99)
        assert not await journal.end(call_id, "failed", b"second", 0)
        assert await journal.wait(call_id, 1, 0) == b"first"

    @in_store
    async def test_of_an_end_and_a_settlement_at_once_one_counts(self, store: Store) -> None:
        runner, journal = await store.worker(), await store.worker()
        for _ in range(10):
            call = new_call()
            await runner.create(call)
            settled, ended = await asyncio.gather(
                runner.settle(call.id, call.fence, 0, b"settled", COMPLETED),
                journal.end(call.id, "aborted", b"ended", time.time() + 99),
                return_exceptions=True,
            )
            outcome = await journal.wait(call.id, 0, 0)
            if isinstance(settled, Fenced):
                assert (ended, outcome) == (True, b"ended")
            else:
                assert (settled, ended, outcome) == (None, False, b"settled")

    # due, sweep

    @in_store
    async def test_calls_whose_wake_has_come_are_due(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        woken = await parked(journal, wake=time.time() - 1)
        await parked(journal, wake=time.time() + 60)
        await parked(journal)
        for worker in (journal, other):
            assert [call.id for call in await worker.due()] == [woken]
        call = await claimed(other, woken, 1)
        assert list(await journal.due()) == []
        await other.settle(woken, call.fence, 1, b"asked", Parking(status="waiting", wake=1.0))
        assert [(call.id, call.segment) for call in await journal.due()] == [(woken, 2)]
        call = await claimed(other, woken, 2)
        await other.settle(woken, call.fence, 2, b"result", Parking(status="completed", wake=1.0))
        assert list(await journal.due()) == []

    @in_store
    async def test_calls_whose_worker_is_gone_are_due(self, store: Store) -> None:
        dead, journal = await store.worker(), await store.worker()
        left, claimed_too = new_call(), await parked(dead)
        await dead.create(left)
        await claimed(dead, claimed_too, 1)
        await journal.create(new_call())
        assert list(await journal.due()) == []
        await store.die(dead)
        assert {call.id for call in await journal.due()} == {left.id, claimed_too}
        await claimed(journal, left.id, 0)
        assert [call.id for call in await journal.due()] == [claimed_too]

    @in_store
    async def test_no_more_are_due_than_are_asked_for(self, store: Store) -> None:
        journal = await store.worker()
        dead = await store.worker()
        for _ in range(5):
            await parked(journal, wake=1.0)
            await dead.create(new_call())
        await store.die(dead)
        assert len(await journal.due(3)) == 3
        assert len(await journal.due(8)) == 8
        assert len({call.id for call in await journal.due()}) == 10

    @in_store
    async def test_sweeping_marks_what_waited_too_long_and_forgets_what_ended(self, store: Store) -> None:
        journal = await store.worker()
        past = time.time() - 1
        waits = await parked(journal)
        late = await parked(journal, expires=past, wake=1.0)
        runs = new_call(expires=past)
        await journal.create(runs)
        ended = await parked(journal, status="completed", idempotency_key="k")
        over = await parked(journal, expires=past, status="failed", idempotency_key="over")
        assert await journal.sweep() == 2
        assert await journal.load(over) is None
        assert await journal.claim(over, 0) == Gone()
        assert await journal.find(None, "over") is None
        assert await journal.create(waiting_call(idempotency_key="over"), (), b"asked") is None
        statuses = [(await now(journal, call_id)).status for call_id in (waits, late, runs.id, ended)]
        assert statuses == ["waiting", "expired", "running", "completed"]
        call = await now(journal, late)
        assert abs(call.expires - time.time() - KEEP) < 60
        assert (call.questions, call.wake) == (b"", None)
        assert await journal.claim(late, 1) == Gone("expired")
        assert await journal.sweep() == 0

    @in_store
    async def test_a_forgotten_call_can_come_back_with_nothing_of_the_old(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal, expires=1.0, status="completed")
        assert await journal.sweep() == 1
        await journal.create(new_call(id=call_id))
        loaded = await journal.load(call_id)
        assert loaded is not None
        assert list(loaded[1]) == []
        assert await journal.wait(call_id, 0, 0) is None

    @in_store
    async def test_a_sweep_takes_no_more_than_it_may(self, store: Store) -> None:
        journal = await store.worker()
        for n in range(6):
            await parked(journal, expires=1.0, status=("waiting", "completed")[n % 2])
        assert await journal.sweep(4) == 4
        assert await journal.sweep(4) == 2
        assert await journal.sweep(4) == 0
        assert await journal.count() == {"expired": 3}

    # list, count, secret

    @in_store
    async def test_a_list_has_the_newest_first_in_pages(self, store: Store) -> None:
        journal = await store.worker()
        ids = [await parked(journal, created=float(n // 3)) for n in range(20)]
        seen: list[CallRecord] = []
        page = await journal.list(limit=6)
        while True:
            seen += page.calls
            assert len(page.calls) <= 6
            if page.next is None:
                break
            page = await journal.list(limit=6, after=page.next)
        assert len(seen) == 20
        assert {call.id for call in seen} == set(ids)
        created = [call.created for call in seen]
        assert created == sorted(created, reverse=True)
        assert seen[0].arguments == b'{"item": 1}'
        assert list((await journal.list()).calls) == seen
        assert (await journal.list(limit=20)).next is None

    @in_store
    async def test_a_list_that_changes_between_pages_repeats_nothing(self, store: Store) -> None:
        journal = await store.worker()
        for n in range(10):
            await parked(journal, created=100.0 + n)
        first = await journal.list(limit=5)
        await parked(journal, created=200.0)
        await journal.end(first.calls[2].id, "aborted", b"", time.time() + 9)
        second = await journal.list(limit=50, after=first.next)
        assert [call.created for call in second.calls] == [104.0, 103.0, 102.0, 101.0, 100.0]

    @in_store
    async def test_a_list_can_be_filtered(self, store: Store) -> None:
        journal = await store.worker()
        for n in range(12):
            await parked(
                journal,
                created=float(n),
                principal=("ann", "bob", None)[n % 3],
                name=("shop.buy", "shop.sell")[n % 2],
                status=("waiting", "completed", "failed", "waiting")[n % 4],
            )

        async def found(**given: Any) -> list[int]:
            calls: list[CallRecord] = []
            page: Page | None = None
            while page is None or page.next:
                page = await journal.list(limit=2, after=page.next if page else None, **given)
                calls += page.calls
            return [int(call.created) for call in calls]

        assert await found(principal="ann") == [9, 6, 3, 0]
        assert await found(name="shop.sell") == [11, 9, 7, 5, 3, 1]
        assert await found(status=["waiting"]) == [11, 8, 7, 4, 3, 0]
        assert await found(status=["failed", "completed"]) == [10, 9, 6, 5, 2, 1]
        assert await found(principal="bob", name="shop.buy", status=["waiting", "failed"]) == [10, 4]
        assert await found(principal="eve") == []
        assert await found(status=["poisoned"]) == []

    @in_store
    async def test_calls_that_wait_for_others_are_listed_until_they_do_not(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        for n in range(3):
            await parked(journal, created=float(n))

        async def found(**given: Any) -> list[str]:
            page = await other.list(addressed=True, **given)
            assert page.next is None
            assert all(call.addressed for call in page.calls)
            return [call.id for call in page.calls]

        assert await found() == []
        created = await parked(journal, created=5.0, principal="ann", name="shop.sell", addressed=True)
        settled, amended = await parked(journal, created=4.0), await parked(journal, created=6.0)
        asks_others = replace(WAITING, addressed=True)
        fence = (await claimed(journal, settled, 1)).fence
        await journal.settle(settled, fence, 1, b"asked", asks_others)
        await journal.append(amended, 0, [], asks_others)
        assert await found() == [amended, created, settled]
        assert await found(principal="ann") == [created] == await found(name="shop.sell")
        assert await found(principal="bob") == []
        assert await found(status=["completed"]) == []
        assert await found(status=["waiting"], limit=3) == [amended, created, settled]
        first = await other.list(addressed=True, limit=2)
        assert [call.id for call in (await other.list(addressed=True, after=first.next)).calls] == [settled]
        fence = (await claimed(other, settled, 2)).fence
        assert (await now(journal, settled)).addressed
        await other.settle(settled, fence, 2, b"asked", WAITING)
        await journal.append(amended, 0, [], WAITING)
        assert await found() == [created]
        exported = await written(journal, created)
        assert await journal.end(created, "aborted", b"over", 0.0)
        assert await found() == []
        await journal.sweep()
        assert await journal.restore(exported)
        assert await found() == [created]

    @in_store
    async def test_notices_are_written_with_what_they_are_about_or_not_at_all(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()

        def notice(name: str, call_id: str) -> Notice:
            return Notice(f"to:{name}", call_id, time.time())

        call = waiting_call()
        await journal.create(call, [], b"asked", [notice("one", call.id)])
        with pytest.raises(JournalError):
            await journal.create(call, [], b"asked", [notice("never", call.id)])
        keyed = waiting_call(idempotency_key="k")
        await journal.create(keyed, [], b"asked", [notice("two", keyed.id)])
        again = waiting_call(idempotency_key="k")
        assert await journal.create(again, [], b"asked", [notice("never", again.id)]) is not None
        fence = (await claimed(journal, call.id, 1)).fence
        both = replace(WAITING, notices=[notice("one", call.id), notice("three", call.id)])
        late = replace(WAITING, notices=[notice("never", call.id)])
        with pytest.raises(Fenced):
            await journal.settle(call.id, fence - 1, 1, b"asked", late)
        await journal.settle(call.id, fence, 1, b"asked", both)
        with pytest.raises(Fenced):
            await journal.append(call.id, fence - 1, [], late)
        await journal.append(call.id, fence, [], replace(WAITING, notices=[notice("four", call.id)]))
        taken = await other.take_notices("to", 10, 60)
        assert sorted(one.id for one in taken) == ["to:four", "to:one", "to:three", "to:two"]
        assert {one.id: one.call_id for one in taken}["to:two"] == keyed.id

    @in_store
    async def test_a_notice_is_taken_by_one_worker_until_it_is_told(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        call = waiting_call()
        soon = [Notice(f"to:n{n}", call.id, 100.0 - n) for n in range(5)]
        later = Notice("to:later", call.id, time.time() + 3600)
        await journal.create(call, [], b"asked", [*soon, later])
        assert [one.id for one in await journal.take_notices("to", 2, 60)] == ["to:n4", "to:n3"]
        taken = await asyncio.gather(*(worker.take_notices("to", 1, 60) for worker in (journal, other) * 3))
        assert sorted(one.id for some in taken for one in some) == ["to:n0", "to:n1", "to:n2"]
        assert {one.tries for some in taken for one in some} == {1}
        assert await other.take_notices("to", 10, 60) == []
        await other.notice_told("to:n0")
        await other.notice_told("unknown")
        await journal.postpone_notice("to:n0", 0)
        await journal.postpone_notice("to:n1", -1)
        await other.postpone_notice("to:n2", 3600)
        (again,) = await other.take_notices("to", 10, -1)
        assert (again.id, again.call_id, again.tries) == ("to:n1", call.id, 2)
        (once_more,) = await journal.take_notices("to", 10, 60)
        assert (once_more.id, once_more.tries) == ("to:n1", 3)
        repeated = replace(WAITING, notices=[Notice("to:n0", call.id, 1.0), Notice("to:n5", call.id, 1.0)])
        await journal.append(call.id, 0, [], repeated)
        assert [one.id for one in await other.take_notices("to", 10, 60)] == ["to:n5"]
        exported = await written(journal, call.id)
        assert await journal.end(call.id, "aborted", b"over", 0.0)
        await journal.sweep()
        assert await journal.restore(exported)
        await journal.append(call.id, 0, [], repeated)
        assert sorted(one.id for one in await other.take_notices("to", 10, 60)) == ["to:n0", "to:n5"]

    @in_store
    async def test_only_the_notices_of_a_channel_are_taken(self, store: Store) -> None:
        journal = await store.worker()
        call = waiting_call()
        names = ("to", "to-2", "To", "t%", "t_")
        await journal.create(call, [], b"asked", [Notice(f"{name}:n", call.id, 1.0) for name in names])
        for name in (*names, "t"):
            taken = [one.id for one in await journal.take_notices(name, 10, 60)]
            assert taken == ([] if name == "t" else [f"{name}:n"])

    @in_store
    async def test_notices_outlive_their_workers(self, store: Store) -> None:
        dead = await store.worker()
        call = waiting_call()
        await dead.create(call, [], b"asked", [Notice("to:n", call.id, 1.0)])
        assert await dead.take_notices("to", 10, -1)
        await store.die(dead)
        (found,) = await (await store.worker()).take_notices("to", 10, 60)
        assert (found.id, found.tries) == ("to:n", 2)

    @in_store
    async def test_a_page_that_never_was_is_an_error(self, store: Store) -> None:
        journal = await store.worker()
        with pytest.raises(JournalError):
            await journal.list(after="nonsense")

    @in_store
    async def test_calls_are_counted_by_status(self, store: Store) -> None:
        journal = await store.worker()
        assert await journal.count() == {}
        for status in ("waiting", "waiting", "completed", "failed", "diverged"):
            await parked(journal, status=status)
        await journal.create(new_call())
        assert await journal.count() == {
            "waiting": 2, "completed": 1, "failed": 1, "diverged": 1, "running": 1,
        }  # fmt: skip

    @in_store
    async def test_all_workers_share_a_secret(self, store: Store) -> None:
        workers = [await store.worker() for _ in range(3)]
        given = await asyncio.gather(*(workers[n % 3].secret("seal", b"\0%d" % n) for n in range(12)))
        assert len(set(given)) == 1
        assert given[0] in [b"\0%d" % n for n in range(12)]
        assert await (await store.worker()).secret("seal", b"late") == given[0]
        assert await workers[0].secret("other", b"made") == b"made"

    # post

    @in_store
    async def test_a_message_reaches_another_worker_once_and_in_order(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        got: list[bytes] = []
        other.on_post = got.append
        messages = [b"%d" % n for n in range(20)] + [b"", b"\0\xff" * 100_000]
        for message in messages:
            assert await journal.post(other.worker, message)
        await until(lambda: len(got) >= len(messages))
        await asyncio.sleep(0.05)
        assert got == messages

    @in_store
    async def test_a_worker_that_is_gone_gets_no_messages(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        assert await journal.post(other.worker, b"nobody listens, and that is no error")
        got: list[bytes] = []
        other.on_post = got.append
        await asyncio.sleep(0.1)
        assert await journal.post(other.worker, b"in time")
        await until(lambda: b"in time" in got)
        await other.close()
        assert not await journal.post(other.worker, b"late")
        assert not await journal.post("nobody", b"lost")

    # export, restore

    @in_store
    async def test_a_call_moves_from_one_store_to_another(self, store: Store) -> None:
        journal = await store.worker()
        call = waiting_call(
            context=b"\0\xff", principal="ann", idempotency_key="k", wake=2.5, questions=b"q", expires=1e10
        )
        await journal.create(call, [step("1"), Entry("2", "f", "begun", b"\0")], b"asked\0")
        claim = await claimed(journal, call.id, 1)
        await journal.settle(call.id, claim.fence, 1, b"second", WAITING, [step("3")])
        exported = await journal.export(call.id)
        assert exported is not None
        exported = json.loads(json.dumps(exported))
        assert not await journal.restore(exported)
        async with self.store() as other_store:
            other = await other_store.worker()
            assert await other.restore(exported)
            assert not await other.restore(exported)
            assert await other.load(call.id) == await journal.load(call.id)
            assert await other.export(call.id) == exported
            assert await other.claim(call.id, 0) == Settled(b"asked\0")
            assert await other.claim(call.id, 1) == Settled(b"second")
            assert await other.find("ann", "k") == await now(journal, call.id)
            await claimed(other, call.id, 2)

    @in_store
    async def test_a_running_call_is_restored_without_an_owner(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal)
        call = await claimed(journal, call_id, 1)
        exported = await written(journal, call_id)
        async with self.store() as other_store:
            other = await other_store.worker()
            assert await other.restore(exported)
            assert await now(other, call_id) == replace(call, owner=None)
            assert [call.id for call in await other.due()] == [call_id]
            assert (await claimed(other, call_id, 1)).fence > call.fence

    @in_store
    async def test_what_is_known_already_is_not_restored(self, store: Store) -> None:
        journal = await store.worker()
        call_id = await parked(journal, principal="ann", idempotency_key="k")
        exported = await written(journal, call_id)
        exported["call"]["id"] = "another"
        assert not await journal.restore(exported)
        assert await journal.load("another") is None
        assert await journal.export("unknown") is None
        with pytest.raises(JournalError):
            await journal.restore({"call": 1})

    @in_store
    async def test_a_call_tells_when_it_last_changed(self, store: Store) -> None:
        journal = await store.worker()
        call, before = new_call(), time.time()
        seen = []
        await journal.create(call)
        seen.append(await now(journal, call.id))
        await journal.settle(call.id, call.fence, 0, b"asked", WAITING)
        seen.append(await now(journal, call.id))
        seen.append(await claimed(journal, call.id, 1))
        assert (await now(journal, call.id)).updated == seen[-1].updated
        await journal.release(call.id, seen[-1].fence)
        seen.append(await now(journal, call.id))
        await journal.end(call.id, "aborted", b"", time.time() + 9)
        seen.append(await now(journal, call.id))
        times = [before - 1, *(call.updated for call in seen), time.time() + 1]
        assert times == sorted(times)

    # values, life

    @in_store
    async def test_values_of_all_sizes_and_bytes_come_back_as_they_were(self, store: Store) -> None:
        journal, other = await store.worker(), await store.worker()
        large = bytes(range(256)) * 20_000  # 5 MB
        for value in (b"", b"\0", bytes(range(256)), large):
            call = waiting_call(arguments=value, context=value, questions=value)
            await journal.create(call, [step("1", value)], value)
            claim = await other.claim(call.id, 1)
            assert isinstance(claim, Claimed)
            assert (claim.call.arguments, claim.call.context, claim.call.questions) == (value, value, value)
            await other.append(call.id, claim.call.fence, [step("2", value)])
            await other.settle(
                call.id,
                claim.call.fence,
                1,
                value,
                Parking(status="waiting", questions=value),
                [step("3", value)],
            )
            loaded = await journal.load(call.id)
            assert loaded is not None
            assert loaded[0].questions == value
            assert [entry.value for entry in loaded[1]] == [value] * 3
            assert await journal.wait(call.id, 0, 0) == value
            assert await journal.claim(call.id, 1) == Settled(value)

    @in_store
    async def test_names_may_be_of_any_script(self, store: Store) -> None:
        journal = await store.worker()
        name = "кофе.заказать ☕ 'quoted\" %s {} \\ \u202e"
        call = waiting_call(id="ід-☕", name=name, principal="Ærøskøbing 🦊", idempotency_key="ключ'")
        await journal.create(call, [Entry("1/☕", name, "done", b"")], b"asked")
        loaded = await journal.load(call.id)
        assert loaded is not None
        assert timeless(loaded[0]) == call
        assert list(loaded[1]) == [Entry("1/☕", name, "done", b"")]
        assert timeless(await journal.find(call.principal, "ключ'")) == call
        page = await journal.list(name=name, principal=call.principal, limit=1)
        assert [timeless(found) for found in page.calls] == [call]
        assert await journal.secret(name, b"s") == b"s"

    @in_store
    async def test_times_are_kept_to_the_last_bit(self, store: Store) -> None:
        journal = await store.worker()
        call = waiting_call(created=1760000000.1234567, expires=1760000000.1 + 1e9, wake=0.1 + 0.2)
        await journal.create(call, (), b"asked")
        assert timeless(await now(journal, call.id)) == call

    @in_store
    async def test_workers_have_names_of_their_own(self, store: Store) -> None:
        workers = [await store.worker() for _ in range(4)]
        assert len({worker.worker for worker in workers}) == 4

    @in_store
    async def test_what_was_written_outlives_all_workers(self, store: Store) -> None:
        journal, dead = await store.worker(), await store.worker()
        call_id = await parked(journal)
        before = await written(journal, call_id)
        await journal.close()
        await store.die(dead)
        later = await store.worker()
        assert await written(later, call_id) == before
        await claimed(later, call_id, 1)

    @in_store
    async def test_a_closed_journal_says_so_and_closes_twice(self, store: Store) -> None:
        journal = await store.worker()
        await journal.close()
        await journal.close()
        with pytest.raises(JournalError):
            await journal.load("x")
        with pytest.raises(JournalError):
            await journal.create(new_call())

    # --- what callers hold --------------------------------------------------------------------

    @in_store
    async def test_a_principal_holds_what_its_calls_take_until_they_are_forgotten(self, store: Store) -> None:
        journal = await store.worker()
        assert await journal.held("ann") == 0
        call = waiting_call(principal="ann", arguments=b"x" * 100_000)
        await journal.create(call, [step("1", b"x" * 50_000)], b"x" * 25_000)
        await journal.create(waiting_call(), (), b"x" * 100_000)
        asked = await journal.held("ann")
        assert 175_000 < asked < 180_000
        assert await journal.held("bob") == 0
        fence = (await claimed(journal, call.id, 1)).fence
        await journal.append(call.id, fence, [step("2", b"x" * 10_000)])
        over = replace(COMPLETED, expires=time.time() - 1)
        await journal.settle(call.id, fence, 1, b"x" * 20_000, over, [step("3", b"x" * 30_000)])
        assert 60_000 <= await journal.held("ann") - asked < 64_000
        await journal.sweep()
        assert await journal.held("ann") == 0

    @in_store
    async def test_a_call_that_holds_nothing_counts_too(self, store: Store) -> None:
        journal = await store.worker()
        for _ in range(3):
            await journal.create(new_call(principal="ann", arguments=b""))
        assert await journal.held("ann") > 1500

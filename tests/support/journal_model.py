"""Any sequence of operations does on a store what it does in memory.

Three workers act on a handful of calls, conversations and runs, in an order that hypothesis makes up; they die,
or stand still until they count as gone and then go on. Every answer, and everything that is kept after each
operation, must be the same as that of a `MemoryJournal` that went through the same. A backend plugs in as for
`journal_contract`.
"""

from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, to_builtins
from msgspec.structs import astuple, replace

from driving import drive
from journal_contract import Store
from midcall.journal.contract import (
    Addition,
    Busy,
    CallRecord,
    CallWrite,
    Claimed,
    Conflict,
    ConversationRecord,
    Conversations,
    Creation,
    Entry,
    Gone,
    Journal,
    JournalError,
    Page,
    Parking,
    Settled,
    Settlement,
    Status,
    Taking,
)
from midcall.journal.memory import MemoryJournal
from midcall.journal.state import MOVES
from midcall.journal.state import Operation as StateOperation

WORKERS, CALLS, TALKS = 3, 4, 3
LONG_AGO, FAR_AWAY = 1000.0, 1e11

workers = st.integers(0, WORKERS - 1)
calls = st.integers(0, CALLS - 1)
offsets = st.sampled_from([0, 0, 0, -1, 1])
keys = st.sampled_from([None, None, "k", "l"])
principals = st.sampled_from([None, "ann"])
wakes = st.sampled_from([None, None, LONG_AGO, FAR_AWAY])
expiries = st.sampled_from([FAR_AWAY, FAR_AWAY, FAR_AWAY, LONG_AGO])
values = st.binary(max_size=3)
entries = st.lists(
    st.builds(Entry, st.sampled_from(["1", "2/1"]), st.just("f"), st.sampled_from(["begun", "done"]), values),
    max_size=2,
)
parkings = st.builds(
    Parking,
    status=st.sampled_from(["waiting", "waiting", "waiting", "completed", "failed"]),
    wake=wakes,
    questions=values,
    expires=st.none() | expiries,
    held=st.booleans(),
).map(lambda one: one if one.status == "waiting" else replace(one, held=False))

changes = st.builds(
    Parking,
    status=st.just("waiting"),
    wake=wakes,
    questions=values,
    expires=st.none() | expiries,
    held=st.booleans(),
)


class Create(Struct, frozen=True):
    worker: int
    call: int
    outcome: bytes | None
    status: Status
    key: str | None
    principal: str | None
    wake: float | None
    expires: float
    entries: list[Entry]


class TakeSegment(Struct, frozen=True):
    worker: int
    call: int
    offset: int
    """From the present segment."""
    answers: list[Entry]
    parked: Literal["", "now", "before"]
    """Whether the worker has the call at hand: as it stands, or as it stood at an earlier claim."""


class Append(Struct, frozen=True):
    worker: int
    call: int
    late: bool
    """By the worker that stood still last, if one did."""
    held: bool
    """With the fence that the worker was given, not the present one."""
    entries: list[Entry]
    parking: Parking | None


class Settle(Struct, frozen=True):
    worker: int
    call: int
    late: bool
    held: bool
    offset: int
    outcome: bytes
    parking: Parking
    entries: list[Entry]


class Release(Struct, frozen=True):
    worker: int
    call: int
    late: bool
    held: bool
    diverged: bool


class End(Struct, frozen=True):
    worker: int
    call: int
    expires: float


class Sweep(Struct, frozen=True):
    worker: int


class Look(Struct, frozen=True):
    worker: int
    status: list[Status]
    principal: str | None
    limit: int


class Save(Struct, frozen=True):
    worker: int
    talk: int
    principal: str | None
    offset: int
    """From the version that is next."""
    body: bytes
    waiting: bool


class Delete(Struct, frozen=True):
    worker: int
    talk: int
    principal: str | None


class Restore(Struct, frozen=True):
    """A conversation comes from another store."""

    worker: int
    talk: int
    principal: str | None
    version: int
    body: bytes


class BeginRun(Struct, frozen=True):
    worker: int
    run: int
    talk: int
    principal: str | None


class AppendLines(Struct, frozen=True):
    worker: int
    run: int
    offset: int
    """From the line that is next."""
    lines: list[bytes]
    ended: bool


class StopRun(Struct, frozen=True):
    worker: int
    run: int


class Lose(Struct, frozen=True):
    """The worker dies, or stands still; another one takes its place."""

    worker: int
    freeze: bool


Talking = Save | Delete | Restore | BeginRun | AppendLines | StopRun
Operation = Create | TakeSegment | Append | Settle | Release | End | Sweep | Look | Lose | Talking
creations = st.builds(
    Create,
    workers,
    calls,
    st.none() | values,
    st.sampled_from(["waiting", "waiting", "completed"]),
    keys,
    principals,
    wakes,
    expiries,
    entries,
)
claims = st.builds(
    TakeSegment, workers, calls, offsets, entries, st.sampled_from(["", "now", "now", "before"])
)
talks = st.integers(0, TALKS - 1)
versions = st.sampled_from([0, 0, 0, 0, -1, 1])
lines = st.lists(st.sampled_from([b"a", b"b"]), max_size=3)
saves = st.builds(Save, workers, talks, principals, versions, values, st.booleans())
additions = st.builds(
    AppendLines, workers, talks, st.sampled_from([0, 0, 0, 0, -1, -2, 1]), lines, st.booleans()
)
talking: st.SearchStrategy[Talking] = st.one_of(
    saves,
    saves,
    st.builds(Delete, workers, talks, principals),
    st.builds(Restore, workers, talks, principals, st.integers(1, 5), values),
    st.builds(BeginRun, workers, talks, talks, principals),
    st.builds(BeginRun, workers, talks, talks, principals),
    additions,
    additions,
    st.builds(StopRun, workers, talks),
)
mostly_not = st.sampled_from([False, False, False, True])
mostly = st.sampled_from([True, True, True, False])
operations: st.SearchStrategy[Operation] = st.one_of(
    creations,
    creations,
    claims,
    claims,
    claims,
    st.builds(Append, workers, calls, mostly_not, mostly, entries, st.none()),
    st.builds(Append, workers, calls, mostly_not, mostly, entries, changes),
    st.builds(Settle, workers, calls, mostly_not, mostly, offsets, values, parkings, entries),
    st.builds(Settle, workers, calls, mostly_not, mostly, offsets, values, parkings, entries),
    st.builds(Release, workers, calls, mostly_not, mostly, st.booleans()),
    st.builds(End, workers, calls, expiries),
    st.builds(Sweep, workers),
    st.builds(
        Look,
        workers,
        st.lists(st.sampled_from(["waiting", "running", "completed", "diverged"]), max_size=2, unique=True),
        principals,
        st.integers(1, 3),
    ),
    st.builds(Lose, workers, st.booleans()),
    talking,
    talking,
    talking,
    talking,
)


class Side:
    """One of the two that are compared: its workers, and what they were told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.workers: list[Journal] = []
        self.late: Journal | None = None
        self.names: dict[str | None, str | None] = {None: None}
        self.fences: dict[tuple[str, str], int] = {}
        self.writes = 0
        self.before: dict[int, CallRecord] = {}
        """Calls as they stood when they were claimed, or could have been."""

    async def start(self) -> None:
        for _ in range(WORKERS):
            self.workers.append(await self._new_worker())

    async def _new_worker(self) -> Journal:
        worker = await self.store.worker()
        self.names[worker.worker] = f"worker {len(self.names)}"
        return worker

    async def do(self, operation: Operation) -> Any:
        """Do it, and give what came of it in a form that both sides share."""
        try:
            return self._seen(await self._do(operation))
        except (JournalError, Conflict) as error:
            return type(error).__name__

    async def _write(self, worker: Journal, write: CallWrite[Any]) -> Any:
        """Write something of a call: each second time in one with a conversation."""
        self.writes += 1
        if self.writes % 2:
            return await getattr(worker, write.operation)(*astuple(write))
        talk = ConversationRecord(id=f"with {self.writes}", principal="bob", version=1, updated=0.0)
        came = (await worker.conversations.save(talk, call=write)).call
        assert await worker.conversations.load(talk.id, talk.principal) == talk
        if isinstance(came, JournalError):
            raise came
        return came

    async def _do(self, operation: Operation) -> Any:
        worker = self.workers[operation.worker]
        match operation:
            case Create(_, call, outcome, status, key, principal, wake, expires, given):
                record = CallRecord(
                    id=f"call {call}",
                    name="m",
                    arguments=b"a",
                    principal=principal,
                    idempotency_key=key,
                    created=float(call),
                    expires=expires,
                    status="running" if outcome is None else status,
                    segment=0 if outcome is None else 1,
                    wake=wake,
                )
                self.fences[worker.worker, record.id] = 0
                return await self._write(worker, Creation(record, given, outcome))
            case TakeSegment(_, call, offset, answers, parked):
                segment = await self._segment(call) + offset
                at_hand = await self._at_hand(worker, call, parked)
                taking = Taking(f"call {call}", segment, answers, parked=at_hand, sync=offset != 0)
                claim = await self._write(worker, taking)
                if isinstance(claim, Claimed):
                    self.fences[worker.worker, claim.call.id] = claim.call.fence
                    if claim.entries is None:
                        assert at_hand is not None
                        _, written = await worker.load(claim.call.id) or (None, ())
                        claim = Claimed(claim.call, written)
                return claim
            case Append(_, call, late, held, given, parking):
                worker = self._actor(worker, late)
                fence = await self._fence(worker, call, held)
                return await self._write(worker, Addition(f"call {call}", fence, given, parking))
            case Settle(_, call, late, held, offset, outcome, parking, given):
                worker = self._actor(worker, late)
                fence = await self._fence(worker, call, held)
                segment = await self._segment(call) + offset
                settlement = Settlement(f"call {call}", fence, segment, outcome, parking, given)
                return await self._write(worker, settlement)
            case Release(_, call, late, held, diverged):
                worker = self._actor(worker, late)
                fence = await self._fence(worker, call, held)
                return await worker.release(f"call {call}", fence, diverged=diverged)
            case End(_, call, expires):
                return await worker.end(f"call {call}", "aborted", b"ended", expires)
            case Sweep():
                return await worker.sweep()
            case Look(_, status, principal, limit):
                return await self._look(worker, status, principal, limit)
            case Save(_, talk, principal, offset, body, waiting):
                kept = await worker.conversations.load(f"talk {talk}", principal)
                version = (0 if kept is None else kept.version) + 1 + offset
                record = _talk(talk, principal, version, body, waiting)
                return (await worker.conversations.save(record)).ended
            case Delete(_, talk, principal):
                return await worker.conversations.delete(f"talk {talk}", principal)
            case Restore(_, talk, principal, version, body):
                return await worker.conversations.restore(_talk(talk, principal, version, body))
            case BeginRun(_, run, talk, principal):
                return await worker.conversations.begin_run(f"run {run}", f"talk {talk}", principal)
            case AppendLines(_, run, offset, given, ended):
                state = await worker.conversations.run(f"run {run}")
                first = max((0 if state is None else state.lines) + 1 + offset, 1)
                return await worker.conversations.append(f"run {run}", first, given, ended=ended)
            case StopRun(_, run):
                return await worker.conversations.stop_run(f"run {run}")
            case Lose(number, freeze):
                if freeze:
                    await self.store.freeze(worker)
                    self.late = worker
                else:
                    await self.store.die(worker)
                self.workers[number] = await self._new_worker()
        return None

    async def _look(
        self, worker: Journal, status: list[Status], principal: str | None, limit: int
    ) -> list[Any]:
        seen: list[Any] = []
        page = Page()
        while not seen or page.next:
            page = await worker.list(status=status, principal=principal, limit=limit, after=page.next)
            seen.append(page)
        due = {call.id for call in await worker.due()}
        found = [await worker.find(principal, key) for key in ("k", "l")]
        return [seen, due, found, await worker.count()]

    async def state(self) -> dict[str, Any]:
        """All calls with their entries and outcomes, conversations and runs."""
        worker = self.workers[0]
        found: dict[str, Any] = await self._talks(worker.conversations)
        for call in range(CALLS):
            exported = await worker.export(f"call {call}")
            loaded = await worker.load(f"call {call}")
            assert (exported is None) == (loaded is None)
            if exported is not None and loaded is not None:
                found[f"call {call}"] = (
                    self._seen(loaded[0]),
                    list(loaded[1]),
                    exported["entries"],
                    exported["outcomes"],
                )
        return found

    async def _talks(self, store: Conversations) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for principal in (None, "ann"):
            found[f"talks of {principal}"] = [
                *await store.list(principal),
                *[await store.load(f"talk {talk}", principal) for talk in range(TALKS)],
            ]
        found["held"] = (await store.held("ann"))[0]
        every: list[ConversationRecord] = []
        after: str | None = None
        while True:
            page = await store.every(after, limit=2)
            every += page.conversations
            after = page.next
            if after is None:
                break
        found["every talk"] = sorted(map(repr, every))  # in an order of the store's own
        for run in range(TALKS):
            state = await store.run(f"run {run}")
            found[f"run {run}"] = (
                state and replace(state, seen=0.0, now=0.0),
                [list(await store.lines(f"run {run}", after)) for after in range(4)],
            )
        return found

    def _actor(self, worker: Journal, late: bool) -> Journal:
        return self.late if late and self.late is not None else worker

    async def _segment(self, call: int) -> int:
        loaded = await self.workers[0].load(f"call {call}")
        return loaded[0].segment if loaded else 0

    async def _fence(self, worker: Journal, call: int, held: bool) -> int:
        if held:
            return self.fences.get((worker.worker, f"call {call}"), 0)
        loaded = await self.workers[0].load(f"call {call}")
        return loaded[0].fence if loaded else 0

    async def _at_hand(self, worker: Journal, call: int, parked: str) -> CallRecord | None:
        loaded = await worker.load(f"call {call}")
        if loaded is None or not parked:
            return None
        now = loaded[0]
        before = self.before.get(call, now)
        self.before[call] = now
        older = (before.segment, before.fence) != (now.segment, now.fence)
        return before if parked == "before" and older else now

    def _seen(self, given: Any) -> Any:
        """Without what is different for good reason: the names of workers, and the present time."""
        match given:
            case CallRecord():
                expires = -1.0 if given.status in ("expired", "poisoned") else given.expires
                return to_builtins(
                    replace(given, owner=self.names[given.owner], expires=expires, updated=0.0)
                )
            case Claimed(call, entries):
                return "claimed", self._seen(call), list(entries)
            case Busy(call):
                return "busy", self._seen(call)
            case Page(calls, next):
                return [self._seen(call) for call in calls], next is None
            case list():
                return [self._seen(one) for one in given]
            case None | bool() | int() | set() | dict() | Settled() | Gone():
                return given
            case _:
                raise AssertionError(given)


def _talk(
    number: int, principal: str | None, version: int, body: bytes, waiting: bool = False
) -> ConversationRecord:
    return ConversationRecord(
        id=f"talk {number}",
        principal=principal,
        version=version,
        updated=float(10 * number + version),
        waiting=waiting,
        run="r" if waiting else None,
        title=body.hex(),
        body=body,
    )


class MemoryStore:
    """The model."""

    def __init__(self) -> None:
        self.origin = MemoryJournal()

    async def worker(self) -> MemoryJournal:
        journal = MemoryJournal(shared=self.origin)
        await journal.open()
        return journal

    async def die(self, worker: Journal) -> None:
        assert isinstance(worker, MemoryJournal)
        worker.die()

    async def freeze(self, worker: Journal) -> None:
        await self.die(worker)


async def compare(store: Store, sequence: list[Operation]) -> None:
    """Do the same on a store and on the model."""
    sides = Side(MemoryStore()), Side(store)
    for side in sides:
        await side.start()
    before: dict[str, Status] = {}
    for number, operation in enumerate(sequence):
        expected, got = [await side.do(operation) for side in sides]
        assert got == expected, f"operation {number}: {operation}"
        expected, got = [await side.state() for side in sides]
        assert got == expected, f"after operation {number}: {operation}"
        after = {name: call[0]["status"] for name, call in got.items() if name.startswith("call ")}
        _check_moves(operation, before, after)
        before = after


MOVED_BY: dict[type[Struct], StateOperation] = {
    Create: "create",
    TakeSegment: "claim",
    Settle: "settle",
    Release: "release",
    End: "end",
    Sweep: "sweep",
}


def _check_moves(operation: Operation, before: dict[str, Status], after: dict[str, Status]) -> None:
    """Calls move only as the table of states says; only a sweep forgets them."""
    for name in before.keys() | after.keys():
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        by = MOVED_BY[type(operation)]
        if now is None:
            assert by == "sweep", (name, was)
        else:
            assert now in MOVES[by].get(was, ()), (by, was, now)


class JournalModel:
    """The test. A subclass says what the store is."""

    examples = 60

    def store(self) -> AbstractAsyncContextManager[Store]:
        raise NotImplementedError

    def test_any_sequence_of_operations_does_what_it_does_in_memory(self) -> None:
        @settings(max_examples=self.examples)
        @given(st.lists(operations, min_size=5, max_size=40))
        def check(sequence: list[Operation]) -> None:
            async def main() -> None:
                async with self.store() as store:
                    await compare(store, sequence)

            drive(main())

        check()

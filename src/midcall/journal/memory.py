"""The journal in memory: for tests, and for a server whose waiting calls may end with its process.

It is also the contract in its shortest form: the other stores are tested against it. Nothing here awaits
before it has changed what it changes, so each method is atomic without a lock. Several workers may share
one memory (`MemoryJournal(shared=other)`), as several processes share a database.

What there is too much of is given up: the principal who has most loses the call, the conversation or the run
that it has not come back to for longest. So nobody can push out what others wait for, or what theirs came to.
"""

import asyncio
import heapq
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import astuple, replace

from midcall.calls import Owned
from midcall.journal.contract import (
    CALL_SIZE,
    ENDED,
    KEEP,
    KEEP_RUNS,
    LISTED,
    MOST_CLAIMS,
    Busy,
    CallRecord,
    CallWrite,
    Claim,
    Claimed,
    Conflict,
    ConversationPage,
    ConversationRecord,
    Entry,
    Fenced,
    Gone,
    JournalError,
    Notice,
    Page,
    Parking,
    RunEnd,
    RunRecord,
    Saved,
    Settled,
    Status,
    from_export,
    new_lines,
    page_mark,
    page_start,
    to_export,
)
from midcall.journal.memory_trees import KeptTrees, MemoryTrees

T = TypeVar("T")

CALLS = 10_000
"""How many calls may wait, and how many ended ones are kept."""

WAITING_BYTES = 256 * 1024 * 1024
"""How large calls that wait may be, all together."""

BYTES = 64 * 1024 * 1024
"""How large ended calls may be, all together."""

CONVERSATIONS = 10_000
"""How many conversations, and how many runs, are kept; of a person with a name, a tenth."""


@dataclass(slots=True)
class _Kept:
    call: CallRecord
    entries: list[Entry]
    outcomes: dict[int, bytes]
    among: "_StoredCalls | None" = None
    """Where it counts."""

    @property
    def size(self) -> int:
        """What it counts for."""
        size = CALL_SIZE + len(self.call.arguments) + len(self.call.context)
        return (
            size + sum([len(entry.value) for entry in self.entries]) + sum(map(len, self.outcomes.values()))
        )


@dataclass(slots=True)
class _KeptRun:
    conversation_id: str
    principal: str | None
    lines: list[bytes] = field(default_factory=list)
    ended: bool = False
    stop: bool = False
    seen: float = field(default_factory=time.time)


class _StoredCalls:
    """The sizes of calls, by principal and id, in the order in which they were last used."""

    __slots__ = ("_by_principal", "_bytes", "_count", "_most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._by_principal: dict[str | None, dict[str, int]] = {}
        self._count = 0
        self._bytes = 0

    def add(self, call: CallRecord, size: int) -> None:
        self._by_principal.setdefault(call.principal, {})[call.id] = size
        self._count += 1
        self._bytes += size

    def remove(self, call: CallRecord) -> None:
        own = self._by_principal[call.principal]
        self._bytes -= own.pop(call.id)
        self._count -= 1
        if not own:
            del self._by_principal[call.principal]

    @property
    def full(self) -> bool:
        """Whether there are too many, or they are too large."""
        return self._count > CALLS or self._bytes > self._most_bytes

    def coldest(self, used: CallRecord) -> str | None:
        """The longest unused call of whoever has most; never the one that was just used."""
        most = max(self._by_principal.values(), key=len if self._count > CALLS else _size)
        return next((call_id for call_id in most if call_id != used.id), None)


def _size(calls: dict[str, int]) -> int:
    return sum(calls.values())


@dataclass(slots=True)
class _Memory:
    """What the workers share."""

    calls: dict[str, _Kept] = field(default_factory=dict)
    keys: dict[tuple[str | None, str], str] = field(default_factory=dict)
    notices: dict[str, dict[str, Notice | None]] = field(default_factory=dict)
    """By their calls and ids; nothing of those that are told."""
    secrets: dict[str, bytes] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    waiters: dict[tuple[str, int], set[asyncio.Future[bytes]]] = field(default_factory=dict)
    active: _StoredCalls = field(default_factory=lambda: _StoredCalls(WAITING_BYTES))
    ended: _StoredCalls = field(default_factory=lambda: _StoredCalls(BYTES))
    workers: dict[str, "MemoryJournal"] = field(default_factory=dict)
    conversations: Owned[ConversationRecord] = field(default_factory=Owned)
    runs: dict[str, _KeptRun] = field(default_factory=dict)
    owned_runs: Owned[str] = field(default_factory=Owned)
    trees: KeptTrees = field(default_factory=KeptTrees)

    def add(self, kept: _Kept) -> None:
        self.calls[kept.call.id] = kept
        if kept.call.idempotency_key is not None:
            self.keys[kept.call.principal, kept.call.idempotency_key] = kept.call.id
        self.push_out(kept)

    def change(self, kept: _Kept, call: CallRecord) -> None:
        """Put a record in the place of the one before."""
        kept.call = replace(call, updated=time.time())
        self.push_out(kept)

    def push_out(self, used: _Kept) -> None:
        """Forget other calls, if there are too many with this one."""
        if used.among is not None:
            used.among.remove(used.call)
        used.among = self.ended if used.call.status in ENDED else self.active
        used.among.add(used.call, used.size)
        while used.among.full and (call_id := used.among.coldest(used.call)) is not None:
            self.forget(self.calls[call_id].call)

    def forget(self, call: CallRecord) -> None:
        among = self.calls[call.id].among
        if among is not None:
            among.remove(call)
        del self.calls[call.id]
        self.notices.pop(call.id, None)
        if call.idempotency_key is not None:
            del self.keys[call.principal, call.idempotency_key]

    def keyed(self, principal: str | None, idempotency_key: str | None) -> CallRecord | None:
        if idempotency_key is None:
            return None
        call_id = self.keys.get((principal, idempotency_key))
        return None if call_id is None else self.calls[call_id].call

    def add_notices(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            self.notices.setdefault(notice.call_id, {}).setdefault(notice.id, notice)

    def change_notice(self, id: str, how: Callable[[Notice], Notice | None]) -> None:
        for notices in self.notices.values():
            if (notice := notices.get(id)) is not None:
                notices[id] = how(notice)

    def tell(self, call_id: str, segment: int, outcome: bytes) -> None:
        for waiter in self.waiters.pop((call_id, segment), ()):
            if not waiter.done():
                waiter.set_result(outcome)


class MemoryJournal:
    """A worker on a memory: its own, or that of another one."""

    at_once = True

    def __init__(self, shared: "MemoryJournal | None" = None) -> None:
        self.worker = secrets.token_hex(8)
        self._memory: _Memory = shared._memory if shared else _Memory()
        self._open = False
        self.on_post: Callable[[bytes], None] | None = None
        self.conversations = MemoryConversations(self)
        self.trees = MemoryTrees(self)

    async def open(self) -> None:
        self._open = True
        self._memory.alive.add(self.worker)
        self._memory.workers[self.worker] = self

    async def close(self) -> None:
        self._open = False
        self.die()

    def die(self) -> None:
        """For tests: the others see this worker as gone, though it can still try to act."""
        self._memory.alive.discard(self.worker)
        self._memory.workers.pop(self.worker, None)

    async def create(
        self,
        call: CallRecord,
        entries: Sequence[Entry] = (),
        outcome: bytes | None = None,
        notices: Sequence[Notice] = (),
    ) -> CallRecord | None:
        memory = self._use()
        if taken := memory.keyed(call.principal, call.idempotency_key):
            return taken
        if call.id in memory.calls:
            raise JournalError(f"The call {call.id} already exists")
        if outcome is None:
            call = replace(call, status="running", owner=self.worker, claims=1, updated=time.time())
        else:
            call = replace(call, claims=0, updated=time.time())
        memory.add(_Kept(call, list(entries), {} if outcome is None else {0: outcome}))
        memory.add_notices(notices)
        return None

    async def claim(
        self,
        call_id: str,
        segment: int,
        answers: Sequence[Entry] = (),
        fence: int | None = None,
        parked: CallRecord | None = None,
        sync: bool = True,
    ) -> Claim:
        memory = self._use()
        kept = memory.calls.get(call_id)
        if kept is None:
            return Gone()
        call = kept.call
        if segment in kept.outcomes:
            return Settled(kept.outcomes[segment])
        if segment != call.segment or call.status in ENDED:
            return Gone(call.status)
        if call.owner in memory.alive and (call.status == "running" or call.owner != self.worker):
            return Busy(call)
        if fence not in (None, call.fence):
            return Busy(call)
        now = time.time()
        if call.expires <= now:
            memory.change(kept, _given_up(call, "expired", now))
            return Gone("expired")
        if call.claims >= MOST_CLAIMS:
            memory.change(kept, _given_up(call, "poisoned", now))
            return Gone("poisoned")
        call = replace(
            call, status="running", owner=self.worker, fence=call.fence + 1, claims=call.claims + 1
        )
        kept.entries.extend(answers)
        memory.change(kept, call)
        return Claimed(kept.call, tuple(kept.entries))

    async def append(
        self, call_id: str, fence: int, entries: Sequence[Entry], parking: Parking | None = None
    ) -> None:
        kept = self._use().calls.get(call_id)
        if kept is not None and kept.call.status == "waiting" and kept.call.fence == fence:
            kept.entries.extend(entries)  # nobody has claimed it since this worker has let it go
            if parking is not None:
                self._memory.change(kept, self._waits_for(kept.call, parking))
        elif parking is not None:
            raise _fenced(call_id)
        else:
            self._mine(call_id, fence).entries.extend(entries)

    async def settle(
        self,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Sequence[Entry] = (),
    ) -> None:
        kept = self._mine(call_id, fence, segment)
        kept.entries.extend(entries)
        kept.outcomes[segment] = outcome
        call = replace(kept.call, status=parking.status, segment=segment + 1, claims=0)
        self._memory.change(kept, self._waits_for(call, parking))
        self._memory.tell(call_id, segment, outcome)

    async def release(self, call_id: str, fence: int, *, diverged: bool = False) -> None:
        kept = self._mine(call_id, fence)
        status: Status = "diverged" if diverged else "running"
        call = replace(kept.call, status=status, owner=None, claims=kept.call.claims - 1)
        self._memory.change(kept, call)

    async def wait(self, call_id: str, segment: int, seconds: float) -> bytes | None:
        memory = self._use()
        kept = memory.calls.get(call_id)
        if kept is not None and segment in kept.outcomes:
            return kept.outcomes[segment]
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiters = memory.waiters.setdefault((call_id, segment), set())
        waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            return None
        finally:
            waiters.discard(waiter)
            if not waiters and memory.waiters.get((call_id, segment)) is waiters:
                del memory.waiters[call_id, segment]

    async def load(self, call_id: str) -> tuple[CallRecord, Sequence[Entry]] | None:
        kept = self._use().calls.get(call_id)
        return None if kept is None else (kept.call, tuple(kept.entries))

    async def find(self, principal: str | None, idempotency_key: str) -> CallRecord | None:
        return self._use().keyed(principal, idempotency_key)

    async def end(self, call_id: str, status: Status, outcome: bytes, expires: float) -> bool:
        memory = self._use()
        kept = memory.calls.get(call_id)
        if kept is None or kept.call.status in ENDED:
            return False
        segment = kept.call.segment
        kept.outcomes[segment] = outcome
        memory.change(kept, replace(_ended(kept.call, status, expires), segment=segment + 1))
        memory.tell(call_id, segment, outcome)
        return True

    async def due(self, limit: int = 100) -> Sequence[CallRecord]:
        memory = self._use()
        now = time.time()
        calls = [kept.call for kept in memory.calls.values()]
        left = [call for call in calls if call.status == "running" and call.owner not in memory.alive]
        woken = [call for call in calls if call.status == "waiting" and _wake(call) <= now]
        return (left + sorted(woken, key=_wake))[:limit]

    async def sweep(self, limit: int = 1000) -> int:
        memory = self._use()
        now = time.time()
        over = [
            kept
            for kept in memory.calls.values()
            if kept.call.expires <= now and kept.call.status != "running"
        ][:limit]
        for kept in over:
            if kept.call.status in ENDED:
                memory.forget(kept.call)
            else:
                memory.change(kept, _given_up(kept.call, "expired", now))
        gone = [(id, run) for id, run in memory.runs.items() if run.seen < now - KEEP_RUNS]
        for id, run in gone[: limit - len(over)]:
            memory.owned_runs.remove(run.principal, id)
            del memory.runs[id]
        swept = len(over) + len(gone[: limit - len(over)])
        return swept + self.trees.sweep(limit - swept)

    async def list(
        self,
        *,
        status: Sequence[Status] = (),
        principal: str | None = None,
        name: str | None = None,
        addressed: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        before = None if after is None else page_start(after)
        calls = heapq.nlargest(
            limit + 1,
            (
                kept.call
                for kept in self._use().calls.values()
                if (not status or kept.call.status in status)
                and (principal is None or kept.call.principal == principal)
                and (name is None or kept.call.name == name)
                and (kept.call.addressed or not addressed)
                and (before is None or (kept.call.created, kept.call.id) < before)
            ),
            key=lambda call: (call.created, call.id),
        )
        return Page(calls[:limit], page_mark(calls[limit - 1]) if len(calls) > limit else None)

    async def take_notices(self, channel: str, limit: int, seconds: float) -> Sequence[Notice]:
        memory, now = self._use(), time.time()
        every = (one for notices in memory.notices.values() for one in notices.values() if one is not None)
        wanted = (one for one in every if one.due <= now and one.id.startswith(f"{channel}:"))
        due = sorted(wanted, key=lambda one: one.due)[:limit]
        taken = [replace(one, due=now + seconds, tries=one.tries + 1) for one in due]
        for one in taken:
            memory.notices[one.call_id][one.id] = one
        return taken

    async def notice_told(self, id: str) -> None:
        self._use().change_notice(id, lambda _: None)

    async def postpone_notice(self, id: str, seconds: float) -> None:
        self._use().change_notice(id, lambda one: replace(one, due=time.time() + seconds))

    async def count(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for kept in self._use().calls.values():
            counts[kept.call.status] = counts.get(kept.call.status, 0) + 1
        return counts

    async def probe(self) -> None:
        self._use()

    async def held(self, principal: str) -> int:
        own = (kept for kept in self._use().calls.values() if kept.call.principal == principal)
        return sum(kept.size for kept in own)

    async def secret(self, name: str, made: bytes) -> bytes:
        return self._use().secrets.setdefault(name, made)

    async def post(self, worker: str, message: bytes) -> bool:
        other = self._use().workers.get(worker)
        if other is None:
            return False
        if other.on_post is not None:
            asyncio.get_running_loop().call_soon(other.on_post, message)
        return True

    async def export(self, call_id: str) -> dict[str, Any] | None:
        kept = self._use().calls.get(call_id)
        return None if kept is None else to_export(kept.call, kept.entries, kept.outcomes)

    async def restore(self, exported: dict[str, Any]) -> bool:
        memory = self._use()
        call, entries, outcomes = from_export(exported)
        if call.id in memory.calls or memory.keyed(call.principal, call.idempotency_key):
            return False
        memory.add(_Kept(call, entries, outcomes))
        return True

    def _use(self) -> _Memory:
        if not self._open:
            raise JournalError("The journal is not open")
        return self._memory

    def _waits_for(self, call: CallRecord, parking: Parking) -> CallRecord:
        self._memory.add_notices(parking.notices)
        return replace(
            call,
            wake=parking.wake,
            questions=parking.questions,
            expires=call.expires if parking.expires is None else parking.expires,
            owner=self.worker if parking.held else None,
            addressed=parking.addressed,
        )

    def _mine(self, call_id: str, fence: int, segment: int | None = None) -> _Kept:
        kept = self._use().calls.get(call_id)
        if (
            kept is None
            or kept.call.status != "running"
            or kept.call.owner != self.worker
            or kept.call.fence != fence
            or segment not in (None, kept.call.segment)
        ):
            raise _fenced(call_id)
        return kept


class MemoryConversations:
    """The conversations of a memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self._use = journal._use

    async def load(self, id: str, principal: str | None) -> ConversationRecord | None:
        return self._use().conversations.get(principal, id)

    async def save(
        self,
        record: ConversationRecord,
        end: RunEnd | None = None,
        begins: str | None = None,
        call: CallWrite[T] | None = None,
    ) -> Saved[T]:
        owned = self._use().conversations
        kept = owned.get(record.principal, record.id)
        if (0 if kept is None else kept.version) != record.version - 1:
            raise Conflict("The conversation has changed in the meantime")
        if begins is not None:
            await self.begin_run(begins, record.id, record.principal)
        self._keep(record)
        came: T | JournalError | None = None
        try:
            if call is not None:
                write = getattr(self._journal, call.operation)
                came = await write(*astuple(call))  # in memory, nothing is waited for
        except JournalError as error:
            came = error
        try:
            if end is not None:
                self._append(end.run, end.first, end.lines, ended=True)
        except Conflict:
            return Saved(ended=False, call=came)
        return Saved(ended=True, call=came)

    def _keep(self, record: ConversationRecord) -> None:
        owned = self._use().conversations
        owned.remove(record.principal, record.id)
        owned.make_room(record.principal, CONVERSATIONS)
        owned.use(record.principal, record.id, record)

    async def delete(self, id: str, principal: str | None) -> bool:
        memory = self._use()
        known = memory.conversations.get(principal, id) is not None
        memory.conversations.remove(principal, id)
        for run in list(memory.owned_runs.of(principal)):
            if memory.runs[run].conversation_id == id:
                memory.owned_runs.remove(principal, run)
                del memory.runs[run]
        return known

    async def list(self, principal: str | None, limit: int = LISTED) -> Sequence[ConversationRecord]:
        newest = heapq.nlargest(limit, self._use().conversations.of(principal), key=lambda one: one.updated)
        return [replace(one, body=b"") for one in newest]

    async def held(self, principal: str) -> tuple[int, int]:
        own = self._use().conversations.of(principal)
        return len(own), sum(len(one.body) for one in own)

    async def every(self, after: str | None = None, limit: int = 100) -> ConversationPage:
        begin = int(after or 0)
        some = list(itertools.islice(self._use().conversations, begin, begin + limit + 1))
        return ConversationPage(some[:limit], str(begin + limit) if len(some) > limit else None)

    async def restore(self, record: ConversationRecord) -> bool:
        if await self.load(record.id, record.principal) is not None:
            return False
        self._keep(record)
        return True

    async def begin_run(self, run: str, conversation_id: str, principal: str | None) -> None:
        memory = self._use()
        if run not in memory.runs:
            for oldest in memory.owned_runs.make_room(principal, CONVERSATIONS):
                del memory.runs[oldest]
            memory.owned_runs.use(principal, run, run)
            memory.runs[run] = _KeptRun(conversation_id, principal)

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        return self._append(run, first, lines, ended=ended)

    def _append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        kept = self._use().runs.get(run)
        if kept is None:
            return False
        if lines and len(kept.lines) < first - 1:
            raise Conflict("The run has fewer lines")
        kept.lines.extend(new_lines(kept.lines[first - 1 : first - 1 + len(lines)], lines))
        kept.ended, kept.seen = kept.ended or ended, time.time()
        return kept.stop

    async def stop_run(self, run: str) -> None:
        if run in self._use().runs:
            self._use().runs[run].stop = True

    async def run(self, run: str) -> RunRecord | None:
        kept = self._use().runs.get(run)
        if kept is None:
            return None
        return RunRecord(
            run, kept.conversation_id, kept.principal, len(kept.lines), kept.ended, kept.seen, time.time()
        )

    async def lines(self, run: str, after: int) -> Sequence[bytes]:
        kept = self._use().runs.get(run)
        return [] if kept is None else kept.lines[after:]


def _fenced(call_id: str) -> Fenced:
    return Fenced(f"This worker does not run the call {call_id} any more")


def _wake(call: CallRecord) -> float:
    return float("inf") if call.wake is None else call.wake


def _ended(call: CallRecord, status: Status, expires: float) -> CallRecord:
    """Nobody goes on with it: also its worker is fenced off."""
    return replace(
        call,
        status=status,
        expires=expires,
        fence=call.fence + 1,
        owner=None,
        wake=None,
        questions=b"",
        addressed=False,
    )


def _given_up(call: CallRecord, status: Status, now: float) -> CallRecord:
    return _ended(call, status, now + KEEP)

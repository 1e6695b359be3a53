"""The journal in PostgreSQL: for many workers, on one machine or on several.

PostgreSQL does the coordination. Claims are compare-and-set on a row; an advisory lock says that a worker
lives, and `NOTIFY` that a segment has come to its outcome (`postgres_line`); what many calls ask for at the
same time is one statement (`postgres_queue`), so that they share a round trip and a commit. If the database
goes away, everything waits for it for a while, and fails clearly after that (`postgres_reach`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from midcall.journal.contract import (
    CallRecord,
    Claim,
    Claimed,
    Entry,
    JournalError,
    Page,
    Parking,
    Status,
    from_export,
    is_worker_name,
    to_export,
)
from midcall.journal.postgres_calls import Calls
from midcall.journal.postgres_line import Line, worker_name
from midcall.journal.postgres_posts import Posts
from midcall.journal.postgres_queue import Queue
from midcall.journal.postgres_reach import Reach, Unreachable
from midcall.journal.postgres_rows import Addition, Creation, Settlement, Taking
from midcall.journal.postgres_schema import check_name, migrate
from midcall.journal.postgres_sql import Statements
from midcall.journal.seal import KeyRing
from midcall.journal.values import Values

if TYPE_CHECKING:
    from midcall.journal.postgres_reach import Connection

T = TypeVar("T")
Ask = TypeVar("Ask")
Answer = TypeVar("Answer")

LEASE = 15.0
"""A worker that runs something and has not stirred for so many seconds counts as gone."""

PATIENCE = 5.0
"""Seconds that everything waits for a database that is away."""

LOOK = 2.0
"""Who waits for an outcome looks for it so often, should a notice be lost."""


class PostgresJournal:
    """A worker on a schema of a PostgreSQL database.

    Behind a pooler that deals out transactions, `direct` is the address of the server itself, for the one
    session that must be the worker's own; all else goes through `dsn`. With `seal`, what is not encrypted is
    refused, unless `plain_too` (see `values`).
    """

    def __init__(
        self,
        dsn: str,
        *,
        direct: str | None = None,
        schema: str = "midcall",
        seal: KeyRing | None = None,
        plain_too: bool = False,
        lease: float = LEASE,
        patience: float = PATIENCE,
        connections: int = 8,
    ) -> None:
        check_name(schema)
        self.address = dsn
        """Where the database is."""
        self.pooled = direct is not None
        """Whether there is a pooler in between that deals out transactions."""
        self.worker = worker_name()
        self.on_post: Callable[[bytes], None] | None = None
        sql, values = Statements(schema, lease), Values(seal, plain_too=plain_too)
        self._reach = Reach(dsn, connections=connections, patience=patience, pooled=self.pooled)
        self._line = Line(
            self.worker,
            direct or dsn,
            sql,
            lease,
            prepare=lambda session: migrate(session, schema),
            busy=lambda: bool(self._calls.running),
            heard=self._on_heard,
            posted=self._on_posted,
            renamed=self._on_renamed,
        )
        self._patience = patience
        self._calls = Calls(sql, values, self._line)
        self._posts = Posts(self._reach, sql, values, self._line)
        self._waiters: dict[str, set[_Waiter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    # --- life --------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._is_open:
            return
        await self._reach.open()
        try:
            await self._line.open(self._patience)
            await self._reach.run(lambda connection, _: self._calls.check_sealed(connection))
        except BaseException:
            await self._line.close()
            await self._reach.close()
            raise
        self._creations = self._queue(self._calls.create)
        self._claims: Queue[Taking, Claim] = self._queue(self._calls.claim)
        self._additions = self._queue(self._calls.append)
        self._settlements = self._queue(self._calls.settle)
        self._letters = self._queue(self._posts.send)
        self._spawn(self._posts.deliver(self._on_post))
        self._spawn(self._line.keep())
        self._is_open = True

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._on_heard(None)  # who waits need not wait any longer
        await self._line.close()
        await self._reach.close()

    # --- writing -----------------------------------------------------------------------------

    async def create(
        self, call: CallRecord, entries: Sequence[Entry] = (), outcome: bytes | None = None
    ) -> CallRecord | None:
        async def undo(taken: CallRecord | None) -> None:
            if taken is None:
                await self._uncreate(call)

        self._check()
        size = len(call.arguments) + len(call.context) + _size(entries) + len(outcome or b"")
        creation = Creation(call, entries, outcome)
        if outcome is not None:
            return await self._creations.ask(call.id, creation, size)
        try:
            return await self._creations.ask(call.id, creation, size, undo)
        except Unreachable as error:
            if error.maybe:
                self._spawn(self._until_done(lambda: self._uncreate(call)))
            raise

    async def claim(
        self, call_id: str, segment: int, answers: Sequence[Entry] = (), fence: int | None = None
    ) -> Claim:
        async def undo(claim: Claim) -> None:
            if isinstance(claim, Claimed):
                await self._unclaim(call_id, segment, claim.call.fence)

        self._check()
        try:
            taking = Taking(call_id, segment, answers, fence)
            return await self._claims.ask(call_id, taking, _size(answers), undo)
        except Unreachable as error:
            if error.maybe:
                self._spawn(self._until_done(lambda: self._unclaim(call_id, segment, None)))
            raise

    async def append(
        self, call_id: str, fence: int, entries: Sequence[Entry], parking: Parking | None = None
    ) -> None:
        self._check()
        await self._additions.ask(call_id, Addition(call_id, fence, entries, parking), _size(entries))

    async def settle(
        self,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Sequence[Entry] = (),
    ) -> None:
        self._check()
        settlement = Settlement(call_id, fence, segment, outcome, parking, entries)
        await self._settlements.ask(call_id, settlement, len(outcome) + _size(entries))
        self._tell(call_id, segment, outcome)

    async def release(self, call_id: str, fence: int, *, diverged: bool = False) -> None:
        await self._run(
            lambda connection, again: self._calls.release(connection, call_id, fence, diverged, again)
        )

    async def end(self, call_id: str, status: Status, outcome: bytes, expires: float) -> bool:
        segment = await self._run(
            lambda connection, _: self._calls.end(connection, call_id, status, outcome, expires)
        )
        if segment is not None:
            self._tell(call_id, segment, outcome)
        return segment is not None

    async def sweep(self, limit: int = 1000) -> int:
        return await self._run(lambda connection, _: self._calls.sweep(connection, limit))

    async def probe(self) -> None:
        await self._run(lambda connection, _: self._calls.probe(connection))

    async def secret(self, name: str, made: bytes) -> bytes:
        while True:
            kept = await self._run(lambda connection, _: self._calls.secret(connection, name, made))
            if kept is not None:
                return kept

    async def post(self, worker: str, message: bytes) -> bool:
        self._check()
        if not is_worker_name(worker):
            return False
        letter = self._posts.letter(worker, message)
        return await self._letters.ask(f"{letter.serial:020}", letter, len(message))

    async def restore(self, exported: dict[str, Any]) -> bool:
        call, entries, outcomes = from_export(exported)
        return await self._run(lambda connection, _: self._calls.restore(connection, call, entries, outcomes))

    # --- reading -----------------------------------------------------------------------------

    async def load(self, call_id: str) -> tuple[CallRecord, Sequence[Entry]] | None:
        return await self._run(lambda connection, _: self._calls.load(connection, call_id))

    async def find(self, principal: str | None, idempotency_key: str) -> CallRecord | None:
        return await self._run(lambda connection, _: self._calls.find(connection, principal, idempotency_key))

    async def due(self, limit: int = 100) -> Sequence[CallRecord]:
        return await self._run(lambda connection, _: self._calls.due(connection, limit))

    async def living(self, workers: Sequence[str]) -> set[str]:
        """Which of these workers have not gone, as far as can be told."""
        return await self._run(lambda connection, _: self._calls.living(connection, workers))

    async def list(
        self,
        *,
        status: Sequence[Status] = (),
        principal: str | None = None,
        name: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        return await self._run(
            lambda connection, _: self._calls.list(connection, status, principal, name, after, limit)
        )

    async def count(self) -> dict[str, int]:
        return await self._run(lambda connection, _: self._calls.count(connection))

    async def held(self, principal: str) -> int:
        return await self._run(lambda connection, _: self._calls.held(connection, principal))

    async def export(self, call_id: str) -> dict[str, Any] | None:
        async def export(connection: "Connection", _: bool) -> dict[str, Any] | None:
            loaded = await self._calls.load(connection, call_id)
            if loaded is None:
                return None
            return to_export(*loaded, await self._calls.outcomes(connection, call_id))

        return await self._run(export)

    # --- waiting -----------------------------------------------------------------------------

    async def wait(self, call_id: str, segment: int, seconds: float) -> bytes | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        waiter = _Waiter(segment)
        self._waiters.setdefault(call_id, set()).add(waiter)
        try:
            while True:
                waiter.heard.clear()
                outcome, told = await self._run(
                    lambda connection, _: self._calls.outcome(connection, call_id, segment)
                )
                if outcome is not None:
                    return outcome
                left = until - loop.time()
                if left <= 0:
                    return None
                if not told:
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK)):
                        await waiter.heard.wait()
                if waiter.outcome is not None or loop.time() >= until or not self._is_open:
                    return waiter.outcome
        finally:
            waiters = self._waiters[call_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[call_id]

    def _tell(self, call_id: str, segment: int, outcome: bytes) -> None:
        for waiter in self._waiters.get(call_id, ()):
            if waiter.segment == segment:
                waiter.outcome = outcome
                waiter.heard.set()

    def _on_heard(self, call_id: str | None) -> None:
        for heard in self._waiters if call_id is None else (call_id,):
            for waiter in self._waiters.get(heard, ()):
                waiter.heard.set()

    # --- inside ------------------------------------------------------------------------------

    def _on_posted(self) -> None:
        self._posts.arrived()

    def _on_post(self, message: bytes) -> None:
        if self.on_post is not None:
            self.on_post(message)

    def _on_renamed(self, name: str) -> None:
        """Others have cleared this worker away: what it ran is not its own any more."""
        self.worker = name
        self._calls.running.clear()

    async def _uncreate(self, call: CallRecord) -> None:
        self._calls.forget(call.id, call.fence)
        await self._reach.run(lambda connection, _: self._calls.uncreate(connection, call.id))

    async def _unclaim(self, call_id: str, segment: int, fence: int | None) -> None:
        if fence is not None:
            self._calls.forget(call_id, fence)
        elif call_id in self._calls.running:
            return  # it has been claimed again since
        await self._reach.run(lambda connection, _: self._calls.unclaim(connection, call_id, segment, fence))

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        """Put right what was left in doubt when the database went away, once it is back."""
        while True:
            with contextlib.suppress(JournalError):
                return await work()
            await asyncio.sleep(1)

    def _queue(
        self, work: "Callable[[Connection, Sequence[Ask], bool], Awaitable[Sequence[Answer | JournalError]]]"
    ) -> "Queue[Ask, Answer]":
        async def send(asked: Sequence[Ask]) -> Sequence[Answer | JournalError]:
            return await self._reach.run(lambda connection, again: work(connection, asked, again))

        queue: Queue[Ask, Answer] = Queue(send)
        self._spawn(queue.run())
        return queue

    async def _run(self, work: "Callable[[Connection, bool], Awaitable[T]]") -> T:
        self._check()
        return await self._reach.run(work)

    def _check(self) -> None:
        if not self._is_open:
            raise JournalError("The journal is not open")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Waiter:
    __slots__ = ("heard", "outcome", "segment")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.heard = asyncio.Event()
        self.outcome: bytes | None = None


def _size(entries: Sequence[Entry]) -> int:
    return sum(len(entry.value) for entry in entries)

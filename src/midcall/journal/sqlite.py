"""The journal in an SQLite file: the one that needs nothing installed and nothing run beside.

One thread writes, and commits what came together in one transaction; another one reads. Each write is on
the disk when it returns (WAL, `synchronous = FULL`). Several processes may use one file: SQLite's own lock
keeps their writes apart, `LifeSign` tells which of them are there, and who waits for another one's outcome
looks whether the file has changed, a few dozen times a second, while somebody waits.

The file must be on a disk of this machine: SQLite's locks do not work over a network.
"""

import asyncio
import contextlib
import functools
import logging
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from midcall.journal.batches import Batches
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
    to_export,
)
from midcall.journal.lifesign import LifeSign
from midcall.journal.postbox import Postbox
from midcall.journal.seal import KeyRing
from midcall.journal.sqlite_calls import Calls
from midcall.journal.sqlite_file import JournalFile, Transactions, check
from midcall.journal.trouble import trouble
from midcall.journal.turn import Turn
from midcall.journal.values import Values

log = logging.getLogger("midcall.journal")

T = TypeVar("T")

LEASE = 15.0
"""A worker that has not stirred for so many seconds counts as gone."""

PATIENCE = 10.0
"""Seconds to wait while another process writes. Less than the lease: who waits is not dead."""

POLL = 0.025
"""Seconds between two looks at what other processes have written, while somebody waits for it."""

SWEPT_AT_ONCE = 100
"""How many calls are swept in one transaction, so that others need not wait long."""

LOOKED_AT_ONCE = 1000
"""How many calls are looked at in one reading, so that other readings need not wait long."""

_Waiters = dict[tuple[str, int], set["asyncio.Future[bytes | None]"]]


class SqliteJournal:
    """A worker on a file. With `seal`, what callers and tools have said is encrypted under the newest key.

    What is not encrypted is refused then, unless `plain_too` (see `values`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        seal: KeyRing | None = None,
        plain_too: bool = False,
        lease: float = LEASE,
    ) -> None:
        self.worker = f"{os.getpid()}-{secrets.token_hex(6)}"
        self.path = Path(path)
        self._values = Values(seal, plain_too=plain_too)
        self._lease = lease
        workers = self.path.with_name(f"{self.path.name}.workers")
        self._sign = LifeSign(workers, self.worker, lease)
        patience = min(PATIENCE, lease * 2 / 3)
        self._turn = Turn(workers / ".turn")
        self._writing = Transactions(JournalFile(self.path, patience, writes=True), self._calls, self._turn)
        self._reading = Transactions(JournalFile(self.path, patience, writes=False), self._calls)
        self._writer: Batches[Calls] | None = None
        self._reader: Batches[Calls] | None = None
        self._postbox: Postbox | None = None
        self.on_post: Callable[[bytes], None] | None = None
        self._waiters: _Waiters = {}
        self._next_beat = 0.0
        self._next_look = 0.0
        self._seen: tuple[sqlite3.Connection, int] | None = None
        """The state of the file when waiters were last looked for: it changes with others' writes alone."""

    # life

    async def open(self) -> None:
        if self._writer is None:
            await asyncio.to_thread(self._start)
            await self._open_postbox()
            self._writer = Batches("midcall-journal-writer", self._writing.run, self._between_batches)
            self._reader = Batches("midcall-journal-reader", self._reading.run)

    async def close(self) -> None:
        writer, reader = self._writer, self._reader
        if writer is None or reader is None:
            return
        self._writer = self._reader = None
        for key in list(self._waiters):
            self._tell(*key, None)
        if self._postbox is not None:
            await self._postbox.close()
        await reader.stop()
        await writer.stop()
        await asyncio.to_thread(self._stop)

    async def _open_postbox(self) -> None:
        """Where there are no sockets of the file system, workers do without: each has its own sessions."""
        if hasattr(asyncio, "start_unix_server"):
            self._postbox = Postbox(self.path, self.worker)
            try:
                await self._postbox.open(self._take, self._sign.known)
            except OSError as error:
                log.warning("Other workers cannot reach this one: %s", error)
                self._postbox = None

    async def post(self, worker: str, message: bytes) -> bool:
        if self._postbox is None or not self._sign.alive(worker):  # a line to it may not know yet
            return False
        return await self._postbox.post(worker, message)

    def _take(self, message: bytes) -> None:
        if self.on_post is not None:
            self.on_post(message)

    async def check(self) -> None:
        """Look through all of the file for damage, however large it is. Raises `JournalError`."""

        def look(_: Calls) -> None:
            check(self._reading.file.use(), self.path, "integrity_check")

        await self._read(look)

    def _start(self) -> None:
        try:
            self._writing.file.create()
            self._writing.use()[1].check_sealed()
            self._sign.start()
            self._sign.clear_away()
            self._turn.open()
        except OSError as error:
            self._stop()
            said = f"The directory of the journal cannot be written: {(error.strerror or '').lower()}"
            raise trouble(said, self.path, error) from None
        except JournalError:
            self._stop()
            raise

    def _stop(self) -> None:
        self._reading.file.close()
        self._writing.file.close()
        self._turn.close()
        self._sign.stop()

    # writing

    async def create(
        self, call: CallRecord, entries: Sequence[Entry] = (), outcome: bytes | None = None
    ) -> CallRecord | None:
        def undo(taken: CallRecord | None) -> Callable[[Calls], None] | None:
            return None if taken is not None else lambda calls: calls.uncreate(call.id)

        return await self._write(
            lambda calls: calls.create(call, entries, outcome), undo=undo if outcome is None else None
        )

    async def claim(
        self, call_id: str, segment: int, answers: Sequence[Entry] = (), fence: int | None = None
    ) -> Claim:
        def undo(claimed: tuple[Claim, Status | None]) -> Callable[[Calls], None] | None:
            claim, before = claimed
            if not isinstance(claim, Claimed) or before is None:
                return None
            return lambda calls: calls.unclaim(call_id, claim.call.fence, before)

        claim, _ = await self._write(lambda calls: calls.claim(call_id, segment, answers, fence), undo=undo)
        return claim

    async def append(
        self, call_id: str, fence: int, entries: Sequence[Entry], parking: Parking | None = None
    ) -> None:
        await self._write(lambda calls: calls.append(call_id, fence, entries, parking))

    async def settle(
        self,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Sequence[Entry] = (),
    ) -> None:
        await self._write(
            lambda calls: calls.settle(call_id, fence, segment, outcome, parking, entries),
            told=lambda _: self._tell(call_id, segment, outcome),
        )

    async def release(self, call_id: str, fence: int, *, diverged: bool = False) -> None:
        await self._write(lambda calls: calls.release(call_id, fence, diverged))

    async def end(self, call_id: str, status: Status, outcome: bytes, expires: float) -> bool:
        def told(segment: int | None) -> None:
            if segment is not None:
                self._tell(call_id, segment, outcome)

        segment = await self._write(lambda calls: calls.end(call_id, status, outcome, expires), told=told)
        return segment is not None

    async def sweep(self, limit: int = 1000) -> int:
        swept = 0
        while swept < limit:
            some = min(SWEPT_AT_ONCE, limit - swept)
            found = await self._write(functools.partial(Calls.sweep, limit=some))
            swept += found
            if found < some:
                break
        return swept

    async def probe(self) -> None:
        await self._write(Calls.probe)

    async def secret(self, name: str, made: bytes) -> bytes:
        return await self._write(lambda calls: calls.secret(name, made))

    async def restore(self, exported: dict[str, Any]) -> bool:
        call, entries, outcomes = from_export(exported)
        return await self._write(lambda calls: calls.restore(call, entries, outcomes))

    # reading

    async def load(self, call_id: str) -> tuple[CallRecord, Sequence[Entry]] | None:
        return await self._read(lambda calls: calls.load(call_id))

    async def find(self, principal: str | None, idempotency_key: str) -> CallRecord | None:
        return await self._read(lambda calls: calls.find(principal, idempotency_key))

    async def due(self, limit: int = 100) -> Sequence[CallRecord]:
        return await self._read(lambda calls: calls.due(limit))

    async def list(
        self,
        *,
        status: Sequence[Status] = (),
        principal: str | None = None,
        name: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        return await self._read(lambda calls: calls.list(status, principal, name, after, limit))

    async def count(self) -> dict[str, int]:
        return await self._read(Calls.count)

    async def held(self, principal: str) -> int:
        held = 0
        after: tuple[float, int] | None = (-math.inf, 0)
        while after is not None:
            look = functools.partial(Calls.held, principal=principal, after=after, limit=LOOKED_AT_ONCE)
            some, after = await self._read(look)
            held += some
        return held

    async def export(self, call_id: str) -> dict[str, Any] | None:
        def export(calls: Calls) -> dict[str, Any] | None:
            loaded = calls.load(call_id)
            return None if loaded is None else to_export(*loaded, calls.outcomes(call_id))

        return await self._read(export)

    # waiting

    async def wait(self, call_id: str, segment: int, seconds: float) -> bytes | None:
        waiter: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        key = (call_id, segment)
        first = not self._waiters
        waiters = self._waiters.setdefault(key, set())
        waiters.add(waiter)
        if first and self._writer is not None:
            self._writer.nudge()  # it looks at the file from now on
        try:
            outcome = await self._read(lambda calls: calls.outcome(call_id, segment))
            if outcome is not None or seconds <= 0:
                return outcome
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            return None
        finally:
            waiters.discard(waiter)
            if not waiters and self._waiters.get(key) is waiters:
                del self._waiters[key]

    def _tell(self, call_id: str, segment: int, outcome: bytes | None) -> None:
        for waiter in self._waiters.pop((call_id, segment), ()):
            if not waiter.done():
                waiter.set_result(outcome)

    def _between_batches(self) -> float:
        """In the thread that writes: say that it lives, and look for what others have settled."""
        now = time.monotonic()
        if now >= self._next_beat:
            with contextlib.suppress(OSError):
                self._sign.beat()
            self._next_beat = now + self._lease / 3
        if not self._waiters:
            return min(self._next_beat - now, self._lease / 3)
        if now >= self._next_look:
            self._look()
            taken = time.monotonic() - now
            self._next_look = now + max(POLL, 10 * taken)  # however many wait, others come first
        return POLL

    def _look(self) -> None:
        try:
            connection, calls = self._writing.use()
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if self._seen == (connection, version):
                return
            self._seen = (connection, version)
            found = [
                (*key, outcome) for key in list(self._waiters) if (outcome := calls.outcome(*key)) is not None
            ]
        except (JournalError, sqlite3.Error):
            return  # who writes or reads is told; who waits goes on waiting
        for one in found:
            if self._writer is not None:
                self._writer.call_soon(self._tell, *one)

    # inside

    def _calls(self, connection: sqlite3.Connection) -> Calls:
        return Calls(connection, self.worker, self._sign.alive, self._values)

    async def _write(
        self,
        work: Callable[[Calls], T],
        told: Callable[[T], None] | None = None,
        undo: Callable[[T], Callable[[Calls], None] | None] | None = None,
    ) -> T:
        if self._writer is None:
            raise JournalError("The journal is not open")
        return await self._writer.do(work, told=told, undo=undo)

    async def _read(self, work: Callable[[Calls], T]) -> T:
        if self._reader is None:
            raise JournalError("The journal is not open")
        return await self._reader.do(work)

"""What workers post to each other: rows that stay until they are read, and a `NOTIFY` for each reader.

A sender counts what it posts, and the rows of one sender are read in that order. So a row that is written
or read twice, because the line broke in between, is delivered once.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from midcall.errors import JournalError
from midcall.journal.postgres.reach import Reach
from midcall.journal.postgres.session import Line
from midcall.journal.postgres.sql import Statements
from midcall.journal.values import Values

if TYPE_CHECKING:
    from midcall.journal.postgres.reach import Connection


class Letter(Struct, frozen=True):
    worker: str
    serial: int
    message: bytes


class Posts:
    """What this worker posts, and what is posted to it."""

    def __init__(self, reach: Reach, sql: Statements, values: Values, line: Line) -> None:
        self._reach = reach
        self._sql = sql
        self._values = values
        self._line = line
        self._serials = itertools.count(1)
        self._arrived = asyncio.Event()
        self._read: dict[int, int] = {}
        """The last that was delivered, of each sender."""

    async def post(self, worker: str, message: bytes) -> bool:
        """Whether the reader is there."""
        letter = Letter(worker, next(self._serials), self._values.close(message, "post", worker))
        there: bool = await self._reach.together(
            self._send, letter, key=f"{letter.serial:020}", size=len(message)
        )
        return there

    async def _send(
        self, connection: "Connection", letters: Sequence[Letter], again: bool
    ) -> list[bool | JournalError]:
        columns = zip(*((one.worker, one.serial, one.message) for one in letters), strict=True)
        rows = await connection.fetch(self._sql.post, *columns, self._line.number, self._line.trusted)
        there = {name for name, _ in rows}
        return [letter.worker in there for letter in letters]

    def arrived(self) -> None:
        """There is something to read, or may be."""
        self._arrived.set()

    async def deliver(self, take: Callable[[bytes], None]) -> None:
        """Give what is posted to this worker to `take`, until this is cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                while await self._deliver(take):
                    pass
            except JournalError:
                await asyncio.sleep(0.5)
                self._arrived.set()

    async def _deliver(self, take: Callable[[bytes], None]) -> bool:
        """Whether there was anything."""
        number, name, read = self._line.number, self._line.name, dict(self._read)
        rows = await self._reach.run(
            lambda connection, _: connection.fetch(
                self._sql.read_posts, number, list(read), list(read.values())
            )
        )
        fresh = False
        for sender, serial, closed in rows:
            if serial > self._read.get(sender, 0):
                self._read[sender] = serial
                fresh = True
                take(self._values.open(closed, "post", name))
        return fresh

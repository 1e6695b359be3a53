"""A line to PostgreSQL that can be cut at the worst moment: the server has done it, and the client never hears."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_DONE = re.compile(rb"SELECT 1\0|s\0\0\0\x04")
"""How an answer ends."""


WRITTEN = re.compile(rb"(INSERT 0|UPDATE|DELETE|SELECT) \d+\0|COMMIT\0|s\0\0\0\x04")
"""How an answer ends to any statement."""

NONSENSE = b"\xff\0\0\0\x04"
"""A message that no server sends."""


class Cut:
    """A relay. `cuts` is how many of the next statements go unanswered: those whose answer ends like `done`.

    What they get is `instead`, and then the end of the line.
    """

    def __init__(self, dsn: str, done: re.Pattern[bytes] = _DONE, instead: bytes = b"") -> None:
        of = urlsplit(dsn)
        self._server = of.hostname, of.port
        self._given = dsn
        self._tasks: set[asyncio.Task[None]] = set()
        self._done = done
        self._instead = instead
        self.dsn = ""
        self.cuts = 0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection(*self._server)
        asking = asyncio.create_task(self._pass(reader, out))
        try:
            while data := await there.read(1 << 20):
                if self.cuts and self._done.search(data):
                    self.cuts -= 1
                    writer.write(self._instead)
                    break
                writer.write(data)
        finally:
            asking.cancel()
            out.close()

    async def _pass(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                out.write(data)
        out.close()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def cuttable(dsn: str, done: re.Pattern[bytes] = _DONE, instead: bytes = b"") -> AsyncIterator[Cut]:
    cut = Cut(dsn, done, instead)
    listening = await asyncio.start_server(cut.relay, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    cut.dsn = dsn.replace(f":{urlsplit(dsn).port}/", f":{port}/")
    try:
        yield cut
    finally:
        listening.close()
        await cut.stop()

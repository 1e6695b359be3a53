"""A pooler that deals out transactions, as PgBouncer does with `pool_mode=transaction`; but one that never gives a
client the same session twice in a row, so that whatever relies on its session fails at once.

Each client brings a session (it authenticates itself through to the server); from then on all sessions serve
all clients. It has numbers of its own for sessions, and refuses settings at the start, as PgBouncer does.
"""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

KNOWN = {"user", "database", "client_encoding", "application_name", "datestyle", "timezone"}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pooler:
    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._idle: deque[Streams] = deque()
        self._free = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unread: dict[asyncio.StreamReader, asyncio.Task[tuple[bytes, bytes]]] = {}
        """What a client says next, of those whose transaction has just ended."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            if await self._begin(reader, writer):
                while True:
                    await self._transaction(reader, writer)
        writer.close()
        self._tasks.discard(task)

    async def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            (size,) = struct.unpack("!I", await reader.readexactly(4))
            start = await reader.readexactly(size - 4)
            if start[:4] not in (struct.pack("!I", 80877103), struct.pack("!I", 80877104)):
                break
            writer.write(b"N")  # no encryption
        given = start[4:].rstrip(b"\0").split(b"\0")[::2]
        if unknown := {name.decode().lower() for name in given} - KNOWN:
            said = f"SFATAL\0C08P01\0Munsupported startup parameter: {unknown.pop()}\0\0".encode()
            writer.write(b"E" + struct.pack("!I", len(said) + 4) + said)
            await writer.drain()
            return False
        server = await asyncio.open_connection(*self._server)
        server[1].write(struct.pack("!I", size) + start)
        while True:
            kind, body = await _message(server[0])
            if kind == b"K":
                body = struct.pack("!II", 999_999, 1)
            _send(writer, kind, body)
            if kind == b"R" and struct.unpack("!I", body[:4])[0] in (3, 5, 10, 11):
                _send(server[1], *await _message(reader))
            if kind == b"Z":
                break
        await self._give_back(server)
        return True

    async def _transaction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await (self._unread.pop(reader, None) or _message(reader))
        if first[0] == b"X":
            raise ConnectionError
        async with self._free:
            await self._free.wait_for(lambda: self._idle)
            server = self._idle.popleft()
        _send(server[1], *first)
        due = int(first[0] in b"SQ")  # answers that end with "ready"
        asking: asyncio.Task[tuple[bytes, bytes]] | None = None
        answering: asyncio.Task[tuple[bytes, bytes]] | None = None
        try:
            while True:
                asking = asking or asyncio.create_task(_message(reader))
                answering = asyncio.create_task(_message(server[0]))
                while not answering.done():
                    await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
                    if asking.done():
                        kind, body = asking.result()
                        _send(server[1], kind, body)
                        due += kind in b"SQ"
                        asking = asyncio.create_task(_message(reader))
                kind, body = answering.result()
                _send(writer, kind, body)
                due -= kind == b"Z"
                if due == 0 and (kind, body) == (b"Z", b"I"):
                    break
        except BaseException:  # the client is gone, in the middle of something
            server[1].close()
            if answering is not None:
                answering.cancel()
            raise
        finally:
            if asking is not None:
                self._unread[reader] = asking
        await self._give_back(server)

    async def _give_back(self, server: Streams) -> None:
        async with self._free:
            self._idle.append(server)
            self._free.notify()

    async def close(self) -> None:
        for task in (*self._tasks, *self._unread.values()):
            task.cancel()
        while self._tasks:
            await asyncio.sleep(0.001)
        for _, writer in self._idle:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    (size,) = struct.unpack("!I", await reader.readexactly(4))
    return kind, await reader.readexactly(size - 4)


def _send(writer: asyncio.StreamWriter, kind: bytes, body: bytes) -> None:
    writer.write(kind + struct.pack("!I", len(body) + 4) + body)


@asynccontextmanager
async def pooler(dsn: str) -> AsyncIterator[str]:
    """The DSN of a pooler in front of a server."""
    of = urlsplit(dsn)
    pooler = Pooler(of.hostname or "", of.port or 5432)
    listening = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield dsn.replace(f":{of.port}/", f":{port}/")
    finally:
        listening.close()
        await pooler.close()

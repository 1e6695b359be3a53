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
            writer.write(kind + struct.pack("!I", len(body) + 4) + body)
            if kind == b"R" and struct.unpack("!I", body[:4])[0] in (3, 5, 10, 11):
                answer, words = await _message(reader)
                server[1].write(answer + struct.pack("!I", len(words) + 4) + words)
            if kind == b"Z":
                break
        await self._give_back(server)
        return True

    async def _transaction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await _message(reader)
        if first[0] == b"X":
            raise ConnectionError
        async with self._free:
            await self._free.wait_for(lambda: self._idle)
            server = self._idle.popleft()
        message: tuple[bytes, bytes] | None = first
        while True:
            while message is None or message[0] not in b"SQ":
                if message is None:
                    message = await _message(reader)
                else:
                    server[1].write(message[0] + struct.pack("!I", len(message[1]) + 4) + message[1])
                    message = None
            server[1].write(message[0] + struct.pack("!I", len(message[1]) + 4) + message[1])
            message = None
            while True:
                kind, body = await _message(server[0])
                writer.write(kind + struct.pack("!I", len(body) + 4) + body)
                if kind == b"Z":
                    break
            if body == b"I":
                await self._give_back(server)
                return

    async def _give_back(self, server: Streams) -> None:
        async with self._free:
            self._idle.append(server)
            self._free.notify()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.sleep(0.001)
        for _, writer in self._idle:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    (size,) = struct.unpack("!I", await reader.readexactly(4))
    return kind, await reader.readexactly(size - 4)


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

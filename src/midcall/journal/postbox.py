"""Postbox: how workers on one machine reach each other, by a socket of the file system for each of them.

Used by the journals that are files. Who is not there cannot be written to; what was sent to a worker that
dies is lost.

The sockets are in a folder of this user among the temporary files, where anybody can put things: one that is
a link, or not this user's alone, is not used. It goes with the last worker.
"""

import asyncio
import contextlib
import hashlib
import os
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from midcall.journal.contract import is_worker_name

_LENGTH = struct.Struct("<I")


class Postbox:
    """The socket of this worker, and lines to others."""

    def __init__(self, journal: Path, worker: str) -> None:
        # A short path, as the system allows few bytes; the same one for all who share the journal.
        exact = hashlib.sha256(os.fsencode(journal.resolve())).hexdigest()[:16]
        self._directory = Path(tempfile.gettempdir()) / f"midcall-{os.getuid()}-{exact}"
        self._worker = worker
        self._server: asyncio.Server | None = None
        self._lines: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._opening = asyncio.Lock()
        self._incoming: set[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = set()

    async def open(self, take: Callable[[bytes], None], known: Callable[[], set[str]]) -> None:
        """Begin to take messages. Sockets of workers that are not `known` any more are cleared away.

        Raises `OSError`.
        """

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._incoming.add((reader, writer))
            try:
                while self._server is not None:  # a line may be made while this is closed
                    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                    take(await reader.readexactly(length))
            except (asyncio.IncompleteReadError, OSError):
                pass
            finally:
                self._incoming.discard((reader, writer))
                writer.close()

        while self._server is None:
            self._make_directory()
            with contextlib.suppress(FileNotFoundError):  # the last worker takes it with it, just now
                sockets = {path.name for path in self._directory.iterdir() if is_worker_name(path.name)}
                for dead in sockets - known():  # a worker is known before it has a socket
                    self._path(dead).unlink(missing_ok=True)
                self._server = await asyncio.start_unix_server(read, self._path(self._worker))

    async def close(self) -> None:
        """Take no more messages."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._path(self._worker).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others have theirs there
                self._directory.rmdir()
        lines = [*self._lines.values(), *self._incoming]
        self._lines.clear()
        for _, line in lines:
            line.close()
        for _, line in lines:
            with contextlib.suppress(OSError):
                await line.wait_closed()
        if server is not None:
            await server.wait_closed()

    async def post(self, worker: str, message: bytes) -> bool:
        """Send a message; false if that worker is gone, or is none."""
        if not is_worker_name(worker):
            return False
        try:
            line = await self._line(worker)
            line.write(_LENGTH.pack(len(message)) + message)
            await line.drain()
        except OSError:
            self._lose(worker)
            return False
        return True

    async def _line(self, worker: str) -> asyncio.StreamWriter:
        async with self._opening:  # one line to each, as messages are to arrive in order
            line = self._lines.get(worker)
            if line is not None and (line[0].at_eof() or line[1].is_closing()):
                self._lose(worker)
                line = None
            if line is None:
                line = self._lines[worker] = await asyncio.open_unix_connection(self._path(worker))
            return line[1]

    def _lose(self, worker: str) -> None:
        gone = self._lines.pop(worker, None)
        if gone is not None:
            gone[1].close()

    def _path(self, worker: str) -> Path:
        return self._directory / worker

    def _make_directory(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        found = self._directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise OSError(f"{self._directory} is not a folder of this user alone: remove it")

"""The processes that share a journal file: who is there, and messages among them.

Signs of life (`LifeSign`): each worker holds the lock of a file of its own, for as long as its process lives:
the system lets go of it however the process ends. Into the same file it writes the time now and then, so that
a process that stands still counts as gone too, after a while. A worker that counts as gone may be alive all
the same: the fence of the journal keeps it from acting. The time is that of the machine's steady clock, which
all processes share and nobody sets; a machine that was asleep finds its workers as they were. (A file of an
earlier boot is not locked, so its time is not read.)

Messages (`WorkerSockets`): a socket of the file system for each worker. Who is not there cannot be written
to; what was sent to a worker that dies is lost. The sockets are in a folder of this user among the temporary
files, where anybody can put things: one that is a link, or not this user's alone, is not used. It goes with
the last worker.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from midcall.journal import files
from midcall.journal.contract import is_worker_name

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_TIME = struct.Struct("<d")
_LENGTH = struct.Struct("<I")


class LifeSign:
    """The sign of this worker, and a look at those of the others. Raises `OSError`."""

    def __init__(self, directory: Path, worker: str, lease: float) -> None:
        self._directory = directory
        self._worker = worker
        self._lease = lease
        self._fd: int | None = None

    def start(self) -> None:
        """Be there."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / self._worker
        while self._fd is None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
            # Before it is locked, another process may take it for a dead one's, and clear it away.
            if files.lock(fd) and _is_at(path, fd):
                self._fd = fd
            else:
                os.close(fd)
        self.beat()

    def clear_away(self) -> None:
        """Remove the signs of workers whose processes have ended, as far as that can be."""
        for worker in self.known() - {self._worker}:
            with contextlib.suppress(OSError), self._opened(worker) as fd:
                if fd is not None and files.lock(fd, shared=True):
                    (self._directory / worker).unlink(missing_ok=True)

    def known(self) -> set[str]:
        """The workers that have a sign, alive or not."""
        return {path.name for path in self._directory.iterdir() if is_worker_name(path.name)}

    def beat(self) -> None:
        """Say that this process does not stand still."""
        if self._fd is not None:
            os.lseek(self._fd, 0, os.SEEK_SET)
            os.write(self._fd, _TIME.pack(time.monotonic()))

    def stop(self) -> None:
        """Be gone."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            (self._directory / self._worker).unlink()
        os.close(self._fd)
        self._fd = None

    def alive(self, worker: str) -> bool:
        """Whether a worker is there, and not frozen. To ask changes nothing."""
        if worker == self._worker:
            return self._fd is not None
        with self._opened(worker) as fd:
            if fd is None or files.lock(fd, shared=True):
                return False
            beat = os.read(fd, _TIME.size)
        return len(beat) < _TIME.size or time.monotonic() - _TIME.unpack(beat)[0] <= self._lease

    @contextlib.contextmanager
    def _opened(self, worker: str) -> Iterator[int | None]:
        """The sign of another worker, if there is one: whatever it is called, a file of this folder."""
        if not is_worker_name(worker):
            yield None
            return
        try:
            fd = os.open(self._directory / worker, os.O_RDWR | _NO_LINK)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)


class WorkerSockets:
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
            files.private_folder(self._directory)
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


def _is_at(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False

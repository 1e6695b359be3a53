"""stdio: one JSON-RPC message a line, in on standard input and out on standard output.

Standard output carries messages and nothing else; logs go to standard error. A line over the limit is thrown
away and answered with an error, and the next one is read as ever. When the input ends, open questions fail,
what runs may finish for a moment, and the server ends.
"""

import asyncio
import os
import stat
from collections.abc import Callable
from typing import BinaryIO, cast

from midcall.hub import Hub
from midcall.jsonrpc import LineSplitter
from midcall.plexus.protocol import MAX_MESSAGE, Connection
from midcall.principal import RequestInfo

GRACE = 5.0
"""Seconds that running calls have to finish after the input has ended."""

WRITE_LIMIT = 1024 * 1024
"""Bytes that may wait for a slow reader before calls are slowed down."""

READ_LIMIT = 8 * WRITE_LIMIT
"""Bytes that may wait before no more input is read."""

CHUNK = 256 * 1024


class Output(asyncio.Protocol):
    """Writes lines to a file descriptor, many at a time, and slows the connection down if it must."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._size = 0
        self._flushing = False
        self._write: Callable[[bytes], None] = _discard
        self._transport: asyncio.WriteTransport | None = None
        self.connection: Connection | None = None
        self.input: Input | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()

    async def open(self, fd: int) -> None:
        file = os.fdopen(os.dup(fd), "wb", buffering=0)
        if not _can_be_polled(fd):
            self._write = lambda data: _write_all(file.fileno(), data)
            return
        self._transport, _ = await self._loop.connect_write_pipe(lambda: self, file)
        self._transport.set_write_buffer_limits(high=WRITE_LIMIT)
        self._write = self._transport.write

    def send(self, message: bytes) -> None:
        """Write a line, together with all others of this turn of the event loop."""
        self._waiting.append(message)
        self._size += len(message)
        self.flush_soon()
        if self._size > CHUNK:  # a call that never waits would keep the loop from flushing
            self.flush()

    def flush_soon(self) -> None:
        """Flush after all that is ready to run now, so that its messages go in one write."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._waiting:
            self._size = 0
            self._waiting.append(b"")
            data = b"\n".join(self._waiting)
            self._waiting.clear()
            self._write(data)

    @property
    def size(self) -> int:
        """Bytes that wait for the reader."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def close(self) -> None:
        """Close once all is written, or nobody reads any more."""
        self.flush()
        if self._transport is not None and not self.gone.done():
            self._transport.close()
            await asyncio.wait((self.gone,), timeout=GRACE)
            if not self.gone.done():
                self._transport.abort()

    # What the event loop calls.

    def pause_writing(self) -> None:
        if self.connection is not None:
            self.connection.pause()

    def resume_writing(self) -> None:
        if self.connection is not None:
            self.connection.resume()
        if self.input is not None:
            self.input.read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._write = _discard
        if not self.gone.done():
            self.gone.set_result(None)


class Input(asyncio.Protocol):
    """Takes bytes, gives lines to the connection; stops reading while too much waits to be written."""

    def __init__(self, connection: Connection, output: Output) -> None:
        self._connection = connection
        self._output = output
        self._lines = LineSplitter(MAX_MESSAGE)
        self._transport: asyncio.ReadTransport | None = None
        self._thread: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, fd: int) -> None:
        """Read by the event loop where the descriptor allows it, else by a thread."""
        file = os.fdopen(os.dup(fd), "rb", buffering=0)
        if _can_be_polled(fd):
            await asyncio.get_running_loop().connect_read_pipe(lambda: self, file)
        else:
            self._thread = asyncio.create_task(self._read_by_thread(file))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._thread is not None:
            self._thread.cancel()

    def read_on(self) -> None:
        """The reader of the output has caught up."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    async def _read_by_thread(self, file: BinaryIO) -> None:
        with file:
            while data := await asyncio.to_thread(file.read, CHUNK):
                self.data_received(data)
        self.eof_received()

    def _take(self, lines: list[bytes | None]) -> None:
        for line in lines:
            if line is None:
                self._connection.refuse_large()
            elif line and not line.isspace():
                self._connection.receive(line)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._take(self._lines.feed(data))
        self._output.flush_soon()
        if self._transport is not None and self._output.size > READ_LIMIT:
            self._transport.pause_reading()

    def eof_received(self) -> None:
        if not self.ended.done():
            self._take(self._lines.end())
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.eof_received()


async def serve_stdio(
    hub: Hub, *, raw: bool = True, stdin: int = 0, stdout: int = 1, grace: float = GRACE
) -> None:
    """Serve the hub on two file descriptors until the input ends or the reader is gone.

    Without `raw`, only the protocols of the hub's extensions are spoken. After the end of the input,
    calls may run on for up to `grace` seconds.
    """
    blocking = [(fd, os.get_blocking(fd)) for fd in (stdin, stdout)]
    output = Output()
    connection = output.connection = Connection(hub, output.send, raw=raw, info=RequestInfo("stdio"))
    input = output.input = Input(connection, output)
    await hub.open()
    try:
        await output.open(stdout)
        await input.open(stdin)
        await asyncio.wait((input.ended, output.gone), return_when=asyncio.FIRST_COMPLETED)
        if not output.gone.done():
            await _finish(connection, output, grace)
    finally:
        input.close()
        await connection.close()
        await hub.close()
        await output.close()
        for fd, was in blocking:  # a terminal is shared with the shell, which expects it as it was
            os.set_blocking(fd, was)


async def _finish(connection: Connection, output: Output, grace: float) -> None:
    """Let what runs come to its end, as long as somebody reads."""
    finishing = asyncio.create_task(connection.finish(grace))
    await asyncio.wait((finishing, output.gone), return_when=asyncio.FIRST_COMPLETED)
    finishing.cancel()
    await asyncio.wait((finishing,))


def _can_be_polled(fd: int) -> bool:
    """Pipes, sockets and terminals can; regular files and `/dev/null` are always ready instead."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _discard(data: bytes) -> None:
    """Nobody reads."""

"""stdio: one JSON-RPC message a line, in on standard input and out on standard output.

Standard output carries messages and nothing else; logs go to standard error. Lines are split here,
whatever pieces they come in; a line over the limit is thrown away and answered with an error, and
the next one is read as ever. When the input ends, open questions fail, what runs may finish for a
moment, and the server ends.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, cast

from midcall.connection import MAX_MESSAGE, Connection
from midcall.hub import Hub

GRACE = 5.0
"""Seconds that running calls have to finish after the input has ended."""

READ_AHEAD_LIMIT = 8 * 1024 * 1024
"""Bytes waiting to be written beyond which no more input is read."""

_CHUNK = 256 * 1024


class Lines:
    """Cuts bytes into lines, without keeping one that is too long. No I/O."""

    __slots__ = ("_limit", "_parts", "_size")

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that these bytes complete; `None` stands for one that was too long."""
        head, *rest = data.split(b"\n")
        self._keep(head)
        if not rest:
            return []
        lines = [self._complete()]
        tail = rest.pop()
        lines.extend(line if len(line) <= self._limit else None for line in rest)
        self._keep(tail)
        return lines

    def end(self) -> list[bytes | None]:
        """What stands after the last newline, when no more comes."""
        return [self._complete()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _complete(self) -> bytes | None:
        line = b"".join(self._parts) if self._size <= self._limit else None
        self._parts.clear()
        self._size = 0
        return line


class Output:
    """Writes lines to a file descriptor, many at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[bytes] = []
        self._write: Callable[[bytes], None] = _nowhere
        self.transport: asyncio.WriteTransport | None = None

    async def open(self, fd: int, protocol: "Output.Flow") -> None:
        try:
            transport, _ = await self._loop.connect_write_pipe(lambda: protocol, _file(fd, "wb"))
        except (ValueError, PermissionError):  # a regular file, which is always ready
            self._write = lambda data: _write_all(fd, data)
            return
        self.transport = transport
        transport.set_write_buffer_limits(high=1024 * 1024)
        self._write = transport.write

    def send(self, message: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(message)

    def flush(self) -> None:
        if self._waiting:
            self._waiting.append(b"")
            data = b"\n".join(self._waiting)
            self._waiting.clear()
            self._write(data)

    def size(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    class Flow(asyncio.Protocol):
        """Tells the connection when the reader is behind, and when it is gone."""

        def __init__(self, connection: Connection, gone: asyncio.Future[None]) -> None:
            self._connection = connection
            self._gone = gone

        def pause_writing(self) -> None:
            self._connection.pause()

        def resume_writing(self) -> None:
            self._connection.resume()

        def connection_lost(self, exc: Exception | None) -> None:
            if not self._gone.done():
                self._gone.set_result(None)


class Input(asyncio.Protocol):
    """Takes bytes, gives lines to the connection; stops reading while too much waits to be written."""

    def __init__(self, connection: Connection, output: Output, ended: asyncio.Future[None]) -> None:
        self._connection = connection
        self._output = output
        self._ended = ended
        self._lines = Lines()
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._take(self._lines.feed(data))
        if self._transport is not None and self._output.size() > READ_AHEAD_LIMIT:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(0.01, self._read_on)

    def _read_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._output.size() > READ_AHEAD_LIMIT:
            asyncio.get_running_loop().call_later(0.01, self._read_on)
        else:
            self._transport.resume_reading()

    def eof_received(self) -> None:
        self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def end(self) -> None:
        if not self._ended.done():
            self._take(self._lines.end())
            self._ended.set_result(None)

    def _take(self, lines: list[bytes | None]) -> None:
        for line in lines:
            if line is None:
                self._connection.refuse_large()
            elif line and not line.isspace():
                self._connection.receive(line)


async def serve_stdio(hub: Hub, *, stdin: int = 0, stdout: int = 1) -> None:
    """Serve the hub on two file descriptors until the input ends or the reader is gone."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    gone: asyncio.Future[None] = loop.create_future()
    output = Output(loop)
    connection = Connection(hub, output.send)
    await output.open(stdout, Output.Flow(connection, gone))
    reader = Input(connection, output, ended)
    reading = await _start_reading(loop, stdin, reader)
    try:
        await asyncio.wait((ended, gone), return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            finishing = asyncio.ensure_future(connection.finish(GRACE))
            await asyncio.wait((finishing, gone), return_when=asyncio.FIRST_COMPLETED)
            finishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await finishing
    finally:
        await connection.close()
        output.flush()
        await _close(output, gone)
        reading()


async def _start_reading(loop: asyncio.AbstractEventLoop, fd: int, reader: Input) -> Callable[[], None]:
    """Read by the event loop where the descriptor allows it, else by a thread. Gives how to stop."""
    try:
        transport, _ = await loop.connect_read_pipe(lambda: reader, _file(fd, "rb"))
    except (ValueError, PermissionError):  # a regular file or a device, which cannot be polled
        thread = asyncio.ensure_future(_read_by_thread(fd, reader))
        return lambda: _stop(thread)
    return transport.close


async def _read_by_thread(fd: int, reader: Input) -> None:
    while data := await asyncio.to_thread(os.read, fd, _CHUNK):
        reader.data_received(data)
    reader.end()


async def _close(output: Output, gone: asyncio.Future[None]) -> None:
    """Close the output once all is written, or nobody reads any more."""
    if output.transport is not None and not gone.done():
        output.transport.close()
        await asyncio.wait((gone,), timeout=GRACE)


def _stop(task: asyncio.Future[Any]) -> None:
    task.cancel()


def _file(fd: int, mode: str) -> Any:
    """A file object over a copy of the descriptor, so that closing it leaves the original alone."""
    return os.fdopen(os.dup(fd), mode, buffering=0)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _nowhere(data: bytes) -> None:
    sys.stderr.write("midcall: nothing is open to write to\n")

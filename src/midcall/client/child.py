"""A server in a child process: one message a line, out on its input and in on its output.

What it writes to its error stream goes to the log, and its last lines into the error if it dies. Lines on its
output that are no messages are skipped and logged. It is ended as the specification says: its input is
closed, then it is told to end, then it is killed, its own children included.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from midcall.client.wire import MAX_MESSAGE, About, Reader
from midcall.errors import MidcallError, TransportLost, Unreachable
from midcall.transports.stdio import Lines

log = logging.getLogger("midcall.client.server")

PATIENCE = 2.0
"""Seconds that a server has to end by itself after its input is closed, and again after it is told to."""

CHUNK = 256 * 1024
"""Bytes that wait for the end of the loop's turn before they are written."""

LAST_LINES = 8
"""How many lines of its error stream are kept, to tell why a server died."""


class ChildWire:
    """The way to a server that is started for it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.command = list(command)
        self._env = dict(env or {})
        self._cwd = cwd
        self._child: _Child | None = None
        self._transport: asyncio.SubprocessTransport | None = None

    async def open(self, reader: Reader) -> None:
        loop = asyncio.get_running_loop()
        name = self.command[0]
        program = shutil.which(name, path=self._env.get("PATH")) or name
        try:
            self._transport, self._child = await loop.subprocess_exec(
                lambda: _Child(reader, name),
                program,
                *self.command[1:],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **self._env},
                cwd=self._cwd,
                start_new_session=sys.platform != "win32",  # Ctrl-C is for us; and to end its children too
            )
        except (OSError, ValueError) as error:
            raise Unreachable(f"{shlex.join(self.command)} cannot be started: {self._why(error)}") from None

    def _why(self, error: Exception) -> str:
        if not isinstance(error, FileNotFoundError):
            return str(error)
        if self._cwd is not None and not Path(self._cwd).is_dir():
            return f"there is no folder {os.fspath(self._cwd)}"
        return f"there is no program {self.command[0]}"

    def agreed(self, revision: str, *, modern: bool) -> None:
        """A line is the same in all revisions."""

    def request(self, ids: Sequence[int], message: bytes, about: About) -> None:
        self.send(message)

    def send(self, message: bytes) -> None:
        if self._child is not None:
            self._child.send(message)

    def cancel(self, id: int) -> bool:
        return False

    async def close(self) -> None:
        transport, child = self._transport, self._child
        if transport is None or child is None:
            return
        self._transport = None
        child.closing = True
        child.close_input()
        await _ended(child, PATIENCE)
        for how in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            if child.ended.done():
                break
            _signal(transport, how)
            await _ended(child, PATIENCE)
        if child.ended.done():
            _signal(transport, getattr(signal, "SIGKILL", signal.SIGTERM))  # what it has left behind
        transport.close()
        await asyncio.sleep(0)


class _Child(asyncio.SubprocessProtocol):
    """What the event loop calls."""

    def __init__(self, reader: Reader, name: str) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._reader = reader
        self._name = name
        self._lines = Lines(MAX_MESSAGE)
        self._errors = Lines(64 * 1024)
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._transport: asyncio.SubprocessTransport | None = None
        self._input: asyncio.WriteTransport | None = None
        self._waiting: list[bytes] = []
        self._size = 0
        self._flushing = False
        self._open = {1, 2}
        self.closing = False
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    def send(self, message: bytes) -> None:
        """Write a line, together with all others of this turn of the event loop."""
        self._waiting.append(message)
        self._size += len(message)
        if self._size > CHUNK:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting and self._input is not None and not self._input.is_closing():
            waiting.append(b"")
            self._input.write(b"\n".join(waiting))

    def close_input(self) -> None:
        self._flush()
        if self._input is not None:
            self._input.close()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._take_errors(self._errors.feed(data))
            return
        for line in self._lines.feed(data):
            self._take(line)

    def _take(self, line: bytes | None) -> None:
        if line is None:
            log.warning("%s: skipped a line of over %d bytes", self._name, MAX_MESSAGE)
        elif line[:1] in b"{[" and line:
            self._reader.receive(line)
        elif line.lstrip()[:1] in (b"{", b"["):
            self._reader.receive(line.strip())
        elif line and not line.isspace():
            log.warning("%s: skipped what is no message: %.200s", self._name, _text(line))

    def _take_errors(self, lines: Sequence[bytes | None]) -> None:
        for line in lines:
            if line and not line.isspace():
                text = _text(line)
                self._last.append(text)
                log.info("%s: %s", self._name, text)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if fd == 1:
            for line in self._lines.end():
                self._take(line)
        elif fd == 2:
            self._take_errors(self._errors.end())
        self._check_lost()

    def process_exited(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        # What it wrote last may still be in the pipes, but a child of its own may hold them open for ever.
        self._loop.call_later(0.1, self._lose)
        self._check_lost()

    def _check_lost(self) -> None:
        if 1 not in self._open and (self.ended.done() or self.closing):
            self._lose()
        elif 1 not in self._open:
            self._loop.call_later(0.1, self._lose)  # it has closed its output: nothing more comes

    def _lose(self) -> None:
        self._reader.lost(self._why())

    def _why(self) -> MidcallError:
        code: Any = self._transport.get_returncode() if self._transport is not None else None
        if code is None:
            how = "closed its output"
        elif code < 0:
            with contextlib.suppress(ValueError):
                code = signal.Signals(-code).name
            how = f"was ended by {code}"
        else:
            how = f"ended with code {code}"
        said = f", and said: {' / '.join(self._last)}" if self._last else ""
        return TransportLost(f"The server {self._name} {how}{said}")


async def _ended(child: _Child, seconds: float) -> None:
    await asyncio.wait((child.ended,), timeout=seconds)


def _signal(transport: asyncio.SubprocessTransport, how: int) -> None:
    """Tell the server, and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(transport.get_pid(), how)
        else:
            transport.send_signal(how)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()

"""A server in a child process: one message a line, out on its input and in on its output.

What it writes to its error stream goes to the log, and its last lines into the error if it dies. Lines on its
output that are no messages are skipped and logged. It is ended as the specification says: its input is
closed, then it is told to end, then it is killed, its own children included.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import re
import shlex
import shutil
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from midcall import jsonrpc
from midcall.client.wire import MAX_MESSAGE, About
from midcall.errors import MidcallError, TransportLost, Unreachable
from midcall.jsonrpc import Fault, LineSplitter

if TYPE_CHECKING:
    from midcall.client.session import ClientSession

log = logging.getLogger("midcall.client.server")

INHERITED: Sequence[str] = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""The variables that a server gets unasked, as with the official SDKs: any other may be a secret."""

if sys.platform == "win32":
    INHERITED = (
        "APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE",
        "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE",
    )  # fmt: skip

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)

PATIENCE = 2.0
"""Seconds that a server has to end by itself after its input is closed, and again after it is told to."""

CHUNK = 256 * 1024
"""Bytes that wait for the end of the loop's turn before they are written."""

MAX_UNREAD = 16 * 1024 * 1024
"""Bytes that may wait for a server that does not read; answers to it beyond that are dropped."""

LAST_MOMENTS = 0.1
"""Seconds in which what a server wrote last is read after it has ended or closed a pipe."""

MAX_STARTS = 10
"""At how many places of a line a message is looked for."""

MAX_TEXT = 500
"""How many bytes are shown of a line that is no message."""

_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")

LAST_LINES = 8
"""How many lines of its error stream are kept, to tell why a server died."""


class ChildWire:
    """The way to a server that is started for it."""

    waits_for_person = False

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = False,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        """`env` are variables for it, beside `INHERITED` or, with `inherit_env`, all of this process."""
        self.command = list(command)
        self._env = {**(os.environ if inherit_env else _inherited()), **(env or {})}
        self._cwd = cwd
        self._child: _Child | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._dropped = False

    async def open(self, session: "ClientSession") -> None:
        loop = asyncio.get_running_loop()
        name = self.command[0]
        program = shutil.which(name, path=self._env.get("PATH")) or name
        starting = loop.create_task(
            loop.subprocess_exec(
                lambda: _Child(session, name),
                program,
                *self.command[1:],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
                cwd=self._cwd,
                start_new_session=sys.platform != "win32",  # Ctrl-C is for us; and to end its children too
            )
        )
        try:
            await asyncio.wait((starting,))
        finally:
            # If nobody waits for it any more, the process is there all the same: `close` has to know it.
            while not starting.done():
                await asyncio.wait((starting,))
            if starting.exception() is None:
                self._transport, self._child = starting.result()
        error = starting.exception()
        if error is not None:
            raise self._not_started(error)

    def _not_started(self, error: BaseException) -> BaseException:
        if not isinstance(error, OSError | ValueError):
            return error
        why = str(error)
        if isinstance(error, FileNotFoundError):
            why = f"there is no program {self.command[0]}"
            if self._cwd is not None and not Path(self._cwd).is_dir():
                why = f"there is no folder {os.fspath(self._cwd)}"
        return Unreachable(f"{shlex.join(self.command)} cannot be started: {why}")

    def agreed(self, revision: str, *, modern: bool) -> None:
        """A line is the same in all revisions."""

    def request(self, ids: Sequence[int], message: bytes, about: About) -> None:
        if self._child is not None:
            self._child.send(message)

    def send(self, message: bytes) -> None:
        if self._child is None:
            return
        if self._child.unread < MAX_UNREAD:
            self._dropped = False
            self._child.send(message)
        elif not self._dropped:
            self._dropped = True
            log.warning("%s does not read: messages to it are dropped", self.command[0])

    def cancel(self, id: int) -> bool:
        return False

    async def close(self) -> None:
        transport, child = self._transport, self._child
        if transport is None or child is None:
            return
        self._transport = None
        try:
            child.close_input()
            await _ended(child)
            for how in (signal.SIGTERM, KILL):
                if not child.ended.done():
                    _signal(transport, how)
                    await _ended(child)
        finally:
            _signal(transport, KILL)  # what it has left behind; or itself, if nobody waits for its end
            try:
                await _ended(child)
            finally:
                transport.close()
                await asyncio.sleep(0)


class _Child(asyncio.SubprocessProtocol):
    """What the event loop calls."""

    def __init__(self, session: "ClientSession", name: str) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._session = session
        self._name = name
        self._lines = LineSplitter(MAX_MESSAGE)
        self._errors = LineSplitter(64 * 1024)
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._transport: asyncio.SubprocessTransport | None = None
        self._input: asyncio.WriteTransport | None = None
        self._waiting: list[bytes] = []
        self._size = 0
        self._flushing = False
        self._open = {0, 1, 2}
        """Its pipes."""
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    @property
    def unread(self) -> int:
        """Bytes that wait for the server to read them."""
        return self._size + (self._input.get_write_buffer_size() if self._input is not None else 0)

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
        elif line[:1] == b"{":
            self._session.receive(line)
        elif (message := _message_in(line)) is not None:
            self._session.receive(message)
        elif line and not line.isspace():
            log.warning("%s: skipped something that is not a message: %s", self._name, _text(line))

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
        if self._open != {0, 1}:  # it may well have nothing to say on its error stream
            self._check_lost()

    def process_exited(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self._check_lost()

    def _check_lost(self) -> None:
        """It has ended, or can be spoken with no more; what it said last may still be on its way.

        Its pipes need not be closed when it ends: children of its own may hold them open for ever.
        """
        if self.ended.done() and not self._open & {1, 2}:
            self._lose()
        else:
            self._loop.call_later(LAST_MOMENTS, self._lose)

    def _lose(self) -> None:
        self._session.lost(self._why())

    def _why(self) -> MidcallError:
        code: Any = self._transport.get_returncode() if self._transport is not None else None
        if code is None:
            how = "closed its output" if 1 not in self._open else "closed its input"
        elif code < 0:
            with contextlib.suppress(ValueError):
                code = signal.Signals(-code).name
            how = f"was ended by {code}"
        else:
            how = f"ended with code {code}"
        said = f", and said: {' / '.join(self._last)}" if self._last else ""
        return TransportLost(f"The server {self._name} {how}{said}")


def _inherited() -> dict[str, str]:
    """What a server gets of the environment; no functions of shells, which some of them run."""
    found = ((name, os.environ.get(name)) for name in INHERITED)
    return {name: value for name, value in found if value is not None and not value.startswith("()")}


async def _ended(child: _Child) -> None:
    await asyncio.wait((child.ended,), timeout=PATIENCE)


def _signal(transport: asyncio.SubprocessTransport, how: int) -> None:
    """Tell the server, and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(transport.get_pid(), how)
        else:
            transport.send_signal(how)


def _message_in(line: bytes) -> bytes | None:
    """The message on a line: an array, or what stands behind a progress bar, a prompt or colours."""
    if b'"jsonrpc"' not in line:
        return None
    line = _COLOURS.sub(b"", line)
    for found in itertools.islice(re.finditer(rb"[{\[]", line), MAX_STARTS):
        message = line[found.start() :].rstrip()
        with contextlib.suppress(Fault):
            jsonrpc.decode(message)
            return message
    return None


def _text(line: bytes) -> str:
    return line[:MAX_TEXT].decode(errors="replace").rstrip()

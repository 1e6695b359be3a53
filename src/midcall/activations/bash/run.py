"""Runs one command: starts the launcher, and gives what comes of it in chunks.

Each chunk is a step of its call. So a call that is run again from its journal gives the same lines again,
and a process that dies in the middle leaves a step that was cut off: then nobody knows how the command has
ended, and it is not run again by itself.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from midcall.activations.bash.rules import ConfigError, LimitSettings
from midcall.activations.bash.sandbox import LAUNCH, Sandbox
from midcall.errors import StepInterrupted

GRACE = 2.0
"""Seconds between TERM and KILL."""

PATIENCE = 15.0
"""Seconds that the launcher has to end all processes, beyond that."""

PACE = 0.1
"""Seconds between two chunks, so that a journal is not written for each line."""

CHUNK = 64 * 1024
"""How many bytes of events one chunk has, about."""


class StdoutLine(Struct, tag_field="type", tag="stdout", omit_defaults=True):
    """A line of the standard output."""

    line: str
    continues: bool = False
    """Whether the line was too long, and goes on in the next event."""


class StderrLine(Struct, tag_field="type", tag="stderr", omit_defaults=True):
    """A line of the error output."""

    line: str
    continues: bool = False
    """Whether the line was too long, and goes on in the next event."""


class OutputCut(Struct, tag_field="type", tag="cut"):
    """There was more output than is passed on: a part is left out here."""

    bytes: int
    message: str


class BashNotice(Struct, tag_field="type", tag="notice"):
    """Something that a reader of the output should know."""

    message: str


class BashExit(Struct, tag_field="type", tag="exit", omit_defaults=True):
    """The command has ended; -1 if a signal has ended it."""

    code: int
    signal: str | None = None
    timed_out: bool = False
    """Whether it was ended because its time was over."""


class BashError(Struct, tag_field="type", tag="error"):
    """The command was not run, or it is not known how it ended."""

    message: str


BashEvent: TypeAlias = StdoutLine | StderrLine | OutputCut | BashNotice | BashExit | BashError

_decode = msgspec.json.Decoder(BashEvent).decode


Begin: TypeAlias = Callable[[], tuple[Sandbox, Mapping[str, str], LimitSettings]]
"""In what a command is run, its variables, and what it may take. Raises `ConfigError`."""


class CommandRun:
    """One command, from its start to its end."""

    def __init__(self, command: str, bash: str, cwd: str, timeout: float, begin: Begin) -> None:
        self._command = command
        self._bash = bash
        self._cwd = cwd
        self._timeout = timeout
        self._begin = begin
        self._process: asyncio.subprocess.Process | None = None
        self._left = ExitStack()
        self._until = 0.0
        self._last = 0.0
        self._timed_out = False

    async def next(self, number: int) -> list[dict[str, Any]]:
        """Some events, as JSON has them: the first call starts the command, the last one has its end."""
        if number == 0:
            try:
                await self._start()
            except ConfigError as error:
                return [{"type": "error", "message": f"Not run: {error}"}]
        elif self._process is None:
            raise StepInterrupted("CommandRun.next", str(number))
        events: list[BashEvent] = []
        size = 0
        while size < CHUNK:
            pause = max(0.0, self._last + PACE - time.monotonic()) if events else None
            line = await self._line(pause)
            if line is None:
                break
            whole = line.endswith(b"\n")
            event = _decode(line) if whole else BashError("The launcher of the command has died")
            if isinstance(event, BashExit):
                event = BashExit(event.code, event.signal, self._timed_out)
            events.append(event)
            size += len(line)
            if isinstance(event, BashExit | BashError):
                await self.close()
                break
        self._last = time.monotonic()
        made: list[dict[str, Any]] = msgspec.to_builtins(events)
        return made

    async def _start(self) -> None:
        sandbox, env, limits = await asyncio.to_thread(self._begin)
        described, needed = self._left.enter_context(sandbox.entered(self._cwd))
        spec = {
            "argv": [self._bash, "--noprofile", "--norc", "-c", self._command],
            "cwd": self._cwd,
            "env": {**env, **needed},
            "limit": limits.output,
            "limits": {
                "AS": limits.memory * 2**20,
                "FSIZE": limits.file_size * 2**20,
                "NOFILE": limits.open_files,
                "CPU": limits.cpu,
                "CORE": 0,
            },
            "processes": limits.processes,
            "grace": GRACE,
            "sandbox": described,
        }
        self._process = process = await asyncio.create_subprocess_exec(
            *LAUNCH,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            limit=1024 * 1024,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
        self._until = time.monotonic() + self._timeout
        assert process.stdin is not None  # noqa: S101  it is a pipe
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(spec).encode() + b"\n")
            await process.stdin.drain()

    async def _line(self, pause: float | None) -> bytes | None:
        """The next event; nothing if there is none within the pause, and no bytes at the end."""
        process = self._process
        assert process is not None  # noqa: S101  it was started
        assert process.stdout is not None  # noqa: S101  it is a pipe
        while True:
            left = self._until - time.monotonic()
            wait = left if pause is None else min(left, pause)
            try:
                async with asyncio.timeout(max(0.0, wait)):
                    return await process.stdout.readline()
            except TimeoutError:
                if pause is not None and self._until > time.monotonic():
                    return None
            except ValueError:  # a line that is too long: nothing that the launcher says
                return b""
            if self._timed_out:  # it was told, and has not obeyed
                process.kill()
                self._until = time.monotonic() + PATIENCE
            else:
                self._timed_out = True
                self._until = time.monotonic() + GRACE + PATIENCE
                self._tell_end()

    def _tell_end(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def close(self) -> None:
        """End the command, and all that it has started, if it still runs."""
        process, self._process = self._process, None
        if process is None:
            self._left.close()
            return
        try:
            if process.stdin is not None:
                process.stdin.close()
            try:
                async with asyncio.timeout(GRACE + PATIENCE):
                    if process.stdout is not None:
                        while await process.stdout.read(CHUNK):
                            pass
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        finally:
            await asyncio.to_thread(self._left.close)

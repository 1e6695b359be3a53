"""`--reload`: the server is started again whenever a source file has changed.

It is one worker of `workers`: the parent has the sockets, and a new worker, which loads the new code, takes
the place of the old one when it is ready. So nobody is turned away; calls drain as at SIGTERM, and those that
wait are in the journal. Code that cannot be loaded is told, and what was served before stays until it is
mended.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from midcall.cli.command import UsageError
from midcall.cli.listening import listen
from midcall.cli.workers import Workers

LOOK = 0.3
"""Seconds between two looks at the files: a poll needs no package, and sees network file systems too."""

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

log = logging.getLogger("midcall.reload")

Snapshot = dict[str, tuple[int, int]]
"""When each file was written, and its size."""


def refuse_reload(*, stdio: bool, workers: int | None) -> None:
    """Say why the server cannot be reloaded. Raises `UsageError`."""
    if sys.platform == "win32":
        raise UsageError("--reload: Windows cannot pass on a socket this way; start the server again instead")
    if stdio:
        raise UsageError("--reload is for HTTP: on standard input and output, the client starts the server")
    if workers is not None:
        raise UsageError("--reload is for one process; with --workers, SIGHUP starts new ones with new code")


def run_reloading(
    host: str,
    port: int,
    folders: Sequence[Path],
    *,
    grace: float,
    argv: Sequence[str],
    folder: str,
    listening: Callable[[int], None],
    is_ready: Callable[[int], None] = lambda port: None,
) -> int:
    """Serve, with new code whenever a file below `folders` changes, until a signal; gives the exit code.

    The others are as for `run_workers`. `is_ready` is called with the port when calls are served first.
    """
    sockets = listen(host, port)
    found = sockets[0].getsockname()[1]
    try:
        listening(found)
        log.info("Watching %s", ", ".join(map(str, folders)))
        reloading = Reloading(sockets, grace, argv, folder, lambda pid: None)
        reloading.folders = folders
        reloading.is_ready = lambda: is_ready(found)
        return asyncio.run(reloading.run(1))
    finally:
        for one in sockets:
            one.close()


class Reloading(Workers):
    """One worker, and another one in its place after each change."""

    folders: Sequence[Path] = ()
    is_ready: Callable[[], None] | None = None

    async def work(self) -> int:
        (slot,) = self.places
        while True:
            before = await asyncio.to_thread(snapshot, self.folders)
            old = slot.worker
            new, _ = await self.start_worker(slot.number)
            if new is not None:
                slot.worker = new
                if old is not None:
                    await old.stop(self.limit)
                    self.running.discard(old)
                    log.info("Reloaded")
                elif self.is_ready is not None:
                    await asyncio.to_thread(self.is_ready)
            elif old is None:
                log.error("Nothing is served until this is fixed")
            else:
                log.error("The previous code is served until this is fixed")
            changed = await self._changed(before)
            log.info("Reloading: %s", changed)

    async def _changed(self, before: Snapshot) -> str:
        """Wait until a file is not as it was, and has been written to its end; gives what has changed."""
        told = False
        (slot,) = self.places
        while True:
            now = await asyncio.to_thread(snapshot, self.folders)
            if self.renewing.is_set():
                self.renewing.clear()
                return "SIGHUP"
            if now != before:
                await asyncio.sleep(LOOK / 3)
                if now == await asyncio.to_thread(snapshot, self.folders):
                    changed = sorted(path for path in {*before, *now} if before.get(path) != now.get(path))
                    _forget_bytecode(changed)
                    return _some(changed)
                continue
            if slot.worker is not None and slot.worker.process.returncode is not None and not told:
                told = True
                self.running.discard(slot.worker)
                log.error("The server has ended, and is started again after a change")
                slot.worker = None
            await asyncio.sleep(LOOK)


def snapshot(folders: Sequence[Path]) -> Snapshot:
    """The Python files below these folders."""
    return {path: stamp for folder in folders for path, stamp in _files(str(folder))}


def _files(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    waiting = [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue  # it is gone, or not ours to read
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                        waiting.append(entry.path)
                elif entry.name.endswith(".py"):
                    found = entry.stat()
                    yield entry.path, (found.st_mtime_ns, found.st_size)
            except OSError:  # it has just been renamed
                continue


def _forget_bytecode(paths: Sequence[str]) -> None:
    """Have Python compile these anew: a change that leaves size and second as they were, it does not see."""
    for path in paths:
        with contextlib.suppress(OSError, NotImplementedError):
            Path(importlib.util.cache_from_source(path)).unlink()


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(os.path.relpath(name) for name in names[:3]) + more

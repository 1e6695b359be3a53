"""`midcall serve --workers N` in a process of its own."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from driving import LIMIT, until
from peers import HERE, command, environment, free_port
from workers_chaos import children, effects, tool


class Parent:
    """`midcall serve --workers N` in a process of its own."""

    def __init__(
        self, folder: Path, *options: str, workers: int = 2, target: str = "workers_app:hub"
    ) -> None:
        self.port = free_port()
        self._log = folder / "log"
        self.ledger = folder / "ledger"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command(
                    *("serve", target, "--workers", str(workers), "--port", str(self.port)),
                    *("--journal", str(folder / "journal.db"), *options),
                ),
                cwd=HERE,
                env={**environment(), "LEDGER": str(self.ledger)},
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def workers(self) -> list[int]:
        return children(self.process.pid)

    def until(self, condition: Callable[[], bool], limit: float = LIMIT) -> None:
        end = time.monotonic() + limit
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.02)

    async def runs_slow(self) -> int:
        """Wait until `work.slow` has begun; gives the worker that runs it."""
        await until(lambda: effects(self.ledger))
        return int(effects(self.ledger)[0]["pid"])

    def enough(self) -> None:
        """Have what takes a while end."""
        Path(f"{self.ledger}.enough").touch()

    def said(self, words: str) -> None:
        self.until(lambda: words in self.log)

    def ends(self, limit: float = LIMIT) -> int:
        return self.process.wait(limit)

    def ask(self, name: str, **arguments: Any) -> Any:
        return asyncio.run(tool(self.port, f"work.{name}", arguments))


@contextmanager
def serving(folder: Path, *options: str, workers: int = 2) -> Iterator[Parent]:
    parent = Parent(folder, *options, workers=workers)
    try:
        parent.said("workers are ready")
        yield parent
    finally:
        if parent.process.poll() is None:
            parent.process.terminate()
            try:
                parent.ends()
            except subprocess.TimeoutExpired:
                for pid in parent.workers:
                    os.kill(pid, signal.SIGKILL)
                parent.process.kill()
                parent.process.wait()
    assert "Traceback" not in parent.log, parent.log

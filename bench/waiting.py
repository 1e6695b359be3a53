"""`make bench-waiting`: what waiting calls cost: memory, a restart with many of them, a journal that grows.

A real server over HTTP, on SQLite. Prints a table and writes it into docs/topics/scale.md.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import http.client
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.peers import wire
from bench.peers.http import HttpLoad
from bench.stdio import HERE, memory_of
from midcall.journal.base import CallRecord, Entry, Parking
from midcall.journal.kept import new_record
from midcall.journal.sqlite import SqliteJournal

PAGE = HERE.parent / "docs" / "topics" / "scale.md"
START, END = "<!-- waiting figures -->", "<!-- /waiting figures -->"
COMMAND = [sys.executable, "-m", "midcall", "serve", f"{HERE / 'app.py'}:hub", "--log-level", "error"]

Row = tuple[str, str, str]


class Waiting(HttpLoad):
    """A server on a journal, and calls that wait in it."""

    def __init__(self, journal: Path) -> None:
        command = [*COMMAND, "--journal", str(journal), "--port"]
        super().__init__(lambda port: [*command, str(port)], "bench.once", "bench.ask", modern=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return self._port

    def ask_many(self, count: int) -> bytes:
        """Start calls that wait; gives what the last one said."""
        head, first = self._head("bench.ask"), wire.call("bench.ask", {}, modern=True)
        left, last = count, b""

        def ended(said: bytes) -> bytes | None:
            nonlocal left, last
            wire.check(said)
            last = said
            left -= 1
            return None

        while left > 0:
            self._drive(min(left / 500, 2.0), lambda: self._post(head, first % next(self._number)), ended)
        return last

    def answer(self, said: bytes) -> float:
        """Answer one; how many seconds it took."""
        request = wire.retry("bench.ask", {}) % (next(self._number), wire.answered(said))
        start = time.perf_counter()
        result = self._exchange(self._connections(1)[0], self._head("bench.ask"), request)
        taken = time.perf_counter() - start
        if b'"complete"' not in result:
            raise wire.Broken(result.decode(errors="replace"))
        return taken

    def kill(self) -> None:
        for connection in self._idle:
            connection.close()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def memory(count: int, folder: Path) -> tuple[float, Path, bytes]:
    """Megabytes of a server in which so many calls wait."""
    journal = folder / f"{count}.db"
    with Waiting(journal) as server:
        server.plain_for(0.5)
        last = server.ask_many(count)
        size = memory_of(server.pid) / 1e6
        server.kill()
    return size, journal, last


def restart(journal: Path, said: bytes) -> tuple[float, float]:
    """Seconds until a server on this journal is ready, and until the first answer is served."""
    start = time.perf_counter()
    server = Waiting(journal)
    try:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
                line.request("GET", "/health")
                if line.getresponse().status == 200:
                    break
            time.sleep(0.002)
        ready = time.perf_counter() - start
        return ready, server.answer(said)
    finally:
        server.kill()


def bare_start() -> float:
    """Seconds of a server that has no journal: Python, the imports, the socket."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, "--journal", "memory", "--port", "0", "--help"], stdout=subprocess.DEVNULL
    )
    process.wait()
    return time.perf_counter() - start


async def growth(folder: Path, sizes: list[int]) -> list[tuple[int, float]]:
    """Ask cycles a second, 64 at once, with so many calls in the journal."""
    journal = SqliteJournal(folder / "growth.db")
    await journal.open()
    found: list[tuple[int, float]] = []
    there = 0
    try:
        for size in sizes:
            await _fill(journal, size - there)
            there = size
            found.append((size, max([await _cycles(journal) for _ in range(3)])))
            print(f"{size:,} calls in the journal: {found[-1][1]:,.0f} cycles a second", flush=True)
    finally:
        await journal.close()
    return found


def _record() -> CallRecord:
    return new_record("mcp", "bench.ask", b"{}", b"{}", "somebody", None, 3600.0)


ENTRY = Entry("1", "confirm 'Go on?' (0123456789ab)", "begun", b'{"until":null}')
QUESTION = json.dumps(
    {"question-1": {"method": "elicitation/create", "params": {"message": "Go on?"}}}
).encode()


def _waiting(record: CallRecord) -> Any:
    import msgspec

    return msgspec.structs.replace(record, status="waiting", segment=1, questions=QUESTION)


async def _fill(journal: SqliteJournal, count: int) -> None:
    gate = asyncio.Semaphore(512)

    async def one() -> None:
        async with gate:
            await journal.create(_waiting(_record()), [ENTRY], QUESTION)

    for begin in range(0, count, 10_000):
        await asyncio.gather(*(one() for _ in range(min(10_000, count - begin))))


async def _cycles(journal: SqliteJournal, count: int = 4000) -> float:
    """Each is what one question costs: create, claim, append, settle."""
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            record = _record()
            await journal.create(_waiting(record), [ENTRY], QUESTION)
            claim: Any = await journal.claim(record.id, 1)
            await journal.append(record.id, claim.call.fence, [ENTRY])
            parking = Parking(status="completed", expires=time.time() + 3600)
            await journal.settle(record.id, claim.call.fence, 1, QUESTION, parking, [ENTRY])

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(64)))
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.waiting", description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="calls in the largest journal")
    parser.add_argument("--waiting", type=int, default=100_000, help="calls that wait in one process")
    parser.add_argument("--dry", action="store_true", help="print only, and leave the page alone")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="midcall-bench-") as name:
        folder = Path(name)
        few = min(10_000, options.waiting)
        size, journal, said = memory(few, folder)
        rows.append(
            (f"memory with {few:,} calls waiting", f"{size:.0f} MB", _verdict(size < 100, "under 100 MB"))
        )
        bare = bare_start()
        ready, first = min(restart(journal, said) for _ in range(1))
        rows.append(
            (
                f"start with {few:,} calls waiting",
                f"{ready:.2f} s ({bare:.2f} s of it Python and imports)",
                _verdict(ready < 1, "under 1 s"),
            )
        )
        rows.append(
            ("first answer after that", f"{first * 1000:.0f} ms", _verdict(first < 0.05, "under 50 ms"))
        )
        size, _, _ = memory(options.waiting, folder)
        rows.append(
            (
                f"memory with {options.waiting:,} calls waiting, the coldest dropped",
                f"{size:.0f} MB",
                _verdict(size < 250, "under 250 MB"),
            )
        )
        sizes = [n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= options.most]
        grown = asyncio.run(growth(folder, sizes))
        for count, rate in grown:
            rows.append((f"ask cycles, {count:,} calls in the journal", f"{rate:,.0f}/s", ""))
        kept = grown[-1][1] / grown[0][1]
        rows.append(("the last of these beside the first", f"{kept:.0%}", _verdict(kept > 0.7, "flat")))
    lines = ["| what | measured | goal |", "|---|---:|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    print("\n".join(lines))
    if not options.dry:
        _write(lines)


def _verdict(reached: bool, goal: str) -> str:
    return f"{goal}: {'reached' if reached else 'not reached'}"


def _write(lines: list[str]) -> None:
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    when = f"Measured on {dt.date.today():%Y-%m-%d} with `make bench-waiting`: "
    text = f"{when}Python {platform.python_version()}, {system}, SQLite."
    before, found, rest = PAGE.read_text().partition(START)
    if not found:
        raise SystemExit(f"{PAGE} has no place for the figures: {START}")
    PAGE.write_text(before + "\n\n".join([START, text, "\n".join(lines), END]) + rest.partition(END)[2])


if __name__ == "__main__":
    main()

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
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.peers import chart, wire
from bench.peers.http import CONNECTIONS, HttpLoad
from bench.stdio import HERE, memory_of
from midcall.journal.contract import CallRecord, Entry, Parking
from midcall.journal.sqlite import SqliteJournal
from midcall.journal.state import new_record

PAGE = HERE.parent / "docs" / "topics" / "scale.md"
CHART = HERE.parent / "docs" / "images" / "waiting.svg"
ROUNDS = 9
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
        connections, last = self._connections(CONNECTIONS), b""
        for begin in range(0, count, CONNECTIONS):
            batch = connections[: count - begin]
            for connection in batch:
                connection.sendall(self._post(head, first % next(self._number)))
            for connection in batch:
                last = self._receive(connection)
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


def memory(counts: list[int], folder: Path) -> tuple[list[tuple[int, float]], Path, bytes]:
    """Megabytes of one server in which ever more calls wait; and a journal with the first so many, killed."""
    found: list[tuple[int, float]] = []
    with Waiting(folder / "most.db") as server:
        server.plain_for(0.5)
        there = 0
        for count in counts:
            server.ask_many(count - there)
            there = count
            found.append((count, memory_of(server.pid) / 1e6))
            print(f"{count:,} calls waiting: {found[-1][1]:.0f} MB", flush=True)
        server.kill()
    return found, *_killed(counts[1], folder)


def _killed(count: int, folder: Path) -> tuple[Path, bytes]:
    """The journal of a server that was killed while so many calls waited, and the last question."""
    journal = folder / "killed.db"
    with Waiting(journal) as server:
        said = server.ask_many(count)
        server.kill()
    return journal, said


def restart(journal: Path, said: bytes) -> tuple[float, float]:
    """Seconds until a server on a copy of this journal is ready, and until the first answer is served."""
    copied = journal.with_name("copied.db")
    for suffix in ("", "-wal"):
        source = journal.with_name(journal.name + suffix)
        copied.with_name(copied.name + suffix).write_bytes(source.read_bytes() if source.exists() else b"")
    start = time.perf_counter()
    server = Waiting(copied)
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


async def growth(folder: Path, sizes: list[int]) -> dict[int, list[float]]:
    """Ask cycles a second, 64 at once, in journals of so many calls, which take turns."""
    journals: dict[int, SqliteJournal] = {}
    found: dict[int, list[float]] = {size: [] for size in sizes}
    try:
        for size in sizes:
            journals[size] = SqliteJournal(folder / f"{size}.db")
            await journals[size].open()
            await _fill(journals[size], size)
            print(f"a journal of {size:,} calls is made", flush=True)
        for _ in range(ROUNDS):
            for size, journal in journals.items():
                found[size].append(await _cycles(journal))
    finally:
        for journal in journals.values():
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


async def _cycles(journal: SqliteJournal, count: int = 2000) -> float:
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
    with tempfile.TemporaryDirectory(prefix="midcall-bench-") as name:
        folder = Path(name)
        counts = [n for n in (1_000, 10_000, 30_000, 100_000) if n <= options.waiting]
        sizes, journal, said = memory(counts, folder)
        restarts = [restart(journal, said) for _ in range(ROUNDS)]
        grown = asyncio.run(
            growth(folder, [n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= options.most])
        )
    lines = table(dict(sizes), counts[1], restarts, grown)
    print("\n".join(lines))
    if not options.dry:
        _write(lines)
        CHART.write_text(drawn(sizes, grown))


def table(
    sizes: dict[int, float], few: int, restarts: list[tuple[float, float]], grown: dict[int, list[float]]
) -> list[str]:
    rows: list[Row] = []
    for count, size in sizes.items():
        limit = {10_000: 100, 100_000: 250}.get(count)
        goal = "" if limit is None else _verdict(size < limit, f"under {limit} MB")
        rows.append((f"memory with {count:,} calls waiting", f"{size:.0f} MB", goal))
    for what, times, limit in (
        (f"start with {few:,} calls waiting, after `kill -9`", [ready for ready, _ in restarts], 1.0),
        ("first answer after that", [first for _, first in restarts], 0.05),
    ):
        middle = statistics.median(times)
        text = f"{middle * 1000:.0f} ms ({min(times) * 1000:.0f} to {max(times) * 1000:.0f})"
        rows.append((what, text, _verdict(middle < limit, f"under {limit * 1000:.0f} ms")))
    for count, rates in grown.items():
        rows.append((f"ask cycles, {count:,} calls in the journal", f"{statistics.median(rates):,.0f}/s", ""))
    first, *_, last = grown.values()
    kept = statistics.median(b / a for a, b in zip(first, last, strict=True))
    rows.append(
        ("the last of these beside the first, round by round", f"{kept:.0%}", _verdict(kept > 0.8, "flat"))
    )
    return ["| what | measured | goal |", "|---|---:|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def drawn(sizes: list[tuple[int, float]], grown: dict[int, list[float]]) -> str:
    return chart.chart(
        {
            "Memory of one server, by calls that wait": [
                (f"{count:,}", size, f"{size:.0f} MB") for count, size in sizes
            ],
            "Ask cycles a second, by calls in the journal": [
                (f"{count:,}", rate, f"{rate:,.0f}")
                for count, rate in ((count, statistics.median(rates)) for count, rates in grown.items())
            ],
        }
    )


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

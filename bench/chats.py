"""`make bench-chats`: 200 chats that stream at once in one process, and whether they starve each other.

One server over HTTP with conversations on SQLite, and a paced script in the place of the model: 50 words, one
each 20 ms. Of each chat it measures the time to the first text and to the end, and the largest gap between
two pieces of text; the same for one chat alone, before and after. Prints a table and writes it into
docs/topics/performance.md.
"""

import argparse
import asyncio
import datetime as dt
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.stdio import HERE, cpu_of
from midcall import Hub
from midcall.activations.echo import Echo
from midcall.chat import ChatEngine
from midcall.models.scripted import Scripted

PAGE = HERE.parent / "docs" / "topics" / "performance.md"
START, END = "<!-- chat figures -->", "<!-- /chat figures -->"
WORDS, PACE = 50, 0.02

Row = tuple[str, str, str, str]


def hub() -> Hub:
    """What is served: a chat in which a script says 50 words."""
    made = Hub("bench").register(Echo())
    ChatEngine(made, Scripted(otherwise="word " * WORDS, pace=PACE))
    return made


class Seen(NamedTuple):
    """What one chat looked like to its reader, in seconds."""

    first: float
    whole: float
    gap: float


class Reader(asyncio.Protocol):
    """One person: says something, and reads the answer."""

    def __init__(self, port: int) -> None:
        body = json.dumps({"message": "Hello"}).encode()
        head = f"POST /chat HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        head += "Content-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._texts: list[float] = []
        self._pieces = 0
        self._tail = b""
        self._transport: asyncio.WriteTransport | None = None
        self.seen: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def say(self) -> None:
        assert self._transport is not None
        self._begun = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        pieces = sum(b'"type":"text"' in line for line in lines)
        if pieces:
            self._pieces += pieces
            self._texts.append(now)
        if any(b'"type":"complete"' in line for line in lines):
            assert self._pieces == WORDS, self._pieces
            gaps = [after - before for before, after in zip(self._texts, self._texts[1:], strict=False)]
            self.seen.set_result(Seen(self._texts[0] - self._begun, now - self._begun, max(gaps)))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.seen.done():
            self.seen.set_exception(error or ConnectionError("The answer broke off"))


async def chats(port: int, count: int) -> list[Seen]:
    """So many people at once."""
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Reader(port), "127.0.0.1", port) for _ in range(count)]
    for _, reader in made:
        reader.say()
    async with asyncio.timeout(120):
        found = [await reader.seen for _, reader in made]
    for transport, _ in made:
        transport.close()
    return found


def measure(count: int, rounds: int, journal: str = "") -> list[Row]:
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "midcall", "serve", "bench.chats:hub", "--port", str(port)]
        options = ["--journal", journal or str(Path(folder) / "journal.db"), "--log-level", "error"]
        server = subprocess.Popen([*command, *options], cwd=HERE.parent)
        try:
            _until_open(port, server)
            asyncio.run(chats(port, 20))  # what is loaded and opened once
            alone = [asyncio.run(chats(port, 1))[0] for _ in range(rounds)]
            before, start = cpu_of(server.pid), time.perf_counter()
            together = [one for _ in range(rounds) for one in asyncio.run(chats(port, count))]
            taken = time.perf_counter() - start
            busy = (cpu_of(server.pid) - before) / taken
            alone += [asyncio.run(chats(port, 1))[0] for _ in range(rounds)]
        finally:
            server.terminate()
            server.wait(20)
    shares = ((50, "half of them"), (99, "99 %"), (100, "all"))
    rows = [("one alone, the slowest", *_told([max(column) for column in zip(*alone, strict=True)]))]
    for share, name in shares:
        rows.append(
            (f"{count} at once, {name}", *_told([_share(c, share) for c in zip(*together, strict=True)]))
        )
    speed = WORDS * count * rounds / taken
    rows.append(("the server meanwhile", f"{speed:,.0f} pieces/s", f"{busy:.0%} of a core", ""))
    return rows


def _told(values: Sequence[float]) -> tuple[str, str, str]:
    first, whole, gap = (f"{value * 1000:,.0f} ms" for value in values)
    return first, whole, gap


def _share(values: Sequence[float], share: int) -> float:
    if share == 100:
        return max(values)
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def _until_open(port: int, server: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def write(rows: Sequence[Row]) -> None:
    """Put the table into the page, between its marks."""
    table = ["| chats | to the first text | to the end | largest gap |", "|---|---:|---:|---:|"]
    table += [f"| {' | '.join(row)} |" for row in rows]
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    machine = f"Python {platform.python_version()}, {system}"
    text = f"{START}\n\nMeasured on {dt.date.today():%Y-%m-%d} with `make bench-chats`: {machine}.\n\n"
    before, _, rest = PAGE.read_text().partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(before + text + "\n".join(table) + f"\n\n{END}" + after)
    print(f"\nWritten to {PAGE}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chats", description=__doc__)
    parser.add_argument("--chats", type=int, default=200, help="how many at once (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="how often (default: 5)")
    parser.add_argument("--journal", default="", help="where it is all kept (default: a file)")
    parser.add_argument("--dry", action="store_true", help="print only, and leave the page alone")
    options = parser.parse_args()
    rows = measure(options.chats, options.rounds, options.journal)
    for row in rows:
        print(f"{row[0]:<32} {row[1]:>18} {row[2]:>16} {row[3]:>12}", flush=True)
    if not options.dry:
        write(rows)


if __name__ == "__main__":
    main()

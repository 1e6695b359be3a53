"""What a durable ask costs: `python -m bench.durable [--before TREE]`.

Rounds of two kinds, all in one run, as machines are noisy: modern asks on stdio with one in flight, in CPU of
the server for each (with three bare SQLite transactions as the floor); and modern asks over HTTP, 64 at once,
on SQLite beside those kept in memory. With another source tree, the same of that, and the ratios.
"""

import argparse
import functools
import itertools
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.peers import wire
from bench.peers.http import HttpLoad
from bench.peers.meter import Meter
from bench.stdio import HERE, Server

ROUNDS = 7
SECONDS = 1.0


class Figures(NamedTuple):
    """Of one tree, in one round."""

    stdio: float
    """µs of CPU for a durable ask on stdio."""
    sqlite: float
    """Asks a second over HTTP, on SQLite."""
    memory: float


class OneInFlight(Server):
    """A server on pipes that gets one modern request after the other."""

    def ask_for(self, seconds: float) -> float:
        """µs of the server's CPU for each round trip: a call, its question, the answer, the result."""
        first, again = wire.call("bench.ask", {}, modern=True), wire.retry("bench.ask", {})
        numbers, done = itertools.count(1), 0
        meter = Meter(self._process.pid, seconds)
        while meter.going():
            asked = self._exchange(first % next(numbers))
            self._exchange(again % (next(numbers), wire.answered(asked)))
            done += 1
        return meter.pace(done).cpu

    def _exchange(self, request: bytes) -> bytes:
        self.write(request + b"\n")
        said = b""
        while not said.endswith(b"\n"):
            said += self.read()
        wire.check(said)
        return said


def measure(tree: Path) -> Figures:
    """A new server for each load, from this source tree."""
    os.environ["PYTHONPATH"] = str(tree / "src")
    base = [sys.executable, "-m", "midcall", "serve", f"{HERE / 'app.py'}:hub", "--log-level", "error"]
    with tempfile.TemporaryDirectory(prefix="midcall-bench-") as folder:
        journals = {"sqlite": f"{folder}/journal.db", "memory": "memory"}
        with OneInFlight([*base, "--journal", f"{folder}/stdio.db", "--stdio", "--mcp-only"]) as server:
            server.ask_for(SECONDS / 3)
            stdio = server.ask_for(SECONDS)
        rates = {}
        for name, journal in journals.items():
            command = functools.partial(_on_port, [*base, "--journal", journal, "--port"])
            with HttpLoad(command, "bench.once", "bench.ask", modern=True) as load:
                load.ask_for(SECONDS / 3)
                rates[name] = load.ask_for(SECONDS).rate
    return Figures(stdio, rates["sqlite"], rates["memory"])


def _on_port(command: list[str], port: int) -> list[str]:
    return [*command, str(port)]


def floor() -> float:
    """µs of CPU for three small transactions of SQLite, each on the disk."""
    with tempfile.TemporaryDirectory(prefix="midcall-bench-") as folder:
        connection = sqlite3.connect(f"{folder}/floor.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE calls (id INTEGER PRIMARY KEY, body BLOB)")
        begun, until, done = time.process_time(), time.monotonic() + SECONDS / 2, 0
        while time.monotonic() < until:
            for _ in range(3):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO calls (body) VALUES (?)", (b"x" * 500,))
                connection.execute("COMMIT")
            done += 1
        connection.close()
        return (time.process_time() - begun) / done * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.durable", description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, help="another source tree to measure beside this one")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"how often each is measured (default: {ROUNDS})"
    )
    options = parser.parse_args()
    trees = {"now": HERE.parent} | ({"before": options.before} if options.before else {})
    rounds: list[dict[str, Figures]] = []
    floors = []
    for number in range(options.rounds):
        rounds.append({name: measure(tree) for name, tree in trees.items()})
        floors.append(floor())
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    print(f"three bare transactions of SQLite    {statistics.median(floors):7.0f} µs")
    for name in trees:
        stdio = statistics.median(one[name].stdio for one in rounds)
        share = statistics.median(one[name].sqlite / one[name].memory for one in rounds)
        rate = statistics.median(one[name].sqlite for one in rounds)
        print(f"{name:7} an ask on stdio, one in flight {stdio:5.0f} µs of CPU")
        print(f"{name:7} asks over HTTP on SQLite, 64 at once {rate:6.0f}/s, {share:.0%} of those in memory")
    if options.before:
        cpu = statistics.median(one["now"].stdio / one["before"].stdio for one in rounds)
        rate = statistics.median(one["now"].sqlite / one["before"].sqlite for one in rounds)
        print(f"now beside before: {cpu:.2f} times the CPU on stdio, {rate:.2f} times the asks over HTTP")


if __name__ == "__main__":
    main()

"""`make bench`: measure, print a table, and write it into docs/topics/performance.md.

Each figure is the best of several rounds in which the floor and midcall take turns, so that a busy
moment of the machine falls on both. What counts is the ratio; the absolute figures say only what
this machine did today.
"""

import argparse
import datetime as dt
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.stdio import FLOOR, MIDCALL, Server, rate

PAGE = Path(__file__).parent.parent / "docs" / "topics" / "performance.md"
START, END = "<!-- figures -->", "<!-- /figures -->"

Row = tuple[str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (default: 5)")
    parser.add_argument("--calls", type=int, default=100_000, help="calls a round at 64 in flight")
    parser.add_argument("--dry", action="store_true", help="print only, and leave the page alone")
    options = parser.parse_args()
    rows: list[Row] = []
    for row in measure(options.rounds, options.calls):
        print(f"{row[0]:<44} {row[1]:>18} {row[2]:>28}", flush=True)
        rows.append(row)
    if not options.dry:
        write(rows)


def measure(rounds: int, calls: int) -> Iterator[Row]:
    with Server(FLOOR) as floor, Server(MIDCALL) as server:
        floor.plain(2000, 64)
        server.plain(2000, 64)
        for in_flight, count in ((1, calls // 10), (64, calls)):
            bare = [0.0]
            ours = [0.0]
            cpu = []
            for _ in range(rounds):
                bare.append(rate(floor, floor.plain, count, in_flight)[0])
                speed, cost = rate(server, server.plain, count, in_flight)
                ours.append(speed)
                cpu.append(cost)
            share = f"{max(ours) / max(bare):.0%} of the floor"
            yield f"floor: echo, {in_flight} in flight", f"{max(bare):,.0f}/s", "bare asyncio loop"
            yield f"plain calls, {in_flight} in flight", f"{max(ours):,.0f}/s", share
            yield f"server CPU for one of them, {in_flight} in flight", f"{min(cpu):.1f} µs", ""
    with Server(MIDCALL) as server:
        server.ask(1000, 64)
        for in_flight, count in ((1, calls // 20), (64, calls // 5)):
            asks = [rate(server, server.ask, count, in_flight) for _ in range(rounds)]
            yield (
                f"ask round trips, {in_flight} in flight",
                f"{max(a[0] for a in asks):,.0f}/s",
                "start, question, answer, result",
            )
            yield (
                f"server CPU for one of them, {in_flight} in flight",
                f"{min(a[1] for a in asks):.1f} µs",
                "",
            )
    yield "memory of a waiting call", f"{waiting_memory(5000) / 1000:.1f} kB", "5,000 waiting over stdio"
    for what, code in (
        ("import of midcall", "from midcall import Ask, Hub, method"),
        ("start of Python alone", "pass"),
    ):
        yield what, f"{best(rounds, [sys.executable, '-c', code]) * 1000:.0f} ms", "whole process"
    yield (
        "`midcall --help`",
        f"{best(rounds, [sys.executable, '-m', 'midcall', '--help']) * 1000:.0f} ms",
        "whole process",
    )
    yield (
        "cold start to the first response",
        f"{min(first_response() for _ in range(rounds)) * 1000:.0f} ms",
        "serve --stdio",
    )


def waiting_memory(count: int) -> float:
    """Bytes that each of so many waiting calls costs the server."""
    with Server(MIDCALL) as server:
        server.ask(2000, 64)  # what is allocated once
        before = server.memory()
        server.wait(count)
        return (server.memory() - before) / count


def first_response() -> float:
    start = time.perf_counter()
    with Server(MIDCALL) as server:
        server.plain(1, 1)
        return time.perf_counter() - start


def best(rounds: int, command: list[str]) -> float:
    """The shortest wall time of a command."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times)


def write(rows: list[Row]) -> None:
    """Put the table into the page, between its marks."""
    table = ["| what | measured | |", "|---|---:|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    machine = f"Python {platform.python_version()}, {system}"
    text = f"{START}\n\nMeasured on {dt.date.today():%Y-%m-%d} with `make bench`: {machine}.\n\n"
    page = PAGE.read_text()
    before, _, rest = page.partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(before + text + "\n".join(table) + f"\n\n{END}" + after)
    print(f"\nWritten to {PAGE}")


main()

"""`make bench-machines`: transitions a second of a loop of three states, beside LangGraph and pydantic-graph.

A state adds one to a number, and after thirty times round the machine ends: nothing is measured but the
machine. All of them are started at once and take turns, in many short rounds, each in a process and with
packages of its own. What is told is the median; what is compared is compared within each round, and the
median of that is told, as machines are noisy. The figures go to `docs/topics/performance.md`.
"""

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from compliance.harness.install import python_package

from bench.peers.contenders import CACHE
from bench.peers.meter import Pace, Paces
from bench.stdio import HERE

DRIVERS = Path(__file__).parent / "drivers"
PAGE = HERE.parent / "docs" / "topics" / "performance.md"
START, END = "<!-- machine figures -->", "<!-- /machine figures -->"

LANGGRAPH, SQLITE_SAVER, PYDANTIC_GRAPH = "1.2.22", "3.1.2", "2.66.0"


@dataclass(frozen=True)
class Contender:
    """One way to run the loop. `kept` says when a transition is on the disk, if it ever is."""

    name: str
    command: Sequence[str]
    kept: str = ""


class Driver:
    """A contender that runs, and waits for its turn."""

    def __init__(self, contender: Contender) -> None:
        self._process = subprocess.Popen(
            contender.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def run_for(self, seconds: float) -> Pace:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("A driver has no pipes")
        print(seconds, file=self._process.stdin, flush=True)
        said = json.loads(self._process.stdout.readline())
        done = said["transitions"]
        return Pace(done / said["seconds"], said["cpu"] / done * 1e6)


def contenders(folder: Path) -> list[Contender]:
    """All of them, installed; their files are in this folder."""
    midcall = [sys.executable, str(DRIVERS / "midcall_machine.py")]
    also = (f"langgraph-checkpoint-sqlite=={SQLITE_SAVER}",)
    python = python_package(CACHE, "langgraph", LANGGRAPH, (), print, also)
    langgraph = [str(python), "-E", str(DRIVERS / "python_langgraph.py")]
    python = python_package(CACHE, "pydantic-graph", PYDANTIC_GRAPH, (), print)
    pydantic_graph = [str(python), "-E", str(DRIVERS / "python_pydantic_graph.py")]
    before, beside = "before the next one", "while the next one runs"
    on_file = [
        ("SqliteSaver, sync", "invoke", "sync", before),
        ("AsyncSqliteSaver, sync", "ainvoke", "sync", before),
        ("SqliteSaver, async", "invoke", "async", beside),
    ]
    return [
        Contender("midcall", [*midcall, "memory"]),
        Contender(f"pydantic-graph {PYDANTIC_GRAPH}", pydantic_graph),
        Contender(f"LangGraph {LANGGRAPH}, no checkpointer", [*langgraph, "none", "invoke"]),
        Contender(f"LangGraph {LANGGRAPH}, InMemorySaver", [*langgraph, "memory", "invoke", "sync"]),
        Contender("midcall on SQLite", [*midcall, "sqlite", str(folder / "journal.db")], before),
        *(
            Contender(
                f"LangGraph {LANGGRAPH}, {name}",
                [*langgraph, "sqlite", how, mode, str(folder / f"{how}-{mode}.db")],
                kept,
            )
            for name, how, mode, kept in on_file
        ),
    ]


def measure(entrants: Sequence[Contender], rounds: int, seconds: float) -> dict[str, Paces]:
    """All of them, in turns."""
    paces: dict[str, list[Pace]] = {one.name: [] for one in entrants}
    with ExitStack() as stack:
        drivers = {one.name: stack.enter_context(Driver(one)) for one in entrants}
        for driver in drivers.values():
            driver.run_for(seconds)  # what is made once, is
        for number in range(rounds):
            for name, driver in drivers.items():
                paces[name].append(driver.run_for(seconds))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return {name: Paces(found) for name, found in paces.items()}


def table(entrants: Sequence[Contender], paces: Mapping[str, Paces]) -> list[str]:
    """What each came to."""
    lines = ["| machine | transitions | CPU of each | on the disk |", "|---|---:|---:|---|"]
    for one in entrants:
        pace = paces[one.name]
        name = f"**{one.name}**" if one.name.startswith("midcall") else one.name
        lines.append(f"| {name} | {pace.rate:,.0f}/s | {pace.cpu:,.0f} µs | {one.kept or 'never'} |")
    return lines


def goals(entrants: Sequence[Contender], paces: Mapping[str, Paces]) -> tuple[list[str], bool]:
    """What was hoped for, and what came of it."""
    lines, all_reached = ["| goal | measured | by CPU |  |", "|---|---:|---:|---|"], True
    for ours, wanted, text in (
        ("midcall", 3.0, "in memory: 3 times the best of the others"),
        ("midcall on SQLite", 1.0, "on the disk before the next one: no slower than the best of the others"),
    ):
        kept = next(one.kept for one in entrants if one.name == ours)
        peers = [one.name for one in entrants if one.kept == kept and not one.name.startswith("midcall")]
        best = min(peers, key=lambda name: paces[ours].rate_beside(paces[name]))
        ratio = paces[ours].rate_beside(paces[best])
        by_cpu = paces[ours].cpu_beside(paces[best])
        reached = "reached" if ratio >= wanted else "not reached"
        all_reached = all_reached and ratio >= wanted
        lines.append(f"| {text} ({best}) | {ratio:.1f} times | {by_cpu:.1f} times | {reached} |")
    return lines, all_reached


def write(tables: Sequence[Sequence[str]]) -> None:
    """Put the tables into the page, between its marks."""
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    when = f"Measured on {dt.date.today():%Y-%m-%d} with `make bench-machines`: "
    text = f"{when}Python {platform.python_version()}, {system}."
    blocks = [START, text, *("\n".join(table) for table in tables), END]
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + "\n\n".join(blocks) + rest.partition(END)[2])
    print(f"\nWritten to {PAGE}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.machines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="how often each is measured (default: 21)")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long each time (default: 0.3)")
    parser.add_argument("--only", default="", help="only those whose name has this in it; implies --dry")
    parser.add_argument("--dry", action="store_true", help="print only, and leave the docs alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="midcall-bench-") as folder:
        entrants = [one for one in contenders(Path(folder)) if options.only.lower() in one.name.lower()]
        paces = measure(entrants, options.rounds, options.seconds)
    tables, reached = [table(entrants, paces)], True
    if not options.only:
        hoped, reached = goals(entrants, paces)
        tables.append(hoped)
    print("\n\n".join("\n".join(one) for one in tables))
    if not (options.dry or options.only):
        write(tables)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())

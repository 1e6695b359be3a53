"""Clients beside each other in one run, all against the same midcall server: `python -m bench.callers`.

A parallel batch of 10,000 calls over stdio and over HTTP (fewer for the slow ones), and what one hop through
a mounted server costs. The figures go to `docs/topics/performance.md`; only the ratios mean much, as machines
are noisy.
"""

import argparse
import datetime as dt
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from compliance.harness.install import python_package

from bench.peers.contenders import CACHE, MIDCALL
from bench.peers.meter import Pace
from bench.peers.stdio import StdioLoad
from bench.stdio import HERE

DRIVERS = Path(__file__).parent / "drivers"
PAGE = HERE.parent / "docs" / "topics" / "performance.md"
START, END = "<!-- client figures -->", "<!-- /client figures -->"
CALLS = 10_000
SLOW_CALLS = 1_000
"""For clients that would take minutes."""
GOAL = 8.0
HOP = 60.0

STDIO = [*MIDCALL, "--stdio", "--mcp-only", "--journal", "memory"]


def main() -> int:
    args = _arguments()
    clients = {
        "midcall": [sys.executable, str(DRIVERS / "midcall_client.py"), str(args.calls)],
        "mcp 2.3.0": _official("mcp", "2.3.0", (), "python_mcp.py"),
        "fastmcp 4.1.4": _official("fastmcp", "4.1.4", ("certifi",), "python_fastmcp.py"),
    }
    paces: dict[str, dict[str, list[Pace]]] = {}
    with _http_server() as url:
        for number in range(args.rounds):
            for line, target in (("stdio", STDIO), ("HTTP", [url])):
                for name, command in clients.items():
                    pace = _measure(command, target)
                    paces.setdefault(line, {}).setdefault(name, []).append(pace)
                    print(
                        f"{number + 1} {line:5} {name:14} {pace.rate:9,.0f}/s {pace.cpu:8.1f} µs", flush=True
                    )
    hops = [_hop(args.seconds) for _ in range(args.rounds)]
    middle = {line: {name: _middle(found) for name, found in by.items()} for line, by in paces.items()}
    hop = statistics.median(hops)
    print(f"one hop through a mount: {hop:.1f} µs of CPU")
    if args.write:
        _write(middle, hop)
    reached = all(by["midcall"].rate >= GOAL * by["mcp 2.3.0"].rate for by in middle.values()) and hop <= HOP
    return 0 if reached else 1


def _official(package: str, version: str, loose: Sequence[str], driver: str) -> list[str]:
    python = python_package(CACHE, package, version, loose, print)
    return [str(python), "-E", str(DRIVERS / driver), str(SLOW_CALLS)]


def _measure(command: Sequence[str], target: Sequence[str]) -> Pace:
    """What a client says of its calls."""
    done = subprocess.run([*command, *target], capture_output=True, text=True, timeout=600, check=True)
    count = int(command[-1])
    spent = json.loads(done.stdout.splitlines()[-1])
    return Pace(count / spent["seconds"], spent["cpu"] / count * 1e6)


def _hop(seconds: float) -> float:
    """The CPU that a proxy spends on each call, in microseconds."""
    inner = [
        sys.executable,
        "-m",
        "midcall",
        "proxy",
        "--stdio",
        "--journal",
        "memory",
        "--log-level",
        "error",
    ]
    with StdioLoad([*inner, "--", *STDIO], "bench.once", "bench.ask") as load:
        return load.plain_for(seconds).cpu


@contextmanager
def _http_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([*MIDCALL, "--port", str(port), "--journal", "memory"])
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


def _middle(paces: Sequence[Pace]) -> Pace:
    return Pace(statistics.median(p.rate for p in paces), statistics.median(p.cpu for p in paces))


def _write(paces: Mapping[str, Mapping[str, Pace]], hop: float) -> None:
    lines = ["| client | stdio | CPU of each | HTTP | CPU of each |", "|---|---:|---:|---:|---:|"]
    for name in paces["stdio"]:
        stdio, web = paces["stdio"][name], paces["HTTP"][name]
        shown = f"**{name}**" if name == "midcall" else name
        lines.append(
            f"| {shown} | {stdio.rate:,.0f}/s | {stdio.cpu:,.0f} µs | {web.rate:,.0f}/s | {web.cpu:,.0f} µs |"
        )
    ratios = {line: by["midcall"].rate / by["mcp 2.3.0"].rate for line, by in paces.items()}
    said = (
        f"Over stdio that is {ratios['stdio']:.1f} times the official client, over HTTP {ratios['HTTP']:.1f} "
        f"times (the goal is {GOAL:.0f}). One hop through a mounted server costs {hop:.0f} µs of CPU "
        f"(the goal is {HOP:.0f})."
    )
    where = f"Measured on {dt.date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores."
    before, _, rest = PAGE.read_text().partition(START)
    text = "\n\n".join([START, where, "\n".join(lines), said, END])
    PAGE.write_text(before + text + rest.partition(END)[2])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.callers", description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of midcall's batch (default: 10000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a hop is measured (default: 3)")
    parser.add_argument("--no-write", dest="write", action="store_false", help="leave the docs as they are")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""The figures as a table, beside what was hoped for, and their place in the docs."""

import datetime as dt
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from bench.peers.meter import Paces

PAGE = Path(__file__).parents[2] / "docs" / "topics" / "performance.md"
CHART = PAGE.parents[1] / "images" / "mcp-peers.svg"
START, END = "<!-- mcp figures -->", "<!-- /mcp figures -->"

MEASURES = {
    "stdio plain": "stdio, plain calls",
    "stdio ask": "stdio, asks",
    "http plain": "HTTP, plain calls",
    "http ask": "HTTP, asks",
}
MEMORY = {"stdio memory": "waiting, stdio", "http memory": "waiting, HTTP"}

Measured = Mapping[str, Mapping[str, Paces]]
"""By measure and by server."""
Memories = Mapping[str, Mapping[str, float]]


def rates(paces: Measured, memories: Memories, eras: Mapping[str, str]) -> list[str]:
    """The table of calls a second, and of memory."""
    names = list(eras)
    lines = [_row("server", *MEASURES.values(), *MEMORY.values(), "over HTTP")]
    lines.append("|---" + "|---:" * (len(MEASURES) + len(MEMORY)) + "|---|")
    for name in names:
        speeds = [_rate(paces[measure].get(name)) for measure in MEASURES]
        sizes = [_size(memories[measure].get(name)) for measure in MEMORY]
        lines.append(_row(f"**{name}**" if name == "midcall" else name, *speeds, *sizes, eras[name]))
    return lines


def costs(paces: Measured, eras: Mapping[str, str]) -> list[str]:
    """The table of the CPU time of the server for each call."""
    lines = [_row("server CPU for each", *MEASURES.values()), "|---" + "|---:" * len(MEASURES) + "|"]
    for name in eras:
        costs = [_cost(paces[measure].get(name)) for measure in MEASURES]
        lines.append(_row(f"**{name}**" if name == "midcall" else name, *costs))
    return lines


def goals(paces: Measured, memories: Memories) -> list[str]:
    """The table of what was hoped for, and what came of it."""
    lines = [_row("goal", "measured", "by CPU", ""), "|---|---:|---:|---|"]
    plain, web = paces["stdio plain"], paces["http plain"]
    peers = [name for name in plain if name != "floor" and not name.startswith("midcall")]
    best = max(peers, key=lambda n: plain[n].rate)
    asks = paces["http ask"]
    for text, over, under, wanted, form in (
        (f"plain calls on stdio: faster than the best peer ({best})", plain, best, 1.0, "{:.2f} times"),
        ("plain calls over HTTP: 80 % of a constant answer", web, "floor", 0.8, "{:.0%}"),
        ("asks on stdio: 20 times the Python SDK", paces["stdio ask"], "mcp 2.3.0", 20.0, "{:.1f} times"),
        ("asks over HTTP: 8 times the Python SDK", paces["http ask"], "mcp 2.3.0", 8.0, "{:.1f} times"),
    ):
        ratio = over["midcall"].rate_beside(over[under])
        by_cpu = over["midcall"].cpu_beside(over[under])
        lines.append(_row(text, form.format(ratio), form.format(by_cpu), _verdict(ratio >= wanted)))
    for store, wanted in (("SQLite", 3.0), ("PostgreSQL", 1.0)):
        name = f"midcall on {store}"
        if name in asks:
            ratio = asks[name].rate_beside(asks["mcp 2.3.0"])
            by_cpu = asks[name].cpu_beside(asks["mcp 2.3.0"])
            text = f"durable asks on {store}: {wanted:.0f} times the Python SDK's, which are lost with it"
            lines.append(_row(text, f"{ratio:.1f} times", f"{by_cpu:.1f} times", _verdict(ratio >= wanted)))
    if "midcall on SQLite" in web:
        ratio = web["midcall on SQLite"].rate_beside(web["midcall"])
        by_cpu = web["midcall on SQLite"].cpu_beside(web["midcall"])
        text = "plain calls over HTTP are no slower with a journal (95 % or more)"
        lines.append(_row(text, f"{ratio:.0%}", f"{by_cpu:.0%}", _verdict(by_cpu >= 0.95)))
    for text, measure, limit in (
        ("a waiting call on stdio: at most 6 kB", "stdio memory", 6000),
        ("a waiting call over HTTP: at most 12 kB", "http memory", 12000),
    ):
        size = memories[measure]["midcall"]
        lines.append(_row(text, _size(size), "", _verdict(size <= limit)))
    return lines


def write(tables: list[list[str]]) -> None:
    """Put the tables into the page, between its marks."""
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    when = f"Measured on {dt.date.today():%Y-%m-%d} with `make bench-mcp`: "
    text = f"{when}Python {platform.python_version()}, {system}."
    blocks = [START, text, *("\n".join(table) for table in tables), END]
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + "\n\n".join(blocks) + rest.partition(END)[2])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rate(pace: Paces | None) -> str:
    return "" if pace is None else f"{pace.rate:,.0f}/s"


def _cost(pace: Paces | None) -> str:
    return "" if pace is None else f"{pace.cpu:,.0f} µs"


def _size(size: float | None) -> str:
    return "" if size is None else f"{size / 1000:.1f} kB"


def _verdict(reached: bool) -> str:
    return "reached" if reached else "not reached"

"""`make bench-mcp`: midcall's MCP beside other servers, as a table and a plot in the docs.

All servers run at the same time and take turns, in many short rounds, so that a busy moment of the machine
falls on all. What is told is the median; what is compared is compared within each round, and the median of
that is told. The load and the servers share the machine; what the servers use of the CPU is told too, as that
depends less on what else goes on. The load over HTTP is made by wrk, in rounds of a second.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.peers import chart, report
from bench.peers.contenders import Contender, contenders
from bench.peers.http import HttpLoad, wrk
from bench.peers.meter import Pace, Paces
from bench.peers.stdio import StdioLoad

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from postgres_server import Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="how often each is measured (default: 21)")
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="how long each time on stdio (default: 0.3)"
    )
    parser.add_argument("--waiting", type=int, default=1200, help="calls that wait (default: 1200)")
    parser.add_argument("--only", default="", help="only servers whose name has this in it; implies --dry")
    parser.add_argument(
        "--postgres", metavar="URL", help="a PostgreSQL for durable calls (default: one that is started)"
    )
    parser.add_argument("--dry", action="store_true", help="print only, and leave the docs alone")
    options = parser.parse_args()
    wrk()  # before anything is installed or started
    database = None if options.postgres else Server(durable=True).start()
    try:
        measure(options, options.postgres or (database.dsn if database else None))
    finally:
        if database is not None:
            database.stop()


def measure(options: argparse.Namespace, postgres: str | None) -> None:
    """Measure everything, print it, and write it to the docs."""
    servers = [one for one in contenders(print, postgres) if options.only in one.name]
    paces: dict[str, dict[str, Paces]] = {}
    paces |= take_turns("stdio", servers, on_stdio, options.rounds, options.seconds)
    paces |= take_turns("http", servers, over_http, options.rounds, options.seconds)
    memories = {
        "stdio memory": {one.name: stdio_memory(one, options.waiting) for one in servers if not one.is_floor},
        "http memory": {one.name: http_memory(one, options.waiting) for one in servers},
    }
    eras = {one.name: one.era for one in servers}
    tables = [report.rates(paces, memories, eras), report.costs(paces, eras)]
    if not options.only:
        tables.append(report.goals(paces, memories))
    print("\n\n".join("\n".join(table) for table in tables))
    if not (options.dry or options.only):
        report.write(tables)
        draw(paces, memories)
        print(f"\nWritten to {report.PAGE} and {report.CHART}")


def take_turns(
    transport: str,
    servers: list[Contender],
    start: Callable[[Contender], StdioLoad | HttpLoad],
    rounds: int,
    seconds: float,
) -> dict[str, dict[str, Paces]]:
    """Measure plain calls and asks of all servers."""
    plain: dict[str, list[Pace]] = {one.name: [] for one in servers}
    asks: dict[str, list[Pace]] = {one.name: [] for one in servers if not one.is_floor}
    with ExitStack() as stack:
        loads = {one.name: stack.enter_context(start(one)) for one in servers}
        for load in loads.values():
            load.plain_for(seconds)  # what is compiled or allocated once
        for number in range(rounds):
            print(f"{transport}: round {number + 1} of {rounds}", flush=True)
            order = list(loads) if number % 2 else list(reversed(loads))  # whoever is first may be better off
            for name in order:
                plain[name].append(loads[name].plain_for(seconds))
            for name in order:
                if name in asks:
                    asks[name].append(loads[name].ask_for(seconds))
    return {
        f"{transport} plain": {name: Paces(found) for name, found in plain.items()},
        f"{transport} ask": {name: Paces(found) for name, found in asks.items()},
    }


def on_stdio(server: Contender) -> StdioLoad:
    return StdioLoad(list(server.stdio), server.once, server.ask, echo=server.is_floor)


def over_http(server: Contender) -> HttpLoad:
    modern = server.ask_modern is not None
    return HttpLoad(server.on_port, server.once, server.ask_modern or server.ask, modern=modern)


def stdio_memory(server: Contender, waiting: int) -> float:
    with on_stdio(server) as load:
        return load.waiting_memory(waiting)


def http_memory(server: Contender, waiting: int) -> float:
    with HttpLoad(server.on_port, server.once, server.ask, modern=False) as load:
        return load.waiting_memory(waiting)


def draw(paces: report.Measured, memories: report.Memories) -> None:
    panels = {
        f"{title} a second": [
            (name, pace.rate, f"{pace.rate:,.0f}")
            for name, pace in paces[measure].items()
            if (measure, name) != ("stdio plain", "floor")  # so long that it hides the others
        ]
        for measure, title in report.MEASURES.items()
    }
    for measure, title in report.MEMORY.items():
        bars = [(name, size, f"{size / 1000:.1f} kB") for name, size in memories[measure].items()]
        panels[f"Memory of a call that is {title}"] = bars
    report.CHART.parent.mkdir(parents=True, exist_ok=True)
    report.CHART.write_text(chart.chart(panels))


main()

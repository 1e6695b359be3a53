"""Run the official MCP clients against a midcall server: `make compliance`.

Each client goes over stdio and HTTP, some also over the old HTTP+SSE, in legacy, modern and auto mode: it
lists tools, calls one, hears progress, answers a wizard of three questions (all, or it declines or cancels at
the second), samples, and books a flight: it must be shown the same flights and seats as somebody who books
in the server's chat. It runs a state machine, which asks twice, and calls each tool of `examples/twenty.py`.
Installs what it needs into .cache/compliance. Exits with 1 when a check fails, with 2 when none could be run.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from harness.booking import BookingError, book_in_chat
from harness.clients import CHECKS, CLIENTS, MODES, TRANSPORTS, Client, Outcome, Verdict, run_client
from harness.fixture import ServerError, serve
from harness.install import InstallError

HERE = Path(__file__).parent
SCRIPTS = HERE / "clients"
APP = SCRIPTS / "app.py"
CACHE = HERE.parent / ".cache" / "compliance"
LOGS = CACHE / "clients"
AT_ONCE = 4


@dataclass(frozen=True)
class Row:
    """One run: a client over a transport in a mode, and what came of it."""

    client: Client
    transport: str
    mode: str
    outcomes: list[Outcome]


def main() -> int:
    """Run what the command line asks for, and return the exit code."""
    options = _options()
    clients = [client for client in CLIENTS if not options.client or client.name in options.client]
    plan = [(c, t, m) for c in clients for t in options.transport if t in c.transports for m in options.mode]
    if not plan:
        _say("no such client goes over such a transport")
        return 2
    try:
        commands = {client.name: client.command(SCRIPTS, CACHE, _say) for client in clients}
        LOGS.mkdir(parents=True, exist_ok=True)
        with serve(APP, LOGS / "server.log") as fixture:
            root = fixture.url.removesuffix("/mcp")
            chat = book_in_chat(f"{root}/chat")
            servers = {
                "stdio": [sys.executable, str(APP), "--stdio"],
                "http": [fixture.url],
                "sse": [f"{root}/sse"],
            }

            def run(client: Client, transport: str, mode: str) -> Row:
                if mode in client.cannot:
                    reason = client.cannot[mode]
                    outcomes = [Outcome(check, Verdict.CANNOT, reason) for check in options.check]
                else:
                    _say(f"{client} {transport} {mode}")
                    log = LOGS / f"{client.name}-{transport}-{mode}.log"
                    shown = replace(chat, hidden=client.hidden)
                    outcomes = run_client(
                        commands[client.name], mode, servers[transport], log, shown, options.check
                    )
                return Row(client, transport, mode, outcomes)

            with ThreadPoolExecutor(AT_ONCE) as pool:
                rows = list(pool.map(lambda one: run(*one), plan))
            fixture.check()
    except BookingError as error:
        _say(str(error))
        return 1
    except (InstallError, ServerError) as error:
        _say(str(error))
        return 2
    print(report(rows))
    return int(any(o.verdict is Verdict.FAILED for row in rows for o in row.outcomes))


def report(rows: Sequence[Row]) -> str:
    """The table, what the clients cannot do and why, what failed, and one line for all."""
    reasons: dict[tuple[str, str], int] = {}
    failures: list[str] = []
    width = max(len(str(row.client)) for row in rows)
    checks = [outcome.check for outcome in rows[0].outcomes]
    lines = [f"{'client':<{width}}  {'over':<5}  {'mode':<6}" + "".join(f"{check:>9}" for check in checks)]
    for row in rows:
        cells = []
        for outcome in row.outcomes:
            match outcome.verdict:
                case Verdict.PASSED:
                    cells.append("ok")
                case Verdict.CANNOT:
                    number = reasons.setdefault((str(row.client), outcome.reason), len(reasons) + 1)
                    cells.append(f"no [{number}]")
                case Verdict.FAILED:
                    cells.append("FAILED")
                    place = f"{row.client} {row.transport} {row.mode}"
                    failures.append(f"  {place}: {outcome.check}\n    {outcome.reason}")
        head = f"{row.client!s:<{width}}  {row.transport:<5}  {row.mode:<6}"
        lines.append(head + "".join(f"{cell:>9}" for cell in cells))
    if reasons:
        lines += ["", "What a client cannot do by its own design:"]
        lines += [f"  [{number}] {client} {reason}" for (client, reason), number in reasons.items()]
    if failures:
        lines += ["", "Failed:", *failures]
    verdicts = [outcome.verdict for row in rows for outcome in row.outcomes]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict)
    return "\n".join([*lines, "", f"{len(rows)} runs, {len(verdicts)} checks: {counts}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [client.name for client in CLIENTS]
    parser.add_argument("--client", action="append", choices=names, help="only this client")
    parser.add_argument("--transport", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--mode", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--check", nargs="+", choices=CHECKS, default=CHECKS)
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"compliance: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

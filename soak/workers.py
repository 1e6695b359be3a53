"""Workers in trouble: `python -m soak.workers --workers 4 --calls 2000 --seconds 120 --journal postgresql`.

The workers share a journal, the calls wait, and callers answer through any worker, while workers are
killed, frozen, stopped and started; a PostgreSQL is restarted in the middle, as if it had crashed. What must
hold in the end is in `tests/support/workers_chaos.py`. The same seed gives the same plan, but not the same
timing.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import postgres_server
from workers_chaos import Fleet, chaos


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m soak.workers", description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=120, help="over which the calls are answered")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--at-once", type=int, default=48, help="requests under way at the same time")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two troubles, about")
    parser.add_argument(
        "--lease", type=float, default=4.0, help="seconds until a frozen worker counts as gone"
    )
    parser.add_argument("--shared", action="store_true", help="one `midcall serve --workers N`, on one port")
    parser.add_argument(
        "--journal",
        default="postgresql",
        help="sqlite, postgresql (one of its own, which is restarted in the middle), or postgresql://...",
    )
    args = parser.parse_args()
    database = None
    with tempfile.TemporaryDirectory(prefix="midcall-soak-") as folder:
        store = args.journal
        if store == "sqlite":
            store = str(Path(folder, "journal.db"))
        elif store == "postgresql":
            database = postgres_server.Server().start()
            store = database.dsn

        def restart() -> None:
            if database is not None:
                database.halt("immediate")
                time.sleep(2)
                database.start()

        fleet = Fleet(Path(folder), store, args.workers, lease=args.lease, shared=args.shared)
        print(f"{args.workers} workers, {args.calls} calls, {args.journal}, seed {args.seed}", flush=True)
        try:
            seen = asyncio.run(
                chaos(
                    fleet,
                    calls=args.calls,
                    seconds=args.seconds,
                    seed=args.seed,
                    at_once=args.at_once,
                    pause=args.pause,
                    halfway=restart,
                )
            )
        except BaseException:
            kept = Path(tempfile.mkdtemp(prefix="midcall-soak-failed-"))
            for name in ("log", "ledger"):
                if Path(folder, name).exists():
                    (kept / name).write_bytes(Path(folder, name).read_bytes())
            print(f"FAILED with seed {args.seed}; the log and the ledger are in {kept}", flush=True)
            raise
        finally:
            fleet.close()
            if database is not None:
                database.stop()
    if database is not None:
        seen["PostgreSQL restarted"] = 1
    for what, count in sorted(seen.items()):
        print(f"{count:8}  {what}")
    print("Nothing was lost, and nothing was done twice.")


if __name__ == "__main__":
    main()

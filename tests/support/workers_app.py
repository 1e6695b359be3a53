"""A hub for several workers: every effect of a step is one line in the file that `LEDGER` names.

It takes up to twice `PACE` seconds, so that something can fall into it. What takes a while ends before that if there
is a file `LEDGER.enough`, and each process that waits for a call of another one is named in `LEDGER.waits`. With `STORE` and `LEASE` it has a journal
whose workers count as gone after that many seconds, and who look twice as often for calls of such workers, since a
test cannot wait for as long as people do.
"""

import asyncio
import json
import os
import random
import time
import uuid
from pathlib import Path
from typing import Any

from midcall import Ask, Hub, method
from midcall.errors import StepInterrupted
from midcall.journal import sweeper
from midcall.journal.durable import DurableCalls

STEPS = ("one", "two", "three", "four")
COLOURS = ("red", "blue", "green")
INTERRUPTED = "interrupted"


def effect(run: str, step: str) -> str:
    """Do something that must not be done twice. Gives what nobody else can know."""
    made = uuid.uuid4().hex[:12]
    pace = float(os.environ.get("PACE", "0"))
    time.sleep(random.uniform(0, pace))
    fd = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(
            fd, json.dumps({"run": run, "step": step, "made": made, "pid": os.getpid()}).encode() + b"\n"
        )
        os.fsync(fd)
    finally:
        os.close(fd)
    time.sleep(random.uniform(0, pace))
    return made


async def take_a_while(seconds: float) -> None:
    """So long, or until there is the file that says that it was enough."""
    end = time.monotonic() + seconds
    enough = Path(os.environ["LEDGER"] + ".enough")
    while time.monotonic() < end and not enough.exists():
        await asyncio.sleep(0.01)


class Work:
    """What the workers do."""

    @method
    async def wizard(self, run: str, ask: Ask) -> dict[str, Any]:
        """Ask three things, with an effect before, between and after them."""
        made: dict[str, str] = {}

        async def do(step: str) -> None:
            try:
                made[step] = await ask.step(effect, run, step)
            except StepInterrupted:
                made[step] = INTERRUPTED

        await do("one")
        name = await ask.prompt("Name?", key="name")
        await do("two")
        colour = await ask.select("Colour?", COLOURS, key="colour")
        await do("three")
        sure = await ask.confirm("Sure?", key="sure")
        await do("four")
        return {"answers": [name, colour, sure], "made": made}

    @method
    async def thinking(self, run: str, ask: Ask, seconds: float = 0.0, hold: str = "") -> str:
        """Ask, do something, take a while, or as long as there is the file `hold`, and do something else."""
        who = await ask.prompt("Who?", key="who")
        await ask.step(effect, run, "before")
        await take_a_while(seconds)
        if hold:
            Path(hold).with_suffix(".reached").touch()
            while Path(hold).exists():
                await asyncio.sleep(0.02)
        await ask.step(effect, run, "after")
        return f"It is {who}"

    @method
    async def working(self, run: str, seconds: float, ask: Ask) -> str:
        """Ask, and take a while inside a step."""

        async def work() -> str:
            effect(run, "begun")
            await take_a_while(seconds)
            return effect(run, "ended")

        who = await ask.prompt("Who?", key="who")
        try:
            await ask.step(work)
        except StepInterrupted:
            return f"{INTERRUPTED}, {who}"
        return f"It is {who}"

    @method
    def pid(self) -> int:
        """Who serves."""
        return os.getpid()

    @method
    async def slow(self, seconds: float) -> int:
        """Take a while, of which the beginning is noted."""
        effect("slow", "begun")
        await take_a_while(seconds)
        return os.getpid()

    @method
    async def count(self) -> dict[str, int]:
        """How many calls of each status there are in the journal."""
        durable: DurableCalls = hub.durable
        return await durable.journal.count()


hub = Hub("workers").register(Work())

if "STORE" in os.environ:
    lease = float(os.environ["LEASE"])
    sweeper.SWEEP = lease / 2
    if os.environ["STORE"].startswith("postgresql://"):
        from midcall.journal.postgres import PostgresJournal

        hub.durable = DurableCalls(hub, PostgresJournal(os.environ["STORE"], lease=lease))
    else:
        from midcall.journal.sqlite import SqliteJournal

        class Journal(SqliteJournal):
            """Says who waits."""

            async def wait(self, call_id: str, segment: int, seconds: float) -> bytes | None:
                if seconds:
                    with Path(os.environ["LEDGER"] + ".waits").open("a") as waits:
                        waits.write(f"{os.getpid()}\n")
                return await super().wait(call_id, segment, seconds)

        hub.durable = DurableCalls(hub, Journal(os.environ["STORE"], lease=lease))

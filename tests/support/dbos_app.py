"""The hub of `durable_app`, with calls that take their time between two questions, and DBOS that looks often."""

import asyncio
import os
from pathlib import Path

from durable_app import Durable, effect
from midcall import Ask, Hub, method
from midcall.errors import TimedOut
from midcall.journal import sweeper
from midcall.journal.dbos import DbosEngine
from midcall.journal.durable import DurableCalls
from midcall.journal.postgres import PostgresJournal

sweeper.SWEEP = 0.2


class Slow:
    """Tools that stop where a test wants them to."""

    @method
    async def held(self, ask: Ask) -> str:
        """Ask, begin, wait as long as there is the file that `HOLD` names, and end."""
        name = await ask.prompt("Name?", key="name")
        done = [await ask.step(effect, "begun")]
        hold = Path(os.environ["HOLD"])
        hold.with_suffix(".reached").touch()
        while hold.exists():
            await asyncio.sleep(0.02)
        done.append(await ask.step(effect, "ended"))
        return f"{name} {' '.join(done)}"

    @method
    async def patient(self, ask: Ask) -> str:
        """Ask something that need not be answered."""
        try:
            name = await ask.prompt("Name?", key="name", timeout=0.5)
        except TimedOut:
            name = "nobody"
        return f"{name} {await ask.step(effect, 'after')}"


hub = Hub("plexus").register(Durable()).register(Slow())
if "STORE" in os.environ:  # a worker that is soon believed to be gone
    journal = PostgresJournal(os.environ["STORE"], lease=1.0)
    hub.durable = DurableCalls(hub, journal, engine=DbosEngine(journal, os.environ["STORE"]))

"""A hub with a tool that takes its time to come to its question, each time that it is run."""

import asyncio
import os
from pathlib import Path

from midcall import Ask, Hub, method


class Slow:
    """Tools that are slow to rebuild."""

    @method
    async def ask(self, who: str, ask: Ask) -> str:
        """Wait for a gate outside a step, then ask."""
        while not Path(os.environ["GATE"]).exists():
            await asyncio.sleep(0.02)
        return f"{who}: {await ask.prompt('Name?', key='name', timeout=None)}"

    @method(long_running=True)
    async def work(self, who: str, ask: Ask) -> str:
        """The same, as a task."""
        return await self.ask(who, ask)


hub = Hub("plexus").register(Slow())

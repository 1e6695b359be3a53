"""A hub whose calls are to survive: every effect is a line in the file that `LEDGER` names."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from midcall import Ask, Hub, method


def effect(name: str) -> str:
    """Do something that must not be done twice."""
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{name}\n")
    return name.upper()


class Durable:
    """Tools that wait."""

    @method
    async def wizard(self, ask: Ask) -> str:
        """Ask three things, with an effect before, between and after them."""
        done = [await ask.step(effect, "one")]
        name = await ask.prompt("Name?", key="name")
        done.append(await ask.step(effect, "two"))
        colour = await ask.select("Colour?", ["red", "blue"], key="colour")
        done.append(await ask.step(effect, "three"))
        sure = await ask.confirm("Sure?", key="sure")
        done.append(await ask.step(effect, "four"))
        return f"{name} {colour} {sure} {' '.join(done)}"

    @method
    async def stream(self, count: int, ask: Ask) -> AsyncIterator[str]:
        """Give some elements, ask, and give as many again."""
        for number in range(count):
            yield f"before {number}"
        name = await ask.prompt("Name?", key="name")
        for number in range(count):
            yield f"{name} {number}"
            await asyncio.sleep(0)


hub = Hub("plexus").register(Durable())

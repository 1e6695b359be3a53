"""A hub for administrators: `operate_app:hub`. Every effect is a line in the file that `LEDGER` names."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from midcall import Ask, Hub, Option, method
from midcall.errors import JournalError
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal

log = logging.getLogger("shop")


class Address(BaseModel):
    """Where to?"""

    street: str
    floor: int = Field(0, ge=0)


def effect(name: str) -> str:
    """Do something that must not be done twice."""
    with Path(os.environ.get("LEDGER", os.devnull)).open("a") as ledger:
        ledger.write(f"{name}\n")
    return f"did {name}"


class Shop:
    """Sell things."""

    @method
    async def order(self, item: str, ask: Ask) -> str:
        """Ask twice, with an effect before, between and after."""
        await ask.step(effect, f"reserve {item}")
        if "TWIST" in os.environ:
            await ask.confirm("Something new?")
        to = await ask.prompt("Deliver to?", key="address")
        log.info("between the questions")
        await ask.step(effect, f"pack {item}")
        paid = await ask.confirm(f"Charge for {item}?")
        await ask.step(effect, f"send {item}")
        return f"{item} to {to}, {'paid' if paid else 'for free'}"

    @method
    async def survey(self, ask: Ask) -> str:
        """Ask three things at once."""
        options = [Option("a", "The first"), Option("b", "The second")]
        one, some, where = await ask.all(
            ask.select("Which one?", options, key="one"),
            ask.select("Which ones?", options, multi_select=True, key="some"),
            ask.form(Address, key="where"),
        )
        return f"{one} {some} {where.street} {where.floor}"

    @method
    async def visit(self, ask: Ask) -> str:
        """Send to a page."""
        await ask.url("https://example.com/pay", key="page")
        return "visited"

    @method
    async def hurry(self, ask: Ask, seconds: float) -> str:
        """Ask, and wait for a moment."""
        return await ask.prompt("Quick?", timeout=seconds)

    @method
    async def tell(self, ask: Ask) -> AsyncIterator[str]:
        """Give something before and after a question."""
        yield "before"
        yield await ask.prompt("And then?", key="then")

    @method
    async def slow(self, seconds: float) -> str:
        """Take a while."""
        await asyncio.sleep(seconds)
        return "done"

    @method
    async def slow_after(self, ask: Ask, seconds: float) -> str:
        """Take a while after the answer."""
        said = await ask.prompt("Go?")
        await asyncio.sleep(seconds)
        return said

    @method
    async def broken(self, note: str, ask: Ask) -> str:
        """Fail after the answer."""
        await ask.prompt("Really?")
        raise RuntimeError("it broke")

    @method
    async def faulty(self, note: str) -> str:
        """Fail, and ask nothing."""
        await asyncio.sleep(0.01)
        raise RuntimeError("it broke at once")


hub = Hub("market").register(Shop())


class Fragile(MemoryJournal):
    """A journal that cannot be reached while there is the file that `BROKEN` names."""

    async def load(self, call_id: str) -> Any:
        if Path(os.environ["BROKEN"]).exists():
            raise JournalError("No route to /secret/host")
        return await super().load(call_id)

    async def probe(self) -> None:
        await self.load("")


def fragile() -> Hub:
    """A hub whose journal breaks."""
    made = Hub("market").register(Shop())
    made.durable = DurableCalls(made, Fragile())
    return made

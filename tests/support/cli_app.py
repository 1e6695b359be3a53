"""The hub that the tests of the command line call: `cli_app:hub`."""

import asyncio
import datetime as dt
import sys
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from midcall import Ask, AskError, Cancelled, Hub, Option, Question, TimedOut, ToolError, method


class Visitor(BaseModel):
    """Who comes to see us."""

    name: str = Field(description="as on the door")
    age: int = Field(ge=18)
    badge: Literal["red", "blue"] = "red"
    news: bool = False


class Guest(BaseModel):
    name: str


class Party(BaseModel):
    """Who comes."""

    hosts: list[str] = ["Lovelace, Ada", "Bob"]
    way: str = "10\u00a0km"
    guests: list[Guest]
    plates: int = Field(ge=1)


class Topping(Enum):
    HAM = "ham"
    EGG = "egg"


class Order(BaseModel):
    """What shall it be?"""

    note: str | None = None
    plates: int | None
    first: Topping | None = None
    toppings: list[Topping]
    gift: bool | None = None
    urgent: bool | None = None
    at: dt.time | None = None
    price: Decimal | None = None


pick_row = Question("pickRow", int)


class Files:
    """Work with files."""

    @method
    async def delete(self, ids: list[str], ask: Ask, force: bool = False) -> AsyncIterator[dict[str, str]]:
        """Delete items.

        Asks before it does.

        Args:
            ids: what to delete
            force: do not ask, 100% sure
        """
        if not force and not await ask.confirm(f"Delete {len(ids)} items?"):
            yield {"type": "cancelled"}
            return
        for number, id in enumerate(ids, 1):
            ask.progress(f"{id} deleted", 100 * number / len(ids))
            ask.log(f"removing {id}")
            yield {"type": "deleted", "id": id}

    @method
    async def find(
        self,
        max_size: Annotated[int, Field(ge=1)] = 10,
        order: Literal["name", "size"] = "name",
        owner: str | None = "me",
        where: dict[str, Any] | None = None,
        timeout: float = 1.5,
    ) -> dict[str, Any]:
        """Give back what was asked for."""
        return {"max_size": max_size, "order": order, "owner": owner, "where": where, "timeout": timeout}


class Talk:
    """Ask for things."""

    @method
    async def prompt(self, ask: Ask) -> str:
        """Ask for a text."""
        return f"Hello {await ask.prompt('Your name?', default='Ada')}"

    @method
    async def select(self, ask: Ask) -> str:
        """Ask for one of several."""
        options = [Option("min", "Minimal", "One file"), Option("full", "Full", "Everything")]
        return "took " + await ask.select("Template?", options)

    @method
    async def toppings(self, ask: Ask) -> list[str]:
        """Ask for any of several."""
        return await ask.select("Toppings?", ["ham", "egg", "kale"], multi_select=True)

    @method
    async def visitor(self, ask: Ask) -> Visitor:
        """Ask for a form."""
        return await ask.form(Visitor)

    @method
    async def party(self, ask: Ask) -> Party:
        """Ask for a form with lists."""
        return await ask.form(Party)

    @method
    async def long(self, ask: Ask) -> str:
        """Ask for one of what is long."""
        words = " ".join(f"word{n}" for n in range(40))
        return await ask.select("Which?", [("a", words, f"{words} indeed"), ("b", "short")])

    @method
    async def order(self, ask: Ask) -> Order:
        """Ask for a form of which most may be left out."""
        return await ask.form(Order)

    @method
    async def page(self, ask: Ask) -> str:
        """Send to a page."""
        await ask.url("https://example.com/login", "Please sign in")
        return "welcome"

    @method
    async def seat(self, ask: Ask) -> Any:
        """Ask for something of our own."""
        schema = {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]}
        return await ask.custom("pickSeat", {"message": "Which seat?", "rows": [11, 12]}, schema)

    @method(elicits=[pick_row])
    async def row(self, ask: Ask) -> int:
        """Ask a typed question, whose answer is no object."""
        return await ask(pick_row, "Where to sit?", free=[11, 12])

    @method
    async def pet(self, ask: Ask) -> str:
        """Ask a question with a key."""
        return await ask.prompt("What is its name?", key="dog")

    @method
    async def odd(self, ask: Ask) -> Any:
        """Ask about something that is not JSON."""
        return await ask.custom("odd", object())

    @method
    async def sample(self, ask: Ask) -> str:
        """Ask a model."""
        return (await ask.sample("Say something")).text

    @method
    async def covered(self, ask: Ask) -> str:
        """Ask, with a fallback."""
        return await ask.or_else(prompt="nobody").prompt("Your name?")

    @method
    async def several(self, ask: Ask) -> dict[str, str]:
        """Ask two things at once; the second is urgent."""
        calm, urgent = await ask.all(
            ask.prompt("A calm question?", priority="low"), ask.prompt("An urgent one?", priority="urgent")
        )
        return {"calm": calm, "urgent": urgent}

    @method
    async def impatient(self, ask: Ask, handled: bool = False, seconds: float = 0.5) -> str:
        """Ask, and wait for half a second, or for as long as is said."""
        try:
            return await ask.prompt("Quick, your name?", timeout=seconds)
        except TimedOut:
            if not handled:
                raise
            return "never mind"

    @method
    async def gentle(self, ask: Ask) -> str:
        """Ask, and live with a refusal."""
        try:
            return await ask.prompt("Your name?")
        except Cancelled:
            return "as you like"

    @method
    async def withdrawn(self, ask: Ask, seconds: float = 0.5) -> str:
        """Ask, and find the answer oneself."""
        question = ask.prompt("Where is it?")

        async def look() -> None:
            await asyncio.sleep(seconds)
            ask.progress("looking around")
            await asyncio.sleep(seconds)
            ask.cancel_question(question, "found it")

        async with asyncio.TaskGroup() as group:
            looking = group.create_task(look())
            try:
                await question
            except AskError as error:
                await looking
                return f"no need: {error}"
        return "answered"


class Work:
    """Work without asking."""

    @method
    async def fail(self) -> None:
        """Fail, in words."""
        raise ToolError("The disk is full")

    @method
    async def crash(self) -> None:
        """Fail, by a mistake."""
        raise RuntimeError("a mistake")

    @method
    async def strange(self) -> Any:
        """Give something that is not JSON."""
        return object()

    @method
    async def text(self) -> str:
        """Give text, as it is."""
        return 'two\nlines, "quoted"'

    @method
    async def long(self, ask: Ask) -> str:
        """Work for a minute, and clean up when stopped."""
        ask.progress("working", 25)
        try:
            await asyncio.sleep(60)
        finally:
            ask.log("cleaned up")
        return "done"

    @method
    async def bar(self, ask: Ask) -> str:
        """Report, ask, report."""
        ask.progress("first half", 50)
        await asyncio.sleep(0.3)
        await ask.confirm("Go on?")
        ask.progress("second half", 100)
        await asyncio.sleep(0.3)
        return "done"

    @method
    def thread(self) -> str:
        """Sleep in a thread that cannot be stopped."""
        sys.stderr.write("asleep\n")
        time.sleep(300)
        return "done"


hub = Hub("plexus").register(Files()).register(Talk()).register(Work())


def make_hub() -> Hub:
    return Hub("made").register(Files())


not_a_hub = 5

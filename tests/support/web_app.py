"""The hub that the tests of the web client look at: the demo's tools, tools that ask in every way, and a chat.

What the model says is in `Actor`, by the first word of what the person said.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field

from midcall import Ask, Hub, Question, method
from midcall.activations.demo import RULES, SUGGESTIONS, flights_plugin
from midcall.activations.echo import Echo
from midcall.activations.flights import Flights
from midcall.activations.interactive import Interactive
from midcall.chat import ChatEngine, Plugin, PluginContext, PluginQuestion
from midcall.models.base import (
    ModelError,
    ModelEvent,
    ModelRequest,
    Stopped,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from midcall.models.scripted import Scripted


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Address(BaseModel):
    street: str
    city: str = Field(description="Where it is delivered")


class Parcel(BaseModel):
    size: Size
    weight: Annotated[float, Field(gt=0, le=30)]
    to: Address
    tags: list[str] = []
    insured: bool = False


class Stars(BaseModel):
    stars: int


rate = Question("rate", Stars)


class Lab:
    """Tools for the tests of the page."""

    @method
    async def parcel(self, parcel: Parcel, count: Annotated[int, Field(ge=1, le=9)] = 1) -> str:
        """Send a parcel."""
        return f"{count} x {parcel.size} to {parcel.to.city}, {', '.join(parcel.tags) or 'no tags'}"

    @method(elicits=[rate])
    async def asks(self, ask: Ask) -> list[Any]:
        """Ask in every way that there is."""
        sure = await ask.confirm("Are you sure?", timeout=None)
        name = await ask.prompt("Your name?", default="Ada", timeout=None)
        size = await ask.select(
            "Which size?", [("s", "Small", "Fits in a bag"), ("l", "Large")], timeout=None
        )
        colours = await ask.select(
            "Which colours?", ["red", "green", "blue"], multi_select=True, timeout=None
        )
        parcel = await ask.form(Parcel, "What do you send?", timeout=None)
        await ask.url("https://example.com/sign-in", "Please sign in", timeout=None)
        stars = await ask(rate, "How was it?", timeout=None, visits=[{"day": "Monday", "guests": 3}])
        return [sure, name, size, colours, parcel.to.city, stars.stars]

    @method
    async def both(self, ask: Ask) -> str:
        """Ask two questions at once."""
        first, second = await ask.all(ask.prompt("First name?"), ask.prompt("Last name?"))
        return f"{first} {second}"

    @method
    async def work(self, ask: Ask, steps: int = 4, pause: float = 0.2) -> AsyncIterator[str]:
        """Work for a while, and tell of it."""
        ask.log("It begins", level="warning", data={"steps": steps})
        for step in range(1, steps + 1):
            ask.progress(f"Step {step}", 100 * step / steps)
            await asyncio.sleep(pause)
            yield f"step {step} done"

    @method
    async def fail(self) -> str:
        """Fail."""
        raise ValueError("It is broken")

    @method(elicits=[rate])
    async def visit(self, ask: Ask) -> str:
        """Ask how a visit was, with a component of another author."""
        answer = await ask(rate, "How was your visit?")
        return f"Thank you for {answer.stars} stars"


async def _show_rating(question: PluginQuestion, ctx: PluginContext) -> Any:
    return await ctx.render("Rating", message=question.message, most=5)


SLOW = " ".join(f"word{n}" for n in range(1, 61))

MARKDOWN = """\
## A list

- one with **bold** and `code`
- [a link](https://example.com/) and <img src=x onerror=alert(1)>

| city | price |
|---|--:|
| Oslo | 3 |

```python
print("hello")
```
"""

TOOLS: dict[str, list[str]] = {
    "wizard": ["interactive__wizard"],
    "asks": ["lab__asks"],
    "both": ["lab__both"],
    "two": ["lab__both", "interactive__wizard"],
    "work": ["lab__work"],
    "broken": ["lab__fail"],
    "visit": ["lab__visit"],
}

WORDS: dict[str, str] = {"slow": SLOW, "markdown": MARKDOWN}


class Actor:
    """Plays a model: each word that it knows, it answers in its own way; flights are booked by the demo's script."""

    name = "actor"
    scripted = True

    def __init__(self) -> None:
        self._flights = Scripted(RULES, otherwise="I do not know that word.")
        self._failed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        word = last.content.split()[0].lower() if last.content else ""
        if last.role == "tool" and not last.content.startswith("{"):
            yield TextPart(f"The tool said: {last.content}")
        elif last.role == "user" and word in TOOLS:
            yield TextPart("Let me see. ")
            for tool in TOOLS[word]:
                yield ToolCall(f"call_{uuid.uuid4().hex[:12]}", tool, "{}")
        elif last.role == "user" and word in WORDS:
            for part in WORDS[word].splitlines(keepends=True) if word == "markdown" else WORDS[word].split():
                await asyncio.sleep(0.05)
                yield TextPart(part if word == "markdown" else f"{part} ")
        elif word == "think":
            yield ThinkingPart("First this, ")
            yield ThinkingPart("then that.")
            yield TextPart("I have thought.")
        elif word == "stumble" and not self._failed:
            self._failed = True
            yield TextPart("Well, ")
            raise ModelError("The model has too much to do at the moment", recoverable=True, status=429)
        elif word == "stumble":
            yield TextPart("Now it works.")
        else:
            async for event in self._flights.stream(request):
                yield event
            return
        yield Stopped()

    async def close(self) -> None:
        """Nothing is open."""


def hub() -> Hub:
    """A new hub with everything in it."""
    made = Hub("plexus", description="Tools that stop in the middle and ask")
    for activation in (Flights(), Interactive(), Echo(), Lab()):
        made.register(activation)
    inner = Hub("inner").register(Echo(), namespace="said")
    made.register_hub(inner, namespace="nested")
    ChatEngine(
        made,
        Actor(),
        plugins=[flights_plugin(), Plugin(Lab.visit).on(rate, _show_rating)],
        suggestions=SUGGESTIONS,
    )
    return made

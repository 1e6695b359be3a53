"""The hub that the tests of the web client look at: the demo's tools, tools that ask in every way, and a chat.

What the model says is in `Actor`, by the first word of what the person said.
"""

import asyncio
import base64
import datetime as dt
import io
import struct
import uuid
import wave
import zlib
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
from midcall.content import Audio, Document, Embedded, Image, Link
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


def picture(width: int = 48, height: int = 32) -> bytes:
    """A small picture, all of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rows = zlib.compress((b"\0" + b"\x0f\x6e\x66" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


PICTURE = picture()


def sound() -> bytes:
    """A tenth of a second of silence."""
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(b"\x80" * 800)
    return made.getvalue()


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


class Archive(BaseModel):
    name: str
    data: bytes


class Trip(BaseModel):
    """Which trip?"""

    note: str | None = None
    sizes: list[Size] = []
    day: dt.date
    at: dt.datetime
    to: Address
    back: Address | None = None


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
    async def eight(self, ask: Ask) -> dict[str, Any]:
        """Ask eight questions at once."""
        given = await ask.all(
            ask.prompt("Who travels?"),
            ask.confirm("Is it urgent?"),
            ask.select("Which class?", [("e", "Economy"), ("b", "Business")]),
            ask.select("Which meals?", ["soup", "bread", "cake"], multi_select=True),
            ask.prompt("From where?", default="Oslo"),
            ask.prompt("To where?"),
            ask.confirm("With a window?", default=True),
            ask.form(Address, "Where do you live?"),
        )
        return {"given": [one.city if isinstance(one, Address) else one for one in given]}

    @method
    async def erase(self, ask: Ask, name: str = "notes.txt") -> str:
        """Erase something, if the person says so."""
        if not await ask.confirm(f"Erase {name}?"):
            return f"{name} stays"
        return f"{name} is gone"

    @method
    async def trip(self, ask: Ask) -> dict[str, Any]:
        """Ask for a form with all that a form may have."""
        return (await ask.form(Trip)).model_dump(mode="json")

    @method
    async def sure(self, ask: Ask) -> str:
        """Ask for a word."""
        return f"Said {await ask.prompt('Which word?')}"

    @method
    async def hurry(self, ask: Ask, seconds: float = 600) -> str:
        """Ask, but not for ever."""
        return f"Said {await ask.confirm('Quickly?', timeout=seconds)}"

    @method
    async def picture(self) -> list[Any]:
        """Give a picture, a sound, a document and a link."""
        return [
            "Here they are",
            Image(PICTURE),
            Audio(sound()),
            Embedded(Document("file:///home/report.csv", "text/csv", text="a,b\n1,2\n")),
            Link("https://example.com/manual", "The manual"),
        ]

    @method
    async def scan(self) -> bytes:
        """Give bytes."""
        return PICTURE

    @method
    async def archive(self) -> Archive:
        """Give bytes in a field."""
        return Archive(name="May", data=PICTURE)

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

    @method(elicits=[rate])
    async def stay(self, ask: Ask) -> str:
        """Ask how a stay was, with two components one after the other."""
        answer = await ask(rate, "How was your stay?")
        return f"Thank you for {answer.stars} stars"


async def _show_rating(question: PluginQuestion, ctx: PluginContext) -> Any:
    return await ctx.render("Rating", message=question.message, most=5)


async def _show_ratings(question: PluginQuestion, ctx: PluginContext) -> Any:
    room = await ctx.render("Rating", message=question.message, most=5)
    if room["stars"] == 1:
        raise ValueError("One star is too few")
    food = await ctx.render("Rating", message="And the food?", most=5)
    return {"stars": room["stars"] + food["stars"]}


SLOW = " ".join(f"word{n}" for n in range(1, 61))

MARKDOWN = """\
## A list

- one with **bold** and `code`
- [a link](https://example.com/) and <img src=x onerror=alert(1)>

| city | price |
|---|--:|
| Oslo | 3 |

> Somebody else said
> two lines.

![a dot](data:image/png;base64,DOT) and ![elsewhere](https://example.com/x.png)

```python
print("hello")  # a comment
```
""".replace("DOT", base64.b64encode(PICTURE).decode())

TOOLS: dict[str, list[str]] = {
    "wizard": ["interactive__wizard"],
    "asks": ["lab__asks"],
    "both": ["lab__both"],
    "two": ["lab__both", "interactive__wizard"],
    "eight": ["lab__eight"],
    "erase": ["lab__erase"],
    "hurry": ["lab__hurry"],
    "trip": ["lab__trip"],
    "picture": ["lab__picture"],
    "bytes": ["lab__scan", "lab__archive"],
    "work": ["lab__work"],
    "broken": ["lab__fail"],
    "visit": ["lab__visit"],
}

WORDS: dict[str, str] = {"slow": SLOW, "markdown": MARKDOWN}


class Actor:
    """Plays a model: each word that it knows, it answers in its own way; flights are booked by the demo's script."""

    scripted = True

    def __init__(self, name: str = "actor", *, images: bool = False) -> None:
        self.name = name
        self.images = images
        self._flights = Scripted(RULES, otherwise="I do not know that word.")
        self._failed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        word = last.content.split()[0].lower() if last.content else ""
        if request.tool_choice == "none":
            yield TextPart(f"You ask: {last.content}")
        elif last.content.startswith("(The call of "):
            yield TextPart(f"At last: {last.content.splitlines()[-1]}")
        elif word == "model":
            seen = ", ".join(f"{one.name} of {len(one.data)} bytes" for one in last.files)
            yield TextPart(f"I am {self.name}. {seen}")
        elif last.role == "tool" and not last.content.startswith("{"):
            yield TextPart(f"The tool said: {last.content}")
        elif last.role == "user" and word in TOOLS:
            yield TextPart("Let me see. ")
            for tool in TOOLS[word]:
                given = " ".join(last.content.split()[1:]) if word == "hurry" else ""
                yield ToolCall(f"call_{uuid.uuid4().hex[:12]}", tool, given or "{}")
        elif last.role == "user" and word in WORDS:
            for part in WORDS[word].splitlines(keepends=True) if word == "markdown" else WORDS[word].split():
                await asyncio.sleep(0.05)
                yield TextPart(part if word == "markdown" else f"{part} ")
        elif word == "think":
            yield ThinkingPart("First this, ")
            yield ThinkingPart("then that.")
            yield TextPart("I have thought.")
        elif word == "long":
            yield TextPart("One sentence of very many. " * 2000)
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
        models=[Actor("understudy", images=True)],
        plugins=[
            flights_plugin(),
            Plugin(Lab.visit).on(rate, _show_rating),
            Plugin(Lab.stay).on(rate, _show_ratings),
        ],
        suggestions=SUGGESTIONS,
    )
    return made

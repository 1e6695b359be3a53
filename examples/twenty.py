"""Twenty short tools, one for each thing that a tool may take, give, tell or ask.

`midcall serve examples/twenty.py` serves them. `twenty.json` beside it has a call of each and what it gives:
the same over every MCP revision, a WebSocket, in the chat and in a terminal.
"""

import base64
import datetime as dt
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from midcall import Ask, Hub, ToolError
from midcall.content import Audio, Document, Embedded, Image

hub = Hub("twenty")

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQMAAACQp+OdAAAABlBMVEX////IMjLv2RF3AAAAgUlEQVR42q3RsQ2AIBQEUAyFJSMw"
    "iqPpaI7CCJQWhtPPmdNEoxT+xlfwUe+ca5u48NkBU0UAcsUArBUjUI4jPOQN847ekLjEtWhYuM390VCuQJ3jPrtR8MT8gJ5IbwhE"
    "/h8tb3/5+PufKoSHfBSdwlS8ClwVqBTVdBanKlWu6v6cDbiTNlrtI4XiAAAAAElFTkSuQmCC"
)

BEEP = base64.b64decode(
    "UklGRsQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YaAAAADAwMDAwMDAwEBAQEBAQEBAwMDAwMDAwMBAQEBAQEBA"
    "QMDAwMDAwMDAQEBAQEBAQEDAwMDAwMDAwEBAQEBAQEBAwMDAwMDAwMBAQEBAQEBAQMDAwMDAwMDAQEBAQEBAQEDAwMDAwMDAwEBA"
    "QEBAQEBAwMDAwMDAwMBAQEBAQEBAQMDAwMDAwMDAQEBAQEBAQEDAwMDAwMDAwEBAQEBAQEBA"
)


@hub.method
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@hub.method
async def is_even(number: int) -> bool:
    """Say whether a number is even."""
    return number % 2 == 0


@hub.method
async def same(text: str) -> str:
    """Give a text back, also one that looks like JSON."""
    return text


@hub.method
async def words(text: str) -> list[str]:
    """Split a text into its words."""
    return text.split()


@hub.method
async def forget(name: str) -> None:
    """Do something, and give nothing."""


@hub.method
async def find(word: str, text: str) -> int | None:
    """Say where a word is, if it is there."""
    return text.index(word) if word in text else None


@hub.method
async def later(day: dt.date, days: int = 1) -> dt.date:
    """Give a later day."""
    return day + dt.timedelta(days)


@dataclass
class Point:
    """A point of a plane."""

    x: float
    y: float


@hub.method
async def middle(a: Point, b: Point) -> Point:
    """Give the point between two others."""
    return Point((a.x + b.x) / 2, (a.y + b.y) / 2)


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    city: str | None = None


class Person(BaseModel):
    """Somebody."""

    name: str
    likes: list[Literal["tea", "coffee", "milk"]] = []
    born: dt.date | None = None
    home: Address


@hub.method
async def older(person: Person, years: int = 1) -> Person:
    """Give the same person, born earlier."""
    born = person.born and person.born.replace(year=person.born.year - years)
    return person.model_copy(update={"born": born})


@hub.method
async def paint(colour: Literal["red", "green"], share: Annotated[float, Field(ge=0, le=1)] = 1) -> str:
    """Paint a share of a wall."""
    return f"{share:.0%} {colour}"


@hub.method
async def spell(word: str) -> AsyncIterator[str]:
    """Stream a text, letter by letter."""
    for letter in word:
        yield letter


@hub.method
async def squares(to: int) -> AsyncIterator[int]:
    """Stream numbers."""
    for number in range(1, to + 1):
        yield number * number


@hub.method
async def dot() -> Image:
    """Give a picture."""
    return Image(DOT)


@hub.method
async def beep() -> Audio:
    """Give sound."""
    return Audio(BEEP, "audio/wav")


@hub.method
async def report(title: str) -> list[str | Embedded]:
    """Give a text and a file."""
    return [f"About {title}", Embedded(Document(f"report://{title}.csv", "text/csv", text="day,sold\n"))]


@hub.method
async def size(file: bytes) -> int:
    """Say how large a file is."""
    return len(file)


@hub.method
async def divide(a: float, b: float) -> float:
    """Divide two numbers, if that can be done."""
    if b == 0:
        raise ToolError("Nothing can be divided by zero")
    return a / b


@hub.method
async def delete(name: str, ask: Ask) -> str:
    """Delete something, if a person agrees."""
    return f"{name} is deleted" if await ask.confirm(f"Delete {name}?") else f"{name} is kept"


@hub.method
async def introduce(ask: Ask) -> Person:
    """Ask for somebody, with an address."""
    return await ask.form(Person, "Who is it?")


@hub.method
async def copy(files: list[str], ask: Ask) -> str:
    """Copy files, each of them once, and tell how far it is."""
    for number, name in enumerate(files, 1):
        await ask.step(str.upper, name)
        ask.progress(name, 100 * number / len(files))
    return f"{len(files)} copied"

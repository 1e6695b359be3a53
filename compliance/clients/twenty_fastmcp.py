"""The tools of `examples/twenty.py` in FastMCP 4: one half of the table in `move-from-fastmcp.md`.

`python twenty_fastmcp.py`, with `fastmcp` 4.1.4, calls each by FastMCP's client in both eras, and prints what
it sees.
"""

import asyncio
import base64
import datetime as dt
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastmcp import Client, Context, FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp.utilities.types import Audio, File, Image
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel, Field

mcp = FastMCP("twenty")

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


@mcp.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@mcp.tool
async def is_even(number: int) -> bool:
    """Say whether a number is even."""
    return number % 2 == 0


@mcp.tool
async def same(text: str) -> str:
    """Give a text back, also one that looks like JSON."""
    return text


@mcp.tool
async def words(text: str) -> list[str]:
    """Split a text into its words."""
    return text.split()


@mcp.tool
async def forget(name: str) -> None:
    """Do something, and give nothing."""


@mcp.tool
async def find(word: str, text: str) -> int | None:
    """Say where a word is, if it is there."""
    return text.index(word) if word in text else None


@mcp.tool
async def later(day: dt.date, days: int = 1) -> dt.date:
    """Give a later day."""
    return day + dt.timedelta(days)


@dataclass
class Point:
    """A point of a plane."""

    x: float
    y: float


@mcp.tool
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


@mcp.tool
async def older(person: Person, years: int = 1) -> Person:
    """Give the same person, born earlier."""
    born = person.born and person.born.replace(year=person.born.year - years)
    return person.model_copy(update={"born": born})


@mcp.tool
async def paint(colour: Literal["red", "green"], share: Annotated[float, Field(ge=0, le=1)] = 1) -> str:
    """Paint a share of a wall."""
    return f"{share:.0%} {colour}"


@mcp.tool
async def spell(word: str) -> AsyncIterator[str]:
    """Stream a text, letter by letter."""
    for letter in word:
        yield letter


@mcp.tool
async def squares(to: int) -> AsyncIterator[int]:
    """Stream numbers."""
    for number in range(1, to + 1):
        yield number * number


@mcp.tool
async def dot() -> Image:
    """Give a picture."""
    return Image(data=DOT, format="png")


@mcp.tool
async def beep() -> Audio:
    """Give sound."""
    return Audio(data=BEEP, format="wav")


@mcp.tool
async def report(title: str) -> list[str | File]:
    """Give a text and a file."""
    return [f"About {title}", File(data=b"day,sold\n", format="csv", name=title)]


@mcp.tool
async def size(file: bytes) -> int:
    """Say how large a file is."""
    return len(file)


@mcp.tool
async def divide(a: float, b: float) -> float:
    """Divide two numbers, if that can be done."""
    if b == 0:
        raise ToolError("Nothing can be divided by zero")
    return a / b


@mcp.tool
async def delete(name: str, ctx: Context) -> str:
    """Delete something, if a person agrees: clients up to 2025-11-25."""
    answer = await ctx.elicit(f"Delete {name}?", bool)
    return f"{name} is deleted" if answer.action == "accept" and answer.data else f"{name} is kept"


YES = {"type": "object", "properties": {"confirmed": {"type": "boolean"}}}


@mcp.tool
async def delete_modern(name: str, ctx: Context) -> str | InputRequiredResult:
    """Delete something, if a person agrees: clients of 2026-07-28."""
    answer = (ctx.input_responses or {}).get("sure")
    if answer is None:
        params = ElicitRequestFormParams(message=f"Delete {name}?", requested_schema=YES)
        return InputRequiredResult(input_requests={"sure": ElicitRequest(params=params)})
    agreed = answer.action == "accept" and answer.content["confirmed"]
    return f"{name} is deleted" if agreed else f"{name} is kept"


@mcp.tool
async def introduce(ctx: Context) -> Person:
    """Ask for somebody, with an address."""
    return (await ctx.elicit("Who is it?", Person)).data


@mcp.tool
async def copy(files: list[str], ctx: Context) -> str:
    """Copy files, and tell how far it is."""
    for number, name in enumerate(files, 1):
        name.upper()  # again, whenever it is called again
        await ctx.report_progress(number, len(files), name)
    return f"{len(files)} copied"


async def main(mode: str) -> None:
    """Call each tool, and say what its caller sees."""
    twenty = json.loads((Path(__file__).parents[2] / "examples/twenty.json").read_text())

    async def accept(message: str, response_type: Any, params: Any, context: Any) -> ElicitResult:
        return ElicitResult(
            action="accept", content=dict.fromkeys(params.requested_schema["properties"], True)
        )

    async with Client(mcp, mode=mode, elicitation_handler=accept) as client:
        for one in [*twenty, {"tool": "delete_modern", "arguments": {"name": "x"}}]:
            try:
                result = await client.call_tool(one["tool"], one["arguments"])
                blocks = [getattr(block, "text", block.type) for block in result.content]
                print(f"{mode} {one['tool']}: {result.data!r}, {blocks}")
            except Exception as error:  # noqa: BLE001  that is what its caller sees
                print(f"{mode} {one['tool']}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    for era in ("legacy", "2026-07-28"):
        asyncio.run(main(era))

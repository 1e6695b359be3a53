"""The hub that the tests of the pages Tools, Resources and Calls look at: `tools_app:hub`."""

import asyncio
import datetime as dt
import struct
import zlib
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any

from pydantic import Base64Bytes, BaseModel

from midcall import Ask, Hub
from midcall.content import Audio, Document, Embedded, Image, Link
from operate_app import effect

hub = Hub("plexus", description="What the pages show")


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(BaseModel):
    width: int
    height: int | None = None


class Order(BaseModel):
    """What do you want?"""

    note: str | None = None
    gift: bool | None = None
    colours: list[Colour] = []
    colour: Colour | None = None
    day: dt.date
    at: dt.datetime
    size: Size | None = None
    either: int | str | None = None
    pause: dt.timedelta | None = None


@hub.method("forms.order")
async def order(order: Order) -> Any:
    """Take an order, and give it back."""
    return order.model_dump(mode="json")


@hub.method("forms.asked")
async def asked(ask: Ask) -> Any:
    """Ask for an order."""
    return (await ask.form(Order, timeout=None)).model_dump(mode="json")


@hub.method("forms.measure")
async def measure(file: Base64Bytes, second: Base64Bytes | None = None) -> str:
    """Tell how long a file is."""
    return f"{len(file)} bytes, begins with {file[:3]!r}, {'two files' if second else 'one file'}"


class Upload(BaseModel):
    """Which file?"""

    file: Base64Bytes


@hub.method("forms.upload")
async def upload(ask: Ask) -> str:
    """Ask for a file."""
    return f"{len((await ask.form(Upload, timeout=None)).file)} bytes were answered"


def png(red: int) -> bytes:
    """A small picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((red, 80, 120)) * 64 for _ in range(40))
    head = struct.pack(">IIBBBBB", 64, 40, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def wav() -> bytes:
    """A moment of silence."""
    data = b"\x80" * 800
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
    return (
        b"RIFF"
        + struct.pack("<I", 36 + len(data))
        + b"WAVE"
        + form
        + struct.pack("<4sI", b"data", len(data))
        + data
    )


@hub.method("results.all")
async def everything() -> list[Any]:
    """Give content of every kind."""
    return [
        "Some text",
        Image(png(200)),
        Audio(wav()),
        Link("https://example.com/report", "The report", description="Of last year"),
        Embedded(Document("file:///data/numbers.bin", "application/octet-stream", blob=bytes(2500))),
        Embedded(Document("file:///data/readme.txt", "text/plain", text="Read me")),
    ]


@hub.method("results.stream")
async def pictures() -> AsyncIterator[Image]:
    """Give two pictures, one after the other."""
    yield Image(png(200))
    yield Image(png(20))


@hub.method("results.bytes")
async def raw() -> bytes:
    """Give bytes."""
    return bytes(1500)


@hub.method("results.hostile")
async def hostile() -> list[Any]:
    """Give what should do no harm."""
    svg = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(2)</script></svg>"
    return [
        Link("javascript:alert(3)", "<img src=x onerror=alert(4)>"),
        Image(svg, "image/svg+xml"),
        Image(b"<script>alert(5)</script>", "text/html"),
        Embedded(Document("../../<b>evil</b>\u202egnp.html", "text/html", blob=b"<script>alert(6)</script>")),
        {"type": "image", "data": '"><script>alert(7)</script>', "mimeType": "image/png"},
    ]


@hub.method("results.huge")
async def huge() -> list[str]:
    """Give more than anybody reads."""
    return [f"line {n} of a result that does not end" for n in range(60_000)]


@hub.method("runs.slow")
async def slow(ask: Ask, steps: int = 3) -> AsyncIterator[str]:
    """Ask after each step."""
    for n in range(1, steps + 1):
        await ask.step(effect, f"step {n}")
        yield f"step {n} done"
        await ask.confirm(f"Go on after step {n}?", timeout=None)


@hub.method("runs.long")
async def long() -> AsyncIterator[str]:
    """Go on and on."""
    for n in range(10_000):
        yield f"line {n}"
        await asyncio.sleep(0.2)


@hub.method("runs.limited")
async def limited(ask: Ask, seconds: float = 600) -> str:
    """Ask, but not for ever."""
    return f"Said {await ask.confirm('Quickly?', timeout=seconds)}"


@hub.method("runs.patient")
async def patient(ask: Ask) -> str:
    """Ask without a limit of its own."""
    return f"Said {await ask.confirm('At your leisure?')}"


@hub.method("runs.hostile")
async def hostile_question(ask: Ask) -> str:
    """Ask with a text that should do no harm."""
    text = "<script>alert(1)</script> [click](javascript:alert(2)) ![x](https://example.com/track.png)"
    return await ask.prompt(text, timeout=None)


# --- resources and prompts --------------------------------------------------------------------

NOTES = {"monday": "Wash", "tuesday": "Cook", "wednesday": "<script>alert(1)</script>"}


@hub.resource("notes://today", mime_type="text/plain", title="Today")
async def today() -> str:
    """What is on today."""
    return NOTES["monday"]


@hub.resource("notes://picture", mime_type="image/png")
async def picture() -> bytes:
    """A picture."""
    return png(90)


@hub.resource("notes://{day}", title="Some day")
async def note(day: str) -> str:
    """What is on some day."""
    return NOTES[day]


@hub.completion("notes://{day}", "day")
async def days(value: str) -> list[str]:
    """The days that there are."""
    return [day for day in NOTES if day.startswith(value)]


@hub.prompt(title="Review")
async def review(title: str, tone: str = "kind") -> str:
    """Ask for a review."""
    return f"Write a {tone} review of {title}"


@hub.completion("review", "tone")
async def tones(value: str) -> list[str]:
    """Ways to say it."""
    return [tone for tone in ("kind", "harsh", "honest") if tone.startswith(value)]


@hub.method("notes.write")
async def write(text: str) -> str:
    """Change what is on today."""
    NOTES["monday"] = text
    hub.updated("notes://today")
    return "written"

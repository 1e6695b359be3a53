"""A hub whose tools, model and mounted server say what should neither run, nor freeze nor break the page."""

import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from midcall import Ask, Hub
from midcall.chat import ChatEngine
from midcall.content import Image
from midcall.models.base import ModelEvent, ModelRequest, Stopped, TextPart, ToolCall

HERE = Path(__file__).parent

EVIL = (
    '<img src=x onerror="window.owned=1"><script>window.owned=2</script> [go](javascript:window.owned=3) '
    "![pic](https://example.com/track.png) \u202egnp.exe\u202c \x07\x1b[31mred \u0627\u0644\u0639\u0631\u0628\u064a\u0629"
)
WORD = "W" * 20_000
DEEP = "> " * 20_000
MARKS = "_a_b" * 10_000
TEXTS = {"evil": EVIL, "word": WORD, "deep": DEEP, "marks": MARKS, "both": f"{EVIL}\n\n{WORD}"}

hub = Hub("plexus", description=EVIL)


def nested(levels: int) -> dict[str, Any]:
    """A form in a form in a form, each with a long name."""
    inner = nested(levels - 1) if levels else {"type": "string", "title": EVIL, "description": WORD[:2000]}
    return {"type": "object", "title": WORD[:200], "properties": {"in": inner, "x": {"type": "string"}}}


@hub.method("say")
async def say(what: str) -> str:
    """Say one of the texts."""
    return TEXTS[what]


@hub.method("ask")
async def ask_for(ask: Ask, what: str) -> str:
    """Ask with one of the texts."""
    return await ask.prompt(TEXTS[what], timeout=None)


@hub.method("rows")
async def rows() -> list[dict[str, Any]]:
    """Give ten thousand rows."""
    return [{"n": n, "text": f"row {n}", "evil": EVIL} for n in range(10_000)]


@hub.method("columns")
async def columns() -> list[dict[str, Any]]:
    """Give more columns than anybody reads."""
    return [{f"c{row}_{n}": n for n in range(400)} for row in range(50)]


@hub.method("picture")
async def picture() -> Image:
    """Give a picture of 8 MB that is none."""
    return Image(bytes(8_000_000), "image/png")


@hub.method("nests")
async def nests(ask: Ask) -> str:
    """Ask for a form in forms, with a choice of a hundred."""
    schema = nested(12)
    schema["properties"]["many"] = {"type": "string", "enum": [f"{n} {WORD[:100]}" for n in range(100)]}
    return json.dumps(await ask.custom("nests", {"message": EVIL}, schema=schema, timeout=None))


LISTS = {
    "tools/list": {
        "tools": [
            {"name": "tool", "title": EVIL, "description": f"{EVIL}\n\n{WORD}", "inputSchema": nested(3)}
        ]
    },
    "prompts/list": {"prompts": [{"name": "prompt", "title": EVIL, "description": WORD}]},
    "resources/list": {
        "resources": [{"uri": "javascript:window.owned=4", "name": WORD, "title": EVIL, "description": EVIL}]
    },
}


class Parrot:
    """Plays a model: says one of the texts, or calls a tool with what follows its name."""

    name = "parrot"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        word, _, given = last.content.partition(" ")
        if last.role == "tool":
            yield TextPart("It has answered.")
        elif word in TEXTS:
            yield TextPart(TEXTS[word])
        else:
            yield ToolCall(f"call_{len(request.messages)}", word, given or "{}")
        yield Stopped()

    async def close(self) -> None:
        """Nothing is open."""


def talking() -> Hub:
    """The hub, with a chat and a hostile server behind it."""
    script = Path(tempfile.mkdtemp()) / "script.json"
    script.write_text(json.dumps({"lists": LISTS, "says": {"tool": EVIL}}))
    hub.mount("behind", [sys.executable, str(HERE / "hostile_server.py"), "modern", str(script)])
    ChatEngine(hub, Parrot())
    return hub

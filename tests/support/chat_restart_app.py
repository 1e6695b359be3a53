"""A hub with a chat whose tool needs a while before it asks, as it does again when it is rebuilt."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from midcall import Ask, Hub, method
from midcall.chat import ChatEngine
from midcall.models.base import ModelEvent, ModelRequest, Stopped, TextPart, ToolCall


def note(text: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{text}\n")


class Letters:
    """Write letters."""

    @method
    async def send(self, ask: Ask) -> str:
        """Send a letter."""
        await asyncio.sleep(float(os.environ.get("PAUSE", "0")))
        to = await ask.prompt("To whom?", key="to")
        await ask.step(note, f"sent to {to}")
        return f"sent to {to}"


class Caller:
    """Calls the tool, and tells what it gave."""

    name = "caller"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        yield ToolCall("c", "letters__send") if last.role == "user" else TextPart(f"It was {last.content}.")
        yield Stopped()

    async def close(self) -> None:
        """Nothing to do."""


def no_chat() -> Hub:
    """Without a chat: `midcall serve --model` gives it one."""
    return Hub("h").register(Letters())


def hub() -> Hub:
    """With its chat."""
    made = no_chat()
    ChatEngine(made, Caller())
    return made

"""The twenty tools of `examples/twenty.py` with a chat, whose model calls the tool that the person names."""

from collections.abc import AsyncIterator
from pathlib import Path

from midcall.chat import ChatEngine
from midcall.cli.load_target import load_hub
from midcall.models.base import ModelEvent, ModelRequest, Stopped, TextPart, ToolCall

hub = load_hub(f"{Path(__file__).parents[2] / 'examples' / 'twenty.py'}:hub")


class Caller:
    """Calls what it is told to: `add {"a": 2, "b": 3}`."""

    name = "caller"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        tool, _, arguments = last.content.partition(" ")
        if last.role == "user":
            yield ToolCall(f"call_{len(request.messages)}", tool, arguments or "{}")
        else:
            yield TextPart("Done.")
        yield Stopped()

    async def close(self) -> None:
        """Nothing to close."""


ChatEngine(hub, Caller())

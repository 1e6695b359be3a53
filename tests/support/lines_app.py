"""The hub that the tests of stdio and WebSocket talk to: `lines_app:hub`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from driving import call_tasks
from midcall import Ask, Hub, ToolError, method
from midcall.activations import Echo, Health, Interactive


class Probe:
    """Methods that bring a connection into every state."""

    def __init__(self) -> None:
        self.trail: list[str] = []
        self._opened = asyncio.Event()

    @method
    async def state(self) -> dict[str, Any]:
        """What is left running in the server, beside this very call."""
        return {
            "calls": sum(not call.method.endswith(".state") for call in hub.calls.list()),
            "questions": hub.calls.open_questions,
            "tasks": len(call_tasks()),
            "trail": self.trail,
        }

    @method
    async def ask(self, name: str, ask: Ask, timeout: float | None = None) -> dict[str, Any]:
        """Ask for a word and give it back beside the name, so that a mix-up shows."""
        self.trail.append(f"{name} asks")
        try:
            return {"name": name, "word": await ask.prompt(f"A word for {name}?", timeout=timeout)}
        except asyncio.CancelledError:
            self.trail.append(f"{name} was cancelled")
            raise

    @method
    async def fail(self) -> None:
        """Fail with a message for the caller."""
        raise ToolError("The disk is full", code="disk_full", recoverable=True)

    @method
    async def unsendable(self) -> Any:
        """Give something that JSON cannot carry."""
        return object()

    @method
    async def sleep(self, seconds: float) -> str:
        """Take a while."""
        await asyncio.sleep(seconds)
        return "slept"

    @method
    async def held(self) -> str:
        """Work until `open` is called."""
        await self._opened.wait()
        return "worked"

    @method
    async def open(self) -> None:
        """Let `held` end."""
        self._opened.set()
        self._opened = asyncio.Event()

    @method
    async def flood(self, count: int, size: int = 1000) -> AsyncIterator[str]:
        """Give a lot, and remember how far it got."""
        for number in range(count):
            self.trail[:] = [str(number)]
            yield "x" * size

    @method
    async def narrate(self, ask: Ask) -> str:
        """Log and report progress."""
        ask.log("starting", "warning", {"n": 1})
        ask.progress("half way", 50)
        return "told"


hub = Hub("plexus").register(Health()).register(Echo()).register(Interactive()).register(Probe())

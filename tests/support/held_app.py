"""A hub whose calls ask while another branch of them is at work, for as long as there is the file `HOLD`."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from durable_app import effect
from midcall import Ask, Hub, method
from midcall.fsm import MachineBuilder
from midcall.models import ModelEvent, ModelRequest, Stopped, TextPart


async def held(name: str) -> str:
    effect(name)
    while Path(os.environ["HOLD"]).exists():
        await asyncio.sleep(0.02)
    return f"{name} done"


class Work:
    """Tools that take their time."""

    @method
    async def slow(self) -> str:
        """Work."""
        return await held("tool")

    @method
    async def both(self, ask: Ask) -> str:
        """Ask, and work meanwhile."""
        name, done = await asyncio.gather(ask.prompt("Name?", key="name"), ask.step(held, "step"))
        return f"{name}: {done}"


class Model:
    """Takes its time, too."""

    name = "slow"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield TextPart(f'"{await held("model")}"')
        yield Stopped()

    async def close(self) -> None:
        """Nothing is open."""


async def function(event: dict[str, Any]) -> dict[str, Any]:
    return {"said": await held("function")}


branches = {
    "person": {"action": "ask", "config": {"message": "Name?"}},
    "tool": {"action": "method", "config": {"method": "work.slow"}},
    "model": {"action": "model"},
    "function": {"action": "function", "config": {"function": "function"}},
}
machine = MachineBuilder("busy").parallel("all", branches).to("start", "all").to("all", "end")
late = (
    MachineBuilder("late")
    .ask("person", "Name?", failure_to="nobody")
    .function("nobody", lambda event: {"said": "nobody"})
    .machine("within", "asks", timeout=1.5, failure_to="nobody")
    .to("start", "within")
    .to("within", "person")
    .to("person", "end")
    .to("person", "nobody")
    .to("within", "nobody")
    .to("nobody", "end")
)
asks = MachineBuilder("asks").ask("name", "Name?").to("start", "name").to("name", "end")
hub = (
    Hub("plexus")
    .register(Work())
    .register_machine(machine, model=Model(), functions={"function": function})
    .register_machine(asks)
    .register_machine(late)
)

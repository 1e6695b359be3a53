"""A hub that asks people: `people_app:hub`. Every effect is a line in the file that `LEDGER` names."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel

from midcall import Ask, Hub, Question
from midcall.chat import ChatEngine
from midcall.models.base import ModelEvent, ModelRequest, Stopped, TextPart, ToolCall
from operate_app import effect

hub = Hub("plexus")

CALLER = "ada-0123456789abcdef"
OPS = "ops-0123456789abcdef"
OTHER = "eve-0123456789abcdef"
ROOT = "root-0123456789abcdef"
KEYS = f"ada={CALLER} bob={OPS}:ops eve={OTHER}:sales root={ROOT}:midcall:admin"


class Window(BaseModel):
    """When may it be down?"""

    minutes: int
    night: bool = False


@hub.method("people.own")
async def own(ask: Ask, limit: float | None = None) -> str:
    """Ask the caller."""
    await ask.step(effect, "before")
    name = await ask.prompt("Your name?", timeout=limit, key="name")
    await ask.step(effect, f"hello {name}")
    return f"Hello {name}"


@hub.method("people.both")
async def both(ask: Ask) -> list[Any]:
    """Ask two things at once."""
    return list(await ask.all(ask.prompt("First?", key="first"), ask.confirm("Second?", key="second")))


@hub.method("people.window")
async def window(ask: Ask) -> str:
    """Ask for a form."""
    given = await ask.form(Window, key="window")
    return f"{given.minutes} minutes"


@hub.method("people.deploy")
async def deploy(ask: Ask, to: str = "scope:ops", limit: float | None = None) -> str:
    """Ask somebody else."""
    await ask.step(effect, "build")
    if limit is None:
        sure = await ask.confirm("Deploy 1.2?", to=to, key="sure")
    else:
        sure = await ask.confirm("Deploy 1.2?", to=to, key="sure", timeout=limit)
    await ask.step(effect, f"deploy {sure}")
    return f"deployed: {sure}"


@hub.method("people.later", long_running=True)
async def later(ask: Ask) -> str:
    """Ask somebody else, as a task."""
    return f"later: {await ask.confirm('Later?', to='scope:ops', key='later')}"


@hub.method("people.mixed")
async def mixed(ask: Ask) -> list[Any]:
    """Ask the caller and somebody else at once."""
    return list(await ask.all(ask.prompt("Why?", key="why"), ask.confirm("Really?", to="bob", key="really")))


trip = Question("trip", Window)


@hub.method("people.everything", elicits=[trip])
async def everything(ask: Ask) -> list[Any]:
    """Ask somebody else in every way that there is."""
    return [
        await ask.confirm("One?", to="bob", key="q1"),
        await ask.prompt("Two?", to="bob", key="q2"),
        await ask.select("Three?", ["a", "b"], to="bob", key="q3"),
        (await ask.form(Window, to="bob", key="q4")).minutes,
        await ask.custom("gauge", {"message": "Five?"}, to="bob", key="q5"),
        (await ask(trip, "Six?", to="bob")).minutes,
        await ask.url("https://example.com/", to="bob", key="q7"),
    ]


class Caller:
    """Plays a model: calls the tool that the person names, and tells what it gave."""

    name = "caller"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        if last.role == "user":
            yield ToolCall(f"call_{len(request.messages)}", f"people__{last.content}", "{}")
        else:
            yield TextPart(f"It said: {last.content}")
        yield Stopped()

    async def close(self) -> None:
        """Nothing is open."""


def talking() -> Hub:
    """The same hub, with a chat."""
    ChatEngine(hub, Caller())
    return hub

"""The wizard as a state machine: a model and two people's choices in it, and the same four steps."""

from collections.abc import AsyncIterator
from typing import Any

from crash.app import SIZES, Steps, at, write_here
from crash.ticks import tick
from midcall import Ask, Hub
from midcall.fsm import MachineBuilder, Moment
from midcall.items import to_json
from midcall.models.base import ModelEvent, ModelRequest, Stopped, TextPart

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
START = {
    "type": "object",
    "properties": {"run": {"type": "string"}, "ledger": {"type": "string"}},
    "required": ["run", "ledger"],
}


class GoesOn:
    """A model that always chooses the same way."""

    name = "goes on"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        tick()
        yield TextPart(to_json({"id": ["llm", "size"]}).decode())
        tick()
        yield Stopped()

    async def close(self) -> None:
        """Nothing is open."""


def steps_of(moment: Moment) -> Steps:
    start = moment.trail[0].event
    return Steps(moment.ask, start["ledger"], start["run"])


def found(moment: Moment, name: str) -> Any:
    """A field of an event of the trail."""
    return next(one.event[name] for one in moment.trail if name in one.event)


async def first(event: Any, moment: Moment) -> dict[str, Any]:
    ask: Ask = moment.ask
    values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]
    steps = steps_of(moment)
    await steps.do("open")
    return {"values": values, "opened": steps.made}


async def named(event: Any, moment: Moment) -> dict[str, Any]:
    steps = steps_of(moment)
    await steps.do("name", write_here)
    return {"named": steps.made}


async def pay(event: Any, moment: Moment) -> dict[str, Any]:
    steps = steps_of(moment)
    await steps.pay()
    tick()
    return {"paid": steps.made, "late": str(moment.ask.uuid()), "size": event["id"][0]}


async def close(event: Any, moment: Moment) -> dict[str, Any]:
    steps = steps_of(moment)
    await at(steps.do("close"))
    made = {**found(moment, "opened"), **found(moment, "named"), **found(moment, "paid"), **steps.made}
    answers = [found(moment, "text"), found(moment, "size"), event["confirmed"]]
    return {"answers": answers, "made": made, "seen": [*found(moment, "values"), found(moment, "late")]}


def sized(event: Any) -> Any:
    return {}


def add_machine(hub: Hub) -> Hub:
    built = (
        MachineBuilder("wizard")
        .function("first", first)
        .ask("name", "Name? {values}")
        .function("named", named)
        .model("llm")
        .ask("size", "Size?")
        .function("pay", pay)
        .ask("sure", "Sure? {late}")
        .function("close", close)
        .to("start", "first", START)
        .to("first", "name")
        .to("name", "named", TEXT)
        .to("named", "llm")
        .to("llm", "size")
        .to("pay", "sure")
        .to("sure", "close")
        .to("close", "end")
    )
    for size in SIZES:
        built.function(size, sized).to("size", size).to(size, "pay")
    return hub.register_machine(built, model=GoesOn())

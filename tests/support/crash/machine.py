"""The wizard as a state machine, of every action: functions, people, a model that has a tool called, a method,
and a machine of its own that pays; and the same four steps.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from crash.app import INTERRUPTED, SIZES, Steps, at, write, write_here
from crash.ticks import tick
from midcall import Ask, Hub, method
from midcall.fsm import MachineBuilder, Moment
from midcall.models.base import ModelEvent, ModelRequest, Stopped, TextPart

MODEL = "model"
"""What a call of the model leaves in the ledger, with its number."""

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
START = {
    "type": "object",
    "properties": {"run": {"type": "string"}, "ledger": {"type": "string"}},
    "required": ["run", "ledger"],
}


class Caller:
    """A model that has the tool called once, and then goes on."""

    name = "caller"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        tick()
        events = [json.loads(message.content) for message in request.messages]
        about = {key: events[0][key] for key in ("run", "ledger")}
        said: dict[str, Any] = {"id": ["llm", "size"]}
        if "tool_results" not in events[-1]:
            said = {"id": "tool_calls", "calls": [{"id": "1", "name": "desk.note", "arguments": about}]}
        write(**about, step=f"{MODEL} {len(events)}")
        yield TextPart(json.dumps(said))
        tick()
        yield Stopped()

    async def close(self) -> None:
        """Nothing is open."""


class Desk:
    """What the machine has called: by the model, and by a state of its own."""

    namespace = "desk"

    @method
    async def note(self, run: str, ledger: str) -> str:
        """Write the name down."""
        return await at(write_here(ledger, run, "name"))

    @method
    async def shut(self, run: str, ledger: str, ask: Ask) -> dict[str, Any]:
        """Close it."""
        steps = Steps(ask, ledger, run)
        await steps.do("close")
        return {"closed": steps.made}


def about(moment: Moment) -> dict[str, str]:
    return {key: moment.trail[0].event[key] for key in ("run", "ledger")}


def found(moment: Moment, name: str) -> Any:
    """A field of an event of the trail."""
    return next(one.event[name] for one in moment.trail if name in one.event)


async def first(event: Any, moment: Moment) -> dict[str, Any]:
    ask = moment.ask
    values = [ask.now().isoformat(), str(ask.uuid()), ask.random()]
    steps = Steps(ask, **about(moment))
    await steps.do("open")
    return {"values": values, "shown": str(values), "opened": steps.made}


async def sized(event: Any, moment: Moment) -> dict[str, Any]:
    return {**about(moment), "size": moment.state.id}


async def pay(event: Any, moment: Moment) -> dict[str, Any]:
    steps = Steps(moment.ask, **about(moment))
    await steps.pay()
    tick()
    return {"paid": steps.made, "late": str(moment.ask.uuid())}


async def closing(event: Any, moment: Moment) -> dict[str, Any]:
    return about(moment)


async def told(event: Any, moment: Moment) -> dict[str, Any]:
    (noted,) = found(moment, "tool_results")
    named = {"name": noted["result"] if noted["success"] else INTERRUPTED}
    made = {**found(moment, "opened"), **named, **found(moment, "paid"), **event["closed"]}
    answers = [found(moment, "text"), found(moment, "size"), found(moment, "confirmed")]
    return {"answers": answers, "made": made, "seen": [*found(moment, "values"), found(moment, "late")]}


def add_machine(hub: Hub) -> Hub:
    payment = MachineBuilder("payment").function("pay", pay).to("start", "pay", START).to("pay", "end")
    built = (
        MachineBuilder("wizard")
        .function("first", first)
        .ask("name", "Name? {shown}")
        .model("llm")
        .tools("servicing", "desk.note", parallel=True)
        .ask("size", "Size?")
        .machine("pay", "payment", trail="summary")
        .ask("sure", "Sure? {late}")
        .function("closing", closing)
        .method("shut", "desk.shut")
        .function("told", told)
        .to("start", "first", START)
        .to("first", "name")
        .to("name", "llm", TEXT)
        .to("llm", "servicing")
        .to("servicing", "llm")
        .to("llm", "size")
        .to("pay", "sure")
        .to("sure", "closing")
        .to("closing", "shut")
        .to("shut", "told")
        .to("told", "end")
    )
    for size in SIZES:
        built.function(size, sized).to("size", size).to(size, "pay", START)
    return hub.register(Desk()).register_machine(payment).register_machine(built, model=Caller())

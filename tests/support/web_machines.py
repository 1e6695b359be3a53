"""The machines that the tests of HTTP and of the web client look at: ordinary, stubborn, large and hostile ones.

`gates` holds a run where a test wants to see it: a state that waits at a gate goes on when somebody opens that.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from machines_app import hub as office
from midcall import Hub, method
from midcall.activations.echo import Echo
from midcall.fsm import Event, MachineBuilder
from midcall.models.base import ModelEvent, ModelRequest, Stopped, TextPart

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(2)</script>',
    "__proto__",
    "constructor",
    "]]></text></svg><svg onload=alert(3)>",
    "\u202egnp.exe\u202c \U0001f600 \u4e2d\u6587\u72b6\u6001",
    "long " * 60,
    "two\nlines\tand\x00more",
)
"""Names of states that a page may not stumble over."""


class Gates:
    """Hold runs until somebody lets them go on."""

    def __init__(self) -> None:
        self._open: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @method
    async def open(self, name: str) -> str:
        """Open a gate, for good."""
        self._open[name].set()
        return f"{name} is open"

    async def passed(self, name: str) -> None:
        await self._open[name].wait()


class Driver:
    """Plays a model: asks for the weather where the question has a city, and never says what a stubborn one should."""

    name = "driver"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        said = request.messages[-1].content
        if "tool_results" in said:
            await gates.passed(json.loads(request.messages[0].content)["question"])
            event: Any = {"id": ["llm", "end"], "answer": "Take an umbrella."}
        elif "stubborn" in str(request.schema):
            event = {"id": ["stubborn", "nowhere"]}
        else:
            call = {"id": "1", "name": "echo.once", "arguments": {"message": "rain in Bergen"}}
            event = {"id": ["llm", "servicing"], "tool_calls": [call]}
        yield TextPart(json.dumps(event))
        yield Stopped()

    async def close(self) -> None:
        """Nothing is open."""


def fields(**types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": properties, "required": list(types)}


def loop() -> MachineBuilder:
    """The tool loop of the seed."""
    return (
        MachineBuilder("loop", "Answers questions with tools.", prompts=["Use a tool where you can."])
        .model("llm", description="Decides what to do next")
        .tools("servicing", "echo.*", parallel=True)
        .to("start", "llm", fields(question="string"))
        .to("llm", "servicing", fields(tool_calls="array"), label="call tools")
        .to("servicing", "llm", fields(tool_results="array"))
        .to("llm", "end", fields(answer="string"), label="answer")
    )


def walk() -> MachineBuilder:
    """Goes from `tick` to `tock` and back as often as it is told, waiting at a gate in the middle if it is named."""

    async def tick(event: Event) -> Any:
        left = event["left"]
        if left == event.get("stop"):
            await gates.passed(event["gate"])
        return {**event, "id": ["tick", "tock" if left else "end"]}

    async def tock(event: Event) -> Any:
        return {**event, "id": ["tock", "tick"], "left": event["left"] - 1}

    steps = {
        "type": "object",
        "properties": {
            "left": {"type": "integer", "title": "Rounds"},
            "stop": {"type": "integer"},
            "gate": {"type": "string"},
        },
        "required": ["left"],
    }
    return (
        MachineBuilder("walk", "Counts down.").function("tick", tick).function("tock", tock)
        .to("start", "tick", steps).to("tick", "tock", steps).to("tock", "tick", steps).to("tick", "end", steps)
    )  # fmt: skip


def stubborn() -> MachineBuilder:
    """Gives up after three tries; it has no transition to `end` from where it does."""
    return (
        MachineBuilder("stubborn", "Never says what it should.")
        .model("stubborn").ask("help", "Can somebody help?")
        .to("start", "stubborn", fields()).to("stubborn", "help", fields(why="string"), label="ask for help")
        .to("help", "end", fields(note="string"))
    )  # fmt: skip


def hurry() -> MachineBuilder:
    """Gives a person four seconds."""
    return (
        MachineBuilder("hurry", "Cannot wait.")
        .ask("now", "Now?", timeout=4)
        .to("start", "now")
        .to("now", "end")
    )


STAGES = {
    "intake": ["triage"], "triage": ["duplicate", "urgent", "backlog"], "duplicate": ["closed"],
    "urgent": ["assign"], "backlog": ["assign", "stale"], "stale": ["closed", "backlog"], "assign": ["diagnose"],
    "diagnose": ["reproduce", "need info"], "need info": ["diagnose", "closed"], "reproduce": ["fix", "cannot reproduce"],
    "cannot reproduce": ["need info", "closed"], "fix": ["review"], "review": ["fix", "test"], "test": ["fix", "stage"],
    "stage": ["smoke test"], "smoke test": ["release", "roll back"], "roll back": ["fix"], "release": ["announce"],
    "announce": ["closed"], "closed": ["triage", "end"],
}  # fmt: skip


def ticket() -> MachineBuilder:
    """Twenty states, by which a person leads a ticket."""
    made = MachineBuilder("ticket", "The life of a bug report, with a person at every turn.").to(
        "start", "intake", fields()
    )
    for name, ends in STAGES.items():
        made.ask(name, f"Where to after {name}?")
        for end in ends:
            made.to(name, end, label="" if len(ends) == 1 else f"to {end}")
    return made


def huge(count: int = 200) -> MachineBuilder:
    """So many states, each of which leads to the next, some also far back or ahead."""
    made = MachineBuilder("huge", f"{count} states.").to("start", "s0", fields())
    for n in range(count):
        made.function(f"s{n}", lambda event, n=n: {"id": [f"s{n}", f"s{n + 1}" if n + 1 < count else "end"]})
        ends = {n + 1, n // 2, min(n * 2, count)} - {n}
        for end in sorted(ends):
            made.to(f"s{n}", f"s{end}" if end < count else "end", fields())
    return made


def hostile() -> MachineBuilder:
    """Names, labels and events of somebody who means no good."""
    first, *others = HOSTILE
    made = (
        MachineBuilder("hostile", f"# {first}")
        .ask(first, f"Is it {HOSTILE[1]}?")
        .to("start", first, fields(note="string"))
    )
    for name in others:
        made.ask(name, f"Is it {name}?").to(first, name, label=f"{name} {first}").to(name, first, label=name)
    return made.to(first, "end", fields(note="string"), label=first)


def tree() -> dict[str, Any]:
    """A definition in JSON, whose events have more of the same within."""
    node = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "next": {"$ref": "#/$defs/node"}},
        "required": ["text"],
    }
    return {
        "id": "tree",
        "schemas": {"node": node},
        "states": [{"id": "grow", "action": "ask", "config": {"message": "What comes next?"}}],
        "transitions": [
            {"id": ["start", "grow"], "schema": "node"},
            {"id": ["grow", "end"], "schema": "node"},
        ],
    }


gates = Gates()
hub = office.register(gates).register(Echo())
for _machine in (loop(), stubborn(), hurry(), ticket(), huge(), hostile(), tree()):
    hub.register_machine(_machine, model=Driver())
hub.register_machine(walk(), max_transitions=50_000)
hub.register_hub(Hub("inner").register_machine(tree()), namespace="inner")

"""All machines: whatever is done in one, its runs end, their trails are legal, a run that goes on from its journal is
the same run, and JSON in and out is the same machine. And whatever can be an event is not refused beforehand.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driving import assert_nothing_left, drive
from midcall import Hub, Request, connect
from midcall.fsm import Event, Machine, MachineBuilder, MachineError, read_machine
from midcall.fsm.checks import never_fits
from midcall.fsm.run import TRIES
from midcall.fsm.serve import Machines
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite.journal import SqliteJournal
from midcall.json_schema import compiled
from spoken import Spoken

NAMES = ["a", "b", "c", "d"]
LONGEST = 20
"""How many transitions a run may have."""

INNER = MachineBuilder("inner").function("f", lambda event: {"n": 1}).to("start", "f").to("f", "end")


class Walk:
    """A machine, and what each state gives when it is asked: legal or not."""

    def __init__(self, actions: dict[str, str], ways: dict[str, list[str]], chosen: list[int]) -> None:
        self.actions = actions
        self.ways = ways
        self._chosen = chosen

    def __repr__(self) -> str:
        return f"Walk({self.actions}, {self.ways}, {self._chosen})"

    def built(self) -> tuple[MachineBuilder, Spoken, Callable[[Request], Any]]:
        """The machine, its model and its person: the same choices each time."""
        chosen = itertools.chain(self._chosen, itertools.repeat(0))

        def event(name: str) -> Any:
            number, ends = next(chosen), self.ways[name]
            if number % 7 == 0:
                ends = [*ends, "nowhere"]
            if number % 11 == 3 or not ends:
                return {"id": number}
            return {"id": [name, ends[number % len(ends)]], "n": number}

        def said(request: Any) -> Any:
            name = str(request.system).rpartition("state ")[2].partition(" ")[0]
            return event(name)

        def answered(request: Request) -> Any:
            options = getattr(request.request_type, "options", ())
            return options[next(chosen) % len(options)].value if options else True

        made = MachineBuilder("m")
        for name, action in self.actions.items():
            match action:
                case "function":
                    made.function(name, lambda _, name=name: event(name))
                case "model":
                    made.model(name, description=f"state {name} here")
                case "ask":
                    made.ask(name)
                case "machine":
                    made.machine(name, "inner", success_to=(self.ways[name] or [None])[0])
                case "parallel":
                    branch = {"action": "machine", "config": {"machine": "inner"}}
                    made.parallel(name, {"x": branch, "y": branch}, success_to=(self.ways[name] or [None])[0])
            for end in self.ways[name]:
                made.to(name, end)
        return made.to("start", next(iter(self.actions))), Spoken(said), answered


@st.composite
def walks(draw: Any) -> Walk:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    kinds = st.sampled_from(["function", "model", "ask", "machine", "parallel"])
    actions = {name: draw(kinds) for name in names}
    ways = {name: draw(st.lists(st.sampled_from([*names, "end"]), unique=True)) for name in names}
    return Walk(actions, ways, draw(st.lists(st.integers(0, 99), max_size=60)))


def hub_of(walk: Walk) -> tuple[Hub, Machine, Callable[[Request], Any]]:
    """Registered without a look at whether its ways lead anywhere."""
    built, model, answer = walk.built()
    hub = Hub()
    machines = Machines(hub)
    machines.add(INNER, {})
    with mock.patch("midcall.fsm.serve.problems", lambda *_: ()):
        machines.add(built, {}, model=model, max_transitions=LONGEST)
    hub._add("machines", machines)
    return hub, built.build(), answer


def check_trail(machine: Machine, trail: list[Any]) -> None:
    assert trail[0]["from"] == "start"
    assert trail[-1]["to"] == "end"
    assert len(trail) <= 1 + LONGEST * TRIES
    at, legal = "start", {way.id for way in machine.transitions}
    for entry in trail:
        assert entry["from"] == at
        if "error" in entry:
            assert entry["to"] is None
        else:
            assert (entry["from"], entry["to"]) in legal or entry["event"]["bail_out"]
            assert entry["event"]["id"] == [entry["from"], entry["to"]]
            at = entry["to"]


@given(walks())
def test_every_run_of_every_machine_ends_and_its_trail_is_legal(walk: Walk) -> None:
    hub, machine, answer = hub_of(walk)

    async def main() -> Any:
        trail = await hub.call("machines.m", {}, answer=answer)
        await assert_nothing_left(hub)
        return msgspec.to_builtins(trail)

    check_trail(machine, drive(main()))


@given(walks())
def test_a_run_that_goes_on_from_its_journal_after_each_answer_is_the_same_run(walk: Walk) -> None:
    async def ended(hub: Hub, answer: Any) -> Any:
        async with connect(hub, answer=answer) as client:
            return (await client.call("machines.m", {})).structured

    async def main() -> None:
        hub, _, answer = hub_of(walk)
        plain = await ended(hub, answer)
        await hub.close()
        hub, _, answer = hub_of(walk)
        with tempfile.TemporaryDirectory() as folder:
            hub.durable = DurableCalls(hub, SqliteJournal(Path(folder) / "journal.db"), replay_check=True)
            await hub.open()
            try:
                assert await ended(hub, answer) == plain
            finally:
                await hub.close()

    drive(main())


# --- definitions ------------------------------------------------------------------------------------

TEXTS = st.text(max_size=20)
PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | TEXTS
SCHEMAS = st.none() | st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(TEXTS, st.just({"type": "string"}), max_size=3),
        "description": TEXTS,
        "additionalProperties": st.booleans(),
    },
)
IDS = TEXTS.filter(lambda text: text not in ("start", "end"))


@st.composite
def definitions(draw: Any) -> dict[str, Any]:
    names = draw(st.lists(IDS, min_size=1, max_size=4, unique=True))
    ends = st.tuples(st.sampled_from(names), st.sampled_from([*names, "end"]))
    ids = [("start", names[0]), *draw(st.lists(ends, unique=True, max_size=6))]
    words = {"description": TEXTS, "prompts": st.lists(TEXTS, max_size=2)}
    states = st.fixed_dictionaries(
        {"action": TEXTS}, optional={"config": st.dictionaries(TEXTS, PLAIN, max_size=3), **words}
    )
    ways = st.fixed_dictionaries(
        {}, optional={"label": TEXTS, "omit": st.booleans(), "schema": SCHEMAS, **words}
    )
    whole = draw(st.fixed_dictionaries({"id": TEXTS}, optional=words))
    return {
        **whole,
        "schemas": draw(st.dictionaries(TEXTS, SCHEMAS.filter(bool), max_size=2)),
        "states": [{"id": name, **draw(states)} for name in names],
        draw(st.sampled_from(["transitions", "xitions"])): [{"id": list(way), **draw(ways)} for way in ids],
    }


@given(definitions())
def test_json_in_and_out_is_the_same_machine(definition: dict[str, Any]) -> None:
    machine = read_machine(definition)
    again = read_machine(machine.to_json())
    assert again == machine
    assert again.to_json() == machine.to_json()
    assert again.hash == machine.hash
    assert read_machine(msgspec.json.decode(machine.to_json())) == machine


@given(
    st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))
)
def test_what_is_no_definition_is_refused_with_a_reason(value: Any) -> None:
    with pytest.raises(MachineError, match=r"."):
        read_machine(value)


# --- what can be an event ---------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("abc", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def schemas_of(draw: Any, value: Any) -> dict[str, Any]:
    """A schema that a value fits, an object with no properties but those that it names."""
    match draw(st.sampled_from(["const", "enum", "any", "type", "type", "type"])):
        case "const":
            return {"const": value}
        case "enum":
            return {"enum": draw(st.permutations([value, "other", 77]))}
        case "any":
            other = draw(schemas_of(draw(VALUES)))
            return {"anyOf": draw(st.permutations([other, draw(schemas_of(value))]))}
    few = st.integers(0, 3)
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case int():
            low, high = value - draw(few), value + draw(few)
            return draw(
                st.sampled_from([{"type": "integer"}, {"type": "number", "minimum": low, "maximum": high}])
            )
        case str():
            return {
                "type": "string",
                "minLength": max(0, len(value) - draw(few)),
                "maxLength": len(value) + draw(few),
            }
        case list():
            size = {"minItems": max(0, len(value) - draw(few)), "maxItems": len(value) + draw(few)}
            alike = bool(value) and all(one == value[0] for one in value)
            return {"type": "array", **size, **({"items": draw(schemas_of(value[0]))} if alike else {})}
        case _:
            properties = {name: draw(schemas_of(one)) for name, one in value.items()}
            required = draw(st.lists(st.sampled_from(sorted(value)), unique=True)) if value else []
            closed = {"additionalProperties": False} if draw(st.booleans()) else {}
            return {"type": "object", "properties": properties, "required": required, **closed}


@st.composite
def pairs(draw: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    value: Event = draw(st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3))
    return value, draw(schemas_of(value)), draw(schemas_of(value))


@given(pairs())
def test_what_can_fit_is_never_said_not_to(made: tuple[Any, dict[str, Any], dict[str, Any]]) -> None:
    value, producer, consumer = made
    for schema in (producer, consumer):
        assert compiled(schema).fault(value) is None
    assert never_fits(producer, consumer) is None


def different(value: Any) -> Iterator[dict[str, Any]]:
    """Schemas that a value does not fit."""
    yield {"const": [value]}
    yield {"type": "object", "required": ["nothing"], "properties": {"nothing": {"type": "string"}}}
    yield {"type": "array" if isinstance(value, dict) else "object"}


@given(VALUES)
def test_what_can_never_fit_is_said_so_with_an_example(value: Any) -> None:
    for consumer in different(value):
        reason = never_fits({"const": value}, consumer)
        assert reason is not None
        assert ", as for " in reason

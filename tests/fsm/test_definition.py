"""A machine as data: what is read, what is refused and with which words, and what is drawn."""

import json
import re
from typing import Any

import msgspec
import pytest

from midcall import Hub, method
from midcall.fsm import Machine, MachineBuilder, MachineError, State, Transition, read_machine
from midcall.fsm.checks import MOST_TRIED, never_fits, problems, samples
from midcall.fsm.draw import to_dot, to_mermaid

LOOP: dict[str, Any] = {
    "id": "loop",
    "description": "Answers with tools.",
    "schemas": {
        "answer": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    },
    "prompts": ["Be brief."],
    "states": [
        {"id": "llm", "action": "llm", "prompts": ["Use a tool where you can."]},
        {"id": "servicing", "action": "tools", "config": {"parallel": True}},
    ],
    "transitions": [
        {
            "id": ["start", "llm"],
            "schema": {"type": "object", "properties": {"question": {"type": "string"}}},
        },
        {"id": ["llm", "servicing"], "label": "call tools"},
        {"id": ["servicing", "llm"], "omit": True},
        {"id": ["llm", "end"], "label": "answer", "schema": "answer"},
    ],
}


class Tools:
    namespace = "tools"

    @method
    async def count(self, text: str) -> int:
        """How many letters a text has."""
        return len(text)


def with_part(**changed: Any) -> dict[str, Any]:
    return {**LOOP, **changed}


def test_what_is_read_is_written_as_the_same_machine() -> None:
    machine = read_machine(LOOP)
    assert read_machine(machine.to_json()) == machine
    assert read_machine(json.dumps(LOOP)) == machine
    old_name = {("xitions" if key == "transitions" else key): value for key, value in LOOP.items()}
    assert read_machine(old_name) == machine


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sttes": []}, "unknown key 'sttes': did you mean 'states'?"),
        ({"states": [{"id": "llm", "action": "llm", "promts": []}]}, "states[0]: unknown key 'promts': did you mean 'prompts'?"),
        ({"states": [{"id": "llm"}]}, "states[0]: Object missing required field `action`"),
        ({"states": [{"id": "llm", "action": 1}]}, "states[0].action: Expected `str`, got `int`"),
        ({"states": [LOOP["states"][0], LOOP["states"][0]]}, "states[1].id: 'llm' is there already"),
        ({"states": [{"id": "end", "action": "llm"}]}, "states[0].id: 'end' is there already"),
        (
            {"transitions": [{"id": ["start", "lm"]}]},
            "transitions[0].id: unknown state 'lm': did you mean 'llm'?",
        ),
        ({"transitions": [{"id": ["end", "llm"]}]}, "transitions[0].id: nothing comes after 'end', or before 'start'"),
        ({"transitions": [{"id": ["llm", "end"]}]}, "transitions: none begins at 'start'"),
        ({"transitions": [*LOOP["transitions"], {"id": ["llm", "end"]}]}, "transitions[4].id: ['llm', 'end'] is there already"),
        (
            {"transitions": [{"id": ["start", "llm"], "schema": "answr"}]},
            "transitions[0].schema: unknown schema 'answr': did you mean 'answer'?",
        ),
        ({"transitions": [{"id": ["start", "llm"], "schema": {"type": "string"}}]}, "transitions[0].schema: an event is an object"),
        ({"transitions": [{"id": ["start", "llm"], "schema": {"type": "object", "required": 1}}]}, "transitions[0].schema: Not a JSON Schema"),
        ({"transitions": [{"id": ["start", "llm"], "schema": {"type": "object", "properties": {"bail_out": {}}}}]}, "transitions[0].schema: bail_out is for runs that give up"),
        ({"transitions": [{"id": ["start"]}]}, "transitions[0].id: Expected `array` of length 2, got 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_place_and_a_near_match(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(MachineError) as refused:
        read_machine(with_part(**changed))
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize("given", ["[", "[]", b"\xff", '"text"', "[" * 100_000])
def test_what_is_no_machine_at_all_is_refused(given: Any) -> None:
    with pytest.raises(MachineError):
        read_machine(given)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"action": "tool"}, "states[0].action: unknown action 'tool': did you mean 'tools'?"),
        ({"action": "tools", "config": {"paralel": True}}, "states[0].config: unknown key 'paralel': did you mean 'parallel'?"),
        ({"action": "tools", "config": {"timeout": "x"}}, "states[0].config.timeout: Expected `float`, got `str`"),
        ({"action": "method", "config": {"method": "tools.cont"}}, "states[0].config.method: unknown method 'tools.cont': did you mean 'tools.count'?"),
        ({"action": "method", "config": {"method": "tools.count", "failure_to": "ned"}}, "states[0].config.failure_to: no transition leads to 'ned': did you mean 'end'?"),
        ({"action": "function", "config": {"function": "f"}}, "states[0].config.function: unknown function 'f'"),
        ({"action": "machine", "config": {"machine": "other"}}, "states[0].config.machine: unknown machine 'other'"),
        ({"action": "model", "config": {"model": "gpt"}}, "states[0].config.model: 'gpt' is not a model"),
        ({"action": "parallel", "config": {"branches": []}}, "states[0].config.branches: there is none"),
        (
            {"action": "parallel", "config": {"branches": [{"id": "a", "action": "aks"}]}},
            "states[0].config.branches[0].action: unknown action 'aks': did you mean 'ask'?",
        ),
    ],
)  # fmt: skip
def test_a_wrong_action_is_refused_at_registration(state: dict[str, Any], told: str) -> None:
    machine = {
        "id": "one",
        "states": [{"id": "s", **state}],
        "transitions": [{"id": ["start", "s"]}, {"id": ["s", "end"]}],
    }
    hub = Hub().register(Tools())
    before = hub.hash
    with pytest.raises(MachineError) as refused:
        hub.register_machine(machine)
    assert str(refused.value).startswith(told)
    assert hub.find("machines.one") is None
    assert hub.hash == before


def machine_of(*ways: Any, **states: str) -> MachineBuilder:
    built = MachineBuilder("m")
    for name, action in states.items():
        built.state(name, action, {})
    for way in ways:
        built.to(*way[:2], **(way[2] if len(way) > 2 else {}))
    return built


@pytest.mark.parametrize(
    ("built", "told"),
    [
        (machine_of(("start", "a"), ("a", "end"), ("b", "end"), a="model", b="model"), "state 'b' cannot be reached from 'start'"),
        (machine_of(("start", "a"), ("a", "end"), ("a", "b"), a="model", b="model"), "'end' cannot be reached from state 'b'"),
        (machine_of(("start", "a"), ("a", "b"), ("b", "a"), a="model", b="model"), "'end' cannot be reached from state 'a'"),
        (
            machine_of(
                ("start", "a"), ("a", "b", {"label": "go"}), ("a", "end", {"label": "go"}), ("b", "end"),
                a="model", b="model",
            ),
            "transitions ['a', 'b'] and ['a', 'end'] cannot be told apart",
        ),
    ],
)  # fmt: skip
def test_ways_that_lead_nowhere_are_refused(built: MachineBuilder, told: str) -> None:
    with pytest.raises(MachineError, match=r"^Machine 'm': ") as refused:
        Hub().register_machine(built)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("producer", "consumer", "told"),
    [
        ({"type": "string"}, {"type": "integer"}, '"a" is not of type "integer", as for "a"'),
        ({"type": "integer"}, {"type": "number"}, None),
        ({"const": 1}, {"const": 2}, "2 was expected, as for 1"),
        ({"type": "object", "additionalProperties": False, "properties": {"a": {}}}, {"type": "object", "required": ["b"]}, '"b" is a required property, as for {}'),
        ({"type": "object", "properties": {"a": {}}}, {"type": "object", "required": ["b"]}, '"b" is a required property, as for {}'),
        ({"type": "object"}, {"type": "object", "required": ["b"]}, None),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, {"type": "object", "required": ["b"]}, None),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "object", "properties": {"a": {"type": "array"}}}, 'a: "a" is not of type "array", as for {"a":"a"}'),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"type": "object", "properties": {"b": {}}, "additionalProperties": False}, "Additional properties are not allowed ('a' was unexpected), as for {\"a\":{}}"),
        ({"type": "integer", "minimum": 0, "maximum": 5}, {"type": "integer", "minimum": 10}, "0 is less than the minimum of 10, as for 0"),
        ({"enum": ["x", "y"]}, {"enum": ["z"]}, '"x" is not one of "z", as for "x"'),
        ({"enum": ["x", "z"]}, {"enum": ["z"]}, None),
        ({}, {"type": "object"}, None),
        ({"type": "string"}, {"type": "string", "pattern": "^[A-Z]{3}$"}, None),
        ({"type": "string"}, {"enum": ["yes", "no"]}, None),
        ({"type": "object", "properties": {"a": {"type": "number", "minimum": 0}, "b": {"type": "number", "minimum": 0}}, "required": ["a", "b"]}, {"type": "object", "properties": {"a": {"minimum": 5}, "b": {"minimum": 6}}}, None),
        ({"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 1}, {"type": "array", "items": {"minimum": 7}, "minItems": 3}, None),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, {"type": "array", "items": {"type": "integer"}}, '0: "a" is not of type "integer", as for ["a"]'),
        ({"type": "object", "additionalProperties": True}, {"type": "object", "properties": {"a": {"const": 3}}, "required": ["a"]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "null"}, None),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "object", "properties": {"a": {"anyOf": [{"const": "x"}, {"type": "integer"}]}}}, None),
    ],
)  # fmt: skip
def test_what_can_never_fit_is_seen(producer: Any, consumer: Any, told: str | None) -> None:
    assert never_fits(producer, consumer) == told


def test_a_method_whose_result_no_transition_takes_is_refused() -> None:
    built = (
        MachineBuilder("m")
        .method("count", "tools.count")
        .to("start", "count", {"type": "object", "properties": {"text": {"type": "string"}}})
        .to("count", "end", {"type": "object", "properties": {"result": {"type": "string"}}})
    )
    with pytest.raises(MachineError, match='result: 0 is not of type "string"'):
        Hub().register(Tools()).register_machine(built)


def test_a_machine_is_drawn() -> None:
    dot = to_dot(read_machine(LOOP))
    assert dot.startswith('digraph "loop" {')
    assert dot.count('\n  "start" [') == dot.count('\n  "end" [') == 1
    assert '"llm" -> "servicing" [label="call tools"];' in dot
    assert dot.count(" -> ") == 4
    mermaid = to_mermaid(read_machine(LOOP))
    assert mermaid.startswith("stateDiagram-v2\n")
    assert "s0 --> s1: call tools" in mermaid
    assert mermaid.count(" --> ") == 4


def test_a_drawing_cannot_be_broken_out_of() -> None:
    evil = 'x"]; evil [label="\n}'
    machine = {
        "id": "m",
        "states": [{"id": evil, "action": "model"}],
        "transitions": [{"id": ["start", evil], "label": evil}, {"id": [evil, "end"]}],
    }
    dot = to_dot(read_machine(machine))
    quoted = re.compile(r'"(\\.|[^"\\])*"')
    assert "evil" not in quoted.sub("", dot)
    assert dot.count("\n}") == 1
    assert to_mermaid(read_machine(machine)).count("\n") == 4


def test_what_has_changed_is_named() -> None:
    before = read_machine(LOOP)
    other = json.loads(json.dumps(LOOP))
    other["states"][1]["config"] = {}
    other["transitions"][1]["label"] = "another word"
    del other["transitions"][2]["omit"]
    other["transitions"].append({"id": ["servicing", "end"]})
    after = read_machine(other)
    assert before.hash != after.hash
    assert after.changes(json.loads(json.dumps(before.structure()))) == [
        "transition servicing -> end is new",
        "state 'servicing' has changed",
        "transition servicing -> llm has changed",
    ]
    reworded = read_machine({**LOOP, "prompts": ["Be kind."], "description": "Others."})
    assert reworded.hash == before.hash


def test_types_are_schemas() -> None:
    class Order(msgspec.Struct):
        item: str
        number: int = 1

    machine = MachineBuilder("m").ask("ask").to("start", "ask", Order).to("ask", "end").build()
    (way,) = machine.ways_from("start")
    assert machine.fields(way)["properties"]["number"]["type"] == "integer"
    assert machine.event_schema(way)["required"] == ["id", "item"]


def alternatives(number: int, kind: str) -> dict[str, Any]:
    return {
        "anyOf": [
            {"type": "object", "properties": {"kind": {"const": f"{kind}{n}"}}, "required": ["kind"]}
            for n in range(number)
        ]
    }


def test_many_alternatives_are_not_tried_for_long_and_none_is_overlooked() -> None:
    assert "as for" in str(never_fits(alternatives(10, "a"), alternatives(10, "b")))
    assert never_fits(alternatives(70, "a"), alternatives(70, "a")["anyOf"][-1]) is None
    left = [MOST_TRIED]
    with pytest.raises(ValueError, match="too much"):
        samples(alternatives(200, "a"), alternatives(200, "b"), left)
    assert left[0] > -MOST_TRIED  # that is, it ends soon after
    assert never_fits(alternatives(200, "a"), alternatives(200, "b")) is None


def test_a_large_machine_is_read_without_looking_at_every_pair_of_states() -> None:
    looked_at = 0

    class Name(str):
        """Counts how often it is compared."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return str.__eq__(self, other)

    names = [Name(f"s{n}") for n in range(300)]
    states = tuple(State(name, "ask") for name in names)
    ways = tuple(Transition(pair) for pair in zip(["start", *names], [*names, "end"], strict=True))
    assert list(problems(Machine("m", states, ways), None)) == []
    assert looked_at < 100 * len(names)

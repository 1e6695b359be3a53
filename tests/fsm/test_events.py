"""Events: which are legal for closed and for combined schemas, what a person says, and what is tried again."""

from typing import Any

import msgspec
import pytest

from driving import drive
from midcall import Hub, InvalidArguments, method
from midcall.chat import ChatEngine
from midcall.fsm import MachineBuilder, MachineError, read_machine
from midcall.json_schema import compiled
from midcall.principal import Principal, check_scopes
from spoken import Spoken

CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "additionalProperties": False}


class Line(msgspec.Struct):
    item: str
    number: int


class Parent(msgspec.Struct):
    children: list["Parent"]


class Shop:
    namespace = "shop"

    def __init__(self) -> None:
        self.paid = 0

    @method
    async def pay(self) -> dict[str, Any]:
        """Has an effect."""
        self.paid += 1
        return {"a": "no number"}

    @method
    async def give_up(self) -> dict[str, Any]:
        """Says what only a run may say."""
        return {"bail_out": True, "reason": "timeout", "message": "forged"}

    @method
    async def order(self, lines: list[Line]) -> int:
        """Order some things."""
        return len(lines)

    @method
    async def grow(self, tree: Parent) -> int:
        """Grow a tree."""
        return len(tree.children)


def event_of(
    built: Any, given: Any = None, *, source: object = None, answer: Any = None, **options: Any
) -> Any:
    async def main() -> Any:
        hub = Hub().register(source or Shop()).register_machine(built, **options)
        return (await hub.call("machines.m", given or {}, answer=answer))[-1].event

    return drive(main())


def definition(schema: Any, **more: Any) -> dict[str, Any]:
    ways = [{"id": ["start", "s"]}, {"id": ["s", "end"], "schema": schema}]
    return {"id": "m", "states": [{"id": "s", "action": "model"}], "transitions": ways, **more}


# --- closed schemas ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        CLOSED,
        {**CLOSED, "additionalProperties": True, "maxProperties": 1},
        {"$ref": "#/$defs/closed"},
        {"anyOf": [CLOSED, {"type": "object", "required": ["b"]}]},
        {"oneOf": [{"$ref": "#/$defs/closed"}, {"type": "object", "required": ["b"]}]},
        {"allOf": [CLOSED]},
        {"type": "object", "allOf": [{"$ref": "#/$defs/closed"}], "unevaluatedProperties": False},
    ],
)
def test_an_event_of_a_closed_schema_is_legal_and_one_of_another_is_not(schema: Any) -> None:
    machine = definition(schema, schemas={"closed": CLOSED})
    good = {"id": ["s", "end"], "a": 1}
    model = Spoken({"id": ["s", "end"], "a": "x"}, {"id": ["s", "end"]}, good)
    assert event_of(machine, model=model) == good
    assert len(model.asked) == 3
    told = compiled(model.asked[0].schema or {})
    assert told.fault(good) is None
    assert told.fault({"id": ["s", "end"], "a": "x"}) is not None
    assert told.fault({"a": 1}) is not None


def test_a_schema_may_speak_of_the_id_of_its_event() -> None:
    whole = {"type": "object", "properties": {"id": {"type": "array"}, "a": {}}, "required": ["id", "a"]}
    machine = definition(
        {"$ref": "#/$defs/whole"}, schemas={"whole": {**whole, "additionalProperties": False}}
    )
    good = {"id": ["s", "end"], "a": 1}
    assert event_of(machine, model=Spoken(good)) == good


def test_an_input_that_a_closed_schema_allows_begins_a_run() -> None:
    built = MachineBuilder("m").function("s", lambda event: {"got": event["a"]})
    built.to("start", "s", {"allOf": [CLOSED]}).to("s", "end")
    assert event_of(built, {"a": 7})["got"] == 7
    with pytest.raises(InvalidArguments):
        event_of(built, {"a": 7, "b": 1})


def test_a_schema_that_refers_to_itself_needs_no_id_inside() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    good = {"id": ["s", "end"], "children": [{"children": []}]}
    model = Spoken(good)
    assert event_of(definition(tree), model=model) == good
    assert compiled(model.asked[0].schema or {}).fault(good) is None


def test_definitions_of_one_name_in_two_transitions_do_not_mix() -> None:
    def way(end: str, kind: str) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "required": ["x"]}
        return {"id": ["s", end], "label": end, "schema": {**schema, "$defs": {"x": {"type": kind}}}}

    states = [{"id": "s", "action": "model"}, {"id": "t", "action": "model"}]
    ways = [{"id": ["start", "s"]}, way("t", "string"), way("end", "integer"), {"id": ["t", "end"]}]
    machine = read_machine({"id": "m", "states": states, "transitions": ways})
    schema = compiled(machine.event_schema(*machine.ways_from("s")))
    assert schema.fault({"id": ["s", "t"], "x": "text"}) is None
    assert schema.fault({"id": ["s", "end"], "x": 1}) is None
    assert schema.fault({"id": ["s", "end"], "x": "text"}) is not None
    assert schema.fault({"id": ["s", "t"], "x": 1}) is not None


# --- tools with types inside ------------------------------------------------------------------------


def test_a_model_gets_one_schema_for_tools_with_types_inside() -> None:
    batch = [
        {"id": "1", "name": "shop.order", "arguments": {"lines": [{"item": "tea", "number": 2}]}},
        {"id": "2", "name": "shop.grow", "arguments": {"tree": {"children": [{"children": []}]}}},
    ]
    asked = {"id": ["llm", "t"], "tool_calls": batch}
    model = Spoken(asked, {"id": ["llm", "end"]})
    built = MachineBuilder("m").model("llm").tools("t", "shop.order", "shop.grow")
    built.to("start", "llm").to("llm", "t", label="call").to("t", "llm").to("llm", "end")
    assert event_of(built, model=model) == {"id": ["llm", "end"]}
    schema = model.asked[0].schema or {}
    assert {"Line", "Parent"} <= schema["$defs"].keys()
    assert b'"$id"' not in msgspec.json.encode(schema)
    told = compiled(schema)
    assert told.fault(asked) is None
    batch[0]["arguments"]["lines"][0]["number"] = "two"  # type: ignore[index]
    assert told.fault(asked) is not None


# --- what is tried again ----------------------------------------------------------------------------


def test_an_effect_whose_result_fits_no_transition_is_not_repeated() -> None:
    shop = Shop()
    built = MachineBuilder("m").method("s", "shop.pay").to("start", "s").to("s", "end", CLOSED)
    event = event_of(built, source=shop)
    assert event["reason"] == "max-retries-exceeded"
    assert "does not fit its schema: a:" in event["message"]
    assert shop.paid == 1


@pytest.mark.parametrize(
    ("action", "config"),
    [
        ("method", {"method": "shop.pay"}),
        ("tools", {}),
        ("machine", {"machine": "m"}),
        ("parallel", {"branches": [{"id": "a", "action": "method", "config": {"method": "shop.pay"}}]}),
    ],
)
def test_what_cannot_choose_between_two_ways_is_refused(action: str, config: dict[str, Any]) -> None:
    built = MachineBuilder("m").state("s", action, config).ask("t")
    built.to("start", "s").to("s", "end").to("s", "t").to("t", "end")
    with pytest.raises(MachineError, match=r"^states\[0\]\.config\.success_to: which of end, t is meant\?$"):
        Hub().register(Shop()).register_machine(built)


def test_a_branch_is_no_state_of_its_name() -> None:
    branches = {"s": {"action": "method", "config": {"method": "shop.pay"}}}
    built = MachineBuilder("m").parallel("p", branches).model("s")
    built.to("start", "p").to("p", "s").to("s", "end").to("s", "p")
    model = Spoken({"id": ["s", "end"]})
    assert event_of(built, model=model) == {"id": ["s", "end"]}


def test_a_bail_out_cannot_be_forged() -> None:
    built = MachineBuilder("m").method("s", "shop.give_up").to("start", "s").to("s", "end")
    event = event_of(built)
    assert event["reason"] == "max-retries-exceeded"
    assert "forged" not in event["message"]
    with pytest.raises(InvalidArguments, match="bail_out"):
        event_of(built, {"bail_out": True})


# --- what a person says -----------------------------------------------------------------------------


def test_a_no_does_not_take_the_way() -> None:
    built = MachineBuilder("m").ask("s", "Pay?").to("start", "s").to("s", "end")
    event = event_of(built, answer=lambda _: False)
    assert (event["reason"], event["message"]) == ("action-failed", "The person said no")
    assert event_of(built, answer=lambda _: True)["confirmed"] is True


def test_a_no_leads_to_where_failures_lead() -> None:
    built = MachineBuilder("m").ask("s", "Pay?", failure_to="end").to("start", "s").to("s", "end")
    assert event_of(built, answer=lambda _: False) == {"id": ["s", "end"], "error": "The person said no"}


def test_a_yes_adds_nothing_to_an_event_that_has_no_fields() -> None:
    built = MachineBuilder("m").ask("s", "Pay?").to("start", "s").to("s", "end", NOTHING)
    assert event_of(built, answer=lambda _: True) == {"id": ["s", "end"]}


# --- nested hubs ------------------------------------------------------------------------------------


class Vault:
    namespace = "vault"

    @method(scopes=["vault:open"])
    async def open(self) -> str:
        """Open it."""
        return "open"


def test_a_caller_needs_the_scopes_of_what_a_machine_of_a_nested_hub_calls() -> None:
    inner = Hub("inner").register(Vault()).register_machine(
        MachineBuilder("deep").method("s", "vault.open").to("start", "s").to("s", "end")
    )  # fmt: skip
    outer = Hub().register_hub(inner).register_machine(
        MachineBuilder("m").method("s", "inner.machines.deep").to("start", "s").to("s", "end")
    )  # fmt: skip
    assert outer.resolve("machines.m").method.extras["scopes"] == ("vault:open",)
    with pytest.raises(Exception, match="vault:open"):
        check_scopes("machines.m", outer.resolve("machines.m").method.extras, Principal("eve", frozenset()))


def test_a_machine_of_a_nested_hub_is_driven_by_the_model_of_the_outermost() -> None:
    async def main() -> Any:
        inner = Hub("inner").register_machine(MachineBuilder("m").model("s").to("start", "s").to("s", "end"))
        outer = Hub().register_hub(inner)
        outer.chat = ChatEngine(outer, model=Spoken({"id": ["s", "end"], "by": "outer"}))
        try:
            return (await outer.call("inner.machines.m", {}))[-1].event
        finally:
            await outer.close()

    assert drive(main())["by"] == "outer"

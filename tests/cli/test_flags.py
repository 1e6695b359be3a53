"""Flags that are made from a JSON Schema: what is typed, and what the method gets."""

import argparse
from decimal import Decimal
from typing import Any

import pytest

from midcall.cli.schema_fields import Flags, fields_of, type_text
from midcall.decorators import method
from midcall.hub import Hub


def parse(properties: dict[str, Any], *argv: str, **rest: Any) -> dict[str, Any]:
    """What the flags of an object with these properties make of the arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    flags = Flags(parser, {"type": "object", "properties": properties, **rest}, {"--help", "--json"})
    return flags.read(parser.parse_args(flags.spelled(list(argv))))


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, "-5", -5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "2", 2),
        ({"type": "number"}, "nan", "nan"),
        ({"enum": ["a", "b"]}, "a", "a"),
        ({"enum": ["a", "b"]}, "c", "c"),
        ({"enum": [1, 2]}, "1", 1),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x", "x"),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, "{broken", "{broken"),
        ({}, "[1]", [1]),
        ({}, "words", "words"),
    ],
)
def test_a_text_becomes_the_value_that_its_schema_suggests(schema: Any, text: str, value: Any) -> None:
    assert parse({"x": schema}, f"--x={text}") == {"x": value}


def test_an_array_takes_its_flag_several_times() -> None:
    numbers = {"type": "array", "items": {"type": "integer"}}
    assert parse({"n": numbers}, "--n", "1", "--n", "-2") == {"n": [1, -2]}


def test_a_boolean_is_switched_on_and_off() -> None:
    schema = {"force": {"type": "boolean"}}
    assert parse(schema, "--force") == {"force": True}
    assert parse(schema, "--no-force") == {"force": False}
    assert parse(schema) == {}


def test_a_name_with_underscores_may_be_spelled_with_dashes() -> None:
    schema = {"max_size": {"type": "integer"}, "dry_run": {"type": "boolean"}}
    assert parse(schema, "--max-size", "1", "--no-dry-run") == {"max_size": 1, "dry_run": False}
    assert parse(schema, "--max_size=1", "--dry_run") == {"max_size": 1, "dry_run": True}


def test_what_is_not_given_is_left_to_the_method() -> None:
    assert parse({"x": {"type": "integer", "default": 5}}, required=["x"]) == {}


def test_a_parameter_with_the_name_of_an_option_gets_another_flag() -> None:
    assert parse({"json": {"type": "string"}}, "--param-json", "x") == {"json": "x"}


def test_a_boolean_and_its_opposite_do_not_collide() -> None:
    schema = {"color": {"type": "boolean"}, "no_color": {"type": "boolean"}}
    assert parse(schema, "--no-color", "--param-no-color") == {"color": False, "no_color": True}


def test_references_are_followed() -> None:
    schema = {"size": {"$ref": "#/$defs/Size", "description": "how big"}}
    defs = {"Size": {"enum": ["s", "m"], "type": "string"}}
    (field,) = fields_of({"properties": schema, "$defs": defs})
    assert (field.kind, field.choices, field.description) == ("choice", ("s", "m"), "how big")


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert [field.name for field in fields_of(schema)] == ["x"]
    tree = {
        "Tree": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
        }
    }
    assert type_text({"$ref": "#/$defs/Tree", "$defs": tree}) == "object"


def test_types_are_told_in_a_few_words() -> None:
    assert type_text({"type": "array", "items": {"type": "string"}}) == "list of string"
    assert type_text({"anyOf": [{"type": "integer"}, {"type": "null"}]}) == "integer or null"
    assert type_text({"enum": ["a", 1]}) == "a | 1"
    assert type_text({}) == "any"


def test_every_parameter_of_a_real_method_gets_a_flag() -> None:
    class Shapes:
        @method
        def draw(self, sides: int, names: list[str] | None = None, filled: bool | None = None) -> None:
            """Draw."""

    schema = Hub().register(Shapes()).schema("shapes.draw")["params"]
    given = parse(schema["properties"], "--sides", "3", "--filled", "--names", "a")
    assert given == {"sides": 3, "filled": True, "names": ["a"]}


def test_a_decimal_keeps_the_digits_that_were_typed() -> None:
    class Shop:
        @method
        def pay(self, price: Decimal, tip: Decimal | None = None) -> None:
            """Pay."""

    schema = Hub().register(Shop()).schema("shop.pay")["params"]
    given = parse(schema["properties"], "--price", "1.50", "--tip", "0.12345678901234567890")
    assert given == {"price": "1.50", "tip": "0.12345678901234567890"}
    assert parse(schema["properties"], "--price=1", "--tip=null") == {"price": "1", "tip": None}
    assert type_text(schema["properties"]["price"]) == "number"


# --- schemas of strangers ---------------------------------------------------------------------------


def test_a_type_that_contains_itself_is_told_in_a_few_words() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}
    assert type_text(schema) == "list of list of list of list of any"


def test_alternatives_that_multiply_are_told_in_a_few_words() -> None:
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    assert len(type_text({"$ref": "#/$defs/d0", "$defs": defs})) < 10_000
    assert len(type_text({"anyOf": [{"type": f"t{n}"} for n in range(10_000)]})) < 100

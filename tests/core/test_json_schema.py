"""Schemas of strangers: what they may cost, and that one which cannot be checked is refused."""

from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deep_schema import tower
from midcall.json_schema import MAX_SCHEMA, MAX_STEPS, _Cost, compiled, joined


def test_a_small_schema_that_becomes_large_is_refused_before_it_is_compiled() -> None:
    for levels in (16, 40, 90):
        with pytest.raises(ValueError, match="too large"):
            compiled(tower(levels))


def test_references_that_lead_nowhere_but_to_themselves_are_refused() -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}
    for schema in ({"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": loop}}, {"allOf": [{"$ref": "#"}]}):
        with pytest.raises(ValueError, match="refers to itself"):
            compiled(schema)


def test_properties_that_are_left_over_multiply_what_stands_beside_them() -> None:
    """jsonschema-rs looks at each alternative again for them, when it compiles and when it checks."""
    assert compiled(tower(3, unevaluatedProperties=False)).fault({}) is not None
    with pytest.raises(ValueError, match="too large"):
        compiled(tower(9, unevaluatedProperties=False))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"properties": 7},
        {"pattern": "("},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#elsewhere"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "urn:a", "$ref": "#/$defs/b"}}},
        {"description": "x" * MAX_SCHEMA},
        {"anyOf": [{"pattern": f"a{n}"} for n in range(1000)]},
    ],
    ids=str,
)
def test_what_is_no_schema_or_cannot_be_checked_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^(Not a|The) JSON Schema"):
        compiled(schema)


def test_a_schema_that_is_nested_very_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(2000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(ValueError, match="nested too deeply"):
        compiled(schema)


EXPRESSION = {
    "$ref": "#/$defs/expr",
    "$defs": {
        "expr": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/sum"}, {"$ref": "#/$defs/product"}]},
        "sum": {"type": "object", "properties": {"of": {"$ref": "#/$defs/expr"}}, "required": ["of"]},
        "product": {"type": "object", "properties": {"of": {"$ref": "#/$defs/expr"}}, "required": ["of"]},
    },
}


def nested(depth: int, innermost: Any = 1) -> Any:
    value = innermost
    for _ in range(depth):
        value = {"of": value}
    return value


def test_a_schema_may_refer_to_itself_for_what_is_inside() -> None:
    schema = compiled(EXPRESSION)
    assert schema.fault(nested(5)) is None
    assert schema.fault(nested(5, "x")) is not None


def test_a_value_that_multiplies_the_work_at_each_level_is_refused_before_it_is_checked() -> None:
    """Two alternatives at each of 60 levels are 2^60 ways to be tried."""
    for value in (nested(60), nested(60, "x")):
        with pytest.raises(ValueError, match="too much"):
            compiled(EXPRESSION).fault(value)


def test_a_long_list_against_many_alternatives_is_refused_before_it_is_checked() -> None:
    schema = compiled({"items": {"anyOf": [{"const": n} for n in range(900)]}})
    assert schema.fault(list(range(100))) is None
    with pytest.raises(ValueError, match="too much"):
        schema.fault(["x"] * 10_000)


def test_a_long_text_against_a_pattern_is_refused_before_it_is_checked() -> None:
    schema = compiled({"pattern": "^[ab]*a[ab]{500}c$"})
    assert schema.fault("ab") is not None
    with pytest.raises(ValueError, match="too much"):
        schema.fault("ab" * MAX_STEPS)


def test_names_of_properties_are_held_against_patterns_at_a_price_too() -> None:
    for schema in ({"propertyNames": {"pattern": "^a+$"}}, {"patternProperties": {"^a+$": False}}):
        with pytest.raises(ValueError, match="too much"):
            compiled(schema).fault({"a" * MAX_STEPS: 1})


def test_a_pattern_that_goes_back_gives_up() -> None:
    assert compiled({"pattern": r"^(a|a)*\1$"}).fault("a" * 2000 + "!") is not None


def test_patterns_that_look_ahead_work() -> None:
    schema = compiled({"pattern": r"^(?=.*[A-Z])(?=.*\d).{8,}$"})
    assert schema.fault("Abcdefgh1") is None
    assert schema.fault("abcdefgh1") is not None


def test_faults_are_told_with_their_place_and_in_few_words() -> None:
    schema = compiled({"properties": {"n": {"type": "integer"}}, "required": ["m"]})
    found = schema.faults({"n": "x" * 10_000}, most=5)
    assert {one["path"]: one["message"] for one in found}[""] == '"m" is a required property'
    assert max(len(one["message"]) for one in found) == 500
    assert len(schema.faults({"n": "x"}, most=1)) == 1
    assert schema.fault({"n": 1, "m": 1}) is None


def test_a_value_that_takes_many_steps_is_only_told_not_to_fit() -> None:
    schema = compiled({"items": {"type": "integer"}})
    assert schema.fault([*range(5000), "x"]) == "it does not fit the schema"
    assert schema.fault(list(range(5000))) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "urn:whole", "$ref": "#/definitions/a", "definitions": {"a": {"type": "integer"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [{"type": "integer"}]},
        {"$ref": "#/$defs/with~1slash%20and%25", "$defs": {"with/slash and%": {"type": "integer"}}},
        {"$ref": "#/anyOf/0", "anyOf": [{"type": "integer"}]},
        {"if": {"type": "string"}, "then": False, "else": {"type": "integer"}},
    ],
    ids=str,
)
def test_usual_schemas_are_read(schema: dict[str, Any]) -> None:
    assert compiled(schema).fault(1) is None
    assert compiled(schema).fault("x") is not None


SCHEMAS = st.recursive(
    st.sampled_from([{"pattern": "^a"}, {"enum": [1, 2, "a"]}, True]),
    lambda inner: (
        st.dictionaries(
            st.sampled_from(["items", "additionalProperties", "propertyNames", "contains", "not"]), inner
        )
        | st.builds(lambda given: {"properties": given}, st.dictionaries(st.sampled_from("ab"), inner))
        | st.builds(lambda given: {"patternProperties": given}, st.dictionaries(st.sampled_from("ab"), inner))
        | st.builds(lambda given: {"anyOf": given}, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=8,
)
VALUES = st.recursive(
    st.sampled_from([1, "a" * 30]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)


@example({"pattern": "^a"}, "a" * 30)
@example({"items": {"enum": list(range(50))}}, [1, 2, 3])
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), VALUES)
def test_what_is_known_to_be_cheap_without_counting_is(schema: dict[str, Any], value: Any) -> None:
    cost = _Cost(schema)
    with mock.patch("midcall.json_schema.MAX_STEPS", cost.steps(value) - 1):
        assert not cost.is_small(value)


# --- schemas as parts of another one ----------------------------------------------------------------


def whole_of(*schemas: Any, names: Any = ()) -> Any:
    """One schema for a list: its n-th value fits the n-th of these."""
    parts, defined = joined(schemas, names)
    return {"type": "array", "prefixItems": parts, "$defs": defined}


def referring(kind: str, key: str = "$defs", name: str = "x", reference: str = "x") -> dict[str, Any]:
    return {"properties": {"x": {"$ref": f"#/{key}/{reference}"}}, key: {name: {"type": kind}}}


@pytest.mark.parametrize(
    ("schemas", "fits", "faulty"),
    [
        ([referring("string"), referring("string")], [{"x": "a"}, {"x": "b"}], [{"x": "a"}, {"x": 1}]),
        ([referring("string"), referring("integer")], [{"x": "a"}, {"x": 1}], [{"x": 1}, {"x": "a"}]),
        ([referring("string"), referring("integer", "definitions")], [{"x": "a"}, {"x": 1}], [{"x": "a"}, {"x": "a"}]),
        ([referring("integer", name="a/b c~", reference="a~1b%20c~0")], [{"x": 1}], [{"x": "a"}]),
        ([{"properties": {"x": {"$ref": "#/properties/y"}, "y": {"type": "integer"}}}], [{"x": 1}], [{"x": "a"}]),
        ([{"type": "object", "properties": {"x": {"$ref": "#"}}}], [{"x": {"x": {}}}], [{"x": {"x": 1}}]),
        ([{"$id": "urn:a", "$ref": "urn:a#/$defs/x", "$defs": {"x": {"type": "integer"}}}], [1], ["a"]),
        (
            # the same definition `a` twice, of a `b` that is another one
            [{"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"type": kind}}} for kind in ("string", "integer")],
            [["a"], [1]],
            [["a"], ["a"]],
        ),
        (
            # a name, a value and a property that only look like references
            [{"properties": {"$ref": {"const": {"$ref": "#/$defs/x"}}, "const": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "integer"}}}],
            [{"$ref": {"$ref": "#/$defs/x"}, "const": 1}],
            [{"const": "a"}],
        ),
    ],
)  # fmt: skip
def test_schemas_mean_the_same_inside_of_another_one(schemas: Any, fits: Any, faulty: Any) -> None:
    whole = compiled(whole_of(*schemas))
    assert whole.fault(fits) is None
    assert whole.fault(faulty) is not None


def test_what_is_defined_twice_in_the_same_way_is_defined_once() -> None:
    _, defined = joined(
        [referring("string"), referring("string"), referring("integer"), referring("integer")]
    )
    assert defined == {"x": {"type": "string"}, "x_2": {"type": "integer"}}


def test_what_nothing_refers_to_is_left_out() -> None:
    assert joined([{"type": "object", "$defs": {"x": {}}}]) == ([{"type": "object"}], {})

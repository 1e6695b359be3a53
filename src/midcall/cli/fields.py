"""Fields: what a JSON Schema says about named values, as far as a person types them.

The flags of a command, the questions of a form and the list of a method's parameters are all made
from this. Nothing is validated here: text becomes the value that it looks like, and whoever takes the
value says what is wrong with it.
"""

from typing import Any, Literal, NamedTuple

import msgspec

Kind = Literal["string", "integer", "number", "boolean", "choice", "array", "json"]

MISSING: Any = msgspec.UNSET

_DEEPEST = 3
_MOST_VARIANTS = 5
"""How far a type is told: one of a server may contain itself, or have more words than there is time for."""

_SIMPLE: dict[str, Kind] = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
}


class Field(NamedTuple):
    """One named value. `item` describes the elements of an array; `choices` the values of an enum."""

    name: str
    kind: Kind
    type: str
    nullable: bool = False
    required: bool = True
    default: Any = MISSING
    description: str = ""
    choices: tuple[Any, ...] = ()
    item: "Field | None" = None

    def read(self, text: str) -> Any:
        """The value that a text stands for; the text itself where it looks like nothing better."""
        if self.nullable and text == "null":
            return None
        if self.kind == "string":
            return text
        value = read_json(text)
        match self.kind:
            case "choice":
                return next((c for c in self.choices if c == text or _same(c, value)), text)
            case "integer":
                return value if _is(value, int) else text
            case "number":
                return value if _is(value, int | float) else text
            case "boolean":
                return value if isinstance(value, bool) else text
            case _:
                return text if value is MISSING else value


def fields_of(schema: dict[str, Any]) -> list[Field]:
    """The properties of an object's schema, in their order."""
    defs = schema.get("$defs", {})
    properties = _follow(schema, defs).get("properties", {})
    required = _follow(schema, defs).get("required", ())
    return [_field(name, one, defs, name in required) for name, one in properties.items()]


def type_text(schema: dict[str, Any]) -> str:
    """A schema in a few words: `integer`, `list of string`, `a | b`."""
    return _field("", schema, schema.get("$defs", {}), True).type


def read_json(text: str) -> Any:
    """The JSON value of a text, or `MISSING` if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return MISSING


def _field(name: str, schema: dict[str, Any], defs: dict[str, Any], required: bool, depth: int = 0) -> Field:
    if depth > _DEEPEST:
        return Field(name, "json", "any", required=required)
    given, schema = schema, _follow(schema, defs)
    schema, nullable = _without_null(schema, defs)
    kind, words, choices, item = _read(schema, defs, depth + 1)
    return Field(
        name,
        kind,
        f"{words} or null" if nullable else words,
        nullable,
        required,
        given.get("default", MISSING),
        given.get("description") or schema.get("description") or "",
        choices,
        item,
    )


def _read(
    schema: dict[str, Any], defs: dict[str, Any], depth: int
) -> tuple[Kind, str, tuple[Any, ...], Field | None]:
    """Kind, words, choices and item of a schema that has neither reference nor null."""
    choices = _choices(schema)
    if choices:
        return "choice", " | ".join(_word(c) for c in choices), choices, None
    of_type = schema.get("type")
    if of_type == "array" and isinstance(schema.get("items"), dict):
        item = _field("", schema["items"], defs, True, depth)
        return "array", f"list of {item.type}", (), item
    if of_type in _SIMPLE:
        return _SIMPLE[of_type], of_type, (), None
    variants = schema.get("anyOf") or schema.get("oneOf") or ()
    words = [_field("", variant, defs, True, depth).type for variant in variants[:_MOST_VARIANTS]]
    return "json", " or ".join(words) or (of_type if isinstance(of_type, str) else "any"), (), None


def _choices(schema: dict[str, Any]) -> tuple[Any, ...]:
    if "const" in schema:
        return (schema["const"],)
    if "enum" in schema:
        return tuple(schema["enum"])
    variants = schema.get("oneOf") or schema.get("anyOf") or ()
    if variants and all("const" in variant for variant in variants):
        return tuple(variant["const"] for variant in variants)
    return ()


def _follow(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference leads to; what stands beside the reference stays."""
    seen = 0
    while (name := schema.get("$ref", "").rpartition("/")[2]) in defs and seen < len(defs):
        seen += 1
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**defs[name], **beside}
    return schema


def _without_null(schema: dict[str, Any], defs: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema of what is not null, and whether null is allowed."""
    of_type = schema.get("type")
    if isinstance(of_type, list) and "null" in of_type:
        left = [t for t in of_type if t != "null"]
        return {**schema, "type": left[0] if len(left) == 1 else left}, True
    if None in schema.get("enum", ()):
        return {**schema, "enum": [c for c in schema["enum"] if c is not None]}, True
    variants = schema.get("anyOf", ())
    left = [variant for variant in variants if variant.get("type") != "null"]
    if len(left) == len(variants):
        return schema, False
    if len(left) == 1:
        return _follow(left[0], defs), True
    return {**schema, "anyOf": left}, True


def _word(choice: Any) -> str:
    return choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()


def _is(value: Any, of_type: Any) -> bool:
    return isinstance(value, of_type) and not isinstance(value, bool)


def _same(choice: Any, value: Any) -> bool:
    return type(choice) is type(value) and bool(choice == value)

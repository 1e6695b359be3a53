"""Fields: what a JSON Schema says about named values, as far as a person types them.

The flags of a command, the questions of a form and the list of a method's parameters are all made
from this. Nothing is validated here: text becomes the value that it looks like, and whoever takes the
value says what is wrong with it.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from midcall.schema_parts import Schema, as_text, choices, followed, variants, without_null

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


def fields_of(schema: Schema) -> list[Field]:
    """The properties of an object's schema, in their order."""
    body = followed(schema, schema)
    required = body.get("required", ())
    return [_field(name, one, schema, name in required) for name, one in body.get("properties", {}).items()]


def type_text(schema: Schema) -> str:
    """A schema in a few words: `integer`, `list of string`, `a | b`."""
    return _field("", schema, schema, True).type


def read_json(text: str) -> Any:
    """The JSON value of a text, or `MISSING` if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return MISSING


def _field(name: str, schema: Schema, root: Schema, required: bool, depth: int = 0) -> Field:
    if depth > _DEEPEST:
        return Field(name, "json", "any", required=required)
    given, (schema, nullable) = schema, without_null(schema, root)
    kind, words, values, item = _read(schema, root, depth + 1)
    return Field(
        name,
        kind,
        f"{words} or null" if nullable else words,
        nullable,
        required,
        given.get("default", MISSING),
        given.get("description") or schema.get("description") or "",
        values,
        item,
    )


def _read(schema: Schema, root: Schema, depth: int) -> tuple[Kind, str, tuple[Any, ...], Field | None]:
    """Kind, words, choices and item of a schema that has neither reference nor null."""
    values = choices(schema)
    if values:
        return "choice", " | ".join(as_text(value) for value in values), tuple(values), None
    of_type = schema.get("type")
    if of_type == "array" and isinstance(schema.get("items"), dict):
        item = _field("", schema["items"], root, True, depth)
        return "array", f"list of {item.type}", (), item
    if of_type in _SIMPLE:
        return _SIMPLE[of_type], of_type, (), None
    words = [_field("", one, root, True, depth).type for one in variants(schema)[:_MOST_VARIANTS]]
    return "json", " or ".join(words) or (of_type if isinstance(of_type, str) else "any"), (), None


def _is(value: Any, of_type: Any) -> bool:
    return isinstance(value, of_type) and not isinstance(value, bool)


def _same(choice: Any, value: Any) -> bool:
    return type(choice) is type(value) and bool(choice == value)

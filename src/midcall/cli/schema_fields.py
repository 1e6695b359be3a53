"""What a JSON Schema says about named values, as far as a person types them.

The flags of a command, the questions of a form and the list of a method's parameters are all made from this:
`--ids a --ids b` for an array, `--force/--no-force` for a boolean, `--scan @page.png` for a file, JSON for an
object. Nothing is validated here: text becomes the value that it looks like, and whoever takes the value says
what is wrong with it, in the same words as to any other caller. So no flag is required here, and choices are
shown but not enforced.
"""

import argparse
import base64
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from midcall.cli.command import UsageError
from midcall.json_schema import (
    Schema,
    as_text,
    choices,
    followed,
    is_file,
    variants,
    without_decimal,
    without_null,
)
from midcall.logs import printable
from midcall.plexus.protocol import MAX_MESSAGE

Kind = Literal["string", "file", "integer", "number", "decimal", "boolean", "choice", "array", "json"]

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


MAX_FILE = MAX_MESSAGE // 4 * 3 - 64 * 1024
"""Bytes of a file: what a message has room for as base64, with a little beside it."""


class SchemaField(NamedTuple):
    """One named value. `item` describes the elements of an array, `fields` what an object has, and `choices`
    are the values of an enum."""

    name: str
    kind: Kind
    type: str
    nullable: bool = False
    required: bool = True
    default: Any = MISSING
    description: str = ""
    choices: tuple[Any, ...] = ()
    item: "SchemaField | None" = None
    fields: "tuple[SchemaField, ...]" = ()
    format: str = ""

    def read(self, text: str) -> Any:
        """The value that a text stands for; the text itself where it looks like nothing better.

        Raises `UsageError` for a file that cannot be read.
        """
        if self.nullable and text == "null":
            return None
        if self.kind == "file" and text.startswith("@"):
            return text[1:] if text.startswith("@@") else file_text(text[1:])
        if self.kind in ("string", "file"):
            return text
        value = read_json(text)
        match self.kind:
            case "choice":
                return next((c for c in self.choices if c == text or _same(c, value)), text)
            case "integer":
                return value if _is(value, int) else text
            case "number":
                return value if _is(value, int | float) else text
            case "decimal":  # as text it keeps all of its digits
                return value if _is(value, int | float) and "e" in text.lower() else text
            case "boolean":
                return value if isinstance(value, bool) else text
            case _:
                return text if value is MISSING else value


def fields_of(schema: Schema) -> list[SchemaField]:
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


def _field(name: str, schema: Schema, root: Schema, required: bool, depth: int = 0) -> SchemaField:
    if depth > _DEEPEST:
        return SchemaField(name, "json", "any", required=required)
    given, (schema, nullable) = schema, without_null(schema, root)
    kind, words, values, item = _read(schema, root, depth + 1)
    properties, required_inside = schema.get("properties"), schema.get("required")
    inside: tuple[SchemaField, ...] = ()
    if kind == "json" and isinstance(properties, dict) and not variants(schema):
        names = required_inside if isinstance(required_inside, list) else ()
        inside = tuple(_field(key, one, root, key in names, depth + 1) for key, one in properties.items())
    return SchemaField(
        name,
        kind,
        f"{words} or null" if nullable else words,
        nullable,
        required,
        given.get("default", MISSING),
        given.get("description") or schema.get("description") or "",
        values,
        item,
        inside,
        str(schema.get("format", "")),
    )


def _read(schema: Schema, root: Schema, depth: int) -> tuple[Kind, str, tuple[Any, ...], SchemaField | None]:
    """Kind, words, choices and item of a schema that has neither reference nor null."""
    values = choices(schema)
    if values:
        return "choice", " | ".join(as_text(value) for value in values), tuple(values), None
    of_type = schema.get("type")
    if of_type == "array" and isinstance(schema.get("items"), dict):
        item = _field("", schema["items"], root, True, depth)
        return "array", f"list of {item.type}", (), item
    if is_file(schema):
        return "file", "file", (), None
    if without_decimal(schema) is not schema:
        return "decimal", "number", (), None
    if of_type in _SIMPLE:
        return _SIMPLE[of_type], of_type, (), None
    options = variants(schema)[:_MOST_VARIANTS]
    words = [_field("", one, root, True, depth).type for one in options]
    if words == ["number", "string"] and "pattern" in options[1]:
        return "string", "number", (), None  # a `Decimal`: as text it keeps its digits
    return "json", " or ".join(words) or (of_type if isinstance(of_type, str) else "any"), (), None


def _is(value: Any, of_type: Any) -> bool:
    return isinstance(value, of_type) and not isinstance(value, bool)


def _same(choice: Any, value: Any) -> bool:
    return type(choice) is type(value) and bool(choice == value)


_DEST = "parameter:"


class Flags:
    """The flags of one method, added to a parser whose own options keep their names."""

    def __init__(self, parser: argparse.ArgumentParser, schema: dict[str, Any], taken: set[str]) -> None:
        self._taken = set(taken)
        self._names: set[str] = set()
        fields = fields_of(schema)
        if fields:
            group = parser.add_argument_group("parameters")
            for field in fields:
                self._add(group, field)

    def _add(self, group: Any, field: SchemaField) -> None:
        options: dict[str, Any] = {
            "dest": _DEST + field.name,
            "default": argparse.SUPPRESS,
            "help": printable(_help(field)).replace("%", "%%"),
        }
        match field.kind:
            case "boolean":
                options["action"] = argparse.BooleanOptionalAction
            case "array" if field.item is not None:
                options |= {"action": "append", "type": field.item.read, "metavar": _metavar(field.item)}
            case _:
                options |= {"type": field.read, "metavar": _metavar(field)}
        group.add_argument(self._name(field), **options)

    def _name(self, field: SchemaField) -> str:
        """`--my-name`; with `param` before it where midcall itself has an option of that name."""
        words = printable(field.name).replace("_", "-").lstrip("-")
        if self._taken & {f"--{words}", f"--no-{words}"}:
            words = f"param-{words}"
        self._taken |= {f"--{words}", f"--no-{words}"} if field.kind == "boolean" else {f"--{words}"}
        self._names |= {f"--{words}", f"--no-{words}"}
        return f"--{words}"

    def spelled(self, argv: list[str]) -> list[str]:
        """The arguments with `--my_name` spelled as `--my-name`."""
        return [self._spelled(argument) for argument in argv]

    def _spelled(self, argument: str) -> str:
        name, equals, value = argument.partition("=")
        dashed = name.replace("_", "-")
        return f"{dashed}{equals}{value}" if dashed in self._names else argument

    def read(self, namespace: argparse.Namespace) -> dict[str, Any]:
        """The parameters that were given, by name."""
        given = vars(namespace)
        return {key.removeprefix(_DEST): value for key, value in given.items() if key.startswith(_DEST)}


def file_text(path: str) -> str:
    """A file as base64; `-` is standard input. Raises `UsageError`."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_FILE + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"Cannot read {path}: {reason}") from None
    if len(data) > MAX_FILE:
        raise UsageError(f"Cannot send {path}: a file may have {MAX_FILE} bytes at most")
    return base64.b64encode(data).decode()


def read_params(text: str) -> Any:
    """The value of `--params`: JSON, `@file`, or `-` for standard input. Raises `UsageError`."""
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.reason
            raise UsageError(f"Cannot read {text[1:]}: {reason}") from None
    value = read_json(text)
    if value is MISSING:
        raise UsageError(f"--params is not JSON: {_short(text)}")
    return value


def _help(field: SchemaField) -> str:
    if field.required:
        note = "required"
    elif field.default is MISSING:
        note = ""
    else:
        note = f"default: {msgspec.json.encode(field.default).decode()}"
    if field.kind == "array":
        note = f"{note}; may be repeated" if note else "may be repeated"
    parts = (field.description, field.type if field.kind != "choice" else "", f"[{note}]" if note else "")
    return " ".join(part if n else f"{part}," for n, part in enumerate(parts) if part).rstrip(",")


_METAVARS = {
    "string": "TEXT",
    "file": "@PATH",
    "integer": "N",
    "number": "NUMBER",
    "decimal": "NUMBER",
    "boolean": "BOOL",
}


def _metavar(field: SchemaField) -> str:
    if field.kind == "choice":
        return printable(f"{{{','.join(str(choice) for choice in field.choices)}}}")
    return _METAVARS.get(field.kind, "JSON")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."

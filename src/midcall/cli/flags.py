"""Flags from a JSON Schema: the parameters of a method as options of the command line.

`--ids a --ids b` for an array, `--force/--no-force` for a boolean, JSON for an object. A flag only
turns text into the value that it looks like; whether it fits is for the hub to say, in the same words
as to any other caller. So nothing is required here, and choices are shown but not enforced.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from midcall.cli.exits import UsageError
from midcall.cli.fields import MISSING, Field, fields_of, read_json
from midcall.printable import printable

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

    def _add(self, group: Any, field: Field) -> None:
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

    def _name(self, field: Field) -> str:
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


def _help(field: Field) -> str:
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


def _metavar(field: Field) -> str:
    if field.kind == "choice":
        return printable(f"{{{','.join(str(choice) for choice in field.choices)}}}")
    return {"string": "TEXT", "integer": "N", "number": "NUMBER", "boolean": "BOOL"}.get(field.kind, "JSON")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."

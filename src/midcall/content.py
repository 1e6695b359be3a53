"""Content: pictures, sound and documents that a method gives beside text and data.

A method may give one of these, a list that mixes them with text, or a stream of them. They are
encoded as MCP's content blocks; bytes become base64. What another MCP server gave goes through as it came
(`Passed`).
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field


class Content(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What all content has in common."""


class Image(Content, tag_field="type", tag="image", frozen=True):
    """A picture."""

    data: bytes
    mime_type: str = field(default_factory=lambda: "image/png")  # always written, unlike the optionals
    annotations: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_bytes(self)


class Audio(Content, tag_field="type", tag="audio", frozen=True):
    """Sound."""

    data: bytes
    mime_type: str = field(default_factory=lambda: "audio/wav")
    annotations: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_bytes(self)


class Link(Content, tag_field="type", tag="resource_link", frozen=True):
    """A resource that can be read elsewhere."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: dict[str, Any] | None = None


class Document(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The contents of a resource: text or bytes."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: bytes | None = None


class Embedded(Content, tag_field="type", tag="resource", frozen=True):
    """A resource, with its contents."""

    resource: Document
    annotations: dict[str, Any] | None = None


class Listing(Struct, frozen=True):
    """A page of what there is of a template of resources or prompts (see `midcall.listing`).

    An item is as MCP lists it: `{"uri": .., "name": .., ..}` or `{"name": .., "arguments": .., ..}`.
    """

    items: Sequence[Mapping[str, Any]] = ()
    next: str | None = None
    """Where the next page begins, if there is one."""


class PassedError(Struct, frozen=True):
    """An error of the protocol that another server answered with."""

    code: int
    message: str
    data: Any = None


class Passed(Struct, frozen=True):
    """What another MCP server answered, for a caller who is to get it as it came."""

    result: dict[str, Any] = {}
    """Of a tool, a resource, a prompt or a completion; its parts may be raw JSON."""
    error: PassedError | None = None


def _check_bytes(content: Image | Audio) -> None:
    """Raise `TypeError` for a path, base64 or the like: it would go out as if it were base64 of the bytes."""
    given: Any = content.data
    if not isinstance(given, bytes | bytearray | memoryview):
        kind = type(content).__name__
        raise TypeError(
            f"{kind} takes bytes, and got {type(given).__name__}; of a file, Path(...).read_bytes()"
        )


# --- bytes in a value ---------------------------------------------------------------------------------------


class TakenBytes(NamedTuple):
    """Bytes that were taken out of a value."""

    name: str
    data: bytes


def take_bytes(value: Any, schema: Any, name: str) -> tuple[Any, list[TakenBytes]]:
    """A value as it stands in JSON, with how large they are in the place of bytes, and these.

    The schema tells what is bytes, as text looks the same. Where MCP has `{"result": ...}` around what is no
    object, the value is what is in it. `name` is for the value itself.
    """
    taken: list[TakenBytes] = []

    def without(value: Any, schema: Any, name: str) -> Any:
        match value, (forms := _forms(schema, root)):
            case str(), _ if any(map(_is_bytes, forms)):
                try:
                    data = base64.b64decode(value, validate=True)
                except ValueError:
                    return value
                taken.append(TakenBytes(name, data))
                return f"[a file of {len(data)} bytes]" if len(data) != 1 else "[a file of 1 byte]"
            case dict(), _ if fields := _of(forms, "properties"):
                return {key: without(one, fields.get(key), str(key)) for key, one in value.items()}
            case list(), _ if items := _of(forms, "items"):
                return [without(one, items, f"{name}-{number}") for number, one in enumerate(value, 1)]
        return value

    root = schema
    around = _of(_forms(schema, root), "properties")
    is_wrapped = [*around] == ["result"] and not (isinstance(value, dict) and "result" in value)
    try:
        return without(value, around["result"] if is_wrapped else schema, name), taken
    except RecursionError:  # nobody's file is that deep in a result
        return value, []


def _forms(schema: Any, root: Any) -> list[dict[str, Any]]:
    """What a schema may stand for: itself, what it refers to, and its alternatives."""
    if not isinstance(schema, dict):
        return []
    alternatives = schema.get("anyOf")
    forms = [schema, *(alternatives if isinstance(alternatives, list) else ())]
    return [_referred(one, root) for one in forms if isinstance(one, dict)]


def _referred(schema: dict[str, Any], root: Any) -> dict[str, Any]:
    definitions, name = root.get("$defs"), str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found = definitions.get(name) if isinstance(definitions, dict) else None
    return found if isinstance(found, dict) else schema


def _of(forms: Sequence[dict[str, Any]], what: str) -> dict[str, Any]:
    return next((one[what] for one in forms if isinstance(one.get(what), dict)), {})


def _is_bytes(schema: dict[str, Any]) -> bool:
    return schema.get("contentEncoding") == "base64"  # `format: binary` alone may be any text

"""Flat forms: the JSON Schema of a model as MCP can ask for it, and back.

A form of MCP has one level, and its fields are text, numbers, yes or no, and choices of text. `flat_form`
makes one; `from_form` reads what came back into what the model's own schema describes. A field that may be
null is an optional one, and left empty it is null; a choice that is no text is asked for by its JSON. What is
no object is the only field of a form.
"""

import math
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from midcall.errors import WrongAnswer
from midcall.mcp.model_context import KEY, OLD_KEY

Schema = dict[str, Any]

VALUE = "value"
"""The only field of a form that asks for something else than an object."""

_FORMATS = ("email", "uri", "date", "date-time")
_EMPTY: tuple[Any, ...] = (None, "", [])


class NotFlat(Exception):
    """MCP has no form for it: the message says for what, and why."""


class _Field(Struct, frozen=True):
    """One field, as MCP asks for it."""

    schema: Schema
    nullable: bool
    choices: dict[str, Any]
    """What the texts of a choice stand for."""

    def read(self, value: Any) -> Any:
        """The value that a client's answer stands for."""
        if self.nullable and value in _EMPTY:
            return None
        if isinstance(value, list):
            return [self._chosen(one) for one in value]
        return self._chosen(value)

    def _chosen(self, value: Any) -> Any:
        return self.choices.get(value, value) if isinstance(value, str) else value


def flat_form(schema: Schema, title: str) -> Schema:
    """The form for a value of this schema; `title` is what is asked. Raises `NotFlat`, naming the field."""
    body = _body(schema)
    if not _is_object(body):
        fields = {VALUE: _field(schema, schema)}
        properties = {VALUE: {"title": title, **fields[VALUE].schema}}
        names = [VALUE]
    else:
        fields = dict(_fields(body, schema))
        properties = {name: field.schema for name, field in fields.items()}
        names = [name for name in fields if name in _required(body)]
    needed = [name for name in names if not fields[name].nullable]
    required = {"required": needed} if needed else {}
    extras = {key: body[key] for key in (KEY, OLD_KEY) if body.get(key)}
    return {"type": "object", "properties": properties, **required, **extras}


def whole_form(schema: Schema, title: str) -> Schema:
    """The form for a value of any schema, for clients that show more than MCP has."""
    if _is_object(_body(schema)):
        return {"type": "object", **inlined(schema)}
    field = {"title": title, **{key: value for key, value in schema.items() if key != "$defs"}}
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {VALUE: field}, "required": [VALUE], **definitions}


def inlined(schema: Schema) -> Schema:
    """The same schema without a reference at its root, nor a definition that was only for that."""
    reference, definitions = schema.get("$ref"), schema.get("$defs")
    if not isinstance(reference, str) or not isinstance(definitions, dict):
        return schema
    root = _followed(schema, schema)
    others = {name: one for name, one in definitions.items() if f"#/$defs/{name}" != reference}
    if msgspec.json.encode(reference) in msgspec.json.encode({**root, "$defs": others}):
        return root
    return {key: value for key, value in root.items() if key != "$defs"} | (
        {"$defs": others} if others else {}
    )


def from_form(schema: Schema, content: Any) -> Any:
    """The value that the content of either form stands for; `null` in it is as good as nothing.

    What fits no field stays as it is. Raises `WrongAnswer` for what is not the content of a form.
    """
    body = _body(schema)
    if not _is_object(body):
        value = content.get(VALUE) if isinstance(content, dict) else content
        try:
            return _field(schema, schema).read(value)
        except NotFlat:
            return value
    if not isinstance(content, dict):
        raise WrongAnswer("the content of the form, as an object")
    try:
        fields = dict(_fields(body, schema))
    except NotFlat:
        return content
    read = dict(content)
    for name, field in fields.items():
        value = field.read(content.get(name))
        if value is None and not field.nullable:
            read.pop(name, None)
        else:
            read[name] = value
    return read


def _field(schema: Any, root: Schema) -> _Field:
    """The field for a value of this schema, which stands in `root`. Raises `NotFlat`, saying why."""
    if not isinstance(schema, dict):
        raise NotFlat("any value")
    schema, nullable = _without_null(_followed(schema, root), root)
    choices = _choices(schema)
    kind = schema.get("type") if choices is None else "string"
    match kind:
        case "string" if choices is not None:
            says = _options(schema, choices, "oneOf")
        case "string" | "number" | "integer" | "boolean":
            says = _limits(kind, schema)
        case "array":
            items = _followed(schema["items"], root) if isinstance(schema.get("items"), dict) else {}
            choices = _choices(items)
            if choices is None:
                raise NotFlat("a list of other things than choices")
            says = {"items": _options(items, choices, "anyOf"), **_numbers(schema, "minItems", "maxItems")}
        case "object":
            raise NotFlat("an object")
        case None if not _variants(schema):
            raise NotFlat("any value")
        case _:
            raise NotFlat("a value of several types")
    words = {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}
    default = _proposal(kind, schema.get("default"), choices or {})
    asked = {"type": kind, **words, **says, **({} if default is None else {"default": default})}
    return _Field(asked, nullable, choices or {})


def _fields(body: Schema, root: Schema) -> Iterator[tuple[str, _Field]]:
    properties = body.get("properties")
    if not isinstance(properties, dict):
        raise NotFlat("an object of unknown fields")
    for name, one in properties.items():
        try:
            yield name, _field(one, root)
        except NotFlat as reason:
            raise NotFlat(f"{name!r}, which is {reason}") from None


def _body(schema: Schema) -> Schema:
    """A whole schema, without references and null."""
    return _without_null(_followed(schema, schema), schema)[0]


def _is_object(body: Schema) -> bool:
    kinds = [one.get("type", "object") for one in _variants(body) or [body]]
    return all(kind == "object" for kind in kinds) and "enum" not in body and "const" not in body


def _required(schema: Schema) -> list[str]:
    names = schema.get("required")
    return names if isinstance(names, list) else []


def _followed(schema: Schema, root: Schema) -> Schema:
    """What a reference leads to, with what stands beside it."""
    definitions = root.get("$defs")
    if not isinstance(definitions, dict):
        return schema
    for _ in definitions:  # a chain of references is no longer than that, unless it is a ring
        reference = schema.get("$ref")
        found = definitions.get(reference.removeprefix("#/$defs/")) if isinstance(reference, str) else None
        if not isinstance(found, dict):
            break
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _variants(schema: Schema) -> list[Schema]:
    for key in ("anyOf", "oneOf"):
        variants = schema.get(key)
        if isinstance(variants, list) and all(isinstance(one, dict) for one in variants):
            return variants
    return []


def _without_null(schema: Schema, root: Schema) -> tuple[Schema, bool]:
    """The schema of what is not null, and whether null is a value too."""
    nullable = False
    kinds, values = schema.get("type"), schema.get("enum")
    if isinstance(kinds, list):
        nullable = "null" in kinds
        left = [kind for kind in kinds if kind != "null"]
        schema = {**schema, "type": left[0] if len(left) == 1 else left}
    if isinstance(values, list) and None in values:
        nullable = True
        schema = {**schema, "enum": [value for value in values if value is not None]}
    variants = [_followed(one, root) for one in _variants(schema)]
    left = [one for one in variants if one.get("type") != "null"]
    nullable = nullable or len(left) < len(variants)
    match left:
        case [{"type": "number"} as number, {"type": "string", "pattern": _}]:
            left = [number]  # a decimal, which may come as text too
    if len(left) < len(variants):
        beside = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        schema = {**(left[0] if len(left) == 1 else {"anyOf": left}), **beside}
    return schema, nullable


def _choices(schema: Schema) -> dict[str, Any] | None:
    """The values that it is one of, by the texts that ask for them."""
    variants = _variants(schema)
    if "const" in schema:
        values = [schema["const"]]
    elif isinstance(schema.get("enum"), list):
        values = schema["enum"]
    elif variants and all("const" in one for one in variants):
        values = [one["const"] for one in variants]
    else:
        return None
    choices = {_text(value): value for value in values}
    if len(choices) < len(values) or not values:
        raise NotFlat("a choice among values that look alike" if values else "a choice of nothing")
    return choices


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _options(schema: Schema, choices: dict[str, Any], titled: str) -> Schema:
    names = schema.get("enumNames")
    if isinstance(names, list) and len(names) == len(choices) and titled == "oneOf":
        return {"enum": list(choices), "enumNames": names}  # as older revisions have it
    titles = names if isinstance(names, list) else [one.get("title") for one in _variants(schema)]
    if len(titles) == len(choices) and all(isinstance(title, str) for title in titles):
        pairs = zip(choices, titles, strict=True)
        return {titled: [{"const": text, "title": title} for text, title in pairs]}
    return {"type": "string", "enum": list(choices)}


def _limits(kind: str, schema: Schema) -> Schema:
    """What a client may check before it sends a value; the model checks all."""
    if kind == "string":
        known = {"format": schema["format"]} if schema.get("format") in _FORMATS else {}
        return {**known, **_numbers(schema, "minLength", "maxLength")}
    limits = _numbers(schema, "minimum", "maximum")
    for bound in _numbers(schema, "exclusiveMinimum").values():
        least = math.floor(bound) + 1 if kind == "integer" else bound
        limits["minimum"] = max(least, limits.get("minimum", least))
    for bound in _numbers(schema, "exclusiveMaximum").values():
        most = math.ceil(bound) - 1 if kind == "integer" else bound
        limits["maximum"] = min(most, limits.get("maximum", most))
    return limits


def _numbers(schema: Schema, *keys: str) -> Schema:
    return {key: schema[key] for key in keys if _is(schema.get(key), int | float)}


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


_KINDS: dict[str, Any] = {"string": str, "number": int | float, "integer": int, "boolean": bool}


def _proposal(kind: str, default: Any, choices: dict[str, Any]) -> Any:
    """What a client is to propose, or nothing."""
    if kind == "array":
        texts = [_text(one) for one in default] if isinstance(default, list) else []
        return texts if texts and all(text in choices for text in texts) else None
    if choices:
        return _text(default) if _text(default) in choices else None
    return default if _is(default, _KINDS[kind]) else None

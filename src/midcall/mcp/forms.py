"""Forms: the JSON Schema of a model as MCP can ask for it, and back.

A form of MCP has one level, and its fields are text, numbers, yes or no, and choices of text. `flat_form`
makes one; `from_form` reads what came back into what the model's own schema describes. A field that may be
null is an optional one, and left empty it is null; a choice that is no text is asked for by its JSON. What
is no object is the only field of a form.

A form with objects inside is asked in *rounds*: the fields of each object are a form of their own, by the
path to it (`form_rounds`), and what came back is put together (`from_rounds`).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, structs

from midcall.errors import WrongAnswer
from midcall.json_schema import (
    Schema,
    as_text,
    choices,
    followed,
    inlined,
    is_file,
    variants,
    without_decimal,
    without_null,
)

CONTEXT_KEY = "x-model-context"
OLD_CONTEXT_KEY = "x-elicit-context"
"""Read, never written."""

VALUE = "value"
"""The only field of a form that asks for something else than an object."""

_FORMATS = ("email", "uri", "date", "date-time")
_EMPTY: tuple[Any, ...] = (None, "", [])

MAX_ROUNDS = 10
"""Of one form. An object may have itself inside."""


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
    if _is_object(body):
        return _form(body, dict(_fields(body, schema)))
    field = _field(schema, schema)
    needed = {} if field.nullable else {"required": [VALUE]}
    return {
        "type": "object",
        "properties": {VALUE: {"title": title, **field.schema}},
        **needed,
        **_context(body),
    }


def _form(body: Schema, fields: Mapping[str, _Field], *, optional: bool = False) -> Schema:
    needed = [name for name in fields if name in _required(body) and not fields[name].nullable]
    required = {"required": needed} if needed and not optional else {}
    properties = {name: field.schema for name, field in fields.items()}
    return {"type": "object", "properties": properties, **required, **_context(body)}


def _context(body: Schema) -> Schema:
    return {key: body[key] for key in (CONTEXT_KEY, OLD_CONTEXT_KEY) if body.get(key)}


def whole_form(schema: Schema, title: str) -> Schema:
    """The form for a value of any schema, for clients that show more than MCP has."""
    if _is_object(_body(schema)):
        return {"type": "object", **inlined(schema)}
    field = {"title": title, **{key: value for key, value in schema.items() if key != "$defs"}}
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {VALUE: field}, "required": [VALUE], **definitions}


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
    return _read_fields(fields, content)


def _read_fields(fields: Mapping[str, _Field], content: dict[str, Any]) -> dict[str, Any]:
    read = dict(content)
    for name, field in fields.items():
        value = field.read(content.get(name))
        if value is None and not field.nullable:
            read.pop(name, None)
        else:
            read[name] = value
    return read


class FormRound(Struct, frozen=True):
    """One of the flat forms that ask for a nested one."""

    about: str
    """What the fields are of, in words; nothing for those of the form itself."""
    schema: Schema


class _Read(NamedTuple):
    """What came back for an object, as a value."""

    value: dict[str, Any]
    given: bool
    """Whether anything is in it."""
    changed: bool
    """Whether anything is in it that the client was not told to propose."""
    complete: bool
    """Whether all is in it that has to be."""


class _Object(Struct, frozen=True):
    """An object of a form: its own fields, and the objects inside."""

    path: str
    body: Schema
    fields: dict[str, _Field]
    inside: dict[str, "_Object"]
    nullable: bool
    optional: bool
    """Whether it may be left out, or be null."""

    def rounds(self, within_optional: bool = False) -> Iterator[tuple[str, FormRound]]:
        """Its forms. In those of an object that may be left out, and deeper inside, nothing is required."""
        optional = self.optional or within_optional
        if self.fields or not self.inside:
            words = [self.body.get(key) for key in ("title", "description")] if self.path else []
            about = ": ".join(dict.fromkeys(word for word in [self.path, *words] if word))
            yield self.path, FormRound(about, _form(self.body, self.fields, optional=optional))
        for one in self.inside.values():
            yield from one.rounds(optional)

    def read(self, contents: Mapping[str, Any]) -> _Read:
        content = contents.get(self.path, {})
        if not isinstance(content, dict):
            raise WrongAnswer("the content of the form, as an object")
        value = _read_fields(self.fields, content)
        filled = {name: one for name, one in content.items() if one not in _EMPTY}
        proposed = {name: field.schema.get("default") for name, field in self.fields.items()}
        needed = _form(self.body, self.fields).get("required", [])
        given = bool(filled)
        changed = any(one != proposed.get(name) for name, one in filled.items())
        complete = all(name in filled for name in needed)
        for name, one in self.inside.items():
            inner = one.read(contents)
            if not one.optional or (inner.given and (inner.changed or inner.complete)):
                value[name] = inner.value
                given, changed = given or inner.given, changed or inner.changed
                complete = complete and inner.complete
            elif one.nullable:
                value[name] = None
        return _Read(value, given, changed, complete)


def form_rounds(schema: Schema, title: str) -> dict[str, FormRound]:
    """The flat forms that ask for a value of this schema, by path: `""` is the form itself, unless it has
    only objects inside. Raises `NotFlat`, naming the field."""
    body = _body(schema)
    if not _is_object(body):
        return {"": FormRound("", flat_form(schema, title))}
    return dict(_object(body, schema).rounds())


def from_rounds(schema: Schema, contents: Mapping[str, Any]) -> Any:
    """The value that the contents of all rounds stand for. Raises `WrongAnswer`."""
    return _object(_body(schema), schema).read(contents).value


def _object(body: Schema, root: Schema) -> _Object:
    left = MAX_ROUNDS

    def read(body: Schema, path: str, nullable: bool, optional: bool) -> _Object:
        nonlocal left
        left -= 1
        if left < 0:
            raise NotFlat(f"an object with more than {MAX_ROUNDS - 1} others inside")
        nested: dict[str, tuple[Schema, bool]] = {}
        flat: Schema = {}
        properties = body.get("properties")
        for name, one in properties.items() if isinstance(properties, dict) else ():
            inner, may_be_null = without_null(one, root) if isinstance(one, dict) else ({}, False)
            if inner.get("type") == "object" and isinstance(inner.get("properties"), dict):
                nested[name] = inner, may_be_null
            else:
                flat[name] = one
        known = {**body, "properties": flat} if isinstance(properties, dict) else body
        fields = dict(_fields(known, root, path))
        inside = {}
        for name, (inner, may_be_null) in nested.items():
            skippable = may_be_null or name not in _required(body)
            inside[name] = read(inner, f"{path}{name}.", may_be_null, skippable)
        return _Object(path.rstrip("."), body, fields, inside, nullable, optional)

    return read(body, "", False, False)


def _field(schema: Any, root: Schema) -> _Field:
    """The field for a value of this schema, which stands in `root`. Raises `NotFlat`, saying why."""
    if not isinstance(schema, dict):
        raise NotFlat("any value")
    schema, nullable = without_null(schema, root)
    schema = without_decimal(schema)
    texts = _choices(schema)
    kind = schema.get("type") if texts is None else "string"
    match kind:
        case "string" if texts is not None:
            says = _options(schema, texts, "oneOf")
        case "string" if is_file(schema):
            raise NotFlat("a file")
        case "string" | "number" | "integer" | "boolean":
            says = _limits(kind, schema)
        case "array":
            items = followed(schema["items"], root) if isinstance(schema.get("items"), dict) else {}
            texts = _choices(items)
            if texts is None:
                raise NotFlat("a list of other things than choices")
            says = {"items": _options(items, texts, "anyOf"), **_numbers(schema, "minItems", "maxItems")}
        case "object":
            raise NotFlat("an object")
        case None if not variants(schema):
            raise NotFlat("any value")
        case _:
            raise NotFlat("a value of several types")
    words = {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}
    default = _proposal(kind, schema.get("default"), texts or {})
    asked = {"type": kind, **words, **says, **({} if default is None else {"default": default})}
    return _Field(asked, nullable, texts or {})


def _fields(body: Schema, root: Schema, path: str = "") -> Iterator[tuple[str, _Field]]:
    properties = body.get("properties")
    if not isinstance(properties, dict):
        raise NotFlat("an object of unknown fields")
    for name, one in properties.items():
        try:
            field = _field(one, root)
        except NotFlat as reason:
            raise NotFlat(f"{path + name!r}, which is {reason}") from None
        if "title" in field.schema and "title" not in one:  # that of a type, which other fields have too
            title = name.replace("_", " ").strip().capitalize() or name
            field = structs.replace(field, schema={**field.schema, "title": title})
        yield name, field


def _body(schema: Schema) -> Schema:
    """A whole schema, without references and null."""
    return without_null(schema, schema)[0]


def _is_object(body: Schema) -> bool:
    kinds = [one.get("type", "object") for one in variants(body) or [body]]
    return all(kind == "object" for kind in kinds) and "enum" not in body and "const" not in body


def _required(schema: Schema) -> list[str]:
    names = schema.get("required")
    return names if isinstance(names, list) else []


def _choices(schema: Schema) -> dict[str, Any] | None:
    """The values that it is one of, by the texts that ask for them."""
    values = choices(schema)
    if values is None:
        return None
    texts = {as_text(value): value for value in values}
    if len(texts) < len(values) or not values:
        raise NotFlat("a choice among values that look alike" if values else "a choice of nothing")
    return texts


def _options(schema: Schema, choices: dict[str, Any], titled: str) -> Schema:
    names = schema.get("enumNames")
    if isinstance(names, list) and len(names) == len(choices) and titled == "oneOf":
        return {"enum": list(choices), "enumNames": names}  # as older revisions have it
    titles = names if isinstance(names, list) else [one.get("title") for one in variants(schema)]
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
        texts = [as_text(one) for one in default] if isinstance(default, list) else []
        return texts if texts and all(text in choices for text in texts) else None
    if choices:
        return as_text(default) if as_text(default) in choices else None
    return default if _is(default, _KINDS[kind]) else None

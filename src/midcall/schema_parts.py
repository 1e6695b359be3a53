"""What the parts of a JSON Schema say: where a reference leads, whether null is a value, what is chosen from.

The schemas are those of methods and of forms, which may be a stranger's: what is no schema is left as it is.
Imports nothing of midcall, and checks no value (see `json_schema`).
"""

from typing import Any, TypeAlias

import msgspec

Schema: TypeAlias = dict[str, Any]


def followed(schema: Schema, root: Schema) -> Schema:
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


def inlined(schema: Schema) -> Schema:
    """The same schema without a reference at its root, nor a definition that was only for that."""
    reference, definitions = schema.get("$ref"), schema.get("$defs")
    if not isinstance(reference, str) or not isinstance(definitions, dict):
        return schema
    root = followed(schema, schema)
    others = {name: one for name, one in definitions.items() if f"#/$defs/{name}" != reference}
    if msgspec.json.encode(reference) in msgspec.json.encode({**root, "$defs": others}):
        return root
    return {key: value for key, value in root.items() if key != "$defs"} | (
        {"$defs": others} if others else {}
    )


def variants(schema: Schema) -> list[Schema]:
    """The schemas of which a value fits one."""
    for key in ("anyOf", "oneOf"):
        found = schema.get(key)
        if isinstance(found, list) and all(isinstance(one, dict) for one in found):
            return found
    return []


def without_null(schema: Schema, root: Schema) -> tuple[Schema, bool]:
    """The schema of what is not null, and whether null is a value too."""
    schema = followed(schema, root)
    nullable = False
    kinds, values = schema.get("type"), schema.get("enum")
    if isinstance(kinds, list):
        nullable = "null" in kinds
        left = [kind for kind in kinds if kind != "null"]
        schema = {**schema, "type": left[0] if len(left) == 1 else left}
    if isinstance(values, list) and None in values:
        nullable = True
        schema = {**schema, "enum": [value for value in values if value is not None]}
    found = [followed(one, root) for one in variants(schema)]
    others = [one for one in found if one.get("type") != "null"]
    if len(others) < len(found):
        nullable = True
        beside = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        schema = {**(others[0] if len(others) == 1 else {"anyOf": others}), **beside}
    return schema, nullable


def choices(schema: Schema) -> list[Any] | None:
    """The values of which it is one, if it says so."""
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    found = variants(schema)
    return [one["const"] for one in found] if found and all("const" in one for one in found) else None


def as_text(value: Any) -> str:
    """How a value is typed: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

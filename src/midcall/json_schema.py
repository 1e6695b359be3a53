"""JSON Schemas that others have written, and values held against them.

Both may be a stranger's, and a few lines of schema can stand for more work than there is time: alternatives
that refer to alternatives multiply, with each level of a value once more. So a schema is measured before it
is compiled, and what a value would cost before it is checked. What is too much is refused, and so is what is
no schema. Knows nothing of pydantic, which `schema` is about, and imports nothing of midcall.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import jsonschema_rs
import msgspec

MAX_SCHEMA = 256 * 1024
"""Bytes of a schema."""
MAX_ALTERNATIVES = 10_000
"""How many schemas one value may have to be held against, with all that they refer to."""
MAX_PATTERNS = 100
MAX_STEPS = 500_000
"""How often a part of a schema is held against a part of one value, at most."""

_MAX_TOLD = 5000
"""Up to how many steps the faults of a value are told; beyond, only that there is one: they take far more."""
_MAX_MESSAGE = 500
_MAX_CHAIN = 100
_CACHED = 32

_PATTERN = 20
_LETTER = 5
"""What a pattern costs in steps, and each letter that it is held against."""
_AGAIN = 4
"""How often jsonschema-rs looks at alternatives beside `unevaluatedProperties`."""

# A pattern without references and looks around is linear; what goes back may do so a little.
TOO_DEEP = "The JSON Schema is nested too deeply"

_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=1000, size_limit=256_000, dfa_size_limit=256_000)


def compiled(schema: Mapping[str, Any]) -> "JsonSchema":
    """A schema, ready to be used. Raises `ValueError` if it is none, or one that is not checked here."""
    try:
        encoded = msgspec.json.encode(schema, order="sorted")
    except TypeError as error:
        raise ValueError(f"Not a JSON Schema: {error}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if len(encoded) > MAX_SCHEMA or encoded.count(b'"pattern') > MAX_PATTERNS:
        raise ValueError("The JSON Schema is too large")
    return _compiled(encoded)


@functools.lru_cache(maxsize=_CACHED)
def _compiled(encoded: bytes) -> "JsonSchema":
    return JsonSchema(encoded)


class JsonSchema:
    """A schema that is compiled. Get it from `compiled`."""

    def __init__(self, encoded: bytes) -> None:
        self._cost = _Cost(msgspec.json.decode(encoded))
        try:
            self._validator = jsonschema_rs.validator_for(
                encoded.decode(), retriever=_not_fetched, pattern_options=_PATTERNS
            )
        except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            if "recursion limit" in str(error):
                raise ValueError(TOO_DEEP) from None
            raise ValueError(f"Not a JSON Schema: {_first_line(error)}") from None

    def fault(self, value: Any) -> str | None:
        """The first thing that is wrong with a value. Raises `ValueError` if it is too much to be checked."""
        found = self.faults(value, most=1)
        if not found:
            return None
        path, message = found[0]["path"], found[0]["message"]
        return f"{path}: {message}" if path else message

    def faults(self, value: Any, most: int) -> list[dict[str, str]]:
        """What is wrong with a value, one `{"path", "message"}` each. Raises `ValueError` as above."""
        if self._cost.is_small(value) and self._validator.is_valid(value):
            return []
        if self._cost.steps(value) > _MAX_TOLD:
            fits = self._validator.is_valid(value)
            return [] if fits else [{"path": "", "message": "it does not fit the schema"}]
        found = []
        for error in self._validator.iter_errors(value):
            path = ".".join(str(part) for part in error.instance_path)
            found.append({"path": path, "message": error.message[:_MAX_MESSAGE]})
            if len(found) == most:
                break
        return found


def _not_fetched(uri: str) -> Any:
    """What a schema refers to is not fetched, neither from the net nor from a file."""
    raise ValueError(f"{uri} is outside of the schema")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:_MAX_MESSAGE]


# --- what it costs --------------------------------------------------------------------------

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_NAMED = ("dependentSchemas", "dependencies")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")

Held: TypeAlias = dict[int, int]
"""Which parts of a schema a value is held against, by their identity, and how often."""


class _SchemaPart(NamedTuple):
    """One schema inside of the whole, without those that the same value is held against too."""

    cost: int
    has_pattern: bool
    properties: Mapping[str, Any]
    each_property: list[Any]
    names: list[Any]
    items: list[Any]
    each_item: list[Any]

    @property
    def inside(self) -> list[Any]:
        """The schemas of what is inside of a value."""
        return [
            *self.properties.values(),
            *self.each_property,
            *self.names,
            *self.items,
            *self.each_item,
        ]

    @property
    def looks_inside(self) -> bool:
        return bool(self.properties or self.each_property or self.names or self.items or self.each_item)


class _Cost:
    """Counts what a validator does that tries all that a schema says.

    To count is dearer than to check. But no byte of a value can cost more than all parts of the schema do
    together, unless the schema refers to itself: so for most values it is known without counting that they
    cost little (`is_small`). For a small object that takes 1 µs, where to count takes 7.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._weights: dict[int, float] = {}
        """What each schema costs at most for a byte of a value, with all that is inside of it."""
        self._parts: dict[int, _SchemaPart] = {}
        self._held: dict[int, Held] = {}
        """For each schema, itself and all that it refers to; empty while that is looked for."""
        self._size = 0
        _check_references(root)
        waiting = [root]
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, dict) and id(schema) not in self._held:
                for key in self._unrolled(schema, 0):
                    waiting += self._parts[key].inside

    def is_small(self, value: Any) -> bool:
        """Whether a value is known not to take too many steps; if not, it may still be."""
        try:
            return len(msgspec.json.encode(value)) * self._weight <= MAX_STEPS
        except (TypeError, ValueError, OverflowError, RecursionError):  # it is not what JSON has
            return False

    @functools.cached_property
    def _weight(self) -> float:
        try:
            return 1 + self._weigh(self._root)
        except RecursionError:
            return math.inf

    def _weigh(self, schema: Any) -> float:
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._weights:
            self._weights[id(schema)] = math.inf  # if it comes back to itself
            total = 0.0
            for key, times in self._held[id(schema)].items():
                part = self._parts[key]
                own = 1 + part.cost + (_PATTERN + _LETTER if part.has_pattern else 0)
                total += times * (own + sum(map(self._weigh, part.inside)))
            self._weights[id(schema)] = total
        return self._weights[id(schema)]

    def steps(self, value: Any) -> int:
        """How many it takes to check a value. Raises `ValueError` if they are too many."""
        total = 0
        waiting = [iter([(value, self._sum([(self._root, 1)]))])]
        while waiting:
            value, held = next(waiting[-1], (None, None))
            if held is None:
                waiting.pop()
                continue
            total += 1
            inside = []
            for key, times in held.items():
                part = self._parts[key]
                total += times * part.cost
                if part.has_pattern and isinstance(value, str):
                    total += times * (_PATTERN + _LETTER * len(value))
                if part.looks_inside:
                    inside.append((part, times))
            if inside and isinstance(value, dict | list | tuple):
                total += len(value) * len(inside)
                waiting.append(
                    self._properties(value, inside) if isinstance(value, dict) else self._items(value, inside)
                )
            if total > MAX_STEPS:
                raise ValueError("It is too much to be checked against its JSON Schema")
        return total

    def _properties(
        self, value: dict[str, Any], parts: list[tuple[_SchemaPart, int]]
    ) -> Iterator[tuple[Any, Held]]:
        each = self._sum((schema, times) for part, times in parts for schema in part.each_property)
        names = self._sum((schema, times) for part, times in parts for schema in part.names)
        for name, one in value.items():
            own = [(part.properties[name], times) for part, times in parts if name in part.properties]
            yield one, self._sum(own, each)
            if names:
                yield name, names

    def _items(
        self, value: Iterable[Any], parts: list[tuple[_SchemaPart, int]]
    ) -> Iterator[tuple[Any, Held]]:
        each = self._sum((schema, times) for part, times in parts for schema in part.each_item)
        for number, one in enumerate(value):
            own = [(schema, times) for part, times in parts for schema in part.items[number : number + 1]]
            yield one, self._sum(own, each)

    def _sum(self, schemas: Iterable[tuple[Any, int]], start: Held | None = None) -> Held:
        held = start or {}
        for schema, times in schemas:
            if isinstance(schema, dict):
                held = dict(held) if held is start else held
                for key, often in self._held[id(schema)].items():
                    held[key] = held.get(key, 0) + often * times
        return held

    def _unrolled(self, schema: dict[str, Any], depth: int) -> Held:
        """The schema and all that the same value is held against."""
        known = self._held.get(id(schema))
        if known is not None:
            if not known:
                raise ValueError("The JSON Schema refers to itself without end")
            return known
        self._held[id(schema)] = {}
        held = {id(schema): 1}
        again = _AGAIN if any(key in schema for key in _UNEVALUATED) else 1
        for one in self._beside(schema):
            if depth == _MAX_CHAIN:
                raise ValueError("The JSON Schema is too large with all that it refers to")
            for key, often in self._unrolled(one, depth + 1).items():
                held[key] = held.get(key, 0) + often * again
        self._size += len(held)
        if sum(held.values()) > MAX_ALTERNATIVES or self._size > MAX_STEPS:
            raise ValueError("The JSON Schema is too large with all that it refers to")
        self._held[id(schema)] = held
        self._parts[id(schema)] = _part(schema)
        return held

    def _beside(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What the same value is held against."""
        found = [one for key in _LISTS for one in _list(schema.get(key))]
        found += [schema.get(key) for key in _SINGLES]
        found += [one for key in _NAMED for one in _dict(schema.get(key)).values()]
        if "$ref" in schema:
            found.append(self._referred(schema["$ref"]))
        yield from (one for one in found if isinstance(one, dict))

    def _referred(self, reference: Any) -> Any:
        whole, _, path = str(reference).partition("#")
        own = self._root.get("$id")
        found = self._root if whole in ("", own) and path[:1] in ("", "/") else None
        for name in path.split("/")[1:]:
            name = unquote(name).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
            else:
                found = _dict(found).get(name)
        if not isinstance(found, dict | bool):
            raise ValueError(f"Not a JSON Schema: {str(reference)[:_MAX_MESSAGE]} is outside of it")  # noqa: TRY004
        return found


def _part(schema: dict[str, Any]) -> _SchemaPart:
    items = schema.get("items")
    matched = _dict(schema.get("patternProperties"))
    return _SchemaPart(
        1 + sum(len(schema[key]) for key in ("enum", "required", "properties") if _is_many(schema.get(key))),
        "pattern" in schema or "format" in schema,
        _dict(schema.get("properties")),
        [*_some(schema, "additionalProperties", "unevaluatedProperties"), *matched.values()],
        [*_some(schema, "propertyNames"), *({"pattern": pattern} for pattern in matched)],
        [*_list(schema.get("prefixItems")), *_list(items)],
        [*_some(schema, "items", "additionalItems", "contains", "unevaluatedItems")],
    )


def _check_references(root: Any) -> None:
    """Raise `ValueError` if a reference may mean something else than the place that it names."""
    names = ("$id", "id") if "draft-04" in str(root.get("$schema")) else ("$id",)
    waiting, refers, renames = [root], False, False
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            refers = refers or isinstance(one.get("$ref"), str)
            renames = renames or (one is not root and any(isinstance(one.get(key), str) for key in names))
            if any(isinstance(one.get(key), str) for key in _ELSEWHERE):
                raise ValueError("The JSON Schema has references that depend on who refers")
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    if refers and renames:
        raise ValueError("The JSON Schema has references, and a name inside that changes what they mean")


def _some(schema: dict[str, Any], *keys: str) -> Iterator[dict[str, Any]]:
    return (schema[key] for key in keys if isinstance(schema.get(key), dict))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_many(value: Any) -> bool:
    return isinstance(value, dict | list)


# --- what the parts of a schema say ------------------------------------------------------------
#
# Where a reference leads, whether null is a value, what is chosen from. What is no schema is left as it is.

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


_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"const", "enum", "default", "examples"})
_DEFINED = ("$defs", "definitions")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]")


def joined(schemas: Sequence[Schema], names: Sequence[str] = ()) -> tuple[list[Schema], dict[str, Schema]]:
    """Schemas as parts of another one: without definitions of their own, and all of these for its root.

    Where definitions of the same name differ, later ones get other names. A schema that refers to itself as a
    whole is a definition too, under its one of the `names`.
    """
    parts: list[Schema] = []
    shared: dict[str, Schema] = {}
    before: dict[str, Any] = {}
    for n, schema in enumerate(schemas):
        part, defined = _taken_out(schema, names[n] if n < len(names) else "root", before)
        parts.append(part)
        shared |= defined
    return parts, shared


def _taken_out(schema: Schema, name: str, before: dict[str, Any]) -> tuple[Schema, dict[str, Schema]]:
    """A schema without its definitions, and those that it uses, with names that no others have.

    `before` has all that have a name, as they were written; these are added.
    """
    own = {(key, name): one for key in _DEFINED for name, one in _dict(schema.get(key)).items()}
    beside = {key: one for key, one in schema.items() if key not in (*_DEFINED, "$id", "$schema")}
    own["", name] = beside
    refers = functools.partial(_target, own=own, base=str(schema.get("$id", "")))
    used: dict[tuple[str, str], str] = {}
    waiting = _references(beside)
    while waiting:
        key, _ = refers(waiting.pop())
        if key is not None and key not in used:
            plain = _UNUSUAL.sub("_", key[1])
            used[key] = f"{plain}-{len(used)}" if plain in used.values() else plain
            waiting += _references(own[key])
    number = 1
    while any(before.get(_numbered(plain, number), own[key]) != own[key] for key, plain in used.items()):
        number += 1
    made = {key: _numbered(plain, number) for key, plain in used.items()}
    before |= {made[key]: own[key] for key in made}

    def changed(reference: str) -> str:
        key, rest = refers(reference)
        return reference if key is None else f"#/$defs/{made[key]}{rest}"

    defined = {made[key]: _with_references(own[key], changed) for key in made}
    return _with_references(beside, changed), defined


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"


def _target(
    reference: str, own: Mapping[tuple[str, str], Any], base: str
) -> tuple[tuple[str, str] | None, str]:
    """Which definition a reference leads to, or into: the last one is the whole; nothing if it leads away."""
    start, _, path = reference.partition("#")
    if start not in ("", base) or (path and path[0] != "/"):
        return None, ""
    _, *within = path.split("/")
    if len(within) > 1:
        key = (within[0], unquote(within[1]).replace("~1", "/").replace("~0", "~"))
        if key in own:
            return key, "".join(f"/{one}" for one in within[2:])
    return list(own)[-1], path


def _references(schema: Any) -> list[str]:
    found: list[str] = []

    def seen(reference: str) -> str:
        found.append(reference)
        return reference

    _with_references(schema, seen)
    return found


def _with_references(schema: Any, change: Callable[[str], str]) -> Any:
    """The same schema with other references."""
    if isinstance(schema, list):
        return [_with_references(one, change) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made: Schema = {}
    for key, one in schema.items():
        if key == "$ref" and isinstance(one, str):
            made[key] = change(one)
        elif key in _BY_NAME and isinstance(one, dict):
            made[key] = {name: _with_references(inner, change) for name, inner in one.items()}
        else:
            made[key] = one if key in _VALUES else _with_references(one, change)
    return made


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


_DECIMAL = ("^[+-]?(", "^(?!^[-+.]*$)")
"""How the patterns begin by which midcall and pydantic describe a decimal that comes as text."""


def without_decimal(schema: Schema) -> Schema:
    """A decimal, which may come as text too, as a number; any other schema as it is."""
    match variants(schema):
        case [{"type": "number"} as number, {"type": "string", "pattern": str(pattern)}] if (
            pattern.startswith(_DECIMAL)
        ):
            return {**number, **{key: one for key, one in schema.items() if key not in ("anyOf", "oneOf")}}
    return schema


def is_file(schema: Schema) -> bool:
    """Whether it is of bytes, which JSON has as base64."""
    said = schema.get("format") in ("binary", "byte", "base64") or schema.get("contentEncoding") == "base64"
    return schema.get("type") == "string" and said


def as_text(value: Any) -> str:
    """How a value is typed: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

"""What is wrong with a machine before it runs: ways that lead nowhere, and events that cannot fit."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from midcall.fsm.actions import Action, AskAction, ModelAction, read_config
from midcall.fsm.definition import END, START, Machine, MachineError, without_id
from midcall.items import to_json
from midcall.json_schema import Schema, compiled


def problems(machine: Machine, actions: Mapping[str, Action] | None) -> Iterator[str]:
    """All that is wrong. Without `actions`, what there is to see without a hub."""
    forward = _reached(START, machine.ends_from)
    backward = _reached(END, lambda name: [way.id[0] for way in machine.ways_to(name)])
    for state in machine.states:
        if state.id not in forward:
            yield f"state {state.id!r} cannot be reached from {START!r}"
        elif state.id not in backward:
            yield f"{END!r} cannot be reached from state {state.id!r}"
    for n, state in enumerate(machine.states) if actions is None else ():
        try:
            read_config(state, f"states[{n}]", machine.ends_from(state.id))
        except MachineError as error:
            yield str(error)
    for action in (actions or {}).values():
        if isinstance(action, ModelAction | AskAction):
            yield from _ambiguous(machine, action)
        yield from _unfit(machine, action)


def _reached(begin: str, next_to: Callable[[str], Iterable[str]]) -> set[str]:
    found, fresh = {begin}, [begin]
    while fresh:
        ends = set(next_to(fresh.pop())) - found
        found |= ends
        fresh += ends
    return found


def _ambiguous(machine: Machine, action: Action) -> Iterator[str]:
    """Ways that a model, or a person, can only guess between: the same words, and the same fields."""
    ways = machine.ways_from(action.state.id)
    for n, one in enumerate(ways):
        words = (one.label, one.description, one.prompts)
        for other in ways[n + 1 :] if any(words) else ():
            is_same = words == (other.label, other.description, other.prompts)
            if is_same and machine.fields(one) == machine.fields(other):
                yield f"transitions {list(one.id)} and {list(other.id)} cannot be told apart"


def _unfit(machine: Machine, action: Action) -> Iterator[str]:
    """An action whose output no transition takes, or that cannot take what leads to it."""
    name, (taken, given) = action.state.id, action.schemas()
    ways = [way for way in machine.ways_from(name) if way.id[1] in action.successes]
    if given is not None:
        reasons = [never_fits(_as_fields(given), machine.fields(way)) for way in ways]
        for way, reason in zip(ways, reasons, strict=True) if all(reasons) else ():
            yield f"what state {name!r} gives can never be an event of {list(way.id)}: {reason}"
    for way in machine.ways_to(name):
        reason = None if taken is None else never_fits(machine.fields(way), without_id(taken))
        if reason is not None:
            yield f"an event of {list(way.id)} can never be what state {name!r} takes: {reason}"


def _as_fields(schema: Schema) -> Schema:
    """The schema of an event's fields, of what an action gives: what is no object is in `result`."""
    if schema.get("type") == "object" or schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
        return without_id(schema)
    return {"type": "object", "properties": {"result": schema}, "required": ["result"]}


# --- whether a value of one JSON Schema can fit another one ----------------------------------------
#
# That cannot be decided in general. So values are made by the structure of both (their types, constants,
# bounds, alternatives, properties) and held against them: one that fits both shows that it can be; if there
# is none, the first of them is the counterexample that is told.

MOST_TRIED = 5000
"""How many values are made for two schemas, with all that is in them; beyond, nobody can say."""

MOST_MADE = 1000
"""How long a text or a list is made for that."""

_BEYOND = re.compile(
    r"\$ref|pattern\w*|prefix\w+|propertyNames|m..Prop\w+|m..Cont\w+|contains|format|not|if|allOf|multipleOf"
    r"|unique\w+|dep\w+|unev\w+"
)
"""What no values are made for: of what is wanted, this does not count."""


def never_fits(producer: Schema, consumer: Schema) -> str | None:
    """Why no value of one schema fits another one; nothing if one may, or nobody can say.

    An object has only the properties that its schema names, unless that says that there are others.
    """
    try:
        made, wanted = compiled(producer), compiled(_looser(consumer))
        tried = samples(producer, _looser(consumer), [MOST_TRIED])
        values = [one for one in tried if made.fault(one) is None]
        faults = [wanted.fault(value) for value in values]
    except (ValueError, TypeError, AttributeError, RecursionError):  # a schema of anybody's
        return None
    return f"{faults[0]}, as for {to_json(values[0]).decode()[:200]}" if faults and all(faults) else None


def _looser(schema: Any) -> Any:
    """A schema without what no values are made for: whatever fits it fitted this one too."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: one for key, one in schema.items() if not _BEYOND.fullmatch(key)}
    for key in ("properties", "$defs"):
        kept |= {key: {name: _looser(one) for name, one in kept[key].items()}} if key in kept else {}
    for key in ("oneOf", "anyOf"):
        kept |= {key.replace("one", "any"): [_looser(one) for one in kept.pop(key)]} if key in kept else {}
    return kept | {key: _looser(kept[key]) for key in ("items", "additionalProperties") if key in kept}


_KINDS = ["object", "string", "integer", "boolean", "null", "array"]


def samples(schema: Any, wanted: Any, left: list[int], depth: int = 3) -> list[Any]:
    """Some values of a schema, the plainest first, and such as may fit another one that is `wanted` too.

    Not all of them need fit either. Raises `ValueError` if there are more to try than are `left`.
    """
    if not isinstance(schema, dict) or depth < 0:
        return [None]
    if "const" in schema or "enum" in schema:
        return [schema["const"]] if "const" in schema else list(schema["enum"])
    both = (schema, wanted if isinstance(wanted, dict) else {})
    found = [one[key] for one in both for key in ("const", "default") if key in one]
    found += [value for one in both for key in ("enum", "examples") for value in one.get(key, ())]
    for key in ("oneOf", "anyOf"):
        inner = [({**schema, key: (), **one}, wanted) for one in schema.get(key, ())]
        inner += [(schema, {**wanted, key: (), **one}) for one in both[1].get(key, ())]
        found += [value for pair in inner for value in samples(*pair, left, depth - 1)]
    kinds = schema.get("type", _KINDS)
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        found += _plain(kind, *both, left, depth)
    left[0] -= 1 + len(found)
    if left[0] < 0:
        raise ValueError("There is too much to try")
    return found


def _plain(kind: str, schema: Schema, wanted: Schema, left: list[int], depth: int) -> Iterator[Any]:
    """Values of a type, about the bounds that are set to them."""

    def bounds(*keys: str) -> list[Any]:
        return [one[key] for one in (schema, wanted) for key in keys if key in one]

    match kind:
        case "null":
            yield None
        case "boolean":
            yield from (True, False)
        case "integer" | "number":
            for low in [*bounds("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), 0]:
                yield from (low, low + 1, low - 1, low + 0.5)
        case "string":
            yield from ("a" * min(size, MOST_MADE) for size in [*bounds("minLength", "maxLength"), 1, 0])
        case "array":
            inner = _best(schema.get("items", True), wanted.get("items"), left, depth)
            yield from ([inner] * min(size, MOST_MADE) for size in [0, 1, *bounds("minItems", "maxItems")])
        case "object":
            parts, others = dict(schema.get("properties", {})), wanted.get("properties", {})
            needed = [name for name in schema.get("required", ()) if name in parts]
            if schema.get("additionalProperties", not parts) is not False:  # then what is wanted may be there
                parts = {**{name: {} for name in wanted.get("required", ())}, **others, **parts}
            made = {name: _best(parts[name], others.get(name), left, depth) for name in parts}
            yield from ({name: made[name] for name in names} for names in (needed, made))


def _best(schema: Any, wanted: Any, left: list[int], depth: int) -> Any:
    """A value for a part: one that fits what is wanted there too, if one was made."""
    values = samples(schema, wanted, left, depth - 1)
    checks = [compiled(one) for one in (schema, wanted) if isinstance(one, dict)]
    return next((one for one in values if not any(check.fault(one) for check in checks)), values[0])

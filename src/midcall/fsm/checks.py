"""What is wrong with a machine before it runs: ways that lead nowhere, and events that cannot fit.

Whether every value of one JSON Schema fits another one cannot be decided in general. So what can be seen from
the outside is compared first (types, constants, what is required and what is not allowed); where that decides
nothing, values are made of the first schema, and held against the second.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from midcall.fsm.actions import Action
from midcall.fsm.definition import END, START, Machine, MachineError, Transition
from midcall.items import to_json
from midcall.json_schema import compiled

SAMPLES = 60
"""How many values are tried."""

MOST_MADE = 1000
"""How long a text or a list is made for that."""


def check_machine(machine: Machine, actions: Mapping[str, Action]) -> None:
    """Raise `MachineError` for the first thing that is wrong."""
    for problem in problems(machine, actions):
        raise MachineError(f"Machine {machine.id!r}: {problem}")


def problems(machine: Machine, actions: Mapping[str, Action]) -> Iterator[str]:
    """All that is wrong. Without `actions`, what there is to see without a hub."""
    forward = _reached(START, {(way.id[0], way.id[1]) for way in machine.transitions})
    backward = _reached(END, {(way.id[1], way.id[0]) for way in machine.transitions})
    for state in machine.states:
        if state.id not in forward:
            yield f"state {state.id!r} cannot be reached from {START!r}"
        elif state.id not in backward:
            yield f"{END!r} cannot be reached from state {state.id!r}"
    for state in machine.states:
        yield from _ambiguous(machine, machine.ways_from(state.id), state.action)
        if state.id in actions:
            yield from _unfit(machine, actions[state.id])


def _reached(begin: str, steps: Iterable[tuple[str, str]]) -> set[str]:
    steps, found, fresh = list(steps), {begin}, [begin]
    while fresh:
        here = fresh.pop()
        for origin, end in steps:
            if origin == here and end not in found:
                found.add(end)
                fresh.append(end)
    return found


def _ambiguous(machine: Machine, ways: tuple[Transition, ...], action: str) -> Iterator[str]:
    """Ways that a model, or a person, can only guess between: the same words, and the same fields."""
    if action not in ("model", "llm", "ask"):
        return
    for n, one in enumerate(ways):
        for other in ways[n + 1 :]:
            words = (one.label, one.description, one.prompts)
            is_same = words == (other.label, other.description, other.prompts)
            if any(words) and is_same and machine.fields(one) == machine.fields(other):
                yield f"transitions {list(one.id)} and {list(other.id)} cannot be told apart"


def _unfit(machine: Machine, action: Action) -> Iterator[str]:
    """An action whose output no transition takes."""
    given = action.gives
    if given is None:
        return
    failure_to = getattr(action.config, "failure_to", None)
    chosen = getattr(action.config, "success_to", None)
    ways = [way for way in machine.ways_from(action.state.id) if way.id[1] != failure_to]
    ways = [way for way in ways if chosen in (None, way.id[1])]
    reasons = [never_fits(_as_fields(given), _without_id(machine.fields(way))) for way in ways]
    if ways and all(reason is not None for reason in reasons):
        for way, reason in zip(ways, reasons, strict=True):
            yield f"what state {action.state.id!r} gives can never be an event of {list(way.id)}: {reason}"


def _as_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an event's fields, of what an action gives: what is no object is in `result`."""
    if schema.get("type") == "object" or schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
        return _without_id(schema)
    return {"type": "object", "properties": {"result": schema}, "required": ["result"]}


def _without_id(schema: dict[str, Any]) -> dict[str, Any]:
    properties = {key: value for key, value in schema.get("properties", {}).items() if key != "id"}
    required = [name for name in schema.get("required", ()) if name != "id"]
    return {**schema, "properties": properties, "required": required} if "properties" in schema else schema


def never_fits(producer: dict[str, Any], consumer: dict[str, Any]) -> str | None:
    """Why no value of one schema fits another one; nothing if one may."""
    reason = _conflict(producer, consumer, "")
    if reason is not None or _is_open(producer):
        return reason
    try:
        wanted, values = compiled(consumer), list(islice(samples(producer), SAMPLES))
        made = compiled(producer)
        values = [value for value in values if made.fault(value) is None]
        faults = [wanted.fault(value) for value in values]
    except (ValueError, TypeError, AttributeError, RecursionError):  # a schema of anybody's
        return None
    if values and all(fault is not None for fault in faults):
        return f"{faults[0]}, as for {to_json(values[0]).decode()[:200]}"
    return None


def _conflict(producer: Any, consumer: Any, path: str) -> str | None:
    """What can be seen from the outside."""
    if not isinstance(producer, dict) or not isinstance(consumer, dict):
        return f"{path or 'it'} is not allowed" if consumer is False else None
    where = f"{path}: " if path else ""
    if "const" in producer and "const" in consumer and producer["const"] != consumer["const"]:
        return f"{where}it is always {producer['const']!r}, and must be {consumer['const']!r}"
    made, wanted = _types(producer), _types(consumer)
    if made and wanted and not (made & wanted or ("integer" in made and "number" in wanted)):
        return f"{where}it is {' or '.join(sorted(made))}, and must be {' or '.join(sorted(wanted))}"
    properties = producer.get("properties", {})
    for name in consumer.get("required", ()):
        if name not in properties and producer.get("additionalProperties") is False:
            return f"{where}it never has {name!r}"
    for name, schema in consumer.get("properties", {}).items():
        if name in properties and name in producer.get("required", ()):
            reason = _conflict(properties[name], schema, f"{path}.{name}" if path else name)
            if reason is not None:
                return reason
    if consumer.get("additionalProperties") is False and not consumer.get("patternProperties"):
        for name in producer.get("required", ()):
            if name not in consumer.get("properties", {}):
                return f"{where}{name!r} is not allowed"
    return None


def _is_open(schema: dict[str, Any]) -> bool:
    """Whether a schema says too little to make values of it that tell something."""
    free = schema.get("additionalProperties", False) is not False
    return "object" in _types(schema) and (free or not schema.get("properties"))


def _types(schema: dict[str, Any]) -> set[str]:
    kind = schema.get("type")
    return {kind} if isinstance(kind, str) else set(kind or ())


def samples(schema: Any, depth: int = 3) -> Iterator[Any]:
    """Some values of a schema, the plainest first. Not all of them need fit it."""
    if not isinstance(schema, dict) or depth < 0:
        yield None
        return
    if "const" in schema:
        yield schema["const"]
        return
    if "enum" in schema:
        yield from schema["enum"]
        return
    for key in ("default", "examples"):
        if key in schema:
            yield from schema[key] if key == "examples" else [schema[key]]
    for key in ("oneOf", "anyOf"):
        for one in (one for one in schema.get(key, ()) if isinstance(one, dict)):
            yield from samples({**{k: v for k, v in schema.items() if k != key}, **one}, depth - 1)
    for kind in sorted(_types(schema)) or ["object", "string", "integer", "boolean", "null", "array"]:
        yield from _samples_of(kind, schema, depth)


def _samples_of(kind: str, schema: dict[str, Any], depth: int) -> Iterator[Any]:
    match kind:
        case "null":
            yield None
        case "boolean":
            yield from (True, False)
        case "integer" | "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            high = schema.get("maximum", schema.get("exclusiveMaximum", low + 2))
            yield from (low, low + 1, high, 0, 1)
        case "string":
            size = min(schema.get("minLength", 1), MOST_MADE)
            yield from ("a" * size, "1" * max(size, 1), "2026-07-28", "user@example.org", "")
        case "array":
            inner = next(samples(schema.get("items", True), depth - 1), None)
            yield from ([], [inner] * max(1, min(schema.get("minItems", 1), MOST_MADE)))
        case "object":
            properties = schema.get("properties", {})
            needed = [name for name in schema.get("required", ()) if name in properties]
            for names in (needed, list(properties)):
                yield {name: next(samples(properties[name], depth - 1), None) for name in names}
            for name in needed:
                for value in samples(properties[name], depth - 1):
                    plain = {other: next(samples(properties[other], depth - 1), None) for other in needed}
                    yield {**plain, name: value}

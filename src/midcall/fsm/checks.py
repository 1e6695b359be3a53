"""What is wrong with a machine before it runs: ways that lead nowhere, and events that cannot fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from midcall.fsm.actions import Action, AskAction, ModelAction, read_config
from midcall.fsm.definition import END, START, Machine, MachineError, State, without_id
from midcall.schema_fit import never_fits


def problems(machine: Machine, actions: Mapping[str, Action] | None) -> Iterator[str]:
    """All that is wrong. Without `actions`, what there is to see without a hub."""
    forward = _reached(START, machine.ends_from)
    backward = _reached(END, lambda name: [way.id[0] for way in machine.ways_to(name)])
    for state in machine.states:
        if state.id not in forward:
            yield f"state {state.id!r} cannot be reached from {START!r}"
        elif state.id not in backward:
            yield f"{END!r} cannot be reached from state {state.id!r}"
    if actions is None:
        yield from _unread(machine.states, "states", machine.ends_from)
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


def _unread(states: Sequence[State], path: str, ends: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """What is wrong with how states, or branches, are configured."""
    for n, state in enumerate(states):
        at = f"{path}[{n}]"
        try:
            branches = read_config(state, at, ends(state.id)).get("branches", ())
        except MachineError as error:
            yield str(error)
        else:
            yield from _unread(branches, f"{at}.config.branches", lambda _: ())


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


def _as_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an event's fields, of what an action gives: what is no object is in `result`."""
    if schema.get("type") == "object" or schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
        return without_id(schema)
    return {"type": "object", "properties": {"result": schema}, "required": ["result"]}

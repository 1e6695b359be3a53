"""Machine: a state machine as data, read from JSON or written with `MachineBuilder`.

`start` and `end` are there without being written. An event is an object whose `id` says which transition it
takes; the schema of a transition is that of its events. This knows no hub, and runs nothing.
"""

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Struct

from midcall.activation import digest
from midcall.errors import RegistrationError
from midcall.items import to_builtins
from midcall.json_schema import JsonSchema, compiled, followed, inlined, joined
from midcall.limits import near_matches

START, END = "start", "end"

Event: TypeAlias = dict[str, Any]
"""`{"id": [from, to], ...}`."""

T = TypeVar("T")


class MachineError(RegistrationError):
    """A machine that cannot be: the text says where, and what is wrong there."""


class State(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is done there, and with which configuration (see `actions`)."""

    id: str
    action: str
    description: str = ""
    config: dict[str, Any] = {}
    prompts: tuple[str, ...] = ()


Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=10 * 366 * 24 * 3600)]
Number: TypeAlias = Annotated[int, msgspec.Meta(gt=0, le=10**9)]


class ParallelBranch(State, frozen=True):
    """One of several things that are done at once."""

    timeout: Seconds | None = None


class StateConfig(TypedDict, total=False):
    """All that a state can be configured with. Its action says which of that it knows."""

    timeout: Seconds
    success_to: str
    failure_to: str
    model: str
    max_tokens: Number
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)]
    tools: Sequence[str]
    parallel: bool
    message: str
    method: str
    arguments: dict[str, Any]
    function: str
    machine: str
    trail: Literal["omit", "summary", "full"]
    branches: Sequence[ParallelBranch]


class RunLimits(Struct, frozen=True):
    """What a run is limited to, if nothing else is said: a week, and transitions."""

    time_limit: Seconds = 7 * 24 * 3600.0
    max_transitions: Number = 100


class Transition(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A way from one state to another one. With `omit`, a model does not see that it was taken."""

    id: tuple[str, str]
    label: str = ""
    description: str = ""
    prompts: tuple[str, ...] = ()
    schema: dict[str, Any] | str | None = None
    """A JSON Schema, or the name of one in `schemas`."""
    omit: bool = False


class Machine(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """All of it. `prompts` are for every model in it; `schemas` can be referred to as `#/$defs/NAME`."""

    id: str
    states: tuple[State, ...]
    transitions: tuple[Transition, ...]
    description: str = ""
    schemas: dict[str, dict[str, Any]] = {}
    prompts: tuple[str, ...] = ()

    def ways_from(self, state_id: str) -> tuple[Transition, ...]:
        """The transitions that may be taken there."""
        return self._ways.get((0, state_id), ())

    def ends_from(self, state_id: str) -> list[str]:
        """The states that they lead to."""
        return [way.id[1] for way in self.ways_from(state_id)]

    def ways_to(self, state_id: str) -> tuple[Transition, ...]:
        """The transitions that lead there."""
        return self._ways.get((1, state_id), ())

    @functools.cached_property
    def _ways(self) -> dict[tuple[int, str], tuple[Transition, ...]]:
        """The transitions by where they begin (0), and by where they end (1)."""
        found: dict[tuple[int, str], tuple[Transition, ...]] = {}
        for way in self.transitions:
            for place in enumerate(way.id):
                found[place] = (*found.get(place, ()), way)
        return found

    def fields(self, *ways: Transition) -> dict[str, Any]:
        """The schema of what an event of one of these transitions says beside its `id`."""
        found = []
        for way in ways:
            named = self.schemas[way.schema] if isinstance(way.schema, str) else way.schema
            schema: dict[str, Any] = {"type": "object"} if named is None else without_id(named)
            if b'"#/$defs/' in msgspec.json.encode(schema):
                schema["$defs"] = {**self.schemas, **schema.get("$defs", {})}
            found.append(schema)
        return found[0] if len(found) == 1 else one_of("anyOf", *joined(found))

    def event_schema(self, *ways: Transition, fields: Mapping[str, Any] = {}) -> dict[str, Any]:
        """The schema of an event that takes one of these transitions.

        `fields` has schemas in the place of those that ways to a state have by themselves.
        """
        parts, shared = joined([fields.get(way.id[1]) or self.fields(way) for way in ways])
        made = [_with_id(part, way.id, {"$defs": shared}) for part, way in zip(parts, ways, strict=True)]
        return one_of("oneOf", made, shared)

    @functools.cached_property
    def checked(self) -> dict[tuple[str, str], JsonSchema]:
        """For each transition the schema of what its events say beside their `id`."""
        return {way.id: compiled(self.fields(way)) for way in self.transitions}

    @property
    def input_schema(self) -> dict[str, Any]:
        """What a run begins with: the fields of the first event, with its `id` where there are several."""
        ways = self.ways_from(START)
        return self.fields(*ways) if len(ways) == 1 else self.event_schema(*ways)

    def to_json(self) -> bytes:
        """The definition, as `read_machine` reads it."""
        return msgspec.json.encode(self)

    @property
    def hash(self) -> str:
        """16 hex characters that change with whatever a run depends on: not with words for models."""
        return digest(self.structure())

    def structure(self) -> dict[str, Any]:
        """What a run depends on, by name."""
        return {
            **{f"state {one.id!r}": [one.action, one.config] for one in self.states},
            **{f"transition {way.id[0]} -> {way.id[1]}": [way.schema, way.omit] for way in self.transitions},
            **{f"schema {name!r}": schema for name, schema in self.schemas.items()},
        }

    def changes(self, before: Mapping[str, Any]) -> list[str]:
        """What is different from the structure that it had before, in words."""
        now = to_builtins(self.structure())
        gone = [f"{name} is gone" for name in before if name not in now]
        new = [f"{name} is new" for name in now if name not in before]
        changed = [f"{name} has changed" for name in before if now.get(name, before[name]) != before[name]]
        return gone + new + changed


def _with_id(schema: Any, way: tuple[str, str], root: dict[str, Any], depth: int = 3) -> Any:
    """The schema of fields, which may be closed, as that of an event: each alternative has the `id` too."""
    if not isinstance(schema, dict):
        return schema
    made = without_id(followed(schema, root))
    made["properties"] = {"id": {"const": list(way)}, **made.get("properties", {})}
    made["required"] = ["id", *made.get("required", ())]
    made |= {key: made[key] + 1 for key in ("minProperties", "maxProperties") if key in made}
    for key in made.keys() & {"allOf", "anyOf", "oneOf"} if depth else ():
        made[key] = [_with_id(one, way, root, depth - 1) for one in made[key]]
    return made


def one_of(key: str, parts: Sequence[dict[str, Any]], shared: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that fits one of several, with definitions that they share (see `joined`)."""
    whole = parts[0] if len(parts) == 1 else {key: parts}
    return {"type": "object", **whole, **({"$defs": shared} if shared else {})}


def without_id(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an event's fields, beside its `id`."""
    left, properties, required = dict(schema), schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        left["properties"] = without(properties, "id")
    if isinstance(required, list | tuple):
        left["required"] = [name for name in required if name != "id"]
    return left


def without(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The same without one of its keys."""
    return {name: value for name, value in given.items() if name != key}


def read_machine(given: Any) -> Machine:
    """A machine from JSON, as bytes, text or plain values. Raises `MachineError`."""
    if isinstance(given, bytes | str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MachineError(f"The machine is not JSON: {error}") from None
    if isinstance(given, dict) and "xitions" in given:
        given = {("transitions" if key == "xitions" else key): value for key, value in given.items()}
    machine = read(given, Machine, "")
    _check_names(machine)
    return machine


_UNKNOWN = re.compile("Object contains unknown field `(.*)`", re.DOTALL)
_INNER: dict[str, Any] = {"states": State, "transitions": Transition, "branches": ParallelBranch}


def read(given: Any, kind: type[T], path: str) -> T:
    """A value of a type. Raises `MachineError` with the path, and a near match for a key that is none."""
    try:
        return msgspec.convert(given, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, at = str(error).partition(" - at `$")
        place = f"{path}{at.rstrip('`')}".lstrip(".")
        if unknown := _UNKNOWN.fullmatch(message):
            there = _INNER.get(place.rpartition(".")[2].partition("[")[0], kind)
            known = [field.encode_name for field in msgspec.structs.fields(there)]
            message = f"unknown key {unknown[1]!r}{did_you_mean(unknown[1], known)}"
        raise MachineError(f"{place}: {message}" if place else message) from None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """What to add to a message about a name that is none."""
    near = near_matches(name, known)
    return f": did you mean {near[0]!r}?" if near else f": there are {', '.join(known)}" if known else ""


def check_known(what: str, name: str, known: Collection[str], path: str) -> None:
    """Raise `MachineError` if a name is none of those that there are."""
    if name not in known:
        raise MachineError(f"{path}: {what} {name!r}{did_you_mean(name, list(known))}")


def check_unique(ids: Sequence[Any], path: str, first: int = 0) -> None:
    """Raise `MachineError` if two have the same id; that of the first one is at `path[first].id`."""
    taken: dict[str, int] = {}
    for n, one in enumerate(map(repr, ids), first):
        if taken.setdefault(one, n) != n:
            raise MachineError(f"{path}[{n}].id: {one} is there already")


def _check_names(machine: Machine) -> None:
    """Raise if something is named twice, or names what is not there."""
    states = [START, END, *(state.id for state in machine.states)]
    check_unique(states, "states", -2)
    check_unique([list(way.id) for way in machine.transitions], "transitions")
    for n, way in enumerate(machine.transitions):
        path = f"transitions[{n}]"
        for end in way.id:
            check_known("unknown state", end, states, f"{path}.id")
        if way.id[0] == END or way.id[1] == START:
            raise MachineError(f"{path}.id: nothing comes after {END!r}, or before {START!r}")
        if isinstance(way.schema, str):
            check_known("unknown schema", way.schema, machine.schemas, f"{path}.schema")
        try:
            compiled(machine.fields(way))
            compiled(machine.event_schema(way))
        except (ValueError, TypeError, AttributeError) as error:
            raise MachineError(f"{path}.schema: {error}") from None
        if machine.fields(way).get("type", "object") != "object":
            raise MachineError(f"{path}.schema: an event is an object")
        if "bail_out" in machine.fields(way).get("properties", {}):
            raise MachineError(f"{path}.schema: bail_out is for runs that give up, and no field of an event")
    if not machine.ways_from(START):
        raise MachineError(f"transitions: none begins at {START!r}")


class StateOptions(StateConfig, total=False):
    """What states may have; an action refuses what means nothing to it."""

    description: str
    prompts: Sequence[str]


class MachineBuilder:
    """Writes a machine: `MachineBuilder("loop").model("llm").tools("servicing").to("start", "llm")`.

    Each method gives the builder back. What JSON cannot hold, the functions, it keeps beside the machine.
    """

    def __init__(self, machine_id: str, description: str = "", *, prompts: Sequence[str] = ()) -> None:
        self.id = machine_id
        self._whole = {"id": machine_id, "description": description, "prompts": list(prompts)}
        self._states: list[dict[str, Any]] = []
        self._transitions: list[dict[str, Any]] = []
        self.functions: dict[str, Callable[..., Any]] = {}
        self.parts: list[Machine | MachineBuilder] = []
        """Machines that only this one runs (see `chain`)."""

    def state(
        self, state_id: str, action: str, config: Mapping[str, Any], **options: Unpack[StateOptions]
    ) -> Self:
        """A state with any action; `model`, `tools` and so on write the configuration."""
        given = {key: one for key, one in {**config, **options}.items() if one is not None}
        words = {key: given.pop(key) for key in ("description", "prompts") if options.get(key) is not None}
        self._states.append({"id": state_id, "action": action, "config": given, **words})
        return self

    def model(self, state_id: str, **options: Unpack[StateOptions]) -> Self:
        """Where a model chooses the next transition: by default that of the hub, or the caller's."""
        return self.state(state_id, "model", {}, **options)

    def tools(self, state_id: str, *names: str, **options: Unpack[StateOptions]) -> Self:
        """Where the tool calls of an event are made: of these tools, or of all that need no scope."""
        return self.state(state_id, "tools", {"tools": list(names)}, **options)

    def ask(self, state_id: str, message: str = "", /, **options: Unpack[StateOptions]) -> Self:
        """Where a person chooses the next transition."""
        return self.state(state_id, "ask", {"message": message}, **options)

    def method(
        self, state_id: str, name: str, arguments: Any = None, /, **options: Unpack[StateOptions]
    ) -> Self:
        """Where a method of the hub is called, with fields of the event and these `arguments`."""
        return self.state(state_id, "method", {"method": name, "arguments": arguments}, **options)

    def function(
        self, state_id: str, function: Callable[..., Any], /, **options: Unpack[StateOptions]
    ) -> Self:
        """Where a Python function, plain or async, makes an event of an event (and of a `Moment`)."""
        self.functions[state_id] = function
        return self.state(state_id, "function", {"function": state_id}, **options)

    def machine(self, state_id: str, machine: str, /, **options: Unpack[StateOptions]) -> Self:
        """Where another machine of the hub is run, from its start to its end."""
        return self.state(state_id, "machine", {"machine": machine}, **options)

    def parallel(
        self, state_id: str, branches: Mapping[str, Mapping[str, Any]], /, **options: Unpack[StateOptions]
    ) -> Self:
        """Where several things are done at once: `{"style": {"action": "model", "config": {}}}`."""
        listed = [{"id": name, **branch} for name, branch in branches.items()]
        return self.state(state_id, "parallel", {"branches": listed}, **options)

    def to(
        self,
        begin: str,
        end: str,
        schema: Any = None,
        *,
        label: str = "",
        description: str = "",
        prompts: Sequence[str] = (),
        omit: bool = False,
    ) -> Self:
        """A transition, with the type of its events: a JSON Schema, or a class with fields."""
        if isinstance(schema, type):
            from midcall.schema import shape_of  # noqa: PLC0415  pydantic is slow to import: only when needed

            schema = inlined(shape_of(schema).schema)
        way = Transition((begin, end), label, description, tuple(prompts), schema, omit)
        self._transitions.append(msgspec.to_builtins(way))
        return self

    def build(self) -> Machine:
        """The machine. Raises `MachineError`."""
        return read_machine({**self._whole, "states": self._states, "transitions": self._transitions})


def chain(*machines: Any, id: str = "", description: str = "") -> MachineBuilder:
    """One machine that runs several, each a builder, a machine or its definition: what one ends with is what
    the next one begins with. That it fits is checked when the chain is registered. Raises `MachineError`.
    """
    parts = [one if isinstance(one, Machine | MachineBuilder) else read_machine(one) for one in machines]
    built = [one.build() if isinstance(one, MachineBuilder) else one for one in parts]
    if not built:
        raise MachineError("A chain is of at least one machine")
    made = MachineBuilder(id or "-".join(["chain", *(one.id for one in built)]), description)
    known: dict[str, Any] = {made.id: made}
    names = [START]
    for part, one in zip(parts, built, strict=True):
        if known.setdefault(one.id, part) is not part:
            raise MachineError(f"The id {one.id!r} is of two machines of a chain, or of the chain too")
        name = f"{one.id}-{len(names)}" if one.id in (*names, END) else one.id
        made.machine(name, one.id).to(names[-1], name, one.fields(*one.ways_from(START)))
        names.append(name)
    made.parts = list(known.values())[1:]
    return made.to(names[-1], END, built[-1].fields(*built[-1].ways_to(END)))

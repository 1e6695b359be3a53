"""Machine: a state machine as data, read from JSON or written with `MachineBuilder`.

    {"id": "loop",
     "states": [{"id": "llm", "action": "model"}, {"id": "servicing", "action": "tools"}],
     "transitions": [{"id": ["start", "llm"]}, {"id": ["llm", "servicing"]},
                     {"id": ["servicing", "llm"]}, {"id": ["llm", "end"]}]}

`start` and `end` are there without being written. An event is an object whose `id` says which transition it
takes; the schema of a transition is that of its events. This knows no hub, and runs nothing.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias, TypedDict, Unpack

import msgspec
from msgspec import Struct

from midcall.activation import digest
from midcall.errors import RegistrationError
from midcall.json_schema import compiled, inlined
from midcall.limits import near_matches

START, END = "start", "end"

Schema: TypeAlias = dict[str, Any] | str | None
"""A JSON Schema, or the name of one in `schemas`."""

Event: TypeAlias = dict[str, Any]
"""`{"id": [from, to], ...}`."""


class MachineError(RegistrationError):
    """A machine that cannot be: the text says where, and what is wrong there."""


class Definition(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is read by `read`, and refused if there is more in it."""


class State(Definition, frozen=True):
    """What is done there, and with which configuration (see `actions`)."""

    id: str
    action: str
    description: str = ""
    config: dict[str, Any] = {}
    prompts: tuple[str, ...] = ()


class Transition(Definition, frozen=True):
    """A way from one state to another one. With `omit`, a model does not see that it was taken."""

    id: tuple[str, str]
    label: str = ""
    description: str = ""
    prompts: tuple[str, ...] = ()
    schema: Schema = None
    omit: bool = False


class Machine(Definition, frozen=True, dict=True):
    """All of it. `prompts` are for every model in it; `schemas` can be referred to as `#/$defs/NAME`."""

    id: str
    states: tuple[State, ...]
    transitions: tuple[Transition, ...]
    description: str = ""
    schemas: dict[str, dict[str, Any]] = {}
    prompts: tuple[str, ...] = ()

    # --- looking -----------------------------------------------------------------------------

    def state(self, state_id: str) -> State:
        """Raises `KeyError`."""
        return self._states[state_id]

    def ways_from(self, state_id: str) -> tuple[Transition, ...]:
        """The transitions that may be taken there."""
        return self._ways.get(state_id, ())

    @functools.cached_property
    def _states(self) -> dict[str, State]:
        return {state.id: state for state in self.states}

    @functools.cached_property
    def _ways(self) -> dict[str, tuple[Transition, ...]]:
        begins = {way.id[0] for way in self.transitions}
        return {name: tuple(way for way in self.transitions if way.id[0] == name) for name in begins}

    def ways_to(self, state_id: str) -> tuple[Transition, ...]:
        """The transitions that lead there."""
        return tuple(way for way in self.transitions if way.id[1] == state_id)

    def fields(self, way: Transition) -> dict[str, Any]:
        """The schema of what an event of a transition says, beside its `id`."""
        schema = self.schemas[way.schema] if isinstance(way.schema, str) else way.schema
        return self._with_definitions({"type": "object"} if schema is None else schema)

    def event_schema(self, *ways: Transition) -> dict[str, Any]:
        """The schema of an event that takes one of these transitions."""
        schemas = [_with_id(self.fields(way), way.id) for way in ways]
        if len(schemas) == 1:
            return schemas[0]
        shared = {name: one for schema in schemas for name, one in schema.get("$defs", {}).items()}
        found: dict[str, Any] = {"oneOf": [_without(schema, "$defs") for schema in schemas]}
        return {**found, "$defs": shared} if shared else found

    def _with_definitions(self, schema: dict[str, Any]) -> dict[str, Any]:
        if b'"#/$defs/' not in msgspec.json.encode(schema):
            return schema
        return {**schema, "$defs": {**self.schemas, **schema.get("$defs", {})}}

    # --- as data -----------------------------------------------------------------------------

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


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is different between two structures, in words."""
    gone = [f"{name} is gone" for name in before if name not in now]
    new = [f"{name} is new" for name in now if name not in before]
    return (
        gone + new + [f"{name} has changed" for name in now if name in before and before[name] != now[name]]
    )


def _with_id(schema: dict[str, Any], way: tuple[str, str]) -> dict[str, Any]:
    its_id = {"const": list(way)}
    if schema.get("type") == "object" and not schema.keys() & {
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
    }:
        properties = {"id": its_id, **_without(schema.get("properties", {}), "id")}
        required = ["id", *(name for name in schema.get("required", ()) if name != "id")]
        return {**schema, "properties": properties, "required": required}
    marked = {"type": "object", "properties": {"id": its_id}, "required": ["id"]}
    outer = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {**outer, "allOf": [_without(schema, "$defs"), marked]}


def _without(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


# --- reading ----------------------------------------------------------------------------------------


def read_machine(given: Any) -> Machine:
    """A machine from JSON, as bytes, text or plain values. Raises `MachineError`."""
    if isinstance(given, bytes | str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MachineError(f"The machine is not JSON: {error}") from None
    if isinstance(given, dict) and "xitions" in given:
        given = {("transitions" if key == "xitions" else key): value for key, value in given.items()}
    machine: Machine = read(given, Machine, "")
    _check_names(machine)
    return machine


def read(given: Any, kind: type[Any], path: str) -> Any:
    """A value of a struct. Raises `MachineError` with the path, and a near match for a key that is none."""
    where = f"{path}: " if path else ""
    if not isinstance(given, dict):
        raise MachineError(f"{where}an object is needed here")
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in given:
        if key not in known:
            raise MachineError(f"{where}unknown key {key!r}{did_you_mean(str(key), known)}")
    for key, inner in (("states", State), ("transitions", Transition)):
        if kind is Machine and isinstance(given.get(key), list):
            for n, one in enumerate(given[key]):
                read(one, inner, f"{key}[{n}]")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$")
        inside = at.rstrip("`").lstrip(".")
        place = f"{path}.{inside}" if path and inside else path or inside
        raise MachineError(f"{place}: {message}" if place else message) from None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """What to add to a message about a name that is none."""
    near = near_matches(name, known)
    return f": did you mean {near[0]!r}?" if near else f": there are {', '.join(known)}" if known else ""


def _check_names(machine: Machine) -> None:
    """Raise if something is named twice, or names what is not there."""
    states: list[str] = [START, END]
    for n, state in enumerate(machine.states):
        if state.id in states:
            raise MachineError(f"states[{n}].id: {state.id!r} is there already")
        states.append(state.id)
    taken: set[tuple[str, str]] = set()
    for n, way in enumerate(machine.transitions):
        for end in way.id:
            if end not in states:
                raise MachineError(f"transitions[{n}].id: unknown state {end!r}{did_you_mean(end, states)}")
        if way.id[0] == END or way.id[1] == START:
            raise MachineError(f"transitions[{n}].id: nothing comes after {END!r}, or before {START!r}")
        if way.id in taken:
            raise MachineError(f"transitions[{n}].id: {list(way.id)} is there already")
        taken.add(way.id)
        if isinstance(way.schema, str) and way.schema not in machine.schemas:
            near = did_you_mean(way.schema, list(machine.schemas))
            raise MachineError(f"transitions[{n}].schema: unknown schema {way.schema!r}{near}")
        for problem in _schema_problems(machine, way):
            raise MachineError(f"transitions[{n}].schema: {problem}")
    if not machine.ways_from(START):
        raise MachineError(f"transitions: none begins at {START!r}")


def _schema_problems(machine: Machine, way: Transition) -> Iterator[str]:
    fields = machine.fields(way)
    if fields.get("type", "object") != "object":
        yield "an event is an object"
    try:
        compiled(fields)
        compiled(machine.event_schema(way))
    except ValueError as error:
        yield str(error)


# --- writing it in Python ---------------------------------------------------------------------------


class StateOptions(TypedDict, total=False):
    """What states have beside what is special about them; an action refuses those that mean nothing to it."""

    description: str
    prompts: Sequence[str]
    timeout: float
    success_to: str
    failure_to: str


class MachineBuilder:
    """Writes a machine: `MachineBuilder("loop").model("llm").tools("servicing").to("start", "llm")`.

    Each method gives the builder back. What JSON cannot hold, the functions, it keeps beside the machine.
    """

    def __init__(self, machine_id: str, description: str = "", *, prompts: Sequence[str] = ()) -> None:
        self._whole = {"id": machine_id, "description": description, "prompts": list(prompts)}
        self._states: list[dict[str, Any]] = []
        self._transitions: list[dict[str, Any]] = []
        self.functions: dict[str, Callable[..., Any]] = {}

    def state(
        self, state_id: str, action: str, config: Mapping[str, Any], **options: Unpack[StateOptions]
    ) -> Self:
        """A state with any action; `model`, `tools` and so on write the configuration."""
        words: dict[str, Any] = {
            key: one for key, one in options.items() if key in ("description", "prompts")
        }
        others = {key: one for key, one in options.items() if key not in words}
        given = {key: one for key, one in {**config, **others}.items() if one is not None}
        self._states.append({"id": state_id, "action": action, "config": given, **words})
        return self

    def model(
        self,
        state_id: str,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        **options: Unpack[StateOptions],
    ) -> Self:
        """Where a model chooses the next transition: by default that of the hub, or the caller's."""
        config = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
        return self.state(state_id, "model", config, **options)

    def tools(
        self, state_id: str, *tools: str, parallel: bool = False, **options: Unpack[StateOptions]
    ) -> Self:
        """Where the tool calls of an event are made: of these tools, or of all that need no scope."""
        return self.state(state_id, "tools", {"tools": list(tools), "parallel": parallel}, **options)

    def ask(self, state_id: str, message: str = "", **options: Unpack[StateOptions]) -> Self:
        """Where a person chooses the next transition."""
        return self.state(state_id, "ask", {"message": message}, **options)

    def method(
        self,
        state_id: str,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[StateOptions],
    ) -> Self:
        """Where a method of the hub is called, with fields of the event and these `arguments`."""
        return self.state(state_id, "method", {"method": name, "arguments": arguments or {}}, **options)

    def function(self, state_id: str, function: Callable[..., Any], **options: Unpack[StateOptions]) -> Self:
        """Where a Python function, plain or async, makes an event of an event, and of a `Moment` if it takes
        two."""
        self.functions[state_id] = function
        return self.state(state_id, "function", {"function": state_id}, **options)

    def machine(
        self,
        state_id: str,
        machine: str,
        *,
        trail: Literal["omit", "summary", "full"] = "omit",
        **options: Unpack[StateOptions],
    ) -> Self:
        """Where another machine of the hub is run, from its start to its end."""
        return self.state(state_id, "machine", {"machine": machine, "trail": trail}, **options)

    def parallel(
        self, state_id: str, branches: Mapping[str, Mapping[str, Any]], **options: Unpack[StateOptions]
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

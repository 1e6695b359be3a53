"""Machines of a hub: registered, each is a method, and so a tool, a command and an endpoint."""

import fnmatch
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from midcall.activation import Activation, Method, digest, plugin_id
from midcall.call import Call
from midcall.errors import InvalidArguments, MethodNotFound
from midcall.fsm.actions import Action, make_action
from midcall.fsm.checks import check_machine
from midcall.fsm.definition import (
    END,
    START,
    Event,
    Machine,
    MachineBuilder,
    MachineError,
    did_you_mean,
    read_machine,
)
from midcall.fsm.run import MAX_TRANSITIONS, TIME_LIMIT, MachineRun, RunLimits, TrailEntry
from midcall.hub import Hub
from midcall.json_schema import compiled
from midcall.models.base import Model, choose_model
from midcall.registry import Resolved

NAMESPACE = "machines"

MOST_FAULTS = 20
"""How many faults of an input are told."""

_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_BAIL_OUT = {
    "type": "object",
    "properties": {
        "id": {"type": "array", "items": {"type": "string"}},
        "bail_out": {"const": True},
        "reason": {"type": "string"},
        "message": {"type": "string"},
    },
    "required": ["id", "bail_out", "reason"],
}
"""The schema of the event with which a run ends that cannot go on."""

_ENTRY = {
    "type": "object",
    "properties": {
        "from": {"type": "string"},
        "to": {"type": ["string", "null"]},
        "event": {},
        "error": {"type": "string"},
    },
    "required": ["from", "to", "event"],
}


class RegisteredMachine:
    """A machine, ready to run."""

    def __init__(
        self,
        machines: "Machines",
        machine: Machine,
        functions: Mapping[str, Callable[..., Any]],
        limits: RunLimits,
        model: Model | None,
    ) -> None:
        self.machine = machine
        self.model = model
        self.functions = functions
        self.limits = limits
        self.actions: dict[str, Action] = {}
        machines.making[machine.id] = self
        for n, state in enumerate(machine.states):
            self.actions[state.id] = make_action(machines, machine, state, f"states[{n}]")

    @property
    def needs(self) -> set[str]:
        """The names of the methods that it may call."""
        return {name for action in self.actions.values() for name in action.needs}

    @property
    def input_schema(self) -> dict[str, Any]:
        """What a run begins with: the fields of the first event, with its `id` where there are several."""
        ways = self.machine.ways_from(START)
        if len(ways) > 1:
            return self.machine.event_schema(*ways)
        fields = self.machine.fields(ways[0])
        left = {key: value for key, value in fields.get("properties", {}).items() if key != "id"}
        required = [name for name in fields.get("required", ()) if name != "id"]
        return {**fields, "properties": left, "required": required}

    @property
    def output_schema(self) -> dict[str, Any]:
        """What a run ends with."""
        ways = self.machine.ways_to(END)
        ends = dict(self.machine.event_schema(*ways)) if ways else {}
        named = ends.pop("$defs", None)
        schema = {"type": "object", "anyOf": [ends, _BAIL_OUT] if ends else [_BAIL_OUT]}
        return schema if named is None else {**schema, "$defs": named}

    def first_event(self, given: Any) -> Event:
        """The event that begins a run. Raises `InvalidArguments`."""
        ways = self.machine.ways_from(START)
        event = {**given, "id": list(ways[0].id)} if isinstance(given, dict) and len(ways) == 1 else given
        schema = self.machine.event_schema(*ways)
        try:
            faults = compiled(schema).faults(event, MOST_FAULTS)
        except ValueError as error:
            faults = [{"path": "", "message": str(error)}]
        if faults:
            raise InvalidArguments(self.machine.id, faults)
        return event


class MachineMethod(Method):
    """A machine as a method: a stream of the entries of its trail."""

    __slots__ = ("machines", "registered")

    def __init__(self, machines: "Machines", registered: RegisteredMachine) -> None:
        machine = registered.machine
        self.machines = machines
        self.registered = registered
        self.name = machine.id
        self.description = machine.description
        self.hidden = False
        self.elicits = {}
        self.interactive = True
        self.streaming = True
        self.params = {"properties": {}, **registered.input_schema}
        self.returns = _ENTRY
        self._names = list(self.params["properties"])
        self._ask_parameter = None
        self._function = self.invoke
        self.hash = digest([machine.hash, self.description, self.params])

    @property
    def extras(self) -> dict[str, Any]:  # type: ignore[override]
        """With the scopes of all that it may call, as far as that is there by now."""
        return {"scopes": self.machines.scopes_of(self.registered)}

    @property
    def output(self) -> dict[str, Any] | None:
        return self.registered.output_schema

    def whole(self, contents: Sequence[Any]) -> Any:
        """The event that led to `end`."""
        last = contents[-1]
        return last.event if isinstance(last, TrailEntry) else last["event"]

    def read_arguments(self, raw: bytes, name: str = "") -> Event:
        try:
            given = msgspec.json.decode(raw or b"{}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidArguments(name or self.name, [{"path": "", "message": str(error)}]) from None
        if isinstance(given, list):
            given = dict(zip(self._names, given, strict=False))
        return self.registered.first_event({} if given is None else given)

    def invoke(self, call: Call, arguments: Event) -> AsyncIterator[TrailEntry]:
        return self.machines.run(self.name, call, self.extras["scopes"]).entries(arguments)


class Machines(Activation):
    """The machines of a hub, in one namespace."""

    __slots__ = ("_models", "_scopes", "_scopes_at", "hub", "making", "registered")

    def __init__(self, hub: Hub, namespace: str = NAMESPACE) -> None:
        self.source = self
        self.hub = hub
        self.namespace = namespace
        self.version = "1.0.0"
        self.description = "State machines"
        self.plugin_id = plugin_id(namespace, self.version)
        self.methods = {}
        self.resources = []
        self.prompts = {}
        self.completions = []
        self.reader = None
        self.hash = ""
        self._models: dict[str, Model | None] = {}
        self._scopes: dict[str, tuple[str, ...]] = {}
        self._scopes_at = ""
        self.registered: dict[str, RegisteredMachine] = {}
        self.making: dict[str, RegisteredMachine] = {}
        """With the one that is being registered: it may name itself."""

    def add(
        self,
        given: Any,
        functions: Mapping[str, Callable[..., Any]],
        model: Model | None = None,
        time_limit: float | None = None,
        max_transitions: int | None = None,
        *,
        checked: bool = True,
    ) -> Machine:
        """Take in a machine (see `Hub.register_machine`). Raises `MachineError`; then nothing has changed."""
        if isinstance(given, MachineBuilder):
            functions = {**given.functions, **functions}
            given = given.build()
        machine = given if isinstance(given, Machine) else read_machine(given)
        if not _ID.fullmatch(machine.id):
            raise MachineError(f"id: {machine.id!r} is no name: a letter, then letters, digits, '_' and '-'")
        if machine.id in self.registered:
            raise MachineError(f"id: there is a machine {machine.id!r} already")
        self.making = dict(self.registered)
        limits = RunLimits(max_transitions or MAX_TRANSITIONS, time_limit or TIME_LIMIT)
        try:
            made = RegisteredMachine(self, machine, functions, limits, model)
            if checked:
                check_machine(machine, made.actions)
        except RecursionError:
            raise MachineError(f"Machine {machine.id!r} is nested too deeply") from None
        self.registered[machine.id] = made
        self.methods[machine.id] = MachineMethod(self, made)
        self.hash = digest([method.hash for method in self.methods.values()])
        return machine

    # --- what actions need -------------------------------------------------------------------

    def get(self, name: str) -> RegisteredMachine:
        """Raises `MethodNotFound`."""
        found = self.registered.get(name) or self.making.get(name)
        if found is None:
            raise MethodNotFound(name, [])
        return found

    def run(self, name: str, call: Call, scopes: Collection[str], path: str = "") -> MachineRun:
        """A run of a machine, as a part of a call by somebody who has these scopes."""
        found = self.get(name)
        acts = {state: action.act for state, action in found.actions.items()}
        return MachineRun(found.machine, acts, call, found.limits, scopes, path)

    def model(self, machine: Machine, name: str | None) -> Model | None:
        """A model by its name, or the usual one; nothing if that is the caller's. Raises `ValueError`."""
        if name is None:
            return self.get(machine.id).model or (
                None if self.hub.chat is None else self.hub.chat.chosen_model
            )
        if name not in self._models:
            self._models[name] = choose_model(name)
        return self._models[name]

    def tool(self, name: str, allowed: tuple[str, ...]) -> Resolved:
        """A method that a model may call. Raises `MethodNotFound`."""
        found = self.hub.find(name)
        known = [path for path, _ in self.hub.methods()]
        if found is None or found.method.hidden or not self._is_allowed(found, allowed):
            near = [one for one in known if any(fnmatch.fnmatch(one, each) for each in allowed or ("*",))]
            raise MethodNotFound(name, near[:3])
        return found

    def _is_allowed(self, found: Resolved, allowed: tuple[str, ...]) -> bool:
        if allowed:
            return any(fnmatch.fnmatch(found.name, one) for one in allowed)
        return not found.method.extras.get("scopes") and not isinstance(found.method, MachineMethod)

    def check_method(self, name: str, path: str) -> None:
        """Raise `MachineError` if there is no such method; of a mounted server it may come later."""
        if self.hub.find(name) is None:
            known = [one for one, _ in self.hub.methods()]
            raise MachineError(f"{path}: unknown method {name!r}{did_you_mean(name, known)}")

    def scopes_of(self, registered: RegisteredMachine) -> tuple[str, ...]:
        """The scopes that a caller needs: all those of what it may call.

        What needs others, as it came later, is refused while it runs (see `nested`).
        """
        if self._scopes_at != self.hub.hash:
            self._scopes.clear()
            self._scopes_at = self.hub.hash
        found = self._scopes.get(registered.machine.id)
        if found is None:
            self._scopes[registered.machine.id] = ()  # it may name itself
            scopes: dict[str, None] = {}
            for name in sorted(registered.needs):
                for method in self._named(name):
                    scopes |= dict.fromkeys(method.extras.get("scopes", ()))
            found = self._scopes[registered.machine.id] = tuple(scopes)
        return found

    def _named(self, pattern: str) -> list[Method]:
        """The methods that a name, or a pattern, stands for; of a server that is not reached yet, any."""
        exact = self.hub.find(pattern)
        methods = [] if exact is None else [exact.method]
        methods += [one for name, one in self.hub.methods() if fnmatch.fnmatch(name, pattern)]
        fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        for path, activation in self.hub.activations():
            if f"{path}.".startswith(fixed) or fixed.startswith(f"{path}."):
                later = activation.unlisted("any")
                methods += [] if later is None else [later]
        return methods


def machines_of(hub: Hub, namespace: str = NAMESPACE) -> Machines | None:
    """The machines of a hub in a namespace, if there are any."""
    for path, activation in hub.activations():
        if path == namespace and isinstance(activation, Machines):
            return activation
    return None

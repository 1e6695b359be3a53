"""Machines of a hub: registered, each is a method, and so a tool, a command and an endpoint."""

import contextlib
import fnmatch
import re
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from midcall.activation import Activation, Method, digest
from midcall.call import Call
from midcall.errors import InvalidArguments, MethodNotFound
from midcall.fsm.actions import make_action
from midcall.fsm.checks import problems
from midcall.fsm.definition import (
    END,
    START,
    Event,
    Machine,
    MachineBuilder,
    MachineError,
    RunLimits,
    one_of,
    read,
    read_machine,
    without,
)
from midcall.fsm.run import BailedOut, MachineRun, TrailEntry, check
from midcall.hub import Hub
from midcall.json_schema import inlined, joined
from midcall.limits import near_matches
from midcall.models.base import Model, choose_model
from midcall.registry import Resolved

NAMESPACE = "machines"

MOST_FAULTS = 20
"""How many faults of an input are told."""

_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class MachineMethod(Method):
    """A machine, ready to run, as a method: a stream of the entries of its trail."""

    def __init__(
        self,
        machines: "Machines",
        given: Any,
        functions: dict[str, Any],
        model: Model | None,
        tags: Sequence[str] = (),
        **limits: Any,
    ) -> None:
        """`limits` are those of `RunLimits`, if they are not nothing. Raises `MachineError`."""
        self.parts: dict[str, MachineMethod] = {}
        """Machines that only this one runs."""
        if isinstance(given, MachineBuilder):
            made = [MachineMethod(machines, one, functions, model, tags, **limits) for one in given.parts]
            self.parts = {one.name: one for one in made}
            functions, given = {**given.functions, **functions}, given.build()
        machine = given if isinstance(given, Machine) else read_machine(given)
        if not _ID.fullmatch(machine.id):
            raise MachineError(
                f"id: {machine.id!r} is not a name: it must be a letter, then letters, digits, '_' and '-'"
            )
        self.machines = machines
        self.machine = machine
        self._tags = tuple(tags)
        self.functions = functions
        self.model = model
        self.limits = read({key: one for key, one in limits.items() if one is not None}, RunLimits, "")
        params = {"properties": {}, **machine.input_schema}
        returns = inlined(msgspec.json.schema(TrailEntry))
        self.describe(machine.id, machine.description, params, returns, self.invoke, streaming=True)
        self.wants_source = True  # for the methods that it calls
        self.hash = digest([machine.hash, self.description, params])
        self.actions = {
            state.id: make_action(self, state, f"states[{n}]", machine.ends_from(state.id))
            for n, state in enumerate(machine.states)
        }
        for problem in problems(machine, self.actions):
            raise MachineError(f"Machine {machine.id!r}: {problem}")

    @property
    def extras(self) -> dict[str, Any]:  # type: ignore[override]
        """With the scopes of all that it may call, as far as that is there by now.

        What needs others, as it came later, is refused while it runs (see `call_within`).
        """
        if self not in self.machines.scopes:
            scopes, seen, waiting = set[str](), set[Method](), list[Method]([self])
            while waiting:
                method = waiting.pop()
                if not isinstance(method, MachineMethod):
                    scopes.update(method.extras.get("scopes", ()))
                elif method not in seen:
                    seen.add(method)
                    waiting += [one for name in set(method.needs) for one in method.machines.named(name)]
            self.machines.scopes[self] = tuple(sorted(scopes))
        return {"scopes": self.machines.scopes[self], "tags": self._tags}

    @property
    def tags(self) -> tuple[str, ...]:
        """Those that it was registered with, without a look at what it calls."""
        return self._tags

    @property
    def needs(self) -> list[str]:
        """The names, or patterns, of the methods that it may call."""
        return [name for action in self.actions.values() for name in action.needs]

    @property
    def output(self) -> dict[str, Any]:
        ends = self.machine.event_schema(*self.machine.ways_to(END))
        return one_of("anyOf", *joined([ends, inlined(msgspec.json.schema(BailedOut))]))

    def whole(self, contents: Sequence[Any]) -> Any:
        """The event that led to `end`."""
        return msgspec.to_builtins(contents[-1])["event"]

    def read_arguments(self, raw: bytes, name: str = "") -> Event:
        try:
            given = msgspec.json.decode((self._by_name(raw) if raw.lstrip()[:1] == b"[" else raw) or b"{}")
        except (ValueError, RecursionError) as error:
            raise InvalidArguments(name or self.name, [{"path": "", "message": str(error)}]) from None
        return self.first_event({} if given is None else given)

    def first_event(self, given: Any) -> Event:
        """The event that begins a run; without an `id`, the one that fits. Raises `InvalidArguments`."""
        ways, events = self.machine.ways_from(START), [given]
        if isinstance(given, dict) and (len(ways) == 1 or "id" not in given):
            events = [{**given, "id": list(way.id)} for way in ways]
        faults = [check(self.machine, START, one) for one in events]
        if faults.count(None) == 1:
            return events[faults.index(None)]  # type: ignore[no-any-return]
        told = [{"path": "", "message": one or "Several transitions fit: an id says which"} for one in faults]
        if len(ways) == 1 and isinstance(given, dict):
            with contextlib.suppress(ValueError):  # if it is too much to be checked, that was told
                told = self.machine.checked[ways[0].id].faults(without(given, "id"), MOST_FAULTS) or told
        raise InvalidArguments(self.name, told)

    def within(self, scopes: Container[str], name: str) -> Callable[[Call, Any], Any]:
        return partial(self.invoke, held=scopes)  # each of the calls that it makes is checked by itself

    def invoke(self, call: Call, arguments: Event, held: Container[str] | None = None) -> Any:
        """With those scopes alone that are `held`, if it is a part of another run."""
        scopes = [one for one in self.extras["scopes"] if held is None or one in held]
        return MachineRun(self, call, scopes).entries(arguments)


class Machines(Activation):
    """The machines of a hub, in one namespace."""

    def __init__(self, hub: Hub, namespace: str = NAMESPACE) -> None:
        self.begin(namespace, "State machines")
        self.hub = hub
        self._models: dict[str, Model | None] = {}
        self.scopes: dict[MachineMethod, tuple[str, ...]] = {}
        """Those that a caller needs, until the hub changes."""

    def add(
        self,
        given: Any,
        functions: dict[str, Any],
        model: Model | None = None,
        tags: Sequence[str] = (),
        **limits: Any,
    ) -> None:
        """Take in a machine, as `MachineMethod` takes it. Raises `MachineError`: nothing has changed."""
        try:
            made = MachineMethod(self, given, functions, model, tags, **limits)
        except RecursionError:
            raise MachineError("The machine is nested too deeply") from None
        if made.name in self.methods:
            raise MachineError(f"id: the machine {made.name!r} already exists")
        if not self.methods:
            self.hub.watch(lambda _: self.scopes.clear())
        self.methods[made.name] = made
        self.hash = digest([method.hash for method in self.methods.values()])

    async def close(self) -> None:
        while self._models:
            _, model = self._models.popitem()
            if model is not None:
                await model.close()

    # --- what actions need -------------------------------------------------------------------

    def model(self, method: MachineMethod, name: str | None) -> Model | None:
        """A model by its name, or the usual one; nothing if that is the caller's. Raises `ValueError`."""
        if name is None:
            chat = getattr(self.hub.root, "chat", None) or self.hub.chat
            return method.model or (None if chat is None else chat.chosen_model)
        if name not in self._models:
            self._models[name] = choose_model(name)
        return self._models[name]

    def offered(self, allowed: Sequence[str]) -> list[dict[str, Any]]:
        """The methods that a model may call now, as MCP lists tools."""
        return [
            {"name": name, "description": one.description, "inputSchema": one.params}
            for name, one in self.hub.methods()
            if _is_allowed(name, one, allowed)
        ]

    def tool(self, name: str, allowed: Sequence[str]) -> Resolved:
        """A method that a model may call. Raises `MethodNotFound`."""
        found = self.hub.find(name)
        if found is None or found.method.hidden or not _is_allowed(found.name, found.method, allowed):
            raise MethodNotFound(name, near_matches(name, [one["name"] for one in self.offered(allowed)]))
        return found

    def named(self, pattern: str) -> Iterator[Method]:
        """The methods that a name, or a pattern, stands for; of a server that is not reached yet, any."""
        exact = self.hub.find(pattern)
        if exact is not None:
            yield exact.method
        yield from (one for name, one in self.hub.methods() if fnmatch.fnmatch(name, pattern))
        fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        for path, activation in self.hub.activations():
            later = activation.unlisted("any")
            if later is not None and (f"{path}.".startswith(fixed) or fixed.startswith(f"{path}.")):
                yield later


def machines_of(hub: Hub) -> dict[str, tuple[str, MachineMethod]]:
    """Each machine of a hub, and its path, by its id; by its path if there is one of that id before."""
    found: dict[str, tuple[str, MachineMethod]] = {}
    for path, method in hub.methods():
        if isinstance(method, MachineMethod):
            found[path if method.name in found else method.name] = (path, method)
    return found


def _is_allowed(name: str, method: Method, allowed: Sequence[str]) -> bool:
    if allowed:
        return any(fnmatch.fnmatch(name, one) for one in allowed)
    return not isinstance(method, MachineMethod) and not method.extras.get("scopes")

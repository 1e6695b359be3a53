"""A run: from an event to `start` to one to `end`, by transitions that the machine allows.

What an action gives is held against the machine: if it is no event that may follow, it goes back to the state
with the reason, a few times. Whatever happens, a run ends: with an event that a transition to `end` allows,
or with a bail-out, which needs none. Everything that an action does is a step or a question of the call that
runs it, so that a run that is gone on with, elsewhere or after a crash, does nothing twice.
"""

import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from midcall import steps
from midcall.ask import Ask
from midcall.call import Call
from midcall.errors import Diverged, MidcallError, TimedOut
from midcall.fsm.definition import END, START, Event, Machine, State, Transition, did_you_mean, without
from midcall.items import to_builtins, to_json

if TYPE_CHECKING:
    from midcall.fsm.serve import MachineMethod

TRIES = 3
"""How often a state may give something that is no event of it."""

MOST_BYTES = 64 * 1024 * 1024
"""How large the trail of a run may be."""

DEEPEST = 16
"""How deep machines, and tools that are machines, may be within each other; each counts twice."""

MOST_WITHIN = 5000
"""How many transitions and tool calls there may be within one state of a run, at all depths."""

Reason: TypeAlias = Literal[
    "max-retries-exceeded", "llm-fatal-error", "action-failed", "timeout", "too-many-transitions"
]


class BadOutput(MidcallError):
    """What a state gave is no event. It may try again, and is told why."""

    code = "bad_output"

    def __init__(self, message: str, output: Any = None) -> None:
        super().__init__(message)
        self.output = output


class BailOut(MidcallError):
    """The run cannot go on."""

    code = "bail_out"

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BailedOut(Struct, frozen=True):
    """The event with which a run ends that cannot go on."""

    id: list[str]
    bail_out: bool
    reason: Reason
    message: str


class TrailEntry(Struct, frozen=True, omit_defaults=True, rename={"begin": "from", "end": "to"}):
    """One entry of a trail. With `error`, it is something that was refused."""

    begin: str
    end: str | None
    event: Any
    error: str | None = None


class Moment:
    """Where a run is, for the action of its state and for functions."""

    def __init__(self, run: "MachineRun", state: State, event: Event, problem: str = "") -> None:
        self.run = run
        self.machine = run.machine
        self.call = run.call
        self.ask = run.ask
        self.state = state
        self.event = event
        """What has led here."""
        self.problem = problem
        """Why what the state gave before was refused."""

    @property
    def trail(self) -> tuple[TrailEntry, ...]:
        """All that has happened: a copy."""
        return tuple(msgspec.structs.replace(one, event=to_builtins(one.event)) for one in self.run.trail)

    @property
    def ways(self) -> tuple[Transition, ...]:
        """The transitions that may be taken here."""
        return self.machine.ways_from(self.state.id)


class MachineRun:
    """One run of a machine, as a part of a call."""

    def __init__(self, method: "MachineMethod", call: Call, scopes: Collection[str]) -> None:
        """`scopes` are those that whoever makes the call is known to have."""
        self.machine = method.machine
        self.scopes = scopes
        self.call = call
        self.ask = Ask(call)
        self.trail: list[TrailEntry] = []
        self._actions, self._limits = method.actions, method.limits

    async def entries(self, event: Event) -> AsyncIterator[TrailEntry]:
        """The trail, as it comes about, from an event that fits; the last entry leads to `end`."""
        self._until = self._begin()
        entry = TrailEntry(START, event["id"][1], event)
        refused = taken = size = 0
        while True:
            self.trail.append(entry)
            size += len(to_json(entry))
            yield entry
            if entry.error is None:
                at, event, refused, taken = str(entry.end), entry.event, 0, taken + 1
            else:
                refused += 1
            if at == END:
                return
            tries = TRIES if self.machine.ways_from(at) and self._actions[at].may_try_again else 1
            if refused >= tries:
                entry = _bail_out(at, "max-retries-exceeded", entry.error or "")
            elif taken >= self._limits.max_transitions or size > MOST_BYTES:
                entry = _bail_out(at, "too-many-transitions", f"After {taken} transitions, with {size} bytes")
            else:
                entry = await self._next(at, event)

    async def _next(self, at: str, event: Event) -> TrailEntry:
        """What comes of a state: one step in the journal, whatever it does."""
        trace, work = self.call.own_trace, partial(self._work, at, event)
        if not trace.kept:
            return await work()
        return msgspec.convert(await steps.once(trace, f"state {at}", work), TrailEntry)

    async def _work(self, at: str, event: Event) -> TrailEntry:
        late, work = f"The run took longer than {self._limits.time_limit:g} s", partial(self._act, at, event)
        try:
            with going_deeper():
                return await steps.within(self.call.own_trace, self._until, late, work)
        except BailOut as error:
            return _bail_out(at, error.reason, steps.said(error))
        except TimedOut as error:  # of all that comes here, only the limit of the run
            return _bail_out(at, "timeout", str(error))

    def _begin(self) -> float:
        """When the run must have ended. If it began with another definition, that is the end of it."""
        trace = self.call.own_trace
        if not trace.kept:
            return time.time() + self._limits.time_limit
        what = f"machine {self.machine.id}"
        now = [time.time(), self.machine.structure(), sorted(self.scopes)]
        began = steps.value(trace, what, lambda: now)
        self.scopes = began[2]  # what came later, and needs others, is not for this run
        if changes := self.machine.changes(began[1]):
            trace.diverged = Diverged(f"{what} as it was", f"one where {'; '.join(changes)}", "")
            raise trace.diverged
        return max(float(began[0]), trace.created) + self._limits.time_limit  # a fork has its time anew

    async def _act(self, at: str, event: Event) -> TrailEntry:
        """What the state comes to; or what was refused, and why. Raises `BailOut`."""
        action = self._actions[at]
        self.ask.progress(f"{self.machine.id}: {at}")
        try:
            given = await action.act(Moment(self, action.state, event, self.trail[-1].error or ""))
            event = in_pairs(self.machine, at, to_builtins(given))
            problem = check(self.machine, at, event)
            if problem is None and event["id"][1] != END:
                self._actions[event["id"][1]].accept(event)
        except BadOutput as error:
            return TrailEntry(at, None, error.output, f"{error}. {_legal_ids(self.machine, at)}")
        return TrailEntry(at, None if problem else event["id"][1], event, problem)


def _bail_out(at: str, reason: Reason, message: str) -> TrailEntry:
    return TrailEntry(at, END, to_builtins(BailedOut([at, END], True, reason, message)))


_nesting: ContextVar[tuple[int, list[int]]] = ContextVar("midcall_machines")
"""How deep this is in a run, and how much there may still be in all that runs within it."""


@contextmanager
def going_deeper() -> Iterator[None]:
    """Something is done within a run. Raises `BailOut` if that is too deep, or too much with all the rest."""
    depth, left = _nesting.get((-1, [MOST_WITHIN + 1]))
    left[0] -= 1
    if depth == DEEPEST or left[0] < 0:
        most = f"Machines may be {DEEPEST} deep, and do {MOST_WITHIN} things within"
        raise BailOut("too-many-transitions", most)
    token = _nesting.set((depth + 1, left))
    try:
        yield
    finally:
        _nesting.reset(token)


def in_pairs(machine: Machine, at: str, event: Any) -> Any:
    """An event as all are; one whose id is `tool_calls` or `tool_results` has another form, and no states."""
    if not isinstance(event, dict) or event.get("id") not in ("tool_calls", "tool_results"):
        return event
    key, servicing = event["id"], {one.id for one in machine.states if one.action == "tools"}
    ends = [end for end in machine.ends_from(at) if key == "tool_results" or end in servicing]
    if len(ends) != 1:
        return event
    left = {name: one for name, one in event.items() if name not in ("calls", "results")}
    return {key: event.get(key.removeprefix("tool_")), **left, "id": [at, ends[0]]}


def check(machine: Machine, at: str, event: Any) -> str | None:
    """Why something is no event that may follow here, with the ids that are; nothing if it is one."""
    if not isinstance(event, dict):
        return f"An event is an object with an id. {_legal_ids(machine, at)}"
    taken = event.get("id")
    way = next((way for way in machine.ways_from(at) if list(way.id) == taken), None)
    if way is None:
        end = taken[1] if isinstance(taken, list) and len(taken) == 2 else None
        near = did_you_mean(end, machine.ends_from(at)) if isinstance(end, str) else ""
        return f"No transition has the id {taken!r:.200}{near}. {_legal_ids(machine, at)}"
    if "bail_out" in event:
        return "bail_out is for runs that give up, and no field of an event"
    schema = machine.checked[way.id]
    try:
        fault = schema.fault(without(event, "id"))
        if fault is not None and b'"id"' in msgspec.json.encode(machine.fields(way)):
            fault = schema.fault(event) and fault  # it may speak of the `id` itself
    except ValueError as error:
        fault = str(error)
    return None if fault is None else f"The event for {list(way.id)} does not fit its schema: {fault}"


def _legal_ids(machine: Machine, at: str) -> str:
    ids = ", ".join(f'["{at}", "{end}"]' for end in machine.ends_from(at))
    return f"Legal ids here: {ids or 'none'}"

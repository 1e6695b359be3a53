"""A run: from an event to `start` to one to `end`, by transitions that the machine allows.

What an action gives is held against the machine: if it is no event that may follow, it goes back to the state
with the reason, a few times. Whatever happens, a run ends: with an event that a transition to `end` allows,
or with a bail-out, which needs none. Everything that an action does is a step or a question of the call that
runs it, so that a run that is gone on with, elsewhere or after a crash, does nothing twice.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from midcall import steps
from midcall.ask import Ask
from midcall.call import Call
from midcall.errors import Diverged, MidcallError
from midcall.fsm.definition import END, START, Event, Machine, State, Transition, changes, did_you_mean
from midcall.fsm.nested import once, trace_of
from midcall.items import to_builtins
from midcall.json_schema import JsonSchema, compiled

TRIES = 3
"""How often a state may give something that is no event of it."""

MAX_TRANSITIONS = 100
TIME_LIMIT = 7 * 24 * 3600.0
"""What a run is limited to, if nothing else is said: transitions, and seconds."""

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

    def __init__(self, reason: Reason, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class TrailEntry(Struct, frozen=True, omit_defaults=True, rename={"begin": "from", "end": "to"}):
    """One entry of a trail. With `error`, it is something that was refused."""

    begin: str
    end: str | None
    event: Any
    error: str | None = None


class RunLimits(Struct, frozen=True):
    """How long a run may be."""

    transitions: int = MAX_TRANSITIONS
    seconds: float = TIME_LIMIT


class Moment:
    """Where a run is, for the action of its state."""

    def __init__(self, run: "MachineRun", state: State, event: Event, problem: str = "") -> None:
        self.run = run
        self.machine = run.machine
        self.state = state
        self.event = event
        """What has led here."""
        self.problem = problem
        """Why what the state gave before was refused."""

    @property
    def ask(self) -> Ask:
        return self.run.ask

    @property
    def call(self) -> Call:
        return self.run.call

    @property
    def trail(self) -> Sequence[TrailEntry]:
        """All that has happened."""
        return tuple(self.run.trail)

    @property
    def ways(self) -> tuple[Transition, ...]:
        return self.machine.ways_from(self.state.id)

    def check_goes_on(self) -> None:
        """Raise if the call is not to go on here, whatever an action has made of that."""
        if self.call.trace is not None and self.call.trace.diverged is not None:
            raise self.call.trace.diverged
        if self.call.dropped or self.call.reason is not None:
            raise asyncio.CancelledError

    def to(self, end: str | None, fields: Mapping[str, Any]) -> Event:
        """An event to a state; without one, by the only way that there is. Raises `BadOutput`."""
        if end is None:
            ends = [way.id[1] for way in self.ways]
            if len(ends) != 1:
                raise BadOutput(f"Which of {', '.join(ends) or 'no transitions'} is meant?", dict(fields))
            end = ends[0]
        return {**fields, "id": [self.state.id, end]}


Act: TypeAlias = Callable[[Moment], Any]
"""Does what a state is for: an awaitable of the event that it comes to."""


class MachineRun:
    """One run of a machine, as a part of a call."""

    def __init__(
        self,
        machine: Machine,
        acts: Mapping[str, Act],
        call: Call,
        limits: RunLimits,
        scopes: Collection[str],
        path: str = "",
    ) -> None:
        """`scopes` are those that whoever makes the call is known to have."""
        self.machine = machine
        self.scopes = scopes
        self.call = call
        self.ask = Ask(call)
        self.trail: list[TrailEntry] = []
        self._acts = acts
        self._limits = limits
        self.path = path or machine.id
        self._until = 0.0
        self._taken = 0

    async def entries(self, event: Event) -> AsyncIterator[TrailEntry]:
        """The trail, as it comes about, from an event that fits; the last entry leads to `end`."""
        self._until = self._begin()
        entry = TrailEntry(START, event["id"][1], event)
        refused = 0
        while True:
            self.trail.append(entry)
            yield entry
            if entry.error is None:
                at, event, refused = str(entry.end), entry.event, 0
                self._taken += 1
            else:
                refused += 1
            if at == END:
                return
            if refused == TRIES or (refused and not self.machine.ways_from(at)):
                entry = _bail_out(at, BailOut("max-retries-exceeded", entry.error or ""))
            elif self._taken >= self._limits.transitions:
                many = f"After {self._limits.transitions} transitions"
                entry = _bail_out(at, BailOut("too-many-transitions", many))
            else:
                entry = await self._next(at, event)

    async def _next(self, at: str, event: Event) -> TrailEntry:
        """What comes of a state: one step in the journal, whatever it does."""
        trace = trace_of(self.call)
        if not trace.kept:
            return await self._work(at, event)
        made = await once(trace, f"state {at}", lambda: self._work(at, event))
        return msgspec.convert(made, TrailEntry)

    async def _work(self, at: str, event: Event) -> TrailEntry:
        limit = asyncio.timeout(self._until - time.time())
        try:
            with going_deeper():
                async with limit:
                    return await self._act(at, event)
        except BailOut as bail_out:
            return _bail_out(at, bail_out)
        except TimeoutError:
            if not limit.expired():
                raise
            return _bail_out(at, BailOut("timeout", f"The run took longer than {self._limits.seconds:g} s"))

    def _begin(self) -> float:
        """When the run must have ended. If it began with another definition, that is the end of it."""
        trace = trace_of(self.call)
        if not trace.kept:
            return time.time() + self._limits.seconds
        structure = to_builtins(self.machine.structure())
        began = steps.value(trace, f"machine {self.machine.id}", lambda: [time.time(), structure])
        if began[1] != structure:
            changed = "; ".join(changes(began[1], structure))
            trace.diverged = Diverged(f"machine {self.machine.id}", changed, "")
            raise trace.diverged
        return float(began[0]) + self._limits.seconds

    async def _act(self, at: str, event: Event) -> TrailEntry:
        """What the state comes to; or what was refused, and why. Raises `BailOut`."""
        state = self.machine.state(at)
        problem = self.trail[-1].error or ""
        self.ask.progress(f"{self.path}: {at}")
        try:
            outcome = to_builtins(await self._acts[at](Moment(self, state, event, problem)))
        except BadOutput as error:
            return TrailEntry(at, None, error.output, str(error))
        return TrailEntry(at, _end_of(outcome), outcome, check(self.machine, at, outcome))


def _bail_out(at: str, why: BailOut) -> TrailEntry:
    event = {"id": [at, END], "bail_out": True, "reason": why.reason}
    if str(why) != why.reason:
        event["message"] = str(why)
    return TrailEntry(at, END, event)


class _Nesting:
    """How much a run has begun, with all that runs within it."""

    __slots__ = ("depth", "left")

    def __init__(self, depth: int, left: list[int]) -> None:
        self.depth = depth
        self.left = left


_nesting: ContextVar[_Nesting | None] = ContextVar("midcall_machines", default=None)


@contextmanager
def going_deeper() -> Iterator[None]:
    """Something is done within a run. Raises `BailOut` if that is too deep, or too much with all the rest."""
    around = _nesting.get()
    here = _Nesting(0, [MOST_WITHIN]) if around is None else _Nesting(around.depth + 1, around.left)
    if around is not None:
        here.left[0] -= 1
    if here.depth > DEEPEST or here.left[0] < 0:
        raise BailOut(
            "too-many-transitions", f"Machines may be {DEEPEST} deep, and do {MOST_WITHIN} things within"
        )
    token = _nesting.set(here)
    try:
        yield
    finally:
        _nesting.reset(token)


def check(machine: Machine, at: str, event: Any) -> str | None:
    """Why something is no event that may follow here, with the ids that are; nothing if it is one."""
    ways = machine.ways_from(at)
    legal = ", ".join(f'["{begin}", "{end}"]' for begin, end in (way.id for way in ways)) or "none"
    if not isinstance(event, dict):
        return f"An event is an object with an id, one of: {legal}"
    taken = event.get("id")
    way = next((way for way in ways if list(way.id) == taken), None)
    if way is None:
        near = ""
        if isinstance(taken, list) and len(taken) == 2 and isinstance(taken[1], str):
            near = did_you_mean(taken[1], [way.id[1] for way in ways])
        return f"No transition has the id {taken!r}{near}. Legal ids here: {legal}"
    try:
        fault = _compiled(machine, way).fault(event)
    except ValueError as error:
        fault = str(error)
    return None if fault is None else f"The event for {list(way.id)} does not fit its schema: {fault}"


def _compiled(machine: Machine, way: Transition) -> JsonSchema:
    found: dict[Any, JsonSchema] = machine.__dict__.setdefault("compiled", {})
    if way.id not in found:
        found[way.id] = compiled(machine.event_schema(way))
    return found[way.id]


def _end_of(outcome: Any) -> str | None:
    match outcome:
        case {"id": [_, str(end)]}:
            return end
    return None

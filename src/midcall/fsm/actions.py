"""Actions: what can be done in a state. Each reads its configuration, and makes the next event.

    model     a model chooses the transition, and fills in its event
    tools     the tool calls of an event are made, in one batch
    ask       a person chooses the transition, and fills in its event
    method    one method of the hub is called
    function  a Python function makes an event of an event
    machine   another machine is run, from its start to its end
    parallel  several of these at once, joined

What is finished is never done again when a run goes on from its journal: it is a step of the call, or has
steps and questions of its own.
"""

import asyncio
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import msgspec

from midcall import steps
from midcall.errors import AskError, MidcallError, TimedOut
from midcall.fsm.conversation import conversation, read_event, read_json
from midcall.fsm.definition import (
    END,
    Definition,
    Event,
    Machine,
    MachineError,
    State,
    Transition,
    did_you_mean,
    read,
)
from midcall.fsm.nested import call_within, once, said, trace_of
from midcall.fsm.run import BadOutput, BailOut, Moment, going_deeper
from midcall.items import to_json
from midcall.json_schema import compiled, inlined
from midcall.models.base import Model, ModelRequest, TextPart
from midcall.questions import Option

if TYPE_CHECKING:
    from midcall.fsm.serve import Machines

T = TypeVar("T")

Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]

TOOL_SECONDS = 30.0
"""How long a batch of tool calls may take, if its state does not say."""

MOST_CALLS = 100
"""How many tool calls one event may have."""


class Action:
    """What a state does. `value` is what it comes to by itself, as in a branch; `act` is that as an event."""

    config_type: ClassVar[type[Definition]]

    def __init__(self, machines: "Machines", machine: Machine, state: State, path: str) -> None:
        """`path` is where it is written. Raises `MachineError`."""
        self.machines = machines
        self.machine = machine
        self.state = state
        self.config: Any = read(state.config, self.config_type, f"{path}.config")
        ends = [way.id[1] for way in machine.ways_from(state.id)]
        for key in ("success_to", "failure_to"):
            end = getattr(self.config, key, None)
            if end is not None and end not in ends:
                near = did_you_mean(end, ends)
                raise MachineError(f"{path}.config.{key}: no transition leads to {end!r}{near}")
        self.check(path)

    def check(self, path: str) -> None:
        """Raise `MachineError` if the configuration names what is not there."""

    @property
    def needs(self) -> Iterable[str]:
        """The names of the methods that it may call."""
        return ()

    @property
    def gives(self) -> dict[str, Any] | None:
        """The schema of what it comes to, if that is known."""
        return None

    async def value(self, moment: Moment) -> Any:
        """What it comes to. Raises what went wrong."""
        raise NotImplementedError

    async def act(self, moment: Moment) -> Event:
        """The next event. Raises `BadOutput` or `BailOut`."""
        failure_to: str | None = getattr(self.config, "failure_to", None)
        try:
            value = await limited(moment, getattr(self.config, "timeout", None), partial(self.value, moment))
        except (BailOut, BadOutput):
            raise
        except Exception as error:  # of an author's function, or of anybody's tool
            moment.check_goes_on()
            if failure_to is None:
                raise BailOut("action-failed", f"{self.state.id}: {said(error)}") from error
            return moment.to(failure_to, {"error": said(error)})
        return self.event(moment, value)

    def event(self, moment: Moment, value: Any) -> Event:
        """The event that says what it came to."""
        failure_to: str | None = getattr(self.config, "failure_to", None)
        chosen: str | None = getattr(self.config, "success_to", None)
        ends = [way.id[1] for way in moment.ways if way.id[1] != failure_to]
        if chosen is None and len(ends) == 1:
            chosen = ends[0]
        return moment.to(chosen, value if isinstance(value, dict) else {"result": value})


async def beside(moment: Moment, what: str, work: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Do several things at once. What each came to is kept, and not done again for the sake of the others."""
    trace = trace_of(moment.call)
    places = [trace.place() if trace.kept else "" for _ in work]

    async def one(place: str, work: Callable[[], Awaitable[Any]]) -> Any:
        with trace.nested(place):
            return await once(trace, what, work)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*pair)) for pair in zip(places, work, strict=True)]
    return [task.result() for task in tasks]


async def limited(moment: Moment, seconds: float | None, work: Callable[[], Awaitable[T]]) -> T:
    """Do something within so many seconds, counted from when it first began. Raises `TimedOut`."""
    if seconds is None:
        return await work()
    trace = trace_of(moment.call)
    until = steps.value(trace, "limit", lambda: time.time() + seconds)
    limit = asyncio.timeout(until - time.time())
    try:
        async with limit:
            return await work()
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOut(f"It took longer than {seconds:g} s") from None


# --- model ------------------------------------------------------------------------------------------


class ModelConfig(Definition, frozen=True):
    """Which model: by default that of the hub, or else the caller's."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None


class ModelAction(Action):
    config_type = ModelConfig

    def check(self, path: str) -> None:
        try:
            self.machines.model(self.machine, self.config.model)
        except ValueError as error:
            raise MachineError(f"{path}.config.model: {error}") from None

    async def act(self, moment: Moment) -> Event:
        return read_event(await self._say(moment, moment.ways))

    async def value(self, moment: Moment) -> Any:
        text = await self._say(moment, ())
        try:
            return read_json(text)
        except ValueError:
            return text

    async def _say(self, moment: Moment, ways: tuple[Transition, ...]) -> str:
        request = conversation(moment, ways, self.config.max_tokens, self.config.temperature)
        model = self.machines.model(self.machine, self.config.model)
        if model is None:
            return await _sampled(moment, request)

        async def say() -> Any:
            try:
                return {"text": await _said_by(model, request, moment)}
            except Exception as error:  # noqa: BLE001  a model of anybody's
                return {"error": said(error)}

        say.__qualname__ = f"model in {self.state.id}"
        answer = await steps.run(trace_of(moment.call), say, (), {}, retry_safe=True)
        if "error" in answer:
            raise BailOut("llm-fatal-error", answer["error"])
        return str(answer["text"])


async def _said_by(model: Model, request: ModelRequest, moment: Moment) -> str:
    """What a model says; each piece is a line of the call's log too, for whoever wants to see it grow."""
    text = ""
    async for event in model.stream(request):
        if isinstance(event, TextPart):
            text += event.text
            moment.ask.log(event.text, "debug", {"state": moment.state.id})
    return text


async def _sampled(moment: Moment, request: ModelRequest) -> str:
    """What the caller's model says."""
    system = request.system or ""
    if request.schema is not None:
        system += f"\n\nThe JSON Schema of the events: {to_json(request.schema).decode()}"
    messages = [
        {"role": one.role, "content": {"type": "text", "text": one.content}} for one in request.messages
    ]
    asking = moment.ask.sample(
        messages,
        system=system,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        key=moment.state.id,
    )
    try:
        return (await asking).text
    except MidcallError as error:
        raise BailOut("llm-fatal-error", said(error)) from error


# --- tools ------------------------------------------------------------------------------------------


class ToolsConfig(Definition, frozen=True):
    """Which tools: those named, or all that need no scope. `timeout` is for all calls of an event."""

    tools: tuple[str, ...] = ()
    parallel: bool = False
    timeout: Seconds = TOOL_SECONDS


class BatchCall(Definition, frozen=True):
    """A tool call of an event."""

    id: str
    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class ToolsAction(Action):
    config_type = ToolsConfig

    @property
    def needs(self) -> Iterable[str]:
        return self.config.tools  # type: ignore[no-any-return]

    async def act(self, moment: Moment) -> Event:
        return moment.to(None, {"tool_results": await self.value(moment)})

    async def value(self, moment: Moment) -> list[dict[str, Any]]:
        event = moment.event
        calls = self._read(event.get("tool_calls", event.get("calls")))
        until = steps.value(trace_of(moment.call), "limit", lambda: time.time() + self.config.timeout)
        work = [partial(self._call, moment, one, until) for one in calls]
        if not self.config.parallel:
            return [await once(trace_of(moment.call), "tool", one) for one in work]
        return await beside(moment, "tool", work)

    def _read(self, given: Any) -> list[BatchCall]:
        if not isinstance(given, list) or len(given) > MOST_CALLS:
            raise BadOutput(f"tool_calls is a list of at most {MOST_CALLS} calls", given)
        try:
            return msgspec.convert(given, list[BatchCall])
        except msgspec.ValidationError as error:
            raise BadOutput(f"tool_calls: {error}", given) from None

    async def _call(self, moment: Moment, call: BatchCall, until: float) -> dict[str, Any]:
        limit = asyncio.timeout(until - time.time())
        try:
            found = self.machines.tool(call.name, self.config.tools)
            with going_deeper():
                async with limit:
                    given = to_json(call.arguments)
                    result = await call_within(moment.call, found, given, moment.run.scopes)
        except TimeoutError as error:
            late = f"The batch took longer than {self.config.timeout:g} s"
            return {"call_id": call.id, "success": False, "error": late if limit.expired() else said(error)}
        except Exception as error:  # noqa: BLE001  whatever it is, the model is told
            moment.check_goes_on()
            return {"call_id": call.id, "success": False, "error": said(error)}
        return {"call_id": call.id, "success": True, "result": result}


# --- ask --------------------------------------------------------------------------------------------

_FIELD = re.compile(r"\{(\w+)\}")


class AskConfig(Definition, frozen=True):
    """What the person is told, with `{name}` for a field of the event, and how many seconds they have."""

    message: str = ""
    timeout: Seconds | None = None


class AskAction(Action):
    config_type = AskConfig

    async def value(self, moment: Moment) -> str:
        return await moment.ask.prompt(self._message(moment), key=self.state.id, timeout=self._seconds)

    async def act(self, moment: Moment) -> Event:
        ways, message = moment.ways, self._message(moment)
        try:
            way = ways[0] if len(ways) == 1 else await self._choose(moment, ways, message)
            schema = inlined(moment.machine.fields(way))
            if schema.get("properties") or compiled(schema).fault({}) is not None:
                return moment.to(way.id[1], await self._fill_in(moment, way, schema, message))
            if len(ways) > 1:
                return moment.to(way.id[1], {})
            agreed = await moment.ask.confirm(message, key=self.state.id, timeout=self._seconds)
            return moment.to(way.id[1], {"confirmed": agreed})
        except AskError as error:
            moment.check_goes_on()
            raise BailOut(
                "timeout" if isinstance(error, TimedOut) else "action-failed", said(error)
            ) from error

    @property
    def _seconds(self) -> Any:
        return self.config.timeout or "default"

    def _message(self, moment: Moment) -> str:
        message = self.config.message or self.state.description or self.state.id
        message = _FIELD.sub(lambda found: str(moment.event.get(found[1], found[0])), message)
        return f"{message}\n\n{moment.problem}" if moment.problem else message

    async def _choose(self, moment: Moment, ways: tuple[Transition, ...], message: str) -> Transition:
        options = [Option(way.id[1], way.label or way.id[1], way.description or None) for way in ways]
        chosen = await moment.ask.select(message, options, key=self.state.id, timeout=self._seconds)
        return next(way for way in ways if way.id[1] == chosen)

    async def _fill_in(
        self, moment: Moment, way: Transition, schema: dict[str, Any], message: str
    ) -> dict[str, Any]:
        key = f"{self.state.id}-{way.id[1]}"
        return await moment.ask.form(schema, way.description or message, key=key, timeout=self._seconds)


# --- method, function, machine ----------------------------------------------------------------------


class MethodConfig(Definition, frozen=True):
    """Which method, and arguments beside the fields of the event that it takes."""

    method: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    success_to: str | None = None
    failure_to: str | None = None
    timeout: Seconds | None = None


class MethodAction(Action):
    config_type = MethodConfig

    def check(self, path: str) -> None:
        self.machines.check_method(self.config.method, f"{path}.config.method")

    @property
    def needs(self) -> Iterable[str]:
        return (self.config.method,)

    @property
    def gives(self) -> dict[str, Any] | None:
        found = self.machines.hub.find(self.config.method)
        return None if found is None or found.method.streaming else found.method.returns

    async def value(self, moment: Moment) -> Any:
        found = self.machines.hub.resolve(self.config.method)
        known = found.method.params.get("properties", {})
        fields = {key: value for key, value in moment.event.items() if key in known and key != "id"}
        given = to_json({**fields, **self.config.arguments})
        return await call_within(moment.call, found, given, moment.run.scopes)


class FunctionConfig(Definition, frozen=True):
    """Which function, by the name that it was registered with."""

    function: str
    timeout: Seconds | None = None


class FunctionAction(Action):
    config_type = FunctionConfig

    def check(self, path: str) -> None:
        functions = self.machines.get(self.machine.id).functions
        if self.config.function not in functions:
            near = did_you_mean(self.config.function, list(functions))
            raise MachineError(f"{path}.config.function: unknown function {self.config.function!r}{near}")
        self._function = functions[self.config.function]
        self._takes = _takes(self._function)
        self._is_async = inspect.iscoroutinefunction(self._function)
        if self._takes > 1 and not self._is_async:
            raise MachineError(f"{path}.config.function: one that takes the moment too must be `async def`")

    def event(self, moment: Moment, value: Any) -> Event:
        """As it says, if it says where to; the id of the event that it was given does not count."""
        legal = [list(way.id) for way in moment.ways]
        way = value.get("id") if isinstance(value, dict) else None
        if way is None or (way == moment.event["id"] and way not in legal):
            return super().event(moment, value)
        return value  # type: ignore[no-any-return]

    async def value(self, moment: Moment) -> Any:
        given = (moment.event, moment)[: self._takes]

        async def work() -> Any:
            if self._is_async:
                return await self._function(*given)
            value = await asyncio.to_thread(self._function, *given)
            return await value if inspect.isawaitable(value) else value

        return await once(trace_of(moment.call), f"function {self.config.function}", work)


def _takes(function: Callable[..., Any]) -> int:
    """How many arguments it is to get: the event, and the moment if it has a place for that."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of a built-in one
        return 1
    wanted = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return min(2, max(1, sum(one.default is one.empty for one in wanted)))


class MachineConfig(Definition, frozen=True):
    """Which machine; and how much of its trail the event has."""

    machine: str
    trail: Literal["omit", "summary", "full"] = "omit"
    success_to: str | None = None
    failure_to: str | None = None
    timeout: Seconds | None = None


class MachineAction(Action):
    config_type = MachineConfig

    def check(self, path: str) -> None:
        known = list(self.machines.making)
        if self.config.machine not in known:
            near = did_you_mean(self.config.machine, known)
            raise MachineError(f"{path}.config.machine: unknown machine {self.config.machine!r}{near}")

    @property
    def needs(self) -> Iterable[str]:
        name = self.config.machine
        return () if name == self.machine.id else self.machines.get(name).needs

    @property
    def gives(self) -> dict[str, Any] | None:
        machine = self.machines.get(self.config.machine).machine
        ways = machine.ways_to(END)
        return machine.event_schema(*ways) if ways else None

    async def value(self, moment: Moment) -> Any:
        name = self.config.machine
        fields = {key: value for key, value in moment.event.items() if key != "id"}
        event = self.machines.get(name).first_event(fields)
        run = self.machines.run(name, moment.call, moment.run.scopes, f"{moment.run.path} / {name}")

        async def work() -> Any:
            return [entry async for entry in run.entries(event)]

        trail = await once(trace_of(moment.call), f"machine {name}", work)
        last = trail[-1]["event"]
        if last.get("bail_out"):
            raise MidcallError(f"{name} gave up: {last.get('message') or last['reason']}")
        result = {key: value for key, value in last.items() if key != "id"}
        match self.config.trail:
            case "full":
                result["trail"] = trail
            case "summary":
                result["trail"] = [[one["from"], one["to"]] for one in trail if "error" not in one]
        return result


# --- parallel ---------------------------------------------------------------------------------------


class ParallelBranch(Definition, frozen=True):
    """One of several things that are done at once."""

    id: str
    action: str
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    description: str = ""
    prompts: tuple[str, ...] = ()
    timeout: Seconds | None = None


class ParallelConfig(Definition, frozen=True):
    """What is done at once; `timeout` is for each of the branches that has none of its own."""

    branches: tuple[ParallelBranch, ...]
    timeout: Seconds | None = None


class ParallelAction(Action):
    config_type = ParallelConfig

    def check(self, path: str) -> None:
        self._branches: list[tuple[ParallelBranch, Action]] = []
        for n, branch in enumerate(self.config.branches):
            at = f"{path}.config.branches[{n}]"
            if any(branch.id == one.id for one, _ in self._branches):
                raise MachineError(f"{at}.id: {branch.id!r} is there already")
            state = State(branch.id, branch.action, branch.description, branch.config, branch.prompts)
            self._branches.append((branch, make_action(self.machines, self.machine, state, at)))
        if not self._branches:
            raise MachineError(f"{path}.config.branches: there is none")

    @property
    def needs(self) -> Iterable[str]:
        return [name for _, action in self._branches for name in action.needs]

    async def act(self, moment: Moment) -> Event:
        return self.event(moment, {"results": await self.value(moment)})

    async def value(self, moment: Moment) -> Any:
        results = await beside(moment, "branch", [partial(self._run, moment, *one) for one in self._branches])
        return {branch.id: result for (branch, _), result in zip(self._branches, results, strict=True)}

    async def _run(self, moment: Moment, branch: ParallelBranch, action: Action) -> dict[str, Any]:
        inner = Moment(moment.run, action.state, moment.event)
        seconds = self.config.timeout if branch.timeout is None else branch.timeout
        try:
            with going_deeper():
                value = await limited(inner, seconds, partial(action.value, inner))
        except TimedOut as error:
            return {"status": "timeout", "error": said(error)}
        except Exception as error:  # noqa: BLE001  whatever it is, the others go on
            moment.check_goes_on()
            return {"status": "error", "error": said(error)}
        return {"status": "success", "value": value}


ACTIONS: dict[str, type[Action]] = {
    "model": ModelAction,
    "llm": ModelAction,
    "tools": ToolsAction,
    "ask": AskAction,
    "method": MethodAction,
    "function": FunctionAction,
    "machine": MachineAction,
    "parallel": ParallelAction,
}


def make_action(machines: "Machines", machine: Machine, state: State, path: str) -> Action:
    """The action of a state. Raises `MachineError`."""
    kind = ACTIONS.get(state.action)
    if kind is None:
        near = did_you_mean(state.action, list(ACTIONS))
        raise MachineError(f"{path}.action: unknown action {state.action!r}{near}")
    return kind(machines, machine, state, path)

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

import inspect
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import msgspec

from midcall import steps
from midcall.call import sendable
from midcall.client.tool_call import checked_calls
from midcall.client.toolbox import request_schema
from midcall.errors import MidcallError, TimedOut
from midcall.fsm.definition import (
    END,
    START,
    Event,
    MachineError,
    State,
    StateConfig,
    Transition,
    check_known,
    check_unique,
    read,
    without,
)
from midcall.fsm.run import BadOutput, BailOut, Moment, Reason, going_deeper
from midcall.items import to_builtins
from midcall.json_schema import as_text, compiled, inlined, joined
from midcall.models.base import Message, ModelRequest, TextPart
from midcall.mount.within import call_within
from midcall.questions import Option, read_json
from midcall.registry import Resolved

if TYPE_CHECKING:
    from midcall.fsm.serve import MachineMethod

T = TypeVar("T")
Schemas: TypeAlias = tuple[dict[str, Any] | None, dict[str, Any] | None]

TOOL_SECONDS = 30.0
"""How long a batch of tool calls may take, if its state does not say."""

MOST_TEXT = 1024 * 1024
"""How many characters a model may say at once."""

MOST_CALLS = 100
"""How many tool calls one event may have."""

_CHOOSE = "Answer with one JSON object and nothing else: the event that you choose, one of these."
_TOOLS = "These tools can be called, with the JSON Schema of their arguments."


class Action:
    """What a state does. `value` is what it comes to by itself, as in a branch; `act` is that as an event."""

    needed: ClassVar[tuple[str, ...]] = ()
    known: ClassVar[tuple[str, ...]] = ("timeout", "success_to", "failure_to")
    """What it must, and may, be configured with."""
    keeps_time: ClassVar[bool] = False
    """Whether it sees to `timeout` itself."""
    may_try_again: ClassVar[bool] = False
    """Whether it gives something else if what it gave was refused; else it would only do the same twice."""

    def __init__(self, method: "MachineMethod", state: State, path: str, ends: Sequence[str]) -> None:
        """`path` is where it is written, and `ends` where it leads to. Raises `MachineError`."""
        self.method = method
        self.machines = method.machines
        self.state = state
        self.ends = ends
        self.needs: Sequence[str] = ()
        """The names of the methods that it may call."""
        self.config = read_config(state, path, ends)
        self.check(f"{path}.config")

    def check(self, path: str) -> None:
        """Raise `MachineError` if the configuration names what is not there."""

    def accept(self, event: Event) -> Any:
        """Raise `BadOutput` if it can do nothing with an event: whoever made that may make another one."""

    def schemas(self) -> Schemas:
        """Of what it needs of the event that leads to it, and of what it comes to, if these are known."""
        return None, None

    @property
    def successes(self) -> list[str]:
        """The states that it may lead to if it does not fail."""
        chosen = self.config.get("success_to")
        return [end for end in self.ends if end != self.config.get("failure_to") and chosen in (None, end)]

    async def value(self, moment: Moment) -> Any:
        """What it comes to. Raises what went wrong."""
        raise NotImplementedError

    async def choose(self, moment: Moment) -> Event:
        """The event that says what it came to, if all is well."""
        return self.event(await self.value(moment))

    async def act(self, moment: Moment) -> Event:
        """The next event. Raises `BadOutput` or `BailOut`."""
        try:
            return await self.limited(moment, self.choose)
        except BadOutput:
            raise
        except Exception as error:  # of an author's function, or of anybody's tool
            moment.call.check_goes_on()
            if "failure_to" in self.config:
                return self.event({"error": steps.said(error)}, self.config["failure_to"])
            if isinstance(error, BailOut):
                raise
            reason: Reason = "timeout" if isinstance(error, TimedOut) else "action-failed"
            raise BailOut(reason, steps.said(error)) from error

    async def limited(self, moment: Moment, work: Callable[[Moment], Coroutine[Any, Any, T]]) -> T:
        """What comes of it in the time that it has, counted from when it first began. Raises `TimedOut`."""
        seconds = self.config.get("timeout")
        trace = moment.call.own_trace
        with steps.Contained(moment.call):
            if seconds is None or self.keeps_time:
                return await work(moment)
            until, late = steps.deadline(trace, seconds), f"It took longer than {seconds:g} s"
            return await steps.within(trace, until, late, partial(work, moment))

    def event(self, value: Any, end: str | None = None) -> Event:
        """An event to a state; without one, by the only way that there is. Raises `BadOutput`."""
        fields = value if isinstance(value, dict) else {"result": value}
        ends = self.successes if end is None else [end]
        if len(ends) != 1:
            raise BadOutput(f"Which of {', '.join(ends) or 'no transitions'} is meant?", fields)
        return {**fields, "id": [self.state.id, ends[0]]}


class ModelAction(Action):
    may_try_again = True
    known = ("timeout", "failure_to", "model", "max_tokens", "temperature")

    def check(self, path: str) -> None:
        try:
            self.machines.model(self.method, self.config.get("model"))
        except ValueError as error:
            raise MachineError(f"{path}.model: {error}") from None

    async def choose(self, moment: Moment) -> Event:
        text = await self._say(moment, moment.ways)
        try:
            return msgspec.convert(read_json(text), Event)
        except ValueError as error:
            raise BadOutput(f"This is not a JSON object: {error}", text) from None

    async def value(self, moment: Moment) -> Any:
        text = await self._say(moment, ())
        try:
            return read_json(text)
        except ValueError:
            return text

    async def _say(self, moment: Moment, ways: Sequence[Transition]) -> str:
        request = self._request(moment, ways)
        model = self.machines.model(self.method, self.config.get("model"))
        if model is None:
            return await self._sample(moment, request)

        async def say() -> Any:
            text = ""
            try:
                async for event in model.stream(request):
                    if isinstance(event, TextPart):
                        text += event.text
                        moment.ask.log(event.text, "debug", {"state": moment.state.id})
                    if len(text) > MOST_TEXT:
                        return {"error": f"The model has said more than {MOST_TEXT} characters"}
            except Exception as error:  # noqa: BLE001  a model of anybody's
                return {"error": steps.said(error)}
            return {"text": sendable(text)}

        say.__qualname__ = f"model in {self.state.id}"
        answer = await steps.run(moment.call.own_trace, say, (), {}, retry_safe=True)
        if "error" in answer:
            raise BailOut("llm-fatal-error", answer["error"])
        return str(answer["text"])

    async def _sample(self, moment: Moment, request: ModelRequest) -> str:
        """What the caller's model says."""
        messages = [{"role": one.role, "content": one.content} for one in request.messages]
        limits: Any = {"max_tokens": request.max_tokens, "temperature": request.temperature}
        asking = moment.ask.sample(messages, system=request.system, key=self.state.id, **limits)
        try:
            return str((await asking).text)
        except MidcallError as error:
            raise BailOut("llm-fatal-error", steps.said(error)) from error

    def _request(self, moment: Moment, ways: Sequence[Transition]) -> ModelRequest:
        """The trail as a conversation, to choose one of `ways` after; without any, to say something."""
        machine, state = moment.machine, moment.state
        system = [machine.description, *machine.prompts, state.description, *state.prompts]
        system += [_CHOOSE] if ways else []
        fields, listed = dict[str, Any](), list[str]()
        for way in ways:
            schema = as_text(machine.event_schema(way))
            words = [f'"id": {as_text(way.id)}', way.label, way.description, *way.prompts, schema]
            system.append("- " + ". ".join(word.rstrip(".") for word in words if word))
            action = self.method.actions.get(way.id[1])
            if isinstance(action, ToolsAction) and (tools := self.machines.offered(action.needs)):
                fields[way.id[1]] = _with_calls(machine.fields(way), tools)
                listed.append(_TOOLS)
                for one in tools:
                    listed.append(f"- {one['name']}: {one['description']} {as_text(one['inputSchema'])}")
        omitted = {way.id for way in machine.transitions if way.omit}
        messages: list[Message] = []
        for entry in moment.run.trail:
            if (entry.begin, entry.end) not in omitted:
                role: Any = "assistant" if entry.begin == state.id else "user"
                messages.append(Message(role, as_text(entry.event)))
                messages += [] if entry.error is None else [Message("user", entry.error)]
        wanted = machine.event_schema(*ways, fields=fields) if ways else None
        limits: Any = {key: self.config.get(key) for key in ("max_tokens", "temperature")}
        return ModelRequest(
            tuple(messages), (), "\n\n".join(filter(None, system + listed)), schema=wanted, **limits
        )


def _with_calls(fields: dict[str, Any], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of an event, with what calls of these tools look like."""
    (fields, call), defined = joined([inlined(fields), request_schema(tools, with_id=True)])
    properties, required = fields.get("properties", {}), fields.get("required", ())
    declared = properties.get("tool_calls", {})  # what the machine says of them counts too, as how many
    calls = {"minItems": 1, **declared, "type": "array", "items": call}
    fields |= {"properties": {**properties, "tool_calls": calls}, "$defs": defined}
    return {**fields, "required": [*dict.fromkeys([*required, "tool_calls"])]}


class ToolsAction(Action):
    """Of the tools that are named, or all that need no scope. `timeout` is for all calls of an event."""

    known = (*Action.known, "tools", "parallel")
    keeps_time = True

    def check(self, path: str) -> None:
        self.needs = self.config.get("tools", ())
        self._seconds = self.config.get("timeout", TOOL_SECONDS)

    def schemas(self) -> Schemas:
        taken = {"type": "object", "anyOf": [{"required": ["tool_calls"]}, {"required": ["calls"]}]}
        return taken, _object(tool_results={"type": "array", "items": {"type": "object"}})

    async def value(self, moment: Moment) -> dict[str, Any]:
        trace, calls = moment.call.own_trace, self.accept(moment.event)
        until = steps.deadline(trace, self._seconds)
        work = [partial(self._call, moment, until, *one) for one in calls]
        if self.config.get("parallel"):
            return {"tool_results": await steps.beside(trace, "tool", work)}
        return {"tool_results": [await steps.once(trace, "tool", one) for one in work]}

    def accept(self, event: Event) -> list[tuple[str, str, Any]]:
        given = event.get("tool_calls", event.get("calls"))
        if not isinstance(given, list) or len(given) > MOST_CALLS:
            raise BadOutput(f"tool_calls is a list of at most {MOST_CALLS} calls", event)
        try:
            return [(call_id, name, arguments) for call_id, name, arguments, _ in checked_calls(given)]
        except ValueError as error:
            raise BadOutput(f"tool_calls: {error}", event) from None

    async def _call(self, moment: Moment, until: float, call_id: str, name: str, given: Any) -> Event:
        async def work() -> Any:
            found = self.machines.tool(name, self.needs)
            return await call_within(moment.call, self.machines.hub, found, given or {}, moment.run.scopes)

        try:
            with going_deeper():
                late = f"The batch took longer than {self._seconds:g} s"
                result = await steps.within(moment.call.own_trace, until, late, work)
        except Exception as error:  # noqa: BLE001  whatever it is, the model is told
            moment.call.check_goes_on()
            return {"call_id": call_id, "success": False, "error": steps.said(error)}
        return {"call_id": call_id, "success": True, "result": result}


_FIELD = re.compile(r"\{(\w+)\}")


class AskAction(Action):
    """In `message`, `{name}` stands for a field of the event. `timeout` is for each question."""

    known = ("timeout", "failure_to", "message")
    keeps_time = True
    may_try_again = True

    async def value(self, moment: Moment) -> str:
        return await moment.ask.prompt(self._message(moment), **self._options())

    async def choose(self, moment: Moment) -> Event:
        ask, ways, message = moment.ask, moment.ways, self._message(moment)
        way = ways[0]
        if len(ways) > 1:
            options = [Option(one.id[1], one.label or one.id[1], one.description or None) for one in ways]
            chosen = await ask.select(message, options, **self._options())
            way = next(one for one in ways if one.id[1] == chosen)
        schema = inlined(moment.machine.fields(way))
        if schema.get("properties") or compiled(schema).fault({}) is not None:
            form = ask.form(schema, way.description or message, **self._options(f"-{way.id[1]}"))
            return self.event(await form, way.id[1])
        if len(ways) > 1:
            return self.event({}, way.id[1])
        if not await ask.confirm(message, **self._options()):
            raise BailOut("action-failed", "The person said no")
        fields = {"confirmed": True}
        return self.event({} if compiled(schema).fault(fields) else fields, way.id[1])

    def _options(self, suffix: str = "") -> dict[str, Any]:
        return {"key": f"{self.state.id}{suffix}", "timeout": self.config.get("timeout", "default")}

    def _message(self, moment: Moment) -> str:
        message = self.config.get("message") or self.state.description or self.state.id
        message = _FIELD.sub(lambda found: as_text(moment.event.get(found[1], found[0])), message)
        return f"{message}\n\n{moment.problem}" if moment.problem else message


class MethodAction(Action):
    """`arguments` are given beside the fields of the event that the method takes."""

    needed = ("method",)
    known = (*Action.known, "arguments")

    def check(self, path: str) -> None:
        self.needs = (self.config["method"],)
        if self.machines.hub.find(*self.needs) is None:
            known = [name for name, _ in self.machines.hub.methods()]
            check_known("unknown method", *self.needs, known, f"{path}.method")

    def schemas(self) -> Schemas:
        found = self.machines.hub.find(*self.needs)
        if found is None:  # it was of a server that is mounted no more
            return None, None
        method = found.method
        needed = set(method.params.get("required", ())) - self.config.get("arguments", {}).keys()
        taken = {**method.params, "required": sorted(needed), "additionalProperties": True}
        return taken, None if method.streaming else method.returns

    async def value(self, moment: Moment) -> Any:
        found = self.machines.hub.resolve(self.config["method"])
        known = found.method.params.get("properties", {})
        fields = {key: value for key, value in without(moment.event, "id").items() if key in known}
        given = {**fields, **self.config.get("arguments", {})}
        return await call_within(moment.call, self.machines.hub, found, given, moment.run.scopes)


class FunctionAction(Action):
    may_try_again = True
    needed = ("function",)

    def check(self, path: str) -> None:
        functions, path = self.method.functions, f"{path}.function"
        check_known("unknown function", self.config["function"], functions, path)
        self._function = functions[self.config["function"]]
        self._takes_moment = _takes_moment(self._function)
        if self._takes_moment and not inspect.iscoroutinefunction(self._function):
            raise MachineError(f"{path}: one that takes the moment too must be `async def`")

    async def choose(self, moment: Moment) -> Event:
        """As it says, if it says where to; the id of the event that it was given does not count."""
        value = await self.value(moment)
        way = value.get("id") if isinstance(value, dict) else None
        if way is None or (way == moment.event["id"] and way not in [list(one.id) for one in moment.ways]):
            return self.event(value)
        return value  # type: ignore[no-any-return]

    async def value(self, moment: Moment) -> Any:
        event = to_builtins(moment.event)  # a copy: the trail is not its to change
        if self._takes_moment:  # it may ask, and has steps of its own
            here = Moment(moment.run, moment.state, event, moment.problem)
            return to_builtins(await steps.called(self._function, event, here))
        async with moment.call.own_trace.working():
            return to_builtins(await steps.called(self._function, event))  # it is kept with the state anyway


def _takes_moment(function: Callable[..., Any]) -> bool:
    """Whether it is to get the moment too, beside the event."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of a built-in one
        return False
    wanted = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return sum(one.default is one.empty for one in wanted) > 1


class MachineAction(Action):
    """The event has as much of the machine's trail as `trail` says."""

    needed = ("machine",)
    known = (*Action.known, "trail")

    def check(self, path: str) -> None:
        name, own = self.config["machine"], self.method
        machines: dict[str, Any] = {**self.machines.methods, **own.parts, own.name: own}  # it may run itself
        check_known("unknown machine", name, machines, f"{path}.machine")
        inner, self._inner = machines[name], machines[name].machine
        self._found = Resolved(f"{self.machines.namespace}.{name}", inner, ())
        if inner is not own:
            self.needs = inner.needs

    def schemas(self) -> Schemas:
        inner = self._inner
        return inner.fields(*inner.ways_from(START)), inner.fields(*inner.ways_to(END))

    async def value(self, moment: Moment) -> Any:
        given = without(moment.event, "id")
        trail = await call_within(moment.call, self.machines.hub, self._found, given, moment.run.scopes)
        last = trail[-1]["event"]
        if last.get("bail_out"):
            raise MidcallError(f"{self._inner.id} gave up: {last['message'] or last['reason']}")
        short = [[one["from"], one["to"]] for one in trail if "error" not in one]
        shown = {"omit": {}, "summary": {"trail": short}, "full": {"trail": trail}}
        return {**without(last, "id"), **shown[self.config.get("trail", "omit")]}


class ParallelAction(Action):
    """`timeout` is for each of the branches that has none of its own."""

    needed = ("branches",)
    keeps_time = True

    def check(self, path: str) -> None:
        self._branches: dict[str, Action] = {}
        for n, branch in enumerate(self.config["branches"]):
            config = {"timeout": branch.timeout or self.config.get("timeout"), **branch.config}
            state = msgspec.structs.replace(branch, config=config)
            self._branches[branch.id] = make_action(self.method, state, f"{path}.branches[{n}]")
        self.needs = [name for action in self._branches.values() for name in action.needs]

    def schemas(self) -> Schemas:
        return None, _object(results={"type": "object"})

    async def value(self, moment: Moment) -> dict[str, Any]:
        work = [partial(self._run, moment, action) for action in self._branches.values()]
        done = await steps.beside(moment.call.own_trace, "branch", work)
        return {"results": dict(zip(self._branches, done, strict=True))}

    async def _run(self, moment: Moment, action: Action) -> dict[str, Any]:
        inner = Moment(moment.run, action.state, moment.event)
        try:
            with going_deeper():
                return {"status": "success", "value": await action.limited(inner, action.value)}
        except Exception as error:  # noqa: BLE001  whatever it is, the others go on
            moment.call.check_goes_on()
            status = "timeout" if isinstance(error, TimedOut) else "error"
            return {"status": status, "error": steps.said(error)}


def _object(**properties: Any) -> dict[str, Any]:
    whole = {"type": "object", "properties": properties, "required": list(properties)}
    return {**whole, "additionalProperties": False}


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


def make_action(method: "MachineMethod", state: State, path: str, ends: Sequence[str] = ()) -> Action:
    """The action of a state, or of a branch. Raises `MachineError`."""
    return ACTIONS.get(state.action, Action)(method, state, path, ends)


def read_config(state: State, path: str, ends: Sequence[str]) -> StateConfig:
    """What a state is configured with. Raises `MachineError` for all that is wrong to see without a hub."""
    check_known("unknown action", state.action, ACTIONS, f"{path}.action")
    kind, path = ACTIONS[state.action], f"{path}.config"
    given = {key: one for key, one in state.config.items() if one is not None}
    for key in given:
        check_known("unknown key", key, (*kind.needed, *kind.known), path)
    for key in kind.needed:
        check_known("missing key", key, given, path)
    config = read(given, StateConfig, path)
    for key in {"success_to", "failure_to"} & given.keys():
        check_known("no transition leads to", given[key], ends, f"{path}.{key}")
    meant = [end for end in ends if end != config.get("failure_to")]
    if len(meant) > 1 and not kind.may_try_again and "success_to" not in given:
        raise MachineError(f"{path}.success_to: which of {', '.join(meant)} is meant?")
    branches = config.get("branches", ())
    check_unique([branch.id for branch in branches], f"{path}.branches")
    for n, branch in enumerate(branches):
        read_config(branch, f"{path}.branches[{n}]", ())
    if config.get("branches") == []:
        raise MachineError(f"{path}.branches: there is none")
    return config

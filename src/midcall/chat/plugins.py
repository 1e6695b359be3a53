"""What an author may say of a method in the chat: how its typed questions are shown, and how its questions to
the model are asked.

    booking = Plugin(Flights.book_flight).on(pick_flight, show_flights).on(pick_seat, show_seats)

A handler gets the question and a context; `await ctx.render("FlightList", flights=...)` shows a component of
the page and gives what the person did there, and what the handler returns is the answer to the tool. It is
run until it renders, and again from the top when the person has answered, perhaps by another process: then
`render` gives that answer at once. So it should only show and transform, and leave work to the tool.

A tool's question to a model is put to the chat's own one, by `Sampling`, with three hooks, each of which may
be left out: `before` makes the request from what the tool asked, `act` asks the model, and `after` looks at
what it said; raising `Retry` there asks again, with the reason added. A tool that wants a structured answer
(a JSON Schema) gets one that fits, or an error after a few tries.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import msgspec
from msgspec import Struct

from midcall.chat.conversation import ElicitRequest
from midcall.errors import MidcallError, RegistrationError
from midcall.hub import Hub
from midcall.items import to_builtins
from midcall.json_schema import compiled
from midcall.models.base import (
    Message,
    Model,
    ModelError,
    ModelRequest,
    Stopped,
    TextPart,
    ToolCall,
    ToolDefinition,
    Usage,
    cost,
)
from midcall.questions import SCHEMA, USAGE, Question, Refusal, json_in

NOT_UNDERSTOOD = "(Not understood: "
"""How a question begins that is asked again, as over MCP."""

MAX_TRIES = 3
"""How often a model is asked for an answer that fits."""


# --- questions to the model -----------------------------------------------------------------


class Retry(Exception):
    """Raised by `after`: the answer will not do, for this reason."""


class _Misfit(Retry):
    """It does not fit the schema."""


class Reply(Struct, frozen=True):
    """What a model said."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    reason: str = "stop"
    usage: Usage = Usage()


Before: TypeAlias = Callable[[ModelRequest], Awaitable[ModelRequest]]
Act: TypeAlias = Callable[[ModelRequest, Model], Awaitable[Reply]]
After: TypeAlias = Callable[[Reply, ModelRequest], Awaitable[Reply]]


class Sampling(Struct, frozen=True):
    """How a tool's questions to the model are handled."""

    before: Before | None = None
    act: Act | None = None
    after: After | None = None
    max_tokens: int | None = None
    """The most that one answer may have."""

    async def answer(
        self, params: dict[str, Any], model: Model, spend: Callable[[Usage], None]
    ) -> dict[str, Any]:
        """The result of `sampling/createMessage`. Raises `ModelError`.

        `spend` is told what each try has cost, whatever comes of it. A last answer that does not fit the
        schema is given all the same: the tool looks at it itself.
        """
        request = request_from(params, self.max_tokens)
        if request.schema is not None:
            try:
                compiled(request.schema)
            except ValueError as error:
                raise ModelError(f"The tool asks for an answer that cannot be checked: {error}") from None
        if self.before is not None:
            request = await self.before(request)
        usage, why = Usage(), Retry()
        for _ in range(MAX_TRIES):
            reply = await (self.act or ask_model)(request, model)
            usage += reply.usage
            spend(reply.usage)
            try:
                if self.after is not None:
                    reply = await self.after(reply, request)
                _check(reply, request)
            except Retry as error:
                why = error
                messages = (
                    *request.messages,
                    Message("assistant", reply.text or "(nothing)"),
                    Message("user", f"That will not do: {why}. Answer again."),
                )
                request = msgspec.structs.replace(request, messages=messages)
            else:
                return _result(reply, model, usage)
        if isinstance(why, _Misfit):
            return _result(reply, model, usage)
        raise ModelError(f"{model.name} gave no usable answer in {MAX_TRIES} tries: {why}")


async def ask_model(request: ModelRequest, model: Model) -> Reply:
    """Ask a model and collect what it says."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    stopped = Stopped()
    async for event in model.stream(request):
        match event:
            case TextPart(text):
                texts.append(text)
            case ToolCall():
                calls.append(event)
            case Stopped():
                stopped = event
    text = "".join(texts)
    return Reply(text, tuple(calls), stopped.reason, cost(request, text, calls, stopped.usage))


def request_from(params: dict[str, Any], max_tokens: int | None = None) -> ModelRequest:
    """The request to a model that the parameters of `sampling/createMessage` stand for."""
    limits = [limit for limit in (params.get("maxTokens"), max_tokens) if isinstance(limit, int)]
    tools = tuple(
        ToolDefinition(str(tool["name"]), str(tool.get("description") or ""), tool.get("inputSchema") or {})
        for tool in params.get("tools") or ()
        if isinstance(tool, dict) and "name" in tool
    )
    choice = (params.get("toolChoice") or {}).get("mode", "auto")
    schema = (params.get("_meta") or params.get("metadata") or {}).get(SCHEMA)
    return ModelRequest(
        messages=tuple(part for one in params.get("messages") or () for part in _messages(one)),
        tools=tools,
        system=params.get("systemPrompt"),
        max_tokens=min(limits) if limits else None,
        temperature=params.get("temperature"),
        stop=tuple(params.get("stopSequences") or ()),
        schema=schema if isinstance(schema, dict) else None,
        tool_choice=choice if choice in ("auto", "required", "none") else "auto",
    )


def _messages(one: dict[str, Any]) -> list[Message]:
    """A message of MCP, which may hold text, calls of tools and their results at once."""
    content = one.get("content")
    blocks = content if isinstance(content, list) else [content]
    texts, calls, made = [], [], []
    for block in blocks:
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, dict):
            match block.get("type"):
                case "text":
                    texts.append(str(block.get("text", "")))
                case "tool_use":
                    arguments = msgspec.json.encode(block.get("input") or {}).decode()
                    calls.append(ToolCall(str(block.get("id")), str(block.get("name")), arguments))
                case "tool_result":
                    inner = block.get("content") or ()
                    text = "\n".join(str(part.get("text", "")) for part in inner if isinstance(part, dict))
                    call_id, failed = str(block.get("toolUseId")), bool(block.get("isError"))
                    made.append(Message("tool", text, tool_call_id=call_id, is_error=failed))
                case kind:
                    raise ModelError(f"The tool asks with something that is not text ({kind})")
    if texts or calls:
        speaks = one.get("role") == "assistant"
        made.append(Message("assistant" if speaks else "user", "\n".join(texts), tuple(calls)))
    return made


def _check(reply: Reply, request: ModelRequest) -> None:
    if request.schema is None or reply.tool_calls:
        return
    try:
        value = msgspec.json.decode(json_in(reply.text))
    except msgspec.DecodeError as error:
        raise _Misfit(f"it must be JSON, and nothing else ({error})") from None
    try:
        fault = compiled(request.schema).fault(value)
    except ValueError as error:
        fault = str(error)
    if fault is not None:
        raise _Misfit(f"it does not fit the schema: {fault}")


def _result(reply: Reply, model: Model, usage: Usage) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    for call in reply.tool_calls:
        try:
            given = call.read_arguments()
        except ValueError as error:
            raise ModelError(f"{model.name} called {call.name} wrongly: {error}") from None
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    reasons = {"stop": "endTurn", "length": "maxTokens", "tool_calls": "toolUse"}
    return {
        "role": "assistant",
        "content": blocks[0] if len(blocks) == 1 else blocks or {"type": "text", "text": ""},
        "model": model.name,
        "stopReason": reasons.get(reply.reason, reply.reason),
        "_meta": {USAGE: msgspec.to_builtins(usage)},
    }


# --- questions to the person ----------------------------------------------------------------


class PluginQuestion(Struct, frozen=True):
    """A question, as a handler gets it."""

    key: str
    message: str
    context: dict[str, Any]
    """What the tool gave along with the question."""
    schema: dict[str, Any]
    """Of the answer."""
    tool: str
    call_id: str


Handler: TypeAlias = Callable[[PluginQuestion, "PluginContext"], Awaitable[Any]]


class Shown(BaseException):
    """A handler has rendered something that the person has not answered yet.

    Not an error: it ends the handler.
    """

    def __init__(self, component: str, props: dict[str, Any]) -> None:
        super().__init__(component)
        self.component = component
        self.props = props


class PluginFailed(MidcallError):
    """A handler failed: with the first answer that it cannot take, or before."""


class PluginContext:
    """What a handler can do."""

    def __init__(self, answers: Sequence[Any], report: Callable[[str], None]) -> None:
        self._answers = list(answers)
        self._next = 0
        self._report = report

    async def report_progress(self, message: str) -> None:
        """Tell the person how far the handler is: shown as progress of its tool call."""
        self._report(message)

    reportProgress = report_progress  # noqa: N815  as plugins of the page's own language call it

    async def render(self, component: str, props: Mapping[str, Any] | None = None, /, **more: Any) -> Any:
        """Show a component of the page; gives what the person answered there."""
        number = self._next
        self._next += 1
        if number < len(self._answers):
            return self._answers[number]
        raise Shown(component, to_builtins({**(props or {}), **more}))


class Plugin:
    """The handlers of one method's questions, each of which must have one."""

    def __init__(self, method: Callable[..., Any] | str) -> None:
        self._method = method
        self._handlers: dict[str, Handler] = {}
        self.sampling: Sampling | None = None

    def on(self, question: Question[Any] | str, handler: Handler) -> Self:
        """Show this question with the handler."""
        key = question if isinstance(question, str) else question.key
        if key in self._handlers:
            raise RegistrationError(f"The question {key!r} already has a handler")
        if not inspect.iscoroutinefunction(handler):
            raise RegistrationError(f"The handler of {key!r} must be `async def`")
        self._handlers[key] = handler
        return self

    def sample_with(self, sampling: Sampling) -> Self:
        """Ask the model for this method in a way of its own."""
        self.sampling = sampling
        return self

    def find(self, hub: Hub) -> str:
        """The name of the method in a hub.

        Raises `RegistrationError` unless all its questions have a handler.
        """
        for name, method in hub.methods():
            if name == self._method or (callable(self._method) and method.is_of(self._method)):
                break
        else:
            raise RegistrationError(f"{hub.name} has no method {_named(self._method)}, which a plugin is for")
        missing = [key for key in method.elicits if key not in self._handlers]
        unknown = [key for key in self._handlers if key not in method.elicits]
        if missing or unknown:
            keys = ", ".join(method.elicits) or "none"
            faults = [f"no handler for {', '.join(missing)}"] if missing else []
            faults += [f"a handler for {', '.join(unknown)}, which it does not ask"] if unknown else []
            raise RegistrationError(f"The plugin of {name} has {' and '.join(faults)}; it asks: {keys}")
        return name

    def handler(self, key: str) -> Handler | None:
        return self._handlers.get(key)


async def show(
    handler: Handler, question: PluginQuestion, answers: Sequence[Any], report: Callable[[str], None]
) -> Shown | dict[str, Any]:
    """What a handler shows next, or the result that it gives: `{"action", "content"}`.

    `report` is told how far the handler says that it is.
    """
    try:
        value = await handler(question, PluginContext(answers, report))
    except Shown as shown:
        return shown
    if isinstance(value, Refusal):
        return {"action": "decline" if value.how == "Declined" else "cancel"}
    return {"action": "accept", "content": to_builtins(value)}


def asked_again(question: ElicitRequest, failed: PluginFailed, round: int) -> ElicitRequest:
    """A question whose answer its handler could not take, with the reason."""
    reason = str(failed.__cause__) or type(failed.__cause__).__name__
    start, part, number = question.elicit_id.partition("#")
    return msgspec.structs.replace(
        question,
        message=f"{NOT_UNDERSTOOD}{' '.join(reason.split())})\n{question.message}",
        elicit_id=f"{start.rpartition(':')[0]}:{round}{part}{number}",
    )


def without_reason(question: ElicitRequest) -> ElicitRequest:
    """A question without the reason why it was asked again."""
    before, _, message = question.message.partition("\n")
    return (
        msgspec.structs.replace(question, message=message) if before.startswith(NOT_UNDERSTOOD) else question
    )


def with_component(question: ElicitRequest, shown: Shown, number: int) -> ElicitRequest:
    """A question as its handler shows it, after this many answers."""
    elicit_id = question.elicit_id if not number else f"{question.elicit_id.split('#')[0]}#{number + 1}"
    component = {"name": shown.component, "props": shown.props}
    return msgspec.structs.replace(question, component=component, elicit_id=elicit_id)


def _named(method: Callable[..., Any] | str) -> str:
    return method if isinstance(method, str) else getattr(method, "__qualname__", str(method))

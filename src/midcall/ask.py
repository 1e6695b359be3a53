"""Ask: the one thing that a tool author meets.

Every question returns an `Asking`: awaiting it asks and waits, and `ask.all` asks several in one
round. An `Asking` has no truth value, so that a forgotten `await` is an error and never a yes.

Built on `call`; knows no hub, protocol or transport.
"""

import datetime as dt
import inspect
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from midcall import steps
from midcall.branch import Branch, kept
from midcall.call import Call
from midcall.errors import Cancelled, Declined, MidcallError, WrongAnswer
from midcall.items import Background
from midcall.open_questions import MISSING
from midcall.principal import check_addressee
from midcall.questions import (
    KINDS,
    PRIORITIES,
    RESERVED_TYPE_NAMES,
    AnyQuestion,
    Confirm,
    Custom,
    Form,
    Option,
    Priority,
    Prompt,
    Question,
    Refusal,
    Root,
    Roots,
    Sample,
    Sampled,
    Select,
    Url,
    as_messages,
    as_options,
    data_reader,
    nothing,
    only,
    read_answer,
    read_roots,
    read_sample,
    reader,
    said_only,
    same,
    value_of,
    with_schema,
)
from midcall.replay import Trace

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")

Preset = Literal["quick", "normal", "patient", "extended", "default"]
PRESETS: dict[str, float] = {"quick": 10.0, "normal": 30.0, "patient": 60.0, "extended": 300.0}

Options = Iterable[str | Option | tuple[str, ...] | Mapping[str, Any]]
ToolChoice = Literal["auto", "required", "none"]
Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class Asking(Generic[T]):
    """A question that is ready to be asked: `await` it, or give it to `ask.all`."""

    __slots__ = (
        "_asked",
        "_call",
        "_convert",
        "fallback",
        "fingerprint",
        "key",
        "note",
        "place",
        "priority",
        "question",
        "request_id",
        "since",
        "timeout",
        "to",
    )

    def __init__(
        self,
        call: Call,
        question: AnyQuestion,
        convert: Callable[[Any], T],
        timeout: float | None,
        priority: Priority,
        key: str | None = None,
        fallback: Any = MISSING,
        to: str | None = None,
    ) -> None:
        self.question = question
        self.timeout = timeout
        self.priority: Priority = priority
        self.key = key
        self.fallback = fallback
        self.to = to
        self.request_id = ""
        self.place = ""
        self.fingerprint = ""
        self.since = 0.0
        self.note = ""
        self._asked = False
        self._call = call
        self._convert = convert

    def __await__(self) -> Generator[Any, None, T]:
        return self._ask().__await__()

    def __bool__(self) -> bool:
        raise TypeError("A question has no truth value before it is answered: add `await`")

    def read(self, payload: Any) -> T:
        """The tool's value of an answer; refuses what does not fit (see `open_questions.Wanted`)."""
        answer = read_answer(self.question, payload)
        match answer:
            case Refusal("Declined"):
                if isinstance(self.question, Confirm):
                    return self._convert(False)
                raise Declined("The question was declined")
            case Refusal():
                raise Cancelled("The question was cancelled")
        return self._convert(value_of(answer))

    @property
    def answerable(self) -> bool:
        """Whether this caller, or whoever else is meant, can be asked this kind of question."""
        return self._call.can_ask(self)

    def begin(self) -> None:
        """Mark as asked; the same question cannot be asked twice."""
        if self._asked:
            raise RuntimeError("This question has already been asked; create a new one to ask again")
        self._asked = True

    async def _ask(self) -> T:
        self.begin()
        if not self.answerable and self.fallback is not MISSING:
            return self.fallback  # type: ignore[no-any-return]
        (value,) = await self._call.ask((self,))
        return value  # type: ignore[no-any-return]


class Ask:
    """Ask the caller: a parameter of this type is filled in by the hub, and hidden from the schema.

    Every question takes `key` (a name by which a client may know it), `timeout` (seconds, `None` for no
    limit, or "quick" 10 s, "normal" 30 s, "patient" 60 s, "extended" 300 s) and `priority` ("low",
    "normal", "high", "urgent"; of several open questions the most urgent is shown first). Those for a person
    take `to`, for somebody else than the caller: the name of a principal ("alice"), or a scope ("scope:ops"),
    for whoever has that. They answer at the page `/calls`, or by the link of the question. What a question
    may raise is `AskError`: `NotSupported`, `TimedOut`, `Cancelled`, `Declined`, `WrongType`,
    `TransportLost`.
    """

    __slots__ = ("_call", "_elicits", "_fallbacks")

    def __init__(
        self, call: Call, elicits: Mapping[str, Any] = {}, fallbacks: Mapping[str, Any] = {}
    ) -> None:
        self._call = call
        self._elicits = elicits
        self._fallbacks = fallbacks

    # --- questions for a person --------------------------------------------------------------

    def confirm(
        self,
        message: str,
        *,
        default: bool | None = None,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[bool]:
        """Yes or no. Declining is a no; `default` is only what the client pre-fills."""
        _check_type("default", default, bool)
        return self._asking(Confirm(message, default), same, key, timeout, priority, to)

    def prompt(
        self,
        message: str,
        *,
        default: str | None = None,
        placeholder: str | None = None,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[str]:
        """Free text."""
        _check_type("default", default, str)
        _check_type("placeholder", placeholder, str)
        return self._asking(Prompt(message, default, placeholder), same, key, timeout, priority, to)

    @overload
    def select(
        self,
        message: str,
        options: Options,
        *,
        multi_select: Literal[False] = False,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[str]: ...
    @overload
    def select(
        self,
        message: str,
        options: Options,
        *,
        multi_select: Literal[True],
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[list[str]]: ...
    def select(
        self,
        message: str,
        options: Options,
        *,
        multi_select: bool = False,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[Any]:
        """One of the options; with `multi_select` a list of any of them, also of none.

        An option is a string, `(value, label)`, `(value, label, description)`, a mapping with those
        keys, or an `Option`.
        """
        question = Select(message, as_options(options), multi_select)
        return self._asking(question, list if multi_select else only, key, timeout, priority, to)

    @overload
    def form(
        self,
        model: type[T],
        message: str = "",
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[T]: ...
    @overload
    def form(
        self,
        model: dict[str, Any],
        message: str = "",
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[dict[str, Any]]: ...
    def form(
        self,
        model: type[T] | dict[str, Any],
        message: str = "",
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[Any]:
        """The fields of a pydantic model, dataclass or `msgspec.Struct`; gives an instance of it.

        With the JSON Schema of an object in its place, it gives a `dict` that fits it.
        """
        if isinstance(model, dict):
            message = message or str(model.get("title", "Please fill in"))
            return self._asking(Form(message, model), schema_reader(model), key, timeout, priority, to)
        if model is None or isinstance(model, str):
            raise TypeError("What is filled in comes first: ask.form(Order, 'What would you like?')")
        shape = shape_for(model)
        message = message or title_of(model)
        return self._asking(Form(message, shape.schema), reader(shape), key, timeout, priority, to)

    def url(
        self,
        url: str,
        message: str = "Please open this page",
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[None]:
        """Send the person to a page; comes back when they say that they went there."""
        return self._asking(Url(message, url), nothing, key, timeout, priority, to)

    def custom(
        self,
        type_name: str,
        data: Any = None,
        schema: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
    ) -> Asking[Any]:
        """A question of your own kind. The answer is any JSON value; with `schema`, one that fits it."""
        if not type_name or type_name in RESERVED_TYPE_NAMES:
            raise ValueError(f"A custom question cannot have the type name {type_name!r}")
        question = Custom(type_name, data, schema)
        return self._asking(question, schema_reader(schema), key or type_name, timeout, priority, to)

    def __call__(
        self,
        question: Question[T],
        /,
        message: str = "",
        *,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
        to: str | None = None,
        **context: Any,
    ) -> Asking[T]:
        """Ask a typed question that the method declares in `@method(elicits=[...])`.

        `context` goes to the client with the message, for the component that shows it.
        """
        if question.key not in self._elicits:
            raise MidcallError(
                f"{self._call.name} asks {question.key!r} but does not declare it: "
                f"add it to @method(elicits=[...])"
            )
        shape = shape_for(question.answer_type)
        data = {"message": message or question.key, **context}
        return self._asking(
            Custom(question.key, data, shape.schema), reader(shape), question.key, timeout, priority, to
        )

    # --- a question for a model --------------------------------------------------------------

    @overload
    def sample(
        self,
        prompt: str | Iterable[Mapping[str, Any]],
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: ToolChoice = "auto",
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[Sampled]: ...
    @overload
    def sample(
        self,
        prompt: str | Iterable[Mapping[str, Any]],
        *,
        answer: type[T],
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[T]: ...
    def sample(
        self,
        prompt: str | Iterable[Mapping[str, Any]],
        *,
        answer: type[Any] | None = None,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: ToolChoice = "auto",
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[Any]:
        """Ask the caller's model. `prompt` is a text, or messages with `role` and `content`.

        With `answer`, a pydantic model, dataclass or `msgspec.Struct`, it gives an instance of it; if what
        the model says does not fit, it raises `WrongType`. `tools` are given to the model as MCP defines
        them; what it wants to be called is in `tool_uses` of what it said.
        """
        question = Sample(as_messages(prompt), system, max_tokens, temperature)
        if answer is not None:
            shape = shape_for(answer)
            data = data_reader(shape)
            asked = with_schema(question, shape.schema)
            return self._asking(asked, lambda value: data(value)[1], key, timeout, priority)
        if tools:
            given = {"tools": [dict(tool) for tool in tools], "toolChoice": {"mode": tool_choice}}
            question = msgspec.structs.replace(question, options=given)
        return self._asking(question, read_sample, key, timeout, priority)

    def branch(
        self,
        *,
        system: str | None = None,
        max_depth: int = 3,
        max_tokens: int | None = None,
        timeout: float | Preset | None = "default",
    ) -> Branch:
        """A conversation with the caller's model: `async with ask.branch() as branch: await branch.say(...)`.

        It may have branches of its own, `max_depth` deep, and cost `max_tokens` with all of them. `timeout`
        is for each reply.
        """

        def sample(
            messages: list[dict[str, Any]], answer: type[Any] | None, **limits: Any
        ) -> Asking[tuple[Sampled | None, Any]]:
            question = Sample(tuple(messages), **limits)
            read: Callable[[dict[str, Any]], tuple[Sampled | None, Any]] = said_only
            if answer is not None:
                shape = shape_for(answer)
                question, read = with_schema(question, shape.schema), kept(data_reader(shape))
            asking = self._asking(question, read, None, timeout, "normal")
            if asking.fallback is not MISSING:
                asking.fallback = None, asking.fallback
            return asking

        return Branch(sample, system, max_depth, max_tokens)

    def roots(
        self,
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[list[Root]]:
        """Ask the client for the folders it works in."""
        return self._asking(Roots(), read_roots, key, timeout, priority)

    # --- several, fallbacks, what is possible ------------------------------------------------

    @overload
    def all(self, a: Asking[T1], b: Asking[T2], /) -> Awaitable[tuple[T1, T2]]: ...
    @overload
    def all(self, a: Asking[T1], b: Asking[T2], c: Asking[T3], /) -> Awaitable[tuple[T1, T2, T3]]: ...
    @overload
    def all(
        self, a: Asking[T1], b: Asking[T2], c: Asking[T3], d: Asking[T4], /
    ) -> Awaitable[tuple[T1, T2, T3, T4]]: ...
    @overload
    def all(self, *askings: Asking[Any]) -> Awaitable[tuple[Any, ...]]: ...
    def all(self, *askings: Asking[Any]) -> Awaitable[tuple[Any, ...]]:
        """Ask several questions in one round; gives the answers in the same order.

        `name, sure = await ask.all(ask.prompt("Name?"), ask.confirm("Sure?"))`. If one is cancelled,
        declined or times out, the others are withdrawn and its error is raised.
        """
        return self._all(askings)

    async def _all(self, askings: tuple[Asking[Any], ...]) -> tuple[Any, ...]:
        given: tuple[Any, ...] = askings
        for one in given:
            if not isinstance(one, Asking):
                hint = ": write ask.all(*them)" if isinstance(one, list | tuple) else ""
                raise TypeError(f"ask.all takes questions, not a {type(one).__name__}{hint}")
        for asking in askings:
            asking.begin()
        answers = [asking.fallback for asking in askings]
        to_ask = [n for n, a in enumerate(askings) if a.answerable or a.fallback is MISSING]
        if to_ask:
            for n, value in zip(to_ask, await self._call.ask([askings[n] for n in to_ask]), strict=True):
                answers[n] = value
        return tuple(answers)

    def or_else(self, **fallbacks: Any) -> "Ask":
        """A view of this `Ask` that answers by itself when the caller **cannot** be asked.

        `ask.or_else(confirm=True, prompt="anonymous")`. A person's cancel, decline or silence is
        never covered: it raises as ever.
        """
        unknown = fallbacks.keys() - KINDS
        if unknown:
            raise TypeError(f"or_else: unknown kind of question {', '.join(sorted(unknown))}")
        return Ask(self._call, self._elicits, {**self._fallbacks, **fallbacks})

    @property
    def supported(self) -> frozenset[str]:
        """The kinds that this caller can answer, of `midcall.questions.KINDS`."""
        return self._call.supported

    @property
    def session(self) -> object:
        """What all calls on one connection, or in one MCP session, have in common; or `None`."""
        return self._call.owner

    def cancel_question(self, asking: "Asking[Any] | str", reason: str = "No longer needed") -> bool:
        """Withdraw an open question: whoever awaits it gets `Cancelled`. False if it is not open."""
        request_id = asking if isinstance(asking, str) else asking.request_id
        return self._call.cancel_question(request_id, reason)

    # --- work --------------------------------------------------------------------------------

    async def step(
        self, function: Callable[..., Any], /, *args: Any, retry_safe: bool = False, **kwargs: Any
    ) -> Any:
        """Run a side effect, once: a call that is run again from its journal gets the value back.

        A plain function runs in a thread. If the process dies in the middle of a step, that step raises
        `StepInterrupted` when the call goes on, as nobody can know whether it happened. With `retry_safe`
        it is repeated instead, also (up to 3 times, waiting longer each time) if it fails. The value must
        be one that JSON can carry; it comes back as the type that the function says it returns.
        """
        return await steps.run(self._trace, function, args, kwargs, retry_safe=retry_safe)

    @property
    def step_key(self) -> str:
        """A key for the next step, the same whenever the call is run again and unlike all others.

        Give it to the outside world, so that it can tell a repetition:
        `await ask.step(charge, card, idempotency_key=ask.step_key)`.
        """
        return self._trace.next_key()

    def now(self) -> dt.datetime:
        """The time (UTC); the same when the call is run again."""
        return dt.datetime.fromisoformat(steps.value(self._trace, "now", lambda: dt.datetime.now(dt.UTC)))

    def uuid(self) -> uuid.UUID:
        """A random UUID; the same when the call is run again."""
        return uuid.UUID(steps.value(self._trace, "uuid", uuid.uuid4))

    def random(self) -> float:
        """A random number from 0 up to 1; the same when the call is run again."""
        return float(steps.value(self._trace, "random", random.random))

    async def sleep(self, seconds: float) -> None:
        """Wait, by the clock on the wall: time in which no process runs counts too."""
        await steps.sleep(self._trace, seconds)

    def background(self) -> None:
        """Let a caller who knows tasks go, and come back for the result; for others nothing changes."""
        self._call.put(Background(self._call.stamp()))

    def progress(self, message: str, percentage: float | None = None) -> None:
        """Tell how far it is, 0 to 100; also while a question waits."""
        if percentage is not None:
            if percentage != percentage:
                raise ValueError("The percentage must be a number")
            percentage = max(0.0, min(100.0, percentage))
        self._call.progress(message, percentage)

    def log(self, message: str, level: Level = "info", data: Any = None) -> None:
        """Send a line of log to the caller."""
        self._call.log(level, message, data)

    # --- inside ------------------------------------------------------------------------------

    @property
    def _trace(self) -> Trace:
        return self._call.own_trace

    def _asking(
        self,
        question: AnyQuestion,
        convert: Callable[[Any], T],
        key: str | None,
        timeout: float | Preset | None,
        priority: Priority,
        to: str | None = None,
    ) -> Asking[T]:
        if not isinstance(question.message, str):
            raise TypeError(f"The message of a question is a text, not {question.message!r}")
        if priority not in PRIORITIES:
            raise ValueError(f"Unknown priority {priority!r}: use {', '.join(PRIORITIES)}")
        if to is not None:
            check_addressee(to)
            to = None if to == self._call.principal else to
        fallback = self._fallbacks.get(question.kind, MISSING)
        seconds = self._seconds(timeout, to)
        return Asking(self._call, question, convert, seconds, priority, key, fallback, to)

    def _seconds(self, timeout: float | Preset | None, to: str | None = None) -> float | None:
        if timeout == "default":
            elsewhere = to is not None and self._call.asks_elsewhere
            timeout = None if elsewhere else self._call.time_limit
        if isinstance(timeout, str):
            if timeout not in PRESETS:
                raise ValueError(f"Unknown time limit {timeout!r}: use seconds, None or {', '.join(PRESETS)}")
            return PRESETS[timeout]
        if timeout is not None and not timeout > 0:
            raise ValueError("A time limit must be more than 0 seconds")
        return None if timeout == math.inf else timeout


def call_of(ask: Ask) -> Call:
    """The call that asks: for what makes other calls in its place, or within it."""
    return ask._call


def _check_type(name: str, value: Any, wanted: type) -> None:
    """Raise `TypeError` for what would reach clients as something that they do not expect."""
    if value is not None and not isinstance(value, wanted):
        raise TypeError(f"{name}={value!r} is not a {wanted.__name__}")


def title_of(model: type[Any]) -> str:
    """The first line of its docstring, unless that is the one that `dataclass` makes; else its name."""
    if getattr(model, "__module__", "") == "builtins":
        return "Please fill in"  # what is said of `list` is for programmers
    first = inspect.cleandoc(model.__doc__ or "").partition("\n")[0]
    return model.__name__ if not first or first.startswith(f"{model.__name__}(") else first


def shape_for(model: type[Any]) -> Any:
    from midcall.schema import shape_of  # noqa: PLC0415  pydantic is slow to import: only when needed

    return shape_of(model)


def schema_reader(schema: dict[str, Any] | None) -> Callable[[Any], Any]:
    if schema is None:
        return same
    from midcall.json_schema import compiled  # noqa: PLC0415  as above

    checked = compiled(schema)

    def read(value: Any) -> Any:
        try:
            reason = checked.fault(value)
        except ValueError as error:  # not of JSON, or too much
            reason = str(error)
        if reason is not None:
            raise WrongAnswer(f"a value that fits the schema ({reason})")
        return value

    return read

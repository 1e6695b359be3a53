"""Ask: the one thing that a tool author meets.

Every question returns an `Asking`: awaiting it asks and waits, and `ask.all` asks several in one
round. An `Asking` has no truth value, so that a forgotten `await` is an error and never a yes.

Built on `call`; knows no hub, protocol or transport.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from midcall.call import Call
from midcall.errors import Cancelled, Declined, MidcallError, WrongAnswer
from midcall.items import Background
from midcall.questions import (
    PRIORITIES,
    RESERVED_TYPE_NAMES,
    Answer,
    AnyQuestion,
    Confirm,
    Confirmed,
    Custom,
    CustomAnswer,
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
    Selected,
    Text,
    Url,
    as_options,
    read_answer,
)

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")

Preset = Literal["quick", "normal", "patient", "extended", "default"]
PRESETS: dict[str, float] = {"quick": 10.0, "normal": 30.0, "patient": 60.0, "extended": 300.0}

Options = Iterable[str | Option | tuple[str, ...] | Mapping[str, Any]]
Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

_MISSING: Any = object()


class Asking(Generic[T]):
    """A question that is ready to be asked: `await` it, or give it to `ask.all`."""

    __slots__ = (
        "_asked",
        "_call",
        "_convert",
        "fallback",
        "key",
        "priority",
        "question",
        "request_id",
        "timeout",
    )

    def __init__(
        self,
        call: Call,
        question: AnyQuestion,
        convert: Callable[[Any], T],
        timeout: float | None,
        priority: Priority,
        key: str | None = None,
        fallback: Any = _MISSING,
    ) -> None:
        self.question = question
        self.timeout = timeout
        self.priority: Priority = priority
        self.key = key
        self.fallback = fallback
        self.request_id = ""
        self._asked = False
        self._call = call
        self._convert = convert

    def __await__(self) -> Generator[Any, None, T]:
        return self._ask().__await__()

    def __bool__(self) -> bool:
        raise TypeError("A question has no truth value before it is answered: `await` is missing")

    def read(self, payload: Any) -> T:
        """The tool's value of an answer; refuses what does not fit (see `call.Wanted`)."""
        answer = read_answer(self.question, payload)
        match answer:
            case Refusal("Declined"):
                if isinstance(self.question, Confirm):
                    return self._convert(False)
                raise Declined("The question was declined")
            case Refusal():
                raise Cancelled("The question was cancelled")
        return self._convert(_value(answer))

    @property
    def answerable(self) -> bool:
        """Whether this caller can be asked this kind of question."""
        return self.question.kind in self._call.supported

    def begin(self) -> None:
        """Mark as asked; the same question cannot be asked twice."""
        if self._asked:
            raise RuntimeError("This question was asked already; make a new one to ask again")
        self._asked = True

    async def _ask(self) -> T:
        self.begin()
        if not self.answerable and self.fallback is not _MISSING:
            return self.fallback  # type: ignore[no-any-return]
        (value,) = await self._call.ask((self,))
        return value  # type: ignore[no-any-return]


class Ask:
    """Ask the caller: a parameter of this type is filled in by the hub, and hidden from the schema.

    Every question takes `key` (a name by which a client may know it), `timeout` (seconds, `None` for no
    limit, or "quick" 10 s, "normal" 30 s, "patient" 60 s, "extended" 300 s) and `priority` ("low",
    "normal", "high", "urgent"; of several open questions the most urgent is shown first). What a
    question may raise is `AskError`: `NotSupported`, `TimedOut`, `Cancelled`, `Declined`, `WrongType`,
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
    ) -> Asking[bool]:
        """Yes or no. Declining is a no; `default` is only what the client pre-fills."""
        return self._asking(Confirm(message, default), _same, key, timeout, priority)

    def prompt(
        self,
        message: str,
        *,
        default: str | None = None,
        placeholder: str | None = None,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[str]:
        """Free text."""
        return self._asking(Prompt(message, default, placeholder), _same, key, timeout, priority)

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
    ) -> Asking[Any]:
        """One of the options; with `multi_select` a list of any of them, also of none.

        An option is a string, `(value, label)`, `(value, label, description)`, a mapping with those
        keys, or an `Option`.
        """
        question = Select(message, as_options(options), multi_select)
        return self._asking(question, list if multi_select else _only, key, timeout, priority)

    def form(
        self,
        model: type[T],
        message: str = "",
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[T]:
        """The fields of a pydantic model, dataclass or `msgspec.Struct`; gives an instance of it."""
        shape = _shape(model)
        message = message or _title(model)
        return self._asking(Form(message, shape.schema), _reader(shape), key, timeout, priority)

    def url(
        self,
        url: str,
        message: str = "Please open this page",
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[None]:
        """Send the person to a page; comes back when they say that they went there."""
        return self._asking(Url(message, url), _nothing, key, timeout, priority)

    def custom(
        self,
        type_name: str,
        data: Any = None,
        schema: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[Any]:
        """A question of your own kind. The answer is any JSON value; with `schema`, one that fits it."""
        if not type_name or type_name in RESERVED_TYPE_NAMES:
            raise ValueError(f"A custom question cannot have the type name {type_name!r}")
        return self._asking(Custom(type_name, data, schema), _schema_reader(schema), key, timeout, priority)

    def __call__(
        self,
        question: Question[T],
        /,
        message: str = "",
        *,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
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
        shape = _shape(question.answer_type)
        data = {"message": message or question.key, **context}
        return self._asking(
            Custom(question.key, data, shape.schema), _reader(shape), question.key, timeout, priority
        )

    # --- a question for a model --------------------------------------------------------------

    def sample(
        self,
        prompt: str | Iterable[Mapping[str, Any]],
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[Sampled]:
        """Ask the caller's model. `prompt` is a text, or messages with `role` and `content`."""
        if isinstance(prompt, str):
            messages: tuple[dict[str, Any], ...] = (
                {"role": "user", "content": {"type": "text", "text": prompt}},
            )
        else:
            messages = tuple(dict(message) for message in prompt)
        question = Sample(messages, system, max_tokens, temperature)
        return self._asking(question, _read_sample, key, timeout, priority)

    def roots(
        self,
        *,
        key: str | None = None,
        timeout: float | Preset | None = "default",
        priority: Priority = "normal",
    ) -> Asking[list[Root]]:
        """Ask the client for the folders it works in."""
        return self._asking(Roots(), _read_roots, key, timeout, priority)

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
        for asking in askings:
            asking.begin()
        answers = [asking.fallback for asking in askings]
        to_ask = [n for n, a in enumerate(askings) if a.answerable or a.fallback is _MISSING]
        if to_ask:
            for n, value in zip(to_ask, await self._call.ask([askings[n] for n in to_ask]), strict=True):
                answers[n] = value
        return tuple(answers)

    def or_else(self, **fallbacks: Any) -> "Ask":
        """A view of this `Ask` that answers by itself when the caller **cannot** be asked.

        `ask.or_else(confirm=True, prompt="anonymous")`. A person's cancel, decline or silence is
        never covered: it raises as ever.
        """
        unknown = fallbacks.keys() - {
            "confirm",
            "prompt",
            "select",
            "form",
            "url",
            "custom",
            "sample",
        }
        if unknown:
            raise TypeError(f"or_else knows no question {', '.join(sorted(unknown))}")
        return Ask(self._call, self._elicits, {**self._fallbacks, **fallbacks})

    @property
    def supported(self) -> frozenset[str]:
        """The kinds that this caller can answer, of `midcall.questions.KINDS`."""
        return self._call.supported

    def cancel_question(self, asking: "Asking[Any] | str", reason: str = "No longer needed") -> bool:
        """Withdraw an open question: whoever awaits it gets `Cancelled`. False if it is not open."""
        request_id = asking if isinstance(asking, str) else asking.request_id
        return self._call.cancel_question(request_id, reason)

    # --- work --------------------------------------------------------------------------------

    async def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a side effect and remember its value in the call. A plain function runs in a thread."""
        if inspect.iscoroutinefunction(function):
            value = await function(*args, **kwargs)
        else:
            value = await asyncio.to_thread(function, *args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
        if self._call.steps is None:
            self._call.steps = []
        self._call.steps.append((getattr(function, "__qualname__", repr(function)), value))
        return value

    def background(self) -> None:
        """Let a caller who knows tasks go, and come back for the result; for others nothing changes."""
        self._call.put(Background(self._call.stamp()))

    def progress(self, message: str, percentage: float | None = None) -> None:
        """Tell how far it is, 0 to 100; also while a question waits."""
        if percentage is not None:
            if percentage != percentage:
                raise ValueError("A percentage must be a number")
            percentage = max(0.0, min(100.0, percentage))
        self._call.progress(message, percentage)

    def log(self, message: str, level: Level = "info", data: Any = None) -> None:
        """Send a line of log to the caller."""
        self._call.log(level, message, data)

    # --- inside ------------------------------------------------------------------------------

    def _asking(
        self,
        question: AnyQuestion,
        convert: Callable[[Any], T],
        key: str | None,
        timeout: float | Preset | None,
        priority: Priority,
    ) -> Asking[T]:
        if priority not in PRIORITIES:
            raise ValueError(f"Unknown priority {priority!r}: use {', '.join(PRIORITIES)}")
        fallback = self._fallbacks.get(question.kind, _MISSING)
        return Asking(self._call, question, convert, self._seconds(timeout), priority, key, fallback)

    def _seconds(self, timeout: float | Preset | None) -> float | None:
        if timeout == "default":
            timeout = self._call.time_limit
        if isinstance(timeout, str):
            if timeout not in PRESETS:
                raise ValueError(f"Unknown time limit {timeout!r}: use seconds, None or {', '.join(PRESETS)}")
            return PRESETS[timeout]
        if timeout is not None and not timeout > 0:
            raise ValueError("A time limit must be more than 0 seconds")
        return None if timeout == math.inf else timeout


def _value(answer: Answer) -> Any:
    match answer:
        case Selected(values):
            return values
        case Confirmed(value) | Text(value) | CustomAnswer(value):
            return value
    raise AssertionError("refusals are handled before")


def _same(value: Any) -> Any:
    return value


def _only(values: tuple[str, ...]) -> str:
    return values[0]


def _nothing(_: Any) -> None:
    return None


def _title(model: type[Any]) -> str:
    """The first line of its docstring, unless that is the one that `dataclass` makes; else its name."""
    first = inspect.cleandoc(model.__doc__ or "").partition("\n")[0]
    return model.__name__ if not first or first.startswith(f"{model.__name__}(") else first


def _shape(model: type[Any]) -> Any:
    from midcall.schema import shape_of  # noqa: PLC0415  pydantic is slow to import: only when needed

    return shape_of(model)


def _reader(shape: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return shape.validate(value)
        except ValueError as error:
            raise WrongAnswer(f"a value that fits the schema ({error})") from None

    return read


def _schema_reader(schema: dict[str, Any] | None) -> Callable[[Any], Any]:
    if schema is None:
        return _same
    from midcall.schema import json_schema_fault  # noqa: PLC0415  as above

    fault = json_schema_fault(schema)

    def read(value: Any) -> Any:
        try:
            reason = fault(value)
        except ValueError as error:  # not of JSON
            reason = str(error)
        if reason is not None:
            raise WrongAnswer(f"a value that fits the schema ({reason})")
        return value

    return read


def _read_roots(value: Any) -> list[Root]:
    try:
        return msgspec.convert(value, list[Root])
    except msgspec.ValidationError as error:
        raise WrongAnswer(f'folders, as in [{{"uri": "file:///..."}}] ({error})') from None


def _read_sample(value: dict[str, Any]) -> Sampled:
    """Read `{"text": ...}`, or a message as MCP clients send it."""
    content = value.get("content")
    if "text" not in value and isinstance(content, dict):
        value = {**value, "text": content.get("text"), "stop_reason": value.get("stopReason")}
    try:
        return msgspec.convert(value, Sampled)
    except msgspec.ValidationError as error:
        raise WrongAnswer(f'what the model said, as in {{"text": "..."}} ({error})') from None

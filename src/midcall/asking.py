"""Asking: a question that is ready to be asked, and the way from its answer to the tool's value.

Awaiting an `Asking` asks and waits. It has no truth value, so that a forgotten `await` is an error and
never a yes. What `Ask` offers are ways to make one.
"""

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from midcall.call import Call
from midcall.errors import Cancelled, Declined, WrongAnswer, WrongType
from midcall.items import to_json
from midcall.open_questions import MISSING
from midcall.questions import (
    SCHEMA,
    USAGE,
    Answer,
    AnyQuestion,
    Confirm,
    Confirmed,
    CustomAnswer,
    Priority,
    Refusal,
    Root,
    Sample,
    Sampled,
    Selected,
    Text,
    read_answer,
)

T = TypeVar("T")


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
    ) -> None:
        self.question = question
        self.timeout = timeout
        self.priority: Priority = priority
        self.key = key
        self.fallback = fallback
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
        if not self.answerable and self.fallback is not MISSING:
            return self.fallback  # type: ignore[no-any-return]
        (value,) = await self._call.ask((self,))
        return value  # type: ignore[no-any-return]


def _value(answer: Answer) -> Any:
    match answer:
        case Selected(values):
            return values
        case Confirmed(value) | Text(value) | CustomAnswer(value):
            return value
    raise AssertionError("refusals are handled before")


def same(value: Any) -> Any:
    return value


def only(values: tuple[str, ...]) -> str:
    return values[0]


def nothing(_: Any) -> None:
    return None


def title_of(model: type[Any]) -> str:
    """The first line of its docstring, unless that is the one that `dataclass` makes; else its name."""
    first = inspect.cleandoc(model.__doc__ or "").partition("\n")[0]
    return model.__name__ if not first or first.startswith(f"{model.__name__}(") else first


def shape_for(model: type[Any]) -> Any:
    from midcall.schema import shape_of  # noqa: PLC0415  pydantic is slow to import: only when needed

    return shape_of(model)


def reader(shape: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return shape.validate(value)
        except ValueError as error:
            raise WrongAnswer(f"a value that fits the schema ({error})") from None

    return read


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


def read_roots(value: Any) -> list[Root]:
    try:
        return msgspec.convert(value, list[Root])
    except msgspec.ValidationError as error:
        raise WrongAnswer(f'folders, as in [{{"uri": "file:///..."}}] ({error})') from None


def read_sample(value: dict[str, Any]) -> Sampled:
    """Read `{"text": ...}`, or a message as MCP clients send it."""
    content = value.get("content")
    if "text" not in value and isinstance(content, dict | list):
        value = {**value, **_in_blocks(content), "stop_reason": value.get("stopReason")}
    usage = (value.get("_meta") or {}).get(USAGE)
    try:
        if usage is not None:
            value = {**value, "tokens": sum(msgspec.convert(usage, dict[str, int]).values())}
        return msgspec.convert(value, Sampled)
    except msgspec.ValidationError as error:
        raise WrongAnswer(f'what the model said, as in {{"text": "..."}} ({error})') from None


def _in_blocks(content: dict[str, Any] | list[Any]) -> dict[str, Any]:
    texts: list[Any] = []
    uses = []
    for block in content if isinstance(content, list) else [content]:
        match block:
            case {"type": "tool_use"}:
                uses.append(block)
            case {"text": text}:
                texts.append(text)
    known = (texts or uses) and all(isinstance(text, str) for text in texts)
    return {"text": "\n".join(texts) if known else None, "tool_uses": uses}


def said_only(value: dict[str, Any]) -> tuple[Sampled, None]:
    """What a model said, without any data in it."""
    return read_sample(value), None


def as_messages(prompt: str | Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """A prompt, as MCP has messages."""
    if isinstance(prompt, str):
        return ({"role": "user", "content": {"type": "text", "text": prompt}},)
    return tuple(dict(message) for message in prompt)


def with_schema(question: Sample, schema: dict[str, Any]) -> Sample:
    """A question to a model for data that fit. Models are told also where the client knows no schemas."""
    wanted = f"Answer with JSON that fits this schema, and nothing else: {to_json(schema).decode()}"
    system = wanted if question.system is None else f"{question.system}\n\n{wanted}"
    return msgspec.structs.replace(question, system=system, options={"_meta": {SCHEMA: schema}})


def data_reader(shape: Any) -> Callable[[Any], tuple[Sampled, Any]]:
    """Reads what a model said, and the data in it. What does not fit is the tool's to know: a model is not
    asked again for ever."""

    def read(value: dict[str, Any]) -> tuple[Sampled, Any]:
        said = read_sample(value)
        try:
            return said, shape.validate(msgspec.json.decode(json_in(said.text)))
        except ValueError as error:  # of the decoder too
            raise WrongType(f"What the model said does not fit: {error}") from None

    return read


def json_in(text: str) -> str:
    """The JSON in what a model said, which may stand in a fence."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped:
        return stripped[stripped.index("\n") : -3]
    return stripped

"""Questions and answers: plain values, and their forms on the wire.

A question is what a call asks; an answer is what comes back. On the wire there are four kinds of
question (`Confirm`, `Prompt`, `Select`, `Custom`), tagged from outside. The richer kinds that a
dialect may know better (`Form`, `Url`, `Sample`) travel as `Custom` where it does not.

Answers come in every form that a client may send (`{"Confirmed": true}`, `true`, `{"type":
"confirmed", "value": true}`); `read_answer` reads them by the question that waits. This module
knows no call and no transport.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from midcall.errors import WrongAnswer, WrongType

T = TypeVar("T")

Priority = Literal["low", "normal", "high", "urgent"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high", "urgent")


class Option(Struct, frozen=True, omit_defaults=True):
    """One choice of a `Select`: what comes back, what is shown, and what explains it."""

    value: str
    label: str
    description: str | None = None


class Confirm(Struct, frozen=True, omit_defaults=True):
    """Yes or no."""

    kind: ClassVar[str] = "confirm"
    message: str
    default: bool | None = None


class Prompt(Struct, frozen=True, omit_defaults=True):
    """Free text."""

    kind: ClassVar[str] = "prompt"
    message: str
    default: str | None = None
    placeholder: str | None = None


class Select(Struct, frozen=True, omit_defaults=True):
    """One of the options, or several with `multi_select`."""

    kind: ClassVar[str] = "select"
    message: str
    options: tuple[Option, ...]
    multi_select: bool = msgspec.field(default_factory=bool)  # always written, unlike the optionals


class Form(Struct, frozen=True):
    """An object that fits a JSON Schema."""

    kind: ClassVar[str] = "form"
    message: str
    schema: dict[str, Any]
    context: dict[str, Any] = {}
    """What a typed question of an MCP server brings along beside its message."""
    exact: str | None = None
    """The message as another MCP server sent it: then an MCP client gets that, and the schema, untouched."""


class Url(Struct, frozen=True):
    """A page to visit; the answer says only that the person went there."""

    kind: ClassVar[str] = "url"
    message: str
    url: str


class Sample(Struct, frozen=True, omit_defaults=True):
    """A question for a model instead of a person."""

    kind: ClassVar[str] = "sample"
    messages: tuple[dict[str, Any], ...]
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    options: dict[str, Any] = {}
    """What else MCP lets a server say (`modelPreferences`, `tools`, ...), in its own words."""

    @property
    def message(self) -> str:
        """The last text, for a person who looks at the open questions."""
        content = self.messages[-1].get("content") if self.messages else ""
        return str(content.get("text", "")) if isinstance(content, dict) else str(content)


class Roots(Struct, frozen=True):
    """Which folders the client works in."""

    kind: ClassVar[str] = "roots"
    message: str = "Which folders do you work in?"


class Custom(Struct, frozen=True, omit_defaults=True):
    """A question of the author's own kind, with its data and, if given, the answer's schema."""

    kind: ClassVar[str] = "custom"
    type_name: str
    data: Any = None
    schema: dict[str, Any] | None = None

    @property
    def message(self) -> str:
        """The text among the data, or the name."""
        text = self.data.get("message") if isinstance(self.data, dict) else None
        return text if isinstance(text, str) else self.type_name

    @property
    def context(self) -> dict[str, Any]:
        """The data without the message."""
        if not isinstance(self.data, dict):
            return {} if self.data is None else {"data": self.data}
        return {name: value for name, value in self.data.items() if name != "message"}


AnyQuestion: TypeAlias = Confirm | Prompt | Select | Form | Url | Sample | Roots | Custom

KINDS: frozenset[str] = frozenset(("confirm", "prompt", "select", "form", "url", "sample", "roots", "custom"))
PERSON_KINDS: frozenset[str] = KINDS - {"sample", "roots"}
RESERVED_TYPE_NAMES = frozenset(("form", "url", "sample", "roots"))


class Question(Generic[T]):
    """A typed question with a key: `pick_flight = Question("pickFlight", FlightChoice)`.

    A method declares it with `@method(elicits=[pick_flight])` and asks it with
    `await ask(pick_flight, "Select your flight", flights=flights)`; what comes back is a
    `FlightChoice`.
    """

    __slots__ = ("answer_type", "key")

    def __init__(self, key: str, answer_type: type[T]) -> None:
        if not key or key in RESERVED_TYPE_NAMES:
            raise ValueError(f"A question cannot have the key {key!r}")
        self.key = key
        self.answer_type = answer_type

    def __repr__(self) -> str:
        return f"Question({self.key!r}, {self.answer_type!r})"


# --- answers --------------------------------------------------------------------------------


class Confirmed(Struct, frozen=True):
    """Yes or no, to a `Confirm`."""

    value: bool


class Text(Struct, frozen=True):
    """Words, to a `Prompt`."""

    value: str


class Selected(Struct, frozen=True):
    """The values chosen, to a `Select`."""

    values: tuple[str, ...]


class CustomAnswer(Struct, frozen=True):
    """Any JSON value, to the other kinds."""

    value: Any


class Refusal(Struct, frozen=True):
    """No answer, and on purpose: the person cancelled or declined."""

    how: Literal["Cancelled", "Declined"]


CANCELLED = Refusal("Cancelled")
DECLINED = Refusal("Declined")

Answer: TypeAlias = Confirmed | Text | Selected | CustomAnswer | Refusal


SCHEMA = "dev.midcall/schema"
"""Under which the metadata of a `Sample` say what the answer must fit."""

USAGE = "dev.midcall/usage"
"""Under which the metadata of a sampling result say what it has cost: `input` and `output`, in tokens."""


class Root(Struct, frozen=True, omit_defaults=True):
    """A folder that the client works in."""

    uri: str
    name: str | None = None


class ToolUse(Struct, frozen=True):
    """A model wants one of the tools that it was given to be called."""

    id: str
    name: str
    input: dict[str, Any] = {}

    def result(self, text: str, *, is_error: bool = False) -> dict[str, Any]:
        """What the tool gave, as a part of the next message to the model."""
        content = [{"type": "text", "text": text}]
        given = {"type": "tool_result", "toolUseId": self.id, "content": content}
        return given | ({"isError": True} if is_error else {})


class Sampled(Struct, frozen=True, omit_defaults=True):
    """What a model said."""

    text: str
    model: str | None = None
    stop_reason: str | None = None
    tool_uses: tuple[ToolUse, ...] = ()
    """What it wants to be called, of the tools that it was given."""
    tokens: int | None = None
    """What it has cost, question and answer together, if the client tells."""

    @property
    def message(self) -> dict[str, Any]:
        """The same as a message, to be given back to the model with the next question."""
        text = [{"type": "text", "text": self.text}] if self.text or not self.tool_uses else []
        uses = [{"type": "tool_use", **msgspec.to_builtins(use)} for use in self.tool_uses]
        return {"role": "assistant", "content": [*text, *uses] if uses else text[0]}


def check_address(url: Any) -> None:
    """Raise `ValueError` unless this is the address of a web page: somebody else wants it to be opened."""
    try:
        parts = urlsplit(url)
        is_page = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable()
    except (AttributeError, TypeError, ValueError):
        is_page = False
    if not is_page or url != url.strip():
        raise ValueError("only web pages can be opened, at http:// or https://")


# --- wire forms -----------------------------------------------------------------------------


def question_to_wire(question: AnyQuestion) -> dict[str, AnyQuestion]:
    """The externally tagged form; its value is a struct that msgspec encodes as an object."""
    match question:
        case Form(message, schema, context):
            data = {"message": message, **({"context": context} if context else {})}
            return {"Custom": Custom("form", data, schema)}
        case Url(message, url):
            return {"Custom": Custom("url", {"message": message, "url": url})}
        case Sample():
            return {"Custom": Custom("sample", msgspec.to_builtins(question))}
        case Roots(message):
            return {"Custom": Custom("roots", {"message": message})}
        case _:
            return {type(question).__name__: question}


_WIRE_TYPES: dict[str, type[Confirm | Prompt | Select | Custom]] = {
    "Confirm": Confirm,
    "Prompt": Prompt,
    "Select": Select,
    "Custom": Custom,
}


def question_from_wire(wire: Any) -> AnyQuestion:
    """Read what `question_to_wire` wrote. Raises `ValueError` for anything else."""
    if not isinstance(wire, dict) or len(wire) != 1:
        raise ValueError("A question has exactly one tag")
    ((tag, body),) = wire.items()
    if tag not in _WIRE_TYPES:
        raise ValueError(f"Unknown kind of question: {tag}")
    question = msgspec.convert(body, _WIRE_TYPES[tag])
    if isinstance(question, Custom) and question.type_name in RESERVED_TYPE_NAMES:
        return _rich_question(question)
    return question


def _rich_question(custom: Custom) -> AnyQuestion:
    data = custom.data if isinstance(custom.data, dict) else {}
    match custom.type_name:
        case "form":
            context = data.get("context")
            context = context if isinstance(context, dict) else {}
            return Form(str(data.get("message", "")), custom.schema or {}, context)
        case "url":
            return Url(str(data.get("message", "")), str(data.get("url", "")))
        case "roots":
            return Roots(str(data.get("message", "")))
        case _:
            return msgspec.convert(data, Sample)


def answer_to_wire(answer: Answer) -> Any:
    """The canonical form of an answer."""
    match answer:
        case Confirmed(value):
            return {"Confirmed": value}
        case Text(value):
            return {"Text": value}
        case Selected(values):
            return {"Selected": list(values)}
        case CustomAnswer(value):
            return {"Custom": value}
        case Refusal(how):
            return how


_TAGS = {"Confirmed": "value", "Text": "value", "Selected": "values", "Custom": "data"}
_LOWER = {"confirmed": "Confirmed", "text": "Text", "selected": "Selected", "custom": "Custom"}
_REFUSALS = {"Cancelled": CANCELLED, "Declined": DECLINED}
_LOWER_REFUSALS = {"cancelled": CANCELLED, "declined": DECLINED}


def read_answer(question: AnyQuestion, payload: Any) -> Answer:
    """Read an answer in any accepted form, by the question that waits for it.

    Raises `WrongAnswer`, saying what was expected, when it does not fit.
    """
    if isinstance(payload, Struct):
        payload = answer_to_wire(payload) if isinstance(payload, Answer) else msgspec.to_builtins(payload)
    refusal = refusal_in(payload)
    if refusal is not None:
        return refusal
    tag, value = _untag(payload)
    match question:
        case Confirm():
            if tag in (None, "Confirmed") and isinstance(value, bool):
                return Confirmed(value)
            raise WrongAnswer('yes or no, as in {"Confirmed": true}')
        case Prompt():
            if tag in (None, "Text") and isinstance(value, str):
                return Text(value)
            raise WrongAnswer('text, as in {"Text": "..."}')
        case Select():
            return _read_selection(question, tag, value)
        case Url():
            if value is False:
                return DECLINED
            if tag in (None, "Confirmed", "Custom"):
                return CustomAnswer(True)
            raise WrongAnswer("that the page was visited, as in true")
        case Sample():
            if tag in (None, "Custom", "Text") and isinstance(value, str):
                return CustomAnswer({"text": value})
            if tag in (None, "Custom") and isinstance(value, dict):
                return CustomAnswer(value)
            raise WrongAnswer('what the model said, as in {"Text": "..."}')
        case _:
            if tag not in (None, "Custom"):
                raise WrongAnswer('a custom value, as in {"Custom": ...}')
            return CustomAnswer(value)


def refusal_in(payload: Any) -> Refusal | None:
    """The refusal that a payload is, in any accepted form; nothing for an answer."""
    if isinstance(payload, str):
        return _REFUSALS.get(payload)
    if isinstance(payload, dict) and len(payload) == 1:
        ((tag, value),) = payload.items()
        if tag == "type" and isinstance(value, str):
            return _LOWER_REFUSALS.get(value)
        if value is None:
            return _REFUSALS.get(tag)
    return None


def _untag(payload: Any) -> tuple[str | None, Any]:
    """Split a tagged answer into tag and value; a bare value has no tag."""
    if isinstance(payload, dict):
        if len(payload) == 1:
            ((tag, value),) = payload.items()
            if tag in _TAGS:
                return tag, value
        if len(payload) == 2 and isinstance(payload.get("type"), str):
            tag = _LOWER.get(payload["type"], "")
            if tag and _TAGS[tag] in payload:
                return tag, payload[_TAGS[tag]]
    return None, payload


def _read_selection(question: Select, tag: str | None, value: Any) -> Selected:
    allowed = {option.value for option in question.options}
    several = question.multi_select
    expected = f"{'any' if several else 'one'} of {', '.join(sorted(allowed))}"
    if tag is None and isinstance(value, str):
        value = [value]
    if tag not in (None, "Selected") or not isinstance(value, list | tuple):
        raise WrongAnswer(expected)
    if not all(isinstance(one, str) and one in allowed for one in value):
        raise WrongAnswer(expected)
    if len(set(value)) != len(value) or (not several and len(value) != 1):
        raise WrongAnswer(expected)
    return Selected(tuple(value))


def as_options(
    options: Iterable[str | Option | tuple[str, ...] | Mapping[str, Any]],
) -> tuple[Option, ...]:
    """Options as authors write them: strings, `(value, label[, description])`, mappings, `Option`s."""
    if isinstance(options, str):
        raise TypeError("The options of a selection must be a list, not a string")
    made = tuple(_as_option(option) for option in options)
    if not made:
        raise ValueError("A selection needs at least one option")
    values = [option.value for option in made]
    if len(set(values)) != len(values):
        raise ValueError("The options of a selection need different values")
    return made


def _as_option(option: str | Option | tuple[str, ...] | Mapping[str, Any]) -> Option:
    match option:
        case Option():
            made = option
        case str():
            made = Option(option, option)
        case (str(value), str(label)) | (str(value), str(label), str() | None):
            made = Option(value, label, *option[2:])
        case Mapping() if "value" in option:
            made = Option(option["value"], option.get("label", option["value"]), option.get("description"))
        case _:
            raise TypeError(f"Not an option of a selection: {option!r}")
    if not (isinstance(made.value, str) and isinstance(made.label, str)):
        raise TypeError(f"The value and label of an option are text, not {option!r}")
    return made


# --- from an answer to the value that a tool gets -------------------------------------------------------


def value_of(answer: Answer) -> Any:
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


def reader(shape: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return shape.validate(value)
        except ValueError as error:
            raise WrongAnswer(f"a value that fits the schema ({error})") from None

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
    """A prompt, as MCP has messages. A text is a block of text."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return tuple(
        {**one, "content": {"type": "text", "text": one["content"]}}
        if isinstance(one.get("content"), str)
        else dict(one)
        for one in messages
    )


def with_schema(question: Sample, schema: dict[str, Any]) -> Sample:
    """A question to a model for data that fit. Models are told also where the client knows no schemas."""
    wanted = (
        f"Answer with JSON that fits this schema, and nothing else: {msgspec.json.encode(schema).decode()}"
    )
    system = wanted if question.system is None else f"{question.system}\n\n{wanted}"
    return msgspec.structs.replace(question, system=system, options={"_meta": {SCHEMA: schema}})


def data_reader(shape: Any) -> Callable[[Any], tuple[Sampled, Any]]:
    """Reads what a model said, and the data in it. What does not fit is the tool's to know: a model is not
    asked again for ever."""

    def read(value: dict[str, Any]) -> tuple[Sampled, Any]:
        said = read_sample(value)
        try:
            return said, shape.validate(read_json(said.text))
        except ValueError as error:
            raise WrongType(f"What the model said does not fit: {error}") from None

    return read


def read_json(text: str) -> Any:
    """The value in what a model said, which may have put it in a fence, or words around it.

    Raises `ValueError`.
    """
    try:
        return msgspec.json.decode(json_in(text))
    except (msgspec.DecodeError, RecursionError) as error:
        begin, end = text.find("{"), text.rfind("}")
        if 0 <= begin < end and text[begin : end + 1] != text:
            return read_json(text[begin : end + 1])
        raise ValueError(str(error)) from None


def json_in(text: str) -> str:
    """The JSON in what a model said, which may stand in a fence."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```") and "\n" in stripped:
        return stripped[stripped.index("\n") : -3]
    return stripped

"""Answers given beforehand: `--yes`, and `--answer KEY=VALUE`.

KEY is a question's number, words of its message, or its key or kind; the first of these that matches counts,
in this order. VALUE is JSON, or text that is read as the kind of question wants it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from midcall.cli.command import UsageError
from midcall.cli.schema_fields import MISSING, SchemaField, fields_of, read_json
from midcall.errors import WrongAnswer
from midcall.items import Request
from midcall.questions import (
    PERSON_KINDS,
    Answer,
    AnyQuestion,
    Confirm,
    Confirmed,
    Custom,
    CustomAnswer,
    Form,
    Option,
    Prompt,
    Select,
    Selected,
    Text,
    Url,
    read_answer,
    refusal_in,
)

_YES = frozenset(("yes", "y", "true", "done", "ok"))
_NO = frozenset(("no", "n", "false"))


class GivenAnswer(NamedTuple):
    """An answer, as text to show and as value, and where it comes from."""

    text: str
    answer: Any
    source: str


class GivenAnswers:
    """The answers that were given beforehand."""

    def __init__(self, pairs: Sequence[str] = (), *, yes: bool = False, source: str = "--answer") -> None:
        self._pairs = [_split(pair) for pair in pairs]
        self._yes = yes
        self._source = source

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of question that can be answered without a person."""
        if self._pairs:
            return PERSON_KINDS
        return frozenset(("confirm",)) if self._yes else frozenset()

    def find(self, request: Request, number: int) -> GivenAnswer | None:
        """The answer to a question, the `number`th of its call, or `None`."""
        question = request.request_type
        for matches in (_by_number, _by_words, _by_name):
            for key, value in self._pairs:
                if matches(key, request, number):
                    return GivenAnswer(value, answer_from_text(question, value), self._source)
        if self._yes and isinstance(question, Confirm):
            return GivenAnswer("yes", Confirmed(True), "--yes")
        return None


def answer_from_text(question: AnyQuestion, text: str) -> Any:
    """The answer that a text stands for: the first reading that fits, or what will be refused."""
    reading: Any = text
    for reading in _readings(question, text):
        try:
            read_answer(question, reading)
        except WrongAnswer:
            continue
        return reading
    return reading


def _readings(question: AnyQuestion, text: str) -> Iterator[Any]:
    value = read_json(text)
    if isinstance(question, Form) and not isinstance(value, dict) and refusal_in(value) is None:
        value = MISSING  # a form takes nothing else
    if value is not MISSING:
        yield value
    yield _bare(question, text)


def _bare(question: AnyQuestion, text: str) -> Answer | str:
    word = text.strip().lower()
    match question:
        case Confirm() if word in _YES | _NO:
            return Confirmed(word in _YES)
        case Prompt():
            return Text(text)
        case Select():
            chosen = text.split(",") if question.multi_select else [text]
            return Selected(tuple(_option(question.options, one.strip()) for one in chosen if one.strip()))
        case Url() if word in _YES:
            return CustomAnswer(True)
        case Custom():
            return CustomAnswer(text)
        case Form() if (field := _only_field(question)) is not None:
            return CustomAnswer({field.name: field.read(text)})
    return text


def _only_field(form: Form) -> SchemaField | None:
    """The field of a form that has no other: over MCP, a question for something else than an object."""
    fields = fields_of(form.schema)
    return fields[0] if len(fields) == 1 else None


def _option(options: Sequence[Option], text: str) -> str:
    """The value of the option that is meant, by its value or its label; MCP adds its description to that."""
    for option in options:
        if text == option.value:
            return text
    word = text.lower()
    for is_meant in (word.__eq__, lambda label: label.startswith(f"{word}: ")):
        for option in options:
            if is_meant(option.label.lower()):
                return option.value
    return text


def _split(pair: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--answer takes KEY=VALUE, as in 1=yes or prompt=Ada, not {pair!r}")
    return key.strip(), value


def _by_number(key: str, request: Request, number: int) -> bool:
    return key == str(number)


def _by_words(key: str, request: Request, number: int) -> bool:
    return (
        not key.isdecimal()
        and not _by_name(key, request, number)
        and key.lower() in request.request_type.message.lower()
    )


def _by_name(key: str, request: Request, number: int) -> bool:
    """By the kind of the question, or by the key that its tool has given it."""
    return key.lower() in (request.request_type.kind, (request.key or "").lower())

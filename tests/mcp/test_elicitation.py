"""Questions and answers of MCP, there and back: whoever answers for a client gives what the client would."""

import datetime as dt
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import _v2025_11_25, _v2026_07_28
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from midcall.errors import WrongAnswer
from midcall.mcp.elicitation import answer_from, inexpressible, question_from, request_for, result_for
from midcall.questions import (
    CANCELLED,
    DECLINED,
    Answer,
    AnyQuestion,
    Confirm,
    Confirmed,
    Custom,
    CustomAnswer,
    Form,
    Option,
    Prompt,
    Roots,
    Sample,
    Select,
    Selected,
    Text,
    Url,
    read_answer,
)
from midcall.schema import shape_of

words = st.text(max_size=12)
options = st.lists(st.builds(Option, words, words), min_size=1, max_size=4, unique_by=lambda o: o.value)
schema = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "floor": {"type": "integer"}},
    "required": ["street"],
}


@st.composite
def answered(draw: st.DrawFn) -> tuple[AnyQuestion, Answer]:
    """A question, and an answer that fits it."""
    message = draw(words)
    refusals = st.sampled_from([CANCELLED, DECLINED])
    kind = draw(st.sampled_from(["confirm", "prompt", "select", "several", "form", "url", "sample", "roots"]))
    question: AnyQuestion
    answers: st.SearchStrategy[Any]
    match kind:
        case "confirm":
            question = Confirm(message, draw(st.none() | st.booleans()))
            answers = st.builds(Confirmed, st.booleans()) | refusals
        case "prompt":
            question = Prompt(message, draw(st.none() | words), draw(st.none() | words))
            answers = st.builds(Text, words) | refusals
        case "select" | "several":
            given = tuple(draw(options))
            question = Select(message, given, kind == "several")
            values = st.sampled_from([option.value for option in given])
            chosen = st.lists(values, unique=True) if kind == "several" else values.map(lambda one: [one])
            answers = chosen.map(lambda some: Selected(tuple(some))) | refusals
        case "form":
            question = Form(message, schema)
            answers = st.just(CustomAnswer({"street": "Main", "floor": 3})) | refusals
        case "url":
            question = Url(message, "https://example.com")
            answers = st.just(CustomAnswer(True)) | refusals
        case "sample":
            question = Sample(({"role": "user", "content": {"type": "text", "text": message}},))
            answers = st.builds(lambda text: CustomAnswer({"text": text}), words)
        case _:
            question = Roots()
            answers = st.just(CustomAnswer([{"uri": "file:///a"}]))
    return question, draw(answers)


@given(answered())
def test_an_answer_in_the_clients_place_is_what_the_client_would_give(
    pair: tuple[AnyQuestion, Answer],
) -> None:
    question, answer = pair
    method, params = request_for(question)
    seen = question_from(method, params)
    assert (seen.kind, seen.message) == (question.kind, question.message)
    read = read_answer(question, answer_from(question, result_for(seen, answer)))
    if isinstance(question, Sample) and isinstance(answer, CustomAnswer):
        assert isinstance(read, CustomAnswer)
        assert read.value["content"]["text"] == answer.value["text"]
    else:
        assert read == answer


@given(answered())
def test_a_question_is_seen_as_it_is_asked(pair: tuple[AnyQuestion, Answer]) -> None:
    question, _ = pair
    asked = request_for(question)
    if not isinstance(question, Sample):
        assert request_for(question_from(*asked)) == asked


def test_what_is_no_object_is_asked_for_as_the_field_of_one() -> None:
    for wanted, value in (
        ({"type": "integer", "minimum": 1}, 3),
        ({"type": "array", "items": {"type": "object"}}, [{}]),
    ):
        question = Custom("rating", {"message": "How many?"}, wanted)
        _, params = request_for(question)
        asked = params["requestedSchema"]
        assert asked["required"] == ["value"]
        assert asked["properties"]["value"].items() >= wanted.items()
        for content in ({"value": value}, value):
            assert answer_from(question, {"action": "accept", "content": content}) == {"Custom": value}
    assert inexpressible(Custom("rating", None, {"type": "integer"})) is None
    assert inexpressible(Custom("rating", None, {"type": "array", "items": {"type": "object"}}))
    choice = {"$ref": "#/$defs/Size", "$defs": {"Size": {"type": "string", "enum": ["S", "L"]}}}
    assert inexpressible(Custom("size", None, choice)) is None
    _, params = request_for(Custom("size", None, choice))
    assert params["requestedSchema"]["properties"]["value"]["enum"] == ["S", "L"]


# --- models ----------------------------------------------------------------------------------


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(BaseModel):
    x: int


OFFICIAL = [
    TypeAdapter[Any](version.PrimitiveSchemaDefinition, config=ConfigDict(extra="forbid"))
    for version in (_v2025_11_25, _v2026_07_28)
]


def form_for(model: Any) -> tuple[Form, dict[str, Any]]:
    """A question for a model, and the schema by which it is asked, which has only what MCP has."""
    question = Form("Please", shape_of(model).schema)
    assert inexpressible(question) is None
    asked = request_for(question)[1]["requestedSchema"]
    assert asked.keys() <= {"type", "properties", "required"}
    for field in asked["properties"].values():
        for official in OFFICIAL:
            read = official.validate_python(field)
            assert read.model_dump(by_alias=True, exclude_unset=True) == field
    return question, asked


def answer(question: Form, model: Any, **content: Any) -> Any:
    """What the tool gets when a client accepts with this content."""
    read = read_answer(question, answer_from(question, {"action": "accept", "content": content}))
    assert isinstance(read, CustomAnswer)
    return shape_of(model).validate(read.value)


class Plain(BaseModel):
    text: str | None = None
    number: int | None = None
    share: Annotated[float, Field(ge=0, le=1)] | None = None
    yes: bool | None = None
    size: Size | None = None
    word: Literal["a", "b"] | None = None
    inside: Literal["a", "b", None] = None  # noqa: PYI061  its schema is another one
    day: dt.date | None = None
    moment: dt.datetime | None = None
    several: list[Size] | None = None
    price: Decimal | None = None
    asked_for: str | None
    """Required by the model, but null will do."""


class Struct(msgspec.Struct):
    size: Size | None = None
    level: Annotated[int, msgspec.Meta(gt=0)] | None = None
    several: list[Level] | None = None


def test_an_optional_field_is_one_that_may_be_left_out() -> None:
    question, asked = form_for(Plain)
    assert "required" not in asked
    assert asked["properties"] == {
        "text": {"type": "string"},
        "number": {"type": "integer"},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "yes": {"type": "boolean"},
        "size": {"type": "string", "title": "Size", "enum": ["s", "l"]},
        "word": {"type": "string", "enum": ["a", "b"]},
        "inside": {"type": "string", "enum": ["a", "b"]},
        "day": {"type": "string", "format": "date"},
        "moment": {"type": "string", "format": "date-time"},
        "several": {"type": "array", "items": {"type": "string", "enum": ["s", "l"]}},
        "price": {"type": "number"},
        "asked_for": {"type": "string"},
    }
    nothing = Plain(asked_for=None)
    assert answer(question, Plain) == nothing
    assert answer(question, Plain, **dict.fromkeys(asked["properties"])) == nothing
    assert answer(question, Plain, **dict.fromkeys(asked["properties"], "")) == nothing
    given = answer(
        question, Plain, text="t", number=0, share=0.5, yes=False, size="l", word="a", inside="b",
        day="2030-12-31", moment="2030-12-31T10:00:00Z", several=["l", "s"], price=1.25, asked_for="it",
    )  # fmt: skip
    assert given == Plain(
        text="t", number=0, share=0.5, yes=False, size=Size.LARGE, word="a", inside="b",
        day=dt.date(2030, 12, 31), moment=dt.datetime(2030, 12, 31, 10, tzinfo=dt.UTC),
        several=[Size.LARGE, Size.SMALL], price=Decimal("1.25"), asked_for="it",
    )  # fmt: skip


def test_structs_have_optional_fields_and_choices_too() -> None:
    question, asked = form_for(Struct)
    assert "required" not in asked
    assert asked["properties"]["level"] == {"type": "integer", "minimum": 1}
    assert answer(question, Struct) == Struct()
    assert answer(question, Struct, size="l", level=3, several=["2", "1"]) == Struct(
        Size.LARGE, 3, [Level.HIGH, Level.LOW]
    )


def test_a_proposal_is_what_a_client_shows_first_and_what_is_emptied_is_none() -> None:
    class Proposed(BaseModel):
        name: str = "Ann"
        nick: str | None = "Annie"
        size: Size = Size.LARGE
        level: Level = Level.HIGH
        several: list[Size] = [Size.SMALL]
        price: Decimal = Decimal("1.5")

    question, asked = form_for(Proposed)
    assert "required" not in asked
    defaults = {name: field.get("default") for name, field in asked["properties"].items()}
    assert defaults == {
        "name": "Ann", "nick": "Annie", "size": "l", "level": "2", "several": ["s"], "price": None,
    }  # fmt: skip
    assert answer(question, Proposed) == Proposed(nick=None)
    assert answer(question, Proposed, nick="") == Proposed(nick=None)
    assert answer(question, Proposed, **dict.fromkeys(defaults)) == Proposed(nick=None)
    assert answer(question, Proposed, name="", several=[]) == Proposed(name="", nick=None, several=[])


def test_several_choices_are_a_multi_select_enum() -> None:
    class Several(BaseModel):
        enums: list[Size]
        words: Annotated[list[Literal["a", "b"]], Field(min_length=1, max_length=2, description="Which?")]
        unordered: set[Size] = {Size.SMALL}
        levels: tuple[Level, ...] = ()

    question, asked = form_for(Several)
    assert asked["required"] == ["enums", "words"]
    assert asked["properties"] == {
        "enums": {"type": "array", "items": {"type": "string", "enum": ["s", "l"]}},
        "words": {
            "type": "array",
            "description": "Which?",
            "items": {"type": "string", "enum": ["a", "b"]},
            "minItems": 1,
            "maxItems": 2,
        },
        "unordered": {"type": "array", "items": {"type": "string", "enum": ["s", "l"]}, "default": ["s"]},
        "levels": {"type": "array", "items": {"type": "string", "enum": ["1", "2"]}},
    }
    assert answer(question, Several, enums=["l"], words=["b", "a"], levels=["2"]) == Several(
        enums=[Size.LARGE], words=["b", "a"], levels=(Level.HIGH,)
    )


def test_choices_that_are_no_text_come_back_as_they_were() -> None:
    class Rated(BaseModel):
        stars: Literal[1, 2, 3]
        level: Level
        agreed: Literal[True]

    question, asked = form_for(Rated)
    assert asked["properties"]["stars"] == {"type": "string", "enum": ["1", "2", "3"]}
    assert asked["properties"]["agreed"] == {"type": "string", "enum": ["true"]}
    rated = Rated(stars=3, level=Level.HIGH, agreed=True)
    assert answer(question, Rated, stars="3", level="2", agreed="true") == rated
    assert answer(question, Rated, stars=3, level=2, agreed=True) == rated


def test_titles_of_choices_are_kept() -> None:
    titled = [{"const": "a", "title": "First"}, {"const": "b", "title": "Second"}]
    for one in ({"oneOf": titled}, {"anyOf": titled}, {"enum": ["a", "b"], "enumNames": ["First", "Second"]}):
        schema = {"type": "object", "properties": {"one": one, "some": {"type": "array", "items": one}}}
        asked = request_for(Form("?", schema))[1]["requestedSchema"]["properties"]
        assert asked["one"] == {"type": "string", **(one if "enum" in one else {"oneOf": titled})}
        assert asked["some"] == {"type": "array", "items": {"anyOf": titled}}


def test_limits_that_mcp_does_not_have_become_those_that_it_has() -> None:
    class Bounded(BaseModel):
        above: Annotated[int, Field(gt=0, lt=10)]
        both: Annotated[int, Field(gt=0, ge=5)]
        share: Annotated[float, Field(gt=0, lt=1)]
        name: Annotated[str, Field(min_length=2, max_length=9, pattern="^[A-Z]")]
        at: dt.time

    _, asked = form_for(Bounded)
    assert asked["properties"] == {
        "above": {"type": "integer", "minimum": 1, "maximum": 9},
        "both": {"type": "integer", "minimum": 5},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "name": {"type": "string", "minLength": 2, "maxLength": 9},
        "at": {"type": "string"},
    }


def test_a_value_that_may_be_null_is_an_optional_field() -> None:
    for kind, said, value in ((int | None, 3, 3), (list[Size] | None, ["l"], ["l"]), (Size | None, "s", "s")):
        question = Custom("it", {"message": "Which?"}, shape_of(kind).schema)
        assert inexpressible(question) is None
        asked = request_for(question)[1]["requestedSchema"]
        assert "required" not in asked
        assert answer_from(question, {"action": "accept", "content": {"value": said}}) == {"Custom": value}
        for content in ({}, {"value": None}, {"value": ""}):
            assert answer_from(question, {"action": "accept", "content": content}) == {"Custom": None}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (bytes, "'it', which is a file"),
        (Point | Plain, "'it', which is a value of several types"),
        (dict[str, int], "'it', which is an object"),
        (list[str], "'it', which is a list of other things than choices"),
        (list[Point], "'it', which is a list of other things than choices"),
        (tuple[int, int], "'it', which is a list of other things than choices"),
        (int | str, "'it', which is a value of several types"),
        (int | str | None, "'it', which is a value of several types"),
        (Literal[1, "1"], "'it', which is a choice among values that look alike"),
        (Any, "'it', which is any value"),
    ],
)
def test_what_has_no_form_is_refused_by_the_name_of_its_field(kind: Any, why: str) -> None:
    class Model(BaseModel):
        name: str
        it: kind

    reason = inexpressible(Form("?", shape_of(Model).schema))
    assert reason == f"An MCP form cannot ask for {why}: it has text, numbers, yes or no, and choices"


def test_what_is_no_form_at_all_is_refused_with_the_reason() -> None:
    for schema, why in (
        (None, "an object of unknown fields"),
        ({"type": "object"}, "an object of unknown fields"),
        ({"type": "array", "items": {}}, "a list of other things than choices"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "a value of several types"),
    ):
        assert f"cannot ask for {why}:" in str(inexpressible(Custom("it", None, schema)))


KEYWORDS = st.sampled_from([
    "type", "properties", "required", "items", "anyOf", "oneOf", "enum", "const", "default", "$ref", "$defs",
    "a", "title", "enumNames", "minimum", "exclusiveMinimum", "format",
])  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "string", "array", "#/$defs/a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(KEYWORDS, json_values, max_size=5))
def test_any_schema_is_a_form_or_is_refused(schema: dict[str, Any]) -> None:
    question = Form("?", schema)
    reason = inexpressible(question)
    asked = request_for(question)[1]["requestedSchema"]
    if reason is None:
        for field in asked["properties"].values():
            OFFICIAL[0].validate_python(field)
    for content in ({}, {"a": None}, {"a": ["a"]}, {"a": [{}]}, {"value": "a"}):
        answer_from(question, {"action": "accept", "content": content})


def test_the_content_of_a_form_is_an_object() -> None:
    question, _ = form_for(Plain)
    for content in (None, "text", ["text"], 7):
        with pytest.raises(WrongAnswer, match="as an object"):
            answer_from(question, {"action": "accept", "content": content})

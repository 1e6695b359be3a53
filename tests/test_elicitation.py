"""Questions and answers of MCP, there and back: whoever answers for a client gives what the client would."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from midcall.mcp.elicitation import answer_from, expressible, question_from, request_for, result_for
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
    assert expressible(Custom("rating", None, {"type": "integer"}))
    assert not expressible(Custom("rating", None, {"type": "array", "items": {"type": "object"}}))
    choice = {"$ref": "#/$defs/Size", "$defs": {"Size": {"type": "string", "enum": ["S", "L"]}}}
    assert expressible(Custom("size", None, choice))
    _, params = request_for(Custom("size", None, choice))
    assert params["requestedSchema"]["properties"]["value"]["enum"] == ["S", "L"]

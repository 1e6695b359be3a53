"""Properties of the wire forms: what is written is read back, and no input breaks the reader."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcall import CANCELLED, DECLINED, Option, WrongAnswer
from midcall.items import (
    Data,
    Done,
    Error,
    Metadata,
    Progress,
    Request,
    RequestCancelled,
    decode_item,
    encode_item,
    to_json,
)
from midcall.questions import (
    PRIORITIES,
    Confirm,
    Confirmed,
    Custom,
    CustomAnswer,
    Form,
    Prompt,
    Sample,
    Select,
    Selected,
    Text,
    Url,
    answer_to_wire,
    question_from_wire,
    question_to_wire,
    read_answer,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=3)


def maybe(strategy):
    return st.none() | strategy


options = st.lists(
    st.builds(Option, texts, texts, maybe(texts)), min_size=1, max_size=4, unique_by=lambda o: o.value
).map(tuple)
names = texts.filter(lambda name: name not in ("form", "url", "sample"))
confirms = st.builds(Confirm, texts, maybe(st.booleans()))
prompts = st.builds(Prompt, texts, maybe(texts), maybe(texts))
selects = st.builds(Select, texts, options, st.booleans())
forms = st.builds(Form, texts, objects)
urls = st.builds(Url, texts, texts)
samples = st.builds(
    Sample,
    st.lists(objects, max_size=2).map(tuple),
    maybe(texts),
    maybe(st.integers(1, 9999)),
    maybe(st.floats(0, 2)),
)
customs = st.builds(Custom, names, values, maybe(objects))
questions = st.one_of(confirms, prompts, selects, forms, urls, samples, customs)


@given(questions)
def test_a_question_is_read_back_from_its_wire_form(question):
    wire = json.loads(to_json(question_to_wire(question)))
    assert question_from_wire(wire) == question


@st.composite
def questions_with_answers(draw):
    question = draw(questions)
    match question:
        case Confirm():
            answer = draw(st.builds(Confirmed, st.booleans()))
        case Prompt():
            answer = draw(st.builds(Text, texts))
        case Select():
            allowed = st.sampled_from([option.value for option in question.options])
            several = question.multi_select
            chosen = st.lists(
                allowed, unique=True, min_size=0 if several else 1, max_size=None if several else 1
            )
            answer = draw(st.builds(Selected, chosen.map(tuple)))
        case Url():
            answer = CustomAnswer(True)
        case Sample():
            answer = draw(st.builds(CustomAnswer, objects))
        case _:
            answer = draw(st.builds(CustomAnswer, values))
    return question, answer


def bare(value):
    tags = {"Confirmed", "Text", "Selected", "Custom", "Cancelled", "Declined", "type"}
    has_tag = tags.intersection(value) if isinstance(value, dict) else value in ("Cancelled", "Declined")
    return [] if has_tag else [value]


def spellings(answer):
    """Every form in which WIRE.md accepts this answer; a bare one only where it has no second meaning."""
    match answer:
        case Confirmed(value):
            return [{"Confirmed": value}, value, {"type": "confirmed", "value": value}]
        case Text(value):
            return [{"Text": value}, {"type": "text", "value": value}, *bare(value)]
        case Selected(chosen):
            chosen = list(chosen)
            alone = bare(chosen[0]) if len(chosen) == 1 else []
            return [{"Selected": chosen}, chosen, {"type": "selected", "values": chosen}, *alone]
        case CustomAnswer(value):
            return [{"Custom": value}, {"type": "custom", "data": value}, *bare(value)]
        case _:
            lower = {"type": answer.how.lower()}
            return [answer.how, lower, {answer.how: None}]


@given(questions_with_answers())
def test_an_answer_is_read_back_from_its_wire_form(pair):
    question, answer = pair
    assert read_answer(question, json.loads(to_json(answer_to_wire(answer)))) == answer
    assert read_answer(question, answer) == answer


@given(questions_with_answers())
def test_every_spelling_of_an_answer_reads_the_same(pair):
    question, answer = pair
    assert [read_answer(question, spelling) for spelling in spellings(answer)] == [answer] * len(
        spellings(answer)
    )


@given(questions, st.sampled_from([CANCELLED, DECLINED]))
def test_every_spelling_of_a_refusal_reads_the_same(question, refusal):
    assert {read_answer(question, spelling) for spelling in spellings(refusal)} == {refusal}


tagged = st.dictionaries(
    st.sampled_from(["Confirmed", "Text", "Selected", "Custom", "Cancelled", "Declined", "type", "value", "values", "data"]),
    values | st.sampled_from(["confirmed", "text", "selected", "custom", "cancelled", "declined"]),
    max_size=3,
)  # fmt: skip


@given(questions, values | tagged)
def test_any_json_is_an_answer_or_a_wrong_answer_and_never_breaks(question, payload):
    try:
        answer = read_answer(question, payload)
    except WrongAnswer as wrong:
        assert wrong.expected
    else:
        assert read_answer(question, answer_to_wire(answer)) == answer


metadata = st.builds(
    Metadata, st.lists(texts, max_size=3).map(tuple), st.text("0123456789abcdef", min_size=16, max_size=16), st.integers(0, 2**40)
)  # fmt: skip
items = st.one_of(
    st.builds(Data, metadata, texts, values),
    st.builds(Progress, metadata, texts, maybe(st.floats(0, 100) | st.integers(0, 100))),
    st.builds(Request, metadata, texts, questions, maybe(st.integers(1, 10**9)), st.sampled_from(PRIORITIES)),
    st.builds(RequestCancelled, metadata, texts, texts),
    st.builds(Error, metadata, texts, texts, st.booleans()),
    st.builds(Done, metadata),
)


@given(items)
def test_an_item_is_read_back_from_its_wire_form(item):
    encoded = encode_item(item)
    assert decode_item(encoded) == item
    assert json.loads(encoded)["type"] in (
        "data",
        "progress",
        "request",
        "request_cancelled",
        "error",
        "done",
    )


@given(
    st.binary(max_size=40) | values.map(to_json) | objects.map(lambda o: to_json({"type": "request", **o}))
)
def test_bytes_that_are_no_item_are_a_value_error(data):
    with contextlib.suppress(ValueError):
        decode_item(data)


HEAD = Metadata(("plexus", "files"), "0123456789abcdef", 1_700_000_000)
WIRE_HEAD = {"provenance": ["plexus", "files"], "plexus_hash": "0123456789abcdef", "timestamp": 1_700_000_000}


@pytest.mark.parametrize(
    ("item", "wire"),
    [
        (
            Data(HEAD, "ns.method", {"a": 1}),
            {"type": "data", "content_type": "ns.method", "content": {"a": 1}},
        ),
        (Progress(HEAD, "half", 40), {"type": "progress", "message": "half", "percentage": 40}),
        (Progress(HEAD, "some"), {"type": "progress", "message": "some"}),
        (
            Request(HEAD, "id", Confirm("Go?", False), 30000),
            {"type": "request", "request_id": "id", "timeout_ms": 30000}
            | {"request_type": {"Confirm": {"message": "Go?", "default": False}}},
        ),
        (
            RequestCancelled(HEAD, "id", "late"),
            {"type": "request_cancelled", "request_id": "id", "reason": "late"},
        ),
        (
            Error(HEAD, "broken", "tool_error"),
            {"type": "error", "message": "broken", "code": "tool_error", "recoverable": False},
        ),
        (Done(HEAD), {"type": "done"}),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_items_have_exactly_the_members_of_the_wire_document(item, wire):
    assert json.loads(encode_item(item)) == {"metadata": WIRE_HEAD, **wire}

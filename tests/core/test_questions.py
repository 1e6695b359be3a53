"""Every form of answer that WIRE.md accepts, for every kind of question, and what is refused."""

import msgspec
import pytest

from midcall import CANCELLED, DECLINED, Option, Question, WrongAnswer
from midcall.questions import (
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
    as_options,
    question_from_wire,
    question_to_wire,
    read_answer,
)

CONFIRM = Confirm("Delete 5 files?")
PROMPT = Prompt("Name?")
ONE = Select("Where?", as_options(["dev", "prod"]))
MANY = Select("Which?", as_options(["a", "b", "c"]), True)
CUSTOM = Custom("file_picker", {"root": "/"})
FORM = Form("Who?", {"type": "object"})
URL = Url("Please sign in", "https://example.org")
SAMPLE = Sample(({"role": "user", "content": {"type": "text", "text": "Hi"}},))
ALL = [CONFIRM, PROMPT, ONE, MANY, CUSTOM, FORM, URL, SAMPLE]


def kind(question):
    return question.kind


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    "form", [lambda v: {"Confirmed": v}, lambda v: v, lambda v: {"type": "confirmed", "value": v}]
)
def test_a_confirm_takes_every_form_of_yes_and_no(form, value):
    assert read_answer(CONFIRM, form(value)) == Confirmed(value)


@pytest.mark.parametrize("value", ["x", "", "true", "日本語\n"])
@pytest.mark.parametrize("form", [lambda v: {"Text": v}, lambda v: v, lambda v: {"type": "text", "value": v}])
def test_a_prompt_takes_every_form_of_text(form, value):
    assert read_answer(PROMPT, form(value)) == Text(value)


@pytest.mark.parametrize(
    "payload", [{"Selected": ["dev"]}, "dev", ["dev"], {"type": "selected", "values": ["dev"]}]
)
def test_a_select_takes_every_form_of_a_choice(payload):
    assert read_answer(ONE, payload) == Selected(("dev",))


@pytest.mark.parametrize(
    "payload", [{"Selected": ["c", "a"]}, ["c", "a"], {"type": "selected", "values": ["c", "a"]}]
)
def test_a_multi_select_takes_several_choices_in_the_order_given(payload):
    assert read_answer(MANY, payload) == Selected(("c", "a"))


@pytest.mark.parametrize("payload", [{"Selected": []}, [], {"type": "selected", "values": []}])
def test_a_multi_select_takes_no_choice_at_all(payload):
    assert read_answer(MANY, payload) == Selected(())


def test_a_multi_select_takes_one_bare_choice():
    assert read_answer(MANY, "b") == Selected(("b",))


@pytest.mark.parametrize(
    "value", [None, True, 0, 1.5, "x", [], [1, "a"], {}, {"path": "/tmp"}, {"a": 1, "b": 2}]
)
@pytest.mark.parametrize(
    "form", [lambda v: {"Custom": v}, lambda v: {"type": "custom", "data": v}, lambda v: v]
)
@pytest.mark.parametrize("question", [CUSTOM, FORM], ids=kind)
def test_a_custom_question_takes_any_json_value(question, form, value):
    assert read_answer(question, form(value)) == CustomAnswer(value)


@pytest.mark.parametrize("payload", [True, {"Confirmed": True}, {"Custom": True}, None, {}, {"Custom": None}])
def test_a_url_takes_that_the_page_was_visited(payload):
    assert read_answer(URL, payload) == CustomAnswer(True)


@pytest.mark.parametrize("payload", [False, {"Confirmed": False}, {"Custom": False}])
def test_a_no_to_a_url_declines_it(payload):
    assert read_answer(URL, payload) == DECLINED


@pytest.mark.parametrize("payload", [{"Text": "x"}, {"Selected": ["a"]}])
def test_a_url_refuses_an_answer_that_is_tagged_as_another_kind(payload):
    with pytest.raises(WrongAnswer, match="visited"):
        read_answer(URL, payload)


@pytest.mark.parametrize(
    "payload",
    ["Hello", {"Text": "Hello"}, {"Custom": "Hello"}, {"text": "Hello"}, {"Custom": {"text": "Hello"}}],
)
def test_a_sample_takes_what_a_model_said_as_text_or_object(payload):
    assert read_answer(SAMPLE, payload) == CustomAnswer({"text": "Hello"})


@pytest.mark.parametrize("payload", ["Cancelled", {"type": "cancelled"}, {"Cancelled": None}])
@pytest.mark.parametrize("question", ALL, ids=kind)
def test_every_question_takes_every_form_of_cancelled(question, payload):
    assert read_answer(question, payload) == CANCELLED


@pytest.mark.parametrize("payload", ["Declined", {"type": "declined"}, {"Declined": None}])
@pytest.mark.parametrize("question", ALL, ids=kind)
def test_every_question_can_be_declined(question, payload):
    assert read_answer(question, payload) == DECLINED


@pytest.mark.parametrize("question", ALL, ids=kind)
def test_a_refusal_can_be_given_as_its_value_in_process(question):
    assert read_answer(question, CANCELLED) == CANCELLED
    assert read_answer(question, DECLINED) == DECLINED


@pytest.mark.parametrize(
    "payload",
    [
        None, 1, 0, "yes", "true", [], [True], {}, {"Confirmed": "yes"}, {"Confirmed": 1}, {"Confirmed": None},
        {"Text": "yes"}, {"Selected": ["yes"]}, {"Custom": True}, {"type": "confirmed"}, {"confirmed": True},
        {"type": "text", "value": "x"}, {"Confirmed": True, "Text": "x"}, {"type": "confirmed", "value": "true"},
        "cancelled", {"Cancelled": 1}, {"type": "Cancelled"},
    ],
)  # fmt: skip
def test_a_confirm_refuses_anything_that_is_not_yes_or_no(payload):
    with pytest.raises(WrongAnswer, match="yes or no"):
        read_answer(CONFIRM, payload)


@pytest.mark.parametrize(
    "payload",
    [None, 1, True, [], ["x"], {}, {"Text": 1}, {"Text": None}, {"Confirmed": True}, {"Selected": ["x"]},
     {"Custom": "x"}, {"type": "text", "value": 1}, {"text": "x"}],
)  # fmt: skip
def test_a_prompt_refuses_anything_that_is_not_text(payload):
    with pytest.raises(WrongAnswer, match="expected text"):
        read_answer(PROMPT, payload)


@pytest.mark.parametrize(
    "payload",
    [None, 1, True, "test", "", [], ["test"], ["dev", "prod"], ["dev", "dev"], [["dev"]], [None], {}, {"dev": 1},
     {"Selected": []}, {"Selected": ["dev", "prod"]}, {"Selected": ["test"]}, {"Selected": "dev"},
     {"Selected": None}, {"Text": "dev"}, {"Confirmed": True}, {"Custom": ["dev"]},
     {"type": "selected", "values": ["test"]}, {"type": "selected", "value": ["dev"]}],
)  # fmt: skip
def test_a_single_select_refuses_all_but_one_of_its_options(payload):
    with pytest.raises(WrongAnswer, match="one of dev, prod"):
        read_answer(ONE, payload)


@pytest.mark.parametrize(
    "payload", ["d", ["a", "d"], ["a", "a"], {"Selected": ["d"]}, {"Text": "a"}, 3, None]
)
def test_a_multi_select_refuses_what_is_not_among_its_options_or_comes_twice(payload):
    with pytest.raises(WrongAnswer, match="any of a, b, c"):
        read_answer(MANY, payload)


@pytest.mark.parametrize("payload", [{"Confirmed": True}, {"Text": "x"}, {"Selected": ["a"]}])
@pytest.mark.parametrize("question", [CUSTOM, FORM], ids=kind)
def test_a_custom_question_refuses_an_answer_that_is_tagged_as_another_kind(question, payload):
    with pytest.raises(WrongAnswer, match="custom"):
        read_answer(question, payload)


@pytest.mark.parametrize("payload", [None, 1, True, [], {"Confirmed": True}, {"Text": 1}])
def test_a_sample_refuses_what_no_model_says(payload):
    with pytest.raises(WrongAnswer, match="model said"):
        read_answer(SAMPLE, payload)


def test_a_refused_answer_says_that_the_question_is_still_open_and_what_was_expected():
    with pytest.raises(WrongAnswer) as caught:
        read_answer(ONE, "test")
    assert str(caught.value) == "Wrong answer: expected one of dev, prod. The question is still open."
    assert caught.value.data == {"expected": "one of dev, prod"}


def test_a_tagged_answer_may_be_the_word_cancelled():
    assert read_answer(PROMPT, {"Text": "Cancelled"}) == Text("Cancelled")
    assert read_answer(Select("?", as_options(["Cancelled"])), ["Cancelled"]) == Selected(("Cancelled",))
    assert read_answer(CUSTOM, {"Custom": "Cancelled"}) == CustomAnswer("Cancelled")


# --- the wire form of questions and answers -------------------------------------------------


def wire(question):
    return msgspec.json.decode(msgspec.json.encode(question_to_wire(question)))


def test_questions_are_tagged_from_outside_and_leave_out_what_is_absent():
    assert wire(CONFIRM) == {"Confirm": {"message": "Delete 5 files?"}}
    assert wire(Confirm("Go?", False)) == {"Confirm": {"message": "Go?", "default": False}}
    assert wire(PROMPT) == {"Prompt": {"message": "Name?"}}
    assert wire(Prompt("Name?", "me", "you")) == {
        "Prompt": {"message": "Name?", "default": "me", "placeholder": "you"}
    }
    assert wire(Select("Where?", (Option("a", "A", "first"), Option("b", "B")))) == {
        "Select": {
            "message": "Where?",
            "options": [{"value": "a", "label": "A", "description": "first"}, {"value": "b", "label": "B"}],
            "multi_select": False,
        }
    }
    assert wire(MANY)["Select"]["multi_select"] is True
    assert wire(CUSTOM) == {"Custom": {"type_name": "file_picker", "data": {"root": "/"}}}
    assert wire(Custom("x", None, {"type": "string"})) == {
        "Custom": {"type_name": "x", "schema": {"type": "string"}}
    }


def test_form_url_and_sample_travel_as_custom_questions_with_a_reserved_name():
    assert wire(FORM) == {
        "Custom": {"type_name": "form", "data": {"message": "Who?"}, "schema": {"type": "object"}}
    }
    assert wire(URL)["Custom"]["type_name"] == "url"
    assert wire(SAMPLE)["Custom"]["type_name"] == "sample"


@pytest.mark.parametrize(
    "not_a_question",
    [None, [], "Confirm", {}, {"Confirm": {"message": "a"}, "Prompt": {"message": "b"}}, {"Confirm": {}},
     {"Nothing": {}}, {"Confirm": {"message": 5}}, {"Select": {"message": "?"}}, {"Custom": {"data": 1}},
     {"Custom": {"type_name": "sample"}}, {"confirm": {"message": "?"}}],
)  # fmt: skip
def test_anything_else_is_no_question(not_a_question):
    with pytest.raises(ValueError):
        question_from_wire(not_a_question)


def test_the_canonical_answers_are_those_of_the_wire_document():
    assert answer_to_wire(Confirmed(True)) == {"Confirmed": True}
    assert answer_to_wire(Text("x")) == {"Text": "x"}
    assert answer_to_wire(Selected(("a",))) == {"Selected": ["a"]}
    assert answer_to_wire(CustomAnswer({"x": 1})) == {"Custom": {"x": 1}}
    assert answer_to_wire(CANCELLED) == "Cancelled"
    assert answer_to_wire(DECLINED) == "Declined"


# --- options and names ----------------------------------------------------------------------


def test_options_may_be_strings_pairs_triples_mappings_or_options():
    assert as_options(
        ["dev", ("prod", "Production"), ("t", "Test", "Slow"), {"value": "x"},
         {"value": "y", "label": "Y", "description": "why"}, Option("z", "Z")]
    ) == (
        Option("dev", "dev"), Option("prod", "Production"), Option("t", "Test", "Slow"), Option("x", "x"),
        Option("y", "Y", "why"), Option("z", "Z"),
    )  # fmt: skip


@pytest.mark.parametrize("options", [[], ["a", "a"], ["a", ("a", "Other")]])
def test_options_must_be_some_and_differ_in_value(options):
    with pytest.raises(ValueError, match="option"):
        as_options(options)


@pytest.mark.parametrize(
    "options", ["abc", [1, 2], [None], [("a",)], [(1, "One")], [{"label": "A"}], [{"value": 1}]]
)
def test_options_that_nobody_could_answer_are_refused_when_they_are_made(options):
    with pytest.raises(TypeError, match="option"):
        as_options(options)


@pytest.mark.parametrize("key", ["form", "url", "sample", ""])
def test_a_typed_question_cannot_take_a_reserved_name(key):
    with pytest.raises(ValueError, match="cannot have the key"):
        Question(key, str)

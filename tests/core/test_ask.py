"""Ask: what a tool author meets. Everything is asked through a hub in this process."""

import asyncio
import dataclasses
import functools
import math
import re
import threading
import time
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field

from driving import LIMIT, assert_nothing_left, drive, kinds, requests, until
from midcall import (
    CANCELLED,
    DECLINED,
    Ask,
    Cancelled,
    Declined,
    Hub,
    Log,
    NotSupported,
    Option,
    Progress,
    Question,
    Request,
    RequestCancelled,
    Sampled,
    Status,
    TimedOut,
    UnknownQuestion,
    WrongAnswer,
    method,
)
from midcall.ask import Asking
from midcall.questions import Confirm
from midcall.replay import Trace, asked, recall_answers
from midcall.testing import run

KINDS = {"confirm", "prompt", "select", "form", "url", "custom", "sample", "roots"}


def hub_of(function, **options) -> Hub:
    """A hub whose method `tool.go` is this function of an `Ask`."""

    async def go(self, ask: Ask):
        return await function(ask)

    return Hub().register(type("Tool", (), {"go": method(**options)(go)})())


def outcome_of(function, answers=None, **options):
    """Run the tool to its end, with these answers."""

    async def main():
        hub = hub_of(function)
        outcome = await run(hub, "tool.go", answers=answers, **options)
        await assert_nothing_left(hub)
        return outcome

    return drive(main())


def result_of(function, answers=None, **options):
    return outcome_of(function, answers, **options).result


def asking(make):
    """A tool that asks one question."""

    async def tool(ask):
        return await make(ask)

    return tool


# --- the questions --------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [True, False])
def test_confirm_gives_yes_or_no(answer):
    outcome = outcome_of(asking(lambda ask: ask.confirm("Delete?", default=True)), [{"Confirmed": answer}])
    assert outcome.result is answer
    assert outcome.questions[0].request_type.message == "Delete?"
    assert outcome.questions[0].request_type.default is True


def test_declining_a_confirm_is_a_no():
    assert result_of(asking(lambda ask: ask.confirm("Delete?", default=True)), [DECLINED]) is False


def test_prompt_gives_text():
    outcome = outcome_of(asking(lambda ask: ask.prompt("Name?", default="me", placeholder="you")), ["Ada"])
    assert outcome.result == "Ada"
    assert outcome.questions[0].request_type.default == "me"
    assert outcome.questions[0].request_type.placeholder == "you"


def test_select_gives_one_value():
    options = [
        "dev",
        ("prod", "Production"),
        {"value": "t", "label": "Test", "description": "Slow"},
        Option("x", "X"),
    ]
    outcome = outcome_of(asking(lambda ask: ask.select("Where?", options)), [["prod"]])
    assert outcome.result == "prod"
    assert [option.label for option in outcome.questions[0].request_type.options] == [
        "dev",
        "Production",
        "Test",
        "X",
    ]


@pytest.mark.parametrize("answer", [[], ["b"], ["c", "a"]])
def test_select_with_multi_select_gives_a_list(answer):
    result = result_of(asking(lambda ask: ask.select("Which?", ["a", "b", "c"], multi_select=True)), [answer])
    assert result == answer
    assert type(result) is list


class Person(BaseModel):
    """Who are you?

    More words.
    """

    name: str
    age: Annotated[int, Field(ge=0)] = 0


@dataclasses.dataclass
class PersonData:
    name: str
    age: int = 0


class PersonStruct(msgspec.Struct):
    name: str
    age: int = 0


@pytest.mark.parametrize("model", [Person, PersonData, PersonStruct])
def test_form_gives_an_instance_of_the_model(model):
    tool = asking(lambda ask: ask.form(model, "Who?"))
    outcome = outcome_of(tool, [{"name": "Ada", "age": 36}])
    assert outcome.result == model(name="Ada", age=36)
    assert outcome.questions[0].request_type.message == "Who?"
    assert "name" in str(outcome.questions[0].request_type.schema)
    assert result_of(tool, [{"Custom": {"name": "Ada"}}]) == model(name="Ada")
    assert result_of(tool, [model(name="Bob")]) == model(name="Bob")
    with pytest.raises(WrongAnswer, match="fits the schema"):
        result_of(tool, [{"name": "Ada", "age": "old"}])
    with pytest.raises(WrongAnswer):
        result_of(tool, [{}])


def test_a_form_of_a_strict_model_reads_json_as_json():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        when: __import__("datetime").date
        who: Person

    answer = {"when": "2026-07-28", "who": {"name": "Ada"}}
    assert result_of(asking(lambda ask: ask.form(Strict)), [answer]).when.year == 2026


@pytest.mark.parametrize(
    ("model", "message"),
    [(Person, "Who are you?"), (PersonData, "PersonData"), (PersonStruct, "PersonStruct")],
)
def test_a_form_without_a_message_has_the_models_first_line_or_name(model, message):
    outcome = outcome_of(asking(lambda ask: ask.form(model)), [{"name": "Ada"}])
    assert outcome.questions[0].request_type.message == message


def test_url_comes_back_when_the_person_went_there():
    outcome = outcome_of(asking(lambda ask: ask.url("https://example.org", "Sign in")), [True])
    assert outcome.result is None
    assert outcome.questions[0].request_type.url == "https://example.org"
    with pytest.raises(Declined):
        result_of(asking(lambda ask: ask.url("https://example.org")), [DECLINED])


@pytest.mark.parametrize("value", [0, "x", [1], {"path": "/tmp"}])
def test_custom_gives_any_json_value(value):
    outcome = outcome_of(asking(lambda ask: ask.custom("file_picker", {"root": "/"})), [value])
    assert outcome.result == value
    assert outcome.questions[0].request_type.type_name == "file_picker"
    assert outcome.questions[0].request_type.data == {"root": "/"}


def test_custom_with_a_schema_takes_only_what_fits():
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tool = asking(lambda ask: ask.custom("file_picker", schema=schema))
    assert result_of(tool, [{"path": "/tmp"}]) == {"path": "/tmp"}
    for wrong in ({}, {"path": 1}, "x", object()):
        with pytest.raises(WrongAnswer, match="fits the schema"):
            result_of(tool, [wrong])


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}])
def test_custom_with_a_schema_that_is_none_fails_when_asked(schema):
    error = outcome_of(asking(lambda ask: ask.custom("x", schema=schema)), []).error
    assert "Not a JSON Schema" in str(error)


@pytest.mark.parametrize("name", ["form", "url", "sample", ""])
def test_custom_cannot_take_a_reserved_name(name):
    assert "cannot have the type name" in str(outcome_of(asking(lambda ask: ask.custom(name)), []).error)


class Flight(BaseModel):
    flight: str


pick_flight = Question("pickFlight", Flight)
pick_age = Question("pickAge", Annotated[int, Field(ge=0)])


def test_a_typed_question_carries_its_context_and_gives_its_type():
    async def tool(ask):
        return await ask(pick_flight, "Select your flight", flights=["LH1", "LH2"], question="why", key=1)

    hub = hub_of(tool, elicits=[pick_flight])
    outcome = drive(run(hub, "tool.go", answers=[{"flight": "LH1"}]))
    assert outcome.result == Flight(flight="LH1")
    question = outcome.questions[0].request_type
    assert question.type_name == "pickFlight"
    assert question.data == {
        "message": "Select your flight",
        "flights": ["LH1", "LH2"],
        "question": "why",
        "key": 1,
    }
    assert question.schema["required"] == ["flight"]
    with pytest.raises(WrongAnswer, match="flight: is required"):
        drive(run(hub, "tool.go", answers=[{}]))


def test_a_typed_question_may_be_of_any_type_that_json_describes():
    async def tool(ask):
        return await ask(pick_age)

    hub = hub_of(tool, elicits=[pick_age])
    assert drive(run(hub, "tool.go", answers=[5])).result == 5
    with pytest.raises(WrongAnswer, match="greater than or equal to 0"):
        drive(run(hub, "tool.go", answers=[-5]))


def test_a_typed_question_that_the_method_does_not_declare_is_an_error():
    async def tool(ask):
        return await ask(pick_flight)

    error = outcome_of(tool, []).error
    assert "tool.go asks 'pickFlight' but does not declare it" in str(error)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Hello", Sampled("Hello")),
        ({"Text": "Hello"}, Sampled("Hello")),
        ({"text": "Hello", "model": "m", "stop_reason": "end"}, Sampled("Hello", "m", "end")),
        (
            {
                "role": "assistant",
                "content": {"type": "text", "text": "Hello"},
                "model": "m",
                "stopReason": "endTurn",
            },
            Sampled("Hello", "m", "endTurn"),
        ),
        (Sampled("Hello", "m"), Sampled("Hello", "m")),
    ],
)
def test_sample_gives_what_the_model_said(answer, expected):
    outcome = outcome_of(
        asking(lambda ask: ask.sample("Say hello", system="Be kind", max_tokens=5)), [answer]
    )
    assert outcome.result == expected
    question = outcome.questions[0].request_type
    assert question.messages == ({"role": "user", "content": {"type": "text", "text": "Say hello"}},)
    assert (question.system, question.max_tokens) == ("Be kind", 5)
    said = asking(lambda ask: ask.sample([{"role": "user", "content": "Say hello"}]))
    assert outcome_of(said, [answer]).questions[0].request_type.messages == question.messages


@pytest.mark.parametrize("wrong", [{}, {"text": 5}, {"content": {"type": "image"}}, 7, None])
def test_sample_refuses_what_no_model_says(wrong):
    with pytest.raises(WrongAnswer, match="model said"):
        result_of(asking(lambda ask: ask.sample("Say hello")), [wrong])


def test_while_a_model_is_asked_the_call_awaits_a_sample():
    seen = []

    async def main():
        hub = hub_of(asking(lambda ask: ask.sample([{"role": "user", "content": "Hi"}])))

        def answer(request):
            seen.append([info.status for info in hub.calls.list()])
            return "Hello"

        await hub.call("tool.go", answer=answer)

    drive(main())
    assert seen == [[Status.AWAITING_SAMPLE]]


# --- refusals -------------------------------------------------------------------------------

ASKINGS = {
    "confirm": lambda ask: ask.confirm("?"),
    "prompt": lambda ask: ask.prompt("?"),
    "select": lambda ask: ask.select("?", ["a"]),
    "form": lambda ask: ask.form(Person),
    "url": lambda ask: ask.url("https://example.org"),
    "custom": lambda ask: ask.custom("x"),
    "sample": lambda ask: ask.sample("?"),
    "roots": lambda ask: ask.roots(),
}
FALLBACKS = dict.fromkeys(KINDS, "fallback")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_cancel_raises_cancelled(kind):
    with pytest.raises(Cancelled):
        result_of(asking(ASKINGS[kind]), [CANCELLED])


@pytest.mark.parametrize("kind", sorted(KINDS - {"confirm"}))
def test_a_decline_raises_declined(kind):
    with pytest.raises(Declined):
        result_of(asking(ASKINGS[kind]), [DECLINED])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_caller_that_cannot_be_asked_gives_not_supported(kind):
    with pytest.raises(NotSupported, match="interactive mode required"):
        result_of(asking(ASKINGS[kind]))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_caller_that_takes_other_kinds_only_gives_not_supported(kind):
    with pytest.raises(NotSupported, match=f"cannot answer a question of kind {kind}"):
        result_of(asking(ASKINGS[kind]), [], supports=KINDS - {kind})


def test_the_tool_can_ask_what_is_supported():
    async def tool(ask):
        return sorted(ask.supported)

    assert result_of(tool) == []
    assert result_of(tool, [], supports={"confirm", "sample"}) == ["confirm", "sample"]
    assert result_of(tool, []) == sorted(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_or_else_covers_a_caller_that_cannot_be_asked(kind):
    assert result_of(asking(lambda ask: ASKINGS[kind](ask.or_else(**FALLBACKS)))) == "fallback"


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(("answer", "error"), [(CANCELLED, Cancelled), (DECLINED, Declined)])
def test_or_else_never_turns_a_refusal_into_a_yes(kind, answer, error):
    tool = asking(lambda ask: ASKINGS[kind](ask.or_else(**FALLBACKS)))
    if kind == "confirm" and answer is DECLINED:
        assert result_of(tool, [answer]) is False
    else:
        with pytest.raises(error):
            result_of(tool, [answer])


def test_or_else_does_not_cover_a_timeout():
    tool = asking(lambda ask: ask.or_else(confirm=True).confirm("?", timeout=0.01))
    with pytest.raises(TimedOut):
        result_of(tool, lambda request: asyncio.sleep(LIMIT))


def test_or_else_covers_only_the_kinds_that_are_named_and_leaves_the_ask_itself_alone():
    async def tool(ask):
        careful = ask.or_else(confirm=False).or_else(prompt="anonymous")
        results = [await careful.confirm("?"), await careful.prompt("?")]
        for make in (lambda: careful.select("?", ["a"]), lambda: ask.confirm("?")):
            try:
                await make()
            except NotSupported:
                results.append("not supported")
        return results

    assert result_of(tool) == [False, "anonymous", "not supported", "not supported"]


def test_or_else_refuses_a_question_that_it_does_not_know():
    async def tool(ask):
        ask.or_else(cofnirm=True)

    assert "or_else: unknown kind of question cofnirm" in str(outcome_of(tool).error)


# --- mistakes of authors --------------------------------------------------------------------


def test_what_is_no_question_is_not_asked_with_others():
    async def tool(ask):
        await ask.all([begun(30)])

    assert str(outcome_of(tool, []).error).endswith("not a list: write ask.all(*them)")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_forgotten_await_is_an_error_and_never_a_yes(kind):
    async def tool(ask):
        return "yes" if ASKINGS[kind](ask) else "no"

    error = outcome_of(tool, []).error
    assert "add `await`" in str(error)


def test_the_same_question_cannot_be_asked_twice():
    async def tool(ask):
        question = ask.confirm("?")
        await question
        await question

    assert "has already been asked" in str(outcome_of(tool, [True]).error)


@pytest.mark.parametrize(
    ("ask_wrongly", "message"),
    [
        (lambda ask: ask.form("Your order?", dict), r"comes first: ask.form\(Order"),
        (lambda ask: ask.form(None), r"comes first: ask.form\(Order"),
        (lambda ask: ask.confirm(5), "message of a question is a text, not 5"),
        (lambda ask: ask.prompt(None), "message of a question is a text, not None"),
        (lambda ask: ask.confirm("?", default="yes"), "default='yes' is not a bool"),
        (lambda ask: ask.prompt("How many?", default=5), "default=5 is not a str"),
        (lambda ask: ask.prompt("?", placeholder=5), "placeholder=5 is not a str"),
    ],
)
def test_what_clients_would_not_understand_is_refused_when_the_question_is_made(ask_wrongly, message):
    async def tool(ask):
        ask_wrongly(ask)

    assert re.search(message, str(outcome_of(tool, []).error))


def test_a_form_of_a_type_of_python_itself_has_no_words_for_programmers():
    async def tool(ask):
        asking = ask.form(list[str])
        asking.begin()
        return asking.question.message

    assert outcome_of(tool, []).result == "Please fill in"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "more than 0"),
        ({"timeout": -1}, "more than 0"),
        ({"timeout": math.nan}, "more than 0"),
        ({"timeout": "soon"}, "Unknown time limit 'soon'"),
        ({"priority": "asap"}, "Unknown priority 'asap'"),
    ],
)
def test_a_time_limit_or_priority_that_is_none_is_refused_when_the_question_is_made(options, message):
    async def tool(ask):
        ask.confirm("?", **options)

    assert message in str(outcome_of(tool, []).error)


# --- time limits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "milliseconds"),
    [
        ("quick", 10_000),
        ("normal", 30_000),
        ("patient", 60_000),
        ("extended", 300_000),
        ("default", 30_000),
        (2.5, 2500),
        (0.0001, 1),
        (None, None),
        (math.inf, None),
    ],
)
def test_time_limits_are_presets_seconds_or_none(timeout, milliseconds):
    outcome = outcome_of(asking(lambda ask: ask.confirm("?", timeout=timeout)), lambda request: True)
    if timeout != 0.0001:  # which may well pass
        assert outcome.result is True
    assert outcome.questions[0].timeout_ms == milliseconds


def test_the_default_time_limit_is_that_of_the_call():
    async def main():
        hub = hub_of(asking(lambda ask: ask.confirm("?")))
        limits = []
        for limit in (30.0, 7.0, None, math.inf):
            items = [item async for item in hub.call("tool.go", answer=lambda _: True, time_limit=limit)]
            limits.append(items[0].timeout_ms)
        return limits

    assert drive(main()) == [30_000, 7000, None, None]


def test_a_question_that_nobody_answers_times_out_and_is_withdrawn():
    async def tool(ask):
        try:
            await ask.confirm("?", timeout=0.02)
        except TimedOut as error:
            return f"gone on: {error}"

    outcome = outcome_of(tool, lambda request: asyncio.sleep(LIMIT))
    assert outcome.result == "gone on: Nobody answered in time (after 0.02 seconds)"
    assert kinds(outcome.items) == ["Request", "RequestCancelled", "Data", "Done"]
    assert outcome.items[1].request_id == outcome.items[0].request_id
    assert outcome.items[1].reason == "timed out"


def begun(seconds):
    """A question of no call, as it is being asked."""
    asking = Asking(None, Confirm("?"), bool, seconds, "normal")
    asking.begin()
    return asking


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.5, "0.5 seconds"), (1, "1 second"), (30, "30 seconds"), (90, "1.5 minutes"), (7 * 86_400, "7 days")],
)
def test_a_question_that_timed_out_while_no_process_ran_tells_the_whole_time(seconds, said):
    def question():
        return begun(seconds)

    async def main():
        before = question()
        recall_answers(Trace("c", kept=True), [before])
        before.since = time.time() - seconds - 60
        with pytest.raises(TimedOut, match=re.escape(f"Nobody answered in time (after {said})")):
            recall_answers(Trace("c", [asked(before)], kept=True), [question()])

    drive(main())


def test_a_question_that_is_asked_again_by_another_process_keeps_its_time():
    async def main():
        before = begun(30)
        recall_answers(Trace("c", kept=True), [before])
        before.since = time.time() - 10
        again = begun(30)
        recall_answers(Trace("c", [asked(before)], kept=True), [again])
        assert (again.since, again.timeout) == (before.since, pytest.approx(30))
        assert asked(again) == asked(before)

    drive(main())


def test_an_error_that_the_tool_does_not_catch_is_the_calls_error():
    outcome = outcome_of(
        asking(lambda ask: ask.confirm("?", timeout=0.01)), lambda request: asyncio.sleep(LIMIT)
    )
    assert outcome.items[-2].code == "timed_out"
    assert outcome.items[-2].recoverable is True
    assert isinstance(outcome.error, TimedOut)


def test_a_default_is_never_used_as_the_answer():
    with pytest.raises(TimedOut):
        result_of(
            asking(lambda ask: ask.confirm("?", default=True, timeout=0.01)),
            lambda request: asyncio.sleep(LIMIT),
        )


# --- several questions ----------------------------------------------------------------------


def test_all_asks_in_one_round_and_gives_the_answers_in_order():
    async def main():
        async def tool(ask):
            return await ask.all(ask.prompt("Name?"), ask.confirm("Sure?"), ask.select("Where?", ["a", "b"]))

        hub = hub_of(tool)
        call = hub.call("tool.go", supports=KINDS)
        open_at_once = []
        asked = []
        async for item in call:
            if isinstance(item, Request):
                asked.append(item)
            if len(asked) == 3 and not open_at_once:
                open_at_once = hub.calls.list()[0].questions
                for request, answer in zip(reversed(asked), ("b", False, "Ada"), strict=True):
                    await call.answer(request.request_id, answer)
            result = getattr(item, "content", None) or None
            if result is not None:
                assert result == ("Ada", False, "b")
        assert len(open_at_once) == 3
        await assert_nothing_left(hub)

    drive(main())


def test_all_of_nothing_asks_nothing():
    async def tool(ask):
        return await ask.all()

    assert result_of(tool) == ()


@pytest.mark.parametrize(("answer", "error"), [(CANCELLED, Cancelled), (DECLINED, Declined)])
def test_the_first_failure_of_all_withdraws_the_others(answer, error):
    async def main():
        async def tool(ask):
            try:
                await ask.all(ask.prompt("one"), ask.prompt("two"), ask.prompt("three"))
            except error:
                return hub.calls.open_questions
            return "answered"

        hub = hub_of(tool)
        call = hub.call("tool.go", supports=KINDS)
        items, asked = [], []
        async for item in call:
            items.append(item)
            if isinstance(item, Request):
                asked.append(item.request_id)
                if len(asked) == 3:
                    await call.answer(asked[0], "fine")
                    await call.answer(asked[1], answer)
                    for other in asked:  # in the same moment, before the tool has seen it
                        with pytest.raises(UnknownQuestion):
                            await call.answer(other, "late")
        assert kinds(items) == ["Request"] * 3 + ["RequestCancelled", "Data", "Done"]
        assert items[3].request_id == asked[2]
        assert items[4].content == 0
        await assert_nothing_left(hub)

    drive(main())


def test_a_timeout_of_one_withdraws_all():
    async def tool(ask):
        await ask.all(ask.prompt("one", timeout=0.02), ask.prompt("two", timeout=None))

    outcome = outcome_of(tool, lambda request: asyncio.sleep(LIMIT))
    assert isinstance(outcome.error, TimedOut)
    assert kinds(outcome.items) == [
        "Request",
        "Request",
        "RequestCancelled",
        "RequestCancelled",
        "Error",
        "Done",
    ]


def test_all_with_a_kind_that_is_not_supported_asks_none_of_them():
    async def tool(ask):
        await ask.all(ask.confirm("?"), ask.prompt("?"))

    outcome = outcome_of(tool, [], supports={"confirm"})
    assert isinstance(outcome.error, NotSupported)
    assert outcome.questions == []


def test_all_takes_fallbacks_for_those_that_cannot_be_asked():
    async def tool(ask):
        ask = ask.or_else(prompt="anonymous", confirm=True)
        return await ask.all(ask.prompt("?"), ask.confirm("?"), ask.prompt("?"))

    assert result_of(tool, [False], supports={"confirm"}) == ("anonymous", False, "anonymous")
    assert result_of(tool) == ("anonymous", True, "anonymous")


def test_questions_of_one_round_are_emitted_and_listed_the_most_urgent_first():
    async def main():
        async def tool(ask):
            return await ask.all(
                ask.confirm("low", priority="low"),
                ask.confirm("normal"),
                ask.confirm("urgent", priority="urgent"),
                ask.confirm("high", priority="high"),
                ask.confirm("normal too"),
            )

        hub = hub_of(tool)
        call = hub.call("tool.go", supports=KINDS)
        asked, expected = [], ["urgent", "high", "normal", "normal too", "low"]
        async for item in call:
            if isinstance(item, Request):
                asked.append(item)
                if len(asked) == 5:
                    assert [q.message for q in hub.calls.list()[0].questions] == expected
                    for request in asked:
                        await call.answer(request.request_id, request.request_type.message == "low")
            elif type(item).__name__ == "Data":
                assert item.content == (True, False, False, False, False)
        assert [request.request_type.message for request in asked] == expected
        assert [request.priority for request in asked] == ["urgent", "high", "normal", "normal", "low"]

    drive(main())


def test_a_later_question_of_higher_priority_is_listed_first():
    async def main():
        async def tool(ask):
            later = asyncio.ensure_future(ask.prompt("first"))
            await asyncio.sleep(0)
            return [await ask.prompt("second", priority="high"), await later]

        hub = hub_of(tool)
        call = hub.call("tool.go", supports=KINDS)
        asked = []
        async for item in call:
            if isinstance(item, Request):
                asked.append(item)
                if len(asked) == 2:
                    assert [q.message for q in hub.calls.list()[0].questions] == ["second", "first"]
                    for request in asked:
                        await call.answer(request.request_id, request.request_type.message)
            elif type(item).__name__ == "Data":
                assert item.content == ["second", "first"]
        await assert_nothing_left(hub)

    drive(main())


def test_questions_can_be_gathered():
    async def tool(ask):
        return await asyncio.gather(ask.prompt("a"), ask.confirm("b"), ask.select("c", ["x", "y"]))

    answers = {"a": "A", "b": True, "c": "y"}
    assert result_of(tool, lambda request: answers[request.request_type.message]) == ["A", True, "y"]


def test_a_refusal_of_one_gathered_question_ends_the_call_and_withdraws_the_others():
    async def tool(ask):
        return await asyncio.gather(ask.prompt("a"), ask.prompt("b"), ask.prompt("c"))

    async def answer(request):
        return CANCELLED if request.request_type.message == "b" else await asyncio.sleep(LIMIT)

    outcome = outcome_of(tool, answer)
    assert isinstance(outcome.error, Cancelled)
    assert kinds(outcome.items)[-4:] == ["RequestCancelled", "RequestCancelled", "Error", "Done"]


def test_a_refusal_in_a_task_group_keeps_its_meaning():
    async def tool(ask):
        async def one(message):
            return await ask.prompt(message)

        async with asyncio.TaskGroup() as group:
            group.create_task(one("a"))
            group.create_task(one("b"))

    async def answer(request):
        return DECLINED if request.request_type.message == "a" else await asyncio.sleep(LIMIT)

    assert isinstance(outcome_of(tool, answer).error, Declined)


# --- withdrawing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "by", [lambda asking: asking, lambda asking: asking.request_id], ids=["asking", "id"]
)
def test_a_question_can_be_withdrawn_and_its_waiter_gets_cancelled(by):
    async def tool(ask):
        question = ask.confirm("?")
        assert not ask.cancel_question(question)  # not asked yet
        waiting = asyncio.ensure_future(question)
        await until(lambda: question.request_id)
        assert ask.cancel_question(by(question), "Found it elsewhere")
        assert not ask.cancel_question(by(question))
        with pytest.raises(Cancelled, match="Found it elsewhere"):
            await waiting
        return "gone on"

    outcome = outcome_of(tool, lambda request: asyncio.sleep(LIMIT))
    assert outcome.result == "gone on"
    assert kinds(outcome.items) == ["Request", "RequestCancelled", "Data", "Done"]
    assert outcome.items[1].reason == "Found it elsewhere"


def test_a_tool_that_stops_waiting_withdraws_its_question():
    async def tool(ask):
        try:
            async with asyncio.timeout(0.02):
                await ask.confirm("?")
        except TimeoutError:
            return "gone on"

    outcome = outcome_of(tool, lambda request: asyncio.sleep(LIMIT))
    assert outcome.result == "gone on"
    assert kinds(outcome.items) == ["Request", "RequestCancelled", "Data", "Done"]


# --- work -----------------------------------------------------------------------------------


def test_a_step_runs_once_and_gives_its_value():
    ran = []

    def plain(a, *, b):
        ran.append(threading.current_thread() is threading.main_thread())
        return a + b

    async def coroutine(a, b):
        ran.append(threading.current_thread() is threading.main_thread())
        return a * b

    async def tool(ask):
        return [
            await ask.step(plain, 1, b=2),
            await ask.step(coroutine, 3, b=4),
            await ask.step(functools.partial(coroutine, 5), 6),
            await ask.step(lambda: coroutine(7, 8)),
        ]

    assert result_of(tool) == [3, 12, 30, 56]
    assert ran == [False, True, True, True]


def test_a_step_that_fails_raises_in_the_tool():
    async def tool(ask):
        with pytest.raises(ZeroDivisionError):
            await ask.step(lambda: 1 / 0)
        return "gone on"

    assert result_of(tool) == "gone on"


def test_progress_goes_out_at_once_also_while_a_question_waits():
    async def tool(ask):
        ask.progress("started")
        waiting = asyncio.ensure_future(ask.confirm("?"))
        await asyncio.sleep(0)
        ask.progress("still here", 40)
        return await waiting

    async def main():
        call = hub_of(tool).call("tool.go", supports=KINDS)
        items, request_id = [], ""
        async for item in call:
            items.append(item)
            if isinstance(item, Request):
                request_id = item.request_id
            if isinstance(item, Progress) and item.percentage == 40:
                await call.answer(request_id, True)
        return items

    items = drive(main())
    assert kinds(items) == ["Progress", "Request", "Progress", "Data", "Done"]
    assert (items[0].message, items[0].percentage) == ("started", None)
    assert (items[2].message, items[2].percentage) == ("still here", 40)


@pytest.mark.parametrize(
    ("given", "sent"), [(-5, 0), (0, 0), (40, 40), (99.5, 99.5), (250, 100), (math.inf, 100)]
)
def test_a_percentage_is_kept_between_0_and_100(given, sent):
    async def tool(ask):
        ask.progress("x", given)

    assert outcome_of(tool).items[0].percentage == sent


def test_a_percentage_that_is_no_number_is_refused():
    async def tool(ask):
        ask.progress("x", math.nan)

    assert "must be a number" in str(outcome_of(tool).error)


def test_a_step_in_a_thread_may_report_progress_and_log():
    async def main():
        seen = threading.Event()

        async def tool(ask):
            def work():
                time.sleep(0.05)  # the event loop sleeps now, and must be woken
                ask.progress("working", 50)
                ask.log("a line")
                assert seen.wait(LIMIT)  # the reader has it while the step still runs

            await ask.step(work)

        items = []
        async for item in hub_of(tool).call("tool.go"):
            items.append(item)
            if isinstance(item, Log):
                seen.set()
        return items

    assert kinds(drive(main())) == ["Progress", "Log", "Done"]


def test_log_lines_are_items_with_level_and_data():
    async def tool(ask):
        ask.log("hello")
        ask.log("careful", "warning", {"n": 1})

    first, second, _ = outcome_of(tool).items
    assert (first.level, first.message, first.data) == ("info", "hello", None)
    assert (second.level, second.message, second.data) == ("warning", "careful", {"n": 1})


# --- the test helper ------------------------------------------------------------------------


def test_the_test_helper_fails_when_an_answer_is_missing_or_too_many():
    tool = asking(lambda ask: ask.confirm("Sure?"))
    with pytest.raises(AssertionError, match="No answer is left for: Sure"):
        outcome_of(tool, [])
    with pytest.raises(AssertionError, match="Not asked for"):
        outcome_of(tool, [True, False])


def test_the_test_helper_takes_an_async_function_as_answerer():
    async def answer(request: Request) -> Any:
        await asyncio.sleep(0)
        return request.request_type.message == "Sure?"

    outcome = outcome_of(asking(lambda ask: ask.confirm("Sure?")), answer)
    assert outcome.result is True
    assert requests(outcome.items) == outcome.questions
    assert not [item for item in outcome.items if isinstance(item, RequestCancelled)]

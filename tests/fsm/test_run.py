"""Runs: what each action does, and that every run ends."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driving import assert_nothing_left, drive
from midcall import Ask, Data, Hub, InvalidArguments, Log, Progress, Request, connect, method
from midcall.fsm import MachineBuilder, Moment
from midcall.fsm.run import TRIES
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite.journal import SqliteJournal
from midcall.models.base import ModelError, Stopped, TextPart
from midcall.principal import CallSource
from midcall.questions import KINDS
from spoken import Spoken

QUESTION = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}
CALLS = {"type": "object", "properties": {"tool_calls": {"type": "array"}}, "required": ["tool_calls"]}
RESULTS = {"type": "object", "properties": {"tool_results": {"type": "array"}}, "required": ["tool_results"]}
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


class Shop:
    namespace = "shop"

    def __init__(self) -> None:
        self.done: list[str] = []

    @method
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.done.append(f"add {a} {b}")
        return a + b

    @method
    async def buy(self, item: str, ask: Ask) -> str:
        """Buy something, if the person agrees."""
        sure = await ask.confirm(f"Buy {item}?")
        return await ask.step(self._buy, item) if sure else "nothing"

    async def _buy(self, item: str) -> str:
        self.done.append(f"buy {item}")
        return f"bought {item}"

    @method
    async def hang(self) -> str:
        """Never ends."""
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    @method
    async def fail(self) -> str:
        """Always fails."""
        raise ValueError("out of tea")

    @method(scopes=["shop:admin"])
    async def close(self) -> str:
        """Close the shop."""
        self.done.append("close")
        return "closed"


def loop(*tools: str, **config: Any) -> MachineBuilder:
    return (
        MachineBuilder("loop", "Answers with tools.")
        .model("llm")
        .tools("servicing", *tools, **config)
        .to("start", "llm", QUESTION)
        .to("llm", "servicing", CALLS)
        .to("servicing", "llm", RESULTS)
        .to("llm", "end", ANSWER)
    )


def calls(*made: Any) -> dict[str, Any]:
    listed = [{"id": str(n), "name": name, "arguments": given} for n, (name, given) in enumerate(made, 1)]
    return {"id": ["llm", "servicing"], "tool_calls": listed}


def answer(text: str) -> dict[str, Any]:
    return {"id": ["llm", "end"], "answer": text}


def trail_of(hub: Hub, name: str, params: Any, answers: Any = None) -> list[Any]:
    async def main() -> list[Any]:
        trail = await hub.call(f"machines.{name}", params, answer=answers)
        await assert_nothing_left(hub)
        return msgspec.to_builtins(trail)  # type: ignore[no-any-return]

    return drive(main())  # type: ignore[no-any-return]


def run_loop(model: Spoken, machine: MachineBuilder | None = None, **options: Any) -> list[Any]:
    hub = Hub().register(Shop()).register_machine(machine or loop(), model=model, **options)
    return trail_of(hub, "loop", {"question": "1+2?"}, lambda _: True)


# --- the seed's loop --------------------------------------------------------------------------------


def test_the_tool_loop_event_by_event() -> None:
    asked = calls(("shop.add", {"a": 1, "b": 2}), ("shop.buy", {"item": "tea"}))
    results = [
        {"call_id": "1", "success": True, "result": 3},
        {"call_id": "2", "success": True, "result": "bought tea"},
    ]
    model = Spoken(asked, answer("3"))
    assert run_loop(model) == [
        {"from": "start", "to": "llm", "event": {"id": ["start", "llm"], "question": "1+2?"}},
        {"from": "llm", "to": "servicing", "event": asked},
        {"from": "servicing", "to": "llm", "event": {"id": ["servicing", "llm"], "tool_results": results}},
        {"from": "llm", "to": "end", "event": answer("3")},
    ]
    roles = [(one.role, json.loads(one.content)["id"]) for one in model.asked[1].messages]
    assert roles == [
        ("user", ["start", "llm"]),
        ("assistant", ["llm", "servicing"]),
        ("user", ["servicing", "llm"]),
    ]
    assert model.asked[0].schema is not None
    legal = [one["properties"]["id"]["const"] for one in model.asked[0].schema["oneOf"]]
    assert legal == [["llm", "servicing"], ["llm", "end"]]
    assert "Answers with tools." in str(model.asked[0].system)


def test_the_other_form_of_a_batch_is_understood() -> None:
    made = {"id": ["llm", "servicing"], "calls": calls(("shop.add", {"a": 1, "b": 1}))["tool_calls"]}
    machine = loop()
    del machine._transitions[1]["schema"]
    trail = run_loop(Spoken(made, answer("2")), machine)
    assert trail[2]["event"]["tool_results"] == [{"call_id": "1", "success": True, "result": 2}]


def test_the_other_form_has_no_states_in_its_ids() -> None:
    made = calls(("shop.add", {"a": 1, "b": 1}))["tool_calls"]

    def served(event: Mapping[str, Any]) -> dict[str, Any]:
        (call,) = event["tool_calls"]
        return {"id": "tool_results", "results": [{"call_id": call["id"], "success": True, "result": 2}]}

    for machine in (
        loop(),
        MachineBuilder("loop").model("llm").function("servicing", served)
        .to("start", "llm", QUESTION).to("llm", "servicing", CALLS).to("servicing", "llm", RESULTS).to("llm", "end", ANSWER),
    ):  # fmt: skip
        said: dict[str, Any] = {"id": "tool_calls", "calls": made}
        if machine.functions:
            said = {"id": ["llm", "servicing"], "tool_calls": made}
        trail = run_loop(Spoken(said, answer("2")), machine)
        assert trail[1]["event"] == {"id": ["llm", "servicing"], "tool_calls": made}
        results = [{"call_id": "1", "success": True, "result": 2}]
        assert trail[2]["event"] == {"id": ["servicing", "llm"], "tool_results": results}
        assert trail[-1]["event"] == answer("2")


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"tool_calls": [{"id": "1", "name": "shop.add"}, {"id": "1", "name": "shop.add"}]}, "Two calls have the id 1"),
        ({"tool_calls": [{"id": 1, "name": "shop.add"}]}, "A call has an id and the name of a tool, both text"),
        ({"tool_calls": [{"id": "1", "name": "shop.add", "arguments": []}]}, "The arguments of call 1 are not an object"),
        ({"tool_calls": ["shop.add"]}, "A call is an object"),
    ],
)  # fmt: skip
def test_a_batch_that_is_none_goes_back_to_the_model_that_made_it(batch: Any, told: str) -> None:
    model = Spoken({"id": ["llm", "servicing"], **batch}, answer("done"))
    trail = run_loop(model)
    assert told in trail[1]["error"]
    assert trail[1]["from"] == "llm"
    assert trail[-1]["event"] == answer("done")
    assert told in model.asked[1].messages[-1].content


@pytest.mark.parametrize("parallel", [False, True])
def test_what_fails_in_a_batch_is_told_to_the_model(parallel: bool) -> None:
    made = calls(
        ("shop.fail", {}),
        ("shop.ad", {}),
        ("shop.add", {"a": "x"}),
        ("shop.close", {}),
        ("shop.add", {"a": 1, "b": 1}),
    )
    trail = run_loop(Spoken(made, answer("done")), loop(parallel=parallel))
    told = trail[2]["event"]["tool_results"]
    assert [one["success"] for one in told] == [False, False, False, False, True]
    assert [one["call_id"] for one in told] == ["1", "2", "3", "4", "5"]
    assert "out of tea" in told[0]["error"]
    assert "shop.add" in told[1]["error"], "a near match"
    assert "Unknown method: shop.close" in told[3]["error"], (
        "what needs a scope is only called if it is named"
    )


@pytest.mark.parametrize("parallel", [False, True])
def test_a_batch_has_one_deadline(parallel: bool) -> None:
    made = calls(("shop.hang", {}), ("shop.hang", {}))
    trail = run_loop(Spoken(made, answer("late")), loop(parallel=parallel, timeout=0.05))
    told = trail[2]["event"]["tool_results"]
    assert [one["success"] for one in told] == [False, False]
    assert "longer than 0.05 s" in told[0]["error"]
    assert trail[-1]["event"] == answer("late")


def test_what_is_no_batch_goes_back() -> None:
    many = calls(*[("shop.add", {"a": 1, "b": 1})] * 101)
    trail = run_loop(Spoken(many), loop())
    assert trail[-1]["event"]["reason"] == "max-retries-exceeded"
    assert "at most 100 calls" in trail[-1]["event"]["message"]


# --- output that does not fit -----------------------------------------------------------------------


def test_output_that_is_invalid_twice_and_then_valid() -> None:
    model = Spoken("I think so.", {"id": ["llm", "end"], "answer": 3}, answer("3"))
    trail = run_loop(model)
    assert [one.get("error") is not None for one in trail] == [False, True, True, False]
    assert trail[1] == {"from": "llm", "to": None, "event": "I think so.", "error": trail[1]["error"]}
    assert "answer: 3 is not of type" in trail[2]["error"]
    assert trail[3]["event"] == answer("3")
    assert model.asked[2].messages[-1].content == trail[2]["error"], "the model is told why"


def test_output_that_is_always_invalid_ends_the_run() -> None:
    model = Spoken({"id": ["llm", "ned"]})
    trail = run_loop(model)
    assert len(model.asked) == TRIES
    assert [one.get("error") is not None for one in trail] == [False, True, True, True, False]
    assert 'Legal ids here: ["llm", "servicing"], ["llm", "end"]' in trail[1]["error"]
    assert "did you mean 'end'?" in trail[1]["error"]
    event = trail[-1]["event"]
    assert (trail[-1]["from"], trail[-1]["to"]) == ("llm", "end")
    assert event.pop("message")
    assert event == {"id": ["llm", "end"], "bail_out": True, "reason": "max-retries-exceeded"}


def test_a_run_bails_out_also_where_no_transition_to_the_end_is_declared() -> None:
    machine = (
        MachineBuilder("loop").model("llm").function("last", dict)
        .to("start", "llm").to("llm", "last", ANSWER).to("last", "end")
    )  # fmt: skip
    hub = Hub().register_machine(machine, model=Spoken("no"))
    assert trail_of(hub, "loop", {})[-1]["event"]["id"] == ["llm", "end"]


@pytest.mark.parametrize(
    "said", ["I think so.", "[1]", "", "```json\n7\n```", "{", '{"id": 1}', '{"id": ["llm", 2]}']
)
def test_whatever_is_refused_the_legal_ids_are_named(said: str) -> None:
    trail = run_loop(Spoken(said, answer("3")))
    assert 'Legal ids here: ["llm", "servicing"], ["llm", "end"]' in trail[1]["error"]
    assert (trail[1]["from"], trail[1]["to"]) == ("llm", None)


@pytest.mark.parametrize(
    "words", ["Here it is:\n```json\n{}\n```\nBye", "```\n{}\n```", "Well: {} That is it.", " {} "]
)
def test_words_around_an_event_do_no_harm(words: str) -> None:
    said = words.replace("{}", json.dumps(answer("3")))
    assert run_loop(Spoken(said))[-1]["event"] == answer("3")


def test_a_model_that_fails_leads_to_where_it_is_said() -> None:
    machine = (
        MachineBuilder("loop").model("llm", failure_to="sorry").function("sorry", lambda event: {"answer": event["error"]})
        .to("start", "llm", QUESTION).to("llm", "sorry").to("llm", "end", ANSWER).to("sorry", "end", ANSWER)
    )  # fmt: skip
    trail = run_loop(Spoken(ModelError("The key is wrong")), machine)
    assert trail[-1]["event"] == {"id": ["sorry", "end"], "answer": "The key is wrong"}


def test_a_model_has_as_long_as_is_said() -> None:
    class Silent(Spoken):
        async def stream(self, request: Any) -> Any:
            await asyncio.get_running_loop().create_future()
            yield

    machine = MachineBuilder("loop").model("llm", timeout=0.05).to("start", "llm", QUESTION).to("llm", "end")
    assert run_loop(Silent(), machine)[-1]["event"]["reason"] == "timeout"


def test_the_text_of_a_model_comes_as_it_streams_to_whoever_wants_it() -> None:
    class Slow(Spoken):
        async def stream(self, request: Any) -> Any:
            for letter in json.dumps(answer("3")):
                yield TextPart(letter)
            yield Stopped()

    hub = Hub().register_machine(loop(), model=Slow())

    async def main() -> None:
        items = [item async for item in hub.call("machines.loop", {"question": "?"})]
        pieces = [item for item in items if isinstance(item, Log)]
        assert json.loads("".join(piece.message for piece in pieces)) == answer("3")
        assert {(piece.level, piece.data["state"]) for piece in pieces} == {("debug", "llm")}
        for level, wanted in (("info", False), ("debug", True)):
            async with connect(hub, log_level=level) as client:
                call = client.call("machines.loop", {"question": "?"})
                heard = [item async for item in call if isinstance(item, Log)]
            assert bool(heard) == wanted

    drive(main())


def test_a_model_that_fails_ends_the_run() -> None:
    trail = run_loop(Spoken(ModelError("The key is wrong")))
    assert trail[-1]["event"] == {
        "id": ["llm", "end"], "bail_out": True, "reason": "llm-fatal-error", "message": "The key is wrong",
    }  # fmt: skip


def test_a_run_has_a_limit_of_transitions() -> None:
    trail = run_loop(Spoken(calls(("shop.add", {"a": 1, "b": 1}))), max_transitions=7)
    assert trail[-1]["event"]["reason"] == "too-many-transitions"
    assert sum("error" not in one for one in trail) == 8, "with the way out"


def test_a_run_has_a_time_limit() -> None:
    machine = loop(timeout=1000)
    trail = run_loop(Spoken(calls(("shop.hang", {}))), machine, time_limit=0.05)
    assert trail[-1]["event"]["reason"] == "timeout"
    assert trail[-1]["from"] == "servicing"


def test_an_input_that_does_not_fit_is_refused() -> None:
    hub = Hub().register(Shop()).register_machine(loop(), model=Spoken(answer("")))
    with pytest.raises(InvalidArguments, match='"question" is a required property'):
        trail_of(hub, "loop", {"quesion": "?"})


# --- the other actions ------------------------------------------------------------------------------


def test_functions_plain_and_async_with_and_without_the_moment() -> None:
    async def doubled(event: dict[str, Any], moment: Moment) -> dict[str, Any]:
        return {"id": ["doubled", "end"], "number": event["number"] * 2, "steps": len(moment.trail)}

    number = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    machine = (
        MachineBuilder("m").function("next", lambda event: {"number": event["number"] + 1}).function("doubled", doubled)
        .to("start", "next", number).to("next", "doubled", number).to("doubled", "end", number)
    )  # fmt: skip
    trail = trail_of(Hub().register_machine(machine), "m", {"number": 1})
    assert trail[-1]["event"] == {"id": ["doubled", "end"], "number": 4, "steps": 2}


def test_a_function_that_fails_ends_the_run() -> None:
    machine = MachineBuilder("m").function("f", lambda event: 1 / 0).to("start", "f").to("f", "end")
    event = trail_of(Hub().register_machine(machine), "m", {})[-1]["event"]
    assert event["reason"] == "action-failed"
    assert "division by zero" in event["message"]


def test_a_method_gets_fields_of_the_event_and_fails_to_where_it_is_said() -> None:
    numbers = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    machine = (
        MachineBuilder("m").method("add", "shop.add", {"b": 10}).method("fail", "shop.fail", failure_to="end")
        .function("never", dict)
        .to("start", "add", numbers).to("add", "fail").to("fail", "never").to("fail", "end").to("never", "end")
    )  # fmt: skip
    trail = trail_of(Hub().register(Shop()).register_machine(machine), "m", {"a": 5})
    assert trail[1]["event"] == {"id": ["add", "fail"], "result": 15}
    assert trail[2]["event"] == {"id": ["fail", "end"], "error": "out of tea"}


def approval() -> MachineBuilder:
    return (
        MachineBuilder("approval").ask("boss", "May they?")
        .to("start", "boss", QUESTION)
        .to("boss", "end", {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}, label="Yes")
        .to("boss", "boss", label="Ask again")
    )  # fmt: skip


def test_a_person_chooses_and_fills_in() -> None:
    asked: list[Request] = []
    said = iter(["boss", "end", {"why": "tea"}])

    def answers(request: Request) -> Any:
        asked.append(request)
        return next(said)

    trail = trail_of(Hub().register_machine(approval()), "approval", {"question": "?"}, answers)
    assert [one["to"] for one in trail] == ["boss", "boss", "end"]
    assert trail[-1]["event"] == {"id": ["boss", "end"], "why": "tea"}
    assert [one.request_type.kind for one in asked] == ["select", "select", "form"]


def test_a_person_who_cannot_be_asked_ends_the_run() -> None:
    event = trail_of(Hub().register_machine(approval()), "approval", {"question": "?"})[-1]["event"]
    assert event["reason"] == "action-failed"


def test_a_person_who_does_not_answer_leads_to_where_it_is_said() -> None:
    async def never(request: Request) -> Any:
        await asyncio.get_running_loop().create_future()

    machine = (
        MachineBuilder("m").ask("boss", timeout=0.05, failure_to="late").function("late", lambda event: {"why": event["error"]})
        .to("start", "boss").to("boss", "end", label="Yes").to("boss", "late", label="Later").to("late", "end")
    )  # fmt: skip
    trail = trail_of(Hub().register_machine(machine), "m", {}, never)
    assert [one["to"] for one in trail] == ["boss", "late", "end"]
    assert trail[-1]["event"]["why"]


def test_an_input_without_an_id_is_the_one_that_fits() -> None:
    machine = (
        MachineBuilder("m").function("f", lambda event: {"at": "f"}).function("g", lambda event: {"at": "g"})
        .to("start", "f", QUESTION).to("start", "g", ANSWER).to("f", "end").to("g", "end")
    )  # fmt: skip
    hub = Hub().register_machine(machine)
    assert trail_of(hub, "m", {"answer": "x"})[-1]["event"]["at"] == "g"
    assert (
        trail_of(hub, "m", {"id": ["start", "f"], "question": "x", "answer": "y"})[-1]["event"]["at"] == "f"
    )
    for wrong, told in (
        ({"answer": "x", "question": "y"}, "Several transitions fit"),
        ({}, "required"),
        ([], "required"),
    ):
        with pytest.raises(InvalidArguments, match=told):
            trail_of(hub, "m", wrong)


def test_the_callers_model_is_asked_where_there_is_no_other() -> None:
    hub = Hub().register(Shop()).register_machine(loop())
    said = {"role": "assistant", "content": {"type": "text", "text": json.dumps(answer("3"))}, "model": "x"}
    trail = trail_of(hub, "loop", {"question": "?"}, lambda _: said)
    assert trail[-1]["event"] == answer("3")


@pytest.mark.parametrize(("trail", "told"), [("omit", None), ("summary", [["start", "llm"], ["llm", "end"]])])
def test_a_machine_in_a_machine(trail: Any, told: Any) -> None:
    outer = (
        MachineBuilder("outer").machine("inner", "loop", trail=trail)
        .to("start", "inner", QUESTION).to("inner", "end", ANSWER)
    )  # fmt: skip
    hub = Hub().register(Shop()).register_machine(loop(), model=Spoken(answer("3"))).register_machine(outer)
    event = trail_of(hub, "outer", {"question": "?"})[-1]["event"]
    assert event.pop("trail", None) == told
    assert event == {"id": ["inner", "end"], "answer": "3"}


@pytest.mark.parametrize("seconds", [None, 0.05])
def test_a_machine_that_gives_up_or_takes_too_long_goes_to_where_it_is_said(seconds: float | None) -> None:
    said = "nonsense" if seconds is None else calls(("shop.hang", {}))
    outer = (
        MachineBuilder("outer").machine("inner", "loop", failure_to="sorry", timeout=seconds).function("sorry", dict)
        .to("start", "inner", QUESTION).to("inner", "end", ANSWER).to("inner", "sorry").to("sorry", "end")
    )  # fmt: skip
    inner = loop(timeout=1000)
    hub = Hub().register(Shop()).register_machine(inner, model=Spoken(said)).register_machine(outer)
    trail = trail_of(hub, "outer", {"question": "?"})
    assert [one["to"] for one in trail] == ["inner", "sorry", "end"]
    assert ("gave up" if seconds is None else "longer than") in trail[1]["event"]["error"]


def test_branches_run_beside_each_other_and_none_holds_the_others() -> None:
    machine = (
        MachineBuilder("m")
        .parallel(
            "all",
            {
                "good": {"action": "method", "config": {"method": "shop.add", "arguments": {"a": 1, "b": 2}}},
                "late": {"action": "method", "config": {"method": "shop.hang"}, "timeout": 0.05},
                "bad": {"action": "method", "config": {"method": "shop.fail"}},
                "model": {"action": "model", "prompts": ["Say hello."]},
            },
        )
        .to("start", "all").to("all", "end")
    )  # fmt: skip
    hub = Hub().register(Shop()).register_machine(machine, model=Spoken("hello"))
    results = trail_of(hub, "m", {})[-1]["event"]["results"]
    assert {name: one["status"] for name, one in results.items()} == {
        "good": "success", "late": "timeout", "bad": "error", "model": "success",
    }  # fmt: skip
    assert results["good"]["value"] == 3
    assert results["model"]["value"] == "hello"
    assert results["bad"]["error"] == "out of tea"


def test_a_model_does_not_see_what_is_omitted() -> None:
    model = Spoken(calls(("shop.add", {"a": 1, "b": 1})), answer("2"))
    machine = loop()
    machine._transitions[2]["omit"] = True
    trail = run_loop(model, machine)
    assert len(trail) == 4
    assert [one.role for one in model.asked[1].messages] == ["user", "assistant"]


def test_whoever_may_not_call_what_a_machine_calls_may_not_run_it() -> None:
    hub = Hub().register(Shop()).register_machine(loop("shop.*"), model=Spoken(answer("")))
    assert hub.resolve("machines.loop").method.extras["scopes"] == ("shop:admin",)


def test_each_transition_is_an_item_and_each_state_is_progress() -> None:
    hub = Hub().register(Shop()).register_machine(loop(), model=Spoken(answer("3")))

    async def main() -> list[Any]:
        return [item async for item in hub.call("machines.loop", {"question": "?"})]

    items = drive(main())
    assert [item.content.end for item in items if isinstance(item, Data)] == ["llm", "end"]
    assert [item.message for item in items if isinstance(item, Progress)] == ["loop: llm"]


# --- durable ----------------------------------------------------------------------------------------


class Follower:
    """Somebody who follows a call, and says nothing."""

    principal = None
    closed = False
    full = False

    def source(self) -> CallSource:
        """It is nobody."""
        return CallSource()

    async def drain(self) -> None:
        """It is never behind."""

    def send_item(self, subscription: str, item: Any, number: int | None = None) -> None:
        """It does not listen."""


def durable(hub: Hub, path: Path) -> Hub:
    """A hub that keeps no coroutine: whoever is answered is run again from the journal."""
    hub.durable = DurableCalls(hub, SqliteJournal(path / "journal.db"), replay_check=True)
    return hub


@pytest.mark.parametrize("parallel", [False, True])
def test_nothing_that_is_finished_is_done_again(tmp_path: Path, parallel: bool) -> None:
    shop, ran = Shop(), []

    def noted(event: Mapping[str, Any]) -> dict[str, Any]:
        ran.append(dict(event))
        return {"question": "?"}

    model = Spoken(
        calls(("shop.add", {"a": 1, "b": 2}), ("shop.buy", {"item": "tea"}), ("shop.buy", {"item": "milk"})),
        {"id": ["llm", "boss"]},
        answer("done"),
    )
    machine = (
        MachineBuilder("m").function("first", noted).model("llm").tools("servicing", parallel=parallel).ask("boss")
        .to("start", "first").to("first", "llm", QUESTION).to("llm", "servicing", CALLS)
        .to("servicing", "llm", RESULTS).to("llm", "boss").to("llm", "end", ANSWER)
        .to("boss", "llm", {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]})
    )  # fmt: skip

    async def main() -> Any:
        hub = durable(Hub().register(shop).register_machine(machine, model=model), tmp_path)
        await hub.open()
        try:
            async with connect(
                hub, answer=lambda r: {"why": "tea"} if "boss" in str(r.key) else True
            ) as client:
                return (await client.call("machines.m", {})).structured
        finally:
            await hub.close()

    assert drive(main()) == answer("done")
    assert len(model.asked) == 3
    assert len(ran) == 1
    assert sorted(shop.done) == ["add 1 2", "buy milk", "buy tea"]


def test_a_machine_that_has_changed_since_stands_still_and_says_what_has(tmp_path: Path) -> None:
    before, after = approval(), approval().to("boss", "start2").function("start2", dict).to("start2", "end")

    async def main() -> str:
        hub = durable(Hub().register_machine(before), tmp_path)
        await hub.open()
        assert hub.durable is not None
        await hub.durable.subscriptions.subscribe(
            Follower(), "machines.approval", b'{"question": "?"}', KINDS
        )
        while not (found := (await hub.durable.journal.list(status=["waiting"])).calls):
            await asyncio.sleep(0.01)
        (waiting,) = found
        await hub.close()
        other = durable(Hub().register_machine(after), tmp_path)
        await other.open()
        assert other.durable is not None
        try:
            claimed = await other.durable.claim(waiting.id, waiting.segment)
            other.durable.resume(claimed)  # type: ignore[arg-type]
            while (await other.durable.journal.load(waiting.id))[0].status != "diverged":  # type: ignore[index]
                await asyncio.sleep(0.01)
            return str(claimed.call.trace.diverged) if claimed.call else ""  # type: ignore[union-attr]
        finally:
            await other.close()

    said = drive(main())
    assert "state 'start2' is new" in said

"""What a tool asks of a model: text, data, tools, and conversations of its own (branches)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chatting import Person, Puppet, call, chat, kinds, only, serving
from driving import drive
from midcall import (
    Ask,
    AskError,
    BranchLimit,
    Hub,
    NotSupported,
    Request,
    Sampled,
    ToolError,
    ToolUse,
    WrongType,
    connect,
    method,
)
from midcall.chat import ChatEngine, Reply, Retry, Sampling
from midcall.client.client import Client, Options
from midcall.client.server_requests import Answering
from midcall.client.targets import target_of
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite import SqliteJournal
from midcall.models.base import ModelError, ModelRequest
from midcall.questions import SCHEMA, Sample

WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@dataclass
class Address:
    """Where somebody lives."""

    street: str
    number: int


class Desk:
    """Asks a model."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @method
    async def extract(self, text: str, ask: Ask) -> str:
        """Find the address in a text."""
        try:
            found = await ask.sample(f"The address in: {text}", answer=Address, system="Be exact")
        except WrongType as error:
            return f"no address ({error})"
        return f"{found.number}, {found.street}"

    @method
    async def both(self, ask: Ask) -> str:
        """Ask for data and a name in one round."""
        found, name = await ask.all(ask.sample("Where?", answer=Address), ask.prompt("Name?"))
        return f"{name} in {found.street}"

    @method
    async def look(self, ask: Ask) -> str:
        """Let the model look up the weather."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Rome or Oslo?"}]
        while True:
            said = await ask.sample(messages, tools=[WEATHER], tool_choice="auto")
            if not said.tool_uses:
                return said.text
            results = [use.result(f"sunny in {use.input['city']}") for use in said.tool_uses]
            messages += [said.message, {"role": "user", "content": results}]

    @method
    async def tip(self, ask: Ask) -> str:
        """Give a tip, if the model has one."""
        try:
            said = await ask.sample("A tip?")
        except AskError as error:
            return f"no tip ({type(error).__name__})"
        return f"tip: {said.text}"

    @method
    async def talk(self, ask: Ask) -> str:
        """Talk to the model, and to the person in between."""
        async with ask.branch(system="You are a poet", max_tokens=1000) as branch:
            first = await branch.say("A line about tea")
            await ask.step(self._do, first.text)
            name = await ask.prompt("For whom?")
            second = await branch.say(f"Now for {name}")
            return f"{first.text} / {second.text}"

    def _do(self, what: str) -> None:
        self.done.append(what)


def asked(hub: Hub, name: str, answer: Any, **arguments: Any) -> Any:
    async def main() -> Any:
        return await hub.call(name, arguments, answer=answer)

    return drive(main())


def desk() -> Hub:
    return Hub().register(Desk())


# --- data -------------------------------------------------------------------------------------


def test_a_model_is_asked_for_data_and_gives_an_instance() -> None:
    seen: list[Sample] = []

    def answer(request: Request) -> str:
        assert isinstance(request.request_type, Sample)
        seen.append(request.request_type)
        return '{"street": "High Street", "number": 7}'

    assert asked(desk(), "desk.extract", answer, text="7 High Street") == "7, High Street"
    (question,) = seen
    schema = question.options["_meta"][SCHEMA]
    assert schema["properties"].keys() == {"street", "number"}
    assert question.system is not None
    assert question.system.startswith("Be exact\n\nAnswer with JSON")
    assert '"street"' in question.system


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```\n", "\n {} "])
def test_data_may_stand_in_a_fence(fence: str) -> None:
    said = fence.replace("{}", '{"street": "A", "number": 1}')
    assert asked(desk(), "desk.extract", lambda request: said, text="") == "1, A"


@pytest.mark.parametrize(
    "said", ["High Street, I think", '{"street": "A"}', '{"street": 1, "number": "x"}', "7"]
)
def test_what_does_not_fit_is_the_tools_to_know(said: str) -> None:
    result = asked(desk(), "desk.extract", lambda request: said, text="")
    assert result.startswith("no address (What the model said does not fit: ")


def test_data_may_be_asked_for_together_with_something_else() -> None:
    def answer(request: Request) -> str:
        return "Ada" if request.request_type.kind == "prompt" else '{"street": "A", "number": 1}'

    assert asked(desk(), "desk.both", answer) == "Ada in A"

    def wrong(request: Request) -> str:
        return "Ada"

    with pytest.raises(WrongType):
        asked(desk(), "desk.both", wrong)


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_any_client_can_give_data_and_what_does_not_fit_is_not_asked_for_again(era: Any) -> None:
    async def main() -> None:
        replies = ['{"street": "A", "number": 1}', "no idea"]
        asked: list[Sample] = []

        def sample(question: Sample) -> str:
            asked.append(question)
            return replies.pop(0)

        async with connect(desk(), sample=sample, era=era) as client:
            assert (await client.call("desk.extract", {"text": "x"})).text == "1, A"
            assert "no address" in (await client.call("desk.extract", {"text": "x"})).text
        assert len(asked) == 2
        assert asked[0].options["_meta"][SCHEMA]["required"] == ["street", "number"]

    drive(main())


def test_the_schema_reaches_the_model_through_a_hub_in_between() -> None:
    async def main() -> None:
        def sample(question: Sample) -> str:
            assert SCHEMA in question.options["_meta"]
            return '{"street": "A", "number": 1}'

        outer = Hub("outer").mount("inner", desk())
        async with connect(outer, sample=sample) as client:
            assert (await client.call("inner.desk.extract", {"text": "x"})).text == "1, A"

    drive(main())


def test_the_chat_asks_again_with_the_reason_until_it_fits() -> None:
    async def main() -> None:
        model = Puppet(
            call("desk__extract", text="x"), "no json", '{"street": 1}', '{"street": "A", "number": 1}'
        )
        async with chat(model, Desk()) as person:
            events = await person.say("go")
            assert only(events, "tool_result")["content"] == "1, A"
            assert model.asked[1].schema is not None
            assert "must be JSON" in model.asked[2].messages[-1].content
            assert "does not fit the schema" in model.asked[3].messages[-1].content

    drive(main())


def test_a_model_that_never_fits_is_given_up_and_the_tool_is_told() -> None:
    async def main() -> None:
        model = Puppet(call("desk__extract", text="x"), "no", "no", "no", "Well.")
        async with chat(model, Desk()) as person:
            events = await person.say("go")
            assert "no address" in only(events, "tool_result")["content"]
            assert len(model.asked) == 5

    drive(main())


def test_what_did_not_fit_does_not_fit_either_when_the_call_is_run_again() -> None:
    class Twice:
        @method
        async def extract(self, ask: Ask) -> str:
            """Ask the model, then the person."""
            try:
                return str(await ask.sample("Where?", answer=Address))
            except WrongType:
                return await ask.prompt("Then where?")

    async def main() -> None:
        hub = Hub("h").register(Twice())
        hub.durable = DurableCalls(hub, replay_check=True)  # runs the call from the top after each question
        model = Puppet(call("twice__extract"), "no", "no", "no", "Well.")
        async with serving(ChatEngine(hub, model)) as port:
            person = Person(port)
            question = only(await person.say("go"), "plugin_elicit_request")
            events = await person.answer(question, text="High Street")
            assert only(events, "tool_result")["content"] == "High Street"
            assert len(model.asked) == 5

    drive(main())


# --- trouble ----------------------------------------------------------------------------------


@pytest.mark.parametrize("recoverable", [True, False])
def test_a_tool_may_do_without_a_model_that_fails(recoverable: bool) -> None:
    async def main() -> None:
        model = Puppet(call("desk__tip"), ModelError("overloaded", recoverable=recoverable), "So be it.")
        async with chat(model, Desk()) as person:
            events = await person.say("go")
            assert only(events, "tool_result")["content"] == "no tip (Cancelled)"
            assert "overloaded" in only(events, "tool_progress")["message"]
            assert kinds(events)[-1] == "complete"

    drive(main())


def test_hooks_that_fail_or_never_agree_do_not_bring_down_the_turn() -> None:
    async def broken(request: ModelRequest) -> ModelRequest:
        raise ZeroDivisionError

    async def never(reply: Reply, request: ModelRequest) -> Reply:
        raise Retry("not good enough")

    async def main() -> None:
        for sampling in (Sampling(before=broken), Sampling(after=never)):
            model = Puppet(call("desk__tip"), *["x"] * 4)
            async with chat(model, Desk(), sampling=sampling) as person:
                events = await person.say("go")
                assert only(events, "tool_result")["content"] == "no tip (Cancelled)"
                assert kinds(events)[-1] == "complete"

    drive(main())


def test_the_budget_of_a_turn_counts_what_tools_ask_of_the_model() -> None:
    async def main() -> None:
        model = Puppet([call("desk__tip", "a"), call("desk__tip", "b")], "first", "second")
        async with chat(model, Desk(), token_budget=25, parallel=False) as person:
            events = await person.say("go")
            results = [event["content"] for event in events if event["type"] == "tool_result"]
            assert results == ["tip: first", "no tip (Cancelled)"]
            assert only(events, "complete")["reason"] == "budget"
            assert only(events, "complete")["usage"] == {"input": 20, "output": 10}

    drive(main())


# --- tools ------------------------------------------------------------------------------------


def test_a_model_calls_the_tools_that_it_is_given_and_gets_their_results() -> None:
    async def main() -> None:
        uses = [call("weather", "w1", city="Rome"), call("weather", "w2", city="Oslo")]
        model = Puppet(call("desk__look"), ["Let me see. ", *uses], "Rome.", "Rome it is.")
        async with chat(model, Desk()) as person:
            events = await person.say("go")
            assert only(events, "tool_result")["content"] == "Rome."
            assert [tool.name for tool in model.asked[1].tools] == ["weather"]
            told = model.asked[2].messages
            assert [message.role for message in told] == ["user", "assistant", "tool", "tool"]
            assert [made.id for made in told[1].tool_calls] == ["w1", "w2"]
            assert [message.content for message in told[2:]] == ["sunny in Rome", "sunny in Oslo"]

    drive(main())


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_tools_go_out_as_mcp_has_them_and_come_back_as_uses(era: Any) -> None:
    async def main() -> None:
        asked: list[Sample] = []

        def sample(question: Sample) -> Any:
            asked.append(question)
            if len(asked) == 1:
                use = {"type": "tool_use", "id": "u1", "name": "weather", "input": {"city": "Rome"}}
                return {"role": "assistant", "content": [use], "model": "m", "stopReason": "toolUse"}
            return "Rome."

        async with connect(desk(), sample=sample, era=era) as client:
            assert (await client.call("desk.look")).text == "Rome."
        assert asked[0].options["tools"] == [WEATHER]
        assert asked[0].options["toolChoice"] == {"mode": "auto"}
        assert asked[1].messages[1]["content"][0]["id"] == "u1"
        (result,) = asked[1].messages[2]["content"]
        assert (result["type"], result["toolUseId"]) == ("tool_result", "u1")

    drive(main())


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_a_client_that_does_not_give_tools_to_its_model_is_not_asked_to(era: Any) -> None:
    async def main() -> None:
        class Plain:
            @method
            async def look(self, ask: Ask) -> str:
                """Look, with tools if that is possible."""
                try:
                    return (await ask.sample("?", tools=[WEATHER])).text
                except NotSupported as error:
                    return f"{error}; {(await ask.sample('?')).text}"

        class NoTools(Answering):
            def capabilities(self, *, modern: bool) -> dict[str, Any]:
                return {**super().capabilities(modern=modern), "sampling": {}}

        target = target_of(Hub().register(Plain()))
        async with Client(target, NoTools(sample=lambda question: "plainly"), Options(era=era)) as client:
            found = (await client.call("plain.look")).text
            assert found == "The model of this client cannot be given tools; plainly"

    drive(main())


def test_what_a_model_said_can_be_given_back_to_it() -> None:
    use = ToolUse("u", "weather", {"city": "Rome"})
    assert Sampled("Hi").message == {"role": "assistant", "content": {"type": "text", "text": "Hi"}}
    assert Sampled("", tool_uses=(use,)).message["content"] == [
        {"type": "tool_use", "id": "u", "name": "weather", "input": {"city": "Rome"}}
    ]
    assert use.result("no", is_error=True)["isError"] is True


# --- branches ---------------------------------------------------------------------------------


def test_a_branch_keeps_what_was_said_in_it() -> None:
    seen: list[Sample] = []

    def answer(request: Request) -> str:
        if isinstance(request.request_type, Sample):
            seen.append(request.request_type)
            return f"reply {len(seen)}"
        return "Ada"

    assert asked(desk(), "desk.talk", answer) == "reply 1 / reply 2"
    assert [question.system for question in seen] == ["You are a poet"] * 2
    texts = [message["content"]["text"] for message in seen[1].messages]
    assert texts == ["A line about tea", "reply 1", "Now for Ada"]


class Deep:
    """Branches in branches."""

    @method
    async def nest(self, ask: Ask) -> list[str]:
        """Go as deep as it may."""
        told = []
        async with ask.branch(max_depth=2) as outer:
            await outer.say("one")
            async with outer.branch() as inner:
                await inner.say("two")
                told.append(f"{inner.depth}: {len(inner.messages)} messages")
                try:
                    inner.branch()
                except BranchLimit as error:
                    told.append(str(error))
            async with outer.branch(inherit=False) as fresh:
                await fresh.say("three")
                told.append(f"{fresh.depth}: {len(fresh.messages)} messages")
            told.append(f"{outer.depth}: {len(outer.messages)} messages")
        try:
            await outer.say("four")
        except RuntimeError as error:
            told.append(str(error))
        return told

    @method
    async def spend(self, ask: Ask) -> list[str]:
        """Say something until no tokens are left."""
        told = []
        async with ask.branch(max_tokens=100) as branch:
            try:
                while True:
                    async with branch.branch(max_tokens=60) as inner:
                        await inner.say("more", max_tokens=80)
                        told.append(f"{inner.left} of {branch.left}")
                        await inner.say("and more")
            except BranchLimit as error:
                told.append(str(error))
        return told

    @method
    async def data(self, ask: Ask) -> str:
        """Ask for data in a branch."""
        async with ask.branch() as branch:
            found = await branch.say("Where?", answer=Address)
            said = branch.messages[-1]["content"]["text"]
            return f"{found.street} from {said}"

    @method
    async def refused(self, ask: Ask) -> int:
        """What brought no reply was not said."""
        async with ask.branch() as branch:
            try:
                await branch.say("Where?", answer=Address)
            except WrongType:
                raise ToolError(f"{len(branch.messages)} messages") from None
        return 0

    @method
    async def insists(self, ask: Ask) -> str:
        """Ask for data until that has cost enough."""
        tries = 0
        async with ask.branch(max_tokens=100) as branch:
            while tries < 20:
                try:
                    await branch.say("Where?", answer=Address)
                except WrongType:
                    tries += 1
                except BranchLimit:
                    break
            return f"{tries} tries, {branch.spent} tokens"

    @method
    async def alone(self, ask: Ask) -> list[str]:
        """Do without a model."""
        async with ask.or_else(sample="nobody").branch() as branch:
            answers = [await branch.say("Who?"), await branch.say("Where?", answer=Address)]
            return [*map(str, answers), f"{len(branch.messages)} messages"]


def deep() -> Hub:
    return Hub().register(Deep())


def test_a_branch_may_have_branches_down_to_a_depth_and_they_stay_apart() -> None:
    assert asked(deep(), "deep.nest", lambda request: "yes") == [
        "2: 4 messages",
        "A branch may be 2 deep at most",
        "2: 2 messages",
        "1: 2 messages",
        "This branch is closed",
    ]


def test_a_branch_costs_what_the_client_tells_and_no_more_than_it_may() -> None:
    limits: list[int | None] = []

    def answer(request: Request) -> Any:
        assert isinstance(request.request_type, Sample)
        limits.append(request.request_type.max_tokens)
        return {"text": "yes", "tokens": 30}

    told = asked(deep(), "deep.spend", answer)
    # 30 each: two in the first inner branch, and two in the second, where the outer one has 40 left at first.
    assert told == [
        "30 of 70",
        "10 of 10",
        "The branch has used up its tokens",
    ]
    assert limits == [60, 30, 40, 10]


def test_what_a_branch_costs_is_estimated_where_nobody_tells() -> None:
    told = asked(deep(), "deep.spend", lambda request: "x" * 156)  # and `more`: 160 characters, 41 tokens
    assert told == ["19 of 59", "The branch has used up its tokens"]


def test_data_may_be_asked_for_in_a_branch() -> None:
    said = '{"street": "A", "number": 1}'
    assert asked(deep(), "deep.data", lambda request: said) == f"A from {said}"
    with pytest.raises(ToolError, match="0 messages"):
        asked(deep(), "deep.refused", lambda request: "no idea")


def test_what_does_not_fit_costs_what_it_costs() -> None:
    told = asked(deep(), "deep.insists", lambda request: {"text": "no idea", "tokens": 30})
    assert told == "4 tries, 120 tokens"


def test_a_branch_takes_the_fallback_where_the_caller_has_no_model() -> None:
    assert asked(deep(), "deep.alone", None) == ["nobody", "nobody", "0 messages"]


def test_a_branch_goes_on_after_a_restart_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    model = Puppet(call("desk__talk"), "Tea is warm.", "Tea is Ada's.", "There.")
    desk = Desk()

    def engine() -> ChatEngine:
        hub = Hub("h").register(desk)
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"))
        return ChatEngine(hub, model)

    async def main() -> None:
        async with serving(engine()) as port:
            person = Person(port)
            question = only(await person.say("A poem"), "plugin_elicit_request")
        async with serving(engine()) as port:
            person.port = port
            events = await person.answer(question, text="Ada")
            assert only(events, "tool_result")["content"] == "Tea is warm. / Tea is Ada's."
        assert len(model.asked) == 4
        assert [message.content for message in model.asked[2].messages] == [
            "A line about tea",
            "Tea is warm.",
            "Now for Ada",
        ]
        assert desk.done == ["Tea is warm."]

    drive(main())


def test_the_chat_tells_what_an_answer_has_cost() -> None:
    class Counting:
        @method
        async def cost(self, ask: Ask) -> str:
            """What one answer costs."""
            return str((await ask.sample("?")).tokens)

    async def main() -> None:
        async with chat(Puppet(call("counting__cost"), "x"), Counting()) as person:
            assert only(await person.say("go"), "tool_result")["content"] == "15"

    drive(main())

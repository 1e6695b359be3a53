"""The chat where it is easily wrong: who may what, what a turn may cost, names, stores that fail."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chatting import Person, Puppet, call, chat, kinds, only, questions, serving, text
from driving import drive
from midcall import Ask, AskError, BranchLimit, Hub, Question, RegistrationError, method
from midcall.chat import ChatEngine, Plugin, PluginContext, PluginQuestion, Reply, Retry, Sampling
from midcall.chat.conversation import (
    ChatRequest,
    ElicitResponse,
    ElicitResult,
    TextEvent,
    new_conversation,
    save,
)
from midcall.chat.runs import Run
from midcall.chat.turn import INSTEAD
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.logs import Trouble
from midcall.mcp import mcp_of
from midcall.models.base import Message, ModelEvent, ModelRequest, Stopped, ToolCall
from midcall.principal import Principal
from mounting import ERAS, mounted
from mounting import drive as drive_slowly

count = Question("count", int)


class Desk:
    """Asks and works."""

    def __init__(self) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.wiped = 0

    @method(scopes=["admin"])
    async def erase(self, ask: Ask) -> str:
        """Erase."""
        return f"erased {await ask.confirm('Erase?')}"

    @method(scopes=["admin"])
    async def wipe(self) -> str:
        """Wipe everything."""
        self.wiped += 1
        return f"wiped {self.wiped}"

    @method
    async def slow(self) -> str:
        """Wait for the gate."""
        self.begun.set()
        await self.gate.wait()
        return "done"

    @method
    async def later(self, ask: Ask) -> str:
        """Wait for the gate, and ask then."""
        self.begun.set()
        await self.gate.wait()
        return await ask.prompt("Name?")

    @method
    async def plain(self, value: Any = None) -> str:
        """Give something at once."""
        return "plain"

    @method(elicits=[count])
    async def counts(self, ask: Ask) -> str:
        """Ask for a number."""
        return f"{await ask(count, 'How many?')} of them"

    @method
    async def insists(self, ask: Ask) -> str:
        """Ask the model until it answers, or no longer can."""
        for _ in range(20):
            with contextlib.suppress(AskError):
                return (await ask.sample("A tip?")).text
        return "no tip"

    @method
    async def talks(self, ask: Ask) -> str:
        """Talk to the model until that has cost enough."""
        said = 0
        async with ask.branch(max_tokens=100) as branch:
            while said < 50:
                try:
                    await branch.say("Tell me more about tea, please")
                except BranchLimit:
                    break
                said += 1
        return f"{said < 50}"

    @method
    async def pictures(self, ask: Ask) -> str:
        """Show the model a picture."""
        picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        try:
            return (await ask.sample([{"role": "user", "content": [picture]}])).text
        except AskError as error:
            return type(error).__name__

    @method
    async def fails(self, ask: Ask) -> str:
        """Tell the model that its tool failed."""
        tools = [{"name": "weather", "inputSchema": {"type": "object"}}]
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Rome?"}]
        said = await ask.sample(messages, tools=tools)
        results = [use.result("no such city", is_error=True) for use in said.tool_uses]
        messages += [said.message, {"role": "user", "content": results}]
        return (await ask.sample(messages, tools=tools)).text


async def told(engine: ChatEngine, said: str, principal: Principal | None = None) -> list[dict[str, Any]]:
    """The events of a turn, of a person whom something in front of the chat has recognised."""
    run = await engine.post(ChatRequest(message=said), principal)
    return [json.loads(line)["event"] async for line in run.lines()]


# --- who may what -----------------------------------------------------------------------------


def test_a_person_has_the_scopes_of_now_and_not_those_of_the_first_time() -> None:
    async def main() -> None:
        desk = Desk()
        engine = ChatEngine(Hub("h").register(desk), Puppet(*[call("desk__wipe"), "Well."] * 3))
        try:
            events = await told(engine, "go", Principal("ada", frozenset({"admin"})))
            assert only(events, "tool_result")["content"] == "wiped 1"
            events = await told(engine, "go", Principal("ada"))
            assert "it needs the scope admin" in only(events, "tool_error")["message"]
            events = await told(engine, "go", Principal("ada", frozenset({"admin"})))
            assert only(events, "tool_result")["content"] == "wiped 2"
        finally:
            await engine.close()
            await engine.hub.close()

    drive(main())


FULL, LESS = Principal("ada", frozenset({"admin"})), Principal("ada")


def yes(asked: dict[str, Any]) -> tuple[ElicitResponse, ...]:
    result = ElicitResult("accept", {"confirmed": True})
    return (ElicitResponse(asked["sessionId"], asked["elicitId"], result),)


async def posted(engine: ChatEngine, request: ChatRequest, principal: Principal) -> list[dict[str, Any]]:
    run = await engine.post(request, principal)
    return [json.loads(line)["event"] async for line in run.lines()]


@pytest.mark.parametrize("answers", [False, True])
def test_who_lacks_a_scope_can_neither_answer_nor_end_a_call_by_looking_in(answers: bool) -> None:
    """A key of the same person that may do less."""

    async def main() -> None:
        engine = ChatEngine(Hub("h").register(Desk()), Puppet(call("desk__erase"), "Well."))
        try:
            events = await told(engine, "go", FULL)
            id, asked = events[0]["conversationId"], only(events, "plugin_elicit_request")
            less = (
                ChatRequest(id, plugin_elicit_responses=yes(asked))
                if answers
                else ChatRequest(id, resume=True)
            )
            events = await posted(engine, less, LESS)
            assert kinds(events) == ["session_info", "error"]
            assert events[-1]["code"] == "insufficient_scope"
            assert "it needs the scope admin" in events[-1]["message"]
            (waiting,) = (await engine.hub.durable.journal.list()).calls
            assert waiting.status == "waiting"
            events = await posted(engine, ChatRequest(id, resume=True), FULL)
            assert only(events, "plugin_elicit_request") == asked  # it is still to be answered
            events = await posted(engine, ChatRequest(id, plugin_elicit_responses=yes(asked)), FULL)
            assert only(events, "tool_result")["content"] == "erased True"
        finally:
            await engine.close()
            await engine.hub.close()

    drive(main())


def test_who_lacks_a_scope_may_say_something_else_and_the_call_ends() -> None:
    """Otherwise whoever has lost it for good could say nothing more."""

    async def main() -> None:
        engine = ChatEngine(Hub("h").register(Desk()), Puppet(call("desk__erase"), "Well."))
        try:
            events = await told(engine, "go", FULL)
            conversation, _ = await engine.conversation(events[0]["conversationId"], FULL)
            (pending,) = conversation.pending.values()
            # What a turn leaves that was cut off just after it took the answer.
            pending.answers = {
                key: {"action": "accept", "content": {"confirmed": True}} for key in pending.questions
            }
            await save(engine.store, conversation)
            events = await posted(engine, ChatRequest(conversation.id, message="Never mind"), LESS)
            assert only(events, "tool_error")["message"] == INSTEAD
            assert text(events) == "Well."
            (ended,) = (await engine.hub.durable.journal.list()).calls
            assert ended.status == "aborted"
        finally:
            await engine.close()
            await engine.hub.close()

    drive(main())


@pytest.mark.parametrize(
    "said",
    [
        "half \ud800",
        ToolCall("c", "desk__\ud800", "{}"),
        ToolCall("c", "desk__wipe", '{"x": "\ud800"}'),
        ToolCall("c", "desk__wipe", '{"x": "\\ud800"}'),
    ],
)
def test_what_a_model_says_that_cannot_be_written_ends_no_conversation(said: str | ToolCall) -> None:
    async def main() -> None:
        async with chat(Puppet([said], "Well.", "Again."), Desk()) as person:
            events = await person.say("go")
            assert events[-1]["type"] == "complete"
            assert (await person.say("more"))[-1]["type"] == "complete"
            assert (await person.shown())["messages"][-1]["role"] == "assistant"

    drive(main())


def test_a_turn_tells_its_end_also_if_the_conversation_cannot_be_encoded() -> None:
    class Odd(Puppet):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            yield Stopped("stop", extra={"odd": object()})

    async def main() -> None:
        async with chat(Odd()) as person:
            events = await person.say("go")
            assert (kinds(events)[-1], events[-1]["code"]) == ("error", "internal_error")
            assert (await person.say("go"))[-1]["code"] == "internal_error"

    drive(main())


def test_the_version_of_a_conversation_counts_what_was_written() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        await journal.open()
        conversation = new_conversation(None)
        await save(journal.conversations, conversation)
        conversation.say(Message("user", "hello", extra={"odd": object()}))
        with pytest.raises(TypeError):
            await save(journal.conversations, conversation)
        assert conversation.version == 1
        conversation.messages.clear()
        await save(journal.conversations, conversation)
        assert conversation.version == 2
        await journal.close()

    drive(main())


def test_a_crowd_of_people_does_not_cut_off_whoever_was_there_first() -> None:
    async def main() -> None:
        desk = Desk()
        model = Puppet(call("desk__slow"), "Hello.", "Hello.", "There.")
        engine = ChatEngine(Hub("h").register(desk), model)
        try:
            ada = asyncio.create_task(told(engine, "go", Principal("ada")))
            await desk.begun.wait()
            for name in ("bob", "eve"):
                assert text(await told(engine, "hi", Principal(name))) == "Hello."
            desk.gate.set()
            assert only(await ada, "tool_result")["content"] == "done"
        finally:
            await engine.close()
            await engine.hub.close()

    drive(main())


def test_a_thread_that_was_deleted_and_begun_anew_does_not_find_the_calls_of_the_old_one() -> None:
    async def main() -> None:
        desk = Desk()
        engine = ChatEngine(Hub("h").register(desk), Puppet(*[call("desk__wipe"), "Done."] * 2))
        try:
            for number in (1, 2):
                run = await engine.post(ChatRequest("thread", message="wipe"), create=True)
                events = [json.loads(line)["event"] async for line in run.lines()]
                assert only(events, "tool_result")["content"] == f"wiped {number}"
                await engine.delete("thread")
        finally:
            await engine.close()
            await engine.hub.close()

    drive(main())


# --- servers that are mounted -------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_a_mounted_server_asks_the_person_and_the_model_of_the_chat(era: str) -> None:
    async def main() -> None:
        model = Puppet(call("b__seek__wizard"), "Made.", call("b__seek__sample", "c2"), "hi", "It says hi.")
        async with mounted(era=era) as hub, serving(ChatEngine(hub, model)) as port:
            person = Person(port)
            (asked,) = questions(await person.say("a project"))
            assert asked["message"] == "Project name?"
            (asked,) = questions(await person.answer(asked, text="tea"))
            (asked,) = questions(await person.answer(asked, choice="full"))
            events = await person.answer(asked, confirmed=True)
            assert "tea" in only(events, "tool_result")["content"]
            assert "hi" in only(await person.say("a word"), "tool_result")["content"]
            assert model.asked[3].system == "Be short"

    drive_slowly(main())


# --- what models and people write -------------------------------------------------------------


@pytest.mark.parametrize("depth", [200, 940, 960, 1000, 100_000])
def test_a_call_that_nobody_can_read_has_a_result_and_the_conversation_goes_on(depth: int) -> None:
    async def main() -> None:
        arguments = '{"value": ' + "[" * depth + "]" * depth + "}"
        model = Puppet(ToolCall("a", "desk__plain", arguments))
        async with chat(model, Desk()) as person:
            await person.say("go")
            events = await person.say("and now?")
            assert kinds(events)[-1] == "complete"
            messages = (await person.shown())["messages"]
            assert [one["tool_call_id"] for one in messages if one["role"] == "tool"] == ["a"]

    drive(main())


def test_a_call_that_fails_inside_does_not_take_the_others_along() -> None:
    broken: list[bool] = []

    def offered(name: str) -> bool:
        if broken:
            raise ZeroDivisionError  # in code of the author
        return True

    def both(request: ModelRequest) -> list[str | ToolCall]:
        broken.append(True)
        return [call("desk__unknown", "a"), call("desk__slow", "b")]

    async def main() -> None:
        desk = Desk()
        asyncio.get_running_loop().call_later(0.2, desk.gate.set)
        async with chat(Puppet(both, "There."), desk, offered=offered) as person:
            events = await person.say("go")
            assert only(events, "tool_error")["message"] == "Internal error"
            assert only(events, "error")["code"] == "internal_error"  # the model cannot be told its tools
            broken.clear()
            assert text(await person.post(resume=True)) == "There."
            contents = [one["content"] for one in (await person.shown())["messages"] if one["role"] == "tool"]
            assert contents == ["Error: Internal error", "done"]

    drive(main())


def test_a_message_that_is_sent_again_as_its_answer_was_lost_is_not_said_twice() -> None:
    async def main() -> None:
        model = Puppet("Hello.", call("desk__counts"), call("desk__wipe", "w"), "Wiped.")
        desk = Desk()
        async with chat(model, desk) as person:
            await person.say("hi")
            for _ in range(2):
                (asked,) = questions(await person.post(message="count", messageId="m1"))
            await person.answer(asked, value=3)
            assert desk.wiped == 1
            again = await person.post(message="count", messageId="m1")
            assert kinds(again) == ["session_info", "complete"]
            assert len(model.asked) == 4
            roles = [message["role"] for message in (await person.shown())["messages"]]
            assert roles.count("user") == 2

    drive(main())


@pytest.mark.parametrize("content", [0, {"value": 0}])
def test_nought_is_an_answer(content: Any) -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__counts")), Desk()) as person:
            (asked,) = questions(await person.say("go"))
            ids = {key: asked[key] for key in ("sessionId", "callId", "elicitId")}
            answer = {**ids, "result": {"action": "accept", "content": content}}
            events = await person.post(pluginElicitResponses=[answer])
            assert only(events, "tool_result")["content"] == "0 of them"

    drive(main())


@pytest.mark.parametrize("path", ["/chat", "/chat/stop", "/agui", "/agui/connect"])
@pytest.mark.parametrize("body", [b'{"message": "\xff"}', b'{"x": ' + b"[" * 100_000, b"[", b"null"])
def test_what_is_no_json_is_a_bad_request(path: str, body: bytes) -> None:
    async def main() -> None:
        async with chat(Puppet(), Desk()) as person:
            status, _, data = await person.request("POST", path, body)
            assert (status, json.loads(data)["error"]["code"]) == (400, "bad_request")

    drive(main())


def test_tools_whose_names_a_provider_cannot_tell_apart_are_told_apart() -> None:
    class Twin:
        def __init__(self, name: str) -> None:
            self.name = name

        @method
        async def who(self) -> str:
            """Who is it?"""
            return self.name

    async def main() -> None:
        hub = Hub("h").register_hub(Hub("a").register(Twin("first"), namespace="b"))
        hub.register(Twin("second"), namespace="a__b")
        names: list[str] = []

        def both(request: ModelRequest) -> list[str | ToolCall]:
            names.extend(tool.name for tool in request.tools)
            return [ToolCall(name, name) for name in names]

        engine = ChatEngine(hub, Puppet(both))
        async with serving(engine) as port:
            events = await Person(port).say("go")
        assert len(set(names)) == 2
        assert sorted(event["content"] for event in events if event["type"] == "tool_result") == [
            "first",
            "second",
        ]

    drive(main())


def test_a_method_has_one_plugin() -> None:
    async def handler(question: PluginQuestion, ctx: PluginContext) -> Any:
        return await ctx.render("X")

    plugins = [Plugin(Desk.counts).on(count, handler) for _ in range(2)]
    with pytest.raises(RegistrationError, match="two plugins"):
        ChatEngine(Hub("h").register(Desk()), Puppet(), plugins=plugins)


# --- what a turn may cost ---------------------------------------------------------------------


class Silent(Puppet):
    """A model that does not tell what it costs, as some servers do not."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        async for event in super().stream(request):
            yield Stopped() if isinstance(event, Stopped) else event


def test_answers_that_will_not_do_count_towards_the_budget() -> None:
    async def never(reply: Reply, request: ModelRequest) -> Reply:
        raise Retry("not good enough")

    async def main() -> None:
        model = Puppet(call("desk__insists"))
        async with chat(model, Desk(), sampling=Sampling(after=never), token_budget=100) as person:
            events = await person.say("go")
            assert only(events, "complete")["reason"] == "budget"
            # 15 each: the call, and twice three tries.
            assert only(events, "complete")["usage"] == {"input": 70, "output": 35}

    drive(main())


def test_a_budget_holds_also_where_the_model_does_not_tell_what_it_costs() -> None:
    async def main() -> None:
        model = Silent(*[call("desk__plain", value="x" * 100)] * 20)
        async with chat(model, Desk(), token_budget=300) as person:
            events = await person.say("go")
            assert only(events, "complete")["reason"] == "budget"
        async with chat(Silent(call("desk__talks"), *["Tea is hot."] * 99), Desk()) as person:
            assert only(await person.say("go"), "tool_result")["content"] == "True"

    drive(main())


def test_a_model_that_reads_only_text_is_not_asked_about_pictures() -> None:
    async def main() -> None:
        model = Puppet(call("desk__pictures"), "A cat.")
        async with chat(model, Desk()) as person:
            events = await person.say("go")
            assert only(events, "tool_result")["content"] == "Cancelled"
            assert "not text (image)" in only(events, "tool_progress")["message"]

    drive(main())


def test_a_model_is_told_that_a_tool_of_its_own_failed() -> None:
    async def main() -> None:
        model = Puppet(call("desk__fails"), call("weather", "w"), "No idea.")
        async with chat(model, Desk()) as person:
            await person.say("go")
            (result,) = [message for message in model.asked[2].messages if message.role == "tool"]
            assert (result.content, result.is_error) == ("no such city", True)

    drive(main())


# --- runs and stores --------------------------------------------------------------------------


def test_nothing_is_told_after_the_end_of_a_run() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        await journal.open()
        store = journal.conversations
        run = Run("r", "c", None, store, Trouble(logging.getLogger("midcall.chat"), "write"))
        await store.begin_run("r", "c", None)

        async def turn() -> None:
            run.emit(TextEvent("one"))

        run.begin(turn())
        assert run.task is not None
        await run.task
        run.emit(TextEvent("two"))  # a tool that ran on
        assert [line async for line in run.lines()] == list(await store.lines("r", 0))

    drive(main())


@pytest.mark.parametrize("verb", ["POST", "DELETE"])
def test_a_turn_is_stopped_by_whichever_process_is_asked(tmp_path: Path, verb: str) -> None:
    async def main() -> None:
        def engine(desk: Desk, model: Puppet) -> ChatEngine:
            hub = Hub("h").register(desk)
            hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"))
            return ChatEngine(hub, model)

        desk = Desk()
        first, second = engine(desk, Puppet(call("desk__slow"))), engine(Desk(), Puppet())
        async with serving(first) as here, serving(second) as there:
            turn = asyncio.create_task(Person(here).say("go"))
            await desk.begun.wait()
            person = Person(there)
            (listed,) = json.loads((await person.request("GET", "/chat/conversations"))[2])["conversations"]
            body = {"conversationId": listed["id"]}
            if verb == "POST":
                _, _, data = await person.request("POST", "/chat/stop", body)
                assert json.loads(data) == {"stopped": True}
            else:
                assert (await person.request("DELETE", f"/chat/conversations/{listed['id']}"))[0] == 204
            assert only(await turn, "complete")["reason"] == "stopped"
            (record,) = (await second.hub.durable.journal.list()).calls
            assert record.status == "aborted"

    drive(main())


def test_what_asks_for_a_conversation_that_is_gone_ends_with_it() -> None:
    async def main() -> None:
        desk = Desk()
        engine = ChatEngine(Hub("h").register(desk), Puppet(call("desk__later")))
        async with serving(engine) as port:
            turn = asyncio.create_task(Person(port).say("go"))
            await desk.begun.wait()
            (listed,) = await engine.conversations()
            assert await engine.store.delete(listed.id, None)  # as another process would, just now
            desk.gate.set()
            assert only(await turn, "error")["code"] == "conflict"
            (record,) = (await mcp_of(engine.hub).resumption.durable.journal.list()).calls
            assert record.status == "aborted"

    drive(main())


def test_a_store_that_could_not_be_opened_is_opened_by_the_next_request(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "folder"
        folder.write_text("in the way")
        engine = ChatEngine(Hub("h"), Puppet("Hello."), store=SqliteJournal(folder / "chat.db"))
        port_of = serving(engine)
        with pytest.raises(Exception, match="cannot be"):
            await engine.open()
        folder.unlink()
        async with port_of as port:
            assert text(await Person(port).say("hi")) == "Hello."

    drive(main())


def test_the_journal_of_the_hub_may_be_named_as_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        hub, journal = Hub("h"), SqliteJournal(tmp_path / "journal.db")
        hub.durable = DurableCalls(hub, journal)
        engine = ChatEngine(hub, Puppet("Hello."), store=journal)
        async with serving(engine) as port:
            assert text(await Person(port).say("hi")) == "Hello."
            await engine.close()
            assert len(await journal.conversations.list(None)) == 1  # it is closed with the hub

    drive(main())


def test_a_store_that_fails_is_not_the_fault_of_whoever_asks(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteJournal(tmp_path / "chat.db")
        async with serving(ChatEngine(Hub("h"), Puppet(), store=store)) as port:
            await store.close()
            status, message = await Person(port).refused(message="hi")
            assert (status, message) == (503, "The journal is not open")

    drive(main())


def test_nobody_else_on_the_machine_may_read_the_conversations(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteJournal(tmp_path / "chat.db")
        async with serving(ChatEngine(Hub("h"), Puppet("Hello."), store=store)) as port:
            await Person(port).say("a secret")
            files = sorted(one for one in tmp_path.rglob("*") if one.is_file())
            assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
            assert tmp_path / "chat.db" in files

    drive(main())

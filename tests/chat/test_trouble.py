"""The chat in trouble: turns that are cut off at a bad moment, stopped, or fail; nothing is left behind."""

import asyncio
import contextlib
import faulthandler
import gc
import json
import logging
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from chatting import Person, Puppet, call, chat, kinds, only, questions, response, serving, text
from driving import LIMIT, drive
from midcall import Ask, Hub, Question, method
from midcall.activations.demo import RULES, flights_plugin
from midcall.activations.flights import Flights, search
from midcall.chat import ChatEngine, Plugin, PluginContext, PluginQuestion, runs
from midcall.chat.conversation import (
    ChatRequest,
    Conversation,
    ElicitResponse,
    ElicitResult,
    TextEvent,
    load,
    save,
)
from midcall.chat.dialect import ToolEnded
from midcall.chat.plugins import Handler
from midcall.chat.runs import FarRun, Run
from midcall.chat.turn import for_model
from midcall.errors import Conflict, JournalError
from midcall.journal.contract import CallWrite, ConversationRecord, Creation, RunEnd, RunRecord, Saved
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryConversations, MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.logs import Trouble
from midcall.models.base import Message, ModelError, ModelRequest, Stopped, TextPart, ToolCall, Usage
from midcall.models.scripted import Scripted

T = TypeVar("T")

size = Question("size", int)


class Desk:
    """Asks and works."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.done: list[str] = []

    @method
    async def asks(self, ask: Ask) -> str:
        """Ask, and do something."""
        name = await ask.prompt("Name?")
        await ask.step(self.done.append, name)
        return f"did it for {name}"

    @method
    async def plain(self) -> str:
        """Give something at once."""
        return "plain"

    @method
    async def slow(self, ask: Ask) -> str:
        """Wait for the gate."""
        ask.progress("working")
        await self.gate.wait()
        return "done"

    @method(elicits=[size])
    async def sized(self, ask: Ask) -> str:
        """Ask for a size."""
        return f"size {await ask(size, 'Which size?')}"


async def statuses(hub: Hub) -> list[str]:
    return sorted(record.status for record in (await hub.durable.journal.list()).calls)


async def until_running(person: Person, **holds: int) -> None:
    """Wait until the turn of the only conversation has so many messages and lines."""
    while True:
        listed = json.loads((await person.request("GET", "/chat/conversations"))[2])["conversations"]
        if listed:
            person.conversation = listed[0]["id"]
            shown = await person.shown()
            if len(shown["messages"]) >= holds.get("messages", 0):
                return
        await asyncio.sleep(0.01)


def test_a_turn_that_died_just_after_it_took_the_answers_is_taken_up_again(tmp_path: Path) -> None:
    desk = Desk()

    def engine(model: Puppet) -> ChatEngine:
        hub = Hub("h").register(desk)
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"))
        return ChatEngine(hub, model)

    async def main() -> None:
        first = engine(Puppet(call("desk__asks")))
        async with serving(first) as port:
            person = Person(port)
            await person.say("go")
            # What a turn has written when it is killed before the tool goes on.
            conversation = await load(first.store, person.conversation, None)
            assert conversation is not None
            (pending,) = conversation.pending.values()
            (key,) = pending.questions
            pending.answers[key] = {"action": "accept", "content": {"text": "Ada"}}
            await save(first.store, conversation)
        async with serving(engine(Puppet("There."))) as port:
            person.port = port
            assert (await person.shown())["pending"] == []
            events = await person.post(resume=True)
            assert only(events, "tool_result")["content"] == "did it for Ada"
            assert kinds(events)[-1] == "complete"
            assert desk.done == ["Ada"]

    drive(main())


def test_an_answer_that_a_plugin_was_looking_at_when_the_server_died_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    origin, looks, goes_on = MemoryJournal(), asyncio.Event(), asyncio.Event()

    async def handler(question: PluginQuestion, ctx: PluginContext) -> Any:
        return (await ctx.render("Picker"))["size"]

    async def stuck(question: PluginQuestion, ctx: PluginContext) -> Any:
        picked = await handler(question, ctx)
        looks.set()
        await goes_on.wait()
        return picked

    def engine(handler: Handler) -> ChatEngine:
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, MemoryJournal(shared=origin))
        puppet = Puppet(lambda request: call("desk__sized") if len(request.messages) == 1 else "There.")
        return ChatEngine(hub, puppet, plugins=[Plugin(Desk.sized).on(size, handler)])

    async def main() -> None:
        async with serving(engine(stuck)) as port, serving(engine(handler)) as other:
            person, later = Person(port), Person(other)
            (asked,) = questions(await person.say("go"))
            later.conversation = person.conversation
            turn = asyncio.create_task(person.answer(asked, size=7))
            await looks.wait()
            monkeypatch.setattr("midcall.chat.engine.DEAD_AFTER", -1.0)  # for the other one, it is dead now
            assert (await later.shown())["pending"] == []
            events = await later.post(resume=True)
            assert only(events, "tool_result")["content"] == "size 7"
            goes_on.set()
            assert [event["code"] for event in await turn if event["type"] == "error"] == ["conflict"]

    drive(main())


def test_a_conversation_that_is_read_in_the_moment_when_its_turn_ends_is_not_said_to_be_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, load_now = Desk(), MemoryConversations.load

    async def main() -> None:
        async with chat(Puppet(call("desk__slow"), "There."), desk) as person:
            turn = asyncio.create_task(person.say("go"))
            await until_running(person, messages=2)

            async def load_before_the_end(*about: Any) -> ConversationRecord | None:
                found = await load_now(*about)
                desk.gate.set()
                await turn
                return found

            monkeypatch.setattr(MemoryConversations, "load", load_before_the_end)
            shown = await person.shown()
            assert (shown["cutOff"], shown["run"], len(shown["messages"])) == (False, None, 4)

    drive(main())


def test_an_answer_is_taken_also_if_another_one_that_came_with_it_was_taken_in_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, late = DurableCalls.answer, []

    async def answer_after_another(durable: DurableCalls, call_id: str, answers: dict[str, Any]) -> Any:
        """Another worker, which died then, has given the call the first of them."""
        if not late:
            late.append(call_id)
            await answer(durable, call_id, dict([*answers.items()][:1]))
        return await answer(durable, call_id, answers)

    class Two:
        """Asks."""

        @method
        async def beside(self, ask: Ask) -> str:
            """Ask two things at once."""
            return " ".join(await asyncio.gather(ask_for(ask, "A?"), ask_for(ask, "B?")))

    async def ask_for(ask: Ask, what: str) -> str:
        return await ask.prompt(what)

    async def main() -> None:
        async with chat(Puppet(call("two__beside"), "There."), Two()) as person:
            asked = questions(await person.say("go"))
            monkeypatch.setattr(DurableCalls, "answer", answer_after_another)
            given = [response(one, "accept", {"text": one["message"]}) for one in asked]
            events = await person.post(pluginElicitResponses=given)
            assert len(late) == 1
            assert only(events, "tool_result")["content"] == "A? B?"

    drive(main())


class Unending(MemoryJournal):
    """Cannot end a call."""

    async def end(self, *args: Any) -> bool:
        raise JournalError("not now")


def test_what_is_said_instead_of_an_answer_is_not_lost_if_the_call_that_asks_cannot_be_ended() -> None:
    async def main() -> None:
        puppet = Puppet(call("desk__asks"), lambda request: request.messages[-1].content)
        hub = Hub("h").register(Desk())
        origin = MemoryJournal()
        hub.durable = DurableCalls(hub, Unending(shared=origin))
        async with serving(ChatEngine(hub, puppet)) as port:
            person = Person(port)
            await person.say("go")
            events = await person.post(message="never mind", messageId="second")
            assert events[-1]["code"] == "journal_error"
            shown = await person.shown()
            assert (shown["cutOff"], shown["pending"]) == (True, [])  # nothing is asked any more
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, MemoryJournal(shared=origin))
        async with serving(ChatEngine(hub, puppet)) as port:
            person.port = port
            assert text(await person.post(resume=True)) == "never mind"
            roles = [one["role"] for one in (await person.shown())["messages"]]
            assert roles == ["user", "assistant", "tool", "user", "assistant"]
            assert await statuses(hub) == ["aborted"]

    drive(main())


@pytest.mark.parametrize("ahead", [-1, 0, 1, 2])
def test_whoever_reads_the_lines_of_a_server_that_was_killed_is_told_their_end_once(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Also who has more lines than were written down."""

    async def main() -> None:
        store = (await opened(MemoryJournal())).conversations
        await store.begin_run("r", "c", None)
        written = [b'{"lsn":%d,"event":{"type":"text","content":"x"}}' % n for n in (1, 2, 3)]
        await store.append("r", 1, written, ended=False)
        state = await store.run("r")
        assert state is not None
        monkeypatch.setattr(runs, "DEAD_AFTER", -1.0)
        for _ in range(2):
            rest = [json.loads(line) async for line in FarRun(state, store).lines(3 + ahead)]
            assert [one["lsn"] for one in rest] == list(range(4 + ahead, max(4, 4 + ahead) + 1))
            assert rest[-1]["event"]["code"] == "run_lost"

    drive(main())


def test_the_lines_of_a_run_that_has_ended_end_there() -> None:
    async def main() -> None:
        store = (await opened(MemoryJournal())).conversations
        await store.begin_run("r", "c", None)
        await store.append("r", 1, [b'{"lsn":1,"event":{"type":"complete"}}'], ended=True)
        state = await store.run("r")
        assert state is not None
        assert [line async for line in FarRun(state, store).lines(1)] == []
        assert [line async for line in FarRun(state, store).lines(7)] == []

    drive(main())


@pytest.mark.parametrize("last", [3, 999, 10**9 - 1])
def test_a_reader_that_claims_more_lines_than_a_turn_has_told_waits_and_holds_up_nobody(last: int) -> None:
    desk = Desk()

    async def main() -> None:
        async with chat(Puppet(call("desk__slow"), "There."), desk) as person:
            turn = asyncio.create_task(person.say("go"))
            await until_running(person, messages=2)
            run = (await person.shown())["run"]["sessionId"]
            path = f"/chat?sessionId={run}&lastLsn={last}"
            reader = asyncio.create_task(person.request("GET", path))
            await asyncio.sleep(0.1)
            assert (await person.request("GET", "/chat/info"))[0] == 200
            desk.gate.set()
            whole = [{"lsn": n, "event": event} for n, event in enumerate(await turn, 1)]
            status, _, rest = await reader
            assert status == 200
            assert [json.loads(line) for line in rest.splitlines()] == whole[last:]

    # A loop that stands still cannot be stopped from inside.
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    try:
        drive(main())
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("last", [-1, -999])
def test_a_number_below_the_first_line_means_all_lines(last: int) -> None:
    async def main() -> None:
        store = (await opened(MemoryJournal())).conversations
        await store.begin_run("r", "c", None)
        run = Run("r", "c", None, store, Trouble(logging.getLogger("midcall.chat"), "write"))

        async def turn() -> None:
            for word in ("one", "two", "three"):
                run.emit(TextEvent(word))

        run.begin(turn())
        assert run.task is not None
        await run.task
        state = await store.run("r")
        assert state is not None
        for reader in (run, FarRun(state, store)):
            assert [json.loads(line)["lsn"] async for line in reader.lines(last)] == [1, 2, 3]

    drive(main())


async def opened(journal: MemoryJournal) -> MemoryJournal:
    await journal.open()
    return journal


class Away(MemoryConversations):
    """Cannot be used now and then."""

    def __init__(self, journal: MemoryJournal, times: int) -> None:
        super().__init__(journal)
        self.times = times

    async def run(self, run: str) -> RunRecord | None:
        self._fail()
        return await super().run(run)

    async def save(
        self,
        record: ConversationRecord,
        end: RunEnd | None = None,
        begins: str | None = None,
        call: CallWrite[T] | None = None,
    ) -> Saved[T]:
        saved = await super().save(record, None if self.times > 0 else end, begins, call)
        return Saved(saved.ended and self.times <= 0, saved.call)

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        self._fail()
        return await super().append(run, first, lines, ended=ended)

    def _fail(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise JournalError("away")


def test_whoever_reads_the_lines_of_another_process_waits_for_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        monkeypatch.setattr(runs, "POLL", 0.01)
        store = Away(await opened(MemoryJournal()), 0)
        await store.begin_run("r", "c", None)
        await store.append("r", 1, [b'{"lsn":1,"event":{"type":"complete"}}'], ended=True)
        state = await store.run("r")
        assert state is not None
        store.times = 3
        assert len([line async for line in FarRun(state, store).lines()]) == 1
        store.times = 10**6
        assert [line async for line in FarRun(state, store, lambda: True).lines()] == []  # the process ends

    drive(main())


def test_the_lines_of_a_turn_are_written_when_the_store_is_back_also_after_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        journal = MemoryJournal()
        store = journal.conversations = Away(journal, 3)
        async with chat(Puppet("Hello."), store=journal) as person:
            assert text(await person.say("go")) == "Hello."
            while not (state := await MemoryConversations.run(store, person.run)) or not state.ended:
                await asyncio.sleep(0.01)
            assert b"Hello." in b"".join(await store.lines(person.run, 0))

    drive(main())
    told = [one.getMessage() for one in caplog.records if one.name == "midcall.chat"]
    assert [line.partition(" write ")[0] for line in told] == ["cannot", "can"]


def test_a_turn_that_others_took_for_dead_writes_no_more_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        journal, model = MemoryJournal(), Gated(["One ", "two "])
        store = journal.conversations
        async with chat(model, store=journal) as person:
            turn = asyncio.create_task(person.say("go"))
            await until_running(person, messages=1)
            (run,) = journal._memory.runs
            while (state := await store.run(run)) is None or not state.lines:
                await asyncio.sleep(0.01)
            await store.append(run, state.lines + 1, [b"the end"], ended=True)
            model.gate.set()
            await turn
            assert (await store.lines(run, 0))[-1] == b"the end"

    drive(main())
    told = [one.getMessage() for one in caplog.records if one.name == "midcall.chat"]
    assert told == ["a run was taken for dead, as it could not be written for a while"]


def test_stopping_ends_what_runs_and_what_waits_however_often_it_is_asked_for() -> None:
    async def main() -> None:
        hub = Hub("h").register(Desk())
        model = Puppet([call("desk__asks", "a"), call("desk__slow", "b")], "never")
        async with serving(ChatEngine(hub, model)) as port:
            person = Person(port)
            turn = asyncio.create_task(person.say("go"))
            await until_running(person, messages=2)
            while await statuses(hub) != ["running", "waiting"]:
                await asyncio.sleep(0.01)
            body = {"conversationId": person.conversation}
            stops = [person.request("POST", "/chat/stop", body) for _ in range(3)]
            stopped = [json.loads(data)["stopped"] for _, _, data in await asyncio.gather(*stops)]
            assert True in stopped
            events = await turn
            assert only(events, "complete")["reason"] == "stopped"
            assert sorted(e["callId"] for e in events if e["type"] == "tool_error") == ["a", "b"]
            shown = await person.shown()
            assert (shown["pending"], shown["run"]) == ([], None)
            assert [message["role"] for message in shown["messages"]] == ["user", "assistant", "tool", "tool"]
            while await statuses(hub) != ["aborted", "aborted"]:
                await asyncio.sleep(0.01)

    drive(main())


def test_a_plugin_that_fails_says_why_and_the_question_may_be_answered_otherwise() -> None:
    async def handler(question: PluginQuestion, ctx: PluginContext) -> Any:
        return int(await ctx.render("Ruler"))

    async def main() -> None:
        plugin = Plugin(Desk.sized).on(size, handler)
        async with chat(Puppet(call("desk__sized")), Desk(), plugins=[plugin]) as person:
            asked = only(await person.say("go"), "plugin_elicit_request")
            events = await person.post(pluginElicitResponses=[response(asked, "accept", "no number")])
            again = only(events, "plugin_elicit_request")
            assert "(Not understood: invalid literal for int() with base 10: 'no number')" in again["message"]
            assert (await person.shown())["pending"] == [again]
            events = await person.post(pluginElicitResponses=[response(again, "accept", "42")])
            assert only(events, "tool_result")["content"] == "size 42"

    drive(main())


def test_a_plugin_that_never_gives_what_fits_is_given_up() -> None:
    async def handler(question: PluginQuestion, ctx: PluginContext) -> Any:
        return "no number"

    async def main() -> None:
        hub = Hub("h").register(Desk())
        plugin = Plugin(Desk.sized).on(size, handler)
        async with serving(ChatEngine(hub, Puppet(call("desk__sized")), plugins=[plugin])) as port:
            events = await Person(port).say("go")
            assert "was stopped" in only(events, "tool_error")["message"]
            assert kinds(events)[-1] == "complete"
            assert await statuses(hub) == ["aborted"]

    drive(main())


def test_what_was_said_twice_because_the_model_failed_is_told_to_it_as_one_message() -> None:
    async def main() -> None:
        model = Puppet(ModelError("away"), "Here I am.")
        async with chat(model, Desk()) as person:
            assert kinds(await person.say("Hello?"))[-1] == "error"
            assert text(await person.say("Anybody?")) == "Here I am."
            assert [(m.role, m.content) for m in model.told] == [("user", "Hello?\n\nAnybody?")]
            messages = (await person.shown())["messages"]
            assert [m["content"] for m in messages] == ["Hello?", "Anybody?", "Here I am."]

    drive(main())


def test_a_long_history_of_short_messages_is_for_model_in_linear_time() -> None:
    def seconds(count: int) -> float:
        said = [Message("user", "a" * 2000)] * count
        begun = time.process_time()
        (one,) = for_model(said)
        assert len(one.content) == 2002 * count - 2
        return time.process_time() - begun

    seconds(10)
    assert min(seconds(4000) for _ in range(3)) < 0.5  # a copy for each message takes several seconds
    answered = [
        Message("user", "a"),
        Message("assistant", "b"),
        Message("assistant", "c"),
        Message("user", "d"),
    ]
    assert for_model(answered) == tuple(answered)


def test_a_turn_that_failed_is_seen_as_cut_off_by_a_page_that_reloads(tmp_path: Path) -> None:
    def engine(*answers: Any) -> ChatEngine:
        hub = Hub("h").register(Desk())
        return ChatEngine(hub, Puppet(*answers), store=SqliteJournal(tmp_path / "chat.db"))

    async def connected(person: Person) -> dict[str, Any]:
        """How what goes on in the thread ends, for a page that speaks AG-UI."""
        body = {"threadId": person.conversation}
        _, _, data = await person.request("POST", "/agui/connect", body)
        ended: dict[str, Any] = json.loads(data.rpartition(b"data: ")[2])
        return ended

    async def main() -> None:
        async with serving(engine(ModelError("away", recoverable=True), ModelError("gone"))) as port:
            person = Person(port)
            failed = only(await person.say("Hello?"), "error")
            shown = await person.shown()
            assert (shown["cutOff"], shown["error"], shown["run"]) == (True, failed, None)
            ended = await connected(person)
            assert (ended["type"], ended["message"], ended["code"]) == ("RUN_ERROR", "away", failed["code"])
            failed = only(await person.post(resume=True), "error")
        async with serving(engine(["Here ", "I am."])) as port:
            person.port = port
            assert (await person.shown())["error"] == failed
            assert text(await person.post(resume=True)) == "Here I am."
            shown = await person.shown()
            assert (shown["cutOff"], shown["error"]) == (False, None)
            assert (await connected(person))["type"] == "RUN_FINISHED"

    drive(main())


def test_a_turn_that_the_end_of_a_server_cut_off_is_seen_as_such_by_a_page_that_reloads(
    tmp_path: Path,
) -> None:
    def engine(model: Puppet) -> ChatEngine:
        return ChatEngine(Hub("h").register(Desk()), model, store=SqliteJournal(tmp_path / "chat.db"))

    async def main() -> None:
        async with serving(engine(Gated("Hello."))) as port:
            person = Person(port)
            turn = asyncio.create_task(person.say("go"))
            await until_running(person, messages=1)
        closed = only(await turn, "error")
        assert closed["code"] == "closing"
        killed = SqliteJournal(tmp_path / "chat.db")
        await killed.open()
        async with serving(engine(Puppet("Hello."))) as port:
            person.port = port
            shown = await person.shown()
            assert (shown["cutOff"], shown["error"]) == (True, closed)
            conversation = await load(killed.conversations, person.conversation, None)
            assert conversation is not None
            conversation.run = "a run that is nowhere"
            await save(killed.conversations, conversation)
            await killed.close()
            shown = await person.shown()
            assert (shown["cutOff"], shown["error"]["code"]) == (True, "run_lost")
            await person.post(resume=True)
            assert (await person.shown())["cutOff"] is False

    drive(main())


def test_a_session_that_is_gone_ends_its_tool_call_for_whoever_watches() -> None:
    async def main() -> None:
        conversations = MemoryJournal()

        def engine() -> ChatEngine:  # each with a journal of its own, in memory
            hub = Hub("h").register(Flights())
            return ChatEngine(hub, Scripted(RULES), store=conversations, plugins=[flights_plugin()])

        async with serving(engine()) as port:
            person = Person(port)
            asked = only(await person.say("Book a flight from Rome to Oslo"), "plugin_elicit_request")
        async with serving(engine()) as port:
            person.port = port
            events = await person.answer(asked, flightId=search("Rome", "Oslo")[0].id)
            assert only(events, "plugin_session_error")["error"] == "SESSION_NOT_FOUND"
            assert only(events, "tool_error")["callId"] == asked["callId"]

    drive(main())


def test_a_call_that_is_stopped_while_it_is_written_down_is_not_left_unstarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the journal is away just when it is to be ended."""

    async def main() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, journal)
        engine = ChatEngine(hub, Puppet(call("desk__plain"), "Fine."))
        save, find, creating, away = journal.conversations.save, journal.find, asyncio.Event(), [1]
        stopped = asyncio.Event()

        async def slow(*given: Any, **named: Any) -> Any:
            if isinstance(given[3], Creation):
                creating.set()
                await stopped.wait()
            return await save(*given, **named)

        async def once_away(*given: Any, **named: Any) -> Any:
            if away:
                away.pop()
                raise JournalError("away")
            return await find(*given, **named)

        monkeypatch.setattr(journal.conversations, "save", slow)
        monkeypatch.setattr(journal, "find", once_away)
        await engine.open()
        posting = asyncio.create_task(engine.post(ChatRequest(message="go")))
        await creating.wait()
        engine._runs[next(iter(engine._runs))].stop()
        stopped.set()
        run = await posting
        assert [json.loads(line)["event"]["type"] async for line in run.lines()][-1] == "error"
        again = await engine.post(ChatRequest(conversation_id=run.conversation_id, message="hello?"))
        events = [json.loads(line)["event"] async for line in again.lines()]
        assert only(events, "tool_result")["content"] == "plain"
        assert kinds(events)[-1] == "complete"
        assert await statuses(hub) == ["completed"]
        await engine.close()
        await hub.durable.close()

    drive(main())


def test_a_call_that_was_written_down_and_never_started_is_started_by_whoever_comes_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, MemoryJournal())
        engine = ChatEngine(hub, Puppet(call("desk__plain"), "Fine."))
        await engine.open()
        with monkeypatch.context() as patched:
            patched.setattr(hub.durable, "start", lambda _: None)
            run = await engine.post(ChatRequest(message="go"))
            while await statuses(hub) != ["running"]:
                await asyncio.sleep(0.01)
        (waiting,) = hub.durable.live
        ended = await engine.calls.current(waiting.record.id, lambda *_: None)
        assert ended == ToolEnded("plain", given="plain")
        events = [json.loads(line)["event"] async for line in run.lines()]
        assert only(events, "tool_result")["content"] == "plain"
        await engine.close()
        await hub.durable.close()

    drive(main())


def test_a_turn_that_only_looks_in_writes_no_copy_of_the_conversation() -> None:
    async def main() -> None:
        engine = ChatEngine(Hub("h").register(Desk()), Puppet("Long.", call("desk__asks"), "There."))
        async with serving(engine) as port:
            person = Person(port)
            await person.say("x" * 100_000)
            asked = only(await person.say("now ask"), "plugin_elicit_request")
            first = await person.post(resume=True)
            messages = (await person.shown())["messages"]
            assert only(first, "conversation_state")["messages"] == messages
            assert set(first[-1]) == {"type", "conversationId", "messages", "pending", "usage"}
            run = person.run
            assert sum(map(len, await engine.store.lines(run, 0))) < 10_000
            # Later, here or elsewhere, it is told the same.
            await person.answer(asked, text="Ada")
            for _ in range(2):
                _, _, data = await person.request("GET", f"/chat?sessionId={run}")
                assert [json.loads(line)["event"] for line in data.splitlines()] == first
                engine._runs.clear()
            # Of a conversation that is gone, nothing is told.
            await person.request("DELETE", f"/chat/conversations/{person.conversation}")
            _, _, data = await person.request("GET", f"/chat?sessionId={run}")
            assert b"x" * 100 not in data

    drive(main())


class Counter:
    """Says how far it is, often."""

    @method
    async def counts(self, ask: Ask, most: int) -> str:
        """Count."""
        for number in range(1, most + 1):
            ask.progress(f"{number}")
            if number % 10 == 0:
                await asyncio.sleep(0)
        return "counted"


@pytest.mark.parametrize("most", [50, 20_000])
def test_of_a_flood_of_progress_the_first_reports_and_the_newest_are_told(most: int) -> None:
    async def main() -> None:
        async with chat(Puppet(call("counter__counts", most=most), "There."), Counter()) as person:
            begun = time.monotonic()
            events = await person.say("go")
            seconds = time.monotonic() - begun
            told = [int(event["message"]) for event in events if event["type"] == "tool_progress"]
            assert told[:50] == list(range(1, 51))
            assert told == sorted(set(told))
            assert told[-1] == most
            assert len(told) <= 102 + seconds / runs.WRITE_EVERY
            assert kinds(events)[-3:] == ["tool_result", "text", "complete"]

    drive(main())


class Gated(Puppet):
    """Waits before it says its last words."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.gate = asyncio.Event()

    async def stream(self, request: ModelRequest) -> Any:
        async for event in super().stream(request):
            yield event
            await self.gate.wait()


def test_a_conversation_that_is_deleted_elsewhere_ends_its_turn_with_an_error() -> None:
    async def main() -> None:
        model = Gated(["one ", "two "])
        engine = ChatEngine(Hub("h").register(Desk()), model)
        async with serving(engine) as port:
            person = Person(port)
            turn = asyncio.create_task(person.say("go"))
            await until_running(person, messages=1)
            assert await engine.store.delete(person.conversation, None)  # as another process would
            model.gate.set()
            assert only(await turn, "error")["code"] == "conflict"

    drive(main())


def test_a_conversation_that_is_deleted_elsewhere_is_not_read_through_the_run_that_was_here() -> None:
    def engine(origin: MemoryJournal) -> ChatEngine:
        hub = Hub("h")
        hub.durable = DurableCalls(hub, MemoryJournal(shared=origin))
        return ChatEngine(hub, Puppet("Hello."))

    async def main() -> None:
        origin = MemoryJournal()
        async with serving(engine(origin)) as port, serving(engine(origin)) as other:
            person = Person(port)
            await person.say("go")
            again = f"/chat?sessionId={person.run}"
            assert (await person.request("GET", again))[0] == 200
            deleted, _, _ = await Person(other).request(
                "DELETE", f"/chat/conversations/{person.conversation}"
            )
            assert deleted == 204
            assert (await person.request("GET", again))[0] == 404

    drive(main())


def test_a_deleted_conversation_takes_along_what_its_turn_has_begun() -> None:
    async def main() -> None:
        hub = Hub("h").register(Desk())
        model = Puppet([call("desk__asks", "a"), call("desk__slow", "b")])
        async with serving(ChatEngine(hub, model)) as port:
            person = Person(port)
            turn = asyncio.create_task(person.say("go"))
            await until_running(person, messages=2)
            while await statuses(hub) != ["running", "waiting"]:
                await asyncio.sleep(0.01)
            path = f"/chat/conversations/{person.conversation}"
            assert (await person.request("DELETE", path))[0] == 204
            assert kinds(await turn)[-1] == "complete"
            while await statuses(hub) != ["aborted", "aborted"]:
                await asyncio.sleep(0.01)

    drive(main())


@pytest.mark.parametrize("hub_first", [True, False])
def test_a_server_that_closes_while_a_tool_runs_finds_its_call_again(tmp_path: Path, hub_first: bool) -> None:
    async def main() -> None:
        def engine(desk: Desk, model: Puppet) -> ChatEngine:
            hub = Hub("h").register(desk)
            hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"))
            return ChatEngine(hub, model)

        first = engine(Desk(), Puppet(["Working. ", call("desk__slow")]))
        async with serving(first) as port:
            person = Person(port)
            turn = asyncio.create_task(person.say("go"))
            await until_running(person, messages=2)
            while await statuses(first.hub) != ["running"]:
                await asyncio.sleep(0.01)
            if hub_first:
                await first.hub.close()
        events = await turn
        assert only(events, "error")["recoverable"]
        desk, model = Desk(), Puppet("There.")
        desk.gate.set()
        async with serving(engine(desk, model)) as port:
            person.port = port
            messages = (await person.shown())["messages"]
            assert [message["role"] for message in messages] == ["user", "assistant"]
            events = await person.post(resume=True)
            assert only(events, "tool_result")["content"] == "done"
            assert text(events) == "There."
            assert questions(events) == []

    drive(main())


def test_runs_that_ended_long_ago_are_forgotten_and_conversations_are_not(tmp_path: Path) -> None:
    def engine() -> ChatEngine:
        return ChatEngine(
            Hub("h").register(Desk()), Puppet("Hello."), store=SqliteJournal(tmp_path / "chat.db")
        )

    async def main() -> None:
        async with serving(engine()) as port:
            person = Person(port)
            await person.say("go")
        with contextlib.closing(sqlite3.connect(tmp_path / "chat.db")) as file, file:
            file.execute("UPDATE runs SET seen = seen - 7200, begun = begun - 7200")
        second = engine()
        async with serving(second) as port:
            person.port = port
            while await second.store.run(person.run) is not None:
                await asyncio.sleep(0.01)
            assert await second.store.lines(person.run, 0) == []
            headers = {"X-Session-Id": person.run}
            assert (await person.request("GET", "/chat", headers=headers))[0] == 404
            assert len((await person.shown())["messages"]) == 2

    drive(main())


class Recording(MemoryConversations):
    """Remembers each state that was saved."""

    def __init__(self, journal: MemoryJournal) -> None:
        super().__init__(journal)
        self.saved: list[Conversation] = []

    async def save(
        self,
        record: ConversationRecord,
        end: RunEnd | None = None,
        begins: str | None = None,
        call: CallWrite[T] | None = None,
    ) -> Saved[T]:
        saved = await super().save(record, end, begins, call)
        self.saved.append(msgspec.json.decode(record.body, type=Conversation))
        return saved


def test_whoever_reads_a_saved_conversation_and_the_lines_after_it_is_told_everything_once() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        store = journal.conversations = Recording(journal)
        calls = [call("desk__plain", "p"), call("desk__asks", "a")]
        model = Puppet(["One ", "two. ", *calls], ["Three ", "four."], "Five.")
        async with chat(model, Desk(), store=journal) as person:
            first = await person.say("go")
            asked = only(first, "plugin_elicit_request")
            second = await person.answer(asked, text="Ada")
            await person.say("more")
            whole = (await person.shown())["messages"]
        for events, run in ((first, first[0]["sessionId"]), (second, second[0]["sessionId"])):
            states = [state for state in store.saved if state.run == run]
            assert len(states) >= 2
            for state in states:
                later = events[state.lsn :]
                said = [message.content for message in state.messages if message.role == "assistant"]
                made = [made.id for message in state.messages for made in message.tool_calls]
                results = [message.tool_call_id for message in state.messages if message.role == "tool"]
                made += [
                    one["id"] for event in later if event["type"] == "tool_calls" for one in event["calls"]
                ]
                results += [e["callId"] for e in later if e["type"] in ("tool_result", "tool_error")]
                assert made == ["p", "a"]
                assert results == (["p"] if events is first else ["p", "a"])
                told = "".join(said) + text(later)
                assert told == ("One two. " if events is first else "One two. Three four.")
        roles = ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
        assert [message["role"] for message in whole] == roles

    drive(main())


class Eager(Puppet):
    """Answers without a moment in which anything else could be done."""

    async def stream(self, request: ModelRequest) -> Any:
        self.asked.append(request)
        answer = self.answers.pop(0)
        yield answer if isinstance(answer, ToolCall) else TextPart(str(answer))
        yield Stopped("stop", Usage(1, 1))


def test_a_tool_call_is_never_kept_without_the_message_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go into one transaction, or the message goes first."""

    async def main() -> None:
        journal, kept = SqliteJournal(tmp_path / "journal.db"), []
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, journal)
        engine = ChatEngine(hub, Eager(call("desk__plain"), "Fine."))
        create, keep = journal._create, journal.conversations._row

        def creating(*given: Any) -> Any:
            kept.append("call")
            return create(*given)

        def keeping(record: ConversationRecord) -> Any:
            kept.extend(["message"] if b"desk__plain" in record.body else [])
            return keep(record)

        monkeypatch.setattr(journal, "_create", creating)
        monkeypatch.setattr(journal.conversations, "_row", keeping)
        await engine.open()
        run = await engine.post(ChatRequest(message="go"))
        assert kinds([json.loads(line)["event"] async for line in run.lines()])[-1] == "complete"
        assert kept[:2] == ["message", "call"]
        await engine.close()
        await hub.durable.close()

    drive(main())


class LateReply(MemoryConversations):
    """Tells that the first save is done only when others have had time to begin."""

    def __init__(self, journal: MemoryJournal) -> None:
        super().__init__(journal)
        self.under_way = self.most = self.saves = 0

    async def save(
        self,
        record: ConversationRecord,
        end: RunEnd | None = None,
        begins: str | None = None,
        call: CallWrite[T] | None = None,
    ) -> Saved[T]:
        self.saves += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            saved = await super().save(record, end, begins, call)
            if self.saves == 1:
                for _ in range(100):
                    await asyncio.sleep(0)
            return saved
        finally:
            self.under_way -= 1


class Pausing(Puppet):
    """Keeps everybody waiting before each answer."""

    async def stream(self, request: ModelRequest) -> Any:
        for _ in range(5):
            await asyncio.sleep(0)
        async for event in super().stream(request):
            yield event


def test_a_save_does_not_begin_while_another_one_of_the_conversation_is_under_way() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        store = journal.conversations = LateReply(journal)
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, journal)
        engine = ChatEngine(hub, Pausing(call("desk__nothing"), "Fine."))
        await engine.open()
        run = await engine.post(ChatRequest(message="go"))
        events = [json.loads(line)["event"] async for line in run.lines()]
        assert kinds(events)[-1] == "complete"
        assert store.most == 1
        await engine.close()
        await hub.durable.close()

    drive(main())


class Full(MemoryConversations):
    """Refuses what the model has said, or everything."""

    word = b"desk__asks"

    async def save(
        self,
        record: ConversationRecord,
        end: RunEnd | None = None,
        begins: str | None = None,
        call: CallWrite[T] | None = None,
    ) -> Saved[T]:
        if self.word in record.body:
            raise JournalError("full")
        return await super().save(record, end, begins, call)


def test_a_tool_does_not_run_if_the_message_that_calls_it_cannot_be_saved() -> None:
    async def main() -> None:
        journal, desk = MemoryJournal(), Desk()
        journal.conversations = Full(journal)
        hub = Hub("h").register(desk)
        hub.durable = DurableCalls(hub, journal)
        engine = ChatEngine(hub, Puppet(["Well. ", call("desk__asks")], [call("desk__asks")]))
        await engine.open()
        run = await engine.post(ChatRequest(message="go"))
        events = [json.loads(line)["event"] async for line in run.lines()]
        assert kinds(events)[-1] == "error"
        assert await statuses(hub) == []
        journal.conversations.word = b"never"
        run = await engine.post(ChatRequest(conversation_id=run.conversation_id, resume=True))
        events = [json.loads(line)["event"] async for line in run.lines()]
        assert kinds(events)[-2:] == ["plugin_elicit_request", "conversation_state"]
        assert await statuses(hub) == ["waiting"]
        await engine.close()
        await hub.durable.close()

    drive(main())


@pytest.mark.parametrize("model", [Puppet, Eager])
def test_of_a_turn_that_cannot_be_saved_nothing_is_left(model: type[Puppet]) -> None:
    async def main() -> None:
        journal = MemoryJournal()
        store = journal.conversations = Full(journal)
        store.word = b""
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, journal)
        engine = ChatEngine(hub, model(call("desk__asks"), "Fine."))
        await engine.open()
        with pytest.raises(JournalError, match="full"):
            await engine.post(ChatRequest(message="go"))
        store.word = b"never"
        while engine._runs:
            await asyncio.sleep(0.01)
        assert await engine.conversations() == []
        assert await statuses(hub) == []
        assert not engine._turns.is_full(None, 1)
        await engine.close()
        await hub.durable.close()

    drive(main())


def test_a_turn_that_has_ended_is_freed_without_the_collector() -> None:
    """What leads back to itself is found only by the collector, which holds up all other turns for that."""

    async def main() -> None:
        async with chat(Puppet(*[call("desk__asks"), "Done."] * 6), Desk()) as person:

            async def one() -> None:
                asked = only(await person.say("go"), "plugin_elicit_request")
                assert kinds(await person.answer(asked, text="Ada"))[-1] == "complete"

            await one()
            gc.collect()
            gc.disable()
            try:
                for _ in range(5):
                    await one()
                await asyncio.sleep(2 * runs.WRITE_EVERY)  # until the timers of the turns are gone
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                assert [one for one in gc.garbage if type(one).__module__.startswith("midcall")] == []
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    drive(main())


def test_of_two_tabs_that_answer_at_the_same_moment_one_goes_on_and_nothing_comes_of_the_other(
    tmp_path: Path,
) -> None:
    class Two:
        @method
        async def two(self, ask: Ask) -> str:
            """Ask two things at once."""
            name, sure = await ask.all(ask.prompt("Name?"), ask.confirm("Sure?"))
            return f"{name} {sure}"

    async def main() -> None:
        hub = Hub("h").register(Two())
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "journal.db"))
        engine = ChatEngine(hub, Puppet(call("two__two")))
        await engine.open()
        run = await engine.post(ChatRequest(message="go"))
        told = [json.loads(line)["event"] async for line in run.lines()]
        answers = [
            ChatRequest(
                conversation_id=told[0]["conversationId"],
                plugin_elicit_responses=(
                    ElicitResponse(asked["sessionId"], asked["elicitId"], ElicitResult("accept", content)),
                ),
            )
            for asked, content in zip(questions(told), ({"text": "Ann"}, {"confirmed": True}), strict=True)
        ]
        went_on, refused = await asyncio.gather(*map(engine.post, answers), return_exceptions=True)
        assert isinstance(refused, Conflict)
        assert isinstance(went_on, Run)
        events = [json.loads(line)["event"] async for line in went_on.lines()]
        assert kinds(events)[-1] == "conversation_state", "it is not refused for the other one"
        assert [asked["message"] for asked in questions(events)] == ["Sure?"], "that was refused"
        await engine.close()
        await hub.close()

    drive(main())

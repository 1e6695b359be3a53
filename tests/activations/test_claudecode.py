"""Claude Code asks through midcall: the real program, with a scripted model on loopback."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from claude_app import NEEDS_PROGRAM, PLACES, SCRIPT, environment, make_hub, until_nobody_is_left
from driving import LIMIT, drive
from loopback_model import LoopbackModel, loopback_model
from midcall import Hub, Request
from midcall.activations.claudecode import run as running
from midcall.activations.claudecode.run import ALONE
from midcall.items import Data, Item
from midcall.questions import Form, Prompt, Select

pytestmark = NEEDS_PROGRAM
LONG = 3 * LIMIT
"""Claude Code takes seconds to start, several times in a test."""


@pytest.fixture
def model() -> Iterator[LoopbackModel]:
    with loopback_model(SCRIPT) as served:
        yield served


class Room:
    """A hub with a session of Claude Code, and a person who answers from a list."""

    def __init__(self, hub: Hub, folder: Path, mark: str, principal: str | None) -> None:
        self.hub = hub
        self.principal = principal
        self.work = folder / "work"
        self.mark = mark
        self.asked: list[Any] = []

    @property
    def lines(self) -> list[str]:
        """What was written."""
        file = self.work / PLACES
        return file.read_text().split() if file.exists() else []

    async def say(self, method: str, /, **params: Any) -> Any:
        return await self.hub.call(f"claudecode.{method}", params, principal=self.principal)

    async def chat(self, query: str, *answers: Any, session: str = "first") -> list[Any]:
        """Chat, and give the events."""
        left = list(answers)

        def answer(request: Request) -> Any:
            self.asked.append(request.request_type)
            return left.pop(0)

        params = {"session_name": session, "query": query}
        handler = answer if answers else None
        call = self.hub.call("claudecode.chat", params, answer=handler, principal=self.principal)
        items: list[Item] = [item async for item in call]
        assert left == []
        return [item.content for item in items if isinstance(item, Data)]


@asynccontextmanager
async def opened(
    model: LoopbackModel, folder: Path, principal: str | None = None, **more: Any
) -> AsyncIterator[Room]:
    env = environment(model, folder)
    hub = make_hub(env, **more)
    room = Room(hub, folder, env["CLAUDE_TEST_MARK"], principal)
    await room.say("create", name="first", working_dir=str(room.work))
    yield room
    await until_nobody_is_left(room.mark)


def kinds(events: list[Any]) -> list[str]:
    return [event.__struct_config__.tag for event in events]


def test_what_claude_thinks_says_and_costs_is_told(model: LoopbackModel, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            events = await room.chat("greet me")
            assert kinds(events) == ["start", "thinking", "content", "complete"]
            assert events[1].thinking == "Somebody is there."
            assert events[2].text == "Hello.\nWhat is it?"
            assert events[3].usage.output_tokens == 20
            assert 0 < events[3].usage.cost_usd == events[3].usage.session_cost_usd

            again = await room.chat("greet me")
            assert again[-1].usage.session_cost_usd == pytest.approx(2 * events[3].usage.cost_usd)
            assert [message["role"] for message in model.requests[-1]["messages"]].count("assistant") == 1
            (session,) = (await room.say("list")).sessions
            assert session.claude_session_id == events[3].claude_session_id

    drive(run(), LONG)


def test_a_fork_knows_what_was_said_and_both_go_on(model: LoopbackModel, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            await room.chat("write one", "once")
            forked = await room.say("fork", session_name="first", new_name="second")
            assert forked.session.claude_session_id
            await room.chat("write two", "once", session="second")
            said = str(model.requests[-1]["messages"])
            assert "write one" in said
            assert "write two" in said
            await room.chat("greet me")
            assert "write two" not in str(model.requests[-1]["messages"])
            contexts = [
                (await room.say("render_context", session_name=name)).messages for name in ("first", "second")
            ]
            assert ["greet me" in str(one) for one in contexts] == [True, False]
            assert ["It is written, too." in str(one) for one in contexts] == [False, True]
            assert room.lines == ["one", "two"]

    drive(run(), LONG)


def test_a_fork_leaves_a_tool_that_waits_to_the_other_session(model: LoopbackModel, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:

            async def answer(request: Request) -> str:
                await room.say("fork", session_name="first", new_name="second")
                events = await room.chat("greet me", session="second")
                assert kinds(events).count("thinking") == 1
                assert "gone on with something else" in str(events)
                return "once"

            params = {"session_name": "first", "query": "write one"}
            events = [item async for item in room.hub.call("claudecode.chat", params, answer=answer)]
            assert room.asked == []
            assert room.lines == ["one"]
            assert kinds([events[-2].content]) == ["complete"]

    drive(run(), LONG)


def test_a_tool_is_run_when_it_is_permitted_and_as_it_is_permitted(
    model: LoopbackModel, tmp_path: Path
) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            events = await room.chat("write one", "once")
            assert room.lines == ["one"]
            assert kinds(events) == ["start", "content", "tool_use", "tool_result", "content", "complete"]
            assert events[2].input == {"command": "echo one >> note.txt"}
            assert not events[3].is_error
            (question,) = room.asked
            assert isinstance(question, Select)
            assert "Claude wants to use Bash:\n\n    command: echo one >> note.txt" in question.message

            changed = {"command": "echo three >> note.txt"}
            events = await room.chat("write two", "edit", changed)
            assert room.lines == ["one", "three"]
            assert isinstance(room.asked[-1], Form)
            assert room.asked[-1].schema["properties"]["command"]["default"] == "echo two >> note.txt"

    drive(run(), LONG)


def test_what_is_permitted_once_runs_once_though_the_model_uses_its_id_again(
    model: LoopbackModel, tmp_path: Path
) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            events = await room.chat("write by one id", "once")
            assert room.lines == ["one"]
            assert ALONE in str(events)

    drive(run(), LONG)


def test_a_tool_is_not_run_when_it_is_refused_and_claude_is_told_why(
    model: LoopbackModel, tmp_path: Path
) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            events = await room.chat("write one", "reason", "Not on a Sunday")
            assert isinstance(room.asked[-1], Prompt)
            assert events[-3].is_error
            assert "Not on a Sunday" in events[-3].output
            assert "Not on a Sunday" in model.results[-1]
            assert kinds(events)[-2:] == ["content", "complete"]

            requests = len(model.requests)
            events = await room.chat("write two", "stop")
            assert len(model.requests) == requests + 1  # nothing is said after it
            assert (kinds(events)[-1], events[-1].stopped) == ("complete", True)

            events = await room.chat("write one")  # by somebody who cannot be asked
            assert "nobody can be asked" in events[-3].output
            assert room.lines == []

    drive(run(), LONG)


def test_what_is_permitted_always_is_not_asked_again_and_only_in_this_session(
    model: LoopbackModel, tmp_path: Path
) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            await room.chat("write one", "always", "always")
            assert "exactly this input" in room.asked[-1].message
            await room.chat("write one")
            assert room.lines == ["one", "one"]
            await room.chat("write two", "no")
            info = (await room.say("get", session_name="first")).session
            assert any(rule.startswith("Bash(echo one") for rule in info.permitted)

            await room.say("create", name="second", working_dir=str(room.work))
            await room.chat("write one", "no", session="second")
            assert room.lines == ["one", "one"]

    drive(run(), LONG)


def test_what_claude_code_does_not_ask_about_is_not_asked(model: LoopbackModel, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            (room.work / "here.txt").write_text("x")
            events = await room.chat("look around")
            assert (events[-3].output, events[-3].is_error) == ("here.txt", False)

            await room.chat("read elsewhere", "no")
            assert "/etc/hostname" in room.asked[0].message
            assert "outside" in room.asked[0].message  # why it is asked

            events = await room.chat("read both", "once")
            given = [event for event in events if kinds([event]) == ["tool_result"]]
            assert [event.is_error for event in given] == [False, False]
            assert "/etc/hostname" in room.asked[1].message

    drive(run(), LONG)


def test_what_claude_code_does_not_ask_about_may_take_long(
    model: LoopbackModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SILENCE", 10.0)

    async def run() -> None:
        async with opened(model, tmp_path) as room:
            events = await room.chat("take a nap")
            assert (kinds(events)[-1], events[-2].text) == ("complete", "I have slept.")

    drive(run(), LONG)


def test_of_two_tools_at_once_one_is_asked_about_and_of_a_subagent_none(
    model: LoopbackModel, tmp_path: Path
) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            events = await room.chat("write twice", "once")
            assert room.lines == ["first"]
            refused = [event for event in events if kinds([event]) == ["tool_result"] and event.is_error]
            assert len(refused) == 1
            assert "call it again, alone" in refused[0].output

            events = await room.chat("delegate it")
            assert "subagent cannot ask" in str(events)
            assert room.lines == ["first"]

    drive(run(), LONG)


def test_what_claude_asks_is_a_form(model: LoopbackModel, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(model, tmp_path) as room:
            given = {"answer_1": "Red", "answer_2": ["S", "L"], "other_3": "Grace"}
            events = await room.chat("ask me", given)
            (form,) = room.asked
            assert isinstance(form, Form)
            fields = form.schema["properties"]
            assert fields["answer_1"]["enum"] == ["Red", "Blue"]
            assert fields["answer_2"]["items"]["enum"] == ["S", "L"]
            assert "1. Which colour?\n   - Red: warm" in form.message
            assert '"Which colour?"="Red"' in model.results[-1]
            assert '"Which sizes?"="S, L"' in model.results[-1]
            assert '"Which name?"="Grace"' in model.results[-1]
            assert kinds(events)[-1] == "complete"

    drive(run(), LONG)


def test_a_method_of_the_hub_is_called_by_the_chat_which_puts_its_questions(
    model: LoopbackModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_TEST_FOLDER", str(tmp_path))

    async def run() -> None:
        async with opened(model, tmp_path, "grace", hub_tools=["greeter"]) as room:
            events = await room.chat("use the hub", "once", "Ada")
            assert [type(question) for question in room.asked] == [Select, Prompt]
            assert "mcp__plexus__greeter_greet" in room.asked[0].message
            assert events[-3].output == "Good morning, Ada!"
            assert (tmp_path / "greeted").read_text() == "Ada by grace\n"
            offered = [name for name in model.tools() if name.startswith("mcp__")]
            assert offered == ["mcp__plexus__greeter_greet"]  # not what needs a scope

            await room.chat("use the hub", "always", "always", "Bob")
            events = await room.chat("use the hub", "Eve")  # no permission is needed, but an answer
            assert events[-3].output == "Good morning, Eve!"

            events = await room.chat("use the hub", "Cancelled")
            assert events[-3].is_error
            assert (tmp_path / "greeted").read_text() == "Ada by grace\nBob by grace\nEve by grace\n"

    drive(run(), LONG)


def test_a_hub_may_have_any_name(
    model: LoopbackModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_TEST_FOLDER", str(tmp_path))

    async def run() -> None:
        async with opened(model, tmp_path, name="Our Hüb", hub_tools=["greeter"]) as room:
            events = await room.chat("use the hub", "once", "Ada")
            assert "mcp__Our_H_b__greeter_greet" in room.asked[0].message
            assert events[-3].output == "Good morning, Ada!"

    drive(run(), LONG)

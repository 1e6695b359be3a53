"""Turns of the chat, whatever model and person do: what must hold for each conversation, always.

Hypothesis makes up a model that talks, calls tools and fails, and a person who answers, declines, gets ids
wrong, aborts, stops, writes something else, and restarts the server at any moment, on SQLite.
"""

import asyncio
import collections
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driving import LIMIT, drive
from midcall import Ask, Hub, ToolError, method
from midcall.chat import ChatEngine
from midcall.chat.conversation import Abort, ChatRequest, Conversation, ElicitResponse, ElicitResult, Pending
from midcall.chat.engine import NoConversation
from midcall.chat.runs import Run
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite import SqliteJournal
from midcall.models.base import Message, ModelError, ModelRequest, Stopped, TextPart, ToolCall, Usage

TOOLS = ("plain", "asks", "asks_twice", "two_at_once", "samples", "fails", "slow", "unknown")


def bare(line: bytes) -> Any:
    """A line without the messages of its conversation, which are not kept in it."""
    read = msgspec.json.decode(line)
    if read["event"]["type"] == "conversation_state":
        del read["event"]["messages"]
        read["event"].pop("messageCount", None)
    return read


LAST = {"complete", "conversation_state", "error"}


class Lab:
    """Tools that count what they do."""

    def __init__(self, counts: "collections.Counter[str]") -> None:
        self._counts = counts

    def _count(self, ticket: str) -> int:
        self._counts[ticket] += 1
        return self._counts[ticket]

    @method
    async def plain(self, ticket: str, ask: Ask) -> str:
        """Do it."""
        await ask.step(self._count, ticket)
        return f"did {ticket}"

    @method
    async def asks(self, ticket: str, ask: Ask) -> str:
        """Ask, and do it."""
        text = await ask.prompt("What?")
        await ask.step(self._count, ticket)
        return f"did {ticket} {text}"

    @method
    async def asks_twice(self, ticket: str, ask: Ask) -> str:
        """Do something between two questions."""
        text = await ask.prompt("What?")
        await ask.step(self._count, f"{ticket}-first")
        sure = await ask.confirm("Sure?")
        await ask.step(self._count, ticket)
        return f"did {ticket} {text} {sure}"

    @method
    async def two_at_once(self, ticket: str, ask: Ask) -> str:
        """Ask two things at once."""
        await ask.all(ask.prompt("What?"), ask.confirm("Sure?"))
        await ask.step(self._count, ticket)
        return f"did {ticket}"

    @method
    async def samples(self, ticket: str, ask: Ask) -> str:
        """Ask the model, then the person."""
        said = await ask.sample("Well?")
        await ask.step(self._count, f"{ticket}-first")
        text = await ask.prompt(said.text)
        await ask.step(self._count, ticket)
        return f"did {ticket} {text}"

    @method
    async def fails(self, ticket: str, ask: Ask) -> str:
        """Do it, and fail."""
        await ask.step(self._count, ticket)
        raise ToolError("It broke")

    @method
    async def slow(self, ticket: str, ask: Ask) -> str:
        """Do it in two parts, with a pause."""
        await ask.step(self._count, f"{ticket}-first")
        await ask.sleep(0.02)
        await ask.step(self._count, ticket)
        return f"did {ticket}"


class Chance:
    """A model that does what hypothesis has drawn, and looks at what it is told."""

    name = "chance"
    scripted = True

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self._answers = itertools.chain(answers, itertools.repeat(("text",)))
        self._tickets = itertools.count(1)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        parts = ("text",) if not request.tools else next(self._answers)  # without tools, it is a sample
        check_told(request.messages, sample=not request.tools)
        for part in parts:
            await asyncio.sleep(0)
            match part:
                case "text":
                    yield TextPart("So ")
                    yield TextPart("be it.")
                case "error":
                    raise ModelError("overloaded", recoverable=True)
                case "no json":
                    yield ToolCall("x", "lab__plain", "{nothing")
                case tool:
                    ticket = f"t{next(self._tickets)}"
                    yield ToolCall("x", f"lab__{tool}", json.dumps({"ticket": ticket}))
        yield Stopped("stop", Usage(3, 2))

    async def close(self) -> None:
        """Nothing is open."""


def check_told(messages: Sequence[Message], *, sample: bool) -> None:
    """What providers want: person and assistant take turns, and calls have their results at once."""
    assert messages[0].role == "user"
    assert messages[-1].role in ("user", "tool")
    open_calls: list[str] = []
    for before, message in itertools.pairwise((Message("assistant"), *messages)):
        if message.role == "tool":
            assert message.tool_call_id in open_calls
            open_calls.remove(message.tool_call_id)
            continue
        assert open_calls == []
        assert message.role != before.role
        if before.role == "tool" and not sample:
            assert message.role in ("assistant", "user")
        open_calls = [call.id for call in message.tool_calls]
    assert open_calls == []


class World:
    """A server that is started again and again on the same files, and a person in front of it."""

    def __init__(self, folder: Path, answers: Sequence[Sequence[str]]) -> None:
        self._folder = folder
        self.counts: collections.Counter[str] = collections.Counter()
        self._model = Chance(answers)
        self.conversation_id: str | None = None
        self.ended = "complete"
        """The last event of the last turn."""
        self.engine = self._new_engine()

    def _new_engine(self) -> ChatEngine:
        hub = Hub("h").register(Lab(self.counts))
        hub.durable = DurableCalls(hub, SqliteJournal(self._folder / "journal.db"))
        return ChatEngine(hub, self._model, max_iterations=4)

    async def open(self) -> None:
        await self.engine.hub.open()
        await self.engine.open()

    async def close(self, *, hub_first: bool = False) -> None:
        if hub_first:
            await self.engine.hub.close()
        await self.engine.close()
        if not hub_first:
            await self.engine.hub.close()

    async def restart(self, *, hub_first: bool) -> None:
        await self.close(hub_first=hub_first)
        self.engine = self._new_engine()
        await self.open()

    async def conversation(self) -> Conversation | None:
        if self.conversation_id is None:
            return None
        return (await self.engine.conversation(self.conversation_id))[0]

    async def post(self, request: ChatRequest, then: str, wait: int) -> None:
        """Begin a turn, and perhaps do something in the middle of it."""
        run = await self.engine.post(request)
        self.conversation_id = run.conversation_id
        lines: list[bytes] = []

        async def read() -> None:
            async for line in run.lines():
                lines.append(line)  # noqa: PERF401  what came before it is cut off counts

        reading = asyncio.create_task(read())
        for _ in range(wait if then != "nothing" else 0):
            await asyncio.sleep(0.001)
        match then:
            case "stop":
                await asyncio.gather(*(self.engine.stop(run.conversation_id) for _ in range(2)))
            case "restart" | "restart hub first":
                await self.restart(hub_first=then != "restart")
            case "delete":
                await self.engine.delete(run.conversation_id)
                self.conversation_id = None
        await reading
        if run.task is not None:
            await asyncio.wait((run.task,))
        await self._check_lines(run, lines)

    async def _check_lines(self, run: Run, lines: Sequence[bytes]) -> None:
        told = [msgspec.json.decode(line) for line in lines]
        assert [line["lsn"] for line in told] == list(range(1, len(told) + 1))
        last = [line["event"]["type"] in LAST for line in told]
        assert last == [False] * (len(told) - 1) + [True]
        self.ended = told[-1]["event"]["type"]
        state = await self.engine.store.run(run.id)
        if self.conversation_id is None:  # its lines went with it
            assert (state, list(await self.engine.store.lines(run.id, 0))) == (None, [])
            with pytest.raises(NoConversation):
                await self.engine.attach(run.id)
            return
        assert [bare(line) for line in await self.engine.store.lines(run.id, 0)] == [bare(x) for x in lines]
        assert state is not None
        assert (state.lines, state.ended) == (len(lines), True)

    async def check(self) -> None:
        """What must hold between two turns."""
        assert not [ticket for ticket, count in self.counts.items() if count > 1]
        conversation = await self.conversation()
        await self._check_journal(conversation)
        if conversation is None:
            return
        pending, unanswered = conversation.pending, {call.id for call in conversation.unanswered()}
        assert pending.keys() <= unanswered
        if self.ended != "error":  # else it may be taken up again
            assert unanswered == pending.keys()
            assert bool(pending) == (self.ended == "conversation_state")
        results = collections.Counter(m.tool_call_id for m in conversation.messages if m.role == "tool")
        assert set(results.values()) <= {1}
        for at, message in enumerate(conversation.messages):
            calls = {call.id for call in message.tool_calls}
            following = itertools.takewhile(lambda m: m.role == "tool", conversation.messages[at + 1 :])
            answered = {m.tool_call_id for m in following} if message.role == "assistant" else set()
            assert answered == calls - unanswered
        self._check_done(conversation)
        assert conversation.run is None or (await self.engine.conversation(conversation.id))[1] is None

    async def _check_journal(self, conversation: Conversation | None) -> None:
        """What waits in the journal waits in the conversation too; it may take a moment until it is ended."""
        asking, known = set(), set()
        if conversation is not None:
            open_calls = [
                one.call for one in conversation.pending.values() if one.questions.keys() - one.answers.keys()
            ]
            asking = {conversation.key_of(call) for call in open_calls}
            known = {conversation.key_of(call) for call in conversation.unanswered()}
        async with asyncio.timeout(LIMIT):
            while True:
                records = (await self.engine.hub.durable.journal.list()).calls
                waiting = {record.idempotency_key for record in records if record.status == "waiting"}
                if asking <= waiting <= known:
                    return
                await asyncio.sleep(0.01)

    def _check_done(self, conversation: Conversation) -> None:
        """A tool that says that it did something did it, exactly once."""
        for message in conversation.messages:
            if message.role == "tool" and message.content.startswith("did "):
                assert self.counts[message.content.split()[1]] == 1


def answer_to(pending: Pending, how: str) -> tuple[ElicitResponse, ...]:
    responses = []
    for key, question in pending.questions.items():
        if key in pending.answers:
            continue
        fields = (question.schema or {}).get("properties", {})
        content: dict[str, Any] = {"confirmed": True} if "confirmed" in fields else {"text": "yes"}
        result = ElicitResult("accept", content)
        id = question.elicit_id
        match how:
            case "decline" | "cancel":
                result = ElicitResult(how)  # type: ignore[arg-type]
            case "misfit":
                result = ElicitResult("accept", {"nothing": 1})
            case "wrong id":
                id = f"{id}x"
        responses.append(ElicitResponse(pending.call.id, id, result))
    return tuple(responses[:1] if how == "one" else responses)


async def act(world: World, move: tuple[str, str, int]) -> None:
    what, then, wait = move
    conversation = await world.conversation()
    if conversation is None or what == "say":
        await world.post(ChatRequest(world.conversation_id, message="Do something"), then, wait)
        return
    pendings = list(conversation.pending.values())
    match what:
        case "resume":
            await world.post(ChatRequest(conversation.id, resume=True), then, wait)
        case "abort":
            session = pendings[wait % len(pendings)].call.id if pendings else "unknown"
            await world.post(ChatRequest(conversation.id, plugin_abort=Abort(session)), then, wait)
        case "unknown":
            response = ElicitResponse("unknown", "unknown:x:1", ElicitResult("accept", {}))
            await world.post(ChatRequest(conversation.id, plugin_elicit_responses=(response,)), then, wait)
        case "restart":
            await world.restart(hub_first=bool(wait % 2))
        case _ if pendings:
            some = pendings[: 1 + wait % len(pendings)]
            responses = tuple(one for pending in some for one in answer_to(pending, what))
            await world.post(ChatRequest(conversation.id, plugin_elicit_responses=responses), then, wait)


async def play(answers: Sequence[Sequence[str]], moves: Sequence[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), answers)
        await world.open()
        try:
            for move in moves:
                await act(world, move)
                await world.check()
        finally:
            await world.close()


PARTS = st.one_of(st.just("text"), st.sampled_from(TOOLS), st.sampled_from(("error", "no json")))
ANSWERS = st.lists(st.lists(PARTS, min_size=1, max_size=4).map(tuple), min_size=1, max_size=8)
REFUSALS = ["decline", "cancel", "misfit", "wrong id", "unknown", "abort"]
WHAT = st.sampled_from(["say", "resume", "restart", *["accept"] * 5, *["one"] * 2, *REFUSALS])
THEN = st.sampled_from([*["nothing"] * 6, "stop", "restart", "restart hub first", "delete"])
MOVES = st.lists(st.tuples(WHAT, THEN, st.integers(0, 12)), min_size=1, max_size=8)


@given(ANSWERS, MOVES)
def test_whatever_model_and_person_do_the_conversation_stays_whole(
    answers: list[tuple[str, ...]], moves: list[tuple[str, str, int]]
) -> None:
    drive(play(answers, moves), limit=60)


def test_the_world_of_this_test_does_get_somewhere() -> None:
    """Without it, a test that never calls a tool would pass too."""

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), [("text", "plain", "asks_twice", "samples")])
            await world.open()
            await act(world, ("say", "nothing", 0))
            await act(world, ("accept", "nothing", 1))
            await act(world, ("accept", "restart", 3))
            await act(world, ("resume", "nothing", 1))
            await world.check()
            assert world.counts == collections.Counter(["t1", "t2", "t2-first", "t3", "t3-first"])
            await world.close()

    drive(main())

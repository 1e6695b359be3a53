"""AG-UI 1.0, with the official client as the front end (`agui.mjs`).

The client checks each stream itself: the order of events, that all is closed before the run ends, and the
schema of each event; what it does not know, it takes out with a warning, and no test may see one.
"""

import asyncio
import contextlib
import http.client
import json
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from compliance.harness.install import npm_package

from chatting import Person, Puppet, call, kinds, only, serving
from driving import LIMIT, drive
from midcall import Ask, Hub, method
from midcall.activations.demo import RULES, flights_plugin
from midcall.activations.flights import Flights, search, taken_seats
from midcall.chat import ChatEngine, agui, ndjson
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.models.base import ModelError, ModelRequest, ThinkingPart
from midcall.models.scripted import Scripted
from midcall.transports.auth import StaticKeys
from peers import HERE

ROOT = Path(__file__).parents[2]
BOOK = "Book a flight from New York to Los Angeles"
FLIGHTS = search("New York", "Los Angeles")


class Front:
    """A front end in a process of its own, with any number of agents. It serves many tests, one at a time."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._answers: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    async def act(self, agent: str, act: str, **given: Any) -> Any:
        loop = asyncio.get_running_loop()
        number, answer = len(self._answers), loop.create_future()
        self._answers[number] = (loop, answer)
        line = json.dumps({"number": number, "agent": agent, "act": act, **given})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return await answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            given = json.loads(line)
            loop, answer = self._answers[given["number"]]
            if "error" in given:
                loop.call_soon_threadsafe(answer.set_exception, Refused(given["error"]))
            else:
                loop.call_soon_threadsafe(answer.set_result, given["result"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reading.join()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("the front end needs Node and npm")
    folder = npm_package(ROOT / ".cache" / "tests" / "ag-ui", "@ag-ui/client", "1.0.0", print)
    command = [node, str(HERE / "agui.mjs"), str(folder)]
    started = Front(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    try:
        yield started
    finally:
        started.close()


class Refused(Exception):
    """What the client says of a run that it could not begin, or read."""


class Agent:
    """One thread in a front end."""

    def __init__(self, front: Front, name: str, thread: str) -> None:
        self.front, self.name, self.thread = front, name, thread

    async def say(self, text: str) -> dict[str, Any]:
        return await self._act("run", say=text)

    async def resume(self, *entries: dict[str, Any], **more: Any) -> dict[str, Any]:
        return await self._act("run", resume=list(entries), **more)

    async def connect(self) -> dict[str, Any]:
        return await self._act("connect")

    async def seen(self) -> dict[str, Any]:
        return await self._act("seen")

    async def abort(self) -> None:
        await self.front.act(self.name, "abort")

    async def _act(self, act: str, **given: Any) -> dict[str, Any]:
        seen: dict[str, Any] = await self.front.act(self.name, act, **given)
        assert seen["warnings"] == []
        return seen


async def open_agent(front: Front, port: int, thread: str | None = None, token: str = "") -> Agent:
    name = str(uuid.uuid4())
    given = {"url": f"http://127.0.0.1:{port}/agui"} | ({} if thread is None else {"threadId": thread})
    if token:
        given |= {"headers": {"Authorization": f"Bearer {token}"}}  # type: ignore[dict-item]
    opened = await front.act(name, "open", **given)
    return Agent(front, name, opened["threadId"])


def engine_of(model: Any, *activations: object, **options: Any) -> ChatEngine:
    hub = Hub("chatty")
    for activation in activations:
        hub.register(activation)
    return ChatEngine(hub, model, **options)


def booking(**options: Any) -> ChatEngine:
    return engine_of(Scripted(RULES), Flights(), plugins=[flights_plugin()], **options)


def free_seat() -> dict[str, Any]:
    taken = taken_seats(FLIGHTS[0])
    return next(
        {"row": row, "seat": seat} for row in range(1, 9) for seat in "ABCDEF" if f"{row}{seat}" not in taken
    )


def resolved(interrupt: dict[str, Any], payload: Any) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}


def cancelled(interrupt: dict[str, Any]) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": "cancelled"}


def types(seen: dict[str, Any]) -> list[str]:
    """The types of the events, in order, with pieces of text taken together."""
    found: list[str] = []
    for event in seen["events"]:
        if not (event["type"].endswith("_CONTENT") and found[-1:] == [event["type"]]):
            found.append(event["type"])
    return found


def last(seen: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = seen["events"][-1]
    return found


def outcome(seen: dict[str, Any]) -> str:
    return str(last(seen)["outcome"]["type"])


def roles(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages if message["role"] != "activity"]


# --- the booking ------------------------------------------------------------------------------


def test_a_booking_goes_to_its_end_with_two_interrupts(front: Front) -> None:
    async def main() -> None:
        async with serving(booking()) as port:
            agent = await open_agent(front, port)
            first = await agent.say(BOOK)
            assert types(first) == [
                "RUN_STARTED",
                "TEXT_MESSAGE_START",
                "TEXT_MESSAGE_CONTENT",
                "TEXT_MESSAGE_END",
                "TOOL_CALL_START",
                "TOOL_CALL_ARGS",
                "TOOL_CALL_END",
                "ACTIVITY_SNAPSHOT",
                "RUN_FINISHED",
            ]
            assert first["events"][0]["protocolVersion"] == "1.0"
            assert last(first)["usage"][0]["totalTokens"] > 0
            (activity,) = [message for message in first["messages"] if message["role"] == "activity"]
            assert (activity["content"]["message"], activity["content"]["percentage"]) == (
                "Searching flights",
                10,
            )
            (asked,) = first["interrupts"]
            (made,) = first["messages"][1]["toolCalls"]
            assert json.loads(made["function"]["arguments"]) == {
                "origin": "New York",
                "destination": "Los Angeles",
            }
            assert asked["toolCallId"] == made["id"]
            assert asked["id"] == f"{made['id']}:pickFlight:1"
            context = asked["responseSchema"]["x-model-context"]
            assert [flight["id"] for flight in context["flights"]] == [flight.id for flight in FLIGHTS]
            assert asked["responseSchema"]["properties"].keys() == {"flightId"}
            assert asked["metadata"]["component"]["name"] == "FlightList"
            assert "x-model-context" not in asked["message"]

            second = await agent.resume(resolved(asked, {"flightId": FLIGHTS[0].id}))
            assert types(second) == ["RUN_STARTED", "ACTIVITY_SNAPSHOT", "RUN_FINISHED"]
            (asked,) = second["interrupts"]
            assert asked["id"] == f"{made['id']}:pickSeat:2"

            third = await agent.resume(resolved(asked, free_seat()))
            assert types(third)[-5:] == [
                "TOOL_CALL_RESULT",
                "TEXT_MESSAGE_START",
                "TEXT_MESSAGE_CONTENT",
                "TEXT_MESSAGE_END",
                "RUN_FINISHED",
            ]
            assert (outcome(third), third["interrupts"]) == ("success", [])
            assert roles(third["messages"]) == ["user", "assistant", "tool", "assistant"]
            ticket = json.loads(next(m for m in third["messages"] if m["role"] == "tool")["content"])
            assert ticket["flight"]["id"] == FLIGHTS[0].id
            assert ticket["ticketNumber"] in third["messages"][-1]["content"]

    drive(main())


def test_the_open_question_is_found_again_after_a_reconnect(front: Front) -> None:
    async def main() -> None:
        async with serving(booking()) as port:
            before = await open_agent(front, port)
            first = await before.say(BOOK)
            page = await open_agent(front, port, before.thread)
            shown = await page.connect()
            assert types(shown) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
            assert shown["interrupts"] == first["interrupts"]
            assert roles(shown["messages"]) == ["user", "assistant"]
            (made,), (found,) = (seen["messages"][1]["toolCalls"] for seen in (first, shown))
            assert (found["id"], found["function"]["name"]) == (made["id"], made["function"]["name"])
            assert json.loads(found["function"]["arguments"]) == json.loads(made["function"]["arguments"])
            second = await page.resume(resolved(shown["interrupts"][0], {"flightId": FLIGHTS[0].id}))
            again = await (await open_agent(front, port, before.thread)).connect()
            assert again["interrupts"] == second["interrupts"]
            third = await page.resume(resolved(second["interrupts"][0], free_seat()))
            assert outcome(third) == "success"
            shown = await (await open_agent(front, port, before.thread)).connect()
            assert (outcome(shown), shown["interrupts"]) == ("success", [])
            assert roles(shown["messages"]) == ["user", "assistant", "tool", "assistant"]
            assert [m.get("content") for m in shown["messages"]] == [
                m.get("content") for m in third["messages"] if m["role"] != "activity"
            ]
            nobody = await (await open_agent(front, port)).connect()
            assert (nobody["messages"], outcome(nobody)) == ([], "success")

    drive(main())


@pytest.mark.parametrize("how", ["cancelled", "decline", "cancel"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_person_may_refuse_and_the_model_is_told(front: Front, how: str, at: int) -> None:
    async def main() -> None:
        async with serving(booking()) as port:
            agent = await open_agent(front, port)
            (asked,) = (await agent.say(BOOK))["interrupts"]
            if at == 2:
                (asked,) = (await agent.resume(resolved(asked, {"flightId": FLIGHTS[0].id})))["interrupts"]
            refusal = cancelled(asked) if how == "cancelled" else resolved(asked, {"action": how})
            seen = await agent.resume(refusal)
            assert (outcome(seen), seen["interrupts"]) == ("success", [])
            assert roles(seen["messages"]) == ["user", "assistant", "tool", "assistant"]
            assert "That did not work out" in seen["messages"][-1]["content"]
            page = await (await open_agent(front, port, agent.thread)).connect()
            assert page["messages"][2]["error"]

    drive(main())


def test_what_does_not_fit_is_asked_again_and_a_component_may_answer_in_full(front: Front) -> None:
    async def main() -> None:
        async with serving(booking()) as port:
            agent = await open_agent(front, port)
            (asked,) = (await agent.say(BOOK))["interrupts"]
            (again,) = (await agent.resume(resolved(asked, {"flight": "?"})))["interrupts"]
            assert again["id"] != asked["id"]
            assert "Not understood" in again["message"]
            payload = {"action": "accept", "content": {"flightId": FLIGHTS[1].id}}
            (seat,) = (await agent.resume(resolved(again, payload)))["interrupts"]
            assert seat["metadata"]["key"] == "pickSeat"

    drive(main())


# --- answers that are none --------------------------------------------------------------------


def test_an_unknown_interrupt_is_an_error_and_the_right_one_still_waits(front: Front) -> None:
    async def main() -> None:
        async with serving(booking()) as port:
            agent = await open_agent(front, port)
            (asked,) = (await agent.say(BOOK))["interrupts"]
            wrong = {**asked, "id": "call_unknown:pickFlight:1"}
            seen = await agent.resume(resolved(wrong, {"flightId": FLIGHTS[0].id}), pending=[wrong])
            assert last(seen)["type"] == "RUN_ERROR"
            assert last(seen)["code"] == "SESSION_NOT_FOUND"
            late = {**asked, "id": f"{asked['toolCallId']}:pickFlight:7"}
            seen = await agent.resume(resolved(late, {"flightId": FLIGHTS[0].id}), pending=[late])
            assert last(seen)["code"] == "ELICIT_MISMATCH"
            assert asked["id"] in last(seen)["message"]
            seen = await agent.resume(resolved(asked, {"flightId": FLIGHTS[0].id}), pending=[asked])
            assert seen["interrupts"][0]["metadata"]["key"] == "pickSeat"

    drive(main())


def test_a_lost_session_is_an_error_after_which_the_thread_goes_on(front: Front) -> None:
    async def main() -> None:
        conversations = MemoryJournal()
        async with serving(booking(store=conversations)) as port:
            agent = await open_agent(front, port)
            (asked,) = (await agent.say(BOOK))["interrupts"]
        async with serving(booking(store=conversations)) as port:  # with a journal of its own
            agent = await open_agent(front, port, agent.thread)
            seen = await agent.resume(resolved(asked, {"flightId": FLIGHTS[0].id}), pending=[asked])
            assert types(seen)[-5:] == [
                "TOOL_CALL_RESULT",
                "TEXT_MESSAGE_START",
                "TEXT_MESSAGE_CONTENT",
                "TEXT_MESSAGE_END",
                "RUN_ERROR",
            ]
            assert last(seen)["code"] == "SESSION_NOT_FOUND"
            # The client still has the interrupt; it gives it up, and the person goes on.
            seen = await agent.resume(cancelled(asked), say="Never mind")
            assert (outcome(seen), seen["interrupts"]) == ("success", [])
        async with serving(booking()) as port:  # which knows nothing of the thread
            agent = await open_agent(front, port, agent.thread)
            seen = await agent.resume(resolved(asked, {"flightId": FLIGHTS[0].id}), pending=[asked])
            assert types(seen) == ["RUN_ERROR"]
            assert last(seen)["code"] == "SESSION_NOT_FOUND"

    drive(main())


# --- several at once --------------------------------------------------------------------------


class Desk:
    """Asks in several ways."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    @method
    async def two(self, ask: Ask) -> str:
        """Ask two things at once."""
        name, sure = await ask.all(ask.prompt("Name?"), ask.confirm("Sure?", key="is:it:sure"))
        return f"{name} {sure}"

    @method
    async def one(self, ask: Ask) -> str:
        """Ask one thing."""
        return await ask.prompt("Which?")

    @method
    async def slow(self, ask: Ask) -> str:
        """Wait for the gate."""
        ask.progress("working", 50)
        await self.gate.wait()
        return "done"

    @method
    async def plain(self) -> str:
        """Give something at once."""
        return "plain"


def three_calls() -> Puppet:
    calls = [call("desk__two", "a"), call("desk__plain", "b"), call("desk__one", "c")]
    return Puppet(calls, "All done.")


def test_several_interrupts_of_one_run_are_answered_together(front: Front) -> None:
    async def main() -> None:
        async with serving(engine_of(three_calls(), Desk())) as port:
            agent = await open_agent(front, port)
            seen = await agent.say("go")
            (assistant,) = [message for message in seen["messages"] if message["role"] == "assistant"]
            assert [made["id"] for made in assistant["toolCalls"]] == ["a", "b", "c"]
            assert [one["toolCallId"] for one in seen["interrupts"]] == ["a", "a", "c"]
            name, sure, which = seen["interrupts"]
            entries = [
                resolved(name, {"text": "Ada"}),
                resolved(sure, {"confirmed": True}),
                cancelled(which),
            ]
            seen = await agent.resume(*entries)
            assert outcome(seen) == "success"
            results = {m["toolCallId"]: m["content"] for m in seen["messages"] if m["role"] == "tool"}
            assert results["a"] == "Ada True"
            assert results["b"] == "plain"
            assert "cancelled" in results["c"]

    drive(main())


def test_several_interrupts_of_one_run_are_answered_one_at_a_time(front: Front) -> None:
    async def main() -> None:
        async with serving(engine_of(three_calls(), Desk())) as port:
            agent = await open_agent(front, port)
            name, sure, which = (await agent.say("go"))["interrupts"]
            # This client insists on answering all of them; others do not.
            seen = await agent.resume(resolved(sure, {"confirmed": False}), pending=[sure])
            assert seen["interrupts"] == [name, which]
            seen = await agent.resume(resolved(which, {"text": "that"}), pending=[which])
            assert seen["interrupts"] == [name]
            seen = await agent.resume(resolved(name, {"text": "Ada"}))
            assert outcome(seen) == "success"
            results = {m["toolCallId"]: m["content"] for m in seen["messages"] if m["role"] == "tool"}
            assert results == {"a": "Ada False", "b": "plain", "c": "that"}

    drive(main())


def test_an_answer_that_is_taken_counts_though_another_is_not(front: Front) -> None:
    async def main() -> None:
        async with serving(engine_of(three_calls(), Desk())) as port:
            agent = await open_agent(front, port)
            name, sure, which = (await agent.say("go"))["interrupts"]
            wrong = {**name, "id": "a:nothing:1"}
            seen = await agent.resume(
                resolved(wrong, {}), resolved(which, {"text": "x"}), pending=[wrong, which]
            )
            assert seen["interrupts"] == [name, sure]
            (told,) = [event for event in seen["events"] if event["type"] == "CUSTOM"]
            assert (told["name"], told["value"]["error"]) == ("plugin_session_error", "ELICIT_MISMATCH")

    drive(main())


def test_two_threads_at_once_do_not_know_of_each_other(front: Front) -> None:
    async def main() -> None:
        async with serving(booking()) as port:
            one, other = await open_agent(front, port), await open_agent(front, port)
            seen = await asyncio.gather(one.say(BOOK), other.say("I want to fly to Lisbon"))
            assert [s["interrupts"][0]["message"].split(":")[0] for s in seen] == [
                "Pick your flight from New York to Los Angeles",
                "Pick your flight from New York to Lisbon",
            ]
            ids = [s["interrupts"][0]["id"] for s in seen]
            strange = resolved(seen[1]["interrupts"][0], {"flightId": FLIGHTS[0].id})
            refused = await one.resume(strange, pending=[seen[1]["interrupts"][0]])
            assert last(refused)["code"] == "SESSION_NOT_FOUND"
            shown = await (await open_agent(front, port, other.thread)).connect()
            assert shown["interrupts"][0]["id"] == ids[1]

    drive(main())


# --- a run that is under way ------------------------------------------------------------------


class Gated(Puppet):
    """Waits in the middle of each answer, until it is let go on."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.gate = asyncio.Event()

    async def stream(self, request: ModelRequest) -> Any:
        number = 0
        async for event in super().stream(request):
            yield event
            number += 1
            if number == 1 and len(self.asked) > 1:
                await self.gate.wait()


async def until_seen(agent: Agent, events: int) -> dict[str, Any]:
    while True:
        seen = await agent.seen()
        if seen["soFar"] >= events:
            return seen
        await asyncio.sleep(0.02)


def test_a_page_that_comes_in_the_middle_of_an_answer_sees_nothing_twice(front: Front) -> None:
    async def main() -> None:
        model = Gated(["Let me see. ", call("desk__plain", "p")], ["So ", "it ", "is."])
        async with serving(engine_of(model, Desk())) as port:
            agent = await open_agent(front, port)
            running = asyncio.create_task(agent.say("go"))
            await until_seen(agent, 10)  # up to the first piece of the second answer
            page = await open_agent(front, port, agent.thread)
            connected = asyncio.create_task(page.connect())
            await until_seen(page, 4)
            model.gate.set()
            whole, shown = await running, await connected
            assert types(shown) == [
                "RUN_STARTED",
                "MESSAGES_SNAPSHOT",
                "TEXT_MESSAGE_START",
                "TEXT_MESSAGE_CONTENT",
                "TEXT_MESSAGE_END",
                "RUN_FINISHED",
            ]
            told = [{**message, "id": ""} for message in whole["messages"]]
            assert [{**message, "id": ""} for message in shown["messages"]] == told
            assert [message.get("content") for message in told] == [
                "go",
                "Let me see. ",
                "plain",
                "So it is.",
            ]

    drive(main())


def test_a_page_that_comes_while_a_tool_runs_sees_its_call_once_and_then_its_result(front: Front) -> None:
    async def main() -> None:
        desk = Desk()
        async with (
            serving(engine_of(Puppet(["Working. ", call("desk__slow", "s")], "Done."), desk)) as port,
        ):
            agent = await open_agent(front, port)
            running = asyncio.create_task(agent.say("go"))
            await until_seen(agent, 8)  # up to the progress
            page = await open_agent(front, port, agent.thread)
            connected = asyncio.create_task(page.connect())
            await until_seen(page, 3)
            desk.gate.set()
            whole, shown = await running, await connected
            assert types(shown)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
            assert "TOOL_CALL_START" not in types(shown)
            assert types(shown).count("TOOL_CALL_RESULT") == 1
            assert (
                roles(shown["messages"])
                == roles(whole["messages"])
                == ["user", "assistant", "tool", "assistant"]
            )
            assert shown["messages"][1]["toolCalls"] == whole["messages"][1]["toolCalls"]

    drive(main())


def test_a_page_may_come_to_another_process_than_the_one_that_runs_the_turn(
    front: Front, tmp_path: Path
) -> None:
    async def main() -> None:
        model = Gated(["Let me see. ", call("desk__plain", "p")], ["So ", "it ", "is."])

        def engine() -> ChatEngine:
            return engine_of(model, Desk(), store=SqliteJournal(tmp_path / "chat.db"))

        async with serving(engine()) as port, serving(engine()) as another:
            agent = await open_agent(front, port)
            running = asyncio.create_task(agent.say("go"))
            await until_seen(agent, 10)
            page = await open_agent(front, another, agent.thread)
            connected = asyncio.create_task(page.connect())
            await until_seen(page, 4)
            model.gate.set()
            whole, shown = await running, await connected
            told = [(message["role"], message.get("content")) for message in whole["messages"]]
            assert [(message["role"], message.get("content")) for message in shown["messages"]] == told
            assert outcome(shown) == "success"

    drive(main())


def test_a_run_that_is_no_longer_read_ends_as_cancelled_when_the_person_says_something_else(
    front: Front,
) -> None:
    async def main() -> None:
        desk = Desk()
        model = Puppet(["Working. ", call("desk__slow", "s")], "Hello again.")
        async with serving(engine_of(model, desk)) as port:
            agent = await open_agent(front, port)
            running = asyncio.create_task(agent.say("go"))
            await until_seen(agent, 8)
            page = await open_agent(front, port, agent.thread)
            connected = asyncio.create_task(page.connect())
            await until_seen(page, 3)
            await agent.abort()  # the stop button of a front end
            await running
            seen = await agent.say("Something else")
            assert (outcome(seen), seen["messages"][-1]["content"]) == ("success", "Hello again.")
            assert outcome(await connected) == "cancelled"
            shown = await (await open_agent(front, port, agent.thread)).connect()
            assert roles(shown["messages"]) == ["user", "assistant", "tool", "user", "assistant"]
            assert "Stopped" in shown["messages"][2]["error"]

    drive(main())


def test_a_reader_that_goes_away_just_as_the_run_ends_leaves_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ndjson, "LISTENS_AFTER", 0.0)

    async def main() -> None:
        app = engine_of(Puppet("Hello.")).hub.asgi()
        gone = asyncio.Event()
        body = json.dumps(
            {"threadId": "t", "messages": [{"id": "1", "role": "user", "content": "Hi"}]}
        ).encode()
        given = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            await asyncio.sleep(0)  # so that it is listened for whether the reader is there
            if b"RUN_FINISHED" in message.get("body", b""):
                gone.set()

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/agui", "query_string": b"", "headers": headers}
        await app(
            {**scope, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http"},
            receive,
            send,
        )
        assert gone.is_set()

    drive(main())


def test_a_front_end_finds_a_chat_that_was_begun_elsewhere_and_the_other_way_round(front: Front) -> None:
    async def main() -> None:
        async with serving(booking()) as port:
            person = Person(port)
            question = only(await person.say(BOOK), "plugin_elicit_request")
            agent = await open_agent(front, port, person.conversation)
            (asked,) = (await agent.connect())["interrupts"]
            assert asked["id"] == question["elicitId"]
            await agent.resume(resolved(asked, {"flightId": FLIGHTS[0].id}))
            (question,) = (await person.shown())["pending"]
            assert kinds(await person.answer(question, **free_seat()))[-1] == "complete"

    drive(main())


# --- what else a run tells --------------------------------------------------------------------


class Thinker(Puppet):
    """Thinks before it speaks."""

    async def stream(self, request: ModelRequest) -> Any:
        yield ThinkingPart("Let me ")
        yield ThinkingPart("think.")
        async for event in super().stream(request):
            yield event


def test_what_a_model_thinks_is_told_apart_and_found_again(front: Front) -> None:
    async def main() -> None:
        model = Thinker(["Look: ", call("desk__plain", "p")], "So.")
        async with serving(engine_of(model, Desk())) as port:
            agent = await open_agent(front, port)
            seen = await agent.say("go")
            assert types(seen)[1:6] == [
                "REASONING_START",
                "REASONING_MESSAGE_START",
                "REASONING_MESSAGE_CONTENT",
                "REASONING_MESSAGE_END",
                "REASONING_END",
            ]
            wanted = ["user", "reasoning", "assistant", "tool", "reasoning", "assistant"]
            assert roles(seen["messages"]) == wanted
            page = await (await open_agent(front, port, agent.thread)).connect()
            assert roles(page["messages"]) == wanted
            usage = {"model": "puppet", "inputTokens": 20, "outputTokens": 10, "totalTokens": 30}
            assert last(seen)["usage"] == [usage]

    drive(main())


def test_a_model_that_fails_ends_the_run_with_an_error_and_it_can_be_run_again(front: Front) -> None:
    async def main() -> None:
        model = Puppet(["Well, ", ModelError("puppet is overloaded", recoverable=True)], "There you are.")
        async with serving(engine_of(model, Desk())) as port:
            agent = await open_agent(front, port)
            seen = await agent.say("go")
            assert types(seen)[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
            assert (last(seen)["code"], last(seen)["message"]) == ("model_error", "puppet is overloaded")
            seen = await agent.resume()
            assert seen["messages"][-1]["content"] == "There you are."

    drive(main())


def test_a_message_that_is_sent_again_because_the_model_failed_is_not_said_twice(front: Front) -> None:
    async def main() -> None:
        model = Puppet(ModelError("away", recoverable=True), "Here I am.", "Still here.")
        async with serving(engine_of(model, Desk())) as port:
            agent = await open_agent(front, port)
            seen = await agent.say("Hello?")
            assert types(seen) == ["RUN_STARTED", "RUN_ERROR"]
            seen = await agent.resume()  # the same messages again
            assert seen["messages"][-1]["content"] == "Here I am."
            page = await (await open_agent(front, port, agent.thread)).connect()
            assert [message["content"] for message in page["messages"]] == ["Hello?", "Here I am."]
            assert page["messages"][0]["id"] == seen["messages"][0]["id"]
            assert (await agent.say("Hello?"))["messages"][-1]["content"] == "Still here."

    drive(main())


def test_a_history_that_the_server_does_not_know_is_taken_over(front: Front) -> None:
    async def main() -> None:
        model = Puppet("Hello Ada.", "Ada, of course.")
        async with serving(engine_of(model, Desk())) as port:
            agent = await open_agent(front, port)
            await agent.say("I am Ada")
            async with serving(engine_of(model, Desk())) as another:
                body = {
                    "threadId": "t-1",
                    "runId": "r-1",
                    "messages": [
                        {"id": "1", "role": "user", "content": "I am Ada"},
                        {"id": "2", "role": "assistant", "content": "Hello Ada."},
                        {"id": "3", "role": "user", "content": [{"type": "text", "text": "Who am I?"}]},
                    ],
                }
                status, _, _ = await Person(another).request("POST", "/agui", body)
                assert status == 200
                assert [message.content for message in model.told] == ["I am Ada", "Hello Ada.", "Who am I?"]

    drive(main())


def test_a_stream_that_has_nothing_to_tell_says_that_it_is_still_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agui, "ALIVE_EVERY", 0.02)

    async def main() -> None:
        desk, loop = Desk(), asyncio.get_running_loop()

        def read(port: int) -> bytes:
            """All that is told; what runs goes on when it was said for the first time that it is still there."""
            connection, lines = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT), []
            with contextlib.closing(connection):
                body = json.dumps({"threadId": "t", "messages": [{"role": "user", "content": "go"}]})
                connection.request("POST", "/agui", body, {"Content-Type": "application/json"})
                for line in connection.getresponse():
                    lines.append(line)
                    if line == b": still there\n":
                        loop.call_soon_threadsafe(desk.gate.set)
            return b"".join(lines)

        async with serving(engine_of(Puppet(call("desk__slow"), "Done."), desk)) as port:
            parts = (await asyncio.to_thread(read, port)).split(b"\n\n")
            told = [json.loads(part.removeprefix(b"data: ")) for part in parts if part.startswith(b"data: ")]
            assert told[-1]["type"] == "RUN_FINISHED"

    drive(main())


# --- who may ----------------------------------------------------------------------------------


def test_nobody_gets_into_another_ones_thread(front: Front) -> None:
    async def main() -> None:
        auth = StaticKeys("ada=the-secret-of-ada-0123 eve=the-secret-of-eve-0123")
        async with serving(booking(), auth=auth) as port:
            ada = await open_agent(front, port, token="the-secret-of-ada-0123")
            (asked,) = (await ada.say(BOOK))["interrupts"]
            eve = await open_agent(front, port, ada.thread, token="the-secret-of-eve-0123")
            assert (await eve.connect())["messages"] == []
            await eve.say("Hello")
            assert [one["content"] for one in (await eve.connect())["messages"] if one["role"] == "user"] == [
                "Hello"
            ]
            seen = await eve.resume(resolved(asked, {"flightId": FLIGHTS[0].id}), pending=[asked])
            assert last(seen)["code"] == "SESSION_NOT_FOUND"
            nobody = await open_agent(front, port, ada.thread)
            with pytest.raises(Refused, match="401"):
                await nobody.connect()
            seen = await ada.resume(resolved(asked, {"flightId": FLIGHTS[0].id}))
            assert seen["interrupts"][0]["metadata"]["key"] == "pickSeat"

    drive(main())


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "Invalid RunAgentInput"),
        (b"[]", 400, "Invalid RunAgentInput"),
        ({"runId": "r"}, 400, "threadId"),
        ({"threadId": "t", "messages": [{"role": "user", "content": "x" * 200_001}]}, 400, "between 1 and"),
    ],
)
def test_a_bad_request_is_refused_with_a_clear_error(body: Any, status: int, message: str) -> None:
    async def main() -> None:
        async with serving(engine_of(Puppet(), Desk())) as port:
            found, _, data = await Person(port).request("POST", "/agui", body)
            assert found == status
            assert message in json.loads(data)["error"]["message"]

    drive(main())

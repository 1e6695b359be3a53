"""Whose is what in a chat: nobody reads, goes on with, stops or blocks what belongs to another, by its id."""

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import postgres_server
from chatting import Keyed, Person, Puppet, call, only, serving, text
from driving import drive
from midcall import Ask, Hub, method
from midcall.chat import ChatEngine
from midcall.journal.contract import ConversationRecord, Journal
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.postgres import PostgresJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.transports.auth import StaticKeys

ADA, EVE = "the-secret-of-ada-0123", "the-secret-of-eve-0123"


class Desk:
    """Asks and works."""

    def __init__(self) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    @method
    async def asks(self, ask: Ask) -> str:
        """Ask."""
        return f"It is {await ask.prompt('Name?')}"

    @method
    async def slow(self) -> str:
        """Wait for the gate."""
        self.begun.set()
        await self.gate.wait()
        return "done"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    make: dict[str, Callable[[], Journal]] = {
        "memory": MemoryJournal,
        "sqlite": lambda: SqliteJournal(tmp_path / "chat.db"),
        "postgres": lambda: PostgresJournal(postgres_server.shared(), schema=f"owners_{uuid.uuid4().hex}"),
    }
    return make[request.param]()


def engine(desk: Desk, store: Journal, *answers: Any) -> ChatEngine:
    return ChatEngine(Hub("h").register(desk), Puppet(*answers), store=store)


def keys() -> StaticKeys:
    return StaticKeys(f"ada={ADA} eve={EVE}")


def said(events: list[dict[str, Any]]) -> list[str]:
    """What a reloaded page shows of what people and the model have said."""
    (shown,) = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
    return [one["content"] for one in shown["messages"]]


def test_a_thread_id_is_each_ones_own(store: Journal) -> None:
    async def main() -> None:
        chat = engine(Desk(), store, "For Eve.", call("desk__asks"), "No.", "For Ada.")
        async with serving(chat, auth=keys()) as port:
            ada, eve, thread = Keyed(port, ADA), Keyed(port, EVE), str(uuid.uuid4())
            await eve.agui(threadId=thread, runId="r", say="I was here first")
            status, asked = await ada.agui(threadId=thread, runId="r", say="My secret")
            assert status == 200
            (interrupt,) = asked[-1]["outcome"]["interrupts"]
            _, shown = await eve.agui("/agui/connect", threadId=thread, runId="r")
            assert said(shown) == ["I was here first", "For Eve."]
            assert shown[-1]["outcome"] == {"type": "success"}
            answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"text": "Eve"}}
            _, refused = await eve.agui(threadId=thread, runId="r", resume=[answer])
            assert refused[-1]["code"] == "SESSION_NOT_FOUND"
            _, shown = await ada.agui("/agui/connect", threadId=thread, runId="r")
            assert [one["id"] for one in shown[-1]["outcome"]["interrupts"]] == [interrupt["id"]]
            answer["payload"] = {"text": "Ada"}
            _, events = await ada.agui(threadId=thread, runId="r", resume=[answer])
            (result,) = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
            assert result["content"] == "It is Ada"

    drive(main())


def test_a_run_is_stopped_and_read_by_nobody_else(store: Journal) -> None:
    async def main() -> None:
        desk = Desk()
        chat = engine(desk, store, call("desk__slow"), "Hello Eve.", "Hello Ada.")
        async with serving(chat, auth=keys()) as port:
            ada, eve, thread = Keyed(port, ADA), Keyed(port, EVE), str(uuid.uuid4())
            turn = asyncio.create_task(ada.agui(threadId=thread, say="My secret"))
            await desk.begun.wait()
            shown = json.loads((await ada.request("GET", f"/chat/conversations/{thread}"))[2])
            run = shown["run"]["sessionId"]
            for verb, path, body, headers in (
                ("GET", "/chat", None, {"X-Session-Id": run}),
                ("GET", f"/chat?sessionId={run}&lastLsn=0", None, {}),
                ("POST", "/chat", None, {"X-Session-Id": run}),
                ("POST", "/chat", {"conversationId": thread, "message": "Hello"}, {}),
                ("POST", "/chat", {"conversationId": thread, "resume": True}, {}),
                ("POST", "/chat/stop", {"conversationId": thread}, {}),
                ("GET", f"/chat/conversations/{thread}", None, {}),
                ("DELETE", f"/chat/conversations/{thread}", None, {}),
            ):
                status, _, data = await eve.request(verb, path, body, headers)
                assert (status, json.loads(data)["error"]["code"]) == (404, "not_found")
            # Who speaks in a thread whose run is under way stops that run: this is another thread.
            assert (await eve.agui(threadId=thread, say="Stop"))[1][-1]["type"] == "RUN_FINISHED"
            assert (await eve.request("DELETE", f"/chat/conversations/{thread}"))[0] == 204
            assert not turn.done()
            desk.gate.set()
            _, events = await turn
            assert events[-1]["outcome"] == {"type": "success"}
            listed = json.loads((await ada.request("GET", "/chat/conversations"))[2])["conversations"]
            assert thread in [one["id"] for one in listed]

    drive(main())


def test_whose_a_conversation_is_the_row_says_and_not_its_body(store: Journal) -> None:
    """As in a file that was brought from elsewhere."""

    async def main() -> None:
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, store)
        chat = ChatEngine(hub, Puppet(call("desk__asks"), "There."))
        async with serving(chat, auth=keys()) as port:
            body = json.dumps({"id": "another", "principal": "ada", "created": 1.0, "version": 1}).encode()
            record = ConversationRecord(id="c", principal="eve", version=1, updated=1.0, title="t", body=body)
            await chat.store.save(record)
            eve = Keyed(port, EVE)
            eve.conversation = "c"
            only(await eve.say("go"), "plugin_elicit_request")
            assert eve.conversation == "c"
            assert [one.principal for one in (await store.list()).calls] == ["eve"]
            ada = Keyed(port, ADA)
            listed = json.loads((await ada.request("GET", "/chat/conversations"))[2])
            assert listed["conversations"] == []

    drive(main())


@pytest.mark.parametrize("id", ["c" * 101, "c" * 5000, "c\0d", "c\nd", "\ud800", "\u2028"])
def test_an_id_that_a_model_made_up_for_a_call_locks_no_conversation(store: Journal, id: str) -> None:
    async def main() -> None:
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, store)
        chat = ChatEngine(hub, Puppet(call("desk__asks", id), "There.", call("desk__asks", id), "Well."))
        async with serving(chat) as port:
            person = Person(port)
            asked = only(await person.say("go"), "plugin_elicit_request")
            assert len(asked["callId"]) <= 100
            assert asked["callId"].isascii()
            events = await person.answer(asked, text="Ada")
            assert only(events, "tool_result")["content"] == "It is Ada"
            again = only(await person.say("again"), "plugin_elicit_request")
            assert again["callId"] != asked["callId"]
            assert text(await person.say("never mind")) == "Well."
            assert (await person.request("DELETE", f"/chat/conversations/{person.conversation}"))[0] == 204

    drive(main())


@pytest.mark.parametrize("id", ["x", "x:y", "call_Zk3-9", "toolu_01", "c" * 100, "\u00e9"])
def test_a_usual_id_of_a_call_is_kept(id: str) -> None:
    async def main() -> None:
        async with serving(engine(Desk(), MemoryJournal(), call("desk__asks", id), "There.")) as port:
            person = Person(port)
            asked = only(await person.say("go"), "plugin_elicit_request")
            assert asked["callId"] == id
            assert only(await person.answer(asked, text="Ada"), "tool_result")["callId"] == id

    drive(main())


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("0", 200),
        ("999", 200),
        ("999999999", 200),
        ("2147483647", 400),
        ("9" * 12, 400),
        ("-1", 400),
        ("x", 400),
    ],
)
def test_the_number_of_the_last_line_is_any_that_a_store_can_keep(
    store: Journal, last: str, status: int
) -> None:
    async def main() -> None:
        chat = engine(Desk(), store, "Hello.")
        async with serving(chat) as port:
            person = Person(port)
            whole = await person.say("Hello")
            chat._runs.clear()  # it is read from the store, as in another process
            path = f"/chat?sessionId={person.run}&lastLsn={quote(last)}"
            got, _, data = await person.request("GET", path)
            assert got == status
            if status == 200:
                assert len(data.splitlines()) == max(0, len(whole) - int(last))

    drive(main())


@pytest.mark.parametrize("id", ["", "x" * 201, "a\0b", "a\nb", "\u2028"])
def test_an_id_that_is_none_is_refused(store: Journal, id: str) -> None:
    async def main() -> None:
        async with serving(engine(Desk(), store, "Hello.")) as port:
            person = Person(port)
            for path, body, refused in (
                ("/agui", {"threadId": id, "messages": [{"role": "user", "content": "Hello"}]}, 400),
                ("/chat", {"conversationId": id, "message": "Hello"}, 404),
                ("/chat/stop", {"conversationId": id}, 404),
            ):
                assert (await person.request("POST", path, body))[0] == refused
            resume = [{"interruptId": "a:b:1", "status": "resolved"}]
            _, _, data = await person.request("POST", "/agui", {"threadId": id, "resume": resume})
            assert b"SESSION_NOT_FOUND" in data
            _, _, data = await person.request("POST", "/agui/connect", {"threadId": id})
            assert b'"messages":[]' in data
            for path in (f"/chat/conversations/{quote(id)}", f"/chat?sessionId={quote(id)}"):
                if id:
                    assert (await person.request("GET", path))[0] == 404

    drive(main())

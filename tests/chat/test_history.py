"""Conversations from before: searched, renamed and taken along, each by its own person alone."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

import postgres_server
from chatting import Keyed, Person, Puppet, call, chat, questions, serving
from driving import drive
from midcall import Ask, Hub, method
from midcall.chat import ChatEngine
from midcall.chat import history as chat_history
from midcall.chat.conversation import new_conversation, save
from midcall.content import Image
from midcall.journal.contract import ConversationRecord, Journal
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.postgres import PostgresJournal
from midcall.journal.seal import KeyRing
from midcall.journal.sqlite import SqliteJournal
from midcall.models.base import Message
from midcall.transports.auth import StaticKeys

ADA, EVE = "the-secret-of-ada-0123", "the-secret-of-eve-0123"


class Desk:
    """Asks, and draws."""

    @method
    async def asks(self, ask: Ask) -> list[object]:
        """Ask, and draw."""
        return [f"```It is {await ask.prompt('Name?')}```", Image(b"\x89PNG\r\n\x1a\n.")]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    make: dict[str, Callable[[], Journal]] = {
        "memory": MemoryJournal,
        "sqlite": lambda: SqliteJournal(tmp_path / "chat.db"),
        "postgres": lambda: PostgresJournal(postgres_server.shared(), schema=f"history_{uuid.uuid4().hex}"),
    }
    return make[request.param]()


async def found(person: Person, words: str) -> list[str]:
    """The titles of what a search finds."""
    status, _, data = await person.request("GET", f"/chat/conversations?q={quote(words)}")
    assert status == 200, data
    return [one["title"] for one in json.loads(data)["conversations"]]


async def begun(person: Person, text: str) -> str:
    """A new conversation that begins with this."""
    person.conversation = ""
    await person.say(text)
    return person.conversation


def test_conversations_are_found_by_title_and_by_what_was_said(store: Journal) -> None:
    async def main() -> None:
        async with chat(Puppet("The Fjord is deep.", "100% sure_"), store=store) as person:
            await begun(person, "About Oslo")
            await begun(person, "About Bergen")
            assert await found(person, "about") == ["About Bergen", "About Oslo"]
            assert await found(person, "FJORD oslo") == ["About Oslo"]
            assert await found(person, "fjord bergen") == []
            # What a store could take for a pattern, or for the end of its statement, is a text like any other.
            assert await found(person, "%") == ["About Bergen"]
            assert await found(person, "sure_") == ["About Bergen"]
            for hostile in ("' OR 1=1 --", "_____", "%%%%", "\\", ".*", "\0"):
                assert await found(person, hostile) == []
            _, _, data = await person.request("GET", "/chat/conversations?q=deep")
            answer = json.loads(data)
            assert answer["complete"]
            assert answer["conversations"][0]["snippet"] == "The Fjord is deep."

    drive(main())


@pytest.mark.parametrize("words", ["", " ", "a " * 11, "a" * 201])
def test_a_search_is_bounded(words: str) -> None:
    async def main() -> None:
        async with chat(Puppet()) as person:
            status, _, _ = await person.request("GET", f"/chat/conversations?q={quote(words)}")
            assert status == 400

    drive(main())


def test_a_search_gives_up_in_time_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with chat(Puppet("x", "x", "x")) as person:
            for number in range(3):
                await begun(person, f"same {number}")
            monkeypatch.setattr(chat_history, "FOUND", 2)
            _, _, data = await person.request("GET", "/chat/conversations?q=same")
            assert [len(json.loads(data)["conversations"]), json.loads(data)["complete"]] == [2, False]
            monkeypatch.setattr(chat_history, "SEARCH_SECONDS", -1.0)
            _, _, data = await person.request("GET", "/chat/conversations?q=same")
            assert json.loads(data) == {"conversations": [], "complete": False}

    drive(main())


def test_a_conversation_that_cannot_be_read_does_not_end_a_search() -> None:
    async def main() -> None:
        store = MemoryJournal()
        await store.open()
        broken = ConversationRecord(id="b", version=1, updated=2.0, title="broken", body=b"{]")
        await store.conversations.save(broken)
        whole = new_conversation(None)
        whole.say(Message("user", "fjord"))
        await save(store.conversations, whole)
        hits, is_all = await chat_history.search(store.conversations, None, "fjord", 10)
        assert ([one.title for one in hits], is_all) == (["fjord"], True)

    drive(main())


def test_a_sealed_conversation_is_found_and_nothing_of_it_is_in_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        hub = Hub("h").register(Desk())
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "j.db", seal=KeyRing([b"0" * 32])))
        model = Puppet(call("desk__asks"), "Thank you.")
        async with serving(ChatEngine(hub, model)) as port:
            person = Person(port)
            (asked,) = questions(await person.say("the walrus"))
            await person.answer(asked, text="Rumpelstiltskin")
            assert await found(person, "walrus") == ["the walrus"]
            path = f"/chat/conversations/{person.conversation}"
            assert (await person.request("PATCH", path, {"title": "Another walrus"}))[0] == 200
        for file in filter(Path.is_file, tmp_path.rglob("*")):
            data = file.read_bytes()
            assert not any(word in data for word in (b"walrus", b"Rumpelstiltskin", b"image/png"))

    drive(main())


def test_a_conversation_is_renamed(store: Journal) -> None:
    async def main() -> None:
        async with chat(Puppet("One.", "Two."), store=store) as person:
            path = f"/chat/conversations/{await begun(person, 'hello')}"
            status, _, data = await person.request("PATCH", path, {"title": "  A better\ntitle\0 "})
            assert (status, json.loads(data)) == (200, {"title": "A better title"})
            for wrong in ({"title": ""}, {"title": "\n"}, {"title": "x" * 201}, {"title": 3}, {}, []):
                assert (await person.request("PATCH", path, wrong))[0] == 400
            assert (await person.request("PATCH", path, {"title": "x" * 5_000_000}))[0] == 400
            await person.say("more")
            assert (await person.shown())["title"] == "A better title"

    drive(main())


def test_a_conversation_is_exported_as_json_and_as_markdown() -> None:
    async def main() -> None:
        async with chat(Puppet(call("desk__asks"), "Thank *you*."), Desk()) as person:
            (asked,) = questions(await person.say("Who? ../../x"))
            await person.answer(asked, text="Ada")
            path = f"/chat/conversations/{person.conversation}/export"
            status, headers, data = await person.request("GET", f"{path}?format=json")
            exported = json.loads(data)
            assert (status, headers["content-type"]) == (200, "application/json")
            assert headers["content-disposition"] == 'attachment; filename="Who-..-..-x.json"'
            assert [one["role"] for one in exported["messages"]] == ["user", "assistant", "tool", "assistant"]
            (file,) = exported["files"].values()
            assert file["type"] == "image/png"
            _, headers, data = await person.request("GET", f"{path}?format=markdown")
            text = data.decode()
            assert text.startswith("# Who? ../../x\n")
            assert '> Name?\n>\n> `{"text":"Ada"}`' in text
            assert "````\n```It is Ada```\n````" in text  # the fence is longer than those in the text
            assert "*Image: image.png, 9 bytes*" in text
            assert text.endswith("Thank *you*.\n")
            assert (await person.request("GET", f"{path}?format=exe"))[0] == 400

    drive(main())


def test_nobody_finds_renames_exports_or_sees_files_of_anothers_conversation(store: Journal) -> None:
    async def main() -> None:
        hub = Hub("h").register(Desk())
        engine = ChatEngine(hub, Puppet(call("desk__asks"), "Thank you."), store=store)
        keys = StaticKeys(f"ada={ADA} eve={EVE}")
        async with serving(engine, auth=keys) as port:
            ada, eve = Keyed(port, ADA), Keyed(port, EVE)
            (asked,) = questions(await ada.say("secret"))
            await ada.answer(asked, text="Ada")
            (part,) = (await ada.shown())["calls"]["call_1"]["parts"]
            path = f"/chat/conversations/{ada.conversation}"
            assert await found(ada, "secret") == ["secret"]
            assert await found(eve, "secret") == []
            assert (await eve.request("PATCH", path, {"title": "mine"}))[0] == 404
            for of in ("", "/export?format=json", "/export?format=markdown", f"/files/{part['file']}"):
                assert (await eve.request("GET", path + of))[0] == 404
                assert (await ada.request("GET", path + of))[0] == 200
            for body in ({"message": "x", "edit": {"message": 0, "of": 4}}, {"retry": "call_1"}):
                assert (await eve.refused(conversationId=ada.conversation, **body))[0] == 404
            assert (await ada.shown())["title"] == "secret"

    drive(main())

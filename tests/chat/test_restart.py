"""Tool calls of the chat that wait, across restarts and versions of midcall."""

import asyncio
import http.client
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import chat_restart_app
import old_journal_app
from chatting import Person, only, questions, response, serving, text
from driving import LIMIT, drive
from midcall.errors import BadExport, MidcallError
from midcall.journal.admin import Admin
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.mcp import CALL_KINDS
from operating import Server, midcall


def test_an_answer_that_was_acknowledged_is_kept_however_long_its_tool_needs_to_be_rebuilt(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        with Server(tmp_path, target="chat_restart_app:hub") as server:
            person = Person(server.port)
            (asked,) = questions(await person.say("Send it."))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(
                server.start, PAUSE=str(10 * LIMIT)
            )  # it does not come to its question here
            given = response(asked, "accept", {"text": "Ada"})
            body = {"conversationId": person.conversation, "pluginElicitResponses": [given]}
            assert await asyncio.to_thread(until_it_runs, server.port, body) == ["running"]
            await asyncio.to_thread(server.kill)
            assert not server.ledger.exists()

            await asyncio.to_thread(server.start)
            async with asyncio.timeout(LIMIT):
                while not server.ledger.exists():  # it goes on by itself
                    await asyncio.sleep(0.1)
                shown = await person.shown()
                assert shown["pending"] == []  # and is not asked again
                while (await person.shown())["run"] is not None:  # until that is known to be dead
                    await asyncio.sleep(0.1)
            events = await person.post(resume=True)
            assert only(events, "tool_result")["content"] == "sent to Ada"
            assert questions(events) == []
            assert text(events) == "It was sent to Ada."
            assert server.ledger.read_text() == "sent to Ada\n"

    drive(main(), 3 * LIMIT)


def until_it_runs(port: int, body: dict[str, Any]) -> list[str]:
    """Post, and read until the tool call is said to run: that acknowledges the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("POST", "/chat", json.dumps(body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            event = json.loads(line)["event"]
            if event["type"] != "session_info":
                return [event["status"]]
        return []
    finally:
        connection.close()


def test_a_tool_call_of_the_chat_is_answered_on_the_command_line_also_where_the_hub_has_no_chat(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        with Server(tmp_path, target="chat_restart_app:hub") as server:
            person = Person(server.port)
            (asked,) = questions(await person.say("Send it."))
            on_journal = ("--journal", str(server.journal))
            listed = json.loads((await calls(server, "list", "--json", *on_journal)).stdout)
            assert listed["questions"][0]["key"] == "to"
            given = ("answer", listed["id"], "to=Ada", "--target", "chat_restart_app:no_chat", *on_journal)
            assert "is completed" in (await calls(server, *given)).stderr
            events = await person.answer(asked, text="Bob")  # too late
            assert only(events, "tool_result")["content"] == "sent to Ada"
            assert text(events) == "It was sent to Ada."

    drive(main(), 2 * LIMIT)


async def calls(server: Server, *argv: str) -> "subprocess.CompletedProcess[str]":
    done = await asyncio.to_thread(midcall, "calls", *argv, env=server.environment)
    assert done.returncode == 0, done.stderr
    return done


def test_who_has_no_chat_leaves_its_tool_calls_as_they_are() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        first, second = chat_restart_app.hub(), chat_restart_app.no_chat()
        for hub in (first, second):
            hub.durable = DurableCalls(hub, journal)
        async with serving(first.chat) as port:
            (asked,) = questions(await Person(port).say("Send it."))
            assert asked["key"] == "to"
            operations = Admin(journal, CALL_KINDS, durable=second.durable)
            (listed,) = (await operations.list())["calls"]
            with pytest.raises(MidcallError, match="Nobody here can run this call"):
                await operations.answer(listed["id"], {"to": "Ada"})
            exported = await operations.export(listed["id"])
            with pytest.raises(BadExport, match="there is no chat"):
                await operations.restore(exported)
            assert (await operations.show(listed["id"]))["status"] == "waiting"

    drive(main())


def test_a_conversation_of_the_first_journal_goes_on_with_what_its_tool_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(old_journal_app.FIXTURE, tmp_path, dirs_exist_ok=True)
    told = json.loads((tmp_path / "told.json").read_text())
    monkeypatch.setenv("MIDCALL_KEYS", old_journal_app.KEYS)

    async def main() -> None:
        hub = old_journal_app.hub()
        journal = SqliteJournal(tmp_path / "journal.db")
        hub.durable = DurableCalls(hub, journal, time_limit=old_journal_app.CENTURIES)
        async with serving(hub.chat) as port:
            person = Person(port)
            person.conversation = told["asked"]
            (asked,) = (await person.shown())["pending"]
            assert asked["message"] == "Send it to BERGEN?"
            (asked,) = questions(await person.answer(asked, confirmed="perhaps"))
            assert asked["message"].startswith("(Not understood: expected yes or no")
            (asked,) = questions(await person.answer(asked, confirmed=True))
            assert asked["message"] == "From whom?"
            events = await person.answer(asked, text="Ada")
            assert only(events, "tool_result")["content"] == "BERGEN True Ada"
            assert text(events) == "Done: BERGEN True Ada"

    drive(main())

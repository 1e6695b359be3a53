"""With `--encrypt-journal`, nothing of what was said can be read from what midcall has written, calls or chat."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

import asyncpg
import pytest

import old_journal_app
import postgres_server
from chatting import response
from conversations_contract import talk
from driving import drive
from midcall.chat.conversation import load
from midcall.journal.contract import JournalError
from midcall.journal.seal import KeyRing
from midcall.journal.sqlite import SqliteJournal
from operating import Server

RING = KeyRing([b"k" * 32])
WORDS = ("xylophone", "bergen", "narvik", "quux", "send it to", "from whom", "where to", "i send it")
"""Of messages, titles, arguments, questions, answers and results."""


def speak(server: Server) -> None:
    """A chat that asks, another one that does not, and a call over MCP that asks twice."""
    for said in ("send it to Bergen", "Tell me of the xylophone"):
        told = server.post("/chat", {"message": said})
        assert told.status == 200
    listed = server.get("/chat/conversations").json["conversations"]
    assert {one["title"] for one in listed} == {"send it to Bergen", "Tell me of the xylophone"}
    (asked,) = (one["id"] for one in listed if one["waiting"])
    (question,) = server.get(f"/chat/conversations/{asked}").json["pending"]
    answer = response(question, "accept", {"confirmed": True})
    told = server.post("/chat", {"conversationId": asked, "pluginElicitResponses": [answer]})
    assert "From whom?" in told.text
    done, answers = server.call("parcels.send", city="Narvik"), iter((True, "Quux"))
    while "requestState" in done:
        ((key, asked),) = done["inputRequests"].items()
        (field,) = asked["params"]["requestedSchema"]["properties"]
        answer = {key: {"action": "accept", "content": {field: next(answers)}}}
        done = server.call("parcels.send", city="Narvik", state=done, answers=answer)
    assert done["content"][0]["text"] == "NARVIK True Quux"


def found_in(content: bytes) -> list[str]:
    return [word for word in WORDS if word.encode() in content.lower()]


def written(folder: Path) -> dict[str, list[str]]:
    """The words that are in any file there, by file."""
    files = [one for one in folder.rglob("*") if one.is_file()]
    assert folder / "journal.db" in files
    return {str(one): words for one in files if (words := found_in(one.read_bytes()))}


@pytest.mark.parametrize("sealed", [True, False])
def test_no_file_that_midcall_wrote_has_a_word_of_it(tmp_path: Path, sealed: bool) -> None:
    folder, temporary = tmp_path / "state", tmp_path / "tmp"
    for one in (folder, temporary):
        one.mkdir()
    options = ("--encrypt-journal",) if sealed else ()
    server = Server(
        folder,
        *options,
        target="old_journal_app:hub",
        MIDCALL_KEYS=old_journal_app.KEYS,
        MIDCALL_STATE=str(folder),
        HOME=str(folder),
        TMPDIR=str(temporary),
    )
    with server:
        speak(server)
        running = written(folder)
        server.kill()
        assert [one for one in temporary.rglob("*") if one.is_file()] == []
        killed = written(folder)
        server.start()
        assert len(server.get("/chat/conversations").json["conversations"]) == 2
    ended = written(folder)
    if sealed:
        assert (running, killed, ended) == ({}, {}, {})
    else:  # the test would see it
        assert set(WORDS) - {word for words in running.values() for word in words} <= {"i send it"}
        assert ended


@pytest.mark.parametrize("sealed", [True, False])
def test_no_table_of_postgresql_has_a_word_of_it(tmp_path: Path, sealed: bool) -> None:
    async def dump(dsn: str) -> bytes:
        connection = await asyncpg.connect(dsn)
        try:
            tables = await connection.fetch(
                "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
                " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
            )
            assert "midcall.conversations" in [name for (name,) in tables]
            kept = [
                value
                for (name,) in tables
                for row in await connection.fetch(f"TABLE {name}")
                for value in row
            ]
        finally:
            await connection.close()
        return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in kept)

    async def main() -> None:
        async with postgres_server.fresh_database() as dsn:
            options = ("--journal", dsn, *(("--encrypt-journal",) if sealed else ()))
            server = Server(
                tmp_path,
                *options,
                target="old_journal_app:hub",
                journal=False,
                MIDCALL_KEYS=old_journal_app.KEYS,
            )
            await asyncio.to_thread(server.start)
            try:
                await asyncio.to_thread(speak, server)
                words = found_in(await dump(dsn))
                assert (words == []) == sealed
            finally:
                await asyncio.to_thread(server.stop)

    drive(main(), limit=60)


# --- values that were planted or moved --------------------------------------------------------------

PLANTED = [
    "UPDATE conversations SET body = x'00313233' WHERE id = 'second'",
    "UPDATE conversations SET title = x'00313233' WHERE id = 'second'",
    "UPDATE lines SET data = x'0091c40131' WHERE run = 'second'",
    "UPDATE conversations SET body = (SELECT body FROM conversations WHERE id = 'first') WHERE id = 'second'",
    "UPDATE conversations SET body = (SELECT body FROM conversations WHERE principal = 'eve') WHERE id = 'second'",
    "UPDATE conversations SET title = (SELECT title FROM conversations WHERE id = 'first') WHERE id = 'second'",
    "UPDATE conversations SET body = title WHERE id = 'second'",
    "UPDATE lines SET data = (SELECT data FROM lines WHERE run = 'first') WHERE run = 'second'",
]


@pytest.mark.parametrize("planted", PLANTED)
def test_what_was_planted_or_moved_in_an_encrypted_journal_is_refused(tmp_path: Path, planted: str) -> None:
    """Whoever can write the file could otherwise say what was said."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        journal = SqliteJournal(path, seal=RING)
        await journal.open()
        store = journal.conversations
        for record in (talk(id="first"), talk(id="second"), talk("eve", id="second")):
            await store.save(record)
        for run in ("first", "second"):
            await store.begin_run(run, run, "ada")
            await store.append(run, 1, [b"1"], ended=False)
        await journal.close()
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(planted + ("" if "lines" in planted else " AND principal = 'ada'"))
        await journal.open()
        with pytest.raises(JournalError, match=r"not encrypted|cannot be decrypted"):
            await (store.lines("second", 0) if "lines" in planted else store.load("second", "ada"))
        assert await store.load("first", "ada") is not None
        await journal.close()

    drive(main())


@pytest.mark.parametrize("what", ["a conversation", "a run"])
def test_a_journal_in_which_something_was_said_in_the_clear_is_not_taken_for_an_encrypted_one(
    tmp_path: Path, what: str
) -> None:
    async def main() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        await journal.open()
        if what == "a run":
            await journal.conversations.begin_run("r", "c", None)
            await journal.conversations.append("r", 1, [b"1"], ended=True)
        else:
            await journal.conversations.save(talk())
        await journal.close()
        with pytest.raises(JournalError, match="not encrypted") as raised:
            await SqliteJournal(tmp_path / "journal.db", seal=RING).open()
        assert not raised.value.recoverable
        both = SqliteJournal(tmp_path / "journal.db", seal=RING, plain_too=True)
        await both.open()
        assert len(await both.conversations.list("ada")) == (what == "a conversation")
        await both.close()

    drive(main())


def test_a_conversation_that_is_no_conversation_is_an_error_of_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        await journal.open()
        await journal.conversations.save(talk(id="t", body=json.dumps({"id": 1}).encode()))
        with pytest.raises(JournalError, match="cannot be read"):
            await load(journal.conversations, "t", "ada")
        await journal.close()

    drive(main())

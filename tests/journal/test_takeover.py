"""Conversations from when they had a place of their own, beside the journal: they are taken into it, once."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import old_journal_app
import postgres_server
from chatting import Person, serving, text
from conversations_contract import changed, talk
from driving import LIMIT, drive
from journal_contract import parked
from midcall import Hub
from midcall.journal.contract import JournalError
from midcall.journal.durable import DurableCalls
from midcall.journal.postgres import PostgresJournal
from midcall.journal.postgres.schema import MIGRATIONS
from midcall.journal.seal import KeyRing
from midcall.journal.sqlite import SqliteJournal, takeover
from midcall.journal.sqlite import file as sqlite_file

RING = KeyRing([b"k" * 32])
TOLD = json.loads((old_journal_app.FIXTURE / "told.json").read_text())


# --- what the code of yesterday has written ---------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    monkeypatch.setenv("MIDCALL_KEYS", old_journal_app.KEYS)
    for name in ("journal.db", "journal.db.chat"):
        shutil.copy(old_journal_app.FIXTURE / name, tmp_path / name)
        (tmp_path / name).chmod(0o600)
    return tmp_path / "journal.db"


def hub(journal: Path) -> Hub:
    made = old_journal_app.hub()
    made.durable = DurableCalls(made, SqliteJournal(journal), time_limit=old_journal_app.CENTURIES)
    return made


def test_a_conversation_of_yesterday_is_read_and_gone_on_with(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        for _ in range(2):  # the second time it is in the journal
            async with serving(hub(journal).chat) as port:
                person = Person(port)
                _, _, data = await person.request("GET", "/chat/conversations")
                listed = {one["id"]: one for one in json.loads(data)["conversations"]}
                assert listed.keys() == {TOLD["said"], TOLD["asked"]}
                assert listed[TOLD["said"]]["title"] == "Hello there"
                assert listed[TOLD["asked"]]["waiting"]
                person.conversation = TOLD["said"]
                said = [message["content"] for message in (await person.shown())["messages"]]
                assert said[:2] == ["Hello there", "Where to?"]
                assert text(await person.say("Hello again")) == "Where to?"
                messages = (await person.shown())["messages"]
                assert [message["content"] for message in messages] == [*said, "Hello again", "Where to?"]
                assert not journal.with_name("journal.db.chat").exists()

    caplog.set_level(logging.INFO, "midcall")
    drive(main())
    told = [one.getMessage() for one in caplog.records if "are in the journal now" in one.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("2 conversations of ")


def test_a_call_of_yesterday_is_answered(journal: Path) -> None:
    async def main() -> None:
        async with serving(hub(journal).chat) as port:
            person = Person(port)
            state = TOLD["call"]["result"]["requestState"]
            for key, content in (("sure", {"confirmed": True}), ("name", {"name": "Ada", "text": "Ada"})):
                answer = {key: {"action": "accept", "content": content}}
                params = {**old_journal_app.CALL, "requestState": state, "inputResponses": answer}
                request = old_journal_app.request("tools/call", params)
                _, _, data = await person.request("POST", "/mcp", request, old_journal_app.HEADERS)
                result = json.loads(data)["result"]
                state = result.get("requestState")
            assert result["content"][0]["text"] == "NARVIK True Ada"

    drive(main())


# --- files ------------------------------------------------------------------------------------------

TABLES = """
CREATE TABLE conversations (
    id TEXT NOT NULL, principal TEXT, title TEXT NOT NULL, updated REAL NOT NULL,
    version INTEGER NOT NULL, waiting INTEGER NOT NULL, run TEXT, body BLOB NOT NULL
);
CREATE UNIQUE INDEX by_id ON conversations (id, ifnull(principal, 0));
CREATE TABLE runs (
    id TEXT PRIMARY KEY, conversation TEXT NOT NULL, principal TEXT, ended INTEGER NOT NULL,
    seen REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE lines (
    run TEXT NOT NULL, lsn INTEGER NOT NULL, line BLOB NOT NULL, PRIMARY KEY (run, lsn)
) WITHOUT ROWID;
CREATE TABLE to_stop (run TEXT PRIMARY KEY) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
PEOPLE = ("ada", None, "")


def rows(count: int = 5) -> list[tuple[Any, ...]]:
    """Conversations, as they were written."""
    return [
        (f"id {n}", person, f"title {n}", 1000.0 + n, n + 1, n % 2, "r" if n == 1 else None, b"body %d" % n)
        for n in range(count)
        for person in PEOPLE
    ]


def old_file(path: Path, count: int = 5) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA journal_mode = WAL")
        file.executescript(TABLES)
        file.executemany("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows(count))
        file.execute("INSERT INTO runs VALUES ('r', 'id 1', 'ada', 0, ?)", (time.time(),))
        file.execute("INSERT INTO runs VALUES ('empty', 'id 1', NULL, 1, ?)", (time.time(),))
        file.executemany("INSERT INTO lines VALUES ('r', ?, ?)", [(n, b"line %d" % n) for n in (1, 2, 3)])
        file.execute("INSERT INTO to_stop VALUES ('r')")


def old_journal(path: Path) -> None:
    """A journal of that time, beside which the file is."""
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.executescript(sqlite_file.MIGRATIONS[0])
        file.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION}")
        file.execute("PRAGMA user_version = 1")
    path.chmod(0o600)


async def assert_taken(journal: SqliteJournal | PostgresJournal, count: int = 5) -> None:
    store = journal.conversations
    for id, person, title, updated, version, waiting, run, body in rows(count):
        found = await store.load(id, person)
        assert found is not None
        assert (found.title, found.updated, found.version) == (title, updated, version)
        assert (found.waiting, found.run, found.body) == (bool(waiting), run, body)
    for person in PEOPLE:
        assert len(await store.list(person)) == count
    state = await store.run("r")
    assert state is not None
    assert (state.conversation_id, state.principal, state.lines, state.ended) == ("id 1", "ada", 3, False)
    assert list(await store.lines("r", 1)) == [b"line 2", b"line 3"]
    assert await store.append("r", 4, [b"line 4"], ended=True)
    state = await store.run("empty")
    assert state is not None
    assert (state.lines, state.ended) == (0, True)


@asynccontextmanager
async def opened(path: Path, **given: Any) -> AsyncIterator[SqliteJournal]:
    journal = SqliteJournal(path, **given)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


@pytest.mark.parametrize("seal", [None, RING], ids=["plain", "sealed"])
def test_everything_in_an_old_file_is_taken_over(tmp_path: Path, seal: KeyRing | None) -> None:
    path = tmp_path / "journal.db"
    old_journal(path)
    old_file(tmp_path / "journal.db.chat")

    async def main() -> None:
        async with opened(path, seal=seal) as journal:
            await assert_taken(journal)
            assert list(tmp_path.glob("*.chat*")) == []
        everything = b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())
        assert (b"body 1" in everything) == (b"line 2" in everything) == (seal is None)

    drive(main())


def test_a_file_from_when_an_id_was_one_persons_alone_is_taken_over(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db.chat")) as file, file:
        file.execute(
            "CREATE TABLE conversations (id text PRIMARY KEY, principal text, title text NOT NULL, updated REAL,"
            " version INTEGER, waiting INTEGER, run text, body BLOB NOT NULL) WITHOUT ROWID"
        )
        file.execute("INSERT INTO conversations VALUES ('a', NULL, 't', 1.0, 1, 1, NULL, x'00')")

    async def main() -> None:
        async with opened(tmp_path / "journal.db") as journal:
            found = await journal.conversations.load("a", None)
            assert found is not None
            assert (found.title, found.body) == ("t", b"\0")

    drive(main())


def test_of_many_who_start_at_once_one_takes_it_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old_file(tmp_path / "journal.db.chat", 50)

    async def main() -> None:
        journals = [SqliteJournal(tmp_path / "journal.db") for _ in range(6)]
        await asyncio.gather(*(journal.open() for journal in journals))
        await assert_taken(journals[3], 50)
        for journal in journals:
            await journal.close()

    caplog.set_level(logging.INFO, "midcall")
    drive(main())
    assert len([one for one in caplog.records if "are in the journal now" in one.getMessage()]) == 1


def test_what_is_in_the_journal_already_is_not_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    old_file(tmp_path / "journal.db.chat")

    async def main() -> None:
        with monkeypatch.context() as patched:  # as if the process had ended before it was removed
            patched.setattr(Path, "unlink", lambda *_, **__: None)
            async with opened(path) as journal:
                await journal.conversations.delete("id 1", "ada")
                found = await journal.conversations.load("id 2", "ada")
                assert found is not None
                await journal.conversations.save(changed(found, body=b"more"))
        assert (tmp_path / "journal.db.chat").exists()
        async with opened(path) as journal:
            assert await journal.conversations.load("id 1", "ada") is None
            found = await journal.conversations.load("id 2", "ada")
            assert found is not None
            assert found.body == b"more"
        assert not (tmp_path / "journal.db.chat").exists()

    drive(main())


CRASH = """
import asyncio, json, os, sys, threading
from midcall.journal.sqlite import SqliteJournal, takeover

def trace(frame, event, _):
    global moment
    if frame.f_code.co_filename == takeover.__file__:
        moment += 1
        if moment == at:
            os.kill(os.getpid(), 9)
        return trace

async def main():
    journal = SqliteJournal(path)
    await journal.open()
    await journal.close()

for line in sys.stdin:  # each time in a process of its own, which need not import it all again
    path, at = json.loads(line)
    moment = 0
    child = os.fork()
    if not child:
        sys.settrace(trace)
        threading.settrace(trace)
        asyncio.run(main())
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_crash_at_any_moment_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    async def check(folder: Path) -> None:
        async with opened(folder / "journal.db") as journal:
            await assert_taken(journal, 2)
        assert not (folder / "journal.db.chat").exists()

    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CRASH], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        at, status = 1, signal.SIGKILL
        while status == signal.SIGKILL:
            folder = tmp_path / str(at)
            old_file(folder / "journal.db.chat", 2)
            process.stdin.write(json.dumps([str(folder / "journal.db"), at]) + "\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            drive(check(folder))
            at += 7  # lines of the takeover
        assert status == 0
        assert at > 100, "there are more of them"


def test_a_file_that_an_older_process_still_uses_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "BUSY", 0.1)
    path, old = tmp_path / "journal.db", tmp_path / "journal.db.chat"
    old_file(old)

    async def main() -> None:
        with contextlib.closing(sqlite3.connect(old)) as used:
            used.execute("SELECT * FROM runs").fetchall()
            with pytest.raises(JournalError, match="still uses them") as raised:
                await SqliteJournal(path).open()
            assert raised.value.recoverable
            assert str(tmp_path) not in str(raised.value)
            assert used.execute("SELECT count(*) FROM conversations").fetchone() == (15,)
        async with opened(path) as journal:
            await assert_taken(journal)
            assert not old.exists()

    drive(main())


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    old, other = tmp_path / "journal.db.chat", tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as file, file:
        file.execute("CREATE TABLE theirs (a)")

    async def main() -> None:
        for content in (other.read_bytes(), b"not a database, and long enough to be seen as one\n" * 100):
            old.write_bytes(content)
            with pytest.raises(JournalError, match="move it away"):
                await SqliteJournal(tmp_path / "journal.db").open()
            assert old.read_bytes() == content
        old.write_bytes(b"")  # as a process leaves it that ends just then
        async with opened(tmp_path / "journal.db") as journal:
            await parked(journal)
        assert not old.exists()

    drive(main())


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def planted(path: Path) -> None:
    """What somebody else has put there."""
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.executescript(TABLES)
        file.execute("INSERT INTO conversations VALUES ('x', 'ada', 'forged', 2e9, 99, 0, NULL, x'7b7d')")


@pytest.mark.parametrize("seal", [None, RING], ids=["plain", "sealed"])
@pytest.mark.parametrize("before", ["new", "old", "old with conversations"])
def test_a_file_that_appears_later_is_left_alone(
    tmp_path: Path, before: str, seal: KeyRing | None, caplog: pytest.LogCaptureFixture
) -> None:
    path, chat = tmp_path / "journal.db", tmp_path / "journal.db.chat"

    async def main() -> None:
        if before != "new":
            old_journal(path)
        if before == "old with conversations":
            old_file(chat)
        async with opened(path, seal=seal) as journal:
            count = len(await journal.conversations.list("ada"))
        assert not warned(caplog)
        planted(chat)
        for times in (1, 2):
            async with opened(path, seal=seal) as journal:
                assert len(await journal.conversations.list("ada")) == count
                assert await journal.conversations.load("x", "ada") is None
            assert len(warned(caplog)) == times
            assert "is left alone" in warned(caplog)[0]
        assert chat.exists()

    drive(main())


def test_what_was_to_be_taken_over_and_is_gone_is_not_taken_over_later(tmp_path: Path) -> None:
    path, chat = tmp_path / "journal.db", tmp_path / "journal.db.chat"

    async def main() -> None:
        chat.write_bytes(b"not a database, and long enough to be seen as one\n" * 100)
        with pytest.raises(JournalError, match="move it away"):
            await SqliteJournal(path).open()
        chat.unlink()
        for _ in range(2):
            async with opened(path) as journal:
                assert await journal.conversations.list("ada") == []
            if not chat.exists():
                planted(chat)

    drive(main())


def test_a_new_sealed_journal_takes_nothing_that_is_plain(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old_file(tmp_path / "journal.db.chat")

    async def main() -> None:
        for _ in range(2):
            async with opened(tmp_path / "journal.db", seal=RING) as journal:
                assert await journal.conversations.list("ada") == []
        async with opened(tmp_path / "journal.db") as journal:
            assert await journal.conversations.list("ada") == []
        assert (tmp_path / "journal.db.chat").exists()

    drive(main())
    assert len(warned(caplog)) == 3


def test_a_link_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "journal.db", tmp_path / "elsewhere.db"
    old_file(other)
    (tmp_path / "journal.db.chat").symlink_to(other)

    async def main() -> None:
        with pytest.raises(JournalError, match="is a link") as raised:
            await SqliteJournal(path).open()
        assert not raised.value.recoverable
        assert other.exists()
        assert (tmp_path / "journal.db.chat").is_symlink()
        other.rename(tmp_path / "journal.db.chat")
        async with opened(path) as journal:
            await assert_taken(journal)

    drive(main())


ENDLESS = """
CREATE VIEW {} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
SELECT 'c' || i AS id, 'ada' AS principal, 1 AS version, 1.0 AS updated, 0 AS waiting, NULL AS run,
    't' AS title, x'7b7d' AS body, 1 AS ended, 1.0 AS seen, 'c' AS conversation FROM n
"""


@pytest.mark.parametrize("view", ["conversations", "runs"])
def test_a_view_is_not_read(tmp_path: Path, view: str) -> None:
    chat = tmp_path / "journal.db.chat"
    old_file(chat)
    with contextlib.closing(sqlite3.connect(chat)) as file, file:
        file.execute(f"DROP TABLE {view}")
        file.execute(ENDLESS.format(view))

    async def main() -> None:
        with pytest.raises(JournalError, match=f"no table {view}"):
            await asyncio.wait_for(SqliteJournal(tmp_path / "journal.db").open(), LIMIT)
        assert chat.exists()

    drive(main())


GOOD = ("c", "ada", "t", 1.0, 3, 0, None, b"{}")


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, None),
        (0, 7),
        (1, 7),
        (2, None),
        (2, b"\xff"),
        (3, "then"),
        (3, float("inf")),
        (4, "x"),
        (4, 2**62),
        (5, None),
        (6, b"r"),
        (7, "{}"),
    ],
)
def test_a_value_of_another_type_is_refused_before_anything_is_changed(
    tmp_path: Path, at: int, value: object
) -> None:
    path, chat = tmp_path / "journal.db", tmp_path / "journal.db.chat"
    with contextlib.closing(sqlite3.connect(chat)) as file, file:
        columns = "id, principal, title, updated, version, waiting, run, body"
        file.execute(f"CREATE TABLE conversations ({columns})")
        for row in (("good", *GOOD[1:]), (*GOOD[:at], value, *GOOD[at + 1 :])):
            file.execute("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    before = chat.read_bytes()

    async def main() -> None:
        with pytest.raises(JournalError, match="not of their type") as raised:
            await SqliteJournal(path).open()
        assert not raised.value.recoverable
        assert chat.read_bytes() == before
        with contextlib.closing(sqlite3.connect(path)) as file:
            assert file.execute("SELECT count(*) FROM conversations").fetchone() == (0,)

    drive(main())


def test_of_a_conversation_that_is_in_both_the_newer_is_kept_and_so_is_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, chat = tmp_path / "journal.db", tmp_path / "journal.db.chat"
    kept = tmp_path / "journal.db.chat.taken"
    kept.write_text("of another time")

    async def main() -> None:
        async with opened(path) as journal:
            older, newer = talk(id="id 1", version=1), talk(id="id 2", version=50)
            for record in (older, newer):
                assert await journal.conversations.restore(record)
        old_file(chat)
        with contextlib.closing(sqlite3.connect(path)) as file, file:  # as of a journal that was put back
            file.execute("INSERT INTO secrets VALUES ('chat file', CAST('old' AS BLOB))")
        with monkeypatch.context() as patched:  # as if the process had ended before it was renamed
            patched.setattr(Path, "rename", lambda *_, **__: None)
            async with opened(path) as journal:
                pass
        assert chat.exists()
        async with opened(path) as journal:
            found = await journal.conversations.load("id 1", "ada")
            assert found is not None
            assert (found.version, found.title) == (2, "title 1")
            assert await journal.conversations.load("id 2", "ada") == newer
            assert len(await journal.conversations.list("ada")) == 5

    drive(main())
    assert not chat.exists()
    assert kept.read_text() == "of another time"
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db.chat.taken2")) as file:
        assert file.execute("SELECT count(*) FROM conversations").fetchone() == (15,)
    assert "the file is now" in warned(caplog)[-1]


def test_a_file_that_is_gone_when_it_is_opened_has_been_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, chat = tmp_path / "journal.db", tmp_path / "journal.db.chat"
    old_file(chat)
    connect = sqlite3.connect

    def connected(name: Any, *args: Any, **given: Any) -> sqlite3.Connection:
        if ".chat" in str(name):
            chat.unlink()
        return connect(name, *args, **given)

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(takeover.sqlite3, "connect", connected)
            async with opened(path) as journal:
                await parked(journal)

    drive(main())


# --- PostgreSQL -------------------------------------------------------------------------------------

POSTGRES = """
CREATE SCHEMA midcall_chat;
CREATE TABLE midcall_chat.conversations (
    id text NOT NULL, principal text, title text NOT NULL, updated double precision NOT NULL,
    version bigint NOT NULL, waiting boolean NOT NULL, run text, body bytea NOT NULL
);
"""
RUNS = """
CREATE TABLE midcall_chat.runs (
    id text PRIMARY KEY, conversation text NOT NULL, principal text, ended boolean NOT NULL,
    seen timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE midcall_chat.lines (
    run text NOT NULL, lsn bigint NOT NULL, line bytea NOT NULL, PRIMARY KEY (run, lsn)
);
CREATE TABLE midcall_chat.to_stop (run text PRIMARY KEY);
INSERT INTO midcall_chat.runs VALUES ('r', 'id 1', 'ada', false), ('empty', 'id 1', NULL, true);
INSERT INTO midcall_chat.lines VALUES ('r', 1, 'line 1'), ('r', 2, 'line 2'), ('r', 3, 'line 3');
INSERT INTO midcall_chat.to_stop VALUES ('r');
"""


def journal_1(schema: str = "midcall") -> str:
    """A journal of that time."""
    return f"""
        CREATE SCHEMA {schema};
        CREATE TABLE {schema}.midcall_meta (version int NOT NULL);
        INSERT INTO {schema}.midcall_meta VALUES (1);
        {MIGRATIONS[0].replace("midcall.", f"{schema}.")}"""


@asynccontextmanager
async def database(*scripts: str) -> AsyncIterator[tuple[str, Callable[[str], Any]]]:
    """A database of its own in which conversations had a schema of their own, and SQL in it."""
    async with postgres_server.fresh_database() as dsn:
        connection = await asyncpg.connect(dsn)
        try:
            for script in scripts:
                await connection.execute(script)
            values = [(*row[:5], bool(row[5]), *row[6:]) for row in rows()]
            insert = "INSERT INTO midcall_chat.conversations VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
            await connection.executemany(insert, values)
            yield dsn, connection.fetchval
        finally:
            await connection.close()


SCHEMAS = "SELECT count(*) FROM pg_namespace WHERE nspname = 'midcall_chat'"
LEFT = "SELECT count(*) FROM midcall_chat.conversations"


async def taken_by(dsn: str, schema: str) -> int:
    """Open a journal: how many conversations of one person it has then."""
    journal = PostgresJournal(dsn, schema=schema, connections=2)
    await journal.open()
    try:
        return len(await journal.conversations.list("ada"))
    finally:
        await journal.close()


@pytest.mark.parametrize("schema", ["midcall", "app"])
@pytest.mark.parametrize("seal", [None, RING], ids=["plain", "sealed"])
def test_a_schema_of_conversations_is_taken_over_by_one_of_many_workers(
    schema: str, seal: KeyRing | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with database(POSTGRES, RUNS, journal_1(schema)) as (dsn, sql):
            journals = [PostgresJournal(dsn, schema=schema, seal=seal, connections=2) for _ in range(5)]
            await asyncio.gather(*(journal.open() for journal in journals))
            await assert_taken(journals[2])
            assert await sql(SCHEMAS) == 0
            found = f"SELECT count(*) FROM {schema}.conversations WHERE position('body' in body) > 0"
            assert await sql(found) == (15 if seal is None else 0)
            for journal in journals:
                await journal.close()

    caplog.set_level(logging.INFO, "midcall")
    drive(main())
    told = [one.getMessage() for one in caplog.records if "midcall_chat" in one.getMessage()]
    assert told == [f"15 conversations of the schema midcall_chat are in the schema {schema} now"]


def test_a_new_schema_leaves_conversations_to_the_journal_that_they_belong_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with database(POSTGRES, RUNS, journal_1("app")) as (dsn, sql):
            assert await taken_by(dsn, "trying_out") == 0
            assert await taken_by(dsn, "midcall") == 0
            assert await sql(LEFT) == 15
            assert len(warned(caplog)) == 2
            assert "midcall_chat" in warned(caplog)[0]
            assert await taken_by(dsn, "app") == 5
            assert await sql(SCHEMAS) == 0

    drive(main())


def test_of_several_old_journals_the_default_one_takes_the_conversations() -> None:
    async def main() -> None:
        async with database(POSTGRES, RUNS, journal_1("app"), journal_1()) as (dsn, sql):
            assert await taken_by(dsn, "app") == 0
            assert await taken_by(dsn, "midcall") == 5
            assert await sql(SCHEMAS) == 0

    drive(main())


def test_of_several_old_journals_none_takes_the_conversations_until_it_is_told_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with database(POSTGRES, RUNS, journal_1("one"), journal_1("two")) as (dsn, sql):
            for schema in ("one", "two", "one", "two"):
                assert await taken_by(dsn, schema) == 0
            assert await sql(LEFT) == 15
            says = [one.partition("start again: ")[2] for one in warned(caplog)]
            assert len(says) == 2
            await sql(says[1])
            assert [await taken_by(dsn, schema) for schema in ("one", "two", "two")] == [0, 5, 5]
            assert await sql(SCHEMAS) == 0

    drive(main())


def test_a_conversation_that_the_journal_has_already_stays_in_the_old_schema_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with database(POSTGRES, RUNS) as (dsn, sql):
            journal = PostgresJournal(dsn)
            await journal.open()
            own = talk("ada", id="id 1", title="own")
            await journal.conversations.save(own)
            await journal.close()
            await sql(warned(caplog)[0].partition("start again: ")[2])
            for _ in range(2):
                assert await taken_by(dsn, "midcall") == 5
            await journal.open()
            assert await journal.conversations.load("id 1", "ada") == own
            await journal.close()
            assert await sql(LEFT) == 15
            assert "1 more were there already" in warned(caplog)[1]
            assert len(warned(caplog)) == 2

    drive(main())


@pytest.mark.parametrize(
    ("made", "left"),
    [
        ("CREATE TABLE midcall_chat.reports AS SELECT 1 AS a", "midcall_chat.reports"),
        (
            "CREATE VIEW public.titles AS SELECT title FROM midcall_chat.conversations LIMIT 1",
            "public.titles",
        ),
    ],
    ids=["in the schema", "depends on it"],
)
def test_what_others_have_made_is_not_dropped_with_the_schema(
    made: str, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with database(POSTGRES, RUNS, journal_1(), made) as (dsn, sql):
            for _ in range(2):
                assert await taken_by(dsn, "midcall") == 5
            assert await sql(f"SELECT count(*) FROM {left}") == 1

    drive(main())
    assert len(warned(caplog)) == 1
    assert "midcall_chat is not removed" in warned(caplog)[0]


def test_a_schema_from_before_there_were_runs_is_taken_over() -> None:
    async def main() -> None:
        async with database(POSTGRES, journal_1()) as (dsn, sql):
            assert await taken_by(dsn, "midcall") == 5
            assert await sql(SCHEMAS) == 0

    drive(main())


def test_a_takeover_that_fails_changes_nothing() -> None:
    async def main() -> None:
        async with database(POSTGRES, RUNS, journal_1()) as (dsn, sql):
            await sql("ALTER TABLE midcall_chat.runs DROP COLUMN seen")
            with pytest.raises(JournalError, match="could not do it"):
                await PostgresJournal(dsn).open()
            assert await sql(LEFT) == 15
            assert await sql("SELECT version FROM midcall.midcall_meta") == 1

    drive(main())

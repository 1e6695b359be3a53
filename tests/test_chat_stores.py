"""Where conversations are kept: one contract, three stores."""

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec
import pytest

import postgres_server
from driving import drive
from midcall.chat import sqlite_store
from midcall.chat import store as store_module
from midcall.chat.conversation import Conversation, Pending, new_conversation
from midcall.chat.messages import ElicitRequest
from midcall.chat.postgres_store import PostgresStore
from midcall.chat.sqlite_store import SqliteStore
from midcall.chat.store import ChatStore, Conflict, MemoryStore
from midcall.errors import JournalError
from midcall.models.base import Message, ToolCall

Make = Callable[[], ChatStore]


@pytest.fixture(params=["memory", "sqlite", "postgres", "pooled"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    match request.param:
        case "memory":
            one = MemoryStore()
            return lambda: one
        case "sqlite":
            return lambda: SqliteStore(tmp_path / "chat.db")
        case kind:
            url = postgres_server.shared()
            return lambda: PostgresStore(url, pooled=kind == "pooled")


@asynccontextmanager
async def opened(make: Make) -> AsyncIterator[ChatStore]:
    store = make()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def talk(person: str | None = "ada") -> Conversation:
    conversation = new_conversation(person)
    conversation.say(
        Message("user", "Book a flight, please, and do not take the one with the long stop in between")
    )
    call = ToolCall("c1", "book", '{"to":"Rome"}')
    conversation.say(Message("assistant", "Let me see", (call,), thinking="hm", extra={"sign": "x"}))
    question = ElicitRequest("c1", "c1", "book", "c1:k:1", "k", "Which?", {"type": "object"}, {"a": [1]})
    conversation.pending["c1"] = Pending(call, "sealed", {"k": question}, {"k": [{"x": 1}]}, {}, 2)
    return conversation


def encoded(conversation: Conversation) -> bytes:
    conversation.version = 1
    return msgspec.json.encode(conversation)


OLD = [talk("ada"), talk(None)]


def test_a_conversation_comes_back_as_it_was_also_to_another_process(make: Make) -> None:
    async def main() -> None:
        conversation = talk()
        async with opened(make) as store:
            await store.save(conversation)
        async with opened(make) as store:
            found = await store.load(conversation.id, "ada")
            assert found == conversation
            assert found is not conversation
            assert found.title == "Book a flight, please, and do not take the one with the l..."
            assert [q.elicit_id for q in found.questions] == ["c1:k:1"]

    drive(main())


def test_of_two_who_change_a_conversation_the_second_is_told(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as store:
            conversation = talk()
            await store.save(conversation)
            one, other = [await store.load(conversation.id, "ada") for _ in range(2)]
            assert one is not None
            assert other is not None
            one.say(Message("tool", "done", tool_call_id="c1"))
            await store.save(one)
            other.say(Message("tool", "also done", tool_call_id="c1"))
            version = other.version
            with pytest.raises(Conflict):
                await store.save(other)
            assert other.version == version
            with pytest.raises(Conflict):
                await store.save(new_with_id(conversation.id))
            found = await store.load(conversation.id, "ada")
            assert found is not None
            assert [m.content for m in found.messages if m.role == "tool"] == ["done"]
            one.pending.clear()
            await store.save(one)

    drive(main())


def new_with_id(id: str) -> Conversation:
    conversation = new_conversation("ada")
    conversation.id = id
    return conversation


def test_whatever_a_person_writes_can_be_kept(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as store:
            conversation = new_conversation("ada")
            conversation.say(Message("user", "one\0two \u2028 \U0001f600"))
            await store.save(conversation)
            found = await store.load(conversation.id, "ada")
            assert found is not None
            assert found.messages == conversation.messages
            assert found.title == "one two \U0001f600"

    drive(main())


def test_tables_that_could_not_be_made_are_made_the_next_time(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        url = postgres_server.shared()
        connection = await asyncpg.connect(url)
        try:
            await connection.execute('CREATE DATABASE "later"')
            await connection.execute('ALTER DATABASE "later" SET default_transaction_read_only = on')
            store = PostgresStore(urlunsplit(urlsplit(url)._replace(path="/later")))
            with pytest.raises(JournalError, match="read-only"):
                await store.open()
            assert "read-only" in caplog.text
            await connection.execute('ALTER DATABASE "later" RESET default_transaction_read_only')
            await store.open()
            await store.save(talk())
            assert len(await store.list("ada")) == 1
            await store.close()
        finally:
            await connection.execute('DROP DATABASE IF EXISTS "later" WITH (FORCE)')
            await connection.close()

    drive(main())


def test_nobody_gets_or_forgets_what_belongs_to_another(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as store:
            own, public = talk("bob"), talk(None)
            await store.save(own)
            await store.save(public)
            for stranger in ("eve", None, ""):
                assert await store.load(own.id, stranger) is None
                assert not await store.delete(own.id, stranger)
                assert own.id not in [one.id for one in await store.list(stranger)]
            assert await store.load(public.id, "bob") is None
            (listed,) = [one for one in await store.list("bob") if one.id == own.id]
            assert (listed.title, listed.waiting, listed.running) == (own.title, True, False)
            assert await store.delete(own.id, "bob")
            assert await store.load(own.id, "bob") is None
            assert not await store.delete(own.id, "bob")

    drive(main())


def test_people_may_choose_the_same_id_and_have_a_conversation_each(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as store:
            talks = [talk(person) for person in ("ada", "eve", None, "")]
            for one in talks:
                one.id = talks[0].id
                await store.save(one)
            for one in talks:
                with pytest.raises(Conflict):
                    await store.save(new_conversation(one.principal, one.id))
            talks[1].say(Message("user", "Mine"))
            await store.save(talks[1])
            assert await store.delete(talks[0].id, "ada")
            found = [await store.load(one.id, one.principal) for one in talks]
            assert found == [None, *talks[1:]]

    drive(main())


BEFORE = "id text PRIMARY KEY, principal text, title text NOT NULL, updated {real} NOT NULL, version {int} NOT NULL,"
BEFORE += " waiting {bool} NOT NULL, run text, body {bytes} NOT NULL"
"""The table of conversations, as it was when an id was one person's alone."""


def test_a_file_from_when_an_id_was_one_persons_alone_is_brought_up_to_date(tmp_path: Path) -> None:
    columns = BEFORE.format(real="REAL", int="INTEGER", bool="INTEGER", bytes="BLOB")
    with contextlib.closing(sqlite3.connect(tmp_path / "chat.db")) as file, file:
        file.execute(f"CREATE TABLE conversations ({columns}) WITHOUT ROWID")
        values = [(one.id, one.principal, one.title, 1.0, 1, 1, None, encoded(one)) for one in OLD]
        file.executemany("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    drive(assert_up_to_date(lambda: SqliteStore(tmp_path / "chat.db")))


def test_a_database_from_when_an_id_was_one_persons_alone_is_brought_up_to_date() -> None:
    columns = BEFORE.format(real="double precision", int="bigint", bool="boolean", bytes="bytea")

    async def main() -> None:
        url = postgres_server.shared()
        connection = await asyncpg.connect(url)
        await connection.execute('CREATE DATABASE "before"')
        old = urlunsplit(urlsplit(url)._replace(path="/before"))
        try:
            before = await asyncpg.connect(old)
            await before.execute("CREATE SCHEMA midcall_chat")
            await before.execute(f"CREATE TABLE midcall_chat.conversations ({columns})")
            values = [(one.id, one.principal, one.title, 1.0, 1, True, None, encoded(one)) for one in OLD]
            insert = "INSERT INTO midcall_chat.conversations VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
            await before.executemany(insert, values)
            await before.close()
            await assert_up_to_date(lambda: PostgresStore(old))
        finally:
            await connection.execute('DROP DATABASE "before" WITH (FORCE)')
            await connection.close()

    drive(main())


async def assert_up_to_date(make: Make) -> None:
    """What was there is there, and what others have under the same ids does not get in its way."""
    for _ in range(2):
        async with opened(make) as one, opened(make) as other:
            for old in OLD:
                assert await one.load(old.id, old.principal) == old
                assert await other.load(old.id, "eve") is None
    async with opened(make) as store:
        for old in OLD:
            await store.save(new_conversation("eve", old.id))
            assert await store.load(old.id, old.principal) == old


def test_the_newest_conversation_is_listed_first(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as store:
            person = new_conversation(None).id
            made = [new_conversation(person) for _ in range(3)]
            for number, conversation in enumerate(made):
                conversation.updated = 1000.0 + number
                conversation.run = "r" if number == 1 else None
                await store.save(conversation)
            made[0].updated = 2000.0
            await store.save(made[0])
            listed = await store.list(person)
            assert [one.id for one in listed] == [made[0].id, made[2].id, made[1].id]
            assert [one.running for one in listed] == [False, False, True]

    drive(main())


def test_lines_of_a_run_are_read_from_any_number_and_never_written_twice(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as store, opened(make) as reader:
            run = new_conversation(None).id
            assert await reader.run(run) is None
            await store.begin_run(run, "c", "ada")
            await store.append(run, 1, [b"1", b"2"], ended=False)
            await store.append(run, 3, [b"3"], ended=False)
            state = await reader.run(run)
            assert state is not None
            assert (state.conversation_id, state.principal, state.lines, state.ended) == (
                "c",
                "ada",
                3,
                False,
            )
            assert await reader.lines(run, 0) == [b"1", b"2", b"3"]
            assert await reader.lines(run, 2) == [b"3"]
            assert await reader.lines(run, 9) == []
            with pytest.raises(Conflict):
                await store.append(run, 3, [b"other"], ended=False)
            await store.append(run, 4, [], ended=True)
            state = await reader.run(run)
            assert state is not None
            assert (state.lines, state.ended) == (3, True)
            assert await reader.lines(run, 2) == [b"3"]
            await store.sweep()
            assert await reader.lines(run, 0) == [b"1", b"2", b"3"]  # it is not old

    drive(main())


def test_lines_may_be_written_again_by_whoever_does_not_know_whether_they_were(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as store:
            run = new_conversation(None).id
            await store.begin_run(run, "c", "ada")
            await store.append(run, 1, [b"1", b"2"], ended=False)
            await store.append(run, 1, [b"1", b"2", b"3"], ended=False)
            await store.append(run, 2, [b"2"], ended=True)
            assert await store.lines(run, 0) == [b"1", b"2", b"3"]
            with pytest.raises(Conflict):
                await store.append(run, 3, [b"other", b"4"], ended=False)
            await store.append(run, 4, [], ended=False)  # by one who does not know that it was taken for dead
            state = await store.run(run)
            assert state is not None
            assert (state.lines, state.ended) == (3, True)

    drive(main())


def test_whatever_goes_wrong_in_the_file_nobody_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(lambda: SqliteStore(tmp_path / "chat.db")) as store:
            with monkeypatch.context() as patched:
                patched.setattr(sqlite_store, "_done", broken)
                told = await asyncio.gather(
                    *(store.load("x", None) for _ in range(3)), return_exceptions=True
                )
            assert [type(one) for one in told] == [MemoryError] * 3
            assert await store.load("x", None) is None

    def broken(*_: object) -> None:
        raise MemoryError

    drive(main())


def test_what_is_written_together_stands_or_falls_alone(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as store:
            runs = [new_conversation(None).id for _ in range(20)]
            talks = [new_conversation("ada") for _ in range(20)]
            await asyncio.gather(*(store.begin_run(run, "c", None) for run in runs))
            await store.append(runs[7], 1, [b"first"], ended=False)
            outcomes = await asyncio.gather(
                *(store.append(run, 1, [b"1", b"2"], ended=True) for run in runs),
                *(store.save(one) for one in talks),
                return_exceptions=True,
            )
            assert [at for at, outcome in enumerate(outcomes) if isinstance(outcome, Exception)] == [7]
            assert isinstance(outcomes[7], Conflict)
            for run in runs:
                assert list(await store.lines(run, 0)) == ([b"first"] if run == runs[7] else [b"1", b"2"])
            found = [await store.load(one.id, "ada") for one in talks]
            assert found == talks

    drive(main())


def test_a_run_is_told_that_it_is_to_stop_and_no_other_is(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as here, opened(make) as there:
            one, other = str(uuid.uuid4()), str(uuid.uuid4())
            for run in (one, other):
                await here.begin_run(run, "c", "ada")
                assert not await here.append(run, 1, (b"1",), ended=False)
            await there.stop_run(one)
            await there.stop_run(one)
            told = await asyncio.gather(*(here.append(run, 2, (), ended=False) for run in (one, other)))
            assert told == [True, False]
            await here.sweep()
            assert await here.append(one, 2, (b"2",), ended=True)

    drive(main())


def test_two_processes_write_at_the_same_time(make: Make) -> None:
    async def main() -> None:
        async with opened(make) as one, opened(make) as other:
            runs = [new_conversation(None).id for _ in range(8)]

            async def write(store: ChatStore, run: str) -> None:
                await store.begin_run(run, "c", None)
                for number in range(1, 11):
                    await store.append(run, number, [b"%d" % number], ended=number == 10)

            await asyncio.gather(*(write((one, other)[n % 2], run) for n, run in enumerate(runs)))
            for run in runs:
                assert await one.lines(run, 0) == [b"%d" % number for number in range(1, 11)]

    drive(main())


def test_what_a_person_has_is_counted(make: Make) -> None:
    async def run() -> None:
        async with opened(make) as store:
            who = uuid.uuid4().hex
            assert await store.held(who) == (0, 0)
            for length in (50_000, 20_000):
                conversation = new_conversation(who)
                conversation.say(Message("user", "x" * length))
                await store.save(conversation)
            count, size = await store.held(who)
            assert count == 2
            assert 70_000 <= size < 75_000
            await store.delete(conversation.id, who)
            assert (await store.held(who))[0] == 1

    drive(run())


def test_in_memory_whoever_has_most_conversations_and_runs_loses_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        monkeypatch.setattr(store_module, "MOST", 30)
        store = MemoryStore()
        first = talk("ann")
        await store.save(first)
        await store.begin_run("run of ann", first.id, "ann")
        others = [talk("bob") for _ in range(40)]
        for number, conversation in enumerate(others):
            await store.save(conversation)
            await store.begin_run(f"run {number}", conversation.id, "bob")
        assert await store.load(first.id, "ann") is not None
        assert await store.run("run of ann") is not None
        assert await store.load(others[-1].id, "bob") is not None
        assert await store.run("run 39") is not None
        assert await store.load(others[0].id, "bob") is None
        assert await store.run("run 0") is None

    drive(run())

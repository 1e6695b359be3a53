"""Conversations in PostgreSQL when it fails: the line is cut, the server stands still, or is gone for a while."""

import asyncio
import contextlib
import json
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import postgres_server
from chatting import Person, Puppet, serving, text
from conversations_contract import changed, talk
from driving import LIMIT, drive, until
from midcall import Hub
from midcall.chat import ChatEngine
from midcall.errors import JournalError
from midcall.journal.durable import DurableCalls
from midcall.journal.postgres import PostgresJournal, reach
from operating import Server
from postgres_cut import NONSENSE, WRITTEN, Cut, cuttable


@asynccontextmanager
async def cut_store(instead: bytes, patience: float) -> AsyncIterator[tuple[Cut, PostgresJournal]]:
    """A journal whose line can be cut when the database has done what was asked for, but not its sign of life."""
    schema = f"cut_{uuid.uuid4().hex}"
    async with cuttable(postgres_server.shared(), WRITTEN, instead) as cut:
        journal = PostgresJournal(cut.dsn, patience=patience, schema=schema)
        journal._line._dsn = postgres_server.shared()
        await journal.open()
        try:
            yield cut, journal
        finally:
            cut.cuts = 0
            await journal.close()


@pytest.fixture(params=[b"", NONSENSE], ids=["cut", "garbled"])
def instead(request: pytest.FixtureRequest) -> bytes:
    """What comes in place of an answer."""
    answer: bytes = request.param
    return answer


def test_whatever_is_asked_of_the_store_when_its_line_is_cut_is_done_once(instead: bytes) -> None:
    async def main() -> None:
        async with cut_store(instead, patience=20) as (cut, journal):
            store = journal.conversations

            async def cutting(work: Awaitable[Any]) -> Any:
                cut.cuts = 1
                done = await work
                assert cut.cuts == 0
                return done

            first, run = talk(), "r"
            await cutting(store.save(first))
            second = changed(first, body=b"Hello")
            await cutting(store.save(second))
            assert await cutting(store.load(first.id, "ada")) == second
            assert [one.id for one in await cutting(store.list("ada"))] == [first.id]
            assert (await cutting(store.held("ada")))[0] == 1
            await cutting(store.begin_run(run, first.id, "ada"))
            assert await cutting(store.append(run, 1, [b"1", b"2"], ended=False)) is False
            await cutting(store.stop_run(run))
            assert await cutting(store.append(run, 3, [b"3"], ended=True)) is True
            state = await cutting(store.run(run))
            assert (state.lines, state.ended) == (3, True)
            assert await cutting(store.lines(run, 1)) == [b"2", b"3"]
            await cutting(journal.sweep())
            await cutting(store.delete(first.id, "ada"))
            assert await store.load(first.id, "ada") is None

    drive(main())


def test_a_line_that_stays_cut_is_a_clear_error_for_everybody_who_waits(instead: bytes) -> None:
    async def main() -> None:
        async with cut_store(instead, patience=0) as (cut, journal):
            store = journal.conversations
            runs = [f"run {n}" for n in range(5)]
            for run in runs:
                await store.begin_run(run, "c", None)
            asks: list[Callable[[], Awaitable[Any]]] = [
                lambda: store.save(talk()),
                lambda: store.load("x", "ada"),
                lambda: store.list("ada"),
                lambda: store.run("x"),
                lambda: store.lines(runs[0], 0),
                lambda: store.stop_run(runs[0]),
                lambda: store.delete("x", "ada"),
                journal.sweep,
            ]
            for ask in asks:
                cut.cuts = 100
                with pytest.raises(JournalError, match="PostgreSQL"):
                    await ask()
            cut.cuts = 100
            told = await asyncio.gather(
                *(store.append(run, 1, [b"1"], ended=False) for run in runs), return_exceptions=True
            )
            assert [type(one).__mro__[1] for one in told] == [JournalError] * 5
            cut.cuts = 0
            # Some of them are written, though nobody was told; written again they are no conflict.
            await asyncio.gather(*(store.append(run, 1, [b"1", b"2"], ended=True) for run in runs))
            assert [await store.lines(run, 0) for run in runs] == [[b"1", b"2"]] * 5

    drive(main())


# --- a server that is gone, or stands still --------------------------------------------------------


@pytest.fixture
def database() -> Iterator[postgres_server.Server]:
    """A server that may be stopped."""
    server = postgres_server.Server().start()
    try:
        yield server
    finally:
        with contextlib.suppress(FileNotFoundError):
            server.thaw()
        server.stop()


def test_of_a_database_that_stands_still_nobody_waits_for_an_answer_who_does_not_want_it(
    database: postgres_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "ANSWERING", 2 * LIMIT)

    async def main() -> None:
        journal = PostgresJournal(database.dsn)
        store = journal.conversations
        await journal.open()
        for _ in range(2):  # on connections that there are, and on new ones
            database.freeze()
            asked = [asyncio.create_task(ask) for ask in (journal.load("x"), store.load("x", None))]
            await asyncio.sleep(0.1)
            for task in asked:
                task.cancel()
            done, _ = await asyncio.wait(asked, timeout=LIMIT)
            assert [task.cancelled() for task in done] == [True, True]
            database.thaw()
        assert await store.load("x", None) is None
        assert await journal.load("x") is None
        database.freeze()
        waits = [journal.load("x"), store.load("x", None), store.append("r", 1, [b"1"], ended=False)]
        left = asyncio.gather(*waits, return_exceptions=True)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(LIMIT):
            await journal.close()
            assert all(isinstance(one, JournalError) for one in await left)

    drive(main(), 3 * LIMIT)


@pytest.mark.parametrize("how", ["halt", "freeze"])
def test_a_server_ends_when_it_is_told_to_whatever_its_database_does(
    database: postgres_server.Server, tmp_path: Path, how: str
) -> None:
    options = ("--journal", database.dsn, "--grace", "0.5")
    server = Server(tmp_path, *options, target="web_app:hub", journal=False)
    server.start()
    told: list[str] = []

    def talk(word: str) -> None:
        with contextlib.suppress(OSError):
            told.append(server.post("/chat", {"message": word}).text)

    turns = [threading.Thread(target=talk, args=(word,)) for word in ("slow", "work", "wizard")]
    for turn in turns:
        turn.start()
    while len(server.get("/chat/conversations").json["conversations"]) < len(turns):
        pass
    getattr(database, how)()
    log = server.stop()  # it ends by itself, with code 0
    for turn in turns:
        turn.join()
    assert "Traceback" not in log
    assert "never retrieved" not in log


# --- an outage is told, once -----------------------------------------------------------------------

TROUBLES = ("reach PostgreSQL", "write to the store of conversations", "sweep the journal")


def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(
    database: postgres_server.Server, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    class Slow(Puppet):
        async def stream(self, request: Any) -> Any:
            async for event in super().stream(request):
                yield event
                await gate.wait()

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]

    def begun() -> list[str]:
        """What was said to fail."""
        return [line.partition(", and tries again: ")[0] for line in lines() if line.startswith("cannot ")]

    def ended() -> list[str]:
        """What was said to be over, in the words in which it began."""
        over = [line.partition(" again, after ")[0] for line in lines() if " again, after " in line]
        return [line.replace("can", "cannot", 1) for line in over]

    async def main() -> None:
        hub = Hub("h")
        hub.durable = DurableCalls(hub, PostgresJournal(database.dsn, patience=0.1))
        engine = ChatEngine(hub, Slow(*["Well."] * 4))
        async with serving(engine) as port:
            people = [Person(port) for _ in range(4)]
            turns = [asyncio.create_task(person.say("go")) for person in people]
            while len(await engine.conversations()) < 4:
                await asyncio.sleep(0.01)
            caplog.clear()
            await asyncio.to_thread(database.halt)
            await until(lambda: "cannot write to the store of conversations" in begun() and len(begun()) >= 2)
            await asyncio.sleep(2)  # in which it is tried a few times
            status, _, data = await people[0].request("GET", "/chat/conversations")
            assert (status, json.loads(data)["error"]["code"]) == (503, "journal_error")
            logged = lines()
            assert len(set(logged)) == len(logged), "nothing is said twice"
            assert all(line.startswith(("PostgreSQL: ", "cannot ")) for line in logged)
            assert set(begun()) <= {f"cannot {what}" for what in TROUBLES}
            assert ended() == []
            await asyncio.to_thread(database.start)
            await until(lambda: len(ended()) == len(begun()))  # also what began only now
            assert sorted(ended()) == sorted(set(begun()))
            gate.set()
            for turn in turns:
                assert text(await turn) == "Well."

    caplog.set_level(logging.INFO, "midcall")
    drive(main())

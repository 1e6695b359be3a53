"""The journal in PostgreSQL: the contract, and what only many workers on a database can do or suffer."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

import postgres_server
from conversations_contract import ConversationsContract
from driving import LIMIT, drive, until
from journal_contract import COMPLETED, WAITING, JournalContract, Store, claimed, new_call, parked, step
from journal_model import JournalModel
from journal_worker import worker
from midcall.journal.contract import (
    Busy,
    Claimed,
    Fenced,
    Gone,
    Journal,
    JournalError,
    Notice,
    Parking,
    Settled,
)
from midcall.journal.postgres import PostgresJournal
from midcall.journal.postgres import reach as reach_module
from midcall.journal.postgres.reach import ANSWERING, SETTINGS, Reach, transaction
from midcall.journal.seal import KeyRing
from postgres_cut import Cut, cuttable
from postgres_pooler import pooler
from trees_contract import TreesContract

RING = KeyRing([b"k" * 32])
_numbers = itertools.count(1)


class PostgresStore:
    """A schema of its own, which several workers share, here in one process."""

    def __init__(self, **options: Any) -> None:
        self.dsn = postgres_server.shared()
        self.schema = f"test_{os.getpid()}_{next(_numbers)}"
        self.options = options
        self.opened: list[PostgresJournal] = []

    async def worker(self, **options: Any) -> PostgresJournal:
        given = {"dsn": self.dsn, "schema": self.schema} | self.options | options
        journal = PostgresJournal(**given)
        await journal.open()
        self.opened.append(journal)
        return journal

    async def die(self, worker: Journal) -> None:
        """PostgreSQL lets go of the lock of a session that has ended."""
        assert isinstance(worker, PostgresJournal)
        session = worker._line._session
        assert session is not None
        worker._line._dsn = "postgresql://nobody@127.0.0.1:9/"
        await session.close()

    async def freeze(self, worker: Journal) -> None:
        """It still holds its lock, but has not stirred for long."""
        assert isinstance(worker, PostgresJournal)
        worker._line._busy = lambda: False
        await self.age(worker.worker)

    async def age(self, worker: str) -> None:
        """Nothing was heard of a worker for long."""
        number = await self.sql(
            f"UPDATE {self.schema}.workers SET seen = 0 WHERE name = '{worker}' RETURNING number"
        )
        await self.sql(f"UPDATE {self.schema}.calls SET updated = 0 WHERE owner = {number}")

    async def seen(self, worker: str) -> float:
        """When a worker last wrote the time."""
        return float(await self.sql(f"SELECT seen FROM {self.schema}.workers WHERE name = '{worker}'"))

    async def sql(self, statement: str) -> Any:
        return await run_sql(self.dsn, statement)

    async def close(self) -> None:
        for journal in self.opened:
            await journal.close()
        await self.sql(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")


async def run_sql(dsn: str, statement: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


@asynccontextmanager
async def postgres_store(**options: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(**options)
    try:
        yield store
    finally:
        await store.close()


class TestPostgresJournal(JournalContract, ConversationsContract, TreesContract):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with postgres_store() as store:
            yield store

    async def age_run(self, journal: Any, run: str, seconds: float) -> None:
        table = journal._sql.load_run.rpartition(" FROM ")[2].partition(" ")[0]
        await journal.reach.run(
            lambda connection, _: connection.execute(
                f"UPDATE {table} SET seen = seen - $2, begun = begun - $2 WHERE id = $1", run, seconds
            )
        )

    async def age_tree(self, journal: Any, tree_id: str, seconds: float) -> None:
        table = journal._sql.updated_trees.rpartition(" FROM ")[2].partition(" ")[0]
        await journal.reach.run(
            lambda connection, _: connection.execute(
                f"UPDATE {table} SET due = due - $2 WHERE id = $1", tree_id, seconds
            )
        )


class TestPostgresAgainstTheModel(JournalModel):
    examples = 15

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with postgres_store() as store:
            yield store


# --- workers in processes of their own ----------------------------------------------------------


def test_a_notice_wakes_who_waits_in_another_process_within_100_ms() -> None:
    async def main() -> None:
        async with postgres_store() as store, worker(dsn=store.dsn, schema=store.schema) as other:
            journal = await store.worker()
            took = LIMIT
            while took >= 0.1:  # on a machine that has other things to do, not each time
                call_id = await parked(journal)
                call = await claimed(journal, call_id, 1)
                waiting = asyncio.create_task(other.do("wait", call_id, 1, LIMIT))
                await asyncio.sleep(0.1)
                settled = time.time()
                await journal.settle(call_id, call.fence, 1, b"second", WAITING)
                answer = await waiting
                assert answer["result"] == "second"
                took = answer["at"] - settled

    drive(main())


def test_the_segment_of_a_killed_process_is_free_at_once() -> None:
    async def main() -> None:
        options = {"lease": 5 * LIMIT}
        async with (
            postgres_store(**options) as store,
            worker(dsn=store.dsn, schema=store.schema, **options) as victim,
        ):
            journal = await store.worker()
            call_id = await parked(journal)
            assert (await victim.do("claim", call_id, 1))["result"]["kind"] == "Claimed"
            assert isinstance(await journal.claim(call_id, 1), Busy)
            victim.kill()
            while isinstance(claim := await journal.claim(call_id, 1), Busy):
                await asyncio.sleep(0.01)
            assert isinstance(claim, Claimed)

    drive(main())


def test_a_frozen_process_loses_its_lease_and_is_fenced_when_it_goes_on() -> None:
    async def main() -> None:
        async with (
            postgres_store(lease=5 * LIMIT) as store,
            worker(dsn=store.dsn, schema=store.schema, lease=1) as frozen,  # it writes the time often
        ):
            journal = await store.worker()
            call_id, untouched = await parked(journal), await parked(journal)
            fence = (await frozen.do("claim", call_id, 1))["result"]["fence"]
            kept = (await frozen.do("claim", untouched, 1))["result"]["fence"]
            await store.age(frozen.name)
            while not await store.seen(frozen.name):  # a worker that lives keeps its lease
                await asyncio.sleep(0.05)
            assert isinstance(await journal.claim(call_id, 1), Busy)
            frozen.freeze()
            assert isinstance(await journal.claim(call_id, 1), Busy)
            while isinstance(claim := await journal.claim(call_id, 1), Busy):
                await store.age(frozen.name)  # what it wrote last may come late
            assert isinstance(claim, Claimed)
            assert {call.id for call in await journal.due()} == {untouched}
            frozen.go_on()
            assert (await frozen.do("append", call_id, fence, ["late"]))["error"] == "Fenced"
            assert (await frozen.do("settle", call_id, fence, 1, "late", "completed"))["error"] == "Fenced"
            assert (await frozen.do("settle", untouched, kept, 1, "done", "completed"))["result"] is None
            await journal.settle(call_id, claim.call.fence, 1, b"result", COMPLETED)
            loaded = await journal.load(call_id)
            assert loaded is not None
            assert [entry.key for entry in loaded[1]] == ["1"]
            assert (await frozen.do("wait", call_id, 1, 1))["result"] == "result"

    drive(main())


# --- the database goes away ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres_server.Server]:
    cluster = postgres_server.Server(durable=True).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def server(cluster: postgres_server.Server) -> Iterator[postgres_server.Server]:
    """A server that waits for the disk, and may be stopped."""
    yield cluster
    cluster.thaw()
    if not cluster.running:
        cluster.start()
    for what in ("SCHEMA IF EXISTS midcall CASCADE", "TABLE IF EXISTS t"):
        asyncio.run(run_sql(cluster.dsn, f"DROP {what}"))


def test_a_crash_of_the_database_loses_nothing_that_was_acknowledged(server: postgres_server.Server) -> None:
    async def main() -> None:
        journals = [PostgresJournal(server.dsn, patience=20) for _ in range(2)]
        for journal in journals:
            await journal.open()
        names = [journal.worker for journal in journals]
        kept: dict[str, list[str]] = {}
        done: set[str] = set()
        over = asyncio.Event()

        async def person(number: int) -> None:
            asks, goes_on = journals[number % 2], journals[number // 2 % 2]
            while not over.is_set():
                call_id = await parked(asks)
                kept[call_id] = ["1"]
                call = await claimed(goes_on, call_id, 1)
                await goes_on.append(call_id, call.fence, [step("2")])
                kept[call_id].append("2")
                await goes_on.settle(call_id, call.fence, 1, b"result", COMPLETED, [step("3")])
                kept[call_id].append("3")
                done.add(call_id)

        async with asyncio.TaskGroup() as people:
            for number in range(12):
                people.create_task(person(number))
            for _ in range(2):
                await until(lambda: done)
                before = len(done)
                await asyncio.to_thread(server.halt, "immediate")
                await asyncio.to_thread(server.start)
                await until(lambda before=before: len(done) >= before + 50)
            over.set()
        assert [journal.worker for journal in journals] == names
        for call_id, keys in kept.items():
            loaded = await journals[0].load(call_id)
            assert loaded is not None
            assert [entry.key for entry in loaded[1]] == keys
            assert loaded[0].status == "completed"
            assert await journals[1].claim(call_id, 1) == Settled(b"result")
        for journal in journals:
            await journal.close()

    drive(main())


def test_while_the_database_is_away_everything_says_so_and_then_goes_on(
    server: postgres_server.Server,
) -> None:
    async def main() -> None:
        journal = PostgresJournal(server.dsn, patience=0.3)
        await journal.open()
        name, call = journal.worker, new_call()
        call_id = await parked(journal)
        await journal.create(call)
        waiting = asyncio.create_task(journal.wait(call.id, 0, 5 * LIMIT))
        await asyncio.to_thread(server.halt)
        for ask in (
            lambda: journal.load(call.id),
            lambda: journal.claim(call_id, 1),
            lambda: journal.create(new_call()),
            lambda: journal.append(call.id, call.fence, [step("1")]),
            lambda: journal.settle(call.id, call.fence, 0, b"", COMPLETED),
            journal.due,
        ):
            with pytest.raises(JournalError, match="PostgreSQL") as raised:
                await ask()
            assert "password" not in str(raised.value)
            assert raised.value.recoverable
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(LIMIT):
            while True:
                with contextlib.suppress(JournalError):
                    await journal.append(call.id, call.fence, [step("1")])
                    break
                await asyncio.sleep(0.05)
        assert journal.worker == name
        if waiting.done():  # it was told that the database is away
            assert isinstance(waiting.exception(), JournalError)
            waiting = asyncio.create_task(journal.wait(call.id, 0, 5 * LIMIT))
        await journal.settle(call.id, call.fence, 0, b"result", COMPLETED)
        assert await waiting == b"result"
        await claimed(journal, call_id, 1)
        await journal.close()

    drive(main())


def test_workers_that_come_back_together_do_not_take_each_other_for_dead(
    server: postgres_server.Server,
) -> None:
    async def main() -> None:
        quick, slow = [PostgresJournal(server.dsn, lease=5 * LIMIT) for _ in range(2)]
        for journal in (quick, slow):
            await journal.open()
        call = new_call()
        await slow.create(call)
        line, slow._line._dsn = slow._line._dsn, "postgresql://nobody@127.0.0.1:9/"
        await asyncio.to_thread(server.halt)
        await asyncio.to_thread(server.start)
        assert list(await quick.due()) == []
        assert isinstance(await quick.claim(call.id, 0), Busy)
        slow._line._dsn = line
        await until(lambda: not slow._line._broken.is_set())  # it tries again
        await slow.append(call.id, call.fence, [step("1")])
        await until(lambda: quick._line._since is not None and not quick._line._broken.is_set())
        quick._line._since = None  # long ago: whoever has no lock now is gone
        assert quick._line.trusted
        assert isinstance(await quick.claim(call.id, 0), Busy)
        for journal in (quick, slow):
            await journal.close()

    drive(main())


# --- the line breaks when it was done already ----------------------------------------------------


@asynccontextmanager
async def cut_line(patience: float) -> AsyncIterator[tuple[Cut, PostgresJournal, PostgresJournal]]:
    """A worker whose connections can be cut, but not its sign of life; and another one."""
    async with postgres_store() as store, cuttable(store.dsn) as cut:
        journal = PostgresJournal(cut.dsn, schema=store.schema, patience=patience)
        journal._line._dsn = store.dsn
        await journal.open()
        store.opened.append(journal)
        for _ in range(2):  # every statement is prepared
            call_id = await parked(journal)
            call = await claimed(journal, call_id, 1)
            await journal.append(call_id, call.fence, [step("2")])
            await journal.settle(call_id, call.fence, 1, b"", COMPLETED)
        yield cut, journal, await store.worker()


def test_what_was_done_when_the_line_broke_is_done_once() -> None:
    async def main() -> None:
        async with cut_line(patience=5) as (cut, journal, other):
            cut.cuts = 1
            call = new_call(idempotency_key="k")
            assert await journal.create(call) is None
            assert cut.cuts == 0
            assert isinstance(await other.claim(call.id, 0), Busy)
            cut.cuts = 1
            await journal.settle(call.id, call.fence, 0, b"asked", WAITING, [step("1")])
            assert cut.cuts == 0
            assert await other.claim(call.id, 0) == Settled(b"asked")
            with pytest.raises(Fenced):
                await journal.settle(call.id, call.fence, 0, b"asked", WAITING)
            cut.cuts = 1
            claim = await journal.claim(call.id, 1)
            assert isinstance(claim, Claimed)
            assert cut.cuts == 0
            assert isinstance(await other.claim(call.id, 1), Busy)
            cut.cuts = 1
            await journal.append(call.id, claim.call.fence, [step("2"), step("3")])
            assert cut.cuts == 0
            cut.cuts = 1
            await journal.release(call.id, claim.call.fence)
            assert cut.cuts == 0
            loaded = await other.load(call.id)
            assert loaded is not None
            assert [entry.key for entry in loaded[1]] == ["1", "2", "3"]

    drive(main())


def test_what_is_left_in_doubt_is_taken_back() -> None:
    async def main() -> None:
        async with cut_line(patience=0) as (cut, journal, other):
            call_id, call = await parked(journal), new_call()
            cut.cuts = 1
            with pytest.raises(JournalError):
                await journal.claim(call_id, 1)
            async with asyncio.timeout(LIMIT):
                while isinstance(claim := await other.claim(call_id, 1), Busy):
                    await asyncio.sleep(0.02)
            assert isinstance(claim, Claimed)
            assert claim.call.claims == 1
            cut.cuts = 1
            with pytest.raises(JournalError):
                await journal.create(call)
            async with asyncio.timeout(LIMIT):
                while await other.load(call.id):
                    await asyncio.sleep(0.02)

    drive(main())


# --- poolers ------------------------------------------------------------------------------------


def test_behind_a_pooler_of_transactions_it_says_that_it_cannot() -> None:
    async def main() -> None:
        async with pooler(postgres_server.shared()) as pooled:
            journal = PostgresJournal(pooled)
            with pytest.raises(JournalError, match=r"pooler .* `direct=`") as raised:
                await journal.open()
            assert not raised.value.recoverable

    drive(main())


class TestSealedPostgresJournalBehindAPooler(TestPostgresJournal):
    """With a session of its own for what needs one, it works there too; and it can be sealed."""

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with pooler(postgres_server.shared()) as pooled, postgres_store() as store:
            # A busy machine keeps two hundred writes at once waiting for a connection.
            store.options = {"direct": store.dsn, "dsn": pooled, "seal": RING, "patience": 20}
            yield store


# --- opening ------------------------------------------------------------------------------------


def test_of_twenty_workers_that_start_at_once_one_makes_the_tables() -> None:
    async def main() -> None:
        async with postgres_store(connections=2) as store:
            journals = await asyncio.gather(*(store.worker() for _ in range(20)))
            assert len({journal.worker for journal in journals}) == 20
            assert await store.sql(f"SELECT count(*) FROM {store.schema}.midcall_meta") == 1
            call_id = await parked(journals[0])
            claims = await asyncio.gather(*(journal.claim(call_id, 1) for journal in journals))
            assert sorted(type(claim).__name__ for claim in claims) == ["Busy"] * 19 + ["Claimed"]

    drive(main())


def test_tables_from_before_others_could_be_asked_are_brought_up_to_date() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            call_id = await parked(await store.worker())
            schema = store.schema
            await store.sql(f"ALTER TABLE {schema}.calls DROP COLUMN addressed")
            await store.sql(f"DROP TABLE {schema}.notices")
            await store.sql(f"UPDATE {schema}.midcall_meta SET version = 3")
            journal = await store.worker()
            assert [call.id for call in (await journal.list()).calls] == [call_id]
            asks_others = Parking(status="waiting", addressed=True, notices=[Notice("to:n", call_id, 1.0)])
            await journal.append(call_id, 0, [], asks_others)
            assert [call.id for call in (await journal.list(addressed=True)).calls] == [call_id]
            assert [one.id for one in await journal.take_notices("to", 10, 60)] == ["to:n"]

    drive(main())


def test_tables_of_a_newer_version_are_left_alone() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            await store.worker()
            await store.sql(f"UPDATE {store.schema}.midcall_meta SET version = 99")
            with pytest.raises(JournalError, match=r"newer midcall \(its format is 99"):
                await store.worker()

    drive(main())


def test_an_ordinary_user_who_owns_the_schema_has_rights_enough() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            user = f"{store.schema}_user"
            await store.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'p'")
            own = f"postgresql://{user}:p@{store.dsn.partition('@')[2]}"
            with pytest.raises(JournalError, match="does not let this user"):
                await store.worker(dsn=own)
            await store.sql(f"CREATE SCHEMA {store.schema} AUTHORIZATION {user}")
            journal = await store.worker(dsn=own)
            await claimed(journal, await parked(journal), 1)
            await journal.close()
            await store.sql(f"DROP OWNED BY {user} CASCADE")
            await store.sql(f"DROP ROLE {user}")

    drive(main())


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("postgresql://nobody:wrong@{place}/postgres", "does not know this user"),
        ("postgresql://{login}@{place}/nowhere", "no such database"),
        ("postgresql://{login}@127.0.0.1:9/postgres", "cannot be reached"),
    ],
)
def test_what_cannot_be_opened_says_why_without_the_password(dsn: str, said: str) -> None:
    login, _, rest = postgres_server.shared().removeprefix("postgresql://").partition("@")

    async def main() -> None:
        journal = PostgresJournal(dsn.format(login=login, place=rest.partition("/")[0]), patience=0)
        with pytest.raises(JournalError, match=said) as raised:
            await journal.open()
        assert login.partition(":")[2] not in str(raised.value)

    drive(main())


def test_what_is_written_is_durable_also_where_the_server_is_hasty() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            user = f"{store.schema}_user"
            await store.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'p'")
            await store.sql(f"ALTER ROLE {user} SET synchronous_commit = off")
            await store.sql(f"CREATE SCHEMA {store.schema} AUTHORIZATION {user}")
            journal = await store.worker(dsn=f"postgresql://{user}:p@{store.dsn.partition('@')[2]}")
            setting = await journal.reach.run(lambda session, _: session.fetchval("SHOW synchronous_commit"))
            assert setting == "on"
            await journal.close()
            await store.sql(f"DROP OWNED BY {user} CASCADE")
            await store.sql(f"DROP ROLE {user}")

    drive(main())


def test_the_name_of_a_schema_is_checked() -> None:
    for name in ("", "Upper", "a; DROP TABLE x", "pg_own", 'a"b', "x" * 60):
        with pytest.raises(ValueError, match="schema"):
            PostgresJournal("postgresql://x", schema=name)


# --- running ------------------------------------------------------------------------------------


def test_who_finds_no_free_connection_waits_for_one() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            journal = await store.worker(connections=1)
            ids = await asyncio.gather(*(parked(journal) for _ in range(50)))
            loaded = await asyncio.gather(*(journal.load(call_id) for call_id in ids))
            assert all(loaded)
            claims = await asyncio.gather(*(journal.claim(call_id, 1) for call_id in ids))
            assert all(isinstance(claim, Claimed) for claim in claims)

    drive(main())


@pytest.mark.parametrize("pooled", [True, False])
def test_who_gives_up_in_the_middle_of_a_transaction_is_not_kept(
    server: postgres_server.Server, pooled: bool
) -> None:
    async def main() -> None:
        reach = Reach(server.dsn, connections=2, patience=60, pooled=pooled)
        await reach.open()

        async def work(connection: Any, again: bool) -> None:
            async with transaction(connection):
                await connection.execute("SELECT 1")
                server.freeze()
                begun.set()
                await connection.execute("SELECT 1")

        for _ in range(3):
            begun = asyncio.Event()
            task = asyncio.create_task(reach.run(work))
            await begun.wait()
            await asyncio.sleep(0)  # it has asked
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled(), "and it is not tried again"
            server.thaw()
        async with asyncio.timeout(ANSWERING * 2 / 3):
            await reach.close()

    try:
        drive(main())
    finally:
        server.thaw()


def test_who_stands_still_in_the_middle_of_a_transaction_keeps_nobody_else_from_it(
    server: postgres_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS, "idle_in_transaction_session_timeout", "200ms")

    async def main() -> None:
        one, other = (Reach(server.dsn, connections=1, patience=60, pooled=True) for _ in range(2))
        for reach in (one, other):
            await reach.open()
        await other.run(lambda connection, _: connection.execute("CREATE TABLE t AS SELECT 1 AS n"))
        stood = asyncio.Event()

        async def add(connection: Any, again: bool) -> None:
            await connection.execute("UPDATE t SET n = n + 1")

        async def stand_still(connection: Any, again: bool) -> bool:
            await add(connection, again)
            if not stood.is_set():  # a busy machine may stand still by itself
                stood.set()
                await other.run(add)
            return again

        assert await one.run(stand_still), "it was tried again"
        assert await one.run(lambda connection, _: connection.fetchval("SELECT n FROM t")) == 3
        for reach in (one, other):
            await reach.close()

    drive(main())


def test_who_finds_all_connections_standing_still_is_told_after_a_while(
    server: postgres_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach_module, "CONNECTING", 0.2)

    async def main() -> None:
        reach = Reach(server.dsn, connections=1, patience=0.2, pooled=False)
        await reach.open()
        held, go_on = asyncio.Event(), asyncio.Event()

        async def hold(connection: Any, again: bool) -> int:
            held.set()
            await go_on.wait()
            return int(await connection.fetchval("SELECT 1"))

        holding = asyncio.ensure_future(reach.run(hold))
        await held.wait()
        with pytest.raises(JournalError):
            await reach.run(lambda connection, _: connection.fetchval("SELECT 2"))
        monkeypatch.undo()
        go_on.set()
        assert await holding == 1
        assert await reach.run(lambda connection, _: connection.fetchval("SELECT 2")) == 2
        await reach.close()

    drive(main())


def test_what_cannot_be_written_does_not_keep_others_from_it() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            journal = await store.worker()
            calls = [new_call(name="no\0name" if n % 4 == 0 else "name") for n in range(20)]
            given = await asyncio.gather(*(journal.create(call) for call in calls), return_exceptions=True)
            for call, answer in zip(calls, given, strict=True):
                if "\0" in call.name:
                    assert isinstance(answer, JournalError)
                    assert await journal.claim(call.id, 0) == Gone()
                else:
                    assert answer is None
                    await journal.settle(call.id, call.fence, 0, b"", COMPLETED)

    drive(main())


def test_workers_that_are_gone_are_cleared_away_when_nothing_of_theirs_is_left() -> None:
    async def main() -> None:
        async with postgres_store(lease=5 * LIMIT) as store:
            idle, dead, journal = [await store.worker() for _ in range(3)]
            call = new_call()
            await dead.create(call)
            await store.die(dead)
            for worker in (idle, dead):
                await store.age(worker.worker)
            await journal.sweep()
            workers = f"SELECT count(*) FROM {store.schema}.workers"
            assert await store.sql(workers) == 3
            taken = await claimed(journal, call.id, 0)
            assert taken.owner == journal.worker
            await journal.sweep()
            assert await store.sql(workers) == 2
            assert isinstance(await idle.claim(call.id, 0), Busy)

    drive(main())


def test_a_worker_that_was_cleared_away_goes_on_under_a_new_name() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            journal, other = await store.worker(), await store.worker()
            name, call = journal.worker, new_call()
            await journal.create(call)
            await store.sql(f"DELETE FROM {store.schema}.workers WHERE name = '{name}'")
            session = journal._line._session
            assert session is not None
            session.terminate()
            async with asyncio.timeout(LIMIT):
                while journal.worker == name:
                    await asyncio.sleep(0.01)
            with pytest.raises(Fenced):
                await journal.append(call.id, call.fence, [step("1")])
            assert (await claimed(other, call.id, 0)).owner == other.worker
            assert (await claimed(journal, await parked(journal), 1)).owner == journal.worker

    drive(main())


def test_a_row_that_somebody_keeps_locked_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            journal = await store.worker(patience=0.5)
            held, free = await parked(journal), await parked(journal)
            connection = await asyncpg.connect(store.dsn)
            async with connection.transaction():
                await connection.execute(f"SELECT FROM {store.schema}.calls WHERE id = $1 FOR UPDATE", held)
                claims = await asyncio.gather(
                    journal.claim(held, 1), journal.claim(free, 1), return_exceptions=True
                )
            assert isinstance(claims[0], JournalError)
            assert "locked" in str(claims[0])
            assert isinstance(claims[1], Claimed)
            await connection.close()
            await claimed(journal, held, 1)

    drive(main())


def test_what_is_not_encrypted_is_refused_in_an_encrypted_journal() -> None:
    async def main() -> None:
        async with postgres_store() as store:
            plain, sealed = await store.worker(), await store.worker(seal=RING)
            call_id = await parked(plain)
            with pytest.raises(JournalError, match="not encrypted"):
                await sealed.load(call_id)
            with pytest.raises(JournalError, match="not encrypted") as raised:
                await store.worker(seal=RING)
            assert not raised.value.recoverable
            both = await store.worker(seal=RING, plain_too=True)
            assert await both.load(call_id) is not None
            got: list[bytes] = []
            sealed.on_post = got.append
            assert await plain.post(sealed.worker, b"planted")
            assert await both.post(sealed.worker, b"sealed")
            async with asyncio.timeout(ANSWERING * 2 / 3):
                while not got:
                    await asyncio.sleep(0.01)
            assert got == [b"sealed"]

    drive(main())


def test_what_is_posted_arrives_once_and_in_order_also_when_it_is_large() -> None:
    async def main() -> None:
        async with postgres_store(seal=RING) as store:
            sender, reader = await store.worker(), await store.worker()
            got: list[bytes] = []
            reader.on_post = got.append
            sent = [b"%d " % n + b"x" * (20_000 if n % 10 == 0 else 0) for n in range(100)]
            assert all(await asyncio.gather(*(sender.post(reader.worker, one) for one in sent[:50])))
            session = reader._line._session
            assert session is not None
            session.terminate()  # what comes while it is away waits for it
            for one in sent[50:]:
                assert await sender.post(reader.worker, one) in (True, False)
            assert not await sender.post("nobody", b"x")
            async with asyncio.timeout(LIMIT):
                while len(got) < 50 or reader._line._session in (None, session):
                    await asyncio.sleep(0.01)
            assert got == sorted(got, key=sent.index)
            assert got[:50] == sent[:50]
            name = reader.worker
            await reader.close()
            assert not await sender.post(name, b"late")
            assert await store.sql(f"SELECT count(*) FROM {store.schema}.posts") == 0

    drive(main())

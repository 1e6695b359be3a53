"""`--engine dbos`: segments are workflows of DBOS on the PostgreSQL of the journal, and nothing else is."""

import base64
import json
import pickle
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import postgres_server
from crash.calls import call_schedule
from crash.chats import chat_schedule
from crash.stage import Schedule, Stage
from driving import drive
from midcall.journal.contract import Claimed
from midcall.journal.dbos import with_time_limit
from midcall.journal.postgres import PostgresJournal
from operating import Server, accept, midcall, text_of, until
from peers import HERE

ANSWERS = ({"name": accept(text="Ada")}, {"colour": accept(choice="red")}, {"sure": accept(confirmed=True)})


class Database:
    """A database of its own, and what DBOS has written there."""

    def __init__(self, template: str) -> None:
        self.name = f"dbos_{uuid.uuid4().hex[:12]}"
        shared = postgres_server.shared()
        with psycopg.connect(shared, autocommit=True) as line:
            line.execute(f"CREATE DATABASE {self.name} TEMPLATE {template}")
        self.url = f"{shared.rpartition('/')[0]}/{self.name}"

    def ask(self, statement: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as line:
            done = line.execute(statement, values)
            return done.fetchall() if done.description else []

    def workflows(self) -> dict[str, tuple[str, str]]:
        """The state and the executor of each workflow, by its segment."""
        found = self.ask(
            "SELECT workflow_uuid, status, executor_id FROM midcall_dbos.workflow_status ORDER BY 1"
        )
        return {id.partition(":")[2]: (status, executor) for id, status, executor in found}

    def states(self) -> list[str]:
        return [status for status, _ in self.workflows().values()]


@pytest.fixture(scope="module")
def template() -> str:
    """A database with the tables of DBOS, which take their time to make."""
    database = Database("template1")
    code = f"from dbos import DBOS; DBOS.migrate({database.url!r}, schema='midcall_dbos')"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return database.name


@pytest.fixture
def database(template: str) -> Database:
    return Database(template)


@pytest.fixture
def servers(database: Database, tmp_path: Path) -> Iterator[list[Server]]:
    """Two workers, of which the first is started."""
    options = ("--journal", database.url, "--engine", "dbos", "--grace", "0.2")
    hold = str(tmp_path / "hold")
    both = [Server(tmp_path, *options, target="dbos_app:hub", journal=False, HOLD=hold) for _ in range(2)]
    with both[0]:
        yield both
        if both[1]._process is not None:
            both[1].stop()


def hold(server: Server) -> Path:
    path = server.ledger.parent / "hold"
    path.touch()
    return path


def begin_and_die(server: Server) -> Any:
    """Kill a worker in the middle of a segment. Gives what was asked before."""
    path = hold(server)
    asked = server.call("slow.held")
    with ThreadPoolExecutor() as threads:
        cut_off = threads.submit(server.call, "slow.held", state=asked, answers=ANSWERS[0])
        until(path.with_suffix(".reached").exists)  # what it did is in the journal
        server.kill()
        assert cut_off.exception() is not None
    path.unlink()
    return asked


def test_each_segment_is_one_workflow_and_none_waits_for_a_person(
    database: Database, servers: list[Server]
) -> None:
    one, other = servers
    other.start()
    told = one.call("durable.wizard")
    assert database.workflows() == {}  # the first segment is in no journal before it asks
    for number, answers in enumerate(ANSWERS, 1):
        told = servers[number % 2].call("durable.wizard", state=told, answers=answers)
        until(lambda number=number: database.states() == ["SUCCESS"] * number)
    assert text_of(told) == "Ada red True ONE TWO THREE FOUR"
    assert one.effects() == ["one", "two", "three", "four"]
    assert list(database.workflows()) == ["1:1", "2:2", "3:3"]
    assert len({executor for _, executor in database.workflows().values()}) == 2


def test_the_segment_of_a_killed_worker_is_finished_by_recovery_without_anybody_asking(
    database: Database, servers: list[Server]
) -> None:
    one, other = servers
    asked = begin_and_die(one)
    ((state, executor),) = database.workflows().values()
    assert state == "PENDING"
    other.start()
    until(lambda: database.states() == ["SUCCESS"])
    assert list(database.workflows()) == ["1:1"]  # the same one, elsewhere
    assert database.workflows()["1:1"][1] != executor
    assert other.effects() == ["begun", "ended"]
    assert text_of(other.call("slow.held", state=asked, answers=ANSWERS[0])) == "Ada BEGUN ENDED"
    assert database.states() == ["SUCCESS"]


def test_what_the_tables_of_dbos_hold_is_data_and_never_run(
    database: Database, servers: list[Server], tmp_path: Path
) -> None:
    """DBOS itself would unpickle whatever a row says is pickled."""
    one, other = servers
    begin_and_die(one)
    ((kept,),) = database.ask("SELECT serialization FROM midcall_dbos.workflow_status")
    assert kept == "portable_json"
    planted = base64.b64encode(pickle.dumps(_Planted(str(tmp_path / "ran")))).decode()
    database.ask("UPDATE midcall_dbos.workflow_status SET serialization = 'py_pickle', inputs = %s", planted)
    other.start()
    until(lambda: other.effects() == ["begun", "ended"])  # by the journal, which is not DBOS' own
    assert not (tmp_path / "ran").exists()


class _Planted:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self._path),))


def test_a_retry_does_not_wait_for_recovery(database: Database, servers: list[Server]) -> None:
    one, other = servers
    other.start()
    asked = begin_and_die(one)
    assert text_of(other.call("slow.held", state=asked, answers=ANSWERS[0])) == "Ada BEGUN ENDED"
    assert other.effects() == ["begun", "ended"]
    until(lambda: set(database.states()) == {"SUCCESS"})


def test_the_same_answer_twice_at_once_is_one_workflow(database: Database, servers: list[Server]) -> None:
    one, other = servers
    other.start()
    asked = one.call("durable.wizard")
    with ThreadPoolExecutor(8) as threads:
        sent = [
            threads.submit(server.call, "durable.wizard", state=asked, answers=ANSWERS[0])
            for server in servers * 4
        ]
        told = [json.dumps(one.result(), sort_keys=True) for one in sent]
    assert len(set(told)) == 1
    assert one.effects() == ["one", "two"]
    until(lambda: database.states() == ["SUCCESS"])


def test_what_a_worker_cannot_finish_before_it_stops_goes_on_elsewhere(
    database: Database, servers: list[Server]
) -> None:
    one, other = servers
    other.start()
    path = hold(one)
    asked = one.call("slow.held")
    with ThreadPoolExecutor() as threads:
        sent = threads.submit(one.call, "slow.held", state=asked, answers=ANSWERS[0])
        until(path.with_suffix(".reached").exists)  # what it did is in the journal
        log = one.stop()
        assert "requestState" in sent.result()
    assert "Traceback" not in log
    assert "dbos" not in log.replace(database.name, "")
    path.unlink()
    until(lambda: one.effects() == ["begun", "ended"])
    until(lambda: set(database.states()) == {"SUCCESS"})
    assert list(database.workflows()) == ["1:1"]


def test_a_question_that_times_out_begins_a_workflow_too(database: Database, servers: list[Server]) -> None:
    one, _ = servers
    one.call("slow.patient")
    until(lambda: one.effects() == ["after"])
    until(lambda: database.states() == ["SUCCESS"])


def test_a_segment_that_was_claimed_but_has_no_workflow_goes_on(
    database: Database, servers: list[Server]
) -> None:
    """Its worker died between the two."""
    one, other = servers
    one.call("durable.wizard")
    one.stop()

    async def claim() -> None:
        journal = PostgresJournal(database.url)
        await journal.open()
        (call,) = (await journal.list()).calls
        assert isinstance(await journal.claim(call.id, call.segment), Claimed)
        await journal.close()

    drive(claim())
    assert database.workflows() == {}
    other.start()
    until(lambda: database.states() == ["SUCCESS"])
    assert database.ask("SELECT status FROM midcall.calls") == [("waiting",)]  # it asks again


def test_the_workflow_of_a_segment_that_is_settled_just_ends(
    database: Database, servers: list[Server]
) -> None:
    """Its worker died between the two."""
    one, _ = servers
    one.call("durable.wizard", state=one.call("durable.wizard"), answers=ANSWERS[0])
    until(lambda: database.states() == ["SUCCESS"])
    database.ask("UPDATE midcall_dbos.workflow_status SET status = 'PENDING', executor_id = 'long-gone'")
    until(lambda: database.states() == ["SUCCESS"])
    assert one.effects() == ["one", "two"]
    assert database.ask("SELECT status, segment FROM midcall.calls") == [("waiting", 2)]


def test_workflows_that_have_ended_are_not_kept_for_ever(database: Database, servers: list[Server]) -> None:
    one, other = servers
    one.call("durable.wizard", state=one.call("durable.wizard"), answers=ANSWERS[0])
    until(lambda: database.states() == ["SUCCESS"])
    database.ask("UPDATE midcall_dbos.workflow_status SET created_at = created_at - 3700 * 1000")
    other.start()
    until(lambda: database.states() == [])


def test_a_frozen_worker_does_not_act_when_it_wakes(database: Database, tmp_path: Path) -> None:
    more = {"HOLD": str(tmp_path / "hold"), "STORE": database.url}
    with Server(tmp_path, target="dbos_app:hub", journal=False, **more) as one:
        path = hold(one)
        asked = one.call("slow.held")
        with ThreadPoolExecutor() as threads:
            sent = threads.submit(one.call, "slow.held", state=asked, answers=ANSWERS[0])
            until(path.with_suffix(".reached").exists)  # what it did is in the journal
            assert one._process is not None
            one._process.send_signal(signal.SIGSTOP)
            with Server(tmp_path, target="dbos_app:hub", journal=False, **more) as other:
                path.unlink()
                try:
                    until(lambda: one.effects() == ["begun", "ended"])
                finally:
                    one._process.send_signal(signal.SIGCONT)
                sent.result()
                until(lambda: set(database.states()) == {"SUCCESS"})
                assert text_of(other.call("slow.held", state=asked, answers=ANSWERS[0])) == "Ada BEGUN ENDED"
        assert one.effects() == ["begun", "ended"]


def test_an_executor_that_is_stopped_in_the_middle_of_a_transaction_loses_its_locks(
    database: Database,
) -> None:
    with psycopg.connect(with_time_limit(database.url)) as line:
        (limit,) = line.execute("SHOW idle_in_transaction_session_timeout").fetchone() or ("",)
        assert limit == "15s"
    kept = with_time_limit(f"{database.url}?options=-c%20jit%3Doff")
    with psycopg.connect(kept) as line:
        assert line.execute("SHOW jit").fetchone() == ("off",)


@pytest.mark.parametrize(
    "schedule", [call_schedule(3), call_schedule(14), chat_schedule(1), chat_schedule(17)], ids=str
)
def test_calls_and_conversations_survive_crashes(
    database: Database, tmp_path: Path, schedule: Schedule
) -> None:
    stage = Stage("dbos", tmp_path, database.url)
    try:
        assert stage.play(schedule).crashes
    finally:
        stage.close()


def test_the_engine_needs_a_journal_in_postgresql(tmp_path: Path) -> None:
    done = midcall("serve", "durable_app:hub", "--engine", "dbos", "--journal", str(tmp_path / "journal.db"))
    assert done.returncode == 2
    assert "--engine dbos needs a journal in PostgreSQL" in done.stderr


def test_the_engine_needs_the_package(tmp_path: Path) -> None:
    line = ["serve", "durable_app:hub", "--engine", "dbos", "--journal", "postgresql://x@127.0.0.1/x"]
    code = f"import sys; sys.modules['dbos'] = None; from midcall.cli import main; sys.exit(main({line}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE, check=False)
    assert done.returncode == 2
    assert "pip install 'midcall[dbos]'" in done.stderr

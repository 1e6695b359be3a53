"""Names of workers: callers, journals and other workers send them, and they become paths."""

import asyncio
import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import begin, workers
from driving import drive
from midcall.journal.contract import CallRecord, Claimed, is_worker_name
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import LEASE, SqliteJournal
from midcall.journal.sqlite.workers import LifeSign, WorkerSockets

UP = ("..", "../..", ".", "", "/", "//", "~", "\\", "..\\..", "%2e%2e", "a/../..", "\0", "é", "x\n", " ")


def hostile(victim: Path) -> st.SearchStrategy[str]:
    """Names of files, in every disguise, and whatever else can be typed."""
    relative = st.builds(lambda up, mid: f"{up}/{mid}{victim.name}", st.sampled_from(UP), st.sampled_from(UP))
    absolute = st.builds(lambda lead, tail: f"{lead}{victim}{tail}", st.sampled_from(UP), st.sampled_from(UP))
    return relative | absolute | st.text(max_size=300) | st.sampled_from(UP) | st.just("a" * 5000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    (folder / "victim").write_text("precious")
    return folder


def is_unharmed(folder: Path) -> bool:
    return (folder / "victim").read_text() == "precious"


def test_a_hostile_name_opens_and_removes_nothing(folder: Path) -> None:
    signs = folder / "workers"
    sign = LifeSign(signs, "1-a", LEASE)
    sign.start()
    try:

        @given(name=hostile(folder / "victim"))
        def check(name: str) -> None:
            before = sorted(signs.iterdir())
            assert not sign.alive(name) or name == "1-a"
            assert is_unharmed(folder)
            assert sorted(signs.iterdir()) == before

        check()
    finally:
        sign.stop()


def test_nothing_is_posted_to_a_hostile_name(folder: Path) -> None:
    async def run() -> None:
        journals = (SqliteJournal(folder / "journal.db"), MemoryJournal())
        loop = asyncio.get_running_loop()
        for journal in journals:
            await journal.open()

        @given(name=hostile(folder / "victim"))
        def check(name: str) -> None:
            for journal in journals:
                posting = asyncio.run_coroutine_threadsafe(journal.post(name, b"hello"), loop)
                assert posting.result() is False
            assert is_unharmed(folder)

        await asyncio.to_thread(check)
        for journal in journals:
            await journal.close()

    drive(run())


@pytest.mark.parametrize("verb", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("way", ["relative", "absolute", "socket"])
def test_the_id_of_a_session_removes_no_file(tmp_path: Path, verb: str, way: str) -> None:
    victim = tmp_path / "victim"
    if way == "socket":  # what cannot be connected to was removed too
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
            dead.bind(str(victim))
    else:
        victim.write_text("precious")

    async def run() -> None:
        async with workers("sqlite", tmp_path, 1) as balancer:
            name = f"../{victim.name}" if way == "relative" else str(victim)
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"} if verb == "POST" else None
            response = await balancer.visit(verb, ping, mcp_session_id=f"{name}.x")
            assert response.task is not None
            await response.task
            assert response.status == 404

    drive(run())
    assert victim.exists()


def test_names_that_workers_have_are_names(tmp_path: Path) -> None:
    from midcall.journal.postgres.workers import worker_name

    for name in (SqliteJournal(tmp_path / "j.db").worker, MemoryJournal().worker, worker_name()):
        assert is_worker_name(name)


def test_the_name_of_a_host_of_any_length_gives_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from midcall.journal.postgres.workers import worker_name

    monkeypatch.setattr(socket, "gethostname", lambda: "höst.example." * 30)
    assert is_worker_name(worker_name())


def test_to_ask_whether_a_worker_lives_removes_nothing(tmp_path: Path) -> None:
    mine, other = (LifeSign(tmp_path / "workers", name, LEASE) for name in ("1-a", "3-c"))
    mine.start()
    (tmp_path / "workers" / "2-b").write_bytes(b"")  # its process has died
    assert not mine.alive("2-b")
    assert (tmp_path / "workers" / "2-b").exists()
    other.start()
    assert mine.alive("3-c")
    other.clear_away()
    assert not (tmp_path / "workers" / "2-b").exists()
    assert mine.alive("3-c")
    assert other.alive("1-a")
    other.stop()
    mine.stop()


def test_a_sign_of_life_is_no_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    sign = LifeSign(tmp_path / "workers", "1-a", LEASE)
    sign.start()
    (tmp_path / "workers" / "2-b").symlink_to(target)
    assert not sign.alive("2-b")
    sign.stop()
    assert target.read_bytes() == b"precious"


def test_the_owner_that_a_journal_names_is_no_path(tmp_path: Path) -> None:
    import sqlite3

    victim = tmp_path / "victim"
    victim.write_text("precious")

    async def run() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        await journal.open()
        await journal.create(CallRecord(id="a", name="m", arguments=b"{}", created=1.0, expires=9e9))
        with contextlib.closing(sqlite3.connect(journal.path)) as file, file:
            file.execute("UPDATE calls SET owner = ?", (str(victim),))
        assert [call.id for call in await journal.due()] == ["a"]
        assert isinstance(await journal.claim("a", 0), Claimed)
        await journal.close()

    drive(run())
    assert victim.read_text() == "precious"


def test_a_worker_is_reached_only_by_its_name(tmp_path: Path) -> None:
    async def run() -> None:
        async with workers("sqlite", tmp_path, 2) as balancer:
            headers = await begin(balancer)
            home, _, rest = headers["mcp_session_id"].rpartition(".")
            for name in (home, f"./{home}", f"x/../{home}", f"{home}/"):
                ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                response = await balancer.visit("POST", ping, to=1, mcp_session_id=f"{name}.{rest}")
                assert response.task is not None
                await response.task
                assert response.status == (200 if name == home else 404), name

    drive(run())


# --- the folder of the sockets --------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that has nothing else in it; sockets need a short path."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        monkeypatch.undo()


def test_the_folder_of_the_sockets_goes_with_the_last_worker(tmp_path: Path, temporary: Path) -> None:
    async def run() -> None:
        first, second = (SqliteJournal(tmp_path / "journal.db") for _ in range(2))
        await first.open()
        await second.open()
        (folder,) = temporary.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        await first.close()
        assert [one.name for one in folder.iterdir()] == [second.worker]
        await second.close()
        assert list(temporary.iterdir()) == []

    drive(run())


def test_sockets_of_workers_that_died_are_cleared_away_at_the_next_start(
    tmp_path: Path, temporary: Path
) -> None:
    async def run() -> None:
        first = SqliteJournal(tmp_path / "journal.db")
        await first.open()
        (folder,) = temporary.iterdir()
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
            dead.bind(str(folder / "999-dead"))
        assert not await first.post("999-dead", b"hello")
        assert (folder / "999-dead").exists()
        second = SqliteJournal(tmp_path / "journal.db")
        await second.open()
        assert {one.name for one in folder.iterdir()} == {first.worker, second.worker}
        await second.close()
        await first.close()

    drive(run())


def test_workers_that_come_and_go_at_once_all_get_their_sockets(tmp_path: Path, temporary: Path) -> None:
    async def one(number: int) -> None:
        for turn in range(20):
            box = WorkerSockets(tmp_path / "journal.db", f"{number}-{turn}")
            await box.open(lambda _: None, lambda: {f"{n}-{t}" for n in range(4) for t in range(20)})
            await box.close()

    async def run() -> None:
        await asyncio.gather(*(one(number) for number in range(4)))

    drive(run())
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_a_folder_that_others_may_have_made_is_not_used(
    tmp_path: Path, temporary: Path, trap: str, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)

    async def run() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        await journal.open()
        (folder,) = temporary.iterdir()
        await journal.close()
        match trap:
            case "link":
                folder.symlink_to(elsewhere)
            case "open":
                folder.mkdir()
                folder.chmod(0o777)
            case _:
                folder.write_text("")
        again = SqliteJournal(tmp_path / "journal.db")
        await again.open()
        assert not await again.post(again.worker, b"hello")
        await again.close()
        assert os.path.lexists(folder)

    drive(run())
    assert "Other workers cannot reach this one" in caplog.text
    assert list(elsewhere.iterdir()) == []

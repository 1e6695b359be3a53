"""What an SQLite journal suffers: damage, full disks, missing files; and what its file shows to others."""

import asyncio
import contextlib
import math
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from conversations_contract import changed, talk
from driving import drive, until
from journal_contract import claimed, new_call, now, parked, step, waiting_call, written
from midcall.journal.contract import CallRecord, Claimed, Entry, JournalError, Notice, Parking, RunEnd
from midcall.journal.seal import KeyRing
from midcall.journal.sqlite import SqliteJournal
from midcall.journal.sqlite import file as sqlite_file

OLD, NEW = b"o" * 32, b"n" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@contextlib.asynccontextmanager
async def opened(path: Path, **given: Any) -> AsyncIterator[SqliteJournal]:
    journal = SqliteJournal(path, **given)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


def files(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}


async def filled(path: Path, calls: int = 200) -> None:
    async with opened(path) as journal:
        await asyncio.gather(*(parked(journal, id=f"call {n}", arguments=b"x" * 500) for n in range(calls)))


async def refused(path: Path, **given: Any) -> str:
    """Why it cannot be opened; nothing is changed by trying."""
    before = files(path)
    with pytest.raises(JournalError) as refusal:
        async with opened(path, **given):
            pass
    assert files(path) == before
    return str(refusal.value)


# the file


def test_nobody_else_may_read_the_file(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            await parked(journal)
            for one in path.parent.iterdir():
                mode = stat.S_IMODE(one.stat().st_mode)
                assert mode == (0o700 if one.is_dir() else 0o600), one
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    drive(main())


def test_a_closed_journal_leaves_one_file(path: Path) -> None:
    drive(filled(path, 1))
    assert [one.name for one in path.parent.iterdir() if one.is_file()] == ["journal.db"]
    assert [one.name for one in (path.parent / "journal.db.workers").iterdir()] == [".turn"]


def test_many_may_open_a_new_file_at_once(path: Path) -> None:
    async def main() -> None:
        journals = [SqliteJournal(path) for _ in range(8)]
        await asyncio.gather(*(journal.open() for journal in journals))
        await asyncio.gather(*(parked(journal) for journal in journals))
        assert await journals[0].count() == {"waiting": 8}
        for journal in journals:
            await journal.close()

    drive(main())


def test_an_older_file_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive(filled(path, 3))
    later = (*sqlite_file.MIGRATIONS, "CREATE TABLE more (a); CREATE TABLE still_more (a)")
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", later)

    async def main() -> None:
        async with opened(path) as journal:
            assert await journal.count() == {"waiting": 3}

    drive(main())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)
        assert connection.execute("SELECT count(*) FROM more, still_more").fetchone() == (0,)


def test_a_file_from_before_others_could_be_asked_is_brought_up_to_date(path: Path) -> None:
    drive(filled(path, 3))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("""
            DROP INDEX calls_addressed;
            ALTER TABLE calls DROP COLUMN addressed;
            DROP TABLE notices;
            PRAGMA user_version = 3;
        """)

    async def main() -> None:
        async with opened(path) as journal:
            assert await journal.count() == {"waiting": 3}
            assert [call.addressed for call in (await journal.list()).calls] == [False] * 3
            call = waiting_call(addressed=True)
            await journal.create(call, [], b"asked", [Notice("to:n", call.id, 1.0)])
            assert [one.id for one in (await journal.list(addressed=True)).calls] == [call.id]
            assert [one.id for one in await journal.take_notices("to", 10, 60)] == ["to:n"]

    drive(main())


def test_a_migration_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drive(filled(path, 3))
    broken = (*sqlite_file.MIGRATIONS, "CREATE TABLE more (a); CREATE TABLE calls (a)")
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_file, "MIGRATIONS", broken)
        with pytest.raises(JournalError, match="cannot be used"):
            drive(filled(path, 1))
    assert "already exists" in caplog.text

    async def main() -> None:
        async with opened(path) as journal:
            assert await journal.count() == {"waiting": 3}

    drive(main())


def test_the_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    drive(filled(path, 3))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    message = drive(refused(path))
    assert "newer midcall" in message
    assert "99" in message


def test_the_file_of_somebody_else_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    assert "not a journal" in drive(refused(path))


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    drive(filled(path, 1))


# damage


@pytest.mark.parametrize("content", [b"hello " * 2000, b"SQLite format 3\0" + b"\xff" * 8176])
def test_what_is_no_database_is_said_to_be_damaged(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    message = drive(refused(path))
    assert "damaged" in message
    assert "backup" in message


def spoil(path: Path) -> None:
    """Write over pages in the middle, as a bad disk does."""
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in range(pages // 2, pages // 2 + 6):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)


def test_a_damaged_page_is_found_when_the_file_is_opened(path: Path) -> None:
    drive(filled(path))
    backup = path.read_bytes()
    spoil(path)
    message = drive(refused(path))
    assert "damaged" in message
    assert "backup" in message

    path.write_bytes(backup)  # as the message says

    async def main() -> None:
        async with opened(path) as journal:
            assert await journal.count() == {"waiting": 200}
            await journal.check()

    drive(main())


def test_damage_in_a_large_file_is_found_when_it_is_met(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive(filled(path))
    spoil(path)
    monkeypatch.setattr(sqlite_file, "CHECKED", 0)

    async def main() -> None:
        async with opened(path) as journal:
            with pytest.raises(JournalError, match="damaged"):
                await journal.check()
            lost = 0
            for number in range(200):
                try:
                    assert await journal.load(f"call {number}") is not None
                except JournalError as error:
                    assert "damaged" in str(error)
                    lost += 1
            assert lost > 0

    drive(main())


# the disk


def test_a_full_disk_is_said_and_nothing_is_half_written(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            connection = journal.database.writes.use()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 60}")
            await full_and_free_again(
                journal, lambda: connection.execute("PRAGMA max_page_count = 1000000").fetchall()
            )

    drive(main())


@contextlib.contextmanager
def mounted(place: Path, *how: str) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    tried = subprocess.run(["mount", *how, place], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("only root may mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.skipif(not shutil.which("mount"), reason="there is no mount")
def test_a_disk_that_is_really_full_is_said_too(tmp_path: Path) -> None:
    async def main(place: Path) -> None:
        ballast = place / "ballast"
        ballast.write_bytes(b"x" * 2_000_000)
        async with opened(place / "journal.db") as journal:
            await full_and_free_again(journal, ballast.unlink)

    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=3m", "tmpfs"):
        drive(main(tmp_path / "small"))


async def full_and_free_again(journal: SqliteJournal, free: Any) -> None:
    first = new_call()
    await journal.create(first)
    acknowledged = []
    with pytest.raises(JournalError, match="disk is full"):
        while len(acknowledged) < 200:
            acknowledged += [await parked(journal, arguments=b"x" * 20_000)]
    tried = await asyncio.gather(
        *(parked(journal, arguments=b"x" * 20_000) for _ in range(20)), return_exceptions=True
    )
    acknowledged += [call_id for call_id in tried if isinstance(call_id, str)]
    with pytest.raises(JournalError, match="disk is full"):
        await journal.append(first.id, 0, [step("large", b"x" * 1_000_000)])
    assert await journal.count() == {"waiting": len(acknowledged), "running": 1}
    await journal.check()
    free()
    await journal.append(first.id, 0, [step("1")])
    await journal.settle(first.id, 0, 0, b"result", Parking(status="completed"))
    acknowledged.append(await parked(journal, arguments=b"x" * 20_000))
    for call_id in acknowledged:
        assert await journal.wait(call_id, 0, 0) == b"asked"
    loaded = await journal.load(first.id)
    assert loaded is not None
    assert [entry.key for entry in loaded[1]] == ["1"]
    await journal.check()


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    real = tmp_path / "real" / "journal.db"
    drive(filled(real, 2))
    if os.geteuid() == 0:
        place = tmp_path / "read-only"
        with mounted(place, "--bind", "-o", "ro", str(real.parent)):
            subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
            message = drive(refused(place / "journal.db"))
    else:
        real.chmod(0o400)
        real.parent.chmod(0o500)
        message = drive(refused(real))
        real.parent.chmod(0o700)
        real.chmod(0o600)
    assert "read-only" in message or "may not" in message

    async def main() -> None:
        async with opened(real) as journal:
            await parked(journal)
            assert await journal.count() == {"waiting": 3}

    drive(main())


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be"):
        drive(filled(tmp_path / "file" / "journal.db", 1))


def test_a_file_that_is_deleted_is_missed_and_can_be_put_back(path: Path) -> None:
    drive(filled(path, 3))
    backup = path.read_bytes()

    async def main() -> None:
        async with opened(path) as journal:
            await parked(journal)
            for one in path.parent.glob("journal.db*"):
                if one.is_file():
                    one.unlink()
            for _ in range(2):
                for doing in (parked(journal), journal.count(), journal.wait("call 1", 0, 1)):
                    with pytest.raises(JournalError, match="gone"):
                        await doing
            assert not path.exists()
            path.write_bytes(backup)
            assert await journal.count() == {"waiting": 3}
            call = await claimed(journal, "call 1", 1)
            await journal.settle("call 1", call.fence, 1, b"result", Parking(status="completed"))
        async with opened(path) as journal:
            assert await journal.count() == {"waiting": 2, "completed": 1}

    drive(main())


def test_a_file_that_is_moved_and_moved_back_has_lost_nothing(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            call_id = await parked(journal)
            away = path.with_name("away")
            path.rename(away)
            with pytest.raises(JournalError, match="gone"):
                await journal.claim(call_id, 1)
            away.rename(path)
            await claimed(journal, call_id, 1)

    drive(main())


def test_a_file_that_others_keep_locked_is_said(path: Path) -> None:
    async def main() -> None:
        async with opened(path, lease=0.3) as journal:
            await parked(journal)
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                tried = await asyncio.gather(*(parked(journal) for _ in range(20)), return_exceptions=True)
                assert all("locked" in str(error) for error in tried)
                assert await journal.count() == {"waiting": 1}  # reading goes on
                other.execute("ROLLBACK")
            await parked(journal)
            assert await journal.count() == {"waiting": 2}

    drive(main())


# what need not be on the disk at once


def test_a_claim_without_a_sync_is_in_the_file_at_once_and_soon_on_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.path.realpath(f"/proc/self/fd/{fd}"))
        sync(fd)

    async def main() -> None:
        async with opened(path) as journal, opened(path) as other:
            call = await now(journal, await parked(journal))
            said: list[str] = []
            journal.database.writes.use().set_trace_callback(said.append)
            claim = await journal.claim(call.id, 1, [step("2")], call.fence, call, sync=False)
            assert isinstance(claim, Claimed)
            assert not said, "the thread that writes had nothing to do"
            assert await other.load(call.id) == (claim.call, [step("1"), step("2")])
            await until(lambda: f"{path}-wal" in synced)
            assert not said

    monkeypatch.setattr(os, "fsync", fsync)
    drive(main())


async def claimed_by_the_thread(journal: SqliteJournal, call: CallRecord, answer: Entry) -> None:
    """A claim without a sync is granted, but not at once."""
    said: list[str] = []
    journal.database.writes.use().set_trace_callback(said.append)
    claim = await journal.claim(call.id, 1, [answer], call.fence, call, sync=False)
    assert isinstance(claim, Claimed)
    assert "COMMIT" in said
    assert await journal.load(call.id) == (claim.call, [step("1"), answer])


def test_a_large_answer_is_written_by_the_thread(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            call = await now(journal, await parked(journal))
            await claimed_by_the_thread(journal, call, step("2", b"x" * (1 << 16)))

    drive(main())


def test_what_comes_while_the_thread_writes_waits_its_turn(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            call = await now(journal, await parked(journal))
            await asyncio.gather(parked(journal), claimed_by_the_thread(journal, call, step("2")))

    drive(main())


def test_where_nothing_can_be_claimed_at_once_it_is_said_why_and_it_can_later(path: Path) -> None:
    async def main() -> None:
        async with opened(path, lease=0.3) as journal:
            first, call, last = [await now(journal, await parked(journal)) for _ in range(3)]
            assert isinstance(await journal.claim(first.id, 1, [], 0, first, sync=False), Claimed)
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(JournalError, match="locked"):
                    await journal.claim(call.id, 1, [step("2")], 0, call, sync=False)
                other.execute("ROLLBACK")
            path.rename(path.with_name("away"))
            with pytest.raises(JournalError, match="gone"):
                await journal.claim(call.id, 1, [step("2")], 0, call, sync=False)
            path.with_name("away").rename(path)
            for one in (call, last):
                assert isinstance(await journal.claim(one.id, 1, [step("2")], 0, one, sync=False), Claimed)
                assert (await now(journal, one.id)).status == "running"

    drive(main())


# one commit for many


def test_what_comes_together_is_committed_together(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            said: list[str] = []
            connection = journal.database.writes.use()
            connection.set_trace_callback(said.append)
            await asyncio.gather(*(parked(journal) for _ in range(200)))
            connection.set_trace_callback(None)
            assert said.count("COMMIT") <= 20
            assert await journal.count() == {"waiting": 200}

    drive(main())


def test_what_cannot_be_written_does_not_take_along_what_came_with_it(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            strange = [{"created": math.nan}, {"name": "\ud800"}, {"segment": 1 << 70}, {"name": 5.5j}]
            calls = [waiting_call(**(strange[n // 5] if n % 5 == 0 else {})) for n in range(20)]
            done = await asyncio.gather(
                *(journal.create(call, [step("1")], b"asked") for call in calls), return_exceptions=True
            )
            for number, (call, result) in enumerate(zip(calls, done, strict=True)):
                assert isinstance(result, JournalError) if number % 5 == 0 else result is None
                assert (await journal.load(call.id) is None) == (number % 5 == 0)

    drive(main())


# sealed


def test_a_sealed_journal_shows_nothing_of_what_was_said(path: Path) -> None:
    async def main() -> None:
        async with opened(path, seal=KeyRing([OLD])) as journal:
            call = waiting_call(arguments=b"SECRET a", context=b"SECRET c", questions=b"SECRET q")
            await journal.create(call, [step("1", b"SECRET e")], b"SECRET o")
            claim = await claimed(journal, call.id, 1)
            await journal.append(call.id, claim.fence, [step("2", b"SECRET e")])
            await journal.settle(
                call.id, claim.fence, 1, b"SECRET o", Parking(status="waiting", questions=b"SECRET q")
            )
            await journal.end(call.id, "aborted", b"SECRET o", 1e10)
            await journal.secret("name", b"SECRET s")
            assert not [name for name, content in files(path).items() if b"SECRET" in content]
        assert b"SECRET" not in path.read_bytes()

    drive(main())


def test_keys_can_be_changed(path: Path) -> None:
    async def main() -> None:
        async with opened(path, seal=KeyRing([OLD])) as journal:
            old = await parked(journal)
        async with opened(path, seal=KeyRing([NEW, OLD])) as journal:
            new = await parked(journal)
            for call_id in (old, new):
                assert (await written(journal, call_id))["call"]["id"] == call_id
        async with opened(path, seal=KeyRing([NEW])) as journal:
            assert await journal.wait(new, 0, 0) == b"asked"
            for doing in (journal.load(old), journal.claim(old, 1)):
                with pytest.raises(JournalError, match="key is missing"):
                    await doing
        async with opened(path) as journal:
            with pytest.raises(JournalError, match="encrypted"):
                await journal.load(new)

    drive(main())


PLANTED = [
    "UPDATE parts SET data = CAST(x'00' || data AS BLOB) WHERE kind = 0",
    "UPDATE parts SET data = CAST(x'00' || data AS BLOB) WHERE kind = 1",
    "UPDATE parts SET data = x'00313233' WHERE kind = 2",
    "UPDATE calls SET questions = x'00313233'",
]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_plain_value_in_an_encrypted_journal_is_refused(path: Path, planted: str) -> None:
    """Whoever can write the file could otherwise say what was answered."""

    async def main() -> None:
        async with opened(path, seal=KeyRing([OLD])) as journal:
            await parked(journal)
            call_id = await parked(journal)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"{planted}{' AND call = 2' if 'parts' in planted else ' WHERE n = 2'}")
        async with opened(path, seal=KeyRing([OLD])) as journal:
            with pytest.raises(JournalError, match="not encrypted"):
                await journal.export(call_id)

    drive(main())


def test_a_plain_secret_in_an_encrypted_journal_is_refused(path: Path) -> None:
    async def main() -> None:
        async with opened(path, seal=KeyRing([OLD])) as journal:
            await journal.secret("seal-1", b"k" * 32)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE secrets SET value = ?", (b"\0" + b"e" * 32,))
        async with opened(path, seal=KeyRing([OLD])) as journal:
            with pytest.raises(JournalError, match="not encrypted"):
                await journal.secret("seal-1", b"k" * 32)

    drive(main())


def test_a_call_of_an_encrypted_journal_that_was_given_up_can_be_read(path: Path) -> None:
    async def main() -> None:
        async with opened(path, seal=KeyRing([OLD])) as journal:
            call_id = await parked(journal, expires=1.0)
            assert await journal.sweep() == 1
            loaded = await journal.load(call_id)
            assert loaded is not None
            assert (loaded[0].status, loaded[0].questions) == ("expired", b"")

    drive(main())


def test_a_journal_that_was_plain_is_not_taken_for_an_encrypted_one(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            plain = await parked(journal)
        with pytest.raises(JournalError, match="not encrypted") as raised:
            await SqliteJournal(path, seal=KeyRing([OLD])).open()
        assert not raised.value.recoverable
        reading = SqliteJournal(path, seal=KeyRing([OLD]), plain_too=True)
        await reading.open()
        assert (await written(reading, plain))["call"]["id"] == plain
        await reading.close()

    drive(main())


def test_a_sealed_value_does_not_open_in_another_place(path: Path) -> None:
    async def main() -> None:
        async with opened(path, seal=KeyRing([OLD])) as journal:
            one, two = await parked(journal), await parked(journal)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "UPDATE parts SET data = (SELECT data FROM parts WHERE call = 1 AND kind = 2) WHERE call = 2 AND kind = 2"
            )
        async with opened(path, seal=KeyRing([OLD])) as journal:
            assert await journal.wait(one, 0, 0) == b"asked"
            with pytest.raises(JournalError, match="changed"):
                await journal.wait(two, 0, 0)

    drive(main())


def test_a_conversation_is_saved_as_it_is_told_also_where_the_lines_of_its_run_are_damaged(
    path: Path,
) -> None:
    async def main() -> None:
        async with opened(path, seal=KeyRing([NEW])) as journal:
            store, first = journal.conversations, talk()
            await store.save(first, begins="r")
            await store.append("r", 1, [b"1"], ended=False)
            with contextlib.closing(sqlite3.connect(path)) as file, file:
                file.execute("UPDATE lines SET data = x'00112233'")
            saved = await store.save(changed(first, body=b"new"), RunEnd("r", 1, [b"1", b"2"]))
            assert not saved.ended, "the run is left as it is"
            kept = await store.load(first.id, first.principal)
            assert kept is not None
            assert (kept.version, kept.body) == (2, b"new")

    drive(main())

"""What callers are told of a journal in trouble: not where it is. The log has that, and not a thousand times."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import asyncpg
import pytest

from driving import drive
from midcall.errors import JournalError
from midcall.journal import trouble
from midcall.journal.postgres import PostgresJournal
from midcall.journal.postgres.reach import explain as explain_postgres
from midcall.journal.sqlite import SqliteJournal
from midcall.journal.sqlite.file import explain
from operating import Server

LOCAL = "/var/lib/secret-place/journal.db"


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "_said", {})


def is_private(error: BaseException, *words: str) -> bool:
    return not any(word in str(error) for word in words)


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError(f"what SQLite says of {LOCAL}")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_IOERR_READ"
    return error


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file", LOCAL),
        PermissionError(13, "Permission denied", LOCAL),
        OSError(5, "Input/output error", LOCAL),
        *(
            sqlite_error(code)
            for code in (
                sqlite3.SQLITE_FULL,
                sqlite3.SQLITE_READONLY,
                sqlite3.SQLITE_IOERR,
                sqlite3.SQLITE_BUSY,
                sqlite3.SQLITE_CORRUPT,
                sqlite3.SQLITE_CANTOPEN,
                sqlite3.SQLITE_ERROR,
            )
        ),
    ],
    ids=lambda error: getattr(error, "sqlite_errorcode", type(error).__name__),
)
def test_no_trouble_with_a_file_tells_where_it_is(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    told = explain(error, Path(LOCAL))
    assert is_private(told, "secret-place", "journal.db")
    assert LOCAL in caplog.text


def test_a_file_that_cannot_be_opened_is_named_in_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer, other, text = (tmp_path / name for name in ("newer.db", "other.db", "text.db"))
    text.write_text("not a database, and long enough to be seen as one that is not\n" * 100)
    for path, statement in ((newer, "PRAGMA user_version = 99"), (other, "CREATE TABLE t (a)")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
    inside = text / "journal.db"

    async def run() -> None:
        for path in (newer, other, text, inside):
            with pytest.raises(JournalError) as raised:
                await SqliteJournal(path).open()
            assert is_private(raised.value, str(tmp_path), path.name), path
            assert str(path) in caplog.text

    drive(run())


@pytest.mark.parametrize(
    "error",
    [
        OSError("Connect call failed ('10.1.2.3', 5432)"),
        asyncpg.InvalidPasswordError('password authentication failed for user "secret"'),
        asyncpg.InvalidCatalogNameError('database "secret" does not exist'),
        asyncpg.InsufficientPrivilegeError("permission denied for table secret"),
        asyncpg.DiskFullError('could not extend file "secret"'),
        asyncpg.ReadOnlySQLTransactionError("10.1.2.3 is a standby"),
        asyncpg.PostgresError("secret"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_postgresql_says_is_for_the_log(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    told = explain_postgres(error)
    assert is_private(told, "secret", "10.1.2.3", "5432")
    assert str(error.args[0]) in caplog.text


def test_a_value_that_postgresql_cannot_take_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    class Refused(asyncpg.InterfaceError, ValueError):
        """As asyncpg has one, under a name of its own."""

    assert is_private(explain_postgres(Refused("invalid input for query argument $1: 'an answer'")), "answer")
    assert "an answer" not in caplog.text


def test_where_a_database_was_looked_for_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        url = "postgresql://ada:hush@127.0.0.1:9/secret"
        with pytest.raises(JournalError) as raised:
            await PostgresJournal(url, patience=0).open()
        assert is_private(raised.value, "127.0.0.1", "ada", "secret")
        assert "127.0.0.1" in caplog.text
        assert "hush" not in caplog.text

    drive(run())


def test_the_same_trouble_is_in_the_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        await journal.open()
        journal.path.rename(tmp_path / "moved.db")
        tried = await asyncio.gather(*(journal.count() for _ in range(200)), return_exceptions=True)
        assert all(isinstance(error, JournalError) for error in tried)
        await journal.close()

    drive(run())
    assert len(caplog.records) == 1


def test_a_caller_does_not_learn_where_the_journal_is(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.call("shop.order", item="tea")
        server.journal.rename(tmp_path / "moved.db")
        try:
            told = str(server.call("shop.order", item="jam"))
        except AssertionError as refused:
            told = str(refused)
        assert "journal" in told
        assert str(tmp_path) not in told
        (tmp_path / "moved.db").rename(server.journal)
        assert str(server.journal) in server.stop()

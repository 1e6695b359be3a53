"""Files that are for one user alone: the journal, conversations, keys, logins."""

import base64
import os
import shutil
import stat
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from midcall.cli.install import merge
from midcall.client.oauth.store import FileStore
from midcall.journal.files import private_folder
from midcall.journal.seal import default_ring
from midcall.journal.sqlite import SqliteJournal


async def open_journal(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.open()
    await journal.close()


async def read_key(path: Path) -> None:
    default_ring()


async def read_logins(path: Path) -> None:
    await FileStore(path).load("https://example.com")


Use = Callable[[Path], Coroutine[Any, Any, None]]


@pytest.fixture(params=[open_journal, read_key, read_logins])
def use(request: pytest.FixtureRequest) -> Use:
    made: Use = request.param
    return made


@pytest.fixture
def path(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is as it should be."""
    monkeypatch.setenv("MIDCALL_STATE", str(tmp_path))
    monkeypatch.delenv("MIDCALL_KEYS", raising=False)
    path = tmp_path / "midcall" / "key"
    path.parent.mkdir()
    content = {read_key: base64.b64encode(b"k" * 32), read_logins: b"{}"}
    if use in content:
        path.write_bytes(content[use])
        path.chmod(0o600)
    else:
        drive(use(path))
    return path


def test_a_folder_is_for_this_user_alone_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    private_folder(folder)
    private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    link, file, open_one = tmp_path / "link", tmp_path / "file", tmp_path / "open"
    link.symlink_to(folder)
    file.touch(0o600)
    open_one.mkdir()
    open_one.chmod(0o755)
    for other in (link, file, open_one):
        with pytest.raises(OSError, match="not a folder of this user alone"):
            private_folder(other)


def test_a_file_that_is_for_this_user_alone_is_not_warned_of(
    use: Use, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive(use(path))
    assert caplog.text == ""


def test_a_file_that_others_may_read_is_warned_of(
    use: Use, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.chmod(0o644)
    drive(use(path))
    assert f"Others on this machine may read {path}: chmod 600 it" in caplog.text


def test_a_file_behind_a_link_is_warned_of(use: Use, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    drive(use(path))
    assert f"{path} is a link to {path.with_name('elsewhere')}" in caplog.text


# --- the file of an MCP client ------------------------------------------------------------------


@pytest.fixture
def open_handed() -> Iterator[None]:
    """Whatever is made may be read by everybody, unless it is said."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_handed")
def test_a_replaced_file_keeps_its_mode_from_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"env": "a secret"}')
    config.chmod(0o600)
    seen: list[int] = []

    def modes() -> None:
        seen.extend(stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir())

    def synced(fd: int) -> None:
        modes()

    def copied(source: Path, target: Path) -> None:
        assert target.exists(), "it is made with its mode before anything is in it"
        modes()
        shutil.copyfile(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(shutil, "copy2", copied)
    assert merge(config, "mcpServers", "one", {"command": "x"})
    modes()
    assert len(seen) >= 5
    assert set(seen) == {0o600}


@pytest.mark.usefixtures("open_handed")
def test_a_new_file_has_the_mode_that_files_have(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    assert merge(config, "mcpServers", "one", {"command": "x"})
    assert stat.S_IMODE(config.stat().st_mode) == 0o666

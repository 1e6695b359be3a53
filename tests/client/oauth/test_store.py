"""Where logins are kept: a file that only its owner reads, or the keyring; and two processes at once."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import keyring.backend
import pytest
from keyring.errors import PasswordDeleteError, PasswordSetError

from driving import LIMIT, drive
from midcall.client.oauth import FileStore, KeyringStore, MemoryStore, OAuth, TokenStore, default_store
from midcall.errors import LoginFailed
from oauth_world import world
from peers import environment


class Ring(keyring.backend.KeyringBackend):
    """A keyring in memory, by the interface that all of them have."""

    priority = 5  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if self.locked:
            raise PasswordSetError("it is locked")
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if (service, username) not in self.entries:
            raise PasswordDeleteError("not there")
        del self.entries[service, username]


@pytest.fixture
def ring() -> Iterator[Ring]:
    before = keyring.get_keyring()
    made = Ring()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


@pytest.fixture(params=["memory", "file", "keyring"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TokenStore:
    match request.param:
        case "memory":
            return MemoryStore()
        case "file":
            return FileStore(tmp_path / "deep" / "oauth.json")
    request.getfixturevalue("ring")
    return KeyringStore()


# --- each of them ---------------------------------------------------------------------------


def test_what_is_kept_is_there_again_by_server(store: TokenStore) -> None:
    async def main() -> None:
        assert await store.load("https://a.example/mcp") is None
        await store.save("https://a.example/mcp", {"token": "ä"})
        await store.save("https://b.example/mcp", {"token": "b"})
        await store.save("https://a.example/mcp", {"token": "a"})
        assert await store.load("https://a.example/mcp") == {"token": "a"}
        await store.save("https://a.example/mcp", None)
        await store.save("https://a.example/mcp", None)
        assert await store.load("https://a.example/mcp") is None
        assert await store.load("https://b.example/mcp") == {"token": "b"}

    drive(main())


def test_one_at_a_time_is_alone(store: TokenStore) -> None:
    async def main() -> None:
        inside = 0

        async def enter() -> None:
            nonlocal inside
            async with store.alone("https://a.example/mcp"):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                inside -= 1

        await asyncio.gather(*(enter() for _ in range(8)))
        async with store.alone("https://a.example/mcp"), store.alone("https://b.example/mcp"):
            await store.save("https://a.example/mcp", {})

    drive(main())


def test_a_login_works_with_each_of_them(store: TokenStore) -> None:
    async def main() -> None:
        async with world() as it:
            assert await it.status(it.oauth(store=store)) == 200
            assert await it.status(it.oauth(store=store)) == 200
            assert len(it.person.visits) == 1

    drive(main())


# --- the file -------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="Windows has other rights")
def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        async with world() as it:
            path = tmp_path / "state" / "oauth.json"
            before = os.umask(0)
            try:
                await it.request(it.oauth(store=FileStore(path)))
            finally:
                os.umask(before)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            kept = json.loads(path.read_text())[it.server.url]
            assert kept["issuer"] == it.issuer.issuer
            assert list(kept["grants"]) == [it.issuer.issuer]
            assert {file.name.split(".turn")[0] for file in path.parent.iterdir()} == {
                "oauth.json",
                "oauth.json.lock",
            }

    drive(main())


def test_the_file_is_in_the_users_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDCALL_STATE", str(tmp_path))

    async def main() -> None:
        await FileStore().save("https://a.example/mcp", {"x": 1})
        assert json.loads((tmp_path / "midcall" / "oauth.json").read_text()) == {
            "https://a.example/mcp": {"x": 1}
        }

    drive(main())


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_damaged_file_is_left_alone_and_named(tmp_path: Path, text: str) -> None:
    async def main() -> None:
        path = tmp_path / "oauth.json"
        path.write_text(text)
        store = FileStore(path)
        for attempt in (store.load("https://a.example"), store.save("https://a.example", {})):
            with pytest.raises(LoginFailed, match=r"oauth\.json is .*: remove it to log in again"):
                await attempt
        assert path.read_text() == text

    drive(main())


def test_a_record_that_cannot_be_read_counts_as_none() -> None:
    async def main() -> None:
        async with world() as it:
            await it.store.save(it.server.url, {"issuer": 5, "grants": "many"})
            assert await it.status(it.oauth()) == 200

    drive(main())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")

    async def main() -> None:
        with pytest.raises(LoginFailed, match="Logins cannot be kept in"):
            await FileStore(tmp_path / "taken" / "oauth.json").save("https://a.example", {})

    drive(main())


# --- two processes --------------------------------------------------------------------------


def process(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


SAVES = """
import asyncio, sys
from midcall.client.oauth import FileStore

async def main():
    store = FileStore(sys.argv[1])
    for number in range(25):
        await store.save(f"https://{sys.argv[2]}.example/{number}", {"number": number})

asyncio.run(main())
"""


def test_of_two_processes_that_write_at_once_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "oauth.json"
    writers = [process(SAVES, str(path), name) for name in "abc"]
    assert [writer.communicate(timeout=LIMIT)[0] for writer in writers] == ["", "", ""]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert len(json.loads(path.read_text())) == 75


HOLDS = """
import asyncio, sys
from midcall.client.oauth import FileStore

async def main():
    async with FileStore(sys.argv[1]).alone("https://a.example"):
        print("inside", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_who_is_alone_keeps_other_processes_out_until_it_leaves_or_dies(tmp_path: Path, end: str) -> None:
    path = str(tmp_path / "oauth.json")
    holder = process(HOLDS, path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "inside\n"

    async def main() -> None:
        async def enter() -> None:
            async with FileStore(path).alone("https://a.example"):
                pass

        entering = asyncio.create_task(enter())
        _, waiting = await asyncio.wait([entering], timeout=0.3)
        assert waiting
        async with FileStore(path).alone("https://other.example"):
            pass
        if end == "kill":
            holder.send_signal(signal.SIGKILL)
        await asyncio.to_thread(holder.communicate, timeout=LIMIT)
        await entering

    drive(main())


ASKS = """
import asyncio, sys
from midcall.http.client import HttpClient
from midcall.client.oauth import FileStore, OAuth
from oauth_world import request

async def nobody(url):
    raise AssertionError("no login is needed")

async def main():
    sys.stdin.readline()
    async with HttpClient() as http:
        auth = OAuth(redirect=nobody, store=FileStore(sys.argv[1]))
        print((await request(auth, http, sys.argv[2]))[0])

asyncio.run(main())
"""


def test_two_processes_renew_one_login_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with world() as it:
            path = tmp_path / "oauth.json"
            await it.request(it.oauth(store=FileStore(path)))
            kept = json.loads(path.read_text())
            tokens = kept[it.server.url]["grants"][it.issuer.issuer]["tokens"]
            tokens["issued_at"] -= 3590
            tokens["expires_at"] -= 3590
            path.write_text(json.dumps(kept))
            asking = [process(ASKS, str(path), it.server.url) for _ in range(3)]
            said = await asyncio.gather(*(asyncio.to_thread(one.communicate, "go\n", 25) for one in asking))
            assert [out for out, _ in said] == ["200\n"] * 3
            assert len(it.issuer.grants("refresh_token")) == 1

    drive(main())


# --- the keyring ----------------------------------------------------------------------------


def test_the_keyring_is_used_if_there_is_one(ring: Ring) -> None:
    async def main() -> None:
        async with world() as it:
            store = default_store()
            assert isinstance(store, KeyringStore)
            await it.request(it.oauth(store=store))
            assert list(ring.entries) == [("midcall", it.server.url)]

    drive(main())


@pytest.mark.parametrize("backend", ["keyring.backends.fail.Keyring", "keyring.backends.null.Keyring"])
def test_a_keyring_that_keeps_nothing_is_not_used(ring: Ring, backend: str) -> None:
    keyring.set_keyring(keyring.core.load_keyring(backend))
    assert isinstance(default_store(), FileStore)


def test_without_the_package_the_file_is_used() -> None:
    code = """
import sys
sys.modules["keyring"] = None
from midcall.client.oauth import FileStore, default_store
print(isinstance(default_store(), FileStore))
"""
    said, _ = process(code).communicate(timeout=LIMIT)
    assert said == "True\n"


def test_a_keyring_that_refuses_is_named(ring: Ring) -> None:
    async def main() -> None:
        ring.locked = True
        with pytest.raises(LoginFailed, match="The keyring cannot be used: it is locked"):
            await KeyringStore().save("https://a.example", {})

    drive(main())


def test_a_login_that_cannot_be_kept_is_good_until_the_process_ends(
    ring: Ring, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as it:
            ring.locked = True
            auth = it.oauth(store=KeyringStore())
            assert [await it.status(auth), await it.status(auth)] == [200, 200]
            assert f"The login to {it.server.url} is not kept: The keyring cannot be used" in caplog.text
            assert len(it.person.visits) == 1

    drive(main())


@pytest.mark.parametrize("text", ["no json", "[]", "5"])
def test_a_stranger_in_the_keyring_is_not_believed(ring: Ring, text: str) -> None:
    ring.entries["midcall", "https://a.example"] = text
    assert drive(KeyringStore().load("https://a.example")) is None


def test_oauth_keeps_its_logins_where_they_are_kept_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDCALL_STATE", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    before = keyring.get_keyring()
    keyring.core.init_backend()

    async def main() -> None:
        async with world() as it:
            assert await it.status(OAuth(redirect=it.person)) == 200
            assert it.server.url in (tmp_path / "midcall" / "oauth.json").read_text()

    try:
        drive(main())
    finally:
        keyring.set_keyring(before)

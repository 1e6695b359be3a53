"""Sessions of Claude Code: who sees them, where they work, who runs them, and how they are kept."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest
from claude_agent_sdk.testing import run_session_store_conformance

import postgres_server
from driving import drive
from midcall import Hub, MidcallError
from midcall.activations import add_named
from midcall.activations.arbor import Arbor
from midcall.activations.claudecode import ClaudeCode
from midcall.activations.claudecode.transcripts import PART, TreeSessionStore
from midcall.activations.tree_store import TreeStore
from midcall.errors import InvalidArguments, RegistrationError
from midcall.journal.choose import choose_journal
from midcall.journal.durable import DurableCalls


def made(folder: Path, journal: str = "memory") -> Hub:
    hub = Hub("plexus").register(ClaudeCode(folders=[folder])).register(Arbor())
    hub.durable = DurableCalls(hub, choose_journal(journal, "plexus"))
    return hub


async def say(hub: Hub, method: str, principal: str | None = "ada", /, **params: Any) -> Any:
    return await hub.call(f"claudecode.{method}", params, principal=principal)


async def refused(hub: Hub, method: str, principal: str | None = "ada", /, **params: Any) -> str:
    with pytest.raises((MidcallError, InvalidArguments)) as told:
        await say(hub, method, principal, **params)
    return str(told.value)


def entry(number: int, parent: int | None = None, role: str = "user", text: str = "hello") -> Any:
    uuid = f"00000000-0000-4000-8000-{number:012}"
    above = None if parent is None else f"00000000-0000-4000-8000-{parent:012}"
    message = {"role": role, "content": [{"type": "text", "text": text}]}
    return {
        "type": role,
        "uuid": uuid,
        "parentUuid": above,
        "sessionId": "x",
        "isSidechain": False,
        "timestamp": "2026-11-17T00:00:00.000Z",
        "message": message,
    }


def test_a_session_is_made_found_listed_and_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        hub = made(tmp_path)
        created = await say(
            hub, "create", name="first", working_dir=str(tmp_path), model="sonnet", system_prompt="Be brief."
        )
        info = created.session
        assert (info.name, info.working_dir, info.model) == ("first", str(tmp_path), "sonnet")
        by_id = await say(hub, "get", identifier={"type": "by_id", "id": created.id})
        by_name = await say(hub, "get", identifier={"type": "by_name", "name": "first"})
        assert by_id == by_name == await say(hub, "get", session_name="first")
        assert "already" in await refused(hub, "create", name="first", working_dir=str(tmp_path))
        assert [one.name for one in (await say(hub, "list")).sessions] == ["first"]
        assert (await say(hub, "delete", session_name="first")).id == created.id
        assert (await say(hub, "list")).sessions == []
        await say(hub, "create", name="first", working_dir=str(tmp_path))  # the name is free again
        await hub.close()

    drive(run())


def test_a_session_is_not_changed_through_its_tree(tmp_path: Path) -> None:
    async def run() -> None:
        hub = made(tmp_path)
        first = (await say(hub, "create", name="first", working_dir=str(tmp_path))).session
        hostile = {"working_dir": "/", "model": "--dangerously-skip-permissions", "rules": ["Bash"]}
        changed = {"tree_id": first.id, "metadata": hostile}
        await hub.call("arbor.tree_update_metadata", changed, principal="ada")
        again = (await say(hub, "get", session_name="first")).session
        assert (again.working_dir, again.model, again.permitted) == (first.working_dir, None, [])
        await hub.close()

    drive(run())


def test_a_session_is_its_principals_alone(tmp_path: Path) -> None:
    async def run() -> None:
        hub = made(tmp_path)
        mine = await say(hub, "create", name="first", working_dir=str(tmp_path))
        named = {"session_name": "first"}
        by_id = {"identifier": {"type": "by_id", "id": mine.id}}
        for who in ("eve", None):
            assert (await say(hub, "list", who)).sessions == []
            for method in ("get", "delete", "get_tree", "render_context"):
                for given in (named, by_id):
                    assert "Session not found" in await refused(hub, method, who, **given)
            assert "Session not found" in await refused(hub, "fork", who, new_name="x", **by_id)
            assert "Session not found" in await refused(hub, "chat", who, query="x", **by_id)
            assert "Session not found" in await refused(hub, "chat_async", who, query="x", **by_id)
        await say(hub, "create", "eve", name="first", working_dir=str(tmp_path))  # names are each one's own
        assert (await say(hub, "get", **named)).session.id == mine.id
        await hub.close()

    drive(run())


def test_claude_code_works_only_where_it_may(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    for folder in (allowed / "below", other):
        folder.mkdir(parents=True)
    (allowed / "file").touch()
    (allowed / "out").symlink_to(other)
    (allowed / "in").symlink_to(allowed / "below")
    (tmp_path / "allowed-not").mkdir()

    async def run() -> None:
        hub = made(allowed)
        for number, place in enumerate([allowed, allowed / "below", allowed / "in"]):
            await say(hub, "create", name=f"fine {number}", working_dir=str(place))
        assert (await say(hub, "get", session_name="fine 2")).session.working_dir == str(allowed / "below")
        hostile = [
            *(other, allowed / "out", allowed / "..", allowed / "below" / ".." / "..", "/", "/proc/self/cwd"),
            *(tmp_path / "allowed-not", allowed / "file", allowed / "missing", "relative", "", "~", "a\0b"),
            "x" * 5000,
        ]
        for place in hostile:
            assert await refused(hub, "create", name="bad", working_dir=str(place))
        assert len((await say(hub, "list")).sessions) == 3
        (allowed / "below").rmdir()
        (allowed / "below").symlink_to(other)  # it was a folder, and leads elsewhere now
        assert "may not work" in await refused(hub, "chat", session_name="fine 1", query="x")
        await hub.close()

    drive(run())


def test_what_is_no_name_or_too_long_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        hub = made(tmp_path)
        for name in ("", "x" * 201, "a\nb", "\x1b[31m"):
            assert await refused(hub, "create", name=name, working_dir=str(tmp_path))
        big = "x" * 40_000
        assert "bytes at most" in await refused(
            hub, "create", name="a", working_dir=str(tmp_path), system_prompt=big
        )
        both = {"session_name": "a", "identifier": {"type": "by_name", "name": "a"}}
        assert "either" in await refused(hub, "get", **both)
        assert "either" in await refused(hub, "get")
        assert "either" in await refused(hub, "chat", query="x")
        assert await refused(hub, "chat", session_name="a", query="")
        assert (await say(hub, "list")).sessions == []
        await hub.close()

    drive(run())


def test_a_fork_has_all_that_was_said_and_goes_its_own_way(tmp_path: Path) -> None:
    async def run() -> None:
        hub = made(tmp_path)
        store = TreeSessionStore(TreeStore.of(hub), "ada")
        project = sdk.project_key_for_directory(str(tmp_path))
        first = (await say(hub, "create", name="first", working_dir=str(tmp_path), model="opus")).session
        empty = (await say(hub, "fork", session_name="first", new_name="empty")).session
        assert (empty.forked_from, empty.model) == (first.id, "opus")
        assert (await say(hub, "get_tree", session_name="empty")).tree_id is None

        key: Any = {"project_key": project, "session_id": first.claude_session_id}
        await store.append(key, [{"type": "queue-operation"}])
        await say(hub, "fork", session_name="first", new_name="nothing was said")
        await store.append(key, [entry(1), entry(2, 1, "assistant", "hi")])
        before = await hub.call("arbor.tree_list", {}, principal="ada")
        assert "already" in await refused(hub, "fork", session_name="first", new_name="empty")
        assert await hub.call("arbor.tree_list", {}, principal="ada") == before
        forked = (await say(hub, "fork", session_name="first", new_name="second")).session
        assert forked.claude_session_id not in (first.claude_session_id, "")
        texts = [
            one.content[0]["text"]
            for one in (await say(hub, "render_context", session_name="second")).messages
        ]
        assert texts == ["hello", "hi"]
        await store.append(key, [entry(3, 2, "user", "more")])
        assert (await say(hub, "render_context", session_name="first")).total == 3
        assert (await say(hub, "render_context", session_name="second")).total == 2
        page = await say(hub, "render_context", session_name="first", offset=1, limit=1)
        assert [one.role for one in page.messages] == ["assistant"]

        tree = (await say(hub, "get_tree", session_name="first")).tree_id
        drawn = await hub.call("arbor.tree_render", {"tree_id": tree}, principal="ada")
        assert "user: hello" in drawn.render
        with pytest.raises(MidcallError):
            await hub.call("arbor.tree_render", {"tree_id": tree}, principal="eve")
        await say(hub, "delete", session_name="first")
        assert await store.load(key) is None
        assert (await say(hub, "render_context", session_name="second")).total == 2
        await hub.close()

    drive(run())


def test_what_was_said_is_given_though_it_has_halves_of_characters_or_others_added_to_it(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        hub = made(tmp_path)
        first = (await say(hub, "create", name="first", working_dir=str(tmp_path))).session
        project = sdk.project_key_for_directory(str(tmp_path))
        key: Any = {"project_key": project, "session_id": first.claude_session_id}
        strange = {**entry(2, 1), "message": "no message"}
        await TreeSessionStore(TreeStore.of(hub), "ada").append(key, [entry(1, text="a\ud800b"), strange])
        context = await say(hub, "render_context", session_name="first")
        assert [one.content for one in context.messages] == [[{"type": "text", "text": "a?b"}], "no message"]
        await hub.close()

    drive(run())


def test_of_two_workers_one_runs_a_session_until_it_is_gone(tmp_path: Path) -> None:
    async def run() -> None:
        journal = str(tmp_path / "journal.db")
        one, other = made(tmp_path, journal), made(tmp_path, journal)
        await say(one, "create", name="first", working_dir=str(tmp_path))
        held = _sessions(one)
        found = await held.find("ada", "first")
        running = await held.begin("ada", found.id, 0)
        for hub in (one, other):
            assert "is already running for session first" in await refused(
                hub, "delete", session_name="first"
            )
            assert "is already running for session first" in await refused(
                hub, "chat", session_name="first", query="x"
            )
        assert running.note.worker
        await one.close()  # as if it had died: nothing was written
        await say(other, "delete", session_name="first")
        await other.close()

    drive(run())


def _sessions(hub: Hub) -> Any:
    (claude,) = [one.source for _, one in hub.activations() if isinstance(one.source, ClaudeCode)]
    return claude._sessions


def test_a_session_that_has_gone_on_is_not_gone_on_with_from_before(tmp_path: Path) -> None:
    async def run() -> None:
        hub = made(tmp_path)
        await say(hub, "create", name="first", working_dir=str(tmp_path))
        sessions = _sessions(hub)
        found = await sessions.find("ada", "first")
        running = await sessions.begin("ada", found.id, 0)
        ended = await sessions.end("ada", running, running.note)
        assert (ended.note.revision, ended.note.worker) == (1, "")
        with pytest.raises(MidcallError, match="gone on meanwhile"):
            await sessions.begin("ada", found.id, 0)
        await hub.close()

    drive(run())


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
def test_transcripts_pass_the_conformance_test_of_the_sdk(tmp_path: Path, store: str) -> None:
    async def run() -> None:
        hubs: list[Hub] = []
        async with _places(store, tmp_path) as place:

            def make() -> TreeSessionStore:
                hubs.append(made(tmp_path, place))
                return TreeSessionStore(TreeStore.of(hubs[-1]), f"principal {len(hubs)}")

            await run_session_store_conformance(make)
            for hub in hubs:
                await hub.close()
        assert len(hubs) > 10

    drive(run())


@asynccontextmanager
async def _places(store: str, folder: Path) -> AsyncIterator[str]:
    if store == "postgres":
        async with postgres_server.fresh_database() as dsn:
            yield dsn
    else:
        yield store if store == "memory" else str(folder / "journal.db")


def test_transcripts_come_back_whatever_was_in_them_once_and_in_their_order(tmp_path: Path) -> None:
    async def run() -> None:
        hub = made(tmp_path, str(tmp_path / "journal.db"))
        store = TreeSessionStore(TreeStore.of(hub), "ada")
        key: Any = {"project_key": "p" * 500, "session_id": "s"}
        hostile = [
            {"type": "x", "uuid": "not an id: ../\0", "text": "\ud800 lone"},
            {"type": "x", "text": "without an id"},
            {"type": "x", "text": "without an id"},
            {"type": "x", "uuid": "b", "parentUuid": "b", "text": "its own parent"},
            {"type": "x", "uuid": "c", "parentUuid": "nobody", "text": "\x1b[31m"},
            {
                "type": "x",
                "uuid": 7,
                "parentUuid": ["x"],
                "message": {"content": [7, None, {"type": "text"}]},
            },
            {"type": None, "uuid": "d", "message": "odd"},
            {"type": "x", "uuid": "e", "text": "ä" * (PART // 3)},  # more than one node
        ]
        await store.append(key, hostile)
        await store.append(key, [hostile[0], hostile[3], hostile[-1]])  # again
        other = TreeSessionStore(TreeStore.of(hub), "ada")
        await other.append(key, [hostile[4]])
        assert await other.load(key) == hostile
        assert await TreeSessionStore(TreeStore.of(hub), "eve").load(key) is None
        sub: Any = {**key, "subpath": "subagents/agent-1"}
        await store.append(sub, [hostile[3]])  # the same id in another transcript
        assert await store.load(sub) == [hostile[3]]
        many = [{"type": "x", "uuid": f"m{n}", "n": n} for n in range(2500)]
        await store.append({**key, "session_id": "many"}, many)
        tree = await store.tree_id({**key, "session_id": "many"})
        for text, about in (
            ("x", {}),
            ("x\nnonsense", {"entry": 8}),
            ("x\n[]", {"entry": 2}),
            ("x", {"entry": []}),
            ("x", {"rest_of": []}),
        ):
            odd = {"tree_id": tree, "content": text, "metadata": about}
            await hub.call("arbor.node_create_text", odd, principal="ada")
        assert await other.load({**key, "session_id": "many"}) == many
        for session in ("", "x" * 101, "a\nb"):
            with pytest.raises(MidcallError):
                await store.append({**key, "session_id": session}, [hostile[3]])
        await hub.close()

    drive(run())


def test_an_entry_whose_end_was_not_written_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        hub = made(tmp_path)
        store = TreeSessionStore(TreeStore.of(hub), "ada")
        key: Any = {"project_key": "p", "session_id": "s"}
        await store.append(key, [{"type": "x", "uuid": "a"}])
        monkeypatch.setattr("midcall.activations.claudecode.transcripts.MOST_ADDED", 1)
        trees, add, left = TreeStore.of(hub), TreeStore.add, 1

        async def die(self: TreeStore, *given: Any, **more: Any) -> Any:
            nonlocal left
            if not left:
                raise asyncio.CancelledError
            left -= 1
            return await add(self, *given, **more)

        monkeypatch.setattr(TreeStore, "add", die)
        with pytest.raises(asyncio.CancelledError):
            await store.append(key, [{"type": "x", "uuid": "b", "text": "y" * (PART + 10)}])
        assert trees is TreeStore.of(hub)
        assert await TreeSessionStore(trees, "ada").load(key) == [{"type": "x", "uuid": "a"}]
        await hub.close()

    drive(run())


def test_claude_code_is_served_when_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDCALL_CLAUDECODE_FOLDERS", os.pathsep.join([str(tmp_path), ""]))

    async def run() -> None:
        hub = Hub("plexus")
        add_named(hub, ["claudecode"])
        await say(hub, "create", name="first", working_dir=str(tmp_path))
        assert "may not work" in await refused(hub, "create", name="x", working_dir="/")
        await hub.close()

    drive(run())
    monkeypatch.setenv("MIDCALL_CLAUDECODE_FOLDERS", str(tmp_path / "missing"))
    with pytest.raises(RegistrationError, match="missing"):
        add_named(Hub("plexus"), ["claudecode"])
    with pytest.raises(ValueError, match="At least one"):
        ClaudeCode(folders=[tmp_path], processes=0)
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    with pytest.raises(RegistrationError, match=r"pip install 'midcall\[claudecode\]'"):
        ClaudeCode(folders=[tmp_path])

"""arbor: its methods on every wire, what it draws, and what it refuses."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from mcp_peers import LATEST, MODERN, over_stdio
from midcall import Hub, MidcallError
from midcall.activations import tree_store
from midcall.activations.arbor import Arbor
from midcall.activations.tree_store import MAX_METADATA, MAX_TEXT, MOST_NODES, NewNode, TreeStore, new_id
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.journal.trees import ARCHIVED, SCHEDULED, NodeRecord
from peers import stdio_peer, websocket_peer

BUILT_IN = "midcall.activations:hub"


class Refused(Exception):
    """What a caller was told."""


Say = Callable[..., Awaitable[Any]]
"""Calls a method of arbor: gives its event, or raises `Refused`."""


@asynccontextmanager
async def raw(peer: Any, alias: bool = False) -> AsyncIterator[Say]:
    async with peer as client:

        async def say(method: str, **params: Any) -> Any:
            response = await client.request(f"arbor_{method}" if alias else f"arbor.{method}", params)
            if "error" in response:
                raise Refused(response["error"]["message"])
            return response["result"]

        yield say


@asynccontextmanager
async def mcp(revision: str, flag: str = "--mcp-only") -> AsyncIterator[Say]:
    async with over_stdio(revision, target=BUILT_IN, flag=flag) as client:

        async def say(method: str, **params: Any) -> Any:
            result = await client.result("tools/call", {"name": f"arbor.{method}", "arguments": params})
            if result.get("isError"):
                raise Refused(result["content"][0]["text"])
            assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
            return result["structuredContent"]

        yield say


WIRES: dict[str, Callable[[], Any]] = {
    "raw stdio": lambda: raw(stdio_peer(BUILT_IN)),
    "raw stdio, by aliases": lambda: raw(stdio_peer(BUILT_IN), alias=True),
    "raw beside MCP": lambda: raw(stdio_peer(BUILT_IN, "--mcp")),
    "WebSocket": lambda: raw(websocket_peer(BUILT_IN)),
    "MCP, legacy": lambda: mcp(LATEST),
    "MCP, modern": lambda: mcp(MODERN),
    "MCP beside raw": lambda: mcp(LATEST, "--mcp"),
}


def attached(journal: Any = None) -> Hub:
    """A hub with arbor."""
    hub = Hub().register(Arbor())
    hub.durable = DurableCalls(hub, journal or MemoryJournal())
    return hub


def calling(hub: Hub, principal: str | None = None) -> Say:
    async def say(method: str, **params: Any) -> Any:
        try:
            return await hub.call(f"arbor.{method}", params, principal=principal)
        except MidcallError as error:
            raise Refused(str(error)) from None

    return say


@asynccontextmanager
async def arbor(journal: Any = None, principal: str | None = None) -> AsyncIterator[Say]:
    """Arbor in this process."""
    hub = attached(journal)
    try:
        yield calling(hub, principal)
    finally:
        await hub.close()


@pytest.fixture(autouse=True)
def _own_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDCALL_JOURNAL", str(tmp_path / "journal.db"))


@pytest.mark.parametrize("wire", WIRES)
def test_the_nineteen_methods_work_on_every_wire(wire: str) -> None:
    async def run() -> None:
        async with WIRES[wire]() as say:
            made = await say("tree_create", metadata={"title": "Trip", "n": [1, None]}, owner_id="ann")
            tree = made["tree_id"]
            assert made == {"type": "tree_created", "tree_id": tree}
            root = (await say("tree_get", tree_id=tree))["tree"]["root"]

            async def text(content: str, parent: str | None = None, **more: Any) -> str:
                event = await say("node_create_text", tree_id=tree, content=content, parent=parent, **more)
                node: str = event["node_id"]
                expected = {"tree_id": tree, "node_id": node, "parent": parent or root}
                assert event == {"type": "node_created", **expected}
                return node

            hello = await text("Hello", metadata={"role": "user"})
            one, two = await text("Hi,\nthere", hello), await text("x" * 61, hello)
            handle = {"plugin": "files", "path": "a.txt"}
            event = await say("node_create_external", tree_id=tree, handle=handle, parent=one)
            file = event["node_id"]

            found = (await say("tree_get", tree_id=tree))["tree"]
            nodes = found.pop("nodes")
            created, updated = found.pop("created_at"), found.pop("updated_at")
            assert 1e9 < created <= updated
            assert found == {
                "id": tree,
                "root": root,
                "state": "active",
                "refs": {"ref_count": 1, "owners": {"ann": 1}},
                "metadata": {"title": "Trip", "n": [1, None]},
            }
            assert list(nodes) == [root, hello, one, two, file]
            made_at = nodes[hello].pop("created_at")
            assert created <= made_at <= updated
            assert nodes[hello] == {
                "id": hello,
                "parent": root,
                "children": [one, two],
                "data": {"type": "text", "content": "Hello"},
                "metadata": {"role": "user"},
            }
            assert nodes[root]["parent"] is None
            assert nodes[file]["data"] == {"type": "external", "handle": handle}
            skeleton = await say("tree_get_skeleton", tree_id=tree)
            assert skeleton["type"] == "tree_skeleton"
            assert skeleton["skeleton"]["nodes"][file] == {
                "id": file, "parent": one, "children": [], "node_type": "external",
            }  # fmt: skip

            of = {"tree_id": tree}
            assert await say("node_get", **of, node_id=two) == {
                "type": "node_data", **of, "node": nodes[two],
            }  # fmt: skip
            assert await say("node_get_children", **of, node_id=hello) == {
                "type": "node_children", **of, "node_id": hello, "children": [one, two],
            }  # fmt: skip
            for node, parent in ((two, hello), (root, None)):
                assert await say("node_get_parent", **of, node_id=node) == {
                    "type": "node_parent", **of, "node_id": node, "parent": parent,
                }  # fmt: skip
            path = [root, hello, one, file]
            assert await say("node_get_path", **of, node_id=file) == {
                "type": "context_path", **of, "path": path,
            }  # fmt: skip
            whole = await say("context_get_path", **of, node_id=file)
            assert whole["path"] == path
            assert [node["id"] for node in whole["nodes"]] == path
            assert await say("context_list_leaves", **of) == {
                "type": "context_leaves", **of, "leaves": [two, file],
            }  # fmt: skip
            assert await say("context_get_handles", **of, node_id=file) == {
                "type": "context_handles", **of, "handles": [handle],
            }  # fmt: skip
            assert await say("tree_render", **of) == {
                "type": "tree_render",
                **of,
                "render": ".\n└── Hello\n    ├── Hi,↵there\n"
                '    │   └── [{"plugin":"files","path":"a.txt"}]\n'
                f"    └── {'x' * 57}...",
            }

            assert await say("tree_update_metadata", **of, metadata={"title": "x"}) == {
                "type": "tree_updated", **of,
            }  # fmt: skip
            assert (await say("tree_get", **of))["tree"]["metadata"] == {"title": "x"}
            assert await say("tree_list") == {"type": "tree_list", "tree_ids": [tree]}
            assert await say("tree_claim", **of, owner_id="bob", count=2) == {
                "type": "tree_claimed", **of, "owner_id": "bob", "new_count": 2,
            }  # fmt: skip
            assert await say("tree_release", **of, owner_id="bob") == {
                "type": "tree_released", **of, "owner_id": "bob", "new_count": 1,
            }  # fmt: skip
            for owner, count, told in (
                ("bob", 2, "Cannot release 2 references, owner only has 1"),
                ("eve", 1, "No reference found for owner eve"),
            ):
                with pytest.raises(Refused) as refused:
                    await say("tree_release", **of, owner_id=owner, count=count)
                assert str(refused.value).endswith(told)
            await say("tree_release", **of, owner_id="bob")
            await say("tree_release", **of, owner_id="ann")
            assert await say("tree_list") == {"type": "tree_list", "tree_ids": []}
            assert await say("tree_list_scheduled") == {"type": "trees_scheduled", "tree_ids": [tree]}
            assert await say("tree_list_archived") == {"type": "trees_archived", "tree_ids": []}
            with pytest.raises(Refused, match="is scheduled for deletion: claim it first"):
                await say("node_create_text", **of, content="late")
            await say("tree_claim", **of, owner_id="ann")
            assert await say("tree_list") == {"type": "tree_list", "tree_ids": [tree]}

    drive(run())


@pytest.mark.parametrize("wire", ["WebSocket", "MCP, modern"])
def test_what_is_not_there_or_makes_no_sense_is_an_error_with_a_message(wire: str) -> None:
    async def run() -> None:
        async with WIRES[wire]() as say:
            tree = (await say("tree_create", owner_id="ann"))["tree_id"]
            other = (await say("tree_create", owner_id="ann"))["tree_id"]
            foreign = (await say("tree_get", tree_id=other))["tree"]["root"]
            for method, params, told in (
                ("tree_get", {"tree_id": "nope"}, "Tree not found: nope"),
                ("tree_get", {"tree_id": "a\0b"}, "Tree not found"),
                ("tree_render", {"tree_id": tree, "node_id": "nope"}, "Node not found: nope"),
                ("node_get", {"tree_id": tree, "node_id": foreign}, "Node not found"),
                ("node_create_text", {"tree_id": tree, "content": "x", "parent": foreign}, "Node not found"),
                ("context_get_path", {"tree_id": tree, "node_id": "\u2028"}, "Node not found"),
                ("tree_get", {"tree_id": "x" * 101}, "tree_id"),
                ("tree_create", {"owner_id": ""}, "owner_id"),
                ("tree_create", {"owner_id": "a\0b"}, "printable"),
                ("tree_create", {"owner_id": "\x1b[31m"}, "printable"),
                ("tree_create", {"owner_id": "x" * 201}, "owner_id"),
                ("tree_create", {"owner_id": "a", "metadata": {"x": "y" * MAX_METADATA}}, "at most"),
                ("tree_create", {"owner_id": "a", "metadata": [1]}, "metadata"),
                ("tree_claim", {"tree_id": tree, "owner_id": "a", "count": 0}, "count"),
                ("tree_claim", {"tree_id": tree, "owner_id": "a", "count": -5}, "count"),
                ("tree_claim", {"tree_id": tree, "owner_id": "a", "count": 10**12}, "count"),
                ("tree_release", {"tree_id": tree, "owner_id": "a\0"}, "No reference found"),
                ("node_create_text", {"tree_id": tree, "content": "ä" * (MAX_TEXT // 2 + 1)}, "at most"),
                ("node_create_external", {"tree_id": tree, "handle": {"x": "y" * 20_000}}, "at most"),
                ("node_create_external", {"tree_id": tree, "handle": 5}, "handle"),
                ("tree_list", {"after": "x"}, "mark of a page"),
                ("tree_list", {"limit": 0}, "limit"),
                ("node_get_children", {"tree_id": tree, "node_id": "x", "after": "-1"}, ""),
            ):
                with pytest.raises(Refused) as refused:
                    await say(method, **params)
                assert told in str(refused.value), (method, params)
            found = (await say("tree_get", tree_id=tree))["tree"]
            assert len(found["nodes"]) == 1
            assert found["refs"]["ref_count"] == 1
            assert len((await say("tree_list"))["tree_ids"]) == 2

    drive(run())


def test_any_text_comes_back_as_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        for journal in (MemoryJournal(), SqliteJournal(tmp_path / "j.db")):
            async with arbor(journal) as say:
                tree = (await say("tree_create", owner_id="ann")).tree_id
                for content in ("", "\0", "a\0b\x1b[31m\u2028\U0001f600\u202e", "x" * 100_000, "\r\n\t"):
                    metadata = {content[:50]: [content[:50], {"deep": {"er": None}}, 1.5, True]}
                    made = await say("node_create_text", tree_id=tree, content=content, metadata=metadata)
                    node = (await say("node_get", tree_id=tree, node_id=made.node_id)).node
                    assert (node.data.content, node.metadata) == (content, metadata)

    drive(run())


def test_states_follow_the_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def run() -> None:
        import midcall.journal.memory_trees
        import midcall.journal.sqlite.trees

        class Clock:
            now = 1_800_000_000.0

            def time(self) -> float:
                return self.now

        for module, journal in (
            (midcall.journal.memory_trees, MemoryJournal()),
            (midcall.journal.sqlite.trees, SqliteJournal(tmp_path / "j.db")),
        ):
            clock = Clock()
            monkeypatch.setattr(module, "time", clock)
            async with arbor(journal) as say:

                async def later(seconds: float, journal: Any = journal, clock: Clock = clock) -> None:
                    clock.now += seconds
                    await journal.sweep()

                async def states(say: Say = say) -> list[list[str]]:
                    lists = ("tree_list", "tree_list_scheduled", "tree_list_archived")
                    return [(await say(name)).tree_ids for name in lists]

                tree = (await say("tree_create", owner_id="ann")).tree_id
                await later(2 * SCHEDULED)
                assert await states() == [[tree], [], []]
                await say("tree_release", tree_id=tree, owner_id="ann")
                await later(SCHEDULED - 1)
                assert await states() == [[], [tree], []]
                await say("tree_claim", tree_id=tree, owner_id="bob")
                await later(2)
                assert await states() == [[tree], [], []]
                await say("tree_release", tree_id=tree, owner_id="bob")
                await later(SCHEDULED - 1)
                assert await states() == [[], [tree], []]
                await later(2)
                assert await states() == [[], [], [tree]]
                with pytest.raises(Refused, match="is archived"):
                    await say("tree_claim", tree_id=tree, owner_id="ann")
                assert (await say("tree_get", tree_id=tree)).tree.state == "archived"
                await later(ARCHIVED - 2)
                assert await states() == [[], [], [tree]]
                await later(3)
                assert await states() == [[], [], []]
                with pytest.raises(Refused, match="Tree not found"):
                    await say("tree_get", tree_id=tree)

    drive(run())


def test_callers_have_trees_of_their_own() -> None:
    async def run() -> None:
        hub = attached()
        ann, eve, nobody = (calling(hub, name) for name in ("ann", "eve", None))
        tree = (await ann("tree_create", owner_id="x")).tree_id
        root = (await ann("tree_get", tree_id=tree)).tree.root
        shared = (await nobody("tree_create", owner_id="x")).tree_id
        assert (await calling(hub)("tree_list")).tree_ids == [shared]  # callers without a name are one
        for stranger in (eve, nobody):
            assert tree not in (await stranger("tree_list")).tree_ids
            for method, more in (
                ("tree_get", {}),
                ("tree_render", {}),
                ("tree_get_skeleton", {}),
                ("tree_claim", {"owner_id": "x"}),
                ("tree_release", {"owner_id": "x"}),
                ("tree_update_metadata", {"metadata": {}}),
                ("node_create_text", {"content": "evil", "parent": root}),
                ("node_create_external", {"handle": "evil"}),
                ("node_get", {"node_id": root}),
                ("node_get_children", {"node_id": root}),
                ("node_get_parent", {"node_id": root}),
                ("node_get_path", {"node_id": root}),
                ("context_list_leaves", {}),
                ("context_get_path", {"node_id": root}),
                ("context_get_handles", {"node_id": root}),
            ):
                with pytest.raises(Refused, match=f"Tree not found: {tree}"):
                    await stranger(method, tree_id=tree, **more)
        assert (await ann("tree_list")).tree_ids == [tree]
        await hub.close()

    drive(run())


# --- drawing --------------------------------------------------------------------------------


def test_a_drawing_has_a_line_for_each_node_and_nothing_in_it_acts_on_a_terminal() -> None:
    async def run() -> None:
        async with arbor() as say:
            tree = (await say("tree_create", owner_id="ann")).tree_id

            async def add(content: str, parent: str | None = None) -> str:
                made = await say("node_create_text", tree_id=tree, content=content, parent=parent)
                return str(made.node_id)

            a = await add("a")
            b = await add("b\r\nc\td", a)
            await add("x" * 60, b)
            await add("y" * 61, b)
            await add("\x1b]0;owned\x07\x1b[2J\u202egnp", a)
            await add("", a)
            await add("last")
            render = (await say("tree_render", tree_id=tree)).render
            assert render.split("\n") == [
                ".",
                "├── a",
                "│   ├── b↵c d",
                f"│   │   ├── {'x' * 60}",
                f"│   │   └── {'y' * 57}...",
                "│   ├── \\u001b]0;owned\\u0007\\u001b[2J\\u202egnp",
                "│   └── (empty)",
                "└── last",
            ]
            branch = (await say("tree_render", tree_id=tree, node_id=b)).render
            assert branch.split("\n") == ["b↵c d", f"├── {'x' * 60}", f"└── {'y' * 57}..."]

    drive(run())


def test_what_is_not_drawn_of_a_large_tree_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        from midcall.activations import arbor as module

        monkeypatch.setattr(module, "DRAWN", 6)
        monkeypatch.setattr(module, "DRAWN_DEPTH", 3)
        hub = attached()
        store, say = TreeStore.of(hub), calling(hub)
        tree = await store.create(None, "x")
        ids = [new_id() for _ in range(5)]
        chain = [NewNode(str(n), ids[n - 1] if n else None, id=id) for n, id in enumerate(ids)]
        await store.add(None, tree.id, chain)
        render = (await say("tree_render", tree_id=tree.id)).render
        assert render == ".\n└── 0\n    └── 1\n        └── 2\n            └── …"
        await store.add(None, tree.id, [NewNode(f"more {n}") for n in range(9)])
        render = (await say("tree_render", tree_id=tree.id)).render
        assert render.count("\n") == 7
        assert render.endswith("\n├── more 3\n└── …")
        await hub.close()

    drive(run())


# --- large trees ----------------------------------------------------------------------------


def test_a_tree_that_is_too_large_to_be_read_at_once_is_read_by_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def run() -> None:
        hub = attached(SqliteJournal(tmp_path / "j.db"))
        store, say = TreeStore.of(hub), calling(hub)
        tree = await store.create(None, "x")
        ids = [tree.root]
        for _ in range(11):
            chain = [NewNode(f"{n}", id=new_id()) for n in range(1000)]
            linked = list[NewNode]()
            for node in chain:
                linked.append(NewNode(node.text, ids[-1], id=node.id))
                ids.append(node.id)
            await store.add(None, tree.id, linked)
        for method in ("tree_get", "tree_get_skeleton"):
            with pytest.raises(Refused, match=f"The tree has 11001 nodes and .*{MOST_NODES} nodes or"):
                await say(method, tree_id=tree.id)
        found, after = list[str](), None
        while not found or isinstance(after, str):
            more = {} if after is None else {"after": after}
            page = (await say("tree_get", tree_id=tree.id, limit=4000, **more)).tree
            found += page.nodes
            after = page.next
        assert found == ids
        with pytest.raises(Refused, match="The path is longer"):
            await say("node_get_path", tree_id=tree.id, node_id=ids[-1])
        path, node = list[str](), ids[-1]
        while True:
            part = await say("node_get_path", tree_id=tree.id, node_id=node, limit=5000)
            path = [*part.path, *path]
            if not isinstance(part.above, str):
                break
            node = part.above
        assert path == ids
        await hub.close()

    drive(run())


def test_a_tree_is_bounded_by_its_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(tree_store, "MOST_BYTES", 10_000)
        async with arbor() as say:
            tree = (await say("tree_create", owner_id="x")).tree_id
            for _ in range(5):
                await say("node_create_text", tree_id=tree, content="x" * 3000)
            with pytest.raises(Refused, match="The tree has 6 nodes"):
                await say("tree_get", tree_id=tree)
            page = (await say("tree_get", tree_id=tree, limit=100)).tree
            assert len(page.nodes) == 4
            rest = (await say("tree_get", tree_id=tree, limit=100, after=page.next)).tree
            assert len(rest.nodes) == 2
            assert not isinstance(rest.next, str)

    drive(run())


def test_large_texts_are_drawn_within_bounds() -> None:
    async def run() -> None:
        async with arbor() as say:
            tree = (await say("tree_create", owner_id="x")).tree_id
            for number in range(5):
                await say("node_create_text", tree_id=tree, content=f"{number} " + "x" * 4_000_000)
            render = (await say("tree_render", tree_id=tree)).render
            assert 3 <= render.count("\n") <= 4
            assert render.endswith("\n└── …")

    drive(run())


def test_python_code_is_told_what_cannot_be_kept() -> None:
    async def run() -> None:
        hub = attached()
        store = TreeStore.of(hub)
        tree = await store.create(None, "x")
        deep: Any = {}
        for _ in range(100_000):
            deep = {"a": deep}
        for wrong, told in (
            (NewNode("x", id="a b"), "id of a node"),
            (NewNode("x", id=""), "id of a node"),
            (NewNode("\ud800"), "surrogates"),
            (NewNode("x", metadata={"a": object()}), "must be JSON"),
            (NewNode("x", metadata=deep), "must be JSON"),
            (NewNode(handle=deep), "must be JSON"),
            (NewNode("x", "../.."), "Node not found"),
        ):
            with pytest.raises(MidcallError, match=told):
                await store.add(None, tree.id, [NewNode("first"), wrong])
        with pytest.raises(MidcallError, match="1000 at most"):
            await store.add(None, tree.id, [NewNode("x")] * 1001)
        with pytest.raises(MidcallError, match="printable"):
            await store.create(None, "x", kind="k", name="a\0b")
        assert (await store.load(None, tree.id)).nodes == 1
        assert hub.durable is not None
        strange = NodeRecord(id="strange", parent=tree.root, body=b"\xff no msgpack")
        await hub.durable.journal.trees.restore_nodes(tree.id, None, [strange])
        with pytest.raises(Refused, match="The node strange cannot be read"):
            await calling(hub)("node_get", tree_id=tree.id, node_id="strange")
        await hub.close()

    drive(run())


def test_a_caller_has_a_share_of_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(tree_store, "SHARE", 100_000)
        hub = attached()
        ann, bob, nobody = (calling(hub, name) for name in ("ann", "bob", None))
        for say in (ann, bob, nobody):
            tree = (await say("tree_create", owner_id="x")).tree_id
            await say("node_create_text", tree_id=tree, content="x" * 90_000)
            if say is nobody:
                await say("node_create_text", tree_id=tree, content="x" * 90_000)
                continue
            for method, params in (
                ("node_create_text", {"tree_id": tree, "content": "x" * 20_000}),
                ("tree_update_metadata", {"tree_id": tree, "metadata": {"x": "y" * 20_000}}),
                ("tree_create", {"owner_id": "x", "metadata": {"x": "y" * 20_000}}),
            ):
                with pytest.raises(Refused, match="no room left for this caller; release trees"):
                    await say(method, **params)
            await say("tree_release", tree_id=tree, owner_id="x")
        await hub.close()

    drive(run())


def test_arbor_in_a_nested_hub_uses_the_journal_of_the_hub_that_is_served() -> None:
    async def run() -> None:
        inner, outer = Hub("inner").register(Arbor()), Hub("outer")
        outer.register_hub(inner)
        journal = MemoryJournal()
        outer.durable = DurableCalls(outer, journal)
        made = await outer.call("inner.arbor.tree_create", {"owner_id": "x"})
        assert [tree.id for tree in (await journal.trees.every()).trees] == [made.tree_id]
        assert inner.durable is None
        await outer.close()

    drive(run())


def test_without_a_journal_trees_are_kept_in_memory() -> None:
    async def run() -> None:
        hub = Hub().register(Arbor())
        made = await hub.call("arbor.tree_create", {"owner_id": "x"})
        assert (await hub.call("arbor.tree_list")).tree_ids == [made.tree_id]
        await hub.close()

    drive(run())


def test_trees_survive_the_server_that_made_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with WIRES["raw stdio"]() as say:
            tree = (await say("tree_create", owner_id="x"))["tree_id"]
            await asyncio.gather(*(say("node_create_text", tree_id=tree, content=str(n)) for n in range(1)))
        async with WIRES["MCP, modern"]() as say:
            assert (await say("tree_render", tree_id=tree))["render"] == ".\n└── 0"

    drive(run())

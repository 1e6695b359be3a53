"""What every journal must do with trees: plugs in beside `journal_contract.JournalContract`."""

import asyncio
import json
import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from journal_contract import Store, in_store
from midcall.errors import BadExport, BadPage, Conflict, JournalError, TreeError, UnknownNode, UnknownTree
from midcall.journal.trees import (
    ARCHIVED,
    LISTED_CHILDREN,
    MOST_OWNERS,
    MOST_REFERENCES,
    SCHEDULED,
    ExportedNodes,
    ExportedTree,
    NodeRecord,
    TreeChange,
    TreeRecord,
    Trees,
    tree_from_export,
    tree_to_export,
)

HOSTILE_IDS = ("", "x" * 101, "a b", "a\0b", "ä", "%", "'; DROP TABLE trees", "\ud800", "../x", "a\n")


def new_tree(
    principal: str | None = "ada", owner: str = "own", **given: Any
) -> tuple[TreeRecord, NodeRecord]:
    """A tree that is to be written, and its root."""
    root = NodeRecord(id=f"root-{uuid.uuid4()}", body=b"root")
    values: dict[str, Any] = {"id": str(uuid.uuid4()), "principal": principal, "owners": {owner: 1}}
    return TreeRecord(root=root.id, **values | given), root


async def planted(trees: Trees, principal: str | None = "ada", **given: Any) -> TreeRecord:
    """A tree that is there."""
    tree, root = new_tree(principal, **given)
    await trees.create(tree, root)
    return await trees.load(tree.id, principal)


def node(parent: str | None = None, body: bytes = b"text", **given: Any) -> NodeRecord:
    return NodeRecord(id=given.pop("id", None) or str(uuid.uuid4()), parent=parent, body=body, **given)


async def add(trees: Trees, tree: TreeRecord, *nodes: NodeRecord) -> None:
    await trees.write(tree.id, tree.principal, TreeChange(nodes=nodes))


async def chain(trees: Trees, tree: TreeRecord, length: int) -> list[str]:
    """Nodes each of which is below the one before; their ids, from the root on."""
    ids, nodes = [tree.root], list[NodeRecord]()
    for number in range(length):
        nodes.append(node(ids[-1], b"%d" % number))
        ids.append(nodes[-1].id)
    for first in range(0, length, 2000):
        await add(trees, tree, *nodes[first : first + 2000])
    return ids


def ids_of(nodes: Sequence[NodeRecord]) -> list[str]:
    return [one.id for one in nodes]


class TreesContract:
    """The contract. A subclass says what the store is."""

    def store(self) -> AbstractAsyncContextManager[Store]:
        raise NotImplementedError

    async def age_tree(self, journal: Any, tree_id: str, seconds: float) -> None:
        """As if the clock of the store went on for so long, as far as this tree is concerned."""
        raise NotImplementedError

    @in_store
    async def test_a_tree_comes_back_as_it_was_also_to_another_worker(self, store: Store) -> None:
        here, there = (await store.worker()).trees, (await store.worker()).trees
        for principal in ("ada", None, "", "x" * 900):
            tree, root = new_tree(
                principal, metadata=b"\0\xff", note=b"n\0", kind="k", name="same \U0001f600"
            )
            await here.create(tree, root)
            found = await there.load(tree.id, principal)
            assert replace(found, created=0.0, updated=0.0, size=0, nodes=0) == tree
            assert (found.nodes, found.created > 1e9, found.updated) == (1, True, found.created)
            assert await there.node(tree.id, principal, root.id) == replace(root, created=found.created)
            assert await there.find("k", "same \U0001f600", principal) == found
            assert await there.find("other", "same \U0001f600", principal) is None

    @in_store
    async def test_nobody_finds_what_belongs_to_another(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees, "ada", kind="k", name="n")
        for stranger in (None, "", "eve", "ada "):
            for asking in (
                trees.load(tree.id, stranger),
                trees.node(tree.id, stranger, tree.root),
                trees.nodes(tree.id, stranger),
                trees.path(tree.id, stranger, tree.root, limit=9),
                trees.branch(tree.id, stranger, None, depth=9, limit=9),
                trees.children(tree.id, stranger, tree.root),
                trees.leaves(tree.id, stranger),
                trees.claim(tree.id, stranger, "own", 1),
                trees.release(tree.id, stranger, "own", 1),
                trees.write(tree.id, stranger, TreeChange(metadata=b"evil")),
                trees.restore_nodes(tree.id, stranger, [node(tree.root)]),
            ):
                with pytest.raises(UnknownTree):
                    await asking
            assert await trees.find("k", "n", stranger) is None
            assert (await trees.list(stranger)).trees == []
        assert await trees.load(tree.id, "ada") == tree

    @in_store
    async def test_ids_that_cannot_be_are_not_found(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree, other = await planted(trees), await planted(trees)
        for id in HOSTILE_IDS:
            with pytest.raises(UnknownTree):
                await trees.load(id, "ada")
            with pytest.raises(UnknownTree):
                await trees.write(id, "ada", TreeChange())
            for asking in (
                trees.node(tree.id, "ada", id),
                trees.path(tree.id, "ada", id, limit=9),
                trees.children(tree.id, "ada", id),
                trees.branch(tree.id, "ada", id, depth=1, limit=9),
                trees.write(tree.id, "ada", TreeChange(nodes=[node(id)])),
            ):
                with pytest.raises(UnknownNode):
                    await asking
        with pytest.raises(UnknownNode):
            await add(trees, tree, node(other.root))  # a parent in another tree
        with pytest.raises(UnknownNode):
            await trees.node(tree.id, "ada", other.root)
        for after in ("", "-1", "1e3", "²", "9" * 30, "x"):
            with pytest.raises(BadPage):
                await trees.list("ada", after=after)
            with pytest.raises(BadPage):
                await trees.nodes(tree.id, "ada", after=after)
        assert (await trees.nodes(tree.id, "ada", after="9" * 18)).nodes == []
        assert (await trees.leaves(tree.id, "ada", after="9" * 18)).ids == []

    @in_store
    async def test_a_name_is_taken_once_for_each_kind_and_principal(self, store: Store) -> None:
        trees = (await store.worker()).trees
        people = ("ada", "eve", None, "")
        for kind in ("cone", "other"):
            for person in people:
                await planted(trees, person, kind=kind, name="n")
                with pytest.raises(Conflict, match=f"There is a {kind} n already"):
                    await planted(trees, person, kind=kind, name="n")
        first = await trees.find("cone", "n", "ada")
        assert first is not None
        with pytest.raises(TreeError, match="already"):
            await planted(trees, "ada", id=first.id)
        await trees.write(first.id, "ada", TreeChange(unnamed=True))
        assert await trees.find("cone", "n", "ada") is None
        assert (await trees.load(first.id, "ada")).kind == ""
        second = await planted(trees, "ada", kind="cone", name="n")
        assert [one.id for one in (await trees.list("ada", kind="cone")).trees] == [second.id]

    @in_store
    async def test_of_many_who_take_a_name_at_once_one_does(self, store: Store) -> None:
        workers = [(await store.worker()).trees for _ in range(3)]
        told = await asyncio.gather(
            *(planted(workers[n % 3], "ada", kind="k", name="n") for n in range(9)), return_exceptions=True
        )
        assert sorted(type(one).__name__ for one in told) == ["Conflict"] * 8 + ["TreeRecord"]

    @in_store
    async def test_trees_are_listed_by_pages_the_newest_first(self, store: Store) -> None:
        trees = (await store.worker()).trees
        made = [await planted(trees, kind="k" if n % 2 else "") for n in range(7)]
        await planted(trees, "eve")
        pages, after = list[list[str]](), None
        while not pages or after is not None:
            page = await trees.list("ada", after=after, limit=3)
            pages.append([one.id for one in page.trees])
            after = page.next
        newest = [one.id for one in made[::-1]]
        assert pages == [newest[:3], newest[3:6], newest[6:]]
        assert [one.id for one in (await trees.list("ada", kind="k")).trees] == newest[1::2]
        await trees.release(made[2].id, "ada", "own", 1)
        assert [one.id for one in (await trees.list("ada", states=["scheduled_delete"])).trees] == [
            made[2].id
        ]
        assert made[2].id not in [one.id for one in (await trees.list("ada")).trees]
        full = await planted(trees, "bob", kind="k", metadata=b"m", note=b"n")
        (bare,) = (await trees.list("bob")).trees
        assert bare == replace(full, owners={}, metadata=b"", note=b"")
        assert list((await trees.list("bob", kind="k")).trees) == [replace(full, owners={})]
        both = await trees.list("ada", states=["active", "scheduled_delete"])
        assert [one.id for one in both.trees] == newest

    # nodes

    @in_store
    async def test_nodes_are_given_in_their_order_with_their_children(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees)
        a, b = node(None, b"a\0\xff"), node(tree.root, b"b")
        c, d = node(a.id, b"c", external=True), node(a.id, b"d")
        await add(trees, tree, a, c)
        await add(trees, tree, b)
        await add(trees, tree, d)
        page = await trees.nodes(tree.id, "ada")
        assert page.next is None
        assert ids_of(page.nodes) == [tree.root, a.id, c.id, b.id, d.id]
        assert [one.parent for one in page.nodes] == [None, tree.root, a.id, tree.root, a.id]
        assert [list(one.children) for one in page.nodes] == [[a.id, b.id], [c.id, d.id], [], [], []]
        assert [one.body for one in page.nodes] == [b"root", b"a\0\xff", b"c", b"b", b"d"]
        assert [one.external for one in page.nodes] == [False, False, True, False, False]
        assert await trees.node(tree.id, "ada", a.id) == page.nodes[1]
        bare = await trees.nodes(tree.id, "ada", size=0)
        assert list(bare.nodes) == [replace(one, body=b"") for one in page.nodes]
        assert (await trees.children(tree.id, "ada", a.id)).ids == [c.id, d.id]
        assert (await trees.leaves(tree.id, "ada")).ids == [c.id, b.id, d.id]
        assert ids_of(await trees.path(tree.id, "ada", d.id, limit=9)) == [tree.root, a.id, d.id]
        grown = await trees.load(tree.id, "ada")
        assert (grown.nodes, grown.updated >= tree.updated, grown.size > tree.size) == (5, True, True)

    @in_store
    async def test_a_write_that_cannot_be_whole_changes_nothing(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees, note=b"note")
        known = node()
        await add(trees, tree, known)
        before = await trees.load(tree.id, "ada")
        twice = node()
        for nodes in (
            [node(), node("unknown")],
            [node(), replace(known, body=b"other")],
            [twice, twice],
            [one := node("later"), node(id="later", parent=one.id)],  # a cycle
            [node("self", id="self")],
        ):
            with pytest.raises(TreeError):
                await trees.write(tree.id, "ada", TreeChange(nodes=nodes, metadata=b"m", note=b"other"))
        with pytest.raises(Conflict):
            await trees.write(tree.id, "ada", TreeChange(nodes=[node()], note=b"other", version=2))
        assert await trees.load(tree.id, "ada") == before
        assert len((await trees.nodes(tree.id, "ada")).nodes) == 2

    @in_store
    async def test_the_note_is_changed_by_whoever_has_read_it_last(self, store: Store) -> None:
        workers = [(await store.worker()).trees for _ in range(3)]
        tree = await planted(workers[0], note=b"0")
        assert tree.version == 1
        changes = [TreeChange(note=b"%d" % n, version=1, nodes=[node()]) for n in range(9)]
        told = await asyncio.gather(
            *(workers[n % 3].write(tree.id, "ada", change) for n, change in enumerate(changes)),
            return_exceptions=True,
        )
        assert sorted(str(one) for one in told) == ["2", *["The tree has changed in the meantime"] * 8]
        found = await workers[0].load(tree.id, "ada")
        assert (found.version, found.note, found.nodes) == (2, b"%d" % told.index(2), 2)
        assert await workers[0].write(tree.id, "ada", TreeChange(metadata=b"m")) == 2
        assert (await workers[0].load(tree.id, "ada")).metadata == b"m"

    @in_store
    async def test_what_is_read_at_once_is_bounded(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees)
        ids = [tree.root]
        for number in range(6):
            ids.append(f"n{number}")
            await add(trees, tree, node(ids[-2], b"x" * 1000, id=ids[-1]))
        found, after = list[list[str]](), None
        while not found or after is not None:
            page = await trees.nodes(tree.id, "ada", after=after, limit=4, size=2500)
            found.append(ids_of(page.nodes))
            after = page.next
        assert found == [ids[:3], ids[3:5], ids[5:]]
        assert ids_of((await trees.nodes(tree.id, "ada", after="1", limit=9, size=10)).nodes) == ids[2:3]
        assert ids_of((await trees.nodes(tree.id, "ada", limit=4)).nodes) == ids[:4]
        assert ids_of(await trees.path(tree.id, "ada", ids[-1], limit=3)) == ids[-3:]
        assert ids_of(await trees.path(tree.id, "ada", ids[-1], limit=9, size=2500)) == ids[-2:]
        assert ids_of(await trees.path(tree.id, "ada", ids[-1], limit=9, size=10)) == ids[-1:]
        bare = await trees.path(tree.id, "ada", ids[-1], limit=9, size=0)
        assert (ids_of(bare), {one.body for one in bare}) == (ids, {b""})
        assert ids_of(await trees.branch(tree.id, "ada", ids[2], depth=2, limit=9)) == ids[2:5]
        assert ids_of(await trees.branch(tree.id, "ada", None, depth=99, limit=3)) == ids[:3]
        assert ids_of(await trees.branch(tree.id, "ada", ids[1], depth=99, limit=9, size=2500)) == ids[1:3]
        assert ids_of(await trees.branch(tree.id, "ada", ids[1], depth=99, limit=9, size=10)) == ids[1:2]

    @in_store
    async def test_a_node_with_many_children_is_given_with_some_and_all_are_found_by_pages(
        self, store: Store
    ) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees)
        children = [node(id=f"c{number}") for number in range(LISTED_CHILDREN + 5)]
        await add(trees, tree, *children)
        root = await trees.node(tree.id, "ada", tree.root)
        assert (list(root.children), root.more_children) == (ids_of(children)[:LISTED_CHILDREN], True)
        branch = await trees.branch(tree.id, "ada", None, depth=5, limit=5000)
        assert ids_of(branch) == [tree.root, *ids_of(children)[:LISTED_CHILDREN]]
        found, after = list[str](), None
        for asking in (
            lambda at: trees.children(tree.id, "ada", tree.root, after=at, limit=90),
            lambda at: trees.leaves(tree.id, "ada", after=at, limit=90),
        ):
            found, after = [], None
            while not found or after is not None:
                page = await asking(after)
                assert len(page.ids) <= 90
                found += page.ids
                after = page.next
            assert found == ids_of(children)

    @in_store
    async def test_a_branch_is_read_level_by_level(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees)
        a, b = node(id="a"), node(id="b")
        below = [node("b", id="b1"), node("a", id="a1"), node("a1", id="a11"), node("b", id="b2")]
        await add(trees, tree, a, b, *below)
        whole = ids_of(await trees.branch(tree.id, "ada", None, depth=9, limit=99))
        assert [set(whole[:1]), set(whole[1:3]), set(whole[3:6]), set(whole[6:])] == [
            {tree.root}, {"a", "b"}, {"a1", "b1", "b2"}, {"a11"},
        ]  # fmt: skip
        assert set(ids_of(await trees.branch(tree.id, "ada", None, depth=1, limit=99))) == {
            tree.root,
            "a",
            "b",
        }
        assert ids_of(await trees.branch(tree.id, "ada", "a", depth=9, limit=99)) == ["a", "a1", "a11"]

    @in_store
    async def test_a_chain_may_be_deep(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees)
        ids = await chain(trees, tree, 3000)
        assert ids_of(await trees.path(tree.id, "ada", ids[-1], limit=5000, size=0)) == ids
        assert ids_of(await trees.path(tree.id, "ada", ids[-1], limit=10)) == ids[-10:]
        assert ids_of(await trees.branch(tree.id, "ada", None, depth=5000, limit=5000)) == ids
        assert (await trees.leaves(tree.id, "ada")).ids == ids[-1:]

    @in_store
    async def test_of_many_who_write_to_a_tree_at_once_nobody_is_lost(self, store: Store) -> None:
        workers = [(await store.worker()).trees for _ in range(3)]
        tree = await planted(workers[0])

        async def writer(number: int) -> list[str]:
            parent, mine = tree.root, list[str]()
            for _ in range(8):
                one = node(parent, b"%d" % number)
                await add(workers[number % 3], tree, one)
                mine.append(one.id)
                parent = one.id
            return mine

        chains = await asyncio.gather(*map(writer, range(6)))
        for ids in chains:
            assert ids_of(await workers[0].path(tree.id, "ada", ids[-1], limit=99)) == [tree.root, *ids]
        every = ids_of((await workers[1].nodes(tree.id, "ada")).nodes)
        assert len(every) == len(set(every)) == (await workers[2].load(tree.id, "ada")).nodes == 49
        for ids in chains:
            assert [one for one in every if one in ids] == ids

    # references

    @in_store
    async def test_references_are_counted_by_owner(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees, owner="ann")
        assert await trees.claim(tree.id, "ada", "ann", 2) == 3
        assert await trees.claim(tree.id, "ada", "bob \U0001f600", 1) == 1
        assert (await trees.load(tree.id, "ada")).owners == {"ann": 3, "bob \U0001f600": 1}
        for owner, count, told in (
            ("ann", 4, "Cannot release 4 references, owner only has 3"),
            ("eve", 1, "No reference found for owner eve"),
        ):
            with pytest.raises(TreeError) as caught:
                await trees.release(tree.id, "ada", owner, count)
            assert str(caught.value) == told
        assert await trees.release(tree.id, "ada", "ann", 3) == 0
        with pytest.raises(TreeError, match="No reference found for owner ann"):
            await trees.release(tree.id, "ada", "ann", 1)
        found = await trees.load(tree.id, "ada")
        assert (found.owners, found.state, found.due) == ({"bob \U0001f600": 1}, "active", None)
        assert await trees.release(tree.id, "ada", "bob \U0001f600", 1) == 0
        assert (await trees.load(tree.id, "ada")).state == "scheduled_delete"
        with pytest.raises(TreeError, match="at most"):
            await trees.claim(tree.id, "ada", "ann", MOST_REFERENCES + 1)

    @in_store
    async def test_a_tree_has_not_more_owners_than_may_be(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees, owners={f"owner {number}": 1 for number in range(MOST_OWNERS)})
        with pytest.raises(TreeError, match="at most"):
            await trees.claim(tree.id, "ada", "one more", 1)
        assert await trees.claim(tree.id, "ada", "owner 7", 1) == 2
        await trees.release(tree.id, "ada", "owner 8", 1)
        assert await trees.claim(tree.id, "ada", "one more", 1) == 1

    @in_store
    async def test_of_many_who_claim_and_release_at_once_everything_counts(self, store: Store) -> None:
        workers = [(await store.worker()).trees for _ in range(3)]
        tree = await planted(workers[0], owner="a")
        await asyncio.gather(*(workers[n % 3].claim(tree.id, "ada", "ab"[n % 2], 1 + n) for n in range(12)))
        total = {"a": 1 + sum(range(1, 12, 2)), "b": sum(range(2, 13, 2))}
        assert (await workers[0].load(tree.id, "ada")).owners == total
        told = await asyncio.gather(
            *(workers[n % 3].release(tree.id, "ada", "b", 10) for n in range(6)), return_exceptions=True
        )
        done = [one for one in told if isinstance(one, int)]
        assert sorted(done) == [2, 12, 22, 32]
        assert (await workers[0].load(tree.id, "ada")).owners == total | {"b": 2}

    @in_store
    async def test_a_tree_without_references_is_archived_and_then_purged(self, store: Store) -> None:
        journal = await store.worker()
        trees = journal.trees
        tree, stays = await planted(trees, kind="k", name="n"), await planted(trees)
        await add(trees, tree, node(id="a"))
        await trees.release(tree.id, "ada", "own", 1)
        assert await journal.sweep() == 0
        found = await trees.load(tree.id, "ada")
        assert found.due is not None
        assert abs(found.due - found.updated - SCHEDULED) < 1
        with pytest.raises(TreeError, match="is scheduled for deletion: claim it first"):
            await add(trees, tree, node())
        assert ids_of((await trees.nodes(tree.id, "ada")).nodes) == [tree.root, "a"]

        await self.age_tree(journal, tree.id, SCHEDULED - 60)
        assert await journal.sweep() == 0
        await self.age_tree(journal, tree.id, 61)
        assert await journal.sweep() == 1
        found = await trees.load(tree.id, "ada")
        assert found.state == "archived"
        assert found.due is not None
        assert abs(found.due - found.updated - ARCHIVED) < 1
        assert [one.id for one in (await trees.list("ada", states=["archived"])).trees] == [tree.id]
        for asking in (
            trees.claim(tree.id, "ada", "own", 1),
            trees.write(tree.id, "ada", TreeChange(metadata=b"m")),
        ):
            with pytest.raises(TreeError, match="is archived"):
                await asking
        assert ids_of((await trees.nodes(tree.id, "ada")).nodes) == [tree.root, "a"]

        await self.age_tree(journal, tree.id, ARCHIVED + 1)
        assert await journal.sweep() == 1
        with pytest.raises(UnknownTree):
            await trees.load(tree.id, "ada")
        assert await trees.find("k", "n", "ada") is None
        assert await journal.sweep() == 0
        assert [one.id for one in (await trees.every()).trees] == [stays.id]
        await trees.create(*new_tree(id=tree.id, kind="k", name="n"))  # nothing is left of it
        assert len((await trees.nodes(tree.id, "ada")).nodes) == 1

    @in_store
    async def test_a_claim_brings_a_scheduled_tree_back(self, store: Store) -> None:
        journal = await store.worker()
        trees = journal.trees
        tree = await planted(trees)
        await trees.release(tree.id, "ada", "own", 1)
        await self.age_tree(journal, tree.id, SCHEDULED - 60)
        assert await trees.claim(tree.id, "ada", "other", 1) == 1
        await add(trees, tree, node())
        await self.age_tree(journal, tree.id, 2 * SCHEDULED)
        assert await journal.sweep() == 0
        found = await trees.load(tree.id, "ada")
        assert (found.state, found.due, found.owners, found.nodes) == ("active", None, {"other": 1}, 2)
        await trees.release(tree.id, "ada", "other", 1)
        found = await trees.load(tree.id, "ada")
        assert found.due is not None
        assert found.due - found.updated > SCHEDULED - 60  # it has all of its time again

    @in_store
    async def test_of_a_claim_and_the_sweeper_one_comes_first(self, store: Store) -> None:
        here, there = await store.worker(), await store.worker()
        for _ in range(10):
            tree = await planted(here.trees)
            await here.trees.release(tree.id, "ada", "own", 1)
            await self.age_tree(here, tree.id, SCHEDULED + 1)
            claimed, _ = await asyncio.gather(
                here.trees.claim(tree.id, "ada", "own", 1), there.sweep(), return_exceptions=True
            )
            state = (await here.trees.load(tree.id, "ada")).state
            assert (claimed, state) == (1, "active") or (type(claimed), state) == (TreeError, "archived")

    @in_store
    async def test_claims_releases_writes_and_the_sweeper_at_once_leave_a_tree_that_makes_sense(
        self, store: Store
    ) -> None:
        workers = [await store.worker() for _ in range(3)]
        for turn in range(6):
            tree = await planted(workers[0].trees)
            written = list[str]()

            async def work(number: int, tree: TreeRecord = tree, written: list[str] = written) -> None:
                journal = workers[number % 3]
                for step in range(8):
                    try:
                        match (number + step) % 5:
                            case 0:
                                await journal.trees.release(tree.id, "ada", "own", 1)
                            case 1:
                                await journal.trees.claim(tree.id, "ada", "own", 1)
                            case 2:
                                await self.age_tree(journal, tree.id, SCHEDULED + 1)
                            case 3:
                                await journal.sweep()
                            case 4:
                                one = node()
                                await add(journal.trees, tree, one)
                                written.append(one.id)
                    except TreeError:
                        pass

            await asyncio.gather(*map(work, range(turn, turn + 4)))
            try:
                found = await workers[1].trees.load(tree.id, "ada")
            except UnknownTree:
                continue
            assert (found.state == "active") == bool(found.owners) == (found.due is None)
            nodes = ids_of((await workers[2].trees.nodes(tree.id, "ada")).nodes)
            assert sorted(nodes) == sorted([tree.root, *written])

    @in_store
    async def test_a_large_tree_is_purged_whole(self, store: Store) -> None:
        journal = await store.worker()
        trees = journal.trees
        tree = await planted(trees)
        await chain(trees, tree, 5000)
        await trees.release(tree.id, "ada", "own", 1)
        for seconds in (SCHEDULED + 1, ARCHIVED + 1):
            await self.age_tree(journal, tree.id, seconds)
            await journal.sweep()
        with pytest.raises(UnknownTree):
            await trees.nodes(tree.id, "ada")
        assert await trees.held("ada") == 0
        while await journal.sweep():
            pass
        await trees.create(*new_tree(id=tree.id))
        assert len((await trees.nodes(tree.id, "ada")).nodes) == 1

    # all of them

    @in_store
    async def test_what_a_principal_has_is_counted(self, store: Store) -> None:
        trees = (await store.worker()).trees
        assert await trees.held("ada") == 0
        tree = await planted(trees, metadata=b"m" * 1000)
        await add(trees, tree, node(body=b"x" * 50_000))
        await planted(trees, "eve")
        size = await trees.held("ada")
        assert 51_000 < size < 54_000
        assert (await trees.load(tree.id, "ada")).size == size
        await trees.write(tree.id, "ada", TreeChange(metadata=b"", note=b"n" * 400))
        assert await trees.held("ada") == size - 600

    @in_store
    async def test_it_is_known_when_trees_have_changed(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree, other = await planted(trees), await planted(trees, "eve")
        before = await trees.updated([tree.id, other.id, "unknown"])
        assert before == {tree.id: tree.updated, other.id: other.updated}
        await add(trees, tree, node())
        after = await trees.updated([tree.id, other.id])
        assert after[tree.id] > before[tree.id]
        assert after[other.id] == before[other.id]
        assert await trees.updated([]) == {}

    @in_store
    async def test_the_trees_of_everybody_move_to_another_store(self, store: Store) -> None:
        journal = await store.worker()
        trees = journal.trees
        for person in ("ada", None, "", "eve"):
            tree = await planted(trees, person, kind="k", name="n", metadata=b"m\xff", note=b"n")
            await trees.claim(tree.id, person, "second", 3)
            await chain(trees, tree, 5)
            await add(trees, tree, node(external=True))
        scheduled = await planted(trees, "eve")
        await trees.release(scheduled.id, "eve", "own", 1)
        exported = list[dict[str, Any]]()
        after: str | None = None
        while not exported or after is not None:
            page = await trees.every(after, limit=2)
            for one in page.trees:
                exported.append(tree_to_export(ExportedTree(one)))
                part: str | None = None
                while True:
                    nodes = await trees.nodes(one.id, one.principal, after=part, limit=4)
                    some = ExportedNodes(one.id, one.principal, list(nodes.nodes))
                    exported.append(tree_to_export(some))
                    part = nodes.next
                    if part is None:
                        break
            after = page.next
        async with self.store() as second:
            moved = (await second.worker()).trees
            for _ in range(2):  # one that was cut off is done again
                for values in json.loads(json.dumps(exported)):
                    match tree_from_export(values):
                        case ExportedTree(one):
                            await moved.restore(one)
                        case ExportedNodes(id, person, nodes):
                            await moved.restore_nodes(id, person, nodes)
            every = list((await trees.every()).trees)
            assert list((await moved.every()).trees) == every
            for one in every:
                assert await moved.nodes(one.id, one.principal) == await trees.nodes(one.id, one.principal)
            assert not await moved.restore(every[0])
            await add(moved, every[0], node())

    @in_store
    async def test_what_is_no_exported_tree_is_refused(self, store: Store) -> None:
        trees = (await store.worker()).trees
        tree, root = new_tree()
        assert await trees.restore(tree)
        for nodes in (
            [node("unknown")],
            [node()],
            [root, root],
            [root, node(root.id, id="b"), replace(root, parent="b")],
            [replace(root, parent="x")],
            [root, one := node("later"), node(one.id, id="later")],
        ):
            with pytest.raises(BadExport):
                await trees.restore_nodes(tree.id, "ada", nodes)
        assert (await trees.nodes(tree.id, "ada")).nodes == []
        good = tree_to_export(ExportedTree(tree))
        for wrong in (
            {"id": "a b"}, {"owners": {"x": 0}}, {"owners": {"": 1}}, {"state": "purged"}, {"created": -1},
            {"name": "x" * 300},
            {"version": 10**30},
            {"version": 0}, {"root": None}, {"metadata": "?"},
        ):  # fmt: skip
            with pytest.raises(BadExport):
                tree_from_export({"tree": good["tree"] | wrong})
        with pytest.raises(BadExport):
            tree_from_export({"nodes_of": "x", "principal": None, "nodes": [{"id": "a\0"}]})

    @in_store
    async def test_trees_of_a_journal_that_is_not_open_are_not_reached(self, store: Store) -> None:
        journal = await store.worker()
        tree = await planted(journal.trees)
        await journal.close()
        trees = journal.trees
        for asking in (
            trees.load(tree.id, "ada"),
            trees.create(*new_tree()),
            trees.list("ada"),
            trees.claim(tree.id, "ada", "own", 1),
            trees.write(tree.id, "ada", TreeChange(nodes=[node()])),
        ):
            with pytest.raises(JournalError, match="not open"):
                await asking

"""Trees in memory: the contract of `trees` in its shortest form, which the other stores are tested against.

Nothing here awaits, so each method is atomic without a lock.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from midcall.errors import JournalFull, TreeError, UnknownNode, UnknownTree
from midcall.journal.trees import (
    ARCHIVED,
    LISTED_CHILDREN,
    SCHEDULED,
    IdPage,
    NodePage,
    NodeRecord,
    TreeChange,
    TreePage,
    TreeRecord,
    TreeState,
    bounded,
    check_claim,
    check_release,
    check_restored,
    check_version,
    check_writable,
    name_taken,
    page_number,
    size_of_node,
    size_of_tree,
)

if TYPE_CHECKING:
    from midcall.journal.memory import MemoryJournal

TREE_BYTES = 256 * 1024 * 1024
"""How large all trees may be together. What people keep is not given up for others: more is refused."""


@dataclass(slots=True)
class KeptTree:
    """A tree in memory."""

    number: int
    record: TreeRecord
    nodes: list[NodeRecord] = field(default_factory=list)
    """In the order in which they were added, without children."""
    places: dict[str, int] = field(default_factory=dict)
    """Where each node is in it, by its id."""
    below: dict[int, list[int]] = field(default_factory=dict)
    """Where the children of a node are, by its own place."""

    def place(self, node_id: str) -> int:
        """Where a node is. Raises `UnknownNode`."""
        try:
            return self.places[node_id]
        except KeyError:
            raise UnknownNode(node_id) from None

    def add(self, node: NodeRecord) -> None:
        place = self.places[node.id] = len(self.nodes)
        self.nodes.append(node)
        if node.parent is not None:
            self.below.setdefault(self.places[node.parent], []).append(place)

    def node(self, place: int) -> NodeRecord:
        """A node with its children."""
        below = self.below.get(place, ())
        children = tuple(self.nodes[child].id for child in islice(below, LISTED_CHILDREN))
        return replace(self.nodes[place], children=children, more_children=len(below) > LISTED_CHILDREN)


@dataclass(slots=True)
class KeptTrees:
    """All trees of a memory, the oldest first."""

    by_id: dict[str, KeptTree] = field(default_factory=dict)
    size: int = 0
    count: int = 0
    """How many there ever were."""


class MemoryTrees:
    """The trees of a memory."""

    def __init__(self, journal: "MemoryJournal") -> None:
        self._journal = journal

    async def create(self, tree: TreeRecord, root: NodeRecord) -> None:
        if tree.id in self._all().by_id:
            raise TreeError(f"The tree {tree.id} already exists")
        if tree.name is not None and await self.find(tree.kind, tree.name, tree.principal) is not None:
            raise name_taken(tree)
        now = time.time()
        self._check_room(size_of_tree(tree) + size_of_node(root))
        kept = self._keep(replace(tree, created=now, updated=now))
        self._add(kept, [replace(root, parent=None)], now)

    async def load(self, tree_id: str, principal: str | None) -> TreeRecord:
        return self._find(tree_id, principal).record

    async def find(self, kind: str, name: str, principal: str | None) -> TreeRecord | None:
        named = (kept.record for kept in self._of(principal))
        return next((one for one in named if (one.kind, one.name) == (kind, name)), None)

    async def list(
        self,
        principal: str | None,
        *,
        states: Sequence[TreeState] = ("active",),
        kind: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> TreePage:
        before = None if after is None else page_number(after)
        found = [
            kept
            for kept in reversed(list(self._of(principal)))
            if kept.record.state in states
            and kind in (None, kept.record.kind)
            and (before is None or kept.number < before)
        ]
        trees = [replace(kept.record, owners={}) for kept in found[:limit]]
        if kind is None:
            trees = [replace(tree, metadata=b"", note=b"") for tree in trees]
        return TreePage(trees, str(found[limit - 1].number) if len(found) > limit else None)

    async def write(self, tree_id: str, principal: str | None, change: TreeChange) -> int:
        kept = self._find(tree_id, principal)
        tree = kept.record
        check_writable(tree_id, tree.state, change)
        check_version(change, tree.version)
        known = set[str]()
        for node in change.nodes:
            if node.parent is not None and node.parent not in known:
                kept.place(node.parent)
            if node.id in known or node.id in kept.places:
                raise TreeError(f"The node {node.id} already exists")
            known.add(node.id)
        now = time.time()
        changed = replace(tree, updated=now)
        if change.metadata is not None:
            changed = replace(changed, metadata=change.metadata)
        if change.note is not None:
            changed = replace(changed, note=change.note, version=tree.version + 1)
        if change.unnamed:
            changed = replace(changed, name=None, kind="")
        grown = size_of_tree(changed) - size_of_tree(tree)
        self._check_room(grown + sum(map(size_of_node, change.nodes)))
        self._all().size += grown
        kept.record = replace(changed, size=changed.size + grown)
        self._add(kept, change.nodes, now)
        return kept.record.version

    async def claim(self, tree_id: str, principal: str | None, owner: str, count: int) -> int:
        kept = self._find(tree_id, principal)
        tree = kept.record
        new = check_claim(tree_id, tree.state, owner, count, tree.owners)
        kept.record = replace(
            tree, owners={**tree.owners, owner: new}, state="active", due=None, updated=time.time()
        )
        return new

    async def release(self, tree_id: str, principal: str | None, owner: str, count: int) -> int:
        kept = self._find(tree_id, principal)
        tree, now = kept.record, time.time()
        left = check_release(owner, count, tree.owners)
        owners = {one: held for one, held in {**tree.owners, owner: left}.items() if held}
        tree = replace(tree, owners=owners, updated=now)
        kept.record = tree if owners else replace(tree, state="scheduled_delete", due=now + SCHEDULED)
        return left

    async def node(self, tree_id: str, principal: str | None, node_id: str) -> NodeRecord:
        kept = self._find(tree_id, principal)
        return kept.node(kept.place(node_id))

    async def nodes(
        self,
        tree_id: str,
        principal: str | None,
        *,
        after: str | None = None,
        limit: int = 1000,
        size: int | None = None,
    ) -> NodePage:
        kept = self._find(tree_id, principal)
        begin = 0 if after is None else page_number(after) + 1
        places = range(begin, min(begin + limit, len(kept.nodes)))
        found = bounded(map(kept.node, places), size)
        end = begin + len(found)
        return NodePage(found, str(end - 1) if end < len(kept.nodes) else None)

    async def path(
        self, tree_id: str, principal: str | None, node_id: str, *, limit: int, size: int | None = None
    ) -> Sequence[NodeRecord]:
        kept = self._find(tree_id, principal)
        return bounded(islice(_upwards(kept, kept.place(node_id)), limit), size)[::-1]

    async def branch(
        self,
        tree_id: str,
        principal: str | None,
        node_id: str | None,
        *,
        depth: int,
        limit: int,
        size: int | None = None,
    ) -> Sequence[NodeRecord]:
        kept = self._find(tree_id, principal)
        level = [0 if node_id is None else kept.place(node_id)]
        found = list[int]()
        for _ in range(depth + 1):
            found += level[: limit - len(found)]
            level = [child for place in level for child in kept.below.get(place, ())[:LISTED_CHILDREN]]
            if not level or len(found) == limit:
                break
        return bounded(map(kept.node, found), size)

    async def children(
        self,
        tree_id: str,
        principal: str | None,
        node_id: str,
        *,
        after: str | None = None,
        limit: int = 1000,
    ) -> IdPage:
        kept = self._find(tree_id, principal)
        return _ids(kept, kept.below.get(kept.place(node_id), ()), after, limit)

    async def leaves(
        self, tree_id: str, principal: str | None, *, after: str | None = None, limit: int = 1000
    ) -> IdPage:
        kept = self._find(tree_id, principal)
        without = (place for place in range(len(kept.nodes)) if place not in kept.below)
        return _ids(kept, without, after, limit)

    async def held(self, principal: str) -> int:
        return sum(kept.record.size for kept in self._of(principal))

    async def updated(self, tree_ids: Sequence[str]) -> Mapping[str, float]:
        known = self._all().by_id
        return {id: known[id].record.updated for id in tree_ids if id in known}

    async def every(self, after: str | None = None, limit: int = 100) -> TreePage:
        before = 0 if after is None else page_number(after)
        found = [kept for kept in self._all().by_id.values() if kept.number > before]
        trees = [kept.record for kept in found[:limit]]
        return TreePage(trees, str(found[limit - 1].number) if len(found) > limit else None)

    async def restore(self, tree: TreeRecord) -> bool:
        if tree.id in self._all().by_id:
            return False
        if tree.name is not None and await self.find(tree.kind, tree.name, tree.principal) is not None:
            return False
        self._check_room(size_of_tree(tree))
        self._keep(tree)
        return True

    async def restore_nodes(self, tree_id: str, principal: str | None, nodes: Sequence[NodeRecord]) -> None:
        kept = self._find(tree_id, principal)
        new = [node for node in nodes if node.id not in kept.places]
        check_restored(kept.record.root, new, kept.places)
        self._check_room(sum(map(size_of_node, new)))
        self._add(kept, new, None)

    def sweep(self, limit: int) -> int:
        """Bring trees to their next state, or forget them; how many."""
        now, every = time.time(), self._all()
        due = [kept for kept in every.by_id.values() if kept.record.due is not None]
        due = [kept for kept in due if (kept.record.due or 0) <= now][:limit]
        for kept in due:
            if kept.record.state == "archived":
                every.size -= kept.record.size
                del every.by_id[kept.record.id]
            else:
                kept.record = replace(kept.record, state="archived", due=now + ARCHIVED, updated=now)
        return len(due)

    # --- inside ------------------------------------------------------------------------------

    def _all(self) -> KeptTrees:
        return self._journal._use().trees

    def _of(self, principal: str | None) -> Iterator[KeptTree]:
        return (kept for kept in self._all().by_id.values() if kept.record.principal == principal)

    def _find(self, tree_id: str, principal: str | None) -> KeptTree:
        kept = self._all().by_id.get(tree_id)
        if kept is None or kept.record.principal != principal:
            raise UnknownTree(tree_id)
        return kept

    def _keep(self, tree: TreeRecord) -> KeptTree:
        every = self._all()
        every.count += 1
        size = size_of_tree(tree)
        every.size += size
        kept = every.by_id[tree.id] = KeptTree(every.count, replace(tree, nodes=0, size=size))
        return kept

    def _add(self, kept: KeptTree, nodes: Sequence[NodeRecord], now: float | None) -> None:
        for node in nodes:
            parent = None if not kept.nodes else node.parent or kept.record.root
            made = node.created if now is None else now
            kept.add(replace(node, parent=parent, created=made, children=(), more_children=False))
        size = sum(map(size_of_node, nodes))
        self._all().size += size
        kept.record = replace(kept.record, nodes=len(kept.nodes), size=kept.record.size + size)

    def _check_room(self, size: int) -> None:
        if size > 0 and self._all().size + size > TREE_BYTES:
            raise JournalFull("There is no more room for trees in memory: release some, or use a journal")


def _upwards(kept: KeptTree, place: int) -> Iterator[NodeRecord]:
    node = kept.node(place)
    yield node
    while node.parent is not None:
        node = kept.node(kept.places[node.parent])
        yield node


def _ids(kept: KeptTree, places: Iterable[int], after: str | None, limit: int) -> IdPage:
    before = -1 if after is None else page_number(after)
    found = list(islice((place for place in places if place > before), limit + 1))
    ids = [kept.nodes[place].id for place in found[:limit]]
    return IdPage(ids, str(found[limit - 1]) if len(found) > limit else None)

"""What a store must do with trees of nodes: conversations that branch, documents, sessions of other programs.

A **tree** belongs to a principal, and nobody else finds it. It has a **root**, and nodes that are added to it
and never changed or taken away: a node's parent is older than the node, so there is no cycle, and what is
written once can be pointed to. The order in which nodes were added is the order of siblings.

Who needs a tree **claims** it, under a name of its choice (an *owner*), as often as it likes. When the last
reference is released, the tree is on its way out; only the store's clock counts:

    active  -- none left -->  scheduled_delete  -- 7 days -->  archived  -- 30 days -->  purged
      ^                            |
      +---------- a claim ---------+

Only an active tree can be written to. A scheduled or archived one can be read; a purged one is gone.

A tree may have a **kind** and, with it, a **name** that no other tree of that kind and principal has; and a
**note**, which whoever made the tree keeps with it. Its `version` counts the writes of the note: of two who
change what they have read, the second is refused (`Conflict`).

Everything is durable when the coroutine returns, all of it or nothing. Values are bytes, and a store knows
nothing of what they say. What is read at once is bounded by whoever asks: nothing here reads all of a tree to
find a branch of it.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from midcall.errors import BadExport, BadPage, Conflict, TreeError

TreeState: TypeAlias = Literal["active", "scheduled_delete", "archived"]

SCHEDULED = 7 * 24 * 3600.0
"""Seconds that a tree to which there are no references can be claimed again."""

ARCHIVED = 30 * 24 * 3600.0
"""Seconds that it can be read after that."""

LISTED_CHILDREN = 200
"""How many children a node is given with."""

MOST_OWNERS = 1000
"""How many owners a tree may have."""

MOST_REFERENCES = 1_000_000_000
"""How many references an owner may have."""

TREE_SIZE = 1024
NODE_SIZE = 256
"""How many bytes a tree and a node count for, beside their values."""

_TREE_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")

_Id: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,100}\Z")]
_Text: TypeAlias = Annotated[str, Meta(max_length=1000)]
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
_Bytes: TypeAlias = Annotated[bytes, Meta(max_length=16 * 1024 * 1024)]
_Time: TypeAlias = Annotated[float, Meta(ge=0, le=1e11)]
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_REFERENCES)]


def is_tree_id(id: str) -> bool:
    """Whether a tree or a node can have this id: ASCII letters, digits, `-` and `_`, 100 at most."""
    return _TREE_ID.fullmatch(id) is not None


class NodeRecord(Struct, frozen=True, kw_only=True):
    """A node, as far as a store knows it."""

    id: _Id
    parent: _Id | None = None
    """Only the root has none."""
    external: bool = False
    """Whether its body points to something elsewhere."""
    created: _Time = 0.0
    """Set by the store."""
    body: _Bytes = b""
    children: Sequence[str] = ()
    """The first `LISTED_CHILDREN` of them."""
    more_children: bool = False
    """Whether it has others."""


class TreeRecord(Struct, frozen=True, kw_only=True):
    """A tree, as far as a store knows it."""

    id: _Id
    principal: _Text | None = None
    root: _Id
    kind: _Text = ""
    name: _Name | None = None
    state: TreeState = "active"
    due: _Time | None = None
    """When it goes on to the next state, if nobody claims it."""
    created: _Time = 0.0
    updated: _Time = 0.0
    """When it, or what is in it, last changed; set by the store."""
    version: Annotated[int, Meta(ge=1, le=10**9)] = 1
    nodes: int = 0
    """How many nodes it has."""
    size: int = 0
    """How many bytes it counts for."""
    metadata: _Bytes = b""
    note: _Bytes = b""
    owners: Mapping[_Name, _Count] = field(default_factory=dict)
    """How many references each owner has; in a list of trees, nothing is said of them."""


class TreePage(Struct, frozen=True):
    """Some trees of a list, and where the next ones begin."""

    trees: Sequence[TreeRecord]
    next: str | None = None


class NodePage(Struct, frozen=True):
    """Some nodes of a tree, and where the next ones begin."""

    nodes: Sequence[NodeRecord]
    next: str | None = None


class IdPage(Struct, frozen=True):
    """The ids of some nodes, and where the next ones begin."""

    ids: Sequence[str]
    next: str | None = None


class TreeChange(Struct, frozen=True, kw_only=True):
    """What is to be written to a tree, all of it or nothing."""

    nodes: Sequence[NodeRecord] = ()
    """New ones. The parent of each is in the tree, or before it in this list; without one, it is the root."""
    metadata: bytes | None = None
    note: bytes | None = None
    version: int | None = None
    """That of the note which was read: if it is another one by now, nothing is written."""
    unnamed: bool = False
    """The tree loses its name and its kind, so that another one can have them."""

    @property
    def only_nodes(self) -> bool:
        """Whether nothing but nodes is written."""
        return self.metadata is None and self.note is None and not self.unnamed


_UNNAMED = TreeChange(unnamed=True)


class Trees(Protocol):
    """The trees of a store.

    A method raises `UnknownTree` or `UnknownNode` for what this principal does not have, `TreeError` for what
    cannot be done, and `JournalError` as those of `Journal`; then nothing is changed.
    """

    async def create(self, tree: TreeRecord, root: NodeRecord) -> None:
        """Write down a new tree, with its owners. Raises `Conflict` if its name is taken."""

    async def load(self, tree_id: str, principal: str | None) -> TreeRecord:
        """A tree, without its nodes."""

    async def find(self, kind: str, name: str, principal: str | None) -> TreeRecord | None:
        """The tree of this name."""

    async def list(
        self,
        principal: str | None,
        *,
        states: Sequence[TreeState] = ("active",),
        kind: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> TreePage:
        """Trees of this principal, the newest first. `after` is the `next` of the page before: `BadPage`.

        Only those of a `kind` are given with their metadata and notes.
        """

    async def write(self, tree_id: str, principal: str | None, change: TreeChange) -> int:
        """Change an active tree; gives the version of its note. Raises `Conflict` if that is another one."""

    async def claim(self, tree_id: str, principal: str | None, owner: str, count: int) -> int:
        """Add references of an owner; gives how many it has. A tree that was scheduled is active again."""

    async def release(self, tree_id: str, principal: str | None, owner: str, count: int) -> int:
        """Take references of an owner away; gives how many it has left. Without any, it is scheduled."""

    async def node(self, tree_id: str, principal: str | None, node_id: str) -> NodeRecord:
        """One node."""

    async def nodes(
        self,
        tree_id: str,
        principal: str | None,
        *,
        after: str | None = None,
        limit: int = 1000,
        size: int | None = None,
    ) -> NodePage:
        """Nodes in the order in which they were added, and so each after its parent: `limit` at most, and not
        more than `size` bytes of them, but one at least. With a `size` of 0, all without their bodies."""

    async def path(
        self, tree_id: str, principal: str | None, node_id: str, *, limit: int, size: int | None = None
    ) -> Sequence[NodeRecord]:
        """The way from the root to a node: its last nodes, bounded as above. The first may be the root."""

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
        """A node (or the root) and what is below it, down to a depth, level by level; bounded as above.

        Of a node's children, the first `LISTED_CHILDREN`.
        """

    async def children(
        self,
        tree_id: str,
        principal: str | None,
        node_id: str,
        *,
        after: str | None = None,
        limit: int = 1000,
    ) -> IdPage:
        """The children of a node, in their order."""

    async def leaves(
        self, tree_id: str, principal: str | None, *, after: str | None = None, limit: int = 1000
    ) -> IdPage:
        """The nodes that have no children, in the order in which they were added."""

    async def held(self, principal: str) -> int:
        """How many bytes the trees of a principal count for."""

    async def updated(self, tree_ids: Sequence[str]) -> Mapping[str, float]:
        """When each of these trees has last changed, whoever they belong to."""

    async def every(self, after: str | None = None, limit: int = 100) -> TreePage:
        """Trees of everybody, with their owners."""

    async def restore(self, tree: TreeRecord) -> bool:
        """Take in a tree from another store, without nodes yet. False if it, or its name, is known."""

    async def restore_nodes(self, tree_id: str, principal: str | None, nodes: Sequence[NodeRecord]) -> None:
        """Take in nodes from another store, in their order. Those that are known are passed over."""


# --- what every store says and decides alike ------------------------------------------------------------


def check_writable(tree_id: str, state: str, change: TreeChange) -> None:
    """Raise `TreeError` unless a tree can be changed in this way: it can lose its name at any time."""
    if change == _UNNAMED:
        return
    match state:
        case "scheduled_delete":
            raise TreeError(f"Tree {tree_id} is scheduled for deletion: claim it first")
        case "archived":
            raise _archived(tree_id)


def check_claim(tree_id: str, state: str, owner: str, count: int, owners: Mapping[str, int]) -> int:
    """How many references an owner has with so many more. Raises `TreeError`."""
    if state == "archived":
        raise _archived(tree_id)
    held = owners.get(owner, 0)
    if not held and len(owners) >= MOST_OWNERS:
        raise TreeError(f"A tree has {MOST_OWNERS} owners at most")
    if held + count > MOST_REFERENCES:
        raise TreeError(f"An owner has {MOST_REFERENCES} references at most")
    return held + count


def check_release(owner: str, count: int, owners: Mapping[str, int]) -> int:
    """How many references an owner has left. Raises `TreeError`."""
    held = owners.get(owner, 0)
    if not held:
        raise TreeError(f"No reference found for owner {owner}")
    if count > held:
        raise TreeError(f"Cannot release {count} references, owner only has {held}")
    return held - count


def check_version(change: TreeChange, version: int) -> None:
    """Raise `Conflict` if the note was written since it was read."""
    if change.version is not None and change.version != version:
        raise Conflict("The tree has changed in the meantime")


def check_restored(root: str, nodes: Sequence[NodeRecord], known: Container[str]) -> None:
    """Raise `BadExport` unless these nodes can be added to a tree that has the known ones."""
    above = set[str]()
    for node in nodes:
        if node.id == root:
            fits = node.parent is None and not above
        else:
            fits = node.parent is not None and (node.parent in above or node.parent in known)
        if not fits or node.id in above:
            raise BadExport(f"The node {node.id} is not below the root of its tree")
        above.add(node.id)


def size_of_tree(tree: TreeRecord) -> int:
    """What a tree without nodes counts for."""
    return TREE_SIZE + len(tree.metadata) + len(tree.note)


def size_of_node(node: NodeRecord) -> int:
    """What a node counts for."""
    return NODE_SIZE + len(node.body)


def bounded(nodes: Iterable[NodeRecord], size: int | None) -> list[NodeRecord]:
    """As many of the nodes as are of this size together, but one; of size 0, all without bodies."""
    if size is None:
        return list(nodes)
    found, left = list[NodeRecord](), size
    for node in nodes:
        if size == 0:
            found.append(replace(node, body=b""))
            continue
        left -= len(node.body) + sum(map(len, node.children))
        if found and left < 0:
            break
        found.append(node)
    return found


def page_number(after: str) -> int:
    """The number that a page ends with. Raises `BadPage`."""
    if not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise BadPage(after)
    return int(after)


def name_taken(tree: TreeRecord) -> Conflict:
    """What is said of a second tree of a name."""
    return Conflict(f"There is a {tree.kind} {tree.name} already")


def _archived(tree_id: str) -> TreeError:
    return TreeError(f"Tree {tree_id} is archived: it can be read until it is purged, but not changed")


# --- moving to another store ----------------------------------------------------------------------------


class ExportedTree(Struct, frozen=True):
    """A tree as it moves from one store to another. Its nodes come after it, in parts."""

    tree: TreeRecord


class ExportedNodes(Struct, frozen=True):
    """Some nodes of a tree that moves."""

    nodes_of: _Id
    principal: _Text | None
    nodes: list[NodeRecord]


def tree_to_export(exported: ExportedTree | ExportedNodes) -> dict[str, Any]:
    """JSON-able values, the same for every store."""
    values: dict[str, Any] = msgspec.to_builtins(exported)
    return values


def is_tree_export(values: dict[str, Any]) -> bool:
    """Whether this is to be a tree, or nodes of one."""
    return "tree" in values or "nodes_of" in values


def tree_from_export(values: dict[str, Any]) -> ExportedTree | ExportedNodes:
    """What `tree_to_export` gave. Raises `BadExport`."""
    kind: type[ExportedTree | ExportedNodes] = ExportedTree if "tree" in values else ExportedNodes
    try:
        return msgspec.convert(values, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadExport(f"This is not an exported tree: {error}") from None

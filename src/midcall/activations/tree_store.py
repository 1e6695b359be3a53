"""TreeStore: the trees of a hub for Python code, as `arbor`, `cone` and others use them.

    store = TreeStore.of(hub)                       # in `attach(hub)`: one for all activations of a hub
    tree = await store.create(caller, "my-tool", kind="session", name="first", note={"step": 1})
    ids, version = await store.add(caller, tree.id, [NewNode("Hi")], note={"step": 2}, version=tree.version)
    for node in await store.path(caller, tree.id, ids[-1]):
        print(node.text)

A tree belongs to the caller whose name is given first, and nobody else finds it; `None` are all callers
without a name. It lives in the hub's journal, for as long as somebody has a reference to it: whoever makes
one gives the owner of the first (see `midcall.journal.trees`, which also says what a `kind`, a `name` and a
`note` are). Text, handles, metadata and notes are encrypted where the journal is.

- `create`, `load`, `find` (by kind and name), `list`, `unname`
- `add`: new nodes, and with them a new note. All of it is written, or nothing; with the `version` of the note
  that was read, only if nobody else has written one since (`Conflict`). Nodes may be below others of the
  list, if these have ids of their own (`new_id()`).
- `set_metadata`, `claim`, `release`
- `node`, `nodes` (in the order in which they were added), `path` (from the root), `branch`, `children`,
  `leaves`

Everything raises `TreeError` (`UnknownTree`, `UnknownNode`), `Conflict` or `JournalError`, and then has
changed nothing. What is too large to be read at once is given by pages, or refused: never cut in silence.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from midcall.errors import JournalError, TreeError, UnknownNode, UnknownTree
from midcall.hub import Hub
from midcall.journal.durable import SHARE, Quota, durable_calls
from midcall.journal.trees import (
    NODE_SIZE,
    TREE_SIZE,
    IdPage,
    NodePage,
    NodeRecord,
    TreeChange,
    TreeRecord,
    Trees,
    TreeState,
    is_tree_id,
)
from midcall.registry import Registry

MAX_TEXT = 4 * 1024 * 1024
"""How many bytes the text of a node may have."""

MAX_HANDLE = 16 * 1024
"""How many bytes a handle may have, as JSON."""

MAX_METADATA = 64 * 1024
"""How many bytes the metadata of a tree or a node, or a note, may have, as JSON."""

MAX_OWNER = 200
"""How many characters the name of an owner, or of a tree, may have."""

MOST_NODES = 10_000
"""How many nodes, or ids of nodes, are read at once."""

MOST_BYTES = 8 * 1024 * 1024
"""How many bytes of nodes are read at once."""

MOST_ADDED = 1000
"""How many nodes are added at once."""

_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(tuple[Any, dict[str, Any] | None]).decode


def new_id() -> str:
    """An id for a tree or a node that nobody else has."""
    return str(uuid.uuid4())


class NewNode(Struct, frozen=True):
    """A node that is to be added: text, or a `handle` for something that is kept elsewhere."""

    text: str = ""
    parent: str | None = None
    """A node of the tree; without one, it is the root."""
    metadata: Mapping[str, Any] | None = None
    handle: Any = None
    id: str = field(default_factory=new_id)


class StoredNode(Struct, frozen=True):
    """A node of a tree."""

    id: str
    parent: str | None
    children: Sequence[str]
    """The first two hundred of them."""
    more_children: bool
    created: float
    external: bool
    text: str
    handle: Any
    """What it points to, if it is external."""
    metadata: dict[str, Any] | None


class StoredTree(Struct, frozen=True):
    """A tree, without its nodes."""

    id: str
    root: str
    state: TreeState
    owners: Mapping[str, int]
    """References by owner; empty in a list."""
    created: float
    updated: float
    due: float | None
    nodes: int
    """How many there are."""
    size: int
    kind: str
    name: str | None
    metadata: dict[str, Any] | None
    note: Any
    version: int


class TreeStore:
    """The trees of a hub."""

    def __init__(self, hub: Registry) -> None:
        self._hub = ref(hub)  # which may hold this
        self._quota: Quota | None = None
        self.on_change: list[Callable[[str], None]] = []
        """Are called with the id of a tree that was changed by this process."""

    @classmethod
    def of(cls, hub: Registry) -> "TreeStore":
        """The one that all activations of a hub share."""
        return _stores.setdefault(hub, cls(hub))

    async def trees(self) -> Trees:
        """The trees of the journal, which is opened if it is not. Raises `JournalError`."""
        hub = self._hub()
        root = None if hub is None else hub.root
        if not isinstance(root, Hub):
            raise JournalError("The hub no longer exists")
        durable = durable_calls(root)
        await durable.open()
        if self._quota is None:
            advice = "release trees that are not needed, or try again later"
            self._quota = Quota(durable.journal.trees.held, SHARE, advice=advice)
        return durable.journal.trees

    # --- trees -------------------------------------------------------------------------------

    async def create(
        self,
        principal: str | None,
        owner: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        kind: str = "",
        name: str | None = None,
        note: Any = None,
        text: str = "",
        root: str | None = None,
    ) -> StoredTree:
        """A new tree, whose first reference is this owner's. Its root has the `text`, and this id.

        Raises `Conflict` if the caller has a tree of this kind and name.
        """
        top = _record(NewNode(text, id=root or new_id()))
        record = TreeRecord(
            id=new_id(),
            principal=principal,
            root=top.id,
            kind=kind,
            name=None if name is None else check_name(name, "A name"),
            metadata=_json(metadata, "Metadata", MAX_METADATA),
            note=_json(note, "A note", MAX_METADATA),
            owners={check_name(owner, "An owner"): 1},
        )
        trees = await self.trees()
        await self._check_room(principal, TREE_SIZE + len(record.metadata) + len(record.note), [top])
        await trees.create(record, top)
        return _tree(await trees.load(record.id, principal))

    async def load(self, principal: str | None, tree_id: str) -> StoredTree:
        """A tree by its id."""
        return _tree(await (await self.trees()).load(tree_id, principal))

    async def find(self, principal: str | None, kind: str, name: str) -> StoredTree | None:
        """A tree by its kind and name."""
        if not is_name(name):
            return None
        found = await (await self.trees()).find(kind, name, principal)
        return None if found is None else _tree(found)

    async def list(
        self,
        principal: str | None,
        *,
        states: Sequence[TreeState] = ("active",),
        kind: str | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> tuple[Sequence[StoredTree], str | None]:
        """Trees, the newest first; and the `after` of the next page, if there is one.

        Only those of a `kind` are given with their metadata and notes.
        """
        trees = await self.trees()
        page = await trees.list(principal, states=states, kind=kind, after=after, limit=limit)
        return [_tree(one) for one in page.trees], page.next

    async def add(
        self,
        principal: str | None,
        tree_id: str,
        nodes: Sequence[NewNode] = (),
        *,
        note: Any = UNSET,
        version: int | None = None,
    ) -> tuple[Sequence[str], int]:
        """Add nodes, write the note, or both; gives the ids of the nodes and the version of the note."""
        if len(nodes) > MOST_ADDED:
            raise TreeError(f"{len(nodes)} nodes at once: add {MOST_ADDED} at most")
        records = [_record(node) for node in nodes]
        written = None if isinstance(note, UnsetType) else _json(note, "A note", MAX_METADATA)
        trees = await self.trees()
        await self._check_room(principal, len(written or b""), records)
        change = TreeChange(nodes=records, note=written, version=version)
        version = await trees.write(tree_id, principal, change)
        self._changed(tree_id)
        return [node.id for node in nodes], version

    async def set_metadata(
        self, principal: str | None, tree_id: str, metadata: Mapping[str, Any] | None
    ) -> None:
        """Put other metadata in the place of those of a tree."""
        written = _json(metadata, "Metadata", MAX_METADATA)
        trees = await self.trees()
        await self._check_room(principal, len(written), ())
        await trees.write(tree_id, principal, TreeChange(metadata=written))
        self._changed(tree_id)

    async def unname(self, principal: str | None, tree_id: str) -> None:
        """Take a tree's kind and name away, so that another one can have them."""
        await (await self.trees()).write(tree_id, principal, TreeChange(unnamed=True))
        self._changed(tree_id)

    async def claim(self, principal: str | None, tree_id: str, owner: str, count: int = 1) -> int:
        """Add references of an owner; gives how many it has."""
        check_name(owner, "An owner")
        _check_count(count)
        held = await (await self.trees()).claim(tree_id, principal, owner, count)
        self._changed(tree_id)
        return held

    async def release(self, principal: str | None, tree_id: str, owner: str, count: int = 1) -> int:
        """Take references of an owner away; gives how many it has left."""
        if not is_name(owner):
            raise TreeError("No reference found for owner")
        _check_count(count)
        left = await (await self.trees()).release(tree_id, principal, owner, count)
        self._changed(tree_id)
        return left

    # --- nodes -------------------------------------------------------------------------------

    async def node(self, principal: str | None, tree_id: str, node_id: str) -> StoredNode:
        """A node by its id."""
        return _node(await (await self.trees()).node(tree_id, principal, node_id))

    async def nodes(
        self,
        principal: str | None,
        tree_id: str,
        *,
        after: str | None = None,
        limit: int = MOST_NODES,
        bare: bool = False,
    ) -> tuple[Sequence[StoredNode], str | None]:
        """Nodes in the order in which they were added, each after its parent; and where the next begin.

        With `bare`, without what is in them.
        """
        size = 0 if bare else MOST_BYTES
        page: NodePage = await (await self.trees()).nodes(
            tree_id, principal, after=after, limit=min(limit, MOST_NODES), size=size
        )
        return [_node(one) for one in page.nodes], page.next

    async def path(
        self,
        principal: str | None,
        tree_id: str,
        node_id: str,
        *,
        limit: int | None = None,
        bare: bool = False,
    ) -> Sequence[StoredNode]:
        """The way from the root to a node. Raises `TreeError` if it is too long to be read at once.

        With a `limit`, the last so many nodes of it, or fewer if these are too large: the parent of the first
        is where the rest ends.
        """
        most = MOST_NODES if limit is None else min(limit, MOST_NODES)
        found = await (await self.trees()).path(
            tree_id, principal, node_id, limit=most, size=0 if bare else MOST_BYTES
        )
        if not found:
            raise UnknownNode(node_id)  # the tree was purged in this moment
        if limit is None and found[0].parent is not None:
            raise TreeError(
                f"The path is longer than the {MOST_NODES} nodes or {MOST_BYTES} bytes that are read at once:"
                " read it in parts, with a limit"
            )
        return [_node(one) for one in found]

    async def branch(
        self, principal: str | None, tree_id: str, node_id: str | None, *, depth: int, limit: int
    ) -> Sequence[StoredNode]:
        """A node, or the root, and what is below it, level by level, within these bounds."""
        found = await (await self.trees()).branch(
            tree_id, principal, node_id, depth=depth, limit=limit, size=MOST_BYTES
        )
        if not found:
            raise UnknownTree(tree_id)  # one that is being imported
        return [_node(one) for one in found]

    async def children(
        self,
        principal: str | None,
        tree_id: str,
        node_id: str,
        *,
        after: str | None = None,
        limit: int = MOST_NODES,
    ) -> IdPage:
        """The ids of a node's children, in their order."""
        trees = await self.trees()
        return await trees.children(tree_id, principal, node_id, after=after, limit=min(limit, MOST_NODES))

    async def leaves(
        self, principal: str | None, tree_id: str, *, after: str | None = None, limit: int = MOST_NODES
    ) -> IdPage:
        """The ids of the nodes that have no children."""
        trees = await self.trees()
        return await trees.leaves(tree_id, principal, after=after, limit=min(limit, MOST_NODES))

    # --- inside ------------------------------------------------------------------------------

    async def _check_room(self, principal: str | None, size: int, nodes: Sequence[NodeRecord]) -> None:
        """Raise `JournalFull` if this is too much for its caller."""
        if self._quota is not None:
            size += sum(NODE_SIZE + len(node.body) for node in nodes)
            await self._quota.check(principal, size)

    def _changed(self, tree_id: str) -> None:
        for told in self.on_change:
            told(tree_id)


_stores: WeakKeyDictionary[Registry, TreeStore] = WeakKeyDictionary()


def is_name(name: str) -> bool:
    """Whether an owner, or a tree, can have this name: printable characters, `MAX_OWNER` at most."""
    return 0 < len(name) <= MAX_OWNER and name.isprintable()


def check_name(name: str, what: str) -> str:
    """Raise `TreeError` for what is no name."""
    if not is_name(name):
        raise TreeError(f"{what} has 1 to {MAX_OWNER} printable characters")
    return name


def _check_count(count: int) -> None:
    if count < 1:
        raise TreeError("A count of references is 1 or more")


def _json(value: Any, what: str, most: int) -> bytes:
    """A value as JSON. Raises `TreeError` if it is none, or too large."""
    if value is None:
        return b""
    try:
        written = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TreeError(f"{what} must be JSON: {error or type(error).__name__}") from None
    if len(written) > most:
        raise TreeError(f"{what} of {len(written)} bytes: {most} at most")
    return written


def _read(written: bytes) -> Any:
    return msgspec.json.decode(written) if written else None


def _record(node: NewNode) -> NodeRecord:
    if not is_tree_id(node.id):
        raise TreeError("The id of a node has 1 to 100 ASCII letters, digits, - and _")
    _json(node.metadata, "Metadata", MAX_METADATA)
    if node.handle is not None:
        _json(node.handle, "A handle", MAX_HANDLE)
    try:
        size = len(node.text.encode())
    except UnicodeEncodeError:
        raise TreeError("The text has invalid characters: lone surrogates") from None
    if size > MAX_TEXT:
        raise TreeError(f"Text of {size} bytes: a node has {MAX_TEXT} at most")
    external = node.handle is not None
    body = _encode((node.handle if external else node.text, node.metadata))
    return NodeRecord(id=node.id, parent=node.parent, external=external, body=body)


def _node(record: NodeRecord) -> StoredNode:
    try:
        value, metadata = _decode_body(record.body) if record.body else ("", None)
    except msgspec.DecodeError as error:  # it was imported
        raise TreeError(f"The node {record.id} cannot be read: {error}") from None
    return StoredNode(
        id=record.id,
        parent=record.parent,
        children=record.children,
        more_children=record.more_children,
        created=record.created,
        external=record.external,
        text="" if record.external else value,
        handle=value if record.external else None,
        metadata=metadata,
    )


def _tree(record: TreeRecord) -> StoredTree:
    return StoredTree(
        id=record.id,
        root=record.root,
        state=record.state,
        owners=record.owners,
        created=record.created,
        updated=record.updated,
        due=record.due,
        nodes=record.nodes,
        size=record.size,
        kind=record.kind,
        name=record.name,
        metadata=_read(record.metadata),
        note=_read(record.note),
        version=record.version,
    )

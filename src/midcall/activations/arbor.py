"""arbor: trees of nodes for conversations and documents, with references, states, a drawing and resources.

The 19 methods give one event each, tagged by `type`; what cannot be done is an error. Where the trees live,
and what becomes of one that nobody needs any more, is `midcall.journal.trees`; this is its face.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType
from pydantic import Field

from midcall.activations.tree_store import (
    MAX_OWNER,
    MAX_TEXT,
    MOST_BYTES,
    MOST_NODES,
    NewNode,
    StoredNode,
    StoredTree,
    TreeStore,
)
from midcall.activations.tree_watch import TreeWatch
from midcall.call import CallerName
from midcall.content import Listing
from midcall.decorators import listing, method, resource
from midcall.errors import TreeError, UnknownNode, UnknownResource, UnknownTree
from midcall.journal.trees import MOST_REFERENCES, TreeState
from midcall.logs import printable
from midcall.registry import Registry

TREE_URI = "arbor://tree/{tree_id}"
NODE_URI = "arbor://tree/{tree_id}/node/{node_id}"

LISTED = 1000
"""How many trees are listed at once."""

DRAWN = 2000
"""How many nodes are drawn."""

DRAWN_DEPTH = 64
"""How many levels are drawn."""

WIDTH = 60
"""How many characters of a node's text are drawn."""

_READ_ONLY = {"readOnlyHint": True}

Id: TypeAlias = Annotated[str, Field(max_length=100)]
Owner: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_OWNER)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MOST_REFERENCES)]
Limit: TypeAlias = Annotated[int, Field(ge=1, le=MOST_NODES)]
After: TypeAlias = Annotated[str, Field(max_length=100)]
Object: TypeAlias = dict[str, Any]
Handle: TypeAlias = str | Object


# --- trees and nodes, as they are told ------------------------------------------------------------------


class TextData(Struct, tag_field="type", tag="text"):
    """What was said or written."""

    content: str


class ExternalData(Struct, tag_field="type", tag="external"):
    """Something that is kept elsewhere."""

    handle: Handle


class Node(Struct, omit_defaults=True):
    """A node of a tree. `more_children` says that there are others than those that are listed."""

    id: str
    parent: str | None
    children: Sequence[str]
    data: TextData | ExternalData
    created_at: int
    metadata: Object | UnsetType = UNSET
    more_children: bool = False


class NodeSkeleton(Struct, omit_defaults=True):
    """Where a node is, without what is in it."""

    id: str
    parent: str | None
    children: Sequence[str]
    node_type: Literal["text", "external"]
    more_children: bool = False


class Refs(Struct):
    """How many references there are to a tree, and how many each owner has."""

    ref_count: int
    owners: Mapping[str, int]


class Tree(Struct, omit_defaults=True):
    """A tree. `next` is the `after` of the next nodes, if these are not all."""

    id: str
    root: str
    nodes: Mapping[str, Node]
    state: TreeState
    refs: Refs
    created_at: int
    updated_at: int
    metadata: Object | UnsetType = UNSET
    next: str | UnsetType = UNSET


class TreeSkeleton(Struct, omit_defaults=True):
    """The shape of a tree. `next` is the `after` of the next nodes, if these are not all."""

    id: str
    root: str
    nodes: Mapping[str, NodeSkeleton]
    state: TreeState
    next: str | UnsetType = UNSET


# --- events ---------------------------------------------------------------------------------------------


class TreeCreated(Struct, tag_field="type", tag="tree_created"):
    tree_id: str


class TreeData(Struct, tag_field="type", tag="tree_data"):
    tree: Tree


class TreeSkeletonData(Struct, tag_field="type", tag="tree_skeleton"):
    skeleton: TreeSkeleton


class TreeList(Struct, tag_field="type", tag="tree_list", omit_defaults=True):
    """`next` is the `after` of the next page, if there is one."""

    tree_ids: Sequence[str]
    next: str | UnsetType = UNSET


class TreesScheduled(Struct, tag_field="type", tag="trees_scheduled", omit_defaults=True):
    tree_ids: Sequence[str]
    next: str | UnsetType = UNSET


class TreesArchived(Struct, tag_field="type", tag="trees_archived", omit_defaults=True):
    tree_ids: Sequence[str]
    next: str | UnsetType = UNSET


class TreeUpdated(Struct, tag_field="type", tag="tree_updated"):
    tree_id: str


class TreeClaimed(Struct, tag_field="type", tag="tree_claimed"):
    tree_id: str
    owner_id: str
    new_count: int


class TreeReleased(Struct, tag_field="type", tag="tree_released"):
    tree_id: str
    owner_id: str
    new_count: int


class NodeCreated(Struct, tag_field="type", tag="node_created"):
    tree_id: str
    node_id: str
    parent: str


class NodeData(Struct, tag_field="type", tag="node_data"):
    tree_id: str
    node: Node


class NodeChildren(Struct, tag_field="type", tag="node_children", omit_defaults=True):
    """`next` is the `after` of the next page, if there is one."""

    tree_id: str
    node_id: str
    children: Sequence[str]
    next: str | UnsetType = UNSET


class NodeParent(Struct, tag_field="type", tag="node_parent"):
    tree_id: str
    node_id: str
    parent: str | None


class ContextPath(Struct, tag_field="type", tag="context_path", omit_defaults=True):
    """From the root, or with a `limit` from further down: then `above` is the parent of the first."""

    tree_id: str
    path: Sequence[str]
    nodes: Sequence[Node] | UnsetType = UNSET
    above: str | UnsetType = UNSET


class ContextLeaves(Struct, tag_field="type", tag="context_leaves", omit_defaults=True):
    """`next` is the `after` of the next page, if there is one."""

    tree_id: str
    leaves: Sequence[str]
    next: str | UnsetType = UNSET


class ContextHandles(Struct, tag_field="type", tag="context_handles"):
    tree_id: str
    handles: Sequence[Handle]


class TreeRender(Struct, tag_field="type", tag="tree_render"):
    tree_id: str
    render: str


# --- methods --------------------------------------------------------------------------------------------


class Arbor:
    """Trees of nodes, for conversations that branch and for documents."""

    def __init__(self) -> None:
        self._hub: Registry | None = None

    def attach(self, hub: Registry) -> None:
        """Use the journal of this hub."""
        self._hub = hub
        self._store = TreeStore.of(hub)
        self._watch = TreeWatch(hub, self._store, TREE_URI, NODE_URI)

    async def detach(self) -> None:
        """The hub is closed."""
        await self._watch.close()

    def subscribed(self, uri: str, principal: str | None) -> None:
        """Somebody wants to hear of changes."""
        self._watch.add(uri, principal)

    @method
    async def tree_create(
        self, metadata: Object | None = None, *, owner_id: Owner, caller: CallerName
    ) -> TreeCreated:
        """Create a tree with an empty root node.

        Args:
            metadata: any data to store with it
            owner_id: the name of the first reference's owner
        """
        tree = await self._store.create(caller, owner_id, metadata=metadata)
        self._relisted(caller)
        return TreeCreated(tree.id)

    @method(annotations=_READ_ONLY)
    async def tree_get(
        self,
        tree_id: Id,
        limit: Limit | None = None,
        after: After | None = None,
        *,
        caller: CallerName,
    ) -> TreeData:
        """Get a tree with its nodes. A tree that is too large to be read at once comes in pages.

        Args:
            tree_id: which tree
            limit: maximum number of nodes, in the order in which they were added
            after: the `next` of the previous page
        """
        return TreeData(await self._tree(caller, tree_id, limit, after))

    @method(annotations=_READ_ONLY)
    async def tree_get_skeleton(
        self,
        tree_id: Id,
        limit: Limit | None = None,
        after: After | None = None,
        *,
        caller: CallerName,
    ) -> TreeSkeletonData:
        """Get the shape of a tree: its nodes without their content.

        Args:
            tree_id: which tree
            limit: maximum number of nodes, in the order in which they were added
            after: the `next` of the previous page
        """
        tree = await self._store.load(caller, tree_id)
        found, more = await self._store.nodes(
            caller, tree_id, after=after, limit=limit or MOST_NODES, bare=True
        )
        if limit is None and more is not None:
            raise _too_large(tree)
        nodes = {one.id: _skeleton(one) for one in found}
        return TreeSkeletonData(TreeSkeleton(tree.id, tree.root, nodes, tree.state, _given(more)))

    @method(annotations=_READ_ONLY)
    async def tree_list(
        self, limit: Limit = LISTED, after: After | None = None, *, caller: CallerName
    ) -> TreeList:
        """List the caller's active trees, newest first.

        Args:
            limit: maximum number of them
            after: the `next` of the previous page
        """
        return TreeList(*await self._ids(caller, "active", limit, after))

    @method
    async def tree_update_metadata(
        self, tree_id: Id, metadata: Object | None, *, caller: CallerName
    ) -> TreeUpdated:
        """Replace the metadata of a tree.

        Args:
            tree_id: which tree
            metadata: the new metadata
        """
        await self._store.set_metadata(caller, tree_id, metadata)
        return TreeUpdated(tree_id)

    @method
    async def tree_claim(
        self, tree_id: Id, owner_id: Owner, count: Count = 1, *, caller: CallerName
    ) -> TreeClaimed:
        """Add references to a tree. A tree that is scheduled for deletion becomes active again.

        Args:
            tree_id: which tree
            owner_id: the name of their owner
            count: how many references
        """
        new = await self._store.claim(caller, tree_id, owner_id, count)
        self._relisted(caller)
        return TreeClaimed(tree_id, owner_id, new)

    @method
    async def tree_release(
        self, tree_id: Id, owner_id: Owner, count: Count = 1, *, caller: CallerName
    ) -> TreeReleased:
        """Release references. A tree without any is archived after 7 days, and deleted 30 days later.

        Args:
            tree_id: which tree
            owner_id: the name of their owner
            count: how many references
        """
        left = await self._store.release(caller, tree_id, owner_id, count)
        self._relisted(caller)
        return TreeReleased(tree_id, owner_id, left)

    @method(annotations=_READ_ONLY)
    async def tree_list_scheduled(
        self, limit: Limit = LISTED, after: After | None = None, *, caller: CallerName
    ) -> TreesScheduled:
        """List the caller's trees that have no references; a claim makes one active again.

        Args:
            limit: maximum number of them
            after: the `next` of the previous page
        """
        return TreesScheduled(*await self._ids(caller, "scheduled_delete", limit, after))

    @method(annotations=_READ_ONLY)
    async def tree_list_archived(
        self, limit: Limit = LISTED, after: After | None = None, *, caller: CallerName
    ) -> TreesArchived:
        """List the caller's archived trees, which can only be read until they are deleted.

        Args:
            limit: maximum number of them
            after: the `next` of the previous page
        """
        return TreesArchived(*await self._ids(caller, "archived", limit, after))

    @method(annotations=_READ_ONLY)
    async def tree_render(self, tree_id: Id, node_id: Id | None = None, *, caller: CallerName) -> TreeRender:
        """Draw a tree, or a branch of it, as text. An ellipsis marks what is left out.

        Args:
            tree_id: which tree
            node_id: the node at the top of the branch (default: the root)
        """
        nodes = await self._store.branch(caller, tree_id, node_id, depth=DRAWN_DEPTH, limit=DRAWN)
        return TreeRender(tree_id, draw(nodes))

    @method
    async def node_create_text(
        self,
        tree_id: Id,
        parent: Id | None = None,
        *,
        content: Annotated[str, Field(max_length=MAX_TEXT)],
        metadata: Object | None = None,
        caller: CallerName,
    ) -> NodeCreated:
        """Add text to a tree.

        Args:
            tree_id: which tree
            parent: the node above it (default: the root)
            content: the text
            metadata: any data to store with it
        """
        return await self._add(caller, tree_id, NewNode(content, parent, metadata))

    @method
    async def node_create_external(
        self,
        tree_id: Id,
        handle: Handle,
        parent: Id | None = None,
        metadata: Object | None = None,
        *,
        caller: CallerName,
    ) -> NodeCreated:
        """Add a node for data that is stored elsewhere.

        Args:
            tree_id: which tree
            handle: where the data are: text or an object, stored unchanged
            parent: the node above it (default: the root)
            metadata: any data to store with it
        """
        return await self._add(caller, tree_id, NewNode(parent=parent, metadata=metadata, handle=handle))

    @method(annotations=_READ_ONLY)
    async def node_get(self, tree_id: Id, node_id: Id, *, caller: CallerName) -> NodeData:
        """Get a node.

        Args:
            tree_id: its tree
            node_id: which node
        """
        return NodeData(tree_id, _node(await self._store.node(caller, tree_id, node_id)))

    @method(annotations=_READ_ONLY)
    async def node_get_children(
        self,
        tree_id: Id,
        node_id: Id,
        limit: Limit = MOST_NODES,
        after: After | None = None,
        *,
        caller: CallerName,
    ) -> NodeChildren:
        """List the children of a node, in order.

        Args:
            tree_id: its tree
            node_id: which node
            limit: maximum number of them
            after: the `next` of the previous page
        """
        page = await self._store.children(caller, tree_id, node_id, after=after, limit=limit)
        return NodeChildren(tree_id, node_id, page.ids, _given(page.next))

    @method(annotations=_READ_ONLY)
    async def node_get_parent(self, tree_id: Id, node_id: Id, *, caller: CallerName) -> NodeParent:
        """Get the parent of a node; the root has none.

        Args:
            tree_id: its tree
            node_id: which node
        """
        found = await self._store.path(caller, tree_id, node_id, limit=1, bare=True)
        return NodeParent(tree_id, node_id, found[0].parent)

    @method(annotations=_READ_ONLY)
    async def node_get_path(
        self, tree_id: Id, node_id: Id, limit: Limit | None = None, *, caller: CallerName
    ) -> ContextPath:
        """Get the path from the root to a node, as ids.

        Args:
            tree_id: its tree
            node_id: the last node of the path
            limit: only this many nodes, from the end of the path
        """
        found = await self._store.path(caller, tree_id, node_id, limit=limit, bare=True)
        return ContextPath(tree_id, [one.id for one in found], above=_given(found[0].parent))

    @method(annotations=_READ_ONLY)
    async def context_list_leaves(
        self,
        tree_id: Id,
        limit: Limit = MOST_NODES,
        after: After | None = None,
        *,
        caller: CallerName,
    ) -> ContextLeaves:
        """List the leaves of a tree: the nodes without children.

        Args:
            tree_id: which tree
            limit: maximum number of them
            after: the `next` of the previous page
        """
        page = await self._store.leaves(caller, tree_id, after=after, limit=limit)
        return ContextLeaves(tree_id, page.ids, _given(page.next))

    @method(annotations=_READ_ONLY)
    async def context_get_path(
        self, tree_id: Id, node_id: Id, limit: Limit | None = None, *, caller: CallerName
    ) -> ContextPath:
        """Get the path from the root to a node, with its nodes: a conversation up to there.

        Args:
            tree_id: its tree
            node_id: the last node of the path
            limit: only this many nodes, from the end of the path
        """
        found = await self._store.path(caller, tree_id, node_id, limit=limit)
        ids, nodes = [one.id for one in found], [_node(one) for one in found]
        return ContextPath(tree_id, ids, nodes, _given(found[0].parent))

    @method(annotations=_READ_ONLY)
    async def context_get_handles(self, tree_id: Id, node_id: Id, *, caller: CallerName) -> ContextHandles:
        """List the handles on the path from the root to a node.

        Args:
            tree_id: its tree
            node_id: the last node of the path
        """
        found = await self._store.path(caller, tree_id, node_id)
        return ContextHandles(tree_id, [one.handle for one in found if one.external])

    # --- resources ---------------------------------------------------------------------------

    @resource(TREE_URI, name="tree", mime_type="application/json", changes=True)
    async def read_tree(self, tree_id: str, caller: CallerName) -> Tree:
        """A tree with its nodes, or with the first of them if it is too large to be read at once."""
        try:
            return await self._tree(caller, tree_id, MOST_NODES, None)
        except UnknownTree as error:
            raise UnknownResource(str(error)) from None

    @resource(NODE_URI, name="node", mime_type="application/json", changes=True)
    async def read_node(self, tree_id: str, node_id: str, caller: CallerName) -> Node:
        """A node of a tree."""
        try:
            return _node(await self._store.node(caller, tree_id, node_id))
        except (UnknownTree, UnknownNode) as error:
            raise UnknownResource(str(error)) from None

    @listing(TREE_URI)
    async def list_trees(self, after: str | None, caller: CallerName) -> Listing:
        """The active trees of the caller."""
        trees, more = await self._store.list(caller, after=after, limit=LISTED)
        return Listing([_listed(tree) for tree in trees], more)

    # --- inside ------------------------------------------------------------------------------

    async def _tree(self, caller: str | None, tree_id: str, limit: int | None, after: str | None) -> Tree:
        tree = await self._store.load(caller, tree_id)
        if limit is None and tree.nodes > MOST_NODES:
            raise _too_large(tree)
        found, more = await self._store.nodes(caller, tree_id, after=after, limit=limit or MOST_NODES)
        if limit is None and more is not None:
            raise _too_large(tree)
        return Tree(
            id=tree.id,
            root=tree.root,
            nodes={one.id: _node(one) for one in found},
            state=tree.state,
            refs=Refs(sum(tree.owners.values()), tree.owners),
            created_at=int(tree.created),
            updated_at=int(tree.updated),
            metadata=_given(tree.metadata),
            next=_given(more),
        )

    async def _ids(
        self, caller: str | None, state: TreeState, limit: int, after: str | None
    ) -> tuple[Sequence[str], str | UnsetType]:
        found, more = await self._store.list(caller, states=(state,), after=after, limit=limit)
        return [tree.id for tree in found], _given(more)

    async def _add(self, caller: str | None, tree_id: str, node: NewNode) -> NodeCreated:
        if node.parent is None:
            node = msgspec.structs.replace(node, parent=(await self._store.load(caller, tree_id)).root)
        await self._store.add(caller, tree_id, [node])
        return NodeCreated(tree_id, node.id, str(node.parent))

    def _relisted(self, caller: str | None) -> None:
        if self._hub is not None:
            self._hub.relisted("resources", principals=(caller,))


def _given(value: Any) -> Any:
    return UNSET if value is None else value


def _too_large(tree: StoredTree) -> TreeError:
    return TreeError(
        f"The tree has {tree.nodes} nodes and {tree.size} bytes: {MOST_NODES} nodes or {MOST_BYTES} bytes are"
        " read at once. Read it by pages, with a limit; or a branch of it"
    )


def _node(node: StoredNode) -> Node:
    data = ExternalData(node.handle) if node.external else TextData(node.text)
    return Node(
        id=node.id,
        parent=node.parent,
        children=node.children,
        data=data,
        created_at=int(node.created),
        metadata=_given(node.metadata),
        more_children=node.more_children,
    )


def _skeleton(node: StoredNode) -> NodeSkeleton:
    kind: Literal["text", "external"] = "external" if node.external else "text"
    return NodeSkeleton(node.id, node.parent, node.children, kind, node.more_children)


def _listed(tree: StoredTree) -> Mapping[str, Any]:
    changed = datetime.fromtimestamp(tree.updated, UTC).isoformat(timespec="seconds")
    return {
        "uri": TREE_URI.replace("{tree_id}", tree.id),
        "name": tree.id if tree.name is None else f"{tree.kind} {tree.name}",
        "description": f"A tree of {tree.nodes} nodes",
        "mimeType": "application/json",
        "annotations": {"lastModified": changed.replace("+00:00", "Z")},
    }


# --- drawing --------------------------------------------------------------------------------------------


def draw(nodes: Sequence[StoredNode]) -> str:
    """A branch in text: the first node, and below it those of the others that are its descendants.

    What a node has below it that is not among them is marked by an ellipsis.
    """
    known = {node.id: node for node in nodes}
    lines = list[str]()
    waiting = [(nodes[0], "", "")]
    """What is to be drawn: a node, what stands before it, and what stands before those below it."""
    while waiting:
        node, before, below = waiting.pop()
        lines.append(before + _line(node))
        children = [known[id] for id in node.children if id in known]
        if node.more_children or len(children) < len(node.children):
            children.append(_ELLIPSIS)
        drawn = [(child, f"{below}├── ", f"{below}│   ") for child in children[:-1]]
        drawn += [(child, f"{below}└── ", f"{below}    ") for child in children[-1:]]
        waiting += drawn[::-1]
    return "\n".join(lines)


_ELLIPSIS = StoredNode("", None, (), False, 0.0, False, "…", None, None)


def _line(node: StoredNode) -> str:
    """What is drawn of a node: one line, in which nothing acts on a terminal."""
    if node.external:
        handle = node.handle if isinstance(node.handle, str) else msgspec.json.encode(node.handle).decode()
        text = f"[{handle[: 2 * WIDTH]}]"
    else:
        text = node.text[: 2 * WIDTH] or ("." if node.parent is None else "(empty)")
    text = printable(text.replace("\r\n", "\n").replace("\n", "↵").replace("\t", " "))
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."

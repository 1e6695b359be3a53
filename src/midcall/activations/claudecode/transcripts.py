"""Transcripts: what Claude Code writes down of a session, kept as a tree in the journal of a hub.

This is a `SessionStore` of the Claude Agent SDK: Claude Code writes its transcripts to a file, the SDK gives
each line to a store as well, and a session is resumed from what the store has. Here each line is a node. The
first line of its text says what it is, for people who look at the tree; the rest is the entry as it came.

A transcript belongs to a principal. Lines keep the order in which they came; an entry with a `uuid` is below
the one that it names as its parent, and is kept once, however often it comes. Those of subagents (with a
`subpath`) are branches of their own.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midcall.activations.tree_store import MOST_ADDED, NewNode, StoredNode, StoredTree, TreeStore, new_id
from midcall.errors import Conflict, TreeError
from midcall.journal.trees import is_tree_id
from midcall.logs import printable

if TYPE_CHECKING:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
    )

KIND = "claudecode transcript"
OWNER = "claudecode"

PART = 3_000_000
"""How many bytes of an entry one node has: of a larger one (a picture), the rest is below it."""

SHOWN = 200
"""How many characters of an entry its first line shows."""

ENTRY = "entry"
"""What a node with the beginning of an entry has in its metadata: how long that is."""


class TreeSessionStore:
    """The transcripts of one principal."""

    def __init__(self, trees: TreeStore, principal: str | None) -> None:
        self._trees = trees
        self._principal = principal
        self._known: dict[str, set[str]] = {}
        """The nodes of the trees that this has written to or read."""

    async def append(self, key: "SessionKey", entries: "list[SessionStoreEntry]") -> None:
        """Add lines at the end of a transcript."""
        if not entries:
            return
        tree = await self._tree(key) or await self._make_tree(key)
        known = await self._nodes_of(tree)
        subpath = key.get("subpath")
        nodes = list[NewNode]()
        added = set[str]()
        for entry in entries:
            id = _id_of(entry, subpath)
            if id in known or id in added:
                continue
            parent = _id_of({"uuid": entry.get("parentUuid")}, subpath, made=False)
            above = parent if parent in known or parent in added else None
            nodes += _nodes(entry, id, above, subpath)
            added.add(id)
        for start in range(0, len(nodes), MOST_ADDED):
            await self._trees.add(self._principal, tree.id, nodes[start : start + MOST_ADDED])
        known |= added

    async def load(self, key: "SessionKey") -> "list[SessionStoreEntry] | None":
        """All lines of a transcript, or nothing if there is none."""
        tree = await self._tree(key)
        if tree is None:
            return None
        nodes = await self._all_nodes(tree)
        self._known[tree.id] = {node.id for node in nodes}
        return list(_entries(nodes, key.get("subpath"))) or None

    async def list_sessions(self, project_key: str) -> "list[SessionStoreListEntry]":
        """The sessions of a project, with the time of their last line in milliseconds."""
        found: list[SessionStoreListEntry] = []
        after: str | None = None
        while True:
            trees, after = await self._trees.list(self._principal, kind=KIND, after=after)
            for tree in trees:
                project, _, session = (tree.name or "").partition(" ")
                if project == _digest(project_key):
                    found.append({"session_id": session, "mtime": int(tree.updated * 1000)})
            if after is None:
                return found

    async def delete(self, key: "SessionKey") -> None:
        """Forget a transcript with those of its subagents; or, of one subagent, what it did."""
        tree = await self._tree(key)
        if tree is None:
            return
        kept: list[StoredNode] = []
        if subpath := key.get("subpath"):  # nothing is taken out of a tree: another one takes its place
            kept = [node for node in await self._all_nodes(tree) if _subpath(node) != subpath]
        await self._trees.unname(self._principal, tree.id)
        self._known.pop(tree.id, None)
        if kept:
            for path in dict.fromkeys(_subpath(node) for node in kept):
                entries = list(_entries(kept, path))
                other: SessionKey = {"project_key": key["project_key"], "session_id": key["session_id"]}
                await self.append(other if path is None else {**other, "subpath": path}, entries)
        await self._trees.release(self._principal, tree.id, OWNER)

    async def list_subkeys(self, key: "SessionListSubkeysKey") -> list[str]:
        """The transcripts of subagents of a session."""
        tree = await self._tree(key)
        if tree is None:
            return []
        found = dict.fromkeys(_subpath(node) for node in await self._all_nodes(tree))
        return [path for path in found if path is not None]

    async def tree_id(self, key: "SessionListSubkeysKey") -> str | None:
        """The tree of a session, if there is one yet."""
        tree = await self._tree(key)
        return None if tree is None else tree.id

    # --- inside ------------------------------------------------------------------------------

    async def _tree(self, key: "SessionKey | SessionListSubkeysKey") -> StoredTree | None:
        return await self._trees.find(self._principal, KIND, _name(key))

    async def _make_tree(self, key: "SessionKey") -> StoredTree:
        text = f"Claude Code session {printable(key['session_id'])}"
        try:
            return await self._trees.create(self._principal, OWNER, kind=KIND, name=_name(key), text=text)
        except Conflict:
            made = await self._tree(key)  # somebody else was faster
            if made is None:
                raise
            return made

    async def _nodes_of(self, tree: StoredTree) -> set[str]:
        if tree.id not in self._known:
            self._known[tree.id] = {node.id for node in await self._all_nodes(tree, bare=True)}
        return self._known[tree.id]

    async def _all_nodes(self, tree: StoredTree, *, bare: bool = False) -> list[StoredNode]:
        nodes: list[StoredNode] = []
        after: str | None = None
        while True:
            page, after = await self._trees.nodes(self._principal, tree.id, after=after, bare=bare)
            nodes += page
            if after is None:
                return nodes


def has_messages(entries: "Iterable[SessionStoreEntry]") -> bool:
    """Whether something was said in a transcript: it may begin with other lines."""
    return any(entry.get("type") in ("user", "assistant") for entry in entries)


def _name(key: "SessionKey | SessionListSubkeysKey") -> str:
    """The name of a session's tree: its id, and a digest of its project, whose name may be long."""
    session = key["session_id"]
    if not (session.isascii() and session.isprintable() and 0 < len(session) <= 100):
        raise TreeError("The id of a session has 1 to 100 printable characters")
    return f"{_digest(key['project_key'])} {session}"


def _digest(project_key: str) -> str:
    return hashlib.sha256(project_key.encode(errors="surrogatepass")).hexdigest()[:16]


def _id_of(entry: Mapping[str, Any], subpath: str | None, *, made: bool = True) -> str:
    """The id of an entry's node: the same whenever it comes again, unless it has no `uuid`.

    Two transcripts of a session may have entries of the same one.
    """
    uuid = entry.get("uuid")
    if not isinstance(uuid, str) or not uuid:
        return new_id() if made else ""
    if subpath is None and is_tree_id(uuid):
        return uuid
    return hashlib.sha256(f"{subpath}\n{uuid}".encode(errors="surrogatepass")).hexdigest()


def _nodes(entry: "SessionStoreEntry", id: str, parent: str | None, subpath: str | None) -> Iterator[NewNode]:
    written = json.dumps(entry)  # in ASCII: what JSON allows and Unicode does not comes back as it was
    about = {} if subpath is None else {"subpath": subpath}
    yield NewNode(f"{_summary(entry)}\n{written[:PART]}", parent, {ENTRY: len(written), **about}, id=id)
    above = id
    for start in range(PART, len(written), PART):
        node = NewNode(written[start : start + PART], above, {"rest_of": id, **about})
        yield node
        above = node.id


def _entries(nodes: Sequence[StoredNode], subpath: str | None) -> Iterator[Any]:
    """The entries of a transcript, in the order in which they came.

    Left out are those that were cut off, and what others have added to the tree that is none.
    """
    texts: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for node in nodes:
        about = node.metadata or {}
        if about.get("subpath") != subpath:
            continue
        if ENTRY in about:
            texts[node.id], sizes[node.id] = node.text.partition("\n")[2], about[ENTRY]
        elif isinstance(whole := about.get("rest_of"), str) and whole in texts:
            texts[whole] += node.text
    for id, text in texts.items():
        if len(text) == sizes[id] and isinstance(entry := _read(text), dict):
            yield entry


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _subpath(node: StoredNode) -> str | None:
    path = (node.metadata or {}).get("subpath")
    return path if isinstance(path, str) else None


def _summary(entry: Mapping[str, Any]) -> str:
    """What an entry is, in one line."""
    kind = str(entry.get("type", ""))
    message = entry.get("message")
    said = list[str]()
    if isinstance(message, Mapping):
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        said = [_block(block) for block in blocks if isinstance(block, Mapping)]
    text = f"{kind}: {' '.join(part for part in said if part)}" if any(said) else kind
    shown = " ".join(text[:SHOWN].split())
    return printable(shown.encode(errors="replace").decode())


def _block(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text") or "")
        case "thinking":
            return str(block.get("thinking") or "")
        case "tool_use":
            return f"{block.get('name')} {json.dumps(block.get('input'))}"
        case "tool_result":
            content = block.get("content")
            blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
            return f"result: {' '.join(_block(one) for one in blocks if isinstance(one, Mapping))}"
        case kind:
            return f"({kind})"

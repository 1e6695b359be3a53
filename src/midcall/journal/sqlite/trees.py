"""Trees of nodes in the file of an SQLite journal."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from sqlite3 import Connection
from typing import Any, TypeAlias

from midcall.errors import TreeError, UnknownNode, UnknownTree
from midcall.journal.seal import NOTHING, TreeValues, Values
from midcall.journal.sqlite.file import Database, reading, writing
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
    is_tree_id,
    name_taken,
    page_number,
    size_of_node,
    size_of_tree,
)

PURGED_AT_ONCE = 2000
"""How many nodes are deleted in one transaction, so that others need not wait long."""

LOOKED_AT_ONCE = 10_000
"""How many nodes are looked at in one reading, for the same reason."""

_COLUMNS = (
    "id, principal, kind, name, root, state, due, created, updated, version, nodes, size, metadata, note"
)
_SELECT = f"SELECT n, {_COLUMNS} FROM trees"  # noqa: S608 - all SQL is of this file
_FIND = f"{_SELECT} WHERE id = ? AND principal IS ? AND state != 'purged'"
_BY_NAME = (
    f"{_SELECT} WHERE kind = ? AND name = ? AND ifnull(principal, 0) = ifnull(?, 0) AND state != 'purged'"
)
_LIST = (
    f"{_SELECT} WHERE principal IS ? AND n < ? AND state IN ({{states}}) AND (? IS NULL OR kind = ?)"
    " ORDER BY n DESC LIMIT ?"
)
_LIST_BARE = _LIST.replace("metadata, note", f"x'{NOTHING.hex()}', x'{NOTHING.hex()}'")
_EVERY = f"{_SELECT} WHERE n > ? AND state != 'purged' ORDER BY n LIMIT ?"
_INSERT = (
    f"INSERT INTO trees ({_COLUMNS}) VALUES ({', '.join('?' * 14)})"  # noqa: S608 - as above
    " ON CONFLICT DO NOTHING"
)
_SET_OWNER = (
    "INSERT INTO tree_owners VALUES (?, ?, ?) ON CONFLICT (tree, owner) DO UPDATE SET count = excluded.count"
)
_MOVE = "UPDATE trees SET state = ?, due = ?, updated = ? WHERE n = ?"
_WRITE = (
    "UPDATE trees SET updated = ?, metadata = ?, note = ?, version = ?, kind = ?, name = ?, size = ?"
    " WHERE n = ?"
)
_GROW = "UPDATE trees SET nodes = nodes + ?, size = size + ?, updated = ? WHERE n = ?"
_ADD = "INSERT INTO nodes (tree, number, parent, external, created, id, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
_NUMBER = "SELECT number FROM nodes WHERE tree = ? AND id = ?"

# A node as `TreeValues.node` takes it, with the ids of its children in one text.
_NODE = (
    "(SELECT group_concat(id, ' ') FROM (SELECT k.id FROM nodes k WHERE k.tree = c.tree"  # noqa: S608 - as above
    f" AND k.parent = c.number ORDER BY k.number LIMIT {LISTED_CHILDREN + 1})),"
    " c.id, (SELECT p.id FROM nodes p WHERE p.tree = c.tree AND p.number = c.parent), c.external, c.created,"
    " c.body"
)
_BARE = _NODE.replace("c.body", f"x'{NOTHING.hex()}'")
_ONE = f"SELECT {_NODE} FROM nodes c WHERE c.tree = ? AND c.number = ?"  # noqa: S608 - as above
_NODES = "SELECT {node} FROM nodes c WHERE c.tree = ? AND c.number > ? ORDER BY c.number LIMIT ?"
_PATH = (
    "WITH RECURSIVE path (number, parent) AS ("
    " SELECT number, parent FROM nodes WHERE tree = ?1 AND number = ?2"
    " UNION ALL SELECT n.number, n.parent FROM path"
    " JOIN nodes n ON n.tree = ?1 AND n.number = path.parent AND n.number < path.number LIMIT ?3)"
    " SELECT {node} FROM path JOIN nodes c ON c.tree = ?1 AND c.number = path.number"
)
_BRANCH = (
    "WITH RECURSIVE branch (number, depth) AS ("  # noqa: S608 - as above
    " SELECT ?2, 0 UNION ALL SELECT n.number, branch.depth + 1 FROM branch JOIN nodes n ON n.tree = ?1"
    " AND n.number IN (SELECT k.number FROM nodes k WHERE k.tree = ?1 AND k.parent = branch.number"
    f" ORDER BY k.number LIMIT {LISTED_CHILDREN}) WHERE branch.depth < ?3 LIMIT ?4)"
    f" SELECT {_NODE} FROM branch JOIN nodes c ON c.tree = ?1 AND c.number = branch.number"
)
_CHILDREN = (
    "SELECT number, id FROM nodes INDEXED BY nodes_by_parent"
    " WHERE tree = ? AND parent = ? AND number > ? ORDER BY number LIMIT ?"
)
_LEAVES = (
    "SELECT number, id FROM nodes c WHERE tree = ? AND number > ? AND number <= ?"
    " AND NOT EXISTS (SELECT 1 FROM nodes k WHERE k.tree = c.tree AND k.parent = c.number)"
    " ORDER BY number LIMIT ?"
)
_DUE = "SELECT n, state FROM trees WHERE due <= ? ORDER BY due LIMIT ?"
_PURGE = (
    "DELETE FROM nodes WHERE rowid IN (SELECT rowid FROM nodes WHERE tree = ? ORDER BY number DESC LIMIT ?)"
)

_Rows: TypeAlias = list[tuple[int, str]]

_Placed: TypeAlias = list[tuple[NodeRecord, int | None, float]]
"""New nodes, with the numbers of their parents and the time."""


class SqliteTrees:
    """The trees of one file, for one worker."""

    def __init__(self, database: Database, values: Values) -> None:
        self.database = database
        self._values = TreeValues(values)

    # writing

    @writing
    def create(self, db: Connection, tree: TreeRecord, root: NodeRecord) -> None:
        now = time.time()
        n = self._insert(db, tree, now, now)
        if n is None:
            if db.execute("SELECT 1 FROM trees WHERE id = ?", (tree.id,)).fetchone():
                raise TreeError(f"The tree {tree.id} already exists")
            raise name_taken(tree)
        self._add(db, n, tree.id, 0, [(root, None, now)], now)

    @writing
    def write(self, db: Connection, tree_id: str, principal: str | None, change: TreeChange) -> int:
        n, tree = self._find(db, tree_id, principal)
        check_writable(tree_id, tree.state, change)
        check_version(change, tree.version)
        now = time.time()
        new = self._placed(db, n, tree.nodes, change.nodes, now)
        version = self._change(db, n, tree, change, now)
        self._add(db, n, tree_id, tree.nodes, new, now)
        return version

    @writing
    def claim(self, db: Connection, tree_id: str, principal: str | None, owner: str, count: int) -> int:
        n, tree = self._find(db, tree_id, principal)
        new = check_claim(tree_id, tree.state, owner, count, self._owners(db, n))
        db.execute(_SET_OWNER, (n, owner, new))
        db.execute(_MOVE, ("active", None, time.time(), n))
        return new

    @writing
    def release(self, db: Connection, tree_id: str, principal: str | None, owner: str, count: int) -> int:
        n, tree = self._find(db, tree_id, principal)
        owners = self._owners(db, n)
        left, now = check_release(owner, count, owners), time.time()
        if left:
            db.execute(_SET_OWNER, (n, owner, left))
        else:
            db.execute("DELETE FROM tree_owners WHERE tree = ? AND owner = ?", (n, owner))
        if left or len(owners) > 1:
            db.execute(_MOVE, (tree.state, tree.due, now, n))
        else:
            db.execute(_MOVE, ("scheduled_delete", now + SCHEDULED, now, n))
        return left

    @writing
    def restore(self, db: Connection, tree: TreeRecord) -> bool:
        return self._insert(db, tree, tree.created, tree.updated) is not None

    @writing
    def restore_nodes(
        self, db: Connection, tree_id: str, principal: str | None, nodes: Sequence[NodeRecord]
    ) -> None:
        n, tree = self._find(db, tree_id, principal)
        wanted = {id for node in nodes for id in (node.id, node.parent) if id is not None}
        numbers = {id: number for id in wanted if (number := self._number(db, n, id)) is not None}
        new = [node for node in nodes if node.id not in numbers]
        check_restored(tree.root, new, numbers)
        placed = _Placed()
        for number, node in enumerate(new, tree.nodes):
            placed.append((node, None if node.parent is None else numbers[node.parent], node.created))
            numbers[node.id] = number
        self._add(db, n, tree_id, tree.nodes, placed, tree.updated)

    def sweep(self, db: Connection, limit: int) -> int:
        """Bring trees to their next state, or delete some of their nodes; how many."""
        now = time.time()
        rows = db.execute(_DUE, (now, limit)).fetchall()
        left = PURGED_AT_ONCE
        for n, state in rows:
            if state == "scheduled_delete":
                db.execute(_MOVE, ("archived", now + ARCHIVED, now, n))
                continue
            left -= db.execute(_PURGE, (n, left)).rowcount
            if not left:
                db.execute(_MOVE, ("purged", 0.0, now, n))  # the rest comes next, before all others
                db.execute("UPDATE trees SET name = NULL WHERE n = ?", (n,))
                return limit  # so that whoever sweeps comes again at once
            db.execute("DELETE FROM tree_owners WHERE tree = ?", (n,))
            db.execute("DELETE FROM trees WHERE n = ?", (n,))
        return len(rows)

    # reading

    @reading
    def load(self, db: Connection, tree_id: str, principal: str | None) -> TreeRecord:
        return self._find(db, tree_id, principal, owners=True)[1]

    @reading
    def find(self, db: Connection, kind: str, name: str, principal: str | None) -> TreeRecord | None:
        row = db.execute(_BY_NAME, (kind, name, principal)).fetchone()
        return None if row is None else self._values.tree(self._owners(db, row[0]), *row[1:])

    @reading
    def list(
        self,
        db: Connection,
        principal: str | None,
        *,
        states: Sequence[TreeState] = ("active",),
        kind: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> TreePage:
        before = 2**62 if after is None else page_number(after)
        found = (_LIST_BARE if kind is None else _LIST).format(states=", ".join("?" * len(states)))
        rows = db.execute(found, (principal, before, *states, kind, kind, limit + 1)).fetchall()
        trees = [self._values.tree({}, *row) for _, *row in rows[:limit]]
        return TreePage(trees, str(rows[limit - 1][0]) if len(rows) > limit else None)

    @reading
    def node(self, db: Connection, tree_id: str, principal: str | None, node_id: str) -> NodeRecord:
        n, _ = self._find(db, tree_id, principal)
        return self._node(tree_id, db.execute(_ONE, (n, self._known(db, n, node_id))).fetchone())

    @reading
    def nodes(
        self,
        db: Connection,
        tree_id: str,
        principal: str | None,
        *,
        after: str | None = None,
        limit: int = 1000,
        size: int | None = None,
    ) -> NodePage:
        n, tree = self._find(db, tree_id, principal)
        last = -1 if after is None else page_number(after)
        rows = db.execute(_NODES.format(node=_columns(size)), (n, last, limit))
        found = bounded(self._opened(tree_id, rows), size)
        last += len(found)
        return NodePage(found, str(last) if last < tree.nodes - 1 else None)

    @reading
    def path(
        self,
        db: Connection,
        tree_id: str,
        principal: str | None,
        node_id: str,
        *,
        limit: int,
        size: int | None = None,
    ) -> Sequence[NodeRecord]:
        n, _ = self._find(db, tree_id, principal)
        rows = db.execute(_PATH.format(node=_columns(size)), (n, self._known(db, n, node_id), limit))
        return bounded(self._opened(tree_id, rows), size)[::-1]

    @reading
    def branch(
        self,
        db: Connection,
        tree_id: str,
        principal: str | None,
        node_id: str | None,
        *,
        depth: int,
        limit: int,
        size: int | None = None,
    ) -> Sequence[NodeRecord]:
        n, _ = self._find(db, tree_id, principal)
        number = 0 if node_id is None else self._known(db, n, node_id)
        rows = db.execute(_BRANCH, (n, number, depth, limit))
        return bounded(self._opened(tree_id, rows), size)

    @reading
    def children(
        self,
        db: Connection,
        tree_id: str,
        principal: str | None,
        node_id: str,
        *,
        after: str | None = None,
        limit: int = 1000,
    ) -> IdPage:
        n, _ = self._find(db, tree_id, principal)
        last = -1 if after is None else page_number(after)
        return _ids(db.execute(_CHILDREN, (n, self._known(db, n, node_id), last, limit + 1)), limit)

    async def leaves(
        self, tree_id: str, principal: str | None, *, after: str | None = None, limit: int = 1000
    ) -> IdPage:
        found = _Rows()
        last: int | None = -1 if after is None else page_number(after)
        while last is not None and len(found) <= limit:
            some, last = await self._some_leaves(tree_id, principal, last, limit + 1 - len(found))
            found += some
        return _ids(found, limit)

    @reading
    def _some_leaves(
        self, db: Connection, tree_id: str, principal: str | None, last: int, limit: int
    ) -> tuple[_Rows, int | None]:
        """Leaves among the next nodes, and after which one to go on."""
        n, tree = self._find(db, tree_id, principal)
        end = last + LOOKED_AT_ONCE
        some = db.execute(_LEAVES, (n, last, end, limit)).fetchall()
        return some, end if end < tree.nodes - 1 else None

    @reading
    def held(self, db: Connection, principal: str) -> int:
        (size,) = db.execute(
            "SELECT coalesce(sum(size), 0) FROM trees WHERE principal = ? AND state != 'purged'", (principal,)
        ).fetchone()
        return int(size)

    @reading
    def updated(self, db: Connection, tree_ids: Sequence[str]) -> Mapping[str, float]:
        marks = ", ".join("?" * len(tree_ids))
        found = f"SELECT id, updated FROM trees WHERE id IN ({marks}) AND state != 'purged'"  # noqa: S608 - as above
        return dict(db.execute(found, tuple(tree_ids)).fetchall())

    @reading
    def every(self, db: Connection, after: str | None = None, limit: int = 100) -> TreePage:
        rows = db.execute(_EVERY, (0 if after is None else page_number(after), limit + 1)).fetchall()
        trees = [self._values.tree(self._owners(db, n), *row) for n, *row in rows[:limit]]
        return TreePage(trees, str(rows[limit - 1][0]) if len(rows) > limit else None)

    # inside

    def _change(self, db: Connection, n: int, tree: TreeRecord, change: TreeChange, now: float) -> int:
        """Write all of a change but its nodes; gives the version of the note."""
        if change.only_nodes:
            return tree.version
        metadata = tree.metadata if change.metadata is None else change.metadata
        note, version = (tree.note, tree.version) if change.note is None else (change.note, tree.version + 1)
        kind, name = ("", None) if change.unnamed else (tree.kind, tree.name)
        size = tree.size + len(metadata) - len(tree.metadata) + len(note) - len(tree.note)
        values = (
            self._values.close(tree.id, "metadata", metadata),
            self._values.close(tree.id, "note", note),
        )
        db.execute(_WRITE, (now, *values, version, kind, name, size, n))
        return version

    def check_sealed(self, db: Connection) -> None:
        """Raise `JournalError` if the journal is to be sealed, and the oldest tree is not."""
        row = db.execute("SELECT body FROM nodes ORDER BY rowid LIMIT 1").fetchone()
        if row is not None:
            self._values.check(row[0], "A tree of the journal")

    def _find(
        self, db: Connection, tree_id: str, principal: str | None, *, owners: bool = False
    ) -> tuple[int, TreeRecord]:
        """The number of a tree, and the tree. Raises `UnknownTree`."""
        row = db.execute(_FIND, (tree_id, principal)).fetchone() if is_tree_id(tree_id) else None
        if row is None:
            raise UnknownTree(tree_id)
        n: int = row[0]
        return n, self._values.tree(self._owners(db, n) if owners else {}, *row[1:])

    def _owners(self, db: Connection, n: int) -> dict[str, int]:
        return dict(db.execute("SELECT owner, count FROM tree_owners WHERE tree = ?", (n,)).fetchall())

    def _insert(self, db: Connection, tree: TreeRecord, created: float, updated: float) -> int | None:
        """Write a tree without nodes; nothing if it, or its name, is known."""
        done = db.execute(
            _INSERT,
            (
                tree.id,
                tree.principal,
                tree.kind,
                tree.name,
                tree.root,
                tree.state,
                tree.due,
                created,
                updated,
                tree.version,
                0,
                size_of_tree(tree),
                self._values.close(tree.id, "metadata", tree.metadata),
                self._values.close(tree.id, "note", tree.note),
            ),
        )
        if not done.rowcount:
            return None
        n = done.lastrowid
        db.executemany(_SET_OWNER, [(n, owner, count) for owner, count in tree.owners.items()])
        return n

    def _placed(self, db: Connection, n: int, first: int, nodes: Sequence[NodeRecord], now: float) -> _Placed:
        """New nodes with the numbers of their parents. Raises `UnknownNode` or `TreeError`."""
        placed = _Placed()
        numbers: dict[str, int] = {}
        for number, node in enumerate(nodes, first):
            parent = 0
            if node.parent is not None:
                parent = numbers[node.parent] if node.parent in numbers else self._known(db, n, node.parent)
            if node.id in numbers or self._number(db, n, node.id) is not None:
                raise TreeError(f"The node {node.id} already exists")
            numbers[node.id] = number
            placed.append((node, parent, now))
        return placed

    def _add(
        self,
        db: Connection,
        n: int,
        tree_id: str,
        first: int,
        placed: _Placed,
        updated: float,
    ) -> None:
        rows = [
            (n, number, parent, node.external, made, node.id, self._values.close_body(tree_id, node))
            for number, (node, parent, made) in enumerate(placed, first)
        ]
        if rows:
            db.executemany(_ADD, rows)
            db.execute(_GROW, (len(rows), sum(size_of_node(node) for node, *_ in placed), updated, n))

    def _number(self, db: Connection, n: int, node_id: str) -> int | None:
        row = db.execute(_NUMBER, (n, node_id)).fetchone() if is_tree_id(node_id) else None
        return None if row is None else int(row[0])

    def _known(self, db: Connection, n: int, node_id: str) -> int:
        number = self._number(db, n, node_id)
        if number is None:
            raise UnknownNode(node_id)
        return number

    def _opened(self, tree_id: str, rows: Iterable[Any]) -> Iterator[NodeRecord]:
        return (self._node(tree_id, row) for row in rows)

    def _node(self, tree_id: str, row: Any) -> NodeRecord:
        children, *values = row
        return self._values.node(tree_id, children.split(" ") if children else (), *values)


def _columns(size: int | None) -> str:
    return _BARE if size == 0 else _NODE


def _ids(rows: Iterable[Any], limit: int) -> IdPage:
    found = list(islice(rows, limit + 1))
    return IdPage([id for _, id in found[:limit]], str(found[limit - 1][0]) if len(found) > limit else None)

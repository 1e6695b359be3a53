"""Trees of nodes in the database of a journal. The clock of the database is the one that counts.

Who changes a tree locks its row first, so that changes of one tree come one after the other. When the line
breaks, what was under way may have been done; each write can tell that when it is tried again.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from midcall.errors import TreeError, UnknownNode, UnknownTree
from midcall.journal.postgres.reach import Reach, on_connection, transaction
from midcall.journal.postgres.rows import digest
from midcall.journal.postgres.sql import Statements
from midcall.journal.seal import TreeValues, Values
from midcall.journal.trees import (
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

if TYPE_CHECKING:
    from midcall.journal.postgres.reach import Connection

PURGED_AT_ONCE = 10_000
"""How many nodes one look of the sweeper deletes."""

_Placed: TypeAlias = list[tuple[NodeRecord, int | None, float | None]]
"""New nodes, with the numbers of their parents, and the time if it is not now."""

_Nodes: TypeAlias = list[NodeRecord]


class PostgresTrees:
    """The trees of one schema."""

    def __init__(self, reach: Reach, sql: Statements, values: Values) -> None:
        self.reach = reach
        self._sql = sql
        self._values = TreeValues(values)

    # --- writing -----------------------------------------------------------------------------

    async def create(self, tree: TreeRecord, root: NodeRecord) -> None:
        async def work(connection: "Connection", again: bool) -> None:
            async with transaction(connection):
                n = await self._insert(connection, tree, None)
                if n is not None:
                    await self._add(connection, n, tree.id, 0, [(root, None, None)])
                    return
            if not await connection.fetchval(self._sql.tree_exists, tree.id):
                raise name_taken(tree)
            if not (again and (await self._find(connection, tree.id, tree.principal))[1].root == root.id):
                raise TreeError(f"The tree {tree.id} already exists")

        await self.reach.run(work)

    async def write(self, tree_id: str, principal: str | None, change: TreeChange) -> int:
        async def work(connection: "Connection", again: bool) -> int:
            async with transaction(connection):
                n, tree = await self._find(connection, tree_id, principal, lock=True)
                if again and await self._is_written(connection, n, tree, change):
                    return tree.version
                check_writable(tree_id, tree.state, change)
                check_version(change, tree.version)
                new = await self._placed(connection, n, tree.nodes, change.nodes)
                version = await self._change(connection, n, tree, change)
                await self._add(connection, n, tree_id, tree.nodes, new)
            return version

        return await self.reach.run(work)

    async def claim(self, tree_id: str, principal: str | None, owner: str, count: int) -> int:
        stamp = secrets.token_bytes(16)

        async def work(connection: "Connection", again: bool) -> int:
            async with transaction(connection):
                n, tree = await self._find(connection, tree_id, principal, lock=True)
                if again and (held := await self._stamped(connection, n, owner, stamp)) is not None:
                    return held
                new = check_claim(tree_id, tree.state, owner, count, await self._owners(connection, n))
                await connection.execute(self._sql.set_tree_owner, n, owner, new, stamp)
                await connection.execute(self._sql.move_tree, n, "active", 0.0)
            return new

        return await self.reach.run(work)

    async def release(self, tree_id: str, principal: str | None, owner: str, count: int) -> int:
        stamp = secrets.token_bytes(16)

        async def work(connection: "Connection", again: bool) -> int:
            async with transaction(connection):
                n, tree = await self._find(connection, tree_id, principal, lock=True)
                if again and (held := await self._stamped(connection, n, owner, stamp)) is not None:
                    return held
                owners = await self._owners(connection, n)
                left = check_release(owner, count, owners)
                await connection.execute(self._sql.set_tree_owner, n, owner, left, stamp)
                if left or len(owners) > 1:
                    await connection.execute(self._sql.move_tree, n, tree.state, None)
                else:
                    await connection.execute(self._sql.move_tree, n, "scheduled_delete", SCHEDULED)
            return left

        return await self.reach.run(work)

    @on_connection
    async def restore(self, connection: "Connection", tree: TreeRecord) -> bool:
        async with transaction(connection):
            return await self._insert(connection, tree, tree.created) is not None

    @on_connection
    async def restore_nodes(
        self, connection: "Connection", tree_id: str, principal: str | None, nodes: Sequence[NodeRecord]
    ) -> None:
        async with transaction(connection):
            n, tree = await self._find(connection, tree_id, principal, lock=True)
            wanted = {id for node in nodes for id in (node.id, node.parent) if id is not None}
            numbers = await self._numbers(connection, n, wanted)
            new = [node for node in nodes if node.id not in numbers]
            check_restored(tree.root, new, numbers)
            placed = _Placed()
            for number, node in enumerate(new, tree.nodes):
                placed.append((node, None if node.parent is None else numbers[node.parent], node.created))
                numbers[node.id] = number
            await self._add(connection, n, tree_id, tree.nodes, placed, tree.updated)

    async def sweep(self, connection: "Connection", limit: int) -> int:
        """Bring trees to their next state, and delete nodes of those that are purged; how many."""
        moved: int = await connection.fetchval(self._sql.sweep_trees, limit)
        left = PURGED_AT_ONCE
        while left > 0:
            async with transaction(connection):
                n = await connection.fetchval(self._sql.purged_tree)
                if n is None:
                    break
                gone: int = await connection.fetchval(self._sql.purge_nodes, n, left)
                if gone < left:
                    await connection.execute(self._sql.purge_tree, n)
            left -= max(gone, 1)
        return moved

    # --- reading -----------------------------------------------------------------------------

    @on_connection
    async def load(self, connection: "Connection", tree_id: str, principal: str | None) -> TreeRecord:
        return (await self._find(connection, tree_id, principal, owners=True))[1]

    @on_connection
    async def find(
        self, connection: "Connection", kind: str, name: str, principal: str | None
    ) -> TreeRecord | None:
        row = await connection.fetchrow(self._sql.tree_by_name, _key(kind, name, principal))
        return None if row is None else self._values.tree(await self._owners(connection, row[0]), *row[1:])

    @on_connection
    async def list(
        self,
        connection: "Connection",
        principal: str | None,
        *,
        states: Sequence[TreeState] = ("active",),
        kind: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> TreePage:
        before = 2**62 if after is None else page_number(after)
        rows = await connection.fetch(self._sql.list_trees, principal, before, tuple(states), kind, limit + 1)
        trees = [self._values.tree({}, *row) for _, *row in rows[:limit]]
        return TreePage(trees, str(rows[limit - 1][0]) if len(rows) > limit else None)

    @on_connection
    async def node(
        self, connection: "Connection", tree_id: str, principal: str | None, node_id: str
    ) -> NodeRecord:
        n, _ = await self._find(connection, tree_id, principal)
        number = await self._known(connection, n, node_id)
        row: Any = await connection.fetchrow(self._sql.load_node, n, number)
        if row is None:
            raise UnknownNode(node_id)  # the tree was purged in this moment
        return self._values.node(tree_id, *row)

    @on_connection
    async def nodes(
        self,
        connection: "Connection",
        tree_id: str,
        principal: str | None,
        *,
        after: str | None = None,
        limit: int = 1000,
        size: int | None = None,
    ) -> NodePage:
        n, tree = await self._find(connection, tree_id, principal)
        last = -1 if after is None else min(page_number(after), tree.nodes)
        rows = await connection.fetch(self._sql.load_nodes, n, last, limit, size)
        found = self._bounded(tree_id, rows, size)
        last += len(found)
        return NodePage(found, str(last) if last < tree.nodes - 1 else None)

    @on_connection
    async def path(
        self,
        connection: "Connection",
        tree_id: str,
        principal: str | None,
        node_id: str,
        *,
        limit: int,
        size: int | None = None,
    ) -> Sequence[NodeRecord]:
        n, _ = await self._find(connection, tree_id, principal)
        number = await self._known(connection, n, node_id)
        rows = await connection.fetch(self._sql.path, n, number, limit, size)
        return self._bounded(tree_id, rows, size)[::-1]

    @on_connection
    async def branch(
        self,
        connection: "Connection",
        tree_id: str,
        principal: str | None,
        node_id: str | None,
        *,
        depth: int,
        limit: int,
        size: int | None = None,
    ) -> Sequence[NodeRecord]:
        n, _ = await self._find(connection, tree_id, principal)
        number = 0 if node_id is None else await self._known(connection, n, node_id)
        rows = await connection.fetch(self._sql.branch, n, number, depth, limit, size)
        return self._bounded(tree_id, rows, size)

    @on_connection
    async def children(
        self,
        connection: "Connection",
        tree_id: str,
        principal: str | None,
        node_id: str,
        *,
        after: str | None = None,
        limit: int = 1000,
    ) -> IdPage:
        n, tree = await self._find(connection, tree_id, principal)
        last = -1 if after is None else min(page_number(after), tree.nodes)
        number = await self._known(connection, n, node_id)
        return _ids(await connection.fetch(self._sql.children_of, n, number, last, limit + 1), limit)

    @on_connection
    async def leaves(
        self,
        connection: "Connection",
        tree_id: str,
        principal: str | None,
        *,
        after: str | None = None,
        limit: int = 1000,
    ) -> IdPage:
        n, tree = await self._find(connection, tree_id, principal)
        last = -1 if after is None else min(page_number(after), tree.nodes)
        return _ids(await connection.fetch(self._sql.leaves, n, last, limit + 1), limit)

    @on_connection
    async def held(self, connection: "Connection", principal: str) -> int:
        return int(await connection.fetchval(self._sql.held_trees, principal))

    @on_connection
    async def updated(self, connection: "Connection", tree_ids: Sequence[str]) -> Mapping[str, float]:
        rows = await connection.fetch(self._sql.updated_trees, tuple(tree_ids))
        return {row[0]: row[1] for row in rows}

    @on_connection
    async def every(self, connection: "Connection", after: str | None = None, limit: int = 100) -> TreePage:
        before = 0 if after is None else page_number(after)
        rows = await connection.fetch(self._sql.every_tree, before, limit + 1)
        trees = [self._values.tree(await self._owners(connection, n), *row) for n, *row in rows[:limit]]
        return TreePage(trees, str(rows[limit - 1][0]) if len(rows) > limit else None)

    # --- inside ------------------------------------------------------------------------------

    async def check_sealed(self, connection: "Connection") -> None:
        """Raise `JournalError` if the journal is to be sealed, and the oldest tree is not."""
        body = await connection.fetchval(self._sql.oldest_node)
        if body is not None:
            self._values.check(body, "A tree of the journal")

    async def _find(
        self,
        connection: "Connection",
        tree_id: str,
        principal: str | None,
        *,
        lock: bool = False,
        owners: bool = False,
    ) -> tuple[int, TreeRecord]:
        """The number of a tree, and the tree. Raises `UnknownTree`."""
        if not is_tree_id(tree_id):
            raise UnknownTree(tree_id)
        found = self._sql.lock_tree if lock else self._sql.find_tree
        row = await connection.fetchrow(found, tree_id, principal)
        if row is None:
            raise UnknownTree(tree_id)
        n: int = row[0]
        return n, self._values.tree(await self._owners(connection, n) if owners else {}, *row[1:])

    async def _owners(self, connection: "Connection", n: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await connection.fetch(self._sql.tree_owners, n)}

    async def _insert(self, connection: "Connection", tree: TreeRecord, created: float | None) -> int | None:
        """Write a tree without nodes; nothing if it, or its name, is known."""
        n: int | None = await connection.fetchval(
            self._sql.insert_tree,
            tree.id,
            tree.principal,
            tree.kind,
            tree.name,
            _key(tree.kind, tree.name, tree.principal),
            tree.root,
            tree.state,
            tree.due,
            created,
            None if created is None else tree.updated,
            tree.version,
            size_of_tree(tree),
            self._values.close(tree.id, "metadata", tree.metadata),
            self._values.close(tree.id, "note", tree.note),
        )
        if n is not None:
            for owner, count in tree.owners.items():
                await connection.execute(self._sql.set_tree_owner, n, owner, count, None)
        return n

    async def _change(self, connection: "Connection", n: int, tree: TreeRecord, change: TreeChange) -> int:
        """Write all of a change but its nodes; gives the version of the note."""
        if change.only_nodes:
            return tree.version
        metadata = tree.metadata if change.metadata is None else change.metadata
        note, version = (tree.note, tree.version) if change.note is None else (change.note, tree.version + 1)
        kind, name = ("", None) if change.unnamed else (tree.kind, tree.name)
        await connection.execute(
            self._sql.change_tree,
            n,
            self._values.close(tree.id, "metadata", metadata),
            self._values.close(tree.id, "note", note),
            version,
            kind,
            name,
            _key(kind, name, tree.principal),
            tree.size + len(metadata) - len(tree.metadata) + len(note) - len(tree.note),
        )
        return version

    async def _is_written(
        self, connection: "Connection", n: int, tree: TreeRecord, change: TreeChange
    ) -> bool:
        """Whether a change that may have been written was: what else is in it can be written twice."""
        if change.nodes:
            return bool(await self._numbers(connection, n, [change.nodes[0].id]))
        return change.version == tree.version - 1 and change.note == tree.note

    async def _stamped(self, connection: "Connection", n: int, owner: str, stamp: bytes) -> int | None:
        """How many references an owner has since a change that may have been written, if it was."""
        count: int | None = await connection.fetchval(self._sql.tree_stamp, n, owner, stamp)
        return count

    async def _placed(
        self, connection: "Connection", n: int, first: int, nodes: Sequence[NodeRecord]
    ) -> _Placed:
        """New nodes with the numbers of their parents. Raises `UnknownNode` or `TreeError`."""
        if not nodes:
            return []
        wanted = {id for node in nodes for id in (node.id, node.parent) if id is not None}
        numbers = await self._numbers(connection, n, wanted)
        placed = _Placed()
        for number, node in enumerate(nodes, first):
            parent = 0 if node.parent is None else numbers.get(node.parent)
            if parent is None:
                raise UnknownNode(str(node.parent))
            if node.id in numbers:
                raise TreeError(f"The node {node.id} already exists")
            numbers[node.id] = number
            placed.append((node, parent, None))
        return placed

    async def _add(
        self,
        connection: "Connection",
        n: int,
        tree_id: str,
        first: int,
        placed: _Placed,
        updated: float | None = None,
    ) -> None:
        rows = [
            (number, parent, node.external, made, node.id, self._values.close_body(tree_id, node))
            for number, (node, parent, made) in enumerate(placed, first)
        ]
        if rows:
            size = sum(size_of_node(node) for node, *_ in placed)
            columns = zip(*rows, strict=True)
            await connection.execute(self._sql.add_nodes, n, *columns, len(rows), size, updated)

    async def _numbers(self, connection: "Connection", n: int, ids: Iterable[str]) -> dict[str, int]:
        fit = [id for id in ids if is_tree_id(id)]
        return {row[0]: row[1] for row in await connection.fetch(self._sql.node_numbers, n, fit)}

    async def _known(self, connection: "Connection", n: int, node_id: str) -> int:
        number = (await self._numbers(connection, n, [node_id])).get(node_id)
        if number is None:
            raise UnknownNode(node_id)
        return number

    def _bounded(self, tree_id: str, rows: Iterable[Any], size: int | None) -> _Nodes:
        return bounded((self._values.node(tree_id, *row) for row in rows), size)


def _key(kind: str, name: str | None, principal: str | None) -> bytes | None:
    return None if name is None else digest(principal, f"{kind}\n{name}")


def _ids(rows: Sequence[Any], limit: int) -> IdPage:
    return IdPage([row[1] for row in rows[:limit]], str(rows[limit - 1][0]) if len(rows) > limit else None)

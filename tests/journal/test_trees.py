"""Trees in the journal: references and states against a model, large trees, and lines that break."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.journal import test_memory, test_postgres, test_sqlite
from tests.journal.test_postgres import postgres_store

import postgres_server
from driving import drive
from journal_model import MemoryStore
from midcall.errors import Conflict, TreeError, UnknownTree
from midcall.journal.seal import KeyRing
from midcall.journal.trees import ARCHIVED, SCHEDULED, TreeChange
from postgres_cut import cuttable
from sqlite_store import SqliteStore
from trees_contract import add, chain, ids_of, new_tree, node, planted

# --- references and states, against a model -----------------------------------------------------------


class Model:
    """What is to become of a tree, in the words of the documentation."""

    def __init__(self) -> None:
        self.owners = {"own": 1}
        self.state = "active"
        self.left = 0.0
        """Seconds until the next state."""

    def claim(self, owner: str, count: int) -> int | None:
        if self.state in ("archived", "purged"):
            return None
        self.state = "active"
        self.owners[owner] = self.owners.get(owner, 0) + count
        return self.owners[owner]

    def release(self, owner: str, count: int) -> int | None:
        if self.state == "purged" or self.owners.get(owner, 0) < count:
            return None
        self.owners[owner] -= count
        left = self.owners[owner]
        if not left:
            del self.owners[owner]
        if not self.owners:
            self.state, self.left = "scheduled_delete", SCHEDULED
        return left

    def write(self) -> int | None:
        return 1 if self.state == "active" else None

    def wait(self, seconds: float) -> None:
        self.left -= seconds

    def sweep(self) -> None:
        if self.state == "scheduled_delete" and self.left < 0:
            self.state, self.left = "archived", ARCHIVED
        elif self.state == "archived" and self.left < 0:
            self.state = "purged"


_DAY = 24 * 3600.0
_OWNERS = st.sampled_from(("own", "ann", "bob"))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), _OWNERS, st.integers(1, 3)),
        st.tuples(st.just("release"), _OWNERS, st.integers(1, 3)),
        st.tuples(st.just("release"), _OWNERS, st.just(1)),
        st.tuples(st.just("write")),
        st.tuples(st.just("wait"), st.sampled_from((_DAY, 6.9 * _DAY, 7.1 * _DAY, 31 * _DAY))),
        st.tuples(st.just("sweep")),
    ),
    min_size=1,
    max_size=25,
)


async def compare(journal: Any, age: Callable[..., Any], operations: list[tuple[Any, ...]]) -> None:
    trees, model = journal.trees, Model()
    tree = await planted(trees)
    for operation, *given_ in operations:
        match operation:
            case "wait":
                await age(journal, tree.id, given_[0])
                model.wait(given_[0])
            case "sweep":
                await journal.sweep()
                model.sweep()
            case _:
                try:
                    if operation == "write":
                        came = await trees.write(tree.id, "ada", TreeChange(nodes=[node()]))
                    else:
                        came = await getattr(trees, operation)(tree.id, "ada", *given_)
                except TreeError:
                    came = None
                assert came == getattr(model, operation)(*given_), operation
        try:
            found = await trees.load(tree.id, "ada")
        except UnknownTree:
            assert model.state == "purged"
            continue
        assert (found.state, found.owners) == (model.state, model.owners)
        assert (found.due is None) == (found.state == "active")


@given(OPERATIONS)
def test_references_and_states_are_as_the_model_has_them_in_memory(operations: list[Any]) -> None:
    async def run() -> None:
        await compare(await MemoryStore().worker(), test_memory.TestMemoryJournal().age_tree, operations)

    drive(run())


def test_references_and_states_are_as_the_model_has_them_in_a_file(tmp_path: Path) -> None:
    @given(OPERATIONS)
    @settings(max_examples=40)
    def check(operations: list[Any]) -> None:
        async def run() -> None:
            store = SqliteStore(tmp_path / "journal.db", None)
            try:
                await compare(await store.worker(), test_sqlite.TestSqliteJournal().age_tree, operations)
            finally:
                await store.close()

        drive(run())

    check()


def test_references_and_states_are_as_the_model_has_them_in_postgres() -> None:
    async def run() -> None:
        @given(OPERATIONS)
        @settings(max_examples=40)
        def collect(operations: list[Any]) -> None:
            examples.append(operations)

        examples = list[Any]()
        collect()
        async with postgres_store() as store:
            journal = await store.worker()
            for operations in examples:
                await compare(journal, test_postgres.TestPostgresJournal().age_tree, operations)

    drive(run())


# --- large trees ---------------------------------------------------------------------------------------


@asynccontextmanager
async def sqlite_store(path: Path, seal: KeyRing | None = None) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, seal)
    try:
        yield store
    finally:
        await store.close()


async def steps(journal: Any, asking: Any) -> int:
    """How many thousand steps SQLite takes for something that is asked of it."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    def watch(db: Connection) -> None:
        db.set_progress_handler(step, 100)

    await journal.database.read(watch)
    await journal.database.write(watch)
    await asking
    return count


def test_a_branch_of_a_large_tree_costs_what_it_costs_in_a_small_one(tmp_path: Path) -> None:
    """By the steps that SQLite takes, which are the same on every machine."""

    async def run() -> None:
        async with sqlite_store(tmp_path / "journal.db") as store:
            journal = await store.worker()
            trees = journal.trees
            costs = list[dict[str, int]]()
            for size in (300, 20_000):
                tree = await planted(trees)
                branch = await chain(trees, tree, 10)
                for first in range(0, size, 2000):
                    await add(trees, tree, *(node(branch[1]) for _ in range(min(2000, size - first))))
                await add(trees, tree, *(node() for _ in range(size // 2)))
                of = (tree.id, "ada")
                costs.append(
                    {
                        "create": await steps(journal, add(trees, tree, node(branch[5]))),
                        "node": await steps(journal, trees.node(*of, branch[6])),
                        "children": await steps(journal, trees.children(*of, branch[6])),
                        "path": await steps(journal, trees.path(*of, branch[-1], limit=99)),
                        "branch": await steps(journal, trees.branch(*of, branch[3], depth=9, limit=99)),
                        "page": await steps(journal, trees.nodes(*of, limit=20)),
                        "claim": await steps(journal, trees.claim(*of, "own", 1)),
                    }
                )
            small, large = costs
            allowed = {name: 2 * cost + 50 for name, cost in small.items()}
            assert {name: cost for name, cost in large.items() if cost > allowed[name]} == {}

    drive(run())


def test_a_chain_of_100_000_nodes_is_walked_without_recursion(tmp_path: Path) -> None:
    async def walk(store: Any) -> None:
        trees = (await store.worker()).trees
        tree = await planted(trees)
        ids = await chain(trees, tree, 100_000)
        path = await trees.path(tree.id, "ada", ids[-1], limit=200_000, size=0)
        assert ids_of(path) == ids
        assert ids_of(await trees.path(tree.id, "ada", ids[-1], limit=5)) == ids[-5:]
        assert ids_of(await trees.branch(tree.id, "ada", ids[-50], depth=999, limit=999)) == ids[-50:]
        assert (await trees.leaves(tree.id, "ada")).ids == ids[-1:]

    async def run() -> None:
        await walk(MemoryStore())
        async with sqlite_store(tmp_path / "journal.db") as store:
            await walk(store)

    drive(run())


# --- lines that break ----------------------------------------------------------------------------------


def test_what_was_done_to_a_tree_when_the_line_broke_is_done_once() -> None:
    async def run() -> None:
        async with (
            cuttable(postgres_server.shared(), re.compile(rb"COMMIT\0")) as cut,
            postgres_store() as store,
        ):
            journal = await store.worker(dsn=cut.dsn, direct=None)
            journal._line._dsn = store.dsn
            trees, other = journal.trees, (await store.worker()).trees
            tree = await planted(trees, kind="k", name="n", note=b"1")

            async def cut_off(asking: Any) -> Any:
                cut.cuts = 1
                came = await asking
                assert cut.cuts == 0
                return came

            assert await cut_off(trees.claim(tree.id, "ada", "own", 2)) == 3
            assert await cut_off(trees.claim(tree.id, "ada", "new", 1)) == 1
            assert await cut_off(trees.release(tree.id, "ada", "own", 1)) == 2
            assert await cut_off(trees.release(tree.id, "ada", "new", 1)) == 0
            assert (await other.load(tree.id, "ada")).owners == {"own": 2}
            new = [node(), node()]
            assert await cut_off(trees.write(tree.id, "ada", TreeChange(nodes=new))) == 1
            assert await cut_off(trees.write(tree.id, "ada", TreeChange(note=b"2", version=1))) == 2
            assert await cut_off(trees.write(tree.id, "ada", TreeChange(metadata=b"m"))) == 2
            change = TreeChange(note=b"3", version=2, nodes=[node()])
            assert await cut_off(trees.write(tree.id, "ada", change)) == 3
            with pytest.raises(Conflict):
                await trees.write(tree.id, "ada", TreeChange(note=b"4", version=2))
            found = await other.load(tree.id, "ada")
            assert (found.nodes, found.note, found.metadata, found.version) == (4, b"3", b"m", 3)
            second, root = new_tree(kind="k", name="m")
            await cut_off(trees.create(second, root))
            assert (await other.load(second.id, "ada")).nodes == 1
            with pytest.raises(Conflict):
                await trees.create(*new_tree(kind="k", name="m"))

    drive(run())


# --- what is sealed --------------------------------------------------------------------------------------


def test_what_is_in_trees_cannot_be_read_in_a_sealed_file(tmp_path: Path) -> None:
    async def run() -> None:
        ring = KeyRing([b"k" * 32])
        path = tmp_path / "journal.db"
        async with sqlite_store(path, ring) as store:
            trees = (await store.worker()).trees
            tree = await planted(trees, metadata=b"the metadata", note=b"the note")
            await add(trees, tree, node(body=b"what was said"))
            await trees.write(tree.id, "ada", TreeChange(metadata=b"other metadata", note=b"other note"))
        raw = b"".join(file.read_bytes() for file in tmp_path.glob("journal.db*") if file.is_file())
        for secret in (b"the metadata", b"the note", b"what was said", b"other metadata", b"other note"):
            assert secret not in raw

    drive(run())


def test_a_node_that_was_moved_to_another_tree_in_a_sealed_file_does_not_open(tmp_path: Path) -> None:
    async def run() -> None:
        async with sqlite_store(tmp_path / "journal.db", KeyRing([b"k" * 32])) as store:
            journal = await store.worker()
            trees: Any = journal.trees
            one, two = await planted(trees), await planted(trees, "eve")
            await add(trees, one, node(id="same", body=b"secret of ada"))
            await add(trees, two, node(id="same", body=b"of eve"))

            def move(db: Connection) -> None:
                db.execute(
                    "UPDATE nodes SET body = (SELECT body FROM nodes WHERE id = 'same' AND tree = 1)"
                    " WHERE id = 'same' AND tree = 2"
                )

            await trees.database.write(move)
            with pytest.raises(Exception, match="cannot be decrypted"):
                await trees.node(two.id, "eve", "same")

    drive(run())

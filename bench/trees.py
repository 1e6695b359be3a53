"""`python -m bench.trees`: what the methods of arbor take in a tree of 100,000 nodes, and in one of 100.

Each store in turn: memory, an SQLite file, and a PostgreSQL of our own. Prints the table of
docs/topics/scale.md.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from midcall import Hub
from midcall.activations.arbor import Arbor
from midcall.activations.tree_store import NewNode, TreeStore, new_id
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal

HERE = Path(__file__).parent
SIZES = (100, 100_000)
ROUNDS = 30
DEPTH = 20


async def grow(store: TreeStore, size: int) -> tuple[str, str, float]:
    """A tree of conversations, each `DEPTH` deep, below ten topics; its last leaf, and nodes a second."""
    tree = await store.create(None, "bench")
    topics = [NewNode(f"Topic {number}") for number in range(10)]
    await store.add(None, tree.id, topics)
    begun, left, leaf, batch = time.perf_counter(), size - 10, "", list[NewNode]()
    while left > 0:
        parent = topics[left % 10].id
        for turn in range(min(DEPTH, left)):
            leaf = new_id()
            batch.append(NewNode(f"What is said in turn {turn}. " * 5, parent, {"role": "user"}, id=leaf))
            parent = leaf
        left -= DEPTH
        if len(batch) > 900 or left <= 0:
            await store.add(None, tree.id, batch)
            batch = []
    return tree.id, leaf, (size - 10) / (time.perf_counter() - begun)


async def measure(journal: Any) -> dict[str, list[str]]:
    hub = Hub().register(Arbor())
    hub.durable = DurableCalls(hub, journal)
    store = TreeStore.of(hub)
    rows: dict[str, list[str]] = {}
    for size in SIZES:
        tree, leaf, speed = await grow(store, size)
        branch = (await hub.call("arbor.node_get_path", {"tree_id": tree, "node_id": leaf})).path[-10]
        of = {"tree_id": tree}
        methods: dict[str, tuple[str, dict[str, Any]]] = {
            "add a node": ("node_create_text", of | {"content": "Hello", "parent": leaf}),
            "read a node": ("node_get", of | {"node_id": leaf}),
            f"path of {DEPTH + 2} nodes": ("context_get_path", of | {"node_id": leaf}),
            "draw a branch": ("tree_render", of | {"node_id": branch}),
            "draw it from the root (2,000 nodes at most)": ("tree_render", of),
            "a page of 1,000 nodes": ("tree_get", of | {"limit": 1000}),
            "list the leaves": ("context_list_leaves", of),
        }
        for name, (method, params) in methods.items():
            took = await timed(lambda m=method, p=params: hub.call(f"arbor.{m}", p))
            rows.setdefault(name, []).append(f"{took * 1000:.1f} ms")
        rows.setdefault("fill it, 900 nodes at a time", []).append(f"{speed:,.0f} nodes/s")
    await hub.close()
    return rows


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """The quickest of some runs, in seconds: what else the machine does comes on top."""
    took = list[float]()
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        await work()
        took.append(time.perf_counter() - begun)
    return min(took)


async def main() -> None:
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    import postgres_server
    from midcall.journal.postgres import PostgresJournal

    with tempfile.TemporaryDirectory() as folder:
        stores = {
            "memory": MemoryJournal(),
            "SQLite": SqliteJournal(Path(folder) / "journal.db"),
            "PostgreSQL": PostgresJournal(postgres_server.shared()),
        }
        tables = {name: await measure(journal) for name, journal in stores.items()}
    heads = [f"{name}, {size:,}" for name in tables for size in SIZES]
    print(f"| nodes | {' | '.join(heads)} |")
    print(f"|---|{'---|' * len(heads)}")
    for row in tables["memory"]:
        print(f"| {row} | {' | '.join(cell for table in tables.values() for cell in table[row])} |")


if __name__ == "__main__":
    asyncio.run(main())

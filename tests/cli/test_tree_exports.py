"""Trees move to another journal with `midcall calls export` and `import`."""

import json
from pathlib import Path

import pytest

from command_line import midcall
from driving import drive
from mcp_peers import KEY
from midcall import Hub
from midcall.activations.arbor import Arbor
from midcall.activations.tree_store import NewNode, TreeStore
from midcall.journal.durable import DurableCalls
from midcall.journal.seal import default_ring
from midcall.journal.sqlite import SqliteJournal


async def opened(path: Path, *, sealed: bool = False) -> tuple[Hub, TreeStore]:
    hub = Hub().register(Arbor())
    hub.durable = DurableCalls(hub, SqliteJournal(path, seal=default_ring() if sealed else None))
    return hub, TreeStore.of(hub)


def test_trees_move_into_an_encrypted_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDCALL_KEYS", KEY)
    old, new = tmp_path / "old.db", tmp_path / "new.db"

    async def fill() -> list[str]:
        hub, store = await opened(old)
        made = list[str]()
        for person in ("ada", None):
            tree = await store.create(person, "x", kind="cone", name="n", metadata={"a": 1}, note={"b": 2})
            (first,), _ = await store.add(person, tree.id, [NewNode("what was said")])
            await store.add(person, tree.id, [NewNode(f"{n}", first) for n in range(999)])
            await store.add(person, tree.id, [NewNode(parent=first, handle={"k": "v"}, metadata={"m": []})])
            made.append(tree.id)
        await hub.close()
        return made

    made = drive(fill())
    done = midcall("calls", "export", "--all", "--journal", str(old))
    assert done.returncode == 0, done.stderr
    assert "0 calls and 2 trees exported" in done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [next(iter(line)) for line in lines] == ["keys", *(["tree", "nodes_of", "nodes_of"] * 2)]
    told = "0 calls and 2 trees imported."
    for _ in range(2):
        moved = midcall("calls", "import", "-", "--journal", str(new), "--encrypt-journal", stdin=done.stdout)
        assert moved.returncode == 0, moved.stderr
        assert told in moved.stderr
        told = "0 calls imported, 2 known already."
    for file in tmp_path.glob("new.db*"):
        assert file.is_dir() or b"what was said" not in file.read_bytes()

    async def compare() -> None:
        before, after = await opened(old), await opened(new, sealed=True)
        for person, tree_id in zip(("ada", None), made, strict=True):
            stores = before[1], after[1]
            assert await stores[0].load(person, tree_id) == await stores[1].load(person, tree_id)
            assert await stores[0].nodes(person, tree_id) == await stores[1].nodes(person, tree_id)
            await stores[1].add(person, tree_id, [NewNode("it goes on")])
        for hub, _ in (before, after):
            await hub.close()

    drive(compare())

    for wrong, said in (
        ({"nodes_of": "unknown", "principal": None, "nodes": []}, "Tree not found"),
        ({"nodes_of": made[1], "principal": "eve", "nodes": []}, "Tree not found"),
        ({"tree": {"id": "x"}}, "not an exported tree"),
    ):
        refused = midcall(
            "calls", "import", "-", "--journal", str(new), "--encrypt-journal", stdin=json.dumps(wrong)
        )
        assert refused.returncode == 1
        assert said in refused.stderr

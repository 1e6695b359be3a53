"""A process that writes to a tree, and says of each thing that it was told to be done: `history` checks it.

python trees_worker.py JOURNAL TREE NUMBER
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from midcall import Hub
from midcall.activations.arbor import Arbor
from midcall.activations.tree_store import NewNode, TreeStore
from midcall.journal.choose import choose_journal
from midcall.journal.durable import DurableCalls

ROUNDS = 40


def store_at(journal: str) -> tuple[Hub, TreeStore]:
    hub = Hub().register(Arbor())
    hub.durable = DurableCalls(hub, choose_journal(journal, "trees"))
    return hub, TreeStore.of(hub)


async def write(journal: str, tree_id: str, number: str) -> None:
    hub, store = store_at(journal)
    own, parent = f"worker {number}", (await store.load("ada", tree_id)).root
    for turn in range(ROUNDS):
        node = NewNode(f"{number} {turn}", parent)
        say("adds", node.id, parent)
        await store.add("ada", tree_id, [node])
        say("added", node.id, parent)
        parent = node.id
        say("claims", own, 2)
        say("claimed", own, await store.claim("ada", tree_id, own, 2))
        say("releases", own, 1)
        say("released", own, await store.release("ada", tree_id, own, 1))
        say("claims", "all", 1)
        say("claimed", "all", await store.claim("ada", tree_id, "all", 1))
    await hub.close()


def say(*told: Any) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")  # in one piece, and at once


def read(output: bytes) -> list[Any]:
    """What a worker has said; the last line may be cut off."""
    return [json.loads(line) for line in output.split(b"\n")[:-1]]


async def check_history(journal: str, tree_id: str, histories: Sequence[list[Any]]) -> None:
    """What each worker was told is so, in its order; what it was not told of is there at most once."""
    hub, store = store_at(journal)
    tree = await store.load("ada", tree_id)
    nodes = list[Any]()
    after: str | None = None
    while True:
        page, after = await store.nodes("ada", tree_id, after=after, limit=100)
        nodes += page
        if after is None:
            break
    assert len(nodes) == tree.nodes
    places = {node.id: place for place, node in enumerate(nodes)}
    assert len(places) == len(nodes), "no node is there twice"
    begun = {told[1]: told[2] for history in histories for told in history if told[0] == "adds"}
    assert places.keys() - {tree.root} <= begun.keys(), "nobody has added what is not to be found here"
    least_all = most_all = 1
    for number, history in enumerate(histories):
        added = [(told[1], told[2]) for told in history if told[0] == "added"]
        assert [id for id in places if id in dict(added)] == [id for id, _ in added], "all, in their order"
        for id, parent in added:
            assert nodes[places[id]].parent == parent
            assert id in nodes[places[parent]].children
        path = await store.path("ada", tree_id, added[-1][0])
        assert [node.id for node in path] == [tree.root, *(id for id, _ in added)]
        own = f"worker {number}"
        held = 0
        for told in history:
            match told:
                case ["claimed", owner, count] if owner == own:
                    held += 2
                    assert count == held
                case ["released", owner, count] if owner == own:
                    held -= 1
                    assert count == held
        open_change = {"claims": 2, "releases": -1}.get(history[-1][0], 0) if history[-1][1] == own else 0
        assert tree.owners.get(own, 0) in (held, held + open_change)
        mine = [told for told in history if told[1] == "all"]
        least_all += sum(told[0] == "claimed" for told in mine)
        most_all += sum(told[0] == "claims" for told in mine)
    counts = [told[2] for history in histories for told in history if told[:2] == ["claimed", "all"]]
    assert len(counts) == len(set(counts)), "no two were told the same"
    assert least_all <= tree.owners["all"] <= most_all
    await hub.close()


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:]))

"""Trees as MCP resources: listed by pages, read, subscribed to, each caller's own."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from driving import drive, until
from mcp_peers import LATEST, META, MODERN, HttpServer, http_server, over_stdio
from midcall import Hub, connect
from midcall.activations.arbor import LISTED, Arbor
from midcall.activations.tree_store import NewNode, TreeStore
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite import SqliteJournal
from peers import command

BUILT_IN = "midcall.activations:hub"
TOKENS = {name: f"{name}-" + "k" * 40 for name in ("ann", "eve")}
ERAS = {"legacy": LATEST, "modern": MODERN}


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "journal.db"
    monkeypatch.setenv("MIDCALL_JOURNAL", str(path))
    return path


def served() -> Any:
    """A server that knows two people."""
    return http_server(BUILT_IN, MIDCALL_TOKENS=" ".join(f"{name}={token}" for name, token in TOKENS.items()))


async def arbor(client: Any, method: str, **arguments: Any) -> Any:
    result = await client.result("tools/call", {"name": f"arbor.{method}", "arguments": arguments})
    assert not result.get("isError"), result
    return result["structuredContent"]


async def subscribe(client: Any, *uris: str) -> Any:
    """Hear of changes; gives the id of the subscription of a modern client."""
    if client.modern:
        wanted = {"resourceSubscriptions": list(uris), "resourcesListChanged": True}
        id = await client.start("subscriptions/listen", {"notifications": wanted})
        await client.message("notifications/subscriptions/acknowledged")
        return id
    if hasattr(client, "listen"):
        before = len(client.statuses)
        client.listen()
        await until(lambda: len(client.statuses) > before)
    for uri in uris:
        assert await client.result("resources/subscribe", {"uri": uri}) == {}
    return None


async def told(client: Any) -> str:
    """The URI of the next resource that has changed."""
    return str((await client.message("notifications/resources/updated"))["params"]["uri"])


def said(client: Any, method: str) -> list[Any]:
    return [message for message in client.inbox if message.get("method") == method]


@pytest.mark.parametrize("era", ERAS)
def test_a_tree_and_its_nodes_are_read_by_their_uris(era: str, journal: Path) -> None:
    async def run() -> None:
        async with over_stdio(ERAS[era], target=BUILT_IN) as client:
            templates = (await client.result("resources/templates/list"))["resourceTemplates"]
            assert [one["uriTemplate"] for one in templates] == [
                "arbor://tree/{tree_id}",
                "arbor://tree/{tree_id}/node/{node_id}",
            ]
            assert (await client.result("resources/list"))["resources"] == []
            tree = (await arbor(client, "tree_create", owner_id="x", metadata={"a": 1}))["tree_id"]
            node = (await arbor(client, "node_create_text", tree_id=tree, content="Hi"))["node_id"]
            uri = f"arbor://tree/{tree}"
            listed = await client.result("resources/list")
            (one,) = listed["resources"]
            assert re.fullmatch(r"....-..-..T..:..:..Z", one.pop("annotations")["lastModified"])
            assert one == {
                "uri": uri,
                "name": tree,
                "description": "A tree of 2 nodes",
                "mimeType": "application/json",
            }
            assert "nextCursor" not in listed
            read = await client.result("resources/read", {"uri": uri})
            if client.modern:
                assert (listed["ttlMs"], read["ttlMs"], read["cacheScope"]) == (0, 0, "private")
            (content,) = read["contents"]
            assert (content["uri"], content["mimeType"]) == (uri, "application/json")
            found = json.loads(content["text"])
            assert found == (await arbor(client, "tree_get", tree_id=tree))["tree"]
            (content,) = (await client.result("resources/read", {"uri": f"{uri}/node/{node}"}))["contents"]
            assert json.loads(content["text"]) == found["nodes"][node]
            for unknown in (
                "arbor://tree/nope",
                f"{uri}/node/nope",
                f"{uri}/node/a%00b",
                f"{uri}/",
                uri[:-1],
            ):
                assert await client.error("resources/read", {"uri": unknown}) == (
                    -32602 if client.modern else -32002,
                    f"Resource not found: {unknown}",
                )

    drive(run())


@pytest.mark.parametrize("era", ERAS)
def test_many_trees_are_listed_by_pages(era: str, journal: Path) -> None:
    async def run() -> None:
        hub = Hub().register(Arbor())
        hub.durable = DurableCalls(hub, SqliteJournal(journal))
        store = TreeStore.of(hub)
        made = await asyncio.gather(*(store.create(None, "x") for _ in range(2 * LISTED + 5)))
        await hub.close()
        async with over_stdio(ERAS[era], target=BUILT_IN) as client:
            found, pages, cursor = list[str](), list[int](), None
            while not pages or cursor is not None:
                listed = await client.result("resources/list", {} if cursor is None else {"cursor": cursor})
                found += [one["uri"] for one in listed["resources"]]
                pages.append(len(listed["resources"]))
                cursor = listed.get("nextCursor")
            assert pages == [LISTED, LISTED, 5]
            assert sorted(found) == sorted(f"arbor://tree/{tree.id}" for tree in made)
            for cursor in ("0:x", "1:", "0:-1", ":", "", "x", "9" * 30 + ":", "²:", "0:" + "9" * 30):
                error = await client.error("resources/list", {"cursor": cursor})
                assert error == (-32602, "Invalid cursor"), cursor

    drive(run())


@pytest.mark.parametrize("era", ERAS)
def test_who_subscribes_to_a_tree_or_a_node_hears_of_its_changes(era: str, journal: Path) -> None:
    async def run() -> None:
        async with over_stdio(ERAS[era], target=BUILT_IN) as client:
            tree = (await arbor(client, "tree_create", owner_id="x"))["tree_id"]
            other = (await arbor(client, "tree_create", owner_id="x"))["tree_id"]
            a = (await arbor(client, "node_create_text", tree_id=tree, content="a"))["node_id"]
            uri, node = f"arbor://tree/{tree}", f"arbor://tree/{tree}/node/{a}"
            await subscribe(client, uri, node)
            await arbor(client, "node_create_text", tree_id=other, content="elsewhere")
            await arbor(client, "node_create_text", tree_id=tree, content="c", parent=a)
            assert {await told(client), await told(client)} == {uri, node}
            for method, more in (
                ("node_create_text", {"content": "b"}),
                ("tree_update_metadata", {"metadata": {"new": True}}),
                ("tree_claim", {"owner_id": "y"}),
                ("tree_release", {"owner_id": "y"}),
            ):
                await arbor(client, method, tree_id=tree, **more)
                assert await told(client) == uri
            assert said(client, "notifications/resources/updated") == []

    drive(run())


@pytest.mark.parametrize("era", ERAS)
def test_nobody_lists_reads_or_hears_of_what_belongs_to_another(era: str, journal: Path) -> None:
    async def run(server: HttpServer) -> None:
        async with (
            server.client(ERAS[era], token=TOKENS["ann"]) as ann,
            server.client(ERAS[era], token=TOKENS["eve"]) as eve,
        ):
            tree = (await arbor(ann, "tree_create", owner_id="x"))["tree_id"]
            root = (await arbor(ann, "tree_get", tree_id=tree))["tree"]["root"]
            uri = f"arbor://tree/{tree}"
            uris = (uri, f"{uri}/node/{root}")
            assert [one["uri"] for one in (await ann.result("resources/list"))["resources"]] == [uri]
            assert (await eve.result("resources/list"))["resources"] == []
            for hidden in uris:
                assert (await eve.request("resources/read", {"uri": hidden}))["error"]["message"] == (
                    f"Resource not found: {hidden}"
                )
            for client in (ann, eve):
                await subscribe(client, *uris)
            own = (await arbor(eve, "tree_create", owner_id="x"))["tree_id"]
            await subscribe(eve, f"arbor://tree/{own}")
            for number in range(3):
                await arbor(ann, "node_create_text", tree_id=tree, content=str(number))
                assert {await told(ann), await told(ann)} == set(uris)
            await arbor(eve, "node_create_text", tree_id=own, content="mine")
            assert await told(eve) == f"arbor://tree/{own}"
            assert said(eve, "notifications/resources/updated") == []
            assert said(ann, "notifications/resources/updated") == []

    with served() as server:
        drive(run(server))


@pytest.mark.parametrize("era", ERAS)
def test_whose_list_of_trees_has_changed_is_told(era: str, journal: Path) -> None:
    async def run(server: HttpServer) -> None:
        async with (
            server.client(ERAS[era], token=TOKENS["ann"]) as ann,
            server.client(ERAS[era], token=TOKENS["eve"]) as eve,
        ):
            for client in (ann, eve):
                await subscribe(client)
            tree = (await arbor(ann, "tree_create", owner_id="x"))["tree_id"]
            await ann.message("notifications/resources/list_changed")
            await arbor(ann, "tree_release", tree_id=tree, owner_id="x")
            await ann.message("notifications/resources/list_changed")
            assert (await ann.result("resources/list"))["resources"] == []
            await arbor(eve, "tree_list")
            assert said(eve, "notifications/resources/list_changed") == []

    with served() as server:
        drive(run(server))


@asynccontextmanager
async def other_process(journal: Path) -> AsyncIterator[TreeStore]:
    """Somebody else who uses the journal of a server."""
    hub = Hub().register(Arbor())
    hub.durable = DurableCalls(hub, SqliteJournal(journal))
    try:
        yield TreeStore.of(hub)
    finally:
        await hub.close()


@pytest.mark.parametrize("era", ERAS)
def test_a_change_by_another_process_is_told_too(era: str, journal: Path) -> None:
    async def run() -> None:
        async with over_stdio(ERAS[era], target=BUILT_IN) as client, other_process(journal) as store:
            tree = await store.create(None, "x")
            uri = f"arbor://tree/{tree.id}"
            node = f"{uri}/node/{tree.root}"
            id = await subscribe(client, uri, node)
            for number in range(3):
                await store.add(None, tree.id, [NewNode(str(number))])
                assert {await told(client), await told(client)} == {uri, node}
            if id is not None:
                await client.notify("notifications/cancelled", {"requestId": id})
            else:
                for one in (uri, node):
                    await client.result("resources/unsubscribe", {"uri": one})
            await store.add(None, tree.id, [NewNode("nobody hears")])
            await asyncio.sleep(1.5)  # longer than between two looks
            assert said(client, "notifications/resources/updated") == []

    drive(run())


def test_a_modern_client_hears_of_it_on_its_subscription(journal: Path) -> None:
    async def run() -> None:
        async with over_stdio(MODERN, target=BUILT_IN) as client:
            tree = (await arbor(client, "tree_create", owner_id="x"))["tree_id"]
            id = await subscribe(client, f"arbor://tree/{tree}")
            await arbor(client, "node_create_text", tree_id=tree, content="a")
            heard = await client.message("notifications/resources/updated")
            assert heard["params"]["_meta"] == {f"{META}subscriptionId": id}

    drive(run())


def test_a_tree_that_is_too_large_to_be_read_at_once_is_read_with_its_first_nodes(journal: Path) -> None:
    async def run() -> None:
        async with other_process(journal) as store:
            tree = await store.create(None, "x")
            for _ in range(12):
                await store.add(None, tree.id, [NewNode("x" * 1_000_000)])
        async with over_stdio(LATEST, target=BUILT_IN) as client:
            read = await client.result("resources/read", {"uri": f"arbor://tree/{tree.id}"})
            found = json.loads(read["contents"][0]["text"])
            assert 8 <= len(found["nodes"]) < 13
            page = await arbor(client, "tree_get", tree_id=tree.id, limit=10_000, after=found["next"])
            assert len(found["nodes"]) + len(page["tree"]["nodes"]) == 13

    drive(run())


@pytest.mark.parametrize("flag", ["--mcp", "--mcp-only"])
def test_resources_are_there_wherever_mcp_is_spoken_on_stdio(flag: str, journal: Path) -> None:
    async def run() -> None:
        async with connect(command("serve", "--stdio", flag), inherit_env=True) as client:
            tree = (await client.call("arbor_tree_create", {"owner_id": "x"})).structured["tree_id"]
            uri = f"arbor://tree/{tree}"
            assert [one["uri"] for one in await client.resources()] == [uri]
            assert tree in (await client.read(uri))[0]["text"]

    drive(run())

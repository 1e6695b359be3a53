"""What a server offers: listed once, again when it has changed, and mirrored into headers over HTTP."""

import asyncio
import os
from typing import Any

import pytest

from client_peers import (
    Exchange,
    connect,
    echo,
    http_peer,
    methods,
    midcall_server,
    nothing_waits,
    run,
    scripted,
    seen,
    speaking,
    text,
)
from driving import LIMIT, until
from mcp_peers import http_server
from midcall import Client, Hub, RemoteError
from midcall.client import cache

ERAS = ["legacy", "modern"]


async def names(client: Client) -> list[str]:
    return [one["name"] for one in await client.tools()]


@pytest.mark.parametrize("era", ERAS)
def test_a_list_is_fetched_once_with_all_its_pages(era: str) -> None:
    async def main() -> None:
        async with scripted("listing", era) as client:
            for _ in range(3):
                # The last page leads back to the second one: nobody goes round in circles.
                assert await names(client) == ["1", "1a", "1b"]
                assert [one["name"] for one in await client.prompts()] == ["1", "1a", "1b"]
                assert [one["uri"] for one in await client.resources()] == ["x://1", "x://1a", "x://1b"]
                assert [one["uriTemplate"] for one in await client.templates()] == ["1", "1a", "1b"]
            assert methods(await seen(client)).count("tools/list") == 3
            both = await asyncio.gather(*(client.tools() for _ in range(10)))
            assert all(one == both[0] for one in both)
            assert methods(await seen(client)).count("tools/list") == 3

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_list_that_has_changed_is_fetched_again_and_no_other(era: str) -> None:
    async def main() -> None:
        changes: list[str] = []
        async with scripted("listing", era) as client:
            client.on_change(changes.append)
            client.on_change(lambda part: 1 / 0)  # what a watcher does wrong harms nobody
            assert await names(client) == ["1", "1a", "1b"]
            await client.prompts()
            await client.call("change")
            assert await names(client) == ["2", "2a", "2b"]
            assert changes == ["tools"]
            assert [one["name"] for one in await client.prompts()] == ["1", "1a", "1b"]

    run(main())


def test_a_modern_server_is_listened_to_only_once_something_is_listed() -> None:
    async def main() -> None:
        async with scripted("listing", "modern") as client:
            await client.call("change")
            assert "subscriptions/listen" not in methods(await seen(client))
            await nothing_waits(client)
            await client.tools()
            (listen,) = [one for one in await seen(client) if one["method"] == "subscriptions/listen"]
            assert listen["params"]["notifications"] == {
                "toolsListChanged": True,
                "promptsListChanged": True,
                "resourcesListChanged": True,
            }

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_list_holds_no_longer_than_the_server_says(era: str) -> None:
    async def main() -> None:
        async with scripted("listing", era, "0") as client:
            assert [(await names(client))[0] for _ in range(3)] == ["1", "2", "3"]
        async with scripted("listing", era, "-5") as client:
            assert [(await names(client))[0] for _ in range(3)] == ["1", "2", "3"]
        async with scripted("listing", era, "100000") as client:
            assert [(await names(client))[0] for _ in range(3)] == ["1", "1", "1"]
        async with scripted("listing", era, "50") as client:
            assert (await names(client))[0] == "1"
            await asyncio.sleep(0.1)
            assert (await names(client))[0] == "2"

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_new_connection_is_listed_anew(era: str) -> None:
    async def main() -> None:
        async with scripted("listing", era) as client:
            await client.tools()
            await client.call("change")
            assert (await names(client))[0] == "2"
            os.kill(int((await client.call("pid")).text), 9)
            await until(lambda: not client.connected)
            assert (await names(client))[0] == "1"
            await client.call("change")  # it is heard on the new line too
            assert (await names(client))[0] == "2"

    run(main())


def test_what_a_server_does_not_offer_is_not_asked_for() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            assert await client.prompts() == []
            assert await client.resources() == []
            assert await client.templates() == []
            assert [one["name"] for one in await client.tools()] == ["echo"]
            assert methods(await seen(client)).count("prompts/list") == 0

    run(main())


@pytest.mark.parametrize(
    "page", [{}, {"tools": 5}, {"tools": [1, None]}, {"nextCursor": 5, "tools": []}, {"ttlMs": "x"}]
)
def test_a_list_that_cannot_be_read_is_empty(page: dict[str, Any]) -> None:
    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if exchange.method == "tools/list":
                await exchange.answer(page)
            return exchange.method == "tools/list"

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url) as client:
            assert await client.tools() == []

    run(main())


def test_a_list_that_fails_is_asked_for_again() -> None:
    async def main() -> None:
        refused = []

        async def other(exchange: Exchange) -> bool:
            if exchange.method == "tools/list":
                if refused:
                    await exchange.answer({"tools": [{"name": "x"}]})
                else:
                    refused.append(exchange)
                    await exchange.refuse(200, -32603, "Not now")
            return exchange.method == "tools/list"

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url) as client:
            with pytest.raises(RemoteError, match="Not now"):
                await client.tools()
            assert await names(client) == ["x"]

    run(main())


# --- resources --------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_a_resource_is_subscribed_to_and_no_more(era: str) -> None:
    async def main() -> None:
        heard: list[str] = []
        also: list[str] = []
        async with scripted("listing", era) as client:
            await client.subscribe("x://1", heard.append)
            await client.subscribe("x://1", also.append)
            await client.call("touch")
            await until(lambda: heard == ["x://1"])
            assert also == ["x://1"]
            await client.unsubscribe("x://1")
            await client.unsubscribe("x://1")
            await client.call("touch")
            await client.ping()
            assert heard == ["x://1"]

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_subscription_outlives_a_lost_line(era: str) -> None:
    async def main() -> None:
        heard: list[str] = []
        async with scripted("listing", era) as client:
            await client.subscribe("x://1", heard.append)
            os.kill(int((await client.call("pid")).text), 9)
            await until(lambda: not client.connected)
            await client.session()
            wanted = "subscriptions/listen" if era == "modern" else "resources/subscribe"
            while wanted not in methods(await seen(client)):
                await asyncio.sleep(0.01)
            await client.call("touch")
            await until(lambda: heard == ["x://1"])

    run(main())


def test_a_modern_server_that_hangs_up_is_listened_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FIRST_PAUSE", 0.05)

    async def main() -> None:
        heard: list[str] = []
        async with scripted("listing", "modern") as client:
            await client.subscribe("x://1", heard.append)
            await client.tools()
            await client.call("hang up")
            while methods(await seen(client)).count("subscriptions/listen") < 2:
                await asyncio.sleep(0.01)
            assert (await names(client))[0] == "2"  # what happened meanwhile was not heard
            await client.call("touch")
            await until(lambda: heard == ["x://1"])

    run(main())


def test_nothing_is_missed_while_something_else_is_subscribed_to() -> None:
    async def main() -> None:
        heard: list[str] = []
        async with scripted("listing", "modern") as client:
            await client.subscribe("x://1", heard.append)
            await client.subscribe("x://2", heard.append)
            sent = [
                one
                for one in await seen(client)
                if one["method"] in ("subscriptions/listen", "notifications/cancelled")
            ]
            assert [one["method"] for one in sent] == ["subscriptions/listen"] * 2 + [
                "notifications/cancelled"
            ]
            assert sent[2]["params"]["requestId"] == sent[0]["id"]
            assert sent[1]["params"]["notifications"]["resourceSubscriptions"] == ["x://1", "x://2"]

    run(main())


def test_a_server_that_has_no_subscriptions_says_so_once() -> None:
    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if exchange.method == "tools/list":
                await exchange.answer({"tools": [{"name": "x"}], "ttlMs": 0})
            return exchange.method == "tools/list"

        handler = speaking(echo, modern=True, other=other, tools={"listChanged": True}, resources={})
        async with http_peer(handler) as peer, connect(peer.url) as client:
            for _ in range(3):
                assert await names(client) == ["x"]
            assert peer.seen.count("subscriptions/listen") == 1
            with pytest.raises(RemoteError):
                await client.subscribe("x://1", print)
            assert await names(client) == ["x"]

    run(main())


def test_a_stream_of_changes_that_fails_for_now_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FIRST_PAUSE", 0.05)

    async def main() -> None:
        tries = []

        async def other(exchange: Exchange) -> bool:
            if exchange.method != "subscriptions/listen":
                return False
            tries.append(exchange)
            if len(tries) < 3:
                await exchange.send(502, b"<html>", "text/html")
                return True
            await exchange.stream()
            meta = {"io.modelcontextprotocol/subscriptionId": exchange.message["id"]}
            for method in ("notifications/subscriptions/acknowledged", "notifications/tools/list_changed"):
                await exchange.event({"jsonrpc": "2.0", "method": method, "params": {"_meta": meta}})
            await exchange.gone()
            return True

        changes: list[str] = []
        handler = speaking(echo, modern=True, other=other, tools={"listChanged": True})
        async with http_peer(handler) as peer, connect(peer.url) as client:
            client.on_change(changes.append)
            assert await names(client) == ["echo"]
            await until(lambda: changes == ["tools"])
            assert len(tries) == 3

    run(main())


def test_a_legacy_server_that_refuses_a_subscription_is_told_of() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            with pytest.raises(RemoteError, match="Method not found"):
                await client.subscribe("x://1", print)

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_changes_on_a_midcall_server_are_heard_over_http(era: str) -> None:
    async def main() -> None:
        heard: list[str] = []
        with http_server() as server:
            async with connect(f"http://127.0.0.1:{server.port}/mcp", era=era) as client:
                before = await names(client)
                assert "extra.hello" not in before
                await client.subscribe("notes://all", heard.append)
                async with asyncio.timeout(LIMIT):
                    while not heard:  # a legacy server's stream may not be open yet
                        await client.call("admin.touch", {"uri": "notes://all"})
                        await asyncio.sleep(0.05)
                    await client.call("admin.change")
                    while "extra.hello" not in await names(client):
                        await asyncio.sleep(0.01)
                assert set(heard) == {"notes://all"}

    run(main())


# --- arguments in headers ------------------------------------------------------------------------------

REGION = {
    "name": "query",
    "inputSchema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {
                "type": "object",
                "properties": {
                    "count": {"type": "integer", "x-mcp-header": "Count"},
                    "sure": {"type": "boolean", "x-mcp-header": "Sure"},
                },
            },
            "say": {"type": "string"},
        },
    },
}


class Strict:
    """A modern server that refuses a call without its headers, and counts what comes."""

    def __init__(self, tools: list[Any] | None = None) -> None:
        self.tools = [REGION] if tools is None else tools
        self.lists = 0
        self.refusals = 0

    async def other(self, exchange: Exchange) -> bool:
        if exchange.method == "tools/list":
            self.lists += 1
            await exchange.answer({"tools": self.tools, "ttlMs": 100_000})
        return exchange.method == "tools/list"

    async def call(self, exchange: Exchange) -> None:
        arguments = exchange.message["params"]["arguments"]
        if exchange.headers.get("mcp-param-region") != arguments.get("region"):
            self.refusals += 1
            await exchange.refuse(400, -32020, "Header mismatch: Mcp-Param-Region")
        else:
            found = {name: value for name, value in exchange.headers.items() if name.startswith("mcp-param-")}
            await exchange.answer(text("", structuredContent=found))

    def peer(self) -> Any:
        return http_peer(speaking(self.call, modern=True, other=self.other))


def test_arguments_go_into_the_headers_that_the_tool_names() -> None:
    async def main() -> None:
        server = Strict()
        async with server.peer() as peer, connect(peer.url) as client:
            await client.tools()
            arguments = {"region": "eu", "deep": {"count": 42, "sure": True}, "say": "x"}
            found = (await client.call("query", arguments)).structured
            assert found == {"mcp-param-region": "eu", "mcp-param-count": "42", "mcp-param-sure": "true"}
            assert (await client.call("query", {"region": None})).structured == {}
            assert server.refusals == 0

    run(main())


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("", "=?base64??="),
    ],
)
def test_values_are_encoded_as_the_specification_says(value: str, header: str) -> None:
    async def main() -> None:
        async def call(exchange: Exchange) -> None:
            await exchange.answer(text(exchange.headers["mcp-param-region"]))

        server = Strict()
        async with (
            http_peer(speaking(call, modern=True, other=server.other)) as peer,
            connect(peer.url) as client,
        ):
            await client.tools()
            assert (await client.call("query", {"region": value})).text == header

    run(main())


def test_a_tool_that_was_not_listed_yet_is_listed_when_its_headers_are_missed() -> None:
    async def main() -> None:
        server = Strict()
        async with server.peer() as peer, connect(peer.url) as client:
            assert (await client.call("query", {"region": "eu"})).structured == {"mcp-param-region": "eu"}
            assert (server.refusals, server.lists) == (1, 1)
            assert (await client.call("query", {"region": "us"})).structured == {"mcp-param-region": "us"}
            assert (server.refusals, server.lists) == (1, 1)
        server = Strict()
        async with server.peer() as peer, connect(peer.url) as client:
            batch = [{"id": f"c{n}", "name": "query", "arguments": {"region": f"r{n}"}} for n in range(10)]
            results = await client.call_tools(batch, parallel=True)
            assert [one["result"]["structuredContent"] for one in results] == [
                {"mcp-param-region": f"r{n}"} for n in range(10)
            ]
            await nothing_waits(client)

    run(main())


def test_a_tool_whose_schema_has_changed_is_listed_again() -> None:
    async def main() -> None:
        server = Strict([{"name": "query", "inputSchema": {"type": "object"}}])
        async with server.peer() as peer, connect(peer.url) as client:
            await client.tools()
            server.tools = [REGION]
            assert (await client.call("query", {"region": "eu"})).structured == {"mcp-param-region": "eu"}
            assert (server.refusals, server.lists) == (1, 2)

    run(main())


def test_a_mounted_tool_whose_schema_has_changed_is_listed_again() -> None:
    async def main() -> None:
        server = Strict([{"name": "query", "inputSchema": {"type": "object"}}])
        async with server.peer() as peer:
            hub = Hub("front").mount("b", peer.url)
            await hub.open()
            try:
                server.tools = [REGION]
                async with connect(hub) as client:
                    found = (await client.call("b.query", {"region": "eu"})).structured
                    assert found == {"mcp-param-region": "eu"}
                assert (server.refusals, server.lists) == (1, 2)
            finally:
                await hub.close()

    run(main())


def test_headers_that_are_missed_although_all_are_there_fail_the_call() -> None:
    async def main() -> None:
        server = Strict([{"name": "query", "inputSchema": {"type": "object"}}])
        async with server.peer() as peer, connect(peer.url) as client:
            with pytest.raises(RemoteError, match="Header mismatch") as caught:
                await client.call("query", {"region": "eu"})
            assert caught.value.rpc_code == -32020
            assert (server.refusals, server.lists) == (1, 1)

    run(main())


def _header(where: Any) -> dict[str, Any]:
    return {"name": "bad", "inputSchema": {"type": "object", **where}}


@pytest.mark.parametrize(
    "tool",
    [
        _header({"properties": {"a": {"type": "string", "x-mcp-header": ""}}}),
        _header({"properties": {"a": {"type": "string", "x-mcp-header": "no space"}}}),
        _header({"properties": {"a": {"type": "string", "x-mcp-header": "a\r\nb"}}}),
        _header({"properties": {"a": {"type": "string", "x-mcp-header": 5}}}),
        _header({"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}),
        _header({"properties": {"a": {"type": "object", "x-mcp-header": "A"}}}),
        _header({"properties": {"a": {"x-mcp-header": "A"}}}),
        _header(
            {
                "properties": {
                    "a": {"type": "string", "x-mcp-header": "A"},
                    "b": {"type": "string", "x-mcp-header": "a"},
                }
            }
        ),
        _header({"properties": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}}),
        _header({"anyOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]}),
        _header({"$defs": {"a": {"type": "string", "x-mcp-header": "A"}}}),
        _header({"x-mcp-header": "A"}),
    ],
)
def test_a_tool_with_a_wrong_header_is_left_out_over_http(tool: dict[str, Any]) -> None:
    async def main() -> None:
        server = Strict(
            [tool, REGION, {"name": "plain", "inputSchema": {}}, {"name": "odd", "inputSchema": 5}]
        )
        async with server.peer() as peer, connect(peer.url) as client:
            assert await names(client) == ["query", "plain", "odd"]

    run(main())


def test_headers_of_tools_mean_nothing_on_stdio() -> None:
    async def main() -> None:
        async with midcall_server() as client:
            assert "give.word" in await names(client)

    run(main())

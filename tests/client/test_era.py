"""Which era a server is of: found out by a probe, remembered, and wrong guesses mended."""

import json
import os
from typing import Any

import pytest

from client_peers import (
    LATEST,
    MODERN,
    Exchange,
    calls,
    connect,
    echo,
    http_peer,
    methods,
    midcall_server,
    nothing_waits,
    run,
    said,
    scripted,
    seen,
    speaking,
)
from driving import until
from mcp_peers import LEGACY
from midcall import Client, RemoteError, Unreachable
from midcall.client import handshake, reconnect


async def works(client: Client) -> None:
    assert said(await client.call_tools(calls(3), parallel=True)) == ["word 0", "word 1", "word 2"]
    await nothing_waits(client)


def test_a_modern_server_is_found_by_the_probe() -> None:
    async def main() -> None:
        async with scripted("modern") as client:
            assert (client.modern, client.revision) == (True, MODERN)
            assert methods(await seen(client)) == ["server/discover", "tools/call"]
            await works(client)

    run(main())


def test_every_modern_request_says_who_asks_and_what_it_can() -> None:
    async def main() -> None:
        options = {
            "answer": lambda request: True,
            "info": {"name": "me", "version": "7"},
            "log_level": "debug",
        }
        async with scripted("modern", **options) as client:
            await client.call("echo", {}, meta={"my.key/x": 1})
            for message in await seen(client):
                meta = message["params"]["_meta"]
                assert meta["io.modelcontextprotocol/protocolVersion"] == MODERN
                assert meta["io.modelcontextprotocol/clientInfo"] == {"name": "me", "version": "7"}
                assert "elicitation" in meta["io.modelcontextprotocol/clientCapabilities"]
                assert meta["io.modelcontextprotocol/logLevel"] == "debug"
            called = [one for one in await seen(client) if one["params"].get("name") == "echo"]
            assert called[0]["params"]["_meta"]["my.key/x"] == 1

    run(main())


def test_a_legacy_server_is_found_by_its_refusal() -> None:
    async def main() -> None:
        async with scripted("plain", log_level="warning") as client:
            assert (client.modern, client.revision) == (False, LATEST)
            assert client.server_info == {"name": "scripted", "version": "1"}
            messages = await seen(client)
            assert methods(messages) == [
                "server/discover",
                "initialize",
                "notifications/initialized",
                "logging/setLevel",
                "tools/call",
            ]
            assert messages[3]["params"] == {"level": "warning"}
            await works(client)

    run(main())


@pytest.mark.parametrize("revision", LEGACY)
def test_every_legacy_revision_is_spoken(revision: str) -> None:
    async def main() -> None:
        async with scripted("plain", revision) as client:  # the server chooses
            assert client.revision == revision
            await works(client)
        async with midcall_server(era="legacy", revision=revision) as client:  # the client asks for it
            assert client.revision == revision
            assert (await client.call("give.word")).text == "hello"

    run(main())


def test_a_revision_that_nobody_knows_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match="chose an unknown revision: 1999-01-01"):
            async with scripted("plain", "1999-01-01"):
                pass

    run(main())


def test_a_server_that_dies_at_the_probe_is_started_again_as_a_legacy_one() -> None:
    async def main() -> None:
        async with scripted("dies_at_probe") as client:
            assert not client.modern
            await works(client)
            pid = (await client.call("pid")).text
            # The session stays: the death of the first process is no news of this one.
            await works(client)
            assert (await client.call("pid")).text == pid
            assert methods(await seen(client))[0] == "initialize"
            # And it is remembered.
            os.kill(int(pid), 9)
            await until(lambda: not client.connected)
            await works(client)
            assert methods(await seen(client))[0] == "initialize"

    run(main())


def test_a_server_that_ignores_the_probe_is_greeted_in_the_legacy_way_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "PROBE", 0.2)

    async def main() -> None:
        async with scripted("ignores_probe") as client:
            assert not client.modern
            await works(client)
            assert methods(await seen(client)).count("initialize") == 1

    run(main())


def test_a_late_answer_to_initialize_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROBE", 0.2)

    async def main() -> None:
        async with scripted("ignores_probe", "0.5") as client:
            assert not client.modern
            await works(client)
            sent = methods(await seen(client))
            assert sent.count("initialize") == 1

    run(main())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_server_that_starts_slowly_is_found_all_the_same(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROBE", 0.2)

    async def main() -> None:
        async with scripted("slow", "0.5", era) as client:
            assert client.modern == (era == "modern")
            assert client.revision == (MODERN if client.modern else LATEST)
            await works(client)
            sent = methods(await seen(client))
            assert sent[:2] == ["server/discover", "initialize"]  # both wait for the server
            assert sent.count("initialize") == 1
            cancelled = [one for one in await seen(client) if one.get("method") == "notifications/cancelled"]
            assert cancelled == []

    run(main())


def test_a_server_that_has_a_result_for_everything_is_a_legacy_one() -> None:
    async def main() -> None:
        async with scripted("agreeable") as client:
            assert not client.modern
            await works(client)

    run(main())


def test_a_server_that_names_a_legacy_revision_is_spoken_to_in_it() -> None:
    async def main() -> None:
        async with scripted("speaks", "2099-01-01", "2025-06-18") as client:
            assert not client.modern
            await works(client)

    run(main())


def test_a_server_that_names_only_unknown_revisions_cannot_be_used() -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match="The server speaks 2099-01-01, 2100-01-01, not 2026-07-28"):
            async with scripted("speaks", "2099-01-01", "2100-01-01"):
                pass

    run(main())


def test_a_discovery_of_other_revisions_is_refused() -> None:
    async def main() -> None:
        found = {"supportedVersions": ["2099-01-01"], "capabilities": {}}
        with pytest.raises(Unreachable, match="The server speaks 2099-01-01"):
            async with scripted("greets_with", json.dumps(found)):
                pass

    run(main())


def test_a_greeting_that_is_refused_is_raised_as_the_server_refused_it() -> None:
    async def main() -> None:
        async def refuse(exchange: Exchange) -> None:
            code = -32601 if exchange.method == "server/discover" else -32000
            await exchange.refuse(200, code, "We are closed", {"until": 9})

        async with http_peer(refuse) as peer:
            with pytest.raises(RemoteError, match=r"^We are closed$") as caught:
                async with connect(peer.url):
                    pass
            assert (caught.value.rpc_code, caught.value.rpc_data) == (-32000, {"until": 9})

    run(main())


def test_a_revision_that_is_refused_and_named_is_tried_once_more() -> None:
    async def main() -> None:
        refused = []

        async def other(exchange: Exchange) -> bool:
            if exchange.method == "server/discover" and not refused:
                refused.append(exchange)
                await exchange.refuse(400, -32022, "Unsupported", {"supported": [MODERN]})
                return True
            return False

        async with http_peer(speaking(echo, modern=True, other=other)) as peer, connect(peer.url) as client:
            assert client.modern
            assert peer.seen == ["server/discover", "server/discover"]

    run(main())


def test_an_era_that_is_forced_is_not_left() -> None:
    async def main() -> None:
        async with midcall_server(era="legacy") as client:
            assert client.revision == LATEST
            assert (await client.call("give.word")).text == "hello"
        async with midcall_server(era="modern") as client:
            assert client.revision == MODERN
            assert (await client.call("give.word")).text == "hello"
        with pytest.raises(RemoteError, match="Method not found"):
            async with scripted("plain", era="modern"):
                pass
        with pytest.raises(RemoteError, match="Method not found"):
            async with scripted("modern", era="legacy"):
                pass

    run(main())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_prompts_resources_and_completions_are_the_same_in_both_eras(era: str) -> None:
    async def main() -> None:
        async with midcall_server(era=era) as client:
            assert [one["name"] for one in await client.prompts()] == ["greet", "interview"]
            assert "notes://all" in [one["uri"] for one in await client.resources()]
            assert "notes://{folder}/{name}" in [one["uriTemplate"] for one in await client.templates()]
            (note,) = await client.read("notes://all")
            assert note["text"] == "# Notes"
            found = await client.prompt("greet", {"name": "Ann"})
            assert found["messages"][0]["content"]["text"] == "Greet Ann, be kind"
            greet = {"type": "ref/prompt", "name": "greet"}
            assert await client.complete(greet, "name", "al") == ["alice", "albert"]
            note_ref = {"type": "ref/resource", "uri": "notes://{folder}/{name}"}
            assert (await client.complete(note_ref, "name", "", {"folder": "f"}))[0] == "f-0"
            with pytest.raises(RemoteError):
                await client.read("nowhere://x")
            with pytest.raises(RemoteError):
                await client.prompt("nothing")

    run(main())


def test_notifications_of_the_caller_are_sent() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            await client.notify("notifications/roots/list_changed", {"x": 1})
            assert (await seen(client))[-2]["params"] == {"x": 1}

    run(main())


@pytest.mark.parametrize("modern", [False, True])
def test_the_era_is_remembered_over_a_new_connection(modern: bool) -> None:
    async def main() -> None:
        async with scripted("modern" if modern else "plain") as client:
            for _ in range(2):
                pid = int((await client.call("pid")).text)
                os.kill(pid, 9)
                await until(lambda: not client.connected)
                await works(client)
                first = methods(await seen(client))[0]
                assert first == ("server/discover" if modern else "initialize")
                assert client.modern == modern

    run(main())


def test_a_server_that_has_become_one_of_the_other_era_is_found_again() -> None:
    async def main() -> None:
        now = speaking(echo, session="s")

        async def handle(exchange: Exchange) -> None:
            await now(exchange)

        async with http_peer(handle) as peer, connect(peer.url) as client:
            assert not client.modern
            await works(client)

            async def forgotten(exchange: Exchange) -> bool:
                if "mcp-session-id" in exchange.headers:
                    await exchange.send(404)
                    return True
                return False

            now = speaking(echo, modern=True, other=forgotten)
            await works(client)
            assert client.modern

    run(main())


@pytest.mark.parametrize(
    "greeting_of_it",
    [
        {
            "protocolVersion": LATEST,
            "capabilities": None,
            "serverInfo": None,
            "instructions": 5,
            "_meta": None,
        },
        {"protocolVersion": LATEST},
        {"protocolVersion": LATEST, "capabilities": [], "serverInfo": "x"},
    ],
)
def test_a_sloppy_greeting_is_understood(greeting_of_it: dict[str, Any]) -> None:
    async def main() -> None:
        async with scripted("greets_with", json.dumps(greeting_of_it), era="legacy") as client:
            assert client.revision == LATEST
            assert client.capabilities == {}
            assert client.instructions is None
            assert await client.tools() == []

    run(main())


def test_a_server_that_says_nothing_at_all_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROBE", 0.1)
    monkeypatch.setattr(reconnect, "STARTING", 0.5)

    async def main() -> None:
        with pytest.raises(Unreachable, match=r"no answer within 0\.5 seconds"):
            async with scripted("mute"):
                pass

    run(main())


def test_http_modern_headers_say_what_the_body_says() -> None:
    async def main() -> None:
        async with http_peer(speaking(echo, modern=True)) as peer, connect(peer.url) as client:
            await client.call("wörld \u2603", {"say": "x"})
            with pytest.raises(Exception, match="Method not found"):
                await client.read("file:///a b")
            discover, call, read = (one for one in peer.exchanges)
            assert discover.headers["mcp-method"] == "server/discover"
            assert call.headers["mcp-method"] == "tools/call"
            assert call.headers["mcp-name"].startswith("=?base64?")
            assert read.headers["mcp-name"] == "file:///a b"
            assert {one.headers["mcp-protocol-version"] for one in peer.exchanges} == {MODERN}
            assert all("mcp-session-id" not in one.headers for one in peer.exchanges)

    run(main())

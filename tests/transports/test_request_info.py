"""What a method is told of the request that called it, on every transport; and what a durable call keeps of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driving import drive
from mcp_peers import over_stdio
from midcall import Ask, Hub, Principal, RequestInfo, connect
from midcall.chat import ChatEngine
from midcall.client import connect_hub
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite import SqliteJournal
from midcall.models.scripted import Rule, Scripted
from midcall.principal import request_info
from midcall.transports.auth import StaticKeys
from midcall.transports.http_server import server
from peers import free_port, stdio_peer
from sse_peers import client as sse_client
from sse_peers import http, running

KEY = "0123456789abcdef"
KEYS = f"ada={KEY}:files:read,files:write"
SENT = {"authorization": f"Bearer {KEY}", "X-Team": "blue", "cookie": "a=b", "x-api-key": "k"}


def about() -> Hub:
    """A hub that tells what it is told."""
    hub = Hub()

    @hub.method
    async def told(request: RequestInfo | None, who: Principal | None) -> dict[str, Any]:
        return {"request": request, "who": who and [who.name, *sorted(who.scopes)]}

    @hub.method
    async def told_later(request: RequestInfo, who: Principal, ask: Ask) -> dict[str, Any]:
        name = await ask.prompt("Name?", key="name")
        return {"request": request, "who": [who.name, *sorted(who.scopes)], "name": name}

    return hub


@asynccontextmanager
async def served(hub: Hub) -> AsyncIterator[int]:
    web = server(
        hub, port=free_port(), log_level="warning", auth=StaticKeys(KEYS), sse=True, parts=hub.parts()
    )
    async with running(web) as port:
        yield port


def test_credentials_are_left_out_and_names_are_in_lower_case() -> None:
    names = (
        "Authorization Proxy-Authorization Cookie X-Api-Key x-apikey X-Auth-Token X-CSRF-Token Mcp-Session-Id"
    )
    names += " X-Amz-Security-Token X-Secret X-Hub-Signature-256 Cf-Access-Jwt-Assertion X-Goog-Credential"
    scope = {
        "headers": [(name.encode(), b"x") for name in names.split()]
        + [(b"X-Team", b"blue"), (b"x-team", b"red"), (b"Forwarded", b"for=192.0.2.1")],
        "client": None,
    }
    headers = {"x-team": "blue, red", "forwarded": "for=192.0.2.1"}
    assert request_info(scope, "http") == RequestInfo("http", headers)


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_over_http_there_are_headers_and_an_address(era: Any) -> None:
    async def main() -> None:
        info = {"name": "tests", "version": "1"}
        async with (
            served(about()) as port,
            connect(f"http://127.0.0.1:{port}/mcp", headers=SENT, era=era, info=info) as client,
        ):
            told = json.loads((await client.call("told")).content[0]["text"])
        assert told["who"] == ["ada", "files:read", "files:write"]
        request = told["request"]
        assert (request["transport"], request["client_address"]) == ("http", "127.0.0.1")
        assert request["headers"]["x-team"] == "blue"
        assert not {"authorization", "cookie", "x-api-key", "mcp-session-id"} & request["headers"].keys()
        assert (request["protocol_revision"] >= "2026") == (era == "modern")
        assert request["client_name"] == "tests"

    drive(main())


def test_a_websocket_and_a_stream_of_events_tell_of_the_request_that_opened_them() -> None:
    async def main() -> None:
        async with served(about()) as port:
            async with connect_hub(f"ws://127.0.0.1:{port}/ws", headers=SENT) as remote:
                raw = await remote.call("told")
            async with sse_client(port, token=KEY) as client:
                events = json.loads(await client.tool("told"))
        assert raw["who"] == events["who"] == ["ada", "files:read", "files:write"]
        websocket, sse = raw["request"], events["request"]
        assert (websocket["transport"], websocket["client_address"]) == ("websocket", "127.0.0.1")
        assert websocket["headers"]["x-team"] == "blue"
        assert (websocket["protocol_revision"], websocket["client_name"]) == (None, None)
        assert (sse["transport"], sse["client_name"]) == ("sse", "tests")
        assert sse["headers"]["accept"] == "text/event-stream"

    drive(main())


def test_stdio_has_neither_headers_nor_an_address() -> None:
    async def main() -> None:
        async with stdio_peer("about_app:hub", "--mcp") as peer:
            raw = await peer.result("told")
        async with over_stdio(target="about_app:hub") as client:
            mcp = json.loads(await client.tool("told"))
        nothing = {"headers": {}, "client_address": None, "protocol_revision": None, "client_name": None}
        assert raw == {"request": {"transport": "stdio", **nothing}, "who": None}
        assert mcp["request"] == {
            "transport": "stdio", **nothing, "protocol_revision": "2025-11-25", "client_name": "tests"
        }  # fmt: skip

    drive(main())


def test_in_this_process_and_in_the_chat_there_is_no_request() -> None:
    async def main() -> None:
        hub = about()
        assert (await hub.call("told"))["request"] is None
        async with connect(hub) as client:
            assert json.loads((await client.call("told")).content[0]["text"])["request"] is None
        ChatEngine(hub, Scripted([Rule(pattern="who", tool="told")]))
        async with served(hub) as port:
            body = json.dumps({"message": "who"}).encode()
            said = await (await http(port, "POST", "/chat", body, token=KEY)).body()
        assert b"files:write" in said, "but the chat knows who talks"
        assert b'\\"request\\":null' in said or b'"request":null' in said

    drive(main())


def test_a_call_that_goes_on_elsewhere_is_told_of_the_request_that_began_it(tmp_path: Path) -> None:
    """Another hub, with the same journal, goes on with it, after a retry that differs in all that is told."""
    said = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }

    async def post(port: int, params: dict[str, Any], client: str, team: str) -> Any:
        meta = {**said, "io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"}}
        sent = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}}
        headers = {
            "mcp_protocol_version": "2026-07-28",
            "mcp_method": "tools/call",
            "mcp_name": params["name"],
        }
        response = await http(
            port, "POST", "/mcp", json.dumps(sent).encode(), token=KEY, **headers, x_team=team
        )
        return json.loads(await response.body())["result"]

    @asynccontextmanager
    async def worker() -> AsyncIterator[int]:
        hub = about()
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "calls.db"))
        async with served(hub) as port:
            yield port

    async def main() -> None:
        params: dict[str, Any] = {"name": "told_later", "arguments": {}}
        async with worker() as port:
            asked = await post(port, params, "first", "blue")
        async with worker() as port:
            state = {"requestState": asked["requestState"]}
            state["inputResponses"] = {"name": {"action": "accept", "content": {"text": "Ada"}}}
            told = await post(port, params | state, "second", "red")
        found = json.loads(told["content"][0]["text"])
        assert (found["name"], found["who"]) == ("Ada", ["ada", "files:read", "files:write"])
        assert (found["request"]["client_name"], found["request"]["headers"]["x-team"]) == ("first", "blue")
        assert KEY.encode() not in (tmp_path / "calls.db").read_bytes()

    drive(main())


def test_one_that_is_written_down_before_it_begins_has_its_source_in_the_same_write(tmp_path: Path) -> None:
    async def main() -> None:
        hub = about()
        hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "calls.db"))
        async with served(hub) as port, connect_hub(f"ws://127.0.0.1:{port}/ws", headers=SENT) as remote:
            call = remote.call("told_later", durable=True, supports={"prompt"})
            async for item in call:
                if type(item).__name__ == "Request":
                    break
            found = await hub.durable.journal.load(call.call_id)
            assert found is not None
            (source,) = [entry for entry in found[1] if entry.key == "0/source"]
            assert msgspec.json.decode(source.value)["request"]["transport"] == "websocket"
            await call.cancel()

    asyncio.run(main())

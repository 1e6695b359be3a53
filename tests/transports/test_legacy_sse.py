"""HTTP+SSE, the transport of 2024-11-05, over real sockets: a stream of events, and a POST for each message."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from driving import LIMIT, assert_nothing_left, drive, until
from mcp_app import make_hub
from mcp_peers import FORMS, LATEST, LEGACY, Response, hang_up, text
from midcall import Ask, Hub, method
from midcall.plexus.protocol import MAX_MESSAGE
from midcall.transports import legacy_sse
from midcall.transports.auth import StaticKeys
from midcall.transports.http_server import server
from peers import close_pipes, command, environment, free_port, http_server, wait_for
from sse_peers import client, http, refusal, running, status

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
NARROW = "ann-with-less-0123456789"
PING = b'{"jsonrpc":"2.0","id":"p","method":"ping"}'


@asynccontextmanager
async def serving(hub: Hub, **settings: Any) -> AsyncIterator[int]:
    """A server in this process that has the transport; nothing of the hub is left running in the end."""
    settings = {"grace": 5 * LIMIT, **settings}  # which it does not wait for
    async with running(server(hub, port=free_port(), log_level="warning", sse=True, **settings)) as port:
        yield port
    await assert_nothing_left(hub)


# --- what a client does ---------------------------------------------------------------------


def test_the_transport_is_not_there_unless_it_is_asked_for() -> None:
    async def run() -> None:
        async with running(server(make_hub(), port=free_port(), log_level="warning")) as port:
            assert await status(port, "GET", "/sse") == 404
            assert await status(port, "POST", "/messages?session_id=x", PING) == 404

    drive(run())


@pytest.mark.parametrize("revision", LEGACY)
def test_a_client_of_any_legacy_revision_lists_and_calls_tools(revision: str) -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port, revision) as one:
            assert one.revision == revision
            names = [tool["name"] for tool in (await one.result("tools/list"))["tools"]]
            assert {"give.sum", "seek.wizard", "_plexus_respond"} <= set(names)
            assert json.loads(await one.tool("give.sum", a=2, b=3)) == {"total": 5}
            assert one.oracle.checked == 3

    drive(run())


def test_a_tool_asks_in_the_middle_of_a_call_and_goes_on_with_the_answer() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port, "2025-06-18", FORMS) as one:
            call = await one.begin("seek.wizard")
            for content in ({"text": "kiosk"}, {"choice": "full"}, {"confirmed": True}):
                question = await one.message("elicitation/create")
                assert question["params"]["requestedSchema"]["properties"].keys() == content.keys()
                assert await one.result("ping") == {}, "others are served while it waits"
                await one.answer(question, {"action": "accept", "content": content})
            assert text((await one.response(call))["result"]) == "kiosk full True"

    drive(run())


def test_a_client_of_2024_is_asked_by_the_respond_tool() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port, "2024-11-05") as one:
            call = await one.begin("seek.prompt", name="Ada")
            asked = (await one.message("notifications/message"))["params"]["data"]
            answer = {"request_id": asked["request_id"], "payload": {"Text": "hi"}}
            assert await one.tool("_plexus_respond", **answer) == "Response received"
            assert text((await one.response(call))["result"]) == "Ada: hi"

    drive(run())


def test_progress_comes_on_the_stream_before_the_result() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port) as one:
            call = await one.start("tools/call", {"name": "give.narrate", "arguments": {}}, progressToken="t")
            told = [(await one.message("notifications/progress"))["params"]["progress"] for _ in range(3)]
            assert told == [10, 60, 100]
            assert text((await one.response(call))["result"]) == "told"

    drive(run())


def test_a_cancelled_call_ends_and_is_not_answered() -> None:
    async def run() -> None:
        hub = make_hub()
        async with serving(hub) as port, client(port) as one:
            call = await one.begin("give.slow", seconds=60)
            await until(lambda: len(hub.calls) == 1)
            await one.notify("notifications/cancelled", {"requestId": call})
            await until(lambda: len(hub.calls) == 0)
            assert await one.result("ping") == {}
            assert one.inbox == []

    drive(run())


def test_it_is_for_mcp_only() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port) as one:
            assert (await one.error("give.word"))[0] == -32601
            assert (await one.error("plexus_subscribe", {"method": "give.word"}))[0] == -32601

    drive(run())


def test_mounted_elsewhere_the_client_is_sent_to_the_right_place() -> None:
    async def run() -> None:
        hub = make_hub()
        inner = hub.asgi(sse=True)
        port = free_port()
        site = Starlette(routes=[Mount("/my tools", inner)])
        outer = uvicorn.Server(uvicorn.Config(site, port=port, log_level="warning"))
        async with running(outer), client(port, path="/my%20tools/sse") as one:
            assert one.endpoint.startswith("/my%20tools/messages?session_id=")
            assert await one.tool("give.word") == "hello"
            inner.close()
            await one.until_ended()
        await assert_nothing_left(hub)

    drive(run())


# --- what is refused ------------------------------------------------------------------------


def test_a_session_that_is_not_known_is_not_found() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port) as one, client(port) as other:
            assert one.endpoint != other.endpoint
            assert len(one.endpoint.partition("session_id=")[2]) == 32
            for path in ("/messages", "/messages?session_id=", one.endpoint[:-1], "/messages?session_id=%00"):
                assert await refusal(port, path, PING) == (404, -32001)

    drive(run())


def test_a_session_is_not_there_for_another_principal_nor_for_other_scopes() -> None:
    keys = StaticKeys(f"ann={ANN}:read,write bob={BOB}:read,write ann={NARROW}:read")

    async def run() -> None:
        async with serving(make_hub(), auth=keys) as port:
            assert await status(port, "GET", "/sse") == 401
            async with client(port, token=ANN) as one:
                assert await status(port, "POST", one.endpoint, PING) == 401
                assert await refusal(port, one.endpoint, PING, token=BOB) == (404, -32001)
                assert await refusal(port, one.endpoint, PING, token=NARROW) == (404, -32001)
                assert await one.tool("give.word") == "hello"
                assert one.inbox == [], "nothing of the others was taken"

    drive(run())


def test_web_pages_of_other_origins_are_turned_away() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port) as one:
            for foreign in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
                assert await status(port, "GET", "/sse", **foreign) == 403
                assert await status(port, "POST", one.endpoint, PING, **foreign) == 403

    drive(run())


def test_other_verbs_and_other_kinds_of_body_are_refused() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port) as one:
            for verb in ("POST", "HEAD", "DELETE"):
                assert await status(port, verb, "/sse") == 405
            assert await status(port, "GET", one.endpoint) == 405
            assert (await refusal(port, one.endpoint, PING, content_type="text/plain"))[0] == 415

    drive(run())


def test_what_is_no_message_is_refused_in_the_response_and_the_session_goes_on() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port) as one:
            for body, code in (
                (b"", -32700),
                (b"{no", -32700),
                (b"[]", -32600),
                (b'{"id": 1}', -32600),
                (b'{"jsonrpc": "2.0", "id": 9}', -32600),
            ):
                assert await refusal(port, one.endpoint, body) == (400, code)
            assert await one.tool("give.word") == "hello"
            assert one.inbox == []

    drive(run())


def test_a_message_that_is_too_large_is_refused_and_the_session_goes_on() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port) as one:
            assert await refusal(port, one.endpoint, b" " * MAX_MESSAGE + PING) == (413, -32600)
            one.oracle.asked(json.loads(PING))
            assert await status(port, "POST", one.endpoint, b" " * (MAX_MESSAGE - len(PING)) + PING) == 202
            assert (await one.response("p"))["result"] == {}

    drive(run())


def test_before_the_handshake_a_client_is_told_so_on_the_stream() -> None:
    async def run() -> None:
        async with serving(make_hub()) as port, client(port, handshake=False) as one:
            assert (await one.error("tools/list"))[0] == -32002

    drive(run())


# --- how a stream ends ----------------------------------------------------------------------


def test_closing_the_stream_aborts_its_calls_and_no_others() -> None:
    async def run() -> None:
        hub = make_hub()
        async with serving(hub) as port, client(port, capabilities=FORMS) as staying:
            kept = await staying.begin("seek.prompt", name="kept")
            question = await staying.message("elicitation/create")
            async with client(port, capabilities=FORMS) as leaving:
                await leaving.begin("seek.prompt", name="left")
                await leaving.begin("give.slow", seconds=60)
                await leaving.message("elicitation/create")
                assert len(hub.calls) == 3
            await until(lambda: len(hub.calls) == 1)
            assert "left was cancelled" in (await staying.state())["trail"]
            assert await refusal(port, leaving.endpoint, PING) == (404, -32001)
            await staying.answer(question, {"action": "accept", "content": {"text": "w"}})
            assert text((await staying.response(kept))["result"]) == "kept: w"

    drive(run())


def test_a_message_that_arrives_as_the_stream_closes_starts_nothing() -> None:
    async def run() -> None:
        hub = make_hub()
        async with serving(hub) as port:
            async with client(port) as one:
                call = {"name": "give.slow", "arguments": {"seconds": 60}}
                body = json.dumps(
                    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
                ).encode()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                head = (
                    f"POST {one.endpoint} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body[:10])
                await one.result("ping")
            while (
                await status(port, "POST", one.endpoint, PING) != 404
            ):  # until the end of the stream is known
                await asyncio.sleep(0.01)
            writer.write(body[10:])
            assert b" 404 " in await reader.readline()
            await hang_up(writer)
            assert len(hub.calls) == 0

    drive(run())


def test_a_quiet_stream_is_kept_alive_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(legacy_sse, "KEEP_ALIVE", 0.05)
        async with serving(make_hub()) as port:
            stream = await http(port, "GET", "/sse")
            chunks = stream._chunks()
            assert (await anext(chunks)).startswith(b"event: endpoint\ndata: /messages?session_id=")
            assert [await anext(chunks) for _ in range(3)] == [b":\n\n"] * 3
            await stream.drop()

    drive(run())


def test_one_stream_too_many_ends_the_one_that_was_silent_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        monkeypatch.setattr(legacy_sse, "LIMIT", 2)
        hub = make_hub()
        async with serving(hub) as port, client(port) as first, client(port) as second:
            await second.begin("give.slow", seconds=60)
            await until(lambda: len(hub.calls) == 1)
            assert await first.tool("give.word") == "hello"
            async with client(port) as third:
                await second.until_ended()
                await until(lambda: len(hub.calls) == 0)
                assert await refusal(port, second.endpoint, PING) == (404, -32001)
                assert await third.tool("give.word") == await first.tool("give.word") == "hello"

    drive(run())


# --- slow readers ---------------------------------------------------------------------------


class Flood:
    """Says more than anybody reads."""

    def __init__(self) -> None:
        self.told = 0

    @method
    async def run(self, ask: Ask, count: int) -> AsyncIterator[int]:
        """Tell a lot."""
        for self.told in range(1, count + 1):
            ask.log("x" * 10_000)
            yield 1


async def post_to(port: int, stream: Response, *messages: Any) -> None:
    """Send messages to the session of a stream of which only the first event is read."""
    path = (await anext(stream._chunks())).decode().partition("data: ")[2].strip()
    for message in messages:
        assert await status(port, "POST", path, json.dumps(message).encode()) == 202


def initialize() -> dict[str, Any]:
    params = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def call(id: int, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def test_a_slow_reader_slows_its_tool_and_nobody_else() -> None:
    async def run() -> None:
        flood = Flood()
        hub = make_hub().register(flood)
        count = 3000
        async with serving(hub) as port:
            slow = await http(port, "GET", "/sse")
            slow._reader._limit = 1000  # asyncio reads ahead no further  # type: ignore[attr-defined]
            await post_to(port, slow, initialize(), call(1, "flood.run", count=count))
            told = still = 0
            while still < 100:  # so many turns of the loop in which nothing more is told
                await asyncio.sleep(0.003)
                told, still = flood.told, still + 1 if 0 < told == flood.told else 0
            assert 0 < told < count, "it waits"
            async with client(port) as other:
                assert await other.tool("give.word") == "hello"
            assert flood.told == told
            async for event in slow.events():
                if '"id":1,' in event["data"]:
                    break
            assert flood.told == count
            await slow.drop()

    drive(run())


def test_of_a_client_that_does_not_read_no_more_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(legacy_sse, "OUTBOX_LIMIT", 100_000)
        monkeypatch.setattr(legacy_sse, "READ_LIMIT", 200_000)
        hub = make_hub()
        async with serving(hub) as port:
            slow = await http(port, "GET", "/sse")
            slow._reader._limit = 1000  # type: ignore[attr-defined]
            count = 40
            large = [call(id, "give.large", size=1_000_000) for id in range(1, count + 1)]
            posting = asyncio.ensure_future(post_to(port, slow, initialize(), *large))
            await asyncio.sleep(1.0)
            assert not posting.done(), "it is made to wait"
            answered = 0
            async for event in slow.events():
                answered += '"result":{"content"' in event["data"]
                if answered == count:
                    break
            await posting
            await slow.drop()

    drive(run())


# --- the server -----------------------------------------------------------------------------


def test_a_server_that_is_told_to_stop_does_not_wait_for_its_streams() -> None:
    async def run() -> None:
        port = free_port()
        process = await asyncio.create_subprocess_exec(
            *command("serve", "mcp_app:hub", "--sse", "--port", str(port), "--log-level", "error"),
            *("--grace", "0.5"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        try:
            await asyncio.to_thread(wait_for, f"http://127.0.0.1:{port}/health")
            async with client(port, capabilities=FORMS) as asked, client(port) as idle:
                await asked.begin("seek.prompt")
                slow = await asked.begin("give.slow", seconds=5 * LIMIT)
                await asked.message("elicitation/create")
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(LIMIT):
                    await asyncio.gather(asked.until_ended(), idle.until_ended())
                    output, errors = await process.communicate()
                assert text((await asked.response(slow))["result"]) == "The server is closing"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            close_pipes(process)
        assert (process.returncode, output, errors) == (0, b"", b"")

    drive(run())


def test_the_command_says_that_it_is_deprecated_and_off() -> None:
    async def run() -> None:
        process = await asyncio.create_subprocess_exec(
            *command("serve", "--help"), stdout=asyncio.subprocess.PIPE, env=environment()
        )
        output, _ = await process.communicate()
        close_pipes(process)
        assert "deprecated MCP transport HTTP+SSE at /sse" in " ".join(output.decode().split())
        async with http_server("mcp_app:hub") as url:
            port = int(url.removesuffix("/ws").rpartition(":")[2])
            assert await status(port, "GET", "/sse") == 404

    drive(run())

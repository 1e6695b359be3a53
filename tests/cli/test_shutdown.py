"""A server that is told to stop: what runs may end, the rest is answered, and the process goes in peace."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect as open_socket

from driving import LIMIT, drive
from mcp_peers import FORMS, LATEST, META, MODERN, text
from peers import close_pipes, command, environment
from shutdown_app import LATER, serving

CLOSING = "The server is closing"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": f"work.{name}", "arguments": arguments}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_with_nothing_running_it_ends_at_once(number: int) -> None:
    async def main() -> None:
        async with serving("--grace", str(LATER)) as server:
            client = server.client(LATEST)
            await client.initialize()
            client.listen()
            async with open_socket(f"ws://127.0.0.1:{server.port}/ws"):
                server.stop(number)
                await server.ends()
            await client.close()

    drive(main())


def test_who_presses_ctrl_c_does_not_wait_for_idle_connections() -> None:
    async def main() -> None:
        async with serving("--grace", str(LATER)) as server:
            _, idle = await asyncio.open_connection("127.0.0.1", server.port)
            server.stop(signal.SIGINT)
            await server.ends()
            idle.close()

    drive(main())


def test_an_idle_connection_is_good_for_one_more_request_and_does_not_hold_the_server_up() -> None:
    async def main() -> None:
        async with serving("--grace", str(LATER)) as server:
            lines = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for reader, writer in lines:
                writer.write(get)
                assert b"connection: close" not in await reader.readuntil(b"}")
            server.stop()
            (reader, writer), (other, silent) = lines
            told = b""
            while b"connection: close" not in told:  # until it has heard of it
                writer.write(get)
                told = await reader.readuntil(b"}")
            assert await reader.read() == b""
            assert await other.read() == b"", "nothing has come for a while"
            await server.ends()
            for one in (writer, silent):
                one.close()

    drive(main())


@pytest.mark.parametrize("revision", [LATEST, MODERN])
@pytest.mark.parametrize("name", ["slow", "blocking", "telling", "streaming"])
def test_a_call_that_ends_within_its_grace_is_answered(revision: str, name: str) -> None:
    async def main() -> None:
        async with serving("--grace", str(LATER)) as server:
            client = server.client(revision)
            if not client.modern:
                await client.initialize()
            id = await client.start("tools/call", call(name), progressToken="t")
            await server.busy()
            server.stop()
            await server.turns_away()
            server.enough.touch()
            result = (await client.response(id))["result"]
            assert text(result) in ("done", "firstsecond")
            await server.ends()
            await client.close()

    drive(main())


@pytest.mark.parametrize("revision", [LATEST, MODERN])
@pytest.mark.parametrize("name", ["slow", "blocking", "telling", "streaming"])
def test_a_call_that_takes_longer_is_stopped_and_told_why(revision: str, name: str) -> None:
    async def main() -> None:
        async with serving("--grace", "0.3") as server:
            client = server.client(revision)
            if not client.modern:
                await client.initialize()
            id = await client.start("tools/call", call(name, seconds=LATER), progressToken="t")
            await server.busy()
            server.stop()
            result = (await client.response(id))["result"]
            assert (result["isError"], text(result)) == (True, CLOSING)
            await server.ends()
            await client.close()

    drive(main())


def test_prompts_are_stopped_and_told_why_too() -> None:
    async def main() -> None:
        async with serving("--grace", "0") as server:
            client = server.client(MODERN)
            id = await client.start("prompts/get", {"name": "work.letter", "arguments": {}})
            await server.busy()
            server.stop()
            assert (await client.response(id))["error"] == {"code": -32603, "message": CLOSING}
            await server.ends()
            await client.close()

    drive(main())


@pytest.mark.parametrize("grace", [LATER, 0.3])
def test_calls_on_a_websocket_have_the_same_grace(grace: float) -> None:
    async def main() -> None:
        async with (
            serving("--grace", str(grace)) as server,
            open_socket(f"ws://127.0.0.1:{server.port}/ws") as socket,
        ):
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "work.slow"}))
            await server.busy()
            server.stop()
            if grace == LATER:
                await server.turns_away()
                server.enough.touch()
                assert json.loads(await socket.recv()) == {"jsonrpc": "2.0", "id": 1, "result": "done"}
            else:
                stopped = json.loads(await socket.recv())
                assert (stopped["id"], stopped["error"]["message"]) == (1, CLOSING)
            await server.ends()

    drive(main())


def test_whoever_waits_for_a_person_does_not_hold_it_up() -> None:
    async def main() -> None:
        async with serving("--grace", str(LATER)) as server:
            old, new = server.client(LATEST, FORMS), server.client(MODERN, FORMS)
            await old.initialize()
            id = await old.start("tools/call", call("asking"))
            await old.message("elicitation/create")
            asked = await new.result("tools/call", call("asking"))
            assert asked["resultType"] == "input_required"
            server.stop()
            result = (await old.response(id))["result"]
            assert (result["isError"], text(result)) == (True, "The line to the caller is closed")
            await server.ends()
            await old.close()
            await new.close()

    drive(main())


def test_a_kept_call_is_sent_away_with_a_state_and_the_next_process_goes_on_with_it(tmp_path: Path) -> None:
    journal = ("--journal", str(tmp_path / "calls.db"))

    async def main() -> None:
        params = call("thinking")
        async with serving("--grace", "0.2", *journal) as server:
            client = server.client(MODERN, FORMS)
            asked = await client.result("tools/call", params)
            (key,) = asked["inputRequests"]
            answers = {key: {"action": "accept", "content": {"text": "Ada"}}}
            again = {**params, "requestState": asked["requestState"], "inputResponses": answers}
            id = await client.start("tools/call", again, progressToken="t")
            await client.message("notifications/progress")
            server.stop()
            later = (await client.response(id))["result"]
            assert later.keys() == {"resultType", "requestState", "_meta"}
            assert later["resultType"] == "input_required"
            await server.ends()
            await client.close()
        async with serving(*journal) as server:
            server.enough.touch()
            client = server.client(MODERN, FORMS)
            result = await client.result("tools/call", {**params, "requestState": later["requestState"]})
            assert text(result) == "It is Ada"
            await client.close()

    drive(main())


def test_nobody_new_is_let_in_while_it_closes() -> None:
    async def main() -> None:
        async with serving("--grace", str(LATER)) as server:
            client = server.client(MODERN)
            id = await client.start("tools/call", call("slow"))
            await server.busy()
            server.stop()
            await server.turns_away()
            server.enough.touch()
            assert text((await client.response(id))["result"]) == "done"
            await server.ends()
            await client.close()

    drive(main())


def test_a_client_that_reads_nothing_does_not_hold_it_up_for_long() -> None:
    async def main() -> None:
        async with serving("--grace", "0.2") as server:
            meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}
            body = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {**call("large"), "_meta": meta},
            }
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
            said = json.dumps(body).encode()
            head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(said)}\r\n"
            head += "Content-Type: application/json\r\n"
            head += (
                f"Mcp-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: work.large\r\n\r\n"
            )
            writer.write(head.encode() + said)
            await reader.readline()
            server.stop()
            await server.ends()
            writer.transport.abort()

    drive(main())


def test_on_stdio_the_same_grace_holds_after_the_end_of_the_input() -> None:
    async def main() -> None:
        def request(id: int, name: str, seconds: float) -> bytes:
            message = {"jsonrpc": "2.0", "id": id, "method": name, "params": {"seconds": seconds}}
            return json.dumps(message).encode() + b"\n"

        process = await asyncio.create_subprocess_exec(
            *command("serve", "shutdown_app:hub", "--stdio", "--grace", "0.3"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request(1, "work.slow", 0))
        assert json.loads(await process.stdout.readline())["result"] == "done"  # it has started
        last = request(2, "work.blocking", LATER)
        output, errors = await asyncio.wait_for(process.communicate(last), LIMIT)
        assert process.returncode == 0
        assert json.loads(output)["error"]["message"] == "The input has ended"
        assert b"Traceback" not in errors
        assert b"Left behind: 1 functions that still run" in errors
        close_pipes(process)

    drive(main())


@pytest.mark.parametrize("wrong", ["-1", "soon", "inf", "nan"])
def test_a_grace_that_is_no_time_is_a_usage_error(wrong: str) -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            *command("serve", "shutdown_app:hub", f"--grace={wrong}"),
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        _, errors = await process.communicate()
        assert process.returncode == 2
        assert b"--grace" in errors
        close_pipes(process)

    drive(main())

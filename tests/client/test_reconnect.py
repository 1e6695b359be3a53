"""A client whose server comes and goes: calls meanwhile, pauses, closing in the middle, hubs in the process."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from client_peers import (
    calls,
    children,
    connect,
    echo,
    http_peer,
    midcall_server,
    nothing_waits,
    run,
    said,
    scripted,
    speaking,
)
from driving import LIMIT, until
from mcp_app import make_hub
from mcp_peers import http_server
from midcall import Ask, Hub, MidcallError, RemoteError, Request, TransportLost, Unreachable, method
from midcall.client import reconnect
from midcall.client.targets import Target
from midcall.client.websocket import connect_hub
from midcall.items import Data, Done, Metadata, encode_item
from midcall.questions import Prompt
from peers import HERE


def test_a_lost_server_is_started_again_and_calls_meanwhile_wait_for_it() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            for _ in range(3):
                os.kill(int((await client.call("pid")).text), 9)
                await until(lambda: not client.connected)
                assert client.failure is not None
                one, several = await asyncio.gather(
                    client.call("echo", {"say": "during"})._collect(),
                    client.call_tools(calls(5), parallel=True),
                )
                assert one.text == "during"
                assert said(several) == [f"word {n}" for n in range(5)]
                assert client.connected
                assert client.failure is None
            await nothing_waits(client)

    run(main())


def test_a_response_that_is_none_ends_its_call() -> None:
    async def main() -> None:
        async def answer(socket: ServerConnection) -> None:
            async for message in socket:
                await socket.send(json.dumps({"jsonrpc": "2.0", "id": json.loads(message)["id"]}))

        async with serve(answer, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with connect_hub(f"ws://127.0.0.1:{port}") as remote:
                with pytest.raises(RemoteError, match="neither a request nor a response"):
                    await remote.call("echo.once", {"message": "x"})

    run(main())


def test_of_a_sequence_only_the_call_that_was_under_way_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with scripted("flaky", str(tmp_path / "mark"), "1") as client:
            results = await client.call_tools(calls(3))
            assert [one["success"] for one in results] == [False, True, True]
            assert "ended with code 1" in results[0]["error"]
            assert said(results[1:]) == ["life 2", "life 2"]

    run(main())


def test_a_server_that_ends_again_and_again_is_started_ever_more_seldom(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def main() -> None:
        async with scripted("flaky", str(mark), "1000000") as client:
            began = time.monotonic()
            while time.monotonic() - began < 3.0:
                await client.call_tools(calls(1), timeout=1.0)
        # With pauses of 0.1, 0.2, 0.4, ... seconds, or half of them.
        assert len(mark.read_text().splitlines()) <= 8

    run(main())


def test_a_server_that_stays_away_is_given_up(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text((HERE / "scripted_server.py").read_text())

    async def main() -> None:
        command = [sys.executable, "-S", str(program), "plain"]
        async with connect(command, give_up_after=0.5) as client:
            pid = int((await client.call("pid")).text)
            program.rename(tmp_path / "away.py")
            os.kill(pid, 9)
            await until(lambda: "ended with code" in str(client.failure))
            with pytest.raises(Unreachable, match=r"cannot be reached: .*ended with code"):
                await client.call("echo")
            items = [type(item).__name__ async for item in client.call("echo")]
            assert items == ["Error", "Done"]
            with pytest.raises(Unreachable):
                await client.tools()
            (result,) = await client.call_tools(calls(1))
            assert "cannot be reached" in result["error"]
            (result,) = await client.call_tools(calls(1), timeout=0.1)
            assert result["error"] == "timeout"
            assert await client.ping(timeout=0.2) is False
            (tmp_path / "away.py").rename(program)
            async with asyncio.timeout(LIMIT):
                while not client.connected:
                    await asyncio.sleep(0.01)
            assert (await client.call("echo", {"say": "back"})).text == "back"

    run(main())


def test_a_client_may_be_kept_open_before_its_server_is_there() -> None:
    async def main() -> None:
        async with http_peer(speaking(echo)) as peer:
            await peer.stop()
            client = connect(peer.url)
            client.keep_open()
            call = asyncio.ensure_future(client.call("echo", {"say": "first"})._collect())
            await until(lambda: client.failure is not None)
            assert not call.done()
            await peer.start()
            assert (await call).text == "first"
            await client.close()

    run(main())


def test_the_first_try_fails_at_once() -> None:
    async def main() -> None:
        async with http_peer(speaking(echo)) as peer:
            await peer.stop()
            client = connect(peer.url)
            with pytest.raises(Unreachable, match="cannot be reached"):
                await client.open()
            with pytest.raises(Unreachable, match="is closed"):
                await client.call("echo")
            await peer.start()
            await client.open()
            assert (await client.call("echo", {"say": "x"})).text == "x"
            await client.close()

    run(main())


# --- closing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("modern", [False, True])
def test_what_runs_when_the_client_is_closed_fails_at_once(over: str, modern: bool) -> None:
    async def main() -> None:
        async def answer(request: Request) -> Any:
            asked.set()
            await asyncio.sleep(3 * LIMIT)

        asked = asyncio.Event()
        era = "modern" if modern else "legacy"
        with http_server() as server:
            options: dict[str, Any] = {"answer": answer, "era": era}
            url = f"http://127.0.0.1:{server.port}/mcp"
            client = midcall_server(**options) if over == "stdio" else connect(url, **options)
            await client.open()
            slow = {"id": "a", "name": "give.slow", "arguments": {"seconds": 3 * LIMIT}}
            work = [
                client.call("give.slow", {"seconds": 3 * LIMIT}, timeout=None)._collect(),
                client.call("seek.prompt", timeout=None)._collect(),
                client.call("seek.job", timeout=None)._collect(),
                client.call_tools([slow], timeout=None),
                client.request("tools/call", {"name": "give.slow", "arguments": {"seconds": 3 * LIMIT}}),
                client.read("secret://x"),
            ]
            running = [asyncio.ensure_future(one) for one in work]
            await asked.wait()
            session = await client.session()
            await client.close()
            results = await asyncio.gather(*running, return_exceptions=True)
            (batch,) = results.pop(3)
            assert "The client was closed" in batch["error"]
            for one in results:
                assert isinstance(one, TransportLost), one
                assert "The client was closed" in str(one)
            assert list(session.waiting) == []
            with pytest.raises(Unreachable, match="is closed"):
                await client.call("give.word")
            (late,) = await client.call_tools(calls(1))
            assert "is closed" in late["error"]

    run(main())


def test_who_waits_for_a_server_that_is_away_is_told_when_the_client_is_closed() -> None:
    async def main() -> None:
        async with http_peer(speaking(echo)) as peer:
            client = connect(peer.url, give_up_after=None)
            await client.open()
            await peer.stop()
            await asyncio.sleep(0.2)
            waiting = [
                asyncio.ensure_future(client.call("echo")._collect()),
                asyncio.ensure_future(client.call_tools(calls(3), timeout=None, parallel=True)),
                asyncio.ensure_future(client.tools()),
            ]
            await asyncio.sleep(0.3)
            await client.close()
            one, batch, listing = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(one, MidcallError)
            assert isinstance(listing, MidcallError)
            assert not any(entry["success"] for entry in batch)
        away = scripted("dying", "exit", give_up_after=None)
        away.keep_open()
        unborn = asyncio.ensure_future(away.call("echo")._collect())
        await asyncio.sleep(0)
        await away.close()
        with pytest.raises(MidcallError):
            await unborn

    run(main())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_handler_may_close_the_client(era: str) -> None:
    async def main() -> None:
        async def answer(request: Request) -> Any:
            try:
                await client.close()
            finally:
                closed.set()
            return "word"

        closed = asyncio.Event()
        before = children()
        client = midcall_server(era=era, answer=answer)
        await client.open()
        with pytest.raises(MidcallError):
            await client.call("seek.prompt")
        await closed.wait()
        assert children() <= before

    run(main())


def test_closing_twice_does_nothing() -> None:
    async def main() -> None:
        client = scripted("plain")
        await client.open()
        await client.close()
        await client.close()
        await asyncio.gather(client.close(), client.close())

    run(main())


def test_an_opening_that_is_given_up_leaves_no_process() -> None:
    async def main() -> None:
        before = children()
        client = scripted("mute")
        opening = asyncio.create_task(client.open())
        await asyncio.sleep(0.3)
        opening.cancel()
        await asyncio.wait((opening,))
        assert children() <= before

    run(main())


def test_a_loss_right_after_the_opening_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "FIRST_PAUSE", 0.01)

    async def main() -> None:
        async with scripted("plain") as client:
            for _ in range(5):
                session = await client.session()
                session._wire._transport.kill()  # type: ignore[attr-defined]
                await until(lambda: session.ended is not None)  # noqa: B023
            assert (await client.call("echo", {"say": "x"})).text == "x"

    run(main())


# --- hubs in this process -----------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
def test_a_hub_in_this_process_is_a_server_too(era: Any) -> None:
    async def main() -> None:
        hub = make_hub()
        async with connect(hub, era=era, answer=lambda request: "word") as client:
            assert client.modern == (era != "legacy")
            assert client.server_info["version"] == "9.8.7"
            assert "give.word" in [tool["name"] for tool in await client.tools()]
            assert (await client.call("seek.prompt", {"name": "x"})).text == "x: word"
            results = await client.call_tools(
                [{"id": f"c{n}", "name": "give.sum", "arguments": {"a": n, "b": 1}} for n in range(100)],
                parallel=True,
            )
            assert [one["result"]["structuredContent"]["total"] for one in results] == list(range(1, 101))
            (late,) = await client.call_tools(
                [{"id": "a", "name": "give.slow", "arguments": {"seconds": 3 * LIMIT}}], timeout=0.1
            )
            assert late["error"] == "timeout"
        await until(lambda: not len(hub.calls))
        await hub.close()

    run(main())


def test_two_clients_of_one_hub_do_not_disturb_each_other() -> None:
    async def main() -> None:
        hub = make_hub()
        async with (
            connect(hub, era="legacy", answer=lambda request: "one") as first,
            connect(hub, era="modern", answer=lambda request: "two") as second,
        ):
            found = await asyncio.gather(
                *(
                    client.call("seek.prompt", {"name": str(n)})._collect()
                    for n in range(10)
                    for client in (first, second)
                )
            )
            assert [one.text for one in found] == [
                f"{n}: {word}" for n in range(10) for word in ("one", "two")
            ]
            heard: list[str] = []
            await first.subscribe("notes://all", heard.append)
            await second.subscribe("notes://all", heard.append)
            await first.close()
            assert (await second.call("give.word")).text == "hello"
            await second.call("admin.touch", {"uri": "notes://all"})
            await until(lambda: heard == ["notes://all"])
        await hub.close()

    run(main())


# --- targets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "Name a server"),
        ([], "Name a server"),
        ("ws://localhost/ws", "connect_hub"),
        ("ftp://localhost/", "not by ftp"),
        ("http://", "is not a URL"),
        ("it's broken", "is not a command"),
        ({}, "no server under mcpServers"),
        ({"mcpServers": {}}, "no server under mcpServers"),
        ({"mcpServers": {"a": {"disabled": True, "command": "x"}}}, "no server under mcpServers"),
        ({"mcpServers": {"a": {}}}, "has a command or a url"),
        ({"mcpServers": {"a": {"command": "${NOT_SET_ANYWHERE}"}}}, "has no NOT_SET_ANYWHERE"),
    ],
)
def test_what_is_no_server_is_refused(target: Any, why: str) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match=why):
            connect(target)

    run(main())


def test_a_program_is_run_by_what_runs_such_programs(tmp_path: Path) -> None:
    program = tmp_path / "my server.py"
    program.write_text("import sys\nsys.argv[1:] = ['plain']\n" + (HERE / "scripted_server.py").read_text())

    async def main() -> None:
        for target in (program, str(program)):
            async with connect(target) as client:
                assert (await client.call("echo", {"say": "x"})).text == "x"

    run(main())


def test_several_servers_of_one_file_are_one(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": ["-S", str(HERE / "scripted_server.py"), "plain"]}
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"mcpServers": {"one": server, "two": server, "off": {"disabled": True}}}))

    async def main() -> None:
        before = children()
        async with connect(str(file)) as client:
            async with asyncio.timeout(LIMIT):
                while {tool["name"] for tool in await client.tools()} != {"one.echo", "two.echo"}:
                    await asyncio.sleep(0.02)
            assert (await client.call("one.echo", {"say": "x"})).text == "x"
            assert (await client.call("two.echo", {"say": "y"})).text == "y"
        assert children() <= before

    run(main())


def test_a_target_may_be_reached_in_a_way_of_ones_own() -> None:
    async def main() -> None:
        from midcall.client.targets import HubWire

        hub = make_hub()
        async with connect(Target("mine", lambda: HubWire(hub))) as client:
            assert client.label == "mine"
            assert (await client.call("give.word")).text == "hello"
        await hub.close()

    run(main())


def test_what_asks_while_the_client_is_being_closed_fails_at_once() -> None:
    async def main() -> None:
        asked, closing = asyncio.Event(), asyncio.Event()

        class Tools:
            @method
            async def first(self, ask: Ask) -> str:
                return await ask.prompt("First?", timeout=None)

            @method
            async def later(self, ask: Ask) -> str:
                await closing.wait()
                return await ask.prompt("Later?", timeout=None)

        async def answer(request: Request) -> Any:
            asked.set()
            try:
                await asyncio.sleep(3 * LIMIT)
            finally:
                closing.set()
                await asyncio.sleep(0.3)  # takes its time to end: meanwhile the other one asks

        hub = Hub("h").register(Tools())
        client = connect(hub, answer=answer)
        await client.open()
        running = [
            asyncio.ensure_future(client.call(f"tools.{name}", timeout=None)._collect())
            for name in ("first", "later")
        ]
        await asked.wait()
        await client.close()
        done, _ = await asyncio.wait(running, timeout=LIMIT)
        assert [type(one.exception()) for one in done] == [TransportLost] * 2
        await hub.close()

    run(main())


def test_a_durable_call_is_answered_on_a_new_connection_only_once_it_is_followed_there() -> None:
    async def main() -> None:
        heard: list[list[str]] = []
        lost = asyncio.Event()
        here = Metadata((), "", 0)
        question = Request(here, "question-1", Prompt("Name?"))

        async def peer(socket: ServerConnection) -> None:
            heard.append([])

            async def tell(item: Any) -> None:
                params = {"subscription": "call-1", "result": json.loads(encode_item(item))}
                await socket.send(
                    json.dumps({"jsonrpc": "2.0", "method": "plexus_subscription", "params": params})
                )

            async for text in socket:
                message = json.loads(text)
                heard[-1].append(message["method"])
                result: Any = "call-1"
                if message["method"] == "plexus_respond":
                    result = {"success": True}
                await socket.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
                match message["method"]:
                    case "plexus_subscribe":
                        await tell(question)
                        await socket.close()
                        lost.set()
                    case "plexus_respond":
                        await tell(Data(here, "tools.ask", "Ada"))
                        await tell(Done(here))

        async def answer(request: Request) -> str:
            await lost.wait()
            await asyncio.sleep(0.05)  # it is on its way to a new connection
            return "Ada"

        async with serve(peer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with connect_hub(f"ws://127.0.0.1:{port}/") as remote:
                call = remote.call("tools.ask", answer=answer, durable=True)
                items = [item async for item in call]
        assert isinstance(items[-1], Done)
        assert heard == [["plexus_subscribe"], ["plexus_attach", "plexus_respond"]]

    run(main())

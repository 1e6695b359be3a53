"""A mounted server is a part of the hub: what it offers, gives, tells and refuses goes through."""

import asyncio
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT, assert_nothing_left, until, with_patience
from mcp_peers import http_server, mcp_environment
from midcall import Hub, RegistrationError, ToolError, method
from midcall.client import Client, connect
from midcall.errors import InvalidArguments, RemoteError
from midcall.items import Data, Log, Progress
from midcall.mount.call import RelayedCall
from mounting import ERAS, SERVER, drive, mounted, result_of, strange
from peers import command, free_port, wait_for

CASES = [(behind, front) for behind in ERAS for front in ERAS]


class Files:
    """Something of the hub's own."""

    @method
    async def count(self) -> int:
        """Count."""
        return 3


# --- lists ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_tools_are_listed_as_the_server_gave_them_under_the_namespace(era: str) -> None:
    async def main() -> None:
        async with (
            mounted(strange(era), era=era) as hub,
            connect(strange(era), era=era) as direct,
            connect(hub, era="modern") as front,
        ):
            own = {tool["name"]: tool for tool in await direct.tools() if "name" in tool}
            through = {tool["name"]: tool for tool in await front.tools()}
            assert through == {f"b.{name}": {**tool, "name": f"b.{name}"} for name, tool in own.items()}
            assert front.instructions == "b: Be careful."

    drive(main())


def test_a_legacy_client_is_shown_no_schema_of_a_result_that_is_no_object() -> None:
    async def main() -> None:
        async with mounted(strange("modern")) as hub:
            for era in ERAS:
                async with connect(hub, era=era) as front:
                    (tool,) = [tool for tool in await front.tools() if tool["name"] == "b.list"]
                    assert ("outputSchema" in tool) == (era == "modern")
                    found = await front.call("b.list")
                    assert found.structured == ([1, 2] if era == "modern" else None)
                    assert found.text == "[1,2]"

    drive(main())


def test_names_are_plain_if_the_namespace_is_empty_and_the_first_one_counts() -> None:
    async def main() -> None:
        hub = (
            Hub("front")
            .mount("", strange("legacy"))
            .mount("", SERVER, env=mcp_environment())
            .register(Files())
        )
        await hub.open()
        try:
            names = [name for name, _ in hub.methods()]
            assert {"odd", "give.word", "seek.wizard", "files.count"} <= set(names)
            assert len(names) == len(set(names))
            assert await hub.call("give.word") == "hello"
            assert await hub.call("files.count") == 3
        finally:
            await hub.close()

    drive(main())


def test_a_namespace_is_taken_only_once() -> None:
    hub = Hub("front").mount("b", SERVER)
    with pytest.raises(RegistrationError):
        hub.mount("b", SERVER)
    with pytest.raises(RegistrationError):
        hub.mount("no good", SERVER)
    with pytest.raises(TypeError):
        hub.mount("c", SERVER, headres={})


def test_a_nested_hub_opens_and_closes_what_it_mounts() -> None:
    async def main() -> None:
        inner = Hub("inner").mount("b", strange("legacy"))
        outer = Hub("outer").register_hub(inner)
        await outer.open()
        assert await outer.call("inner.b.list") == [1, 2]
        await outer.close()
        await assert_nothing_left(outer)

    drive(main())


def test_a_server_can_be_mounted_and_unmounted_while_the_hub_is_open() -> None:
    async def main() -> None:
        hub = Hub("front").register(Files())
        await hub.open()
        changes: list[str] = []
        async with connect(hub, era="legacy") as front:
            await front.tools()
            front.on_change(changes.append)
            hub.mount("late", strange("legacy"))
            await until(lambda: "tools" in changes)
            assert "late.odd" in [tool["name"] for tool in await front.tools()]
            changes.clear()
            await hub.unmount("late")
            await until(lambda: "tools" in changes)
            assert [tool["name"] for tool in await front.tools() if "late" in tool["name"]] == []
        with pytest.raises(RegistrationError):
            await hub.unmount("late")
        await hub.close()
        await assert_nothing_left(hub)

    drive(main())


def test_the_settings_of_another_client_become_one_server_with_all_of_theirs() -> None:
    settings = {
        "mcpServers": {
            "first one": {"command": strange("legacy")[0], "args": strange("legacy")[1:]},
            "2nd": {"command": strange("modern")[0], "args": strange("modern")[1:]},
        }
    }

    async def main() -> None:
        async with connect(settings) as client:
            names = {tool["name"] for tool in await client.tools()}
            assert {"first_one.odd", "server_2nd.odd"} <= names
            assert (await client.call("server_2nd.list")).structured == [1, 2]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    drive(main())


# --- results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_a_result_goes_through_as_it_came(behind: str, front: str) -> None:
    async def main() -> None:
        arguments = {"shape": "round", "x-more": [1, None, "é\n"], "nested": {"a": {}}}
        async with (
            mounted(strange(behind), era=behind) as hub,
            connect(strange(behind), era=behind) as direct,
            connect(hub, era=front) as client,
        ):
            own = await direct.request("tools/call", {"name": "odd", "arguments": arguments})
            through = await client.request("tools/call", {"name": "b.odd", "arguments": arguments})
            for found in (own, through):
                found.pop("resultType", None)
                found["_meta"].pop("io.modelcontextprotocol/serverInfo", None)
            assert through == own
            assert through["structuredContent"]["given"] == arguments

    drive(main())


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
def test_an_old_client_gets_what_its_revision_knows(revision: str) -> None:
    async def main() -> None:
        async with mounted(strange("modern")) as hub, connect(hub, era="legacy", revision=revision) as front:
            result = await front.request("tools/call", {"name": "b.odd", "arguments": {}})
            kinds = [block["type"] for block in result["content"]]
            sound = "audio" if revision == "2025-03-26" else "resource"
            assert kinds == ["text", "image", sound, "text", "resource"]
            assert result["content"][3]["text"] == "one: odd://one"
            assert "structuredContent" not in result

    drive(main())


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_what_the_server_refuses_stays_a_refusal(behind: str, front: str) -> None:
    async def main() -> None:
        async with mounted(strange(behind), era=behind) as hub, connect(hub, era=front) as client:
            wrong = await client.request("tools/call", {"name": "b.wrong", "arguments": {}})
            assert wrong["isError"] is True
            assert wrong["structuredContent"] == {"why": 1}
            with pytest.raises(RemoteError) as refused:
                await client.call("b.refused")
            assert (refused.value.rpc_code, refused.value.rpc_data) == (-32055, {"day": "Sunday"})
            with pytest.raises(RemoteError) as unknown:
                await client.call("b.nothing_like_it")
            assert unknown.value.rpc_code == -32602

    drive(main())


def test_callers_in_the_process_get_the_value_or_an_error() -> None:
    async def main() -> None:
        async with mounted(strange("legacy")) as hub:
            assert (await hub.call("b.odd", {"a": 1}))["given"] == {"a": 1}
            assert await hub.call("b.list") == [1, 2]
            with pytest.raises(ToolError, match="It broke"):
                await hub.call("b.wrong")
            with pytest.raises(ToolError, match="Not on a Sunday") as refused:
                await hub.call("b.refused")
            assert refused.value.code == "remote_error"
            with pytest.raises(InvalidArguments, match="not an object"):
                await hub.call("b.odd", "text")
        async with mounted() as hub:
            assert await hub.call("b.give.word") == "hello"
            assert await hub.call("b.give.sum", [1, 2]) == {"total": 3}

    drive(main())


# --- progress, log, cancellation ----------------------------------------------------------------------


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_progress_and_log_are_passed_on(behind: str, front: str) -> None:
    async def main() -> None:
        async with (
            mounted(era=behind) as hub,
            connect(hub, era=front, log_level="warning") as client,
        ):
            items = [item async for item in client.call("b.give.narrate")]
            assert [i.percentage for i in items if isinstance(i, Progress)] == [10, 60, 100]
            assert [i.level for i in items if isinstance(i, Log)] == [
                "warning", "error", "critical", "alert", "emergency"
            ]  # fmt: skip
            assert [i.content.text for i in items if isinstance(i, Data)] == ["told"]

    drive(main())


def test_callers_in_the_process_hear_of_progress_and_log_too() -> None:
    async def main() -> None:
        for era in ERAS:
            async with mounted(era=era) as hub:
                items = [item async for item in hub.call("b.give.narrate")]
                assert [i.percentage for i in items if isinstance(i, Progress)] == [10, 60, 100]
                assert "a line of debug" in [i.message for i in items if isinstance(i, Log)]

    drive(main())


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_a_cancelled_call_is_cancelled_behind(behind: str, front: str) -> None:
    async def main() -> None:
        async with mounted(era=behind) as hub, connect(hub, era=front) as client:
            running = asyncio.ensure_future(result_of(client.call("b.seek.endless")))
            async with connect(hub) as other:
                async with asyncio.timeout(LIMIT):
                    while (await other.call("b.admin.state")).structured["calls"] != 1:
                        await asyncio.sleep(0.01)
                    running.cancel()
                    while True:
                        state = (await other.call("b.admin.state")).structured
                        if state["calls"] == 0:
                            break
                        await asyncio.sleep(0.01)
            assert state["trail"] == ["endless was cancelled"]
            await asyncio.gather(running, return_exceptions=True)
        await assert_nothing_left(hub)

    drive(main())


def test_a_call_that_is_aborted_in_the_hub_is_cancelled_behind() -> None:
    async def main() -> None:
        async with mounted(era="legacy") as hub, connect(hub, era="legacy") as client:
            running = asyncio.ensure_future(result_of(client.call("b.give.slow", {"seconds": 60})))
            await until(lambda: len(hub.calls) == 1)
            (call,) = hub.calls.list()
            assert call.method == "b.give.slow"
            assert hub.calls.abort(call.id, "No more of this")
            with pytest.raises(ToolError, match="No more of this"):
                await running
            assert (await client.call("b.admin.state")).structured["calls"] == 0

    drive(main())


def test_a_call_that_is_aborted_just_as_it_is_asked_something_ends_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = RelayedCall.moved

    def aborted_first(relay: RelayedCall, exchange: Any) -> None:
        relay.call.abort("No more of this")
        moved(relay, exchange)

    async def main() -> None:
        monkeypatch.setattr(RelayedCall, "moved", aborted_first)
        async with mounted(era="modern") as hub, connect(hub, era="modern", answer=lambda _: "x") as client:
            with pytest.raises(ToolError, match="No more of this"):
                await client.call("b.seek.prompt")
            await until(lambda: len(hub.calls) == 0)

    drive(main())


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midcall.mount.mount.LOOK", 0.05)

    async def attempt(seconds: float) -> bool:
        async with mounted(strange("legacy"), timeout=seconds) as hub, connect(hub) as client:
            with pytest.raises(ToolError, match="No sign of life within"):
                await client.call("b.silent")
            try:
                assert (await client.call("b.list")).structured is not None
            except ToolError:
                return False
            return True

    drive(with_patience(attempt))


# --- resources, prompts, completion, changes ------------------------------------------------------------


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_resources_templates_prompts_and_completion_go_through(behind: str, front: str) -> None:
    async def main() -> None:
        async with (
            mounted(era=behind) as hub,
            connect(SERVER, era=behind, env=mcp_environment()) as direct,
            connect(hub, era=front) as client,
        ):
            assert await client.resources() == await direct.resources()
            assert await client.templates() == await direct.templates()
            own = {prompt["name"]: prompt for prompt in await direct.prompts()}
            assert await client.prompts() == [{**one, "name": f"b.{name}"} for name, one in own.items()]
            assert await client.read("notes://all") == await direct.read("notes://all")
            (raw,) = await client.read("notes://raw")
            assert base64.b64decode(raw["blob"]) == b"\x00\x01"
            assert await client.read("notes://a/b") == await direct.read("notes://a/b")
            greeting = await client.prompt("b.greet", {"name": "Ann"})
            assert greeting["messages"][0]["content"]["text"] == "Greet Ann, be kind"
            assert greeting["description"] == "Greet somebody."
            ref = {"type": "ref/prompt", "name": "b.greet"}
            assert await client.complete(ref, "name", "al") == ["alice", "albert"]
            of_template = {"type": "ref/resource", "uri": "notes://{folder}/{name}"}
            found = await client.complete(of_template, "name", "", {"folder": "x"})
            assert found[:2] == ["x-0", "x-1"]

    drive(main())


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_what_cannot_be_read_says_so_in_the_words_of_the_callers_revision(behind: str, front: str) -> None:
    async def main() -> None:
        async with mounted(era=behind) as hub, connect(hub, era=front) as client:
            with pytest.raises(RemoteError, match="not found") as missing:
                await client.read("elsewhere://it")
            assert missing.value.rpc_code == (-32602 if front == "modern" else -32002)
            with pytest.raises(RemoteError, match="It is torn"):
                await client.read("broken://it")
            with pytest.raises(RemoteError, match="Unknown prompt"):
                await client.prompt("b.nothing")

    drive(main())


@pytest.mark.parametrize(("behind", "front"), CASES)
def test_changes_of_lists_and_resources_are_passed_on(behind: str, front: str) -> None:
    async def main() -> None:
        async with mounted(era=behind) as hub, connect(hub, era=front) as client:
            changes: set[str] = set()
            updates: list[str] = []
            await client.tools()
            client.on_change(changes.add)
            await client.subscribe("notes://all", updates.append)
            async with asyncio.timeout(LIMIT):
                while not updates:  # the subscription behind is made without anybody waiting for it
                    await client.call("b.admin.touch", {"uri": "notes://all"})
                    await asyncio.sleep(0.05)
            assert set(updates) == {"notes://all"}
            await client.call("b.admin.change")
            await until(lambda: {"tools", "prompts", "resources"} <= changes)
            assert "b.extra.hello" in [tool["name"] for tool in await client.tools()]
            assert (await client.call("b.extra.hello")).text == "hello"
            await client.call("b.admin.change")
            async with asyncio.timeout(LIMIT):
                while "b.extra.hello" in [tool["name"] for tool in await client.tools()]:
                    await asyncio.sleep(0.01)

    drive(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_call_stands_in_the_same_trace_behind(era: str) -> None:
    """In a process of its own, as a tracer provider is there for good."""
    program = f"""
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from midcall import Hub
from midcall.client import Client, connect

trace.set_tracer_provider(TracerProvider())
PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"

async def main():
    hub = Hub("front").mount("b", {strange(era)!r}, era={era!r})
    await hub.open()
    async with connect(hub, era="modern") as client:
        found = await client.call("b.meta", meta={{"traceparent": PARENT}})
        print(json.loads(found.text)["traceparent"])
    await hub.close()

asyncio.run(main())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=mcp_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    _, trace_id, span_id, _ = ran.stdout.strip().split("-")
    assert trace_id == "0123456789abcdef0123456789abcdef"
    assert span_id != "0123456789abcdef"


def test_arguments_that_a_server_wants_in_headers_are_put_there(tmp_path: Path) -> None:
    (tmp_path / "headers_app.py").write_text(
        "from midcall import Hub, method\n"
        "SCHEMA = {'type': 'object', 'properties': {'region': {'type': 'string', 'x-mcp-header': 'Region'}}}\n"
        "class Where:\n"
        "    @method(input_schema=SCHEMA)\n"
        "    async def am_i(self, region: str) -> str:\n"
        "        return f'in {region}'\n"
        "hub = Hub('plexus').register(Where())\n"
    )

    async def main() -> None:
        with http_server(f"{tmp_path / 'headers_app.py'}:hub") as server:
            url = f"http://127.0.0.1:{server.port}/mcp"
            async with mounted(url, era="modern", env=None) as hub:
                for front in ERAS:
                    async with connect(hub, era=front) as client:
                        found = await client.call("b.where.am_i", {"region": "Österreich"})
                        assert found.text == "in Österreich"

    drive(main())


# --- a server that is away --------------------------------------------------------------------------------


def test_a_server_that_cannot_be_reached_does_not_keep_the_hub_from_starting() -> None:
    async def main() -> None:
        hub = Hub("front").register(Files()).mount("gone", "no-such-program --at-all")
        await hub.open()
        assert await hub.call("files.count") == 3
        with pytest.raises(ToolError, match="gone cannot be reached") as away:
            await hub.call("gone.anything")
        assert away.value.code == "unreachable"
        assert away.value.recoverable
        async with connect(hub) as client:
            with pytest.raises(ToolError, match=r"gone cannot be reached: .*there is no program"):
                await client.call("gone.anything")
            with pytest.raises(RemoteError, match="gone cannot be reached"):
                await client.prompt("gone.anything")
        await hub.close()
        await assert_nothing_left(hub)

    drive(main())


def test_a_server_that_was_killed_comes_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midcall.mount.call.FIRST", LIMIT)

    async def main() -> None:
        async with mounted(strange("legacy")) as hub, connect(hub) as client:
            for _ in range(3):
                with pytest.raises(ToolError, match=r"may be done or not.*ended with code 3"):
                    await client.call("b.dies")
                assert "b.odd" in [tool["name"] for tool in await client.tools()]
                assert (await client.call("b.list")).text == "[1,2]"

    drive(main())


def test_a_server_that_comes_back_with_other_tools_is_listed_anew(tmp_path: Path) -> None:
    source = Path(strange("legacy")[1]).read_text()
    program = tmp_path / "server.py"
    program.write_text(source)

    async def main() -> None:
        changes: list[str] = []
        async with (
            mounted([sys.executable, str(program), "legacy"]) as hub,
            connect(hub, era="legacy") as client,
        ):
            await client.tools()
            client.on_change(changes.append)
            program.write_text(source.replace('"odd"', '"even"'))
            with pytest.raises(ToolError):
                await client.call("b.dies")
            await until(lambda: "tools" in changes)
            names = [tool["name"] for tool in await client.tools()]
            assert "b.even" in names
            assert "b.odd" not in names

    drive(main())


async def text_or_none(client: Client) -> str | None:
    """What a tool says, or nothing while its server is away."""
    try:
        return str((await client.call("b.give.word")).text)
    except ToolError:
        return None


@pytest.mark.parametrize("era", ERAS)
def test_a_server_over_http_that_was_killed_is_used_again_when_it_is_back(era: str) -> None:
    port = free_port()

    def serve() -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            command(
                "serve", "mcp_app:hub", "--port", str(port), "--journal", "memory", "--log-level", "warning"
            ),
            env=mcp_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(f"http://127.0.0.1:{port}/health")
        return started

    async def main() -> None:
        server = serve()
        try:
            url = f"http://127.0.0.1:{port}/mcp"
            async with mounted(url, era=era, env=None) as hub, connect(hub) as client:
                assert (await client.call("b.give.word")).text == "hello"
                slow = asyncio.ensure_future(result_of(client.call("b.give.slow", {"seconds": 3 * LIMIT})))
                while (await client.call("b.admin.state")).structured["calls"] != 1:
                    await asyncio.sleep(0.01)
                server.kill()
                server.wait(LIMIT)
                with pytest.raises(ToolError, match="may be done or not"):
                    await slow
                with pytest.raises(ToolError, match="b cannot be reached"):
                    await client.call("b.give.word")
                assert "b.give.word" in [tool["name"] for tool in await client.tools()]
                server = serve()
                async with asyncio.timeout(LIMIT):
                    while (found := await text_or_none(client)) is None:
                        await asyncio.sleep(0.05)
                assert found == "hello"
        finally:
            server.kill()
            server.wait(LIMIT)

    drive(main())

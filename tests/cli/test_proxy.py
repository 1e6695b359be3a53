"""`midcall proxy`: any MCP server, for clients of every era, over stdio and HTTP; and `tools` and `call` on it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT
from mcp_oracle import MODERN
from mcp_peers import LATEST, Client, HttpServer, StdioClient, http_server, mcp_environment, text
from midcall.client import connect, connect_hub
from midcall.errors import MidcallError, ToolError
from midcall.items import Request
from mounting import ERAS, SERVER, drive, strange
from peers import HERE, LARGE, StdioWire, close_pipes, command, free_port
from terminals import DOWN, ENTER, midcall

FORMS = {"elicitation": {"form": {}, "url": {}}}
REVISIONS = {"legacy": LATEST, "modern": MODERN}
LOGS = ("--log-level", "warning")


# --- proxies ------------------------------------------------------------------------------------------


class Proxy:
    """A proxy over HTTP in a process of its own."""

    def __init__(self, *options: str, server: list[str], port: int | None = None, **env: str) -> None:
        self.port = port or free_port()
        self._argv = command("proxy", "--port", str(self.port), *LOGS, *options, "--", *server)
        self._env = mcp_environment(**env)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._env,
        )
        end = time.monotonic() + LIMIT
        while not _listens(self.port):
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < end
            time.sleep(0.02)
        return process

    def kill(self) -> None:
        """Kill it, as an accident would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=LIMIT)

    def start_again(self) -> None:
        self.process = self._start()

    def stop(self) -> None:
        self.process.terminate()
        _, errors = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, errors.decode()
        assert b"Traceback" not in errors, errors.decode()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def proxy(*options: str, server: list[str], **env: str) -> Iterator[Proxy]:
    serving = Proxy(*options, server=server, **env)
    try:
        yield serving
    except BaseException:
        serving.kill()
        raise
    serving.stop()


@asynccontextmanager
async def proxy_on_stdio(
    front: str, behind: str, server: list[str], capabilities: Any = FORMS
) -> AsyncIterator[StdioClient]:
    process = await asyncio.create_subprocess_exec(
        *command("proxy", "--stdio", "--journal", "memory", "--era", behind, *LOGS, "--", *server),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=mcp_environment(),
        limit=LARGE,
    )
    client = StdioClient(StdioWire(process), REVISIONS[front], capabilities)
    reading = asyncio.ensure_future(client.read())
    try:
        if not client.modern:
            await client.initialize()
        yield client
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.close()
        async with asyncio.timeout(LIMIT):
            await process.wait()
            errors = (await process.stderr.read()).decode()
        assert process.returncode == 0, errors
        assert "Traceback" not in errors, errors
        await reading  # what the oracle found wrong is raised here
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if process.returncode is None:
            process.kill()
            await process.wait()
        close_pipes(process)


@pytest.fixture(scope="module")
def behind() -> Iterator[HttpServer]:
    """A server to stand in front of."""
    with http_server() as serving:
        yield serving


@pytest.fixture(scope="module")
def proxies(behind: HttpServer) -> Iterator[dict[str, HttpServer]]:
    """For each era of the server behind, a proxy over HTTP."""
    url = [f"http://127.0.0.1:{behind.port}/mcp"]
    with (
        proxy("--journal", "memory", "--era", "legacy", server=url) as legacy,
        proxy("--journal", "memory", "--era", "modern", server=url) as modern,
    ):
        yield {"legacy": HttpServer(legacy.port), "modern": HttpServer(modern.port)}


# --- asking, by hand ------------------------------------------------------------------------------------


async def converse(client: Client, name: str, answers: list[Any], **arguments: Any) -> tuple[Any, list[Any]]:
    """Call a tool and answer what it asks, in the client's own era: gives the result, and what was asked."""
    asked: list[Any] = []
    left = iter(answers)
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if client.modern:
        result = await client.result("tools/call", params)
        while result["resultType"] == "input_required":
            asked += [one["params"] for one in result["inputRequests"].values()]
            responses = {key: next(left) for key in result["inputRequests"]}
            again = {"inputResponses": responses, "requestState": result["requestState"]}
            result = await client.result("tools/call", {**params, **again})
        return result, asked
    call = await client.start("tools/call", params)
    for answer in left:
        request = await client.message("elicitation/create")
        asked.append(request["params"])
        await client.answer(request, answer)
    return (await client.response(call))["result"], asked


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def three_questions_then_a_decline_and_a_cancel(client: Client) -> None:
    answers = [accept(text="demo"), accept(choice="full"), accept(confirmed=True)]
    result, asked = await converse(client, "seek.wizard", answers, run="w")
    assert text(result) == "demo full True"
    assert [one["message"] for one in asked] == ["Project name?", "Template?", "Create it?"]
    assert [list(one["requestedSchema"]["properties"]) for one in asked] == [
        ["text"],
        ["choice"],
        ["confirmed"],
    ]
    result, _ = await converse(client, "seek.form", [accept(name="Ann", age=3, role="admin")])
    assert text(result) == "Ann 3 admin"
    result, _ = await converse(client, "seek.careful", [{"action": "decline"}])
    assert text(result) == "error: declined"
    result, _ = await converse(client, "seek.careful", [{"action": "cancel"}])
    assert text(result) == "error: cancelled"


CASES = [(behind, front) for behind in ERAS for front in ERAS]


@pytest.mark.parametrize(("era_behind", "era_in_front"), CASES)
def test_the_eras_are_bridged_over_stdio(era_behind: str, era_in_front: str) -> None:
    async def main() -> None:
        async with proxy_on_stdio(era_in_front, era_behind, SERVER) as client:
            await three_questions_then_a_decline_and_a_cancel(client)

    drive(main())


@pytest.mark.parametrize(("era_behind", "era_in_front"), CASES)
def test_the_eras_are_bridged_over_http(
    era_behind: str, era_in_front: str, proxies: dict[str, HttpServer]
) -> None:
    async def main() -> None:
        async with proxies[era_behind].client(REVISIONS[era_in_front], FORMS) as client:
            await three_questions_then_a_decline_and_a_cancel(client)

    drive(main())


@pytest.mark.parametrize("era", ERAS)
def test_stdio_in_front_of_http(era: str, behind: HttpServer) -> None:
    async def main() -> None:
        url = [f"http://127.0.0.1:{behind.port}/mcp"]
        async with proxy_on_stdio("modern" if era == "legacy" else "legacy", era, url) as client:
            await three_questions_then_a_decline_and_a_cancel(client)

    drive(main())


@pytest.mark.parametrize("era", ERAS)
def test_an_answer_that_does_not_fit_is_asked_for_again_or_refused(
    era: str, proxies: dict[str, HttpServer]
) -> None:
    async def main() -> None:
        wrong, right = accept(name="A", age=3), accept(name="Ann", age=3)
        async with proxies[era].client(MODERN, FORMS) as modern:
            result, asked = await converse(modern, "seek.form", [wrong, right])
            assert text(result) == "Ann 3 user"
            assert [one["message"].startswith("(Not understood") for one in asked] == [False, True]
        async with proxies[era].client(LATEST, FORMS) as legacy:
            result, _ = await converse(legacy, "seek.form", [wrong])
            assert result["isError"]
            assert "does not fit" in text(result)

    drive(main())


@pytest.mark.parametrize("front", ERAS)
def test_what_is_said_through_a_proxy_is_what_the_protocol_wants(
    front: str, proxies: dict[str, HttpServer]
) -> None:
    async def main() -> None:
        for era in ERAS:
            async with proxies[era].client(REVISIONS[front], FORMS) as client:
                names = [tool["name"] for tool in (await client.result("tools/list"))["tools"]]
                assert "give.word" in names
                assert await client.tool("give.word") == "hello"
                result = await client.result(
                    "tools/call", {"name": "give.sum", "arguments": {"a": 1, "b": 2}}
                )
                assert result["structuredContent"] == {"total": 3}
                result = await client.result("tools/call", {"name": "give.sum", "arguments": {"a": "x"}})
                assert result["isError"]
                for method in ("prompts/list", "resources/list", "resources/templates/list"):
                    await client.result(method)
                read = await client.result("resources/read", {"uri": "notes://all"})
                assert read["contents"][0]["text"] == "# Notes"
                prompt = await client.result("prompts/get", {"name": "greet", "arguments": {"name": "Al"}})
                assert prompt["messages"][0]["content"]["text"] == "Greet Al, be kind"
                ref = {
                    "ref": {"type": "ref/prompt", "name": "greet"},
                    "argument": {"name": "name", "value": "b"},
                }
                assert (await client.result("completion/complete", ref))["completion"]["values"] == ["bob"]
                code, _ = await client.error("tools/call", {"name": "nothing", "arguments": {}})
                assert code == -32602
                code, _ = await client.error("resources/read", {"uri": "nowhere://"})
                assert code == (-32602 if client.modern else -32002)

    drive(main())


@pytest.mark.parametrize("front", ERAS)
def test_midcalls_own_client_drives_a_proxy(front: str, proxies: dict[str, HttpServer]) -> None:
    def answer(request: Request) -> Any:
        return {"prompt": "demo", "select": "full", "confirm": True}[request.request_type.kind]

    async def main() -> None:
        targets: list[Any] = [f"http://127.0.0.1:{proxies[era].port}/mcp" for era in ERAS]
        targets.append(command("proxy", "--stdio", "--journal", "memory", *LOGS, "--", *SERVER))
        for target in targets:
            env = mcp_environment() if isinstance(target, list) else None
            async with connect(target, era=front, answer=answer, env=env) as client:  # type: ignore[arg-type]
                assert (await client.call("seek.wizard")).text == "demo full True"
                calls = [{"id": str(n), "name": "give.word", "arguments": {}} for n in range(50)]
                found = await client.call_tools(calls, parallel=True)
                assert all(one["success"] for one in found), found

    drive(main())


def test_a_proxy_in_front_of_a_server_that_cannot_be_started_says_so() -> None:
    async def main() -> None:
        with proxy("--journal", "memory", server=["no-such-program", "--at-all"]) as serving:
            async with connect(f"http://127.0.0.1:{serving.port}/mcp") as client:
                assert [t["name"] for t in await client.tools() if not t["name"].startswith("_")] == []
                with pytest.raises(
                    ToolError, match=r"cannot be reached: .*there is no program no-such-program"
                ):
                    await client.call("anything")

    drive(main())


def test_a_proxy_lets_in_whoever_has_a_key_and_keeps_their_questions_apart(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann=the-token-of-ann\nbob=the-token-of-bob\n")
    keys.chmod(0o600)

    async def main() -> None:
        options = ("--auth-tokens", str(keys), "--journal", "memory", "--era", "legacy")
        with proxy(*options, server=SERVER) as serving:
            url = f"http://127.0.0.1:{serving.port}/mcp"
            with pytest.raises(MidcallError):
                async with connect(url):
                    pass
            with pytest.raises(MidcallError):
                async with connect(url, auth="the-token-of-eve"):
                    pass

            async def speak(name: str, era: Any) -> list[str]:
                async def answer(request: Request) -> str:
                    assert request.request_type.message == f"A word for {name}?"
                    await asyncio.sleep(0.01)
                    return f"says {name}"

                async with connect(url, auth=f"the-token-of-{name}", era=era, answer=answer) as client:
                    return [(await client.call("seek.prompt", {"name": name})).text for _ in range(5)]

            for era in ERAS:
                ann, bob = await asyncio.gather(speak("ann", era), speak("bob", era))
                assert ann == ["ann: says ann"] * 5
                assert bob == ["bob: says bob"] * 5

    drive(main())


def test_a_proxied_tool_is_called_over_the_hubs_own_protocol(proxies: dict[str, HttpServer]) -> None:
    async def main() -> None:
        for era in ERAS:
            async with connect_hub(f"ws://127.0.0.1:{proxies[era].port}/ws") as hub:
                assert await hub.call("give.word") == "hello"
                assert await hub.call("give.sum", {"a": 2, "b": 3}) == {"total": 5}
                with pytest.raises(ToolError, match="The disk is full"):
                    await hub.call("give.failure")
                assert await hub.call("seek.prompt", {"name": "x"}, answer=lambda _: "hi") == "x: hi"
                assert (
                    await hub.call("seek.confirm", answer=lambda _: True, durable=True) == "confirmed: True"
                )

    drive(main())


def test_a_proxy_may_have_several_workers(tmp_path: Path) -> None:
    async def main() -> None:
        options = ("--workers", "2", "--journal", str(tmp_path / "calls.db"))
        with proxy(*options, server=SERVER) as serving:
            async with connect(
                f"http://127.0.0.1:{serving.port}/mcp", era="modern", answer=lambda _: "w"
            ) as one:
                for _ in range(10):
                    assert (await one.call("seek.prompt", {"name": "x"})).text == "x: w"

    drive(main())


# --- crashes ---------------------------------------------------------------------------------------------


def test_a_call_goes_on_after_the_proxy_was_killed_if_the_server_behind_is_modern(
    tmp_path: Path, behind: HttpServer
) -> None:
    async def main() -> None:
        url = [f"http://127.0.0.1:{behind.port}/mcp"]
        options = ("--journal", str(tmp_path / "calls.db"), "--era", "modern")
        with proxy(*options, server=url) as serving:
            params: dict[str, Any] = {"name": "seek.wizard", "arguments": {"run": "crash"}}
            async with HttpServer(serving.port).client(MODERN, FORMS) as client:
                asked = await client.result("tools/call", params)
                answers = [accept(text="kept"), accept(choice="full"), accept(confirmed=True)]
                for answer in answers:
                    assert asked["resultType"] == "input_required"
                    serving.kill()
                    serving.start_again()
                    (key,) = asked["inputRequests"]
                    again = {"inputResponses": {key: answer}, "requestState": asked["requestState"]}
                    asked = await client.result("tools/call", {**params, **again})
                assert text(asked) == "kept full True"
                repeated = await client.result("tools/call", {**params, **again})
                assert text(repeated) == "kept full True"  # whoever lost it gets the same, and nothing is run
            async with behind.client() as direct:
                trail = [one for one in (await direct.state())["trail"] if one.startswith("crash")]
                assert trail == ["crash before", "crash named kept", "crash chose full", "crash done"]

    drive(main())


def test_a_task_of_the_server_behind_is_found_again_after_the_proxy_was_killed(
    tmp_path: Path, behind: HttpServer
) -> None:
    async def main() -> None:
        url = [f"http://127.0.0.1:{behind.port}/mcp"]
        options = ("--journal", str(tmp_path / "calls.db"), "--era", "modern")
        with proxy(*options, server=url) as serving:
            params: dict[str, Any] = {"name": "seek.job", "arguments": {}}
            async with HttpServer(serving.port).client(MODERN, FORMS) as client:
                asked = await client.result("tools/call", params)
                serving.kill()
                serving.start_again()
                again = {"inputResponses": {"word": accept(text="w")}, "requestState": asked["requestState"]}
                found = await client.result("tools/call", {**params, **again})
                assert text(found) == "job done: w"

    drive(main())


def test_a_step_behind_that_was_interrupted_is_not_done_again(tmp_path: Path, behind: HttpServer) -> None:
    async def main() -> None:
        url = [f"http://127.0.0.1:{behind.port}/mcp"]
        options = ("--journal", str(tmp_path / "calls.db"), "--era", "modern")
        with proxy(*options, server=url) as serving:
            arguments = {"run": "cut", "seconds": LIMIT}
            params: dict[str, Any] = {"name": "seek.slow_wizard", "arguments": arguments}
            async with HttpServer(serving.port).client(MODERN, FORMS) as client:
                asked = await client.result("tools/call", params)
                (key,) = asked["inputRequests"]
                again = {"inputResponses": {key: accept(text="x")}, "requestState": asked["requestState"]}
                await client.start("tools/call", {**params, **again})
                async with behind.client() as direct, asyncio.timeout(LIMIT):
                    while "cut works" not in (await direct.state())["trail"]:
                        await asyncio.sleep(0.01)
                    serving.kill()
                    await client.drop()
                    serving.start_again()
                    found = await client.result("tools/call", {**params, **again})
                    assert found["isError"]
                    assert "was interrupted: it may have happened, or not" in text(found)
                    await asyncio.sleep(0.5)
                    trail = (await direct.state())["trail"]
                    assert trail.count("cut works") == 1

    drive(main())


def test_a_call_that_a_legacy_server_lost_fails_clearly_and_is_not_sent_again(
    tmp_path: Path, behind: HttpServer
) -> None:
    async def main() -> None:
        url = [f"http://127.0.0.1:{behind.port}/mcp"]
        options = ("--journal", str(tmp_path / "calls.db"), "--era", "legacy")
        with proxy(*options, server=url) as serving:
            params: dict[str, Any] = {"name": "seek.wizard", "arguments": {"run": "lost"}}
            async with HttpServer(serving.port).client(MODERN, FORMS) as client:
                asked = await client.result("tools/call", params)
                serving.kill()
                serving.start_again()
                (key,) = asked["inputRequests"]
                again = {"inputResponses": {key: accept(text="x")}, "requestState": asked["requestState"]}
                found = await client.result("tools/call", {**params, **again})
                assert found["isError"]
                assert "lost this call" in text(found)
                assert "may have done part of it" in text(found)
            async with behind.client() as direct:
                trail = [one for one in (await direct.state())["trail"] if one.startswith("lost")]
                assert trail == ["lost before"]

    drive(main())


def test_a_call_whose_coroutine_was_dropped_goes_on_with_what_waits_behind(
    tmp_path: Path, behind: HttpServer
) -> None:
    """With `--replay-check` the coroutine is thrown away at every question, while the server behind waits."""

    async def main() -> None:
        url = [f"http://127.0.0.1:{behind.port}/mcp"]
        for era in ERAS:
            options = ("--journal", str(tmp_path / f"{era}.db"), "--era", era, "--replay-check")
            with proxy(*options, server=url) as serving:
                async with HttpServer(serving.port).client(MODERN, FORMS) as client:
                    answers = [accept(text="r"), accept(choice="full"), accept(confirmed=True)]
                    result, _ = await converse(client, "seek.wizard", answers, run=f"replay {era}")
                    assert text(result) == "r full True"
                async with behind.client() as direct:
                    trail = [
                        one for one in (await direct.state())["trail"] if one.startswith(f"replay {era}")
                    ]
                    assert len(trail) == 4

    drive(main())


# --- the command line --------------------------------------------------------------------------------------


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*argv),
        env=mcp_environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )


def quoted(words: list[str]) -> str:
    return " ".join(words)


def test_tools_of_a_server_are_listed_and_shown(behind: HttpServer, tmp_path: Path) -> None:
    settings = tmp_path / "mcp.json"
    first, *rest = strange("legacy")
    entry = {"command": first, "args": rest, "env": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}}
    settings.write_text(
        json.dumps({"mcpServers": {"odd": entry, "web": {"url": f"http://127.0.0.1:{behind.port}/mcp"}}})
    )
    for target, name in (
        (quoted(SERVER), "give.sum"),
        (f"http://127.0.0.1:{behind.port}/mcp", "give.sum"),
        (str(settings), "web.give.sum"),
    ):
        listed = run("tools", target)
        assert listed.returncode == 0, listed.stderr
        assert name in listed.stdout
        shown = run("tools", target, name)
        assert "Add two numbers." in shown.stdout
        assert "required" in shown.stdout


def test_a_tool_of_a_server_is_called_with_flags_from_its_schema(behind: HttpServer) -> None:
    url = f"http://127.0.0.1:{behind.port}/mcp"
    found = run("call", url, "give.sum", "--a", "2", "--b", "5")
    assert (found.returncode, json.loads(found.stdout)) == (0, {"total": 7})
    found = run("call", url, "seek.wizard", "--answer", "name=demo", "--answer", "template=full", "--yes")
    assert (found.returncode, found.stdout.strip()) == (0, "demo full True")
    found = run("call", url, "give.failure")
    assert found.returncode == 1
    assert "The disk is full" in found.stderr
    found = run("call", url, "give.sum", "--help")
    assert "--a N" in found.stdout
    found = run("call", url, "give.summ")
    assert found.returncode == 2
    assert "Did you mean give.sum" in found.stderr


def test_a_server_that_cannot_be_used_is_named() -> None:
    found = run("tools", "no-such-program --at-all")
    assert found.returncode == 2
    assert "there is no program no-such-program" in found.stderr
    found = run("call", f"http://127.0.0.1:{free_port()}/mcp", "x")
    assert found.returncode == 2
    assert "cannot be reached" in found.stderr
    found = run("tools", f"{sys.executable} -c pass")
    assert found.returncode == 2
    assert "ended with code 0" in found.stderr


def test_the_usage_is_told() -> None:
    shown = run("proxy", "--help")
    assert shown.returncode == 0
    for word in ("COMMAND or URL", "--header", "--env", "--stdio", "--auth-tokens", "--journal", "--workers"):
        assert word in shown.stdout
    assert run("proxy").returncode == 2
    both = run("proxy", "--http", "--stdio", "--", "x")
    assert both.returncode == 2
    assert "Use either --http or --stdio" in both.stderr
    assert run("proxy", "--header", "nonsense", "--", "x").returncode == 2


@pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")
def test_questions_of_a_server_are_asked_in_the_terminal() -> None:
    with midcall("call", quoted(SERVER), "seek.wizard") as session:
        session.sees("Project name?")
        session.types("demo" + ENTER)
        session.sees("Template?", "minimal", "full")
        session.types(DOWN + ENTER)
        session.sees("Create it?")
        session.types("y")
        session.sees("demo full True")
        assert session.ends() == 0


# --- the environment of the server behind -----------------------------------------------------


@pytest.mark.parametrize(
    ("options", "passed"),
    [((), set()), (("--env", "API_KEY"), {"API_KEY"}), (("--inherit-env",), {"API_KEY", "MIDCALL_TOKENS"})],
)
def test_a_server_behind_a_proxy_gets_only_the_variables_that_are_named(
    options: tuple[str, ...], passed: set[str]
) -> None:
    server = [sys.executable, "-S", str(HERE / "scripted_server.py"), "surroundings"]

    async def main() -> None:
        async with connect(f"http://127.0.0.1:{front.port}/mcp", auth="0123456789abcdef") as client:
            found = (await client.call("echo")).structured["env"]
        assert found.keys() & {"API_KEY", "MIDCALL_TOKENS"} == passed
        assert ("MIDCALL_KEYS" in found) is ("--inherit-env" in options)

    with proxy(*options, server=server, API_KEY="secret", MIDCALL_TOKENS="ann=0123456789abcdef") as front:
        drive(main())


def test_a_variable_that_is_to_be_passed_on_must_be_there() -> None:
    words = command("proxy", "--env", "NOT_SET_ANYWHERE", "--", "true")
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "this process has no environment variable NOT_SET_ANYWHERE" in ended.stderr

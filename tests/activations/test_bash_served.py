"""bash over the wires: by the names of the seed, only when it is named, for people only, and after a crash."""

import asyncio
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from driving import LIMIT, drive, until
from midcall import Data, Request, connect, connect_hub
from peers import close_pipes, command, environment, http_server, stdio_peer, wait_for
from ports import free_port
from shelling import lines, processes

TARGET = "midcall.activations:hub"
HELLO = [{"type": "stdout", "line": "hello"}, {"type": "exit", "code": 0}]


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where servers of this module are started, with an empty file of rules beside it."""
    with tempfile.TemporaryDirectory(prefix="midcall-test-", dir="/var/tmp") as made:
        made_project = Path(made) / "project"
        made_project.mkdir()
        monkeypatch.setenv("XDG_CONFIG_HOME", f"{made}/config")
        yield made_project


@pytest.mark.parametrize("name", ["bash_execute", "bash.execute"])
def test_over_raw_stdio_by_both_names(project: Path, name: str) -> None:
    async def main() -> None:
        async with stdio_peer(TARGET, "--with", "bash", "--cwd", str(project), "--journal", "memory") as peer:
            subscription = await peer.result(
                "plexus_subscribe", {"method": name, "params": {"command": "echo hello"}}
            )
            items = await peer.items(subscription)
            assert [item["content"] for item in items if item["type"] == "data"] == HELLO
            subscription = await peer.result(
                "plexus_subscribe", {"method": name, "params": {"command": "touch made"}}
            )
            asked = await peer.item(subscription, "request")
            assert "touch made" in asked["request_type"]["Select"]["message"]
            await peer.result("plexus_respond", [subscription, asked["request_id"], "once"])
            assert (await peer.items(subscription))[0]["content"] == {"type": "exit", "code": 0}
        assert (project / "made").exists()

    drive(main())


@pytest.mark.parametrize("flag", ["--mcp", "--mcp-only"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_over_mcp_on_stdio(project: Path, flag: str, era: Literal["legacy", "modern"]) -> None:
    server = command("serve", "--stdio", flag, "--with", "bash", "--cwd", str(project), "--journal", "memory")
    asked: list[Request] = []

    def answer(request: Request) -> str:
        asked.append(request)
        return "once"

    async def main() -> None:
        async with connect(server, answer=answer, era=era, inherit_env=True) as client:
            assert "bash.execute" in [tool["name"] for tool in await client.tools()]
            for name in ("bash.execute", "bash_execute"):
                result = await client.call(name, {"command": "echo hello"})
                assert json.loads(result.text) == HELLO
            result = await client.call("bash.execute", {"command": "touch made"})
            assert json.loads(result.text) == {"type": "exit", "code": 0}
        assert len(asked) == 1
        assert (project / "made").exists()

    drive(main())


def test_a_model_cannot_answer_in_the_place_of_its_person(project: Path) -> None:
    """A legacy client without elicitation would be asked by a notification, and answer with a tool."""
    server = command(
        "serve", "--stdio", "--mcp-only", "--with", "bash", "--cwd", str(project), "--journal", "memory"
    )

    async def main() -> None:
        async with connect(server, era="legacy", inherit_env=True) as client:
            result = await client.call("bash.execute", {"command": "touch made"})
            error = json.loads(result.text)
            assert "nobody can be asked here" in error["message"]
            result = await client.call("bash.execute", {"command": "echo hello"})
            assert json.loads(result.text) == HELLO
        assert not (project / "made").exists()

    drive(main())


def test_a_session_is_asked_once_for_the_same_command(project: Path) -> None:
    async def runs(peer: Any, command: str, *answers: str) -> int:
        subscription = await peer.result(
            "plexus_subscribe", {"method": "bash.execute", "params": {"command": command}}
        )
        for answer in answers:
            asked = await peer.item(subscription, "request")
            await peer.result("plexus_respond", [subscription, asked["request_id"], answer])
        items = await peer.items(subscription)
        assert [item["type"] for item in items] == ["data", "done"]
        return int(items[0]["content"].get("code", -2))

    async def main() -> None:
        async with stdio_peer(TARGET, "--with", "bash", "--cwd", str(project), "--journal", "memory") as peer:
            assert await runs(peer, "touch made", "session") == 0
            assert await runs(peer, "touch made") == 0
            assert await runs(peer, "touch other", "no") == -2
        async with stdio_peer(TARGET, "--with", "bash", "--cwd", str(project), "--journal", "memory") as peer:
            assert await runs(peer, "touch made", "no") == -2

    drive(main())


# --- only when it is named ----------------------------------------------------------------------------------


def refused(*options: str) -> str:
    ran = subprocess.run(
        command("serve", *options),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    return ran.stderr


def test_without_its_name_it_is_not_there(project: Path) -> None:
    async def main() -> None:
        async with stdio_peer(TARGET, "--cwd", str(project), "--journal", "memory") as peer:
            response = await peer.request(
                "plexus_subscribe", {"method": "bash.execute", "params": {"command": "ls"}}
            )
            assert "Unknown method: bash.execute" in response["error"]["message"]

    drive(main())


def test_it_is_added_to_an_app_too(project: Path) -> None:
    async def main() -> None:
        async with stdio_peer(
            "lines_app:hub", "--with", "bash", "--cwd", str(project), "--journal", "memory"
        ) as peer:
            subscription = await peer.result(
                "plexus_subscribe", {"method": "bash.execute", "params": {"command": "echo hello"}}
            )
            assert [
                item["content"] for item in await peer.items(subscription) if item["type"] == "data"
            ] == HELLO

    drive(main())


@pytest.mark.parametrize(
    "more",
    [(), ("--no-auth",), ("--no-auth", "--allow-public"), ("--no-auth", "--allow-public", "--workers", "2")],
)
def test_it_is_never_served_to_the_public_without_authentication(more: tuple[str, ...]) -> None:
    assert "Refused" in refused("--with", "bash", "--host", "0.0.0.0", "--port", str(free_port()), *more)


def test_a_shell_of_an_app_is_not_served_to_the_public_either(project: Path) -> None:
    (project / "app.py").write_text(
        "from midcall import Hub\nfrom midcall.activations.bash import Bash\nhub = Hub().register(Bash())\n"
    )
    said = refused(
        f"{project}/app.py:hub",
        "--host",
        "0.0.0.0",
        "--port",
        str(free_port()),
        "--no-auth",
        "--allow-public",
    )
    assert "Refused to serve bash.execute on 0.0.0.0 without authentication" in said


def test_names_that_are_unknown_are_refused() -> None:
    assert "There is no activation 'zsh'" in refused("--with", "bash,zsh", "--stdio")


def test_rules_that_cannot_be_used_are_refused_at_the_start(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "rules.toml").write_text("x = 1")
    monkeypatch.setenv("MIDCALL_BASH_CONFIG", str(project / "rules.toml"))
    assert "rules.toml: Object contains unknown field `x`" in refused("--with", "bash", "--stdio")
    monkeypatch.setenv("MIDCALL_BASH_CONFIG", str(project / "none.toml"))
    assert "There is no file" in refused("--with", "bash", "--stdio")


def test_a_key_needs_the_scope_of_the_shell(project: Path) -> None:
    (project.parent / "keys.txt").write_text(
        "ada=with-scope-0123456789abcdef:bash\neve=without-0123456789abcdef\n"
    )
    options = [
        "--with",
        "bash",
        "--cwd",
        str(project),
        "--journal",
        "memory",
        "--auth-tokens",
        str(project.parent / "keys.txt"),
    ]

    async def main() -> None:
        async with http_server(TARGET, options=options) as url:
            mcp = url.replace("ws://", "http://").removesuffix("/ws") + "/mcp"
            async with connect(mcp, auth="with-scope-0123456789abcdef") as client:
                assert (
                    json.loads((await client.call("bash.execute", {"command": "echo hello"})).text) == HELLO
                )
            async with connect(mcp, auth="without-0123456789abcdef") as client:
                with pytest.raises(Exception, match="scope"):
                    await client.call("bash.execute", {"command": "echo hello"})

    drive(main())


# --- when the server dies -------------------------------------------------------------------------------------


class Servers:
    """A server with a journal, which is killed and started again at the same address."""

    def __init__(self, project: Path) -> None:
        self.port = free_port()
        self._project = project
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    async def start(self) -> None:
        journal = self._project.parent / "journal.db"
        self.process = await asyncio.create_subprocess_exec(
            *command("serve", "--with", "bash", "--port", str(self.port), "--cwd", str(self._project), "--journal", str(journal), "--log-level", "error"),
            env=environment(),
        )  # fmt: skip
        await asyncio.to_thread(wait_for, f"http://127.0.0.1:{self.port}/health")

    async def stop(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        await self.process.wait()
        close_pipes(self.process)


@asynccontextmanager
async def servers(project: Path) -> AsyncIterator[Servers]:
    made = Servers(project)
    await made.start()
    try:
        yield made
    finally:
        await made.stop(signal.SIGKILL)


CUT_OFF = "echo run >> runs; echo one; until [ -e go ]; do sleep 0.01; done; echo two; : {}"


@pytest.mark.parametrize("now", ["again", "stop"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_that_a_crash_cuts_off_is_not_run_again_by_itself(
    project: Path, now: str, how: signal.Signals
) -> None:
    text = CUT_OFF.format(os.urandom(8).hex())
    asked: list[Request] = []

    def answer(request: Request) -> str:
        asked.append(request)
        if request.key == "interrupted":
            assert (project / "runs").read_text() == "run\n"
            (project / "go").touch()
            return now
        return "once"

    async def main() -> list[Any]:
        async with servers(project) as serving, connect_hub(serving.url) as remote:
            seen: list[Any] = []
            async for item in remote.call("bash.execute", {"command": text}, answer=answer, durable=True):
                if isinstance(item, Data):
                    seen.append(item.content)
                    if seen == [{"type": "stdout", "line": "one"}]:
                        await serving.stop(how)
                        await until(lambda: not processes(text))  # it ends with its server
                        await serving.start()
            return seen

    seen = drive(main())
    assert [request.key for request in asked] == ["permission", "interrupted"]
    assert "The last that it printed:\n\n    one\n" in asked[1].request_type.message
    if now == "stop":
        lost = "It is not known how the command ended: the server stopped while it ran"
        assert seen == [{"type": "stdout", "line": "one"}, {"type": "error", "message": lost}]
        assert (project / "runs").read_text() == "run\n"
    else:
        assert lines(seen) == ["one", "one", "two"]
        assert [event["type"] for event in seen] == ["stdout", "notice", "stdout", "stdout", "exit"]
        assert (project / "runs").read_text() == "run\nrun\n"


def test_a_command_that_has_ended_is_not_run_again_when_the_server_dies(project: Path) -> None:
    outside = project.parent / "outside"

    async def main() -> list[Any]:
        async with servers(project) as serving, connect_hub(serving.url) as remote:
            seen: list[Any] = []
            answered: list[str] = []
            text = f"echo run >> runs; seq 1 2000; echo x > {outside}"
            invocation = remote.call("bash.execute", {"command": text}, durable=True, supports={"select"})
            async for item in invocation:
                if isinstance(item, Request):
                    if item.key == "sandbox" and "killed" not in answered:
                        answered.append("killed")
                        await serving.stop(signal.SIGKILL)
                        await serving.start()
                    answered.append(item.key or "")
                    await invocation.answer(item.request_id, "once" if item.key == "permission" else "no")
                elif isinstance(item, Data):
                    seen.append(item.content)
            assert answered == ["permission", "killed", "sandbox"]
            return seen

    seen = drive(main())
    assert lines(seen) == [str(n) for n in range(1, 2001)]
    assert seen[-1] == {"type": "exit", "code": 1}
    assert (project / "runs").read_text() == "run\n"


def test_a_command_ends_with_the_caller_who_is_lost(project: Path) -> None:
    text = CUT_OFF.format(os.urandom(8).hex())

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            *command("serve", "--stdio", "--with", "bash", "--cwd", str(project), "--journal", "memory", "--grace", "0"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment(),
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "plexus_subscribe",
            "params": {
                "method": "bash.execute",
                "params": {"command": text.replace("echo run >> runs; ", "")},
            },
        }
        process.stdin.write(json.dumps(message).encode() + b"\n")
        while b'"one"' not in await process.stdout.readline():
            pass
        process.stdin.close()
        await until(lambda: not processes(text.replace("echo run >> runs; ", "")))
        async with asyncio.timeout(LIMIT):
            assert await process.wait() == 0
        close_pipes(process)

    drive(main())

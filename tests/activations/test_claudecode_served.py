"""claudecode over the wires: by the names of the seed, only when it is named, for people only, each for oneself.

Here `claude` is `examples/stand_in_claude.py`, which wants to run one command.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from docs_page import ROOT
from driving import LIMIT, drive
from midcall import Request, connect
from operating import Server, accept, text_of
from peers import command, environment, stdio_peer

TARGET = "midcall.activations:hub"
NAMED = ("--with", "claudecode")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = tmp_path / "project"
    made.mkdir()
    monkeypatch.setenv("MIDCALL_CLAUDECODE_CLI", str(ROOT / "examples" / "stand_in_claude.py"))
    yield made


def session(project: Path) -> dict[str, str]:
    return {"name": "first", "working_dir": str(project)}


def kinds(events: list[Any]) -> list[str]:
    return [event["type"] for event in events]


TASK = {"session_name": "first", "query": "say hello"}


@pytest.mark.parametrize("separator", [".", "_"])
def test_over_raw_stdio_by_both_names(project: Path, separator: str) -> None:
    async def main() -> None:
        async with stdio_peer(TARGET, *NAMED, "--cwd", str(project), "--journal", "memory") as peer:
            made = await peer.result(
                "plexus_subscribe", {"method": f"claudecode{separator}create", "params": session(project)}
            )
            await peer.items(made)
            chat = await peer.result(
                "plexus_subscribe", {"method": f"claudecode{separator}chat", "params": TASK}
            )
            asked = await peer.item(chat, "request")
            assert "echo hello >> hello.txt" in asked["request_type"]["Select"]["message"]
            await peer.result("plexus_respond", [chat, asked["request_id"], "once"])
            told = [item["content"] for item in await peer.items(chat) if item["type"] == "data"]
            assert kinds(told) == ["start", "tool_use", "tool_result", "content", "complete"]
        assert (project / "hello.txt").read_text() == "hello\n"

    drive(main())


@pytest.mark.parametrize("flag", ["--mcp", "--mcp-only"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_over_mcp_on_stdio(project: Path, flag: str, era: Literal["legacy", "modern"]) -> None:
    server = command("serve", "--stdio", flag, *NAMED, "--cwd", str(project), "--journal", "memory")
    asked: list[Request] = []

    def answer(request: Request) -> str:
        asked.append(request)
        return "once"

    async def main() -> None:
        async with connect(server, answer=answer, era=era, inherit_env=True) as client:
            await client.call("claudecode.create", session(project))
            for name in ("claudecode.chat", "claudecode_chat"):
                result = await client.call(name, TASK)
                assert kinds(json.loads(result.text))[-1] == "complete"
        assert len(asked) == 2
        assert (project / "hello.txt").read_text() == "hello\nhello\n"

    drive(main())


def test_a_model_cannot_answer_in_the_place_of_its_person(project: Path) -> None:
    server = command("serve", "--stdio", "--mcp-only", *NAMED, "--cwd", str(project), "--journal", "memory")

    async def main() -> None:
        async with connect(server, era="legacy", inherit_env=True) as client:
            await client.call("claudecode.create", session(project))
            events = json.loads((await client.call("claudecode.chat", TASK)).text)
            (refused,) = [event for event in events if event["type"] == "tool_result"]
            assert "nobody can be asked here" in refused["output"]
        assert not (project / "hello.txt").exists()

    drive(main())


def test_of_two_people_none_sees_or_answers_for_the_other(project: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    ada, eve, bob = ("a" * 40, "e" * 40, "b" * 40)
    keys.write_text(f"ada={ada}:claudecode\neve={eve}:claudecode\nbob={bob}:other\n")
    keys.chmod(0o600)
    options = (*NAMED, "--cwd", str(project), "--auth-tokens", str(keys), "--log-level", "error")
    with Server(tmp_path, *options, target=TARGET) as server:
        server.call("claudecode.create", ada, **session(project))
        with pytest.raises(AssertionError, match="scope"):
            server.call("claudecode.create", bob, **session(project))
        assert text_of(server.call("claudecode.list", eve)) == '{"type":"sessions","sessions":[]}'
        assert "Session not found" in text_of(server.call("claudecode.chat", eve, **TASK))
        waiting = server.call("claudecode.chat", ada, **TASK)
        while not waiting.get("inputRequests"):
            waiting = server.call("claudecode.chat", ada, state=waiting, **TASK)
        ((name, _),) = waiting["inputRequests"].items()
        answers = {name: accept(choice="once")}
        with pytest.raises(AssertionError):  # there is no result
            server.call("claudecode.chat", eve, state=waiting, answers=answers, **TASK)
        assert not (project / "hello.txt").exists()
        result = server.call("claudecode.chat", ada, state=waiting, answers=answers, **TASK)
        while result.get("resultType") == "input_required":
            result = server.call("claudecode.chat", ada, state=result, **TASK)
        assert '"type":"complete"' in text_of(result)
        started = server.call("claudecode.chat_async", ada, **TASK)["structuredContent"]
        polled = {"stream_id": started["stream_id"], "wait": 5}
        while not (waiting := server.call("claudecode.poll", ada, **polled)).get("inputRequests"):
            assert waiting["structuredContent"]["status"] == "running"
        assert "isError" in server.call("claudecode.poll", eve, **polled)
        assert text_of(server.call("claudecode.streams", eve)) == '{"type":"streams","streams":[]}'
    assert (project / "hello.txt").read_text() == "hello\n"


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


def test_it_is_served_only_when_it_is_named_and_never_to_everybody(project: Path) -> None:
    everybody = ("--host", "0.0.0.0", "--no-auth", "--allow-public")
    told = refused(*NAMED, "--cwd", str(project), *everybody)
    assert "without authentication" in told
    assert "claudecode.chat" in told

    async def main() -> None:
        async with stdio_peer(TARGET, "--cwd", str(project), "--journal", "memory") as peer:
            there = await peer.result("plexus_schema", {})
            assert "claudecode" not in json.dumps(there)

    drive(main())

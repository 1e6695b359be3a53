"""Claude Code, a model or a moment that means no good: nothing runs unasked, nothing hangs, nothing is left."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from claude_app import RESULT, answer_of, asking, kinds, scripted, staged
from driving import LIMIT, drive
from midcall import Hub, MidcallError
from midcall.activations.claudecode import process, supervisor
from midcall.activations.claudecode import run as running
from midcall.activations.tree_store import TreeStore
from midcall.journal.choose import choose_journal
from midcall.journal.durable import DurableCalls

LONG = 2 * LIMIT


def test_a_permission_is_for_one_tool_use_though_a_model_uses_its_id_again(tmp_path: Path) -> None:
    """Ids of tool uses come from whoever serves the model; some of them count from the start in each reply."""
    code = """
tool = {"id": "t1", "name": "Bash", "input": {"command": "pay"}}
if not any(argument.startswith("--resume") for argument in sys.argv):
    heard()
    result(stop_reason="tool_deferred", deferred_tool_use=tool)
else:
    answers = []
    for command in ("pay", "ls"):
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": command}, "tool_use_id": "t1"}
        say({"type": "control_request", "request_id": "r", "request": request})
        answers.append(heard()["response"]["response"]["behavior"])
    open("answers", "w").write(json.dumps(answers))
    result()
"""

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + code)) as stage:
            await stage.chat("go", "once")
            assert json.loads((tmp_path / "work" / "answers").read_text()) == ["allow", "deny"]

    drive(run(), LONG)


def test_a_program_that_others_put_in_the_place_of_the_supervisor_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for temporary files is tidied up, and whoever has an account can make one of the same name."""
    temporary, theirs = tmp_path / "temporary", tmp_path / "theirs"
    temporary.mkdir()
    theirs.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (theirs / "claude").write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    (theirs / "claude").chmod(0o755)

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + "heard()\nresult()\n")) as stage:
            await stage.chat("go")
            (made,) = temporary.glob("midcall-claude-*")
            shutil.rmtree(made)
            made.symlink_to(theirs)
            assert kinds(await stage.chat("go")) == ["start", "complete"]
            assert not (tmp_path / "ran").exists()

    drive(run(), LONG)


def test_a_chat_that_cannot_start_leaves_its_session_and_its_place_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def run() -> None:
        script = scripted(RESULT + "heard()\nresult()\n")
        async with staged(tmp_path, script, processes=1) as stage:
            with monkeypatch.context() as patched, pytest.raises(MidcallError, match="No space left"):
                patched.setattr(process.os, "mkfifo", full)
                await stage.chat("go")
            assert kinds(await stage.chat("go")) == ["start", "complete"]

    drive(run(), LONG)


def test_a_supervisor_whose_server_is_gone_already_starts_nothing(tmp_path: Path) -> None:
    """The server was killed between starting it and its first look, so that it has another parent."""
    lifeline, program = tmp_path / "lifeline", tmp_path / "claude"
    os.mkfifo(lifeline)
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\nexec sleep 1000\n")
    program.chmod(0o700)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1, check=True)
    given = {
        supervisor.LIFELINE: str(lifeline),
        supervisor.PROGRAM: str(program),
        supervisor.SERVER: gone.stdout.decode().strip(),
    }
    command = [sys.executable, "-I", "-S", supervisor.__file__]
    ended = subprocess.run(command, env={**os.environ, **given}, timeout=LIMIT, check=False)
    assert ended.returncode == 143
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "code", ["", "os.close(0)\n", "os.close(1)\n"], ids=["freezes", "hears nothing", "says nothing"]
)
def test_a_program_that_says_nothing_any_more_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(running, "FROZEN", 0.6)

    async def run() -> None:
        async with staged(tmp_path, scripted(f"heard()\n{code}time.sleep(1000)\n")) as stage:
            events = await stage.chat("go")
            assert events[-1].message == "Claude Code has said nothing for 0.01 minutes"

    drive(run(), LONG)


def test_halves_of_characters_and_an_infinite_cost_do_not_end_a_turn(tmp_path: Path) -> None:
    code = """
heard()
blocks = [{"type": "tool_use", "id": "t\\ud800", "name": "Read", "input": {"\\ud800": 1}}]
about = {"parent_tool_use_id": "p\\ud800", "session_id": "s"}
say({"type": "assistant", "message": {"id": "m", "role": "assistant", "model": "m", "content": blocks}, **about})
result(total_cost_usd=1e999)
"""

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + code)) as stage:
            events = await stage.chat("go")
            assert kinds(events) == ["start", "tool_use", "complete"]
            assert (events[1].tool_use_id, events[1].parent_tool_use_id, events[1].input) == (
                "t?",
                "p?",
                {"?": 1},
            )
            (session,) = (await stage.hub.call("claudecode.list", {})).sessions
            assert session.cost_usd == 1e9

    drive(run(), LONG)


def test_all_that_may_be_kept_for_a_session_can_be_kept_at_once(tmp_path: Path) -> None:
    rules = [{"toolName": "Bash", "ruleContent": f"{number} " + '"' * 1000} for number in range(40)]
    folders = [f"/{number}" + "x" * 1000 for number in range(40)]
    suggestions = [
        {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"},
        {"type": "addDirectories", "directories": folders, "destination": "session"},
    ]
    script = asking("Bash", {"command": "ls"}, permission_suggestions=suggestions)

    async def run() -> None:
        async with staged(tmp_path, script) as stage:
            about = {"name": "full", "working_dir": str(tmp_path / "work")}
            with pytest.raises(MidcallError, match="system prompt"):
                await stage.hub.call("claudecode.create", {**about, "system_prompt": "\x01" * 30_000})
            await stage.hub.call("claudecode.create", {**about, "system_prompt": "x" * 32_000})
            assert kinds(await stage.chat("go", "always", "always", session="full"))[-1] == "complete"
            assert answer_of(stage)[0]["behavior"] == "allow"
            kept = (await stage.hub.call("claudecode.get", {"session_name": "full"})).session.permitted
            assert kept[-1] == folders[-1]

    drive(run(), LONG)


def test_a_chat_that_is_cancelled_as_it_takes_its_session_leaves_it_to_other_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, later, add = asyncio.Event(), asyncio.Event(), TreeStore.add

    async def slowly(self: TreeStore, *args: Any, **more: Any) -> Any:
        done = await add(self, *args, **more)
        written.set()
        await later.wait()
        return done

    async def chat(hub: Hub) -> Any:
        return await hub.call("claudecode.chat", {"session_name": "shared", "query": "go"})

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + "heard()\nresult()\n")) as stage:
            here, there = stage.make_hub(), stage.make_hub()
            for hub in (here, there):
                hub.durable = DurableCalls(hub, choose_journal(str(tmp_path / "journal.db"), "plexus"))
            await here.call("claudecode.create", {"name": "shared", "working_dir": str(tmp_path / "work")})
            monkeypatch.setattr(TreeStore, "add", slowly)
            chatting = asyncio.ensure_future(chat(here))
            await written.wait()
            chatting.cancel()
            later.set()
            with contextlib.suppress(asyncio.CancelledError):
                await chatting
            assert kinds(await chat(there)) == ["start", "complete"]
            for hub in (here, there):
                await hub.close()

    drive(run(), LONG)


def test_a_session_that_is_being_deleted_is_not_chatted_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + "heard()\nresult()\n")) as stage:
            unname = TreeStore.unname

            async def meanwhile(*args: Any) -> None:
                with pytest.raises(MidcallError, match="already"):
                    await stage.chat("go")
                await unname(*args)

            monkeypatch.setattr(TreeStore, "unname", meanwhile)
            await stage.hub.call("claudecode.delete", {"session_name": "first"})
            await stage.create()

    drive(run(), LONG)

"""Claude Code as it was recorded, and as it never is: what midcall makes of what comes, without the program."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from claude_app import (
    FOLDER,
    MARK,
    MODEL,
    PROGRAM,
    RESULT,
    Stage,
    answer_of,
    asking,
    kinds,
    marked,
    recorded,
    scripted,
    staged,
    until_nobody_is_left,
)
from driving import LIMIT, drive
from midcall import MidcallError, Request
from midcall.activations.claudecode import run as running
from midcall.activations.claudecode.run import ALONE
from midcall.items import Data
from midcall.testing import run as call
from operating import Server, accept, text_of

LONG = 2 * LIMIT


def test_a_recorded_greeting_is_told_as_it_was_said(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path, recorded(tmp_path, "greeting")) as stage:
            events = await stage.chat("greet me")
            assert kinds(events) == ["start", "thinking", "content", "complete"]
            assert events[2].text == "Hello.\nWhat is it?"
            params = {"session_name": "first"}
            context = await stage.hub.call("claudecode.render_context", params)
            assert (context.messages[0].role, context.messages[0].content) == ("user", "greet me")
            tree = await stage.hub.call("claudecode.get_tree", params)
            drawn = (await stage.hub.call("arbor.tree_render", {"tree_id": tree.tree_id})).render
            assert "user: greet me" in drawn
            assert "assistant: Hello. What is it?" in drawn

    drive(run(), LONG)


def test_a_recorded_permission_takes_three_processes_and_none_of_them_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path, recorded(tmp_path, "permission")) as stage:
            alive: list[int] = []

            def answer(request: Request) -> str:
                alive.append(len(marked(stage.mark)))
                return "once"

            params = {"session_name": "first", "query": "write one"}
            outcome = await call(stage.hub, "claudecode.chat", params, answers=answer)
            assert alive == [0]
            assert stage.processes == 3
            assert '"permissionDecision": "defer"' in json.dumps(stage.told(0)["said"])
            assert not any("behavior" in json.dumps(said) for said in stage.told(1)["said"])
            given = stage.told(2)["said"][-1]["response"]["response"]
            assert given == {"behavior": "allow", "updatedInput": {"command": "echo one >> note.txt"}}
            settings = [json.loads(_option(stage.told(n), "--settings"))["permissions"] for n in range(3)]
            assert [one["ask"] for one in settings] == [[], [], ["Bash"]]
            assert kinds(outcome.contents)[-1] == "complete"

    drive(run(), LONG)


def _option(told: Any, name: str) -> str:
    arguments = told["arguments"]
    return str(arguments[arguments.index(name) + 1])


def test_recorded_questions_are_a_form_and_its_answers_go_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path, recorded(tmp_path, "questions")) as stage:
            await stage.chat("ask me", {"answer_1": "Blue", "answer_2": ["L"], "other_2": "XL"})
            given = stage.told(2)["said"][-1]["response"]["response"]["updatedInput"]
            assert given["answers"] == {"Which colour?": "Blue", "Which sizes?": "L, XL"}

    drive(run(), LONG)


def test_a_recorded_call_of_the_hub_is_made_by_the_chat_in_its_callers_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))

    async def run() -> None:
        async with staged(tmp_path, recorded(tmp_path, "hub"), hub_tools=["*"]) as stage:
            events = await stage.chat("use the hub", "once", "Grace")
            assert [type(one).__name__ for one in stage.asked] == ["Select", "Prompt"]
            assert kinds(events)[-1] == "complete"
            assert (tmp_path / "greeted").read_text() == "Grace by None\n"
            told = json.dumps([stage.told(number)["said"] for number in range(4)])
            assert "Good morning, Grace!" in told
            offered = json.dumps(stage.told(0)["said"])
            assert "arbor_tree_list" in offered
            assert "greeter_greet_all" not in offered  # it needs a scope
            assert "claudecode_" not in offered

    drive(run(), LONG)


def test_a_chat_that_comes_while_a_permission_waits_goes_on_without_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with staged(tmp_path, recorded(tmp_path, "gone_on")) as stage:
            waiting, later = asyncio.Event(), asyncio.Event()

            async def answer(request: Request) -> str:
                waiting.set()
                await later.wait()
                return "once"

            async def first() -> list[Any]:
                params = {"session_name": "first", "query": "write one"}
                return [item async for item in stage.hub.call("claudecode.chat", params, answer=answer)]

            chatting = asyncio.ensure_future(first())
            await waiting.wait()
            info = (await stage.hub.call("claudecode.get", {"session_name": "first"})).session
            assert info.waits_for == "Bash"
            events = await stage.chat("greet me")
            told = json.dumps(stage.told(2)["said"])
            assert told.index("gone on with something else") < told.index("greet me")
            assert events[-2].text == "Hello.\nWhat is it?"
            later.set()
            items = await chatting
            assert "has gone on meanwhile" in items[-2].message
            assert stage.processes == 3

    drive(run(), LONG)


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("#!/bin/sh\necho 'out of order' >&2\nexit 3\n", "exit code 3"),
        (scripted('heard()\nprint(\'{"type": "nonsense"\', flush=True)\n'), "ended without a word|JSON"),
        (scripted("heard()\nsys.exit(0)\n"), "ended without a word"),
        (scripted("heard()\nos.kill(os.getpid(), 9)\n"), "exit code 137"),
        (
            scripted(RESULT + "heard()\nresult(is_error=True, result='API Error: 500 no')\n"),
            "API Error: 500 no",
        ),
    ],
    ids=["does not start", "talks nonsense", "ends at once", "is killed", "fails"],
)
def test_a_program_that_fails_is_an_error_of_the_turn(tmp_path: Path, script: str, failure: str) -> None:
    async def run() -> None:
        async with staged(tmp_path, script) as stage:
            events = await stage.chat("greet me")
            assert kinds(events)[-1] == "error"
            assert any(part in events[-1].message for part in failure.split("|")), events[-1].message
            info = (await stage.hub.call("claudecode.get", {"session_name": "first"})).session
            assert info.waits_for is None

    drive(run(), LONG)


def test_what_a_program_says_is_told_in_bounds_and_without_what_json_cannot_carry(tmp_path: Path) -> None:
    code = """
heard()
blocks = [{"type": "tool_use", "id": "t1", "name": "Read" * 1000, "input": {"file_path": "x" * 100_000, "n": list(range(1000))}}]
say({"type": "assistant", "message": {"id": "m", "role": "assistant", "model": "m", "content": blocks}, "parent_tool_use_id": None, "session_id": "s"})
back = [{"type": "tool_result", "tool_use_id": "t1", "content": "\\ud800" + "y" * 1_000_000, "is_error": False}]
say({"type": "user", "message": {"role": "user", "content": back}, "parent_tool_use_id": None, "session_id": "s"})
say({"type": "unheard_of", "x": 1})
result()
"""

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + code)) as stage:
            events = await stage.chat("greet me")
            assert kinds(events) == ["start", "tool_use", "tool_result", "complete"]
            assert len(events[1].tool_name) < 300
            assert "characters more" in events[1].input["file_path"]
            assert len(events[1].input["n"]) == 101
            assert events[2].output.startswith("?yyy")
            assert len(events[2].output) < 20_000
            assert events[3].usage.cost_usd == 0.5

    drive(run(), LONG)


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({"input": {"command": "rm -rf /"}}, {"behavior": "allow", "updatedInput": {"command": "ls"}}),
        ({"tool_name": "Write"}, {"behavior": "deny", "message": ALONE}),
        ({"tool_use_id": "t2"}, {"behavior": "deny", "message": ALONE}),
    ],
    ids=["another input", "another tool", "another use"],
)
def test_a_permission_is_for_what_was_shown(tmp_path: Path, changed: Any, answer: Any) -> None:
    """Between the question and the answer, Claude Code has come to want something else."""

    async def run() -> None:
        async with staged(tmp_path, asking("Bash", {"command": "ls"}, changed)) as stage:
            await stage.chat("go", "once")
            assert answer_of(stage)[0] == answer

    drive(run(), LONG)


REFUSED = {"behavior": "deny", "message": "Not run: the person said no."}


@pytest.mark.parametrize(
    ("answers", "given"),
    [
        (["once"], {"behavior": "allow", "updatedInput": {"command": "ls", "n": 5, "deep": [1]}}),
        (
            ["edit", {"command": "pwd", "n": 6, "run_in_background": True}],
            {"behavior": "allow", "updatedInput": {"command": "pwd", "n": 6, "deep": [1]}},
        ),
        (["always", "once"], {"behavior": "allow", "updatedInput": {"command": "ls", "n": 5, "deep": [1]}}),
        (["always", "no"], REFUSED),
        (["no"], REFUSED),
        (["Declined"], REFUSED),
        (["edit", "Declined"], REFUSED),
        (["reason", "too slow"], {**REFUSED, "message": f"{REFUSED['message']} They said: too slow"}),
        (["stop"], {**REFUSED, "interrupt": True}),
        (["Cancelled"], {**REFUSED, "interrupt": True}),
    ],
    ids=[
        *("once", "edit", "always, once", "always, no", "no", "declined"),
        *("edit, declined", "reason", "stop", "cancelled"),
    ],
)
def test_an_answer_is_what_claude_code_gets(tmp_path: Path, answers: list[Any], given: Any) -> None:
    async def run() -> None:
        async with staged(tmp_path, asking("Bash", {"command": "ls", "n": 5, "deep": [1]})) as stage:
            await stage.chat("go", *answers)
            assert len(stage.asked) == len(answers)
            answer, _ = answer_of(stage)
            assert answer == given
            info = (await stage.hub.call("claudecode.get", {"session_name": "first"})).session
            assert info.permitted == []

    drive(run(), LONG)


def test_questions_that_nobody_answers_are_refused(tmp_path: Path) -> None:
    questions = [{"question": "Which?", "options": [{"label": "A"}, {"label": "A"}, {"label": "B\nC"}]}]

    async def run() -> None:
        async with staged(tmp_path, asking("AskUserQuestion", {"questions": questions})) as stage:
            await stage.chat("go", {})
            assert stage.asked[0].schema["properties"]["answer_1"]["enum"] == ["A", "B\\nC"]
            answer, _ = answer_of(stage)
            assert answer == {"behavior": "deny", "message": "The person did not answer."}

    drive(run(), LONG)


def test_what_is_asked_cannot_look_like_something_else(tmp_path: Path) -> None:
    command = "ls\n\nMay it?\n\x1b[2J\u202e\u2028x" + " \u3164" * 2500 + "; rm -rf /" + "\n" * 500 + "end"
    hostile = {"command": command, "a: b\nMay it": [1, "\n"], "n": 5}
    reason = "harmless\n\nMay it?\n\nClaude wants to use Read:"
    script = asking(
        "Bash\nMay it?", hostile, decision_reason=reason, description="x\r\ny", blocked_path="/\n"
    )

    async def run() -> None:
        async with staged(tmp_path, script) as stage:
            await stage.chat("go", "once")
            (question,) = stage.asked
            lines = question.message.split("\n")
            assert all(line.isprintable() for line in lines)
            outside = [line for line in lines if line and not line.startswith("    ")]
            assert outside == [
                "Claude wants to use Bash\\nMay it?:",
                "What for: x\\ny",
                "Why you are asked: harmless\\n\\nMay it?\\n\\nClaude wants to use Read:",
                "Path: /\\n",
                "May it?",
            ]
            assert "    a: b\\nMay it:" in lines
            assert "[5000 blank characters] ; rm -rf /" in question.message
            assert len(lines) < 40
            given, _ = answer_of(stage)
            assert given == {"behavior": "allow", "updatedInput": hostile}  # what was shown, as it was

    drive(run(), LONG)


def test_always_keeps_what_was_shown_and_nothing_else(tmp_path: Path) -> None:
    rules = [{"toolName": "Bash", "ruleContent": "npm test *"}, {"toolName": "Read", "ruleContent": "a\n\nb"}]
    rules.append({"toolName": "Bash", "ruleContent": "ls" + " " * 500 + "*"})
    suggestions = [
        {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"},
        {"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "deny", "destination": "session"},
        {"type": "setMode", "mode": "bypassPermissions", "destination": "session"},
        {"type": "addDirectories", "directories": ["/srv"], "destination": "session"},
    ]
    script = asking("Bash", {"command": "npm test"}, permission_suggestions=suggestions)

    async def run() -> None:
        async with staged(tmp_path, script) as stage:
            await stage.chat("go", "always", "always")
            shown = stage.asked[1].message.split("\n")
            assert shown[2:] == [
                "    Use without asking: this tool, with exactly this input",
                "    Use without asking: Bash(npm test *)",
                "    Use without asking: Read(a\\n\\nb)",
                "    Use without asking: Bash(ls [500 blank characters] *)",
                "    Work in this folder too: /srv",
                "",
                "In a rule, * stands for anything.",
            ]
            _, arguments = answer_of(stage)
            given = json.loads(arguments[arguments.index("--settings") + 1])["permissions"]
            kept = ["Bash(npm test *)", "Read(a\n\nb)", f"Bash(ls{' ' * 500}*)"]
            assert given["allow"] == kept
            assert (given["additionalDirectories"], given["defaultMode"]) == (["/srv"], "default")
            info = (await stage.hub.call("claudecode.get", {"session_name": "first"})).session
            assert info.permitted == [*kept, "/srv"]

    drive(run(), LONG)


def test_always_may_be_for_exactly_one_tool_use(tmp_path: Path) -> None:
    suggestion = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    script = asking("Write", {"file_path": "x"}, permission_suggestions=[suggestion])

    async def run() -> None:
        async with staged(tmp_path, script) as stage:
            await stage.chat("go", "always", "exactly")
            await stage.chat("go")  # by somebody who cannot be asked
            answer, arguments = answer_of(stage)
            assert answer["behavior"] == "allow"
            given = json.loads(arguments[arguments.index("--settings") + 1])["permissions"]
            assert (given["defaultMode"], given["allow"]) == ("default", [])

    drive(run(), LONG)


@pytest.mark.parametrize(
    ("tool", "input", "why"),
    [
        ("Bash", {"command": "x;" * 20_000}, "longer than"),
        ("Write", {"file_path": "a", "content": "x" * 1_000_000}, "longer than"),
        ("Write", {"file_path": "a", "content": "\x1b" * 20_000}, "longer than"),
        ("Bash", {"command": "echo \ud83d"}, "halves of characters"),
        ("AskUserQuestion", {"questions": [{"question": "q", "header": "h" * 300_000}]}, "longer than"),
    ],
    ids=["long", "very long", "long when it is shown", "half a character", "a long question"],
)
def test_an_input_that_nobody_could_read_is_refused(tmp_path: Path, tool: str, input: Any, why: str) -> None:
    async def run() -> None:
        async with staged(tmp_path, asking(tool, input)) as stage:
            events = await stage.chat("go", "once")
            assert kinds(events)[-1] == "complete"
            assert stage.asked == []
            given, _ = answer_of(stage)
            assert given["behavior"] == "deny"
            assert why in given["message"]

    drive(run(), LONG)


@pytest.mark.parametrize(
    "questions", [5, "Which?", {"question": "Which?"}, [{"question": "q", "options": []}] * 100, [[]]]
)
def test_questions_that_are_none_are_asked_about_like_any_tool(tmp_path: Path, questions: Any) -> None:
    async def run() -> None:
        async with staged(tmp_path, asking("AskUserQuestion", {"questions": questions})) as stage:
            await stage.chat("go", "no")
            assert "Claude wants to use AskUserQuestion" in stage.asked[0].message
            assert answer_of(stage)[0] == REFUSED

    drive(run(), LONG)


def test_it_is_started_again_when_its_folder_was_tidied_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    async def run() -> None:
        async with staged(tmp_path, asking("Bash", {"command": "ls"})) as stage:
            await stage.chat("go", "no")
            (made,) = (tmp_path / "temporary").glob("midcall-claude-*")
            shutil.rmtree(made)
            assert kinds(await stage.chat("go", "no"))[-1] == "complete"

    drive(run(), LONG)


def test_nothing_that_a_caller_says_is_an_option_of_claude_code(tmp_path: Path) -> None:
    option = "--dangerously-skip-permissions"

    async def run() -> None:
        async with staged(tmp_path, recorded(tmp_path, "greeting")) as stage:
            about = {"name": "x", "working_dir": str(tmp_path / "work")}
            for model in (option, "-p", "a b", "a\n", "", "a\0", "\u202e"):
                with pytest.raises(MidcallError):
                    await stage.hub.call("claudecode.create", {**about, "model": model})
            with pytest.raises(MidcallError, match="NUL"):
                await stage.hub.call("claudecode.create", {**about, "system_prompt": "a\0b"})
            sound = {**about, "name": option, "model": "sonnet[1m]", "system_prompt": option}
            await stage.hub.call("claudecode.create", sound)
            events = await stage.chat(option, session=option)
            assert kinds(events)[-1] == "complete"
            assert option not in stage.told(0)["arguments"]
            assert f"\n{option}" in stage.told(0)["arguments"]

    drive(run(), LONG)


def test_a_permission_that_nobody_put_off_is_refused(tmp_path: Path) -> None:
    code = """
heard()
say({"type": "control_request", "request_id": "r", "request": {"subtype": "can_use_tool", "tool_name": "Glob", "input": {}, "tool_use_id": "other"}})
answer = heard()["response"]["response"]
assert answer["behavior"] == "deny", answer
result(result=answer["message"])
"""

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + code)) as stage:
            assert kinds(await stage.chat("greet me", "once")) == ["start", "complete"]
            assert stage.asked == []

    drive(run(), LONG)


def test_a_resumed_session_that_forgets_the_tool_use_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SILENCE", 0.5)
    code = """
if "--resume" in sys.argv or os.path.exists("once"):
    time.sleep(1000)
open("once", "w").close()
heard()
tool = {"id": "t1", "name": "Bash", "input": {"command": "x"}}
result(stop_reason="tool_deferred", deferred_tool_use=tool)
"""

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + code)) as stage:
            events = await stage.chat("greet me", "once")
            assert "did not take up the tool use" in events[-1].message

    drive(run(), LONG)


def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    code = """
import signal, subprocess
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
subprocess.Popen(["sh", "-c", "setsid sleep 1000 & exit"]).wait()
heard()
result()
"""

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + code)) as stage:
            assert kinds(await stage.chat("greet me")) == ["start", "complete"]
            assert marked(stage.mark) == []

    drive(run(), LONG)


def test_claude_code_gets_no_secrets_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "secret-1")
    monkeypatch.setenv("MIDCALL_OTHER", "secret-2")
    monkeypatch.setenv("ANTHROPIC_MODEL", "known")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-3")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "for the models")
    monkeypatch.setenv("CLAUDE_CODE_USE_VERTEX", "1")
    code = """
heard()
import pathlib
pathlib.Path("seen").write_text(json.dumps(dict(os.environ)))
result()
"""

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + code)) as stage:
            await stage.chat("greet me")
            seen = json.loads((tmp_path / "work" / "seen").read_text())
            assert "secret" not in json.dumps(seen)
            assert not any(name.startswith("MIDCALL") for name in seen)
            assert seen["ANTHROPIC_MODEL"] == "known"
            assert seen["GOOGLE_APPLICATION_CREDENTIALS"] == "for the models"
            assert seen[MARK] == stage.mark

    drive(run(), LONG)


def test_so_many_run_at_once_and_others_wait(tmp_path: Path) -> None:
    code = """
heard()
here = f"running-{os.getpid()}"
open(here, "w").close()
import glob
seen = len(glob.glob("running-*"))
deadline = time.time() + 1
while time.time() < deadline:
    seen = max(seen, len(glob.glob("running-*")))
os.unlink(here)
result(result=str(seen))
open("most", "a").write(f"{seen}\\n")
"""

    async def run() -> None:
        stage = Stage(tmp_path, scripted(RESULT + code))
        hub = stage.make_hub(processes=2)
        for name in "abcd":
            params = {"name": name, "working_dir": str(tmp_path / "work")}
            await hub.call("claudecode.create", params)
        calls = [hub.call("claudecode.chat", {"session_name": name, "query": "x"}) for name in "abcd"]
        ended = await asyncio.gather(*(_last(one) for one in calls))
        assert kinds(ended) == ["complete"] * 4
        assert max(int(line) for line in (tmp_path / "work" / "most").read_text().split()) <= 2
        await until_nobody_is_left(stage.mark)

    drive(run(), LONG)


def test_of_several_chats_at_once_in_a_session_one_runs(tmp_path: Path) -> None:
    code = """
heard()
with open("running", "x"):
    time.sleep(0.5)
os.unlink("running")
result()
"""

    async def run() -> None:
        async with staged(tmp_path, scripted(RESULT + code)) as stage:

            async def chat() -> str:
                try:
                    return kinds(await stage.chat("go"))[-1]
                except MidcallError as error:
                    return error.code

            for _ in range(2):
                ended = await asyncio.gather(*(chat() for _ in range(5)))
                assert ended.count("complete") == 1
                assert set(ended) == {"complete", "session_busy"}

    drive(run(), LONG)


async def _last(call: Any) -> Any:
    return [item.content async for item in call if isinstance(item, Data)][-1]


def test_a_supervisor_that_is_killed_takes_claude_code_with_it(tmp_path: Path) -> None:
    code = "heard()\nopen('up', 'w').close()\ntime.sleep(1000)\n"

    async def run() -> None:
        async with staged(tmp_path, scripted(code)) as stage:
            chatting = asyncio.ensure_future(stage.chat("greet me"))
            while not (tmp_path / "work" / "up").exists():
                await asyncio.sleep(0.02)
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        line = (entry / "cmdline").read_bytes()
                        ours = stage.mark.encode() in (entry / "environ").read_bytes()
                    except OSError:
                        continue
                    if ours and b"supervisor.py" in line:
                        os.kill(int(entry.name), signal.SIGKILL)
            assert kinds(await chatting)[-1] == "error"

    drive(run(), LONG)


def test_a_program_that_was_cut_off_by_kill_9_is_not_run_again_before_somebody_says_so(
    tmp_path: Path,
) -> None:
    hanging = asking("Bash", {"command": "x"}).replace(
        "    result()\n", "    if answer['behavior'] == 'allow': time.sleep(1000)\n    result()\n"
    )
    stage = Stage(tmp_path, hanging)
    answered = tmp_path / "work" / "answer"
    names = {FOLDER: tmp_path, MODEL: "http://127.0.0.1:9", MARK: stage.mark, PROGRAM: stage.program}
    env = {name: str(value) for name, value in names.items()}
    task = {"session_name": "first", "query": "go"}

    def chat(state: Any = None, choice: str | None = None) -> Any:
        """Go on until something is asked, or it has ended; gives the result."""
        answers = {name: accept(choice=choice) for name in (state or {}).get("inputRequests", ())}
        result = server.call("claudecode.chat", state=state, answers=answers, **task)
        while result.get("resultType") == "input_required" and not result.get("inputRequests"):
            result = server.call("claudecode.chat", state=result, **task)
        return result

    def question(result: Any) -> str:
        ((_, request),) = result["inputRequests"].items()
        return str(request["params"]["message"])

    with Server(tmp_path, "--log-level", "error", target="claude_app:hub", **env) as server:
        server.call("claudecode.create", name="first", working_dir=str(tmp_path / "work"))
        waiting = chat()
        assert "command: x" in question(waiting)
        server.stop()  # which is no answer
        server.start()
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(chat, waiting, "once")
            end = time.monotonic() + LIMIT
            while not answered.exists() and time.monotonic() < end:
                time.sleep(0.02)
            server.kill()
            assert isinstance(lost.exception(), OSError | HTTPException)
        answered.unlink()
        server.start()
        waiting = chat(waiting, "once")
        assert "The server stopped while Claude worked" in question(waiting)
        assert not answered.exists()
        waiting = chat(waiting, "go_on")
        assert "it may have run already" in question(waiting)
        assert '"type":"complete"' in text_of(chat(waiting, "no"))
        assert json.loads(answered.read_text())[0]["behavior"] == "deny"
    assert marked(stage.mark) == []

"""A hub with Claude Code, `claude_app:hub`, and what its tests share: a scripted model, a `claude` that is a script.

`CLAUDE_TEST_MODEL` is the address of the model, `CLAUDE_TEST_FOLDER` a folder with `home` and `work` in it, and
`CLAUDE_TEST_MARK` a word in the environment of every process that is started here.
"""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import recorded_claude
from driving import LIMIT
from loopback_model import LoopbackModel, Say, Script, Think, Use
from midcall import Ask, CallerName, Hub, Request, method
from midcall.activations.arbor import Arbor
from midcall.activations.claudecode import ClaudeCode

PLACES = "note.txt"
MODEL, FOLDER, MARK, PROGRAM = (f"CLAUDE_TEST_{name}" for name in ("MODEL", "FOLDER", "MARK", "PROGRAM"))


def write(line: str, id: str = "") -> Use:
    """Claude wants to add a line to a file, which needs a permission."""
    return Use("Bash", {"command": f"echo {line} >> {PLACES}"}, id)


QUESTIONS = [
    {
        "question": "Which colour?",
        "header": "Colour",
        "multiSelect": False,
        "options": [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}],
    },
    {
        "question": "Which sizes?",
        "header": "Sizes",
        "multiSelect": True,
        "options": [{"label": "S", "description": "small"}, {"label": "L", "description": "large"}],
    },
    {
        "question": "Which name?",
        "header": "Name",
        "multiSelect": False,
        "options": [{"label": "Ada", "description": "a"}, {"label": "Bob", "description": "b"}],
    },
]

SCRIPT: Script = {
    "greet me": [[Think("Somebody is there."), Say("Hello.\nWhat is it?")]],
    "look around": [[Use("Bash", {"command": "ls"})], [Say("I have looked.")]],
    "take a nap": [[Use("Bash", {"command": "sleep 12"})], [Say("I have slept.")]],
    "write one": [[Say("I write."), write("one")], [Say("It is written.")]],
    "write two": [[write("two")], [Say("It is written, too.")]],
    "write by one id": [[write("one", "t")], [write("two", "t")], [Say("It is written.")]],
    "write twice": [[write("first"), write("second")], [Say("Not all was written.")]],
    "delegate it": [
        [Use("Agent", {"description": "help", "prompt": "sub task", "subagent_type": "general-purpose"})],
        [Say("It was delegated.")],
    ],
    "sub task": [[write("sub")], [Say("I could not.")]],
    "ask me": [[Use("AskUserQuestion", {"questions": QUESTIONS})], [Say("I know now.")]],
    "run long": [
        [Use("Bash", {"command": f"echo begun >> {PLACES}; sleep 300; echo done >> {PLACES}"})],
        [Say("It took long.")],
    ],
    "use the hub": [[Use("greeter_greet", {"greeting": "Good morning"})], [Say("Greeted.")]],
    "read both": [
        [Use("Read", {"file_path": "/etc/hostname"})],
        [Use("Read", {"file_path": "here.txt"})],
        [Say("I have read both.")],
    ],
    "read elsewhere": [[Use("Read", {"file_path": "/etc/hostname"})], [Say("I have read it.")]],
}


class Greeter:
    """Greet people."""

    @method
    async def greet(self, greeting: str, ask: Ask, caller: CallerName) -> str:
        """Greet somebody."""
        name = await ask.prompt("Whom?")
        with (Path(os.environ[FOLDER]) / "greeted").open("a") as greeted:
            greeted.write(f"{name} by {caller}\n")
        return f"{greeting}, {name}!"

    @method(scopes=["greeter:all"])
    async def greet_all(self) -> str:
        """Greet everybody."""
        return "Good morning, all!"


def real_program() -> str | None:
    """The real Claude Code: the one that `CLAUDE_TEST_PROGRAM` names, of the SDK's wheel, or of `make compliance`.

    It has 200 MB, so nothing fetches it for the tests alone: of the SDK, only the source is installed for them.
    """
    root = Path(__file__).parents[2]
    bundled = Path(find_spec("claude_agent_sdk").origin).parent / "_bundled" / "claude"
    fetched = root.glob(".cache/compliance/claude-code-*/node_modules/.bin/claude")
    places = [os.environ.get(PROGRAM, ""), bundled, *sorted(fetched)]
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)


NEEDS_PROGRAM = pytest.mark.skipif(
    real_program() is None,
    reason="Claude Code is not here: `make compliance` fetches it, or set CLAUDE_TEST_PROGRAM",
)


def environment(model: LoopbackModel, folder: Path) -> dict[str, str]:
    """What a server of this hub is started with."""
    for name in ("home", "work"):
        (folder / name).mkdir(exist_ok=True)
    program = real_program() or ""
    return {MODEL: model.url, FOLDER: str(folder), MARK: f"CLAUDE-{uuid.uuid4()}", PROGRAM: program}


def make_hub(env: Mapping[str, str], name: str = "plexus", **more: Any) -> Hub:
    folder = Path(env[FOLDER])
    given = {
        "ANTHROPIC_BASE_URL": env[MODEL],
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": str(folder / "home"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ENABLE_TOOL_SEARCH": "false",
        MARK: env[MARK],
    }
    claude = ClaudeCode(folders=[folder / "work"], cli_path=env.get(PROGRAM), env=given, **more)
    return Hub(name).register(claude).register(Arbor()).register(Greeter())


def marked(mark: str) -> list[str]:
    """The processes that have the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
            except OSError:
                continue
    return found


async def until_nobody_is_left(mark: str) -> None:
    async with asyncio.timeout(LIMIT):
        while marked(mark):
            await asyncio.sleep(0.02)


class Stage:
    """A hub whose `claude` is a script."""

    def __init__(self, folder: Path, script: str, **more: Any) -> None:
        self.folder = folder
        self.played = folder / "played"
        for name in ("home", "work", "played"):
            (folder / name).mkdir()
        self.program = folder / "claude"
        self.program.write_text(script)
        self.program.chmod(0o700)
        self.mark = f"CLAUDE-{folder.name}-{os.getpid()}"
        self.hub = self.make_hub(**more)
        self.asked: list[Any] = []

    def make_hub(self, **more: Any) -> Hub:
        names = {FOLDER: self.folder, MODEL: "http://127.0.0.1:9", MARK: self.mark, PROGRAM: self.program}
        return make_hub({name: str(value) for name, value in names.items()}, **more)

    def told(self, number: int) -> Any:
        """What the process of this number was told: its arguments, and what was said to it."""
        return json.loads((self.played / f"{number}.json").read_text())

    @property
    def processes(self) -> int:
        return len(list(self.played.iterdir()))

    async def create(self) -> Any:
        params = {"name": "first", "working_dir": str(self.folder / "work")}
        return (await self.hub.call("claudecode.create", params)).session

    async def chat(self, query: str, *answers: Any, session: str = "first") -> list[Any]:
        left = list(answers)

        def answer(request: Request) -> Any:
            self.asked.append(request.request_type)
            return left.pop(0)

        params = {"session_name": session, "query": query}
        call = self.hub.call("claudecode.chat", params, answer=answer if answers else None)
        return list(await call)


@asynccontextmanager
async def staged(folder: Path, script: str, **more: Any) -> AsyncIterator[Stage]:
    stage = Stage(folder, script, **more)
    await stage.create()
    yield stage
    await until_nobody_is_left(stage.mark)


def recorded(folder: Path, name: str) -> str:
    """A program that plays a recording."""
    recording = recorded_claude.FOLDER / f"{name}.json"
    return (
        f"#!/bin/sh\nexport CLAUDE_RECORDING='{recording}' CLAUDE_PLAYED='{folder / 'played'}'\n"
        f"exec '{sys.executable}' '{recorded_claude.__file__}' \"$@\"\n"
    )


def scripted(code: str) -> str:
    """A program that answers the first request, and then does something."""
    return f"""#!{sys.executable}
import json, os, sys, time
def say(message): print(json.dumps(message), flush=True)
def heard():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit(0)
first = heard()
say({{"type": "control_response", "response": {{"subtype": "success", "request_id": first["request_id"], "response": {{"hook_on_failure_supported": True}}}}}})
{code}
"""


RESULT = """
def result(**more):
    say({"type": "result", "subtype": "success", "is_error": False, "duration_ms": 1, "duration_api_ms": 1,
         "num_turns": 1, "session_id": "s", "total_cost_usd": 0.5, "result": "", "usage": {}, **more})
"""


def kinds(events: list[Any]) -> list[str]:
    return [event.__struct_config__.tag for event in events]


def asking(tool: str, input: Any, later: Any = None, **more: Any) -> str:
    """A program that puts a tool off, asks for a permission when it is resumed, and writes down what it got.

    `later` is what is different when it asks once more."""
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": input, "tool_use_id": "t1", **more}
    deferred = {"id": "t1", "name": tool, "input": input}
    return scripted(
        RESULT
        + f"""
if not any(argument.startswith("--resume") for argument in sys.argv):
    heard()
    result(stop_reason="tool_deferred", deferred_tool_use=json.loads({json.dumps(deferred)!r}))
else:
    request = json.loads({json.dumps(request)!r})
    if os.path.exists("asked"):
        request |= json.loads({json.dumps(later or {})!r})
    open("asked", "w").close()
    say({{"type": "control_request", "request_id": "r", "request": request}})
    answer = heard()["response"]["response"]
    with open("answer", "w") as file:
        json.dump([answer, sys.argv], file)
    result()
"""
    )


def answer_of(stage: Stage) -> Any:
    """What a program was answered that asks, and its arguments."""
    return json.loads((stage.folder / "work" / "answer").read_text())


if FOLDER in os.environ:
    hub = make_hub(os.environ)

"""A `claude` that plays what the real one has said, for where there is none, and for what it would never say.

    python recorded_claude.py --record FOLDER    records anew, with the real one

A recording is one chat: for each process that was started for it, the lines that went out (`>`) and those that
came in (`<`), with placeholders for what is different each time: the session, the folders, the ids of requests. As
a program, it plays the next process of the recording that `CLAUDE_RECORDING` names; which is next, and what it was
told, is in files beside the transcript.
"""

import asyncio
import contextlib
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE / "fixtures" / "claudecode"
RECORDING, STATE, TARGET, OUTPUT = (
    f"CLAUDE_{name}" for name in ("RECORDING", "PLAYED", "RECORDED_PROGRAM", "RECORDED_OUTPUT")
)
KEPT = ("control_request", "control_response", "user", "assistant", "result", "transcript_mirror")
"""The kinds of lines that are kept, beside the first one of a session."""

RESUMED = rf"{re.escape(tempfile.gettempdir())}/claude-resume-\w+"
"""Where the SDK puts what a resumed session goes on from."""

OF_ENTRIES = ("parentUuid", "isSidechain", "type", "message", "attachment", "uuid", "timestamp", "sessionId")
OF_RESULTS = (
    *("type", "subtype", "is_error", "duration_ms", "duration_api_ms", "num_turns", "session_id", "uuid"),
    *("stop_reason", "terminal_reason", "total_cost_usd", "result", "deferred_tool_use", "errors", "usage"),
)
OF_INIT = ("type", "subtype", "cwd", "session_id", "model", "uuid", "claude_code_version")
OF_GREETINGS = ("hook_on_failure_supported",)
"""What is kept of some of them: the rest is what Claude Code tells its model, or nobody needs it."""


def play() -> int:
    """Play the next process."""
    state = Path(os.environ[STATE])
    number = len(list(state.iterdir()))
    told = state / f"{number}.json"
    told.write_text(json.dumps({"arguments": sys.argv[1:], "said": []}))
    runs = json.loads(Path(os.environ[RECORDING]).read_text())
    if number >= len(runs):
        print("There is nothing more on this record", file=sys.stderr)
        return 1
    options = dict(argument.split("=", 1) for argument in sys.argv if "=" in argument)
    session = options.get("--resume") or options["--session-id"]
    project = "".join(letter if letter.isalnum() else "-" for letter in str(Path.cwd()))
    places = {"@SESSION@": session, "@CWD@": str(Path.cwd()), "@CONFIG@": os.environ["CLAUDE_CONFIG_DIR"]}
    places["@PROJECT@"] = project
    ids: dict[str, str] = {}
    said: list[Any] = []
    for direction, message in runs[number]:
        text = json.dumps(message)
        for placeholder, value in places.items():
            text = text.replace(placeholder, value)
        if direction == "<":
            line = sys.stdin.readline()
            if not line:
                return 0
            came = json.loads(line)
            said.append(came)
            told.write_text(json.dumps({"arguments": sys.argv[1:], "said": said}))
            if came["type"] == "control_request":  # its id is one that the other side chose
                ids[json.loads(text)["request_id"]] = came["request_id"]
        else:
            for placeholder, value in ids.items():
                text = text.replace(placeholder, value)
            print(text, flush=True)
    sys.stdin.read()
    return 0


# --- recording ------------------------------------------------------------------------------------------


def tee() -> int:
    """Be the real one, and write down what goes in and out."""
    number = len(list(Path(os.environ[OUTPUT]).iterdir()))
    output = Path(os.environ[OUTPUT]) / f"{number}.jsonl"
    output.touch()
    lock = threading.Lock()
    real = subprocess.Popen(
        [os.environ[TARGET], *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert real.stdin is not None and real.stdout is not None

    def note(direction: str, line: str) -> None:
        with lock, output.open("a") as file:
            file.write(json.dumps([direction, json.loads(line)]) + "\n")

    def pass_in() -> None:
        for line in sys.stdin:
            note("<", line)
            real.stdin.write(line)
            real.stdin.flush()
        real.stdin.close()

    threading.Thread(target=pass_in, daemon=True).start()
    for line in real.stdout:
        note(">", line)
        print(line, end="", flush=True)
    return real.wait()


def tidy(runs: list[list[list[Any]]], replaced: dict[str, str]) -> Any:
    """What is needed of a recording, with placeholders."""
    kept = []
    for run in runs:
        lines = []
        for direction, message in run:
            smaller = _smaller(message)
            if smaller is not None:
                text = json.dumps(smaller)
                for value, placeholder in replaced.items():
                    text = text.replace(value, placeholder)
                text = re.sub(RESUMED, "@CONFIG@", text)
                lines.append([direction, json.loads(text)])
        kept.append(lines)
    return kept


def _smaller(message: Any) -> Any:
    match message:
        case {"type": "system", "subtype": "init"}:
            return {name: message[name] for name in OF_INIT}
        case {"type": "control_response", "response": {"response": dict(said)} as response} if "pid" in said:
            kept = {name: said[name] for name in OF_GREETINGS if name in said}
            return {**message, "response": {**response, "response": kept}}
        case {"type": "result"}:
            return {name: message[name] for name in OF_RESULTS if name in message}
        case {"type": "transcript_mirror", "entries": entries}:
            needed = [_smaller_entry(entry) for entry in entries if "uuid" in entry]
            place = "@CONFIG@/projects/@PROJECT@/@SESSION@.jsonl"  # resumed sessions have others
            return {**message, "filePath": place, "entries": needed} if needed else None
        case {"type": kind} if kind in KEPT:
            return message
    return None


def _smaller_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a transcript: others name it as their parent."""
    kept = {name: entry[name] for name in OF_ENTRIES if name in entry}
    if kept.get("attachment", {}).get("type") != "hook_deferred_tool":
        kept.pop("attachment", None)
    return kept


async def record(folder: Path) -> None:
    from claude_app import PROGRAM, SCRIPT, environment, make_hub, real_program
    from loopback_model import loopback_model

    chats: dict[str, list[tuple[str, list[Any]]]] = {
        "greeting": [("greet me", [])],
        "permission": [("write one", ["once"])],
        "questions": [("ask me", [{}])],
        "gone_on": [("write one", []), ("greet me", [])],
        "hub": [("use the hub", ["once", "Ada"])],
    }
    for name, said in chats.items():
        with loopback_model(SCRIPT) as model, tempfile.TemporaryDirectory() as place:
            root = Path(place)
            program, output = root / "tee", root / "output"
            output.mkdir()
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} --tee "$@"\n')
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            os.environ |= {TARGET: str(real_program()), OUTPUT: str(output)}
            os.environ["CLAUDE_TEST_FOLDER"] = place
            tools = ["greeter"] if name == "hub" else []
            hub = make_hub({**environment(model, root), PROGRAM: str(program)}, hub_tools=tools)
            made = await hub.call("claudecode.create", {"name": "x", "working_dir": str(root / "work")})
            for query, answers in said:
                await _chat(hub, query, answers)
            runs = [
                [json.loads(line) for line in path.read_text().splitlines()]
                for path in sorted(output.iterdir(), key=lambda one: int(one.stem))
            ]
            work = str(root / "work")
            replaced = {
                made.session.claude_session_id: "@SESSION@",
                "".join(letter if letter.isalnum() else "-" for letter in work): "@PROJECT@",
                work: "@CWD@",
                str(root / "home"): "@CONFIG@",
            }
            (folder / f"{name}.json").write_text(json.dumps(tidy(runs, replaced), indent=1) + "\n")


async def _chat(hub: Any, query: str, answers: list[Any]) -> None:
    """Chat to the end, or up to the first question to which there is no answer."""
    params = {"session_name": "x", "query": query}
    following = hub.call("claudecode.chat", params, supports={"select", "form", "prompt"})
    async with contextlib.aclosing(aiter(following)) as items:
        async for item in items:
            if hasattr(item, "request_id"):
                if not answers:
                    return
                await following.answer(item.request_id, answers.pop(0))


if __name__ == "__main__":
    if "--record" in sys.argv:
        sys.path.insert(0, str(HERE))
        target = Path(sys.argv[-1]) if len(sys.argv) > 2 else FOLDER
        target.mkdir(parents=True, exist_ok=True)
        asyncio.run(record(target))
    elif "--tee" in sys.argv:
        sys.argv.remove("--tee")
        sys.exit(tee())
    else:
        sys.exit(play())

#!/usr/bin/env python3
"""Stands in for the program `claude`, so that midcall's part can be tried without an account or a network.

Whatever it is told, it wants to run one command, and asks for a permission before it does. It speaks to the
Claude Agent SDK as Claude Code does, one JSON a line; what the SDK does not need is left out.

    claude = ClaudeCode(cli_path="examples/stand_in_claude.py")
"""

import json
import subprocess
import sys
from typing import Any

TOOL = {"id": "toolu_1", "name": "Bash", "input": {"command": "echo hello >> hello.txt"}}
REASON = "The command changes a file"


def main() -> None:
    """Be one process of a chat: one for the prompt, and others that are resumed with the tool use."""
    first = hear()
    say("control_response", response=success(first, {"hook_on_failure_supported": True}))
    if any(argument.startswith("--resume") for argument in sys.argv):
        use_tool()
    else:
        want_tool(first["request"]["hooks"]["PreToolUse"][0]["hookCallbackIds"][0])
    hear()  # until there is nothing more


def want_tool(hook: str) -> None:
    """The model wants a tool, and a hook says that it is put off."""
    hear()  # the prompt
    say_as("assistant", {"type": "tool_use", **TOOL})
    about = {"tool_name": TOOL["name"], "tool_input": TOOL["input"], "tool_use_id": TOOL["id"]}
    answer = ask("hook_callback", callback_id=hook, tool_use_id=TOOL["id"], input=about)
    if answer["hookSpecificOutput"]["permissionDecision"] == "defer":
        end(stop_reason="tool_deferred", deferred_tool_use=TOOL)


def use_tool() -> None:
    """The tool was put off: ask, run it if that is permitted, and go on."""
    about = {"tool_name": TOOL["name"], "input": TOOL["input"], "tool_use_id": TOOL["id"]}
    answer = ask("can_use_tool", **about, decision_reason=REASON)
    permitted = answer["behavior"] == "allow"
    output = run(answer["updatedInput"]["command"]) if permitted else answer["message"]
    result = {"type": "tool_result", "tool_use_id": TOOL["id"], "content": output, "is_error": not permitted}
    say_as("user", result)
    say_as("assistant", {"type": "text", "text": "Done." if permitted else "As you like."})
    end()


def run(command: str) -> str:
    """Run a command; gives what it has printed."""
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr or "(no output)"


# --- the wire -------------------------------------------------------------------------------------------


def hear() -> Any:
    """The next message; this ends when there is none."""
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit()


def say(kind: str, **message: Any) -> None:
    print(json.dumps({"type": kind, "session_id": "stand-in", **message}), flush=True)


def say_as(role: str, block: dict[str, Any]) -> None:
    """Say what is a part of the conversation."""
    message = {"id": "msg_1", "role": role, "model": "none", "content": [block]}
    say(role, message=message, parent_tool_use_id=None)


def ask(subtype: str, **about: Any) -> Any:
    """Ask whoever has started this; gives the answer."""
    say("control_request", request_id=subtype, request={"subtype": subtype, **about})
    return hear()["response"]["response"]


def success(request: Any, response: Any) -> dict[str, Any]:
    return {"subtype": "success", "request_id": request["request_id"], "response": response}


def end(**more: Any) -> None:
    """The turn has come to its end, or waits."""
    spent = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "total_cost_usd": 0.0, "usage": {}}
    say("result", subtype="success", is_error=False, result="", **spent, **more)


if __name__ == "__main__":
    main()

"""Claude Code, a model or a moment that means no good: nothing runs unasked, nothing hangs, nothing is left."""

import json
from pathlib import Path

from claude_app import RESULT, scripted, staged
from driving import LIMIT, drive

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

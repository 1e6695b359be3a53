"""`midcall serve --dev` warns of effects outside a step."""

import asyncio
import json
import sys
from pathlib import Path

from driving import drive

APP = '''
from pathlib import Path
from midcall import Ask, Hub, method

def write(path: str) -> None:
    Path(path).write_text("in a step")

class Careless:
    @method
    async def tool(self, path: str, ask: Ask) -> str:
        """Write twice, once with care."""
        await ask.step(write, path)
        Path(path).write_text("outside")
        Path(path).read_text()
        return "written"

    @method
    async def plain(self, path: str) -> str:
        """Never run again, so it may write."""
        Path(path).write_text("plain")
        return "written"

hub = Hub("plexus").register(Careless())
'''


def test_a_write_outside_a_step_is_warned_of_with_its_line(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "careless_app.py").write_text(APP)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "midcall", "serve", "careless_app:hub", "--stdio", "--mcp-only", "--dev"),
            cwd=tmp_path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        prefix = "io.modelcontextprotocol/"
        meta = {f"{prefix}protocolVersion": "2026-07-28", f"{prefix}clientCapabilities": {"elicitation": {}}}
        messages = []
        for id, name in enumerate(("careless.tool", "careless.plain")):
            params = {"name": name, "arguments": {"path": str(tmp_path / "out")}, "_meta": meta}
            messages.append({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
        lines = "".join(json.dumps(message) + "\n" for message in messages)
        said, logged = await process.communicate(lines.encode())
        results = [json.loads(line)["result"] for line in said.splitlines()]
        assert [result["structuredContent"] for result in results] == [{"result": "written"}] * 2
        warnings = [line for line in logged.decode().splitlines() if "outside a step" in line]
        number = APP.splitlines().index('        Path(path).write_text("outside")') + 1
        assert len(warnings) == 1, logged.decode()
        assert f"careless_app.py:{number} writes to" in warnings[0]

    drive(run())

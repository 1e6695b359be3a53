"""What each player does: it calls the tools of a server as it is told, and reports what it saw.

A player is started as `PLAYER PLAN MODE SERVER...`: a file with the steps to take, a mode (legacy, modern or
auto), and the server, which is a URL or a command line. It adapts its client to `Player` and runs the plan:
one JSON line for each step, which judges nothing. `play.mjs` is the same for Node.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

PLAN = json.loads(Path(sys.argv[1]).read_text())
MODE, SERVER = sys.argv[2], sys.argv[3:]
OVER_HTTP = SERVER[0].startswith("http://")
MODERN = "2026-07-28"
SECONDS = 60
"""How long a player waits for one response."""

asked: list[str] = []
"""What the server has asked for in this step: a form, a url, a sample, roots."""

OnProgress = Callable[[float, float], None]


class Player(Protocol):
    """A connected client. Results are as MCP has them."""

    async def tools(self) -> list[str]:
        """The names of the server's tools."""

    async def call(self, name: str, arguments: dict[str, Any], heard: OnProgress) -> dict[str, Any]:
        """Call a tool."""

    async def read(self, uri: str) -> dict[str, Any]:
        """Read a resource."""

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """Get a prompt."""


async def run(player: Player) -> None:
    """Take all steps."""
    for number, step in enumerate(PLAN["steps"]):
        asked.clear()
        try:
            _report(step=number, saw=await _take(player, step))
        except Exception as error:  # noqa: BLE001  whatever a client raises, the next step follows
            _report(step=number, raised=f"{type(error).__name__}: {error}")


async def _take(player: Player, step: dict[str, Any]) -> dict[str, Any]:
    match step:
        case {"list": "tools"}:
            return {"tools": await _tools(player)}
        case {"read": uri}:
            return {"text": "\n".join(one.get("text", "") for one in (await player.read(uri))["contents"])}
        case {"prompt": name, "arguments": arguments}:
            messages = (await player.prompt(name, arguments))["messages"]
            return {"text": "\n".join(one["content"].get("text", "") for one in messages)}
        case {"call": name, "arguments": arguments}:
            heard: list[float] = []
            result = await player.call(name, arguments, lambda n, total: heard.append(n / total))
            return {
                "text": "\n".join(one.get("text", "") for one in result["content"]),
                "kinds": [one["type"] for one in result["content"]],
                "structured": result.get("structuredContent"),
                "failed": bool(result.get("isError")),
                "progress": heard,
                "asked": list(asked),
            }
    raise ValueError(f"No such step: {step}")


async def _tools(player: Player) -> list[str]:
    """The tools, once there are any: behind a hub or a proxy, a slow server may still be starting."""
    for _ in range(SECONDS):
        if names := await player.tools():
            return names
        await asyncio.sleep(1)
    return []


def _report(**what: Any) -> None:
    print(json.dumps(what), flush=True)

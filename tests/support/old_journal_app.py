"""The hub of `fixtures/journal_1`: what midcall wrote when conversations had a file of their own.

Run by the code of that time (commit 0ea4e0d and before), as a program, this made the files. Now it only says what
was served.
"""

import asyncio
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

from midcall import Ask, Hub, method
from midcall.chat import ChatEngine
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite import SqliteJournal
from midcall.models.scripted import Rule, Scripted

FIXTURE = Path(__file__).parent / "fixtures" / "journal_1"
KEYS = base64.b64encode(b"fixture " * 4).decode()
HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "parcels.send",
}
CALL = {"name": "parcels.send", "arguments": {"city": "Narvik"}}
CENTURIES = 300 * 365 * 24 * 3600.0


class Parcels:
    """Send parcels."""

    @method
    async def send(self, ask: Ask, city: str = "Oslo") -> str:
        """Send a parcel."""
        label = await ask.step(str.upper, city)
        sure = await ask.confirm(f"Send it to {label}?", key="sure", timeout=None)
        name = await ask.prompt("From whom?", key="name", timeout=None)
        return f"{label} {sure} {name}"


def request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """A modern request of a client that can be asked."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "fixture", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


def hub() -> Hub:
    """A new one."""
    made = Hub("plexus").register(Parcels())
    rules = [Rule(r"send it to (?P<city>\w+)", "send", "I send it.", tell=lambda said: f"Done: {said}")]
    ChatEngine(made, Scripted(rules, otherwise="Where to?"))
    return made


async def _make() -> None:
    from chatting import Person, serving

    os.environ["MIDCALL_KEYS"] = KEYS
    made = hub()
    path = FIXTURE / "journal.db"
    made.durable = DurableCalls(made, SqliteJournal(path), time_limit=CENTURIES)
    told: dict[str, Any] = {}
    async with serving(made.chat) as port:
        quiet, waiting = Person(port), Person(port)
        await quiet.say("Hello there")
        await waiting.say("send it to Bergen")
        told["said"], told["asked"] = quiet.conversation, waiting.conversation
        _, _, answer = await quiet.request("POST", "/mcp", request("tools/call", CALL), HEADERS)
        told["call"] = json.loads(answer)
    (FIXTURE / "told.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(asyncio.run(_make()))

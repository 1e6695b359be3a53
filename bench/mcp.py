"""MCP over stdio: plain `tools/call` and ask round trips, in both eras, of any server that speaks it."""

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.stdio import HERE, Server

MIDCALL = [
    sys.executable, "-m", "midcall", "serve", f"{HERE / 'app.py'}:hub", "--stdio", "--mcp-only", "--log-level", "error",
]  # fmt: skip

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
_ELICITATION = re.compile(rb'"id":\s*([^,}]+),[^\n]*?"method":\s*"elicitation/create"|"method":\s*"elicitation/create"[^\n]*?"id":\s*([^,}]+)')


def message(id: Any, method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


class McpServer(Server):
    """A server process that speaks MCP on its pipes."""

    def __init__(self, command: list[str], tool: str = "bench.once", asking: str = "bench.ask") -> None:
        super().__init__(command)
        self._tool = tool
        self._asking = asking
        self._ids = itertools.count(1)

    def initialize(self, capabilities: dict[str, Any], revision: str = "2025-11-25") -> None:
        """The legacy handshake."""
        info = {"name": "bench", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": info}
        self.write(message("init", "initialize", params))
        self._responses(1)
        self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def call(self, count: int, in_flight: int) -> None:
        """So many plain tool calls, with so many on their way at once."""
        params = {"name": self._tool, "arguments": {"message": "hello"}}
        sent = 0
        done = 0
        more = min(in_flight, count)
        while done < count:
            if more > 0:
                self.write(b"".join(message(next(self._ids), "tools/call", params) for _ in range(more)))
                sent += more
            responses = self.read().count(b"\n")
            done += responses
            more = min(responses, count - sent)

    def ask(self, count: int, in_flight: int) -> None:
        """So many legacy calls that ask once, by `elicitation/create`."""
        params = {"name": self._asking, "arguments": {}}
        accept = {"action": "accept", "content": {"confirmed": True}}
        sent = min(in_flight, count)
        self.write(b"".join(message(next(self._ids), "tools/call", params) for _ in range(sent)))
        done = 0
        rest = b""
        while done < count:
            data, _, rest = (rest + self.read()).rpartition(b"\n")
            out = []
            for line in data.splitlines():
                received = json.loads(line)
                if received.get("method") == "elicitation/create":
                    answer = {"jsonrpc": "2.0", "id": received["id"], "result": accept}
                    out.append(json.dumps(answer).encode() + b"\n")
                elif "result" in received:
                    done += 1
                    if sent < count:
                        out.append(message(next(self._ids), "tools/call", params))
                        sent += 1
            if out:
                self.write(b"".join(out))

    def _responses(self, count: int) -> None:
        while count > 0:
            count -= self.read().count(b"\n")


def peer(script: str) -> Path:
    """The script of a peer, beside this file."""
    return HERE / "peers" / script

"""A modern MCP server on stdio that answers calls in any order but the one in which they came.

`echo` gives back its text; `hang` is never answered.
"""

import json
import random
import sys
import threading
from typing import Any

PAUSE = 0.02
"""Seconds in which calls are gathered, before they are answered in another order."""

TOOLS = [
    {
        "name": "echo",
        "description": "Say it again",
        "inputSchema": {"type": "object", "properties": {"text": {}}},
    },
    {"name": "hang", "description": "Never answers", "inputSchema": {"type": "object"}},
]


def main() -> None:
    waiting: list[tuple[Any, Any]] = []
    lock = threading.Lock()

    def result(id: Any, **body: Any) -> None:
        sent = {"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **body}}
        sys.stdout.write(json.dumps(sent) + "\n")
        sys.stdout.flush()

    def answer() -> None:
        with lock:
            random.shuffle(waiting)
            while waiting:
                id, text = waiting.pop()
                result(id, content=[{"type": "text", "text": text}])

    for line in sys.stdin:
        message = json.loads(line)
        id, params = message.get("id"), message.get("params", {})
        match message.get("method"):
            case "server/discover":
                info = {"name": "shuffling", "version": "1"}
                result(id, supportedVersions=["2026-07-28"], capabilities={"tools": {}}, serverInfo=info)
            case "tools/list":
                result(id, tools=TOOLS)
            case "tools/call" if params["name"] == "echo":
                with lock:
                    waiting.append((id, params["arguments"]["text"]))
                threading.Timer(PAUSE, answer).start()
            case "tools/call":
                pass
            case _ if id is not None:
                with lock:
                    result(id)


if __name__ == "__main__":
    main()

"""A modern MCP server on stdio that makes a task of a call in the moment in which that is cancelled.

`python crossing_server.py LOG` writes down what it was sent.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    log = Path(sys.argv[1])
    call: Any = None

    def result(id: Any, **body: Any) -> None:
        sent = {"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **body}}
        sys.stdout.write(json.dumps(sent) + "\n")
        sys.stdout.flush()

    for line in sys.stdin:
        message = json.loads(line)
        id, method = message.get("id"), message.get("method")
        with log.open("a") as file:
            file.write(f"{method} {message.get('params', {}).get('taskId', '')}\n")
        match method:
            case "server/discover":
                info = {"name": "crossing", "version": "1"}
                result(id, supportedVersions=["2026-07-28"], capabilities={"tools": {}}, serverInfo=info)
            case "tools/list":
                result(id, tools=[{"name": "t", "inputSchema": {"type": "object"}}])
            case "tools/call":
                call = id
            case "notifications/cancelled":
                task = {"taskId": "T1", "status": "working", "ttlMs": None, "pollIntervalMs": 100}
                result(call, **{"resultType": "task", **task})
            case _ if id is not None:
                result(id)


if __name__ == "__main__":
    main()

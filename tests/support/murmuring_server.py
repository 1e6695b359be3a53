"""A modern MCP server on stdio whose log lines do not say which call they belong to."""

import json
import sys
import threading
from typing import Any

_writing = threading.Lock()
_said = threading.Event()


def send(**message: Any) -> None:
    with _writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def result(id: Any, **body: Any) -> None:
    send(id=id, result={"resultType": "complete", **body})


def call(id: Any, who: str, waits: threading.Event) -> None:
    """The call of one is logged while that of the other one runs."""
    waits.wait()
    if who == "ada":
        send(method="notifications/message", params={"level": "info", "data": "the secret of ada"})
        _said.set()
    else:
        _said.wait()
    result(id, content=[{"type": "text", "text": who}])


def main() -> None:
    both = threading.Event()
    calls = 0
    for line in sys.stdin:
        message = json.loads(line)
        id = message.get("id")
        match message.get("method"):
            case "server/discover":
                info = {"name": "murmuring", "version": "1"}
                can = {"tools": {}, "logging": {}}
                result(id, supportedVersions=["2026-07-28"], capabilities=can, serverInfo=info)
            case "tools/list":
                result(id, tools=[{"name": "t", "inputSchema": {"type": "object"}}])
            case "tools/call":
                calls += 1
                who = message["params"]["arguments"]["who"]
                threading.Thread(target=call, args=(id, who, both), daemon=True).start()
                if calls == 2:
                    both.set()
            case _ if id is not None:
                send(id=id, error={"code": -32601, "message": "no such method"})


if __name__ == "__main__":
    main()

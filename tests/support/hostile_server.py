"""An MCP server by hand, on stdio, that says what it is told: `hostile_server.py ERA SCRIPT`.

SCRIPT is a file with JSON: `lists` has a result for each method that lists something, `asks` what a tool asks
before it says what it was answered (a pair of method and parameters), `notes` what it tells before that (pairs
of method and parameters, to which the progress token is added), `says` what it says, and `fails` with which
error it fails. It knows nothing of midcall.
"""

import json
import sys
from pathlib import Path
from typing import Any

ERA = sys.argv[1]
SCRIPT: dict[str, Any] = json.loads(Path(sys.argv[2]).read_text())
INFO = {"name": "hostile", "version": "1"}
HAS: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
EMPTY = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result(id: Any, **body: Any) -> None:
    if ERA == "modern":
        body = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": INFO}, **body}
    send(id=id, result=body)


def call(id: Any, params: dict[str, Any]) -> None:
    name = params["name"]
    token = params.get("_meta", {}).get("progressToken")
    for method, note in SCRIPT.get("notes", {}).get(name, ()):
        send(method=method, params={**note, "progressToken": token})
    if name in SCRIPT.get("fails", {}):
        send(id=id, error=SCRIPT["fails"][name])
        return
    answer: Any = SCRIPT.get("says", {}).get(name, "")
    if name in SCRIPT.get("asks", {}):
        key, method, asked = SCRIPT["asks"][name]
        if ERA == "modern":
            answer = params.get("inputResponses")
            if answer is None:
                one = {"method": method, "params": asked}
                result(id, resultType="input_required", inputRequests={key: one}, requestState="s")
                return
        else:
            send(id=key, method=method, params=asked)
            answer = json.loads(sys.stdin.readline())
            answer = answer.get("result", answer.get("error"))
    text = answer if isinstance(answer, str) else json.dumps(answer)
    result(id, content=[{"type": "text", "text": text}])


for line in sys.stdin:
    message = json.loads(line)
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if method in SCRIPT.get("lists", {}):
        result(id, **SCRIPT["lists"][method])
    elif method in EMPTY:
        result(id, **{EMPTY[method]: []})
    elif method == "initialize" and ERA == "legacy":
        result(id, protocolVersion="2025-11-25", capabilities=HAS, serverInfo=INFO)
    elif method == "server/discover" and ERA == "modern":
        result(id, supportedVersions=["2026-07-28"], capabilities=HAS, serverInfo=INFO)
    elif method == "tools/call":
        call(id, params)
    elif id is not None and method is not None:
        send(id=id, error={"code": -32601, "message": f"Method not found: {method}"})

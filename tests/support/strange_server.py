"""An MCP server by hand, on stdio, that does what midcall's own server never does: `strange_server.py ERA`.

It knows nothing of midcall. Each tool is one strange habit.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from strange_forms import ODD_FORM

ERA = sys.argv[1]
META = "io.modelcontextprotocol/"

ODD_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"shape": {"oneOf": [{"const": "round"}, {"type": "integer", "x-unit": "mm"}]}},
    "patternProperties": {"^x-": {}},
    "additionalProperties": True,
    "not": {"required": ["forbidden"]},
}
BLOCKS = [
    {"type": "text", "text": "see", "annotations": {"audience": ["user"], "priority": 0.5}},
    {"type": "image", "data": "AAEC", "mimeType": "image/png", "_meta": {"example.com/w": 3}},
    {"type": "audio", "data": "AAEC", "mimeType": "audio/ogg"},
    {"type": "resource_link", "uri": "odd://one", "name": "one", "size": 12},
    {"type": "resource", "resource": {"uri": "odd://two", "mimeType": "text/plain", "text": "two"}},
]
TOOLS: list[dict[str, Any]] = [
    {"name": "odd", "title": "Odd one", "description": "All of it.", "inputSchema": ODD_SCHEMA,
     "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
     "annotations": {"readOnlyHint": True}, "_meta": {"example.com/x": 1},
     "icons": [{"src": "https://example.com/i.png"}]},
    {"name": "wrong", "inputSchema": {"type": "object"}},
    {"name": "refused", "inputSchema": {"type": "object"}},
    {"name": "form", "inputSchema": {"type": "object"}},
    {"name": "sample", "inputSchema": {"type": "object"}},
    {"name": "both", "inputSchema": {"type": "object"}},
    {"name": "withdraws", "inputSchema": {"type": "object"}},
    {"name": "ends", "inputSchema": {"type": "object"}},
    {"name": "pages", "inputSchema": {"type": "object"}},
    {"name": "task", "inputSchema": {"type": "object"}},
    {"name": "dies", "inputSchema": {"type": "object"}},
    {"name": "silent", "inputSchema": {"type": "object"}},
    {"name": "list", "outputSchema": {"type": "array", "items": {"type": "integer"}},
     "inputSchema": {"type": "object"}},
    {"name": "capabilities", "inputSchema": {"type": "object"}},
    {"name": "meta", "inputSchema": {"type": "object"}},
    {"no": "name"},
]  # fmt: skip

lock = threading.Lock()
answered: dict[str, Any] = {}
ready = threading.Condition()
visited: list[bool] = []
cancelled: list[Any] = []
declared: list[dict[str, Any]] = []
tasks: dict[str, dict[str, Any]] = {}


def send(**message: Any) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def result(id: Any, **body: Any) -> None:
    if ERA == "modern":
        body.setdefault("resultType", "complete")
        body.setdefault("_meta", {})[f"{META}serverInfo"] = {"name": "strange", "version": "7.1"}
    send(id=id, result=body)


def said(id: Any, text: Any) -> None:
    result(id, content=[{"type": "text", "text": text if isinstance(text, str) else json.dumps(text)}])


def ask(key: str, method: str, params: Any) -> Any:
    """Ask in the middle of a call, as a legacy server does; wait for the answer."""
    send(id=key, method=method, params=params)
    with ready:
        ready.wait_for(lambda: key in answered, timeout=60)
        return answered.pop(key)


def until_there(file: str) -> None:
    """Wait for a file, by which a test says that it goes on."""
    while not Path(file).exists():
        time.sleep(0.01)


def form(message: str, schema: Any = ODD_FORM) -> dict[str, Any]:
    return {"mode": "form", "message": message, "requestedSchema": schema}


SAMPLING = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
    "maxTokens": 7,
    "systemPrompt": "Be brief",
    "temperature": 0.25,
    "stopSequences": ["END"],
    "modelPreferences": {"hints": [{"name": "small"}], "costPriority": 0.9},
    "metadata": {"trace": "t"},
}
WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


def call(id: Any, params: Any) -> None:
    name, arguments = params["name"], params.get("arguments", {})
    given = params.get("inputResponses")
    if name in ("form", "sample", "both") and ERA == "modern":
        modern_round(id, name, given, params.get("requestState"))
        return
    match name:
        case "odd":
            result(id, content=BLOCKS, structuredContent={"n": 1, "given": arguments}, isError=False,
                   extra={"kept": True}, _meta={"example.com/m": 2})  # fmt: skip
        case "wrong":
            result(
                id, content=[{"type": "text", "text": "It broke"}], structuredContent={"why": 1}, isError=True
            )
        case "refused":
            send(id=id, error={"code": -32055, "message": "Not on a Sunday", "data": {"day": "Sunday"}})
        case "list":
            result(id, content=[{"type": "text", "text": "[1,2]"}], structuredContent=[1, 2])
        case "meta":
            said(id, params.get("_meta", {}))
        case "capabilities":
            said(id, declared[0])
        case "form":
            said(id, ask(f"f{id}", "elicitation/create", form("Your order?")))
        case "sample":
            said(id, ask(f"s{id}", "sampling/createMessage", SAMPLING))
        case "both":
            send(id=f"a{id}", method="elicitation/create", params=form("First?", WORD))
            send(id=f"b{id}", method="elicitation/create", params=form("Second?", WORD))
            with ready:
                ready.wait_for(lambda: f"a{id}" in answered and f"b{id}" in answered, timeout=60)
            said(id, [answered.pop(f"a{id}"), answered.pop(f"b{id}")])
        case "withdraws":
            send(id=f"w{id}", method="elicitation/create", params=form("Never mind?", WORD))
            until_there(arguments["file"])
            send(
                method="notifications/cancelled", params={"requestId": f"w{id}", "reason": "changed my mind"}
            )
            said(id, ask(f"x{id}", "elicitation/create", form("Instead?", WORD)))
        case "ends":
            send(id=f"e{id}", method="elicitation/create", params=form("Too late?", WORD))
            until_there(arguments["file"])
            said(id, "I did not wait")
        case "pages":
            page(id)
        case "task":
            begin_task(id)
        case "dies":
            os._exit(3)
        case "silent":
            return
        case _:
            send(id=id, error={"code": -32602, "message": f"Unknown tool: {name}"})


def modern_round(id: Any, name: str, given: Any, state: Any) -> None:
    if given is not None:
        assert state == f"state of {name}", state
        said(id, given)
        return
    asked: dict[str, Any] = {
        "sample": {"model": {"method": "sampling/createMessage", "params": SAMPLING}}
    }.get(
        name,
        {"order": {"method": "elicitation/create", "params": form("Your order?")}},
    )
    if name == "both":
        asked = {
            k: {"method": "elicitation/create", "params": form(f"{k}?", WORD)} for k in ("First", "Second")
        }
    result(id, resultType="input_required", inputRequests=asked, requestState=f"state of {name}")


def page(id: Any) -> None:
    if visited:
        said(id, "came in")
        return
    visited.append(True)
    wanted = {
        "mode": "url",
        "elicitationId": "p1",
        "url": "https://example.com/in",
        "message": "Please log in",
    }
    send(id=id, error={"code": -32042, "message": "Log in first", "data": {"elicitations": [wanted]}})


def begin_task(id: Any) -> None:
    tasks["t1"] = {"status": "working", "looks": 0}
    result(id, resultType="task", taskId="t1", status="working", ttlMs=60000, pollIntervalMs=20,
           createdAt="2026-01-01T00:00:00Z", lastUpdatedAt="2026-01-01T00:00:00Z")  # fmt: skip


def look_at_task(id: Any) -> None:
    task = tasks["t1"]
    task["looks"] += 1
    shown = {"taskId": "t1", "status": task["status"], "ttlMs": 60000, "pollIntervalMs": 20,
             "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}  # fmt: skip
    if task["status"] == "working" and "given" not in task and task["looks"] > 2:
        task["status"] = "input_required"
    elif task["status"] == "input_required":
        shown["inputRequests"] = {"word": {"method": "elicitation/create", "params": form("A word?", WORD)}}
    elif "given" in task:
        shown |= {
            "status": "completed",
            "result": {"content": [{"type": "text", "text": json.dumps(task["given"])}]},
        }
    result(id, **shown)


def take(message: Any) -> None:
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method is None:
        with ready:
            answered[id] = message.get("result", {"error": message.get("error")})
            ready.notify_all()
        return
    if ERA == "modern" and f"{META}clientCapabilities" in params.get("_meta", {}):
        declared[:] = [params["_meta"][f"{META}clientCapabilities"]]
    if id is None:
        if method == "notifications/cancelled":
            cancelled.append(params)
        return
    match method:
        case "initialize" if ERA == "legacy":
            declared[:] = [params["capabilities"]]
            result(id, protocolVersion="2025-11-25", serverInfo={"name": "strange", "version": "7.1"},
                   capabilities={"tools": {"listChanged": True}}, instructions="Be careful.")  # fmt: skip
        case "server/discover" if ERA == "modern":
            result(id, supportedVersions=["2026-07-28"], capabilities={"tools": {}}, instructions="Be careful.",
                   ttlMs=1000, cacheScope="private")  # fmt: skip
        case "tools/list":
            result(id, tools=TOOLS, **({"ttlMs": 1000, "cacheScope": "private"} if ERA == "modern" else {}))
        case "tools/call":
            threading.Thread(target=call, args=(id, params), daemon=True).start()
        case "tasks/get":
            look_at_task(id)
        case "tasks/update":
            tasks["t1"] |= {"status": "working", "given": params["inputResponses"]}
            result(id)
        case "cancelled":
            result(id, cancelled=cancelled)
        case _:
            send(id=id, error={"code": -32601, "message": f"Method not found: {method}"})


for line in sys.stdin:
    take(json.loads(line))

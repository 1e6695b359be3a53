"""An MCP server on stdio that does as it is told: `python scripted_server.py NAME [WORD...]`.

Each function with `@script` is a server. Standard library only, so that it starts at once. Whatever a server
has received is what its tool `seen` gives.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
LATEST = "2025-11-25"
TOOL: dict[str, Any] = {"name": "echo", "description": "Say it again", "inputSchema": {"type": "object"}}

SCRIPTS: dict[str, Callable[..., None]] = {}
SEEN: list[Any] = []


def script(function: Callable[..., None]) -> Callable[..., None]:
    SCRIPTS[function.__name__] = function
    return function


# --- messages -------------------------------------------------------------------------------


def raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write(message: Any) -> None:
    raw(json.dumps(message).encode() + b"\n")


def notify(method: str, **params: Any) -> None:
    write({"jsonrpc": "2.0", "method": method, "params": params})


def request(id: Any, method: str, **params: Any) -> None:
    write({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def answer(message: Any, result: Any) -> None:
    write(response(message, result))


def response(message: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def refuse(message: Any, code: int, text: str, data: Any = None) -> None:
    write({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": text, "data": data}})


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


def echo(message: Any) -> dict[str, Any]:
    return text(str(message["params"]["arguments"].get("say", "")), resultType="complete")


def messages() -> Iterator[Any]:
    """What comes, message by message; arrays are kept in `SEEN` as they are."""
    for line in sys.stdin.buffer:
        found = json.loads(line)
        SEEN.append(found)
        yield from found if isinstance(found, list) else (found,)


# --- servers --------------------------------------------------------------------------------


def serve(
    call: Callable[[Any], None],
    *,
    modern: bool = False,
    revision: str | None = None,
    other: Callable[[Any], bool] = lambda message: False,
    **capabilities: Any,
) -> None:
    """Serve one client: `call` gets calls of tools, `other` whatever it takes."""
    can = {"tools": {}, "logging": {}, **capabilities}
    for message in messages():
        params = message.get("params", {})
        match message.get("method"):
            case _ if other(message):
                pass
            case "initialize" if not modern:
                chosen = revision or params["protocolVersion"]
                info = {"name": "scripted", "version": "1"}
                answer(message, {"protocolVersion": chosen, "capabilities": can, "serverInfo": info})
            case "server/discover" if modern:
                answer(message, {"supportedVersions": [MODERN], "capabilities": can, "ttlMs": 0})
            case "ping" | "logging/setLevel":
                answer(message, {})
            case "tools/list":
                answer(message, {"tools": [TOOL]})
            case "tools/call" if params["name"] == "seen":
                answer(message, text("", structuredContent={"messages": SEEN}))
            case "tools/call" if params["name"] == "pid":
                answer(message, text(str(os.getpid())))
            case "tools/call":
                call(message)
            case str() if "id" in message:
                refuse(message, -32601, f"Method not found: {message['method']}")


@script
def plain(revision: str = LATEST) -> None:
    """Say it again."""
    serve(lambda message: answer(message, echo(message)), revision=revision)


@script
def modern() -> None:
    serve(lambda message: answer(message, echo(message)), modern=True)


@script
def mixed() -> None:
    """Fail in each way that a tool can fail, by name."""

    def call(message: Any) -> None:
        match message["params"]["name"]:
            case "broken":
                answer(message, text("The disk is full", isError=True))
            case "wrong":
                refuse(message, -32000, "It does not work")
            case "echo":
                answer(message, echo(message))
            case "silent":
                pass
            case name:
                refuse(message, -32602, f"Unknown tool: {name}")

    serve(call)


@script
def reverse(count: str = "10") -> None:
    """Answer so many calls at a time, the last one first."""
    waiting: list[Any] = []

    def call(message: Any) -> None:
        waiting.append(message)
        if len(waiting) == int(count):
            while waiting:
                one = waiting.pop()
                answer(one, echo(one))

    serve(call)


@script
def arrays(count: str = "10") -> None:
    """Answer so many calls at a time, in one array, in which there is rubbish too."""
    waiting: list[Any] = []

    def call(message: Any) -> None:
        waiting.append(message)
        if len(waiting) == int(count):
            write([17, {"jsonrpc": "2.0"}, *(response(one, echo(one)) for one in waiting), "end"])
            waiting.clear()

    serve(call, revision="2025-03-26")


@script
def confused() -> None:
    """Answer everything twice, with ids as text, among answers to what was never asked."""

    def call(message: Any) -> None:
        for id in (999_999, "none", None, "9" * 5000, 10**30, -1, 1.5, [1], {"a": 1}, True):
            write({"jsonrpc": "2.0", "id": id, "result": text("stolen")})
        write({**response(message, echo(message)), "id": str(message["id"])})
        write(response(message, text("again")))

    serve(call)


@script
def noisy() -> None:
    """Write what is no message before, after and beside the messages."""
    raw(b"Welcome to the noisy server!\n\n   \n[INFO] it starts\n{not json\n\xff\xfe\n")

    def call(message: Any) -> None:
        raw(b"\r 10%|#         |\r100%|##########| ")
        raw(json.dumps(response(message, echo(message))).encode() + b"\x1b[0m\r\n")
        raw(b'\x1b[32mdone\x1b[0m {"level": "info"}\n"a text"\n17\nnull\n[]\n[1, 2]\n')

    serve(call)


@script
def piecemeal() -> None:
    """Write each message in many pieces, and two in one."""

    def call(message: Any) -> None:
        line = json.dumps(response(message, echo(message))).encode() + b"\n"
        for place in range(0, len(line), 7):
            raw(line[place : place + 7])
            time.sleep(0.0005)
        raw(b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\n{"jsonrpc"')
        raw(b': "2.0", "method": "notifications/half"}\n')

    serve(call)


@script
def huge(size: str) -> None:
    """Answer with a line of this size, but `echo` with a short one."""

    def call(message: Any) -> None:
        words = "x" * int(size) if message["params"]["name"] == "huge" else "small"
        answer(message, text(words))

    serve(call)


@script
def malformed() -> None:
    """Answer with what is hardly a response: in the way that the argument names."""

    def call(message: Any) -> None:
        id = message["id"]
        good = text("good")
        match message["params"]["arguments"].get("how"):
            case "neither":
                write({"jsonrpc": "2.0", "id": id})
            case "version":
                write({"jsonrpc": "1.0", "id": id, "result": good})
            case "no version":
                write({"id": id, "result": good})
            case "null error":
                write({"jsonrpc": "2.0", "id": id, "result": good, "error": None})
            case "error text":
                write({"jsonrpc": "2.0", "id": id, "error": "boom"})
            case "error code":
                write({"jsonrpc": "2.0", "id": id, "error": {"code": "E1", "message": "boom"}})
            case "both":
                write({"jsonrpc": "2.0", "id": id, "result": good, "error": {"code": 1, "message": "boom"}})
            case "list":
                write({"jsonrpc": "2.0", "id": id, "result": [1]})
            case "null":
                write({"jsonrpc": "2.0", "id": id, "result": None})
            case "content":
                write({"jsonrpc": "2.0", "id": id, "result": {"content": "no list"}})
            case "kind":
                write({"jsonrpc": "2.0", "id": id, "result": {"resultType": {"a": 1}}})
            case "utf8":
                raw(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": "\xff\xfe"}}\n' % id)
            case "deep":
                raw(b'{"jsonrpc": "2.0", "id": %d, "result": %s%s}\n' % (id, b"[" * 9999, b"]" * 9999))
            case _:
                answer(message, good)

    serve(call)


@script
def silent() -> None:
    """Take everything, and say nothing to calls."""
    serve(lambda message: None)


@script
def mute() -> None:
    """Say nothing at all."""
    for _ in messages():
        pass


@script
def dying(how: str) -> None:
    """End in the middle of a call."""

    def call(message: Any) -> None:
        match how:
            case "exit":
                print("I cannot go on", file=sys.stderr, flush=True)
                os._exit(3)
            case "last word":
                answer(message, echo(message))
                os._exit(0)
            case "half line":
                raw(b'{"jsonrpc": "2.0", "id": ')
                os._exit(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "output":
                os.close(1)
            case "input":
                os.close(0)
                notify("notifications/message", level="info", data="no more")
        while True:
            time.sleep(60)

    serve(call)


@script
def storm(count: str) -> None:
    """Send this many notifications of each of ten kinds before each answer."""

    def call(message: Any) -> None:
        token = message["params"].get("_meta", {}).get("progressToken")
        kinds = [
            ("notifications/message", {"level": "info", "logger": "x", "data": "storm"}),
            ("notifications/progress", {"progressToken": 424242, "progress": 1}),
            ("notifications/progress", {"progressToken": ["x"], "progress": 1}),
            ("notifications/cancelled", {"requestId": {"no": "id"}}),
            ("notifications/cancelled", {"requestId": 424242}),
            ("notifications/tools/list_changed", {}),
            ("notifications/resources/updated", {"uri": "x://y"}),
            ("notifications/nonsense", {"a": [1, 2, 3]}),
        ]
        if token is not None:
            kinds.append(("notifications/progress", {"progressToken": token, "progress": 1, "message": "m"}))
        block = b"".join(
            json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"
            for method, params in kinds
        )
        block += b'{"jsonrpc": "2.0", "method": "notifications/bare"}\n'
        block += b'{"jsonrpc": "2.0", "method": "notifications/list", "params": [1]}\n'
        for _ in range(0, int(count), 100):
            raw(block * 100)
        answer(message, echo(message))

    serve(call)


@script
def flood(count: str, method: str, reads: str = "reads") -> None:
    """Send this many requests before the answer to a call; perhaps without reading what comes back."""
    numbers = itertools.count(1)

    def call(message: Any) -> None:
        for number in itertools.islice(numbers, int(count)):
            request(f"s{number}", method, message="?", requestedSchema={"type": "object", "properties": {}})
        if reads == "reads":
            answered = 0
            while answered < int(count):
                answered += "id" in json.loads(sys.stdin.buffer.readline())
        answer(message, text("flooded"))

    serve(call)


# --- questions ------------------------------------------------------------------------------

FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer", "default": 7}},
    "required": ["name"],
}


def elicitation(message: str = "Who?", **more: Any) -> dict[str, Any]:
    params = {"mode": "form", "message": message, "requestedSchema": FORM, **more}
    return {"method": "elicitation/create", "params": params}


@script
def asking() -> None:
    """Send what the arguments say as a request; give what comes back as text."""
    calls: dict[str, Any] = {}

    def call(message: Any) -> None:
        name, arguments = message["params"]["name"], message["params"]["arguments"]
        if name in ("withdraw", "leave"):
            id, asked = calls.popitem()
            if name == "withdraw":
                notify("notifications/cancelled", requestId=id, reason="too late")
            answer(asked, text(name))
            answer(message, text(name))
            return
        if arguments.get("hurry"):  # both in one write, so that they are read as one
            both = {"jsonrpc": "2.0", "id": "q", **arguments["asks"][0]}, response(message, text("hurry"))
            raw(b"".join(json.dumps(one).encode() + b"\n" for one in both))
            return
        for number, one in enumerate(arguments["asks"]):
            calls[f"q{message['id']}.{number}"] = message
            request(f"q{message['id']}.{number}", one["method"], **one.get("params", {}))

    def other(message: Any) -> bool:
        asked = calls.pop(message.get("id"), None) if "method" not in message else None
        if asked is not None:
            answer(asked, text(json.dumps(message.get("result", message.get("error")), sort_keys=True)))
        return asked is not None

    serve(call, other=other)


@script
def rounds() -> None:
    """Modern: ask what the arguments say, round by round; give all answers as text."""

    def call(message: Any) -> None:
        params = message["params"]
        asks = params["arguments"]["asks"]
        state = json.loads(params.get("requestState", "[]"))
        if "inputResponses" in params:
            state.append(params["inputResponses"])
        if len(state) < len(asks) or params["arguments"].get("for ever"):
            result = {"resultType": "input_required", "requestState": json.dumps(state)}
            asked = asks[min(len(state), len(asks) - 1)]
            answer(message, result if asked is None else {**result, "inputRequests": asked})
        else:
            answer(message, text(json.dumps(state, sort_keys=True), resultType="complete"))

    serve(call, modern=True)


@script
def waits(how_often: str) -> None:
    """Modern: say so many times that the client is to ask again."""

    def call(message: Any) -> None:
        count = int(message["params"].get("requestState", "0"))
        if count < int(how_often):
            answer(message, {"resultType": "input_required", "requestState": str(count + 1)})
        else:
            answer(message, text(f"after {count}", resultType="complete"))

    serve(call, modern=True)


@script
def tasks() -> None:
    """Modern: a task that goes through the states that the arguments list, one at each look."""
    states: list[Any] = []

    def call(message: Any) -> None:
        states[:] = message["params"]["arguments"]["states"]
        task = {"taskId": "t1", "status": "working", "pollIntervalMs": 5, "ttlMs": None}
        answer(message, {"resultType": "task", **task})

    def other(message: Any) -> bool:
        match message.get("method"):
            case "tasks/get":
                state = states.pop(0) if len(states) > 1 else states[0]
                if state == "silence":
                    return True
                answer(message, {"resultType": "complete", "taskId": "t1", "pollIntervalMs": 5, **state})
            case "tasks/update" | "tasks/cancel":
                answer(message, {"resultType": "complete"})
            case _:
                return False
        return True

    serve(call, other=other, modern=True)


@script
def mortal_task(mark: str) -> None:
    """Modern: a task that is kept; the server ends at the first look at it, and at the first answer."""
    lives = Path(mark)

    def call(message: Any) -> None:
        answer(message, {"resultType": "task", "taskId": "t1", "status": "working", "pollIntervalMs": 5})

    def other(message: Any) -> bool:
        method = message.get("method")
        if method not in ("tasks/get", "tasks/update"):
            return False
        done = lives.read_text().split() if lives.exists() else []
        if method not in done:
            lives.write_text(" ".join([*done, method]))
            os._exit(1)
        if method == "tasks/update":
            lives.write_text(" ".join([*done, "answered"]))
            answer(message, {})
        elif "answered" in done:
            answer(message, {"taskId": "t1", "status": "completed", "result": text("survived")})
        else:
            asked = {"k": elicitation()}
            answer(message, {"taskId": "t1", "status": "input_required", "inputRequests": asked})
        return True

    serve(call, other=other, modern=True)


@script
def rude(era: str) -> None:
    """Before each answer, ask twice by one id, ask and tell with odd parameters, ask as no modern server does."""

    lines = (
        b'{"jsonrpc": "2.0", "id": "a", "method": "roots/list"}\n' * 2
        + b'{"jsonrpc": "2.0", "id": "b", "method": "roots/list", "params": [1]}\n'
        + b'{"jsonrpc": "2.0", "id": null, "method": "roots/list"}\n'
        + b'{"jsonrpc": "2.0", "method": "notifications/message", "params": 5}\n'
        + b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {"x": "\xff"}}\n'
        + b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": true}}\n'
        + b'{"jsonrpc": "2.0", "id": "p", "method": "ping"}\n'
    )

    def call(message: Any) -> None:
        raw(lines)
        SEEN.extend(json.loads(sys.stdin.buffer.readline()) for _ in range(1 if era == "modern" else 5))
        answer(message, echo(message))

    serve(call, modern=era == "modern")


@script
def pages() -> None:
    """Legacy: want a page to be visited before a call."""
    seen: set[str] = set()
    numbers = itertools.count()

    def call(message: Any) -> None:
        wanted = message["params"]["arguments"].get("page", "p1")
        if wanted in seen:
            answer(message, text(f"after {wanted}"))
            return
        if wanted == "ever new":
            wanted = f"p{next(numbers)}"
        elif wanted != "never":
            seen.add(wanted)
        one = {"mode": "url", "elicitationId": wanted, "url": "https://x.test/login", "message": "Log in"}
        refuse(message, -32042, "URL elicitation required", {"elicitations": [one]})

    serve(call)


# --- eras -----------------------------------------------------------------------------------


@script
def dies_at_probe() -> None:
    """Legacy: end at a first message that is not `initialize`."""

    def other(message: Any) -> bool:
        if message.get("method") == "server/discover":
            print("What is server/discover?", file=sys.stderr, flush=True)
            os._exit(1)
        return False

    serve(lambda message: answer(message, echo(message)), other=other)


@script
def ignores_probe(late: str = "0") -> None:
    """Legacy: say nothing to what is not known; `initialize` is answered late, and only once."""
    greeted = []

    def other(message: Any) -> bool:
        if message.get("method") == "initialize":
            time.sleep(float(late))
            if greeted:
                refuse(message, -32600, "Already initialized")
                return True
            greeted.append(message)
        return message.get("method") == "server/discover"

    serve(lambda message: answer(message, echo(message)), other=other)


@script
def slow(seconds: str, era: str) -> None:
    """Start slowly; what came meanwhile is then answered in its order."""
    time.sleep(float(seconds))
    initialized = []

    def other(message: Any) -> bool:
        if message.get("method") == "initialize":
            if initialized:
                refuse(message, -32600, "Already initialized")
                return True
            initialized.append(message)
        return False

    serve(lambda message: answer(message, echo(message)), modern=era == "modern", other=other)


@script
def speaks(*revisions: str) -> None:
    """Refuse the modern greeting, with a list of what it speaks."""

    def other(message: Any) -> bool:
        if message.get("method") == "server/discover":
            refuse(message, -32022, "Unsupported protocol version", {"supported": list(revisions)})
            return True
        return False

    serve(lambda message: answer(message, echo(message)), other=other)


@script
def agreeable() -> None:
    """Legacy: have an empty result for whatever is not known."""

    def other(message: Any) -> bool:
        if message.get("method") == "server/discover":
            answer(message, {})
            return True
        return False

    serve(lambda message: answer(message, echo(message)), other=other)


@script
def greets_with(result: str) -> None:
    """Answer each greeting with this."""
    for message in messages():
        if "id" in message:
            answer(message, json.loads(result))


# --- lists ----------------------------------------------------------------------------------


@script
def listing(era: str = "legacy", ttl: str = "") -> None:
    """Count how often each list is fetched, in its names; `change` says that the tools have changed."""
    fetched: dict[str, int] = {}
    listening: list[Any] = []
    keys = {
        "tools/list": "tools",
        "prompts/list": "prompts",
        "resources/list": "resources",
        "resources/templates/list": "resourceTemplates",
    }

    def tell(method: str, **params: Any) -> None:
        for id in listening or ([None] if era == "legacy" else []):
            meta = {} if id is None else {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}
            notify(method, **params, **meta)

    def other(message: Any) -> bool:
        method = message.get("method")
        params = message.get("params", {})
        if method in keys:
            cursor = params.get("cursor", "")
            if not cursor:
                fetched[method] = fetched.get(method, 0) + 1
            name = f"{fetched[method]}{cursor}"
            page = {"name": name, "uri": f"x://{name}", "uriTemplate": name, "inputSchema": {}}
            more = {"": {"nextCursor": "a"}, "a": {"nextCursor": "b"}, "b": {"nextCursor": "a"}}[cursor]
            hints = {"ttlMs": int(ttl)} if ttl else {}
            answer(message, {keys[method]: [page], **more, **hints})
        elif method == "subscriptions/listen":
            id = message["id"]
            listening.append(id)
            meta = {"io.modelcontextprotocol/subscriptionId": id}
            agreed = params["notifications"]
            notify("notifications/subscriptions/acknowledged", _meta=meta, notifications=agreed)
        elif method == "notifications/cancelled":
            listening[:] = [id for id in listening if id != params["requestId"]]
        elif method in ("resources/subscribe", "resources/unsubscribe"):
            answer(message, {})
        else:
            return False
        return True

    def call(message: Any) -> None:
        match message["params"]["name"]:
            case "change":
                tell("notifications/tools/list_changed")
            case "touch":
                tell("notifications/resources/updated", uri="x://1")
            case "hang up":
                for id in listening:
                    notify("notifications/cancelled", requestId=id)
                listening.clear()
        answer(message, text("told"))

    told = {"listChanged": True, "subscribe": True}
    serve(call, other=other, modern=era == "modern", tools=told, prompts=told, resources=told)


# --- processes ------------------------------------------------------------------------------


@script
def chatty(size: str) -> None:
    """Write this much to the error stream before each answer."""

    def call(message: Any) -> None:
        line = b"e" * 99 + b"\n"
        for _ in range(0, int(size), 100):
            sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        answer(message, echo(message))

    serve(call)


@script
def stubborn(mark: str, *ignored: str) -> None:
    """Ignore the end of the input, and perhaps signals; note in a file what was heard."""

    def heard(number: int, _: Any) -> None:
        with Path(mark).open("a") as file:
            file.write(f"{signal.Signals(number).name}\n")
        if "TERM" not in ignored:
            os._exit(0)

    signal.signal(signal.SIGTERM, heard)
    serve(lambda message: answer(message, echo(message)))
    with Path(mark).open("a") as file:
        file.write("end of input\n")
    while True:
        time.sleep(60)


@script
def parent() -> None:
    """Have a child of its own, which holds the pipes open; its number is what calls give."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    serve(lambda message: answer(message, text(str(child.pid))))


@script
def surroundings() -> None:
    """Give the working directory and the environment."""
    found = {"cwd": str(Path.cwd()), "env": dict(os.environ)}
    serve(lambda message: answer(message, text("", structuredContent=found)))


@script
def flaky(mark: str, lives: str) -> None:
    """End at a call, so many times; the file tells how often it was started."""
    with Path(mark).open("a") as file:
        file.write("started\n")
    with Path(mark).open() as file:
        started = len(file.readlines())

    def call(message: Any) -> None:
        if started <= int(lives):
            os._exit(1)
        answer(message, text(f"life {started}"))

    serve(call)


if __name__ == "__main__":
    SCRIPTS[sys.argv[1]](*sys.argv[2:])

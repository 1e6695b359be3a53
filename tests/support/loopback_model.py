"""A model on loopback that says what a test has written down, over the wires of Anthropic and OpenAI.

It has no memory: which reply comes next is read from the conversation in each request (the last prompt that
the script knows, and how often the model has spoken since), so that a client may die and come back.

`POST /v1/messages` is Anthropic's Messages API, `POST /v1/responses` OpenAI's Responses API, both streaming.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

PAUSE_SECONDS = 120
NAMESPACE = "/"


@dataclass(frozen=True)
class Say:
    """The model says this."""

    text: str


@dataclass(frozen=True)
class Think:
    """The model thinks this first."""

    text: str


@dataclass(frozen=True)
class Use:
    """The model calls a tool: `add` is enough, if the client calls it `mcp__server__add`."""

    tool: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    """The id of the tool use; without one, it is another each time. (Not on OpenAI's wire.)"""


@dataclass(frozen=True)
class Pause:
    """The model stops in the middle, until `LoopbackModel.go_on` is set or its client has gone."""


Part = Say | Think | Use | Pause
Script = Mapping[str, Sequence[Sequence[Part]]]
"""What is said after a prompt that has this text in it: first, second, and so on; then the last again."""


@dataclass
class Conversation:
    """What a request says, whichever wire it came on."""

    prompt: str
    """The last text of the person that the script knows, or none."""
    spoken: int
    """How often the model has spoken since."""
    tools: Sequence[str]
    results: Sequence[str]
    """What tools gave since, as text."""


class LoopbackModel:
    """The server, and what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.go_on = threading.Event()
        self.paused = threading.Event()
        self.requests: list[Any] = []
        self.failure: tuple[int, str] | None = None
        """A status and a message that every request is answered with."""
        self.unknown: list[str] = []
        """What was asked for that a model does not have."""
        model = self

        class Handler(_Handler):
            loopback = model

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def results(self) -> list[str]:
        """What tools have given, in the last request that brought any."""
        for body in reversed(self.requests):
            if found := read(body, self.script).results:
                return list(found)
        return []

    def tools(self) -> list[str]:
        """The tools of the last request that had any."""
        for body in reversed(self.requests):
            if found := read(body, self.script).tools:
                return list(found)
        return []

    def reply(self, body: Any) -> list[Part]:
        self.requests.append(body)
        talk = read(body, self.script)
        replies = self.script.get(talk.prompt, [[Say("Nothing to say.")]])
        if not talk.tools:
            return [Say("A title")]
        parts = replies[min(talk.spoken, len(replies) - 1)]
        return [_named(part, talk.tools) if isinstance(part, Use) else part for part in parts]

    def pause(self) -> None:
        self.paused.set()
        self.go_on.wait(PAUSE_SECONDS)

    @contextlib.contextmanager
    def serving(self) -> Iterator["LoopbackModel"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.go_on.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def loopback_model(script: Script) -> contextlib.AbstractContextManager[LoopbackModel]:
    """A model that plays a script, while this is open."""
    return LoopbackModel(script).serving()


def _named(part: Use, tools: Sequence[str]) -> Use:
    """With the name that the client gave the tool: `mcp__server__add` for `add`."""
    if part.tool in tools:
        return part
    found = [name for name in tools if name.endswith(("__" + part.tool, NAMESPACE + part.tool))]
    return Use(found[0], part.input, part.id) if found else part


# --- what a request says --------------------------------------------------------------------------------


def read(body: Any, script: Script) -> Conversation:
    """The conversation of a request of either wire."""
    turns = list(_messages(body) if "messages" in body else _responses(body))
    prompt, start = "", 0
    for number, (who, text) in enumerate(turns):
        if who == "person":
            for known in script:
                if known in text:
                    prompt, start = known, number
    since = turns[start:]
    spoken = sum(
        who == "model" and since[number - 1][0] != "model" for number, (who, _) in enumerate(since) if number
    )
    tools = [name for tool in body.get("tools", []) for name in _tool_names(tool)]
    return Conversation(prompt, spoken, tools, [text for who, text in since if who == "tool"])


def _tool_names(tool: Mapping[str, Any]) -> list[str]:
    """The names of a tool, or of those in a namespace: `namespace/tool`, as OpenAI has them."""
    if tool.get("type") == "namespace":
        return [f"{tool['name']}{NAMESPACE}{inner['name']}" for inner in tool["tools"]]
    return [str(tool.get("name") or tool.get("type"))]


def _messages(body: Any) -> Iterator[tuple[str, str]]:
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            match block["type"]:
                case "tool_result":
                    yield "tool", _text(block.get("content"))
                case "text" if message["role"] == "user":
                    yield "person", block["text"]
                case _ if message["role"] == "assistant":
                    yield "model", ""


def _responses(body: Any) -> Iterator[tuple[str, str]]:
    for item in body["input"]:
        match item.get("type", "message"):
            case "message" if item["role"] == "assistant":
                yield "model", ""
            case "message":
                yield "person", _text(item["content"])
            case "function_call" | "custom_tool_call" | "reasoning":
                yield "model", ""
            case "function_call_output" | "custom_tool_call_output":
                yield "tool", _text(item["output"])


def _text(content: Any) -> str:
    match content:
        case str():
            return content
        case list():
            return "\n".join(str(block.get("text", "")) for block in content)
        case dict():
            return json.dumps(content)
    return ""


# --- the two wires --------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    loopback: ClassVar[LoopbackModel]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._whole(404, {"error": {"type": "not_found_error", "message": "No such page"}})

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        if self.loopback.failure is not None:
            status, message = self.loopback.failure
            self._whole(status, {"type": "error", "error": {"type": "api_error", "message": message}})
        elif path == "/v1/messages/count_tokens":
            self._whole(200, {"input_tokens": 10})
        elif path == "/v1/messages":
            self._stream(_anthropic(self.loopback.reply(body), len(self.loopback.requests), body["model"]))
        elif path == "/v1/responses":
            self._stream(_openai(self.loopback.reply(body), len(self.loopback.requests)))
        else:
            self.loopback.unknown.append(path)
            self._whole(404, {"error": {"type": "not_found_error", "message": path}})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _whole(self, status: int, answer: Any) -> None:
        encoded = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def _stream(self, events: Iterator[dict[str, Any] | None]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client has gone
            for event in events:
                if event is None:
                    self.wfile.flush()
                    self.loopback.pause()
                else:
                    self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


def _anthropic(parts: Sequence[Part], number: int, model: str) -> Iterator[dict[str, Any] | None]:
    usage = {"input_tokens": 100, "output_tokens": 1}
    start = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model, "content": []}
    yield {
        "type": "message_start",
        "message": {**start, "stop_reason": None, "stop_sequence": None, "usage": usage},
    }
    stop = "end_turn"
    for index, part in enumerate(parts):
        match part:
            case Pause():
                yield None
                continue
            case Say(text):
                block: dict[str, Any] = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": word} for word in text.splitlines(keepends=True)]
            case Think(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [
                    {"type": "thinking_delta", "thinking": text},
                    {"type": "signature_delta", "signature": "c2lnbmVk"},
                ]
            case Use(tool, input, id):
                stop = "tool_use"
                block = {"type": "tool_use", "id": id or f"toolu_{number}_{index}", "name": tool, "input": {}}
                deltas = [{"type": "input_json_delta", "partial_json": json.dumps(dict(input))}]
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 20},
    }
    yield {"type": "message_stop"}


def _openai(parts: Sequence[Part], number: int) -> Iterator[dict[str, Any] | None]:
    response: dict[str, Any] = {"id": f"resp_{number}", "object": "response", "status": "in_progress"}
    yield {"type": "response.created", "response": response}
    output: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        match part:
            case Pause():
                yield None
                continue
            case Say(text):
                content = [{"type": "output_text", "text": text, "annotations": []}]
                item: dict[str, Any] = {
                    "type": "message",
                    "id": f"msg_{number}_{index}",
                    "role": "assistant",
                    "content": content,
                }
            case Think(text):
                summary = [{"type": "summary_text", "text": text}]
                item = {"type": "reasoning", "id": f"rs_{number}_{index}", "summary": summary}
            case Use(tool, input):
                namespace, _, name = tool.rpartition(NAMESPACE)
                item = {
                    "type": "function_call",
                    "id": f"fc_{number}_{index}",
                    "call_id": f"call_{number}_{index}",
                    "name": name,
                    "arguments": json.dumps(dict(input)),
                    **({"namespace": namespace} if namespace else {}),
                }
        output.append(item)
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 120,
    }
    yield {
        "type": "response.completed",
        "response": {**response, "status": "completed", "output": output, "usage": usage},
    }

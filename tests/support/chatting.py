"""What the tests of the chat share: an engine served over real HTTP, and a person who posts to it."""

import asyncio
import http.client
import json
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from driving import LIMIT
from midcall import Hub
from midcall.chat import ChatEngine
from midcall.models.base import Message, ModelEvent, ModelRequest, Stopped, TextPart, ToolCall, Usage

Answer = str | ToolCall | Sequence[str | ToolCall] | BaseException


class Puppet:
    """A model whose answers the test has written down, or works out from what it is asked."""

    name = "puppet"
    scripted = True

    def __init__(self, *answers: Answer | Callable[[ModelRequest], Answer]) -> None:
        self.answers = list(answers)
        self.asked: list[ModelRequest] = []
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else "Nothing more to say."
        if callable(answer):
            answer = answer(request)
        parts = [answer] if isinstance(answer, str | ToolCall | BaseException) else answer
        for part in parts:
            if isinstance(part, BaseException):
                raise part
            await asyncio.sleep(0)
            yield TextPart(part) if isinstance(part, str) else part
        yield Stopped("stop", Usage(10, 5))

    async def close(self) -> None:
        self.closed = True

    @property
    def told(self) -> list[Message]:
        """What the model was last told."""
        return list(self.asked[-1].messages)


def call(name: str, id: str = "call_1", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, json.dumps(arguments))


class Person:
    """Talks to a chat over HTTP."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.conversation = ""
        self.run = ""

    async def say(self, text: str) -> list[dict[str, Any]]:
        return await self.post(message=text)

    async def answer(
        self, question: dict[str, Any], action: str = "accept", **content: Any
    ) -> list[dict[str, Any]]:
        return await self.post(pluginElicitResponses=[response(question, action, content or None)])

    async def post(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a turn."""
        if self.conversation:
            body.setdefault("conversationId", self.conversation)
        status, headers, data = await self.request("POST", "/chat", body)
        assert status == 200, data
        assert headers["content-type"] == "application/x-ndjson"
        self.run = headers["x-session-id"]
        lines = [json.loads(line) for line in data.splitlines()]
        assert [line["lsn"] for line in lines] == list(range(1, len(lines) + 1))
        events = [line["event"] for line in lines]
        assert events[0]["type"] == "session_info"
        assert events[0]["sessionId"] == self.run
        self.conversation = events[0]["conversationId"]
        return events

    async def refused(self, **body: Any) -> tuple[int, str]:
        """The status and the message of a request that is not taken."""
        status, _, data = await self.request("POST", "/chat", body)
        return status, json.loads(data)["error"]["message"]

    async def shown(self) -> dict[str, Any]:
        """The conversation, as a page that was reloaded gets it."""
        _, _, data = await self.request("GET", f"/chat/conversations/{self.conversation}")
        found: dict[str, Any] = json.loads(data)
        return found

    async def request(
        self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        return await asyncio.to_thread(self._request, verb, path, body, headers or {})

    def _request(
        self, verb: str, path: str, body: Any, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            typed = {} if data is None else {"Content-Type": "application/json"}
            connection.request(verb, path, data, typed | headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()


def response(question: dict[str, Any], action: str, content: Any) -> dict[str, Any]:
    result = {"action": action} | ({} if content is None else {"content": content})
    wanted = ("sessionId", "callId", "elicitId")
    return {key: question[key] for key in wanted} | {"result": result}


@asynccontextmanager
async def serving(engine: ChatEngine, **options: Any) -> AsyncIterator[int]:
    """The port at which the engine's hub is served."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = engine.hub.asgi(**options)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=int(LIMIT)))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            yield listener.getsockname()[1]
        finally:
            app.close()
            server.should_exit = True
            await task


@asynccontextmanager
async def chat(model: Any, *activations: object, **options: Any) -> AsyncIterator[Person]:
    """A person in front of a new chat."""
    hub = Hub("chatty")
    for activation in activations:
        hub.register(activation)
    async with serving(ChatEngine(hub, model, **options)) as port:
        yield Person(port)


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    """The types of events, in order, with pieces of text taken together."""
    found: list[str] = []
    for event in events:
        if not (event["type"] == "text" and found[-1:] == ["text"]):
            found.append(event["type"])
    return found


def text(events: Sequence[dict[str, Any]]) -> str:
    return "".join(event["content"] for event in events if event["type"] == "text")


def only(events: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [event for event in events if event["type"] == kind]
    return found


def questions(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == "plugin_elicit_request"]


class Keyed(Person):
    """A person with a key."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__(port)
        self._key = key

    async def request(
        self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        sent = {"Authorization": f"Bearer {self._key}", **(headers or {})}
        return await super().request(verb, path, body, sent)

    async def agui(self, path: str = "/agui", **body: Any) -> tuple[int, list[dict[str, Any]]]:
        """The status, and the events of a run."""
        if "say" in body:
            body["messages"] = [{"id": str(uuid.uuid4()), "role": "user", "content": body.pop("say")}]
        status, _, data = await self.request("POST", path, body)
        parts = data.split(b"\n\n") if status == 200 else []
        return status, [json.loads(part[6:]) for part in parts if part.startswith(b"data: ")]

"""AG-UI 1.0 at `/agui`: the chat for front ends that speak that protocol, as assistant-ui and CopilotKit do.

A thread is a conversation. A turn that waits for the person ends its run with an interrupt for each question,
and the next run's `resume` answers them; `/agui/connect` gives a page that was reloaded its messages and the
open interrupts again.
"""

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from midcall.chat import events
from midcall.chat.conversation import Conversation
from midcall.chat.engine import ChatEngine, NoConversation
from midcall.chat.ndjson import principal_of, read_body, refused
from midcall.chat.request import BadRequest, ChatRequest, ElicitResponse, ElicitResult
from midcall.chat.runs import FarRun, Line, Run
from midcall.errors import MidcallError

PROTOCOL = "1.0"

_decode_line = msgspec.json.Decoder(Line).decode


class Resume(Struct, frozen=True, rename="camel"):
    """An answer to an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class Said(Struct, frozen=True):
    """A message of the front end's history, of which only the newest of the person counts."""

    role: str = ""
    content: Any = ""

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        parts = self.content if isinstance(self.content, list) else []
        return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


class RunInput(Struct, frozen=True, rename="camel"):
    """What a front end sends to begin a run."""

    thread_id: str
    run_id: str = ""
    messages: list[Said] = []
    resume: list[Resume] = []


class Agui:
    """The chat of an engine for AG-UI front ends."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        return [
            Route("/agui", self._run, methods=["POST"]),
            Route("/agui/connect", self._connect, methods=["POST"]),
        ]

    async def _run(self, request: Request) -> Response:
        try:
            given = await _read(request)
            run = await self._engine.post(_asked(given), principal_of(request), create=not given.resume)
        except MidcallError as error:
            return refused(error)
        return _streamed(_translated(run, 0, given))

    async def _connect(self, request: Request) -> Response:
        try:
            given = await _read(request)
            principal = principal_of(request)
            conversation, running = await self._engine.conversation(given.thread_id, principal)
            run = None if running is None else await self._engine.attach(running["sessionId"], principal)
        except NoConversation:
            return _streamed(_nothing(given))
        except MidcallError as error:
            return refused(error)
        return _streamed(_shown(conversation, run, given))


async def _read(request: Request) -> RunInput:
    try:
        return msgspec.json.decode(await read_body(request), type=RunInput)
    except msgspec.DecodeError as error:
        raise BadRequest(f"Invalid RunAgentInput: {error}") from None


def _asked(given: RunInput) -> ChatRequest:
    """The request to the engine that a run stands for."""
    if given.resume:
        responses = tuple(_response(one) for one in given.resume)
        return ChatRequest(given.thread_id, plugin_elicit_responses=responses)
    said = given.messages[-1] if given.messages else Said()
    if said.role == "user" and said.text.strip():
        return ChatRequest(given.thread_id, message=said.text)
    return ChatRequest(given.thread_id, resume=True)


def _response(entry: Resume) -> ElicitResponse:
    session_id = entry.interrupt_id.rsplit(":", 2)[0]
    result = ElicitResult("cancel")
    if entry.status == "resolved":
        match entry.payload:
            case {"action": ("accept" | "decline" | "cancel") as action, **rest} if rest.keys() <= {
                "content"
            }:
                result = ElicitResult(action, rest.get("content"))
            case content:
                result = ElicitResult("accept", content)
    return ElicitResponse(session_id, entry.interrupt_id, result)


# --- events ---------------------------------------------------------------------------------


async def _translated(run: Run | FarRun, after: int, given: RunInput) -> AsyncIterator[dict[str, Any]]:
    """The events of a run, in the words of AG-UI. Whatever is opened is closed before the run ends."""
    translator = Translator(given.thread_id, given.run_id or run.id)
    yield translator.started()
    async for line in run.lines(after):
        for event in translator.take(_decode_line(line).event):
            yield event
        if translator.ended:
            return
    for event in translator.end():
        yield event


async def _shown(
    conversation: Conversation, run: Run | FarRun | None, given: RunInput
) -> AsyncIterator[dict[str, Any]]:
    """A conversation for a page that was reloaded: its messages, then what goes on, or the open interrupts."""
    translator = Translator(given.thread_id, given.run_id or str(uuid.uuid4()))
    yield translator.started()
    yield {"type": "MESSAGES_SNAPSHOT", "messages": _messages(conversation)}
    if run is not None:
        async for line in run.lines(0):
            for event in translator.take(_decode_line(line).event):
                yield event
            if translator.ended:
                return
    for event in translator.end(conversation.questions):
        yield event


async def _nothing(given: RunInput) -> AsyncIterator[dict[str, Any]]:
    translator = Translator(given.thread_id, given.run_id or str(uuid.uuid4()))
    yield translator.started()
    yield {"type": "MESSAGES_SNAPSHOT", "messages": []}
    for event in translator.end():
        yield event


class Translator:
    """Turns the events of the chat into those of AG-UI. No I/O."""

    def __init__(self, thread_id: str, run_id: str) -> None:
        self._thread_id = thread_id
        self._run_id = run_id
        self._open: str | None = None
        """`text` or `reasoning`, whichever message is open."""
        self._message = ""
        self._number = 0
        self._interrupts: list[events.ElicitRequest] = []
        self.ended = False

    def started(self) -> dict[str, Any]:
        return {
            "type": "RUN_STARTED",
            "threadId": self._thread_id,
            "runId": self._run_id,
            "protocolVersion": PROTOCOL,
        }

    def take(self, event: events.Event) -> Iterator[dict[str, Any]]:
        """What one event of the chat is in AG-UI."""
        match event:
            case events.Text(content):
                yield from self._open_as("text")
                yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message, "delta": content}
            case events.Thinking(content):
                yield from self._open_as("reasoning")
                yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": self._message, "delta": content}
            case events.ToolCalls(calls):
                parent = self._message if self._open == "text" else None
                yield from self._close()
                for call in calls:
                    yield from _called(call, parent)
            case events.ToolProgress():
                yield _progress(event)
            case events.ToolResult(call_id, _, content):
                yield from self._close()
                yield _result(call_id, content)
            case events.ToolError(call_id, _, message):
                yield from self._close()
                yield _result(call_id, f"Error: {message}")
            case events.ElicitRequest():
                self._interrupts.append(event)
            case events.SessionError(_, _, code, message):
                yield from self._fail(code, message)
            case events.ConversationState():
                yield from self.end(self._interrupts)
            case events.Complete(reason):
                yield from self.end(outcome={"type": "cancelled" if reason == "stopped" else "success"})
            case events.Failure(message, code):
                yield from self._fail(code, message)

    def end(
        self, questions: list[events.ElicitRequest] | None = None, outcome: dict[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Close what is open, and the run."""
        yield from self._close()
        if questions:
            outcome = {"type": "interrupt", "interrupts": [_interrupt(question) for question in questions]}
        self.ended = True
        yield {
            "type": "RUN_FINISHED",
            "threadId": self._thread_id,
            "runId": self._run_id,
            "outcome": outcome or {"type": "success"},
        }

    def _fail(self, code: str, message: str) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self.ended = True
        yield {"type": "RUN_ERROR", "message": message, "code": code}

    def _open_as(self, kind: str) -> Iterator[dict[str, Any]]:
        if self._open == kind:
            return
        yield from self._close()
        self._number += 1
        self._message = f"{self._run_id}-{self._number}"
        self._open = kind
        if kind == "text":
            yield {"type": "TEXT_MESSAGE_START", "messageId": self._message, "role": "assistant"}
        else:
            yield {"type": "REASONING_START", "messageId": self._message}
            yield {"type": "REASONING_MESSAGE_START", "messageId": self._message, "role": "reasoning"}

    def _close(self) -> Iterator[dict[str, Any]]:
        kind, self._open = self._open, None
        if kind == "text":
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._message}
        elif kind == "reasoning":
            yield {"type": "REASONING_MESSAGE_END", "messageId": self._message}
            yield {"type": "REASONING_END", "messageId": self._message}


def _called(call: dict[str, Any], parent: str | None) -> Iterator[dict[str, Any]]:
    given = call["arguments"]
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    start = {"type": "TOOL_CALL_START", "toolCallId": call["id"], "toolCallName": call["name"]}
    yield start | ({} if parent is None else {"parentMessageId": parent})
    yield {"type": "TOOL_CALL_ARGS", "toolCallId": call["id"], "delta": text}
    yield {"type": "TOOL_CALL_END", "toolCallId": call["id"]}


def _result(call_id: str, content: str) -> dict[str, Any]:
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{call_id}-result",
        "toolCallId": call_id,
        "content": content,
        "role": "tool",
    }


def _progress(event: events.ToolProgress) -> dict[str, Any]:
    return {
        "type": "ACTIVITY_SNAPSHOT",
        "messageId": f"{event.call_id}-progress",
        "activityType": "PROGRESS",
        "content": {
            "toolCallId": event.call_id,
            "toolName": event.tool_name,
            "message": event.message,
            "percentage": event.percentage,
        },
        "replace": True,
    }


def _interrupt(question: events.ElicitRequest) -> dict[str, Any]:
    interrupt: dict[str, Any] = {
        "id": question.elicit_id,
        "reason": "input_required",
        "message": question.message,
        "toolCallId": question.call_id,
        "responseSchema": question.schema or {"type": "object"},
    }
    told = {"key": question.key, "toolName": question.tool_name}
    more = {"component": question.component, "url": question.url}
    interrupt["metadata"] = {**told, **{name: value for name, value in more.items() if value is not None}}
    return interrupt


def _messages(conversation: Conversation) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for number, message in enumerate(conversation.messages):
        one: dict[str, Any] = {"id": f"{conversation.id}-{number}", "role": message.role}
        if message.content or message.role != "assistant":
            one["content"] = message.content
        if message.tool_calls:
            one["toolCalls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in message.tool_calls
            ]
        if message.tool_call_id is not None:
            one["toolCallId"] = message.tool_call_id
        made.append(one)
    return made


def _streamed(told: AsyncIterator[dict[str, Any]]) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        async for event in told:
            yield b"data: %b\n\n" % msgspec.json.encode({**event, "timestamp": int(time.time() * 1000)})

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)

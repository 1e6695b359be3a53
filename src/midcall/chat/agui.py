"""AG-UI 1.0 at `/agui`: the chat for front ends that speak that protocol, as assistant-ui and CopilotKit do.

A thread is a conversation, whose history is kept here: of what a front end sends along, the newest message of
the person counts. A turn that waits for the person ends its run with an interrupt for each question, and the
next run's `resume` answers them; `/agui/connect` gives a page that was reloaded its messages, what goes on,
and the open interrupts.

Every message and span that is opened is closed before the run ends, and nothing is told after that.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from midcall.chat import conversation as events
from midcall.chat.conversation import (
    MAX_TEXT,
    MESSAGE_ID,
    BadRequest,
    ChatRequest,
    Conversation,
    ElicitResponse,
    ElicitResult,
    Said,
    read_json,
)
from midcall.chat.engine import ChatEngine, NoConversation, TurnRunning
from midcall.chat.ndjson import NOT_KEPT, Stream, page, principal_of, read_body
from midcall.chat.runs import Run, RunLine, RunReader
from midcall.limits import Key, Name
from midcall.models.base import Message
from midcall.principal import Principal

ALIVE_EVERY = 15.0
"""Seconds after which a stream that has nothing to tell says that it is still there."""

PROTOCOL = "1.0"

SSE = "text/event-stream"

Told = Iterator[dict[str, Any]]

_decode_line = msgspec.json.Decoder(RunLine).decode


class Resume(Struct, frozen=True, rename="camel"):
    """An answer to an interrupt."""

    interrupt_id: Key
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class InputMessage(Struct, frozen=True):
    """A message of the front end's history."""

    role: Name = ""
    content: Any = ""
    id: Key | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        parts = self.content if isinstance(self.content, list) else []
        return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


class RunInput(Struct, frozen=True, rename="camel"):
    """What a front end sends to begin a run."""

    thread_id: Key
    run_id: Key = ""
    messages: list[InputMessage] = []
    resume: list[Resume] = []


# --- the words of the protocol --------------------------------------------------------------


class Translator:
    """Turns the events of one run of the chat into those of AG-UI."""

    def __init__(self, thread_id: str, run_id: str, model: str, answered: Sequence[str] = ()) -> None:
        """`answered` has a tool call for each answer that the run brings; if none is taken, the run fails."""
        self._thread_id = thread_id
        self._run_id = run_id
        self._model = model
        self._answered = answered
        self._refused: list[events.SessionError] = []
        self._open: str | None = None
        """`text` or `reasoning`, whichever message is open."""
        self._message = ""
        self._number = 0
        self.ended = False

    def started(self) -> dict[str, Any]:
        return {
            "type": "RUN_STARTED",
            "threadId": self._thread_id,
            "runId": self._run_id,
            "protocolVersion": PROTOCOL,
        }

    def take(self, event: events.Event) -> Told:
        """What one event of the chat is in AG-UI."""
        match event:
            case events.TextEvent(content):
                yield from self._open_as("text")
                yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message, "delta": content}
            case events.Thinking(content):
                yield from self._open_as("reasoning")
                yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": self._message, "delta": content}
            case events.ToolCalls(calls):
                parent = self._message if self._open == "text" else self._name()
                yield from self._close()
                for call in calls:
                    yield from _called(call, parent)
            case events.ToolProgress():
                yield _progress(event)
            case events.ToolResultEvent(call_id, _, content):
                yield from self._close()
                yield _result(call_id, content)
            case events.ToolErrorEvent(call_id, _, message):
                yield from self._close()
                yield _result(call_id, f"Error: {message}")
            case events.SessionError(session_id):
                if session_id in self._answered:
                    self._refused.append(event)
                    value = {"sessionId": session_id, "error": event.error, "message": event.message}
                    yield {"type": "CUSTOM", "name": "plugin_session_error", "value": value}
            case events.ConversationState(_, _, pending, usage):
                yield from self.end(pending, usage=usage)
            case events.Complete(reason, usage):
                outcome = "cancelled" if reason == "stopped" else "success"
                yield from self.end(outcome=outcome, usage=usage)
            case events.Failure(message, code):
                yield from self.fail(code, message)

    def end(
        self,
        questions: Sequence[events.ElicitRequest] = (),
        *,
        outcome: str = "success",
        usage: dict[str, int] | None = None,
    ) -> Told:
        """Close what is open, and the run."""
        if self._refused and len(self._refused) >= len(self._answered):
            error = self._refused[0]
            yield from self.fail(error.error, error.message, usage)
            return
        yield from self._close()
        self.ended = True
        how: dict[str, Any] = {"type": outcome}
        if questions:
            how = {"type": "interrupt", "interrupts": [_interrupt(question) for question in questions]}
        ids = {"threadId": self._thread_id, "runId": self._run_id}
        yield {"type": "RUN_FINISHED", **ids, "outcome": how, **self._used(usage)}

    def fail(self, code: str, message: str, usage: dict[str, int] | None = None) -> Told:
        """Close what is open, and end the run with an error."""
        yield from self._close()
        self.ended = True
        yield {"type": "RUN_ERROR", "message": message, "code": code, **self._used(usage)}

    def _used(self, usage: dict[str, int] | None) -> dict[str, Any]:
        if not usage or not any(usage.values()):
            return {}
        provider, _, model = self._model.rpartition(":")
        tokens: dict[str, Any] = {
            "model": model,
            "inputTokens": usage["input"],
            "outputTokens": usage["output"],
            "totalTokens": usage["input"] + usage["output"],
        }
        return {"usage": [tokens | ({"provider": provider} if provider else {})]}

    def _name(self) -> str:
        self._number += 1
        return f"{self._run_id}-{self._number}"

    def _open_as(self, kind: str) -> Told:
        if self._open == kind:
            return
        yield from self._close()
        self._message = self._name()
        self._open = kind
        if kind == "text":
            yield {"type": "TEXT_MESSAGE_START", "messageId": self._message, "role": "assistant"}
        else:
            yield {"type": "REASONING_START", "messageId": self._message}
            yield {"type": "REASONING_MESSAGE_START", "messageId": self._message, "role": "reasoning"}

    def _close(self) -> Told:
        kind, self._open = self._open, None
        if kind == "text":
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._message}
        elif kind == "reasoning":
            yield {"type": "REASONING_MESSAGE_END", "messageId": self._message}
            yield {"type": "REASONING_END", "messageId": self._message}


def snapshot(conversation: Conversation) -> dict[str, Any]:
    """All that was said in a conversation."""
    said: list[dict[str, Any]] = []
    for number, message in enumerate(conversation.messages):
        said += _said(message, message.extra.get(MESSAGE_ID) or f"{conversation.id}-{number}")
    return {"type": "MESSAGES_SNAPSHOT", "messages": said}


def _said(message: Message, id: str) -> Told:
    if message.thinking:
        yield {"id": f"{id}-reasoning", "role": "reasoning", "content": message.thinking}
    said: dict[str, Any] = {"id": id, "role": message.role}
    if message.content or message.role != "assistant":
        said["content"] = message.content
    if message.tool_calls:
        said["toolCalls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        said["id"] = _result_id(message.tool_call_id)
        said["toolCallId"] = message.tool_call_id
        if message.is_error:
            said["error"] = message.content.removeprefix("Error: ")
    yield said


def _called(call: dict[str, Any], parent: str) -> Told:
    given = call["arguments"]
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    yield {
        "type": "TOOL_CALL_START",
        "toolCallId": call["id"],
        "toolCallName": call["name"],
        "parentMessageId": parent,
    }
    yield {"type": "TOOL_CALL_ARGS", "toolCallId": call["id"], "delta": text}
    yield {"type": "TOOL_CALL_END", "toolCallId": call["id"]}


def _result(call_id: str, content: str) -> dict[str, Any]:
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": _result_id(call_id),
        "toolCallId": call_id,
        "content": content,
        "role": "tool",
    }


def _result_id(call_id: str) -> str:
    return f"{call_id}-result"


def _progress(event: events.ToolProgress) -> dict[str, Any]:
    content = {"toolCallId": event.call_id, "toolName": event.tool_name, "message": event.message}
    return {
        "type": "ACTIVITY_SNAPSHOT",
        "messageId": f"{event.call_id}-progress",
        "activityType": "PROGRESS",
        "content": content if event.percentage is None else {**content, "percentage": event.percentage},
        "replace": True,
    }


def _interrupt(question: events.ElicitRequest) -> dict[str, Any]:
    told = {
        "key": question.key,
        "toolName": question.tool_name,
        "component": question.component,
        "url": question.url,
    }
    limit = {} if question.until is None else {"expiresAt": question.until}
    return {
        **limit,
        "id": question.elicit_id,
        "reason": "input_required",
        "message": question.message,
        "toolCallId": question.call_id,
        "responseSchema": question.schema or {"type": "object"},
        "metadata": {name: value for name, value in told.items() if value is not None},
    }


# --- requests -------------------------------------------------------------------------------


class Agui:
    """The chat of an engine for AG-UI front ends."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        return [page("POST", "/agui", self._run), page("POST", "/agui/connect", self._connect)]

    async def _run(self, request: Request) -> Response:
        given = read_json(await read_body(request), RunInput, "RunAgentInput")
        translator = self._translator(given)
        try:
            run = await self._begin(given, principal_of(request))
        except NoConversation as error:
            # Where somebody answers, the tool call is gone with its thread.
            refusal = translator.fail("SESSION_NOT_FOUND" if given.resume else error.code, str(error))
            return Response(b"".join(map(_line, refusal)), media_type=SSE, headers=NOT_KEPT)
        return _streamed(translator, run)

    async def _begin(self, given: RunInput, principal: Principal | None) -> Run:
        sessions: Mapping[str, str] = {}
        if given.resume:
            conversation, _ = await self._engine.conversation(given.thread_id, principal)
            sessions = {question.elicit_id: question.session_id for question in conversation.questions}
        asked = _asked(given, sessions)
        try:
            return await self._engine.post(asked, principal, create=asked.text is not None)
        except TurnRunning:
            # A front end stops a run by no longer reading it; what the person says next shows that it did.
            if asked.text is None or not await self._engine.stop(given.thread_id, principal):
                raise
        return await self._engine.post(asked, principal)

    async def _connect(self, request: Request) -> Response:
        given = read_json(await read_body(request), RunInput, "RunAgentInput")
        principal = principal_of(request)
        try:
            conversation, running = await self._engine.conversation(given.thread_id, principal)
            run = None if running is None else await self._engine.attach(running["sessionId"], principal)
        except NoConversation:
            conversation, run = Conversation(given.thread_id), None
        return _streamed(self._translator(given), run, conversation)

    def _translator(self, given: RunInput) -> Translator:
        answered = [_session_of(one.interrupt_id) for one in given.resume if one.status == "resolved"]
        run_id = given.run_id or str(uuid.uuid4())
        return Translator(given.thread_id, run_id, self._engine.model.name, answered)


def _asked(given: RunInput, sessions: Mapping[str, str]) -> ChatRequest:
    """The request to the engine that a run stands for."""
    said = tuple(
        Said("user" if one.role == "user" else "assistant", one.text)
        for one in given.messages
        if one.role in ("user", "assistant") and one.text.strip()
    )
    newest = given.messages[-1] if given.messages else InputMessage()
    speaks = newest.role == "user" and bool(newest.text.strip())
    if speaks and len(newest.text) > MAX_TEXT:
        raise BadRequest(f"A message has between 1 and {MAX_TEXT} letters")
    return ChatRequest(
        given.thread_id,
        message_id=newest.id,
        messages=said if speaks else (),
        plugin_elicit_responses=tuple(_response(one, sessions) for one in given.resume),
        resume=not given.resume and not speaks,
    )


def _response(entry: Resume, sessions: Mapping[str, str]) -> ElicitResponse:
    result = ElicitResult("cancel")
    if entry.status == "resolved":
        match entry.payload:
            case {"action": ("accept" | "decline" | "cancel") as action, **rest} if rest.keys() <= {
                "content"
            }:
                result = ElicitResult(action, rest.get("content"))
            case content:
                result = ElicitResult("accept", content)
    session_id = sessions.get(entry.interrupt_id) or _session_of(entry.interrupt_id)
    return ElicitResponse(session_id, entry.interrupt_id, result)


def _session_of(interrupt_id: str) -> str:
    return interrupt_id.rsplit(":", 2)[0]


# --- streams --------------------------------------------------------------------------------


async def _told(
    translator: Translator, run: RunReader | None, conversation: Conversation | None
) -> AsyncIterator[dict[str, Any]]:
    """The events of a run; of a page that was reloaded, its conversation first.

    The messages of that have what the first lines of a run under way have told; it is not told again.
    """
    yield translator.started()
    if conversation is not None:
        yield snapshot(conversation)
    if run is not None:
        async for line in run.lines(0 if conversation is None else conversation.lsn):
            for event in translator.take(_decode_line(line).event):
                yield event
        ending = () if translator.ended else translator.fail("run_lost", "The run ended without an end")
    elif conversation is not None and conversation.failure is not None and not conversation.questions:
        ending = translator.fail(conversation.failure.code, conversation.failure.message)
    else:
        ending = translator.end(() if conversation is None else conversation.questions)
    for event in ending:
        yield event


def _streamed(
    translator: Translator, run: RunReader | None, conversation: Conversation | None = None
) -> Response:
    return Stream(_alive(_told(translator, run, conversation)), media_type=SSE, headers=NOT_KEPT)


async def _alive(told: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Events as they are sent, and a sign of life where there is nothing to tell for long."""
    coming: asyncio.Future[dict[str, Any]] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(told))
            done, _ = await asyncio.wait((coming,), timeout=ALIVE_EVERY)
            if not done:
                yield b": still there\n\n"
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield _line(event)
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)  # it may just have ended, with an error


def _line(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode({**event, "timestamp": int(time.time() * 1000)})

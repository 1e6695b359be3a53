"""What the chat tells, in the words of AG-UI 1.0. No I/O, and no request is known here.

Every message and span that is opened is closed before the run ends, and nothing is told after that.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from midcall.chat import events
from midcall.chat.conversation import MESSAGE_ID, Conversation
from midcall.models.base import Message

PROTOCOL = "1.0"

Told = Iterator[dict[str, Any]]


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
            case events.Text(content):
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
            case events.ToolResult(call_id, _, content):
                yield from self._close()
                yield _result(call_id, content)
            case events.ToolError(call_id, _, message):
                yield from self._close()
                yield _result(call_id, f"Error: {message}")
            case events.SessionError(session_id):
                if session_id in self._answered:
                    self._refused.append(event)
                    yield {"type": "CUSTOM", "name": "plugin_session_error", "value": _plain(event)}
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
        yield {**failed(code, message), **self._used(usage)}

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


def failed(code: str, message: str) -> dict[str, Any]:
    """The end of a run that failed."""
    return {"type": "RUN_ERROR", "message": message, "code": code}


def snapshot(conversation: Conversation) -> dict[str, Any]:
    """All that was said in a conversation."""
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(conversation.messages):
        messages += _said(message, message.extra.get(MESSAGE_ID) or f"{conversation.id}-{number}")
    return {"type": "MESSAGES_SNAPSHOT", "messages": messages}


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
    return {
        "id": question.elicit_id,
        "reason": "input_required",
        "message": question.message,
        "toolCallId": question.call_id,
        "responseSchema": question.schema or {"type": "object"},
        "metadata": {name: value for name, value in told.items() if value is not None},
    }


def _plain(event: events.SessionError) -> dict[str, str]:
    return {"sessionId": event.session_id, "error": event.error, "message": event.message}

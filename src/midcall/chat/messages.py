"""What goes over the wires of the chat, as plain values: requests come in, and events go out.

Names and fields are those of `POST /chat`; another wire, as AG-UI, translates them.
"""

from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from midcall.errors import MidcallError
from midcall.limits import Key
from midcall.models.base import Message

T = TypeVar("T")

MAX_TEXT = 200_000


class BadRequest(MidcallError):
    """A request that makes no sense; nothing was changed."""

    code = "bad_request"


class ElicitResult(Struct, frozen=True):
    """What the person did with a question."""

    action: Literal["accept", "decline", "cancel"]
    content: Any = None


class ElicitResponse(Struct, frozen=True, rename="camel"):
    """An answer to a question. The session id is the id of the tool call."""

    session_id: Key
    elicit_id: Key
    result: ElicitResult
    call_id: Key = ""


class Abort(Struct, frozen=True, rename="camel"):
    """A tool call that waits is to be ended."""

    session_id: Key
    reason: str | None = None


class StopRequest(Struct, frozen=True, rename="camel"):
    """The turn of a conversation is to be stopped."""

    conversation_id: Key


class Said(Struct, frozen=True):
    """A message as callers give it who keep the history themselves."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""


class ChatRequest(Struct, frozen=True, rename="camel"):
    """One request:

    something said, answers, an end of something; or nothing, to go on with what was cut off.
    """

    conversation_id: Key | None = None
    message: str | None = None
    message_id: Key | None = None
    """Of what is said now, if the caller gives it one: sent again, as its answer was lost, it is not said
    twice."""
    messages: tuple[Said, ...] = ()
    plugin_elicit_responses: tuple[ElicitResponse, ...] = ()
    plugin_abort: Abort | None = None
    resume: bool = False

    @property
    def text(self) -> str | None:
        """What the person says now."""
        if self.message is not None:
            return self.message
        if self.messages and self.messages[-1].role == "user":
            return self.messages[-1].content
        return None


def read_json(body: bytes, kind: type[T], what: str = "request") -> T:
    """Read what was sent. Raises `BadRequest`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"Invalid {what}: {error}") from None


def read_request(body: bytes) -> ChatRequest:
    """Read a request. Raises `BadRequest`."""
    request = read_json(body, ChatRequest)
    text = request.text
    if text is not None and (not text.strip() or len(text) > MAX_TEXT):
        raise BadRequest(f"A message has between 1 and {MAX_TEXT} letters")
    acts = text is not None or request.plugin_elicit_responses or request.plugin_abort or request.resume
    if not acts:
        raise BadRequest("Say something: message, pluginElicitResponses, pluginAbort or resume")
    if text is None and request.conversation_id is None:
        raise BadRequest("Which conversation? conversationId is missing")
    return request


# --- events ---------------------------------------------------------------------------------


class SessionInfo(Struct, frozen=True, tag_field="type", tag="session_info", rename="camel"):
    """The first event of a run: which run of which conversation, and who answers."""

    session_id: str
    conversation_id: str
    model: dict[str, Any]


class Text(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of the answer."""

    content: str


class Thinking(Struct, frozen=True, tag_field="type", tag="thinking"):
    """A piece of what the model thinks."""

    content: str


class ToolCalls(Struct, frozen=True, tag_field="type", tag="tool_calls"):
    """The model calls tools: `id`, `name` and `arguments` of each."""

    calls: list[dict[str, Any]]


class ToolProgress(
    Struct, frozen=True, tag_field="type", tag="tool_progress", rename="camel", omit_defaults=True
):
    """How far a tool is."""

    call_id: str
    tool_name: str
    message: str
    percentage: float | None = None


class ToolResult(
    Struct, frozen=True, tag_field="type", tag="tool_result", rename="camel", omit_defaults=True
):
    """What a tool gave."""

    call_id: str
    tool_name: str
    content: str
    structured: Any = None


class ToolError(Struct, frozen=True, tag_field="type", tag="tool_error", rename="camel"):
    """A tool failed."""

    call_id: str
    tool_name: str
    message: str


class ElicitRequest(
    Struct, frozen=True, tag_field="type", tag="plugin_elicit_request", rename="camel", omit_defaults=True
):
    """A tool asks the person. The session id is the id of the tool call."""

    session_id: str
    call_id: str
    tool_name: str
    elicit_id: str
    key: str
    message: str
    schema: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    """What the question brings along (`x-model-context`)."""
    component: dict[str, Any] | None = None
    """The component that shows it, `name` and `props`; without one the page makes a form from the schema."""
    mode: str | None = None
    url: str | None = None


class SessionStatus(Struct, frozen=True, tag_field="type", tag="plugin_session_status", rename="camel"):
    """Where a tool call stands that asks."""

    session_id: str
    call_id: str
    tool_name: str
    status: str


class SessionError(Struct, frozen=True, tag_field="type", tag="plugin_session_error", rename="camel"):
    """An answer or an abort that cannot be followed."""

    session_id: str
    call_id: str
    error: str
    message: str


class ConversationState(Struct, frozen=True, tag_field="type", tag="conversation_state", rename="camel"):
    """The conversation as it stands while the person is asked."""

    conversation_id: str
    messages: list[Message]
    pending: list[ElicitRequest]
    usage: dict[str, int] = {}


class Complete(Struct, frozen=True, tag_field="type", tag="complete"):
    """The turn has ended, and why: `stop`, `stopped`, `length`, `iterations`, `budget`."""

    reason: str
    usage: dict[str, int]


class Failure(Struct, frozen=True, tag_field="type", tag="error"):
    """The turn has failed."""

    message: str
    code: str
    recoverable: bool = False


Event: TypeAlias = (
    SessionInfo
    | Text
    | Thinking
    | ToolCalls
    | ToolProgress
    | ToolResult
    | ToolError
    | ElicitRequest
    | SessionStatus
    | SessionError
    | ConversationState
    | Complete
    | Failure
)

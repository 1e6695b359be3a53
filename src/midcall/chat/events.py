"""Events: what a turn of the chat tells, as plain values. Each wire puts them into its own form.

The names and fields are those of `POST /chat`; another wire, as AG-UI, translates them.
"""

from typing import Any, TypeAlias

from msgspec import Struct

from midcall.models.base import Message


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

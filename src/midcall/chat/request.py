"""What a person's request to the chat says."""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from midcall.errors import MidcallError
from midcall.limits import Key

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

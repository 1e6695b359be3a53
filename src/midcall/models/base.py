"""Model: what the chat and sampling need of a language model, whoever runs it.

A request goes in as plain values, and a stream of events comes out: pieces of text as they are made, tool
calls when they are whole, and one `Stopped` at the end. A provider is one file beside this one; it knows its
own wire and nothing of hubs, chats or tools that run.
"""

import contextlib
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from midcall.branch import CHARACTERS
from midcall.errors import MidcallError

MAX_DEPTH = 100
"""How deep arguments may be nested. A model that is caught in a loop opens brackets without end, and what is
just shallow enough for one reader is too deep for the next."""


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A model wants a tool to be called. `arguments` is what it wrote, which may be no valid JSON."""

    id: str
    name: str
    arguments: str = "{}"

    def read_arguments(self) -> dict[str, Any]:
        """The arguments. Raises `ValueError` if the model did not write a JSON object."""
        if not self.arguments.strip():
            return {}
        try:
            found = msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"The arguments are not valid JSON: {error}") from None
        if not isinstance(found, dict):
            raise ValueError("The arguments must be a JSON object")  # noqa: TRY004  what a model wrote
        if _deeper_than(MAX_DEPTH, found):
            raise ValueError(f"The arguments are nested more than {MAX_DEPTH} deep")
        return found


class Attachment(Struct, frozen=True, omit_defaults=True):
    """A file that comes with a message. Its `data` are there when a model is asked, and kept elsewhere."""

    id: str
    name: str
    type: str
    """Its media type."""
    size: int
    data: bytes = b""


class Message(Struct, frozen=True, omit_defaults=True):
    """One message of a conversation.

    What the assistant says may have tool calls; what a tool gave has the id of its call. `thinking` is kept
    because some providers want it back; `extra` is whatever else a provider wants back as it was. `time` is
    when it was said, in seconds since 1970, if that is known.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    thinking: str = ""
    extra: dict[str, Any] = {}
    files: tuple[Attachment, ...] = ()
    time: float = 0.0


class ToolDefinition(Struct, frozen=True):
    """A tool that a model may call."""

    name: str
    description: str
    schema: dict[str, Any]


class ModelRequest(Struct, frozen=True):
    """What a model is asked."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    """If given, the answer is to be JSON that fits it."""
    tool_choice: Literal["auto", "required", "none"] = "auto"


class TextPart(Struct, frozen=True):
    """A piece of the answer."""

    text: str


class ThinkingPart(Struct, frozen=True):
    """A piece of what the model thinks before it answers."""

    text: str


class Usage(Struct, frozen=True):
    """What a request has cost, in tokens."""

    input: int = 0
    output: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.input + other.input, self.output + other.output)


class Stopped(Struct, frozen=True):
    """The end of an answer, and why:

    `stop`, `tool_calls`, `length`, `refusal`, or the provider's own word.
    """

    reason: str = "stop"
    usage: Usage = Usage()
    extra: dict[str, Any] = {}
    """What the provider wants back in `Message.extra`."""


def cost(request: ModelRequest, text: str, calls: Iterable[ToolCall], told: Usage) -> Usage:
    """What an answer has cost; estimated where the model does not tell, as a limit is to hold there too."""
    if told.input or told.output:
        return told
    asked = len(request.system or "") + sum(len(message.content) for message in request.messages)
    said = len(text) + sum(len(call.arguments) for call in calls)
    return Usage(asked // CHARACTERS + 1, said // CHARACTERS + 1)


ModelEvent: TypeAlias = TextPart | ThinkingPart | ToolCall | Stopped


# --- answers that fit a schema ----------------------------------------------------------------------
#
# Providers take only the schema of an object, with alternatives further inside. Where that is not what is
# asked for, they are asked for an object around it, which is taken off again.

_ANSWER = "answer"
_OPENING = re.compile(r'\s*\{\s*"answer"\s*:\s*')
_LONGEST_OPENING = 100
_ALTERNATIVES = frozenset({"oneOf", "anyOf", "allOf", "not", "if", "enum", "const", "$ref"})


def object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema as providers take it, with an object around it if there must be one."""
    if schema.get("type") == "object" and not schema.keys() & _ALTERNATIVES:
        return schema
    inner = {("anyOf" if key == "oneOf" else key): one for key, one in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {_ANSWER: inner}, "required": [_ANSWER]}
    return {**outer, "$defs": schema["$defs"]} if "$defs" in schema else outer


async def without_object(
    request: ModelRequest, events: AsyncGenerator[ModelEvent]
) -> AsyncGenerator[ModelEvent]:
    """The events of an answer, without the object that `object_schema` has put around it, if it has."""
    around = request.schema is not None and object_schema(request.schema) is not request.schema
    inner = _InnerText() if around else None
    async with contextlib.aclosing(events):
        async for event in events:
            if inner is None or not isinstance(event, TextPart | Stopped):
                yield event
                continue
            text = inner.rest() if isinstance(event, Stopped) else inner.feed(event.text)
            if text:
                yield TextPart(text)
            if isinstance(event, Stopped):
                yield event


class _InnerText:
    """Takes the object off, as the text comes."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False
        self._has_object = True

    def feed(self, text: str) -> str:
        """What can be given on of all that was fed."""
        held = self._held + text
        if not self._begun:
            opening = _OPENING.match(held)
            if opening is None and len(held) <= _LONGEST_OPENING:
                self._held = held
                return ""
            self._begun, self._has_object = True, opening is not None
            held = held if opening is None else held[opening.end() :]
        end = held.rfind("}") if self._has_object else -1  # it may be the last one
        self._held = "" if end < 0 else held[end:]
        return held if end < 0 else held[:end]

    def rest(self) -> str:
        """What is left when all was fed: not the end of the object."""
        return "" if self._begun else self._held


class ModelError(MidcallError):
    """A model gave no (whole) answer. The text is fit to be shown to a person."""

    code = "model_error"

    def __init__(self, message: str, *, recoverable: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.recoverable = recoverable
        self.status = status


def _deeper_than(depth: int, value: Any) -> bool:
    level = [value]
    while level and depth >= 0:
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        depth -= 1
    return bool(level)


class Model(Protocol):
    """A language model."""

    @property
    def name(self) -> str:
        """How the page and messages call it."""

    @property
    def scripted(self) -> bool:
        """Whether it is no model at all, but answers by a script: it is said wherever it shows."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer. Pieces come as they are made; `Stopped` is the last event. Raises `ModelError`.

        What fails before the first event is tried again with back-off, where that makes sense; what breaks
        off later is not. Closing the iterator stops the answer.
        """

    async def close(self) -> None:
        """Let go of connections."""


VARIABLE = "MIDCALL_MODEL"

KNOWN = "openai:NAME, anthropic:NAME, ollama:NAME, local, or scripted"


def takes_images(model: Model) -> bool:
    """Whether a model can be shown pictures: one that can says so with a true `images`."""
    return bool(getattr(model, "images", False))


def model_names(given: Iterable[str] = ()) -> list[str]:
    """The names of models that are given, or else in the environment, each once; a comma parts several."""
    named = list(given) or [os.environ.get(VARIABLE) or ""]
    found = (name.strip() for names in named for name in names.split(","))
    return list(dict.fromkeys(filter(None, found)))


def choose_model(name: str | None = None) -> Model | None:
    """The model of this name, or the first that the environment names; nothing if neither does.

    A name is `provider:model`. Raises `ValueError` for one that is unknown, or lacks its key.
    """
    name = name or next(iter(model_names()), None)
    if not name:
        return None
    provider, _, model = name.partition(":")
    match provider:
        case "scripted":
            from midcall.models.scripted import Scripted  # noqa: PLC0415  only the one that is chosen

            return Scripted()
        case "local":
            from midcall.models.local import Local  # noqa: PLC0415  as above

            return Local(model or None)
        case "openai" | "ollama" if model:
            from midcall.models.openai import openai_model  # noqa: PLC0415  as above

            return openai_model(provider, model)
        case "anthropic" if model:
            from midcall.models.anthropic import Anthropic  # noqa: PLC0415  as above

            return Anthropic(model)
    raise ValueError(f"{name!r} is not a model: use {KNOWN}")

"""Anthropic: Claude, by the Messages API."""

import os
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from midcall.models.base import (
    Attachment,
    Message,
    ModelError,
    ModelEvent,
    ModelRequest,
    Stopped,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
    object_schema,
    without_object,
)
from midcall.models.http_stream import HttpStream

KEY = "ANTHROPIC_API_KEY"
BASE = "ANTHROPIC_BASE_URL"
ANTHROPIC = "https://api.anthropic.com"
VERSION = "2023-06-01"
MAX_TOKENS = 4096
"""How long an answer may be, if the request does not say: the API wants a limit."""

THINKING = "anthropic_thinking"
"""Under which thoughts are kept as they were signed: the API wants them back beside the results of tools."""

_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


class Anthropic:
    """A model of Anthropic."""

    scripted = False
    images = True

    def __init__(
        self,
        model: str,
        *,
        key: str | None = None,
        base: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """The key is the one in the environment unless it is given; raises `ValueError` if there is none.

        `options` are added to each request as they are, as `{"thinking": {"type": "enabled", ...}}`.
        """
        key = key or os.environ.get(KEY)
        if not key:
            raise ValueError(f"anthropic:{model} needs a key in {KEY}")
        base = (base or os.environ.get(BASE) or ANTHROPIC).rstrip("/")
        self.name = f"anthropic:{model}"
        self._model = model
        self._options = dict(options or {})
        headers = {"x-api-key": key, "anthropic-version": VERSION}
        self._wire = HttpStream(self.name, f"{base}/v1/messages", headers, key=key)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        events = self._stream(request)
        return without_object(request, events) if self._answers_by_tool(request) else events

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        by_tool = self._answers_by_tool(request)
        blocks: dict[int, dict[str, str]] = {}
        thoughts: list[dict[str, str]] = []
        reason, spent, made = "", 0, 0
        async with aclosing(self._wire.objects(self._body(request))) as events:
            async for event in events:
                match event.get("type"):
                    case "message_start":
                        spent = int(
                            ((event.get("message") or {}).get("usage") or {}).get("input_tokens") or 0
                        )
                    case "content_block_start":
                        blocks[event["index"]] = _block(event.get("content_block") or {})
                    case "content_block_delta" if by_tool and "partial_json" in (event.get("delta") or {}):
                        yield TextPart(str(event["delta"]["partial_json"]))
                    case "content_block_delta":
                        part = _delta(blocks.setdefault(event["index"], _block({})), event.get("delta") or {})
                        if part is not None:
                            yield part
                    case "content_block_stop":
                        block = blocks.get(event["index"], {})
                        if block.get("type") == "tool_use" and not by_tool:
                            yield ToolCall(block["id"], block["name"], block["text"] or "{}")
                        elif block.get("type") in ("thinking", "redacted_thinking"):
                            thoughts.append(_thought(block))
                    case "message_delta":
                        reason = (event.get("delta") or {}).get("stop_reason") or reason
                        made = int((event.get("usage") or {}).get("output_tokens") or made)
        if not reason:
            raise ModelError(f"The answer of {self.name} broke off", recoverable=True)
        extra = {THINKING: thoughts} if thoughts else {}
        reason = "stop" if by_tool and reason == "tool_use" else _REASONS.get(reason, reason)
        yield Stopped(reason, Usage(spent, made), extra)

    async def close(self) -> None:
        await self._wire.close()

    def _answers_by_tool(self, request: ModelRequest) -> bool:
        """Whether an answer that must fit a schema is the input of a tool.

        That is not possible beside others, nor for a model that is told to think.
        """
        return request.schema is not None and not request.tools and "thinking" not in self._options

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        system = request.system or ""
        by_tool = self._answers_by_tool(request)
        if request.schema is not None and not by_tool:
            schema = msgspec.json.encode(request.schema).decode()
            system = f"{system}\n\nAnswer with JSON that fits this schema, and nothing else: {schema}".strip()
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.max_tokens or MAX_TOKENS,
            "messages": _messages(request.messages),
            "stream": True,
            **self._options,
        }
        if system:
            body["system"] = system
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
                for tool in request.tools
            ]
            choice = {"auto": "auto", "required": "any", "none": "none"}[request.tool_choice]
            if choice != "auto":
                body["tool_choice"] = {"type": choice}
        if request.schema is not None and by_tool:
            answer = {
                "name": "answer",
                "description": "Answer.",
                "input_schema": object_schema(request.schema),
            }
            body["tools"], body["tool_choice"] = [answer], {"type": "tool", "name": "answer"}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        return body


def _block(content: dict[str, Any]) -> dict[str, str]:
    return {
        "type": str(content.get("type", "text")),
        "id": str(content.get("id", "")),
        "name": str(content.get("name", "")),
        "text": str(content.get("data", "")),
        "signature": "",
    }


def _delta(block: dict[str, str], delta: dict[str, Any]) -> ModelEvent | None:
    match delta.get("type"):
        case "text_delta":
            return TextPart(str(delta.get("text", "")))
        case "thinking_delta":
            block["text"] += str(delta.get("thinking", ""))
            return ThinkingPart(str(delta.get("thinking", "")))
        case "signature_delta":
            block["signature"] += str(delta.get("signature", ""))
        case "input_json_delta":
            block["text"] += str(delta.get("partial_json", ""))
    return None


def _thought(block: dict[str, str]) -> dict[str, str]:
    if block["type"] == "redacted_thinking":
        return {"type": "redacted_thinking", "data": block["text"]}
    return {"type": "thinking", "thinking": block["text"], "signature": block["signature"]}


def _messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """As the API wants them: what tools gave is said by the user, and nobody speaks twice in a row."""
    made: list[dict[str, Any]] = []
    for message in messages:
        role, blocks = _said(message)
        if not blocks:
            continue
        if made and made[-1]["role"] == role:
            made[-1]["content"] += blocks
        else:
            made.append({"role": role, "content": blocks})
    return made


def _picture(file: Attachment) -> dict[str, Any]:
    data = b64encode(file.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": file.type, "data": data}}


def _said(message: Message) -> tuple[str, list[dict[str, Any]]]:
    if message.role == "tool":
        result: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": message.tool_call_id,
            "content": message.content,
        }
        return "user", [result | ({"is_error": True} if message.is_error else {})]
    # Text without a letter in it is refused.
    text = [{"type": "text", "text": message.content}] if message.content.strip() else []
    if message.role != "assistant":
        return "user", [*map(_picture, message.files), *text]
    blocks: list[dict[str, Any]] = [*message.extra.get(THINKING, ()), *text]
    for call in message.tool_calls:
        try:
            given = call.read_arguments()
        except ValueError:
            given = {"arguments": call.arguments}  # as it was written: the result says what was wrong
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    return "assistant", blocks

"""OpenAI, and everything that speaks its chat completions: Ollama, vLLM, llama.cpp, and many services."""

import os
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from midcall.models.base import (
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

KEY = "OPENAI_API_KEY"
BASE = "OPENAI_BASE_URL"
OPENAI = "https://api.openai.com/v1"

OLLAMA_HOST = "OLLAMA_HOST"
OLLAMA = "http://127.0.0.1:11434"


def openai_model(provider: str, model: str) -> "OpenAI":
    """A model of OpenAI, or of a compatible server; the environment says where, and with which key.

    Raises `ValueError` if the key is missing.
    """
    if provider == "ollama":
        host = os.environ.get(OLLAMA_HOST) or OLLAMA
        host = host if "://" in host else f"http://{host}"
        hint = "; is Ollama running? (`ollama serve`)"
        return OpenAI(model, base=f"{host.rstrip('/')}/v1", name=f"ollama:{model}", hint=hint)
    base, key = os.environ.get(BASE) or OPENAI, os.environ.get(KEY)
    if base == OPENAI and not key:
        raise ValueError(f"openai:{model} needs a key in {KEY}")
    return OpenAI(model, base=base, key=key)


class OpenAI:
    """A model behind chat completions."""

    scripted = False
    images = True

    def __init__(
        self,
        model: str,
        *,
        base: str = OPENAI,
        key: str | None = None,
        name: str | None = None,
        hint: str = "",
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        any_schema: bool = False,
    ) -> None:
        """`options` are added to each request as they are, as `{"reasoning_effort": "low"}`.

        `any_schema` says that the server takes the schema of anything, and not only that of an object.
        """
        self.name = name or f"openai:{model}"
        self._model = model
        self._official = base.startswith(OPENAI)
        self._options = dict(options or {})
        self._any_schema = any_schema
        sent = {**(headers or {}), **({} if key is None else {"Authorization": f"Bearer {key}"})}
        self._wire = HttpStream(self.name, f"{base.rstrip('/')}/chat/completions", sent, key=key, hint=hint)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        events = self._stream(request)
        return events if self._any_schema else without_object(request, events)

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        calls: list[_PartialCall] = []
        reason, usage = "", Usage()
        async with aclosing(self._wire.objects(self._body(request))) as chunks:
            async for chunk in chunks:
                usage = _usage(chunk) or usage
                for choice in chunk.get("choices") or ():
                    delta = choice.get("delta") or {}
                    thought = delta.get("reasoning_content") or delta.get("reasoning")
                    if isinstance(thought, str) and thought:
                        yield ThinkingPart(thought)
                    if delta.get("content"):
                        yield TextPart(str(delta["content"]))
                    for part in delta.get("tool_calls") or ():
                        _add(calls, part)
                    reason = choice.get("finish_reason") or reason
        if not reason:  # with calls too: half of the arguments may be missing
            raise ModelError(f"The answer of {self.name} broke off", recoverable=True)
        for call in calls:
            yield ToolCall(call.id, call.name, call.arguments or "{}")
        yield Stopped("tool_calls" if calls else _REASONS.get(reason, reason or "stop"), usage)

    async def close(self) -> None:
        await self._wire.close()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        system = [{"role": "system", "content": request.system}] if request.system else []
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [*system, *(_message(message) for message in request.messages)],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.schema,
                    },
                }
                for tool in request.tools
            ]
            if request.tool_choice != "auto":
                body["tool_choice"] = request.tool_choice
        if request.max_tokens is not None:
            body["max_completion_tokens" if self._official else "max_tokens"] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.stop:
            body["stop"] = list(request.stop)
        if request.schema is not None:
            schema = request.schema if self._any_schema else object_schema(request.schema)
            named = {"name": "answer", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return body


_REASONS = {"content_filter": "refusal", "function_call": "tool_calls"}


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if not message.tool_calls:
        return {"role": message.role, "content": _content(message)}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {"role": message.role, "content": message.content or None, "tool_calls": calls}


def _content(message: Message) -> str | list[dict[str, Any]]:
    """What is said, with the pictures that come with it before it."""
    if not message.files:
        return message.content
    pictures = [
        {"type": "image_url", "image_url": {"url": f"data:{one.type};base64,{b64encode(one.data).decode()}"}}
        for one in message.files
    ]
    text = [{"type": "text", "text": message.content}] if message.content.strip() else []
    return [*pictures, *text]


class _PartialCall(Struct):
    """A tool call, as far as it has come."""

    index: int | None
    id: str
    name: str
    arguments: str = ""


def _add(calls: list[_PartialCall], part: dict[str, Any]) -> None:
    """A piece of a tool call: the first one names it, the others add to its arguments.

    Servers differ: some give no index, and some the same one to all calls of an answer.
    """
    function = part.get("function") or {}
    index, id, name = part.get("index"), str(part.get("id") or ""), str(function.get("name") or "")
    call = next((one for one in reversed(calls) if one.index == index), None)
    if call is None or (name and (index is None or id not in ("", call.id))):
        call = _PartialCall(index, id, name)
        calls.append(call)
    call.name = call.name or name
    call.arguments += str(function.get("arguments") or "")


def _usage(chunk: dict[str, Any]) -> Usage | None:
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return None
    return Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))

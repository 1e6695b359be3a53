"""Results: what a call gave, as MCP says it.

A stream of data becomes one result: nothing, one item, strings joined, or a JSON array. Pictures,
sound and documents become content blocks of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from midcall.content import Audio, Content, Document, Embedded, Link, Passed
from midcall.errors import ProtocolError
from midcall.items import Error, to_json
from midcall.jsonrpc import INTERNAL_ERROR
from midcall.mcp import revisions
from midcall.mcp.catalog import Tool
from midcall.mcp.exchange import McpError
from midcall.mcp.passed import passed_contents, passed_result

ERROR_CODE = "dev.midcall/code"
"""Under which the metadata of a failed result say its error's code, if it has one of its own."""

NO_OUTPUT = "(no output)"
CACHE_MS = 60_000


def text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def tool_result(contents: Sequence[Any], failure: Error | None, tool: Tool, revision: str) -> dict[str, Any]:
    """The result of `tools/call`, as a caller of this revision knows it."""
    if failure is not None:
        if failure.code == ProtocolError.code:
            raise McpError(INTERNAL_ERROR, failure.message)
        meta = {} if failure.code == "tool_error" else {"_meta": {ERROR_CODE: failure.code}}
        return {"content": [text_block(failure.message)], "isError": True, **meta}
    if not contents:
        return {"content": [text_block(NO_OUTPUT)]}
    value = contents[0] if len(contents) == 1 else contents
    if isinstance(value, str):
        return {"content": [text_block(value)]}
    if isinstance(value, Passed):
        return passed_result(value, revision)
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(part, Content) for part in parts):
        return {"content": [_block(part, revision, number) for number, part in enumerate(parts, 1)]}
    if len(contents) > 1 and all(isinstance(part, str) for part in contents):
        return {"content": [text_block("".join(contents))]}
    encoded = to_json(value)
    result: dict[str, Any] = {"content": [text_block(encoded.decode())]}
    if tool.structured:
        result["structuredContent"] = Raw(encoded)
    return result


def _block(part: Any, revision: str, number: int) -> Any:
    """A content block; what a revision does not know becomes what it knows."""
    match part:
        case Audio() if revision < revisions.AUDIO:
            return Embedded(
                Document(f"midcall:audio/{number}", part.mime_type, blob=part.data), part.annotations
            )
        case Link() if revision < revisions.LINKS:
            return text_block(": ".join(filter(None, (part.title or part.name, part.description, part.uri))))
        case Content():
            return part
        case _:
            return text_block(part if isinstance(part, str) else to_json(part).decode())


def resource_result(
    uri: str, mime_type: str | None, contents: Sequence[Any], *, modern: bool
) -> dict[str, Any]:
    """The result of `resources/read`."""
    hints = cache_hints() if modern else {}
    if contents and isinstance(contents[0], Passed):
        return {**hints, **passed_contents(contents[0], modern=modern)}
    parts: list[Any] = []
    for value in contents:
        parts += value if isinstance(value, list | tuple) and _is_documents(value) else [value]
    return {"contents": [_document(uri, mime_type, part) for part in parts], **hints}


def _is_documents(value: Sequence[Any]) -> bool:
    return all(isinstance(part, Document) for part in value)


def _document(uri: str, mime_type: str | None, part: Any) -> Document:
    match part:
        case Document():
            return part
        case str():
            return Document(uri, mime_type or "text/plain", text=part)
        case bytes():
            return Document(uri, mime_type or "application/octet-stream", blob=part)
        case _:
            return Document(uri, mime_type or "application/json", text=to_json(part).decode())


def prompt_result(description: str, contents: Sequence[Any], revision: str) -> dict[str, Any]:
    """The result of `prompts/get`: texts are messages of the user."""
    if contents and isinstance(contents[0], Passed):
        return passed_result(contents[0], revision)
    parts: list[Any] = []
    for value in contents:
        parts += value if isinstance(value, list | tuple) else [value]
    messages = [_message(part, revision, number) for number, part in enumerate(parts, 1)]
    result: dict[str, Any] = {"messages": messages}
    if description:
        result["description"] = description
    return result


def _message(part: Any, revision: str, number: int) -> Any:
    if isinstance(part, Mapping) and "role" in part:
        content = part.get("content")
        if isinstance(content, str | Content):
            return {**part, "content": _block(content, revision, number)}
        return part
    return {"role": "user", "content": _block(part, revision, number)}


def cache_hints() -> dict[str, Any]:
    """How long a modern client may keep what it was told."""
    return {"ttlMs": CACHE_MS, "cacheScope": "private"}


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, whatever else a server may have put there."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text_of(content: Any) -> str:
    """The text among content blocks."""
    texts = [one.get("text") for one in objects_in(content) if one.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))

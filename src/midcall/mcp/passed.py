"""What another server answered, for a caller of this one: as it came, but for what its revision lacks."""

from typing import Any

import msgspec
from msgspec import Raw

from midcall import jsonrpc
from midcall.content import Passed, PassedError
from midcall.mcp import revisions
from midcall.mcp.exchange import McpError

NOT_FOUND = -32002
"""The code of a resource that a legacy server does not have."""

_BETWEEN = frozenset((jsonrpc.PARSE_ERROR, jsonrpc.INVALID_REQUEST, jsonrpc.METHOD_NOT_FOUND, -32020, -32022))
"""Codes of what went wrong between this server and the other one: the caller's request was none of these."""


def passed_result(passed: Passed, revision: str) -> dict[str, Any]:
    """The result for a caller of this revision. Raises `McpError` if the other server gave an error."""
    if passed.error is not None:
        raise error_of(passed.error)
    result = dict(passed.result)
    if revision in revisions.LEGACY:
        structured = result.get("structuredContent")
        if structured is not None and (revision < revisions.LINKS or not _is_object(structured)):
            del result["structuredContent"]
        if revision < revisions.LINKS:
            _say_older(result, revision)
    return result


def passed_contents(passed: Passed, *, modern: bool) -> dict[str, Any]:
    """The result of `resources/read`. Raises `McpError`."""
    error = passed.error
    if error is None:
        return dict(passed.result)
    not_found = error.code == NOT_FOUND or (error.code == jsonrpc.INVALID_PARAMS and _names_uri(error))
    if not_found:
        error = PassedError(jsonrpc.INVALID_PARAMS if modern else NOT_FOUND, error.message, error.data)
    raise error_of(error)


def error_of(error: PassedError) -> McpError:
    """The error for the caller."""
    if error.code in _BETWEEN:
        return McpError(jsonrpc.INTERNAL_ERROR, f"The server behind refused: {error.message}", error.data)
    return McpError(error.code, error.message, error.data)


def _names_uri(error: PassedError) -> bool:
    return isinstance(error.data, dict) and "uri" in error.data


def _is_object(value: Any) -> bool:
    return bytes(value).lstrip()[:1] == b"{" if isinstance(value, Raw) else isinstance(value, dict)


def _say_older(result: dict[str, Any], revision: str) -> None:
    """Say what an old revision has no kind of content for in a kind that it has."""
    if "content" in result:
        result["content"] = [_block(one, revision, number) for number, one in _listed(result["content"])]
    if "messages" in result:
        result["messages"] = [
            {**one, "content": _block(one.get("content"), revision, number)} if isinstance(one, dict) else one
            for number, one in _listed(result["messages"])
        ]


def _listed(value: Any) -> list[tuple[int, Any]]:
    found = msgspec.json.decode(value) if isinstance(value, Raw) else value
    return list(enumerate(found, 1)) if isinstance(found, list) else []


def _block(block: Any, revision: str, number: int) -> Any:
    match block:
        case {"type": "resource_link", "uri": uri, "name": name}:
            texts = (block.get("title") or name, block.get("description"), uri)
            return {"type": "text", "text": ": ".join(str(text) for text in texts if text)}
        case {"type": "audio", "data": data} if revision < revisions.AUDIO:
            kind = block.get("mimeType", "audio/wav")
            sound = {"uri": f"midcall:audio/{number}", "mimeType": kind, "blob": data}
            return {"type": "resource", "resource": sound}
    return block

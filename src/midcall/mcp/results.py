"""Results: what a call gave, as MCP says it.

A stream of data becomes one result: nothing, one item, strings joined, or a JSON array. Pictures,
sound and documents become content blocks of their own. What another server answered goes on as it came, but
for what the caller's revision lacks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from midcall import jsonrpc
from midcall.content import Audio, Content, Document, Embedded, Image, Listing, Passed, PassedError
from midcall.errors import BadPage, ProtocolError, ToolError, UnknownResource
from midcall.items import (
    UNSENDABLE,
    Data,
    Error,
    Item,
    Log,
    Progress,
    to_builtins,
    to_json,
    why_unsendable,
)
from midcall.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from midcall.mcp import revisions
from midcall.mcp.catalog import Tool
from midcall.mcp.request import McpError, McpRequest, Outcome
from midcall.plexus.protocol import MAX_MESSAGE, TOO_LARGE

ERROR_CODE = "dev.midcall/code"
"""Under which the metadata of a failed result say its error's code, if it has one of its own."""

NO_OUTPUT = "(no output)"

CACHE_MS = 60_000

MISSED = 16
"""How many reports of progress are kept, the newest, while no request waits for a call."""


def text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def tool_result(tool: Tool, revision: str, contents: Sequence[Any], failure: Error | None) -> dict[str, Any]:
    """The result of `tools/call`, as a caller of this revision knows it."""
    if failure is not None:
        if failure.code == ProtocolError.code:
            raise McpError(INTERNAL_ERROR, failure.message)
        meta = {} if failure.code == "tool_error" else {"_meta": {ERROR_CODE: failure.code}}
        return {"content": [text_block(failure.message)], "isError": True, **meta}
    value = tool.found.method.whole(contents)
    if isinstance(value, Passed):
        return passed_result(value, revision)
    streaming = tool.found.method.streaming
    if not tool.structured:
        return {"content": _blocks(contents, value, revision, streaming=streaming)}
    encoded = to_json(value)
    return {
        "content": _blocks(contents, value, revision, encoded, streaming=streaming),
        "structuredContent": Raw(encoded if tool.structured == "object" else b'{"result":%b}' % encoded),
    }


def _blocks(
    contents: Sequence[Any], value: Any, revision: str, encoded: bytes | None = None, *, streaming: bool
) -> list[Any]:
    """What a tool gave, as content. `value` is all of it as one; `encoded` is that as JSON, if known."""
    if not contents:
        return [text_block(NO_OUTPUT)]
    if streaming and isinstance(value, list):
        if len(value) == 1:
            value, encoded = value[0], None
        elif all(isinstance(item, str) for item in value):
            value = "".join(value)
    if isinstance(value, str):
        return [text_block(value)]
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(part, Content) for part in parts):
        return [_block(part, revision, number) for number, part in enumerate(parts, 1)]
    return [text_block(_text(encoded or to_json(value)))]


def _text(encoded: bytes) -> str:
    """A value as text: JSON; a date, an enum and the like without quotes."""
    text: str = msgspec.json.decode(encoded) if encoded[:1] == b'"' else encoded.decode()
    return text


def _block(part: Any, revision: str, number: int) -> Any:
    """A content block, as a caller of this revision knows it."""
    if isinstance(part, Content):
        return part if revision >= revisions.LINKS else _known_block(to_builtins(part), revision, number)
    return text_block(part if isinstance(part, str) else _text(to_json(part)))


def resource_result(
    uri: str,
    mime_type: str | None,
    changes: bool,
    revision: str,
    contents: Sequence[Any],
    failure: Error | None,
) -> dict[str, Any]:
    """The result of `resources/read`. Of what `changes` often, no copy is kept."""
    modern = revision in revisions.MODERN
    if failure is not None and failure.code == UnknownResource.code:
        raise no_resource(uri, modern=modern)
    _check(failure)
    hints = {**cache_hints(), **({"ttlMs": 0} if changes else {})} if modern else {}
    if contents and isinstance(contents[0], Passed):
        return {**hints, **passed_contents(contents[0], modern=modern)}
    parts: list[Any] = []
    for value in contents:
        parts += value if isinstance(value, list | tuple) and _has_documents(value) else [value]
    several = len(parts) > 1
    return {"contents": [_document(uri, mime_type, part, several=several) for part in parts], **hints}


def no_resource(uri: str, *, modern: bool) -> McpError:
    """What is said of a URI at which there is nothing."""
    return McpError(INVALID_PARAMS if modern else -32002, f"Resource not found: {uri}", {"uri": uri})


def _has_documents(value: Sequence[Any]) -> bool:
    return not value or any(isinstance(part, Document | Embedded | Image | Audio) for part in value)


def _document(uri: str, mime_type: str | None, part: Any, *, several: bool) -> Document:
    """The type that was declared is that of a picture too, unless there is more than that."""
    match part:
        case Document():
            return part
        case Embedded():
            return part.resource
        case Image() | Audio():
            own = part.mime_type if several else mime_type or part.mime_type
            return Document(uri, own, blob=part.data)
        case str():
            return Document(uri, mime_type or "text/plain", text=part)
        case bytes():
            return Document(uri, mime_type or "application/octet-stream", blob=part)
        case _:
            return Document(uri, mime_type or "application/json", text=to_json(part).decode())


def prompt_result(
    description: str, revision: str, contents: Sequence[Any], failure: Error | None
) -> dict[str, Any]:
    """The result of `prompts/get`: texts are messages of the user."""
    if failure is not None and failure.code == UnknownResource.code:
        raise McpError(INVALID_PARAMS, failure.message)
    _check(failure)
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


def completion_result(revision: str, contents: Sequence[Any], failure: Error | None) -> dict[str, Any]:
    """The result of `completion/complete`."""
    _check(failure)
    if contents and isinstance(contents[0], Passed):
        return passed_result(contents[0], revision)
    values = [str(v) for part in contents for v in (part if isinstance(part, list) else [part])]
    return {"completion": {"values": values[:100], "total": len(values), "hasMore": len(values) > 100}}


def list_result(part: str, shown: Sequence[Any], more: str | None, revision: str) -> dict[str, Any]:
    """The result of a list."""
    result: dict[str, Any] = {part: shown} if more is None else {part: shown, "nextCursor": more}
    return {**result, **cache_hints()} if revision in revisions.MODERN else result


def listing_result(
    part: str,
    prefix: str,
    first: list[Any],
    number: str,
    others: str | None,
    is_left_out: Callable[[str, Mapping[str, Any]], bool],
    revision: str,
    contents: Sequence[Any],
    failure: Error | None,
) -> dict[str, Any]:
    """The result of a list, of what is known beforehand and a page of what a `@listing` gave."""
    if failure is not None and failure.code == BadPage.code:
        raise McpError(INVALID_PARAMS, "Invalid cursor")
    _check(failure)
    page = contents[0] if contents and isinstance(contents[0], Listing) else Listing()
    named = [{**one, "name": f"{prefix}{one['name']}"} if part == "prompts" else one for one in page.items]
    named = [one for one in named if not is_left_out(part, one)]
    more = others if page.next is None else f"{number}:{page.next}"
    result = list_result(part, [*first, *named], more, revision)
    return {**result, "ttlMs": 0} if "ttlMs" in result else result


def _check(failure: Error | None) -> None:
    """Raise `McpError` if the call failed: only tools have a result for that."""
    if failure is not None:
        raise McpError(INTERNAL_ERROR, failure.message)


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


def unwrapped(structured: Any) -> Any:
    """Structured content, without the `{"result": ...}` around what is no object."""
    is_wrapped = isinstance(structured, dict) and [*structured] == ["result"]
    return structured["result"] if is_wrapped else structured


# --- while a call runs ----------------------------------------------------------------------------


Finish: TypeAlias = Callable[[Sequence[Any], Error | None], dict[str, Any]]
"""Makes the result of the request from what the call gave. Raises `McpError` for an error."""


class McpReply:
    """What goes back to a request: progress and log while its call runs, and at the end the result."""

    __slots__ = ("_missed", "_name", "_progress", "_size", "contents", "failure", "finish", "request")

    def __init__(self, request: McpRequest | None, finish: Finish, name: str) -> None:
        self.request = request
        self.finish = finish
        self._name = name
        """Of the method that is called."""
        self.contents: list[Any] = []
        self.failure: Error | None = None
        self._progress = -1.0
        self._missed: list[Progress] | None = None
        """How far the call came while no request waited for it."""
        self._size = 0

    @property
    def log_level(self) -> str | None:
        """The least level of log that is wanted, or none."""
        return self.request.caller.log_level if self.request is not None else None

    @property
    def full(self) -> bool:
        return self.request is not None and self.request.stream.full

    async def drain(self) -> None:
        if self.request is not None:
            await self.request.stream.drain()

    def add(self, item: Item) -> None:
        """Take what the call emits, but for its questions and its end."""
        if isinstance(item, Data):
            self._collect(item.content)
        elif isinstance(item, Error):
            self.failure = item
        elif isinstance(item, Progress | Log):
            if self.request is not None:
                self._report(self.request, item)
            elif isinstance(item, Progress):
                self._missed = [*(self._missed or ()), item][-MISSED:]

    def come_back(self, request: McpRequest) -> None:
        """Another request waits for the call: it hears how far that has come meanwhile."""
        self.request = request
        missed, self._missed = self._missed, None
        for report in missed or ():
            self._report(request, report)

    def _collect(self, content: Any) -> None:
        """Keep a piece of the result; a stream without an end is stopped here."""
        if self.contents:
            self._size += len(content) if isinstance(content, str | bytes) else len(to_json(content))
            if self._size > MAX_MESSAGE:
                self.contents.clear()
                raise ToolError(TOO_LARGE, code="result_too_large")
        self.contents.append(content)

    def outcome(self) -> Outcome:
        """The result of the call, or the error that the request is answered with."""
        try:
            return self.finish(self.contents, self.failure)
        except McpError as error:
            return error
        except UNSENDABLE as error:  # something that JSON cannot carry
            return McpError(INTERNAL_ERROR, why_unsendable(error))

    def go_on_after(self, before: "McpReply") -> None:
        """Another one has told how far the call is, up to here."""
        self._progress = before._progress

    def _report(self, request: McpRequest, item: Progress | Log) -> None:
        if isinstance(item, Log):
            if request.caller.hears(item.level):
                data = item.message if item.data is None else item.data
                if item.message and item.data is not None:
                    data = {"message": item.message, "data": item.data}
                params: dict[str, Any] = {
                    "level": item.level,
                    "logger": self._name,
                    "data": data,
                }
                request.notify("notifications/message", params)
            return
        token = request.meta.progress_token
        if token is None:
            return
        value = item.percentage if item.percentage is not None else self._progress + 1
        if value <= self._progress:
            return  # the protocol knows progress only upwards
        self._progress = value
        params = {"progressToken": token, "progress": value, "message": item.message}
        if item.percentage is not None:
            params["total"] = 100
        request.notify("notifications/progress", params)


# --- what another server answered -----------------------------------------------------------------------


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
        return McpError(jsonrpc.INTERNAL_ERROR, f"The upstream server refused: {error.message}", error.data)
    return McpError(error.code, error.message, error.data)


def _names_uri(error: PassedError) -> bool:
    return isinstance(error.data, dict) and "uri" in error.data


def _is_object(value: Any) -> bool:
    return bytes(value).lstrip()[:1] == b"{" if isinstance(value, Raw) else isinstance(value, dict)


def _say_older(result: dict[str, Any], revision: str) -> None:
    """Say what an old revision has no kind of content for in a kind that it has."""
    if "content" in result:
        result["content"] = [
            _known_block(one, revision, number) for number, one in _listed(result["content"])
        ]
    if "messages" in result:
        result["messages"] = [
            {**one, "content": _known_block(one.get("content"), revision, number)}
            if isinstance(one, dict)
            else one
            for number, one in _listed(result["messages"])
        ]


def _listed(value: Any) -> list[tuple[int, Any]]:
    found = msgspec.json.decode(value) if isinstance(value, Raw) else value
    return list(enumerate(found, 1)) if isinstance(found, list) else []


def _known_block(block: Any, revision: str, number: int) -> Any:
    """A content block; what a revision does not know becomes what it knows."""
    match block:
        case {"type": "resource_link", "uri": uri, "name": name}:
            texts = (block.get("title") or name, block.get("description"), uri)
            return text_block(": ".join(str(text) for text in texts if text))
        case {"type": "audio", "data": data, **more} if revision < revisions.AUDIO:
            kind = more.pop("mimeType", "audio/wav")
            sound = {"uri": f"midcall:audio/{number}", "mimeType": kind, "blob": data}
            return {**more, "type": "resource", "resource": sound}
    return block


# --- what a call came to, as it is kept ------------------------------------------------------------


def encode_outcome(outcome: Outcome) -> bytes:
    """An outcome as it is kept; of what JSON cannot carry, that it cannot."""
    try:
        if not isinstance(outcome, McpError):
            return to_json({"result": outcome})
        code, message, data, status = outcome.code, outcome.message, outcome.data, outcome.status
        return to_json({"error": {"code": code, "message": message, "data": data, "status": status}})
    except UNSENDABLE as error:
        return encode_outcome(McpError(INTERNAL_ERROR, why_unsendable(error)))


def decode_outcome(encoded: bytes) -> Outcome:
    """A kept outcome."""
    kept = msgspec.json.decode(encoded)
    return McpError(**kept["error"]) if "error" in kept else kept.get("result", {})

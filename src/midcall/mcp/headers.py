"""The headers that repeat parts of a modern request, and the check that they agree with it."""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from midcall.mcp import revisions
from midcall.mcp.catalog import Tool
from midcall.mcp.request import McpError

HEADER_MISMATCH = -32020

_PREFIX, _SUFFIX = "=?base64?", "?="

_NAME_OF = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "task_id",
    "tasks/update": "task_id",
    "tasks/cancel": "task_id",
}
"""The field of the parameters that the header `Mcp-Name` repeats."""

Headers: TypeAlias = Mapping[bytes, bytes]
"""The headers of a request, their names in lower case."""


def check_headers(
    headers: Headers,
    method: str,
    params: Any,
    revision: str | None,
    find_tool: Callable[[str], Tool | None],
) -> None:
    """Raise unless the headers say what the request says. One that names no revision is not checked."""
    if revision is None:
        return
    version = headers.get(b"mcp-protocol-version")
    if version != revision.encode():
        raise _mismatch(f"MCP-Protocol-Version is {_text_of(version)!r}, but the body says {revision!r}")
    if revision not in revisions.MODERN:
        return
    given = headers.get(b"mcp-method")
    if given != method.encode():
        _same("Mcp-Method", _text_of(given), method)
    field = _NAME_OF.get(method)
    name = None if field is None else getattr(params, field, None)
    if name is not None:
        given = headers.get(b"mcp-name")
        if given is None or not given.isascii() or given != name.encode():
            _same("Mcp-Name", _decoded("Mcp-Name", _text_of(given)), name)
        if method == "tools/call":
            tool = find_tool(name)
            if tool is not None and tool.headers:
                _check_arguments(headers, tool, params.arguments)


def _check_arguments(headers: Headers, tool: Tool, arguments: Raw) -> None:
    """Some arguments may be repeated too."""
    values = msgspec.json.decode(arguments) if bytes(arguments) else {}
    for path, name in tool.headers:
        value = _value_at(values, path)
        header = f"Mcp-Param-{name}"
        given = _decoded(header, _text_of(headers.get(header.lower().encode())))
        if value is not None:
            _same(header, given, _text(value), number=isinstance(value, int | float))


def _same(name: str, given: str | None, expected: str, *, number: bool = False) -> None:
    if given is None:
        raise _mismatch(f"the header {name} is missing")
    if given == expected or (number and _as_number(given) == _as_number(expected)):
        return
    raise _mismatch(f"{name} is {given!r}, but the body says {expected!r}")


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _decoded(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    value = value.strip()
    if not (value.startswith(_PREFIX) and value.endswith(_SUFFIX)):
        return value
    try:
        return base64.b64decode(value[len(_PREFIX) : -len(_SUFFIX)], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _mismatch(f"{name} is not valid base64") from None


def _text_of(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _value_at(arguments: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(part)
    return arguments


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _mismatch(what: str) -> McpError:
    return McpError(HEADER_MISMATCH, f"Header mismatch: {what}", status=400)

"""The headers that repeat parts of a modern request, and the check that they agree with it."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from midcall.mcp.catalog import Tool
from midcall.mcp.exchange import McpError

HEADER_MISMATCH = -32020

_PREFIX, _SUFFIX = "=?base64?", "?="

_NAME_OF = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


def check(headers: Mapping[str, str], method: str, params: Any, tool: Tool | None) -> None:
    """Raise unless the headers (their names in lower case) say what the request says."""
    _same("Mcp-Method", headers.get("mcp-method"), method)
    field = _NAME_OF.get(method)
    if field is not None and isinstance(params, dict) and isinstance(params.get(field), str):
        _same("Mcp-Name", _decoded("Mcp-Name", headers.get("mcp-name")), params[field])
    if tool is not None and tool.headers:
        arguments = params.get("arguments") or {}
        for path, name in tool.headers:
            value = _value_at(arguments, path)
            given = _decoded(f"Mcp-Param-{name}", headers.get(f"mcp-param-{name.lower()}"))
            if value is not None:
                _same(f"Mcp-Param-{name}", given, _text(value), number=isinstance(value, int | float))


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

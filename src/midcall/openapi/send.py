"""Arguments to a request: the path, the query, headers, cookies and the body of an operation.

Whatever a caller gives is data: it is escaped for the place that it goes to, and refused where it would lead
to another path or end a header. No sockets here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from midcall.errors import InvalidArguments
from midcall.openapi.operations import Operation, Parameter

_BAD_HEADER = re.compile(r"[^\x20-\x7e\xa0-\xff]")
_SEPARATORS = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


class ApiRequest(Struct, frozen=True):
    """What is sent, without credentials."""

    verb: str
    path: str
    """Escaped, below the URL of the API; with the query."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


def build(operation: Operation, arguments: Mapping[str, Any]) -> ApiRequest:
    """The request of an operation. Raises `InvalidArguments` for values that cannot be sent where they go."""
    path = operation.path
    query: list[tuple[str, str]] = []
    headers: list[tuple[str, str]] = []
    cookies: list[str] = []
    for one in operation.parameters:
        value = arguments.get(one.argument)
        match one.location:
            case "path":
                path = path.replace("{" + one.name + "}", _segment(operation, one, value))
            case _ if value is None:
                continue
            case _ if one.spreads and isinstance(value, dict) and _given(operation, value):
                raise _fault(operation, one, f"has {_given(operation, value)!r}, which is not yours to give")
            case "query":
                query += _pairs(one, value)
            case "header":
                text = _joined(one, value, str)
                if _BAD_HEADER.search(text):
                    raise _fault(operation, one, "has characters that no header can carry")
                headers.append((one.name, text))
            case "cookie":
                cookies += [f"{name}={text}" for name, text in _pairs(one, value)]
    if query:
        path += "?" + "&".join(f"{name}={text}" for name, text in query)
    if cookies:
        headers.append(("Cookie", "; ".join(cookies)))
    media, body = _body(operation, arguments)
    if media:
        headers.append(("Content-Type", media))
    return ApiRequest(operation.verb, path, tuple(headers), body)


def _given(operation: Operation, value: Mapping[str, Any]) -> str | None:
    """A name in here that is not the caller's to give, if there is one."""
    return next((name for name in value if name.lower() in operation.given), None)


def _segment(operation: Operation, one: Parameter, value: Any) -> str:
    """A value as a part of the path, of which it cannot leave its place."""
    text = _joined(one, value, str)
    if not text:
        raise _fault(operation, one, "is a part of the path, and cannot be empty")
    if any(part in (".", "..") for part in re.split(r"[/\\]", text)):
        raise _fault(operation, one, "is a part of the path, and cannot lead to another one")
    return _joined(one, value, _escaped)


def _joined(one: Parameter, value: Any, escape: Callable[[str], str]) -> str:
    """A value as one text, in which only what separates its parts is not escaped."""
    if one.as_json:
        return escape(msgspec.json.encode(value).decode())
    if isinstance(value, list):
        return _SEPARATORS.get(one.style, ",").join(escape(_plain(inner)) for inner in value)
    if isinstance(value, dict):
        between = "=" if one.explode else ","
        return ",".join(f"{escape(key)}{between}{escape(_plain(inner))}" for key, inner in value.items())
    return escape(_plain(value))


def _pairs(one: Parameter, value: Any) -> Iterator[tuple[str, str]]:
    """A value as pairs of a query, a form, or of cookies, escaped."""
    name = quote(one.name, safe="[]$")
    if isinstance(value, list) and one.explode and not one.as_json:
        yield from ((name, _escaped(_plain(inner))) for inner in value)
    elif isinstance(value, dict) and one.style == "deepObject":
        yield from _deep(name, value)
    elif isinstance(value, dict) and one.explode and not one.as_json:
        yield from ((_escaped(key), _escaped(_plain(inner))) for key, inner in value.items())
    else:
        yield name, _joined(one, value, _escaped)


def _deep(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _deep(f"{name}[{_escaped(key)}]", inner)
    elif isinstance(value, list):
        yield from ((f"{name}[]", _escaped(_plain(inner))) for inner in value)
    else:
        yield name, _escaped(_plain(value))


def _body(operation: Operation, arguments: Mapping[str, Any]) -> tuple[str, bytes]:
    """The media type and the bytes of the body; nothing if there is none."""
    body = operation.body
    if body is None:
        return "", b""
    if body.argument is not None:
        if body.argument not in arguments:
            return "", b""
        value = arguments[body.argument]
    else:
        value = {name: arguments[one] for one, name in body.properties.items() if one in arguments}
        if not value and not body.required:
            return "", b""
    if body.media == "text/plain":
        return "text/plain; charset=utf-8", _plain(value).encode()
    if body.media == "application/x-www-form-urlencoded":
        pairs = (pair for name, one in value.items() for pair in _pairs(Parameter("", name, "query"), one))
        return body.media, "&".join(f"{name}={text}" for name, text in pairs).encode()
    return body.media, msgspec.json.encode(value)


def _plain(value: Any) -> str:
    """A value as it is written in a URL or a header."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _escaped(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _fault(operation: Operation, one: Parameter, message: str) -> InvalidArguments:
    return InvalidArguments(operation.name, [{"path": one.argument, "message": message}])

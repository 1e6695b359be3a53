"""Arguments of tools that go into HTTP headers too, so that whoever routes requests sees them.

A tool says so in its input schema (`x-mcp-header`). One that says it wrongly is left out of the list, as the
specification wants it.
"""

import base64
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from midcall.mcp.request import value_at

log = logging.getLogger("midcall.client")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")


class HeaderParams:
    """Which arguments of which tools are mirrored."""

    def __init__(self) -> None:
        self._wanted: dict[str, list[tuple[tuple[str, ...], str]]] = {}

    def read(self, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take note of the tools of a server; gives those that can be used."""
        usable = []
        self._wanted = {}
        for tool in tools:
            try:
                wanted = _all_mirrored(tool.get("inputSchema") or {})
            except (ValueError, RecursionError) as error:
                log.warning("left out the tool %s: %s", tool.get("name"), error)
                continue
            if wanted:
                self._wanted[str(tool.get("name"))] = wanted
            usable.append(tool)
        return usable

    def headers(self, name: str, arguments: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
        """The headers for a call of a tool, as far as the tool is known."""
        wanted = self._wanted.get(name)
        if not wanted or not arguments:
            return ()
        found = ((header, value_at(arguments, path)) for path, header in wanted)
        return tuple(
            (f"Mcp-Param-{header}", header_value(value)) for header, value in found if value is not None
        )


def _all_mirrored(schema: Any) -> list[tuple[tuple[str, ...], str]]:
    """The paths of arguments, and the header of each. Raises `ValueError` for what is not allowed."""
    wanted = list(_mirrored(schema, ()))
    names = [header.lower() for _, header in wanted]
    if len(set(names)) != len(names):
        raise ValueError("two arguments have the same header")
    return wanted


def _mirrored(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        _refuse_elsewhere(schema)
        return
    _refuse_elsewhere({key: value for key, value in schema.items() if key != "properties"})
    for name, one in properties.items():
        if not isinstance(one, dict):
            continue
        if "x-mcp-header" in one:
            header = one["x-mcp-header"]
            if not isinstance(header, str) or not _TOKEN.fullmatch(header):
                raise ValueError(f"{header!r} is not the name of a header")
            if one.get("type") not in ("string", "integer", "boolean"):
                raise ValueError(
                    f"{name} is mirrored into a header, and is not text, an integer or a boolean"
                )
            yield (*path, name), header
        yield from _mirrored({k: v for k, v in one.items() if k != "x-mcp-header"}, (*path, name))


def _refuse_elsewhere(schema: Any) -> None:
    """A header is only for what has one place in the arguments."""
    if isinstance(schema, dict):
        if "x-mcp-header" in schema:
            raise ValueError("a header for what has no fixed place in the arguments")
        for value in schema.values():
            _refuse_elsewhere(value)
    elif isinstance(schema, list):
        for value in schema:
            _refuse_elsewhere(value)


def header_value(value: Any) -> str:
    """A value as a header carries it."""
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if _PLAIN.fullmatch(text) and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="

"""One schema for all calls of a server's tools, and the check of a call before it is sent.

The schema is made from what the server lists: for whoever has to produce a valid request, as a model with
structured output. Each tool's own schema is put in under an `$id`, so that references inside it keep their
meaning.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from midcall.errors import InvalidArguments, MethodNotFound
from midcall.json_schema import compiled
from midcall.limits import near_matches

MAX_FAULTS = 10
"""How many faults of one call are told."""


def request_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a call of one of these tools looks like: `{"name", "arguments"}`."""
    return {"type": "object", "oneOf": [_branch(tool) for tool in tools]}


def check_call(tools: Sequence[Mapping[str, Any]], name: str, arguments: Mapping[str, Any]) -> None:
    """Raise `MethodNotFound` or `InvalidArguments`, in words that a model can act on, if this would fail."""
    tool = next((one for one in tools if one.get("name") == name), None)
    if tool is None:
        names = [str(one.get("name")) for one in tools]
        raise MethodNotFound(name, near_matches(name, names))
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict):
        return
    try:
        faults = compiled(schema).faults(dict(arguments), MAX_FAULTS)
    except ValueError as error:  # the server's schema is none, or the arguments are too much for it
        faults = [{"path": "", "message": str(error)}]
    if faults:
        raise InvalidArguments(name, faults)


def _branch(tool: Mapping[str, Any]) -> dict[str, Any]:
    name = str(tool["name"])
    schema = tool.get("inputSchema")
    arguments = dict(schema) if isinstance(schema, dict) else {"type": "object"}
    if "$id" not in arguments and ("$defs" in arguments or "definitions" in arguments):
        arguments = {"$id": f"urn:tool:{quote(name, safe='')}", **arguments}
    return {
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }

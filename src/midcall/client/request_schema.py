"""One schema for all calls of a server's tools, and the check of a call before it is sent.

The schema is made from what the server lists: for whoever has to produce a valid request, as a model with
structured output. Each tool's own schema is put in under an `$id`, so that references inside it keep their
meaning.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import jsonschema_rs

from midcall.errors import InvalidArguments, MethodNotFound

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
        raise MethodNotFound(name, difflib.get_close_matches(name, names, n=3))
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict):
        return
    try:
        validator = jsonschema_rs.validator_for(schema, retriever=_not_fetched)
    except (ValueError, jsonschema_rs.ValidationError):
        return  # the server's schema is none: the server itself decides
    faults = []
    for error in validator.iter_errors(dict(arguments)):
        path = ".".join(str(part) for part in error.instance_path)
        faults.append({"path": path, "message": error.message})
        if len(faults) == MAX_FAULTS:
            break
    if faults:
        raise InvalidArguments(name, faults)


def _not_fetched(uri: str) -> Any:
    """The schema is a stranger's: what it refers to is not fetched, neither from the net nor from a file."""
    raise ValueError(f"{uri} is outside of the schema")


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

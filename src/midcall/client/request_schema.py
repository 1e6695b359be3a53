"""One schema for all that can be asked of a server, and the check of a call before it is sent.

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


def call_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a call of one of these tools looks like: `{"name", "arguments"}`."""
    return {"oneOf": [_tool_branch(tool) for tool in tools]}


def request_schema(
    tools: Sequence[Mapping[str, Any]],
    resources: Sequence[Mapping[str, Any]] = (),
    templates: Sequence[Mapping[str, Any]] = (),
    prompts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What a request for one of these looks like: `{"method", "params"}`."""
    branches = []
    if tools:
        branches.append(_request("tools/call", call_schema(tools)))
    readable = [_resource_branch({"enum": [one["uri"] for one in resources]})] if resources else []
    readable += [
        _resource_branch({"type": "string", "pattern": _pattern(one["uriTemplate"])}) for one in templates
    ]
    if readable:
        branches.append(_request("resources/read", {"anyOf": readable}))
    if prompts:
        branches.append(_request("prompts/get", {"oneOf": [_prompt_branch(one) for one in prompts]}))
    return {"oneOf": branches}


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


def _tool_branch(tool: Mapping[str, Any]) -> dict[str, Any]:
    name = str(tool["name"])
    schema = tool.get("inputSchema")
    arguments = dict(schema) if isinstance(schema, dict) else {"type": "object"}
    if "$id" not in arguments and ("$defs" in arguments or "definitions" in arguments):
        arguments = {"$id": f"urn:tool:{quote(name, safe='')}", **arguments}
    return _closed({"name": {"const": name}, "arguments": arguments})


def _resource_branch(uri: dict[str, Any]) -> dict[str, Any]:
    return _closed({"uri": uri})


def _prompt_branch(prompt: Mapping[str, Any]) -> dict[str, Any]:
    known = [one for one in prompt.get("arguments") or () if isinstance(one, Mapping)]
    arguments: dict[str, Any] = {
        "type": "object",
        "properties": {
            str(one["name"]): {"type": "string"}
            | ({"description": one["description"]} if one.get("description") else {})
            for one in known
        },
        "additionalProperties": False,
    }
    required = [str(one["name"]) for one in known if one.get("required")]
    if required:
        arguments["required"] = required
    branch = _closed({"name": {"const": prompt["name"]}, "arguments": arguments})
    return branch if required else {**branch, "required": ["name"]}


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return _closed({"method": {"const": method}, "params": params})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _pattern(template: str) -> str:
    """A URI template as a regular expression, with any text where it has a part."""
    pattern, rest = "^", template
    while rest:
        text, brace, rest = rest.partition("{")
        pattern += _escaped(text)
        if brace:
            _, _, rest = rest.partition("}")
            pattern += ".+"
    return pattern + "$"


def _escaped(text: str) -> str:
    """As JSON Schema's regular expressions want it: `re.escape` escapes more than they allow."""
    return "".join(f"\\{one}" if one in r"\^$.|?*+()[]{}/" else one for one in text)

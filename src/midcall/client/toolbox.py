"""Toolbox: the tools of MCP servers, in the forms in which model providers take tools and give calls.

Providers allow only letters, digits, `_` and `-` in a name, and 64 of them. A tool is called `server__tool`
there; what does not fit is changed, and found again on the way back.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midcall.client.client import Client
from midcall.errors import InvalidArguments, MethodNotFound, MidcallError
from midcall.json_schema import compiled, joined
from midcall.limits import near_matches
from midcall.mcp.results import text_of

MOST_LETTERS = 64

MAX_FAULTS = 10
"""How many faults of one call are told."""

_OTHER = re.compile(r"[^A-Za-z0-9_-]")


class Toolbox:
    """The tools of several servers, for a model: `Toolbox({"github": client, "files": other})`.

    A server under the empty name gives its tools their own names.
    """

    def __init__(self, servers: Mapping[str, Client]) -> None:
        self._servers = dict(servers)
        self._names: dict[str, tuple[Client, str]] = {}

    async def openai(self) -> list[dict[str, Any]]:
        """The tools, as OpenAI's chat completions and everything compatible with them take them."""
        return [
            {
                "type": "function",
                "function": {"name": name, "description": _description(tool), "parameters": _schema(tool)},
            }
            for name, tool in await self._tools()
        ]

    async def anthropic(self) -> list[dict[str, Any]]:
        """The tools, as Anthropic's messages take them."""
        return [
            {"name": name, "description": _description(tool), "input_schema": _schema(tool)}
            for name, tool in await self._tools()
        ]

    async def find(self, name: str) -> tuple[Client, str]:
        """The server and the name there of a tool, by the name that the model knows.

        Raises `MethodNotFound`.
        """
        if name not in self._names:
            await self._tools()
        if name not in self._names:
            raise MethodNotFound(name)
        return self._names[name]

    async def call(
        self,
        calls: Sequence[Mapping[str, Any]],
        timeout: float | None = 30.0,
        parallel: bool = True,
    ) -> list[dict[str, Any]]:
        """Call tools by the names that the model knows; gives results as `Client.call_tools`, in the same
        order.

        A call whose arguments do not fit the tool's schema is not sent: its error says what is wrong, for the
        model to try again.
        """
        results: dict[str, dict[str, Any]] = {}
        batches: dict[int, tuple[Client, list[dict[str, Any]]]] = {}
        for call in calls:
            try:
                client, name = await self.find(str(call.get("name")))
                arguments = _arguments(call)
                check_call(await client.tools(), name, arguments)
            except (MidcallError, ValueError) as error:
                results[str(call.get("id"))] = {
                    "call_id": call.get("id"),
                    "success": False,
                    "error": str(error),
                }
                continue
            _, batch = batches.setdefault(id(client), (client, []))
            batch.append({"id": call.get("id"), "name": name, "arguments": arguments})
        for client, batch in batches.values():
            for result in await client.call_tools(batch, timeout, parallel):
                results[result["call_id"]] = result
        return [results[str(call.get("id"))] for call in calls]

    async def _tools(self) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        names: dict[str, tuple[Client, str]] = {}
        for server, client in self._servers.items():
            for tool in await client.tools():
                own = str(tool.get("name"))
                name = native_name(server, own)
                if name in names:
                    name = _shortened(name, f"{server}\0{own}")
                names[name] = (client, own)
                found.append((name, tool))
        self._names = names
        return found


def native_name(server: str, tool: str) -> str:
    """The name of a tool as a provider takes it."""
    whole = f"{server}__{tool}" if server else tool
    name = _OTHER.sub("_", whole.replace(".", "__"))
    return name if len(name) <= MOST_LETTERS else _shortened(name, whole)


def _shortened(name: str, whole: str) -> str:
    """A name that is cut off, but not mistaken for another that begins in the same way."""
    mark = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{name[: MOST_LETTERS - 9]}_{mark}"


# --- what models say, and are told ----------------------------------------------------------


def calls_from_openai(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls in a message of the assistant, for `Toolbox.call`."""
    return [
        {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"].get("arguments")}
        for call in message.get("tool_calls") or ()
    ]


def calls_from_anthropic(content: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls among the content blocks of the assistant, for `Toolbox.call`."""
    return [
        {"id": block["id"], "name": block["name"], "arguments": block.get("input")}
        for block in content
        if block.get("type") == "tool_use"
    ]


def openai_results(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What came of calls, as messages for the model."""
    return [
        {"role": "tool", "tool_call_id": result["call_id"], "content": _told(result)} for result in results
    ]


def anthropic_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What came of calls, as one message for the model."""
    blocks = [
        {"type": "tool_result", "tool_use_id": result["call_id"], "content": _told(result)}
        | ({} if result["success"] else {"is_error": True})
        for result in results
    ]
    return {"role": "user", "content": blocks}


def _told(result: Mapping[str, Any]) -> str:
    if not result["success"]:
        return str(result["error"])
    given = result["result"]
    text = text_of(given.get("content"))
    if text:
        return text
    return json.dumps(given.get("structuredContent", given.get("content", [])), ensure_ascii=False)


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call: an object, or its JSON text, as some providers give them."""
    given = call.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except ValueError as error:
            raise ValueError(f"The arguments are not valid JSON: {error}") from None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError("The arguments must be an object")  # noqa: TRY004  what a model gave
    return dict(given)


def _description(tool: Mapping[str, Any]) -> str:
    return str(tool.get("description") or tool.get("title") or "")


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("inputSchema")
    return {"type": "object", "properties": {}, **(schema if isinstance(schema, dict) else {})}


# --- calls that fit what a server lists -----------------------------------------------------------------
#
# One schema for all calls of a server's tools is for whoever has to produce a valid request, as a model with
# structured output. What the tools' own schemas define is at its root, where every provider finds it.


def request_schema(tools: Sequence[Mapping[str, Any]], *, with_id: bool = False) -> dict[str, Any]:
    """What a call of one of these tools looks like: `{"name", "arguments"}`, and an `id` if it has one."""
    names = [str(tool["name"]) for tool in tools]
    given = (tool.get("inputSchema") for tool in tools)
    known = [one if isinstance(one, dict) else {"type": "object"} for one in given]
    arguments, defined = joined(known, names)
    branches = [_branch(*pair, with_id=with_id) for pair in zip(names, arguments, strict=True)]
    return {"type": "object", "oneOf": branches, **({"$defs": defined} if defined else {})}


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


def _branch(name: str, arguments: dict[str, Any], *, with_id: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {"name": {"const": name}, "arguments": arguments}
    if with_id:
        properties = {"id": {"type": "string", "minLength": 1}, **properties}
    return {"properties": properties, "required": list(properties), "additionalProperties": False}

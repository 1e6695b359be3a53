"""What the load says to a server, and how it reads what comes back: bytes and patterns, no parsing."""

import json
import re
from typing import Any

LEGACY = "2025-11-25"
MODERN = "2026-07-28"

_INFO = {"name": "bench", "version": "1"}
_CAPABILITIES = {"elicitation": {}}
_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": _INFO,
    "io.modelcontextprotocol/clientCapabilities": _CAPABILITIES,
}
_ID = 987_654_321  # where the number of a request goes

ACCEPT = b'{"action":"accept","content":{"confirmed":true}}'
ANSWER = b'{"jsonrpc":"2.0","id":%b,"result":' + ACCEPT + b"}"
QUESTION = b"elicitation/create"
QUESTION_ID = re.compile(rb'"id":\s*("[^"]*"|\d+)')
INPUT_KEY = re.compile(rb'"inputRequests":\s*{\s*"([^"]+)"')
REQUEST_STATE = re.compile(rb'"requestState":\s*"([^"]+)"')
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class Broken(Exception):
    """A server said what it should not, so that its figures would mean nothing."""


def initialize() -> bytes:
    """The first message of a legacy session."""
    return _request(
        "initialize", {"protocolVersion": LEGACY, "capabilities": _CAPABILITIES, "clientInfo": _INFO}
    ) % (1,)


def call(tool: str, arguments: dict[str, Any], *, modern: bool = False) -> bytes:
    """A call of a tool, with `%d` where its number goes."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    return _request("tools/call", params | {"_meta": _META} if modern else params)


def retry(tool: str, arguments: dict[str, Any]) -> bytes:
    """The same modern call with an answer: `%d` for its number, `%b` for what `answered` makes."""
    return call(tool, arguments, modern=True)[:-2] + b",%b}}"


def answered(asked: bytes) -> bytes:
    """The answer to an input-required result, as members of the parameters of the next try."""
    key = INPUT_KEY.search(asked)
    if key is None:
        raise Broken(asked.decode(errors="replace"))
    state = REQUEST_STATE.search(asked)
    members = b'"inputResponses":{"%b":%b}' % (key[1], ACCEPT)
    return members if state is None else members + b',"requestState":"%b"' % state[1]


def question_id(message: bytes) -> bytes:
    """The number of a question, as it was written."""
    found = QUESTION_ID.search(message)
    if found is None:
        raise Broken(message.decode(errors="replace"))
    return found[1]


def check(data: bytes) -> None:
    """Raise if a server answers with an error: that is quick, but not what is measured."""
    if b'"error"' in data or b'"isError":true' in data:
        raise Broken(data.decode(errors="replace")[-600:])


def _request(method: str, params: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": _ID, "method": method, "params": params}
    text = json.dumps(message, separators=(",", ":")).replace("%", "%%")
    return text.replace(str(_ID), "%d").encode()

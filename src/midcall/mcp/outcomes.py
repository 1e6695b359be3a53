"""Outcomes: what a segment came to, as it is kept and told: a result of MCP, or an error of the protocol."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from midcall.items import to_json
from midcall.journal.contract import CallRecord
from midcall.journal.state import asked_of
from midcall.mcp.elicitation import request_for
from midcall.mcp.exchange import Exchange, McpError


class Ticket(Struct, frozen=True, array_like=True):
    """What a request must have in common with the one that it comes back for."""

    method: str
    target: str
    digest: str
    principal: str | None


_NONE: Mapping[str, str] = MappingProxyType({})

CHAT = "chat"
"""The kind of the calls that the chat makes, whose outcomes are kept in the form of MCP."""

CALL_ID = "dev.midcall/callId"
"""Under which the metadata of questions say by what id their call is kept."""


class Context(Struct, frozen=True):
    """What MCP writes down of a call, to go on with it in another process."""

    ticket: Ticket
    kinds: frozenset[str]
    """The kinds of question that the caller can answer."""
    uri: str = ""
    """Of a resource that is read."""
    task: bool = False
    nested: bool = False
    """Whether the caller can show any form, not only a flat one."""
    tools: bool = False
    """Whether the caller's model may be given tools."""


class _Error(Struct):
    code: int
    message: str
    data: Any = None
    status: int = 200


class _Outcome(Struct, omit_defaults=True):
    result: dict[str, Any] | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Outcome).decode


def encode_outcome(outcome: dict[str, Any] | McpError) -> bytes:
    """An outcome as it is kept. Raises `TypeError` or `ValueError` for what JSON cannot carry."""
    if isinstance(outcome, McpError):
        error = _Error(outcome.code, outcome.message, outcome.data, outcome.status)
        return to_json(_Outcome(error=error))
    return to_json(_Outcome(result=outcome))


def decode_outcome(encoded: bytes) -> dict[str, Any] | McpError:
    """A kept outcome."""
    outcome = _decode(encoded)
    if outcome.error is not None:
        error = outcome.error
        return McpError(error.code, error.message, error.data, status=error.status)
    return outcome.result or {}


def input_requests(record: CallRecord, notes: Mapping[str, str] = _NONE) -> dict[str, Any]:
    """The open questions of a call, as a client is asked them; `notes` say what its answers should be."""
    requests = {}
    for key, one in asked_of(record).questions.items():
        expected = notes.get(key) or one.note
        note = f"(Not understood: expected {expected})\n" if expected else ""
        method, params = request_for(one.question, note)
        requests[key] = {"method": method, "params": params}
    return requests


def deliver(exchange: Exchange, outcome: dict[str, Any] | McpError) -> None:
    """Answer a request."""
    if isinstance(outcome, McpError):
        exchange.error(outcome)
    else:
        exchange.result(outcome)


def deliver_encoded(exchange: Exchange, encoded: bytes) -> None:
    """Answer a request with a kept outcome."""
    deliver(exchange, decode_outcome(encoded))

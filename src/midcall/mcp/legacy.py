"""Legacy sessions: the handshake as a table, and what a session remembers.

    state           initialize      initialized     ping      anything else
    uninitialized   → initializing  ignored         answered  -32002
    initializing    refused         → ready         answered  answered
    ready           refused         ignored         answered  answered

Clients differ in when they send `initialized`, so requests are answered once `initialize` is. A session
belongs to one connection on stdio, and to one `Mcp-Session-Id` over HTTP.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from midcall.connection import MAX_CALLS
from midcall.jsonrpc import CALL_FAILED, INVALID_REQUEST, Envelope, Id, Pending
from midcall.mcp import revisions
from midcall.mcp.caller import Caller
from midcall.mcp.exchange import Exchange, Line, McpError
from midcall.mcp.messages import Capabilities, Initialize
from midcall.principal import Principal

NOT_INITIALIZED = -32002


class State(Enum):
    """Where the handshake stands."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"


_NEXT = {
    (State.UNINITIALIZED, "initialize"): State.INITIALIZING,
    (State.INITIALIZING, "initialized"): State.READY,
}


_STRANGER = Caller(revisions.LATEST_LEGACY, Capabilities(), "debug")


class Session:
    """What the server knows of a legacy client between its requests.

    A modern request over HTTP has one for itself, so it is quickly made.
    """

    __slots__ = (
        "__weakref__",
        "caller",
        "open",
        "principal",
        "requests",
        "running",
        "send",
        "state",
        "watched",
    )

    def __init__(self, send: Callable[[bytes], None], principal: Principal | None = None) -> None:
        self.send = send
        """Sends what belongs to no request: changes of lists and resources."""
        self.state = State.UNINITIALIZED
        self.open = False
        """Whether requests are answered."""
        self.caller = (
            _STRANGER if principal is None else msgspec.structs.replace(_STRANGER, principal=principal.name)
        )
        self.principal = principal
        """Who sends the present request; over HTTP, its token may have other scopes than the last one."""
        self.requests: Pending[Callable[[Envelope], None]] = Pending()
        self.running: dict[Id, tuple[Exchange, Any]] = {}
        """The requests that have no response yet, by id, each with its dialect if it has one."""
        self.watched: set[str] = set()

    def step(self, event: str) -> bool:
        """Take a step of the handshake; false if it does not fit here."""
        following = _NEXT.get((self.state, event))
        if following is not None:
            self.state = following
            self.open = True
        return following is not None

    def ended(self, id: Id, line: Line) -> None:
        """A request has its response. (Another one with the same id may have been refused.)"""
        running = self.running.get(id)
        if running is not None and running[0].line is line:
            del self.running[id]

    def begin(self, asked: Initialize) -> None:
        """Remember what the client said of itself."""
        self.caller = Caller(
            revisions.negotiate(asked.revision),
            asked.capabilities,
            "debug",
            asked.client_info,
            self.caller.principal,
        )

    def set_level(self, level: str) -> None:
        """From now on, send only log of this level and above."""
        caller = self.caller
        self.caller = Caller(
            caller.revision, caller.capabilities, level, caller.client_info, caller.principal
        )

    def admit(self, exchange: Exchange, dialect: Any) -> None:
        """Note that a request runs; it is forgotten with its response."""
        if exchange.id in self.running:
            raise McpError(INVALID_REQUEST, "Invalid Request: a request with this id is running")
        if len(self.running) >= MAX_CALLS:
            raise McpError(CALL_FAILED, f"More than {MAX_CALLS} requests at once in one session")
        self.running[exchange.id] = (exchange, dialect)

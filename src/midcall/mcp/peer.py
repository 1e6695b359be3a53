"""Peers: MCP on a connection (stdio, WebSocket), which the raw protocol may share; and who listens.

Modern requests stand for themselves; what a modern client hears of beside them is a subscription
(`Listeners`).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct

from midcall import jsonrpc
from midcall.call import Call
from midcall.calls import Shares
from midcall.jsonrpc import BatchReply, Envelope, Id
from midcall.mcp.messages import META, Filter
from midcall.mcp.request import McpError, McpRequest, Session
from midcall.metrics import refused
from midcall.plexus.protocol import Connection, Send

if TYPE_CHECKING:
    from midcall.mcp.calls import PlainCall
    from midcall.mcp.server import McpExtension

_MODERN = f"{META}protocolVersion".encode()


class McpPeer:
    """MCP with one peer."""

    def __init__(self, extension: "McpExtension", connection: Connection) -> None:
        self._extension = extension
        self.connection = connection
        self.session = Session(connection.send, connection.principal)
        self._names = extension.names

    def take(self, message: Envelope, reply: Send) -> bool:
        """Take a message of MCP; false if it belongs to the raw protocol."""
        if message.method is UNSET:
            self._extension.response(message, self.session)
            return True
        if message.method not in self._names and _MODERN not in bytes(message.params):
            return False
        if message.id is UNSET:
            self._extension.notice(message, self.session)
        else:
            pipe = _Pipe(self, message.id, reply)
            self._extension.take(message, pipe, self.session, came_by=self.connection.info)
        return True

    def calls(self) -> Sequence[Call]:
        started = [running.call for _, running in self.session.running.values() if running is not None]
        return [call for call in started if call is not None]

    def close(self, reason: str) -> None:
        """The peer is gone. What waits for answers stays parked: they may come by another line."""
        self._extension.gone(self.session, reason)


class _Pipe(Struct, eq=False):
    """The line of one request: all go to the same pipe."""

    peer: McpPeer
    id: Id
    reply: Send

    @property
    def full(self) -> bool:
        return self.peer.connection.full

    def send(self, message: bytes) -> None:
        self.peer.connection.send(message)

    def respond(self, message: bytes, *, status: int = 200) -> None:
        self.peer.session.ended(self.id, self)
        self.reply(message)

    def close(self) -> None:
        if isinstance(self.reply, BatchReply):
            self.reply.skip()

    async def drain(self) -> None:
        await self.peer.connection.drain()

    def run(self, call: "PlainCall") -> None:
        call.start(self.peer.connection.loop)


# --- subscriptions --------------------------------------------------------------------------------------


SUBSCRIBED = 64 * 1024 * 1024
"""How many bytes all subscriptions may take; those of a caller with a name, a tenth."""

LISTENER = 4096
"""How many bytes an open `subscriptions/listen` counts for, beside its URIs."""

SUBSCRIPTION = 256
"""How many bytes a URI counts for, beside its own."""


def size_of(uris: Iterable[str]) -> int:
    """What subscriptions to these count for."""
    return sum(len(uri) + SUBSCRIPTION for uri in uris)


def hears(principal: str | None, principals: Collection[str | None] | None) -> bool:
    """Whether a caller is one of those whom a change is for."""
    return principals is None or principal in principals


class Listeners:
    """All open subscriptions of a server."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[McpRequest, Filter]] = {}
        """By the identity of the request."""
        self.taken = Shares()
        """What subscriptions count for, those of legacy sessions included."""

    def check_room(self, principal: str | None, size: int) -> None:
        """Raise `McpError` if so much more of this caller is too much."""
        if self.taken.is_full(principal, SUBSCRIBED, size):
            refused("too_many_subscriptions")
            text = "More subscriptions than there is room for; end some of them first"
            raise McpError(jsonrpc.CALL_FAILED, text)

    def add(self, request: McpRequest, wanted: Filter) -> None:
        """Open a subscription, and acknowledge what it will hear of."""
        self._open[id(request)] = (request, wanted)
        self.taken.take(request.caller.principal, LISTENER + size_of(wanted.uris))
        self._send(request, "notifications/subscriptions/acknowledged", {"notifications": wanted})

    def remove(self, request: McpRequest) -> None:
        """The caller has closed its subscription."""
        closed = self._open.pop(id(request), None)
        if closed is not None:
            self.taken.give_back(request.caller.principal, LISTENER + size_of(closed[1].uris))

    def changed(self, part: str, principals: Collection[str | None] | None = None) -> None:
        """The list of tools, prompts or resources has changed; for these callers, or for all."""
        for request, wanted in tuple(self._open.values()):
            if getattr(wanted, part) and hears(request.caller.principal, principals):
                self._send(request, f"notifications/{part}/list_changed", {})

    def updated(self, uri: str, principals: Collection[str | None] | None = None) -> None:
        """What is read at this URI has changed; for these callers, or for all."""
        for request, wanted in tuple(self._open.values()):
            if uri in wanted.uris and hears(request.caller.principal, principals):
                self._send(request, "notifications/resources/updated", {"uri": uri})

    def is_watched(self, uri: str) -> bool:
        return any(uri in wanted.uris for _, wanted in self._open.values())

    def close(self) -> None:
        """The server ends: so do all subscriptions, in good order."""
        for request, _ in tuple(self._open.values()):
            self.remove(request)
            request.result({"_meta": {f"{META}subscriptionId": request.id}})

    @staticmethod
    def _send(request: McpRequest, method: str, params: dict[str, Any]) -> None:
        request.notify(method, {"_meta": {f"{META}subscriptionId": request.id}, **params})

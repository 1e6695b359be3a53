"""MCP on a line of its own or shared with the raw protocol: stdio and WebSocket.

One legacy session for each line; modern requests stand for themselves. Lines of all requests are the
same pipe.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct

from midcall.call import Call
from midcall.connection import Connection, Send
from midcall.jsonrpc import BatchReply, Envelope, Id
from midcall.mcp.exchange import Plain
from midcall.mcp.legacy import Session
from midcall.mcp.messages import META

if TYPE_CHECKING:
    from midcall.mcp.extension import McpExtension

_MODERN = f"{META}protocolVersion".encode()


class McpSpeaker:
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
            self._extension.take(message, _Pipe(self, message.id, reply), self.session)
        return True

    def calls(self) -> Sequence[Call]:
        dialects = [dialect for _, dialect in self.session.running.values() if dialect is not None]
        return [dialect.call for dialect in dialects if dialect.call is not None]

    def close(self, reason: str) -> None:
        """The peer is gone. What waits for answers stays parked: they may come by another line."""
        self._extension.gone(self.session, reason)


class _Pipe(Struct, eq=False):
    """The line of one request: all go to the same pipe."""

    speaker: McpSpeaker
    id: Id
    reply: Send

    @property
    def full(self) -> bool:
        return self.speaker.connection.full

    def send(self, message: bytes) -> None:
        self.speaker.connection.send(message)

    def respond(self, message: bytes, *, status: int = 200) -> None:
        self.speaker.session.ended(self.id, self)
        self.reply(message)

    def close(self) -> None:
        if isinstance(self.reply, BatchReply):
            self.reply.skip()

    async def drain(self) -> None:
        await self.speaker.connection.drain()

    def run(self, call: Plain) -> None:
        call.start(self.speaker.connection.loop)

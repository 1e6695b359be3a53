"""Exchange: one MCP request, and the way back to whoever sent it."""

from typing import Any, Protocol

from msgspec import Struct

from midcall import jsonrpc
from midcall.items import to_json
from midcall.jsonrpc import Id
from midcall.mcp.caller import Caller
from midcall.mcp.messages import META, Meta


class Line(Protocol):
    """Where the messages that belong to one request go: a pipe, or the stream of an HTTP response."""

    @property
    def full(self) -> bool:
        """Whether the reader is behind."""

    def send(self, message: bytes) -> None:
        """Send a notification or a request that belongs to the request."""

    def respond(self, message: bytes, *, status: int = 200) -> None:
        """Send the response, after which nothing follows. `status` is for HTTP."""

    def close(self) -> None:
        """Nothing more is sent for the request, not even a response."""

    async def drain(self) -> None:
        """Wait while the reader is behind."""


class McpError(Exception):
    """A request that is answered with an error of the protocol."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int = 200) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status


class Exchange(Struct, frozen=True):
    """One request of one caller."""

    id: Id
    caller: Caller
    line: Line
    meta: Meta
    server_info: dict[str, Any]

    def result(self, result: dict[str, Any]) -> None:
        """Answer with a result, which is complete unless it says otherwise."""
        if self.caller.modern:
            meta = {**result.get("_meta", {}), f"{META}serverInfo": self.server_info}
            result = {"resultType": "complete", **result, "_meta": meta}
        try:
            body = to_json(result)
        except (TypeError, ValueError) as error:  # something that JSON cannot carry
            self.error(McpError(jsonrpc.INTERNAL_ERROR, str(error)))
            return
        self.line.respond(jsonrpc.response(self.id, body))

    def error(self, error: McpError) -> None:
        """Answer with an error."""
        self.line.respond(
            jsonrpc.error_response(self.id, error.code, error.message, error.data), status=error.status
        )

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification that belongs to the request."""
        self.line.send(jsonrpc.notification(method, to_json(params)))

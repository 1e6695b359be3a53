"""Exchange: one MCP request, and the way back to whoever sent it."""

from asyncio import AbstractEventLoop
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from midcall import jsonrpc
from midcall.items import to_json
from midcall.jsonrpc import Id
from midcall.mcp.caller import Caller
from midcall.mcp.messages import META, Meta

if TYPE_CHECKING:
    from midcall.telemetry import RequestSpan


class Plain(Protocol):
    """A call that gives nothing but its result (see `plain`)."""

    def start(self, loop: AbstractEventLoop | None = None) -> None:
        """Run it soon, on the running loop."""

    def run_here(self, waiting: AbstractContextManager[object]) -> Awaitable[None]:
        """Run it in the present task; `waiting` is entered if it waits for something."""

    def abort(self, reason: str) -> None:
        """Stop it."""


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

    def run(self, call: Plain) -> None:
        """Run a call whose result is the response."""


_SERVER_INFO = f"{META}serverInfo"


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
    span: "RequestSpan | None" = None
    """Of a request that is traced (see `tracing`)."""

    def result(self, result: dict[str, Any]) -> None:
        """Answer with a result, which is complete unless it says otherwise."""
        if self.caller.modern:
            result.setdefault("resultType", "complete")
            result.setdefault("_meta", {})[_SERVER_INFO] = self.server_info
        try:
            message = to_json(jsonrpc.Response("2.0", self.id, result))
        except (TypeError, ValueError) as error:
            self.failed(error)
            return
        self.line.respond(message)

    def failed(self, error: Exception) -> None:
        """Answer that there is no answer: something that JSON cannot carry."""
        self.error(McpError(jsonrpc.INTERNAL_ERROR, str(error)))

    def error(self, error: McpError) -> None:
        """Answer with an error."""
        self.line.respond(
            jsonrpc.error_response(self.id, error.code, error.message, error.data), status=error.status
        )

    def close(self) -> None:
        """Answer nothing: the caller is gone, or wants no answer any more."""
        self.line.close()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification that belongs to the request."""
        self.line.send(jsonrpc.notification(method, to_json(params)))

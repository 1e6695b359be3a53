"""Plain calls: tools that neither ask nor stream, as most are. All that goes back is the result.

This is the hot path, so there is no dialect: the call hands over its result, and that is the response.
How it is run is up to the line (`Line.run`): soon, or at once in the task that serves the request.
"""

from asyncio import AbstractEventLoop
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import Any

from msgspec import Struct

from midcall.call import Call
from midcall.hub import Hub
from midcall.items import Error
from midcall.mcp.catalog import Tool
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.legacy import Session
from midcall.mcp.results import tool_result
from midcall.outlet import NOWHERE


def run_plain(exchange: Exchange, session: Session, hub: Hub, tool: Tool, arguments: bytes) -> None:
    """Run a tool, and respond with its result. Raises `InvalidArguments`, `TooManyCalls` or `McpError`."""
    call = hub.prepare(tool.found, arguments, NOWHERE, principal=exchange.caller.principal)
    hub.calls.check_room(call)
    plain = PlainCall(exchange, session, hub, tool, call)
    call.on_result = plain.answer
    exchange.line.run(plain)


class PlainCall(Struct, eq=False):
    """The call of one request. (A struct, as `Call` is: its making is hot.)"""

    exchange: Exchange | None
    session: Session
    hub: Hub
    tool: Tool
    call: Call

    def start(self, loop: AbstractEventLoop | None = None) -> None:
        """Run it soon, so that whoever reads requests goes on."""
        if self.exchange is not None:
            self.session.admit(self.exchange, self)
        self.hub.calls.run_soon(self.call, loop)

    def run_here(self, waiting: AbstractContextManager[object]) -> Awaitable[None]:
        """Run it in the present task; `waiting` is entered if it waits for something."""
        return self.hub.calls.run_here(self.call, waiting)

    def abort(self, reason: str) -> None:
        """Stop it; the response says why."""
        self.call.abort(reason)

    def drop(self, exchange: Exchange, reason: str, *, cancelled: bool) -> None:
        """The caller has cancelled its request, or is gone: nothing is sent to it, and the call ends."""
        self.exchange = None
        self.call.abort(reason)

    def answer(self, content: Any, failure: Error | None) -> None:
        """Respond with what it came to, unless nobody waits for that any more."""
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        try:
            contents = () if content is None else (content,)
            result = tool_result(contents, failure, self.tool, exchange.caller.revision)
        except McpError as error:
            exchange.error(error)
        except (TypeError, ValueError) as error:  # something that JSON cannot carry
            exchange.failed(error)
        else:
            exchange.result(result)

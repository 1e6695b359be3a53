"""Relayed calls: tools of another server, as most are called: sent on, and answered with what comes back.

This is the hot path of a mounted server, so there is neither a task nor a dialect. If the other server asks,
begins a task, or cannot be reached just now, the call goes the long way instead, and takes along what is
under way.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from midcall import jsonrpc
from midcall.call import Call, Status
from midcall.content import Passed
from midcall.errors import Aborted, MidcallError
from midcall.hub import Hub
from midcall.items import Error, Log, Progress
from midcall.mcp.catalog import Tool
from midcall.mcp.dialects.base import Dialect
from midcall.mcp.dialects.input_required import InputRequired
from midcall.mcp.elicitation import URL_REQUIRED
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.legacy import Session
from midcall.mcp.results import passed_result, tool_result
from midcall.outlet import NOWHERE
from midcall.questions import PERSON_KINDS

if TYPE_CHECKING:
    from midcall.mcp.caller import Caller


class Talk(Protocol):
    """A request to the other server (see `client.mount_talk`)."""

    taker: Any
    """Who is told of what happens."""

    @property
    def outcome(self) -> Any: ...

    def cancel(self, reason: str) -> None: ...


class Remote(Protocol):
    """A method that another server runs (see `client.mount_methods`)."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop in which the other server is spoken to, if it is."""

    @property
    def is_modern(self) -> bool:
        """Whether the other server is told with each request what its caller can be asked."""

    def begin(self, call: Call, taker: Any, log_level: str | None, *, progress: bool) -> Talk | None:
        """Send the request of a call at once; nothing if the server is not there at the moment."""

    def read_report(self, method: str, params: dict[str, Any]) -> Progress | Log | None:
        """What the other server tells in the middle of a call."""


GoOn = Callable[[Exchange, Session, "Talk | None"], None]
"""Goes on with a call the long way, with what is under way."""


class RelayedCall:
    """The call of one request."""

    __slots__ = ("_go_on", "_hub", "_reporter", "_talk", "_tool", "call", "exchange", "session")

    def __init__(
        self, exchange: Exchange, session: Session, hub: Hub, tool: Tool, arguments: bytes, go_on: GoOn
    ) -> None:
        self.exchange: Exchange | None = exchange
        self.session = session
        self._hub = hub
        self._tool = tool
        self._go_on = go_on
        self._talk: Talk | None = None
        self._reporter: Dialect | None = None
        self.call: Call = hub.prepare(tool.found, arguments, NOWHERE, principal=exchange.caller.principal)

    def start(self) -> None:
        """Send it on; or have it go the long way, if the other server is not there just now."""
        exchange, call = self.exchange, self.call
        if exchange is None:
            return
        remote: Any = self._tool.found.method
        if remote.is_modern:
            call.supported = kinds_of(exchange.caller)
        self._hub.calls.check_room(call)
        self.session.admit(exchange, self)
        self._hub.calls.add(call)
        call.begun = True
        loop = remote.loop or asyncio.get_running_loop()  # finding it out is a system call in Python 3.11
        call.task = loop.create_future()
        call.task.add_done_callback(self._ended)
        wants_progress = exchange.meta.progress_token is not None
        talk = remote.begin(call, self, exchange.caller.log_level, progress=wants_progress)
        if self.exchange is not None:  # else it has an outcome already
            self._talk = talk
            if talk is None:
                self._go_the_long_way(exchange, None)

    # --- what the other server does ----------------------------------------------------------

    def moved(self, talk: Talk) -> None:
        """There is an outcome, or a question."""
        exchange = self.exchange
        if exchange is None:
            return
        outcome = talk.outcome
        if not isinstance(outcome, Passed) or (outcome.error and outcome.error.code == URL_REQUIRED):
            self._go_the_long_way(exchange, talk)
            return
        self._leave(Status.COMPLETED)
        try:
            result = passed_result(outcome, exchange.caller.revision)
        except McpError as error:
            exchange.error(error)
        else:
            exchange.result(result)

    def reported(self, method: str, params: dict[str, Any]) -> None:
        """Progress, or a line of log."""
        remote: Any = self._tool.found.method
        report = remote.read_report(method, params)
        if report is not None and self.exchange is not None:
            if self._reporter is None:
                self._reporter = Dialect(self.exchange, _nothing)
                self._reporter.call = self.call
            self._reporter.put(report)

    def _go_the_long_way(self, exchange: Exchange, talk: Talk | None) -> None:
        self._leave(Status.RUNNING)
        self.session.running.pop(exchange.id, None)
        try:
            self._go_on(exchange, self.session, talk)
        except McpError as error:
            failure = error
        except MidcallError as error:
            failure = McpError(jsonrpc.code_for(error), str(error), error.data or None)
        else:
            self._handed_over(exchange, talk)
            return
        if talk is not None:
            talk.cancel(failure.message)
        exchange.error(failure)

    def _handed_over(self, exchange: Exchange, talk: Talk | None) -> None:
        dialect = self.session.running.get(exchange.id, (None, None))[1]
        if not isinstance(dialect, Dialect | InputRequired):
            return
        if self._reporter is not None:
            dialect.go_on_after(self._reporter)
        if talk is not None and dialect.call is not None and dialect.call.task is not None:
            dialect.call.task.add_done_callback(lambda _: self._check_taken(talk))

    def _check_taken(self, talk: Talk) -> None:
        """The call has ended. If that was before it could begin, nobody looks after what is under way."""
        if talk.taker is self:
            talk.cancel("The call was cancelled")

    # --- what its caller does ----------------------------------------------------------------

    def drop(self, exchange: Exchange, reason: str, *, cancelled: bool) -> None:
        """The caller has cancelled its request, or is gone: nothing is sent to it, and the call ends."""
        self.exchange = None
        self.call.abort(reason)

    # --- the end -----------------------------------------------------------------------------

    def _leave(self, status: Status) -> None:
        """Nothing more is expected here."""
        call = self.call
        self.exchange = self._talk = None
        call.outcome = status
        self._hub.calls.ended(call)
        if call.task is not None and not call.task.done():
            call.task.set_result(None)

    def _ended(self, ended: "asyncio.Future[None]") -> None:
        """It is over. If it was aborted, the other server is told."""
        if not ended.cancelled():
            return
        call, exchange, talk = self.call, self.exchange, self._talk
        reason = call.reason or "The call was cancelled"
        self._leave(Status.ABORTED)
        if talk is not None:
            talk.cancel(reason)
        if exchange is not None:
            failure = Error(call.stamp(), reason, Aborted.code)
            exchange.result(tool_result((), failure, self._tool, exchange.caller.revision))


def kinds_of(caller: "Caller") -> frozenset[str]:
    """What a caller can be asked, also by notifications and a tool."""
    kinds = caller.kinds
    return kinds if caller.modern or caller.elicits else PERSON_KINDS | kinds


def _nothing(contents: Any, failure: Any) -> dict[str, Any]:
    return {}

"""Relayed calls: the call of a mounted server's tool whose result goes back to an MCP client as it came.

This is the hot path of a mounted server, so there is neither a task nor a dialect. If the server asks, begins
a task, or cannot be reached just now, the call goes the usual way instead (see `mount_run`), with what is
under way.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from midcall.call import Call, Status
from midcall.client.mount_run import read_report
from midcall.client.mount_talk import Talk
from midcall.content import Passed
from midcall.errors import Aborted, MidcallError
from midcall.hub import Hub
from midcall.items import Error
from midcall.mcp.catalog import Prepare, Tool
from midcall.mcp.dialects.attached import Attached
from midcall.mcp.dialects.input_required import InputRequired
from midcall.mcp.elicitation import URL_REQUIRED
from midcall.mcp.request import McpError, McpRequest, Session, error_for
from midcall.mcp.results import McpReply, passed_result, tool_result
from midcall.outlet import NOWHERE

if TYPE_CHECKING:
    from midcall.client.mount import Mount
    from midcall.client.mount_methods import RemoteMethod


class RelayedCall:
    """The call of one request."""

    __slots__ = ("_hub", "_mount", "_reporter", "_start", "_talk", "_tool", "call", "request", "session")

    def __init__(
        self,
        mount: "Mount",
        hub: Hub,
        request: McpRequest,
        session: Session,
        tool: Tool,
        arguments: bytes,
        start: Callable[[Prepare], None],
    ) -> None:
        """`start` starts the call in the usual way."""
        self.request: McpRequest | None = request
        self.session = session
        self._mount = mount
        self._hub = hub
        self._tool = tool
        self._start = start
        self._talk: Talk | None = None
        self._reporter: McpReply | None = None
        self.call: Call = hub.prepare(tool.found, arguments, NOWHERE, principal=request.caller.principal)

    def send(self, method: "RemoteMethod") -> None:
        """Send it on; or have it go the long way, if the server is not there just now."""
        request, call = self.request, self.call
        if request is None:
            return
        caller = request.caller
        if self._mount.clients.base.modern:
            call.supported = caller.askable
        self._hub.calls.check_room(call)
        self.session.admit(request, self)
        self._hub.calls.add(call)
        call.begun = True
        # Finding out the running loop is a system call in Python 3.11.
        loop = self._mount.loop or asyncio.get_running_loop()
        call.task = loop.create_future()
        call.task.add_done_callback(partial(self._ended, call))
        client = self._mount.clients.live(call.principal)
        server = client.live if client is not None else None
        if client is None or server is None:
            self._go_the_long_way(request, None)
            return
        about, params = method.inside(call.arguments["raw"])
        head = client.head(server, call.supported, caller.log_level) if server.modern else None
        self._talk = talk = Talk(self)
        talk.send(
            server, about, params, progress=request.meta.progress_token is not None, meta=b"", head=head
        )

    # --- what the server does ----------------------------------------------------------------

    def moved(self, talk: Talk) -> None:
        """There is an outcome, or a question."""
        request, outcome = self.request, talk.outcome
        if request is None or self.call.reason is not None:
            return  # it was aborted, and is about to end
        if not isinstance(outcome, Passed) or (outcome.error and outcome.error.code == URL_REQUIRED):
            self._go_the_long_way(request, talk)
            return
        self._leave(Status.COMPLETED)
        try:
            result = passed_result(outcome, request.caller.revision)
        except McpError as error:
            request.error(error)
        else:
            request.result(result)

    def reported(self, method: str, params: dict[str, Any]) -> None:
        """Progress, or a line of log."""
        report = read_report(method, params)
        if report is not None and self.request is not None:
            if self._reporter is None:
                self._reporter = McpReply(self.request, _nothing, self.call.name)
            self._reporter.add(report)

    def _go_the_long_way(self, request: McpRequest, talk: Talk | None) -> None:
        self._leave(Status.RUNNING)
        self.session.running.pop(request.id, None)

        def hand_over(call: Call) -> None:
            if isinstance(call.outlet, Attached | InputRequired) and self._reporter is not None:
                call.outlet.go_on_after(self._reporter)
            if talk is not None:
                call.arguments = {**call.arguments, "talk": talk}
                self.call = call

        try:
            self._start(hand_over)
        except (MidcallError, McpError) as error:
            failure = error_for(error)
            if talk is not None:
                talk.cancel(failure.message)
            request.error(failure)
        else:
            if talk is not None and self.call.task is not None:
                self.call.task.add_done_callback(lambda _: self._check_taken(talk))

    def _check_taken(self, talk: Talk) -> None:
        """The call has ended. If that was before it could begin, nobody looks after what is under way."""
        if talk.taker is self:
            talk.cancel("The call was cancelled")

    # --- what its caller does ----------------------------------------------------------------

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        """The caller has cancelled its request, or is gone: nothing is sent to it, and the call ends."""
        self.request = None
        self.call.abort(reason)

    # --- the end -----------------------------------------------------------------------------

    def _leave(self, status: Status) -> None:
        """Nothing more is expected here."""
        call = self.call
        self.request = self._talk = None
        call.outcome = status
        self._hub.calls.ended(call)
        if call.task is not None and not call.task.done():
            call.task.set_result(None)

    def _ended(self, call: Call, ended: "asyncio.Future[None]") -> None:
        """It is over. If it was aborted, the server is told."""
        if not ended.cancelled():
            return
        request, talk = self.request, self._talk
        reason = call.reason or "The call was cancelled"
        self._leave(Status.ABORTED)
        if talk is not None:
            talk.cancel(reason)
        if request is not None:
            failure = Error(call.stamp(), reason, Aborted.code)
            request.result(tool_result(self._tool, request.caller.revision, (), failure))


def _nothing(contents: Any, failure: Any) -> dict[str, Any]:
    return {}

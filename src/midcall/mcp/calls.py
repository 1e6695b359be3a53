"""Requests that start a call, or go on with one that waits.

`tools/call`, `resources/read`, `prompts/get` and `completion/complete` differ in what they run and in how the
result is said. The way of asking is chosen here, for each request, from what its caller declared. Two kinds
of call need none, as nothing but their result goes back, and take a shorter way:

- *plain* calls, of tools that neither ask nor stream, as most are;
- *relayed* calls, of tools of another server. If that asks, begins a task, or cannot be reached just now, the
  call goes the usual way instead, and takes along what is under way.
"""

import asyncio
import functools
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from msgspec import UNSET, Struct

from midcall import jsonrpc
from midcall.activation import digest
from midcall.call import Call, Status
from midcall.content import Passed
from midcall.errors import Aborted, InvalidArguments, MethodNotFound, MidcallError
from midcall.hub import Hub
from midcall.items import Error, Log, Progress, to_json
from midcall.journal.contract import CallRecord
from midcall.limits import MAX_STATE, Key
from midcall.mcp import messages, revisions
from midcall.mcp.catalog import Readable, Template, Tool, tool_of
from midcall.mcp.dialects import Dialect, respond_tool
from midcall.mcp.dialects.input_required import InputRequired
from midcall.mcp.dialects.respond_tool import RespondTool
from midcall.mcp.dialects.server_requests import ServerRequests
from midcall.mcp.elicitation import URL_REQUIRED
from midcall.mcp.request import Caller, McpError, McpRequest, Session, error_for, require
from midcall.mcp.results import (
    Finish,
    McpReply,
    passed_result,
    prompt_result,
    resource_result,
    text_block,
    tool_result,
)
from midcall.mcp.resume import McpContext, Ticket, Waiter, invalid
from midcall.outlet import NOWHERE
from midcall.principal import check_scopes
from midcall.questions import PERSON_KINDS
from midcall.registry import Resolved

if TYPE_CHECKING:
    from midcall.mcp.server import McpExtension

SHORT = 1024
"""Up to how many bytes the digest of arguments is remembered."""


class McpCalls:
    """Starts the calls of requests."""

    def __init__(self, server: "McpExtension") -> None:
        self._server = server

    # --- requests ----------------------------------------------------------------------------

    def call_tool(self, request: McpRequest, params: messages.Named, session: Session) -> None:
        if params.name == respond_tool.TOOL and not request.caller.modern:
            self._respond(request, params, session)
            return
        hub = self._server.hub
        tool = self._server.catalog.tools.get(params.name) or self.tool(params.name)
        if tool is None:
            raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown tool: {params.name}")
        if session.principal is not None:
            check_scopes(tool.found.name, tool.found.method.extras, session.principal)
        if tool.requires:
            require(tool.requires, request.caller)
        arguments = bytes(params.arguments)
        new = params.request_state is UNSET and request.meta.idempotency_key is None
        try:
            if new and tool.plain and request.span is None:  # with a span, it needs a task to be current in
                run_plain(request, session, hub, tool, arguments)
                return
            finish = functools.partial(tool_result, tool, request.caller.revision)
            start = functools.partial(
                self._start, request, session, tool.found, arguments, finish, "tools/call", params
            )
            if new and tool.remote and request.span is None:
                RelayedCall(request, session, hub, tool, arguments, start).send()
            else:
                start()
        except InvalidArguments as error:
            failure = Error(_NO_METADATA, str(error), error.code)
            request.result(tool_result(tool, request.caller.revision, (), failure))

    def read_resource(self, request: McpRequest, params: messages.Located, session: Session) -> None:
        found = self._server.catalog.find(params.uri)
        if found is None:
            code = jsonrpc.INVALID_PARAMS if request.caller.modern else -32002
            raise McpError(code, f"Resource not found: {params.uri}", {"uri": params.uri})
        readable, parts = found
        check_scopes(readable.shown["name"], readable.method.extras, session.principal)
        resolved, finish = _reading(params.uri, readable, modern=request.caller.modern)
        self._start(request, session, resolved, to_json(parts), finish, "resources/read", params)

    def get_prompt(self, request: McpRequest, params: messages.Named, session: Session) -> None:
        prompt = self.prompt(params.name)
        if prompt is None:
            raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        check_scopes(prompt.name, prompt.method.extras, session.principal)
        resolved, finish = _prompting(prompt, request.caller.revision)
        self._start(request, session, resolved, bytes(params.arguments), finish, "prompts/get", params)

    def complete(self, request: McpRequest, params: messages.CompleteParams, session: Session) -> None:
        catalog = self._server.catalog
        of = params.ref.uri if params.ref.type == "ref/resource" else params.ref.name
        completer = catalog.completer(of, params.argument.name)
        if completer is None:
            known = of in catalog.prompts or any(t.uri == of for t in catalog.templates)
            if not known and of not in catalog.resources:
                raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown reference: {of}")
            request.result({"completion": {"values": [], "total": 0, "hasMore": False}})
            return
        check_scopes(of, completer.needs, session.principal)

        def finish(contents: Sequence[Any], failure: Error | None) -> dict[str, Any]:
            if failure is not None:
                raise McpError(jsonrpc.INTERNAL_ERROR, failure.message)
            if contents and isinstance(contents[0], Passed):
                return passed_result(contents[0], request.caller.revision)
            values = [str(v) for part in contents for v in (part if isinstance(part, list) else [part])]
            completion = {"values": values[:100], "total": len(values), "hasMore": len(values) > 100}
            return {"completion": completion}

        given: dict[str, Any] = {
            "value": params.argument.value,
            "arguments": params.context.arguments,
            "argument": params.argument.name,
        }
        wanted = completer.method.params["properties"]
        arguments = to_json({name: value for name, value in given.items() if name in wanted})
        resolved = Resolved(of, completer.method, completer.provenance)
        self._start(request, session, resolved, arguments, finish, "completion/complete", None)

    def _respond(self, request: McpRequest, params: messages.Named, session: Session) -> None:
        """`_plexus_respond`: an answer to a question that went out as a notification."""
        try:
            given = msgspec.json.decode(bytes(params.arguments) or b"{}", type=_Respond)
            payload = given.payload if given.payload is not UNSET else given.response_data
            if payload is UNSET:
                raise ValueError("payload: is required")  # noqa: TRY301  with what else is wrong
        except (ValueError, RecursionError) as error:
            wrong = InvalidArguments(respond_tool.TOOL, [{"path": "", "message": str(error)}])
            request.result({"content": [text_block(str(wrong))], "isError": True})
            return
        try:
            self._server.hub.calls.answer(given.request_id, payload, owner=session)
        except MidcallError as error:
            raise McpError(jsonrpc.INVALID_PARAMS, str(error), error.data) from None
        request.result({"content": [text_block("Response received")]})

    # --- what there is -----------------------------------------------------------------------

    def tool(self, name: str) -> Tool | None:
        """A tool by its name, or by an alias of it."""
        tool = self._server.catalog.tools.get(name)
        if tool is None:
            found = self._server.hub.find(name)
            if found is None:
                return None
            tool = self._server.catalog.tools.get(found.name)
            if tool is None and "listed" in found.method.extras:
                return tool_of(found)  # of a server that has not told yet what it has
        return tool

    def prompt(self, name: str) -> Template | None:
        """A prompt by its name."""
        prompt = self._server.catalog.prompts.get(name)
        if prompt is None:
            found = self._server.hub.unlisted(name, "prompt")
            return None if found is None else Template(name, found.method, found.provenance, {"name": name})
        return prompt

    def find(self, record: CallRecord, context: McpContext) -> tuple[Resolved, Finish]:
        """What a call in the journal runs, and how its result is said. Raises `MethodNotFound`."""
        match context.ticket.method:
            case "tools/call":
                tool = self.tool(record.name)
                if tool is not None:
                    return tool.found, functools.partial(tool_result, tool, revisions.MODERN[-1])
            case "prompts/get":
                prompt = self.prompt(record.name)
                if prompt is not None:
                    return _prompting(prompt, revisions.MODERN[-1])
            case "resources/read":
                found = self._server.catalog.find(context.uri)
                if found is not None:
                    return _reading(context.uri, found[0], modern=True)
        raise MethodNotFound(record.name)

    # --- the way of asking -------------------------------------------------------------------

    def _start(
        self,
        request: McpRequest,
        session: Session,
        found: Resolved,
        arguments: bytes,
        finish: Finish,
        method: str,
        params: messages.RetryParams | None,
        talk: "Talk | None" = None,
    ) -> "Dialect | InputRequired | None":
        """Start the call by the best way of asking that this caller has, or go on with one that waits.

        `talk` is what is under way at another server. Gives the dialect of a call that was started.
        """
        hub, caller = self._server.hub, request.caller
        if caller.modern and params is not None and _may_wait(request, found, params):
            return self._start_durable(request, session, found, arguments, finish, method, params, talk)
        dialect: Dialect
        if not found.method.interactive or caller.modern:
            dialect = Dialect(request, finish, found.name)
        elif caller.elicits:
            dialect = ServerRequests(request, finish, found.name, session)
        else:
            dialect = RespondTool(request, finish, found.name, session)
        session.admit(request, dialect)
        call = dialect.call = hub.prepare(
            found,
            arguments,
            dialect,
            supported=dialect.supported,
            owner=None if caller.modern else session,  # who may answer by `_plexus_respond`
            principal=caller.principal,
        )
        _take_along(call, talk)
        hub.calls.start(call, at_once=not found.method.interactive)
        return dialect

    def _start_durable(
        self,
        request: McpRequest,
        session: Session,
        found: Resolved,
        arguments: bytes,
        finish: Finish,
        method: str,
        params: messages.RetryParams,
        talk: "Talk | None",
    ) -> InputRequired | None:
        """Start a call that may have to be found again, or go on with one that waits."""
        resumption, hub, caller = self._server.resumption, self._server.hub, request.caller
        ticket = Ticket(method, found.name, _digest(arguments), caller.principal)
        if params.request_state is not UNSET:
            if not isinstance(params.request_state, str) or len(params.request_state) > MAX_STATE:
                raise invalid()
            resumption.retry(request, session, params.request_state, ticket, params.input_responses or {})
            return None
        task = bool(found.method.extras.get("long_running")) and caller.knows_tasks
        uri = params.uri if isinstance(params, messages.Located) else ""
        kinds = caller.kinds
        context = McpContext(ticket, kinds, uri, task, caller.shows_any_form, caller.gives_tools)
        dialect = resumption.dialect(request, finish, context, arguments, params.input_responses)
        waiter = Waiter(resumption, request)
        session.admit(request, waiter)
        call = hub.prepare(
            found,
            arguments,
            dialect,
            supported=kinds,
            time_limit=resumption.durable.time_limit,
            principal=caller.principal,
        )
        hub.calls.check_room(call)
        _take_along(call, talk)
        resumption.begin(dialect, call, waiter, durably=task or request.meta.idempotency_key is not None)
        return dialect


_NO_METADATA: Any = None


class _Respond(msgspec.Struct):
    request_id: Key
    payload: Any = UNSET
    response_data: Any = UNSET


def _may_wait(request: McpRequest, found: Resolved, params: messages.RetryParams) -> bool:
    """Whether the call of a modern caller may have to be found again."""
    return (
        found.method.interactive
        or params.request_state is not UNSET
        or request.meta.idempotency_key is not None
        or (bool(found.method.extras.get("long_running")) and request.caller.knows_tasks)
    )


def _reading(uri: str, readable: Readable, *, modern: bool) -> tuple[Resolved, Finish]:
    """What reads a resource, and how its result is said."""

    def finish(contents: Sequence[Any], failure: Error | None) -> dict[str, Any]:
        if failure is not None:
            raise McpError(jsonrpc.INTERNAL_ERROR, failure.message)
        return resource_result(uri, readable.shown.get("mimeType"), contents, modern=modern)

    return Resolved(readable.shown["name"], readable.method, readable.provenance), finish


def _prompting(prompt: Template, revision: str) -> tuple[Resolved, Finish]:
    """What makes a prompt, and how its result is said."""

    def finish(contents: Sequence[Any], failure: Error | None) -> dict[str, Any]:
        if failure is not None:
            raise McpError(jsonrpc.INTERNAL_ERROR, failure.message)
        return prompt_result(prompt.method.description, contents, revision)

    return Resolved(prompt.name, prompt.method, prompt.provenance), finish


def _take_along(call: Call, talk: "Talk | None") -> None:
    """A call of another server goes on with what is under way there."""
    if talk is not None:
        call.arguments = {**call.arguments, "talk": talk}


def _digest(arguments: bytes) -> str:
    return _digest_known(arguments) if len(arguments) <= SHORT else _digest_anew(arguments)


def _digest_anew(arguments: bytes) -> str:
    try:
        return digest(msgspec.json.decode(arguments or b"{}"))
    except (msgspec.DecodeError, RecursionError):
        return ""


_digest_known = functools.lru_cache(maxsize=1024)(_digest_anew)  # they come again with each answer


# --- plain calls --------------------------------------------------------------------------------------
#
# This is the hot path, so there is no dialect: the call hands over its result, and that is the response. How
# it is run is up to the transport (`ResponseStream.run`): soon, or at once in the task of the request.


def run_plain(request: McpRequest, session: Session, hub: Hub, tool: Tool, arguments: bytes) -> None:
    """Run a tool, and respond with its result. Raises `InvalidArguments`, `TooManyCalls` or `McpError`."""
    call = hub.prepare(tool.found, arguments, NOWHERE, principal=request.caller.principal)
    hub.calls.check_room(call)
    plain = PlainCall(request, session, hub, tool, call)
    call.on_result = plain.answer
    request.stream.run(plain)


class PlainCall(Struct, eq=False):
    """The call of one request. (A struct, as `Call` is: its making is hot.)"""

    request: McpRequest | None
    session: Session
    hub: Hub
    tool: Tool
    call: Call

    def start(self, loop: AbstractEventLoop | None = None) -> None:
        """Run it soon, so that whoever reads requests goes on."""
        if self.request is not None:
            self.session.admit(self.request, self)
        self.hub.calls.run_soon(self.call, loop)

    def run_here(self, waiting: AbstractContextManager[object]) -> Awaitable[None]:
        """Run it in the present task; `waiting` is entered if it waits for something."""
        return self.hub.calls.run_here(self.call, waiting)

    def abort(self, reason: str) -> None:
        """Stop it; the response says why."""
        self.call.abort(reason)

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        """The caller has cancelled its request, or is gone: nothing is sent to it, and the call ends."""
        self.request = None
        self.call.abort(reason)

    def answer(self, content: Any, failure: Error | None) -> None:
        """Respond with what it came to, unless nobody waits for that any more."""
        request, self.request = self.request, None
        if request is None:
            return
        try:
            contents = () if content is None else (content,)
            result = tool_result(self.tool, request.caller.revision, contents, failure)
        except McpError as error:
            request.error(error)
        except (TypeError, ValueError) as error:  # something that JSON cannot carry
            request.failed(error)
        else:
            request.result(result)


# --- relayed calls ------------------------------------------------------------------------------------
#
# This is the hot path of a mounted server, so there is neither a task nor a dialect.


class Talk(Protocol):
    """A request to the other server (see `client.mount_talk`)."""

    taker: object
    """Who is told of what happens."""

    @property
    def outcome(self) -> object: ...

    def cancel(self, reason: str) -> None: ...


class Remote(Protocol):
    """A method that another server runs (see `client.mount_methods`)."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop in which the other server is spoken to, if it is."""

    @property
    def is_modern(self) -> bool:
        """Whether the other server is told with each request what its caller can be asked."""

    def begin(
        self, call: Call, taker: "RelayedCall", log_level: str | None, *, progress: bool
    ) -> Talk | None:
        """Send the request of a call at once; nothing if the server is not there at the moment."""

    def read_report(self, method: str, params: dict[str, Any]) -> Progress | Log | None:
        """What the other server tells in the middle of a call."""


class RelayedCall:
    """The call of one request."""

    __slots__ = ("_hub", "_remote", "_reporter", "_start", "_talk", "_tool", "call", "request", "session")

    def __init__(
        self,
        request: McpRequest,
        session: Session,
        hub: Hub,
        tool: Tool,
        arguments: bytes,
        start: Callable[[Talk | None], Dialect | InputRequired | None],
    ) -> None:
        """`start` starts the call in the usual way, with what is under way."""
        self.request: McpRequest | None = request
        self.session = session
        self._hub = hub
        self._tool = tool
        self._remote = cast("Remote", tool.found.method)
        self._start = start
        self._talk: Talk | None = None
        self._reporter: McpReply | None = None
        self.call: Call = hub.prepare(tool.found, arguments, NOWHERE, principal=request.caller.principal)

    def send(self) -> None:
        """Send it on; or have it go the long way, if the other server is not there just now."""
        request, call = self.request, self.call
        if request is None:
            return
        remote = self._remote
        if remote.is_modern:
            call.supported = kinds_of(request.caller)
        self._hub.calls.check_room(call)
        self.session.admit(request, self)
        self._hub.calls.add(call)
        call.begun = True
        loop = remote.loop or asyncio.get_running_loop()  # finding it out is a system call in Python 3.11
        call.task = loop.create_future()
        call.task.add_done_callback(self._ended)
        wants_progress = request.meta.progress_token is not None
        talk = remote.begin(call, self, request.caller.log_level, progress=wants_progress)
        if self.request is not None:  # else it has an outcome already
            self._talk = talk
            if talk is None:
                self._go_the_long_way(request, None)

    # --- what the other server does ----------------------------------------------------------

    def moved(self, talk: Talk) -> None:
        """There is an outcome, or a question."""
        request = self.request
        if request is None:
            return
        outcome = talk.outcome
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
        report = self._remote.read_report(method, params)
        if report is not None and self.request is not None:
            if self._reporter is None:
                self._reporter = McpReply(self.request, _nothing, self.call.name)
            self._reporter.add(report)

    def _go_the_long_way(self, request: McpRequest, talk: Talk | None) -> None:
        self._leave(Status.RUNNING)
        self.session.running.pop(request.id, None)
        try:
            dialect = self._start(talk)
        except (MidcallError, McpError) as error:
            failure = error_for(error)
            if talk is not None:
                talk.cancel(failure.message)
            request.error(failure)
        else:
            if dialect is not None and self._reporter is not None:
                dialect.go_on_after(self._reporter)
            if dialect is not None and talk is not None and dialect.call and dialect.call.task is not None:
                dialect.call.task.add_done_callback(lambda _: self._check_taken(talk))

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

    def _ended(self, ended: "asyncio.Future[None]") -> None:
        """It is over. If it was aborted, the other server is told."""
        if not ended.cancelled():
            return
        call, request, talk = self.call, self.request, self._talk
        reason = call.reason or "The call was cancelled"
        self._leave(Status.ABORTED)
        if talk is not None:
            talk.cancel(reason)
        if request is not None:
            failure = Error(call.stamp(), reason, Aborted.code)
            request.result(tool_result(self._tool, request.caller.revision, (), failure))


def kinds_of(caller: Caller) -> frozenset[str]:
    """What a caller can be asked, also by notifications and a tool."""
    kinds = caller.kinds
    return kinds if caller.modern or caller.elicits else PERSON_KINDS | kinds


def _nothing(contents: Any, failure: Any) -> dict[str, Any]:
    return {}

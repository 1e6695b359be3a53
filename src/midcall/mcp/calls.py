"""Requests that start a call, or go on with one that waits.

`tools/call`, `resources/read`, `prompts/get` and `completion/complete` differ in what they run and in how the
result is said. The way of asking is chosen here, for each request, from what its caller declared. Two kinds
of call need none, as nothing but their result goes back, and take a shorter way: *plain* calls, of tools that
neither ask nor stream, as most are; and calls of another server's tools, as long as that only answers
(`Tool.remote`).
"""

import functools
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct

from midcall import jsonrpc
from midcall.activation import RemoteMethod, digest
from midcall.call import Call
from midcall.errors import InvalidArguments, MethodNotFound, MidcallError
from midcall.hub import Hub
from midcall.items import NOWHERE, UNSENDABLE, Error, to_json
from midcall.journal.contract import CallRecord
from midcall.limits import MAX_STATE, Key
from midcall.mcp import messages, revisions
from midcall.mcp.catalog import Readable, Template, Tool, tool_of
from midcall.mcp.dialects import respond_tool
from midcall.mcp.dialects.attached import Attached
from midcall.mcp.request import McpError, McpRequest, Session, require
from midcall.mcp.results import (
    Finish,
    completion_result,
    list_result,
    listing_result,
    no_resource,
    prompt_result,
    resource_result,
    text_block,
    tool_result,
)
from midcall.mcp.resume import McpContext, Ticket, WaitingRequest, invalid
from midcall.principal import check_scopes, missing_scopes
from midcall.registry import Resolved

if TYPE_CHECKING:
    from midcall.mcp.server import McpExtension

PAGE = 1000
"""How much of a list is told at once."""

SHORT = 1024
"""Up to how many bytes the digest of arguments is remembered."""


class McpCalls:
    """Starts the calls of requests."""

    def __init__(self, server: "McpExtension") -> None:
        self._server = server

    # --- requests ----------------------------------------------------------------------------

    def call_tool(self, request: McpRequest, params: messages.Named, session: Session) -> None:
        offered = not request.caller.modern and self._server.respond_tool != "never"
        if offered and params.name == respond_tool.TOOL:
            self._respond(request, params, session)
            return
        hub, revision = self._server.hub, request.caller.revision
        tool = self._server.catalog.tools.get(params.name) or self.tool(params.name)
        if tool is None:
            raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown tool: {params.name}")
        if session.principal is not None:
            check_scopes(tool.found.name, tool.found.method.extras, session.principal)
        if tool.requires:
            require(tool.requires, request.caller)
        arguments = bytes(params.arguments)
        short = (
            params.request_state is UNSET
            and request.meta.idempotency_key is None
            and request.span is None  # with a span, it needs a task to be current in
        )
        try:
            if short and tool.plain:
                run_plain(request, session, hub, tool, arguments)
                return
            wanted = WantedCall("tools/call", tool.found, arguments, partial(tool_result, tool, revision))
            start = partial(self._start, request, session, wanted, params)
            if short and tool.remote is not None and not hub.has_middleware:
                tool.remote.runner.relay(hub, request, session, tool, arguments, start)
            else:
                start()
        except InvalidArguments as error:
            failure = Error(_NO_METADATA, str(error), error.code)
            request.result(tool_result(tool, revision, (), failure))

    def read_resource(self, request: McpRequest, params: messages.Located, session: Session) -> None:
        read = self._server.catalog.find(params.uri)
        if read is None:
            raise no_resource(params.uri, modern=request.caller.modern)
        readable, parts = read
        check_scopes(readable.found.name, readable.found.method.extras, session.principal)
        finish = _reading(params.uri, readable, request.caller.revision)
        wanted = WantedCall("resources/read", readable.found, to_json(parts), finish)
        self._start(request, session, wanted, params)

    def get_prompt(self, request: McpRequest, params: messages.Named, session: Session) -> None:
        prompt = self.prompt(params.name)
        if prompt is None:
            raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        check_scopes(prompt.found.name, prompt.found.method.extras, session.principal)
        finish = _prompting(prompt, request.caller.revision)
        wanted = WantedCall("prompts/get", prompt.found, _with(params.arguments, prompt.given), finish)
        self._start(request, session, wanted, params)

    def complete(self, request: McpRequest, params: messages.CompleteParams, session: Session) -> None:
        catalog = self._server.catalog
        of = params.ref.uri if params.ref.type == "ref/resource" else params.ref.name
        completer = catalog.completer(of, params.argument.name)
        if completer is None:
            known = catalog.prompt(of) is not None or any(t.uri == of for t in catalog.templates)
            if not known and of not in catalog.resources:
                raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown reference: {of}")
            request.result(completion_result(request.caller.revision, (), None))
            return
        check_scopes(of, completer.needs, session.principal)
        given: dict[str, Any] = {
            "value": params.argument.value,
            "arguments": params.context.arguments,
            "argument": params.argument.name,
        }
        names = completer.found.method.params["properties"]
        arguments = to_json({name: value for name, value in given.items() if name in names})
        finish = partial(completion_result, request.caller.revision)
        wanted = WantedCall("completion/complete", completer.found._replace(name=of), arguments, finish)
        self._start(request, session, wanted, None)

    def list(
        self, request: McpRequest, part: str, shown: Sequence[Any], cursor: str | None, session: Session
    ) -> None:
        """One page of a list: what is known beforehand, and then what each lister gives."""
        listers = [
            one
            for one in self._server.catalog.listers.get(part, ())
            if not missing_scopes(one.needs, session.principal)
        ]
        number, colon, after = (cursor or "").partition(":")
        if not colon:
            start = _start_of(cursor, len(shown))
            first = list(shown[start : start + PAGE])
            if start + PAGE < len(shown) or not listers:
                more = str(start + PAGE) if start + PAGE < len(shown) else None
                request.result(list_result(part, first, more, request.caller.revision))
                return
            number = "0"
        elif not number.isdecimal() or len(number) > 4 or int(number) >= len(listers):
            raise McpError(jsonrpc.INVALID_PARAMS, "Invalid cursor")
        else:
            first = []
        self._server.hub.calls.admit(request.caller.principal)
        lister = listers[int(number)]
        others = f"{int(number) + 1}:" if int(number) + 1 < len(listers) else None
        known = (part, lister.prefix, first, number, others, self._server.catalog.is_left_out)
        finish = partial(listing_result, *known, request.caller.revision)
        wanted = WantedCall(f"{part}/list", lister.found, to_json({"after": after or None}), finish)
        self._start(request, session, wanted, None)

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
            if tool is None and isinstance(found.method, RemoteMethod):
                return tool_of(found)  # of a server that has not told yet what it has
        return tool

    def prompt(self, name: str) -> Template | None:
        """A prompt by its name."""
        prompt = self._server.catalog.prompt(name)
        if prompt is None:
            found = self._server.hub.unlisted(name, "prompt")
            return None if found is None else Template(found._replace(name=name), {"name": name})
        return prompt

    def find(self, record: CallRecord, context: McpContext) -> tuple[Resolved, Finish]:
        """What a call in the journal runs, and how its result is said. Raises `MethodNotFound`."""
        revision = revisions.MODERN[-1]
        match context.ticket.method:
            case "tools/call":
                tool = self.tool(record.name)
                if tool is not None:
                    return tool.found, partial(tool_result, tool, revision)
            case "prompts/get":
                prompt = self.prompt(record.name)
                if prompt is not None:
                    return prompt.found, _prompting(prompt, revision)
            case "resources/read":
                read = self._server.catalog.find(context.uri)
                if read is not None:
                    return read[0].found, _reading(context.uri, read[0], revision)
        raise MethodNotFound(record.name)

    # --- the way of asking -------------------------------------------------------------------

    def _start(
        self,
        request: McpRequest,
        session: Session,
        wanted: "WantedCall",
        params: messages.RetryParams | None,
        call: Call | None = None,
    ) -> None:
        """Start the call by the best way of asking that this caller has, or go on with one that waits.

        `call` is given if it is under way already, at another server.
        """
        caller, found = request.caller, wanted.found
        if caller.modern and params is not None and _may_wait(request, found, params):
            self._start_durable(request, session, wanted, params, call)
            return
        dialect = Attached(request, wanted.finish, found.name, session)
        session.admit(request, dialect)
        hub = self._server.hub
        call = call or hub.prepare(
            found, wanted.arguments, dialect, principal=caller.principal, sender=request
        )
        dialect.call, call.outlet = call, dialect
        if not caller.modern:
            call.supported, call.model_answers = caller.askable(found.method.extras), caller.model_answers
            call.owner = session  # who may answer by `_plexus_respond`
            call.gives_links = caller.gets_links and not caller.elicits
        hub.calls.start(call, at_once=not found.method.interactive)

    def _start_durable(
        self,
        request: McpRequest,
        session: Session,
        wanted: "WantedCall",
        params: messages.RetryParams,
        call: Call | None,
    ) -> None:
        """Start a call that may have to be found again, or go on with one that waits."""
        resumption, hub, caller = self._server.resumption, self._server.hub, request.caller
        method, found, arguments, finish = wanted
        digested = (_digest if len(arguments) <= SHORT else _digest.__wrapped__)(arguments)
        ticket = Ticket(method, found.name, digested, caller.principal)
        if params.request_state is not UNSET:
            if not isinstance(params.request_state, str) or len(params.request_state) > MAX_STATE:
                raise invalid()
            resumption.retry(request, session, params.request_state, ticket, params.input_responses or {})
            return
        task = bool(found.method.extras.get("long_running")) and caller.knows_tasks
        uri = params.uri if isinstance(params, messages.Located) else ""
        kinds = caller.kinds
        context = McpContext(ticket, kinds, uri, task, caller.shows_any_form, caller.gives_tools)
        dialect = resumption.dialect(request, finish, context, arguments, params.input_responses)
        waiter = WaitingRequest(resumption, request)
        session.admit(request, waiter)
        if call is None:
            call = hub.prepare(found, arguments, dialect, principal=caller.principal, sender=request)
            hub.calls.check_room(call)
        call.outlet = dialect
        call.supported, call.time_limit = kinds, resumption.durable.time_limit
        resumption.begin(dialect, call, waiter, durably=task or request.meta.idempotency_key is not None)


def _start_of(cursor: str | None, count: int) -> int:
    """Where a page of what is known beforehand begins."""
    if cursor is None:
        return 0
    if not cursor.isdecimal() or len(cursor) > 9 or int(cursor) >= count:
        raise McpError(jsonrpc.INVALID_PARAMS, "Invalid cursor")
    return int(cursor)


def _with(arguments: Raw, given: Mapping[str, str]) -> bytes:
    """Arguments with those that the name of a prompt says."""
    if not given:
        return bytes(arguments)
    try:
        named = msgspec.json.decode(bytes(arguments) or b"{}", type=dict[str, Raw])
    except msgspec.DecodeError as error:
        raise McpError(jsonrpc.INVALID_PARAMS, f"Invalid params: {error}") from None
    return msgspec.json.encode({**named, **given})


class WantedCall(NamedTuple):
    """What a request wants to be run, and how its result is said."""

    method: str
    """Of the request."""
    found: Resolved
    arguments: bytes
    finish: Finish


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


def _reading(uri: str, readable: Readable, revision: str) -> Finish:
    changes = bool(readable.found.method.extras.get("changes"))
    return partial(resource_result, uri, readable.shown.get("mimeType"), changes, revision)


def _prompting(prompt: Template, revision: str) -> Finish:
    return partial(prompt_result, prompt.found.method.description, revision)


@functools.lru_cache(maxsize=1024)  # they come again with each answer
def _digest(arguments: bytes) -> str:
    try:
        return digest(msgspec.json.decode(arguments or b"{}"))
    except (msgspec.DecodeError, RecursionError):
        return ""


# --- plain calls --------------------------------------------------------------------------------------
#
# This is the hot path, so there is no dialect: the call hands over its result, and that is the response. How
# it is run is up to the transport (`ResponseStream.run`): soon, or at once in the task of the request.


def run_plain(request: McpRequest, session: Session, hub: Hub, tool: Tool, arguments: bytes) -> None:
    """Run a tool, and respond with its result. Raises `InvalidArguments`, `TooManyCalls` or `McpError`."""
    principal = request.caller.principal
    call = hub.prepare(tool.found, arguments, NOWHERE, principal=principal, sender=request)
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
        except UNSENDABLE as error:  # something that JSON cannot carry
            request.failed(error)
        else:
            request.result(result)

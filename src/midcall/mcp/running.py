"""Running: requests that start a call, or go on with one that is parked.

`tools/call`, `resources/read`, `prompts/get` and `completion/complete` differ in what they run and in how
the result is said; the way of asking is chosen here, for each request, from what its caller declared.
"""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from midcall import jsonrpc
from midcall.activation import digest
from midcall.call import Call
from midcall.content import Passed
from midcall.errors import InvalidArguments, MethodNotFound, MidcallError
from midcall.hub import Hub
from midcall.items import Error, to_json
from midcall.journal.contract import CallRecord
from midcall.limits import MAX_STATE, Key
from midcall.mcp import messages, revisions
from midcall.mcp.caller import TASKS, Caller
from midcall.mcp.catalog import Catalog, Readable, Template, Tool, tool_of
from midcall.mcp.desk import Desk, invalid
from midcall.mcp.dialects import respond_tool
from midcall.mcp.dialects.base import Dialect, Finish
from midcall.mcp.dialects.respond_tool import RespondTool
from midcall.mcp.dialects.server_requests import ServerRequests
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.legacy import Session
from midcall.mcp.outcomes import Context, Ticket
from midcall.mcp.passed import passed_result
from midcall.mcp.plain import run_plain
from midcall.mcp.relayed import RelayedCall, Talk
from midcall.mcp.results import prompt_result, resource_result, text_block, tool_result
from midcall.principal import check_scopes
from midcall.registry import Resolved

MISSING_CAPABILITY = -32021


SHORT = 1024
"""Up to how many bytes the digest of arguments is remembered."""


class Server(Protocol):
    """What is run from: the extension, as far as it is known here."""

    @property
    def hub(self) -> Hub: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def desk(self) -> Desk: ...


class Runner:
    """Starts calls for requests."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def call_tool(self, exchange: Exchange, params: messages.Named, session: Session) -> None:
        if params.name == respond_tool.TOOL and not exchange.caller.modern:
            self.respond(exchange, params, session)
            return
        tool = self._server.catalog.tools.get(params.name) or self.tool(params.name)
        if tool is None:
            raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown tool: {params.name}")
        if session.principal is not None:
            check_scopes(tool.found.name, tool.found.method.extras, session.principal)
        if tool.requires:
            require(tool.requires, exchange.caller)
        arguments = bytes(params.arguments)
        try:
            if (
                tool.plain
                and params.request_state is UNSET
                and exchange.meta.idempotency_key is None
                and exchange.span is None  # else it needs a task, in which the span is the current one
            ):
                run_plain(exchange, session, self._server.hub, tool, arguments)
            elif (
                tool.remote
                and params.request_state is UNSET
                and exchange.meta.idempotency_key is None
                and exchange.span is None  # as above
            ):
                go_on = functools.partial(self._call_remote, tool, arguments, params)
                RelayedCall(exchange, session, self._server.hub, tool, arguments, go_on).start()
            else:
                finish = functools.partial(_tool_result, tool, exchange.caller.revision)
                self._run(exchange, session, tool.found, arguments, finish, "tools/call", params)
        except InvalidArguments as error:
            failure = Error(_NO_METADATA, str(error), error.code)
            exchange.result(tool_result((), failure, tool, exchange.caller.revision))

    def _call_remote(
        self,
        tool: Tool,
        arguments: bytes,
        params: messages.Named,
        exchange: Exchange,
        session: Session,
        talk: Talk | None,
    ) -> None:
        """A tool of another server, by the way of asking that its caller has; it may be under way already."""
        finish = functools.partial(_tool_result, tool, exchange.caller.revision)
        self._run(exchange, session, tool.found, arguments, finish, "tools/call", params, talk)

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

    def read_resource(self, exchange: Exchange, params: messages.Located, session: Session) -> None:
        found = self._server.catalog.find(params.uri)
        if found is None:
            code = jsonrpc.INVALID_PARAMS if exchange.caller.modern else -32002
            raise McpError(code, f"Resource not found: {params.uri}", {"uri": params.uri})
        readable, parts = found
        check_scopes(readable.shown["name"], readable.method.extras, session.principal)

        resolved, finish = _reading(params.uri, readable, modern=exchange.caller.modern)
        self._run_or_refuse(exchange, session, resolved, to_json(parts), finish, "resources/read", params)

    def get_prompt(self, exchange: Exchange, params: messages.Named, session: Session) -> None:
        prompt = self.prompt(params.name)
        if prompt is None:
            raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        check_scopes(prompt.name, prompt.method.extras, session.principal)

        resolved, finish = _prompting(prompt, exchange.caller.revision)
        arguments = bytes(params.arguments)
        self._run_or_refuse(exchange, session, resolved, arguments, finish, "prompts/get", params)

    def complete(self, exchange: Exchange, params: messages.Complete, session: Session) -> None:
        of = params.ref.uri if params.ref.type == "ref/resource" else params.ref.name
        completer = self._server.catalog.completer(of, params.argument.name)
        if completer is None:
            known = of in self._server.catalog.prompts or any(
                t.uri == of for t in self._server.catalog.templates
            )
            if not known and of not in self._server.catalog.resources:
                raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown reference: {of}")
            exchange.result({"completion": {"values": [], "total": 0, "hasMore": False}})
            return
        check_scopes(of, completer.needs, session.principal)

        def finish(contents: Sequence[Any], failure: Error | None) -> dict[str, Any]:
            if failure is not None:
                raise McpError(jsonrpc.INTERNAL_ERROR, failure.message)
            if contents and isinstance(contents[0], Passed):
                return passed_result(contents[0], exchange.caller.revision)
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
        self._run_or_refuse(exchange, session, resolved, arguments, finish, "completion/complete", params)

    def _run_or_refuse(
        self,
        exchange: Exchange,
        session: Session,
        found: Resolved,
        arguments: bytes,
        finish: Finish,
        method: str,
        params: Any,
    ) -> None:
        try:
            self._run(exchange, session, found, arguments, finish, method, params)
        except InvalidArguments as error:
            raise McpError(jsonrpc.INVALID_PARAMS, str(error), error.data) from None

    def _run(
        self,
        exchange: Exchange,
        session: Session,
        found: Resolved,
        arguments: bytes,
        finish: Finish,
        method: str,
        params: Any,
        talk: Talk | None = None,
    ) -> None:
        """Start the call by the best way of asking that this caller has, or go on with a parked one."""
        caller = exchange.caller
        dialect: Dialect
        if caller.modern and method != "completion/complete" and _may_park(exchange, found, params):
            self._park(exchange, session, found, arguments, finish, method, params, talk)
            return
        if not found.method.interactive or caller.modern:
            dialect = Dialect(exchange, finish)
        elif caller.elicits:
            dialect = ServerRequests(exchange, finish, session)
        else:
            dialect = RespondTool(exchange, finish, session)
        session.admit(exchange, dialect)
        owner = None if caller.modern else session  # who may answer by `_plexus_respond`
        hub = self._server.hub
        call = dialect.call = hub.prepare(
            found,
            arguments,
            dialect,
            supported=dialect.supported,
            owner=owner,
            principal=caller.principal,
        )
        _take_along(call, talk)
        hub.calls.start(call, at_once=not found.method.interactive)

    def _park(
        self,
        exchange: Exchange,
        session: Session,
        found: Resolved,
        arguments: bytes,
        finish: Finish,
        method: str,
        params: Any,
        talk: Talk | None,
    ) -> None:
        """Start a call that may have to be found again, or go on with one that waits."""
        desk, hub, caller = self._server.desk, self._server.hub, exchange.caller
        ticket = Ticket(method, found.name, _digest(arguments), caller.principal)
        if params.request_state is not UNSET:
            if not isinstance(params.request_state, str) or len(params.request_state) > MAX_STATE:
                raise invalid()
            desk.retry(exchange, session, params.request_state, ticket, params.input_responses or {})
            return
        long_running = bool(found.method.extras.get("long_running")) and caller.knows_tasks
        uri = getattr(params, "uri", "")
        kinds = caller.kinds
        context = Context(ticket, kinds, uri, long_running, caller.shows_any_form, caller.gives_tools)
        front = desk.dialect(exchange, finish, context, arguments, params.input_responses)
        session.admit(exchange, front)
        call = hub.prepare(
            found,
            arguments,
            front,
            supported=kinds,
            time_limit=desk.durable.time_limit,
            principal=caller.principal,
        )
        hub.calls.check_room(call)
        _take_along(call, talk)
        desk.durable.admit(front, call)
        if long_running or exchange.meta.idempotency_key is not None:
            desk.start_durably(front, exchange)
        else:
            hub.calls.start(call, checked=True)

    def find(self, record: CallRecord, context: Context) -> tuple[Resolved, Finish]:
        """What a call in the journal runs, and how its result is said. Raises `McpError` if it is gone."""
        match context.ticket.method:
            case "tools/call":
                tool = self.tool(record.name)
                if tool is not None:
                    return tool.found, functools.partial(_tool_result, tool, revisions.MODERN[-1])
            case "prompts/get":
                prompt = self.prompt(record.name)
                if prompt is not None:
                    return _prompting(prompt, revisions.MODERN[-1])
            case "resources/read":
                found = self._server.catalog.find(context.uri)
                if found is not None:
                    return _reading(context.uri, found[0], modern=True)
        raise MethodNotFound(record.name)

    def respond(self, exchange: Exchange, params: messages.Named, session: Session) -> None:
        """`_plexus_respond`: an answer to a question that went out as a notification."""
        try:
            given = msgspec.json.decode(bytes(params.arguments) or b"{}", type=_Respond)
            payload = given.payload if given.payload is not UNSET else given.response_data
            if payload is UNSET:
                raise ValueError("payload: is required")  # noqa: TRY301  with what else is wrong
        except (ValueError, RecursionError) as error:
            wrong = InvalidArguments(respond_tool.TOOL, [{"path": "", "message": str(error)}])
            exchange.result({"content": [text_block(str(wrong))], "isError": True})
            return
        try:
            self._server.hub.calls.answer(given.request_id, payload, owner=session)
        except MidcallError as error:
            raise McpError(jsonrpc.INVALID_PARAMS, str(error), error.data) from None
        exchange.result({"content": [text_block("Response received")]})


_NO_METADATA: Any = None


def _tool_result(tool: Tool, revision: str, contents: Sequence[Any], failure: Error | None) -> dict[str, Any]:
    return tool_result(contents, failure, tool, revision)


class _Respond(msgspec.Struct):
    request_id: Key
    payload: Any = UNSET
    response_data: Any = UNSET


def require(wanted: Sequence[str], caller: Caller) -> None:
    """Refuse a caller who cannot do what is needed."""
    missing: dict[str, Any] = {}
    for name in wanted:
        if name == "tasks":
            if not caller.knows_tasks:
                missing["extensions"] = {TASKS: {}}
        elif getattr(caller.capabilities, name, None) is None:
            missing[name] = {}
    if missing:
        text = f"The client must be able to do: {', '.join(wanted)}"
        raise McpError(MISSING_CAPABILITY, text, {"requiredCapabilities": missing}, status=400)


def _may_park(exchange: Exchange, found: Resolved, params: Any) -> bool:
    """Whether the call of a modern caller may have to be found again."""
    return (
        found.method.interactive
        or params.request_state is not UNSET
        or exchange.meta.idempotency_key is not None
        or (bool(found.method.extras.get("long_running")) and exchange.caller.knows_tasks)
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


def _take_along(call: Call, talk: Talk | None) -> None:
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

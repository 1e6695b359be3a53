"""McpExtension: the methods of MCP for a hub. No I/O: messages come in, and leave by a `ResponseStream`.

Both eras at once: a request that carries modern metadata is served from that alone; any other belongs
to a legacy session, which begins with `initialize`. The table of all methods is below.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import msgspec
from msgspec import UNSET, Raw

from midcall import jsonrpc
from midcall.activation import RemoteMethod
from midcall.errors import Aborted, BadExport
from midcall.hub import Hub
from midcall.items import to_json
from midcall.journal import kept_questions
from midcall.journal.admin import CallKind
from midcall.journal.contract import CallRecord
from midcall.journal.durable import DurableCalls, durable_calls
from midcall.journal.seal import KeyRing
from midcall.journal.state import context_of
from midcall.jsonrpc import Envelope, Id
from midcall.mcp import messages, revisions, tasks
from midcall.mcp.calls import McpCalls
from midcall.mcp.catalog import Catalog, Readable, Template, for_legacy
from midcall.mcp.dialects import respond_tool
from midcall.mcp.dialects.respond_tool import Offered
from midcall.mcp.elicitation import read_any_answer, unaskable
from midcall.mcp.messages import Meta
from midcall.mcp.peer import LISTENER, Listeners, McpPeer, hears, size_of
from midcall.mcp.request import (
    LEVELS,
    NOT_INITIALIZED,
    TASKS,
    Caller,
    Headers,
    McpError,
    McpRequest,
    ResponseStream,
    Session,
    check_headers,
    error_for,
)
from midcall.mcp.results import cache_hints, encode_outcome
from midcall.mcp.resume import CHAT, KIND, McpContext, Resumption
from midcall.plexus import subscriptions
from midcall.plexus.protocol import Connection
from midcall.principal import RequestInfo, check_scopes
from midcall.registry import HubChange

log = logging.getLogger("midcall.mcp")

UNSUPPORTED_REVISION = -32022

MAX_INITIALIZE = 64 * 1024


_Handle: TypeAlias = "Callable[[McpExtension, McpRequest, Any, Session], None]"


class _Handler(NamedTuple):
    read: Callable[[Raw], Any]
    handle: _Handle
    legacy: bool
    modern: bool


class McpExtension:
    """MCP for a hub: `hub.with_extension(McpExtension())`."""

    def __init__(
        self,
        *,
        instructions: str | None = None,
        keys: KeyRing | None = None,
        time_limit: float | None = None,
        respond_tool: Offered = "always",
    ) -> None:
        self.instructions = instructions
        self.respond_tool: Offered = respond_tool
        """Which legacy clients that are not elicited have the tool to answer with."""
        self.sessions: WeakSet[Session] = WeakSet()
        self._keys = keys
        self._time_limit = time_limit
        self._hub: Hub | None = None
        self.server_info: dict[str, Any] = {}
        self._catalog: Catalog | None = None
        self._warned: set[tuple[str, str]] = set()
        self._resumption: Resumption | None = None
        self._listeners = Listeners()
        self.calls = McpCalls(self)

    def attach(self, hub: Hub) -> None:
        """Serve this hub."""
        self._hub = hub
        self.server_info = {"name": hub.name, "version": hub.version}
        hub.watch(self._changed)
        self._warn_of_forms()

    def _warn_of_forms(self) -> None:
        """Tell an author which of the questions that a method declares no MCP client can be asked."""
        from midcall.schema import shape_of  # noqa: PLC0415  slow to import: only where one is declared

        for name, method in self.hub.methods():
            for key, question in method.elicits.items():
                reason = unaskable(shape_of(question.answer_type).schema)
                if reason is not None and (name, key) not in self._warned:
                    self._warned.add((name, key))
                    log.warning("%s asks %s, which MCP clients cannot show. %s", name, key, reason)

    def connect(self, connection: Connection) -> McpPeer:
        """Speak MCP on a line."""
        return McpPeer(self, connection)

    @property
    def hub(self) -> Hub:
        if self._hub is None:
            raise RuntimeError("Register this extension with a hub first: hub.with_extension(...)")
        return self._hub

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(self.hub)
        return self._catalog

    @property
    def resumption(self) -> Resumption:
        if self._resumption is None:
            durable = durable_calls(self.hub)
            if self._time_limit is not None:
                durable.time_limit = self._time_limit
            self._resumption = Resumption(durable, self._keys, self.calls.find)
        return self._resumption

    def keep_with(self, durable: DurableCalls) -> None:
        """Be ready to go on with calls of a journal, also of those that nobody comes back to."""
        _ = self.resumption

    @property
    def names(self) -> frozenset[str]:
        """The methods that stand without a namespace."""
        return frozenset(_TABLE) | {"initialized", "notifications/initialized", "notifications/cancelled"}

    # --- messages ----------------------------------------------------------------------------

    def take(
        self,
        message: Envelope,
        stream: ResponseStream,
        session: Session,
        headers: Headers | None = None,
        came_by: RequestInfo | Mapping[str, Any] | None = None,
    ) -> None:
        """Serve one request. With `headers` it is a modern one, and they must agree with it.

        `came_by` is as in `McpRequest`.
        """
        id: Id = None if message.id is UNSET else message.id
        try:
            self._serve(message, id, stream, session, headers, came_by)
        except Exception as error:  # noqa: BLE001  whatever it is, the caller is told
            refused = error_for(error)
            if headers is None and refused.status == 429:
                refused.status = 200  # to old clients, another one is the end of their connection
            McpRequest(id, session.caller, stream, _NO_META, self.server_info).error(refused)

    def _serve(
        self,
        message: Envelope,
        id: Id,
        stream: ResponseStream,
        session: Session,
        headers: Headers | None,
        came_by: RequestInfo | Mapping[str, Any] | None,
    ) -> None:
        name = str(message.method)
        method = _TABLE.get(name)
        fault: msgspec.DecodeError | None = None
        params: Any = None
        try:
            params = (_read_any if method is None else method.read)(message.params)
            meta: Meta = getattr(params, "meta", _NO_META)
        except msgspec.DecodeError as error:
            fault = error
            meta = _meta_of(message)
        if headers is not None:
            check_headers(headers, name, params, meta.revision, self.calls.tool)
        modern = headers is not None or meta.revision is not None
        caller = _modern_caller(meta, session.caller.principal) if modern else session.caller
        if method is None or not (method.modern if modern else method.legacy):
            raise McpError(jsonrpc.METHOD_NOT_FOUND, f"Method not found: {name}", status=404)
        if not modern and not session.open:
            if name not in ("initialize", "ping"):
                raise McpError(NOT_INITIALIZED, "Server not initialized")
            if memoryview(message.params).nbytes > MAX_INITIALIZE:  # a session remembers what it is told
                raise McpError(jsonrpc.INVALID_PARAMS, "Invalid params: too much for an initialize")
        if fault is not None:
            raise _invalid(fault)
        request = McpRequest(id, caller, stream, meta, self.server_info, session.principal, came_by)
        method.handle(self, request, params, session)

    def notice(self, message: Envelope, session: Session) -> None:
        """Take a notification."""
        if message.method == "notifications/cancelled":
            with contextlib.suppress(msgspec.DecodeError):
                cancelled = _read_cancelled(message.params)
                self.cancel(session, cancelled.request_id, cancelled.reason)

    def cancel(self, session: Session, request_id: Id, reason: str) -> None:
        """Stop a request: nothing is sent for it any more."""
        self._drop(session, request_id, reason or "The caller cancelled the request", cancelled=True)

    def gone(self, session: Session, reason: str) -> None:
        """The caller of all these requests is gone. What it can find again goes on."""
        for request_id in list(session.running):
            self._drop(session, request_id, reason, cancelled=False)
        self._listeners.taken.give_back(session.caller.principal, size_of(session.watched))
        session.watched.clear()

    def close(self) -> None:
        """The server ends: so do all subscriptions."""
        self._listeners.close()

    def _drop(self, session: Session, request_id: Id, reason: str, *, cancelled: bool) -> None:
        running = session.running.pop(request_id, None)
        if running is None:
            return
        request, started = running
        if started is None:
            self._listeners.remove(request)
        else:
            started.drop(request, reason, cancelled=cancelled)
        request.close()

    def response(self, message: Envelope, session: Session) -> None:
        """Take the client's response to a request of ours."""
        answered = session.requests.take(message.id)
        if answered is not None:
            answered(message)

    def is_watched(self, uri: str) -> bool:
        """Whether anybody subscribes to a resource."""
        return self._listeners.is_watched(uri) or any(uri in session.watched for session in self.sessions)

    def _changed(self, change: HubChange) -> None:
        uri, part, principals = change
        if uri is not None:
            self._listeners.updated(uri, principals)
            for session in self.sessions:
                if uri in session.watched and hears(session.caller.principal, principals):
                    params = to_json({"uri": uri})
                    session.send(jsonrpc.notification("notifications/resources/updated", params))
        elif part is not None:
            self._relisted(part, principals)
        else:
            self._warn_of_forms()
            before, self._catalog = self._catalog, None
            for changed in () if before is None else self.catalog.changed_since(before):
                self._relisted(changed, None)

    def _relisted(self, part: str, principals: Collection[str | None] | None) -> None:
        self._listeners.changed(part, principals)
        for session in self.sessions:
            if session.open and hears(session.caller.principal, principals):
                session.send(jsonrpc.notification(f"notifications/{part}/list_changed", b"{}"))

    # --- the handshake, and what it tells ----------------------------------------------------

    def _about(self, *, modern: bool) -> dict[str, Any]:
        """What a client is told at the start."""
        capabilities: dict[str, Any] = {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }
        if modern:
            capabilities["extensions"] = {TASKS: {}}
        instructions = self.instructions or self._of_servers_behind()
        return {"capabilities": capabilities, **({"instructions": instructions} if instructions else {})}

    def _initialize(self, request: McpRequest, params: messages.Initialize, session: Session) -> None:
        if session.open:
            raise McpError(jsonrpc.INVALID_REQUEST, "This session is initialized already")
        session.begin(params)
        session.caller = msgspec.structs.replace(
            session.caller,
            responds=respond_tool.is_offered(self.respond_tool, session.caller),
            gets_links=self._gives_links(request),
        )
        self.sessions.add(session)
        revision = session.caller.revision
        about = self._about(modern=False)
        request.result({"protocolVersion": revision, "serverInfo": self.server_info, **about})

    def _gives_links(self, request: McpRequest) -> bool:
        """Whether the person of a client can answer at a page of this server."""
        durable, came_by = self.hub.durable, request.came_by
        if durable is None or durable.links.base is None or came_by is None:
            return False
        return not isinstance(came_by, RequestInfo) or came_by.transport != "stdio"

    def _discover(self, request: McpRequest, params: Any, session: Session) -> None:
        versions = list(revisions.MODERN)
        request.result({"supportedVersions": versions, **self._about(modern=True), **cache_hints()})

    def _of_servers_behind(self) -> str:
        """What mounted servers tell a model about themselves."""
        told = [(path, getattr(one, "instructions", None)) for path, one in self.hub.activations()]
        return "\n\n".join(f"{path}: {text}" if path else text for path, text in told if text)

    def _ping(self, request: McpRequest, params: Any, session: Session) -> None:
        request.result({})

    def _set_level(self, request: McpRequest, params: messages.Level, session: Session) -> None:
        if params.level not in LEVELS:
            raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown level: {params.level}")
        session.set_level(params.level)
        request.result({})

    # --- lists -------------------------------------------------------------------------------

    def _list_tools(self, request: McpRequest, params: messages.ListParams, session: Session) -> None:
        shown = [tool.shown for tool in self.catalog.tools.values()]
        if not request.caller.modern:
            shown = [for_legacy(one) for one in shown]
            if request.caller.responds:
                shown.append(respond_tool.DEFINITION)
        self.calls.list(request, "tools", shown, params.cursor, session)

    # --- subscriptions -----------------------------------------------------------------------

    def _subscribe(self, request: McpRequest, params: messages.Located, session: Session) -> None:
        if params.uri not in session.watched:
            size = size_of((params.uri,))
            self._listeners.check_room(session.caller.principal, size)
            self._check_readable(params.uri, session)
            session.watched.add(params.uri)
            self._listeners.taken.take(session.caller.principal, size)
        request.result({})

    def _unsubscribe(self, request: McpRequest, params: messages.Located, session: Session) -> None:
        if params.uri in session.watched:
            session.watched.remove(params.uri)
            self._listeners.taken.give_back(session.caller.principal, size_of((params.uri,)))
        request.result({})

    def _listen(self, request: McpRequest, params: messages.Listen, session: Session) -> None:
        uris = params.notifications.uris
        self._listeners.check_room(session.caller.principal, LISTENER + size_of(uris))
        for uri in uris:
            self._check_readable(uri, session)
        session.admit(request, None)
        self._listeners.add(request, params.notifications)

    def _check_readable(self, uri: str, session: Session) -> None:
        """Who may not read a resource does not hear of its changes either. Raises `NotAllowed`."""
        found = self.catalog.find(uri)
        if found is not None:
            readable, _ = found
            check_scopes(readable.found.name, readable.found.method.extras, session.principal)
            if isinstance(readable.found.method, RemoteMethod):  # the server that has it is to tell
                readable.found.method.runner.watch(uri, session.caller.principal)
            elif readable.subscribed is not None:
                readable.subscribed(uri, session.caller.principal)


def mcp_of(hub: Hub) -> McpExtension:
    """The MCP extension of a hub, which gets one if it has none."""
    for protocol in hub.protocols:
        if isinstance(protocol, McpExtension):
            return protocol
    extension = McpExtension()
    hub.with_extension(extension)
    return extension


# --- what administrators need to know of each kind of durable call ---------------------------------------


def _check_context(record: CallRecord) -> None:
    ticket = msgspec.json.decode(context_of(record), type=McpContext).ticket
    if (ticket.target, ticket.principal) != (record.name, record.principal):
        raise BadExport(f"The call {record.id} contradicts itself about who called what")


def _aborted(reason: str) -> bytes:
    return encode_outcome(McpError(jsonrpc.INTERNAL_ERROR, reason, {"code": Aborted.code}))


CALL_KINDS: Mapping[str, CallKind] = {
    KIND: CallKind(_check_context, _aborted, read_any_answer),
    CHAT: CallKind(context_of, _aborted, read_any_answer),
    kept_questions.KIND: CallKind(context_of, kept_questions.aborted, read_any_answer),
    subscriptions.KIND: CallKind(
        subscriptions.read_context, subscriptions.aborted, read_any_answer, subscriptions.tell_holder
    ),
}
"""For `Admin`."""


# --- the table of methods ---------------------------------------------------------------------------------


_NO_META = Meta()


def _run(method: str, handle: Callable[[McpCalls, McpRequest, Any, Session], None]) -> _Handle:
    """A handler that starts a call, unless that is too soon, in a span if the process uses OpenTelemetry."""

    def run(server: McpExtension, request: McpRequest, params: Any, session: Session) -> None:
        server.hub.calls.admit(request.caller.principal)
        if "opentelemetry.trace" not in sys.modules:
            handle(server.calls, request, params, session)
            return
        request = _traced(server, method, request, params)
        with contextlib.nullcontext() if request.span is None else request.span.current():
            try:
                handle(server.calls, request, params, session)
            except Exception as error:  # noqa: BLE001  as in `take`, and the span ends with it
                request.error(error_for(error))

    return run


def _traced(server: McpExtension, method: str, request: McpRequest, params: Any) -> McpRequest:
    """The same request with a span; without a tracer, as it is.

    Spans are named and described as OpenTelemetry's conventions for MCP say; but what clients make up is not
    to be the name of a span.
    """
    from midcall import telemetry  # noqa: PLC0415  slow to import, and seldom needed

    tracer = telemetry.tracer()
    if tracer is None:
        return request
    target = ""
    about = {"mcp.method.name": method, "mcp.protocol.version": request.caller.revision}
    if request.id is not None:
        about["jsonrpc.request.id"] = str(request.id)
    match params:
        case messages.Named(name=name) if method == "tools/call":
            tool = server.calls.tool(name)
            target = "" if tool is None else tool.found.name
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        case messages.Named(name=name):
            target = name if name in server.catalog.prompts else ""
            about["gen_ai.prompt.name"] = name
        case messages.CompleteParams(ref=messages.Reference("ref/prompt", name)):
            about["gen_ai.prompt.name"] = name
        case messages.Located(uri=uri) | messages.CompleteParams(ref=messages.Reference(uri=uri)):
            about["mcp.resource.uri"] = uri
    carrier = {key: getattr(request.meta, key) for key in telemetry.CARRIED}
    span = telemetry.RequestSpan(tracer, f"{method} {target}".rstrip(), about, carrier)
    return msgspec.structs.replace(request, span=span)


def _reader(kind: type) -> Callable[[Raw], Any]:
    """What reads parameters of this kind. It raises `msgspec.DecodeError`."""
    decode: Callable[[Any], Any] = msgspec.json.Decoder(kind).decode

    def read(raw: Raw) -> Any:
        return decode(raw if raw != _ABSENT else b"{}")

    return read


def _list(name: str, offered: Callable[[Catalog], Iterable[Readable | Template]]) -> _Handler:
    """A list of what the catalog has, under this name."""
    return _method(
        messages.ListParams,
        lambda server, request, params, session: server.calls.list(
            request, name, [one.shown for one in offered(server.catalog)], params.cursor, session
        ),
    )


def _method(params: type, handle: _Handle, *, legacy: bool = True, modern: bool = True) -> _Handler:
    return _Handler(_reader(params), handle, legacy, modern)


def _task(work: tasks.Work) -> _Handler:
    return _method(
        messages.TaskParams,
        lambda server, request, params, session: tasks.serve(
            server.resumption, request, params, session.principal, work
        ),
        legacy=False,
    )


_ABSENT = Raw()
_read_any = _reader(messages.Params)
_read_cancelled = _reader(messages.CancelledParams)

_TABLE: dict[str, _Handler] = {
    "initialize": _method(messages.Initialize, McpExtension._initialize, modern=False),
    "ping": _method(messages.Params, McpExtension._ping, modern=False),
    "logging/setLevel": _method(messages.Level, McpExtension._set_level, modern=False),
    "server/discover": _method(messages.Params, McpExtension._discover, legacy=False),
    "tools/list": _method(messages.ListParams, McpExtension._list_tools),
    "tools/call": _method(messages.Named, _run("tools/call", McpCalls.call_tool)),
    "resources/list": _list("resources", lambda catalog: catalog.resources.values()),
    "resources/templates/list": _list("resourceTemplates", lambda catalog: catalog.templates),
    "resources/read": _method(messages.Located, _run("resources/read", McpCalls.read_resource)),
    "resources/subscribe": _method(messages.Located, McpExtension._subscribe, modern=False),
    "resources/unsubscribe": _method(messages.Located, McpExtension._unsubscribe, modern=False),
    "prompts/list": _list("prompts", lambda catalog: catalog.prompts.values()),
    "prompts/get": _method(messages.Named, _run("prompts/get", McpCalls.get_prompt)),
    "completion/complete": _method(messages.CompleteParams, _run("completion/complete", McpCalls.complete)),
    "subscriptions/listen": _method(messages.Listen, McpExtension._listen, legacy=False),
    "tasks/get": _task(tasks.get),
    "tasks/update": _task(tasks.update),
    "tasks/cancel": _task(tasks.cancel),
}


def _modern_caller(meta: Meta, principal: str | None) -> Caller:
    if meta.revision is None:
        raise McpError(jsonrpc.INVALID_PARAMS, "Invalid params: _meta has no protocolVersion", status=400)
    if meta.revision not in revisions.MODERN:
        data = {"supported": list(revisions.MODERN), "requested": meta.revision}
        raise McpError(UNSUPPORTED_REVISION, "Unsupported protocol version", data, status=400)
    if meta.capabilities is None:
        raise McpError(jsonrpc.INVALID_PARAMS, "Invalid params: _meta has no clientCapabilities", status=400)
    level = meta.log_level if meta.log_level in LEVELS else None
    return Caller(meta.revision, meta.capabilities, level, principal, modern=True)


def _meta_of(message: Envelope) -> Meta:
    """The metadata of a request whose parameters do not fit otherwise."""
    try:
        params: messages.Params = _read_any(message.params)
    except msgspec.DecodeError as error:
        raise _invalid(error) from None
    return params.meta


def _invalid(fault: msgspec.DecodeError) -> McpError:
    return McpError(jsonrpc.INVALID_PARAMS, f"Invalid params: {fault}", status=400)

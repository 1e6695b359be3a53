"""McpExtension: the methods of MCP, lifted into a hub. No I/O: messages come in, a `Line` takes them out.

Both eras at once: a request that carries modern metadata is served from that alone; any other belongs
to a legacy session, which begins with `initialize`. What follows is one table of methods, and the
choice of a dialect for a call.
"""

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import msgspec
from msgspec import UNSET, Raw

from midcall import jsonrpc
from midcall.connection import Connection
from midcall.errors import MidcallError, NotAllowed, RateLimited
from midcall.hub import Hub
from midcall.items import to_json
from midcall.journal.durable import DurableCalls, durable_calls
from midcall.journal.seal import KeyRing
from midcall.jsonrpc import Envelope, Id
from midcall.mcp import messages, revisions
from midcall.mcp.caller import LEVELS, TASKS, Caller
from midcall.mcp.catalog import Catalog, for_legacy
from midcall.mcp.desk import Desk
from midcall.mcp.dialects import respond_tool
from midcall.mcp.exchange import Exchange, Line, McpError
from midcall.mcp.headers import Headers, check_headers
from midcall.mcp.legacy import NOT_INITIALIZED, Session
from midcall.mcp.listeners import LISTENER, Listeners, size_of
from midcall.mcp.messages import Meta
from midcall.mcp.results import cache_hints
from midcall.mcp.running import Runner, require
from midcall.mcp.speaker import McpSpeaker
from midcall.principal import check_scopes

log = logging.getLogger("midcall.mcp")

UNSUPPORTED_REVISION = -32022

PAGE = 1000
MAX_INITIALIZE = 64 * 1024


_Handle: TypeAlias = "Callable[[McpExtension, Exchange, Any, Session], None]"


class _Method(NamedTuple):
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
    ) -> None:
        self.instructions = instructions
        self.sessions: WeakSet[Session] = WeakSet()
        self._keys = keys
        self._time_limit = time_limit
        self._hub: Hub | None = None
        self.server_info: dict[str, Any] = {}
        self._catalog: Catalog | None = None
        self._desk: Desk | None = None
        self._listeners = Listeners()
        self.running = Runner(self)

    def attach(self, hub: Hub) -> None:
        """Serve this hub."""
        self._hub = hub
        self.server_info = {"name": hub.name, "version": hub.version}
        hub.watch(self._changed)

    def connect(self, connection: Connection) -> McpSpeaker:
        """Speak MCP on a line."""
        return McpSpeaker(self, connection)

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
    def desk(self) -> Desk:
        if self._desk is None:
            durable = durable_calls(self.hub)
            if self._time_limit is not None:
                durable.time_limit = self._time_limit
            self._desk = Desk(durable, self._keys, self.running.find)
        return self._desk

    def keep_with(self, durable: DurableCalls) -> None:
        """Be ready to go on with calls of a journal, also of those that nobody comes back to."""
        _ = self.desk

    @property
    def names(self) -> frozenset[str]:
        """The methods that stand without a namespace."""
        return frozenset(_TABLE) | {"initialized", "notifications/initialized", "notifications/cancelled"}

    # --- messages ----------------------------------------------------------------------------

    def take(
        self,
        message: Envelope,
        line: Line,
        session: Session,
        headers: Headers | None = None,
    ) -> None:
        """Serve one request. With `headers` it is a modern one, and they must agree with it."""
        id: Id = None if message.id is UNSET else message.id
        try:
            self._serve(message, id, line, session, headers)
        except McpError as error:
            refused = error
        except NotAllowed as error:
            refused = McpError(jsonrpc.code_for(error), str(error), error.data, status=403)
        except RateLimited as error:
            status = 200 if headers is None else 429  # to old clients, that is the end of their connection
            refused = McpError(jsonrpc.code_for(error), str(error), error.data, status=status)
        except MidcallError as error:
            refused = McpError(jsonrpc.code_for(error), str(error), error.data or None)
        except Exception:
            log.exception("%s failed inside midcall", message.method)
            refused = McpError(jsonrpc.INTERNAL_ERROR, "Internal error", status=500)
        else:
            return
        Exchange(id, session.caller, line, _NO_META, self.server_info).error(refused)

    def _serve(
        self,
        message: Envelope,
        id: Id,
        line: Line,
        session: Session,
        headers: Headers | None,
    ) -> None:
        name = str(message.method)
        method = _TABLE.get(name)
        fault: msgspec.DecodeError | None = None
        params: Any = None
        try:
            params = (messages.read_any if method is None else method.read)(message.params)
            meta: Meta = getattr(params, "meta", _NO_META)
        except msgspec.DecodeError as error:
            fault = error
            meta = _meta_of(message)
        if headers is not None:
            check_headers(headers, name, params, meta.revision, self.running.tool)
        modern = headers is not None or meta.revision is not None
        caller = _modern_caller(meta, session.caller.principal) if modern else session.caller
        if method is None or not (method.modern if modern else method.legacy):
            raise _not_found(name)
        if not modern and not session.open:
            if name not in ("initialize", "ping"):
                raise McpError(NOT_INITIALIZED, "Server not initialized")
            if memoryview(message.params).nbytes > MAX_INITIALIZE:  # a session remembers what it is told
                raise McpError(jsonrpc.INVALID_PARAMS, "Invalid params: too much for an initialize")
        if fault is not None:
            raise _invalid(fault)
        method.handle(self, Exchange(id, caller, line, meta, self.server_info), params, session)

    def notice(self, message: Envelope, session: Session) -> None:
        """Take a notification."""
        match message.method:
            case "initialized" | "notifications/initialized":
                session.step("initialized")
            case "notifications/cancelled":
                try:
                    cancelled = messages.read_cancelled(message.params)
                except msgspec.DecodeError:
                    return
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
        exchange, dialect = running
        if dialect is None:
            self._listeners.remove(exchange)
        else:
            dialect.drop(exchange, reason, cancelled=cancelled)
        exchange.close()

    def response(self, message: Envelope, session: Session) -> None:
        """Take the client's response to a request of ours."""
        answered = session.requests.take(message.id)
        if answered is not None:
            answered(message)

    def _changed(self, uri: str | None) -> None:
        if uri is not None:
            self._listeners.updated(uri)
            for session in self.sessions:
                if uri in session.watched:
                    params = to_json({"uri": uri})
                    session.send(jsonrpc.notification("notifications/resources/updated", params))
            return
        before, self._catalog = self._catalog, None
        if before is None:
            return
        for part in self.catalog.changed_since(before):
            self._listeners.changed(part)
            for session in self.sessions:
                if session.open:
                    session.send(jsonrpc.notification(f"notifications/{part}/list_changed", b"{}"))

    # --- the handshake, and what it tells ----------------------------------------------------

    def _capabilities(self, *, modern: bool) -> dict[str, Any]:
        capabilities: dict[str, Any] = {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }
        if modern:
            capabilities["extensions"] = {TASKS: {}}
        return capabilities

    def _initialize(self, exchange: Exchange, params: messages.Initialize, session: Session) -> None:
        if not session.step("initialize"):
            raise McpError(jsonrpc.INVALID_REQUEST, "This session is initialized already")
        session.begin(params)
        self.sessions.add(session)
        result: dict[str, Any] = {
            "protocolVersion": session.caller.revision,
            "capabilities": self._capabilities(modern=False),
            "serverInfo": self.server_info,
        }
        instructions = self.instructions or self._of_servers_behind()
        if instructions:
            result["instructions"] = instructions
        exchange.result(result)

    def _discover(self, exchange: Exchange, params: Any, session: Session) -> None:
        result: dict[str, Any] = {
            "supportedVersions": list(revisions.MODERN),
            "capabilities": self._capabilities(modern=True),
            **cache_hints(),
        }
        instructions = self.instructions or self._of_servers_behind()
        if instructions:
            result["instructions"] = instructions
        exchange.result(result)

    def _of_servers_behind(self) -> str:
        """What mounted servers tell a model about themselves."""
        told = [(path, getattr(one, "instructions", None)) for path, one in self.hub.activations()]
        return "\n\n".join(f"{path}: {text}" if path else text for path, text in told if text)

    def _ping(self, exchange: Exchange, params: Any, session: Session) -> None:
        exchange.result({})

    def _set_level(self, exchange: Exchange, params: messages.Level, session: Session) -> None:
        if params.level not in LEVELS:
            raise McpError(jsonrpc.INVALID_PARAMS, f"Unknown level: {params.level}")
        session.set_level(params.level)
        exchange.result({})

    # --- lists -------------------------------------------------------------------------------

    def _list_tools(self, exchange: Exchange, params: messages.Page, session: Session) -> None:
        shown = [tool.shown for tool in self.catalog.tools.values()]
        if not exchange.caller.modern:
            shown = [for_legacy(one) for one in shown]
        if not exchange.caller.modern and not exchange.caller.elicits:
            shown = [*shown, respond_tool.DEFINITION]
        self._page(exchange, "tools", shown, params.cursor)

    def _list_resources(self, exchange: Exchange, params: messages.Page, session: Session) -> None:
        self._page(exchange, "resources", [r.shown for r in self.catalog.resources.values()], params.cursor)

    def _list_templates(self, exchange: Exchange, params: messages.Page, session: Session) -> None:
        self._page(exchange, "resourceTemplates", [t.shown for t in self.catalog.templates], params.cursor)

    def _list_prompts(self, exchange: Exchange, params: messages.Page, session: Session) -> None:
        self._page(exchange, "prompts", [p.shown for p in self.catalog.prompts.values()], params.cursor)

    def _page(self, exchange: Exchange, name: str, shown: Sequence[Any], cursor: str | None) -> None:
        start = 0
        if cursor is not None:
            if not cursor.isdecimal() or len(cursor) > 9 or int(cursor) >= len(shown):
                raise McpError(jsonrpc.INVALID_PARAMS, "Invalid cursor")
            start = int(cursor)
        result: dict[str, Any] = {name: shown[start : start + PAGE]}
        if start + PAGE < len(shown):
            result["nextCursor"] = str(start + PAGE)
        exchange.result({**result, **cache_hints()} if exchange.caller.modern else result)

    # --- subscriptions -----------------------------------------------------------------------

    def _subscribe(self, exchange: Exchange, params: messages.Located, session: Session) -> None:
        if params.uri not in session.watched:
            size = size_of((params.uri,))
            self._listeners.check_room(session.caller.principal, size)
            self._check_readable(params.uri, session)
            session.watched.add(params.uri)
            self._listeners.taken.take(session.caller.principal, size)
        exchange.result({})

    def _unsubscribe(self, exchange: Exchange, params: messages.Located, session: Session) -> None:
        if params.uri in session.watched:
            session.watched.remove(params.uri)
            self._listeners.taken.give_back(session.caller.principal, size_of((params.uri,)))
        exchange.result({})

    def _listen(self, exchange: Exchange, params: messages.Listen, session: Session) -> None:
        uris = params.notifications.uris
        self._listeners.check_room(session.caller.principal, LISTENER + size_of(uris))
        for uri in uris:
            self._check_readable(uri, session)
        session.admit(exchange, None)
        self._listeners.add(exchange, params.notifications)

    def _check_readable(self, uri: str, session: Session) -> None:
        """Who may not read a resource does not hear of its changes either. Raises `NotAllowed`."""
        found = self.catalog.find(uri)
        if found is not None:
            readable, _ = found
            check_scopes(readable.shown["name"], readable.method.extras, session.principal)
            watch = getattr(readable.method, "watch", None)  # of a server behind, which is to tell
            if watch is not None:
                watch(uri, session.caller.principal)

    # --- tasks -------------------------------------------------------------------------------

    def _task_get(self, exchange: Exchange, params: messages.TaskParams, session: Session) -> None:
        require(("tasks",), exchange.caller)
        self.desk.task(exchange, params.task_id, self.desk.show_task)

    def _task_update(self, exchange: Exchange, params: messages.TaskParams, session: Session) -> None:
        require(("tasks",), exchange.caller)
        update = functools.partial(self.desk.update_task, responses=params.input_responses or {})
        self.desk.task(exchange, params.task_id, update)

    def _task_cancel(self, exchange: Exchange, params: messages.TaskParams, session: Session) -> None:
        require(("tasks",), exchange.caller)
        self.desk.task(exchange, params.task_id, self.desk.cancel_task)


def mcp_of(hub: Hub) -> McpExtension:
    """The MCP extension of a hub, which gets one if it has none."""
    for protocol in hub.protocols:
        if isinstance(protocol, McpExtension):
            return protocol
    extension = McpExtension()
    hub.with_extension(extension)
    return extension


_NO_META = Meta()


def _run(method: str, handle: Callable[[Runner, Exchange, Any, Session], None]) -> _Handle:
    """A handler that starts a call, unless that is too soon, in a span if the process uses OpenTelemetry."""

    def run(extension: McpExtension, exchange: Exchange, params: Any, session: Session) -> None:
        extension.hub.calls.admit(exchange.caller.principal)
        if "opentelemetry.trace" not in sys.modules:
            handle(extension.running, exchange, params, session)
            return
        from midcall.mcp.tracing import traced  # noqa: PLC0415  slow to import, and seldom needed

        with traced(extension, method, exchange, params) as exchange:
            handle(extension.running, exchange, params, session)

    return run


_TABLE: dict[str, _Method] = {
    # method: parameters, handler, legacy, modern
    "initialize": _Method(messages.reader(messages.Initialize), McpExtension._initialize, True, False),
    "ping": _Method(messages.reader(messages.Params), McpExtension._ping, True, False),
    "logging/setLevel": _Method(messages.reader(messages.Level), McpExtension._set_level, True, False),
    "server/discover": _Method(messages.reader(messages.Params), McpExtension._discover, False, True),
    "tools/list": _Method(messages.reader(messages.Page), McpExtension._list_tools, True, True),
    "tools/call": _Method(messages.reader(messages.Named), _run("tools/call", Runner.call_tool), True, True),
    "resources/list": _Method(messages.reader(messages.Page), McpExtension._list_resources, True, True),
    "resources/templates/list": _Method(
        messages.reader(messages.Page), McpExtension._list_templates, True, True
    ),
    "resources/read": _Method(
        messages.reader(messages.Located), _run("resources/read", Runner.read_resource), True, True
    ),
    "resources/subscribe": _Method(messages.reader(messages.Located), McpExtension._subscribe, True, False),
    "resources/unsubscribe": _Method(
        messages.reader(messages.Located), McpExtension._unsubscribe, True, False
    ),
    "prompts/list": _Method(messages.reader(messages.Page), McpExtension._list_prompts, True, True),
    "prompts/get": _Method(
        messages.reader(messages.Named), _run("prompts/get", Runner.get_prompt), True, True
    ),
    "completion/complete": _Method(
        messages.reader(messages.Complete), _run("completion/complete", Runner.complete), True, True
    ),
    "subscriptions/listen": _Method(messages.reader(messages.Listen), McpExtension._listen, False, True),
    "tasks/get": _Method(messages.reader(messages.TaskParams), McpExtension._task_get, False, True),
    "tasks/update": _Method(messages.reader(messages.TaskParams), McpExtension._task_update, False, True),
    "tasks/cancel": _Method(messages.reader(messages.TaskParams), McpExtension._task_cancel, False, True),
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
    return Caller(meta.revision, meta.capabilities, level, meta.client_info, principal, modern=True)


def _meta_of(message: Envelope) -> Meta:
    """The metadata of a request whose parameters do not fit otherwise."""
    try:
        params: messages.Params = messages.read_any(message.params)
    except msgspec.DecodeError as error:
        raise _invalid(error) from None
    return params.meta


def _invalid(fault: msgspec.DecodeError) -> McpError:
    return McpError(jsonrpc.INVALID_PARAMS, f"Invalid params: {fault}", status=400)


def _not_found(method: str) -> McpError:
    return McpError(jsonrpc.METHOD_NOT_FOUND, f"Method not found: {method}", status=404)

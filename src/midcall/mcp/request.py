"""One MCP request: who sends it, what it can do, the way back to it, and the session that it belongs to.

A legacy caller said what it can do once, when its session began; a modern one says so in every request. The
best way of asking is chosen from here, and nothing is sent that a caller did not declare. Over HTTP, a modern
request repeats parts of itself in headers, which must agree with it (`check_headers`).

The session of a legacy client is opened by `initialize`, and not a second time. Before that, only `ping` is
answered. Clients differ in when they send `initialized`, which changes nothing. A session belongs to one
connection on stdio and WebSocket (see `peer`), and to one `Mcp-Session-Id` over HTTP.
"""

import base64
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from midcall import jsonrpc
from midcall.call import Call
from midcall.errors import JournalError, MidcallError, NotAllowed, RateLimited
from midcall.items import UNSENDABLE, to_json, why_unsendable
from midcall.json_schema import as_text
from midcall.jsonrpc import CALL_FAILED, INVALID_REQUEST, Envelope, Id, PendingRequests
from midcall.limits import MAX_NAME
from midcall.mcp import revisions
from midcall.mcp.catalog import Tool
from midcall.mcp.messages import META, Capabilities, Initialize, Meta
from midcall.plexus.protocol import MAX_CALLS
from midcall.principal import CallSource, Principal, RequestInfo, request_info
from midcall.questions import PERSON_KINDS

if TYPE_CHECKING:
    from midcall.mcp.calls import PlainCall
    from midcall.telemetry import RequestSpan

log = logging.getLogger("midcall.mcp")

MISSING_CAPABILITY = -32021
NOT_INITIALIZED = -32002

TASKS = "io.modelcontextprotocol/tasks"
NESTED = "dev.midcall/nestedForms"
"""Of a client that can show any form, where the protocol has only flat ones."""

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

_FORM_KINDS = frozenset(("confirm", "prompt", "select", "form", "custom"))


class Caller(Struct, frozen=True):
    """One caller, as far as the protocol knows it."""

    revision: str
    capabilities: Capabilities
    log_level: str | None = None
    """The least level of log that it wants; `None` for no log at all."""
    principal: str | None = None
    """Whoever the transport has found out that it is."""
    modern: bool = False
    name: str | None = None
    """What a legacy client calls itself."""
    responds: bool = False
    """Whether a legacy client that is not elicited has the tool to answer with."""
    gets_links: bool = False
    """Whether its person can answer at a page of this server."""

    @property
    def knows_tasks(self) -> bool:
        return self.modern and TASKS in self.capabilities.extensions

    @property
    def shows_any_form(self) -> bool:
        return NESTED in self.capabilities.extensions

    @property
    def gives_tools(self) -> bool:
        """Whether its model may be given tools."""
        return self.capabilities.sampling is not None and "tools" in self.capabilities.sampling

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of question that it can answer by the protocol's own means."""
        can = self.capabilities
        return _kinds(
            self.revision,
            can.elicitation is not None and (can.elicitation.form is not None or can.elicitation.url is None),
            can.elicitation is not None and can.elicitation.url is not None,
            can.sampling is not None,
            can.roots is not None,
        )

    @property
    def elicits(self) -> bool:
        """Whether it declares any way to ask its person."""
        return bool(self.kinds & (_FORM_KINDS | {"url"}))

    @property
    def model_answers(self) -> bool:
        """Whether its model may be the one who answers, as that of a legacy one that is not elicited."""
        return not (self.modern or self.elicits)

    def askable(self, extras: Mapping[str, Any]) -> frozenset[str]:
        """The kinds of question that it can answer, of a method with these extras."""
        otherwise = self.model_answers and (self.responds or self.gets_links)
        return PERSON_KINDS | self.kinds if otherwise and not extras.get("person_only") else self.kinds

    def hears(self, level: str) -> bool:
        """Whether it wants log of this level."""
        return self.log_level is not None and LEVELS.index(level) >= LEVELS.index(self.log_level)


@functools.cache  # the same few callers come again and again
def _kinds(revision: str, form: bool, url: bool, sample: bool, roots: bool) -> frozenset[str]:
    kinds: set[str] = set()
    if form and revision >= revisions.ELICITATION:
        kinds |= _FORM_KINDS
    if url and revision >= revisions.URL_ELICITATION:
        kinds.add("url")
    if sample:
        kinds.add("sample")
    if roots:
        kinds.add("roots")
    return frozenset(kinds)


class ResponseStream(Protocol):
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

    def run(self, call: "PlainCall") -> None:
        """Run a call whose result is the response."""


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


_SERVER_INFO = f"{META}serverInfo"


class McpError(Exception):
    """A request that is answered with an error of the protocol."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int = 200) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status


Outcome: TypeAlias = dict[str, Any] | McpError
"""What a request is answered with: a result, or an error."""


def error_for(error: Exception) -> McpError:
    """The error that a request is answered with, for whatever went wrong. What nobody expects is logged."""
    match error:
        case McpError():
            return error
        case JournalError():
            data = {"code": error.code, "recoverable": True}
            return McpError(jsonrpc.INTERNAL_ERROR, str(error), data)
        case MidcallError():
            status = 403 if isinstance(error, NotAllowed) else 429 if isinstance(error, RateLimited) else 200
            return McpError(jsonrpc.code_for(error), str(error), error.data or None, status=status)
    log.error("a request failed inside midcall", exc_info=error)
    return McpError(jsonrpc.INTERNAL_ERROR, "Internal error", status=500)


class McpRequest(Struct, frozen=True):
    """One request of one caller."""

    id: Id
    caller: Caller
    stream: ResponseStream
    meta: Meta
    server_info: dict[str, Any]
    principal: Principal | None = None
    came_by: RequestInfo | Mapping[str, Any] | None = None
    """What is known of the connection; or the scope of the HTTP request, which is read if that is wanted."""
    span: "RequestSpan | None" = None
    """Of a request that is traced; it ends with the answer."""

    def source(self) -> CallSource:
        """Who sends it, and how it came (see `principal.Sender`)."""
        info = self.came_by
        if info is None:
            return CallSource(self.principal)
        if not isinstance(info, RequestInfo):
            info = request_info(info, "http")
        name = client_name(self.meta.client_info) if self.caller.modern else self.caller.name
        about = msgspec.structs.replace(info, protocol_revision=self.caller.revision, client_name=name)
        return CallSource(self.principal, about)

    def result(self, result: dict[str, Any]) -> None:
        """Answer with a result, which is complete unless it says otherwise."""
        if self.caller.modern:
            result.setdefault("resultType", "complete")
            result.setdefault("_meta", {})[_SERVER_INFO] = self.server_info
        try:
            message = to_json(jsonrpc.Response("2.0", self.id, result))
        except UNSENDABLE as error:
            self.failed(error)
            return
        self.stream.respond(message)
        if self.span is not None:
            self.span.end("tool_error" if result.get("isError") else None)

    def failed(self, error: Exception) -> None:
        """Answer that there is no answer: something that JSON cannot carry."""
        self.error(McpError(jsonrpc.INTERNAL_ERROR, why_unsendable(error)))

    def error(self, error: McpError) -> None:
        """Answer with an error."""
        if self.span is not None:
            code = str(error.code)
            self.span.end(code, error.message, {"rpc.response.status_code": code})
        self.stream.respond(
            jsonrpc.error_response(self.id, error.code, error.message, error.data), status=error.status
        )

    def deliver(self, outcome: Outcome) -> None:
        """Answer with a result, or with an error."""
        if isinstance(outcome, McpError):
            self.error(outcome)
        else:
            self.result(outcome)

    def close(self) -> None:
        """Answer nothing: the caller is gone, or wants no answer any more."""
        if self.span is not None:
            self.span.end("cancelled")
        self.stream.close()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification that belongs to the request."""
        self.stream.send(jsonrpc.notification(method, to_json(params)))


# --- headers ----------------------------------------------------------------------------------------


HEADER_MISMATCH = -32020

_PREFIX, _SUFFIX = "=?base64?", "?="

_NAME_OF = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "task_id",
    "tasks/update": "task_id",
    "tasks/cancel": "task_id",
}
"""The field of the parameters that the header `Mcp-Name` repeats."""

Headers: TypeAlias = Mapping[bytes, bytes]
"""The headers of a request, their names in lower case."""


def check_headers(
    headers: Headers,
    method: str,
    params: Any,
    revision: str | None,
    find_tool: Callable[[str], Tool | None],
) -> None:
    """Raise unless the headers say what the request says. One that names no revision is not checked."""
    if revision is None:
        return
    version = headers.get(b"mcp-protocol-version")
    if version != revision.encode():
        raise _mismatch("MCP-Protocol-Version", version, revision)
    if revision not in revisions.MODERN:
        return
    given = headers.get(b"mcp-method")
    if given != method.encode():
        raise _mismatch("Mcp-Method", given, method)
    field = _NAME_OF.get(method)
    name = None if field is None else getattr(params, field, None)
    if name is None:
        return
    given = headers.get(b"mcp-name")
    if given is None or not given.isascii() or given != name.encode():
        _check("Mcp-Name", given, name)
    tool = find_tool(name) if method == "tools/call" else None
    if tool is not None and tool.headers:
        values = msgspec.json.decode(params.arguments) if bytes(params.arguments) else {}
        for path, argument in tool.headers:
            header = f"Mcp-Param-{argument}"
            _check(header, headers.get(header.lower().encode()), value_at(values, path))


def _check(name: str, given: bytes | None, value: Any) -> None:
    """Raise unless a header says this value. Where there is no value, any header will do that can be read."""
    text = "" if given is None else given.decode("latin-1").strip()
    if text.startswith(_PREFIX) and text.endswith(_SUFFIX):
        try:
            text = base64.b64decode(text[len(_PREFIX) : -len(_SUFFIX)], validate=True).decode()
        except ValueError:  # neither base64 nor UTF-8
            what = f"Header mismatch: {name} is not valid base64"
            raise McpError(HEADER_MISMATCH, what, status=400) from None
    if value is None or (given is not None and (text == as_text(value) or _is_number(text, value))):
        return
    raise _mismatch(name, given, as_text(value))


def _is_number(text: str, value: Any) -> bool:
    """Whether a text is another way to write a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return float(text) == float(value)
    except (ValueError, OverflowError):
        return False


def value_at(arguments: Any, path: tuple[str, ...]) -> Any:
    """What stands at a place in the arguments of a tool, if anything does."""
    for part in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(part)
    return arguments


def _mismatch(name: str, given: bytes | None, expected: str) -> McpError:
    what = f"{name} is {(given or b'').decode('latin-1')!r}, but the body says {expected!r}"
    if given is None:
        what = f"the header {name} is missing"
    return McpError(HEADER_MISMATCH, f"Header mismatch: {what}", status=400)


def client_name(info: dict[str, Any] | None) -> str | None:
    """What a client calls itself, if that is a name."""
    name = None if info is None else info.get("name")
    return name if isinstance(name, str) and len(name) <= MAX_NAME else None


_STRANGER = Caller(revisions.LATEST_LEGACY, Capabilities(), "debug")


class Running(Protocol):
    """What a request has started."""

    @property
    def call(self) -> Call | None:
        """The call, if there is one by now."""

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        """The caller has cancelled its request, or is gone: nothing is sent to it any more."""


class Session:
    """What the server knows of a legacy client between its requests.

    A modern request over HTTP has one for itself, so it is quickly made.
    """

    __slots__ = (
        "__weakref__",
        "caller",
        "open",
        "principal",
        "requests",
        "running",
        "send",
        "watched",
    )

    def __init__(self, send: Callable[[bytes], None], principal: Principal | None = None) -> None:
        self.send = send
        """Sends what belongs to no request: changes of lists and resources."""
        self.open = False
        """Whether requests are answered."""
        self.caller = (
            _STRANGER if principal is None else msgspec.structs.replace(_STRANGER, principal=principal.name)
        )
        self.principal = principal
        """Who sends the present request; over HTTP, its token may have other scopes than the last one."""
        self.requests: PendingRequests[Callable[[Envelope], None]] = PendingRequests()
        self.running: dict[Id, tuple[McpRequest, Running | None]] = {}
        """The requests that have no response yet, by id, each with what it has started, if that is a call."""
        self.watched: set[str] = set()

    def ended(self, id: Id, stream: ResponseStream) -> None:
        """A request has its response. (Another one with the same id may have been refused.)"""
        running = self.running.get(id)
        if running is not None and running[0].stream is stream:
            del self.running[id]

    def begin(self, asked: Initialize) -> None:
        """Open it, with what the client says of itself."""
        self.open = True
        revision = revisions.negotiate(asked.revision)
        name = client_name(asked.client_info)
        self.caller = Caller(revision, asked.capabilities, "debug", self.caller.principal, name=name)

    def set_level(self, level: str) -> None:
        """From now on, send only log of this level and above."""
        self.caller = msgspec.structs.replace(self.caller, log_level=level)

    def admit(self, request: McpRequest, running: "Running | None") -> None:
        """Note that a request runs; it is forgotten with its response."""
        if request.id in self.running:
            raise McpError(INVALID_REQUEST, "Invalid Request: a request with this id is running")
        if len(self.running) >= MAX_CALLS:
            raise McpError(CALL_FAILED, f"More than {MAX_CALLS} requests at once in one session")
        self.running[request.id] = (request, running)

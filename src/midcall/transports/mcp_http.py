"""Streamable HTTP: MCP at one endpoint, for both eras. Plain ASGI, as this is the hot path.

A modern request is served from what it carries; its response is JSON, or a stream of events if
something has to be said before the result. A legacy client has a session, found by its
`Mcp-Session-Id`: its streams can be resumed, and a GET opens one for what belongs to no request.

What a request is answered with is an `Answer` or `Events`; one place at the end writes it, when
nothing is kept any more of what came in.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Struct
from starlette.types import Receive, Scope, Send

from midcall import jsonrpc
from midcall.journal.bus import Channel
from midcall.journal.contract import is_worker_name
from midcall.jsonrpc import Batch, BatchReply, Envelope, Fault
from midcall.mcp import revisions
from midcall.mcp.messages import META
from midcall.mcp.request import Headers, Session
from midcall.mcp.server import McpExtension
from midcall.plexus.protocol import MAX_MESSAGE
from midcall.principal import Principal
from midcall.transports.auth import Authenticator
from midcall.transports.http_sessions import BatchLine, HttpSession, HttpSessions, SessionLine
from midcall.transports.relay import Relay
from midcall.transports.responses import EventStream, HttpLine, send_whole, write_events
from midcall.transports.security import JSON, NOSNIFF, is_media_type

Extra: TypeAlias = tuple[tuple[bytes, bytes], ...]

WATCH_AFTER = 0.05
"""Seconds within which most calls end, or ask: only after them is it worth while to watch for who leaves."""

GONE = "The caller went away"

_JSON = (b"content-type", b"application/json")
_MODERN = frozenset(revision.encode() for revision in revisions.MODERN)
_LEGACY = frozenset(revision.encode() for revision in revisions.LEGACY)
_REVISION = f"{META}protocolVersion".encode()


class Answer(Struct, frozen=True):
    """A response that is known as a whole."""

    status: int
    body: bytes = b""
    extra: Extra = ()


class Events(Struct, frozen=True):
    """A response that is a stream."""

    stream: EventStream
    place: int = 0
    extra: Extra = ()
    session: Session | None = None
    """Whose requests end if the client leaves: those of a modern one."""


class Elsewhere(Struct, frozen=True):
    """A request for a session of another worker."""

    home: str
    body: bytes = b""


class McpEndpoint:
    """The ASGI application at `/mcp`."""

    def __init__(self, extension: McpExtension, auth: Authenticator | None = None) -> None:
        self._extension = extension
        self._auth = auth
        self._sessions = HttpSessions(extension)
        self._relay: Relay | None = None

    def share_sessions(self, post: Channel) -> Callable[[bytes], None]:
        """From now on, requests for sessions of other workers are passed on; gives what takes theirs."""
        self._relay = Relay(post, self)
        self._sessions.home = post.worker
        return self._relay.take

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Answer | Events | Elsewhere | None
        match scope["method"]:
            case "POST":
                answer = await self._post(scope, receive)
            case "GET":
                answer = self._get(scope)
            case "DELETE":
                answer = self._delete(scope)
            case _:
                answer = Answer(405, extra=((b"allow", b"POST, GET, DELETE"),))
        if isinstance(answer, Elsewhere):
            answer = await self._pass_on(answer, scope, receive, send)
        if isinstance(answer, Answer):
            headers = (_JSON, NOSNIFF, *answer.extra) if answer.body else answer.extra
            await send_whole(scope, send, answer.status, headers, answer.body)
        elif answer is not None:
            left = None if answer.session is None else functools.partial(self._gone, answer.session)
            await write_events(answer.stream, answer.place, answer.extra, left, scope, receive, send)

    async def _pass_on(
        self, elsewhere: Elsewhere, scope: Scope, receive: Receive, send: Send
    ) -> Answer | None:
        """Let the home of a session serve the request; if it is gone, there is no such session."""
        if self._relay is not None and not scope.get("midcall.relayed"):
            principal = scope.get("midcall.principal")
            headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
            passed = await self._relay.forward(
                elsewhere.home,
                scope["method"],
                headers,
                elsewhere.body,
                principal,
                scope.get("client"),
                receive,
                send,
            )
            if passed:
                return None
        return Answer(404, jsonrpc.error_response(None, -32001, "Session not found"))

    def close(self) -> None:
        """The server ends: so do the streams on which it would wait for ever, and open questions fail."""
        self._sessions.stop_listening()
        self._extension.close()
        for call in self._extension.hub.calls:
            call.lose_caller()

    # --- POST --------------------------------------------------------------------------------

    async def _post(self, scope: Scope, receive: Receive) -> Answer | Events | Elsewhere | None:
        """The answer to a POST; nothing if the client has left before there is one."""
        headers = dict(scope["headers"])
        body = await _body(receive)
        if body is None:
            text = f"Invalid Request: a message may have {MAX_MESSAGE} bytes at most"
            return Answer(413, jsonrpc.error_response(None, jsonrpc.INVALID_REQUEST, text))
        kind = headers.get(b"content-type", b"application/json")
        if kind != b"application/json" and not is_media_type(kind, JSON):
            return _refusal(415, "Content-Type must be application/json")
        accept = headers.get(b"accept", b"application/json")
        if b"application/json" not in accept and not _accepts(accept):
            return _refusal(406, "Accept must have application/json and text/event-stream")
        try:
            message = jsonrpc.decode(body)
        except Fault as fault:
            return Answer(400, fault.response())
        if isinstance(message, Batch):
            return _with_body(await self._batch(message, headers, scope, receive), body)
        version = headers.get(b"mcp-protocol-version")
        if version in _MODERN or (version not in _LEGACY and _REVISION in bytes(message.params)):
            return await self._modern(message, headers, scope, receive)
        if version is not None and version not in _LEGACY:
            text = f"Bad Request: unsupported MCP-Protocol-Version {version.decode('latin-1')}"
            return _refusal(400, text)
        return _with_body(await self._legacy(message, headers, scope, receive), body)

    async def _modern(
        self, message: Envelope, headers: Headers, scope: Scope, receive: Receive
    ) -> Answer | Events | None:
        session = Session(_nowhere, scope.get("midcall.principal"))
        if message.method is UNSET:
            return _refusal(400, "Bad Request: a response to nothing")
        if message.id is UNSET:
            self._extension.notice(message, session)
            return Answer(202)
        line = HttpLine()
        self._extension.take(message, line, session, headers, scope)
        if line.plain is not None:
            await line.plain.run_here(_Watch(receive, functools.partial(line.plain.abort, GONE)))
        elif not line.decided and not await self._until_decided(line, receive):
            self._gone(session)
            return None
        return self._answer(line, session=session)

    def _gone(self, session: Session) -> None:
        self._extension.gone(session, GONE)

    # --- legacy ------------------------------------------------------------------------------

    async def _legacy(
        self, message: Envelope, headers: Headers, scope: Scope, receive: Receive
    ) -> Answer | Events | Elsewhere | None:
        principal: Principal | None = scope.get("midcall.principal")
        begins = message.method == "initialize" and b"mcp-session-id" not in headers
        found = self._sessions.create(principal) if begins else self._find(headers, principal)
        if isinstance(found, Answer | Elsewhere):
            return found
        if message.method is UNSET:
            self._extension.response(message, found.session)
            return Answer(202)
        if message.id is UNSET:
            self._extension.notice(message, found.session)
            return Answer(202)
        line = SessionLine(found, message.id)
        self._extension.take(message, line, found.session, came_by=scope)
        if not found.session.open:
            self._sessions.end(found)  # `initialize` was refused
            begins = False
        if not line.decided and not await self._until_decided(line, receive):
            return None
        return self._answer(line, ((b"mcp-session-id", found.id.encode()),) if begins else ())

    async def _batch(
        self, batch: Batch, headers: Headers, scope: Scope, receive: Receive
    ) -> Answer | Events | Elsewhere | None:
        found = self._find(headers, scope.get("midcall.principal"))
        if isinstance(found, Answer | Elsewhere):
            return found
        if found.session.caller.revision != revisions.BATCHES:
            return _refusal(400, "Invalid Request: this revision has no batches")
        line = SessionLine(found, None)
        expected = sum(
            isinstance(m, Fault) or (m.method is not UNSET and m.id is not UNSET) for m in batch.members
        )
        reply = BatchReply(expected, line.respond)
        for member in batch.members:
            if isinstance(member, Fault):
                reply(member.response())
            elif member.method is UNSET:
                self._extension.response(member, found.session)
            elif member.id is UNSET:
                self._extension.notice(member, found.session)
            else:
                part = BatchLine(line, reply, found.session, member.id)
                self._extension.take(member, part, found.session, came_by=scope)
        if not expected:
            return Answer(202)
        if not line.decided and not await self._until_decided(line, receive):
            return None
        return self._answer(line)

    def _find(self, headers: Headers, principal: Principal | None) -> HttpSession | Answer | Elsewhere:
        """The session of this request, or the worker that has it, or the refusal that it gets."""
        session_id = headers.get(b"mcp-session-id")
        if session_id is None:
            text = "Server not initialized: Mcp-Session-Id is missing"
            return Answer(400, jsonrpc.error_response(None, -32002, text))
        found = self._sessions.get(session_id.decode("latin-1"), principal)
        if found is None and self._relay is not None:
            home = session_id.decode("latin-1").rpartition(".")[0]
            if is_worker_name(home) and home != self._sessions.home:
                return Elsewhere(home)
        return found or Answer(404, jsonrpc.error_response(None, -32001, "Session not found"))

    async def _until_decided(self, line: HttpLine, receive: Receive) -> bool:
        """Wait for the first word of the server; false if the client leaves before."""
        watch = _Watch(receive, line.give_up)
        timer = asyncio.get_running_loop().call_later(WATCH_AFTER, watch.begin)
        try:
            await line.wait()
            return line.decided
        finally:
            timer.cancel()
            watch.end()

    def _answer(self, line: HttpLine, extra: Extra = (), session: Session | None = None) -> Answer | Events:
        """JSON if the response is all there is, else events."""
        if line.stream is not None or line.response is None:
            return Events(line.stream or EventStream(None), extra=extra, session=session)
        if line.status == 403 and self._auth is not None:
            needed = msgspec.json.decode(line.response)["error"]["data"]["scopes"]  # of a `NotAllowed`
            value = self._auth.refusal(needed).www_authenticate
            if value is not None:
                extra = (*extra, (b"www-authenticate", value.encode("latin-1")))
        if line.status == 429:
            seconds = msgspec.json.decode(line.response)["error"]["data"]["retry_after"]  # of a `RateLimited`
            extra = (*extra, (b"retry-after", b"%d" % seconds))
        return Answer(line.status, line.response, extra)

    # --- GET and DELETE ----------------------------------------------------------------------

    def _get(self, scope: Scope) -> Answer | Events | Elsewhere:
        headers = dict(scope["headers"])
        if b"mcp-session-id" not in headers or headers.get(b"mcp-protocol-version") in _MODERN:
            return Answer(405, extra=((b"allow", b"POST"),))
        found = self._find(headers, scope.get("midcall.principal"))
        if isinstance(found, Answer | Elsewhere):
            return found
        if b"text/event-stream" not in headers.get(b"accept", b"text/event-stream"):
            return _refusal(406, "Accept must have text/event-stream")
        last = headers.get(b"last-event-id")
        stream, place = found.resume(None if last is None else last.decode("latin-1"))
        if stream is None:
            return _refusal(404, "Nothing to resume: Last-Event-ID is not known")
        return Events(stream, place)

    def _delete(self, scope: Scope) -> Answer | Elsewhere:
        headers = dict(scope["headers"])
        if b"mcp-session-id" not in headers:
            return Answer(405, extra=((b"allow", b"POST"),))
        found = self._find(headers, scope.get("midcall.principal"))
        if isinstance(found, Answer | Elsewhere):
            return found
        self._sessions.end(found)
        return Answer(200)


class _Watch:
    """Calls `gone` if the client leaves before the end."""

    __slots__ = ("_gone", "_receive", "_watching")

    def __init__(self, receive: Receive, gone: Callable[[], object]) -> None:
        self._receive = receive
        self._gone = gone
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None  # its end leads back here, and with that to the response

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone()


async def _body(receive: Receive) -> bytes | None:
    """The body of a request; nothing if it is too large."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body if len(body) <= MAX_MESSAGE else None
    parts = [body]
    size = len(body)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_MESSAGE:
            return None  # nobody waits for the rest
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _with_body(answer: Answer | Events | Elsewhere | None, body: bytes) -> Answer | Events | Elsewhere | None:
    return Elsewhere(answer.home, body) if isinstance(answer, Elsewhere) else answer


def _accepts(accept: bytes) -> bool:
    return any(kind in accept for kind in (b"text/event-stream", b"*/*", b"application/*"))


def _refusal(status: int, text: str) -> Answer:
    return Answer(status, jsonrpc.error_response(None, jsonrpc.INVALID_REQUEST, text))


def _nowhere(message: bytes) -> None:
    """A modern client hears only of what it asked for."""

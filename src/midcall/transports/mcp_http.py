"""Streamable HTTP: MCP at one endpoint, for both eras. Plain ASGI, as this is the hot path.

A modern request is served from what it carries; its response is JSON, or a stream of events if
something has to be said before the result. A legacy client has a session, found by its
`Mcp-Session-Id`: its streams can be resumed, and a GET opens one for what belongs to no request.
"""

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, field
from starlette.types import Receive, Scope, Send

from midcall import jsonrpc
from midcall.connection import MAX_MESSAGE
from midcall.jsonrpc import Batch, BatchReply, Envelope, Fault, Id
from midcall.mcp import headers as mirrored
from midcall.mcp import revisions
from midcall.mcp.exchange import McpError
from midcall.mcp.extension import McpExtension
from midcall.mcp.legacy import Session
from midcall.mcp.messages import META
from midcall.principal import Principal
from midcall.transports.auth import Authenticator
from midcall.transports.http_sessions import HttpSession, HttpSessions
from midcall.transports.sse import EventStream, HttpLine

JSON = (b"content-type", b"application/json")
EVENTS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

KEEP_ALIVE = 15.0
"""Seconds between two comments on a stream on which nothing happens."""


class _Mirrored(Struct):
    """The parts of a modern request that its headers repeat."""

    name: str | None = None
    uri: str | None = None
    task_id: str | None = field(default=None, name="taskId")
    arguments: Raw = Raw()
    meta: dict[str, Any] | None = field(default=None, name="_meta")


_decode_mirrored = msgspec.json.Decoder(_Mirrored).decode


class McpEndpoint:
    """The ASGI application at `/mcp`."""

    def __init__(self, extension: McpExtension, auth: Authenticator | None = None) -> None:
        self._extension = extension
        self._auth = auth
        self._sessions = HttpSessions(extension)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        principal: Principal | None = scope.get("midcall.principal")
        match scope["method"]:
            case "POST":
                await self._post(headers, principal, receive, send)
            case "GET":
                await self._get(headers, principal, receive, send)
            case "DELETE":
                await self._delete(headers, principal, send)
            case _:
                await _empty(send, 405, (b"allow", b"POST, GET, DELETE"))

    def close(self) -> None:
        """The server ends: so do the streams on which it would wait for ever, and open questions fail."""
        self._sessions.stop_listening()
        self._extension.close()
        for call in self._extension.hub.calls:
            call.lose_caller()

    # --- POST --------------------------------------------------------------------------------

    async def _post(
        self, headers: dict[str, str], principal: Principal | None, receive: Receive, send: Send
    ) -> None:
        body = await _body(receive)
        if body is None:
            text = f"Invalid Request: a message may have {MAX_MESSAGE} bytes at most"
            await _json(send, 413, jsonrpc.error_response(None, jsonrpc.INVALID_REQUEST, text))
            return
        if "application/json" not in headers.get("content-type", "application/json"):
            await _json(send, 415, _refusal("Content-Type must be application/json"))
            return
        if not _accepts(headers.get("accept", "*/*")):
            await _json(send, 406, _refusal("Accept must have application/json and text/event-stream"))
            return
        try:
            message = jsonrpc.decode(body)
        except Fault as fault:
            await _json(send, 400, fault.response())
            return
        if isinstance(message, Batch):
            await self._batch(message, headers, principal, receive, send)
            return
        version = headers.get("mcp-protocol-version")
        try:
            modern = self._check_modern(message, version, headers)
        except McpError as error:
            id = None if message.id is UNSET else message.id
            await _json(send, error.status, jsonrpc.error_response(id, error.code, error.message, error.data))
            return
        if modern:
            await self._modern(message, principal, receive, send)
        elif version is not None and version not in revisions.ALL:
            text = f"Bad Request: unsupported MCP-Protocol-Version {version}"
            await _json(send, 400, _refusal(text))
        else:
            await self._legacy(message, headers, principal, receive, send)

    def _check_modern(self, message: Envelope, version: str | None, headers: dict[str, str]) -> bool:
        """Whether the message is modern; raises if its headers say something else than it does."""
        if version in revisions.LEGACY:
            return False
        params = bytes(message.params)
        if version is None and f"{META}protocolVersion".encode() not in params:
            return False
        try:
            parts = _decode_mirrored(params or b"{}")
        except (msgspec.DecodeError, RecursionError):
            parts = _Mirrored()
        said = (parts.meta or {}).get(f"{META}protocolVersion")
        if version not in revisions.MODERN and said is None:
            return False
        if said is not None and said != version:
            raise McpError(
                mirrored.HEADER_MISMATCH,
                f"Header mismatch: MCP-Protocol-Version is {version!r}, but the body says {said!r}",
                status=400,
            )
        if (
            version in revisions.MODERN
            and said is not None
            and message.method is not UNSET
            and message.id is not UNSET
        ):
            self._check_mirrored(message.method, parts, headers)
        return True

    def _check_mirrored(self, method: str, parts: _Mirrored, headers: dict[str, str]) -> None:
        tool = self._extension.running.tool(parts.name) if method == "tools/call" and parts.name else None
        params: dict[str, Any] = {"name": parts.name, "uri": parts.uri, "taskId": parts.task_id}
        if tool is not None and tool.headers and bytes(parts.arguments):
            params["arguments"] = msgspec.json.decode(parts.arguments)
        mirrored.check(headers, method, params, tool)

    async def _modern(
        self, message: Envelope, principal: Principal | None, receive: Receive, send: Send
    ) -> None:
        session = Session(_nowhere, principal)
        if message.method is UNSET:
            await _json(send, 400, _refusal("Bad Request: a response to nothing"))
        elif message.id is UNSET:
            self._extension.notice(message, session)
            await _empty(send, 202)
        else:
            id = message.id
            line = HttpLine(EventStream(None), on_response=lambda line: session.ended(id, line))
            self._extension.take(message, line, session, modern=True)
            if not await self._answer(line, receive, send):
                self._extension.gone(session, "The caller went away")

    # --- legacy ------------------------------------------------------------------------------

    async def _legacy(
        self,
        message: Envelope,
        headers: dict[str, str],
        principal: Principal | None,
        receive: Receive,
        send: Send,
    ) -> None:
        extra: tuple[tuple[bytes, bytes], ...] = ()
        if message.method == "initialize" and "mcp-session-id" not in headers:
            found: HttpSession | None = self._sessions.create(principal)
            extra = ((b"mcp-session-id", found.id.encode()),) if found is not None else ()
        else:
            found = await self._find(headers, principal, send)
        if found is None:
            return
        session = found.session
        if message.method is UNSET:
            self._extension.response(message, session)
            await _empty(send, 202)
        elif message.id is UNSET:
            self._extension.notice(message, session)
            await _empty(send, 202)
        else:
            id = message.id
            line = HttpLine(found.new_stream(), found.keep, lambda line: session.ended(id, line))
            self._extension.take(message, line, session)
            if not session.open:
                self._sessions.end(found)  # `initialize` was refused
                extra = ()
            await self._answer(line, receive, send, extra)

    async def _batch(
        self, batch: Batch, headers: dict[str, str], principal: Principal | None, receive: Receive, send: Send
    ) -> None:
        found = await self._find(headers, principal, send)
        if found is None:
            return
        if found.session.caller.revision != revisions.BATCHES:
            await _json(send, 400, _refusal("Invalid Request: this revision has no batches"))
            return
        line = HttpLine(found.new_stream(), found.keep)
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
                part = _Part(line, reply, found.session, member.id)
                self._extension.take(member, part, found.session)
        if expected:
            await self._answer(line, receive, send)
        else:
            await _empty(send, 202)

    async def _find(
        self, headers: dict[str, str], principal: Principal | None, send: Send
    ) -> HttpSession | None:
        """The session of this request, or the refusal that it gets."""
        session_id = headers.get("mcp-session-id")
        if session_id is None:
            text = "Server not initialized: Mcp-Session-Id is missing"
            await _json(send, 400, jsonrpc.error_response(None, -32002, text))
            return None
        found = self._sessions.get(session_id, principal)
        if found is None:
            await _json(send, 404, jsonrpc.error_response(None, -32001, "Session not found"))
        return found

    async def _answer(
        self, line: HttpLine, receive: Receive, send: Send, extra: tuple[tuple[bytes, bytes], ...] = ()
    ) -> bool:
        if line.status == 403 and line.response is not None and self._auth is not None:
            needed = msgspec.json.decode(line.response)["error"]["data"]["scopes"]  # of a `NotAllowed`
            value = self._auth.refusal(needed).www_authenticate
            if value is not None:
                extra = (*extra, (b"www-authenticate", value.encode("latin-1")))
        return await _answer(line, receive, send, extra)

    # --- GET and DELETE ----------------------------------------------------------------------

    async def _get(
        self, headers: dict[str, str], principal: Principal | None, receive: Receive, send: Send
    ) -> None:
        if "mcp-session-id" not in headers or headers.get("mcp-protocol-version") in revisions.MODERN:
            await _empty(send, 405, (b"allow", b"POST"))
            return
        found = await self._find(headers, principal, send)
        if found is None:
            return
        if "text/event-stream" not in headers.get("accept", "text/event-stream"):
            await _json(send, 406, _refusal("Accept must have text/event-stream"))
            return
        stream, place = found.resume(headers.get("last-event-id"))
        if stream is None:
            await _json(send, 404, _refusal("Nothing to resume: Last-Event-ID is not known"))
            return
        await _start_events(send, ())
        await _write_events(stream, place, receive, send)

    async def _delete(self, headers: dict[str, str], principal: Principal | None, send: Send) -> None:
        if "mcp-session-id" not in headers:
            await _empty(send, 405, (b"allow", b"POST"))
            return
        found = await self._find(headers, principal, send)
        if found is not None:
            self._sessions.end(found)
            await _empty(send, 200)


class _Part:
    """The line of one member of a batch."""

    def __init__(self, line: HttpLine, reply: BatchReply, session: Session, id: Id) -> None:
        self._line = line
        self._reply = reply
        self._session = session
        self._id = id

    @property
    def full(self) -> bool:
        return self._line.full

    def send(self, message: bytes) -> None:
        self._line.send(message)

    def respond(self, message: bytes, *, status: int = 200) -> None:
        self._session.ended(self._id, self)
        self._reply(message)

    def close(self) -> None:
        if self._reply.skip() and self._line.response is None:
            self._line.close()

    async def drain(self) -> None:
        await self._line.drain()


# --- writing --------------------------------------------------------------------------------


async def _answer(
    line: HttpLine, receive: Receive, send: Send, extra: tuple[tuple[bytes, bytes], ...] = ()
) -> bool:
    """Answer a POST: as JSON if the response is all there is, else as events. False if the client left."""
    for _ in range(2):  # most calls end within a turn or two of the loop
        if line.decided:
            break
        await asyncio.sleep(0)
    if not line.decided and not await _until_decided(line, receive):
        return False
    if line.response is not None and not line.streaming:
        await _json(send, line.status, line.response, *extra)
        return True
    await _start_events(send, extra)
    return await _write_events(line.stream, 0, receive, send)


async def _until_decided(line: HttpLine, receive: Receive) -> bool:
    """Wait for the first word of the server; false if the client leaves before."""
    leaving = asyncio.ensure_future(_until_gone(receive))
    deciding = asyncio.ensure_future(line.wait())
    try:
        await asyncio.wait((leaving, deciding), return_when=asyncio.FIRST_COMPLETED)
        return line.decided
    finally:
        leaving.cancel()
        deciding.cancel()
        await asyncio.gather(leaving, deciding, return_exceptions=True)


async def _write_events(stream: EventStream, place: int, receive: Receive, send: Send) -> bool:
    """Write the events of a stream from a place on; false if the client leaves before its end.

    A client that resumes a stream ends the response that carried it before.
    """
    leaving = asyncio.ensure_future(_until_gone(receive))
    turn = stream.attach(place)
    try:
        while True:
            for after, event in stream.since(place):
                place = after
                await send({"type": "http.response.body", "body": event, "more_body": True})
            if stream.has_turn(turn):
                stream.written(place)
            if not stream.has_turn(turn) or (stream.ended and place >= stream.end):
                await send({"type": "http.response.body", "body": b""})
                return True
            more = asyncio.ensure_future(stream.more(place, turn))
            try:
                await asyncio.wait((leaving, more), timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
            finally:
                more.cancel()
            if leaving.done():
                return False
            if place >= stream.end and not stream.ended and stream.has_turn(turn):
                await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
    except OSError:
        return False
    finally:
        leaving.cancel()
        stream.left(turn)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes | None:
    """The body of a request; nothing if it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        part = message.get("body", b"")
        size += len(part)
        if size <= MAX_MESSAGE:
            parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts) if size <= MAX_MESSAGE else None


async def _start_events(send: Send, extra: tuple[tuple[bytes, bytes], ...]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS, *extra]})


async def _json(send: Send, status: int, body: bytes, *extra: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [JSON, length, *extra]})
    await send({"type": "http.response.body", "body": body})


async def _empty(send: Send, status: int, *extra: tuple[bytes, bytes]) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), *extra]}
    )
    await send({"type": "http.response.body", "body": b""})


def _accepts(accept: str) -> bool:
    return any(kind in accept for kind in ("application/json", "text/event-stream", "*/*"))


def _refusal(text: str) -> bytes:
    return jsonrpc.error_response(None, jsonrpc.INVALID_REQUEST, text)


def _nowhere(message: bytes) -> None:
    """A modern client hears only of what it asked for."""

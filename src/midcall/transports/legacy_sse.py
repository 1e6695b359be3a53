"""HTTP+SSE: the transport of MCP 2024-11-05, for clients that know no other. Deprecated, and off by default.

A client opens a stream with GET `/sse`. The first event says where to POST messages to; a POST is only
acknowledged, and whatever the server has to say comes on the stream. The session is the stream: when it
ends, so do its calls. What the messages mean is left to a `Connection`, as on a WebSocket.
"""

import asyncio
import secrets
from collections import deque
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from midcall import jsonrpc
from midcall.calls import Owned
from midcall.hub import Hub
from midcall.jsonrpc import Fault
from midcall.plexus.protocol import MAX_MESSAGE, Connection
from midcall.principal import Principal, RequestInfo, request_info
from midcall.transports.responses import EVENTS, KEEP_ALIVE
from midcall.transports.security import JSON, is_media_type
from midcall.transports.websocket import OUTBOX_LIMIT, READ_LIMIT

LIMIT = 10_000
"""How many streams there may be; of a caller with a name, a tenth. One more ends another one: of the same
caller, or of whoever has most, the one whose client has been silent for longest."""

_Owner: TypeAlias = tuple[str, frozenset[str]] | None


class SseEndpoint:
    """What is at `/sse` and at `/messages`, each an ASGI application."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._clients: dict[str, _SseClient] = {}
        self._owned: Owned[_SseClient] = Owned()

    def close(self) -> None:
        """The server ends: so do all streams."""
        for client in self._clients.values():
            client.over.set()

    async def listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client at `/sse`, until one of both sides ends the stream."""
        if scope["method"] != "GET":  # a client that tries the newer transport first goes on from here
            await Response(status_code=405, headers={"Allow": "GET"})(scope, receive, send)
            return
        client = self._admit(scope.get("midcall.principal"), request_info(scope, "sse"))
        path = f"{scope.get('root_path', '')}/messages".lstrip("/")
        tasks = (
            asyncio.ensure_future(client.write(send, f"/{quote(path)}?session_id={client.id}")),
            asyncio.ensure_future(_until_gone(receive)),
            asyncio.ensure_future(client.over.wait()),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._forget(client)  # from here on nothing more is taken for it
            for task in tasks:
                task.cancel()
            await client.connection.close("The stream was closed")
            await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(OSError):
            await send({"type": "http.response.body", "body": b""})

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one message at `/messages`."""
        response = await self._take(Request(scope, receive))
        await response(scope, receive, send)

    async def _take(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405, headers={"Allow": "POST"})
        client = self._find(request)
        if client is None:
            return _refusal(404, "Session not found", code=-32001)
        if not is_media_type(request.headers.get("content-type", JSON), JSON):
            return _refusal(415, "Content-Type must be application/json")
        if client.behind:
            await client.connection.drain()
        body = await _body(request)
        if body is None:
            return _refusal(413, f"Invalid Request: a message may have {MAX_MESSAGE} bytes at most")
        try:
            jsonrpc.decode(body)  # what is no message is refused here, as by the official servers
        except Fault as fault:
            return _json(400, fault.response())
        if client.id not in self._clients:  # it has left meanwhile
            return _refusal(404, "Session not found", code=-32001)
        client.connection.receive(body)
        return Response(status_code=202)

    def _admit(self, principal: Principal | None, info: RequestInfo) -> "_SseClient":
        client = _SseClient(self._hub, principal, info)
        for longest_silent in self._owned.make_room(client.principal, LIMIT):
            self._forget(longest_silent)
            longest_silent.over.set()
        self._clients[client.id] = client
        self._owned.use(client.principal, client.id, client)
        return client

    def _forget(self, client: "_SseClient") -> None:
        self._clients.pop(client.id, None)
        self._owned.remove(client.principal, client.id)

    def _find(self, request: Request) -> "_SseClient | None":
        """The client that sends a message; to any other principal its session does not exist."""
        client = self._clients.get(request.query_params.get("session_id", ""))
        if client is None or client.owner != _owner(request.scope.get("midcall.principal")):
            return None
        self._owned.use(client.principal, client.id, client)
        return client


class _SseClient:
    """One client: its connection, and the messages on their way to it."""

    def __init__(self, hub: Hub, principal: Principal | None, info: RequestInfo) -> None:
        self.id = secrets.token_urlsafe(24)
        self.owner = _owner(principal)
        self.principal = None if principal is None else principal.name
        self.over = asyncio.Event()
        """Set when the server ends the stream."""
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self.connection = Connection(hub, self._put, raw=False, principal=principal, info=info)

    @property
    def behind(self) -> bool:
        """Whether it reads so slowly that nothing more is taken from it."""
        return self._size > READ_LIMIT

    def _put(self, message: bytes) -> None:
        self._messages.append(message)
        self._size += len(message)
        self._wake.set()
        if self._size > OUTBOX_LIMIT:
            self.connection.pause()

    async def write(self, send: Send, endpoint: str) -> None:
        """Write the stream, for ever; a client that is gone may end it with an `OSError`."""
        await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS]})
        await _write(send, b"event: endpoint\ndata: %b\n\n" % endpoint.encode())
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    await self._wake.wait()
            except TimeoutError:
                await _write(send, b":\n\n")
            self._wake.clear()
            while self._messages:
                await _write(send, b"event: message\ndata: %b\n\n" % self._next())
                if self._size <= OUTBOX_LIMIT // 2:
                    self.connection.resume()

    def _next(self) -> bytes:
        message = self._messages.popleft()
        self._size -= len(message)
        return message


def _owner(principal: Principal | None) -> _Owner:
    """Whose a session is. It keeps the scopes that it began with, so a token with others is no key to it."""
    return None if principal is None else (principal.name, principal.scopes)


async def _write(send: Send, event: bytes) -> None:
    await send({"type": "http.response.body", "body": event, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes | None:
    """The body of a request; nothing if it is too large."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_MESSAGE:
                return None
            parts.append(part)
    except ClientDisconnect:
        return b""
    return b"".join(parts)


def _refusal(status: int, text: str, *, code: int = jsonrpc.INVALID_REQUEST) -> Response:
    return _json(status, jsonrpc.error_response(None, code, text))


def _json(status: int, body: bytes) -> Response:
    return Response(body, status, media_type="application/json")

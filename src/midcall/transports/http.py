"""HTTP: the hub as an ASGI application. (A server for it is in `http_server`.)

`/mcp` is for MCP clients, `/ws` is the WebSocket endpoint, `/` is the web client (see `web`), `/calls` and
`/q` are what it shows of calls and questions, `/health` and `/ready` answer a load balancer, and with OAuth
`/.well-known/oauth-protected-resource` says where to get a token. Only if wanted, `/sse` and `/messages` are
for MCP clients of the past, `/admin` for administrators, and `/metrics` for Prometheus.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midcall import jsonrpc
from midcall.calls import RateLimit, Shares
from midcall.hub import Hub
from midcall.journal.durable import durable_calls
from midcall.journal.measured import measure
from midcall.journal.notices import Notify
from midcall.mcp import mcp_of
from midcall.mcp.dialects.respond_tool import Offered
from midcall.metrics import keep, refused
from midcall.principal import Principal, request_info, time_left
from midcall.questions import check_address
from midcall.transports.admin import IMPORT, Restricted, admin_pages, import_page
from midcall.transports.auth import Authenticator, Unauthorized, authorization_in
from midcall.transports.calls_page import CallsPage
from midcall.transports.legacy_sse import SseEndpoint
from midcall.transports.mcp_http import McpEndpoint
from midcall.transports.probes import Probes
from midcall.transports.responses import without_respond
from midcall.transports.security import ANYBODY, NOSNIFF, Gate, answer_preflight, is_preflight, readable_by
from midcall.transports.web import WebClient
from midcall.transports.websocket import serve_websocket
from midcall.version import __version__

SOCKETS = 10_000
"""How many WebSockets may be open; of a caller with a name, a tenth."""

METADATA_PATH = "/.well-known/oauth-protected-resource"

log = logging.getLogger("midcall.http")


class AppPart:
    """What others add to the application, as the chat does."""

    pages: Sequence[str] = ()
    """The pages of the web client that are there only with this part, by the first words of their paths."""

    def routes(self) -> Sequence[Route]:
        """Its pages; callers are made to say who they are, as at `/mcp`."""
        return ()

    async def open(self) -> None:
        """The hub is open: make it ready."""

    def stop(self) -> None:
        """The server is told to stop: end what would keep it waiting."""

    async def close(self) -> None:
        """Let go of everything, before the hub does."""


def asgi_app(
    hub: Hub,
    *,
    auth: Authenticator | None = None,
    hosts: Sequence[str] = (),
    sse: bool = False,
    admin: bool = False,
    metrics: bool = False,
    rate_limit: float | None = None,
    parts: Sequence[AppPart] = (),
    web_modules: Sequence[str | Path] = (),
    public_url: str | None = None,
    notify: Notify | None = None,
    respond_tool: Offered | None = None,
) -> "Application":
    """An ASGI application to serve, or to mount in another one.

    `auth` tells who calls at `/mcp` and `/ws`. `hosts` are the names by which the server is reached
    beside loopback ones and its own address, and the origins of other sites whose pages may call it
    (see `security.Gate`). `sse` adds the deprecated transport HTTP+SSE of MCP at `/sse`.

    With `auth`, `/admin` is for those who have the scope `midcall:admin` (to import: `midcall:import`);
    without it, and with `admin`, for programs of this machine. `metrics` adds `/metrics` for the same.
    `web_modules` are files of JavaScript that the web client loads, with components for questions.
    `rate_limit` is how many calls a second each caller may start, 0 for no limit; without one, what the hub
    has, or the default of `midcall.calls`.

    `public_url` is where people reach the server, for links to questions, and `notify` tells people of
    questions (see `midcall.notify`). `respond_tool` says which legacy MCP clients without elicitation have
    the tool that answers questions (see `mcp.dialects.respond_tool`).
    """
    if public_url is not None:
        check_address(public_url)
        durable_calls(hub).links.base = public_url
    if notify is not None:
        durable = durable_calls(hub)
        if durable.links.base is None:
            raise ValueError("`notify` needs `public_url`: where people reach this server")
        durable.notify_by(notify)
    if respond_tool is not None:
        mcp_of(hub).respond_tool = respond_tool
    if rate_limit is not None or hub.calls.rate is None:
        hub.calls.rate = RateLimit(rate_limit)

    async def root(request: Request) -> Response:
        names = "" if auth else "\n".join(("Methods:", *(f"  {name}" for name, _ in hub.methods()), ""))
        here = request.url.path.rstrip("/")
        ways = f"MCP: {here}/mcp\nWebSocket: {here}/ws\n"
        return PlainTextResponse(f"midcall {__version__}, hub {hub.name}\n\n{ways}{names}")

    async def health(request: Request) -> Response:
        body = {"status": "ok", "hub": hub.name, "hash": hub.hash, "calls": len(hub.calls)}
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def metadata(request: Request) -> Response:
        body = msgspec.json.encode(auth.metadata() if auth else None)
        return Response(body, media_type="application/json")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await hub.open()
        if hub.durable is not None:
            sessions = hub.durable.bus.channel("session")
            sessions.take = mcp.share_sessions(sessions)
        for part in parts:
            await part.open()
        async with probes.telling():
            yield
        for part in parts:
            await part.close()
        await hub.close()

    mcp = McpEndpoint(mcp_of(hub), auth)
    probes = Probes(hub, keep() if metrics else None)
    base = None if hub.durable is None else hub.durable.links.base
    web = WebClient(
        root,
        modules=web_modules,
        pages=[page for part in parts for page in part.pages],
        is_below=base is not None and urlsplit(base).path.strip("/") != "",
    )
    routes: list[BaseRoute] = [
        *web.routes(),
        *_calls_routes(hub, web, auth),
        Route("/health", health),
        Route("/ready", probes.ready),
        WebSocketRoute("/ws", Protected(_WebSocketEndpoint(hub), auth)),
    ]
    if auth is not None or admin:
        taking = Restricted(import_page(mcp_of(hub)), auth, scope=IMPORT)
        routes.append(Route("/admin/import", taking, methods=["POST"]))
        routes.append(Mount("/admin", Restricted(admin_pages(mcp_of(hub)), auth)))
    if metrics:
        routes.append(Route("/metrics", Restricted(request_response(probes.metrics), auth)))
        if hub.durable is not None:
            measure(hub.durable.journal)
    if auth is not None and auth.metadata() is not None:
        routes += [Route(METADATA_PATH, metadata), Route(f"{METADATA_PATH}/{{path:path}}", metadata)]
    pages = [_protected(route, auth) for part in parts for route in part.routes()]
    routes += pages
    old = SseEndpoint(hub) if sse else None
    if old is not None:
        routes += [
            Route("/sse", Protected(UntilExpiry(old.listen), auth)),
            Route("/messages", Protected(old.post, auth)),
        ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: web.missing})
    return Application(app, mcp, auth, Gate(hosts), old, parts, pages)


def _calls_routes(hub: Hub, web: WebClient, auth: Authenticator | None) -> list[Route]:
    """`/calls` and `/q/...`: a page for a browser that goes there, data for the page."""
    calls = CallsPage(mcp_of(hub))
    pages = [_protected(route, auth) for route in calls.pages()]
    return [
        *(Route(page.path, web.page_or(page.app), methods=["GET"]) for page in pages),
        *(_protected(route, auth) for route in calls.routes()),
    ]


def _protected(route: Route, auth: Authenticator | None) -> Route:
    if auth is None:
        return route
    return Route(route.path, Protected(UntilExpiry(route.app), auth), methods=sorted(route.methods or ()))


class _WebSocketEndpoint:
    """The ASGI form of `serve_websocket`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._open = Shares()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal: Principal | None = scope.get("midcall.principal")
        name = None if principal is None else principal.name
        if self._open.is_full(name, SOCKETS):
            refused("too_many_connections")
            await _refuse(scope, receive, send, 429, "Too many open WebSockets; close some of them first")
            return
        self._open.take(name)
        try:
            subprotocols, info = scope.get("subprotocols", ()), request_info(scope, "websocket")
            await serve_websocket(self._hub, receive, send, principal, subprotocols=subprotocols, info=info)
        finally:
            self._open.give_back(name)


class Application:
    """The whole: reached only by the right `Host` and from no foreign web page.

    `/mcp` is the hot path, so it is told apart here, before any routing; and so are pages of `parts`.
    """

    def __init__(
        self,
        pages: Starlette,
        mcp: McpEndpoint,
        auth: Authenticator | None,
        gate: Gate,
        sse: SseEndpoint | None = None,
        parts: Sequence[AppPart] = (),
        routes: Sequence[Route] = (),
    ) -> None:
        self._pages = pages
        self._parts = parts
        self._mcp: ASGIApp = mcp if auth is None else Protected(mcp, auth)
        self._direct: dict[tuple[str, str], ASGIApp] = {
            (method, route.path): route.app
            for route in routes
            if not route.param_convertors
            for method in route.methods or ()
        }
        self._gate = gate
        self._sse = sse
        self.stop_listening = mcp.close
        """Ends the streams on which nothing has to come, and open questions; what runs may be answered."""

    def close(self) -> None:
        """End all that would keep a server waiting that is told to stop."""
        self.stop_listening()
        if self._sse is not None:
            self._sse.close()
        for part in self._parts:
            part.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._pages(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        fault, origin = self._gate.check(scope["headers"], scope.get("server"))
        if fault is not None:
            if not _is_open(path):
                await _refuse(scope, receive, send, 403, fault)
                return
            origin = ANYBODY if origin is not None and path.startswith(METADATA_PATH) else None
        if origin is not None and scope["type"] == "http":
            if is_preflight(scope["method"], scope["headers"]):
                await answer_preflight(send, scope["headers"], origin)
                return
            scope, send = without_respond(scope), readable_by(origin, send)
        if path == "/mcp" and scope["type"] == "http":
            await self._mcp(scope, receive, send)
        else:
            with suppress(ClientDisconnect):  # in the middle of its request: there is nobody to answer
                page = self._direct.get((scope.get("method", ""), path), self._pages)
                await page(scope, receive, _nosniff(send))


class Protected:
    """An endpoint for callers who say who they are.

    The endpoint finds the `Principal` in `scope["midcall.principal"]`.
    """

    def __init__(self, endpoint: ASGIApp, auth: Authenticator | None) -> None:
        self._endpoint = endpoint
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._auth is not None:
            try:
                principal = await self._auth.authenticate(authorization_in(scope))
            except Unauthorized as refusal:
                await refuse(scope, receive, send, refusal)
                return
            scope = {**scope, "midcall.principal": principal}
        await self._endpoint(scope, receive, send)


class UntilExpiry:
    """An endpoint whose responses end, however long they are, when the caller's token expires."""

    def __init__(self, endpoint: ASGIApp) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seconds = time_left(scope.get("midcall.principal"))
        if seconds is None:
            await self._endpoint(scope, receive, send)
            return
        began = ended = False

        async def noted(message: Message) -> None:
            nonlocal began, ended
            began = True
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            async with asyncio.timeout(seconds) as limit:
                await self._endpoint(scope, receive, noted)
        except TimeoutError:
            if not limit.expired():
                raise
            if not began:
                await _refuse(scope, receive, send, 401, "The token has expired")
            elif not ended:
                await send({"type": "http.response.body", "body": b""})


def _nosniff(send: Send) -> Send:
    async def send_plainly(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if not any(name.lower() == NOSNIFF[0] for name, _ in headers):
                message = {**message, "headers": [*headers, NOSNIFF]}
        await send(message)

    return send_plainly


async def refuse(scope: Scope, receive: Receive, send: Send, refusal: Unauthorized) -> None:
    """Answer a request that is not authorized."""
    value = refusal.www_authenticate
    headers = [] if value is None else [(b"www-authenticate", value.encode("latin-1"))]
    await _refuse(scope, receive, send, refusal.status, refusal.message, headers)


async def _refuse(
    scope: Scope,
    receive: Receive,
    send: Send,
    status: int,
    message: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    kind = "http"
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": message[:100]})  # becomes a 403
            return
        kind = "websocket.http"
    body = jsonrpc.error_response(None, jsonrpc.INVALID_REQUEST, message)
    described = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        NOSNIFF,
        *headers,
    ]
    await send({"type": f"{kind}.response.start", "status": status, "headers": described})
    await send({"type": f"{kind}.response.body", "body": body})


def _is_open(path: str) -> bool:
    """Whether anybody may read it: what a load balancer asks for, and what leads to a token."""
    return path in ("/health", "/ready") or path.startswith(METADATA_PATH)

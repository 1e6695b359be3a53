"""HTTP: the hub as an ASGI application, and a server for it.

`/ws` is the WebSocket endpoint, `/health` answers a load balancer, `/` says what is here.
"""

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from uvicorn.config import LOGGING_CONFIG

from midcall.connection import MAX_MESSAGE
from midcall.hub import Hub
from midcall.transports.security import same_origin
from midcall.transports.websocket import serve_websocket
from midcall.version import __version__

FRAME_LIMIT = 4 * MAX_MESSAGE
"""Frames up to this size are read, so that one over MAX_MESSAGE can be answered with an error; one
beyond ends its connection."""


def asgi_app(hub: Hub) -> Starlette:
    """An ASGI application to serve, or to mount in another one."""

    async def root(request: Request) -> Response:
        names = "\n".join(f"  {name}" for name, _ in hub.methods())
        return PlainTextResponse(
            f"midcall {__version__}, hub {hub.name}\n\nWebSocket: {request.url.path.rstrip('/')}/ws\n"
            f"Methods:\n{names}\n"
        )

    async def health(request: Request) -> Response:
        body = {"status": "ok", "hub": hub.name, "hash": hub.hash, "calls": len(hub.calls)}
        return Response(msgspec.json.encode(body), media_type="application/json")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await hub.calls.close()

    return Starlette(
        routes=[
            Route("/", root),
            Route("/health", health),
            WebSocketRoute("/ws", _Endpoint(hub)),
        ],
        lifespan=lifespan,
    )


class _Endpoint:
    """The ASGI form of `serve_websocket`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not same_origin(scope["headers"]):
            await send({"type": "websocket.close", "code": 1008, "reason": "Another origin"})  # 403
            return
        await serve_websocket(self._hub, receive, send)


def server(hub: Hub, host: str = "127.0.0.1", port: int = 8000, log_level: str = "info") -> uvicorn.Server:
    """A server that is ready to be run; its log goes to standard error."""
    return uvicorn.Server(
        uvicorn.Config(
            asgi_app(hub),
            host=host,
            port=port,
            log_level=log_level,
            log_config=_log_to_stderr(),
            ws="websockets-sansio",
            ws_max_size=FRAME_LIMIT,
            ws_per_message_deflate=False,  # costs 64 kB a peer, and hides a slow reader from us
            timeout_graceful_shutdown=5,
        )
    )


async def serve_http(hub: Hub, host: str = "127.0.0.1", port: int = 8000, log_level: str = "info") -> None:
    """Serve the hub until the process is told to stop."""
    await server(hub, host, port, log_level).serve()


def _log_to_stderr() -> dict[str, Any]:
    config = copy.deepcopy(LOGGING_CONFIG)
    for handler in config["handlers"].values():
        handler["stream"] = "ext://sys.stderr"
    return config

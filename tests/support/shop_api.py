"""A small shop over real HTTP, and a server for it in a thread: what `fixtures/shop.yaml` describes."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from driving import LIMIT

DOCUMENT = Path(__file__).parent / "fixtures" / "shop.yaml"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
HAMMER = {
    "id": "1",
    "name": "Hammer",
    "price": {"amount": "9.50", "currency": "EUR"},
    "note": None,
    "maker": None,
}


class Shop:
    """What it was asked, and how it answers."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.answers: list[Response] = []
        """Given first, one for each request."""
        self.held = False
        """Whether it lets everybody wait."""
        self.app = Starlette(
            routes=[Route("/{path:path}", self._answer, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])]
        )

    async def _answer(self, request: Request) -> Response:
        seen = {
            "verb": request.method,
            "path": request.scope["raw_path"].decode(),
            "query": request.scope["query_string"].decode(),
            "headers": dict(request.headers),
            "body": (await request.body()).decode(),
        }
        self.seen.append(seen)
        while self.held:
            await asyncio.sleep(0.01)
        return self.answers.pop(0) if self.answers else self._usual(seen)

    def _usual(self, seen: dict[str, Any]) -> Response:
        verb, path = seen["verb"], seen["path"].removeprefix("/v2")
        match verb, path.split("/")[1:]:
            case "GET", ["products"]:
                return JSONResponse({"items": [HAMMER], "next": None})
            case "POST", ["products"]:
                made = {**json.loads(seen["body"]), "id": "2"}
                made.pop("cost", None)
                return JSONResponse(made, 201)
            case "GET", ["products", "missing"]:
                problem = {"title": "No such product", "status": 404}
                return JSONResponse(problem, 404, media_type="application/problem+json")
            case "GET", ["products", "large"]:
                return StreamingResponse(
                    (b"x" * 65536 for _ in range(200)), 200, media_type="application/json"
                )
            case "GET", ["products", "moved"]:
                return RedirectResponse("/v2/products/1", 302)
            case "GET", ["products", "elsewhere"]:
                return RedirectResponse("http://localhost:1/x", 302)
            case "GET", ["products", "odd"]:
                return JSONResponse({"name": 5})
            case "GET", ["products", _, "photo"]:
                return Response(PNG, media_type="image/png")
            case (("GET" | "PUT"), ["products", _]):
                return JSONResponse(HAMMER)
            case "PATCH", ["products", _]:
                return Response(status_code=204)
            case "DELETE", ["products", _]:
                return Response(status_code=204)
            case "GET", ["categories", "tree"]:
                return JSONResponse({"name": "all", "children": [{"name": "tools", "children": []}]})
            case "GET", ["orders"]:
                return JSONResponse([{"id": 1, "lines": [{"product": "1", "count": 2}]}])
            case "POST", ["orders"]:
                return JSONResponse({"id": 2, **json.loads(seen["body"])}, 201)
            case "PUT", ["orders", _, "note"]:
                return PlainTextResponse(seen["body"])
            case "POST", ["orders", _, "refund"]:
                return Response(status_code=202)
            case "GET", ["customers", _]:
                return JSONResponse({"kind": "person", "name": "Ada"})
            case "GET", ["openapi.json"]:
                return JSONResponse(
                    {
                        "openapi": "3.1.0",
                        "info": {"title": "t", "version": "1"},
                        "servers": [{"url": "/v2"}],
                        "paths": {"/products": {"get": {"operationId": "all", "responses": {}}}},
                    }
                )
        return JSONResponse({"title": "Nothing here"}, 404)


@contextlib.contextmanager
def served(shop: Shop) -> Iterator[str]:
    """The shop at a port of this machine; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(shop.app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + LIMIT
        while not server.started:
            assert time.monotonic() < end
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        shop.held = False
        server.should_exit = True
        thread.join()

"""Web: the files of the web client, which are built from `web/` and lie in the package beside the code.

    GET /, /tools, /resources, /calls, /c/{id}, /q/{token}
                                     the page; which of them it is, it finds out itself
    GET /machines                    the same, where a part of the application says that there is such a page
    GET /assets/{name}               its parts, whose names change with what is in them
    GET /web-modules.json            the modules of other authors that it loads: {"modules": [path, ...]}
    GET /web-modules/{n}-{hash}/{name}   one of them

All of it is for everybody: what there is to protect comes from other endpoints. Everything is read once, so
that no request can name a file. Who asks at `/` for text and not for a page gets the plain one.
"""

import functools
import gzip
import hashlib
import mimetypes
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

BUILT = Path(__file__).parent.parent / "web"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing but what this server itself serves, no script or style that stands in the page, and no text that
becomes part of it."""

SAFE = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

FOR_EVER = "public, max-age=31536000, immutable"
"""Of a file whose name changes with it."""

LEAST_PACKED = 1000
"""Bytes below which a file is not worth packing."""

NOT_BUILT = "The web client is not built: run `make web`, which needs Node.js, or install a wheel.\n"

_TEXT = ("text/", "application/json", "image/svg+xml")

Handler = Callable[[Request], Awaitable[Response]]


class File(Struct, frozen=True, dict=True):
    """A file to be served, as it is and packed."""

    body: bytes
    type: str

    @functools.cached_property
    def packed(self) -> bytes | None:
        if len(self.body) < LEAST_PACKED or not self.type.startswith(_TEXT):
            return None
        return gzip.compress(self.body, 9, mtime=0)

    @functools.cached_property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:24]}"'

    def response(self, request: Request, caching: str) -> Response:
        """The file, unless the browser has it."""
        headers = {**SAFE, "cache-control": caching, "etag": self.tag, "vary": "Accept-Encoding"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = self.body
        if self.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            body = self.packed
            headers["content-encoding"] = "gzip"
        return Response(body, headers={**headers, "content-type": self.type})


class WebClient:
    """The web client; `plain` is what stands at `/` for those who want no page, or where there is none.

    `pages` are those that not every hub has. If it `is_below` a path that a proxy takes off, only the browser
    knows where it is.
    """

    def __init__(
        self,
        plain: Handler,
        *,
        folder: Path = BUILT,
        modules: Sequence[str | Path] = (),
        pages: Sequence[str] = (),
        is_below: bool = False,
    ) -> None:
        self._plain = plain
        self._is_below = is_below
        self._more = list(pages)
        self._index = _read(folder / "index.html") if (folder / "index.html").is_file() else None
        self._assets = {path.name: _read(path) for path in (folder / "assets").glob("*") if path.is_file()}
        self._modules = _read_modules(modules)
        self._pages = functools.lru_cache(maxsize=16)(self._page_at)

    def routes(self) -> list[Route]:
        """All of it but `/calls`, which is also something else."""
        return [
            Route("/", self._root),
            *(Route(f"/{name}", self.page) for name in ("tools", "resources", *self._more)),
            Route("/c/{id}", self.page),
            Route("/assets/{name}", self._asset),
            Route("/web-modules.json", self._list_modules),
            Route("/web-modules/{place}/{name}", self._module),
        ]

    def page_or(self, other: ASGIApp) -> "PageOr":
        """The page for a browser that goes there, and something else for whoever asks for data."""
        return PageOr(self, other)

    def is_wanted(self, request: Request) -> bool:
        """Whether there is a page, and a browser asks for one."""
        return self._index is not None and "text/html" in request.headers.get("accept", "")

    async def page(self, request: Request) -> Response:
        """The page. It knows by its address what to show."""
        if self._index is None:
            return Response(NOT_BUILT, 404, media_type="text/plain")
        response = self._pages(self._root_of(request)).response(request, "no-cache")
        response.headers["vary"] = "Accept, Accept-Encoding"
        return response

    async def missing(self, request: Request, error: Exception) -> Response:
        """The answer where there is nothing: a browser gets the page, which says so."""
        if request.method not in ("GET", "HEAD") or not self.is_wanted(request):
            return Response("Not Found", 404, media_type="text/plain")
        page = self._pages(self._root_of(request))
        headers = {**SAFE, "cache-control": "no-store", "content-type": page.type, "vary": "Accept"}
        return Response(page.body, 404, headers=headers)

    def _root_of(self, request: Request) -> str:
        """Where the client is mounted, as a path; or how a browser gets there from this page."""
        root: str = request.scope.get("root_path", "")
        if root or not self._is_below:
            return root
        return "/".join([".."] * (request.scope["path"].count("/") - 1)) or "."

    def _page_at(self, root: str) -> File:
        """The page as it is mounted below a path: its parts are named from there, and it knows its pages."""
        assert self._index is not None  # noqa: S101  checked by the caller
        path = root.rstrip("/").replace("&", "&amp;").replace('"', "&quot;")
        body = self._index.body.replace(b'"./assets/', f'"{path}/assets/'.encode())
        return File(
            body.replace(b'data-pages=""', f'data-pages="{" ".join(self._more)}"'.encode()), self._index.type
        )

    async def _root(self, request: Request) -> Response:
        if self.is_wanted(request):
            return await self.page(request)
        response = await self._plain(request)
        if self._index is None:
            response = Response(bytes(response.body) + b"\n" + NOT_BUILT.encode(), media_type="text/plain")
        response.headers["vary"] = "Accept"
        return response

    async def _asset(self, request: Request) -> Response:
        found = self._assets.get(request.path_params["name"])
        return _missing() if found is None else found.response(request, FOR_EVER)

    async def _list_modules(self, request: Request) -> Response:
        body = msgspec.json.encode({"modules": [f"web-modules/{path}" for path in self._modules]})
        return File(body, "application/json").response(request, "no-cache")

    async def _module(self, request: Request) -> Response:
        found = self._modules.get("{place}/{name}".format(**request.path_params))
        return _missing() if found is None else found.response(request, FOR_EVER)


class PageOr:
    """The page, or something else (see `WebClient.page_or`)."""

    def __init__(self, web: WebClient, other: ASGIApp) -> None:
        self._web = web
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        chosen = await self._web.page(request) if self._web.is_wanted(request) else self._other
        await chosen(scope, receive, send)


def _read(path: Path) -> File:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if kind in ("text/javascript", "application/javascript"):
        kind = "text/javascript"
    return File(path.read_bytes(), f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)


def _read_modules(paths: Sequence[str | Path]) -> dict[str, File]:
    """The modules by where they are served; another version of one is another place. Raises `ValueError`."""
    found: dict[str, File] = {}
    for number, path in enumerate(map(Path, paths), 1):
        if path.suffix not in (".js", ".mjs") or not path.is_file():
            raise ValueError(f"{path} is not a JavaScript module: a file that ends in .js")
        module = _read(path)
        digest = hashlib.sha256(module.body).hexdigest()[:12]
        found[f"{number}-{digest}/{path.name}"] = module
    return found


def _missing() -> Response:
    return Response("Not found\n", 404, media_type="text/plain", headers=dict(SAFE))

"""`POST /chat`: a run as lines of JSON, which a reader that lost its line takes up again after the last one
it has.

Beside it stand the pages that a web client needs of a chat: what it is, and the conversations of a person.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from midcall.chat.conversation import BadRequest, StopRequest, read_json, read_request, read_title
from midcall.chat.details import SHOWN_TYPES
from midcall.chat.engine import ChatEngine, NoConversation, TooManyConversations, TurnRunning
from midcall.chat.history import as_json, as_markdown
from midcall.chat.runs import RunReader
from midcall.errors import Conflict, JournalError, MidcallError, TooManyCalls
from midcall.limits import check_keys
from midcall.models.base import Model, takes_images
from midcall.principal import Principal
from midcall.transports.http import AppPart
from midcall.transports.security import JSON, is_media_type

MAX_BODY = 4 * 1024 * 1024

MAX_TURN = 24 * 1024 * 1024
"""How many bytes a request for a turn may have, with its attachments."""

NOT_KEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Headers of a stream: nobody on the way keeps it, or holds it back."""

LISTENS_AFTER = 0.2
"""Seconds after which a stream begins to look whether its reader is still there; most are over by then."""

MAX_DIGITS = 9
"""Of the number of a line: a store may keep it in 32 bits."""


class NotJson(MidcallError):
    """A request whose body is said to be something else than JSON."""

    code = "unsupported_media_type"


_STATUS: dict[type[MidcallError], int] = {
    NoConversation: 404,
    TurnRunning: 409,
    Conflict: 409,
    TooManyConversations: 409,
    TooManyCalls: 429,
    NotJson: 415,
    JournalError: 503,
}


class ChatPart(AppPart):
    """The chat as a part of a hub's ASGI application."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        from midcall.chat.agui import Agui  # noqa: PLC0415  it is built on this

        return [
            page("POST", "/chat", self._post),
            page("GET", "/chat", self._attach),
            page("POST", "/chat/stop", self._stop),
            page("GET", "/chat/info", self._info),
            page("GET", "/chat/conversations", self._list),
            page("GET", "/chat/conversations/{id}", self._get),
            page("PATCH", "/chat/conversations/{id}", self._rename),
            page("GET", "/chat/conversations/{id}/export", self._export),
            page("GET", "/chat/conversations/{id}/files/{file}", self._file),
            page("DELETE", "/chat/conversations/{id}", self._delete),
            *Agui(self._engine).routes(),
        ]

    async def open(self) -> None:
        await self._engine.open()

    def stop(self) -> None:
        self._engine.stop_all()

    async def close(self) -> None:
        await self._engine.close()

    async def _post(self, request: Request) -> Response:
        body = await read_body(request, MAX_TURN)
        if not body and _session_id(request):
            return await self._attach(request)
        return _streamed(await self._engine.post(read_request(body), principal_of(request)), 0)

    async def _attach(self, request: Request) -> Response:
        run = await self._engine.attach(_session_id(request), principal_of(request))
        last = request.headers.get("x-last-lsn") or request.query_params.get("lastLsn") or "0"
        if not last.isdecimal() or len(last) > MAX_DIGITS:
            raise BadRequest("The last LSN must be a number")
        return _streamed(run, int(last))

    async def _stop(self, request: Request) -> Response:
        which = read_json(await read_body(request), StopRequest)
        return json_response(
            {"stopped": await self._engine.stop(which.conversation_id, principal_of(request))}
        )

    async def _info(self, request: Request) -> Response:
        engine = self._engine
        return json_response(
            {
                "model": _about(engine.model),
                "models": [_about(model) for model in engine.models.values()],
                "hub": {"name": engine.hub.name, "description": engine.hub.description},
                "suggestions": engine.suggestions,
            }
        )

    async def _list(self, request: Request) -> Response:
        query = request.query_params.get("q")
        if query is None:
            return json_response({"conversations": await self._engine.conversations(principal_of(request))})
        found, is_all = await self._engine.search(query, principal_of(request))
        return json_response({"conversations": found, "complete": is_all})

    async def _get(self, request: Request) -> Response:
        found, run = await self._engine.conversation(_conversation_id(request), principal_of(request))
        return json_response(
            {
                "id": found.id,
                "title": found.title,
                "model": self._engine.model_of(found).name,
                "messages": found.messages,
                "calls": found.details,
                "pending": found.questions,
                "run": run,
                "cutOff": run is None and found.failure is not None,
                "error": found.failure,
            }
        )

    async def _rename(self, request: Request) -> Response:
        title = read_title(await read_body(request))
        await self._engine.rename(_conversation_id(request), title, principal_of(request))
        return json_response({"title": title})

    async def _export(self, request: Request) -> Response:
        form = request.query_params.get("format", "json")
        if form not in ("json", "markdown"):
            raise BadRequest("A conversation is exported as json or as markdown")
        found, _ = await self._engine.conversation(_conversation_id(request), principal_of(request))
        if form == "json":
            return _download(as_json(found), "application/json", f"{_plain_name(found.title)}.json")
        text = as_markdown(found).encode(errors="replace")
        return _download(text, "text/markdown; charset=utf-8", f"{_plain_name(found.title)}.md")

    async def _file(self, request: Request) -> Response:
        found, _ = await self._engine.conversation(_conversation_id(request), principal_of(request))
        file = found.files.get(request.path_params["file"])
        if file is None:
            raise NoConversation("There is no such file in this conversation")
        shown = file.type if file.type in SHOWN_TYPES else "application/octet-stream"
        return _download(file.data, shown, _plain_name(file.name))

    async def _delete(self, request: Request) -> Response:
        await self._engine.delete(_conversation_id(request), principal_of(request))
        return Response(status_code=204)


def page(verb: str, path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
    """A page that says why a request is not taken, if the handler raises that."""
    return Route(path, _Endpoint(handler), methods=[verb])


class _Endpoint:
    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._handler(Request(scope, receive))
        except MidcallError as error:
            status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)
            response = json_response({"error": {"code": error.code, "message": str(error)}}, status)
        await response(scope, receive, send)


def _streamed(run: RunReader, after: int) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        async for new in run.batches(after):
            yield b"\n".join((*new, b""))

    return Stream(lines(), media_type="application/x-ndjson", headers={"X-Session-Id": run.id, **NOT_KEPT})


class Stream(StreamingResponse):
    """A response that goes on until it ends, or its reader is gone.

    Starlette's own does the same with two tasks and a group of them, which costs more than the lines do.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing, loop = asyncio.current_task(), asyncio.get_running_loop()
        listening: asyncio.Task[None] | None = None
        gone = False

        async def listen() -> None:
            nonlocal gone
            await self.listen_for_disconnect(receive)
            gone = True
            if writing is not None:
                writing.cancel()

        def begin() -> None:
            nonlocal listening
            listening = loop.create_task(listen())

        soon = loop.call_later(LISTENS_AFTER, begin)
        try:
            await self.stream_response(send)
        except asyncio.CancelledError:
            if not gone or writing is None or writing.uncancel():
                raise
        finally:
            soon.cancel()
            if listening is not None:
                listening.cancel()


def _session_id(request: Request) -> str:
    id = request.headers.get("x-session-id") or request.query_params.get("sessionId") or ""
    check_keys([id])
    return id


def _conversation_id(request: Request) -> str:
    id: str = request.path_params["id"]
    check_keys([id])
    return id


def principal_of(request: Request) -> Principal | None:
    """Who sends a request, if that was asked."""
    return request.scope.get("midcall.principal")


def _about(model: Model) -> dict[str, Any]:
    """What a page is told of a model."""
    return {"name": model.name, "scripted": model.scripted, "images": takes_images(model)}


def _plain_name(text: str) -> str:
    """The name of a file that no browser, and no file system, takes for anything else."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100] or "conversation"


def _download(data: bytes, type: str, name: str) -> Response:
    """A file that is saved, and never shown as a page of this server."""
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return Response(data, 200, headers, media_type=type)


async def read_body(request: Request, most: int = MAX_BODY) -> bytes:
    """The body of a request. Raises `MidcallError` if it is too large, or said not to be JSON.

    A page of another site can send a form or plain text without being asked beforehand.
    """
    size, parts = 0, []
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise MidcallError(f"A request may have {most} bytes at most")
        parts.append(part)
    if size and not is_media_type(request.headers.get("content-type", JSON), JSON):
        raise NotJson("Content-Type must be application/json")
    return b"".join(parts)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with a value."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")

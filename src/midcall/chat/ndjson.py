"""`POST /chat`: a run as lines of JSON, which a reader that lost its line takes up again after the last one
it has.

Beside it stand the pages that a web client needs of a chat: what it is, and the conversations of a person.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from midcall.chat.conversation import BadRequest, StopRequest, read_json, read_request
from midcall.chat.engine import ChatEngine, NoConversation, TooManyConversations, TurnRunning
from midcall.chat.runs import RunReader
from midcall.errors import Conflict, JournalError, MidcallError, TooManyCalls
from midcall.limits import check_keys
from midcall.principal import Principal
from midcall.transports.http import AppPart
from midcall.transports.security import JSON, is_media_type

MAX_BODY = 4 * 1024 * 1024

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
        body = await read_body(request)
        if not body and _session_id(request):
            return await self._attach(request)
        return _streamed(await self._engine.post(read_request(body), principal_of(request)), 0)

    async def _attach(self, request: Request) -> Response:
        run = await self._engine.attach(_session_id(request), principal_of(request))
        last = request.headers.get("x-last-lsn") or request.query_params.get("lastLsn") or "0"
        if not last.isdecimal() or len(last) > MAX_DIGITS:
            raise BadRequest("The last LSN is a number")
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
                "model": {"name": engine.model.name, "scripted": engine.model.scripted},
                "hub": {"name": engine.hub.name, "description": engine.hub.description},
                "suggestions": engine.suggestions,
            }
        )

    async def _list(self, request: Request) -> Response:
        return json_response({"conversations": await self._engine.conversations(principal_of(request))})

    async def _get(self, request: Request) -> Response:
        found, run = await self._engine.conversation(_conversation_id(request), principal_of(request))
        return json_response(
            {
                "id": found.id,
                "title": found.title,
                "messages": found.messages,
                "pending": found.questions,
                "run": run,
                "cutOff": run is None and found.failure is not None,
                "error": found.failure,
            }
        )

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


async def read_body(request: Request) -> bytes:
    """The body of a request. Raises `MidcallError` if it is too large, or said not to be JSON.

    A page of another site can send a form or plain text without being asked beforehand.
    """
    size, parts = 0, []
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise MidcallError(f"A request may have {MAX_BODY} bytes at most")
        parts.append(part)
    if size and not is_media_type(request.headers.get("content-type", JSON), JSON):
        raise NotJson("Content-Type must be application/json")
    return b"".join(parts)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with a value."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")

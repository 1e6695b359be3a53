"""Admin: what an administrator does with calls, over HTTP (see `journal.admin`).

    GET  /admin/calls?status=waiting&name=...&principal=...&after=...&limit=...
    GET  /admin/calls/{id}?values=true
    POST /admin/calls/{id}/answers   {"answers": {key: answer}}
    POST /admin/calls/{id}/abort     {"reason": "..."}
    GET  /admin/calls/{id}/export    one call, for an import
    GET  /admin/export?status=...    all of them, one a line
    POST /admin/import               lines of an export

Errors are `{"error": {"code", "message", "data"}}`. Who may come here is not decided here (see
`admin_access`); only whether who imports a call may call its method. Keys are not taken in.
"""

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router, request_response
from starlette.types import ASGIApp

from midcall.errors import (
    BadExport,
    BadPage,
    JournalError,
    MidcallError,
    NotAllowed,
    NotWaiting,
    TooLong,
    TooManyCalls,
    UnknownCall,
    UnknownQuestion,
    WrongAnswer,
)
from midcall.journal.admin import STATUSES, Admin
from midcall.journal.contract import Status
from midcall.jsonrpc import Lines
from midcall.limits import Key, check_keys
from midcall.mcp import CALL_KINDS, McpExtension
from midcall.plexus.protocol import MAX_MESSAGE
from midcall.transports.admin_access import error_body, name_of
from midcall.transports.security import JSON, is_media_type

log = logging.getLogger("midcall.admin")

LINES = "application/x-ndjson"

IMPORT = "midcall:import"
"""The scope that an import needs: who brings calls decides what is run, and in whose name."""

_HTTP: dict[type[MidcallError], int] = {
    TooLong: 400,
    BadPage: 400,
    UnknownCall: 404,
    NotWaiting: 409,
    UnknownQuestion: 422,
    WrongAnswer: 422,
    TooManyCalls: 503,
    NotAllowed: 403,
    JournalError: 503,
}


class BadAdminRequest(Exception):
    """A request that cannot be understood."""


class _Answers(msgspec.Struct, forbid_unknown_fields=True):
    answers: dict[Key, Any]


class _Abort(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = "An administrator aborted the call"


_Handler = Callable[[Request], Awaitable[Response]]


def admin_pages(extension: McpExtension) -> Router:
    """The application below `/admin`."""
    admin = _Admin(extension)
    return Router(
        [
            Route("/calls", _guarded(admin.list), methods=["GET"]),
            Route("/calls/{id}", _guarded(admin.show), methods=["GET"]),
            Route("/calls/{id}/answers", _guarded(admin.answer), methods=["POST"]),
            Route("/calls/{id}/abort", _guarded(admin.abort), methods=["POST"]),
            Route("/calls/{id}/export", _guarded(admin.export), methods=["GET"]),
            Route("/export", _guarded(admin.export_all), methods=["GET"]),
        ]
    )


def import_page(extension: McpExtension) -> ASGIApp:
    """The application at `/admin/import`."""
    return request_response(_guarded(_Admin(extension).restore))


def _guarded(handler: _Handler) -> _Handler:
    @functools.wraps(handler)
    async def guarded(request: Request) -> Response:
        try:
            check_keys([*request.path_params.values(), *request.query_params.values()])
            return await handler(request)
        except BadAdminRequest as error:
            return _json(error_body("bad_request", str(error)), 400)
        except MidcallError as error:
            status = next((s for kind, s in _HTTP.items() if isinstance(error, kind)), 500)
            return _json(error_body(error.code, str(error), error.data), status)
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("failed inside midcall", extra={"call": request.path_params.get("id")})
            return _json(error_body("internal_error", "Internal error"), 500)

    return guarded


class _Admin:
    def __init__(self, extension: McpExtension) -> None:
        self._extension = extension

    @functools.cached_property
    def _admin(self) -> Admin:
        durable = self._extension.resumption.durable
        return Admin(durable.journal, CALL_KINDS, durable=durable, calls=self._extension.hub.calls)

    async def list(self, request: Request) -> Response:
        asked = request.query_params
        limit = asked.get("limit", "100")
        if not limit.isdecimal() or not 0 < len(limit) < 9:
            raise BadAdminRequest("limit is a number")
        found = await self._admin.list(
            status=_statuses(request),
            name=asked.get("name"),
            principal=asked.get("principal"),
            after=asked.get("after"),
            limit=int(limit),
        )
        return _json(found)

    async def show(self, request: Request) -> Response:
        values = request.query_params.get("values", "") in ("1", "true", "yes")
        if values:
            _note(request, "answers and results are shown")
        return _json(await self._admin.show(request.path_params["id"], values=values))

    async def answer(self, request: Request) -> Response:
        given = await _read(request, _Answers)
        found = await self._admin.answer(request.path_params["id"], given.answers)
        _note(request, "answered")
        return _json(found, 202 if found["status"] == "running" else 200)

    async def abort(self, request: Request) -> Response:
        given = await _read(request, _Abort)
        found = await self._admin.abort(request.path_params["id"], given.reason)
        _note(request, "aborted")
        return _json(found, 202 if found["status"] == "running" else 200)

    async def export(self, request: Request) -> Response:
        exported = await self._admin.export(request.path_params["id"])
        _note(request, "exported")
        return Response(_line(exported), media_type=LINES)

    async def export_all(self, request: Request) -> Response:
        exported = self._admin.export_all(_statuses(request))
        first = await anext(exported, None)  # an error has a status of its own, as long as nothing is sent
        _note(request, "all calls are exported")

        async def lines() -> AsyncIterator[bytes]:
            if first is not None:
                yield _line(first)
            async for one in exported:
                yield _line(one)

        return StreamingResponse(lines(), media_type=LINES)

    async def restore(self, request: Request) -> Response:
        taken = known = 0
        async for line in _lines(request):
            try:
                exported = msgspec.json.decode(line, type=dict[str, Any])
                is_new = await self._admin.restore(exported, request.scope.get("midcall.principal"))
            except (ValueError, BadExport, RecursionError) as error:  # of the decoder too
                text = f"Line {taken + known + 1} is no exported call: {error}. Those before it are taken in"
                raise BadAdminRequest(text) from None
            taken, known = (taken + 1, known) if is_new else (taken, known + 1)
        _note(request, f"{taken} calls are imported")
        return _json({"imported": taken, "known": known})


def _statuses(request: Request) -> list[Status]:
    asked = [one for text in request.query_params.getlist("status") for one in text.split(",") if one]
    found = [status for status in STATUSES if status in asked]
    if len(found) < len(set(asked)):
        raise BadAdminRequest(f"A status is one of {', '.join(STATUSES)}")
    return found


async def _read(request: Request, kind: Any) -> Any:
    """The body of a request. It must say that it is JSON, as a form of a web page cannot."""
    if not is_media_type(request.headers.get("content-type"), JSON):
        raise BadAdminRequest("Content-Type must be application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_MESSAGE:
            raise BadAdminRequest(f"More than {MAX_MESSAGE} bytes")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (ValueError, RecursionError) as error:
        raise BadAdminRequest(str(error) or "nested too deeply") from None


async def _lines(request: Request) -> AsyncIterator[bytes]:
    if not is_media_type(request.headers.get("content-type"), LINES):
        raise BadAdminRequest(f"Content-Type must be {LINES}")
    lines = Lines(4 * MAX_MESSAGE)
    async for part in request.stream():
        for line in lines.feed(part):
            if line is None:
                raise BadAdminRequest(f"A line of more than {4 * MAX_MESSAGE} bytes")
            if line.strip():
                yield line
    for line in lines.end():
        if line is not None and line.strip():
            yield line


def _note(request: Request, what: str) -> None:
    """Write down who did what; never what was answered."""
    who = name_of(request.scope.get("midcall.principal"))
    log.info("%s by %s", what, who, extra={"call": request.path_params.get("id")})


def _line(exported: dict[str, Any]) -> bytes:
    return msgspec.json.encode(exported) + b"\n"


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")

"""What an administrator does with calls over HTTP (see `journal.admin`).

    GET  /admin/calls?status=waiting&name=...&principal=...&after=...&limit=...
    GET  /admin/calls/{id}?values=true
    POST /admin/calls/{id}/answers   {"answers": {key: answer}}
    POST /admin/calls/{id}/abort     {"reason": "..."}
    POST /admin/calls/{id}/fork      {"at": 3}: a new call that has done the first three entries of this one
    GET  /admin/calls/{id}/export    one call, for an import
    GET  /admin/export?status=...    all of them, one a line
    POST /admin/import               lines of an export

Errors are `{"error": {"code", "message", "data"}}`. Pages below `/admin` are `Restricted`; who imports
or forks a call must also be allowed to call its method. Keys are not taken in.
"""

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from midcall.errors import (
    BadExport,
    BadFork,
    BadPage,
    JournalError,
    MethodNotFound,
    MidcallError,
    NotAllowed,
    NotWaiting,
    RateLimited,
    TooLong,
    TooManyCalls,
    UnknownCall,
    UnknownLink,
    UnknownQuestion,
    WrongAnswer,
)
from midcall.journal.admin import STATUSES, Admin
from midcall.journal.contract import Status
from midcall.jsonrpc import LineSplitter
from midcall.limits import Key, check_keys
from midcall.mcp import CALL_KINDS, McpExtension
from midcall.plexus.protocol import MAX_MESSAGE
from midcall.principal import Principal
from midcall.transports.auth import Authenticator, Unauthorized, authorization_of
from midcall.transports.security import JSON, is_loopback, is_media_type

log = logging.getLogger("midcall.admin")

LINES = "application/x-ndjson"

SCOPE = "midcall:admin"
"""The scope that an administrator needs."""

IMPORT = "midcall:import"
"""The scope that an import needs: who brings calls decides what is run, and in whose name."""

_PASSED_ON = frozenset((b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"))


class BadAdminRequest(MidcallError):
    """A request that cannot be understood."""

    code = "bad_request"


_HTTP: dict[type[MidcallError], int] = {
    BadAdminRequest: 400,
    TooLong: 400,
    BadPage: 400,
    BadFork: 400,
    MethodNotFound: 409,
    UnknownCall: 404,
    UnknownLink: 404,
    NotWaiting: 409,
    UnknownQuestion: 422,
    WrongAnswer: 422,
    TooManyCalls: 503,
    RateLimited: 429,
    NotAllowed: 403,
    JournalError: 503,
}


class CallAnswers(msgspec.Struct, forbid_unknown_fields=True):
    """Answers to the open questions of a call, by their keys."""

    answers: dict[Key, Any]


class _Fork(msgspec.Struct, forbid_unknown_fields=True):
    at: int | None = None


class _AdminAbort(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = "An administrator aborted the call"


_Handler = Callable[[Request], Awaitable[Response]]


def admin_pages(extension: McpExtension) -> Router:
    """The application below `/admin`."""
    admin = _AdminPages(extension)
    return Router(
        [
            Route("/calls", guarded(admin.list), methods=["GET"]),
            Route("/calls/{id}", guarded(admin.show), methods=["GET"]),
            Route("/calls/{id}/answers", guarded(admin.answer), methods=["POST"]),
            Route("/calls/{id}/abort", guarded(admin.abort), methods=["POST"]),
            Route("/calls/{id}/fork", guarded(admin.fork), methods=["POST"]),
            Route("/calls/{id}/export", guarded(admin.export), methods=["GET"]),
            Route("/export", guarded(admin.export_all), methods=["GET"]),
        ]
    )


def import_page(extension: McpExtension) -> ASGIApp:
    """The application at `/admin/import`."""
    return request_response(guarded(_AdminPages(extension).restore))


def guarded(handler: _Handler) -> _Handler:
    """A page that answers with what its handler raises."""

    @functools.wraps(handler)
    async def guarding(request: Request) -> Response:
        try:
            check_keys([*request.path_params.values(), *request.query_params.values()])
            return await handler(request)
        except MidcallError as error:
            return json_reply(error_body(error.code, str(error), error.data), status_of(error, 500))
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("failed inside midcall", extra={"call": request.path_params.get("id")})
            return json_reply(error_body("internal_error", "Internal error"), 500)

    return guarding


def status_of(error: MidcallError, otherwise: int) -> int:
    """The status of HTTP with which an error is told."""
    return next((status for kind, status in _HTTP.items() if isinstance(error, kind)), otherwise)


class _AdminPages:
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
            raise BadAdminRequest("limit must be a number")
        found = await self._admin.list(
            status=statuses_in(request),
            name=asked.get("name"),
            principal=asked.get("principal"),
            after=asked.get("after"),
            limit=int(limit),
        )
        return json_reply(found)

    async def show(self, request: Request) -> Response:
        values = request.query_params.get("values", "") in ("1", "true", "yes")
        if values:
            note(request, "answers and results are shown")
        return json_reply(await self._admin.show(request.path_params["id"], values=values))

    async def answer(self, request: Request) -> Response:
        given = await read_json(request, CallAnswers)
        found = await self._admin.answer(request.path_params["id"], given.answers)
        note(request, "answered")
        return json_reply(found, 202 if found["status"] == "running" else 200)

    async def abort(self, request: Request) -> Response:
        given = await read_json(request, _AdminAbort)
        found = await self._admin.abort(request.path_params["id"], given.reason)
        note(request, "aborted")
        return json_reply(found, 202 if found["status"] == "running" else 200)

    async def fork(self, request: Request) -> Response:
        found = await fork_call(self._admin, request)
        note(request, f"forked as {found['id']}")
        return json_reply(found, 202 if found["status"] == "running" else 200)

    async def export(self, request: Request) -> Response:
        exported = await self._admin.export(request.path_params["id"])
        note(request, "exported")
        return Response(_line(exported), media_type=LINES)

    async def export_all(self, request: Request) -> Response:
        exported = self._admin.export_all(statuses_in(request))
        first = await anext(exported, None)  # an error has a status of its own, as long as nothing is sent
        note(request, "all calls are exported")

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
                text = (
                    f"Line {taken + known + 1} is not an exported call: {error}. Earlier lines are imported"
                )
                raise BadAdminRequest(text) from None
            taken, known = (taken + 1, known) if is_new else (taken, known + 1)
        note(request, f"{taken} calls are imported")
        return json_reply({"imported": taken, "known": known})


async def fork_call(admin: Admin, request: Request, *, by_caller: bool = False) -> dict[str, Any]:
    """Fork a call, as a request says; gives the new one."""
    given = await read_json(request, _Fork)
    principal = request.scope.get("midcall.principal")
    return await admin.fork(request.path_params["id"], given.at, principal, by_caller=by_caller)


def statuses_in(request: Request) -> list[Status]:
    """The statuses that a request asks for. Raises `BadAdminRequest`."""
    asked = [one for text in request.query_params.getlist("status") for one in text.split(",") if one]
    found = [status for status in STATUSES if status in asked]
    if len(found) < len(set(asked)):
        raise BadAdminRequest(f"A status must be one of {', '.join(STATUSES)}")
    return found


async def read_json(request: Request, kind: Any, limit: int = MAX_MESSAGE) -> Any:
    """The body of a request. It must say that it is JSON, as a form of a web page cannot."""
    if not is_media_type(request.headers.get("content-type"), JSON):
        raise BadAdminRequest("Content-Type must be application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise BadAdminRequest(f"More than {limit} bytes")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (ValueError, RecursionError) as error:
        raise BadAdminRequest(str(error) or "nested too deeply") from None


async def _lines(request: Request) -> AsyncIterator[bytes]:
    if not is_media_type(request.headers.get("content-type"), LINES):
        raise BadAdminRequest(f"Content-Type must be {LINES}")
    lines = LineSplitter(4 * MAX_MESSAGE)
    async for part in request.stream():
        for line in lines.feed(part):
            if line is None:
                raise BadAdminRequest(f"A line of more than {4 * MAX_MESSAGE} bytes")
            if line.strip():
                yield line
    for line in lines.end():
        if line is not None and line.strip():
            yield line


def note(request: Request, what: str, call_id: str | None = None) -> None:
    """Write down who did what; never what was answered."""
    who = name_of(request.scope.get("midcall.principal"))
    log.info("%s by %s", what, who, extra={"call": call_id or request.path_params.get("id")})


def _line(exported: dict[str, Any]) -> bytes:
    return msgspec.json.encode(exported) + b"\n"


# --- who may, and what is answered ----------------------------------------------------------


class Restricted:
    """An application for those who have a scope; without `auth`, for programs of this machine.

    A request counts as one of theirs only if it cannot be anything else; others find nothing (404). The
    application finds the `Principal` in `scope["midcall.principal"]`; that of such a program is nothing.
    """

    def __init__(self, app: ASGIApp, auth: Authenticator | None, *, scope: str = SCOPE) -> None:
        self._app = app
        self._auth = auth
        self._scope = scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # there is none here
            return
        if self._auth is None:
            if is_local(scope):
                await self._app(scope, receive, send)
            else:
                await send_json(send, 404, error_body("not_found", "Not found"))
            return
        try:
            principal = await self._auth.authenticate(authorization_of(scope["headers"]))
            if self._scope not in principal.scopes:
                raise self._auth.refusal([self._scope])
        except Unauthorized as refusal:
            code = {403: "insufficient_scope", 503: "unavailable"}.get(refusal.status, "unauthorized")
            challenge = refusal.www_authenticate
            headers = [] if challenge is None else [(b"www-authenticate", challenge.encode("latin-1"))]
            await send_json(send, refusal.status, error_body(code, refusal.message), headers)
            return
        await self._app({**scope, "midcall.principal": principal}, receive, send)


def name_of(principal: Principal | None) -> str:
    """What the log calls an administrator."""
    return "somebody at this machine" if principal is None else principal.name


def is_local(scope: Scope) -> bool:
    """Whether a request comes from a program of this machine: not by a proxy, and from no foreign page."""
    peers = (scope.get("client"), scope.get("server"))
    if not all(peer and is_loopback(str(peer[0])) for peer in peers):
        return False
    for name, value in scope["headers"]:
        if name in _PASSED_ON:
            return False
        if name in (b"host", b"origin") and not _is_loopback_name(value.decode("latin-1")):
            return False
    return True


def _is_loopback_name(text: str) -> bool:
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


def error_body(code: str, message: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is told of an error."""
    return {"error": {"code": code, "message": message, **({"data": data} if data else {})}}


async def send_json(
    send: Send, status: int, body: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Answer a request with JSON."""
    encoded = msgspec.json.encode(body)
    described = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(encoded)),
        *(headers or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": described})
    await send({"type": "http.response.body", "body": encoded})


def json_reply(body: dict[str, Any], status: int = 200) -> Response:
    """A response of JSON that nobody keeps."""
    return Response(
        msgspec.json.encode(body),
        status,
        media_type="application/json",
        headers={"cache-control": "no-store", "vary": "Accept"},
    )

"""What is done with calls over HTTP: by an administrator (see `journal.admin`), and by a caller with its own.

    GET  /admin/calls?status=waiting&name=...&principal=...&after=...&limit=...
    GET  /admin/calls/{id}?values=true
    POST /admin/calls/{id}/answers   {"answers": {key: answer}}
    POST /admin/calls/{id}/abort     {"reason": "..."}
    GET  /admin/calls/{id}/export    one call, for an import
    GET  /admin/export?status=...    all of them, one a line
    POST /admin/import               lines of an export

    GET  /calls                      {"calls": [{"id", "method", "status", "age", "waiting", "questions"}]}
    POST /calls/{id}/abort           {"reason": "..."}

Errors are `{"error": {"code", "message", "data"}}`. Pages below `/admin` are `Restricted`; who imports a call
must also be allowed to call its method. Keys are not taken in. The others are for the web client: a caller
sees and ends its own calls only; to it, those of others do not exist. Without authentication all callers are
one.
"""

import functools
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from midcall.call import Call
from midcall.call import Status as CallStatus
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
from midcall.journal.admin import STATUSES, Admin, is_journaled, open_questions
from midcall.journal.contract import CallRecord, Status
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


class _AdminAnswers(msgspec.Struct, forbid_unknown_fields=True):
    answers: dict[Key, Any]


class _AdminAbort(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = "An administrator aborted the call"


_Handler = Callable[[Request], Awaitable[Response]]


def admin_pages(extension: McpExtension) -> Router:
    """The application below `/admin`."""
    admin = _AdminPages(extension)
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
    return request_response(_guarded(_AdminPages(extension).restore))


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
        given = await _read(request, _AdminAnswers)
        found = await self._admin.answer(request.path_params["id"], given.answers)
        _note(request, "answered")
        return _json(found, 202 if found["status"] == "running" else 200)

    async def abort(self, request: Request) -> Response:
        given = await _read(request, _AdminAbort)
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


async def _read(request: Request, kind: Any, limit: int = MAX_MESSAGE) -> Any:
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


def _note(request: Request, what: str) -> None:
    """Write down who did what; never what was answered."""
    who = name_of(request.scope.get("midcall.principal"))
    log.info("%s by %s", what, who, extra={"call": request.path_params.get("id")})


def _line(exported: dict[str, Any]) -> bytes:
    return msgspec.json.encode(exported) + b"\n"


# --- a caller with its own calls -------------------------------------------------------------

MOST = 200
"""How many calls are shown; of those in the journal, the newest."""

PAGE = 500
MOST_READ = 5000
"""How many calls of the journal are looked through for those of callers without a name."""

MOST_BODY = 10_000

_ACTIVE: tuple[Status, ...] = ("running", "waiting", "diverged")
_WAITING = (CallStatus.AWAITING_ANSWER, CallStatus.AWAITING_SAMPLE)


class _OwnAbort(msgspec.Struct):
    reason: str = "The caller aborted the call"


class CallsPage:
    """The calls of whoever asks."""

    def __init__(self, extension: McpExtension) -> None:
        self._extension = extension

    @functools.cached_property
    def _admin(self) -> Admin:
        durable = self._extension.resumption.durable
        return Admin(
            durable.journal, CALL_KINDS, durable=durable, calls=self._extension.hub.calls, patience=2.0
        )

    def routes(self) -> list[Route]:
        return [
            Route("/calls", _guarded(self._list), methods=["GET"]),
            Route("/calls/{id}/abort", _guarded(self._abort), methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        mine = _name(request)
        calls = self._extension.hub.calls
        here = [_active(call) for call in calls if call.principal == mine and not is_journaled(call)]
        kept = [_kept(record) for record in await self._kept(mine)]
        shown = sorted([*here, *kept], key=lambda call: call["age"])
        return _json({"calls": shown[:MOST]})

    async def _kept(self, mine: str | None) -> list[CallRecord]:
        """Calls in the journal. It can be asked for those of a name, but not for those of nobody."""
        await self._extension.resumption.durable.open()
        journal, found = self._admin.journal, list[CallRecord]()
        after: str | None = None
        for read in itertools.count(PAGE, PAGE):
            page = await journal.list(status=_ACTIVE, principal=mine, after=after, limit=PAGE)
            found += [record for record in page.calls if record.principal == mine]
            after = page.next
            if after is None or len(found) >= MOST or read >= MOST_READ:
                break
        return found

    async def _abort(self, request: Request) -> Response:
        id = request.path_params["id"]
        given = await _read(request, _OwnAbort, MOST_BODY)
        if not await self._is_mine(id, _name(request)):
            raise UnknownCall(id)
        await self._admin.abort(id, given.reason)
        return _json({"aborted": True})

    async def _is_mine(self, id: str, mine: str | None) -> bool:
        here = self._extension.hub.calls.get(id)
        if here is not None:
            return here.principal == mine
        await self._extension.resumption.durable.open()
        found = await self._admin.journal.load(id)
        return found is not None and found[0].principal == mine


def _active(call: Call) -> dict[str, Any]:
    """A call that only this process knows."""
    info = call.info()
    return {
        "id": info.id,
        "method": info.method,
        "status": info.status,
        "age": info.age,
        "waiting": info.status in _WAITING,
        "questions": [
            {"request_id": q.request_id, "message": q.message, "age": q.age} for q in info.questions
        ],
    }


def _kept(record: CallRecord) -> dict[str, Any]:
    """A call in the journal. What it asks, it has asked since it last changed."""
    now = time.time()
    asked = max(0.0, now - (record.updated or record.created))
    return {
        "id": record.id,
        "method": record.name,
        "status": record.status,
        "age": max(0.0, now - record.created),
        "waiting": record.status == "waiting",
        "questions": [
            {"key": key, "message": one.question.message, "age": asked}
            for key, one in open_questions(record).items()
        ],
    }


def _name(request: Request) -> str | None:
    principal = request.scope.get("midcall.principal")
    return None if principal is None else principal.name


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


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(body),
        status,
        media_type="application/json",
        headers={"cache-control": "no-store", "vary": "Accept"},
    )

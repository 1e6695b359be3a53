"""Calls page: what runs and waits for whoever asks, and the way to end it, for the web client.

    GET  /calls              {"calls": [{"id", "method", "status", "age", "waiting", "questions"}]}
    POST /calls/{id}/abort   {"reason": "..."}

Unlike an administrator (see `admin`), a caller sees and ends its own calls only; to it, those of others do
not exist. Without authentication all callers are one.
"""

import functools
import itertools
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from midcall.call import Call
from midcall.call import Status as CallStatus
from midcall.errors import JournalError, MidcallError, NotWaiting, TooLong, UnknownCall
from midcall.journal.admin import Admin, is_journaled, open_questions
from midcall.journal.contract import CallRecord, Status
from midcall.limits import check_keys
from midcall.mcp import CALL_KINDS, McpExtension
from midcall.transports.admin_access import error_body
from midcall.transports.security import JSON, is_media_type

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
            Route("/calls", self._list, methods=["GET"]),
            Route("/calls/{id}/abort", self._abort, methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        mine = _name(request)
        calls = self._extension.hub.calls
        here = [_active(call) for call in calls if call.principal == mine and not is_journaled(call)]
        try:
            kept = [_kept(record) for record in await self._kept(mine)]
        except MidcallError as error:
            return _refused(error)
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
        try:
            check_keys([id])
            given = await _read_abort(request)
            if not await self._is_mine(id, _name(request)):
                raise UnknownCall(id)
            await self._admin.abort(id, given.reason)
        except _BadRequest as error:
            return _json(error_body("bad_request", str(error)), 400)
        except MidcallError as error:
            return _refused(error)
        return _json({"aborted": True})

    async def _is_mine(self, id: str, mine: str | None) -> bool:
        here = self._extension.hub.calls.get(id)
        if here is not None:
            return here.principal == mine
        await self._extension.resumption.durable.open()
        found = await self._admin.journal.load(id)
        return found is not None and found[0].principal == mine


class _BadRequest(Exception):
    """A request that cannot be understood."""


async def _read_abort(request: Request) -> _OwnAbort:
    """The body of a request. It must say that it is JSON, as a form of a foreign page cannot."""
    if not is_media_type(request.headers.get("content-type"), JSON):
        raise _BadRequest("Content-Type must be application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise _BadRequest(f"More than {MOST_BODY} bytes")
    try:
        return msgspec.json.decode(body or b"{}", type=_OwnAbort)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _BadRequest(str(error)) from None


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


def _refused(error: MidcallError) -> Response:
    kinds = {TooLong: 400, UnknownCall: 404, NotWaiting: 409, JournalError: 503}
    status = next((status for kind, status in kinds.items() if isinstance(error, kind)), 500)
    return _json(error_body(error.code, str(error), error.data), status)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(body),
        status,
        media_type="application/json",
        headers={"cache-control": "no-store", "vary": "Accept"},
    )

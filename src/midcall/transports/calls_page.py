"""What the web client shows of calls, and of questions: to a caller its own, to others what they are asked.

    GET  /calls?status=...&name=...&which=...&after=...
                                     {"calls": [{"id", "method", "status", "age", "waiting", "questions"}],
                                     "next", "admin"}; without a status, those that run or wait; `which` is
                                     "mine", "asked" (what others' calls ask of me), "all" (of everybody), or
                                     without it mine and what is asked of me; `after` is the `next` of the
                                     page before
    GET  /calls/{id}                 all that is known of one, as for an administrator with `values=true`, and
                                     "returns", the schema of what its method gives
    POST /calls/{id}/answers         {"answers": {key: answer}}
    POST /calls/{id}/abort           {"reason": "..."}
    POST /calls/{id}/fork            {"at": 3}

    GET  /q/{token}                  one open question: {"method", "key", "question", "message", ...}, and
                                     the "component" that a plugin of the chat shows it with
    POST /q/{token}                  {"answer": answer}, or {"rendered": [...]}, what a person answered in the
                                     components so far; perhaps the next "component" is what comes back

A caller sees, ends and forks its own calls only, and answers what they ask it; of those of others, it sees
and answers what is for it, and nothing else. A fork that it makes asks others anew. Who has the scope
`midcall:admin` sees, answers, ends and forks the calls of everybody, as at `/admin`. Without authentication
all callers are one. A link (`/q/...`, see `journal.links`) works once, for whoever is meant; looking at it
does not use it. Errors are as in `admin`.
"""

import functools
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from midcall.call import Call
from midcall.call import Status as CallStatus
from midcall.errors import BadPage, NotAllowed, UnknownCall
from midcall.journal.admin import ASKING, Admin, is_journaled, open_questions
from midcall.journal.contract import ENDED, CallRecord, Page, Status
from midcall.journal.kept_questions import method_of
from midcall.journal.state import Waiting, is_meant_for, kind_of, timestamp
from midcall.mcp import CALL_KINDS, McpExtension
from midcall.mcp.resume import CHAT
from midcall.principal import Principal
from midcall.questions import PERSON_KINDS
from midcall.transports.admin import (
    SCOPE,
    BadAdminRequest,
    CallAnswers,
    fork_call,
    guarded,
    json_reply,
    note,
    read_json,
    statuses_in,
)

MOST = 200
"""How many calls are shown at once; of those in the journal, the newest."""

MOST_READ = 5000
"""How many calls of the journal are looked through for those of callers without a name."""

MOST_BODY = 10_000

_CONVERSATION = re.compile(r"(.+?):\d+\.\d+:", re.DOTALL)
"""The conversation in the idempotency key of a call that a model has made (see `Conversation.key_of`)."""

Which: TypeAlias = Literal["mine", "asked", "all"]
WHICH: tuple[Which, ...] = get_args(Which)

_BESIDE, _OVER = "|", ""
"""Between the two places where a page of two lists begins, and instead of one for a list that is over."""

_ACTIVE: tuple[Status, ...] = ("running", "waiting", "diverged")
_WAITING = (CallStatus.AWAITING_ANSWER, CallStatus.AWAITING_SAMPLE)


class _OwnAbort(msgspec.Struct):
    reason: str = "The caller aborted the call"


class _LinkedAnswer(msgspec.Struct, forbid_unknown_fields=True):
    answer: Any = msgspec.UNSET
    rendered: list[Any] = []


class CallsPage:
    """The calls of whoever asks, and the questions for them."""

    def __init__(self, extension: McpExtension) -> None:
        self._extension = extension

    @functools.cached_property
    def _admin(self) -> Admin:
        durable = self._extension.resumption.durable
        return Admin(
            durable.journal, CALL_KINDS, durable=durable, calls=self._extension.hub.calls, patience=2.0
        )

    def pages(self) -> list[Route]:
        """What a browser that goes there is to see as a page."""
        return [
            Route("/calls", guarded(self._list), methods=["GET"]),
            Route("/q/{token}", guarded(self._look), methods=["GET"]),
        ]

    def routes(self) -> list[Route]:
        """What only the page itself asks for."""
        return [
            Route("/calls/{id}", guarded(self._show), methods=["GET"]),
            Route("/calls/{id}/answers", guarded(self._answer), methods=["POST"]),
            Route("/calls/{id}/abort", guarded(self._abort), methods=["POST"]),
            Route("/calls/{id}/fork", guarded(self._fork), methods=["POST"]),
            Route("/q/{token}", guarded(self._answer_linked), methods=["POST"]),
        ]

    # --- calls -------------------------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        who, name = _principal(request), request.query_params.get("name")
        which, after = _which(request), request.query_params.get("after")
        statuses = statuses_in(request) or _ACTIVE
        own = functools.partial(self._kept, who, statuses, name, everybody=which == "all")
        asked = functools.partial(self._addressed, who, statuses, name)
        lists = [asked] if which == "asked" else [own] if which or who is None else [own, asked]
        starts = [None] * len(lists) if after is None else after.split(_BESIDE)
        if len(starts) != len(lists):
            raise BadPage(str(after))
        here, found, ends = list[Call](), list[CallRecord](), list[str]()
        if which != "asked" and after is None:
            here = [call for call in self._extension.hub.calls if not is_journaled(call)]
        for listed, start in zip(lists, starts, strict=True):
            more, end = ([], None) if start == _OVER else await listed(start)
            found += more
            ends.append(end or _OVER)
        next_page = _BESIDE.join(ends) if any(ends) else None
        kept = {record.id for record in found}  # also since `here` was looked at
        shown = [
            _active(call, who)
            for call in here
            if call.id not in kept
            and name in (None, call.name)
            and (which == "all" or call.principal == _name(request))
        ]
        shown = [call for call in shown if _is_wanted(call, statuses)]
        shown += [self._shown(record, who) for record in found]
        shown.sort(key=lambda call: float(call["age"]))
        return json_reply({"calls": shown, "next": next_page, "admin": _is_admin(request)})

    async def _kept(
        self,
        who: Principal | None,
        status: Sequence[Status],
        name: str | None,
        after: str | None = None,
        *,
        everybody: bool,
    ) -> tuple[list[CallRecord], str | None]:
        """Calls in the journal. It can be asked for those of a name, but not for those of nobody."""
        mine = None if who is None or everybody else who.name
        listed = functools.partial(self._admin.journal.list, status=status, principal=mine, name=name)
        return await self._some(listed, lambda record: everybody or record.principal == mine, after)

    async def _addressed(
        self, who: Principal | None, status: Sequence[Status], name: str | None, after: str | None = None
    ) -> tuple[list[CallRecord], str | None]:
        """Calls of others that ask this principal something, and where the next ones begin."""
        asking = [one for one in status if one in ASKING]
        if who is None or not asking:
            return [], None

        def is_wanted(record: CallRecord) -> bool:
            is_other = record.principal != who.name and name in (None, method_of(record))
            return is_other and _is_asked(record, who)

        listed = functools.partial(self._admin.journal.list, status=asking, addressed=True)
        return await self._some(listed, is_wanted, after)

    async def _some(
        self,
        listed: Callable[..., Awaitable[Page]],
        wanted: Callable[[CallRecord], bool],
        after: str | None = None,
    ) -> tuple[list[CallRecord], str | None]:
        """Those that are wanted, `MOST` or a few more, and where the next ones begin."""
        await self._extension.resumption.durable.open()
        found = list[CallRecord]()
        for read in itertools.count(MOST, MOST):
            page = await listed(after=after, limit=MOST)
            found += [record for record in page.calls if wanted(record)]
            after = page.next
            if after is None or len(found) >= MOST or read >= MOST_READ:
                break
        return found, after

    async def _show(self, request: Request) -> Response:
        shown = await self._admin.show(await self._mine(request), values=True)
        found = self._extension.hub.find(shown["method"])
        return json_reply(
            {**shown, "returns": None if found is None else found.method.schema().get("returns")}
        )

    async def _answer(self, request: Request) -> Response:
        given = await read_json(request, CallAnswers)
        who = _principal(request)
        id = await self._mine(request, or_asked=True)
        found = await self._admin.answer(
            id,
            given.answers,
            lambda record, one: _is_admin(request) or is_meant_for(record, one, who),
        )
        note(request, "answered")
        return json_reply({"status": found["status"]})

    async def _abort(self, request: Request) -> Response:
        given = await read_json(request, _OwnAbort, MOST_BODY)
        await self._admin.abort(await self._mine(request), given.reason)
        return json_reply({"aborted": True})

    async def _fork(self, request: Request) -> Response:
        await self._mine(request)
        by_caller = _principal(request) is not None and not _is_admin(request)
        return json_reply(await fork_call(self._admin, request, by_caller=by_caller))

    async def _mine(self, request: Request, *, or_asked: bool = False) -> str:
        """The id of a call of whoever asks, or of one that asks them something. Raises `UnknownCall`.

        To an administrator all calls are open.
        """
        id: str = request.path_params["id"]
        call: Call | CallRecord | None = self._extension.hub.calls.get(id)
        if call is None:
            await self._extension.resumption.durable.open()
            found = await self._admin.journal.load(id)
            call = None if found is None else found[0]
        asked = or_asked and isinstance(call, CallRecord) and _is_asked(call, _principal(request))
        mine = call is not None and call.principal == _name(request)
        if call is None or not (mine or asked or _is_admin(request)):
            raise UnknownCall(id)
        return id

    def _shown(self, record: CallRecord, who: Principal | None) -> dict[str, Any]:
        """A call in the journal, and what it asks; of that of another caller, only what is for this one."""
        now = time.time()
        own = who is None or record.principal == who.name
        everything = own or _has_scope(who)
        asked = open_questions(record).items()
        shown = {
            "id": record.id,
            "method": record.name if own else method_of(record),
            "status": record.status,
            "caller": record.principal,
            "own": own,
            "age": max(0.0, now - record.created),
            "waiting": record.status == "waiting",
            "questions": [
                self._question(record, key, one, who)
                for key, one in asked
                if everything or is_meant_for(record, one, who)
            ],
        }
        if record.status in ENDED:
            shown["ended"] = max(0.0, now - (record.updated or record.created))
        if own and kind_of(record) == CHAT and (key := _CONVERSATION.match(record.idempotency_key or "")):
            shown["conversation"] = key[1]
        return shown

    def _question(self, record: CallRecord, key: str, one: Waiting, who: Principal | None) -> dict[str, Any]:
        since = one.since or record.updated or record.created  # of one that an older midcall has asked
        shown = {
            "key": key,
            "place": one.place,
            "message": one.question.message,
            "age": max(0.0, time.time() - since),
            "question": one.wire,
            "until": None if one.until is None else timestamp(one.until),
            "to": one.to,
        }
        if one.question.kind in PERSON_KINDS and is_meant_for(record, one, who):
            shown["link"] = self._extension.resumption.durable.links.path(record, one)
        return shown

    # --- links -------------------------------------------------------------------------------

    async def _look(self, request: Request) -> Response:
        record, key, one = await self._admin.linked(request.path_params["token"], _principal(request))
        asked = self._question(record, key, one, _principal(request))
        shown = await self._shown_with(record, key, one)
        return _unlinked(
            {
                **asked,
                "method": method_of(record),
                "caller": record.principal,
                "component": shown.get("component"),
            }
        )

    async def _answer_linked(self, request: Request) -> Response:
        given = await read_json(request, _LinkedAnswer)
        token, who = request.path_params["token"], _principal(request)
        answer = given.answer
        if answer is msgspec.UNSET:
            shown = await self._shown_with(*await self._admin.linked(token, who), given.rendered)
            if "component" in shown:
                return _unlinked({"answered": False, **shown})
            if "answer" not in shown:
                raise BadAdminRequest("`answer` is missing")
            answer = shown["answer"]
        record = await self._admin.answer_linked(token, answer, who)
        note(request, "answered by its link", record.id)
        return _unlinked({"answered": True})

    async def _shown_with(
        self, record: CallRecord, key: str, one: Waiting, rendered: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """The component that a question is shown with, or the answer that was given there."""
        chat = self._extension.hub.chat
        if chat is None:
            return {}
        return await chat.show_outside(method_of(record), record.id, key, one.question, rendered)


def _which(request: Request) -> Which | None:
    """Whose calls are wanted. Raises `BadAdminRequest`."""
    asked = request.query_params.get("which")
    found = next((one for one in WHICH if one == asked), None)
    if asked is not None and found is None:
        raise BadAdminRequest(f"`which` must be one of {', '.join(WHICH)}")
    if found == "all" and not _is_admin(request):
        raise NotAllowed("/calls?which=all", [SCOPE])
    return found


def _is_wanted(call: dict[str, Any], statuses: Sequence[Status]) -> bool:
    return ("waiting" if call["waiting"] else "running") in statuses


def _has_scope(who: Principal | None) -> bool:
    return who is not None and SCOPE in who.scopes


def _is_admin(request: Request) -> bool:
    return _has_scope(_principal(request))


def _is_asked(record: CallRecord, who: Principal | None) -> bool:
    return any(is_meant_for(record, one, who) for one in open_questions(record).values())


def _unlinked(body: dict[str, Any]) -> Response:
    """A response whose address is not to be told to others."""
    response = json_reply(body)
    response.headers["referrer-policy"] = "no-referrer"
    return response


def _active(call: Call, who: Principal | None) -> dict[str, Any]:
    """A call that only this process knows."""
    info = call.info()
    return {
        "id": info.id,
        "method": info.method,
        "status": info.status,
        "caller": call.principal,
        "own": who is None or call.principal == who.name,
        "age": info.age,
        "waiting": info.status in _WAITING,
        "questions": [
            {"request_id": q.request_id, "message": q.message, "age": q.age} for q in info.questions
        ],
    }


def _principal(request: Request) -> Principal | None:
    principal: Principal | None = request.scope.get("midcall.principal")
    return principal


def _name(request: Request) -> str | None:
    principal = _principal(request)
    return None if principal is None else principal.name

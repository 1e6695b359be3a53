"""Requests that go on with a durable call: by sealed state, by idempotency key, by task id.

The calls themselves are the `DurableCalls` of the hub. Here is what MCP adds: what is sealed into
`requestState` and who may come back with it, what is written down of a call, and which requests wait for it.
Several may wait for the same call: whoever comes while it runs is told what the others are told.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from midcall import jsonrpc
from midcall.call import Call
from midcall.errors import JournalError, MethodNotFound, UnknownQuestion, WrongAnswer
from midcall.journal.contract import ENDED, WITH_OUTCOME, Busy, CallRecord, Gone, Settled
from midcall.journal.dialect import Detached
from midcall.journal.durable import LOOK, PATIENCE, DurableCalls
from midcall.journal.forward import Forwarded
from midcall.journal.seal import BadSeal, KeyRing
from midcall.journal.state import Waiting, asked_of, context_of, for_caller, is_answered, kind_of, new_record
from midcall.mcp import tasks
from midcall.mcp.dialects.input_required import InputRequired
from midcall.mcp.elicitation import NO_NOTES, WAITS_FOR, Given, input_requests, read_answers
from midcall.mcp.request import Caller, McpError, McpRequest, Outcome, Session, error_for
from midcall.mcp.results import Finish, decode_outcome, encode_outcome
from midcall.principal import Principal, check_scopes
from midcall.registry import Resolved

CLOSING = "The server is closing: try again"

KIND = "mcp"

CHAT = "chat"
"""The kind of the calls that the chat makes, whose outcomes are kept in the form of MCP."""


CALL_ID = "dev.midcall/callId"
"""Under which the metadata of questions say by what id their call is kept."""


class Ticket(Struct, frozen=True, array_like=True):
    """What a request must have in common with the one that it comes back for."""

    method: str
    target: str
    digest: str
    principal: str | None


class McpContext(Struct, frozen=True):
    """What MCP writes down of a call, to go on with it in another process."""

    ticket: Ticket
    kinds: frozenset[str]
    """The kinds of question that the caller can answer."""
    uri: str = ""
    """Of a resource that is read."""
    task: bool = False
    nested: bool = False
    """Whether the caller can show any form, not only a flat one."""
    tools: bool = False
    """Whether the caller's model may be given tools."""


class RequestState(Struct, frozen=True, array_like=True):
    """What is sealed into `requestState`."""

    call_id: str
    places: dict[str, str]
    """Where in the call the questions are asked that it was handed out with, by key."""
    ticket: Ticket
    expires: int


_encode = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(RequestState).decode
_decode_context = msgspec.json.Decoder(McpContext).decode

Find = Callable[[CallRecord, McpContext], tuple[Resolved, Finish]]
"""Finds the method of a call that is in the journal, and how its result is said. Raises `MidcallError`."""


class WaitingRequest:
    """A request that waits for what comes of a call."""

    __slots__ = ("_resumption", "call_id", "cancelled", "dropped", "ready", "request")

    def __init__(self, resumption: "Resumption", request: McpRequest) -> None:
        self._resumption = resumption
        self.request = request
        self.call_id = ""
        self.ready = False
        """Whether it is told what the call comes to next. Before that, its answers are given to the call."""
        self.dropped = False
        self.cancelled: str | None = None
        """Why, if it was cancelled before it was ready."""

    @property
    def call(self) -> Call | None:
        dialect = self._resumption.durable.live.get(self.call_id)
        return None if dialect is None else dialect.call

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        self._resumption.drop(self, reason, cancelled=cancelled)


class Resumption:
    """The durable calls of one server, and the requests that wait for them."""

    def __init__(self, durable: DurableCalls, keys: KeyRing | None, find: Find) -> None:
        self.durable = durable
        self._given_keys = keys
        self._find = find
        self._waiters: dict[str, list[WaitingRequest]] = {}
        """By the ids of their calls."""
        durable.kinds[KIND] = self._revive

    # --- a call begins -----------------------------------------------------------------------

    def dialect(
        self,
        request: McpRequest,
        finish: Finish,
        context: McpContext,
        arguments: bytes,
        given: dict[str, Raw] | None,
    ) -> InputRequired:
        """The dialect of a call that is about to start."""
        record = new_record(
            KIND,
            context.ticket.target,
            arguments,
            _encode(context),
            context.ticket.principal,
            request.meta.idempotency_key,
            self.durable.time_limit,
        )
        return InputRequired(record, request, finish, self, context, given)

    def begin(self, dialect: InputRequired, call: Call, waiter: WaitingRequest, *, durably: bool) -> None:
        """Start a call; the request that has brought it is the first one to wait for it.

        If it is to be `durably`, it is in the journal before it does anything; or the one that has its key
        is joined.
        """
        self.durable.admit(dialect, call)
        waiter.ready = True
        self._add(waiter, dialect.record.id)
        if durably:
            self._run(waiter, partial(self._start, dialect, waiter))
        else:
            self.durable.hub.calls.start(call, checked=True)

    async def _start(self, dialect: InputRequired, waiter: WaitingRequest) -> None:
        taken = await self.durable.reserve(dialect)
        if taken is None:
            if dialect.is_task:
                dialect.tell(tasks.created(dialect.record))
            self.durable.start(dialect)
            return
        self._remove(waiter)
        context = _decode_context(context_of(taken))
        if context.ticket != dialect.context.ticket:
            message = "This idempotency key was used for another request"
            raise McpError(jsonrpc.INVALID_PARAMS, message, status=400)
        if context.task:
            waiter.request.result(tasks.created(taken))
        else:
            waiter.ready = False
            self._add(waiter, taken.id)
            await self._join(waiter, context.ticket, Given())

    def _revive(self, record: CallRecord) -> tuple[InputRequired, Resolved]:
        context = _decode_context(context_of(record))
        found, finish = self._find(record, context)
        dialect = InputRequired(record, None, finish, self, context, None)
        if record.questions:
            dialect.asked_in = asked_of(record).traceparent
        return dialect, found

    # --- a request comes back ----------------------------------------------------------------

    def retry(
        self,
        request: McpRequest,
        session: Session,
        sealed: str,
        ticket: Ticket,
        responses: dict[str, Raw],
    ) -> None:
        """A request has come back with answers: go on with the call, or wait for whoever does."""
        state = None if self._keys is None else self.unseal(sealed, ticket)
        waiter = WaitingRequest(self, request)
        session.admit(request, waiter)
        if state is not None:
            self._add(waiter, state.call_id)
        self._run(waiter, partial(self._retry, waiter, state, sealed, ticket, responses))

    async def _retry(
        self,
        waiter: WaitingRequest,
        state: RequestState | None,
        sealed: str,
        ticket: Ticket,
        responses: dict[str, Raw],
    ) -> None:
        await self.durable.open()
        if state is None:
            state = self.unseal(sealed, ticket)
            self._add(waiter, state.call_id)
        given = await read_answers(self.durable, state.call_id, responses, state.places)
        if not await self._give(waiter, given):
            if isinstance(live := self.durable.live.get(state.call_id), InputRequired):
                live.note(given.notes)
            await self._join(waiter, ticket, given)

    async def _give(self, waiter: WaitingRequest, given: Given) -> bool:
        """Give answers to the call. False if they are not for what it asks, or another worker runs it."""
        if not given.answers:
            return False
        try:
            # What the call comes to is written before the caller is told; that it goes on as a task is not.
            sync = waiter.request.caller.knows_tasks
            dialect = await self.durable.answer(waiter.call_id, given.answers, patience=0, sync=sync)
        except (UnknownQuestion, WrongAnswer):
            given.answers.clear()  # others were faster
            return False
        if isinstance(dialect, InputRequired):
            self._make_ready(waiter, dialect, given.notes)
            return True
        if isinstance(dialect, Forwarded):
            given.answers.clear()  # they are taken: what becomes of the call is told by whoever runs it
        return False

    async def _join(self, waiter: WaitingRequest, ticket: Ticket, given: Given) -> None:
        """Answer a request with how the call stands: what it asks now, or what it came to.

        While it runs, wait for that, but not for ever; and if its worker is gone, go on with it here.
        """
        request, call_id = waiter.request, waiter.call_id
        end = time.monotonic() + PATIENCE
        record: CallRecord | None = None
        try:
            while True:
                await self.durable.up_to_date(call_id)
                found = await self.durable.journal.load(call_id)
                if found is None:
                    raise invalid()
                record = found[0]
                asked = asked_of(record).questions
                if record.status == "waiting" and asked and not is_answered(*found):
                    if given.answers and time.monotonic() < end and given.is_for(record):
                        if await self._give(waiter, given):
                            return
                        continue  # another worker has just begun with it
                    if not (for_caller(asked) or self.durable.stopping or time.monotonic() > end):
                        await self.durable.journal.wait(call_id, record.segment, LOOK)
                        continue  # others are asked
                    request.result(self.questions(record, ticket, given.notes))
                    return
                if record.status in WITH_OUTCOME:
                    request.deliver(decode_outcome(await self.outcome(record) or b"{}"))
                    return
                if record.status in ENDED:
                    raise _given_up(record.status)
                live = self.durable.live.get(call_id)
                if isinstance(live, InputRequired) and not live.parked:
                    # Somebody else has it run; it may ask this too.
                    if given.answers and time.monotonic() < end:
                        if await self._give(waiter, given):
                            return
                        if given.answers:
                            await self.durable.journal.wait(call_id, record.segment, LOOK)
                        continue
                    waiter.ready = True
                    patience = max(end - time.monotonic(), 0)
                    asyncio.get_running_loop().call_later(patience, self._send_away, waiter, record, ticket)
                    return
                claimed = await self.take_up(record)
                if isinstance(claimed, InputRequired):
                    self._make_ready(waiter, claimed)
                    return
                if claimed == Gone("diverged"):
                    why = self.durable.why_still(call_id)
                    raise McpError(-32603, f"This call cannot continue: {why}")
                if time.monotonic() > end or self.durable.stopping:
                    request.result(self.come_again(record, ticket))
                    return
                await self.durable.journal.wait(call_id, record.segment, min(LOOK, PATIENCE))
        except asyncio.CancelledError:  # the process ends: another worker knows the call, if there is one
            if record is None:
                raise
            request.result(self.come_again(record, ticket))

    def is_of(self, record: CallRecord, caller: Caller) -> bool:
        """Whether a call was made by this caller, over MCP."""
        return record.principal == caller.principal and kind_of(record) == KIND

    def shows_nested(self, record: CallRecord) -> bool:
        """Whether the caller of a call shows forms that are not flat."""
        return _decode_context(context_of(record)).nested

    def check_scopes(self, record: CallRecord, principal: Principal | None) -> None:
        """Raise `NotAllowed` if who comes back lacks a scope of the method, if that is still there."""
        with contextlib.suppress(MethodNotFound):
            found, _ = self._find(record, _decode_context(context_of(record)))
            check_scopes(found.name, found.method.extras, principal)

    async def take_up(self, record: CallRecord) -> Detached | Settled | Busy | Gone:
        """Go on with a call that nobody looks after."""
        claimed = await self.durable.take_up(record)
        if isinstance(claimed, Detached):
            self.durable.resume(claimed)
        return claimed

    async def outcome(self, record: CallRecord) -> bytes | None:
        """What an ended call came to."""
        return await self.durable.journal.wait(record.id, record.segment - 1, 0)

    async def abort(self, call_id: str, reason: str) -> bool:
        """End a call, wherever it is. False if it had ended, or is not known."""
        outcome = encode_outcome(McpError(jsonrpc.INTERNAL_ERROR, reason))
        return await self.durable.abort(call_id, reason, outcome)

    # --- the requests that wait --------------------------------------------------------------

    def _add(self, waiter: WaitingRequest, call_id: str) -> None:
        waiter.call_id = call_id
        if not waiter.dropped:
            self._waiters.setdefault(call_id, []).append(waiter)

    def _remove(self, waiter: WaitingRequest) -> None:
        waiters = self._waiters.get(waiter.call_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[waiter.call_id]

    def _make_ready(
        self, waiter: WaitingRequest, dialect: InputRequired, notes: Mapping[str, str] = NO_NOTES
    ) -> None:
        """The call goes on, and the request waits for what comes of that."""
        if waiter.dropped:
            dialect.note(notes)
            if waiter.cancelled is not None:
                self._drop_from(dialect, waiter, waiter.cancelled, cancelled=True)
        else:
            waiter.ready = True
            dialect.come_back(waiter.request, notes)

    def take_ready(self, dialect: InputRequired) -> list[McpRequest]:
        """The requests that are to be told something of a call; they do not wait any more."""
        current = self.durable.live.get(dialect.record.id)
        if current is not None and current is not dialect:
            return []  # it was run again, and they wait for what comes of that
        ready = [one for one in self._waiters.get(dialect.record.id, ()) if one.ready]
        for waiter in ready:
            self._remove(waiter)
        return [waiter.request for waiter in ready]

    def _send_away(self, waiter: WaitingRequest, record: CallRecord, ticket: Ticket) -> None:
        """A request has waited long enough for a call that goes on for another one."""
        if waiter in self._waiters.get(waiter.call_id, ()):
            self._remove(waiter)
            waiter.request.result(self.come_again(record, ticket))

    def drop(self, waiter: WaitingRequest, reason: str, *, cancelled: bool) -> None:
        """The caller of a request has cancelled it, or is gone."""
        waiter.dropped = True
        self._remove(waiter)
        if not waiter.ready:
            waiter.cancelled = reason if cancelled else None
            return
        dialect = self.durable.live.get(waiter.call_id)
        if isinstance(dialect, InputRequired):
            self._drop_from(dialect, waiter, reason, cancelled=cancelled)

    def _drop_from(
        self, dialect: InputRequired, waiter: WaitingRequest, reason: str, *, cancelled: bool
    ) -> None:
        """The call ends if it is cancelled, unless somebody else waits for it: then that is his to do."""
        alone = waiter.call_id not in self._waiters
        dialect.drop(waiter.request, reason, cancelled=cancelled and alone)

    def _run(self, waiter: WaitingRequest, work: Callable[[], Awaitable[None]]) -> None:
        """Do what a request has come for. After that it waits, or has its answer."""

        async def run() -> None:
            try:
                await work()
            except BaseException:
                self._remove(waiter)
                raise
            if not waiter.ready:
                self._remove(waiter)

        self.spawn(waiter.request, run)

    def spawn(self, request: McpRequest, work: Callable[[], Awaitable[None]]) -> None:
        """Do something for a request, which is answered with what goes wrong."""
        self.durable.spawn(_guarded(request, work))

    # --- what they are told ------------------------------------------------------------------

    def questions(
        self, record: CallRecord, ticket: Ticket, notes: Mapping[str, str] = NO_NOTES
    ) -> dict[str, Any]:
        """What a caller is told of a call that waits."""
        asked = asked_of(record).questions
        own = for_caller(asked)
        told: dict[str, Any] = {
            "resultType": "input_required",
            "inputRequests": input_requests(own, partial(self.shows_nested, record), notes),
            "requestState": self.seal(record, {key: one.place for key, one in own.items()}, ticket),
            "_meta": {CALL_ID: record.id},
        }
        if len(own) < len(asked):
            others = [one for one in asked.values() if one.to is not None]
            told["_meta"][WAITS_FOR] = [self._waits_for(record, one) for one in others]
        if not own:
            del told["inputRequests"]
        return told

    def _waits_for(self, record: CallRecord, one: Waiting) -> dict[str, Any]:
        link = self.durable.links.url(record, one)
        told = {"to": one.to, "message": one.question.message}
        return told if link is None else {**told, "link": link}

    def come_again(self, record: CallRecord, ticket: Ticket) -> dict[str, Any]:
        """What a caller is told of a call that runs."""
        return {"resultType": "input_required", "requestState": self.seal(record, {}, ticket)}

    def begin_task(self, dialect: InputRequired) -> None:
        """A call that runs goes on without its requests."""
        self.durable.spawn(self._begin_task(dialect, self.take_ready(dialect)))

    async def _begin_task(self, dialect: InputRequired, requests: Sequence[McpRequest]) -> None:
        outcome: Outcome = error_for(JournalError(CLOSING))
        try:
            if not dialect.gone:  # else it has ended already, and is in the journal
                await self.durable.reserve(dialect)
            outcome = tasks.created(dialect.record)
        except JournalError as error:
            dialect.give_up()
            outcome = error_for(error)
        finally:
            for request in requests:
                knows = request.caller.knows_tasks or isinstance(outcome, McpError)
                request.deliver(outcome if knows else self.come_again(dialect.record, dialect.context.ticket))

    # --- sealed state ------------------------------------------------------------------------

    def seal(self, record: CallRecord, places: dict[str, str], ticket: Ticket) -> str:
        if self._keys is None:
            raise RuntimeError("The journal is not open")
        return self._keys.seal(_encode(RequestState(record.id, places, ticket, int(record.expires) + 1)))

    def unseal(self, request_state: str, ticket: Ticket) -> RequestState:
        """What is sealed. Raises the one error that covers all that may be wrong with it."""
        if self._keys is None:
            raise RuntimeError("The journal is not open")
        try:
            state = _decode_state(self._keys.open(request_state))
        except (BadSeal, msgspec.DecodeError):
            raise invalid() from None
        if state.ticket != ticket or state.expires < time.time():
            raise invalid()
        return state

    @property
    def _keys(self) -> KeyRing | None:
        return self._given_keys or self.durable.keys


async def _guarded(request: McpRequest, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except asyncio.CancelledError:  # the process ends
        request.error(error_for(JournalError(CLOSING)))
        raise
    except Exception as error:  # noqa: BLE001  whatever it is, whoever waits is told
        request.error(error_for(error))


def _given_up(status: str) -> McpError:
    if status == "poisoned":
        return McpError(-32603, "This call was given up: it brought down each worker that ran it")
    return invalid()


def invalid() -> McpError:
    """Whatever is wrong with a `requestState`."""
    return McpError(-32602, "Invalid or expired requestState", status=400)

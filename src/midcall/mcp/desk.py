"""Desk: where requests come that go on with a call: by sealed state, by idempotency key, by task id.

The calls themselves are kept by the `DurableCalls` of the hub. Here is what MCP adds: what is sealed into
`requestState`, who may come back with it, and what he gets who comes while somebody else runs the call.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw, Struct

from midcall import jsonrpc
from midcall.errors import JournalError, MidcallError, UnknownQuestion, WrongAnswer
from midcall.journal.contract import ENDED, WITH_OUTCOME, Busy, CallRecord, Gone
from midcall.journal.durable import LOOK, PATIENCE, DurableCalls
from midcall.journal.seal import BadSeal, KeyRing
from midcall.journal.state import asked_of, context_of, is_answered, new_record
from midcall.mcp import tasks
from midcall.mcp.dialects.base import Finish
from midcall.mcp.dialects.input_required import InputRequired
from midcall.mcp.elicitation import answer_from, read_any_answer
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.legacy import Session
from midcall.mcp.outcomes import (
    CALL_ID,
    Context,
    Ticket,
    deliver,
    deliver_encoded,
    encode_outcome,
    input_requests,
)
from midcall.questions import AnyQuestion
from midcall.registry import Resolved
from midcall.trace import question_id

log = logging.getLogger("midcall.mcp")

CLOSING = "The server is closing: try again"

KIND = "mcp"


class State(Struct, frozen=True, array_like=True):
    """What is sealed into `requestState`."""

    call_id: str
    places: dict[str, str]
    """Where in the call the questions are asked that it was handed out with, by key."""
    ticket: Ticket
    expires: int


_encode = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(State).decode
_decode_context = msgspec.json.Decoder(Context).decode

Find = Callable[[CallRecord, Context], tuple[Resolved, Finish]]
"""Finds the method of a call that is in the journal, and how its result is said. Raises `McpError`."""


class Desk:
    """All detached calls of one server."""

    def __init__(self, durable: DurableCalls, keys: KeyRing | None, find: Find) -> None:
        self.durable = durable
        self._given_keys = keys
        self._find = find
        self._alike: dict[str, set[_Waiting]] = {}
        """The requests that have come back and do not know yet what they get, by their sealed state."""
        durable.kinds[KIND] = self._revive

    # --- calls that may have to be found again -----------------------------------------------

    def dialect(
        self,
        exchange: Exchange,
        finish: Finish,
        context: Context,
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
            exchange.meta.idempotency_key,
            self.durable.time_limit,
        )
        return InputRequired(record, exchange, finish, self, context, given)

    def start_durably(self, front: InputRequired, exchange: Exchange) -> None:
        """Start a call that is in the journal before it does anything; or join the one that has its key."""
        self.durable.spawn(self._guarded(exchange, partial(self._start_durably, front, exchange)))

    async def _start_durably(self, front: InputRequired, exchange: Exchange) -> None:
        taken = await self.durable.reserve(front)
        if taken is None:
            if front.is_task:
                front.leave_to_task()
                exchange.result(tasks.created(front.record))
            self.durable.start(front)
            return
        context = _decode_context(context_of(taken))
        if context.ticket != front.context.ticket:
            raise McpError(-32602, "This idempotency key was used for another request", status=400)
        if context.task:
            exchange.result(tasks.created(taken))
        else:
            await self._tell_current(exchange, taken.id, context.ticket)

    def retry(
        self,
        exchange: Exchange,
        session: Session,
        sealed: str,
        ticket: Ticket,
        responses: dict[str, Raw],
    ) -> None:
        """A request has come back with answers: go on with the call, or wait for whoever does."""
        waiting = _Waiting(self._alike.get(sealed, set()))
        session.admit(exchange, waiting)
        self._alike.setdefault(sealed, waiting.alike).add(waiting)
        retry = partial(self._retry, exchange, sealed, ticket, responses, waiting)
        self.durable.spawn(self._guarded(exchange, retry))

    async def _retry(
        self,
        exchange: Exchange,
        sealed: str,
        ticket: Ticket,
        responses: dict[str, Raw],
        waiting: "_Waiting",
    ) -> None:
        try:
            await self.durable.open()
            state = self.unseal(sealed, ticket)
            given = await self._read_answers(state.call_id, responses, state.places)
            if given.answers:
                try:
                    front = await self.durable.answer(state.call_id, given.answers, patience=0)
                except (UnknownQuestion, WrongAnswer):
                    pass  # it has gone on in this moment: what it asks now is told
                else:
                    if isinstance(front, InputRequired):
                        self._resume(front, exchange, given.notes)
                        waiting.gets(front)
                        return
            if isinstance(live := self.durable.live.get(state.call_id), InputRequired):
                live.note(given.notes)
            await self._tell_current(exchange, state.call_id, ticket, given.notes, waiting)
        finally:
            waiting.alike.discard(waiting)
            if not waiting.alike:
                self._alike.pop(sealed, None)

    def look_on(self, exchange: Exchange, record: CallRecord, ticket: Ticket) -> None:
        """A request waits for a call that goes on for another request: it gets how the call stands then."""
        self.durable.spawn(self._guarded(exchange, partial(self._tell_current, exchange, record.id, ticket)))

    def _resume(self, front: InputRequired, exchange: Exchange | None, notes: dict[str, str]) -> None:
        front.come_back(exchange, notes)
        self.durable.resume(front)

    async def _read_answers(
        self, call_id: str, responses: Mapping[str, Raw], places: Mapping[str, str] | None = None
    ) -> "_Given":
        """What of the responses answers a question that is open, and what is wrong with the others.

        With `places`, only questions count that are asked there: another one may have the same key by now.
        """
        given = _Given()
        front = self.durable.live.get(call_id)
        if not responses:
            return given
        if isinstance(front, InputRequired) and front.call is not None and front.open.keys() & responses:
            for key, request in front.open.items():
                if key in responses and (places is None or places.get(key) == request.place):
                    check = partial(front.call.check_answer, request.request_id)
                    given.read(key, request.request_id, request.request_type, responses[key], check)
            return given
        found = await self.durable.journal.load(call_id)
        if found is not None and found[0].questions:
            for key, one in asked_of(found[0]).questions.items():
                if key in responses and (places is None or places.get(key) == one.place):
                    fits = partial(read_any_answer, one.question)
                    given.read(key, question_id(call_id, one.place), one.question, responses[key], fits)
        return given

    async def _tell_current(
        self,
        exchange: Exchange,
        call_id: str,
        ticket: Ticket,
        notes: Mapping[str, str] = MappingProxyType({}),
        waiting: "_Waiting | None" = None,
    ) -> None:
        """Answer a request with how the call stands: what it asks now, or what it came to.

        While it runs, wait for that, but not for ever; and if its worker is gone, go on with it here.
        """
        end = time.monotonic() + PATIENCE
        while True:
            await self.durable.up_to_date(call_id)
            found = await self.durable.journal.load(call_id)
            if found is None:
                raise invalid()
            record = found[0]
            if record.status == "waiting" and asked_of(record).questions and not is_answered(*found):
                deliver(exchange, self.questions(record, ticket, notes))
                return
            if record.status in WITH_OUTCOME:
                outcome = await self.durable.journal.wait(call_id, record.segment - 1, 0)
                deliver_encoded(exchange, outcome or b"{}")
                return
            if record.status in ENDED:
                raise _given_up(record.status)
            claimed = await self.durable.take_up(record)
            if isinstance(claimed, InputRequired):
                self._resume(claimed, exchange, {})
                if waiting is not None:
                    waiting.gets(claimed)
                return
            if claimed == Gone("diverged"):
                raise _given_up("diverged")
            if time.monotonic() > end:
                deliver(exchange, self.come_again(record, ticket))
                return
            try:
                await self.durable.journal.wait(call_id, record.segment, min(LOOK, PATIENCE))
            except asyncio.CancelledError:  # the process ends, and so does this
                deliver(exchange, self.come_again(record, ticket))
                return

    def questions(
        self, record: CallRecord, ticket: Ticket, notes: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Any]:
        """What a caller is told of a call that waits."""
        places = {key: one.place for key, one in asked_of(record).questions.items()}
        return {
            "resultType": "input_required",
            "inputRequests": input_requests(record, notes),
            "requestState": self.seal(record, places, ticket),
            "_meta": {CALL_ID: record.id},
        }

    def come_again(self, record: CallRecord, ticket: Ticket) -> dict[str, Any]:
        """What a caller is told of a call that runs."""
        return {"resultType": "input_required", "requestState": self.seal(record, {}, ticket)}

    async def _guarded(self, exchange: Exchange, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:  # the process ends
            exchange.error(McpError(-32603, CLOSING, {"code": JournalError.code, "recoverable": True}))
            raise
        except McpError as error:
            exchange.error(error)
        except JournalError as error:
            exchange.error(McpError(-32603, str(error), {"code": error.code, "recoverable": True}))
        except MidcallError as error:
            exchange.error(McpError(jsonrpc.code_for(error), str(error), error.data or None))
        except Exception as error:
            log.exception("a request failed inside midcall", exc_info=error)
            exchange.error(McpError(jsonrpc.INTERNAL_ERROR, "Internal error"))

    def _revive(self, record: CallRecord) -> tuple[InputRequired, Resolved]:
        context = _decode_context(context_of(record))
        found, finish = self._find(record, context)
        front = InputRequired(record, None, finish, self, context, None)
        if record.questions:
            front.asked_in = asked_of(record).traceparent
        return front, found

    # --- sealed state ------------------------------------------------------------------------

    def seal(self, record: CallRecord, places: dict[str, str], ticket: Ticket) -> str:
        return self._keys().seal(_encode(State(record.id, places, ticket, int(record.expires) + 1)))

    def unseal(self, request_state: str, ticket: Ticket) -> State:
        """What is sealed. Raises the one error that covers all that may be wrong with it."""
        try:
            state = _decode_state(self._keys().open(request_state))
        except (BadSeal, msgspec.DecodeError):
            raise invalid() from None
        if state.ticket != ticket or state.expires < time.time():
            raise invalid()
        return state

    def _keys(self) -> KeyRing:
        keys = self._given_keys or self.durable.keys
        if keys is None:
            raise RuntimeError("The journal is not open")
        return keys

    # --- tasks -------------------------------------------------------------------------------

    def begin_task(self, front: InputRequired, exchange: Exchange) -> None:
        """A call that runs goes on without its request."""
        self.durable.spawn(self._guarded(exchange, partial(self._begin_task, front, exchange)))

    async def _begin_task(self, front: InputRequired, exchange: Exchange) -> None:
        record = front.record
        if not front.gone:  # else it has ended already, and is in the journal
            try:
                await self.durable.reserve(front)
            except JournalError:
                front.give_up()
                raise
        exchange.result(tasks.created(record))

    def task(self, exchange: Exchange, task_id: str, work: Callable[[CallRecord], Any]) -> None:
        """Do something with a task of this caller, and answer with what it gives."""
        self.durable.spawn(self._guarded(exchange, partial(self._task, exchange, task_id, work)))

    async def _task(self, exchange: Exchange, task_id: str, work: Callable[[CallRecord], Any]) -> None:
        await self.durable.open()
        await self.durable.up_to_date(task_id)
        found = await self.durable.journal.load(task_id)
        if found is None or found[0].principal != exchange.caller.principal:
            raise McpError(-32602, f"Unknown task: {task_id}")
        if is_answered(*found):
            claimed = await self.durable.take_up(found[0])
            if isinstance(claimed, InputRequired):
                self._resume(claimed, None, {})
        exchange.result(await work(found[0]))

    async def show_task(self, record: CallRecord) -> dict[str, Any]:
        """The answer to `tasks/get`. Whoever asks for a task that nobody looks after has it go on."""
        outcome = None
        if record.status in WITH_OUTCOME:
            outcome = await self.durable.journal.wait(record.id, record.segment - 1, 0)
        elif record.status != "waiting" or not asked_of(record).questions:
            claimed = await self.durable.take_up(record)
            if isinstance(claimed, InputRequired):
                self._resume(claimed, None, {})
        return tasks.shown(record, outcome)

    async def update_task(self, record: CallRecord, responses: dict[str, Raw]) -> dict[str, Any]:
        """Answer questions of a task. When this returns, the answers are in the journal."""
        given = await self._read_answers(record.id, responses)
        if given.notes and not given.answers:
            await self._ask_again(record, given.notes)
        if given.answers:
            try:
                front = await self.durable.answer(record.id, given.answers)
            except UnknownQuestion:
                return {}  # answered, or given up, in this moment: as for any other key that is not open
            if isinstance(front, InputRequired):
                self._resume(front, None, given.notes)
            elif isinstance(front, Busy):
                raise McpError(-32603, "The task is busy: try again", {"recoverable": True})
        return {}

    async def _ask_again(self, record: CallRecord, notes: dict[str, str]) -> None:
        """Nothing was answered that could be read: have it asked again, with the reason."""
        front = self.durable.live.get(record.id) or await self.durable.take_up(record)
        if isinstance(front, InputRequired):
            front.note(notes)
            self.durable.resume(front)

    async def cancel_task(self, record: CallRecord) -> dict[str, Any]:
        await self.abort(record.id, "The task was cancelled")
        return {}

    async def abort(self, call_id: str, reason: str) -> bool:
        """End a call, wherever it is. False if it had ended, or is not known."""
        return await self.durable.abort(call_id, reason, encode_outcome(McpError(-32603, reason)))


class _Given:
    """Answers of a client, as far as they can be read."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        """By the ids of their questions: another one may have the same key soon."""
        self.notes: dict[str, str] = {}
        """What was expected in place of the others, by key."""

    def read(
        self,
        key: str,
        request_id: str,
        question: AnyQuestion,
        response: Raw,
        check: Callable[[Any], object],
    ) -> None:
        try:
            payload = answer_from(question, msgspec.json.decode(response))
            check(payload)
        except WrongAnswer as error:
            self.notes[key] = error.expected
        except (msgspec.DecodeError, RecursionError, UnknownQuestion):
            pass
        else:
            self.answers[request_id] = payload


class _Waiting:
    """A request that has come back, before it is known what it gets."""

    call = None

    def __init__(self, alike: "set[_Waiting]") -> None:
        self.alike = alike
        """Those that have come back with the same state, this one included."""
        self._front: InputRequired | None = None
        self._dropped: tuple[Exchange, str, bool] | None = None

    def gets(self, front: InputRequired) -> None:
        """This is the one that has begun the segment."""
        self._front = front
        if self._dropped is not None:
            self._drop(front, *self._dropped)

    def drop(self, exchange: Exchange, reason: str, *, cancelled: bool) -> None:
        self._dropped = (exchange, reason, cancelled)
        if self._front is not None:
            self._drop(self._front, *self._dropped)

    def _drop(self, front: InputRequired, exchange: Exchange, reason: str, cancelled: bool) -> None:
        """The call ends if it is cancelled, unless somebody else waits for it: then that is his to do."""
        other = next((waiting for waiting in self.alike if waiting._dropped is None), None)
        if other is not None:
            other._front = front
        front.drop(exchange, reason, cancelled=cancelled and other is None)


def _given_up(status: str) -> McpError:
    match status:
        case "diverged":
            return McpError(-32603, "This call cannot go on: its code has changed since it asked")
        case "poisoned":
            return McpError(-32603, "This call was given up: it brought down each worker that ran it")
    return invalid()


def invalid() -> McpError:
    """Whatever is wrong with a `requestState`."""
    return McpError(-32602, "Invalid or expired requestState", status=400)

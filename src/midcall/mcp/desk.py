"""Desk: where requests come that go on with a call: by sealed state, by idempotency key, by task id.

The calls themselves are kept by the `Keeper` of the hub. Here is what MCP adds: what is sealed into
`requestState`, who may come back with it, and what he gets who comes while somebody else runs the call.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from midcall.errors import JournalError
from midcall.journal.base import Busy, CallRecord, Gone, Settled
from midcall.journal.keeper import Keeper
from midcall.journal.kept import asked_of, context_of, new_record
from midcall.journal.seal import BadSeal, KeyRing
from midcall.mcp import tasks
from midcall.mcp.dialects.base import Finish
from midcall.mcp.dialects.input_required import InputRequired
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.legacy import Session
from midcall.mcp.outcomes import Context, Ticket, deliver_encoded, encode_outcome
from midcall.registry import Resolved

PATIENCE = 20.0
"""Seconds that a request waits for a segment that somebody else runs."""

CLOSING = "The server is closing: try again"

KIND = "mcp"


class State(Struct, frozen=True, array_like=True):
    """What is sealed into `requestState`."""

    call_id: str
    segment: int
    ticket: Ticket
    expires: int


_encode = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(State).decode
_decode_context = msgspec.json.Decoder(Context).decode

Find = Callable[[CallRecord, Context], tuple[Resolved, Finish]]
"""Finds the method of a call that is in the journal, and how its result is said. Raises `McpError`."""


class Desk:
    """All detached calls of one server."""

    def __init__(self, keeper: Keeper, keys: KeyRing | None, find: Find) -> None:
        self.keeper = keeper
        self._given_keys = keys
        self._find = find
        self._alike: dict[str, set[_Waiting]] = {}
        """The requests that have come back and do not know yet what they get, by their sealed state."""
        keeper.fronts[KIND] = self._revive

    # --- calls that may have to be found again -----------------------------------------------

    def admit(
        self,
        exchange: Exchange,
        finish: Finish,
        context: Context,
        arguments: bytes,
        given: dict[str, Raw] | None,
    ) -> InputRequired:
        """The front of a call that is about to start."""
        record = new_record(
            KIND,
            context.ticket.target,
            arguments,
            _encode(context),
            context.ticket.principal,
            exchange.meta.idempotency_key,
            self.keeper.time_limit,
        )
        front = InputRequired(exchange, finish, self, context, given)
        self.keeper.admit(front, record)
        return front

    def start_durably(self, front: InputRequired, exchange: Exchange) -> None:
        """Start a call that is in the journal before it does anything; or join the one that has its key."""
        self.keeper.spawn(self._guarded(exchange, partial(self._start_durably, front, exchange)))

    async def _start_durably(self, front: InputRequired, exchange: Exchange) -> None:
        taken = await self.keeper.reserve(front)
        if taken is None:
            if front.is_task and front.kept is not None:
                front.exchange = None
                exchange.result(tasks.created(front.kept.record))
            self.keeper.start(front)
            return
        context = _decode_context(context_of(taken))
        if context.ticket != front.context.ticket:
            raise McpError(-32602, "This idempotency key was used for another request", status=400)
        if context.task:
            exchange.result(tasks.created(taken))
        else:
            await self._wait(exchange, State(taken.id, 0, context.ticket, 0))

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
        self.keeper.spawn(self._guarded(exchange, retry))

    async def _retry(
        self,
        exchange: Exchange,
        sealed: str,
        ticket: Ticket,
        responses: dict[str, Raw],
        waiting: "_Waiting",
    ) -> None:
        try:
            await self.keeper.open()
            state = self.unseal(sealed, ticket)
            claimed = await self.keeper.claim(state.call_id, state.segment)
            match claimed:
                case Settled(outcome):
                    deliver_encoded(exchange, outcome)
                case Busy():
                    await self._wait(exchange, state)
                case Gone("diverged"):
                    raise McpError(-32603, "This call cannot go on: its code has changed since it asked")
                case Gone("poisoned"):
                    raise McpError(-32603, "This call was given up: it brought down each worker that ran it")
                case Gone():
                    raise invalid()
                case InputRequired():
                    claimed.come_back(exchange, responses)
                    self.keeper.resume(claimed)
                    waiting.gets(claimed)
        finally:
            waiting.alike.discard(waiting)
            if not waiting.alike:
                self._alike.pop(sealed, None)

    async def _wait(self, exchange: Exchange, state: State) -> None:
        """Somebody else runs the segment: wait for its outcome, but not for ever."""
        try:
            outcome = await self.keeper.journal.wait(state.call_id, state.segment, PATIENCE)
        except asyncio.CancelledError:  # the process ends, and so does this: there is nothing left to cancel
            outcome = None
        if outcome is not None:
            deliver_encoded(exchange, outcome)
            return
        again = self.seal(state.call_id, state.segment, state.ticket)
        exchange.result({"resultType": "input_required", "requestState": again})

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

    def _revive(self, record: CallRecord) -> tuple[InputRequired, Resolved]:
        context = _decode_context(context_of(record))
        found, finish = self._find(record, context)
        front = InputRequired(None, finish, self, context, None)
        if record.questions:
            front.asked_in = asked_of(record).traceparent
        return front, found

    # --- sealed state ------------------------------------------------------------------------

    def seal(self, call_id: str, segment: int, ticket: Ticket) -> str:
        expires = int(time.time() + self.keeper.time_limit)
        return self._keys().seal(_encode(State(call_id, segment, ticket, expires)))

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
        keys = self._given_keys or self.keeper.keys
        if keys is None:
            raise RuntimeError("The journal is not open")
        return keys

    # --- tasks -------------------------------------------------------------------------------

    def begin_task(self, front: InputRequired, exchange: Exchange) -> None:
        """A call that runs goes on without its request."""
        self.keeper.spawn(self._guarded(exchange, partial(self._begin_task, front, exchange)))

    async def _begin_task(self, front: InputRequired, exchange: Exchange) -> None:
        if front.kept is not None:
            await self.keeper.reserve(front)
            exchange.result(tasks.created(front.kept.record))

    def task(self, exchange: Exchange, task_id: str, work: Callable[[CallRecord], Any]) -> None:
        """Do something with a task of this caller, and answer with what it gives."""
        self.keeper.spawn(self._guarded(exchange, partial(self._task, exchange, task_id, work)))

    async def _task(self, exchange: Exchange, task_id: str, work: Callable[[CallRecord], Any]) -> None:
        await self.keeper.open()
        found = await self.keeper.journal.load(task_id)
        if found is None or found[0].principal != exchange.caller.principal:
            raise McpError(-32602, f"Unknown task: {task_id}")
        exchange.result(await work(found[0]))

    async def show_task(self, record: CallRecord) -> dict[str, Any]:
        """The answer to `tasks/get`."""
        outcome = None
        if record.status in tasks.WITH_OUTCOME:
            outcome = await self.keeper.journal.wait(record.id, record.segment - 1, 0)
        return tasks.shown(record, outcome)

    async def update_task(self, record: CallRecord, responses: dict[str, Raw]) -> dict[str, Any]:
        """Answer questions of a task. When this returns, the answers are in the journal."""
        if record.status == "waiting":
            asked = asked_of(record).read()
            await self.answer_for(record, {key: r for key, r in responses.items() if key in asked})
        return {}

    async def answer_for(self, record: CallRecord, responses: dict[str, Raw]) -> bool:
        """Somebody answers to whom the outcome is not told. False if the call does not wait any more.

        When this returns, the answers are in the journal.
        """
        claimed = await self.keeper.claim(record.id, record.segment)
        if not isinstance(claimed, InputRequired):
            return False
        claimed.come_back(None, responses)
        self.keeper.resume(claimed)
        await claimed.answers_kept()
        return True

    async def cancel_task(self, record: CallRecord) -> dict[str, Any]:
        await self.abort(record.id, "The task was cancelled")
        return {}

    async def abort(self, call_id: str, reason: str) -> bool:
        """End a call, wherever it is. False if it had ended, or is not known."""
        return await self.keeper.abort(call_id, reason, encode_outcome(McpError(-32603, reason)))


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


def invalid() -> McpError:
    """Whatever is wrong with a `requestState`."""
    return McpError(-32602, "Invalid or expired requestState", status=400)

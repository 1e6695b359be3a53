"""Questions as results: the request is answered with `input_required`, and comes back with answers.

For modern callers. What runs between one answer and the next question is a *segment*. What it came to, the
next questions or the final result, is in the journal before the caller is told. From then on the call is
parked: the sealed `requestState` finds it again, here or in another process, and the first retry with it
starts the next segment.

A call may also go on as a task: then nobody waits, and what a segment came to is asked for (`tasks/get`).
"""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from midcall.errors import (
    Diverged,
    Fenced,
    JournalError,
    MidcallError,
    NotSupported,
    UnknownQuestion,
    WrongAnswer,
)
from midcall.items import Background, Item, Request, RequestCancelled, to_json
from midcall.journal.base import Parking, Status
from midcall.journal.keeper import KEPT
from midcall.journal.kept import Asked, Kept, encode_asked
from midcall.mcp.dialects.base import Dialect, Finish, Outcome
from midcall.mcp.elicitation import answer_from, inexpressible, request_for, wants_tools
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.outcomes import CALL_ID, Context, deliver, encode_outcome

if TYPE_CHECKING:
    from midcall.mcp.desk import Desk

PAUSES = (0.2, 1.0, 5.0)
"""Seconds between tries to write what a segment came to; the last one is repeated."""


class InputRequired(Dialect):
    """The outlet of a call whose caller comes back with the answers."""

    __slots__ = (
        "_answering",
        "_desk",
        "_flushing",
        "_given",
        "_notes",
        "_span",
        "_supported",
        "_unwritten",
        "asked_in",
        "context",
        "kept",
        "open",
    )

    def __init__(
        self,
        exchange: Exchange | None,
        finish: Finish,
        desk: "Desk",
        context: Context,
        given: dict[str, Raw] | None,
    ) -> None:
        super().__init__(exchange, finish)
        self._desk = desk
        self.context = context
        self.kept: Kept | None = None
        self.open: dict[str, Request] = {}
        """The questions that have no answer yet, by key."""
        self._supported = context.kinds
        self._given = given or {}
        self._notes: dict[str, str] = {}
        self._flushing = False
        self._answering = False
        self._unwritten = False
        """Whether the journal could not take what the last segment came to."""
        self._span = exchange.span if exchange is not None else None
        """Of the request that started the latest segment, if it is traced."""
        self.asked_in = ""
        """The span in which another process has asked, if that is known."""

    @property
    def supported(self) -> frozenset[str]:
        return self._supported

    @property
    def is_task(self) -> bool:
        return self.context.task

    # --- the call emits ----------------------------------------------------------------------

    def put(self, item: Item) -> None:
        if isinstance(item, Background):
            self.go_on_as_task()
        else:
            super().put(item)

    def ask(self, request: Request) -> None:
        reason = None if self.context.nested else inexpressible(request.request_type)
        if reason is not None:
            self._fail(request, NotSupported(reason))
            return
        if wants_tools(request.request_type) and not self.context.tools:
            self._fail(request, NotSupported("The model of this client cannot be given tools"))
            return
        key = request.key or ""
        if not key or key in self.open:
            key = f"question-{request.place}"
        self.open[key] = request
        if key in self._given:
            self._answer(key, self._given.pop(key))
        self._flush_soon()

    def withdraw(self, cancelled: RequestCancelled) -> None:
        self.open = {k: r for k, r in self.open.items() if r.request_id != cancelled.request_id}
        if not self.open and self.kept is not None and self.kept.parked and not self._answering:
            self._desk.keeper.spawn(self._go_on_alone())  # a segment begins without an answer

    async def _go_on_alone(self) -> None:
        await self._desk.keeper.go_on_alone(self)

    def done(self) -> None:
        self.open.clear()
        call, self.call = self.call, None
        if call is None or self.kept is None:
            return
        trace = call.trace
        outcome = self.outcome()
        self.contents.clear()
        if trace is not None:
            diverged = trace.diverged or (trace.left_out() if call.reason is None else None)
            if diverged is not None:
                self._desk.keeper.spawn(self._stop(diverged))
                return
        status: Status = "failed" if self.failure is not None else "completed"
        if call.reason is not None:
            status = "aborted"
        journaled = self.kept.journaled or self._unwritten  # or about to be, with a question
        if journaled or self.kept.record.idempotency_key is not None:
            self.call = call  # its trace is still to be written
            expires = time.time() + KEPT
            if self.is_task:
                expires = max(expires, self.kept.record.expires)  # as `ttlMs` has said
            parking = Parking(status=status, expires=expires)
            self._desk.keeper.spawn(self._settle(lambda: outcome, parking))
        else:
            self._desk.keeper.forget(self)
            self._tell(outcome)

    # --- requests come -----------------------------------------------------------------------

    def come_back(self, exchange: Exchange | None, responses: dict[str, Raw]) -> None:
        """Whoever has begun a segment gives the answers that started it."""
        self.exchange = exchange
        if exchange is not None:
            self._supported = exchange.caller.kinds
            if exchange.span is not None:
                exchange.span.link(self._traceparent)
                exchange.span.take_over(self._span)
                self._span = exchange.span
        if self.call is None:
            return
        self.call.supported = self.supported
        if self.call.task is None:
            self._given = dict(responses)  # the call is run again: it meets its questions soon
            return
        self._answering = True
        for key, response in responses.items():
            self._answer(key, response)
        self._answering = False
        if self.open:
            self._flush_soon()  # what is not answered is asked again, unless the tool gives it up now

    @property
    def _traceparent(self) -> str:
        """The latest span, as others know it."""
        return self.asked_in if self._span is None else self._span.traceparent

    def begin_again(self) -> None:
        self.open.clear()
        self._notes.clear()

    async def answers_kept(self) -> None:
        """Wait until the answers that were given are in the journal."""
        for _ in range(500):
            if not self._given or self.call is None:
                break
            await asyncio.sleep(0.01)  # a call that is run again meets its questions soon
        if self.call is not None and self.call.trace is not None:
            await self.call.trace.flush()

    def drop(self, exchange: Exchange, reason: str, *, cancelled: bool) -> None:
        """A caller has cancelled its request, or is gone: the call ends if it cannot come back for it."""
        if self.exchange is exchange:
            self.exchange = None
        findable = self.kept is not None and (
            self.kept.journaled or self.kept.record.idempotency_key is not None
        )
        if self.call is not None and (cancelled or not findable):
            self.call.abort(reason)

    def dropped(self) -> None:
        self.call = self.kept = None  # they know each other: only the collector would free them

    def released(self) -> None:
        if self.kept is not None:
            record = self.kept.record
            state = self._desk.seal(record.id, record.segment, self.context.ticket)
            self._tell({"resultType": "input_required", "requestState": state})

    def troubled(self, error: JournalError) -> None:
        self._tell(McpError(-32603, str(error), {"code": error.code, "recoverable": True}))

    def stopped(self, error: MidcallError) -> None:
        self._tell(McpError(-32603, str(error), {"code": error.code, **error.data}))

    # --- inside ------------------------------------------------------------------------------

    def _answer(self, key: str, response: Raw) -> None:
        request = self.open.get(key)
        if request is None or self.call is None:
            return
        try:
            result = _decode(response)
            self.call.answer(request.request_id, answer_from(request.request_type, result))
        except WrongAnswer as error:
            self._notes[key] = f"(Not understood: expected {error.expected})\n"
            return
        except (msgspec.DecodeError, RecursionError):
            return
        except UnknownQuestion:
            pass  # another question of its round was cancelled
        self.open.pop(key, None)
        self._notes.pop(key, None)

    def input_requests(self) -> dict[str, Any]:
        """The open questions, as the client is asked them."""
        requests = {}
        for key, request in self.open.items():
            method, params = request_for(request.request_type, self._notes.get(key, ""))
            requests[key] = {"method": method, "params": params}
        return requests

    def _flush_soon(self) -> None:
        """Flush after the tool has had its turn."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """All questions of this turn are here: send them together.

        A caller who has been told of others already hears of these when it comes back.
        """
        self._flushing = False
        if not self.open or self.kept is None or self.kept.parked or self._unwritten or self.call is None:
            return
        requests = self.input_requests()
        parking = Parking(
            status="waiting",
            wake=self._wake(),
            questions=encode_asked(Asked(Raw(to_json(requests)), traceparent=self._traceparent)),
            expires=time.time() + self._desk.keeper.time_limit,
        )
        self._unwritten = True
        self._desk.keeper.spawn(self._settle(functools.partial(self._questions, requests), parking))

    def _questions(self, requests: dict[str, Any]) -> Outcome:
        """What a caller is told who is to come back."""
        outcome: dict[str, Any] = {"resultType": "input_required", "inputRequests": requests}
        if self.kept is not None:
            record = self.kept.record
            outcome["requestState"] = self._desk.seal(record.id, record.segment + 1, self.context.ticket)
            outcome["_meta"] = {CALL_ID: record.id}
        return outcome

    def _wake(self) -> float | None:
        """When the first of the questions times out."""
        limits = [r.timeout_ms / 1000 for r in self.open.values() if r.timeout_ms is not None]
        return time.time() + min(limits) if limits else None

    async def _settle(self, came_to: Callable[[], Outcome], parking: Parking) -> None:
        """Write down what a segment came to, then tell it."""
        tries = 0
        while True:
            try:
                await self._desk.keeper.open()
                outcome, encoded = _encoded(came_to())
                await self._desk.keeper.settle(self, encoded, parking)
            except Fenced:
                return  # whoever has taken over tells it
            except JournalError as error:
                self._tell(McpError(-32603, str(error), {"code": error.code, "recoverable": True}))
                if self.kept is None or not self.kept.journaled:
                    self._give_up()
                    return
                await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                tries += 1
            else:
                break
        self._unwritten = False
        self._tell(outcome)
        if parking.status == "waiting":
            if not self.open:
                await self._desk.keeper.go_on_alone(self)  # it was answered, or given up, meanwhile
        else:
            self.call = self.kept = None  # as in `dropped`

    def _give_up(self) -> None:
        """Nobody can come back to a call that could not be written down."""
        self._desk.keeper.forget(self)
        if self.call is not None:
            self.call.drop()

    async def _stop(self, error: Diverged) -> None:
        await self._desk.keeper.stop(self, error)
        self.stopped(error)

    def _tell(self, outcome: Outcome) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            deliver(exchange, outcome)

    def go_on_as_task(self) -> None:
        """From here on the caller asks for the outcome, if it knows tasks."""
        if self.is_task or self.exchange is None or not self.exchange.caller.knows_tasks:
            return
        self.context = msgspec.structs.replace(self.context, task=True)
        exchange, self.exchange = self.exchange, None
        self._desk.begin_task(self, exchange)

    def _fail(self, request: Request, error: Exception) -> None:
        if self.call is not None and self.call.questions is not None:
            self.call.questions.fail(request.request_id, error)


_decode = msgspec.json.Decoder().decode


def _encoded(outcome: Outcome) -> tuple[Outcome, bytes]:
    """An outcome that can be told, and its encoded form."""
    try:
        return outcome, encode_outcome(outcome)
    except (TypeError, ValueError) as error:  # something that JSON cannot carry
        failed = McpError(-32603, str(error))
        return failed, encode_outcome(failed)

"""Questions as results: the request is answered with `input_required`, and comes back with answers.

For modern callers. What runs between one answer and the next question is a *segment*. What it came to, the
next questions or the final result, is in the journal before the caller is told (see `journal.dialect`). From
then on the call is parked: the sealed `requestState` finds it again, here or in another process.

A call may also go on as a task: then nobody waits, and what a segment came to is asked for (`tasks/get`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from midcall.errors import JournalError, MidcallError, NotSupported, WrongAnswer
from midcall.items import Background, Done, Item, Request, RequestCancelled
from midcall.journal.contract import CallRecord
from midcall.journal.dialect import Detached
from midcall.mcp.dialects.base import Dialect, Finish, Outcome
from midcall.mcp.elicitation import answer_from, inexpressible, wants_tools
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.outcomes import Context, deliver, encode_outcome

if TYPE_CHECKING:
    from midcall.mcp.desk import Desk


class InputRequired(Detached):
    """The outlet of a call whose caller comes back with the answers."""

    takes_passed = True

    __slots__ = ("_desk", "_given", "_outcome", "_reply", "_span", "asked_in", "context")

    def __init__(
        self,
        record: CallRecord,
        exchange: Exchange | None,
        finish: Finish,
        desk: "Desk",
        context: Context,
        given: Mapping[str, Raw] | None,
    ) -> None:
        super().__init__(desk.durable, record, context.kinds)
        self._desk = desk
        self._reply = Dialect(exchange, finish)
        """Collects the result, and passes on progress and log to the request that waits."""
        self.context = context
        self._given = dict(given or {})
        """Answers that came with the first request, before anything was asked."""
        self._outcome: Outcome | None = None
        self._span = exchange.span if exchange is not None else None
        """Of the request that started the latest segment, if it is traced."""
        self.asked_in = ""
        """The span in which another process has asked, if that is known."""

    @property
    def is_task(self) -> bool:
        return self.context.task

    @property
    def log_level(self) -> str | None:
        """The least level of log that is wanted, or none."""
        return self._reply.log_level

    @property
    def full(self) -> bool:
        return self._reply.full

    async def drain(self) -> None:
        await self._reply.drain()

    def go_on_after(self, before: Dialect) -> None:
        """Another one has told how far the call is, up to here."""
        self._reply.go_on_after(before)

    # --- the call emits ----------------------------------------------------------------------

    def put(self, item: Item) -> None:
        match item:
            case Request():
                self._ask(item)
            case RequestCancelled():
                self.close(item.request_id)
            case Background():
                self._go_on_as_task()
            case Done():
                self._finish()
            case _:
                self._reply.call = self.call
                self._reply.put(item)

    def _ask(self, request: Request) -> None:
        question = request.request_type
        reason = None if self.context.nested else inexpressible(question)
        if reason is not None:
            self._fail(request, NotSupported(reason))
            return
        if wants_tools(question) and not self.context.tools:
            self._fail(request, NotSupported("The model of this client cannot be given tools"))
            return
        key = request.key or ""
        if not key or key in self.open:
            key = f"question-{request.place}"
        self.ask(key, request)
        if key in self._given:
            self._answer(key, request, self._given.pop(key))

    def _answer(self, key: str, request: Request, response: Raw) -> None:
        """An answer that came before its question."""
        try:
            payload = answer_from(request.request_type, msgspec.json.decode(response))
            if self.call is not None:
                self.call.answer(request.request_id, payload)
        except WrongAnswer as error:
            self.notes[key] = error.expected
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            self.close(request.request_id)

    def _fail(self, request: Request, error: Exception) -> None:
        if self.call is not None and self.call.questions is not None:
            self.call.questions.fail(request.request_id, error)

    def _finish(self) -> None:
        call, record = self.call, self.record
        if call is None:
            return
        outcome = self._reply.outcome()
        try:
            encoded = encode_outcome(outcome)
        except (TypeError, ValueError) as error:  # something that JSON cannot carry
            outcome = McpError(-32603, str(error))
            encoded = encode_outcome(outcome)
        self._outcome = outcome
        if self.journaled or self.is_task or self.about_to_write or record.idempotency_key is not None:
            self.end(call, encoded, record.expires if self.is_task else 0.0)  # as `ttlMs` has said
        else:
            self.durable.forget(self)
            self.ended()
            self.let_go()

    # --- requests come -----------------------------------------------------------------------

    def come_back(self, exchange: Exchange | None, notes: Mapping[str, str]) -> None:
        """Whoever has answered waits for what comes of it. `notes` say what was wrong with other answers."""
        self.note(notes)
        if exchange is not None:
            before, self._reply.exchange = self._reply.exchange, exchange
            if before is not None and not self.gone:  # who has answered another question, and waits
                self._desk.look_on(before, self.record, self.context.ticket)
            self.supported = exchange.caller.kinds
            if exchange.span is not None:
                exchange.span.link(self.traceparent)
                exchange.span.take_over(self._span)
                self._span = exchange.span
        if self.call is not None:
            self.call.supported = self.supported

    @property
    def traceparent(self) -> str:
        """The latest span, as others know it."""
        return self.asked_in if self._span is None else self._span.traceparent

    def drop(self, exchange: Exchange, reason: str, *, cancelled: bool) -> None:
        """A caller has cancelled its request, or is gone: the call ends if it cannot come back for it."""
        if self._reply.exchange is exchange:
            self._reply.exchange = None
        findable = self.journaled or self.record.idempotency_key is not None
        if self.call is not None and (cancelled or not findable):
            self.call.abort(reason)

    def _go_on_as_task(self) -> None:
        """From here on the caller asks for the outcome, if it knows tasks."""
        exchange = self._reply.exchange
        if not self.is_task and exchange is not None and exchange.caller.knows_tasks:
            self.context = msgspec.structs.replace(self.context, task=True)
            self._reply.exchange = None
            self._desk.begin_task(self, exchange)

    def leave_to_task(self) -> None:
        """The request that started the call has its answer: the call is a task."""
        self._reply.exchange = None

    # --- what the base calls -----------------------------------------------------------------

    def waits(self) -> None:
        self._tell(self._desk.questions(self.record, self.context.ticket))

    def ended(self) -> None:
        if self._outcome is not None:
            self._tell(self._outcome)

    def begin_again(self) -> None:
        self.open.clear()

    def released(self) -> None:
        self._tell(self._desk.come_again(self.record, self.context.ticket))

    def troubled(self, error: JournalError) -> None:
        self._tell(McpError(-32603, str(error), {"code": error.code, "recoverable": True}))

    def stopped(self, error: MidcallError) -> None:
        self._tell(McpError(-32603, str(error), {"code": error.code, **error.data}))

    def _tell(self, outcome: Outcome) -> None:
        exchange, self._reply.exchange = self._reply.exchange, None
        if exchange is not None:
            deliver(exchange, outcome)

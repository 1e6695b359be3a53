"""Questions as results: the request is answered with `input_required`, and comes back with answers.

For modern callers. What runs between one answer and the next question is a *segment*. What it came to, the
next questions or the final result, is in the journal before the caller is told (see `journal.dialect`). From
then on the call is parked: the sealed `requestState` finds it again, here or in another process.

A call may also go on as a task: then nobody waits, and what a segment came to is asked for (`tasks/get`).
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from midcall.errors import JournalError, MidcallError, NotSupported
from midcall.items import Background, Done, Item, Progress, Request, RequestCancelled
from midcall.journal.contract import CallRecord
from midcall.journal.dialect import Detached
from midcall.jsonrpc import INTERNAL_ERROR
from midcall.mcp.elicitation import WAITS_FOR, Given, inexpressible, names_for
from midcall.mcp.request import McpError, McpRequest, Outcome, error_for
from midcall.mcp.results import Finish, McpReply, encode_outcome

if TYPE_CHECKING:
    from midcall.mcp.resume import McpContext, Resumption


class InputRequired(Detached):
    """The outlet of a call whose caller comes back with the answers."""

    takes_passed = True

    __slots__ = ("_given", "_outcome", "_reply", "_resumption", "_span", "asked_in", "context")

    def __init__(
        self,
        record: CallRecord,
        request: McpRequest | None,
        finish: Finish,
        resumption: "Resumption",
        context: "McpContext",
        given: Mapping[str, Raw] | None,
    ) -> None:
        super().__init__(resumption.durable, record, context.kinds)
        self._resumption = resumption
        self._reply = McpReply(request, finish, record.name)
        """Collects the result, and passes on progress and log to the latest request that waits."""
        self.context = context
        self._given = dict(given or {})
        """Answers that came with the first request, before anything was asked."""
        self._outcome: Outcome | None = None
        self._span = request.span if request is not None else None
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

    def go_on_after(self, before: McpReply) -> None:
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
                self._reply.add(item)

    def _ask(self, asked: Request) -> None:
        reason = None
        if asked.to is None:
            reason = inexpressible(asked.request_type, nested=self.context.nested, tools=self.context.tools)
        if reason is not None:
            if self.call is not None and self.call.questions is not None:
                self.call.questions.fail(asked.request_id, NotSupported(reason))
            return
        key = asked.key or ""
        if not key or key in self.open:
            key = f"question-{asked.place}"
        self.ask(key, asked)
        if self._given and asked.to is None:
            self._answer(key, asked)

    def _answer(self, key: str, asked: Request) -> None:
        """Take an answer that came before its question."""
        given = Given()
        if self.call is not None:
            answer = partial(self.call.answer, asked.request_id)
            given.read(key, asked.request_id, asked.request_type, self._given, answer)
        for name in names_for(asked.request_type, key).values():
            self._given.pop(name, None)
        self.notes.update(given.notes)
        if given.answers:
            self.close(asked.request_id)

    def _finish(self) -> None:
        call, record = self.call, self.record
        if call is None:
            return
        outcome = self._outcome = self._reply.outcome()
        if self.journaled or self.is_task or self.about_to_write or record.idempotency_key is not None:
            expires = record.expires if self.is_task else 0.0  # as `ttlMs` has said
            self.end(call, encode_outcome(outcome), expires)
        else:
            self.durable.forget(self)
            self.ended()
            self.let_go()

    def _go_on_as_task(self) -> None:
        """From here on the caller asks for the outcome, if it knows tasks."""
        request = self._reply.request
        if not self.is_task and request is not None and request.caller.knows_tasks:
            self.context = msgspec.structs.replace(self.context, task=True)
            self._reply.request = None
            self._resumption.begin_task(self)

    # --- requests come and go ----------------------------------------------------------------

    def come_back(self, request: McpRequest, notes: Mapping[str, str]) -> None:
        """A request waits for what comes of its answers. `notes` say what was wrong with some of them."""
        self.note(notes)
        self._reply.come_back(request)
        self.supported = request.caller.kinds
        if request.span is not None:
            request.span.link(self.traceparent)
            request.span.take_over(self._span)
            self._span = request.span
        if self.call is not None:
            self.call.supported = self.supported

    @property
    def traceparent(self) -> str:
        """The latest span, as others know it."""
        return self.asked_in if self._span is None else self._span.traceparent

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        """A caller has cancelled its request, or is gone: the call ends if it cannot come back for it."""
        if self._reply.request is request:
            self._reply.request = None
        findable = self.journaled or self.record.idempotency_key is not None
        if self.call is not None and (cancelled or not findable):
            self.call.abort(reason)

    # --- what the base calls -----------------------------------------------------------------

    def waits(self) -> None:
        told = self._resumption.questions(self.record, self.context.ticket)
        if self.call is not None and WAITS_FOR in told["_meta"]:
            for text in self.durable.waiting_for(self.record):
                self._reply.add(Progress(self.call.stamp(), text))
        self.tell(told)

    def ended(self) -> None:
        if self._outcome is not None:
            self.tell(self._outcome)

    def begin_again(self) -> None:
        self.open.clear()

    def released(self) -> None:
        self.tell(self._resumption.come_again(self.record, self.context.ticket))

    def troubled(self, error: JournalError) -> None:
        self.tell(error_for(error))

    def stopped(self, error: MidcallError) -> None:
        self.tell(McpError(INTERNAL_ERROR, str(error), {"code": error.code, **error.data}))

    def tell(self, outcome: Outcome) -> None:
        """Answer the requests that wait."""
        self._reply.request = None
        for request in self._resumption.take_ready(self):
            request.deliver(outcome)

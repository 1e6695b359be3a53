"""Questions as results: the request is answered with `input_required`, and comes back with answers.

For modern callers. What runs between one answer and the next question is a *segment*. The outcome of
a segment, the next questions or the final result, goes to every request that waits for it; a retry
that comes twice starts nothing twice, and gets the same outcome. Once the caller has been told of the
questions, the call is *parked*: the sealed `requestState` finds it again, and the first retry with
it starts the next segment.

A call may also go on as a task (see `tasks`): then outcomes are not sent, but asked for.
"""

import asyncio
import time
from typing import Any

import msgspec
from msgspec import Raw

from midcall.errors import NotSupported, UnknownQuestion, WrongAnswer
from midcall.items import Background, Item, Request, RequestCancelled, to_json
from midcall.mcp.desk import Desk, State, Ticket
from midcall.mcp.dialects.base import Dialect, Finish, Outcome, deliver
from midcall.mcp.elicitation import answer_from, expressible, request_for
from midcall.mcp.exchange import Exchange, McpError
from midcall.mcp.task import Task

PATIENCE = 20.0
"""Seconds that a repeated retry waits for a segment that runs already."""

KEPT_OUTCOMES = 4
"""How many segments back a repeated retry still gets its outcome."""


class InputRequired(Dialect):
    """The outlet of a call whose caller comes back with the answers."""

    __slots__ = (
        "_asked",
        "_desk",
        "_flushing",
        "_given",
        "_notes",
        "_outcomes",
        "_parked",
        "_segment",
        "_span",
        "_told",
        "_waiting",
        "call_id",
        "idempotency_key",
        "open",
        "task",
        "ticket",
    )

    def __init__(
        self, exchange: Exchange, finish: Finish, desk: Desk, ticket: Ticket, given: dict[str, Raw] | None
    ) -> None:
        super().__init__(exchange, finish)
        self._desk = desk
        self.ticket = ticket
        self.call_id = ""
        self.idempotency_key = exchange.meta.idempotency_key
        self.task: Task | None = None
        self.open: dict[str, Request] = {}
        """The questions that have no answer yet, by key."""
        self._given = given or {}
        self._notes: dict[str, str] = {}
        self._asked = 0
        self._segment = 0
        self._outcomes: dict[int, Outcome] = {}
        self._waiting: list[tuple[Exchange, asyncio.TimerHandle | None]] = [(exchange, None)]
        self._flushing = False
        self._parked = False
        self._told = False
        self._span = exchange.span
        """Of the request that started the latest segment, if it is traced."""

    @property
    def supported(self) -> frozenset[str]:
        return self.exchange.caller.kinds if self.exchange is not None else frozenset()

    # --- the call emits ----------------------------------------------------------------------

    def put(self, item: Item) -> None:
        if isinstance(item, Background):
            self.go_on_as_task()
        else:
            super().put(item)

    def ask(self, request: Request) -> None:
        if not expressible(request.request_type):
            self._fail(request, NotSupported("This client can only be asked for flat forms"))
            return
        key = request.key or ""
        while not key or key in self.open:
            self._asked += 1
            key = f"question-{self._asked}"
        self.open[key] = request
        if key in self._given:
            self._answer(key, self._given.pop(key))
        if self.task is not None:
            self.task.touch()
        else:
            self._flush_soon()

    def withdraw(self, cancelled: RequestCancelled) -> None:
        self.open = {k: r for k, r in self.open.items() if r.request_id != cancelled.request_id}
        if not self.open:
            self._parked = False  # the segment has begun without an answer

    def done(self) -> None:
        if self.task is not None:
            self.task.finish(self.call, self.outcome())
        else:
            self._settle(self.outcome())
        self.contents.clear()
        self.open.clear()
        self._desk.finished(self)
        self.call = None

    # --- requests come -----------------------------------------------------------------------

    def retry(self, exchange: Exchange, state: State, responses: dict[str, Raw]) -> None:
        """A request has come back with answers: start the segment, or wait for its outcome."""
        if exchange.span is not None and self._span is not None:
            exchange.span.link(self._span)
        if state.segment < self._segment:
            outcome = self._outcomes.get(state.segment)
            if outcome is None:
                raise McpError(-32602, "Invalid or expired requestState", status=400)
            deliver(exchange, outcome)
            return
        if not self._parked:
            self._join(exchange)
            return
        self._parked = False
        self.exchange = exchange
        self._waiting.append((exchange, None))
        if exchange.span is not None:
            exchange.span.take_over(self._span)
            self._span = exchange.span
        if self.call is not None:
            self.call.supported = self.supported
        self._desk.used(self)
        self.answer_all(responses)
        if self.open:
            self._flush_soon()  # what is not answered is asked again, unless the tool gives it up now

    def _join(self, exchange: Exchange) -> None:
        """The segment runs already: wait for it, but not for ever."""
        timer = asyncio.get_running_loop().call_later(PATIENCE, self._come_back, exchange)
        self._waiting.append((exchange, timer))

    def _come_back(self, exchange: Exchange) -> None:
        self._waiting = [entry for entry in self._waiting if entry[0] is not exchange]
        self._told = True
        exchange.result({"resultType": "input_required", "requestState": self._state(self._segment)})

    def join(self, exchange: Exchange) -> None:
        """The first request has come again, by its idempotency key."""
        outcome = self._outcomes.get(0)
        if outcome is not None:
            deliver(exchange, outcome)
        else:
            self._join(exchange)

    def drop(self, exchange: Exchange, reason: str, *, cancelled: bool) -> None:
        """A caller has cancelled its request, or is gone.

        The call ends if nobody else waits for it, unless a caller who is only gone may come back.
        """
        for entry in self._waiting:
            if entry[0] is exchange and entry[1] is not None:
                entry[1].cancel()
        self._waiting = [entry for entry in self._waiting if entry[0] is not exchange]
        if self.exchange is exchange:
            self.exchange = self._waiting[0][0] if self._waiting else None
        if not self._waiting and self.call is not None and (cancelled or not self.findable):
            self.call.abort(reason)

    @property
    def size(self) -> int:
        """Roughly how many bytes its outcomes have."""
        outcomes = [*self._outcomes.values(), self.task.outcome if self.task is not None else {}]
        try:
            return sum(len(to_json(one)) for one in outcomes if isinstance(one, dict))
        except (TypeError, ValueError):  # something that JSON cannot carry
            return 0

    @property
    def findable(self) -> bool:
        """Whether its caller has anything to come back with: a state, a key or a task."""
        return self._told or self.idempotency_key is not None or self.task is not None

    def answer_all(self, responses: dict[str, Raw]) -> None:
        """Take answers by key; keys that are not asked for are ignored."""
        for key, response in responses.items():
            self._answer(key, response)

    # --- inside ------------------------------------------------------------------------------

    def _answer(self, key: str, response: Raw) -> None:
        request = self.open.get(key)
        if request is None or self.call is None:
            return
        try:
            result = msgspec.json.decode(response)
            self.call.answer(request.request_id, answer_from(request.request_type, result))
        except WrongAnswer as error:
            self._notes[key] = f"(Not understood: expected {error.expected})\n"
            return
        except (msgspec.DecodeError, RecursionError):
            return
        except UnknownQuestion:
            pass  # another question of its round was cancelled
        del self.open[key]
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
        if self.open and self.task is None and not self._parked:
            self._parked = self._told = True
            state = self._state(self._segment + 1)
            self._settle(
                {
                    "resultType": "input_required",
                    "inputRequests": self.input_requests(),
                    "requestState": state,
                }
            )

    def _settle(self, outcome: Outcome) -> None:
        self._outcomes[self._segment] = outcome
        self._outcomes.pop(self._segment - KEPT_OUTCOMES, None)
        self._segment += 1
        waiting, self._waiting = self._waiting, []
        self.exchange = None
        for exchange, timer in waiting:
            if timer is not None:
                timer.cancel()
            deliver(exchange, outcome)

    def _state(self, segment: int) -> str:
        expires = int(time.time() + self._desk.time_limit)
        return self._desk.seal(State(self.call_id, segment, self.ticket, expires))

    def go_on_as_task(self) -> None:
        """From here on the caller asks for the outcome, if it knows tasks."""
        if self.task is not None or self.exchange is None or not self.exchange.caller.knows_tasks:
            return
        self.task = self._desk.make_task(self)
        self._settle(self.task.created())

    def _fail(self, request: Request, error: Exception) -> None:
        if self.call is not None and self.call.questions is not None:
            self.call.questions.fail(request.request_id, error)

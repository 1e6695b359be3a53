"""Dialects: how questions and answers travel, one file for each way.

A dialect is the outlet of a call that an MCP request started. All of them collect the result and pass on
progress and log, which is here; they differ in what they do with a question. Here is also how the answers are
read of somebody who comes back.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from midcall.call import Call
from midcall.connection import MAX_MESSAGE, TOO_LARGE
from midcall.errors import ToolError, UnknownQuestion, WrongAnswer
from midcall.items import Data, Done, Error, Item, Log, Progress, Request, RequestCancelled, to_json
from midcall.journal.contract import CallRecord
from midcall.journal.durable import DurableCalls
from midcall.journal.state import asked_of
from midcall.jsonrpc import INTERNAL_ERROR
from midcall.mcp.elicitation import answer_from, read_any_answer
from midcall.mcp.request import McpError, McpRequest, Outcome
from midcall.questions import AnyQuestion
from midcall.replay import question_id

log = logging.getLogger("midcall.mcp")

Finish = Callable[[Sequence[Any], Error | None], dict[str, Any]]
"""Makes the result of the request from what the call gave. Raises `McpError` for an error."""


class Dialect:
    """The outlet of a call whose caller is not asked."""

    takes_passed = True
    """Whether it takes what another MCP server gave as it is (see `content.Passed`)."""

    __slots__ = ("_progress", "_size", "call", "contents", "failure", "finish", "request")

    def __init__(self, request: McpRequest | None, finish: Finish) -> None:
        self.request = request
        self.finish = finish
        self.contents: list[Any] = []
        self.failure: Error | None = None
        self.call: Call | None = None
        self._progress = -1.0
        self._size = 0

    @property
    def supported(self) -> frozenset[str]:
        """The kinds of question that can be asked this way."""
        return frozenset()

    @property
    def log_level(self) -> str | None:
        """The least level of log that is wanted, or none."""
        return self.request.caller.log_level if self.request is not None else None

    @property
    def full(self) -> bool:
        return self.request is not None and self.request.stream.full

    async def drain(self) -> None:
        if self.request is not None:
            await self.request.stream.drain()

    def put(self, item: Item) -> None:
        if isinstance(item, Data):
            self._collect(item.content)
        elif isinstance(item, Done):
            self.done()
        elif isinstance(item, Error):
            self.failure = item
        elif isinstance(item, Request):
            self.ask(item)
        elif isinstance(item, RequestCancelled):
            self.withdraw(item)
        elif isinstance(item, Progress | Log) and self.request is not None:
            self._report(self.request, item)

    def _collect(self, content: Any) -> None:
        """Keep a piece of the result; a stream without an end is stopped here."""
        if self.contents:
            self._size += len(content) if isinstance(content, str | bytes) else len(to_json(content))
            if self._size > MAX_MESSAGE:
                self.contents.clear()
                raise ToolError(TOO_LARGE, code="result_too_large")
        self.contents.append(content)

    def ask(self, asked: Request) -> None:
        """Put a question to the caller."""
        raise AssertionError("a caller who cannot be asked is not asked")

    def withdraw(self, cancelled: RequestCancelled) -> None:
        """Take a question back."""

    def done(self) -> None:
        """The call has ended: answer the request, unless its caller has cancelled it."""
        if self.request is not None:
            self.request.deliver(self.outcome())
        self.call = (
            None  # a call and its dialect know each other: without this, only the collector frees them
        )

    def outcome(self) -> Outcome:
        """The result of the call, or the error that the request is answered with."""
        try:
            return self.finish(self.contents, self.failure)
        except McpError as error:
            return error
        except (TypeError, ValueError) as error:  # something that JSON cannot carry
            return McpError(INTERNAL_ERROR, str(error))

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        """A caller has cancelled its request, or is gone: nothing is sent to it, and the call ends."""
        self.request = None
        if self.call is not None:
            self.call.abort(reason)

    def go_on_after(self, before: "Dialect") -> None:
        """Another one has told how far the call is, up to here."""
        self._progress = before._progress

    def _report(self, request: McpRequest, item: Progress | Log) -> None:
        if isinstance(item, Log):
            if request.caller.hears(item.level):
                data = item.message if item.data is None else item.data
                if item.message and item.data is not None:
                    data = {"message": item.message, "data": item.data}
                params: dict[str, Any] = {
                    "level": item.level,
                    "logger": self.call.name if self.call else "",
                    "data": data,
                }
                request.notify("notifications/message", params)
            return
        token = request.meta.progress_token
        if token is None:
            return
        value = item.percentage if item.percentage is not None else self._progress + 1
        if value <= self._progress:
            return  # the protocol knows progress only upwards
        self._progress = value
        params = {"progressToken": token, "progress": value, "message": item.message}
        if item.percentage is not None:
            params["total"] = 100
        request.notify("notifications/progress", params)


class Given:
    """Answers of somebody who has come back, as far as they can be read."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        """By the ids of their questions: another one may have the same key soon."""
        self.notes: dict[str, str] = {}
        """What was expected in place of the others, by key."""

    def is_for(self, record: CallRecord) -> bool:
        """Whether they are for a question that a call asks."""
        asked = asked_of(record).questions.values()
        return any(question_id(record.id, one.place) in self.answers for one in asked)

    def read(
        self, key: str, request_id: str, question: AnyQuestion, response: Any, check: Callable[[Any], object]
    ) -> None:
        try:
            given = msgspec.json.decode(response) if isinstance(response, Raw) else response
            payload = answer_from(question, given)
            check(payload)
        except WrongAnswer as error:
            self.notes[key] = error.expected
        except (msgspec.DecodeError, RecursionError, UnknownQuestion):
            pass
        else:
            self.answers[request_id] = payload


async def read_answers(
    durable: DurableCalls,
    call_id: str,
    responses: Mapping[str, Any],
    places: Mapping[str, str] | None = None,
) -> Given:
    """What of the responses, by key, answers a question that is open, and what is wrong with the others.

    With `places`, only questions count that are asked there: another one may have the same key by now.
    """
    given = Given()
    if not responses:
        return given
    live = durable.live.get(call_id)
    if live is not None and live.call is not None and live.open.keys() & responses.keys():
        for key, asked in live.open.items():
            if key in responses and (places is None or places.get(key) == asked.place):
                check = functools.partial(live.call.check_answer, asked.request_id)
                given.read(key, asked.request_id, asked.request_type, responses[key], check)
        return given
    found = await durable.journal.load(call_id)
    if found is not None and found[0].questions:
        for key, one in asked_of(found[0]).questions.items():
            if key in responses and (places is None or places.get(key) == one.place):
                fits = functools.partial(read_any_answer, one.question)
                given.read(key, question_id(call_id, one.place), one.question, responses[key], fits)
    return given

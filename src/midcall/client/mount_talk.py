"""Talk: one request to a mounted server, until its response. No task of the event loop is needed for it.

A legacy server may ask in the middle of it; a modern one answers with its questions, or with a task. Whoever
looks after the call (the `Taker`) is told when there is something to look at.
"""

import asyncio
import time
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from midcall.client.responses import Waiter
from midcall.client.session import Session
from midcall.client.wire import About
from midcall.content import Passed, PassedError
from midcall.errors import MidcallError, RemoteError, TimedOut
from midcall.jsonrpc import INTERNAL_ERROR, Envelope
from midcall.mcp.messages import META

_COMPLETE = Raw(b'"complete"')
_SERVER_INFO = f"{META}serverInfo"

_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class Asks(Struct, frozen=True):
    """A modern server needs answers, and to be asked again with them."""

    questions: dict[str, Any] | None
    state: str | None


class Began(Struct, frozen=True):
    """A modern server has begun a task."""

    task: dict[str, Any]


Outcome: TypeAlias = Passed | Asks | Began | MidcallError
"""What a request came to; an error if there is no response."""


class Taker(Protocol):
    """Who looks after a call."""

    def moved(self, talk: "Talk") -> None:
        """It has its outcome, or what it asks has changed."""

    def reported(self, method: str, params: dict[str, Any]) -> None:
        """Progress, or a line of log."""


class Open(Struct):
    """What a legacy server has asked, and waits for."""

    method: str
    params: dict[str, Any]
    answer: asyncio.Future[dict[str, Any]]


class Talk(Waiter):
    """A request under way."""

    __slots__ = ("_count", "_id", "_session", "heard", "outcome", "questions", "taker")

    def __init__(self, taker: Taker | None) -> None:
        self.taker = taker
        self.outcome: Outcome | None = None
        self.questions: dict[str, Open] = {}
        """What the server asks at the moment."""
        self.heard = 0.0
        """When the server last said something about it."""
        self._session: Session | None = None
        self._id = 0
        self._count = 0

    def send(
        self,
        session: Session,
        about: About,
        params: bytes,
        *,
        progress: bool,
        meta: bytes,
        head: bytes | None,
    ) -> None:
        """Send the request. The outcome may be known at once, if it cannot be sent."""
        self._session = session
        self.heard = time.monotonic()
        self._id = session.start(self, about, params, progress=progress, meta=meta, head=head)

    # --- for whoever looks after it ----------------------------------------------------------

    def answer(self, key: str, result: dict[str, Any]) -> None:
        """Answer a question, if it is still open."""
        question = self.questions.pop(key, None)
        if question is not None and not question.answer.done():
            self.heard = time.monotonic()
            question.answer.set_result(result)

    def refuse(self, key: str, error: RemoteError) -> None:
        """Tell the server that there is no answer."""
        question = self.questions.pop(key, None)
        if question is not None and not question.answer.done():
            self.heard = time.monotonic()
            question.answer.set_exception(error)

    def cancel(self, reason: str) -> None:
        """Nobody wants the outcome any more: the server is told."""
        self.taker = None
        if self.outcome is None and self._session is not None:
            self._session.cancel(self._id, reason)
            self._drop_questions()

    def check(self, limit: float, now: float) -> None:
        """Give up if the server says nothing, and does not wait for an answer."""
        if self.outcome is None and not self.questions and now - self.heard > limit:
            if self._session is not None:
                self._session.cancel(self._id, "No sign of life")
            self._end(TimedOut(f"No sign of life within {limit:g} seconds"))

    # --- as a waiter -------------------------------------------------------------------------

    def answered(self, response: Envelope) -> None:
        error = response.error
        if error is not UNSET:
            self._end(Passed(error=PassedError(error.code, error.message, error.data)))
            return
        try:
            fields = _fields(_one_line(response.result))
            kind = fields.pop("resultType", _COMPLETE)
            if kind == _COMPLETE:
                if "_meta" in fields:
                    _leave_out_server(fields)
                self._end(Passed(fields))
            else:
                self._end(_other_kind(msgspec.json.decode(kind), fields))
        except (msgspec.DecodeError, RecursionError) as fault:
            text = f"The server's result cannot be read: {fault}"
            self._end(Passed(error=PassedError(INTERNAL_ERROR, text)))

    def failed(self, error: MidcallError) -> None:
        if isinstance(error, RemoteError):
            self._end(Passed(error=PassedError(error.rpc_code, str(error), error.rpc_data)))
        else:
            self._end(error)

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        self.heard = time.monotonic()
        if self.taker is not None:
            self.taker.reported(method, params)

    async def asked(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A legacy server asks: gives what it is answered."""
        self._count += 1
        key = str(self._count)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.questions[key] = Open(method, params, answer)
        self._moved()
        try:
            return await answer
        except asyncio.CancelledError:
            if self.questions.pop(key, None) is not None:
                self._moved()  # it was withdrawn
            raise

    # --- inside ------------------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> None:
        if self.outcome is not None:
            return
        self.outcome = outcome
        if self.questions:
            self._drop_questions()
        taker, self.taker = self.taker, None  # they know each other: only the collector would free them
        if taker is not None:
            taker.moved(self)

    def _drop_questions(self) -> None:
        questions, self.questions = self.questions, {}
        for question in questions.values():
            question.answer.cancel()

    def _moved(self) -> None:
        if self.taker is not None:
            self.taker.moved(self)


def _one_line(raw: Raw) -> bytes | Raw:
    """JSON without line breaks, which separate messages on pipes; over HTTP a server may have some."""
    if memoryview(raw).nbytes < 2:
        return raw
    data = bytes(raw)
    return data.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in data or b"\r" in data else data


def _leave_out_server(fields: dict[str, Any]) -> None:
    """Who has answered is told by whoever passes it on."""
    try:
        meta: dict[str, Any] = _fields(fields.pop("_meta"))
    except msgspec.ValidationError:  # no object
        return
    meta.pop(_SERVER_INFO, None)
    if meta:
        fields["_meta"] = meta


def _other_kind(kind: Any, fields: dict[str, Any]) -> Outcome:
    found = {name: msgspec.json.decode(value) for name, value in fields.items()}
    questions, state = found.get("inputRequests"), found.get("requestState")
    match kind:
        case "input_required" if isinstance(questions, dict) and questions and isinstance(state, str | None):
            return Asks(questions, state)
        case "input_required" if isinstance(state, str):  # it only wants to be asked again
            return Asks(None, state)
        case "task" if isinstance(found.get("taskId"), str):
            return Began(found)
    text = f"The server's result cannot be read: it is of the type {kind!r}"
    return Passed(error=PassedError(INTERNAL_ERROR, text))

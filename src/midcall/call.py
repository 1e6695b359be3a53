"""Calls: one running method, and the registry of all that run or wait.

A `Call` owns one task. It emits items into its *outlet*, which belongs to whoever started it: a
dialect that writes to a line, or a reader in this process. A slow outlet says so with `full`, and the
call then waits in `drain` before it emits more. Open questions live in the call and in the index of
`Calls`; whichever way a call ends, both are empty afterwards.

Above this module stand `ask` (what an author meets) and the hub; it knows neither, nor any protocol.
"""

import asyncio
import itertools
import logging
import secrets
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from midcall.errors import (
    Aborted,
    Cancelled,
    MidcallError,
    NotSupported,
    TimedOut,
    TooManyCalls,
    TransportLost,
    UnknownQuestion,
)
from midcall.items import Data, Done, Error, Item, Log, Progress, Request, RequestCancelled, stamp
from midcall.questions import PRIORITIES, AnyQuestion, Priority, Sample

log = logging.getLogger("midcall.call")

HELD_LIMIT = 100
"""How many log lines and progress reports are kept for a reader that does not keep up."""


class Status(StrEnum):
    """Where a call stands."""

    RUNNING = "running"
    AWAITING_ANSWER = "awaiting_answer"
    AWAITING_SAMPLE = "awaiting_sample"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


class Outlet(Protocol):
    """Where a call's items go. `put` never waits; `drain` does, while `full` is true."""

    @property
    def full(self) -> bool:
        """Whether the reader is behind."""

    def put(self, item: Item) -> None:
        """Take an item. After the reader is gone this does nothing."""

    async def drain(self) -> None:
        """Wait until the reader has caught up, or is gone."""


class Runnable(Protocol):
    """What a call runs: a method, as `activation` reads it."""

    @property
    def streaming(self) -> bool:
        """Whether `invoke` gives an async iterator instead of an awaitable."""

    def invoke(self, call: "Call", arguments: dict[str, Any]) -> Any:
        """Start the body with validated arguments."""


class Wanted(Protocol):
    """A question that is about to be asked: what `ask` hands to its call."""

    question: AnyQuestion
    timeout: float | None
    priority: Priority
    request_id: str

    def read(self, payload: Any) -> Any:
        """The answer's value for the tool, or `WrongAnswer`; `Cancelled` or `Declined` if refused."""


class OpenQuestion:
    """A question that waits. Several belong to one round; the round ends with the last answer."""

    __slots__ = ("asked", "round", "timer", "value", "wanted")

    def __init__(self, wanted: Wanted, round: "Round") -> None:
        self.wanted = wanted
        self.round = round
        self.asked = time.monotonic()
        self.timer: asyncio.TimerHandle | None = None
        self.value: Any = None


class Round:
    """Questions asked together, and the future that waits for all of them."""

    __slots__ = ("future", "missing")

    def __init__(self, missing: int, future: asyncio.Future[None]) -> None:
        self.missing = missing
        self.future = future

    def answered(self) -> None:
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class QuestionInfo(Struct, frozen=True):
    """An open question, for a list."""

    request_id: str
    kind: str
    message: str
    priority: Priority
    age: float


class CallInfo(Struct, frozen=True):
    """A call, for a list; ages are in seconds."""

    id: str
    method: str
    status: Status
    age: float
    questions: tuple[QuestionInfo, ...] = ()


class Call:
    """One running method: its status, its items, its open questions."""

    __slots__ = (
        "_begun",
        "_held",
        "_outcome",
        "_questions",
        "_registry",
        "arguments",
        "id",
        "lost",
        "method",
        "name",
        "outlet",
        "owner",
        "plexus_hash",
        "provenance",
        "reason",
        "started",
        "steps",
        "supported",
        "task",
        "time_limit",
    )

    def __init__(
        self,
        name: str,
        method: Runnable,
        arguments: dict[str, Any],
        outlet: Outlet,
        *,
        provenance: tuple[str, ...] = (),
        plexus_hash: str = "",
        supported: frozenset[str] = frozenset(),
        time_limit: float | None = 30.0,
        owner: object = None,
    ) -> None:
        self.name = name
        self.method = method
        self.arguments = arguments
        self.outlet = outlet
        self.provenance = provenance
        self.plexus_hash = plexus_hash
        self.supported = supported
        self.time_limit = time_limit
        self.owner = owner
        self.id = ""
        self.lost = False
        self.reason: str | None = None
        self.started = time.monotonic()
        self.steps: list[tuple[str, Any]] | None = None
        self.task: asyncio.Task[None] | None = None
        self._begun = False
        self._held: deque[Item] | None = None
        self._outcome: Status | None = None
        self._questions: dict[str, OpenQuestion] | None = None
        self._registry: Calls | None = None

    # --- what others see ---------------------------------------------------------------------

    @property
    def status(self) -> Status:
        if self._outcome is not None:
            return self._outcome
        if not self._questions:
            return Status.RUNNING
        if all(isinstance(q.wanted.question, Sample) for q in self._questions.values()):
            return Status.AWAITING_SAMPLE
        return Status.AWAITING_ANSWER

    @property
    def questions(self) -> list[Wanted]:
        """The open questions, the most urgent first, then the oldest."""
        waiting = sorted((self._questions or {}).values(), key=_urgency)
        return [q.wanted for q in waiting]

    def info(self) -> CallInfo:
        now = time.monotonic()
        waiting = sorted((self._questions or {}).values(), key=_urgency)
        questions = tuple(
            QuestionInfo(
                q.wanted.request_id,
                q.wanted.question.kind,
                q.wanted.question.message,
                q.wanted.priority,
                now - q.asked,
            )
            for q in waiting
        )
        return CallInfo(self.id, self.name, self.status, now - self.started, questions)

    def answer(self, request_id: str, payload: Any) -> None:
        """Give an answer, in any accepted form. Raises `UnknownQuestion` or `WrongAnswer`."""
        question = (self._questions or {}).get(request_id)
        if question is None:
            raise UnknownQuestion(request_id)
        try:
            question.value = question.wanted.read(payload)
        except (MidcallError, TypeError, ValueError) as error:
            if not _is_refusal(error):
                raise
            self._forget(question)
            question.round.fail(error)
            return
        self._forget(question)
        question.round.answered()

    def abort(self, reason: str = "The call was aborted") -> bool:
        """Stop the call; it ends with an error that gives the reason. False if it had ended."""
        if self._outcome is not None or self.reason is not None:
            return False
        self.reason = reason
        if self._begun and self.task is not None:
            self.task.cancel()
        return True

    def lose_caller(self) -> None:
        """Nobody can answer any more: open questions and later ones fail with `TransportLost`."""
        self.lost = True
        for question in list((self._questions or {}).values()):
            self._forget(question)
            question.round.fail(TransportLost("The line to the caller is closed"))

    # --- what the tool does, through `Ask` ---------------------------------------------------

    async def ask(self, round_of: Sequence[Wanted]) -> list[Any]:
        """Ask questions together and wait for all answers, in the order given.

        The first that fails (timed out, cancelled, declined) ends the round: the others are
        withdrawn and its error is raised.
        """
        if self.lost:
            raise TransportLost("The line to the caller is closed")
        for wanted in round_of:
            if wanted.question.kind not in self.supported:
                raise NotSupported(_cannot(wanted.question.kind, self.supported))
        loop = asyncio.get_running_loop()
        round = Round(len(round_of), loop.create_future())
        asked: dict[int, OpenQuestion] = {}
        try:
            for place, wanted in sorted(enumerate(round_of), key=lambda p: _rank(p[1])):
                await self._make_room()
                asked[place] = self._open(wanted, round, loop)
            await round.future
        except BaseException as error:
            for question in asked.values():
                self._withdraw(question, _why(error))
            raise
        return [asked[place].value for place in range(len(round_of))]

    def cancel_question(self, request_id: str, reason: str) -> bool:
        """Withdraw an open question; its waiter gets `Cancelled`. False if it is not open."""
        question = (self._questions or {}).get(request_id)
        if question is None:
            return False
        self._withdraw(question, reason)
        question.round.fail(Cancelled(reason))
        return True

    async def emit(self, content: Any) -> None:
        """Send a piece of the result, as fast as the reader takes it."""
        await self._make_room()
        self.outlet.put(Data(self._stamp(), self.name, content))

    def progress(self, message: str, percentage: float | None) -> None:
        """Tell how far it is, at once; a reader that is behind gets only the newest report."""
        self._put_or_hold(Progress(self._stamp(), message, percentage))

    def log(self, level: str, message: str, data: Any) -> None:
        """Send a line of log; a reader that is behind loses the oldest lines."""
        self._put_or_hold(Log(self._stamp(), level, message, data))

    # --- running -----------------------------------------------------------------------------

    async def run(self) -> None:
        """The body of the call's task: run the method, emit what it gives, end with `Done`."""
        self._begun = True
        failure: Error | None = None
        try:
            if self.reason is None:
                if self.method.streaming:
                    await self._stream(self.method.invoke(self, self.arguments))
                else:
                    await self._single(self.method.invoke(self, self.arguments))
        except asyncio.CancelledError:
            self.reason = self.reason or "The call was cancelled"
        except MidcallError as error:
            failure = Error(self._stamp(), str(error), error.code, error.recoverable)
        except Exception as error:
            log.warning("%s failed", self.name, exc_info=True)
            failure = Error(self._stamp(), str(error) or type(error).__name__, "tool_error")
        finally:
            self._finish(failure)

    async def _single(self, body: Awaitable[Any]) -> None:
        content = await body
        if content is not None:
            outlet = self.outlet
            if self._held or outlet.full:
                await self._make_room()
            outlet.put(Data(self._stamp(), self.name, content))

    async def _stream(self, body: AsyncIterator[Any]) -> None:
        try:
            async for content in body:
                await self.emit(content)
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(body, "aclose", None)
            if close is not None:
                await close()

    def _finish(self, failure: Error | None) -> None:
        if self.reason is not None:
            failure = Error(self._stamp(), self.reason, Aborted.code)
        for question in list((self._questions or {}).values()):
            self._withdraw(question, "The call has ended")
            question.round.fail(Aborted("The call has ended"))
        self._outcome = (
            Status.COMPLETED if failure is None else Status.FAILED if self.reason is None else Status.ABORTED
        )
        if self._registry is not None:
            self._registry.ended(self)
        self._release()
        if failure is not None:
            self.outlet.put(failure)
        self.outlet.put(Done(self._stamp()))

    # --- questions ---------------------------------------------------------------------------

    def _open(self, wanted: Wanted, round: Round, loop: asyncio.AbstractEventLoop) -> OpenQuestion:
        if self.reason is not None or self._outcome is not None:
            raise Aborted(self.reason or "The call has ended")
        question = OpenQuestion(wanted, round)
        wanted.request_id = str(uuid.uuid4())
        if self._questions is None:
            self._questions = {}
        self._questions[wanted.request_id] = question
        if self._registry is not None:
            self._registry.asked(wanted.request_id, self)
        if wanted.timeout is not None:
            question.timer = loop.call_later(wanted.timeout, self._time_out, question)
        timeout_ms = None if wanted.timeout is None else round_ms(wanted.timeout)
        self.outlet.put(
            Request(self._stamp(), wanted.request_id, wanted.question, timeout_ms, wanted.priority)
        )
        return question

    def _time_out(self, question: OpenQuestion) -> None:
        self._withdraw(question, "timed out")
        question.round.fail(TimedOut("Nobody answered in time"))

    def _withdraw(self, question: OpenQuestion, reason: str) -> None:
        """Close a question that has no answer, and tell whoever shows it."""
        if self._forget(question):
            self.outlet.put(RequestCancelled(self._stamp(), question.wanted.request_id, reason))

    def _forget(self, question: OpenQuestion) -> bool:
        if question.timer is not None:
            question.timer.cancel()
        request_id = question.wanted.request_id
        if self._questions is None or self._questions.pop(request_id, None) is None:
            return False
        if self._registry is not None:
            self._registry.settled(request_id)
        return True

    # --- items -------------------------------------------------------------------------------

    def _stamp(self) -> Any:
        return stamp(self.provenance, self.plexus_hash)

    async def _make_room(self) -> None:
        outlet = self.outlet
        if outlet.full:
            await outlet.drain()
        if self._held:
            self._release()

    def _put_or_hold(self, item: Progress | Log) -> None:
        if self._outcome is not None:
            return
        if not self.outlet.full:
            self._release()
            self.outlet.put(item)
            return
        if self._held is None:
            self._held = deque(maxlen=HELD_LIMIT)
        if isinstance(item, Progress) and self._held and isinstance(self._held[-1], Progress):
            self._held.pop()
        self._held.append(item)

    def _release(self) -> None:
        while self._held:
            self.outlet.put(self._held.popleft())


class Calls:
    """All calls of a hub that run or wait: start, find, answer, abort, list."""

    def __init__(self, limit: int = 100_000) -> None:
        self.limit = limit
        self._active: dict[str, Call] = {}
        self._asking: dict[str, Call] = {}
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def start(self, call: Call) -> Call:
        """Give the call an id and a task. Raises `TooManyCalls` at the limit."""
        if len(self._active) >= self.limit:
            raise TooManyCalls(f"More than {self.limit} calls at once; try again later")
        call.id = f"{self._prefix}-{next(self._numbers)}"
        call._registry = self
        self._active[call.id] = call
        call.task = asyncio.get_running_loop().create_task(call.run())
        return call

    def answer(self, request_id: str, payload: Any, *, owner: object = None) -> None:
        """Answer an open question of this owner's calls; to anybody else it does not exist."""
        call = self._asking.get(request_id)
        if call is None or (owner is not None and call.owner is not owner):
            raise UnknownQuestion(request_id)
        call.answer(request_id, payload)

    def get(self, call_id: str) -> Call | None:
        return self._active.get(call_id)

    def abort(self, call_id: str, reason: str = "The call was aborted") -> bool:
        """Stop a call by its id; false if it does not run."""
        call = self._active.get(call_id)
        return call is not None and call.abort(reason)

    def list(self) -> "list[CallInfo]":
        """The active calls, the oldest first, with their open questions."""
        return [call.info() for call in self._active.values()]

    def __len__(self) -> int:
        return len(self._active)

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._active.values()))

    @property
    def open_questions(self) -> int:
        return len(self._asking)

    async def close(self, reason: str = "The server is closing") -> None:
        """Abort everything and wait until it has ended."""
        await end_all(tuple(self._active.values()), reason)

    # Called by `Call` alone.

    def asked(self, request_id: str, call: Call) -> None:
        self._asking[request_id] = call

    def settled(self, request_id: str) -> None:
        self._asking.pop(request_id, None)

    def ended(self, call: Call) -> None:
        self._active.pop(call.id, None)


async def end_all(calls: Sequence[Call], reason: str) -> None:
    """Abort these calls and wait until their tasks are over."""
    for call in calls:
        call.abort(reason)
    tasks = [call.task for call in calls if call.task is not None]
    if tasks:
        await asyncio.wait(tasks)


def round_ms(seconds: float) -> int:
    """Seconds as whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def _rank(wanted: Wanted) -> int:
    return -PRIORITIES.index(wanted.priority)


def _urgency(question: OpenQuestion) -> tuple[int, float]:
    return _rank(question.wanted), question.asked


def _cannot(kind: str, supported: frozenset[str]) -> str:
    if not supported:
        return "This caller cannot be asked: interactive mode required"
    return f"This caller cannot answer a question of kind {kind}, only {', '.join(sorted(supported))}"


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, MidcallError) and error.code in ("cancelled", "declined")


def _why(error: BaseException) -> str:
    return "The call was cancelled" if isinstance(error, asyncio.CancelledError) else str(error)

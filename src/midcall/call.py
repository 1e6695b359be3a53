"""Call: one running method, its status, its items and its open questions.

A call owns one task and emits items into its outlet. A slow outlet says so with `full`, and the call
then waits in `drain` before it emits more. However a call ends, its last item is `Done`, and no
question of it is open any more.

Above this module stand `calls` (the registry), `ask` (what an author meets) and the hub; it knows
none of them, nor any protocol.
"""

import asyncio
import contextlib
import logging
import secrets
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from midcall.errors import Aborted, MidcallError, TransportLost, UnknownQuestion
from midcall.items import NOWHERE, UNSENDABLE, Data, Done, Error, Item, Log, Metadata, Outlet, Progress
from midcall.open_questions import MISSING, SILENT, OpenQuestions, QuestionInfo, Wanted, timed_out
from midcall.principal import CallSource, Principal
from midcall.replay import Entry, Trace, answered, asked, failed, question_id, recall_answers, withdrawn

log = logging.getLogger("midcall.call")

PROCESS = secrets.token_hex(4)
"""What the ids of all calls of this process begin with."""

TURN = 64
"""After how many elements a stream that never waits lets other calls run."""


class Status(StrEnum):
    """Where a call stands."""

    RUNNING = "running"
    AWAITING_ANSWER = "awaiting_answer"
    AWAITING_SAMPLE = "awaiting_sample"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


_MISTAKES = (
    LookupError, TypeError, AttributeError, NameError, ArithmeticError, AssertionError, ImportError
)  # fmt: skip
"""Errors of code rather than words of its author: what they say means little without their type."""

_COMPLETED = Status.COMPLETED  # looking up a member takes a while in Python 3.11


class _FilledIn:
    """Marks a parameter that is not an argument."""


CALLER = _FilledIn()
LIFESPAN = _FilledIn()

CallerName: TypeAlias = Annotated[str | None, CALLER]
"""The type of a parameter that is filled in with the name of whoever calls; nothing if it is not known.

It is not in the schema of the method. Two callers without a name cannot be told apart.
"""

Value = TypeVar("Value")

Lifespan: TypeAlias = Annotated[Value, LIFESPAN]
"""The type of a parameter that is filled in with what the lifespan of its hub gives: `db: Lifespan[Pool]`.

It is not in the schema of the method. A hub without a lifespan gives that of the hub that it is nested in.
"""


AskElsewhere: TypeAlias = Callable[
    ["Call", Wanted, Callable[[Any, Exception | None], None], Callable[[str | None], None] | None],
    Callable[[str], None],
]
"""Asks by the journal what a call wants to know: calls back once, with the answer's value or why there is
none; and before that, if it is for the caller, with its link. Gives what has the question withdrawn."""


class Runnable(Protocol):
    """What a call runs: a method, as `activation` reads it."""

    @property
    def streaming(self) -> bool:
        """Whether `invoke` gives an async iterator instead of an awaitable."""

    def invoke(self, call: "Call", arguments: Any) -> Any:
        """Start the body with arguments as the method has read them."""


_SOURCE, SOURCE_PLACE = "source", "0/source"
"""How the source of a call is kept: at a place that its code never comes to, whether it takes it or not."""


def source_entry(source: CallSource) -> Entry:
    """The entry by which the source of a call is kept."""
    return Entry(SOURCE_PLACE, _SOURCE, "done", msgspec.json.encode(source))


def source_in(entry: Entry) -> CallSource:
    """The source that is kept by an entry."""
    return msgspec.json.decode(entry.value, type=CallSource)


HELD_LIMIT = 100
"""How many reports are held for a reader who does not keep up."""


class Reports:
    """Progress and log lines of one call, on their way to a reader who may be behind.

    Reporting never waits, so what a slow reader cannot take is held, within bounds: of progress only the
    newest, of log lines the last hundred. A report may come from a worker thread.
    """

    __slots__ = ("_closed", "_handing_over", "_held", "_loop", "_outlet")

    def __init__(self, outlet: Outlet, loop: asyncio.AbstractEventLoop) -> None:
        self._outlet = outlet
        self._loop = loop
        self._held: deque[Progress | Log] = deque(maxlen=HELD_LIMIT)
        self._handing_over = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    def put(self, report: Progress | Log) -> None:
        """Send a report, now or when the reader has caught up."""
        if not _in_event_loop():
            self._hand_over(report)
        elif self._outlet.full:
            if isinstance(report, Progress) and self._held and isinstance(self._held[-1], Progress):
                self._held.pop()
            self._held.append(report)
        else:
            self.release()
            self._outlet.put(report)

    def release(self) -> None:
        """Send what is held."""
        for _ in range(len(self._held)):
            try:
                self._outlet.put(self._held.popleft())
            except UNSENDABLE:  # JSON cannot carry it; nobody is left to be told
                log.warning("A report cannot be sent", exc_info=True)

    def close(self) -> None:
        """Send what is held, and nothing after it: a thread may outlive its call."""
        self.release()
        self._closed = True

    def _hand_over(self, report: Progress | Log) -> None:
        """In a worker thread: let the event loop send it."""
        self._held.append(report)
        if not self._handing_over:
            self._handing_over = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take_over)

    def _take_over(self) -> None:
        self._handing_over = False
        if not self._closed and not self._outlet.full:
            self.release()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class CallInfo(Struct, frozen=True):
    """A call, for a list; ages are in seconds."""

    id: str
    method: str
    status: Status
    age: float
    questions: tuple[QuestionInfo, ...] = ()


class Call(Struct, eq=False):
    """One running method. (A struct because a call is made for every request: its making is hot.)"""

    name: str
    method: Runnable
    arguments: Any
    """As the method has read them."""
    outlet: Outlet
    metadata: Metadata
    supported: frozenset[str] = frozenset()
    """The kinds of question that the caller can answer."""
    time_limit: float | None = 30.0
    """Seconds that a question waits if the tool does not say."""
    owner: object = None
    """Who alone may answer the questions."""
    principal: str | None = None
    """The name of whoever calls, where the transport has found it out."""
    size: int = 0
    """How many bytes its arguments had."""
    on_result: Callable[[Any, Error | None], None] | None = None
    """Gets the result of a method that neither streams nor asks, or its failure, in place of items."""

    model_answers: bool = False
    """Whether the caller's model answers the questions, in the place of its person."""
    number: int = 0
    started: float = 0.0
    task: asyncio.Future[None] | None = None
    """What runs it; of one that another server runs, what waits for that."""
    asking: MutableMapping[str, Any] = {}
    reason: str | None = None
    """Why the call was aborted, if it was."""
    lost: bool = False
    trace: Trace | None = None
    """What it has done, if it asks."""
    dropped: bool = False
    """Whether it was given up here, to be run again later or elsewhere."""
    over: bool = False
    """Whether it was given up because it is not to go on anywhere."""
    begun: bool = False
    ask_elsewhere: AskElsewhere | None = None
    """Asks somebody else than the caller, if the call itself is not kept (see `journal.kept_questions`)."""
    gives_links: bool = False
    """Whether the caller cannot show questions, and is told where they are (see `items.Request.link`)."""
    outcome: Status | None = None
    questions: OpenQuestions | None = None
    reports: Reports | None = None
    source: CallSource | None = None
    """Where it comes from, if its method wants to know."""

    # --- what others see and do --------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name of this call; nobody can guess the one of another process."""
        return f"{PROCESS}-{self.number}"

    @property
    def status(self) -> Status:
        if self.outcome is not None:
            return self.outcome
        if not self.questions:
            return Status.RUNNING
        return Status.AWAITING_SAMPLE if self.questions.only_samples else Status.AWAITING_ANSWER

    @property
    def own_trace(self) -> Trace:
        """Where it writes down what it does, from now on.

        Its name goes outside with the keys of steps: no other call has it, in this process or any other, also
        of those that are not listed and so have no number.
        """
        if self.trace is None:
            self.trace = Trace(uuid.uuid4().hex)
        return self.trace

    def keep_source(self) -> None:
        """Have the same source whenever it is run again: that of the request that has begun it."""
        before = self.own_trace.recall(SOURCE_PLACE, _SOURCE)
        if before is not None:
            self.source = source_in(before)
        elif self.source is not None:
            self.own_trace.note(source_entry(self.source))

    @property
    def known_source(self) -> CallSource:
        """Where it comes from, as far as that is known."""
        return self.source or CallSource(None if self.principal is None else Principal(self.principal))

    @property
    def asks_elsewhere(self) -> bool:
        """Whether others than the caller are asked apart from it: it is not kept, but a question can be."""
        return self.ask_elsewhere is not None and (self.trace is None or not self.trace.kept)

    def can_ask(self, wanted: Wanted) -> bool:
        """Whether whoever is meant can be asked this: the caller, or by the journal anybody else."""
        if wanted.to is not None and (self.asks_elsewhere or (self.trace is not None and self.trace.kept)):
            return True
        return wanted.question.kind in self.supported

    def check_goes_on(self) -> None:
        """Raise if it is not to go on here, whatever the code that runs has made of that."""
        if self.trace is not None and self.trace.diverged is not None:
            raise self.trace.diverged
        if self.dropped or self.reason is not None:
            raise asyncio.CancelledError

    def info(self) -> CallInfo:
        questions = self.questions.infos() if self.questions else ()
        return CallInfo(self.id, self.name, self.status, time.monotonic() - self.started, questions)

    def answer(self, request_id: str, payload: Any) -> None:
        """Give an answer, in any accepted form. Raises `UnknownQuestion` or `WrongAnswer`."""
        if self.questions is None:
            raise UnknownQuestion(request_id)
        self.questions.answer(request_id, payload)

    def check_answer(self, request_id: str, payload: Any) -> None:
        """Raise `UnknownQuestion` or `WrongAnswer` if `hold_answer` would, or is to wait; nothing changes."""
        if self.questions is None:
            raise UnknownQuestion(request_id)
        self.questions.check(request_id, payload)

    def abort(self, reason: str = "The call was aborted") -> bool:
        """Stop the call; it ends with an error that gives the reason. False if it had ended."""
        if self.outcome is not None or self.reason is not None:
            return False
        self.reason = reason
        if self.begun and self.task is not None:
            self.task.cancel()
        return True

    def drop(self, *, over: bool = False) -> None:
        """Give the call up in this process: it is in the journal, and is run again from there.

        Its coroutine is thrown away; of what it still does, nothing counts and nothing goes out. If it is
        `over`, somebody has ended it, and it is not run again either.
        """
        self.dropped = True
        self.over = over
        self.outlet = NOWHERE
        if self.trace is not None:
            self.trace.closed = True
        if self.questions is not None:
            self.questions.forget_all()
        self.abort("The call goes on elsewhere")

    def lose_caller(self) -> None:
        """Nobody can answer any more: open questions and later ones fail with `TransportLost`.

        A call that is kept does not depend on the line by which it was started.
        """
        if self.trace is not None and self.trace.kept:
            return
        self.lost = True
        if self.questions:
            self.questions.lose_all(_lost())

    # --- what the tool does, through `Ask` ---------------------------------------------------

    async def ask(self, wanted: Sequence[Wanted]) -> list[Any]:
        """Ask questions together and wait for all answers, in the order given."""
        if self.questions is None:
            self.questions = OpenQuestions(self, self.asking)
        if self.trace is None or not self.trace.kept:
            return await self.questions.ask(wanted)
        answers = recall_answers(self.trace, wanted)
        if any(answer is SILENT for answer in answers):
            await _silence(wanted)
        missing = [n for n, answer in enumerate(answers) if answer is MISSING]
        if missing:
            for n, answer in zip(
                missing, await self.questions.ask([wanted[n] for n in missing]), strict=True
            ):
                answers[n] = answer
        return answers

    def cancel_question(self, request_id: str, reason: str) -> bool:
        """Withdraw an open question; its waiter gets `Cancelled`. False if it is not open."""
        return self.questions is not None and self.questions.withdraw(request_id, reason)

    async def emit(self, content: Any) -> None:
        """Send a piece of the result, as fast as the reader takes it."""
        if self.reason is not None:
            raise asyncio.CancelledError  # the tool swallowed the first one
        if self.outlet.full or self.reports:
            await self.make_room()
        self.outlet.put(Data(self.stamp(), self.name, content))

    def progress(self, message: str, percentage: float | None) -> None:
        """Tell how far it is, at once; a reader that is behind gets only the newest report."""
        self._report(Progress(self.stamp(), message, percentage))

    def log(self, level: str, message: str, data: Any) -> None:
        """Send a line of log; a reader that is behind loses the oldest lines."""
        self._report(Log(self.stamp(), level, message, data))

    def _report(self, report: Progress | Log) -> None:
        if self.outcome is not None or self.task is None:
            return
        if self.reports is None:
            self.reports = Reports(self.outlet, self.task.get_loop())
        self.reports.put(report)

    # --- what its questions need -------------------------------------------------------------

    def check_can_ask(self) -> None:
        """Raise if nobody can be asked any more."""
        if self.reason is not None or self.outcome is not None:
            raise Aborted(self.reason or "The call has ended")
        if self.lost:
            raise _lost()

    async def make_room(self) -> None:
        """Wait while the reader is behind."""
        if self.outlet.full:
            await self.outlet.drain()
        if self.reports:
            self.reports.release()

    def stamp(self) -> Metadata:
        """Metadata for an item that is emitted now."""
        now = int(time.time())
        if now != self.metadata.timestamp:
            self.metadata = Metadata(self.metadata.provenance, self.metadata.plexus_hash, now)
        return self.metadata

    def put(self, item: Item) -> None:
        """Emit an item."""
        self.outlet.put(item)

    def name_of(self, wanted: Wanted) -> str:
        """An id for a question: random, but the same one when the call is run again."""
        if self.trace is None or not wanted.place:
            return str(uuid.uuid4())
        return question_id(self.trace.call_id, wanted.place)

    def asked(self, wanted: Wanted) -> None:
        """A question waits."""
        if self.trace is not None and wanted.place:
            self.trace.note(asked(wanted))

    def hold_answer(self, request_id: str, payload: Any) -> Entry:
        """Take an answer that is to be kept before the tool gets it: what is to be written down of it.

        Raises `UnknownQuestion` or `WrongAnswer`. Then come `give_answer`, or `let_go_answer`.
        """
        if self.questions is None:
            raise UnknownQuestion(request_id)
        return answered(self.questions.hold(request_id, payload), payload)

    def give_answer(self, request_id: str) -> bool:
        """The answer is kept: the tool goes on. False if it does not wait for it any more."""
        wanted = None if self.questions is None else self.questions.give(request_id)
        if wanted is not None and self.trace is not None:
            self.trace.is_kept(wanted.place)
        return wanted is not None

    def let_go_answer(self, request_id: str) -> None:
        """The answer could not be kept."""
        if self.questions is not None:
            self.questions.let_go(request_id)

    def answered(self, wanted: Wanted, payload: Any) -> None:
        """A question is answered, also with a refusal."""
        if self.trace is not None and wanted.place:
            self.trace.note(answered(wanted, payload))

    def failed(self, wanted: Wanted, error: MidcallError) -> None:
        """A question ends without an answer, though somebody could still have given one."""
        if self.trace is not None and wanted.place:
            self.trace.note(failed(wanted, error))

    def withdrawn(self, wanted: Wanted) -> None:
        """The code that had asked was cancelled while the question waited, but not with the call."""
        if self.trace is not None and wanted.place and self.reason is None:
            self.trace.note(withdrawn(wanted))

    # --- running -----------------------------------------------------------------------------

    async def run(self, ended: Callable[["Call"], None]) -> None:
        """The body of the call's task: run the method, emit what it gives, end with `Done`."""
        self.begun = True
        if self.trace is not None:
            self.trace.enter()
        content: Any = None
        failure: Error | None = None
        try:
            if self.reason is None:
                if self.method.streaming:
                    await self.stream(self.method.invoke(self, self.arguments))
                else:
                    content = await self.method.invoke(self, self.arguments)
                    if content is not None and self.on_result is None:
                        await self.emit(content)
        except asyncio.CancelledError:
            self.reason = self.reason or "The call was cancelled"
        except (Exception, SystemExit) as error:  # noqa: BLE001  the caller is told
            failure = self._failure(error)
        except BaseException:
            failure = Error(self.stamp(), "The server was interrupted", Aborted.code)
            raise
        finally:
            ended(self)
            self._finish(failure, content)

    async def stream(self, body: AsyncIterator[Any]) -> None:
        """Emit all that a stream gives."""
        sent = 0
        try:
            async for content in body:
                await self.emit(content)
                sent += 1
                if sent % TURN == 0:
                    await asyncio.sleep(0)
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(body, "aclose", None)
            if close is not None:
                await close()

    def _failure(self, error: BaseException) -> Error:
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]  # of a task group in which one task failed
        if isinstance(error, MidcallError):
            return Error(self.stamp(), sendable(str(error)), error.code, error.recoverable)
        log.warning("%s failed", self.name, exc_info=error, extra=self._about())
        kind, text = type(error).__name__, sendable(str(error))
        message = f"{kind}: {text}" if text and isinstance(error, _MISTAKES) else text or kind
        return Error(self.stamp(), message, "tool_error")

    def _about(self) -> dict[str, Any]:
        """What a line of log says of this call."""
        if self.trace is not None and self.trace.kept:
            return {"call": self.trace.call_id, "method": self.name, "segment": self.trace.segment}
        return {"call": self.id if self.number else None, "method": self.name}

    def _finish(self, failure: Error | None, content: Any) -> None:
        self.outcome = _COMPLETED if failure is None else Status.FAILED
        if self.reason is not None:
            self.outcome = Status.ABORTED
            failure = Error(self.stamp(), self.reason, Aborted.code)
        on_result, self.on_result = self.on_result, None  # it leads back here
        if on_result is not None:
            on_result(content, failure)
            return
        if self.questions:
            self.questions.withdraw_all("The call has ended", Aborted("The call has ended"))
        self.questions = None  # as above
        if self.reports is not None:
            self.reports.close()
        if failure is not None:
            self.outlet.put(failure)
        self.outlet.put(Done(self.stamp()))


async def _silence(wanted: Sequence[Wanted]) -> None:
    """What has cancelled questions before does so again; if not, nobody has answered in time."""
    first = min(wanted, key=lambda one: float("inf") if one.timeout is None else one.timeout)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(first.timeout):
            await asyncio.get_running_loop().create_future()
    raise timed_out(first)


def _lost() -> TransportLost:
    return TransportLost("The line to the caller is closed")


def sendable(text: str) -> str:
    """Without lone surrogates, as file names may have them: JSON cannot carry those."""
    return text.encode(errors="replace").decode()

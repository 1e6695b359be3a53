"""The open questions of one call: asked in rounds, answered, withdrawn, timed out.

Questions that are asked together are a round, which ends with the last answer or the first failure.
Whichever way a question ends, it is forgotten here and in the index of `calls`, and its timer is
gone.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from midcall import metrics
from midcall.errors import (
    AskError,
    Cancelled,
    Declined,
    MidcallError,
    NotSupported,
    TimedOut,
    UnknownQuestion,
    WrongType,
)
from midcall.items import Request, RequestCancelled
from midcall.questions import PERSON_KINDS, PRIORITIES, AnyQuestion, Priority, Sample

if TYPE_CHECKING:
    from midcall.call import Call

MISSING: Any = object()
"""No value yet."""

SILENT: Any = object()
"""No value, as before: whoever had asked was cancelled, and will be again. Nobody is asked meanwhile."""

TIMED_OUT = "timed out"
"""The reason of a `request_cancelled` item for a question that nobody answered in time."""


class Wanted(Protocol):
    """A question that is about to be asked: what `ask` hands to its call."""

    question: AnyQuestion
    timeout: float | None
    """How many seconds it waits from `since` on."""
    priority: Priority
    key: str | None
    request_id: str
    place: str
    """Where in the call it is asked, and what it was (see `trace`); empty if nothing is kept."""
    fingerprint: str
    since: float
    """When it was first asked, also if that was in another process; 0 if it was not yet."""
    note: str
    """What would have been expected of an answer that was given before and could not be read."""
    to: str | None
    """Who is asked in place of the caller."""

    def read(self, payload: Any) -> Any:
        """The answer's value for the tool, or `WrongAnswer`.

        Raises `Cancelled` or `Declined` if it is refused, and `WrongType` if it is taken, but of no use.
        """


class QuestionInfo(Struct, frozen=True):
    """An open question, for a list."""

    request_id: str
    kind: str
    message: str
    priority: Priority
    age: float


class Round:
    """Questions asked together, and the future that waits for all of them."""

    __slots__ = ("future", "missing")

    def __init__(self, missing: int, future: asyncio.Future[None]) -> None:
        self.missing = missing
        self.future = future

    @property
    def over(self) -> bool:
        """Whether nobody waits any more, though some questions may still have to be withdrawn."""
        return self.future.done()

    def answered(self) -> None:
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def close(self) -> None:
        """Nobody will wait: an error that came meanwhile is not to be missed."""
        if not self.future.cancel() and not self.future.cancelled():
            self.future.exception()


class OpenQuestion:
    """A question that waits."""

    __slots__ = (
        "asked",
        "held",
        "round",
        "settled_elsewhere",
        "timer",
        "unsent",
        "value",
        "wanted",
        "withdraw_elsewhere",
    )

    def __init__(self, wanted: Wanted, round: Round) -> None:
        self.wanted = wanted
        self.round = round
        self.asked = time.monotonic()
        self.timer: asyncio.TimerHandle | None = None
        self.value: Any = None
        self.held: Any = MISSING
        """What an answer was read as that is on its way into the journal: meanwhile the question neither
        times out nor takes another one."""
        self.withdraw_elsewhere: Callable[[str], None] | None = None
        """Of a question that waits elsewhere: has it withdrawn there, if it still is."""
        self.settled_elsewhere = False
        """Whether it has ended there, and was counted."""
        self.unsent: Request | None = None
        """What the caller is asked as soon as there is a link to it."""

    @property
    def only_elsewhere(self) -> bool:
        """Whether the caller is not asked."""
        return self.withdraw_elsewhere is not None and self.wanted.to is not None


class OpenQuestions:
    """All that one call has asked and has no answer to yet."""

    __slots__ = ("_call", "_index", "_open")

    def __init__(self, call: "Call", index: MutableMapping[str, Any]) -> None:
        self._call = call
        self._index = index
        self._open: dict[str, OpenQuestion] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def only_samples(self) -> bool:
        """Whether all that is missing comes from a model."""
        return all(isinstance(q.wanted.question, Sample) for q in self._open.values())

    def infos(self) -> tuple[QuestionInfo, ...]:
        """The open questions, the most urgent first, then the oldest."""
        now = time.monotonic()
        return tuple(
            QuestionInfo(
                q.wanted.request_id,
                q.wanted.question.kind,
                q.wanted.question.message,
                q.wanted.priority,
                now - q.asked,
            )
            for q in sorted(self._open.values(), key=_urgency)
        )

    async def ask(self, wanted: Sequence[Wanted]) -> list[Any]:
        """Ask one round and wait for its answers, in the order given.

        The first question that fails (timed out, cancelled, declined) ends the round: the others
        are withdrawn and its error is raised.
        """
        call = self._call
        call.check_can_ask()
        for one in wanted:
            if not call.can_ask(one):
                raise NotSupported(_cannot(one.question.kind, call.supported))
        loop = asyncio.get_running_loop()
        round = Round(len(wanted), loop.create_future())
        asked: dict[int, OpenQuestion] = {}
        try:
            for place, one in _by_urgency(wanted):
                await call.make_room()
                if round.over:
                    break
                call.check_can_ask()
                asked[place] = OpenQuestion(one, round)
                self._put(asked[place], loop)
            await round.future
        except BaseException as error:
            for question in asked.values():
                if self._withdraw(question, _why(error)) and isinstance(error, asyncio.CancelledError):
                    call.withdrawn(question.wanted)
            round.close()
            raise
        return [asked[place].value for place in range(len(wanted))]

    def answer(self, request_id: str, payload: Any) -> None:
        """Give an answer, in any accepted form. Raises `UnknownQuestion` or `WrongAnswer`."""
        question = self._answerable(request_id)
        self._give(question, *_read(question.wanted, payload))
        self._call.answered(question.wanted, payload)

    def check(self, request_id: str, payload: Any) -> None:
        """Raise `UnknownQuestion` or `WrongAnswer` if `answer` would; nothing changes.

        A question counts whose answer is held: that may still be let go.
        """
        question = self._open.get(request_id)
        if question is None or question.round.over:
            raise UnknownQuestion(request_id)
        _read(question.wanted, payload)

    def hold(self, request_id: str, payload: Any) -> Wanted:
        """Take an answer that is to be kept before the tool gets it, by `give`; or else `let_go`.

        Raises as `answer` does. Until then the question does not time out, and takes no other answer.
        """
        question = self._answerable(request_id)
        question.held = _read(question.wanted, payload)
        if question.timer is not None:
            question.timer.cancel()
        return question.wanted

    def give(self, request_id: str) -> Wanted | None:
        """Give the answer that was held: to what. Nothing if the tool has withdrawn its question."""
        question = self._open.get(request_id)
        if question is None or question.round.over:
            return None
        self._give(question, *question.held)
        return question.wanted

    def reserve(self, request_id: str) -> None:
        """An answer that was given elsewhere is on its way: take no other, unless it is `let_go`.

        Raises `UnknownQuestion`.
        """
        self._answerable(request_id).held = None

    def let_go(self, request_id: str) -> None:
        """The answer that was held could not be kept: the question goes on to wait."""
        question = self._open.get(request_id)
        if question is not None:
            question.held = MISSING
            if question.timer is not None:
                question.timer = asyncio.get_running_loop().call_at(
                    question.timer.when(), self._time_out, question
                )

    def _answerable(self, request_id: str) -> OpenQuestion:
        question = self._open.get(request_id)
        if question is None or question.round.over or question.held is not MISSING:
            raise UnknownQuestion(request_id)
        return question

    def _give(self, question: OpenQuestion, value: Any, refusal: AskError | None) -> None:
        if refusal is not None:
            self._forget(question, _ending(refusal))
            question.round.fail(refusal)
        else:
            question.value = value
            self._forget(question, "answered")
            question.round.answered()

    def withdraw(self, request_id: str, reason: str) -> bool:
        """Take a question back; its waiter gets `Cancelled`. False if it is not open."""
        question = self._open.get(request_id)
        if question is None:
            return False
        self._fail(question, reason, Cancelled(reason))
        return True

    def fail(self, request_id: str, error: Exception) -> None:
        """End a question without an answer, because of what its client did; its waiter gets the error."""
        question = self._open.get(request_id)
        if question is not None:
            if isinstance(error, MidcallError):
                self._call.failed(question.wanted, error)
            self._forget(question, "cancelled" if isinstance(error, Cancelled) else "failed")
            question.round.fail(error)

    def withdraw_all(self, reason: str, error: Exception) -> None:
        """Take all questions back, and tell whoever shows them; their waiters get the error."""
        for question in list(self._open.values()):
            self._withdraw(question, reason)
            question.round.fail(error)

    def forget_all(self) -> None:
        """The call is given up in this process: nobody is told, and nobody waits any more."""
        for question in list(self._open.values()):
            self._forget(question)
            question.round.close()

    def lose_all(self, error: Exception) -> None:
        """Nobody shows the questions any more; their waiters get the error."""
        for question in list(self._open.values()):
            self._forget(question, "withdrawn")
            question.round.fail(error)

    def _put(self, question: OpenQuestion, loop: asyncio.AbstractEventLoop) -> None:
        wanted = question.wanted
        wanted.request_id = self._call.name_of(wanted)
        now = time.time()
        if not wanted.since:
            wanted.since = now
            metrics.question_asked(wanted.question.kind)
        self._open[wanted.request_id] = question
        ask_elsewhere = self._call.ask_elsewhere if self._call.asks_elsewhere else None
        if wanted.to is not None and ask_elsewhere is not None:
            settle = functools.partial(self._settled_elsewhere, question)
            question.withdraw_elsewhere = ask_elsewhere(self._call, wanted, settle, None)
            return
        self._index[wanted.request_id] = self._call
        left = None if wanted.timeout is None else wanted.since + wanted.timeout - now
        self._call.asked(wanted)
        request = Request(
            self._call.stamp(),
            wanted.request_id,
            wanted.question,
            None if left is None else max(1, round(left * 1000)),
            wanted.priority,
            wanted.key,
            wanted.place,
            wanted.fingerprint,
            wanted.note,
            wanted.since,
            wanted.to,
        )
        if self._call.gives_links and ask_elsewhere is not None and wanted.question.kind in PERSON_KINDS:
            question.unsent = request
            settle = functools.partial(self._settled_elsewhere, question)
            send = functools.partial(self._send, question)
            question.withdraw_elsewhere = ask_elsewhere(self._call, wanted, settle, send)
            return
        if left is not None:
            question.timer = loop.call_later(left, self._time_out, question)
        self._call.put(request)

    def _send(self, question: OpenQuestion, link: str | None) -> None:
        """Ask the caller what can be answered by a link too, if there is one."""
        request, question.unsent = question.unsent, None
        if request is not None and self._open.get(request.request_id) is question:
            self._call.put(replace(request, link=link))

    def _settled_elsewhere(self, question: OpenQuestion, value: Any, error: Exception | None) -> None:
        """A question that waited elsewhere has its answer, or has failed."""
        wanted = question.wanted
        if self._open.get(wanted.request_id) is not question or question.round.over:
            return
        question.settled_elsewhere, question.held = True, MISSING
        if error is None or isinstance(error, Cancelled | Declined | WrongType):
            self._give(question, value, error)
        elif wanted.to is not None:
            self._forget(question)
            question.round.fail(error)
        elif isinstance(error, TimedOut):
            self._time_out(question)
        else:  # it could not be kept: the caller is asked without a link
            question.settled_elsewhere, question.withdraw_elsewhere = False, None
            if wanted.timeout is not None:
                left = wanted.since + wanted.timeout - time.time()
                question.timer = asyncio.get_running_loop().call_later(left, self._time_out, question)
            self._send(question, None)

    def _time_out(self, question: OpenQuestion) -> None:
        self._fail(question, TIMED_OUT, timed_out(question.wanted))

    def _fail(self, question: OpenQuestion, reason: str, error: MidcallError) -> None:
        self._call.failed(question.wanted, error)
        self._withdraw(question, reason, "timed_out" if isinstance(error, TimedOut) else "withdrawn")
        question.round.fail(error)

    def _withdraw(self, question: OpenQuestion, reason: str, ending: metrics.Ending = "withdrawn") -> bool:
        """Take a question back, if it is open still."""
        withdrawn = self._forget(question, ending)
        if withdrawn and not question.only_elsewhere:
            self._call.put(RequestCancelled(self._call.stamp(), question.wanted.request_id, reason))
        return withdrawn

    def _forget(self, question: OpenQuestion, ending: metrics.Ending | None = None) -> bool:
        """A question waits here no longer; without an ending it goes on to wait elsewhere."""
        if question.timer is not None:
            question.timer.cancel()
        wanted = question.wanted
        self._index.pop(wanted.request_id, None)
        if self._open.pop(wanted.request_id, None) is None:
            return False
        if question.withdraw_elsewhere is not None:
            question.withdraw_elsewhere("The question is not asked any more")
        if ending is not None and not question.only_elsewhere and not question.settled_elsewhere:
            metrics.question_ended(wanted.question.kind, ending, wanted.since)
        return True


def _read(wanted: Wanted, payload: Any) -> tuple[Any, AskError | None]:
    """The answer's value for the tool, or the refusal that it gets. Raises `WrongAnswer`.

    Once for each answer: code of the author reads it, and might see it otherwise the next time.
    """
    try:
        return wanted.read(payload), None
    except (Cancelled, Declined, WrongType) as refusal:
        return None, refusal


def timed_out(wanted: Wanted) -> TimedOut:
    """The error of a question that nobody answered."""
    return TimedOut(f"Nobody answered in time (after {_lasting(wanted.timeout or 0)})")


def _lasting(seconds: float) -> str:
    """A time as people say it: `0.5 seconds`, `1 hour`, `7 days`."""
    size, unit = next((one for one in _UNITS if seconds >= one[0]), (1, "second"))
    number = f"{seconds / size:.3g}"
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"


_UNITS = ((24 * 3600, "day"), (3600, "hour"), (60, "minute"))


def _ending(refusal: AskError) -> metrics.Ending:
    if isinstance(refusal, Cancelled):
        return "cancelled"
    return "declined" if isinstance(refusal, Declined) else "failed"


def _by_urgency(wanted: Sequence[Wanted]) -> Iterable[tuple[int, Wanted]]:
    """Each with its place; mostly there is only one."""
    return enumerate(wanted) if len(wanted) == 1 else sorted(enumerate(wanted), key=lambda p: _rank(p[1]))


def _rank(wanted: Wanted) -> int:
    return -PRIORITIES.index(wanted.priority)


def _urgency(question: OpenQuestion) -> tuple[int, float]:
    return _rank(question.wanted), question.asked


def _cannot(kind: str, supported: frozenset[str]) -> str:
    if not supported:
        return "This caller cannot be asked: interactive mode required"
    return f"This caller cannot answer a question of kind {kind}, only {', '.join(sorted(supported))}"


def _why(error: BaseException) -> str:
    return "The call was cancelled" if isinstance(error, asyncio.CancelledError) else str(error)

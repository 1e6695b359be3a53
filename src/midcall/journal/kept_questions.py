"""Kept questions: what a call that is not kept asks somebody who is not on its line.

The caller of such a call stays on the line (a legacy MCP client, a WebSocket), and the call ends with that
line, or with its process. But whoever is asked is not on it: they answer later, through any worker. So the
question is in the journal, as a small durable call of its own that waits for the answer and hands it over.
So is what a legacy MCP client is asked that cannot show questions: its person answers by a link, or its
program by the respond tool, whichever comes first.

Only the worker that has the asking call may go on with it: what is answered elsewhere is forwarded (see
`forward`). It ends with the asking call; should the process die, any other worker ends it.
"""

import asyncio
import contextlib
import copy
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from midcall.call import Call
from midcall.errors import JournalError, MidcallError, TransportLost, UnknownQuestion
from midcall.items import Done, Item, Request, RequestCancelled
from midcall.journal.contract import CallRecord
from midcall.journal.dialect import Detached
from midcall.journal.state import asked_of, kind_of, new_record, waiting_for
from midcall.open_questions import Wanted
from midcall.questions import KINDS
from midcall.replay import Trace

if TYPE_CHECKING:
    from midcall.journal.durable import DurableCalls
    from midcall.registry import Resolved

KIND = "question"

LEASE = 180.0
"""Seconds after which others look whether whoever asks is still there; it is renewed three times as often."""

GONE = "Whoever asked is gone"

_OUTCOME = b"{}"

_SUFFIX = " (question)"

HandOver = Callable[[Any, Exception | None], None]

TellLink = Callable[[str | None], None]


class KeptQuestions:
    """The questions of the calls of one process that are not kept."""

    def __init__(self, durable: "DurableCalls") -> None:
        self._durable = durable
        self._open: set[KeptQuestion] = set()
        durable.kinds[KIND] = self._revive

    def ask(
        self, call: Call, wanted: Wanted, hand_over: HandOver, tell_link: TellLink | None
    ) -> Callable[[str], None]:
        """Ask what a call wants to know (see `call.AskElsewhere`)."""

        def settled(value: Any, error: Exception | None) -> None:
            self._open.discard(question)
            hand_over(value, error)

        def withdraw(reason: str) -> None:
            self._open.discard(question)
            question.withdraw(reason)

        question = KeptQuestion(self._durable, call, wanted, settled, tell_link)
        self._open.add(question)
        self._durable.spawn(question.start())
        return withdraw

    def close(self) -> None:
        """The process is about to end, and with it what asks."""
        for question in list(self._open):
            question.settle(None, TransportLost("The server is closing"))
            self._durable.spawn(_end(self._durable, question.record.id, GONE))

    def _revive(self, record: CallRecord) -> "tuple[Detached, Resolved]":
        self._durable.spawn(_end(self._durable, record.id, GONE))
        raise MidcallError(GONE)


class KeptQuestion(Detached):
    """One question, and the call that waits for its answer."""

    full = False

    __slots__ = ("_asked_as", "_asker", "_hand_over", "_renewing", "_tell_link", "_told", "_wanted", "over")

    def __init__(
        self,
        durable: "DurableCalls",
        asker: Call,
        wanted: Wanted,
        hand_over: HandOver,
        tell_link: TellLink | None,
    ) -> None:
        name = f"{asker.name}{_SUFFIX}"
        record = new_record(KIND, name, b"{}", b"{}", asker.principal, None, durable.time_limit)
        super().__init__(durable, record, KINDS)
        self._asker = asker
        self._asked_as = wanted.request_id
        self._wanted = copy.copy(wanted)
        """The same question, under an id of its own; whatever reads the answer is the asking call's."""
        self._hand_over = hand_over
        self._tell_link = tell_link
        """Tells the caller where it is, if it is the caller who is asked."""
        self._renewing: asyncio.TimerHandle | None = None
        self._told = False
        self.over = False
        """Whether the asking call waits for it no longer."""

    async def start(self) -> None:
        """Begin to wait."""
        call = Call(
            self.record.name,
            _Waits(),
            self,
            self,
            self._asker.metadata,
            KINDS,
            principal=self.record.principal,
        )
        try:
            await self.durable.open()
            if not self.over:
                self.durable.hub.calls.check_room(call)
                self.durable.admit(self, call)
                self.durable.start(self)
        except MidcallError as error:
            self.settle(None, error)

    async def wait(self, call: Call) -> None:
        """What its call does: ask, and hand over what came of that."""
        self._renew(call.own_trace)
        try:
            async with call.own_trace.working():
                (value,) = await call.ask((self._wanted,))
            self.settle(value, None)
        except MidcallError as error:
            self.settle(None, error)
        finally:
            if self._renewing is not None:
                self._renewing.cancel()

    def _renew(self, trace: Trace) -> None:
        """Say that whoever asks is still there."""
        trace.limits[:] = [time.time() + LEASE]
        if self.parked:
            self.changed()
        self._renewing = asyncio.get_running_loop().call_later(LEASE / 3, self._renew, trace)

    def settle(self, value: Any, error: Exception | None) -> None:
        """Hand over what came of it, once."""
        if not self.over:
            self.over = True
            self._hand_over(value, error)

    def withdraw(self, reason: str) -> None:
        """The asking call does not wait for it any more."""
        if not self.over:
            self.over = True
            self.durable.spawn(_end(self.durable, self.record.id, reason))

    async def take_answers(self, answers: Mapping[str, Any], *, sync: bool = True) -> Detached | None:
        """As the base does; meanwhile the asking call takes no other answer."""
        asking = self._asker.questions
        if self.over or asking is None:
            raise UnknownQuestion(next(iter(answers)))
        asking.reserve(self._asked_as)
        taken: Detached | None = None
        try:
            taken = await super().take_answers(answers, sync=sync)
        finally:
            if taken is not self:
                asking.let_go(self._asked_as)
        return taken

    # --- what its own call emits -------------------------------------------------------------

    def put(self, item: Item) -> None:
        match item:
            case Request():
                self.ask(item.request_id, item)
            case RequestCancelled():
                self.close(item.request_id)
            case Done() if self.call is not None and (self.journaled or self.about_to_write):
                self.end(self.call, _OUTCOME)
            case Done():
                self.durable.forget(self)
                self.let_go()

    async def drain(self) -> None:
        """Nobody is behind."""

    # --- what the base calls -----------------------------------------------------------------

    def waits(self) -> None:
        if not self._told and not self.over:
            self._told = True
            for one in asked_of(self.record).questions.values():
                url = self.durable.links.url(self.record, one)
                if self._tell_link is not None:
                    self._tell_link(url)
                else:
                    self._asker.progress(waiting_for(one, url), None)

    def ended(self) -> None:
        """It was handed over before."""

    def begin_again(self) -> None:
        """It is never run again."""

    def released(self) -> None:
        self.settle(None, TransportLost("The question was lost: another worker has taken it over"))

    def troubled(self, error: JournalError) -> None:
        if not self.journaled:
            self.settle(None, error)

    def stopped(self, error: MidcallError) -> None:
        self.settle(None, error)


class _Waits:
    """The method of such a call, as `Call` runs it."""

    streaming = False

    def invoke(self, call: Call, question: KeptQuestion) -> Awaitable[None]:
        return question.wait(call)


async def _end(durable: "DurableCalls", call_id: str, reason: str) -> None:
    with contextlib.suppress(JournalError):  # else it ends by its lease
        await durable.abort(call_id, reason, _OUTCOME)


def method_of(record: CallRecord) -> str:
    """The method that asks, of any durable call: of a kept question, that of whoever asks."""
    return record.name.removesuffix(_SUFFIX) if kind_of(record) == KIND else record.name


def aborted(reason: str) -> bytes:
    """The outcome of one that an administrator has aborted."""
    return _OUTCOME

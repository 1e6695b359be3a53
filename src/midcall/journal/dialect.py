"""The base of detached dialects: one durable call, as this process has it, and whoever comes back for it.

A call that asks may wait for days, so its caller goes and comes back: over MCP, on a WebSocket, in a chat.
What all of them need is here; a subclass says how questions and the end look on one wire. There is one such
object for each durable call in this process. It owns the call's record, its coroutine if that is here, and
what is on its way into the journal.

Whatever changes (a question is asked, answered, withdrawn; the call ends) only says so, by `changed`. Then
one coroutine at a time looks at how things stand and writes that down, until nothing has changed meanwhile:

    the call has ended                      so does the segment, and all of it is told
    questions are open, the call runs       it is parked: the segment ends, and the call waits
    questions are open, the call is parked  what it waits for is written anew
    nothing is open, the call is parked     it has gone on by itself: the next segment begins

A call that is parked may be at work all the same: another branch of it is in a step. Then it is *held*. Only
this worker may go on with it, as anybody else would do the step again, or give it up as interrupted; and what
is answered elsewhere is forwarded to this worker (see `forward`).

So it does not matter in which order things happen while something is being written. What a segment came to
is in the journal before anybody is told; see `state` for the states of a call, and `durable` for how a call
is found again.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import astuple, replace

from midcall import metrics
from midcall.call import Call
from midcall.call import Status as CallStatus
from midcall.errors import Diverged, Fenced, JournalError, MidcallError, UnknownQuestion, WrongAnswer
from midcall.items import Item, Request
from midcall.journal.contract import (
    KEEP,
    Addition,
    CallRecord,
    CallWrite,
    Claimed,
    Creation,
    Parking,
    Settlement,
    Status,
)
from midcall.journal.state import (
    Asked,
    after_segment,
    answers_for,
    encode_asked,
    is_next,
    refuse_others,
    size_of_call,
    waiting,
)
from midcall.replay import Entry

if TYPE_CHECKING:
    from midcall.journal.dbos import Work
    from midcall.journal.durable import DurableCalls

T = TypeVar("T")

log = logging.getLogger("midcall.journal")

PAUSES = (0.1, 0.3, 1.0, 5.0)
"""Seconds between tries to write to a journal that is away; the last one is repeated."""

TURNS = 3
"""How often what a call waits for may change while it is written, before it is told all the same."""


class Detached:
    """One durable call, and the outlet of its coroutine."""

    __slots__ = (
        "_changed",
        "_deadlines",
        "_end",
        "_taking",
        "_waiters",
        "_working",
        "call",
        "durable",
        "gone",
        "held",
        "journaled",
        "lock",
        "notes",
        "open",
        "parked",
        "record",
        "supported",
        "work",
    )

    def __init__(self, durable: "DurableCalls", record: CallRecord, supported: frozenset[str]) -> None:
        self.durable = durable
        self.record = record
        """How the call stands in the journal, as far as this worker knows."""
        self.supported = supported
        """The kinds of question that can be asked this way."""
        self.call: Call | None = None
        """Its coroutine, while that is here."""
        self.gone = False
        """Whether this object has let go of the call: whoever comes back gets another one."""
        self.journaled = False
        """Whether the call is in the journal. Nothing is written before there is need to."""
        self.parked = False
        """Whether nobody runs it: the next segment is to be claimed."""
        self.held = False
        """Whether the journal says that only this worker may claim it."""
        self.work: Work | None = None
        """The segment that runs, as the engine knows it, if there is one."""
        self.lock = asyncio.Lock()
        """Whoever writes something of the call has it."""
        self.open: dict[str, Request] = {}
        """The questions that have no answer yet, by the names under which they are answered."""
        self.notes: dict[str, str] = {}
        """Why questions are asked again: what would have been expected of the last answer."""
        self._deadlines: dict[str, float] = {}
        self._taking: dict[str, asyncio.Future[None]] = {}
        """When it is known whether the answer is taken that is being written, by the id of its question."""
        self._end: tuple[bytes, Parking] | None = None
        self._changed = False
        self._working = False
        self._waiters: list[asyncio.Future[None]] = []

    # --- what is special about a wire --------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether whoever is there is behind."""
        raise NotImplementedError

    def put(self, item: Item) -> None:
        """Take what the call emits."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait while whoever is there is behind."""
        raise NotImplementedError

    @property
    def traceparent(self) -> str:
        """The span in which its questions are asked, if they are traced."""
        return ""

    def waits(self) -> None:
        """The open questions are in the journal: whoever is there can be asked."""
        raise NotImplementedError

    def answered(self, answers: Mapping[str, Any]) -> None:
        """These answers, by the ids of their questions, are in the journal: the call goes on with them."""

    def taken_over(self) -> None:
        """Nobody looked after the call, and this worker has taken it over."""

    def ended(self) -> None:
        """What the call came to is in the journal: whoever is there can be told."""
        raise NotImplementedError

    def begin_again(self) -> None:
        """The call is run again from its journal, from the top."""
        raise NotImplementedError

    def released(self) -> None:
        """This worker does not go on with the call: whoever waits for it has to come back."""
        raise NotImplementedError

    def troubled(self, error: JournalError) -> None:
        """The journal cannot be written: whoever waits may be told. The call goes on once it can."""
        raise NotImplementedError

    def stopped(self, error: MidcallError) -> None:
        """The call does not go on: tell whoever waits."""
        raise NotImplementedError

    # --- what happens to the call ------------------------------------------------------------

    def ask(self, name: str, request: Request) -> None:
        """A question is asked."""
        self.open[name] = request
        if request.note:
            self.notes[name] = request.note
        if request.timeout_ms is not None:
            self._deadlines[request.request_id] = time.time() + request.timeout_ms / 1000
        self.changed()

    def asks(self, request_id: str) -> bool:
        """Whether a question is open."""
        return any(request.request_id == request_id for request in self.open.values())

    def refuse_others(self, answers: Iterable[str]) -> None:
        """Raise `UnknownQuestion` if one of these answers is to a question for others than the caller."""
        asked = {request.request_id: request.to for request in self.open.values()}
        ahead = set(answers) - asked.keys()
        for request_id in answers:
            if asked.get(request_id) is not None:
                raise UnknownQuestion(request_id)
        if ahead:  # the call is run again, and has not come to it yet
            refuse_others(self.record, ahead)

    def close(self, request_id: str) -> bool:
        """A question needs no answer any more. False if it was not open."""
        for name, request in self.open.items():
            if request.request_id == request_id:
                del self.open[name]
                self.notes.pop(name, None)
                self._deadlines.pop(request_id, None)
                self.changed()
                return True
        return False

    def note(self, notes: Mapping[str, str]) -> None:
        """Answers could not be read: their questions are asked again, with what was expected."""
        if notes:
            self.notes.update(notes)
            self.changed()

    def end(self, call: Call, outcome: bytes, expires: float = 0.0) -> None:
        """The call has ended. If it has not done again what it did before, it is kept as it was."""
        self.open.clear()
        if call.trace is not None:
            diverged = call.trace.diverged or (call.trace.left_out() if call.reason is None else None)
            if diverged is not None:
                self.durable.spawn(self._diverge(diverged))
                return
        status: Status = "failed" if call.outcome is CallStatus.FAILED else "completed"
        if call.reason is not None:
            status = "aborted"
        self._end = outcome, Parking(status=status, expires=max(expires, time.time() + KEEP))
        self.changed()

    def discard(self, *, over: bool = False) -> None:
        """Give the call up in this process; the journal has it. It is `over` if somebody has ended it.

        Whoever waits for one that ran is told to come back.
        """
        self.durable.live.forget(self)
        if self.call is not None:
            self.call.drop(over=over)
        if self.parked:
            self.let_go()
        elif not over:
            self.released()

    def let_go(self) -> None:
        """Its coroutine is not here any more; whoever comes back gets another dialect."""
        self.gone = True
        self.call = None  # they know each other: only the collector would free them

    def end_work(self) -> None:
        """The segment does not run here any more."""
        work, self.work = self.work, None
        if work is not None:
            work.end()

    @property
    def at_work(self) -> bool:
        """Whether there is more here than in the journal.

        A branch may be in a step, which would count as interrupted; or something has just changed.
        """
        return self._in_a_step or self._changed

    @property
    def _in_a_step(self) -> bool:
        return self.call is not None and self.call.trace is not None and self.call.trace.steps > 0

    # --- answers -----------------------------------------------------------------------------

    async def take_answers(self, answers: Mapping[str, Any], *, sync: bool = True) -> "Detached | None":
        """Give answers to the call, whose coroutine is here; nothing if others have gone on with it.

        They are in the journal before the tool gets them. A call that is run again may not have come to its
        question yet: then it finds the answer there. Gives the dialect that has the call after that, which is
        another one if it had to be run again. Raises `UnknownQuestion` or `WrongAnswer`: then nothing is
        changed.

        If another answer to the same question is being written, wait: that may still fail.
        """
        while others := {self._taking[one] for one in answers if one in self._taking}:
            await asyncio.wait(others)
        taken = asyncio.get_running_loop().create_future()
        self._taking.update(dict.fromkeys(answers, taken))
        try:
            return await self._take_answers(answers, sync)
        finally:
            for request_id in answers:
                del self._taking[request_id]
            taken.set_result(None)

    async def _take_answers(self, answers: Mapping[str, Any], sync: bool) -> "Detached | None":
        call = self.call
        if call is None or call.trace is None:
            return None
        held: list[str] = []
        ahead: dict[str, Entry] = {}
        entries: list[Entry] = []
        try:
            for request_id, payload in answers.items():
                if self.asks(request_id):
                    entries.append(call.hold_answer(request_id, payload))
                    held.append(request_id)
                else:
                    (ahead[request_id],) = answers_for(self.record, call.trace.ahead, {request_id: payload})
                    entries.append(ahead[request_id])
            has_it = await self._write_answers(entries, sync)
        except BaseException:
            for request_id in held:
                call.let_go_answer(request_id)
            raise
        if has_it is not self:
            return has_it
        problem: MidcallError | None = None
        for request_id, entry in ahead.items():
            if call.trace.take_answer(entry):
                continue
            try:
                call.hold_answer(request_id, answers[request_id])  # it has come to it meanwhile
            except (UnknownQuestion, WrongAnswer) as error:
                problem = error
            else:
                held.append(request_id)
        given = 0
        for request_id in held:
            self.close(request_id)
            if call.give_answer(request_id):
                given += 1
            else:
                problem = problem or UnknownQuestion(request_id)  # or another of them has ended its round
        if problem is not None and not given:
            raise problem
        return self

    async def _write_answers(self, answers: Sequence[Entry], sync: bool) -> "Detached | None":
        """Write down answers, and have the next segment if the call was parked."""
        while True:
            if self.parked:
                segment = self.record.segment
                claimed = await self.durable.claim(
                    self.record.id, segment, answers, self.record.fence, sync=sync
                )
                if isinstance(claimed, Detached):
                    return claimed
                if self.parked and self.record.segment == segment:
                    self.discard()
                    self.released()
                if self.durable.live.get(self.record.id) is not self:
                    return None
                continue  # another answer came first, and the call runs here
            if await self._append_answers(answers):
                return None if self.gone or self.call is None or self.call.dropped else self

    async def _append_answers(self, answers: Sequence[Entry]) -> bool:
        """Write down answers to the call that runs. False if it was parked just now."""
        async with self.lock:
            if self.parked:
                return False
            fresh = self.take_entries()
            try:
                await self.write(Addition(self.record.id, self.record.fence, [*fresh, *answers]))
            except Fenced:
                self._fenced()
            except BaseException:
                self._give_back(fresh)
                raise
            return True

    # --- writing it down ---------------------------------------------------------------------

    async def write(self, write: CallWrite[T]) -> T:
        """Have the journal write something of the call."""
        written: T = await getattr(self.durable.journal, write.operation)(*astuple(write))
        return written

    @property
    def about_to_write(self) -> bool:
        """Whether the call is on its way into the journal."""
        return self._working

    def changed(self) -> None:
        """Have the journal brought up to date, after the tool has had its turn."""
        if not self._changed:
            self._changed = True
            if not self._working:
                asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if self._changed and not self._working:
            self._working = True
            self.durable.spawn(self._work())

    async def _work(self) -> None:
        tries = turns = 0
        try:
            while self._changed and not self.gone:
                self._changed = False
                if self.call is None or self.call.dropped:
                    self.released()  # it goes on elsewhere, or later
                    return
                try:
                    if not await self._write():
                        return
                except Fenced:
                    return  # whoever has taken over goes on
                except Exception as error:  # whoever waits is told
                    if not isinstance(error, JournalError):
                        log.exception("a call could not be written down", extra={"call": self.record.id})
                        error = JournalError("Internal error")
                    self.troubled(error)
                    if not self.journaled:
                        self.give_up()
                        return
                    await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                    tries += 1
                    self._changed = True
                    continue
                tries = 0
                turns += 1
                if not self.parked:
                    continue  # it has gone on, or is about to be parked anew
                if self.open and (self.call is None or not self._changed or turns >= TURNS):
                    turns = 0
                    self.waits()
        finally:
            self._changed = self._working = False
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def written(self) -> None:
        """Wait until the journal is up to date, as far as it is in our hands."""
        async with self.lock:
            pass  # an answer may be on its way into it
        while self._changed or self._working:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def _write(self) -> bool:
        """Write down how things stand. False if there is nothing more to do for the call here."""
        if not self.journaled:
            await self.durable.open()
        if self._end is not None:
            async with self.lock:
                await self._settle(*self._end)
            self.durable.live.forget(self)
            self.ended()
            self.let_go()
            return False
        if not self.open:
            if self.parked and not await self._go_on_alone():
                self.released()
                return False
            return True
        async with self.lock:
            parks, parking = not self.parked, self._parking()
            if parking is None:
                return True  # an answer was written just before
            if parks:
                await self._settle(b"", parking)
            else:
                await self._amend(parking)
        if parks:
            self.durable.live.park(self)
        else:
            self.durable.live.make_room()
        if parking.notices and self.durable.notices is not None:
            self.durable.notices.wake()
        return True

    async def _settle(self, outcome: bytes, parking: Parking) -> None:
        """End the segment. Raises `Fenced` if another worker has taken the call over; it is dropped here."""
        entries = self.take_entries()
        try:
            if self.parked:  # it ended just as it began to wait; if others have it, this is `Fenced`
                await self._take_next()
            record = after_segment(self.record, parking, self.durable.journal.worker)
            if self.journaled:
                fence, segment = self.record.fence, self.record.segment
                await self.write(Settlement(record.id, fence, segment, outcome, parking, entries))
            else:
                await self.durable.quota.check(record.principal, size_of_call(record))
                await self.write(Creation(record, entries, outcome, parking.notices))
                self.journaled = True
            self.record = record
            self.held = parking.held
        except Fenced:
            self._fenced()
            raise
        except BaseException:
            self._give_back(entries)
            raise
        metrics.segment("run")
        self.durable.quota.add(record.principal, len(outcome) + _size(entries))

    async def _amend(self, parking: Parking) -> None:
        """Write down what the parked call waits for, as it has changed. Raises `Fenced` as `_settle` does."""
        entries = self.take_entries()
        try:
            await self.durable.journal.append(self.record.id, self.record.fence, entries, parking)
        except Fenced:
            self._fenced()
            raise
        except BaseException:
            self._give_back(entries)
            raise
        self.held = parking.held
        expires = self.record.expires if parking.expires is None else parking.expires
        self.record = replace(
            self.record,
            wake=parking.wake,
            questions=parking.questions,
            expires=expires,
            addressed=parking.addressed,
        )

    async def _go_on_alone(self) -> bool:
        """The parked call goes on without an answer: take its next segment. False if that is for others."""
        async with self.lock:
            if not self.parked:
                return True
            if not await self._take_next():
                return False
            if self.durable.live.get(self.record.id) is not self:  # it was evicted meanwhile
                await self.durable.release(self.record.id, self.record.fence)
                return False
        await self.durable.begin_work(self)
        return True

    async def _take_next(self) -> bool:
        """Claim the next segment of the parked call, under its lock. If others have, it is dropped here."""
        claim = await self.durable.journal.claim(self.record.id, self.record.segment, parked=self.record)
        if isinstance(claim, Claimed) and is_next(claim.call, self.record):
            self.durable.live.unpark(self, claim.call)
            return True
        self.discard()
        if isinstance(claim, Claimed):
            await self.durable.release(
                self.record.id, claim.call.fence
            )  # it is due, and run again from there
        return False

    async def flush(self) -> None:
        """Make durable what the call has done. While the journal cannot be written, the call waits.

        An error would reach the author's code, and end a call for which nothing is lost yet.
        """
        for tries in itertools.count():
            async with self.lock:
                if self.call is None or self.call.dropped:
                    raise Fenced(f"This worker no longer runs the call {self.record.id}")
                entries = self.take_entries()
                holds = self._holding()
                if not entries and holds is None:
                    return
                try:
                    await self.durable.journal.append(self.record.id, self.record.fence, entries, holds)
                    self.held = self.held or holds is not None
                except Fenced:
                    self._fenced()
                    raise
                except JournalError as error:
                    self._give_back(entries)
                    if self.durable.stopping:
                        raise
                    if tries == len(PAUSES) - 1:
                        self.durable.trouble.begins(error)
                        self.troubled(error)
                except BaseException:
                    self._give_back(entries)
                    raise
                else:
                    if self.durable.trouble.since is not None:
                        self.durable.trouble.ends()
                    self.durable.quota.add(self.record.principal, _size(entries))
                    return
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 2)])

    async def hold(self) -> None:
        """Something is begun for the call: if it is parked, nobody else is to go on with it meanwhile."""
        if self.lock.locked() or self._holding() is not None:  # it may be about to be parked
            await self.flush()

    def _holding(self) -> Parking | None:
        """What is to be written so that nobody else goes on with the call, if it must be."""
        if not self.parked or self.held or not self._in_a_step:
            return None
        waits_for = Parking(
            status="waiting",
            wake=self.record.wake,
            questions=self.record.questions,
            held=True,
            addressed=self.record.addressed,
        )
        return self._parking() or waits_for

    def rest(self) -> None:
        """Nothing is under way for the call any more: others may go on with it again."""
        if self.held:
            self.durable.spawn(self._let_others())

    async def _let_others(self) -> None:
        async with self.lock:
            parking = self._parking() if self.parked and self.held and not self.gone else None
            if parking is not None and not parking.held:
                with contextlib.suppress(JournalError):  # then answers are forwarded, until it is written
                    await self._amend(parking)

    def take_entries(self) -> list[Entry]:
        """What is to be written down of the call, under its lock.

        What it does from now on is written after that: no step begins meanwhile of which the journal does not
        know.
        """
        if self.call is None or self.call.trace is None:
            return []
        self.call.trace.write_to(self.flush, self.hold, self.rest)
        return self.call.trace.take_fresh()

    def _give_back(self, entries: Sequence[Entry]) -> None:
        """What was taken could not be written."""
        if self.call is not None and self.call.trace is not None:
            self.call.trace.give_back(entries)

    def _parking(self) -> Parking | None:
        """What the call waits for in this moment, if anything."""
        if not self.open:
            return None
        questions = {
            name: waiting(one, self.notes.get(name, ""), self._deadlines.get(one.request_id))
            for name, one in self.open.items()
        }
        limits = () if self.call is None or self.call.trace is None else self.call.trace.limits
        notices = self.durable.notices
        return Parking(
            status="waiting",
            wake=min((*self._deadlines.values(), *limits), default=None),
            questions=encode_asked(Asked(questions, self.durable.journal.worker, self.traceparent)),
            expires=time.time() + self.durable.time_limit,
            held=self._in_a_step,
            addressed=any(one.to is not None for one in questions.values()),
            notices=() if notices is None else notices.of(self.record, questions.values()),
        )

    # --- the end of it here ------------------------------------------------------------------

    async def give_back(self) -> None:
        """The process ends: let others have the call, which has not come to the end of its segment."""
        if self.call is not None and self.call.trace is not None:
            await self.call.trace.flush()  # what it was answered: nobody is asked twice
        await self.durable.journal.release(self.record.id, self.record.fence)
        self.released()

    async def _diverge(self, error: Diverged) -> None:
        """The call does not do again what it did: it is kept as it was, and nothing more is run."""
        self.durable.stands_still(self.record.id, error)
        log.warning("stops: %s", error, extra={"call": self.record.id, "method": self.record.name})
        for tries in itertools.count():
            if self.gone:
                break  # it was dropped meanwhile
            try:
                async with self.lock:
                    if not self.parked or await self._take_next():
                        await self.durable.journal.release(self.record.id, self.record.fence, diverged=True)
            except Fenced:
                break
            except JournalError as trouble:
                self.troubled(trouble)
                await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            else:
                break
        self.durable.live.forget(self)
        self.stopped(error)

    def _fenced(self) -> None:
        """Another worker has taken the call over, or somebody has ended it."""
        metrics.segment("fenced")
        parked = self.parked
        self.discard()
        if parked:
            self.released()

    def give_up(self) -> None:
        """Nobody can come back to a call that could not be written down."""
        self.durable.forget(self)
        if self.call is not None:
            self.call.drop()
        self.let_go()


def _size(entries: Sequence[Entry]) -> int:
    return sum(len(entry.value) for entry in entries)

"""DurableCalls: the calls of a hub that outlive their requests, and perhaps the process.

The outlet of such a call is its **front**, a detached dialect (see `dialect`): it stands for whoever asked
for the call and comes back with answers. The front says what a segment came to; `DurableCalls` writes that
to the journal before anybody is told, finds the call again when somebody comes back, and runs it again from
its journal where its coroutine is not here.

An answer goes one way, `answer`: it is in the journal before the tool gets it, and before whoever gave it is
told that it is taken.

The journal is the truth, the parked coroutine a cache of it: when too many are parked, the coldest are
dropped. Calls that nobody comes back to are looked after by the sweeper.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from midcall.call import Call
from midcall.calls import GRACE
from midcall.errors import (
    Aborted,
    Diverged,
    Fenced,
    JournalError,
    MidcallError,
    TooManyCalls,
    UnknownQuestion,
    WrongAnswer,
)
from midcall.hub import Hub
from midcall.inline import Inline
from midcall.journal.contract import (
    ENDED,
    KEEP,
    Busy,
    CallRecord,
    Claimed,
    Entry,
    Gone,
    Journal,
    Parking,
    Settled,
)
from midcall.journal.engine import Engine, Work
from midcall.journal.kept import (
    Kept,
    Revive,
    after_segment,
    answers_for,
    count_answers,
    is_answered,
    is_next,
    kind_of,
)
from midcall.journal.mail import Mail
from midcall.journal.memory import MemoryJournal
from midcall.journal.parked import PARKED_CALLS, Here
from midcall.journal.room import SHARE, Room
from midcall.journal.seal import PERIOD, KeyRing, shared_ring
from midcall.journal.sweeper import Sweeper
from midcall.logs import Trouble
from midcall.metrics import counts
from midcall.trace import Trace

if TYPE_CHECKING:
    from midcall.journal.dialect import Detached
    from midcall.journal.subscriptions import Subscriptions

log = logging.getLogger("midcall.journal")

WEEK = 7 * 24 * 3600.0
"""Seconds that a call waits for somebody to come back, if the hub does not say."""

KEPT = KEEP
"""Seconds that the outcome of an ended call is kept, for whoever did not get it."""

WRITING = 1.0
"""Seconds that are left, at the end of the process, to write what segments came to."""

PATIENCE = 20.0
"""Seconds that an answer waits for a segment that another worker runs."""

LOOK = 1.0
"""Seconds after which whoever waits for another worker looks whether that is still there."""

STANDING = 10_000
"""How many calls are remembered that the code of this process does not fit."""

GIVING_BACK = 2.0
"""Seconds that are left, at the end of the process, to write that others may go on with what runs."""

PAUSES = (0.1, 0.3, 1.0)
"""Seconds between tries to write to a journal that is away; the last one is repeated."""


class DurableCalls:
    """All kept calls of a hub, in this process."""

    def __init__(
        self,
        hub: Hub,
        journal: Journal | None = None,
        *,
        time_limit: float = WEEK,
        parked_calls: int = PARKED_CALLS,
        replay_check: bool = False,
        looks_after: bool = True,
        engine: Engine | None = None,
        share: int = SHARE,
    ) -> None:
        self.hub = hub
        self.journal: Journal = journal or MemoryJournal()
        self._room = Room(self.journal, share)
        self.mail = Mail(self.journal)
        """What this worker and the others post to each other."""
        self.time_limit = time_limit
        """Seconds that a call waits for somebody to come back."""
        self.keys: KeyRing | None = None
        """What seals the states that callers come back with, the same for all workers of a journal."""
        self.fronts: dict[str, Revive] = {}
        """Who revives calls, by the first word of their context."""
        self.looks_after = looks_after
        """Whether it goes on with calls that nobody comes back to; who only passes by does not."""
        self.engine = engine
        self._period = 0.0
        self._subscriptions: Subscriptions | None = None
        self.here = Here(0 if replay_check else parked_calls)
        self._work = Inline[Coroutine[Any, Any, None]](lambda work, _: work, left=Coroutine.close)
        self._claiming = 0
        """How many segments are about to begin."""
        self._opening: asyncio.Lock | None = None
        self._is_open = False
        self._trouble = Trouble(log, "write to the journal")
        self.sweeper = Sweeper(self)
        self._stands_still: set[str] = set()
        """The calls that the code of this process does not fit: it need not be tried again."""
        self.stopping = False
        """Whether the process is about to end: no call is taken over any more."""

    # --- life --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the journal ready, and begin to look after calls; once is enough."""
        if self._is_open:
            return
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if not self._is_open:
                await self.journal.open()
                self.mail.open()
                await self._take_keys(time.time() // PERIOD)
                _ = self.subscriptions  # so that it is there to revive calls, and so are the others
                for protocol in (*self.hub.protocols, self.hub.chat):
                    if hasattr(protocol, "keep_with"):
                        protocol.keep_with(self)
                if self.engine is not None:
                    await self.engine.open(self)
                self.sweeper.start()
                self._is_open = True

    async def renew_keys(self) -> None:
        """See whether there are new ones."""
        period = time.time() // PERIOD
        if period != self._period:
            await self._take_keys(period)

    async def _take_keys(self, period: float) -> None:
        self.keys = await shared_ring(self.journal.secret)
        self._period = period

    async def close(self, grace: float = 5.0) -> None:
        """Let what runs come to the end of its segment, within `grace` seconds; then let go of everything.

        What waits stays in the journal, and so does what could not be finished: others go on with it.
        """
        self.let_go()
        if not self._is_open:
            return
        await self.sweeper.stop(WRITING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(grace, WRITING)):
                while self._claiming or self._work or self._work.waiting or self.here.busy:  # noqa: ASYNC110  one may begin the next
                    await asyncio.sleep(0.01)
        if self.engine is not None:
            await self.engine.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVING_BACK), asyncio.TaskGroup() as group:
                for kept in self.here:
                    if kept.journaled and not kept.parked:
                        group.create_task(self._give_back(kept))
        for kept in self.here:
            if kept.journaled:
                self.here.drop(kept)
            else:
                self.here.forget(kept)  # it ends with all other calls, and its caller is told
        for task in self._work.waiting:
            task.cancel()
        await self.journal.close()
        self._is_open = False

    async def _give_back(self, kept: Kept) -> None:
        """Let others have a call that has not come to the end of its segment."""
        call = kept.front.call
        with contextlib.suppress(JournalError):
            if call is not None and call.trace is not None:
                await call.trace.flush()  # what it was answered: nobody is asked twice
            await self.journal.release(kept.id, kept.record.fence)
            kept.front.released(kept)

    def let_go(self) -> None:
        """The process is about to end: nothing waits here any more, and nothing is taken over."""
        self.stopping = True
        self.here.let_go()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something for a call, owned by this object. Mostly it is done without waiting."""
        self._work.put(work, asyncio.get_running_loop())

    @property
    def subscriptions(self) -> "Subscriptions":
        """The durable subscriptions of the hub's own protocol."""
        if self._subscriptions is None:
            from midcall.journal.subscriptions import Subscriptions  # noqa: PLC0415  it is built on this

            self._subscriptions = Subscriptions(self)
        return self._subscriptions

    # --- a call begins -----------------------------------------------------------------------

    def admit(self, front: "Detached", record: CallRecord) -> Kept:
        """Take on a call that is about to start. Nothing is written before there is need to."""
        kept = front.kept = Kept(self, front, record)
        self.here.add(kept)
        return kept

    def prepare(self, front: "Detached", call: Call) -> None:
        """Give the call of a front its trace, before it is started."""
        kept = _kept(front)
        call.trace = Trace(kept.id, kept=True, method=kept.record.name)
        if kept.journaled:
            call.trace.write_to(kept.write)
        front.call = call

    async def reserve(self, front: "Detached") -> CallRecord | None:
        """Write a call down before it starts; gives the one that has its idempotency key, if there is one."""
        kept = _kept(front)
        await self.open()
        async with kept.lock:
            if kept.journaled:
                return None
            try:
                await self._room.check(kept.record)
            except JournalError as error:
                self.here.forget(kept)
                key = kept.record.idempotency_key
                taken = None if key is None else await self.journal.find(kept.record.principal, key)
                if taken is None:
                    raise error from None
                return taken
            entries = kept.take_entries()
            try:
                taken = await self.journal.create(kept.record, entries)
            except BaseException:
                self.here.forget(kept)  # nobody can come back to it
                raise
            if taken is not None:
                self.here.forget(kept)
                return taken
            kept.journaled = True
        if self.engine is not None:
            await self._begin(kept, self.engine.work(kept.record))
        return None

    def start(self, front: "Detached") -> None:
        """Start the call of a front that is written down; there was room for it before it was."""
        if front.call is not None:
            self.hub.calls.start(front.call, checked=True)

    def forget(self, front: "Detached") -> None:
        """A call has ended that nobody can come back for."""
        if front.kept is not None and not front.kept.journaled:
            self.here.forget(front.kept)

    @property
    def parked(self) -> int:
        """How many coroutines wait here for somebody to come back."""
        return self.here.parked

    def live(self, call_id: str) -> "Detached | None":
        """The front of a call whose coroutine is in this process."""
        kept = self.here.get(call_id)
        return None if kept is None else kept.front

    async def up_to_date(self, call_id: str) -> None:
        """Wait until the journal has what has happened to a call in this process; but not for long."""
        kept = self.here.get(call_id)
        if kept is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    async with kept.lock:
                        pass  # an answer may be on its way into it
                    await kept.front.written()

    # --- a segment ends ----------------------------------------------------------------------

    async def settle(self, front: "Detached", outcome: bytes, parking: Parking) -> None:
        """Write down what a call came to. When this returns, it may be told.

        Raises `Fenced` if another worker has taken the call over; it is dropped here.
        """
        kept = _kept(front)
        await self.open()
        async with kept.lock:
            await self._settle(kept, outcome, parking)
        self.here.forget(kept)

    async def park(self, front: "Detached") -> None:
        """Write down what a call waits for: its segment ends. As `settle`.

        An answer may have been written just before: then that question is not open any more.
        """
        kept = _kept(front)
        await self.open()
        async with kept.lock:
            parking = front.parking()
            if parking is None:
                return
            await self._settle(kept, b"", parking)
        self.here.park(kept)

    async def _settle(self, kept: Kept, outcome: bytes, parking: Parking) -> None:
        entries = kept.take_entries()
        try:
            if kept.parked:  # it ended just as it began to wait; if others have it, this is `Fenced`
                await self._take_next(kept)
            if kept.journaled:
                record = kept.record
                await self.journal.settle(kept.id, record.fence, record.segment, outcome, parking, entries)
                kept.record = after_segment(record, parking)
            else:
                record = after_segment(kept.record, parking)
                await self._room.check(record)
                await self.journal.create(record, entries, outcome)
                kept.record = record
                kept.journaled = True
        except Fenced:
            self._fenced(kept)
            raise
        except BaseException:
            kept.give_back(entries)
            raise
        counts.segments["run"] += 1
        self._room.add(kept.record.principal, len(outcome) + sum(len(entry.value) for entry in entries))

    async def wait_for(self, front: "Detached") -> None:
        """Write down what a parked call waits for, as it has changed. Raises `Fenced` as `settle` does."""
        kept = _kept(front)
        async with kept.lock:
            if not kept.parked:
                front.changed()  # somebody has answered meanwhile: it is to be parked anew
                return
            parking = front.parking()
            if parking is None:
                return
            entries = kept.take_entries()
            try:
                await self.journal.append(kept.id, kept.record.fence, entries, parking)
            except Fenced:
                self._fenced(kept)
                raise
            except BaseException:
                kept.give_back(entries)
                raise
            expires = kept.record.expires if parking.expires is None else parking.expires
            kept.record = replace(
                kept.record, wake=parking.wake, questions=parking.questions, expires=expires
            )
        self.here.make_room()

    # --- somebody comes back -----------------------------------------------------------------

    async def answer(
        self, call_id: str, answers: Mapping[str, Any], patience: float = PATIENCE
    ) -> "Detached | Settled | Busy | Gone":
        """Give answers to a call, by the ids of its questions, wherever the call is.

        If another worker runs it, wait up to `patience` seconds for the end of its segment.

        Gives the front of the call, which is to be resumed; then the answers are in the journal. Otherwise
        they were not taken. Raises `UnknownQuestion` or `WrongAnswer`: then nothing is changed.
        """
        await self.open()
        end = time.monotonic() + patience
        while True:
            self._claiming += 1
            try:
                answered = await self._answer(call_id, answers)
            finally:
                self._claiming -= 1
            if not isinstance(answered, Busy) or time.monotonic() >= end or self.stopping:
                return answered
            await self.journal.wait(call_id, answered.call.segment, LOOK)

    async def _answer(self, call_id: str, answers: Mapping[str, Any]) -> "Detached | Settled | Busy | Gone":
        kept = self.here.get(call_id)
        if kept is not None and kept.journaled:
            try:
                front = await self._answer_here(kept, answers)
            except UnknownQuestion:
                found = await self.journal.load(call_id)
                if found is None or not self.here.yield_to(call_id, found[0].fence):
                    raise
            else:
                if front is not None:
                    return front
        found = await self.journal.load(call_id)
        if found is None:
            return Gone()
        record, entries = found
        if record.status in ENDED:
            return Gone(record.status)
        try:
            given = answers_for(record, entries, answers)
        except UnknownQuestion:
            if is_answered(record, entries):
                claimed = await self._claim(call_id, record.segment)
                if not isinstance(claimed, Settled | Busy | Gone):
                    self.resume(claimed)
            raise
        claimed = await self._claim(call_id, record.segment, given, record.fence)
        if not isinstance(claimed, Settled | Busy | Gone):
            count_answers(record, entries, answers)
        return claimed

    async def _answer_here(self, kept: Kept, answers: Mapping[str, Any]) -> "Detached | None":
        """Answer a call whose coroutine is here; nothing if it turns out that others have gone on with it.

        A call that is run again may not have come to its question yet: then it finds the answer there.
        """
        front, call = kept.front, kept.front.call
        if call is None or call.trace is None:
            return None
        for request_id in kept.ahead & answers.keys():
            raise UnknownQuestion(request_id)  # somebody else was faster
        held: list[str] = []
        ahead: dict[str, Entry] = {}
        entries: list[Entry] = []
        try:
            for request_id, payload in answers.items():
                if front.asks(request_id):
                    entries.append(call.hold_answer(request_id, payload))
                    held.append(request_id)
                else:
                    (ahead[request_id],) = answers_for(kept.record, call.trace.ahead, {request_id: payload})
                    entries.append(ahead[request_id])
            kept.ahead |= ahead.keys()
            try:
                kept_by = await self._keep_answers(kept, entries)
            finally:
                kept.ahead -= ahead.keys()
        except BaseException:
            for request_id in held:
                call.let_go_answer(request_id)
            raise
        if kept_by is not front:
            return kept_by
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
            front.close(request_id)
            if call.give_answer(request_id):
                given += 1
            else:
                problem = problem or UnknownQuestion(request_id)  # or another of them has ended its round
        if problem is not None and not given:
            raise problem
        return front

    async def _keep_answers(self, kept: Kept, answers: Sequence[Entry]) -> "Detached | None":
        """Write down answers to a call that is here, and have its next segment if it was parked.

        Gives its front: another one if it had to be run again, and none if others have gone on with it.
        """
        while True:
            if kept.parked:
                segment = kept.record.segment
                claimed = await self._claim(kept.id, segment, answers, kept.record.fence)
                if not isinstance(claimed, Settled | Busy | Gone):
                    return claimed
                if kept.parked and kept.record.segment == segment:
                    self.here.drop(kept)
                    kept.front.released(kept)
                if self.here.get(kept.id) is not kept:
                    return None
                continue  # another answer came first, and the call runs here
            async with kept.lock:
                fence, runs = kept.record.fence, not kept.parked
                if not runs:
                    continue  # it was parked just now
                fresh = kept.take_entries()
                try:
                    await self.journal.append(kept.id, fence, [*fresh, *answers])
                except Fenced:
                    self._fenced(kept)
                    return None
                except BaseException:
                    kept.give_back(fresh)
                    raise
                return kept.front

    async def claim(
        self, call_id: str, segment: int, work: Work | None = None
    ) -> "Detached | Settled | Busy | Gone":
        """Begin a segment: gives the front of the call, with its coroutine here or run again.

        The front is to be told the answers by `resume`; a call that is run again starts there. `work` is
        what the engine has of the segment, if it is the engine that goes on with it.
        """
        await self.open()
        self._claiming += 1
        try:
            return await self._claim(call_id, segment, work=work)
        finally:
            self._claiming -= 1

    async def take_up(self, record: CallRecord) -> "Detached | Settled | Busy | Gone":
        """Go on with a call that stands still for no good reason: its worker is gone, or its code was changed
        and may be back. Otherwise it is `Busy`, or `Gone`."""
        if record.status == "diverged" and record.id in self._stands_still:
            return Gone("diverged")
        if record.status == "running" and record.owner == self.journal.worker:
            return Busy(record)
        return await self.claim(record.id, record.segment)

    async def _claim(
        self,
        call_id: str,
        segment: int,
        answers: Sequence[Entry] = (),
        fence: int | None = None,
        work: Work | None = None,
    ) -> "Detached | Settled | Busy | Gone":
        front: Detached | Gone | None = None
        kept = self.here.get(call_id)
        # A branch that writes meanwhile waits: with the fence of before it would be refused.
        async with contextlib.nullcontext() if kept is None else kept.lock:
            claim = await self.journal.claim(call_id, segment, answers, fence)
            if not isinstance(claim, Claimed):
                return claim
            kept = self.here.get(call_id)
            if kept is not None and kept.parked and is_next(claim.call, kept.record):
                self.here.unpark(kept, claim.call)
                front = kept.front
        if claim.call.claims > 1:
            counts.segments["taken_over"] += 1
        if front is None:
            if kept is not None:
                self.here.drop(kept)  # another worker has gone on with it since, if only for a while
            front = await self._revive(claim.call, claim.entries)
        if self.engine is not None and not isinstance(front, Gone):
            await self._begin(_kept(front), work or self.engine.work(claim.call))
        return front

    async def _revive(self, record: CallRecord, entries: Sequence[Entry]) -> "Detached | Gone":
        try:
            front, found = self.fronts[kind_of(record)](record)
            kept = self.admit(front, record)
            kept.journaled = True
            call = self.hub.prepare(
                found,
                record.arguments,
                front,
                supported=front.supported,
                time_limit=self.time_limit,
                principal=record.principal,
            )
        except (
            MidcallError,
            KeyError,
            ValueError,
        ) as error:  # the method is gone, or takes other arguments now
            reason = Diverged(f"a call of {record.name}", str(error), "")
            self._diverges(record.id)
            log.warning("cannot go on: %s", reason, extra={"call": record.id, "method": record.name})
            if (left := self.here.get(record.id)) is not None:
                self.here.forget(left)  # it would be taken for one that runs
            await self._release(record.id, record.fence, diverged=True)
            return Gone("diverged")
        counts.segments["rebuilt"] += 1
        call.trace = Trace(record.id, entries, kept=True, method=record.name, segment=record.segment)
        call.trace.write_to(kept.write)
        front.call = call
        return front

    def resume(self, front: "Detached") -> None:
        """Go on with a claimed call, once its front knows the answers."""
        call = front.call
        if call is not None and call.task is None:
            front.begin_again()
            try:
                self.hub.calls.start(call)
            except TooManyCalls:
                self.spawn(self._hand_back(_kept(front)))
                raise

    async def _hand_back(self, kept: Kept) -> None:
        """There is no room for a claimed call here: let others have it."""
        self.here.drop(kept)
        await self._release(kept.id, kept.record.fence)

    async def _release(self, call_id: str, fence: int, *, diverged: bool = False) -> None:
        """Let others have a segment that was claimed here; if the journal is away, as soon as it is back."""
        try:
            await self.journal.release(call_id, fence, diverged=diverged)
        except Fenced:
            pass
        except JournalError:
            if not self.stopping:
                self.spawn(self._release_later(call_id, fence, diverged=diverged))

    async def _release_later(self, call_id: str, fence: int, *, diverged: bool) -> None:
        await asyncio.sleep(PAUSES[-1])
        await self._release(call_id, fence, diverged=diverged)

    async def go_on_alone(self, front: "Detached") -> bool:
        """A parked call goes on without an answer: take its next segment. False if that is for others."""
        kept = front.kept
        if kept is None:
            return False  # it was dropped meanwhile
        async with kept.lock:
            if not kept.parked:
                return True
            if not await self._take_next(kept):
                return False
            if self.here.get(kept.id) is not kept:  # it was evicted meanwhile, and nobody would run it
                await self._release(kept.id, kept.record.fence)
                return False
        if self.engine is not None:
            await self._begin(kept, self.engine.work(kept.record))
        return True

    async def _take_next(self, kept: Kept) -> bool:
        """Claim the next segment of a parked call, under its lock. If others have, it is dropped here."""
        claim = await self.journal.claim(kept.id, kept.record.segment)
        if not isinstance(claim, Claimed):
            self.here.drop(kept)
            return False
        if not is_next(claim.call, kept.record):
            self.here.drop(kept)
            await self._release(kept.id, claim.call.fence)  # it is due, and run again from there
            return False
        self.here.unpark(kept, claim.call)
        return True

    async def stop(self, front: "Detached", error: Diverged) -> None:
        """A call does not do again what it did: it is kept as it was, and nothing more is run."""
        kept = _kept(front)
        self._diverges(kept.id)
        log.warning("stops: %s", error, extra={"call": kept.id, "method": kept.record.name})
        with contextlib.suppress(Fenced):
            async with kept.lock:
                if not kept.parked or await self._take_next(kept):
                    await self.journal.release(kept.id, kept.record.fence, diverged=True)
        self.here.forget(kept)

    async def abort(self, call_id: str, reason: str, outcome: bytes) -> bool:
        """End a call, wherever it is. False if it had ended, or is not known.

        When this returns, that it has ended is in the journal. What runs here may clean up before that.
        """
        await self.open()
        kept = self.here.get(call_id)
        call = None if kept is None else kept.front.call
        if kept is not None and call is not None and not kept.parked and call.task is not None:
            call.abort(reason)
            if not kept.journaled or await self._has_ended(call_id, kept.record.segment):
                return True
        ended = await self.journal.end(call_id, "aborted", outcome, time.time() + KEPT)
        if kept is not None and self.here.get(call_id) is kept:
            self.here.drop(kept, over=True)
            kept.front.stopped(Aborted(reason))
        return ended

    async def _has_ended(self, call_id: str, segment: int) -> bool:
        """Wait until an aborted call has ended; but not for ever. It may have been about to wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                while await self.journal.wait(call_id, segment, GRACE) is not None:
                    found = await self.journal.load(call_id)
                    if found is None or found[0].status in ENDED:
                        return True
                    segment += 1
        return False

    # --- inside ------------------------------------------------------------------------------

    async def append(self, kept: Kept) -> None:
        """Make durable what a call has done. While the journal cannot be written, the call waits.

        An error would reach the author's code, and end a call for which nothing is lost yet.
        """
        for tries, pause in enumerate(itertools.chain(PAUSES, itertools.repeat(PAUSES[-1]))):
            async with kept.lock:
                if kept.front.call is None or kept.front.call.dropped:
                    raise Fenced(f"This worker does not run the call {kept.id} any more")
                entries = kept.take_entries()
                if not entries:
                    return
                try:
                    await self.journal.append(kept.id, kept.record.fence, entries)
                except Fenced:
                    self._fenced(kept)
                    raise
                except JournalError as error:
                    kept.give_back(entries)
                    if self.stopping:
                        raise
                    if tries == len(PAUSES):
                        self._trouble.begins(error)
                        kept.front.troubled(error)
                except BaseException:
                    kept.give_back(entries)
                    raise
                else:
                    self._trouble.ends()
                    self._room.add(kept.record.principal, sum(len(entry.value) for entry in entries))
                    return
            await asyncio.sleep(pause)

    def _diverges(self, call_id: str) -> None:
        counts.diverged += 1
        if len(self._stands_still) >= STANDING:
            self._stands_still.clear()
        self._stands_still.add(call_id)

    def _fenced(self, kept: Kept) -> None:
        """Another worker has taken the call over, or somebody has ended it."""
        counts.segments["fenced"] += 1
        self.here.drop(kept)
        kept.front.released(kept)

    async def _begin(self, kept: Kept, work: Work) -> None:
        """A segment runs from here on: have the engine know."""
        kept.work = work
        try:
            await work.begin()
        except asyncio.CancelledError:
            self.spawn(self._hand_back(kept))
            raise


def _kept(front: "Detached") -> Kept:
    if front.kept is None:
        raise RuntimeError("This call is not kept")
    return front.kept


def durable_calls(hub: Hub) -> DurableCalls:
    """The durable calls of a hub, which are kept in memory if it was given no journal."""
    if hub.durable is None:
        hub.durable = DurableCalls(hub)
    durable: DurableCalls = hub.durable
    return durable

"""Durable calls: the calls of a hub that outlive their requests, and perhaps the process.

Each has one object here, its detached dialect (see `dialect`), for as long as its coroutine is in this
process. This is all of them together: how they begin, and how a call is found again when somebody comes back,
by its id, with its coroutine or, where that is not here, run again from its journal. See `state` for the
states of a call, and who may move it.

An answer goes one way, `answer`, wherever the call is: it is in the journal before the tool gets it, and
before whoever gave it is told that it is taken.

A coroutine that waits is *parked*, a cache of what is in the journal. There are not more of them than may be:
the coldest are dropped, and such a call is run again when it is answered (`LiveCalls`). How much each caller
has in the journal is counted, so that none of them fills it (`Quota`). Calls that nobody comes back to are
looked after by the sweeper.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from midcall import metrics
from midcall.call import Call
from midcall.calls import GRACE, RunQueue
from midcall.errors import (
    Aborted,
    Diverged,
    Fenced,
    JournalError,
    JournalFull,
    MidcallError,
    TooManyCalls,
    UnknownQuestion,
)
from midcall.hub import Hub
from midcall.journal.bus import Bus
from midcall.journal.contract import (
    ENDED,
    KEEP,
    Busy,
    CallRecord,
    Claimed,
    Creation,
    Entry,
    Gone,
    Journal,
    Settled,
    Taking,
)
from midcall.journal.dialect import PAUSES, Detached
from midcall.journal.forward import Forwarded, Forwarding, stop_elsewhere
from midcall.journal.kept_questions import KeptQuestions
from midcall.journal.links import Links
from midcall.journal.memory import MemoryJournal
from midcall.journal.notices import Notices, Notify
from midcall.journal.seal import PERIOD, KeyRing, shared_ring
from midcall.journal.state import (
    answers_for,
    asked_of,
    count_answers,
    is_answered,
    is_next,
    kind_of,
    refuse_others,
    size_of_call,
    waiting_for,
)
from midcall.journal.sweeper import Sweeper
from midcall.logs import Trouble
from midcall.registry import Resolved
from midcall.replay import Trace

if TYPE_CHECKING:
    from midcall.journal.dbos import DbosEngine, Work
    from midcall.plexus.subscriptions import DurableSubscriptions

SHARE = 1024 * 1024 * 1024
"""How many bytes the calls of a caller with a name may take, those included that have ended."""

RECOUNT = 60.0
"""Seconds between two times that the journal is asked."""

CALLERS = 10_000
"""For how many callers it is remembered."""


PARKED_CALLS = 2_000
"""How many coroutines wait in memory; beyond that the coldest are dropped, and run again when answered."""


log = logging.getLogger("midcall.journal")

WEEK = 7 * 24 * 3600.0
"""Seconds that a call waits for somebody to come back, if the hub does not say."""

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

Revive: TypeAlias = Callable[[CallRecord], tuple[Detached, Resolved]]
"""Makes the dialect of a call that is in the journal, and finds its method. Raises `MidcallError`."""


class DurableCalls:
    """All durable calls of a hub, in this process."""

    def __init__(
        self,
        hub: Hub,
        journal: Journal | None = None,
        *,
        time_limit: float = WEEK,
        parked_calls: int = PARKED_CALLS,
        replay_check: bool = False,
        looks_after: bool = True,
        engine: "DbosEngine | None" = None,
        share: int = SHARE,
        public_url: str | None = None,
        notify: Notify | None = None,
    ) -> None:
        """`public_url` is where people reach this server, and `notify` tells them of questions."""
        self.hub = hub
        self.journal: Journal = journal or MemoryJournal()
        self.quota = Quota(self.journal.held, share)
        """How much of the journal each caller has taken."""
        self.bus = Bus(self.journal)
        """What this worker and the others post to each other."""
        self.forwarding = Forwarding(self)
        self.time_limit = time_limit
        """Seconds that a call waits for somebody to come back."""
        self.keys: KeyRing | None = None
        """What seals the states that callers come back with, the same for all workers of a journal."""
        self.links = Links(self, public_url)
        self.kinds: dict[str, Revive] = {}
        """Who makes the dialect of a call again, by the first word of the call's context."""
        self.looks_after = looks_after
        """Whether it goes on with calls that nobody comes back to; who only passes by does not."""
        self.engine = engine
        self.live = LiveCalls(0 if replay_check else parked_calls)
        """The calls whose coroutine is in this process."""
        self.trouble = Trouble(log, "write to the journal")
        self.sweeper = Sweeper(self)
        self.notices = None if notify is None else Notices(self, notify)
        """Tells people of questions, if that is wanted."""
        self.stopping = False
        """Whether the process is about to end: no call is taken over any more."""
        self._period = 0.0
        self._subscriptions: DurableSubscriptions | None = None
        self._questions = KeptQuestions(self)
        hub.calls.ask_elsewhere = self._questions.ask
        self._work = RunQueue[Coroutine[Any, Any, None]](lambda work, _: work, left=Coroutine.close)
        self._claiming = 0
        """How many segments are about to begin."""
        self._opening: asyncio.Lock | None = None
        self._is_open = False
        self._standing: dict[str, Diverged] = {}
        """The calls that the code of this process does not fit: it need not be tried again."""

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
                self.bus.open()
                await self._take_keys(time.time() // PERIOD)
                _ = self.subscriptions  # so that it is there to revive calls, and so are the others
                for protocol in (*self.hub.protocols, self.hub.chat):
                    if hasattr(protocol, "keep_with"):
                        protocol.keep_with(self)
                if self.engine is not None:
                    await self.engine.open(self)
                self.sweeper.start()
                if self.notices is not None:
                    self.notices.start()
                self._is_open = True

    def notify_by(self, notify: Notify) -> None:
        """Have people told of questions that are asked from now on. Before the journal is opened."""
        if self._is_open:
            raise RuntimeError("Say who is notified before the hub is opened")
        self.notices = Notices(self, notify)

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
        if self.notices is not None:
            await self.notices.stop(WRITING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(grace, WRITING)):
                while self._claiming or self._work or self._work.waiting or self.live.busy:  # noqa: ASYNC110  one may begin the next
                    await asyncio.sleep(0.01)
        if self.engine is not None:
            await self.engine.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVING_BACK), asyncio.TaskGroup() as group:
                for dialect in self.live:
                    if dialect.journaled and not dialect.parked:
                        group.create_task(_give_back(dialect))
        for dialect in self.live:
            if dialect.journaled:
                dialect.discard()
            else:
                self.live.forget(dialect)  # it ends with all other calls, and its caller is told
        for task in self._work.waiting:
            task.cancel()
        await self.journal.close()
        self._is_open = False

    def let_go(self) -> None:
        """The process is about to end: nothing waits here any more, and nothing is taken over."""
        self.stopping = True
        self._questions.close()
        self.live.let_go()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something for a call, owned by this object."""
        loop = asyncio.get_running_loop()
        if self.journal.at_once:
            self._work.put(work, loop)
        else:
            task = loop.create_task(work)
            self._work.waiting.add(task)
            task.add_done_callback(self._work.waiting.discard)

    @property
    def subscriptions(self) -> "DurableSubscriptions":
        """The durable subscriptions of the hub's own protocol."""
        if self._subscriptions is None:
            from midcall.plexus.subscriptions import DurableSubscriptions  # noqa: PLC0415  it is built on this

            self._subscriptions = DurableSubscriptions(self)
        return self._subscriptions

    # --- a call begins -----------------------------------------------------------------------

    def admit(self, dialect: Detached, call: Call, entries: Sequence[Entry] = ()) -> None:
        """Take on a call that is about to start, or to be run again with these entries.

        Nothing is written before there is need to.
        """
        record = dialect.record
        call.trace = Trace(
            record.id,
            entries,
            kept=True,
            method=record.name,
            segment=record.segment,
            created=record.created,
        )
        if dialect.journaled:
            call.trace.write_to(dialect.flush, dialect.hold, dialect.rest)
        call.keep_source()
        dialect.call = call
        self.live.add(dialect)

    async def reserve(self, dialect: Detached) -> CallRecord | None:
        """Write a call down before it starts; gives the one that has its idempotency key, if there is one.

        If it cannot be written, or the key is taken, nobody can come back to it, and it is forgotten.
        """
        await self.open()
        async with dialect.lock:
            if dialect.journaled:
                return None
            try:
                taken = await self._create(dialect)
            except BaseException:
                self.live.forget(dialect)
                raise
            if taken is not None:
                self.live.forget(dialect)
                return taken
            dialect.journaled = True
        await self.begin_work(dialect)
        return None

    async def _create(self, dialect: Detached) -> CallRecord | None:
        record = dialect.record
        try:
            await self.quota.check(record.principal, size_of_call(record))
        except JournalFull:
            key = record.idempotency_key
            taken = None if key is None else await self.journal.find(record.principal, key)
            if taken is None:
                raise
            return taken
        return await dialect.write(Creation(record, dialect.take_entries()))

    def start(self, dialect: Detached) -> None:
        """Start a call that is written down; there was room for it before it was."""
        if dialect.call is not None:
            self.hub.calls.start(dialect.call, checked=True)

    def forget(self, dialect: Detached) -> None:
        """A call has ended that nobody can come back for."""
        if not dialect.journaled:
            self.live.forget(dialect)

    @property
    def parked(self) -> int:
        """How many coroutines wait here for somebody to come back."""
        return self.live.parked

    async def up_to_date(self, call_id: str) -> None:
        """Wait until the journal has what has happened to a call in this process; but not for long."""
        dialect = self.live.get(call_id)
        if dialect is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await dialect.written()

    def waiting_for(self, record: CallRecord) -> list[str]:
        """For whom else than its caller a call waits, and for what, in words."""
        asked = asked_of(record).questions.values()
        return [waiting_for(one, self.links.url(record, one)) for one in asked if one.to is not None]

    # --- somebody comes back -----------------------------------------------------------------

    async def answer(
        self,
        call_id: str,
        answers: Mapping[str, Any],
        patience: float = PATIENCE,
        *,
        by_caller: bool = True,
        sync: bool = True,
    ) -> Detached | Forwarded | Settled | Busy | Gone:
        """Give answers to a call, by the ids of its questions, wherever the call is, and have it go on.

        The caller does not answer what is for somebody else: to it, that is not asked. For whoever answers
        otherwise than `by_caller`, it was found out before whether they may (see `state.is_meant_for`).

        If another worker runs it, wait up to `patience` seconds for the end of its segment; if it holds it,
        the answers go there. What is not asked any more, as it was answered or given up in this moment, does
        not count. Whoever is told of them only with what the call comes to then needs no `sync`
        (see `Journal.claim`).

        Gives the dialect of the call, or `Forwarded`; then the other answers are in the journal. Otherwise
        none was taken. Raises `UnknownQuestion` if nothing of it is asked, or `WrongAnswer`: then nothing is
        changed.
        """
        await self.open()
        end = time.monotonic() + patience
        left = dict(answers)
        while True:
            self._claiming += 1
            try:
                answered = await self._answer(call_id, left, by_caller=by_caller, sync=sync)
                busy_call = answered.call if isinstance(answered, Busy) else None
                if busy_call is not None and await self.forwarding.answer(
                    busy_call, left, by_caller=by_caller
                ):
                    return Forwarded()
            except UnknownQuestion as unknown:
                del left[unknown.request_id]
                if not left:
                    raise
                continue
            finally:
                self._claiming -= 1
            if isinstance(answered, Detached):
                answered.answered(left)
                self.resume(answered)
                return answered
            if not isinstance(answered, Busy) or time.monotonic() >= end or self.stopping:
                return answered
            await self.journal.wait(call_id, answered.call.segment, LOOK)

    async def _answer(
        self, call_id: str, answers: Mapping[str, Any], *, by_caller: bool, sync: bool
    ) -> Detached | Settled | Busy | Gone:
        live = self.live.get(call_id)
        if live is not None and live.journaled:
            try:
                if by_caller:
                    live.refuse_others(answers)
                dialect = await live.take_answers(answers, sync=sync)
            except UnknownQuestion:
                found = await self.journal.load(call_id)
                if found is None or not self.live.yield_to(call_id, found[0].fence):
                    raise
            else:
                if dialect is not None:
                    return dialect
        found = await self.journal.load(call_id)
        if found is None:
            return Gone()
        record, entries = found
        if record.status in ENDED:
            return Gone(record.status)
        if by_caller:
            refuse_others(record, answers)
        try:
            given = answers_for(record, entries, answers)
        except UnknownQuestion:
            if is_answered(record, entries):  # it only has to go on
                claimed = await self.claim(call_id, record.segment)
                if isinstance(claimed, Detached):
                    self.resume(claimed)
            raise
        claimed = await self.claim(call_id, record.segment, given, record.fence)
        if isinstance(claimed, Detached):
            count_answers(record, entries, answers)
        return claimed

    async def claim(
        self,
        call_id: str,
        segment: int,
        answers: Sequence[Entry] = (),
        fence: int | None = None,
        work: "Work | None" = None,
        *,
        sync: bool = True,
    ) -> Detached | Settled | Busy | Gone:
        """Begin a segment: gives the dialect of the call, with its coroutine here or run again.

        It is to go on by `resume`; a call that is run again starts there. `answers`, `fence` and `sync` are
        as in `Journal.claim`; `work` is what the engine has of the segment, if it is the engine that goes on.
        """
        await self.open()
        self._claiming += 1
        try:
            return await self._claim(call_id, segment, answers, fence, work, sync)
        finally:
            self._claiming -= 1

    async def _claim(
        self,
        call_id: str,
        segment: int,
        answers: Sequence[Entry],
        fence: int | None,
        work: "Work | None",
        sync: bool,
    ) -> Detached | Settled | Busy | Gone:
        dialect: Detached | Gone | None = None
        live = self.live.get(call_id)
        # A branch that writes meanwhile waits: with the fence of before it would be refused.
        async with contextlib.nullcontext() if live is None else live.lock:
            parked = live.record if live is not None and live.parked else None
            if live is None:
                claim = await self.journal.claim(call_id, segment, answers, fence)
            else:
                claim = await live.write(Taking(call_id, segment, answers, fence, parked, sync))
            if not isinstance(claim, Claimed):
                return claim
            live = self.live.get(call_id)
            if live is not None and live.parked and is_next(claim.call, live.record):
                self.live.unpark(live, claim.call)
                dialect = live
        if claim.call.claims > 1:
            metrics.segment("taken_over")
        if dialect is None:
            if live is not None:
                live.discard()  # another worker has gone on with it since, if only for a while
            dialect = await self._rebuild(claim)
        if isinstance(dialect, Detached):
            await self.begin_work(dialect, work)
        return dialect

    async def _rebuild(self, claim: Claimed) -> Detached | Gone:
        """A claimed call whose coroutine is not here: make it again, from what is in the journal."""
        record, entries = claim.call, claim.entries
        if entries is None:  # it was parked here, and evicted just now
            try:
                loaded = await self.journal.load(record.id)
            except BaseException:
                self.spawn(self.release(record.id, record.fence))
                raise
            if loaded is None:
                return Gone()
            entries = loaded[1]
        try:
            dialect, found = self.kinds[kind_of(record)](record)
            call = self.hub.prepare(
                found,
                record.arguments,
                dialect,
                supported=dialect.supported,
                time_limit=self.time_limit,
                principal=record.principal,
            )
        except Exception as error:  # its method is gone, or takes other arguments; it must not stay claimed
            reason = Diverged(f"a call of {record.name}", str(error), "")
            self.stands_still(record.id, reason)
            unexpected = not isinstance(error, MidcallError | KeyError | ValueError)
            about = {"call": record.id, "method": record.name}
            log.warning("cannot go on: %s", reason, extra=about, exc_info=error if unexpected else None)
            await self.release(record.id, record.fence, diverged=True)
            return Gone("diverged")
        metrics.segment("rebuilt")
        dialect.journaled = True
        self.admit(dialect, call, entries)
        if call.trace is not None:
            call.trace.rebuilt = True
        return dialect

    async def take_up(self, record: CallRecord) -> Detached | Settled | Busy | Gone:
        """Go on with a call that stands still for no good reason: its worker is gone, or its code was changed
        and may be back. Otherwise it is `Busy`, or `Gone`."""
        if record.status == "diverged" and record.id in self._standing:
            return Gone("diverged")
        if record.status == "running" and record.owner == self.journal.worker:
            return Busy(record)
        return await self.claim(record.id, record.segment)

    def resume(self, dialect: Detached) -> None:
        """Go on with a claimed call; once is enough. Raises `TooManyCalls`: then it is for others to do."""
        call = dialect.call
        if call is not None and call.task is None:
            dialect.begin_again()
            try:
                self.hub.calls.start(call)
            except TooManyCalls:
                self.spawn(self._hand_back(dialect))
                raise

    async def abort(self, call_id: str, reason: str, outcome: bytes) -> bool:
        """End a call, wherever it is. False if it had ended, or is not known.

        When this returns, that it has ended is in the journal. What runs here may clean up before that.
        """
        await self.open()
        dialect = self.live.get(call_id)
        call = None if dialect is None else dialect.call
        if dialect is not None and call is not None and not dialect.parked and call.task is not None:
            call.abort(reason)
            if not dialect.journaled or await self._has_ended(call_id, dialect.record.segment):
                return True
        found = await self.journal.load(call_id)
        ended = await self.journal.end(call_id, "aborted", outcome, time.time() + KEEP)
        if dialect is not None and self.live.get(call_id) is dialect:
            dialect.discard(over=True)
            dialect.stopped(Aborted(reason))
        elif ended and found is not None:
            await stop_elsewhere(self.journal, found[0], reason)
        return ended

    def stop(self, call_id: str, reason: str) -> None:
        """Stop what runs here of a call that somebody has ended elsewhere, and tell whoever waits for it.

        One that is about to run finds out by itself: nobody waits for it yet who could be told.
        """
        dialect = self.live.get(call_id)
        if dialect is not None and dialect.call is not None and dialect.call.task is not None:
            dialect.discard(over=True)
            dialect.stopped(Aborted(reason))

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

    # --- segments ----------------------------------------------------------------------------

    async def begin_work(self, dialect: Detached, work: "Work | None" = None) -> None:
        """A segment runs from here on: have the engine know, if there is one."""
        if self.engine is None:
            return
        dialect.work = work or self.engine.work(dialect.record)
        try:
            await dialect.work.begin()
        except asyncio.CancelledError:
            self.spawn(self._hand_back(dialect))
            raise

    async def _hand_back(self, dialect: Detached) -> None:
        """A claimed call cannot go on here: let others have it."""
        dialect.discard()
        await self.release(dialect.record.id, dialect.record.fence)

    async def release(self, call_id: str, fence: int, *, diverged: bool = False) -> None:
        """Let others have a segment that was claimed here; if the journal is away, as soon as it is back."""
        try:
            await self.journal.release(call_id, fence, diverged=diverged)
        except Fenced:
            pass
        except JournalError:
            if not self.stopping:
                self.spawn(self._release_later(call_id, fence, diverged=diverged))

    async def _release_later(self, call_id: str, fence: int, *, diverged: bool) -> None:
        await asyncio.sleep(PAUSES[2])
        await self.release(call_id, fence, diverged=diverged)

    def stands_still(self, call_id: str, why: Diverged) -> None:
        """The code of this process does not fit a call: it need not be tried again here."""
        metrics.diverged()
        if len(self._standing) >= STANDING:
            self._standing.clear()
        self._standing[call_id] = why

    def why_still(self, call_id: str) -> str:
        """Why a call that has diverged cannot go on, for whoever comes back to it; what has changed, if this
        process has tried to."""
        why = self._standing.get(call_id)
        changed = "" if why is None else f": expected {why.expected}, but got {why.got}"
        return f"its code has changed since it asked{changed}"


async def _give_back(dialect: Detached) -> None:
    with contextlib.suppress(JournalError):
        await dialect.give_back()


def durable_calls(hub: Hub) -> DurableCalls:
    """The durable calls of a hub, which are kept in memory if it was given no journal."""
    if hub.durable is None:
        hub.durable = DurableCalls(hub)
    return hub.durable


class LiveCalls:
    """The calls of one process."""

    def __init__(self, parked_calls: int) -> None:
        self._most = parked_calls
        self._calls: dict[str, Detached] = {}
        self._parked: OrderedDict[str, Detached] = OrderedDict()
        """The coldest first."""

    def __iter__(self) -> Iterator[Detached]:
        return iter(list(self._calls.values()))

    @property
    def parked(self) -> int:
        """How many coroutines wait."""
        return len(self._parked)

    def get(self, call_id: str) -> Detached | None:
        return self._calls.get(call_id)

    def add(self, dialect: Detached) -> None:
        """A call begins, or is to be run again."""
        self._calls[dialect.record.id] = dialect

    def park(self, dialect: Detached) -> None:
        """A call waits, and anybody may go on with it."""
        dialect.parked = True
        dialect.end_work()
        self._parked[dialect.record.id] = dialect
        self.make_room()

    def unpark(self, dialect: Detached, record: CallRecord) -> None:
        """This worker runs the next segment, with the coroutine that is here."""
        self._parked.pop(record.id, None)
        dialect.parked = dialect.held = False
        dialect.record = record
        if dialect.call is not None and dialect.call.trace is not None:
            dialect.call.trace.segment = record.segment

    def forget(self, dialect: Detached) -> None:
        """A call is not to be found here any more."""
        for calls in (self._calls, self._parked):
            if calls.get(dialect.record.id) is dialect:
                del calls[dialect.record.id]
        dialect.end_work()

    def yield_to(self, call_id: str, fence: int) -> bool:
        """Another worker has gone on with a call, by the claim of this fence: let go of what is parked here.

        False if this worker has gone on with it since.
        """
        dialect = self._calls.get(call_id)
        if dialect is None:
            return True
        if not dialect.parked or dialect.record.fence >= fence:
            return False
        dialect.discard()
        return True

    def is_free(self, record: CallRecord) -> bool:
        """Whether to go on with a call that nobody looks after.

        If it is parked here and its time is up, its own timer has not noticed: that stands still while the
        machine sleeps. Run again from the journal, it does.
        """
        dialect = self._calls.get(record.id)
        if dialect is None or dialect.record.fence != record.fence:
            return True
        if not dialect.parked or dialect.at_work:
            return False
        dialect.discard()
        return True

    def let_go(self) -> None:
        """From now on nothing waits here."""
        self._most = 0
        self.make_room()

    @property
    def busy(self) -> bool:
        """Whether any call runs, or is in the middle of a step while it waits."""
        return any(not dialect.parked or dialect.at_work for dialect in self._calls.values())

    def make_room(self) -> None:
        """Drop the coldest, if there are too many."""
        over = max(len(self._parked) - self._most, 0)
        for coldest in list(itertools.islice(self._parked.values(), over)):
            if coldest.at_work:
                self._parked.move_to_end(coldest.record.id)
            else:
                coldest.discard()


class Quota:
    """What this worker knows of the room in a journal.

    `held` tells how many bytes a caller has taken; `advice` is what can be done if that is all of its share.
    """

    def __init__(
        self,
        held: Callable[[str], Awaitable[int]],
        share: int = SHARE,
        *,
        advice: str = "answer what waits, or try again later",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._held = held
        self._share = share
        self._advice = advice
        self._clock = clock
        self._taken: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """How much each caller has, and when to ask again."""
        self._looking = asyncio.Lock()

    async def check(self, principal: str | None, size: int) -> None:
        """Raise `JournalFull` if so much more is too much for a caller; else it counts from now on."""
        if principal is None:
            return
        if not self._is_known(principal):
            async with self._looking:
                if not self._is_known(principal):
                    begun = self._clock()
                    taken = await self._held(principal)
                    pause = max(RECOUNT, 100 * (self._clock() - begun))  # of many calls it takes long
                    self._taken[principal] = (taken, self._clock() + pause)
                    if len(self._taken) > CALLERS:
                        self._taken.popitem(last=False)
        if self._taken[principal][0] + size > self._share:
            metrics.refused(JournalFull.code)
            raise JournalFull(f"The journal has no room left for this caller; {self._advice}")
        self.add(principal, size)

    def add(self, principal: str | None, size: int) -> None:
        """So much more of a caller is written down."""
        if principal is not None and principal in self._taken:
            taken, until = self._taken[principal]
            self._taken[principal] = (taken + size, until)

    def _is_known(self, principal: str) -> bool:
        return principal in self._taken and self._clock() < self._taken[principal][1]

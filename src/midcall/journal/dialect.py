"""The base of detached dialects: the outlet of a kept call, and whoever comes back for it.

A call that asks may wait for days, so its caller goes and comes back: over MCP, or on a
WebSocket. What all of them need is here: the journal says at every moment which questions are open, and what
a segment came to is written down before anybody is told.

Whatever changes (a question is asked, answered, withdrawn; the call ends) only says so, by `changed`. Then
one coroutine at a time looks at how things stand and writes that down, until nothing has changed meanwhile:

    the call has ended                      so does the segment, and all of it is told
    questions are open, the call runs       it is parked: the segment ends, and the call waits
    questions are open, the call is parked  what it waits for is written anew
    nothing is open, the call is parked     it has gone on by itself: the next segment begins

So it does not matter in which order things happen while something is being written.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping

from midcall.call import Call
from midcall.call import Status as CallStatus
from midcall.errors import Diverged, Fenced, JournalError, MidcallError
from midcall.items import Item, Request
from midcall.journal.contract import Parking, Status
from midcall.journal.durable import KEPT, DurableCalls
from midcall.journal.kept import Asked, Kept, encode_asked, waiting

log = logging.getLogger("midcall.journal")

PAUSES = (0.2, 1.0, 5.0)
"""Seconds between tries to write to a journal that is away; the last one is repeated."""

TURNS = 3
"""How often what a call waits for may change while it is written, before it is told all the same."""


class Detached:
    """The outlet of a kept call. A subclass says how its questions and its end look on one wire."""

    __slots__ = (
        "_changed",
        "_deadlines",
        "_end",
        "_waiters",
        "_working",
        "call",
        "durable",
        "kept",
        "notes",
        "open",
        "supported",
    )

    def __init__(self, durable: DurableCalls, supported: frozenset[str]) -> None:
        self.durable = durable
        self.supported = supported
        """The kinds of question that can be asked this way."""
        self.kept: Kept | None = None
        self.call: Call | None = None
        self.open: dict[str, Request] = {}
        """The questions that have no answer yet, by the names under which they are answered."""
        self.notes: dict[str, str] = {}
        """Why questions are asked again: what would have been expected of the last answer."""
        self._deadlines: dict[str, float] = {}
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

    def waits(self, kept: Kept) -> None:
        """The open questions are in the journal: whoever is there can be asked."""
        raise NotImplementedError

    def ended(self) -> None:
        """What the call came to is in the journal: whoever is there can be told."""
        raise NotImplementedError

    def begin_again(self) -> None:
        """The call is run again from its journal, from the top."""
        raise NotImplementedError

    def released(self, kept: Kept) -> None:
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
                self.durable.spawn(self._stop(diverged))
                return
        status: Status = "failed" if call.outcome is CallStatus.FAILED else "completed"
        if call.reason is not None:
            status = "aborted"
        self._end = outcome, Parking(status=status, expires=max(expires, time.time() + KEPT))
        self.changed()

    async def _stop(self, error: Diverged) -> None:
        for tries in itertools.count():
            if self.kept is None:
                break  # it was dropped meanwhile
            try:
                await self.durable.stop(self, error)
            except JournalError as trouble:
                self.troubled(trouble)
                await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            else:
                break
        self.stopped(error)

    def dropped(self) -> None:
        """Its coroutine is not here any more; whoever comes back gets another dialect."""
        self.call = self.kept = None  # they know each other: only the collector would free them

    # --- writing it down ---------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        """Whether something has happened that is not on its way into the journal yet."""
        return self._changed

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
        kept = self.kept
        try:
            while self._changed and kept is not None:
                self._changed = False
                if self.call is None or self.call.dropped:
                    self.released(kept)  # it goes on elsewhere, or later
                    return
                try:
                    if not await self._write(kept):
                        return
                except Fenced:
                    return  # whoever has taken over goes on
                except Exception as error:  # whoever waits is told
                    if not isinstance(error, JournalError):
                        log.exception("a call could not be written down", extra={"call": kept.id})
                        error = JournalError("Internal error")
                    self.troubled(error)
                    if not kept.journaled:
                        self.give_up()
                        return
                    await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                    tries += 1
                    self._changed = True
                    continue
                tries = 0
                turns += 1
                if not kept.parked:
                    continue  # it has gone on, or is about to be parked anew
                if self.open and (self.call is None or not self._changed or turns >= TURNS):
                    turns = 0
                    self.waits(kept)
        finally:
            self._changed = self._working = False
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def written(self) -> None:
        """Wait until the journal is up to date, as far as it is in our hands."""
        while self._changed or self._working:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def _write(self, kept: Kept) -> bool:
        """Write down how things stand. False if there is nothing more to do for the call here."""
        if self._end is not None:
            await self.durable.settle(self, *self._end)
            self.ended()
            self.dropped()
            return False
        if self.open:
            if kept.parked:
                await self.durable.wait_for(self)
            else:
                await self.durable.park(self)
            return True
        if kept.parked and not await self.durable.go_on_alone(self):
            self.released(kept)
            return False
        return True

    def parking(self) -> Parking | None:
        """What the call waits for, if anything: for whoever writes it down, in that moment."""
        if not self.open:
            return None
        return Parking(
            status="waiting",
            wake=min(self._deadlines.values(), default=None),
            questions=encode_asked(self._asked()),
            expires=time.time() + self.durable.time_limit,
        )

    def _asked(self) -> Asked:
        questions = {name: waiting(one, self.notes.get(name, "")) for name, one in self.open.items()}
        return Asked(questions, self.durable.journal.worker, self.traceparent)

    def give_up(self) -> None:
        """Nobody can come back to a call that could not be written down."""
        self.durable.forget(self)
        if self.call is not None:
            self.call.drop()
        self.dropped()

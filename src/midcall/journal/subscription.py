"""The front of one durable subscription: what its call emits, on the way to whichever connection is attached.

Knows the keeper, and of connections only that they take items. See `subscriptions`.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Raw, Struct

from midcall.call import Call
from midcall.errors import Diverged, Fenced, JournalError, MidcallError, ToolError, UnknownQuestion
from midcall.items import (
    Background,
    Data,
    Done,
    Error,
    Item,
    Log,
    Metadata,
    Progress,
    Request,
    RequestCancelled,
    encode_item,
    to_json,
)
from midcall.journal.base import CallRecord, Parking, Status
from midcall.journal.keeper import KEPT, Keeper
from midcall.journal.kept import Asked, Kept, encode_asked
from midcall.principal import Principal

NOWHEN = Metadata((), "", 0)

MOST_BYTES = 16 * 1024 * 1024
"""How large the result of a durable call may be: it is kept until the call is forgotten."""

ELSEWHERE = "answered by somebody else"
"""The reason of a `request_cancelled` item for a question that its caller need not answer any more."""


class Peer(Protocol):
    """The connection that a call is attached to."""

    principal: Principal | None

    @property
    def full(self) -> bool: ...
    async def drain(self) -> None: ...
    def send_item(self, subscription: str, item: Item, number: int | None = None) -> None:
        """Tell the peer what a call emitted."""


class Outcome(Struct, omit_defaults=True):
    """What a call came to, with all elements of its result."""

    contents: list[Raw] = []
    error: Raw = Raw()


class DurableSubscription:
    """The front of one call."""

    __slots__ = (
        "_after",
        "_contents",
        "_ended",
        "_expected",
        "_failure",
        "_flushing",
        "_held",
        "_keeper",
        "_lost",
        "_open",
        "_size",
        "_writing",
        "call",
        "kept",
        "peer",
        "supported",
    )

    def __init__(
        self,
        keeper: Keeper,
        supported: frozenset[str],
        ended: Callable[["DurableSubscription"], None],
        lost: Callable[["DurableSubscription"], None],
    ) -> None:
        self._ended = ended
        self._lost = lost
        self._after = 0
        self._keeper = keeper
        self.supported = supported
        self.kept: Kept | None = None
        self.call: Call | None = None
        self.peer: Peer | None = None
        self._contents: list[bytes] = []
        self._size = 0
        self._expected: dict[str, tuple[Any, asyncio.Future[None]]] = {}
        self._open: dict[str, Request] = {}
        self._failure: Error | None = None
        self._held: list[tuple[Item, int | None]] = []
        self._flushing = False
        self._writing = asyncio.Lock()

    # --- the line ----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return "" if self.kept is None else self.kept.id

    def is_of(self, principal: Principal | None) -> bool:
        return self.kept is not None and is_of(self.kept.record, principal)

    def attach(self, peer: Peer, after: int) -> None:
        """From now on items go to this peer, and first those that it has missed."""
        self.peer = peer
        self._after = after
        for number, content in enumerate(self._contents[after:], after + 1):
            self._send(Data(self._stamp(), self._name(), Raw(content)), number)
        if self.kept is not None and self.kept.parked:
            for request in self._open.values():
                self._send(request)

    def detach(self) -> None:
        """The peer is gone; the call goes on."""
        self.peer = None

    @property
    def is_dropped(self) -> bool:
        """Whether its coroutine is not here any more."""
        return self.call is None or self.call.dropped

    @property
    def count(self) -> int:
        """How many elements there are."""
        return len(self._contents)

    @property
    def next_segment(self) -> int:
        """The segment that an answer starts."""
        return 0 if self.kept is None else self.kept.record.segment

    def expect(self, request_id: str, payload: Any) -> asyncio.Future[None]:
        """Give the answer as soon as the call, which is run again, comes to its question."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._expected[request_id] = (payload, answered)
        return answered

    def _give_expected(self, request: Request) -> None:
        if request.request_id not in self._expected or self.call is None:
            return
        payload, answered = self._expected.pop(request.request_id)
        try:
            self.call.answer(request.request_id, payload)
        except MidcallError as error:
            answered.set_exception(error)
        else:
            del self._open[request.request_id]
            answered.set_result(None)

    def close_prompt(self, request_id: str) -> None:
        """Somebody else has answered: whoever shows the question can close it."""
        self._send(RequestCancelled(self._stamp(), request_id, ELSEWHERE))

    async def answers_kept(self) -> None:
        """Wait until the answers that were given are in the journal."""
        if self.call is not None and self.call.trace is not None:
            await self.call.trace.flush()

    @property
    def full(self) -> bool:
        return self.peer is not None and self.peer.full

    async def drain(self) -> None:
        if self.peer is not None:
            await self.peer.drain()

    def _send(self, item: Item, number: int | None = None) -> None:
        """Tell the peer; but nothing that an answer led to before that answer is in the journal."""
        if self.peer is None:
            return
        if self._held or (number is not None and self._has_fresh_answers()):
            self._held.append((item, number))
            if len(self._held) == 1:
                self._keeper.spawn(self._release())
        else:
            self.peer.send_item(self.id, item, number)

    def _has_fresh_answers(self) -> bool:
        return self.call is not None and self.call.trace is not None and self.call.trace.has_fresh

    async def _release(self) -> None:
        """Make durable what led to the items that are held, then send them."""
        try:
            while self._has_fresh_answers():
                try:
                    await self.answers_kept()
                except Fenced:
                    return  # whoever has taken over sends its own
                except JournalError:
                    await asyncio.sleep(1)
            for item, number in self._held:
                if self.peer is not None:
                    self.peer.send_item(self.id, item, number)
        finally:
            self._held.clear()

    # --- the call emits ----------------------------------------------------------------------

    def put(self, item: Item) -> None:
        match item:
            case Data():
                self._collect(item)
            case Request():
                self._open[item.request_id] = item
                self._give_expected(item)
                self._flush_soon()
            case RequestCancelled():
                if self._open.pop(item.request_id, None) is not None:
                    self._send(item)
                    if not self._open and self.kept is not None and self.kept.parked:
                        self._keeper.spawn(self._go_on_alone())
            case Error():
                self._failure = item
            case Done():
                self._done(item)
            case Progress() | Log():
                self._send(item)
            case Background():
                pass

    def _collect(self, item: Data) -> None:
        content = to_json(item.content)
        self._size += len(content)
        if self._size > MOST_BYTES:
            raise ToolError(
                f"The result of a durable call may have {MOST_BYTES} bytes", code="result_too_large"
            )
        self._contents.append(content)
        if len(self._contents) > self._after:
            self._send(item, len(self._contents))

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._open and self.kept is not None and not self.kept.parked:
            self._keeper.spawn(self._park())

    async def _park(self) -> None:
        """Write down that the call waits, then ask."""
        async with self._writing:
            if self.kept is None or self.kept.parked or not self._open or self.call is None:
                return
            limits = [r.timeout_ms / 1000 for r in self._open.values() if r.timeout_ms is not None]
            parking = Parking(
                status="waiting",
                wake=time.time() + min(limits) if limits else None,
                questions=encode_asked(Asked(Raw(self._questions()), worker=self._keeper.journal.worker)),
                expires=time.time() + self._keeper.time_limit,
            )
            if not await self._settle(Outcome(), parking):
                return
        for request in list(self._open.values()):
            self._send(request)
        if not self._open:
            await self._go_on_alone()

    def _questions(self) -> bytes:
        return b"[%b]" % b",".join(encode_item(request) for request in self._open.values())

    async def _go_on_alone(self) -> None:
        if not await self._keeper.go_on_alone(self):
            self._lost(self)

    def _done(self, done: Done) -> None:
        call, failure = self.call, self._failure
        if call is None or call.trace is None:
            return
        diverged = call.trace.diverged or (call.trace.left_out() if call.reason is None else None)
        if diverged is not None:
            self._keeper.spawn(self._stop(diverged))
            return
        status: Status = "completed" if failure is None else "failed"
        if call.reason is not None:
            status = "aborted"
        outcome = Outcome([Raw(content) for content in self._contents])
        if failure is not None:
            outcome.error = Raw(encode_item(failure))
        self._keeper.spawn(self._end(outcome, Parking(status=status, expires=time.time() + KEPT), done))

    async def _end(self, outcome: Outcome, parking: Parking, done: Done) -> None:
        async with self._writing:
            if not await self._settle(outcome, parking):
                return
        if self._failure is not None:
            self._send(self._failure)
        self._send(done)
        self._ended(self)
        self.call = None

    async def _stop(self, error: Diverged) -> None:
        await self._keeper.stop(self, error)
        self.stopped(error)

    async def _settle(self, outcome: Outcome, parking: Parking) -> bool:
        """Write down what a segment came to; false if it is not to be told."""
        while True:
            try:
                await self._keeper.settle(self, encode_outcome(outcome), parking)
            except Fenced:
                return False
            except JournalError:
                await asyncio.sleep(1)
            else:
                return True

    # --- answers -----------------------------------------------------------------------------

    async def answer(self, request_id: str, payload: Any) -> None:
        """Take an answer; when this returns, it is in the journal."""
        if self.call is None or self.kept is None or request_id not in self._open:
            raise UnknownQuestion(request_id)
        self.call.check_answer(request_id, payload)
        async with self._writing:
            parked = self.kept.parked
            if parked:
                claimed = await self._keeper.claim(self.kept.id, self.kept.record.segment)
                if claimed is not self:
                    raise UnknownQuestion(request_id)
            self._open.pop(request_id, None)
            self.call.answer(request_id, payload)
            await self.answers_kept()
        if self._open:
            self._flush_soon()

    # --- what the keeper calls ---------------------------------------------------------------

    def begin_again(self) -> None:
        self._contents.clear()
        self._size = 0

    def dropped(self) -> None:
        """Who is attached stays so, and is told what another one has to tell."""

    def released(self) -> None:
        """Another worker goes on with the call."""
        self._lost(self)

    def troubled(self, error: JournalError) -> None:
        """Who is attached waits with the call."""

    def stopped(self, error: MidcallError) -> None:
        self._send(Error(self._stamp(), str(error), error.code, error.recoverable))
        self._send(Done(self._stamp()))
        self._ended(self)

    def _stamp(self) -> Any:
        return NOWHEN if self.call is None else self.call.stamp()

    def _name(self) -> str:
        return "" if self.kept is None else self.kept.record.name


def is_of(record: CallRecord, principal: Principal | None) -> bool:
    """Whether a call was started by this principal."""
    return record.principal == (None if principal is None else principal.name)


def encode_outcome(outcome: Outcome) -> bytes:
    """An outcome as it is kept."""
    return to_json(outcome)

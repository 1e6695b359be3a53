"""Durable subscriptions: calls over the hub's own protocol that outlive their connection, and the process.

    plexus_subscribe {"method", "params", "durable": true}   the id of the call
    plexus_attach    {"call", "after"}                       go on with it, on any connection to any worker

Elements of the result are numbered (`number` beside `result`), and `after` is the last number that the
client has: it gets what it missed, the open questions again, and what comes from now on. A question has the
same id wherever it is asked again. Only the principal that started a call finds it.
"""

import asyncio
import time
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from midcall.call import Call
from midcall.errors import (
    Diverged,
    Fenced,
    JournalError,
    MidcallError,
    ToolError,
    UnknownCall,
    UnknownQuestion,
)
from midcall.hub import Hub, Resolved
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
from midcall.journal.base import Busy, CallRecord, Parking, Status
from midcall.journal.keeper import KEPT, Keeper, Kept, context_of, new_record
from midcall.principal import Principal, check_scopes

KIND = "subscription"

NOWHEN = Metadata((), "", 0)

MOST_BYTES = 16 * 1024 * 1024
"""How large the result of a durable call may be: it is kept until the call is forgotten."""

PATIENCE = 20.0
"""Seconds that an answer waits for its question, while a call is run again."""


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


class Context(Struct):
    """What is written down of a durable subscription."""

    kinds: frozenset[str]


class Subscriptions:
    """The durable subscriptions of a hub, in this process."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._hub: Hub = keeper.hub
        self._attached: dict[str, DurableSubscription] = {}
        keeper.fronts[KIND] = self._revive

    def subscribe(self, peer: Peer, name: str, params: bytes, supported: frozenset[str]) -> str:
        """Start a call; it is in the journal before it does anything. Gives its id."""
        found = self._hub.resolve(name)
        check_scopes(found.name, found.method.extras, peer.principal)
        record = new_record(
            KIND,
            found.name,
            params,
            to_json(Context(supported)),
            None if peer.principal is None else peer.principal.name,
            None,
            self._keeper.time_limit,
        )
        front = DurableSubscription(self, self._keeper, supported)
        call = self._hub.prepare(
            found, params, front, supported=supported, time_limit=self._keeper.time_limit
        )
        self._keeper.admit(front, record)
        self._keeper.prepare(front, call)
        self._attach(front, peer, 0)
        self._keeper.spawn(self._begin(front))
        return record.id

    def _attach(self, front: "DurableSubscription", peer: Peer, after: int) -> None:
        self._attached[front.id] = front
        front.attach(peer, after)

    async def _begin(self, front: "DurableSubscription") -> None:
        try:
            await self._keeper.reserve(front)
        except JournalError as error:
            front.stopped(error)
        else:
            self._keeper.start(front)

    async def attach(self, peer: Peer, call_id: str, after: int) -> str:
        """Go on with a call on this connection. Raises `UnknownCall`."""
        await self._keeper.open()
        live = self._keeper.live(call_id)
        if isinstance(live, DurableSubscription) and live.is_of(peer.principal):
            self._attach(live, peer, after)
            return call_id
        found = await self._keeper.journal.load(call_id)
        if found is None or not _is_of(found[0], peer.principal):
            raise UnknownCall(call_id)
        record = found[0]
        claimed = await self._keeper.claim(call_id, record.segment)
        match claimed:
            case DurableSubscription():
                self._attach(claimed, peer, after)
                self._keeper.resume(claimed)
            case Busy():
                raise UnknownCall(call_id, "it runs in another worker; attach again in a moment")
            case _ if record.segment > 0:
                outcome = await self._keeper.journal.wait(call_id, record.segment - 1, 0)
                _tell_outcome(self._hub, peer, record, outcome, after)
            case _:
                raise UnknownCall(call_id)
        return call_id

    async def respond(self, peer: Peer, call_id: str, request_id: str, payload: Any) -> bool:
        """Answer a question; when this returns, the answer is in the journal.

        False if the call is not attached to this connection. Raises `UnknownQuestion` or `WrongAnswer`.
        """
        front = self._attached.get(call_id)
        if front is None or front.peer is not peer:
            return False
        if not front.is_dropped:
            await front.answer(request_id, payload)
            return True
        claimed = await self._keeper.claim(call_id, front.next_segment)  # it was given up to save memory
        if not isinstance(claimed, DurableSubscription):
            raise UnknownQuestion(request_id)
        answered = claimed.expect(request_id, payload)
        self._attach(claimed, peer, front.count)
        self._keeper.resume(claimed)
        async with asyncio.timeout(PATIENCE):
            await answered
        await claimed.answers_kept()
        return True

    async def answer_for(self, record: CallRecord, answers: dict[str, Any]) -> bool:
        """Somebody else than the caller answers. False if the call does not wait for that any more.

        When this returns, the answers are in the journal. Raises `UnknownQuestion` or `WrongAnswer`.
        """
        live = self._keeper.live(record.id)
        if isinstance(live, DurableSubscription):
            for request_id, payload in answers.items():
                await live.answer(request_id, payload)
                live.close_prompt(request_id)
            return True
        claimed = await self._keeper.claim(record.id, record.segment)
        if not isinstance(claimed, DurableSubscription):
            return False
        expected = [claimed.expect(request_id, payload) for request_id, payload in answers.items()]
        before = self._attached.get(record.id)
        if before is not None and before.peer is not None:
            self._attach(claimed, before.peer, before.count)
        self._keeper.resume(claimed)
        end = time.monotonic() + PATIENCE
        while not all(one.done() for one in expected) and time.monotonic() < end:
            if self._keeper.live(record.id) is not claimed:
                return True  # it does not do again what it did, or has ended
            await asyncio.wait(expected, timeout=0.1)
        await claimed.answers_kept()
        for request_id, one in zip(answers, expected, strict=True):
            if one.done():
                one.result()
                claimed.close_prompt(request_id)
        return True

    async def abort(self, peer: Peer, call_id: str, reason: str) -> bool:
        """End a call that is attached to this connection."""
        front = self._attached.get(call_id)
        if front is None or front.peer is not peer:
            return False
        front.detach()
        del self._attached[call_id]
        return await self._keeper.abort(call_id, reason, _encode(Outcome()))

    def detach(self, peer: Peer) -> None:
        """A connection is closed: its calls go on without it."""
        for call_id, front in list(self._attached.items()):
            if front.peer is peer:
                front.detach()
                del self._attached[call_id]

    def ended(self, front: "DurableSubscription") -> None:
        """Nothing more comes from a call."""
        if self._attached.get(front.id) is front:
            del self._attached[front.id]

    def _revive(self, record: CallRecord) -> tuple["DurableSubscription", Resolved]:
        context = msgspec.json.decode(context_of(record), type=Context)
        return DurableSubscription(self, self._keeper, context.kinds), self._hub.resolve(record.name)


class DurableSubscription:
    """The front of one call."""

    __slots__ = (
        "_after",
        "_all",
        "_contents",
        "_expected",
        "_failure",
        "_flushing",
        "_held",
        "_keeper",
        "_open",
        "_size",
        "_writing",
        "call",
        "kept",
        "peer",
        "supported",
    )

    def __init__(self, all: Subscriptions, keeper: Keeper, supported: frozenset[str]) -> None:
        self._all = all
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
        return self.kept is not None and _is_of(self.kept.record, principal)

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
                questions=b"[%b]" % b",".join(encode_item(request) for request in self._open.values()),
                expires=time.time() + self._keeper.time_limit,
            )
            if not await self._settle(Outcome(), parking):
                return
        for request in list(self._open.values()):
            self._send(request)
        if not self._open:
            await self._go_on_alone()

    async def _go_on_alone(self) -> None:
        await self._keeper.go_on_alone(self)

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
        self._all.ended(self)
        self.call = None

    async def _stop(self, error: Diverged) -> None:
        await self._keeper.stop(self, error)
        self.stopped(error)

    async def _settle(self, outcome: Outcome, parking: Parking) -> bool:
        """Write down what a segment came to; false if it is not to be told."""
        while True:
            try:
                await self._keeper.settle(self, _encode(outcome), parking)
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

    def released(self) -> None:
        """Another worker goes on with the call; the client comes back to it by itself."""

    def stopped(self, error: MidcallError) -> None:
        self._send(Error(self._stamp(), str(error), error.code, error.recoverable))
        self._send(Done(self._stamp()))
        self._all.ended(self)

    def _stamp(self) -> Any:
        return NOWHEN if self.call is None else self.call.stamp()

    def _name(self) -> str:
        return "" if self.kept is None else self.kept.record.name


def _tell_outcome(hub: Hub, peer: Peer, record: CallRecord, encoded: bytes | None, after: int) -> None:
    """Tell what a call came to that has ended."""
    here = Metadata((hub.name, *record.name.split(".")[:-1]), hub.hash, int(time.time()))
    outcome = msgspec.json.decode(encoded or b"{}", type=Outcome)
    for number, content in enumerate(outcome.contents[after:], after + 1):
        peer.send_item(record.id, Data(here, record.name, content), number)
    if bytes(outcome.error):
        failed = msgspec.json.decode(outcome.error)
        peer.send_item(record.id, Error(here, failed["message"], failed["code"]))
    elif record.status != "completed":
        peer.send_item(record.id, Error(here, f"The call is {record.status}", record.status))
    peer.send_item(record.id, Done(here))


def _is_of(record: CallRecord, principal: Principal | None) -> bool:
    return record.principal == (None if principal is None else principal.name)


def _encode(outcome: Outcome) -> bytes:
    return to_json(outcome)

"""Durable subscriptions: calls over the hub's own protocol that outlive their connection, and the process.

    plexus_subscribe {"method", "params", "durable": true}   the id of the call, once it is in the journal
    plexus_attach    {"call", "after"}                       follow it, on any connection to any worker

Elements of the result are numbered (`number` beside `result`), and `after` is the last number that the
client has: it gets what it missed, the open questions again, and what comes from now on. A question has the
same id wherever it is asked again. Only the principal that started a call finds it.

All connections of one worker that follow a call hear the same. If one attaches at another worker, the call
moves there, and those that followed it before are told so.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from midcall.errors import (
    Aborted,
    AttachedElsewhere,
    Fenced,
    JournalError,
    MethodNotFound,
    MidcallError,
    NotWaiting,
    ToolError,
    TooManyCalls,
    UnknownCall,
    UnknownQuestion,
)
from midcall.hub import Hub
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
from midcall.journal.bus import Channel
from midcall.journal.contract import ENDED, WITH_OUTCOME, Busy, CallRecord, Gone, Journal
from midcall.journal.dialect import Detached
from midcall.journal.durable import LOOK, PATIENCE, DurableCalls
from midcall.journal.forward import Forwarded
from midcall.journal.state import asked_of, context_of, kind_of, new_record, waiting_for
from midcall.plexus.protocol import Connection
from midcall.principal import CallSource, Principal, check_scopes
from midcall.registry import Resolved

KIND = "subscription"

MOST_BYTES = 16 * 1024 * 1024
"""How large the result of a durable call may be: it is kept until the call is forgotten."""

ELSEWHERE = "answered by somebody else"
"""The reason of a `request_cancelled` item for a question that its caller need not answer any more."""


WITHDRAWN = "not asked any more"
"""The reason for one that the call has given up while it was run again."""


class Audience:
    """The connections that follow a call in this process, whichever dialect it has there at the time."""

    def __init__(self) -> None:
        self.peers: dict[Connection, int] = {}
        """Each with the number of the last element that it has."""
        self.shown: dict[str, Request] = {}
        """The questions that they were asked, and that wait for an answer."""
        self.answering: dict[str, Connection] = {}
        """Who is about to answer them."""

    def close_prompt(self, call_id: str, request_id: str) -> None:
        """A question is answered: whoever else shows it can close it."""
        if self.shown.pop(request_id, None) is not None:
            for peer in self.peers:
                if peer is not self.answering.get(request_id):
                    peer.send_item(call_id, RequestCancelled(_now(), request_id, ELSEWHERE))

    def stop(self, call_id: str, error: MidcallError) -> None:
        """Nothing more comes: tell why."""
        for peer in self.peers:
            peer.send_item(call_id, Error(_now(), str(error), error.code, error.recoverable))
            peer.send_item(call_id, Done(_now()))
        self.peers.clear()


class SubscriptionOutcome(Struct, omit_defaults=True):
    """What a call came to, with all elements of its result."""

    contents: list[Raw] = []
    error: Raw = Raw()


class Context(Struct):
    """What is written down of a durable subscription."""

    kinds: frozenset[str]


def read_context(record: CallRecord) -> Context:
    """What was written down of a durable subscription. Raises `ValueError`."""
    return msgspec.json.decode(context_of(record), type=Context)


def aborted(reason: str) -> bytes:
    """The outcome of a call that an administrator has aborted."""
    return encode_outcome(
        SubscriptionOutcome(error=Raw(encode_item(Error(Metadata((), "", 0), reason, Aborted.code))))
    )


class Moved(Struct, omit_defaults=True):
    """A worker has done something with a call that somebody follows at another one."""

    call: str
    fence: int
    """Of what it has done: whatever is older is out of date."""
    answered: list[str]
    """The questions that need no answer any more."""
    attached: bool = False
    """Whether somebody follows the call there now."""


_decode_moved = msgspec.json.Decoder(Moved).decode


async def tell_holder(
    journal: Journal, record: CallRecord, answered: Sequence[str] = (), *, attached: bool = False
) -> None:
    """Tell the worker that has put the questions of a call to somebody, if that is another one.

    `record` is how the call stands now, with its fence, but with the questions that were open before.
    What was done is in the journal: if that worker cannot be told, its client still finds it there.
    """
    if kind_of(record) != KIND or not record.questions:
        return
    holder = asked_of(record).worker
    if holder and holder != journal.worker:
        moved = Moved(record.id, record.fence, list(answered), attached)
        with contextlib.suppress(JournalError):
            await Channel(journal, KIND).post(holder, to_json(moved))


class DurableSubscription(Detached):
    """The outlet of one call."""

    __slots__ = ("_contents", "_done", "_failure", "_held", "_lost", "_others", "_size", "audience")

    def __init__(
        self,
        durable: DurableCalls,
        record: CallRecord,
        supported: frozenset[str],
        audience: Audience,
        lost: Callable[["DurableSubscription"], None],
    ) -> None:
        super().__init__(durable, record, supported)
        self.audience = audience
        self._lost = lost
        self._contents: list[bytes] = []
        self._size = 0
        self._failure: Error | None = None
        self._done: Done | None = None
        self._held: list[tuple[Item, int | None]] = []
        self._others: set[str] = set()
        """The questions for others that whoever follows was told of."""

    # --- whoever follows ---------------------------------------------------------------------

    def attach(self, peer: Connection, after: int) -> None:
        """From now on items go to this peer too, and first those that it has missed."""
        self.audience.peers[peer] = after
        held = [number for _, number in self._held if number is not None]
        there = held[0] - 1 if held else len(self._contents)
        for number in range(after + 1, there + 1):
            content = Raw(self._contents[number - 1])
            self._send_to(peer, Data(self._stamp(), self.record.name, content), number)
        later = [item for item, _ in self._held]
        for request in self.audience.shown.values():
            if request not in later:
                peer.send_item(self.record.id, request)
        for request_id in self._others & self.open.keys():
            peer.send_item(self.record.id, self._waiting_for(request_id))

    @property
    def full(self) -> bool:
        return any(peer.full for peer in self.audience.peers)

    async def drain(self) -> None:
        for peer in list(self.audience.peers):
            await peer.drain()

    def _send(self, item: Item, number: int | None = None) -> None:
        """Tell whoever follows; but no element before all that led to it is in the journal."""
        if self._held or (number is not None and self._is_ahead_of_the_journal()):
            self._held.append((item, number))
            if len(self._held) == 1:
                self.durable.spawn(self._release())
        else:
            self._send_now(item, number)

    def _send_now(self, item: Item, number: int | None) -> None:
        for peer in self.audience.peers:
            self._send_to(peer, item, number)

    def _send_to(self, peer: Connection, item: Item, number: int | None) -> None:
        if number is not None:
            if number <= self.audience.peers[peer]:
                return
            self.audience.peers[peer] = number
        peer.send_item(self.record.id, item, number)

    def _is_ahead_of_the_journal(self) -> bool:
        trace = None if self.call is None else self.call.trace
        return trace is not None and (trace.has_fresh or self.lock.locked())

    async def _release(self) -> None:
        """Make durable what led to the items that are held, then send them."""
        try:
            while self._is_ahead_of_the_journal() and self.call is not None and self.call.trace is not None:
                try:
                    await self.call.trace.flush()
                except Fenced:
                    return  # whoever has taken over sends its own
                except JournalError:
                    await asyncio.sleep(1)
            for item, number in self._held:
                if number is None or (self.call is not None and not self.call.dropped):
                    self._send_now(item, number)  # else whoever runs it again sends its own
        finally:
            self._held.clear()

    # --- the call emits ----------------------------------------------------------------------

    def put(self, item: Item) -> None:
        match item:
            case Data():
                self._collect(item)
            case Request():
                self.ask(item.request_id, item)
            case RequestCancelled():
                self.close(item.request_id)
                if self.audience.shown.pop(item.request_id, None) is not None:
                    self._send(item)
            case Error():
                self._failure = item
            case Done():
                self._finish(item)
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
        self._send(item, len(self._contents))

    def _finish(self, done: Done) -> None:
        if self.call is None:
            return
        self._done = done
        outcome = SubscriptionOutcome([Raw(content) for content in self._contents])
        if self._failure is not None:
            outcome.error = Raw(encode_item(self._failure))
        self.end(self.call, encode_outcome(outcome))

    # --- what the base calls -----------------------------------------------------------------

    def waits(self) -> None:
        shown = self.audience.shown
        for request_id in shown.keys() - self.open.keys():  # of a call that was run again since
            del shown[request_id]
            self._send(RequestCancelled(self._stamp(), request_id, WITHDRAWN))
        for request_id, request in self.open.items():
            if request.to is not None:
                if request_id not in self._others:
                    self._others.add(request_id)
                    self._send(self._waiting_for(request_id))
            elif request_id not in shown:
                shown[request_id] = request
                self._send(request)

    def _waiting_for(self, request_id: str) -> Progress:
        """What the caller is told of a question that is for somebody else."""
        one = asked_of(self.record).questions[request_id]
        return Progress(self._stamp(), waiting_for(one, self.durable.links.url(self.record, one)))

    def answered(self, answers: Mapping[str, Any]) -> None:
        for request_id in answers:
            self.audience.close_prompt(self.record.id, request_id)
        self.durable.spawn(tell_holder(self.durable.journal, self.record, list(answers)))

    def taken_over(self) -> None:
        self.durable.spawn(tell_holder(self.durable.journal, self.record))

    def ended(self) -> None:
        if self._failure is not None:
            self._send(self._failure)
        if self._done is not None:
            self._send(self._done)
        for item, number in self._held:
            self._send_now(item, number)
        self._held.clear()
        self.audience.peers.clear()
        self._lost(self)

    def begin_again(self) -> None:
        self._contents.clear()
        self._size = 0

    def released(self) -> None:
        self._lost(self)

    def troubled(self, error: JournalError) -> None:
        """Who follows waits with the call."""

    def stopped(self, error: MidcallError) -> None:
        self._held.clear()
        self.audience.stop(self.record.id, error)
        self._lost(self)

    def _stamp(self) -> Metadata:
        return _now() if self.call is None else self.call.stamp()


class DurableSubscriptions:
    """The durable subscriptions of a hub, in this process."""

    def __init__(self, durable: DurableCalls) -> None:
        self._durable = durable
        self._hub: Hub = durable.hub
        self._audiences: dict[str, Audience] = {}
        """Of the calls that somebody follows here, by their ids."""
        self._followed: dict[str, int] = {}
        """The calls that are about to be taken back, and how often there was need to since."""
        durable.kinds[KIND] = self._revive
        durable.bus.channel(KIND, self._moved)

    async def subscribe(self, peer: Connection, name: str, params: bytes, supported: frozenset[str]) -> str:
        """Start a call, and follow it on this connection. Gives its id. Raises as `start` does."""
        return await self.start(name, params, supported, peer.principal, peer)

    async def start(
        self,
        name: str,
        params: bytes,
        supported: frozenset[str],
        principal: Principal | None,
        peer: Connection | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Start a call; it is in the journal before it does anything. Gives its id.

        Where the same principal has made the same call with this key, it is that one's. Raises `NotAllowed`,
        `InvalidArguments`, `TooManyCalls`, `JournalError`, or `MidcallError` if the key was for another call.
        """
        found = self._hub.resolve(name)
        check_scopes(found.name, found.method.extras, principal)
        caller = None if principal is None else principal.name
        record = self.new_call(found.name, params, supported, caller, idempotency_key)
        dialect = self._dialect(supported, record)
        call = self._hub.prepare(
            found,
            params,
            dialect,
            supported=supported,
            time_limit=self._durable.time_limit,
            principal=caller,
            sender=CallSource(principal) if peer is None else peer,
        )
        self._hub.calls.check_room(call)
        self._durable.admit(dialect, call)
        taken = await self._durable.reserve(dialect)
        if taken is not None:
            if (kind_of(taken), taken.name, taken.arguments) != (KIND, record.name, record.arguments):
                raise MidcallError("This idempotency key was used for another request")
            return taken.id
        if peer is not None:
            self._attach(dialect, peer, 0)
        self._durable.start(dialect)
        return record.id

    def new_call(
        self,
        name: str,
        arguments: bytes,
        supported: frozenset[str],
        principal: str | None,
        idempotency_key: str | None = None,
    ) -> CallRecord:
        """The record of a call that is about to start, and that only this principal can attach to."""
        context, limit = to_json(Context(supported)), self._durable.time_limit
        return new_record(KIND, name, arguments, context, principal, idempotency_key, limit)

    async def find(self, call_id: str, principal: Principal | None) -> CallRecord:
        """How a call of this principal stands. Raises `UnknownCall`, also for those of others.

        Raises `NotAllowed` if who comes back lacks a scope of the method, if that is still there.
        """
        await self._durable.open()
        found = await self._durable.journal.load(call_id)
        if found is None or not is_of(found[0], principal) or kind_of(found[0]) != KIND:
            raise UnknownCall(call_id)
        record = found[0]
        with contextlib.suppress(MethodNotFound):
            check_scopes(record.name, self._hub.resolve(record.name).method.extras, principal)
        return record

    async def attach(self, peer: Connection, call_id: str, after: int) -> str:
        """Follow a call on this connection. Raises `UnknownCall`, or `NotWaiting` if it cannot be had."""
        after = max(after, 0)
        end = time.monotonic() + PATIENCE
        while True:
            record = await self.find(call_id, peer.principal)
            self._durable.live.yield_to(call_id, record.fence)
            live = self._durable.live.get(call_id)
            if isinstance(live, DurableSubscription):
                self._attach(live, peer, after)
                return call_id
            if record.status in ENDED:
                outcome = await self._outcome(record)
                _tell_outcome(self._hub, peer, call_id, record, outcome, after)
                return call_id
            match await self._durable.claim(call_id, record.segment):
                case DurableSubscription() as claimed:
                    self._attach(claimed, peer, after)
                    self._durable.resume(claimed)
                    await tell_holder(self._durable.journal, claimed.record, attached=True)
                    return call_id
                case Busy():
                    if time.monotonic() > end:
                        busy = f"Call {call_id} runs in another worker: attach again in a moment"
                        raise NotWaiting(call_id, "running", busy)
                    await self._durable.journal.wait(call_id, record.segment, LOOK)
                case Gone("diverged"):
                    raise self._stands_still(call_id)
                case _:
                    pass  # it has gone on, or has ended, in this moment: look again

    async def respond(self, peer: Connection, call_id: str, request_id: str, payload: Any) -> bool:
        """Answer a question; when this returns, the answer is in the journal.

        False if this connection does not follow the call. Raises `UnknownQuestion` or `WrongAnswer`.
        """
        audience = self._audiences.get(call_id)
        if audience is None or peer not in audience.peers:
            return False
        audience.answering[request_id] = peer
        try:
            answered = await self._durable.answer(call_id, {request_id: payload})
        finally:
            audience.answering.pop(request_id, None)
        if not isinstance(answered, DurableSubscription | Forwarded):
            raise UnknownQuestion(request_id)
        return True

    async def abort(self, peer: Connection, call_id: str, reason: str) -> bool:
        """End a call that this connection follows."""
        audience = self._audiences.get(call_id)
        if audience is None or peer not in audience.peers:
            return False
        self._leave(peer, call_id)
        return await self._durable.abort(call_id, reason, encode_outcome(SubscriptionOutcome()))

    def detach(self, peer: Connection) -> None:
        """A connection is closed: its calls go on without it."""
        for call_id in list(self._audiences):
            self._leave(peer, call_id)

    def _attach(self, dialect: DurableSubscription, peer: Connection, after: int) -> None:
        if not peer.closed:
            self._audiences[dialect.record.id] = dialect.audience
            dialect.attach(peer, after)

    def _leave(self, peer: Connection, call_id: str) -> None:
        audience = self._audiences[call_id]
        audience.peers.pop(peer, None)
        if not audience.peers:
            del self._audiences[call_id]

    def _revive(self, record: CallRecord) -> tuple[DurableSubscription, Resolved]:
        return self._dialect(read_context(record).kinds, record), self._hub.resolve(record.name)

    def _dialect(self, supported: frozenset[str], record: CallRecord) -> DurableSubscription:
        audience = self._audiences.get(record.id) or Audience()
        return DurableSubscription(self._durable, record, supported, audience, self._lost)

    def _lost(self, dialect: DurableSubscription) -> None:
        """Nothing more comes from a dialect: the call has ended, or others go on with it."""
        call_id = dialect.record.id
        if dialect.audience.peers:
            self._follow_soon(call_id)
        elif self._audiences.get(call_id) is dialect.audience:  # not that of one that has come after it
            del self._audiences[call_id]

    # --- other workers -----------------------------------------------------------------------

    def _moved(self, message: bytes) -> None:
        """Another worker has answered or ended a call, or somebody follows it there."""
        moved = _decode_moved(message)
        audience = self._audiences.get(moved.call)
        if audience is None or not self._durable.live.yield_to(moved.call, moved.fence):
            return
        if moved.attached:
            self._audiences.pop(moved.call).stop(moved.call, AttachedElsewhere(moved.call))
            return
        for request_id in moved.answered:
            audience.close_prompt(moved.call, request_id)
        self._follow_soon(moved.call)

    def _follow_soon(self, call_id: str) -> None:
        if call_id in self._followed:
            self._followed[call_id] += 1
        elif self._is_followed(call_id):
            self._followed[call_id] = 0
            self._durable.spawn(self._follow(call_id))

    async def _follow(self, call_id: str) -> None:
        """Another worker goes on with a call: once that is done, go on here, for whoever is on the line."""
        try:
            while self._is_followed(call_id):
                before = self._followed[call_id]
                try:
                    if await self._take_back(call_id) and self._followed[call_id] == before:
                        return
                except (JournalError, TooManyCalls):
                    await asyncio.sleep(LOOK)
        finally:
            del self._followed[call_id]

    async def _take_back(self, call_id: str) -> bool:
        journal = self._durable.journal
        found = await journal.load(call_id)
        if self._durable.live.get(call_id) is not None:
            return True
        record = None if found is None else found[0]
        if record is None or record.status in ENDED:
            outcome = None if record is None else await self._outcome(record)
            audience = self._audiences.pop(call_id, Audience())
            for peer, after in audience.peers.items():
                _tell_outcome(self._hub, peer, call_id, record, outcome, after)
            return True
        claimed = await self._durable.take_up(record)
        if isinstance(claimed, DurableSubscription):
            self._durable.resume(claimed)
            await tell_holder(journal, claimed.record, attached=True)
            return True
        if claimed == Gone("diverged"):
            self._audiences.pop(call_id, Audience()).stop(call_id, self._stands_still(call_id))
            return True
        await journal.wait(call_id, record.segment, LOOK)
        return False

    async def _outcome(self, record: CallRecord) -> bytes | None:
        if record.status not in WITH_OUTCOME:
            return None
        return await self._durable.journal.wait(record.id, record.segment - 1, 0)

    def _is_followed(self, call_id: str) -> bool:
        return call_id in self._audiences and not self._durable.stopping

    def _stands_still(self, call_id: str) -> NotWaiting:
        why = self._durable.why_still(call_id)
        return NotWaiting(call_id, "diverged", f"Call {call_id} cannot go on: {why}")


def _tell_outcome(
    hub: Hub, peer: Connection, call_id: str, record: CallRecord | None, encoded: bytes | None, after: int
) -> None:
    """Tell what a call came to that has ended."""
    names = () if record is None else record.name.split(".")[:-1]
    here = Metadata((hub.name, *names), hub.hash, int(time.time()))
    outcome = msgspec.json.decode(encoded or b"{}", type=SubscriptionOutcome)
    for number, content in enumerate(outcome.contents[after:], after + 1):
        peer.send_item(call_id, Data(here, "" if record is None else record.name, content), number)
    if bytes(outcome.error):
        failed = msgspec.json.decode(outcome.error)
        peer.send_item(call_id, Error(here, failed["message"], failed["code"]))
    elif record is None:
        peer.send_item(call_id, Error(here, str(UnknownCall(call_id)), UnknownCall.code))
    elif record.status != "completed":
        peer.send_item(call_id, Error(here, f"The call is {record.status}", record.status))
    peer.send_item(call_id, Done(here))


def _now() -> Metadata:
    return Metadata((), "", int(time.time()))


def is_of(record: CallRecord, principal: Principal | None) -> bool:
    """Whether a call was started by this principal."""
    return record.principal == (None if principal is None else principal.name)


def encode_outcome(outcome: SubscriptionOutcome) -> bytes:
    """An outcome as it is kept."""
    return to_json(outcome)

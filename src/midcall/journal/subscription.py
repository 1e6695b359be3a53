"""The dialect of one durable subscription: what its call emits, on the way to the connections that follow it.

Several connections may follow a call, each from where it stands; any of them may answer. Knows
`DurableCalls`, and of connections only that they take items. See `subscriptions`.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Raw, Struct

from midcall.errors import Fenced, JournalError, MidcallError, ToolError
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
from midcall.journal.contract import CallRecord
from midcall.journal.dialect import Detached
from midcall.journal.durable import DurableCalls
from midcall.journal.kept import Kept
from midcall.principal import Principal

NOWHEN = Metadata((), "", 0)

MOST_BYTES = 16 * 1024 * 1024
"""How large the result of a durable call may be: it is kept until the call is forgotten."""

ELSEWHERE = "answered by somebody else"
"""The reason of a `request_cancelled` item for a question that its caller need not answer any more."""


WITHDRAWN = "not asked any more"
"""The reason for one that the call has given up while it was run again."""


class Peer(Protocol):
    """A connection that follows a call."""

    principal: Principal | None
    closed: bool

    @property
    def full(self) -> bool: ...
    async def drain(self) -> None: ...
    def send_item(self, subscription: str, item: Item, number: int | None = None) -> None:
        """Tell the peer what a call emitted."""


class Audience:
    """The connections that follow a call in this process, whichever dialect it has there at the time."""

    def __init__(self) -> None:
        self.peers: dict[Peer, int] = {}
        """Each with the number of the last element that it has."""
        self.shown: dict[str, Request] = {}
        """The questions that they were asked, and that wait for an answer."""

    def close_prompt(self, call_id: str, request_id: str, but: Peer | None = None) -> None:
        """A question is answered: whoever else shows it can close it."""
        if self.shown.pop(request_id, None) is not None:
            for peer in self.peers:
                if peer is not but:
                    peer.send_item(call_id, RequestCancelled(_now(), request_id, ELSEWHERE))

    def stop(self, call_id: str, error: MidcallError) -> None:
        """Nothing more comes: tell why."""
        for peer in self.peers:
            peer.send_item(call_id, Error(_now(), str(error), error.code, error.recoverable))
            peer.send_item(call_id, Done(_now()))
        self.peers.clear()


class Outcome(Struct, omit_defaults=True):
    """What a call came to, with all elements of its result."""

    contents: list[Raw] = []
    error: Raw = Raw()


class DurableSubscription(Detached):
    """The outlet of one call."""

    __slots__ = ("_contents", "_done", "_failure", "_held", "_lost", "_size", "audience", "id", "name")

    def __init__(
        self,
        durable: DurableCalls,
        supported: frozenset[str],
        record: CallRecord,
        audience: Audience,
        lost: Callable[["DurableSubscription"], None],
    ) -> None:
        super().__init__(durable, supported)
        self.id = record.id
        self.name = record.name
        self.audience = audience
        self._lost = lost
        self._contents: list[bytes] = []
        self._size = 0
        self._failure: Error | None = None
        self._done: Done | None = None
        self._held: list[tuple[Item, int | None]] = []

    # --- whoever follows ---------------------------------------------------------------------

    def attach(self, peer: Peer, after: int) -> None:
        """From now on items go to this peer too, and first those that it has missed."""
        self.audience.peers[peer] = after
        held = [number for _, number in self._held if number is not None]
        there = held[0] - 1 if held else len(self._contents)
        for number in range(after + 1, there + 1):
            content = Raw(self._contents[number - 1])
            self._send_to(peer, Data(self._stamp(), self.name, content), number)
        later = [item for item, _ in self._held]
        for request in self.audience.shown.values():
            if request not in later:
                peer.send_item(self.id, request)

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

    def _send_to(self, peer: Peer, item: Item, number: int | None) -> None:
        if number is not None:
            if number <= self.audience.peers[peer]:
                return
            self.audience.peers[peer] = number
        peer.send_item(self.id, item, number)

    def _is_ahead_of_the_journal(self) -> bool:
        trace = None if self.call is None else self.call.trace
        return trace is not None and self.kept is not None and (trace.has_fresh or self.kept.lock.locked())

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
        outcome = Outcome([Raw(content) for content in self._contents])
        if self._failure is not None:
            outcome.error = Raw(encode_item(self._failure))
        self.end(self.call, encode_outcome(outcome))

    # --- what the base and the durable calls call ---------------------------------------------------

    def waits(self, kept: Kept) -> None:
        shown = self.audience.shown
        for request_id in shown.keys() - self.open.keys():  # of a call that was run again since
            del shown[request_id]
            self._send(RequestCancelled(self._stamp(), request_id, WITHDRAWN))
        for request_id, request in self.open.items():
            if request_id not in shown:
                shown[request_id] = request
                self._send(request)

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

    def released(self, kept: Kept) -> None:
        self._lost(self)

    def troubled(self, error: JournalError) -> None:
        """Who follows waits with the call."""

    def stopped(self, error: MidcallError) -> None:
        self._held.clear()
        self.audience.stop(self.id, error)
        self._lost(self)

    def _stamp(self) -> Metadata:
        return _now() if self.call is None else self.call.stamp()


def _now() -> Metadata:
    return Metadata((), "", int(time.time()))


def is_of(record: CallRecord, principal: Principal | None) -> bool:
    """Whether a call was started by this principal."""
    return record.principal == (None if principal is None else principal.name)


def encode_outcome(outcome: Outcome) -> bytes:
    """An outcome as it is kept."""
    return to_json(outcome)

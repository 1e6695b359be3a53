"""Durable subscriptions: calls over the hub's own protocol that outlive their connection, and the process.

    plexus_subscribe {"method", "params", "durable": true}   the id of the call
    plexus_attach    {"call", "after"}                       go on with it, on any connection to any worker

Elements of the result are numbered (`number` beside `result`), and `after` is the last number that the
client has: it gets what it missed, the open questions again, and what comes from now on. A question has the
same id wherever it is asked again. Only the principal that started a call finds it.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from midcall.errors import (
    JournalError,
    UnknownCall,
    UnknownQuestion,
)
from midcall.hub import Hub
from midcall.items import (
    Data,
    Done,
    Error,
    Metadata,
    to_json,
)
from midcall.journal.base import Busy, CallRecord, Journal
from midcall.journal.keeper import Keeper
from midcall.journal.kept import asked_of, context_of, kind_of, new_record
from midcall.journal.mail import Box
from midcall.journal.subscription import DurableSubscription, Outcome, Peer, encode_outcome, is_of
from midcall.principal import check_scopes
from midcall.registry import Resolved

KIND = "subscription"

PATIENCE = 20.0
"""Seconds that an answer waits for its question, while a call is run again."""


class Context(Struct):
    """What is written down of a durable subscription."""

    kinds: frozenset[str]


class Moved(Struct):
    """A worker has done something with a call that somebody waits for at another one."""

    call: str
    fence: int
    """Of what it has done: whatever is older is out of date."""
    answered: list[str]
    """The questions that need no answer any more."""


_decode_moved = msgspec.json.Decoder(Moved).decode


async def tell_holder(journal: Journal, record: CallRecord, fence: int, answered: Sequence[str] = ()) -> None:
    """Tell the worker that has put the questions of a call to somebody, if that is another one.

    What was done is in the journal: if that worker cannot be told, its client still finds it there.
    """
    if kind_of(record) != KIND or not record.questions:
        return
    holder = asked_of(record).worker
    if holder and holder != journal.worker:
        moved = Moved(record.id, fence, list(answered))
        with contextlib.suppress(JournalError):
            await Box(journal, KIND).post(holder, to_json(moved))


class Subscriptions:
    """The durable subscriptions of a hub, in this process."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._hub: Hub = keeper.hub
        self._attached: dict[str, DurableSubscription] = {}
        self._followed: set[DurableSubscription] = set()
        keeper.fronts[KIND] = self._revive
        keeper.mail.box(KIND, self._moved)

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
        front = self._front(supported)
        call = self._hub.prepare(
            found,
            params,
            front,
            supported=supported,
            time_limit=self._keeper.time_limit,
            principal=record.principal,
        )
        self._hub.calls.check_room(call)
        self._keeper.admit(front, record)
        self._keeper.prepare(front, call)
        self._attach(front, peer, 0)
        self._keeper.spawn(self._begin(front))
        return record.id

    def _attach(self, front: DurableSubscription, peer: Peer, after: int) -> None:
        self._attached[front.id] = front
        front.attach(peer, after)

    async def _begin(self, front: DurableSubscription) -> None:
        try:
            await self._keeper.reserve(front)
        except JournalError as error:
            front.stopped(error)
        else:
            self._keeper.start(front)

    async def attach(self, peer: Peer, call_id: str, after: int) -> str:
        """Go on with a call on this connection. Raises `UnknownCall`."""
        await self._keeper.open()
        found = await self._keeper.journal.load(call_id)
        if found is not None:
            self._keeper.here.yield_to(call_id, found[0].fence)
        live = self._keeper.live(call_id)
        if isinstance(live, DurableSubscription) and live.is_of(peer.principal):
            self._attach(live, peer, after)
            return call_id
        if found is None or not is_of(found[0], peer.principal):
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
        self._keeper.here.yield_to(record.id, record.fence)
        live = self._keeper.live(record.id)
        if isinstance(live, DurableSubscription):
            for request_id, payload in answers.items():
                await live.answer(request_id, payload)
                live.close_prompt(request_id)
            return True
        claimed = await self._keeper.claim(record.id, record.segment)
        if not isinstance(claimed, DurableSubscription):
            return False
        expected = {name: claimed.expect(name, payload) for name, payload in answers.items()}
        before = self._attached.get(record.id)
        if before is not None and before.peer is not None:
            self._attach(claimed, before.peer, before.count)
        self._keeper.resume(claimed)
        try:
            await self._until_given(claimed, expected.values())
        finally:
            given = [name for name, one in expected.items() if one.done() and one.exception() is None]
            for request_id in given:
                claimed.close_prompt(request_id)
            await tell_holder(self._keeper.journal, record, record.fence + 1, given)
        for one in expected.values():
            if one.done():
                one.result()
        return True

    async def _until_given(
        self, front: DurableSubscription, expected: Iterable[asyncio.Future[None]]
    ) -> None:
        """Wait until a call that is run again has its answers, and they are in the journal."""
        end = time.monotonic() + PATIENCE
        while left := [one for one in expected if not one.done()]:
            if self._keeper.live(front.id) is not front or time.monotonic() > end:
                return  # it does not do again what it did, or has ended
            await asyncio.wait(left, timeout=0.1)
        await front.answers_kept()

    async def abort(self, peer: Peer, call_id: str, reason: str) -> bool:
        """End a call that is attached to this connection."""
        front = self._attached.get(call_id)
        if front is None or front.peer is not peer:
            return False
        front.detach()
        del self._attached[call_id]
        return await self._keeper.abort(call_id, reason, encode_outcome(Outcome()))

    def detach(self, peer: Peer) -> None:
        """A connection is closed: its calls go on without it."""
        for call_id, front in list(self._attached.items()):
            if front.peer is peer:
                front.detach()
                del self._attached[call_id]

    def ended(self, front: DurableSubscription) -> None:
        """Nothing more comes from a call."""
        if self._attached.get(front.id) is front:
            del self._attached[front.id]

    def _revive(self, record: CallRecord) -> tuple[DurableSubscription, Resolved]:
        context = msgspec.json.decode(context_of(record), type=Context)
        return self._front(context.kinds), self._hub.resolve(record.name)

    def _front(self, supported: frozenset[str]) -> DurableSubscription:
        return DurableSubscription(self._keeper, supported, self.ended, self._follow_soon)

    # --- other workers -----------------------------------------------------------------------

    def _moved(self, message: bytes) -> None:
        """Another worker has answered or ended a call."""
        moved = _decode_moved(message)
        front = self._attached.get(moved.call)
        if front is not None and self._keeper.here.yield_to(moved.call, moved.fence):
            for request_id in moved.answered:
                front.close_prompt(request_id)
            self._follow_soon(front)

    def _follow_soon(self, front: DurableSubscription) -> None:
        if self._is_on_the_line(front) and front not in self._followed:
            self._followed.add(front)
            self._keeper.spawn(self._follow(front))

    async def _follow(self, front: DurableSubscription) -> None:
        """Another worker goes on with a call: once that is done, go on here, for whoever is on the line."""
        try:
            while self._is_on_the_line(front):
                try:
                    if await self._take_back(front):
                        return
                except JournalError:
                    await asyncio.sleep(1)
        finally:
            self._followed.discard(front)

    async def _take_back(self, front: DurableSubscription) -> bool:
        found = await self._keeper.journal.load(front.id)
        if found is not None and found[0].status == "running":
            await self._keeper.journal.wait(front.id, found[0].segment, PATIENCE)
            return False
        if front.peer is not None:
            try:
                await self.attach(front.peer, front.id, front.count)
            except UnknownCall as error:
                if found is None:
                    front.stopped(error)
                else:
                    return False  # somebody was faster
        self.ended(front)  # it has another one now, or has come to its end
        return True

    def _is_on_the_line(self, front: DurableSubscription) -> bool:
        here = self._attached.get(front.id) is front and front.peer is not None
        return here and not self._keeper.stopping


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

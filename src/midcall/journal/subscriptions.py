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
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from midcall.errors import (
    AttachedElsewhere,
    JournalError,
    NotWaiting,
    TooManyCalls,
    UnknownCall,
    UnknownQuestion,
)
from midcall.hub import Hub
from midcall.items import Data, Done, Error, Metadata, to_json
from midcall.journal.contract import ENDED, WITH_OUTCOME, Busy, CallRecord, Gone, Journal
from midcall.journal.durable import LOOK, PATIENCE, DurableCalls
from midcall.journal.kept import asked_of, context_of, kind_of, new_record
from midcall.journal.mail import Box
from midcall.journal.subscription import Audience, DurableSubscription, Outcome, Peer, encode_outcome, is_of
from midcall.principal import check_scopes
from midcall.registry import Resolved

KIND = "subscription"


class Context(Struct):
    """What is written down of a durable subscription."""

    kinds: frozenset[str]


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
    journal: Journal, record: CallRecord, fence: int, answered: Sequence[str] = (), *, attached: bool = False
) -> None:
    """Tell the worker that has put the questions of a call to somebody, if that is another one.

    What was done is in the journal: if that worker cannot be told, its client still finds it there.
    """
    if kind_of(record) != KIND or not record.questions:
        return
    holder = asked_of(record).worker
    if holder and holder != journal.worker:
        moved = Moved(record.id, fence, list(answered), attached)
        with contextlib.suppress(JournalError):
            await Box(journal, KIND).post(holder, to_json(moved))


class Subscriptions:
    """The durable subscriptions of a hub, in this process."""

    def __init__(self, durable: DurableCalls) -> None:
        self._durable = durable
        self._hub: Hub = durable.hub
        self._audiences: dict[str, Audience] = {}
        """Of the calls that somebody follows here, by their ids."""
        self._followed: dict[str, int] = {}
        """The calls that are about to be taken back, and how often there was need to since."""
        durable.fronts[KIND] = self._revive
        durable.mail.box(KIND, self._moved)

    async def subscribe(self, peer: Peer, name: str, params: bytes, supported: frozenset[str]) -> str:
        """Start a call; it is in the journal before it does anything. Gives its id. Raises `JournalError`."""
        found = self._hub.resolve(name)
        check_scopes(found.name, found.method.extras, peer.principal)
        record = new_record(
            KIND,
            found.name,
            params,
            to_json(Context(supported)),
            None if peer.principal is None else peer.principal.name,
            None,
            self._durable.time_limit,
        )
        front = self._front(supported, record)
        call = self._hub.prepare(
            found,
            params,
            front,
            supported=supported,
            time_limit=self._durable.time_limit,
            principal=record.principal,
        )
        self._hub.calls.check_room(call)
        self._durable.admit(front, record)
        self._durable.prepare(front, call)
        await self._durable.reserve(front)
        self._attach(front, peer, 0)
        self._durable.start(front)
        return record.id

    async def attach(self, peer: Peer, call_id: str, after: int) -> str:
        """Follow a call on this connection. Raises `UnknownCall`, or `NotWaiting` if it cannot be had."""
        await self._durable.open()
        after = max(after, 0)
        end = time.monotonic() + PATIENCE
        while True:
            found = await self._durable.journal.load(call_id)
            if found is None or not is_of(found[0], peer.principal) or kind_of(found[0]) != KIND:
                raise UnknownCall(call_id)
            record = found[0]
            self._durable.here.yield_to(call_id, record.fence)
            live = self._durable.live(call_id)
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
                    await tell_holder(self._durable.journal, record, record.fence + 1, attached=True)
                    return call_id
                case Busy():
                    if time.monotonic() > end:
                        busy = f"Call {call_id} runs in another worker: attach again in a moment"
                        raise NotWaiting(call_id, "running", busy)
                    await self._durable.journal.wait(call_id, record.segment, LOOK)
                case Gone("diverged"):
                    raise _stands_still(call_id)
                case _:
                    pass  # it has gone on, or has ended, in this moment: look again

    async def respond(self, peer: Peer, call_id: str, request_id: str, payload: Any) -> bool:
        """Answer a question; when this returns, the answer is in the journal.

        False if this connection does not follow the call. Raises `UnknownQuestion` or `WrongAnswer`.
        """
        audience = self._audiences.get(call_id)
        if audience is None or peer not in audience.peers:
            return False
        if not await self.answer(call_id, {request_id: payload}, peer):
            raise UnknownQuestion(request_id)
        return True

    async def answer(self, call_id: str, answers: Mapping[str, Any], peer: Peer | None = None) -> bool:
        """Answer questions of a call, by their ids, wherever it is; `peer` is who does, if it follows it.

        When this returns, the answers are in the journal. False if the call does not wait any more. Raises
        `UnknownQuestion` or `WrongAnswer`.
        """
        front = await self._durable.answer(call_id, answers)
        if not isinstance(front, DurableSubscription) or front.kept is None:
            return False
        record = front.kept.record
        for request_id in answers:
            front.audience.close_prompt(call_id, request_id, peer)
        self._durable.resume(front)
        await tell_holder(self._durable.journal, record, record.fence, list(answers))
        return True

    async def abort(self, peer: Peer, call_id: str, reason: str) -> bool:
        """End a call that this connection follows."""
        audience = self._audiences.get(call_id)
        if audience is None or peer not in audience.peers:
            return False
        self._leave(peer, call_id)
        return await self._durable.abort(call_id, reason, encode_outcome(Outcome()))

    def detach(self, peer: Peer) -> None:
        """A connection is closed: its calls go on without it."""
        for call_id in list(self._audiences):
            self._leave(peer, call_id)

    def _attach(self, front: DurableSubscription, peer: Peer, after: int) -> None:
        if not peer.closed:
            self._audiences[front.id] = front.audience
            front.attach(peer, after)

    def _leave(self, peer: Peer, call_id: str) -> None:
        audience = self._audiences[call_id]
        audience.peers.pop(peer, None)
        if not audience.peers:
            del self._audiences[call_id]

    def _revive(self, record: CallRecord) -> tuple[DurableSubscription, Resolved]:
        context = msgspec.json.decode(context_of(record), type=Context)
        return self._front(context.kinds, record), self._hub.resolve(record.name)

    def _front(self, supported: frozenset[str], record: CallRecord) -> DurableSubscription:
        audience = self._audiences.get(record.id) or Audience()
        return DurableSubscription(self._durable, supported, record, audience, self._lost)

    def _lost(self, front: DurableSubscription) -> None:
        """Nothing more comes from a dialect: the call has ended, or others go on with it."""
        if front.audience.peers:
            self._follow_soon(front.id)
        elif self._audiences.get(front.id) is front.audience:  # not that of one that has come after it
            del self._audiences[front.id]

    # --- other workers -----------------------------------------------------------------------

    async def gone_on(self, record: CallRecord) -> None:
        """This worker goes on with a call that nobody looked after: who follows it elsewhere hears of it."""
        await tell_holder(self._durable.journal, record, record.fence + 1)

    def _moved(self, message: bytes) -> None:
        """Another worker has answered or ended a call, or somebody follows it there."""
        moved = _decode_moved(message)
        audience = self._audiences.get(moved.call)
        if audience is None or not self._durable.here.yield_to(moved.call, moved.fence):
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
        if self._durable.live(call_id) is not None:
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
            await tell_holder(journal, record, record.fence + 1, attached=True)
            return True
        if claimed == Gone("diverged"):
            self._audiences.pop(call_id, Audience()).stop(call_id, _stands_still(call_id))
            return True
        await journal.wait(call_id, record.segment, LOOK)
        return False

    async def _outcome(self, record: CallRecord) -> bytes | None:
        if record.status not in WITH_OUTCOME:
            return None
        return await self._durable.journal.wait(record.id, record.segment - 1, 0)

    def _is_followed(self, call_id: str) -> bool:
        return call_id in self._audiences and not self._durable.stopping


def _stands_still(call_id: str) -> NotWaiting:
    return NotWaiting(
        call_id, "diverged", f"Call {call_id} cannot go on: its code has changed since it asked"
    )


def _tell_outcome(
    hub: Hub, peer: Peer, call_id: str, record: CallRecord | None, encoded: bytes | None, after: int
) -> None:
    """Tell what a call came to that has ended."""
    names = () if record is None else record.name.split(".")[:-1]
    here = Metadata((hub.name, *names), hub.hash, int(time.time()))
    outcome = msgspec.json.decode(encoded or b"{}", type=Outcome)
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

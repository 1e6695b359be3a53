"""Kept calls: what is known of one in this process, and the front that stands for its caller.

A record in the journal is all that another process has of a call; what its front needs to be made again is in
the record's context, behind a word that says which kind of front it is.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from midcall.call import Call
from midcall.errors import JournalError, MidcallError
from midcall.journal.base import CallRecord, Entry, Parking
from midcall.journal.engine import Work
from midcall.outlet import Outlet
from midcall.registry import Resolved

if TYPE_CHECKING:
    from midcall.journal.keeper import Keeper


class Front(Outlet, Protocol):
    """The outlet of a kept call, and whoever comes back for it."""

    kept: "Kept | None"
    call: Call | None

    @property
    def supported(self) -> frozenset[str]:
        """The kinds of question that can be asked this way."""

    def begin_again(self) -> None:
        """The call is run again from its journal; it stands at the beginning of a segment."""

    def dropped(self) -> None:
        """The call waited, and its coroutine is not here any more: whoever comes back gets another front."""

    def released(self) -> None:
        """This worker does not end the segment: tell whoever waits to come back for it."""

    def troubled(self, error: JournalError) -> None:
        """The journal cannot be written: whoever waits may be told. The call goes on once it can."""

    def stopped(self, error: MidcallError) -> None:
        """The call cannot go on here: tell whoever waits. It is kept as it is."""


class Asked(Struct, omit_defaults=True):
    """What is written down with the open questions of a call, for whoever goes on with it."""

    questions: Raw
    """In the form of its front."""
    worker: str = ""
    """Who has put them to somebody on the line, and can withdraw them there."""
    traceparent: str = ""
    """The span in which they were asked, if that was traced."""

    def read(self) -> Any:
        """The questions."""
        return msgspec.json.decode(self.questions)


Revive = Callable[[CallRecord], tuple[Front, Resolved]]
"""Makes the front of a call that is in the journal, and finds its method. Raises `MidcallError`."""


class Kept:
    """What the keeper knows of one call in this process."""

    __slots__ = ("_keeper", "front", "id", "journaled", "lock", "parked", "record", "work")

    def __init__(self, keeper: "Keeper", front: Front, record: CallRecord) -> None:
        self._keeper = keeper
        self.front = front
        self.record = record
        self.id = record.id
        self.journaled = False
        self.parked = False
        """Whether nobody runs it: the next segment is to be claimed."""
        self.work: Work | None = None
        """The segment that runs, as the engine knows it."""
        self.lock = asyncio.Lock()

    @property
    def in_a_step(self) -> bool:
        """Whether a branch of the call is at work: if it is dropped now, that step counts as interrupted."""
        call = self.front.call
        return call is not None and call.trace is not None and call.trace.steps > 0

    def take_entries(self) -> list[Entry]:
        """What is to be written down of the call, under its lock.

        What it does from now on is written after that: no step begins meanwhile of which the journal does
        not know.
        """
        call = self.front.call
        if call is None or call.trace is None:
            return []
        call.trace.write_to(self.write)
        return call.trace.take_fresh()

    def end_work(self) -> None:
        """The segment does not run here any more."""
        work, self.work = self.work, None
        if work is not None:
            work.end()

    async def write(self, entries: Sequence[Entry]) -> None:
        """Make entries of the call durable."""
        await self._keeper.append(self, entries)


def new_record(
    kind: str,
    name: str,
    arguments: bytes,
    context: bytes,
    principal: str | None,
    idempotency_key: str | None,
    time_limit: float,
) -> CallRecord:
    """The record of a call that is about to start, under a name that nobody can guess."""
    now = time.time()
    return CallRecord(
        id=secrets.token_urlsafe(18).replace("-", "_"),  # a word, also on a command line
        name=name,
        arguments=arguments,
        context=kind.encode() + b" " + context,
        principal=principal,
        idempotency_key=idempotency_key,
        created=now,
        expires=now + time_limit,
    )


def context_of(record: CallRecord) -> bytes:
    """What a front has written down for itself."""
    return record.context.partition(b" ")[2]


def kind_of(record: CallRecord) -> str:
    """Which kind of front it has."""
    return record.context.partition(b" ")[0].decode()


encode_asked = msgspec.json.Encoder().encode
_decode_asked = msgspec.json.Decoder(Asked).decode


def asked_of(record: CallRecord) -> Asked:
    """What a call waits for."""
    return _decode_asked(record.questions)


def after_segment(record: CallRecord, parking: Parking) -> CallRecord:
    """The record after a segment."""
    return replace(
        record,
        status=parking.status,
        segment=record.segment + 1,
        wake=parking.wake,
        questions=parking.questions,
        expires=record.expires if parking.expires is None else parking.expires,
        owner=None,
        claims=0,
    )


def is_next(claimed: CallRecord, parked: CallRecord) -> bool:
    """Whether nobody has claimed a call between its parking and this claim.

    A worker that was gone soon has brought no segment to its end, but may have begun a step: of that the
    coroutine that is parked here knows nothing.
    """
    return claimed.segment == parked.segment and claimed.fence == parked.fence + 1

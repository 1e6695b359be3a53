"""Kept calls: what is known of one in this process.

A record in the journal is all that another process has of a call; what its dialect needs to be made again is
in the record's context, behind a word that says which dialect that is.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midcall import metrics
from midcall.errors import UnknownQuestion
from midcall.items import Request, to_json
from midcall.journal.contract import CallRecord, Entry, Parking
from midcall.journal.engine import Work
from midcall.open_questions import MISSING
from midcall.questions import AnyQuestion, Form, question_from_wire, question_to_wire, refusal_in
from midcall.recalled import Deadline
from midcall.registry import Resolved
from midcall.trace import question_id

if TYPE_CHECKING:
    from midcall.journal.dialect import Detached
    from midcall.journal.durable import DurableCalls


class Waiting(Struct, array_like=True, omit_defaults=True):
    """An open question, as it is written down: all that is needed to ask it, and to answer it."""

    place: str
    """Where in the call it is asked (see `trace`)."""
    fingerprint: str
    wire: dict[str, Any]
    """The question itself."""
    key: str | None = None
    note: str = ""
    """Why it is asked again: what would have been expected of the last answer."""
    exact: str | None = None
    """Of a form: see `questions.Form`."""

    @property
    def question(self) -> AnyQuestion:
        question = question_from_wire(self.wire)
        return replace(question, exact=self.exact) if isinstance(question, Form) else question


class Asked(Struct, omit_defaults=True):
    """What is written down with the open questions of a call, for whoever goes on with it."""

    questions: dict[str, Waiting] = {}
    """By the names under which they are answered."""
    worker: str = ""
    """Who has put them to somebody on the line, and can withdraw them there."""
    traceparent: str = ""
    """The span in which they were asked, if that was traced."""


def waiting(request: Request, note: str) -> Waiting:
    """What is written down of a question."""
    question = request.request_type
    return Waiting(
        request.place,
        request.fingerprint,
        question_to_wire(question),
        request.key,
        note,
        question.exact if isinstance(question, Form) else None,
    )


Revive = Callable[[CallRecord], tuple["Detached", Resolved]]
"""Makes the dialect of a call that is in the journal, and finds its method. Raises `MidcallError`."""


class Kept:
    """What is known of one call in this process."""

    __slots__ = ("_durable", "ahead", "front", "id", "journaled", "lock", "parked", "record", "work")

    def __init__(self, durable: "DurableCalls", front: "Detached", record: CallRecord) -> None:
        self._durable = durable
        self.front = front
        self.record = record
        self.id = record.id
        self.journaled = False
        self.parked = False
        """Whether nobody runs it: the next segment is to be claimed."""
        self.work: Work | None = None
        """The segment that runs, as the engine knows it."""
        self.lock = asyncio.Lock()
        self.ahead: set[str] = set()
        """The questions to which an answer is being written before a replay has come to them."""

    @property
    def at_work(self) -> bool:
        """Whether it is more than a copy of what is in the journal.

        A branch may be in a step, which would count as interrupted; or a question has just ended.
        """
        call = self.front.call
        in_a_step = call is not None and call.trace is not None and call.trace.steps > 0
        return in_a_step or self.front.has_changed

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

    def give_back(self, entries: Sequence[Entry]) -> None:
        """What was taken could not be written."""
        call = self.front.call
        if call is not None and call.trace is not None:
            call.trace.give_back(entries)

    async def write(self) -> None:
        """Make durable what the call has done."""
        await self._durable.append(self)


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


encode_asked = to_json
_decode_asked = msgspec.json.Decoder(Asked).decode


def asked_of(record: CallRecord) -> Asked:
    """What a call waits for. Of one that asked in an older form it is not known before it is run again."""
    try:
        return _decode_asked(record.questions or b"{}")
    except msgspec.ValidationError:
        return Asked()


def answers_for(record: CallRecord, entries: Sequence[Entry], answers: Mapping[str, Any]) -> list[Entry]:
    """What is written down of answers, by the ids of their questions, to a call that is not in memory.

    Raises `UnknownQuestion`.

    A call that met changed code has its answer, but could not go on: whoever answers again has it try again.
    So does whoever repeats an answer, where the journal failed just after that was written.
    """
    questions = {question_id(record.id, one.place): one for one in asked_of(record).questions.values()}
    latest = {entry.key: entry for entry in entries}
    given = []
    for request_id, payload in answers.items():
        asked = questions.get(request_id)
        entry = None if asked is None else latest.get(asked.place)
        if asked is None or entry is None:
            raise UnknownQuestion(request_id)
        if entry.state == "begun":
            given.append(Entry(asked.place, asked.fingerprint, "given", to_json(payload)))
        elif not (entry.state == "given" and record.status == "diverged") and not (
            is_answered(record, entries) and entry.value == to_json(payload)
        ):
            raise UnknownQuestion(request_id)
    return given


def count_answers(record: CallRecord, entries: Sequence[Entry], answers: Mapping[str, Any]) -> None:
    """Tell how long people took for these answers: the call that asked is not in memory to do so."""
    latest = {entry.key: entry for entry in entries}
    for one in asked_of(record).questions.values():
        payload = answers.get(question_id(record.id, one.place), MISSING)
        if payload is not MISSING and latest[one.place].state == "begun":
            refusal = refusal_in(payload)
            ending: metrics.Ending = "answered"
            if refusal is not None:
                ending = "cancelled" if refusal.how == "Cancelled" else "declined"
            since = msgspec.json.decode(latest[one.place].value, type=Deadline).since
            metrics.question_ended(one.question.kind, ending, since)


def is_answered(record: CallRecord, entries: Sequence[Entry]) -> bool:
    """Whether a question that a call waits for has its answer: it only has to go on.

    Whoever gave it was cut off from the journal, or stopped, before the call could.
    """
    if record.status != "waiting":
        return False
    states = {entry.key: entry.state for entry in entries}
    return any(states.get(one.place) in ("given", "done") for one in asked_of(record).questions.values())


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

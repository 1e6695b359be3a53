"""The states of a durable call, as a table, and what a record of the journal says.

**Theory of operation.** What a durable call runs between one answer and the next question is a *segment*,
numbered from 0. A segment is *claimed* by one worker, and *settled* with what it came to: the next
questions, or the end. In between only that worker writes. It may die at any moment, so a segment that
nobody looks after can be claimed again; the *fence* counts the claims, and whoever still acts under an
older one is refused (`Fenced`).

While a call waits, its coroutine is *parked*: a cache of what is in the journal, dropped when there are too
many. Where it is not here any more, the call is *rebuilt*: its body runs again from the top, and every
finished step and answered question gives back at once what the journal has (*replay*, see `trace`), until
it stands where it stood.

An answer is written before anybody is told that it is taken, and it is what claims the next segment. So
there is no moment in which an answer is known to its giver alone.

    operation   from                     to            by whom                    what is written
    create      -                        running       the worker that starts it  the call, the steps so far
    create      -                        waiting       (its first question)       as before, and the questions
    claim       waiting                  running       whoever brings an answer,  the answers, fence + 1
                                                       or whose time has come
    claim       running, worker gone     running       any other worker           fence + 1
    claim       diverged                 running       whoever answers, or asks   fence + 1
    claim       running, 5 workers gone  poisoned      the one that would be 6th  -
    claim       any, past its time       expired       whoever comes too late     -
    settle      running                  waiting       its worker, which may      outcome, steps, questions
                                                       hold it meanwhile
    settle      running                  completed     its worker                 the outcome, steps
                                         failed
                                         aborted
    release     running                  running       its worker, which stops    no owner: it can be claimed
    release     running                  diverged      its worker, whose code     -
                                                       does not fit
    end         running, waiting,        aborted       its caller or an           the outcome, fence + 1
                diverged                               administrator
    sweep       waiting, diverged        expired       any worker, later          -

What a caller gets of a call: while it is `waiting`, its questions; while it is `running`, "come again"; of
one that is `completed`, `failed` or `aborted`, its outcome, for a day; of one that was given up (`expired`,
`poisoned`), an error that says so; of a `diverged` one, an error that says that the code has changed: it
stands still, with all that it has, until somebody comes back with the old code.

Here is what can be said of a call from its record and entries alone; nothing here waits or writes.
"""

import base64
import datetime as dt
import time
from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midcall import metrics
from midcall.errors import UnknownQuestion
from midcall.items import Request, to_json
from midcall.journal.contract import CALL_SIZE, CallRecord, Parking, Status
from midcall.journal.seal import unguessable
from midcall.open_questions import MISSING
from midcall.principal import Principal, addressee, is_addressed
from midcall.questions import AnyQuestion, Form, question_from_wire, question_to_wire, refusal_in
from midcall.replay import Deadline, Entry, question_id

Operation: TypeAlias = Literal["create", "claim", "settle", "release", "end", "sweep"]

MOVES: Mapping[Operation, Mapping[Status | None, frozenset[Status]]] = {
    "create": {None: frozenset(("running", "waiting", "completed", "failed", "aborted"))},
    "claim": {
        "waiting": frozenset(("running", "expired")),
        "running": frozenset(("running", "poisoned", "expired")),
        "diverged": frozenset(("running", "poisoned", "expired")),
    },
    "settle": {"running": frozenset(("waiting", "completed", "failed", "aborted"))},
    "release": {"running": frozenset(("running", "diverged"))},
    "end": {status: frozenset(("aborted",)) for status in ("running", "waiting", "diverged")},
    "sweep": {status: frozenset(("expired",)) for status in ("waiting", "diverged")},
}
"""The table above: where each operation takes a call, from where it stands. Stores are tested against it."""


_SHOWN = 200
"""How many characters of a question a caller is told that is for somebody else."""


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
    since: float = 0.0
    """When it was first asked."""
    until: float | None = None
    """When it is too late for an answer."""
    to: str | None = None
    """Who is asked in place of the caller."""

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


def waiting(request: Request, note: str, until: float | None) -> Waiting:
    """What is written down of a question."""
    question = request.request_type
    return Waiting(
        request.place,
        request.fingerprint,
        question_to_wire(question),
        request.key,
        note,
        question.exact if isinstance(question, Form) else None,
        request.since,
        until,
        request.to,
    )


def is_meant_for(record: CallRecord, one: Waiting, principal: Principal | None) -> bool:
    """Whether a question of a call is for this principal; without authentication, it is for everybody."""
    if principal is None:
        return True
    return record.principal == principal.name if one.to is None else is_addressed(one.to, principal)


def for_caller(asked: Mapping[str, Waiting]) -> dict[str, Waiting]:
    """The questions that are for the caller."""
    return {name: one for name, one in asked.items() if one.to is None}


def waiting_for(one: Waiting, url: str | None) -> str:
    """What a caller is told of a question that is for somebody else."""
    message = " ".join(one.question.message.split())
    shown = message if len(message) <= _SHOWN else f"{message[:_SHOWN]}..."
    return f"Waiting for {addressee(one.to or '')}: {shown}" + ("" if url is None else f" {url}")


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
        id=base64.b64encode(unguessable(18), b"__").decode(),  # a word, also on a command line
        name=name,
        arguments=arguments,
        context=kind.encode() + b" " + context,
        principal=principal,
        idempotency_key=idempotency_key,
        created=now,
        expires=now + time_limit,
    )


def size_of_call(call: CallRecord) -> int:
    """What a call that begins counts for."""
    return CALL_SIZE + len(call.arguments) + len(call.context)


def context_of(record: CallRecord) -> bytes:
    """What its dialect has written down for itself."""
    return record.context.partition(b" ")[2]


def kind_of(record: CallRecord) -> str:
    """Which kind of dialect it has."""
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

    A call that met changed code has its answer, but could not go on: whoever repeats that has it try again.
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
        elif not (is_answered(record, entries) and entry.value == to_json(payload)):
            raise UnknownQuestion(request_id)
    return given


def refuse_others(record: CallRecord, answers: Container[str]) -> None:
    """Raise `UnknownQuestion` if one of these answers is to a question for somebody else than the caller."""
    for one in asked_of(record).questions.values():
        if one.to is not None and (request_id := question_id(record.id, one.place)) in answers:
            raise UnknownQuestion(request_id)


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

    Whoever gave it was cut off from the journal, or stopped, before the call could; or its code has changed.
    """
    if record.status not in ("waiting", "diverged"):
        return False
    states = {entry.key: entry.state for entry in entries}
    return any(states.get(one.place) in ("given", "done") for one in asked_of(record).questions.values())


def is_asked_still(record: CallRecord, entries: Sequence[Entry]) -> bool:
    """Whether a call that runs, as something was answered, may wait for another answer in a moment."""
    states = {entry.key: entry.state for entry in entries}
    asked = asked_of(record).questions.values() if record.status == "running" else ()
    return any(states.get(one.place) == "begun" for one in asked)


def after_segment(record: CallRecord, parking: Parking, worker: str) -> CallRecord:
    """The record after a segment of this worker."""
    return replace(
        record,
        status=parking.status,
        segment=record.segment + 1,
        wake=parking.wake,
        questions=parking.questions,
        expires=record.expires if parking.expires is None else parking.expires,
        owner=worker if parking.held else None,
        claims=0,
        addressed=parking.addressed,
    )


def is_next(claimed: CallRecord, parked: CallRecord) -> bool:
    """Whether nobody has claimed a call between its parking and this claim.

    A worker that was gone soon has brought no segment to its end, but may have begun a step: of that the
    coroutine that is parked here knows nothing.
    """
    return claimed.segment == parked.segment and claimed.fence == parked.fence + 1


def timestamp(moment: float, precision: str = "seconds") -> str:
    """A moment as JSON carries it."""
    return dt.datetime.fromtimestamp(moment, dt.UTC).isoformat(timespec=precision).replace("+00:00", "Z")

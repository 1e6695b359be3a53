"""Answers that are given back when a call is run again, and what is kept of a question for that.

Stands between `trace`, which knows no question, and `open_questions`, which knows no trace.
"""

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from midcall import metrics
from midcall.errors import (
    AskError,
    Cancelled,
    MidcallError,
    NotSupported,
    TimedOut,
    WrongAnswer,
    WrongType,
)
from midcall.items import to_json
from midcall.open_questions import MISSING, SILENT, Wanted, timed_out
from midcall.questions import AnyQuestion, question_to_wire
from midcall.trace import Entry, Trace

_SHOWN = 60
"""How many characters of a question an error shows."""


class Deadline(msgspec.Struct, omit_defaults=True):
    """What is kept of a question that waits."""

    until: float | None = None
    since: float = 0.0
    """When it was asked."""
    withdrawn: bool = False
    """Whether the code that had asked it was cancelled (by `asyncio.timeout`, or in a task group)."""


class Failure(msgspec.Struct):
    """What is kept of an error."""

    code: str
    message: str


def fingerprint(question: AnyQuestion) -> str:
    """What a question was: short enough to be shown, and another one for any other question."""
    exact = hashlib.sha256(to_json(question_to_wire(question))).hexdigest()[:12]
    message = question.message if len(question.message) <= _SHOWN else f"{question.message[:_SHOWN]}..."
    return f"{question.kind} {message!r} ({exact})"


def recall(trace: Trace, wanted: Sequence[Wanted]) -> list[Any]:
    """The values of answers that were given before, or `MISSING`. Raises what ended the round.

    A question that waited already goes on to wait, until it would have timed out. One that was withdrawn is
    `SILENT`: nobody is asked again.
    """
    entries = []
    for one in wanted:
        one.place = trace.place()
        one.fingerprint = fingerprint(one.question)
        entries.append(trace.recall(one.place, one.fingerprint))
    return [_value(trace, one, entry) for one, entry in zip(wanted, entries, strict=True)]


def _value(trace: Trace, wanted: Wanted, entry: Entry | None) -> Any:
    if entry is None:
        return MISSING
    if entry.state == "done":
        return wanted.read(msgspec.json.decode(entry.value))
    if entry.state == "given":
        try:
            return wanted.read(msgspec.json.decode(entry.value))
        except WrongAnswer as error:  # it could not be read before the call was run again
            wanted.note = error.expected
            return MISSING
    if entry.state == "failed":
        failure = msgspec.json.decode(entry.value, type=Failure)
        raise _ERRORS.get(failure.code, AskError)(failure.message)
    deadline = msgspec.json.decode(entry.value, type=Deadline)
    wanted.since = deadline.since
    if deadline.withdrawn:
        return SILENT
    if deadline.until is not None:
        wanted.timeout = deadline.until - deadline.since
        if deadline.until <= time.time():  # while no process ran
            metrics.question_ended(wanted.question.kind, "timed_out", wanted.since)
            late = timed_out(wanted)
            trace.note(failed(wanted, late))
            raise late
    return MISSING


_ERRORS: dict[str, type[MidcallError]] = {
    kind.code: kind for kind in (TimedOut, Cancelled, NotSupported, WrongType)
}


def asked(wanted: Wanted) -> Entry:
    """The entry of a question that begins to wait."""
    until = None if wanted.timeout is None else wanted.since + wanted.timeout
    return Entry(wanted.place, wanted.fingerprint, "begun", to_json(Deadline(until, wanted.since)))


def withdrawn(wanted: Wanted) -> Entry:
    """The entry of a question whose code was cancelled while it waited."""
    return Entry(
        wanted.place, wanted.fingerprint, "begun", to_json(Deadline(since=wanted.since, withdrawn=True))
    )


def answered(wanted: Wanted, payload: Any) -> Entry:
    """The entry of a question that is answered, also with a refusal."""
    return Entry(wanted.place, wanted.fingerprint, "done", to_json(payload))


def failed(wanted: Wanted, error: MidcallError) -> Entry:
    """The entry of a question that ends without an answer."""
    return Entry(wanted.place, wanted.fingerprint, "failed", to_json(Failure(error.code, str(error))))

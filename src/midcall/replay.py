"""What is in a journal of a call, and how its body is run again up to where it stands.

Everything that a replay must give back has a **place** in the call: the first is `1`, then `2`, and so on;
what runs beside it, as in `asyncio.gather`, counts for itself under `1/`, `2/`. A place is reached again in
the same way however fast the rest goes, so that a replay does not depend on the order in which things
end. An **entry** says what was there (its fingerprint) and what it gave; if something else is met at its
place, the code has changed, and the call stops with `Diverged`.

Nothing is written before a store is given (`write_to`): until then entries are only kept. A trace knows no
store; below it is what is kept of questions, and given back as their answers (`recall_answers`).
"""

import asyncio
import contextlib
import hashlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeAlias
from weakref import ref

import msgspec
from msgspec import Struct

from midcall import metrics
from midcall.errors import (
    AskError,
    Cancelled,
    Diverged,
    MidcallError,
    NotSupported,
    TimedOut,
    WrongAnswer,
    WrongType,
)
from midcall.items import to_json
from midcall.open_questions import MISSING, SILENT, Wanted, timed_out
from midcall.questions import KINDS, AnyQuestion, question_to_wire

State: TypeAlias = Literal["begun", "given", "done", "failed"]
"""Where an entry stands. An answer that is `given` is in the journal, and not read yet."""


class Entry(Struct, frozen=True, array_like=True):
    """One thing that a call did. A later entry with the same key takes the place of an earlier one."""

    key: str
    """Its place in the call."""
    fingerprint: str
    """What it was."""
    state: State
    value: bytes = b""
    """JSON: what it gave, or the error that it failed with."""


def question_id(call_id: str, place: str) -> str:
    """The id of a question that is asked at a place of a call: nobody can guess it, and it stays the same."""
    digest = hashlib.sha256(f"{call_id}:{place}".encode()).hexdigest()
    # As a UUID of version 8.
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


Write: TypeAlias = Callable[[], Awaitable[None]]
"""Takes the entries that are not durable yet (`take_fresh`), and makes them so, in their order."""


class TaskBranch:
    """What counts for itself: the call's own task, or one that it has started.

    Contexts outlive tasks (a cancelled timer keeps its own), so this holds neither the task nor the call.
    """

    __slots__ = ("_task", "_trace", "children", "count", "path")

    def __init__(self, trace: "Trace", task: asyncio.Task[Any] | None, path: str) -> None:
        self._trace = ref(trace)
        self._task = None if task is None else ref(task)
        self.path = path
        self.count = 0
        self.children = 0

    @property
    def trace(self) -> "Trace | None":
        return self._trace()

    def is_of(self, trace: "Trace") -> bool:
        return self._trace() is trace

    def is_in(self, task: asyncio.Task[Any] | None) -> bool:
        return self._task is not None and self._task() is task


_branch: ContextVar[TaskBranch | None] = ContextVar("midcall_branch", default=None)


def in_call() -> bool:
    """Whether this is run by a call that may be run again."""
    return _branch.get() is not None


class Trace:
    """The entries of one call."""

    __slots__ = (
        "__weakref__",
        "_fresh",
        "_hold",
        "_keys",
        "_recorded",
        "_rest",
        "_write",
        "call_id",
        "closed",
        "created",
        "diverged",
        "kept",
        "limits",
        "method",
        "rebuilt",
        "segment",
        "steps",
    )

    def __init__(
        self,
        call_id: str,
        recorded: Iterable[Entry] = (),
        *,
        kept: bool = False,
        method: str = "",
        segment: int = 0,
        created: float = 0.0,
    ) -> None:
        self.call_id = call_id
        self.method = method
        self.segment = segment
        """What is run, and which part of it: for the log."""
        self.created = created
        """When the call was; of one that was forked, what it has done may be older."""
        self.kept = kept
        """Whether anything is kept at all: a call that ends with its caller needs no trace."""
        self.rebuilt = False
        """Whether the call has begun before, and is run again."""
        self.closed = False
        """Whether the call is dropped here, to be run again elsewhere: nothing more is done for it."""
        self.diverged: Diverged | None = None
        self.steps = 0
        """How many steps are under way."""
        self.limits: list[float] = []
        """The moments at which the time is up of what is done now."""
        self._recorded = {entry.key: entry for entry in recorded}
        self._fresh: list[Entry] = []
        self._keys = 0
        self._write: Write | None = None
        self._hold: Write | None = None
        self._rest: Callable[[], None] | None = None

    @property
    def journaled(self) -> bool:
        """Whether entries are made durable."""
        return self._write is not None

    def write_to(self, write: Write, hold: Write, rest: Callable[[], None]) -> None:
        """From now on entries are made durable.

        `hold` keeps others from going on with the call while something is done for it that would be done
        twice; `rest` is told when nothing is any more.
        """
        self._write, self._hold, self._rest = write, hold, rest

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """What is done in here is not to be done by others meanwhile, who may go on with a call that asks."""
        self.steps += 1
        try:
            if self._hold is not None:
                await self._hold()
            yield
        finally:
            self.steps -= 1
            if self._rest is not None and not self.steps:
                self._rest()

    # --- places ------------------------------------------------------------------------------

    def enter(self) -> None:
        """The present task is the call's own."""
        _branch.set(TaskBranch(self, asyncio.current_task(), ""))

    def place(self) -> str:
        """The next place of whatever runs now."""
        if self.closed:
            raise asyncio.CancelledError
        branch = self._branch()
        branch.count += 1
        return f"{branch.path}{branch.count}"

    def next_key(self) -> str:
        """A name for what comes next, unlike any other; the same one in a replay."""
        branch = self._branch()
        if self.kept:
            return f"{self.call_id}:{branch.path}{branch.count + 1}"
        self._keys += 1  # nothing is ever replayed: all that counts is that no two are alike
        return f"{self.call_id}:{self._keys}"

    def _branch(self) -> TaskBranch:
        task = asyncio.current_task()
        branch = _branch.get()
        if branch is None or not branch.is_of(self):
            branch = TaskBranch(self, task, "")  # a task that does not come from the call's own
            _branch.set(branch)
        elif not branch.is_in(task):
            branch.children += 1
            branch = TaskBranch(self, task, f"{branch.path}{branch.children}/")
            _branch.set(branch)
        return branch

    @contextlib.contextmanager
    def nested(self, place: str) -> Iterator[None]:
        """What runs in here counts for itself, under this place."""
        token = _branch.set(TaskBranch(self, asyncio.current_task(), f"{place}/0/"))
        try:
            yield
        finally:
            _branch.reset(token)

    @property
    def here(self) -> str:
        """A name for whatever counts for itself now, unlike any other; the same one in a replay."""
        return f"{self.call_id}:{self._branch().path}" if self.kept else self.call_id

    # --- replay ------------------------------------------------------------------------------

    def recall(self, place: str, fingerprint: str) -> Entry | None:
        """What happened here before. Raises `Diverged` if that was something else."""
        if self.diverged is not None:
            raise self.diverged  # whatever the author's code made of it
        entry = self._recorded.pop(place, None)
        if entry is not None and entry.fingerprint != fingerprint:
            self.diverged = Diverged(entry.fingerprint, fingerprint, _line())
            raise self.diverged
        return entry

    @property
    def ahead(self) -> Sequence[Entry]:
        """What happened before, as far as the replay has not come to it yet."""
        return tuple(self._recorded.values())

    def take_answer(self, entry: Entry) -> bool:
        """An answer to a question that the replay has not come to yet; false if it has, or was answered."""
        before = self._recorded.get(entry.key)
        if before is None or before.state != "begun":
            return False
        self._recorded[entry.key] = entry
        return True

    def left_out(self) -> Diverged | None:
        """The call has ended: whether it had done more before. (A branch may have been cut off sooner.)"""
        for entry in self._recorded.values():
            if "/" not in entry.key and entry.state in ("given", "done"):
                return Diverged(entry.fingerprint, "the end of the call", "")
        return None

    # --- keeping -----------------------------------------------------------------------------

    def note(self, entry: Entry) -> None:
        """Keep an entry; it is made durable together with the next one that has to be."""
        if self.kept and not self.closed:
            self._fresh.append(entry)

    async def keep(self, entry: Entry) -> None:
        """Keep an entry, and make it and all before it durable if there is a store."""
        self.note(entry)
        await self.flush()

    async def flush(self) -> None:
        """Make durable what is not yet, and wait for what somebody else is just making so."""
        if self._write is not None:
            await self._write()

    def give_back(self, entries: Sequence[Entry]) -> None:
        """These could not be made durable."""
        self._fresh[:0] = entries

    def is_kept(self, place: str) -> None:
        """What became of this place is in the journal: what was noted of it before must not come after."""
        self._fresh = [entry for entry in self._fresh if entry.key != place]

    @property
    def has_fresh(self) -> bool:
        """Whether there is something that is not durable yet, though it could be."""
        return self.journaled and bool(self._fresh)

    def take_fresh(self) -> list[Entry]:
        """The entries that are not durable yet, for whoever makes them so: of each place, the last one."""
        fresh, self._fresh = self._fresh, []
        return list({entry.key: entry for entry in fresh}.values())


def current() -> Trace | None:
    """The trace of the call that runs now, if it is kept."""
    branch = _branch.get()
    return None if branch is None else branch.trace


_HERE = str(Path(__file__).parent)


def _line() -> str:
    """Where in the author's code we are."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


_SHOWN = 60
"""How many characters of a question an error shows."""


class Deadline(msgspec.Struct, omit_defaults=True):
    """What is kept of a question that waits."""

    until: float | None = None
    since: float = 0.0
    """When it was asked."""
    withdrawn: bool = False
    """Whether the code that had asked it was cancelled (by `asyncio.timeout`, or in a task group)."""


class AskFailure(msgspec.Struct):
    """What is kept of an error."""

    code: str
    message: str


def fingerprint(question: AnyQuestion, to: str | None = None) -> str:
    """What a question was, to whom: short enough to be shown, and another one for any other question."""
    wire = to_json(question_to_wire(question)) + (b"" if to is None else f"\n{to}".encode())
    exact = hashlib.sha256(wire).hexdigest()[:12]
    message = question.message if len(question.message) <= _SHOWN else f"{question.message[:_SHOWN]}..."
    whom = "" if to is None else f"to {to!r}: "
    return f"{question.kind} {whom}{message!r} ({exact})"


def is_to_another(fingerprint: str) -> bool:
    """Whether this was a question for somebody else than the caller."""
    kind, _, asked = fingerprint.partition(" ")
    return kind in KINDS and asked.startswith("to ")


def recall_answers(trace: Trace, wanted: Sequence[Wanted]) -> list[Any]:
    """The values of answers that were given before, or `MISSING`. Raises what ended the round.

    A question that waited already goes on to wait, until it would have timed out. One that was withdrawn is
    `SILENT`: nobody is asked again.
    """
    entries = []
    for one in wanted:
        one.place = trace.place()
        one.fingerprint = fingerprint(one.question, one.to)
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
        failure = msgspec.json.decode(entry.value, type=AskFailure)
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
    return Entry(wanted.place, wanted.fingerprint, "failed", to_json(AskFailure(error.code, str(error))))

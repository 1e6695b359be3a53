"""What a store must do so that waiting calls and conversations outlive their process.

A **call** is a row: what was called, by whom, and where it stands. Its **entries** are what must not be
lost of it: finished steps, answers, and what else a replay gives back. What runs between one answer and the
next question is a **segment**, numbered from 0. Whoever wants to run segment `n` claims it, and exactly one
worker gets it; everybody else gets its outcome, once there is one.

    waiting  -- claim(n) -->  running  -- settle(n, outcome) -->  waiting for n + 1, or ended

A worker that dies leaves a running segment behind, which another one may claim after it: the **fence** counts
the claims, and every write of the worker before is refused from then on (`Fenced`), so a worker that
was only frozen cannot act any more.

A **conversation** is a record that is read and written whole. Its `version` counts the writes: of two who
change what they have read, the second is refused (`Conflict`). A **run** is what a worker tells while it
answers in a conversation, as numbered lines, for readers at any worker.

Everything is durable when the coroutine returns. Times are unix seconds. A store knows no method, no
question, no message and no protocol: values are bytes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from midcall.errors import BadExport, BadPage, Conflict, Fenced, JournalError
from midcall.journal.trees import Trees
from midcall.replay import Entry

T = TypeVar("T")

Status: TypeAlias = Literal[
    "running", "waiting", "completed", "failed", "aborted", "expired", "diverged", "poisoned"
]
"""`running` and `waiting` calls go on; a `diverged` one stands still until somebody claims it again (with
other code); all others have ended."""

ENDED = frozenset(("completed", "failed", "aborted", "expired", "poisoned"))

WITH_OUTCOME = frozenset(("completed", "failed", "aborted"))
"""Those of them that came to something; the others were given up."""

MOST_CLAIMS = 5
"""How many workers may die with one segment before its call is given up as poisoned."""

KEEP = 24 * 3600.0
"""How long a call that the store itself gave up (expired, poisoned) is still known, in seconds."""

KEEP_RUNS = 3600.0
"""Seconds that the lines of a run are kept after its last one."""

LISTED = 200
"""How many conversations are listed."""

CALL_SIZE = 1024
"""How many bytes a call counts for, beside its values."""

_WORKER = re.compile(r"[A-Za-z0-9-]{1,100}")


def is_worker_name(name: str) -> bool:
    """Whether a worker can have this name: ASCII letters, digits and hyphens, 100 at most.

    Names come from callers (in the ids of sessions), from journals and from other workers, and become names
    of files: whoever takes one in, and whoever makes a path of it, asks here first.
    """
    return _WORKER.fullmatch(name) is not None


# What an imported call is held to, as `from_export` reads it; a count leaves room to be counted on.
_Id: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,100}\Z")]
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]
_Text: TypeAlias = Annotated[str, Meta(max_length=1000)]
_Bytes: TypeAlias = Annotated[bytes, Meta(max_length=16 * 1024 * 1024)]
_Time: TypeAlias = Annotated[float, Meta(ge=0, le=1e11)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]


class CallRecord(Struct, frozen=True, kw_only=True):
    """A call, as far as a store knows it."""

    id: _Id
    name: _Name
    """The method that runs."""
    arguments: _Bytes
    context: _Bytes = b""
    """What the front that started it needs to go on with it; not read here."""
    principal: _Text | None = None
    idempotency_key: _Text | None = None
    created: _Time
    updated: _Time = 0.0
    """When it last changed; set by the store with every create, claim, settle, release and end."""
    expires: _Time
    """After this moment it is given up."""
    status: Status = "running"
    segment: _Count = 0
    """The segment that runs, or would come next."""
    wake: _Time | None = None
    """When it goes on without an answer: a question times out, a sleep ends."""
    questions: _Bytes = b""
    """What it waits for, if anything; not read here."""
    fence: _Count = 0
    owner: str | None = None
    """The worker that runs the segment."""
    claims: Annotated[int, Meta(ge=0, le=MOST_CLAIMS)] = 0
    """How many workers have claimed the present segment."""
    addressed: bool = False
    """Whether it waits for somebody else than its caller."""


class Notice(Struct, frozen=True):
    """Something that is to be told outside of a call, until it is."""

    id: str
    """The name of a channel, `:`, and what is unlike any other: whoever is told twice can know it again."""
    call_id: str
    due: float
    """When to tell it, or to try again."""
    tries: int = 0
    """How often it was taken to be told."""


class Claimed(Struct, frozen=True):
    """The segment is yours."""

    call: CallRecord
    entries: Sequence[Entry] | None
    """All of them; or nothing, if the worker that has claimed it had parked it."""


class Busy(Struct, frozen=True):
    """A live worker runs the segment."""

    call: CallRecord


class Settled(Struct, frozen=True):
    """The segment has run before; this is what it came to."""

    outcome: bytes


class Gone(Struct, frozen=True):
    """There is no such call or segment (any more)."""

    status: Status | None = None


Claim: TypeAlias = Claimed | Busy | Settled | Gone


class Parking(Struct, frozen=True, kw_only=True):
    """How a call stands after a segment."""

    status: Status
    wake: float | None = None
    questions: bytes = b""
    expires: float | None = None
    """The new moment to give it up; of an ended call, to forget it."""
    held: bool = False
    """Whether only this worker may claim it, as long as it lives: a branch of the call is still at work."""
    addressed: bool = False
    """Whether it waits for somebody else than its caller."""
    notices: Sequence[Notice] = ()
    """What is to be told outside from now on; what was before, by its id, is left as it is."""


class CallWrite(Struct, Generic[T], frozen=True):
    """Something that is written of a call, alone or together with a conversation (`Conversations.save`)."""

    operation: ClassVar[str]
    """The method of `Journal` that writes it; it takes these fields."""


class Creation(CallWrite[CallRecord | None], frozen=True):
    operation = "create"
    call: CallRecord
    entries: Sequence[Entry] = ()
    outcome: bytes | None = None
    notices: Sequence[Notice] = ()


class Taking(CallWrite[Claim], frozen=True):
    operation = "claim"
    call_id: str
    segment: int
    answers: Sequence[Entry] = ()
    fence: int | None = None
    parked: CallRecord | None = None
    sync: bool = True


class Addition(CallWrite[None], frozen=True):
    operation = "append"
    call_id: str
    fence: int
    entries: Sequence[Entry]
    parking: Parking | None = None


class Settlement(CallWrite[None], frozen=True):
    operation = "settle"
    call_id: str
    fence: int
    segment: int
    outcome: bytes
    parking: Parking
    entries: Sequence[Entry] = ()


class Page(Struct, frozen=True):
    """Some calls of a list, the newest first, and where the next ones begin."""

    calls: Sequence[CallRecord] = field(default_factory=tuple)
    next: str | None = None


class ConversationRecord(Struct, frozen=True, kw_only=True):
    """A conversation, as far as a store knows it."""

    id: _Name
    """The person's own: another one's conversation may have the same."""
    principal: _Text | None = None
    version: Annotated[int, Meta(ge=1, le=10**9)]
    """How often it has been written."""
    updated: _Time
    waiting: bool = False
    """Whether the person is asked something."""
    run: str | None = None
    """The run that is under way, if one is."""
    title: str = ""
    body: bytes = b""
    """All that was said; not read here, and empty in a list."""


class ConversationPage(Struct, frozen=True):
    """Some conversations of everybody, and where the next ones begin."""

    conversations: Sequence[ConversationRecord]
    next: str | None = None


class RunRecord(Struct, frozen=True):
    """A run, as far as it is written down."""

    id: str
    conversation_id: str
    principal: str | None
    lines: int
    ended: bool
    seen: float
    """When its worker last gave a sign of life, by the clock of the store."""
    now: float


class RunEnd(Struct, frozen=True):
    """The last lines of a run, of which the first has this number."""

    run: str
    first: int
    lines: Sequence[bytes]


class Saved(Struct, Generic[T], frozen=True):
    """What came of a save."""

    ended: bool
    """False if the run that was to end has other lines there, or fewer before: it is left as it is."""
    call: T | JournalError | None = None
    """What came of what was to be written of a call."""


class Conversations(Protocol):
    """The conversations of a store, and their runs. A method raises `JournalError` as those of `Journal`."""

    async def load(self, id: str, principal: str | None) -> ConversationRecord | None:
        """A conversation of this person; nobody gets another's."""

    async def save(
        self,
        record: ConversationRecord,
        end: RunEnd | None = None,
        begins: str | None = None,
        call: CallWrite[T] | None = None,
    ) -> Saved[T]:
        """Write a conversation down. Raises `Conflict` unless the kept one has the version before.

        A new one has version 1. With `begins`, a run of this id begins together with it; with `end`, one
        ends. With `call`, that is written of a call of the same journal: all of it is there, or nothing. What
        that method of `Journal` would raise is given back, and the conversation is written all the same.
        Whoever gives a `call` waits for the end of it: it cannot be cancelled.
        """

    async def delete(self, id: str, principal: str | None) -> bool:
        """Forget a conversation, and its runs with their lines. False if there was no conversation."""

    async def list(self, principal: str | None, limit: int = LISTED) -> Sequence[ConversationRecord]:
        """The conversations of this person, the newest first, so many at most, without bodies."""

    async def held(self, principal: str) -> tuple[int, int]:
        """How many conversations this person has, and how many bytes they take."""

    async def every(self, after: str | None = None, limit: int = 100) -> ConversationPage:
        """Conversations of everybody, in some order; `after` is the `next` of the page before."""

    async def restore(self, record: ConversationRecord) -> bool:
        """Take in a conversation from another store, as it was. False if it is known already."""

    async def begin_run(self, run: str, conversation_id: str, principal: str | None) -> None:
        """A run begins. One that has begun is left as it is."""

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        """Add lines to a run, of which the first has this number (from 1); without lines, a sign of life.

        True if the run is to stop. Raises `Conflict` if it has other lines there, or fewer before; the same
        ones may be written again, by whoever does not know whether they were. Of a run that is forgotten,
        nothing is written.
        """

    async def stop_run(self, run: str) -> None:
        """Have a run stopped, wherever its worker is."""

    async def run(self, run: str) -> RunRecord | None:
        """What is known of a run."""

    async def lines(self, run: str, after: int) -> Sequence[bytes]:
        """The lines of a run after a number."""


class Journal(Protocol):
    """A store. A method raises `JournalError` if it cannot be reached or written; then nothing is changed."""

    worker: str
    """The name of this process, unlike that of any other that ever was (see `is_worker_name`)."""
    at_once: bool
    """Whether what is written is mostly there without waiting."""

    on_post: Callable[[bytes], None] | None
    """Gets what other workers post to this one. What comes while there is nobody is thrown away."""

    @property
    def conversations(self) -> Conversations:
        """What people and models have said to each other."""

    @property
    def trees(self) -> Trees:
        """Trees of nodes."""

    async def open(self) -> None:
        """Make it ready: create what is missing, migrate what is old, check that it is sound."""

    async def close(self) -> None:
        """Let go of everything; from now on this worker counts as gone."""

    async def create(
        self,
        call: CallRecord,
        entries: Sequence[Entry] = (),
        outcome: bytes | None = None,
        notices: Sequence[Notice] = (),
    ) -> CallRecord | None:
        """Write down a new call, and what is to be told of it.

        With an outcome, segment 0 has run: `call.status` is `waiting` (or an ended one) and `call.segment`
        is 1. Without one it runs now, owned by this worker, with the fence of the record. If the
        idempotency key is taken by a call of the same principal that is still known (`None` is a principal
        too), nothing is written and that call is given back. An id that is known is a `JournalError`.

        If it is cancelled, the call is not left running.
        """

    async def claim(
        self,
        call_id: str,
        segment: int,
        answers: Sequence[Entry] = (),
        fence: int | None = None,
        parked: CallRecord | None = None,
        sync: bool = True,
    ) -> Claim:
        """Start a segment, once: of any number of claims, on any worker, one is `Claimed`.

        `answers` are what starts it: entries that are written with the claim, and only if it is granted. With
        a `fence`, it is granted only if that is still the call's. Else somebody has claimed it since, and
        may have written an answer before he was gone: it is `Busy`, whoever runs it. `parked` is the call as
        this worker has parked it, if it has: where nobody has claimed it since, it need not be read again.
        Without `sync`, it need not be on the disk yet when this returns, though everybody sees it: the next
        thing that is written brings it there, and before that nobody may be told that an answer is taken.

        While a call waits that is `held` by another worker, which lives, it is `Busy`.

        Every claim raises the fence; `wake` and `questions` stay until the segment is settled. A `running`
        segment whose worker is gone can be claimed again. After `MOST_CLAIMS` of them the call is `poisoned`.
        A call past its `expires` that no live worker runs is `expired`. Both stay known for `KEEP` seconds,
        without an outcome. The next segment of an ended call, and what is not known, is `Gone`.

        If it is cancelled, the segment is as if it had not been claimed, though its answers may stay.
        """

    async def append(
        self, call_id: str, fence: int, entries: Sequence[Entry], parking: Parking | None = None
    ) -> None:
        """Add entries to a call that this worker runs, after those that are there.

        Also while it waits, as long as nobody has claimed it since: a branch of the call may still be at
        work when another one asks. With a `parking`, what a waiting call waits for changes too: its `wake`,
        `questions` and `expires`, and whether it is `held` and `addressed`. Raises `Fenced` if the fence is
        another one, or the call has ended, or does not wait though there is a `parking`.
        """

    async def settle(
        self,
        call_id: str,
        fence: int,
        segment: int,
        outcome: bytes,
        parking: Parking,
        entries: Sequence[Entry] = (),
    ) -> None:
        """End a segment: its outcome is kept, and `segment + 1` can be claimed unless the call has ended.

        Raises `Fenced` if another worker has taken over.
        """

    async def release(self, call_id: str, fence: int, *, diverged: bool = False) -> None:
        """Let go of a segment that was not brought to its end: it can be claimed again, at once.

        The worker stops (the call stays `running`, without an owner, and is `due`), or its code does not
        fit the call (`diverged`: only a claim goes on with it). The claim before does not count for
        `MOST_CLAIMS`. Raises `Fenced` if another worker has taken over.
        """

    async def wait(self, call_id: str, segment: int, seconds: float) -> bytes | None:
        """The outcome of a segment, as soon as there is one; nothing if there is none in time."""

    async def load(self, call_id: str) -> tuple[CallRecord, Sequence[Entry]] | None:
        """A call and its entries, as they stand."""

    async def find(self, principal: str | None, idempotency_key: str) -> CallRecord | None:
        """The call that was started with this key."""

    async def end(self, call_id: str, status: Status, outcome: bytes, expires: float) -> bool:
        """End a call from outside (aborted): raises the fence, so that nobody goes on with it.

        The outcome is that of its present segment, and no question is open any more. False if it had
        ended, or is not known.
        """

    async def due(self, limit: int = 100) -> Sequence[CallRecord]:
        """Calls that nobody looks after: waiting ones whose `wake` has come, and running ones whose worker
        is gone."""

    async def sweep(self, limit: int = 1000) -> int:
        """Mark waiting and diverged calls past `expires` as expired, forget ended ones past theirs, and runs
        of which nothing was heard for `KEEP_RUNS` seconds; bring trees that are due to their next state; tell
        how many."""

    async def list(
        self,
        *,
        status: Sequence[Status] = (),
        principal: str | None = None,
        name: str | None = None,
        addressed: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Calls, the newest first; `after` is the `next` of the page before.

        `addressed` gives those only that wait for somebody else than their caller.
        """

    async def take_notices(self, channel: str, limit: int, seconds: float) -> Sequence[Notice]:
        """Notices of a channel that are due, to be told now: nobody else takes them for so many seconds.

        Who has told one says so (`notice_told`); else it is due again after that, or when `postpone_notice`
        says.
        """

    async def notice_told(self, id: str) -> None:
        """A notice is told, or need not be any more: as long as its call is known, it is not due again."""

    async def postpone_notice(self, id: str, seconds: float) -> None:
        """Have a notice that could not be told be due again, so many seconds from now."""

    async def count(self) -> dict[str, int]:
        """How many calls there are of each status."""

    async def probe(self) -> None:
        """See whether it can be written. Raises `JournalError`."""

    async def held(self, principal: str) -> int:
        """How many bytes the calls of a principal take, ended ones included; each counts `CALL_SIZE` more."""

    async def secret(self, name: str, made: bytes) -> bytes:
        """A secret that all workers share: the one that is kept, or `made` if there was none."""

    async def post(self, worker: str, message: bytes) -> bool:
        """Give a message to another worker, soon and once; those of one sender arrive in their order.

        False if that worker is gone, or no worker can have that name; then it is not kept. What was posted
        to a worker before it died is lost.
        """

    async def export(self, call_id: str) -> dict[str, Any] | None:
        """All of a call (the record, entries and outcomes), as JSON-able values, for `restore`."""

    async def restore(self, exported: dict[str, Any]) -> bool:
        """Take in an exported call, as it was, owned by nobody. False if its id or key is known already.

        Raises `BadExport` if it is none.
        """


class _Exported(Struct, frozen=True):
    call: CallRecord
    entries: list[Entry]
    outcomes: dict[int, bytes]


def to_export(call: CallRecord, entries: Sequence[Entry], outcomes: Mapping[int, bytes]) -> dict[str, Any]:
    """What `export` gives, the same for every store, so that a call can move from one to another."""
    exported: dict[str, Any] = msgspec.to_builtins(
        _Exported(call, list(entries), dict(outcomes)), str_keys=True
    )
    return exported


def from_export(exported: dict[str, Any]) -> tuple[CallRecord, list[Entry], dict[int, bytes]]:
    """The parts of an exported call, for `restore`. Raises `BadExport`."""
    try:
        read = msgspec.convert(exported, _Exported, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadExport(f"This is not an exported call: {error}") from None
    if not all(0 <= segment < read.call.segment for segment in read.outcomes):
        raise BadExport("This is not an exported call: it has the outcome of a segment that has not run")
    return replace(read.call, owner=None), read.entries, read.outcomes


def new_lines(kept: Sequence[bytes], lines: Sequence[bytes]) -> Sequence[bytes]:
    """Those of `lines` that are to be added to a run which has `kept` from the same number on.

    Raises `Conflict` if it has other ones.
    """
    if list(kept[: len(lines)]) != list(lines[: len(kept)]):
        raise Conflict("The run has other lines")
    return lines[len(kept) :]


class _ExportedConversation(Struct, frozen=True):
    conversation: ConversationRecord


def conversation_to_export(record: ConversationRecord) -> dict[str, Any]:
    """A conversation as JSON-able values, so that it can move from one store to another."""
    exported: dict[str, Any] = msgspec.to_builtins(_ExportedConversation(replace(record, run=None)))
    return exported


def conversation_from_export(exported: dict[str, Any]) -> ConversationRecord:
    """An exported conversation, for `restore`. Raises `BadExport`."""
    try:
        return msgspec.convert(exported, _ExportedConversation).conversation
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadExport(f"This is not an exported conversation: {error}") from None


def page_mark(call: CallRecord) -> str:
    """The `next` of a page that ends with this call."""
    return f"{call.created!r} {call.id}"


_MOMENT = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,2})?")


def page_start(after: str) -> tuple[float, str]:
    """When the last call of the page before was created, and its id."""
    created, _, call_id = after.partition(" ")
    if not _MOMENT.fullmatch(created) or not call_id:
        raise BadPage(after)
    return float(created), call_id


__all__ = [
    "CALL_SIZE",
    "ENDED",
    "KEEP",
    "KEEP_RUNS",
    "LISTED",
    "MOST_CLAIMS",
    "WITH_OUTCOME",
    "Addition",
    "Busy",
    "CallRecord",
    "CallWrite",
    "Claim",
    "Claimed",
    "Conflict",
    "ConversationPage",
    "ConversationRecord",
    "Conversations",
    "Creation",
    "Entry",
    "Fenced",
    "Gone",
    "Journal",
    "JournalError",
    "Notice",
    "Page",
    "Parking",
    "RunEnd",
    "RunRecord",
    "Saved",
    "Settled",
    "Settlement",
    "Status",
    "Taking",
    "conversation_from_export",
    "conversation_to_export",
    "from_export",
    "is_worker_name",
    "new_lines",
    "page_mark",
    "page_start",
    "to_export",
]

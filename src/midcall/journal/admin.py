"""Admin: what an administrator does with calls: list, look, answer, abort, fork, and move to another journal.

All of it is told in JSON, so that it is the same over HTTP and on the command line. The calls of all dialects
look alike from here: what differs is in a table (`CallKind`). With `DurableCalls` answers can be given, as
they run the calls; without, there is only a journal to look into.
"""

import base64
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midcall.call import SOURCE_PLACE, Call, source_entry, source_in
from midcall.call import Status as CallStatus
from midcall.calls import Calls
from midcall.errors import (
    BadExport,
    BadFork,
    Diverged,
    MidcallError,
    NotWaiting,
    UnknownCall,
    UnknownLink,
    UnknownQuestion,
    UnknownTree,
    WrongAnswer,
)
from midcall.journal import kept_questions
from midcall.journal.contract import (
    ENDED,
    KEEP,
    WITH_OUTCOME,
    CallRecord,
    Entry,
    Journal,
    Status,
    conversation_from_export,
    conversation_to_export,
    from_export,
    to_export,
)
from midcall.journal.dialect import Detached
from midcall.journal.durable import PATIENCE, DurableCalls
from midcall.journal.forward import Forwarded, stop_elsewhere
from midcall.journal.seal import is_key, shared_keys
from midcall.journal.state import (
    Asked,
    Waiting,
    asked_of,
    is_asked_still,
    is_meant_for,
    kind_of,
    size_of_call,
    timestamp,
)
from midcall.journal.trees import (
    ExportedNodes,
    ExportedTree,
    is_tree_export,
    tree_from_export,
    tree_to_export,
)
from midcall.principal import Principal, check_scopes
from midcall.questions import KINDS, Answer, AnyQuestion, answer_to_wire, question_to_wire, refusal_in
from midcall.replay import AskFailure, Deadline, is_to_another, question_id

STATUSES: tuple[Status, ...] = get_args(Status)

MOST = 1000
"""How many calls are listed at once."""

YEAR = 366 * 24 * 3600.0
LONGEST = 10 * YEAR
"""How far ahead an imported call may expire."""

ASKING = ("waiting", "diverged")
"""Where a call stands that can be answered. One that has diverged may go on with other code."""

PART = 4 * 1024 * 1024
"""How many bytes of nodes are exported in one piece."""

NOBODY = "Nobody here can run this call"

MOMENT = 10.0
"""Seconds to wait for a call that was answered otherwise, and may ask the same again."""

_LOOK = (0.5, 2.0)
"""Seconds between two looks at a call that runs elsewhere: first, and after a while."""


class CallKind(Struct, frozen=True):
    """What is special about the calls of one dialect."""

    check: Callable[[CallRecord], object]
    """Raises `ValueError` or `BadExport` if the dialect cannot have written this context of a call."""
    aborted: Callable[[str], bytes]
    """The outcome of a call that was aborted for this reason, for whoever comes back to it."""
    read_answer: Callable[[AnyQuestion, Any], Answer]
    """Reads an answer in any form that is taken. Raises `WrongAnswer`."""
    tell_ended: Callable[[Journal, CallRecord], Awaitable[None]] | None = None
    """Tells another worker, whose client may be on the line, that the call has ended."""


class Admin:
    """The calls of a journal and, on a server, those that run there without one."""

    def __init__(
        self,
        journal: Journal,
        kinds: Mapping[str, CallKind],
        *,
        durable: DurableCalls | None = None,
        calls: Calls | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.journal = journal
        self._kinds = kinds
        self._durable = durable
        self._calls = Calls() if calls is None else calls
        self._patience = patience
        """Seconds to wait for what a call does with its answers."""

    # --- looking -----------------------------------------------------------------------------

    async def list(
        self,
        *,
        status: Sequence[Status] = (),
        name: str | None = None,
        principal: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """Calls, the newest first; `after` is the `next` of the page before."""
        await self._open()
        page = await self.journal.list(
            status=status, principal=principal, name=name, after=after, limit=max(1, min(limit, MOST))
        )
        calls = [_summary(record) for record in page.calls]
        if after is None and principal is None:
            here = [_active(call) for call in self._calls if not is_journaled(call)]
            calls[:0] = [
                call
                for call in here
                if (not status or call["status"] in status) and name in (None, call["method"])
            ]
        return {"calls": calls, "next": page.next}

    async def show(self, call_id: str, *, values: bool = False) -> dict[str, Any]:
        """All that is known of a call; what it was answered and what its steps gave only with `values`."""
        here = self._calls.get(call_id)
        if here is not None:
            return _active(here)
        record, entries = await self._load(call_id)
        latest = {entry.key: entry for entry in entries}  # a later one takes the place of an earlier one
        shown = {
            **_summary(record),
            "arguments": _read(record.arguments or b"{}"),
            "entries": [_entry(entry, values=values) for entry in latest.values()],
        }
        return {**shown, **await self._came_to(record)} if values else shown

    async def settled(
        self, call_id: str, *, values: bool = False, patience: float | None = None
    ) -> dict[str, Any]:
        """The call as soon as it does not run, or after a while as it is; with `values`, what it came to.

        Raises `UnknownCall`.
        """
        end = time.monotonic() + (self._patience if patience is None else patience)
        look, longest = _LOOK
        while True:
            record, _ = await self._load(call_id)
            left = end - time.monotonic()
            stopping = self._durable is not None and self._durable.stopping
            if record.status != "running" or left <= 0 or stopping:
                return {**_summary(record), **(await self._came_to(record) if values else {})}
            await self.journal.wait(call_id, record.segment, min(left, look))
            look = min(2 * look, longest)

    # --- acting ------------------------------------------------------------------------------

    async def answer(
        self,
        call_id: str,
        answers: Mapping[str, Any],
        may: Callable[[CallRecord, Waiting], bool] = lambda record, one: True,
    ) -> dict[str, Any]:
        """Answer for the person: by key, each as an answer or as the result of an elicitation.

        `may` says which questions are for whoever answers. Gives the call as it stands after that. Raises
        `UnknownCall`, `NotWaiting`, `UnknownQuestion` or `WrongAnswer`; then nothing is changed.
        """
        if self._durable is None:
            raise MidcallError(NOBODY)
        here = self._calls.get(call_id)
        if here is not None and not is_journaled(here):
            raise NotWaiting(
                call_id, _status(here), "This call is not in a journal: only its caller can answer"
            )
        record = await self._asking(call_id)
        kind = self._kinds.get(kind_of(record))
        if kind is None or kind_of(record) not in self._durable.kinds:
            raise MidcallError(NOBODY)  # of a chat, which another server has
        if record.status not in ASKING:
            raise NotWaiting(call_id, record.status)
        waiting = open_questions(record)
        given: dict[str, Any] = {}
        for key, answer in answers.items():
            if key not in waiting or not may(record, waiting[key]):
                raise UnknownQuestion(key)
            one = waiting[key]
            given[question_id(call_id, one.place)] = answer_to_wire(kind.read_answer(one.question, answer))
        if not given:
            raise WrongAnswer(f"an answer to {', '.join(waiting)}")
        try:
            came = await self._durable.answer(call_id, given, by_caller=False)
            taken, late = isinstance(came, Detached | Forwarded), False
        except UnknownQuestion:
            taken, late = False, True
        settled = await self.settled(call_id) if taken else _summary((await self._load(call_id))[0])
        status = settled["status"]
        if status == "diverged" and not late:
            why = self._durable.why_still(call_id)
            raise NotWaiting(call_id, status, f"The call cannot go on: {why}. It is kept, with the answer")
        if not taken:
            raise NotWaiting(call_id, status, f"Someone else was faster: the call is {status}")
        return settled

    async def linked(self, token: str, principal: Principal | None) -> tuple[CallRecord, str, Waiting]:
        """The open question that a link leads to: its call, its key, and the question itself.

        Raises `UnknownLink`: it is none, was used, is late, or is not for this principal. All of that takes
        the same way, so that it also takes as long.
        """
        if self._durable is None:
            raise MidcallError(NOBODY)
        await self._open()
        link = self._durable.links.read(token)
        try:
            record = await self._asking(link.call_id)
        except UnknownCall:
            raise UnknownLink from None
        for key, one in open_questions(record).items():
            if one.place == link.place and is_meant_for(record, one, principal):
                return record, key, one
        raise UnknownLink

    async def answer_linked(self, token: str, answer: Any, principal: Principal | None) -> CallRecord:
        """Answer the question that a link leads to; gives its call, as it stood before.

        Raises `UnknownLink` or `WrongAnswer`; then nothing is changed.
        """
        record, key, asked = await self.linked(token, principal)
        try:
            await self.answer(
                record.id,
                {key: answer},
                lambda now, one: one.place == asked.place and is_meant_for(now, one, principal),
            )
        except (UnknownCall, UnknownQuestion, NotWaiting) as error:
            stands_still = isinstance(error, NotWaiting) and error.status == "diverged"
            if stands_still and kind_of(record) != kept_questions.KIND:
                raise  # the answer is kept
            raise UnknownLink from None  # another one came first, or the time was up
        return record

    async def abort(self, call_id: str, reason: str = "An administrator aborted the call") -> dict[str, Any]:
        """End a call. Raises `UnknownCall`, or `NotWaiting` if it has ended."""
        here = self._calls.get(call_id)
        if here is not None:
            here.abort(reason)
            return {**_active(here), "status": "aborted"}
        record, _ = await self._load(call_id)
        kind = self._kinds.get(kind_of(record))  # none of a newer midcall, which is ended all the same
        outcome = b"{}" if kind is None else kind.aborted(reason)
        if self._durable is None:
            ended = await self.journal.end(call_id, "aborted", outcome, time.time() + KEEP)
            if ended:
                await stop_elsewhere(self.journal, record, reason)
        else:
            ended = await self._durable.abort(call_id, reason, outcome)
        if not ended:
            raise NotWaiting(call_id, record.status, f"Call {call_id} has ended already: {record.status}")
        if kind is not None and kind.tell_ended is not None:
            await kind.tell_ended(self.journal, replace(record, fence=record.fence + 1))
        return await self.settled(call_id)

    async def fork(
        self,
        call_id: str,
        at: int | None = None,
        principal: Principal | None = None,
        *,
        by_caller: bool = False,
    ) -> dict[str, Any]:
        """A new call that has done what another has, up to a point, and goes on from there.

        It has done the first `at` entries of the other one, as `show` lists them; without `at`, all. That
        call stays as it is, whatever its status. A question that is open there is asked anew, and so is one
        that was withdrawn, if that was the last thing to happen. The new call is a durable subscription of
        the same caller, whatever the other one is. If it is made `by_caller`, they have the scopes that they
        have now, and it goes on at the latest from where somebody else was asked: what they have answered was
        for the other call.

        Gives the new call as it stands when it waits or has ended. Raises `UnknownCall`, `BadFork`,
        `MethodNotFound`, `NotAllowed` if the principal that wants it lacks scopes of the method, or what
        refuses any new call; then nothing is changed.
        """
        if self._durable is None:
            raise MidcallError(NOBODY)
        here = self._calls.get(call_id)
        if here is not None and not is_journaled(here):
            raise BadFork("This call is not in a journal, so what it has done is unknown")
        record, entries = await self._load(call_id)
        latest = list({entry.key: entry for entry in entries}.values())
        if at is None:
            at = len(latest)
        if not 0 <= at <= len(latest):
            raise BadFork(f"Call {call_id} has {len(latest)} entries: it can be forked at 0 to {len(latest)}")
        check_scopes(record.name, self._durable.hub.resolve(record.name).method.extras, principal)
        self._calls.admit(record.principal)
        fork = self._durable.subscriptions.new_call(record.name, record.arguments, KINDS, record.principal)
        await self._durable.quota.check(fork.principal, size_of_call(fork))
        done = latest[:at]
        if by_caller:
            done = list(itertools.takewhile(lambda entry: not is_to_another(entry.fingerprint), done))
        kept = [entry for entry in latest if entry.key == SOURCE_PLACE]
        if by_caller:
            kept = [source_entry(replace(source_in(entry), principal=principal)) for entry in kept]
        kept += [entry for entry in done if entry.key != SOURCE_PLACE and _question_state(entry) != "open"]
        while kept and _question_state(kept[-1]) == "withdrawn":
            kept.pop()
        await self.journal.restore(to_export(fork, kept, {}))
        claimed = await self._durable.claim(fork.id, fork.segment)
        if isinstance(claimed, Detached):  # else another worker has seen it first
            if claimed.call is not None and claimed.call.trace is not None:
                claimed.call.trace.rebuilt = False  # it is another call than the one that has begun before
            self._durable.resume(claimed)
        return await self.settled(fork.id)

    # --- moving ------------------------------------------------------------------------------

    async def export(self, call_id: str) -> dict[str, Any]:
        """All of a call, for `restore` in another journal. Raises `UnknownCall`."""
        await self._open()
        exported = await self.journal.export(call_id)
        if exported is None:
            raise UnknownCall(call_id)
        return exported

    async def export_all(self, status: Sequence[Status] = ()) -> AsyncIterator[dict[str, Any]]:
        """All calls, the newest first."""
        await self._open()
        after: str | None = None
        while True:
            page = await self.journal.list(status=status, after=after, limit=MOST)
            for record in page.calls:
                exported = await self.journal.export(record.id)
                if exported is not None:  # else it was forgotten in this moment
                    yield exported
            if page.next is None:
                return
            after = page.next

    async def restore(self, exported: dict[str, Any], principal: Principal | None = None) -> bool:
        """Take in a call; false if it is known already.

        Raises `BadExport` if it is none, or on a server none that can be run there; and `NotAllowed` if
        the principal that brings it lacks scopes of its method.
        """
        await self._open()
        if "keys" in exported:
            raise BadExport("These are keys, not a call")
        if "conversation" in exported:
            raise BadExport("This is a conversation, not a call")
        if is_tree_export(exported):
            raise BadExport("This is a tree, not a call")
        record, _, _ = from_export(exported)
        self._check_import(record)
        if self._durable is not None:
            if kind_of(record) not in self._durable.kinds:
                raise BadExport(f"The call {record.id} cannot be run here: there is no chat")
            try:
                _, found = self._durable.kinds[kind_of(record)](record)
            except MidcallError as error:
                raise BadExport(f"The call {record.id} cannot be run here: {error}") from None
            check_scopes(found.name, found.method.extras, principal)
        return await self.journal.restore(exported)

    async def export_conversations(self) -> AsyncIterator[dict[str, Any]]:
        """The conversations of everybody, for `restore_conversation`."""
        await self._open()
        after: str | None = None
        while True:
            page = await self.journal.conversations.every(after)
            for record in page.conversations:
                yield conversation_to_export(record)
            if page.next is None:
                return
            after = page.next

    async def restore_conversation(self, exported: dict[str, Any]) -> bool:
        """Take in a conversation; false if it is known already. Raises `BadExport`."""
        await self._open()
        return await self.journal.conversations.restore(conversation_from_export(exported))

    async def export_trees(self) -> AsyncIterator[dict[str, Any]]:
        """The trees of everybody, each followed by its nodes in parts, for `restore_tree`."""
        await self._open()
        trees = self.journal.trees
        after: str | None = None
        while True:
            page = await trees.every(after)
            for tree in page.trees:
                yield tree_to_export(ExportedTree(tree))
                part: str | None = None
                with contextlib.suppress(UnknownTree):  # it was purged in this moment
                    while True:
                        some = await trees.nodes(tree.id, tree.principal, after=part, size=PART)
                        nodes = [replace(node, children=(), more_children=False) for node in some.nodes]
                        yield tree_to_export(ExportedNodes(tree.id, tree.principal, nodes))
                        part = some.next
                        if part is None:
                            break
            if page.next is None:
                return
            after = page.next

    async def restore_tree(self, exported: dict[str, Any]) -> bool:
        """Take in a tree, or nodes of one, in the order in which they were exported; false if it is known.

        Raises `BadExport` or `TreeError`. Nodes that are known are passed over.
        """
        await self._open()
        trees = self.journal.trees
        match tree_from_export(exported):
            case ExportedTree(tree):
                return await trees.restore(tree)
            case ExportedNodes(tree_id, principal, nodes):
                await trees.restore_nodes(tree_id, principal, nodes)
        return False

    async def export_keys(self) -> dict[str, Any]:
        """The keys by which callers come back, as far as they are this journal's, for `restore_keys`."""
        keys = await shared_keys(self.journal.secret)
        return {"keys": {name: base64.b64encode(key).decode() for name, key in keys.items()}}

    async def restore_keys(self, exported: dict[str, Any]) -> bool:
        """Take in what `export_keys` gave; false if this journal has others. Raises `BadExport`."""
        try:
            keys = {name: base64.b64decode(key, validate=True) for name, key in exported["keys"].items()}
        except (AttributeError, TypeError, ValueError):
            raise BadExport("These are not keys") from None
        if not all(is_key(name, key) for name, key in keys.items()):
            raise BadExport("These are not keys")
        return all([await self.journal.secret(name, key) == key for name, key in keys.items()])

    # --- inside ------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._durable is not None:
            await self._durable.open()

    async def _asking(self, call_id: str) -> CallRecord:
        """A call; if it runs because something else was answered, as soon as it waits again, or ends."""
        end = time.monotonic() + MOMENT
        while True:
            record, entries = await self._load(call_id)
            if not is_asked_still(record, entries) or time.monotonic() > end:
                return record
            await self.journal.wait(call_id, record.segment, _LOOK[0])

    async def _load(self, call_id: str) -> tuple[CallRecord, Sequence[Entry]]:
        await self._open()
        found = await self.journal.load(call_id)
        if found is None:
            raise UnknownCall(call_id)
        return found

    async def _came_to(self, record: CallRecord) -> dict[str, Any]:
        """The outcome of a call, if it has ended; or why it stands still, as far as that is known."""
        if record.status == "diverged" and self._durable is not None:
            why = f"The call cannot go on: {self._durable.why_still(record.id)}"
            return {"outcome": {"error": {"code": Diverged.code, "message": why}}}
        if record.status not in ENDED:
            return {}
        outcome = None
        if record.status in WITH_OUTCOME:
            outcome = await self.journal.wait(record.id, record.segment - 1, 0)
        return {"outcome": None if outcome is None else _outcome(outcome)}

    def _check_import(self, record: CallRecord) -> None:
        """Raise `BadExport` if a record cannot be one that midcall has written, and can read again."""
        try:
            kind = self._kinds.get(kind_of(record))
            if kind is None:
                raise BadExport(f"The call {record.id} is of an unknown kind")
            kind.check(record)
            msgspec.json.decode(record.arguments or b"{}")
            if record.status == "waiting" and not msgspec.json.decode(record.questions, type=Asked).questions:
                raise BadExport(f"The call {record.id} waits for nothing")
            _summary(record)  # with its questions
            asked_of(record)  # which may be there while it runs, too
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError, WrongAnswer) as error:
            text = f"The call {record.id} cannot be read: {error or type(error).__name__}"
            raise BadExport(text) from None
        if record.expires > time.time() + LONGEST:
            raise BadExport(f"The call {record.id} would wait for longer than {LONGEST / YEAR:.0f} years")


# --- how it is told -------------------------------------------------------------------------------


def open_questions(record: CallRecord) -> dict[str, Waiting]:
    """What a call in the journal waits for, each by its key, unless others have the same."""
    if record.status not in ASKING:
        return {}
    asked = asked_of(record).questions
    keys = [one.key for one in asked.values()]
    return {one.key if one.key and keys.count(one.key) == 1 else name: one for name, one in asked.items()}


def _summary(record: CallRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "method": record.name,
        "status": record.status,
        "kept": True,
        "principal": record.principal,
        "created": timestamp(record.created),
        "updated": timestamp(record.updated or record.created),
        "expires": timestamp(record.expires),
        "wakes": None if record.wake is None else timestamp(record.wake),
        "segment": record.segment,
        "worker": record.owner,
        "questions": [_question(key, one) for key, one in open_questions(record).items()],
    }


def _question(key: str, one: Waiting) -> dict[str, Any]:
    question = one.question
    wire = msgspec.to_builtins(question_to_wire(question))
    asked = {"key": key, "kind": question.kind, "message": question.message, "question": wire}
    return asked if one.to is None else {**asked, "to": one.to}


def _active(call: Call) -> dict[str, Any]:
    """A call that only this process knows."""
    info = call.info()
    return {
        "id": info.id,
        "method": info.method,
        "status": _status(call),
        "kept": False,
        "principal": None,
        "created": timestamp(time.time() - info.age),
        "questions": [{"key": q.request_id, "kind": q.kind, "message": q.message} for q in info.questions],
    }


def _status(call: Call) -> Status:
    return "waiting" if call.status in (CallStatus.AWAITING_ANSWER, CallStatus.AWAITING_SAMPLE) else "running"


def is_journaled(call: Call) -> bool:
    return isinstance(call.outlet, Detached) and call.outlet.journaled


def _entry(entry: Entry, *, values: bool) -> dict[str, Any]:
    what = entry.fingerprint.rpartition(" (")[0] or entry.fingerprint
    first = what.partition(" ")[0]
    kind = first if first == "step" else "question" if _is_question(entry) else "value"
    shown: dict[str, Any] = {"place": entry.key, "type": kind, "what": what.removeprefix("step ")}
    shown["state"] = _question_state(entry) if kind == "question" else entry.state
    if values and entry.value and not (kind == "question" and entry.state == "begun"):
        shown["value"] = _read(entry.value)
    return shown


def _is_question(entry: Entry) -> bool:
    return entry.fingerprint.partition(" ")[0] in KINDS


def _question_state(entry: Entry) -> str | None:
    """What has become of a question; nothing if it is none."""
    if not _is_question(entry):
        return None
    match entry.state:
        case "begun":
            withdrawn = msgspec.json.decode(entry.value, type=Deadline).withdrawn
            return "withdrawn" if withdrawn else "open"
        case "failed":
            return msgspec.json.decode(entry.value, type=AskFailure).code
        case "given" | "done":
            refusal = refusal_in(_read(entry.value))
            return "answered" if refusal is None else refusal.how.lower()


def _outcome(encoded: bytes) -> Any:
    """What a call came to, as its dialect keeps it; the status of HTTP with an error is of no use here."""
    match outcome := _read(encoded):
        case {"error": {"status": _, **error}}:
            return {"error": error}
    return outcome


def _read(encoded: bytes) -> Any:
    try:
        return msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        return encoded.decode(errors="replace")

"""The chat's own detached dialect: a turn calls a tool, lets go of it while the person thinks, and the next
turn comes back with the answer, wherever the call is then: in this process, in another worker, or nowhere at
the moment.

Each call has an idempotency key, by which a turn that was cut off finds its calls again, and none is made
twice. Outcomes are kept in the form of MCP. This knows no conversation, and nothing of how a question is
shown (see `tools`).
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from midcall.content import Document, Embedded, take_bytes
from midcall.errors import JournalError, MethodNotFound, MidcallError, ToolError, UnknownQuestion, WrongAnswer
from midcall.hub import Hub
from midcall.items import (
    Data,
    Done,
    Error,
    Item,
    Progress,
    Request,
    RequestCancelled,
    to_builtins,
    to_json,
)
from midcall.journal.contract import (
    ENDED,
    WITH_OUTCOME,
    Busy,
    CallRecord,
    CallWrite,
    Gone,
    Settled,
    Settlement,
)
from midcall.journal.dialect import Detached
from midcall.journal.durable import LOOK, DurableCalls, durable_calls
from midcall.journal.state import Waiting, asked_of, for_caller, is_answered, new_record
from midcall.jsonrpc import INTERNAL_ERROR
from midcall.mcp import mcp_of, revisions
from midcall.mcp.catalog import Tool
from midcall.mcp.elicitation import read_answers
from midcall.mcp.request import McpError
from midcall.mcp.results import (
    ERROR_CODE,
    NO_OUTPUT,
    McpReply,
    decode_outcome,
    encode_outcome,
    objects_in,
    text_of,
    tool_result,
    unwrapped,
)
from midcall.mcp.resume import CHAT
from midcall.principal import CallSource
from midcall.questions import KINDS
from midcall.registry import Resolved

log = logging.getLogger("midcall.chat")

T = TypeVar("T")

Report: TypeAlias = Callable[[str, float | None], None]
"""Gets what a tool says of its progress, with a percentage if it tells one."""

REPORTS = 100
"""How many reports of its progress a call may make to one turn that are told at once. Of more, the newest is
told every now and then: each is a line that is written down."""

REPORT_EVERY = 0.2
"""Seconds between two of these."""

CAPABILITIES = frozenset(("elicitation", "sampling", "roots"))
"""What a tool may require of whoever calls it, and a chat has."""

GONE = "The tool call is gone: it was ended, or its time was up"


class ToolEnded(Struct, frozen=True):
    """A tool call has ended."""

    content: str
    structured: Any = None
    is_error: bool = False
    code: str = ""
    """Of its error, if that has one of its own."""
    blocks: tuple[dict[str, Any], ...] = ()
    """What it gave beside text, as MCP says it."""
    given: Any = None
    """The structured result, also if it is a text."""

    def with_files(self, tool: Tool) -> "ToolEnded":
        """With the bytes in it as files, of which a model is told the size only."""
        name = tool.found.name.rpartition(".")[2]
        value, files = take_bytes(self.given, tool.shown.get("outputSchema"), name)
        if not files:
            return self
        blocks = [to_builtins(Embedded(Document(f"{one.name}.bin", blob=one.data))) for one in files]
        is_text = isinstance(value, str)
        return replace(
            self,
            content=value if is_text else to_json(value).decode(),
            structured=None if is_text else value,
            blocks=(*self.blocks, *blocks),
        )


class ToolAsks(Struct, frozen=True):
    """A tool call waits for answers."""

    call_id: str
    questions: Mapping[str, Waiting]
    """By the keys under which they are answered."""


class NotNow(MidcallError):
    """A tool could not be called just now, or a call not gone on with: the same may be tried again."""

    code = "not_now"
    recoverable = True


class SessionLost(MidcallError):
    """A tool call that waited cannot be gone on with: it is gone, or its time was up."""

    code = "session_lost"


class JointSave(NamedTuple):
    """How a turn has its conversation saved in one with what is written of a call."""

    save: Callable[[CallWrite[Any] | None], Coroutine[Any, Any, Any]]
    """Save it with that, or alone; gives what came of that."""
    not_cut_off: Callable[[], AbstractContextManager[None]]
    """What is done meanwhile is done to its end."""


Told: TypeAlias = asyncio.Future[ToolAsks | bytes | MidcallError | None]
"""What a call comes to: what it asks, its outcome, why it has none, or nothing if it goes on elsewhere."""


class ChatCall(Detached):
    """The outlet of one tool call. Whoever waits for it is a turn, if anybody does."""

    full = False
    log_level = None
    takes_passed = True

    __slots__ = (
        "_at_once",
        "_newest",
        "_outcome",
        "_progress",
        "_report",
        "_result",
        "_timer",
        "_together",
        "_told",
    )

    def __init__(self, durable: DurableCalls, record: CallRecord, tool: Tool) -> None:
        super().__init__(durable, record, KINDS)
        self._result = McpReply(None, functools.partial(tool_result, tool, revisions.MODERN[-1]), record.name)
        """Collects it."""
        self._outcome = b""
        self._progress = -1.0
        self._report: Report | None = None
        self._at_once = 0
        """How many reports more are told at once."""
        self._newest: tuple[str, float | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told: Told | None = None
        self._together: dict[object, JointSave] = {}
        """By the tasks that write: two turns may answer at the same moment, and one of them is refused."""

    @property
    def runs(self) -> bool:
        """Whether something is still to come of it here."""
        return not self.gone and not self.parked

    def listen(self, report: Report) -> Told:
        """What a call that `runs` comes to, for `heard`."""
        self._tell(None)  # to whoever waits already: a turn that was taken for dead
        if report is not self._report:
            self._report, self._at_once = report, REPORTS
        self._told = told = asyncio.get_running_loop().create_future()
        return told

    async def saving(self, work: Coroutine[Any, Any, T], together: JointSave | None) -> T:
        """Do something of which the first thing that is written is written `together` with the conversation,
        which is saved in any case."""
        if together is None:
            return await work
        with together.not_cut_off():
            self._together[asyncio.current_task()] = together
            try:
                done = await work
            finally:
                left = self._together.pop(asyncio.current_task(), None)
            if left is not None:
                await left.save(None)
            return done

    def _tell(self, outcome: ToolAsks | bytes | MidcallError | None) -> None:
        self._tell_newest()
        told, self._told = self._told, None
        if told is not None and not told.done():
            told.set_result(outcome)

    # --- the call emits ----------------------------------------------------------------------

    def put(self, item: Item) -> None:
        match item:
            case Data() | Error():
                self._result.add(item)
            case Request():
                key = item.key or ""
                self.ask(key if key and key not in self.open else f"question-{item.place}", item)
            case RequestCancelled():
                self.close(item.request_id)
            case Progress():
                self._tell_progress(item)
            case Done():
                self._finish()

    async def drain(self) -> None:
        """Nobody is behind."""

    def _tell_progress(self, item: Progress) -> None:
        """Progress goes only upwards, as in MCP."""
        percentage = item.percentage
        value = self._progress + 1 if percentage is None else percentage
        if self._told is None or value <= self._progress:
            return
        self._progress = value
        self._newest = item.message, None if percentage is None else min(100.0, max(0.0, percentage))
        if self._at_once:
            self._at_once -= 1
            self._tell_newest()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_EVERY, self._tell_newest)

    def _tell_newest(self) -> None:
        """Tell the newest report, unless it is told."""
        timer, self._timer = self._timer, None
        newest, self._newest = self._newest, None
        if timer is not None:
            timer.cancel()
        if newest is not None and self._report is not None:
            self._report(*newest)

    def _finish(self) -> None:
        if self.call is None:
            return
        self._outcome = encode_outcome(self._result.outcome())
        self.end(self.call, self._outcome)

    # --- what the base calls -----------------------------------------------------------------

    async def write(self, write: CallWrite[T]) -> T:
        together = None
        if not isinstance(write, Settlement):
            together = self._together.pop(asyncio.current_task(), None)
        if together is None:
            return await super().write(write)
        came: T = await together.save(write)
        return came

    def waits(self) -> None:
        own = for_caller(asked_of(self.record).questions)
        self._tell(ToolAsks(self.record.id, own) if own else None)

    def ended(self) -> None:
        self._tell(self._outcome)

    def begin_again(self) -> None:
        """It has collected nothing yet."""

    def released(self) -> None:
        self._tell(None)

    def troubled(self, error: JournalError) -> None:
        self._tell(NotNow(str(error)))

    def stopped(self, error: MidcallError) -> None:
        self._tell(error)


async def heard(told: Told) -> ToolEnded | ToolAsks | None:
    """Wait for what a call comes to; nothing if it goes on elsewhere. Raises as `ended`, or why there is
    nothing."""
    match await told:
        case MidcallError() as error:
            raise error
        case bytes(outcome):
            return ended(outcome)
        case asks:
            return asks


def ended(outcome: bytes) -> ToolEnded:
    """What a call came to, as it is kept. Raises `ToolError` if it was not made, or was aborted."""
    result = decode_outcome(outcome)
    if isinstance(result, McpError):
        raise ToolError(result.message)
    content = result.get("content")
    text = text_of(content) or _described(content)
    structured = unwrapped(result.get("structuredContent"))
    data = None if isinstance(structured, str) else structured  # a text is shown already
    meta = result.get("_meta")
    code = meta.get(ERROR_CODE) if isinstance(meta, dict) else None
    blocks = tuple(one for one in objects_in(content) if one.get("type") != "text")
    is_error = bool(result.get("isError"))
    return ToolEnded(text, data, is_error, code if isinstance(code, str) else "", blocks, structured)


def _described(content: Any) -> str:
    """What of a result a model that reads only text can be told."""
    if not isinstance(content, list) or not content:
        return NO_OUTPUT
    kinds = [str(block.get("type")) for block in content if isinstance(block, dict)]
    return f"({', '.join(kinds)})"


class ChatCalls:
    """All tool calls of a hub's chat."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @property
    def _durable(self) -> DurableCalls:
        return durable_calls(self._hub)

    def keep_with(self, durable: DurableCalls) -> None:
        """Be ready to go on with calls of a journal, also with those that nobody comes back to."""
        durable.kinds[CHAT] = self._revive

    def _revive(self, record: CallRecord) -> tuple[ChatCall, Resolved]:
        tool = mcp_of(self._hub).calls.tool(record.name)
        if tool is None:
            raise MethodNotFound(record.name)
        return ChatCall(self._durable, record, tool), tool.found

    async def begin(
        self,
        tool: Tool,
        arguments: bytes,
        key: str,
        principal: str | None,
        source: CallSource,
        report: Report,
        together: JointSave | None = None,
    ) -> ToolEnded | ToolAsks:
        """Call a tool, or find the call that was made before under this key; then as `current`.

        Before it starts it is written down, `together` with the conversation if that is not saved yet. Raises
        why it cannot be called, or not so.
        """
        found, durable = tool.found, self._durable
        if not CAPABILITIES.issuperset(tool.requires):
            raise MidcallError(f"The client must be able to do: {', '.join(tool.requires)}")
        self._hub.calls.admit(principal)
        record = new_record(CHAT, found.name, arguments, b"{}", principal, key, durable.time_limit)
        dialect = ChatCall(durable, record, tool)
        call = self._hub.prepare(
            found,
            arguments,
            dialect,
            supported=KINDS,
            time_limit=durable.time_limit,
            principal=principal,
            sender=source,
        )
        self._hub.calls.check_room(call)
        durable.admit(dialect, call)
        taken = await dialect.saving(durable.reserve(dialect), together)
        if taken is not None:
            return await self.current(taken.id, report)
        told = dialect.listen(report)
        if not _has_begun(dialect):
            durable.start(dialect)
        return await heard(told) or await self.current(record.id, report)

    async def find(self, principal: str | None, key: str) -> str:
        """The id of the call that was made under a key. Raises `SessionLost`."""
        await self._durable.open()
        found = await self._durable.journal.find(principal, key)
        if found is None:
            raise SessionLost(GONE)
        return found.id

    async def was_aborted(self, principal: str | None, key: str) -> bool:
        """Whether the call that was made under a key was aborted, as far as is still known."""
        await self._durable.open()
        found = await self._durable.journal.find(principal, key)
        return found is not None and found.status == "aborted"

    async def current(self, call_id: str, report: Report) -> ToolEnded | ToolAsks:
        """How a call stands: what it asks, or what it came to. While it runs, wait for that.

        If its worker is gone, it goes on here. Raises `SessionLost`, or why it has no result.
        """
        durable = self._durable
        told: list[str] = []
        while True:
            live = durable.live.get(call_id)
            if live is not None and live.journaled and not _has_begun(live):
                durable.resume(live)  # whoever wrote it down, or claimed it, did not come to this
            if isinstance(live, ChatCall) and live.runs:
                outcome = await heard(live.listen(report))
                if outcome is not None:
                    return outcome
            await durable.up_to_date(call_id)
            found = await durable.journal.load(call_id)
            if found is None:
                raise SessionLost(GONE)
            record = found[0]
            if record.status in WITH_OUTCOME:
                return ended(await durable.journal.wait(call_id, record.segment - 1, 0) or b"{}")
            if record.status in ENDED:
                raise _given_up(record.status)
            is_open = record.status == "waiting" and not is_answered(*found)
            asked = asked_of(record).questions if is_open else {}
            if own := for_caller(asked):
                return ToolAsks(call_id, own)
            if asked:
                if durable.stopping:
                    raise NotNow("The server is closing: try again")
                if (waits_for := durable.waiting_for(record)) != told:
                    told = waits_for
                    report("\n".join(told), None)
                await durable.journal.wait(call_id, record.segment, LOOK)
                continue
            claimed = await durable.take_up(record)
            if claimed == Gone("diverged"):
                raise ToolError(f"This call cannot continue: {durable.why_still(call_id)}")
            if isinstance(claimed, Detached):
                durable.resume(claimed)
            else:
                await durable.journal.wait(call_id, record.segment, LOOK)

    async def answer(
        self,
        call_id: str,
        results: Mapping[str, Any],
        places: Mapping[str, str],
        together: JointSave | None = None,
    ) -> None:
        """Answer questions of a call, by key: each with what an MCP client would give.

        `places` says where they were asked, if that is known: another one may have the same key by now. When
        this returns, the answers to what was still asked are in the journal, `together` with the conversation
        if that is not saved yet. What cannot be read is asked again. Raises `NotNow`.
        """
        durable = self._durable
        await durable.open()
        given = await read_answers(durable, call_id, results, places or None)
        dialect: object = durable.live.get(call_id)
        if together is not None and not (given.answers and isinstance(dialect, ChatCall)):
            await together.save(None)
        if given.answers:
            giving = self._give(call_id, given.answers)
            dialect = await (dialect.saving(giving, together) if isinstance(dialect, ChatCall) else giving)
        elif given.notes and dialect is None and (found := await durable.journal.load(call_id)):
            dialect = await durable.take_up(found[0])
        if isinstance(dialect, Detached):
            dialect.note(given.notes)
            durable.resume(dialect)

    async def _give(self, call_id: str, answers: Mapping[str, Any]) -> object:
        """Give a call answers, by the ids of its questions: those that it still asks."""
        while True:
            try:
                taken = await self._durable.answer(call_id, answers)
            except (UnknownQuestion, WrongAnswer):  # it has gone on in this moment
                return self._durable.live.get(call_id)
            if isinstance(taken, Busy):
                raise NotNow("The tool call is busy at another worker; try again")
            if not isinstance(taken, Settled):
                return taken

    async def abort(self, principal: str | None, key: str, reason: str) -> None:
        """End the call that was made under a key, if there is one."""
        durable = self._durable
        if not durable.stopping:
            await durable.open()
        found = await durable.journal.find(principal, key)
        if found is not None:
            await self._abort(found.id, reason)

    async def _abort(self, call_id: str, reason: str) -> None:
        await self._durable.abort(call_id, reason, encode_outcome(McpError(INTERNAL_ERROR, reason)))


def _has_begun(dialect: Detached) -> bool:
    return dialect.call is None or dialect.call.task is not None


def _given_up(status: str) -> MidcallError:
    if status == "poisoned":
        return ToolError("This call was given up: it brought down each worker that ran it")
    return SessionLost(GONE)


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end, also if whoever waits for it is cancelled: then it is known to be done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is not None:
            log.warning("nobody waited for what failed: %s", task.exception())
        raise

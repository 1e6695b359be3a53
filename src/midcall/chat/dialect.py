"""The chat's own detached dialect: a turn calls a tool, lets go of it while the person thinks, and the next
turn comes back with the answer (see `tools`).

Outcomes are kept in the form of MCP. This knows no conversation, and nothing of how a question is shown.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

from midcall.errors import JournalError, MidcallError, ToolError
from midcall.items import Data, Done, Error, Item, Progress, Request, RequestCancelled
from midcall.journal.contract import CallRecord
from midcall.journal.dialect import Detached
from midcall.journal.durable import DurableCalls
from midcall.journal.state import asked_of
from midcall.mcp import revisions
from midcall.mcp.catalog import Tool
from midcall.mcp.request import McpError
from midcall.mcp.results import NO_OUTPUT, McpReply, decode_outcome, encode_outcome, text_of, tool_result
from midcall.questions import KINDS, AnyQuestion

Report: TypeAlias = Callable[[str, float | None], None]
"""Gets what a tool says of its progress, with a percentage if it tells one."""


class ToolEnded(Struct, frozen=True):
    """A tool call has ended."""

    content: str
    structured: Any = None
    is_error: bool = False


class OpenQuestion(Struct, frozen=True):
    """A question of a tool call that waits."""

    place: str
    """Where in the call it is asked."""
    question: AnyQuestion
    expected: str = ""
    """What would have been expected of the last answer, if that could not be read."""


class ToolAsks(Struct, frozen=True):
    """A tool call waits for answers."""

    call_id: str
    questions: dict[str, OpenQuestion]
    """By the keys under which they are answered."""


class NotNow(MidcallError):
    """A tool could not be called just now, or a call not gone on with: the same may be tried again."""

    code = "not_now"
    recoverable = True


Told: TypeAlias = asyncio.Future[ToolAsks | bytes | MidcallError | None]
"""What a call comes to: what it asks, its outcome, why it has none, or nothing if it goes on elsewhere."""


class ChatCall(Detached):
    """The outlet of one tool call. Whoever waits for it is a turn, if anybody does."""

    full = False
    log_level = None
    takes_passed = True

    __slots__ = ("_outcome", "_progress", "_report", "_result", "_told")

    def __init__(self, durable: DurableCalls, record: CallRecord, tool: Tool) -> None:
        super().__init__(durable, record, KINDS)
        self._result = McpReply(None, functools.partial(tool_result, tool, revisions.MODERN[-1]), record.name)
        """Collects it."""
        self._outcome = b""
        self._progress = -1.0
        self._report: Report | None = None
        self._told: Told | None = None

    @property
    def runs(self) -> bool:
        """Whether something is still to come of it here."""
        return not self.gone and not self.parked

    async def outcome(self, report: Report) -> ToolEnded | ToolAsks | None:
        """Wait for what a call that `runs` comes to; nothing if it goes on elsewhere. Raises as `ended`."""
        return await heard(self.listen(report))

    def listen(self, report: Report) -> Told:
        """As `outcome`, for somebody who waits for it later."""
        self._tell(None)  # to whoever waits already: a turn that was taken for dead
        self._report = report
        self._told = told = asyncio.get_running_loop().create_future()
        return told

    def _tell(self, outcome: ToolAsks | bytes | MidcallError | None) -> None:
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
        if self._report is not None and self._told is not None and value > self._progress:
            self._progress = value
            self._report(item.message, None if percentage is None else min(100.0, max(0.0, percentage)))

    def _finish(self) -> None:
        if self.call is None:
            return
        self._outcome = encode_outcome(self._result.outcome())
        self.end(self.call, self._outcome)

    # --- what the base calls -----------------------------------------------------------------

    def waits(self) -> None:
        self._tell(ToolAsks(self.record.id, asked_by(self)))

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
    """What a call came to, for a turn. Raises as `ended`, or why there is nothing."""
    match await told:
        case MidcallError() as error:
            raise error
        case bytes(outcome):
            return ended(outcome)
        case asks:
            return asks


def asked_by(dialect: Detached) -> dict[str, OpenQuestion]:
    """What a call asks whose coroutine is here."""
    return {
        name: OpenQuestion(one.place, one.request_type, dialect.notes.get(name, ""))
        for name, one in dialect.open.items()
    }


def asked_in(record: CallRecord) -> dict[str, OpenQuestion]:
    """What a call in the journal asks."""
    return {
        name: OpenQuestion(one.place, one.question, one.note)
        for name, one in asked_of(record).questions.items()
    }


def ended(outcome: bytes) -> ToolEnded:
    """What a call came to, as it is kept. Raises `ToolError` if it was not made, or was aborted."""
    result = decode_outcome(outcome)
    if isinstance(result, McpError):
        raise ToolError(result.message)
    content = result.get("content")
    text = text_of(content) or _described(content)
    return ToolEnded(text, result.get("structuredContent"), bool(result.get("isError")))


def _described(content: Any) -> str:
    """What of a result a model that reads only text can be told."""
    if not isinstance(content, list) or not content:
        return NO_OUTPUT
    kinds = [str(block.get("type")) for block in content if isinstance(block, dict)]
    return f"({', '.join(kinds)})"

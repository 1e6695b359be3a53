"""The tools of a hub in its chat: what they are called there, and calls of them.

A turn makes a call, and it or a later turn goes on with it, wherever the call is: in this process, in another
worker, or nowhere at the moment. Each has an idempotency key, by which a turn that was cut off finds its
calls again, and none is made twice.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from midcall.chat.dialect import (
    ChatCall,
    Report,
    ToolAsks,
    ToolEnded,
    asked_in,
    ended,
)
from midcall.chat.runs import finished
from midcall.client.native import MOST_LETTERS, native_name
from midcall.errors import (
    MethodNotFound,
    MidcallError,
    ToolError,
    UnknownQuestion,
    WrongAnswer,
)
from midcall.hub import Hub
from midcall.journal.contract import ENDED, WITH_OUTCOME, CallRecord, Gone
from midcall.journal.dialect import Detached
from midcall.journal.durable import LOOK, DurableCalls, durable_calls
from midcall.journal.state import is_answered, new_record
from midcall.jsonrpc import INTERNAL_ERROR
from midcall.mcp import mcp_of
from midcall.mcp.catalog import Tool
from midcall.mcp.dialects import read_answers
from midcall.mcp.request import McpError
from midcall.mcp.results import CHAT, encode_outcome
from midcall.models.base import ToolDefinition
from midcall.principal import Principal, check_scopes
from midcall.questions import KINDS
from midcall.registry import Resolved

CAPABILITIES = frozenset(("elicitation", "sampling", "roots"))
"""What a tool may require of whoever calls it, and a chat has."""

GONE = "The tool call is gone: it was ended, or its time was up"


class SessionLost(MidcallError):
    """A tool call that waited cannot be gone on with: it is gone, or its time was up."""

    code = "session_lost"


class Tools:
    """The tools of a hub, under names that every provider takes."""

    def __init__(self, tools: Mapping[str, Tool], offered: Callable[[str], bool] | None = None) -> None:
        """`offered` says which of them, by name in the hub; without it, all."""
        self.made_from = tools
        self._tools: dict[str, Tool] = {}
        definitions = []
        names = [name for name in tools if offered is None or offered(name)]
        taken = Counter(native_name("", name) for name in names)
        for name in names:
            native = native_name("", name)
            if taken[native] > 1:
                native = _told_apart(native, name)
            tool = self._tools[native] = tools[name]
            schema = tool.shown.get("inputSchema") or {"type": "object", "properties": {}}
            definitions.append(ToolDefinition(native, str(tool.shown.get("description") or ""), schema))
        self.definitions = tuple(definitions)

    def __contains__(self, native: str) -> bool:
        return native in self._tools

    def find(self, native: str) -> Tool:
        """A tool by the name that the model knows. Raises `MethodNotFound`."""
        if native not in self._tools:
            raise MethodNotFound(native)
        return self._tools[native]

    def shown_name(self, native: str) -> str:
        """The name of a tool for whoever looks: the hub's, unless it is none of the hub's."""
        tool = self._tools.get(native)
        return native if tool is None else tool.found.name


NO_TOOLS = Tools({})


def _told_apart(native: str, name: str) -> str:
    """A name that several tools would have, with a mark of its own for each."""
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{native[: MOST_LETTERS - 9]}_{mark}"


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
        self, tool: Tool, arguments: bytes, key: str, principal: Principal | None, report: Report
    ) -> ToolEnded | ToolAsks:
        """Call a tool, or find the call that was made before under this key; then as `current`.

        Raises why it may not be called, or not so.
        """
        found, durable = tool.found, self._durable
        name = None if principal is None else principal.name
        check_scopes(found.name, found.method.extras, principal)
        if not CAPABILITIES.issuperset(tool.requires):
            raise MidcallError(f"The client must be able to do: {', '.join(tool.requires)}")
        self._hub.calls.admit(name)
        record = new_record(CHAT, found.name, arguments, b"{}", name, key, durable.time_limit)
        dialect = ChatCall(durable, record, tool)
        call = self._hub.prepare(
            found, arguments, dialect, supported=KINDS, time_limit=durable.time_limit, principal=name
        )
        self._hub.calls.check_room(call)
        durable.admit(dialect, call)
        taken = await finished(durable.reserve(dialect))
        if taken is None:
            durable.start(dialect)
        return await self.current((taken or record).id, report)

    async def find(self, principal: str | None, key: str) -> str:
        """The id of the call that was made under a key. Raises `SessionLost`."""
        await self._durable.open()
        found = await self._durable.journal.find(principal, key)
        if found is None:
            raise SessionLost(GONE)
        return found.id

    async def current(self, call_id: str, report: Report) -> ToolEnded | ToolAsks:
        """How a call stands: what it asks, or what it came to. While it runs, wait for that.

        If its worker is gone, it goes on here. Raises `SessionLost`, or why it has no result.
        """
        durable = self._durable
        while True:
            live = durable.live.get(call_id)
            if isinstance(live, ChatCall) and live.runs:
                outcome = await live.outcome(report)
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
            asked = asked_in(record) if record.status == "waiting" and not is_answered(*found) else {}
            if asked:
                return ToolAsks(call_id, asked)
            claimed = await durable.take_up(record)
            if claimed == Gone("diverged"):
                raise _given_up("diverged")
            if isinstance(claimed, Detached):
                durable.resume(claimed)
            else:
                await durable.journal.wait(call_id, record.segment, LOOK)

    async def answer(self, call_id: str, results: Mapping[str, Any], places: Mapping[str, str]) -> None:
        """Answer questions of a call, by key: each with what an MCP client would give.

        `places` says where they were asked, if that is known: another one may have the same key by now. When
        this returns, the answers are in the journal. What cannot be read is asked again.
        """
        durable = self._durable
        await durable.open()
        given = await read_answers(durable, call_id, results, places or None)
        dialect: object = durable.live.get(call_id)
        with contextlib.suppress(UnknownQuestion, WrongAnswer):  # it has gone on in this moment
            if given.answers:
                dialect = await durable.answer(call_id, given.answers)
            elif given.notes and dialect is None and (found := await durable.journal.load(call_id)):
                dialect = await durable.take_up(found[0])
        if isinstance(dialect, Detached):
            dialect.note(given.notes)
            durable.resume(dialect)

    async def abort(self, principal: str | None, key: str, reason: str) -> None:
        """End the call that was made under a key, if there is one."""
        durable = self._durable
        if not durable.stopping:
            await durable.open()
        found = await durable.journal.find(principal, key)
        if found is not None:
            await durable.abort(found.id, reason, encode_outcome(McpError(INTERNAL_ERROR, reason)))


def _given_up(status: str) -> MidcallError:
    match status:
        case "diverged":
            return ToolError("This call cannot go on: its code has changed since it asked")
        case "poisoned":
            return ToolError("This call was given up: it brought down each worker that ran it")
    return SessionLost(GONE)

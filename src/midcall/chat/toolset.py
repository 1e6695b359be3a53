"""Toolset: the tools of a hub as the chat's model sees and calls them, for one person.

The chat calls them as any modern MCP client would, only without a wire: so a tool that asks is parked in the
journal, and what is kept here of it is its sealed state. A tool call is repeatable, by its idempotency key:
after a crash it is found again, not made again.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from midcall.client.client import Client
from midcall.client.native import MOST_LETTERS, native_name
from midcall.client.responses import Waiter, result_of
from midcall.client.results import text_of
from midcall.client.wire import About
from midcall.errors import MethodNotFound, MidcallError, RemoteError
from midcall.items import to_json
from midcall.jsonrpc import INVALID_PARAMS, Envelope
from midcall.models.base import ToolDefinition

IDEMPOTENCY_KEY = "dev.midcall/idempotencyKey"

Report: TypeAlias = Callable[[dict[str, Any]], None]
"""Gets what a tool says of its progress, as MCP has it."""


class Finished(Struct, frozen=True):
    """A tool call has ended."""

    content: str
    structured: Any = None
    is_error: bool = False


class Asked(Struct, frozen=True):
    """A tool call waits for answers."""

    requests: dict[str, dict[str, Any]]
    """What is asked: method and parameters as MCP has them, by key."""
    state: str


class SessionLost(MidcallError):
    """A tool call that waited cannot be gone on with: it is gone, was aborted, or its time was up."""

    code = "session_lost"


class NotNow(MidcallError):
    """A tool could not be called just now, or a call not gone on with: the same may be tried again."""

    code = "not_now"
    recoverable = True


class Toolset:
    """The tools that one person's chat has."""

    def __init__(
        self,
        client: Client,
        offered: Callable[[str], bool] | None = None,
        closing: Callable[[], bool] = lambda: False,
    ) -> None:
        """`offered` says which tools, by name; `closing`, whether the process is about to end."""
        self._client = client
        self._offered = offered
        self._closing = closing
        self._names: dict[str, str] = {}

    async def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools, under names that every provider takes."""
        tools = {str(tool.get("name")): tool for tool in await self._client.tools()}
        if self._offered is not None:
            tools = {name: tool for name, tool in tools.items() if self._offered(name)}
        taken = Counter(native_name("", name) for name in tools)
        names: dict[str, str] = {}
        found = []
        for name, tool in tools.items():
            native = native_name("", name)
            if taken[native] > 1:
                native = _told_apart(native, name)
            names[native] = name
            schema = tool.get("inputSchema") or {"type": "object", "properties": {}}
            found.append(ToolDefinition(native, str(tool.get("description") or ""), schema))
        self._names = names
        return tuple(found)

    async def name_of(self, native: str) -> str:
        """The name of a tool in the hub. Raises `MethodNotFound`."""
        if native not in self._names:
            await self.definitions()
        if native not in self._names:
            raise MethodNotFound(native)
        return self._names[native]

    def shown_name(self, native: str) -> str:
        """The name of a tool for whoever looks: the hub's, unless it is none of the hub's."""
        return self._names.get(native, native)

    async def begin(
        self, name: str, arguments: Mapping[str, Any], key: str, report: Report
    ) -> Finished | Asked:
        """Call a tool, or find the call that was made before under this key."""
        params = {"name": name, "arguments": dict(arguments)}
        return await self._round(name, params, report, {IDEMPOTENCY_KEY: key})

    async def go_on(
        self,
        name: str,
        arguments: Mapping[str, Any],
        state: str,
        answers: Mapping[str, Any],
        report: Report,
    ) -> Finished | Asked:
        """Go on with a call that waits. Raises `SessionLost` if it is gone."""
        params = {
            "name": name,
            "arguments": dict(arguments),
            "requestState": state,
            "inputResponses": dict(answers),
        }
        try:
            return await self._round(name, params, report, {})
        except RemoteError as error:
            if error.rpc_code == INVALID_PARAMS:
                raise SessionLost("The tool call is gone: it was ended, or its time was up") from None
            raise

    async def _round(
        self, name: str, params: dict[str, Any], report: Report, meta: dict[str, Any]
    ) -> Finished | Asked:
        while True:
            result = await self._request(name, params, report, meta)
            if result.get("resultType", "complete") != "input_required":
                content = result.get("content")
                return Finished(
                    text_of(content) or _described(content),
                    result.get("structuredContent"),
                    bool(result.get("isError")),
                )
            state = str(result.get("requestState", ""))
            if "inputRequests" in result:
                return Asked(result["inputRequests"], state)
            params = {**params, "requestState": state}  # it runs on elsewhere: wait for it
            params.pop("inputResponses", None)

    async def _request(
        self, name: str, params: dict[str, Any], report: Report, meta: dict[str, Any]
    ) -> dict[str, Any]:
        session = await self._client.session()
        waiter = _Waiting(report)
        id = session.start(
            waiter,
            About("tools/call", name),
            to_json(params)[1:-1],
            progress=True,
            meta=to_json(meta)[1:-1],
        )
        try:
            return await waiter.result
        except RemoteError as error:
            if isinstance(error.rpc_data, dict) and error.rpc_data.get("recoverable"):
                raise NotNow(str(error)) from error
            raise
        except asyncio.CancelledError:
            if not self._closing():  # else it runs on, and is found again
                session.cancel(id, "The chat was stopped")
            raise


class _Waiting(Waiter):
    """Waits for one result, and passes progress on."""

    __slots__ = ("_report", "result")

    def __init__(self, report: Report) -> None:
        self._report = report
        self.result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def answered(self, response: Envelope) -> None:
        if self.result.done():
            return
        try:
            self.result.set_result(result_of(response))
        except RemoteError as error:
            self.result.set_exception(error)

    def failed(self, error: MidcallError) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        if method == "notifications/progress":
            self._report(params)


def _told_apart(native: str, name: str) -> str:
    """A name that several tools would have, with a mark of its own for each."""
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{native[: MOST_LETTERS - 9]}_{mark}"


def _described(content: Any) -> str:
    """What of a result a model that reads only text can be told."""
    if not isinstance(content, list) or not content:
        return "(no output)"
    kinds = [str(block.get("type")) for block in content if isinstance(block, dict)]
    return f"({', '.join(kinds)})"

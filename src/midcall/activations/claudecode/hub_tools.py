"""The hub as an MCP server of Claude Code: its methods are tools there.

Claude Code reaches the server through the SDK, in this process. But it does not run the method: a tool use of
the hub is put off like any other (see `run`), the chat calls the method as a part of itself, and Claude Code
gets what came of it when it goes on. So a method that asks puts its questions to the caller of the chat, and
steps, answers and results are in the journal.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from midcall.activation import Method
from midcall.activations.claudecode.events import MOST_OUTPUT, cut
from midcall.activations.claudecode.permission import PendingTool
from midcall.ask import Ask, call_of
from midcall.errors import JournalError, MethodNotFound
from midcall.mount.within import call_within
from midcall.registry import Registry
from midcall.steps import said

log = logging.getLogger("midcall.claudecode")

ALL = "*"

LONGEST = 8 * MOST_OUTPUT
"""How many characters of a result Claude is given."""


class HubResult(Struct, frozen=True, omit_defaults=True):
    """What a method came to, for Claude."""

    text: str
    failed: bool = False


class HubTools:
    """Some methods of a hub, as Claude Code names them."""

    def __init__(self, hub: Registry, names: Sequence[str], without: object) -> None:
        self._hub = hub
        self._names = names
        self._without = without
        """An activation whose methods are not given: it would call itself."""

    @property
    def server(self) -> str:
        """What Claude Code calls the server: it puts _ in the place of other characters."""
        return re.sub(r"[^A-Za-z0-9_-]", "_", self._hub.root.name)

    def config(self, sdk: Any, call: Callable[[str, dict[str, Any]], Awaitable[HubResult]]) -> dict[str, Any]:
        """The server, for the SDK; nothing if no methods are given."""
        tools = [
            sdk.SdkMcpTool(name, method.description, _schema(method), _handler(f"{self._prefix}{name}", call))
            for name, (_, method) in self._given().items()
        ]
        return {self.server: sdk.create_sdk_mcp_server(self.server, tools=tools)} if tools else {}

    async def call(self, ask: Ask, pending: PendingTool) -> HubResult:
        """Call a method as a part of the call that asks."""
        path, _ = self._given().get(pending.tool.removeprefix(self._prefix), ("", None))
        found = self._hub.root.find(path)
        if found is None:
            return HubResult(str(MethodNotFound(path)), failed=True)
        call = call_of(ask)
        try:
            value = await call_within(call, self._hub.root, found, pending.input, ())
        except JournalError:
            raise
        except Exception as error:  # noqa: BLE001  Claude is told
            call.check_goes_on()
            return HubResult(cut(said(error), LONGEST), failed=True)
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return HubResult(cut(text, LONGEST))

    @property
    def _prefix(self) -> str:
        return f"mcp__{self.server}__"

    def _given(self) -> Mapping[str, tuple[str, Method]]:
        """The methods that are given, by the names of their tools, in which there may be no dot."""
        if not self._names:
            return {}
        own = [path for path, one in self._hub.root.activations() if one.source is self._without]
        found: dict[str, tuple[str, Method]] = {}
        for path, method in self._hub.root.methods():
            if _is_in(path, own) or not (ALL in self._names or _is_in(path, self._names)):
                continue
            if method.extras.get("scopes"):
                continue  # what the caller may do is not known any more when a chat goes on after a restart
            name = path.replace(".", "_")
            if found.setdefault(name, (path, method))[0] != path:
                log.warning("Claude Code is not given %s: another method has the same name there", path)
        return found


def _is_in(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _schema(method: Method) -> dict[str, Any]:
    return dict(method.extras.get("input_schema") or {"type": "object", **method.params})


def _handler(
    tool: str, call: Callable[[str, dict[str, Any]], Awaitable[HubResult]]
) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    async def handle(arguments: dict[str, Any]) -> dict[str, Any]:
        result = await call(tool, arguments)
        return {"content": [{"type": "text", "text": result.text}], "is_error": result.failed}

    return handle

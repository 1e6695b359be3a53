"""What each client script does, and how it says what it saw: one JSON line for each check.

A script is started as `SCRIPT MODE SERVER...`: a mode (legacy, modern or auto) and the server, which is a URL
or a command line. It adapts its client to `Client` and runs the checks, which report what they saw and judge
nothing: that is for `compliance/clients.py`. `checks.mjs` is the same for Node.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

MODERN = "2026-07-28"
SECONDS = 20
"""How long a client waits for one response."""

MODE, SERVER = sys.argv[1], sys.argv[2:]
OVER_HTTP = SERVER[0].startswith("http://")
OVER_SSE = OVER_HTTP and SERVER[0].endswith("/sse")

SUMMARY = "all is well"
_ANSWERS = {"confirmed": True, "text": "Ada", "choice": "large"}


class Result(NamedTuple):
    """What a tool gave."""

    text: str
    structured: Any
    failed: bool


class Client(Protocol):
    """A connected client."""

    async def revision(self) -> str:
        """The revision of the protocol that is spoken."""

    async def tools(self) -> list[str]:
        """The names of the server's tools."""

    async def call(
        self, name: str, arguments: dict[str, Any], on_progress: Callable[[float], None] | None = None
    ) -> Result:
        """Call a tool."""


class Person:
    """Answers the questions of a wizard, all of them or up to the second."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._action = "accept"

    def begin(self, action: str) -> None:
        """A new wizard begins, and its second question gets this action."""
        self.asked = []
        self._action = action

    def answer(self, schema: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """The action and the content for a question with this schema."""
        (field,) = schema["properties"]
        self.asked.append(field)
        if len(self.asked) == 2 and self._action != "accept":
            return self._action, None
        return "accept", {field: _ANSWERS[field]}


async def run(client: Client, person: Person) -> None:
    """Do all checks."""

    async def call() -> Any:
        return (await client.call("add", {"a": 2, "b": 3})).structured

    async def progress() -> list[float]:
        heard: list[float] = []
        await client.call("count", {"to": 4}, heard.append)
        return heard

    async def order(action: str) -> dict[str, Any]:
        person.begin(action)
        result = await client.call("order", {})
        return {"asked": person.asked, "text": result.text, "failed": result.failed}

    async def sample() -> str:
        return (await client.call("summarize", {"text": "a long story"})).text

    checks: dict[str, Callable[[], Awaitable[Any]]] = {
        "connect": client.revision,
        "list": client.tools,
        "call": call,
        "progress": progress,
        "accept": lambda: order("accept"),
        "decline": lambda: order("decline"),
        "cancel": lambda: order("cancel"),
        "sample": sample,
    }
    for name, check in checks.items():
        try:
            _report(name, saw=await check())
        except Exception as error:  # noqa: BLE001  whatever a client raises, the next check follows
            _report(name, failed=f"{type(error).__name__}: {error}")


def _report(check: str, **what: Any) -> None:
    print(json.dumps({"check": check, **what}), flush=True)

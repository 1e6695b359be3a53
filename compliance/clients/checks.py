"""What each client script does, and how it says what it saw: one JSON line for each check.

A script is started as `SCRIPT MODE SERVER...`: a mode (legacy, modern or auto) and the server, which is a URL
or a command line. It adapts its client to `Client` and runs the checks, or those that `MIDCALL_CHECKS` names.
They report what they saw and judge nothing: that is for `compliance/clients.py`. `checks.mjs` is the same for
Node.
"""

import json
import os
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
CONTEXT = "x-model-context"
MARKER = f"\n\n--{CONTEXT}: application/json\n"
ROUTE = {"origin": "Paris", "destination": "Rome"}
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
    """Answers a wizard's questions, all or up to the second, and those of a booking by what they show."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.shown: list[dict[str, Any]] = []
        self._action = "accept"

    def begin(self, action: str = "accept") -> None:
        """A new call begins, and its second question gets this action."""
        self.asked = []
        self.shown = []
        self._action = action

    def answer(self, message: str, schema: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """The action and the content for a question with this message and schema."""
        fields = list(schema["properties"])
        self.asked.append(" ".join(fields))
        if len(self.asked) == 2 and self._action != "accept":
            return self._action, None
        if fields[0] in _ANSWERS:
            return "accept", {fields[0]: _ANSWERS[fields[0]]}
        text, _, below = message.rpartition(MARKER)
        in_message = json.loads(below) if text else None
        in_schema = schema.get(CONTEXT)
        content = _picked(in_schema or in_message)
        shown = {"text": text or message, "inMessage": in_message, "inSchema": in_schema, "answer": content}
        self.shown.append(shown)
        return "accept", content


def _picked(context: Any) -> dict[str, Any]:
    """The cheapest flight, or the first seat that is free."""
    if "flights" in context:
        return {"flightId": min(context["flights"], key=lambda flight: flight["price"])["id"]}
    seats = context["seatMap"]
    return next(
        {"row": row, "seat": seat}
        for row in range(1, seats["rows"] + 1)
        for seat in seats["columns"]
        if f"{row}{seat}" not in seats["taken"]
    )


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

    async def book() -> dict[str, Any]:
        person.begin()
        result = await client.call("flights.book_flight", ROUTE)
        return {"asked": person.asked, "shown": person.shown, "ticket": result.structured}

    async def machine() -> dict[str, Any]:
        person.begin()
        result = await client.call("machines.greeting", {})
        return {"asked": person.asked, "event": result.structured}

    checks: dict[str, Callable[[], Awaitable[Any]]] = {
        "connect": client.revision,
        "list": client.tools,
        "call": call,
        "progress": progress,
        "accept": lambda: order("accept"),
        "decline": lambda: order("decline"),
        "cancel": lambda: order("cancel"),
        "sample": sample,
        "book": book,
        "machine": machine,
    }
    wanted = os.environ.get("MIDCALL_CHECKS", " ".join(checks)).split()
    for name, check in checks.items():
        if name not in wanted:
            continue
        try:
            _report(name, saw=await check())
        except Exception as error:  # noqa: BLE001  whatever a client raises, the next check follows
            _report(name, failed=f"{type(error).__name__}: {error}")


def _report(check: str, **what: Any) -> None:
    print(json.dumps({"check": check, **what}), flush=True)

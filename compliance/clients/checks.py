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
    """What a tool gave; a block of content is as in JSON."""

    content: list[dict[str, Any]]
    structured: Any
    failed: bool

    @property
    def text(self) -> str:
        return str(self.content[0]["text"])

    @property
    def seen(self) -> dict[str, Any]:
        """As `examples/twenty.json` has it."""
        if self.failed:
            return {"error": self.text}
        if self.structured is None:
            return {"content": [_block(one) for one in self.content]}
        is_wrapped = [*self.structured] == ["result"]
        return {"value": self.structured["result"] if is_wrapped else self.structured}


def _block(block: dict[str, Any]) -> Any:
    if block["type"] == "text":
        return block["text"]
    if block["type"] == "resource":
        return ["resource", block["resource"]["mimeType"], block["resource"]["text"]]
    return [block["type"], block["mimeType"], block["data"]]


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
        self._answers = _ANSWERS

    def begin(self, action: str = "accept", answers: dict[str, Any] = _ANSWERS) -> None:
        """A new call begins, and its second question gets this action, the others these answers by field."""
        self._answers = answers
        self.asked = []
        self.shown = []
        self._action = action

    def answer(self, message: str, schema: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """The action and the content for a question with this message and schema."""
        fields = list(schema["properties"])
        self.asked.append(" ".join(fields))
        if len(self.asked) == 2 and self._action != "accept":
            return self._action, None
        if fields[0] in self._answers:
            return "accept", {name: self._answers[name] for name in fields if name in self._answers}
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

    async def twenty(*, asks: bool) -> dict[str, Any]:
        saw = {}
        for one in json.loads(os.environ["MIDCALL_TWENTY"]):
            if ("answers" in one) is asks:
                person.begin(answers=one.get("answers", {}))
                saw[one["tool"]] = (await client.call(f"twenty.{one['tool']}", one["arguments"])).seen
        return saw

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
        "values": lambda: twenty(asks=False),
        "asks": lambda: twenty(asks=True),
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

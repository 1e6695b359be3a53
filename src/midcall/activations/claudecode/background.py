"""Chats in the background: started, then polled, by callers who do not stay on the line.

Each is a durable call of `chat` (see `midcall.plexus.subscriptions`), so it goes on after a crash, waits for
a permission as long as it takes, and can be followed over the WebSocket, listed and answered like any other.
Who polls is asked what it asks.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast

import msgspec
from msgspec import Struct

from midcall.ask import Ask, Asking, call_of
from midcall.errors import UnknownCall, UnknownQuestion, WrongAnswer
from midcall.items import Data, Done, Error, Item, Request, RequestCancelled, to_builtins, to_json
from midcall.journal.contract import ENDED, CallRecord
from midcall.journal.durable import DurableCalls
from midcall.journal.state import kind_of
from midcall.plexus.subscriptions import KIND
from midcall.principal import Principal
from midcall.questions import KINDS, answer_to_wire, question_from_wire, question_to_wire, read_answer, same

if TYPE_CHECKING:
    from midcall.plexus.protocol import Connection

StreamStatus: TypeAlias = Literal["running", "awaiting_permission", "complete", "failed"]

SCOPES = ("claudecode",)
"""What a caller's key needs for every method here."""

CATCHING_UP = 20.0
"""Seconds in which a chat that is taken up from the journal has to come to its question again."""

LISTED = 500
"""How many chats are looked through for a list."""


class NumberedEvent(Struct):
    """An event of a chat in the background."""

    seq: int
    event: Any


class StreamInfo(Struct):
    """A chat in the background."""

    stream_id: str
    session_name: str
    status: StreamStatus
    started_at: int


class StreamStarted(Struct, tag_field="type", tag="started"):
    """A chat has begun in the background."""

    stream_id: str
    session_id: str


class StreamPolled(Struct, tag_field="type", tag="events"):
    """What has happened in a chat since."""

    stream_id: str
    status: StreamStatus
    events: Sequence[NumberedEvent]
    read_position: int
    """The `from_seq` of the next poll."""
    total_events: int
    """How many there are so far."""
    has_more: bool
    error: str | None = None


class StreamList(Struct, tag_field="type", tag="streams"):
    """The caller's chats in the background, the newest first."""

    streams: Sequence[StreamInfo]


class Seen(Struct, frozen=True):
    """What a look at a chat has brought."""

    events: Sequence[Any]
    total: int
    """How many there are, with those before and after these."""
    status: StreamStatus
    asked: dict[str, Any] | None = None
    """The question that it waits with: its `request_id`, `key` and `question`, as on the wire."""
    error: str | None = None


class RelayedQuestion(Asking[Any]):
    """A question of a chat that is put to whoever polls; gives the answer as on the wire, a refusal too."""

    @classmethod
    def of(cls, ask: Ask, asked: dict[str, Any]) -> Self:
        question = question_from_wire(asked["question"])
        return cls(call_of(ask), question, same, None, "normal", asked["key"])

    def read(self, payload: Any) -> Any:
        return answer_to_wire(read_answer(self.question, payload))


class Follower:
    """Follows a call in this process, as a connection does that is attached to it."""

    full = False

    def __init__(self, caller: str | None) -> None:
        self.principal = None if caller is None else Principal(caller, frozenset(SCOPES))
        self.closed = False
        self.contents: list[Any] = []
        self.asked: dict[str, Request] = {}
        self.error: str | None = None
        self.ended = False
        self.changed = asyncio.Event()

    def send_item(self, call_id: str, item: Item, number: int | None = None) -> None:
        match item:
            case Data():
                self.contents.append(_plain(item.content))
            case Request():
                self.asked[item.request_id] = item
            case RequestCancelled():
                self.asked.pop(item.request_id, None)
            case Error():
                self.error = item.message
            case Done():
                self.ended = True
        self.changed.set()

    async def drain(self) -> None:
        """Never behind."""


class BackgroundChats:
    """The chats of a hub that nobody stays on the line for."""

    def __init__(self, durable: Callable[[], DurableCalls]) -> None:
        self._get = durable

    @property
    def _durable(self) -> DurableCalls:
        return self._get()

    async def start(self, caller: str | None, method: str, arguments: dict[str, Any]) -> str:
        """Start a chat; gives the id of its call."""
        await self._durable.open()
        peer = cast("Connection", Follower(caller))
        try:
            return await self._durable.subscriptions.subscribe(peer, method, to_json(arguments), KINDS)
        finally:
            self._durable.subscriptions.detach(peer)

    async def look(
        self, caller: str | None, method: str, id: str, after: int, limit: int, wait: float
    ) -> Seen:
        """What has happened after so many events, not more than a limit; waits for something new.

        Raises `UnknownCall`.
        """
        record = await self._record(caller, method, id)
        if record.status == "running" and self._durable.live.get(id) is None:
            return Seen((), after, "running")  # at another worker
        follower = Follower(caller)
        peer = cast("Connection", follower)
        until = time.monotonic() + wait
        await self._durable.subscriptions.attach(peer, id, after)
        try:
            while True:
                follower.changed.clear()
                enough = follower.ended or follower.asked
                record = await self._record(caller, method, id)
                late = time.monotonic() > until + (CATCHING_UP if record.status == "waiting" else 0.0)
                if enough or late or (follower.contents and record.status != "waiting"):
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await follower.changed.wait()
        finally:
            self._durable.subscriptions.detach(peer)
        asked = next((_asked(request) for request in follower.asked.values()), None)
        status = _status(record) if asked is None else "awaiting_permission"
        events = follower.contents
        return Seen(events[:limit], after + len(events), status, asked, follower.error)

    async def answer(self, caller: str | None, method: str, id: str, given: dict[str, Any]) -> None:
        """Pass an answer on. Nothing happens if the question is answered already."""
        await self._record(caller, method, id)
        with contextlib.suppress(UnknownQuestion, WrongAnswer):
            await self._durable.answer(id, given)

    async def list(self, caller: str | None, method: str) -> Sequence[StreamInfo]:
        """The chats of a caller, the newest first."""
        await self._durable.open()
        page = await self._durable.journal.list(principal=caller, name=method, limit=LISTED)
        return [_info(one) for one in page.calls if one.principal == caller and kind_of(one) == KIND]

    async def _record(self, caller: str | None, method: str, id: str) -> CallRecord:
        await self._durable.open()
        found = await self._durable.journal.load(id)
        if (
            found is None
            or found[0].principal != caller
            or found[0].name != method
            or kind_of(found[0]) != KIND
        ):
            raise UnknownCall(id)
        return found[0]


def _asked(request: Request) -> dict[str, Any]:
    question = to_builtins(question_to_wire(request.request_type))
    return {"request_id": request.request_id, "key": request.key, "question": question}


def _status(record: CallRecord) -> StreamStatus:
    match record.status:
        case "waiting":
            return "awaiting_permission"
        case "completed":
            return "complete"
        case status if status in ENDED or status == "diverged":
            return "failed"
    return "running"


def _info(record: CallRecord) -> StreamInfo:
    given = msgspec.json.decode(record.arguments or b"{}")
    name = str(given.get("session_name") or "")
    return StreamInfo(record.id, name, _status(record), int(record.created))


def _plain(content: Any) -> Any:
    return msgspec.json.decode(content) if isinstance(content, msgspec.Raw) else to_builtins(content)

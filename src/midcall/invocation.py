"""Invocation: a caller's end of one call.

Iterate it for the items, await it for the collected result, answer its questions by hand or let a
handler do it. The same class serves a hub in this process and a remote one: what differs is the
`Line` behind it.
"""

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Protocol, TypeAlias

from midcall.errors import (
    Aborted,
    Cancelled,
    Declined,
    MidcallError,
    NotSupported,
    TimedOut,
    ToolError,
    TooManyCalls,
    TransportLost,
    UnknownQuestion,
    WrongType,
)
from midcall.items import Background, Data, Done, Error, Item, Outlet, Request, RequestCancelled

Answerer: TypeAlias = Callable[[Request], Any]
"""A handler of questions, plain or async: gets the `Request`, gives the answer in any accepted form."""

BUFFER = 64
"""How many items a reader may be behind before the tool is slowed down."""


class Line(Protocol):
    """The way from an invocation to its call."""

    async def start(self, outlet: Outlet) -> None:
        """Start the call; its items go to the outlet."""

    async def streaming(self) -> bool:
        """Whether the method gives a stream."""

    async def answer(self, request_id: str, payload: Any) -> None:
        """Pass on an answer."""

    async def close(self, reason: str) -> None:
        """Stop the call if it runs, and wait for its end."""

    async def leave(self) -> None:
        """The reader is gone: so is the call, unless it is durable."""

    @property
    def call_id(self) -> str:
        """The name of the call, once it is started."""

    @property
    def handle(self) -> dict[str, Any] | None:
        """What the call is found again by on an MCP server, once it has asked there."""
        return None

    @property
    def failure(self) -> MidcallError | None:
        """What the call failed with, if that is known better than its error item says."""
        return None


class Inbox:
    """A bounded queue of items between a call and its reader; it is the call's outlet."""

    __slots__ = ("_closed", "_failure", "_items", "_reader", "_writers")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._failure: BaseException | None = None
        self._closed = False

    @property
    def full(self) -> bool:
        return len(self._items) >= BUFFER and not self._closed

    def put(self, item: Item) -> None:
        if not self._closed and not isinstance(item, Background):
            self._items.append(item)
            _wake(self._reader)

    async def drain(self) -> None:
        while self.full:
            writer = asyncio.get_running_loop().create_future()
            self._writers.append(writer)
            await writer

    async def get(self) -> Item:
        while not self._items and self._failure is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._failure is not None:
            raise self._failure
        item = self._items.popleft()
        self._let_writers_go()
        return item

    def fail(self, error: BaseException) -> None:
        """Make the reader raise."""
        self._failure = error
        _wake(self._reader)

    def close(self) -> None:
        """The reader is gone: nothing is kept any more, nobody is slowed down."""
        self._closed = True
        self._items.clear()
        self._let_writers_go()

    def _let_writers_go(self) -> None:
        if self._writers and not self.full:
            for writer in self._writers:
                _wake(writer)
            self._writers.clear()


class Invocation:
    """One call, seen from the caller. Use it once: iterate it, or await it."""

    def __init__(self, line: Line, answer: Answerer | None = None) -> None:
        self._line = line
        self._answer = answer
        self._inbox = Inbox()
        self._given: dict[str, Any] = {}
        """What the answerer has said, by question: it is not asked twice."""
        self._used = False

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._read()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._collect().__await__()

    @property
    def call_id(self) -> str:
        """The name of the call, once it is started; a durable one is found again by it."""
        return self._line.call_id

    @property
    def handle(self) -> dict[str, Any] | None:
        """What a call of an MCP server is found again by, once it has asked (see `Client.resume`)."""
        return self._line.handle

    async def answer(self, request_id: str, payload: Any) -> None:
        """Answer a question of this call. Raises `UnknownQuestion` or `WrongAnswer`."""
        await self._line.answer(request_id, payload)

    async def cancel(self, reason: str = "The caller cancelled the call") -> None:
        """Stop the call and wait until it has ended."""
        await self._line.close(reason)

    async def _collect(self) -> Any:
        """The result; of a stream, the list of its elements. Raises what the call failed with."""
        contents = []
        failure: Error | None = None
        async for item in self._read():
            match item:
                case Data():
                    contents.append(item.content)
                case Error():
                    failure = item
        if failure is not None:
            raise self._line.failure or error_from_item(failure)
        if await self._line.streaming():
            return contents
        return contents[0] if contents else None

    async def _read(self) -> AsyncIterator[Item]:
        if self._used:
            raise RuntimeError("This invocation was used already; call the method again")
        self._used = True
        handlers: dict[str, asyncio.Task[None]] = {}
        await self._line.start(self._inbox)
        try:
            while True:
                item = await self._inbox.get()
                match item:
                    case Request() if item.request_id in handlers:
                        continue  # a durable call, on a new connection: the answer is on its way
                    case Request() if self._answer is not None:
                        handler = asyncio.create_task(self._handle(self._answer, item))
                        handlers[item.request_id] = handler
                        handler.add_done_callback(functools.partial(_drop, handlers, item.request_id))
                    case RequestCancelled() if item.request_id in handlers:
                        handlers[item.request_id].cancel()
                yield item
                if isinstance(item, Done):
                    return
        finally:
            self._inbox.close()
            answering = list(handlers.values())
            for handler in answering:
                handler.cancel()
            await self._line.leave()
            if answering:
                await asyncio.wait(answering)

    async def _handle(self, answer: Answerer, request: Request) -> None:
        try:
            if request.request_id not in self._given:  # else a durable call asks on a new connection
                payload = answer(request)
                if inspect.isawaitable(payload):
                    payload = await payload
                self._given[request.request_id] = payload
            await self._line.answer(request.request_id, self._given[request.request_id])
        except UnknownQuestion:
            pass  # it was withdrawn, or answered by somebody else, while the handler thought
        except Exception as error:  # noqa: BLE001  the handler is the caller's: so is its error
            self._inbox.fail(error)


_BY_CODE: dict[str, type[MidcallError]] = {
    kind.code: kind
    for kind in (Aborted, NotSupported, TimedOut, Cancelled, Declined, WrongType, TransportLost, TooManyCalls)
}


def error_from_code(code: str, message: str, *, recoverable: bool) -> MidcallError:
    """The exception that a call failed with, from the short word that went over the wire."""
    kind = _BY_CODE.get(code)
    if kind is not None:
        return kind(message)
    return ToolError(message, code=code, recoverable=recoverable)


def error_from_item(item: Error) -> MidcallError:
    """The exception that an error item stands for."""
    return error_from_code(item.code, item.message, recoverable=item.recoverable)


def _drop(handlers: dict[str, asyncio.Task[None]], request_id: str, _: asyncio.Task[None]) -> None:
    handlers.pop(request_id, None)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)

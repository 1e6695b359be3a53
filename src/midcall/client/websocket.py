"""The Python client of a hub's WebSocket: call its methods, answer its questions.

    async with connect("ws://127.0.0.1:8000/ws") as remote:
        async for item in remote.call("files.delete", {"ids": ["a"]}, answer=handler): ...
        result = await remote.call("echo.once", {"message": "hi"})

A lost connection is opened again with growing pauses. What was running over it fails with
`TransportLost`, as the server has ended it; what is called in the meantime waits for the new one.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import msgspec
import websockets.asyncio.client
from msgspec import UNSET
from websockets.exceptions import WebSocketException

from midcall import jsonrpc
from midcall.errors import (
    InvalidArguments,
    MethodNotFound,
    MidcallError,
    NotAllowed,
    RemoteError,
    TransportLost,
    UnknownQuestion,
    WrongAnswer,
)
from midcall.invocation import Answerer, Invocation, Line, error_from_code
from midcall.items import Done, Error, Log, Metadata, decode_item, to_json
from midcall.jsonrpc import Envelope, Pending
from midcall.outlet import Outlet
from midcall.questions import KINDS, Answer, answer_to_wire

log = logging.getLogger("midcall.client")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0

Waiter = Callable[[Envelope | None], None]
"""Gets the response to a request, or `None` when the line is lost."""


def connect(
    url: str, *, headers: dict[str, str] | None = None, give_up_after: float | None = 60.0
) -> "Remote":
    """A connection to a midcall server's WebSocket; use it with `async with`.

    `give_up_after` is how many seconds a call waits for a connection that cannot be opened; `None`
    is for ever.
    """
    return Remote(url, headers or {}, give_up_after)


class Remote:
    """A hub at the other end of a WebSocket."""

    def __init__(self, url: str, headers: dict[str, str], give_up_after: float | None) -> None:
        self._url = url
        self._headers = headers
        self._give_up_after = give_up_after
        self._pending: Pending[Waiter] = Pending()
        self._outlets: dict[str, Outlet] = {}
        self._socket: websockets.asyncio.client.ClientConnection | None = None
        self._opened = asyncio.Event()
        self._failure: Exception | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._streaming: dict[str, bool] = {}

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep_open())
        try:
            await self._line()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; what still runs over it fails."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper

    # --- what a caller does ------------------------------------------------------------------

    def call(
        self,
        name: str,
        params: Any = None,
        *,
        answer: Answerer | None = None,
        supports: Iterable[str] | None = None,
    ) -> Invocation:
        """Call a method: iterate for its items, or await its result. As `Hub.call`."""
        if supports is None:
            supports = KINDS if answer is not None else ()
        return Invocation(_RemoteLine(self, name, params, sorted(supports)), answer)

    async def request(self, method: str, params: Any = None) -> Any:
        """A plain request: the collected result."""
        response = await self._exchange(method, params, None)
        return msgspec.json.decode(response.result) if bytes(response.result) else None

    async def schema(self, method: str | None = None) -> Any:
        """The schema of the whole hub, or of one method."""
        return await self.request("plexus_schema", {} if method is None else {"method": method})

    async def streaming(self, method: str) -> bool:
        """Whether a method gives a stream."""
        if method not in self._streaming:
            self._streaming[method] = bool((await self.schema(method))["streaming"])
        return self._streaming[method]

    async def subscribe(self, name: str, params: Any, supports: list[str], outlet: Outlet) -> str:
        """Start a call whose items go to the outlet; gives its id."""

        def began(response: Envelope) -> None:
            self._outlets[msgspec.json.decode(response.result)] = outlet

        asked = {"method": name, "supports": supports} | ({} if params is None else {"params": params})
        response = await self._exchange("plexus_subscribe", asked, began)
        return str(msgspec.json.decode(response.result))

    async def answer(self, subscription: str, request_id: str, payload: Any) -> None:
        """Answer a question of a running call."""
        wire = answer_to_wire(payload) if isinstance(payload, Answer) else payload
        await self.request("plexus_respond", [subscription, request_id, wire])

    async def unsubscribe(self, subscription: str) -> None:
        """Stop a call; nothing comes from it any more."""
        if self._outlets.pop(subscription, None) is not None:
            with contextlib.suppress(TransportLost):
                await self.request("plexus_unsubscribe", [subscription])

    # --- messages ----------------------------------------------------------------------------

    async def _exchange(
        self, method: str, params: Any, on_success: Callable[[Envelope], None] | None
    ) -> Envelope:
        socket = await self._line()
        done: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()

        def settle(response: Envelope | None) -> None:
            if response is not None and response.error is UNSET and on_success is not None:
                on_success(response)  # in the reader, so that nothing that follows comes too early
            if done.done():
                return
            if response is None:
                done.set_exception(TransportLost("The connection was lost"))
            elif response.error is not UNSET:
                done.set_exception(_error(response.error))
            else:
                done.set_result(response)

        id = self._pending.add(settle)
        try:
            await socket.send(
                jsonrpc.request(id, method, b"{}" if params is None else to_json(params)), text=True
            )
            return await done
        except WebSocketException as error:
            raise TransportLost(f"The connection was lost: {error}") from error
        finally:
            if not done.done():
                self._pending.take(id)

    async def _line(self) -> websockets.asyncio.client.ClientConnection:
        """The open connection, waiting for it if need be."""
        if self._keeper is None or self._keeper.done():
            raise TransportLost("This connection is closed")
        if self._socket is None:
            try:
                async with asyncio.timeout(self._give_up_after):
                    await self._opened.wait()
            except TimeoutError:
                raise TransportLost(f"Cannot connect to {self._url}: {self._failure}") from self._failure
        assert self._socket is not None  # noqa: S101  set before the event
        return self._socket

    async def _keep_open(self) -> None:
        """Open, read until it is lost, open again."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with websockets.asyncio.client.connect(
                    self._url, additional_headers=self._headers, max_size=None
                ) as socket:
                    pause = FIRST_PAUSE
                    self._socket = socket
                    self._opened.set()
                    async for message in socket:
                        await self._take(message.encode() if isinstance(message, str) else message)
            except (OSError, WebSocketException, TimeoutError) as error:
                self._failure = error
                log.info("No connection to %s (%s); trying again in %.1f s", self._url, error, pause)
            finally:
                self._socket = None
                self._opened.clear()
                self._lose_all()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  jitter, no secret
            pause = min(pause * 2, LONGEST_PAUSE)

    def _lose_all(self) -> None:
        for settle in self._pending.take_all():
            settle(None)
        here = Metadata((), "", 0)
        for outlet in self._outlets.values():
            outlet.put(Error(here, "The connection was lost", TransportLost.code, recoverable=True))
            outlet.put(Done(here))
        self._outlets.clear()

    async def _take(self, data: bytes) -> None:
        try:
            message = jsonrpc.decode(data)
        except jsonrpc.Fault as fault:
            log.warning("Not understood: %s", fault)
            return
        if not isinstance(message, Envelope):
            return
        if message.method is UNSET:
            settle = self._pending.take(message.id)
            if settle is not None:
                settle(message)
        elif message.method in ("plexus_subscription", "plexus_log"):
            await self._deliver(message)

    async def _deliver(self, message: Envelope) -> None:
        params = msgspec.json.decode(message.params, type=_ItemParams)
        outlet = self._outlets.get(params.subscription)
        if outlet is None:
            return
        if message.method == "plexus_log":
            outlet.put(Log(Metadata((), "", 0), params.level, params.message, params.data))
            return
        item = decode_item(params.result)
        if isinstance(item, Done):
            del self._outlets[params.subscription]
        outlet.put(item)


class _ItemParams(msgspec.Struct):
    subscription: str
    result: msgspec.Raw = msgspec.Raw()
    level: str = "info"
    message: str = ""
    data: Any = None


class _RemoteLine(Line):
    """A line to a hub behind a WebSocket."""

    def __init__(self, remote: Remote, name: str, params: Any, supports: list[str]) -> None:
        self._remote = remote
        self._name = name
        self._params = params
        self._supports = supports
        self._id = ""

    async def start(self, outlet: Outlet) -> None:
        self._id = await self._remote.subscribe(self._name, self._params, self._supports, outlet)

    async def streaming(self) -> bool:
        return await self._remote.streaming(self._name)

    async def answer(self, request_id: str, payload: Any) -> None:
        await self._remote.answer(self._id, request_id, payload)

    async def close(self, reason: str) -> None:
        await self._remote.unsubscribe(self._id)


def _error(error: jsonrpc.ErrorObject) -> MidcallError:
    """The exception that the server's error stands for: the same as if the hub were here."""
    data = error.data if isinstance(error.data, dict) else {}
    match data.get("code"):
        case MethodNotFound.code:
            return MethodNotFound(data.get("name", ""), data.get("near", ()))
        case InvalidArguments.code:
            return InvalidArguments(data.get("method", ""), data.get("errors", ()))
        case NotAllowed.code:
            return NotAllowed(data.get("method", ""), data.get("scopes", ()))
        case UnknownQuestion.code:
            return UnknownQuestion(data.get("request_id", ""))
        case WrongAnswer.code:
            return WrongAnswer(data.get("expected", ""))
        case str(code):
            return error_from_code(code, error.message, recoverable=bool(data.get("recoverable")))
        case _:
            return RemoteError(error.message, rpc_code=error.code, rpc_data=error.data)

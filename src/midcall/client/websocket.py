"""The Python client of a hub's WebSocket: call its methods, answer its questions.

    async with connect_hub("ws://127.0.0.1:8000/ws") as remote:
        async for item in remote.call("files.delete", {"ids": ["a"]}, answer=handler): ...
        result = await remote.call("echo.once", {"message": "hi"})

A lost connection is opened again with growing pauses. What was running over it fails with
`TransportLost`, as the server has ended it; what is called in the meantime waits for the new one. A call
that was started with `durable=True` goes on instead, also if the server was started anew in between.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
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
    NotSupported,
    RateLimited,
    RemoteError,
    TransportLost,
    UnknownQuestion,
    WrongAnswer,
)
from midcall.hub import ATTACHED_TIME_LIMIT
from midcall.invocation import Answerer, Invocation, Line, error_from_code
from midcall.items import Done, Error, Log, Metadata, Outlet, Request, decode_item, to_json
from midcall.jsonrpc import Envelope, PendingRequests
from midcall.questions import KINDS, Answer, Url, answer_to_wire, check_address

log = logging.getLogger("midcall.client")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0

Waiter = Callable[[Envelope | None], None]
"""Gets the response to a request, or `None` when the line is lost."""


def connect_hub(
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
        self._pending: PendingRequests[Waiter] = PendingRequests()
        self._outlets: dict[str, Outlet] = {}
        self._going_on: dict[str, asyncio.Task[None]] = {}
        """What attaches the durable calls to the present connection."""
        self._durable: dict[str, int] = {}
        """The durable calls, and how many elements of each have come."""
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
        durable: bool = False,
        time_limit: float | None = ATTACHED_TIME_LIMIT,
    ) -> Invocation:
        """Call a method: iterate for its items, or await its result. As `Hub.call`.

        A `durable` call is kept by the server: it survives a lost connection and a restart, and waits for as
        long as the server says. In others, a question waits `time_limit` seconds if the tool does not say.
        """
        if supports is None:
            supports = KINDS if answer is not None else ()
        can = sorted(supports)

        def begin(outlet: Outlet) -> Awaitable[str]:
            return self.subscribe(name, params, can, outlet, durable=durable, time_limit=time_limit)

        return Invocation(_RemoteLine(self, begin, name=name, durable=durable), answer)

    def attach(self, call_id: str, *, after: int = 0, answer: Answerer | None = None) -> Invocation:
        """Go on with a durable call that was started before, perhaps by another process.

        `after` is how many elements of its result are known already.
        """

        def begin(outlet: Outlet) -> Awaitable[str]:
            return self.reattach(call_id, after, outlet)

        return Invocation(_RemoteLine(self, begin, call_id=call_id, durable=True), answer)

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

    async def subscribe(
        self,
        name: str,
        params: Any,
        supports: list[str],
        outlet: Outlet,
        *,
        durable: bool = False,
        time_limit: float | None = ATTACHED_TIME_LIMIT,
    ) -> str:
        """Start a call whose items go to the outlet; gives its id."""

        def began(response: Envelope) -> None:
            id = msgspec.json.decode(response.result)
            self._outlets[id] = outlet
            if durable:
                self._durable[id] = 0

        asked: dict[str, Any] = {"method": name, "supports": supports}
        asked |= ({} if params is None else {"params": params}) | ({"durable": True} if durable else {})
        if time_limit != ATTACHED_TIME_LIMIT:
            asked["time_limit"] = time_limit  # a server of before does not know it
        response = await self._exchange("plexus_subscribe", asked, began)
        return str(msgspec.json.decode(response.result))

    async def reattach(self, call_id: str, after: int, outlet: Outlet) -> str:
        """Go on with a durable call, whose items go to the outlet; gives its id."""
        self._outlets[call_id] = outlet
        self._durable[call_id] = after
        try:
            await self._exchange("plexus_attach", {"call": call_id, "after": after}, None)
        except MidcallError:
            self.forget(call_id)
            raise
        return call_id

    async def answer(self, subscription: str, request_id: str, payload: Any) -> None:
        """Answer a question of a running call: of a durable one, if need be, over the next connection."""
        wire = answer_to_wire(payload) if isinstance(payload, Answer) else payload
        said = False
        while True:
            await self._line()
            if subscription in self._going_on:  # only who follows a call may answer it
                await asyncio.wait((self._going_on[subscription],))
            try:
                await self.request("plexus_respond", [subscription, request_id, wire])
            except TransportLost:
                if subscription not in self._durable:
                    raise
                said = True  # nobody knows whether it was heard
            except UnknownQuestion:
                if not said:
                    raise
                return
            else:
                return

    async def unsubscribe(self, subscription: str) -> None:
        """Stop a call; nothing comes from it any more."""
        if self.forget(subscription):
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
        while self._socket is None:  # it may be lost again before this goes on
            try:
                async with asyncio.timeout(self._give_up_after):
                    await self._opened.wait()
            except TimeoutError:
                raise TransportLost(f"Cannot connect to {self._url}: {self._failure}") from self._failure
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
                    self._going_on = {id: asyncio.create_task(self._go_on(id)) for id in self._durable}
                    async for message in socket:
                        await self._take(message.encode() if isinstance(message, str) else message)
            except (OSError, WebSocketException, TimeoutError) as error:
                self._failure = error
                log.info("No connection to %s (%s); trying again in %.1f s", self._url, error, pause)
            finally:
                for task in self._going_on.values():
                    task.cancel()
                self._socket = None
                self._opened.clear()
                self._lose_all()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  jitter, no secret
            pause = min(pause * 2, LONGEST_PAUSE)

    def _lose_all(self) -> None:
        for settle in self._pending.take_all():
            settle(None)
        for id in [id for id in self._outlets if id not in self._durable]:
            self._lose(id, TransportLost("The connection was lost"))

    def _lose(self, subscription: str, error: MidcallError) -> None:
        outlet = self._outlets[subscription]
        self.forget(subscription)
        here = Metadata((), "", 0)
        outlet.put(Error(here, str(error), error.code, recoverable=True))
        outlet.put(Done(here))

    def forget(self, subscription: str) -> bool:
        """Take no more items of a call. False if none were taken."""
        self._durable.pop(subscription, None)
        return self._outlets.pop(subscription, None) is not None

    async def _go_on(self, call_id: str) -> None:
        """Attach a durable call to the new connection; the server may need a moment to take it over."""
        pause = FIRST_PAUSE
        while call_id in self._durable:
            asked = {"call": call_id, "after": self._durable[call_id]}
            try:
                await self._exchange("plexus_attach", asked, None)
            except TransportLost:
                return  # the next connection does this again
            except MidcallError as error:
                if pause > LONGEST_PAUSE:
                    self._lose(call_id, error)
                    return
                await asyncio.sleep(pause)
                pause *= 2
            else:
                return

    async def _take(self, data: bytes) -> None:
        try:
            message = jsonrpc.decode(data)
        except jsonrpc.Fault as fault:
            log.warning("Not understood: %s", fault)
            settle = self._pending.take(fault.id)
            if settle is not None:  # it was to be a response
                settle(Envelope(error=jsonrpc.ErrorObject(fault.code, fault.message)))
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
        if isinstance(item, Request) and isinstance(item.request_type, Url):
            try:
                check_address(item.request_type.url)
            except ValueError as error:
                self._lose(params.subscription, NotSupported(str(error)))
                return
        if isinstance(item, Done):
            self.forget(params.subscription)
        elif params.number is not None:
            if params.number <= self._durable.get(params.subscription, 0):
                return  # it has come before
            self._durable[params.subscription] = params.number
        outlet.put(item)


class _ItemParams(msgspec.Struct):
    subscription: str
    result: msgspec.Raw = msgspec.Raw()
    number: int | None = None
    level: str = "info"
    message: str = ""
    data: Any = None


class _RemoteLine(Line):
    """A line to a call of a hub behind a WebSocket."""

    def __init__(
        self,
        remote: Remote,
        begin: Callable[[Outlet], Awaitable[str]],
        *,
        name: str | None = None,
        call_id: str = "",
        durable: bool,
    ) -> None:
        """`begin` has the items of the call go to an outlet, and gives its id; a new call has a `name`."""
        self._remote = remote
        self._begin = begin
        self._name = name
        self._durable = durable
        self._id = call_id

    async def start(self, outlet: Outlet) -> None:
        self._id = await self._begin(outlet)

    async def streaming(self) -> bool:
        return self._name is not None and await self._remote.streaming(self._name)

    async def answer(self, request_id: str, payload: Any) -> None:
        await self._remote.answer(self._id, request_id, payload)

    async def close(self, reason: str) -> None:
        await self._remote.unsubscribe(self._id)

    async def leave(self) -> None:
        if self._durable:
            self._remote.forget(self._id)
        else:
            await self._remote.unsubscribe(self._id)

    @property
    def call_id(self) -> str:
        return self._id


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
        case RateLimited.code:
            return RateLimited(error.message, data.get("retry_after", 1))
        case UnknownQuestion.code:
            return UnknownQuestion(data.get("request_id", ""))
        case WrongAnswer.code:
            return WrongAnswer(data.get("expected", ""))
        case str(code):
            return error_from_code(code, error.message, recoverable=bool(data.get("recoverable")))
        case _:
            return RemoteError(error.message, rpc_code=error.code, rpc_data=error.data)

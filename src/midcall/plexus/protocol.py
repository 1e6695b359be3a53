"""The hub's own protocol with one peer, over raw stdio or WebSocket.

Whole messages go in at `receive`, whole messages come out at `send`; the transport around it owns the
bytes. A peer calls methods as plain requests (the collected result comes back) or subscribes to them
(items come as notifications, and questions are answered while the call runs). Only the peer that
started a call can answer its questions. Knows the hub and JSON-RPC, no socket and no pipe.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from midcall import jsonrpc
from midcall.call import Call
from midcall.calls import end_all
from midcall.errors import (
    MethodNotFound,
    MidcallError,
    NotDurable,
    ToolError,
    TooManyCalls,
    UnknownQuestion,
)
from midcall.hub import ATTACHED_TIME_LIMIT, Hub
from midcall.items import Background, Data, Done, Error, Item, Log, encode_item, to_json
from midcall.jsonrpc import Batch, BatchReply, Envelope, Fault, Id
from midcall.limits import Key, Name
from midcall.principal import CallSource, Principal, RequestInfo, check_scopes
from midcall.questions import KINDS, PERSON_KINDS

if TYPE_CHECKING:
    from midcall.mcp.peer import McpPeer
    from midcall.plexus.subscriptions import DurableSubscriptions

log = logging.getLogger("midcall.connection")

MAX_MESSAGE = 16 * 1024 * 1024
"""The largest message that is read, in bytes; a larger one is answered with an error."""

TOO_LARGE = f"The result has more than {MAX_MESSAGE} bytes: it can only be read as a stream"

MAX_CALLS = 10_000
"""How many calls one peer may have at once."""

Send = Callable[[bytes], None]


class Connection:
    """One peer: its running calls, and the way back to it."""

    def __init__(
        self,
        hub: Hub,
        send: Send,
        *,
        raw: bool = True,
        max_calls: int = MAX_CALLS,
        principal: Principal | None = None,
        info: RequestInfo | None = None,
    ) -> None:
        """`info` is what the transport knows of the peer."""
        self.principal = principal
        self.info = info
        self.closed = False
        self._principal_name = None if principal is None else principal.name
        self.loop = asyncio.get_running_loop()
        self._hub = hub
        self._raw = raw
        self._send = send
        self._max_calls = max_calls
        self._calls: dict[object, Call] = {}  # by outlet: `PlainReply` or `Subscription`
        self._subscriptions: dict[str, Subscription] = {}
        self._replying: set[asyncio.Task[None]] = set()
        self._paused = False
        self._drained: list[asyncio.Future[None]] = []
        self._own: dict[str, Callable[[bytes], Any]] = {
            "plexus_subscribe": self._subscribe,
            f"{hub.name}.call": self._subscribe,
            "plexus_respond": self._respond,
            f"{hub.name}.respond": self._respond,
            "plexus_attach": self._attach,
            f"{hub.name}.attach": self._attach,
            "plexus_unsubscribe": self._unsubscribe,
            f"{hub.name}.call_unsub": self._unsubscribe,
        }
        self._looks = {f"{hub.name}.schema", f"{hub.name}.hash", "plexus_schema", "plexus_hash"}
        """What only tells of the hub: it does not count as a call of its tools."""
        self._others: list[McpPeer] = [protocol.connect(self) for protocol in hub.protocols]
        """The protocols of extensions, which are asked first whether a message is theirs."""

    # --- messages in -------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take one message. Never raises and never waits."""
        if len(data) > MAX_MESSAGE:
            self.refuse_large()
            return
        try:
            message = jsonrpc.decode(data)
        except Fault as fault:
            self._send(fault.response())
            return
        if isinstance(message, Envelope):
            self._take(message, self._send)
        else:
            self._take_batch(message)

    def refuse_large(self) -> None:
        """Tell the peer that a message was too large to be read."""
        text = f"Invalid Request: a message may have {MAX_MESSAGE} bytes at most"
        self._send(jsonrpc.error_response(None, jsonrpc.INVALID_REQUEST, text))

    def _take_batch(self, batch: Batch) -> None:
        expected = sum(isinstance(m, Fault) or _wants_response(m) for m in batch.members)
        reply: Send = BatchReply(expected, self._send) if expected else _discard
        for member in batch.members:
            if isinstance(member, Fault):
                reply(member.response())
            else:
                self._take(member, reply)

    def _take(self, message: Envelope, reply: Send) -> None:
        for other in self._others:
            if other.take(message, reply):
                return
        if message.method is UNSET:
            return  # a response, though nothing was asked this way: ignored, as the specification says
        if message.id is UNSET:
            reply = _discard
        id: Id = None if message.id is UNSET else message.id
        params = bytes(message.params)
        own = self._own.get(message.method)
        try:
            if not self._raw:
                self._refuse(message.method)
            if own is None:
                self._reply(message.method, params, PlainReply(self, id, reply))
                return
            answer = own(params)
        except Exception as error:  # noqa: BLE001  the peer is told
            reply(_error_for(id, message.method, error))
        else:
            if isinstance(answer, Awaitable):
                task = self.loop.create_task(self._reply_later(id, message.method, answer, reply))
                self._replying.add(task)
                task.add_done_callback(self._replying.discard)
            else:
                reply(jsonrpc.response(id, to_json(answer)))

    async def _reply_later(self, id: Id, method: str, answer: Awaitable[Any], reply: Send) -> None:
        try:
            reply(jsonrpc.response(id, to_json(await answer)))
        except Exception as error:  # noqa: BLE001  the peer is told
            reply(_error_for(id, method, error))

    def _refuse(self, name: str) -> None:
        raise MethodNotFound(name)

    # --- the methods of the connection itself ------------------------------------------------

    def _subscribe(self, raw: bytes) -> str | Awaitable[str]:
        self._hub.calls.admit(self._principal_name)
        asked = read_params(raw, SubscribeParams)
        supported = PERSON_KINDS if asked.supports is None else KINDS.intersection(asked.supports)
        if asked.durable:
            return self._durable().subscribe(self, asked.method, bytes(asked.params), supported)
        subscription = Subscription(self)
        call = self._prepare(asked.method, bytes(asked.params), subscription, supported)
        call.time_limit = asked.time_limit
        self._hub.calls.start(call)
        subscription.id = call.id
        self._subscriptions[call.id] = subscription
        self._calls[subscription] = call
        return call.id

    def _respond(self, raw: bytes) -> dict[str, bool] | Awaitable[dict[str, bool]]:
        given = read_params(raw, RespondParams)
        if (
            given.subscription is not None
            and given.subscription not in self._subscriptions
            and self._hub.durable is None
        ):
            raise UnknownQuestion(given.request_id)
        payload = given.payload if given.payload is not UNSET else given.response_data
        if payload is UNSET:
            raise msgspec.ValidationError("Object missing required field `payload`")
        if given.subscription is not None and given.subscription not in self._subscriptions:
            return self._respond_durably(given.subscription, given.request_id, payload)
        self._hub.calls.answer(given.request_id, payload, owner=self)
        return {"success": True}

    async def _respond_durably(self, call_id: str, request_id: str, payload: Any) -> dict[str, bool]:
        if not await self._durable().respond(self, call_id, request_id, payload):
            raise UnknownQuestion(request_id)
        return {"success": True}

    def _attach(self, raw: bytes) -> Awaitable[str]:
        asked = read_params(raw, AttachParams)
        return self._durable().attach(self, asked.call, asked.after)

    def _durable(self) -> "DurableSubscriptions":
        """The durable subscriptions of the hub (see `plexus.subscriptions`)."""
        if self._hub.durable is None:
            raise NotDurable("This server keeps no calls: it has no journal")
        return self._hub.durable.subscriptions

    def _unsubscribe(self, raw: bytes) -> bool | Awaitable[bool]:
        id = read_params(raw, UnsubscribeParams).subscription
        subscription = self._subscriptions.get(id)
        if subscription is None and self._hub.durable is not None:
            return self._durable().abort(self, id, "The caller unsubscribed")
        if subscription is None:
            return False
        self._calls[subscription].abort("The caller unsubscribed")
        subscription.open = False
        return True

    def _reply(self, name: str, params: bytes, outlet: "PlainReply") -> None:
        if name not in self._looks:
            self._hub.calls.admit(self._principal_name)
        call = self._calls[outlet] = self._prepare(name, params, outlet, frozenset())
        try:
            self._hub.calls.start(call, at_once=True, loop=self.loop)
        except TooManyCalls:
            del self._calls[outlet]
            raise

    def _prepare(
        self, name: str, params: bytes, outlet: "PlainReply | Subscription", supported: frozenset[str]
    ) -> Call:
        if len(self._calls) >= self._max_calls:
            raise TooManyCalls(f"More than {self._max_calls} calls at once on one connection")
        found = self._hub.resolve(name)
        check_scopes(found.name, found.method.extras, self.principal)
        return self._hub.prepare(
            found,
            params,
            outlet,
            supported=supported,
            owner=self,
            principal=self._principal_name,
            sender=self,
        )

    def source(self) -> CallSource:
        """Who the peer is, and how it is connected (see `principal.Sender`)."""
        return CallSource(self.principal, self.info)

    # --- messages out ------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Send a message to the peer."""
        self._send(message)

    def send_item(self, subscription: str, item: Item, number: int | None = None) -> None:
        """Tell a subscriber what its call emitted; elements of a durable call are numbered."""
        if isinstance(item, Background):
            return
        if isinstance(item, Log):
            params = to_json(
                {
                    "subscription": subscription,
                    "level": item.level,
                    "message": item.message,
                    "data": item.data,
                }
            )
            self._send(jsonrpc.notification("plexus_log", params))
            return
        numbered = b"" if number is None else b',"number":%d' % number
        self._send(
            b'{"jsonrpc":"2.0","method":"plexus_subscription","params":{"subscription":"%b","result":%b%b}}'
            % (subscription.encode(), encode_item(item), numbered)
        )

    def ended(self, outlet: "PlainReply | Subscription") -> Call:
        """A call has emitted its last item."""
        return self._calls.pop(outlet)

    def unsubscribed(self, subscription: "Subscription") -> None:
        """A subscribed call has emitted its last item."""
        del self._subscriptions[subscription.id]
        self.ended(subscription)

    @property
    def full(self) -> bool:
        """Whether the peer reads more slowly than its calls emit."""
        return self._paused

    def pause(self) -> None:
        """The transport's buffer is full: calls wait before they emit more."""
        self._paused = True

    def resume(self) -> None:
        """The transport takes more."""
        self._paused = False
        for waiter in self._drained:
            if not waiter.done():
                waiter.set_result(None)
        self._drained.clear()

    async def drain(self) -> None:
        """Wait while the peer is behind."""
        while self._paused:
            waiter = asyncio.get_running_loop().create_future()
            self._drained.append(waiter)
            await waiter

    # --- the end -----------------------------------------------------------------------------

    async def finish(self, grace: float) -> None:
        """No more messages come in: questions fail at once, what runs may end within `grace` seconds."""
        calls = (*self._calls.values(), *(call for other in self._others for call in other.calls()))
        for call in calls:
            call.lose_caller()
        tasks = [call.task for call in calls if call.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        await end_all(calls, "The input has ended")

    async def close(self, reason: str = "The connection was closed") -> None:
        """The peer is gone: its calls are aborted, nothing is sent any more."""
        self.closed = True
        self._send = _discard
        self.resume()
        if self._hub.durable is not None:
            self._hub.durable.subscriptions.detach(self)
        for other in self._others:
            other.close(reason)
        await end_all(tuple(self._calls.values()), reason)


class PlainReply:
    """Outlet of a plain request: collects the result, and responds once."""

    __slots__ = ("_connection", "_contents", "_failure", "_id", "_reply", "_size")

    full = False

    def __init__(self, connection: Connection, id: Id, reply: Send) -> None:
        self._connection = connection
        self._id = id
        self._reply = reply
        self._contents: list[bytes] = []
        self._size = 0
        self._failure: Error | None = None

    def put(self, item: Item) -> None:
        if isinstance(item, Data):
            content = to_json(item.content)
            self._size += len(content)
            if self._size > MAX_MESSAGE:
                self._contents.clear()
                raise ToolError(TOO_LARGE, code="result_too_large")
            self._contents.append(content)
        elif isinstance(item, Done):
            streaming = self._connection.ended(self).method.streaming
            self._reply(self._response(streaming))
        elif isinstance(item, Error):
            self._failure = item

    async def drain(self) -> None:
        """A collected result is never behind."""

    def _response(self, streaming: bool) -> bytes:
        if self._failure is not None:
            data = {"code": self._failure.code, "recoverable": self._failure.recoverable}
            return jsonrpc.error_response(self._id, jsonrpc.CALL_FAILED, self._failure.message, data)
        if streaming:
            return jsonrpc.response(self._id, b"[%b]" % b",".join(self._contents))
        return jsonrpc.response(self._id, self._contents[0] if self._contents else b"null")


class Subscription:
    """Outlet of a subscribed call: each item becomes a notification."""

    __slots__ = ("_connection", "id", "open")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.id = ""
        self.open = True

    @property
    def full(self) -> bool:
        return self.open and self._connection.full

    def put(self, item: Item) -> None:
        if self.open:
            self._connection.send_item(self.id, item)
        if isinstance(item, Done):
            self._connection.unsubscribed(self)

    async def drain(self) -> None:
        await self._connection.drain()


def _error_for(id: Id, method: str, error: Exception) -> bytes:
    match error:
        case MidcallError():
            return jsonrpc.error_for(id, error)
        case msgspec.DecodeError() | RecursionError():
            text = f"Invalid params: {error or 'nested too deeply'}"
            return jsonrpc.error_response(id, jsonrpc.INVALID_PARAMS, text)
        case _:
            log.error("%s failed inside midcall", method, exc_info=error)
            return jsonrpc.error_response(id, jsonrpc.INTERNAL_ERROR, "Internal error")


def _wants_response(message: Envelope) -> bool:
    return message.method is not UNSET and message.id is not UNSET


def _discard(message: bytes) -> None:
    """For notifications, and for peers that are gone."""


# --- parameters ------------------------------------------------------------------------------------
#
# What a peer says with `plexus_subscribe` and its like: an object, or an array in the order of its fields.


class SubscribeParams(Struct, forbid_unknown_fields=True):
    """Start a call whose items come one by one."""

    method: Name
    params: Raw = Raw()
    supports: list[Name] | None = None
    durable: bool = False
    time_limit: Annotated[float, Meta(gt=0)] | None = ATTACHED_TIME_LIMIT
    """Seconds that a question waits if the tool does not say, or null for no limit: a person is there. A
    durable call has its own."""


class _SubscribeList(SubscribeParams, array_like=True):
    pass


class AttachParams(Struct, forbid_unknown_fields=True):
    """Take up a durable call, after so many of its elements."""

    call: Key
    after: int = 0


class _AttachList(AttachParams, array_like=True):
    pass


class RespondParams(Struct, forbid_unknown_fields=True):
    """Answer a question."""

    request_id: Key
    payload: Any = UNSET
    response_data: Any = UNSET
    subscription: Key | None = None


class _RespondList(Struct, array_like=True, forbid_unknown_fields=True):
    subscription: Key
    request_id: Key
    payload: Any
    response_data: Any = UNSET


class UnsubscribeParams(Struct, forbid_unknown_fields=True):
    """Hear no more of a call."""

    subscription: Key


class _UnsubscribeList(UnsubscribeParams, array_like=True):
    pass


_DECODERS: dict[type, tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]] = {
    named: (msgspec.json.Decoder(named), msgspec.json.Decoder(listed))
    for named, listed in (
        (SubscribeParams, _SubscribeList),
        (AttachParams, _AttachList),
        (RespondParams, _RespondList),
        (UnsubscribeParams, _UnsubscribeList),
    )
}


def read_params(raw: bytes, kind: type) -> Any:
    """Read parameters of this kind. Raises `msgspec.DecodeError`."""
    named, listed = _DECODERS[kind]
    return (listed if raw[:1] == b"[" else named).decode(raw or b"{}")

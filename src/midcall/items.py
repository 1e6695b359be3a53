"""Items: what a call emits, as plain values, and their form on the wire.

`Data`, `Progress`, `Request`, `RequestCancelled`, `Error` and `Done` are the six items of a stream;
exactly one `Done` ends every stream. `Log` and `Background` are side channels: they are not part of
the stream's wire form, and each dialect treats them in its own way. This module knows no call and no
transport.
"""

import weakref
from collections import deque
from collections.abc import Awaitable, Iterator
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from midcall.questions import AnyQuestion, Priority, question_from_wire, question_to_wire


class Metadata(Struct, frozen=True, gc=False):
    """Where an item comes from and when: the path of names, the hub's hash, unix seconds."""

    provenance: tuple[str, ...]
    plexus_hash: str
    timestamp: int


class Data(Struct, frozen=True, tag_field="type", tag="data"):
    """A result, or one element of a stream. `content_type` is the method's name."""

    metadata: Metadata
    content_type: str
    content: Any


class Progress(Struct, frozen=True, tag_field="type", tag="progress", omit_defaults=True):
    """How far the call is; `percentage` is from 0 to 100 where it is known."""

    metadata: Metadata
    message: str
    percentage: float | None = None


class Request(Struct, frozen=True, tag_field="type", tag="request", omit_defaults=True):
    """A question. `timeout_ms` is absent when there is no limit."""

    metadata: Metadata
    request_id: str
    request_type: AnyQuestion
    timeout_ms: int | None = None
    priority: Priority = "normal"
    key: str | None = None
    place: str = ""
    """Where in the call it is asked; neither this nor what follows is sent (see `trace`)."""
    fingerprint: str = ""
    """What is asked there, for whoever answers when the call is not in memory."""
    note: str = ""
    """Why it is asked again: what would have been expected of the last answer."""
    since: float = 0.0
    """When it was first asked."""
    to: str | None = None
    """Who is asked in place of the caller (see `principal.is_addressed`)."""
    link: str | None = None
    """Where it can be answered too, by a caller that cannot show questions; not sent with it."""


class RequestCancelled(Struct, frozen=True, tag_field="type", tag="request_cancelled"):
    """A question that is closed without an answer."""

    metadata: Metadata
    request_id: str
    reason: str


class Error(Struct, frozen=True, tag_field="type", tag="error"):
    """The call failed; `Done` follows."""

    metadata: Metadata
    message: str
    code: str
    recoverable: bool = False


class Done(Struct, frozen=True, tag_field="type", tag="done"):
    """The end of the stream."""

    metadata: Metadata


class Log(Struct, frozen=True, omit_defaults=True):
    """A line of the call's log, in the levels of syslog as MCP has them."""

    metadata: Metadata
    level: str
    message: str
    data: Any = None


class Background(Struct, frozen=True):
    """The call goes on without its request: a dialect that knows tasks lets the caller come back."""

    metadata: Metadata


Item: TypeAlias = Data | Progress | Request | RequestCancelled | Error | Done | Log | Background
WireItem: TypeAlias = Data | Progress | RequestCancelled | Error | Done


class _WireRequest(Struct, frozen=True, tag_field="type", tag="request", omit_defaults=True):
    metadata: Metadata
    request_id: str
    request_type: dict[str, Any]
    timeout_ms: int | None = None
    priority: Priority = "normal"
    key: str | None = None
    to: str | None = None


_serializers: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()
"""What writes a model with bytes in it; nothing for others, which do that by themselves."""


def _encode_foreign(value: Any) -> Any:
    """Encode what msgspec does not know. Raises one of `UNSENDABLE`, whatever a value's own code raises."""
    try:
        return _written(value)
    except UNSENDABLE:
        raise
    except Exception as error:
        raise TypeError(f"A value cannot be sent as JSON: {type(error).__name__}: {error}") from error


def _written(value: Any) -> Any:
    """Pydantic models by their serializer, with bytes as base64; others as pydantic would write them."""
    kind = type(value)
    if not hasattr(kind, "__pydantic_core_schema__"):
        return list(value) if isinstance(value, deque) else _plain(value)
    own = kind.__pydantic_serializer__
    if kind not in _serializers:
        from midcall.binary import bytes_serializer  # noqa: PLC0415  slow to import: only where a model is

        _serializers[kind] = bytes_serializer(kind)
    return msgspec.Raw((_serializers[kind] or own).to_json(value, by_alias=True))


def _plain(value: Any) -> Any:
    """A path, an address, a URL and the like, as pydantic writes them.

    A secret is not sent, nor are the asterisks for it: they would be taken for it.
    """
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # noqa: PLC0415  slow to import

    is_secret = hasattr(type(value), "get_secret_value")  # what a value itself says may be anything
    try:
        # What can be read but once is not, as a result is written twice; a part of JSON comes here as a key.
        if not is_secret and not isinstance(
            value, Iterator | list | tuple | dict | set | frozenset | bool | None
        ):
            return to_jsonable_python(value)
    except PydanticSerializationError:
        pass
    hint = ": is an `await` missing?" if isinstance(value, Awaitable) else ""
    if is_secret:
        hint = ": if that is what you want, send its get_secret_value()"
    raise TypeError(f"A value of type {type(value).__name__} cannot be sent as JSON{hint}")


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)
_decoder: msgspec.json.Decoder[WireItem | _WireRequest] = msgspec.json.Decoder(WireItem | _WireRequest)


to_json = _encoder.encode
"""A value as JSON. Raises one of `UNSENDABLE` for what JSON cannot carry."""

UNSENDABLE = (TypeError, ValueError, RecursionError)


def why_unsendable(error: Exception) -> str:
    """What is wrong with a value, for whoever waits for it."""
    if isinstance(error, RecursionError):
        return "A value that contains itself, or is nested too deeply, cannot be sent"
    return str(error)


def to_builtins(value: Any) -> Any:
    """A value as plain JSON types: what a reader on the other side of a wire would see."""
    return msgspec.json.decode(to_json(value))


def encode_item(item: Item) -> bytes:
    """The wire form of an item. Raises `TypeError` for content that JSON cannot carry."""
    if isinstance(item, Request):
        return to_json(
            _WireRequest(
                item.metadata,
                item.request_id,
                question_to_wire(item.request_type),
                item.timeout_ms,
                item.priority,
                item.key,
                item.to,
            )
        )
    return to_json(item)


def decode_item(data: bytes | msgspec.Raw) -> Item:
    """Read an item from its wire form. Raises `ValueError` for anything else."""
    item = _decoder.decode(data)
    if isinstance(item, _WireRequest):
        return Request(
            item.metadata,
            item.request_id,
            question_from_wire(item.request_type),
            item.timeout_ms,
            item.priority,
            item.key,
            to=item.to,
        )
    return item


# --- where they go --------------------------------------------------------------------------


class Outlet(Protocol):
    """Takes the items of a call, for whoever started it: a dialect, or a reader in this process.

    `put` never waits; `drain` does, while `full` is true."""

    @property
    def full(self) -> bool:
        """Whether the reader is behind."""

    def put(self, item: Item) -> None:
        """Take an item. After the reader is gone this does nothing."""

    async def drain(self) -> None:
        """Wait until the reader has caught up, or is gone."""


class Nowhere:
    """The outlet of a call whose items nobody reads."""

    __slots__ = ()

    full = False

    def put(self, item: Item) -> None:
        """Nobody reads."""

    async def drain(self) -> None:
        """Nobody is behind."""


NOWHERE = Nowhere()

"""Parameters of the hub's own protocol: what a peer says with `plexus_subscribe` and its like.

Each may be an object, or an array in the order of its fields.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from midcall.limits import Key, Name


class Subscribe(Struct, forbid_unknown_fields=True):
    """Start a call whose items come one by one."""

    method: Name
    params: Raw = Raw()
    supports: list[Name] | None = None
    durable: bool = False


class _SubscribeList(Subscribe, array_like=True):
    pass


class Attach(Struct, forbid_unknown_fields=True):
    """Take up a durable call, after so many of its elements."""

    call: Key
    after: int = 0


class _AttachList(Attach, array_like=True):
    pass


class Respond(Struct, forbid_unknown_fields=True):
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


class Unsubscribe(Struct, forbid_unknown_fields=True):
    """Hear no more of a call."""

    subscription: Key


class _UnsubscribeList(Unsubscribe, array_like=True):
    pass


_DECODERS: dict[type, tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]] = {
    named: (msgspec.json.Decoder(named), msgspec.json.Decoder(listed))
    for named, listed in (
        (Subscribe, _SubscribeList),
        (Attach, _AttachList),
        (Respond, _RespondList),
        (Unsubscribe, _UnsubscribeList),
    )
}


def read_params(raw: bytes, kind: type) -> Any:
    """Read parameters of this kind. Raises `msgspec.DecodeError`."""
    named, listed = _DECODERS[kind]
    return (listed if raw[:1] == b"[" else named).decode(raw or b"{}")

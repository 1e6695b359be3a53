"""JSON-RPC 2.0 without I/O: envelopes, batches, correlation, in both directions.

`decode` turns the bytes of one message into envelopes whose parameters and results stay raw; the
other functions make the bytes of one message. Servers and clients share it. It knows no method, no
hub and no transport; what a message means is decided above.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from midcall.errors import AnswerError, InvalidArguments, MethodNotFound, MidcallError, UnknownCall
from midcall.limits import MAX_KEY, Key, Name

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CALL_FAILED = -32000

Id: TypeAlias = Key | int | float | None
W = TypeVar("W")

_EMPTY = Raw()


class ErrorObject(Struct, omit_defaults=True):
    """The error of a response."""

    code: int
    message: str
    data: Any = None


class Envelope(Struct):
    """One message: a request, a notification (no `id`) or a response (no `method`)."""

    jsonrpc: str = ""
    id: Id | UnsetType = UNSET
    method: Name | UnsetType = UNSET
    params: Raw = _EMPTY
    result: Raw = _EMPTY
    error: ErrorObject | UnsetType = UNSET


class Response(Struct, gc=False):
    """A response whose result is yet to be encoded."""

    jsonrpc: str
    id: Id
    result: Any


class Fault(Exception):
    """A message that is not JSON-RPC, with the error that goes back for it."""

    def __init__(self, code: int, message: str, id: Id = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.id = id

    def response(self) -> bytes:
        return error_response(self.id, self.code, self.message)


class Batch(Struct):
    """Several messages in one; a member that is no message is its `Fault`."""

    members: list[Envelope | Fault]


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_members = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


def decode(data: bytes) -> Envelope | Batch:
    """Read one message. Raises `Fault`."""
    try:
        envelope = _decode_envelope(data)
    except (ValueError, RecursionError) as error:
        return _decode_other(data, error)
    if envelope.jsonrpc == "2.0" and envelope.method is not UNSET and data.isascii():
        return envelope  # the usual message, with no more looks than it needs
    return _checked(data, envelope)


def _decode_other(data: bytes, error: Exception) -> Batch:
    """A batch, or else the reason why it is no message."""
    if data.lstrip()[:1] != b"[":
        raise _explain(data, error)
    try:
        data.decode()
        members = _decode_members(data)
    except (ValueError, RecursionError) as second:
        raise _explain(data, second) from None
    if not members:
        raise Fault(INVALID_REQUEST, "Invalid Request: an empty batch")
    return Batch([_member(bytes(member)) for member in members])


def _member(data: bytes) -> Envelope | Fault:
    try:
        return _checked(data, _decode_envelope(data))
    except Fault as fault:
        return fault
    except (ValueError, RecursionError) as error:
        return _explain(data, error)


def _checked(data: bytes, envelope: Envelope) -> Envelope:
    id = None if envelope.id is UNSET else envelope.id
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Fault(PARSE_ERROR, f"Parse error: {error}", id) from None
    if envelope.jsonrpc != "2.0":
        raise Fault(INVALID_REQUEST, 'Invalid Request: "jsonrpc" must be "2.0"', id)
    answers = envelope.result is not _EMPTY or envelope.error is not UNSET
    if envelope.method is UNSET and (envelope.id is UNSET or not answers):
        raise Fault(INVALID_REQUEST, "Invalid Request: neither a request nor a response", id)
    return envelope


def _explain(data: bytes, error: Exception) -> Fault:
    """Tell broken JSON from JSON that is no message, and find its id where there is one."""
    if isinstance(error, RecursionError):
        return Fault(PARSE_ERROR, "Parse error: nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        try:
            data.decode()
            found = msgspec.json.decode(data)
        except (ValueError, RecursionError) as worse:
            return Fault(PARSE_ERROR, f"Parse error: {worse or 'nested too deeply'}")
        id = found.get("id") if isinstance(found, dict) else None
        known = isinstance(id, int | float) or (isinstance(id, str) and len(id) <= MAX_KEY)
        return Fault(INVALID_REQUEST, f"Invalid Request: {error}", id if known else None)
    return Fault(PARSE_ERROR, f"Parse error: {error}")


# --- making messages ------------------------------------------------------------------------


def request(id: Id, method: str, params: bytes) -> bytes:
    """A request; `params` is JSON."""
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (
        _encode(id),
        _encode(method),
        params,
    )


def notification(method: str, params: bytes) -> bytes:
    """A notification; `params` is JSON."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_encode(method), params)


def response(id: Id, result: bytes) -> bytes:
    """A response; `result` is JSON."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encode(id), result)


def error_response(id: Id, code: int, message: str, data: Any = None) -> bytes:
    """A response that tells an error."""
    error = ErrorObject(code, message, data)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (_encode(id), _encode(error))


def error_for(id: Id, error: MidcallError) -> bytes:
    """The response for an exception: the one place where exceptions become JSON-RPC errors."""
    data = {"code": error.code, "recoverable": error.recoverable, **error.data}
    return error_response(id, code_for(error), str(error), data)


def code_for(error: MidcallError) -> int:
    """The JSON-RPC code of an exception."""
    match error:
        case MethodNotFound():
            return METHOD_NOT_FOUND
        case InvalidArguments() | AnswerError() | UnknownCall():
            return INVALID_PARAMS
        case _:
            return CALL_FAILED


class BatchReply:
    """Gathers the responses to a batch, and sends them as one message when all are there."""

    __slots__ = ("_missing", "_responses", "_send")

    def __init__(self, expected: int, send: Callable[[bytes], None]) -> None:
        self._missing = expected
        self._responses: list[bytes] = []
        self._send = send

    def __call__(self, message: bytes) -> None:
        self._responses.append(message)
        self.skip()

    def skip(self) -> bool:
        """One response less is expected. True if none is left to come."""
        self._missing -= 1
        if not self._missing and self._responses:
            self._send(b"[%b]" % b",".join(self._responses))
        return not self._missing


class PendingRequests(Generic[W]):
    """Requests that wait for their response: whoever waits, by the id that was sent."""

    __slots__ = ("_next", "_waiting")

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[Id, W] = {}

    def add(self, waiter: W) -> int:
        """Keep the waiter under a new id."""
        self._next += 1
        self._waiting[self._next] = waiter
        return self._next

    def take(self, id: Id | UnsetType) -> W | None:
        """Who waits for this id, once; `None` for a late or unknown one."""
        return None if id is UNSET else self._waiting.pop(id, None)

    def get(self, id: Any) -> W | None:
        """Who waits for this id, and goes on waiting."""
        return self._waiting.get(id) if isinstance(id, int) else None

    def all(self) -> list[W]:
        """Everybody who waits, the newest last."""
        return list(self._waiting.values())

    def take_all(self) -> list[W]:
        """Everybody who waits, as the line is gone."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    def __len__(self) -> int:
        return len(self._waiting)


class LineSplitter:
    """Cuts bytes into lines, each a message on a pipe, without keeping one that is too long."""

    __slots__ = ("_limit", "_parts", "_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that these bytes complete; `None` stands for one that was too long."""
        head, *rest = data.split(b"\n")
        self._keep(head)
        if not rest:
            return []
        lines = [self._complete()]
        tail = rest.pop()
        lines.extend(line if len(line) <= self._limit else None for line in rest)
        self._keep(tail)
        return lines

    def end(self) -> list[bytes | None]:
        """What stands after the last newline, when no more comes."""
        return [self._complete()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _complete(self) -> bytes | None:
        line = b"".join(self._parts) if self._size <= self._limit else None
        self._parts.clear()
        self._size = 0
        return line

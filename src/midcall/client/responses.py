"""Responses: who waits for one, and what is in it. No I/O."""

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from midcall.errors import MidcallError, RemoteError
from midcall.jsonrpc import INTERNAL_ERROR, Envelope


class Unusable(RemoteError):
    """What came back cannot be used: at the beginning, that there is no MCP server to speak with."""


class Waiter:
    """Who waits for the response to a request."""

    __slots__ = ()

    def answered(self, response: Envelope) -> None:
        """The response is here."""

    def failed(self, error: MidcallError) -> None:
        """There will be none."""

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        """A notification that belongs to the request: progress, or a line of log."""


class Loose(Struct):
    """A response that is not quite what JSON-RPC wants: another version, an error of another shape."""

    method: Raw = Raw()
    result: Raw = Raw()
    error: Any = None

    @classmethod
    def read(cls, data: bytes) -> "Loose | None":
        try:
            found = msgspec.json.decode(data, type=cls)
        except (ValueError, RecursionError):
            return None
        return None if bytes(found.method) else found

    @property
    def error_text(self) -> str:
        message = self.error.get("message") if isinstance(self.error, dict) else self.error
        return message if isinstance(message, str) else f"The server's error cannot be read: {self.error!r}"


class ResponseFuture(Waiter):
    """Waits in a coroutine."""

    __slots__ = ("future",)

    def __init__(self, future: "asyncio.Future[dict[str, Any]]") -> None:
        self.future = future

    def answered(self, response: Envelope) -> None:
        try:
            result = result_of(response)
        except RemoteError as error:
            self.failed(error)
        else:
            if not self.future.done():
                self.future.set_result(result)

    def failed(self, error: MidcallError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def result_of(response: Envelope) -> dict[str, Any]:
    """The result in a response. Raises `RemoteError` if there is none."""
    error = response.error
    if error is not UNSET:
        raise RemoteError(error.message, rpc_code=error.code, rpc_data=error.data)
    try:
        result = msgspec.json.decode(response.result)
    except (ValueError, RecursionError) as fault:
        why = str(fault) if bytes(response.result) else "it has neither a result nor an error"
    else:
        if isinstance(result, dict):
            return result
        why = "its result is no object"
    raise Unusable(f"The server's response cannot be read: {why}", rpc_code=INTERNAL_ERROR)

"""HTTP+SSE, the transport of 2024-11-05: one stream for all that comes, another address for what is sent."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midcall.client.wire import MAX_MESSAGE
from midcall.errors import MidcallError, TransportLost, Unreachable
from midcall.http.client import HttpResponse
from midcall.http.message import HttpError, HttpUrl
from midcall.http.sse import Event, EventReader

if TYPE_CHECKING:
    from midcall.client.streamable import HttpWire

log = logging.getLogger("midcall.client")

_JSON = ("Content-Type", "application/json")

PATIENCE = 10.0
"""Seconds that a server has to say where messages are to be sent."""


class LegacySse:
    """The stream of a server, and the address that it has named."""

    def __init__(self, wire: "HttpWire", response: HttpResponse) -> None:
        self._wire = wire
        self._response = response
        self._endpoint: HttpUrl | None = None
        self._why = "does not say where to send messages"
        """What is wrong with the server, while it has named no address."""
        self._known = asyncio.Event()

    @classmethod
    async def open(cls, wire: "HttpWire") -> "LegacySse":
        """Open the stream and wait for the address. Raises `Unreachable`."""
        pairs = [*await wire.access("GET"), *wire.pairs(), ("Accept", "text/event-stream")]
        try:
            response = await wire.http.request("GET", wire.url, pairs, timeout=PATIENCE)
        except HttpError as error:
            raise Unreachable(str(error)) from None
        if not (response.headers.get("content-type") or "").lower().startswith("text/event-stream"):
            response.close()
            raise Unreachable(f"{wire.url} is not an MCP server: HTTP {response.status}")
        self = cls(wire, response)
        reading = wire.spawn(self._read())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), PATIENCE)
        if self._endpoint is None:
            reading.cancel()
            raise Unreachable(f"{wire.url} {self._why}")
        return self

    def post(self, ids: Sequence[int], message: bytes) -> None:
        """Send a message; what it brings comes on the stream."""
        self._wire.spawn(self._post(ids, message))

    async def _post(self, ids: Sequence[int], message: bytes) -> None:
        try:
            pairs = [*await self._wire.access("POST"), *self._wire.pairs(), _JSON]
            response = await self._wire.http.request("POST", self._endpoint or self._wire.url, pairs, message)
            response.close()
            if response.status >= 400:
                self._wire.session.failed(ids, _not_taken(self._wire, response.status))
        except HttpError as error:
            lost = TransportLost(str(error)) if error.sent else Unreachable(str(error))
            self._wire.session.failed(ids, lost)
        except MidcallError as error:
            self._wire.session.failed(ids, error)
        finally:
            if not ids:
                self._wire.release()

    async def _read(self) -> None:
        events = EventReader(MAX_MESSAGE)
        why = "ended its stream"
        try:
            async for data in self._response:
                for event in events.feed(data):
                    self._take(event)
        except (HttpError, MidcallError) as error:
            why = str(error)
        finally:
            self._response.close()
        if not self._known.is_set():
            self._why = why
            self._known.set()
        else:
            self._wire.session.lost(TransportLost(f"{self._wire.url}: {why}"))

    def _take(self, event: Event) -> None:
        if event.event != "endpoint":
            if event.data:
                self._wire.session.receive(event.data)
        elif not self._known.is_set():
            self._name_endpoint(event.data.decode(errors="replace"))
            self._known.set()

    def _name_endpoint(self, named: str) -> None:
        try:
            endpoint = self._wire.url.join(named)
        except HttpError as error:
            self._why = f"does not say where to send messages: {error}"
            return
        if endpoint.origin == self._wire.url.origin:
            self._endpoint = endpoint
        else:
            self._why = "wants messages to be sent to another server"


def _not_taken(wire: "HttpWire", status: int) -> TransportLost:
    return TransportLost(f"{wire.url} did not take a message: HTTP {status}")

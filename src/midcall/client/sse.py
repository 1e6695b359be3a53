"""HTTP+SSE, the transport of 2024-11-05:

one stream for everything that comes, another address for what is sent.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midcall.client.events import Event, EventReader
from midcall.client.http1 import HttpError, Response, Url
from midcall.client.wire import MAX_MESSAGE
from midcall.errors import MidcallError, TransportLost, Unreachable

if TYPE_CHECKING:
    from midcall.client.streamable import HttpWire

log = logging.getLogger("midcall.client")

PATIENCE = 10.0
"""Seconds that a server has to say where messages are to be sent."""


class OldTransport:
    """The stream of a server, and the address that it has named."""

    def __init__(self, wire: "HttpWire", response: Response) -> None:
        self._wire = wire
        self._response = response
        self._events = EventReader(MAX_MESSAGE)
        self._endpoint: asyncio.Future[Url] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, wire: "HttpWire") -> "OldTransport":
        """Open the stream and wait for the address. Raises `Unreachable`."""
        pairs = [*await wire.access("GET"), *wire.pairs(), ("Accept", "text/event-stream")]
        try:
            response = await wire.http.request("GET", wire.url, pairs, timeout=None)
        except HttpError as error:
            raise Unreachable(str(error)) from None
        if not (response.headers.get("content-type") or "").startswith("text/event-stream"):
            response.close()
            raise Unreachable(f"{wire.url} is no MCP server: HTTP {response.status}")
        self = cls(wire, response)
        wire.spawn(self._read())
        try:
            await asyncio.wait_for(asyncio.shield(self._endpoint), PATIENCE)
        except TimeoutError:
            response.close()
            raise Unreachable(f"{wire.url} does not say where to send messages") from None
        return self

    def post(self, ids: Sequence[int], message: bytes) -> None:
        """Send a message; what it brings comes on the stream."""
        self._wire.spawn(self._post(ids, message))

    async def _post(self, ids: Sequence[int], message: bytes) -> None:
        pairs = [*await self._wire.access("POST"), *self._wire.pairs(), ("Content-Type", "application/json")]
        try:
            response = await self._wire.http.request("POST", await self._endpoint, pairs, message)
            response.close()
            if response.status >= 400:
                raise TransportLost(f"{self._wire.url} did not take a message: HTTP {response.status}")
        except HttpError as error:
            lost = TransportLost(str(error)) if error.sent else Unreachable(str(error))
            self._wire.reader.failed(ids, lost)
        except MidcallError as error:
            self._wire.reader.failed(ids, error)
        finally:
            if not ids:
                self._wire.release()

    async def _read(self) -> None:
        why = "ended its stream"
        try:
            async for data in self._response:
                for event in self._events.feed(data):
                    self._take(event)
        except (HttpError, MidcallError) as error:
            why = str(error)
        finally:
            self._response.close()
            why = f"{self._wire.url}: {why}"
            if not self._endpoint.done():
                self._endpoint.set_exception(Unreachable(why))
            else:
                self._wire.reader.lost(TransportLost(why))

    def _take(self, event: Event) -> None:
        if event.event == "endpoint":
            if not self._endpoint.done():
                self._name_endpoint(event.data.decode(errors="replace"))
        elif event.data:
            self._wire.reader.receive(event.data)

    def _name_endpoint(self, named: str) -> None:
        try:
            endpoint = self._wire.url.join(named)
        except HttpError as error:
            self._endpoint.set_exception(Unreachable(str(error)))
            return
        if endpoint.origin == self._wire.url.origin:
            self._endpoint.set_result(endpoint)
        else:
            self._endpoint.set_exception(Unreachable(f"{self._wire.url} sends messages to another server"))

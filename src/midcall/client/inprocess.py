"""A hub in this process: the same messages as over a pipe, handed over as they are."""

import asyncio
from collections.abc import Sequence

from midcall.client.wire import About, Reader
from midcall.connection import Connection
from midcall.hub import Hub
from midcall.mcp.server import mcp_of
from midcall.principal import Principal


class HubWire:
    """The way to a hub that is here."""

    waits_for_person = False

    def __init__(self, hub: Hub, principal: Principal | None = None, *, owned: bool = False) -> None:
        """An `owned` hub was made for this, and is closed with it."""
        self._hub = hub
        self._principal = principal
        self._owned = owned
        self._connection: Connection | None = None

    async def open(self, reader: Reader) -> None:
        mcp_of(self._hub)
        loop = asyncio.get_running_loop()
        # In a turn of its own: an answer does not come while the request is still being sent.
        self._connection = Connection(
            self._hub, lambda data: _later(loop, reader, data), raw=False, principal=self._principal
        )
        await self._hub.open()

    def agreed(self, revision: str, *, modern: bool) -> None:
        """A message is the same in all revisions."""

    def request(self, ids: Sequence[int], message: bytes, about: About) -> None:
        self.send(message)

    def send(self, message: bytes) -> None:
        if self._connection is not None:
            self._connection.receive(message)

    def cancel(self, id: int) -> bool:
        return False

    async def close(self) -> None:
        """End what runs for this client. A hub that is the caller's stays open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
            if self._owned:
                await self._hub.close()


def _later(loop: asyncio.AbstractEventLoop, reader: Reader, data: bytes) -> None:
    loop.call_soon(reader.receive, data)

"""WebSocket: one JSON-RPC message a frame, as an ASGI endpoint.

A reader and a writer for each peer; messages wait for the writer in a bounded outbox, and calls are
slowed down while it is full. When the peer is gone its calls are aborted.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from midcall.hub import Hub
from midcall.plexus.protocol import Connection
from midcall.principal import Principal, RequestInfo, time_left

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
SendMessage: TypeAlias = Callable[[Message], Awaitable[None]]

SUBPROTOCOL = "midcall"

OUTBOX_LIMIT = 1024 * 1024
"""Bytes that may wait for a slow peer before its calls are slowed down."""

READ_LIMIT = 8 * OUTBOX_LIMIT
"""Bytes that may wait before nothing more is read from the peer."""


class Outbox:
    """Messages on their way to the peer, in order."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self.size = 0
        self._wake = asyncio.Event()
        self.connection: Connection | None = None

    def put(self, message: bytes) -> None:
        self._messages.append(message)
        self.size += len(message)
        self._wake.set()
        if self.size > OUTBOX_LIMIT and self.connection is not None:
            self.connection.pause()

    async def write(self, send: SendMessage) -> None:
        """Send what comes, for ever; a peer that is gone ends it with an `OSError`."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._messages:
                await send({"type": "websocket.send", "text": self._next().decode()})
                if self.size <= OUTBOX_LIMIT // 2 and self.connection is not None:
                    self.connection.resume()

    def _next(self) -> bytes:
        message = self._messages.popleft()
        self.size -= len(message)
        return message


async def serve_websocket(
    hub: Hub,
    receive: Receive,
    send: SendMessage,
    principal: Principal | None = None,
    *,
    subprotocols: Sequence[str] = (),
    info: RequestInfo | None = None,
) -> None:
    """Serve one peer, from its handshake until it is gone, or its token has expired.

    `info` is what is known of the request that has opened the line.

    A web page offers `SUBPROTOCOL` beside the one that carries its key, and has to be told that it is taken.
    """
    await receive()  # websocket.connect
    taken = SUBPROTOCOL if SUBPROTOCOL in subprotocols else None
    await send({"type": "websocket.accept", "subprotocol": taken})
    outbox = Outbox()
    connection = Connection(hub, outbox.put, principal=principal, info=info)
    outbox.connection = connection
    writer = asyncio.ensure_future(outbox.write(send))
    reader = asyncio.ensure_future(_read(connection, outbox, receive))
    try:
        done, _ = await asyncio.wait(
            (reader, writer), timeout=time_left(principal), return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        reader.cancel()
        writer.cancel()
        await connection.close()
        await asyncio.gather(reader, writer, return_exceptions=True)
    if not done:
        with suppress(OSError):
            await send({"type": "websocket.close", "code": 1008, "reason": "The token has expired"})


async def _read(connection: Connection, outbox: Outbox, receive: Receive) -> None:
    while True:
        if outbox.size > READ_LIMIT:
            await connection.drain()
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        connection.receive(text.encode() if text is not None else message.get("bytes") or b"")

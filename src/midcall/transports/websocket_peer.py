"""uvicorn's WebSocket, for peers that misbehave.

What waits for one that does not read is bounded, in size and in time; and one whose handshake cannot be read
is told so and hung up on, where uvicorn waits for more.
"""

from typing import cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from midcall.transports.http_protocol import Gathering


class WebSocketPeer(WebSocketsSansIOProtocol):
    """One connection, taken over from a `OneWrite`."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def pause_writing(self) -> None:
        cast("Gathering", self.transport).fell_behind()
        super().pause_writing()

    def resume_writing(self) -> None:
        cast("Gathering", self.transport).caught_up()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        cast("Gathering", self.transport).caught_up()
        super().connection_lost(exc)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # a peer that reads nothing needs no answer; the next ping gets one

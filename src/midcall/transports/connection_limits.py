"""What a peer may take of an HTTP server: how much, and for how long.

Most of it counts before anybody knows who the peer is. Time is limited for whatever the peer has to do (send
a request, send all of it, read its response), never for what the server does. Only sizes, seconds and
transports here, nothing of HTTP.
"""

import asyncio
import logging
from typing import NamedTuple

from msgspec import Struct

log = logging.getLogger("midcall.http")


class Limits(Struct, frozen=True):
    """The limits of one server."""

    head: int = 64 * 1024
    """Bytes of the head of a request: its first line and its headers."""
    head_time: float = 30.0
    """Seconds for the head of a request to come, from its first byte on; for that of the first one, from the
    connection on."""
    pace_time: float = 30.0
    """Seconds after which it is looked whether a body comes, and a response is read, at the least pace."""
    pace: int = 10_000
    """Bytes a second of it that a peer has to send or to read at least."""
    unread: int = 128 * 1024 * 1024
    """Bytes that may wait for all peers that read slowly, together."""
    connections: int = 10_000
    """Connections at once."""

    @property
    def least(self) -> float:
        """Bytes that have to come, or to be read, between two looks."""
        return self.pace * self.pace_time


DEFAULTS = Limits()


class SlowReaders:
    """The connections on which something waits to be read, the one that has waited longest first.

    One whose peer reads too slowly is cut off; and if too much waits for all of them together, so are those
    that have waited longest.
    """

    __slots__ = ("_limits", "_timer", "_total", "_waiting")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[asyncio.Transport, _Unread] = {}
        self._total = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, transport: asyncio.Transport) -> None:
        """The peer of this connection is behind."""
        if transport in self._waiting:
            return
        self._note(transport)
        if self._total > self._limits.unread:
            self._make_room()
        self._set_timer()

    def discard(self, transport: asyncio.Transport) -> None:
        """It has read what was there, or is gone."""
        waiting = self._waiting.pop(transport, None)
        if waiting is not None:
            self._total -= waiting.size
            if self._timer is not None and not self._waiting:
                self._timer.cancel()
                self._timer = None

    def _note(self, transport: asyncio.Transport) -> None:
        """Look again in a while whether what waits now has become less."""
        size = transport.get_write_buffer_size()
        before = self._waiting.get(transport)
        self._total += size if before is None else size - before.size
        self._waiting[transport] = _Unread(size, asyncio.get_running_loop().time() + self._limits.pace_time)

    def _make_room(self) -> None:
        # What was noted may be read since: only what really waits counts.
        while sum(one.get_write_buffer_size() for one in self._waiting) > self._limits.unread:
            log.warning("Too much waits to be read: the connection that has waited longest is closed")
            self._cut_off(next(iter(self._waiting)))

    def _set_timer(self) -> None:
        if self._timer is None and self._waiting:
            due = min(one.due for one in self._waiting.values())
            self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for transport, (before, due) in list(self._waiting.items()):
            if due > now:
                continue
            if before - transport.get_write_buffer_size() < min(self._limits.least, before):
                self._cut_off(transport)
            else:
                self._note(transport)
        self._set_timer()

    def _cut_off(self, transport: asyncio.Transport) -> None:
        self.discard(transport)
        transport.abort()


class _Unread(NamedTuple):
    size: int
    due: float

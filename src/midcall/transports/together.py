"""What the connections of one server share, and do together: once in a turn of the event loop, not once each.

Most requests are answered without waiting for anything: they are run one after the other by one task (see
`inline`), and what they are answered with is written when all of them have run.
"""

import asyncio
from collections.abc import Callable

from midcall.inline import Body, Inline
from midcall.transports.connection_limits import Limits, SlowReaders

INLINE = "midcall.inline"
"""An extension of ASGI: the request is run inline, so that it may wait for a `Pause`."""


class Together:
    """Runs the requests of a server, and writes its responses."""

    __slots__ = ("_writing", "leaving", "limits", "requests", "slow_readers")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.slow_readers = SlowReaders(limits)
        self.leaving = False
        """Whether the server is to end: each response is the last one on its connection."""
        self.requests = Inline[Body](lambda request, _: request, left=lambda request: request.close())
        self._writing: list[Callable[[], None]] = []

    def write_soon(self, write: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Call this after all that is ready to run now."""
        if not self._writing:
            loop.call_soon(self._write)
        self._writing.append(write)

    def _write(self) -> None:
        writing, self._writing = self._writing, []
        for write in writing:
            write()

"""Reports: progress and log lines of one call, on their way to a reader who may be behind.

Reporting never waits, so what a slow reader cannot take is held, within bounds: of progress only the
newest, of log lines the last hundred. A report may come from a worker thread.
"""

import asyncio
import contextlib
import logging
from collections import deque

from midcall.items import Log, Progress
from midcall.outlet import Outlet

log = logging.getLogger("midcall.call")

HELD_LIMIT = 100
"""How many reports are held for a reader who does not keep up."""


class Reports:
    """The reports of one call."""

    __slots__ = ("_closed", "_handing_over", "_held", "_loop", "_outlet")

    def __init__(self, outlet: Outlet, loop: asyncio.AbstractEventLoop) -> None:
        self._outlet = outlet
        self._loop = loop
        self._held: deque[Progress | Log] = deque(maxlen=HELD_LIMIT)
        self._handing_over = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    def put(self, report: Progress | Log) -> None:
        """Send a report, now or when the reader has caught up."""
        if not _in_event_loop():
            self._hand_over(report)
        elif self._outlet.full:
            if isinstance(report, Progress) and self._held and isinstance(self._held[-1], Progress):
                self._held.pop()
            self._held.append(report)
        else:
            self.release()
            self._outlet.put(report)

    def release(self) -> None:
        """Send what is held."""
        for _ in range(len(self._held)):
            try:
                self._outlet.put(self._held.popleft())
            except (TypeError, ValueError):  # JSON cannot carry it; nobody is left to be told
                log.warning("A report cannot be sent", exc_info=True)

    def close(self) -> None:
        """Send what is held, and nothing after it: a thread may outlive its call."""
        self.release()
        self._closed = True

    def _hand_over(self, report: Progress | Log) -> None:
        """In a worker thread: let the event loop send it."""
        self._held.append(report)
        if not self._handing_over:
            self._handing_over = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take_over)

    def _take_over(self) -> None:
        self._handing_over = False
        if not self._closed and not self._outlet.full:
            self.release()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

"""Calling functions a fixed while later, unless they are cancelled before, as most are: one timer for all."""

import asyncio
from collections import deque
from collections.abc import Callable


class Later:
    """What is to be called after so many seconds."""

    __slots__ = ("_entries", "_loop", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._entries: deque[Entry] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(self, function: Callable[[], None], loop: asyncio.AbstractEventLoop) -> "Entry":
        """Call a function then; `cancel` what this gives if it is no longer to be called."""
        if loop is not self._loop:  # what a loop that is gone was to call is not called
            self._loop = loop
            self._entries.clear()
        entry = Entry(loop.time() + self._seconds, function)
        if not self._entries:
            loop.call_at(entry.due, self._look, loop)
        self._entries.append(entry)
        return entry

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        now = loop.time()
        while self._entries and (self._entries[0].function is None or self._entries[0].due <= now):
            function = self._entries.popleft().function
            if function is not None:
                function()  # at once: until then it can be cancelled
        if self._entries:
            loop.call_at(self._entries[0].due, self._look, loop)


class Entry:
    """One call to come."""

    __slots__ = ("due", "function")

    def __init__(self, due: float, function: Callable[[], None]) -> None:
        self.due = due
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        """Do not call it."""
        self.function = None

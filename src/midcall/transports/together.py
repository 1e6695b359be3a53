"""What the connections of one server do together, once in a turn of the event loop instead of once each.

Most requests are answered without waiting for anything: they are run one after the other by one task (see
`inline`), and what they are answered with is written when all of them have run.
"""

import asyncio
from collections.abc import Callable

from midcall.inline import Body, Inline, Task


class Together:
    """Runs the requests of a server, and writes its responses."""

    __slots__ = ("_requests", "_tasks", "_writing")

    def __init__(self) -> None:
        self._requests = Inline[Body](lambda body, _: body, self._waits, lambda body: body.close())
        self._tasks: set[Task] = set()
        self._writing: list[Callable[[], None]] = []

    def run_soon(self, request: Body, tasks: set[Task], loop: asyncio.AbstractEventLoop) -> None:
        """Have a request answered in the next turn; while it waits, its task is among `tasks`."""
        self._tasks = tasks
        self._requests.put(request, loop)

    def _waits(self, request: Body, task: Task) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def write_soon(self, write: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Call this after all that is ready to run now."""
        if not self._writing:
            loop.call_soon(self._write)
        self._writing.append(write)

    def _write(self) -> None:
        writing, self._writing = self._writing, []
        for write in writing:
            write()

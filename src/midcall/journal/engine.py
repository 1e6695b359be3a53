"""What an engine must do that runs the segments of kept calls: a durable-execution system that people trust.

The journal stays the truth: it says who runs a segment, and what it came to. An engine only knows which
segments run, each as a **work** that begins when the segment is claimed and ends when it is settled; so
while a person thinks, there is nothing in it. If a worker dies, its works go on elsewhere: the engine there
claims their segments, as anybody else would.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from midcall.journal.contract import CallRecord

if TYPE_CHECKING:
    from midcall.journal.durable import DurableCalls


class Work(Protocol):
    """A segment that runs, as the engine knows it."""

    async def begin(self) -> None:
        """Have the engine know it, before the segment goes on; which it does even if the engine is away."""

    def end(self) -> None:
        """The segment does not run here any more; once is enough."""


class Engine(Protocol):
    """Where works are known, so that they outlive their worker."""

    async def open(self, durable: "DurableCalls") -> None:
        """Make it ready, once the journal is. Raises `JournalError`."""

    async def close(self) -> None:
        """Let go of it. What has not ended is for others to go on with."""

    def work(self, record: CallRecord) -> Work:
        """The work of a segment that this worker has claimed."""

    async def look_after(self, due: Sequence[CallRecord]) -> Sequence[CallRecord]:
        """Go on with the works of workers that are gone. Raises `JournalError`.

        Of calls that are `due`, gives those that it has no work of: the journal's sweeper goes on with them.
        """

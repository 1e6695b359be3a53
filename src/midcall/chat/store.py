"""Store: where conversations are kept, and the lines of runs, for whoever lost some of them.

The contract, and the store in memory. `sqlite_store` and `postgres_store` keep them beside the journal of the
same kind.
"""

import copy
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from midcall.chat.conversation import Conversation
from midcall.errors import MidcallError
from midcall.shares import Owned

KEEP_RUNS = 3600.0
"""Seconds that the lines of a run are kept after its last one."""

MAX_LISTED = 200

MOST = 10_000
"""How many conversations, and how many runs, are kept in memory; of a person with a name, a tenth. One more
takes the place of the oldest of the same person, or of whoever has most."""


class Conflict(MidcallError):
    """Somebody else has changed the conversation since it was read."""

    code = "conflict"
    recoverable = True


class Listed(Struct, frozen=True):
    """A conversation, for a list."""

    id: str
    title: str
    updated: float
    waiting: bool
    running: bool


class RunState(Struct, frozen=True):
    """A run, as far as it is written down."""

    id: str
    conversation_id: str
    principal: str | None
    lines: int
    ended: bool
    seen: float
    """When its worker last gave a sign of life, by the clock of the store."""
    now: float


class ChatStore(Protocol):
    """Keeps conversations and runs. Everything that it returns is the caller's own copy.

    The id of a conversation is its person's own: another one's may have the same.
    """

    async def open(self) -> None:
        """Make it ready."""

    async def close(self) -> None:
        """Let go of it."""

    async def load(self, id: str, principal: str | None) -> Conversation | None:
        """A conversation of this person; nobody gets another's."""

    async def save(self, conversation: Conversation) -> None:
        """Write a conversation down, durably. Raises `Conflict`; counts its version up."""

    async def delete(self, id: str, principal: str | None) -> bool:
        """Forget a conversation. False if there was none."""

    async def list(self, principal: str | None) -> Sequence[Listed]:
        """The conversations of this person, the newest first."""

    async def held(self, principal: str) -> tuple[int, int]:
        """How many conversations this person has, and how many bytes they take."""

    async def begin_run(self, run: str, conversation_id: str, principal: str | None) -> None:
        """A run begins."""

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        """Add lines to a run, of which the first has this number; without lines, a sign of life.

        True if the run is to stop. Raises `Conflict` if it has other lines there; the same ones may be
        written again, by whoever does not know whether they were.
        """

    async def stop_run(self, run: str) -> None:
        """Have a run stopped, wherever its worker is."""

    async def run(self, run: str) -> RunState | None:
        """What is known of a run."""

    async def lines(self, run: str, after: int) -> Sequence[bytes]:
        """The lines of a run after a number."""

    async def sweep(self) -> None:
        """Forget runs that ended long ago."""


class MemoryStore:
    """Keeps everything in this process, and loses it with it."""

    def __init__(self) -> None:
        self._conversations: dict[tuple[str, str | None], Conversation] = {}
        self._runs: dict[str, tuple[str, str | None, list[bytes], bool]] = {}
        self._owned: Owned[tuple[str, str | None]] = Owned()
        self._owned_runs: Owned[str] = Owned()
        self._to_stop: set[str] = set()

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def load(self, id: str, principal: str | None) -> Conversation | None:
        return copy.deepcopy(self._conversations.get((id, principal)))

    async def save(self, conversation: Conversation) -> None:
        key = conversation.id, conversation.principal
        kept = self._conversations.get(key)
        if (kept.version if kept is not None else 0) != conversation.version:
            raise Conflict("The conversation was changed meanwhile")
        conversation.version += 1
        self._owned.remove(conversation.principal, conversation.id)
        for oldest in self._owned.make_room(conversation.principal, MOST):
            del self._conversations[oldest]
        self._owned.use(conversation.principal, conversation.id, key)
        self._conversations[key] = copy.deepcopy(conversation)

    async def delete(self, id: str, principal: str | None) -> bool:
        self._owned.remove(principal, id)
        return self._conversations.pop((id, principal), None) is not None

    async def list(self, principal: str | None) -> Sequence[Listed]:
        own = [one for one in self._conversations.values() if one.principal == principal]
        own.sort(key=lambda one: one.updated, reverse=True)
        return [listed(one) for one in own[:MAX_LISTED]]

    async def held(self, principal: str) -> tuple[int, int]:
        own = [one for one in self._conversations.values() if one.principal == principal]
        return len(own), sum(len(message.content) for one in own for message in one.messages)

    async def begin_run(self, run: str, conversation_id: str, principal: str | None) -> None:
        for oldest in self._owned_runs.make_room(principal, MOST):
            del self._runs[oldest]
            self._to_stop.discard(oldest)
        self._owned_runs.use(principal, run, run)
        self._runs[run] = (conversation_id, principal, [], False)

    async def append(self, run: str, first: int, lines: Sequence[bytes], *, ended: bool) -> bool:
        if run not in self._runs:
            return False  # there were too many
        conversation_id, principal, kept, was_over = self._runs[run]
        known = kept[first - 1 : first - 1 + len(lines)]
        if lines and (len(kept) < first - 1 or known != list(lines[: len(known)])):
            raise Conflict("The run has other lines")
        self._runs[run] = (conversation_id, principal, [*kept, *lines[len(known) :]], ended or was_over)
        return run in self._to_stop

    async def stop_run(self, run: str) -> None:
        if run in self._runs:
            self._to_stop.add(run)

    async def run(self, run: str) -> RunState | None:
        found = self._runs.get(run)
        if found is None:
            return None
        conversation_id, principal, kept, ended = found
        return RunState(run, conversation_id, principal, len(kept), ended, 0.0, 0.0)

    async def lines(self, run: str, after: int) -> Sequence[bytes]:
        return self._runs[run][2][after:] if run in self._runs else ()

    async def sweep(self) -> None:
        """They are bounded in number."""


def listed(conversation: Conversation) -> Listed:
    """A conversation, for a list."""
    return Listed(
        conversation.id,
        conversation.title,
        conversation.updated,
        bool(conversation.pending),
        conversation.run is not None,
    )

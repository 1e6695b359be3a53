"""Desk: where parked calls are found again, by sealed state, by idempotency key and by task id.

Calls are parked in memory. When too many wait, the principal who has the most of them loses the one
that it has not come back to for longest. What has ended stays for a while, so that a client that lost
the answer can ask again; the oldest go first when there are too many.
"""

import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from midcall.journal.seal import BadSeal, KeyRing
from midcall.mcp.exchange import McpError
from midcall.mcp.task import Task

if TYPE_CHECKING:
    from midcall.mcp.dialects.input_required import InputRequired

KEPT_SECONDS = 600.0
"""How long an ended call can still be asked for."""

KEPT_CALLS = 10_000
"""How many ended calls can still be asked for."""

KEPT_BYTES = 64 * 1024 * 1024
"""How large their outcomes may be, all together."""

PARKED_CALLS = 10_000
"""How many calls may run or wait for their callers to come back."""


class Ticket(Struct, frozen=True, array_like=True):
    """What a request must have in common with the one that it comes back for."""

    method: str
    target: str
    digest: str
    principal: str | None


class State(Struct, frozen=True, array_like=True):
    """What is sealed into `requestState`."""

    call_id: str
    segment: int
    ticket: Ticket
    expires: int


_decode_state = msgspec.json.Decoder(State).decode


class Desk:
    """All detached calls of one server."""

    def __init__(self, keys: KeyRing, time_limit: float) -> None:
        self.time_limit = time_limit
        """Seconds that a detached question waits by default."""
        self._keys = keys
        self._calls: dict[str, InputRequired] = {}
        self._active: dict[str | None, dict[str, InputRequired]] = {}
        """Those that have not ended, by principal; the ones used last stand last."""
        self._count = 0
        self._ended: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._bytes = 0
        self._by_key: dict[tuple[str | None, str], str] = {}
        self._tasks: dict[str, str] = {}

    def park(self, dialect: "InputRequired") -> None:
        """A call has begun that may have to be found again."""
        if dialect.call is None:
            return
        dialect.call_id = dialect.call.id
        principal = dialect.ticket.principal
        self._calls[dialect.call_id] = dialect
        self._active.setdefault(principal, {})[dialect.call_id] = dialect
        self._count += 1
        if dialect.idempotency_key is not None:
            self._by_key[principal, dialect.idempotency_key] = dialect.call_id
        if self._count > PARKED_CALLS:
            self._give_up_one()

    def used(self, dialect: "InputRequired") -> None:
        """The caller has come back to a call."""
        mine = self._active[dialect.ticket.principal]
        mine[dialect.call_id] = mine.pop(dialect.call_id)

    def _give_up_one(self) -> None:
        most = max(self._active.values(), key=len)
        oldest = next(iter(most.values()))
        self._end(oldest)
        if oldest.call is not None:
            oldest.call.abort("Too many calls wait for their callers")

    def _end(self, dialect: "InputRequired") -> None:
        principal = dialect.ticket.principal
        mine = self._active.get(principal, {})
        if mine.pop(dialect.call_id, None) is not None:
            self._count -= 1
            if not mine:
                del self._active[principal]

    def finished(self, dialect: "InputRequired") -> None:
        """A call has ended: keep its outcome for a while, if anybody can come back for it."""
        self._end(dialect)
        if not dialect.findable:
            self._calls.pop(dialect.call_id, None)
            return
        now = time.monotonic()
        size = dialect.size
        self._ended[dialect.call_id] = (now + KEPT_SECONDS, size)
        self._bytes += size
        while self._ended:
            oldest, (until, _) = next(iter(self._ended.items()))
            if until > now and len(self._ended) <= KEPT_CALLS and self._bytes <= KEPT_BYTES:
                break
            self._forget(oldest)

    def _forget(self, call_id: str) -> None:
        _, size = self._ended.pop(call_id)
        self._bytes -= size
        dialect = self._calls.pop(call_id)
        if dialect.idempotency_key is not None:
            self._by_key.pop((dialect.ticket.principal, dialect.idempotency_key), None)
        if dialect.task is not None:
            self._tasks.pop(dialect.task.id, None)

    def again(self, ticket: Ticket, idempotency_key: str | None) -> "InputRequired | None":
        """The call that this key started before. Raises an error if it was for another request."""
        if idempotency_key is None:
            return None
        found = self._calls.get(self._by_key.get((ticket.principal, idempotency_key), ""))
        if found is not None and found.ticket != ticket:
            raise McpError(-32602, "This idempotency key was used for another request", status=400)
        return found

    # --- sealed state ------------------------------------------------------------------------

    def seal(self, state: State) -> str:
        return self._keys.seal(msgspec.json.encode(state))

    def find(self, request_state: str, ticket: Ticket) -> "tuple[InputRequired, State]":
        """The parked call of this state. Raises the one error that covers all that may be wrong."""
        try:
            state = _decode_state(self._keys.open(request_state))
        except (BadSeal, msgspec.DecodeError):
            raise _invalid() from None
        dialect = self._calls.get(state.call_id)
        if dialect is None or state.ticket != ticket or state.expires < time.time():
            raise _invalid()
        return dialect, state

    # --- tasks -------------------------------------------------------------------------------

    def make_task(self, dialect: "InputRequired") -> Task:
        task = Task(secrets.token_urlsafe(18), KEPT_SECONDS)
        self._tasks[task.id] = dialect.call_id
        return task

    def task(self, task_id: str, principal: str | None) -> "tuple[InputRequired, Task]":
        """A task of this principal. Raises an error for all others."""
        dialect = self._calls.get(self._tasks.get(task_id, ""))
        if dialect is None or dialect.task is None or dialect.ticket.principal != principal:
            raise McpError(-32602, f"Unknown task: {task_id}")
        return dialect, dialect.task


def _invalid() -> McpError:
    return McpError(-32602, "Invalid or expired requestState", status=400)

"""Desk: where parked calls are found again, by sealed state, by idempotency key and by task id.

Calls are parked in memory. What has ended stays for a while, so that a client that lost the answer
can ask again; the oldest go first when there are too many.
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
        self._parked: dict[str, InputRequired] = {}
        self._ended: OrderedDict[str, float] = OrderedDict()
        self._by_key: dict[tuple[str | None, str], str] = {}
        self._tasks: dict[str, str] = {}

    def park(self, dialect: "InputRequired") -> None:
        """A call has begun that may have to be found again."""
        if dialect.call is None:
            return
        self._parked[dialect.call.id] = dialect
        if dialect.idempotency_key is not None:
            self._by_key[dialect.ticket.principal, dialect.idempotency_key] = dialect.call.id

    def finished(self, dialect: "InputRequired") -> None:
        """A call has ended: keep its outcome for a while."""
        if dialect.call is None or dialect.call.id not in self._parked:
            return
        now = time.monotonic()
        self._ended[dialect.call.id] = now + KEPT_SECONDS
        while self._ended:
            oldest, until = next(iter(self._ended.items()))
            if until > now and len(self._ended) <= KEPT_CALLS:
                break
            self._forget(oldest)

    def _forget(self, call_id: str) -> None:
        del self._ended[call_id]
        dialect = self._parked.pop(call_id)
        if dialect.idempotency_key is not None:
            self._by_key.pop((dialect.ticket.principal, dialect.idempotency_key), None)
        if dialect.task is not None:
            self._tasks.pop(dialect.task.id, None)

    def again(self, principal: str | None, idempotency_key: str | None) -> "InputRequired | None":
        """The call that this key started before."""
        if idempotency_key is None:
            return None
        return self._parked.get(self._by_key.get((principal, idempotency_key), ""))

    # --- sealed state ------------------------------------------------------------------------

    def seal(self, state: State) -> str:
        return self._keys.seal(msgspec.json.encode(state))

    def find(self, request_state: str, ticket: Ticket) -> "tuple[InputRequired, State]":
        """The parked call of this state. Raises the one error that covers all that may be wrong."""
        try:
            state = _decode_state(self._keys.open(request_state))
        except (BadSeal, msgspec.DecodeError):
            raise _invalid() from None
        dialect = self._parked.get(state.call_id)
        if dialect is None or state.ticket != ticket or state.expires < time.time():
            raise _invalid()
        return dialect, state

    # --- tasks -------------------------------------------------------------------------------

    def make_task(self, dialect: "InputRequired") -> Task:
        task = Task(secrets.token_urlsafe(18), int(self.time_limit * 1000))
        if dialect.call is not None:
            self._tasks[task.id] = dialect.call.id
        return task

    def task(self, task_id: str, principal: str | None) -> "tuple[InputRequired, Task]":
        """A task of this principal. Raises an error for all others."""
        dialect = self._parked.get(self._tasks.get(task_id, ""))
        if dialect is None or dialect.task is None or dialect.ticket.principal != principal:
            raise McpError(-32602, f"Unknown task: {task_id}")
        return dialect, dialect.task


def _invalid() -> McpError:
    return McpError(-32602, "Invalid or expired requestState", status=400)

"""Task: a call that goes on without its request, as a client that knows tasks sees it.

`ttlMs` counts from the creation, and is as long as the task is sure to be found: while it works, as long
as an outcome would be kept if it came now; so it grows with each look. Once there is an outcome, it stays.
"""

import datetime as dt
import time
from typing import Any

from midcall.call import Call
from midcall.mcp.exchange import McpError

POLL_INTERVAL_MS = 500


class Task:
    """The state of one task: its times, and its outcome once it has one."""

    __slots__ = ("_began", "_created", "_ended", "_kept", "_updated", "id", "outcome", "status")

    def __init__(self, id: str, kept: float) -> None:
        self.id = id
        self._kept = kept
        """Seconds that the outcome is kept."""
        self._began = time.monotonic()
        self._ended: float | None = None
        self._created = self._updated = _now()
        self.status = "working"
        self.outcome: dict[str, Any] = {}

    def touch(self) -> None:
        self._updated = _now()

    def finish(self, call: Call | None, outcome: dict[str, Any] | McpError) -> None:
        """The call has ended; its outcome is the result of the request, or the protocol's error."""
        self.touch()
        self._ended = time.monotonic()
        if call is not None and call.reason is not None:
            self.status = "cancelled"
            return
        if isinstance(outcome, McpError):
            self.outcome = {"error": {"code": outcome.code, "message": outcome.message}}
            self.status = "failed"
        else:
            self.outcome = {"result": outcome}
            self.status = "completed"

    def created(self) -> dict[str, Any]:
        """The answer to the request that became this task."""
        return {"resultType": "task", **self._shown(self.status)}

    def shown(self, input_requests: dict[str, Any]) -> dict[str, Any]:
        """The answer to `tasks/get`."""
        if input_requests and self.status == "working":
            return {**self._shown("input_required"), "inputRequests": input_requests}
        return {**self._shown(self.status), **self.outcome}

    def _shown(self, status: str) -> dict[str, Any]:
        until = (time.monotonic() if self._ended is None else self._ended) + self._kept
        return {
            "taskId": self.id,
            "status": status,
            "createdAt": self._created,
            "lastUpdatedAt": self._updated,
            "ttlMs": int((until - self._began) * 1000),
            "pollIntervalMs": POLL_INTERVAL_MS,
        }


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Tasks: calls that go on without their request, as a client that knows tasks sees them.

A task is a call in the journal, under the same id; everything here is read from its record. `ttlMs` counts
from the creation, and is as long as the task is sure to be found.
"""

import datetime as dt
from typing import Any

from midcall.journal.contract import CallRecord
from midcall.mcp.exchange import McpError
from midcall.mcp.outcomes import decode_outcome, input_requests

POLL_INTERVAL_MS = 500

_STATUS = {
    "running": "working",
    "waiting": "input_required",
    "diverged": "working",
    "completed": "completed",
    "failed": "failed",
    "aborted": "cancelled",
    "expired": "cancelled",
    "poisoned": "failed",
}


def created(record: CallRecord) -> dict[str, Any]:
    """The answer to the request that became this task."""
    return {"resultType": "task", **_shown(record, "working")}


def shown(record: CallRecord, outcome: bytes | None) -> dict[str, Any]:
    """The answer to `tasks/get`."""
    status = _STATUS[record.status]
    if status == "input_required":
        return {**_shown(record, status), "inputRequests": input_requests(record)}
    if outcome is None or status == "cancelled":
        if status == "failed":
            return {**_shown(record, status), "error": {"code": -32603, "message": "The task was given up"}}
        return _shown(record, status)
    decoded = decode_outcome(outcome)
    if isinstance(decoded, McpError):
        error = {"code": decoded.code, "message": decoded.message}
        return {**_shown(record, "failed"), "error": error}
    return {**_shown(record, "completed"), "result": decoded}


def _shown(record: CallRecord, status: str) -> dict[str, Any]:
    return {
        "taskId": record.id,
        "status": status,
        "createdAt": _iso(record.created),
        "lastUpdatedAt": _iso(record.updated or record.created),
        "ttlMs": int((record.expires - record.created) * 1000),
        "pollIntervalMs": POLL_INTERVAL_MS,
    }


def _iso(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

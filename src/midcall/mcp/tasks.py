"""Tasks: calls that go on without their request, as a client that knows tasks sees them.

A task is a call in the journal, under the same id; what is told of it is read from its record. `ttlMs` counts
from the creation, and is as long as the task is sure to be found.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from midcall.errors import UnknownQuestion
from midcall.journal.contract import WITH_OUTCOME, Busy, CallRecord, Gone, Settled
from midcall.journal.dialect import Detached
from midcall.journal.forward import Forwarded
from midcall.journal.state import asked_of, for_caller, is_answered, timestamp
from midcall.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from midcall.mcp.dialects.input_required import InputRequired
from midcall.mcp.elicitation import input_requests, read_answers
from midcall.mcp.messages import TaskParams
from midcall.mcp.request import McpError, McpRequest, require
from midcall.mcp.results import decode_outcome
from midcall.principal import Principal

if TYPE_CHECKING:
    from midcall.mcp.resume import Resumption

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

Work: TypeAlias = Callable[["Resumption", CallRecord, TaskParams], Awaitable[dict[str, Any]]]
"""What is done with a task: gives the result of the request."""


def serve(
    resumption: "Resumption",
    request: McpRequest,
    params: TaskParams,
    principal: Principal | None,
    work: Work,
) -> None:
    """Do something with a task of this caller, and answer with what it gives."""
    require(("tasks",), request.caller)

    async def serve() -> None:
        await resumption.durable.open()
        await resumption.durable.up_to_date(params.task_id)
        found = await resumption.durable.journal.load(params.task_id)
        if found is None or not resumption.is_of(found[0], request.caller):
            raise McpError(INVALID_PARAMS, f"Unknown task: {params.task_id}")
        resumption.check_scopes(found[0], principal)  # the person may come back with another key
        if is_answered(*found):
            await resumption.take_up(found[0])
        request.result(await work(resumption, found[0], params))

    resumption.spawn(request, serve)


async def get(resumption: "Resumption", record: CallRecord, params: TaskParams) -> dict[str, Any]:
    """`tasks/get`. Whoever asks for a task that nobody looks after has it go on."""
    if record.status in WITH_OUTCOME:
        return shown(record, await resumption.outcome(record))
    if record.status != "waiting" or not asked_of(record).questions:
        await resumption.take_up(record)
    waits_for = resumption.durable.waiting_for(record) if record.status == "waiting" else ()
    return shown(record, None, waits_for, partial(resumption.shows_nested, record))


async def update(resumption: "Resumption", record: CallRecord, params: TaskParams) -> dict[str, Any]:
    """`tasks/update`: when it is answered, the answers are in the journal."""
    given = await read_answers(resumption.durable, record.id, params.input_responses or {})
    dialect: Detached | Forwarded | Settled | Busy | Gone | None = None
    if given.answers:
        try:
            dialect = await resumption.durable.answer(record.id, given.answers)
        except UnknownQuestion:
            return {}  # answered, or given up, in this moment: as for any other key that is not open
        if isinstance(dialect, Busy):
            raise McpError(INTERNAL_ERROR, "The task is busy: try again", {"recoverable": True})
    elif given.notes:  # nothing was answered that could be read: have it asked again, with the reason
        dialect = resumption.durable.live.get(record.id) or await resumption.take_up(record)
    if isinstance(dialect, InputRequired):
        dialect.note(given.notes)
    return {}


async def cancel(resumption: "Resumption", record: CallRecord, params: TaskParams) -> dict[str, Any]:
    """`tasks/cancel`."""
    await resumption.abort(record.id, "The task was cancelled")
    return {}


# --- how it is told -------------------------------------------------------------------------------


def created(record: CallRecord) -> dict[str, Any]:
    """The answer to the request that became this task."""
    return {"resultType": "task", **_shown(record, "working")}


def shown(
    record: CallRecord,
    outcome: bytes | None,
    waits_for: Sequence[str] = (),
    nested: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """The answer to `tasks/get`; `waits_for` says for whom else than the caller the task waits, and `nested`
    whether the caller shows forms that are not flat."""
    status = _STATUS[record.status]
    message = {"statusMessage": "\n".join(waits_for)} if waits_for else {}
    if status == "input_required":
        own = for_caller(asked_of(record).questions)
        if waits_for and not own:
            return {**_shown(record, "working"), **message}
        return {**_shown(record, status), **message, "inputRequests": input_requests(own, nested)}
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
        "createdAt": timestamp(record.created, "milliseconds"),
        "lastUpdatedAt": timestamp(record.updated or record.created, "milliseconds"),
        "ttlMs": int((record.expires - record.created) * 1000),
        "pollIntervalMs": POLL_INTERVAL_MS,
    }

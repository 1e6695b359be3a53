"""Following: a call that the server has made a task of (`io.modelcontextprotocol/tasks`), to its end.

The task is looked at from time to time, and what it asks is answered. It outlives a lost line: the next one
is asked for the same task.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from midcall.client.session import Session, in_time
from midcall.client.wire import About
from midcall.errors import Aborted, RemoteError, TransportLost, Unreachable
from midcall.items import to_json
from midcall.jsonrpc import INTERNAL_ERROR

POLL = 0.5
LONGEST_POLL = 30.0
"""Seconds between two looks at a task: if the server does not say, and at most."""

MAX_LOSSES = 5
"""How often in a row the line may be lost while a task is looked at."""

Sessions = Callable[[], Awaitable[Session]]
Answers = Callable[[Any], Awaitable[dict[str, Any]]]


async def follow(
    task: dict[str, Any],
    session: Sessions,
    answers: Answers,
    silence: float | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The result of a task. Raises what it failed with.

    `session` gives the line, `answers` what is answered to questions, `tell` hears what the task says of
    itself. `silence` is for how many seconds the server may leave a look at the task unanswered.
    """
    looking = _Looking(task["taskId"], session, silence)
    answered: set[str] = set()
    said = None
    while True:
        message = task.get("statusMessage")
        if isinstance(message, str) and message != said:
            tell(message)
            said = message
        pause = _interval(task)
        match task.get("status"):
            case "completed" if isinstance(task.get("result"), dict):
                result: dict[str, Any] = task["result"]
                return result
            case "failed":
                raise _error(task.get("error"))
            case "cancelled":
                raise Aborted(said or "The task was cancelled")
            case "input_required":
                asked = _unanswered(task.get("inputRequests"), answered)
                if asked:
                    await looking.request("tasks/update", {"inputResponses": await answers(asked)})
                    answered |= asked.keys()
                    pause = 0.0
            case "working":
                answered.clear()
            case status:
                raise RemoteError(f"The task ended strangely: {status!r}", rpc_code=INTERNAL_ERROR)
        await asyncio.sleep(pause)
        task = await looking.request("tasks/get", {})


class _Looking:
    """Asks a server for one task, on whichever line there is."""

    def __init__(self, task_id: str, session: Sessions, silence: float | None) -> None:
        self._task_id = task_id
        self._session = session
        self._silence = silence

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request about the task. All of them may be sent twice."""
        inside = to_json({"taskId": self._task_id, **params})[1:-1]
        losses = 0
        while True:
            session = await self._session()
            work = session.request(method, inside, About(method, self._task_id))
            try:
                found: dict[str, Any] = await in_time(work, self._silence, method)
            except (TransportLost, Unreachable):
                losses += 1
                if losses > MAX_LOSSES:
                    raise
                await asyncio.sleep(POLL * losses)
            else:
                return found


def _interval(task: dict[str, Any]) -> float:
    wanted = task.get("pollIntervalMs")
    if not isinstance(wanted, int | float):
        return POLL
    return min(max(wanted / 1000, 0.01), LONGEST_POLL)


def _unanswered(requests: Any, answered: set[str]) -> dict[str, Any]:
    if not isinstance(requests, dict):
        raise RemoteError("The task's questions cannot be read", rpc_code=INTERNAL_ERROR)
    return {key: request for key, request in requests.items() if key not in answered}


def _error(error: Any) -> RemoteError:
    if not isinstance(error, dict):
        return RemoteError("The task failed", rpc_code=INTERNAL_ERROR)
    message, code = error.get("message"), error.get("code")
    return RemoteError(
        message if isinstance(message, str) else "The task failed",
        rpc_code=code if isinstance(code, int) else INTERNAL_ERROR,
        rpc_data=error.get("data"),
    )

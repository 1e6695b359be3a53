"""Calling: one request of a client that may take several rounds, to its end.

`tools/call`, `prompts/get` and `resources/read` may come back with questions (a modern server), or with a
task that is to be asked for. The usual one comes back with its result: then no task of the event loop was
needed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import UNSET

from midcall.client.answering import Answering, Asker
from midcall.client.session import Session, Waiter, error_of
from midcall.client.wire import About
from midcall.errors import Aborted, MidcallError, RemoteError, TimedOut, Unreachable
from midcall.items import to_json
from midcall.jsonrpc import Envelope
from midcall.mcp.elicitation import ELICIT

MAX_ROUNDS = 100
"""How often a server may ask in one call."""

URL_REQUIRED = -32042
"""The error of a legacy server that wants pages to be visited before the same request is sent again."""

POLL = 0.5
LONGEST_POLL = 30.0
"""Seconds between two looks at a task: if the server does not say, and at most."""

Outcome: TypeAlias = dict[str, Any] | MidcallError
"""The result as the server gave it, or why there is none."""

Handle: TypeAlias = dict[str, Any]
"""What a call is found again by that has asked, or has become a task; JSON carries it."""


class Owner(Protocol):
    """The client, as far as a call knows it."""

    @property
    def answering(self) -> Answering: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for a call, owned by the client."""

    def again(self, calling: "Calling", error: MidcallError) -> None:
        """Start a call once there is a line again, as this one did not reach the server."""


class Calling(Waiter):
    """A request, until its outcome."""

    __slots__ = (
        "_done",
        "_id",
        "_meta",
        "_owner",
        "_params",
        "_report",
        "_rounds",
        "_session",
        "_silence",
        "_task",
        "_timer",
        "about",
        "asker",
        "first_failed",
        "handle",
        "tries",
    )

    def __init__(
        self,
        owner: Owner,
        about: About,
        params: bytes,
        done: Callable[[Outcome], None],
        *,
        asker: Asker | None = None,
        report: Callable[[str, dict[str, Any]], None] | None = None,
        silence: float | None = None,
        meta: bytes = b"",
    ) -> None:
        self._owner = owner
        self.about = about
        self._params = params
        self._meta = meta
        self._done: Callable[[Outcome], None] | None = done
        self.asker = asker
        """Who is asked what belongs to this call."""
        self._report = report
        self._silence = silence
        self._timer: asyncio.TimerHandle | None = None
        self._session: Session | None = None
        self._id = 0
        self._rounds = 0
        self._task: asyncio.Task[None] | None = None
        self.tries = 0
        """How often it did not reach the server, and when that was first."""
        self.first_failed = 0.0
        self.handle: Handle | None = None
        """How to go on with it, once it has asked or become a task."""

    # --- sending -----------------------------------------------------------------------------

    def start(self, session: Session) -> None:
        """Send the request, or what comes after the last round."""
        if self._done is None:
            return
        self._session = session
        if self.handle is None:
            self._send(self._params)
        else:
            self._task = self._owner.spawn(self._go_on(self.handle))

    def adopt(self, session: Session, id: int) -> None:
        """It was sent in a batch."""
        self._session, self._id = session, id

    @property
    def params(self) -> bytes:
        """The inside of its parameters."""
        return self._params

    def _send(self, params: bytes) -> None:
        if self._session is not None and self._done is not None:
            self._listen()
            self._id = self._session.start(
                self, self.about, params, progress=self._report is not None, meta=self._meta
            )

    def give_up(self, error: MidcallError) -> None:
        """There is no line, and will be none soon."""
        self._finish(error)

    def cancel(self, reason: str) -> None:
        """Nobody wants the outcome any more: the server is told, and nothing is said of it."""
        if self._done is None:
            return
        self._end()
        if self._session is not None:
            self._session.cancel(self._id, reason)
            if self.handle is not None and "taskId" in self.handle and self._session.ended is None:
                params = to_json({"taskId": self.handle["taskId"]})[1:-1]
                self._session.start(Waiter(), About("tasks/cancel", self.handle["taskId"]), params)

    # --- what comes back ---------------------------------------------------------------------

    def answered(self, response: Envelope) -> None:
        if response.error is not UNSET:
            error = error_of(response)
            if error.rpc_code == URL_REQUIRED and not self._rounds:
                self._task = self._owner.spawn(self._visit(error))
            else:
                self._finish(error)
            return
        try:
            result = msgspec.json.decode(response.result)
            kind = result.get("resultType", "complete")
        except (msgspec.DecodeError, RecursionError, AttributeError):
            self._finish(RemoteError("The server's result cannot be read", rpc_code=-32603))
            return
        match kind:
            case "complete":
                self._finish(result)
            case "input_required":
                self.handle = self._asked(result)
                self._task = self._owner.spawn(self._go_on(self.handle))
            case "task" if isinstance(result.get("taskId"), str):
                self.handle = {**self._named(), **result}
                self._task = self._owner.spawn(self._go_on(self.handle))
            case _:
                self._finish(RemoteError(f"A result of unknown type: {kind!r}", rpc_code=-32603))

    def failed(self, error: MidcallError) -> None:
        if self._done is None:
            return
        if isinstance(error, Unreachable) and self._task is None:
            self._still()
            self._owner.again(self, error)
        else:
            self._finish(error)

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        self._listen()
        if self._report is not None:
            self._report(method, params)

    # --- rounds ------------------------------------------------------------------------------

    async def _go_on(self, handle: Handle) -> None:
        """Answer what was asked, or ask how the task is; then send what follows."""
        self._still()
        try:
            if "taskId" in handle:
                await self._follow(handle)
                return
            params = self._params
            if "inputRequests" in handle:
                params += b',"inputResponses":' + to_json(await self._answers(handle["inputRequests"]))
            else:
                await asyncio.sleep(min(0.1 * self._rounds, 1.0))  # the server only wants to be asked again
            if "requestState" in handle:
                params += b',"requestState":' + to_json(handle["requestState"])
            self._send(params)
        except MidcallError as error:
            self._finish(error)
        except Exception as error:  # noqa: BLE001  of a handler: it is the caller's, as is the call
            self._finish(_broken(error))

    async def _answers(self, requests: Any) -> dict[str, Any]:
        """What is answered to several questions of one round, which are asked at once."""
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise RemoteError(f"The server asked in more than {MAX_ROUNDS} rounds", rpc_code=-32603)
        if not isinstance(requests, dict):
            raise RemoteError("The server's questions cannot be read", rpc_code=-32603)
        answering = self._owner.answering
        async with asyncio.TaskGroup() as group:
            asked = {
                key: group.create_task(
                    answering.asked(
                        str(one.get("method")) if isinstance(one, dict) else "",
                        one.get("params") or {} if isinstance(one, dict) else {},
                        self.asker,
                    )
                )
                for key, one in requests.items()
            }
        return {key: task.result() for key, task in asked.items()}

    async def _follow(self, handle: Handle) -> None:
        """Look at a task until it has ended; answer what it asks."""
        session, task_id = self._session, handle["taskId"]
        if session is None:
            return
        answered: set[str] = set()
        state = handle
        about = About("tasks/get", task_id)
        params = to_json({"taskId": task_id})[1:-1]
        while True:
            match state.get("status"):
                case "completed" if isinstance(state.get("result"), dict):
                    self._finish(state["result"])
                    return
                case "failed" | "completed":
                    error = state.get("error") or {}
                    text = error.get("message") or "The task failed"
                    raise RemoteError(text, rpc_code=error.get("code", -32603), rpc_data=error.get("data"))
                case "cancelled":
                    raise Aborted(state.get("statusMessage") or "The task was cancelled")
                case "input_required":
                    asked = {k: v for k, v in state.get("inputRequests", {}).items() if k not in answered}
                    if asked:
                        given = await self._answers(asked)
                        answered |= asked.keys()
                        update = to_json({"taskId": task_id, "inputResponses": given})[1:-1]
                        await session.request("tasks/update", update, About("tasks/update", task_id))
                        pause = 0.0
                    else:
                        pause = POLL
                case _:
                    answered.clear()
                    pause = min(state.get("pollIntervalMs", POLL * 1000) / 1000, LONGEST_POLL)
            await asyncio.sleep(pause)
            state = msgspec.json.decode(await session.request("tasks/get", params, about))

    async def _visit(self, error: RemoteError) -> None:
        """A legacy server wants pages to be visited first."""
        self._still()
        data = error.rpc_data if isinstance(error.rpc_data, dict) else {}
        wanted = {
            str(number): {"method": ELICIT, "params": {"mode": "url", **one}}
            for number, one in enumerate(data.get("elicitations") or ())
            if isinstance(one, dict)
        }
        try:
            given = await self._answers(wanted) if wanted else {}
        except MidcallError:
            given = {}
        if given and all(one.get("action") == "accept" for one in given.values()):
            self._send(self._params)
        else:
            self._finish(error)

    def _asked(self, result: dict[str, Any]) -> Handle:
        kept: Handle = {key: result[key] for key in ("inputRequests", "requestState") if key in result}
        return {**self._named(), **kept}

    def _named(self) -> Handle:
        params = msgspec.json.decode(b"{%b}" % self._params)
        return {"method": self.about.method, "params": params}

    # --- the end -----------------------------------------------------------------------------

    def _finish(self, outcome: Outcome) -> None:
        done = self._done
        if done is not None:
            self._end()
            done(outcome)

    def _end(self) -> None:
        self._done = None
        self._still()
        task, self._task = self._task, None
        if task is not None and task is not _current():
            task.cancel()

    # --- silence -----------------------------------------------------------------------------

    def _listen(self) -> None:
        """From now on the server has its time to say something."""
        if self._silence is not None:
            self._still()
            self._timer = asyncio.get_running_loop().call_later(self._silence, self._too_long)

    def _still(self) -> None:
        """Nothing is expected of the server: a person thinks, or it is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_long(self) -> None:
        if self._session is not None and self._done is not None:
            self._session.cancel(self._id, "No sign of life")
            what = self.about.name or self.about.method
            self._finish(TimedOut(f"{what}: no sign of life within {self._silence:g} seconds"))

    async def while_asked(self, asking: Coroutine[Any, Any, Any]) -> Any:
        """A legacy server asks in the middle of this call: that time is not the server's."""
        self._still()
        try:
            return await asking
        finally:
            if self._done is not None:
                self._listen()


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _broken(error: BaseException) -> MidcallError:
    """What a handler of questions failed with."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MidcallError):
        return error
    broken = Aborted(f"A question could not be answered: {error or type(error).__name__}")
    broken.__cause__ = error
    return broken

"""Calling: one request of a client that may take several rounds, to its end.

`tools/call`, `prompts/get` and `resources/read` may come back with questions (a modern server), or with a
task that is to be asked for. The usual one comes back with its result: then no task of the event loop was
needed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias

import msgspec

from midcall.client.answering import Answering, Asker
from midcall.client.following import follow
from midcall.client.responses import Waiter, result_of
from midcall.client.session import Session
from midcall.client.wire import About
from midcall.errors import Aborted, MidcallError, RemoteError, TimedOut, TransportLost, Unreachable
from midcall.items import to_json
from midcall.jsonrpc import INTERNAL_ERROR, Envelope
from midcall.mcp.elicitation import ELICIT, URL_REQUIRED

MAX_ROUNDS = 100
"""How often a server may ask in one call."""

MAX_VISITS = 3
"""How often a server may want pages to be visited before one call."""

MAX_REFUSALS = 10
"""How often a call that nobody comes back for may ask again."""

MAX_WAITS = 1000
"""How often a server may say in one call that it only wants to be asked again."""

HEADER_MISMATCH = -32020
"""The error of a modern server that misses arguments among the headers of a request."""

ROUND = frozenset(("inputRequests", "requestState"))
"""What a server says when it asks in the middle of a call."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
"""Seconds before what was not sent is sent again: at first, and at most."""

Outcome: TypeAlias = dict[str, Any] | MidcallError
"""The result as the server gave it, or why there is none."""

Handle: TypeAlias = dict[str, Any]
"""What a call is found again by that has asked, or has become a task; JSON carries it."""


class Owner(Protocol):
    """The client, as far as a call knows it."""

    @property
    def answering(self) -> Answering: ...

    @property
    def patience(self) -> float | None:
        """For how many seconds a server that cannot be reached is tried again."""

    async def session(self) -> Session:
        """The session that is open now, or soon. Raises `Unreachable`."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for a call, owned by the client."""

    def abandon(self, about: About, params: bytes, handle: "Handle") -> None:
        """Have the server told that nobody comes back for a call."""

    async def better_headers(self, about: About, arguments: Any) -> tuple[tuple[str, str], ...]:
        """The headers for a call of a tool that was refused for them, after another look at the tools."""


class Calling(Waiter):
    """A request, until its outcome."""

    __slots__ = (
        "_asking",
        "_done",
        "_failed_since",
        "_id",
        "_meta",
        "_next",
        "_owner",
        "_params",
        "_relisted",
        "_report",
        "_rounds",
        "_session",
        "_silence",
        "_task",
        "_timer",
        "_tries",
        "_visited",
        "_waits",
        "about",
        "asker",
        "handle",
        "kept",
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
        handle: Handle | None = None,
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
        self._next: bytes | None = params if handle is None else None
        """The inside of the parameters of what is to be sent; nothing while the handle tells what is next."""
        self._task: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[Any]] | None = None
        """The questions of a legacy server that belong to this call."""
        self._rounds = self._waits = self._tries = 0
        self._failed_since = 0.0
        self._visited: frozenset[str] = frozenset()
        self._relisted = False
        self.handle = handle
        """How to go on with it, once it has asked or become a task."""
        self.kept = False
        """Whether somebody may come back for it by its handle: then it is left to wait."""

    # --- sending -----------------------------------------------------------------------------

    def start(self, session: Session) -> None:
        """Send what is next."""
        if self._done is None:
            return
        self._session = session
        if self._next is not None:
            self._listen()
            self._id = session.start(
                self, self.about, self._next, progress=self._report is not None, meta=self._meta
            )
        elif self.handle is not None:
            self._spawn(self._go_on(self.handle))

    def adopt(self, session: Session, id: int) -> None:
        """It was sent in a batch."""
        self._session, self._id = session, id

    @property
    def running(self) -> bool:
        """Whether it has no outcome yet, and one is wanted."""
        return self._done is not None

    @property
    def params(self) -> bytes:
        """The inside of its parameters."""
        return self._params

    def cancel(self, reason: str) -> None:
        """Nobody wants the outcome any more: the server is told, and nothing is said of it."""
        session = self._session
        if self._done is None:
            return
        self._end()
        if session is not None:
            session.cancel(self._id, reason)
        self._abandon()

    def _abandon(self) -> None:
        """Nobody answers what it has asked, or asks for its task: it is not left to wait at the server."""
        handle = self.handle
        if handle is None or self.kept:
            return
        if "taskId" in handle or ("inputRequests" in handle and self._next is None):
            self._owner.abandon(self.about, self._params, handle)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what takes time; what that fails with, the call fails with. The server's time stands still."""
        self._still()
        task = self._task = self._owner.spawn(work)
        task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if task.cancelled():
            self._finish(TransportLost("The client was closed"))
        elif (error := task.exception()) is not None:
            self._finish(_outcome(error))

    # --- what comes back ---------------------------------------------------------------------

    def answered(self, response: Envelope) -> None:
        self._tries = 0
        try:
            result = result_of(response)
        except RemoteError as error:
            self._refused(error)
            return
        match result.get("resultType", "complete"):
            case "complete":
                self._finish(result)
            case "input_required":
                kept: Handle = {key: result[key] for key in ROUND if key in result}
                self._continue({**self._named(), **kept})
            case "task" if isinstance(result.get("taskId"), str):
                self._continue({**self._named(), **result})
            case kind:
                self._finish(RemoteError(f"A result of unknown type: {kind!r}", rpc_code=INTERNAL_ERROR))

    def failed(self, error: MidcallError) -> None:
        match error:
            case _ if self._done is None:
                pass
            case Unreachable():
                self._spawn(self._again(error))
            case RemoteError():
                self._refused(error)
            case _:
                self._finish(error)

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        if not self._asking:
            self._listen()
        if self._report is not None:
            self._report(method, params)

    def _refused(self, error: RemoteError) -> None:
        if error.rpc_code == URL_REQUIRED:
            self._spawn(self._visit(error))
        elif error.rpc_code == HEADER_MISMATCH and self.about.method == "tools/call" and not self._relisted:
            self._spawn(self._with_headers(error))
        else:
            self._finish(error)

    def _continue(self, handle: Handle) -> None:
        self.handle, self._next = handle, None
        self._spawn(self._go_on(handle))

    def _named(self) -> Handle:
        return {"method": self.about.method, "params": msgspec.json.decode(b"{%b}" % self._params)}

    # --- rounds ------------------------------------------------------------------------------

    async def _go_on(self, handle: Handle) -> None:
        """Answer what was asked, or ask how the task is; then send what follows."""
        if "taskId" in handle:
            self._finish(await follow(handle, self._owner.session, self._answers, self._silence, self._tell))
            return
        params = self._params
        if "inputRequests" in handle:
            params += b',"inputResponses":' + to_json(await self._answers(handle["inputRequests"]))
        else:
            await self._wait()
        if "requestState" in handle:
            params += b',"requestState":' + to_json(handle["requestState"])
        self._next = params
        self.start(await self._owner.session())

    async def _wait(self) -> None:
        """The server only wants to be asked again."""
        self._waits += 1
        if self._waits > MAX_WAITS:
            raise RemoteError("The server wanted to be asked again too often", rpc_code=INTERNAL_ERROR)
        await asyncio.sleep(min(0.05 * (self._waits - 1), 1.0))

    async def _answers(self, requests: Any) -> dict[str, Any]:
        """What is answered to several questions of one round, which are asked at once."""
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise RemoteError(f"The server asked in more than {MAX_ROUNDS} rounds", rpc_code=INTERNAL_ERROR)
        if not isinstance(requests, dict) or not all(isinstance(one, dict) for one in requests.values()):
            raise RemoteError("The server's questions cannot be read", rpc_code=INTERNAL_ERROR)
        asked = self._owner.answering.asked
        try:
            async with asyncio.TaskGroup() as group:
                answers = {
                    key: group.create_task(asked(str(one.get("method")), one.get("params"), self.asker, key))
                    for key, one in requests.items()
                }
        except BaseException as error:
            if self._done is not None:
                self._abandon()
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from None  # the others were given up for it
            raise
        return {key: answer.result() for key, answer in answers.items()}

    def _tell(self, message: str) -> None:
        """A task says how it is."""
        if self._report is not None:
            self._report("notifications/progress", {"message": message})

    async def _visit(self, error: RemoteError) -> None:
        """A legacy server wants pages to be visited first."""
        data = error.rpc_data if isinstance(error.rpc_data, dict) else {}
        wanted = data.get("elicitations")
        pages = {
            str(one.get("elicitationId") or number): {"method": ELICIT, "params": {**one, "mode": "url"}}
            for number, one in enumerate(wanted if isinstance(wanted, list) else ())
            if isinstance(one, dict)
        }
        if not pages or self._visited & pages.keys() or self._rounds >= MAX_VISITS:
            raise error
        self._visited |= pages.keys()
        try:
            answers = await self._answers(pages)
        except MidcallError:
            raise error from None
        if not all(one.get("action") == "accept" for one in answers.values()):
            raise error
        self.start(await self._owner.session())

    async def _with_headers(self, error: RemoteError) -> None:
        """The tool was not known well enough: look at it again."""
        self._relisted = True
        arguments = msgspec.json.decode(b"{%b}" % self._params).get("arguments")
        headers = await self._owner.better_headers(self.about, arguments)
        if headers == self.about.headers:
            raise error
        self.about = msgspec.structs.replace(self.about, headers=headers)
        self.start(await self._owner.session())

    async def _again(self, error: MidcallError) -> None:
        """It did not reach the server: send it once there is a line again."""
        now, patience = time.monotonic(), self._owner.patience
        if not self._tries:
            self._failed_since = now
        if patience is not None and now - self._failed_since > patience:
            raise error
        await asyncio.sleep(min(FIRST_PAUSE * 2**self._tries, LONGEST_PAUSE))
        self._tries += 1
        self.start(await self._owner.session())

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
        for one in (*(self._asking or ()), *((task,) if task is not None else ())):
            if one is not _current():
                one.cancel()

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

    @asynccontextmanager
    async def while_asked(self) -> AsyncIterator[None]:
        """A legacy server asks in the middle of this call: that time is not the server's.

        If the call ends meanwhile, so does the question.
        """
        if self._done is None:
            raise Aborted("The call that this belongs to is over")
        self._still()
        task = _current()
        if self._asking is None:
            self._asking = set()
        if task is not None:
            self._asking.add(task)
        try:
            yield
        finally:
            if task is not None:
                self._asking.discard(task)
            if self._done is not None and not self._asking:
                self._listen()


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _outcome(error: BaseException) -> MidcallError:
    """What a call fails with, for what went wrong in a handler of questions or before."""
    if isinstance(error, MidcallError):
        return error
    broken = Aborted(f"A question could not be answered: {error or type(error).__name__}")
    broken.__cause__ = error
    return broken


async def refuse(session: Session, about: About, params: bytes, handle: Handle) -> None:
    """End a call that waits at a server: cancel its task, or all that it asks. Raises `MidcallError`."""
    if "taskId" in handle:
        task = handle["taskId"]
        await session.request("tasks/cancel", to_json({"taskId": task})[1:-1], About("tasks/cancel", task))
        return
    for _ in range(MAX_REFUSALS):
        asked = handle.get("inputRequests")
        if not isinstance(asked, dict):
            return
        answers = {key: {"action": "cancel"} for key in asked}
        inside = params + b',"inputResponses":' + to_json(answers)
        if handle.get("requestState") is not None:
            inside += b',"requestState":' + to_json(handle["requestState"])
        handle = await session.request(about.method, inside, about)


def tool_params(name: str, arguments: Any) -> bytes:
    """The inside of the parameters of `tools/call`."""
    return b'"name":%b,"arguments":%b' % (to_json(name), to_json(arguments) if arguments else b"{}")

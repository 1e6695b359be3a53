"""One call of a client, from `Client.call`, `call_tools` and the like to the rounds that it goes through.

A `ClientCall` hands its outcome to whoever waits for it. A `ToolLine` is one of these: it makes progress, log
and questions into the items of an `Invocation`.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from midcall.client.rounds import (
    Event,
    Exchange,
    Handle,
    Rounds,
    current_task,
    error_of,
    is_end,
    read_report,
    read_whole,
)
from midcall.client.server_requests import Asker
from midcall.client.session import ClientSession
from midcall.client.wire import About
from midcall.content import Passed, PassedError
from midcall.errors import (
    Aborted,
    MidcallError,
    RemoteError,
    TimedOut,
    ToolError,
    TransportLost,
    UnknownQuestion,
    Unreachable,
)
from midcall.invocation import Line
from midcall.items import Data, Done, Error, Metadata, Outlet, Request, RequestCancelled, to_json
from midcall.jsonrpc import INTERNAL_ERROR
from midcall.mcp.elicitation import read_reply
from midcall.mcp.results import ERROR_CODE, objects_in, text_of, unwrapped
from midcall.questions import AnyQuestion

if TYPE_CHECKING:
    from midcall.client.client import Client

MAX_REFUSALS = 10
"""How often a call that nobody comes back for may ask again."""

MAX_BEHIND = 10_000
"""How much progress and log is kept for a reader that is behind; what comes on top is left out."""

Outcome: TypeAlias = dict[str, Any] | MidcallError
"""The result as the server gave it, or why there is none."""


class ClientCall(Rounds):
    """A request of a client, until its outcome."""

    __slots__ = (
        "_done",
        "_meta",
        "_report",
        "_resumed",
        "_task",
        "_timer",
        "asker",
        "kept",
    )

    def __init__(
        self,
        client: "Client",
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
        """`done` gets the outcome, and `report` progress and log. `silence` is for how many seconds the
        server may say nothing; `meta` is the inside of `_meta`; `handle` is of a call to go on with."""
        super().__init__(client, about, params, silence)
        self._meta = meta
        self._done: Callable[[Outcome], None] | None = done
        self.asker = asker
        """Who is asked what belongs to this call."""
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.handle = self._resumed = handle
        self.waits = handle is not None and ("taskId" in handle or "inputRequests" in handle)
        self.kept = False
        """Whether somebody may come back for it by its handle: then it is left to wait."""

    # --- for whoever waits -------------------------------------------------------------------

    def start(self, session: ClientSession) -> None:
        """Send the request; or go on from where it stood."""
        if self._done is None:
            return
        if self.silence is not None:
            self._listen(self.silence)
        if self._resumed is None:
            self.send(session, self.params)
        else:
            self._go_on_in_task()

    def started(self) -> Exchange:
        """It is about to be sent in a batch."""
        self.exchange = Exchange(self, read_whole)
        return self.exchange

    @property
    def running(self) -> bool:
        """Whether it has no outcome yet, and one is wanted."""
        return self._done is not None

    def named_handle(self) -> Handle | None:
        """What the call is found again by, with what it calls."""
        if self.handle is None:
            return None
        params = msgspec.json.decode(b"{%b}" % self.params)
        return {**self.handle, "method": self.about.method, "params": params}

    def cancel(self, reason: str) -> None:
        """Nobody wants the outcome any more: the server is told, and nothing is said of it."""
        if self._done is None:
            return
        exchange = self.exchange
        self._end()
        if exchange is not None:
            exchange.cancel(reason)
        self.abandon()

    def abandon(self) -> None:
        if not self.kept:
            super().abandon()

    # --- the request -------------------------------------------------------------------------

    def send(self, session: ClientSession, params: bytes) -> Exchange:
        exchange = self.exchange = Exchange(self, read_whole)
        exchange.send(session, self.about, params, progress=self._report is not None, meta=self._meta)
        return exchange

    def moved(self, exchange: Exchange) -> None:
        reply = exchange.reply
        if self._task is not None:
            super().moved(exchange)
        elif isinstance(reply, Passed) and is_end(reply):
            self._finish(reply.result if reply.error is None else error_of(reply.error))
        elif isinstance(reply, MidcallError) and not isinstance(reply, Unreachable):
            self._finish(reply)
        elif reply is not None:
            self.note(reply)
            self._go_on_in_task()

    def reported(self, method: str, params: dict[str, Any]) -> None:
        if self._report is not None:
            self._report(method, params)

    async def ask(self, questions: Mapping[str, Any], *, live: bool) -> dict[str, Any]:
        if not all(isinstance(one, dict) for one in questions.values()):
            raise RemoteError("The server's questions cannot be read", rpc_code=INTERNAL_ERROR)
        asked = self.client.answering.asked
        try:
            async with asyncio.TaskGroup() as group:
                answers = {
                    key: group.create_task(asked(str(one.get("method")), one.get("params"), self.asker, key))
                    for key, one in questions.items()
                }
        except ExceptionGroup as several:
            raise several.exceptions[0] from None  # the others were given up for it
        return {key: answer.result() for key, answer in answers.items()}

    # --- the rounds --------------------------------------------------------------------------

    def _go_on_in_task(self) -> None:
        self._task = self.client.spawn(self._run())
        self._task.add_done_callback(self._worked)

    async def _run(self) -> None:
        event: Event | None = None
        match self._resumed:
            case {"taskId": task}:
                event = {"task": task}
            case {"inputRequests": questions, **others}:
                event = {"questions": questions, "state": others.get("requestState")}
            case {"requestState": state}:
                event = await self._send(self._with_state(self.params, state))
        event = await self.run(event)
        if "error" in event:
            raise error_of(PassedError(*event["error"]))
        self._finish(event["result"])

    def _worked(self, task: asyncio.Task[None]) -> None:
        """The rounds have ended: what they failed with, the call fails with."""
        if self._done is None:
            return
        error = TransportLost("The client was closed") if task.cancelled() else task.exception()
        if error is not None:
            self.abandon()
            self._finish(_outcome(error))

    def _finish(self, outcome: Outcome) -> None:
        done = self._done
        if done is not None:
            self._end()
            done(outcome)

    def _end(self) -> None:
        self._done = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._task = self._task, None
        if task is not None and not task.done() and task is not current_task():
            task.cancel()

    # --- silence -----------------------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_silence)

    def _check_silence(self) -> None:
        """Give up if the server says nothing, though it has to: while a person thinks, it has not."""
        if self.silence is None or self._done is None:
            return
        silent = 0.0 if self.exchange is None else self.exchange.silent_for(time.monotonic())
        if self.exchange is not None and silent >= self.silence:
            what = self.about.name or self.about.method
            self.exchange.give_up(TimedOut(f"{what}: no sign of life within {self.silence:g} seconds"))
        else:
            self._listen(self.silence - silent)


def _outcome(error: BaseException) -> MidcallError:
    """What a call fails with, for what went wrong in a handler of questions or before."""
    if isinstance(error, MidcallError):
        return error
    broken = Aborted(f"A question could not be answered: {error or type(error).__name__}")
    broken.__cause__ = error
    return broken


async def refuse(session: ClientSession, about: About, params: bytes, handle: Handle) -> None:
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


# --- for an invocation -----------------------------------------------------------------------------------


class ToolLine(Line):
    """A line to one call of a tool. With `asks`, its questions come as items; `silence` and `handle` are as
    in `ClientCall`, and `meta` goes into `_meta`."""

    def __init__(
        self,
        owner: "Client",
        about: About,
        params: bytes,
        *,
        asks: bool,
        silence: float | None,
        meta: Mapping[str, Any] | None,
        handle: Handle | None,
    ) -> None:
        self._name = about.name
        self._owner = owner
        self._call = ClientCall(
            owner,
            about,
            params,
            self._done,
            asker=self._ask if asks else None,
            report=self._report,
            silence=silence,
            meta=to_json(dict(meta))[1:-1] if meta else b"",
            handle=handle,
        )
        self._open: dict[str, tuple[AnyQuestion, asyncio.Future[Any]]] = {}
        self._outlet: Outlet | None = None
        self._failure: MidcallError | None = None
        self._behind = 0

    async def start(self, outlet: Outlet) -> None:
        self._outlet = outlet
        try:
            self._call.start(await self._owner.session())
        except MidcallError as error:
            self._done(error)

    async def streaming(self) -> bool:
        return False

    async def answer(self, request_id: str, payload: Any) -> None:
        question, waiting = self._open.get(request_id, (None, None))
        if question is None or waiting is None or waiting.done():
            raise UnknownQuestion(request_id)
        waiting.set_result(read_reply(question, payload))

    async def close(self, reason: str) -> None:
        if self._call.running:
            self._call.kept = False
            self._call.cancel(reason)
            self._put_end(Error(self._here(), reason, "aborted"))

    async def leave(self) -> None:
        self._outlet = None
        self._call.cancel("The caller is gone")

    @property
    def call_id(self) -> str:
        return ""

    @property
    def handle(self) -> Handle | None:
        self._call.kept = True
        return self._call.named_handle()

    @property
    def failure(self) -> MidcallError | None:
        return self._failure

    # --- what the server says ----------------------------------------------------------------

    def _done(self, outcome: Outcome) -> None:
        try:
            if isinstance(outcome, MidcallError):
                raise outcome
            self._put(Data(self._here(), self._name, tool_result(outcome)))
        except MidcallError as error:
            self._failure = error
            self._put_end(Error(self._here(), str(error), error.code, error.recoverable))
        else:
            self._put_end()

    def _report(self, method: str, params: dict[str, Any]) -> None:
        if self._outlet is None or not self._outlet.full:
            self._behind = 0
        else:
            self._behind += 1
            if self._behind > MAX_BEHIND:
                return
        report = read_report(method, params)
        if report is not None:
            self._put(msgspec.structs.replace(report, metadata=self._here()))

    async def _ask(self, request: Request) -> Any:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = (request.request_type, waiting)
        self._put(request)
        try:
            return await waiting
        except asyncio.CancelledError:
            self._withdraw(request.request_id, "The server withdrew the question")
            raise
        finally:
            self._open.pop(request.request_id, None)

    def _withdraw(self, request_id: str, why: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._put(RequestCancelled(self._here(), request_id, why))

    def _put(self, item: Any) -> None:
        if self._outlet is not None:
            self._outlet.put(item)

    def _put_end(self, error: Error | None = None) -> None:
        for request_id in list(self._open):
            self._withdraw(request_id, "The call has ended")
        if error is not None:
            self._put(error)
        self._put(Done(self._here()))

    def _here(self) -> Metadata:
        return Metadata((self._name,), "", int(time.time()))


# --- what tools give ------------------------------------------------------------------------------------


class ToolResult(Struct, frozen=True):
    """The result of a tool: content for a model, and perhaps data for a program."""

    content: list[dict[str, Any]] = []
    """Blocks as MCP has them: `{"type": "text", "text": ...}`, pictures, sound, resources."""
    structured: Any = None
    """What a tool with an output schema gives."""
    meta: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """All text blocks, one below the other."""
        return text_of(self.content)

    @property
    def value(self) -> Any:
        """The structured result if there is one, else the text. Of `{"result": ...}`, what is in it."""
        return self.text if self.structured is None else unwrapped(self.structured)


def tool_result(result: dict[str, Any]) -> ToolResult:
    """A result as it came. Raises `ToolError` if the tool says that it failed."""
    blocks = objects_in(result.get("content"))
    if result.get("isError"):
        raise failure_of(result)
    meta = result.get("_meta")
    return ToolResult(blocks, result.get("structuredContent"), meta if isinstance(meta, dict) else {})


def failure_of(result: dict[str, Any]) -> ToolError:
    """Why a tool failed, as its result says; a midcall server also says the error's code."""
    meta = result.get("_meta")
    code = meta.get(ERROR_CODE) if isinstance(meta, dict) else None
    text = text_of(result.get("content")) or "The tool failed"
    return ToolError(text, code=code) if isinstance(code, str) else ToolError(text)


def batch_result(call_id: str, outcome: dict[str, Any] | MidcallError) -> dict[str, Any]:
    """One entry of what `call_tools` gives."""
    if isinstance(outcome, MidcallError):
        return {"call_id": call_id, "success": False, "error": str(outcome)}
    if outcome.get("isError"):
        error = str(failure_of(outcome))
        return {"call_id": call_id, "success": False, "error": error, "result": outcome}
    return {"call_id": call_id, "success": True, "result": outcome}


Make = Callable[[str, Any, bytes, Callable[[Outcome], None]], ClientCall]
"""Makes a call of a tool: its name, its arguments, both as parameters, and who gets the outcome."""

OnResult = Callable[[dict[str, Any]], None]


class ToolBatch:
    """The calls of one batch. Raises `ValueError` for what is none: then nothing is sent."""

    def __init__(
        self,
        calls: Sequence[Mapping[str, Any]],
        make: Make,
        *,
        limit: int,
        on_result: OnResult | None = None,
    ) -> None:
        if limit < 1:
            raise ValueError(f"The limit is how many calls run at once: {limit} is none")
        self._calls = checked_calls(calls)
        self._make = make
        self._limit = limit
        self._on_result = on_result
        self._results: list[dict[str, Any] | None] = [None] * len(calls)
        self._running: dict[int, ClientCall] = {}
        self._next = 0
        self._missing = len(calls)
        self._session: ClientSession | None = None
        self._fault: Exception | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, session: ClientSession, timeout: float | None, *, array: bool = False) -> None:
        """Run them all; what is not there in time is given up. Raises what `on_result` raises."""
        if not self._calls:
            return
        self._session = session
        if array:
            self._start_array(session)
        else:
            self._fill()
        try:
            await asyncio.wait((self._ended,), timeout=timeout)
        finally:
            self._give_up("Nobody waits for it any more")
        if self._fault is not None:
            raise self._fault

    def results(self, error: str) -> list[dict[str, Any]]:
        """What came of each, in the order of the calls; `error` is for those that did not end."""
        return [
            {"call_id": id, "success": False, "error": error} if found is None else found
            for (id, *_), found in zip(self._calls, self._results, strict=True)
        ]

    def _fill(self) -> None:
        while (
            self._session is not None and self._next < len(self._calls) and len(self._running) < self._limit
        ):
            number = self._next
            self._next += 1
            call = self._running[number] = self._make_one(number)
            call.start(self._session)

    def _start_array(self, session: ClientSession) -> None:
        self._next = len(self._calls)
        self._running = {number: self._make_one(number) for number in range(self._next)}
        calls = list(self._running.values())
        exchanges = [call.started() for call in calls]
        requests = [(exchange, call.params) for exchange, call in zip(exchanges, calls, strict=True)]
        for exchange, id in zip(exchanges, session.start_batch(requests, calls[0].about), strict=False):
            exchange.sent(session, id)

    def _make_one(self, number: int) -> ClientCall:
        _, name, arguments, params = self._calls[number]
        return self._make(name, arguments, params, lambda outcome: self._take(number, outcome))

    def _take(self, number: int, outcome: Outcome) -> None:
        result = batch_result(self._calls[number][0], outcome)
        self._results[number] = result
        self._running.pop(number, None)
        self._missing -= 1
        if self._on_result is not None and self._fault is None:
            try:
                self._on_result(result)
            except Exception as fault:  # noqa: BLE001  it is the caller's, and is raised there
                self._fault = fault
        if self._missing == 0 or self._fault is not None:
            if not self._ended.done():
                self._ended.set_result(None)
        elif self._next < len(self._calls):
            self._fill()

    def _give_up(self, reason: str) -> None:
        self._next = len(self._calls)
        running, self._running = self._running, {}
        for call in running.values():
            call.cancel(reason)


def checked_calls(calls: Iterable[Any]) -> list[tuple[str, str, Any, bytes]]:
    """Of each call id, name, arguments, and the latter two as parameters. Raises `ValueError`."""
    checked = [_checked(call) for call in calls]
    ids = set()
    for id, *_ in checked:
        if id in ids:
            raise ValueError(f"Two calls have the id {id}")
        ids.add(id)
    return checked


def _checked(call: Any) -> tuple[str, str, Any, bytes]:
    """Id, name, arguments, and the latter two as parameters."""
    if not isinstance(call, Mapping):
        raise ValueError(f"A call is an object: {call!r}")  # noqa: TRY004  a value among others
    id, name, arguments = call.get("id"), call.get("name"), call.get("arguments")
    if not isinstance(id, str) or not id or not isinstance(name, str) or not name:
        raise ValueError(f"A call has an id and the name of a tool, both text: {dict(call)!r}")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ValueError(f"The arguments of call {id} are not an object: {arguments!r}")
    try:
        return id, name, arguments, tool_params(name, arguments)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"The arguments of call {id} cannot be sent as JSON: {error}") from None

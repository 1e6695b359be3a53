"""Run: one call of a mounted server, as a straight line of steps and questions.

    step      send the request, and wait for its result or for what the server asks
    ask       all questions of a round
    step      give the answers, and wait for the result or for what the server asks next
    ...

Each step is journaled by the usual means, so that nothing behind is done twice. What a modern server needs to
go on (its `requestState`, or the id of a task) is in what the step before gave: the call goes on after a
restart, and on another worker. The request of a legacy server lives with its process: if that is lost, the
call fails, and is never sent again.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from midcall import steps
from midcall.call import Call
from midcall.client.line import read_progress
from midcall.client.mount_ask import Answers, Round
from midcall.client.mount_talk import Asks, Began, Talk
from midcall.client.results import failure_of
from midcall.content import Passed, PassedError
from midcall.errors import InvalidArguments, RemoteError, ToolError, Unreachable
from midcall.items import Background, Log, Metadata, Progress, to_builtins, to_json
from midcall.jsonrpc import INVALID_PARAMS
from midcall.mcp.elicitation import ELICIT, URL_REQUIRED
from midcall.mcp.request import LEVELS
from midcall.mcp.results import text_of
from midcall.replay import Trace

if TYPE_CHECKING:
    from midcall.client.mount import Mount
    from midcall.client.mount_methods import RemoteMethod

MAX_ROUNDS = 100
"""How often a server may ask in one call."""

FIRST = 5.0
LATER = 60.0
"""Seconds that a call waits for a server that was lost: before it begins, and after somebody has answered."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds between two tries to send a request: at first, and at most."""

SOON = 0.05
"""Seconds after which questions that are asked again are compared with what the server still asks."""

POLL = 0.5
LONGEST_POLL = 30.0
"""Seconds between two looks at a task: if the server does not say, and at most."""

Event: TypeAlias = dict[str, Any]
"""What a step gives, as JSON carries it:

`result` or `error`, the end; `questions`, with what is needed to go on: `live` (the request waits), `state`
(it is to be sent again), `task`, or `pages` (it is to be sent again after they are visited); or `task` alone.
"""


class Run:
    """One call."""

    def __init__(
        self, mount: "Mount", method: "RemoteMethod", call: Call, arguments: bytes, talk: Talk | None
    ) -> None:
        self._mount = mount
        self._method = method
        self._call = call
        self._about, self._params = method.inside(arguments)
        self._talk = talk
        self._handle: dict[str, Any] | None = None
        """By what a modern server knows the call while it waits for answers, or works on it as a task."""
        self._round: Round | None = None
        self._wake: asyncio.Future[None] | None = None
        if call.trace is None:
            call.trace = Trace(call.id)
        self._trace = call.trace
        if talk is not None:
            talk.taker = self

    async def run(self) -> Any:
        """What the call gives: as the server gave it to those who take that, else its value."""
        try:
            event = await self._converse()
        except BaseException:
            self._let_go()
            raise
        return self._value(event)

    async def _converse(self) -> Event:
        event = await self._step(self._begin)
        for _ in range(MAX_ROUNDS):
            if "questions" not in event and "task" not in event:
                return event
            event = await self._go_on(event)
        raise ToolError(f"{self._mount.name} asked in more than {MAX_ROUNDS} rounds")

    async def _step(self, work: Callable[[], Awaitable[Event]], *, retry_safe: bool = False) -> Event:
        async def step() -> Any:
            return await work()

        step.__qualname__ = self._call.name
        event: Event = await steps.run(self._trace, step, (), {}, retry_safe=retry_safe)
        return event

    async def _go_on(self, event: Event) -> Event:
        """From one event to the next."""
        task = event.get("task", "")
        if "questions" not in event:
            self._call.put(Background(self._call.stamp()))
            return await self._step(lambda: self._follow(task, {}), retry_safe=True)
        if task:
            self._handle = {"taskId": task}
        elif "state" in event:
            self._handle = {"inputRequests": event["questions"], "requestState": event["state"]}
        answers = await self._ask(event)
        self._handle = None
        if task:
            return await self._step(lambda: self._follow(task, answers.results), retry_safe=True)
        if "pages" in event:
            if not answers.all_accepted:
                return {"error": event["pages"]}
            return await self._step(lambda: self._send(self._params, LATER))
        if "live" in event:
            return await self._step(lambda: self._answer(answers))
        params = self._params + b',"inputResponses":' + to_json(answers.results)
        if event.get("state") is not None:
            params += b',"requestState":' + to_json(event["state"])
        return await self._step(lambda: self._send(params, LATER))

    async def _ask(self, event: Event) -> Answers:
        """Ask a round of questions; if the request waits for them, it may also take them back."""
        live = "live" in event
        self._round = Round(self._call, self._mount.answering, event["questions"], self._trace)
        if live:
            self._talk = self._talk or self._mount.talks.get(self._call.principal, self._trace.call_id)
            if self._talk is not None:
                self._talk.taker = self
                asyncio.get_running_loop().call_later(SOON, self._watch, self._talk)
        try:
            return await self._round.ask(live=live, server=self._mount.name)
        finally:
            self._round = None

    # --- steps -------------------------------------------------------------------------------

    async def _begin(self) -> Event:
        return await self._send(self._params, FIRST, self._talk)  # which was sent already, perhaps

    async def _send(self, params: bytes, patience: float, talk: Talk | None = None) -> Event:
        """Send a request until it is known to be sent; gives what comes of it."""
        until = time.monotonic() + patience
        pause = FIRST_PAUSE
        while True:
            if talk is None:
                talk = await self._start(params, max(until - time.monotonic(), 0.0))
            event = await self._next(talk)
            if event is None:
                if time.monotonic() > until:
                    raise self._unreachable(talk.outcome)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            elif "again" in event:  # the server only wants to be asked again
                await asyncio.sleep(POLL)
                params = self._params + b',"requestState":' + to_json(event["again"])
                until = time.monotonic() + LATER
            else:
                return event
            talk = None

    async def _start(self, params: bytes, patience: float) -> Talk:
        """Send a request once, when the server is there."""
        call = self._call
        try:
            client = await self._mount.clients.reach(call.principal, patience)
            session = await client.reach(patience)
        except Unreachable as error:
            raise self._unreachable(error) from None
        talk = self._talk = Talk(self)
        head = client.head(session, call.supported, getattr(call.outlet, "log_level", "debug"))
        talk.send(session, self._about, params, progress=True, meta=_traced(), head=head)
        return talk

    def _unreachable(self, why: Any) -> Unreachable:
        return Unreachable(f"{self._mount.name} cannot be reached: {why}")

    async def _answer(self, answers: Answers) -> Event:
        """Answer a legacy server, which waits in the middle of its request."""
        talk = self._talk or self._mount.talks.get(self._call.principal, self._trace.call_id)
        if talk is None:
            raise ToolError(
                f"{self._mount.name} lost this call when the process in front of it was restarted; "
                "it may have done part of it",
                code="call_lost",
            )
        talk.taker = self
        answers.give(talk)
        event = await self._next(talk)
        if event is None:
            raise self._unreachable(talk.outcome)
        return event

    async def _follow(self, task: str, answers: dict[str, Any]) -> Event:
        """Look at a task until it asks or has ended. All of it may be done twice."""
        self._handle = {"taskId": task}
        client = await self._mount.clients.reach(self._call.principal, LATER)
        if answers:
            await client.request("tasks/update", {"taskId": task, "inputResponses": answers})
        answered = set(answers)
        while True:
            try:
                state = await client.request("tasks/get", {"taskId": task})
            except RemoteError as error:
                return {"error": [error.rpc_code, str(error), error.rpc_data]}
            match state.get("status"):
                case "completed" if isinstance(state.get("result"), dict):
                    return {"result": _clean(state["result"])}
                case "completed" | "failed":
                    why = state.get("error") or {}
                    text = why.get("message") or "The task failed"
                    return {"error": [why.get("code", -32603), text, why.get("data")]}
                case "cancelled":
                    raise ToolError(state.get("statusMessage") or "The task was cancelled", code="aborted")
                case "input_required":
                    asked = {k: v for k, v in state.get("inputRequests", {}).items() if k not in answered}
                    if asked:
                        return {"questions": asked, "task": task}
                case _:
                    answered.clear()
            if isinstance(state.get("statusMessage"), str):
                self._call.progress(state["statusMessage"], None)
            poll = state.get("pollIntervalMs")
            pause = poll / 1000 if isinstance(poll, int | float) else POLL
            await asyncio.sleep(min(max(pause, 0.05), LONGEST_POLL))

    async def _next(self, talk: Talk) -> Event | None:
        """What comes next of a request; nothing if it is known not to have been sent."""
        while talk.outcome is None and not talk.questions:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        outcome = talk.outcome
        if outcome is not None:
            self._mount.talks.remove(self._call.principal, self._trace.call_id)
            self._talk = None
        match outcome:
            case None:
                asked = {key: {"method": q.method, "params": q.params} for key, q in talk.questions.items()}
                if self._trace.kept:
                    self._mount.keep(self._call.principal, self._trace.call_id, talk)
                return {"questions": asked, "live": True}
            case Passed(result, None):
                return {"result": result}
            case Passed(_, PassedError(code, message, data)):
                pages = _pages(data) if code == URL_REQUIRED else None
                failure = [code, message, data]
                return {"questions": pages, "pages": failure} if pages else {"error": failure}
            case Asks(None, state):
                return {"again": state}
            case Asks(questions, state):
                return {"questions": questions, "state": state}
            case Began(task):
                return {"task": task["taskId"]}
            case Unreachable():
                return None
            case _:
                raise ToolError(
                    f"{self._mount.name} was lost in the middle of this call, which may be done or not: "
                    f"{outcome}",
                    code="transport_lost",
                )

    # --- as a taker --------------------------------------------------------------------------

    def moved(self, talk: Talk) -> None:
        """The request has ended, or asks something else than before."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self._watch(talk)

    def _watch(self, talk: Talk) -> None:
        """Take back what the server does not ask any more."""
        if self._round is not None and talk is self._talk:
            self._round.withdraw_all_but(talk.questions)

    def reported(self, method: str, params: dict[str, Any]) -> None:
        match read_report(method, params):
            case Progress(_, message, percentage):
                self._call.progress(message, percentage)
            case Log(_, level, message, data):
                self._call.log(level, message, data)

    # --- the end -----------------------------------------------------------------------------

    def _value(self, event: Event) -> Any:
        if getattr(self._call.outlet, "takes_passed", False):
            return _passed(event)
        if "error" in event:
            code, message, data = event["error"]
            error = RemoteError(message, rpc_code=code, rpc_data=data)
            if code == INVALID_PARAMS:
                error.code = InvalidArguments.code
            raise error
        result = to_builtins(event["result"])
        if self._about.method != "tools/call":
            return result
        if result.get("isError"):
            raise failure_of(result)
        structured = result.get("structuredContent")
        return _plain(result.get("content")) if structured is None else structured

    def _let_go(self) -> None:
        """Nobody waits for this any more. If the call goes on elsewhere, so does what is under way."""
        talk, self._talk = self._talk, None
        if self._call.dropped and not self._call.over:
            if talk is not None:
                talk.taker = None
            return
        reason = self._call.reason or "The call was cancelled"
        if talk is not None:
            self._mount.talks.remove(self._call.principal, self._trace.call_id)
            talk.cancel(reason)
        client = self._mount.clients.live(self._call.principal)
        if client is not None and self._handle is not None:
            client.abandon(self._about, self._params, self._handle)


def read_report(method: str, params: dict[str, Any]) -> Progress | Log | None:
    """Progress or a line of log, if that is what a server tells."""
    match method:
        case "notifications/progress":
            percentage, message = read_progress(params)
            return Progress(_HERE, message, percentage)
        case "notifications/message":
            level, data = params.get("level"), params.get("data")
            known = str(level) if level in LEVELS else "info"
            return Log(_HERE, known, data) if isinstance(data, str) else Log(_HERE, known, "", data)
    return None


_HERE = Metadata((), "", 0)


def _traced() -> bytes:
    """Where the call stands in a trace, for `_meta`, if the process uses OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return b""
    from midcall import telemetry  # noqa: PLC0415  slow to import, and seldom needed

    return to_json(telemetry.carrier())[1:-1]


def _passed(event: Event) -> Passed:
    if "error" in event:
        code, message, data = event["error"]
        return Passed(error=PassedError(code, message, data))
    return Passed(event["result"])


def _plain(content: Any) -> Any:
    """The text of a result; if it has none, whatever it has."""
    return text_of(content) or (content if content and not _has_text(content) else "")


def _has_text(content: Any) -> bool:
    return any(isinstance(one, dict) and one.get("type") == "text" for one in content)


def _clean(result: dict[str, Any]) -> dict[str, Any]:
    """The result of a task, as the one of a request would be."""
    return {name: value for name, value in result.items() if name != "resultType"}


def _pages(data: Any) -> dict[str, Any]:
    """The pages that a legacy server wants to be visited, as questions."""
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    return {
        str(number): {"method": ELICIT, "params": {"mode": "url", **one}}
        for number, one in enumerate(wanted if isinstance(wanted, list) else (), 1)
        if isinstance(one, dict)
    }

"""Rounds: what one call of a server goes through, for clients, batches and mounted servers alike.

    request   is sent, and again if it is known not to have been; progress and log pass by meanwhile
    reply     a result or an error: the end. Or one of these:
              questions           they are asked, and the request is sent again with the answers
              only a state        the request is sent again, after a pause
              a task              is looked at until it asks something, or has ended
              pages to visit      (an error of a legacy server) then the request is sent again
              missing headers     (an error of a modern one) the request is sent again with them

A legacy server asks while its request waits. The usual request comes back with its result: then there is an
`Exchange` and no task of the event loop. `Rounds` go on from any other reply; who is asked, and whether what
was done is journaled, is up to those who derive from it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from midcall.client.session import ClientSession, Waiter, in_time, result_of
from midcall.client.wire import About
from midcall.content import Passed, PassedError
from midcall.errors import Aborted, MidcallError, RemoteError, TimedOut, TransportLost, Unreachable
from midcall.items import Log, Metadata, Progress, to_json
from midcall.jsonrpc import INTERNAL_ERROR, Envelope
from midcall.mcp.elicitation import ELICIT, URL_REQUIRED
from midcall.mcp.messages import META
from midcall.mcp.request import LEVELS

if TYPE_CHECKING:
    from midcall.client.client import Client

MOST_QUESTIONS = 100
"""How many a server may ask at once."""

MAX_ROUNDS = 100
"""How often a server may ask in one call."""

MAX_VISITS = 3
"""How often a server may want pages to be visited before one call."""

MAX_WAITS = 1000
"""How often in a row a server may say at once that it only wants to be asked again."""

AT_ONCE = 1.0
"""Seconds. One that takes longer to say so waits for somebody, as it may for days."""

MAX_LOSSES = 5
"""How often in a row the line may be lost while a task is looked at."""

HEADER_MISMATCH = -32020
"""The error of a modern server that misses arguments among the headers of a request."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds before what was not sent is sent again: at first, and at most."""

POLL = 0.5
LONGEST_POLL = 30.0
"""Seconds between two looks at a task: if the server does not say, and at most."""

Handle: TypeAlias = dict[str, Any]
"""What a call is found again by that has asked, or has become a task; JSON carries it."""

Event: TypeAlias = dict[str, Any]
"""Where a call stands, as JSON carries it:

`result` or `error`, the end; `questions`, with what is needed to go on: `live` (the request waits), `state`
(it is to be sent again), `task`, or `pages` (it is to be sent again after they are visited); `task` alone,
which is to be looked at after a `pause`; or `again`, the state with which it is to be sent again.
"""


# --- one request ----------------------------------------------------------------------------------------


Reply: TypeAlias = Passed | Event | MidcallError
"""What a request came to: a result or an error, where the call stands else, or why there is no response."""


class Open(Struct):
    """What a legacy server has asked, and waits for."""

    method: str
    params: dict[str, Any]
    answer: asyncio.Future[dict[str, Any]]
    task: asyncio.Task[Any] | None
    """Which waits for the answer."""


class ExchangeOwner(Protocol):
    """Who looks after a request."""

    def moved(self, exchange: "Exchange") -> None:
        """It has its reply, or what it asks has changed."""

    def reported(self, method: str, params: dict[str, Any]) -> None:
        """Progress, or a line of log."""


class Exchange(Waiter):
    """A request under way, until its reply."""

    __slots__ = ("_count", "_id", "_read", "_session", "heard", "owner", "questions", "reply")

    def __init__(self, owner: ExchangeOwner | None, read: Callable[[Envelope], Reply]) -> None:
        """`read` is `read_whole` or `read_parts`."""
        self.owner = owner
        self._read = read
        self.reply: Reply | None = None
        self.questions: dict[str, Open] = {}
        """What the server asks at the moment."""
        self.heard = 0.0
        """When the server last said something about it."""
        self._session: ClientSession | None = None
        self._id = 0
        self._count = 0

    def send(
        self,
        session: ClientSession,
        about: About,
        params: bytes,
        *,
        progress: bool,
        meta: bytes = b"",
        head: bytes | None = None,
    ) -> None:
        """Send it, as `ClientSession.start` does. If that cannot be, the reply is known at once."""
        self._session = session
        self.heard = time.monotonic()
        self._id = session.start(self, about, params, progress=progress, meta=meta, head=head)

    def sent(self, session: ClientSession, id: int) -> None:
        """It was sent in a batch."""
        self._session, self._id = session, id

    # --- for whoever looks after it ----------------------------------------------------------

    def answer(self, key: str, result: "dict[str, Any] | RemoteError") -> None:
        """Answer a question if it is still open, or tell the server that there is no answer."""
        question = self.questions.pop(key, None)
        if question is None or question.answer.done():
            return
        self.heard = time.monotonic()
        if isinstance(result, RemoteError):
            question.answer.set_exception(result)
        else:
            question.answer.set_result(result)

    def cancel(self, reason: str) -> None:
        """Nobody wants the reply any more: the server is told."""
        self.owner = None
        if self.reply is None:
            self.reply = Aborted(reason)
            if self._session is not None:
                self._session.cancel(self._id, reason)
            self._drop_questions()

    def silent_for(self, now: float) -> float:
        """For how many seconds the server has said nothing; while it waits for an answer, that is none."""
        return 0.0 if self.questions else now - self.heard

    def give_up(self, error: TimedOut) -> None:
        """The server has said nothing for too long."""
        if self.reply is None:
            if self._session is not None:
                self._session.cancel(self._id, "No sign of life")
            self._end(error)

    # --- as a waiter -------------------------------------------------------------------------

    def answered(self, response: Envelope) -> None:
        self._end(self._read(response))

    def failed(self, error: MidcallError) -> None:
        if isinstance(error, RemoteError):
            self._end(Passed(error=PassedError(error.rpc_code, str(error), error.rpc_data)))
        else:
            self._end(error)

    def noticed(self, method: str, params: dict[str, Any]) -> None:
        self.heard = time.monotonic()
        if self.owner is not None:
            self.owner.reported(method, params)

    @contextmanager
    def asking(self, method: str, params: dict[str, Any]) -> Iterator[Open]:
        """A legacy server asks in the middle of this. If this ends meanwhile, the task that asks does too."""
        if self.reply is not None:
            raise Aborted("The call that this belongs to is over")
        self._count += 1
        key = str(self._count)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        question = self.questions[key] = Open(method, params, answer, asyncio.current_task())
        self._moved()
        try:
            yield question
        finally:
            self.heard = time.monotonic()
            if self.questions.pop(key, None) is not None:
                self._moved()  # it was withdrawn, or answered elsewhere

    # --- inside ------------------------------------------------------------------------------

    def _end(self, reply: Reply) -> None:
        if self.reply is not None:
            return
        self.reply = reply
        if self.questions:
            self._drop_questions()
        owner, self.owner = self.owner, None  # they know each other: only the collector would free them
        if owner is not None:
            owner.moved(self)

    def _drop_questions(self) -> None:
        questions, self.questions = self.questions, {}
        for question in questions.values():
            if question.task is not None and question.task is not current_task():
                question.task.cancel()

    def _moved(self) -> None:
        if self.owner is not None:
            self.owner.moved(self)


# --- replies --------------------------------------------------------------------------------------------

_COMPLETE = Raw(b'"complete"')
_SERVER_INFO = f"{META}serverInfo"

_parts = msgspec.json.Decoder(dict[str, Raw]).decode


def read_whole(response: Envelope) -> Reply:
    """A reply for somebody who reads it here."""
    try:
        result = result_of(response)
    except RemoteError as error:
        return Passed(error=PassedError(error.rpc_code, str(error), error.rpc_data))
    kind = result.get("resultType", "complete")
    return Passed(result) if kind == "complete" else _unfinished(kind, result)


def read_parts(response: Envelope) -> Reply:
    """A reply that is passed on: the parts of its result stay as they came."""
    error = response.error
    if error is not UNSET:
        return Passed(error=PassedError(error.code, error.message, error.data))
    try:
        result = _parts(_one_line(response.result))
        kind = result.pop("resultType", _COMPLETE)
        if kind == _COMPLETE:
            if "_meta" in result:
                _leave_out_server(result)
            return Passed(result)
        found = {name: msgspec.json.decode(value) for name, value in result.items()}
        return _unfinished(msgspec.json.decode(kind), found)
    except (msgspec.DecodeError, RecursionError) as fault:
        return Passed(error=PassedError(INTERNAL_ERROR, f"The server's result cannot be read: {fault}"))


def _one_line(raw: Raw) -> bytes | Raw:
    """JSON without line breaks, which separate messages on pipes; over HTTP a server may have some."""
    if memoryview(raw).nbytes < 2:
        return raw
    data = bytes(raw)
    return data.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in data or b"\r" in data else data


def _leave_out_server(result: dict[str, Any]) -> None:
    """Who has answered is told by whoever passes it on."""
    try:
        meta: dict[str, Any] = _parts(result.pop("_meta"))
    except msgspec.ValidationError:  # no object
        return
    meta.pop(_SERVER_INFO, None)
    if meta:
        result["_meta"] = meta


def _unfinished(kind: Any, result: dict[str, Any]) -> Reply:
    questions, state = result.get("inputRequests"), result.get("requestState")
    match kind:
        case "input_required" if isinstance(questions, dict) and len(questions) > MOST_QUESTIONS:
            text = f"The server asks more than {MOST_QUESTIONS} questions at once"
        case "input_required" if isinstance(questions, dict) and questions and isinstance(state, str | None):
            return {"questions": questions, "state": state}
        case "input_required" if isinstance(state, str) and questions in (None, {}):
            return {"again": state}
        case "input_required":
            text = "The server's questions cannot be read"
        case "task" if isinstance(result.get("taskId"), str):
            return {"task": result["taskId"], "pause": _interval(result)}
        case _:
            text = f"The server's result cannot be read: it is of the unknown type {kind!r}"
    return Passed(error=PassedError(INTERNAL_ERROR, text))


def is_end(reply: Reply) -> bool:
    """Whether a call ends with this reply, as most do."""
    return isinstance(reply, Passed) and (
        reply.error is None or reply.error.code not in (URL_REQUIRED, HEADER_MISMATCH)
    )


def error_of(error: PassedError) -> RemoteError:
    """The error of a server, to be raised."""
    return RemoteError(error.message, rpc_code=error.code, rpc_data=error.data)


_HERE = Metadata((), "", 0)


def read_report(method: str, params: dict[str, Any]) -> Progress | Log | None:
    """Progress or a line of log, if that is what a server tells."""
    match method:
        case "notifications/progress":
            progress, total, message = params.get("progress"), params.get("total"), params.get("message")
            percentage = None
            if isinstance(progress, int | float) and isinstance(total, int | float) and total > 0:
                percentage = min(100.0, max(0.0, 100.0 * progress / total))
            return Progress(_HERE, message if isinstance(message, str) else "", percentage)
        case "notifications/message":
            level, data = params.get("level"), params.get("data")
            known = str(level) if level in LEVELS else "info"
            return Log(_HERE, known, data) if isinstance(data, str) else Log(_HERE, known, "", data)
    return None


# --- one call -------------------------------------------------------------------------------------------


class Rounds:
    """One call, until its result or error."""

    __slots__ = (
        "_relisted",
        "_visited",
        "_visits",
        "_wake",
        "about",
        "client",
        "exchange",
        "handle",
        "params",
        "silence",
        "waits",
    )

    live = False
    """Whether what a legacy server asks is asked in rounds too; else others do that."""

    def __init__(self, client: "Client", about: About, params: bytes, silence: float | None) -> None:
        """`params` is the inside of the parameters; `silence` is for how long the server may say nothing."""
        self.client = client
        self.about = about
        self.params = params
        self.silence = silence
        self.exchange: Exchange | None = None
        """The request that is under way."""
        self.handle: Handle | None = None
        """How to go on with it, once it has asked or become a task."""
        self.waits = False
        """Whether the server waits for answers, or works on a task: it is to know if nobody comes back."""
        self._visited: frozenset[str] = frozenset()
        self._visits = 0
        self._relisted = False
        self._wake: asyncio.Future[None] | None = None

    # --- what those who derive from it say -----------------------------------------------------

    def patience(self, *, first: bool) -> float | None:
        """For how many seconds a server that cannot be reached is tried again; none is for ever."""
        return self.client.patience

    async def session(self, patience: float | None) -> ClientSession:
        """The session for the next request. Raises `Unreachable`."""
        return await self.client.session()

    def send(self, session: ClientSession, params: bytes) -> Exchange:
        """Send the request, with these parameters."""
        raise NotImplementedError

    async def ask(self, questions: Mapping[str, Any], *, live: bool) -> dict[str, Any]:
        """Ask what a server asks: gives its answers, as the server takes them.

        If it waits (`live`), some may be a `RemoteError`; else what has no answer is raised.
        """
        raise NotImplementedError

    def reported(self, method: str, params: dict[str, Any]) -> None:
        """Progress, or a line of log."""
        raise NotImplementedError

    async def step(self, work: Callable[[], Awaitable[Event]], *, retry_safe: bool = False) -> Event:
        """Do something of which it is to be known later that it was done."""
        return await work()

    def becomes_task(self) -> None:
        """From here on it is a task of the server."""

    def failure(self, error: MidcallError) -> MidcallError:
        """What is raised if there is no response."""
        return error

    def note(self, reply: Reply | None) -> None:
        """Note how to go on from a reply, as soon as it is here: from then on the server waits."""
        match reply:
            case {"task": task}:
                self.handle, self.waits = {"taskId": task}, True
            case {"questions": questions, "state": state}:
                self.handle, self.waits = {"inputRequests": questions, "requestState": state}, True

    def abandon(self) -> None:
        """Nobody answers what it has asked, or asks for its task: it is not left to wait at the server."""
        if self.waits and self.handle is not None:
            self.client.abandon(self.about, self.params, self.handle)

    # --- the loop ----------------------------------------------------------------------------

    async def run(self, event: Event | None = None) -> Event:
        """Go on until there is a result or an error: from the request, which may be sent already, or from
        where it stood."""
        if event is None:
            event = await self.step(self._begin)
        for _ in range(MAX_ROUNDS):
            if "questions" not in event and "task" not in event:
                return event
            event = await self._go_on(event)
        raise RemoteError(f"The server asked in more than {MAX_ROUNDS} rounds", rpc_code=INTERNAL_ERROR)

    async def _go_on(self, event: Event) -> Event:
        task = event.get("task", "")
        if "questions" not in event:
            self.becomes_task()
            return await self.step(lambda: self._follow(task, {}, event.get("pause", 0.0)), retry_safe=True)
        if "pages" in event:
            return await self._visit(event["questions"], event["pages"])
        self.note(event)
        answers = await self.ask(event["questions"], live="live" in event)
        self.waits = False
        if task:
            return await self.step(lambda: self._follow(task, answers), retry_safe=True)
        if "live" in event:
            return await self.step(lambda: self._answer(answers))
        params = self.params + b',"inputResponses":' + to_json(answers)
        return await self.step(lambda: self._send(self._with_state(params, event.get("state"))))

    async def _visit(self, pages: dict[str, Any], failure: list[Any]) -> Event:
        """A legacy server wants pages to be visited first."""
        if self._visited & pages.keys() or self._visits >= MAX_VISITS:
            return {"error": [*failure[:2], None]}  # nobody has looked at these pages
        self._visited |= pages.keys()
        self._visits += 1
        try:
            answers = await self.ask(pages, live=False)
        except RemoteError:
            return {"error": failure}
        if not all(one.get("action") == "accept" for one in answers.values()):
            return {"error": failure}
        return await self.step(lambda: self._send(self.params))

    # --- steps -------------------------------------------------------------------------------

    async def _begin(self) -> Event:
        return await self._send(self.params, self.exchange, first=True)

    async def _send(self, params: bytes, exchange: Exchange | None = None, *, first: bool = False) -> Event:
        """Send a request until it is known to be sent; gives what comes of it."""
        patience = self.patience(first=first)
        failed_at: float | None = None
        pause, waits = FIRST_PAUSE, 0
        while True:
            if exchange is None:
                left = patience
                if patience is not None and failed_at is not None:
                    left = max(failed_at + patience - time.monotonic(), 0.0)
                exchange = self.send(await self.session(left), params)
            sent = time.monotonic()
            event = await self.next_event(exchange)
            if event is None:
                failed_at = failed_at or time.monotonic()
                if patience is not None and time.monotonic() > failed_at + patience:
                    raise self._no_response(exchange)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            elif "again" in event:
                self.handle = {"requestState": event["again"]}
                waits = waits + 1 if time.monotonic() - sent < AT_ONCE else 1
                if waits > MAX_WAITS:
                    text = "The server wanted to be asked again too often"
                    raise RemoteError(text, rpc_code=INTERNAL_ERROR)
                await asyncio.sleep(min(0.05 * (waits - 1), 1.0))
                params = self._with_state(self.params, event["again"])
                patience, failed_at, pause = self.patience(first=False), None, FIRST_PAUSE
            elif not await self._has_better_headers(event):
                return event
            exchange = None

    def _with_state(self, params: bytes, state: Any) -> bytes:
        return params if state is None else params + b',"requestState":' + to_json(state)

    async def _has_better_headers(self, event: Event) -> bool:
        """Whether the tool was not known well enough, and now is."""
        refused = "error" in event and event["error"][0] == HEADER_MISMATCH
        if not refused or self._relisted or self.about.method != "tools/call":
            return False
        self._relisted = True
        arguments = msgspec.json.decode(b"{%b}" % self.params).get("arguments")
        headers = await self.client.better_headers(self.about, arguments)
        if headers == self.about.headers:
            return False
        self.about = msgspec.structs.replace(self.about, headers=headers)
        return True

    async def _answer(self, answers: Mapping[str, Any]) -> Event:
        """Answer a legacy server, which waits in the middle of its request."""
        exchange = self.waiting_exchange()
        for key, answer in answers.items():
            exchange.answer(key, answer)
        event = await self.next_event(exchange)
        if event is None:
            raise self._no_response(exchange)
        return event

    def _no_response(self, exchange: Exchange) -> MidcallError:
        lost = exchange.reply
        return self.failure(lost if isinstance(lost, MidcallError) else TransportLost("There is no response"))

    def waiting_exchange(self) -> Exchange:
        """The request in which a legacy server has asked. Raises `MidcallError` if it is gone."""
        if self.exchange is None:
            raise self.failure(TransportLost("The request is gone"))
        return self.exchange

    async def next_event(self, exchange: Exchange) -> Event | None:
        """What comes next of a request; nothing if it is known not to have been sent."""
        while exchange.reply is None and not (self.live and exchange.questions):
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        reply = exchange.reply
        if reply is not None:
            self.exchange = None
        match reply:
            case None:
                asked = exchange.questions.items()
                questions = {key: {"method": one.method, "params": one.params} for key, one in asked}
                return {"questions": questions, "live": True}
            case Passed(result, None):
                return {"result": result}
            case Passed(_, PassedError(code, message, data)):
                pages = _pages(data) if code == URL_REQUIRED else None
                failure = [code, message, data]
                return {"questions": pages, "pages": failure} if pages else {"error": failure}
            case Unreachable():
                return None
            case dict():
                self.note(reply)
                return reply
        raise self._no_response(exchange)

    def moved(self, exchange: Exchange) -> None:
        """The request has its reply, or asks something else than before."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # --- tasks -------------------------------------------------------------------------------

    async def _follow(self, id: str, answers: dict[str, Any], pause: float = 0.0) -> Event:
        """Look at a task until it asks or has ended. All of it may be done twice."""
        self.handle, self.waits = {"taskId": id}, True
        if answers:
            await self._request("tasks/update", {"taskId": id, "inputResponses": answers})
        answered, said = set(answers), None
        while True:
            await asyncio.sleep(pause)
            try:
                task = await self._request("tasks/get", {"taskId": id})
            except RemoteError as error:
                return self._task_ended({"error": [error.rpc_code, str(error), error.rpc_data]})
            message = task.get("statusMessage")
            if isinstance(message, str) and message != said:
                said = message
                self.reported("notifications/progress", {"message": message})
            match task.get("status"):
                case "completed" if isinstance(task.get("result"), dict):
                    return self._task_ended({"result": task["result"]})
                case "failed":
                    return self._task_ended({"error": _task_error(task.get("error"))})
                case "cancelled":
                    self.waits = False
                    raise Aborted(said or "The task was cancelled")
                case "input_required":
                    asked = task.get("inputRequests")
                    if not isinstance(asked, dict):
                        text = "The task's questions cannot be read"
                        return self._task_ended({"error": [INTERNAL_ERROR, text, None]})
                    asked = {key: one for key, one in asked.items() if key not in answered}
                    if len(asked) > MOST_QUESTIONS:
                        text = f"The task asks more than {MOST_QUESTIONS} questions at once"
                        return self._task_ended({"error": [INTERNAL_ERROR, text, None]})
                    if asked:
                        return {"questions": asked, "task": id}
                case "working":
                    answered.clear()
                case status:
                    text = f"The task ended strangely: {status!r}"
                    return self._task_ended({"error": [INTERNAL_ERROR, text, None]})
            pause = _interval(task)

    def _task_ended(self, event: Event) -> Event:
        self.waits = False
        return event

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request about a task, on whichever line there is: all of them may be sent twice."""
        losses = 0
        while True:
            session = await self.session(self.patience(first=False))
            work = session.request(method, to_json(params)[1:-1], About(method, params["taskId"]))
            try:
                found: dict[str, Any] = await in_time(work, self.silence, method)
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


def _task_error(error: Any) -> list[Any]:
    error = error if isinstance(error, dict) else {}
    message, code = error.get("message"), error.get("code")
    return [
        code if isinstance(code, int) else INTERNAL_ERROR,
        message if isinstance(message, str) else "The task failed",
        error.get("data"),
    ]


def _pages(data: Any) -> dict[str, Any]:
    """The pages that a legacy server wants to be visited, as questions."""
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    return {
        str(one.get("elicitationId") or number): {"method": ELICIT, "params": {**one, "mode": "url"}}
        for number, one in enumerate(wanted[:MOST_QUESTIONS] if isinstance(wanted, list) else (), 1)
        if isinstance(one, dict)
    }


def current_task() -> asyncio.Task[Any] | None:
    """The task that runs this, if one does."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None

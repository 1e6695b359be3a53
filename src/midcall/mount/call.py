"""Calls of a mounted server.

The usual call comes from an MCP client and ends with a result, which goes back as it came: a `RelayedCall`,
with neither a task nor a dialect, as it is hot. If the server asks, begins a task, or cannot be reached
just now, the same call goes on as a `RemoteCall`: the rounds that any call goes through, each of them a step
in the journal, so that nothing behind is done twice.

    step      send the request, and wait for its result or for what the server asks
    ask       all questions of a round, of whoever has made the call
    step      give the answers, and wait for the result or for what the server asks next
    ...

What a modern server needs to go on (its `requestState`, or the id of a task) is in what the step before gave:
the call goes on after a restart, and on another worker. The request of a legacy server lives with its
process: if that is lost, the call fails, and is never sent again.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from midcall import jsonrpc, steps
from midcall.call import Call, Status
from midcall.client.rounds import Event, Exchange, Rounds, error_of, is_end, read_parts, read_report
from midcall.client.session import ClientSession
from midcall.client.tool_call import failure_of
from midcall.client.wire import About
from midcall.content import Passed, PassedError
from midcall.decorators import Kind
from midcall.errors import (
    Aborted,
    AskError,
    Cancelled,
    Declined,
    InvalidArguments,
    MidcallError,
    NotSupported,
    RemoteError,
    TimedOut,
    ToolError,
    TransportLost,
    Unreachable,
)
from midcall.hub import Hub
from midcall.items import NOWHERE, Background, Error, Log, Progress, to_builtins, to_json
from midcall.limits import MAX_KEY
from midcall.mcp.catalog import Tool
from midcall.mcp.dialects.attached import Attached
from midcall.mcp.dialects.input_required import InputRequired
from midcall.mcp.elicitation import (
    ELICIT,
    asked_key,
    read_question,
    read_reply,
    result_for,
)
from midcall.mcp.request import McpError, McpRequest, Session, error_for
from midcall.mcp.results import McpReply, passed_result, text_of, tool_result, unwrapped
from midcall.questions import AnyQuestion, Priority, Refusal
from midcall.replay import Trace

if TYPE_CHECKING:
    from midcall.mount.mount import Mount

FIRST = 5.0
LATER = 60.0
"""Seconds that a call waits for a server that was lost: before it begins, and after somebody has answered."""

SOON = 0.05
"""Seconds after which questions that are asked again are compared with what the server still asks, or until a
question is withdrawn that is about to be asked."""

REJECTED = -1
"""What a server is told whose model or folders somebody has refused, as the specification has it."""

_RPC: dict[Kind, str] = {
    "method": "tools/call",
    "prompt": "prompts/get",
    "resource": "resources/read",
    "completion": "completion/complete",
}


class Runner:
    """Has the server run one thing that it offers."""

    __slots__ = ("_about", "_mirrors", "_name", "_ref", "_start", "mount")

    def __init__(
        self, mount: "Mount", kind: Kind, name: str, params: dict[str, Any], ref: dict[str, Any] | None
    ) -> None:
        """`params` is the schema of its arguments; `ref` says what a completion is for, as MCP does."""
        self.mount = mount
        self._name = name
        self._ref = ref
        self._about = About(_RPC[kind], name if kind in ("method", "prompt") else "")
        self._start = b'"name":%b,"arguments":' % to_json(name)
        self._mirrors = kind == "method" and b"x-mcp-header" in to_json(params)

    def relay(
        self,
        hub: Hub,
        request: McpRequest,
        session: Session,
        tool: Tool,
        arguments: bytes,
        start: Callable[[Call], None],
    ) -> None:
        """Run it for an MCP client; by `start`, if there is more to do than to pass on the result."""
        principal = request.caller.principal
        call = hub.prepare(tool.found, arguments, NOWHERE, principal=principal, sender=request)
        RelayedCall(self, hub, request, session, tool, call, start).send()

    def run(self, call: Call, arguments: bytes) -> Coroutine[Any, Any, Any]:
        """Run it."""
        return RemoteCall(self, call, arguments).invoke(call, arguments)

    def watch(self, uri: str, principal: str | None) -> None:
        """Somebody wants to hear of updates of a resource."""
        self.mount.watch(uri, principal)

    def request(self, arguments: bytes) -> tuple[About, bytes]:
        """What is asked of the server, and the inside of its parameters."""
        match self._about.method:
            case "resources/read":
                uri = _located(arguments)
                return About("resources/read", uri), b'"uri":%b' % to_json(uri)
            case "completion/complete":
                return self._about, self._completing(arguments)
        about = self._about
        if self._mirrors:
            headers = self.mount.headers(self._name, arguments)
            about = About(about.method, about.name, headers) if headers else about
        return about, self._start + arguments

    def _completing(self, arguments: bytes) -> bytes:
        given = msgspec.json.decode(arguments)
        asked: dict[str, Any] = {
            "ref": self._ref,
            "argument": {"name": given.get("argument", ""), "value": given.get("value", "")},
        }
        if given.get("arguments"):
            asked["context"] = {"arguments": given["arguments"]}
        return to_json(asked)[1:-1]


class _Uri(Struct):
    uri: str


def _located(arguments: bytes) -> str:
    try:
        return msgspec.json.decode(arguments, type=_Uri).uri
    except msgspec.DecodeError as error:
        raise MidcallError(f"Invalid arguments: {error}") from None


# --- the usual call -------------------------------------------------------------------------------------


class RelayedCall:
    """A call of an MCP client, as long as the server only answers."""

    __slots__ = ("_exchange", "_hub", "_reporter", "_runner", "_start", "_tool", "call", "request", "session")

    def __init__(
        self,
        runner: Runner,
        hub: Hub,
        request: McpRequest,
        session: Session,
        tool: Tool,
        call: Call,
        start: Callable[[Call], None],
    ) -> None:
        """`start` has the call go on in the usual way."""
        self.request: McpRequest | None = request
        self.session = session
        self.call = call
        self._runner = runner
        self._hub = hub
        self._tool = tool
        self._start = start
        self._exchange: Exchange | None = None
        self._reporter: McpReply | None = None

    def send(self) -> None:
        """Send it on; or have it go the long way, if the server is not there just now."""
        request, call, mount = self.request, self.call, self._runner.mount
        if request is None:
            return
        self._hub.calls.check_room(call)
        self.session.admit(request, self)
        self._hub.calls.add(call)
        call.begun = True
        # Finding out the running loop is a system call in Python 3.11.
        loop = mount.loop or asyncio.get_running_loop()
        call.task = loop.create_future()
        call.task.add_done_callback(partial(self._ended, call))
        client = mount.clients.live(call.principal)
        server = client.live if client is not None else None
        if client is None or server is None:
            self._go_the_long_way(request, None)
            return
        about, params = self._runner.request(call.arguments)
        caller = request.caller
        kinds = caller.askable(self._tool.found.method.extras)
        head = client.head(server, kinds, caller.log_level) if server.modern else None
        exchange = self._exchange = Exchange(self, read_parts)
        exchange.send(server, about, params, progress=request.meta.progress_token is not None, head=head)

    # --- what the server does ----------------------------------------------------------------

    def moved(self, exchange: Exchange) -> None:
        """There is a reply, or a question."""
        request, reply = self.request, exchange.reply
        if request is None or self.call.reason is not None:
            return  # it was aborted, and is about to end
        if not isinstance(reply, Passed) or not is_end(reply):
            self._go_the_long_way(request, exchange)
            return
        self._leave(Status.COMPLETED)
        try:
            result = passed_result(reply, request.caller.revision)
        except McpError as error:
            request.error(error)
        else:
            request.result(result)

    def reported(self, method: str, params: dict[str, Any]) -> None:
        """Progress, or a line of log."""
        report = read_report(method, params)
        if report is not None and self.request is not None:
            if self._reporter is None:
                self._reporter = McpReply(self.request, _nothing, self.call.name)
            self._reporter.add(report)

    def _go_the_long_way(self, request: McpRequest, exchange: Exchange | None) -> None:
        """The call gets a task and a dialect, and goes on from what is under way."""
        call, waited = self.call, self.call.task
        self.request = self._exchange = None
        self.session.running.pop(request.id, None)
        call.begun = False
        remote = None
        if exchange is not None:
            call.method = remote = RemoteCall(self._runner, call, call.arguments, exchange)
        try:
            self._start(call)
        except (MidcallError, McpError) as error:
            failure = error_for(error)
            self._leave(Status.FAILED)
            if exchange is not None:
                exchange.cancel(failure.message)
            request.error(failure)
            return
        if isinstance(call.outlet, Attached | InputRequired) and self._reporter is not None:
            call.outlet.go_on_after(self._reporter)
        if remote is not None and call.task is not None:
            call.task.add_done_callback(lambda _: self._long_way_ended(remote))
        if waited is not None and not waited.done():
            waited.set_result(None)

    def _long_way_ended(self, remote: "RemoteCall") -> None:
        """The call has ended. If that was before it could begin, nobody looks after what is under way."""
        self.call.method = self._tool.found.method  # they know each other: only the collector would free them
        if remote.exchange is not None:
            remote.exchange.cancel("The call was cancelled")
            remote.abandon()

    # --- what its caller does ----------------------------------------------------------------

    def drop(self, request: McpRequest, reason: str, *, cancelled: bool) -> None:
        """The caller has cancelled its request, or is gone: nothing is sent to it, and the call ends."""
        self.request = None
        self.call.abort(reason)

    # --- the end -----------------------------------------------------------------------------

    def _leave(self, status: Status) -> None:
        """Nothing more is expected here."""
        call = self.call
        self.request = self._exchange = None
        call.outcome = status
        self._hub.calls.ended(call)
        if call.task is not None and not call.task.done():
            call.task.set_result(None)

    def _ended(self, call: Call, ended: "asyncio.Future[None]") -> None:
        """It is over. If it was aborted, the server is told."""
        if not ended.cancelled():
            return
        request, exchange = self.request, self._exchange
        reason = call.reason or "The call was cancelled"
        self._leave(Status.ABORTED)
        if exchange is not None:
            exchange.cancel(reason)
        if request is not None:
            failure = Error(call.stamp(), reason, Aborted.code)
            request.result(tool_result(self._tool, request.caller.revision, (), failure))


def _nothing(contents: Any, failure: Any) -> dict[str, Any]:
    return {}


# --- a call that takes rounds ---------------------------------------------------------------------------


class RemoteCall(Rounds):
    """A call that may ask whoever has made it. (It is what its `Call` runs.)

    A form that is another server's goes out untouched. Decline and cancel stay what they are: what they mean
    is for the server to say.
    """

    __slots__ = ("_call", "_mount", "_open", "_trace", "_waits_as")

    live = True
    streaming = False

    def __init__(
        self, runner: Runner, call: Call, arguments: bytes, exchange: Exchange | None = None
    ) -> None:
        """`exchange` is its request, if that is under way already."""
        mount = self._mount = runner.mount
        super().__init__(mount.clients.base, *runner.request(arguments), mount.silence)
        self._call = call
        self._open: dict[str, PassedQuestion] = {}
        """What is asked at the moment."""
        self.exchange = exchange
        if exchange is not None and exchange.reply is None:
            exchange.owner = self
        elif exchange is not None:
            self.note(exchange.reply)

    async def invoke(self, call: Call, arguments: bytes) -> Any:
        """What the call gives: as the server gave it to those who take that, else its value."""
        if call.trace is None:
            call.trace = Trace(call.id)
        self._trace = call.trace
        self._waits_as = call.trace.here
        try:
            event = await self.run()
        except BaseException:
            self._let_go()
            raise
        return self._value(event)

    # --- the request -------------------------------------------------------------------------

    def patience(self, *, first: bool) -> float | None:
        return FIRST if first else LATER

    async def session(self, patience: float | None) -> ClientSession:
        seconds = LATER if patience is None else patience
        try:
            client = await self._mount.clients.reach(self._call.principal, seconds)
            return await client.reach(seconds)
        except Unreachable as error:
            raise self.failure(error) from None

    def send(self, session: ClientSession, params: bytes) -> Exchange:
        exchange = self.exchange = Exchange(self, read_parts)
        log_level = getattr(self._call.outlet, "log_level", "debug")
        head = self._mount.clients.base.head(session, self._call.supported, log_level)
        exchange.send(session, self.about, params, progress=True, meta=_traced(), head=head)
        return exchange

    def failure(self, error: MidcallError) -> MidcallError:
        if isinstance(error, Unreachable):
            return Unreachable(f"{self._mount.name} cannot be reached: {error}")
        text = f"{self._mount.name} was lost in the middle of this call, which may be done or not: {error}"
        return ToolError(text, code="transport_lost")

    async def next_event(self, exchange: Exchange) -> Event | None:
        principal, call_id = self._call.principal, self._waits_as
        try:
            event = await super().next_event(exchange)
        finally:
            if exchange.reply is not None:
                self._mount.waiting.remove(principal, call_id)
        if exchange.reply is None and self._trace.kept:
            self._mount.keep(principal, call_id, exchange)
        return event

    async def step(self, work: Callable[[], Awaitable[Event]], *, retry_safe: bool = False) -> Event:
        async def step() -> Any:
            return await work()

        step.__qualname__ = self._call.name
        event: Event = await steps.run(self._trace, step, (), {}, retry_safe=retry_safe)
        return event

    def becomes_task(self) -> None:
        self._call.put(Background(self._call.stamp()))

    def reported(self, method: str, params: dict[str, Any]) -> None:
        match read_report(method, params):
            case Progress(_, message, percentage):
                self._call.progress(message, percentage)
            case Log(_, level, message, data):
                self._call.log(level, message, data)

    # --- questions ---------------------------------------------------------------------------

    async def ask(self, questions: Mapping[str, Any], *, live: bool) -> dict[str, Any]:
        exchange = self._found_exchange() if live else None
        if exchange is not None:
            asyncio.get_running_loop().call_later(SOON, self._withdraw, exchange)
        if len(questions) == 1:
            given = {key: await self._ask_one(key, one, live=live) for key, one in questions.items()}
        else:
            async with asyncio.TaskGroup() as group:
                asking = {
                    key: group.create_task(self._ask_one(key, one, live=live))
                    for key, one in questions.items()
                }
            given = {key: task.result() for key, task in asking.items()}
        refused = next((one for one in given.values() if isinstance(one, RemoteError)), None)
        if refused is not None and not live:
            text = f"{self._mount.name} asked something that has no answer: {refused}"
            raise ToolError(text, code="not_supported")
        return given

    async def _ask_one(self, key: str, asked: Any, *, live: bool) -> dict[str, Any] | RemoteError:
        """Put it to whoever has made the call. What has no answer is given back as the error of that."""
        if len(key) > MAX_KEY:
            text = f"The key of a question has {MAX_KEY} characters at most"
            return RemoteError(text, rpc_code=jsonrpc.INVALID_PARAMS)
        given = asked if isinstance(asked, dict) else {}
        method, params = given.get("method"), given.get("params")
        try:
            question = read_question(method, params, exact=True)
            if self._mount.answering.answers(str(method)):
                return await self._answer_here(str(method), params or {})
            key_there = asked_key(params) or (None if live else key)
            passed = PassedQuestion(question, str(method), self._call.time_limit, key_there)
            self._open[key] = passed
            (result,) = await self._call.ask((passed,))
        except RemoteError as error:
            return error
        except NotSupported as error:
            code = jsonrpc.INVALID_PARAMS if method == ELICIT else jsonrpc.METHOD_NOT_FOUND
            return RemoteError(str(error), rpc_code=code)
        except Declined:
            return RemoteError(f"The user refused {method}", rpc_code=REJECTED)
        except (Cancelled, TimedOut, TransportLost) as error:
            if method == ELICIT:
                return {"action": "cancel"}
            return RemoteError(str(error), rpc_code=REJECTED)
        except AskError as error:
            return RemoteError(str(error), rpc_code=jsonrpc.INTERNAL_ERROR)
        else:
            return result  # type: ignore[no-any-return]
        finally:
            self._open.pop(key, None)

    async def _answer_here(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A model or folders of the mount's own."""

        async def answer() -> Any:
            return await self._mount.answering.asked(method, params)

        answer.__qualname__ = method
        found: dict[str, Any] = await steps.run(self._trace, answer, (), {}, retry_safe=True)
        return found

    def waiting_exchange(self) -> Exchange:
        exchange = self._found_exchange()
        if exchange is None:
            raise ToolError(
                f"{self._mount.name} lost this call when the process in front of it was restarted; "
                "it may have done part of it",
                code="call_lost",
            )
        return exchange

    def _found_exchange(self) -> Exchange | None:
        """The request that waits, if it is here: of this call, or of how it was run before."""
        if self.exchange is None:
            self.exchange = self._mount.waiting.get(self._call.principal, self._waits_as)
        if self.exchange is not None and self.exchange.reply is None:
            self.exchange.owner = self
        return self.exchange

    def moved(self, exchange: Exchange) -> None:
        super().moved(exchange)
        self._withdraw(exchange)

    def _withdraw(self, exchange: Exchange) -> None:
        """Take back what the server does not ask any more."""
        if exchange is not self.exchange:
            return
        for key, passed in list(self._open.items()):
            if key in exchange.questions:
                continue
            if not self._call.cancel_question(passed.request_id, "The server withdrew the question"):
                asyncio.get_running_loop().call_later(SOON, self._withdraw, exchange)
                return

    # --- the end -----------------------------------------------------------------------------

    def _value(self, event: Event) -> Any:
        if "error" in event:
            passed = Passed(error=PassedError(*event["error"]))
        else:
            passed = Passed({name: value for name, value in event["result"].items() if name != "resultType"})
        if getattr(self._call.outlet, "takes_passed", False):
            return passed
        if passed.error is not None:
            error = error_of(passed.error)
            if error.rpc_code == jsonrpc.INVALID_PARAMS:
                error.code = InvalidArguments.code
            raise error
        result = to_builtins(passed.result)
        if self.about.method != "tools/call":
            return result
        if result.get("isError"):
            raise failure_of(result)
        structured = result.get("structuredContent")
        return _plain(result.get("content")) if structured is None else unwrapped(structured)

    def _let_go(self) -> None:
        """Nobody waits for this any more. If the call goes on elsewhere, so does what is under way."""
        call = self._call
        exchange, self.exchange = self.exchange, None
        if call.dropped and not call.over:
            if exchange is not None:
                exchange.owner = None
            return
        if exchange is not None:
            self._mount.waiting.remove(call.principal, self._waits_as)
            exchange.cancel(call.reason or "The call was cancelled")
        self.abandon()


def _traced() -> bytes:
    """Where the call stands in a trace, for `_meta`, if the process uses OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return b""
    from midcall import telemetry  # noqa: PLC0415  slow to import, and seldom needed

    return to_json(telemetry.carrier())[1:-1]


def _plain(content: Any) -> Any:
    """The text of a result; where there is more than that, all of it, with texts as they are."""
    blocks = content if isinstance(content, list) else []
    if all(isinstance(one, dict) and one.get("type") == "text" for one in blocks):
        return text_of(blocks)
    return [one["text"] if _is_text(one) else one for one in blocks]


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


class PassedQuestion(Struct, eq=False):
    """A question that is passed on (see `open_questions.Wanted`); its value is the result that the server
    gets."""

    question: AnyQuestion
    method: str
    timeout: float | None
    key: str | None
    priority: Priority = "normal"
    request_id: str = ""
    place: str = ""
    fingerprint: str = ""
    since: float = 0.0
    note: str = ""
    to: str | None = None

    def read(self, payload: Any) -> dict[str, Any]:
        answer = read_reply(self.question, payload)
        if isinstance(answer, Refusal) and self.method != ELICIT:
            raise (Declined if answer.how == "Declined" else Cancelled)(f"{self.method} was refused")
        return result_for(self.question, answer)

"""Turn: what happens between a request of the person and the moment when it is the person's turn again.

The phases are a table. What a person answered is worked in first, then what was left over, then what was
said; then model and tools take turns until the model has nothing more to call, or a tool asks the person:

    process_plugin_abort -> process_plugin_responses -> process_message -> executing_tools (what is left over)
                                     |                                            |
                                     v                                            v
                          plugin_awaiting_elicit  <----  executing_tools  <-- start_iteration <-> streaming
                                                                                  |
                                                                                  v
                                                                               complete

What the person did is saved before the turn begins. After that, the conversation is saved before the model
is asked, before tools are called, and before an event goes out that the person can act upon. Whenever it is,
its messages have all that the lines up to its `lsn` tell, and nothing of those after it. Tools are called
under an idempotency key, so that a turn that a crash has cut off is taken up where it stood.

What a tool asks the model is answered at once. What it asks the person is noted in the conversation as
pending, and gone on with in the turn that brings the answers. However a tool call ends, the conversation has
a result for it, and no call is left behind in the journal.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from midcall.chat import messages as told
from midcall.chat.conversation import MESSAGE_ID, Conversation, Pending
from midcall.chat.dialect import NotNow, OpenQuestion, Report, ToolAsks, ToolEnded
from midcall.chat.messages import ChatRequest, ElicitRequest, ElicitResponse, Event, Failure
from midcall.chat.plugins import PluginQuestion, Shown, show
from midcall.chat.runs import Run, finished
from midcall.chat.store import Conflict
from midcall.chat.tools import GONE, NO_TOOLS, SessionLost, Tools
from midcall.errors import JournalError, MidcallError, TooManyCalls
from midcall.items import to_json
from midcall.mcp.elicitation import read_context, request_for, without_context
from midcall.models.base import (
    Message,
    ModelError,
    ModelRequest,
    Stopped,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
    cost,
)
from midcall.principal import Principal
from midcall.questions import Roots, Sample

if TYPE_CHECKING:
    from midcall.chat.engine import ChatEngine

log = logging.getLogger("midcall.chat")

INSTEAD = "The person did not answer, and wrote something else instead."

LOST = "Plugin session was lost. Please retry the operation."
STOPPED = "Stopped by the person before it had a result."

MAX_ROUNDS = 200
"""How often a tool may ask in one turn without asking the person."""

NOT_UNDERSTOOD = "(Not understood: "
"""How a question begins that is asked again, as over MCP."""

NO_ANSWER = {"action": "cancel"}
"""What a tool gets whose question the model did not answer."""


class PluginFailed(MidcallError):
    """A handler failed: with the first answer that it cannot take, or before."""


class Meter:
    """What a turn has cost so far, and may cost."""

    def __init__(self, budget: int | None) -> None:
        self.usage = Usage()
        self._budget = budget

    def spend(self, usage: Usage) -> None:
        self.usage += usage

    @property
    def spent(self) -> bool:
        return self._budget is not None and self.usage.input + self.usage.output >= self._budget

    @property
    def told(self) -> dict[str, int]:
        return {"input": self.usage.input, "output": self.usage.output}


class Phase(StrEnum):
    """Where a turn stands."""

    PROCESS_PLUGIN_ABORT = "process_plugin_abort"
    PROCESS_PLUGIN_RESPONSES = "process_plugin_responses"
    PROCESS_MESSAGE = "process_message"
    START_ITERATION = "start_iteration"
    STREAMING = "streaming"
    EXECUTING_TOOLS = "executing_tools"
    PLUGIN_AWAITING_ELICIT = "plugin_awaiting_elicit"
    COMPLETE = "complete"


class Turn:
    """One turn of a conversation."""

    def __init__(
        self,
        engine: "ChatEngine",
        run: Run,
        conversation: Conversation,
        request: ChatRequest,
        principal: Principal | None,
    ) -> None:
        self._engine = engine
        self._run = run
        self._conversation = conversation
        self._request = request
        self._meter = Meter(engine.token_budget)
        self._tools = TurnCalls(engine, run, conversation, principal, self._meter)
        self._responses = list(request.plugin_elicit_responses)
        """What the person has answered that is not taken yet."""
        self._text = None if _is_said(conversation, request) else request.text
        """What the person says that is not in the conversation yet."""
        self._unsaved = False
        self._iterations = 0
        self._reason = "stop"
        self._said: list[str] = []
        """What the model has said so far in this iteration."""
        self._table: dict[Phase, Callable[[], Awaitable[Phase | None]]] = {
            Phase.PROCESS_PLUGIN_ABORT: self._process_plugin_abort,
            Phase.PROCESS_PLUGIN_RESPONSES: self._process_plugin_responses,
            Phase.PROCESS_MESSAGE: self._process_message,
            Phase.START_ITERATION: self._start_iteration,
            Phase.STREAMING: self._streaming,
            Phase.EXECUTING_TOOLS: self._executing_tools,
            Phase.PLUGIN_AWAITING_ELICIT: self._plugin_awaiting_elicit,
            Phase.COMPLETE: self._complete,
        }

    def take_in(self) -> None:
        """Take in what the person did, before the first save; not what needs a handler, or ends a call."""
        if self._request.plugin_abort is None:
            self._responses = [one for one in self._responses if not self._tools.take_at_once(one)]
        if self._text is not None and not self._conversation.unanswered():
            self._say(self._text)

    def _say(self, text: str) -> None:
        id, self._text = self._request.message_id, None
        self._conversation.say(Message("user", text, extra={MESSAGE_ID: id} if id else {}))

    async def play(self) -> None:
        """Go through the phases, to the end or until the person is asked."""
        model = self._engine.model
        self._run.emit(
            told.SessionInfo(
                self._run.id, self._conversation.id, {"name": model.name, "scripted": model.scripted}
            )
        )
        try:
            await self._play()
        except asyncio.CancelledError:
            await self._cut_off()

    async def _play(self) -> None:
        try:
            self._tools.look_for_tools()  # events name tools as the hub does
            phase: Phase | None = Phase.PROCESS_PLUGIN_ABORT
            while phase is not None:
                phase = await self._table[phase]()
        except MidcallError as error:
            if isinstance(error, Conflict):
                await self._end_if_deleted()
            await self._finish(Failure(str(error), error.code, error.recoverable))
        except Exception:
            log.exception("a turn failed inside midcall")
            await self._finish(Failure("Internal error", "internal_error"))

    # --- what the person has done ------------------------------------------------------------

    async def _process_plugin_abort(self) -> Phase:
        abort = self._request.plugin_abort
        if abort is not None:
            pending = self._conversation.pending.get(abort.session_id)
            if pending is None:
                text = "There is no such tool call waiting"
                self._tools.session_error(abort.session_id, "SESSION_NOT_FOUND", text)
            else:
                await self._tools.abort(pending, abort.reason or "Cancelled by the person")
        return Phase.PROCESS_PLUGIN_RESPONSES

    async def _process_plugin_responses(self) -> Phase:
        for response in self._responses:
            pending = self._conversation.pending.get(response.session_id)
            if pending is None:
                self._tools.lost(response.session_id)
            else:
                await self._tools.take(pending, response)
        # Who comes back without an answer is to see what is asked now: it may have changed.
        ready = list(self._conversation.pending.values()) if self._request.resume else self._tools.answered
        if ready:
            if self._responses:
                # What was answered is not lost if the process dies now: the tool call takes it only once.
                await self._save()
            self._unsaved = True
            await self._tools.go_on(ready)
        return Phase.PROCESS_MESSAGE

    async def _process_message(self) -> Phase:
        if self._text is not None:
            await self._tools.make(self._tools.unmade)  # left over by a crash: they have a result first
            for pending in list(self._conversation.pending.values()):
                await self._tools.abort(pending, INSTEAD)
            self._say(self._text)
            self._unsaved = True
            return Phase.START_ITERATION
        if self._tools.unmade:
            return Phase.EXECUTING_TOOLS
        if self._conversation.pending:
            return Phase.PLUGIN_AWAITING_ELICIT
        last = self._conversation.messages[-1].role if self._conversation.messages else "assistant"
        return Phase.COMPLETE if last == "assistant" else Phase.START_ITERATION

    # --- the model and its tools -------------------------------------------------------------

    async def _start_iteration(self) -> Phase:
        if self._iterations >= self._engine.max_iterations:
            self._reason = "iterations"
            return Phase.COMPLETE
        if self._meter.spent:
            self._reason = "budget"
            return Phase.COMPLETE
        self._iterations += 1
        return Phase.STREAMING

    async def _streaming(self) -> Phase:
        engine = self._engine
        await self._save_changes()
        messages = joined(self._conversation.messages)
        request = ModelRequest(messages, self._tools.look_for_tools().definitions, engine.system)
        thinking: list[str] = []
        calls: list[ToolCall] = []
        stopped = Stopped()
        self._said = []
        async for event in engine.model.stream(request):
            match event:
                case TextPart(text):
                    self._said.append(text)
                    self._run.emit(told.Text(text))
                case ThinkingPart(text):
                    thinking.append(text)
                    self._run.emit(told.Thinking(text))
                case ToolCall():
                    calls.append(self._own(event, calls))
                case Stopped():
                    stopped = event
        text, self._said = "".join(self._said), []
        self._meter.spend(cost(request, text, calls, stopped.usage))
        self._conversation.say(
            Message("assistant", text, tuple(calls), thinking="".join(thinking), extra=stopped.extra)
        )
        if calls:
            self._run.emit(told.ToolCalls([_shown(call) for call in calls]))
        self._unsaved = True
        if not calls:
            self._reason = "length" if stopped.reason == "length" else "stop"
            return Phase.COMPLETE
        return Phase.EXECUTING_TOOLS

    def _own(self, call: ToolCall, calls: Sequence[ToolCall]) -> ToolCall:
        """A call whose id no other call of the conversation has, as some models count anew each time."""
        known = {c.id for message in self._conversation.messages for c in message.tool_calls}
        known |= {c.id for c in calls}
        id, number = call.id or "call", 2
        while id in known:
            id = f"{call.id or 'call'}-{number}"
            number += 1
        return call if id == call.id else msgspec.structs.replace(call, id=id)

    async def _executing_tools(self) -> Phase:
        await self._save_changes()
        self._unsaved = True
        await self._tools.make(self._tools.unmade)
        return Phase.PLUGIN_AWAITING_ELICIT if self._conversation.pending else Phase.START_ITERATION

    # --- the end -----------------------------------------------------------------------------

    async def _plugin_awaiting_elicit(self) -> None:
        await self._end()
        questions = self._conversation.questions
        for question in questions:
            self._run.emit(question)
        messages = list(self._conversation.messages)
        self._run.emit(told.ConversationState(self._conversation.id, messages, questions, self._meter.told))

    async def _complete(self) -> None:
        await self._end()
        self._run.emit(told.Complete(self._reason, self._meter.told))

    async def _cut_off(self) -> None:
        """The person has stopped it; or the server ends, and then it is taken up again later."""
        if self._engine.closing:
            await self._finish(Failure("The server is closing: try again", "closing", recoverable=True))
            return
        if self._said:
            self._conversation.say(Message("assistant", "".join(self._said)))
        try:
            await self._tools.stop()
        except MidcallError as error:
            await self._finish(Failure(str(error), error.code, error.recoverable))
        else:
            await self._finish(told.Complete("stopped", self._meter.told))

    async def _end_if_deleted(self) -> None:
        """End what was begun for a conversation that is gone; one that was changed goes on elsewhere."""
        gone = self._conversation
        with contextlib.suppress(MidcallError):
            if await self._engine.store.load(gone.id, gone.principal) is None:
                await self._tools.stop()

    async def _finish(self, event: Event) -> None:
        """The last event, which is told also if nothing can be saved any more."""
        try:
            await self._end(event if isinstance(event, Failure) else None)
        except MidcallError as error:
            log.warning("a conversation cannot be saved: %s", error)
        self._run.emit(event)

    async def _end(self, failure: Failure | None = None) -> None:
        self._conversation.run, self._conversation.failure = None, failure
        await self._save()

    async def _save_changes(self) -> None:
        if self._unsaved:
            await self._save()

    async def _save(self) -> None:
        self._unsaved = False
        self._conversation.lsn = self._run.lsn
        await finished(self._engine.store.save(self._conversation))


# --- tool calls -----------------------------------------------------------------------------


class TurnCalls:
    """What one turn does with tools."""

    def __init__(
        self,
        engine: "ChatEngine",
        run: Run,
        conversation: Conversation,
        principal: Principal | None,
        meter: Meter,
    ) -> None:
        self._engine = engine
        self._run = run
        self._conversation = conversation
        self._principal = principal
        self._meter = meter
        self._tools = NO_TOOLS

    def look_for_tools(self) -> Tools:
        """The tools that the hub has now: those of mounted servers come and go."""
        self._tools = self._engine.tools()
        return self._tools

    # --- all of them --------------------------------------------------------------------------

    @property
    def unmade(self) -> list[ToolCall]:
        """Calls that have neither a result nor a question: new ones, or what a crash has left over."""
        return [call for call in self._conversation.unanswered() if call.id not in self._conversation.pending]

    @property
    def answered(self) -> list[Pending]:
        """Calls that can go on: with an answer to any of their questions, or cut off while they went on."""
        return [
            one
            for one in self._conversation.pending.values()
            if not one.questions or one.questions.keys() & one.answers.keys()
        ]

    async def make(self, calls: Iterable[ToolCall]) -> None:
        """Make calls, each to its result or until it asks the person. Raises what may be tried again."""
        await self._all([self._make(call) for call in calls])

    async def go_on(self, pendings: Iterable[Pending]) -> None:
        """Go on with calls, with what is answered of their questions; what is not, they ask again."""
        await self._all([self._go_on(pending) for pending in pendings])

    async def _all(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Do it all, at once unless told otherwise; what one fails with is raised when all have ended."""
        failures: list[MidcallError] = []

        async def guarded(one: Coroutine[Any, Any, None]) -> None:
            try:
                await one
            except MidcallError as error:
                failures.append(error)

        if self._engine.parallel and len(work) > 1:
            async with asyncio.TaskGroup() as group:
                for one in work:
                    group.create_task(guarded(one))
        else:
            for one in work:
                await guarded(one)
        if failures:
            raise failures[0]

    async def abort(self, pending: Pending, reason: str) -> None:
        """End a call that waits."""
        self._status(pending.call, "aborted")
        await self._end(pending.call, reason)

    async def stop(self) -> None:
        """The person has stopped the turn: end everything that has no result."""
        for pending in list(self._conversation.pending.values()):
            await self.abort(pending, STOPPED)
        for call in self._conversation.unanswered():
            await self._end(call, STOPPED)

    def lost(self, call_id: str) -> None:
        """An answer for a call that does not wait any more."""
        self.session_error(call_id, "SESSION_NOT_FOUND", GONE)
        for call in self._conversation.unanswered():
            if call.id == call_id:
                self._failed(call, LOST)

    def session_error(self, session_id: str, error: str, message: str) -> None:
        self._run.emit(told.SessionError(session_id, session_id, error, message))

    # --- one of them --------------------------------------------------------------------------

    async def _make(self, call: ToolCall) -> None:
        pending = Pending(call, round=0)

        async def begin(report: Report) -> ToolEnded | ToolAsks:
            tools = self._tools if call.name in self._tools else self.look_for_tools()
            tool, key = tools.find(call.name), self._conversation.key_of(call)
            arguments = to_json(call.read_arguments())
            return await self._engine.calls.begin(tool, arguments, key, self._principal, report)

        await self._play(pending, begin)

    async def _go_on(self, pending: Pending) -> None:
        async def answer(report: Report) -> ToolEnded | ToolAsks:
            if not pending.call_id:  # of a conversation that was written before calls were known by their ids
                key = self._conversation.key_of(pending.call)
                pending.call_id = await self._engine.calls.find(self._conversation.principal, key)
            await self._answer(pending)
            self._status(pending.call, "running")
            return await self._engine.calls.current(pending.call_id, report)

        await self._play(pending, answer)

    async def _answer(self, pending: Pending) -> None:
        """Give a call the answers that there are. When this returns, they are in the journal."""
        if pending.answers:
            await self._engine.calls.answer(pending.call_id, pending.answers, pending.places)

    async def _play(
        self,
        pending: Pending,
        start: Callable[[Report], Coroutine[Any, Any, ToolEnded | ToolAsks]],
    ) -> None:
        """Do what is next of a call. Whatever goes wrong is its result, unless it may be tried again."""
        call = pending.call

        def report(message: str, percentage: float | None) -> None:
            self._run.emit(told.ToolProgress(call.id, self._name(call), message, percentage))

        try:
            await self._settle(pending, await start(report), report)
        except SessionLost:
            self._conversation.pending.pop(call.id, None)
            self.lost(call.id)
        except (MidcallError, ValueError) as error:
            if not _may_be_tried_again(error, pending):
                await self._end(call, str(error))
                return
            if pending.call_id:
                self._conversation.pending[call.id] = pending  # with its answers
            raise NotNow(str(error)) from error  # under the same key, or with the same answers
        except Exception:
            # A call without a result would be made again, and fail again, with all that is ever said.
            log.exception("a call of %s failed inside midcall", call.name)
            await self._end(call, "Internal error")

    async def _settle(self, pending: Pending, outcome: ToolEnded | ToolAsks, report: Report) -> None:
        """Take what came of a round; answer what needs no person, and go on until one is needed."""
        call = pending.call
        for _ in range(MAX_ROUNDS):
            if isinstance(outcome, ToolEnded):
                break
            unanswered = pending.unanswered
            pending.call_id = outcome.call_id
            pending.round += 1
            pending.questions, pending.answers = {}, {}
            pending.rendered = {key: pending.rendered.get(key, []) for key in unanswered}
            await self._ask(pending, outcome, unanswered)
            if pending.questions:
                self._conversation.pending[call.id] = pending
                self._status(call, "awaiting_elicit")
                return
            await self._answer(pending)
            outcome = await self._engine.calls.current(pending.call_id, report)
        else:
            raise MidcallError(f"{self._name(call)} has asked {MAX_ROUNDS} times, and is given up")
        if pending.round:
            self._status(call, "failed" if outcome.is_error else "completed")
        if outcome.is_error:
            self._failed(call, outcome.content)
            return
        self._conversation.pending.pop(call.id, None)
        self._conversation.say(Message("tool", outcome.content, tool_call_id=call.id))
        self._run.emit(told.ToolResult(call.id, self._name(call), outcome.content, outcome.structured))

    async def _end(self, call: ToolCall, reason: str) -> None:
        """A call fails that has not ended by itself: first in the journal, so that none is left there."""
        try:
            key = self._conversation.key_of(call)
            await finished(self._engine.calls.abort(self._conversation.principal, key, reason))
        except asyncio.CancelledError:
            self._failed(call, reason)
            raise
        self._failed(call, reason)

    def _failed(self, call: ToolCall, message: str) -> None:
        self._conversation.pending.pop(call.id, None)
        self._conversation.say(Message("tool", f"Error: {message}", tool_call_id=call.id, is_error=True))
        self._run.emit(told.ToolError(call.id, self._name(call), message))

    # --- what it asks -------------------------------------------------------------------------

    async def _ask(self, pending: Pending, asks: ToolAsks, unanswered: dict[str, ElicitRequest]) -> None:
        """Have the model answer what is for it, and note what is for the person.

        What was asked before and is `unanswered` stays the same question.
        """
        pending.places = {key: one.place for key, one in asks.questions.items()}
        for key, one in asks.questions.items():
            match one.question:
                case Sample():
                    pending.answers[key] = await self._sample(pending.call, one.question)
                case Roots():
                    pending.answers[key] = {"roots": []}
                case _:
                    question = self._question(pending, key, one)
                    before = unanswered.get(key)
                    if before is not None and _is_same(before, question):
                        pending.questions[key] = before
                    else:
                        pending.rendered.pop(key, None)
                        await self._show(pending, key, question)

    async def _sample(self, call: ToolCall, question: Sample) -> dict[str, Any]:
        """What the model says; if it says nothing, the tool is told so, and may do without."""
        self._status(call, "awaiting_sample")
        if self._meter.spent:
            self._tell(call, "The turn has cost too much already to ask the model again")
            return NO_ANSWER
        name = self._name(call)
        try:
            sampling = self._engine.sampling_for(name)
            _, params = request_for(question)
            return await sampling.answer(params, self._engine.model, self._meter.spend)
        except ModelError as error:
            self._tell(call, f"The model gave no answer: {error}")
            return NO_ANSWER
        except Exception:
            log.exception("the sampling of %s failed", name)
            self._tell(call, "The model could not be asked")
            return NO_ANSWER

    def _question(self, pending: Pending, key: str, one: OpenQuestion) -> ElicitRequest:
        note = f"{NOT_UNDERSTOOD}expected {one.expected})\n" if one.expected else ""
        _, params = request_for(one.question, note)
        call, message, schema = pending.call, str(params["message"]), params.get("requestedSchema")
        return ElicitRequest(
            session_id=call.id,
            call_id=call.id,
            tool_name=self._name(call),
            elicit_id=f"{call.id}:{key}:{pending.round}",
            key=key,
            message=without_context(message),
            schema=schema,
            context=read_context(message, schema) or None,
            mode="url" if "url" in params else None,
            url=params.get("url"),
        )

    def take_at_once(self, response: ElicitResponse) -> bool:
        """Take the person's answer to one question, if that needs no handler."""
        pending = self._conversation.pending.get(response.session_id)
        key = None if pending is None else _key_of(pending, response)
        if pending is None or key is None:
            return False
        result = response.result
        if result.action != "accept":
            pending.answers[key] = {"action": result.action}
        elif pending.questions[key].component is None:
            content = {} if result.content is None else result.content
            pending.answers[key] = {"action": "accept", "content": content}
        else:
            return False
        return True

    async def take(self, pending: Pending, response: ElicitResponse) -> None:
        """Take the person's answer to one question; it is said if it is no answer to any."""
        if self.take_at_once(response):
            return
        key = _key_of(pending, response)
        if key is None:
            waiting = [question.elicit_id for question in pending.unanswered.values()]
            text = f"Elicitation ID mismatch: expected {' or '.join(waiting)}, got {response.elicit_id}"
            self.session_error(response.session_id, "ELICIT_MISMATCH", text)
            return
        question = _without_reason(pending.questions[key])
        rendered = pending.rendered.setdefault(key, [])
        rendered.append(response.result.content)
        try:
            await self._show(pending, key, question)
        except PluginFailed as failed:
            rendered.pop()
            pending.round += 1
            pending.questions[key] = _again(question, failed, pending.round)

    async def _show(self, pending: Pending, key: str, question: ElicitRequest) -> None:
        """Find out how a question is shown next, or that its handler needs nothing more."""
        name = self._name(pending.call)
        handler = self._engine.handler_for(name, key)
        if handler is not None:
            asked = PluginQuestion(
                key, question.message, question.context or {}, question.schema or {}, name, pending.call.id
            )
            answers = pending.rendered.get(key, [])
            try:
                shown = await show(handler, asked, answers)
            except Exception as error:
                log.exception("the plugin of %s failed", name)
                raise PluginFailed(f"The plugin of {name} failed: {error}") from error
            if isinstance(shown, Shown):
                question = _with_component(question, shown, len(answers))
            else:
                pending.answers[key] = shown
                if question.component is None:
                    return
        pending.questions[key] = question

    # --- what is told -------------------------------------------------------------------------

    def _name(self, call: ToolCall) -> str:
        return self._tools.shown_name(call.name)

    def _status(self, call: ToolCall, status: str) -> None:
        self._run.emit(told.SessionStatus(call.id, call.id, self._name(call), status))

    def _tell(self, call: ToolCall, message: str) -> None:
        log.warning("%s: %s", call.name, message)
        self._run.emit(told.ToolProgress(call.id, self._name(call), message))


def _is_said(conversation: Conversation, request: ChatRequest) -> bool:
    """Whether a message was sent before.

    Whoever brings the history along may have the last of it answered once more; who does not, has lost the
    answer.
    """
    id = request.message_id
    return conversation.awaits_answer_to(id) or (request.message is not None and conversation.has_said(id))


def _key_of(pending: Pending, response: ElicitResponse) -> str | None:
    """Which question an answer is for, of those that have none yet."""
    found = (key for key, one in pending.unanswered.items() if one.elicit_id == response.elicit_id)
    return next(found, None)


def _may_be_tried_again(error: Exception, pending: Pending) -> bool:
    """Whether a call is not to be given up: the journal is away, or there is no room to go on with it."""
    return isinstance(error, JournalError | NotNow) or (
        isinstance(error, TooManyCalls) and bool(pending.call_id)
    )


def _is_same(one: ElicitRequest, other: ElicitRequest) -> bool:
    """Whether the person is asked the same, in whichever round and however it is shown."""
    return (one.message, one.schema, one.context, one.url) == (
        other.message,
        other.schema,
        other.context,
        other.url,
    )


def _again(question: ElicitRequest, failed: PluginFailed, round: int) -> ElicitRequest:
    """A question whose answer its handler could not take, with the reason."""
    reason = str(failed.__cause__) or type(failed.__cause__).__name__
    start, part, number = question.elicit_id.partition("#")
    return msgspec.structs.replace(
        question,
        message=f"{NOT_UNDERSTOOD}{' '.join(reason.split())})\n{question.message}",
        elicit_id=f"{start.rpartition(':')[0]}:{round}{part}{number}",
    )


def _without_reason(question: ElicitRequest) -> ElicitRequest:
    """A question without the reason why it was asked again."""
    before, _, message = question.message.partition("\n")
    return (
        msgspec.structs.replace(question, message=message) if before.startswith(NOT_UNDERSTOOD) else question
    )


def _with_component(question: ElicitRequest, shown: Shown, number: int) -> ElicitRequest:
    elicit_id = question.elicit_id if not number else f"{question.elicit_id.split('#')[0]}#{number + 1}"
    component = {"name": shown.component, "props": shown.props}
    return msgspec.structs.replace(question, component=component, elicit_id=elicit_id)


def joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages for a model, of which many want person and assistant to speak in turns.

    What the person said in several messages, because the model failed or was stopped, is one.
    """
    made: list[Message] = []
    for message in messages:
        last = made[-1] if made else None
        if last is not None and message.role == last.role == "user":
            made[-1] = Message("user", f"{last.content}\n\n{message.content}")
        else:
            made.append(message)
    return tuple(made)


def _shown(call: ToolCall) -> dict[str, Any]:
    try:
        arguments: Any = call.read_arguments()
    except ValueError:
        arguments = call.arguments
    return {"id": call.id, "name": call.name, "arguments": arguments}

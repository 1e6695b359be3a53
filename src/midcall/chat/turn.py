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

Before an event that the person can act upon goes out, the conversation is in the store. Tools are called
under an idempotency key, so that a turn that a crash has cut off is taken up where it stood.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from midcall.chat.conversation import Conversation, Pending
from midcall.chat.events import (
    Complete,
    ConversationState,
    ElicitRequest,
    Failure,
    SessionError,
    SessionInfo,
    SessionStatus,
    Text,
    Thinking,
    ToolCalls,
    ToolError,
    ToolProgress,
    ToolResult,
)
from midcall.chat.plugins import PluginQuestion, Shown, show
from midcall.chat.request import ChatRequest, ElicitResponse
from midcall.chat.runs import Run
from midcall.chat.toolset import Asked, Finished, SessionLost, Toolset
from midcall.client.line import read_progress
from midcall.errors import MidcallError
from midcall.mcp.elicitation import ROOTS, SAMPLE
from midcall.mcp.model_context import read_context, without_context
from midcall.models.base import Message, ModelRequest, Stopped, TextPart, ThinkingPart, ToolCall, Usage

if TYPE_CHECKING:
    from midcall.chat.engine import ChatEngine

log = logging.getLogger("midcall.chat")

LOST = "Error: Plugin session was lost. Please retry the operation."
STOPPED = "Stopped by the person before it had a result."
INSTEAD = "The person did not answer, and wrote something else instead."


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
        toolset: Toolset,
    ) -> None:
        self._engine = engine
        self._run = run
        self._conversation = conversation
        self._request = request
        self._toolset = toolset
        self._usage = Usage()
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

    async def play(self) -> None:
        """Go through the phases, to the end or until the person is asked."""
        model = self._engine.model
        self._run.emit(
            SessionInfo(self._run.id, self._conversation.id, {"name": model.name, "scripted": model.scripted})
        )
        try:
            phase: Phase | None = Phase.PROCESS_PLUGIN_ABORT
            while phase is not None:
                phase = await self._table[phase]()
        except asyncio.CancelledError:
            await self._cut_off()
        except MidcallError as error:
            await self._end()
            self._run.emit(Failure(str(error), error.code, error.recoverable))
        except Exception:
            log.exception("a turn failed inside midcall")
            await self._end()
            self._run.emit(Failure("Internal error", "internal_error"))

    # --- what the person has done ------------------------------------------------------------

    async def _process_plugin_abort(self) -> Phase:
        abort = self._request.plugin_abort
        if abort is not None:
            pending = self._conversation.pending.get(abort.session_id)
            if pending is None:
                self._session_error(
                    abort.session_id, "SESSION_NOT_FOUND", "There is no such tool call waiting"
                )
            else:
                await self._abort(pending, abort.reason or "Cancelled by the person")
        return Phase.PROCESS_PLUGIN_RESPONSES

    async def _process_plugin_responses(self) -> Phase:
        responses = self._request.plugin_elicit_responses
        ready: dict[str, Pending] = {}
        for response in responses:
            pending = self._conversation.pending.get(response.session_id)
            if pending is None:
                self._lost(response.session_id)
            elif await self._take_answer(pending, response) and _is_answered(pending):
                ready[response.session_id] = pending
        if ready:
            # What was answered is not lost if the process dies now: the tool call takes it only once.
            await self._save()
            await self._all(self._go_on(pending) for pending in ready.values())
            await self._save()
        return Phase.PROCESS_MESSAGE

    async def _take_answer(self, pending: Pending, response: ElicitResponse) -> bool:
        """Take an answer to one question; false if it is no answer to any."""
        for key, question in pending.questions.items():
            if question.elicit_id == response.elicit_id and key not in pending.answers:
                break
        else:
            waiting = [q.elicit_id for k, q in pending.questions.items() if k not in pending.answers]
            expected = " or ".join(waiting)
            text = f"Elicitation ID mismatch: expected {expected}, got {response.elicit_id}"
            self._session_error(response.session_id, "ELICIT_MISMATCH", text)
            return False
        result = response.result
        if result.action != "accept":
            pending.answers[key] = {"action": result.action}
        elif question.component is None:
            pending.answers[key] = {"action": "accept", "content": result.content or {}}
        else:
            pending.rendered.setdefault(key, []).append(result.content)
            await self._show(pending, key, question)
        return True

    async def _process_message(self) -> Phase:
        text = self._request.text
        if text is not None:
            for pending in list(self._conversation.pending.values()):
                await self._abort(pending, INSTEAD)
            if self._conversation.unanswered():
                await (
                    self._executing_tools()
                )  # left over by a crash: they have a result before anything is said
                for pending in list(self._conversation.pending.values()):
                    await self._abort(pending, INSTEAD)
            self._conversation.say(Message("user", text))
            await self._save()
            return Phase.START_ITERATION
        if self._conversation.pending:
            return Phase.PLUGIN_AWAITING_ELICIT
        if self._conversation.unanswered():
            return Phase.EXECUTING_TOOLS
        last = self._conversation.messages[-1].role if self._conversation.messages else "assistant"
        return Phase.COMPLETE if last == "assistant" else Phase.START_ITERATION

    # --- the model ---------------------------------------------------------------------------

    async def _start_iteration(self) -> Phase:
        engine = self._engine
        if self._iterations >= engine.max_iterations:
            self._reason = "iterations"
            return Phase.COMPLETE
        if engine.token_budget is not None and self._usage.input + self._usage.output >= engine.token_budget:
            self._reason = "budget"
            return Phase.COMPLETE
        self._iterations += 1
        return Phase.STREAMING

    async def _streaming(self) -> Phase:
        engine = self._engine
        request = ModelRequest(
            tuple(self._conversation.messages), await self._toolset.definitions(), engine.system
        )
        thinking: list[str] = []
        calls: list[ToolCall] = []
        stopped = Stopped()
        self._said = []
        async for event in engine.model.stream(request):
            match event:
                case TextPart(text):
                    self._said.append(text)
                    self._run.emit(Text(text))
                case ThinkingPart(text):
                    thinking.append(text)
                    self._run.emit(Thinking(text))
                case ToolCall():
                    calls.append(self._own(event, calls))
                case Stopped():
                    stopped = event
        self._usage += stopped.usage
        text, self._said = "".join(self._said), []
        self._conversation.say(
            Message(
                "assistant",
                text,
                tuple(calls),
                thinking="".join(thinking),
                extra=stopped.extra,
            )
        )
        await self._save()
        if not calls:
            self._reason = "length" if stopped.reason == "length" else "stop"
            return Phase.COMPLETE
        self._run.emit(ToolCalls([_shown(call) for call in calls]))
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

    # --- the tools ---------------------------------------------------------------------------

    async def _executing_tools(self) -> Phase:
        calls = [
            call for call in self._conversation.unanswered() if call.id not in self._conversation.pending
        ]
        await self._all(self._call(call) for call in calls)
        await self._save()
        return Phase.PLUGIN_AWAITING_ELICIT if self._conversation.pending else Phase.START_ITERATION

    async def _all(self, work: Any) -> None:
        if self._engine.parallel:
            async with asyncio.TaskGroup() as group:
                for one in work:
                    group.create_task(one)
        else:
            for one in work:
                await one

    async def _call(self, call: ToolCall) -> None:
        """Call a tool, to its result or until it asks the person."""
        try:
            name = await self._toolset.name_of(call.name)
            arguments = call.read_arguments()
            key = f"{self._conversation.id}:{call.id}"
            outcome = await self._toolset.begin(name, arguments, key, self._reporter(call))
            await self._settle(Pending(call, "", round=0), name, outcome)
        except (MidcallError, ValueError) as error:
            self._failed(call, str(error))

    async def _go_on(self, pending: Pending) -> None:
        """Go on with a tool call whose questions are answered."""
        call = pending.call
        self._status(call, "running")
        try:
            name = await self._toolset.name_of(call.name)
            outcome = await self._toolset.go_on(
                name, call.read_arguments(), pending.state, pending.answers, self._reporter(call)
            )
            await self._settle(pending, name, outcome)
        except SessionLost:
            self._conversation.pending.pop(call.id, None)
            self._lost(call.id)
        except MidcallError as error:
            if error.recoverable:
                raise  # it still waits, and may be answered again
            self._conversation.pending.pop(call.id, None)
            self._failed(call, str(error))

    async def _settle(self, pending: Pending, name: str, outcome: Finished | Asked) -> None:
        """Take what came of a round; answer what needs no person, and go on until one is needed."""
        call = pending.call
        while isinstance(outcome, Asked):
            pending.state, pending.kept_as = outcome.state, outcome.kept_as
            pending.round += 1
            pending.questions, pending.answers, pending.rendered = {}, {}, {}
            await self._ask(pending, name, outcome)
            if pending.questions:
                self._conversation.pending[call.id] = pending
                self._status(call, "awaiting_elicit")
                return
            outcome = await self._toolset.go_on(
                name, call.read_arguments(), pending.state, pending.answers, self._reporter(call)
            )
        self._conversation.pending.pop(call.id, None)
        if pending.round:
            self._status(call, "failed" if outcome.is_error else "completed")
        if outcome.is_error:
            self._failed(call, outcome.content)
            return
        self._conversation.say(Message("tool", outcome.content, tool_call_id=call.id))
        self._run.emit(ToolResult(call.id, call.name, outcome.content, outcome.structured))

    async def _ask(self, pending: Pending, name: str, asked: Asked) -> None:
        """Have the model answer what is for it, and note what is for the person."""
        call = pending.call
        for key, request in asked.requests.items():
            method, params = request.get("method"), request.get("params") or {}
            if method == SAMPLE:
                self._status(call, "awaiting_sample")
                sampling = self._engine.sampling_for(name)
                pending.answers[key], used = await sampling.answer(params, self._engine.model)
                self._usage += used
            elif method == ROOTS:
                pending.answers[key] = {"roots": []}
            else:
                question = self._question(pending, name, key, params)
                await self._show(pending, key, question)

    def _question(self, pending: Pending, name: str, key: str, params: dict[str, Any]) -> ElicitRequest:
        call, message = pending.call, str(params.get("message", ""))
        url = params.get("url") if params.get("mode") == "url" else None
        schema = params.get("requestedSchema")
        return ElicitRequest(
            session_id=call.id,
            call_id=call.id,
            tool_name=call.name,
            elicit_id=f"{call.id}:{key}:{pending.round}",
            key=key,
            message=without_context(message),
            schema=schema,
            context=read_context(message, schema) or None,
            mode="url" if url is not None else None,
            url=url,
        )

    async def _show(self, pending: Pending, key: str, question: ElicitRequest) -> None:
        """Find out how a question is shown next, or that its handler needs nothing more."""
        name = await self._toolset.name_of(pending.call.name)
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
                raise MidcallError(f"The plugin of {name} failed: {error}") from error
            if isinstance(shown, dict):
                pending.answers[key] = shown
                if question.component is None:
                    return
            else:
                question = self._with_component(question, shown, len(answers))
        pending.questions[key] = question

    def _with_component(self, question: ElicitRequest, shown: Shown, number: int) -> ElicitRequest:
        elicit_id = question.elicit_id if not number else f"{question.elicit_id.split('#')[0]}#{number + 1}"
        component = {"name": shown.component, "props": shown.props}
        return msgspec.structs.replace(question, component=component, elicit_id=elicit_id)

    async def _abort(self, pending: Pending, reason: str) -> None:
        """End a tool call that waits."""
        call = pending.call
        await self._engine.abort(pending.kept_as, reason)
        self._conversation.pending.pop(call.id, None)
        self._conversation.say(Message("tool", f"Error: {reason}", tool_call_id=call.id, is_error=True))
        self._status(call, "aborted")
        self._run.emit(ToolError(call.id, call.name, reason))

    def _failed(self, call: ToolCall, message: str) -> None:
        self._conversation.say(Message("tool", f"Error: {message}", tool_call_id=call.id, is_error=True))
        self._run.emit(ToolError(call.id, call.name, message))

    def _lost(self, call_id: str) -> None:
        """An answer for a tool call that does not wait any more."""
        text = "The tool call is gone: it was ended, or its time was up"
        self._session_error(call_id, "SESSION_NOT_FOUND", text)
        if any(call.id == call_id for call in self._conversation.unanswered()):
            self._conversation.say(Message("tool", LOST, tool_call_id=call_id, is_error=True))

    def _session_error(self, session_id: str, error: str, message: str) -> None:
        self._run.emit(SessionError(session_id, session_id, error, message))

    def _status(self, call: ToolCall, status: str) -> None:
        self._run.emit(SessionStatus(call.id, call.id, call.name, status))

    def _reporter(self, call: ToolCall) -> Callable[[dict[str, Any]], None]:
        def report(params: dict[str, Any]) -> None:
            percentage, message = read_progress(params)
            self._run.emit(ToolProgress(call.id, call.name, message, percentage))

        return report

    # --- the end -----------------------------------------------------------------------------

    async def _plugin_awaiting_elicit(self) -> None:
        await self._end()
        questions = self._conversation.questions
        for question in questions:
            self._run.emit(question)
        self._run.emit(ConversationState(self._conversation.id, list(self._conversation.messages), questions))

    async def _complete(self) -> None:
        await self._end()
        self._run.emit(Complete(self._reason, {"input": self._usage.input, "output": self._usage.output}))

    async def _cut_off(self) -> None:
        """The person has stopped it; or the server ends, and then it is taken up again later."""
        if self._engine.closing:
            await self._end()
            self._run.emit(Failure("The server is closing: try again", "closing", recoverable=True))
            return
        if self._said:
            self._conversation.say(Message("assistant", "".join(self._said)))
        for call in self._conversation.unanswered():
            if call.id not in self._conversation.pending:
                self._conversation.say(Message("tool", STOPPED, tool_call_id=call.id, is_error=True))
                self._run.emit(ToolError(call.id, call.name, STOPPED))
        self._reason = "stopped"
        await self._complete()

    async def _save(self) -> None:
        self._conversation.lsn = self._run.lsn
        await self._engine.store.save(self._conversation)

    async def _end(self) -> None:
        self._conversation.run = None
        await self._save()


def _is_answered(pending: Pending) -> bool:
    return pending.questions.keys() <= pending.answers.keys()


def _shown(call: ToolCall) -> dict[str, Any]:
    try:
        arguments: Any = call.read_arguments()
    except ValueError:
        arguments = call.arguments
    return {"id": call.id, "name": call.name, "arguments": arguments}

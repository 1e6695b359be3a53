"""The tool calls of one turn: each is made, asks, is answered and goes on, until it has a result.

What a tool asks the model is answered here at once. What it asks the person is noted in the conversation as
pending, and gone on with in the turn that brings the answers. However a call ends, the conversation has a
result for it, and no call is left behind in the journal.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from midcall.chat.conversation import Conversation, Pending
from midcall.chat.dialect import NotNow, OpenQuestion, Report, ToolAsks, ToolEnded
from midcall.chat.events import (
    ElicitRequest,
    SessionError,
    SessionStatus,
    ToolError,
    ToolProgress,
    ToolResult,
)
from midcall.chat.plugins import PluginQuestion, Shown, show
from midcall.chat.request import ElicitResponse
from midcall.chat.runs import Run, finished
from midcall.chat.tools import GONE, NO_TOOLS, SessionLost, Tools
from midcall.errors import JournalError, MidcallError, TooManyCalls
from midcall.items import to_json
from midcall.mcp.elicitation import request_for
from midcall.mcp.model_context import read_context, without_context
from midcall.models.base import Message, ModelError, ToolCall, Usage
from midcall.principal import Principal
from midcall.questions import Roots, Sample

if TYPE_CHECKING:
    from midcall.chat.engine import ChatEngine

log = logging.getLogger("midcall.chat")

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


class ToolCalls:
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
        await self._all(self._make(call) for call in calls)

    async def go_on(self, pendings: Iterable[Pending]) -> None:
        """Go on with calls, with what is answered of their questions; what is not, they ask again."""
        await self._all(self._go_on(pending) for pending in pendings)

    async def _all(self, work: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Do it all, at once unless told otherwise; what one fails with is raised when all have ended."""
        failures: list[MidcallError] = []

        async def guarded(one: Coroutine[Any, Any, None]) -> None:
            try:
                await one
            except MidcallError as error:
                failures.append(error)

        if self._engine.parallel:
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
        self._run.emit(SessionError(session_id, session_id, error, message))

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
            await self._engine.calls.answer(pending.call_id, pending.answers, pending.ids)

    async def _play(
        self,
        pending: Pending,
        start: Callable[[Report], Coroutine[Any, Any, ToolEnded | ToolAsks]],
    ) -> None:
        """Do what is next of a call. Whatever goes wrong is its result, unless it may be tried again."""
        call = pending.call

        def report(message: str, percentage: float | None) -> None:
            self._run.emit(ToolProgress(call.id, self._name(call), message, percentage))

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
        self._run.emit(ToolResult(call.id, self._name(call), outcome.content, outcome.structured))

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
        self._run.emit(ToolError(call.id, self._name(call), message))

    # --- what it asks -------------------------------------------------------------------------

    async def _ask(self, pending: Pending, asks: ToolAsks, unanswered: dict[str, ElicitRequest]) -> None:
        """Have the model answer what is for it, and note what is for the person.

        What was asked before and is `unanswered` stays the same question.
        """
        pending.ids = {key: one.id for key, one in asks.questions.items()}
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

    async def take(self, pending: Pending, response: ElicitResponse) -> None:
        """Take the person's answer to one question; it is said if it is no answer to any."""
        for key, question in pending.questions.items():
            if question.elicit_id == response.elicit_id and key not in pending.answers:
                break
        else:
            waiting = [q.elicit_id for k, q in pending.questions.items() if k not in pending.answers]
            text = f"Elicitation ID mismatch: expected {' or '.join(waiting)}, got {response.elicit_id}"
            self.session_error(response.session_id, "ELICIT_MISMATCH", text)
            return
        result = response.result
        if result.action != "accept":
            pending.answers[key] = {"action": result.action}
        elif question.component is None:
            pending.answers[key] = {
                "action": "accept",
                "content": {} if result.content is None else result.content,
            }
        else:
            question = _without_reason(question)
            rendered = pending.rendered.setdefault(key, [])
            rendered.append(result.content)
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
        self._run.emit(SessionStatus(call.id, call.id, self._name(call), status))

    def _tell(self, call: ToolCall, message: str) -> None:
        log.warning("%s: %s", call.name, message)
        self._run.emit(ToolProgress(call.id, self._name(call), message))


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

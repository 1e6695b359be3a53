"""The tools of a hub in its chat: what they are called there, and what a turn does with calls of them.

What a tool asks the model is answered at once. What it asks the person is noted in the conversation as
pending, and gone on with in the turn that brings the answers. However a call ends, the conversation has a
result for it, and none is left behind in the journal.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from midcall.chat import conversation as events
from midcall.chat.conversation import (
    Conversation,
    ElicitRequest,
    ElicitResponse,
    Pending,
    answered_question,
)
from midcall.chat.details import Files, ToolDetails, now
from midcall.chat.dialect import (
    GONE,
    JointSave,
    NotNow,
    Report,
    SessionLost,
    ToolAsks,
    ToolEnded,
    finished,
)
from midcall.chat.plugins import (
    NOT_UNDERSTOOD,
    PluginFailed,
    PluginQuestion,
    Shown,
    asked_again,
    with_component,
    without_reason,
)
from midcall.chat.runs import Run
from midcall.client.toolbox import MOST_LETTERS, native_name
from midcall.errors import Conflict, JournalError, MethodNotFound, MidcallError, NotAllowed, TooManyCalls
from midcall.items import to_json
from midcall.journal.state import Waiting, timestamp
from midcall.mcp.catalog import Tool
from midcall.mcp.elicitation import read_context, request_for, without_context
from midcall.models.base import Message, ModelError, ToolCall, ToolDefinition, Usage
from midcall.principal import CallSource, Principal, check_scopes
from midcall.questions import Roots, Sample

if TYPE_CHECKING:
    from midcall.chat.engine import ChatEngine

log = logging.getLogger("midcall.chat")

LOST = "Plugin session was lost. Please retry the operation."
STOPPED = "Stopped by the person before it had a result."

MAX_ROUNDS = 200
"""How often a tool may ask in one turn without asking the person."""

NO_ANSWER = {"action": "cancel"}
"""What a tool gets whose question the model did not answer."""


class Tools:
    """The tools of a hub, under names that every provider takes."""

    def __init__(self, tools: Mapping[str, Tool], offered: Callable[[str], bool] | None = None) -> None:
        """`offered` says which of them, by name in the hub; without it, all."""
        self.made_from = tools
        self._tools: dict[str, Tool] = {}
        definitions = []
        names = [name for name in tools if offered is None or offered(name)]
        taken = Counter(native_name("", name) for name in names)
        for name in names:
            native = native_name("", name)
            if taken[native] > 1:
                native = _told_apart(native, name)
            tool = self._tools[native] = tools[name]
            schema = tool.shown.get("inputSchema") or {"type": "object", "properties": {}}
            definitions.append(ToolDefinition(native, str(tool.shown.get("description") or ""), schema))
        self.definitions = tuple(definitions)

    def find(self, native: str) -> Tool | None:
        """A tool by the name that the model knows."""
        return self._tools.get(native)

    def shown_name(self, native: str) -> str:
        """The name of a tool for whoever looks: the hub's, unless it is none of the hub's."""
        tool = self.find(native)
        return native if tool is None else tool.found.name


NO_TOOLS = Tools({})


def _told_apart(native: str, name: str) -> str:
    """A name that several tools would have, with a mark of its own for each."""
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{native[: MOST_LETTERS - 9]}_{mark}"


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
        self._only_one = False
        """Whether the turn goes on as soon as one call has come to something."""
        self._since: dict[str, float] = {}
        """Since when calls run, by the clock of the loop."""

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

    async def make(self, calls: Iterable[ToolCall], together: JointSave | None = None) -> None:
        """Make calls, each to its result or until it asks the person. Raises what may be tried again.

        A single one may be written down `together` with the conversation.
        """
        await self._all([self._play(Pending(call, round=0), together) for call in calls])

    async def go_on(self, pendings: Iterable[Pending], together: JointSave | None = None) -> None:
        """Go on with calls, with what is answered of their questions; what is not, they ask again.

        The answer to a single one may be written down `together` with the conversation.
        """
        await self._all([self._play(pending, together) for pending in pendings])

    async def _all(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Do it all, at once unless told otherwise; what one fails with is raised when all have ended."""
        failures: list[MidcallError] = []
        self._only_one = len(work) == 1

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
        self._conversation.drop_questions(pending)
        self._status(pending.call, "aborted")
        await self._end(pending.call, reason, "dropped")

    async def stop(self) -> None:
        """The person has stopped the turn: end everything that has no result."""
        for pending in list(self._conversation.pending.values()):
            await self.abort(pending, STOPPED)
        for call in self._conversation.unanswered():
            await self._end(call, STOPPED, "dropped")

    def lost(self, call_id: str) -> None:
        """An answer for a call that does not wait any more."""
        self.session_error(call_id, "SESSION_NOT_FOUND", GONE)
        for call in self._conversation.unanswered():
            if call.id == call_id:
                self._failed(call, LOST, "session_lost")

    async def refuse(self, session_id: str) -> None:
        """Say why an answer or an abort for a call that does not wait (any more) cannot be followed."""
        made = (call for message in self._conversation.messages for call in message.tool_calls)
        call = next((call for call in made if call.id == session_id), None)
        if call is not None and await self._engine.calls.was_aborted(
            self._conversation.principal, self._conversation.key_of(call)
        ):
            self.session_error(session_id, "SESSION_ABORTED", "The tool call was aborted before")
        else:
            self.lost(session_id)

    def session_error(self, session_id: str, error: str, message: str) -> None:
        self._run.emit(events.SessionError(session_id, session_id, error, message))

    # --- one of them --------------------------------------------------------------------------

    async def _begin(
        self, pending: Pending, report: Report, together: JointSave | None
    ) -> ToolEnded | ToolAsks:
        """Make a call that is new, or go on with one that was asked something."""
        call, calls, principal = pending.call, self._engine.calls, self._conversation.principal
        key = self._conversation.key_of(call)
        if not pending.round:
            tool, arguments = self._tool(call), to_json(call.read_arguments())
            source = CallSource(self._principal)
            return await calls.begin(tool, arguments, key, principal, source, report, together)
        if not pending.call_id:  # of a conversation that was written before calls were known by their ids
            pending.call_id = await calls.find(principal, key)
        self._tool(call)
        await self._answer(pending, together)
        self._status(call, "running")
        return await calls.current(pending.call_id, report)

    def _tool(self, call: ToolCall) -> Tool:
        """The tool of a call. Raises `MethodNotFound`, or `NotAllowed` if it is not for this person, now."""
        tool = self._tools.find(call.name) or self.look_for_tools().find(call.name)
        if tool is None:
            raise MethodNotFound(call.name)
        check_scopes(tool.found.name, tool.found.method.extras, self._principal)
        return tool

    def _check_allowed(self, call: ToolCall) -> None:
        """Raise `NotAllowed` if a tool is not for this person, now."""
        with contextlib.suppress(MethodNotFound):
            self._tool(call)

    async def _answer(self, pending: Pending, together: JointSave | None = None) -> None:
        """Give a call the answers that there are. When this returns, they are in the journal."""
        if pending.answers:
            await self._engine.calls.answer(pending.call_id, pending.answers, pending.places, together)

    async def _play(self, pending: Pending, together: JointSave | None) -> None:
        """Do what is next of a call. Whatever goes wrong is its result, unless it may be tried again, or the
        call waits for somebody who may go on with it."""
        call = pending.call
        self._conversation.details_of(call.id)
        self._since[call.id] = asyncio.get_running_loop().time()

        def tell(message: str, percentage: float | None) -> None:
            self._run.emit(events.ToolProgress(call.id, self._name(call), message, percentage))

        try:
            await self._settle(pending, await self._begin(pending, tell, together), tell)
        except Conflict:
            raise  # the conversation could not be saved: nothing has come of the call
        except SessionLost:
            self._conversation.pending.pop(call.id, None)
            self.lost(call.id)
        except (MidcallError, ValueError) as error:
            if isinstance(error, NotAllowed) and pending.call_id:
                raise
            if not _may_be_tried_again(error, pending):
                await self._end(call, str(error), getattr(error, "code", ""))
                return
            if pending.call_id:
                self._conversation.pending[call.id] = pending  # with its answers
            raise NotNow(str(error)) from error  # under the same key, or with the same answers
        except Exception:
            # A call without a result would be made again, and fail again, with all that is ever said.
            log.exception("a call of %s failed inside midcall", call.name)
            if pending.round:
                self.session_error(call.id, "INTERNAL_ERROR", "The tool call failed inside midcall")
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
                self._took(call)
                self._hush()
                self._status(call, "awaiting_elicit")
                return
            await self._answer(pending)
            outcome = await self._engine.calls.current(pending.call_id, report)
        else:
            raise MidcallError(f"{self._name(call)} has asked {MAX_ROUNDS} times and was stopped")
        self._hush()
        if pending.round:
            self._status(call, "failed" if outcome.is_error else "completed")
        if outcome.is_error:
            self._failed(call, outcome.content, outcome.code)
            return
        if tool := self._tools.find(call.name):
            outcome = outcome.with_files(tool)
        self._conversation.pending.pop(call.id, None)
        self._conversation.say(Message("tool", outcome.content, tool_call_id=call.id))
        details = self._took(call)
        details.parts = Files(self._conversation.files).take_parts(outcome.blocks)
        self._run.emit(
            events.ToolResultEvent(
                call.id,
                self._name(call),
                outcome.content,
                outcome.structured,
                details.parts,
                details.seconds,
            )
        )

    def _took(self, call: ToolCall) -> ToolDetails:
        """How a call went, with the time that it has run since it was gone on with."""
        details = self._conversation.details_of(call.id)
        since = self._since.pop(call.id, None)
        if since is not None:
            details.seconds = round(details.seconds + asyncio.get_running_loop().time() - since, 3)
        return details

    async def _end(self, call: ToolCall, reason: str, code: str = "") -> None:
        """A call fails that has not ended by itself: first in the journal, so that none is left there."""
        try:
            key = self._conversation.key_of(call)
            await finished(self._engine.calls.abort(self._conversation.principal, key, reason))
        except asyncio.CancelledError:
            self._failed(call, reason, code)
            raise
        self._failed(call, reason, code)

    def _failed(self, call: ToolCall, message: str, code: str = "") -> None:
        self._conversation.pending.pop(call.id, None)
        self._conversation.say(Message("tool", f"Error: {message}", tool_call_id=call.id, is_error=True))
        details = self._took(call)
        details.code = code
        self._run.emit(events.ToolErrorEvent(call.id, self._name(call), message, code, details.seconds))

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
            model = self._engine.model_of(self._conversation)
            return await sampling.answer(params, model, self._meter.spend)
        except ModelError as error:
            self._tell(call, f"The model gave no answer: {error}")
            return NO_ANSWER
        except Exception:
            log.exception("the sampling of %s failed", name)
            self._tell(call, "The model could not be asked")
            return NO_ANSWER

    def _question(self, pending: Pending, key: str, one: Waiting) -> ElicitRequest:
        note = f"{NOT_UNDERSTOOD}expected {one.note})\n" if one.note else ""
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
            until=None if one.until is None else timestamp(one.until, "milliseconds"),
        )

    def take_at_once(self, response: ElicitResponse) -> bool:
        """Take the person's answer to one question, if that needs no handler."""
        pending = self._conversation.pending.get(response.session_id)
        key = None if pending is None else _key_of(pending, response)
        if pending is None or key is None:
            return False
        try:
            self._check_allowed(pending.call)
        except NotAllowed:
            return False
        result = response.result
        if result.action != "accept":
            self._take(pending, key, {"action": result.action})
        elif pending.questions[key].component is None:
            content = {} if result.content is None else result.content
            self._take(pending, key, {"action": "accept", "content": content})
        else:
            return False
        return True

    def _take(self, pending: Pending, key: str, answer: Mapping[str, Any]) -> None:
        """Note what the person answers: for the call, and for whoever looks at the conversation later."""
        pending.answers[key] = answer
        asked = pending.questions.get(key)
        if asked is not None:
            if asked.until is not None and asked.until <= timestamp(now(), "milliseconds"):
                noted = answered_question(asked, "dropped")  # it came too late
            else:
                noted = answered_question(asked, answer["action"], answer.get("content"))
            self._conversation.details_of(pending.call.id).note(noted)

    async def take(self, response: ElicitResponse) -> None:
        """Take the person's answer to one question; it is said if it is no answer to any.

        Raises `NotAllowed` if the person may not call the tool, now: nor may they answer it.
        """
        pending = self._conversation.pending.get(response.session_id)
        if pending is None:
            await self.refuse(response.session_id)
            return
        if self.take_at_once(response):
            return
        key = _key_of(pending, response)
        if key is None:
            waiting = [question.elicit_id for question in pending.unanswered.values()]
            text = f"Elicitation ID mismatch: expected {' or '.join(waiting)}, got {response.elicit_id}"
            self.session_error(response.session_id, "ELICIT_MISMATCH", text)
            return
        self._check_allowed(pending.call)
        question = without_reason(pending.questions[key])
        rendered = pending.rendered.setdefault(key, [])
        rendered.append(response.result.content)
        try:
            await self._show(pending, key, question)
        except PluginFailed as failed:
            rendered.pop()
            pending.round += 1
            pending.questions[key] = asked_again(question, failed, pending.round)

    async def _show(self, pending: Pending, key: str, question: ElicitRequest) -> None:
        """Find out how a question is shown next, or that its handler needs nothing more."""
        asked = PluginQuestion(
            key,
            question.message,
            question.context or {},
            question.schema or {},
            self._name(pending.call),
            pending.call.id,
        )
        answers = pending.rendered.get(key, [])
        shown = await self._engine.show(asked, answers, partial(self._report, pending.call))
        if isinstance(shown, Shown):
            question = with_component(question, shown, len(answers))
        elif shown is not None and question.component is None:
            pending.answers[key] = shown
            return
        elif shown is not None:
            pending.questions[key] = question
            self._take(pending, key, shown)
            return
        pending.questions[key] = question

    # --- what is told -------------------------------------------------------------------------

    def _name(self, call: ToolCall) -> str:
        return self._tools.shown_name(call.name)

    def _status(self, call: ToolCall, status: str) -> None:
        self._run.emit(events.SessionStatus(call.id, call.id, self._name(call), status))

    def _hush(self) -> None:
        """What is told last of a call is told with what the turn tells next, if that comes at once."""
        if self._only_one:
            self._run.hush()

    def _tell(self, call: ToolCall, message: str) -> None:
        log.warning("%s: %s", call.name, message)
        self._report(call, message)

    def _report(self, call: ToolCall, message: str) -> None:
        self._run.emit(events.ToolProgress(call.id, self._name(call), message))


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

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
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any

from midcall.chat import conversation as events
from midcall.chat.conversation import MESSAGE_ID, ChatRequest, Conversation, Event, Failure, load, save
from midcall.chat.runs import Run
from midcall.chat.tools import Meter, TurnCalls
from midcall.errors import Conflict, MidcallError, NotAllowed
from midcall.items import to_json
from midcall.models.base import Message, ModelRequest, Stopped, TextPart, ThinkingPart, ToolCall, cost
from midcall.principal import Principal

if TYPE_CHECKING:
    from midcall.chat.engine import ChatEngine

log = logging.getLogger("midcall.chat")

MAX_CALL_ID = 100
"""How many letters the id that a model gives a call may have."""

INSTEAD = "The person did not answer, and wrote something else instead."


INTERNAL = Failure("Internal error", "internal_error")
"""How a turn ends that failed inside midcall."""


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
        model = self._engine.model
        self._run.emit(
            events.SessionInfo(
                self._run.id, self._conversation.id, {"name": model.name, "scripted": model.scripted}
            )
        )
        if self._request.plugin_abort is None:
            self._responses = [one for one in self._responses if not self._tools.take_at_once(one)]
        text, id = self._request.text, self._request.message_id
        if text is not None and not _is_said(self._conversation, self._request):
            self._conversation.unsaid.append(Message("user", text, extra={MESSAGE_ID: id} if id else {}))
        if not self._conversation.unanswered():
            self._say()

    def _say(self) -> None:
        """What the person has said is in the messages, now that all tool calls have results."""
        unsaid, self._conversation.unsaid = self._conversation.unsaid, []
        for message in unsaid:
            self._conversation.say(message)

    async def play(self) -> None:
        """Go through the phases, to the end or until the person is asked."""
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
            await self._finish(_failure(error))
        except Exception:
            log.exception("a turn failed inside midcall")
            await self._finish(INTERNAL)

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
        unsaid = self._conversation.unsaid
        ready = self._tools.answered
        if self._request.resume and not unsaid:
            ready = list(self._conversation.pending.values())
        if ready:
            if self._responses:
                # What was answered is not lost if the process dies now: the tool call takes it only once.
                await self._save()
            self._unsaved = True
            try:
                await self._tools.go_on(ready)
            except NotAllowed:
                if not unsaid:
                    raise
                # What the person says instead ends the calls that they may not go on with.
        return Phase.PROCESS_MESSAGE

    async def _process_message(self) -> Phase:
        if self._conversation.unsaid:
            await self._tools.make(self._tools.unmade)  # left over by a crash: they have a result first
            for pending in list(self._conversation.pending.values()):
                await self._tools.abort(pending, INSTEAD)
            self._say()
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
                    self._said.append(sound(text))
                    self._run.emit(events.Text(self._said[-1]))
                case ThinkingPart(text):
                    thinking.append(sound(text))
                    self._run.emit(events.Thinking(thinking[-1]))
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
            self._run.emit(events.ToolCalls([_shown(call) for call in calls]))
        self._unsaved = True
        if not calls:
            self._reason = "length" if stopped.reason == "length" else "stop"
            return Phase.COMPLETE
        return Phase.EXECUTING_TOOLS

    def _own(self, call: ToolCall, calls: Sequence[ToolCall]) -> ToolCall:
        """A call whose id no other call of the conversation has, as some models count anew each time.

        An id that a journal could not keep, or that nobody could answer under, is replaced.
        """
        known = {c.id for message in self._conversation.messages for c in message.tool_calls}
        known |= {c.id for c in calls}
        wanted = call.id or "call"
        if len(wanted) > MAX_CALL_ID or not wanted.isprintable():
            wanted = f"call_{uuid.uuid4().hex}"
        id, number = wanted, 2
        while id in known:
            id = f"{wanted}-{number}"
            number += 1
        return ToolCall(id, sound(call.name), sound(call.arguments))

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
        count = len(self._conversation.messages)
        self._run.emit(
            events.ConversationState(self._conversation.id, [], questions, self._meter.told, count)
        )

    async def _complete(self) -> None:
        await self._end()
        self._run.emit(events.Complete(self._reason, self._meter.told))

    async def _cut_off(self) -> None:
        """The person has stopped it; or the server ends, and then it is taken up again later."""
        if self._engine.closing:
            await self._finish(Failure("The server is closing: try again", "closing", recoverable=True))
            return
        if self._said:
            self._conversation.say(Message("assistant", "".join(self._said)))
        try:
            await self._tools.stop()
            self._say()
        except MidcallError as error:
            await self._finish(_failure(error))
        except Exception:
            log.exception("a turn that was stopped failed inside midcall")
            await self._finish(INTERNAL)
        else:
            await self._finish(events.Complete("stopped", self._meter.told))

    async def _end_if_deleted(self) -> None:
        """End what was begun for a conversation that is gone; one that was changed goes on elsewhere."""
        gone = self._conversation
        with contextlib.suppress(MidcallError):
            if await load(self._engine.store, gone.id, gone.principal) is None:
                await self._tools.stop()

    async def _finish(self, event: Event) -> None:
        """The last event, which is told also if nothing can be saved any more."""
        try:
            await self._end(event if isinstance(event, Failure) else None)
        except MidcallError as error:
            log.warning("a conversation cannot be saved: %s", error)
        except Exception:
            log.exception("a conversation cannot be saved")
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
        with self._run.uncut():
            await save(self._engine.store, self._conversation)


def _failure(error: MidcallError) -> Failure:
    return Failure(sound(str(error)), error.code, error.recoverable)


def _is_said(conversation: Conversation, request: ChatRequest) -> bool:
    """Whether a message was sent before.

    Whoever brings the history along may have the last of it answered once more; who does not, has lost the
    answer.
    """
    id = request.message_id
    return conversation.awaits_answer_to(id) or (request.message is not None and conversation.has_said(id))


def joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages for a model, of which many want person and assistant to speak in turns.

    What the person said in several messages, because the model failed or was stopped, is one.
    """
    made: list[Message] = []
    for role, spoken in groupby(messages, lambda message: message.role):
        several = list(spoken)
        if role == "user" and len(several) > 1:
            several = [Message("user", "\n\n".join(message.content for message in several))]
        made += several
    return tuple(made)


def _shown(call: ToolCall) -> dict[str, Any]:
    try:
        arguments: Any = call.read_arguments()
        to_json(arguments)
    except ValueError:
        arguments = call.arguments
    return {"id": call.id, "name": call.name, "arguments": arguments}


def sound(text: str) -> str:
    """A text of a model that can be written: without halves of surrogate pairs."""
    return text if text.isascii() else text.encode(errors="replace").decode()

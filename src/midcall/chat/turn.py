"""Turn: what happens between a request of the person and the moment when it is the person's turn again.

What a person answered is worked in first, then what was left over, then what was said; then model and tools
take turns until the model has nothing more to call, or a tool asks the person:

    process_plugin_abort -> process_plugin_responses -> process_message -> executing_tools (what is left over)
                                                                                  |
                                                                                  v
                          plugin_awaiting_elicit  <----  executing_tools  <--  streaming  -->  complete

Something that is said aside, while a call waits, ends nothing: the model answers it without tools, and the
call waits on. In what the model is told, such a call has a result at once that says that it waits, and what
it comes to is told as soon as it is known.

The conversation is saved while the model answers, before a tool runs or goes on, and before an event goes out
that the person can act upon. The first time, what the person did is saved with it; if that is refused, there
was no turn. Whenever it is, its messages have all that the lines up to its `lsn` tell, and nothing of those
after it. Tools are called under an idempotency key, so that a turn that a crash has cut off is taken up where
it stood. What a turn does with a single call is written in one with the conversation (`JointSave`); with
several at once, the conversation is saved before.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from midcall.chat import conversation as events
from midcall.chat.conversation import MESSAGE_ID, ChatRequest, Conversation, Event, Failure, load, record_of
from midcall.chat.details import KeptFile, with_data
from midcall.chat.dialect import JointSave
from midcall.chat.runs import Run
from midcall.chat.tools import Meter, TurnCalls
from midcall.errors import Conflict, JournalError, MidcallError, NotAllowed
from midcall.items import to_json
from midcall.journal.contract import CallWrite, ConversationRecord, RunEnd, Saved
from midcall.models.base import (
    Attachment,
    Message,
    ModelRequest,
    Stopped,
    TextPart,
    ThinkingPart,
    ToolCall,
    cost,
    takes_images,
)
from midcall.principal import Principal

if TYPE_CHECKING:
    from midcall.chat.engine import ChatEngine

log = logging.getLogger("midcall.chat")

MAX_CALL_ID = 100
"""How many letters the id that a model gives a call may have."""

INSTEAD = "The person did not answer, and wrote something else instead."

EDITED = "The person has changed what they said before."

WAITS = (
    "(This call waits for an answer of the person to a question that it asks them. What it comes to is told "
    "later. The person says something else first: answer that, and leave the question to them.)"
)
"""What a model is told of a call that waits, while the person says something else."""

LATE = "(The call of {name} that waited for the person has ended. This is its result.)\n\n{content}"

UNSEEN = "({name}: a picture that cannot be shown to you)"

NOTHING_SAID = "The question above is still open: I can go on when it is answered."
"""What is said in the place of a model that has only tool calls to answer with, which it may not make."""

INTERNAL = Failure("Internal error", "internal_error")
"""How a turn ends that failed inside midcall."""


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
        self.begun = asyncio.get_running_loop().create_future()
        """Done when what the person did is saved; raises why it is not."""
        self._unsaved = True
        self._iterations = 0
        self._said: list[str] = []
        """What the model has said so far in this iteration."""
        self._saving: asyncio.Task[Saved[Any]] | None = None
        """Writes the conversation down."""

    def _take_in(self) -> None:
        """Take in what the person said and answered, before the first save; what needs a handler is noted."""
        conversation, request = self._conversation, self._request
        conversation.model = request.model or conversation.model
        model = self._engine.model_of(conversation)
        conversation.run, conversation.lsn, conversation.failure = self._run.id, 0, None
        self._run.emit(
            events.SessionInfo(
                self._run.id, self._conversation.id, {"name": model.name, "scripted": model.scripted}
            )
        )
        for one in self._request.plugin_elicit_responses:
            if self._request.plugin_abort is not None or not self._tools.take_at_once(one):
                self._conversation.responses.append(one)
        if request.retry is not None:
            self._call_again(request.retry)
        elif request.text is not None and not _is_said(conversation, request):
            self._take_message(request.text)
        if not conversation.unanswered():
            self._say()

    def _take_message(self, text: str) -> None:
        """Take in what the person says: in the place of something, aside, or after what is still to end."""
        conversation, request = self._conversation, self._request
        files: tuple[Attachment, ...] = ()
        aside = request.aside
        if request.edit is not None:
            files = conversation.messages[request.edit.message].files
            conversation.cut(request.edit.message)
            aside = True
        if request.attachments:
            files = conversation.attach(request.attachments)
        id = request.message_id
        message = Message("user", text, extra={MESSAGE_ID: id} if id else {}, files=files)
        if aside and conversation.pending:
            conversation.say(message)
        else:
            conversation.unsaid.append(message)
        if request.edit is not None:
            conversation.drop_files()

    def _call_again(self, call_id: str) -> None:
        """Make a call again that has ended, with the same arguments, in the person's name."""
        conversation = self._conversation
        made = (call for message in conversation.messages for call in message.tool_calls)
        call = next(call for call in made if call.id == call_id)
        name = self._tools.look_for_tools().shown_name(call.name)
        again = self._own(call, ())
        conversation.say(Message("user", f"Call {name} again with the same arguments."))
        conversation.say(Message("assistant", "", (again,)))
        self._run.emit(events.ToolCalls([_shown(again)]))

    def _say(self) -> None:
        """What the person has said is in the messages, now that all tool calls have results."""
        unsaid, self._conversation.unsaid = self._conversation.unsaid, []
        for message in unsaid:
            self._conversation.say(message)

    async def play(self) -> None:
        """Go through the phases, to the end or until the person is asked."""
        try:
            last = await self._guarded(self._play())
        except asyncio.CancelledError:
            last = await self._guarded(self._cut_off())
        if last is not None and not self._refused:
            await self._finish(last)
        if self._refused:
            self._run.abandon()
        elif not self.begun.done():
            self.begun.set_result(None)  # it could not be saved, and that is told

    async def _guarded(self, work: Coroutine[Any, Any, Event | None]) -> Event | None:
        """Do it; gives the event that the turn is to end with, if it has not ended."""
        try:
            return await work
        except MidcallError as error:
            if isinstance(error, Conflict) and not self._refused:
                await self._end_if_deleted()
            return Failure(sound(str(error)), error.code, error.recoverable)
        except Exception:
            log.exception("a turn failed inside midcall")
            return INTERNAL

    async def _play(self) -> None:
        self._take_in()
        self._tools.look_for_tools()  # events name tools as the hub does
        if self._conversation.ending or (self._conversation.unanswered() and not self._only_answers):
            await self._save()
        await self._end_what_was_cut()
        await self._process_plugin_abort()
        await self._process_plugin_responses()
        if self._conversation.unsaid:
            await self._process_message()
        reason = ""
        while not reason:
            if self._tools.unmade:
                await self._executing_tools()
            if self._conversation.pending:
                if self._conversation.owes_aside():
                    await self._streaming(aside=True)
                await self._plugin_awaiting_elicit()
                return
            reason = await self._next_iteration()
        await self._end(events.Complete(reason, self._meter.told))

    # --- what the person has done ------------------------------------------------------------

    async def _end_what_was_cut(self) -> None:
        """End calls that were cut off with what the person has edited; if that fails, the next turn does."""
        conversation = self._conversation
        while conversation.ending:
            key = conversation.key_of(conversation.ending[0])
            await self._engine.calls.abort(conversation.principal, key, EDITED)
            del conversation.ending[0]
            self._unsaved = True

    @property
    def _only_answers(self) -> bool:
        """Whether all that the person did is to answer one call, and the answer needs no handler."""
        request, conversation = self._request, self._conversation
        if request.resume or request.plugin_abort or conversation.responses or conversation.unsaid:
            return False
        ready = self._tools.answered
        return len(ready) == 1 and bool(ready[0].answers) and self._engine.one_journal

    async def _process_plugin_abort(self) -> None:
        abort = self._request.plugin_abort
        if abort is not None:
            pending = self._conversation.pending.get(abort.session_id)
            if pending is None:
                await self._tools.refuse(abort.session_id)
            else:
                await self._tools.abort(pending, abort.reason or "Cancelled by the person")

    async def _process_plugin_responses(self) -> None:
        responses, self._conversation.responses = self._conversation.responses, []
        for response in responses:
            await self._tools.take(response)
        # Who comes back without an answer is to see what is asked now: it may have changed.
        unsaid = self._conversation.unsaid
        ready = self._tools.answered
        if self._request.resume and not unsaid:
            ready = list(self._conversation.pending.values())
        if ready:
            if responses:
                # What was answered is not lost if the process dies now: the tool call takes it only once.
                await self._save()
            try:
                await self._tools.go_on(ready, None if self.begun.done() else self._together)
            except NotAllowed:
                if not unsaid:
                    raise
                # What the person says instead ends the calls that they may not go on with.
            self._unsaved = True

    async def _process_message(self) -> None:
        await self._tools.make(self._tools.unmade)  # left over by a crash: they have a result first
        for pending in list(self._conversation.pending.values()):
            await self._tools.abort(pending, INSTEAD)
        self._say()
        self._unsaved = True

    # --- the model and its tools -------------------------------------------------------------

    async def _next_iteration(self) -> str:
        """Ask the model, unless it has said all, or too much; gives why the turn is to end, if it is."""
        messages = self._conversation.messages
        if not messages or messages[-1].role == "assistant":
            return "stop"
        if self._iterations >= self._engine.max_iterations:
            return "iterations"
        if self._meter.spent:
            return "budget"
        self._iterations += 1
        return await self._streaming()

    async def _streaming(self, *, aside: bool = False) -> str:
        """Ask the model; `aside`, no tools are called."""
        engine, model = self._engine, self._engine.model_of(self._conversation)
        # While the model is waited for; if it answers at once, with what it says.
        self._run.hush()
        waiting = asyncio.get_running_loop().call_soon(self._model_is_waited_for, self._run.lsn)
        conversation = self._conversation
        messages = for_model(conversation.messages, conversation.files if takes_images(model) else None)
        tools = self._tools.look_for_tools().definitions
        # A model that has called tools is to be told of them also if it may not.
        choice: Literal["auto", "none"] = "none" if aside else "auto"
        request = ModelRequest(messages, tools, engine.system, tool_choice=choice)
        thinking: list[str] = []
        calls: list[ToolCall] = []
        stopped = Stopped()
        self._said = []
        try:
            async for event in model.stream(request):
                match event:
                    case TextPart(text):
                        self._said.append(sound(text))
                        self._run.emit(events.TextEvent(self._said[-1]))
                    case ThinkingPart(text):
                        thinking.append(sound(text))
                        self._run.emit(events.Thinking(thinking[-1]))
                    case ToolCall() if not aside:
                        calls.append(self._own(event, calls))
                    case Stopped():
                        stopped = event
        finally:
            waiting.cancel()
        msgspec.json.encode(stopped.extra)  # what cannot be kept is not said
        text, self._said = "".join(self._said), []
        if aside and not text.strip():
            text = NOTHING_SAID
            self._run.emit(events.TextEvent(text))
        self._meter.spend(cost(request, text, calls, stopped.usage))
        self._conversation.say(
            Message("assistant", text, tuple(calls), thinking="".join(thinking), extra=stopped.extra)
        )
        if calls:
            self._run.emit(events.ToolCalls([_shown(call) for call in calls]))
            return ""
        return "length" if stopped.reason == "length" else "stop"

    def _model_is_waited_for(self, lsn: int) -> None:
        """Tell what there is, and save it."""
        self._run.wake()
        if self._unsaved and (self._saving is None or self._saving.done()):
            self._begin_save(lsn)  # else with the next one: two at once would be of the same version

    def _own(self, call: ToolCall, calls: Sequence[ToolCall]) -> ToolCall:
        """A call whose id no other call of the conversation has, as some models count anew each time.

        An id that a journal could not keep, or that nobody could answer under, is replaced.
        """
        known = {c.id for message in self._conversation.messages for c in message.tool_calls}
        known |= {c.id for c in calls} | {*self._conversation.forgotten}
        wanted = call.id or "call"
        if len(wanted) > MAX_CALL_ID or not wanted.isprintable():
            wanted = f"call_{uuid.uuid4().hex}"
        id, number = wanted, 2
        while id in known:
            id = f"{wanted}-{number}"
            number += 1
        return ToolCall(id, sound(call.name), sound(call.arguments))

    async def _executing_tools(self) -> None:
        """A call that is kept without the message that makes it would run for nobody."""
        calls = self._tools.unmade
        together = len(calls) == 1 and self._engine.one_journal
        if not together:
            await self._save()
        await self._tools.make(calls, self._together if together else None)
        self._unsaved = True

    # --- the end -----------------------------------------------------------------------------

    async def _plugin_awaiting_elicit(self) -> None:
        questions = self._conversation.questions
        count = len(self._conversation.messages)
        state = events.ConversationState(self._conversation.id, [], questions, self._meter.told, count)
        await self._end(*questions, state)

    async def _cut_off(self) -> Event | None:
        """Somebody has stopped the turn; or the process ends, then it is taken up again later."""
        if self._refused:
            return None
        if self._engine.closing:
            return Failure("The server is closing: try again", "closing", recoverable=True)
        if self._said:
            self._conversation.say(Message("assistant", "".join(self._said)))
        await self._end_what_was_cut()
        await self._tools.stop()
        self._conversation.responses.clear()
        self._say()
        return events.Complete("stopped", self._meter.told)

    async def _end_if_deleted(self) -> None:
        """End what was begun for a conversation that is gone; one that was changed goes on elsewhere."""
        gone = self._conversation
        with contextlib.suppress(MidcallError):
            if await load(self._engine.store, gone.id, gone.principal) is None:
                await self._tools.stop()

    async def _finish(self, event: Event) -> None:
        """The last event, which is told also if nothing can be saved any more."""
        try:
            await self._end(event)
        except MidcallError as error:
            if self._refused:
                return
            log.warning("a conversation cannot be saved: %s", error)
        except Exception:
            log.exception("a conversation cannot be saved")
        self._run.emit(event)

    async def _end(self, *last: Event) -> None:
        """Save the conversation, and tell the last events when it is."""
        self._conversation.run = None
        self._conversation.failure = last[-1] if isinstance(last[-1], Failure) else None
        await self._run.end(last, self._save, self._conversation.messages)

    # --- saving ------------------------------------------------------------------------------

    async def _save(self, end: RunEnd | None = None) -> bool:
        return (await self._save_now(end)).ended

    @property
    def _together(self) -> JointSave:
        return JointSave(self._save_with, self._run.not_cut_off)

    async def _save_with(self, call: CallWrite[Any] | None) -> Any:
        """Save the conversation, together with something of a call; gives what came of that."""
        came = (await self._save_now(None, call)).call
        if isinstance(came, JournalError):
            raise came
        return came

    async def _save_now(self, end: RunEnd | None, call: CallWrite[Any] | None = None) -> Saved[Any]:
        with self._run.not_cut_off():  # so it is known whether it is saved
            await self._saved()
            return await self._write(self._record(self._run.lsn), end, call)

    async def _saved(self) -> None:
        """Wait for what is being saved, whatever comes of it; but raise why the turn is refused."""
        saving, self._saving = self._saving, None
        if saving is not None:
            await asyncio.wait((saving,))
        if self._refused:
            self.begun.result()

    def _begin_save(self, lsn: int) -> None:
        """Begin to save the conversation as it is now, with all that the lines up to this one tell."""
        self._saving = asyncio.create_task(self._write(self._record(lsn)))
        self._saving.add_done_callback(_look_at)

    def _record(self, lsn: int) -> ConversationRecord:
        self._unsaved = False
        self._conversation.lsn = lsn
        return record_of(self._conversation)

    async def _write(
        self, record: ConversationRecord, end: RunEnd | None = None, call: CallWrite[Any] | None = None
    ) -> Saved[Any]:
        begins = None if self.begun.done() else self._run.id
        try:
            saved = await self._engine.store.save(record, end, begins, call)
        except Exception as error:
            if begins is not None:
                self.begun.set_exception(error)
            raise
        self._conversation.version = record.version
        if end is None:
            self._run.wake()
        if begins is not None:
            self.begun.set_result(None)
            self._run.is_kept()
        return saved

    @property
    def _refused(self) -> bool:
        """Whether what the person did could not be saved: then there was no turn."""
        return self.begun.done() and self.begun.exception() is not None


def _look_at(saving: asyncio.Task[Saved[Any]]) -> None:
    """Whether it failed is for the next save to say, if nobody waits for this one."""
    _ = saving.cancelled() or saving.exception()


def _is_said(conversation: Conversation, request: ChatRequest) -> bool:
    """Whether a message was sent before.

    Whoever brings the history along may have the last of it answered once more; who does not, has lost the
    answer.
    """
    id = request.message_id
    return conversation.awaits_answer_to(id) or (request.message is not None and conversation.has_said(id))


def for_model(messages: Iterable[Message], files: dict[str, KeptFile] | None = None) -> tuple[Message, ...]:
    """The messages of a conversation for a model. Many models want person and assistant to speak in turns,
    and each tool call to have its result before anything else is said.

    What the person said in several messages, because the model failed or was stopped, is one. The result of a
    call that waited while something was said is told by the person. With the `files` of the conversation,
    pictures have their data; without, the model is told that it cannot see them.
    """
    made: list[Message] = []
    for role, spoken in groupby(_in_order(messages), lambda message: message.role):
        if role == "user":
            made.append(_one_message([_with_files(one, files) for one in spoken]))
        else:
            made += spoken
    return tuple(made)


def _in_order(messages: Iterable[Message]) -> Iterator[Message]:
    """Messages, with a result right after each tool call."""
    names: dict[str, str] = {}
    """Of calls whose result was put off, by id."""
    waits: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            if waits.pop(message.tool_call_id or "", None) is not None:
                yield message
            else:
                name = names.get(message.tool_call_id or "", "a tool")
                yield Message("user", LATE.format(name=name, content=message.content))
            continue
        for id in waits:
            yield Message("tool", WAITS, tool_call_id=id)
        names |= waits
        waits = {call.id: call.name for call in message.tool_calls}
        yield message
    for id in waits:
        yield Message("tool", WAITS, tool_call_id=id)


def _with_files(message: Message, files: dict[str, KeptFile] | None) -> Message:
    if not message.files:
        return message
    if files is not None:
        return replace(message, files=tuple(with_data(message.files, files)))
    unseen = "\n".join(UNSEEN.format(name=one.name) for one in message.files)
    return replace(message, content=f"{message.content}\n\n{unseen}", files=())


def _one_message(several: Sequence[Message]) -> Message:
    if len(several) == 1:
        return several[0]
    text = "\n\n".join(message.content for message in several)
    return Message("user", text, files=tuple(one for message in several for one in message.files))


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

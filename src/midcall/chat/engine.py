"""The chat engine: people talk to a model that calls the hub's methods, and is told by them what to ask.

It takes requests and gives runs (see `runs`); the wires (`ndjson`, `agui`) carry them. Everything that must
not be lost is in the hub's journal: conversations, runs with their lines, and waiting tool calls.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from midcall.calls import Shares
from midcall.chat.conversation import (
    MAX_ID,
    BadRequest,
    ChatRequest,
    Conversation,
    Listed,
    is_id,
    load,
    new_conversation,
    new_id,
    save,
)
from midcall.chat.dialect import ChatCalls
from midcall.chat.history import SEARCHES, search
from midcall.chat.plugins import Plugin, PluginFailed, PluginQuestion, Sampling, Shown, show
from midcall.chat.runs import DEAD_AFTER, LOST, FarRun, Run
from midcall.chat.tools import NO_TOOLS, Tools
from midcall.chat.turn import Turn
from midcall.errors import MidcallError, RegistrationError, TooManyCalls, WrongAnswer
from midcall.hub import Hub
from midcall.journal.contract import Conversations, Journal
from midcall.journal.durable import DurableCalls, durable_calls
from midcall.logs import Trouble
from midcall.mcp import mcp_of
from midcall.mcp.elicitation import read_context, request_for, without_context
from midcall.metrics import refused
from midcall.models.base import Message, Model, takes_images
from midcall.principal import Principal
from midcall.questions import AnyQuestion

if TYPE_CHECKING:
    from midcall.chat.ndjson import ChatPart

log = logging.getLogger("midcall.chat")

SWEEP_EVERY = 600.0
"""Seconds between two times that old runs are forgotten."""

CLOSING = 2.0
"""Seconds that turns have to end in good order when the process does."""

TURNS = 1000
"""How many turns may run at once; of a person with a name, a tenth."""

CONVERSATIONS = 1000
"""How many conversations a person with a name may have."""

CONVERSATION_BYTES = 256 * 1024 * 1024
"""How large these may be, all together, before anything more is said in them."""

SYSTEM = (
    "You are a helpful assistant. Use the tools where they help. "
    "What a tool has to ask the person, it asks by itself."
)


class TurnRunning(MidcallError):
    """The conversation's last turn has not ended."""

    code = "busy"
    recoverable = True


class NoConversation(MidcallError):
    """There is no such conversation, or run, of this person."""

    code = "not_found"


class TooManyConversations(MidcallError):
    """The person has as many conversations as there is room for, or they are too large."""

    code = "too_many_conversations"


class ChatEngine:
    """The chat of one hub."""

    def __init__(
        self,
        hub: Hub,
        model: Model | None = None,
        *,
        models: Sequence[Model] = (),
        store: Journal | None = None,
        plugins: Sequence[Plugin] = (),
        system: str = SYSTEM,
        sampling: Sampling | None = None,
        max_iterations: int = 12,
        token_budget: int | None = None,
        parallel: bool = True,
        offered: Callable[[str], bool] | None = None,
        suggestions: Sequence[str] = (),
    ) -> None:
        """The chat of this hub, which is served with it from now on.

        Without a `model` it is to be given one before it is served, as `midcall serve --model` does. `models`
        are others that the person may choose in its place, for a conversation.
        `plugins` show the questions of methods; each must have a handler for every question of its method.

        `system` is what the model is told first. A turn ends after `max_iterations` answers of the model, or
        when it has cost `token_budget`. Tools of one answer run at once unless `parallel` is false. `offered`
        says which methods the model may call, by name; without it, all. `suggestions` are shown on an empty
        page. Conversations are kept in the hub's journal, or in that of `store`, which is opened and closed
        with the chat.
        """
        self.hub = hub
        self.chosen_model = model
        self.more_models = tuple(models)
        self._own_journal = store
        self.system = system
        self.max_iterations = max_iterations
        self.token_budget = token_budget
        self.parallel = parallel
        self.suggestions = tuple(suggestions)
        self.closing = False
        self._sampling = sampling or Sampling()
        self._plugins = _by_method(plugins, hub)
        hub.chat = self
        self.calls = ChatCalls(hub)
        self._offered = offered
        self._tools = NO_TOOLS
        self._runs: dict[str, Run] = {}
        self._turns = Shares()
        """The turns that run."""
        self._trouble = Trouble(log, "write to the store of conversations")
        self._opening = asyncio.Lock()
        self._is_open = False
        self._sweeping: asyncio.Task[None] | None = None
        self._searches = asyncio.Semaphore(SEARCHES)

    @property
    def model(self) -> Model:
        """Who answers, unless the person chooses somebody else."""
        if self.chosen_model is None:
            raise RuntimeError("The chat has no model")
        return self.chosen_model

    @property
    def models(self) -> dict[str, Model]:
        """Who can answer, by name."""
        found: dict[str, Model] = {}
        for one in (self.model, *self.more_models):
            found.setdefault(one.name, one)
        return found

    def model_of(self, conversation: Conversation) -> Model:
        """Who answers in a conversation; one that is not there any more is replaced."""
        if not conversation.model:
            return self.model
        return self.models.get(conversation.model, self.model)

    @property
    def store(self) -> Conversations:
        """Where conversations are kept."""
        return (self._own_journal or durable_calls(self.hub).journal).conversations

    @property
    def one_journal(self) -> bool:
        """Whether conversations are where tool calls are: what is written of both can be written in one."""
        return self._own_journal is None

    async def open(self) -> None:
        """Make it ready; the first request does so too. The hub is opened by whoever serves it."""
        async with self._opening:
            self.closing = False
            if not self._is_open:
                durable = durable_calls(self.hub)
                self.calls.keep_with(durable)
                if self._own_journal is durable.journal:
                    self._own_journal = None
                if self._own_journal is None:
                    await durable.open()
                else:
                    await self._own_journal.open()
                    self._sweeping = asyncio.create_task(self._sweep(self._own_journal))
                self._is_open = True

    async def _ready(self) -> None:
        if not self._is_open and not self.closing:
            await self.open()

    async def _sweep(self, journal: Journal) -> None:
        """Forget old runs; in the hub's own journal, others do so."""
        while True:
            try:
                await journal.sweep()
            except MidcallError as error:
                self._trouble.begins(error)
            else:
                self._trouble.ends()
            await asyncio.sleep(SWEEP_EVERY)

    def stop_all(self) -> list[asyncio.Task[None]]:
        """End the turns that run; they are taken up again when their people come back."""
        self.closing = True
        for run in self._runs.values():
            run.stop()
        return [run.task for run in self._runs.values() if run.task is not None]

    async def close(self) -> None:
        """End what runs, and let go of everything but the hub, whether the journal answers or not.

        What waits for the hub's journal then ends when that is closed.
        """
        tasks = self.stop_all()
        self._is_open = False
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            tasks.append(sweeping)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSING)
        if self._own_journal is not None:
            await self._own_journal.close()  # who still waits for it is refused
            if tasks:
                await asyncio.wait(tasks, timeout=CLOSING)
        for model in () if self.chosen_model is None else self.models.values():
            await model.close()

    def part(self) -> "ChatPart":
        """The chat as a part of the hub's ASGI application."""
        from midcall.chat.ndjson import ChatPart  # noqa: PLC0415  it is built on this

        return ChatPart(self)

    # --- what a person does ------------------------------------------------------------------

    async def post(
        self, request: ChatRequest, principal: Principal | None = None, *, create: bool = False
    ) -> Run:
        """Begin a turn. Raises `BadRequest`, `NoConversation`, `TurnRunning`, `TooManyCalls` or
        `TooManyConversations`; then nothing was changed.

        With `create`, a conversation that there is not begins under the id that the request gives.
        """
        await self._ready()
        name = _name_of(principal)
        if self._turns.is_full(name, TURNS):
            refused(TooManyCalls.code)
            raise TooManyCalls("Too many turns at once; try again later")
        self._turns.take(name)
        try:
            conversation = await self._wanted(request, name, create=create)
        except BaseException:
            self._turns.give_back(name)
            raise
        run = Run(new_id(), conversation.id, name, self.store, self._trouble, lambda: self.closing)
        turn = Turn(self, run, conversation, request, principal)
        self._runs[run.id] = run
        run.begin(turn.play()).add_done_callback(lambda _: self._ended(run))
        try:
            await asyncio.shield(turn.begun)
        except MidcallError:
            run.stop()  # there is no turn
            raise
        return run

    async def _wanted(self, request: ChatRequest, name: str | None, *, create: bool) -> Conversation:
        """The conversation that a request is for. Raises as `post`."""
        id = request.conversation_id
        if create and id is not None and not is_id(id):
            raise BadRequest(
                f"The id of a conversation has between 1 and {MAX_ID} letters that can be printed"
            )
        if id is None or (create and await load(self.store, id, name) is None):
            await self._check_room(name, more=1)
            conversation = new_conversation(name, id)
            for said in request.messages[:-1]:
                if said.role in ("user", "assistant"):
                    conversation.say(Message(said.role, said.content))
        else:
            conversation, running = await self._as_it_stands(id, name)
            if running is not None:
                raise TurnRunning("The last turn of this conversation is still running")
            await self._check_room(name, more=0)
        self._check_fits(request, conversation)
        if self.closing:
            raise TurnRunning("The server is closing: try again")
        return conversation

    def _check_fits(self, request: ChatRequest, conversation: Conversation) -> None:
        """Raise `BadRequest` or `Conflict` if there is not what a request speaks of."""
        if request.model is not None and request.model not in self.models:
            raise BadRequest(f"There is no model {request.model}")
        if request.edit is not None:
            conversation.check_edit(request.edit)
        if request.retry is not None:
            if conversation.unanswered():
                raise BadRequest("A tool call of this conversation has not ended")
            if not any(message.tool_call_id == request.retry for message in conversation.messages):
                raise BadRequest("There is no such tool call")
        if request.attachments:
            model = self.models[request.model] if request.model else self.model_of(conversation)
            if not takes_images(model):
                raise BadRequest(f"{model.name} cannot read images")
            msgspec.structs.replace(conversation, files={**conversation.files}).attach(request.attachments)

    async def attach(self, run_id: str, principal: Principal | None = None) -> Run | FarRun:
        """A run that was begun before, here or elsewhere. Raises `NoConversation`."""
        await self._ready()
        name = _name_of(principal)
        here = self._runs.get(run_id)
        if here is not None and here.principal == name and not here.ended:
            return here
        state = await self.store.run(run_id) if is_id(run_id) else None
        if state is None or state.principal != name:  # perhaps its conversation was deleted, at any process
            raise NoConversation("There is no such run")
        return here or FarRun(state, self.store, lambda: self.closing)

    async def stop(self, conversation_id: str, principal: Principal | None = None) -> bool:
        """Stop the turn of a conversation, here or in another process. False if none runs."""
        name = _name_of(principal)
        conversation, running = await self._as_it_stands(conversation_id, name)
        if running is None:
            return False
        run = await self.attach(running["sessionId"], principal)
        if isinstance(run, Run):
            run.stop()
        else:
            await self.store.stop_run(run.id)
        async for _ in run.lines(conversation.lsn):
            pass  # to its end
        return True

    async def conversations(self, principal: Principal | None = None) -> Sequence[Listed]:
        """The conversations of a person, the newest first."""
        await self._ready()
        found = await self.store.list(_name_of(principal))
        return [Listed(one.id, one.title, one.updated, one.waiting, one.run is not None) for one in found]

    async def search(self, words: str, principal: Principal | None = None) -> tuple[Sequence[Listed], bool]:
        """The conversations of a person in which all of these words are, the newest first; and whether that
        is all of them. Raises `BadRequest`."""
        await self._ready()
        name = _name_of(principal)
        async with self._searches:
            return await search(self.store, name, words, CONVERSATIONS)

    async def rename(self, id: str, title: str, principal: Principal | None = None) -> None:
        """Give a conversation another title. Raises `NoConversation`, `TurnRunning` or `Conflict`."""
        conversation, running = await self._as_it_stands(id, _name_of(principal))
        if running is not None:
            raise TurnRunning("The last turn of this conversation has not ended")
        conversation.title = title
        await save(self.store, conversation)

    async def conversation(
        self, id: str, principal: Principal | None = None
    ) -> tuple[Conversation, dict[str, Any] | None]:
        """A conversation, and the run that is under way. Raises `NoConversation`.

        If none is, its `failure` says whether the last one came to no good end.
        """
        conversation, run = await self._as_it_stands(id, _name_of(principal))
        if conversation.run is not None and run is None:
            conversation.failure = LOST
        return conversation, run

    async def delete(self, id: str, principal: Principal | None = None) -> None:
        """Forget a conversation; what waits in it is ended. Raises `NoConversation`."""
        name = _name_of(principal)
        await self.stop(id, principal)
        conversation = await self._own(id, name)
        for call in (*conversation.unanswered(), *conversation.ending):
            await self.calls.abort(name, conversation.key_of(call), "The conversation was deleted")
        await self.store.delete(id, name)

    # --- what a turn needs -------------------------------------------------------------------

    def tools(self) -> Tools:
        """The tools that the model has at present."""
        tools = mcp_of(self.hub).catalog.tools
        if self._tools.made_from is not tools or self._offered is not None:
            self._tools = Tools(tools, self._offered)
        return self._tools

    def keep_with(self, durable: DurableCalls) -> None:
        """Be ready to go on with calls of a journal."""
        self.calls.keep_with(durable)

    async def show(
        self, question: PluginQuestion, answers: Sequence[Any], report: Callable[[str], None]
    ) -> Shown | dict[str, Any] | None:
        """What a plugin shows of a question after these answers, or the result that it gives; nothing if none
        is for it. Raises `PluginFailed`."""
        plugin = self._plugins.get(question.tool)
        handler = None if plugin is None else plugin.handler(question.key)
        if handler is None:
            return None
        try:
            return await show(handler, question, answers, report)
        except Exception as error:
            log.exception("the plugin of %s failed", question.tool)
            raise PluginFailed(f"The plugin of {question.tool} failed: {error}") from error

    async def show_outside(
        self, tool: str, call_id: str, key: str, asked: AnyQuestion, answers: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """What a plugin makes of a question outside of a conversation: the `component` that it shows next, or
        the `answer`; neither if there is no plugin for it. Raises `WrongAnswer`."""
        _, params = request_for(asked)
        text, schema = str(params["message"]), params.get("requestedSchema") or {}
        question = PluginQuestion(
            key, without_context(text), read_context(text, schema), schema, tool, call_id
        )
        try:
            shown = await self.show(question, answers, lambda message: None)
        except PluginFailed as error:
            if answers:
                raise WrongAnswer(f"another one ({error.__cause__})") from None
            return {}  # then it is a form
        if isinstance(shown, Shown):
            return {"component": {"name": shown.component, "props": shown.props}}
        return {} if shown is None else {"answer": shown}

    def sampling_for(self, tool: str) -> Sampling:
        """How a tool's questions to the model are handled."""
        plugin = self._plugins.get(tool)
        return plugin.sampling if plugin is not None and plugin.sampling is not None else self._sampling

    # --- inside ------------------------------------------------------------------------------

    async def _own(self, id: str, name: str | None) -> Conversation:
        await self._ready()
        conversation = await load(self.store, id, name) if is_id(id) else None
        if conversation is None:
            raise NoConversation("There is no such conversation")
        return conversation

    async def _check_room(self, name: str | None, more: int) -> None:
        """Raise if a person has too many conversations already, or they are too large."""
        if name is None:
            return
        count, size = await self.store.held(name)
        if count + more > CONVERSATIONS or size > CONVERSATION_BYTES:
            refused(TooManyConversations.code)
            raise TooManyConversations("You have too many conversations; delete some first")

    async def _as_it_stands(self, id: str, name: str | None) -> tuple[Conversation, dict[str, Any] | None]:
        """A conversation, and the run that is under way. Raises `NoConversation`."""
        before = -1
        while True:
            conversation = await self._own(id, name)
            run = await self._running(conversation)
            if run is not None or conversation.run is None or conversation.version == before:
                return conversation, run
            before = conversation.version  # its run is over, and may have ended after this was read

    async def _running(self, conversation: Conversation) -> dict[str, Any] | None:
        """The run that is under way in a conversation, unless it died with its worker."""
        if conversation.run is None:
            return None
        here = self._runs.get(conversation.run)
        if here is not None:
            return None if here.ended else {"sessionId": here.id, "lsn": conversation.lsn}
        state = await self.store.run(conversation.run)
        if state is None or state.ended or state.now - state.seen > DEAD_AFTER:
            return None
        return {"sessionId": state.id, "lsn": conversation.lsn}

    def _ended(self, run: Run) -> None:
        """A run has ended, and is written: from now on it is read from the store."""
        self._turns.give_back(run.principal)
        self._runs.pop(run.id, None)


def _name_of(principal: Principal | None) -> str | None:
    return None if principal is None else principal.name


def _by_method(plugins: Sequence[Plugin], hub: Hub) -> dict[str, Plugin]:
    found: dict[str, Plugin] = {}
    for plugin in plugins:
        name = plugin.find(hub)
        if name in found:
            raise RegistrationError(f"{name} has two plugins")
        found[name] = plugin
    return found


__all__ = ["BadRequest", "ChatEngine", "NoConversation", "TooManyConversations", "TurnRunning"]

"""The activation: sessions of Claude Code, and chats in them that ask before something is done."""

import itertools
import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from msgspec import Struct
from pydantic import Field

from midcall.activations.claudecode.background import (
    SCOPES,
    BackgroundChats,
    NumberedEvent,
    RelayedQuestion,
    StreamList,
    StreamPolled,
    StreamStarted,
)
from midcall.activations.claudecode.events import (
    ChatCompleted,
    ChatFailed,
    ChatStarted,
    ClaudeEvent,
    ClaudeUsage,
    whole,
)
from midcall.activations.claudecode.hub_tools import HubTools
from midcall.activations.claudecode.permission import Decision, decide
from midcall.activations.claudecode.process import ClaudeLauncher
from midcall.activations.claudecode.run import WENT_ON, RunWork, Spent, TurnEnded
from midcall.activations.claudecode.sessions import ClaudeSession, ClaudeSessions, SessionSetup, session_key
from midcall.activations.claudecode.transcripts import has_messages
from midcall.activations.claudecode.turn import CONTINUE, Chunk, ClaudeTurn, Standing
from midcall.activations.tree_store import MAX_OWNER, TreeStore
from midcall.ask import Ask, call_of
from midcall.call import CallerName
from midcall.decorators import method
from midcall.errors import AskError, InvalidArguments, RegistrationError, StepInterrupted
from midcall.hub import Hub
from midcall.journal.durable import DurableCalls, durable_calls
from midcall.questions import Option
from midcall.registry import Registry

MOST_QUERY = 1024 * 1024
"""How many characters a query may have."""

PROCESSES = 4
"""How many Claude Codes run at once, unless the author says."""

FOLDERS = "MIDCALL_CLAUDECODE_FOLDERS"
PROGRAM = "MIDCALL_CLAUDECODE_CLI"
TOOLS = "MIDCALL_CLAUDECODE_TOOLS"
"""Where Claude Code may work, where it is, and what of the hub it can use, unless the author says."""


_ACTS = {"destructiveHint": True, "openWorldHint": True}

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_OWNER)]
Model: TypeAlias = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/@\[\]-]*$")]
Key: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]


class SessionByName(Struct, tag_field="type", tag="by_name"):
    """A session by its name."""

    name: str


class SessionById(Struct, tag_field="type", tag="by_id"):
    """A session by its id."""

    id: str


Identifier: TypeAlias = SessionByName | SessionById


class ClaudeSessionInfo(Struct):
    """A session."""

    id: str
    name: str
    working_dir: str
    model: str | None
    system_prompt: str | None
    claude_session_id: str
    forked_from: str | None
    permitted: Sequence[str]
    """What is done without a question, for the rest of the session."""
    waits_for: str | None
    """The tool that waits for a permission."""
    cost_usd: float
    created_at: int
    updated_at: int


class SessionCreated(Struct, tag_field="type", tag="created"):
    """There is a new session."""

    id: str
    session: ClaudeSessionInfo


class SessionData(Struct, tag_field="type", tag="session"):
    """A session."""

    session: ClaudeSessionInfo


class SessionList(Struct, tag_field="type", tag="sessions"):
    """The caller's sessions, the newest first."""

    sessions: Sequence[ClaudeSessionInfo]


class SessionDeleted(Struct, tag_field="type", tag="deleted"):
    """A session is gone."""

    id: str


class SessionForked(Struct, tag_field="type", tag="forked"):
    """There is a new session, in which all was said that was said in another."""

    id: str
    session: ClaudeSessionInfo


class SessionTree(Struct, tag_field="type", tag="tree"):
    """The tree in which what was said is kept, for `arbor`; there is none before something was."""

    id: str
    tree_id: str | None


class SessionMessage(Struct):
    """One message of a conversation, as the Messages API has it."""

    role: str
    content: Any


class SessionContext(Struct, tag_field="type", tag="context"):
    """What was said in a session."""

    id: str
    messages: Sequence[SessionMessage]
    total: int
    """How many messages there are."""


class ClaudeCode:
    """Claude Code, which asks you before it does something."""

    namespace = "claudecode"

    def __init__(
        self,
        *,
        folders: Sequence[str | os.PathLike[str]] | None = None,
        cli_path: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        processes: int = PROCESSES,
        setting_sources: Sequence[str] = (),
        mcp_servers: Mapping[str, Any] | None = None,
        hub_tools: Sequence[str] | None = None,
        max_budget_usd: float | None = None,
    ) -> None:
        """Say where it may work, and how it is run.

        `folders` are those in which (or below which) sessions may work; without any, the folder in which the
        server was started. `cli_path` is an installed `claude`, in the place of the one in the SDK's package.
        `env` are variables for it, beside those of its own that the server has. Of `processes` there are so
        many at once; other chats wait. `setting_sources` ("user", "project", "local") are settings files that
        it reads: those of a project may permit anything, so by default it reads none. `mcp_servers` are those
        that it can use. `hub_tools` are namespaces and methods of the hub that it can use too, or `*`.
        `max_budget_usd` is what each run may cost.
        """
        if processes < 1:
            raise ValueError("At least one process is needed")
        given = os.environ.get(FOLDERS, "").split(os.pathsep) if folders is None else folders
        wanted = [Path(one) for one in given if str(one)] or [Path.cwd()]
        try:
            self._folders = [one.resolve(strict=True) for one in wanted]
        except OSError as error:
            raise RegistrationError(f"claudecode: {error}") from None
        program = cli_path or os.environ.get(PROGRAM) or None
        self._launcher = ClaudeLauncher(
            program, env or {}, processes, setting_sources, mcp_servers or {}, max_budget_usd
        )
        self._given = os.environ.get(TOOLS, "").split(",") if hub_tools is None else hub_tools

    def attach(self, hub: Registry) -> None:
        """Keep sessions in this hub's journal, and give its methods to Claude Code."""

        def durable() -> DurableCalls:
            if not isinstance(hub.root, Hub):
                raise RegistrationError("claudecode is not registered in a hub")
            return durable_calls(hub.root)

        self._sessions = ClaudeSessions(TreeStore.of(hub), self._folders, lambda: durable().journal)
        self._tools = HubTools(hub, [name for name in self._given if name], self)
        self._background = BackgroundChats(durable)

    # --- sessions ----------------------------------------------------------------------------

    @method(scopes=SCOPES, annotations={"destructiveHint": False})
    async def create(
        self,
        name: Name,
        working_dir: Annotated[str, Field(max_length=4096)],
        caller: CallerName,
        model: Model | None = None,
        system_prompt: str | None = None,
    ) -> SessionCreated:
        """Make a session, in which Claude Code works in one folder.

        Args:
            name: what it is called from now on
            working_dir: the folder, as an absolute path
            model: which model is used, such as "sonnet"; without one, Claude Code's default
            system_prompt: instructions, beside those of Claude Code
        """
        about = SessionSetup(working_dir, model, system_prompt or None)
        made = await self._sessions.create(caller, name, about)
        return SessionCreated(made.id, _info(made))

    @method(scopes=SCOPES, annotations={"readOnlyHint": True})
    async def get(
        self, caller: CallerName, session_name: Name | None = None, identifier: Identifier | None = None
    ) -> SessionData:
        """Look at a session."""
        return SessionData(_info(await self._find(caller, session_name, identifier)))

    @method(scopes=SCOPES, annotations={"readOnlyHint": True})
    async def list(self, caller: CallerName) -> SessionList:
        """List your sessions."""
        return SessionList([_info(one) for one in await self._sessions.list(caller)])

    @method(scopes=SCOPES, annotations={"destructiveHint": True})
    async def delete(
        self, caller: CallerName, session_name: Name | None = None, identifier: Identifier | None = None
    ) -> SessionDeleted:
        """Forget a session, and what was said in it. Files that it has changed stay as they are."""
        found = await self._find(caller, session_name, identifier)
        await self._launcher.sdk()
        await self._sessions.delete(caller, found)
        return SessionDeleted(found.id)

    @method(scopes=SCOPES, annotations={"destructiveHint": False})
    async def fork(
        self,
        new_name: Name,
        caller: CallerName,
        session_name: Name | None = None,
        identifier: Identifier | None = None,
    ) -> SessionForked:
        """Make a session that goes on from where another one is, which stays as it is.

        Args:
            new_name: what the new one is called
        """
        found = await self._find(caller, session_name, identifier)
        sdk = await self._launcher.sdk()
        about = SessionSetup(
            found.about.working_dir, found.about.model, found.about.system_prompt, forked_from=found.id
        )
        transcripts = self._sessions.transcripts(caller)
        key = session_key(found)
        claude_id = ""
        if has_messages(await transcripts.load(key) or ()):
            copied = await sdk.fork_session_via_store(
                transcripts, found.note.claude_id, directory=found.about.working_dir
            )
            claude_id = copied.session_id
        try:
            made = await self._sessions.create(caller, new_name, about, claude_id, found.note.pending)
        except BaseException:
            if claude_id:
                key["session_id"] = claude_id
                await transcripts.delete(key)
            raise
        return SessionForked(made.id, _info(made))

    # --- what was said -----------------------------------------------------------------------

    @method(scopes=SCOPES, annotations={"readOnlyHint": True})
    async def get_tree(
        self, caller: CallerName, session_name: Name | None = None, identifier: Identifier | None = None
    ) -> SessionTree:
        """Tell in which tree what was said in a session is kept."""
        found = await self._find(caller, session_name, identifier)
        await self._launcher.sdk()
        return SessionTree(found.id, await self._sessions.transcripts(caller).tree_id(session_key(found)))

    @method(scopes=SCOPES, annotations={"readOnlyHint": True})
    async def render_context(
        self,
        caller: CallerName,
        session_name: Name | None = None,
        identifier: Identifier | None = None,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=1, le=1000)] = 100,
    ) -> SessionContext:
        """Give what was said in a session, as messages.

        Args:
            offset: how many messages are passed over
            limit: how many are given
        """
        found = await self._find(caller, session_name, identifier)
        sdk = await self._launcher.sdk()
        said = await sdk.get_session_messages_from_store(
            self._sessions.transcripts(caller), found.note.claude_id, directory=found.about.working_dir
        )
        messages = [SessionMessage(one.type, _content(one.message)) for one in said[offset : offset + limit]]
        return SessionContext(found.id, messages, len(said))

    # --- chats -------------------------------------------------------------------------------

    @method(long_running=True, person_only=True, scopes=SCOPES, annotations=_ACTS)
    async def chat(
        self,
        query: Annotated[str, Field(min_length=1, max_length=MOST_QUERY)],
        ask: Ask,
        caller: CallerName,
        session_name: Name | None = None,
        identifier: Identifier | None = None,
    ) -> AsyncIterator[ClaudeEvent]:
        """Have Claude Code work on something. You are asked before it does what it needs a permission for.

        Args:
            query: what it is to do
            session_name: the session in which it works
        """
        turn = ClaudeTurn(self._sessions, self._launcher, self._tools, caller)
        prompt_id = str(ask.uuid())

        async def look_first() -> Standing:
            found = await self._find(caller, session_name, identifier)
            return await turn.look(found.id, prompt_id)

        standing = await ask.step(look_first, retry_safe=True)
        yield ChatStarted(standing.id, standing.name)
        work = RunWork(query, prompt_id, fresh=standing.fresh)
        if standing.pending is not None:
            refused = Decision(allow=False, message=WENT_ON, stop=True)
            work = RunWork(query, prompt_id, standing.pending, refused)
        start, spent, revision = standing.cost, Spent(), standing.revision
        number = itertools.count()
        try:
            while True:
                if self._launcher.room.locked():
                    ask.progress("Waiting until another Claude Code has ended")
                begun: RunWork | None = work
                chunk = Chunk()
                try:
                    while chunk.spent is None:
                        chunk = await ask.step(turn.next, next(number), standing.id, revision, begun)
                        for event in chunk.events:
                            yield event
                        begun = None
                except StepInterrupted:
                    if not await _is_to_go_on(ask, standing.name):
                        yield ChatFailed(
                            "The server stopped while Claude worked: how far it came is not known"
                        )
                        return
                    standing = await ask.step(turn.look, standing.id, prompt_id, retry_safe=True)
                    work, revision = _after(standing, query, prompt_id), standing.revision
                    continue
                spent, revision = spent.plus(chunk.spent), chunk.revision
                if chunk.ended is not None:
                    yield _end(chunk.claude_id, start, spent, chunk.ended)
                    return
                if chunk.asked is not None:
                    decision = await decide(ask, chunk.asked)
                    work = RunWork(pending=chunk.asked.pending, decision=decision)
                if chunk.called is not None:
                    result = await self._tools.call(ask, chunk.called)
                    permitted = Decision(allow=True, input=chunk.called.input)
                    work = RunWork(pending=chunk.called, decision=permitted, result=result)
        finally:
            await turn.close()

    @method(person_only=True, scopes=SCOPES, annotations=_ACTS)
    async def chat_async(
        self,
        query: Annotated[str, Field(min_length=1, max_length=MOST_QUERY)],
        ask: Ask,
        caller: CallerName,
        session_name: Name | None = None,
        identifier: Identifier | None = None,
    ) -> StreamStarted:
        """Have Claude Code work on something in the background: `poll` tells what comes of it, and asks.

        Args:
            query: what it is to do
            session_name: the session in which it works
        """
        found = await self._find(caller, session_name, identifier)
        given = {"session_name": found.name, "query": query}
        started = await ask.step(self._background.start, caller, _chat_of(ask), given)
        return StreamStarted(started, found.id)

    @method(person_only=True, scopes=SCOPES)
    async def poll(
        self,
        stream_id: Key,
        ask: Ask,
        caller: CallerName,
        from_seq: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=1, le=1000)] = 100,
        wait: Annotated[float, Field(ge=0, le=60)] = 0,
    ) -> StreamPolled:
        """Tell what has happened in a chat in the background. If it waits for a permission, you are asked.

        Args:
            stream_id: which chat, as `chat_async` says
            from_seq: the number of the first event that is wanted
            limit: how many events are given
            wait: for how many seconds it waits for something new
        """
        place, method = self._background, _chat_of(ask)
        seen = await ask.step(place.look, caller, method, stream_id, from_seq, limit, wait, retry_safe=True)
        events = list(seen.events)
        if seen.asked and (question := RelayedQuestion.of(ask, seen.asked)).answerable:
            given = {seen.asked["request_id"]: await question}
            await ask.step(place.answer, caller, method, stream_id, given, retry_safe=True)
            left = limit - len(events)
            seen = await ask.step(
                place.look, caller, method, stream_id, seen.total, left, wait, retry_safe=True
            )
            events += seen.events
        told = [NumberedEvent(number, event) for number, event in enumerate(events, from_seq)]
        total, position = seen.total, from_seq + len(told)
        return StreamPolled(stream_id, seen.status, told, position, total, position < total, seen.error)

    @method(scopes=SCOPES, annotations={"readOnlyHint": True})
    async def streams(self, ask: Ask, caller: CallerName, session_name: Name | None = None) -> StreamList:
        """List your chats in the background, those that have ended lately too.

        Args:
            session_name: only those of this session
        """
        found = await self._background.list(caller, _chat_of(ask))
        return StreamList([one for one in found if session_name in (None, one.session_name)])

    async def _find(
        self, caller: str | None, session_name: str | None, identifier: Identifier | None
    ) -> ClaudeSession:
        """The session that is meant. Raises `InvalidArguments` unless it is said in one of the two ways."""
        match session_name, identifier:
            case (str(name), None) | (None, SessionByName(name)):
                return await self._sessions.find(caller, name)
            case None, SessionById(id):
                return await self._sessions.load(caller, id)
        fault = {"path": "session_name", "message": "Give either session_name or identifier"}
        raise InvalidArguments("claudecode", [fault])


def _chat_of(ask: Ask) -> str:
    """What the hub calls `chat`, in a call of another method."""
    return f"{call_of(ask).name.rpartition('.')[0]}.chat"


async def _is_to_go_on(ask: Ask, name: str) -> bool:
    """A turn was cut off: ask whether it goes on."""
    message = (
        f"The server stopped while Claude worked in session {name}. What it had said and done until then is "
        "kept, but the last of it may be missing. Is it to go on?"
    )
    options = [Option("stop", "No, leave it at that"), Option("go_on", "Yes, go on")]
    try:
        return await ask.select(message, options, key="interrupted", timeout=None) == "go_on"
    except AskError:
        return False


def _after(standing: Standing, query: str, prompt_id: str) -> RunWork:
    """How a turn that was cut off goes on."""
    if standing.pending is not None:
        return RunWork(pending=standing.pending, again=True)
    if standing.said:
        return RunWork(CONTINUE, str(uuid.uuid5(uuid.UUID(prompt_id), str(standing.revision))))
    return RunWork(query, prompt_id, fresh=standing.fresh)


def _content(message: Any) -> Any:
    """What a message says; others may have added to a tree what is none."""
    return whole(message.get("content") if isinstance(message, Mapping) else message)


def _end(claude_id: str, start: float, spent: Spent, ended: TurnEnded) -> ClaudeEvent:
    if ended.failure:
        return ChatFailed(ended.failure)
    cost = round(max(0.0, spent.session_cost - start), 8)
    total = round(spent.session_cost, 8)
    usage = ClaudeUsage(spent.input_tokens, spent.output_tokens, cost, total, spent.turns)
    return ChatCompleted(claude_id, usage, ended.stopped)


def _info(session: ClaudeSession) -> ClaudeSessionInfo:
    about, note = session.about, session.note
    permitted = [*note.rules, *note.folders, *(["Edit"] if note.accept_edits else [])]
    return ClaudeSessionInfo(
        id=session.id,
        name=session.name,
        working_dir=about.working_dir,
        model=about.model,
        system_prompt=about.system_prompt,
        claude_session_id=note.claude_id,
        forked_from=about.forked_from,
        permitted=permitted,
        waits_for=None if note.pending is None else note.pending.tool,
        cost_usd=note.cost,
        created_at=int(session.created),
        updated_at=int(session.updated),
    )

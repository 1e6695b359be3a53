"""A turn: what comes of a prompt, as chunks of events, each of which is a step of its call.

So a call that is run again from its journal gives the same events again, and a process that dies in the
middle leaves a step that was cut off: then nobody knows how far Claude Code has come, and nothing is run
again by itself. Between two questions there are one or more runs of Claude Code (see `run`); while a question
waits there is none, and no process.
"""

import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from midcall.activations.claudecode.events import ClaudeEvent, joined, size_of
from midcall.activations.claudecode.hub_tools import HubTools
from midcall.activations.claudecode.permission import PendingTool, PermissionAsked
from midcall.activations.claudecode.process import ClaudeLauncher
from midcall.activations.claudecode.run import ClaudeRun, DeferredTool, HubCalled, RunWork, Spent, TurnEnded
from midcall.activations.claudecode.sessions import ClaudeSession, ClaudeSessions, SessionNote, session_key
from midcall.activations.claudecode.transcripts import has_messages
from midcall.errors import StepInterrupted

PACE = 0.2
"""Seconds between two chunks, so that a journal is not written for each word."""

CHUNK = 64 * 1024
"""How many bytes of events one chunk has, about."""

MOST_DEFERRED = 20
"""How many tools are remembered that asked though they were thought not to."""

CONTINUE = "Continue from where you left off."


class Chunk(Struct, frozen=True, omit_defaults=True):
    """Some events; the last one of a part of the turn says what that came to."""

    events: Sequence[ClaudeEvent] = ()
    asked: PermissionAsked | None = None
    called: PendingTool | None = None
    """A tool use of the hub that is to be done."""
    ended: TurnEnded | None = None
    spent: Spent | None = None
    revision: int = 0
    claude_id: str = ""
    """Of the session, when nobody runs it any more."""


class Standing(Struct, frozen=True):
    """How a session stands before a turn, or after one that was cut off."""

    id: str
    name: str
    revision: int
    cost: float
    pending: PendingTool | None = None
    """A tool use that waits."""
    fresh: bool = False
    """Whether nothing was said in it yet."""
    said: bool = False
    """Whether the prompt of the turn is in the transcript."""


class TurnPart:
    """What of a turn lies between two questions: the session, which is held, and the run that it is at."""

    def __init__(self, session: ClaudeSession, run: ClaudeRun) -> None:
        self.session = session
        self.run = run
        self.spent = Spent()

    def note(self, pending: PendingTool | None) -> SessionNote:
        """How the session stands after its run."""
        if pending is not None:
            pending = PendingTool(pending.id, pending.tool)  # its input may be too large for a note
        note = self.session.note
        self.spent = self.spent.plus(self.run.spent)
        deferred = list(dict.fromkeys([*note.defer, *self.run.asked_late]))
        return replace(note, pending=pending, cost=self.spent.session_cost, defer=deferred[-MOST_DEFERRED:])


class ClaudeTurn:
    """One turn, as far as this process runs it."""

    def __init__(
        self, sessions: ClaudeSessions, launcher: ClaudeLauncher, tools: HubTools, principal: str | None
    ) -> None:
        self._sessions = sessions
        self._launcher = launcher
        self._tools = tools
        self._principal = principal
        self._part: TurnPart | None = None
        self._last = 0.0

    async def look(self, id: str, prompt_id: str) -> Standing:
        """How a session stands."""
        session = await self._sessions.load(self._principal, id)
        await self._launcher.sdk()
        entries = await self._sessions.transcripts(self._principal).load(session_key(session)) or []
        pending = session.note.pending
        if pending is not None and any(_answers(entry, pending.id) for entry in entries):
            pending = None
        said = any(entry.get("uuid") == prompt_id for entry in entries)
        fresh = not has_messages(entries)
        note = session.note
        return Standing(id, session.name, note.revision, note.cost, pending, fresh, said)

    async def next(self, number: int, id: str, revision: int, work: RunWork | None) -> Chunk:
        """Some events. With `work` a part of the turn begins; its last chunk has what it came to."""
        try:
            part = self._part if work is None else await self._begin(id, revision, work)
            if part is not None:
                return await self._next(part)
        except BaseException:
            await self.close()
            raise
        raise StepInterrupted("ClaudeTurn.next", str(number))

    async def _begin(self, id: str, revision: int, work: RunWork) -> TurnPart:
        await self._launcher.room.acquire()
        try:
            permitted = () if work.decision is None else work.decision.always
            session = await self._sessions.begin(
                self._principal, id, revision, permitted=permitted, fresh=work.fresh
            )
            try:
                self._part = TurnPart(session, self._started(session, work))
            except BaseException:
                await self._sessions.ends(id, self._sessions.drop(self._principal, id))
                raise
        except BaseException:
            self._launcher.room.release()
            raise
        return self._part

    def _started(self, session: ClaudeSession, work: RunWork) -> ClaudeRun:
        transcripts = self._sessions.transcripts(self._principal)
        return ClaudeRun(self._launcher, session, transcripts, self._tools, work)

    async def _next(self, part: TurnPart) -> Chunk:
        events: list[ClaudeEvent] = []
        size = 0
        while size < CHUNK:
            pause = max(0.0, self._last + PACE - time.monotonic()) if events else None
            match await part.run.next(pause):
                case None:
                    break
                case DeferredTool(pending):
                    note = part.note(pending)
                    part.session = await self._sessions.change(self._principal, part.session, note)
                    part.run = self._started(part.session, RunWork(pending=pending))
                case PermissionAsked() as asked:
                    revision = await self._end(part, asked.pending)
                    return Chunk(events, asked=asked, spent=part.spent, revision=revision)
                case HubCalled(pending):
                    revision = await self._end(part, pending)
                    return Chunk(events, called=pending, spent=part.spent, revision=revision)
                case TurnEnded() as ended:
                    left = part.run.deferred or part.session.note.pending
                    revision = await self._end(part, left if ended.failure else None)
                    name = part.session.note.claude_id
                    return Chunk(events, ended=ended, spent=part.spent, revision=revision, claude_id=name)
                case event:
                    joined(events, event)
                    size += size_of(event)
        self._last = time.monotonic()
        return Chunk(events)

    async def _end(self, part: TurnPart, pending: PendingTool | None) -> int:
        """A part of the turn is over: nobody runs the session any more. Gives its revision."""
        part.session = await self._sessions.end(self._principal, part.session, part.note(pending))
        await self.close()
        return part.session.note.revision

    async def close(self) -> None:
        """Let go of the session; no process is left when this returns."""
        part, self._part = self._part, None
        if part is not None:
            await self._sessions.ends(part.session.id, self._let_go(part))

    async def _let_go(self, part: TurnPart) -> None:
        try:
            await part.run.close()
        finally:
            self._launcher.room.release()
            await self._sessions.drop(self._principal, part.session.id)


def _answers(entry: object, tool_use_id: str) -> bool:
    """Whether an entry of a transcript has what came of a tool use."""
    match entry:
        case {"message": {"content": [*blocks]}}:
            return any(
                isinstance(block, dict)
                and block.get("type") == "tool_result"
                and block.get("tool_use_id") == tool_use_id
                for block in blocks
            )
    return False

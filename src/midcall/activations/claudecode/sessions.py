"""Sessions: what is kept of each, by whom it is run, and where it may work.

A session is a tree of the hub's journal that has a name, and a note. What was said in it is another tree (see
`transcripts`). The note says who runs Claude Code for the session now, which tool use waits for a decision,
and what the person has permitted for good; it is changed by one at a time (see `midcall.journal.trees`), so
that of two chats at once, on two workers, one is refused.

While a person decides, nobody runs a session: somebody else may go on with it. `revision` counts the runs, so
that a decision which comes after that is not taken for one about something newer.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midcall.activations.claudecode.permission import PendingTool, rule_of
from midcall.activations.claudecode.transcripts import OWNER, TreeSessionStore
from midcall.activations.tree_store import StoredTree, TreeStore, is_name
from midcall.errors import Conflict, MidcallError, TreeError
from midcall.journal.bus import Channel
from midcall.journal.contract import Journal

KIND = "claudecode"

MOST_SESSIONS = 1000
"""How many sessions a caller may have."""

MOST_PROMPT = 32 * 1024
"""How many bytes a system prompt may have."""

MOST_KEPT = 8 * 1024
"""How many bytes of rules, and of folders, a person may have permitted in one session; then the oldest go.

With the prompt they are in one note (see `tree_store.MAX_METADATA`), and on Claude Code's command line."""


class UnknownSession(MidcallError):
    """There is no such session, or it is another caller's."""

    code = "unknown_session"

    def __init__(self, name: str) -> None:
        super().__init__(f"Session not found: {name[:200]}")


class SessionBusy(MidcallError):
    """Claude Code runs for this session already."""

    code = "session_busy"
    recoverable = True


class SessionMoved(MidcallError):
    """The session has gone on without this chat, which waited for a decision."""

    code = "session_moved"


class RefusedFolder(MidcallError):
    """Claude Code cannot, or may not, work in this folder."""

    code = "refused_folder"


class SessionSetup(Struct, frozen=True):
    """What a session was made with."""

    working_dir: str
    model: str | None = None
    system_prompt: str | None = None
    forked_from: str | None = None


class SessionNote(Struct, frozen=True, omit_defaults=True):
    """How a session stands; unlike metadata, nobody can change it through `arbor`."""

    about: SessionSetup
    claude_id: str
    """Its name for Claude Code."""
    revision: int = 0
    worker: str = ""
    """Who runs it now."""
    pending: PendingTool | None = None
    """The tool use that waits for a decision, or was being run when its worker was lost."""
    rules: Sequence[str] = ()
    folders: Sequence[str] = ()
    exactly: Sequence[str] = ()
    accept_edits: bool = False
    """What the person has permitted for good (see `permission.kept_in_words`)."""
    defer: Sequence[str] = ()
    """Tools that were thought never to need a permission, and did."""
    cost: float = 0.0
    """What the session has cost so far, in US dollars."""

    def permitting(self, suggestions: Sequence[dict[str, Any]]) -> "SessionNote":
        """With what a person has permitted for good."""
        rules, folders, edits = list(self.rules), list(self.folders), self.accept_edits
        exactly = list(self.exactly)
        for one in suggestions:
            match one.get("type"):
                case "exactly":
                    exactly.append(one["digest"])
                case "addRules":
                    rules += [rule_of(rule) for rule in one["rules"]]
                case "addDirectories":
                    folders += [str(folder) for folder in one["directories"]]
                case "setMode":
                    edits = True
        return replace(
            self,
            rules=_newest(rules),
            folders=_newest(folders),
            exactly=_newest(exactly),
            accept_edits=edits,
        )


class ClaudeSession(Struct, frozen=True):
    """A session, as it was read."""

    id: str
    name: str
    about: SessionSetup
    note: SessionNote
    version: int
    created: float
    updated: float


class ClaudeSessions:
    """The sessions of a hub."""

    def __init__(self, trees: TreeStore, folders: Sequence[Path], journal: Callable[[], Journal]) -> None:
        self._trees = trees
        self._folders = folders
        self._journal = journal
        self._running: set[str] = set()
        """Those that are run by this process."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Those of them whose run is being ended."""

    # --- for callers -------------------------------------------------------------------------

    async def create(
        self,
        principal: str | None,
        name: str,
        about: SessionSetup,
        claude_id: str = "",
        pending: PendingTool | None = None,
    ) -> ClaudeSession:
        """A new session. Raises `RefusedFolder`, or `Conflict` if there is one of this name."""
        if not is_name(name):
            raise TreeError("The name of a session has 1 to 200 printable characters")
        prompt = about.system_prompt or ""
        if "\0" in prompt or _size(prompt) > MOST_PROMPT:
            raise TreeError(f"A system prompt has {MOST_PROMPT} bytes at most, and no NUL")
        about = replace(about, working_dir=str(self.check_folder(about.working_dir)))
        if len(await self.list(principal)) >= MOST_SESSIONS:
            raise TreeError(f"There are already {MOST_SESSIONS} sessions: delete some")
        note = SessionNote(about, claude_id or str(uuid.uuid4()), pending=pending)
        tree = await self._trees.create(
            principal,
            OWNER,
            kind=KIND,
            name=name,
            note=msgspec.to_builtins(note),
            text=f"Claude Code session {name}",
        )
        return _session(tree)

    async def find(self, principal: str | None, name: str) -> ClaudeSession:
        """A session by its name. Raises `UnknownSession`."""
        tree = await self._trees.find(principal, KIND, name)
        if tree is None:
            raise UnknownSession(name)
        return await self.load(principal, tree.id)

    async def load(self, principal: str | None, id: str) -> ClaudeSession:
        """A session by its id; if its run is being ended, then after that. Raises `UnknownSession`."""
        if id in self._ending:
            await asyncio.wait({self._ending[id]})
        try:
            tree = await self._trees.load(principal, id)
        except TreeError:
            raise UnknownSession(id) from None
        if tree.kind != KIND or tree.name is None:
            raise UnknownSession(id)
        return _session(tree)

    async def list(self, principal: str | None) -> Sequence[ClaudeSession]:
        """All sessions of a caller, the newest first."""
        trees, _ = await self._trees.list(principal, kind=KIND, limit=MOST_SESSIONS)
        return [_session(tree) for tree in trees]

    async def delete(self, principal: str | None, session: ClaudeSession) -> None:
        """Forget a session and what was said in it. Raises `SessionBusy`."""
        await self._take(principal, session, session.note)
        try:
            await self.transcripts(principal).delete(session_key(session))
            await self._trees.unname(principal, session.id)
            await self._trees.release(principal, session.id, OWNER)
        finally:
            await self.ends(session.id, self.drop(principal, session.id))

    def transcripts(self, principal: str | None) -> TreeSessionStore:
        """Where what was said in a caller's sessions is kept."""
        return TreeSessionStore(self._trees, principal)

    def check_folder(self, folder: str) -> Path:
        """A folder in which Claude Code may work, as the system calls it. Raises `RefusedFolder`."""
        given = Path(folder)
        if not given.is_absolute() or "\0" in folder:
            raise RefusedFolder(f"The working directory must be an absolute path: {folder[:200]}")
        try:
            real = given.resolve(strict=True)
        except (OSError, RuntimeError):
            raise RefusedFolder(f"There is no such folder: {folder[:200]}") from None
        if not real.is_dir():
            raise RefusedFolder(f"This is not a folder: {folder[:200]}")
        if not any(real.is_relative_to(allowed) for allowed in self._folders):
            allowed = ", ".join(map(str, self._folders))
            raise RefusedFolder(f"Claude Code may not work in {folder[:200]}, but in: {allowed}")
        return real

    # --- for whoever runs Claude Code --------------------------------------------------------

    async def begin(
        self,
        principal: str | None,
        id: str,
        revision: int,
        *,
        permitted: Sequence[dict[str, Any]] = (),
        fresh: bool = False,
    ) -> ClaudeSession:
        """Have a session for oneself, with what was permitted for good since; a `fresh` one begins anew.

        Raises `SessionBusy`, or `SessionMoved` if it is another revision.
        """
        session = await self.load(principal, id)
        if session.note.revision != revision:
            raise SessionMoved(
                f"Session {session.name} has gone on meanwhile: this chat cannot go on with it"
            )
        self.check_folder(session.about.working_dir)
        note = session.note.permitting(permitted)
        if fresh and note.revision:
            note = replace(note, claude_id=str(uuid.uuid4()))  # Claude Code may remember the other one
        return await self._take(principal, session, note)

    async def _take(self, principal: str | None, session: ClaudeSession, note: SessionNote) -> ClaudeSession:
        await self._check_idle(session)
        self._running.add(session.id)
        try:
            return await self.change(principal, session, replace(note, worker=self._journal().worker))
        except Conflict:
            self._running.discard(session.id)
            raise SessionBusy(f"Session {session.name} was changed at the same time: try again") from None
        except BaseException:
            await self.ends(session.id, self.drop(principal, session.id))
            raise

    async def change(self, principal: str | None, session: ClaudeSession, note: SessionNote) -> ClaudeSession:
        """Write down how a session stands; all of it, or nothing. Raises `Conflict` if somebody else has."""
        written = msgspec.to_builtins(note)
        add = self._trees.add(principal, session.id, note=written, version=session.version)
        writing = asyncio.ensure_future(add)
        try:
            _, version = await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing})  # so that whoever lets go of the session sees what it came to
            raise
        return replace(session, note=note, version=version)

    async def end(self, principal: str | None, session: ClaudeSession, note: SessionNote) -> ClaudeSession:
        """Let go of a session, which has come to its next revision."""
        try:
            return await self.change(principal, session, replace(note, worker="", revision=note.revision + 1))
        finally:
            self._running.discard(session.id)

    async def ends(self, id: str, work: Coroutine[Any, Any, None]) -> None:
        """End the run of a session. This is not cut off, whatever happens to whoever waits for it."""
        task = self._ending[id] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._ending.pop(id, None))
        await asyncio.shield(task)

    async def drop(self, principal: str | None, id: str) -> None:
        """Let go of a session, however it stands, if one has it."""
        if id in self._running:
            with contextlib.suppress(MidcallError):  # then another one takes it from a worker that is gone
                session = _session(await self._trees.load(principal, id))
                if session.note.worker == self._journal().worker:
                    await self.end(principal, session, session.note)
            self._running.discard(id)

    async def _check_idle(self, session: ClaudeSession) -> None:
        """Raise `SessionBusy` if somebody runs it: this process, or another one that is alive."""
        worker, journal = session.note.worker, self._journal()
        elsewhere = worker and worker != journal.worker and await Channel(journal, KIND).post(worker, b"")
        if elsewhere or session.id in self._running:  # the latter last: nothing happens until it is taken
            raise SessionBusy(f"Claude Code is already running for session {session.name}")


def session_key(session: ClaudeSession) -> Any:
    """What the SDK calls a session."""
    from claude_agent_sdk import project_key_for_directory  # noqa: PLC0415  slow to import: only when needed

    project = project_key_for_directory(session.about.working_dir)
    return {"project_key": project, "session_id": session.note.claude_id}


def _newest(kept: Iterable[str]) -> list[str]:
    """As many of the last ones as there may be, each of them once."""
    found, left = list[str](), MOST_KEPT
    for one in reversed(dict.fromkeys(kept)):
        left -= _size(one)
        if left < 0:
            break
        found.insert(0, one)
    return found


def _size(text: str) -> int:
    """How many bytes a text has in a note."""
    return len(json.dumps(text, ensure_ascii=False).encode(errors="replace"))


def _session(tree: StoredTree) -> ClaudeSession:
    note = msgspec.convert(tree.note, SessionNote)
    return ClaudeSession(
        id=tree.id,
        name=tree.name or "",
        about=note.about,
        note=note,
        version=tree.version,
        created=tree.created,
        updated=tree.updated,
    )

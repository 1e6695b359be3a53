"""How Claude Code is started: through the SDK, with a supervisor beside it, and so many at once.

The SDK starts whatever program it is told to; here that is `supervisor`, which starts Claude Code and ends it
with all that it has started. What is special about one run comes from `run`.
"""

import asyncio
import contextlib
import importlib
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midcall.activations.claudecode import supervisor
from midcall.errors import MidcallError, RegistrationError

if TYPE_CHECKING:
    from claude_agent_sdk import ClaudeAgentOptions

    from midcall.activations.claudecode.run import ClaudeRun

log = logging.getLogger("midcall.claudecode")

UNAVAILABLE = (
    *("CronCreate", "CronDelete", "CronList", "EnterWorktree", "ExitWorktree", "ListAgents", "Monitor"),
    *("RemoteTrigger", "ScheduleWakeup", "SendMessage", "Workflow"),
)
"""Tools that need a process which stays."""

SDK = "claude_agent_sdk"
CONFIG = "CLAUDE_CONFIG_DIR"

LONGEST_LINE = 64 * 1024 * 1024
"""How many bytes a message of Claude Code may have."""


class NotInstalled(MidcallError):
    """Claude Code is not there."""

    code = "not_installed"


class Lifeline:
    """A pipe that a supervisor listens to: when it is cut, or this process dies, its run ends."""

    def __init__(self, folder: Path) -> None:
        self.path = tempfile.mktemp(prefix="run-", dir=folder)  # noqa: S306  in a folder of our own
        os.mkfifo(self.path, 0o600)
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    def cut(self) -> None:
        """End the run."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                Path(self.path).unlink()


class ClaudeLauncher:
    """How Claude Code is started, and how many of it there are at once."""

    def __init__(
        self,
        program: str | os.PathLike[str] | None,
        env: Mapping[str, str],
        most: int,
        setting_sources: Sequence[str],
        mcp_servers: Mapping[str, Any],
        max_budget_usd: float | None,
    ) -> None:
        if find_spec(SDK) is None:
            raise RegistrationError("claudecode needs its SDK: pip install 'midcall[claudecode]'")
        self._program = None if program is None else str(program)
        self._env = dict(env)
        self._setting_sources = list(setting_sources)
        self._mcp_servers = dict(mcp_servers)
        self._max_budget_usd = max_budget_usd
        self._folder: Path | None = None
        self.room = asyncio.Semaphore(most)
        """Whoever runs Claude Code has a place of it."""
        self.runs: set[asyncio.Task[None]] = set()
        """Those that are not over yet."""

    def lifeline(self) -> Lifeline:
        """One for a run."""
        return Lifeline(self._place())

    async def sdk(self) -> Any:
        """The SDK, which takes a second to load."""
        return await asyncio.to_thread(importlib.import_module, SDK)

    def program(self) -> str:
        """Where Claude Code is: as configured, in the SDK, or in the path. Raises `NotInstalled`."""
        if self._program is not None:
            found = shutil.which(self._program)
        else:
            bundled = Path(str(importlib.import_module(SDK).__file__)).parent / "_bundled" / "claude"
            found = str(bundled) if os.access(bundled, os.X_OK) else shutil.which("claude")
        if found is None:
            raise NotInstalled(f"Claude Code is not installed: there is no {self._program or 'claude'}")
        return str(Path(found).absolute())

    def options(self, sdk: Any, run: "ClaudeRun", lifeline: Lifeline) -> "ClaudeAgentOptions":
        """What the SDK is told for a run."""
        about, note, work = run.session.about, run.session.note, run.work
        permissions: dict[str, Any] = {
            "allow": list(note.rules),
            "additionalDirectories": list(note.folders),
            "defaultMode": "acceptEdits" if note.accept_edits else "default",
            "ask": list(work.asks),
        }
        env = {
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1",
            **self._env,
            supervisor.PROGRAM: self.program(),
            supervisor.LIFELINE: lifeline.path,
            supervisor.SERVER: str(os.getpid()),
            supervisor.PASSED: ",".join(self._env),
            supervisor.CONFIG: self._env.get(CONFIG, os.environ.get(CONFIG, "")),
        }
        if work.prompt is not None:
            env["CLAUDE_CODE_DROP_UNAVAILABLE_DEFERRED_TOOL"] = "1"
        prompt: dict[str, Any] = {"type": "preset", "preset": "claude_code"}
        if about.system_prompt:
            prompt["append"] = f"\n{about.system_prompt}"  # what begins with - could be taken for an option
        hook = sdk.HookMatcher(hooks=[run.before_tool], timeout=60, on_failure="block")
        options: ClaudeAgentOptions = sdk.ClaudeAgentOptions(
            cwd=about.working_dir,
            cli_path=str(self._place() / "claude"),
            env=env,
            model=about.model,
            system_prompt=prompt,
            settings=json.dumps({"permissions": permissions}, ensure_ascii=False),
            setting_sources=self._setting_sources,
            mcp_servers={**self._mcp_servers, **run.tools.config(sdk, run.use_hub)},
            strict_mcp_config=True,
            disallowed_tools=list(UNAVAILABLE),
            can_use_tool=run.may_use,
            hooks={"PreToolUse": [hook]},
            session_store=run.transcripts,
            session_store_flush="eager",
            resume=None if work.fresh else note.claude_id,
            session_id=note.claude_id if work.fresh else None,
            include_partial_messages=True,
            verbatim_prompts=True,
            max_buffer_size=LONGEST_LINE,
            max_budget_usd=self._max_budget_usd,
            stderr=lambda line: log.debug("claude: %s", line),
        )
        return options

    def _place(self) -> Path:
        """A folder of our own, with a program that starts the supervisor."""
        if self._folder is None or not _is_ours(self._folder / "claude"):
            self._folder = Path(tempfile.mkdtemp(prefix="midcall-claude-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            start = self._folder / "claude"
            command = f"exec {_quoted(sys.executable)} -I -S {_quoted(supervisor.__file__)}"
            start.write_text(f'#!/bin/sh\n{command} "$@"\n')
            start.chmod(0o700)
        return self._folder


def _is_ours(program: Path) -> bool:
    """Whether it is still the one that was made here: others may tidy up, and put theirs in its place."""
    try:
        folder = program.parent.lstat()
        return folder.st_uid == os.geteuid() and stat.S_ISDIR(folder.st_mode) and program.exists()
    except OSError:
        return False


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"

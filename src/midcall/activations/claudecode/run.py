"""One run of Claude Code: from a prompt, or from a decision about a tool, to the next question or the end.

A run never waits for a person. Claude Code decides whether it would ask for a permission only when it is
about to run a tool, and it can put a tool off only before that (the hook `PreToolUse` says *defer*: the
process ends, and the tool runs when the session is resumed). So a tool use goes through up to three runs:

    prompt      the model wants the tool; the hook defers it                         DeferredTool
    look        resumed: Claude Code runs the tool by its own rules and goes on,
                or asks for a permission: the process is killed before it gets one   PermissionAsked
    decision    resumed: it asks again, and gets the answer

Killed while it asks, Claude Code has not run the tool, so the session stands where it stood. Tools that never
ask, and so are not worth the first two runs, are `NEVER_ASKS` and `READS`.

Only one tool use can wait: of several that a model wants at once, the first that may have to ask is deferred,
and the others are refused, with words that have the model call them again. Subagents cannot be resumed; what
they would have to ask for is refused, too.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from midcall.activations.claudecode.events import (
    ClaudeEvent,
    ClaudeText,
    ClaudeThought,
    ToolGave,
    ToolUsed,
    cut,
    input_of,
    output_of,
)
from midcall.activations.claudecode.hub_tools import HubResult, HubTools
from midcall.activations.claudecode.permission import (
    Decision,
    PendingTool,
    PermissionAsked,
    exactly,
    kept_in_words,
    unshowable,
)
from midcall.activations.claudecode.process import LONGEST_LINE, ClaudeLauncher
from midcall.activations.claudecode.sessions import ClaudeSession
from midcall.activations.claudecode.transcripts import TreeSessionStore
from midcall.errors import MidcallError

if TYPE_CHECKING:
    from claude_agent_sdk import (
        HookContext,
        HookInput,
        HookJSONOutput,
        PermissionResult,
        ToolPermissionContext,
    )

log = logging.getLogger("midcall.claudecode")

ALONE = "Not run: a person can be asked about one tool at a time. If you still need it, call it again, alone."
SUBAGENT = "Not run: a subagent cannot ask a person. Say in your report what is needed, and why."
WENT_ON = "Not run: the person has gone on with something else."

NEVER_ASKS = frozenset(
    (
        *("Agent", "Task", "TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskStop", "TaskUpdate"),
        *("EnterPlanMode", "ListMcpResourcesTool", "ReportFindings", "TodoWrite", "ToolSearch"),
    )
)
READS: Mapping[str, str] = {"Read": "file_path", "Glob": "path", "Grep": "path", "LS": "path"}
"""Tools that do not ask if what they read is in the working directory, and which input says what that is."""

SILENCE = 120.0
"""Seconds in which a resumed session must have taken up the tool that waited."""

FROZEN = 3600.0
"""Seconds after which a program that says nothing is given up. A command may run for ten minutes."""

MOST_WAITING = 1000
"""How many events may wait to be taken."""

MOST_COST = 1e9
"""What a session is ever said to have cost: what is infinite could not be kept."""

PATIENCE = 20.0
"""Seconds in which a killed process has to be gone."""


class RunWork(Struct, frozen=True, omit_defaults=True):
    """What a run is to do."""

    prompt: str | None = None
    prompt_id: str = ""
    pending: PendingTool | None = None
    """The tool use that waits; with a prompt, it is refused first."""
    decision: Decision | None = None
    """What was decided about it; without one, Claude Code is to decide whether it asks."""
    again: bool = False
    """Whether a run with a decision about it was cut off, so that it may have been run."""
    result: HubResult | None = None
    """What it gave, if it is a method of the hub."""
    fresh: bool = False
    """Whether nothing was said in the session yet."""

    @property
    def asks(self) -> Sequence[str]:
        """The tool about which Claude Code has to ask, whatever its rules say: it gets an answer."""
        if self.pending is None or (self.decision is None and not self.again):
            return ()
        return (self.pending.tool,)


class DeferredTool(Struct, frozen=True, tag="deferred"):
    """A tool use is put off, which Claude Code might ask about."""

    pending: PendingTool


class HubCalled(Struct, frozen=True, tag="called"):
    """A method of the hub is to be called, and then Claude Code goes on."""

    pending: PendingTool


class TurnEnded(Struct, frozen=True, tag="ended"):
    """The turn has come to its end."""

    stopped: bool = False
    failure: str = ""
    """What has gone wrong, in words."""


class Spent(Struct, frozen=True):
    """What a run has used, and what the session has cost since it was made."""

    input_tokens: int = 0
    output_tokens: int = 0
    turns: int = 0
    session_cost: float = 0.0

    def plus(self, more: "Spent") -> "Spent":
        """With what came after it."""
        return Spent(
            self.input_tokens + more.input_tokens,
            self.output_tokens + more.output_tokens,
            self.turns + more.turns,
            more.session_cost,
        )


Outcome: TypeAlias = DeferredTool | PermissionAsked | HubCalled | TurnEnded


class ClaudeRun:
    """One run of Claude Code."""

    def __init__(
        self,
        launcher: ClaudeLauncher,
        session: ClaudeSession,
        transcripts: TreeSessionStore,
        tools: HubTools,
        work: RunWork,
    ) -> None:
        self.session = session
        self.transcripts = transcripts
        self.tools = tools
        self.work = work
        self.spent = Spent(session_cost=session.note.cost)
        self.asked_late: list[str] = []
        """Tools that asked though they were not deferred."""
        self._launcher = launcher
        self._lifeline = launcher.lifeline()
        self._events: asyncio.Queue[ClaudeEvent | None] = asyncio.Queue(MOST_WAITING)
        self._outcome: Outcome | None = None
        self.deferred: PendingTool | None = None
        """The tool use that was put off in this run."""
        self._seen: set[str] = set()
        """The tool uses that began in this run."""
        self._went_back = False
        """Whether it went on with one that did not."""
        self._settled = asyncio.Event()
        """Whether the tool use that waited is refused, so that the prompt can come."""
        self._silence: asyncio.TimerHandle | None = None
        self._goes_on = work.pending is None
        """Whether the tool use that waited is taken up."""
        self._over = asyncio.Event()
        self._answered = False
        """Whether the decision is given: it is for one tool use, and models may use the id of one again."""
        self._used = False
        """Whether the result of the hub is given."""
        self._closed = False
        """Whether nobody wants to hear of it any more."""
        self._streamed: set[str] = set()
        self._task = asyncio.create_task(self._run())
        launcher.runs.add(self._task)
        self._task.add_done_callback(launcher.runs.discard)

    async def next(self, pause: float | None) -> ClaudeEvent | Outcome | None:
        """What comes next; nothing if nothing does within a pause. The last is an outcome."""
        try:
            event = await asyncio.wait_for(self._events.get(), pause)
        except TimeoutError:
            return None
        if event is not None:
            return event
        await self.close()
        return self._outcome or TurnEnded(failure="Claude Code has ended without a word")

    async def close(self) -> None:
        """End it, if it has not ended; no process is left when this returns."""
        self._closed = True
        self._lifeline.cut()
        if self._events.full():
            self._events.get_nowait()  # so that whoever wants to add one goes on
        await asyncio.wait({self._task}, timeout=PATIENCE)

    # --- from Claude Code --------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            sdk = await self._launcher.sdk()
            options = self._launcher.options(sdk, self, self._lifeline)
            self._listen()
            async for message in sdk.query(prompt=self._prompts(), options=options):
                await self._take(sdk, message)
        except asyncio.CancelledError:
            if self._outcome is None:
                raise
        except MidcallError as error:
            self._outcome = self._outcome or TurnEnded(failure=str(error))
        except Exception as error:  # of the SDK: the caller is told
            if self._outcome is None:
                log.warning("Claude Code failed", exc_info=True)
                self._outcome = TurnEnded(failure=f"Claude Code failed: {cut(str(error), 2000)}")
        finally:
            self._stop_listening()
            self._lifeline.cut()
            await self._tell(None)

    def _listen(self) -> None:
        """Give up if nothing comes."""
        wait, failure = SILENCE, "Claude Code did not take up the tool use that waited"
        if self._goes_on:
            wait, failure = FROZEN, f"Claude Code has said nothing for {FROZEN / 60:g} minutes"
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(wait, self._end, TurnEnded(failure=failure))

    def _stop_listening(self) -> None:
        if self._silence is not None:
            self._silence.cancel()

    def _end(self, outcome: Outcome) -> None:
        """Kill the process: that is what it came to."""
        if self._outcome is None:
            self._outcome = outcome
        self._lifeline.cut()
        self._task.cancel()  # or the SDK would take it for a crash

    async def _prompts(self) -> AsyncIterator[dict[str, Any]]:
        """What Claude Code is told; its input stays open until the turn is over."""
        if self.work.prompt is not None:
            if self.work.pending is not None:
                await self._settled.wait()
            message = {"role": "user", "content": self.work.prompt}
            said = {"type": "user", "message": message, "parent_tool_use_id": None}
            yield {**said, "uuid": self.work.prompt_id} if self.work.prompt_id else said
        await self._over.wait()

    async def _take(self, sdk: Any, message: Any) -> None:
        self._stop_listening()  # whoever wants the events may take a while
        for event in self._events_of(sdk, message):
            await self._tell(event)
        if isinstance(message, sdk.SystemMessage) and message.data.get("state") == "running":
            self._goes_on = True
        elif isinstance(message, sdk.ResultMessage):
            self._take_result(message)
        elif isinstance(message, sdk.MirrorErrorMessage):
            self._end(TurnEnded(failure=f"The session could not be saved: {cut(message.error, 500)}"))
        self._listen()

    async def _tell(self, event: ClaudeEvent | None) -> None:
        if not self._closed:
            await self._events.put(event)

    def _events_of(self, sdk: Any, message: Any) -> Iterator[ClaudeEvent]:
        above = getattr(message, "parent_tool_use_id", None) and cut(message.parent_tool_use_id, 200)
        match message:
            case sdk.StreamEvent(event=event, parent_tool_use_id=None):
                yield from self._delta(event)
            case sdk.AssistantMessage(content=blocks):
                whole = above is None and message.message_id not in self._streamed and not message.error
                for block in blocks:
                    match block:
                        case sdk.ToolUseBlock(id=id, name=name, input=input):
                            self._seen.add(id)
                            yield ToolUsed(cut(name, 200), cut(id, 200), input_of(input), above)
                        case sdk.TextBlock(text=text) if whole:
                            yield ClaudeText(cut(text, LONGEST_LINE))
                        case sdk.ThinkingBlock(thinking=text) if whole and text:
                            yield ClaudeThought(cut(text, LONGEST_LINE))
            case sdk.UserMessage(content=[*blocks]):
                for block in blocks:
                    if isinstance(block, sdk.ToolResultBlock):
                        self._went_back |= block.tool_use_id not in self._seen
                        if self.deferred is not None and block.tool_use_id == self.deferred.id:
                            self.deferred = None  # Claude Code did not put it off
                        output = output_of(block.content)
                        yield ToolGave(cut(block.tool_use_id, 200), output, bool(block.is_error), above)

    def _delta(self, event: Any) -> Iterator[ClaudeEvent]:
        match event:
            case {"type": "message_start", "message": {"id": str(id)}}:
                self._streamed.add(id)
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}} if text:
                yield ClaudeText(cut(text, LONGEST_LINE))
            case {
                "type": "content_block_delta",
                "delta": {"type": "thinking_delta", "thinking": str(text)},
            } if text:
                yield ClaudeThought(cut(text, LONGEST_LINE))

    def _take_result(self, result: Any) -> None:
        usage = result.usage or {}
        cost = max(self.spent.session_cost, min(float(result.total_cost_usd or 0.0), MOST_COST))
        given, said = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
        self.spent = self.spent.plus(Spent(given, said, _count(result.num_turns), cost))
        if self.work.prompt is not None and not self._is_about_prompt(result):
            self._settled.set()  # what waited is refused: now comes the prompt
            return
        deferred = result.deferred_tool_use
        if self._outcome is not None:
            pass
        elif deferred is not None:
            self._outcome = DeferredTool(PendingTool(deferred.id, deferred.name, deferred.input))
        elif (result.terminal_reason or "").startswith("aborted"):
            self._outcome = TurnEnded(stopped=True)
        elif result.is_error:
            self._outcome = TurnEnded(failure=_failure(result))
        else:
            self._outcome = TurnEnded()
        self._over.set()

    def _is_about_prompt(self, result: Any) -> bool:
        """Whether a result is that of the prompt, and not of a tool use that waited."""
        if self._settled.is_set() or not (self.work.pending is not None or self._went_back):
            return True
        return self.work.prompt_id in (result.user_message_uuid, *(result.user_message_uuids or ()))

    # --- about tools -------------------------------------------------------------------------

    async def before_tool(
        self, given: "HookInput", tool_use_id: str | None, context: "HookContext"
    ) -> "HookJSONOutput":
        """Put off a tool use that Claude Code might ask about. (One that was put off may not come here.)"""
        about: Mapping[str, Any] = given
        name, input, id = about["tool_name"], about["tool_input"], about["tool_use_id"]
        waits = self.work.pending is not None and id == self.work.pending.id
        if waits or about.get("agent_id") or self._never_asks(name, input):
            return {}
        if self.deferred is not None:
            return _decided("deny", ALONE)
        self.deferred = PendingTool(id, name, input)
        return _decided("defer")

    def _never_asks(self, tool: str, input: Mapping[str, Any]) -> bool:
        if tool in (*self.session.note.defer, *self.asked_late, *self.work.asks):
            return False
        if tool not in READS:
            return tool in NEVER_ASKS
        here = Path(self.session.about.working_dir)
        path = input.get(READS[tool]) or ""
        try:
            return isinstance(path, str) and (here / path).resolve().is_relative_to(here)
        except (OSError, RuntimeError, ValueError):
            return False

    async def may_use(
        self, tool: str, input: dict[str, Any], context: "ToolPermissionContext"
    ) -> "PermissionResult":
        """Claude Code asks for a permission."""
        sdk: Any = sys.modules["claude_agent_sdk"]
        pending, decision = self.work.pending, self.work.decision
        result: PermissionResult
        waits = pending is not None and (context.tool_use_id, tool) == (pending.id, pending.tool)
        if pending is None or not waits or self._answered:
            if context.agent_id is None:
                self.deferred = None
                self.asked_late.append(tool)
            result = sdk.PermissionResultDeny(message=SUBAGENT if context.agent_id else ALONE)
            return result
        kept = exactly(tool, input)["digest"] in self.session.note.exactly and not self.work.again
        if decision is None and kept:
            decision = Decision(allow=True, input=input)
        if decision is None:
            asked = self._asked(PendingTool(pending.id, tool, input), context)
            if problem := unshowable(asked):
                decision = Decision(allow=False, message=problem)
            else:
                self._end(asked)
                await asyncio.Event().wait()  # until the process is gone
                raise AssertionError
        self._answered = True
        if decision.allow:  # what was shown, whatever it is now
            given = pending.input if decision.input is None else decision.input
            result = sdk.PermissionResultAllow(updated_input=given)
        else:
            result = sdk.PermissionResultDeny(message=decision.message, interrupt=decision.stop)
        return result

    async def use_hub(self, tool: str, input: dict[str, Any]) -> HubResult:
        """Claude Code runs a tool of the hub: what it gave, or the chat is to call it first."""
        pending, result = self.work.pending, self.work.result
        if pending is None or pending.tool != tool or self._used:
            return HubResult(ALONE, failed=True)
        if result is None:
            self._end(HubCalled(PendingTool(pending.id, tool, input)))
            await asyncio.Event().wait()  # until the process is gone
            raise AssertionError
        self._used = True
        return result

    def _asked(self, pending: PendingTool, context: "ToolPermissionContext") -> PermissionAsked:
        suggestions = [one.to_dict() for one in context.suggestions]
        return PermissionAsked(
            pending,
            reason=cut(context.decision_reason or "", 1000),
            description=cut(context.description or "", 1000),
            path=cut(context.blocked_path or "", 1000),
            always=[
                exactly(pending.tool, pending.input),
                *(one for one in suggestions if kept_in_words(one)),
            ],
            again=self.work.again,
        )


def _decided(decision: Literal["defer", "deny"], reason: str = "") -> "HookJSONOutput":
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": decision,
            "permissionDecisionReason": reason,
        }
    }


def _failure(result: Any) -> str:
    said = result.result or "; ".join(result.errors or []) or result.subtype
    return cut(str(said), 2000)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0

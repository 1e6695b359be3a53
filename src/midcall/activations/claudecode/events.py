"""What a chat with Claude Code tells, and how much of it: large inputs and outputs are cut, and say so.

All of it is in the session's tree, uncut.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

MOST_OUTPUT = 16 * 1024
"""How many characters of a tool's output an event has."""

MOST_INPUT = 4 * 1024
"""How many characters of each text in a tool's input."""

MOST_ITEMS = 100
MOST_DEPTH = 8
"""How many elements, and how many levels, of a tool's input."""


class ChatStarted(Struct, tag_field="type", tag="start"):
    """The chat begins, in this session."""

    id: str
    session_name: str


class ClaudeText(Struct, tag_field="type", tag="content"):
    """Claude says something."""

    text: str


class ClaudeThought(Struct, tag_field="type", tag="thinking"):
    """Claude thinks."""

    thinking: str


class ToolUsed(Struct, tag_field="type", tag="tool_use", omit_defaults=True):
    """Claude wants a tool; whether it is run is not decided yet."""

    tool_name: str
    tool_use_id: str
    input: Any
    parent_tool_use_id: str | None = None
    """The tool use that started the subagent which wants it."""


class ToolGave(Struct, tag_field="type", tag="tool_result", omit_defaults=True):
    """What came of a tool."""

    tool_use_id: str
    output: str
    is_error: bool = False
    parent_tool_use_id: str | None = None


class ClaudeUsage(Struct):
    """What a turn has cost. Costs are what Claude Code makes of tokens, in US dollars."""

    input_tokens: int
    output_tokens: int
    cost_usd: float
    session_cost_usd: float
    num_turns: int


class ChatCompleted(Struct, tag_field="type", tag="complete"):
    """The turn has ended."""

    claude_session_id: str
    usage: ClaudeUsage
    stopped: bool = False
    """Whether the person has stopped it."""


class ChatFailed(Struct, tag_field="type", tag="error"):
    """The turn has failed, or nobody knows how it ended."""

    message: str


ClaudeEvent: TypeAlias = (
    ChatStarted | ClaudeText | ClaudeThought | ToolUsed | ToolGave | ChatCompleted | ChatFailed
)


def joined(events: list[ClaudeEvent], event: ClaudeEvent) -> None:
    """Add an event; text that goes on becomes one event with what was before it."""
    match events[-1:], event:
        case [ClaudeText(before)], ClaudeText(text):
            events[-1] = ClaudeText(before + text)
        case [ClaudeThought(before)], ClaudeThought(text):
            events[-1] = ClaudeThought(before + text)
        case _:
            events.append(event)


def size_of(event: ClaudeEvent) -> int:
    """About how many bytes an event has."""
    return len(msgspec.json.encode(event))


def output_of(content: Any) -> str:
    """The output of a tool as text, cut if it is long."""
    match content:
        case None:
            return ""
        case str():
            return cut(content, MOST_OUTPUT)
        case list():
            return cut("\n".join(_block(block) for block in content), MOST_OUTPUT)
    return cut(str(content), MOST_OUTPUT)


def _block(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": kind}:
            return f"({kind})"
    return ""


def input_of(value: Any, depth: int = 0) -> Any:
    """A tool's input, with long texts cut."""
    match value:
        case str():
            return cut(value, MOST_INPUT)
        case Mapping() | list() if depth >= MOST_DEPTH:
            return "..."
        case Mapping():
            shown = {
                cut(str(name), 100): input_of(one, depth + 1)
                for name, one in list(value.items())[:MOST_ITEMS]
            }
            return shown if len(value) <= MOST_ITEMS else {**shown, "...": f"{len(value) - MOST_ITEMS} more"}
        case list():
            listed = [input_of(one, depth + 1) for one in value[:MOST_ITEMS]]
            return listed if len(value) <= MOST_ITEMS else [*listed, f"... {len(value) - MOST_ITEMS} more"]
    return value


def cut(text: str, most: int) -> str:
    """Text without what JSON cannot carry, and with a mark where it is cut."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} characters more)"


def whole(value: Any) -> Any:
    """JSON without what it cannot carry, uncut."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))

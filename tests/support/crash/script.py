"""Script: a model whose answers follow from what it is told, so that a test can work them out again.

A message of the person ends with a plan: for each answer of the model the tools that it calls, with their
arguments. After the last of these it tells what they gave.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from crash.ticks import tick
from midcall.models.base import Message, ModelEvent, ModelRequest, Stopped, TextPart, ToolCall, Usage


class Script:
    """The model. It has no state, and counts its calls anew each time."""

    name = "script"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        parts, calls = answer_to(request.messages)
        for part in parts:
            tick()
            yield TextPart(part)
        for number, (tool, arguments) in enumerate(calls, 1):
            tick()
            name = "machines__wizard" if tool == "machine" else f"wizard__{tool}"
            yield ToolCall(f"call_{number}", name, json.dumps(arguments))
        yield Stopped("stop", Usage(10, 5))

    async def close(self) -> None:
        """Nothing to do."""


def answer_to(messages: Sequence[Message]) -> tuple[list[str], list[tuple[str, dict[str, Any]]]]:
    """The next answer: pieces of text, and calls."""
    last = max(at for at, message in enumerate(messages) if message.role == "user")
    label, _, plan = messages[last].content.rpartition("\n\n")[2].partition(" plan ")
    rounds = json.loads(plan)
    since = messages[last + 1 :]
    number = sum(message.role == "assistant" for message in since)
    if number < len(rounds):
        return [f"{label}: ", "I call ", ", ".join(tool for tool, _ in rounds[number])], rounds[number]
    given = [message.content for message in since if message.role == "tool"]
    marks = [hashlib.sha256(content.encode()).hexdigest()[:8] for content in given]
    return [f"{label}: ", "they gave", *(f" {mark}" for mark in marks)], []

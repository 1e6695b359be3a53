"""Scripted: no model at all, but rules that answer like one. For demos and tests, and named as such wherever
it shows.

A rule looks for a pattern in what the person said, and calls a tool with what it found; what the tool gave is
then told in the rule's own words. Where no rule fits, it says what it can do.
"""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from midcall.models.base import Message, ModelEvent, ModelRequest, Stopped, TextPart, ToolCall, Usage

Tell = Callable[[str], str]
"""Makes of a tool's result what the person is told."""


MAX_PHRASE = 1000
"""How much of what a person says is held against a rule: a pattern may take long for a long text."""


class Rule(Struct, frozen=True):
    """What to do when the person says something."""

    pattern: str
    """A regular expression; its named groups are the arguments of the tool."""
    tool: str
    """The name of the tool, or how it ends."""
    saying: str = ""
    """What is said before the tool is called."""
    defaults: Mapping[str, Any] = {}
    """Arguments that the pattern did not find."""
    tell: Tell | None = None


class Scripted:
    """Answers by rules."""

    scripted = True

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        *,
        otherwise: str = "",
        sampled: str = "",
        pace: float = 0.0,
        name: str = "scripted",
    ) -> None:
        """`otherwise` is said where no rule fits, and `sampled` to a tool that asks the model.

        `pace` is how many seconds each word takes.
        """
        self.name = name
        self._rules = tuple(rules)
        self._otherwise = otherwise
        self._sampled = sampled
        self._pace = pace

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        text, call = self._answer(request)
        words = re.findall(r"\S+\s*|\s+", text)
        for word in words:
            if self._pace:
                await asyncio.sleep(self._pace)
            yield TextPart(word)
        if call is not None:
            yield call
        said = sum(len(message.content.split()) for message in request.messages)
        yield Stopped("tool_calls" if call is not None else "stop", Usage(said, len(words)))

    async def close(self) -> None:
        """Nothing is open."""

    def _answer(self, request: ModelRequest) -> tuple[str, ToolCall | None]:
        last = request.messages[-1] if request.messages else Message("user")
        if last.role == "tool":
            return self._told(request, last), None
        for rule in self._rules:
            found = re.search(rule.pattern, last.content[:MAX_PHRASE], re.IGNORECASE)
            tool = next((tool.name for tool in request.tools if tool.name.endswith(rule.tool)), None)
            if found is not None and tool is not None:
                given = {key: value.strip() for key, value in found.groupdict().items() if value}
                arguments = json.dumps({**rule.defaults, **given}, ensure_ascii=False)
                return rule.saying, ToolCall(f"call_{uuid.uuid4().hex[:12]}", tool, arguments)
        if not request.tools and last.role == "user":  # a tool samples: there is nothing to call
            return self._sampled or f"(A scripted answer to: {last.content})", None
        return self._otherwise or self._abilities(request), None

    def _told(self, request: ModelRequest, result: Message) -> str:
        made = [call for message in request.messages for call in message.tool_calls]
        call = next((one for one in made if one.id == result.tool_call_id), None)
        if result.is_error:
            return f"That did not work out. {result.content.removeprefix('Error: ')}"
        for rule in self._rules:
            if call is not None and call.name.endswith(rule.tool) and rule.tell is not None:
                return rule.tell(result.content)
        return result.content

    def _abilities(self, request: ModelRequest) -> str:
        names = ", ".join(f"`{tool.name}`" for tool in request.tools)
        return f"I am a script, not a model, and I only know a few phrases. My tools: {names}."

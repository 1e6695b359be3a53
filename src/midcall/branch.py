"""Branch: a conversation of a tool with the caller's model, beside the one that called the tool.

Each turn is one question to the model with all that was said before, so a branch is as durable as any other
question: a call that is run again gets the same replies, and goes on where it stood. Branches may open
branches of their own, down to a depth; all of them together may cost so many tokens.

Knows only how to ask (`sample`), and nothing of calls.
"""

import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from midcall.errors import BranchLimit, WrongType
from midcall.questions import Sampled, read_sample

T = TypeVar("T")

CHARACTERS = 4
"""Of a text, to one token, where the client does not tell what an answer has cost."""

Sample = Callable[..., Awaitable[tuple[Sampled | None, Any]]]
"""Asks the model: messages, the type of the answer, `system`, `max_tokens`, `temperature`.

Gives what it said, and the data in it, or the `WrongType` that they are; or nothing, and a fallback.
"""


class Branch:
    """A conversation with the model: `async with ask.branch() as branch: reply = await branch.say("...")`."""

    def __init__(
        self,
        sample: Sample,
        system: str | None = None,
        max_depth: int = 3,
        max_tokens: int | None = None,
        outer: "Branch | None" = None,
        *,
        inherit: bool = True,
    ) -> None:
        self._sample = sample
        self._system = system
        self._max_depth = max_depth
        self._max_tokens = math.inf if max_tokens is None else max_tokens
        self._outer = outer
        self._messages: list[dict[str, Any]] = list(outer.messages) if outer is not None and inherit else []
        self._closed = False
        self.depth: int = 1 if outer is None else outer.depth + 1
        """How deep it is: 1 for a branch of the tool itself."""
        self.spent = 0
        """What it has cost so far, in tokens, with the branches in it."""
        if self.depth > max_depth:
            raise BranchLimit(f"A branch may be {max_depth} deep at most")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """All that was said, as MCP has messages."""
        return tuple(self._messages)

    @property
    def left(self) -> float:
        """The tokens that are left, for this branch and those around it."""
        own = self._max_tokens - self.spent
        return own if self._outer is None else min(own, self._outer.left)

    @overload
    async def say(
        self,
        text: str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> Sampled: ...
    @overload
    async def say(
        self,
        text: str,
        *,
        answer: type[T],
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> T: ...
    async def say(
        self,
        text: str,
        *,
        answer: type[Any] | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> Any:
        """Say something, and get the reply; with `answer`, the data in it.

        Raises `BranchLimit` if no tokens are left, and what `ask.sample` raises. What brought no reply, or
        none that fits, was not said; the latter has its cost all the same.
        """
        if self._closed:
            raise RuntimeError("This branch is closed")
        if self.left <= 0:
            raise BranchLimit("The branch has used up its tokens")
        asked = [*self._messages, {"role": "user", "content": {"type": "text", "text": text}}]
        limits = [limit for limit in (max_tokens, self.left) if limit is not None and limit != math.inf]
        said, data = await self._sample(
            asked,
            answer,
            system=self._system,
            max_tokens=int(min(limits)) if limits else None,
            temperature=temperature,
        )
        if said is None:
            return data  # nobody was asked
        self._spend(said.tokens if said.tokens is not None else _estimated(asked, said))
        if isinstance(data, WrongType):
            raise data
        self._messages = [*asked, said.message]
        return said if answer is None else data

    def branch(
        self, *, system: str | None = None, max_tokens: int | None = None, inherit: bool = True
    ) -> "Branch":
        """A branch of this one. With `inherit` it begins with what was said here; what is said there stays
        there. What it costs counts here too. Raises `BranchLimit` if that is too deep."""
        return Branch(
            self._sample, system or self._system, self._max_depth, max_tokens, self, inherit=inherit
        )

    def _spend(self, tokens: int) -> None:
        self.spent += tokens
        if self._outer is not None:
            self._outer._spend(tokens)


def kept(
    read: Callable[[dict[str, Any]], tuple[Sampled, Any]],
) -> Callable[[dict[str, Any]], tuple[Sampled, Any]]:
    """Reads what a model said with its data; where these do not fit, with the error in their place."""

    def read_all(value: dict[str, Any]) -> tuple[Sampled, Any]:
        try:
            return read(value)
        except WrongType as error:
            return read_sample(value), error

    return read_all


def _estimated(messages: list[dict[str, Any]], said: Sampled) -> int:
    size = len(said.text)
    for message in messages:
        content = message["content"]
        blocks = content if isinstance(content, list) else [content]
        size += sum(len(str(block.get("text", ""))) for block in blocks)
    return size // CHARACTERS + 1

"""A model for tests that says what it is told to, and keeps what it was asked."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from midcall.models.base import ModelError, ModelEvent, ModelRequest, Stopped, TextPart

Reply = Callable[[ModelRequest], Any]


class Spoken:
    """Says one after the other; what is no text as JSON, what is callable with what it was asked."""

    scripted = True
    name = "spoken"

    def __init__(self, *said: Any) -> None:
        self._said = list(said)
        self.asked: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked.append(request)
        said = self._said[0] if len(self._said) == 1 else self._said.pop(0)
        if callable(said):
            said = said(request)
        if isinstance(said, ModelError):
            raise said
        yield TextPart(said if isinstance(said, str) else json.dumps(said))
        yield Stopped()

    async def close(self) -> None:
        """Nothing is open."""

"""Tool loop: a model answers a question, and calls tools in rounds until it can.

Try it:

    midcall fsm run examples/tool_loop.py:hub loop '{"question": "How long is the poem, and what is 6 * 7?"}'
    midcall fsm draw examples/tool_loop.py:hub loop --as mmd

A script plays the model. `MIDCALL_MODEL=ollama:llama3.2`, or any other, uses a real one.
"""

import json
from collections.abc import AsyncIterator

from midcall import Hub, ToolError, method
from midcall.models import ModelEvent, ModelRequest, Stopped, TextPart, choose_model

NOTES = {"poem": "Roses are red", "list": "tea, milk"}


class Desk:
    """What the model can use."""

    namespace = "desk"

    @method
    async def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers."""
        return a * b

    @method
    async def read(self, name: str) -> str:
        """Read a note."""
        if name not in NOTES:
            raise ToolError(f"There is no note {name!r}, only {', '.join(NOTES)}")
        return NOTES[name]


class Script:
    """In the place of a model: three rounds, and what it was told in the last one is the answer."""

    name = "script"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield TextPart(json.dumps(self._event([json.loads(one.content) for one in request.messages])))
        yield Stopped()

    def _event(self, events: list[dict[str, object]]) -> dict[str, object]:
        rounds = sum("tool_results" in one for one in events)
        if rounds == 0:
            read = {"id": "1", "name": "desk.read", "arguments": {"name": "pome"}}
            multiply = {"id": "2", "name": "desk.multiply", "arguments": {"a": 6, "b": 7}}
            return {"id": ["llm", "servicing"], "tool_calls": [read, multiply]}
        if rounds == 1:  # one of them has failed, and the error says what there is
            read = {"id": "3", "name": "desk.read", "arguments": {"name": "poem"}}
            return {"id": ["llm", "servicing"], "tool_calls": [read]}
        (read,) = events[-1]["tool_results"]
        return {"id": ["llm", "end"], "answer": f"{len(read['result'])} letters, and 42."}

    async def close(self) -> None:
        """Nothing is open."""


LOOP = {
    "id": "loop",
    "description": "Answers a question with the help of tools.",
    "prompts": ["Use a tool where you can. When you know the answer, give it."],
    "schemas": {
        "question": {
            "type": "object",
            "properties": {"question": {"type": "string"}},
            "required": ["question"],
        },
        "calls": {
            "type": "object",
            "properties": {"tool_calls": {"type": "array"}},
            "required": ["tool_calls"],
        },
        "results": {
            "type": "object",
            "properties": {"tool_results": {"type": "array"}},
            "required": ["tool_results"],
        },
        "answer": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    },
    "states": [
        {"id": "llm", "action": "model"},
        {"id": "servicing", "action": "tools", "config": {"tools": ["desk.*"], "timeout": 30}},
    ],
    "transitions": [
        {"id": ["start", "llm"], "schema": "question"},
        {"id": ["llm", "servicing"], "label": "call tools", "schema": "calls"},
        {"id": ["servicing", "llm"], "schema": "results"},
        {"id": ["llm", "end"], "label": "answer", "schema": "answer"},
    ],
}

hub = Hub("office").register(Desk()).register_machine(LOOP, model=choose_model() or Script())

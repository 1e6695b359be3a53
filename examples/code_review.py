"""Code review: reviewers look at a change at the same time, and a chair decides what becomes of it.

Try it, and say what the author has changed:

    midcall fsm run examples/code_review.py:hub review '{"code": "eval(input())"}'
    midcall fsm draw examples/code_review.py:hub review --as mmd

A script plays the models. `MIDCALL_MODEL=ollama:llama3.2`, or any other, uses a real one.
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

from msgspec import Struct

from midcall import Hub, method
from midcall.fsm import MachineBuilder
from midcall.models import ModelEvent, ModelRequest, Stopped, TextPart, choose_model


class Change(Struct):
    """What is to be reviewed."""

    code: str


class Comments(Struct):
    """What has to change."""

    comments: list[str]


class Verdict(Struct):
    """What became of it."""

    verdict: Literal["approved", "rejected"]
    summary: str


class Lint:
    """What needs no model."""

    namespace = "lint"

    @method
    async def check(self, code: str) -> list[str]:
        """Find long lines."""
        lines = enumerate(code.splitlines(), 1)
        return [f"line {n} is longer than 40 characters" for n, line in lines if len(line) > 40]


class Script:
    """In the place of the models: knows two faults, and approves what has none."""

    name = "script"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        events = [json.loads(one.content) for one in request.messages]
        code = next(one["code"] for one in reversed(events) if "code" in one)
        said: Any = self._chair(events[-1])
        if "security" in str(request.system):
            said = ["eval runs whatever it is given"] if "eval(" in code else []
        elif "style" in str(request.system):
            said = ["say what it is for"] if "#" not in code else []
        yield TextPart(json.dumps(said))
        yield Stopped()

    def _chair(self, event: dict[str, Any]) -> dict[str, Any]:
        results = event.get("results", {})
        comments = [
            f"{name}: {told}" for name, one in results.items() for told in one.get("value", ["no review"])
        ]
        if comments:
            return {"id": ["chair", "author"], "comments": comments}
        return {"id": ["chair", "end"], "verdict": "approved", "summary": "Nobody has found a fault."}

    async def close(self) -> None:
        """Nothing is open."""


def reviewer(what: str) -> dict[str, Any]:
    return {
        "action": "model",
        "prompts": [f"You review the {what} of the code. Answer with a JSON list of faults."],
    }


review = (
    MachineBuilder("review", "Reviews a change of code.")
    .parallel(
        "reviewers",
        {
            "style": reviewer("style"),
            "security": reviewer("security"),
            "lint": {"action": "method", "config": {"method": "lint.check"}},
        },
        timeout=120,
    )
    .model("chair", prompts=["You are the chair. Approve what has no fault that counts."])
    .ask("author", "Please change the code: {comments}", description="The author changes the code")
    .to("start", "reviewers", Change)
    .to("reviewers", "chair")
    .to("chair", "author", Comments, label="has to change")
    .to("chair", "end", Verdict, label="decided")
    .to("author", "reviewers", Change)
)

hub = Hub("office").register(Lint()).register_machine(review, model=choose_model() or Script())

"""A method of the hub, its own or a mounted server's, called as a part of another call."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Container
from typing import Any

from midcall import steps
from midcall.call import TURN, Call
from midcall.client.rounds import error_of
from midcall.client.tool_call import tool_result
from midcall.content import Passed
from midcall.errors import NotSupported, ToolError, TooLong
from midcall.hub import Hub
from midcall.items import to_builtins, to_json
from midcall.middleware import GuardedMethod, collect
from midcall.registry import Registry, Resolved

MOST_COLLECTED = 16 * 1024 * 1024
"""How many bytes a stream may have, as JSON, where it is collected."""


async def call_within(call: Call, hub: Registry, found: Resolved, given: Any, scopes: Container[str]) -> Any:
    """Call a method as a part of a call, and give its result as plain JSON values; of a stream, a list.

    It passes the middleware of `hub`. `scopes` are those that whoever makes the call is known to have. Raises
    `NotAllowed` if the method needs others, `NotSupported` if only a person may answer it and a model would,
    `InvalidArguments`, what the method raises, and `ToolError` if it wants to end the process, or gives too
    much.
    """
    if call.model_answers and found.method.extras.get("person_only"):
        raise NotSupported(f"{found.name} asks a person, and here a model would answer")
    invoke = found.method.within(scopes, found.name)
    encoded = to_json(given)
    uses = hub.middleware_of(found) if isinstance(hub, Hub) and hub.has_middleware else None
    guarded = None
    if uses is not None and uses != ((), ()):
        guarded = GuardedMethod(found.method, found.name, uses, encoded, invoke)
    else:
        arguments = found.method.read_arguments(encoded, found.name)

    async def run() -> Any:
        with steps.Contained(call):
            if guarded is None:
                body = invoke(call, arguments)
            else:
                body = collect(guarded, call) if guarded.streaming else guarded.run(call, call.stream)
            return await _collected(found.name, body) if found.method.streaming else _value(await body)

    trace = call.own_trace
    if trace.kept and found.method.interactive:
        return await steps.once(
            trace, f"call of {found.name} ({hashlib.sha256(encoded).hexdigest()[:12]})", run
        )
    run.__qualname__ = f"call of {found.name}"
    return await steps.run(trace, run, (), {}, retry_safe=False)


async def _collected(name: str, body: AsyncGenerator[Any]) -> list[Any]:
    """All that a stream gives. Raises `ToolError` if that is too much; others have their turns meanwhile."""
    found: list[Any] = []
    size = 0
    async with contextlib.aclosing(body) as contents:
        async for content in contents:
            size += len(to_json(content)) + 1
            if size > MOST_COLLECTED:
                raise ToolError(
                    f"{name} returned more than {MOST_COLLECTED // 1024**2} MB", code=TooLong.code
                )
            found.append(to_builtins(content))
            if len(found) % TURN == 0:
                await asyncio.sleep(0)
    return found


def _value(result: Any) -> Any:
    """A result as plain values. Raises what another server says went wrong."""
    if not isinstance(result, Passed):
        return to_builtins(result)
    if result.error is not None:
        raise error_of(result.error)
    told = tool_result(to_builtins(result.result))
    has_text_only = all(block.get("type") == "text" for block in told.content)
    return told.value if has_text_only or told.structured is not None else told.content

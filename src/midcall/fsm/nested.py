"""Calls within a call: a method of the hub, run as a part of the call that needs it.

Its steps and its questions are those of that call. What it came to is written in the call's journal, so that
a method which has ended is not run again when the call goes on from there.
"""

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Container
from typing import Any

import msgspec

from midcall import steps
from midcall.call import Call
from midcall.content import Passed
from midcall.errors import Diverged, JournalError, MidcallError, NotAllowed, ToolError
from midcall.invocation import error_from_code
from midcall.items import to_builtins, to_json
from midcall.mcp.results import text_of
from midcall.registry import Resolved
from midcall.replay import Entry, Trace


async def call_within(call: Call, found: Resolved, arguments: bytes, scopes: Container[str]) -> Any:
    """Call a method as a part of a call, and give its result as plain JSON values; of a stream, a list.

    `scopes` are those that whoever makes the call is known to have. Raises `NotAllowed` if the method needs
    others, `InvalidArguments`, and what the method raises.
    """
    needed = found.method.extras.get("scopes", ())
    if missing := [scope for scope in needed if scope not in scopes]:
        raise NotAllowed(found.name, missing, needed)
    read = found.method.read_arguments(arguments, found.name)
    trace = trace_of(call)
    if not trace.kept or not found.method.interactive:

        async def run() -> Any:
            return await _run(call, found, read)

        run.__qualname__ = f"call of {found.name}"
        return await steps.run(trace, run, (), {}, retry_safe=False)
    what = f"call of {found.name} ({hashlib.sha256(arguments).hexdigest()[:12]})"
    return await once(trace, what, lambda: _run(call, found, read))


async def once(trace: Trace, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do something that has steps and questions of its own; give back the same if the call is run again.

    The difference to a step: while it is under way it is run again from its own steps, not refused.
    """
    if not trace.kept:
        return to_builtins(await work())
    place = trace.place()
    before = trace.recall(place, what)
    if before is not None and before.state == "failed":
        failure = msgspec.json.decode(before.value)
        raise error_from_code(failure["code"], failure["message"], recoverable=False)
    if before is not None and before.state == "done":
        return msgspec.json.decode(before.value)
    try:
        with trace.nested(place):
            value = to_builtins(await work())
    except Exception as error:
        if trace.diverged is None and not isinstance(error, Diverged | JournalError):
            code = error.code if isinstance(error, MidcallError) else "tool_error"
            await trace.keep(Entry(place, what, "failed", to_json({"code": code, "message": said(error)})))
        raise
    await trace.keep(Entry(place, what, "done", to_json(value)))
    return value


def said(error: BaseException) -> str:
    """An error, in words for a model or a person."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  it was made again from what could be kept of it
        return type(error).__name__


def trace_of(call: Call) -> Trace:
    """Where a call writes down what it does."""
    if call.trace is None:
        call.trace = Trace(call.id)
    return call.trace


async def _run(call: Call, found: Resolved, arguments: Any) -> Any:
    body = found.method.invoke(call, arguments)
    if not found.method.streaming:
        return _value(await body)
    async with contextlib.aclosing(body) as contents:
        return [to_builtins(content) async for content in contents]


def _value(result: Any) -> Any:
    """A result as plain values. Raises `ToolError` if it is the failure of another server."""
    if not isinstance(result, Passed):
        return to_builtins(result)
    if result.error is not None:
        raise ToolError(result.error.message)
    said = to_builtins(result.result)
    if said.get("isError"):
        raise ToolError(text_of(said.get("content")) or "The tool failed")
    if "structuredContent" in said:
        return said["structuredContent"]
    content = said.get("content")
    texts_only = isinstance(content, list) and all(
        isinstance(one, dict) and one.get("type") == "text" for one in content
    )
    return text_of(content) if texts_only else content

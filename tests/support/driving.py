"""What the tests of the core share: running a coroutine, and looking for what it left behind."""

import asyncio
import gc
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from midcall import Hub, Item, Request

LIMIT = 100.0
"""Seconds for anything to happen: only what hangs takes so long, also on a machine that has other things to do.

What is to happen at once is told from what would come later by a time that is longer still."""


def drive(main: Coroutine[Any, Any, Any], limit: float = LIMIT) -> Any:
    """Run to the end, where no error may be lost: not even one that only the event loop hears of."""
    unseen: list[dict[str, Any]] = []

    async def watched() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        async with asyncio.timeout(limit):
            return await main

    result = asyncio.run(watched())
    gc.collect()  # a future with an unread error complains when it goes
    assert_no_errors(unseen)
    return result


def assert_no_errors(unseen: list[dict[str, Any]]) -> None:
    """Nothing is among what only an event loop heard of."""
    assert not unseen, "\n".join(map(_shown, unseen))


def _shown(context: dict[str, Any]) -> str:
    """What the event loop said of an error, with the traceback of it: where it was raised, not only what it was."""
    said = "\n".join(f"{key}: {value!r}" for key, value in context.items())
    error = context.get("exception")
    return f"{said}\n{''.join(traceback.format_exception(error))}" if error is not None else said


async def assert_nothing_left(hub: Hub) -> None:
    """No task but this one, no call, no open question; waits a little for what is about to end."""
    this = asyncio.current_task()
    for _ in range(2000):
        if len(asyncio.all_tasks()) == 1 and not len(hub.calls):
            break
        await asyncio.sleep(0.005)
    assert asyncio.all_tasks() == {this}
    assert hub.calls.list() == []
    assert len(hub.calls) == 0
    assert hub.calls.open_questions == 0


def call_tasks() -> list[asyncio.Task[Any]]:
    """The tasks in which calls run, beside the present one, and all others that midcall runs from a queue."""
    return [
        task
        for task in asyncio.all_tasks() - {asyncio.current_task()}
        if task.get_coro().__qualname__ in ("RunQueue._lead", "Call.run")
    ]


async def until(condition: Any) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.001)


async def turns(count: int = 200) -> None:
    """Let everything run that can, without a thread, a peer or a timer: a number of turns of the loop, not a time."""
    for _ in range(count):
        await asyncio.sleep(0)


async def with_patience(attempt: Callable[[float], Awaitable[bool]]) -> None:
    """Try with more and more seconds until they were enough for what is to happen within them.

    For limits that are to be reached by one thing and not by another: how long the other needs is up to what
    else the machine has to do.
    """
    seconds = 0.3
    while not await attempt(seconds):
        seconds *= 3


def kinds(items: list[Item]) -> list[str]:
    """The names of the items' types, in order."""
    return [type(item).__name__ for item in items]


def requests(items: list[Item]) -> list[Request]:
    return [item for item in items if isinstance(item, Request)]

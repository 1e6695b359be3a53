"""Lifespan: what a hub needs for as long as it is served, as a pool of connections, and gives to its methods.

An author writes an async generator, or a function that gives an async context manager (see `Hub.lifespan`).
It is entered once in each process, before the first call, and left after the last one. Both are done by one
task, as what an author enters there (a task group, a time limit) may insist on that.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from midcall.errors import LifespanError, RegistrationError

log = logging.getLogger("midcall.lifespan")

LEAVING = 10.0
"""Seconds that it may take to leave it; then it is cancelled."""

CANCELLED = 1.0
"""Seconds that it may take after that."""


class RunningLifespan:
    """The lifespan of one hub in this process."""

    def __init__(self, name: str, function: Callable[..., Any], hub: Any) -> None:
        """Raises `RegistrationError`."""
        if not callable(function):
            raise RegistrationError(f"The lifespan of hub {name!r} is not a function: {function!r}")
        self._name = name
        self._hub = hub
        makes = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function
        try:
            takes = inspect.signature(function).parameters.values()
        except ValueError:  # of a built-in one, Python does not know them
            takes = {}.values()
        needed = [one for one in takes if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        self._enter: Callable[[], Any] = (lambda: makes(hub)) if needed else makes
        self._holder: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._value: asyncio.Future[Any] | None = None
        self._over = asyncio.Event()

    async def value(self) -> Any:
        """What it gives; it is entered if it is not yet. Raises `LifespanError`."""
        loop = asyncio.get_running_loop()
        if self._value is None or self._loop is not loop:  # with the event loop, all that was in it is gone
            self._loop, self._over = loop, asyncio.Event()
            self._value = loop.create_future()
            self._holder = loop.create_task(self._hold(self._value, self._over))
        value = self._value
        if not value.done():
            await asyncio.wait((value,))  # who is cancelled meanwhile does not cancel it for the others
        return value.result()

    async def leave(self) -> None:
        """Leave it, if it was entered. What goes wrong is logged; what hangs is cancelled and left behind."""
        holder, self._holder, self._value = self._holder, None, None
        if holder is None or self._loop is not asyncio.get_running_loop():
            return
        self._over.set()
        _, hanging = await asyncio.wait((holder,), timeout=LEAVING)
        if hanging:
            log.error("The lifespan of hub %r does not end; it is cancelled", self._name)
            holder.cancel()
            await asyncio.wait((holder,), timeout=CANCELLED)

    async def _hold(self, value: "asyncio.Future[Any]", over: asyncio.Event) -> None:
        try:
            made = self._enter()
            if not isinstance(made, AbstractAsyncContextManager):
                if inspect.iscoroutine(made):
                    made.close()
                raise TypeError(  # noqa: TRY301  told as any other fault
                    "it is neither an async generator nor gives an async context manager"
                )
            async with made as given:
                value.set_result(given)
                await over.wait()
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if not value.done():
                self._failed(value, error)
            elif isinstance(error, asyncio.CancelledError):
                pass  # the event loop ends, or `leave` waits no longer
            elif over.is_set():
                log.exception("The lifespan of hub %r failed as it ended", self._name)
            else:  # as a task group does, when one of its tasks fails
                self._forget(value)
                log.exception("The lifespan of hub %r broke off; the next call enters it again", self._name)

    def _failed(self, value: "asyncio.Future[Any]", error: BaseException) -> None:
        self._forget(value)
        told = str(error)
        why = f"{type(error).__name__}: {told}" if told else type(error).__name__
        failure = LifespanError(f"The lifespan of hub {self._name!r} failed to start: {why}")
        failure.__cause__ = error
        value.set_exception(failure)
        value.exception()  # nobody may be left who would ask

    def _forget(self, value: "asyncio.Future[Any]") -> None:
        """Have the next call enter it again."""
        if self._value is value:
            self._value = self._holder = None

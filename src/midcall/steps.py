"""Steps: side effects that are done once, and values that stay the same when a call is run again.

A finished step gives back its value. From the moment that a call is in the journal, a step writes that it
begins before it does anything: a process that dies in between leaves that mark, and the step raises
`StepInterrupted` instead of being done twice. Steps that may be done twice skip the mark.
"""

import asyncio
import builtins
import hashlib
import inspect
import sys
import time
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any, TypeVar, cast

import msgspec

from midcall.call import Call, sendable
from midcall.calls import Rest
from midcall.errors import Diverged, JournalError, StepFailed, StepInterrupted, TimedOut, ToolError
from midcall.items import UNSENDABLE, to_builtins, to_json
from midcall.replay import Entry, Trace

T = TypeVar("T")

ATTEMPTS = 3
"""How often a step that may be repeated is tried."""

FIRST_PAUSE = 0.2
"""Seconds before its second try; each pause is twice as long as the one before."""


_inside: ContextVar[bool] = ContextVar("midcall_step", default=False)


def in_step() -> bool:
    """Whether this is run by a step."""
    return _inside.get()


class StepFailure(msgspec.Struct):
    """What is kept of the error of a step: which class it is of, and data."""

    module: str
    name: str
    message: str
    arguments: list[Any] = []
    attributes: dict[str, Any] = {}


async def run(
    trace: Trace,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    retry_safe: bool,
) -> Any:
    """Run a step, or give back what it gave before."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if not trace.kept:
        return await _attempt(function, args, kwargs, retry_safe=retry_safe)
    key = trace.next_key()
    place = trace.place()
    fingerprint = _fingerprint(name, args, kwargs)
    before = trace.recall(place, fingerprint)
    if before is not None:
        match before.state:
            case "done":
                return _typed(function, before.value)
            case "failed":
                raise _error(before.value)
            case _ if not retry_safe:
                error = StepInterrupted(name, key)
                await trace.keep(Entry(place, fingerprint, "failed", _kept(error)))
                raise error
    if before is None and not retry_safe:
        trace.note(Entry(place, fingerprint, "begun"))
    async with trace.working():
        await trace.flush()  # what it is given may be seen outside: the next time it must be the same
        try:
            value = await _attempt(function, args, kwargs, retry_safe=retry_safe)
            encoded = to_json(value)
        except Exception as error:
            await trace.keep(Entry(place, fingerprint, "failed", _kept(error)))
            raise
        await trace.keep(Entry(place, fingerprint, "done", encoded))
        return value


async def once(trace: Trace, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do something that has steps and questions of its own; give back the same if the call is run again.

    While it is under way it is run again from its own steps, and not refused as a step is. Its value, and an
    error's words, are kept as JSON has them.
    """
    if not trace.kept:
        return to_builtins(await work())
    place = trace.place()
    before = trace.recall(place, what)
    if before is not None and before.state == "failed":
        raise _error(before.value)
    if before is not None and before.state == "done":
        return msgspec.json.decode(before.value)
    try:
        with trace.nested(place):
            value = to_builtins(await work())
    except Exception as error:
        if trace.diverged is None and not isinstance(error, Diverged | JournalError):
            await trace.keep(Entry(place, what, "failed", _kept(error)))
        raise
    await trace.keep(Entry(place, what, "done", to_json(value)))
    return value


async def beside(trace: Trace, what: str, work: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Do several things at once, each `once`: what one came to is kept, whatever becomes of the others."""
    places = [trace.place() if trace.kept else "" for _ in work]

    async def one(place: str, work: Callable[[], Awaitable[Any]]) -> Any:
        with trace.nested(place):
            return await once(trace, what, work)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*pair)) for pair in zip(places, work, strict=True)]
    return [task.result() for task in tasks]


def value(trace: Trace, name: str, make: Callable[[], Any]) -> Any:
    """A value as JSON has it, made once."""
    place = trace.place() if trace.kept else ""
    before = trace.recall(place, name)
    if before is not None:
        return msgspec.json.decode(before.value)
    encoded = to_json(make())
    trace.note(Entry(place, name, "done", encoded))
    return msgspec.json.decode(encoded)


async def sleep(trace: Trace, seconds: float) -> None:
    """Wait until a moment that was fixed when this was first reached."""
    until = value(trace, "sleep", lambda: time.time() + seconds)
    await trace.flush()
    await asyncio.sleep(max(0.0, until - time.time()))


def deadline(trace: Trace, seconds: float) -> float:
    """The moment so many seconds after this was first reached; a fork has its time anew."""
    return max(float(value(trace, "limit", lambda: time.time() + seconds)), trace.created + seconds)


async def within(trace: Trace, until: float, late: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do something before a moment. Raises `TimedOut` with these words.

    While it waits for somebody, the journal knows the moment: whoever looks after the call then goes on.

    What does not wait needs no timer, which would cost a transition of a machine a quarter of its time.
    """
    body = work()
    try:
        waits_for = body.send(None)
    except StopIteration as ended:
        return cast("T", ended.value)
    limit = asyncio.timeout(until - time.time())
    trace.limits.append(until)
    try:
        async with limit:
            return await Rest(body, waits_for)
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOut(late) from None
    finally:
        trace.limits.remove(until)


async def _attempt(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, retry_safe: bool
) -> Any:
    for number in range(1, ATTEMPTS if retry_safe else 1):
        try:
            return await _step(function, args, kwargs)
        except Exception:  # noqa: BLE001  tried again; the last one is raised
            await asyncio.sleep(FIRST_PAUSE * 2 ** (number - 1))
    return await _step(function, args, kwargs)


async def _step(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    token = _inside.set(True)
    try:
        return await called(function, *args, **kwargs)
    finally:
        _inside.reset(token)


async def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function gives, plain or async. A plain one runs in a thread. `SystemExit` is a `ToolError`."""
    with Contained():
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        given = await in_thread(function, *args, **kwargs)
        return await given if inspect.isawaitable(given) else given


async def in_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """What a plain function of an author gives, run in a worker thread.

    No future can carry `StopIteration`: whoever waited for it would wait for ever. It is a `RuntimeError`, as
    it is in a coroutine; and so is `GeneratorExit`, which would look like the end of whoever waits.
    """

    def run() -> T:
        try:
            return function(*args, **kwargs)
        except (StopIteration, GeneratorExit) as error:
            raise RuntimeError(f"The function raised {type(error).__name__}") from error

    return await asyncio.to_thread(run)


class Contained:
    """An author's code runs in here: that it wants to end the process is a failure of that code alone.

    In a part of a call, so is a cancellation that comes from the code itself. (`SystemExit` of a task would
    end the event loop, and a cancellation the call.) It raises `ToolError` instead.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call | None = None) -> None:
        self._call = call

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, SystemExit):
            raise ToolError(f"It called sys.exit({said(error)})") from error
        if isinstance(error, asyncio.CancelledError) and self._call is not None:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                self._call.check_goes_on()
                raise ToolError("It was cancelled by its own code") from error


def _fingerprint(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What a step was. Arguments that JSON cannot carry count by their number only."""
    try:
        given = to_json([args, kwargs])
    except UNSENDABLE:
        given = to_json([len(args), sorted(kwargs)])
    return f"step {name} ({hashlib.sha256(given).hexdigest()[:12]})"


def _typed(function: Callable[..., Any], encoded: bytes) -> Any:
    """A value as the type that the function says it returns."""
    try:
        returns = typing.get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        returns = Any
    if returns is Any or returns is None:
        return msgspec.json.decode(encoded)
    from midcall.schema import shape_of  # noqa: PLC0415  pydantic is slow to import: only when needed

    return shape_of(returns).validate_json(encoded)


def said(error: BaseException) -> str:
    """An error, in words that JSON can carry."""
    try:
        return sendable(str(error)) or type(error).__name__
    except Exception:  # noqa: BLE001  it was made again from what could be kept of it
        return type(error).__name__


def _kept(error: Exception) -> bytes:
    kind, message = type(error), said(error)
    arguments = list(_base(kind).__reduce__(error)[1])  # those of an `OSError` are more than its `args`
    failure = StepFailure(kind.__module__, kind.__qualname__, message, arguments, vars(error))
    try:
        return to_json(failure)
    except UNSENDABLE:
        failure.arguments, failure.attributes = [message], {}
        return to_json(failure)


def _error(encoded: bytes) -> Exception:
    """The error that a step failed with: of the same class, if that is loaded and can be made of data alone.

    Whoever can write to a journal chooses what is read here. So nothing is imported, only a class of
    exceptions is used, and no code of that class is run: only that of the built-in one which it extends.
    """
    failure = msgspec.json.decode(encoded, type=StepFailure)
    kind = _loaded(failure.module, failure.name)
    if kind is None:
        return StepFailed(failure.message)
    base = _base(kind)
    try:
        error: Exception = base.__new__(kind, *failure.arguments)
        base.__init__(error, *failure.arguments)
    except Exception:  # noqa: BLE001  it cannot be made of these
        return StepFailed(failure.message)
    vars(error).update(failure.attributes)
    return error


def _loaded(module: str, name: str) -> type[Exception] | None:
    """The class of exceptions that is defined there, if that module is loaded."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if not isinstance(found, type | ModuleType):
            return None
        found = vars(found).get(part)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    return found if (found.__module__, found.__qualname__) == (module, name) else None


def _base(kind: type[Exception]) -> type[Exception]:
    """The first class of Python itself that an exception's class extends, or is."""
    found: type[Exception] = next(one for one in kind.__mro__ if vars(builtins).get(one.__name__) is one)
    return found

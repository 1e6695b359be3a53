"""Dependencies: what a function is given beside the arguments of its call.

A parameter is given by its type (`Ask`, `CallerName`, `Principal`, `RequestInfo`, `Lifespan[...]`), or by a
function of the author: `Annotated[Db, Depends(open_db)]`. That function may be given the same things. Each
runs once for a call, in the order of the parameters, and again whenever the call is run again from its
journal. Functions that yield clean up after the call, the last one first.

What is read here once for each method is kept with it (see `activation`); this module knows no hub.
"""

import asyncio
import functools
import inspect
import types
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from midcall.ask import Ask
from midcall.call import CALLER, LIFESPAN, Call
from midcall.errors import RegistrationError, ToolError
from midcall.principal import Principal, RequestInfo
from midcall.steps import called, in_thread


class Depends:
    """In an annotation, what a parameter is filled in with: `Annotated[Db, Depends(open_db)]`.

    The function may be plain (it runs in a worker thread), async, or one that yields once and then cleans up.
    Its own parameters are given in the same way, and are not in the schema of the method.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise RegistrationError(f"Depends({function!r}): give it a function, and do not call that")
        self.function = function


class Dependency(NamedTuple):
    """A function that makes a value for a call, and what it is given for that."""

    function: Callable[..., Any]
    parameters: "Mapping[str, Filled]"


class Home(typing.Protocol):
    """The hub that a method belongs to."""

    async def lifespan_value(self) -> Any:
        """What its lifespan gives. Raises `LifespanError`."""


class Filled(NamedTuple):
    """What a parameter is filled in with."""

    what: Any
    """A type that is given (`Ask`, `Principal`, `RequestInfo`), `CALLER`, `LIFESPAN`, or a `Dependency`."""
    optional: bool = False
    """Whether there may be nothing."""


def filled_with(annotation: Any, where: str, path: tuple[Callable[..., Any], ...] = ()) -> Filled | None:
    """What a parameter with this annotation is filled in with; nothing if it is an argument.

    `where` is the function that has it, and `path` those whose dependencies are being read. Raises
    `RegistrationError`.
    """
    for one in getattr(annotation, "__metadata__", ()):
        if one is CALLER or one is LIFESPAN:
            return Filled(one)
        if isinstance(one, Depends):
            return Filled(_read(one.function, path))
        if one is Depends:
            raise RegistrationError(f"{where}: write Depends(function), with the function")
    bare = annotation.__origin__ if typing.get_origin(annotation) is typing.Annotated else annotation
    is_union = typing.get_origin(bare) in (typing.Union, types.UnionType)
    options = typing.get_args(bare) if is_union else (bare,)
    for kind in (Ask, Principal, RequestInfo):
        if kind in options:
            return Filled(kind, types.NoneType in options)
    return None


def _read(function: Callable[..., Any], path: tuple[Callable[..., Any], ...]) -> Dependency:
    """A dependency, with those that it has itself. Raises `RegistrationError`."""
    if function in path:
        raise RegistrationError(f"{name_of(function)} depends on itself")
    hints = hints_of(_annotated(function))
    parameters: dict[str, Filled] = {}
    for parameter in _parameters(function):
        filled = filled_with(hints.get(parameter.name, Any), name_of(function), (*path, function))
        if filled is not None:
            parameters[parameter.name] = filled
        elif parameter.default is parameter.empty:
            raise RegistrationError(
                f"{name_of(function)}: nothing is given for the parameter {parameter.name} of a dependency; "
                "the arguments of a call go to the method alone"
            )
    return Dependency(function, parameters)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:  # of a built-in one, Python does not know them
        return []
    return [one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def _annotated(function: Any) -> Any:
    """What has the annotations of its parameters."""
    if isinstance(function, functools.partial):
        return function.func
    if inspect.isclass(function):
        return function.__init__
    return function if inspect.isroutine(function) else function.__call__


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function. Raises `RegistrationError`."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise RegistrationError(
            f"{name_of(function)}: an annotation cannot be read ({error}); "
            "types of a method must be importable at the top of its module"
        ) from error


def name_of(function: Callable[..., Any]) -> str:
    """A function, as an error names it."""
    return str(getattr(function, "__qualname__", function))


def within(parameters: Mapping[str, Filled]) -> set[Any]:
    """The types that parameters are given, and those of all that they depend on."""
    found: set[Any] = set()
    for filled in parameters.values():
        found |= within(filled.what.parameters) if isinstance(filled.what, Dependency) else {filled.what}
    return found


# --- for one call -------------------------------------------------------------------------------


async def run(
    body: Callable[..., Any],
    parameters: Mapping[str, Filled],
    call: Call,
    elicits: Mapping[str, Any],
    home: Home | None,
    arguments: Mapping[str, Any],
) -> Any:
    """Run a function that gives a result, with what its parameters are given."""
    async with _filling(parameters, call, elicits, home) as given:
        return await body(**arguments, **given)


async def stream(
    body: Callable[..., Any],
    parameters: Mapping[str, Filled],
    call: Call,
    elicits: Mapping[str, Any],
    home: Home | None,
    arguments: Mapping[str, Any],
) -> AsyncIterator[Any]:
    """Run a function that gives a stream; what cleans up does so after its end."""
    async with (
        _filling(parameters, call, elicits, home) as given,
        aclosing(body(**arguments, **given)) as elements,
    ):
        async for element in elements:
            yield element


@asynccontextmanager
async def _filling(
    parameters: Mapping[str, Filled], call: Call, elicits: Mapping[str, Any], home: "Home | None"
) -> AsyncIterator[dict[str, Any]]:
    failure: BaseException | None = None
    async with AsyncExitStack() as stack:
        given = await _GivenValues(call, elicits, home, stack).of(parameters)
        try:
            yield given
        except BaseException as error:
            failure = error
            raise
    if failure is not None:
        raise failure  # a dependency has swallowed it, but the call has failed all the same


class _GivenValues:
    """What one call is given, each made once."""

    def __init__(
        self, call: Call, elicits: Mapping[str, Any], home: "Home | None", stack: AsyncExitStack
    ) -> None:
        self._call = call
        self._home = home
        self._elicits = elicits
        self._stack = stack
        self._made: dict[Any, Any] = {}

    async def of(self, parameters: Mapping[str, Filled]) -> dict[str, Any]:
        return {name: await self._value(filled) for name, filled in parameters.items()}

    async def _value(self, filled: Filled) -> Any:
        what = filled.what
        if isinstance(what, Dependency):
            key = _identity(what.function)
            if key not in self._made:
                self._made[key] = await self._make(what)
            return self._made[key]
        if what is Ask:
            return Ask(self._call, self._elicits)
        if what is CALLER:
            return self._call.principal
        if what is LIFESPAN:
            return await self._of_lifespan()
        source = self._call.known_source
        value = source.principal if what is Principal else source.request
        if value is None and not filled.optional:
            missing = "know who calls" if what is Principal else "be called by a request of a client"
            raise ToolError(f"{self._call.name} has to {missing}", code="not_given")
        return value

    async def _of_lifespan(self) -> Any:
        if self._home is None:
            raise ToolError(
                f"{self._call.name} has no hub whose lifespan it could be given", code="not_given"
            )
        return await self._home.lifespan_value()

    async def _make(self, dependency: Dependency) -> Any:
        function, given = dependency.function, await self.of(dependency.parameters)
        inner: Any = inspect.unwrap(function)
        if inspect.isasyncgenfunction(inner):
            make = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function
            return await self._stack.enter_async_context(make(**given))
        if inspect.isgeneratorfunction(inner):
            make = contextmanager(function) if inspect.isgeneratorfunction(function) else function
            return await self._enter(make(**given))
        return await called(function, **given)

    async def _enter(self, manager: Any) -> Any:
        """Enter a plain context manager in a thread; it is left there too, also if the call has ended."""
        entering = asyncio.ensure_future(in_thread(manager.__enter__))

        async def leave(*error: Any) -> bool:
            await asyncio.wait((entering,))
            if entering.cancelled() or entering.exception() is not None:
                return False
            return bool(await in_thread(manager.__exit__, *error))

        self._stack.push_async_exit(leave)
        return await asyncio.shield(entering)


def _identity(function: Any) -> Any:
    """What is the same for the same function. A method is made anew whenever it is looked up."""
    return (id(function.__self__), function.__func__) if inspect.ismethod(function) else id(function)

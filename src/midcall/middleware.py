"""Middleware: code of an author around every call of a hub, and two that are ready.

    async def timed(call: CallContext, next: Next) -> Any:
        started = time.monotonic()
        try:
            return await next(call)
        finally:
            print(call.name, time.monotonic() - started)

    hub.use(timed)

A call passes all that is `before_validation`, then its arguments are read, then it passes the others, and
then the method runs; of each kind the outer hub's come first, in the order in which they were added. `next`
ends when the call does, also for a stream, whose items go out meanwhile, and for a method that asks and waits
for days. A call that is rebuilt from its journal passes all of it again, and `CallContext.rebuilt` says so.

This module knows no hub: that finds out which middleware a call passes, and puts a `GuardedMethod` in the
place of its method. A hub without any has none of this.
"""

import copy
import fnmatch
import hashlib
import inspect
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from midcall.activation import Method
from midcall.call import Call
from midcall.calls import RateLimit
from midcall.decorators import Kind
from midcall.errors import Diverged, InvalidArguments, RegistrationError
from midcall.items import to_json
from midcall.principal import Principal, RequestInfo

Emit: TypeAlias = Callable[[AsyncIterator[Any]], Awaitable[None]]
"""Takes all items of a stream, as fast as their reader does."""


class CallContext(Struct, frozen=True, eq=False):
    """A call, as a middleware sees it."""

    name: str
    """The full name of the method, in the hub that was called."""
    kind: Kind
    """`method`, `resource`, `prompt`, `completion` or `listing`."""
    arguments: Mapping[str, Any]
    """By name. Before validation they are plain JSON; then they are what the method takes. Those of a mounted
    server's methods, and of state machines, stay JSON."""
    arguments_json: bytes
    """The same as a JSON object, as the caller sent it."""
    principal: Principal | None = None
    """Who calls, where that is known; of a durable call, who began it."""
    request: RequestInfo | None = None
    """By which request, where there is one."""
    id: str | None = None
    """Of a durable call, the same whenever it is rebuilt; of others, where they are listed already."""
    streaming: bool = False
    interactive: bool = False
    """Whether it may ask. A mounted server's methods may always."""
    takes_request: bool = False
    """Whether the method is given the request too."""
    rebuilt: bool = False
    """Whether it has begun before, in another process or in this one, and is run again from its journal."""
    about: str = ""
    """What others of the same name have not: of a resource its URI or template, of a completion its argument,
    of a listing what it lists."""

    def with_arguments(self, arguments: Mapping[str, Any]) -> "CallContext":
        """The same call with other arguments, for `next`: they are validated there."""
        return msgspec.structs.replace(self, arguments=MappingProxyType(dict(arguments)))


ItemFunction: TypeAlias = Callable[[Any], Any]
"""Gets a result, or an item of a stream, and gives what is sent in its place; plain or async."""


class Next(Protocol):
    """The rest of a call: what else it passes, and the method."""

    async def __call__(self, call: CallContext, *, item: ItemFunction | None = None) -> Any:
        """Run it to its end. Gives the result; of a stream nothing, as its items are sent already.

        `item` is for the result of a method, or for each item of its stream.
        """


Middleware: TypeAlias = Callable[[CallContext, Next], Awaitable[Any]]


class Uses(NamedTuple):
    """The middleware that a method's calls pass, from the outside in."""

    before: tuple[Middleware, ...] = ()
    around: tuple[Middleware, ...] = ()


def check_middleware(function: Any) -> None:
    """Raise `RegistrationError` for what is no middleware."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)):
        raise RegistrationError(f"{function!r} is not a middleware: write `async def name(call, next)`")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise RegistrationError(f"{function!r} is not a middleware: it takes `call` and `next`") from None


class GuardedMethod:
    """What a call runs in place of its method: the middleware, and then that. (See `call.Runnable`.)"""

    __slots__ = ("_json", "_levels", "_method", "_name", "_start", "_uses", "_validated", "streaming")

    def __init__(
        self,
        method: Method,
        name: str,
        uses: Uses,
        raw: bytes,
        start: Callable[[Call, Any], Any] | None = None,
    ) -> None:
        """`start` has the method run, if that is not its `invoke`. Raises `InvalidArguments`."""
        self.streaming = method.streaming
        self._method = method
        self._name = name
        self._uses = uses
        self._levels = (*uses.before, *uses.around)
        self._start = start or method.invoke
        self._json = method.as_object(raw, name)
        self._validated = None if uses.before else method.read_arguments(self._json, name)

    def invoke(self, call: Call, arguments: Any) -> Any:
        """Run it: gives an awaitable, or an async iterator if `streaming`."""
        return self._emit_all(call) if self.streaming else self.run(call, call.stream)

    async def _emit_all(self, call: Call) -> AsyncIterator[Any]:
        """A stream without items: they are sent by `next`, which ends when the stream does."""
        for nothing in await self.run(call, call.stream) or ():
            yield nothing

    async def run(self, call: Call, emit: Emit) -> Any:
        """The result; the items of a stream go to `emit`."""
        source = call.known_source
        trace = call.trace if call.trace is not None and call.trace.kept else None
        method = self._method
        given = CallContext(
            self._name,
            method.kind,
            MappingProxyType({}),
            self._json,
            source.principal,
            source.request,
            trace.call_id if trace is not None else call.id if call.number else None,
            method.streaming,
            method.interactive,
            method.wants_request,
            trace is not None and trace.rebuilt,
            _about(method),
        )
        if self._uses.before:
            given = _with(given, msgspec.json.decode(self._json), self._json)
        else:
            given = _with(given, self._seen(self._validated, self._json), self._json)
        return await _Passing(self, call, emit).enter(0, given, self._validated, ())

    def _seen(self, validated: Any, encoded: bytes) -> dict[str, Any]:
        """Validated arguments, as a middleware sees them."""
        return validated if type(validated) is dict else msgspec.json.decode(encoded)

    def read(self, call: Call, given: CallContext, encoded: bytes) -> tuple[CallContext, Any]:
        """Validate arguments. Raises `InvalidArguments`; of a call that has begun with them, `Diverged`."""
        try:
            validated = self._method.read_arguments(encoded, self._name)
        except InvalidArguments as error:
            if given.rebuilt and call.trace is not None and encoded == self._json:
                call.trace.diverged = Diverged(f"a call of {self._name}", str(error), "")
                raise call.trace.diverged from None
            raise
        return _with(given, self._seen(validated, encoded), encoded), validated

    def start(self, call: Call, validated: Any) -> Any:
        """Start the method itself."""
        return self._start(call, validated)

    @property
    def levels(self) -> tuple[Middleware, ...]:
        return self._levels

    @property
    def validates_at(self) -> int:
        """Before which level the arguments are read."""
        return len(self._uses.before)


def _about(method: Method) -> str:
    if method.kind in ("method", "prompt"):
        return ""
    extras = method.extras
    return str(extras.get("argument") or extras.get("of") or extras.get("uri") or "")


def _with(given: CallContext, arguments: dict[str, Any], encoded: bytes) -> CallContext:
    return msgspec.structs.replace(given, arguments=MappingProxyType(dict(arguments)), arguments_json=encoded)


class _Passing:
    """One call on its way through the levels."""

    __slots__ = ("_call", "_emit", "_guarded")

    def __init__(self, guarded: GuardedMethod, call: Call, emit: Emit) -> None:
        self._guarded = guarded
        self._call = call
        self._emit = emit

    async def enter(
        self, level: int, given: CallContext, validated: Any, each: tuple[ItemFunction, ...]
    ) -> Any:
        guarded = self._guarded
        if validated is None and level == guarded.validates_at:
            given, validated = guarded.read(self._call, given, given.arguments_json)
        if level == len(guarded.levels):
            body = guarded.start(self._call, validated)
            if not guarded.streaming:
                return await body
            await self._emit(_changed(body, each))
            return None
        rest = _RestOfCall(self, level, given, validated, each)
        try:
            result = await guarded.levels[level](given, rest)
        finally:
            rest.over = True
        if not guarded.streaming or result is None:
            return result
        await self._emit(_changed(_items(self._call.name, result), each))
        return None

    async def go_on(self, rest: "_RestOfCall", call: CallContext, item: ItemFunction | None) -> Any:
        given, validated = rest.given, rest.validated
        if call.arguments is not given.arguments:
            encoded = _encoded(given, call.arguments)
            if validated is None:
                given = _with(given, msgspec.json.decode(encoded), encoded)
            else:
                given, validated = self._guarded.read(self._call, given, encoded)
        streams = self._guarded.streaming
        each = rest.each if item is None or not streams else (item, *rest.each)
        result = await self.enter(rest.level + 1, given, validated, each)
        return result if item is None or streams else await _apply(item, result)


class _RestOfCall:
    """What a middleware gets as `next`."""

    __slots__ = ("_passing", "_used", "each", "given", "level", "over", "validated")

    def __init__(
        self,
        passing: _Passing,
        level: int,
        given: CallContext,
        validated: Any,
        each: tuple[ItemFunction, ...],
    ) -> None:
        self._passing = passing
        self._used = False
        self.level = level
        self.given = given
        self.validated = validated
        self.each = each
        self.over = False

    async def __call__(self, call: CallContext, *, item: ItemFunction | None = None) -> Any:
        if not isinstance(call, CallContext):
            raise TypeError("next takes the call: `await next(call)`")
        if self.over:
            raise RuntimeError("next was called after the middleware had returned")
        if self._used and (call.streaming or call.interactive):
            raise RuntimeError(
                f"next was called twice: {call.name} streams or may ask, and is not to do that again"
            )
        self._used = True
        return await self._passing.go_on(self, call, item)


def _encoded(given: CallContext, arguments: Mapping[str, Any]) -> bytes:
    """Changed arguments as JSON. Those that are as they were stay as they were sent: not every value can be
    made again from its JSON, as a secret, which is not shown."""
    sent = msgspec.json.decode(given.arguments_json, type=dict[str, msgspec.Raw])
    encoded: dict[str, msgspec.Raw] = {}
    for name, value in arguments.items():
        if name not in given.arguments or given.arguments[name] is not value:
            encoded[name] = msgspec.Raw(to_json(value))
        elif name in sent:  # else it is a default, and will be again
            encoded[name] = sent[name]
    return msgspec.json.encode(encoded)


async def _changed(body: AsyncIterator[Any], each: tuple[ItemFunction, ...]) -> AsyncIterator[Any]:
    """The items of a stream, as they are sent."""
    try:
        async for content in body:
            for function in each:
                content = await _apply(function, content)
            yield content
    finally:
        close = getattr(body, "aclose", None)
        if close is not None:
            await close()


async def _apply(function: ItemFunction, content: Any) -> Any:
    changed = function(content)
    return await changed if inspect.isawaitable(changed) else changed


async def _items(name: str, result: Any) -> AsyncIterator[Any]:
    """What a middleware gives in place of a stream."""
    if isinstance(result, AsyncIterable):
        async for item in result:
            yield item
    elif isinstance(result, Iterable) and not isinstance(result, str | bytes | Mapping):
        for item in result:
            yield item
    else:
        raise TypeError(f"{name} streams: a middleware gives a list of items, not {type(result).__name__}")


async def collect(guarded: GuardedMethod, call: Call) -> AsyncIterator[Any]:
    """The items of a stream that is a part of another call, once it has ended."""
    found: list[Any] = []

    async def emit(items: AsyncIterator[Any]) -> None:
        async with aclosing(items) as contents:  # type: ignore[type-var]
            found.extend([content async for content in contents])

    await guarded.run(call, emit)
    for content in found:
        yield content


# --- ready to use -----------------------------------------------------------------------------------


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, one) for one in patterns)


def rate_limit(
    calls: int,
    per: float = 1.0,
    *,
    methods: Sequence[str] = ("*",),
    clock: Callable[[], float] = time.monotonic,
) -> Middleware:
    """Each principal may make so many calls in so many seconds: `hub.use(rate_limit(60, per=60))`.

    All of them may come at once, and then one whenever its share of the time is over. One more raises
    `RateLimited`. Callers without a name count as one. It is counted in each process apart.
    `methods` are patterns of names, as `files.*`; all that fit count together. A call that is rebuilt is not
    counted again.
    """
    if calls < 1 or not 0 < per < math.inf:
        raise ValueError("rate_limit takes a number of calls, and the seconds in which they may be made")
    if isinstance(methods, str):
        methods = (methods,)
    told = f"{calls} {'call' if calls == 1 else 'calls'} in {per:g} s"
    limit = RateLimit(calls / per, at_once=per, told=told, clock=clock)

    async def limited(call: CallContext, next: Next) -> Any:
        if not call.rebuilt and _fits(call.name, methods):
            limit.take(None if call.principal is None else call.principal.name)
        return await next(call)

    return limited


class CachedResponse(NamedTuple):
    value: Any
    size: int
    until: float


class ResponseCache:
    """Keeps results for a while: `hub.use(ResponseCache("weather.*", ttl=60))`.

    `methods` are patterns of the names of methods that only read. The same call by the same principal, with
    the same scopes, gives what it gave before, without the method being run; with `shared`, also by others.
    What asks or streams is never kept, nor what is given the request, nor an error, nor what JSON cannot
    carry. There are at most so many `entries`, of so many bytes together; the longest unused go first.
    """

    def __init__(
        self,
        *methods: str,
        ttl: float,
        shared: bool = False,
        entries: int = 1_000,
        max_bytes: int = 16 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not methods:
            raise ValueError("ResponseCache takes the names of methods that only read, or patterns of them")
        if not ttl > 0 or entries < 1 or max_bytes < 1:
            raise ValueError("ResponseCache: ttl, entries and max_bytes are more than 0")
        self._methods = methods
        self._ttl = ttl
        self._shared = shared
        self._most = entries
        self._max_bytes = max_bytes
        self._clock = clock
        self._kept: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self._size = 0
        self._cleared = 0
        """How often it was: what ran before that is not kept."""

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget everything, also what is under way."""
        self._kept.clear()
        self._size = 0
        self._cleared += 1

    async def __call__(self, call: CallContext, next: Next) -> Any:
        if call.interactive or call.streaming or call.takes_request or not _fits(call.name, self._methods):
            return await next(call)
        key = self._key(call)
        kept = self._kept.get(key)
        if kept is not None:
            if self._clock() < kept.until:
                self._kept.move_to_end(key)
                return copy.deepcopy(kept.value)
            self._drop(key)
        cleared = self._cleared
        result = await next(call)
        if cleared == self._cleared:
            self._keep(key, result)
        return result

    def _key(self, call: CallContext) -> bytes:
        principal = call.principal
        who = None if self._shared or principal is None else [principal.name, sorted(principal.scopes)]
        try:
            arguments = msgspec.json.encode(msgspec.json.decode(call.arguments_json), order="sorted")
        except (ValueError, OverflowError, RecursionError):  # numbers that only Python's own types take
            arguments = call.arguments_json
        of = msgspec.json.encode([call.kind, call.name, call.about, who])
        return hashlib.sha256(of + b"\n" + arguments).digest()

    def _keep(self, key: bytes, result: Any) -> None:
        try:
            size = len(to_json(result)) + len(key)
            value = copy.deepcopy(result)  # whoever gets it may change it
        except Exception:  # noqa: BLE001  it is the caller's to be told, if JSON cannot carry it
            return
        if size > self._max_bytes:
            return
        self._drop(key)
        self._kept[key] = CachedResponse(value, size, self._clock() + self._ttl)
        self._size += size
        while len(self._kept) > self._most or self._size > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._size -= kept.size

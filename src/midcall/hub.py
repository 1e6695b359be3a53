"""Hub: the router of methods, which it knows by name (see `registry`).

It resolves a name, validates the arguments and starts a call. MCP servers that are mounted are a part of it
like activations, and it opens and closes all that it needs to serve. It knows no protocol: transports and
dialects sit above it and hand it names, raw arguments and an outlet.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from midcall.call import Call
from midcall.calls import Calls, end_all
from midcall.errors import RegistrationError
from midcall.invocation import Answerer, Invocation, Line
from midcall.items import Metadata, Outlet, to_json
from midcall.lifespan import RunningLifespan
from midcall.middleware import GuardedMethod, Middleware, Uses, check_middleware
from midcall.principal import CallSource, Principal, RequestInfo, Sender
from midcall.questions import KINDS
from midcall.registry import Registry, Resolved
from midcall.selection import checked_tags

if TYPE_CHECKING:
    from midcall.chat.engine import ChatEngine
    from midcall.journal.durable import DurableCalls

log = logging.getLogger("midcall.hub")

ATTACHED_TIME_LIMIT = 30.0
"""Seconds that a question waits by default when the caller is on the line."""

MOUNTING = 10.0
"""Seconds that all mounted servers have to be reached before the hub is open without them."""


F = TypeVar("F", bound=Callable[..., Any])


class Hub(Registry):
    """Methods by name: `Hub("plexus").register(Files())` makes `files.delete` callable."""

    def __init__(
        self,
        name: str = "plexus",
        *,
        description: str = "",
        version: str = "1.0.0",
        lifespan: Callable[..., Any] | None = None,
    ) -> None:
        """`lifespan` is as in `Hub.lifespan`."""
        super().__init__(name, description, version)
        self._lifespan: RunningLifespan | None = None
        self._is_open = False
        self._lifespan_users = 0
        self._before: list[Middleware] = []
        self._around: list[Middleware] = []
        self._uses: dict[tuple[str, ...], Uses] | None = None
        """The middleware of each place where there are methods, as far as it was asked for."""
        self.has_middleware = False
        """Whether calls may pass any, here or in a nested hub."""
        if lifespan is not None:
            self.lifespan(lifespan)
        self.calls = Calls()
        self._mounts: list[Any] = []
        self._mounting = False
        """Whether what is mounted is connected, or being connected."""
        self._has_machines = False
        self.durable: DurableCalls | None = None
        """Keeps calls that outlive their requests (see `journal.durable`)."""
        self.chat: ChatEngine | None = None
        """Where people talk to a model that calls these methods (see `midcall.chat`)."""

    # --- other hubs and servers --------------------------------------------------------------

    def register_hub(self, hub: Registry, *, namespace: str | None = None) -> Self:
        """Nest another hub under its name: `child.files.delete`."""
        super().register_hub(hub, namespace=namespace)
        if isinstance(hub, Hub) and hub.has_middleware:
            self._now_has_middleware()
        if self._mounting and isinstance(hub, Hub):
            hub._begin_mounts()
        return self

    def mount(self, namespace: str, target: Any, **options: Any) -> Self:
        """Make an MCP server a part of this hub: `hub.mount("github", "npx -y some-server")`.

        Its tools become methods (`github.create_issue`), its prompts are named in the same way, and its
        resources keep their URIs. `namespace` may be empty; of two with the same name, the first counts.
        What the server asks goes to whoever has made the call.

        `target` and most options are those of `connect`: `headers` and `auth` for a URL, `env`,
        `inherit_env` and `cwd` for a command, `era`, `revision`, `log_level`. `timeout` is for how many
        seconds the server may say nothing about a call; `scopes` are those that a caller needs for all of
        it, `tags` those that all of it has; `sample` and `roots` answer here what the server asks of a
        model, or of folders.

        The server is connected when the hub is opened. While it cannot be reached, its methods stay, and
        raise `Unreachable`.
        """
        from midcall.mount.mount import Mount  # noqa: PLC0415  a step up the rooms, as in `asgi`

        mount = Mount(namespace, target, self._changed, self.updated, options)
        self._add(namespace, mount.activation)
        self._mounts.append(mount)
        if self._mounting:
            mount.begin()
        return self

    async def unmount(self, namespace: str) -> None:
        """Take out a server that was mounted, and let go of it."""
        gone = [mount for mount in self._mounts if mount.namespace == namespace]
        if not gone:
            raise RegistrationError(f"Nothing is mounted as {namespace!r}")
        taken = {id(mount.activation) for mount in gone}
        self._mounts = [mount for mount in self._mounts if mount not in gone]
        self._children = [child for child in self._children if id(child[1]) not in taken]
        self._changed()
        for mount in gone:
            await mount.close()

    def from_openapi(
        self,
        document: Mapping[str, Any] | str | os.PathLike[str],
        *,
        namespace: str = "api",
        **options: Any,
    ) -> Self:
        """Make the operations of an OpenAPI 3.0 or 3.1 document methods: `hub.from_openapi("pets.json")`.

        It is a URL, a file (JSON, or YAML with `midcall[yaml]`), or the document itself. A method is named by
        its `operationId`; `names` gives others, as in `{"GET /pets": "list_pets"}`. `only` and `without` are
        patterns: a name, `tag:NAME` by the tags of the document, or `"DELETE *"`; `tags` adds tags to all.

        Requests go to `base_url`, or to the first of the document's `servers`; a document that was fetched
        cannot name another origin than its own. `headers` are credentials: a mapping, or a function, plain or
        async, that is given the caller's name; `query` is for keys that go there. Callers cannot change them.

        `confirm="unsafe"` asks the caller before POST, PUT, PATCH and DELETE; a list of patterns says which
        others. Each request is a step: one that may change something is not sent twice after a crash.
        `scopes` are those that a caller needs. What is not as the document says is an error, unless
        `check_results` is false. `timeout` is in seconds. Raises `RegistrationError`: nothing was changed.
        """
        from midcall.openapi.methods import OpenApi  # noqa: PLC0415  a step up the rooms

        self._add(namespace, OpenApi(document, namespace=namespace, **options))
        return self

    def register_machine(
        self,
        machine: Any,
        *,
        namespace: str = "machines",
        functions: Mapping[str, Callable[..., Any]] | None = None,
        model: Any = None,
        time_limit: float | None = None,
        max_transitions: int | None = None,
        tags: Collection[str] = (),
    ) -> Self:
        """Make a state machine a method: `hub.register_machine(machine)` gives `machines.{id}`.

        It is a `midcall.fsm.MachineBuilder` or `Machine`, or its definition in JSON. `functions` are those
        that its definition names. `model` drives states that name none; without it, that of the chat does,
        or the caller's. A run ends after `time_limit` seconds, or `max_transitions`. Raises `MachineError`.
        """
        from midcall.fsm.serve import Machines  # noqa: PLC0415  a step up the rooms

        found = dict(self._children).get(namespace)
        machines = found if isinstance(found, Machines) else Machines(self, namespace)
        limits = {"time_limit": time_limit, "max_transitions": max_transitions}
        machines.add(machine, dict(functions or {}), model, checked_tags(tags), **limits)
        if machines is not found:
            self._add(namespace, machines)
        self._has_machines = True
        self._changed()
        return self

    # --- around all calls --------------------------------------------------------------------

    def use(self, middleware: Middleware, *, before_validation: bool = False) -> Self:
        """Have all calls of this hub, and of those nested in it, pass an `async def f(call, next)`.

        It gets a `CallContext`, and what `await next(call)` gives. It may raise, change the arguments
        (`next(call.with_arguments({...}))`) or the result, or not call `next` at all. It is around the
        method, with arguments that are valid; or, `before_validation`, with those that were sent. Of several,
        the first is the outermost; those of an outer hub are around those of a nested one. See
        `midcall.middleware`.
        """
        check_middleware(middleware)
        (self._before if before_validation else self._around).append(middleware)
        self._now_has_middleware()
        self._changed()
        return self

    def _now_has_middleware(self) -> None:
        self.has_middleware = True
        for parent in self._parents:
            if isinstance(parent, Hub):
                parent._now_has_middleware()

    def middleware_of(self, found: Resolved) -> Uses:
        """What calls of a method pass."""
        if self._uses is None:
            self._uses = {}
        uses = self._uses.get(found.provenance)
        if uses is None:
            hubs: list[Registry] = [self]
            for namespace in ".".join(found.provenance[1:]).split("."):
                child = next((one for path, one in hubs[-1]._children if path == namespace), None)
                if not isinstance(child, Registry):
                    break
                hubs.append(child)
            own = [hub for hub in hubs if isinstance(hub, Hub)]
            uses = self._uses[found.provenance] = Uses(
                tuple(one for hub in own for one in hub._before),
                tuple(one for hub in own for one in hub._around),
            )
        return uses

    def _changed(self) -> None:
        self._uses = None
        super()._changed()

    def lifespan(self, function: F) -> F:
        """What this hub needs while it is served, and gives to methods that take a `Lifespan[...]`:

            @hub.lifespan
            async def database():
                async with connect() as db:
                    yield db

        An async generator, or a function that gives an async context manager; it is given the hub if it
        takes one. It is entered once in each process, when the hub is opened or first called, and left when
        the hub is closed. Nested hubs have their own.
        """
        if self._lifespan is not None:
            raise RegistrationError(f"Hub {self.name!r} already has a lifespan")
        self._lifespan = RunningLifespan(self.name, function, self)
        return function

    async def lifespan_value(self) -> Any:
        return await (super().lifespan_value() if self._lifespan is None else self._lifespan.value())

    def _lifespans(self) -> dict[RunningLifespan, None]:
        """Its own and those of nested hubs, the outer ones first."""
        found = {} if self._lifespan is None else {self._lifespan: None}
        for _, child in self._children:
            if isinstance(child, Hub):
                found |= child._lifespans()
        return found

    async def start_lifespans(self) -> None:
        """Enter the lifespans of this hub and of nested ones. Raises `LifespanError`."""
        for lifespan in self._lifespans():
            await lifespan.value()

    async def stop_lifespans(self) -> None:
        """Leave the lifespans, the inner ones first."""
        for lifespan in reversed(self._lifespans()):
            await lifespan.leave()

    @asynccontextmanager
    async def with_lifespans(self) -> AsyncIterator[None]:
        """Enter the lifespans if they are not yet, for as long as anybody is in here."""
        self._lifespan_users += 1
        try:
            await self.start_lifespans()
            yield
        finally:
            self._lifespan_users -= 1
            if not (self._lifespan_users or self._is_open):
                await self.stop_lifespans()

    # --- calling -----------------------------------------------------------------------------

    def start(
        self,
        name: str,
        raw_params: bytes,
        outlet: Outlet,
        *,
        supported: frozenset[str] = frozenset(),
        time_limit: float | None = ATTACHED_TIME_LIMIT,
        owner: object = None,
        principal: str | None = None,
        sender: Sender | None = None,
    ) -> Call:
        """Validate and start a call whose items go to `outlet`.

        Raises `MethodNotFound`, `InvalidArguments` or `TooManyCalls`; then nothing was started.
        """
        call = self.prepare(
            self.resolve(name),
            raw_params,
            outlet,
            supported=supported,
            time_limit=time_limit,
            owner=owner,
            principal=principal,
            sender=sender,
        )
        return self.calls.start(call)

    def prepare(
        self,
        found: Resolved,
        raw_params: bytes,
        outlet: Outlet,
        *,
        supported: frozenset[str] = frozenset(),
        time_limit: float | None = ATTACHED_TIME_LIMIT,
        owner: object = None,
        principal: str | None = None,
        sender: Sender | None = None,
    ) -> Call:
        """A call of a method that is found already, for `calls.start`. Raises `InvalidArguments`."""
        if self.has_middleware and (uses := self.middleware_of(found)) != ((), ()):
            method: Any = GuardedMethod(found.method, found.name, uses, raw_params)
            wants_source, arguments = True, None
        else:
            method, wants_source = found.method, found.method.wants_source
            arguments = method.read_arguments(raw_params, found.name)
        metadata = Metadata(found.provenance, self._hash or self.hash, 0)
        size = len(raw_params)
        call = Call(
            found.name,
            method,
            arguments,
            outlet,
            metadata,
            supported,
            time_limit,
            owner,
            principal,
            size,
        )
        if wants_source and sender is not None:
            call.source = sender.source()
        return call

    def call(
        self,
        name: str,
        params: Any = None,
        *,
        answer: Answerer | None = None,
        supports: frozenset[str] | set[str] | None = None,
        time_limit: float | None = ATTACHED_TIME_LIMIT,
        principal: Principal | str | None = None,
        request: RequestInfo | None = None,
    ) -> Invocation:
        """Call a method in this process: iterate for its items, or await its result.

        `answer` is a function (plain or async) from `Request` to answer; without one, and without
        `supports`, the tool gets `NotSupported`. With `supports` alone, answer by
        `invocation.answer(request_id, payload)` while iterating. `supports` limits which kinds of
        question this caller takes. `principal` is whoever it is made for, or their name: a mounted server may
        have to keep their calls apart. `request` is what a method gets that takes a `RequestInfo`.
        """
        if supports is None:
            supports = KINDS if answer is not None else frozenset()
        unknown = supports - KINDS
        if unknown:
            raise ValueError(f"Unknown kinds of question: {', '.join(sorted(unknown))}")
        caller = Principal(principal) if isinstance(principal, str) else principal
        source = CallSource(caller, request)
        line = _LocalLine(self, name, params, frozenset(supports), time_limit, source)
        return Invocation(line, answer)

    async def open(self) -> None:
        """Make ready what the hub needs to serve: its lifespan, mounted servers, and its journal.

        Raises `LifespanError` or `JournalError`. `async with hub:` opens it, and closes it.
        """
        self._is_open = True
        try:
            await self.start_lifespans()
            await self.open_mounts()
            if self.durable is not None:
                await self.durable.open()
        except BaseException:
            self._is_open = False
            await self.stop_lifespans()
            raise

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open_mounts(self, patience: float = MOUNTING) -> None:
        """Connect the servers that are mounted, here and in nested hubs, and wait for them for a while.

        Those that cannot be reached by then are tried again and again, until `close`.
        """
        self._begin_mounts()
        until = time.monotonic() + patience
        for mount in self.mounts:
            await mount.ready(until - time.monotonic())
        if self.mounts and (unmatched := self.unmatched()):
            log.warning("No method, resource or prompt matches %s", " or ".join(map(repr, unmatched)))

    def _begin_mounts(self) -> None:
        self._mounting = True
        for mount in self._mounts:
            mount.begin()
        for hub in self._nested():
            hub._begin_mounts()

    def _nested(self) -> "list[Hub]":
        return [hub for hub in self._descendants() if isinstance(hub, Hub)]

    @property
    def mounts(self) -> list[Any]:
        """What is mounted here and in nested hubs."""
        return [*self._mounts, *(mount for hub in self._nested() for mount in hub._mounts)]

    async def close(self, reason: str = "The server is closing", *, grace: float = 0.0) -> None:
        """End all calls; those that are kept stay in their journal, and go on from there."""
        if self.chat is not None:
            await self.chat.close()
        if self.durable is not None:
            await self.durable.close(grace)
        await self.calls.close(reason)
        for _, activation in self._all_activations():
            await activation.close()
        await self.close_mounts()
        self._is_open = False
        await self.stop_lifespans()

    async def close_mounts(self) -> None:
        """Let go of the servers that are mounted, here and in nested hubs."""
        for hub in (self, *self._nested()):
            hub._mounting = False
        await asyncio.gather(*(mount.close() for mount in self.mounts))

    def parts(self) -> list[Any]:
        """What is served over HTTP beside the methods: the chat, and state machines."""
        parts: list[Any] = [] if self.chat is None else [self.chat.part()]
        if any(hub._has_machines for hub in (self, *self._nested())):
            from midcall.fsm.http import MachinePart  # noqa: PLC0415  as in `register_machine`

            parts.append(MachinePart(self))
        return parts

    def asgi(
        self,
        *,
        auth: Any = None,
        hosts: Sequence[str] = (),
        sse: bool = False,
        admin: bool = False,
        metrics: bool = False,
        rate_limit: float | None = None,
        web_modules: Sequence[str | Path] = (),
        public_url: str | None = None,
        notify: Any = None,
        respond_tool: Literal["always", "declared", "never"] | None = None,
    ) -> Any:
        """This hub as an ASGI application: `/mcp`, `/ws`, `/health`, `/ready`, and a page at `/`.

        `auth` tells who calls (see `midcall.transports.auth`); `hosts` are names by which it is reached;
        `sse` adds the deprecated transport HTTP+SSE at `/sse`, for MCP clients that know no other. With
        `auth`, `/admin` is for administrators; without it, and with `admin`, for programs of this machine.
        `metrics` adds `/metrics` for both. A hub with a chat (`midcall.chat.ChatEngine`) has `/chat` and
        `/agui` too; `web_modules` are files of JavaScript that its page loads, with components for questions.
        `rate_limit` is how many calls a second each caller may start, 0 for no limit (see `midcall.calls`).
        `public_url` is where people reach it, for links to questions; `notify` tells people of questions
        that wait (see `midcall.notify`). `respond_tool` says which MCP clients before 2026-07-28 that have no
        elicitation get a tool to answer with: all, those that declare it, or none (default: all).

        Mounted in another application, it does not see that one's start and end: call
        `await hub.open()` and `await hub.close()` there.
        """
        from midcall.transports.http import asgi_app  # noqa: PLC0415  the one step up the rooms

        return asgi_app(
            self,
            auth=auth,
            hosts=hosts,
            sse=sse,
            admin=admin,
            metrics=metrics,
            rate_limit=rate_limit,
            parts=self.parts(),
            web_modules=web_modules,
            public_url=public_url,
            notify=notify,
            respond_tool=respond_tool,
        )


class _LocalLine(Line):
    """A line to a hub in this process."""

    def __init__(
        self,
        hub: Hub,
        name: str,
        params: Any,
        supported: frozenset[str],
        time_limit: float | None,
        source: CallSource,
    ) -> None:
        self._hub = hub
        self._name = name
        self._params = b"" if params is None else to_json(params)
        self._supported = supported
        self._time_limit = time_limit
        self._source = source
        self._call: Call | None = None

    async def start(self, outlet: Outlet) -> None:
        principal = self._source.principal
        if self._hub._lifespans():
            await self._hub.start_lifespans()
        self._call = self._hub.start(
            self._name,
            self._params,
            outlet,
            supported=self._supported,
            time_limit=self._time_limit,
            owner=self,
            principal=None if principal is None else principal.name,
            sender=self._source,
        )

    async def streaming(self) -> bool:
        return self._hub.resolve(self._name).method.streaming

    async def answer(self, request_id: str, payload: Any) -> None:
        self._hub.calls.answer(request_id, payload, owner=self)

    async def close(self, reason: str) -> None:
        if self._call is not None:
            await end_all((self._call,), reason)

    async def leave(self) -> None:
        await self.close("The caller went away")

    @property
    def call_id(self) -> str:
        return "" if self._call is None else self._call.id

"""Hub: the registry and router of methods.

A hub holds activations (namespaced), MCP servers that are mounted like those, other hubs (nested) and
extensions (names without a namespace, resolved first). It resolves a name, validates the arguments and starts
a call. It knows no protocol: transports and dialects sit above it and hand it names, raw arguments and an
outlet.
"""

import asyncio
import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from midcall.activation import Activation, Method, digest, own_method, read_methods
from midcall.call import Call
from midcall.calls import Calls, end_all
from midcall.errors import MethodNotFound, RegistrationError
from midcall.invocation import Answerer, Invocation, Line
from midcall.items import Metadata, to_json
from midcall.marks import Kind
from midcall.outlet import Outlet
from midcall.questions import KINDS

ATTACHED_TIME_LIMIT = 30.0
"""Seconds that a question waits by default when the caller is on the line."""

MOUNTING = 10.0
"""Seconds that all mounted servers have to be reached before the hub is open without them."""


class Resolved(NamedTuple):
    """A method, the full name by which the hub knows it, and the path of names that leads there."""

    name: str
    method: Method
    provenance: tuple[str, ...]


class Hub:
    """Methods by name: `Hub("plexus").register(Files())` makes `files.delete` callable."""

    def __init__(self, name: str = "plexus", *, description: str = "", version: str = "1.0.0") -> None:
        if not name or "." in name:
            raise RegistrationError(f"{name!r} is not a name for a hub")
        self.name = name
        self.description = description
        self.version = version
        self.calls = Calls()
        self._children: list[tuple[str, Activation | Hub]] = []  # by namespace, which may be empty
        self._watchers: list[Callable[[str | None], None]] = []
        self._extensions: dict[str, tuple[object, Method]] = {}
        self._parents: list[Hub] = []
        self._mounts: list[Any] = []
        self._mounting = False
        """Whether what is mounted is connected, or being connected."""
        self.keeper: Any = None
        """Keeps calls that outlive their requests (see `journal.keeper`)."""
        self.chat: Any = None
        """Where people talk to a model that calls these methods (see `midcall.chat`)."""
        self.protocols: list[Any] = []
        """The extensions that speak a protocol of their own."""
        self._own = {
            "schema": own_method(self.schema, "The schema of this hub, or of one of its methods."),
            "hash": own_method(self._read_hash, "The hash of this hub's schema."),
        }
        self._resolved: dict[str, Resolved] | None = None
        self._hash: str | None = None

    # --- registering -------------------------------------------------------------------------

    def register(self, activation: object, *, namespace: str | None = None) -> "Hub":
        """Add an object with `@method`s. Its namespace is given here, in its attribute
        `namespace`, or is its class name in lower case."""
        made = Activation(activation, namespace)
        self._add(made.namespace, made)
        return self

    def register_hub(self, hub: "Hub", *, namespace: str | None = None) -> "Hub":
        """Nest another hub under its name: `child.files.delete`."""
        if hub is self or self in hub._descendants():
            raise RegistrationError(f"Hub {hub.name!r} cannot be nested in itself")
        self._add(namespace or hub.name, hub)
        hub._parents.append(self)
        if self._mounting:
            hub._begin_mounts()
        return self

    def mount(self, namespace: str, target: Any, **options: Any) -> "Hub":
        """Make an MCP server a part of this hub: `hub.mount("github", "npx -y some-server")`.

        Its tools become methods (`github.create_issue`), its prompts are named in the same way, and its
        resources keep their URIs. `namespace` may be empty; of two with the same name, the first counts.
        What the server asks goes to whoever has made the call.

        `target` and most options are those of `connect`: `headers` and `auth` for a URL, `env` and `cwd` for
        a command, `era`, `revision`, `log_level`. `timeout` is for how many seconds the server may say
        nothing about a call; `scopes` are those that a caller needs for all of it; `sample` and `roots`
        answer here what the server asks of a model, or of folders.

        The server is connected when the hub is opened. While it cannot be reached, its methods stay, and
        raise `Unreachable`.
        """
        from midcall.client.mount import mount_of  # noqa: PLC0415  a step up the rooms, as in `asgi`

        mount = mount_of(namespace, target, self._changed, self.updated, options)
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

    def with_extension(self, extension: object) -> "Hub":
        """Add an object whose `@method` names stand without a namespace, as `tools/list`.

        If it has `attach(hub)`, that is called, so that it can call into activations. One that has
        `connect(connection)` speaks a protocol of its own on every line, with the method names that
        its `names` gives (see `connection.Speaker`).
        """
        methods = read_methods(extension)
        names = {*methods, *getattr(extension, "names", ())}
        if not names:
            raise RegistrationError(f"{type(extension).__name__} has no @method")
        for name in sorted(names):
            taken = self._owner_of(name)
            if taken is not None:
                raise RegistrationError(
                    f"Extension {type(extension).__name__} would hide {name!r} of {taken}"
                )
        self._extensions.update({name: (extension, m) for name, m in methods.items()})
        if hasattr(extension, "connect"):
            self.protocols.append(extension)
        self._changed()
        attach = getattr(extension, "attach", None)
        if attach is not None:
            attach(self)
        return self

    def _add(self, namespace: str, child: "Activation | Hub") -> None:
        if "." in namespace:
            raise RegistrationError(f"{namespace!r} is not a namespace: a dot parts two of them")
        if namespace == self.name:
            raise RegistrationError(
                f"Namespace {namespace!r} of {_describe(child)} is taken by hub {self.name!r} itself"
            )
        for other, taken in self._children:
            if namespace and namespace == other:
                raise RegistrationError(
                    f"Namespace {namespace!r} of {_describe(child)} is taken by {_describe(taken)}"
                )
        for name, _ in _methods_below(namespace, child):
            if name in self._extensions:
                extension = type(self._extensions[name][0]).__name__
                raise RegistrationError(
                    f"{name!r} of {_describe(child)} would be hidden by extension {extension}"
                )
            found = self._names().get(name)
            if found is not None and found.name == name:
                raise RegistrationError(f"{name!r} of {_describe(child)} is taken by {self._owner_of(name)}")
        self._children.append((namespace, child))
        self._changed()

    def _owner_of(self, name: str) -> str | None:
        if name in self._extensions:
            return f"extension {type(self._extensions[name][0]).__name__}"
        found = self._names().get(name)
        if found is None:
            return None
        for namespace, child in self._children:
            if any(found.name == path for path, _ in _methods_below(namespace, child)):
                return _describe(child)
        return f"hub {self.name!r}"

    def unregister(self, activation: object) -> "Hub":
        """Take out an activation that was registered before; calls that run go on."""
        left = [c for c in self._children if not (isinstance(c[1], Activation) and c[1].source is activation)]
        if len(left) == len(self._children):
            raise RegistrationError(f"{type(activation).__name__} is not registered")
        self._children = left
        self._changed()
        return self

    def updated(self, uri: str) -> None:
        """Tell whoever watches that what is read at this URI has changed."""
        for watcher in self._watchers:
            watcher(uri)
        for parent in self._parents:
            parent.updated(uri)

    def watch(self, watcher: Callable[[str | None], None]) -> None:
        """Call this with the URI of an updated resource, and with `None` after every registration."""
        self._watchers.append(watcher)

    def _changed(self) -> None:
        self._resolved = None
        self._hash = None
        for watcher in self._watchers:
            watcher(None)
        for parent in self._parents:
            parent._changed()

    def _descendants(self) -> "set[Hub]":
        nested = [child for _, child in self._children if isinstance(child, Hub)]
        return set(nested).union(*(child._descendants() for child in nested))

    # --- resolving ---------------------------------------------------------------------------

    def resolve(self, name: str) -> Resolved:
        """Find a method: extensions by exact name, then activations, then aliases (`ns_method`).

        Raises `MethodNotFound`, with near matches.
        """
        found = (self._resolved or self._names()).get(name) or self.unlisted(name)
        if found is None:
            raise MethodNotFound(name, self._near(name))
        return found

    def unlisted(self, name: str, kind: Kind = "method") -> Resolved | None:
        """A method, or a prompt, of a mounted server that has not told yet which it has."""
        for path, activation in self.activations():
            prefix = f"{path}." if path else ""
            method = activation.unlisted(name[len(prefix) :], kind) if name.startswith(prefix) else None
            if method is not None:
                return Resolved(name, method, (self.name, *prefix.split(".")[:-1]))
        return None

    def _names(self) -> dict[str, Resolved]:
        """Every name that resolves, made once after each registration."""
        if self._resolved is None:
            names = {name: Resolved(name, m, (self.name,)) for name, m in self._walk_own()}
            for path, m in self._walk():
                names.setdefault(path, Resolved(path, m, (self.name, *path.split(".")[:-1])))
            aliases: dict[str, list[Resolved]] = {}
            for found in names.values():
                aliases.setdefault(found.name.replace(".", "_"), []).append(found)
            lifted = {name: Resolved(name, m, (self.name,)) for name, (_, m) in self._extensions.items()}
            single = {alias: found[0] for alias, found in aliases.items() if len(found) == 1}
            always = {f"plexus_{name}": names[f"{self.name}.{name}"] for name in self._own}
            self._resolved = {**always, **single, **names, **lifted}
        return self._resolved

    def _walk_own(self) -> Iterator[tuple[str, Method]]:
        for name, m in self._own.items():
            yield f"{self.name}.{name}", m

    def _walk(self) -> Iterator[tuple[str, Method]]:
        for namespace, child in self._children:
            yield from _methods_below(namespace, child)

    def _near(self, name: str) -> list[str]:
        visible = [path for path, m in self._walk() if not m.hidden]
        visible += [*self._extensions, *(path for path, _ in self._walk_own())]
        close = difflib.get_close_matches(name, visible, n=3, cutoff=0.6)
        last = name.rpartition(".")[2]
        same = [path for path in visible if path.rpartition(".")[2] == last and path not in close]
        return (close + same)[:3]

    # --- looking -----------------------------------------------------------------------------

    @property
    def hash(self) -> str:
        """16 hex characters that change when any method or child changes."""
        if self._hash is None:
            children = sorted((namespace, child.hash) for namespace, child in self._children)
            extensions = {name: m.hash for name, (_, m) in self._extensions.items()}
            self._hash = digest([self.name, children, extensions])
        return self._hash

    def methods(self) -> list[tuple[str, Method]]:
        """Every method that an author wrote, by full name, in the order of registration."""
        shown: dict[str, Method] = {}
        for path, m in self._walk():
            if not m.hidden:
                shown.setdefault(path, m)  # two mounted servers may have the same names
        return list(shown.items())

    def activations(self) -> Iterator[tuple[str, Activation]]:
        """Every activation, here and in nested hubs, with the path of its namespace."""
        for namespace, child in self._children:
            if isinstance(child, Activation):
                yield namespace, child
            else:
                for path, nested in child.activations():
                    yield f"{namespace}.{path}" if path else namespace, nested

    def schema(self, method: str | None = None) -> dict[str, Any]:
        """The schema of the whole hub, or of one method by name."""
        if method is not None:
            found = self.resolve(method)
            return {**found.method.schema(), "name": found.name}
        return {
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "hash": self.hash,
            "activations": [c.schema() for _, c in self._children if isinstance(c, Activation)],
            "hubs": [{**c.schema(), "namespace": n} for n, c in self._children if isinstance(c, Hub)],
            "extensions": [m.schema() for _, m in self._extensions.values()],
        }

    def _read_hash(self) -> str:
        return self.hash

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
    ) -> Call:
        """Validate and start a call whose items go to `outlet`.

        Raises `MethodNotFound` or `InvalidArguments`; then nothing was started.
        """
        call = self.prepare(
            self.resolve(name),
            raw_params,
            outlet,
            supported=supported,
            time_limit=time_limit,
            owner=owner,
            principal=principal,
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
    ) -> Call:
        """A call of a method that is found already, for `calls.start`. Raises `InvalidArguments`."""
        arguments = found.method.read_arguments(raw_params, found.name)
        metadata = Metadata(found.provenance, self._hash or self.hash, 0)
        return Call(
            found.name, found.method, arguments, outlet, metadata, supported, time_limit, owner, principal
        )

    def call(
        self,
        name: str,
        params: Any = None,
        *,
        answer: Answerer | None = None,
        supports: frozenset[str] | set[str] | None = None,
        time_limit: float | None = ATTACHED_TIME_LIMIT,
        principal: str | None = None,
    ) -> Invocation:
        """Call a method in this process: iterate for its items, or await its result.

        `answer` is a function (plain or async) from `Request` to answer; without one, and without
        `supports`, the tool gets `NotSupported`. With `supports` alone, answer by
        `invocation.answer(request_id, payload)` while iterating. `supports` limits which kinds of
        question this caller takes. `principal` is the name of whoever it is made for: a mounted server may
        have to keep their calls apart.
        """
        if supports is None:
            supports = KINDS if answer is not None else frozenset()
        unknown = supports - KINDS
        if unknown:
            raise ValueError(f"Unknown kinds of question: {', '.join(sorted(unknown))}")
        line = _LocalLine(self, name, params, frozenset(supports), time_limit, principal)
        return Invocation(line, answer)

    async def open(self) -> None:
        """Make ready what the hub needs to serve: mounted servers, and its journal. Raises `JournalError`."""
        await self.open_mounts()
        if self.keeper is not None:
            await self.keeper.open()

    async def open_mounts(self, patience: float = MOUNTING) -> None:
        """Connect the servers that are mounted, here and in nested hubs, and wait for them for a while.

        Those that cannot be reached by then are tried again and again, until `close`.
        """
        self._begin_mounts()
        until = time.monotonic() + patience
        for mount in self.mounts:
            await mount.ready(until - time.monotonic())

    def _begin_mounts(self) -> None:
        self._mounting = True
        for mount in self._mounts:
            mount.begin()
        for hub in self._descendants():
            hub._begin_mounts()

    @property
    def mounts(self) -> list[Any]:
        """What is mounted here and in nested hubs."""
        return [*self._mounts, *(mount for hub in self._descendants() for mount in hub._mounts)]

    async def close(self, reason: str = "The server is closing", *, grace: float = 0.0) -> None:
        """End all calls; those that are kept stay in their journal, and go on from there."""
        if self.chat is not None:
            await self.chat.close()
        if self.keeper is not None:
            await self.keeper.close(grace)
        await self.calls.close(reason)
        await self.close_mounts()

    async def close_mounts(self) -> None:
        """Let go of the servers that are mounted, here and in nested hubs."""
        for hub in (self, *self._descendants()):
            hub._mounting = False
        await asyncio.gather(*(mount.close() for mount in self.mounts))

    def asgi(
        self,
        *,
        auth: Any = None,
        hosts: Sequence[str] = (),
        sse: bool = False,
        admin: bool = False,
        metrics: bool = False,
        web_modules: Sequence[str | Path] = (),
    ) -> Any:
        """This hub as an ASGI application: `/mcp`, `/ws`, `/health`, `/ready`, and a page at `/`.

        `auth` tells who calls (see `midcall.transports.auth`); `hosts` are names by which it is reached;
        `sse` adds the deprecated transport HTTP+SSE at `/sse`, for MCP clients that know no other. With
        `auth`, `/admin` is for administrators; without it, and with `admin`, for programs of this machine.
        `metrics` adds `/metrics` for both. A hub with a chat (`midcall.chat.ChatEngine`) has `/chat` and
        `/agui` too; `web_modules` are files of JavaScript that its page loads, with components for questions.

        Mounted in another application, it does not see that one's start and end: call
        `await hub.open()` and `await hub.close()` there.
        """
        from midcall.transports.http import asgi_app  # noqa: PLC0415  the one step up the rooms

        parts = () if self.chat is None else (self.chat.part(),)
        return asgi_app(
            self,
            auth=auth,
            hosts=hosts,
            sse=sse,
            admin=admin,
            metrics=metrics,
            parts=parts,
            web_modules=web_modules,
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
        principal: str | None,
    ) -> None:
        self._hub = hub
        self._name = name
        self._params = b"" if params is None else to_json(params)
        self._supported = supported
        self._time_limit = time_limit
        self._principal = principal
        self._call: Call | None = None

    async def start(self, outlet: Outlet) -> None:
        self._call = self._hub.start(
            self._name,
            self._params,
            outlet,
            supported=self._supported,
            time_limit=self._time_limit,
            owner=self,
            principal=self._principal,
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


def _methods_below(path: str, child: Activation | Hub) -> Iterator[tuple[str, Method]]:
    prefix = f"{path}." if path else ""
    if isinstance(child, Activation):
        for name, m in child.methods.items():
            yield f"{prefix}{name}", m
        return
    for name, m in child._own.items():
        yield f"{path}.{name}", m
    for name, m in child._walk():
        yield f"{path}.{name}", m


def _describe(child: Activation | Hub) -> str:
    return f"hub {child.name!r}" if isinstance(child, Hub) else type(child.source).__name__

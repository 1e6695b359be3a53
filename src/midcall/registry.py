"""Registry: methods by name.

Holds activations (namespaced), other registries (nested) and extensions (names without a namespace, resolved
first). It finds a method by its name, tells what there is, and whoever watches when that changes. It runs
nothing: that is the hub's part.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeVar, Unpack, overload

from midcall import decorators
from midcall.activation import Activation, Functions, Method, digest, own_method, read_methods
from midcall.decorators import Kind, Mark, Marker, MethodOptions, PromptOptions, ResourceOptions
from midcall.errors import LifespanError, MethodNotFound, RegistrationError
from midcall.limits import near_matches
from midcall.selection import Selectable, Selection, check_matched, selection

F = TypeVar("F", bound=Callable[..., Any])


class Resolved(NamedTuple):
    """A method, the full name by which the hub knows it, and the path of names that leads there."""

    name: str
    method: Method
    provenance: tuple[str, ...]


class HubChange(NamedTuple):
    """What whoever watches a hub is told: without a URI or a part, that something was registered."""

    uri: str | None = None
    """What is read there has changed."""
    part: Literal["resources", "prompts"] | None = None
    """Others are listed now."""
    principals: Collection[str | None] | None = None
    """Only these callers see it; without, all do."""


class Registry:
    """What a hub has, by name."""

    def __init__(self, name: str, description: str, version: str) -> None:
        if not name or "." in name:
            raise RegistrationError(f"{name!r} is not a name for a hub")
        self.name = name
        self.description = description
        self.version = version
        self.protocols: list[Any] = []
        """The extensions that speak a protocol of their own."""
        self._children: list[tuple[str, Activation | Registry]] = []  # by namespace, which may be empty
        self._selections: list[Selection] = []
        self._view: list[tuple[str, Activation | Registry]] | None = None
        self._watchers: list[Callable[[HubChange], None]] = []
        self._extensions: dict[str, tuple[object, Method]] = {}
        self._parents: list[Registry] = []
        self._own = {
            "schema": own_method(self.schema, "The schema of this hub, or of one of its methods."),
            "hash": own_method(self._read_hash, "The hash of this hub's schema."),
        }
        self._resolved: dict[str, Resolved] | None = None
        self._hash: str | None = None

    # --- registering -------------------------------------------------------------------------

    def register(
        self, activation: object, *, namespace: str | None = None, tags: Collection[str] = ()
    ) -> Self:
        """Add an object with `@method`s. Its namespace is given here, in its attribute
        `namespace`, or is its class name in lower case. `tags` are for all that it has, beside those of its
        attribute `tags`.

        If it has `attach(hub)`, that is called, so that it can use the hub and its journal; if it has
        `detach()`, that is awaited when the hub is closed.
        """
        made = Activation(activation, namespace, tags)
        self._add(made.namespace, made)
        attach = getattr(activation, "attach", None)
        if attach is not None:
            attach(self)
        return self

    @overload
    def method(self, function: F, /) -> F: ...
    @overload
    def method(self, name: str | None = None, /, **options: Unpack[MethodOptions]) -> Callable[[F], F]: ...
    def method(self, function_or_name: Any = None, /, **options: Unpack[MethodOptions]) -> Any:
        """Make a function a method: `@hub.method`, or `@hub.method("files.delete", scopes=["files:write"])`.

        Its name is that of the function, without a namespace. The options are those of
        `midcall.method`, for functions of a class.
        """
        return self._adding(decorators.method, function_or_name, options)

    def resource(self, uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Make a function what is read at a URI, as `midcall.resource` does for one of a class."""
        return self._then_add(decorators.resource(uri, **options))

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, name: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function_or_name: Any = None, /, **options: Unpack[PromptOptions]) -> Any:
        """Make a function a template of messages, as `midcall.prompt` does for one of a class."""
        return self._adding(decorators.prompt, function_or_name, options)

    def listing(self, of: str, /, *, scopes: Sequence[str] = ()) -> Callable[[F], F]:
        """Make a function what lists the resources or prompts of a template (see `midcall.listing`)."""
        return self._then_add(decorators.listing(of, scopes=scopes))

    def completion(self, of: str, argument: str, /, *, scopes: Sequence[str] = ()) -> Callable[[F], F]:
        """Make a function what suggests values for an argument (see `midcall.completion`)."""
        return self._then_add(decorators.completion(of, argument, scopes=scopes))

    def _adding(self, decorator: Callable[..., Any], function_or_name: Any, options: Any) -> Any:
        if function_or_name is None or isinstance(function_or_name, str):
            return self._then_add(decorator(function_or_name, **options))
        return self._then_add(decorator(**options))(function_or_name)

    def _then_add(self, marker: Marker) -> Callable[[F], F]:
        """A decorator that adds a function here, with what is said of it. Raises `RegistrationError`."""
        mark = marker.mark

        def add(function: F) -> F:
            namespace, said = _placed(mark, function)
            there = [child for path, child in self._children if path == namespace]
            found = next((child for child in there if isinstance(child, Functions)), None)
            functions = Functions(namespace) if found is None else found
            if said.kind == "method" and said.name not in functions.methods:
                self._check_free(
                    f"{namespace}.{said.name}" if namespace else str(said.name), f"the function {said.name}"
                )
            functions.add(function, said)
            if found is None:
                self._add(namespace, functions)
            self._changed()
            return function

        return add

    def register_hub(self, hub: "Registry", *, namespace: str | None = None) -> Self:
        """Nest another hub under its name: `child.files.delete`."""
        if hub is self or self in hub._descendants():
            raise RegistrationError(f"Hub {hub.name!r} cannot be nested in itself")
        self._add(namespace or hub.name, hub)
        hub._parents.append(self)
        for one in self._selections:
            hub._narrow(one.below(namespace or hub.name))
        return self

    def with_extension(self, extension: object) -> Self:
        """Add an object whose `@method` names stand without a namespace, as `tools/list`.

        If it has `attach(hub)`, that is called, so that it can call into activations. One that has
        `connect(connection)` speaks a protocol of its own on every line, with the method names that
        its `names` gives (see `mcp.peer.McpPeer`).
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
        for one in methods.values():
            one.home = self
        if hasattr(extension, "connect"):
            self.protocols.append(extension)
        self._changed()
        attach = getattr(extension, "attach", None)
        if attach is not None:
            attach(self)
        return self

    def _add(self, namespace: str, child: "Activation | Registry") -> None:
        if "." in namespace:
            raise RegistrationError(f"{namespace!r} is not a namespace: a dot separates two of them")
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
            self._check_free(name, _describe(child))
        self._children.append((namespace, child))
        if isinstance(child, Activation):
            child.settle(self)
        self._changed()

    def _check_free(self, name: str, whose: str) -> None:
        if name in self._extensions:
            extension = type(self._extensions[name][0]).__name__
            raise RegistrationError(f"{name!r} of {whose} would be hidden by extension {extension}")
        found = self._names().get(name)
        if found is not None and found.name == name:
            raise RegistrationError(f"{name!r} of {whose} is taken by {self._owner_of(name)}")

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

    def unregister(self, activation: object) -> Self:
        """Take out an activation that was registered before; calls that run go on."""
        left = [c for c in self._children if not (isinstance(c[1], Activation) and c[1].source is activation)]
        if len(left) == len(self._children):
            raise RegistrationError(f"{type(activation).__name__} is not registered")
        self._children = left
        self._changed()
        return self

    # --- leaving out -------------------------------------------------------------------------

    def restrict(self, *, only: Sequence[str] | str = (), without: Sequence[str] | str = ()) -> Self:
        """Leave out methods, resources and prompts: they are neither listed nor callable, by anybody.

        `only` and `without` are patterns: `tag:admin`, a name as in `files.*`, or of a resource a URI. What
        matches one of `without` is left out, and so is what matches none of `only`, if that is given; also
        what is registered later. Given several times, each of them holds. Raises `RegistrationError` for a
        pattern that matches nothing, unless a mounted server has yet to tell what it has.
        """
        chosen = selection(only, without)
        if all(one.unlisted("any") is None for _, one in self.activations()):
            check_matched(chosen, self.named())
        self._narrow(chosen)
        return self

    def unmatched(self) -> list[str]:
        """The patterns of `restrict` that match nothing of what is registered by now."""
        there = [named for path, one in self._all_activations() for named in _named_below(path, one)]
        return [
            pattern for chosen in self._selections if not chosen.prefix for pattern in chosen.unmatched(there)
        ]

    def left_out(self) -> tuple[set[str], set[str]]:
        """The URIs of resources, and the names of prompts, that are left out, so that nothing has them."""
        uris, names = _uris_and_prompts(self.activations())
        all_uris, all_names = _uris_and_prompts(self._all_activations())
        return all_uris - uris, all_names - names

    def named(self) -> list[Selectable]:
        """All that patterns can mean, as far as it is not left out."""
        return [named for path, one in self.activations() for named in _named_below(path, one)]

    def _narrow(self, chosen: Selection) -> None:
        self._selections.append(chosen)
        for namespace, child in self._children:
            if isinstance(child, Registry):
                child._narrow(chosen.below(namespace))  # a machine there must not find it either
        self._changed()

    @property
    def _offered(self) -> "list[tuple[str, Activation | Registry]]":
        """What is registered here, as far as it is not left out; made once after each change."""
        if not self._selections:
            return self._children
        if self._view is None:
            self._view = []
            for namespace, child in self._children:
                left = child if isinstance(child, Registry) else self._selected(namespace, child)
                if left is not None:
                    self._view.append((namespace, left))
        return self._view

    def _selected(self, namespace: str, activation: Activation) -> Activation | None:
        """What is left of an activation; nothing if all of it is left out."""

        def takes(one: Method, uri: str) -> bool:
            named = _named(namespace, one, uri)
            return all(chosen.takes(named) for chosen in self._selections)

        view = activation.selected(takes)
        is_empty = not any(_named_below(namespace, view))
        return None if is_empty and any(_named_below(namespace, activation)) else view

    def _all_activations(self) -> Iterator[tuple[str, Activation]]:
        """As `activations`, with what is left out."""
        return _activations_below(self, lambda registry: registry._children)

    def updated(self, uri: str, *, principals: Collection[str | None] | None = None) -> None:
        """Tell whoever watches that what is read at this URI has changed; or only these callers."""
        self._tell(HubChange(uri=uri, principals=principals))

    def relisted(
        self, part: Literal["resources", "prompts"], *, principals: Collection[str | None] | None = None
    ) -> None:
        """Tell whoever watches that a `@listing` would give others now; or only these callers."""
        self._tell(HubChange(part=part, principals=principals))

    def is_watched(self, uri: str) -> bool:
        """Whether anybody subscribes to this URI, here or at a hub that this one is nested in."""
        return any(
            protocol.is_watched(uri) for protocol in self.protocols if hasattr(protocol, "is_watched")
        ) or any(parent.is_watched(uri) for parent in self._parents)

    def watch(self, watcher: Callable[[HubChange], None]) -> None:
        """Call this after every change."""
        self._watchers.append(watcher)

    def _tell(self, change: HubChange) -> None:
        for watcher in self._watchers:
            watcher(change)
        for parent in self._parents:
            parent._tell(change)

    def _changed(self) -> None:
        self._resolved = None
        self._hash = None
        self._view = None
        for watcher in self._watchers:
            watcher(HubChange())
        for parent in self._parents:
            parent._changed()

    @property
    def root(self) -> "Registry":
        """The hub that this one is nested in, at whatever depth; or itself."""
        return self._parents[0].root if self._parents else self

    async def lifespan_value(self) -> Any:
        """What methods get as `Lifespan[...]`: of this hub, or of the nearest one around it that has one.

        Raises `LifespanError`.
        """
        if self._parents:
            return await self._parents[0].lifespan_value()
        raise LifespanError(f"Hub {self.name!r} has no lifespan: give it one by @hub.lifespan")

    def _descendants(self) -> "set[Registry]":
        nested = [child for _, child in self._children if isinstance(child, Registry)]
        return set(nested).union(*(child._descendants() for child in nested))

    # --- resolving ---------------------------------------------------------------------------

    def resolve(self, name: str) -> Resolved:
        """Find a method: extensions by exact name, then activations, then aliases (`ns_method`).

        Raises `MethodNotFound`, with near matches.
        """
        found = self.find(name)
        if found is None:
            raise MethodNotFound(name, self._near(name))
        return found

    def find(self, name: str) -> Resolved | None:
        """The same; nothing if there is none, without a search for near matches."""
        return (self._resolved or self._names()).get(name) or self.unlisted(name)

    def unlisted(self, name: str, kind: Kind = "method") -> Resolved | None:
        """A method, or a prompt, of a mounted server that has not told yet which it has."""
        for path, activation in self.activations():
            prefix = f"{path}." if path else ""
            method = activation.unlisted(name[len(prefix) :], kind) if name.startswith(prefix) else None
            if method is not None and self._takes_unlisted(name):
                return Resolved(name, method, (self.name, *prefix.split(".")[:-1]))
        return None

    def _takes_unlisted(self, name: str) -> bool:
        namespace, _, rest = name.partition(".")
        nested = (
            child for path, child in self._children if path == namespace and isinstance(child, Registry)
        )
        return all(chosen.takes_unlisted(name) for chosen in self._selections) and all(
            child._takes_unlisted(rest) for child in nested
        )

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
        for namespace, child in self._offered:
            yield from _methods_below(namespace, child)

    def _near(self, name: str) -> list[str]:
        visible = [path for path, m in self._walk() if not m.hidden]
        visible += [*self._extensions, *(path for path, _ in self._walk_own())]
        close = near_matches(name, visible)
        last = name.rpartition(".")[2]
        same = [path for path in visible if path.rpartition(".")[2] == last and path not in close]
        return (close + same)[:3]

    # --- looking -----------------------------------------------------------------------------

    @property
    def hash(self) -> str:
        """16 hex characters that change when any method or child changes."""
        if self._hash is None:
            children = sorted((namespace, child.hash) for namespace, child in self._offered)
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
        """Every activation, here and in nested hubs, with the path of its namespace.

        Of one of which something is left out, a view of the rest.
        """
        return _activations_below(self, lambda registry: registry._offered)

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
            "activations": [c.schema() for _, c in self._offered if isinstance(c, Activation)],
            "hubs": [{**c.schema(), "namespace": n} for n, c in self._offered if isinstance(c, Registry)],
            "extensions": [m.schema() for _, m in self._extensions.values()],
        }

    def _read_hash(self) -> str:
        return self.hash


def _placed(mark: Mark, function: Callable[..., Any]) -> tuple[str, Mark]:
    """The namespace that a function goes to, as the name before the last dot says, and its mark there."""
    if not callable(function):
        raise RegistrationError(f"@hub.{mark.kind} takes a name or a function, and got {function!r}")
    own = str(getattr(function, "__name__", ""))
    name = mark.name or ("" if own == "<lambda>" else own)
    if inspect.isclass(function) or next(iter(inspect.signature(function).parameters), "") == "self":
        raise RegistrationError(
            f"{name} is {'a class' if inspect.isclass(function) else 'a function of a class'}: "
            f"use @{mark.kind} inside of the class, and hub.register(...) an instance of it"
        )
    if mark.kind in ("method", "prompt"):
        namespace, _, last = name.rpartition(".")
        if not last:
            raise RegistrationError(f'{function!r} needs a name, as in @hub.{mark.kind}("name")')
        return namespace, mark._replace(name=last)
    of = mark.extras.get("of", "")  # a prompt, or a template of URIs
    namespace, _, last = ("", "", of) if "://" in of else of.rpartition(".")
    return namespace, mark._replace(name=name, extras={**mark.extras, "of": last} if of else mark.extras)


def _methods_below(path: str, child: Activation | Registry) -> Iterator[tuple[str, Method]]:
    prefix = f"{path}." if path else ""
    if isinstance(child, Activation):
        for name, m in child.methods.items():
            yield f"{prefix}{name}", m
        return
    for name, m in child._own.items():
        yield f"{path}.{name}", m
    for name, m in child._walk():
        yield f"{path}.{name}", m


def _activations_below(
    registry: Registry, children: "Callable[[Registry], list[tuple[str, Activation | Registry]]]"
) -> Iterator[tuple[str, Activation]]:
    for namespace, child in children(registry):
        if isinstance(child, Activation):
            yield namespace, child
        else:
            for path, nested in _activations_below(child, children):
                yield f"{namespace}.{path}" if path else namespace, nested


def _uris_and_prompts(activations: Iterable[tuple[str, Activation]]) -> tuple[set[str], set[str]]:
    uris: set[str] = set()
    names: set[str] = set()
    for path, one in activations:
        uris.update(method.extras["uri"] for method in one.resources)
        names.update(f"{path}.{name}" if path else name for name in one.prompts)
    return uris, names


def _named(path: str, method: Method, uri: str = "") -> Selectable:
    """What patterns are held against."""
    name = f"{path}.{method.name}" if path else method.name
    return Selectable(name, method.tags, uri)


def _named_below(path: str, activation: Activation) -> Iterator[Selectable]:
    for method in (*activation.visible, *activation.prompts.values()):
        yield _named(path, method)
    for method in activation.resources:
        yield _named(path, method, method.extras["uri"])


def _describe(child: Activation | Registry) -> str:
    if isinstance(child, Functions):
        return "functions of the hub"
    return f"hub {child.name!r}" if isinstance(child, Registry) else type(child.source).__name__

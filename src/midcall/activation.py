"""Activations: reads an object's methods once, into schema, validation and a way to run.

Any object with functions marked `@method` is an activation; it needs no base class. What is read
here once for each method (types, JSON Schema, validator) is all that a call needs later. This
module knows `ask` and `schema`, and no hub.
"""

import asyncio
import collections.abc
import contextlib
import copy
import functools
import hashlib
import inspect
import itertools
import logging
import re
import types
import typing
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Container, Generator, Mapping, Sequence
from typing import Any, Self

import msgspec

from midcall import dependencies
from midcall.ask import Ask
from midcall.call import CALLER, LIFESPAN, Call
from midcall.content import Content
from midcall.decorators import Kind, Mark, mark_of, tagged
from midcall.dependencies import Dependency, Depends, Filled, Home, filled_with, hints_of, name_of
from midcall.docstrings import read_docstring
from midcall.errors import InvalidArguments, NotAllowed, RegistrationError
from midcall.principal import Principal, RequestInfo
from midcall.selection import checked_tags
from midcall.steps import in_thread

log = logging.getLogger("midcall.activation")

_NAMESPACE = re.compile(r"^[A-Za-z][A-Za-z0-9_-]*$")
_METHOD_NAME = re.compile(r"[\w./-]{1,128}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.+", re.DOTALL)
PART = re.compile(r"\{(\w+)\}")
"""In the URI of a resource, or the name of a prompt: what differs, and is a parameter of the function."""

_STREAMS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
)

_LISTS = (list, tuple, collections.abc.Sequence)

_NOTHING = (b"", b"{}", b"null", b"[]")


class Method:
    """One method, ready to run: its schema, and the way from raw arguments to a running body."""

    __slots__ = (
        "_ask_parameter",
        "_caller_parameter",
        "_filled",
        "_function",
        "_names",
        "_run",
        "_shape",
        "description",
        "elicits",
        "extras",
        "gives_content",
        "hash",
        "hidden",
        "home",
        "interactive",
        "kind",
        "name",
        "params",
        "returns",
        "streaming",
        "wants_lifespan",
        "wants_request",
        "wants_source",
    )

    def __init__(self, function: Callable[..., Any], mark: Mark, *, hidden: bool = False) -> None:
        if not _is_function(function):
            raise RegistrationError(f"{function!r} is not a function: write one that calls it")
        self._function = function
        self.home: Home | None = None
        """The hub that it belongs to."""
        self.kind: Kind = mark.kind
        self.name = mark.name or function.__name__
        if self.kind == "method" and not _METHOD_NAME.fullmatch(self.name):
            raise RegistrationError(
                f"{self.name!r} is not a name for a method: up to 128 letters, digits, '_', '-', '.' and '/'"
            )
        self.hidden = hidden
        self.elicits = {question.key: question for question in mark.elicits}
        self.extras = mark.extras
        doc = read_docstring(function.__doc__)
        self.description = mark.description or doc.text
        hints = hints_of(function)
        filled, fields = _parameters(function, hints, doc.parameters)
        given = dependencies.within(filled)
        self.interactive = Ask in given
        self.wants_request = RequestInfo in given
        self.wants_source = Principal in given or self.wants_request
        self.wants_lifespan = LIFESPAN in given
        self._ask_parameter = next((name for name, one in filled.items() if one.what is Ask), None)
        self._caller_parameter = next((name for name, one in filled.items() if one.what is CALLER), None)
        self._filled = filled if any(one.what not in (Ask, CALLER) for one in filled.values()) else None
        self._names = [name for name, *_ in fields]
        _check_sent(function, mark, {name: default is ... for name, _, default in fields})
        self._run, self.streaming = _runner(function, interactive=self._ask_parameter is not None)
        self._read_types(function, fields, hints.get("return", Any))
        self.hash = digest(self._schema())

    def describe(
        self,
        name: str,
        description: str,
        params: dict[str, Any],
        returns: dict[str, Any] | None,
        function: Callable[..., Any],
        *,
        streaming: bool = False,
    ) -> None:
        """Say what there is to a method that is no function of an author; it may ask."""
        self.home = None
        self.kind = "method"
        self.name = name
        self.description = description
        self.params = params
        self.returns = returns
        self.gives_content = False
        self.hidden = False
        self.elicits = {}
        self.interactive = True
        self.streaming = streaming
        properties = params.get("properties")
        self._names = list(properties) if isinstance(properties, dict) else []
        self._ask_parameter = None
        self._filled = None
        self.wants_source = self.wants_request = self.wants_lifespan = False
        self._function = function

    def _read_types(self, function: Callable[..., Any], fields: Any, returns: Any) -> None:
        from midcall.schema import (  # noqa: PLC0415  slow to import: only when a method is read
            arguments_shape,
            misfit,
            output_schema,
        )

        try:
            self._shape = arguments_shape(function.__name__, fields, as_texts=self.kind == "prompt")
        except TypeError as error:
            raise RegistrationError(f"{name_of(function)}: {misfit(fields) or error}") from error
        self.params = {"properties": {}, **self._shape.schema}
        given = _element_type(returns) if self.streaming else returns
        self.gives_content = _may_be_content(given)
        try:
            self.returns = output_schema(given)
        except TypeError as error:
            self.returns = None
            if self.kind == "method" and not self.gives_content:
                log.warning("%s has no output schema: %s", name_of(function), error)

    def schema(self, namespace: str = "") -> dict[str, Any]:
        """What introspection shows of this method."""
        return {
            **self._schema(),
            "name": f"{namespace}.{self.name}" if namespace else self.name,
            "hash": self.hash,
        }

    def _schema(self) -> dict[str, Any]:
        from midcall.schema import shape_of  # noqa: PLC0415  as above

        schema: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "params": self.params,
            "returns": self.returns,
            "streaming": self.streaming,
            "interactive": self.interactive,
        }
        if self.elicits:
            schema["elicits"] = {key: shape_of(q.answer_type).schema for key, q in self.elicits.items()}
        if self.tags:
            schema["tags"] = list(self.tags)
        return schema

    @property
    def tags(self) -> tuple[str, ...]:
        """Those of its own, and of its activation."""
        return self.extras.get("tags", ())  # type: ignore[no-any-return]

    @property
    def output(self) -> dict[str, Any] | None:
        """The schema of the result as a whole. `None` if nothing is said of it, or it may be `Content`.

        Of a stream, the whole is a list of its items, or the text that they make.
        """
        if not self.returns or self.gives_content:
            return None
        if not self.streaming:
            return self.returns
        if self.returns.get("type") == "string":
            return {"type": "string"}
        items = {key: value for key, value in self.returns.items() if key != "$defs"}
        definitions = {"$defs": self.returns["$defs"]} if "$defs" in self.returns else {}
        return {"type": "array", "items": items, **definitions}

    def whole(self, contents: Sequence[Any]) -> Any:
        """The result as a whole, of the items that the method gave."""
        if not self.streaming:
            return contents[0] if contents else None
        is_text = not self.returns or self.returns.get("type") == "string"
        if is_text and all(isinstance(item, str) for item in contents):
            return "".join(contents)
        return list(contents)

    def read_arguments(self, raw: bytes, name: str = "") -> Any:
        """Validated arguments from JSON, for `invoke`: an object, or an array in the order of the parameters.

        Raises `InvalidArguments` with one entry for each fault.
        """
        if not self._names and raw in _NOTHING:
            return {}
        try:
            arguments: dict[str, Any] = self._shape.validate_json(raw)
        except ValueError:
            arguments = self._read_unusual(raw, name)
        return arguments

    def _read_unusual(self, raw: bytes, name: str) -> dict[str, Any]:
        """What is no object: nothing at all, or an array; and all that is wrong."""
        try:
            if raw in _NOTHING:
                raw = b"{}"
            elif raw.lstrip()[:1] == b"[":
                raw = self._by_name(raw)
            arguments: dict[str, Any] = self._shape.validate_json(raw)
        except ValueError as error:
            raise InvalidArguments(name or self.name, _faults(error)) from None
        return arguments

    def _by_name(self, raw: bytes) -> bytes:
        try:
            values = msgspec.json.decode(raw, type=list[msgspec.Raw])
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if len(values) > len(self._names):
            raise ValueError(f"takes at most {len(self._names)} of them, got {len(values)}")
        return msgspec.json.encode(dict(zip(self._names, values, strict=False)))

    def as_object(self, raw: bytes, name: str = "") -> bytes:
        """Arguments as a JSON object, whatever else is wrong with them. Raises `InvalidArguments`."""
        try:
            if raw.strip() in _NOTHING:
                return b"{}"
            if raw.lstrip()[:1] == b"[":
                return self._by_name(raw)
            if not isinstance(msgspec.json.decode(raw), dict):
                raise ValueError("the arguments are not an object")  # noqa: TRY004, TRY301  as what is no JSON
        except (ValueError, RecursionError) as error:
            raise InvalidArguments(name or self.name, [{"path": "", "message": str(error)}]) from None
        return raw

    def is_of(self, function: Callable[..., Any]) -> bool:
        """Whether this is the method that was made from a function, bound or not."""
        return getattr(self._function, "__func__", self._function) is getattr(function, "__func__", function)

    def invoke(self, call: Call, arguments: Any) -> Any:
        """Start the body: gives an awaitable, or an async iterator if `streaming`."""
        if self._filled is not None:
            run = dependencies.stream if self.streaming else dependencies.run
            return run(self._run, self._filled, call, self.elicits, self.home, arguments)
        if self._caller_parameter is not None:
            arguments = {**arguments, self._caller_parameter: call.principal}
        if self._ask_parameter is not None:
            return self._run(**arguments, **{self._ask_parameter: Ask(call, self.elicits)})
        return self._run(**arguments)

    def within(self, scopes: Container[str], name: str) -> Callable[[Call, Any], Any]:
        """`invoke` for who has only these scopes, where it is called by this name. Raises `NotAllowed`."""
        needed = self.extras.get("scopes", ())
        if missing := [scope for scope in needed if scope not in scopes]:
            raise NotAllowed(name, missing, needed)
        return self.invoke


PERSON_ONLY = "dev.midcall/personOnly"
"""What a tool has in its `_meta` whose questions a model must not answer, for servers that mount it."""

TAGS = "dev.midcall/tags"
"""What has tags has them in its `_meta` by this name."""


class RemoteMethod(Method):
    """A tool, prompt, resource, template or completion that another server has (see `midcall.mount`).

    It is listed as that server lists it, and its arguments go there as they came: the server checks them.
    """

    __slots__ = ("listed", "runner")

    def __init__(
        self,
        kind: Kind,
        name: str,
        listed: dict[str, Any],
        params: dict[str, Any],
        runner: Any,
        **extras: Any,
    ) -> None:
        """`listed` is what the server says of it, and `runner` has the server run it (see `mount.call`)."""
        self.listed = listed
        self.runner = runner
        self.extras = extras
        description, returns = listed.get("description"), listed.get("outputSchema")
        self.describe(
            name,
            description if isinstance(description, str) else "",
            params,
            returns if isinstance(returns, dict) else None,
            runner.run,
        )
        self.kind = kind
        self.hash = digest([kind, listed])

    def read_arguments(self, raw: bytes, name: str = "") -> bytes:
        """The arguments as they came, if they are an object."""
        if b"\n" in raw or b"\r" in raw:  # between tokens only, as JSON has it; they separate messages
            raw = raw.replace(b"\n", b" ").replace(b"\r", b" ")
        if raw[:1] == b"{":
            return raw
        raw = raw.strip()
        if raw in (b"", b"null"):
            return b"{}"
        if raw[:1] == b"[":
            try:
                return self._by_name(raw)
            except ValueError as error:
                raise InvalidArguments(name or self.name, [{"path": "", "message": str(error)}]) from None
        if raw[:1] != b"{":
            fault = {"path": "", "message": "the arguments are not an object"}
            raise InvalidArguments(name or self.name, [fault])
        return raw

    def invoke(self, call: Call, arguments: bytes) -> Any:
        return self.runner.run(call, arguments)


class Activation:
    """An object whose methods live in a namespace."""

    __slots__ = (
        "completions",
        "description",
        "hash",
        "home",
        "listings",
        "methods",
        "namespace",
        "plugin_id",
        "prompts",
        "reader",
        "resources",
        "source",
        "version",
    )

    def __init__(self, source: object, namespace: str | None = None, tags: Collection[str] = ()) -> None:
        if isinstance(source, type):
            raise RegistrationError(f"Register an instance: {source.__name__}() instead of {source.__name__}")
        self.source = source
        self.home: Home | None = None
        if namespace is None:
            namespace = getattr(source, "namespace", type(source).__name__.lower())
        check_namespace(namespace)
        self.namespace: str = namespace
        self.version = str(getattr(source, "version", "1.0.0"))
        self.plugin_id = plugin_id(self.namespace, self.version)
        self.description = read_docstring(type(source).__doc__).text
        try:
            tags = checked_tags({*checked_tags(getattr(source, "tags", ())), *checked_tags(tags)})
        except TypeError as error:
            raise RegistrationError(f"{type(source).__name__}: {error}") from None
        self.methods = read_methods(source, tags=tags)
        self.resources = list(read_methods(source, "resource", tags).values())
        self.prompts = read_methods(source, "prompt", tags)
        self.completions = list(read_methods(source, "completion").values())
        self.listings = list(read_methods(source, "listing").values())
        for one in self.listings:
            self._check_listing(one)
        self.reader: Method | None = None
        """Reads resources that are not listed, where there may be such."""
        if not (self.methods or self.resources or self.prompts):
            raise RegistrationError(f"{type(source).__name__} has no @method")
        self.hash = self._hash()
        if self.namespace and "schema" not in self.methods:
            self.methods["schema"] = own_method(self.schema, "The schema of this activation.")

    def begin(self, namespace: str, description: str) -> None:
        """Begin with nothing: what there is comes later, and not from an object."""
        check_namespace(namespace)
        self.source = self
        self.home = None
        self.namespace = namespace
        self.version = "1.0.0"
        self.plugin_id = plugin_id(namespace, self.version)
        self.description = description
        self.methods, self.prompts, self.reader = {}, {}, None
        self.resources, self.completions, self.listings = [], [], []
        self.hash = ""

    def _check_listing(self, listing: Method) -> None:
        of = listing.extras["of"]
        if of not in {*self.prompts, *(one.extras["uri"] for one in self.resources)}:
            raise RegistrationError(
                f"{name_of(listing._function)} lists {of!r}, but there is no such resource or prompt"
            )

    def _hash(self) -> str:
        offers = [m.hash for m in (*self.visible, *self.resources, *self.prompts.values())]
        return digest([self.version, self.description, offers])

    def unlisted(self, name: str, kind: Kind = "method") -> Method | None:
        """One that is not in the list, though there may be one: of a server that is not reached yet."""
        return None

    def settle(self, home: Home) -> None:
        """It belongs to this hub now, and so does all that it has."""
        self.home = home
        functions = (self.methods.values(), self.prompts.values())
        for one in itertools.chain(self.resources, self.completions, self.listings, *functions):
            one.home = home

    def selected(self, takes: Callable[[Method, str], bool]) -> Self:
        """The same, of which a part is there: a view for whoever lists and resolves.

        `takes` is given each method, resource and prompt, and the URI of a resource.
        """
        view = copy.copy(self)
        view.methods = {name: one for name, one in self.methods.items() if not one.hidden and takes(one, "")}
        view.prompts = {name: one for name, one in self.prompts.items() if takes(one, "")}
        view.resources = [one for one in self.resources if takes(one, one.extras["uri"])]
        gone = {*self.prompts, *(one.extras["uri"] for one in self.resources)}
        gone -= {*view.prompts, *(one.extras["uri"] for one in view.resources)}
        view.listings = [one for one in self.listings if one.extras["of"] not in gone]
        view.completions = [one for one in self.completions if one.extras["of"] not in gone]
        view.reader = None  # what is not listed may be what is left out
        view.hash = view._hash()
        if "schema" in self.methods and self.methods["schema"].hidden and view.methods:
            view.methods["schema"] = own_method(view.schema, self.methods["schema"].description)
        return view

    async def close(self) -> None:
        """Let go of what it has opened, as its hub is closing: by `detach`, if its author wrote that."""
        detach = getattr(self.source, "detach", None)
        if detach is not None:
            await detach()

    @property
    def visible(self) -> list[Method]:
        """The methods that a list shows: those that the author wrote."""
        return [m for m in self.methods.values() if not m.hidden]

    def schema(self) -> dict[str, Any]:
        """What introspection shows of this activation."""
        return {
            "namespace": self.namespace,
            "version": self.version,
            "description": self.description,
            "plugin_id": self.plugin_id,
            "hash": self.hash,
            "methods": [m.schema(self.namespace) for m in self.visible],
        }


class Functions(Activation):
    """Functions that are no methods of an object, in a namespace (see `Registry.method`)."""

    def __init__(self, namespace: str) -> None:
        self.begin(namespace, "")
        if namespace:
            self.methods["schema"] = own_method(self.schema, "The schema of these methods.")

    def add(self, function: Callable[..., Any], mark: Mark) -> None:
        """Take in one more. Raises `RegistrationError`: then nothing has changed."""
        made = Method(function, mark)
        made.home = self.home
        kept: dict[str, Any] = {
            "method": self.methods,
            "prompt": self.prompts,
            "resource": self.resources,
            "completion": self.completions,
            "listing": self.listings,
        }
        group = kept[mark.kind]
        for one in group.values() if isinstance(group, dict) else group:
            if _identity(one) == _identity(made):
                raise RegistrationError(
                    f"There are two {mark.kind}s {_identity(made)[0]!r}: "
                    f"{name_of(one._function)} and {name_of(function)}"
                )
        if mark.kind == "listing":
            self._check_listing(made)
        if isinstance(group, dict):
            group[made.name] = made
        else:
            group.append(made)
        self.hash = self._hash()


def _identity(method: Method) -> tuple[str, str | None]:
    """What no other of its kind may have too."""
    extras = method.extras
    return extras.get("uri") or extras.get("of") or method.name, extras.get("argument")


def check_namespace(namespace: str) -> None:
    """Raise `RegistrationError` for what is no namespace; an empty one is."""
    if namespace and not _NAMESPACE.match(namespace):
        raise RegistrationError(
            f"{namespace!r} is not a namespace: a letter, then letters, digits, '_' and '-'"
        )


def read_methods(source: object, kind: Kind = "method", tags: Collection[str] = ()) -> dict[str, Method]:
    """The marked functions of an object, in the order in which they are written, by name.

    `tags` are those that all of them have.
    """
    found: dict[str, Method] = {}
    for owner in reversed(type(source).__mro__):
        for attribute, function in vars(owner).items():
            mark = mark_of(function)
            if mark is None or mark.kind != kind:
                continue
            bound: Any = getattr(source, attribute, None)
            if mark_of(bound) is not mark:
                continue  # a subclass has written it again
            one = Method(bound, tagged(mark, tags))
            taken = found.get(one.name)
            if taken is not None and taken._function.__name__ != attribute:
                raise RegistrationError(
                    f"{type(source).__name__} has two {kind}s {one.name!r}: "
                    f"{name_of(taken._function)} and {name_of(bound)}"
                )
            found[one.name] = one
    return found


def own_method(function: Callable[..., Any], description: str) -> Method:
    """A method that the hub itself adds, hidden from lists."""
    return Method(_inline(function), Mark("method", function.__name__, description), hidden=True)


def plugin_id(namespace: str, version: str) -> str:
    """The stable id of an activation's major version."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{namespace}@{version.partition('.')[0]}"))


def digest(value: Any) -> str:
    """16 hex characters, the same for the same JSON value."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16]


# --- reading a function ---------------------------------------------------------------------


def _parameters(
    function: Callable[..., Any], hints: dict[str, Any], descriptions: dict[str, str]
) -> tuple[dict[str, Filled], list[tuple[str, Any, Any]]]:
    """The parameters that are filled in, and name, type and default of each other one."""
    filled: dict[str, Filled] = {}
    fields: list[tuple[str, Any, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        ):
            raise RegistrationError(
                f"{name_of(function)}: parameter {parameter.name} cannot be given by name; "
                "a method's parameters are all named"
            )
        annotation = hints.get(parameter.name, Any)
        if parameter.name == "ask" and parameter.name not in hints:
            raise RegistrationError(f"{name_of(function)}: write `ask: Ask`, so that it is filled in")
        if isinstance(parameter.default, Depends):
            raise RegistrationError(
                f"{name_of(function)}: write `{parameter.name}: Annotated[..., Depends(...)]`, "
                "and not Depends as a default"
            )
        given = filled_with(annotation, name_of(function))
        if given is None:
            fields.append(_field(parameter, annotation, descriptions.get(parameter.name)))
        elif given in filled.values() and not isinstance(given.what, Dependency):
            markers = {CALLER: "CallerName", LIFESPAN: "Lifespan"}
            kind = markers.get(given.what) or given.what.__name__
            raise RegistrationError(f"{name_of(function)} has two parameters of type {kind}")
        else:
            filled[parameter.name] = given
    return filled, fields


_SENT = {"listing": ("after",), "completion": ("value", "arguments", "argument")}


def _check_sent(function: Callable[..., Any], mark: Mark, parameters: Mapping[str, bool]) -> None:
    """Raise `RegistrationError` if a function does not take what it is sent, or needs what never is.

    `parameters` says of each whether it is required.
    """
    if mark.kind == "method":
        return
    where, template = name_of(function), mark.extras.get("uri", "")
    if mark.kind == "prompt":
        template = mark.name or ""
    elif mark.kind == "resource":
        if not _SCHEME.fullmatch(template):
            raise RegistrationError(f"{where}: {template!r} is not a URI, as in 'notes://{{name}}'")
        if not {"{", "}"}.isdisjoint(PART.sub("", template)):
            raise RegistrationError(f"{where}: in {template!r}, write parts as {{name}}; they have no slash")
    parts: Sequence[str] = PART.findall(template)
    for part in parts:
        if part not in parameters:
            raise RegistrationError(
                f"{where} has no parameter {part}, for the part {{{part}}} of {template!r}"
            )
    sent = _SENT.get(mark.kind, parts)
    for name, required in parameters.items():
        if required and name not in sent and mark.kind != "prompt":
            raise RegistrationError(
                f"{where}: nothing is given for the parameter {name}; a {mark.kind} is given "
                + (", ".join(sent) or f"the parts of its URI, and {template!r} has none, as in {{name}}")
            )


def _field(parameter: inspect.Parameter, annotation: Any, description: str | None) -> tuple[str, Any, Any]:
    """Name, type and default, for the model of the arguments."""
    from pydantic import Field  # noqa: PLC0415  slow to import: only when a method is read
    from pydantic.fields import FieldInfo  # noqa: PLC0415  as above

    from midcall.schema import with_structs  # noqa: PLC0415  as above

    given = [m for m in (*typing.get_args(annotation)[1:], parameter.default) if isinstance(m, FieldInfo)]
    if any(one.description for one in given):
        description = None
    described = (
        Field(alias=parameter.name, description=description) if description else Field(alias=parameter.name)
    )
    default = ... if parameter.default is parameter.empty else parameter.default
    return parameter.name, typing.Annotated[with_structs(annotation), described], default


def _may_be_content(annotation: Any) -> bool:
    """Whether a result of this type may be `Content`, or a list with some in it."""
    if isinstance(annotation, type) and issubclass(annotation, Content):
        return True
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _LISTS or origin in _LISTS:
        return not args or any(one is Any or _may_be_content(one) for one in args)
    return origin in (typing.Annotated, typing.Union, types.UnionType) and any(map(_may_be_content, args))


def _element_type(annotation: Any) -> Any:
    if typing.get_origin(annotation) in _STREAMS:
        return typing.get_args(annotation)[0]
    return Any


def _is_function(function: Any) -> bool:
    """Whether it has the signature and the annotations of a function itself."""
    return inspect.isroutine(function) and not isinstance(function, functools.partial)


def _runner(function: Callable[..., Any], *, interactive: bool) -> tuple[Callable[..., Any], bool]:
    """How to start the function, and whether it gives a stream."""
    if inspect.isasyncgenfunction(function):
        return function, True
    if inspect.iscoroutinefunction(function):
        return function, False
    if interactive:
        raise RegistrationError(f"{name_of(function)} asks, so it must be `async def`")
    if inspect.isgeneratorfunction(function):
        return functools.partial(_pull, function), True
    return functools.partial(in_thread, function), False


async def _pull(function: Callable[..., Generator[Any]], /, **arguments: Any) -> AsyncIterator[Any]:
    """Run a plain generator in worker threads, one element at a time."""
    end = object()
    iterator: Generator[Any] = function(**arguments)
    try:
        while (value := await asyncio.to_thread(next, iterator, end)) is not end:
            yield value
    finally:
        with contextlib.suppress(ValueError):  # it still runs in its thread: it is closed when that ends
            await asyncio.to_thread(iterator.close)


def _inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """A quick plain function as a coroutine, without a thread."""

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return run


def _faults(error: ValueError) -> list[dict[str, str]]:
    from pydantic import ValidationError  # noqa: PLC0415  as above

    from midcall.schema import faults  # noqa: PLC0415  as above

    return faults(error) if isinstance(error, ValidationError) else [{"path": "", "message": str(error)}]

"""The decorators: how an author says what a function of an activation is.

`@method` makes it callable, `@resource` readable by a URI, `@prompt` a template of messages,
`@listing` lists what there is of a template of those, and `@completion` suggests values for an argument
of one. A mark only notes what the author said; `activation` reads it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack, overload

from midcall.questions import Question
from midcall.selection import checked_tags

F = TypeVar("F", bound=Callable[..., Any])

Kind = Literal["method", "resource", "prompt", "completion", "listing"]

_MARK = "__midcall_mark__"
_TUPLES = frozenset({"elicits", "requires", "scopes"})


class Mark(NamedTuple):
    """What an author said of a function."""

    kind: Kind
    name: str | None = None
    description: str | None = None
    elicits: tuple[Question[Any], ...] = ()
    extras: Mapping[str, Any] = {}
    """What only some protocols show: title, annotations, icons, mime type."""


class MethodOptions(TypedDict, total=False):
    """What can be said of a method beside its name."""

    title: str | None
    description: str | None
    elicits: Sequence[Question[Any]]
    annotations: Mapping[str, Any] | None
    icons: Sequence[Mapping[str, Any]]
    meta: Mapping[str, Any] | None
    long_running: bool
    requires: Sequence[str]
    scopes: Sequence[str]
    tags: Collection[str]
    person_only: bool
    input_schema: Mapping[str, Any] | None


class ResourceOptions(TypedDict, total=False):
    """What can be said of a resource beside its URI."""

    name: str | None
    title: str | None
    description: str | None
    mime_type: str | None
    annotations: Mapping[str, Any] | None
    icons: Sequence[Mapping[str, Any]]
    meta: Mapping[str, Any] | None
    scopes: Sequence[str]
    tags: Collection[str]
    changes: bool


class PromptOptions(TypedDict, total=False):
    """What can be said of a prompt beside its name."""

    title: str | None
    description: str | None
    icons: Sequence[Mapping[str, Any]]
    meta: Mapping[str, Any] | None
    scopes: Sequence[str]
    tags: Collection[str]


class Marker:
    """A decorator that puts a mark on a function."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark

    def __call__(self, function: F) -> F:
        setattr(unwrapped(function), _MARK, self.mark)
        return function


@overload
def method(function: F, /) -> F: ...
@overload
def method(name: str | None = None, /, **options: Unpack[MethodOptions]) -> Marker: ...
def method(function_or_name: Any = None, /, **options: Unpack[MethodOptions]) -> Any:
    """Mark a function of a class as a method of its activation.

    The function may be plain (it runs in a worker thread), a coroutine (one result) or an async
    generator (a stream). Its annotations describe parameters and result; its docstring is the
    description. Use it bare, or with a name (`@method("tools/list")`), a `description`, and the typed
    questions that it asks (`elicits=[pick_flight]`). `title`, `annotations` (hints such as
    `{"readOnlyHint": True}`), `icons` and `meta` go to MCP clients as they are; `long_running` lets a
    client that knows tasks come back for the result. `requires` names what an MCP client must be able
    to do ("sampling", "elicitation", "roots", "tasks"), or the call is refused before it begins.
    `scopes` are those that a caller's key or token must have, where the server asks for one. `tags` group
    methods, for `hub.restrict` and `--only`.
    `person_only` is for questions that a model must not answer in the place of its person: MCP clients
    without elicitation, whose model would answer with a tool, cannot be asked then.
    `input_schema` is shown instead of the one made from the annotations, which still validate.
    """
    return _marked("method", function_or_name, options)


def resource(uri: str, /, **options: Unpack[ResourceOptions]) -> Marker:
    """Mark a function as what is read at a URI: text (`str`), bytes, or anything that JSON carries.

    With parts in braces, as `notes://{folder}/{name}`, it is a template, and the parts are the
    function's parameters; a `@listing` lists which there are. It raises `UnknownResource` for one that is
    not. `scopes` are those that a caller needs to read it or to subscribe to it. Of what `changes` often,
    clients keep no copy. If the activation has `subscribed(uri, principal)`, that is called when somebody
    subscribes; `hub.updated(uri)` tells them.
    """
    return Marker(_mark("resource", None, options, uri=uri))


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(name: str | None = None, /, **options: Unpack[PromptOptions]) -> Marker: ...
def prompt(function_or_name: Any = None, /, **options: Unpack[PromptOptions]) -> Any:
    """Mark a function as a template of messages: it gives a text, or a list of messages.

    With a part in braces in its name, as `@prompt("review-{language}")`, it is many prompts, which a
    `@listing` lists; the part is one of the function's parameters, and the others are the prompt's
    arguments. `scopes` are those that a caller needs to get it.
    """
    return _marked("prompt", function_or_name, options)


def listing(of: str, /, *, scopes: Sequence[str] = ()) -> Marker:
    """Mark a function as what lists the resources of a template, or the prompts of one.

    `of` is the template's URI, or the prompt's name. The function gets `after`, nothing at first and then the
    `next` of the page before, and gives a `Listing`. `scopes` are those that a caller needs to see it.
    """
    return Marker(_mark("listing", None, {}, of=of, scopes=scopes))


def completion(of: str, argument: str, /, *, scopes: Sequence[str] = ()) -> Marker:
    """Mark a function as what suggests values for an argument of a prompt or a resource template.

    `of` is the prompt's name or the template's URI. The function gets what was typed so far as
    `value`, and may take `arguments`, those that are known already; it gives a list of strings.
    `scopes` are those that a caller needs beside the scopes of what is completed.
    """
    return Marker(_mark("completion", None, {}, of=of, argument=argument, scopes=scopes))


def mark_of(function: Any) -> Mark | None:
    """What the author said of this function, if anything."""
    mark = getattr(unwrapped(function), _MARK, None)
    return mark if isinstance(mark, Mark) else None


def tagged(mark: Mark, tags: Collection[str]) -> Mark:
    """The same mark with more tags."""
    if not tags:
        return mark
    return mark._replace(extras={**mark.extras, "tags": checked_tags({*mark.extras.get("tags", ()), *tags})})


def unwrapped(function: Any) -> Any:
    """Of a static or class method, the function."""
    return function.__func__ if isinstance(function, staticmethod | classmethod) else function


def _marked(kind: Kind, function_or_name: Any, options: Mapping[str, Any]) -> Any:
    """A decorator; or, if it was used bare, what that makes of the function."""
    name = function_or_name if isinstance(function_or_name, str) else None
    mark = Marker(_mark(kind, name, options))
    return mark if function_or_name is None or name is not None else mark(function_or_name)


_OPTIONS = {
    "method": MethodOptions.__annotations__.keys(),
    "resource": ResourceOptions.__annotations__.keys(),
    "prompt": PromptOptions.__annotations__.keys(),
}


def _mark(kind: Kind, name: str | None, options: Mapping[str, Any], **more: Any) -> Mark:
    """What an author said. Raises `TypeError` for what means nothing: a scope by a wrong name is no scope."""
    for key in options.keys() - _OPTIONS.get(kind, set()):
        raise TypeError(f"{kind}() got an unexpected keyword argument {key!r}")
    for key in more.keys() & {"uri", "of", "argument"}:
        if not isinstance(more[key], str):  # as of a decorator that is used bare
            raise TypeError(f"{kind}() takes {key} as text, and got {more[key]!r}")
    given = {key: one for key, one in {**options, **more}.items() if one}
    for key in given.keys() & _TUPLES:
        if isinstance(given[key], str | Question):  # the letters of a scope would be scopes
            raise TypeError(f"{kind}(): {key} takes several, as in {key}=[{given[key]!r}]")
        given[key] = tuple(given[key])
    extras: dict[str, Any] = given
    if "tags" in extras:
        extras["tags"] = checked_tags(extras["tags"])
    description, elicits = extras.pop("description", None), extras.pop("elicits", ())
    for one in elicits:
        if not isinstance(one, Question):
            raise TypeError(f'{kind}(): elicits takes questions, as in Question("pickDay", int); got {one!r}')
    return Mark(kind, extras.pop("name", name), description, elicits, extras)

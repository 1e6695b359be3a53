"""The decorators: how an author says what a function of an activation is.

`@method` makes it callable, `@resource` readable by a URI, `@prompt` a template of messages, and
`@completion` suggests values for an argument of one of those. A mark only notes what the author
said; `activation` reads it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, overload

from midcall.questions import Question

F = TypeVar("F", bound=Callable[..., Any])

Kind = Literal["method", "resource", "prompt", "completion"]

_MARK = "__midcall_mark__"


class Mark(NamedTuple):
    """What an author said of a function."""

    kind: Kind
    name: str | None = None
    description: str | None = None
    elicits: tuple[Question[Any], ...] = ()
    extras: Mapping[str, Any] = {}
    """What only some protocols show: title, annotations, icons, mime type."""


@overload
def method(function: F, /) -> F: ...
@overload
def method(
    name: str | None = None,
    /,
    *,
    title: str | None = None,
    description: str | None = None,
    elicits: Sequence[Question[Any]] = (),
    annotations: Mapping[str, Any] | None = None,
    icons: Sequence[Mapping[str, Any]] = (),
    meta: Mapping[str, Any] | None = None,
    long_running: bool = False,
    requires: Sequence[str] = (),
    scopes: Sequence[str] = (),
    input_schema: Mapping[str, Any] | None = None,
) -> Callable[[F], F]: ...
def method(
    function_or_name: Any = None,
    /,
    *,
    title: str | None = None,
    description: str | None = None,
    elicits: Sequence[Question[Any]] = (),
    annotations: Mapping[str, Any] | None = None,
    icons: Sequence[Mapping[str, Any]] = (),
    meta: Mapping[str, Any] | None = None,
    long_running: bool = False,
    requires: Sequence[str] = (),
    scopes: Sequence[str] = (),
    input_schema: Mapping[str, Any] | None = None,
) -> Any:
    """Mark a function of a class as a method of its activation.

    The function may be plain (it runs in a worker thread), a coroutine (one result) or an async
    generator (a stream). Its annotations describe parameters and result; its docstring is the
    description. Use it bare, or with a name (`@method("tools/list")`), a `description`, and the typed
    questions that it asks (`elicits=[pick_flight]`). `title`, `annotations` (hints such as
    `{"readOnlyHint": True}`), `icons` and `meta` go to MCP clients as they are; `long_running` lets a
    client that knows tasks come back for the result. `requires` names what an MCP client must be able
    to do ("sampling", "elicitation", "roots", "tasks"), or the call is refused before it begins.
    `scopes` are those that a caller's key or token must have, where the server asks for one.
    `input_schema` is shown instead of the one made from the annotations, which still validate.
    """
    extras = _given(
        title=title,
        annotations=annotations,
        icons=list(icons),
        meta=meta,
        long_running=long_running,
        requires=tuple(requires),
        scopes=tuple(scopes),
        input_schema=input_schema,
    )
    name = function_or_name if isinstance(function_or_name, str) else None
    mark = _marker(Mark("method", name, description, tuple(elicits), extras))
    return mark if function_or_name is None or name is not None else mark(function_or_name)


def resource(
    uri: str,
    /,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    annotations: Mapping[str, Any] | None = None,
    icons: Sequence[Mapping[str, Any]] = (),
    meta: Mapping[str, Any] | None = None,
    scopes: Sequence[str] = (),
) -> Callable[[F], F]:
    """Mark a function as what is read at a URI: text (`str`), bytes, or anything that JSON carries.

    With parts in braces, as `notes://{folder}/{name}`, it is a template, and the parts are the
    function's parameters. `scopes` are those that a caller needs to read it or to subscribe to it.
    """
    extras = _given(
        uri=uri,
        title=title,
        mime_type=mime_type,
        annotations=annotations,
        icons=list(icons),
        meta=meta,
        scopes=tuple(scopes),
    )
    return _marker(Mark("resource", name, description, (), extras))


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(
    name: str | None = None,
    /,
    *,
    title: str | None = None,
    description: str | None = None,
    icons: Sequence[Mapping[str, Any]] = (),
    meta: Mapping[str, Any] | None = None,
    scopes: Sequence[str] = (),
) -> Callable[[F], F]: ...
def prompt(
    function_or_name: Any = None,
    /,
    *,
    title: str | None = None,
    description: str | None = None,
    icons: Sequence[Mapping[str, Any]] = (),
    meta: Mapping[str, Any] | None = None,
    scopes: Sequence[str] = (),
) -> Any:
    """Mark a function as a template of messages: it gives a text, or a list of messages.

    `scopes` are those that a caller needs to get it.
    """
    name = function_or_name if isinstance(function_or_name, str) else None
    extras = _given(title=title, icons=list(icons), meta=meta, scopes=tuple(scopes))
    mark = _marker(Mark("prompt", name, description, (), extras))
    return mark if function_or_name is None or name is not None else mark(function_or_name)


def completion(of: str, argument: str, /, *, scopes: Sequence[str] = ()) -> Callable[[F], F]:
    """Mark a function as what suggests values for an argument of a prompt or a resource template.

    `of` is the prompt's name or the template's URI. The function gets what was typed so far as
    `value`, and may take `arguments`, those that are known already; it gives a list of strings.
    `scopes` are those that a caller needs beside the scopes of what is completed.
    """
    extras = _given(of=of, argument=argument, scopes=tuple(scopes))
    return _marker(Mark("completion", None, None, (), extras))


def mark_of(function: Any) -> Mark | None:
    """What the author said of this function, if anything."""
    mark = getattr(unwrapped(function), _MARK, None)
    return mark if isinstance(mark, Mark) else None


def unwrapped(function: Any) -> Any:
    """Of a static or class method, the function."""
    return function.__func__ if isinstance(function, staticmethod | classmethod) else function


def _marker(mark: Mark) -> Callable[[F], F]:
    def put(function: F) -> F:
        setattr(unwrapped(function), _MARK, mark)
        return function

    return put


def _given(**extras: Any) -> dict[str, Any]:
    return {name: value for name, value in extras.items() if value}

"""Plugins: how the typed questions of a method are shown in the chat.

    booking = Plugin(Flights.book_flight).on(pick_flight, show_flights).on(pick_seat, show_seats)

A handler gets the question and a context; `await ctx.render("FlightList", flights=...)` shows a component of
the page and gives what the person did there, and what the handler returns is the answer to the tool. It is
run until it renders, and again from the top when the person has answered, perhaps by another process: then
`render` gives that answer at once. So it should only show and transform, and leave work to the tool.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

from msgspec import Struct

from midcall.chat.sampling import Sampling
from midcall.errors import RegistrationError
from midcall.hub import Hub
from midcall.items import to_builtins
from midcall.questions import Question, Refusal


class PluginQuestion(Struct, frozen=True):
    """A question, as a handler gets it."""

    key: str
    message: str
    context: dict[str, Any]
    """What the tool gave along with the question."""
    schema: dict[str, Any]
    """Of the answer."""
    tool: str
    call_id: str


Handler: TypeAlias = Callable[[PluginQuestion, "PluginContext"], Awaitable[Any]]


class Shown(BaseException):
    """A handler has rendered something that the person has not answered yet.

    Not an error: it ends the handler.
    """

    def __init__(self, component: str, props: dict[str, Any]) -> None:
        super().__init__(component)
        self.component = component
        self.props = props


class PluginContext:
    """What a handler can do."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = list(answers)
        self._next = 0

    async def render(self, component: str, props: Mapping[str, Any] | None = None, /, **more: Any) -> Any:
        """Show a component of the page; gives what the person answered there."""
        number = self._next
        self._next += 1
        if number < len(self._answers):
            return self._answers[number]
        raise Shown(component, to_builtins({**(props or {}), **more}))


class Plugin:
    """The handlers of one method's questions, each of which must have one."""

    def __init__(self, method: Callable[..., Any] | str) -> None:
        self._method = method
        self._handlers: dict[str, Handler] = {}
        self.sampling: Sampling | None = None

    def on(self, question: Question[Any] | str, handler: Handler) -> Self:
        """Show this question with the handler."""
        key = question if isinstance(question, str) else question.key
        if key in self._handlers:
            raise RegistrationError(f"The question {key!r} has a handler already")
        if not inspect.iscoroutinefunction(handler):
            raise RegistrationError(f"The handler of {key!r} must be `async def`")
        self._handlers[key] = handler
        return self

    def sample_with(self, sampling: Sampling) -> Self:
        """Ask the model for this method in a way of its own."""
        self.sampling = sampling
        return self

    def find(self, hub: Hub) -> str:
        """The name of the method in a hub.

        Raises `RegistrationError` unless all its questions have a handler.
        """
        for name, method in hub.methods():
            if name == self._method or (callable(self._method) and method.is_of(self._method)):
                break
        else:
            raise RegistrationError(f"{hub.name} has no method {_named(self._method)}, which a plugin is for")
        missing = [key for key in method.elicits if key not in self._handlers]
        unknown = [key for key in self._handlers if key not in method.elicits]
        if missing or unknown:
            keys = ", ".join(method.elicits) or "none"
            faults = [f"no handler for {', '.join(missing)}"] if missing else []
            faults += [f"a handler for {', '.join(unknown)}, which it does not ask"] if unknown else []
            raise RegistrationError(f"The plugin of {name} has {' and '.join(faults)}; it asks: {keys}")
        return name

    def handler(self, key: str) -> Handler | None:
        return self._handlers.get(key)


async def show(handler: Handler, question: PluginQuestion, answers: Sequence[Any]) -> Shown | dict[str, Any]:
    """What a handler shows next, or the result that it gives: `{"action", "content"}`."""
    try:
        value = await handler(question, PluginContext(answers))
    except Shown as shown:
        return shown
    if isinstance(value, Refusal):
        return {"action": "decline" if value.how == "Declined" else "cancel"}
    return {"action": "accept", "content": to_builtins(value)}


def _named(method: Callable[..., Any] | str) -> str:
    return method if isinstance(method, str) else getattr(method, "__qualname__", str(method))

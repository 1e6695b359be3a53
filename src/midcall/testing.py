"""Helpers for testing a tool that asks, without any transport.

    outcome = await run(hub, "files.delete", {"ids": ["a"]}, answers=[True])
    assert outcome.result == [Deleted("a")]

`answers` is a list, taken in the order in which the questions come, or a function from `Request` to
answer. A question more than there are answers fails the test, and so does an answer too many.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from midcall.errors import MidcallError
from midcall.hub import Hub
from midcall.invocation import Answerer, error_from_item
from midcall.items import Data, Error, Item, Request
from midcall.principal import Principal, RequestInfo


class Outcome(NamedTuple):
    """What a call gave: all items, the contents of its data, its questions, and its error if it failed."""

    items: list[Item]
    contents: list[Any]
    questions: list[Request]
    error: MidcallError | None
    streaming: bool

    @property
    def result(self) -> Any:
        """The result; of a stream, the list of its elements. Raises if the call failed."""
        if self.error is not None:
            raise self.error
        if self.streaming:
            return self.contents
        return self.contents[0] if self.contents else None


def answer_with(answers: Iterable[Any]) -> Answerer:
    """A handler that gives these answers one after the other."""
    left = iter(answers)

    def answer(request: Request) -> Any:
        try:
            return next(left)
        except StopIteration:
            raise AssertionError(f"No answer is left for: {request.request_type.message}") from None

    return answer


async def run(
    hub: Hub,
    name: str,
    params: Any = None,
    *,
    answers: Iterable[Any] | Answerer | None = None,
    supports: set[str] | None = None,
    principal: Principal | str | None = None,
    request: RequestInfo | None = None,
) -> Outcome:
    """Run a method to its end. Without `answers` the tool cannot ask.

    `principal` and `request` are what a method is given that takes a `Principal` or a `RequestInfo`. The
    lifespan of the hub is entered for the run, unless the hub is open.
    """
    left = None if answers is None or callable(answers) else list(answers)
    given = answer_with(_taking(left)) if left is not None else answers
    handler: Answerer | None = given if callable(given) else None
    async with hub.with_lifespans():
        invocation = hub.call(
            name, params, answer=handler, supports=supports, principal=principal, request=request
        )
        items = [item async for item in invocation]
    if left:
        raise AssertionError(f"Not asked for: {left}")
    return Outcome(
        items,
        [item.content for item in items if isinstance(item, Data)],
        [item for item in items if isinstance(item, Request)],
        next((error_from_item(item) for item in items if isinstance(item, Error)), None),
        hub.resolve(name).method.streaming,
    )


def _taking(left: list[Any]) -> Iterable[Any]:
    while left:
        yield left.pop(0)

"""What a function is given: `Principal`, `RequestInfo` and `Depends`."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from driving import drive, until
from midcall import Ask, CallerName, Depends, Hub, Principal, RequestInfo, ToolError, connect, method
from midcall.errors import RegistrationError
from midcall.testing import Outcome, run

ADA = Principal("ada", frozenset({"files:read"}))
REQUEST = RequestInfo("http", {"x-team": "blue"}, "192.0.2.1", "2026-07-28", "tests")


def plain() -> str:
    return f"plain in {'the loop' if threading.current_thread() is threading.main_thread() else 'a thread'}"


async def awaited() -> str:
    return "awaited"


class Trail(list[str]):
    """What was opened and closed, in order."""

    def generator(self) -> Iterator[str]:
        self.append("generator opened")
        try:
            yield "generator"
        except ValueError as error:
            self.append(f"generator saw {error}")
            raise
        finally:
            self.append("generator closed")

    async def async_generator(self) -> AsyncIterator[str]:
        self.append("async generator opened")
        try:
            yield "async generator"
        except ValueError as error:
            self.append(f"async generator saw {error}")
            raise
        finally:
            self.append("async generator closed")

    @contextmanager
    def manager(self) -> Iterator[str]:
        self.append("manager opened")
        yield "manager"
        self.append("manager closed")

    @asynccontextmanager
    async def async_manager(self) -> AsyncIterator[str]:
        self.append("async manager opened")
        yield "async manager"
        self.append("async manager closed")


def outcome(hub: Hub, name: str, params: Any = None, **more: Any) -> Outcome:
    found: Outcome = drive(run(hub, name, params, **more))
    return found


def test_a_dependency_may_be_plain_async_a_class_or_any_callable() -> None:
    hub = Hub()

    @dataclass
    class Greeting:
        word: str = "hello"

        def __call__(self) -> str:
            return f"called {self.word}"

    @hub.method
    async def show(
        a: Annotated[str, Depends(plain)],
        b: Annotated[str, Depends(awaited)],
        c: Annotated[Greeting, Depends(Greeting)],
        d: Annotated[str, Depends(Greeting("bye"))],
        e: Annotated[Greeting, Depends(functools.partial(Greeting, word="hi"))],
        f: Annotated[str, Depends(str)],
        last: str,
    ) -> list[str]:
        return [a, b, c.word, d, e.word, f, last]

    given = ["plain in a thread", "awaited", "hello", "called bye", "hi", "", "x"]
    assert outcome(hub, "show", {"last": "x"}).result == given
    assert list(hub.schema("show")["params"]["properties"]) == ["last"]


def test_what_yields_cleans_up_after_the_call_the_last_one_first() -> None:
    hub, trail = Hub(), Trail()

    @hub.method
    def use(
        a: Annotated[str, Depends(trail.generator)],
        b: Annotated[str, Depends(trail.async_generator)],
        c: Annotated[str, Depends(trail.manager)],
        d: Annotated[str, Depends(trail.async_manager)],
        *,
        fail: bool = False,
    ) -> str:
        trail.append("body")
        if fail:
            raise ValueError("no")
        return f"{a}, {b}, {c}, {d}"

    assert outcome(hub, "use").result == "generator, async generator, manager, async manager"
    kinds = ["generator", "async generator", "manager", "async manager"]
    opened, closed = [f"{kind} opened" for kind in kinds], [f"{kind} closed" for kind in reversed(kinds)]
    assert trail == [*opened, "body", *closed]
    trail.clear()
    with pytest.raises(ToolError, match="no"):
        _ = outcome(hub, "use", {"fail": True}).result
    assert trail[5:] == [
        "async generator saw no",
        "async generator closed",
        "generator saw no",
        "generator closed",
    ]


def test_a_dependency_that_swallows_an_error_does_not_make_it_a_result() -> None:
    hub = Hub()

    async def lenient() -> AsyncIterator[None]:
        with suppress(ValueError):
            yield

    @hub.method
    async def fail(_: Annotated[None, Depends(lenient)]) -> str:
        raise ValueError("no")

    @hub.method
    async def fail_late(_: Annotated[None, Depends(lenient)]) -> AsyncIterator[int]:
        yield 1
        raise ValueError("no")

    for name in ("fail", "fail_late"):
        with pytest.raises(ToolError, match="no"):
            _ = outcome(hub, name).result


def test_it_is_made_once_for_a_call_whoever_needs_it() -> None:
    hub = Hub()
    made: list[str] = []

    def number() -> int:
        made.append("number")
        return len(made)

    class Adder:
        async def next(self, number: Annotated[int, Depends(number)]) -> int:
            made.append("next")
            return number + 1

    adder = Adder()

    @hub.method
    async def show(
        a: Annotated[int, Depends(number)],
        b: Annotated[int, Depends(adder.next)],
        c: Annotated[int, Depends(adder.next)],
    ) -> list[int]:
        return [a, b, c]

    assert outcome(hub, "show").result == [1, 2, 2]
    assert made == ["number", "next"]
    assert outcome(hub, "show").result == [3, 4, 4], "and again for the next one"


def test_a_stream_keeps_it_open_to_its_end_or_until_nobody_reads() -> None:
    hub, trail = Hub(), Trail()

    @hub.method
    async def count(name: Annotated[str, Depends(trail.async_generator)]) -> AsyncIterator[str]:
        for number in range(1000):
            trail.append(f"{name} {number}")
            yield str(number)

    @hub.method
    def letters(name: Annotated[str, Depends(trail.generator)]) -> Iterator[str]:
        yield from name

    assert len(outcome(hub, "count").result) == 1000
    assert trail[-2:] == ["async generator 999", "async generator closed"]
    assert "".join(outcome(hub, "letters").result) == "generator"
    assert trail[-1] == "generator closed"
    trail.clear()

    async def leave() -> None:
        async for _ in (items := aiter(hub.call("count"))):
            break
        await items.aclose()
        assert trail[-1] == "async generator closed"

    drive(leave())


def test_a_dependency_may_ask_and_its_method_needs_not_to() -> None:
    hub = Hub()

    async def name(ask: Ask) -> str:
        return await ask.prompt("Who?")

    @hub.method
    def greet(name: Annotated[str, Depends(name)], greeting: str) -> str:
        return f"{greeting}, {name}!"

    assert hub.schema("greet")["interactive"] is True
    assert outcome(hub, "greet", {"greeting": "Hello"}, answers=["Ada"]).result == "Hello, Ada!"


def test_who_calls_and_by_which_request_is_given_to_methods_and_dependencies() -> None:
    hub = Hub()

    def team(request: RequestInfo, who: Principal | None, name: CallerName) -> str:
        return f"{request.headers['x-team']} {who and who.name} {name}"

    @hub.method
    async def show(
        who: Principal | None, request: RequestInfo | None, team: Annotated[str, Depends(team)]
    ) -> list[Any]:
        return [who and sorted(who.scopes), request and request.client_name, team]

    given = outcome(hub, "show", principal=ADA, request=REQUEST).result
    assert given == [["files:read"], "tests", "blue ada ada"]
    assert outcome(hub, "show", principal="bob", request=REQUEST).result == [[], "tests", "blue bob bob"]
    assert list(hub.schema("show")["params"]["properties"]) == []


def test_where_there_is_none_only_what_takes_none_is_called() -> None:
    hub = Hub()

    @hub.method
    async def strict(who: Principal) -> str:
        return who.name

    @hub.method
    async def remote(request: RequestInfo) -> str:
        return request.transport

    @hub.method
    async def lenient(who: Principal | None, request: RequestInfo | None) -> bool:
        return who is None and request is None

    assert outcome(hub, "lenient").result is True
    assert outcome(hub, "strict", principal=ADA).result == "ada"
    for name, why in (
        ("strict", "strict has to know who calls"),
        ("remote", "remote has to be called by a request of a client"),
    ):
        failed = outcome(hub, name).error
        assert isinstance(failed, ToolError)
        assert (str(failed), failed.code) == (why, "not_given")


def test_resources_prompts_listings_and_completions_take_them_too() -> None:
    hub = Hub()

    async def who(principal: Principal | None) -> str:
        return "nobody" if principal is None else principal.name

    who_calls = Annotated[str, Depends(who)]

    @hub.resource("notes://{name}")
    def note(name: str, who: who_calls) -> str:
        return f"{name} of {who}"

    @hub.prompt
    def review(code: str, who: who_calls) -> str:
        return f"{who}: review {code}"

    @hub.completion("review", "code")
    def code(value: str, who: who_calls) -> list[str]:
        return [f"{value} {who}"]

    async def main() -> None:
        async with connect(hub) as client:
            assert [one["text"] for one in await client.read("notes://a")] == ["a of nobody"]
            assert "nobody: review x" in str(await client.prompt("review", {"code": "x"}))
            assert await client.complete({"type": "ref/prompt", "name": "review"}, "code", "x") == [
                "x nobody"
            ]
            (prompt,) = await client.prompts()
            assert [one["name"] for one in prompt["arguments"]] == ["code"]

    drive(main())


def test_methods_of_a_class_may_depend_on_it() -> None:
    def today() -> str:
        return "Monday"

    class Diary:
        @method
        async def day(self, day: Annotated[str, Depends(today)]) -> str:
            return day

    assert outcome(Hub().register(Diary()), "diary.day").result == "Monday"


def test_a_call_that_is_stopped_while_it_opens_something_in_a_thread_closes_it() -> None:
    hub = Hub()
    trail: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[None]:
        entered.set()
        go_on.wait()
        trail.append("opened")
        try:
            yield
        finally:
            trail.append("closed")

    @hub.method
    async def use(_: Annotated[None, Depends(slow)]) -> None:
        trail.append("body")

    async def main() -> None:
        call = asyncio.ensure_future(run(hub, "use"))
        await until(entered.is_set)
        (info,) = hub.calls.list()
        assert hub.calls.abort(info.id)
        go_on.set()
        assert "aborted" in str((await call).error)

    drive(main())
    assert trail == ["opened", "closed"]


def broken_argument(path: str) -> str:
    return path


async def first(_: "Annotated[int, Depends(second)]") -> int:
    return 1


async def second(_: "Annotated[int, Depends(first)]") -> int:
    return 2


def unreadable(_: "Nowhere") -> None:  # noqa: F821
    pass


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Annotated[str, Depends(broken_argument)], "nothing is given for the parameter path of a dependency"),
        (Annotated[int, Depends(first)], "first depends on itself"),
        (Annotated[int, Depends(unreadable)], "an annotation cannot be read"),
        (Annotated[int, Depends], r"write Depends\(function\)"),
    ],
)
def test_what_cannot_be_given_is_refused_when_the_method_is_added(annotation: Any, why: str) -> None:
    def use(value: Any) -> None:
        pass

    use.__annotations__["value"] = annotation
    with pytest.raises(RegistrationError, match=why):
        Hub().method(use)


def test_mistakes_in_writing_it_are_named() -> None:
    with pytest.raises(RegistrationError, match=r"Depends\('x'\): give it a function, and do not call that"):
        Depends("x")  # type: ignore[arg-type]

    def default(value: str = Depends(plain)) -> None:  # type: ignore[assignment]
        pass

    def twice(a: Principal, b: Principal) -> None:
        pass

    with pytest.raises(RegistrationError, match="not Depends as a default"):
        Hub().method(default)
    with pytest.raises(RegistrationError, match="has two parameters of type Principal"):
        Hub().method(twice)

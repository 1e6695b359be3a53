"""`@hub.method` and its like: functions that need no class."""

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from driving import drive
from midcall import Ask, Hub, connect, method
from midcall.content import Listing
from midcall.errors import RegistrationError
from midcall.testing import run


def greeter() -> Hub:
    hub = Hub()

    @hub.method
    async def greet(ask: Ask, greeting: str = "Hello") -> str:
        """Greet somebody."""
        return f"{greeting}, {await ask.prompt('Who?')}!"

    @hub.method("files.delete", scopes=["files:write"], annotations={"destructiveHint": True})
    def delete(path: str) -> str:
        """Delete a file.

        Args:
            path: which one
        """
        return f"{path} is gone"

    @hub.method("files.lines")
    def lines(count: int) -> Iterator[int]:
        yield from range(count)

    return hub


def names(hub: Hub) -> list[str]:
    return [name for name, _ in hub.methods()]


def test_a_function_is_a_method_by_its_name_or_by_another() -> None:
    hub = greeter()
    assert names(hub) == ["greet", "files.delete", "files.lines"]
    assert asyncio.run(run(hub, "greet", answers=["Ada"])).result == "Hello, Ada!"
    assert asyncio.run(run(hub, "files.delete", {"path": "a"})).result == "a is gone"
    assert asyncio.run(run(hub, "files_lines", {"count": 3})).result == [0, 1, 2]
    schema = hub.schema("files.delete")
    assert schema["description"] == "Delete a file."
    assert schema["params"]["properties"]["path"]["description"] == "which one"


def test_the_function_stays_what_it_is() -> None:
    hub = Hub()

    @hub.method
    def double(number: int) -> int:
        return 2 * number

    assert double(3) == 6
    other = Hub().method("math.twice")(double)
    assert other is double


def test_what_is_bound_or_has_no_name_of_its_own_can_be_added_too() -> None:
    class Counter:
        count = 0

        def add(self, by: int) -> int:
            self.count += by
            return self.count

    hub, counter = Hub(), Counter()
    hub.method("counter.add")(counter.add)
    assert asyncio.run(run(hub, "counter.add", {"by": 2})).result == 2
    assert counter.count == 2
    with pytest.raises(RegistrationError, match="needs a name"):
        hub.method(functools.partial(counter.add, by=1))
    with pytest.raises(RegistrationError, match="needs a name"):
        hub.method(lambda: 1)


def test_what_is_no_function_is_refused_with_what_to_do() -> None:
    class Adder:
        def __call__(self, number: int) -> int:
            return number + 1

    number: Any = 5
    with pytest.raises(RegistrationError, match=r"@hub.method takes a name or a function, and got 5"):
        Hub().method(number)
    for one in (functools.partial(Adder(), 1), Adder()):
        with pytest.raises(RegistrationError, match="is not a function: write one that calls it"):
            Hub().method("add")(one)


def test_functions_and_classes_share_a_hub() -> None:
    class Files:
        @method
        def read(self) -> str:
            return "text"

    hub = greeter()
    with pytest.raises(RegistrationError, match="'files' of Files is taken by functions of the hub"):
        hub.register(Files())
    hub.register(Files(), namespace="docs")
    with pytest.raises(RegistrationError, match=r"'docs.read' of the function read is taken by Files"):
        hub.method("docs.read")(Files().read)
    with pytest.raises(RegistrationError, match="Namespace 'docs' of functions of the hub is taken by Files"):
        hub.method("docs.write")(Files().read)
    assert names(hub) == ["greet", "files.delete", "files.lines", "docs.read"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("greet", "There are two methods 'greet'"),
        ("files.delete", "There are two methods 'delete'"),
        ("files.schema", "There are two methods 'schema'"),
        ("a.b.c", "'a.b' is not a namespace"),
        ("9.c", "'9' is not a namespace"),
        ("files.", "needs a name"),
        ("", "needs a name"),
        ("delete all", "'delete all' is not a name for a method"),
        ("files.delete\n", r"'delete\\n' is not a name for a method"),
        ("a" * 129, "is not a name for a method: up to 128 letters"),
        ("plexus.c", "is taken by hub 'plexus' itself"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused_and_nothing_changes(name: str, why: str) -> None:
    hub = greeter()
    before = hub.hash
    with pytest.raises(RegistrationError, match=why):
        hub.method(name)(lambda: None)
    assert hub.hash == before
    assert names(hub) == ["greet", "files.delete", "files.lines"]


def test_what_belongs_to_a_class_is_refused_with_what_to_do() -> None:
    hub = Hub()
    with pytest.raises(RegistrationError, match=r"read is a function of a class: use @method inside"):

        class Files:
            @hub.method
            def read(self) -> str:
                return "text"

    with pytest.raises(RegistrationError, match=r"Counter is a class: use @prompt inside"):

        @hub.prompt
        class Counter:
            """Counts."""

    assert names(hub) == []


def test_what_is_read_at_no_uri_or_completes_no_name_is_refused() -> None:
    bare: Any = Hub().resource
    with pytest.raises(TypeError, match=r"resource\(\) takes uri as text, and got <function"):

        @bare
        def note() -> str:
            return "text"

    completes: Any = Hub().completion
    with pytest.raises(TypeError, match=r"completion\(\) takes of as text, and got <function"):
        completes(names, "code")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("", "'' is not a URI, as in 'notes://{name}'"),
        ("notes", "'notes' is not a URI"),
        ("notes://all", r"nothing is given for the parameter name; a resource is given the parts of its URI"),
        ("notes://{name}/{day}", r"note has no parameter day, for the part \{day\} of 'notes://"),
        ("notes://{name*}", r"in 'notes://\{name\*\}', write parts as \{name\}; they have no slash"),
        ("notes://{?name}", "they have no slash"),
    ],
)
def test_a_resource_whose_function_does_not_fit_its_uri_is_refused(uri: str, why: str) -> None:
    def note(name: str) -> str:
        return name

    with pytest.raises(RegistrationError, match=why):
        Hub().resource(uri)(note)


def test_a_function_that_needs_what_it_is_never_given_is_refused() -> None:
    def suggest(text: str) -> list[str]:
        return [text]

    with pytest.raises(RegistrationError, match="the parameter text; a completion is given value, arguments"):
        Hub().completion("review", "language")(suggest)
    with pytest.raises(RegistrationError, match=r"suggest has no parameter language, for the part"):
        Hub().prompt("review-{language}")(suggest)


def test_an_option_that_takes_several_refuses_one_text() -> None:
    one: Any = "admin"
    with pytest.raises(TypeError, match=r"method\(\): scopes takes several, as in scopes=\['admin'\]"):
        Hub().method("x", scopes=one)
    with pytest.raises(TypeError, match=r"method\(\): elicits takes several"):
        Hub().method("x", elicits=one)
    with pytest.raises(
        TypeError, match=r"elicits takes questions, as in Question\(.pickDay., int\); got 'a'"
    ):
        Hub().method("x", elicits=["a"])  # type: ignore[list-item]


def test_an_option_that_means_nothing_is_refused() -> None:
    options: Any = {"scope": ["files:write"]}
    with pytest.raises(TypeError, match=r"method\(\) got an unexpected keyword argument 'scope'"):
        Hub().method("x", **options)
    with pytest.raises(TypeError, match="'scope'"):
        method("x", **options)


def test_whoever_watches_is_told_of_a_function_that_comes_later() -> None:
    hub = greeter()
    told: list[Any] = []
    hub.watch(told.append)
    hub.method("later")(lambda: "now")
    assert told
    assert asyncio.run(run(hub, "later")).result == "now"


def test_resources_prompts_listings_and_completions_need_no_class_either() -> None:
    hub = Hub()

    @hub.resource("notes://{name}", mime_type="text/plain")
    def note(name: str) -> str:
        """A note."""
        return f"note {name}"

    @hub.listing("notes://{name}")
    def notes(after: str | None) -> Listing:
        return Listing([{"uri": "notes://a", "name": "a"}])

    @hub.prompt("review.code")
    def review(code: str) -> str:
        """Review code."""
        return f"Review {code}"

    @hub.completion("review.code", "code")
    def code(value: str) -> list[str]:
        return [f"{value}!"]

    with pytest.raises(RegistrationError, match=r"There are two resources 'notes://{name}'"):
        hub.resource("notes://{name}")(note)
    with pytest.raises(RegistrationError, match=r"lists 'files://{x}', but there is no such resource"):
        hub.listing("files://{x}")(notes)

    async def main() -> None:
        async with connect(hub) as client:
            assert [one["text"] for one in await client.read("notes://b")] == ["note b"]
            assert [one["uri"] for one in await client.resources()] == ["notes://a"]
            assert [one["name"] for one in await client.prompts()] == ["review.code"]
            assert "Review x" in str(await client.prompt("review.code", {"code": "x"}))
            ref = {"type": "ref/prompt", "name": "review.code"}
            assert await client.complete(ref, "code", "x") == ["x!"]

    drive(main())

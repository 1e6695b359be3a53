"""What tools give as structured content, and the schemas that say so: what official clients check."""

import asyncio
import datetime as dt
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal

import pytest
from jsonschema_rs import validator_for
from msgspec import Struct
from pydantic import AnyUrl, BaseModel, SecretStr, computed_field

from driving import drive
from mcp_peers import LEGACY, MODERN, HttpServer, http_server
from midcall import Ask, Hub, connect, method
from midcall.content import Audio, Image
from midcall.testing import run


class Point(Struct):
    x: int


class Tree(BaseModel):
    branches: list["Tree"] = []


class Failing(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def share(self) -> float:
        return 1 / 0


class Give:
    """Gives values of all types."""

    @method
    async def number(self) -> int:
        """A number."""
        return 5

    @method
    async def yes(self) -> bool:
        """A truth."""
        return True

    @method
    async def day(self) -> dt.date:
        """A date."""
        return dt.date(2026, 12, 31)

    @method
    async def json_like(self) -> str:
        """A text that looks like JSON."""
        return "[1, 2]"

    @method
    async def maybe(self, there: bool) -> int | None:
        """A number, or nothing."""
        return 1 if there else None

    @method
    async def points(self) -> list[Point]:
        """A list of objects."""
        return [Point(1), Point(2)]

    @method
    async def trees(self) -> list[Tree]:
        """A list of what has more of its own kind in it."""
        return [Tree(branches=[Tree()])]

    @method
    async def either(self) -> Point | str:
        """An object or a text."""
        return Point(1)

    @method
    async def point(self) -> Point:
        """An object."""
        return Point(1)

    @method
    async def path(self) -> Path:
        """A path."""
        return Path("/tmp")

    @method
    async def address(self) -> IPv4Address:
        """An address."""
        return IPv4Address("127.0.0.1")

    @method
    async def url(self) -> AnyUrl:
        """A URL."""
        return AnyUrl("https://example.com/a")

    @method
    async def secret(self) -> SecretStr:
        """A text that is not sent."""
        return SecretStr("word")

    @method
    async def row(self) -> deque[bytes]:
        """Files in a row."""
        return deque([b"\xff"])

    @method
    async def own(self) -> str:
        """A text of a type of its own."""

        class Own(str):
            __slots__ = ()

        return Own("text")

    @method
    async def itself(self) -> Any:
        """A list that contains itself."""
        endless: list[Any] = []
        endless.append(endless)
        return endless

    @method
    async def proxied(self) -> Any:
        """An object that has code of its own for each attribute."""

        class Proxy:
            def __getattr__(self, name: str) -> Any:
                raise KeyError(name)

        return Proxy()

    @method
    async def keyed(self) -> Any:
        """Keys that JSON does not have."""
        return {("a", "b"): 1}

    @method
    async def failing(self) -> Failing:
        """What cannot be written."""
        return Failing()

    @method
    async def opaque(self) -> Any:
        """An object of Python."""
        return object()

    @method
    async def forgotten(self) -> Any:
        """A coroutine that nobody has awaited."""
        forgotten = asyncio.sleep(0)
        forgotten.close()
        return forgotten

    @method
    async def asked(self, ask: Ask) -> int:
        """A number, of a tool that may ask."""
        ask.progress("half", 50)
        return 7

    @method
    async def words(self, count: int) -> AsyncIterator[str]:
        """A stream of words."""
        for n in range(count):
            yield f"{n} "

    @method
    async def grades(self) -> AsyncIterator[Literal["good", "bad"]]:
        """A stream of words of which there are two."""
        yield "good"
        yield "bad"

    @method
    async def events(self, count: int) -> AsyncIterator[Point | str]:
        """A stream of objects and texts."""
        for n in range(count):
            yield Point(n) if n % 2 else str(n)

    @method
    async def anything(self) -> Any:
        """Nobody knows."""
        return {"a": 1}

    @method
    async def nothing(self) -> None:
        """Nothing."""

    @method
    async def picture(self) -> Image:
        """A picture."""
        return Image(b"picture")

    @method
    async def mixed(self) -> list[str | Image]:
        """Words and pictures."""
        return ["see", Image(b"picture")]

    @method
    async def perhaps(self) -> Audio | None:
        """Sound, or silence."""
        return None

    @method
    async def bare(self) -> list:  # type: ignore[type-arg]
        """A list of anything."""
        return [Image(b"picture")]

    @method
    async def pictures(self) -> AsyncIterator[Image]:
        """A stream of pictures."""
        yield Image(b"picture")


hub = Hub().register(Give())

GIVEN = [
    ("number", {}, 5),
    ("yes", {}, True),
    ("json_like", {}, "[1, 2]"),
    ("maybe", {"there": True}, 1),
    ("maybe", {"there": False}, None),
    ("points", {}, [{"x": 1}, {"x": 2}]),
    ("trees", {}, [{"branches": [{"branches": []}]}]),
    ("either", {}, {"x": 1}),
    ("path", {}, "/tmp"),
    ("address", {}, "127.0.0.1"),
    ("url", {}, "https://example.com/a"),
    ("row", {}, ["/w=="]),
    ("own", {}, "text"),
    ("asked", {}, 7),
    ("words", {"count": 3}, "0 1 2 "),
    ("words", {"count": 1}, "0 "),
    ("words", {"count": 0}, ""),
    ("grades", {}, "goodbad"),
    ("events", {"count": 3}, ["0", {"x": 1}, "2"]),
    ("events", {"count": 1}, ["0"]),
    ("events", {"count": 0}, []),
]


REFUSED = [
    ("itself", "A value that contains itself, or is nested too deeply, cannot be sent"),
    ("secret", r"A value of type SecretStr cannot be sent as JSON: .* its get_secret_value\(\)"),
    ("proxied", "A value .*cannot be sent as JSON"),
    ("keyed", "A value of type tuple cannot be sent as JSON"),
    ("failing", "Error serializing to JSON: ZeroDivisionError: division by zero"),
    ("opaque", "A value of type object cannot be sent as JSON"),
    ("forgotten", r"A value of type coroutine cannot be sent as JSON: is an `await` missing\?"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with http_server(f"{__file__}:hub") as serving:
        yield serving


@pytest.mark.parametrize("revision", [*LEGACY, MODERN])
def test_what_is_no_object_is_wrapped_and_fits_its_schema(server: HttpServer, revision: str) -> None:
    async def main() -> None:
        async with server.client(revision) as client:
            tools = {tool["name"]: tool for tool in (await client.result("tools/list"))["tools"]}
            for name, arguments, value in GIVEN:
                result = await client.result("tools/call", {"name": f"give.{name}", "arguments": arguments})
                assert result["structuredContent"] == {"result": value}, name
                schema = tools[f"give.{name}"]["outputSchema"]
                assert (schema["type"], schema["required"]) == ("object", ["result"])
                validator_for(schema).validate(result["structuredContent"])
            result = await client.result("tools/call", {"name": "give.point"})
            assert result["structuredContent"] == {"x": 1}

    drive(main())


@pytest.mark.parametrize("revision", ["2025-06-18", MODERN])
@pytest.mark.parametrize(("name", "why"), REFUSED)
def test_a_result_that_cannot_be_sent_is_an_error_that_says_why(
    server: HttpServer, revision: str, name: str, why: str
) -> None:
    async def main() -> None:
        async with server.client(revision) as client:
            answer = await client.request("tools/call", {"name": f"give.{name}", "arguments": {}})
            assert re.fullmatch(why, answer["error"]["message"])

    drive(main())


@pytest.mark.parametrize("revision", ["2025-06-18", MODERN])
def test_content_and_what_is_not_known_have_no_schema_and_no_structured_content(
    server: HttpServer, revision: str
) -> None:
    async def main() -> None:
        async with server.client(revision) as client:
            tools = {tool["name"]: tool for tool in (await client.result("tools/list"))["tools"]}
            for name in ("anything", "nothing", "picture", "mixed", "perhaps", "bare", "pictures"):
                assert "outputSchema" not in tools[f"give.{name}"], name
                result = await client.result("tools/call", {"name": f"give.{name}"})
                assert "structuredContent" not in result, name

    drive(main())


@pytest.mark.parametrize(
    ("name", "text"), [("number", "5"), ("json_like", "[1, 2]"), ("yes", "true"), ("day", "2026-12-31")]
)
def test_the_text_is_what_it_was(server: HttpServer, name: str, text: str) -> None:
    async def main() -> None:
        async with server.client(MODERN) as client:
            result = await client.result("tools/call", {"name": f"give.{name}"})
            assert result["content"] == [{"type": "text", "text": text}]

    drive(main())


def test_the_client_gives_the_value_that_the_method_gave() -> None:
    async def main() -> None:
        async with connect(hub) as client:
            for name, arguments, value in GIVEN:
                assert (await client.call(f"give.{name}", arguments)).value == value
        assert (await run(hub, "give.number")).result == 5

    drive(main())

"""Pictures, sound, documents and links: every revision gets what it knows.

The oracle looks at each message; with `MCP_SCHEMAS` set, by the schema of the client's own revision.
"""

import base64
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any

import pytest
from msgspec import Struct
from pydantic import Strict

from driving import drive
from mcp_peers import LEGACY, MODERN, HttpServer, http_server
from midcall import Ask, Hub, completion, method, prompt, resource
from midcall.content import Audio, Document, Embedded, Image, Link
from midcall.mcp import McpExtension

NOTES = {"audience": ["user"], "priority": 0.5}
LINK = Link("file:///a.txt", "a.txt", title="A", description="The first", mime_type="text/plain")


class Point(Struct):
    x: int


class Line(Struct):
    start: Point


class Tree(Struct):
    branches: "list[Tree]" = []


class Show:
    """Gives all kinds of content."""

    @method(
        title="All of it", annotations={"readOnlyHint": True}, icons=[{"src": "data:image/png;base64,AA=="}]
    )
    async def all(self) -> list[Any]:
        """Give one of each."""
        return [
            "a word",
            Image(b"picture", annotations=NOTES),
            Audio(b"one", "audio/ogg", annotations=NOTES),
            Audio(b"two"),
            LINK,
            Link("file:///b.txt", "b.txt"),
            Embedded(Document("file:///c.txt", "text/plain", text="see"), annotations=NOTES),
            Embedded(Document("file:///d.bin", blob=b"raw")),
            {"some": "data"},
        ]

    @method
    async def asked(self, ask: Ask) -> Audio:
        """Give sound, in a method that might ask."""
        ask.progress("half", 50)
        return Audio(b"one")

    @method
    async def record(self) -> dict[str, int]:
        """Give a record, of which newer clients get the fields."""
        return {"a": 1}

    @method
    async def point(self) -> Point:
        """Give a struct."""
        return Point(1)

    @method
    async def line(self) -> Line:
        """Give a struct with another one in it."""
        return Line(Point(1))

    @method
    async def tree(self) -> Tree:
        """Give a struct with more of its own kind in it."""
        return Tree([Tree()])

    @prompt(title="Listen")
    async def listen(self) -> list[Any]:
        """Give messages with all kinds of content."""
        return [
            "hear",
            Audio(b"one"),
            LINK,
            {"role": "assistant", "content": Audio(b"two")},
            Image(b"picture"),
        ]

    @resource("show://song", title="A song", mime_type="audio/ogg", annotations=NOTES)
    async def song(self) -> bytes:
        """A song."""
        return b"one"

    @resource("show://{name}", title="Any")
    async def any(self, name: str) -> str:
        """Anything."""
        return name

    @resource("show://cover")
    async def cover(self) -> Image:
        """A picture."""
        return Image(b"picture", "image/webp")

    @resource("show://pages")
    async def pages(self) -> list[Any]:
        """Texts, pictures and documents."""
        return ["one", Image(b"two"), Embedded(Document("file:///three.txt", text="three"))]

    @prompt
    async def compare(
        self,
        points: list[Point],
        by: dict[str, int],
        note: str | list[str] = "",
        day: Annotated[date, Strict()] | None = None,
        days: list[Annotated[date, Strict()]] | None = None,
    ) -> str:
        """Compare.

        Args:
            points: which
        """
        years = [one.year for one in (*([day] if day else []), *(days or []))]
        return f"{points} {by} {note} {years}"

    @completion("show://{name}", "name")
    async def names(self, value: str) -> list[str]:
        """Names."""
        return [value]


hub = Hub().register(Show()).with_extension(McpExtension(instructions="Look and listen."))


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with http_server(f"{__file__}:hub") as serving:
        yield serving


def test_an_output_schema_has_only_definitions_that_it_uses(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN) as client:
            tools = {tool["name"]: tool for tool in (await client.result("tools/list"))["tools"]}
            used = {name: tools[f"show.{name}"]["outputSchema"] for name in ("point", "line", "tree")}
            assert [schema["type"] for schema in used.values()] == ["object"] * 3
            assert {name: list(schema.get("$defs", ())) for name, schema in used.items()} == {
                "point": [],
                "line": ["Point"],
                "tree": ["Tree"],
            }
            assert "$defs" not in used["point"]

    drive(run())


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("revision", [*LEGACY, MODERN])
def test_a_caller_gets_content_that_its_revision_knows(server: HttpServer, revision: str) -> None:
    has_audio, has_links = revision >= "2025-03-26", revision >= "2025-06-18"
    first: dict[str, Any] = {"type": "audio", "data": encoded(b"one"), "mimeType": "audio/ogg"}
    second: dict[str, Any] = {"type": "audio", "data": encoded(b"two"), "mimeType": "audio/wav"}
    if not has_audio:
        first = {
            "type": "resource",
            "resource": {"uri": "midcall:audio/3", "mimeType": "audio/ogg", "blob": encoded(b"one")},
        }
        second = {
            "type": "resource",
            "resource": {"uri": "midcall:audio/4", "mimeType": "audio/wav", "blob": encoded(b"two")},
        }
    links: list[dict[str, Any]] = [
        {
            "type": "resource_link",
            "uri": "file:///a.txt",
            "name": "a.txt",
            "title": "A",
            "description": "The first",
            "mimeType": "text/plain",
        },
        {"type": "resource_link", "uri": "file:///b.txt", "name": "b.txt"},
    ]
    if not has_links:
        links = [
            {"type": "text", "text": "A: The first: file:///a.txt"},
            {"type": "text", "text": "b.txt: file:///b.txt"},
        ]

    async def run() -> None:
        async with server.client(revision) as client:
            result = await client.result("tools/call", {"name": "show.all", "arguments": {}})
            assert result["content"][2:6] == [{**first, "annotations": NOTES}, second, *links]
            assert [one["type"] for one in result["content"][6:]] == ["resource", "resource", "text"]

            asked = await client.result("tools/call", {"name": "show.asked"}, progressToken="t")
            assert [one["type"] for one in asked["content"]] == ["audio" if has_audio else "resource"]

            filled = await client.result("prompts/get", {"name": "show.listen"})
            kinds = [(message["role"], message["content"]["type"]) for message in filled["messages"]]
            sound, link = "audio" if has_audio else "resource", "resource_link" if has_links else "text"
            assert kinds == [
                ("user", "text"),
                ("user", sound),
                ("user", link),
                ("assistant", sound),
                ("user", "image"),
            ]

    drive(run())


@pytest.mark.parametrize("revision", [*LEGACY, MODERN])
def test_what_a_revision_does_not_know_beside_content_does_no_harm(server: HttpServer, revision: str) -> None:
    """Titles, icons, output schemas and the like are extras, which the schemas of old revisions allow."""

    async def run() -> None:
        async with server.client(revision) as client:
            for method_name in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
                await client.result(method_name)
            result = await client.result("tools/call", {"name": "show.record", "arguments": {}})
            assert result["structuredContent"] == {"a": 1}
            read = await client.result("resources/read", {"uri": "show://song"})
            assert read["contents"] == [
                {"uri": "show://song", "mimeType": "audio/ogg", "blob": encoded(b"one")}
            ]
            reference = {"type": "ref/resource", "uri": "show://{name}"}
            params = {"ref": reference, "argument": {"name": "name", "value": "a"}}
            completed = await client.result("completion/complete", params)
            assert completed["completion"]["values"] == ["a"]
            assert client.oracle.checked > 6

    drive(run())


def test_pictures_and_documents_of_a_resource_are_its_contents(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN) as client:
            cover = (await client.result("resources/read", {"uri": "show://cover"}))["contents"]
            assert cover == [{"uri": "show://cover", "mimeType": "image/webp", "blob": encoded(b"picture")}]
            pages = (await client.result("resources/read", {"uri": "show://pages"}))["contents"]
            assert pages == [
                {"uri": "show://pages", "mimeType": "text/plain", "text": "one"},
                {"uri": "show://pages", "mimeType": "image/png", "blob": encoded(b"two")},
                {"uri": "file:///three.txt", "text": "three"},
            ]

    drive(run())


def test_lists_and_objects_for_a_prompt_come_as_json(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN) as client:
            prompts = (await client.result("prompts/list"))["prompts"]
            arguments = next(one["arguments"] for one in prompts if one["name"] == "show.compare")
            assert [one.get("description") for one in arguments] == [
                "which (a JSON array)",
                "a JSON object",
                None,
                None,
                "a JSON array",
            ]

            async def compare(**arguments: str) -> str:
                params = {"name": "show.compare", "arguments": arguments}
                text: str = (await client.result("prompts/get", params))["messages"][0]["content"]["text"]
                return text

            given = {"points": '[{"x": 1}]', "by": '{"x": 2}'}
            said = await compare(**given, note="[1]", day="2030-01-02", days='["2031-01-02"]')
            assert said == "[Point(x=1)] {'x': 2} [1] [2030, 2031]"
            for wrong in ("[{}]", "x", "7", '"[]"', "[" * 100_000):
                params = {"name": "show.compare", "arguments": {**given, "points": wrong}}
                code, message = await client.error("prompts/get", params)
                assert code == -32602
                assert message.startswith("Invalid arguments for show.compare: points")

    drive(run())

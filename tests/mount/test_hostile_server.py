"""What a mounted server, or one that a client speaks to, cannot do to those who use it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatting import Puppet, serving
from deep_schema import tower
from midcall import Ask, Hub, MidcallError, Request, connect, connect_hub, method
from midcall.chat import ChatEngine
from midcall.client.toolbox import Toolbox
from midcall.errors import InvalidArguments
from midcall.mcp.catalog import Catalog
from mounting import ERAS, drive, mounted
from peers import HERE

Script = Callable[..., list[str]]
ANY = {"type": "object"}
FORM = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": tower(40)["$defs"]}


@pytest.fixture(params=ERAS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Script:
    """The command of a server that does what it is told."""

    def command(**script: Any) -> list[str]:
        place = tmp_path / "script.json"
        place.write_text(json.dumps(script))
        return [sys.executable, str(HERE / "hostile_server.py"), request.param, str(place)]

    return command


def one_tool(**more: Any) -> dict[str, Any]:
    return {"tools/list": {"tools": [{"name": "ask", "inputSchema": ANY, **more}]}}


def form(schema: Any) -> dict[str, Any]:
    return {"mode": "form", "message": "Your order?", "requestedSchema": schema}


class Person:
    """Answers, and remembers what it was asked."""

    def __init__(self, answer: Any = True) -> None:
        self.asked: list[Request] = []
        self._answer = answer

    async def __call__(self, request: Request) -> Any:
        self.asked.append(request)
        return self._answer


async def through_a_mount(command: list[str], person: Person) -> str:
    async with mounted(command) as hub:
        try:
            return str(await hub.call("b.ask", answer=person))
        except MidcallError as error:
            return str(error)


async def through_a_client(command: list[str], person: Person) -> str:
    async with connect(command, answer=person) as client:
        try:
            return (await client.call("ask")).text
        except MidcallError as error:
            return str(error)


WAYS = pytest.mark.parametrize("way", [through_a_mount, through_a_client])


# --- schemas ---------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("schema", [FORM, {"type": "object", "properties": {"a": {"type": "nothing"}}}])
def test_a_form_that_cannot_be_checked_is_not_asked(server: Script, way: Any, schema: Any) -> None:
    person = Person({"a": "x"})
    command = server(lists=one_tool(), asks={"ask": ("k", "elicitation/create", form(schema))})
    assert "JSON Schema" in drive(way(command, person))
    assert person.asked == []


@WAYS
def test_an_answer_that_is_too_much_to_be_checked_is_refused(server: Script, way: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"items": {"enum": list(range(9000))}}}}
    command = server(lists=one_tool(), asks={"ask": ("k", "elicitation/create", form(schema))})
    assert "too much" in drive(way(command, Person({"a": ["x"] * 1000})))


def test_a_call_whose_schema_cannot_be_checked_is_not_sent(server: Script) -> None:
    async def main() -> None:
        async with connect(server(lists=one_tool(inputSchema=FORM), says={"ask": "called"})) as client:
            with pytest.raises(InvalidArguments, match="JSON Schema is too large"):
                await client.check("ask", {"a": "x"})
            (result,) = await Toolbox({"": client}).call([{"id": "1", "name": "ask", "arguments": {"a": 1}}])
            assert not result["success"]

    drive(main())


def test_a_schema_that_is_nested_very_deeply_leaves_the_catalog_as_it_is(server: Script) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}

    async def main() -> None:
        async with mounted(server(lists=one_tool(inputSchema=deep), says={"ask": "called"})) as hub:
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(300)  # less than the schema, as that may be nested more deeply than calls
            try:
                assert "b.ask" in Catalog(hub).tools
            finally:
                sys.setrecursionlimit(limit)

    drive(main())


# --- names -------------------------------------------------------------------------------------------


def test_what_nobody_could_name_is_left_out(server: Script) -> None:
    long = "x" * 20_000
    lists = {
        "tools/list": {"tools": [{"name": long, "inputSchema": ANY}, {"name": "ask", "inputSchema": ANY}]},
        "prompts/list": {"prompts": [{"name": long}, {"name": "hello"}]},
        "resources/list": {"resources": [{"uri": long, "name": "a"}, {"uri": "x://a", "name": "a"}]},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": long, "name": "a"}]},
    }

    async def main() -> None:
        async with mounted(server(lists=lists)) as hub:
            found = Catalog(hub)
            assert [name for name in found.tools if name != "b.schema"] == ["b.ask"]
            assert list(found.prompts) == ["b.hello"]
            assert list(found.resources) == ["x://a"]
            assert found.templates == []

    drive(main())


@pytest.mark.parametrize("server", ["modern"], indirect=True)  # of an older one, it is the id of a message
def test_a_question_with_a_key_that_nobody_could_send_back_is_not_asked(server: Script) -> None:
    person = Person({"a": "x"})
    asked = ("k" * 5000, "elicitation/create", form({"type": "object", "properties": {}}))
    said = drive(through_a_mount(server(lists=one_tool(), asks={"ask": asked}), person))
    assert "1024 characters at most" in said
    assert person.asked == []


# --- addresses ---------------------------------------------------------------------------------------

ADDRESSES = [
    "javascript:alert(1)",
    " javascript:alert(1)",
    "JavaScript://example.com/%0aalert(1)",
    "data:text/html,<script>alert(1)</script>",
    "file:///etc/passwd",
    "vbscript:x",
    "https:",
    "https:///nowhere",
    "https://[::1",
    "//example.com/in",
    "https://example.com/\x1b]0;title\x07",
    "",
]


@WAYS
@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_no_web_page_is_not_shown(server: Script, way: Any, address: str) -> None:
    person = Person()
    page = {"mode": "url", "message": "Log in", "url": address, "elicitationId": "e"}
    command = server(lists=one_tool(), asks={"ask": ("k", "elicitation/create", page)})
    assert "only web pages can be opened" in drive(way(command, person))
    assert person.asked == []


@WAYS
@pytest.mark.parametrize("address", ["https://example.com/in", "http://127.0.0.1:8000/?a=b#c"])
def test_the_address_of_a_web_page_is_shown(server: Script, way: Any, address: str) -> None:
    person = Person()
    page = {"mode": "url", "message": "Log in", "url": address, "elicitationId": "e"}
    command = server(lists=one_tool(), asks={"ask": ("k", "elicitation/create", page)})
    assert "accept" in drive(way(command, person))
    assert [one.request_type.url for one in person.asked] == [address]  # type: ignore[union-attr]


@WAYS
@pytest.mark.parametrize("server", ["legacy"], indirect=True)
def test_a_page_that_an_error_asks_for_is_held_to_the_same(server: Script, way: Any) -> None:
    person = Person()
    wanted = [{"mode": "url", "message": "Log in", "url": "javascript:alert(1)", "elicitationId": "e"}]
    error = {"code": -32042, "message": "Log in first", "data": {"elicitations": wanted}}
    drive(way(server(lists=one_tool(), fails={"ask": error}), person))
    assert person.asked == []


def test_a_hub_behind_a_websocket_cannot_show_another_address_either() -> None:
    class Pages:
        """Pages."""

        @method
        async def visit(self, ask: Ask, url: str) -> str:
            """Go there."""
            await ask.url(url, "Log in")
            return "been there"

    async def main() -> None:
        hub = Hub("plexus").register(Pages())
        person = Person()
        async with (
            serving(ChatEngine(hub, Puppet("hello"))) as port,
            connect_hub(f"ws://127.0.0.1:{port}/ws") as remote,
        ):
            with pytest.raises(MidcallError, match="only web pages can be opened"):
                await remote.call("pages.visit", {"url": "file:///etc/passwd"}, answer=person)
            assert person.asked == []
            page = {"url": "https://example.com"}
            assert await remote.call("pages.visit", page, answer=person) == "been there"

    drive(main())

"""What only an author's code can list: resources and prompts of templates, by pages, for each caller."""

from typing import Any

import pytest

from driving import drive
from mcp_peers import LATEST, MODERN, http_server, over_stdio
from midcall import CallerName, Hub, Listing, RegistrationError, listing, method, prompt, resource

TOKENS = {"ann": "ann-" + "k" * 40, "eve": "eve-" + "k" * 40}


@pytest.mark.parametrize("revision", [LATEST, MODERN])
def test_what_is_listed_comes_by_pages_after_what_is_known_beforehand(revision: str) -> None:
    async def run() -> None:
        async with over_stdio(revision, target="listing_app:hub") as client:
            for part, key in (("resources", "uri"), ("prompts", "name")):
                pages, cursor = list[list[str]](), None
                while not pages or cursor is not None:
                    listed = await client.result(f"{part}/list", {} if cursor is None else {"cursor": cursor})
                    pages.append([one[key] for one in listed[part]])
                    cursor = listed.get("nextCursor")
                if part == "resources":
                    assert pages == [["book://about", "book://1", "book://2"], ["book://3"], ["song://a"]]
                else:
                    assert pages == [["shelf.plain", "shelf.tell-1", "shelf.tell-2"], ["shelf.tell-3"]]
            templates = (await client.result("resources/templates/list"))["resourceTemplates"]
            assert [one["uriTemplate"] for one in templates] == ["book://{number}", "song://{name}"]
            got = await client.result("prompts/get", {"name": "shelf.tell-2", "arguments": {"tone": "loud"}})
            assert got["messages"][0]["content"]["text"] == "tell 2, loud"
            code = -32602 if revision == MODERN else -32002
            assert await client.error("resources/read", {"uri": "book://9"}) == (
                code, "Resource not found: book://9",
            )  # fmt: skip
            assert await client.error("prompts/get", {"name": "shelf.tell-9"}) == (-32602, "There is no 9")
            assert (await client.error("prompts/get", {"name": "shelf.tell-"}))[0] == -32602
            assert (await client.error("prompts/get", {"name": "shelf.tell-1", "arguments": []}))[0] == -32602

    drive(run())


def test_a_caller_without_the_scope_of_a_template_does_not_see_what_is_listed() -> None:
    async def run(server: Any) -> None:
        for name, seen in (("ann", True), ("eve", False)):
            async with server.client(LATEST, token=TOKENS[name]) as client:
                found, cursor = list[str](), None
                while not found or cursor is not None:
                    listed = await client.result(
                        "resources/list", {} if cursor is None else {"cursor": cursor}
                    )
                    found += [one["uri"] for one in listed["resources"]]
                    cursor = listed.get("nextCursor")
                assert ("song://a" in found) == seen
                assert "book://1" in found
                assert await client.tool("shelf.whoami") == name

    tokens = f"ann={TOKENS['ann']}:music eve={TOKENS['eve']}"
    with http_server("listing_app:hub", MIDCALL_TOKENS=tokens) as server:
        drive(run(server))


def test_a_listing_of_nothing_is_refused() -> None:
    class Lost:
        @method
        def one(self) -> int:
            return 1

        @listing("nowhere://{x}")
        def some(self, after: str | None) -> Listing:
            return Listing()

    with pytest.raises(RegistrationError, match=r"some lists 'nowhere://.x.', but there is no such"):
        Hub().register(Lost())


def test_the_name_of_the_caller_is_filled_in_and_not_in_the_schema() -> None:
    class Door:
        @method
        async def knock(self, who: CallerName, times: int = 1) -> str:
            return f"{who} {times}"

        @method
        def ring(self, *, bell: str, caller: CallerName) -> str:
            return f"{caller} {bell}"

        @resource("door://it")
        async def read(self, caller: CallerName) -> str:
            return str(caller)

        @prompt
        async def greet(self, caller: CallerName) -> str:
            return str(caller)

    async def run() -> None:
        hub = Hub().register(Door())
        assert list(hub.schema("door.knock")["params"]["properties"]) == ["times"]
        assert not hub.resolve("door.knock").method.interactive
        assert await hub.call("door.knock", {"times": 2}, principal="ann") == "ann 2"
        assert await hub.call("door.knock", [3]) == "None 3"
        assert await hub.call("door.ring", {"bell": "x"}, principal="eve") == "eve x"
        for given in ({"who": "eve"}, {"caller": "eve", "bell": "x"}):
            with pytest.raises(Exception, match="is not a parameter"):
                await hub.call("door.knock" if "who" in given else "door.ring", given, principal="ann")

    drive(run())

    class Twice:
        @method
        def both(self, one: CallerName, two: CallerName) -> None:
            """Ask twice."""

    with pytest.raises(RegistrationError, match="two parameters of type CallerName"):
        Hub().register(Twice())


def test_an_activation_is_attached_and_detached() -> None:
    class Guest:
        def __init__(self) -> None:
            self.told = list[Any]()

        def attach(self, hub: Hub) -> None:
            self.told.append(hub)

        async def detach(self) -> None:
            self.told.append("detached")

        @method
        def one(self) -> int:
            return 1

    async def run() -> None:
        inner, outer, guest = Hub("inner"), Hub("outer"), Guest()
        inner.register(guest)
        outer.register_hub(inner)
        assert guest.told == [inner]
        assert (inner.root, outer.root) == (outer, outer)
        await outer.close()
        assert guest.told == [inner, "detached"]

    drive(run())

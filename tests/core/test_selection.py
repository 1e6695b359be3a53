"""Tags, and what `hub.restrict` leaves out: neither listed nor callable."""

import asyncio
import sys
from typing import Any

import pytest

from driving import drive
from midcall import Hub, completion, connect, listing, method, prompt, resource
from midcall.cli.inspect import offers
from midcall.content import Listing
from midcall.errors import MethodNotFound, RegistrationError, RemoteError
from midcall.fsm import MachineBuilder
from midcall.testing import run
from peers import HERE
from tagged_app import Files, make


def names(hub: Hub) -> list[str]:
    return [name for name, _ in hub.methods()]


def test_a_method_has_its_own_tags_and_those_of_its_activation() -> None:
    hub = make()
    assert hub.schema("files.wipe")["tags"] == ["admin", "danger", "files"]
    assert hub.schema("files.show")["tags"] == ["files"]
    assert "tags" not in Hub().register(Files(), namespace="x").schema("x.schema")
    tagged = Hub().register(Files(), tags={"mine"})
    assert tagged.schema("files.show")["tags"] == ["files", "mine"]


def test_mcp_clients_see_tags_where_those_of_fastmcp_look_for_them() -> None:
    async def listed() -> list[Any]:
        async with connect(make()) as client:
            return list(await client.tools())

    found = {one["name"]: one.get("_meta") for one in drive(listed())}
    assert found["files.show"] == {"fastmcp": {"tags": ["files"]}, "dev.midcall/tags": ["files"]}
    assert found["knock"] == {"fastmcp": {"tags": ["read"]}, "dev.midcall/tags": ["read"]}


@pytest.mark.parametrize(
    ("only", "without", "left"),
    [
        ((), "tag:admin", ["files.show", "knock", "inner.more.show"]),
        ("tag:files", "tag:danger", ["files.show", "inner.more.show"]),
        ("files.*", (), ["files.show", "files.wipe"]),
        (["tag:read", "inner.more.w*"], (), ["knock", "inner.more.wipe"]),
        ((), ["inner.*", "tag:adm?n"], ["files.show", "knock"]),
    ],
)
def test_patterns_are_tags_or_names(only: Any, without: Any, left: list[str]) -> None:
    hub = make().restrict(only=only, without=without)
    assert names(hub) == left
    for name in {*names(make())} - {*left}:
        for spelled in (name, name.replace(".", "_")):
            with pytest.raises(MethodNotFound):
                hub.resolve(spelled)


def test_what_is_left_out_is_in_no_schema_and_in_no_list() -> None:
    hub = make().restrict(without="tag:admin")
    for text in (
        str(hub.schema()),
        str(asyncio.run(run(hub, "files.schema")).result),
        str(asyncio.run(run(hub, "inner.schema")).result),
        str(offers(hub)),
    ):
        assert "wipe" not in text
        assert "secret" not in text
        assert "clean" not in text
    assert "show" in str(asyncio.run(run(hub, "files.schema")).result)
    assert hub.hash != make().hash


def test_resources_prompts_listings_and_completions_go_too() -> None:
    async def tried() -> None:
        async with connect(make().restrict(without="tag:admin")) as client:
            assert [one["uri"] for one in await client.resources()] == ["files://readme"]
            assert await client.prompts() == []
            assert await client.templates() == []
            for refused in (
                client.read("files://secret/a"),
                client.prompt("files.clean"),
                client.complete({"type": "ref/resource", "uri": "files://secret/{name}"}, "name", "a"),
                client.call("files.wipe"),
            ):
                with pytest.raises((RemoteError, MethodNotFound)):
                    await refused

    drive(tried())


class Suggestions:
    """Completes what others have."""

    @completion("files://secret/{name}", "name")
    def secret_names(self, value: str) -> list[str]:
        return ["a"]

    @completion("files.clean", "how")
    def ways(self, value: str) -> list[str]:
        return ["hot"]

    @method
    def other(self) -> None:
        """There is something else too."""


def test_nobody_else_completes_what_is_left_out() -> None:
    async def tried(hub: Hub) -> list[list[str] | None]:
        found: list[list[str] | None] = []
        async with connect(hub.register(Suggestions())) as client:
            for of, argument in (
                ({"type": "ref/resource", "uri": "files://secret/{name}"}, "name"),
                ({"type": "ref/prompt", "name": "files.clean"}, "how"),
            ):
                try:
                    found.append(await client.complete(of, argument, ""))
                except RemoteError:
                    found.append(None)
        return found

    assert drive(tried(make())) == [["a"], ["hot"]]
    assert drive(tried(make().restrict(without="tag:admin"))) == [None, None]


class Notes:
    """Notes, of which one is not for everybody."""

    @method("review-all", tags={"admin"})
    def review_all(self) -> None:
        """A tool of the name that a prompt has."""

    @listing("notes://{name}")
    def notes(self, after: str | None) -> Listing:
        return Listing(
            [{"uri": f"notes://{name}", "name": name} for name in ("secret", "other", "./secret", "Secret#1")]
        )

    @resource("notes://secret", tags={"admin"})
    def secret(self) -> str:
        """The one."""
        return "secret"

    @resource("notes://{name}")
    def note(self, name: str) -> str:
        """Any."""
        return f"note {name}"

    @prompt("review-secret", tags={"admin"})
    def review_secret(self) -> str:
        """Review the one."""
        return "secret"

    @prompt("review-{name}")
    def review(self, name: str) -> str:
        """Review any."""
        return f"review {name}"


def test_no_template_stands_for_what_is_left_out() -> None:
    async def tried(hub: Hub) -> list[str]:
        said = []
        async with connect(hub) as client:
            assert [one["uri"] for one in await client.resources()] == ["notes://other", "notes://Secret#1"]
            for uri in ("notes://other", "notes://secret", "notes://secre%74", "notes://se\tcret#"):
                try:
                    said.append((await client.read(uri))[0]["text"])
                except RemoteError as error:
                    said.append(str(error))
            for name in ("review-other", "review-all", "review-secret"):
                try:
                    said.append((await client.prompt(f"notes.{name}"))["messages"][0]["content"]["text"])
                except RemoteError as error:
                    said.append(str(error))
        return said

    restricted = Hub().register(Notes()).restrict(without="tag:admin")
    said = drive(tried(restricted))
    assert said == [
        "note other",
        "Resource not found: notes://secret",
        "Resource not found: notes://secre%74",
        "Resource not found: notes://se\tcret#",
        "review other",
        "review all",
        "Unknown prompt: notes.review-secret",
    ]


def test_a_resource_is_meant_by_its_uri_as_well() -> None:
    hub = make().restrict(without="files://secret/*")
    assert [one["name"] for one in offers(hub)["resourceTemplates"]] == []
    assert "files.wipe" in names(hub)


def test_each_restriction_holds_and_also_for_what_comes_later() -> None:
    hub = make().restrict(only="tag:files").restrict(without="tag:admin")
    hub.register(Files(), namespace="later")
    hub.register_hub(Hub("deep").register(Files()))
    assert names(hub) == ["files.show", "inner.more.show", "later.show", "deep.files.show"]


@pytest.mark.parametrize("pattern", ["tag:admn", "file.*", "tag:"])
def test_a_pattern_that_matches_nothing_is_refused_and_changes_nothing(pattern: str) -> None:
    hub = make()
    with pytest.raises(RegistrationError) as refused:
        hub.restrict(only=["tag:read", pattern])
    assert pattern in str(refused.value)
    assert names(hub) == names(make())
    if pattern != "tag:":
        assert "Tags: admin, danger, files, read." in str(refused.value)
        assert "files.show" in str(refused.value)


@pytest.mark.parametrize("tags", ["admin", {1}, {""}, {"a\nb"}, {"x" * 101}])
def test_what_is_no_tag_is_refused(tags: Any) -> None:
    with pytest.raises(TypeError):
        method(tags=tags)

    class Wrong:
        @method
        def one(self) -> None: ...

    with pytest.raises(RegistrationError):
        Hub().register(Wrong(), tags=tags)


def test_a_state_machine_neither_offers_nor_calls_what_is_left_out() -> None:
    hub = make()
    inner = Hub("child").register(Files())
    for number, one in enumerate((hub, inner)):
        machine = MachineBuilder(f"m{number}")
        machine.method("wipe", "files.wipe").to("start", "wipe").to("wipe", "end")
        one.register_machine(machine, tags={"machine"})
    hub.register_hub(inner)
    hub.restrict(only=["tag:machine", "tag:read"])
    assert names(hub) == ["knock", "machines.m0", "child.machines.m1"]
    for name in ("machines.m0", "child.machines.m1"):
        outcome = asyncio.run(run(hub, name))
        assert "Unknown method: files.wipe" in str(outcome.result)


def test_a_mounted_server_is_restricted_by_its_own_tags_and_by_those_of_the_mount() -> None:
    async def listed() -> None:
        hub = Hub("front").mount(
            "behind", [sys.executable, "-m", "midcall", "serve", "tagged_app:hub", "--stdio", "--mcp-only"],
            cwd=HERE, tags={"remote"}, inherit_env=True,
        )  # fmt: skip
        hub.restrict(only="tag:remote", without=["tag:admin", "*.inner.*", "files://secret/*"])
        assert hub.find("behind.files.show") is None  # nobody knows its tags yet
        await hub.open_mounts(60)
        try:
            assert names(hub) == ["behind.files.show", "behind.knock"]
            assert hub.schema("behind.knock")["tags"] == ["read", "remote"]
            async with connect(hub) as client:
                with pytest.raises((RemoteError, MethodNotFound)):
                    await client.read("files://secret/a")
                with pytest.raises((RemoteError, MethodNotFound)):
                    await client.call("behind.files.wipe")
                assert (await client.call("behind.knock")).structured == {"result": "who?"}
        finally:
            await hub.close()

    drive(listed())


def test_by_name_alone_a_server_is_restricted_before_it_has_told_what_it_has() -> None:
    hub = Hub("front").mount("behind", ["nothing-of-that-name"])
    hub.restrict(only="behind.read*")
    assert hub.find("behind.read_it") is not None
    assert hub.find("behind.write_it") is None

"""Hubs: names and how they resolve, what is refused, and the hash of what there is."""

import os
import re
import subprocess
import sys

import pytest

from driving import drive
from midcall import Ask, Hub, MethodNotFound, Question, RegistrationError, method
from midcall.testing import run


class Files:
    """Work with files."""

    @method
    async def delete(self, ids: list[str]) -> int:
        """Delete items."""
        return len(ids)

    @method
    async def copy_all(self) -> str:
        return "copied"


class Mail:
    @method
    async def send(self, to: str) -> str:
        return f"sent to {to}"


class Extension:
    @method("tools/list")
    async def list_tools(self) -> str:
        return "tools"

    @method("initialize")
    async def initialize(self) -> str:
        return "ready"


def call(hub, name, params=None):
    return drive(run(hub, name, params)).result


def nested():
    inner = Hub("inner").register(Mail())
    middle = Hub("middle").register_hub(inner)
    return Hub().register(Files()).register_hub(middle), middle, inner


# --- resolving ------------------------------------------------------------------------------


def test_methods_are_called_by_namespace_and_name():
    assert call(Hub().register(Files()), "files.delete", {"ids": ["a", "b"]}) == 2


def test_the_namespace_is_given_or_is_an_attribute_or_the_class_name_in_lower_case():
    class Named(Mail):
        namespace = "post"

    hub = Hub().register(Mail()).register(Named()).register(Mail(), namespace="other")
    assert [name for name, _ in hub.methods()] == ["mail.send", "post.send", "other.send"]


def test_hubs_nest_and_route_level_by_level():
    hub, middle, inner = nested()
    assert call(hub, "middle.inner.mail.send", {"to": "a"}) == "sent to a"
    assert call(middle, "inner.mail.send", {"to": "b"}) == "sent to b"
    assert call(inner, "mail.send", {"to": "c"}) == "sent to c"
    assert hub.resolve("middle.inner.mail.send").provenance == ("plexus", "middle", "inner", "mail")
    with pytest.raises(MethodNotFound):
        call(hub, "mail.send", {"to": "a"})


def test_items_say_where_they_come_from():
    hub, _, _ = nested()
    (data, done) = drive(run(hub, "middle.inner.mail.send", {"to": "a"})).items
    assert data.content_type == "middle.inner.mail.send"
    assert data.metadata.provenance == done.metadata.provenance == ("plexus", "middle", "inner", "mail")
    assert data.metadata.plexus_hash == hub.hash


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("files_delete", "files.delete"),
        ("files_copy_all", "files.copy_all"),
        ("middle_inner_mail_send", "middle.inner.mail.send"),
        ("plexus_schema", "plexus.schema"),
        ("plexus_hash", "plexus.hash"),
    ],
)
def test_an_underscore_name_is_an_alias_and_the_call_knows_its_real_name(alias, name):
    hub, _, _ = nested()
    assert hub.resolve(alias).name == name


def test_an_alias_that_would_name_two_methods_names_none():
    class A:
        @method
        async def b_c(self) -> str:
            return "a.b_c"

    class AB:
        namespace = "a_b"

        @method
        async def c(self) -> str:
            return "a_b.c"

    hub = Hub().register(A())
    assert call(hub, "a_b_c") == "a.b_c"
    hub.register(AB())
    with pytest.raises(MethodNotFound):
        hub.resolve("a_b_c")
    assert call(hub, "a.b_c") == "a.b_c"
    assert call(hub, "a_b.c") == "a_b.c"


def test_a_nested_hub_that_registers_later_is_seen_by_all_above_it():
    hub, _, inner = nested()
    with pytest.raises(MethodNotFound):
        hub.resolve("middle.inner.files.delete")
    inner.register(Files())
    assert call(hub, "middle.inner.files.delete", {"ids": ["a"]}) == 1


# --- extensions -----------------------------------------------------------------------------


def test_extension_methods_stand_without_a_namespace_and_come_first():
    hub = Hub().register(Files()).with_extension(Extension())
    assert call(hub, "tools/list") == "tools"
    assert call(hub, "initialize") == "ready"
    assert call(hub, "files.copy_all") == "copied"


def test_an_extension_comes_before_an_alias_that_is_registered_later():
    class Short:
        @method("files_copy_all")
        async def own(self) -> str:
            return "extension"

    hub = Hub().with_extension(Short()).register(Files())
    assert call(hub, "files_copy_all") == "extension"
    assert call(hub, "files.copy_all") == "copied"


def test_an_extension_gets_the_hub_to_call_into():
    class Attached(Extension):
        def attach(self, hub):
            self.hub = hub

    extension = Attached()
    hub = Hub().with_extension(extension)
    assert extension.hub is hub


# --- what is refused ------------------------------------------------------------------------


class Rival:
    namespace = "files"

    @method
    async def read(self): ...


def extension_named(name):
    class Thief:
        @method(name)
        async def steal(self): ...

    return Thief()


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda hub: hub.register(Rival()), "Namespace 'files' of Rival is taken by Files"),
        (lambda hub: hub.register(Files()), "Namespace 'files' of Files is taken by Files"),
        (lambda hub: hub.register(Mail(), namespace="plexus"), "'plexus' of Mail is taken by hub 'plexus' itself"),
        (lambda hub: hub.register_hub(Hub("files")), "'files' of hub 'files' is taken by Files"),
        (lambda hub: hub.register(Mail(), namespace="middle"), "'middle' of Mail is taken by hub 'middle'"),
        (lambda hub: hub.register_hub(hub), "Hub 'plexus' cannot be nested in itself"),
        (lambda hub: hub.with_extension(extension_named("files.delete")), "Thief would hide 'files.delete' of Files"),
        (lambda hub: hub.with_extension(extension_named("files_delete")), "Thief would hide 'files_delete' of Files"),
        (lambda hub: hub.with_extension(extension_named("plexus.schema")), "would hide 'plexus.schema' of hub 'plexus'"),
        (
            lambda hub: hub.with_extension(extension_named("middle.inner.mail.send")),
            "Thief would hide 'middle.inner.mail.send' of hub 'middle'",
        ),
        (lambda hub: hub.with_extension(Extension()), "would hide '.*' of extension Extension"),
        (lambda hub: hub.with_extension(object()), "object has no @method"),
        (lambda hub: hub.register_hub(Hub("other"), namespace="a.b"), "'a.b' is not a"),
    ],
)  # fmt: skip
def test_a_name_that_is_taken_is_refused_with_both_owners_and_nothing_changes(register, message):
    hub, _, _ = nested()
    hub.with_extension(Extension())
    before = hub.schema()
    with pytest.raises(RegistrationError, match=message):
        register(hub)
    assert hub.schema() == before


def test_an_activation_whose_method_an_extension_would_hide_is_refused():
    hub = Hub().with_extension(extension_named("mail.send"))
    with pytest.raises(RegistrationError, match=r"'mail.send' of Mail would be hidden by extension Thief"):
        hub.register(Mail())


def test_a_ring_of_hubs_is_refused():
    hub, _, inner = nested()
    with pytest.raises(RegistrationError, match="cannot be nested in itself"):
        inner.register_hub(hub)


@pytest.mark.parametrize("name", ["", "a.b"])
def test_a_hub_needs_a_name_without_dots(name):
    with pytest.raises(RegistrationError, match="not a name for a hub"):
        Hub(name)


# --- unknown methods ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("files.delet", "files.delete"),
        ("file.delete", "files.delete"),
        ("delete", "files.delete"),
        ("mail.send", "middle.inner.mail.send"),
        ("tools/lst", "tools/list"),
        ("plexus.shema", "plexus.schema"),
    ],
)
def test_an_unknown_method_names_near_matches(name, near):
    hub, _, _ = nested()
    hub.with_extension(Extension())
    with pytest.raises(MethodNotFound) as caught:
        hub.resolve(name)
    assert near in caught.value.near
    assert str(caught.value).startswith(f"Unknown method: {name}. Did you mean ")
    assert near in str(caught.value)


def test_an_unknown_method_with_nothing_near_says_so_plainly():
    with pytest.raises(MethodNotFound, match=r"^Unknown method: zzz$"):
        Hub().register(Files()).resolve("zzz")


def test_an_unknown_method_starts_nothing():
    hub = Hub().register(Files())

    async def main():
        with pytest.raises(MethodNotFound):
            await hub.call("files.nothing")
        assert len(hub.calls) == 0

    drive(main())


# --- introspection --------------------------------------------------------------------------


def test_the_hub_describes_itself():
    hub, _, _ = nested()
    hub.with_extension(Extension())
    schema = call(hub, "plexus.schema")
    assert schema["name"] == "plexus"
    assert schema["hash"] == hub.hash == call(hub, "plexus.hash")
    (files,) = schema["activations"]
    assert files["namespace"] == "files"
    assert files["description"] == "Work with files."
    assert [m["name"] for m in files["methods"]] == ["files.delete", "files.copy_all"]
    assert schema["hubs"][0]["hubs"][0]["activations"][0]["namespace"] == "mail"
    assert [m["name"] for m in schema["extensions"]] == ["tools/list", "initialize"]


def test_the_hub_describes_one_method_by_name_or_alias():
    hub, _, _ = nested()
    for name in ("middle.inner.mail.send", "middle_inner_mail_send"):
        schema = call(hub, "plexus.schema", {"method": name})
        assert schema["name"] == "middle.inner.mail.send"
        assert schema["params"]["required"] == ["to"]
    outcome = drive(run(hub, "plexus.schema", {"method": "files.delet"}))
    assert "Did you mean files.delete?" in str(outcome.error)


def test_every_activation_and_nested_hub_describes_itself():
    hub, middle, _ = nested()
    assert call(hub, "files.schema") == hub.schema()["activations"][0]
    assert call(hub, "middle.inner.mail.schema")["namespace"] == "mail"
    assert call(hub, "middle.schema") == middle.schema()
    assert call(hub, "middle.hash") == middle.hash


def test_an_activation_may_have_a_method_called_schema_of_its_own():
    class Database:
        @method
        async def schema(self) -> str:
            return "tables"

    assert call(Hub().register(Database()), "database.schema") == "tables"


# --- hash -----------------------------------------------------------------------------------


def test_the_hash_is_16_hex_characters_and_the_same_for_the_same_methods():
    assert re.fullmatch("[0-9a-f]{16}", nested()[0].hash)
    assert nested()[0].hash == nested()[0].hash


def test_the_hash_is_the_same_whatever_the_order_of_registration():
    assert Hub().register(Files()).register(Mail()).hash == Hub().register(Mail()).register(Files()).hash


SCRIPT = """
import enum, dataclasses
from typing import Literal
import msgspec, pydantic
from midcall import Ask, Hub, Question, method

class Color(enum.Enum):
    RED = "red"
    GREEN = "green"

class Part(msgspec.Struct):
    name: str
    tags: frozenset[str] = frozenset()

class Model(pydantic.BaseModel):
    color: Color = Color.RED
    parts: dict[str, int] = {}

@dataclasses.dataclass
class Data:
    kind: Literal["x", "y"] = "x"

class Tools:
    @method(elicits=[Question("b", Model), Question("a", Data)])
    async def one(self, part: Part, model: Model | None, data: Data, ask: Ask,
                  names: frozenset[str] = frozenset({"a", "b", "c", "d", "e"})) -> Part | Data | set[str]:
        "Do it."

    @method
    async def two(self, *, union: int | str | list[Color] = 5): ...

print(Hub().register(Tools()).register_hub(Hub("inner").register(Tools())).hash)
"""


def test_the_hash_is_the_same_in_another_process():
    hashes = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(hashes) == 1


def one_method(function, **options):
    return Hub().register(type("Tool", (), {"go": method(**options)(function)})()).hash


def test_the_hash_changes_with_anything_that_a_caller_can_see_of_a_method():
    async def go(self, a: int): ...
    async def other_name(self, b: int): ...
    async def other_type(self, a: str): ...
    async def other_default(self, a: int = 1): ...
    async def other_result(self, a: int) -> str: ...
    async def other_doc(self, a: int):
        """Go."""

    async def asks(self, a: int, ask: Ask): ...
    async def streams(self, a: int):
        yield 1

    functions = [go, other_name, other_type, other_default, other_result, other_doc, asks, streams]
    hashes = [one_method(function) for function in functions]
    hashes += [one_method(go, description="!"), one_method(asks, elicits=[Question("q", str)])]
    assert len(set(hashes)) == len(hashes)


def test_the_hash_changes_when_a_child_changes():
    class Versioned(Files):
        version = "1.1.0"
        namespace = "files"

    class Bigger(Files):
        namespace = "files"

        @method
        async def more(self): ...

    hubs = [
        Hub(),
        Hub("other"),
        Hub().register(Files()),
        Hub().register(Versioned()),
        Hub().register(Bigger()),
        Hub().register(Files(), namespace="renamed"),
        Hub().register(Files()).register(Mail()),
        Hub().register(Files()).with_extension(Extension()),
        Hub().register(Files()).register_hub(Hub("inner")),
        Hub().register(Files()).register_hub(Hub("inner").register(Mail())),
    ]
    assert len({hub.hash for hub in hubs}) == len(hubs)


def test_the_hash_changes_when_a_nested_hub_registers_later():
    hub, middle, inner = nested()
    before = (hub.hash, middle.hash, inner.hash)
    inner.register(Files())
    after = (hub.hash, middle.hash, inner.hash)
    assert all(a != b for a, b in zip(before, after, strict=True))
    inner.with_extension(Extension())
    assert hub.hash != after[0]

"""Activations: what is read from a plain class, and how each kind of function runs."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest
from pydantic import BaseModel, Field

from driving import LIMIT, assert_nothing_left, drive
from midcall import Ask, Hub, InvalidArguments, Question, RegistrationError, method
from midcall.testing import run


def hub_of(*functions: Any, **attributes: Any) -> Hub:
    """A hub with one activation, `tool`, that has these functions as its methods."""
    members = {function.__name__: method(function) for function in functions}
    return Hub().register(type("Tool", (), {**members, **attributes})())


def schema_of(function: Any) -> dict[str, Any]:
    return hub_of(function).schema(f"tool.{function.__name__}")


def result_of(function: Any, params: Any = None, **options: Any) -> Any:
    return drive(run(hub_of(function), f"tool.{function.__name__}", params, **options)).result


# --- how a function runs --------------------------------------------------------------------


def test_a_plain_function_runs_in_a_worker_thread():
    def where(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    assert result_of(where) is False


def test_a_plain_function_that_blocks_does_not_hold_up_other_calls():
    gate = threading.Event()

    def block(self) -> str:
        assert gate.wait(LIMIT)
        return "blocked"

    async def open_gate(self) -> str:
        gate.set()
        return "opened"

    async def main():
        hub = hub_of(block, open_gate)
        return await asyncio.gather(hub.call("tool.block"), hub.call("tool.open_gate"))

    assert drive(main()) == ["blocked", "opened"]


def test_a_coroutine_gives_one_result():
    async def add(self, a: int, b: int) -> int:
        return a + b

    assert result_of(add, {"a": 1, "b": 2}) == 3


def test_an_async_generator_gives_a_stream():
    async def count(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            yield n

    assert result_of(count, {"to": 3}) == [0, 1, 2]
    assert schema_of(count)["streaming"] is True
    assert schema_of(count)["returns"] == {"type": "integer"}


def test_a_plain_generator_gives_a_stream_from_worker_threads():
    def count(self, to: int) -> Iterator[str]:
        for _ in range(to):
            yield "main" if threading.current_thread() is threading.main_thread() else "worker"

    assert result_of(count, {"to": 2}) == ["worker", "worker"]
    assert schema_of(count)["streaming"] is True


def test_a_plain_generator_is_closed_when_its_reader_goes_away():
    closed = threading.Event()

    def endless(self) -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            assert threading.current_thread() is not threading.main_thread()
            closed.set()

    async def main():
        hub = hub_of(endless)
        async for _ in hub.call("tool.endless"):
            break
        await assert_nothing_left(hub)

    drive(main())
    assert closed.wait(LIMIT)


@pytest.mark.parametrize("name", ["function", "func", "self_", "call", "arguments", "ask", "name", "raw"])
def test_a_parameter_may_have_any_name_that_the_machinery_uses_too(name):
    space: dict[str, Any] = {}
    exec(
        f"def plain(self, {name}: int) -> int: return {name}\n"
        f"def stream(self, {name}: int): yield {name}\n"
        f"async def coroutine(self, {name}: int) -> int: return {name}\n",
        space,
    )
    assert result_of(space["plain"], {name: 5}) == 5
    assert result_of(space["stream"], {name: 5}) == [5]
    assert result_of(space["coroutine"], {name: 5}) == 5


@pytest.mark.parametrize(
    "name",
    [
        "schema",
        "json",
        "model_config",
        "copy",
        "_x",
        "__y",
        "self_",
        "dict",
        "model_fields",
        "validate",
        "class_",
    ],
)
def test_a_parameter_may_have_a_name_that_clashes_with_pydantic(name):
    space: dict[str, Any] = {}
    exec(f"async def tool(self, {name}: int = 3) -> int: return {name}", space)
    assert schema_of(space["tool"])["params"]["properties"] == {name: {"type": "integer", "default": 3}}
    assert result_of(space["tool"], {name: 5}) == 5
    assert result_of(space["tool"]) == 3


def test_a_static_or_class_method_can_be_a_method():
    class Tools:
        @staticmethod
        @method
        async def one(x: int) -> int:
            return x

        @classmethod
        @method
        async def two(cls, x: int) -> str:
            return f"{cls.__name__}{x}"

        @method
        @staticmethod
        async def three(x: int) -> int:
            return x

        @method
        @classmethod
        async def four(cls, x: int) -> str:
            return f"{cls.__name__}{x}"

    hub = Hub().register(Tools())
    assert drive(run(hub, "tools.one", {"x": 1})).result == 1
    assert drive(run(hub, "tools.two", {"x": 1})).result == "Tools1"
    assert drive(run(hub, "tools.three", {"x": 1})).result == 1
    assert drive(run(hub, "tools.four", {"x": 1})).result == "Tools1"


# --- descriptions ---------------------------------------------------------------------------


def google(self, ids: list[str], force: bool = False) -> int:
    """Delete items.

    They are gone for good.

    Args:
        ids: Which ones,
            one after the other.
        force (bool, optional): Do not ask.

    Returns:
        How many.
    """


def numpy(self, ids: list[str], force: bool = False) -> int:
    """Delete items.

    They are gone for good.

    Parameters
    ----------
    ids : list of str
        Which ones,
        one after the other.
    force : bool, optional
        Do not ask.

    Returns
    -------
    int
        How many.
    """


def sphinx(self, ids: list[str], force: bool = False) -> int:
    """Delete items.

    They are gone for good.

    :param ids: Which ones,
        one after the other.
    :param bool force: Do not ask.
    :returns: How many.
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_descriptions_come_from_the_docstring_in_each_common_style(function):
    schema = schema_of(function)
    assert schema["description"] == "Delete items.\n\nThey are gone for good."
    properties = schema["params"]["properties"]
    assert properties["ids"]["description"] == "Which ones, one after the other."
    assert properties["force"]["description"] == "Do not ask."


def test_what_is_no_known_section_stays_in_the_description():
    async def tool(self):
        """Make a table.

        How it looks
        ------------
        In markdown.

        Important: it is wide.
        """

    assert schema_of(tool)["description"] == (
        "Make a table.\n\nHow it looks\n------------\nIn markdown.\n\nImportant: it is wide."
    )


def test_a_description_in_the_annotation_or_decorator_wins():
    class Tools:
        @method(description="Better.")
        async def tool(
            self, x: Annotated[int, Field(description="From Field")], y: int = Field(1, description="Also")
        ):
            """Worse.

            Args:
                x: From docstring
                y: From docstring
            """

    schema = Hub().register(Tools()).schema("tools.tool")
    assert schema["description"] == "Better."
    assert schema["params"]["properties"]["x"]["description"] == "From Field"
    assert schema["params"]["properties"]["y"]["description"] == "Also"


def test_a_method_without_docstring_has_an_empty_description():
    async def tool(self): ...

    assert schema_of(tool)["description"] == ""


# --- parameters -----------------------------------------------------------------------------


def test_the_schema_of_a_method_has_what_introspection_promises():
    async def tool(self, a: int, b: str = "x", ask: Ask = None) -> list[str]:
        """Do it."""

    schema = schema_of(tool)
    assert schema == {
        "name": "tool.tool",
        "description": "Do it.",
        "params": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "returns": {"type": "array", "items": {"type": "string"}},
        "streaming": False,
        "interactive": True,
        "hash": schema["hash"],
    }
    assert len(schema["hash"]) == 16


@pytest.mark.parametrize(
    ("params", "expected"),
    [(None, 5), ({}, 5), ({"x": 1}, 1), ({"x": "7"}, 7), ([], 5), ([2], 2)],
)
def test_a_field_as_default_has_its_default_and_its_constraints(params, expected):
    async def tool(self, x: int = Field(5, ge=1)) -> int:
        return x

    assert schema_of(tool)["params"]["properties"]["x"] == {"type": "integer", "minimum": 1, "default": 5}
    assert result_of(tool, params) == expected
    with pytest.raises(InvalidArguments, match="x: Input should be greater than or equal to 1"):
        result_of(tool, {"x": 0})


def test_a_field_as_default_without_a_value_is_required():
    async def tool(self, x: int = Field(ge=1, description="How many")) -> int:
        return x

    assert schema_of(tool)["params"]["required"] == ["x"]
    with pytest.raises(InvalidArguments, match="x: is required"):
        result_of(tool)


def test_annotated_constraints_and_descriptions_are_in_the_schema_and_are_kept():
    async def tool(self, name: Annotated[str, Field(description="Who", min_length=2, max_length=4)]) -> str:
        return name

    assert schema_of(tool)["params"]["properties"]["name"] == {
        "type": "string", "description": "Who", "minLength": 2, "maxLength": 4,
    }  # fmt: skip
    with pytest.raises(InvalidArguments, match="name: String should have at least 2 characters"):
        result_of(tool, {"name": "x"})


@pytest.mark.parametrize("annotation", [Optional[int], int | None])  # noqa: UP045
def test_an_optional_parameter_takes_null_but_must_be_given_unless_it_has_a_default(annotation):
    async def tool(self, x) -> str:
        return repr(x)

    tool.__annotations__["x"] = annotation
    assert result_of(tool, {"x": None}) == "None"
    assert result_of(tool, {"x": 1}) == "1"
    with pytest.raises(InvalidArguments, match="x: is required"):
        result_of(tool)


def test_a_parameter_that_is_not_optional_refuses_null():
    async def tool(self, x: int = 1): ...

    with pytest.raises(InvalidArguments, match="x: Input should be a valid integer"):
        result_of(tool, {"x": None})


def test_a_mutable_default_is_not_shared_between_calls():
    async def tool(self, seen: list[int] = []) -> int:  # noqa: B006
        seen.append(1)
        return len(seen)

    assert [result_of(tool), result_of(tool)] == [1, 1]
    hub = hub_of(tool)
    assert [drive(run(hub, "tool.tool")).result for _ in range(3)] == [1, 1, 1]


class Point(BaseModel):
    x: int
    y: int = 0


@dataclasses.dataclass
class Size:
    width: float


class Item(msgspec.Struct):
    name: str
    tags: list[str] = []


def test_models_dataclasses_and_structs_arrive_as_instances():
    async def tool(
        self, point: Point, size: Size, item: Item, items: list[Item], kind: Literal["a", "b"] = "a"
    ) -> str:
        return repr((point, size, item, items, kind))

    given = {
        "point": {"x": 1},
        "size": {"width": 2},
        "item": {"name": "n"},
        "items": [{"name": "m", "tags": ["t"]}],
    }
    assert result_of(tool, given) == repr((Point(x=1), Size(2.0), Item("n"), [Item("m", ["t"])], "a"))


def test_instances_can_be_given_in_process():
    async def tool(self, point: Point, size: Size, item: Item) -> str:
        return repr((point, size, item))

    given = {"point": Point(x=1), "size": Size(2.0), "item": Item("n")}
    assert result_of(tool, given) == repr((Point(x=1), Size(2.0), Item("n")))


def test_arguments_may_be_an_array_in_the_order_of_the_parameters():
    async def tool(self, a: int, ask: Ask, b: str = "x", c: list[int] = []) -> str:  # noqa: B006
        return f"{a}{b}{c}"

    assert result_of(tool, [1]) == "1x[]"
    assert result_of(tool, [1, "y", [2]]) == "1y[2]"
    with pytest.raises(InvalidArguments, match=r"3.* got 4"):
        result_of(tool, [1, "y", [], 4])
    with pytest.raises(InvalidArguments, match="a: is required"):
        result_of(tool, [])
    with pytest.raises(InvalidArguments, match="b: Input should be a valid string"):
        result_of(tool, [1, 2])


@pytest.mark.parametrize("raw", [b" [1]", b"\n[ 1 ]", b'\t{"a": 1}', b'{"a":1}'])
def test_white_space_around_arguments_does_not_matter(raw):
    async def tool(self, a: int): ...

    assert hub_of(tool).resolve("tool.tool").method.read_arguments(raw) == {"a": 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[1",
        b"\xff",
        b'{"a": "\xff"}',
        b"5",
        b'"a"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{} {}",
        b"nul",
    ],
)
def test_arguments_that_are_no_json_object_are_refused(raw):
    async def tool(self, a: int = 1): ...

    with pytest.raises(InvalidArguments):
        hub_of(tool).resolve("tool.tool").method.read_arguments(raw)


def test_every_fault_is_reported_with_its_place():
    async def tool(self, a: int, points: list[Point], name: str): ...

    with pytest.raises(InvalidArguments) as caught:
        result_of(tool, {"a": "x", "points": [{"x": 1}, {"x": "no"}], "other": 1})
    assert {fault["path"]: fault["message"] for fault in caught.value.errors} == {
        "a": "Input should be a valid integer, unable to parse string as an integer",
        "points.1.x": "Input should be a valid integer, unable to parse string as an integer",
        "name": "is required",
        "other": "is not a parameter",
    }
    assert str(caught.value).startswith("Invalid arguments for tool.tool: ")
    assert caught.value.data["errors"] == caught.value.errors


def test_a_parameter_without_annotation_takes_anything():
    async def tool(self, x, y=2) -> str:
        return f"{x}{y}"

    assert result_of(tool, {"x": "a"}) == "a2"
    assert schema_of(tool)["params"]["properties"] == {"x": {}, "y": {"default": 2}}


# --- Ask ------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotation", [Ask, "Ask", Ask | None, Annotated[Ask, "why not"]])
def test_a_parameter_of_type_ask_is_filled_in_hidden_and_marks_the_method_as_interactive(annotation):
    async def tool(self, question: str, ask: Any) -> bool:
        return await ask.confirm(question)

    tool.__annotations__["ask"] = annotation
    schema = schema_of(tool)
    assert list(schema["params"]["properties"]) == ["question"]
    assert schema["interactive"] is True
    assert result_of(tool, {"question": "Sure?"}, answers=[True]) is True
    with pytest.raises(InvalidArguments, match="ask: is not a parameter"):
        result_of(tool, {"question": "Sure?", "ask": 1})


def test_a_method_without_ask_is_not_interactive():
    async def tool(self): ...

    assert schema_of(tool)["interactive"] is False


def test_typed_questions_that_a_method_declares_are_in_its_schema():
    class Tools:
        @method(elicits=[Question("pickPoint", Point)])
        async def tool(self, ask: Ask): ...

    elicits = Hub().register(Tools()).schema("tools.tool")["elicits"]
    assert elicits["pickPoint"]["required"] == ["x"]


# --- results --------------------------------------------------------------------------------


class Deleted(msgspec.Struct, tag="deleted"):
    id: str


class Stopped(msgspec.Struct, tag="stopped"):
    pass


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, {"type": "integer"}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (None, None),
        (Any, None),
        (object, None),
        (threading.Thread, None),
    ],
)
def test_the_output_schema_comes_from_the_return_annotation(annotation, expected):
    async def tool(self): ...

    tool.__annotations__["return"] = annotation
    assert schema_of(tool)["returns"] in (expected, {} if expected is None else expected)


def test_the_output_schema_of_a_stream_is_that_of_its_elements():
    async def tool(self) -> AsyncIterator[Deleted | Stopped]:
        yield Stopped()

    returns = schema_of(tool)["returns"]
    assert returns["anyOf"] == [{"$ref": "#/$defs/Deleted"}, {"$ref": "#/$defs/Stopped"}]
    assert set(returns["$defs"]) == {"Deleted", "Stopped"}


def test_a_model_as_result_is_described_as_it_is_sent():
    async def tool(self) -> Point:
        return Point(x=1)

    assert set(schema_of(tool)["returns"]["properties"]) == {"x", "y"}
    assert result_of(tool) == Point(x=1)


# --- what cannot be registered ---------------------------------------------------------------


async def star_args(self, *ids: int): ...


async def star_kwargs(self, **options: int): ...


async def positional(self, a: int, /): ...


async def two_asks(self, a: Ask, b: Ask): ...


async def unknown_annotation(self, a: "Nowhere"): ...  # noqa: F821


async def no_json(self, a: threading.Thread): ...


def sync_asks(self, ask: Ask): ...


def sync_generator_asks(self, ask: Ask):
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (star_args, "star_args: parameter ids cannot be given by name"),
        (star_kwargs, "star_kwargs: parameter options cannot be given by name"),
        (positional, "positional: parameter a cannot be given by name"),
        (two_asks, "two_asks has two parameters of type Ask"),
        (unknown_annotation, "unknown_annotation: an annotation cannot be read .*Nowhere"),
        (no_json, r"no_json: parameter a: .*Thread.*, write Annotated\[\.\.\., Depends\(function\)\]"),
        (sync_asks, "sync_asks asks, so it must be `async def`"),
        (sync_generator_asks, "sync_generator_asks asks, so it must be `async def`"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_function_that_cannot_be_a_method_is_refused_by_name(function, message):
    with pytest.raises(RegistrationError, match=message):
        hub_of(function)


def test_a_class_instead_of_an_instance_is_refused():
    class Tools:
        @method
        async def tool(self): ...

    with pytest.raises(RegistrationError, match=r"Register an instance: Tools\(\)"):
        Hub().register(Tools)


def test_an_object_without_methods_is_refused():
    with pytest.raises(RegistrationError, match="object has no @method"):
        Hub().register(object())


def test_two_methods_of_one_name_are_refused_with_both_named():
    class Tools:
        @method("go")
        async def one(self): ...

        @method("go")
        async def two(self): ...

    with pytest.raises(RegistrationError, match=r"two methods 'go': .*Tools\.one and .*Tools\.two"):
        Hub().register(Tools())


@pytest.mark.parametrize("namespace", ["a.b", "1a", "a b", "-a", "ä/"])
def test_a_namespace_that_is_no_name_is_refused(namespace):
    class Tools:
        @method
        async def tool(self): ...

    with pytest.raises(RegistrationError, match="is not a namespace"):
        Hub().register(Tools(), namespace=namespace)


# --- classes --------------------------------------------------------------------------------


class Base:
    @method
    async def kept(self) -> str:
        return "base"

    @method
    async def replaced(self) -> str:
        return "base"

    @method
    async def renamed(self) -> str:
        return "base"


class Derived(Base):
    @method
    async def replaced(self) -> str:
        return f"derived, not {await super().replaced()}"

    @method("other")
    async def renamed(self) -> str:
        return "other"

    @method
    async def added(self) -> str:
        return "added"


def test_methods_are_inherited_replaced_and_added():
    hub = Hub().register(Derived())
    assert [name for name, _ in hub.methods()] == [
        "derived.kept", "derived.replaced", "derived.other", "derived.added",
    ]  # fmt: skip
    assert drive(run(hub, "derived.kept")).result == "base"
    assert drive(run(hub, "derived.replaced")).result == "derived, not base"
    assert drive(run(hub, "derived.other")).result == "other"


def test_reading_a_class_does_not_run_its_properties():
    class Tools:
        @property
        def connection(self):
            raise RuntimeError("not yet connected")

        @method
        async def tool(self) -> int:
            return 1

    assert drive(run(Hub().register(Tools()), "tools.tool")).result == 1


def test_methods_of_one_instance_see_their_own_state():
    class Counter:
        def __init__(self, start):
            self.value = start

        @method
        async def value_of(self) -> int:
            return self.value

    hub = Hub().register(Counter(1), namespace="one").register(Counter(2), namespace="two")
    assert drive(run(hub, "one.value_of")).result == 1
    assert drive(run(hub, "two.value_of")).result == 2


def test_the_plugin_id_is_made_of_namespace_and_major_version():
    class Health:
        @method
        async def check(self): ...

    class Health2(Health):
        namespace = "health"
        version = "2.3.4"

    (one,) = Hub().register(Health()).schema()["activations"]
    (two,) = Hub().register(Health2()).schema()["activations"]
    assert one["plugin_id"] == "dc560257-b7c5-575b-b893-b448c87ca797"
    assert two["namespace"] == "health"
    assert two["plugin_id"] != one["plugin_id"]


def test_a_result_that_json_cannot_describe_is_told_to_the_author(caplog: pytest.LogCaptureFixture):
    class Opaque: ...

    def known(self) -> list[int]: ...
    def anything(self) -> Any: ...
    def opaque(self) -> "list[Opaque]": ...

    opaque.__annotations__["return"] = list[Opaque]
    hub_of(known, anything, opaque)
    (told,) = caplog.messages
    assert "opaque has no output schema: Unable to generate" in told

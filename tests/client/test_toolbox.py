"""Tools for models: names, schemas, calls and results in the forms of providers."""

import json
from typing import Any

import jsonschema_rs
import pytest

from driving import drive
from midcall import Hub, InvalidArguments, MethodNotFound, connect, method, prompt, resource
from midcall.client import Toolbox
from midcall.client.toolbox import (
    anthropic_results,
    calls_from_anthropic,
    calls_from_openai,
    native_name,
    openai_results,
    request_schema,
)
from midcall.json_schema import compiled


class Shop:
    """A shop."""

    @method
    async def price(self, article: str, count: int = 1) -> dict[str, int]:
        """What it costs."""
        if article == "nothing":
            raise ValueError("nothing has no price")
        return {"cents": 250 * count}

    @method
    async def describe(self, article: str) -> str:
        """What it is."""
        return f"A good {article}"

    @prompt
    async def sell(self, article: str, tone: str = "calm") -> str:
        """Sell it."""
        return f"Sell {article}, {tone}"

    @resource("shop://hours")
    async def hours(self) -> str:
        """When it is open."""
        return "always"

    @resource("shop://articles/{name}")
    async def article(self, name: str) -> str:
        """One article."""
        return name


def shop() -> Hub:
    return Hub("market").register(Shop())


def test_a_model_gets_tools_under_names_that_its_provider_takes_and_calls_them_by_those() -> None:
    async def main() -> None:
        async with connect(shop()) as client, connect(shop()) as other:
            box = Toolbox({"east": client, "": other})
            names = [tool["function"]["name"] for tool in await box.openai()]
            assert names == ["east__shop__price", "east__shop__describe", "shop__price", "shop__describe"]
            (first, *_) = await box.anthropic()
            assert first["name"] == "east__shop__price"
            assert first["description"] == "What it costs."
            assert first["input_schema"]["required"] == ["article"]
            message = {
                "role": "assistant",
                "tool_calls": [
                    _openai_call("1", "east__shop__price", {"article": "tea", "count": 2}),
                    _openai_call("2", "shop__describe", {"article": "tea"}),
                ],
            }
            results = await box.call(calls_from_openai(message))
            assert openai_results(results) == [
                {"role": "tool", "tool_call_id": "1", "content": '{"cents":500}'},
                {"role": "tool", "tool_call_id": "2", "content": "A good tea"},
            ]

    drive(main())


def test_what_a_model_gets_wrong_is_not_sent_and_the_error_says_what_to_mend() -> None:
    async def main() -> None:
        async with connect(shop()) as client:
            box = Toolbox({"s": client})
            calls = calls_from_anthropic(
                [
                    {"type": "text", "text": "Let me see"},
                    {"type": "tool_use", "id": "a", "name": "s__shop__price", "input": {"count": "two"}},
                    {"type": "tool_use", "id": "b", "name": "s__shop__cost", "input": {}},
                    {
                        "type": "tool_use",
                        "id": "c",
                        "name": "s__shop__price",
                        "input": {"article": "nothing"},
                    },
                    {"type": "tool_use", "id": "d", "name": "s__shop__price", "input": {"article": "tea"}},
                ]
            )
            calls.append({"id": "e", "name": "s__shop__price", "arguments": "{not json"})
            results = await box.call(calls)
            assert [result["success"] for result in results] == [False, False, False, True, False]
            assert '"article" is a required property' in results[0]["error"]
            assert "count" in results[0]["error"]
            assert "Unknown method: s__shop__cost" in results[1]["error"]
            assert results[2]["error"] == "nothing has no price"
            assert "not valid JSON" in results[4]["error"]
            blocks: Any = anthropic_results(results)["content"]
            assert [block.get("is_error", False) for block in blocks] == [True, True, True, False, True]
            assert [block["tool_use_id"] for block in blocks] == ["a", "b", "c", "d", "e"]

    drive(main())


def test_names_are_kept_apart_whatever_they_are_made_of() -> None:
    assert native_name("github", "create_issue") == "github__create_issue"
    assert native_name("", "github.create/issue") == "github__create_issue"
    long = [native_name("server", "x" * 80 + end) for end in "ab"]
    assert len({*long}) == 2
    assert all(len(name) == 64 for name in long)


class Twins:
    """Two tools whose names differ only in what providers do not take."""

    @method("a/b")
    async def one(self) -> str:
        """One."""
        return "one"

    @method("a.b")
    async def two(self) -> str:
        """Two."""
        return "two"


def test_two_tools_that_would_have_one_name_both_keep_one() -> None:
    async def main() -> None:
        async with connect(Hub("h").register(Twins(), namespace="")) as client:
            box = Toolbox({"t": client})
            names = [tool["name"] for tool in await box.anthropic()]
            assert len({*names}) == 2
            results = await box.call([{"id": n, "name": n, "arguments": {}} for n in names])
            assert [result["result"]["content"][0]["text"] for result in results] == ["one", "two"]

    drive(main())


def test_one_schema_takes_every_call_that_the_server_takes_and_no_other() -> None:
    async def main() -> None:
        async with connect(shop()) as client:
            schema = await client.request_schema()
            tools = await client.tools()
        assert schema["oneOf"] == [
            {
                "properties": {"name": {"const": tool["name"]}, "arguments": tool["inputSchema"]},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        takes = jsonschema_rs.validator_for(schema).is_valid
        assert takes({"name": "shop.price", "arguments": {"article": "tea"}})
        assert not takes({"name": "shop.price", "arguments": {"count": 1}})
        assert not takes({"name": "shop.cost", "arguments": {}})
        assert not takes({"name": "shop.price"})
        assert not takes({"name": "shop.price", "arguments": {"article": "x"}, "more": 1})
        assert not takes("shop.price")

    drive(main())


def test_references_inside_a_tools_schema_keep_their_meaning_in_the_schema_of_all() -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/X"}},
            "required": ["x"],
            "$defs": {"X": {"type": kind}},
        }
        return {"name": name, "inputSchema": schema}

    schema = request_schema([tool("a", "string"), tool("b", "integer")])
    compiled(schema)  # nothing in it changes what references mean, which many refuse
    takes = jsonschema_rs.validator_for(schema).is_valid
    assert takes({"name": "a", "arguments": {"x": "text"}})
    assert takes({"name": "b", "arguments": {"x": 1}})
    assert not takes({"name": "a", "arguments": {"x": 1}})
    assert not takes({"name": "b", "arguments": {"x": "text"}})


def test_a_call_is_checked_against_what_the_server_lists() -> None:
    async def main() -> None:
        async with connect(shop()) as client:
            await client.check("shop.price", {"article": "tea"})
            with pytest.raises(MethodNotFound, match=r"Did you mean shop\.price"):
                await client.check("shop.prise", {})
            with pytest.raises(InvalidArguments) as caught:
                await client.check("shop.price", {"article": 5, "count": "x"})
            assert {fault["path"] for fault in caught.value.errors} == {"article", "count"}

    drive(main())


def _openai_call(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}

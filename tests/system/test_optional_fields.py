"""A form of which most may be left out, by every way in which a person can be asked."""

import json
from typing import Any, Literal

import pytest

from chatting import Puppet, call, chat, only
from driving import drive
from mcp_app import Seek
from mcp_peers import FORMS, LATEST, MODERN, Client, HttpServer, text
from midcall import Request, connect
from midcall.mcp.request import TASKS

LEAST = {"dish": "pizza", "toppings": []}
MOST: dict[str, Any] = {
    "dish": "pizza",
    "toppings": ["olives", "cheese"],
    "note": "hot",
    "plates": 2,
    "day": "2030-12-31",
    "size": "3",
    "first": "cheese",
}
EMPTIED = {**LEAST, "note": "", "plates": None, "day": "", "size": None, "first": ""}

NOTHING: dict[str, Any] = {**dict.fromkeys(MOST), **LEAST, "size": 2}
"""What comes of an order with nothing but what is required."""

ORDERS = [(LEAST, NOTHING), (EMPTIED, NOTHING), (MOST, {**MOST, "size": 3})]


def is_flat(asked: dict[str, Any]) -> None:
    """Whether it is asked as MCP has it, with what is optional left to the person."""
    schema = asked["requestedSchema"]
    assert schema["required"] == ["dish", "toppings"]
    assert schema["properties"] == {
        "dish": {"type": "string"},
        "toppings": {"type": "array", "items": {"type": "string", "enum": ["cheese", "olives"]}},
        "note": {"type": "string"},
        "plates": {"type": "integer", "minimum": 1, "maximum": 9},
        "day": {"type": "string", "format": "date"},
        "size": {"type": "string", "enum": ["1", "2", "3"], "default": "2"},
        "first": {
            "type": "string",
            "title": "First",
            "description": "What goes on top.",
            "enum": ["cheese", "olives"],
        },
    }


def accept(content: dict[str, Any]) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def order(result: dict[str, Any]) -> Any:
    return json.loads(text(result))


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
def test_by_elicitation(server: HttpServer, revision: str) -> None:
    async def run() -> None:
        async with server.client(revision, FORMS) as client:
            for content, made in ORDERS:
                id = await client.begin("seek.order")
                question = await client.message("elicitation/create")
                is_flat(question["params"])
                await client.answer(question, accept(content))
                assert order((await client.response(id))["result"]) == made

    drive(run())


def test_by_retries(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN, FORMS) as client:
            for content, made in ORDERS:
                asked = await client.result("tools/call", {"name": "seek.order"})
                ((key, question),) = asked["inputRequests"].items()
                is_flat(question["params"])
                again = {"requestState": asked["requestState"], "inputResponses": {key: accept(content)}}
                result = await client.result("tools/call", {"name": "seek.order", **again})
                assert order(result) == made

    drive(run())


async def shown(client: Client, task: Any, status: str) -> Any:
    while (found := await client.result("tasks/get", {"taskId": task["taskId"]}))["status"] != status:
        assert found["status"] in ("working", "input_required")
    return found


def test_by_tasks(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(MODERN, {**FORMS, "extensions": {TASKS: {}}}) as client:
            for content, made in ORDERS:
                task = await client.result("tools/call", {"name": "seek.order"})
                asked = await shown(client, task, "input_required")
                ((key, question),) = asked["inputRequests"].items()
                is_flat(question["params"])
                answers = {"taskId": task["taskId"], "inputResponses": {key: accept(content)}}
                await client.result("tasks/update", answers)
                assert order((await shown(client, task, "completed"))["result"]) == made

    drive(run())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_by_the_client_of_midcall(server: HttpServer, era: Literal["legacy", "modern"]) -> None:
    async def run() -> None:
        nulls = {**LEAST, "note": None, "plates": None, "size": None, "first": None}
        for content, made in ((LEAST, NOTHING), (nulls, NOTHING), (MOST, {**MOST, "size": 3})):

            def answer(request: Request, content: dict[str, Any] = content) -> Any:
                return content

            async with connect(f"http://127.0.0.1:{server.port}/mcp", answer=answer, era=era) as client:
                assert (await client.call("seek.order")).structured == made

    drive(run())


def test_in_the_chat() -> None:
    async def run() -> None:
        for content, made in ORDERS:
            async with chat(Puppet(call("seek__order")), Seek()) as person:
                asked = only(await person.say("I am hungry"), "plugin_elicit_request")
                is_flat({"requestedSchema": asked["schema"]})
                events = await person.answer(asked, **content)
                assert json.loads(only(events, "tool_result")["content"]) == made

    drive(run())


def test_what_a_form_cannot_hold_is_named(server: HttpServer) -> None:
    async def run() -> None:
        said = "An MCP form cannot ask for 'people', which is a list of other things than choices"
        for revision in ("2025-06-18", LATEST, MODERN):
            async with server.client(revision, FORMS) as client:
                result = await client.result("tools/call", {"name": "seek.several_people"})
                assert (result["isError"], text(result).startswith(said)) == (True, True), text(result)

    drive(run())

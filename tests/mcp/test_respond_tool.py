"""Legacy clients without elicitation: questions as log notifications, answers by `_plexus_respond`."""

import asyncio
import json
from typing import Any

import pytest

from driving import drive
from mcp_peers import FORMS, LATEST, LEGACY, MODERN, Client, Connect, HttpServer, text

UNKNOWN = "Unknown request ID: {}. The request may have timed out or been cancelled."


async def question(client: Client) -> Any:
    """The next question, as it is logged."""
    params = (await client.message("notifications/message"))["params"]
    assert (params["level"], params["logger"]) == ("info", "plexus.bidir")
    assert params["data"]["type"] == "request"
    return params["data"]


async def respond(client: Client, request_id: str, payload: Any) -> None:
    arguments = {"request_id": request_id, "payload": payload}
    result = await client.result("tools/call", {"name": "_plexus_respond", "arguments": arguments})
    assert result == {"content": [{"type": "text", "text": "Response received"}]}


async def refused(client: Client, arguments: Any) -> tuple[int, str]:
    return await client.error("tools/call", {"name": "_plexus_respond", "arguments": arguments})


def test_the_scenario_of_the_seed_end_to_end(connect: Connect) -> None:
    async def run() -> None:
        async with connect("2025-03-26") as client:
            name = f"seed {type(client).__name__}"
            listed = (await client.result("tools/list"))["tools"][-1]
            assert listed["name"] == "_plexus_respond"
            assert listed["inputSchema"]["required"] == ["request_id", "payload"]
            id = await client.start(
                "tools/call", {"name": "seek.wizard", "arguments": {"run": name}}, progressToken="p"
            )
            asked = await question(client)
            assert asked["request_type"] == {"Prompt": {"message": "Project name?"}}
            assert asked["timeout_ms"] == 30_000
            await respond(client, asked["request_id"], {"Text": "demo"})
            asked = await question(client)
            assert asked["request_type"]["Select"]["options"][1] == {"value": "full", "label": "full"}
            wrong = await refused(client, {"request_id": asked["request_id"], "payload": "huge"})
            assert wrong[0] == -32602
            assert "minimal" in wrong[1]
            await respond(client, asked["request_id"], {"type": "selected", "values": ["full"]})
            asked = await question(client)
            assert await client.result("ping") == {}
            await respond(client, asked["request_id"], True)
            assert text((await client.response(id))["result"]) == "demo full True"
            state = await client.settled()
            assert [one for one in state["trail"] if one.startswith(name)] == [
                f"{name} before",
                f"{name} named demo",
                f"{name} chose full",
                f"{name} done",
            ]
            links = [m["params"]["message"] for m in client.inbox if m["method"] == "notifications/progress"]
            assert len(links) == len(client.inbox)
            assert all(" Answer at http://127.0.0.1:" in one for one in links)

    drive(run())


def test_two_calls_of_one_tool_wait_side_by_side_and_are_answered_in_reverse(connect: Connect) -> None:
    async def run() -> None:
        async with connect() as client:
            first = await client.begin("seek.prompt", name="first")
            one = await question(client)
            second = await client.begin("seek.prompt", name="second")
            two = await question(client)
            assert one["request_id"] != two["request_id"]
            await respond(client, two["request_id"], "2")
            assert text((await client.response(second))["result"]) == "second: 2"
            assert client.inbox == []
            await respond(client, one["request_id"], "1")
            assert text((await client.response(first))["result"]) == "first: 1"
            await client.settled()

    drive(run())


@pytest.mark.parametrize("revision", LEGACY)
def test_the_tool_is_listed_only_for_those_who_need_it(server: HttpServer, revision: str) -> None:
    async def run() -> None:
        for capabilities in ({}, FORMS, {"sampling": {}}):
            async with server.client(revision, capabilities) as client:
                names = [tool["name"] for tool in (await client.result("tools/list"))["tools"]]
                needs_it = not (capabilities == FORMS and revision >= "2025-06-18")
                assert ("_plexus_respond" in names) is needs_it, (revision, capabilities)
        async with server.client(MODERN) as client:
            names = [tool["name"] for tool in (await client.result("tools/list"))["tools"]]
            assert "_plexus_respond" not in names
            unknown = await client.error("tools/call", {"name": "_plexus_respond", "arguments": {}})
            assert unknown == (-32602, "Unknown tool: _plexus_respond")

    drive(run())


def test_every_form_of_answer_is_taken_and_refusals_are_told_apart(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client() as client:
            cases: list[tuple[str, Any, str]] = [
                ("seek.confirm", {"Confirmed": True}, "confirmed: True"),
                ("seek.confirm", {"type": "confirmed", "value": False}, "confirmed: False"),
                ("seek.confirm", "Declined", "confirmed: False"),
                ("seek.prompt", {"type": "text", "value": "w"}, "you: w"),
                ("seek.select", {"Selected": ["g"]}, "chose g"),
                ("seek.select", "blue", "chose blue"),
                ("seek.several", ["red", "blue"], "chose red blue"),
                ("seek.form", {"Custom": {"name": "Ann"}}, "Ann 18 user"),
                ("seek.nested", {"person": {"name": "Ann"}}, "Ann"),
                ("seek.custom", {"name": "Ann"}, "Ann"),
                ("seek.url", True, "visited"),
                ("seek.careful", "Cancelled", "error: cancelled"),
                ("seek.careful", {"type": "cancelled"}, "error: cancelled"),
                ("seek.careful", {"Cancelled": None}, "error: cancelled"),
            ]
            for tool, payload, said in cases:
                id = await client.begin(tool)
                await respond(client, (await question(client))["request_id"], payload)
                assert text((await client.response(id))["result"]) == said, (tool, payload)
            id = await client.begin("seek.prompt")
            asked = await question(client)
            arguments = {"request_id": asked["request_id"], "response_data": "by the other name"}
            await client.result("tools/call", {"name": "_plexus_respond", "arguments": arguments})
            assert text((await client.response(id))["result"]) == "you: by the other name"
            for wrong, said in (
                ({}, "request_id"),
                ({"request_id": "x"}, "payload"),
                ({"request_id": 7, "payload": 1}, "request_id"),
                ([], "object"),
                ("x", "object"),
                (None, "object"),
            ):
                called = {"name": "_plexus_respond", "arguments": wrong}
                result = await client.result("tools/call", called)
                assert result["isError"] is True
                assert text(result).startswith("Invalid arguments for _plexus_respond: ")
                assert said in text(result), (wrong, text(result))

    drive(run())


def test_unknown_answered_timed_out_and_cancelled_questions_are_refused_alike(connect: Connect) -> None:
    async def run() -> None:
        async with connect() as client:

            async def is_unknown(request_id: str) -> None:
                error = await refused(client, {"request_id": request_id, "payload": "w"})
                assert error == (-32602, UNKNOWN.format(request_id))

            await is_unknown("nope")
            id = await client.begin("seek.prompt")
            answered = (await question(client))["request_id"]
            await respond(client, answered, "w")
            await is_unknown(answered)
            await client.response(id)
            id = await client.begin("seek.prompt", timeout=0.05)
            late = (await question(client))["request_id"]
            assert (await client.response(id))["result"]["isError"] is True
            await is_unknown(late)
            id = await client.begin("seek.prompt")
            cancelled = (await question(client))["request_id"]
            await client.notify("notifications/cancelled", {"requestId": id})
            await client.settled()
            await is_unknown(cancelled)
            assert client.inbox == []

    drive(run())


def test_questions_are_not_filtered_by_the_log_level(connect: Connect) -> None:
    async def run() -> None:
        async with connect() as client:
            await client.result("logging/setLevel", {"level": "emergency"})
            id = await client.begin("seek.prompt")
            await respond(client, (await question(client))["request_id"], "w")
            assert text((await client.response(id))["result"]) == "you: w"
            await client.tool("give.narrate")
            assert [m["params"]["level"] for m in client.inbox] == ["emergency"]

    drive(run())


def test_another_session_cannot_answer(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client() as mine, server.client() as foreign, server.client(LATEST, FORMS) as third:
            id = await mine.begin("seek.prompt", name="mine")
            asked = await question(mine)
            for other in (foreign, third):
                error = await refused(other, {"request_id": asked["request_id"], "payload": "stolen"})
                assert error == (-32602, UNKNOWN.format(asked["request_id"]))
            await respond(mine, asked["request_id"], "own")
            assert text((await mine.response(id))["result"]) == "mine: own"

    drive(run())


def test_a_client_that_never_answers_times_out_and_the_tool_goes_on(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client() as client:
            id = await client.begin("seek.prompt", timeout=0.2)
            assert (await question(client))["timeout_ms"] == 200
            result = (await client.response(id))["result"]
            assert result["isError"] is True
            await asyncio.sleep(0)
            assert json.loads(await client.tool("give.record")) == {"a": 1}

    drive(run())


def test_what_a_model_must_not_answer_is_not_asked_where_a_model_would(connect: Connect) -> None:
    async def run() -> None:
        async with connect("2025-03-26") as client:
            result = await client.result("tools/call", {"name": "seek.permission", "arguments": {}})
            assert result["isError"]
            assert result["_meta"]["dev.midcall/code"] == "not_supported"

    drive(run())

"""MCP with clients of the legacy revisions: the handshake, and all that a session can do.

Each message that the server sends is checked by the oracle (see `mcp_oracle`).
"""

import asyncio
import json
from typing import Any

import pytest

from driving import LIMIT, drive, until
from mcp_oracle import SCHEMAS
from mcp_peers import (
    FORMS,
    LATEST,
    LEGACY,
    MODERN,
    Client,
    Connect,
    HttpServer,
    http,
    http_server,
    over_stdio,
    text,
)
from peers import stdio_peer

BOTH_MODES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
EVERYTHING: dict[str, Any] = {**BOTH_MODES, "sampling": {}, "roots": {"listChanged": True}}


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def silence(client: Client, seconds: float = 0.15) -> None:
    """Nothing comes any more."""
    await asyncio.sleep(seconds)
    assert client.inbox == []


# --- the handshake ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "given"),
    [*((revision, revision) for revision in LEGACY), ("1999-01-01", LATEST), (MODERN, LATEST), ("", LATEST)],
)
def test_a_session_gets_the_revision_that_it_asks_for_or_else_the_newest(
    server: HttpServer, asked: str, given: str
) -> None:
    async def run() -> None:
        async with server.client(LATEST, handshake=False) as client:
            said = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            result = await client.result("initialize", said)
            assert result["protocolVersion"] == given
            assert result["serverInfo"] == {"name": "plexus", "version": "9.8.7"}
            assert result["capabilities"]["tools"] == {"listChanged": True}
            assert result["capabilities"]["resources"] == {"listChanged": True, "subscribe": True}
            client.revision = client.oracle.revision = given
            assert await client.tool("give.word") == "hello"

    drive(run())


def test_before_initialize_only_ping_is_answered_and_both_spellings_of_initialized_are_taken() -> None:
    async def run() -> None:
        async with over_stdio(handshake=False) as client:
            assert await client.result("ping") == {}
            for method, params in (
                ("tools/list", None),
                ("tools/call", {"name": "give.word"}),
                ("resources/list", None),
                ("prompts/get", {"name": "greet"}),
                ("logging/setLevel", {"level": "info"}),
            ):
                assert await client.error(method, params) == (-32002, "Server not initialized"), method
            await client.notify("initialized")  # too early: ignored
            assert await client.error("tools/list") == (-32002, "Server not initialized")
            said = {
                "protocolVersion": LATEST,
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            }
            assert (await client.error("initialize", {}))[0] == -32602
            await client.result("initialize", said)
            assert await client.tool("give.word") == "hello"  # clients differ in when they send it
            await client.notify("initialized")
            await client.notify("notifications/initialized")
            assert (await client.error("initialize", said))[0] == -32600
            assert await client.tool("give.word") == "hello"
            assert (await client.error("no/such"))[0] == -32601
            assert (await client.error("echo.once"))[0] == -32601
            await silence(client)

    drive(run())


def test_raw_and_mcp_are_kept_apart_by_the_flags() -> None:
    async def run() -> None:
        async with over_stdio(flag="--mcp") as client:
            assert await client.tool("give.word") == "hello"
            assert (await client.error("give.wrod"))[0] == -32601  # of the raw protocol, with a hint
        async with over_stdio() as client:
            for method in ("give.word", "plexus_subscribe", "plexus.schema"):
                assert (await client.error(method))[0] == -32601
        async with stdio_peer("mcp_app:hub", "--mcp") as both:
            assert await both.result("give.word") == "hello"
            assert await both.result("ping") == {}
        async with stdio_peer("mcp_app:hub") as raw:
            for method in ("initialize", "ping", "tools/list", "tools/call", "server/discover"):
                assert (await raw.request(method))["error"]["code"] == -32601

    drive(run())


# --- tools ------------------------------------------------------------------------------------


def test_tools_are_listed_in_the_order_of_registration_always_the_same(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(LATEST, FORMS) as client:
            tools = (await client.result("tools/list"))["tools"]
            names = [tool["name"] for tool in tools]
            assert names[:4] == ["give.nothing", "give.word", "give.number", "give.record"]
            assert names[-3:] == ["admin.state", "admin.change", "admin.touch"]
            assert tools == (await client.result("tools/list"))["tools"]
            assert "nextCursor" not in await client.result("tools/list")
            total = next(tool for tool in tools if tool["name"] == "give.sum")
            assert total["inputSchema"]["required"] == ["a", "b"]
            assert total["outputSchema"]["properties"]["total"]["type"] == "integer"
            confirm = next(tool for tool in tools if tool["name"] == "seek.confirm")
            assert "ask" not in confirm["inputSchema"]["properties"]

    drive(run())


def test_a_long_list_comes_in_pages_and_a_wrong_cursor_is_refused() -> None:
    async def run() -> None:
        async with over_stdio(capabilities=FORMS, target="mcp_crowd:hub") as client:
            first = await client.result("tools/list")
            names = [tool["name"] for tool in first["tools"]]
            while "nextCursor" in first:
                first = await client.result("tools/list", {"cursor": first["nextCursor"]})
                names += [tool["name"] for tool in first["tools"]]
            assert names == [f"many.tool_{number:04}" for number in range(1001)]
            for cursor in ("x", "-1", "1001", "9" * 1000, "²"):
                assert await client.error("tools/list", {"cursor": cursor}) == (-32602, "Invalid cursor")

    drive(run())


def test_the_table_of_results(connect: Connect) -> None:
    async def run() -> None:
        async with connect() as client:

            async def call(name: str, **arguments: Any) -> Any:
                return await client.result("tools/call", {"name": name, "arguments": arguments})

            assert await call("give.nothing") == {"content": [{"type": "text", "text": "(no output)"}]}
            assert await call("give.words", count=0) == {
                "content": [{"type": "text", "text": "(no output)"}],
                "structuredContent": {"result": ""},
            }
            assert await call("give.word") == {
                "content": [{"type": "text", "text": "hello"}],
                "structuredContent": {"result": "hello"},
            }
            assert text(await call("give.number")) == "42"
            assert text(await call("give.words", count=1)) == "w0 "
            assert text(await call("give.words")) == "w0 w1 w2 "
            assert json.loads(text(await call("give.rows", count=1))) == {"row": 0}
            assert json.loads(text(await call("give.rows"))) == [{"row": 0}, {"row": 1}]
            total = await call("give.sum", a=1, b=2)
            assert total["structuredContent"] == {"total": 3} == json.loads(text(total))
            full = {"content": [{"type": "text", "text": "The disk is full"}], "isError": True}
            assert await call("give.late_failure") == full
            assert await call("give.failure") == {**full, "_meta": {"dev.midcall/code": "disk_full"}}
            assert await call("give_word") == await call("give.word")
            wrong = await call("give.sum", a="x")
            assert wrong["isError"] is True
            assert "a" in text(wrong)
            assert "b" in text(wrong)
            surplus = await call("give.word", loud=True)
            assert surplus["isError"] is True
            assert "loud" in text(surplus)
            unknown = await client.error("tools/call", {"name": "give.wrod", "arguments": {}})
            assert unknown == (-32602, "Unknown tool: give.wrod")
            assert (await client.error("tools/call", {}))[0] == -32602
            assert (await client.error("tools/call", {"name": 7}))[0] == -32602
            response = await client.request("tools/call", {"name": "give.unsendable"})
            assert "object" in json.dumps(response)
            await client.settled()

    drive(run())


def test_progress_goes_out_only_with_a_token_only_upwards_and_not_after_the_result(connect: Connect) -> None:
    async def run() -> None:
        async with connect() as client:
            for token in ("t-1", 7):
                await client.result("tools/call", {"name": "give.narrate"}, progressToken=token)
                got = [m["params"] for m in client.inbox if m["method"] == "notifications/progress"]
                assert [one["progress"] for one in got] == [10, 60, 100]
                assert {one["progressToken"] for one in got} == {token}
                assert {one["total"] for one in got} == {100}
                client.inbox.clear()
            await client.result("tools/call", {"name": "give.plain_progress"}, progressToken=0)
            assert [m["params"]["message"] for m in client.inbox] == ["one", "two", "three"]
            values = [m["params"]["progress"] for m in client.inbox]
            assert values == sorted(set(values))
            client.inbox.clear()
            await client.tool("give.plain_progress")
            await silence(client)

    drive(run())


def test_log_is_sent_from_the_level_that_the_client_sets(connect: Connect) -> None:
    async def run() -> None:
        levels = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
        async with connect() as client:
            for least in ("debug", "warning", "emergency"):
                assert await client.result("logging/setLevel", {"level": least}) == {}
                await client.tool("give.narrate")
                got = [m["params"] for m in client.inbox if m["method"] == "notifications/message"]
                assert [one["level"] for one in got] == levels[levels.index(least) :]
                assert {one["logger"] for one in got} == {"give.narrate"}
                client.inbox.clear()
            assert (await client.error("logging/setLevel", {"level": "loud"}))[0] == -32602

    drive(run())


def test_a_cancelled_call_is_aborted_and_gets_no_result(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:
            name = f"cancel over {type(client).__name__}"
            id = await client.begin("seek.prompt", name=name)
            question = await client.message("elicitation/create")
            await client.notify("notifications/cancelled", {"requestId": id, "reason": "changed my mind"})
            withdrawn = await client.message("notifications/cancelled")
            assert withdrawn["params"]["requestId"] == question["id"]
            assert f"{name} was cancelled" in (await client.settled())["trail"]
            await client.answer(question, accept(text="too late"))
            held = await client.begin("give.held", gate="never opened")
            await client.until_running("give.held")
            await client.notify("notifications/cancelled", {"requestId": held})
            for odd in (
                {"requestId": "unknown"},
                {"requestId": id},
                {},
                {"requestId": None},
                {"requestId": []},
            ):
                await client.notify("notifications/cancelled", odd)
            await client.settled()
            await silence(client)
            if hasattr(client, "open"):
                assert client.open == [], "the response of a cancelled request stays open"

    drive(run())


def test_the_reader_is_never_blocked_by_a_running_call(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:
            gate = f"opened over {type(client).__name__}"
            held = await client.begin("give.held", gate=gate)
            asking = await client.begin("seek.prompt", name="n")
            question = await client.message("elicitation/create")
            assert await client.result("ping") == {}
            assert await client.tool("give.word") == "hello"
            assert len((await client.result("tools/list"))["tools"]) > 30
            await client.answer(question, accept(text="w"))
            assert text((await client.response(asking))["result"]) == "n: w"
            await client.tool("give.open", gate=gate)
            assert text((await client.response(held))["result"]) == "worked"

    drive(run())


def test_a_request_with_the_id_of_a_running_one_does_not_take_its_place(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:
            id = await client.begin("seek.prompt", name="first")
            question = await client.message("elicitation/create")
            await client.start("ping", id=id)
            assert (await client.response(id)).get("result") == {}
            await client.start("tools/call", {"name": "give.slow", "arguments": {"seconds": 0}}, id=id)
            second = await client.response(id)
            assert second["error"]["code"] == -32600
            client.oracle.asked({"id": id, "method": "tools/call"})
            await client.answer(question, accept(text="w"))
            assert text((await client.response(id))["result"]) == "first: w"
            id = await client.begin("seek.prompt", name="left behind")
            await client.message("elicitation/create")
            await client.start("ping", id=id)
            await client.response(id)
            await client.notify("notifications/cancelled", {"requestId": id})
            assert "left behind was cancelled" in (await client.settled())["trail"]

    drive(run())


# --- questions as requests of the server -------------------------------------------------------

SELECT_TITLES = [
    {"const": "r", "title": "Red"},
    {"const": "g", "title": "Green: as grass"},
    {"const": "blue", "title": "blue"},
]

QUESTIONS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    # tool, the properties of its form, the content that is given, the tool's text
    ("seek.confirm", {"confirmed": {"type": "boolean"}}, {"confirmed": True}, "confirmed: True"),
    ("seek.confirm", {"confirmed": {"type": "boolean"}}, {"confirmed": False}, "confirmed: False"),
    ("seek.prompt", {"text": {"type": "string", "default": "none"}}, {"text": "w"}, "you: w"),
    ("seek.select", {"choice": {"type": "string", "oneOf": SELECT_TITLES}}, {"choice": "g"}, "chose g"),
    ("seek.several", {"choices": {"type": "array"}}, {"choices": ["red", "blue"]}, "chose red blue"),
    ("seek.several", {"choices": {"type": "array"}}, {"choices": []}, "chose "),
    (
        "seek.form",
        {
            "name": {"type": "string", "minLength": 2},
            "age": {"type": "integer", "default": 18, "minimum": 0},
            "role": {"type": "string", "enum": ["user", "admin"], "default": "user"},
        },
        {"name": "Ann", "age": 3},
        "Ann 3 user",
    ),
    ("seek.custom", {"name": {"type": "string"}}, {"name": "Ann"}, "Ann"),
]


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
def test_every_kind_of_question_is_a_form_and_its_content_is_the_answer(
    server: HttpServer, revision: str
) -> None:
    async def run() -> None:
        async with server.client(revision, FORMS) as client:
            for tool, properties, content, said in QUESTIONS:
                if SCHEMAS is not None and (tool, revision) == ("seek.several", "2025-06-18"):
                    continue  # its schema has no form for several choices; ours is the one of the next revision
                id = await client.begin(tool)
                question = await client.message("elicitation/create")
                schema = question["params"]["requestedSchema"]
                assert schema["type"] == "object"
                for name, expected in properties.items():
                    assert expected.items() <= schema["properties"][name].items(), (tool, schema)
                assert schema["properties"].keys() >= properties.keys()
                if tool != "seek.form":
                    assert schema["required"] == list(properties)
                assert question["params"].get("mode") == ("form" if revision == LATEST else None)
                await client.answer(question, accept(**content))
                assert text((await client.response(id))["result"]) == said
            await client.settled()

    drive(run())


def test_declining_and_cancelling_are_told_apart_and_a_declined_confirm_is_a_no(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:

            async def ends(tool: str, result: Any) -> Any:
                id = await client.begin(tool)
                await client.answer(await client.message("elicitation/create"), result)
                return (await client.response(id))["result"]

            assert text(await ends("seek.confirm", {"action": "decline"})) == "confirmed: False"
            assert (await ends("seek.confirm", {"action": "cancel"}))["isError"] is True
            for tool in ("seek.prompt", "seek.select", "seek.several", "seek.form", "seek.custom"):
                declined = await ends(tool, {"action": "decline"})
                assert (declined["isError"], text(declined)) == (True, "The question was declined")
                cancelled = await ends(tool, {"action": "cancel"})
                assert (cancelled["isError"], text(cancelled)) == (True, "The question was cancelled")
            assert text(await ends("seek.careful", {"action": "decline"})) == "error: declined"
            assert text(await ends("seek.careful", {"action": "cancel"})) == "error: cancelled"
            await client.settled()

    drive(run())


def test_content_that_does_not_fit_is_the_error_of_the_call(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:
            wrong: list[tuple[str, Any]] = [
                ("seek.confirm", accept(confirmed="yes")),
                ("seek.confirm", accept()),
                ("seek.prompt", accept(text=7)),
                ("seek.prompt", {"action": "accept"}),
                ("seek.prompt", {"action": "accept", "content": "w"}),
                ("seek.prompt", {"action": "accept", "content": ["w"]}),
                ("seek.prompt", {"action": "shrug"}),
                ("seek.prompt", {"action": ["accept"]}),
                ("seek.prompt", "w"),
                ("seek.prompt", None),
                ("seek.prompt", []),
                ("seek.select", accept(choice="purple")),
                ("seek.select", accept(choice=["r"])),
                ("seek.select", accept(choice={"r": 1})),
                ("seek.several", accept(choices="red")),
                ("seek.several", accept(choices=["red", "red"])),
                ("seek.form", accept(name="A")),
                ("seek.form", accept(name="Ann", age=-1)),
                ("seek.form", {"action": "accept", "content": None}),
                ("seek.custom", accept(name=7)),
                ("seek.custom", {"action": "no such"}),
            ]
            for tool, result in wrong:
                id = await client.begin(tool)
                await client.answer(await client.message("elicitation/create"), result)
                got = (await client.response(id))["result"]
                assert got["isError"] is True, (tool, result, got)
                assert "does not fit" in text(got), (tool, result, got)
            id = await client.begin("seek.careful")
            question = await client.message("elicitation/create")
            await client.answer(question, accept(text=7))
            assert text((await client.response(id))["result"]) == "error: wrong_type"
            await client.answer(question, accept(text="late"))  # answered already: ignored
            id = await client.begin("seek.careful")
            question = await client.message("elicitation/create")
            error = {"code": -32603, "message": "No dialog here"}
            await client.post({"jsonrpc": "2.0", "id": question["id"], "error": error})
            assert text((await client.response(id))["result"]) == "error: cancelled"
            assert await client.result("ping") == {}
            await client.settled()

    drive(run())


def test_a_page_to_visit_needs_url_mode_and_its_revision(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(LATEST, BOTH_MODES) as client:
            id = await client.begin("seek.url")
            question = await client.message("elicitation/create")
            assert question["params"]["mode"] == "url"
            assert question["params"]["url"] == "https://example.com/login"
            assert question["params"]["elicitationId"]
            await client.answer(question, {"action": "accept"})
            assert text((await client.response(id))["result"]) == "visited"
        for revision, capabilities in ((LATEST, FORMS), ("2025-06-18", BOTH_MODES)):
            async with server.client(revision, capabilities) as client:
                result = await client.result("tools/call", {"name": "seek.url"})
                assert result["isError"] is True
                assert "url" in text(result)
                assert client.inbox == []
        async with server.client(LATEST, {"elicitation": {"url": {}}}) as client:
            result = await client.result("tools/call", {"name": "seek.prompt"})
            assert result["isError"] is True
            assert client.inbox == []

    drive(run())


def test_sampling_and_roots_are_requests_of_the_server(connect: Connect) -> None:
    async def run() -> None:
        for revision, capabilities in ((LATEST, EVERYTHING), ("2024-11-05", {"sampling": {}, "roots": {}})):
            async with connect(revision, capabilities) as client:
                id = await client.begin("seek.sample")
                asked = await client.message("sampling/createMessage")
                assert asked["params"] == {
                    "messages": [{"role": "user", "content": {"type": "text", "text": "Say hi"}}],
                    "maxTokens": 10,
                    "systemPrompt": "Be short",
                    "temperature": 0.5,
                }
                content = {"type": "text", "text": "hi"}
                await client.answer(asked, {"role": "assistant", "content": content, "model": "m-1"})
                assert text((await client.response(id))["result"]) == "m-1 said hi"
                id = await client.begin("seek.roots")
                asked = await client.message("roots/list")
                await client.answer(
                    asked, {"roots": [{"uri": "file:///a"}, {"uri": "file:///b", "name": "b"}]}
                )
                assert text((await client.response(id))["result"]) == "file:///a file:///b"
                assert await client.tool("seek.needs_model") == "has one"
                for wrong in ({"roots": 7}, [], None, {"roots": [{"url": "x"}]}):
                    id = await client.begin("seek.roots")
                    await client.answer(await client.message("roots/list"), wrong)
                    assert (await client.response(id))["result"]["isError"] is True
                await client.settled()
        async with connect(LATEST, FORMS) as client:
            for tool in ("seek.sample", "seek.roots"):
                result = await client.result("tools/call", {"name": tool})
                assert (result["isError"], client.inbox) == (True, [])

    drive(run())


def test_a_form_that_no_client_can_show_is_not_asked_and_a_fallback_only_covers_that(
    server: HttpServer,
) -> None:
    async def run() -> None:
        async with server.client(LATEST, FORMS) as client:
            result = await client.result("tools/call", {"name": "seek.several_people"})
            assert (result["isError"], client.inbox) == (True, [])
            assert "'people', which is a list of other things" in result["content"][0]["text"]
            id = await client.begin("seek.fallback")
            await client.answer(await client.message("elicitation/create"), {"action": "decline"})
            assert (await client.response(id))["result"]["isError"] is True
        async with server.client(LATEST, {"elicitation": {"url": {}}}) as client:
            assert await client.tool("seek.fallback") == "used nothing"

    drive(run())


def test_a_question_that_times_out_is_withdrawn(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:
            id = await client.begin("seek.prompt", timeout=0.1)
            question = await client.message("elicitation/create")
            withdrawn = await client.message("notifications/cancelled")
            assert withdrawn["params"]["requestId"] == question["id"]
            assert (await client.response(id))["result"]["isError"] is True
            await client.answer(question, accept(text="late"))
            await client.settled()
            await silence(client)

    drive(run())


# --- resources, prompts, completion -----------------------------------------------------------


def test_resources_are_listed_read_and_watched(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:
            listed = (await client.result("resources/list"))["resources"]
            assert [one["uri"] for one in listed] == ["notes://all", "notes://raw", "broken://it"]
            templates = (await client.result("resources/templates/list"))["resourceTemplates"]
            assert [one["uriTemplate"] for one in templates] == ["notes://{folder}/{name}", "secret://{name}"]

            async def read(uri: str) -> Any:
                return (await client.result("resources/read", {"uri": uri}))["contents"]

            assert await read("notes://all") == [
                {"uri": "notes://all", "mimeType": "text/markdown", "text": "# Notes"}
            ]
            assert (await read("notes://raw"))[0]["blob"] == "AAE="
            (note,) = await read("notes://work/today")
            assert json.loads(note["text"]) == {"folder": "work", "name": "today"}
            for uri in ("notes://", "notes://a/b/c", "nowhere://x", ""):
                assert await client.error("resources/read", {"uri": uri}) == (
                    -32002,
                    f"Resource not found: {uri}",
                )
            assert await client.error("resources/read", {"uri": "broken://it"}) == (-32603, "It is torn")
            id = await client.start("resources/read", {"uri": "secret://door"})
            question = await client.message("elicitation/create")
            assert question["params"]["message"] == "Show door?"
            await client.answer(question, accept(confirmed=True))
            assert (await client.response(id))["result"]["contents"][0]["text"] == "the secret of door"

            if hasattr(client, "listening"):
                await client.listening()
            assert await client.result("resources/subscribe", {"uri": "notes://all"}) == {}
            await client.tool("admin.touch", uri="notes://other")
            await client.tool("admin.touch", uri="notes://all")
            assert (await client.message("notifications/resources/updated"))["params"]["uri"] == "notes://all"
            assert await client.result("resources/unsubscribe", {"uri": "notes://all"}) == {}
            await client.tool("admin.touch", uri="notes://all")
            await silence(client)

    drive(run())


def test_prompts_are_listed_filled_in_and_may_ask(connect: Connect) -> None:
    async def run() -> None:
        async with connect(LATEST, FORMS) as client:
            greet, interview = (await client.result("prompts/list"))["prompts"]
            assert greet["name"] == "greet"
            assert greet["arguments"] == [
                {"name": "name", "required": True, "description": "Whom"},
                {"name": "tone", "required": False},
            ]
            assert interview["arguments"] == [{"name": "topic", "required": True}]
            got = await client.result("prompts/get", {"name": "greet", "arguments": {"name": "Ann"}})
            assert got["messages"] == [
                {"role": "user", "content": {"type": "text", "text": "Greet Ann, be kind"}}
            ]
            assert (await client.error("prompts/get", {"name": "greet"}))[0] == -32602
            assert await client.error("prompts/get", {"name": "nope"}) == (-32602, "Unknown prompt: nope")
            id = await client.start("prompts/get", {"name": "interview", "arguments": {"topic": "tea"}})
            await client.answer(await client.message("elicitation/create"), accept(text="deep"))
            messages = (await client.response(id))["result"]["messages"]
            assert [(m["role"], m["content"]["text"]) for m in messages] == [
                ("user", "Explain tea"),
                ("assistant", "deep"),
            ]
            id = await client.start("prompts/get", {"name": "interview", "arguments": {"topic": "tea"}})
            await client.answer(await client.message("elicitation/create"), {"action": "cancel"})
            assert (await client.response(id))["error"]["code"] == -32603

    drive(run())


def test_arguments_are_completed(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client() as client:

            async def complete(ref: Any, name: str, value: str, **context: Any) -> Any:
                params = {"ref": ref, "argument": {"name": name, "value": value}}
                params |= {"context": {"arguments": context}} if context else {}
                return (await client.result("completion/complete", params))["completion"]

            greet = {"type": "ref/prompt", "name": "greet"}
            template = {"type": "ref/resource", "uri": "notes://{folder}/{name}"}
            assert await complete(greet, "name", "al") == {
                "values": ["alice", "albert"],
                "total": 2,
                "hasMore": False,
            }
            assert (await complete(greet, "tone", "x"))["values"] == []
            many = await complete(template, "name", "", folder="work")
            assert (len(many["values"]), many["values"][0], many["hasMore"]) == (100, "work-0", True)
            unknown = {
                "ref": {"type": "ref/prompt", "name": "nope"},
                "argument": {"name": "x", "value": ""},
            }
            assert (await client.error("completion/complete", unknown))[0] == -32602

    drive(run())


def test_changes_of_the_lists_are_told_to_every_session(connect: Connect) -> None:
    async def run() -> None:
        async with connect() as client:
            if hasattr(client, "listening"):
                await client.listening()
            before = await client.result("tools/list")
            for _ in range(2):  # it is added, then removed
                await client.tool("admin.change")
                for part in ("tools", "resources", "prompts"):
                    await client.message(f"notifications/{part}/list_changed")
                now = await client.result("tools/list")
                changed = [one["name"] for one in now["tools"] if one not in before["tools"]]
                assert changed in (["extra.hello"], [])
            assert now == before

    drive(run())


# --- HTTP: sessions and streams ------------------------------------------------------------------


def test_two_sessions_stand_side_by_side_and_neither_answers_for_the_other(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(LATEST, FORMS) as one, server.client("2025-06-18", FORMS) as two:
            first = await one.begin("seek.prompt", name="one")
            second = await two.begin("seek.prompt", name="two")
            asked = await one.message("elicitation/create")
            asked_two = await two.message("elicitation/create")
            await two.answer({"id": asked["id"] + 1000}, accept(text="stolen"))
            if asked["id"] != asked_two["id"]:
                await two.answer(asked, accept(text="stolen"))
            await two.answer(asked_two, accept(text="mine"))
            assert text((await two.response(second))["result"]) == "two: mine"
            await two.notify("notifications/cancelled", {"requestId": first})
            await one.answer(asked, accept(text="mine too"))
            assert text((await one.response(first))["result"]) == "one: mine too"

    drive(run())


def test_a_session_that_was_deleted_or_never_was_is_not_found(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(LATEST, FORMS) as client, server.client() as other:
            asking = await client.begin("seek.prompt", name="deleted")
            await client.message("elicitation/create")
            await client.begin("give.held", gate="never opened")
            await client.until_running("give.held")
            await client.listening()
            assert await client.delete() == 200
            await until(lambda: not client.open)  # all its streams end
            assert not any(m.get("id") == asking for m in client.inbox)
            assert "deleted was cancelled" in (await other.settled())["trail"]
            assert await client.delete() == 404
            for verb in ("GET", "POST"):
                body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
                response = await http(server.port, verb, client.headers(), body if verb == "POST" else b"")
                assert response.status == 404
                assert json.loads(await response.body())["error"]["message"] == "Session not found"
            client.session_id = None
            response = await http(server.port, "POST", client.headers(), body)
            assert (response.status, json.loads(await response.body())["error"]["code"]) == (400, -32002)
            response = await http(server.port, "GET", client.headers())
            assert response.status == 405
            await response.drop()

    drive(run())


def test_an_initialize_that_is_refused_leaves_no_session(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(handshake=False) as client:
            assert (await client.error("initialize", {"protocolVersion": 7}))[0] == -32602
            large = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "x" * 100_000}}
            assert (await client.error("initialize", large))[0] == -32602
            assert client.session_id is None

    drive(run())


def test_a_session_belongs_to_whoever_opened_it() -> None:
    async def run() -> None:
        with http_server(MIDCALL_TOKENS="ann=token-of-ann-1234567890\nbob=token-of-bob-1234567890") as server:
            ann, bob = "token-of-ann-1234567890", "token-of-bob-1234567890"
            async with server.client(token=ann) as mine, server.client(token=bob) as foreign:
                foreign.session_id = mine.session_id
                await foreign.start("ping")
                assert (await foreign.find(lambda m: True))["error"]["message"] == "Session not found"
                assert await foreign.delete() == 404
                assert await mine.result("ping") == {}

    drive(run())


def test_the_get_stream_carries_what_belongs_to_no_request_once(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client() as client:
            await client.result("resources/subscribe", {"uri": "notes://all"})
            older = await client.listening()
            client.listen()  # a client that has lost its stream without our noticing comes again
            async with asyncio.timeout(LIMIT):
                await older
            await client.tool("admin.touch", uri="notes://all")
            await client.message("notifications/resources/updated")
            await silence(client)

    drive(run())


def test_a_dropped_connection_is_resumed_in_the_middle_of_a_wait(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client(LATEST, FORMS) as client:
            id = await client.begin("seek.wizard", run="resumed")
            question = await client.message("elicitation/create")
            (response,) = client.open
            place = response.last_event_id
            assert place is not None
            await client.drop()
            await client.answer(question, accept(text="demo"))  # the next question has nowhere to go yet
            await client.until_trail("resumed named demo")
            client.listen(place)
            question = await client.message("elicitation/create")
            assert question["params"]["message"] == "Template?"
            await client.drop()
            client.listen(place)  # the same place again: nothing is lost, and nothing runs twice
            again = await client.message("elicitation/create")
            assert again == question
            await client.answer(again, accept(choice="full"))
            await client.answer(await client.message("elicitation/create"), accept(confirmed=True))
            assert text((await client.response(id))["result"]) == "demo full True"
            state = await client.settled()
            assert [one for one in state["trail"] if one.startswith("resumed")] == [
                "resumed before",
                "resumed named demo",
                "resumed chose full",
                "resumed done",
            ]
            client.oracle.asked({"id": id, "method": "tools/call"})
            client.listen(place)  # after the end it can still be read
            assert text((await client.response(id))["result"]) == "demo full True"

    drive(run())


def test_a_place_that_no_stream_has_cannot_be_resumed(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client() as client:
            for place in ("", "x", "99-1", "0-", "0-x", "1--1", "0-0", "0-" + "9" * 5000, "0-\u00b2"):
                response = await http(server.port, "GET", client.headers() | {"last-event-id": place})
                assert response.status == 404, place
                await response.drop()

    drive(run())


def test_a_batch_is_answered_as_one_on_its_revision_and_refused_on_others(server: HttpServer) -> None:
    async def run() -> None:
        async with server.client("2025-03-26") as client:
            batch = [
                {"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": {"name": "give.slow", "arguments": {"seconds": 0.1}}},
                {"jsonrpc": "2.0", "id": "ping", "method": "ping"},
                {"jsonrpc": "2.0", "method": "notifications/initialized"},
                {"jsonrpc": "2.0", "id": "bad", "method": "no/such"},
                {"jsonrpc": "2.0", "id": "told", "method": "tools/call", "params": {"name": "give.narrate", "_meta": {"progressToken": 1}}},
                7,
            ]  # fmt: skip
            for one in batch:
                if isinstance(one, dict) and "id" in one:
                    client.oracle.asked(one)
            await client.post(batch)
            replies = await client.find(lambda m: isinstance(m, list))
            by_id = {one["id"]: one for one in replies}
            assert by_id.keys() == {"slow", "ping", "bad", "told", None}
            assert text(by_id["slow"]["result"]) == "slept"
            assert by_id["bad"]["error"]["code"] == -32601
            assert by_id[None]["error"]["code"] == -32600
            assert [m["params"]["progress"] for m in client.inbox if m["method"].endswith("progress")] == [
                10,
                60,
                100,
            ]

            waiting = [
                {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": {"name": "give.held", "arguments": {"gate": "never opened"}}}
                for name in ("a", "b")
            ]  # fmt: skip
            await client.post([*waiting, {"jsonrpc": "2.0", "id": "p", "method": "ping"}])
            client.oracle.asked({"id": "p", "method": "ping"})
            await client.until_running("give.held", 2)
            for name in ("a", "b"):
                await client.notify("notifications/cancelled", {"requestId": name})
            (only,) = await client.find(lambda m: isinstance(m, list))
            assert only["id"] == "p"
            await client.settled()
            assert client.open == []
        async with server.client("2025-06-18") as client:
            await client.post([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
            assert (await client.find(lambda m: True))["error"]["code"] == -32600

    drive(run())

"""Names, URIs, keys and ids of callers: each has a limit, wherever it comes in, and beyond it nothing is done."""

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chatting import Person, Puppet, chat
from driving import drive
from mcp_oracle import MODERN
from mcp_peers import FORMS, over_stdio
from midcall import Hub, MethodNotFound, method
from midcall.activations.demo import RULES
from midcall.client.toolbox import check_call
from midcall.http.message import HttpError, HttpUrl
from midcall.limits import MAX_KEY, MAX_NAME, MAX_URI
from midcall.mcp import mcp_of
from midcall.models.base import Message, ModelRequest, ToolCall, ToolDefinition
from midcall.models.scripted import Rule, Scripted
from operating import Server
from peers import stdio_peer

LONG = "x" * 200_000
TASKS: dict[str, Any] = {**FORMS, "extensions": {"io.modelcontextprotocol/tasks": {}}}
KEY = "dev.midcall/idempotencyKey"
NAMED = {"name": "give.sum", "arguments": {"a": 1, "b": 2}}
TEMPLATE = {"type": "ref/resource", "uri": "notes://{folder}/{name}"}
TYPED = {"name": "name", "value": ""}


# --- MCP -----------------------------------------------------------------------------------------

MODERN_REQUESTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tools/call", {"name": LONG}, {}),
    ("tools/call", {**NAMED, "inputResponses": {LONG: {}}}, {}),
    ("tools/call", NAMED, {KEY: LONG}),
    ("tools/call", NAMED, {"progressToken": LONG}),
    ("tools/call", NAMED, {"io.modelcontextprotocol/logLevel": LONG}),
    ("tools/list", {"cursor": LONG}, {}),
    ("prompts/get", {"name": LONG}, {}),
    ("resources/read", {"uri": f"notes://{LONG}"}, {}),
    ("completion/complete", {"ref": {**TEMPLATE, "uri": LONG}, "argument": TYPED}, {}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": LONG}, "argument": TYPED}, {}),
    ("completion/complete", {"ref": {**TEMPLATE, "type": LONG}, "argument": TYPED}, {}),
    ("completion/complete", {"ref": TEMPLATE, "argument": {**TYPED, "name": LONG}}, {}),
    ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [LONG]}}, {}),
    ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["notes://a/b"] * 2000}}, {}),
    ("tasks/get", {"taskId": LONG}, {}),
    ("tasks/update", {"taskId": "t", "inputResponses": {LONG: {}}}, {}),
    ("tasks/cancel", {"taskId": LONG}, {}),
]
LEGACY_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("logging/setLevel", {"level": LONG}),
    ("tools/call", {"name": LONG}),
    ("prompts/get", {"name": LONG}),
    ("resources/read", {"uri": LONG}),
    ("resources/subscribe", {"uri": LONG}),
    ("resources/unsubscribe", {"uri": LONG}),
]


def assert_refused_by_length(code: int, message: str) -> None:
    assert code == -32602, message[:200]
    assert message.startswith("Invalid params: Expected "), message[:200]
    assert "of length <= " in message
    assert len(message) < 300


def test_what_is_too_long_in_a_modern_request_is_refused() -> None:
    async def main() -> None:
        async with over_stdio(MODERN, TASKS) as client:
            for name, params, meta in MODERN_REQUESTS:
                assert_refused_by_length(*await client.error(name, params, **meta))
            too_long = {**NAMED, "requestState": LONG}
            assert await client.error("tools/call", too_long) == (-32602, "Invalid or expired requestState")
            assert await client.tool("give.sum", a=1, b=2) == '{"total":3}'

    drive(main())


def test_what_is_too_long_in_a_legacy_request_is_refused() -> None:
    async def main() -> None:
        async with over_stdio() as client:
            for name, params in LEGACY_REQUESTS:
                assert_refused_by_length(*await client.error(name, params))
            answer = {"name": "_plexus_respond", "arguments": {"request_id": LONG, "payload": 1}}
            refused = await client.result("tools/call", answer)
            assert refused["isError"]
            assert "of length <= 1024" in refused["content"][0]["text"]
            await client.notify("notifications/cancelled", {"requestId": LONG})
            assert await client.tool("give.sum", a=1, b=2) == '{"total":3}'

    drive(main())


def test_what_is_just_short_enough_is_looked_up() -> None:
    async def main() -> None:
        async with over_stdio(MODERN, FORMS) as client:
            name = "n" * MAX_NAME
            assert await client.error("tools/call", {"name": name}) == (-32602, f"Unknown tool: {name}")
            uri = "u" * MAX_URI
            found = await client.error("resources/read", {"uri": uri})
            assert found == (-32602, f"Resource not found: {uri}")
            result = await client.result("tools/call", NAMED, **{KEY: "k" * MAX_KEY})
            assert not result.get("isError")

    drive(main())


# --- the hub's own protocol, and JSON-RPC itself ---------------------------------------------------

RAW_REQUESTS: list[tuple[str, Any]] = [
    ("plexus_subscribe", [LONG, {}]),
    ("plexus_subscribe", {"method": LONG}),
    ("plexus_subscribe", {"method": "echo.once", "supports": [LONG]}),
    ("plexus_attach", [LONG, 0]),
    ("plexus_respond", [LONG, "r", True]),
    ("plexus_respond", {"request_id": LONG, "payload": True}),
    ("plexus_unsubscribe", [LONG]),
]


def test_what_is_too_long_in_the_hubs_own_protocol_is_refused() -> None:
    async def main() -> None:
        async with stdio_peer() as peer:
            for name, params in RAW_REQUESTS:
                error = (await peer.request(name, params))["error"]
                assert_refused_by_length(error["code"], error["message"])

    drive(main())


@pytest.mark.parametrize("shape", ["{}", "[{}]"])
def test_a_message_with_a_long_id_or_method_is_refused_and_not_sent_back(shape: str) -> None:
    async def main() -> None:
        async with stdio_peer() as peer:
            for id, name, told in ((LONG, "echo.once", None), (7, LONG, 7)):
                message = json.dumps({"jsonrpc": "2.0", "id": id, "method": name})
                await peer.send(shape.replace("{}", message).encode())
                answer = await peer.receive()
                (answer,) = answer if isinstance(answer, list) else [answer]
                assert (answer["id"], answer["error"]["code"]) == (told, -32600)
                assert len(json.dumps(answer)) < 500

    drive(main())


# --- chat, AG-UI, and the pages for administrators -------------------------------------------------


def test_what_is_too_long_in_a_request_to_the_chat_is_refused() -> None:
    answer = {"sessionId": "s", "elicitId": "e", "result": {"action": "cancel"}}
    bodies: list[dict[str, Any]] = [
        {"conversationId": LONG, "message": "hello"},
        {"message": "hello", "messageId": LONG},
        {"conversationId": "c", "pluginElicitResponses": [{**answer, "sessionId": LONG}]},
        {"conversationId": "c", "pluginElicitResponses": [{**answer, "elicitId": LONG}]},
        {"conversationId": "c", "pluginElicitResponses": [{**answer, "callId": LONG}]},
        {"conversationId": "c", "pluginAbort": {"sessionId": LONG}},
    ]

    async def main() -> None:
        async with chat(Puppet("hello")) as person:
            for body in bodies:
                assert await refused(person, "POST", "/chat", body) == "bad_request"
            assert await refused(person, "POST", "/chat/stop", {"conversationId": LONG}) == "bad_request"
            for path in ("/chat?sessionId={}", "/chat/conversations/{}"):
                assert await refused(person, "GET", path.format("x" * 2000)) == "too_long"
            assert await refused(person, "DELETE", f"/chat/conversations/{'x' * 2000}") == "too_long"

    drive(main())


def test_what_is_too_long_in_a_request_of_ag_ui_is_refused() -> None:
    bodies: list[dict[str, Any]] = [
        {"threadId": LONG},
        {"threadId": "t", "runId": LONG},
        {"threadId": "t", "messages": [{"id": LONG, "role": "user", "content": "hello"}]},
        {"threadId": "t", "resume": [{"interruptId": LONG, "status": "cancelled"}]},
    ]

    async def main() -> None:
        async with chat(Puppet("hello")) as person:
            for body in bodies:
                for path in ("/agui", "/agui/connect"):
                    assert await refused(person, "POST", path, body) == "bad_request"

    drive(main())


async def refused(person: Person, verb: str, path: str, body: Any = None) -> str:
    status, _, text = await person.request(verb, path, body)
    assert status == 400, (status, text[:200])
    assert len(text) < 500
    return str(json.loads(text)["error"]["code"])


def test_what_is_too_long_in_a_request_of_an_administrator_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path, "--admin") as server:
        for verb, path, body in (
            ("GET", "/admin/calls/{}", None),
            ("GET", "/admin/calls?name={}", None),
            ("GET", "/admin/calls?principal={}", None),
            ("POST", "/admin/calls/{}/abort", {}),
            ("POST", "/admin/calls/{}/answers", {"answers": {}}),
            ("GET", "/admin/calls/{}/export", None),
            ("POST", "/calls/{}/abort", {}),
        ):
            answer = server.send(verb, path.format("x" * 2000), body)
            assert (answer.status, answer.error) == (400, "too_long"), (path, answer.text[:200])
            assert len(answer.text) < 500
        answer = server.post("/admin/calls/x/answers", {"answers": {LONG: 1}})
        assert (answer.status, answer.error) == (400, "bad_request")


# --- near matches ----------------------------------------------------------------------------------


class Compared:
    """Counts what the search for near matches looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.letters = 0
        search = difflib.get_close_matches

        def counted(word: str, possibilities: Sequence[str], *rest: Any, **more: Any) -> list[str]:
            self.letters += len(word) + sum(map(len, possibilities))
            return search(word, possibilities, *rest, **more)

        monkeypatch.setattr(difflib, "get_close_matches", counted)


class Files:
    """Some files."""

    @method
    async def delete(self) -> None:
        """Delete."""


def test_nothing_near_is_looked_for_beside_a_name_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Compared(monkeypatch)
    hub = Hub("plexus").register(Files())
    with pytest.raises(MethodNotFound):
        hub.resolve("files.delete" * 1_000_000)
    with pytest.raises(MethodNotFound):
        check_call([{"name": "files.delete"}], "files.delete" * 1_000_000, {})
    assert compared.letters == 0


def test_names_of_another_server_that_are_too_long_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Compared(monkeypatch)
    tools = [{"name": "shop.price" * 1_000_000}, {"name": "shop.price"}]
    with pytest.raises(MethodNotFound) as caught:
        check_call(tools, "shop.pric", {})
    assert caught.value.near == ["shop.price"]
    assert compared.letters < 100


def test_of_very_many_names_only_some_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Compared(monkeypatch)
    with pytest.raises(MethodNotFound):
        check_call([{"name": f"shop.price{n}"} for n in range(100_000)], "shop.pric", {})
    assert compared.letters < 50_000


def test_an_unknown_tool_is_refused_over_mcp_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Compared(monkeypatch)
    assert mcp_of(Hub("plexus").register(Files())).calls.tool("files.delet") is None
    assert compared.letters == 0


# --- other work on texts of strangers ------------------------------------------------------------------


def test_a_long_text_that_is_no_url_is_refused_without_being_searched_again_and_again() -> None:
    with pytest.raises(HttpError, match="is not a URL") as caught:
        HttpUrl("http:" + "//" * 200_000)
    assert len(str(caught.value)) < 1000
    with pytest.raises(HttpError) as caught:
        HttpUrl("http://user:secret@a b@host name/")
    assert "secret" not in str(caught.value)


def test_only_the_beginning_of_what_a_person_says_is_held_against_the_rules_of_a_script() -> None:
    async def answer(text: str) -> list[Any]:
        model = Scripted([Rule(pattern="(?P<word>needle)", tool="find", saying="")])
        request = ModelRequest((Message("user", text),), (ToolDefinition("find", "", {}),))
        return [event async for event in model.stream(request) if isinstance(event, ToolCall)]

    assert len(drive(answer("a needle"))) == 1
    assert drive(answer("a" * 2000 + " needle")) == []


def test_a_city_is_found_in_a_long_text_without_trying_all_ways_to_part_it() -> None:
    for text in ("from " + " " * 990, "from " * 200, "from a to " + "a " * 490 + "|"):
        assert not any(re.search(rule.pattern, text) for rule in RULES[:2])

"""The hub's own protocol, over raw stdio and over WebSocket: each test runs on both."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest

from operating import Server
from peers import Peer, socket_peer, stdio_peer

Open = Callable[[], AbstractAsyncContextManager[Peer]]

PING = {"type": "pong", "message": "pong"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The WebSocket of one server for all tests."""
    with Server(tmp_path_factory.mktemp("lines"), target="lines_app:hub", journal=False) as server:
        yield f"ws://127.0.0.1:{server.port}/ws"


@pytest.fixture(params=["stdio", "websocket"])
def open_peer(request: pytest.FixtureRequest) -> Open:
    """How a client connects: on stdio to a server of its own, by WebSocket to the module's."""
    return stdio_peer if request.param == "stdio" else partial(socket_peer, request.getfixturevalue("url"))


def test_a_plain_request_gets_the_collected_result(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            assert await peer.result("echo.once", {"message": "hi"}) == {
                "type": "echo",
                "message": "hi",
                "count": 1,
            }
            many = await peer.result("echo.echo", {"message": "hi", "count": 2})
            assert [event["count"] for event in many] == [1, 2]
            assert await peer.result("echo.echo", ["hi", 1]) == many[:1]
            assert await peer.result("echo_ping") == PING
            assert (await peer.result("plexus_hash")) == await peer.result("plexus.hash")

    asyncio.run(run())


def test_errors_have_codes_and_name_what_is_wrong(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            unknown = (await peer.request("echo.onse"))["error"]
            assert (unknown["code"], unknown["data"]["near"][0]) == (-32601, "echo.once")
            invalid = (await peer.request("echo.once", {"mesage": "x"}))["error"]
            assert invalid["code"] == -32602
            assert {fault["path"] for fault in invalid["data"]["errors"]} == {"message", "mesage"}
            failed = (await peer.request("probe.fail"))["error"]
            assert (failed["code"], failed["message"]) == (-32000, "The disk is full")
            assert failed["data"] == {"code": "disk_full", "recoverable": True}
            unsendable = (await peer.request("probe.unsendable"))["error"]
            assert "object" in unsendable["message"]
            assert (await peer.settled())["calls"] == 0

    asyncio.run(run())


BAD_MESSAGES: list[tuple[str, bytes, int]] = [
    ("malformed JSON", b'{"jsonrpc":"2.0","id":1,', -32700),
    ("no JSON at all", b"hello", -32700),
    ("invalid UTF-8", b'{"jsonrpc":"2.0","id":1,"method":"echo.once","params":{"message":"\xff\xfe"}}', -32700),
    ("deep nesting", b'{"jsonrpc":"2.0","id":1,"method":"echo.once","params":' + b"[" * 200_000, -32700),
    (
        "deep but well-formed nesting",
        b'{"jsonrpc":"2.0","id":1,"method":"echo.ping","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        -32700,
    ),
    ("deep nesting in a batch", b"[" * 200_000 + b"]" * 200_000, -32700),
    ("an empty batch", b"[]", -32600),
    ("a number", b"42", -32600),
    ("another version", b'{"jsonrpc":"1.0","id":1,"method":"echo.ping"}', -32600),
    ("no method and no id", b'{"jsonrpc":"2.0"}', -32600),
    ("no method, result or error", b'{"jsonrpc":"2.0","id":9}', -32600),
    ("no method, result or error, but params", b'{"jsonrpc":"2.0","id":9,"params":{}}', -32600),
    ("a method that is no string", b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
    ("params that are a string", b'{"jsonrpc":"2.0","id":1,"method":"echo.ping","params":"x"}', -32602),
    ("params of a wrong type", b'{"jsonrpc":"2.0","id":1,"method":"echo.once","params":{"message":7}}', -32602),
    ("too many params", b'{"jsonrpc":"2.0","id":1,"method":"echo.ping","params":[1]}', -32602),
    ("a subscription to nothing", b'{"jsonrpc":"2.0","id":1,"method":"plexus_subscribe","params":[]}', -32602),
    ("a subscription with junk", b'{"jsonrpc":"2.0","id":1,"method":"plexus_subscribe","params":{"x":1}}', -32602),
    ("a response without payload", b'{"jsonrpc":"2.0","id":1,"method":"plexus_respond","params":{"request_id":"x"}}', -32602),
    ("50 MB of JSON", b'{"jsonrpc":"2.0","id":1,"method":"echo.once","params":{"message":"' + b"x" * 50_000_000 + b'"}}', -32600),
    ("50 MB of noise", b"x" * 50_000_000, -32600),
]  # fmt: skip


def test_a_bad_message_gets_an_error_and_the_next_good_one_is_answered(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            for what, message, code in BAD_MESSAGES:
                await peer.send(message)
                error = await peer.receive()
                assert error.get("error", {}).get("code") == code, (what, str(error)[:300])
                assert await peer.result("echo.ping") == PING, what
            await peer.settled()

    asyncio.run(run())


def test_a_batch_gets_one_array_of_responses_without_the_notifications(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            batch = [
                {"jsonrpc": "2.0", "id": "slow", "method": "probe.sleep", "params": {"seconds": 0.05}},
                {"jsonrpc": "2.0", "method": "echo.ping"},
                {"jsonrpc": "2.0", "id": 2, "method": "echo.ping"},
                {"jsonrpc": "2.0", "id": 3, "method": "nothing.here"},
                17,
            ]
            await peer.send(json.dumps(batch).encode())
            answers = {response["id"]: response for response in await peer.receive()}
            assert set(answers) == {"slow", 2, 3, None}
            assert answers["slow"]["result"] == "slept"
            assert answers[2]["result"] == PING
            assert answers[3]["error"]["code"] == -32601
            assert answers[None]["error"]["code"] == -32600
            await peer.send(b'[{"jsonrpc":"2.0","method":"echo.ping"}]')  # nothing to respond to
            assert await peer.result("echo.ping") == PING

    asyncio.run(run())


def test_a_slow_call_does_not_hold_up_the_next_one(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            await peer.send(b'{"jsonrpc":"2.0","id":"slow","method":"probe.held"}')
            assert await peer.result("echo.ping") == PING
            await peer.result("probe.open")
            assert (await peer.response("slow"))["result"] == "worked"

    asyncio.run(run())


async def subscribe(peer: Peer, method: str, params: Any = None) -> str:
    subscription = await peer.result("plexus_subscribe", [method] if params is None else [method, params])
    assert isinstance(subscription, str)
    return subscription


def test_a_subscription_streams_items_and_ends_with_one_done(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            subscription = await peer.result(
                "plexus.call", {"method": "echo.echo", "params": {"message": "a", "count": 2}}
            )
            items = await peer.items(subscription)
            assert [item["type"] for item in items] == ["data", "data", "done"]
            assert items[0]["content_type"] == "echo.echo"
            assert items[0]["metadata"]["provenance"] == ["plexus", "echo"]
            assert items[0]["metadata"]["plexus_hash"] == await peer.result("plexus.hash")
            failed = await peer.items(await subscribe(peer, "probe.fail"))
            assert [item["type"] for item in failed] == ["error", "done"]
            assert (failed[0]["code"], failed[0]["recoverable"]) == ("disk_full", True)
            await peer.settled()

    asyncio.run(run())


def test_the_wizard_is_answered_by_both_ways_of_responding(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            subscription = await subscribe(peer, "interactive.wizard")
            question = await peer.item(subscription, "request")
            assert question["request_type"] == {
                "Prompt": {"message": "Project name:", "placeholder": "my-project"}
            }
            assert question["timeout_ms"] == 30_000
            done = {"success": True}
            assert (
                await peer.result("plexus_respond", [subscription, question["request_id"], {"Text": "demo"}])
                == done
            )
            question = await peer.item(subscription, "request")
            assert question["request_type"]["Select"]["multi_select"] is False
            named = {"subscription": subscription, "request_id": question["request_id"], "payload": "full"}
            assert await peer.result("plexus_respond", named) == done
            question = await peer.item(subscription, "request")
            raw = {
                "request_id": question["request_id"],
                "response_data": {"type": "confirmed", "value": True},
            }
            assert await peer.result("plexus.respond", raw) == done
            await peer.item(subscription, "done")
            await peer.settled()

    asyncio.run(run())


def test_wrong_unknown_late_and_second_answers_are_refused(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            subscription = await subscribe(peer, "probe.ask", {"name": "n"})
            id = (await peer.item(subscription, "request"))["request_id"]
            unknown = "Unknown request ID: {}. The request may have timed out or been cancelled."

            wrong = (await peer.request("plexus_respond", [subscription, id, {"Confirmed": True}]))["error"]
            assert wrong["code"] == -32602
            assert "text" in wrong["data"]["expected"]
            nobody = (await peer.request("plexus_respond", [subscription, "nope", "x"]))["error"]
            assert (nobody["code"], nobody["message"]) == (-32602, unknown.format("nope"))
            elsewhere = (await peer.request("plexus_respond", ["other", id, "x"]))["error"]
            assert elsewhere["message"] == unknown.format(id)

            await peer.result("plexus_respond", [subscription, id, "right"])
            second = (await peer.request("plexus_respond", [subscription, id, "again"]))["error"]
            assert second["message"] == unknown.format(id)
            assert (await peer.item(subscription, "data"))["content"] == {"name": "n", "word": "right"}

            subscription = await subscribe(peer, "probe.ask", {"name": "late", "timeout": 0.05})
            id = (await peer.item(subscription, "request"))["request_id"]
            assert (await peer.item(subscription, "request_cancelled"))["request_id"] == id
            late = (await peer.request("plexus.respond", {"request_id": id, "response_data": "x"}))["error"]
            assert late["message"] == unknown.format(id)
            assert (await peer.item(subscription, "error"))["code"] == "timed_out"
            await peer.settled()

    asyncio.run(run())


def test_two_calls_of_one_tool_are_answered_in_reverse(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            first = await subscribe(peer, "probe.ask", {"name": "first"})
            second = await subscribe(peer, "probe.ask", {"name": "second"})
            ids = {s: (await peer.item(s, "request"))["request_id"] for s in (first, second)}
            await peer.result("plexus_respond", [second, ids[second], "two"])
            await peer.result("plexus_respond", [first, ids[first], "one"])
            assert (await peer.item(first, "data"))["content"] == {"name": "first", "word": "one"}
            assert (await peer.item(second, "data"))["content"] == {"name": "second", "word": "two"}
            await peer.settled()

    asyncio.run(run())


def test_a_thousand_waiting_calls_each_get_their_own_answer(open_peer: Open) -> None:
    async def run() -> None:
        count = 1000
        async with open_peer() as peer:
            waiting = {}
            for number in range(count):
                subscription = await subscribe(peer, "probe.ask", {"name": str(number)})
                waiting[subscription] = (number, (await peer.item(subscription, "request"))["request_id"])
            state = await peer.result("probe.state")
            assert (state["calls"], state["questions"]) == (count, count)
            order = list(waiting)
            random.Random(7).shuffle(order)
            for subscription in order:
                number, id = waiting[subscription]
                await peer.result("plexus_respond", [subscription, id, f"word {number}"])
                data = await peer.item(subscription, "data")
                assert data["content"] == {"name": str(number), "word": f"word {number}"}
            await peer.settled()

    asyncio.run(run())


def test_unsubscribing_cancels_the_call(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            for method in ("plexus_unsubscribe", "plexus.call_unsub"):
                subscription = await subscribe(peer, "probe.ask", {"name": method})
                await peer.item(subscription, "request")
                assert await peer.result(method, [subscription]) is True
                assert f"{method} was cancelled" in (await peer.settled())["trail"]
                assert await peer.result(method, [subscription]) is False

    asyncio.run(run())


def test_a_caller_says_which_questions_it_can_answer(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            asked = {"method": "probe.ask", "params": {"name": "n"}, "supports": ["confirm"]}
            items = await peer.items(await peer.result("plexus_subscribe", asked))
            assert [item["type"] for item in items] == ["error", "done"]
            assert items[0]["code"] == "not_supported"
            plain = (await peer.request("probe.ask", {"name": "n"}))["error"]
            assert plain["data"]["code"] == "not_supported"

    asyncio.run(run())


def test_logs_reach_the_caller_beside_the_items(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            subscription = await subscribe(peer, "probe.narrate")
            log = await peer.receive()
            assert log["method"] == "plexus_log"
            assert log["params"] == {
                "subscription": subscription, "level": "warning", "message": "starting", "data": {"n": 1},
            }  # fmt: skip
            assert [item["type"] for item in await peer.items(subscription)] == ["progress", "data", "done"]

    asyncio.run(run())


def test_a_result_without_an_end_is_stopped_and_told(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            error = (await peer.request("probe.flood", {"count": 10**18, "size": 100_000}))["error"]
            assert error["data"]["code"] == "result_too_large"
            assert "as a stream" in error["message"]
            await peer.settled()

    asyncio.run(run())


def test_a_caller_says_how_long_its_person_is_waited_for(open_peer: Open) -> None:
    async def run() -> None:
        async with open_peer() as peer:
            for given, limit in (({}, 30_000), ({"time_limit": None}, None), ({"time_limit": 90}, 90_000)):
                asked = {"method": "interactive.confirm", "params": {"message": "Ready?"}, **given}
                subscription = await peer.result("plexus_subscribe", asked)
                assert (await peer.item(subscription, "request")).get("timeout_ms") == limit
                await peer.result("plexus_unsubscribe", [subscription])
            for wrong in (0, -1, "long"):
                asked = {"method": "interactive.confirm", "time_limit": wrong}
                error = (await peer.request("plexus_subscribe", asked))["error"]
                assert error["code"] == -32602

    asyncio.run(run())

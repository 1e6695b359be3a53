"""Shares: what one caller may take of a server, so that others still have room, over real sockets."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import InvalidStatus

from chatting import Person, Puppet, call
from chatting import serving as chat_serving
from driving import LIMIT, drive, until
from journal_contract import waiting_call
from mcp_peers import META, MODERN, Response
from midcall import Ask, Hub, JournalFull, RateLimited, calls, connect_hub, method, resource
from midcall.calls import Owned, RateLimit
from midcall.chat import ChatEngine, engine
from midcall.journal.durable import DurableCalls, Quota
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.journal.state import size_of_call
from midcall.mcp import mcp_of
from midcall.mcp import peer as mcp_peer
from midcall.metrics import keep
from midcall.mount import mount
from midcall.principal import Principal
from midcall.transports import http as transport
from midcall.transports import http_sessions, legacy_sse
from midcall.transports.auth import StaticKeys
from midcall.transports.http_server import server
from peers import Peer, SocketWire, command, free_port
from sse_peers import client as sse_client
from sse_peers import http, refusal, running, status

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
PING = b'{"jsonrpc":"2.0","id":"p","method":"ping"}'


class Shop:
    """A shop."""

    @method
    async def slow(self) -> str:
        """Take long."""
        await asyncio.sleep(3600)
        return "done"

    @method
    async def quick(self, word: str = "") -> str:
        """Take no time."""
        return "done"

    @method
    async def buy(self, ask: Ask, note: str = "") -> str:
        """Buy something."""
        return await ask.prompt("What?", key="what")

    @resource("shop://{item}")
    def item(self, item: str) -> str:
        """An item."""
        return item


@asynccontextmanager
async def shop(hub: Hub, *, keys: bool = True, **settings: Any) -> AsyncIterator[int]:
    """A server in this process; ann and bob have keys to it."""
    if keys:
        settings["auth"] = StaticKeys(f"ann={ANN}\nbob={BOB}\n")
    async with running(server(hub, port=free_port(), log_level="error", grace=0, **settings)) as port:
        yield port


async def post(port: int, token: str | None, message: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """The status of a POST to `/mcp`, its body and its headers."""
    accept = "application/json, text/event-stream"
    response = await http(port, "POST", "/mcp", json.dumps(message).encode(), token, accept=accept, **headers)
    body = await response.body()
    return response.status, json.loads(body) if body else None, response.headers


def request(name: str, params: Any) -> dict[str, Any]:
    meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {"elicitation": {}}}
    return {"jsonrpc": "2.0", "id": 1, "method": name, "params": {**params, "_meta": meta}}


async def modern(port: int, token: str | None, rpc: str, **params: Any) -> tuple[int, Any, dict[str, str]]:
    """A modern request."""
    about = {"mcp_protocol_version": MODERN, "mcp_method": rpc}
    if "name" in params:
        about["mcp_name"] = params["name"]
    return await post(port, token, request(rpc, params), **about)


async def tool(port: int, token: str | None, name: str, **arguments: Any) -> Any:
    """What a modern `tools/call` comes to."""
    return await modern(port, token, "tools/call", name=name, arguments=arguments)


async def begin_session(port: int, token: str | None) -> str:
    """The id of a new legacy session."""
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    code, _, headers = await post(port, token, asked)
    assert code == 200
    return headers["mcp-session-id"]


async def in_session(port: int, token: str | None, session: str, rpc: str, **params: Any) -> tuple[int, Any]:
    asked = {"jsonrpc": "2.0", "id": 1, "method": rpc, "params": params}
    code, body, _ = await post(port, token, asked, mcp_session_id=session)
    return code, body


@asynccontextmanager
async def socket(port: int, token: str | None) -> AsyncIterator[Peer]:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with open_socket(f"ws://127.0.0.1:{port}/ws", additional_headers=headers, max_size=None) as opened:
        yield Peer(SocketWire(opened))


# --- sessions -------------------------------------------------------------------------------


def test_nobody_pushes_out_the_idle_session_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(http_sessions, "LIMIT", 50)
        async with shop(Hub().register(Shop())) as port:
            of_ann = await begin_session(port, ANN)
            of_bob = [await begin_session(port, BOB) for _ in range(60)]
            assert (await in_session(port, ANN, of_ann, "ping"))[0] == 200
            assert (await in_session(port, BOB, of_bob[-1], "ping"))[0] == 200
            assert (await in_session(port, BOB, of_bob[0], "ping"))[0] == 404

    drive(run())


def test_whoever_has_most_sessions_makes_room_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        monkeypatch.setattr(http_sessions, "LIMIT", 4)
        people = [f"person{n}" for n in range(4)]
        keys = StaticKeys("\n".join(f"{name}={name}-0123456789abcdef" for name in people))
        async with shop(Hub().register(Shop()), keys=False, auth=keys) as port:
            first, *others = [f"{name}-0123456789abcdef" for name in people]
            kept = [(token, await begin_session(port, token)) for token in others]
            for _ in range(3):
                kept_of_first = await begin_session(port, first)
            for token, session in (*kept, (first, kept_of_first)):
                assert (await in_session(port, token, session, "ping"))[0] == 200

    drive(run())


def test_an_old_stream_ends_for_another_one_of_the_same_caller_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(legacy_sse, "LIMIT", 3)
        async with (
            shop(Hub().register(Shop()), sse=True) as port,
            sse_client(port, token=ANN) as ann,
            sse_client(port, token=BOB) as first,
            sse_client(port, token=BOB) as second,
        ):
            await first.until_ended()
            assert await refusal(port, first.endpoint, PING, token=BOB) == (404, -32001)
            assert await ann.tool("shop.quick") == await second.tool("shop.quick") == "done"

    drive(run())


# --- calls at once --------------------------------------------------------------------------


def test_one_caller_cannot_take_the_room_for_all_calls() -> None:
    async def run() -> None:
        hub = Hub().register(Shop())
        hub.calls.limit = 20
        async with shop(hub) as port, socket(port, BOB) as bob, socket(port, ANN) as ann:
            for _ in range(2):
                await bob.result("plexus_subscribe", ["shop.slow", {}])
            refused = (await bob.request("plexus_subscribe", ["shop.slow", {}]))["error"]
            assert refused["message"] == "More than 2 calls at once for one caller; try again later"
            assert refused["data"] == {"code": "too_many_calls", "recoverable": True}
            await ann.result("plexus_subscribe", ["shop.slow", {}])
            assert len(hub.calls) == 3
        await until(lambda: len(hub.calls) == 0)

    drive(run())


def test_what_has_ended_makes_room_for_the_same_caller() -> None:
    async def run() -> None:
        hub = Hub().register(Shop())
        hub.calls.limit = 10
        async with shop(hub) as port, socket(port, BOB) as bob:
            for _ in range(3):
                started = await bob.result("plexus_subscribe", ["shop.slow", {}])
                assert "error" in await bob.request("plexus_subscribe", ["shop.slow", {}])
                await bob.result("plexus_unsubscribe", [started])
                await until(lambda: len(hub.calls) == 0)

    drive(run())


def test_plain_tools_over_http_count_too() -> None:
    async def run() -> None:
        hub = Hub().register(Shop())
        hub.calls.limit = 20
        async with shop(hub) as port:
            begun = [asyncio.ensure_future(tool(port, BOB, "shop.slow")) for _ in range(2)]
            await until(lambda: len(hub.calls) == 2)
            _, refused, _ = await tool(port, BOB, "shop.slow")
            assert refused["error"]["message"] == "More than 2 calls at once for one caller; try again later"
            code, done, _ = await tool(port, ANN, "shop.quick")
            assert (code, done["result"]["content"][0]["text"]) == (200, "done")
            for call in hub.calls:
                call.abort()
            await asyncio.gather(*begun)

    drive(run())


def test_callers_without_a_name_have_all_the_room_there_is() -> None:
    async def run() -> None:
        hub = Hub().register(Shop())
        hub.calls.limit = 3
        async with shop(hub, keys=False) as port, socket(port, None) as one:
            for _ in range(3):
                await one.result("plexus_subscribe", ["shop.slow", {}])
            _, refused, _ = await tool(port, None, "shop.slow")
            assert refused["error"]["message"] == "More than 3 calls at once; try again later"

    drive(run())


def test_a_call_that_is_refused_leaves_nothing_behind() -> None:
    async def run() -> None:
        hub = Hub().register(Shop())
        hub.calls.limit = 10
        async with shop(hub) as port, socket(port, BOB) as bob:
            await bob.result("plexus_subscribe", ["shop.slow", {}])
            for _ in range(3):
                assert "error" in (await tool(port, BOB, "shop.buy"))[1]
                assert "error" in await bob.request(
                    "plexus_subscribe", {"method": "shop.buy", "durable": True}
                )
            assert list(hub.durable.live) == []

    drive(run())


def test_calls_that_wait_with_large_arguments_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(calls, "ARGUMENTS", 10_000)
        hub = Hub().register(Shop())
        async with shop(hub) as port, socket(port, BOB) as bob, socket(port, ANN) as ann:
            large = ["shop.buy", {"note": "x" * 600}]
            await bob.result("plexus_subscribe", large)
            refused = (await bob.request("plexus_subscribe", large))["error"]
            assert refused["data"]["code"] == "too_many_calls"
            assert "The arguments of the calls that run are too large together" in refused["message"]
            await bob.result("plexus_subscribe", ["shop.buy", {}])
            await ann.result("plexus_subscribe", large)

    drive(run())


# --- calls a second -------------------------------------------------------------------------


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_ten_seconds_worth_of_calls_may_come_at_once_and_after_that_as_many_as_the_rate_says() -> None:
    clock = Clock()
    rate = RateLimit(4, clock=clock)
    for _ in range(40):
        rate.take("ann")
    with pytest.raises(RateLimited, match=r"More than 4 calls per second; try again in 1 s") as refused:
        rate.take("ann")
    assert refused.value.data == {"retry_after": 1}
    rate.take("bob")
    clock.now += 0.5
    for _ in range(2):
        rate.take("ann")
    with pytest.raises(RateLimited):
        rate.take("ann")
    clock.now += 3600
    for _ in range(40):
        rate.take("ann")
    with pytest.raises(RateLimited):
        rate.take("ann")


def test_less_than_a_call_in_ten_seconds_is_a_rate_too() -> None:
    clock = Clock()
    rate = RateLimit(0.01, clock=clock)
    rate.take("ann")
    clock.now += 60
    with pytest.raises(RateLimited) as refused:
        rate.take("ann")
    assert refused.value.retry_after == 40
    clock.now += 41
    rate.take("ann")


def test_no_rate_is_refused_where_there_is_no_limit() -> None:
    rate = RateLimit(0)
    for _ in range(100_000):
        rate.take(None)


def test_callers_that_do_not_call_any_more_are_forgotten() -> None:
    clock = Clock()
    rate = RateLimit(clock=clock)
    for number in range(10_000):
        clock.now += 1
        rate.take(f"caller {number}")
    assert len(rate._full_at) <= 1001


def test_a_server_limits_the_rate_of_calls_unless_it_is_told_otherwise() -> None:
    clock = Clock()
    for given, allowed in ((None, calls.RATE * calls.AT_ONCE), (3, 30)):
        hub = Hub().register(Shop())
        hub.asgi(rate_limit=given)
        assert hub.calls.rate is not None
        hub.calls.rate._clock = clock
        for _ in range(int(allowed)):
            hub.calls.admit("ann")
        with pytest.raises(RateLimited):
            hub.calls.admit("ann")


def limited(calls_at_once: float = 1) -> Hub:
    """A hub where each caller may start so many calls, and no more."""
    hub = Hub().register(Shop())
    hub.calls.rate = RateLimit(calls_at_once / calls.AT_ONCE, clock=Clock())
    return hub


def test_a_modern_caller_that_calls_too_often_is_told_when_to_come_back() -> None:
    async def run() -> None:
        async with shop(limited()) as port:
            assert (await tool(port, BOB, "shop.quick"))[0] == 200
            code, body, headers = await tool(port, BOB, "shop.quick")
            assert (code, headers["retry-after"]) == (429, "10")
            assert body["error"] == {
                "code": -32000,
                "message": "More than 0.1 calls per second; try again in 10 s",
                "data": {"retry_after": 10},
            }
            assert (await tool(port, ANN, "shop.quick"))[0] == 200

    drive(run())


def test_every_request_that_starts_a_call_counts() -> None:
    async def run() -> None:
        for name, params in (
            ("resources/read", {"uri": "shop://tea"}),
            ("prompts/get", {"name": "none"}),
            ("completion/complete", {"ref": {"type": "ref/prompt", "name": "none"}, "argument": {}}),
            ("tools/call", {"name": "shop.buy", "arguments": {}}),
        ):
            hub = limited()
            async with shop(hub) as port:
                hub.calls.admit("bob")
                about = {"mcp_name": params.get("name", params.get("uri", ""))}
                about |= {"mcp_protocol_version": MODERN, "mcp_method": name}
                if name == "completion/complete":
                    params["argument"] = {"name": "x", "value": ""}
                assert (await post(port, BOB, request(name, params), **about))[0] == 429

    drive(run())


def test_a_legacy_caller_that_calls_too_often_keeps_its_session() -> None:
    async def run() -> None:
        async with shop(limited()) as port:
            session = await begin_session(port, BOB)
            called = [
                await in_session(port, BOB, session, "tools/call", name="shop.quick", arguments={})
                for _ in range(2)
            ]
            assert [code for code, _ in called] == [200, 200]
            assert called[1][1]["error"]["data"] == {"retry_after": 10}
            assert (await in_session(port, BOB, session, "ping"))[0] == 200

    drive(run())


def test_calls_over_a_websocket_count_whichever_way_they_are_made() -> None:
    async def run() -> None:
        for method_name, params in (
            ("shop.quick", {}),
            ("plexus_subscribe", ["shop.quick", {}]),
            ("plexus_subscribe", {"method": "shop.buy", "durable": True}),
        ):
            hub = limited()
            async with shop(hub) as port, socket(port, BOB) as bob:
                hub.calls.admit("bob")
                refused = (await bob.request(method_name, params))["error"]
                assert refused["data"] == {"code": "rate_limited", "recoverable": True, "retry_after": 10}

    drive(run())


def test_a_client_over_a_websocket_raises_what_it_was_refused_with() -> None:
    async def run() -> None:
        hub = limited()
        async with (
            shop(hub) as port,
            connect_hub(f"ws://127.0.0.1:{port}/ws", headers={"Authorization": f"Bearer {BOB}"}) as remote,
        ):
            assert await remote.call("shop.quick") == "done"
            with pytest.raises(RateLimited) as refused:
                await remote.call("shop.quick")
            assert refused.value.retry_after == 10

    drive(run())


def test_the_calls_of_a_model_count_for_its_person() -> None:
    async def run() -> None:
        hub = limited()
        model = Puppet(call("shop__quick"), call("shop__quick", "call_2"), "Sorry.")
        async with chat_serving(ChatEngine(hub, model)) as port:
            events = await Person(port).say("Go.")
            assert [e["type"] for e in events if e["type"] in ("tool_result", "tool_error")] == [
                "tool_result",
                "tool_error",
            ]
            assert "try again in 10 s" in str(events)

    drive(run())


def test_code_in_the_same_process_is_not_limited() -> None:
    async def run() -> None:
        hub = limited()
        assert [await hub.call("shop.quick") for _ in range(3)] == ["done"] * 3

    drive(run())


def test_what_is_refused_is_counted() -> None:
    async def run() -> None:
        def refused() -> dict[str, float]:
            families = text_string_to_metric_families(keep().text().decode())
            (found,) = (family for family in families if family.name == "midcall_refused")
            return {
                sample.labels["reason"]: sample.value for sample in found.samples if "total" in sample.name
            }

        before = refused()
        hub = limited()
        hub.calls.limit = 0
        async with shop(hub) as port:
            await tool(port, BOB, "shop.quick")
            await tool(port, BOB, "shop.quick")
        also = {reason: before[reason] + 1 for reason in ("too_many_calls", "rate_limited")}
        assert refused() == before | also

    drive(run())


@pytest.mark.parametrize("rate", ["-1", "many", "nan", "inf"])
def test_a_rate_that_is_none_is_refused_on_the_command_line(rate: str) -> None:
    told = subprocess.run(
        command("serve", "--rate-limit", rate), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert told.returncode == 2
    assert f"{rate!r} is not a number of calls per second" in told.stderr


# --- subscriptions --------------------------------------------------------------------------


async def listening(port: int, token: str, uris: list[str]) -> Response:
    """An open `subscriptions/listen`, or its refusal."""
    params = {"notifications": {"resourceSubscriptions": uris}}
    body = json.dumps(request("subscriptions/listen", params)).encode()
    about = {"mcp_protocol_version": MODERN, "mcp_method": "subscriptions/listen"}
    return await http(port, "POST", "/mcp", body, token, accept="text/event-stream", **about)


def test_one_caller_cannot_fill_the_memory_with_what_it_subscribes_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        monkeypatch.setattr(mcp_peer, "SUBSCRIBED", 100_000)
        async with shop(Hub().register(Shop())) as port:
            of_bob, another_of_bob = await begin_session(port, BOB), await begin_session(port, BOB)
            of_ann = await begin_session(port, ANN)

            async def subscribe(token: str, session: str, uri: str) -> Any:
                return (await in_session(port, token, session, "resources/subscribe", uri=uri))[1]

            large = [f"shop://{letter * 3000}" for letter in "abcd"]
            for uri in (large[0], large[0], large[1]):
                assert "result" in await subscribe(BOB, of_bob, uri)
            assert "result" in await subscribe(BOB, another_of_bob, large[2])
            refused = (await subscribe(BOB, another_of_bob, large[3]))["error"]
            assert (refused["code"], refused["message"]) == (
                -32000,
                "More subscriptions than there is room for; end some of them first",
            )
            assert "result" in await subscribe(ANN, of_ann, large[0])
            listen = await listening(port, BOB, large[3:])
            assert listen.kind == "application/json"
            await listen.drop()

            await in_session(port, BOB, of_bob, "resources/unsubscribe", uri=large[0])
            assert "result" in await subscribe(BOB, another_of_bob, large[3])
            await status(port, "DELETE", "/mcp", token=BOB, mcp_session_id=another_of_bob)
            assert "result" in await subscribe(BOB, of_bob, large[2])

    drive(run())


def test_what_is_listened_to_counts_until_the_stream_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(mcp_peer, "SUBSCRIBED", 100_000)
        hub = Hub().register(Shop())
        async with shop(hub) as port:
            for _ in range(3):
                listen = await listening(port, BOB, ["shop://" + "x" * 5000])
                assert listen.kind == "text/event-stream"
                refused = await listening(port, BOB, ["shop://tea"] * 20)
                assert refused.kind == "application/json"
                await refused.drop()
                await listen.drop()
                await until(lambda: not mcp_of(hub)._listeners._open)

    drive(run())


def test_what_one_caller_watches_of_a_mounted_server_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        monkeypatch.setattr(mount, "MOST_WATCHED", 20)
        inner = Hub("far").register(Shop())
        hub = Hub().mount("far", inner)
        await hub.open()
        async with shop(hub) as port:
            session, another = await begin_session(port, BOB), await begin_session(port, ANN)
            for token, chosen, item in ((BOB, session, "a"), (BOB, session, "b"), (BOB, session, "c")):
                await in_session(port, token, chosen, "resources/subscribe", uri=f"shop://{item}")
            await in_session(port, ANN, another, "resources/subscribe", uri="shop://tea")
            assert hub.mounts[0]._watched == {"shop://a", "shop://b", "shop://tea"}

    drive(run())


def test_questions_of_a_mounted_server_stay_open_however_many_another_caller_has() -> None:
    talks: Owned[str] = Owned()
    talks.use("ann", "1", "of ann")
    gone = []
    for number in range(30):
        gone += talks.make_room("bob", 100)
        talks.use("bob", f"b{number}", f"of bob {number}")
    assert gone == [f"of bob {number}" for number in range(20)]
    assert talks.get("ann", "1") == "of ann"


# --- connections ----------------------------------------------------------------------------


def test_one_caller_cannot_open_all_websockets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(transport, "SOCKETS", 20)
        async with shop(Hub().register(Shop())) as port:
            async with socket(port, BOB) as one, socket(port, BOB) as other:
                assert await one.result("shop.quick") == await other.result("shop.quick") == "done"
                with pytest.raises(InvalidStatus) as refused:
                    async with socket(port, BOB):
                        pass
                assert refused.value.response.status_code == 429
                async with socket(port, ANN) as another:
                    assert await another.result("shop.quick") == "done"
            while True:  # the server may take a moment to notice
                try:
                    async with socket(port, BOB) as again:
                        assert await again.result("shop.quick") == "done"
                        break
                except InvalidStatus:
                    await asyncio.sleep(0.01)

    drive(run())


# --- the journal ----------------------------------------------------------------------------


def keeping(tmp_path: Path, share: int = 50_000) -> Hub:
    """A hub with a journal of which a caller may have so many bytes."""
    hub = Hub().register(Shop())
    hub.durable = DurableCalls(hub, SqliteJournal(tmp_path / "calls.db"), share=share)
    return hub


def test_one_caller_cannot_fill_the_journal(tmp_path: Path) -> None:
    async def run() -> None:
        hub = keeping(tmp_path)
        async with shop(hub) as port, socket(port, BOB) as bob:
            note = "x" * 30_000
            _, asked, _ = await tool(port, BOB, "shop.buy", note=note)
            assert asked["result"]["resultType"] == "input_required"
            _, refused, _ = await tool(port, BOB, "shop.buy", note=note)
            assert refused["error"]["data"] == {"code": "journal_full", "recoverable": True}
            assert refused["error"]["message"] == (
                "The journal has no room left for this caller; answer what waits, or try again later"
            )
            durable = {"method": "shop.buy", "params": {"note": note}, "durable": True}
            refused = await bob.request("plexus_subscribe", durable)
            assert refused["error"]["data"]["code"] == "journal_full"
            _, asked, _ = await tool(port, ANN, "shop.buy", note=note)
            assert asked["result"]["resultType"] == "input_required"
            assert await hub.durable.journal.count() == {"waiting": 2}
            assert len(list(hub.durable.live)) == 2

    drive(run())


def test_what_another_worker_has_written_counts_too(tmp_path: Path) -> None:
    async def run() -> None:
        for number in range(2):
            async with shop(keeping(tmp_path)) as port:
                _, asked, _ = await tool(port, BOB, "shop.buy", note="x" * 30_000)
                assert ("result" in asked) == (number == 0)

    drive(run())


def test_a_call_that_is_found_by_its_key_needs_no_room(tmp_path: Path) -> None:
    async def run() -> None:
        async with shop(keeping(tmp_path, 40_000)) as port:
            params = {"name": "shop.buy", "arguments": {"note": "x" * 30_000}}
            about = {"mcp_protocol_version": MODERN, "mcp_method": "tools/call", "mcp_name": "shop.buy"}
            for key, code in (("one", None), ("two", "journal_full"), ("one", None)):
                asked = request("tools/call", params)
                asked["params"]["_meta"]["dev.midcall/idempotencyKey"] = key
                _, came, _ = await post(port, BOB, asked, **about)
                assert came.get("error", {}).get("data", {}).get("code") == code

    drive(run())


def test_room_in_the_journal_is_looked_for_again_after_a_while() -> None:
    async def run() -> None:
        clock, journal = Clock(), MemoryJournal()
        await journal.open()
        room = Quota(journal.held, 50_000, clock=clock)
        call = waiting_call(principal="bob", arguments=b"x" * 40_000)
        await room.check("bob", size_of_call(call))
        await journal.create(call, (), b"asked")
        for _ in range(2):
            with pytest.raises(JournalFull):
                await room.check("bob", size_of_call(call))
        await journal.end(call.id, "aborted", b"", 0.0)
        await journal.sweep()
        with pytest.raises(JournalFull):
            await room.check("bob", size_of_call(call))
        clock.now += 61
        await room.check("bob", size_of_call(call))
        await room.check(None, 90_000)  # callers without a name have all the room

    drive(run())


# --- the chat -------------------------------------------------------------------------------


async def say(port: int, token: str, text: str = "Hello.", **more: Any) -> tuple[int, Any]:
    response = await http(port, "POST", "/chat", json.dumps({"message": text, **more}).encode(), token)
    body = await response.body()
    return response.status, json.loads(body) if response.kind == "application/json" else body


def test_one_person_cannot_begin_all_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(engine, "TURNS", 10, raising=False)
        hub = Hub().register(Shop())
        hub.chat = chat = ChatEngine(hub, Puppet(call("shop__slow")))
        async with shop(hub, parts=[chat.part()]) as port:
            first = asyncio.ensure_future(say(port, BOB))
            await until(lambda: len(hub.calls) == 1)
            code, refused = await say(port, BOB)
            assert (code, refused["error"]["code"]) == (429, "too_many_calls")
            assert (await say(port, ANN))[0] == 200
            for run in chat._runs.values():
                run.stop()
            await first
            await until(lambda: chat._turns.total == 0)
            assert (await say(port, BOB))[0] == 200

    drive(run())


def test_one_person_has_a_share_of_the_room_for_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(engine, "CONVERSATIONS", 2, raising=False)
        monkeypatch.setattr(engine, "CONVERSATION_BYTES", 10_000, raising=False)
        hub = Hub().register(Shop())
        chat = ChatEngine(hub, Puppet())
        async with shop(hub, parts=[chat.part()]) as port:
            assert [(await say(port, BOB))[0] for _ in range(2)] == [200, 200]
            code, refused = await say(port, BOB)
            assert (code, refused["error"]["code"]) == (409, "too_many_conversations")
            assert refused["error"]["message"] == "You have too many conversations; delete some first"
            newest, _ = await chat.conversations(Principal("bob"))
            assert (await say(port, BOB, "x" * 12_000, conversationId=newest.id))[0] == 200
            assert (await say(port, BOB, conversationId=newest.id))[0] == 409
            assert (await say(port, ANN))[0] == 200
            await chat.delete(newest.id, Principal("bob"))
            assert (await say(port, BOB))[0] == 200

    drive(run())

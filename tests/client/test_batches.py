"""Batches of calls: order, partial failure, one deadline, and nothing that stays behind."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from client_peers import (
    MODERN,
    Exchange,
    calls,
    connect,
    echo,
    http_peer,
    methods,
    midcall_server,
    nothing_waits,
    run,
    said,
    scripted,
    seen,
    speaking,
    text,
)
from driving import LIMIT, until, with_patience
from mcp_peers import http_server
from midcall import Client, Request


def test_results_come_in_the_order_of_the_calls_with_the_callers_ids() -> None:
    async def main() -> None:
        async with scripted("reverse", "10") as client:
            results = await client.call_tools(calls(10), parallel=True)
            assert [one["call_id"] for one in results] == [f"c{n}" for n in range(10)]
            assert said(results) == [f"word {n}" for n in range(10)]
            assert all(one.keys() == {"call_id", "success", "result"} for one in results)
            await nothing_waits(client)

    run(main())


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ([{"id": "a", "name": "echo"}, {"id": "a", "name": "echo"}], "Two calls have the id a"),
        ([{"id": "a", "name": "echo"}, {"name": "echo"}], "an id and the name"),
        ([{"id": "a", "name": "echo"}, {"id": 5, "name": "echo"}], "an id and the name"),
        ([{"id": "a", "name": "echo"}, {"id": "", "name": "echo"}], "an id and the name"),
        ([{"id": "a", "name": "echo"}, {"id": "b"}], "an id and the name"),
        ([{"id": "a", "name": "echo"}, {"id": "b", "name": "echo", "arguments": [1]}], "are not an object"),
        ([{"id": "a", "name": "echo"}, {"id": "b", "name": "echo", "arguments": {"x": object()}}], "JSON"),
        ([{"id": "a", "name": "echo"}, "echo"], "A call is"),
    ],
)
def test_a_batch_with_a_bad_call_is_refused_before_anything_is_sent(batch: Any, why: str) -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            with pytest.raises(ValueError, match=why):
                await client.call_tools(batch)
            assert methods(await seen(client)).count("tools/call") == 1  # `seen` itself

    run(main())


def test_a_limit_below_one_is_refused() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            with pytest.raises(ValueError, match="limit"):
                await client.call_tools(calls(1), parallel=True, limit=0)

    run(main())


def test_an_empty_batch_has_no_results() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            assert await client.call_tools([]) == []
            assert await client.call_tools([], parallel=True) == []

    run(main())


@pytest.mark.parametrize("parallel", [False, True])
def test_one_call_that_fails_does_not_fail_the_others(parallel: bool) -> None:
    async def main() -> None:
        names = ["echo", "broken", "wrong", "nowhere", "echo"]
        batch = [{"id": f"c{n}", "name": name, "arguments": {"say": "x"}} for n, name in enumerate(names)]
        async with scripted("mixed") as client:
            results = await client.call_tools(batch, parallel=parallel)
            assert [one["success"] for one in results] == [True, False, False, False, True]
            assert [one.get("error") for one in results] == [
                None,
                "The disk is full",
                "It does not work",
                "Unknown tool: nowhere",
                None,
            ]
            assert results[1]["result"]["isError"] is True
            await nothing_waits(client)

    run(main())


def test_what_is_not_there_in_time_has_the_error_timeout_and_the_server_is_told() -> None:
    async def attempt(seconds: float) -> bool:
        batch = [
            {"id": "a", "name": "echo", "arguments": {"say": "x"}},
            {"id": "b", "name": "silent"},
            {"id": "c", "name": "silent"},
        ]
        async with scripted("mixed") as client:
            results = await client.call_tools(batch, timeout=seconds, parallel=True)
            if not results[0]["success"]:
                return False
            assert [one["success"] for one in results] == [True, False, False]
            assert results[1] == {"call_id": "b", "success": False, "error": "timeout"}
            assert results[2]["error"] == "timeout"
            await nothing_waits(client)
            messages = await seen(client)
            silent = [one["id"] for one in messages if one.get("params", {}).get("name") == "silent"]
            cancelled = [
                one["params"]["requestId"]
                for one in messages
                if one.get("method") == "notifications/cancelled"
            ]
            assert cancelled == silent
            return True

    run(with_patience(attempt))


def test_the_deadline_is_shared_by_all_calls_of_a_sequence() -> None:
    async def main() -> None:
        async with scripted("silent") as client:
            results = await client.call_tools(calls(3), timeout=0.3)
            assert [one["error"] for one in results] == ["timeout"] * 3
            sent = [one for one in await seen(client) if one.get("method") == "tools/call"]
            assert [one["params"]["name"] for one in sent] == ["echo", "seen"]

    run(main())


@pytest.mark.parametrize(
    ("options", "at_once"),
    [({}, 1), ({"parallel": True, "limit": 4}, 4), ({"parallel": True}, 20)],
)
def test_calls_go_one_after_the_other_or_as_many_at_once_as_are_wanted(
    options: dict[str, Any], at_once: int
) -> None:
    async def main() -> None:
        together = asyncio.Barrier(at_once)
        arrived: list[str] = []
        under_way: set[str] = set()

        async def call(exchange: Exchange) -> None:
            word = exchange.message["params"]["arguments"]["say"]
            arrived.append(word)
            under_way.add(word)
            assert len(under_way) <= at_once
            await together.wait()
            under_way.remove(word)
            await echo(exchange)

        async with http_peer(speaking(call)) as peer, connect(peer.url) as client:
            words = [f"word {n}" for n in range(20)]
            assert said(await client.call_tools(calls(20), **options)) == words
            assert sorted(arrived) == sorted(words)
            assert arrived == words or at_once > 1

    run(main())


def test_on_result_gets_each_result_as_it_comes() -> None:
    async def main() -> None:
        came: list[str] = []
        async with scripted("reverse", "5") as client:
            results = await client.call_tools(
                calls(5), parallel=True, on_result=lambda one: came.append(one["call_id"])
            )
            assert came == ["c4", "c3", "c2", "c1", "c0"]
            assert said(results) == [f"word {n}" for n in range(5)]

    run(main())


def test_what_on_result_raises_is_raised_by_the_batch_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        def fail(one: dict[str, Any]) -> None:
            raise KeyError(one["call_id"])

        async with scripted("reverse", "5") as client:
            with pytest.raises(KeyError, match="c4"):
                await client.call_tools(calls(5), parallel=True, on_result=fail)
            await nothing_waits(client)
            assert said(await client.call_tools(calls(5), parallel=True))

    run(main())


def test_a_late_reply_is_dropped() -> None:
    async def main() -> None:
        async with scripted("reverse", "2") as client:
            (late,) = await client.call_tools(calls(1), timeout=0.3)
            assert late["error"] == "timeout"
            # The second call makes the server answer both; only its own answer counts.
            assert said(
                await client.call_tools([{"id": "x", "name": "echo", "arguments": {"say": "new"}}])
            ) == ["new"]
            await nothing_waits(client)

    run(main())


def test_a_batch_that_nobody_waits_for_is_cancelled_on_the_server() -> None:
    async def main() -> None:
        async with scripted("silent") as client:
            batch = asyncio.create_task(client.call_tools(calls(3), timeout=None, parallel=True))
            session = await client.session()
            await until(lambda: len(session.waiting) == 3)
            batch.cancel()
            await asyncio.wait((batch,))
            await nothing_waits(client)
            assert methods(await seen(client)).count("notifications/cancelled") == 3

    run(main())


def test_ten_thousand_calls_in_one_parallel_batch() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            results = await client.call_tools(calls(10_000), parallel=True, timeout=None)
            assert said(results) == [f"word {n}" for n in range(10_000)]
            await nothing_waits(client)

    run(main())


def test_ten_thousand_calls_of_a_server_that_is_gone_fail_one_by_one() -> None:
    async def main() -> None:
        async with scripted("dying", "exit", give_up_after=0.01) as client:
            results = await client.call_tools(calls(10_000), parallel=True, timeout=LIMIT)
            assert not any(one["success"] for one in results)
            assert "ended with code 3" in results[0]["error"]

    run(main())


# --- cancellation over HTTP -------------------------------------------------------------------


def test_a_modern_http_server_is_told_by_the_closing_of_the_stream() -> None:
    async def attempt(seconds: float) -> bool:
        came, gone = asyncio.Event(), asyncio.Event()

        async def call(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.raw(b": thinking\n\n")
            came.set()
            await exchange.gone()
            gone.set()

        async with http_peer(speaking(call, modern=True)) as peer, connect(peer.url) as client:
            (result,) = await client.call_tools(calls(1), timeout=seconds)
            assert result["error"] == "timeout"
            if not came.is_set():
                return False
            await asyncio.wait_for(gone.wait(), LIMIT)
            assert "notifications/cancelled" not in peer.seen
            await nothing_waits(client)
            return True

    run(with_patience(attempt))


def test_a_legacy_http_server_is_told_by_a_notification() -> None:
    async def attempt(seconds: float) -> bool:
        async def call(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.gone()

        async with http_peer(speaking(call)) as peer, connect(peer.url) as client:
            (result,) = await client.call_tools(calls(1), timeout=seconds)
            assert result["error"] == "timeout"
            if "tools/call" not in peer.seen:
                return False
            await until(lambda: "notifications/cancelled" in peer.seen)
            (call_id,) = [one.message["id"] for one in peer.exchanges if one.method == "tools/call"]
            (told,) = [one.message for one in peer.exchanges if one.method == "notifications/cancelled"]
            assert told["params"]["requestId"] == call_id
            await nothing_waits(client)
            return True

    run(with_patience(attempt))


# --- arrays -----------------------------------------------------------------------------------


def test_an_array_is_sent_on_request_on_the_one_revision_that_has_it() -> None:
    async def main() -> None:
        async with scripted("arrays", "10", revision="2025-03-26") as client:
            assert client.revision == "2025-03-26"
            results = await client.call_tools(calls(10), array=True)
            assert said(results) == [f"word {n}" for n in range(10)]
            await nothing_waits(client)
        async with scripted("plain", "2025-03-26") as client:
            await client.call_tools(calls(3), array=True)
            arrays = [one for one in await seen(client) if isinstance(one, list)]
            assert [len(one) for one in arrays] == [3]
            assert [one["params"]["arguments"]["say"] for one in arrays[0]] == ["word 0", "word 1", "word 2"]

    run(main())


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
def test_no_array_is_sent_on_another_revision(revision: str) -> None:
    async def main() -> None:
        async with scripted("plain", revision) as client:
            assert said(await client.call_tools(calls(3), array=True)) == ["word 0", "word 1", "word 2"]
            assert not any(isinstance(one, list) for one in await seen(client))

    run(main())


def test_an_array_of_replies_is_understood_although_none_was_sent() -> None:
    async def main() -> None:
        async with scripted("arrays", "7") as client:
            results = await client.call_tools(calls(7), parallel=True)
            assert said(results) == [f"word {n}" for n in range(7)]

    run(main())


def test_an_array_goes_over_http_as_one_request() -> None:
    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if not isinstance(exchange.message, list):
                return False
            answers = [
                {"jsonrpc": "2.0", "id": one["id"], "result": text(one["params"]["arguments"]["say"])}
                for one in reversed(exchange.message)
            ]
            if len(answers) == 3:
                await exchange.json(answers)
            else:
                await exchange.stream()
                for one in answers:
                    await exchange.event(one)
            return True

        handler = speaking(echo, other=other, revision="2025-03-26")
        async with http_peer(handler) as peer, connect(peer.url, revision="2025-03-26") as client:
            assert said(await client.call_tools(calls(3), array=True)) == [f"word {n}" for n in range(3)]
            assert said(await client.call_tools(calls(4), array=True)) == [f"word {n}" for n in range(4)]
            assert "tools/call" not in peer.seen
            await nothing_waits(client)

    run(main())


# --- ping -------------------------------------------------------------------------------------


def test_ping_is_true_only_for_a_success() -> None:
    async def main() -> None:
        async with scripted("plain") as client:
            assert await client.ping() is True
        async with scripted("modern") as client:
            assert await client.ping() is True

    run(main())


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"code": -32601, "message": "Method not found"}},
        {},
        {"result": None},
        {"result": [1]},
        {"id": 999, "result": {}},
    ],
)
def test_ping_is_false_for_anything_else(reply: dict[str, Any]) -> None:
    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if exchange.method == "ping":
                await exchange.json({"jsonrpc": "2.0", "id": exchange.message["id"], **reply})
                return True
            return False

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url) as client:
            assert await client.ping() is False
            await nothing_waits(client)

    run(main())


def test_ping_of_a_silent_server_is_false_when_its_time_is_up() -> None:
    async def main() -> None:
        async def other(exchange: Exchange) -> bool:
            if exchange.method == "ping":
                await exchange.gone()
                return True
            return False

        async with http_peer(speaking(echo, other=other)) as peer, connect(peer.url) as client:
            assert await client.ping(timeout=0.2) is False
            await nothing_waits(client)

    run(main())


# --- fifty calls, five of which ask a person ---------------------------------------------------

Open = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def over_http(**options: Any) -> AsyncIterator[Client]:
    with http_server() as server:
        async with connect(f"http://127.0.0.1:{server.port}/mcp", **options) as client:
            yield client


@asynccontextmanager
async def over_stdio(**options: Any) -> AsyncIterator[Client]:
    async with midcall_server(**options) as client:
        yield client


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("reach", [over_stdio, over_http])
def test_of_fifty_calls_the_45_that_ask_nobody_do_not_wait_for_the_five_that_do(
    era: str, reach: Open
) -> None:
    async def main() -> None:
        answers = asyncio.Event()
        asked: list[str] = []
        finished: list[str] = []

        async def answer(request: Request) -> str:
            asked.append(request.request_type.message)
            await answers.wait()
            return "yes"

        def came(result: dict[str, Any]) -> None:
            finished.append(result["call_id"])
            if len(finished) == 45:
                answers.set()

        batch = [
            {"id": f"c{n}", "name": "seek.prompt", "arguments": {"name": f"n{n}"}}
            if n % 10 == 0
            else {"id": f"c{n}", "name": "give.sum", "arguments": {"a": n, "b": n}}
            for n in range(50)
        ]
        async with reach(era=era, answer=answer) as client:
            assert client.modern == (era == "modern")
            assert (client.revision == MODERN) == client.modern
            results = await client.call_tools(batch, parallel=True, timeout=LIMIT, on_result=came)
            assert len(asked) == 5
            assert {int(id[1:]) % 10 for id in finished[-5:]} == {0}
            assert [one["call_id"] for one in results] == [f"c{n}" for n in range(50)]
            for n, words in enumerate(said(results)):
                assert words == f"n{n}: yes" if n % 10 == 0 else json.loads(words) == {"total": 2 * n}
            await nothing_waits(client)

    run(main())

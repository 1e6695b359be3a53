"""A hostile server on stdio: every call ends with the right result or a clear error, and nothing stays."""

import asyncio
import gc
import logging
import sys
import tracemalloc
from typing import Any

import pytest

from client_peers import calls, nothing_waits, run, said, scripted, seen
from driving import LIMIT, until, with_patience
from midcall import Client, RemoteError, ToolError, TransportLost, Unreachable
from midcall.client import child, server_requests, tool_call
from midcall.items import Done, Log, Progress


async def works(client: Client) -> None:
    """The next connection works, or this one still does."""
    async with scripted("plain") as other:
        assert said(await other.call_tools(calls(3), parallel=True)) == ["word 0", "word 1", "word 2"]
    if client.connected:
        await nothing_waits(client)


@pytest.mark.parametrize("name", ["reverse", "arrays", "confused", "noisy", "piecemeal"])
def test_replies_in_any_order_and_shape_find_their_calls(name: str) -> None:
    async def main() -> None:
        async with scripted(name) as client:
            for parallel in (True, True, True):
                results = await client.call_tools(calls(10), parallel=parallel)
                assert said(results) == [f"word {n}" for n in range(10)]
            await works(client)

    run(main())


def test_what_is_skipped_on_the_output_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with caplog.at_level(logging.WARNING, "midcall.client"):
            async with scripted("noisy") as client:
                await client.call("echo", {"say": "x"})

    run(main())
    assert "Welcome to the noisy server!" in caplog.text
    assert "it starts" in caplog.text


def test_a_line_that_is_too_long_is_skipped_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_MESSAGE", 100_000)

    async def attempt(seconds: float) -> bool:
        async with scripted("huge", "1000000") as client:
            batch = [{"id": "a", "name": "huge"}, {"id": "b", "name": "echo"}]
            results = await client.call_tools(batch, timeout=seconds, parallel=True)
            assert results[0]["error"] == "timeout"
            assert (await client.call("echo")).text == "small"
            await works(client)
            return "error" not in results[1]

    run(with_patience(attempt))


def test_a_line_of_many_megabytes_is_read() -> None:
    async def main() -> None:
        async with scripted("huge", "20000000") as client:
            assert len((await client.call("huge")).text) == 20_000_000

    run(main())


@pytest.mark.parametrize("how", ["version", "no version", "null error"])
def test_a_response_that_is_almost_right_is_taken(how: str) -> None:
    async def main() -> None:
        async with scripted("malformed") as client:
            assert (await client.call("x", {"how": how})).text == "good"
            await works(client)

    run(main())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("neither", "neither a result nor an error"),
        ("error text", "boom"),
        ("error code", "boom"),
        ("both", "boom"),
        ("list", "not an object"),
        ("null", "not an object"),
        ("kind", "unknown type"),
        ("utf8", "cannot be read"),
    ],
)
def test_a_response_that_is_none_fails_its_call_at_once(how: str, why: str) -> None:
    async def main() -> None:
        async with scripted("malformed") as client:
            with pytest.raises(RemoteError, match=why):
                await client.call("x", {"how": how})
            (result,) = await client.call_tools([{"id": "a", "name": "x", "arguments": {"how": how}}])
            assert not result["success"]
            assert why in result["error"]
            with pytest.raises(RemoteError, match=why):
                await client.request("tools/call", {"name": "x", "arguments": {"how": how}})
            assert (await client.call("x")).text == "good"
            await works(client)

    run(main())


def test_a_result_nested_beyond_measure_ends_its_call() -> None:
    async def attempt(seconds: float) -> bool:
        async with scripted("malformed") as client:
            batch = [{"id": "a", "name": "x", "arguments": {"how": "deep"}}, {"id": "b", "name": "x"}]
            deep, good = await client.call_tools(batch, timeout=seconds, parallel=True)
            assert not deep["success"]
            await works(client)
            return bool(good["success"])

    run(with_patience(attempt))


def test_content_that_is_none_is_an_empty_result() -> None:
    async def main() -> None:
        async with scripted("malformed") as client:
            assert (await client.call("x", {"how": "content"})).text == ""

    run(main())


def test_a_silent_server_is_given_up_and_told() -> None:
    async def main() -> None:
        async with scripted("silent") as client:
            with pytest.raises(Exception, match=r"no sign of life within 0\.2 seconds"):
                await client.call("echo", timeout=0.2)
            with pytest.raises(Exception, match=r"no answer within 0\.2 seconds"):
                await client.request("tools/call", {"name": "x"}, timeout=0.2)
            await nothing_waits(client)
            cancelled = [one for one in await seen(client) if one.get("method") == "notifications/cancelled"]
            assert len(cancelled) == 2

    run(main())


# --- death --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("exit", r"ended with code 3, and said: I cannot go on"),
        ("half line", "ended with code 0"),
        ("kill", "was ended by SIGKILL"),
        ("output", "closed its output"),
        ("input", "closed its input"),
    ],
)
def test_a_server_that_is_gone_fails_the_waiting_calls_at_once(how: str, why: str) -> None:
    async def main() -> None:
        async with scripted("dying", how) as client:
            session = await client.session()
            results = await client.call_tools(calls(3), parallel=True, timeout=None)
            assert not any(one["success"] for one in results)
            assert why in results[0]["error"]
            assert list(session.waiting) == []
            with pytest.raises(TransportLost, match=why):
                await client.call("echo", timeout=None)
            # And it is there again, as a new process.
            assert await client.ping(timeout=LIMIT)

    run(main())


def test_the_last_word_of_a_server_that_ends_is_heard() -> None:
    async def main() -> None:
        async with scripted("dying", "last word") as client:
            assert (await client.call("echo", {"say": "goodbye"})).text == "goodbye"

    run(main())


# --- storms --------------------------------------------------------------------------------------


def test_a_storm_of_notifications_hides_no_answer() -> None:
    async def main() -> None:
        async with scripted("storm", "10000") as client:
            assert said(await client.call_tools(calls(1), timeout=None)) == ["word 0"]
            await works(client)

    run(main())


def test_a_reader_that_is_behind_gets_no_more_progress_than_can_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_call, "MAX_BEHIND", 500)

    async def main() -> None:
        async with scripted("storm", "3000") as client:
            items = client.call("echo", {"say": "after"}).__aiter__()
            first = await anext(items)
            session = await client.session()
            await until(lambda: not session.waiting)  # all of it has come, and was not read
            rest = [item async for item in items]
            assert isinstance(first, Progress | Log)
            assert isinstance(rest[-1], Done)
            assert rest[-2].content.text == "after"
            assert 400 < len(rest) < 2000

    run(main())


@pytest.mark.parametrize("method", ["ping", "elicitation/create", "sampling/createMessage", "nonsense"])
def test_a_flood_of_requests_is_answered_without_a_task_for_each(method: str) -> None:
    most: list[int] = []

    async def main() -> None:
        async def answer(request: Any) -> Any:
            most.append(len(asyncio.all_tasks()))
            await asyncio.sleep(0.01)
            return {}

        async with scripted("flood", "10000", method, answer=answer) as client:
            assert (await client.call("echo", timeout=None)).text == "flooded"
            await works(client)

    run(main())
    assert max(most, default=0) < server_requests.MAX_SERVING + 20


@pytest.mark.parametrize("method", ["ping", "elicitation/create"])
def test_a_flood_of_a_server_that_does_not_read_costs_a_bounded_amount(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "MAX_UNREAD", 100_000)

    async def main() -> None:
        async with scripted("flood", "30000", method, "deaf", answer=lambda request: {}) as client:
            assert (await client.call("echo", timeout=None)).text == "flooded"
            unread = client._reconnect.current._wire._child.unread  # type: ignore[union-attr]
            assert unread < 200_000

    run(main())


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [("confused", ()), ("noisy", ()), ("storm", ("100",)), ("mixed", ()), ("silent", ())],
)
def test_memory_is_flat_over_many_rounds(name: str, words: tuple[str, ...]) -> None:
    async def main() -> None:
        async with scripted(name, *words) as client:
            sizes = []
            for _ in range(4):
                for _ in range(5):
                    timeout = 0.01 if name == "silent" else None
                    await client.call_tools(
                        calls(4 if name == "storm" else 20), parallel=True, timeout=timeout
                    )
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            await nothing_waits(client)
            # The first rounds fill caches; from then on nothing is kept.
            assert sizes[3] - sizes[1] < 200_000, sizes

    logging.getLogger("midcall.client").setLevel(logging.CRITICAL)
    tracemalloc.start()
    try:
        run(main())
    finally:
        tracemalloc.stop()
        logging.getLogger("midcall.client").setLevel(logging.NOTSET)


def test_connections_that_come_and_go_leave_nothing() -> None:
    async def main() -> None:
        sizes = []
        for _ in range(4):
            for _ in range(5):
                async with scripted("plain") as client:
                    await client.call_tools(calls(5))
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        assert sizes[3] - sizes[1] < 200_000, sizes

    tracemalloc.start()
    try:
        run(main())
    finally:
        tracemalloc.stop()


def test_a_server_that_is_no_mcp_server_is_unreachable() -> None:
    async def main() -> None:
        from midcall import connect

        with pytest.raises(Unreachable, match="ended with code 0"):
            async with connect([sys.executable, "-S", "-c", "print('hello')"]):
                pass
        with pytest.raises(Unreachable, match=r"chose an unknown revision: \(none\)"):
            async with scripted("greets_with", "{}"):
                pass
        with pytest.raises(Unreachable, match="not an object"):
            async with scripted("greets_with", "[1]"):
                pass

    run(main())


def test_a_tool_that_fails_raises_what_it_says() -> None:
    async def main() -> None:
        async with scripted("mixed") as client:
            with pytest.raises(ToolError, match="The disk is full"):
                await client.call("broken")
            with pytest.raises(RemoteError, match="It does not work") as caught:
                await client.call("wrong")
            assert caught.value.rpc_code == -32000

    run(main())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_odd_requests_of_a_server_are_refused_and_the_call_goes_on(era: str) -> None:
    async def main() -> None:
        async with scripted("rude", era, roots=["file:///r"]) as client:
            assert (await client.call("echo", {"say": "x"})).text == "x"
            answers = [one for one in await seen(client) if "method" not in one]
            given = sorted((str(one["id"]), "result" in one) for one in answers)
            if era == "modern":  # only a ping is harmless: a modern server must not ask so
                assert given == [("p", True)]
            else:
                assert given == [("None", True), ("a", False), ("a", True), ("b", False), ("p", True)]
            await works(client)

    run(main())

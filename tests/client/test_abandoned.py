"""Calls that nobody comes back for: none is left waiting at its server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from client_peers import run
from driving import until
from midcall import Aborted, Ask, Cancelled, Client, Hub, Request, connect, method
from midcall.client.targets import HubWire, Target


class Tools:
    """Tools that ask."""

    def __init__(self) -> None:
        self.asked = 0
        self.ended: list[str] = []

    @method
    async def name(self, ask: Ask, stubborn: bool = False) -> str:
        """Ask once; twice if it is stubborn."""
        for last in (not stubborn, True):
            try:
                self.asked += 1
                return await ask.prompt("Your name?", timeout=None)
            except Cancelled:
                if last:
                    self.ended.append("cancelled")
                    raise
        return ""

    @method(long_running=True)
    async def job(self, ask: Ask) -> str:
        """Ask, as a task."""
        self.asked += 1
        try:
            return await ask.prompt("Your name?", timeout=None)
        except (Cancelled, asyncio.CancelledError):
            self.ended.append("cancelled")
            raise

    async def end(self) -> None:
        await until(lambda: self.ended == ["cancelled"])


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Tools, Client]]:
    """A client of a modern server with these tools."""
    tools = Tools()
    hub = Hub("back").register(tools)
    try:
        async with connect(hub, **options) as client:
            assert client.modern
            yield tools, client
    finally:
        await hub.close()


async def first_question(invocation: Any) -> Request:
    async for item in invocation:
        if isinstance(item, Request):
            return item
    raise AssertionError("it has not asked")


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("tool", ["name", "job"])
def test_a_call_whose_reader_leaves_is_not_left_waiting(tool: str, stubborn: bool) -> None:
    async def main() -> None:
        async with serving(by_hand=True) as (tools, client):
            items = aiter(
                client.call(f"tools.{tool}", {"stubborn": True} if stubborn and tool == "name" else {})
            )
            assert isinstance(await anext(items), Request)
            await items.aclose()  # type: ignore[attr-defined]
            await tools.end()

    run(main())


def test_a_call_that_is_cancelled_is_not_left_waiting() -> None:
    async def main() -> None:
        async with serving(by_hand=True) as (tools, client):
            invocation = client.call("tools.name")
            async for item in invocation:
                if isinstance(item, Request):
                    assert invocation.handle is not None
                    await invocation.cancel()
            await tools.end()

    run(main())


def test_a_call_whose_handler_fails_is_not_left_waiting() -> None:
    async def main() -> None:
        async with serving(answer=lambda request: {}["no"]) as (tools, client):
            with pytest.raises(Aborted):
                await client.call("tools.name")
            await tools.end()

    run(main())


def test_a_call_that_gets_no_answer_that_fits_is_not_left_waiting() -> None:
    async def main() -> None:
        async with serving(answer=lambda request: 5) as (tools, client):
            (result,) = await client.call_tools([{"id": "a", "name": "tools.name"}])
            assert "Nobody gave an answer" in result["error"]
            await tools.end()

    run(main())


def test_a_batch_whose_time_is_up_at_a_question_leaves_nothing_waiting() -> None:
    async def main() -> None:
        async def think(request: Request) -> None:
            await asyncio.Event().wait()

        async with serving(answer=think) as (tools, client):
            seconds = 0.5
            while not tools.asked:  # a busy machine may need more time to come so far
                (result,) = await client.call_tools([{"id": "a", "name": "tools.name"}], timeout=seconds)
                assert result["error"] == "timeout"
                seconds *= 2
            await tools.end()

    run(main())


def test_a_client_that_is_closed_leaves_nothing_waiting() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def think(request: Request) -> None:
            asked.set()
            await asyncio.Event().wait()

        async with serving(answer=think) as (tools, client):

            async def call() -> None:
                with pytest.raises(Exception):  # noqa: B017
                    await client.call("tools.name")

            calling = asyncio.create_task(call())
            await asked.wait()
            await client.close()
            assert tools.ended == ["cancelled"]
            await calling

    run(main())


def test_a_call_whose_handle_was_taken_waits_for_whoever_comes_back() -> None:
    async def main() -> None:
        tools = Tools()
        hub = Hub("back").register(tools)
        async with connect(hub, by_hand=True) as client:
            invocation = client.call("tools.name")
            await first_question(invocation)
            handle = invocation.handle
        async with connect(hub, answer=lambda request: "Ada") as client:
            assert handle is not None
            assert (await client.resume(handle)).text == "Ada"
        await hub.close()

    run(main())


@pytest.mark.parametrize("tool", ["name", "job"])
def test_a_mount_that_loses_interest_leaves_nothing_waiting_at_the_server_behind(tool: str) -> None:
    async def main() -> None:
        tools = Tools()
        back = Hub("back").register(tools)
        front = Hub("front").mount("b", Target("the hub behind", lambda: HubWire(back)))
        await front.open()
        try:
            invocation = front.call(f"b.tools.{tool}", {}, supports={"prompt"})
            async for item in invocation:
                if isinstance(item, Request):
                    await invocation.cancel()
            await tools.end()
        finally:
            await front.close()
            await back.close()

    run(main())


def test_a_hub_that_is_closed_leaves_nothing_waiting_at_the_server_behind() -> None:
    async def main() -> None:
        tools = Tools()
        back = Hub("back").register(tools)
        front = Hub("front").mount("b", Target("the hub behind", lambda: HubWire(back)))
        await front.open()
        items = aiter(front.call("b.tools.name", {}, supports={"prompt"}, time_limit=None))
        assert isinstance(await anext(items), Request)
        await front.close()
        assert tools.ended == ["cancelled"]
        await items.aclose()  # type: ignore[attr-defined]
        await back.close()

    run(main())

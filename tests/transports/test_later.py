"""Calls to come, of which most are cancelled: in order, in time, with one timer."""

import asyncio
import time

from driving import LIMIT, drive
from midcall.transports.mcp_http import Later


def test_what_is_not_cancelled_is_called_in_order_and_not_before_its_time() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        later = Later(0.5)
        called: list[tuple[int, float]] = []
        begun = loop.time()
        entries = []
        for number in range(6):
            entries.append(
                later.call(lambda number=number: called.append((number, loop.time() - begun)), loop)
            )
            await asyncio.sleep(0.01)
        entries[0].cancel()
        entries[3].cancel()
        async with asyncio.timeout(LIMIT):
            while len(called) < 4:
                await asyncio.sleep(0.01)
        assert [number for number, _ in called] == [1, 2, 4, 5]
        for number, after in called:
            assert after >= 0.5 + number * 0.01 - 0.002
        entries[1].cancel()  # too late, and no harm
        later.call(lambda: called.append((6, 0.0)), loop)
        async with asyncio.timeout(LIMIT):
            while len(called) < 5:
                await asyncio.sleep(0.01)

    drive(run())


def test_it_can_be_cancelled_up_to_the_moment_of_its_call() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        later = Later(0.01)
        called: list[str] = []

        def first() -> None:
            called.append("first")
            second.cancel()
            loop.call_soon(third.cancel)  # too late: it is called in this turn

        later.call(first, loop)
        second = later.call(lambda: called.append("second"), loop)
        third = later.call(lambda: called.append("third"), loop)
        later.call(lambda: called.append("fourth"), loop)
        time.sleep(0.02)  # all are due together
        await asyncio.sleep(0.05)
        assert called == ["first", "third", "fourth"]

    drive(run())


def test_the_next_loop_calls_only_what_it_is_given() -> None:
    later = Later(0.01)
    called: list[str] = []

    async def run(name: str, wait: float) -> None:
        later.call(lambda: called.append(name), asyncio.get_running_loop())
        await asyncio.sleep(wait)

    drive(run("first", 0))
    drive(run("second", 0.2))
    assert called == ["second"]

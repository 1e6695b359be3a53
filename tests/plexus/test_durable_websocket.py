"""Durable calls over WebSocket: they survive a lost connection, and a server that is killed."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from driving import drive, until
from midcall import connect_hub
from midcall.client.websocket import Remote
from midcall.errors import MidcallError
from midcall.items import Data, Done, Error, Request
from peers import HERE
from ports import free_port

LIMIT = 150.0
"""Seconds for all of a test: a server starts four times, and a client looks for it less and less often."""


class Server:
    """A server that can be killed and started again, on the same port and with the same journal."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.ledger = folder / "ledger"
        self._options = ["--journal", str(folder / "journal.db"), *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    def start(self) -> None:
        command = [sys.executable, "-m", "midcall", "serve", "durable_app:hub", "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--log-level", "warning", *self._options],
            cwd=HERE,
            env={**os.environ, "LEDGER": str(self.ledger)},
        )
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the server does not start")

    def stop(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=LIMIT)
            self._process = None

    def effects(self) -> list[str]:
        return self.ledger.read_text().split() if self.ledger.exists() else []


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    server = Server(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


def attached(remote: Remote) -> bool:
    """The connection is open again, and the call is followed over it."""
    return remote._opened.is_set() and all(task.done() for task in remote._going_on.values())


ANSWERS = {"Name?": "Ann", "Colour?": "red", "Sure?": True}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_durable_call_goes_on_after_the_server_was_ended_at_each_question(
    tmp_path: Path, end: signal.Signals
) -> None:
    async def run() -> None:
        with serving(tmp_path) as server:
            async with connect_hub(server.url) as remote:
                killed: set[str] = set()

                async def answer(request: Request) -> Any:
                    message = request.request_type.message
                    if message not in killed:
                        killed.add(message)
                        await asyncio.to_thread(server.stop, end)
                        await asyncio.to_thread(server.start)
                        await until(lambda: attached(remote))
                    return ANSWERS[message]

                result = await remote.call("durable.wizard", answer=answer, durable=True)
            assert result == "Ann red True ONE TWO THREE FOUR"
            assert killed == set(ANSWERS)
            assert server.effects() == ["one", "two", "three", "four"]

    drive(run(), LIMIT)


def test_whoever_comes_back_gets_what_was_missed_and_nothing_twice(tmp_path: Path) -> None:
    async def run() -> None:
        with serving(tmp_path) as server:
            async with connect_hub(server.url) as remote:
                invocation = remote.call("durable.stream", {"count": 3}, supports={"prompt"}, durable=True)
                async with aclosing(aiter(invocation)) as items:  # type: ignore[type-var]
                    async for item in items:
                        if isinstance(item, Request):
                            break
                call_id = invocation.call_id
            server.stop(signal.SIGKILL)
            server.start()
            async with connect_hub(server.url) as remote:
                items = [i async for i in remote.attach(call_id, after=2, answer=lambda request: "Bo")]
                contents = [item.content for item in items if isinstance(item, Data)]
                assert contents == ["before 2", "Bo 0", "Bo 1", "Bo 2"]
                again = [item async for item in remote.attach(call_id, after=5)]
                assert [item.content for item in again if isinstance(item, Data)] == ["Bo 2"]
                assert isinstance(again[-1], Done)
                with pytest.raises(MidcallError, match="Unknown call"):
                    await remote.attach("of-somebody-else")

    drive(run(), LIMIT)


def test_every_answer_runs_the_call_again_if_its_coroutine_is_dropped(tmp_path: Path) -> None:
    async def run() -> None:
        with serving(tmp_path, "--replay-check") as server:
            async with connect_hub(server.url) as remote:
                result = await remote.call(
                    "durable.wizard", answer=lambda r: ANSWERS[r.request_type.message], durable=True
                )
            assert result == "Ann red True ONE TWO THREE FOUR"
            assert server.effects() == ["one", "two", "three", "four"]

    drive(run(), LIMIT)


def test_a_call_that_is_not_durable_ends_with_its_connection(tmp_path: Path) -> None:
    async def run() -> None:
        with serving(tmp_path) as server:
            async with connect_hub(server.url) as remote:
                items = []
                async for item in remote.call("durable.wizard", supports={"prompt"}):
                    items.append(item)
                    if isinstance(item, Request):
                        await asyncio.to_thread(server.stop, signal.SIGKILL)
                assert isinstance(items[-2], Error)
                assert isinstance(items[-1], Done)

    drive(run(), LIMIT)

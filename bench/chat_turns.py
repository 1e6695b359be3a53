"""Chat turns in which a tool asks, how many in a second: `python -m bench.chat_turns [--before TREE]`.

One server over HTTP with its journal on SQLite, and a script without any delay in the place of the model.
Each conversation has two turns: the model calls a tool, which asks the person; the person answers, the tool
ends, and the model says so. With another source tree, its server and this one take turns, all in one run,
as machines are noisy, and the ratios are told.
"""

import argparse
import asyncio
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.stdio import HERE, cpu_of
from midcall import Ask, Hub, method
from midcall.chat import ChatEngine
from midcall.models.base import ModelEvent, ModelRequest, Stopped, TextPart, ToolCall, Usage

TURNS = 2
"""Of one conversation."""


class Shop:
    """Buy things."""

    @method
    async def buy(self, what: str, ask: Ask) -> str:
        """Buy something."""
        sure = await ask.confirm(f"Buy {what}?", key="sure")
        return f"{what}: {sure}"


class Caller:
    """Calls the tool at once, and tells what it gave."""

    name = "caller"
    scripted = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last = request.messages[-1]
        if last.role == "user":
            yield ToolCall("c", "shop__buy", '{"what": "tea"}')
        else:
            yield TextPart(last.content)
        yield Stopped("stop", Usage(1, 1))

    async def close(self) -> None:
        """Nothing to do."""


def hub() -> Hub:
    """What is served."""
    made = Hub("bench").register(Shop())
    ChatEngine(made, Caller())
    return made


class Seen(NamedTuple):
    """One round at one server."""

    speed: float
    """Turns a second."""
    cost: float
    """Seconds of the server's CPU for one turn."""


class Person:
    """Talks to the chat on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def talk(self) -> None:
        """One conversation."""
        events = await self._post({"message": "Buy tea"})
        asked = next(event for event in events if event["type"] == "plugin_elicit_request")
        given = {"sessionId": asked["sessionId"], "elicitId": asked["elicitId"]}
        given["result"] = {"action": "accept", "content": {"confirmed": True}}
        body = {"conversationId": events[0]["conversationId"], "pluginElicitResponses": [given]}
        events = await self._post(body)
        assert [event["content"] for event in events if event["type"] == "text"] == ["tea: True"], events

    async def _post(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        data = json.dumps(body).encode()
        head = "POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status, *_ = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        assert status == b"HTTP/1.1 200 OK", status
        lines = b""
        while size := int(await self._reader.readline(), 16):
            lines += await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()
        return [json.loads(line)["event"] for line in lines.splitlines()]

    def close(self) -> None:
        self._writer.close()


async def load(port: int, people: int, conversations: int) -> float:
    """The seconds that these conversations take."""
    there = [Person(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(people)]
    left = itertools.count()

    async def talk(person: Person) -> None:
        while next(left) < conversations:
            await person.talk()

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for person in there:
            group.create_task(talk(person))
    taken = time.perf_counter() - start
    for person in there:
        person.close()
    return taken


class Server:
    """midcall as it is in a source tree."""

    def __init__(self, tree: Path, folder: Path) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = int(one.getsockname()[1])
        command = [sys.executable, "-m", "midcall", "serve", "bench.chat_turns:hub", "--port", str(self.port)]
        options = ["--journal", str(folder / "journal.db"), "--log-level", "error"]
        paths = os.pathsep.join((str(tree / "src"), str(HERE.parent)))
        environment = {**os.environ, "PYTHONPATH": paths}
        self.process = subprocess.Popen([*command, *options], cwd=folder, env=environment)
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return

    def measure(self, people: int, conversations: int) -> Seen:
        before = cpu_of(self.process.pid)
        taken = asyncio.run(load(self.port, people, conversations))
        turns = TURNS * conversations
        return Seen(turns / taken, (cpu_of(self.process.pid) - before) / turns)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chat_turns", description=__doc__)
    parser.add_argument("--before", type=Path, help="another source tree of midcall, to compare with")
    parser.add_argument("--people", type=int, nargs="+", default=[1, 16, 64], help="how many at once")
    parser.add_argument("--conversations", type=int, default=400, help="in each round (default: 400)")
    parser.add_argument("--rounds", type=int, default=5, help="how often (default: 5)")
    options = parser.parse_args()
    trees = {"now": HERE.parent} | ({"before": options.before.resolve()} if options.before else {})
    with tempfile.TemporaryDirectory() as folder:
        servers = {}
        for name, tree in trees.items():
            place = Path(folder) / name
            place.mkdir()
            servers[name] = Server(tree, place)
        try:
            for server in servers.values():
                server.measure(4, 40)  # what is loaded and opened once
            for people in options.people:
                count = options.conversations if people > 1 else options.conversations // 4
                seen: dict[str, list[Seen]] = {name: [] for name in servers}
                for _ in range(options.rounds):
                    for name, server in servers.items():
                        seen[name].append(server.measure(people, count))
                tell(people, seen)
        finally:
            for server in servers.values():
                server.stop()


def tell(people: int, seen: dict[str, list[Seen]]) -> None:
    for name, rounds in seen.items():
        speed, cost = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{people:>3} at once, {name:<7} {speed:>8,.0f} turns/s  {cost * 1e6:>6,.0f} µs of CPU a turn")
    if "before" in seen:
        pairs = list(zip(seen["now"], seen["before"], strict=True))
        faster = statistics.median(now.speed / before.speed for now, before in pairs)
        cheaper = statistics.median(before.cost / now.cost for now, before in pairs)
        print(
            f"{people:>3} at once, {faster:.2f} times as fast, for {1 / cheaper:.0%} of the CPU", flush=True
        )


if __name__ == "__main__":
    main()

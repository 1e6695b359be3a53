"""The loop as a machine of midcall: `memory`, by a call in this process; `sqlite FILE`, by a durable call."""

import asyncio
import json
import sys
from typing import Any

from rounds import STATES, TRANSITIONS, answer

from midcall import Hub
from midcall.fsm import MachineBuilder
from midcall.journal.durable import DurableCalls
from midcall.journal.sqlite.journal import SqliteJournal
from midcall.plexus.protocol import Connection

COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


async def step(event: dict[str, Any]) -> dict[str, Any]:
    return {"count": event["count"] + 1}


async def last(event: dict[str, Any]) -> dict[str, Any]:
    count = event["count"] + 1
    return {"id": ["c", "a" if count < TRANSITIONS else "end"], "count": count}


def loop_hub() -> Hub:
    a, b, c = STATES
    machine = (
        MachineBuilder("loop").function(a, step).function(b, step).function(c, last)
        .to("start", a, COUNT).to(a, b, COUNT).to(b, c, COUNT).to(c, a, COUNT).to(c, "end", COUNT)
    )  # fmt: skip
    return Hub().register_machine(machine, max_transitions=TRANSITIONS + 2)


async def in_memory() -> None:
    hub = loop_hub()

    async def run() -> int:
        trail = await hub.call("machines.loop", {"count": 0})
        return int(trail[-1].event["count"])

    await answer(run)


async def on_sqlite(path: str) -> None:
    hub = loop_hub()
    hub.durable = DurableCalls(hub, SqliteJournal(path))
    await hub.open()
    subscriber = Subscriber(hub)
    try:
        await answer(subscriber.run)
    finally:
        await hub.close()


class Subscriber:
    """A peer in this process, which has durable calls run, and hears of each transition."""

    def __init__(self, hub: Hub) -> None:
        self._connection = Connection(hub, self._take)
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._count = 0

    async def run(self) -> int:
        self._done = asyncio.get_running_loop().create_future()
        call = {"method": "machines.loop", "params": {"count": 0}, "durable": True}
        request = {"jsonrpc": "2.0", "id": 1, "method": "plexus_subscribe", "params": call}
        self._connection.receive(json.dumps(request).encode())
        return await self._done

    def _take(self, message: bytes) -> None:
        said = json.loads(message)
        if "error" in said:
            self._done.set_exception(RuntimeError(message.decode()))
        item = said.get("params", {}).get("result", {})
        match item.get("type"):
            case "data":
                self._count = item["content"]["event"]["count"]
            case "error":
                self._done.set_exception(RuntimeError(message.decode()))
            case "done":
                self._done.set_result(self._count)


asyncio.run(in_memory() if sys.argv[1] == "memory" else on_sqlite(sys.argv[2]))

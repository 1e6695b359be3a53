"""A durable call moves from worker to worker, and whoever is on the line somewhere hears what becomes of it.

Several hubs on one journal, in this process. What happens between real processes is in `test_admin` and
`test_workers`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from driving import drive, until
from journal_model import MemoryStore
from midcall import Ask, Hub, method
from midcall.journal.admin import Admin
from midcall.journal.durable import DurableCalls
from midcall.mcp import CALL_KINDS, mcp_of
from midcall.plexus.protocol import Connection


class Work:
    """A tool that can be made to stand still between two steps."""

    def __init__(self, done: list[str]) -> None:
        self._done = done
        self.go_on = asyncio.Event()
        self.go_on.set()

    @method
    async def run(self, ask: Ask) -> AsyncIterator[str]:
        """Ask twice."""
        yield "begun"
        name = await ask.prompt("Name?", key="name")
        await ask.step(self._done.append, "first")
        yield name
        await self.go_on.wait()
        await ask.step(self._done.append, "second")
        yield await ask.prompt("Colour?", key="colour")


class Worker:
    def __init__(self, journal: Any, done: list[str]) -> None:
        self.work = Work(done)
        self.hub = Hub("moves").register(self.work)
        self.journal = journal
        self.durable = self.hub.durable = DurableCalls(self.hub, journal)
        durable = mcp_of(self.hub).resumption.durable
        self.admin = Admin(journal, CALL_KINDS, durable=durable, calls=self.hub.calls)


class Caller:
    """A connection to a worker, and what came on it."""

    def __init__(self, worker: Worker) -> None:
        self._connection = Connection(worker.hub, self._take)
        self._responses: dict[int, Any] = {}
        self.items: list[Any] = []

    def _take(self, data: bytes) -> None:
        message = json.loads(data)
        if "method" in message:
            self.items.append(message["params"]["result"])
        else:
            self._responses[message["id"]] = message

    async def ask(self, name: str, **params: Any) -> Any:
        id = len(self._responses) + 1
        message = {"jsonrpc": "2.0", "id": id, "method": f"plexus_{name}", "params": params}
        self._connection.receive(json.dumps(message).encode())
        await until(lambda: id in self._responses)
        return self._responses[id]

    async def begin(self) -> str:
        supports = ["prompt"]
        response = await self.ask("subscribe", method="work.run", params={}, durable=True, supports=supports)
        return str(response["result"])

    async def answer(self, call: str, question: Any, value: str) -> Any:
        return await self.ask("respond", subscription=call, request_id=question["request_id"], payload=value)

    async def asked(self, key: str) -> Any:
        """The question, as soon as it is put here."""

        def found() -> list[Any]:
            return [item for item in self.items if item["type"] == "request" and item["key"] == key]

        await until(lambda: bool(found()))
        return found()[-1]

    async def ended(self) -> list[str]:
        """What came, when nothing more comes."""
        await until(lambda: bool(self.items) and self.items[-1]["type"] == "done")
        return [item["content"] for item in self.items if item["type"] == "data"]

    async def leave(self) -> None:
        await self._connection.close()


@asynccontextmanager
async def workers(count: int = 2) -> AsyncIterator[tuple[MemoryStore, list[Worker], list[str]]]:
    store, done = MemoryStore(), list[str]()
    made = [Worker(await store.worker(), done) for _ in range(count)]
    for worker in made:
        await worker.hub.open()
    try:
        yield store, made, done
    finally:
        for worker in made:
            await worker.hub.close()


def test_a_caller_may_go_to_another_worker_and_come_back() -> None:
    async def run() -> None:
        async with workers() as (_, (one, other), done):
            caller = Caller(one)
            call = await caller.begin()
            await caller.asked("name")
            await caller.leave()
            elsewhere = Caller(other)
            await elsewhere.ask("attach", call=call, after=1)
            question = await elsewhere.asked("name")
            assert "result" in await elsewhere.answer(call, question, "Ann")
            await elsewhere.asked("colour")
            await elsewhere.leave()
            again = Caller(one)  # which has parked the call as it was
            await again.ask("attach", call=call, after=2)
            question = await again.asked("colour")
            assert "result" in await again.answer(call, question, "red")
            assert await again.ended() == ["red"]
            assert done == ["first", "second"]

    drive(run())


def test_an_administrator_may_answer_at_a_worker_that_the_call_has_left() -> None:
    async def run() -> None:
        async with workers() as (_, (one, other), done):
            first = Caller(one)
            call = await first.begin()
            await first.asked("name")
            await first.leave()
            caller = Caller(other)
            await caller.ask("attach", call=call, after=0)
            question = await caller.asked("name")
            answered = await one.admin.answer(call, {"name": "Ann"})
            assert answered["status"] == "waiting"
            last = await caller.asked("colour")
            withdrawn = [item["request_id"] for item in caller.items if item["type"] == "request_cancelled"]
            assert withdrawn == [question["request_id"]]
            await caller.answer(call, last, "red")
            assert await caller.ended() == ["begun", "Ann", "red"]
            assert done == ["first", "second"]

    drive(run())


def test_who_waits_at_a_worker_that_was_lost_hears_what_another_one_did() -> None:
    async def run() -> None:
        async with workers() as (store, (one, other), done):
            one.work.go_on.clear()
            caller = Caller(one)
            call = await caller.begin()
            await caller.answer(call, await caller.asked("name"), "Ann")
            await until(lambda: done == ["first"])
            await store.freeze(one.journal)
            for _ in range(2):  # the first look leaves it to whoever has answered
                await other.durable.sweeper.look()
            await until(lambda: done == ["first", "second"])
            await one.journal.open()
            one.work.go_on.set()  # too late
            question = await caller.asked("colour")
            assert done == ["first", "second"]
            await caller.answer(call, question, "red")
            assert await caller.ended() == ["begun", "Ann", "red"]

    drive(run())


def test_who_is_gone_is_not_followed() -> None:
    async def run() -> None:
        async with workers() as (_, (one, other), _done):
            caller = Caller(one)
            call = await caller.begin()
            await caller.asked("name")
            other.work.go_on.clear()
            answering = asyncio.ensure_future(other.admin.answer(call, {"name": "Ann"}))
            await until(lambda: any(item["type"] == "request_cancelled" for item in caller.items))
            await caller.leave()
            other.work.go_on.set()
            assert (await answering)["status"] == "waiting"
            await until(lambda: other.durable.parked == 1)
            await asyncio.sleep(0.1)
            assert other.durable.parked == 1, "the call stays where it is"
            assert one.durable.parked == 0

    drive(run())

"""A durable call that two connections follow, while workers die, stand still and are started.

Everything is in this process (see `inside`). What a schedule does is made from its seed: the two attach to any
worker, hang up, answer, or only listen; workers die in the middle of what they do. What must hold: an element
of the result says the same to everybody for ever, nobody misses one or gets it twice, each effect happens once,
and in the end the call has ended: one that neither waits nor runs is hung.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from crash.inside import Gate, Gated
from journal_contract import Store
from midcall import Ask, Hub, TimedOut, method
from midcall.errors import StepInterrupted
from midcall.journal import sweeper
from midcall.journal.contract import ENDED
from midcall.journal.durable import DurableCalls
from waiting_peers import Peer

SHORT = 0.02
PATIENCE = 60.0
"""Seconds after which a call that should have ended is hung."""
TOOL = "work.wizard"
ELEMENTS = 4


class Wrong(AssertionError):
    """A schedule that did not end right."""


class Work:
    """What is followed."""

    def __init__(self, gate: Gate, ledger: "Counter[int]") -> None:
        self._gate = gate
        self._ledger = ledger

    async def _act(self, number: int) -> int:
        await self._gate.passed()
        self._ledger[number] += 1
        await self._gate.passed()
        return number

    async def _step(self, ask: Ask, number: int) -> str:
        try:
            return f"did {await ask.step(self._act, number)}"
        except StepInterrupted:
            return "interrupted"

    @method
    async def wizard(self, ask: Ask) -> AsyncIterator[dict[str, Any]]:
        """Branches that ask, a question that times out, steps, and values that must stay the same."""
        yield {"id": str(ask.uuid()), "step": await self._step(ask, 0)}

        async def late() -> str:
            await asyncio.sleep(SHORT / 4)
            return await ask.prompt("B?")

        async def first() -> str:
            return await ask.prompt("A?")

        a, b = await asyncio.gather(first(), late())
        yield {"a": a, "b": b, "id": str(ask.uuid())}
        try:
            quick = await ask.prompt("Quick?", timeout=SHORT)
        except TimedOut:
            quick = "silence"
        yield {"quick": quick, "step": await self._step(ask, 1)}
        yield {"c": await ask.prompt("C?"), "id": str(ask.uuid())}


class Worker:
    """A process that can be killed."""

    def __init__(self, journal: Any, ledger: "Counter[int]", parked_calls: int) -> None:
        self.gate = Gate()
        self.journal = Gated(journal, self.gate)
        self.hub = Hub("model").register(Work(self.gate, ledger))
        self.durable = self.hub.durable = DurableCalls(self.hub, self.journal, parked_calls=parked_calls)


class Observer:
    """Somebody who follows the call, on one connection after the other."""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.worker: Worker | None = None
        self.seen = 0
        """The number of the last element."""
        self.done = False

    async def attach(self, worker: Worker, call_id: str) -> None:
        await self.hang_up()
        self.worker, self.peer = worker, Peer(worker.hub)
        self.peer.send("plexus_attach", {"call": call_id, "after": self.seen})

    async def hang_up(self) -> None:
        if self.peer is not None and self.worker is not None and not self.worker.gate.dead:
            await self.peer.close()
        self.peer = None


class Play:
    """One schedule."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._chance = random.Random(seed)
        self._ledger: Counter[int] = Counter()
        self._workers: list[Worker] = []
        self._dead: list[Worker] = []
        self._observers = [Observer(), Observer()]
        self._said: dict[int, str] = {}
        """What each element said, to whomever it was told first."""
        self._call_id = ""
        self.crashes = 0

    async def run(self) -> None:
        for _ in range(2):
            await self._start()
        first = Peer(self._workers[0].hub)
        self._call_id = await first.request("plexus_subscribe", {"method": TOOL, "durable": True})
        self._observers[0].worker, self._observers[0].peer = self._workers[0], first
        for _ in range(self._chance.randint(5, 25)):
            await self._act()
            await asyncio.sleep(self._chance.choice((0, 0, SHORT / 8, SHORT / 2)))
            self._listen()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._bring_to_an_end()
        except TimeoutError:
            found = await self._workers[-1].journal.journal.load(self._call_id)
            raise Wrong(f"hung: {found and found[0]}") from None
        finally:
            await self._close()
        self._check()

    async def _start(self) -> None:
        journal = await self._store.worker()
        worker = Worker(journal, self._ledger, self._chance.choice((0, 1, 10)))
        self._workers.append(worker)
        await worker.hub.open()

    # --- what happens ------------------------------------------------------------------------

    async def _act(self) -> None:
        match self._chance.choice(
            ("attach", "attach", "answer", "answer", "answer", "hang up", "die", "stall")
        ):
            case "attach":
                await self._chance.choice(self._observers).attach(self._any_worker(), self._call_id)
            case "answer":
                self._answer(self._chance.choice(self._observers))
            case "hang up":
                await self._chance.choice(self._observers).hang_up()
            case "stall":
                self._any_worker().gate.stall(self._chance.randint(0, 5))
            case "die":
                stalled = [worker for worker in self._workers if worker.gate.stalled]
                if stalled:
                    await self._kill(self._chance.choice(stalled))

    def _any_worker(self) -> Worker:
        return self._chance.choice(self._workers)

    async def _kill(self, worker: Worker) -> None:
        self.crashes += 1
        worker.gate.die()
        await self._store.die(worker.journal.journal)
        self._workers.remove(worker)
        self._dead.append(worker)  # so that nothing of it goes before the end
        await self._start()

    def _answer(self, observer: Observer) -> None:
        if observer.peer is not None:
            for message, request_id in observer.peer.open(self._call_id).items():
                params = [self._call_id, request_id, f"{message} {self._chance.random():.3f}"]
                observer.peer.send("plexus_respond", params)
                if self._chance.random() < 0.5:
                    break

    def _listen(self) -> None:
        """What came to the observers."""
        for observer in self._observers:
            if observer.peer is None or observer.worker is None or observer.worker.gate.dead:
                continue
            for item in observer.peer.items.pop(self._call_id, ()):
                observer.peer.items.setdefault(self._call_id, [])
                match item["type"]:
                    case "data":
                        self._hear(observer, item)
                    case "done":
                        observer.done = True
                    case "error" if item["code"] != "attached_elsewhere":
                        raise Wrong(f"the call failed: {item}")
                    case "error":
                        observer.done = False
                    case "request" | "request_cancelled":
                        observer.peer.items[self._call_id].append(item)

    def _hear(self, observer: Observer, item: dict[str, Any]) -> None:
        number, content = item["number"], json.dumps(item["content"])
        if number != observer.seen + 1:
            raise Wrong(f"element {number} after {observer.seen}")
        observer.seen = number
        if self._said.setdefault(number, content) != content:
            raise Wrong(f"element {number} says {content}, and said {self._said[number]}")

    # --- the end -----------------------------------------------------------------------------

    async def _bring_to_an_end(self) -> None:
        for worker in self._workers:
            worker.gate.thaw()
        for observer in self._observers:
            await observer.attach(self._workers[0], self._call_id)
        rounds = 0
        while not all(observer.seen == ELEMENTS for observer in self._observers):
            await asyncio.sleep(SHORT / 4)
            self._listen()
            self._answer(self._observers[0])
            rounds += 1
            for observer in self._observers:
                if observer.done or rounds % 40 == 0:  # as a client does whose line is silent
                    observer.done = False
                    if observer.seen < ELEMENTS:
                        await observer.attach(self._workers[0], self._call_id)
        found = await self._workers[0].journal.journal.load(self._call_id)
        while found is None or found[0].status not in ENDED:
            await asyncio.sleep(SHORT)
            found = await self._workers[0].journal.journal.load(self._call_id)
        if found[0].status != "completed":
            raise Wrong(f"the call is {found[0].status}")

    async def _close(self) -> None:
        for worker in self._workers:
            worker.gate.thaw()
            await worker.hub.close(grace=0)

    def _check(self) -> None:
        if any(times > 1 for times in self._ledger.values()):
            raise Wrong(f"effects happened {self._ledger}")
        said = {number: json.loads(content) for number, content in self._said.items()}
        steps = [said[1]["step"], said[3]["step"]]
        for number, step in enumerate(steps):
            if step != "interrupted" and (step, self._ledger[number]) != (f"did {number}", 1):
                raise Wrong(f"{step}, but the effects are {self._ledger}")


def play_all(new_store: Callable[[], Any], seeds: Iterable[int]) -> int:
    """Play schedules, one after the other; gives the number of crashes. Raises `Wrong`."""
    return sum(asyncio.run(_play(new_store(), seed)) for seed in seeds)


async def _play(store: Any, seed: int) -> int:
    # What a dead worker leaves behind ends with the event loop; nobody is to hear of it.
    asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
    before, sweeper.SWEEP = sweeper.SWEEP, SHORT
    schedule = Play(store, seed)
    try:
        await schedule.run()
    except Wrong as wrong:
        raise Wrong(f"seed {seed}: {wrong}") from wrong
    finally:
        sweeper.SWEEP = before
        if hasattr(store, "close"):
            await store.close()
    return schedule.crashes

"""Workers in this process, which stall where they are told to, are lost and come back, and die.

A worker passes a **gate** before and after each operation of its journal and each effect of a step. Told to
stall, it stands still at one of them. Lost, it counts as gone while it stands there, and others take over
what it runs; when it goes on it is late, and must find out. A dead one never passes a gate again.
"""

import asyncio
import inspect
import itertools
import json
from collections import Counter
from typing import Any

from crash.person import KEY, SAID
from journal_contract import Store
from midcall import Ask, AskError, Hub, TimedOut, method
from midcall.errors import StepInterrupted
from midcall.journal.contract import Journal
from midcall.journal.durable import DurableCalls
from midcall.mcp import mcp_of
from midcall.plexus.protocol import Connection

QUESTIONS = 3
LIMIT = 60.0
"""Seconds that the second question waits for its answer."""
WAIT = 3600.0
"""Seconds that a call waits for somebody to come back."""

_ids = itertools.count(1)


class Gate:
    """Where a worker may be made to stand still."""

    def __init__(self) -> None:
        self.left: int | None = None
        """How many times it is still passed."""
        self._open = asyncio.Event()
        self._open.set()
        self.dead = False

    @property
    def stalled(self) -> bool:
        return not self._open.is_set()

    def stall(self, after: int) -> None:
        self.left = after

    def thaw(self) -> None:
        self.left = None
        if not self.dead:
            self._open.set()

    def die(self) -> None:
        self.dead = True
        self._open.clear()

    async def passed(self) -> None:
        if self.left is not None and not self.stalled:
            if self.left == 0:
                self._open.clear()
            self.left -= 1
        await self._open.wait()


class Gated:
    """A journal with gates around what it does."""

    def __init__(self, journal: Journal, gate: Gate) -> None:
        set_here = super().__setattr__
        set_here("journal", journal)
        set_here("gate", gate)
        set_here("under_way", Counter())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.journal, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def operate(*args: Any, **kwargs: Any) -> Any:
            await self.gate.passed()
            self.under_way[name] += 1
            try:
                result = await found(*args, **kwargs)
            finally:
                self.under_way[name] -= 1
            await self.gate.passed()
            return result

        return operate

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.journal, name, value)

    @property
    def busy(self) -> bool:
        """Whether an operation is under way that comes to its end by itself."""
        return any(count for name, count in self.under_way.items() if name != "wait")


class Ledger:
    """What steps have done, whoever did it."""

    def __init__(self) -> None:
        self.done: Counter[tuple[str, int]] = Counter()


class Wizard:
    """A step, a question, a step, a question..., and a step."""

    def __init__(self, gate: Gate, ledger: Ledger) -> None:
        self._gate = gate
        self._ledger = ledger

    async def _act(self, run: str, number: int) -> str:
        await self._gate.passed()
        self._ledger.done[run, number] += 1
        await self._gate.passed()
        return f"{run} {number}"

    @method
    async def run(self, run: str, ask: Ask) -> list[str]:
        """Ask, and tell what came."""
        said = []
        for number in range(QUESTIONS + 1):
            try:
                said.append(f"did {await ask.step(self._act, run, number)}")
            except StepInterrupted:
                said.append("interrupted")
            if number < QUESTIONS:
                try:
                    said.append(await ask.prompt(f"{number}", timeout=LIMIT if number == 1 else None))
                except TimedOut:
                    said.append("silence")
                except AskError:
                    said.append("refused")
        return said


class Sent:
    """A request, and what came of it."""

    def __init__(self, id: int, worker: "Worker", params: dict[str, Any]) -> None:
        self.id = id
        self.worker = worker
        self.params = params
        self.response: dict[str, Any] | None = None
        self.dropped = False
        """Whether its client waits no more: it was cancelled, or its worker died."""

    @property
    def open(self) -> bool:
        return self.response is None and not self.dropped


class Worker:
    """A worker and its one client."""

    def __init__(self, journal: Journal, ledger: Ledger, parked_calls: int) -> None:
        self.gate = Gate()
        self.parked_calls = parked_calls
        self.journal = Gated(journal, self.gate)
        self.hub = Hub("model").register(Wizard(self.gate, ledger), namespace="wizard")
        self.durable = self.hub.durable = DurableCalls(
            self.hub, self.journal, time_limit=WAIT, parked_calls=parked_calls
        )
        mcp_of(self.hub)
        self.lost = False
        self._connection = Connection(self.hub, self._receive, raw=False)
        self._sent: dict[int, Sent] = {}

    @property
    def alive(self) -> bool:
        return not self.gate.dead

    @property
    def well(self) -> bool:
        """Whether it runs, as far as anybody knows."""
        return self.alive and not self.lost and not self.gate.stalled

    def send(self, params: dict[str, Any], key: str | None = None) -> Sent:
        """Start a request."""
        sent = Sent(next(_ids), self, params)
        self._sent[sent.id] = sent
        meta = SAID if key is None else {**SAID, KEY: key}
        self._tell({"id": sent.id, "method": "tools/call", "params": {**params, "_meta": meta}})
        return sent

    def cancel(self, sent: Sent) -> None:
        """Tell that nobody waits for a request any more."""
        sent.dropped = True
        self._tell({"method": "notifications/cancelled", "params": {"requestId": sent.id}})

    def die(self) -> None:
        """End as if killed: whoever waits hears that the line is gone."""
        self.gate.die()
        for sent in self._sent.values():
            sent.dropped = sent.response is None

    def _tell(self, message: dict[str, Any]) -> None:
        self._connection.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def _receive(self, data: bytes) -> None:
        message = json.loads(data)
        if self.alive and message.get("id") in self._sent:
            self._sent[message["id"]].response = message


class Fleet:
    """Workers on one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ledger = Ledger()
        self.workers: list[Worker] = []

    async def start(self, parked_calls: int) -> Worker:
        worker = Worker(await self.store.worker(), self.ledger, parked_calls)
        self.workers.append(worker)
        await worker.hub.open()
        return worker

    async def die(self, worker: Worker) -> None:
        worker.die()
        await self.store.die(worker.journal.journal)

    async def lose(self, worker: Worker) -> None:
        """It stands still for so long that it counts as gone."""
        worker.lost = True
        await self.store.freeze(worker.journal.journal)

    async def come_back(self, worker: Worker) -> None:
        worker.lost = False
        await self.store.thaw(worker.journal.journal)
        worker.gate.thaw()

    async def quiet(self) -> None:
        """Let everything run that can, until nothing does."""
        calm = 0
        while calm < 3:
            for _ in range(25):
                await asyncio.sleep(0)
            if any(worker.journal.busy for worker in self.workers):
                calm = 0
                await asyncio.sleep(0.0005)
            else:
                calm += 1

    async def close(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # what ends may begin something else
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=0.1)
        for worker in self.workers:
            await worker.journal.journal.close()

"""Chaos: workers are killed, frozen, stopped and started while callers answer through any of them.

`Fleet` is the workers, `Caller` somebody who calls the wizard of `workers_app` and will not give up, and `chaos`
lets the two loose on each other. In the end every call must have come to its end, with the answers that were
given; each effect is done once, or not more than once if the tool was told that it was interrupted; and
whoever asks again for something is told the same.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driving import LIMIT
from mcp_oracle import MODERN
from mcp_peers import META, http
from peers import HERE, command, environment, free_port
from workers_app import COLOURS, INTERRUPTED, STEPS

TROUBLE = (OSError, EOFError, TimeoutError, ValueError, IndexError)
"""What a caller sees of a worker that is gone: it tries again."""


class Fleet:
    """Workers with a port each, or with one port that they share."""

    def __init__(
        self, folder: Path, store: str, count: int, *, lease: float = 2.0, shared: bool = False
    ) -> None:
        self.ledger = folder / "ledger"
        self.log = folder / "log"
        self.shared = shared
        self.lease = lease
        self.count = count
        self.ports = [free_port()] if shared else [free_port() for _ in range(count)]
        self._environment = {
            **environment(),
            "LEDGER": str(self.ledger),
            "STORE": store,
            "LEASE": str(lease),
            "PACE": "0.1",
        }
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.frozen: set[int] = set()

    def start(self, port: int, *more: str) -> None:
        workers = ("--workers", str(self.count)) if self.shared else ()
        with self.log.open("ab") as log:
            self._processes[port] = subprocess.Popen(
                command("serve", "workers_app:hub", "--port", str(port), "--log-level", "warning", "--grace", "1",
                        *workers, *more),
                cwd=HERE, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def until_ready(self, limit: float = LIMIT) -> None:
        async with asyncio.timeout(limit):
            for port in self.ports:
                while True:
                    process = self._processes[port]
                    assert process.poll() is None, f"it ended with {process.poll()}: {self.log.read_text()}"
                    with contextlib.suppress(*TROUBLE):
                        await tool(port, "work.pid", {}, limit=2)
                        break
                    await asyncio.sleep(0.05)

    def pids(self) -> list[int]:
        """The processes that serve."""
        if not self.shared:
            return [p.pid for p in self._processes.values() if p.poll() is None]
        (parent,) = self._processes.values()
        return children(parent.pid)

    def kill(self, pid: int) -> None:
        self.frozen.discard(pid)
        send(pid, signal.SIGKILL)

    def freeze(self, pid: int) -> None:
        self.frozen.add(pid)
        send(pid, signal.SIGSTOP)

    def thaw(self, pid: int) -> None:
        self.frozen.discard(pid)
        send(pid, signal.SIGCONT)

    def start_the_dead(self) -> int:
        """Start workers in the place of those that have ended, unless their parent does."""
        started = 0
        for port, process in list(self._processes.items()):
            if not self.shared and process.poll() is not None:
                self.start(port)
                started += 1
        return started

    def renew(self) -> None:
        """Have all workers of a parent replaced."""
        (parent,) = self._processes.values()
        parent.send_signal(signal.SIGHUP)

    def close(self) -> None:
        for pid in list(self.frozen):
            self.thaw(pid)
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def effects(self) -> list[dict[str, str]]:
        return effects(self.ledger)

    def waits(self, port: int) -> bool:
        """Whether a worker waits, or has waited, for a call that another one runs."""
        waits = Path(f"{self.ledger}.waits")
        return waits.exists() and str(self._processes[port].pid) in waits.read_text().splitlines()

    def enough(self) -> None:
        """Have what takes a while end."""
        Path(f"{self.ledger}.enough").touch()


def effects(ledger: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# --- callers --------------------------------------------------------------------------------


async def post(port: int, params: dict[str, Any], key: str | None, limit: float) -> dict[str, Any]:
    """Send `tools/call` on a connection of its own; give the response."""
    meta: dict[str, Any] = {
        f"{META}protocolVersion": MODERN,
        f"{META}clientCapabilities": {"elicitation": {}},
    }
    if key is not None:
        meta["dev.midcall/idempotencyKey"] = key
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}}
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": params["name"],
    }
    async with asyncio.timeout(limit):
        response = await http(port, "POST", headers, json.dumps(message).encode())
        try:
            async for came in response.messages():
                if "method" not in came:
                    return dict(came)
        finally:
            await response.drop()
    raise EOFError("no response came")


async def tool(port: int, name: str, arguments: dict[str, Any], limit: float = LIMIT) -> Any:
    """What a plain tool gives."""
    response = await post(port, {"name": name, "arguments": arguments}, None, limit)
    return json.loads(response["result"]["content"][0]["text"])


@dataclass
class Caller:
    """Somebody who calls the wizard, answers it through any worker, and tries again until he is told."""

    run: str
    ports: list[int]
    rng: random.Random
    seen: Counter[str] = field(default_factory=Counter)
    limits: tuple[float, float] = (2.0, 6.0)
    told: list[tuple[dict[str, Any], Any]] = field(default_factory=list)
    """What was asked for, and what came."""

    def __post_init__(self) -> None:
        self.answers = {
            "name": f"Ann of {self.run}",
            "colour": self.rng.choice(COLOURS),
            "sure": self.rng.random() < 0.5,
        }
        self._params: dict[str, Any] = {"name": "work.wizard", "arguments": {"run": self.run}}
        self._more: dict[str, Any] = {}
        self.result: Any = None

    async def step(self, duplicates: float = 0.15) -> bool:
        """One round: send what is to be sent until there is an outcome. Whether it was the last one."""
        request = {**self._params, **self._more}
        if self.rng.random() < duplicates:
            outcome, other = await asyncio.gather(self._until_told(request), self._until_told(request))
            self.seen["duplicates"] += 1
            if "inputRequests" not in outcome and is_open(outcome):
                outcome, other = other, outcome
            self._same(request, outcome, other)
        else:
            outcome = await self._until_told(request)
        if not is_open(outcome):
            assert not outcome.get("isError"), (self.run, outcome)
            self.result = json.loads(outcome["content"][0]["text"])
            self.told.append((request, outcome))
            return True
        self._more = {"requestState": outcome["requestState"]}
        if "inputRequests" in outcome:
            self.told.append((request, outcome))
            self._more["inputResponses"] = {key: self._answer(key) for key in outcome["inputRequests"]}
        else:
            self.seen["told to come back"] += 1
        return False

    async def ask_again(self) -> None:
        """Repeat something that was asked before: what comes is how the call stands now."""
        request, _ = self.rng.choice(self.told)
        self._same(request, self.told[-1][1], await self._until_told(request))
        self.seen["asked again later"] += 1

    def check(self, effects: list[dict[str, str]]) -> None:
        """Everything was as it should be."""
        assert self.result["answers"] == list(self.answers.values()), (self.run, self.result)
        for step in STEPS:
            done = [effect["made"] for effect in effects if effect["step"] == step]
            made = self.result["made"][step]
            if made == INTERRUPTED:
                self.seen["steps interrupted"] += 1
                assert len(done) <= 1, (self.run, step, effects)
            else:
                assert done == [made], (self.run, step, made, effects)

    def _answer(self, key: str) -> dict[str, Any]:
        answer = self.answers[key]
        name = {"name": "text", "colour": "choice", "sure": "confirmed"}[key]
        return {"action": "accept", "content": {name: answer}}

    def _same(self, request: dict[str, Any], outcome: dict[str, Any], other: dict[str, Any]) -> None:
        """What came a second time: never less than what came before."""
        if is_open(other) and "inputRequests" not in other:
            return  # told to come back for it
        before, after = self._stage(outcome), self._stage(other)
        assert after > before or outcome == other, (self.run, request, outcome, other)

    def _stage(self, outcome: dict[str, Any]) -> int:
        """How far the call was."""
        asked = outcome.get("inputRequests")
        return len(self.answers) if asked is None else min(map(list(self.answers).index, asked))

    async def _until_told(self, request: dict[str, Any]) -> dict[str, Any]:
        patience = 1.0
        while True:
            port = self.rng.choice(self.ports)
            try:
                response = await post(port, request, self.run, patience * self.rng.uniform(*self.limits))
            except TROUBLE as error:
                if isinstance(error, TimeoutError):
                    patience *= 1.5  # the machine may have other things to do
                self.seen[f"tried again after {type(error).__name__}"] += 1
                await asyncio.sleep(self.rng.uniform(0.02, 0.3))
                continue
            if "result" in response:
                return dict(response["result"])
            error_data = response["error"].get("data") or {}
            assert error_data.get("code") == "journal_error", (self.run, response)
            self.seen["told that the journal is away"] += 1
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))


def is_open(outcome: dict[str, Any]) -> bool:
    return outcome.get("resultType") == "input_required"


# --- both -----------------------------------------------------------------------------------


async def trouble(fleet: Fleet, rng: random.Random, seen: Counter[str], pause: float) -> None:
    """Kill, freeze, stop and start workers, until cancelled."""
    async with asyncio.TaskGroup() as group:
        while len(fleet.pids()) < fleet.count:
            await asyncio.sleep(0.1)  # a fleet that is not there yet cannot be in trouble
        while True:
            await asyncio.sleep(rng.uniform(0.5, 1.5) * pause)
            seen["workers started"] += fleet.start_the_dead()
            awake = [pid for pid in fleet.pids() if pid not in fleet.frozen]
            if len(awake) < 2:
                continue
            pid = rng.choice(awake)
            what = rng.random()
            if what < 0.45:
                fleet.kill(pid)
                seen["workers killed"] += 1
            elif what < 0.8:
                fleet.freeze(pid)
                seen["workers frozen"] += 1
                group.create_task(_thaw_later(fleet, pid, rng.uniform(1.2, 2.5) * fleet.lease))
            elif fleet.shared and what < 0.9:
                fleet.renew()
                seen["all workers renewed"] += 1
            else:
                send(pid, signal.SIGTERM)
                seen["workers stopped"] += 1


async def _thaw_later(fleet: Fleet, pid: int, seconds: float) -> None:
    await asyncio.sleep(seconds)
    fleet.thaw(pid)


async def chaos(
    fleet: Fleet,
    *,
    calls: int,
    seconds: float,
    seed: int,
    at_once: int = 32,
    pause: float = 1.0,
    halfway: Callable[[], Any] | None = None,
) -> Counter[str]:
    """Let callers loose on the fleet, for some seconds and for not much more than that.

    First all calls wait, at the same time. Then the trouble begins; they are answered at random moments, and a
    few others come.
    """
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for port in fleet.ports:
        fleet.start(port)
    await fleet.until_ready()
    callers = [
        Caller(f"{seed}-{number}", fleet.ports, random.Random(f"{seed}-{number}"), seen)
        for number in range(calls + calls // 10)
    ]
    turns = asyncio.Semaphore(at_once)

    async def one(caller: Caller, moments: list[float]) -> None:
        for moment in moments:
            await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
            async with turns:
                if await caller.step():
                    return
        while True:
            async with turns:
                if await caller.step():
                    return

    async def begin(caller: Caller) -> None:
        async with turns:
            assert not await caller.step()

    async with asyncio.timeout(3 * seconds + LIMIT):
        await asyncio.gather(*(begin(caller) for caller in callers[:calls]))
    counted = await tool(fleet.ports[0], "work.count", {})
    assert counted == {"waiting": calls}, counted
    seen["calls waiting at the same time"] = counted["waiting"]

    began = time.monotonic()
    breaking = asyncio.ensure_future(trouble(fleet, rng, seen, pause))
    try:
        async with asyncio.timeout(3 * seconds + LIMIT), asyncio.TaskGroup() as group:
            for caller in callers:
                moments = sorted(rng.uniform(0.1, 1.0) * seconds for _ in range(3))
                group.create_task(one(caller, moments))
            if halfway is not None:
                await asyncio.sleep(0.5 * seconds)
                await asyncio.to_thread(halfway)
    finally:
        breaking.cancel()
        await asyncio.gather(breaking, return_exceptions=True)
    if breaking.done() and not breaking.cancelled():
        breaking.result()
    seen["seconds"] = round(time.monotonic() - began)
    for pid in list(fleet.frozen):
        fleet.thaw(pid)
    fleet.start_the_dead()
    await fleet.until_ready()
    await asyncio.gather(*(caller.ask_again() for caller in rng.sample(callers, min(calls, 40))))
    await asyncio.sleep(1)  # what was frozen has had time to act
    done: dict[str, list[dict[str, str]]] = {}
    for effect in fleet.effects():
        done.setdefault(effect["run"], []).append(effect)
    for caller in callers:
        caller.check(done.get(caller.run, []))
    counted = await tool(fleet.ports[0], "work.count", {})
    assert counted == {"completed": len(callers)}, counted
    log = fleet.log.read_text()
    assert "Traceback" not in log, log[-5000:]
    seen["calls completed"] = len(callers)
    seen["effects"] = sum(len(some) for some in done.values())
    return seen

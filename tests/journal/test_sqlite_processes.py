"""Several processes on one SQLite journal: they are killed, and stand still, and others go on."""

import asyncio
import json
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT, drive, until
from midcall.journal.contract import Busy, Claimed, Parking, Settled
from midcall.journal.sqlite import LEASE, SqliteJournal
from peers import HERE
from sqlite_worker import record


class Process:
    """A worker of `sqlite_worker.py`."""

    def __init__(self, path: Path, lease: float = LEASE) -> None:
        self._running = subprocess.Popen(
            [sys.executable, HERE / "sqlite_worker.py", path, str(lease)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.worker = self.read()

    def ask(self, what: str, *given: Any) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps([what, *given]) + "\n")
        self._running.stdin.flush()

    def read(self) -> str:
        assert self._running.stdout is not None
        return self._running.stdout.readline().strip()

    def do(self, what: str, *given: Any) -> str:
        self.ask(what, *given)
        return self.read()

    def send(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    def rest(self) -> list[str]:
        """All that it still said, once it has ended."""
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        self._running.stdin.close()
        return self._running.stdout.read().split("\n")[:-1]  # the last line may have been cut

    def end(self) -> int:
        if self._running.poll() is None:
            self._running.send_signal(signal.SIGCONT)
            self._running.kill()
        with self._running:  # closes its pipes, and waits for it
            pass
        return self._running.returncode


@contextmanager
def process(path: Path, lease: float = LEASE) -> Iterator[Process]:
    running = Process(path, lease)
    try:
        yield running
    finally:
        running.end()


class Sign:
    """The sign of life of a worker: when it last stirred."""

    def __init__(self, path: Path, worker: str) -> None:
        self._file = path.with_name(f"{path.name}.workers") / worker

    def age(self) -> None:
        """Have it be old."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("<d", time.monotonic() - 10 * LIMIT))

    async def until_new(self) -> None:
        while time.monotonic() - struct.unpack("<d", self._file.read_bytes())[0] > LIMIT:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def opened(path: Path, lease: float = LEASE) -> Any:
    journal = SqliteJournal(path, lease=lease)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def test_all_that_was_acknowledged_outlives_a_kill(path: Path) -> None:
    said: dict[str, set[str]] = {"created": set(), "claimed": set(), "appended": set(), "settled": set()}
    chance = random.Random(7)
    for number in range(4):
        with process(path) as victim:
            victim.ask("churn", f"run{number}")
            heard = [victim.read() for _ in range(chance.randrange(150, 600))]
            victim.send(signal.SIGKILL)
            for line in (*heard, *victim.rest()):
                what, call_id = line.split()
                said[what].add(call_id)
    assert len(said["settled"]) > 100
    # They differ if a process was killed in the middle of something.
    assert said["created"] > said["settled"]

    async def main() -> None:
        async with opened(path) as journal:
            await journal.check()
            for call_id in said["created"]:
                loaded = await journal.load(call_id)
                assert loaded is not None, call_id
                call, entries = loaded
                keys = [entry.key for entry in entries]
                assert call.arguments == b"a" * 300
                assert await journal.wait(call_id, 0, 0) == b"asked"
                if call_id in said["settled"]:
                    assert (call.status, keys) == ("completed", ["1", "2"])
                    assert await journal.claim(call_id, 1) == Settled(b"result")
                elif call_id in said["appended"]:
                    assert keys == ["1", "2"]
                elif call_id in said["claimed"]:
                    assert call.status in ("running", "completed")
            left = await journal.due(10_000)
            assert {call.status for call in left} <= {"running"}  # none, if all waited just then
            for call in left:  # the dead do not hold them
                assert isinstance(await journal.claim(call.id, call.segment), Claimed)
            counts = await journal.count()
            assert counts["completed"] >= len(said["settled"])
            signs = path.with_name(f"{path.name}.workers").iterdir()
            assert {sign.name for sign in signs} == {journal.worker, ".turn"}

    drive(main())


def test_an_outcome_reaches_who_waits_in_another_process(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            with process(path) as other:
                assert other.do("create", "a") == "done"
                claim = await journal.claim("a", 1)
                assert isinstance(claim, Claimed)
                assert other.do("claim", "a", 1) == "Busy"
                other.ask("wait", "a", 1)
                await asyncio.sleep(0.3)
                await journal.settle("a", claim.call.fence, 1, b"result", Parking(status="completed"))
                assert await asyncio.to_thread(other.read) == str(b"result")

                assert other.do("create", "b") == "done"
                assert other.do("claim", "b", 1) == "Claimed"
                waiter = asyncio.create_task(journal.wait("b", 1, 5 * LIMIT))
                await asyncio.sleep(0.2)
                assert other.do("settle", "b", 1, 1) == "done"
                assert await waiter == b"result"

    drive(main())


def test_a_process_that_is_killed_is_gone_at_once(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            with process(path) as other:
                other.do("create", "a")
                assert other.do("claim", "a", 1) == "Claimed"
                claim = await journal.claim("a", 1)
                assert isinstance(claim, Busy)
                assert claim.call.owner == other.worker
                other.send(signal.SIGKILL)
                other.rest()
                assert [call.id for call in await journal.due()] == ["a"]
                assert isinstance(await journal.claim("a", 1), Claimed)

    drive(main())


def test_a_process_that_lives_says_so_though_it_does_nothing(path: Path) -> None:
    async def main() -> None:
        async with opened(path, lease=LIMIT) as journal:
            with process(path, lease=0.5) as other:
                sign = Sign(path, other.worker)
                other.do("create", "a")
                assert other.do("claim", "a", 1) == "Claimed"
                sign.age()
                await sign.until_new()
                assert isinstance(await journal.claim("a", 1), Busy)

    drive(main())


def test_a_process_that_stands_still_is_taken_over_and_cannot_act_when_it_goes_on(path: Path) -> None:
    async def main() -> None:
        async with opened(path, lease=LIMIT) as journal:
            with process(path, lease=LIMIT) as other:
                sign = Sign(path, other.worker)
                other.do("create", "a")
                assert other.do("claim", "a", 1) == "Claimed"
                other.send(signal.SIGSTOP)
                assert isinstance(await journal.claim("a", 1), Busy)
                while isinstance(claim := await journal.claim("a", 1), Busy):
                    sign.age()  # it may stop a little later than it is told
                assert isinstance(claim, Claimed)
                other.send(signal.SIGCONT)
                assert other.do("append", "a", 1) == "Fenced"
                assert other.do("settle", "a", 1, 1) == "Fenced"
                assert other.do("claim", "a", 1) == "Busy"
                loaded = await journal.load("a")
                assert loaded is not None
                assert loaded == (claim.call, [])

    drive(main())


def test_a_process_that_stood_still_unnoticed_goes_on(path: Path) -> None:
    async def main() -> None:
        async with opened(path, lease=LIMIT) as journal:
            with process(path, lease=0.5) as other:
                sign = Sign(path, other.worker)
                other.do("create", "a")
                other.do("claim", "a", 1)
                other.send(signal.SIGSTOP)
                sign.age()
                other.send(signal.SIGCONT)
                await sign.until_new()
                assert isinstance(await journal.claim("a", 1), Busy)
                assert other.do("settle", "a", 1, 1) == "done"

    drive(main())


def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    def settled(line: str) -> bool:
        return line.startswith("settled")

    with process(path) as one, process(path) as two:
        said: list[str] = []
        for name, running in (("one", one), ("two", two)):
            running.ask("churn", name)
        for running in (one, two):
            heard: list[str] = []
            while sum(map(settled, heard)) <= 20:
                heard.append(running.read())
            said += heard
        for running in (one, two):
            running.send(signal.SIGKILL)
            said += running.rest()

    async def main() -> None:
        async with opened(path) as journal:
            await journal.check()
            for line in filter(settled, said):
                assert await journal.wait(line.split()[1], 1, 0) == b"result"

    drive(main())


def test_a_process_that_writes_all_the_time_lets_others_in(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            with process(path) as other, ThreadPoolExecutor() as threads:
                said = 0

                def listen() -> None:
                    nonlocal said
                    while other.read():
                        said += 1

                other.ask("churn", "other")
                threads.submit(listen)
                await until(lambda: said > 0)
                meanwhile = []
                for number in range(50):
                    before = said
                    await journal.create(record(f"{number}"), (), b"asked")
                    meanwhile.append(said - before)
                assert sorted(meanwhile)[40] < 500, meanwhile  # a transaction of the other is 16 of them
                other.send(signal.SIGKILL)

    drive(main())


def test_a_process_that_does_not_close_its_journal_ends_all_the_same(path: Path) -> None:
    running = Process(path)
    assert running.do("create", "a") == "done"
    assert running.rest() == []
    assert running.end() == 0

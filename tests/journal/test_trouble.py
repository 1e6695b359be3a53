"""A journal in trouble, as callers see it: a full disk, a read-only or damaged file, a database that is away.

Whoever needs the journal is told clearly; nothing is half written; plain calls go on; and after the repair the
call goes on where it was.
"""

import asyncio
import json
import random
import resource
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import postgres_server
from driving import LIMIT, until
from peers import HERE, command, environment, free_port
from workers_chaos import post, tool

WIZARD = {"name": "work.wizard", "arguments": {"run": "r"}}
OTHER = {"name": "work.wizard", "arguments": {"run": "other"}}
ANSWERS = {"name": {"text": "Ann"}, "colour": {"choice": "red"}, "sure": {"confirmed": True}}


class Server:
    """A server on a journal; started and stopped as the test likes."""

    def __init__(self, folder: Path, journal: str) -> None:
        self.port = free_port()
        self.ledger = folder / "ledger"
        self._log = folder / "log"
        self._journal = journal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command("serve", "workers_app:hub", "--port", str(self.port), "--journal", self._journal,
                        "--log-level", "warning", "--grace", "1"),
                cwd=HERE, env={**environment(), "LEDGER": str(self.ledger)}, stdin=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + LIMIT
        while not self.answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)

    def refuses_to_start(self, *words: str) -> None:
        """It says why, in one line and with an exit code."""
        ran = subprocess.run(
            command("serve", "workers_app:hub", "--port", str(self.port), "--journal", self._journal),
            cwd=HERE, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
            check=False,
        )  # fmt: skip
        assert ran.returncode == 1, ran.stderr
        assert "Traceback" not in ran.stderr, ran.stderr
        (line,) = [line for line in ran.stderr.splitlines() if line.startswith("midcall: ")]
        assert all(word in line for word in words), line

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(LIMIT)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def effects(self, run: str = "r") -> int:
        """How many effects the call has had that waits; others have other names."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return sum(json.loads(line)["run"] == run for line in lines)

    # --- what a caller sees ------------------------------------------------------------------

    async def call(self, params: dict[str, Any] = WIZARD) -> dict[str, Any]:
        return (await post(self.port, params, None, LIMIT))["result"]

    async def answer(self, asked: dict[str, Any], params: dict[str, Any] = WIZARD) -> dict[str, Any]:
        return await self.call(answered(asked, params))

    async def is_refused(self, params: dict[str, Any], *words: str) -> None:
        """The caller is told what is wrong, as an error of the protocol that may go away."""
        response = await post(self.port, params, None, LIMIT)
        assert "error" in response, response
        error = response["error"]
        assert error["code"] == -32603
        assert error["data"]["code"] == "journal_error", error
        assert all(word in error["message"] for word in words), error
        assert self._journal not in error["message"]

    def answers(self) -> bool:
        """It takes requests: it has looked through its journal by now, where it listened before."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=LIMIT):
                return True
        except OSError:
            return False

    def ready(self) -> int:
        """What a load balancer is told."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready") as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    async def serves_plain_calls(self) -> None:
        assert isinstance(await tool(self.port, "work.pid", {}), int)

    async def goes_on(self, asked: dict[str, Any]) -> None:
        """The call that waited goes on to its end, and new ones can be made."""
        for effects in (2, 3, 4):
            asked = await self.answer(asked)
            assert self.effects() == effects, "each step once"
        assert not asked.get("isError"), asked
        assert asked["content"][0]["text"].startswith('{"answers":["Ann","red",true]')
        assert (await self.call(OTHER))["resultType"] == "input_required"


def answered(asked: dict[str, Any], params: dict[str, Any] = WIZARD) -> dict[str, Any]:
    responses = {key: {"action": "accept", "content": ANSWERS[key]} for key in asked["inputRequests"]}
    return {**params, "requestState": asked["requestState"], "inputResponses": responses}


@contextmanager
def serving(folder: Path, journal: str) -> Iterator[Server]:
    server = Server(folder, journal)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
    assert "Traceback" not in server.log, server.log


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "midcall-test", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(path: Path) -> None:
    """Write until nothing fits any more."""
    with path.open("ab", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


def test_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    async def run(server: Server) -> None:
        asked = await server.call()
        assert server.effects() == 1
        fill(small_disk / "other")
        large = {"name": "work.wizard", "arguments": {"run": "r" * 300_000}}
        await server.is_refused(large, "disk is full")
        small = {"name": "work.wizard", "arguments": {"run": "s" * 3000}}
        while "result" in await post(server.port, small, None, LIMIT):
            pass  # it fits into what the file of the journal has
        await server.is_refused(small, "disk is full")
        await server.is_refused(answered(asked), "disk is full")
        assert server.ready() == 503, "no new caller should come here"
        await server.serves_plain_calls()
        (small_disk / "other").unlink()
        waiting = (await tool(server.port, "work.count", {}))["waiting"]
        await server.goes_on(asked)
        counted = await tool(server.port, "work.count", {})
        assert counted == {"waiting": waiting, "completed": 1}, "nothing is half written"
        while server.ready() != 200:
            await asyncio.sleep(0.1)  # what it knows of the journal is remembered for a moment

    with serving(tmp_path, str(small_disk / "journal.db")) as server:
        asyncio.run(run(server))


def test_a_disk_that_is_full_at_the_start(tmp_path: Path, small_disk: Path) -> None:
    fill(small_disk / "other")
    Server(tmp_path, str(small_disk / "journal.db")).refuses_to_start("journal.db", "disk is full")


def test_a_disk_that_is_read_only_at_the_start(tmp_path: Path, small_disk: Path) -> None:
    async def run(server: Server) -> None:
        asked = await server.call()
        subprocess.run(["mount", "-o", "bind", str(small_disk), str(small_disk)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(small_disk)], check=True)
            server.stop()
            server.refuses_to_start("journal.db")
        finally:
            subprocess.run(["umount", "-l", str(small_disk)], check=True)
        server.start()
        await server.goes_on(asked)

    with serving(tmp_path, str(small_disk / "journal.db")) as server:
        asyncio.run(run(server))


@contextmanager
def read_only(*files: Path) -> Iterator[None]:
    """Nobody can write to these any more, whoever has opened them already."""
    tried = subprocess.run(["chattr", "+i", *map(str, files)], capture_output=True, check=False)
    try:
        if tried.returncode != 0:
            pytest.skip("files of this disk cannot be made read-only while they are open")
        yield
    finally:
        subprocess.run(["chattr", "-i", *map(str, files)], capture_output=True, check=False)


@contextmanager
def no_larger_files(server: Server, size: int) -> Iterator[None]:
    """The server's files cannot grow beyond a size; any user can have this."""
    before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def unwritable(how: str, server: Server, journal: Path) -> Iterator[None]:
    wal = journal.with_name(f"{journal.name}-wal")
    with read_only(journal, wal) if how == "read-only" else no_larger_files(server, wal.stat().st_size):
        yield


ways = pytest.mark.parametrize("how", ["read-only", "may not grow"])


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no limits can be set on others")
@ways
def test_a_file_that_cannot_be_written_while_calls_wait(tmp_path: Path, how: str) -> None:
    journal = tmp_path / "journal.db"

    async def run(server: Server) -> None:
        asked = await server.call()
        with unwritable(how, server, journal):
            await server.is_refused(OTHER, "journal", "cannot be written")
            await server.is_refused(answered(asked), "cannot be written")
            await server.serves_plain_calls()
            assert await tool(server.port, "work.count", {}) == {"waiting": 1}, "it can still be read"
        assert server.effects() == 1, "nothing was done for an answer that was refused"
        await server.goes_on(asked)
        assert await tool(server.port, "work.count", {}) == {"waiting": 1, "completed": 1}

    with serving(tmp_path, str(journal)) as server:
        asyncio.run(run(server))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no limits can be set on others")
@ways
def test_a_file_that_cannot_be_written_while_a_call_runs(tmp_path: Path, how: str) -> None:
    journal, hold = tmp_path / "journal.db", tmp_path / "hold"
    thinking = {"name": "work.thinking", "arguments": {"run": "r", "hold": str(hold)}}
    hold.touch()

    async def run(server: Server) -> None:
        asked = await server.call(thinking)
        answer = {**thinking, "requestState": asked["requestState"]}
        answer["inputResponses"] = {"who": {"action": "accept", "content": {"text": "Ann"}}}
        refused = asyncio.ensure_future(server.is_refused(answer, "cannot be written"))
        await until(hold.with_suffix(".reached").exists)  # what it did is in the journal
        with unwritable(how, server, journal):
            hold.unlink()
            await refused
            assert server.effects() == 1, "no step begins that the journal does not know of"
        ended = await server.call(answer)
        assert ended["content"][0]["text"] == "It is Ann", "the tool has not heard of it"
        assert server.effects() == 2, "each step once"

    with serving(tmp_path, str(journal)) as server:
        asyncio.run(run(server))


def test_a_file_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    away = tmp_path / "away"

    async def run(server: Server) -> None:
        asked = await server.call()
        journal.rename(away)
        await server.is_refused(OTHER, "gone")
        await server.is_refused(answered(asked), "gone")
        await server.serves_plain_calls()
        away.rename(journal)
        assert server.effects() == 1, "nothing was done for an answer that was refused"
        await server.goes_on(asked)

    with serving(tmp_path, str(journal)) as server:
        asyncio.run(run(server))


def test_a_file_that_is_damaged_at_the_start(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"

    async def run(server: Server) -> None:
        asked = await server.call()
        server.stop()
        sound = journal.read_bytes()
        damaged = bytearray(sound)
        damaged[4096 : len(sound)] = random.Random(1).randbytes(len(sound) - 4096)
        journal.write_bytes(damaged)
        server.refuses_to_start("damaged", "backup")
        assert journal.read_bytes() == damaged, "it is not touched"
        journal.write_bytes(sound)
        server.start()
        journal.with_name("journal.db-wal").unlink(missing_ok=True)
        await server.goes_on(asked)

    with serving(tmp_path, str(journal)) as server:
        asyncio.run(run(server))


def test_a_file_that_is_damaged_while_calls_wait(tmp_path: Path) -> None:
    """It is larger than what the server remembers of it."""
    journal = tmp_path / "journal.db"
    others = [{"name": "work.wizard", "arguments": {"run": f"{n} {'x' * 200_000}"}} for n in range(80)]

    async def run(server: Server) -> None:
        asked = await server.call()
        waiting = [await server.call(other) for other in others]
        server.stop()
        server.start()
        sound = journal.read_bytes()
        with journal.open("r+b") as file:
            file.seek(4096)
            file.write(random.Random(1).randbytes(len(sound) - 4096))
        for one, other in zip(waiting, others, strict=True):
            response = await post(server.port, answered(one, other), None, LIMIT)
            if "error" in response:
                break
        done = server.effects(other["arguments"]["run"])
        assert done in (1, 2), "the damage may be met before the next step, or when it is to be written down"
        await server.is_refused(answered(one, other), "damaged", "backup")
        await server.is_refused(OTHER, "damaged", "backup")
        await server.serves_plain_calls()
        assert server.effects(other["arguments"]["run"]) == done, "nothing was done for a refused answer"
        for old in tmp_path.glob("journal.db-*"):
            old.unlink()
        (tmp_path / "backup").write_bytes(sound)
        (tmp_path / "backup").rename(journal)
        await server.goes_on(asked)
        counted = await tool(server.port, "work.count", {})
        assert counted == {"waiting": len(others) + 1, "completed": 1}, "nothing is half written"

    with serving(tmp_path, str(journal)) as server:
        asyncio.run(run(server))


def test_a_postgres_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    database = postgres_server.Server().start()

    async def run(server: Server) -> None:
        asked = await server.call()
        await asyncio.to_thread(database.halt, "immediate")
        await server.serves_plain_calls()
        refused = asyncio.ensure_future(server.is_refused(OTHER))
        await server.is_refused(answered(asked))
        await refused
        await server.serves_plain_calls()
        assert server.effects() == 1, "nothing was done for an answer that was refused"
        await asyncio.to_thread(database.start)
        end = time.monotonic() + LIMIT
        while True:  # the first one after it may still meet a connection of before
            response = await post(server.port, answered(asked), None, LIMIT)
            if "result" in response:
                break
            assert time.monotonic() < end, response
            await asyncio.sleep(0.2)
        asked = response["result"]
        asked = await server.answer(asked)
        asked = await server.answer(asked)
        assert asked["content"][0]["text"].startswith('{"answers":["Ann","red",true]')
        assert server.effects() == 4
        assert await tool(server.port, "work.count", {}) == {"completed": 1}, "nothing is half written"

    try:
        with serving(tmp_path, database.dsn) as server:
            asyncio.run(run(server))
            server.stop()
            database.halt()
            server.refuses_to_start("PostgreSQL")
    finally:
        database.stop()

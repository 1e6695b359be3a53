"""Processes that write conversations are killed at any moment: what they were told is written is there, whole."""

import asyncio
import json
import random
import sys
from pathlib import Path

import pytest

import postgres_server
from driving import LIMIT, drive
from peers import HERE
from talk_worker import body_of, journal_at, line_of

KILLS = 8
WORKERS = 3


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    return f"{postgres_server.shared()} killed_{random.randrange(10**9)}"


async def killed(place: str, name: str, said: dict[str, int], chance: random.Random) -> None:
    """Start a worker, and kill it after a while; `said` is what it has said of each kind, last."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "talk_worker.py"), place, name, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    left = chance.randint(3, 60)
    while left:
        what, number = json.loads(await process.stdout.readline())
        said[what] = number
        left -= 1
    process.kill()
    for line in (await process.stdout.read()).splitlines(keepends=True):
        if line.endswith(b"\n"):
            what, number = json.loads(line)
            said[what] = number
    await process.wait()


def test_what_was_said_to_be_written_is_there_and_whole_after_any_kill(place: str) -> None:
    async def main() -> None:
        chance = random.Random(1)
        names = [f"worker-{n}" for n in range(WORKERS)]
        said: dict[str, dict[str, int]] = {name: {} for name in names}
        for _ in range(KILLS):
            await asyncio.gather(*(killed(place, name, said[name], chance) for name in names))
            journal = journal_at(place)
            await journal.open()
            store = journal.conversations
            for name in names:
                told = said[name]
                kept, run = await store.load(name, name), await store.run(name)
                assert run is not None
                assert told.get("saved", 0) <= (kept.version if kept else 0) <= told.get("saving", 0)
                if kept is not None:
                    version = kept.version
                    assert (kept.title, kept.body) == (f"{name} {version}", body_of(name, version))
                assert told.get("appended", 0) <= run.lines <= told.get("appending", 0)
                written = [line_of(name, number) for number in range(1, run.lines + 1)]
                assert list(await store.lines(name, 0)) == written
            await journal.close()

    drive(main(), limit=2.5 * LIMIT)  # it starts many processes

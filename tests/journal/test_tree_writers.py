"""Several processes write to one tree: nothing that one of them was told is lost, also if another is killed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

import postgres_server
from driving import LIMIT, drive
from peers import environment
from trees_worker import check_history, read, store_at

HERE = Path(__file__).parents[1] / "support"
WORKERS = 3


def race(journal: str, *, killed: int | None) -> None:
    async def begin() -> str:
        hub, store = store_at(journal)
        tree = await store.create("ada", "all")
        await hub.close()
        return tree.id

    tree_id = drive(begin())
    workers = [
        subprocess.Popen(
            [sys.executable, HERE / "trees_worker.py", journal, tree_id, str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            bufsize=0,  # a line that is read takes none of the next ones from what is read at the end
        )
        for number in range(WORKERS)
    ]
    outputs = [b""] * WORKERS
    try:
        if killed is not None:
            stdout = workers[killed].stdout
            assert stdout is not None
            while outputs[killed].count(b"\n") < 60:
                outputs[killed] += stdout.readline()
            workers[killed].kill()
        for number, worker in enumerate(workers):
            rest, errors = worker.communicate(timeout=LIMIT)
            outputs[number] += rest
            assert number == killed or worker.returncode == 0, errors.decode()
    finally:
        for worker in workers:
            worker.kill()
    drive(check_history(journal, tree_id, [read(output) for output in outputs]))


@pytest.mark.parametrize("killed", [None, 1], ids=["all end", "one is killed"])
def test_writers_on_a_file_lose_nothing(tmp_path: Path, killed: int | None) -> None:
    race(str(tmp_path / "journal.db"), killed=killed)


@pytest.mark.parametrize("killed", [None, 1], ids=["all end", "one is killed"])
def test_writers_on_postgres_lose_nothing(killed: int | None) -> None:
    server = urlsplit(postgres_server.shared())
    database = f"trees_{os.getpid()}_{killed is None}".lower()

    async def sql(statement: str) -> None:
        connection = await asyncpg.connect(server.geturl())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(sql(f"CREATE DATABASE {database}"))
    try:
        race(server._replace(path=f"/{database}").geturl(), killed=killed)
    finally:
        asyncio.run(sql(f"DROP DATABASE {database} WITH (FORCE)"))

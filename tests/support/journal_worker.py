"""A worker on a PostgreSQL journal in a process of its own, told line by line what to do.

    python tests/support/journal_worker.py '{"dsn": "...", "schema": "...", "lease": 1.0}'

Each line is a method of the journal and its arguments; what it gives comes back as a line. `Worker` is the other end.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from driving import LIMIT
from midcall.journal.contract import Entry, Parking
from midcall.journal.postgres import PostgresJournal
from peers import LARGE, environment


class Worker:
    """A journal in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.name = ""

    async def do(self, method: str, *arguments: Any) -> Any:
        """Have it done: gives the result, or the name of the error, with the seconds since the epoch."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([method, *arguments]).encode() + b"\n")
        async with asyncio.timeout(LIMIT):
            line = await self.process.stdout.readline()
        assert line, "the worker is gone"
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def worker(**options: Any) -> AsyncIterator[Worker]:
    """A worker process, opened; killed in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__)),
        json.dumps(options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
        limit=LARGE,
    )
    try:
        one = Worker(process)
        one.name = (await one.do("open"))["result"]
        yield one
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _do(journal: PostgresJournal, method: str, *given: Any) -> Any:
    match method, given:
        case "open", _:
            await journal.open()
            return journal.worker
        case "append", (call_id, fence, keys):
            return await journal.append(call_id, fence, [Entry(key, "f", "done") for key in keys])
        case "settle", (call_id, fence, segment, outcome, status):
            return await journal.settle(call_id, fence, segment, outcome.encode(), Parking(status=status))
        case "claim", _:
            claim = await journal.claim(*given)
            return {
                "kind": type(claim).__name__,
                "fence": getattr(getattr(claim, "call", None), "fence", None),
            }
        case "wait", _:
            outcome = await journal.wait(*given)
            return None if outcome is None else outcome.decode()
    return msgspec.to_builtins(await getattr(journal, method)(*given))


async def _main(options: dict[str, Any]) -> None:
    import time

    journal = PostgresJournal(**options)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        answer: dict[str, Any] = {}
        try:
            answer["result"] = await _do(journal, *json.loads(line))
        except Exception as error:
            answer["error"] = type(error).__name__
        print(json.dumps(answer | {"at": time.time()}), flush=True)
    await journal.close()


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))

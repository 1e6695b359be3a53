"""A worker on an SQLite journal in a process of its own: does what it reads from its input, line by line.

A line is a JSON list, of what to do and with what; it answers with the name of what came of it. `churn` goes on
for ever, and says which calls were acknowledged.
"""

import asyncio
import json
import sys
import time
from typing import Any

from midcall.journal.contract import CallRecord, Entry, JournalError, Parking
from midcall.journal.sqlite import SqliteJournal


def record(call_id: str) -> CallRecord:
    now = time.time()
    return CallRecord(
        id=call_id,
        name="m",
        arguments=b"a" * 300,
        created=now,
        expires=now + 3600,
        status="waiting",
        segment=1,
    )


async def cycle(journal: SqliteJournal, call_id: str) -> None:
    """A question is asked and answered; what is on the disk by now is said at once."""
    await journal.create(record(call_id), [Entry("1", "f", "done", b"1")], b"asked")
    print(f"created {call_id}", flush=True)
    claim: Any = await journal.claim(call_id, 1)
    print(f"claimed {call_id}", flush=True)
    await journal.append(call_id, claim.call.fence, [Entry("2", "f", "done", b"2")])
    print(f"appended {call_id}", flush=True)
    await journal.settle(call_id, claim.call.fence, 1, b"result", Parking(status="completed"))
    print(f"settled {call_id}", flush=True)


async def churn(journal: SqliteJournal, name: str) -> None:
    async def on_and_on(lane: int) -> None:
        number = 0
        while True:
            await cycle(journal, f"{name}-{lane}-{number}")
            number += 1

    await asyncio.gather(*(on_and_on(lane) for lane in range(16)))


async def do(journal: SqliteJournal, what: str, given: list[Any]) -> str:
    match what, given:
        case "create", [call_id]:
            await journal.create(record(call_id), (), b"asked")
        case "append", [call_id, fence]:
            await journal.append(call_id, fence, [Entry("late", "f", "done")])
        case "settle", [call_id, fence, segment]:
            await journal.settle(call_id, fence, segment, b"result", Parking(status="completed"))
        case "claim", [call_id, segment]:
            return type(await journal.claim(call_id, segment)).__name__
        case "wait", [call_id, segment]:
            return str(await journal.wait(call_id, segment, 500))
        case "churn", [name]:
            await churn(journal, name)
        case _:
            raise ValueError(what)
    return "done"


async def main(path: str, lease: float) -> None:
    journal = SqliteJournal(path, lease=lease)
    await journal.open()
    print(journal.worker, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, *given = json.loads(line)
        try:
            print(await do(journal, what, given), flush=True)
        except JournalError as error:
            print(type(error).__name__, flush=True)
    # It ends without closing the journal, as a program may.


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))

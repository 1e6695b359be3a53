"""A process that writes conversations and runs, for tests that kill it: `talk_worker.py PLACE NAME`.

Before each write it says what it is about to do, and after it that it was done, a line of JSON each.
"""

import asyncio
import json
import sys

from midcall.journal.contract import ConversationRecord
from midcall.journal.postgres import PostgresJournal
from midcall.journal.seal import KeyRing
from midcall.journal.sqlite import SqliteJournal

RING = KeyRing([b"k" * 32])
SIZE = 5_000
"""Of a body: several pages of a database."""


def journal_at(place: str) -> SqliteJournal | PostgresJournal:
    """A path, or the address of a database and a schema."""
    if place.startswith("postgres"):
        url, _, schema = place.partition(" ")
        return PostgresJournal(url, schema=schema, seal=RING, connections=2)
    return SqliteJournal(place, seal=RING)


def body_of(name: str, version: int) -> bytes:
    return f"{name} {version} ".encode() * (SIZE // 10)


def line_of(name: str, number: int) -> bytes:
    return f"{name} line {number}".encode()


def say(what: str, number: int) -> None:
    sys.stdout.write(json.dumps([what, number]) + "\n")
    sys.stdout.flush()


async def main(place: str, name: str) -> None:
    journal = journal_at(place)
    await journal.open()
    store = journal.conversations
    kept, run = await store.load(name, name), await store.run(name)
    await store.begin_run(name, name, name)

    async def save(version: int) -> None:
        while True:
            version += 1
            say("saving", version)
            record = ConversationRecord(
                id=name,
                principal=name,
                version=version,
                updated=float(version),
                title=f"{name} {version}",
                body=body_of(name, version),
            )
            await store.save(record)
            say("saved", version)

    async def append(count: int) -> None:
        while True:
            size = 1 + count % 3
            say("appending", count + size)
            lines = [line_of(name, number) for number in range(count + 1, count + size + 1)]
            await store.append(name, count + 1, lines, ended=False)
            count += size
            say("appended", count)

    await asyncio.gather(save(0 if kept is None else kept.version), append(0 if run is None else run.lines))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

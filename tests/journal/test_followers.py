"""Two connections follow a durable call while workers die: see `crash.followers`."""

import tempfile
from pathlib import Path

import pytest

from crash.followers import play_all
from journal_model import MemoryStore
from sqlite_store import SqliteStore


@pytest.mark.parametrize("seeds", [range(n, n + 25) for n in range(0, 100, 25)], ids=str)
def test_two_who_follow_a_call_hear_the_same_whatever_crashes(seeds: range) -> None:
    assert play_all(MemoryStore, seeds)


def test_two_who_follow_a_call_hear_the_same_whatever_crashes_on_a_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        places = (Path(folder) / f"{number}.db" for number in range(100))
        play_all(lambda: SqliteStore(next(places)), range(1000, 1012))

"""The page about the architecture names files that there are, every room, and moves that a call can make."""

import re
from pathlib import Path
from typing import cast, get_args

from midcall.journal.contract import Status
from midcall.journal.state import MOVES, Operation
from source import SOURCE, modules

PAGE = (Path(__file__).parents[2] / "docs" / "topics" / "architecture.md").read_text()

_FILE = re.compile(r"(?<![\w/])((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)\b")
_FOLDER = re.compile(r"`((?:[a-z_0-9]+/)+)`")
_ELSEWHERE = {"tests/repository/test_rooms.py", "scripts/walks.py"}


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(_FILE.findall(PAGE)) - _ELSEWHERE
    assert {name for name in named if not (SOURCE / name).is_file()} == set()
    assert {name for name in _FOLDER.findall(PAGE) if not (SOURCE / name).is_dir()} == set()
    assert len(named) > 40


def test_every_folder_has_its_row_in_the_table_of_rooms() -> None:
    folders = {room for room, path in modules() if path.parent != SOURCE}
    rows = re.findall(r"^\| `([a-z]+)/` \|", PAGE, re.MULTILINE)
    assert set(rows) == folders


def test_the_table_of_states_has_only_moves_that_the_code_allows() -> None:
    table = PAGE.split("| operation |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines()[2:]]
    assert {operation for operation, _, _ in rows} == set(MOVES)
    seen = set()
    for operation, came_from, reached in rows:
        moves = MOVES[cast("Operation", operation)]
        sources = moves if came_from.startswith("any") else _statuses(came_from) or [None]
        for source in sources:
            assert set(_statuses(reached)) <= moves[source], (operation, source, reached)
            seen |= {source, *_statuses(reached)}
    assert seen - {None} == set(get_args(Status))


def _statuses(cell: str) -> list[Status]:
    return [status for status in get_args(Status) if status in re.findall(r"\w+", cell)]

"""The map in CONTRIBUTING.md is that of the files as they are."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "map.py"


def test_the_map_of_rooms_and_files_is_up_to_date() -> None:
    made = runpy.run_path(str(SCRIPT))
    assert made["PAGE"].read_text() == made["page"](), "`make map` writes it again"

"""A call passes through few files, so that its way can be read in one sitting: counted in real servers."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "walks.py"

MOST = {
    "a plain call over HTTP": 18,
    "MRTR: a question with its retry": 30,
    "the same, killed between the two": 30,
    "a chat turn that asks, with its answer": 36,
    "a mounted server's question, with its retry": 35,
    "a client's call_tools over HTTP": 18,
}


def test_no_walk_passes_through_more_files_than_it_should() -> None:
    command = [sys.executable, str(SCRIPT)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = re.findall(r"^(\S.*?) +(\d+) +(\d+)$", ran.stdout, re.MULTILINE)
    counted = {name: int(files) for name, files, _ in rows}
    assert counted.keys() == MOST.keys(), ran.stdout
    assert all(counted[name] <= most for name, most in MOST.items()), ran.stdout

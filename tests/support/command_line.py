"""Running the command line without a terminal, and its exit codes."""

import subprocess
import sys
from pathlib import Path

from driving import LIMIT
from peers import HERE

MIDCALL = (sys.executable, "-m", "midcall")
SUCCESS, FAILED, USAGE, CANCELLED, NOT_ANSWERED = range(5)


def midcall(*argv: str, stdin: str = "", cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    """Run `midcall` to its end."""
    return subprocess.run(
        [*MIDCALL, *argv],
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

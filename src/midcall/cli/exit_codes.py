"""How a command ends: the exit codes, and the error that ends one early with a line for the person."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of `midcall`; the first three are as everywhere, the others as in `--help`."""

    SUCCESS = 0
    FAILED = 1
    USAGE = 2
    CANCELLED = 3
    NOT_ANSWERED = 4


EXIT_CODES_HELP = """\
exit codes:
  0  the call succeeded
  1  the tool failed
  2  wrong usage, unknown method or invalid arguments
  3  cancelled: Ctrl-C, or a question was cancelled
  4  not answered: a question timed out, could not be asked or had no matching --answer
"""


def with_details(error: Exception) -> str:
    """An error in one line, with what its message keeps from callers: which journal, and why it fails."""
    return " ".join((str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))))


class UsageError(Exception):
    """Ends the command with exit code 2; its text is one line for the person."""


class Interrupted(Exception):
    """The person pressed Ctrl-C, or closed the terminal, instead of answering."""

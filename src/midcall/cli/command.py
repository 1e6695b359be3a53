"""What all commands have in common: how their options are read, and how they end."""

import argparse
import os
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from midcall.hub import Hub

TARGET_HELP = "a hub, such as app:hub, or an MCP server: a URL, a quoted command, or an mcp.json"


class Exit(IntEnum):
    """The exit codes of `midcall`; the first three are as everywhere, the others as in `--help`."""

    SUCCESS = 0
    FAILED = 1
    USAGE = 2
    CANCELLED = 3
    NOT_ANSWERED = 4
    CANNOT_LISTEN = 5


EXIT_CODES_HELP = """\
exit codes:
  0  the call succeeded
  1  the tool failed
  2  wrong usage, unknown method or invalid arguments
  3  cancelled: Ctrl-C, or a question was cancelled
  4  not answered: a question timed out, could not be asked or had no matching --answer
  5  cannot listen: the port is in use, or the address does not belong to this machine
"""


class CommandParser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in two lines, not below a list of all options."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(Exit.USAGE, f"{self.prog}: error: {message}\nTry `{self.prog} --help`.\n")


def reason(error: Exception) -> str:
    """An error in one line: `keys.txt: No such file or directory`, without the number that Python adds."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def with_details(error: Exception) -> str:
    """An error in one line, with what its message keeps from callers: which journal, and why it fails."""
    return " ".join((str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))))


class UsageError(Exception):
    """Ends the command, with exit code 2 if nothing else is said; its text is one line for the person."""

    exit = Exit.USAGE


class CannotListen(UsageError):
    """The server's address cannot be had."""

    exit = Exit.CANNOT_LISTEN


class Interrupted(Exception):
    """The person pressed Ctrl-C, or closed the terminal, instead of answering."""


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """The parser of a command, whose options are to be added."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def seconds(text: str) -> float:
    """Reads an option that is a time."""
    try:
        time = float(text)
    except ValueError:
        time = -1.0
    if not 0 <= time < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return time


def add_selection(parser: argparse._ActionsContainer) -> None:
    """Add the options that leave out a part of a hub."""
    for option, help in (
        ("--only", "only these methods, resources and prompts"),
        ("--without", "all but these methods, resources and prompts"),
    ):
        parser.add_argument(
            option,
            metavar="PATTERN",
            type=_patterns,
            action="extend",
            default=[],
            help=f"{help}: tag:NAME, or a name as in 'files.*'; may be repeated",
        )


def _patterns(text: str) -> list[str]:
    """Patterns with commas between them; if there is none, an empty one, which is refused."""
    return [one.strip() for one in text.split(",") if one.strip()] or [""]


def restrict(hub: "Hub", args: argparse.Namespace) -> None:
    """Leave out what `--only` and `--without` say. Raises `UsageError`."""
    from midcall.errors import RegistrationError

    if args.only or args.without:
        try:
            hub.restrict(only=args.only, without=args.without)
        except RegistrationError as error:
            options = " ".join(name for name in ("--only", "--without") if getattr(args, name[2:]))
            raise UsageError(f"{options}: {error}") from None


def work_in(folder: str | None) -> None:
    """Go to the folder that `--cwd` names, if it does."""
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise UsageError(f"--cwd: {reason(error)}") from None

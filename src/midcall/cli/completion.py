"""`midcall completion SHELL`: prints what a shell needs to complete the command line."""

import argparse
from typing import Any

from midcall.cli.command import Exit, add_command

SHELLS = ("bash", "zsh", "fish")

_EXAMPLES = """\
examples:
  eval "$(midcall completion bash)"                                      in ~/.bashrc
  eval "$(midcall completion zsh)"                                       in ~/.zshrc, after compinit
  midcall completion fish > ~/.config/fish/completions/midcall.fish
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "completion",
        run,
        help="print a completion script for bash, zsh or fish",
        description="Print a script that makes a shell complete the commands and options of midcall.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(args: argparse.Namespace) -> Exit:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    from midcall.cli.output import write_out

    write_out(shellcode(["midcall"], shell=args.shell))
    return Exit.SUCCESS


def complete(parser: argparse.ArgumentParser) -> None:
    """If a shell asks, say what could come next, and end."""
    from argcomplete import autocomplete

    autocomplete(parser, always_complete_options="long")

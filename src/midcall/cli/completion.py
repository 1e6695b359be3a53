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
        description="Print a script that makes a shell complete the commands and options of midcall, and the "
        "names of a hub's methods.",
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


def add_method(parser: argparse.ArgumentParser, **how: Any) -> None:
    """Add the argument METHOD, which a shell completes with the names of the methods of TARGET."""
    argument: Any = parser.add_argument("method", metavar="METHOD", **how)
    argument.completer = _methods


def _methods(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The names of a hub's methods. No MCP server is started or called for this."""
    from midcall.cli.command import UsageError
    from midcall.cli.load_target import is_server, load_hub

    if is_server(parsed_args.target):
        return []
    try:
        return [name for name, _ in load_hub(parsed_args.target).methods()]
    except UsageError:  # there is no place to say it: whoever runs the command is told
        return []

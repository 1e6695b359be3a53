"""The command line: `midcall serve`, `call`, `tools` and others.

Each command is one file with `add_parser` (its options) and `run` (what it does). Only `run` imports
the rest of midcall, pydantic, rich and questionary, so that `--help` is quick. This is the one room
that knows all others.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from midcall.cli.call import add_parser as add_call
from midcall.cli.calls import add_parser as add_calls
from midcall.cli.command import EXIT_CODES_HELP, CommandParser, Exit, UsageError
from midcall.cli.completion import add_parser as add_completion
from midcall.cli.completion import complete
from midcall.cli.demo import add_parser as add_demo
from midcall.cli.dev import add_parser as add_dev
from midcall.cli.fsm import add_parser as add_fsm
from midcall.cli.inspect import add_parser as add_inspect
from midcall.cli.install import add_parser as add_install
from midcall.cli.proxy import add_parser as add_proxy
from midcall.cli.serve import add_parser as add_serve
from midcall.cli.tools import add_parser as add_tools
from midcall.logs import printable
from midcall.version import __version__

_EXAMPLES = """\
examples:
  midcall demo                                     a chat with a tool that asks
  midcall tools app:hub                            list what you can call
  midcall call app:hub files.delete --ids a        call it and answer here
  midcall call app:hub files.delete --ids a --yes  the same in a script
  midcall serve app:hub --port 8000                MCP at http://127.0.0.1:8000/mcp, WebSocket at /ws
  midcall dev app:hub                              the same while you write it: reloads, opens the page
  midcall serve app:hub --stdio                    JSON-RPC 2.0, one message per line
  midcall calls list --target app:hub              calls that wait for a person
  midcall install claude-code app:hub --write      add it to an MCP client
  midcall tools "npx -y some-server"               the same for any MCP server
  midcall proxy --auth-tokens keys.txt -- npx -y some-server

TARGET is where the hub is: a module or a file, and the name in it (`hub` if left out):
`app:hub`, `package.module:hub`, `path/to/app.py:hub`. A function that makes a hub is called.
For `tools` and `call` it may also be an MCP server: a URL, a command in quotes, or the settings of
another client (`mcp.json`).

"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:
        complete(parser)
    args = parser.parse_args(argv)
    args.command_line = list(sys.argv[1:] if argv is None else argv)
    if args.run is None:
        parser.print_help()
        return Exit.USAGE
    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except UsageError as error:
        print(printable(f"midcall: {error}"), file=sys.stderr)  # noqa: T201
        return error.exit
    except KeyboardInterrupt:
        _leave(Exit.CANCELLED)
    except BrokenPipeError:
        _leave(Exit.FAILED)
    except BaseExceptionGroup as group:
        if group.subgroup(BrokenPipeError) is None:
            raise
        _leave(Exit.FAILED)
    return code


def _leave(code: Exit) -> NoReturn:
    """End at once: nobody reads the output, or a thread that cannot be stopped is still at work."""
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="midcall",
        description="Serve and call tools that can stop in the middle and ask.",
        epilog=_EXAMPLES + EXIT_CODES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"midcall {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add_command in (
        add_serve, add_dev, add_proxy, add_call, add_calls, add_tools, add_inspect, add_fsm, add_install,
        add_demo, add_completion,
    ):  # fmt: skip
        add_command(commands)
    return parser

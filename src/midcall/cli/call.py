"""`midcall call TARGET METHOD`: runs a method in this terminal and asks there."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from midcall.cli.command import (
    EXIT_CODES_HELP,
    TARGET_HELP,
    CommandParser,
    Exit,
    UsageError,
    add_command,
    add_selection,
    restrict,
    seconds,
)
from midcall.cli.completion import add_method

if TYPE_CHECKING:
    from midcall.cli.output import Screen
    from midcall.hub import Hub

_OPTIONS = ("--help", "--params", "--yes", "--answer", "--json", "--output", "--timeout", "--log-level")
_EXAMPLES = """\
The parameters of METHOD are flags: `midcall call TARGET METHOD --help` shows them. One that is a file takes
@path, or @- for standard input; @@ stands for a value that begins with an @.

examples:
  midcall call app:hub files.delete --ids a --ids b
  midcall call app:hub files.delete --params '{"ids": ["a", "b"]}' --yes
  midcall call app:hub setup.wizard --answer name=demo --answer select=full --answer 3=yes
  midcall call app:hub files.list --json | jq .content
  midcall call app:hub scans.read --file @page.png --output results
  midcall call "npx -y @modelcontextprotocol/server-everything" echo --message hello

In a terminal, you are asked there. Ctrl-C cancels the call; press it twice to exit at
once. Without a terminal, --yes and --answer supply the answers; a tool that asks anything
else is told that this caller cannot be asked.

"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "call",
        run,
        help="call a method and answer its questions here",
        description="Call a method of a hub, or a tool of an MCP server. Data goes to standard "
        "output, everything else to standard error.",
        epilog=_EXAMPLES + EXIT_CODES_HELP,
    )
    parser.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    add_method(parser, help="name of the method, such as files.delete")
    add_selection(parser)
    parser.add_argument("flags", metavar="...", nargs=argparse.REMAINDER, help="parameters and options")
    _add_options(parser)


def _add_options(parser: argparse._ActionsContainer) -> None:
    """The options that stand before or after METHOD."""
    parser.add_argument(
        "--params", metavar="JSON", help="all parameters as JSON; `-` for standard input, `@file`"
    )
    parser.add_argument("--yes", action="store_true", help="answer every yes-or-no question with yes")
    parser.add_argument(
        "--answer",
        action="append",
        metavar="KEY=VALUE",
        help="answer a question; KEY is its number, words of its message, its key or its kind (confirm, "
        "prompt, select, form, url, custom); VALUE is text or JSON. May be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print items as JSON, one per line")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="save the images, audio and files that the method returns in this folder",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long a question waits unless the tool sets a limit, 0 for no limit (default: no limit in a "
        "terminal, otherwise 30)",
    )
    parser.add_argument(
        "--log-level",
        default="error",
        choices=("debug", "info", "warning", "error"),
        help="how much midcall logs to standard error; `warning` shows the traceback of a failing tool",
    )


def run(args: argparse.Namespace) -> Exit:
    """Call the method; gives the exit code."""
    import asyncio

    from midcall.errors import LifespanError, MidcallError
    from midcall.logs import printable

    try:
        return asyncio.run(_open_and_call(args))
    except LifespanError as error:
        print(f"midcall: {printable(str(error))}", file=sys.stderr)  # noqa: T201
        return Exit.FAILED
    except MidcallError as error:  # the hub refused the call: nothing was started
        raise UsageError(str(error)) from None


async def _open_and_call(args: argparse.Namespace) -> Exit:
    import logging

    from midcall.cli.load_target import opened
    from midcall.logs import PrintableFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(logging.BASIC_FORMAT))
    logging.basicConfig(level=args.log_level.upper(), handlers=[handler])
    async with opened(args.target) as hub:
        restrict(hub, args)
        args, params = _read_flags(hub, args)
        logging.getLogger().setLevel(args.log_level.upper())
        await hub.start_lifespans()
        return await _call(hub, args, params)


def _read_flags(hub: "Hub", args: argparse.Namespace) -> tuple[argparse.Namespace, Any]:
    """Parse what stands after METHOD, by its schema: gives all options, and the parameters."""
    from midcall.cli.schema_fields import Flags, read_params
    from midcall.logs import printable

    schema = hub.schema(args.method)
    name = f"midcall call {args.target} {args.method}"
    parser = CommandParser(
        prog=name,
        usage=f"{name} [parameters] [options]",
        description=printable(schema["description"]),
        epilog=EXIT_CODES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    flags = Flags(parser, schema["params"], set(_OPTIONS))
    options = parser.add_argument_group("options")
    options.add_argument("-h", "--help", action="help", help="show this help message and exit")
    _add_options(options)
    parser.parse_args(flags.spelled(args.flags), namespace=args)
    params = {} if args.params is None else read_params(args.params)
    given = flags.read(args)
    if given and not isinstance(params, dict):
        raise UsageError("--params must be a JSON object where flags are given too")
    return args, {**params, **given} if given else params


async def _call(hub: "Hub", args: argparse.Namespace, params: Any) -> Exit:
    from midcall.cli.answers import GivenAnswers
    from midcall.cli.interactive_call import InteractiveCall
    from midcall.cli.output import has_person
    from midcall.hub import ATTACHED_TIME_LIMIT
    from midcall.questions import PERSON_KINDS

    answers = GivenAnswers(args.answer or (), yes=args.yes)
    person = has_person()
    default = None if person else ATTACHED_TIME_LIMIT
    time_limit = default if args.timeout is None else args.timeout or None
    supports = PERSON_KINDS if person else answers.kinds
    screen = _screen(args, person, hub.schema(args.method)["returns"])
    invocation = hub.call(args.method, params, supports=supports, time_limit=time_limit)
    return await InteractiveCall(invocation, screen, answers, person=person).run()


def _screen(args: argparse.Namespace, person: bool, returns: Any) -> "Screen":
    from midcall.cli.content import Folder
    from midcall.cli.output import JsonLines, Plain, Terminal

    folder = None if args.output is None else Folder(args.output)
    if args.json:
        return JsonLines(folder, returns)
    return Terminal(folder, returns) if person else Plain(folder, returns)

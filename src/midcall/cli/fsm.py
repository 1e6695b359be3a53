"""`midcall fsm`: look at the state machines of a hub, check and draw definitions, and run one."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midcall.cli.command import Exit, UsageError, add_command

if TYPE_CHECKING:
    from midcall.fsm.actions import Action
    from midcall.fsm.definition import Machine

_EXAMPLES = """\
examples:
  midcall fsm list app:hub
  midcall fsm show app:hub approval > approval.json     its definition
  midcall fsm check approval.json                       what is wrong with a definition
  midcall fsm draw app:hub approval --as svg > approval.svg
  midcall fsm draw approval.json --as mmd
  midcall fsm run app:hub approval '{"amount": 120}'    and be asked here
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    about = "List the state machines of a hub, check and draw definitions, and run them."
    brief = "list, check, draw and run state machines"
    parser: Any = add_command(commands, "fsm", run, help=brief, description=about, epilog=_EXAMPLES)
    parser.set_defaults(run=lambda _: parser.print_help() or Exit.USAGE)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    for name, help in (
        ("list", "list the machines of a hub"),
        ("show", "print the definition of a machine"),
        ("check", "check a machine for errors"),
        ("draw", "draw a machine"),
        ("run", "run a machine and answer its questions here"),
    ):
        one = add_command(actions, name, run, help=help, description=f"{help.capitalize()}.")
        one.set_defaults(action=name, id=None)
        or_file = "" if name in ("list", "run") else "; or a file with a definition in JSON"
        one.add_argument("target", metavar="TARGET", help=f"the hub, such as app:hub{or_file}")
        if name != "list":
            one.add_argument("id", metavar="ID", nargs=None if name == "run" else "?", help="which machine")
        if name == "draw":
            forms = ("dot", "mmd", "svg")
            one.add_argument(
                "--as", dest="form", choices=forms, default="dot", help="format (default: %(default)s)"
            )
        if name == "run":
            one.add_argument(
                "input",
                metavar="JSON",
                nargs="?",
                default="{}",
                help="the input of the machine, as JSON (default: %(default)s)",
            )


def run(args: argparse.Namespace) -> Exit:
    """Do it."""
    import asyncio

    from midcall.cli import main
    from midcall.errors import MidcallError
    from midcall.fsm.definition import read_machine
    from midcall.fsm.serve import NAMESPACE

    if args.action == "run":  # as `midcall call` does it, with all that it can ask
        name = args.id if "." in args.id else f"{NAMESPACE}.{args.id}"
        return Exit(main(["call", args.target, name, "--params", args.input]))
    try:
        if Path(args.target).suffix == ".json":
            return _show(args, read_machine(Path(args.target).read_bytes()), None)
        return asyncio.run(_look(args))
    except (OSError, MidcallError) as error:
        raise UsageError(f"{args.target}: {error}") from None


async def _look(args: argparse.Namespace) -> Exit:
    from midcall.cli.load_target import opened
    from midcall.fsm.serve import machines_of

    async with opened(args.target) as hub:
        found = machines_of(hub)
        by_path = dict(found.values())
        if args.action == "list":
            for path, one in by_path.items():
                print(f"{path}  {one.description}".rstrip())  # noqa: T201
            return Exit.SUCCESS
        if args.id is None and (args.action == "check" or len(found) == 1):
            return max([Exit.SUCCESS, *(_show(args, one.machine, one.actions) for one in by_path.values())])
        method = found[args.id][1] if args.id in found else by_path.get(args.id)
        if method is None:
            raise UsageError(f"There is no machine {args.id!r}; the hub has {', '.join(by_path) or 'none'}")
        return _show(args, method.machine, method.actions)


def _show(args: argparse.Namespace, machine: "Machine", actions: "dict[str, Action] | None") -> Exit:
    from msgspec import json

    from midcall.fsm import draw
    from midcall.fsm.checks import problems

    if args.action == "show":
        print(json.format(machine.to_json(), indent=2).decode())  # noqa: T201
    elif args.action == "draw":
        sys.stdout.write(draw.FORMS[args.form][0](machine))
    elif found := list(problems(machine, actions)):
        sys.stderr.writelines(f"{machine.id}: {told}\n" for told in found)
        return Exit.FAILED
    else:
        size = f"{len(machine.states)} states, {len(machine.transitions)} transitions, no fault"
        print(f"{machine.id}: {size}")  # noqa: T201
    return Exit.SUCCESS

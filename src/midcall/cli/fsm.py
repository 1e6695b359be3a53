"""`midcall fsm`: look at the state machines of a hub, check and draw definitions, and run one."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midcall.cli.command import Exit, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    parser = commands.add_parser(
        "fsm",
        help="list, check, draw and run state machines",
        description="Look at the state machines of a hub, check and draw definitions, and run one.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=lambda _: parser.print_help() or Exit.USAGE)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    where = "where the hub is, as in app:hub; or a file with a definition in JSON"
    for name, help, target in (
        ("list", "list the machines of a hub", "where the hub is, as in app:hub"),
        ("show", "print the definition of a machine", where),
        ("check", "say what is wrong with a machine", where),
        ("draw", "draw a machine", where),
        ("run", "run a machine, and be asked here", "where the hub is, as in app:hub"),
    ):
        one = actions.add_parser(name, help=help, description=f"{help.capitalize()}.", allow_abbrev=False)
        one.set_defaults(run=run, action=name)
        one.add_argument("target", metavar="TARGET", help=target)
        if name != "list":
            one.add_argument("id", metavar="ID", nargs=None if name == "run" else "?", help="which machine")
        if name == "draw":
            one.add_argument(
                "--as", dest="form", choices=("dot", "mmd", "svg"), default="dot", help="(default: dot)"
            )
        if name == "run":
            one.add_argument("input", metavar="JSON", nargs="?", default="{}", help="what it begins with")


def run(args: argparse.Namespace) -> Exit:
    """Do it."""
    if args.action == "run":
        return _run(args)
    import asyncio

    return asyncio.run(_look(args))


def _run(args: argparse.Namespace) -> Exit:
    """As `midcall call` does it, with all that it can ask."""
    from midcall.cli import main
    from midcall.fsm.serve import NAMESPACE

    return Exit(main(["call", args.target, f"{NAMESPACE}.{args.id}", "--params", args.input]))


async def _look(args: argparse.Namespace) -> Exit:
    from midcall.cli.load_target import opened
    from midcall.errors import MidcallError
    from midcall.fsm.serve import MachineMethod

    if Path(args.target).suffix == ".json":
        return _show(args, _read(args.target), {})
    async with opened(args.target) as hub:
        found = {path: method for path, method in hub.methods() if isinstance(method, MachineMethod)}
        if args.action == "list":
            for path, method in found.items():
                print(f"{path}  {method.description}".rstrip())  # noqa: T201
            return Exit.SUCCESS
        named = {method.name: method.registered for method in found.values()}
        if args.id is None and len(named) == 1:
            args.id = next(iter(named))
        if args.id not in named:
            raise UsageError(f"There is no machine {args.id!r}: there are {', '.join(named) or 'none'}")
        try:
            return _show(args, named[args.id].machine, named[args.id].actions)
        except MidcallError as error:
            raise UsageError(str(error)) from None


def _read(path: str) -> "Machine":
    from midcall.fsm.definition import MachineError, read_machine

    try:
        return read_machine(Path(path).read_bytes())
    except (OSError, MachineError) as error:
        raise UsageError(f"{path}: {error}") from None


def _show(args: argparse.Namespace, machine: "Machine", actions: "Mapping[str, Action]") -> Exit:
    from msgspec import json

    from midcall.fsm import draw

    match args.action:
        case "show":
            print(json.format(machine.to_json(), indent=2).decode())  # noqa: T201
        case "draw":
            forms = {"dot": draw.to_dot, "mmd": draw.to_mermaid, "svg": draw.to_svg}
            sys.stdout.write(forms[args.form](machine))
        case "check":
            return _check(machine, actions)
    return Exit.SUCCESS


def _check(machine: "Machine", actions: "Mapping[str, Action]") -> Exit:
    from midcall.fsm.checks import problems

    found = list(problems(machine, actions))
    for problem in found:
        print(f"{machine.id}: {problem}", file=sys.stderr)  # noqa: T201
    if not found:
        print(f"{machine.id}: {len(machine.states)} states, {len(machine.transitions)} transitions, no fault")  # noqa: T201
    return Exit.FAILED if found else Exit.SUCCESS

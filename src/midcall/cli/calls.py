"""`midcall calls`: look at calls that wait for a person, answer in their place, end them, move them.

On a journal, or through a server that runs. Only `answer` with `--target` runs the author's code, in this
process; all else only reads and writes the journal, or asks the server.
"""

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from midcall.cli.command import Exit, UsageError, add_command, seconds, with_details, work_in
from midcall.logs import printable

if TYPE_CHECKING:
    from midcall.cli.calls_actions import CallsAdmin
    from midcall.hub import Hub
    from midcall.journal.contract import Journal
    from midcall.journal.durable import DurableCalls

STATUSES = ("running", "waiting", "completed", "failed", "aborted", "expired", "diverged", "poisoned")
_RUNNING = ("answer", "fork")
"""The actions that run code of the hub."""

_ANSWER = (
    "an answer; KEY is the key of a question, its number, words of its message or its kind; VALUE is text "
    "or JSON"
)
TOKEN_VARIABLE = "MIDCALL_TOKEN"  # noqa: S105  a name

_EXAMPLES = """\
examples:
  midcall calls list --target app:hub                     the journal of `midcall serve app:hub`
  midcall calls list --journal postgresql://db/calls --status waiting --json
  midcall calls show ID --url http://127.0.0.1:8000       as the running server knows it
  midcall calls answer ID --url http://127.0.0.1:8000     answer here, on the person's behalf
  midcall calls answer ID name=Ada 2=yes --url http://127.0.0.1:8000
  midcall calls answer ID name=Ada --target app:hub       no server is running: resume the call here
  midcall calls abort ID --reason "wrong customer" --target app:hub
  midcall calls fork ID --at 3 --answer charge=no --target app:hub
  midcall calls export --all --journal calls.db > calls.jsonl
  midcall calls import calls.jsonl --journal postgresql://db/calls

"""
_EXIT_CODES = """\
exit codes:
  0  done
  1  the action failed, or the answered call failed
  2  wrong usage, or no such call
  3  cancelled: Ctrl-C
  4  not answered: an answer does not fit, or matches no question
"""


# --- options ----------------------------------------------------------------------------------


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""

    def show_help(args: argparse.Namespace) -> Exit:
        parser.print_help()
        return Exit.USAGE

    parser = add_command(
        commands,
        "calls",
        show_help,
        help="list, answer, abort, fork and move waiting calls",
        description="Manage calls that wait for a person, in a journal or on a running server.",
        epilog=_EXAMPLES + _EXIT_CODES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    _add_list(_action(actions, "list", "list calls, newest first"))
    _add_show(_action(actions, "show", "show everything about a call"))
    _add_answer(_action(actions, "answer", "answer on the person's behalf"))
    _add_abort(_action(actions, "abort", "end a call"))
    _add_fork(_action(actions, "fork", "start a new call from the middle of another"))
    _add_export(_action(actions, "export", "write calls as JSON, one per line"))
    _add_import(_action(actions, "import", "import exported calls"))


def _action(actions: Any, name: str, help: str) -> argparse.ArgumentParser:
    description = f"{help[0].upper()}{help[1:]}."
    parser = add_command(
        actions, name, run, help=help, description=description, epilog=_EXAMPLES + _EXIT_CODES
    )
    parser.set_defaults(action=name)
    where = parser.add_argument_group("which calls")
    where.add_argument("--url", help="the calls of a running server, such as http://127.0.0.1:8000")
    where.add_argument(
        "--token",
        help="a key for that server, with the scope midcall:admin, or midcall:import to import "
        f"(default: the variable {TOKEN_VARIABLE})",
    )
    where.add_argument(
        "--journal",
        metavar="PLACE",
        help="the calls in this journal: a file, or postgresql://... (default: the journal of "
        "`midcall serve TARGET`)",
    )
    where.add_argument(
        "--target",
        help="the hub, such as app:hub; only `answer` and `fork` run its code",
    )
    where.add_argument(
        "--encrypt-journal",
        action="store_true",
        help="the journal is encrypted with the keys in MIDCALL_KEYS; unencrypted values are refused",
    )
    where.add_argument("--cwd", metavar="DIR", help="work in this folder, like the server")
    return parser


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--status",
        action="append",
        choices=STATUSES,
        default=[],
        help="only calls with this status; may be repeated",
    )
    parser.add_argument("--name", metavar="METHOD", help="only calls of this method")
    parser.add_argument("--principal", metavar="NAME", help="only calls of this caller")
    parser.add_argument(
        "--limit", metavar="N", type=_positive, default=50, help="maximum number of calls (default: 50)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one call per line")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the call")
    parser.add_argument(
        "--values", action="store_true", help="include answers, step results and the final result"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_answer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the call")
    parser.add_argument(
        "answers",
        metavar="KEY=VALUE",
        nargs="*",
        help=f"{_ANSWER}. Without any, the questions are asked here",
    )
    _add_running(parser)
    refusals = parser.add_mutually_exclusive_group()
    refusals.add_argument("--decline", action="store_true", help="decline the remaining questions")
    refusals.add_argument("--cancel", action="store_true", help="cancel the remaining questions")


def _add_fork(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the call, which does not change")
    parser.add_argument(
        "--at",
        metavar="N",
        type=_natural,
        help="the new call has done the first N things that `show` lists, and goes on from there "
        "(default: all of them)",
    )
    parser.add_argument(
        "--answer",
        dest="answers",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help=f"{_ANSWER}, of those that the new call then asks; may be repeated",
    )
    _add_running(parser)


def _add_running(parser: argparse.ArgumentParser) -> None:
    """The options of what goes on with a call."""
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        help="with --target: how long the call waits for its next answer (default: as long as for this one)",
    )
    parser.add_argument("--engine", choices=("dbos",), help=argparse.SUPPRESS)  # to be refused clearly
    parser.add_argument("--json", action="store_true", help="print the resulting call as JSON")


def _add_abort(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the call")
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        default="An administrator aborted the call",
        help="reason to give to its caller",
    )


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="the id of the call")
    parser.add_argument("--all", action="store_true", help="all calls")
    parser.add_argument(
        "--status",
        action="append",
        choices=STATUSES,
        default=[],
        help="with --all: only calls with this status; may be repeated",
    )


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the output of `export`; - for standard input")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


# --- which calls ------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """Do it."""
    import asyncio

    from midcall.errors import MidcallError

    work_in(args.cwd)
    if args.url is not None and (args.journal is not None or args.target is not None):
        raise UsageError("--url is a server, which knows its journal and its code: leave out the others")
    try:
        return asyncio.run(_do(args))
    except MidcallError as error:
        print(printable(f"midcall: {with_details(error)}"), file=sys.stderr)  # noqa: T201
        return _EXIT_BY_CODE.get(error.code, Exit.FAILED)


_EXIT_BY_CODE = {
    "unknown_call": Exit.USAGE,
    "wrong_answer": Exit.NOT_ANSWERED,
    "unknown_request": Exit.NOT_ANSWERED,
}


async def _do(args: argparse.Namespace) -> Exit:
    from midcall.cli import calls_actions

    async with _admin(args) as opened:
        code: Exit = await getattr(calls_actions, f"{args.action}_calls")(opened, args)
        return code


def _admin(args: argparse.Namespace) -> "AbstractAsyncContextManager[CallsAdmin]":
    if args.url is not None:
        if args.action in _RUNNING and args.wait is not None:
            raise UsageError("--wait is for --target: a server has its own, see `midcall serve --wait`")
        return _of_server(args)
    if args.action in _RUNNING:
        if args.engine is not None:
            raise UsageError(
                "--engine is for `midcall serve`: give --url to have the call run there, or leave it out; "
                "then this command runs the call itself, and a server goes on with it if the command is ended"
            )
        if args.target is None:
            raise UsageError(
                "Where should the call resume? Pass --url for a running server, or --target to run it here"
            )
        return _of_target(args)
    return _of_journal(args)


@asynccontextmanager
async def _of_server(args: argparse.Namespace) -> "AsyncIterator[CallsAdmin]":
    import os

    from midcall.cli.remote_admin import RemoteAdmin

    yield RemoteAdmin(args.url, args.token or os.environ.get(TOKEN_VARIABLE))


@asynccontextmanager
async def _of_journal(args: argparse.Namespace) -> "AsyncIterator[CallsAdmin]":
    """A journal alone: nothing is run."""
    from midcall.journal.admin import Admin
    from midcall.mcp import CALL_KINDS

    reads = args.action in ("list", "show", "export")  # what is sealed is read with the keys, asked or not
    journal = _journal(args, create=args.action == "import", sealed=reads or args.encrypt_journal)
    await journal.open()
    try:
        yield Admin(journal, CALL_KINDS)
    finally:
        await journal.close()


@asynccontextmanager
async def _of_target(args: argparse.Namespace) -> "AsyncIterator[CallsAdmin]":
    """A journal and the code: this process is one of its workers, for the one call that goes on."""
    from midcall.chat.dialect import ChatCalls
    from midcall.cli.load_target import load_hub
    from midcall.journal.admin import Admin
    from midcall.journal.durable import DurableCalls
    from midcall.mcp import CALL_KINDS, mcp_of

    hub: Hub = load_hub(args.target)
    if hub.durable is None or args.journal is not None:
        hub.durable = DurableCalls(hub, _journal(args, create=False, sealed=args.encrypt_journal))
    hub.durable.looks_after = False
    hub.durable.engine = None  # an engine would have this process go on with other calls too
    _ = mcp_of(hub)  # so that calls of MCP can go on
    ChatCalls(hub).keep_with(hub.durable)  # and those of a chat that only the server has
    try:
        await hub.start_lifespans()
        await hub.durable.open()
        hub.durable.time_limit = args.wait or await _waits(hub.durable, args.id)
        yield Admin(
            hub.durable.journal, CALL_KINDS, durable=hub.durable, calls=hub.calls, patience=float("inf")
        )
    finally:
        await hub.close("The command was stopped", grace=1.0)


async def _waits(durable: "DurableCalls", call_id: str) -> float:
    """How long a call waits for an answer: as the server has said that wrote it down."""
    found = await durable.journal.load(call_id)
    if found is None or found[0].status != "waiting":
        return durable.time_limit
    return max(found[0].expires - found[0].updated, 1.0)


def _journal(args: argparse.Namespace, *, create: bool, sealed: bool) -> "Journal":
    from pathlib import Path

    from midcall.cli.serve import BUILT_IN
    from midcall.journal.choose import choose_journal, default_path, place_of
    from midcall.journal.seal import default_ring

    target = args.target or BUILT_IN
    where = place_of(args.journal, target)
    if where == "memory":
        raise UsageError("Only its server can see a journal in memory: use --url")
    path = Path(where.removeprefix("sqlite://"))
    if not create and "postgres" not in where.partition("://")[0] and not path.exists():
        others = sorted(default_path(target).parent.glob("*.db"))
        hint = "".join(f"\n  --journal {one}" for one in others)
        known = f"; there are{hint}" if others else ""
        raise UsageError(f"There is no journal at {where}: give --target, --journal or --url{known}")
    try:
        ring = default_ring() if sealed else None
        return choose_journal(args.journal, target, ring, plain_too=not args.encrypt_journal)
    except ValueError as error:
        raise UsageError(f"--journal: {error}") from None

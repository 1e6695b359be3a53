"""`midcall demo`: a tour of asking, in this terminal, with a server running beside it.

Without a terminal (in CI) the same tour is played with answers written here, and says so.
"""

import argparse
from typing import TYPE_CHECKING, Any

from midcall.cli.exits import Exit, UsageError

if TYPE_CHECKING:
    import socket

WIZARD = "interactive.wizard"
SCRIPT = ("project name=demo-project", "template=full", "create=yes")

_WELCOME = """\
midcall demo: a tool that can stop in the middle and ask.

The built-in hub is served while this runs:
  in a browser       http://{host}:{port}/
  an MCP client      http://{host}:{port}/mcp
  a WebSocket        ws://{host}:{port}/ws

What you can type in another terminal:
  midcall tools midcall.activations:hub
  midcall call midcall.activations:hub interactive.delete --ids a --ids b
  midcall call midcall.activations:hub interactive.delete --ids a --yes --json
"""
_TOUR = "The tour is one call of {method}, a plain `async` function that asks three times:\n"
_SCRIPTED = "No terminal here: the questions below are answered by a SCRIPT, not by a person.\n"
_AFTER = """
The same function can be called by an MCP client, over WebSocket, by a program and by a test, unchanged.
Still serving at ws://{host}:{port}/ws. Ctrl-C ends the demo.\
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "demo",
        help="take a tour in this terminal",
        description="Serve the built-in examples and take a tour of the interactive one in this terminal. "
        "Without a terminal, the tour is played with scripted answers.",
        allow_abbrev=False,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any that is free)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Exit:
    """Take the tour; in a terminal, serve on until Ctrl-C."""
    import asyncio
    import socket

    from midcall.transports.security import is_loopback

    if not is_loopback(args.host):
        raise UsageError(
            f"The demo lets everybody in, so it listens on this machine only, not on {args.host}"
        )
    try:
        listener = socket.create_server((args.host, args.port))
    except (OSError, OverflowError) as error:
        raise UsageError(f"Cannot listen on {args.host}:{args.port}: {error}") from None
    with listener:
        return asyncio.run(_demo(listener))


async def _demo(listener: "socket.socket") -> Exit:
    import asyncio

    from midcall.activations import hub
    from midcall.cli.screens import has_person
    from midcall.cli.serve import until_stopped
    from midcall.transports.http import server

    http = server(hub, log_level="warning")
    exit = Exit.SUCCESS

    async def serve_and_tour() -> None:
        nonlocal exit
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(http.serve(sockets=[listener]))
            while not http.started:  # noqa: ASYNC110  uvicorn has no event for it
                await asyncio.sleep(0.01)
            exit = await _tour(*listener.getsockname()[:2])
            if exit != Exit.SUCCESS or not has_person():
                http.should_exit = True
            await serving

    await until_stopped(serve_and_tour())
    return exit


async def _tour(host: str, port: int) -> Exit:
    from midcall.activations import hub
    from midcall.cli.answers import Answers
    from midcall.cli.conversation import Conversation
    from midcall.cli.screens import Plain, has_person
    from midcall.cli.terminal import Terminal
    from midcall.questions import PERSON_KINDS

    person = has_person()
    screen = Terminal() if person else Plain()
    screen.say(_WELCOME.format(host=host, port=port))
    screen.say(_TOUR.format(method=WIZARD))
    if not person:
        screen.say(_SCRIPTED)
    answers = Answers(() if person else SCRIPT, source="script")
    invocation = hub.call(WIZARD, supports=PERSON_KINDS, time_limit=None)
    exit = await Conversation(invocation, screen, answers, person=person).run()
    if exit == Exit.SUCCESS and person:
        screen.say(_AFTER.format(host=host, port=port))
    return exit

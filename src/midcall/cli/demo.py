"""`midcall demo`: the chat in the browser, with a tool that asks there; or a tour in this terminal.

Without a terminal (in CI) a booking is played by a script against the same server, and it says so.
"""

import argparse
from typing import TYPE_CHECKING, Any

from midcall.cli.command import Exit, UsageError, add_command
from midcall.cli.listening import listen, open_page, page_url, port_number

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from midcall.chat.engine import ChatEngine
    from midcall.cli.output import Screen
    from midcall.hub import Hub

TARGET = "midcall.activations.demo:hub"
WIZARD = "interactive.wizard"
REQUEST = "Book a flight from New York to Los Angeles"

_WELCOME = """\
midcall demo: a tool that can stop in the middle and ask.

  the chat           http://{host}:{port}/       ask it to book a flight
  an MCP client      http://{host}:{port}/mcp
  a WebSocket        ws://{host}:{port}/ws

The chat is answered by {model}.{hint}

What you can type in another terminal:
  {midcall} tools http://{host}:{port}/mcp
  {midcall} call http://{host}:{port}/mcp flights.book_flight \\
    --origin Paris --destination Rome
"""
_HINT = """ For a real model:
  {midcall} demo --model ollama:llama3.2
  (or openai:NAME, anthropic:NAME, with the key in the environment)"""
_TOUR = "The tour is one call of {method}, a plain `async` function that asks three times:\n"
_SCRIPTED = "No terminal here: what follows is played by a SCRIPT, not by a person.\n"
_AFTER = "Ctrl-C ends the demo."


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    from midcall.cli.serve_options import add_model

    parser = add_command(
        commands,
        "demo",
        run,
        help="open a chat with a tool that asks",
        description="Serve the built-in examples with a chat, and open it in the browser. Without a "
        "terminal, a script plays a booking.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port_number, default=0, help="port to listen on (default: any free port)"
    )
    add_model(parser)
    parser.add_argument("--terminal", action="store_true", help="also take a tour in this terminal")
    parser.add_argument("--no-browser", action="store_true", help="do not open the browser")


def run(args: argparse.Namespace) -> Exit:
    """Serve until Ctrl-C; without a terminal, until the script has ended."""
    import asyncio

    from midcall.transports.security import is_loopback

    if not is_loopback(args.host):
        raise UsageError(
            f"The demo has no authentication, so it listens on this machine only, not on {args.host}"
        )
    chat = _chat(args.model)
    listeners = listen(args.host, args.port)
    return asyncio.run(_demo(chat, listeners, terminal=args.terminal, browser=not args.no_browser))


def _chat(models: "Sequence[str]") -> "ChatEngine":
    """The chat of the demo. What waits in it outlives the demo: it is in the user's state directory."""
    from midcall.activations.demo import hub
    from midcall.cli.serve_options import prepare_chat
    from midcall.journal.choose import choose_journal
    from midcall.journal.durable import DurableCalls

    made = hub()
    made.durable = DurableCalls(made, choose_journal(None, TARGET))
    prepare_chat(models, made)
    if made.chat is None:
        raise RuntimeError("The hub of the demo has a chat")
    return made.chat


async def _demo(
    chat: "ChatEngine", listeners: "list[socket.socket]", *, terminal: bool, browser: bool
) -> Exit:
    import asyncio

    from midcall.cli.output import has_person
    from midcall.cli.serve import until_stopped
    from midcall.transports.http_server import server

    http = server(chat.hub, log_level="warning", parts=[chat.part()])
    exit = Exit.SUCCESS

    async def serve_and_show() -> None:
        nonlocal exit
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(http.serve(listeners))
            while not http.started:  # noqa: ASYNC110  uvicorn has no event for it
                await asyncio.sleep(0.01)
            exit = await _show(chat, *listeners[0].getsockname()[:2], terminal=terminal, browser=browser)
            if exit != Exit.SUCCESS or not has_person():
                http.should_exit = True
            await serving

    await until_stopped(serve_and_show())
    return exit


async def _show(chat: "ChatEngine", host: str, port: int, *, terminal: bool, browser: bool) -> Exit:
    import asyncio

    from midcall.cli.output import Plain, Terminal, has_person

    person = has_person()
    screen: Screen = Terminal() if person else Plain()
    model = chat.model
    midcall = _command()
    hint = _HINT.format(midcall=midcall) if model.scripted else ""
    name = "a script, not by a model" if model.scripted else model.name
    screen.say(_WELCOME.format(host=host, port=port, model=name, hint=hint, midcall=midcall))
    if not person:
        screen.say(_SCRIPTED)
        return await _play(chat, screen)
    if browser:
        await asyncio.to_thread(open_page, page_url(host, port))
    exit = await _tour(chat.hub, screen) if terminal else Exit.SUCCESS
    if exit == Exit.SUCCESS:
        screen.say(_AFTER)
    return exit


def _command() -> str:
    """How to start `midcall` from another terminal: `make demo` and `uvx` have it where no shell searches."""
    import os
    import shutil
    import sys
    from pathlib import Path

    if shutil.which("midcall") and "UV" not in os.environ:  # uvx puts it in the path of this process alone
        return "midcall"
    return sys.argv[0] if Path(sys.argv[0]).stem == "midcall" else f"{sys.executable} -m midcall"


async def _tour(hub: "Hub", screen: "Screen") -> Exit:
    """One call of the wizard, asked in this terminal."""
    from midcall.cli.answers import GivenAnswers
    from midcall.cli.interactive_call import InteractiveCall
    from midcall.questions import PERSON_KINDS

    screen.say(_TOUR.format(method=WIZARD))
    invocation = hub.call(WIZARD, supports=PERSON_KINDS, time_limit=None)
    return await InteractiveCall(invocation, screen, GivenAnswers((), source="script"), person=True).run()


async def _play(chat: "ChatEngine", screen: "Screen") -> Exit:
    """A booking in the chat, with the first flight and the first free seat."""
    import json

    from midcall.chat.conversation import ChatRequest, ElicitResponse, ElicitResult
    from midcall.models.scripted import Scripted

    if not isinstance(chat.model, Scripted):
        return Exit.SUCCESS  # a real model costs money, and says what it likes
    request = ChatRequest(message=REQUEST)
    while True:
        if request.message is not None:
            screen.say(f"person: {request.message}")
        run = await chat.post(request)
        said, asked, failed = "", None, None
        async for line in run.lines():
            event = json.loads(line)["event"]
            match event["type"]:
                case "text":
                    said += event["content"]
                case "plugin_elicit_request":
                    asked = event
                case "error":
                    failed = event["message"]
        if said:
            screen.say(f"script: {said.strip()}")
        if failed is not None:
            screen.say(f"failed: {failed}")
            return Exit.FAILED
        if asked is None:
            return Exit.SUCCESS
        component = asked["component"]
        content = _picked(component["name"], component["props"])
        screen.say(f"  {component['name']} is shown: {component['props']['message']}\n  answered: {content}")
        answer = ElicitResponse(asked["sessionId"], asked["elicitId"], ElicitResult("accept", content))
        request = ChatRequest(run.conversation_id, plugin_elicit_responses=(answer,))


def _picked(component: str, props: dict[str, Any]) -> dict[str, Any]:
    if component == "FlightList":
        return {"flightId": props["flights"][0]["id"]}
    seats = props["seatMap"]
    return next(
        {"row": row, "seat": seat}
        for row in range(1, seats["rows"] + 1)
        for seat in seats["columns"]
        if f"{row}{seat}" not in seats["taken"]
    )

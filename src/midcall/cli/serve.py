"""`midcall serve [TARGET]`: serves a hub over HTTP and WebSocket, or over standard input and output."""

import argparse
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from midcall.cli.exits import Exit

if TYPE_CHECKING:
    import asyncio

BUILT_IN = "midcall.activations:hub"
_EXAMPLES = """\
examples:
  midcall serve                             the built-in examples, ws://127.0.0.1:8000/ws
  midcall serve app:hub --host 0.0.0.0 --port 9000
  midcall serve app:hub --stdio             JSON-RPC 2.0, one message a line

Logs go to standard error. Ctrl-C or SIGTERM ends it.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "serve",
        help="serve a hub over WebSocket or stdio",
        description="Serve a hub: WebSocket at /ws, or JSON-RPC 2.0 on standard input and output.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        default=BUILT_IN,
        help="where the hub is (default: %(default)s)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--stdio", action="store_true", help="serve standard input and output instead of HTTP"
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="how much to log (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Exit:
    """Serve until the end of the input, Ctrl-C or SIGTERM."""
    import asyncio
    import logging

    from midcall.cli.load import load_hub

    logging.basicConfig(
        stream=sys.stderr,
        level=args.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    hub = load_hub(args.target)
    serving: Coroutine[Any, Any, None]
    if args.stdio:
        from midcall.transports.stdio import serve_stdio

        serving = serve_stdio(hub)
    else:
        from midcall.transports.http import serve_http

        serving = serve_http(hub, args.host, args.port, args.log_level)
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(until_stopped(serving))
    return Exit.SUCCESS


def _fast_loop() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """The event loop of uvloop where there is one, a fifth faster; else the usual one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    """Run until it ends by itself or a signal stops it; either is a good end.

    Plain signal handlers, because an HTTP server puts its own in their place and raises the signal
    again afterwards.
    """
    import asyncio
    import contextlib
    import signal

    loop = asyncio.get_running_loop()
    task = loop.create_task(serving)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(task.cancel))
    with contextlib.suppress(asyncio.CancelledError):
        await task

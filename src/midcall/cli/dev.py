"""`midcall dev [TARGET]`: `midcall serve` for whoever writes the hub: reloads, warns, and opens the page."""

from typing import Any

from midcall.cli.command import add_command
from midcall.cli.serve import add_serve_options, run

_EXAMPLES = """\
examples:
  midcall dev app:hub                       opens the page, and reloads the code when it changes
  midcall dev app:hub --model scripted --port 9000

The options are those of `midcall serve`. Where there is no browser, as over ssh, it prints the address.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "dev",
        run,
        help="serve a hub while you write it: reload, warnings, the page in the browser",
        description="Serve a hub while you write it: `midcall serve --reload --dev`, with the page opened in "
        "the browser.",
        epilog=_EXAMPLES,
    )
    add_serve_options(parser)
    parser.add_argument("--no-browser", action="store_true", help="do not open the browser")
    parser.set_defaults(reload=True, dev=True, opens=True)

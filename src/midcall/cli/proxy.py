"""`midcall proxy -- COMMAND or URL`: serves another MCP server, for clients of every revision.

A hub with one mounted server, under plain names; all else is as in `midcall serve`.
"""

import argparse
import hashlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midcall.cli.command import UsageError, add_command
from midcall.cli.serve_options import add_options

if TYPE_CHECKING:
    from midcall.hub import Hub

_EXAMPLES = """\
examples:
  midcall proxy -- npx -y @modelcontextprotocol/server-everything
  midcall proxy --auth-tokens keys.txt --host 0.0.0.0 --allow-host tools.example.com -- npx -y some-server
  midcall proxy --stdio -- https://tools.example.com/mcp
  midcall proxy --stdio --header "Authorization: Bearer $TOKEN" -- https://tools.example.com/mcp
  midcall proxy -- ~/.cursor/mcp.json         all servers of another client's settings

Questions of the upstream server reach the person by whatever means the client has, whichever
MCP revisions the two speak. All logs, including the upstream server's, go to standard error.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "proxy",
        run,
        help="serve another MCP server",
        description="Serve another MCP server over HTTP (MCP at /mcp, WebSocket at /ws), or as an MCP server "
        "on standard input and output.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "server",
        metavar="COMMAND or URL",
        nargs="+",
        help="the upstream server: a command with its arguments, a URL, or a file with mcpServers; "
        "put it after `--`, so that its options are its own",
    )
    parser.add_argument("--http", action="store_true", help="serve over HTTP (the default)")
    add_server_options(parser)
    add_options(parser)
    parser.set_defaults(mcp=True, mcp_only=True, reload=False)


def add_server_options(parser: argparse._ActionsContainer) -> None:
    """The options by which a server is reached."""
    group = parser.add_argument_group("the upstream server")
    group.add_argument(
        "--header",
        metavar="NAME: VALUE",
        type=_header,
        action="append",
        default=[],
        help="a header for a server at a URL; may be repeated",
    )
    group.add_argument(
        "--env",
        metavar="NAME=VALUE",
        type=_variable,
        action="append",
        default=[],
        help="an environment variable for a server that midcall starts; NAME alone passes on the "
        "current value; "
        "may be repeated",
    )
    group.add_argument(
        "--inherit-env",
        action="store_true",
        help="pass all environment variables of this process to a server that midcall starts, "
        "including secrets "
        "(default: only PATH, HOME and the like)",
    )
    group.add_argument(
        "--era",
        choices=("auto", "legacy", "modern"),
        default="auto",
        help="MCP revisions to use with it: before 2026 (legacy) or since (modern) (default: detected)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until the end of the input, Ctrl-C or SIGTERM."""
    from midcall.cli.serve import serve

    if args.http and args.stdio:
        raise UsageError("Use either --http or --stdio, not both")
    args.target = _place(args.server)
    return serve(args, lambda: proxy_of(args.server, args))


def proxy_of(server: Sequence[str], args: argparse.Namespace) -> "Hub":
    """A hub with a server under plain names. Raises `UsageError`."""
    from midcall.hub import Hub

    hub = Hub("proxy")
    try:
        hub.mount(
            "",
            server[0] if len(server) == 1 else list(server),
            headers=dict(args.header),
            env=dict(args.env),
            inherit_env=args.inherit_env,
            era=args.era,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    return hub


def _place(server: Sequence[str]) -> str:
    """A name for the journal, the same for the same server."""
    words = shlex.join(server)
    readable = "".join(c if c.isalnum() else "-" for c in Path(server[-1]).stem).strip("-")
    return f"proxy-{readable or 'server'}:{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not a header, such as 'Authorization: Bearer ...'")
    return name.strip(), value.strip()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not a variable, such as NAME=VALUE")
    if not equals and name not in os.environ:
        raise argparse.ArgumentTypeError(f"this process has no environment variable {name}")
    return name, value if equals else os.environ[name]

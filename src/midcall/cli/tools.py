"""`midcall tools TARGET [METHOD]`: lists the methods of a hub or an MCP server, or shows one of them."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from midcall.cli.exit_codes import Exit, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from midcall.hub import Hub

_EXAMPLES = """\
examples:
  midcall tools app:hub
  midcall tools app:hub files.delete
  midcall tools app:hub --json > schema.json
  midcall tools "npx -y @modelcontextprotocol/server-everything"
  midcall tools https://tools.example.com/mcp
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "tools",
        help="list the methods of a hub or an MCP server",
        description="List the methods of a hub or an MCP server, or show one with its parameters.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="where the hub is, as in app:hub; or an MCP server: a URL, a command in quotes, an mcp.json",
    )
    parser.add_argument("method", metavar="METHOD", nargs="?", help="show this method")
    parser.add_argument("--json", action="store_true", help="print the schema as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Exit:
    """Print the list, or one method."""
    import asyncio

    return asyncio.run(_tools(args))


async def _tools(args: argparse.Namespace) -> Exit:
    from midcall.cli.load_target import opened

    async with opened(args.target) as hub:
        return _show(args, hub)


def _show(args: argparse.Namespace, hub: "Hub") -> Exit:
    from midcall.cli.output import write_out
    from midcall.errors import MethodNotFound

    try:
        schema = hub.schema(args.method)
    except MethodNotFound as error:
        raise UsageError(str(error)) from None
    if args.json:
        from msgspec import json

        write_out(json.format(json.encode(schema), indent=2).decode())
        return Exit.SUCCESS
    from rich.console import Console

    # A pipe has no width: what reads it wants whole lines.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if args.method is None:
        _show_list(console, hub)
    else:
        _show_method(console, schema)
    return Exit.SUCCESS


def _show_list(console: "Console", hub: "Hub") -> None:
    from rich.table import Table

    from midcall.activation import RemoteMethod
    from midcall.cli.terminal import styled

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in ("method", "", "description"):
        table.add_column(title, no_wrap=title != "description", header_style="dim")
    for name, method in hub.methods():
        asks = method.interactive and not isinstance(method, RemoteMethod)  # of a server behind, nobody knows
        marks = styled(_marks(method.streaming, asks), "cyan")
        table.add_row(styled(name, "bold"), marks, styled(method.description.partition("\n")[0]))
    console.print(table)


def _show_method(console: "Console", schema: dict[str, Any]) -> None:
    from msgspec import json
    from rich.table import Table
    from rich.text import Text

    from midcall.cli.schema_fields import MISSING, fields_of, type_text
    from midcall.cli.terminal import styled

    marks = _marks(schema["streaming"], schema["interactive"])
    console.print(Text.assemble(styled(schema["name"], "bold"), "  ", (marks, "cyan")))
    if schema["description"]:
        console.print(styled(schema["description"]))
    fields = fields_of(schema["params"])
    if fields:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), title_justify="left")
        for title in ("parameter", "type", "default", "description"):
            table.add_column(title, header_style="dim", no_wrap=title == "parameter")
        for field in fields:
            default = "" if field.default is MISSING else json.encode(field.default).decode()
            default = "required" if field.required else default
            table.add_row(
                styled(field.name, "bold"), styled(field.type), styled(default), styled(field.description)
            )
        console.print()
        console.print(table)
    if schema["returns"]:
        console.print(Text.assemble("\n", ("gives ", "dim"), styled(type_text(schema["returns"]))))
    for key in schema.get("elicits", ()):
        console.print(Text.assemble(("asks ", "dim"), styled(key)))


def _marks(streaming: bool, interactive: bool) -> str:
    return ", ".join(word for word, is_so in (("stream", streaming), ("asks", interactive)) if is_so)

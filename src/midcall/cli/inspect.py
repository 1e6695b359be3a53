"""`midcall inspect TARGET`: all that a hub or an MCP server offers, with schemas, as MCP lists it."""

import argparse
from typing import TYPE_CHECKING, Any

from midcall.cli.command import TARGET_HELP, Exit, add_command, add_selection, restrict

if TYPE_CHECKING:
    from rich.console import Console

    from midcall.hub import Hub

_EXAMPLES = """\
examples:
  midcall inspect app:hub
  midcall inspect app:hub --json > catalog.json
  midcall inspect "npx -y @modelcontextprotocol/server-everything"
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands,
        "inspect",
        run,
        help="show the tools, resources and prompts of a hub or an MCP server, with their schemas",
        description="Show everything that a hub or an MCP server offers: tools, resources, resource "
        "templates and prompts, with their schemas.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    add_selection(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, in the form of MCP lists")


def run(args: argparse.Namespace) -> Exit:
    """Print the lists."""
    import asyncio

    return asyncio.run(_inspect(args))


async def _inspect(args: argparse.Namespace) -> Exit:
    from midcall.cli.load_target import opened
    from midcall.cli.output import console, write_out

    async with opened(args.target) as hub:
        restrict(hub, args)
        offered = offers(hub)
    if args.json:
        from msgspec import json

        write_out(json.format(json.encode(offered), indent=2).decode())
        return Exit.SUCCESS
    out = console()
    for part, listed in offered.items():
        _show_part(out, part, listed)
    return Exit.SUCCESS


def offers(hub: "Hub") -> dict[str, list[dict[str, Any]]]:
    """What MCP clients are listed, by its part."""
    from midcall.mcp.catalog import Catalog

    catalog = Catalog(hub)
    return {
        "tools": [tool.shown for tool in catalog.tools.values()],
        "resources": [one.shown for one in catalog.resources.values()],
        "resourceTemplates": [one.shown for one in catalog.templates],
        "prompts": [one.shown for one in catalog.prompts.values()],
    }


def _show_part(out: "Console", part: str, listed: list[dict[str, Any]]) -> None:
    from msgspec import json
    from rich.padding import Padding

    from midcall.cli.output import styled

    out.print(styled(f"{part} ({len(listed)})", "bold underline"))
    for one in listed:
        out.print(styled(str(one.get("name", "")), "bold"))
        details = {key: value for key, value in one.items() if key not in ("name", "description") and value}
        if one.get("description"):
            out.print(Padding(styled(str(one["description"])), (0, 0, 0, 2), expand=False))
        for key, value in details.items():
            text = value if isinstance(value, str) else json.encode(value).decode()
            out.print(styled(f"  {key}: {text}", "dim"), soft_wrap=True)
    out.print()

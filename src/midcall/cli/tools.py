"""`midcall tools TARGET [METHOD]`: lists the methods of a hub or an MCP server, or shows one of them."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from midcall.cli.command import TARGET_HELP, Exit, UsageError, add_command, add_selection, restrict
from midcall.cli.completion import add_method

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
    parser = add_command(
        commands,
        "tools",
        run,
        help="list the methods, resources and prompts of a hub or an MCP server",
        description="List the methods, resources and prompts of a hub or an MCP server, or show one method "
        "with its parameters.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    add_method(parser, nargs="?", help="show this method")
    add_selection(parser)
    parser.add_argument("--json", action="store_true", help="print the schema as JSON")


def run(args: argparse.Namespace) -> Exit:
    """Print the list, or one method."""
    import asyncio

    return asyncio.run(_tools(args))


async def _tools(args: argparse.Namespace) -> Exit:
    from midcall.cli.load_target import opened

    async with opened(args.target) as hub:
        restrict(hub, args)
        return _show(args, hub)


def _show(args: argparse.Namespace, hub: "Hub") -> Exit:
    from midcall.cli.output import console, write_out
    from midcall.errors import MethodNotFound

    try:
        schema = hub.schema(args.method)
    except MethodNotFound as error:
        raise UsageError(str(error)) from None
    if args.json:
        from msgspec import json

        write_out(json.format(json.encode(schema), indent=2).decode())
        return Exit.SUCCESS
    if args.method is None:
        _show_list(console(), hub)
    else:
        _show_method(console(), schema)
    return Exit.SUCCESS


def _show_list(out: "Console", hub: "Hub") -> None:
    from midcall.activation import RemoteMethod
    from midcall.cli.inspect import offers
    from midcall.cli.output import styled, table

    rows = table("method", "", "description", wraps=("description",))
    for name, method in hub.methods():
        asks = method.interactive and not isinstance(method, RemoteMethod)  # of a server behind, nobody knows
        marks = styled(_marks(method.streaming, asks, method.tags), "cyan")
        rows.add_row(styled(name, "bold"), marks, styled(method.description.partition("\n")[0]))
    out.print(rows)
    for part, listed in offers(hub).items():
        if part != "tools" and listed:
            others = table(
                {"resourceTemplates": "resource template"}.get(part, part[:-1]),
                "uri",
                "description",
                wraps=("description",),
            )
            for one in listed:
                uri = one.get("uri", one.get("uriTemplate", ""))
                text = str(one.get("description", "")).partition("\n")[0]
                others.add_row(styled(str(one["name"]), "bold"), styled(str(uri), "cyan"), styled(text))
            out.print()
            out.print(others)


def _show_method(out: "Console", schema: dict[str, Any]) -> None:
    from msgspec import json
    from rich.text import Text

    from midcall.cli.output import styled, table
    from midcall.cli.schema_fields import MISSING, fields_of, type_text

    marks = _marks(schema["streaming"], schema["interactive"], schema.get("tags", ()))
    out.print(Text.assemble(styled(schema["name"], "bold"), "  ", (marks, "cyan")))
    if schema["description"]:
        out.print(styled(schema["description"]))
    fields = fields_of(schema["params"])
    if fields:
        rows = table("parameter", "type", "default", "description", wraps=("type", "default", "description"))
        for field in fields:
            default = "" if field.default is MISSING else json.encode(field.default).decode()
            default = "required" if field.required else default
            rows.add_row(
                styled(field.name, "bold"), styled(field.type), styled(default), styled(field.description)
            )
        out.print()
        out.print(rows)
    if schema["returns"]:
        out.print(Text.assemble("\n", ("returns ", "dim"), styled(type_text(schema["returns"]))))
    for key in schema.get("elicits", ()):
        out.print(Text.assemble(("asks ", "dim"), styled(key)))


def _marks(streaming: bool, interactive: bool, tags: Sequence[str]) -> str:
    words = [word for word, is_so in (("stream", streaming), ("asks", interactive)) if is_so]
    return ", ".join((*words, *(f"#{tag}" for tag in tags)))

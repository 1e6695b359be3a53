"""The tools, with the Python SDK: `python_mcp.py` on stdio, `python_mcp.py PORT` over HTTP."""

import sys
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Elicit, Resolve
from pydantic import BaseModel

server = MCPServer("bench", log_level="ERROR")


class Confirmation(BaseModel):
    confirmed: bool


@server.tool()
async def once(message: str) -> str:
    """Say it back."""
    return message


@server.tool()
async def ask(ctx: Context) -> bool:
    """Ask once, in the middle of the call: the way of the legacy era."""
    result = await ctx.elicit("Go on?", Confirmation)
    return result.action == "accept" and result.data.confirmed


async def confirm() -> Elicit[Confirmation]:
    return Elicit("Go on?", Confirmation)


@server.tool()
async def ask_modern(answer: Annotated[Confirmation, Resolve(confirm)]) -> bool:
    """Ask once, before the call: the SDK has no other way in the modern era."""
    return answer.confirmed


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]), json_response=False)
else:
    server.run("stdio")

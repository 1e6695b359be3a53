"""The tools, with FastMCP: `python_fastmcp.py` on stdio, `python_fastmcp.py PORT` over HTTP."""

import sys

from fastmcp import Context, FastMCP
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

server = FastMCP("bench")


class Confirmation(BaseModel):
    confirmed: bool


QUESTION = ElicitRequest(
    params=ElicitRequestFormParams(
        message="Go on?",
        requested_schema={"type": "object", "properties": {"confirmed": {"type": "boolean"}}},
    )
)


@server.tool
async def once(message: str) -> str:
    """Say it back."""
    return message


@server.tool
async def ask(ctx: Context) -> bool:
    """Ask once, in the middle of the call: the way of the legacy era."""
    result = await ctx.elicit("Go on?", Confirmation)
    return result.action == "accept" and result.data.confirmed


@server.tool
async def ask_modern(ctx: Context) -> bool | InputRequiredResult:
    """Ask once, by leaving and being called again: the way of the modern era."""
    answers = ctx.input_responses
    if not answers:
        return InputRequiredResult(input_requests={"confirm": QUESTION})
    return answers["confirm"].content["confirmed"]


if len(sys.argv) > 1:
    server.run("http", port=int(sys.argv[1]), show_banner=False, log_level="error")
else:
    server.run("stdio", show_banner=False, log_level="error")

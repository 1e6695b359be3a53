"""A hub in which one foreign server is mounted, on standard input and output: `python hub.py NAME COMMAND...`."""

import asyncio
import sys

from midcall import Hub
from midcall.mcp import McpExtension


async def main() -> None:
    hub = Hub("foreign").with_extension(McpExtension())
    hub.mount(sys.argv[1], sys.argv[2:])
    await hub.serve_stdio()


asyncio.run(main())

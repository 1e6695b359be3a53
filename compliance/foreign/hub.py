"""`python hub.py NAME COMMAND...`: a hub with a server mounted in it, on standard input and output."""

import asyncio
import sys

from midcall import Hub
from midcall.mcp import McpExtension
from midcall.transports.stdio import serve_stdio

hub = Hub("foreign").with_extension(McpExtension())
hub.mount(sys.argv[1], sys.argv[2:])
asyncio.run(serve_stdio(hub, raw=False))

"""Clients: the other end of the line.

`connect` makes a client of any MCP server: a command, a URL, a hub in this process, or the settings of other
clients. `connect_hub` opens a WebSocket to a midcall server, and speaks the hub's own protocol.
"""

from midcall.client.client import Client
from midcall.client.connecting import connect
from midcall.client.results import ToolResult
from midcall.client.toolbox import Toolbox
from midcall.client.websocket import Remote, connect_hub

__all__ = ["Client", "Remote", "ToolResult", "Toolbox", "connect", "connect_hub"]

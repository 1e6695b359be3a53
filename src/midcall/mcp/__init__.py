"""MCP, sans I/O: the extension that serves a hub's methods to MCP clients of every revision.

It knows the hub and its calls, and no transport: messages come in as envelopes and leave through a
`ResponseStream`. Which way a question travels is decided for each request, from what the caller declared.
"""

from midcall.mcp.server import CALL_KINDS, McpExtension, mcp_of

__all__ = ["CALL_KINDS", "McpExtension", "mcp_of"]

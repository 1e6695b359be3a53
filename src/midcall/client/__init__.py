"""Clients: the other end of the line.

`connect` opens a WebSocket to a midcall server.
"""

from midcall.client.websocket import Remote, connect

__all__ = ["Remote", "connect"]

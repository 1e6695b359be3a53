"""Mounts: MCP servers as parts of a hub (`Hub.mount`).

`mount` is a server and what the hub knows of it, `clients` who speaks to it for whom, and `call` one call.
"""

"""Transports: bytes in, bytes out.

Each file is one way in. A transport hands whole messages to a connection and writes what comes back;
it knows no method and no tool.
"""

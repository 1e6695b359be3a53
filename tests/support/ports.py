"""A port for a server of a test."""

import contextlib
import random
import socket


def free_port() -> int:
    """A port that is free, and that no connection is given before somebody listens on it."""
    while True:
        port = random.randrange(15_000, 32_000)  # below those that systems give by themselves
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port

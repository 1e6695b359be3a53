"""A port for a server of a test."""

import atexit
import contextlib
import random
import socket
from collections import deque

KEPT = 100
"""How many ports stay with the process that was given them: no test has so many servers."""

_kept: deque[socket.socket] = deque()


@atexit.register
def _let_go(count: int = 0) -> None:
    while len(_kept) > count:
        _kept.popleft().close()


def free_port() -> int:
    """A TCP port that nobody else is given before a server listens on it, or between two servers.

    No connection gets it, as it is below those that systems give by themselves; and no other process of the tests,
    as this one keeps the UDP port of the same number.
    """
    while True:
        port = random.randrange(15_000, 32_000)
        with contextlib.ExitStack() as undo, contextlib.suppress(OSError):
            mine = undo.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            mine.bind(("127.0.0.1", port))
            with socket.socket() as one:
                one.bind(("127.0.0.1", port))
            undo.pop_all()
            _kept.append(mine)
            _let_go(KEPT)
            return port

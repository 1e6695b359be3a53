"""The zygote: a process that has everything loaded, and forks workers. It never runs an event loop itself.

It gets what a worker needs on its standard input, a socket, together with the worker's two ends, and gives back
the process id. Its workers end with it.
"""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crash.app import make_hub
from crash.kept import make_durable
from crash.person import GOODBYE, Line
from crash.ticks import clock
from midcall import Hub
from midcall.chat import engine, runs
from midcall.journal import sweeper
from midcall.journal.seal import KeyRing
from midcall.mcp import mcp_of
from midcall.transports.http_server import server
from midcall.transports.stdio import serve_stdio

SWEEP = 0.05
"""Seconds between two looks for calls that nobody looks after: a run must not wait for it for long."""

CHAT_TIMES = 0.01, 0.05, 0.02
"""Seconds between two times that a run's lines are written, two signs of its life, and two looks at it."""

DEAD_AFTER = 0.5
"""Seconds after which a run without a sign of life is taken for dead."""

LARGE = 64 * 1024


class Zygote:
    """The other end: starts workers."""

    def __init__(self, backend: str) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here = Path(__file__).parent.parent
        self._socket = mine
        self._process = subprocess.Popen(
            (sys.executable, "-m", "crash.zygote", backend),
            stdin=its,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(here), os.environ.get("PYTHONPATH", "")))},
        )
        its.close()

    def start(self, *, chat: bool, **settings: Any) -> Line:
        """A worker, which serves its chat over HTTP too if it is to."""
        to, its_input = socket.socketpair()
        its_output, of = socket.socketpair()
        port = None
        with contextlib.ExitStack() as its:
            fds = [its.enter_context(its_input).fileno(), its.enter_context(its_output).fileno()]
            if chat:
                listener = its.enter_context(socket.create_server(("127.0.0.1", 0)))
                fds.append(listener.fileno())
                port = listener.getsockname()[1]
            socket.send_fds(self._socket, [json.dumps(settings).encode()], fds)
        return Line(int(self._socket.recv(LARGE)), to, of, port)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def main() -> None:
    """Fork workers until the other end is closed."""
    hub = make_hub()
    _ = hub.hash, mcp_of(hub).catalog
    _load_all(sys.argv[1])
    orders = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        order, fds, _, _ = socket.recv_fds(orders, LARGE, 3)
        if not order:
            break
        pid = os.fork()
        if not pid:
            orders.close()
            work(hub, fds, json.loads(order))
        for fd in fds:
            os.close(fd)
        orders.send(str(pid).encode())


def _load_all(backend: str) -> None:
    """Load also what is otherwise loaded when it is first used, and spare the workers from looking through it."""
    for name in ("schema", "plexus.subscriptions", f"journal.{backend}"):
        importlib.import_module(f"midcall.{name}")
    KeyRing([b"k" * 32])  # the first one takes a while
    gc.collect()
    gc.freeze()


def work(hub: Hub, fds: Sequence[int], settings: dict[str, Any]) -> None:
    """Be a worker, to the end of the process."""
    input, output, *listeners = fds
    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    logging.basicConfig(level="WARNING", format=f"{os.getpid()} %(levelname)s %(name)s: %(message)s")
    code = 1
    with contextlib.suppress(BaseException):
        clock.start(settings["deadly"])
        hub.durable = make_durable(
            hub, settings["backend"], settings["place"], forgetful=settings["forgetful"]
        )
        sweeper.SWEEP = SWEEP
        if listeners:
            asyncio.run(serve_with_chat(hub, input, output, socket.socket(fileno=listeners[0])))
        else:
            asyncio.run(serve_stdio(hub, raw=False, stdin=input, stdout=output))
        os.write(output, GOODBYE)
        code = 0
    os._exit(code)


async def serve_with_chat(hub: Hub, input: int, output: int, listener: socket.socket) -> None:
    """Serve until the process is told to end."""
    runs.WRITE_EVERY, runs.ALIVE_EVERY, runs.POLL = CHAT_TIMES
    runs.DEAD_AFTER = engine.DEAD_AFTER = DEAD_AFTER
    http = server(hub, log_level="warning", own_log=False, parts=[hub.chat.part()])
    signal.signal(signal.SIGTERM, http.handle_exit)  # also before it listens for that itself
    lines = asyncio.create_task(serve_stdio(hub, raw=False, stdin=input, stdout=output))
    await http.serve([listener])
    lines.cancel()
    await asyncio.wait((lines,))


def _end_with_parent() -> None:
    """Where the system can: a test that is killed leaves no worker behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main()

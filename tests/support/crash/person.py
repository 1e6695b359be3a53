"""Lines to workers: a small synchronous MCP client of the modern revision, which notices when they die."""

import itertools
import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
SAID = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {"elicitation": {}}}
KEY = "dev.midcall/idempotencyKey"

GOODBYE = b'{"goodbye": true}\n'
"""The last line of a worker that was not killed."""

LIMIT = 100.0
"""Seconds that a worker has for an answer: more than it may let anybody wait for another one."""

_ids = itertools.count(1)


class Stuck(Exception):
    """A worker lives, and does not answer."""


class Line:
    """One worker, seen from outside. A request that it did not live to answer is answered with `None`."""

    def __init__(self, pid: int, to: socket.socket, of: socket.socket, port: int | None) -> None:
        """`port` is where it serves its chat, if it does."""
        self.pid = pid
        self.port = port
        self.alive = True
        self._to = to
        self._of = of
        self._of.settimeout(LIMIT)
        self._read = b""
        self._received: dict[int, dict[str, Any]] = {}

    def send(self, method: str, params: dict[str, Any], **meta: Any) -> int:
        """Send a request and give its id."""
        id = next(_ids)
        params = {**params, "_meta": {**SAID, **meta}}
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        with suppress(OSError):
            self._to.sendall(json.dumps(message).encode() + b"\n")
        return id

    def receive(self, id: int) -> dict[str, Any] | None:
        """The response to a request, in whatever order they come."""
        while id not in self._received and (line := self._line()) is not None:
            message: dict[str, Any] = json.loads(line)
            self._received[message.get("id", 0)] = message
        return self._received.pop(id, None)

    def tool(self, name: str, **arguments: Any) -> Any:
        """What a plain tool gives."""
        response = self.receive(self.send("tools/call", {"name": name, "arguments": arguments}))
        return None if response is None else json.loads(response["result"]["content"][0]["text"])

    def kill(self) -> None:
        """End the worker wherever it is."""
        if self.alive:
            with suppress(ProcessLookupError):  # it was faster
                os.kill(self.pid, signal.SIGKILL)
            self.wait_for_end()

    def leave(self) -> bool:
        """Have the worker end by itself. False if it has died on its way."""
        if self.port is None:
            self._to.close()
        else:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        return self.wait_for_end() == GOODBYE.strip()

    def wait_for_end(self) -> bytes | None:
        """Gives the last line. Raises `Stuck` if it lives on."""
        last = None
        while (line := self._line()) is not None:
            last = line
        return last

    def _line(self) -> bytes | None:
        while self.alive and b"\n" not in self._read:
            try:
                data = self._of.recv(256 * 1024)
            except ConnectionError:
                data = b""
            except TimeoutError:
                raise Stuck(f"Worker {self.pid} has not answered for {LIMIT:.0f} s") from None
            if not data:
                self.alive = False
                self._to.close()
                self._of.close()
                return None
            self._read += data
        if not self.alive:
            return None
        line, _, self._read = self._read.partition(b"\n")
        return line

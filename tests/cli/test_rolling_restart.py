"""Servers that are replaced and stopped under load: no request that was sent on an open connection is lost."""

import asyncio
import json
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT
from mcp_oracle import MODERN
from mcp_peers import META
from shutdown_app import Server
from shutdown_app import serving as serving_alone
from workers_parent import Parent, serving

CALLERS = 16
RESTARTS = 3


@dataclass
class Tally:
    """What the callers have seen."""

    answered: int = 0
    last: int = 0
    """Responses that said that no other follows on their connection."""
    lost: list[str] = field(default_factory=list)
    stopped: bool = False
    """Whether the server was told to stop: from then on nobody need be let in."""


def request(port: int, tool: str, **arguments: Any) -> bytes:
    params = {
        "name": tool,
        "arguments": arguments,
        "_meta": {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    lines = (
        "POST /mcp HTTP/1.1",
        f"host: 127.0.0.1:{port}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"mcp-protocol-version: {MODERN}",
        "mcp-method: tools/call",
        f"mcp-name: {tool}",
        f"content-length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def call_again_and_again(port: int, sent: bytes, pause: float, tally: Tally) -> None:
    """Call on one connection until it is said to be the last time there, then on the next; repeat nothing."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert tally.stopped, "nobody listens"
            return
        before = 0
        try:
            while await _call(reader, writer, sent, tally, before):
                before += 1
                await asyncio.sleep(random.uniform(0, pause))
        finally:
            writer.close()


async def _call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes, tally: Tally, before: int
) -> bool:
    """Whether the connection is there for another call."""
    try:
        for part in (sent[:100], sent[100:]):  # it begins to arrive, and goes on to
            writer.write(part)
            await asyncio.sleep(0)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(length.split(b":")[1]))
    except (asyncio.IncompleteReadError, OSError) as error:
        tally.lost.append(f"after {before} others: {error!r}, stopped: {tally.stopped}")
        return False
    result = json.loads(body).get("result", {})
    if b" 200 " not in head or "content" not in result or result.get("isError"):
        tally.lost.append(f"{head!r} {body!r}")
    tally.answered += 1
    if b"connection: close" not in head.lower():
        return True
    tally.last += 1
    assert await reader.read() == b""
    return False


def test_no_request_is_lost_when_workers_are_replaced_and_stopped(tmp_path: Path) -> None:
    tally = Tally()

    async def load(parent: Parent) -> None:
        sent = request(parent.port, "work.pid")
        callers = [
            asyncio.ensure_future(call_again_and_again(parent.port, sent, pause, tally))
            for pause in [0.0, 0.05] * (CALLERS // 2)
        ]
        for done in range(1, RESTARTS + 1):
            parent.process.send_signal(signal.SIGHUP)
            while parent.log.count("2 new workers are ready") < done:
                assert parent.process.poll() is None, parent.log
                await asyncio.sleep(0.1)
        tally.stopped = True
        parent.process.terminate()
        await asyncio.gather(*callers)

    with serving(tmp_path, "--grace", "20") as parent:
        asyncio.run(load(parent))
        assert parent.ends() == 0
    assert tally.lost == []
    assert tally.last >= CALLERS, "all workers were replaced while they served"
    assert tally.answered > tally.last


@pytest.mark.parametrize("seconds", [0, 0.5], ids=["plain calls", "calls that take a while"])
def test_no_request_is_lost_when_a_server_is_stopped(seconds: float) -> None:
    tally = Tally()

    async def load(server: Server) -> None:
        sent = request(server.port, "work.slow", seconds=seconds)
        callers = [
            asyncio.ensure_future(call_again_and_again(server.port, sent, pause, tally))
            for pause in [0.0, 0.2] * (CALLERS // 2)
        ]
        while tally.answered < 4 * CALLERS:
            await asyncio.sleep(0.01)
        tally.stopped = True
        server.stop()
        await asyncio.gather(*callers)
        await server.ends()

    async def main() -> None:
        async with serving_alone("--grace", "20", "--log-level", "warning") as server:
            await load(server)

    asyncio.run(main())
    assert tally.lost == []
    assert tally.last >= CALLERS


def test_who_comes_to_workers_that_are_stopping_is_turned_away_and_not_kept_waiting(tmp_path: Path) -> None:
    with serving(tmp_path, "--grace", str(3 * LIMIT)) as parent:

        async def main() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", parent.port)
            writer.write(request(parent.port, "work.slow", seconds=3 * LIMIT))
            await parent.runs_slow()  # the workers stay as long as it does
            parent.process.terminate()
            with pytest.raises(ConnectionError):
                while True:
                    _, late = await asyncio.open_connection("127.0.0.1", parent.port)
                    late.close()
                    await asyncio.sleep(0.02)
            assert not reader.at_eof(), "the call runs on"
            writer.close()  # and ends with its caller

        asyncio.run(main())
        assert parent.ends() == 0

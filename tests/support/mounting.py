"""What the tests of mounts share: servers to be mounted, and hubs with one of them."""

import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import driving
from mcp_peers import mcp_environment
from midcall import Hub
from midcall.client.targets import HubWire, Target
from midcall.invocation import Invocation
from midcall.principal import Principal
from peers import HERE, command

ERAS = ("legacy", "modern")

SERVER = command(
    "serve",
    f"{HERE}/mcp_app.py:hub",
    "--stdio",
    "--mcp-only",
    "--journal",
    "memory",
    "--log-level",
    "warning",
)
"""The usual server of the tests, which speaks both eras."""


def strange(era: str) -> list[str]:
    """The server with strange habits."""
    return [sys.executable, str(HERE / "strange_server.py"), era]


def drive(main: Coroutine[Any, Any, Any]) -> Any:
    """As `driving.drive`, with time for servers to be started."""
    return driving.drive(main, limit=2 * driving.LIMIT)


async def result_of(invocation: Invocation) -> Any:
    """What a call gives, as a coroutine."""
    return await invocation


def speaking_for(hub: Hub, name: str) -> Target:
    """A hub, as somebody with this name reaches it."""
    return Target(f"the hub, for {name}", lambda: HubWire(hub, Principal(name)))


@asynccontextmanager
async def mounted(command: Any = SERVER, namespace: str = "b", **options: Any) -> AsyncIterator[Hub]:
    """A hub with a server, which is connected."""
    options.setdefault("env", mcp_environment())
    hub = Hub("front").mount(namespace, command, **options)
    await hub.open()
    try:
        await hub.open_mounts(driving.LIMIT)
        assert hub.mounts[0].activation.known, hub.mounts[0].failure
        yield hub
    finally:
        await hub.close()

"""Several workers on one journal in this process, behind a load balancer."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from driving import LIMIT
from mcp_app import make_hub
from midcall.hub import Hub
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.journal.sqlite import SqliteJournal
from midcall.mcp import mcp_of
from midcall.transports.mcp_http import McpEndpoint

VERSION = "2025-11-25"


class Balancer:
    """Sends each request to one of the workers, in this process."""

    def __init__(self, endpoints: list[McpEndpoint]) -> None:
        self.endpoints = endpoints

    async def visit(
        self,
        verb: str,
        message: Any = None,
        *,
        to: int | None = None,
        gone: asyncio.Event | None = None,
        **headers: str,
    ) -> "Response":
        given = [{"type": "http.request", "body": b"" if message is None else json.dumps(message).encode()}]
        over = gone or asyncio.Event()
        response = Response()

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(event: dict[str, Any]) -> None:
            response.take(event)
            if event["type"] == "http.response.body" and not event.get("more_body"):
                over.set()

        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": verb, "path": "/mcp", "headers": named}
        endpoint = random.choice(self.endpoints) if to is None else self.endpoints[to]
        response.task = asyncio.ensure_future(endpoint(scope, receive, send))
        return response


class Response:
    """A response, while it comes."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.task: asyncio.Future[None] | None = None
        self._arrived = asyncio.Condition()

    def take(self, event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            self.status, self.headers = event["status"], dict(event["headers"])
        else:
            self.body += event.get("body", b"")

    def messages(self) -> list[Any]:
        if not self.body.startswith((b"id:", b"event:", b":")):
            return [json.loads(self.body)] if self.body else []
        lines = [line.removeprefix(b"data: ") for line in self.body.split(b"\n")]
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    async def message(self, method: str) -> Any:
        for _ in range(5000):
            for one in self.messages():
                if one.get("method") == method:
                    return one
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {method} in {self.body!r}")

    async def result(self) -> Any:
        assert self.task is not None
        async with asyncio.timeout(LIMIT):
            await self.task
        return self.messages()[-1]["result"]


@asynccontextmanager
async def workers(kind: str, folder: Path, count: int = 3) -> AsyncIterator[Balancer]:
    memory = MemoryJournal()
    async with AsyncExitStack() as stack:
        endpoints = []
        for _ in range(count):
            hub: Hub = make_hub()
            journal = MemoryJournal(memory) if kind == "memory" else SqliteJournal(folder / "journal.db")
            hub.durable = DurableCalls(hub, journal)
            await hub.open()
            stack.push_async_callback(hub.close)
            endpoint = McpEndpoint(mcp_of(hub))
            sessions = hub.durable.bus.channel("session")
            sessions.take = endpoint.share_sessions(sessions)
            endpoints.append(endpoint)
        yield Balancer(endpoints)


async def begin(balancer: Balancer, **capabilities: Any) -> dict[str, str]:
    params = {
        "protocolVersion": VERSION,
        "capabilities": capabilities,
        "clientInfo": {"name": "t", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    response = await balancer.visit("POST", message, to=0)
    await response.result()
    headers = {"mcp_session_id": response.headers[b"mcp-session-id"].decode()}
    notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    told = await balancer.visit("POST", notice, to=1, **headers)
    assert told.task is not None
    await told.task
    assert told.status == 202
    return headers

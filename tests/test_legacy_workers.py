"""Legacy sessions behind a load balancer: any request of a session may reach any worker."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from driving import LIMIT, drive
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
        for _ in range(500):
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


def call(id: int, tool: str, /, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_question_is_answered_through_another_worker_than_the_one_that_has_the_stream(
    kind: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with workers(kind, tmp_path) as balancer:
            headers = await begin(balancer, elicitation={})
            for id, (asking, answering) in enumerate([(0, 1), (1, 0), (1, 2), (2, 2)], 1):
                stream = await balancer.visit("POST", call(id, "seek.prompt", name="n"), to=asking, **headers)
                asked = await stream.message("elicitation/create")
                answer = {"action": "accept", "content": {"text": f"w{id}"}}
                response = {"jsonrpc": "2.0", "id": asked["id"], "result": answer}
                told = await balancer.visit("POST", response, to=answering, **headers)
                result = await stream.result()
                assert result["content"][0]["text"] == f"n: w{id}"
                assert told.status == 202

    drive(run())


def test_a_client_that_lost_its_stream_resumes_it_on_another_worker(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with workers(kind, tmp_path) as balancer:
            headers = await begin(balancer, elicitation={})
            gone = asyncio.Event()
            lost = await balancer.visit("POST", call(1, "seek.prompt", name="n"), to=1, gone=gone, **headers)
            asked = await lost.message("elicitation/create")
            last = [line for line in lost.body.split(b"\n") if line.startswith(b"id: ")][-1]
            gone.set()
            assert lost.task is not None
            await lost.task
            resumed = await balancer.visit(
                "GET", to=2, last_event_id=last.removeprefix(b"id: ").decode(), **headers
            )
            answer = {"action": "accept", "content": {"text": "w"}}
            response = {"jsonrpc": "2.0", "id": asked["id"], "result": answer}
            await balancer.visit("POST", response, to=0, **headers)
            assert (await resumed.result())["content"][0]["text"] == "n: w"
            assert len(resumed.messages()) == 1, "only what came after the last event"

    drive(run())


def test_a_request_is_cancelled_and_a_session_ended_through_another_worker(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with workers(kind, tmp_path) as balancer:
            headers = await begin(balancer, elicitation={})
            stream = await balancer.visit("POST", call(1, "seek.prompt", name="n"), to=0, **headers)
            await stream.message("elicitation/create")
            cancel = {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": 1},
            }
            await balancer.visit("POST", cancel, to=2, **headers)
            assert stream.task is not None
            async with asyncio.timeout(LIMIT):
                await stream.task
            assert not any("result" in one for one in stream.messages())
            ended = await balancer.visit("DELETE", to=1, **headers)
            assert ended.task is not None
            await ended.task
            assert ended.status == 200
            for worker in range(3):
                late = await balancer.visit("POST", call(2, "give.word"), to=worker, **headers)
                assert late.task is not None
                await late.task
                assert late.status == 404

    drive(run())


def test_the_session_of_a_worker_that_is_gone_is_not_found(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with workers(kind, tmp_path) as balancer:
            headers = await begin(balancer)
            await balancer.endpoints[0]._extension.hub.close()
            late = await balancer.visit("POST", call(1, "give.word"), to=1, **headers)
            assert late.task is not None
            await late.task
            assert late.status == 404

    drive(run())

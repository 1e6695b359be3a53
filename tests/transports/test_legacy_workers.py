"""Legacy sessions behind a load balancer: any request of a session may reach any worker."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from balancer import begin, workers
from driving import LIMIT, drive


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def call(id: int, tool: str, /, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


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

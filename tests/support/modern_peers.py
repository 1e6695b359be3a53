"""What a client of the modern revision sends: calls, answers, and looks at tasks."""

import asyncio
from typing import Any

from driving import LIMIT
from mcp_peers import FORMS, Client

TASKS = "io.modelcontextprotocol/tasks"
WITH_TASKS: dict[str, Any] = {**FORMS, "extensions": {TASKS: {}}}


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def retry(asked: Any, params: dict[str, Any], **answers: Any) -> dict[str, Any]:
    """The same request again, with answers by key; without keys in the order of the questions."""
    return {**params, "requestState": asked["requestState"], "inputResponses": answers}


def by_order(asked: Any, params: dict[str, Any], *answers: Any) -> dict[str, Any]:
    return retry(asked, params, **dict(zip(asked["inputRequests"], answers, strict=True)))


async def task_until(client: Client, task: Any, *statuses: str) -> Any:
    async with asyncio.timeout(LIMIT):
        while True:
            shown = await client.result("tasks/get", {"taskId": task["taskId"]})
            if shown["status"] in statuses:
                return shown
            await asyncio.sleep(0.02)

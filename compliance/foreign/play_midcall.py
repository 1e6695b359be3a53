"""midcall's own client, in the era that it finds."""

import asyncio
from typing import Any

import play

from midcall import Client, Data, Error, Progress, Request, ToolResult, connect


def answer(request: Request) -> Any:
    play.asked.append(request.request_type.kind)
    return True if request.request_type.kind == "url" else play.PLAN["answer"]


def sample(question: Any) -> str:
    play.asked.append("sample")
    return str(play.PLAN["sample"])


class Midcall:
    """A `Client` as the plan wants it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tools(self) -> list[str]:
        return [tool["name"] for tool in await self._client.tools()]

    async def call(self, name: str, arguments: dict[str, Any], heard: play.OnProgress) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        structured = None
        async for item in self._client.call(name, arguments):
            match item:
                case Progress(percentage=float(percentage)):
                    heard(percentage, 100)
                case Data(content=ToolResult() as result):
                    content, structured = result.content, result.structured
                case Error(message=message, code="tool_error"):
                    return {"content": [{"type": "text", "text": message}], "isError": True}
                case Error(message=message, code=code):
                    raise RuntimeError(f"{code}: {message}")
        return {"content": content, "structuredContent": structured}

    async def read(self, uri: str) -> dict[str, Any]:
        return {"contents": await self._client.read(uri)}

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        return await self._client.prompt(name, arguments)


async def main() -> None:
    target = play.SERVER[0] if play.OVER_HTTP else play.SERVER
    async with connect(target, answer=answer, sample=sample, roots=play.PLAN["roots"]) as client:
        await play.run(Midcall(client))


asyncio.run(main())

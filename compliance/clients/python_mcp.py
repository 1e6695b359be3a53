"""The official Python SDK: `mcp.Client`."""

import asyncio
from collections.abc import Callable
from typing import Any

import checks
import mcp_types as types
from checks import MODE, OVER_HTTP, OVER_SSE, SERVER, Person, Result
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client

person = Person()


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    action, content = person.answer(params.message, params.requested_schema)
    return types.ElicitResult(action=action, content=content)


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    content = types.TextContent(type="text", text=checks.SUMMARY)
    return types.CreateMessageResult(role="assistant", content=content, model="none")


class Adapter:
    """`mcp.Client` as the checks want it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def revision(self) -> str:
        return self._client.protocol_version

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self._client.list_tools()).tools]

    async def call(
        self, name: str, arguments: dict[str, Any], on_progress: Callable[[float], None] | None = None
    ) -> Result:
        async def heard(value: float, total: float | None, message: str | None) -> None:
            if on_progress is not None:
                on_progress(value)

        callback = heard if on_progress is not None else None
        result = await self._client.call_tool(name, arguments, progress_callback=callback)
        blocks = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in result.content]
        return Result(blocks, result.structured_content, bool(result.is_error))


async def main() -> None:
    stdio = StdioServerParameters(command=SERVER[0], args=SERVER[1:])
    async with Client(
        sse_client(SERVER[0]) if OVER_SSE else SERVER[0] if OVER_HTTP else stdio,
        mode=checks.MODERN if MODE == "modern" else MODE,
        elicitation_callback=elicit,
        sampling_callback=sample,
        read_timeout_seconds=checks.SECONDS,
    ) as client:
        await checks.run(Adapter(client), person)


asyncio.run(main())

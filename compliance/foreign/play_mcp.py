"""The official Python SDK: `mcp.Client`."""

import asyncio
from typing import Any

import mcp_types as types
import play
from mcp import Client, StdioServerParameters
from play import MODE, OVER_HTTP, PLAN, SERVER


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    visit = getattr(params, "mode", "form") == "url"
    play.asked.append("url" if visit else "form")
    return types.ElicitResult(action="accept", content=None if visit else PLAN["answer"])


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    play.asked.append("sample")
    content = types.TextContent(type="text", text=PLAN["sample"])
    return types.CreateMessageResult(role="assistant", content=content, model="none")


async def roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in PLAN["roots"]])


class Official:
    """`mcp.Client` as the plan wants it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self._client.list_tools(cache_mode="refresh")).tools]

    async def call(self, name: str, arguments: dict[str, Any], heard: play.OnProgress) -> dict[str, Any]:
        async def progress(value: float, total: float | None, message: str | None) -> None:
            if total:
                heard(value, total)

        return _plain(await self._client.call_tool(name, arguments, progress_callback=progress))

    async def read(self, uri: str) -> dict[str, Any]:
        return _plain(await self._client.read_resource(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        return _plain(await self._client.get_prompt(name, arguments))


def _plain(result: Any) -> dict[str, Any]:
    plain: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


async def main() -> None:
    async with Client(
        SERVER[0] if OVER_HTTP else StdioServerParameters(command=SERVER[0], args=SERVER[1:]),
        mode=play.MODERN if MODE == "modern" else MODE,
        elicitation_callback=elicit,
        sampling_callback=sample,
        list_roots_callback=roots,
        read_timeout_seconds=play.SECONDS,
    ) as client:
        await play.run(Official(client))


asyncio.run(main())

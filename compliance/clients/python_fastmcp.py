"""FastMCP's client."""

import asyncio
from collections.abc import Callable
from typing import Any

import checks
from checks import MODE, OVER_HTTP, SERVER, Person, Result
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from pydantic_core import to_jsonable_python

person = Person()


async def elicit(message: str, response_type: Any, params: Any, context: Any) -> ElicitResult:
    action, content = person.answer(params.message, params.requested_schema)
    return ElicitResult(action=action, content=content)


async def sample(messages: Any, params: Any, context: Any) -> str:
    return checks.SUMMARY


class Adapter:
    """`fastmcp.Client` as the checks want it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def revision(self) -> str:
        return self._client.session.protocol_version

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self._client.list_tools()]

    async def call(
        self, name: str, arguments: dict[str, Any], on_progress: Callable[[float], None] | None = None
    ) -> Result:
        async def heard(value: float, total: float | None, message: str | None) -> None:
            if on_progress is not None:
                on_progress(value)

        result = await self._client.call_tool(name, arguments, progress_handler=heard, raise_on_error=False)
        blocks = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in result.content]
        structured = result.structured_content
        if structured is not None and not result.is_error:
            value = structured["result"] if [*structured] == ["result"] else structured
            data = to_jsonable_python(result.data)
            if data != value:
                raise AssertionError(f"{name}: result.data is {data!r}, not {value!r}")
        return Result(blocks, structured, result.is_error)


async def main() -> None:
    server = SERVER[0] if OVER_HTTP else StdioTransport(SERVER[0], SERVER[1:], keep_alive=False)
    async with Client(
        server,
        mode=checks.MODERN if MODE == "modern" else MODE,
        elicitation_handler=elicit,
        sampling_handler=sample,
        timeout=checks.SECONDS,
    ) as client:
        await checks.run(Adapter(client), person)


asyncio.run(main())

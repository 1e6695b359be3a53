"""A legacy client with a model but nobody to ask: questions for the model reach it as requests."""

import asyncio
import json
from typing import Any

import pytest

from driving import LIMIT
from midcall import Ask, Hub, method
from midcall.mcp import McpExtension
from midcall.plexus.protocol import Connection


class Writer:
    @method
    async def summarize(self, ask: Ask) -> str:
        return (await ask.sample("Summarize", max_tokens=50)).text


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25"])
def test_a_client_that_declares_only_sampling_is_sampled(revision: str) -> None:
    async def run() -> None:
        sent: list[dict[str, Any]] = []
        hub = Hub("test").register(Writer()).with_extension(McpExtension())
        connection = Connection(hub, lambda line: sent.append(json.loads(line)), raw=False)

        async def exchange(message: dict[str, Any]) -> dict[str, Any]:
            connection.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())
            async with asyncio.timeout(LIMIT):
                while not sent:
                    await asyncio.sleep(0)
            return sent.pop(0)

        hello = {
            "protocolVersion": revision,
            "capabilities": {"sampling": {}},
            "clientInfo": {"name": "test", "version": "1"},
        }
        await exchange({"id": 1, "method": "initialize", "params": hello})
        call = {"name": "writer.summarize", "arguments": {}}
        question = await exchange({"id": 2, "method": "tools/call", "params": call})
        assert question["method"] == "sampling/createMessage"
        said = {"role": "assistant", "content": {"type": "text", "text": "All is well"}, "model": "none"}
        answer = await exchange({"id": question["id"], "result": said})
        assert answer["id"] == 2
        assert answer["result"]["content"] == [{"type": "text", "text": "All is well"}]
        await connection.close()

    asyncio.run(run())

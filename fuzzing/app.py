"""The server that is fuzzed: `python fuzzing/app.py --port N`, or `--stdio`.

Its tools do no harm, and a question waits for two seconds at most, as a fuzzer does not answer. What streams
is short: a tool that is told to take hours counts as a hang, and after a line of 64 kB the fuzzer is lost.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import BaseModel, Field

from midcall import Ask, Hub, method, prompt, resource
from midcall.activations import Health
from midcall.mcp import McpExtension


class Order(BaseModel):
    """Something nested, with constraints."""

    items: list[str] = Field(max_length=100)
    amount: int = Field(ge=0, le=1_000_000)
    note: str | None = None


class Target:
    """Tools, resources and prompts of many shapes."""

    @method
    async def order(self, order: Order, urgent: bool = False) -> Order:
        """Take an order."""
        return order

    @method
    def plain(
        self, number: float, words: list[str] | None = None, table: dict[str, int] | None = None
    ) -> Any:
        """Take standard types, in a thread."""
        return {"number": number, "words": words, "table": table}

    @method
    async def ask(self, question: str, ask: Ask) -> str:
        """Ask something."""
        return await ask.or_else(prompt="nobody").prompt(question, timeout=2)

    @method
    async def stream(
        self, word: str, count: Annotated[int, Field(ge=1, le=20)] = 1
    ) -> AsyncIterator[dict[str, Any]]:
        """Say a word several times."""
        for number in range(count):
            await asyncio.sleep(0.01)
            yield {"word": word[:100], "number": number}

    @method
    async def fail(self, message: str = "") -> None:
        """Fail as a tool with a bug does."""
        raise RuntimeError(message)

    @resource("target://text")
    async def text(self) -> str:
        """A text."""
        return "text"

    @resource("target://{name}/{number}")
    async def part(self, name: str, number: int) -> str:
        """A part of something."""
        return f"{name} {number}"

    @prompt
    async def write(self, topic: str, length: int = 10) -> str:
        """Ask for a text."""
        return f"Write {length} words about {topic}"


hub = Hub("fuzzed").register(Target()).register(Health()).with_extension(McpExtension())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--stdio", action="store_true")
    options = parser.parse_args()
    if options.stdio:
        from midcall.transports.stdio import serve_stdio  # noqa: PLC0415

        asyncio.run(serve_stdio(hub))
    else:
        from midcall.transports.http_server import server  # noqa: PLC0415

        asyncio.run(server(hub, port=options.port, log_level="warning").serve())


if __name__ == "__main__":
    main()

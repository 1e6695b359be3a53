"""The server that coding agents are tried against: one tool that answers, one that confirms, one with a form.

python compliance/agents/app.py --port 8000      serves it at http://127.0.0.1:8000/mcp
python compliance/agents/app.py --stdio          serves it on standard input and output
"""

import argparse
import asyncio
from typing import Literal

from pydantic import BaseModel, Field

from midcall import Ask, Hub, method
from midcall.activations.flights import Flights
from midcall.mcp import McpExtension


class Order(BaseModel):
    """Which pizza do you want?"""

    name: str = Field(description="For whom is it?")
    size: Literal["small", "large"]
    cheese: bool = Field(default=False, description="With more cheese?")


class Tools:
    """What the agents call."""

    namespace = ""

    @method
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @method
    async def remove(self, name: str, ask: Ask) -> str:
        """Remove something, if the person agrees."""
        return f"{name} is gone" if await ask.confirm(f"Remove {name}?") else f"{name} is still there"

    @method
    async def order(self, ask: Ask) -> str:
        """Order a pizza, by a form of three questions."""
        order = await ask.form(Order)
        return f"A {order.size} pizza for {order.name}{' with more cheese' if order.cheese else ''}"


hub = Hub("pizzeria").register(Tools()).register(Flights()).with_extension(McpExtension())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--stdio", action="store_true")
    options = parser.parse_args()
    if options.stdio:
        from midcall.transports.stdio import serve_stdio  # noqa: PLC0415

        asyncio.run(serve_stdio(hub, raw=False))
    else:
        from midcall.transports.http_server import server  # noqa: PLC0415

        asyncio.run(server(hub, port=options.port, log_level="warning").serve())


if __name__ == "__main__":
    main()

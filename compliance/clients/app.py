"""The server that the official clients are tried against: tools and a state machine, one source for all.

One is the booking of the demo, which is in its chat too: `POST /chat`. Below `twenty.` are those of
`examples/twenty.py`.

python compliance/clients/app.py --port 8000      serves it at http://127.0.0.1:8000/mcp, and at /sse
python compliance/clients/app.py --stdio          serves it on standard input and output
"""

import argparse
import asyncio
import importlib
import sys
from pathlib import Path

from msgspec import Struct

from midcall import Ask, Hub, method
from midcall.activations.demo import RULES, flights_plugin
from midcall.activations.flights import Flights
from midcall.chat import ChatEngine
from midcall.fsm import MachineBuilder
from midcall.mcp import McpExtension
from midcall.models.scripted import Scripted


class Sum(Struct):
    """What comes out of an addition."""

    total: int


class Greeting(Struct):
    """What the machine ends with."""

    greeting: str


class Tools:
    """What the clients call."""

    namespace = ""

    @method
    async def add(self, a: int, b: int) -> Sum:
        """Add two numbers."""
        return Sum(a + b)

    @method
    async def count(self, to: int, ask: Ask) -> str:
        """Count, and tell how far it is."""
        for number in range(1, to + 1):
            ask.progress(f"{number} of {to}", 100 * number / to)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)  # TypeScript clients drop a report that they read together with the result
        return f"Counted to {to}"

    @method
    async def order(self, ask: Ask) -> str:
        """Order a pizza in three questions."""
        if not await ask.confirm("Do you want a pizza?"):
            return "Nothing ordered"
        name = await ask.prompt("For whom is it?")
        size = await ask.select("Which size?", ["small", "large"])
        return f"A {size} pizza for {name}"

    @method
    async def summarize(self, text: str, ask: Ask) -> str:
        """Ask the client's model for a summary."""
        return f"In short: {(await ask.sample(f'Summarize: {text}', max_tokens=50)).text}"


greeting = (
    MachineBuilder("greeting", "Greets somebody, if a person agrees.")
    .ask("agree", "Shall somebody be greeted?")
    .ask("whom", "Who is it?")
    .function("greet", lambda event: {"greeting": f"Hello, {event['text']}"})
    .to("start", "agree")
    .to("agree", "whom")
    .to("whom", "greet", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
    .to("greet", "end", Greeting)
)

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
twenty = importlib.import_module("twenty").hub
hub = Hub("pizzeria").register(Tools()).register(Flights()).register_machine(greeting)
hub.register_hub(twenty, namespace="twenty")
hub.with_extension(McpExtension())
chat = ChatEngine(hub, Scripted(RULES), plugins=[flights_plugin()])


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

        asyncio.run(
            server(hub, port=options.port, log_level="warning", sse=True, parts=[chat.part()]).serve()
        )


if __name__ == "__main__":
    main()

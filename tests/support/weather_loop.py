"""The tool loop as a machine that a very small model can drive: it has an example, and one call at a time."""

from midcall import Hub, method
from midcall.fsm import MachineBuilder
from midcall.models.base import Model

EXAMPLE = """Example:
user: {"question": "How is the weather in Rome?", "id": ["start", "llm"]}
assistant: {"id": ["llm", "servicing"],
"tool_calls": [{"id": "1", "name": "weather.today", "arguments": {"city": "Rome"}}]}
user: {"tool_results": [{"call_id": "1", "success": true, "result": "rainy in Rome, 15 degrees"}],
"id": ["servicing", "llm"]}
assistant: {"id": ["llm", "end"], "answer": "It is rainy in Rome, with 15 degrees."}"""

CALLED = [["start", "llm"], ["llm", "servicing"], ["servicing", "llm"], ["llm", "end"]]
"""The events of a run that asks the tool once."""


class Weather:
    """The weather."""

    @method
    async def today(self, city: str) -> str:
        """The weather of today in a city."""
        return f"sunny in {city}, 21 degrees"


def weather_loop(temperature: float) -> MachineBuilder:
    return (
        MachineBuilder("weather_loop", "You answer questions about the weather.", prompts=[EXAMPLE])
        .model("llm", temperature=temperature, max_tokens=150)
        .tools("servicing", "weather.*")
        .to("start", "llm", _text("question"))
        .to("llm", "servicing", _ONE_CALL, description="Look up the weather with a tool")
        .to("servicing", "llm")
        .to("llm", "end", _text("answer"), description="Answer, once the tool has said what the weather is")
    )


def weather_hub(model: Model, temperature: float = 0.0) -> Hub:
    return Hub().register(Weather()).register_machine(weather_loop(temperature), model=model)


def _text(name: str) -> dict[str, object]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


_ONE_CALL = {
    "type": "object",
    "properties": {"tool_calls": {"type": "array", "maxItems": 1}},
    "required": ["tool_calls"],
}

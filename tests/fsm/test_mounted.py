"""Machines whose tools are of mounted servers: one that others have written, and one that answers in any order."""

import json
import random
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from compliance.harness.install import InstallError, npm_package

from midcall import Hub
from midcall.fsm import Event, MachineBuilder
from mounting import drive, mounted
from peers import HERE
from spoken import Spoken

ROOT = Path(__file__).parents[2]
SHUFFLING = [sys.executable, str(HERE / "shuffling_server.py")]
EVERYTHING = ("@modelcontextprotocol/server-everything", "2026.8.31")
CALLS = 50

QUESTION = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
TOOL_CALL = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["id", "name", "arguments"],
}
TOOL_RESULT = {
    "type": "object",
    "properties": {"call_id": {"type": "string"}, "success": {"type": "boolean"}, "result": {}, "error": {"type": "string"}},
    "required": ["call_id", "success"],
}  # fmt: skip


def listed(name: str, items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "array", "items": items}}, "required": [name]}


LOOP = {
    "id": "loop",
    "states": [
        {"id": "llm", "action": "llm"},
        {"id": "servicing", "action": "tools", "config": {"tools": ["remote.*"]}},
    ],
    "xitions": [
        {"id": ["start", "llm"], "schema": QUESTION},
        {"id": ["llm", "servicing"], "schema": listed("tool_calls", TOOL_CALL)},
        {"id": ["servicing", "llm"], "schema": listed("tool_results", TOOL_RESULT)},
        {"id": ["llm", "end"], "schema": ANSWER},
    ],
}


@pytest.fixture(scope="session")
def everything() -> list[str]:
    """The command of the server that the makers of MCP try clients with."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("server-everything needs Node and npm")
    try:
        folder = npm_package(ROOT / ".cache" / "tests", *EVERYTHING, print)
    except InstallError as error:
        pytest.skip(f"server-everything cannot be had: {error}")
    return [node, str(folder / "node_modules" / EVERYTHING[0] / "dist" / "index.js"), "stdio"]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "name": name, "arguments": arguments}


def test_the_tool_loop_event_by_event_with_a_server_of_others(everything: list[str]) -> None:
    sums = [call("remote.get-sum", a=2, b=3), call("remote.get-sum", a="two", b=3), call("remote.nothing")]
    echo = call("remote.echo", message="five")
    weather = call("remote.get-structured-content", location="New York")
    model = Spoken(
        {"id": ["llm", "servicing"], "tool_calls": sums},
        {"id": "tool_calls", "calls": [echo, weather]},
        {"id": ["llm", "end"], "answer": "five"},
    )

    async def main() -> Any:
        async with mounted(everything, "remote") as hub:
            hub.register_machine(LOOP, model=model)
            return msgspec.to_builtins(await hub.call("machines.loop", {"question": "2+3?"}))

    trail = drive(main())
    assert [(one["from"], one["to"]) for one in trail] == [
        ("start", "llm"),
        ("llm", "servicing"),
        ("servicing", "llm"),
        ("llm", "servicing"),
        ("servicing", "llm"),
        ("llm", "end"),
    ]
    assert trail[0]["event"] == {"id": ["start", "llm"], "question": "2+3?"}
    assert trail[1]["event"] == {"id": ["llm", "servicing"], "tool_calls": sums}
    added, refused, missing = trail[2]["event"]["tool_results"]
    assert added == {"call_id": sums[0]["id"], "success": True, "result": "The sum of 2 and 3 is 5."}
    assert (refused["call_id"], refused["success"]) == (sums[1]["id"], False)
    assert "two" in refused["error"] or "number" in refused["error"]
    assert (missing["call_id"], missing["success"]) == (sums[2]["id"], False)
    assert "remote.nothing" in missing["error"]
    assert trail[3]["event"] == {"id": ["llm", "servicing"], "tool_calls": [echo, weather]}
    echoed, told = trail[4]["event"]["tool_results"]
    assert echoed == {"call_id": echo["id"], "success": True, "result": "Echo: five"}
    assert told["result"]["temperature"] == 33
    assert trail[5]["event"] == {"id": ["llm", "end"], "answer": "five"}
    system = str(model.asked[0].system)
    assert "- remote.get-sum: " in system, "the model is told which tools there are"
    offered = model.asked[0].schema["oneOf"][0]["properties"]["tool_calls"]["items"]["oneOf"]  # type: ignore[index]
    assert "remote.echo" in [one["properties"]["name"]["const"] for one in offered]


def fifty(name: str, *, parallel: bool) -> MachineBuilder:
    """A machine that calls a tool fifty times, with words of its own."""

    def calls(event: Event) -> dict[str, Any]:
        made = [call("remote.echo", text=f"{name} {number}") for number in range(CALLS)]
        random.shuffle(made)
        return {"tool_calls": made}

    async def kept(event: Event, moment: Any) -> dict[str, Any]:
        return {"calls": moment.trail[1].event["tool_calls"], "results": event["tool_results"]}

    return (
        MachineBuilder(name).function("make", calls).tools("echo", "remote.echo", parallel=parallel).function("kept", kept)
        .to("start", "make").to("make", "echo").to("echo", "kept").to("kept", "end")
    )  # fmt: skip


@pytest.mark.parametrize("parallel", [True, False], ids=["at once", "in turn"])
def test_calls_of_branches_over_one_server_are_never_mixed(parallel: bool) -> None:
    built = MachineBuilder("m").parallel(
        "both",
        {name: {"action": "machine", "config": {"machine": name}} for name in ("ann", "bob")},
    )
    built.to("start", "both").to("both", "end")

    async def main() -> Any:
        async with mounted(SHUFFLING, "remote") as hub:
            for name in ("ann", "bob"):
                hub.register_machine(fifty(name, parallel=parallel))
            return (await hub.register_machine(built).call("machines.m", {}))[-1].event["results"]

    results = drive(main())
    for name in ("ann", "bob"):
        assert results[name]["status"] == "success"
        made, came = results[name]["value"]["calls"], results[name]["value"]["results"]
        assert len(came) == CALLS
        for one, result in zip(made, came, strict=True):
            wanted = {"call_id": one["id"], "success": True, "result": one["arguments"]["text"]}
            assert result == wanted
            assert result["result"].startswith(name)


def test_a_branch_that_takes_too_long_does_not_hold_the_others() -> None:
    def echo(text: str, name: str = "echo", **options: Any) -> dict[str, Any]:
        config = {"method": f"remote.{name}", "arguments": {"text": text}}
        return {"action": "method", "config": config, **options}

    branches = {"late": echo("x", "hang", timeout=0.2), "good": echo("one"), "other": echo("two")}
    built = MachineBuilder("m").parallel("all", branches).to("start", "all").to("all", "end")

    async def main() -> Any:
        async with mounted(SHUFFLING, "remote") as hub:
            return (await hub.register_machine(built).call("machines.m", {}))[-1].event["results"]

    results = drive(main())
    assert results["good"] == {"status": "success", "value": "one"}
    assert results["other"] == {"status": "success", "value": "two"}
    assert results["late"]["status"] == "timeout"


def test_a_hub_whose_server_is_away_tells_the_model_so() -> None:
    model = Spoken(
        {"id": ["llm", "servicing"], "tool_calls": [call("remote.echo", text="x")]},
        lambda request: {"id": ["llm", "end"], "answer": json.loads(request.messages[-1].content)["tool_results"][0]["error"]},
    )  # fmt: skip

    async def main() -> Any:
        hub = Hub().mount("remote", [sys.executable, "-c", "raise SystemExit(1)"])
        hub.register_machine(LOOP, model=model)
        await hub.open()
        try:
            return (await hub.call("machines.loop", {"question": "?"}))[-1].event
        finally:
            await hub.close()

    assert drive(main())["answer"]

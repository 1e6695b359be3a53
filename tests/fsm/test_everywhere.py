"""One machine, however it is called: as a method, as an MCP tool, in the chat, as a command, over HTTP, as a state of
another machine and in a chain. It gives the same event.
"""

import asyncio
import importlib.util
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from chatting import Person, Puppet, call, only, questions, serving
from command_line import SUCCESS, midcall
from driving import drive
from midcall import Hub, connect
from midcall.chat import ChatEngine
from midcall.fsm import MachineBuilder, chain

EXAMPLE = Path(__file__).parents[2] / "examples" / "approval.py"

SMALL = {"item": "tea", "amount": 3}
LARGE = {"item": "a chair", "amount": 120}
RECEIPTS = {"tea": "tea: 3.00 paid", "a chair": "a chair: 120.00 paid"}
PURCHASE = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["item", "amount"],
}
RECEIPT = {"type": "object", "properties": {"receipt": {"type": "string"}}, "required": ["receipt"]}
YES = "approved"

Way = Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]


def approval() -> Any:
    """The example, as a module of its own."""
    spec = importlib.util.spec_from_file_location("approval", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def as_method(given: dict[str, Any]) -> Any:
    return (await approval().hub.call("machines.approval", given, answer=lambda _: YES))[-1].event


def as_tool(era: Any) -> Way:
    async def run(given: dict[str, Any]) -> Any:
        async with connect(approval().hub, era=era, answer=lambda _: YES) as client:
            result = await client.call("machines.approval", given)
            assert json.loads(result.text) == result.structured
            return result.structured

    return run


async def in_the_chat(given: dict[str, Any]) -> Any:
    model = Puppet(call("machines__approval", **given), "It is bought.")
    async with serving(ChatEngine(approval().hub, model)) as port:
        person = Person(port)
        events = await person.say("buy it")
        if asked := questions(events):
            events = await person.answer(asked[0], choice=YES)
        assert only(events, "tool_result")
        return json.loads(model.told[-1].content)


def by_command(*command: str) -> Way:
    async def run(given: dict[str, Any]) -> Any:
        argv = [*command, f"{EXAMPLE}:hub", "machines.approval", "--params", json.dumps(given)]
        ran = await asyncio.to_thread(midcall, *argv, "--answer", f"select={YES}", "--json")
        assert ran.returncode == SUCCESS, ran.stderr
        items = [json.loads(line) for line in ran.stdout.splitlines()]
        return [item["content"]["event"] for item in items if item["type"] == "data"][-1]

    return run


async def by_request(given: dict[str, Any]) -> Any:
    async with serving(ChatEngine(approval().hub, Puppet())) as port:
        status, _, body = await Person(port).request("POST", "/fsm/approval/run", given)
    assert status == 200
    return json.loads(body)["event"]


async def as_state(given: dict[str, Any]) -> Any:
    outer = (
        MachineBuilder("outer").machine("payment", "approval")
        .to("start", "payment", PURCHASE).to("payment", "end", RECEIPT)
    )  # fmt: skip
    hub: Hub = approval().hub.register_machine(outer)
    return (await hub.call("machines.outer", given, answer=lambda _: YES))[-1].event


async def in_a_chain(given: dict[str, Any]) -> Any:
    made = approval()
    checked = MachineBuilder("checked").function("same", dict)
    checked.to("start", "same", PURCHASE).to("same", "end", PURCHASE)
    hub = Hub().register(made.Bank()).register_machine(made.payment)
    hub.register_machine(chain(checked, made.approval, id="bought"))
    event = (await hub.call("machines.bought", given, answer=lambda _: YES))[-1].event
    assert event["id"] == ["approval", "end"]
    return {**event, "id": ["payment", "end"]}


WAYS: dict[str, Way] = {
    "method": as_method,
    "legacy": as_tool("legacy"),
    "modern": as_tool("modern"),
    "chat": in_the_chat,
    "call": by_command("call"),
    "request": by_request,
    "state": as_state,
    "chain": in_a_chain,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_machine_gives_the_same_event_however_it_is_called(way: str) -> None:
    assert drive(WAYS[way](SMALL)) == {"id": ["payment", "end"], "receipt": RECEIPTS["tea"]}


@pytest.mark.parametrize("way", [way for way in WAYS if way != "request"])
def test_also_if_a_person_is_asked_on_the_way(way: str) -> None:
    assert drive(WAYS[way](LARGE)) == {"id": ["payment", "end"], "receipt": RECEIPTS["a chair"]}


def test_the_command_for_machines_asks_too() -> None:
    ran = midcall("fsm", "run", f"{EXAMPLE}:hub", "approval", json.dumps(SMALL))
    assert ran.returncode == SUCCESS
    assert RECEIPTS["tea"] in ran.stdout

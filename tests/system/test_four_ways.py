"""One tool, four ways in: the same items and the same validation errors."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import lines_app
from driving import LIMIT
from midcall import InvalidArguments, MidcallError
from midcall.items import decode_item, encode_item
from midcall.testing import run
from peers import Peer, command, environment, stdio_peer, websocket_peer

Way = Callable[[str, Any, list[Any]], Awaitable[list[Any] | str]]


async def in_process(name: str, params: Any, answers: list[Any]) -> list[Any] | str:
    try:
        outcome = await run(lines_app.hub, name, params, answers=answers)
    except MidcallError as error:
        return str(error)
    return [json.loads(encode_item(item)) for item in outcome.items]


async def in_a_terminal(name: str, params: Any, answers: list[Any]) -> list[Any] | str:
    given = [f"--answer={number}={json.dumps(answer)}" for number, answer in enumerate(answers, 1)]
    done = await asyncio.to_thread(
        subprocess.run,
        command("call", "lines_app:hub", name, "--params", json.dumps(params), "--json", *given),
        env=environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT,
    )
    if done.returncode == 2:
        return str(done.stderr)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def over_stdio(name: str, params: Any, answers: list[Any]) -> list[Any] | str:
    async with stdio_peer() as peer:
        return await over_a_line(peer, name, params, answers)


async def over_websocket(name: str, params: Any, answers: list[Any]) -> list[Any] | str:
    async with websocket_peer() as peer:
        return await over_a_line(peer, name, params, answers)


async def over_a_line(peer: Peer, name: str, params: Any, answers: list[Any]) -> list[Any] | str:
    response = await peer.request("plexus_subscribe", [name, params])
    if "error" in response:
        return str(response["error"]["message"])
    items: list[Any] = []
    left = list(answers)
    while True:
        message = await peer.receive()
        if message.get("method") != "plexus_subscription":
            continue
        items.append(message["params"]["result"])
        if items[-1]["type"] == "request":
            await peer.result("plexus_respond", [response["result"], items[-1]["request_id"], left.pop(0)])
        if items[-1]["type"] == "done":
            return items


def comparable(item: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from run to run."""
    decode_item(json.dumps(item).encode())  # it is an item
    item = {**item, "metadata": {**item["metadata"], "timestamp": 0}}
    if "request_id" in item:
        item["request_id"] = "?"
    return item


ways = pytest.mark.parametrize(
    "way",
    [in_process, in_a_terminal, over_stdio, over_websocket],
    ids=["in-process", "terminal", "stdio", "websocket"],
)


def expected_items(name: str, params: Any, answers: list[Any]) -> list[Any]:
    items = asyncio.run(in_process(name, params, answers))
    assert isinstance(items, list)
    return [comparable(item) for item in items]


@ways
@pytest.mark.parametrize(
    ("name", "params", "answers", "types"),
    [
        (
            "interactive.wizard",
            {},
            ["demo", "full", True],
            [
                "data",
                "request",
                "data",
                "request",
                "data",
                "request",
                "progress",
                "progress",
                "progress",
                "data",
                "done",
            ],
        ),
        (
            "interactive.delete",
            {"ids": ["a", "b"]},
            [True],
            ["request", "progress", "data", "progress", "data", "done"],
        ),
        ("interactive.delete", {"ids": ["a"]}, [False], ["request", "data", "done"]),
        ("interactive.confirm", {"message": "Sure?"}, [True], ["request", "data", "done"]),
        ("echo.echo", {"message": "hi", "count": 2}, [], ["data", "data", "done"]),
    ],
    ids=["wizard", "delete", "delete-declined", "confirm", "no-question"],
)
def test_the_same_items_come_by_every_way(
    way: Way, name: str, params: Any, answers: list[Any], types: list[str]
) -> None:
    items = asyncio.run(way(name, params, answers))
    assert isinstance(items, list), items
    assert [item["type"] for item in items] == types
    assert [comparable(item) for item in items] == expected_items(name, params, answers)


@ways
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("interactive.delete", {}),
        ("interactive.delete", {"ids": "a"}),
        ("interactive.delete", {"ids": [1], "more": True}),
        ("echo.echo", {"message": "x", "count": 0}),
        ("echo.echo", {"message": "x", "count": "many"}),
    ],
)
def test_the_same_validation_errors_come_by_every_way(way: Way, name: str, params: Any) -> None:
    with pytest.raises(InvalidArguments) as refused:
        lines_app.hub.resolve(name).method.read_arguments(json.dumps(params).encode(), name)
    told = asyncio.run(way(name, params, []))
    assert isinstance(told, str), told
    assert str(refused.value) in told


@ways
def test_the_same_error_comes_for_an_unknown_method_by_every_way(way: Way) -> None:
    told = asyncio.run(way("interactive.wizzard", {}, []))
    assert isinstance(told, str)
    assert "Unknown method: interactive.wizzard. Did you mean interactive.wizard" in told

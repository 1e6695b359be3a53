"""Twenty short tools, each called in every way: the same value everywhere.

`compliance/clients.py` does so with the official clients that the tests do not have.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import ElicitResult

from chatting import Person, Puppet, questions, serving
from command_line import FAILED, SUCCESS
from driving import LIMIT, drive
from mcp_peers import MODERN, http_server
from midcall.chat import ChatEngine
from midcall.items import to_builtins
from midcall.models.base import ToolCall
from midcall.testing import run
from peers import command, environment, websocket_peer

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGET = f"{EXAMPLES / 'twenty.py'}:hub"
TWENTY: list[dict[str, Any]] = json.loads((EXAMPLES / "twenty.json").read_text())
NAMES = [one["tool"] for one in TWENTY]
FORM = {"name": "Ada", "likes": ["tea"], "born": "1815-12-10", "home": {"street": "Main"}}
ANSWERS: dict[str, Any] = {"delete": True, "introduce": FORM}


def load() -> Any:
    spec = importlib.util.spec_from_file_location("twenty", EXAMPLES / "twenty.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["twenty"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.hub


hub = load()


def block(part: Any) -> Any:
    """A block of content, as `twenty.json` has it."""
    match part:
        case {"type": "text", "text": text}:
            return text
        case {"type": "resource", "resource": {"mimeType": kind, "text": text}}:
            return ["resource", kind, text]
        case {"type": kind, "data": data, "mimeType": mime_type}:
            return [kind, mime_type, data]
    return part


def seen(tool: str, contents: Sequence[Any], error: str | None) -> dict[str, Any]:
    """What a call gave, item by item, as `twenty.json` has it."""
    if error is not None:
        return {"error": error}
    streaming = hub.schema(tool)["streaming"]
    if not streaming and contents in ([], [None]) and tool == "forget":
        return {"content": ["(no output)"]}
    if tool in ("dot", "beep", "report"):
        parts = contents[0] if isinstance(contents[0], list) else contents
        return {"content": [block(part) for part in parts]}
    if not streaming:
        return {"value": contents[0] if contents else None}
    return {"value": "".join(contents) if tool == "spell" else list(contents)}


def from_items(tool: str, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    errors = [item["message"] for item in items if item["type"] == "error"]
    contents = [item["content"] for item in items if item["type"] == "data"]
    return seen(tool, contents, errors[0] if errors else None)


def test_there_are_twenty() -> None:
    assert len(NAMES) == 20
    assert sorted(NAMES) == sorted(name for name, _ in hub.methods())


@pytest.mark.parametrize("mode", ["legacy", MODERN])
def test_the_official_client_sees_these_values(mode: str) -> None:
    answers: dict[str, Any] = {}

    async def answer(context: Any, params: Any) -> ElicitResult:
        fields = params.requested_schema["properties"]
        return ElicitResult(
            action="accept", content={name: answers[name] for name in fields if name in answers}
        )

    async def main(url: str) -> None:
        async with Client(url, mode=mode, elicitation_callback=answer, read_timeout_seconds=LIMIT) as client:
            for one in TWENTY:
                answers.clear()
                answers.update(one.get("answers", {}))
                result = await client.call_tool(one["tool"], one["arguments"])
                structured = result.structured_content
                if result.is_error:
                    saw: dict[str, Any] = {"error": result.content[0].text}
                elif structured is None:
                    blocks = [one.model_dump(mode="json", by_alias=True) for one in result.content]
                    saw = {"content": [block(part) for part in blocks]}
                else:
                    saw = {"value": structured["result"] if [*structured] == ["result"] else structured}
                assert saw == one["gives"], one["tool"]

    with http_server(TARGET) as server:
        drive(main(f"http://127.0.0.1:{server.port}/mcp"))


def test_a_test_of_the_author_sees_these_values() -> None:
    async def main() -> None:
        for one in TWENTY:
            name = one["tool"]
            outcome = await run(
                hub, name, one["arguments"], answers=[ANSWERS[name]] if name in ANSWERS else []
            )
            contents = [to_builtins(content) for content in outcome.contents]
            error = None if outcome.error is None else str(outcome.error)
            assert seen(name, contents, error) == one["gives"], name

    drive(main())


def test_the_wire_of_the_tools_page_carries_these_values() -> None:
    async def main() -> None:
        async with websocket_peer(TARGET) as peer:
            for one in TWENTY:
                subscribed = await peer.request("plexus_subscribe", [one["tool"], one["arguments"]])
                items: list[dict[str, Any]] = []
                while not items or items[-1]["type"] != "done":
                    message = await peer.receive()
                    if message.get("method") != "plexus_subscription":
                        continue
                    items.append(message["params"]["result"])
                    if items[-1]["type"] == "request":
                        given = [subscribed["result"], items[-1]["request_id"], ANSWERS[one["tool"]]]
                        await peer.result("plexus_respond", given)
                assert from_items(one["tool"], items) == one["gives"], one["tool"]

    drive(main())


@pytest.mark.parametrize("one", TWENTY, ids=NAMES)
def test_a_terminal_shows_these_values(one: dict[str, Any]) -> None:
    answer = ["--answer", f"1={json.dumps(ANSWERS[one['tool']])}"] if one["tool"] in ANSWERS else []
    argv = command("call", TARGET, one["tool"], "--params", json.dumps(one["arguments"]), "--json", *answer)
    done = subprocess.run(
        argv, env=environment(), capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT, check=False
    )
    assert done.returncode == (FAILED if "error" in one["gives"] else SUCCESS), done.stderr
    items = [json.loads(line) for line in done.stdout.splitlines()]
    assert from_items(one["tool"], items) == one["gives"]


def test_the_chat_shows_these_values() -> None:
    async def main() -> None:
        model = Puppet()
        async with serving(ChatEngine(hub, model)) as port:
            for one in TWENTY:
                model.answers = [ToolCall("call_1", one["tool"], json.dumps(one["arguments"])), "Done."]
                person = Person(port)
                events = await person.say("Go on")
                for asked in questions(events):
                    given = ANSWERS[one["tool"]]
                    content = given if isinstance(given, dict) else {"confirmed": given}
                    events = await person.answer(asked, **content)
                (end,) = (event for event in events if event["type"] in ("tool_result", "tool_error"))
                gives = one["gives"]
                if "value" in gives:
                    assert said(end) == gives["value"], one["tool"]
                elif "error" in gives:
                    assert end["message"] == gives["error"]
                else:  # what a model reads of content is no base64
                    assert len(end["content"]) < 20, end

    drive(main())


def said(end: dict[str, Any]) -> Any:
    """The value of a result in the chat: data, or else text."""
    if "structured" in end:
        return end["structured"]
    text = end["content"]
    if text == "(no output)":
        return None
    return json.loads(text) if text.startswith('"') else text

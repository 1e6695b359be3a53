"""Legacy MCP clients without elicitation: over HTTP their person answers by a link, while the call is on the line."""

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from driving import drive
from mcp_peers import FORMS, LATEST, HttpServer, over_stdio, text
from midcall import Ask, Hub
from midcall.call import Call
from midcall.errors import JournalError, UnknownLink, UnknownQuestion
from midcall.items import Request
from midcall.journal.admin import Admin
from midcall.journal.contract import Taking
from midcall.journal.dialect import Detached
from midcall.journal.durable import DurableCalls
from midcall.journal.memory import MemoryJournal
from midcall.mcp import CALL_KINDS, mcp_of
from midcall.open_questions import TIMED_OUT
from midcall.questions import PERSON_KINDS
from operating import Server, until
from people_app import CALLER, KEYS, OPS, OTHER, ROOT
from receivers import SECRET, Receiver

BIDIR = {"experimental": {"plexus.bidir": {}}}
UNKNOWN = (-32602, "Unknown tool: _plexus_respond")


def serving(folder: Path, *options: str, **more: Any) -> Server:
    return Server(folder, *options, **{"target": "people_app:hub", "MIDCALL_TOKENS": KEYS} | more)


def legacy(server: Server, capabilities: Any = None, token: str = CALLER) -> Any:
    return HttpServer(server.port).client(LATEST, capabilities, token=token)


async def begun(client: Any, tool: str, **arguments: Any) -> tuple[Any, Any, str]:
    """A call that waits: its id, what the log says of its question, and its link, which progress tells too."""
    id = await client.start("tools/call", {"name": tool, "arguments": arguments}, progressToken="p")
    data = (await client.message("notifications/message"))["params"]["data"]
    told = (await client.message("notifications/progress"))["params"]["message"]
    link = told.rpartition(" Answer at ")[2]
    return id, data, link


async def post(server: Server, link: str, answer: Any, token: str) -> int:
    path = link.removeprefix(server.url)
    assert path.startswith("/q/")
    return (await asyncio.to_thread(server.post, path, {"answer": answer}, token)).status


def test_the_person_answers_by_the_link_and_nobody_else_does(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with legacy(server) as client:
            id, data, link = await begun(client, "people.own")
            assert data["link"] == link
            assert data["request_type"] == {"Prompt": {"message": "Your name?"}}
            assert [await post(server, link, "Eve", token) for token in (OTHER, OPS)] == [404, 404]
            assert await post(server, link, {"no": "text"}, CALLER) == 422
            (shown,) = [
                one
                for call in (await asyncio.to_thread(server.get, "/calls", CALLER)).json["calls"]
                for one in call["questions"]
                if "link" in one
            ]
            assert shown["message"] == "Your name?"
            assert await post(server, link, "Ada", CALLER) == 200
            assert text((await client.response(id))["result"]) == "Hello Ada"
            assert await post(server, link, "Ada", CALLER) == 404
            late = {"request_id": data["request_id"], "payload": "late"}
            error = await client.error("tools/call", {"name": "_plexus_respond", "arguments": late})
            assert error[0] == -32602

    with serving(tmp_path) as server:
        drive(main(server))
        assert server.effects() == ["before", "hello Ada"]
        assert server.get("/calls", CALLER).json["calls"] == []


def test_an_answer_by_the_tool_ends_the_link(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with legacy(server) as client:
            id, data, link = await begun(client, "people.own")
            given = {"request_id": data["request_id"], "payload": "Ada"}
            await client.result("tools/call", {"name": "_plexus_respond", "arguments": given})
            assert text((await client.response(id))["result"]) == "Hello Ada"
            await asyncio.to_thread(
                until, lambda: server.get(link.removeprefix(server.url), CALLER).status == 404
            )

    with serving(tmp_path) as server:
        drive(main(server))


def test_a_caller_who_hangs_up_takes_the_link_along(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with legacy(server) as client:
            id, _, link = await begun(client, "people.own")
            path = link.removeprefix(server.url)
            assert (await asyncio.to_thread(server.get, path, CALLER)).status == 200
            await client.notify("notifications/cancelled", {"requestId": id})
            await asyncio.to_thread(until, lambda: server.get(path, CALLER).status == 404)

    with serving(tmp_path) as server:
        drive(main(server))


def test_the_result_says_why_nobody_answered_and_what_to_do(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with legacy(server) as client:
            id, data, link = await begun(client, "people.own", limit=0.5)
            assert 0 < data["timeout_ms"] <= 500
            result = (await client.response(id))["result"]
            assert result["isError"] is True
            why, what_to_do = (block["text"] for block in result["content"])
            assert why == "Nobody answered in time (after 0.5 seconds)"
            assert what_to_do == (
                f"This client cannot show questions, and nobody answered at {link} in time. Open "
                f"{server.url}/calls, call the tool again, and answer there; or use a client that supports "
                "elicitation."
            )
            assert await post(server, link, "late", CALLER) == 404

    with serving(tmp_path, "--metrics") as server:
        drive(main(server))


def test_questions_that_are_answered_either_way_are_counted_once(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with legacy(server, token=ROOT) as client:
            id, _, link = await begun(client, "people.own", limit=0.3)
            await client.response(id)
            id, _, link = await begun(client, "people.own")
            assert await post(server, link, "Root", ROOT) == 200
            await client.response(id)
            id, data, _ = await begun(client, "people.own")
            given = {"request_id": data["request_id"], "payload": "Root"}
            await client.result("tools/call", {"name": "_plexus_respond", "arguments": given})
            await client.response(id)

    with serving(tmp_path, "--metrics") as server:
        drive(main(server))
        figures = server.get("/metrics", ROOT).text
        ended = dict(re.findall(r'midcall_questions_ended_total\{outcome="(\w+)"\} (\S+)', figures))
        assert {name: float(count) for name, count in ended.items() if float(count)} == {
            "answered": 2,
            "timed_out": 1,
        }
        assert 'midcall_questions_asked_total{kind="prompt"} 3.0' in figures


@pytest.mark.parametrize("offered", ["always", "declared", "never"])
def test_an_operator_says_who_has_the_respond_tool(tmp_path: Path, offered: str) -> None:
    async def main(server: Server) -> None:
        for capabilities, has_it in (
            ({}, offered == "always"),
            (BIDIR, offered != "never"),
            ({"experimental": "odd"}, offered == "always"),
            (FORMS, False),
        ):
            async with legacy(server, capabilities) as client:
                tools = {tool["name"]: tool for tool in (await client.result("tools/list"))["tools"]}
                assert ("_plexus_respond" in tools) is has_it, capabilities
                if has_it:
                    assert "For programs, not for models" in tools["_plexus_respond"]["description"]
                if offered == "never":
                    error = await client.error("tools/call", {"name": "_plexus_respond", "arguments": {}})
                    assert error == UNKNOWN
        async with legacy(server) as client:
            id, data, link = await begun(client, "people.own")
            if offered != "always":
                assert data == {"type": "link", "message": f"Your name? Answer at {link}"}
            assert await post(server, link, "Ada", CALLER) == 200
            assert text((await client.response(id))["result"]) == "Hello Ada"

    with serving(tmp_path, "--respond-tool", offered) as server:
        drive(main(server))


def test_on_a_pipe_without_the_tool_nobody_can_be_asked_and_the_result_says_so() -> None:
    async def main() -> None:
        async with over_stdio(
            options=("--respond-tool", "never", "--public-url", "https://x.example")
        ) as client:
            result = await client.result("tools/call", {"name": "seek.prompt", "arguments": {}})
            why, what_to_do = (block["text"] for block in result["content"])
            assert why == "This caller cannot be asked: interactive mode required"
            assert what_to_do == "This client cannot show questions. Use one that supports elicitation."
        async with over_stdio() as client:
            id = await client.begin("seek.prompt", timeout=0.1)
            assert "link" not in (await client.message("notifications/message"))["params"]["data"]
            _, what_to_do = (block["text"] for block in (await client.response(id))["result"]["content"])
            assert what_to_do == (
                "This client cannot show questions. Use one that supports elicitation, or a program that answers "
                "by the tool _plexus_respond."
            )

    drive(main())


def test_the_same_in_python(tmp_path: Path) -> None:
    hub = Hub()
    hub.asgi(public_url="https://tools.example.com", respond_tool="declared")
    assert mcp_of(hub).respond_tool == "declared"
    with pytest.raises(ValueError, match="web pages"):
        hub.asgi(public_url="tools.example.com")


class Kept:
    """An outlet that keeps everything."""

    full = False

    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)

    async def drain(self) -> None:
        """Nobody is behind."""


@pytest.mark.parametrize("at_once", [True, False], ids=["never kept", "lost later"])
def test_a_question_that_cannot_be_kept_is_asked_without_a_link(at_once: bool) -> None:
    hub = Hub()

    @hub.method
    async def name(ask: Ask, limit: float = 30) -> str:
        return await ask.prompt("Your name?", timeout=limit)

    def away(call: Call, wanted: Any, settle: Any, send: Any) -> Any:
        if not at_once:
            send("https://tools.example.com/q/x")
        settle(None, JournalError("away"))
        return lambda reason: None

    async def main() -> None:
        hub.calls.ask_elsewhere = away
        for arguments, answer in ((b"{}", "Ada"), (b'{"limit": 0.05}', None)):
            kept = Kept()
            call = hub.prepare(hub.resolve("name"), arguments, kept, supported=PERSON_KINDS)
            call.gives_links = True
            hub.calls.start(call)
            while not kept.items:
                await asyncio.sleep(0)
            assert kept.items[0].link == (None if at_once else "https://tools.example.com/q/x")
            if answer is not None:
                hub.calls.answer(kept.items[0].request_id, answer)
            assert call.task is not None
            await call.task
            said = {"content": "Ada"} if answer else {"reason": TIMED_OUT}
            assert {key: getattr(kept.items[1], key) for key in said} == said
            assert sum(isinstance(item, Request) for item in kept.items) == 1

    drive(main())


@pytest.mark.parametrize("wins", ["the tool", "the link", "the tool after all"])
def test_of_the_tool_and_the_link_one_is_taken_and_the_other_is_told_so(
    monkeypatch: pytest.MonkeyPatch, wins: str
) -> None:
    hub = Hub()

    @hub.method
    async def name(ask: Ask) -> str:
        return await ask.prompt("Your name?")

    durable = hub.durable = DurableCalls(hub, MemoryJournal(), public_url="https://tools.example.com")

    async def main() -> None:
        kept = Kept()
        call = hub.prepare(hub.resolve("name"), b"{}", kept, supported=PERSON_KINDS)
        call.gives_links = True
        hub.calls.start(call)
        while not kept.items:
            await asyncio.sleep(0)
        asked = kept.items[0]
        write = Detached.write

        async def meanwhile(self: Detached, what: Any) -> Any:
            if isinstance(what, Taking):
                with pytest.raises(UnknownQuestion):
                    hub.calls.answer(asked.request_id, "the tool")
                if wins == "the tool after all":
                    raise JournalError("away")
            return await write(self, what)

        monkeypatch.setattr(Detached, "write", meanwhile)
        if wins == "the tool":
            hub.calls.answer(asked.request_id, "the tool")
        admin = Admin(durable.journal, CALL_KINDS, durable=durable)
        lost = {"the tool": UnknownLink, "the tool after all": JournalError}.get(wins)
        with contextlib.nullcontext() if lost is None else pytest.raises(lost):
            await admin.answer_linked(asked.link.rpartition("/")[2], "the link", None)
        if wins == "the tool after all":
            hub.calls.answer(asked.request_id, "the tool")
        assert call.task is not None
        await call.task
        assert kept.items[1].content == wins.removesuffix(" after all")
        await hub.close()

    drive(main())


def test_people_are_told_of_it_too_if_it_waits_for_long(tmp_path: Path) -> None:
    async def main(server: Server, receiver: Receiver) -> None:
        async with legacy(server) as client:
            id, _, _ = await begun(client, "people.own")
            await asyncio.to_thread(until, lambda: receiver.told)
            assert await post(server, receiver.told[0].data["link"], "Ada", CALLER) == 200
            assert text((await client.response(id))["result"]) == "Hello Ada"

    with Receiver() as receiver:
        notify = ("--notify-webhook", receiver.url, "--notify-after", "0")
        with serving(tmp_path, *notify, MIDCALL_WEBHOOK_SECRET=SECRET) as server:
            drive(main(server, receiver))

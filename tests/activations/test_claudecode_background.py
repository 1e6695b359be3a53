"""Chats with Claude Code in the background: started, polled, asked about, by whoever started them and nobody else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from claude_app import Stage, recorded
from driving import LIMIT, drive
from midcall import Hub, MidcallError, Request
from midcall.items import to_json
from midcall.journal.choose import choose_journal
from midcall.journal.durable import DurableCalls
from midcall.principal import Principal
from midcall.questions import KINDS

LONG = 2 * LIMIT


class Background:
    """A chat in the background, and a person who polls."""

    def __init__(self, hub: Hub, stream_id: str, principal: str | None = "ada") -> None:
        self.hub = hub
        self.stream_id = stream_id
        self.principal = principal
        self.events: list[Any] = []
        self.asked: list[Any] = []

    async def poll(self, answer: Any = None, **more: Any) -> Any:
        """Poll for what is new; with an answer, whatever is asked is answered so."""

        def give(request: Request) -> Any:
            self.asked.append(request.request_type)
            return answer

        params = {"stream_id": self.stream_id, "from_seq": len(self.events), "wait": 5, **more}
        handler = None if answer is None else give
        found = await self.hub.call("claudecode.poll", params, principal=self.principal, answer=handler)
        assert [one.seq for one in found.events] == [len(self.events) + n for n in range(len(found.events))]
        assert found.read_position == len(self.events) + len(found.events)
        self.events += [one.event for one in found.events]
        return found

    async def until(self, status: str, answer: Any = None) -> Any:
        while (found := await self.poll(answer)).status != status:
            assert found.status in ("running", "awaiting_permission")
        return found

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


def hub_of(stage: Stage, folder: Path) -> Hub:
    """A hub whose calls are kept in a file."""
    stage.hub.durable = DurableCalls(stage.hub, choose_journal(str(folder / "journal.db"), "plexus"))
    return stage.hub


async def begun(hub: Hub, stage: Stage, principal: str = "ada") -> Background:
    folder = {"name": "first", "working_dir": str(stage.folder / "work")}
    await hub.call("claudecode.create", folder, principal=principal)
    task = {"session_name": "first", "query": "write one"}
    started = await hub.call("claudecode.chat_async", task, principal=principal)
    return Background(hub, started.stream_id, principal)


def test_a_chat_in_the_background_is_polled_and_whoever_polls_is_asked(tmp_path: Path) -> None:
    async def run() -> None:
        stage = Stage(tmp_path, recorded(tmp_path, "permission"))
        hub = hub_of(stage, tmp_path)
        chat = await begun(hub, stage)
        await chat.until("awaiting_permission")  # by somebody who cannot be asked
        assert chat.kinds() == ["start", "content", "tool_use"]
        (listed,) = (await hub.call("claudecode.streams", {}, principal="ada")).streams
        assert (listed.stream_id, listed.status) == (chat.stream_id, "awaiting_permission")

        ended = await chat.until("complete", "once")
        assert [type(one).__name__ for one in chat.asked] == ["Select"]
        assert "echo one >> note.txt" in chat.asked[0].message
        assert chat.kinds()[3:] == ["tool_result", "content", "complete"]
        assert not ended.has_more
        again = await hub.call(
            "claudecode.poll", {"stream_id": chat.stream_id, "from_seq": 1, "limit": 2}, principal="ada"
        )
        assert [one.event["type"] for one in again.events] == ["content", "tool_use"]
        assert (again.read_position, again.total_events, again.has_more) == (3, 6, True)
        named = {"session_name": "another"}
        assert (await hub.call("claudecode.streams", named, principal="ada")).streams == []
        await hub.close()

    drive(run(), LONG)


def test_a_poll_that_asks_keeps_no_more_of_a_chat_than_it_was_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        stage = Stage(tmp_path, recorded(tmp_path, "permission"))
        hub = hub_of(stage, tmp_path)
        chat = await begun(hub, stage)
        await chat.until("awaiting_permission")
        polled = to_json({"stream_id": chat.stream_id, "limit": 1})
        ada = Principal("ada", frozenset(["claudecode"]))
        durable = hub.durable
        poll = await durable.subscriptions.start("claudecode.poll", polled, KINDS, ada)
        while (found := await durable.journal.load(poll))[0].status != "waiting":
            await asyncio.sleep(0.02)
        kept = str(found[1])
        assert '"type":"start"' in kept
        assert '"type":"content"' not in kept
        await chat.until("complete", "once")
        await hub.close()

    drive(run(), LONG)


def test_nobody_else_sees_a_chat_in_the_background_or_answers_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        stage = Stage(tmp_path, recorded(tmp_path, "permission"))
        hub = hub_of(stage, tmp_path)
        chat = await begun(hub, stage)
        await chat.until("awaiting_permission")
        for who in ("eve", None):
            assert (await hub.call("claudecode.streams", {}, principal=who)).streams == []
            other = Background(hub, chat.stream_id, who)
            with pytest.raises(MidcallError, match=chat.stream_id):
                await other.poll("once")
            assert other.asked == []
        assert stage.processes == 2  # nothing was gone on with
        await chat.until("complete", "no")
        await hub.close()

    drive(run(), LONG)


def test_a_chat_in_the_background_goes_on_in_another_process(tmp_path: Path) -> None:
    async def run() -> None:
        stage = Stage(tmp_path, recorded(tmp_path, "permission"))
        chat = await begun(hub_of(stage, tmp_path), stage)
        await chat.until("awaiting_permission")
        await stage.hub.close()
        stage.hub = stage.make_hub()
        chat.hub = hub_of(stage, tmp_path)
        await chat.until("complete", "once")
        assert chat.kinds() == ["start", "content", "tool_use", "tool_result", "content", "complete"]
        assert stage.processes == 3
        await stage.hub.close()

    drive(run(), LONG)

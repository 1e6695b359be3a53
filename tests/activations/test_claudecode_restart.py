"""Claude Code and a server that dies: permissions wait in the journal, nothing is done twice, nobody is left."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from claude_app import NEEDS_PROGRAM, PLACES, SCRIPT, environment, marked, until_nobody_is_left
from driving import LIMIT, drive
from loopback_model import LoopbackModel, Pause, Say, loopback_model
from midcall import connect_hub
from midcall.items import Data
from operating import Server, accept, text_of

pytestmark = NEEDS_PROGRAM
LONG = 5 * LIMIT


@pytest.fixture
def model() -> Iterator[LoopbackModel]:
    with loopback_model({**SCRIPT, "never end": [[Say("I begin.\n"), Pause()]]}) as served:
        yield served


class Place:
    """A server of Claude Code that may die, and somebody who calls it as a modern MCP client does."""

    def __init__(self, model: LoopbackModel, folder: Path) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.env = environment(model, folder) | {"TMPDIR": str(self.temporary)}
        self.mark = self.env["CLAUDE_TEST_MARK"]
        self.work = folder / "work"
        self.server = Server(folder, "--log-level", "warning", target="claude_app:hub", **self.env)

    @property
    def lines(self) -> list[str]:
        file = self.work / PLACES
        return file.read_text().split() if file.exists() else []

    def left(self) -> list[str]:
        """The processes that are there beside the server."""
        return [one for one in marked(self.mark) if "midcall serve" not in one and "-m midcall" not in one]

    def logins(self) -> list[Path]:
        """Folders in which Claude Code has been given its logins."""
        return list(self.temporary.glob("claude-resume-*"))

    def create(self, name: str = "first") -> None:
        self.server.call("claudecode.create", name=name, working_dir=str(self.work))

    def chat(self, query: str, state: Any = None, answers: Any = None) -> Any:
        """Call, or come back with answers; waits until something is asked, or it has ended."""
        arguments = {"session_name": "first", "query": query}
        result = self.server.call("claudecode.chat", state=state, answers=answers, **arguments)
        while result.get("resultType") == "input_required" and not result.get("inputRequests"):
            result = self.server.call("claudecode.chat", state=result, **arguments)
        return result

    @contextmanager
    def calling(self, query: str, state: Any = None, answers: Any = None) -> Iterator[None]:
        """A call whose server dies."""

        def call() -> None:
            with suppress(OSError, HTTPException):
                self.chat(query, state, answers)

        thread = threading.Thread(target=call)
        thread.start()
        yield
        thread.join()


def asked(result: Any) -> tuple[str, str]:
    """The name and the message of the one question that is open."""
    ((name, request),) = result["inputRequests"].items()
    return name, request["params"]["message"]


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_permission_waits_through_kill_9_and_the_session_goes_on(
    model: LoopbackModel, tmp_path: Path
) -> None:
    place = Place(model, tmp_path)
    with place.server as server:
        place.create()
        waiting = place.chat("write one")
        name, message = asked(waiting)
        assert "echo one >> note.txt" in message
        assert place.left() == []  # nobody waits with the question but the journal
        server.kill()
        assert place.lines == []
        server.start()
        result = place.chat("write one", waiting, {name: accept(choice="once")})
        assert '"type":"complete"' in text_of(result)
        assert "It is written." in text_of(result)
        assert place.lines == ["one"]
        again = place.chat("write one", waiting, {name: accept(choice="once")})
        assert text_of(again) == text_of(result)  # the same answer, sent once more, does nothing
        assert place.lines == ["one"]

        waiting = place.chat("write two")  # and the session can be gone on with
        assert len(model.requests[-1]["messages"]) > 4
        name, _ = asked(waiting)
        place.chat("write two", waiting, {name: accept(choice="once")})
        assert place.lines == ["one", "two"]
        assert place.left() == []


def test_a_tool_that_was_cut_off_by_kill_9_is_not_run_again_before_somebody_says_so(
    model: LoopbackModel, tmp_path: Path
) -> None:
    place = Place(model, tmp_path)
    with place.server as server:
        place.create()
        waiting = place.chat("run long")
        name, _ = asked(waiting)
        answers = {name: accept(choice="once")}
        with place.calling("run long", waiting, answers):
            until(lambda: place.lines == ["begun"])
            assert place.logins()
            server.kill()
        until(lambda: place.left() == [])  # with the server, all that it had started
        assert place.logins() == []
        server.start()
        waiting = place.chat("run long", waiting, answers)
        name, message = asked(waiting)
        assert "The server stopped while Claude worked" in message
        waiting = place.chat("run long", waiting, {name: accept(choice="go_on")})
        name, message = asked(waiting)
        assert "it may have run already" in message
        assert "sleep 300" in message
        result = place.chat("run long", waiting, {name: accept(choice="no")})
        assert '"type":"complete"' in text_of(result)
        assert place.lines == ["begun"]


def test_a_chat_in_the_background_goes_on_after_kill_9(model: LoopbackModel, tmp_path: Path) -> None:
    place = Place(model, tmp_path)

    def poll(stream: str, answer: Any = None) -> Any:
        """Poll once; whatever is asked is answered so."""
        about = {"stream_id": stream, "wait": 1}
        result = place.server.call("claudecode.poll", **about)
        while result.get("resultType") == "input_required":
            answers = dict.fromkeys(result["inputRequests"] or (), answer)
            result = place.server.call("claudecode.poll", state=result, answers=answers, **about)
        return result["structuredContent"]

    with place.server as server:
        place.create()
        task = {"session_name": "first", "query": "run long"}
        stream = place.server.call("claudecode.chat_async", **task)["structuredContent"]["stream_id"]
        while place.lines != ["begun"]:
            poll(stream, accept(choice="once"))
        server.kill()  # while it runs
        server.start()
        while poll(stream, accept(choice="stop"))["status"] != "complete":
            pass
        events = [one["event"] for one in poll(stream)["events"]]
        assert events[0]["type"] == "start"
        assert "how far it came is not known" in events[-1]["message"]
        assert place.lines == ["begun"]
        until(lambda: place.left() == [])


def test_nobody_is_left_when_a_call_is_cancelled_or_its_server_stops(
    model: LoopbackModel, tmp_path: Path
) -> None:
    place = Place(model, tmp_path)

    async def run() -> None:
        async with connect_hub(f"ws://127.0.0.1:{place.server.port}/ws") as remote:
            params = {"session_name": "first", "query": "run long"}
            call = remote.call("claudecode.chat", params, answer=lambda request: "once")
            following = asyncio.ensure_future(_collected(call))
            while place.lines != ["begun"] or not any("sleep 300" in one for one in place.left()):
                await asyncio.sleep(0.05)
            following.cancel()  # which cancels the call
            await asyncio.wait({following})
            async with asyncio.timeout(LIMIT):
                while place.left():
                    await asyncio.sleep(0.02)
            (place.work / PLACES).unlink()

            params = {"session_name": "first", "query": "never end"}
            following = asyncio.ensure_future(_collected(remote.call("claudecode.chat", params)))
            while not model.paused.is_set():
                await asyncio.sleep(0.05)
            assert place.left()
            await asyncio.to_thread(place.server.stop, signal.SIGTERM)
            await asyncio.wait({following})
        await until_nobody_is_left(place.mark)

    with place.server:
        place.create()
        drive(run(), LONG)


async def _collected(call: Any) -> list[Any]:
    return [item.content async for item in call if isinstance(item, Data)]


def test_a_lost_caller_and_a_killed_server_leave_nobody(model: LoopbackModel, tmp_path: Path) -> None:
    place = Place(model, tmp_path)

    async def run() -> None:
        remote = connect_hub(f"ws://127.0.0.1:{place.server.port}/ws")
        async with remote:
            params = {"session_name": "first", "query": "never end"}
            following = asyncio.ensure_future(_collected(remote.call("claudecode.chat", params)))
            while not model.paused.is_set():
                await asyncio.sleep(0.05)
            assert place.left()
        following.cancel()
        await asyncio.wait({following})
        async with asyncio.timeout(LIMIT):
            while place.left():
                await asyncio.sleep(0.02)

    with place.server as server:
        place.create()
        drive(run(), LONG)
        model.paused.clear()
        with place.calling("never end"):
            until(model.paused.is_set)
            assert place.left()
            server.kill()
        until(lambda: marked(place.mark) == [])
        server.start()
